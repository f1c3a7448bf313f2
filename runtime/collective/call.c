/* SPDX-License-Identifier: Apache-2.0 */
/* A call's place in the ring of its group, and how it gets there and away. */
#include "runtime/base/error.h"
#include "runtime/collective/call.h"
#include "runtime/collective/device_call.h"
#include "runtime/interpreter/interpreter.h"
#include "runtime/stream/stream.h"

/* What a call published since sleepers were looked for. */
typedef struct published {
    weft_group_t *group;
    uint32_t number;
    bool posted, round, done;
} published_t;

static published_t take_published(wefti_call_t *call)
{
    published_t published = {call->group, call->number, call->posted, call->published_round,
                             call->published_done};
    call->posted = call->published_round = call->published_done = false;
    return published;
}

static void settle(const published_t *published)
{
    weft_group_t *group = published->group;
    wefti_channel_t *own = group->channels[group->rank];
    wefti_fence();
    if (published->posted) {
        wefti_signal_settle(wefti_posting_signal(&own->postings[published->number & 1]));
    }
    if (published->round) {
        wefti_signal_settle(&own->staged);
    }
    if (published->done) {
        wefti_signal_settle(&own->done);
    }
    wefti_signal_settle(&group->completed);
}

void wefti_call_settle(wefti_call_t *call)
{
    published_t published = take_published(call);
    settle(&published);
}

void wefti_call_finish(wefti_call_t *call)
{
    if (call->state == WEFTI_CALL_MOVING && call->path == &wefti_path_schedule) {
        wefti_run_settle(call->run); /* after an error: the caller gets its buffers back */
    }
    /* Once it is published, another thread may have its place in the ring for a call of its own. */
    published_t published = take_published(call);
    call->state = WEFTI_CALL_DONE;
    wefti_signal_publish(&call->group->completed, call->order);
    settle(&published);
}

void wefti_call_give_up(wefti_call_t *call, weft_status_t status)
{
    if (status == WEFT_ERR_LINK) {
        wefti_link_failed(call);
    }
    wefti_call_finish(call);
}

static weft_status_t drop(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    if (call->state == WEFTI_CALL_DONE) {
        return WEFT_OK;
    }
    weft_status_t status = wefti_group_check_lasting(group);
    if (status == WEFT_OK && group->put_peer_count > 0) {
        /* The group may be mended by a call before this one: only then is it known what this one
         * is to others. */
        if (!wefti_signal_has_reached(&group->completed, call->order - 1)) {
            return WEFT_IN_PROGRESS;
        }
        if (wefti_link_excuses(call)) {
            wefti_call_give_up(call, WEFT_ERR_LINK);
            return WEFT_OK;
        }
    }
    /* Its peers wait for it, and the group's later calls are in its order. What broke the group or
     * the world is the reason, where something did. */
    if (status == WEFT_OK) {
        status = wefti_error(WEFT_ERR_ABORTED, "rank %u: call cancelled: its stream has failed",
                             group->ranks[group->rank]);
    }
    wefti_group_fail(group, status);
    wefti_call_finish(call);
    return WEFT_OK;
}

weft_status_t wefti_call_reserve(weft_group_t *group, weft_stream_t *stream,
                                 wefti_call_t **out_call)
{
    weft_status_t status = WEFT_OK;
    status = wefti_stream_check_context(stream, group->context);
    if (status < 0) {
        return status;
    }
    if (!wefti_endpoint_owned(group->endpoint) ||
        atomic_load_explicit(&group->fault.state, memory_order_relaxed) != 0 ||
        wefti_group_ended(group)) {
        status = wefti_group_check_lasting(group);
        if (status < 0) {
            return status;
        }
    }
    uint32_t order = group->issued + 1;
    /* acquire: the ring's place is free, and its last user has finished with it */
    uint32_t completed = atomic_load_explicit(&group->completed.value, memory_order_acquire);
    if (order - completed > WEFTI_CALLS) {
        return WEFT_AGAIN;
    }
    wefti_call_t *call = &group->calls[order & (WEFTI_CALLS - 1)];
    call->order = order;
    call->state = WEFTI_CALL_ISSUED;
    call->lead = call->trail = 0;
    call->round = 0;
    call->since_ns = call->late_since_ns = call->departed_since_ns = 0;
    call->mends = false;
    call->two_shot = false;
    call->pair_count = 0;
    call->is_fused = false;
    *out_call = call;
    return WEFT_OK;
}

static void issue(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    group->issued = call->order;
    /* relaxed: the call that recovers the group was issued later */
    atomic_store_explicit(&group->link.issued_order, call->order, memory_order_relaxed);
    if (call->pair_count == 0) {
        call->wanted = group->selection.wanted.algorithm[call->op];
        call->what |= group->selection.what[call->op];
        call->number = ++group->number;
        group->number += wefti_call_is_checked(call); /* the digests have a number of their own */
        atomic_store_explicit(&group->link.issued, group->number, memory_order_relaxed);
    }
}

weft_status_t wefti_call_submit(wefti_call_t *call, weft_stream_t *stream)
{
    return call->group->context->device != NULL ? wefti_device_call_submit(call, stream)
                                                : wefti_call_submit_host(call, stream);
}

/* ---- on a stream, which holds a reference to the group ---- */

static weft_status_t run_on_stream(void *user)
{
    wefti_call_t *call = user;
    weft_group_t *group = call->group;
    weft_status_t status = wefti_call_run(call);
    wefti_group_release(group);
    return status;
}

static weft_status_t poll_on_stream(void *user, wefti_blocked_t *out_blocked)
{
    wefti_call_t *call = user;
    weft_group_t *group = call->group;
    weft_status_t status = wefti_call_poll(call, out_blocked);
    if (status != WEFT_IN_PROGRESS) {
        wefti_group_release(group);
    }
    return status;
}

static weft_status_t drop_on_stream(void *user, weft_status_t why)
{
    wefti_call_t *call = user;
    weft_group_t *group = call->group;
    (void)why;
    weft_status_t status = drop(call);
    if (status != WEFT_IN_PROGRESS) {
        wefti_group_release(group);
    }
    return status;
}

static const wefti_opaque_ops_t stream_ops = {run_on_stream, poll_on_stream, drop_on_stream,
                                              wefti_opaque_not_enqueued};

weft_status_t wefti_call_submit_host(wefti_call_t *call, weft_stream_t *stream)
{
    wefti_slot_t *slot;
    call->on_caller = stream == NULL;
    if (stream == NULL) {
        issue(call);
        return wefti_call_run(call);
    }
    weft_status_t status = wefti_stream_reserve(stream, &slot);
    if (status != WEFT_OK) {
        return status;
    }
    slot->record.kind = WEFTI_RECORD_OPAQUE;
    slot->record.name = "collective";
    slot->record.opaque.ops = &stream_ops;
    slot->record.opaque.user = call;
    issue(call);
    atomic_fetch_add_explicit(&call->group->references, 1, memory_order_relaxed);
    return wefti_stream_commit(stream, slot);
}
