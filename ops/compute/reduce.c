/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reductions over dimensions, one row per operator; ReduceSum and ReduceMean of f32 are in
 * sum_to.c. Floats are accumulated in f64 and integers in i64, element by element in order, so that
 * bits do not depend on the instruction set; largest and smallest elements are found in lanes.
 */
#include "ops/compute/own_kernels.h"

#include <math.h>
#include <string.h>

#include "ops/compute/functions.h"
#include "ops/compute/reduce.h"
#include "ops/compute/support.h"
#include "ops/compute/widen.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

typedef enum { ADD, MULTIPLY, MAXIMUM, MINIMUM, ADD_SQUARE, ADD_ABS, ADD_EXP } step_t;
typedef enum { RESULT, MEAN, ROOT, LOG, LOG_EXP } finish_t;

typedef struct row {
    const char *op;
    step_t step;
    finish_t finish;
} row_t;

#define REDUCTIONS(ROW)                                                                            \
    ROW("ReduceMax", MAXIMUM, RESULT)                                                              \
    ROW("ReduceMin", MINIMUM, RESULT)                                                              \
    ROW("ReduceProd", MULTIPLY, RESULT)                                                            \
    ROW("ReduceSumSquare", ADD_SQUARE, RESULT)                                                     \
    ROW("ReduceL1", ADD_ABS, RESULT)                                                               \
    ROW("ReduceL2", ADD_SQUARE, ROOT)                                                              \
    ROW("ReduceLogSum", ADD, LOG)                                                                  \
    ROW("ReduceLogSumExp", ADD_EXP, LOG_EXP)

#define ROW_OF(...) {__VA_ARGS__},
static const row_t rows[] = {REDUCTIONS(ROW_OF){"ReduceSum", ADD, RESULT},
                             {"ReduceMean", ADD, MEAN}};

typedef union number {
    double f;
    int64_t i;
} number_t;

typedef struct {
    wefti_reduce_fn run;
    wefti_nest_t nest; /* a: X, b: Y */
    row_t row;
    weft_dtype_t dtype;
    bool floating, boolean;
    int64_t out_count, reduced; /* elements of Y, and of X for each */
    weft_isa_t isa;
    uint32_t threads;
} state_t;

/* NaN wins. */
static inline double step_f64(step_t step, double sum, double x)
{
    return step == ADD          ? sum + x
           : step == MULTIPLY   ? sum * x
           : step == MAXIMUM    ? (x > sum || x != x ? x : sum)
           : step == MINIMUM    ? (x < sum || x != x ? x : sum)
           : step == ADD_SQUARE ? sum + x * x
                                : sum + fabs(x);
}

/* Sums and products wrap around. */
static inline int64_t step_i64(step_t step, int64_t sum, int64_t x)
{
    uint64_t a = (uint64_t)sum, b = (uint64_t)x;
    return step == MAXIMUM   ? (x > sum ? x : sum)
           : step == MINIMUM ? (x < sum ? x : sum)
                             : (int64_t)(step == ADD          ? a + b
                                         : step == MULTIPLY   ? a * b
                                         : step == ADD_SQUARE ? a + b * b
                                                              : a + (x < 0 ? 0 - b : b));
}

static void load_f64(weft_dtype_t dtype, const void *x, int64_t count, double *out)
{
    wefti_wide_t wide;
    const float *f32 = x;
    if (wefti_wide_dtype(dtype) == WEFT_DTYPE_F32 && dtype != WEFT_DTYPE_F32) {
        wefti_widen(WEFT_ISA_PORTABLE, dtype, x, count, &wide);
        f32 = wide.f32;
    }
    for (int64_t i = 0; i < count; i++) {
        out[i] = dtype == WEFT_DTYPE_F64 ? ((const double *)x)[i] : (double)f32[i];
    }
}

/* The largest or smallest element, in lanes. */
#define LANES 32
WEFTI_INLINE float further(bool maximum, float v, float most)
{
    return maximum ? (v > most ? v : most) : (v < most ? v : most);
}

WEFTI_INLINE void extreme_lanes(bool maximum, const float *x, int64_t count, float *out)
{
    const float first = maximum ? -INFINITY : INFINITY;
    float most[LANES], nans[LANES];
    int64_t i = 0;
    for (int j = 0; j < LANES; j++) {
        most[j] = first;
        nans[j] = 0.0f;
    }
    for (; i + LANES <= count; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            const float v = x[i + j];
            most[j] = further(maximum, v, most[j]);
            nans[j] = v != v ? v : nans[j];
        }
    }
    for (int j = 0; i < count; i++, j++) {
        most[j] = further(maximum, x[i], most[j]);
        nans[j] = x[i] != x[i] ? x[i] : nans[j];
    }
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int j = 0; j < half; j++) {
            most[j] = further(maximum, most[j + half], most[j]);
            nans[j] += nans[j + half];
        }
    }
    *out = nans[0] != nans[0] ? nans[0] : most[0];
}

WEFTI_INLINE void extreme_body(bool maximum, const float *x, int64_t count, float *out)
{
    if (maximum) {
        extreme_lanes(true, x, count, out);
    } else {
        extreme_lanes(false, x, count, out);
    }
}
WEFTI_CLONES(extreme, (bool maximum, const float *x, int64_t count, float *out),
             (maximum, x, count, out));

/* One element is the extreme, whatever the order, unless it is a zero (which sign?) or NaN (which
 * one?); false: it is. */
static bool fold_extreme(const state_t *s, step_t step, const float *x, int64_t count, number_t *y)
{
    float most;
    if (s->dtype != WEFT_DTYPE_F32 || (step != MAXIMUM && step != MINIMUM)) {
        return false;
    }
    extreme[s->isa](step == MAXIMUM, x, count, &most);
    if (most != most || most == 0.0f) {
        return false;
    }
    y->f = step_f64(step, y->f, (double)most);
    return true;
}

/* Elements of X in order; step is a constant of each copy. One sum stays in a register. */
WEFTI_INLINE void fold(const state_t *s, step_t step, const wefti_wide_t *x, int64_t count,
                       int64_t stride, number_t *y, const number_t *most)
{
    const bool floating = s->floating;
    number_t sum = *y;
    for (int64_t i = 0; i < count; i++) {
        const int64_t to = i * stride;
        sum = stride == 0 ? sum : y[to];
        if (step == ADD_EXP) {
            sum.f += wefti_exp(x->f64[i] - (isfinite(most[to].f) ? most[to].f : 0.0));
        } else if (floating) {
            sum.f = step_f64(step, sum.f, x->f64[i]);
        } else {
            sum.i = step_i64(step, sum.i, x->i64[i]);
        }
        if (stride != 0) {
            y[to] = sum;
        }
    }
    if (stride == 0) {
        *y = sum;
    }
}

#define STEPS(STEP)                                                                                \
    STEP(ADD)                                                                                      \
    STEP(MULTIPLY) STEP(MAXIMUM) STEP(MINIMUM) STEP(ADD_SQUARE) STEP(ADD_ABS) STEP(ADD_EXP)
#define FOLD(step)                                                                                 \
    case step:                                                                                     \
        fold(s, step, &wide, n, stride, to, most == NULL ? NULL : most + at * stride);             \
        break;

/* One run of X; stride: of Y. most: the maxima, of ADD_EXP. */
static void add_row(const state_t *s, step_t step, const char *x, int64_t count, int64_t stride,
                    number_t *y, const number_t *most)
{
    wefti_wide_t wide;
    size_t size = weft_dtype_size_bytes(s->dtype);
    if (stride == 0 && fold_extreme(s, step, (const float *)(const void *)x, count, y)) {
        return;
    }
    for (int64_t at = 0; at < count; at += WEFTI_WIDE_BLOCK) {
        int64_t n = count - at < WEFTI_WIDE_BLOCK ? count - at : WEFTI_WIDE_BLOCK;
        const char *from = x + (size_t)at * size;
        if (s->floating) {
            load_f64(s->dtype, from, n, wide.f64);
        } else if (s->dtype == WEFT_DTYPE_I64) {
            memcpy(wide.i64, from, (size_t)n * size);
        } else {
            wefti_widen(WEFT_ISA_PORTABLE, s->dtype, from, n, &wide);
        }
        number_t *to = y + at * stride;
        switch (step) {
            STEPS(FOLD)
        }
    }
}

typedef struct job {
    const state_t *s;
    step_t step;
    const char *x;
    number_t *y;
    const number_t *most;
    uint32_t by; /* the dimension that is divided */
} job_t;

static void run_range(const void *opaque, wefti_range_t range)
{
    const job_t *job = opaque;
    const state_t *s = job->s;
    int64_t a, b;
    wefti_nest_at_t at = {0};
    const wefti_nest_t nest = wefti_nest_range(&s->nest, job->by, range, &a, &b);
    const uint32_t last = nest.rank - 1;
    const int64_t size = (int64_t)weft_dtype_size_bytes(s->dtype);
    do {
        add_row(s, job->step, job->x + size * (a + at.a), nest.dims[last], nest.b[last],
                job->y + b + at.b, job->most == NULL ? NULL : job->most + b + at.b);
    } while (wefti_nest_next(&nest, &at));
}

static void pass(const state_t *s, step_t step, const char *x, number_t *y, const number_t *most)
{
    job_t job = {.s = s, .step = step, .x = x, .y = y, .most = most};
    number_t first = {.i = 0};
    if (s->floating) {
        first.f = step == MAXIMUM    ? -INFINITY
                  : step == MINIMUM  ? INFINITY
                  : step == MULTIPLY ? 1.0
                                     : 0.0;
    } else if (s->boolean) { /* of nothing: false is the smallest, true the largest value */
        first.i = step == MINIMUM;
    } else {
        first.i = step == MAXIMUM    ? INT64_MIN
                  : step == MINIMUM  ? INT64_MAX
                  : step == MULTIPLY ? 1
                                     : 0;
    }
    for (int64_t i = 0; i < s->out_count; i++) {
        y[i] = first;
    }
    if (!s->nest.empty) {
        wefti_reduce_by(s->threads, &s->nest, &job.by, run_range, &job);
    }
}

static double finished(const state_t *s, double sum, double most)
{
    switch (s->row.finish) {
    case MEAN:
        return sum / (double)s->reduced;
    case ROOT:
        return sqrt(sum);
    case LOG:
        return wefti_log_any(sum);
    case LOG_EXP:
        return isfinite(most) ? most + wefti_log_any(sum) : most;
    default:
        return sum;
    }
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    number_t *sums = call->scratch, *most = sums + s->out_count;
    char *y = call->outputs[0];
    if (s->row.step == ADD_EXP) {
        pass(s, MAXIMUM, call->inputs[0], most, NULL);
    }
    pass(s, s->row.step, call->inputs[0], sums, s->row.step == ADD_EXP ? most : NULL);
    for (int64_t i = 0; i < s->out_count; i++) {
        wefti_wide_t one;
        char *to = y + (size_t)i * weft_dtype_size_bytes(s->dtype);
        double f = s->floating ? sums[i].f : (double)sums[i].i;
        double result = finished(s, f, s->row.step == ADD_EXP ? most[i].f : 0.0);
        if (s->floating) {
            one.f32[0] = (float)result;
        } else if (s->row.finish == MEAN) {
            one.i64[0] = sums[i].i / (s->reduced > 0 ? s->reduced : 1);
        } else {
            one.i64[0] = s->row.finish == RESULT ? sums[i].i : (int64_t)result;
        }
        if (s->dtype == WEFT_DTYPE_F64) {
            memcpy(to, &result, sizeof(result));
        } else if (s->dtype == WEFT_DTYPE_F32 || s->dtype == WEFT_DTYPE_I64) {
            memcpy(to, &one, weft_dtype_size_bytes(s->dtype));
        } else {
            wefti_narrow(WEFT_ISA_PORTABLE, s->dtype, &one, 1, to);
        }
    }
    return WEFT_OK;
}

/* Also ReduceSum and ReduceMean, of other types than f32. */
weft_status_t wefti_reduce_prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                   void **out_state, size_t *out_scratch_bytes)
{
    int64_t from[WEFT_MAX_DIMS], to[WEFT_MAX_DIMS];
    uint32_t mask, order[WEFT_MAX_DIMS];
    size_t at = 0;
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, 0), "input", 0));
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    WEFT_RETURN_IF_ERROR(wefti_reduce_strides(node, &mask, to));
    const weft_tensor_desc_t *x = &node->inputs[0];
    while (at < WEFTI_COUNT(rows) && strcmp(rows[at].op, node->op) != 0) {
        at++;
    }
    const bool boolean = x->dtype == WEFT_DTYPE_BOOL && at < WEFTI_COUNT(rows) &&
                         (rows[at].step == MAXIMUM || rows[at].step == MINIMUM);
    const weft_dtype_t dtype = boolean ? WEFT_DTYPE_U8 : x->dtype;
    const weft_dtype_t wide = wefti_wide_dtype(dtype);
    const bool floating = (WEFT_DTYPE_BIT(dtype) & WEFTI_BIT_FLOATS) != 0;
    if (at == WEFTI_COUNT(rows) || (!floating && wide != WEFT_DTYPE_I64) ||
        (!floating && rows[at].step == ADD_EXP)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: no kernel for type %s", node->op,
                           weft_dtype_name(x->dtype));
    }
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    state->run = run;
    state->row = rows[at];
    state->dtype = dtype;
    state->floating = floating;
    state->boolean = boolean;
    state->out_count = weft_tensor_elem_count(&node->outputs[0]);
    state->isa = wefti_kernel_isa(env);
    state->threads = wefti_kernel_threads(env);
    state->reduced = 1;
    wefti_strides(x, from);
    wefti_memory_order(x, order);
    wefti_nest_init(&state->nest);
    for (uint32_t i = 0; i < x->rank; i++) {
        uint32_t d = order[i];
        bool gone = (mask >> d & 1) != 0;
        wefti_nest_add(&state->nest, x->dims[d], from[d], gone ? 0 : to[d]);
        state->reduced *= gone ? x->dims[d] : 1;
    }
    *out_state = state;
    *out_scratch_bytes = 2 * (size_t)state->out_count * sizeof(number_t);
    return WEFT_OK;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    return wefti_reduce_prepare(node, env, out_state, out_scratch_bytes);
}

#define KERNEL_OF(name, ...) WEFTI_KERNEL_VALUE("", name, prepare, run),
static const weft_kernel_t kernels[] = {REDUCTIONS(KERNEL_OF)};

wefti_kernel_family_t wefti_kernels_reduce(void)
{
    return (wefti_kernel_family_t){kernels, WEFTI_COUNT(kernels)};
}
