/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/plan/sweep.h"

#include "runtime/base/copy.h"

/* Where an operand is in the block that starts at element at. */
static uint8_t *operand_at(const wefti_sweep_operand_t *operand, uint64_t at)
{
    return operand->begin != NULL ? operand->begin + at * operand->elem_bytes : NULL;
}

static weft_status_t reduce_block(const wefti_sweep_t *sweep, uint64_t at, uint64_t count,
                                  weft_isa_t isa)
{
    void *const destination = sweep->reduced;
    for (uint32_t r = 0; r < sweep->rank_count; r++) {
        sweep->sources[r] = sweep->gradients[r] + at * weft_dtype_size_bytes(sweep->dtype);
    }
    const weft_reduce_t reduce = {.sources = sweep->sources,
                                  .source_count = sweep->rank_count,
                                  .destinations = &destination,
                                  .destination_count = 1,
                                  .elem_count = count,
                                  .dtype = sweep->dtype,
                                  .reduction = sweep->reduction,
                                  .divisor = sweep->divisor};
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
    return bound->kernel->run(&call);
}

weft_status_t wefti_sweep_run(const wefti_sweep_t *sweep, weft_isa_t isa)
{
    weft_status_t status = WEFT_OK;
    for (uint64_t at = 0, count; at < sweep->elem_count && status >= 0; at += count) {
        uint64_t left = sweep->elem_count - at;
        count = left > sweep->block_elems ? sweep->block_elems : left;
        status = reduce_block(sweep, at, count, isa);
        if (status >= 0) {
            status =
                update_block(sweep, left > sweep->block_elems ? &sweep->block : &sweep->last, at);
        }
        for (uint32_t r = 0; r + 1 < sweep->rank_count && status >= 0; r++) {
            wefti_copy(sweep->copies[r] + at * sweep->param_bytes,
                       sweep->params + at * sweep->param_bytes, count * sweep->param_bytes);
        }
    }
    return status;
}
