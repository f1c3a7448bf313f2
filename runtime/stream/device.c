/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/stream/stream.h"

#include "runtime/base/error.h"
#include "runtime/memory/memory.h"

weft_status_t wefti_stream_push(weft_stream_t *stream, const wefti_slot_t *slot)
{
    const weft_device_ops_t *ops = stream->context->device->ops;
    weft_status_t status;
    switch ((wefti_record_kind_t)slot->record.kind) {
    case WEFTI_RECORD_WAIT:
        status = ops->wait(stream->queue, wefti_mark_counter(slot->mark), slot->value);
        break;
    case WEFTI_RECORD_SIGNAL:
        /*
         * The device cannot raise, only store: earlier records of a notify, maybe on other streams,
         * come first. The copy after it shows the counter to the host.
         */
        status = ops->wait(stream->queue, wefti_mark_counter(slot->mark), slot->value - 1);
        if (status >= 0) {
            status = ops->signal(stream->queue, wefti_mark_counter(slot->mark), slot->value);
        }
        if (status >= 0) {
            status = ops->copy(stream->queue, (void *)&slot->mark->seen,
                               wefti_mark_counter(slot->mark), sizeof(uint32_t));
        }
        break;
    default:
        status = slot->record.kind == WEFTI_RECORD_COPY && slot->record.copy.src == NULL
                     ? wefti_device_fill(ops, stream->queue, slot->record.copy.dst,
                                         (const void *)slot->pointers, slot->record.copy.size_bytes)
                     : wefti_record_enqueue(&slot->record, 0, ops, stream->queue);
        break;
    }
    if (status >= 0) {
        status = ops->flush(stream->queue);
    }
    return status < 0 ? wefti_error_prefix(status, "stream \"%s\"", stream->name) : WEFT_OK;
}

static bool raises(const wefti_slot_t *slot)
{
    return slot->mark != NULL && slot->record.kind != WEFTI_RECORD_WAIT;
}

/* What it waits for will not come: its other end broke or is gone. */
static void look_at_waits(weft_stream_t *stream)
{
    uint32_t tail = atomic_load_explicit(&stream->tail.signal.value, memory_order_acquire);
    uint32_t done = atomic_load_explicit(&stream->done.signal.value, memory_order_relaxed);
    for (uint32_t i = done; i != tail; i++) {
        const wefti_slot_t *slot = &stream->slots[i & (stream->capacity - 1)];
        if (slot->mark == NULL || slot->record.kind != WEFTI_RECORD_WAIT ||
            wefti_mark_reached(slot->mark, slot->value)) {
            continue;
        }
        weft_status_t status = wefti_fault_get(&slot->mark->fault);
        if (status < 0 && wefti_fault_set(&stream->fault, status, weft_last_error())) {
            stream->context->device->ops->cancel(stream->queue);
            return;
        }
    }
}

weft_status_t wefti_stream_poll_held(weft_stream_t *stream)
{
    /* What another thread queues while the device answers is not part of the answer. acquire: the
     * slots are visible. */
    uint32_t tail = atomic_load_explicit(&stream->tail.signal.value, memory_order_acquire);
    weft_status_t status = stream->context->device->ops->query(stream->queue);
    if (status < 0) {
        wefti_fault_set(&stream->fault, status, weft_last_error());
    }
    if (status == WEFT_IN_PROGRESS) {
        look_at_waits(stream);
        return status;
    }
    status = wefti_fault_get(&stream->fault);
    for (uint32_t i = atomic_load_explicit(&stream->done.signal.value, memory_order_relaxed);
         i != tail; i++) {
        wefti_slot_t *slot = &stream->slots[i & (stream->capacity - 1)];
        if (status < 0 && raises(slot) && !wefti_mark_reached(slot->mark, slot->value)) {
            wefti_fault_set(&slot->mark->fault, status, weft_last_error());
        }
        wefti_mark_release(slot->mark);
        slot->mark = NULL;
    }
    wefti_signal_post(&stream->done.signal, tail);
    return status;
}

weft_status_t wefti_stream_poll(weft_stream_t *stream)
{
    /* acquire and release on busy: one poller sees what the one before it did */
    if (atomic_flag_test_and_set_explicit(&stream->busy, memory_order_acquire)) {
        return WEFT_IN_PROGRESS;
    }
    weft_status_t status = wefti_stream_poll_held(stream);
    atomic_flag_clear_explicit(&stream->busy, memory_order_release);
    return status;
}
