/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events and notifies: marks, which records raise and waits compare with.
 *
 * A notify has one mark. So does an event that only one stream records. A mark counts, so it orders
 * its records: a record on another stream while the last one has not been reached goes to another
 * mark, and whoever waits for the last one still does.
 *
 *   record on A   mark 1 = 1    a stream that waits now waits for mark 1 >= 1,
 *   record on B   mark 2 = 1    whichever of A and B gets there first
 */
#include "runtime/stream/stream.h"

#include "runtime/base/check.h"
#include "runtime/base/error.h"

struct weft_event {
    wefti_mark_t *marks;            /* as many as streams were to reach a record at one time */
    _Atomic(wefti_mark_t *) latest; /* of these: the latest record's */
};

struct weft_notify {
    wefti_mark_t mark;
};

/* Enqueues a SIGNAL or WAIT of mark at value. */
static weft_status_t enqueue(weft_stream_t *stream, wefti_record_kind_t kind, wefti_mark_t *mark,
                             uint32_t value)
{
    wefti_slot_t *slot;
    if (stream->context != mark->context) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "stream \"%s\": belongs to another context",
                           stream->name);
    }
    weft_status_t status = wefti_stream_reserve(stream, &slot);
    if (status != WEFT_OK) {
        return status;
    }
    slot->record.kind = (uint8_t)kind;
    slot->record.name = kind == WEFTI_RECORD_SIGNAL ? "record" : "wait";
    slot->mark = mark;
    slot->value = value;
    wefti_mark_retain(mark);
    return wefti_stream_commit(stream, slot);
}

/* Enqueues the next record of mark. */
static weft_status_t record(wefti_mark_t *mark, weft_stream_t *stream)
{
    /* relaxed: threads that use an event synchronise anyway; only one stream records a notify */
    uint32_t value = atomic_load_explicit(&mark->recorded, memory_order_relaxed) + 1;
    weft_status_t status = enqueue(stream, WEFTI_RECORD_SIGNAL, mark, value);
    if (status == WEFT_OK) {
        atomic_store_explicit(&mark->recorded, value, memory_order_relaxed);
    }
    return status;
}

static weft_status_t add_mark(weft_event_t *event, weft_context_t *context, wefti_mark_t **out_mark)
{
    WEFT_RETURN_IF_ERROR(wefti_mark_create(context, out_mark));
    (*out_mark)->next = event->marks;
    event->marks = *out_mark;
    return WEFT_OK;
}

weft_status_t weft_event_create(weft_context_t *context, weft_event_t **out_event)
{
    WEFT_CHECK_OUT(out_event);
    WEFT_CHECK_ARG(context);
    wefti_mark_t *mark;
    weft_event_t *event = wefti_alloc(context->allocator, sizeof *event);
    WEFT_RETURN_IF_NO_MEMORY(event != NULL);
    weft_status_t status = add_mark(event, context, &mark);
    if (status < 0) {
        wefti_free(context->allocator, event);
        return status;
    }
    atomic_init(&event->latest, mark);
    *out_event = event;
    return WEFT_OK;
}

void weft_event_destroy(weft_event_t *event)
{
    if (event == NULL) {
        return;
    }
    wefti_mark_t *mark = event->marks;
    wefti_free(mark->context->allocator, event); /* the marks keep the context */
    while (mark != NULL) {
        wefti_mark_t *next = mark->next;
        wefti_mark_release(mark);
        mark = next;
    }
}

/* acquire: what record wrote to the mark before */
static wefti_mark_t *latest(weft_event_t *event)
{
    return atomic_load_explicit(&event->latest, memory_order_acquire);
}

static uint32_t recorded(const wefti_mark_t *mark)
{
    return atomic_load_explicit(&mark->recorded, memory_order_relaxed);
}

/* A record on stream comes after all that the mark has, and none of these failed. */
static bool is_in_order(const wefti_mark_t *mark, const weft_stream_t *stream)
{
    return atomic_load_explicit(&mark->fault.state, memory_order_relaxed) == 0 &&
           (atomic_load_explicit(&mark->stream, memory_order_relaxed) == stream ||
            wefti_mark_reached(mark, recorded(mark)));
}

static weft_status_t mark_for(weft_event_t *event, const weft_stream_t *stream,
                              wefti_mark_t **out_mark)
{
    wefti_mark_t *mark = latest(event);
    if (!is_in_order(mark, stream)) {
        for (mark = event->marks; mark != NULL && !is_in_order(mark, stream);) {
            mark = mark->next;
        }
    }
    *out_mark = mark;
    return mark != NULL ? WEFT_OK : add_mark(event, event->marks->context, out_mark);
}

weft_status_t weft_event_record(weft_event_t *event, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(event);
    WEFT_CHECK_ARG(stream);
    wefti_mark_t *mark;
    WEFT_RETURN_IF_ERROR(mark_for(event, stream, &mark));
    weft_status_t status = record(mark, stream);
    if (status == WEFT_OK) {
        atomic_store_explicit(&mark->stream, stream, memory_order_relaxed);
        atomic_store_explicit(&event->latest, mark, memory_order_release);
    }
    return status;
}

weft_status_t weft_stream_wait_event(weft_stream_t *stream, weft_event_t *event)
{
    WEFT_CHECK_ARG(stream);
    WEFT_CHECK_ARG(event);
    wefti_mark_t *mark = latest(event);
    uint32_t value = recorded(mark);
    return value == 0 ? WEFT_OK : enqueue(stream, WEFTI_RECORD_WAIT, mark, value);
}

weft_status_t weft_event_query(weft_event_t *event)
{
    WEFT_CHECK_ARG(event);
    wefti_mark_t *mark = latest(event);
    uint32_t value = recorded(mark);
    if (value == 0) {
        return WEFT_OK;
    }
    wefti_streams_progress(mark->context, NULL);
    weft_status_t status = wefti_fault_get(&mark->fault);
    if (status < 0 || wefti_mark_reached(mark, value)) {
        return status;
    }
    if (mark->context->device != NULL) {
        /* not gone: a stream that is has posted its marks or left its error in them */
        status = wefti_stream_poll(atomic_load_explicit(&mark->stream, memory_order_relaxed));
        return status < 0 || wefti_mark_reached(mark, value) ? status : WEFT_IN_PROGRESS;
    }
    return WEFT_IN_PROGRESS;
}

weft_status_t weft_event_wait(weft_event_t *event, uint64_t timeout_ns)
{
    WEFT_CHECK_ARG(event);
    wefti_mark_t *mark = latest(event);
    uint32_t value = recorded(mark);
    if (value == 0) {
        return WEFT_OK;
    }
    weft_stream_t *stream = atomic_load_explicit(&mark->stream, memory_order_relaxed);
    weft_status_t status =
        wefti_stream_wait_for(mark->context, mark, stream, value, "an event", timeout_ns);
    return status != WEFT_OK ? status : wefti_fault_get(&mark->fault);
}

weft_status_t weft_event_synchronize(weft_event_t *event)
{
    WEFT_CHECK_ARG(event);
    return weft_event_wait(event, UINT64_MAX);
}

weft_status_t weft_event_time_ns(weft_event_t *event, uint64_t *out_time_ns)
{
    WEFT_CHECK_ARG(event);
    WEFT_CHECK_ARG(out_time_ns);
    wefti_mark_t *mark = latest(event);
    uint32_t value = recorded(mark);
    if (mark->context->device != NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "event: device \"%s\" does not support event times",
                           mark->context->device->ops->name);
    }
    if (value == 0 || !wefti_mark_reached(mark, value)) {
        return wefti_error(WEFT_ERR_STATE, "event: not reached yet");
    }
    *out_time_ns = atomic_load_explicit(&mark->time_ns, memory_order_relaxed);
    return WEFT_OK;
}

weft_status_t weft_notify_create(weft_context_t *context, weft_notify_t **out_notify)
{
    WEFT_CHECK_OUT(out_notify);
    WEFT_CHECK_ARG(context);
    wefti_mark_t *mark;
    WEFT_RETURN_IF_ERROR(wefti_mark_create(context, &mark));
    *out_notify = (weft_notify_t *)mark;
    return WEFT_OK;
}

/* It can no longer be recorded: streams that still wait for a record fail. */
static void give_up_waits(wefti_mark_t *mark)
{
    uint32_t waited = atomic_load_explicit(&mark->waited, memory_order_relaxed);
    uint32_t recorded = atomic_load_explicit(&mark->recorded, memory_order_relaxed);
    if (wefti_signal_reached(recorded, waited)) {
        return;
    }
    wefti_fault_set(&mark->fault, WEFT_ERR_ABORTED,
                    "notify was destroyed while a stream was waiting for it");
    if (mark->context->device == NULL) { /* on a device, streams look at the fault */
        wefti_signal_raise(mark->signal, waited);
    }
}

void weft_notify_destroy(weft_notify_t *notify)
{
    if (notify != NULL) {
        give_up_waits(&notify->mark);
        wefti_mark_release(&notify->mark);
    }
}

weft_status_t weft_notify_record(weft_notify_t *notify, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(notify);
    WEFT_CHECK_ARG(stream);
    return record(&notify->mark, stream);
}

weft_status_t weft_notify_wait(weft_notify_t *notify, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(notify);
    WEFT_CHECK_ARG(stream);
    /* relaxed: one stream waits, used by one thread */
    uint32_t value = atomic_load_explicit(&notify->mark.waited, memory_order_relaxed) + 1;
    weft_status_t status = enqueue(stream, WEFTI_RECORD_WAIT, &notify->mark, value);
    if (status == WEFT_OK) {
        atomic_store_explicit(&notify->mark.waited, value, memory_order_relaxed);
    }
    return status;
}
