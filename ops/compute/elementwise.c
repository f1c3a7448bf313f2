/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels of element-wise operators share. */
#include "ops/compute/elementwise.h"

#include "ops/compute/widen.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

static wefti_elementwise_fn find_loop(const wefti_elementwise_loops_t *loops, weft_dtype_t dtype,
                                      weft_isa_t isa)
{
    switch (dtype) {
    case WEFT_DTYPE_F32:
        return loops->f32 != NULL ? loops->f32[isa] : NULL;
    case WEFT_DTYPE_F64:
        return loops->f64;
    case WEFT_DTYPE_I64:
        return loops->i64;
    case WEFT_DTYPE_BOOL:
        return loops->boolean;
    default:
        return NULL;
    }
}

void wefti_elementwise_numbers(const weft_node_desc_t *node,
                               const wefti_elementwise_number_t *numbers, double *out)
{
    for (int i = 0; numbers != NULL && i < 2 && numbers[i].attr != NULL; i++) {
        const weft_attr_t *attr = weft_node_attr(node, numbers[i].attr);
        out[i] =
            attr != NULL && attr->type == WEFT_ATTR_TYPE_INT
                ? (double)attr->i
                : (double)weft_node_attr_float(node, numbers[i].attr, numbers[i].default_value);
    }
}

weft_status_t wefti_elementwise_prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                        uint32_t tensors, const wefti_elementwise_number_t *numbers,
                                        const wefti_elementwise_loops_t *loops, void **out_state,
                                        size_t *out_scratch_bytes)
{
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    const weft_tensor_desc_t *y = &node->outputs[0];
    for (uint32_t i = 0; i < tensors; i++) {
        WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, i), "input", i));
        if (node->inputs[i].dtype != (loops->tests ? node->inputs[0].dtype : y->dtype) ||
            !wefti_same_shape(&node->inputs[i], y)) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "input %u and the output differ in type, shape or layout", i);
        }
    }
    weft_dtype_t in = node->inputs[0].dtype, wide = wefti_wide_dtype(in);
    wefti_elementwise_fn loop = find_loop(loops, wide, wefti_kernel_isa(env));
    if (loop == NULL || (loops->tests && y->dtype != WEFT_DTYPE_BOOL)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: no kernel for type %s", node->op,
                           weft_dtype_name(in));
    }
    wefti_elementwise_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *state = (wefti_elementwise_t){.loop = loop,
                                   .count = weft_tensor_elem_count(y),
                                   .tensors = tensors,
                                   .threads = wefti_kernel_threads(env),
                                   .isa = wefti_kernel_isa(env),
                                   .in = in,
                                   .out = y->dtype,
                                   .widens = wide != in};
    wefti_elementwise_numbers(node, numbers, state->p);
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static void run_range(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    const wefti_elementwise_t *s = call->state;
    const size_t in = weft_dtype_size_bytes(s->in), out = weft_dtype_size_bytes(s->out);
    const char *a = call->inputs[0], *b = call->inputs[s->tensors - 1];
    char *y = call->outputs[0];
    if (!s->widens) {
        const size_t at = (size_t)range.from;
        s->loop(a + at * in, b + at * in, s->p, y + at * out, range.to - range.from);
        return;
    }
    for (int64_t at = range.from; at < range.to; at += WEFTI_WIDE_BLOCK) {
        int64_t left = range.to - at, count = left < WEFTI_WIDE_BLOCK ? left : WEFTI_WIDE_BLOCK;
        wefti_wide_t x[2], z;
        wefti_widen(s->isa, s->in, a + (size_t)at * in, count, &x[0]);
        if (s->tensors > 1) {
            wefti_widen(s->isa, s->in, b + (size_t)at * in, count, &x[1]);
        }
        if (s->in != s->out) { /* a test */
            s->loop(&x[0], &x[s->tensors - 1], s->p, y + (size_t)at * out, count);
        } else {
            s->loop(&x[0], &x[s->tensors - 1], s->p, &z, count);
            wefti_narrow(s->isa, s->out, &z, count, y + (size_t)at * out);
        }
    }
}

weft_status_t wefti_elementwise_run(const weft_kernel_call_t *call)
{
    const wefti_elementwise_t *s = call->state;
    wefti_parallel_for(s->threads, s->count, WEFTI_GRAIN, run_range, call);
    return WEFT_OK;
}
