/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dropout in training, its gradient, and its inference form, which passes on what comes.
 *
 * Element i of the global tensor is kept when word i % 4 of Philox block i / 4 is not below ratio *
 * 2^32. The key is the seed, the counter (block, step, salt); the global tensor is that of all
 * ranks, one behind the other. So a mask depends on no instruction set, order or number of ranks.
 */
#include "ops/compute/own_kernels.h"

#include <string.h>

#include "ops/compute/philox.h"
#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

#define CHUNK (4 * WEFTI_PHILOX_LANES) /* elements whose words are made at once */
#define AHEAD 1024                     /* elements from those that are requested */

typedef struct dropout dropout_t;
typedef void (*dropout_fn)(const dropout_t *d);

struct dropout {
    dropout_fn forward;
    const float *x;
    float *y;
    uint8_t *mask; /* may be NULL */
    int64_t count;
    uint64_t first; /* global index of element 0 */
    uint64_t seed;
    uint32_t step, salt;
    uint32_t threshold; /* words below are dropped */
    float scale;
};

typedef void (*grad_fn)(const float *dy, const uint8_t *mask, float *dx, int64_t count,
                        float scale);

typedef struct {
    dropout_fn forward;
    grad_fn grad;
    int64_t count;
    uint32_t salt, threshold;
    float scale;
    bool all; /* ratio 1: nothing is kept */
    bool has_mask, has_rank;
    weft_dtype_t mask_dtype;
    uint32_t threads;
} state_t;

WEFTI_INLINE void apply(const uint32_t *words, const float *x, float *y, uint8_t *mask,
                        int64_t count, uint32_t threshold, float scale)
{
    wefti_prefetch(x + AHEAD, count * (int64_t)sizeof(*x));
    wefti_prefetch(y + AHEAD, count * (int64_t)sizeof(*y));
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        float kept = x[i] * scale; /* computed always: no branch around the load */
        y[i] = words[i] >= threshold ? kept : 0.0f;
    }
    count = mask == NULL ? 0 : count;
    wefti_prefetch(mask + AHEAD, count);
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        mask[i] = words[i] >= threshold;
    }
}

/* words_fn makes the words of a chunk; chunks are aligned in the global tensor. */
#define DROPOUT(name, words_fn)                                                                    \
    static void name(const dropout_t *d)                                                           \
    {                                                                                              \
        const uint64_t high = (uint64_t)d->salt << 32 | d->step;                                   \
        uint32_t words[CHUNK];                                                                     \
        int64_t head = (int64_t)(d->first % CHUNK);                                                \
        for (int64_t at = 0, take; at < d->count; at += take, head = 0) {                          \
            const int64_t left = d->count - at;                                                    \
            take = CHUNK - head < left ? CHUNK - head : left;                                      \
            words_fn((d->first + (uint64_t)at) / CHUNK * WEFTI_PHILOX_LANES, high, d->seed,        \
                     words);                                                                       \
            uint8_t *mask = d->mask == NULL ? NULL : d->mask + at;                                 \
            if (take == CHUNK) { /* loops without rests */                                         \
                apply(words, d->x + at, d->y + at, mask, CHUNK, d->threshold, d->scale);           \
            } else {                                                                               \
                apply(words + head, d->x + at, d->y + at, mask, take, d->threshold, d->scale);     \
            }                                                                                      \
        }                                                                                          \
    }
DROPOUT(dropout_portable, wefti_philox_words_portable)
WEFTI_TARGET_AVX2 DROPOUT(dropout_avx2, wefti_philox_words_avx2)
WEFTI_TARGET_AVX512 DROPOUT(dropout_avx512,
                            wefti_philox_words_avx512) static const dropout_fn dropout[3] = {
    dropout_portable, dropout_avx2, dropout_avx512};

WEFTI_INLINE void dropout_grad_body(const float *dy, const uint8_t *mask, float *dx, int64_t count,
                                    float scale)
{
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        float kept = dy[i] * scale;
        dx[i] = mask[i] != 0 ? kept : 0.0f;
    }
}

WEFTI_CLONES(dropout_grad,
             (const float *dy, const uint8_t *mask, float *dx, int64_t count, float scale),
             (dy, mask, dx, count, scale));

/* Scale and threshold of a ratio in [0, 1]. */
static weft_status_t set_ratio(const weft_node_desc_t *node, state_t *state)
{
    double ratio = (double)weft_node_attr_float(node, "ratio", 0.5f);
    if (!(ratio >= 0.0 && ratio <= 1.0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "invalid ratio %g: must be between 0 and 1",
                           ratio);
    }
    state->all = ratio >= 1.0;
    state->scale = state->all ? 0.0f : (float)(1.0 / (1.0 - ratio));
    state->threshold = state->all ? UINT32_MAX : (uint32_t)(ratio * 4294967296.0);
    return WEFT_OK;
}

/* A plain u8 tensor with the dimensions of like. */
static bool is_mask(const weft_tensor_desc_t *mask, const weft_tensor_desc_t *like)
{
    return mask->dtype == WEFT_DTYPE_U8 && wefti_same_shape(mask, like);
}

/* One element, of a scalar input. */
static weft_status_t need_scalar(const weft_node_desc_t *node, uint32_t index, weft_dtype_t dtype)
{
    const weft_tensor_desc_t *desc = index < node->input_count ? &node->inputs[index] : NULL;
    if (desc == NULL || desc->dtype != dtype || weft_tensor_elem_count(desc) != 1) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "input %u: expected one element of type %s",
                           index, weft_dtype_name(dtype));
    }
    return WEFT_OK;
}

/* X (or dY) and Y (or dX): f32, alike, plain, as elements are counted in plain order. */
static weft_status_t need_pair(const weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 0));
    WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    if (!wefti_same_shape(&node->inputs[0], &node->outputs[0]) ||
        node->inputs[0].layout != WEFT_LAYOUT_PLAIN) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "input 0 and output 0 must have one type and shape, in plain layout");
    }
    return WEFT_OK;
}

static weft_status_t finish(const weft_node_desc_t *node, const state_t *made, void **out_state,
                            size_t *out_scratch_bytes)
{
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *state = *made;
    state->count = weft_tensor_elem_count(&node->outputs[0]);
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static weft_status_t prepare_mask(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    weft_status_t status;
    state_t state = {.forward = dropout[wefti_kernel_isa(env)],
                     .threads = wefti_kernel_threads(env)};
    const weft_tensor_desc_t *mask = wefti_node_output(node, 1);
    WEFT_TRY(status, need_pair(node), out);
    WEFT_TRY(status, need_scalar(node, 1, WEFT_DTYPE_I64), out);
    WEFT_TRY(status, need_scalar(node, 2, WEFT_DTYPE_F32), out);
    state.has_rank = node->input_count > 3 && node->inputs[3].dtype != WEFT_DTYPE_NONE;
    if (state.has_rank) {
        WEFT_TRY(status, need_scalar(node, 3, WEFT_DTYPE_I64), out);
    }
    state.has_mask = mask != NULL && mask->dtype != WEFT_DTYPE_NONE;
    if (state.has_mask && !is_mask(mask, &node->inputs[0])) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "the mask must have type u8 and the shape of the input");
    }
    WEFT_TRY(status, set_ratio(node, &state), out);
    state.salt = (uint32_t)weft_node_attr_int(node, "salt", 0);
    status = finish(node, &state, out_state, out_scratch_bytes);
out:
    return status;
}

static weft_status_t prepare_grad(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    weft_status_t status;
    state_t state = {.grad = dropout_grad[wefti_kernel_isa(env)],
                     .threads = wefti_kernel_threads(env)};
    WEFT_TRY(status, need_pair(node), out);
    if (node->input_count < 2 || !is_mask(&node->inputs[1], &node->inputs[0])) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "the mask must have type u8 and the shape of the input");
    }
    WEFT_TRY(status, set_ratio(node, &state), out);
    status = finish(node, &state, out_state, out_scratch_bytes);
out:
    return status;
}

/* A constant of one element: false, or a ratio of zero. */
static bool is_zero(const weft_tensor_desc_t *desc)
{
    const uint8_t *bytes = desc->data;
    if (bytes == NULL || weft_tensor_elem_count(desc) != 1) {
        return false;
    }
    for (size_t i = 0; i < weft_dtype_size_bytes(desc->dtype); i++) {
        if (bytes[i] != 0) {
            return false;
        }
    }
    return true;
}

static weft_status_t prepare_inference(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                       void **out_state, size_t *out_scratch_bytes)
{
    weft_status_t status;
    const weft_tensor_desc_t *mask = wefti_node_output(node, 1);
    state_t state = {0};
    (void)env;
    const weft_tensor_desc_t *ratio = wefti_infer_input(node, 1),
                             *training = wefti_infer_input(node, 2);
    if (training != NULL && !is_zero(training) && (ratio == NULL || !is_zero(ratio))) {
        return wefti_error(
            WEFT_ERR_UNSUPPORTED,
            "input 2: only the inference form of Dropout has a kernel; training uses "
            "weft.DropoutMask");
    }
    WEFT_TRY(status, need_pair(node), out);
    state.has_mask = mask != NULL && mask->dtype != WEFT_DTYPE_NONE;
    if (state.has_mask) {
        state.mask_dtype = mask->dtype;
        if (!wefti_same_shape(mask, &node->inputs[0]) ||
            (mask->dtype != WEFT_DTYPE_BOOL && mask->dtype != WEFT_DTYPE_F32)) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "the mask has type %s or a shape that differs from X",
                               weft_dtype_name(mask->dtype));
        }
    }
    status = finish(node, &state, out_state, out_scratch_bytes);
out:
    return status;
}

static void mask_range(const void *job, wefti_range_t range)
{
    const dropout_t *all = job;
    dropout_t d = *all;
    d.x += range.from;
    d.y += range.from;
    d.mask = d.mask == NULL ? NULL : d.mask + range.from;
    d.first += (uint64_t)range.from;
    d.count = range.to - range.from;
    d.forward(&d);
}

static weft_status_t run_mask(const weft_kernel_call_t *call)
{
    const state_t *state = call->state;
    dropout_t d = {.x = call->inputs[0],
                   .y = call->outputs[0],
                   .mask = state->has_mask ? call->outputs[1] : NULL,
                   .count = state->count,
                   .salt = state->salt,
                   .threshold = state->threshold,
                   .scale = state->scale};
    if (state->all) { /* no word is kept, not even the largest */
        memset(d.y, 0, (size_t)d.count * sizeof(float));
        if (d.mask != NULL) {
            memset(d.mask, 0, (size_t)d.count);
        }
        return WEFT_OK;
    }
    float step = *(const float *)call->inputs[2];
    const int64_t *rank = state->has_rank ? call->inputs[3] : NULL;
    memcpy(&d.seed, call->inputs[1], sizeof(d.seed));
    d.step = step >= 1.0f && step < 4e9f ? (uint32_t)step : 1;
    d.first = rank == NULL ? 0 : (uint64_t)*rank * (uint64_t)d.count;
    d.forward = state->forward;
    wefti_parallel_for(state->threads, d.count, WEFTI_GRAIN, mask_range, &d);
    return WEFT_OK;
}

static void grad_range(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    const state_t *state = call->state;
    state->grad((const float *)call->inputs[0] + range.from,
                (const uint8_t *)call->inputs[1] + range.from,
                (float *)call->outputs[0] + range.from, range.to - range.from, state->scale);
}

static weft_status_t run_grad(const weft_kernel_call_t *call)
{
    const state_t *state = call->state;
    wefti_parallel_for(state->threads, state->count, WEFTI_GRAIN, grad_range, call);
    return WEFT_OK;
}

static weft_status_t run_inference(const weft_kernel_call_t *call)
{
    const state_t *state = call->state;
    if (call->outputs[0] != call->inputs[0] && state->count > 0) {
        memcpy(call->outputs[0], call->inputs[0], (size_t)state->count * sizeof(float));
    }
    if (state->has_mask && state->mask_dtype == WEFT_DTYPE_BOOL) {
        memset(call->outputs[1], 1, (size_t)state->count); /* everything is kept */
    }
    for (int64_t i = 0; state->has_mask && state->mask_dtype == WEFT_DTYPE_F32 && i < state->count;
         i++) {
        ((float *)call->outputs[1])[i] = 1.0f;
    }
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_dropout, "", "Dropout", prepare_inference, run_inference);
WEFTI_KERNEL(wefti_kernel_dropout_mask, "weft", "DropoutMask", prepare_mask, run_mask);
WEFTI_KERNEL(wefti_kernel_dropout_grad, "weft", "DropoutGrad", prepare_grad, run_grad);
