/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The learning rate of a step. It is computed in double with operations that round the same way on
 * every machine, so ranks on different hosts agree in every bit.
 *
 *        lr  |     ____                     warm-up: lr t / warmup, t = 1 ..
 *            |    /    \__    cosine        then, of the share p of the steps that are left:
 *            |   /        \__               min + (lr - min) (1 - p) or (1 + cos(pi p)) / 2
 *     min_lr |  /            \_____
 *            +--------------------- step
 */
#include "ops/compute/own_kernels.h"

#include <string.h>

#include "ops/compute/math_f32.h"
#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"

typedef enum { CONSTANT, LINEAR, COSINE, STEP, SCHEDULES } schedule_t;
static const char *const names[SCHEDULES] = {"constant", "linear", "cosine", "step"};

typedef struct {
    schedule_t schedule;
    uint32_t steps, warmup; /* steps 0: an input */
    double min_lr, gamma;
} state_t;

/* cos(pi p) for 0 <= p <= 1, by the series of x up to pi / 2: exact to 1e-15. */
static double cos_pi(double p)
{
    double x = 3.14159265358979323846 * (p <= 0.5 ? p : 1.0 - p), sum = 1.0;
    for (int k = 24; k > 0; k -= 2) {
        sum = 1.0 - sum * (x * x) / (double)(k * (k - 1));
    }
    return p <= 0.5 ? sum : -sum;
}

/* at: steps done before this one. */
static double rate_at(const state_t *s, double lr, uint32_t at, uint32_t steps)
{
    if (at < s->warmup) {
        return lr * ((double)at + 1.0) / (double)s->warmup;
    }
    double low = s->min_lr < lr ? s->min_lr : lr;
    double past = (double)(at - s->warmup);
    double span = steps > s->warmup ? (double)(steps - s->warmup) : 1.0;
    double p = past < span ? past / span : 1.0;
    double rate = lr;
    if (s->schedule == LINEAR) {
        rate = low + (lr - low) * (1.0 - p);
    } else if (s->schedule == COSINE) {
        rate = low + (lr - low) * 0.5 * (1.0 + cos_pi(p));
    } else if (s->schedule == STEP) {
        rate = lr * wefti_pow_step(s->gamma, (at - s->warmup) / steps);
        rate = rate < low ? low : rate;
    }
    return rate;
}

static uint32_t whole(float number)
{
    return number >= 1.0f && number < 4e9f ? (uint32_t)number : 0;
}

static weft_status_t run_learning_rate(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    uint32_t step = whole(*(const float *)call->inputs[1]);
    uint32_t steps = s->steps;
    if (s->schedule != CONSTANT && steps == 0) {
        steps = whole(*(const float *)call->inputs[2]);
        if (steps == 0) {
            return wefti_error(WEFT_ERR_STATE,
                               "scalar 'lr_steps' is not set: the learning rate needs the number "
                               "of steps, by it or by parameter lr_steps of the compilation");
        }
    }
    *(float *)call->outputs[0] =
        (float)rate_at(s, (double)*(const float *)call->inputs[0], step > 0 ? step - 1 : 0, steps);
    return WEFT_OK;
}

static weft_status_t prepare_learning_rate(const weft_node_desc_t *node,
                                           const weft_kernel_env_t *env, void **out_state,
                                           size_t *out_scratch_bytes)
{
    const char *name = weft_node_attr_string(node, "schedule", "constant");
    int64_t steps = weft_node_attr_int(node, "steps", 0);
    int64_t warmup = weft_node_attr_int(node, "warmup", 0);
    schedule_t schedule = CONSTANT;
    (void)env;
    while (schedule < SCHEDULES && strcmp(names[schedule], name) != 0) {
        schedule++;
    }
    if (schedule == SCHEDULES || steps < 0 || steps > UINT32_MAX || warmup < 0 ||
        warmup > UINT32_MAX) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "attribute %s is out of range",
                           schedule == SCHEDULES ? "schedule" : "steps or warmup");
    }
    for (uint32_t i = 0; i < (schedule != CONSTANT && steps == 0 ? 3u : 2u); i++) {
        WEFT_RETURN_IF_ERROR(wefti_need_f32(node, i));
        if (weft_tensor_elem_count(&node->inputs[i]) != 1) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "input %u has the wrong shape", i);
        }
    }
    WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    state_t *state = wefti_state_alloc(sizeof *state);
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *state = (state_t){.schedule = schedule,
                       .steps = (uint32_t)steps,
                       .warmup = (uint32_t)warmup,
                       .min_lr = (double)weft_node_attr_float(node, "min_lr", 0.0f),
                       .gamma = (double)weft_node_attr_float(node, "gamma", 0.1f)};
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_learning_rate, "weft", "LearningRate", prepare_learning_rate,
             run_learning_rate);
