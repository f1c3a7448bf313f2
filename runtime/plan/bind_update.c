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

/* Rank's copy of the shard of rank owner, of the range in buffer. */
uint8_t *wefti_bind_shard_at(const weft_session_t *session,
                             const wefti_plan_collective_t *collective, uint32_t buffer,
                             uint32_t rank, uint32_t owner)
{
    const wefti_plan_buffer_t *range = &session->plan->buffers[buffer];
    uint64_t bytes =
        wefti_bind_shard_elems(session, collective) * weft_dtype_size_bytes(range->dtype);
    return wefti_bind_at(session, rank, wefti_session_offset(range, rank) + owner * bytes);
}

size_t wefti_bind_update_records(const wefti_lowering_t *lowering, uint32_t collective)
{
    const weft_session_t *session = lowering->session;
    uint32_t n = session->endpoint->world_size;
    size_t work = session->interpreted[collective]         ? 3
                  : wefti_bind_sweeps(session, collective) ? 1
                                                           : 2 + (n - 1); /* and copies */
    return work + (session->interpreted[collective] || n == 1 ? 0 : 2 * PHASES);
}

static weft_status_t add_round(wefti_lowering_t *lowering, uint32_t phase, wefti_record_t *records)
{
    wefti_record_t *signal = &records[0], *wait = &records[1];
    signal->kind = WEFTI_RECORD_SIGNAL;
    signal->signal.signal =
        wefti_bind_collective_signal(lowering, lowering->session->endpoint->rank);
    signal->signal.stride = PHASES;
    signal->signal.offset = phase - PHASES;
    weft_status_t status = wefti_bind_peer_wait(lowering, 0, UINT32_MAX, wait);
    wait->wait.stride = PHASES;
    wait->wait.offset = phase - PHASES;
    return status;
}

static weft_status_t add_reduce(wefti_lowering_t *lowering,
                                const wefti_plan_collective_t *collective, wefti_record_t *record)
{
    weft_session_t *session = lowering->session;
    uint32_t n = session->endpoint->world_size, own = session->endpoint->rank;
    const void **sources = wefti_arena_array(&session->arena, n, sizeof(*sources));
    void **destination = wefti_arena_array(&session->arena, 1, sizeof(*destination));
    if (sources == NULL || destination == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t r = 0; r < n; r++) {
        sources[r] = wefti_bind_shard_at(session, collective, collective->source, r, own);
    }
    destination[0] = wefti_bind_shard_at(session, collective, collective->source, own, own);
    record->kind = WEFTI_RECORD_REDUCE;
    record->reduce = (weft_reduce_t){.sources = sources,
                                     .source_count = n,
                                     .destinations = destination,
                                     .destination_count = 1,
                                     .elem_count = wefti_bind_shard_elems(session, collective),
                                     .dtype = collective->dtype,
                                     .reduction = collective->reduction,
                                     .divisor = collective->divisor};
    return WEFT_OK;
}

/* Of its shard, to the rank that is so far behind it. */
static void add_copy(const weft_session_t *session, const wefti_plan_collective_t *collective,
                     uint32_t distance, wefti_record_t *record)
{
    uint32_t n = session->endpoint->world_size, own = session->endpoint->rank;
    const wefti_plan_buffer_t *params = &session->plan->buffers[collective->buffer];
    record->kind = WEFTI_RECORD_COPY;
    record->copy.src = wefti_bind_shard_at(session, collective, collective->buffer, own, own);
    record->copy.dst =
        wefti_bind_shard_at(session, collective, collective->buffer, (own + distance) % n, own);
    record->copy.size_bytes =
        wefti_bind_shard_elems(session, collective) * weft_dtype_size_bytes(params->dtype);
}

/* Whole shards, on a device's queue. */
static weft_status_t add_shard(wefti_lowering_t *lowering, uint32_t stream, uint32_t index,
                               wefti_record_t *records)
{
    weft_session_t *session = lowering->session;
    const wefti_plan_collective_t *collective = &session->plan->collectives[index];
    weft_status_t status = add_reduce(lowering, collective, &records[0]);
    if (status >= 0) {
        status = wefti_bind_kernel_record(session, stream, collective->update, &records[1]);
    }
    for (uint32_t i = 1; i < session->endpoint->world_size; i++) {
        add_copy(session, collective, i, &records[1 + i]);
    }
    return status;
}

/* Links that only put: a reduce-scatter, the update, an all-gather. */
static weft_status_t add_runs(wefti_lowering_t *lowering, uint32_t stream, uint32_t index,
                              wefti_record_t *records)
{
    weft_session_t *session = lowering->session;
    wefti_bound_run_t *runs = &session->runs[WEFTI_USE_RUNS * lowering->next_collective];
    for (uint32_t i = 0; i < 2; i++) {
        records[2 * i].kind = WEFTI_RECORD_SCHEDULE;
        records[2 * i].source = UINT16_MAX;
        records[2 * i].schedule.bound = &runs[i];
    }
    return wefti_bind_kernel_record(session, stream, session->plan->collectives[index].update,
                                    &records[1]);
}

weft_status_t wefti_bind_update(wefti_lowering_t *lowering, uint32_t stream, uint32_t collective,
                                wefti_record_t *records)
{
    weft_session_t *session = lowering->session;
    if (session->interpreted[collective]) {
        return add_runs(lowering, stream, collective, records);
    }
    size_t count = wefti_bind_update_records(lowering, collective);
    bool alone = session->endpoint->world_size == 1;
    wefti_record_t *work = alone ? records : records + 2;
    weft_status_t status = WEFT_OK;
    if (!alone) {
        status = add_round(lowering, 1, records);
        status = status >= 0 ? add_round(lowering, 2, records + count - 2) : status;
    }
    if (status >= 0 && session->sweeps[collective] != NULL) {
        work->kind = WEFTI_RECORD_SWEEP;
        work->sweep.sweep = session->sweeps[collective];
    } else if (status >= 0) {
        status = add_shard(lowering, stream, collective, work);
    }
    return status;
}
