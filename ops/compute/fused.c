/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft::Fused walks its tensors in blocks that fit into the first cache. For each block it executes
 * all steps, one loop after the other; only inputs and outputs are in memory.
 *
 *   input 0  |block|block|block|..      step 0 -> temporary
 *   input 1  one row, repeated          step 1 -> temporary    ..    last step -> output 0
 *
 * Elements are counted in the order of the output's memory. A smaller operand is read in place where
 * a block lies within one of its runs, else it is expanded block by block. Inputs of half types are
 * widened, and results are rounded, in temporaries.
 */
#include "ops/compute/fused.h"

#include <string.h>

#include "ops/compute/halves.h"
#include "ops/compute/own_kernels.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

#define BLOCK 1024
#define SHORT_RUN 256 /* runs of fewer elements are expanded */
#define NO_SLOT UINT32_MAX

/* An input, by the merged dimensions of the output. */
typedef struct input {
    uint32_t rank;
    int64_t dims[WEFT_MAX_DIMS], strides[WEFT_MAX_DIMS];
    weft_dtype_t type;
    bool expands;
    uint32_t slot; /* the temporary that it is expanded or widened into, or NO_SLOT */
} input_t;

/* Operands are numbers of values: inputs, then steps. */
typedef struct step {
    wefti_fused_loop_t loop;
    uint32_t operands[2];
    weft_dtype_t type;
    uint32_t slot, output; /* a temporary, an output, or both for an output of a half type */
    double numbers[2];
} step_t;

typedef struct {
    int64_t count, row; /* blocks end at multiples of row */
    weft_isa_t isa;
    uint32_t threads, input_count, step_count;
    uint32_t slot_count; /* one more is for elements of half types */
    input_t inputs[WEFTI_FUSED_INPUTS];
    step_t steps[WEFTI_FUSED_STEPS];
} state_t;

/* Where elements of a value are in the present block. */
typedef struct place {
    const float *at;
    int64_t stride; /* 1, or 0: one element */
} place_t;

static bool has_loops(weft_dtype_t dtype)
{
    return dtype == WEFT_DTYPE_F32 || wefti_is_half(dtype);
}

bool wefti_fused_step(const weft_node_desc_t *node, wefti_fused_step_t *out_step)
{
    const weft_tensor_desc_t *y = wefti_node_output(node, 0);
    const bool casts = strcmp(node->op, WEFTI_FUSED_CAST) == 0 && node->domain[0] == '\0';
    *out_step = (wefti_fused_step_t){.name = WEFTI_FUSED_CAST, .tensors = 1};
    if (y == NULL || !has_loops(y->dtype) || node->output_count != 1 ||
        !(casts || wefti_broadcast_step(node, out_step) || wefti_function_step(node, out_step)) ||
        node->input_count < out_step->tensors) {
        return false;
    }
    for (uint32_t i = 0; i < out_step->tensors; i++) {
        const weft_tensor_desc_t *x = &node->inputs[i];
        if (!(casts ? has_loops(x->dtype) : x->dtype == y->dtype) ||
            (!out_step->broadcasts && !wefti_same_shape(x, y))) {
            return false;
        }
    }
    out_step->type = y->dtype;
    return true;
}

weft_dtype_t wefti_fused_type(const weft_node_desc_t *node, int64_t step)
{
    static const weft_dtype_t all[] = {WEFT_DTYPE_F32, WEFT_DTYPE_F16, WEFT_DTYPE_BF16};
    const weft_attr_t *types = weft_node_attr(node, "types");
    if (types == NULL) {
        return WEFT_DTYPE_F32;
    }
    for (size_t i = 0; i < WEFTI_COUNT(all) && step >= 0 && step < (int64_t)types->count; i++) {
        if (strcmp(types->strings[step], weft_dtype_name(all[i])) == 0) {
            return all[i];
        }
    }
    return WEFT_DTYPE_NONE;
}

static void copy(const void *a, const void *b, const double *p, void *y, int64_t count)
{
    (void)b;
    (void)p;
    memcpy(y, a, (size_t)count * sizeof(float));
}

static weft_status_t prepare_input(const weft_node_desc_t *node, uint32_t index, input_t *out)
{
    int64_t strides[WEFT_MAX_DIMS];
    uint32_t order[WEFT_MAX_DIMS];
    wefti_nest_t nest;
    const weft_tensor_desc_t *y = &node->outputs[0], *x = wefti_infer_input(node, index);
    WEFT_RETURN_IF_ERROR(wefti_need_known(x, "input", index));
    WEFT_RETURN_IF_ERROR(wefti_is_half(x->dtype) ? WEFT_OK : wefti_need_f32(node, index));
    WEFT_RETURN_IF_ERROR(wefti_broadcast_strides(x, y, "an input", strides));
    wefti_memory_order(y, order);
    wefti_nest_init(&nest);
    for (uint32_t d = 0; d < y->rank; d++) {
        wefti_nest_add(&nest, y->dims[order[d]], strides[order[d]], 0);
    }
    *out = (input_t){.rank = nest.rank, .type = x->dtype, .slot = NO_SLOT};
    memcpy(out->dims, nest.dims, sizeof(out->dims));
    memcpy(out->strides, nest.a, sizeof(out->strides));
    return WEFT_OK;
}

/* Chooses the rows of blocks, and which inputs are expanded. */
static void choose_rows(state_t *s)
{
    s->row = s->count;
    for (uint32_t i = 0; i < s->input_count; i++) {
        input_t *in = &s->inputs[i];
        const uint32_t last = in->rank - 1;
        const int64_t run = in->dims[last];
        if (in->rank == 1 && in->strides[0] <= 1) {
            continue;
        }
        if (run >= SHORT_RUN && in->strides[last] <= 1 && s->row % run == 0) {
            s->row = run;
        } else {
            in->expands = run < SHORT_RUN || in->strides[last] > 1 || run % s->row != 0;
        }
    }
    for (uint32_t i = 0; i < s->input_count; i++) {
        if (s->inputs[i].expands || wefti_is_half(s->inputs[i].type)) {
            s->inputs[i].slot = s->slot_count++;
        }
    }
}

static bool needs_slot(const step_t *step)
{
    return step->output == NO_SLOT || wefti_is_half(step->type);
}

/* Gives results temporaries; one is free again after the last step that reads it. */
static void choose_slots(state_t *s)
{
    bool taken[WEFTI_FUSED_STEPS] = {false};
    uint32_t last_read[WEFTI_FUSED_STEPS] = {0}, first = s->slot_count;
    for (uint32_t i = 0; i < s->step_count; i++) {
        for (uint32_t k = 0; k < s->steps[i].loop.tensors; k++) {
            if (s->steps[i].operands[k] >= s->input_count) {
                last_read[s->steps[i].operands[k] - s->input_count] = i;
            }
        }
    }
    for (uint32_t i = 0; i < s->step_count; i++) {
        for (uint32_t k = 0; k < i; k++) {
            if (s->steps[k].slot != NO_SLOT && last_read[k] == i) {
                taken[s->steps[k].slot - first] = false;
            }
        }
        uint32_t slot = 0;
        while (needs_slot(&s->steps[i]) && taken[slot]) {
            slot++;
        }
        if (needs_slot(&s->steps[i])) {
            taken[slot] = true;
            s->steps[i].slot = first + slot;
            s->slot_count = first + slot >= s->slot_count ? first + slot + 1 : s->slot_count;
        }
    }
}

static weft_status_t prepare_steps(const weft_node_desc_t *node, state_t *s)
{
    const weft_attr_t *steps = weft_node_attr(node, "steps");
    const weft_attr_t *operands = weft_node_attr(node, "operands");
    const weft_attr_t *numbers = weft_node_attr(node, "numbers");
    const weft_attr_t *results = weft_node_attr(node, "results");
    if (steps == NULL || operands == NULL || results == NULL || steps->count == 0 ||
        steps->count > WEFTI_FUSED_STEPS || operands->count != 2 * steps->count ||
        (numbers != NULL && numbers->count != 2 * steps->count) ||
        results->count != node->output_count) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "invalid steps");
    }
    s->step_count = (uint32_t)steps->count;
    for (uint32_t i = 0; i < s->step_count; i++) {
        step_t *step = &s->steps[i];
        *step = (step_t){.slot = NO_SLOT, .output = NO_SLOT};
        step->type = wefti_fused_type(node, i);
        if (strcmp(steps->strings[i], WEFTI_FUSED_CAST) == 0) {
            step->loop = (wefti_fused_loop_t){.same = copy, .tensors = 1};
        } else if (!wefti_broadcast_loop(steps->strings[i], s->isa, &step->loop) &&
                   !wefti_function_loop(steps->strings[i], s->isa, &step->loop)) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "unknown step '%s'", steps->strings[i]);
        }
        for (uint32_t k = 0; k < 2; k++) {
            const int64_t operand = operands->ints[2 * i + k];
            step->numbers[k] = numbers == NULL ? 0.0 : (double)numbers->floats[2 * i + k];
            if (k < step->loop.tensors && (operand < 0 || operand >= s->input_count + i)) {
                return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "step %u: invalid operand", i);
            }
            step->operands[k] = (uint32_t)operand;
        }
    }
    for (uint32_t o = 0; o < node->output_count; o++) {
        const int64_t result = results->ints[o];
        if (result < 0 || result >= s->step_count || s->steps[result].output != NO_SLOT) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "output %u: invalid result", o);
        }
        s->steps[result].output = o;
        if (node->outputs[o].dtype != s->steps[result].type) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "output %u has type %s, its step %s", o,
                               weft_dtype_name(node->outputs[o].dtype),
                               weft_dtype_name(s->steps[result].type));
        }
    }
    /* Output 0 may have the memory of input 0, so nothing is read after it is written. */
    return results->ints[0] == s->step_count - 1
               ? WEFT_OK
               : wefti_error(WEFT_ERR_INVALID_ARGUMENT, "output 0 must be the last step");
}

/* Loops over whole blocks take operands of one stride. */
static weft_status_t check_operands(state_t *s)
{
    for (uint32_t i = 0; i < s->step_count; i++) {
        for (uint32_t k = 0; s->steps[i].loop.same != NULL && k < s->steps[i].loop.tensors; k++) {
            const uint32_t operand = s->steps[i].operands[k];
            const input_t *in = operand < s->input_count ? &s->inputs[operand] : NULL;
            if (in != NULL && (in->rank > 1 || in->strides[0] != 1) && s->count > 1) {
                return wefti_error(WEFT_ERR_UNSUPPORTED,
                                   "step %u: input %u and the output differ in shape or layout", i,
                                   operand);
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t fill_state(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                state_t *s)
{
    for (uint32_t o = 0; o < node->output_count; o++) {
        WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, o), "output", o));
        if (!wefti_same_shape(&node->outputs[o], &node->outputs[0])) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "outputs differ in shape or layout");
        }
    }
    if (node->input_count == 0 || node->input_count > WEFTI_FUSED_INPUTS) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%u inputs: at most %u are supported",
                           node->input_count, WEFTI_FUSED_INPUTS);
    }
    s->count = weft_tensor_elem_count(&node->outputs[0]);
    s->threads = wefti_kernel_threads(env);
    s->isa = wefti_kernel_isa(env);
    s->input_count = node->input_count;
    for (uint32_t i = 0; i < s->input_count; i++) {
        WEFT_RETURN_IF_ERROR(prepare_input(node, i, &s->inputs[i]));
    }
    WEFT_RETURN_IF_ERROR(prepare_steps(node, s));
    choose_rows(s);
    choose_slots(s);
    return check_operands(s);
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    state_t *s = wefti_state_alloc(sizeof(*s));
    WEFT_RETURN_IF_NO_MEMORY(s);
    weft_status_t status = fill_state(node, env, s);
    if (status < 0) {
        wefti_state_free(s);
        return status;
    }
    *out_state = s;
    *out_scratch_bytes = (size_t)s->threads * (s->slot_count + 1) * BLOCK * sizeof(float);
    return WEFT_OK;
}

/* The indices of element at of the output, and the offset of an input there. */
static int64_t locate(const input_t *in, int64_t at, int64_t *out_index)
{
    int64_t offset = 0;
    for (uint32_t d = in->rank; d-- > 0; at /= in->dims[d]) {
        out_index[d] = at % in->dims[d];
        offset += out_index[d] * in->strides[d];
    }
    return offset;
}

static void expand(const input_t *in, const char *x, int64_t at, int64_t count, size_t elem,
                   char *y)
{
    int64_t index[WEFT_MAX_DIMS], offset = locate(in, at, index);
    const uint32_t last = in->rank - 1;
    const int64_t stride = in->strides[last];
    while (count > 0) {
        const int64_t left = in->dims[last] - index[last], run = left < count ? left : count;
        const char *from = x + elem * (size_t)offset;
        if (stride == 1) {
            memcpy(y, from, (size_t)run * elem);
        } else if (elem == sizeof(float)) {
            for (int64_t i = 0; i < run; i++) {
                ((float *)(void *)y)[i] = ((const float *)(const void *)from)[i * stride];
            }
        } else {
            for (int64_t i = 0; i < run; i++) {
                ((uint16_t *)(void *)y)[i] = ((const uint16_t *)(const void *)from)[i * stride];
            }
        }
        y += elem * (size_t)run;
        count -= run;
        index[last] += run;
        offset += run * stride;
        for (uint32_t d = last; d > 0 && index[d] == in->dims[d]; d--) {
            offset += in->strides[d - 1] - in->dims[d] * in->strides[d];
            index[d] = 0;
            index[d - 1]++;
        }
    }
}

static place_t find_input(const state_t *s, const input_t *in, const char *x, int64_t at,
                          int64_t count, float *slots)
{
    int64_t index[WEFT_MAX_DIMS], stride = in->strides[in->rank - 1];
    const size_t elem = weft_dtype_size_bytes(in->type);
    float *y = in->slot == NO_SLOT ? NULL : slots + (size_t)in->slot * BLOCK;
    if (in->expands) {
        char *to = (char *)(elem == sizeof(float) ? y : slots + (size_t)s->slot_count * BLOCK);
        expand(in, x, at, count, elem, to);
        x = to;
        stride = 1;
    } else {
        x += elem * (size_t)(in->rank == 1 ? at * stride : locate(in, at, index));
    }
    if (elem != sizeof(float)) {
        wefti_halves_widen(s->isa, in->type, x, stride == 0 ? 1 : count, y);
        x = (const char *)y;
    }
    return (place_t){(const float *)(const void *)x, stride};
}

/* A result of a half type becomes what a reader of the rounded tensor would have. */
static void round_result(const state_t *s, const step_t *step, void *output, int64_t count,
                         float *y, float *slots)
{
    void *half = output != NULL ? output : slots + (size_t)s->slot_count * BLOCK;
    wefti_halves_narrow(s->isa, step->type, y, count, half);
    if (step != &s->steps[s->step_count - 1]) {
        wefti_halves_widen(s->isa, step->type, half, count, y);
    }
}

static void run_block(const state_t *s, const weft_kernel_call_t *call, int64_t at, int64_t count,
                      float *slots)
{
    place_t places[WEFTI_FUSED_INPUTS + WEFTI_FUSED_STEPS];
    for (uint32_t i = 0; i < s->input_count; i++) {
        places[i] = find_input(s, &s->inputs[i], call->inputs[i], at, count, slots);
    }
    for (uint32_t i = 0; i < s->step_count; i++) {
        const step_t *step = &s->steps[i];
        const place_t a = places[step->operands[0]];
        const place_t b = step->loop.tensors > 1 ? places[step->operands[1]] : a;
        char *output = step->output == NO_SLOT ? NULL
                                               : (char *)call->outputs[step->output] +
                                                     weft_dtype_size_bytes(step->type) * (size_t)at;
        float *y =
            step->slot != NO_SLOT ? slots + (size_t)step->slot * BLOCK : (float *)(void *)output;
        if (step->loop.broadcast != NULL) {
            step->loop.broadcast(a.at, a.stride, b.at, b.stride, y, count);
        } else {
            step->loop.same(a.at, b.at, step->numbers, y, count);
        }
        if (wefti_is_half(step->type)) {
            round_result(s, step, output, count, y, slots);
        }
        places[s->input_count + i] = (place_t){y, 1};
    }
}

static void run_range(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    const state_t *s = call->state;
    float *slots = (float *)call->scratch + (size_t)range.part * (s->slot_count + 1) * BLOCK;
    for (int64_t at = range.from, count; at < range.to; at += count) {
        const int64_t row = s->row - at % s->row, left = range.to - at;
        count = row < left ? row : left;
        count = count < BLOCK ? count : BLOCK;
        run_block(s, call, at, count, slots);
    }
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    wefti_parallel_for(s->threads, s->count, WEFTI_GRAIN, run_range, call);
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_fused, "weft", "Fused", prepare, run);
