/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SGD, Momentum and Adam. One call covers a whole bucket, so each is one pass over memory that
 * reads and writes every element once. State and parameters are updated in place or written to
 * outputs of their own.
 */
#include "ops/compute/own_kernels.h"

#include <math.h>

#include "ops/compute/math_f32.h"
#include "ops/compute/support.h"
#include "runtime/base/error.h"

/* Pointers of one call; the in and out of a tensor may be the same. */
typedef struct {
    const float *p, *g, *m, *v;
    float *p_out, *m_out, *v_out;
    int64_t count;
    float decay, lr;
    float momentum;                                       /* Momentum */
    float beta1, one_minus_beta1, beta2, one_minus_beta2; /* Adam */
    float step_size, root_bias, epsilon;                  /* Adam */
} update_t;

typedef void (*update_fn)(const update_t *u);

typedef struct {
    update_fn update;
    int64_t count;
    float decay, momentum, beta1, beta2, epsilon;
} state_t;

/* decay is a compile-time constant 0 in one copy: no product with zero, which would make NaN of
 * infinity. */
WEFTI_INLINE float gradient(const update_t *u, int64_t i, bool decay)
{
    return decay ? u->g[i] + u->decay * u->p[i] : u->g[i];
}

WEFTI_INLINE void sgd_loop(const update_t *u, bool decay)
{
    const update_t local = *u;
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < local.count; i++) {
        local.p_out[i] = local.p[i] - local.lr * gradient(&local, i, decay);
    }
}

WEFTI_INLINE void sgd_body(const update_t *u)
{
    if (u->decay == 0.0f) {
        sgd_loop(u, false);
    } else {
        sgd_loop(u, true);
    }
}

WEFTI_INLINE void momentum_loop(const update_t *u, bool decay)
{
    const update_t local = *u;
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < local.count; i++) {
        float m = local.momentum * local.m[i] + gradient(&local, i, decay);
        float p = local.p[i] - local.lr * m;
        local.m_out[i] = m;
        local.p_out[i] = p;
    }
}

WEFTI_INLINE void momentum_body(const update_t *u)
{
    if (u->decay == 0.0f) {
        momentum_loop(u, false);
    } else {
        momentum_loop(u, true);
    }
}

WEFTI_INLINE void adam_loop(const update_t *u, bool decay)
{
    const update_t local = *u;
    WEFTI_INDEPENDENT
    for (int64_t i = 0; i < local.count; i++) {
        float g = gradient(&local, i, decay);
        float m = local.beta1 * local.m[i] + local.one_minus_beta1 * g;
        float v = local.beta2 * local.v[i] + local.one_minus_beta2 * (g * g);
        float p = local.p[i] - local.step_size * m / (sqrtf(v) / local.root_bias + local.epsilon);
        local.m_out[i] = m;
        local.v_out[i] = v;
        local.p_out[i] = p;
    }
}

WEFTI_INLINE void adam_body(const update_t *u)
{
    if (u->decay == 0.0f) {
        adam_loop(u, false);
    } else {
        adam_loop(u, true);
    }
}

#define PARAMS (const update_t *u)
WEFTI_CLONES(sgd, PARAMS, (u));
WEFTI_CLONES(momentum, PARAMS, (u));
WEFTI_CLONES(adam, PARAMS, (u));

static weft_status_t prepare(const weft_node_desc_t *node, uint32_t tensors, uint32_t scalars,
                             update_fn update, void **out_state, size_t *out_scratch_bytes)
{
    weft_status_t status;
    for (uint32_t i = 0; i < tensors + scalars; i++) {
        WEFT_TRY(status, wefti_need_f32(node, i), out);
        if (i < tensors ? !wefti_same_shape(&node->inputs[i], &node->inputs[0])
                        : weft_tensor_elem_count(&node->inputs[i]) != 1) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "input %u has the wrong shape", i);
        }
    }
    for (uint32_t i = 0; i + 1 < tensors; i++) {
        WEFT_TRY(status, wefti_need_f32_output(node, i), out);
        if (!wefti_same_shape(&node->outputs[i], &node->inputs[0])) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "output %u has the wrong shape", i);
        }
    }
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    state->update = update;
    state->count = weft_tensor_elem_count(&node->inputs[0]);
    state->decay = weft_node_attr_float(node, "weight_decay", 0.0f);
    state->momentum = weft_node_attr_float(node, "momentum", 0.9f);
    state->beta1 = weft_node_attr_float(node, "beta1", 0.9f);
    state->beta2 = weft_node_attr_float(node, "beta2", 0.999f);
    state->epsilon = weft_node_attr_float(node, "epsilon", 1e-8f);
    *out_state = state;
    *out_scratch_bytes = 0;
out:
    return status;
}

static weft_status_t run_sgd(const weft_kernel_call_t *call)
{
    const state_t *state = call->state;
    update_t u = {.p = call->inputs[0],
                  .g = call->inputs[1],
                  .p_out = call->outputs[0],
                  .count = state->count,
                  .decay = state->decay};
    u.lr = *(const float *)call->inputs[2];
    state->update(&u);
    return WEFT_OK;
}

static weft_status_t run_momentum(const weft_kernel_call_t *call)
{
    const state_t *state = call->state;
    update_t u = {.p = call->inputs[0],
                  .g = call->inputs[1],
                  .m = call->inputs[2],
                  .p_out = call->outputs[0],
                  .m_out = call->outputs[1],
                  .count = state->count,
                  .decay = state->decay,
                  .momentum = state->momentum};
    u.lr = *(const float *)call->inputs[3];
    state->update(&u);
    return WEFT_OK;
}

static weft_status_t run_adam(const weft_kernel_call_t *call)
{
    const state_t *state = call->state;
    update_t u = {.p = call->inputs[0],
                  .g = call->inputs[1],
                  .m = call->inputs[2],
                  .v = call->inputs[3],
                  .p_out = call->outputs[0],
                  .m_out = call->outputs[1],
                  .v_out = call->outputs[2],
                  .count = state->count,
                  .decay = state->decay,
                  .beta1 = state->beta1,
                  .beta2 = state->beta2,
                  .epsilon = state->epsilon};
    float lr = *(const float *)call->inputs[4], step = *(const float *)call->inputs[5];
    /* Steps count from 1; the factors in double, as they get close to 0. */
    uint32_t steps = step >= 1.0f && step < 4e9f ? (uint32_t)step : 1;
    double bias1 = 1.0 - wefti_pow_step(state->beta1, steps);
    double bias2 = 1.0 - wefti_pow_step(state->beta2, steps);
    u.one_minus_beta1 = (float)(1.0 - (double)state->beta1);
    u.one_minus_beta2 = (float)(1.0 - (double)state->beta2);
    u.step_size = (float)((double)lr / bias1);
    u.root_bias = (float)sqrt(bias2);
    state->update(&u);
    return WEFT_OK;
}

#define PREPARE(name, tensors, scalars, loop)                                                      \
    static weft_status_t name(const weft_node_desc_t *node, const weft_kernel_env_t *env,          \
                              void **out_state, size_t *out_scratch_bytes)                         \
    {                                                                                              \
        return prepare(node, tensors, scalars, loop[wefti_kernel_isa(env)], out_state,             \
                       out_scratch_bytes);                                                         \
    }
PREPARE(prepare_sgd, 2, 1, sgd)
PREPARE(prepare_momentum, 3, 1, momentum)
PREPARE(prepare_adam, 4, 2, adam)

WEFTI_KERNEL(wefti_kernel_sgd, "weft", "SGD", prepare_sgd, run_sgd);
WEFTI_KERNEL(wefti_kernel_momentum, "weft", "Momentum", prepare_momentum, run_momentum);
WEFTI_KERNEL(wefti_kernel_adam, "weft", "Adam", prepare_adam, run_adam);
