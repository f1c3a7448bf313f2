/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/stream/stream.h"

#include "runtime/base/error.h"

#define CHECK_NS 10000000ull /* between two looks at the other ranks while blocked */
#define DROP_NAP_NS 1000000ull
#define CARD_NAP_MIN_NS 20000ull
#define CARD_NAP_MAX_NS 1000000ull

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
        wefti_nap(DROP_NAP_NS);
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
        } /* a card's broken queue does not raise its marks any more */
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
        uint32_t done = atomic_load_explicit(&stream->done.value, memory_order_relaxed);
        if (done == atomic_load_explicit(&stream->tail.value, memory_order_acquire)) {
            return;
        }
        wefti_slot_t *slot = &stream->slots[done & (stream->capacity - 1)];
        if (run_slot(stream, slot) == WEFT_IN_PROGRESS) {
            return;
        }
        wefti_mark_release(slot->mark);
        slot->mark = NULL;
        wefti_signal_post(&stream->done, done + 1);
    }
}

/* A card raises its marks without waking anybody: they are looked at, ever less often. */
static void await_card(weft_stream_t *stream, const wefti_slot_t *slot)
{
    uint64_t nap_ns = CARD_NAP_MIN_NS;
    while (!wefti_mark_reached(slot->mark, slot->value) &&
           wefti_fault_get(&slot->mark->fault) == WEFT_OK &&
           wefti_fault_get(&stream->fault) == WEFT_OK) {
        wefti_nap(nap_ns);
        nap_ns = nap_ns * 2 < CARD_NAP_MAX_NS ? nap_ns * 2 : CARD_NAP_MAX_NS;
        wefti_streams_progress(stream->context, NULL); /* finds queues that broke */
        weft_status_t status = wefti_endpoint_check(stream->context->endpoint);
        if (status < 0) {
            wefti_fault_set(&stream->fault, status, weft_last_error());
        }
    }
}

void *wefti_stream_main(void *user)
{
    weft_stream_t *stream = user;
    weft_context_t *context = stream->context;
    bool spins = context->endpoint->may_spin && context->endpoint->free_cores > 0;
    uint64_t spin_ns = spins ? context->settings.spin_ns : 0;
    uint32_t waits = 0; /* number of the slot that it has begun to wait for, + 1 */
    wefti_context_enter_thread(context);
    if (context->endpoint->free_cores == 0) {
        wefti_thread_be_prompt();
    }
    for (;;) {
        wefti_stream_run(stream);
        uint32_t done = atomic_load_explicit(&stream->done.value, memory_order_relaxed);
        if (done == atomic_load_explicit(&stream->tail.value, memory_order_acquire)) {
            if (atomic_load_explicit(&stream->stop, memory_order_acquire)) {
                return NULL;
            }
            wefti_signal_await(NULL, &stream->tail, done + 1, spin_ns, UINT64_MAX);
            continue;
        }
        wefti_slot_t *slot = &stream->slots[done & (stream->capacity - 1)];
        if (slot->record.kind != WEFTI_RECORD_WAIT) {
            continue; /* it came in since the stream was found empty */
        }
        if (context->device != NULL) {
            await_card(stream, slot);
            continue;
        }
        uint64_t once_ns = waits != done + 1 ? spin_ns : 0; /* not at every look around */
        waits = done + 1;
        if (!wefti_signal_await(NULL, slot->mark->signal, slot->value, once_ns, CHECK_NS)) {
            weft_status_t status = wefti_endpoint_check(context->endpoint);
            if (status < 0) {
                wefti_fault_set(&stream->fault, status, weft_last_error());
            }
        }
    }
}

/* Takes what the stream at hand is blocked on; the caller holds busy. */
static void note_blocked(weft_stream_t *stream, wefti_stream_block_t *out)
{
    uint32_t done = atomic_load_explicit(&stream->done.value, memory_order_relaxed);
    if (out->signal != NULL ||
        done == atomic_load_explicit(&stream->tail.value, memory_order_acquire)) {
        return;
    }
    const wefti_slot_t *slot = &stream->slots[done & (stream->capacity - 1)];
    if (slot->record.kind == WEFTI_RECORD_WAIT) {
        wefti_mark_retain(slot->mark);
        out->mark = slot->mark;
        out->signal = slot->mark->signal;
        out->target = slot->value;
    } else if (slot->record.kind == WEFTI_RECORD_OPAQUE) {
        out->signal = stream->blocked.signal;
        out->target = stream->blocked.target;
    }
}

/* On a device: work is queued that may have failed, of which later work must learn. */
static bool is_unsettled(const weft_stream_t *stream)
{
    return atomic_load_explicit(&stream->done.value, memory_order_relaxed) !=
           atomic_load_explicit(&stream->tail.value, memory_order_acquire);
}

bool wefti_streams_progress(weft_context_t *context, wefti_stream_block_t *out_block)
{
    bool any = false;
    if (!wefti_endpoint_owned(context->endpoint)) {
        return false; /* a forked child has neither the work nor the memory */
    }
    for (size_t i = 0;; i++) {
        weft_stream_t *stream = NULL;
        pthread_mutex_lock(&context->lock);
        bool more = i < context->stream_count;
        bool device = more && context->streams[i]->queue != NULL;
        if (device && !is_unsettled(context->streams[i])) {
            device = false;
        } else if (more && !context->streams[i]->threaded) {
            any = any || !device;
            /* acquire and release on busy: one runner sees what the one before it did */
            if (!atomic_flag_test_and_set_explicit(&context->streams[i]->busy,
                                                   memory_order_acquire)) {
                stream = context->streams[i];
            }
        }
        pthread_mutex_unlock(&context->lock);
        if (stream != NULL) { /* busy keeps it alive: destroy takes it too */
            if (device) {
                wefti_stream_poll_held(stream);
            } else {
                wefti_stream_run(stream);
                if (out_block != NULL) {
                    note_blocked(stream, out_block);
                }
            }
            atomic_flag_clear_explicit(&stream->busy, memory_order_release);
        }
        if (!more) {
            return any;
        }
    }
}
