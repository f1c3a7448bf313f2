/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/sweep.h"

#include "runtime/base/copy.h"
#include "runtime/base/error.h"
#include "runtime/base/float_mode.h"

/* Where an operand is in the block that starts at element at. */
static uint8_t *operand_at(const wefti_sweep_operand_t *operand, uint64_t at)
{
    return operand->begin != NULL ? operand->begin + at * operand->elem_bytes : NULL;
}

static weft_status_t reduce_block(const wefti_sweep_t *sweep, uint64_t at, uint64_t count,
                                  weft_isa_t isa)
{
    weft_reduce_t reduce = sweep->reduce;
    reduce.elem_count = count;
    for (uint32_t r = 0; r < reduce.source_count; r++) {
        sweep->sources[r] = sweep->gradients[r] + at * weft_dtype_size_bytes(reduce.dtype);
    }
    return wefti_reduce(&reduce, isa);
}

static weft_status_t update_block(const wefti_sweep_t *sweep, const wefti_bound_kernel_t *bound,
                                  uint64_t at)
{
    for (uint32_t i = 0; i < sweep->input_count; i++) {
        sweep->inputs[i] = operand_at(&sweep->operands[i], at);
    }
    for (uint32_t i = 0; i < sweep->output_count; i++) {
        sweep->outputs[i] = operand_at(&sweep->operands[sweep->input_count + i], at);
    }
    const weft_kernel_call_t call = {bound->state, sweep->inputs, sweep->outputs, sweep->scratch};
    return wefti_run_kernel(bound->kernel, &call);
}

weft_status_t wefti_sweep_run(const wefti_sweep_t *sweep, weft_isa_t isa)
{
    for (uint64_t at = 0, count; at < sweep->elem_count; at += count) {
        uint64_t left = sweep->elem_count - at;
        bool last = left <= sweep->block_elems;
        count = last ? left : sweep->block_elems;
        WEFT_RETURN_IF_ERROR(reduce_block(sweep, at, count, isa));
        WEFT_RETURN_IF_ERROR(update_block(sweep, last ? &sweep->last : &sweep->block, at));
        for (uint32_t r = 0; r + 1 < sweep->reduce.source_count; r++) {
            wefti_copy(sweep->copies[r] + at * sweep->param_bytes,
                       sweep->params + at * sweep->param_bytes, count * sweep->param_bytes);
        }
    }
    return WEFT_OK;
}
