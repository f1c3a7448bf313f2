/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plugin: the operator Swish(x) = x * sigmoid(x) of domain "sample", its gradient, and kernels
 * for both. Build it as a shared library and give it to `weft run --kernels`. The definition names
 * the gradient operator, and the compiler does the rest: backward pass, buckets, memory.
 */
#include <math.h>
#include <stdlib.h>

#include <weft/registry.h>

/* Element-wise: every output has the type and shape of the first input. */
static weft_status_t infer_same(weft_node_desc_t *node)
{
    for (uint32_t i = 0; i < node->output_count; i++) {
        node->outputs[i] = node->inputs[0];
        node->outputs[i].data = NULL;
    }
    return WEFT_OK;
}

static void cost_elementwise(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    double count = (double)weft_tensor_elem_count(&node->inputs[0]);
    *out_flops = 20 * count;
    *out_bytes = 4 * count * (node->input_count + 1);
}

/* Passes use facts: this one lets split_batch know that samples stay independent. */
static const weft_op_facts_t facts = {
    .struct_size = sizeof(weft_op_facts_t),
    .flags = WEFT_FACT_ELEMENTWISE,
    .mixing = WEFT_MIXING_NONE,
};

static const weft_op_def_t swish_def = {
    .domain = "sample",
    .name = "Swish",
    .since_version = 1,
    .inputs_min = 1,
    .inputs_max = 1,
    .outputs_min = 1,
    .outputs_max = 1,
    .dtypes = WEFT_DTYPE_BIT(WEFT_DTYPE_F32),
    .effects = WEFT_EFFECT_PURE,
    .in_place = {-1, -1, -1, -1}, /* the gradient needs the input */
    .infer = infer_same,
    .cost = cost_elementwise,
    .grad = "SwishGrad",
    .doc = "x * sigmoid(x)",
    .facts = &facts,
};

/* By the convention of weft_op_def_t.grad: inputs dY, X, Y; output dX. */
static const weft_op_def_t swish_grad_def = {
    .domain = "sample",
    .name = "SwishGrad",
    .since_version = 1,
    .inputs_min = 3,
    .inputs_max = 3,
    .outputs_min = 1,
    .outputs_max = 1,
    .dtypes = WEFT_DTYPE_BIT(WEFT_DTYPE_F32),
    .effects = WEFT_EFFECT_PURE,
    .in_place = {0, -1, -1, -1}, /* dX may overwrite dY */
    .infer = infer_same,
    .cost = cost_elementwise,
    .doc = "dX = dY * (y + sigmoid(x) * (1 - y))",
    .facts = &facts,
};

/* State of a prepared node: how many elements it works on. */
static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    (void)env;
    int64_t *count = malloc(sizeof *count);
    if (count == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *count = weft_tensor_elem_count(&node->inputs[0]);
    *out_state = count;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static weft_status_t run_swish(const weft_kernel_call_t *call)
{
    int64_t count = *(const int64_t *)call->state;
    const float *x = call->inputs[0];
    float *y = call->outputs[0];
    for (int64_t i = 0; i < count; i++) {
        y[i] = x[i] * sigmoid(x[i]);
    }
    return WEFT_OK;
}

static weft_status_t run_swish_grad(const weft_kernel_call_t *call)
{
    int64_t count = *(const int64_t *)call->state;
    const float *dy = call->inputs[0];
    const float *x = call->inputs[1];
    const float *y = call->inputs[2];
    float *dx = call->outputs[0];
    for (int64_t i = 0; i < count; i++) {
        dx[i] = dy[i] * (y[i] + sigmoid(x[i]) * (1.0f - y[i]));
    }
    return WEFT_OK;
}

static const weft_kernel_t swish_kernel = {
    .abi_version = WEFT_KERNEL_ABI_VERSION,
    .domain = "sample",
    .op = "Swish",
    .since_version = 1,
    .prepare = prepare,
    .run = run_swish,
    .destroy = free,
};

static const weft_kernel_t swish_grad_kernel = {
    .abi_version = WEFT_KERNEL_ABI_VERSION,
    .domain = "sample",
    .op = "SwishGrad",
    .since_version = 1,
    .prepare = prepare,
    .run = run_swish_grad,
    .destroy = free,
};

/* What `weft run --kernels` calls. */
WEFT_API weft_status_t weft_plugin_init(weft_registry_t *registry);
weft_status_t weft_plugin_init(weft_registry_t *registry)
{
    weft_status_t status = weft_registry_add_op(registry, &swish_def);
    if (status >= 0) {
        status = weft_registry_add_op(registry, &swish_grad_def);
    }
    if (status >= 0) {
        status = weft_registry_add_kernel(registry, &swish_kernel);
    }
    if (status >= 0) {
        status = weft_registry_add_kernel(registry, &swish_grad_kernel);
    }
    return status;
}
