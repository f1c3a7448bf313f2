/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/stream/stream.h"

#include "runtime/base/error.h"
#include "runtime/base/threads.h"

#define CHECK_NS 10000000ull /* between two looks at the other ranks while blocked */
#define DEVICE_PAUSE_MIN_NS 20000ull
#define DEVICE_PAUSE_MAX_NS 1000000ull

/* A device raises its marks without waking a thread: poll them, ever less often. */
static void await_device(weft_stream_t *stream, const wefti_slot_t *slot)
{
    uint64_t pause_ns = DEVICE_PAUSE_MIN_NS;
    while (!wefti_mark_reached(slot->mark, slot->value) &&
           wefti_fault_get(&slot->mark->fault) == WEFT_OK &&
           wefti_fault_get(&stream->fault) == WEFT_OK) {
        wefti_sleep_ns(pause_ns);
        pause_ns = pause_ns * 2 < DEVICE_PAUSE_MAX_NS ? pause_ns * 2 : DEVICE_PAUSE_MAX_NS;
        wefti_streams_progress(stream->context, NULL); /* finds queues that broke */
        weft_status_t status = wefti_endpoint_check(stream->context->endpoint);
        if (status < 0) {
            wefti_fault_set(&stream->fault, status, weft_last_error());
        }
    }
}

/* Until the mark is posted, or something is wrong. */
static void await_mark(weft_stream_t *stream, const wefti_slot_t *slot, uint64_t spin_ns)
{
    wefti_endpoint_t *endpoint = stream->context->endpoint;
    wefti_local_wait_t wait = {.endpoint = endpoint,
                               .signal = slot->mark->signal,
                               .target = slot->value,
                               .what = stream->name};
    while (!wefti_signal_await(NULL, slot->mark->signal, slot->value, spin_ns, CHECK_NS) &&
           wefti_fault_get(&slot->mark->fault) == WEFT_OK &&
           wefti_fault_get(&stream->fault) == WEFT_OK) {
        spin_ns = 0; /* not at every look around */
        wefti_waits_look_local(&wait);
        weft_status_t status = wefti_endpoint_check(endpoint);
        if (status < 0) {
            wefti_fault_set(&stream->fault, status, weft_last_error());
        }
    }
    wefti_waits_end_local(&wait);
}

void *wefti_stream_main(void *user)
{
    weft_stream_t *stream = user;
    weft_context_t *context = stream->context;
    bool spins = context->endpoint->may_spin && context->endpoint->free_cores > 0;
    uint64_t spin_ns = spins ? context->settings.spin_ns : 0;
    wefti_own_thread_t self;
    wefti_own_thread_begin(&self, &stream->tail.signal);
    if (context->endpoint->free_cores == 0) {
        wefti_thread_be_prompt();
    }
    for (;;) {
        wefti_stream_run(stream);
        uint32_t done = atomic_load_explicit(&stream->done.signal.value, memory_order_relaxed);
        if (done == atomic_load_explicit(&stream->tail.signal.value, memory_order_acquire)) {
            if (atomic_load_explicit(&stream->stop, memory_order_acquire)) {
                wefti_own_thread_end(&self);
                return NULL;
            }
            wefti_own_thread_idle(&self, done + 1);
            wefti_signal_await(NULL, &stream->tail.signal, done + 1, spin_ns, UINT64_MAX);
            wefti_own_thread_busy(&self);
            continue;
        }
        wefti_slot_t *slot = &stream->slots[done & (stream->capacity - 1)];
        if (slot->record.kind != WEFTI_RECORD_WAIT) {
            continue; /* it came in since the stream was found empty */
        }
        if (context->device != NULL) {
            await_device(stream, slot);
            continue;
        }
        await_mark(stream, slot, spin_ns);
    }
}
