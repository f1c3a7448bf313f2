/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sweeps of a session: where all ranks' shards are, the update prepared for a block and for what is
 * left of the shard (bind_update.c has the records around them).
 */
#include "runtime/plan/bind.h"

#include "runtime/base/error.h"

#define ALIGNMENT 64u

static weft_status_t bad(const wefti_plan_collective_t *collective, const char *what)
{
    return wefti_error(WEFT_ERR_FORMAT, "%s: %s", collective->name, what);
}

/* Whether an operand goes on from block to block. Scalars stay. */
static weft_status_t place_operand(const weft_session_t *session,
                                   const wefti_plan_collective_t *collective, uint32_t buffer,
                                   wefti_sweep_operand_t *out)
{
    *out = (wefti_sweep_operand_t){0};
    if (buffer == WEFTI_PLAN_NONE) {
        return WEFT_OK;
    }
    const wefti_plan_buffer_t *planned = &session->plan->buffers[buffer];
    uint32_t elem_bytes = (uint32_t)weft_dtype_size_bytes(planned->dtype);
    out->begin = wefti_session_buffer(session, buffer);
    if (planned->kind == WEFTI_BUFFER_SCALAR || planned->size_bytes == elem_bytes) {
        return WEFT_OK;
    }
    out->elem_bytes = elem_bytes;
    return planned->size_bytes == wefti_bind_shard_elems(session, collective) * elem_bytes
               ? WEFT_OK
               : bad(collective, "an operand of its update does not have the length of a shard");
}

/* The update as it is on count elements. */
static weft_status_t prepare(weft_session_t *session, const wefti_plan_collective_t *collective,
                             const wefti_sweep_t *sweep, uint64_t count,
                             wefti_bound_kernel_t *bound)
{
    weft_node_desc_t desc;
    WEFT_RETURN_IF_ERROR(
        wefti_plan_kernel_desc(session->plan, collective->update, &session->arena, &desc));
    uint32_t operands = sweep->input_count + sweep->output_count;
    weft_tensor_desc_t *tensors =
        wefti_arena_memdup(&session->arena, desc.inputs, operands * sizeof(*tensors));
    WEFT_RETURN_IF_NO_MEMORY(tensors);
    for (uint32_t i = 0; i < operands; i++) { /* inputs, then outputs */
        if (sweep->operands[i].elem_bytes != 0) {
            tensors[i].rank = 1;
            tensors[i].dims[0] = (int64_t)count;
        }
    }
    desc.inputs = tensors;
    desc.outputs = tensors + sweep->input_count;
    return wefti_bind_prepare(session, collective->update, &desc, 1, bound);
}

static weft_status_t place_operands(const weft_session_t *session,
                                    const wefti_plan_collective_t *collective,
                                    wefti_sweep_operand_t *operands)
{
    const wefti_plan_kernel_t *kernel = &session->plan->kernels[collective->update];
    for (uint32_t i = 0; i < kernel->input_count; i++) {
        WEFT_RETURN_IF_ERROR(place_operand(session, collective, kernel->inputs[i], operands++));
    }
    for (uint32_t i = 0; i < kernel->output_count; i++) {
        WEFT_RETURN_IF_ERROR(place_operand(session, collective, kernel->outputs[i], operands++));
    }
    return WEFT_OK;
}

static bool has_operand(const wefti_sweep_operand_t *operands, uint32_t count, const uint8_t *begin)
{
    for (uint32_t i = 0; i < count; i++) {
        if (operands[i].begin == begin) {
            return true;
        }
    }
    return false;
}

/* Gradients of the block at hand are not where the plan has them: there is no need to write them.
 */
static void redirect(wefti_sweep_t *sweep, const uint8_t *gradients)
{
    for (uint32_t i = 0; i < sweep->input_count; i++) {
        if (sweep->operands[i].begin == gradients) {
            sweep->operands[i] = (wefti_sweep_operand_t){.begin = sweep->reduced};
        }
    }
}

static weft_status_t make_lists(weft_session_t *session, wefti_sweep_t *sweep)
{
    wefti_arena_t *arena = &session->arena;
    uint32_t n = sweep->reduce.source_count;
    sweep->gradients = wefti_arena_array(arena, n, sizeof(*sweep->gradients));
    sweep->sources = wefti_arena_array(arena, n, sizeof(*sweep->sources));
    sweep->copies = wefti_arena_array(arena, n, sizeof(*sweep->copies));
    sweep->inputs = wefti_arena_array(arena, sweep->input_count, sizeof(*sweep->inputs));
    sweep->outputs = wefti_arena_array(arena, sweep->output_count, sizeof(*sweep->outputs));
    WEFT_RETURN_IF_NO_MEMORY(!arena->failed);
    sweep->reduce.sources = sweep->sources;
    sweep->reduce.destinations = &sweep->reduced;
    return WEFT_OK;
}

/* Each rank writes to its neighbour first, so that ranks do not all write to one. */
static void find_ranks(const weft_session_t *session, const wefti_plan_collective_t *collective,
                       wefti_sweep_t *sweep)
{
    uint32_t n = sweep->reduce.source_count, own = session->endpoint->rank;
    for (uint32_t r = 0; r < n; r++) {
        sweep->gradients[r] = wefti_bind_shard_at(session, collective, collective->source, r, own);
    }
    for (uint32_t i = 1; i < n; i++) {
        sweep->copies[i - 1] =
            wefti_bind_shard_at(session, collective, collective->buffer, (own + i) % n, own);
    }
    sweep->params = wefti_bind_shard_at(session, collective, collective->buffer, own, own);
}

/* Room for a block of gradients and for the kernel's scratch. */
static weft_status_t make_memory(weft_session_t *session, wefti_sweep_t *sweep)
{
    size_t scratch = sweep->block.scratch_bytes > sweep->last.scratch_bytes
                         ? sweep->block.scratch_bytes
                         : sweep->last.scratch_bytes;
    size_t bytes = WEFTI_SWEEP_BLOCK_BYTES + 2 * ALIGNMENT;
    if (scratch > SIZE_MAX / 2) {
        return wefti_error(WEFT_ERR_NO_MEMORY,
                           "out of memory: cannot allocate %zu bytes of kernel scratch", scratch);
    }
    sweep->memory = wefti_alloc(session->allocator, bytes + scratch);
    WEFT_RETURN_IF_NO_MEMORY(sweep->memory);
    sweep->reduced = (void *)wefti_align_up((uintptr_t)sweep->memory, ALIGNMENT);
    sweep->scratch = (uint8_t *)sweep->reduced + WEFTI_SWEEP_BLOCK_BYTES;
    session->sweep_bytes += bytes + scratch;
    return WEFT_OK;
}

static weft_status_t make_sweep(weft_session_t *session, uint32_t index,
                                wefti_sweep_operand_t *operands)
{
    const wefti_plan_collective_t *collective = &session->plan->collectives[index];
    const wefti_plan_kernel_t *kernel = &session->plan->kernels[collective->update];
    wefti_sweep_t *sweep = wefti_arena_alloc(&session->arena, sizeof(*sweep));
    WEFT_RETURN_IF_NO_MEMORY(sweep);
    session->sweeps[index] = sweep;
    uint64_t block = WEFTI_SWEEP_BLOCK_BYTES / weft_dtype_size_bytes(collective->dtype);
    uint64_t count = wefti_bind_shard_elems(session, collective);
    uint64_t last = count % block != 0 ? count % block : block;
    *sweep = (wefti_sweep_t){.elem_count = count,
                             .block_elems = block,
                             .reduce = {.source_count = session->endpoint->world_size,
                                        .destination_count = 1,
                                        .dtype = collective->dtype,
                                        .reduction = collective->reduction,
                                        .divisor = collective->divisor},
                             .operands = operands,
                             .input_count = kernel->input_count,
                             .output_count = kernel->output_count,
                             .param_bytes = (uint32_t)weft_dtype_size_bytes(
                                 session->plan->buffers[collective->buffer].dtype)};
    WEFT_RETURN_IF_ERROR(make_lists(session, sweep));
    find_ranks(session, collective, sweep);
    const uint8_t *gradients = sweep->gradients[session->endpoint->rank];
    if (!has_operand(operands, kernel->input_count, gradients) ||
        !has_operand(operands + kernel->input_count, kernel->output_count, sweep->params)) {
        return bad(collective, "its update does not read the gradients and write the parameters");
    }
    if (count > block) {
        WEFT_RETURN_IF_ERROR(prepare(session, collective, sweep, block, &sweep->block));
    }
    if (count > 0) {
        WEFT_RETURN_IF_ERROR(prepare(session, collective, sweep, last, &sweep->last));
    }
    WEFT_RETURN_IF_ERROR(make_memory(session, sweep));
    redirect(sweep, gradients);
    return WEFT_OK;
}

/* What all ways of carrying an update out rely on. */
static weft_status_t check_update(weft_session_t *session,
                                  const wefti_plan_collective_t *collective,
                                  wefti_sweep_operand_t **out_operands)
{
    const wefti_plan_kernel_t *kernel = &session->plan->kernels[collective->update];
    if (collective->op != WEFT_COLLECTIVE_ALL_REDUCE ||
        collective->elem_count % session->endpoint->world_size != 0) {
        return bad(collective, "only an all-reduce with equal shards supports a fused update");
    }
    size_t count = (size_t)kernel->input_count + kernel->output_count;
    *out_operands = wefti_arena_array(&session->arena, count, sizeof(**out_operands));
    WEFT_RETURN_IF_NO_MEMORY(*out_operands);
    return place_operands(session, collective, *out_operands);
}

weft_status_t wefti_bind_updates(weft_session_t *session)
{
    const weft_plan_t *plan = session->plan;
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        if (plan->collectives[i].update == WEFTI_PLAN_NONE) {
            continue;
        }
        wefti_sweep_operand_t *operands = NULL;
        WEFT_RETURN_IF_ERROR(check_update(session, &plan->collectives[i], &operands));
        if (wefti_bind_sweeps(session, i)) {
            WEFT_RETURN_IF_ERROR(make_sweep(session, i, operands));
        }
    }
    return WEFT_OK;
}

void wefti_unbind_updates(weft_session_t *session)
{
    for (uint32_t i = 0; session->sweeps != NULL && i < session->plan->collective_count; i++) {
        if (session->sweeps[i] != NULL) {
            wefti_unprepare(&session->sweeps[i]->block);
            wefti_unprepare(&session->sweeps[i]->last);
            wefti_free(session->allocator, session->sweeps[i]->memory);
        }
    }
}
