/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cast and CastLike between all types. Elements go through f64 if one side is floating, else
 * through i64, in blocks that stay in cache. Floats that no integer represents become the nearest
 * one, NaN becomes 0. 16-bit floats are rounded from f32.
 */
#include "ops/compute/own_kernels.h"

#include <string.h>

#include "ops/compute/halves.h"
#include "ops/compute/support.h"
#include "ops/compute/widen.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/half.h"
#include "runtime/base/parallel.h"

#define BLOCK WEFTI_WIDE_BLOCK

typedef struct {
    weft_dtype_t from, to;
    weft_isa_t isa;
    uint32_t threads;
    int64_t count;
    bool floating; /* the values between are f64 */
} state_t;

#define EACH(expression)                                                                           \
    for (int64_t i = 0; i < count; i++) {                                                          \
        expression;                                                                                \
    }                                                                                              \
    break
#define LOAD(name, type)                                                                           \
    case WEFT_DTYPE_##name:                                                                        \
        if (floating) {                                                                            \
            EACH(out->f64[i] = (double)((const type *)x)[i]);                                      \
        }                                                                                          \
        EACH(out->i64[i] = (int64_t)((const type *)x)[i])

static void load(weft_dtype_t from, bool floating, const void *x, int64_t count, wefti_wide_t *out)
{
    switch (from) {
        LOAD(I64, int64_t);
        LOAD(I32, int32_t);
        LOAD(I16, int16_t);
        LOAD(I8, int8_t);
        LOAD(U64, uint64_t);
        LOAD(U32, uint32_t);
        LOAD(U16, uint16_t);
        LOAD(U8, uint8_t);
    case WEFT_DTYPE_BOOL:
        if (floating) {
            EACH(out->f64[i] = ((const uint8_t *)x)[i] != 0);
        }
        EACH(out->i64[i] = ((const uint8_t *)x)[i] != 0);
    case WEFT_DTYPE_F64:
        EACH(out->f64[i] = ((const double *)x)[i]);
    case WEFT_DTYPE_F32:
        EACH(out->f64[i] = (double)((const float *)x)[i]);
    case WEFT_DTYPE_F16:
        EACH(out->f64[i] = (double)wefti_f16_to_f32(((const uint16_t *)x)[i]));
    case WEFT_DTYPE_BF16:
        EACH(out->f64[i] = (double)wefti_bf16_to_f32(((const uint16_t *)x)[i]));
    case WEFT_DTYPE_NONE:
        break;
    }
}

/* Towards zero, into [low, high]; high is the first float beyond. */
static inline int64_t whole(double x, double low, double high, int64_t least, int64_t most)
{
    return x != x ? 0 : x <= low ? least : x >= high ? most : (int64_t)x;
}

#define STORE(name, type, least, most)                                                             \
    case WEFT_DTYPE_##name:                                                                        \
        if (floating) {                                                                            \
            EACH(((type *)y)[i] =                                                                  \
                     (type)whole(in->f64[i], (double)(least), (double)(most), least, most));       \
        }                                                                                          \
        EACH(((type *)y)[i] = (type)in->i64[i])

static void store(weft_dtype_t to, bool floating, const wefti_wide_t *in, int64_t count, void *y)
{
    switch (to) {
        STORE(I64, int64_t, INT64_MIN, INT64_MAX);
        STORE(I32, int32_t, INT32_MIN, INT32_MAX);
        STORE(I16, int16_t, INT16_MIN, INT16_MAX);
        STORE(I8, int8_t, INT8_MIN, INT8_MAX);
        STORE(U32, uint32_t, 0, UINT32_MAX);
        STORE(U16, uint16_t, 0, UINT16_MAX);
        STORE(U8, uint8_t, 0, UINT8_MAX);
    case WEFT_DTYPE_U64:
        if (floating) {
            EACH(((uint64_t *)y)[i] = !(in->f64[i] > 0.0)    ? 0
                                      : in->f64[i] >= 0x1p64 ? UINT64_MAX
                                                             : (uint64_t)in->f64[i]);
        }
        EACH(((uint64_t *)y)[i] = (uint64_t)in->i64[i]);
    case WEFT_DTYPE_BOOL:
        if (floating) {
            EACH(((uint8_t *)y)[i] = in->f64[i] != 0.0);
        }
        EACH(((uint8_t *)y)[i] = in->i64[i] != 0);
    case WEFT_DTYPE_F64:
        EACH(((double *)y)[i] = in->f64[i]);
    case WEFT_DTYPE_F32:
        EACH(((float *)y)[i] = (float)in->f64[i]);
    case WEFT_DTYPE_F16:
        EACH(((uint16_t *)y)[i] = wefti_f16_from_f32((float)in->f64[i]));
    case WEFT_DTYPE_BF16:
        EACH(((uint16_t *)y)[i] = wefti_bf16_from_f32((float)in->f64[i]));
    case WEFT_DTYPE_NONE:
        break;
    }
}

void wefti_widen(weft_isa_t isa, weft_dtype_t dtype, const void *x, int64_t count,
                 wefti_wide_t *out)
{
    if (wefti_is_half(dtype)) {
        wefti_halves_widen(isa, dtype, x, count, out->f32);
    } else if (wefti_wide_dtype(dtype) == WEFT_DTYPE_I64) {
        load(dtype, false, x, count, out);
    }
}

void wefti_narrow(weft_isa_t isa, weft_dtype_t dtype, const wefti_wide_t *in, int64_t count,
                  void *y)
{
    if (wefti_is_half(dtype)) {
        wefti_halves_narrow(isa, dtype, in->f32, count, y);
    } else if (wefti_wide_dtype(dtype) == WEFT_DTYPE_I64) {
        store(dtype, false, in, count, y);
    }
}

static void run_range(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    const state_t *s = call->state;
    const size_t from_bytes = weft_dtype_size_bytes(s->from),
                 to_bytes = weft_dtype_size_bytes(s->to);
    const int64_t total = range.to - range.from;
    const char *x = (const char *)call->inputs[0] + (size_t)range.from * from_bytes;
    char *y = (char *)call->outputs[0] + (size_t)range.from * to_bytes;
    wefti_wide_t block;
    if (wefti_is_half(s->from) && s->to == WEFT_DTYPE_F32) {
        wefti_halves_widen(s->isa, s->from, x, total, (float *)(void *)y);
        return;
    }
    if (wefti_is_half(s->to) && s->from == WEFT_DTYPE_F32) {
        wefti_halves_narrow(s->isa, s->to, (const float *)(const void *)x, total, y);
        return;
    }
    for (int64_t at = 0; at < total; at += BLOCK) {
        const int64_t count = total - at < BLOCK ? total - at : BLOCK;
        load(s->from, s->floating, x + (size_t)at * from_bytes, count, &block);
        store(s->to, s->floating, &block, count, y + (size_t)at * to_bytes);
    }
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    if (s->from != s->to) {
        wefti_parallel_for(s->threads, s->count, WEFTI_GRAIN, run_range, call);
    } else if (call->inputs[0] != call->outputs[0] && s->count > 0) {
        memcpy(call->outputs[0], call->inputs[0], (size_t)s->count * weft_dtype_size_bytes(s->to));
    }
    return WEFT_OK;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, 0), "input", 0));
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    const weft_tensor_desc_t *x = &node->inputs[0], *y = &node->outputs[0];
    if (!wefti_same_shape(x, y)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "the input and the output differ in shape or layout");
    }
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    state->isa = wefti_kernel_isa(env);
    state->threads = wefti_kernel_threads(env);
    state->from = x->dtype;
    state->to = y->dtype;
    state->floating =
        ((WEFT_DTYPE_BIT(x->dtype) | WEFT_DTYPE_BIT(y->dtype)) & WEFTI_BIT_FLOATS) != 0;
    state->count = weft_tensor_elem_count(x);
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_cast, "", "Cast", prepare, run);
WEFTI_KERNEL(wefti_kernel_cast_like, "", "CastLike", prepare, run);
