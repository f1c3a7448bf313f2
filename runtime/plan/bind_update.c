/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives with an update. On the CPU, over shared memory, a sweep between two rounds of
 * signals:
 *
 *   SIGNAL  my gradients are there, and I read parameters no more
 *   WAIT    the same on all ranks
 *   SWEEP   my shard of all ranks' gradients -> my parameters and states -> all ranks' parameters
 *   SIGNAL  my shard is written everywhere
 *   WAIT    so are the others
 *
 * On another device the same in whole shards: REDUCE, KERNEL, a COPY to each of the others. Where
 * links only put, what the sweep is made of: a reduce-scatter, the kernel, an all-gather, both by
 * the interpreter. All of them give the same bits.
 */
#include "runtime/plan/bind.h"

#define PHASES 2u

bool wefti_bind_sweeps(const weft_session_t *session, uint32_t collective)
{
    return session->plan->collectives[collective].update != WEFTI_PLAN_NONE &&
           !session->interpreted[collective] && session->context->device == NULL;
}

uint64_t wefti_bind_shard_elems(const weft_session_t *session,
                                const wefti_plan_collective_t *collective)
{
    return collective->elem_count / session->endpoint->world_size;
}

uint8_t *wefti_bind_shard_at(const weft_session_t *session,
                             const wefti_plan_collective_t *collective, uint32_t buffer,
                             uint32_t rank, uint32_t owner)
{
    const wefti_plan_buffer_t *range = &session->plan->buffers[buffer];
    uint64_t bytes =
        wefti_bind_shard_elems(session, collective) * weft_dtype_size_bytes(range->dtype);
    return wefti_bind_at(session, rank, wefti_session_offset(range, rank) + owner * bytes);
}

static weft_status_t add_round(wefti_lowering_t *lowering, uint32_t phase)
{
    WEFT_RETURN_IF_ERROR(wefti_bind_signal(lowering, PHASES, phase - PHASES));
    return wefti_bind_wait(lowering, &lowering->session->groups[0], 0, UINT32_MAX, PHASES,
                           phase - PHASES);
}

static weft_status_t add_reduce(wefti_lowering_t *lowering,
                                const wefti_plan_collective_t *collective)
{
    weft_session_t *session = lowering->session;
    uint32_t n = session->endpoint->world_size, own = session->endpoint->rank;
    const void **sources = wefti_arena_array(&session->arena, n, sizeof(*sources));
    void **destination = wefti_arena_array(&session->arena, 1, sizeof(*destination));
    WEFT_RETURN_IF_NO_MEMORY(sources && destination);
    for (uint32_t r = 0; r < n; r++) {
        sources[r] = wefti_bind_shard_at(session, collective, collective->source, r, own);
    }
    destination[0] = wefti_bind_shard_at(session, collective, collective->source, own, own);
    return wefti_bind_add(
        lowering,
        &(wefti_record_t){.kind = WEFTI_RECORD_REDUCE,
                          .reduce = {.sources = sources,
                                     .source_count = n,
                                     .destinations = destination,
                                     .destination_count = 1,
                                     .elem_count = wefti_bind_shard_elems(session, collective),
                                     .dtype = collective->dtype,
                                     .reduction = collective->reduction,
                                     .divisor = collective->divisor}});
}

/* Of this rank's shard, to all other ranks. */
static weft_status_t add_copies(wefti_lowering_t *lowering,
                                const wefti_plan_collective_t *collective)
{
    const weft_session_t *session = lowering->session;
    uint32_t n = session->endpoint->world_size, own = session->endpoint->rank;
    uint32_t params = collective->buffer;
    wefti_record_t record = {.kind = WEFTI_RECORD_COPY};
    record.copy.src = wefti_bind_shard_at(session, collective, params, own, own);
    record.copy.size_bytes = wefti_bind_shard_elems(session, collective) *
                             weft_dtype_size_bytes(session->plan->buffers[params].dtype);
    for (uint32_t i = 1; i < n; i++) {
        record.copy.dst = wefti_bind_shard_at(session, collective, params, (own + i) % n, own);
        WEFT_RETURN_IF_ERROR(wefti_bind_add(lowering, &record));
    }
    return WEFT_OK;
}

/* The update of this rank's shard, in one sweep or by whole shards on a device's queue. */
static weft_status_t add_work(wefti_lowering_t *lowering, uint32_t index)
{
    const weft_session_t *session = lowering->session;
    const wefti_plan_collective_t *collective = &session->plan->collectives[index];
    if (session->sweeps[index] != NULL) {
        return wefti_bind_add(lowering, &(wefti_record_t){.kind = WEFTI_RECORD_SWEEP,
                                                          .sweep.sweep = session->sweeps[index]});
    }
    WEFT_RETURN_IF_ERROR(add_reduce(lowering, collective));
    WEFT_RETURN_IF_ERROR(wefti_bind_kernel(lowering, collective->update));
    return add_copies(lowering, collective);
}

weft_status_t wefti_bind_update(wefti_lowering_t *lowering, uint32_t collective)
{
    const weft_session_t *session = lowering->session;
    if (session->interpreted[collective]) {
        WEFT_RETURN_IF_ERROR(wefti_bind_run(lowering, 0));
        WEFT_RETURN_IF_ERROR(
            wefti_bind_kernel(lowering, session->plan->collectives[collective].update));
        return wefti_bind_run(lowering, 1);
    }
    if (session->endpoint->world_size == 1) {
        return add_work(lowering, collective);
    }
    WEFT_RETURN_IF_ERROR(add_round(lowering, 1));
    WEFT_RETURN_IF_ERROR(add_work(lowering, collective));
    return add_round(lowering, 2);
}
