/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plugin for cli_gradients.py: operators of domain "faulty" that all compute y = x + sin(x) / 2,
 * with gradients of their own. Right has the right one; the others what people get wrong. Corner is
 * a Relu whose gradient at 0 is a choice.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <weft/registry.h>

typedef struct node_state {
    int64_t count;
} node_state_t;

static weft_status_t infer_same(weft_node_desc_t *node)
{
    for (uint32_t i = 0; i < node->output_count; i++) {
        node->outputs[i] = node->inputs[0];
        node->outputs[i].data = NULL;
    }
    return WEFT_OK;
}

static void cost(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    double count = (double)weft_tensor_elem_count(&node->inputs[0]);
    *out_flops = 20 * count;
    *out_bytes = 4 * count * (node->input_count + 1);
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    (void)env;
    node_state_t *state = malloc(sizeof *state);
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    state->count = weft_tensor_elem_count(&node->inputs[0]);
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static weft_status_t run_forward(const weft_kernel_call_t *call)
{
    const node_state_t *state = call->state;
    const float *x = call->inputs[0];
    float *y = call->outputs[0];
    for (int64_t i = 0; i < state->count; i++) {
        y[i] = x[i] + 0.5f * sinf(x[i]);
    }
    return WEFT_OK;
}

static weft_status_t run_corner(const weft_kernel_call_t *call)
{
    const node_state_t *state = call->state;
    const float *x = call->inputs[0];
    float *y = call->outputs[0];
    for (int64_t i = 0; i < state->count; i++) {
        y[i] = fabsf(x[i]);
    }
    return WEFT_OK;
}

/* Not the same twice. */
static weft_status_t run_unsteady(const weft_kernel_call_t *call)
{
    static float calls;
    weft_status_t status = run_forward(call);
    ((float *)call->outputs[0])[0] += calls;
    calls += 0.25f;
    return status;
}

/* What each of them makes of the right derivative of element i. */
static float right(float slope, int64_t i)
{
    (void)i;
    return slope;
}
static float scaled(float slope, int64_t i)
{
    (void)i;
    return slope * 1.1f;
}
static float negated(float slope, int64_t i)
{
    (void)i;
    return -slope;
}
static float missing(float slope, int64_t i)
{
    return i % 3 == 0 ? 0 : slope;
}
static float linear(float slope, int64_t i) /* forgets the sine */
{
    (void)slope;
    (void)i;
    return 1;
}
static float not_a_number(float slope, int64_t i)
{
    return i == 5 ? NAN : slope;
}

#define GRADIENT(rule)                                                                             \
    static weft_status_t run_##rule(const weft_kernel_call_t *call)                                \
    {                                                                                              \
        const node_state_t *state = call->state;                                                   \
        const float *dy = call->inputs[0], *x = call->inputs[1];                                   \
        float *dx = call->outputs[0];                                                              \
        for (int64_t i = 0; i < state->count; i++) {                                               \
            dx[i] = dy[i] * rule(1.0f + 0.5f * cosf(x[i]), i);                                     \
        }                                                                                          \
        return WEFT_OK;                                                                            \
    }
GRADIENT(right)
GRADIENT(scaled)
GRADIENT(negated)
GRADIENT(missing)
GRADIENT(linear)
GRADIENT(not_a_number)

static weft_status_t run_corner_grad(const weft_kernel_call_t *call)
{
    const node_state_t *state = call->state;
    const float *dy = call->inputs[0], *x = call->inputs[1];
    float *dx = call->outputs[0];
    for (int64_t i = 0; i < state->count; i++) {
        dx[i] = x[i] >= 0 ? dy[i] : -dy[i]; /* at 0 one of its slopes */
    }
    return WEFT_OK;
}

typedef weft_status_t (*run_fn)(const weft_kernel_call_t *call);

static const struct {
    const char *name, *grad;
    run_fn forward, backward;
} table[] = {
    {"Right", "RightGrad", run_forward, run_right},
    {"Scaled", "ScaledGrad", run_forward, run_scaled},
    {"Negated", "NegatedGrad", run_forward, run_negated},
    {"Missing", "MissingGrad", run_forward, run_missing},
    {"Linear", "LinearGrad", run_forward, run_linear},
    {"NotANumber", "NotANumberGrad", run_forward, run_not_a_number},
    {"Corner", "CornerGrad", run_corner, run_corner_grad},
    {"Unsteady", "UnsteadyGrad", run_unsteady, run_right},
};
#define COUNT (sizeof table / sizeof *table)

static weft_op_def_t defs[2 * COUNT];
static weft_kernel_t kernels[2 * COUNT];

static void fill(size_t at, const char *name, const char *grad, run_fn run)
{
    uint8_t inputs = grad != NULL ? 1 : 3;
    defs[at] = (weft_op_def_t){.domain = "faulty",
                               .name = name,
                               .since_version = 1,
                               .inputs_min = inputs,
                               .inputs_max = inputs,
                               .outputs_min = 1,
                               .outputs_max = 1,
                               .dtypes = WEFT_DTYPE_BIT(WEFT_DTYPE_F32),
                               .in_place = {-1, -1, -1, -1},
                               .infer = infer_same,
                               .cost = cost,
                               .grad = grad,
                               .doc = "for tests"};
    kernels[at] = (weft_kernel_t){.abi_version = WEFT_KERNEL_ABI_VERSION,
                                  .domain = "faulty",
                                  .op = name,
                                  .since_version = 1,
                                  .prepare = prepare,
                                  .run = run,
                                  .destroy = free};
}

WEFT_API weft_status_t weft_plugin_init(weft_registry_t *registry);
weft_status_t weft_plugin_init(weft_registry_t *registry)
{
    weft_status_t status = WEFT_OK;
    for (size_t i = 0; i < COUNT; i++) {
        fill(2 * i, table[i].name, table[i].grad, table[i].forward);
        fill(2 * i + 1, table[i].grad, NULL, table[i].backward);
    }
    for (size_t i = 0; i < 2 * COUNT && status >= 0; i++) {
        status = weft_registry_add_op(registry, &defs[i]);
        status = status < 0 ? status : weft_registry_add_kernel(registry, &kernels[i]);
    }
    return status;
}
