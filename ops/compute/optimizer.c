/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SGD, Momentum, Adagrad, Adam, AdamW and MovingAverage: one call covers a whole bucket, so each is one pass
 * over memory that reads and writes every element once. Lamb first takes norms: LambSquares is that
 * pass of a shard, whose sums the ranks add before Lamb. State and parameters are updated in place or written to outputs of their own.
 */
#include "ops/compute/own_kernels.h"

#include <math.h>
#include <string.h>

#include "ops/compute/math_f32.h"
#include "ops/compute/support.h"
#include "ops/exact_sum.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/half.h"
#include "runtime/base/parallel.h"

typedef struct update update_t;
typedef void (*update_fn)(const update_t *u);

/* Pointers of one call; the in and out of a tensor may be the same. */
struct update {
    update_fn update;
    const float *p, *g, *m, *v;
    const uint16_t *half_g; /* g as bf16 */
    float *p_out, *m_out, *v_out;
    int64_t count;
    float divisor, grad_scale;
    float decay, lr;
    float momentum;                                       /* Momentum, MovingAverage */
    float beta1, one_minus_beta1, beta2, one_minus_beta2; /* Adam */
    float step_size, root_bias, epsilon;                  /* Adam */
    float kept, kept_last; /* AdamW: the share of P that stays, before and after the step */
    float bias1;           /* Lamb */
    int64_t *sums;         /* Lamb: of squares of P, then of U */
    bool nesterov;         /* Momentum */
};

typedef struct {
    update_fn update;
    uint32_t threads;
    int64_t count;
    uint32_t scale_input; /* index of grad_scale; 0: absent */
    bool half;            /* the gradient is bf16 */
    float divisor;
    bool adapt, nesterov, scaled_epsilon, decay_last;
    uint32_t first; /* the count of steps in step 1 */
    float decay, momentum, beta1, beta2, epsilon, lr_decay;
    update_fn squares;     /* Lamb */
    bool is_shard;         /* Lamb: norms are an input */
    int64_t at;            /* Lamb of a shard: row of the first tensor */
    uint32_t tensor_count; /* of the range that the shard is of */
    const int64_t *begins; /* [tensor_count] elements */
} state_t;

/* LambSquares: of P, G, M and V, each in pieces. */
typedef struct {
    state_t update;
    uint32_t pieces;
    int64_t rows;     /* of the sums */
    int64_t counts[]; /* [pieces] elements; then begins */
} squares_state_t;

/*
 * What an update reads of the gradient. The flags are compile-time constants, so each combination
 * is a loop of its own. Without decay there is no product with zero, which would make NaN of
 * infinity; unscaled, nothing is divided by 1.
 */
enum { DECAYS = 1, SCALES = 2, HALF = 4 };
WEFTI_INLINE float gradient(const update_t *u, int64_t i, int flags)
{
    float g = (flags & HALF) != 0 ? wefti_bf16_to_f32(u->half_g[i]) : u->g[i];
    if ((flags & SCALES) != 0) {
        g = g / u->divisor * u->grad_scale;
    }
    return (flags & DECAYS) != 0 ? g + u->decay * u->p[i] : g;
}

WEFTI_INLINE int flags_of(const update_t *u)
{
    return (u->decay != 0.0f ? DECAYS : 0) |
           (u->divisor != 1.0f || u->grad_scale != 1.0f ? SCALES : 0) |
           (u->half_g != NULL ? HALF : 0);
}

/* loop(u, flags) with constant flags. */
#define DISPATCH(loop, u)                                                                          \
    switch (flags_of(u)) {                                                                         \
    case 0:                                                                                        \
        loop(u, 0);                                                                                \
        break;                                                                                     \
    case DECAYS:                                                                                   \
        loop(u, DECAYS);                                                                           \
        break;                                                                                     \
    case SCALES:                                                                                   \
        loop(u, SCALES);                                                                           \
        break;                                                                                     \
    case SCALES | DECAYS:                                                                          \
        loop(u, SCALES | DECAYS);                                                                  \
        break;                                                                                     \
    case HALF:                                                                                     \
        loop(u, HALF);                                                                             \
        break;                                                                                     \
    case HALF | DECAYS:                                                                            \
        loop(u, HALF | DECAYS);                                                                    \
        break;                                                                                     \
    case HALF | SCALES:                                                                            \
        loop(u, HALF | SCALES);                                                                    \
        break;                                                                                     \
    default:                                                                                       \
        loop(u, HALF | SCALES | DECAYS);                                                           \
    }

WEFTI_INLINE void sgd_loop(const update_t *u, int flags)
{
    const update_t local = *u;
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < local.count; i++) {
        local.p_out[i] = local.p[i] - local.lr * gradient(&local, i, flags);
    }
}

WEFTI_INLINE void sgd_body(const update_t *u){DISPATCH(sgd_loop, u)}

WEFTI_INLINE void average_loop(const update_t *u, int flags)
{
    const update_t local = *u;
    const float rest = 1.0f - local.momentum;
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < local.count; i++) {
        local.p_out[i] = local.momentum * local.p[i] + rest * gradient(&local, i, flags);
    }
}

WEFTI_INLINE void average_body(const update_t *u){DISPATCH(average_loop, u)}

WEFTI_INLINE void momentum_loop(const update_t *u, int flags)
{
    const update_t local = *u;
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < local.count; i++) {
        float g = gradient(&local, i, flags);
        float m = local.momentum * local.m[i] + g;
        float p = local.p[i] - local.lr * (local.nesterov ? g + local.momentum * m : m);
        local.m_out[i] = m;
        local.p_out[i] = p;
    }
}

WEFTI_INLINE void momentum_body(const update_t *u){DISPATCH(momentum_loop, u)}

WEFTI_INLINE void adagrad_loop(const update_t *u, int flags)
{
    const update_t local = *u;
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < local.count; i++) {
        float g = gradient(&local, i, flags);
        float m = local.m[i] + g * g;
        float p = local.p[i] - local.step_size * g / (sqrtf(m) + local.epsilon);
        local.m_out[i] = m;
        local.p_out[i] = p;
    }
}

WEFTI_INLINE void adagrad_body(const update_t *u){DISPATCH(adagrad_loop, u)}

/* Element i of Adam with gradient g, where p is the parameter before. */
WEFTI_INLINE float adam_element(const update_t *u, int64_t i, float g, float p)
{
    float m = u->beta1 * u->m[i] + u->one_minus_beta1 * g;
    float v = u->beta2 * u->v[i] + u->one_minus_beta2 * (g * g);
    u->m_out[i] = m;
    u->v_out[i] = v;
    return p - u->step_size * m / (sqrtf(v) / u->root_bias + u->epsilon);
}

WEFTI_INLINE void adam_loop(const update_t *u, int flags)
{
    const update_t local = *u;
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < local.count; i++) {
        local.p_out[i] = adam_element(&local, i, gradient(&local, i, flags), local.p[i]);
    }
}

WEFTI_INLINE void adam_body(const update_t *u){DISPATCH(adam_loop, u)}

/* The parameter decays, not the gradient. */
WEFTI_INLINE void adamw_loop(const update_t *u, int flags)
{
    const update_t local = *u;
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < local.count; i++) {
        float p = (flags & DECAYS) != 0 ? local.p[i] * local.kept : local.p[i];
        p = adam_element(&local, i, gradient(&local, i, flags & ~DECAYS), p);
        local.p_out[i] = (flags & DECAYS) != 0 ? p * local.kept_last : p;
    }
}

WEFTI_INLINE void adamw_body(const update_t *u){DISPATCH(adamw_loop, u)}

/* What Lamb takes from parameter i, before its norm. */
WEFTI_INLINE float lamb_direction(const update_t *u, int64_t i, float m, float v)
{
    float d = m / u->bias1 / (sqrtf(v) / u->root_bias + u->epsilon);
    return u->decay != 0.0f ? d + u->decay * u->p[i] : d;
}

/* Adds the squares of P and U of at most 16 elements, each in one fixed tree. */
WEFTI_INLINE void lamb_unit(const update_t *u, int64_t begin, int64_t count, int flags)
{
    double p[WEFTI_SUM_UNIT] = {0}, d[WEFTI_SUM_UNIT] = {0};
    WEFTI_INDEPENDENT
    for (int64_t k = 0; k < count; k++) {
        int64_t i = begin + k;
        float g = gradient(u, i, flags & ~DECAYS);
        float m = u->beta1 * u->m[i] + u->one_minus_beta1 * g;
        float v = u->beta2 * u->v[i] + u->one_minus_beta2 * (g * g);
        float direction = lamb_direction(u, i, m, v);
        p[k] = (double)u->p[i] * (double)u->p[i];
        d[k] = (double)direction * (double)direction;
    }
    for (int half = WEFTI_SUM_UNIT / 2; half > 0; half /= 2) {
        for (int k = 0; k < half; k++) {
            p[k] += p[k + half];
            d[k] += d[k + half];
        }
    }
    wefti_sum_add(u->sums, p[0]);
    wefti_sum_add(u->sums + WEFTI_SUM_LIMBS, d[0]);
}

/* The sums of units are added without rounding (ops/exact_sum.h): the norms have the same bits
 * however a tensor is cut, as long as cuts lie at multiples of 16 elements. */
WEFTI_INLINE void lamb_squares_loop(const update_t *u, int flags)
{
    const update_t local = *u;
    int64_t i = 0;
    for (; i + WEFTI_SUM_UNIT <= local.count; i += WEFTI_SUM_UNIT) {
        lamb_unit(&local, i, WEFTI_SUM_UNIT, flags);
    }
    lamb_unit(&local, i, local.count - i, flags);
}

WEFTI_INLINE void lamb_squares_body(const update_t *u){DISPATCH(lamb_squares_loop, u)}

WEFTI_INLINE void lamb_loop(const update_t *u, int flags)
{
    const update_t local = *u;
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < local.count; i++) {
        float g = gradient(&local, i, flags & ~DECAYS);
        float m = local.beta1 * local.m[i] + local.one_minus_beta1 * g;
        float v = local.beta2 * local.v[i] + local.one_minus_beta2 * (g * g);
        float p = local.p[i] - local.lr * lamb_direction(&local, i, m, v);
        local.m_out[i] = m;
        local.v_out[i] = v;
        local.p_out[i] = p;
    }
}

WEFTI_INLINE void lamb_body(const update_t *u){DISPATCH(lamb_loop, u)}

#define PARAMS (const update_t *u)
WEFTI_CLONES(sgd, PARAMS, (u));
WEFTI_CLONES(momentum, PARAMS, (u));
WEFTI_CLONES(average, PARAMS, (u));
WEFTI_CLONES(adagrad, PARAMS, (u));
WEFTI_CLONES(adam, PARAMS, (u));
WEFTI_CLONES(adamw, PARAMS, (u));
WEFTI_CLONES(lamb, PARAMS, (u));
WEFTI_CLONES(lamb_squares, PARAMS, (u));

static weft_status_t check_operands(const weft_node_desc_t *node, uint32_t tensors,
                                    uint32_t scalars)
{
    weft_status_t status;
    for (uint32_t i = 0; i < tensors + scalars || i < node->input_count; i++) {
        const weft_tensor_desc_t *input = wefti_infer_input(node, i);
        if (i == 1 && input != NULL && input->dtype == WEFT_DTYPE_BF16) {
            WEFT_TRY(status, wefti_need_known(input, "input", i), out);
        } else if (i < tensors + scalars || input != NULL) {
            WEFT_TRY(status, wefti_need_f32(node, i), out);
        } else {
            continue; /* no grad_scale */
        }
        if (i < tensors ? !wefti_same_shape(input, &node->inputs[0])
                        : weft_tensor_elem_count(input) != 1) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "input %u has the wrong shape", i);
        }
    }
    for (uint32_t i = 0; i + 1 < tensors; i++) {
        WEFT_TRY(status, wefti_need_f32_output(node, i), out);
        if (!wefti_same_shape(&node->outputs[i], &node->inputs[0])) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "output %u has the wrong shape", i);
        }
    }
    if (weft_node_attr_int(node, "divisor", 1) < 1) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "attribute divisor must be at least 1");
    }
    status = WEFT_OK;
out:
    return status;
}

static void read_attrs(const weft_node_desc_t *node, uint32_t tensors, state_t *state)
{
    state->divisor = (float)weft_node_attr_int(node, "divisor", 1);
    state->adapt = weft_node_attr_int(node, "adapt", 1) != 0;
    state->nesterov = weft_node_attr_int(node, "nesterov", 0) != 0;
    state->scaled_epsilon = weft_node_attr_int(node, "scaled_epsilon", 0) != 0;
    state->decay_last = weft_node_attr_int(node, "decay_last", 0) != 0;
    state->first = (uint32_t)weft_node_attr_int(node, "first", tensors == 4);
    state->lr_decay = weft_node_attr_float(node, "lr_decay", 0.0f);
    state->decay = weft_node_attr_float(node, "weight_decay", 0.0f);
    state->momentum = weft_node_attr_float(node, "momentum", 0.9f);
    state->beta1 = weft_node_attr_float(node, "beta1", 0.9f);
    state->beta2 = weft_node_attr_float(node, "beta2", 0.999f);
    state->epsilon = weft_node_attr_float(node, "epsilon", tensors == 4 ? 1e-8f : 1e-10f);
}

/* extra: room behind the state. */
static weft_status_t prepare(const weft_node_desc_t *node, uint32_t tensors, uint32_t scalars,
                             update_fn update, uint32_t threads, size_t extra, state_t **out_state)
{
    WEFT_RETURN_IF_ERROR(check_operands(node, tensors, scalars));
    state_t *state = wefti_state_alloc(sizeof(*state) + extra);
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    state->update = update;
    state->threads = threads;
    state->count = weft_tensor_elem_count(&node->inputs[0]);
    state->scale_input = wefti_infer_input(node, tensors + scalars) != NULL ? tensors + scalars : 0;
    state->half = node->inputs[1].dtype == WEFT_DTYPE_BF16;
    read_attrs(node, tensors, state);
    *out_state = state;
    return WEFT_OK;
}

/* Some elements of an update. */
static update_t slice(const update_t *all, wefti_range_t range)
{
    update_t u = *all;
    u.p += range.from;
    u.p_out = u.p_out == NULL ? NULL : u.p_out + range.from;
    u.g = u.g == NULL ? NULL : u.g + range.from;
    u.half_g = u.half_g == NULL ? NULL : u.half_g + range.from;
    u.m = u.m == NULL ? NULL : u.m + range.from;
    u.v = u.v == NULL ? NULL : u.v + range.from;
    u.m_out = u.m_out == NULL ? NULL : u.m_out + range.from;
    u.v_out = u.v_out == NULL ? NULL : u.v_out + range.from;
    u.count = range.to - range.from;
    return u;
}

static void update_range(const void *job, wefti_range_t range)
{
    update_t u = slice(job, range);
    u.update(&u);
}

static weft_status_t run_update(const state_t *state, update_t *u)
{
    u->update = state->update;
    wefti_parallel_for(state->threads, u->count, WEFTI_GRAIN / 2, update_range, u);
    return WEFT_OK;
}

/* What all of them have. */
static update_t describe(const weft_kernel_call_t *call)
{
    const state_t *state = call->state;
    update_t u = {.p = call->inputs[0],
                  .p_out = call->outputs[0],
                  .count = state->count,
                  .divisor = state->divisor,
                  .grad_scale = 1.0f,
                  .decay = state->decay};
    if (state->half) {
        u.half_g = call->inputs[1];
    } else {
        u.g = call->inputs[1];
    }
    if (state->scale_input != 0) {
        u.grad_scale = *(const float *)call->inputs[state->scale_input];
    }
    return u;
}

static weft_status_t run_sgd(const weft_kernel_call_t *call)
{
    const state_t *state = call->state;
    update_t u = describe(call);
    u.lr = *(const float *)call->inputs[2];
    return run_update(state, &u);
}

static weft_status_t run_average(const weft_kernel_call_t *call)
{
    const state_t *state = call->state;
    update_t u = describe(call);
    u.momentum = state->momentum;
    return run_update(state, &u);
}

static weft_status_t run_momentum(const weft_kernel_call_t *call)
{
    const state_t *state = call->state;
    update_t u = describe(call);
    u.m = call->inputs[2];
    u.m_out = call->outputs[1];
    u.momentum = state->momentum;
    u.nesterov = state->nesterov;
    u.lr = *(const float *)call->inputs[3];
    return run_update(state, &u);
}

/* The count of steps: attribute first in step 1. */
static uint32_t steps_of(const state_t *state, const void *step)
{
    float number = *(const float *)step;
    return (number >= 1.0f && number < 4e9f ? (uint32_t)number : 1) - 1 + state->first;
}

static weft_status_t run_adagrad(const weft_kernel_call_t *call)
{
    const state_t *state = call->state;
    update_t u = describe(call);
    double slowed = 1.0 + (double)steps_of(state, call->inputs[4]) * (double)state->lr_decay;
    u.m = call->inputs[2];
    u.m_out = call->outputs[1];
    u.epsilon = state->epsilon;
    u.step_size = (float)((double)*(const float *)call->inputs[3] / slowed);
    return run_update(state, &u);
}

/* The factors in double, as they get close to 0. Before any step nothing is biased. */
static void set_moments(const state_t *state, const void *step, update_t *u)
{
    uint32_t steps = steps_of(state, step);
    double bias1 = steps == 0 ? 1.0 : 1.0 - wefti_pow_step(state->beta1, steps);
    double bias2 = steps == 0 ? 1.0 : 1.0 - wefti_pow_step(state->beta2, steps);
    u->beta1 = state->beta1;
    u->beta2 = state->beta2;
    u->epsilon = state->epsilon;
    u->one_minus_beta1 = (float)(1.0 - (double)state->beta1);
    u->one_minus_beta2 = (float)(1.0 - (double)state->beta2);
    u->step_size = (float)((double)u->lr / bias1);
    u->root_bias = (float)sqrt(bias2);
    if (state->scaled_epsilon) {
        u->epsilon = (float)((double)state->epsilon / sqrt(bias2));
    }
    u->bias1 = (float)bias1;
    float kept = (float)(1.0 - (double)u->lr * (double)state->decay);
    u->kept = state->decay_last ? 1.0f : kept;
    u->kept_last = state->decay_last ? kept : 1.0f;
}

static update_t describe_adam(const weft_kernel_call_t *call)
{
    update_t u = describe(call);
    u.m = call->inputs[2];
    u.v = call->inputs[3];
    u.m_out = call->outputs[1];
    u.v_out = call->outputs[2];
    u.lr = *(const float *)call->inputs[4];
    set_moments(call->state, call->inputs[5], &u);
    return u;
}

static weft_status_t run_adam(const weft_kernel_call_t *call)
{
    update_t u = describe_adam(call);
    return run_update(call->state, &u);
}

/* The learning rate of a tensor with these sums; NaN if one is not finite. */
static float lamb_rate(float lr, const int64_t *sums)
{
    double p = wefti_sum_value(sums), d = wefti_sum_value(sums + WEFTI_SUM_LIMBS);
    return p == 0 || d == 0 ? lr : (float)((double)lr * sqrt(p) / sqrt(d));
}

/* Adds the squares of a range to u->sums; carries are moved before limbs overflow. */
static void add_squares(update_fn squares, update_t *u, wefti_range_t range)
{
    const int64_t most = (int64_t)WEFTI_SUM_UNIT << 20;
    u->update = squares;
    for (int64_t from = range.from; from < range.to; from += most) {
        int64_t to = range.to - from < most ? range.to : from + most;
        update_range(u, (wefti_range_t){.from = from, .to = to});
        wefti_sum_carry(u->sums);
        wefti_sum_carry(u->sums + WEFTI_SUM_LIMBS);
    }
}

/* The elements of a shard that belong to tensor t of the range; padding belongs to the tensor in
 * front of it, and is zero. Pieces of a range are of one tensor. */
static wefti_range_t tensor_range(const state_t *state, uint32_t t, int64_t shard, int64_t count)
{
    int64_t shift = state->tensor_count > 1 ? shard * count : 0;
    int64_t from = state->begins[t] - shift;
    int64_t to = t + 1 < state->tensor_count ? state->begins[t + 1] - shift : count;
    from = state->tensor_count == 1 || from < 0 ? 0 : from;
    return (wefti_range_t){.from = from, .to = to < count ? to : count};
}

static weft_status_t run_lamb(const weft_kernel_call_t *call)
{
    const state_t *state = call->state;
    update_t u = describe_adam(call);
    int64_t sums[2 * WEFTI_SUM_LIMBS] = {0};
    if (state->adapt && !state->is_shard) {
        u.sums = sums;
        add_squares(state->squares, &u, (wefti_range_t){.from = 0, .to = u.count});
        u.lr = lamb_rate(u.lr, sums);
    }
    if (!state->is_shard) {
        return run_update(state, &u);
    }
    for (uint32_t t = 0; t < state->tensor_count; t++) {
        wefti_range_t range =
            tensor_range(state, t, *(const int64_t *)call->inputs[8], state->count);
        if (range.from < range.to) {
            const int64_t *rows = call->inputs[7];
            update_t part = slice(&u, range);
            part.lr = !state->adapt ? u.lr
                                    : lamb_rate(u.lr, rows + (state->at + t) * 2 * WEFTI_SUM_LIMBS);
            WEFT_RETURN_IF_ERROR(run_update(state, &part));
        }
    }
    return WEFT_OK;
}

/* Input index of a piece of P, G, M or V (tensor 0 to 3). */
static const void *piece_of(const weft_kernel_call_t *call, uint32_t tensor, uint32_t piece)
{
    const squares_state_t *state = call->state;
    return call->inputs[4 + tensor * state->pieces + piece];
}

static weft_status_t run_lamb_squares(const weft_kernel_call_t *call)
{
    const squares_state_t *state = call->state;
    const state_t *update = &state->update;
    int64_t *rows = call->outputs[0];
    size_t bytes = (size_t)state->rows * 2 * WEFTI_SUM_LIMBS * sizeof(*rows);
    if (call->inputs[0] == NULL) {
        memset(rows, 0, bytes);
    } else if (call->inputs[0] != rows) {
        memcpy(rows, call->inputs[0], bytes);
    }
    for (uint32_t i = 0; i < state->pieces; i++) {
        const void *g = piece_of(call, 1, i), *scale = call->inputs[3];
        update_t u = {.p = piece_of(call, 0, i),
                      .g = update->half ? NULL : g,
                      .half_g = update->half ? g : NULL,
                      .m = piece_of(call, 2, i),
                      .v = piece_of(call, 3, i),
                      .divisor = update->divisor,
                      .grad_scale = scale == NULL ? 1.0f : *(const float *)scale,
                      .decay = update->decay};
        set_moments(update, call->inputs[2], &u);
        for (uint32_t t = 0; t < update->tensor_count; t++) {
            u.sums = rows + (update->at + t) * 2 * WEFTI_SUM_LIMBS;
            add_squares(
                update->squares, &u,
                tensor_range(update, t, *(const int64_t *)call->inputs[1], state->counts[i]));
        }
    }
    return WEFT_OK;
}

#define PREPARE(name, tensors, scalars, loop)                                                      \
    static weft_status_t name(const weft_node_desc_t *node, const weft_kernel_env_t *env,          \
                              void **out_state, size_t *out_scratch_bytes)                         \
    {                                                                                              \
        state_t *state = NULL;                                                                     \
        weft_status_t status = prepare(node, tensors, scalars, loop[wefti_kernel_isa(env)],        \
                                       wefti_kernel_threads(env), 0, &state);                      \
        *out_state = state;                                                                        \
        *out_scratch_bytes = 0;                                                                    \
        return status;                                                                             \
    }
PREPARE(prepare_sgd, 2, 1, sgd)
PREPARE(prepare_momentum, 3, 1, momentum)
PREPARE(prepare_adagrad, 3, 2, adagrad)
PREPARE(prepare_adam, 4, 2, adam)
PREPARE(prepare_adamw, 4, 2, adamw)
PREPARE(prepare_average, 2, 0, average)

/* The tensors of a shard's range, in room for them. rows: of the sums. */
static weft_status_t read_tensors(const weft_node_desc_t *node, int64_t rows, int64_t *room,
                                  state_t *state)
{
    const weft_attr_t *begins = weft_node_attr(node, "begins");
    state->at = weft_node_attr_int(node, "at", 0);
    if (begins == NULL || begins->type != WEFT_ATTR_TYPE_INTS || begins->count == 0 ||
        state->at < 0 || state->at > rows || (int64_t)begins->count > rows - state->at) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attributes begins and at do not fit %lld rows of sums",
                           (long long)rows);
    }
    for (size_t t = 0; t < begins->count; t++) {
        if (begins->ints[t] < (t == 0 ? 0 : begins->ints[t - 1]) ||
            begins->ints[t] % WEFTI_SUM_UNIT != 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "attribute begins: entry %zu must be an ascending multiple of %d: "
                               "%lld",
                               t, WEFTI_SUM_UNIT, (long long)begins->ints[t]);
        }
        room[t] = begins->ints[t];
    }
    state->begins = room;
    state->tensor_count = (uint32_t)begins->count;
    return WEFT_OK;
}

static size_t begins_bytes(const weft_node_desc_t *node)
{
    const weft_attr_t *begins = weft_node_attr(node, "begins");
    return begins == NULL ? 0 : begins->count * sizeof(int64_t);
}

static weft_status_t need_i64(const weft_node_desc_t *node, uint32_t index, int64_t unit)
{
    const weft_tensor_desc_t *x = wefti_infer_input(node, index);
    WEFT_RETURN_IF_ERROR(wefti_need_known(x, "input", index));
    return x->dtype == WEFT_DTYPE_I64 && weft_tensor_elem_count(x) % unit == 0 &&
                   (unit > 1 || weft_tensor_elem_count(x) == 1)
               ? WEFT_OK
               : wefti_error(WEFT_ERR_INVALID_ARGUMENT, "input %u has the wrong shape or type",
                             index);
}

static weft_status_t prepare_lamb(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    weft_node_desc_t whole = *node;
    weft_status_t status = WEFT_OK;
    state_t *state = NULL;
    whole.input_count = node->input_count < 7 ? node->input_count : 7;
    *out_scratch_bytes = 0;
    WEFT_RETURN_IF_ERROR(prepare(&whole, 4, 2, lamb[wefti_kernel_isa(env)],
                                 wefti_kernel_threads(env), begins_bytes(node), &state));
    state->squares = lamb_squares[wefti_kernel_isa(env)];
    state->is_shard = node->input_count > 7;
    if (state->is_shard) {
        WEFT_TRY(status, need_i64(node, 7, 2 * WEFTI_SUM_LIMBS), fail);
        WEFT_TRY(status, need_i64(node, 8, 1), fail);
        WEFT_TRY(status,
                 read_tensors(node, weft_tensor_elem_count(&node->inputs[7]) / 2 / WEFTI_SUM_LIMBS,
                              (int64_t *)(state + 1), state),
                 fail);
    }
    *out_state = state;
    return WEFT_OK;
fail:
    wefti_state_free(state);
    return status;
}

/* Pieces of P, G, M and V have one count of elements; G may be bf16. */
static weft_status_t read_pieces(const weft_node_desc_t *node, squares_state_t *state)
{
    for (uint32_t i = 4; i < node->input_count; i++) {
        const weft_tensor_desc_t *x = wefti_infer_input(node, i);
        uint32_t tensor = (i - 4) / state->pieces, piece = (i - 4) % state->pieces;
        WEFT_RETURN_IF_ERROR(wefti_need_known(x, "input", i));
        state->update.half = tensor == 1 ? x->dtype == WEFT_DTYPE_BF16 : state->update.half;
        if (tensor != 1 || x->dtype != WEFT_DTYPE_BF16) {
            WEFT_RETURN_IF_ERROR(wefti_need_f32(node, i));
        }
        state->counts[piece] = tensor == 0 ? weft_tensor_elem_count(x) : state->counts[piece];
        if (weft_tensor_elem_count(x) != state->counts[piece]) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "input %u has the wrong shape", i);
        }
    }
    return WEFT_OK;
}

static weft_status_t prepare_lamb_squares(const weft_node_desc_t *node,
                                          const weft_kernel_env_t *env, void **out_state,
                                          size_t *out_scratch_bytes)
{
    weft_status_t status = WEFT_OK;
    const weft_tensor_desc_t *rows = wefti_node_output(node, 0);
    uint32_t pieces = node->input_count < 8 ? 0 : (node->input_count - 4) / 4;
    WEFT_RETURN_IF_ERROR(wefti_need_known(rows, "output", 0));
    WEFT_RETURN_IF_ERROR(need_i64(node, 1, 1));
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 2));
    if (pieces == 0 || node->input_count != 4 + 4 * pieces || rows->dtype != WEFT_DTYPE_I64 ||
        weft_tensor_elem_count(rows) % (2 * WEFTI_SUM_LIMBS) != 0 ||
        (wefti_infer_input(node, 0) != NULL && !wefti_same_shape(&node->inputs[0], rows))) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "operands do not match: %u inputs",
                           node->input_count);
    }
    squares_state_t *state =
        wefti_state_alloc(sizeof(*state) + pieces * sizeof(int64_t) + begins_bytes(node));
    WEFT_RETURN_IF_NO_MEMORY(state);
    state->pieces = pieces;
    state->rows = weft_tensor_elem_count(rows) / 2 / WEFTI_SUM_LIMBS;
    state->update.squares = lamb_squares[wefti_kernel_isa(env)];
    read_attrs(node, 4, &state->update);
    WEFT_TRY(status, read_pieces(node, state), fail);
    WEFT_TRY(status, read_tensors(node, state->rows, state->counts + pieces, &state->update), fail);
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
fail:
    wefti_state_free(state);
    return status;
}

WEFTI_KERNEL(wefti_kernel_sgd, "weft", "SGD", prepare_sgd, run_sgd);
WEFTI_KERNEL(wefti_kernel_momentum, "weft", "Momentum", prepare_momentum, run_momentum);
WEFTI_KERNEL(wefti_kernel_adagrad, "weft", "Adagrad", prepare_adagrad, run_adagrad);
WEFTI_KERNEL(wefti_kernel_adam, "weft", "Adam", prepare_adam, run_adam);
WEFTI_KERNEL(wefti_kernel_adamw, "weft", "AdamW", prepare_adamw, run_adam);
WEFTI_KERNEL(wefti_kernel_lamb, "weft", "Lamb", prepare_lamb, run_lamb);
WEFTI_KERNEL(wefti_kernel_lamb_squares, "weft", "LambSquares", prepare_lamb_squares,
             run_lamb_squares);
WEFTI_KERNEL(wefti_kernel_moving_average, "weft", "MovingAverage", prepare_average, run_average);
