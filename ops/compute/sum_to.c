/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SumTo, ReduceSum, ReduceMean: sums over dimensions. Rows that are summed away use the fixed shape
 * of sum_f32.h; rows that stay are added up in order. Column sums [B, N] -> [N] are the gradient of
 * a bias and so run in every step: they keep a tile of columns in registers.
 */
#include "ops/compute/own_kernels.h"

#include <string.h>

#include "ops/compute/reduce.h"
#include "ops/compute/sum_f32.h"
#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

#define TILE 64

typedef void (*sum_fn)(const wefti_nest_t *nest, const float *x, float *y);

/* y[j] = ((x[0][j] + x[1][j]) + x[2][j]) + ... */
WEFTI_INLINE void sum_columns(const float *x, int64_t rows, int64_t stride, int64_t columns,
                              float *y)
{
    int64_t j = 0;
    for (; j + TILE <= columns; j += TILE) {
        float acc[TILE] = {0};
        for (int64_t r = 0; r < rows; r++) {
            for (int k = 0; k < TILE; k++) {
                acc[k] += x[r * stride + j + k];
            }
        }
        memcpy(y + j, acc, sizeof(acc));
    }
    for (int64_t r = 0; r < rows && j < columns; r++) {
        WEFTI_INDEPENDENT
        for (int64_t k = j; k < columns; k++) {
            y[k] = (r == 0 ? 0.0f : y[k]) + x[r * stride + k];
        }
    }
}

/* One innermost run: a row that is summed, added, or neither. */
WEFTI_INLINE void sum_row(const float *x, int64_t count, int64_t stride, float *y)
{
    if (stride == 0) {
        *y += wefti_sum_f32(x, count);
    } else if (stride == 1) {
        WEFTI_INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            y[i] += x[i];
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            y[i * stride] += x[i];
        }
    }
}

WEFTI_INLINE void sum_body(const wefti_nest_t *nest, const float *x, float *y)
{
    uint32_t last = nest->rank - 1;
    wefti_nest_at_t at = {0};
    if (nest->rank == 2 && nest->b[0] == 0 && nest->b[1] == 1) {
        sum_columns(x, nest->dims[0], nest->a[0], nest->dims[1], y);
        return;
    }
    do {
        sum_row(x + at.a, nest->dims[last], nest->b[last], y + at.b);
    } while (wefti_nest_next(nest, &at));
}
WEFTI_CLONES(sum, (const wefti_nest_t *nest, const float *x, float *y), (nest, x, y));

typedef struct {
    wefti_reduce_fn run;
    wefti_nest_t nest; /* a: X, b: Y */
    int64_t out_count;
    float divisor;
    sum_fn sum;
    uint32_t threads;
} state_t;

static weft_status_t run(const weft_kernel_call_t *call);

/* Y keeps the dimensions of X with a bit in kept; strides has theirs in Y. */
static weft_status_t make_state(const weft_tensor_desc_t *x, const weft_tensor_desc_t *y,
                                uint32_t kept, const int64_t *strides, bool mean,
                                const weft_kernel_env_t *env, void **out_state)
{
    int64_t from[WEFT_MAX_DIMS], reduced = 1;
    uint32_t order[WEFT_MAX_DIMS];
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    wefti_strides(x, from);
    wefti_memory_order(x, order);
    wefti_nest_init(&state->nest);
    for (uint32_t i = 0; i < x->rank; i++) {
        uint32_t d = order[i];
        bool stays = (kept >> d & 1) != 0;
        wefti_nest_add(&state->nest, x->dims[d], from[d], stays ? strides[d] : 0);
        reduced *= stays ? 1 : x->dims[d];
    }
    state->run = run;
    state->out_count = weft_tensor_elem_count(y);
    state->divisor = mean ? (float)reduced : 1.0f;
    state->sum = sum[wefti_kernel_isa(env)];
    state->threads = wefti_kernel_threads(env);
    *out_state = state;
    return WEFT_OK;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    int64_t to[WEFT_MAX_DIMS], strides[WEFT_MAX_DIMS];
    uint32_t kept = 0;
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 0));
    WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    const weft_tensor_desc_t *x = &node->inputs[0], *y = &node->outputs[0];
    if (y->rank > x->rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "dX has more dimensions than dY");
    }
    wefti_strides(y, to);
    for (uint32_t d = x->rank - y->rank, i = 0; i < y->rank; d++, i++) {
        if (y->dims[i] != 1 && y->dims[i] != x->dims[d]) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "dX cannot be broadcast to dY");
        }
        kept |= y->dims[i] == x->dims[d] ? 1u << d : 0;
        strides[d] = to[i];
    }
    *out_scratch_bytes = 0;
    return make_state(x, y, kept, strides, false, env, out_state);
}

weft_status_t wefti_reduce_strides(const weft_node_desc_t *node, uint32_t *out_mask,
                                   int64_t *out_strides)
{
    int64_t to[WEFT_MAX_DIMS];
    uint32_t i = 0;
    WEFT_RETURN_IF_ERROR(wefti_reduce_axes(node, out_mask));
    const weft_tensor_desc_t *x = &node->inputs[0], *y = &node->outputs[0];
    bool keep = weft_node_attr_int(node, "keepdims", 1) != 0, fits = x->dtype == y->dtype;
    wefti_strides(y, to);
    for (uint32_t d = 0; d < x->rank && fits; d++) {
        bool gone = (*out_mask >> d & 1) != 0;
        if (!gone || keep) {
            fits = i < y->rank && y->dims[i] == (gone ? 1 : x->dims[d]);
            out_strides[d] = fits ? to[i++] : 0;
        }
    }
    if (!fits || i != y->rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "the type or shape of the output does not match the input and axes");
    }
    return WEFT_OK;
}

static weft_status_t prepare_reduce(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                    bool mean, void **out_state, size_t *out_scratch_bytes)
{
    int64_t strides[WEFT_MAX_DIMS];
    uint32_t reduced;
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, 0), "input", 0));
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    if (node->inputs[0].dtype != WEFT_DTYPE_F32) {
        return wefti_reduce_prepare(node, env, out_state, out_scratch_bytes);
    }
    WEFT_RETURN_IF_ERROR(wefti_reduce_strides(node, &reduced, strides));
    *out_scratch_bytes = 0;
    return make_state(&node->inputs[0], &node->outputs[0], ~reduced, strides, mean, env, out_state);
}

static weft_status_t prepare_sum(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                 void **out_state, size_t *out_scratch_bytes)
{
    return prepare_reduce(node, env, false, out_state, out_scratch_bytes);
}

static weft_status_t prepare_mean(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    return prepare_reduce(node, env, true, out_state, out_scratch_bytes);
}

void wefti_reduce_by(uint32_t threads, const wefti_nest_t *nest, uint32_t *out_by,
                     wefti_range_fn fn, const void *job)
{
    uint32_t by = nest->rank;
    int64_t count = 1;
    for (uint32_t i = 0; i < nest->rank; i++) {
        count *= nest->dims[i];
        /* The first that has enough, else the largest. */
        if (nest->b[i] != 0 && (by == nest->rank || (nest->dims[by] < 64 * (int64_t)threads &&
                                                     nest->dims[i] > nest->dims[by]))) {
            by = i;
        }
    }
    const bool divides = by < nest->rank && threads > 1;
    *out_by = by < nest->rank ? by : 0;
    if (!divides) {
        fn(job, (wefti_range_t){0, nest->dims[*out_by], 0});
        return;
    }
    const int64_t grain = wefti_grain_rows(count / nest->dims[by]);
    wefti_parallel_for(threads, nest->dims[by],
                       nest->a[by] == 1 ? (grain + TILE - 1) / TILE * TILE : grain, fn, job);
}

typedef struct job {
    const weft_kernel_call_t *call;
    uint32_t by;
} job_t;

static void run_range(const void *opaque, wefti_range_t range)
{
    const job_t *job = opaque;
    const state_t *s = job->call->state;
    int64_t a, b;
    const wefti_nest_t nest = wefti_nest_range(&s->nest, job->by, range, &a, &b);
    s->sum(&nest, (const float *)job->call->inputs[0] + a, (float *)job->call->outputs[0] + b);
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const state_t *state = call->state;
    float *y = call->outputs[0];
    memset(y, 0, (size_t)state->out_count * sizeof(float));
    if (!state->nest.empty) {
        job_t job = {.call = call};
        wefti_reduce_by(state->threads, &state->nest, &job.by, run_range, &job);
    }
    for (int64_t i = 0; state->divisor != 1.0f && i < state->out_count; i++) {
        y[i] /= state->divisor;
    }
    return WEFT_OK;
}

static weft_status_t run_either(const weft_kernel_call_t *call)
{
    return (*(const wefti_reduce_fn *)call->state)(call);
}

WEFTI_KERNEL(wefti_kernel_sum_to, "weft", "SumTo", prepare, run);
WEFTI_KERNEL(wefti_kernel_reduce_sum, "", "ReduceSum", prepare_sum, run_either);
WEFTI_KERNEL(wefti_kernel_reduce_mean, "", "ReduceMean", prepare_mean, run_either);
