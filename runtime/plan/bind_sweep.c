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
    weft_status_t status =
        wefti_plan_kernel_desc(session->plan, collective->update, &session->arena, &desc);
    if (status < 0) {
        return status;
    }
    uint32_t operands = sweep->input_count + sweep->output_count;
    weft_tensor_desc_t *tensors =
        wefti_arena_memdup(&session->arena, desc.inputs, operands * sizeof(*tensors));
    if (tensors == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
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

/* The update reads gradients where they are reduced, and leaves parameters where they are. */
static weft_status_t place_operands(weft_session_t *session,
                                    const wefti_plan_collective_t *collective, wefti_sweep_t *sweep)
{
    const wefti_plan_kernel_t *kernel = &session->plan->kernels[collective->update];
    uint32_t own = session->endpoint->rank;
    const uint8_t *gradients =
        wefti_bind_shard_at(session, collective, collective->source, own, own);
    const uint8_t *params = wefti_bind_shard_at(session, collective, collective->buffer, own, own);
    bool reads = false, writes = false;
    for (uint32_t i = 0; i < sweep->input_count + sweep->output_count; i++) {
        bool is_input = i < sweep->input_count;
        uint32_t buffer = is_input ? kernel->inputs[i] : kernel->outputs[i - sweep->input_count];
        wefti_sweep_operand_t *operand = &sweep->operands[i];
        weft_status_t status = place_operand(session, collective, buffer, operand);
        if (status < 0) {
            return status;
        }
        if (is_input && operand->begin == gradients) {
            reads = true;
        }
        if (!is_input && operand->begin == params) {
            writes = true;
        }
    }
    return reads && writes
               ? WEFT_OK
               : bad(collective, "its update does not read the gradients and write the parameters");
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
    size_t operands = (size_t)sweep->input_count + sweep->output_count;
    sweep->gradients = wefti_arena_array(arena, sweep->rank_count, sizeof(*sweep->gradients));
    sweep->sources = wefti_arena_array(arena, sweep->rank_count, sizeof(*sweep->sources));
    sweep->copies = wefti_arena_array(arena, sweep->rank_count, sizeof(*sweep->copies));
    sweep->operands = wefti_arena_array(arena, operands + 1, sizeof(*sweep->operands));
    sweep->inputs = wefti_arena_array(arena, sweep->input_count + 1u, sizeof(*sweep->inputs));
    sweep->outputs = wefti_arena_array(arena, sweep->output_count + 1u, sizeof(*sweep->outputs));
    return sweep->gradients && sweep->sources && sweep->copies && sweep->operands &&
                   sweep->inputs && sweep->outputs
               ? WEFT_OK
               : WEFT_ERR_NO_MEMORY;
}

/* Each rank writes to its neighbour first, so that ranks do not all write to one. */
static void find_ranks(const weft_session_t *session, const wefti_plan_collective_t *collective,
                       wefti_sweep_t *sweep)
{
    uint32_t n = sweep->rank_count, own = session->endpoint->rank;
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
    if (sweep->memory == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    sweep->reduced = (uint8_t *)wefti_align_up((uintptr_t)sweep->memory, ALIGNMENT);
    sweep->scratch = sweep->reduced + WEFTI_SWEEP_BLOCK_BYTES;
    session->sweep_bytes += bytes + scratch;
    return WEFT_OK;
}

static weft_status_t make_sweep(weft_session_t *session, uint32_t index)
{
    const wefti_plan_collective_t *collective = &session->plan->collectives[index];
    const wefti_plan_kernel_t *kernel = &session->plan->kernels[collective->update];
    wefti_sweep_t *sweep = wefti_arena_alloc(&session->arena, sizeof(*sweep));
    if (sweep == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    session->sweeps[index] = sweep;
    uint32_t n = session->endpoint->world_size, own = session->endpoint->rank;
    uint64_t block = WEFTI_SWEEP_BLOCK_BYTES / weft_dtype_size_bytes(collective->dtype);
    uint64_t count = wefti_bind_shard_elems(session, collective);
    *sweep = (wefti_sweep_t){.elem_count = count,
                             .block_elems = block,
                             .dtype = collective->dtype,
                             .reduction = collective->reduction,
                             .divisor = collective->divisor,
                             .rank_count = n,
                             .input_count = kernel->input_count,
                             .output_count = kernel->output_count,
                             .param_bytes = (uint32_t)weft_dtype_size_bytes(
                                 session->plan->buffers[collective->buffer].dtype)};
    weft_status_t status = make_lists(session, sweep);
    if (status >= 0) {
        find_ranks(session, collective, sweep);
        status = place_operands(session, collective, sweep);
    }
    if (status >= 0 && count > block) {
        status = prepare(session, collective, sweep, block, &sweep->block);
    }
    if (status >= 0 && count > 0) {
        uint64_t last = count % block != 0 ? count % block : block;
        status = prepare(session, collective, sweep, last, &sweep->last);
    }
    if (status >= 0) {
        status = make_memory(session, sweep);
    }
    if (status >= 0) {
        redirect(sweep, wefti_bind_shard_at(session, collective, collective->source, own, own));
    }
    return status;
}

/* What all ways of carrying an update out rely on. */
static weft_status_t check_update(const weft_session_t *session, uint32_t index)
{
    const wefti_plan_collective_t *collective = &session->plan->collectives[index];
    wefti_sweep_operand_t operand;
    weft_status_t status = WEFT_OK;
    if (collective->op != WEFT_COLLECTIVE_ALL_REDUCE ||
        collective->elem_count % session->endpoint->world_size != 0) {
        return bad(collective, "only an all-reduce with equal shards supports a fused update");
    }
    const wefti_plan_kernel_t *kernel = &session->plan->kernels[collective->update];
    for (uint32_t i = 0; i < kernel->input_count + kernel->output_count && status >= 0; i++) {
        uint32_t buffer =
            i < kernel->input_count ? kernel->inputs[i] : kernel->outputs[i - kernel->input_count];
        status = place_operand(session, collective, buffer, &operand);
    }
    return status;
}

weft_status_t wefti_bind_updates(weft_session_t *session)
{
    const weft_plan_t *plan = session->plan;
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < plan->collective_count && status >= 0; i++) {
        if (plan->collectives[i].update == WEFTI_PLAN_NONE) {
            continue;
        }
        status = check_update(session, i);
        if (status >= 0 && wefti_bind_sweeps(session, i)) {
            status = make_sweep(session, i);
        }
    }
    return status;
}

static void destroy(wefti_bound_kernel_t *bound)
{
    if (bound->kernel != NULL && bound->kernel->destroy != NULL) {
        bound->kernel->destroy(bound->state);
    }
}

void wefti_unbind_updates(weft_session_t *session)
{
    for (uint32_t i = 0; session->sweeps != NULL && i < session->plan->collective_count; i++) {
        if (session->sweeps[i] != NULL) {
            destroy(&session->sweeps[i]->block);
            destroy(&session->sweeps[i]->last);
            wefti_free(session->allocator, session->sweeps[i]->memory);
        }
    }
}
