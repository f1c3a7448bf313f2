/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sweeps: all-reduces with an update. A rank runs the kernel block by block on its shard, so
 * every operand is a shard, as long as one (state), or one element; and nobody else runs that
 * kernel.
 */
#include "ops/plan/plan_internal.h"

#include <string.h>

#include "runtime/base/error.h"

static weft_status_t bad_sweep(const weft_plan_t *plan, uint32_t index, const char *what)
{
    return wefti_error(WEFT_ERR_FORMAT, "collective %u (%.100s): %s", index,
                       plan->collectives[index].name, what);
}

static uint64_t elem_count(const wefti_plan_buffer_t *buffer)
{
    return buffer->size_bytes / weft_dtype_size_bytes(buffer->dtype);
}

static int overlap(const weft_plan_t *plan, uint32_t a, uint32_t b)
{
    const wefti_plan_buffer_t *x = &plan->buffers[a], *y = &plan->buffers[b];
    return x->offset_bytes < wefti_plan_buffer_end(plan, y) &&
           y->offset_bytes < wefti_plan_buffer_end(plan, x);
}

static const char *check_ranges(const weft_plan_t *plan, const wefti_plan_collective_t *sweep,
                                const wefti_plan_layout_t *layout)
{
    const wefti_plan_buffer_t *params = &plan->buffers[sweep->buffer];
    const wefti_plan_buffer_t *grads = &plan->buffers[sweep->source];
    if (sweep->op != WEFT_COLLECTIVE_ALL_REDUCE || params->kind != WEFTI_BUFFER_RANGE ||
        grads->kind != WEFTI_BUFFER_RANGE || params->rank_stride_bytes != 0 ||
        grads->rank_stride_bytes != 0) {
        return "only an all-reduce of one range into another has an update";
    }
    uint32_t param = wefti_plan_layout_at(layout, params->offset_bytes);
    uint32_t grad = wefti_plan_layout_at(layout, grads->offset_bytes);
    if (param == WEFTI_PLAN_NONE || plan->buffers[param].kind != WEFTI_BUFFER_PARAM ||
        grad == WEFTI_PLAN_NONE || plan->buffers[grad].kind != WEFTI_BUFFER_GRAD) {
        return "an update reads a range of gradients and writes one of parameters";
    }
    if (sweep->elem_count % plan->world_size != 0 ||
        params->size_bytes / plan->world_size % WEFTI_PLAN_ALIGNMENT != 0 ||
        grads->size_bytes / plan->world_size % WEFTI_PLAN_ALIGNMENT != 0) {
        return "its ranges do not divide into shards of whole units";
    }
    return NULL;
}

/* Not the shards of parameters and gradients: as many elements as a shard has or, of what is only
 * read, one; at one place on all ranks, and elsewhere. */
static const char *check_operand(const weft_plan_t *plan, const wefti_plan_collective_t *sweep,
                                 uint32_t operand, int written)
{
    if (operand == WEFTI_PLAN_NONE) {
        return NULL;
    }
    uint64_t count = elem_count(&plan->buffers[operand]);
    if ((written || count != 1) && count != sweep->elem_count / plan->world_size) {
        return "an operand of its update is neither as long as a shard nor one element";
    }
    return overlap(plan, operand, sweep->buffer) || overlap(plan, operand, sweep->source)
               ? "an operand of its update lies in what is reduced or given to everybody"
               : NULL;
}

static const char *check_kernel(const weft_plan_t *plan, const wefti_plan_collective_t *sweep)
{
    const wefti_plan_kernel_t *kernel = &plan->kernels[sweep->update];
    const char *what = NULL;
    if (kernel->input_count < 2 || kernel->output_count < 1 ||
        kernel->inputs[0] == WEFTI_PLAN_NONE || kernel->inputs[1] == WEFTI_PLAN_NONE ||
        kernel->outputs[0] == WEFTI_PLAN_NONE ||
        !wefti_plan_is_shard(plan, kernel->inputs[0], sweep->buffer) ||
        !wefti_plan_is_shard(plan, kernel->outputs[0], sweep->buffer) ||
        !wefti_plan_is_shard(plan, kernel->inputs[1], sweep->source)) {
        return "its update does not read and write the shards of its ranges";
    }
    for (uint32_t i = 2; i < kernel->input_count && !what; i++) {
        what = check_operand(plan, sweep, kernel->inputs[i], 0);
    }
    for (uint32_t i = 1; i < kernel->output_count && !what; i++) {
        what = check_operand(plan, sweep, kernel->outputs[i], 1);
    }
    return what;
}

/* uses[kernel]: 1 in a stream, 2 an update of a collective. */
static void find_streams(const weft_plan_t *plan, uint8_t *uses)
{
    for (uint32_t p = 0; p < plan->program_count; p++) {
        for (uint32_t s = 0; s < plan->stream_count; s++) {
            const wefti_plan_stream_program_t *stream = &plan->programs[p].streams[s];
            for (uint32_t i = 0; i < stream->step_count; i++) {
                if (stream->steps[i].kind == WEFTI_STEP_KERNEL) {
                    uses[stream->steps[i].index] = 1;
                }
            }
        }
    }
}

static const char *check_sweep(const weft_plan_t *plan, const wefti_plan_layout_t *layout,
                               const weft_registry_t *registry,
                               const wefti_plan_collective_t *sweep, uint8_t *uses)
{
    if (sweep->update >= plan->kernel_count) {
        return "its update is no kernel";
    }
    const wefti_plan_kernel_t *kernel = &plan->kernels[sweep->update];
    if (uses[sweep->update]) {
        return "its update is run by somebody else, too";
    }
    uses[sweep->update] = 2;
    const weft_op_def_t *def =
        registry ? weft_registry_find_op(registry, kernel->domain, kernel->op, kernel->version)
                 : NULL;
    if (def && !(def->effects & WEFT_EFFECT_UPDATES)) {
        return "its update is no operator that updates in place";
    }
    const char *what = check_ranges(plan, sweep, layout);
    return what ? what : check_kernel(plan, sweep);
}

weft_status_t wefti_plan_verify_sweeps(const weft_plan_t *plan, const wefti_plan_layout_t *layout,
                                       const weft_registry_t *registry)
{
    weft_status_t status = WEFT_OK;
    uint8_t *uses = wefti_alloc(plan->arena.allocator, (size_t)plan->kernel_count + 1);
    if (!uses) {
        return WEFT_ERR_NO_MEMORY;
    }
    memset(uses, 0, plan->kernel_count);
    find_streams(plan, uses);
    for (uint32_t i = 0; i < plan->collective_count && status == WEFT_OK; i++) {
        const wefti_plan_collective_t *sweep = &plan->collectives[i];
        const char *what = sweep->update != WEFTI_PLAN_NONE
                               ? check_sweep(plan, layout, registry, sweep, uses)
                               : NULL;
        status = what ? bad_sweep(plan, i, what) : WEFT_OK;
    }
    wefti_free(plan->arena.allocator, uses);
    return status;
}
