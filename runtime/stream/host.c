/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/stream/stream.h"

#include "runtime/base/error.h"

#define DROP_PAUSE_NS 1000000ull

static weft_status_t run_opaque(weft_stream_t *stream, const wefti_record_t *record)
{
    const wefti_opaque_ops_t *ops = record->opaque.ops;
    return stream->threaded ? ops->run(record->opaque.user)
                            : ops->poll(record->opaque.user, &stream->blocked);
}

static weft_status_t drop_opaque(weft_stream_t *stream, const wefti_record_t *record)
{
    stream->blocked = (wefti_blocked_t){0};
    for (;;) {
        weft_status_t why = wefti_fault_get(&stream->fault);
        weft_status_t status = record->opaque.ops->drop(record->opaque.user, why);
        if (status != WEFT_IN_PROGRESS || !stream->threaded) {
            return status;
        }
        wefti_sleep_ns(DROP_PAUSE_NS);
    }
}

static weft_status_t run_slot(weft_stream_t *stream, wefti_slot_t *slot)
{
    bool broken = wefti_fault_get(&stream->fault) < 0;
    weft_status_t status = WEFT_OK;
    switch ((wefti_record_kind_t)slot->record.kind) {
    case WEFTI_RECORD_WAIT:
        if (broken) {
            return WEFT_OK; /* nothing after it will run either */
        }
        status = wefti_fault_get(&slot->mark->fault);
        if (!wefti_mark_reached(slot->mark, slot->value) &&
            (status >= 0 || stream->context->device == NULL)) {
            return WEFT_IN_PROGRESS;
        } /* a broken queue of a device does not raise its marks any more */
        break;
    case WEFTI_RECORD_SIGNAL:
        if (broken) { /* dependents finish with the error instead of waiting for ever */
            wefti_fault_set(&slot->mark->fault, stream->fault.status, stream->fault.text);
        }
        /* relaxed: the counter that follows publishes it */
        atomic_store_explicit(&slot->mark->time_ns, wefti_now_ns(), memory_order_relaxed);
        wefti_signal_raise(slot->mark->signal, slot->value);
        return WEFT_OK;
    case WEFTI_RECORD_OPAQUE:
        status = broken ? drop_opaque(stream, &slot->record) : run_opaque(stream, &slot->record);
        if (status == WEFT_IN_PROGRESS) {
            return status;
        }
        break;
    default:
        if (!broken) {
            status = wefti_record_run(&slot->record, 0, stream->context->settings.isa);
            if (status < 0 && slot->record.kind == WEFTI_RECORD_HOST) {
                status = wefti_error(status, "stream \"%s\": host function failed: %s",
                                     stream->name, weft_status_text(status));
            } else if (status < 0) {
                status = wefti_error_prefix(status, "stream \"%s\": %s", stream->name,
                                            slot->record.name);
            }
        }
        break;
    }
    if (status < 0) {
        wefti_fault_set(&stream->fault, status, weft_last_error());
    }
    return WEFT_OK;
}

void wefti_stream_run(weft_stream_t *stream)
{
    for (;;) {
        /* only the runner moves done; acquire on tail: the slot before it is filled in */
        uint32_t done = atomic_load_explicit(&stream->done.signal.value, memory_order_relaxed);
        if (done == atomic_load_explicit(&stream->tail.signal.value, memory_order_acquire)) {
            return;
        }
        wefti_slot_t *slot = &stream->slots[done & (stream->capacity - 1)];
        if (run_slot(stream, slot) == WEFT_IN_PROGRESS) {
            return;
        }
        wefti_mark_release(slot->mark);
        slot->mark = NULL;
        wefti_signal_post(&stream->done.signal, done + 1);
    }
}
