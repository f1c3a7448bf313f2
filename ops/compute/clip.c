/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The global norm of the gradients. Squares of 16 consecutive elements are summed in double in one
 * fixed tree (a square of f32 is exact there); these sums are added without rounding (exact_sum.h).
 * So the norm has the same bits however the gradients are cut into buckets, shards and ranks, as
 * long as cuts lie at multiples of 16 elements; elements that are not there count as 0.
 */
#include "ops/compute/own_kernels.h"

#include <math.h>
#include <string.h>

#include "ops/compute/support.h"
#include "ops/exact_sum.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/half.h"

#define UNITS 64 /* per block */

typedef void (*units_fn)(const float *x, int64_t count, double *out_sums);

typedef struct {
    int64_t count;
    bool half;
} operand_t;

typedef struct {
    units_fn units;
    uint32_t input_count;
    operand_t inputs[];
} square_state_t;

typedef struct {
    double max_norm, divisor;
} clip_state_t;

WEFTI_INLINE void units_body(const float *x, int64_t count, double *out_sums)
{
    for (int64_t u = 0; u < count; u++) {
        const float *at = x + u * WEFTI_SUM_UNIT;
        double s[8];
        for (int i = 0; i < 8; i++) {
            s[i] = (double)at[i] * (double)at[i] + (double)at[i + 8] * (double)at[i + 8];
        }
        for (int i = 0; i < 4; i++) {
            s[i] = s[i] + s[i + 4];
        }
        out_sums[u] = (s[0] + s[2]) + (s[1] + s[3]);
    }
}

WEFTI_CLONES(units, (const float *x, int64_t count, double *out_sums), (x, count, out_sums));

/* Elements begin up to begin + count, at most a block, as f32 with zeros up to a whole unit. */
static const float *load(const void *data, const operand_t *operand, int64_t begin, int64_t count,
                         float *room)
{
    int64_t whole = (count + WEFTI_SUM_UNIT - 1) / WEFTI_SUM_UNIT * WEFTI_SUM_UNIT;
    if (!operand->half && whole == count) {
        return (const float *)data + begin;
    }
    if (operand->half) {
        for (int64_t i = 0; i < count; i++) {
            room[i] = wefti_bf16_to_f32(((const uint16_t *)data)[begin + i]);
        }
    } else {
        memcpy(room, (const float *)data + begin, (size_t)count * sizeof(float));
    }
    memset(room + count, 0, (size_t)(whole - count) * sizeof(float));
    return room;
}

static void add_squares(const square_state_t *state, const operand_t *operand, const void *data,
                        int64_t *limbs, uint64_t *pending)
{
    float room[UNITS * WEFTI_SUM_UNIT];
    double sums[UNITS];
    for (int64_t at = 0; at < operand->count; at += UNITS * WEFTI_SUM_UNIT) {
        int64_t left = operand->count - at;
        int64_t count = left < UNITS * WEFTI_SUM_UNIT ? left : UNITS * WEFTI_SUM_UNIT;
        int64_t unit_count = (count + WEFTI_SUM_UNIT - 1) / WEFTI_SUM_UNIT;
        state->units(load(data, operand, at, count, room), unit_count, sums);
        for (int64_t u = 0; u < unit_count; u++) {
            wefti_sum_add(limbs, sums[u]);
        }
        *pending += (uint64_t)unit_count;
        if (*pending > WEFTI_SUM_PENDING) {
            wefti_sum_carry(limbs);
            *pending = 0;
        }
    }
}

static weft_status_t run_square_sum(const weft_kernel_call_t *call)
{
    const square_state_t *state = call->state;
    int64_t limbs[WEFTI_SUM_LIMBS] = {0};
    uint64_t pending = 0;
    if (state->input_count > 0 && call->inputs[0] != NULL) {
        memcpy(limbs, call->inputs[0], sizeof(limbs));
    }
    for (uint32_t i = 1; i < state->input_count; i++) {
        add_squares(state, &state->inputs[i], call->inputs[i], limbs, &pending);
    }
    wefti_sum_carry(limbs);
    memcpy(call->outputs[0], limbs, sizeof(limbs));
    return WEFT_OK;
}

static weft_status_t check_limbs(const weft_tensor_desc_t *desc, const char *what)
{
    weft_status_t status = wefti_need_known(desc, what, 0);
    if (status >= 0 &&
        (desc->dtype != WEFT_DTYPE_I64 || weft_tensor_elem_count(desc) != WEFTI_SUM_LIMBS)) {
        status =
            wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s 0 must be %d i64", what, WEFTI_SUM_LIMBS);
    }
    return status;
}

static weft_status_t prepare_square_sum(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                        void **out_state, size_t *out_scratch_bytes)
{
    weft_status_t status;
    square_state_t *state = NULL;
    WEFT_TRY(status, check_limbs(wefti_node_output(node, 0), "output"), fail);
    if (wefti_infer_input(node, 0) != NULL) {
        WEFT_TRY(status, check_limbs(&node->inputs[0], "input"), fail);
    }
    state = wefti_state_alloc(sizeof(*state) +
                              ((size_t)node->input_count + 1) * sizeof(state->inputs[0]));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    state->units = units[wefti_kernel_isa(env)];
    state->input_count = node->input_count;
    for (uint32_t i = 1; i < node->input_count; i++) {
        const weft_tensor_desc_t *x = wefti_infer_input(node, i);
        WEFT_TRY(status, wefti_need_known(x, "input", i), fail);
        if (x->dtype != WEFT_DTYPE_F32 && x->dtype != WEFT_DTYPE_BF16) {
            status = wefti_error(WEFT_ERR_UNSUPPORTED, "input %u has type %s, expected f32 or bf16",
                                 i, weft_dtype_name(x->dtype));
            goto fail;
        }
        state->inputs[i] = (operand_t){weft_tensor_elem_count(x), x->dtype == WEFT_DTYPE_BF16};
    }
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
fail:
    wefti_state_free(state);
    return status;
}

static weft_status_t run_clip_scale(const weft_kernel_call_t *call)
{
    const clip_state_t *state = call->state;
    double norm = sqrt(wefti_sum_value(call->inputs[0])) / state->divisor;
    /* A norm that is NaN gives that as the scale: weights become NaN, and everybody sees it. */
    *(float *)call->outputs[0] = norm <= state->max_norm ? 1.0f : (float)(state->max_norm / norm);
    if (call->outputs[1] != NULL) {
        *(float *)call->outputs[1] = (float)norm;
    }
    return WEFT_OK;
}

static weft_status_t prepare_clip_scale(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                        void **out_state, size_t *out_scratch_bytes)
{
    (void)env;
    WEFT_RETURN_IF_ERROR(check_limbs(wefti_infer_input(node, 0), "input"));
    if (node->output_count != 2) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%u outputs, expected 2 (the second may be absent)", node->output_count);
    }
    for (uint32_t i = 0; i < 2; i++) {
        const weft_tensor_desc_t *out = wefti_node_output(node, i);
        if (i == 1 && out == NULL) {
            continue; /* nobody wants to know the norm */
        }
        WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, i));
        if (weft_tensor_elem_count(out) != 1) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "output %u has the wrong shape", i);
        }
    }
    clip_state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    state->max_norm = (double)weft_node_attr_float(node, "max_norm", 0.0f);
    state->divisor = (double)weft_node_attr_int(node, "divisor", 1);
    if (!(state->max_norm > 0) || state->divisor < 1) {
        wefti_state_free(state);
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attributes max_norm and divisor must be above 0");
    }
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_square_sum, "weft", "SquareSum", prepare_square_sum, run_square_sum);
WEFTI_KERNEL(wefti_kernel_clip_scale, "weft", "ClipScale", prepare_clip_scale, run_clip_scale);
