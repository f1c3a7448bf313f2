/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/device_call.h"

#include <sched.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/collective/call.h"

#define HOST_CAPACITY (4u * WEFTI_DEVICE_CALLS) /* of H: a call takes three */
#define PAUSE_NS 50000ull

/* ---- places ---- */

/* The device and the host are done with the place's memory. */
static bool is_idle(wefti_device_call_t *place)
{
    if (place->use == 0) {
        return true;
    }
    pthread_mutex_lock(&place->calls->lock);
    bool ended = place->ended, gone = place->stream == NULL;
    pthread_mutex_unlock(&place->calls->lock);
    return ended && (gone || wefti_mark_reached(place->mark, 2 * place->use) ||
                     wefti_fault_get(&place->mark->fault) < 0);
}

static void release_marks(wefti_device_call_t *place)
{
    wefti_mark_release(place->mark);
    wefti_mark_release(place->go);
    place->mark = place->go = NULL;
}

/* Marks of its own for a place that has none, or whose mark went down with a stream. */
static weft_status_t place_prepare(wefti_device_call_t *place)
{
    weft_context_t *context = place->calls->group->context;
    if (place->mark != NULL && !wefti_mark_reached(place->mark, 2 * place->use)) {
        release_marks(place);
        place->use = 0;
    }
    if (place->mark == NULL) {
        WEFT_RETURN_IF_ERROR(wefti_mark_create(context, &place->mark));
    }
    return place->go == NULL ? wefti_mark_create(context, &place->go) : WEFT_OK;
}

/* No queue of stream will run any more. */
static void forget_stream(wefti_stream_listener_t *listener, const weft_stream_t *stream)
{
    wefti_device_calls_t *calls = (wefti_device_calls_t *)listener;
    pthread_mutex_lock(&calls->lock);
    for (uint32_t i = 0; i < WEFTI_DEVICE_CALLS; i++) {
        if (calls->places[i].stream == stream) {
            calls->places[i].stream = NULL;
        }
    }
    pthread_mutex_unlock(&calls->lock);
}

static weft_status_t calls_create(weft_group_t *group)
{
    weft_context_t *context = group->context;
    wefti_device_calls_t *calls = wefti_alloc(context->allocator, sizeof *calls);
    if (calls == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    calls->group = group;
    pthread_mutex_init(&calls->lock, NULL);
    for (uint32_t i = 0; i < WEFTI_DEVICE_CALLS; i++) {
        calls->places[i].calls = calls;
    }
    weft_status_t status =
        wefti_stream_create_host(context, "collectives of a device", HOST_CAPACITY, &calls->host);
    if (status == WEFT_OK) {
        status = context->device->ops->queue_create(context->device, &calls->queue);
    }
    if (status < 0) {
        weft_stream_destroy(calls->host);
        pthread_mutex_destroy(&calls->lock);
        wefti_free(context->allocator, calls);
        return status;
    }
    calls->listener.ended = forget_stream;
    wefti_stream_listen(context, &calls->listener);
    group->calls->device_calls = calls;
    group->recovers = false; /* calls are queued on the device */
    return WEFT_OK;
}

/* ---- the records of a call ---- */

/* The place's counter on the device, which the host sees also. */
static weft_status_t raise_mark(const wefti_device_call_t *place, const weft_device_ops_t *ops,
                                weft_queue_t *queue, uint32_t value)
{
    uint32_t *counter = wefti_mark_counter(place->mark);
    WEFT_RETURN_IF_ERROR(ops->signal(queue, counter, value));
    return ops->copy(queue, (void *)&place->mark->seen, counter, sizeof *counter);
}

static weft_status_t enqueue_device_part(void *user, const weft_device_ops_t *ops,
                                         weft_queue_t *queue)
{
    const wefti_device_call_t *place = user;
    for (size_t i = 0; i < place->outs.count; i++) {
        const wefti_segment_t *segment = &place->outs.list[i];
        WEFT_RETURN_IF_ERROR(ops->copy(queue, segment->host, segment->device, segment->bytes));
    }
    WEFT_RETURN_IF_ERROR(raise_mark(place, ops, queue, 2 * place->use - 1));
    WEFT_RETURN_IF_ERROR(ops->wait(queue, wefti_mark_counter(place->go), place->use));
    for (size_t i = 0; i < place->ins.count; i++) {
        const wefti_segment_t *segment = &place->ins.list[i];
        WEFT_RETURN_IF_ERROR(ops->copy(queue, segment->device, segment->host, segment->bytes));
    }
    return raise_mark(place, ops, queue, 2 * place->use);
}

static const wefti_opaque_ops_t device_part_ops = {wefti_opaque_not_run, wefti_opaque_not_polled,
                                                   wefti_opaque_not_dropped, enqueue_device_part,
                                                   NULL};

static void break_stream(weft_stream_t *stream, weft_status_t status, const char *text)
{
    wefti_fault_set(&stream->fault, status, text);
    stream->context->device->ops->cancel(stream->queue);
}

/* The host's part is complete, with status. */
static weft_status_t end_host_part(void *user, weft_status_t status)
{
    wefti_device_call_t *place = user;
    wefti_device_calls_t *calls = place->calls;
    const weft_device_ops_t *ops = calls->group->context->device->ops;
    pthread_mutex_lock(&calls->lock);
    if (status == WEFT_OK && place->stream != NULL) {
        status = ops->signal(calls->queue, wefti_mark_counter(place->go), place->use);
        status = status < 0 ? status : ops->flush(calls->queue);
    }
    if (status < 0 && place->stream != NULL) {
        break_stream(place->stream, status, weft_last_error());
    }
    place->ended = true;
    pthread_mutex_unlock(&calls->lock);
    return WEFT_OK;
}

static weft_status_t run_host_end(void *user)
{
    return end_host_part(user, WEFT_OK);
}

static weft_status_t poll_host_end(void *user, wefti_blocked_t *out_blocked)
{
    (void)out_blocked;
    return end_host_part(user, WEFT_OK);
}

static const wefti_opaque_ops_t host_end_ops = {run_host_end, poll_host_end, end_host_part,
                                                wefti_opaque_not_enqueued, NULL};

/* ---- submitting ---- */

/* H: wait, the collective, the end. There is room: a place is free only when its three are done. */
static weft_status_t submit_host(wefti_device_call_t *place, wefti_call_t *call)
{
    weft_stream_t *host = place->calls->host;
    wefti_slot_t *slot;
    weft_status_t status = wefti_stream_reserve(host, &slot);
    if (status != WEFT_OK) {
        return status;
    }
    slot->record.kind = WEFTI_RECORD_WAIT;
    slot->record.name = "wait";
    slot->mark = place->mark;
    slot->value = 2 * place->use - 1;
    wefti_mark_retain(slot->mark);
    WEFT_RETURN_IF_ERROR(wefti_stream_commit(host, slot));
    WEFT_RETURN_IF_ERROR(wefti_call_submit_host(call, host));
    status = wefti_stream_reserve(host, &slot);
    if (status != WEFT_OK) {
        return status;
    }
    slot->record.kind = WEFTI_RECORD_OPAQUE;
    slot->record.name = "end";
    slot->record.opaque.ops = &host_end_ops;
    slot->record.opaque.user = place;
    return wefti_stream_commit(host, slot);
}

static weft_status_t submit_device(wefti_device_call_t *place, weft_stream_t *stream,
                                   wefti_slot_t *slot)
{
    slot->record.kind = WEFTI_RECORD_OPAQUE;
    slot->record.name = "collective";
    slot->record.opaque.ops = &device_part_ops;
    slot->record.opaque.user = place;
    slot->mark = place->mark;
    slot->value = 2 * place->use;
    wefti_mark_retain(slot->mark);
    return wefti_stream_commit(stream, slot);
}

/* Queues on stream, then on H; nothing is done on WEFT_AGAIN. */
static weft_status_t submit(wefti_device_calls_t *calls, wefti_call_t *call, weft_stream_t *stream)
{
    wefti_slot_t *slot;
    wefti_device_call_t *place = &calls->places[calls->issued % WEFTI_DEVICE_CALLS];
    if (!is_idle(place)) {
        wefti_streams_progress(calls->group->context, NULL);
        if (!is_idle(place)) {
            return WEFT_AGAIN;
        }
    }
    weft_status_t status = wefti_stream_reserve(stream, &slot);
    if (status != WEFT_OK) {
        return status;
    }
    WEFT_RETURN_IF_ERROR(place_prepare(place));
    WEFT_RETURN_IF_ERROR(wefti_device_call_stage(place, call));
    place->use++;
    place->ended = false;
    place->stream = stream;
    status = submit_host(place, call);
    if (status != WEFT_OK) { /* H is broken, and so is the group: nothing was queued */
        place->ended = true;
        place->stream = NULL;
        return status;
    }
    calls->issued++;
    status = submit_device(place, stream, slot);
    if (status < 0) {
        /* The peers count on this call: H finds the fault, and the group breaks. */
        break_stream(stream, status, weft_last_error());
        while (wefti_stream_poll(stream) == WEFT_IN_PROGRESS) {
            wefti_sleep_ns(PAUSE_NS); /* until then the device may access the place */
        }
        status = wefti_fault_get(&stream->fault);
        wefti_fault_set(&place->mark->fault, status, weft_last_error());
        wefti_streams_progress(calls->group->context, NULL);
    }
    return status;
}

weft_status_t wefti_device_call_submit(wefti_call_t *call, weft_stream_t *stream)
{
    weft_group_t *group = call->group;
    if (group->calls->device_calls == NULL) {
        WEFT_RETURN_IF_ERROR(calls_create(group));
    }
    wefti_device_calls_t *calls = group->calls->device_calls;
    if (stream != NULL) {
        return submit(calls, call, stream);
    }
    if (calls->own == NULL) {
        weft_stream_params_t params = {sizeof params, "calls without a stream", 0,
                                       4 * WEFTI_DEVICE_CALLS};
        WEFT_RETURN_IF_ERROR(weft_stream_create(group->context, &params, &calls->own));
    }
    weft_status_t status = submit(calls, call, calls->own);
    return status == WEFT_OK ? weft_stream_synchronize(calls->own) : status;
}

/* ---- the end ---- */

/* Notices that a broken stream's queue is empty, which sets its marks' faults. */
static void poll_stream_of(wefti_device_call_t *place)
{
    pthread_mutex_lock(&place->calls->lock);
    if (place->stream != NULL) {
        wefti_stream_poll(place->stream);
    }
    pthread_mutex_unlock(&place->calls->lock);
}

static void drain(wefti_device_calls_t *calls)
{
    for (uint32_t i = 0; i < WEFTI_DEVICE_CALLS; i++) {
        wefti_device_call_t *place = &calls->places[i];
        while (!is_idle(place)) {
            weft_status_t status = wefti_group_check(calls->group);
            if (status < 0) { /* nothing of it comes any more: H runs through */
                wefti_fault_set(&calls->host->fault, status, weft_last_error());
            }
            wefti_streams_progress(calls->group->context, NULL);
            poll_stream_of(place);
            wefti_sleep_ns(PAUSE_NS);
        }
    }
}

void wefti_device_calls_destroy(weft_group_t *group)
{
    wefti_device_calls_t *calls = group->calls->device_calls;
    if (calls == NULL) {
        return;
    }
    weft_context_t *context = group->context;
    bool owned = wefti_endpoint_owned(group->endpoint);
    if (owned) {
        drain(calls);
    }
    weft_stream_destroy(calls->own);
    weft_stream_destroy(calls->host);
    wefti_stream_unlisten(context, &calls->listener);
    if (owned) {
        context->device->ops->queue_destroy(calls->queue);
    }
    for (uint32_t i = 0; i < WEFTI_DEVICE_CALLS; i++) {
        release_marks(&calls->places[i]);
        wefti_free(context->allocator, calls->places[i].host);
        wefti_free(context->allocator, calls->places[i].outs.list);
        wefti_free(context->allocator, calls->places[i].ins.list);
    }
    pthread_mutex_destroy(&calls->lock);
    wefti_free(context->allocator, calls);
    group->calls->device_calls = NULL;
}
