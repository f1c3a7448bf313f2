/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/stream/stream.h"

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/memory/memory.h"
#include "runtime/base/params.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_CAPACITY 1024u
#define MAX_CAPACITY (1u << 20)
#define SLICE_MIN_NS 50000ull   /* a host wait with inline streams: they may be able to go on */
#define SLICE_MAX_NS 2000000ull /* the longest such nap */
#define DEVICE_YIELDS_NS 400000ull
#define CHECK_NS 10000000ull /* between two looks at the other ranks */
/* Calls on streams have deadlines of their own, which name the late rank: these come first. */
#define AFTER_CALLS_NS 1000000000ull

static uint32_t done_count(const weft_stream_t *stream)
{
    /* acquire: what the records wrote is visible */
    return atomic_load_explicit(&stream->done.signal.value, memory_order_acquire);
}

static uint32_t tail_count(const weft_stream_t *stream)
{
    return atomic_load_explicit(&stream->tail.signal.value, memory_order_relaxed);
}

static void stream_free(weft_stream_t *stream)
{
    weft_context_t *context = stream->context;
    for (uint32_t i = 0; stream->slots != NULL && i < stream->capacity; i++) {
        wefti_mark_release(stream->slots[i].mark);
        wefti_free(context->allocator, stream->slots[i].pointers);
    }
    if (stream->queue != NULL) {
        context->device->ops->queue_destroy(stream->queue);
    }
    wefti_free(context->allocator, stream->slots);
    wefti_free(context->allocator, stream);
    weft_context_release(context);
}

/* With the public flags: no queue, even where the context has a device. */
#define ON_HOST (1u << 31)

static weft_status_t start(weft_stream_t *stream, weft_stream_flags_t flags)
{
    weft_context_t *context = stream->context;
    if (context->device != NULL && !(flags & ON_HOST)) {
        return context->device->ops->queue_create(context->device, &stream->queue);
    }
    bool threaded =
        (flags & WEFT_STREAM_THREAD) || ((flags & WEFT_STREAM_AUTO) && context->progress_thread);
    if (threaded) { /* queues need none */
        stream->threaded = true;
        int error = pthread_create(&stream->thread, NULL, wefti_stream_main, stream);
        if (error != 0) {
            return wefti_error_errno(WEFT_ERR_SYSTEM, error,
                                     "stream \"%s\": cannot create its thread", stream->name);
        }
    }
    return WEFT_OK;
}

static weft_status_t create(weft_context_t *context, const weft_stream_params_t *params,
                            weft_stream_t **out_stream)
{
    weft_status_t status;
    weft_stream_t *stream = wefti_alloc(context->allocator, sizeof(*stream));
    if (stream == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    stream->context = context;
    weft_context_retain(context);
    atomic_flag_clear(&stream->busy);
    snprintf(stream->name, sizeof(stream->name), "%s", params->name ? params->name : "stream");
    uint32_t want = params->capacity != 0 ? params->capacity : DEFAULT_CAPACITY;
    for (stream->capacity = 1; stream->capacity < want;) {
        stream->capacity *= 2;
    }
    stream->slots = wefti_alloc(context->allocator, stream->capacity * sizeof(*stream->slots));
    status = stream->slots != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    WEFT_TRY(status, status, fail);
    WEFT_TRY(status, start(stream, params->flags), fail);
    status = wefti_streams_add(context, stream);
    if (status < 0) {
        weft_stream_destroy(stream);
        return status;
    }
    *out_stream = stream;
    return WEFT_OK;
fail:
    stream_free(stream);
    return status;
}

weft_status_t weft_stream_create(weft_context_t *context, const weft_stream_params_t *params,
                                 weft_stream_t **out_stream)
{
    WEFT_CHECK_OUT(out_stream);
    WEFT_CHECK_ARG(context);
    weft_stream_params_t own = WEFT_STREAM_PARAMS_INIT;
    weft_status_t status = WEFTI_PARAMS_READ(params, &own);
    if (status < 0) {
        return status;
    }
    params = &own;
    if (params->flags & ~(WEFT_STREAM_THREAD | WEFT_STREAM_AUTO) ||
        params->capacity > MAX_CAPACITY) {
        return params->capacity > MAX_CAPACITY
                   ? wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "capacity",
                                       "must be at most %u: %u", MAX_CAPACITY, params->capacity)
                   : wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "flags",
                                       "unknown stream flags: 0x%x", params->flags);
    }
    if (!wefti_endpoint_owned(context->endpoint)) {
        return wefti_endpoint_check(context->endpoint);
    }
    return create(context, params, out_stream);
}

weft_status_t wefti_stream_create_host(weft_context_t *context, const char *name, uint32_t capacity,
                                       weft_stream_t **out_stream)
{
    weft_stream_params_t params = {sizeof(params), name, ON_HOST | WEFT_STREAM_AUTO, capacity};
    *out_stream = NULL;
    return create(context, &params, out_stream);
}

void weft_stream_destroy(weft_stream_t *stream)
{
    if (stream == NULL) {
        return;
    }
    if (!wefti_endpoint_owned(stream->context->endpoint)) {
        stream_free(stream); /* a forked child has neither the thread nor the work */
        return;
    }
    if (weft_stream_synchronize(stream) < 0 && done_count(stream) != tail_count(stream)) {
        /* It will not finish by itself: break it, so that its marks are posted and others go on. */
        wefti_fault_set(&stream->fault, WEFT_ERR_ABORTED, weft_last_error());
        if (stream->queue != NULL) {
            stream->context->device->ops->cancel(stream->queue);
        }
        while (stream->queue != NULL && wefti_stream_poll(stream) == WEFT_IN_PROGRESS) {
            sched_yield();
        }
    }
    wefti_streams_remove(stream->context, stream);
    if (stream->queue != NULL) {
        wefti_streams_tell(stream);
        while (atomic_flag_test_and_set_explicit(&stream->busy, memory_order_acquire)) {
            sched_yield(); /* another thread polls it */
        }
    }
    if (stream->threaded) {
        /* release: the thread sees stop once it is woken */
        atomic_store_explicit(&stream->stop, 1, memory_order_release);
        uint32_t tail = tail_count(stream);
        wefti_signal_await(NULL, &stream->done.signal, tail, 0, UINT64_MAX);
        /* an empty slot wakes it for good */
        stream->slots[tail & (stream->capacity - 1)].record.kind = WEFTI_RECORD_COPY;
        stream->slots[tail & (stream->capacity - 1)].record.copy.size_bytes = 0;
        stream->slots[tail & (stream->capacity - 1)].record.copy.dst = stream;
        stream->slots[tail & (stream->capacity - 1)].record.copy.src = stream;
        wefti_signal_post(&stream->tail.signal, tail + 1);
        pthread_join(stream->thread, NULL);
    } else if (stream->queue == NULL) {
        while (atomic_flag_test_and_set_explicit(&stream->busy, memory_order_acquire)) {
            sched_yield(); /* another thread runs it */
        }
        wefti_stream_run(stream);
    }
    stream_free(stream);
}

weft_status_t wefti_stream_check_context(const weft_stream_t *stream, const weft_context_t *context)
{
    return stream == NULL || stream->context == context
               ? WEFT_OK
               : wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "stream \"%s\": belongs to another context than the group",
                             stream->name);
}

weft_status_t wefti_stream_reserve(weft_stream_t *stream, wefti_slot_t **out_slot)
{
    weft_status_t status = wefti_fault_get(&stream->fault);
    if (status < 0) {
        return status;
    }
    uint32_t tail = tail_count(stream);
    if (tail - done_count(stream) >= stream->capacity) {
        if (stream->queue == NULL || wefti_stream_poll(stream) == WEFT_IN_PROGRESS) {
            return WEFT_AGAIN;
        }
    }
    wefti_slot_t *slot = &stream->slots[tail & (stream->capacity - 1)];
    slot->record = (wefti_record_t){0};
    slot->mark = NULL;
    *out_slot = slot;
    return WEFT_OK;
}

weft_status_t wefti_stream_commit(weft_stream_t *stream, wefti_slot_t *slot)
{
    if (stream->queue != NULL) {
        weft_status_t status = wefti_stream_push(stream, slot);
        if (status < 0) {
            wefti_mark_release(slot->mark);
            slot->mark = NULL;
            return status;
        }
    }
    wefti_signal_post(&stream->tail.signal, tail_count(stream) + 1);
    return WEFT_OK;
}

weft_status_t weft_stream_launch_host(weft_stream_t *stream, weft_host_fn fn, void *user)
{
    WEFT_CHECK_ARG(stream);
    WEFT_CHECK_ARG(fn);
    wefti_slot_t *slot;
    weft_status_t status = wefti_stream_reserve(stream, &slot);
    if (status != WEFT_OK) {
        return status;
    }
    slot->record.kind = WEFTI_RECORD_HOST;
    slot->record.name = "host";
    slot->record.host.fn = fn;
    slot->record.host.user = user;
    return wefti_stream_commit(stream, slot);
}

weft_status_t weft_stream_launch(weft_stream_t *stream, const weft_kernel_t *kernel,
                                 const weft_kernel_call_t *call, uint32_t input_count,
                                 uint32_t output_count)
{
    WEFT_CHECK_ARG(stream);
    WEFT_CHECK_ARG(kernel);
    WEFT_CHECK_ARG(call);
    wefti_slot_t *slot;
    if (kernel->abi_version != WEFT_KERNEL_ABI_VERSION) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "kernel: unsupported abi_version %u: expected %u", kernel->abi_version,
                           WEFT_KERNEL_ABI_VERSION);
    }
    if (kernel->run == NULL || (input_count > 0 && call->inputs == NULL) ||
        (output_count > 0 && call->outputs == NULL)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "weft_stream_launch: %s is NULL",
                           kernel->run == NULL                       ? "run of kernel"
                           : input_count > 0 && call->inputs == NULL ? "inputs of call"
                                                                     : "outputs of call");
    }
    weft_status_t status = wefti_stream_reserve(stream, &slot);
    if (status != WEFT_OK) {
        return status;
    }
    size_t count = (size_t)input_count + output_count;
    status = wefti_array_reserve(stream->context->allocator, &slot->pointers,
                                 &slot->pointer_capacity, count, sizeof(*slot->pointers));
    if (status < 0) {
        return status;
    }
    if (input_count > 0) {
        memcpy(slot->pointers, call->inputs, input_count * sizeof(void *));
    }
    if (output_count > 0) {
        memcpy(slot->pointers + input_count, call->outputs, output_count * sizeof(void *));
    }
    slot->record.kind = WEFTI_RECORD_KERNEL;
    slot->record.name = kernel->op;
    slot->record.kernel.kernel = kernel;
    slot->record.kernel.call = *call;
    slot->record.kernel.call.inputs = slot->pointers;
    slot->record.kernel.call.outputs =
        count > 0 ? (void *const *)(const void *)(slot->pointers + input_count) : NULL;
    slot->record.kernel.input_count = input_count;
    slot->record.kernel.output_count = output_count;
    return wefti_stream_commit(stream, slot);
}

weft_status_t weft_stream_copy(weft_stream_t *stream, void *dst, const void *src, size_t bytes)
{
    WEFT_CHECK_ARG(stream);
    wefti_slot_t *slot;
    if (bytes > 0) {
        WEFT_CHECK_ARG(dst);
        WEFT_CHECK_ARG(src);
    }
    weft_status_t status = wefti_stream_reserve(stream, &slot);
    if (status != WEFT_OK || bytes == 0) {
        return status;
    }
    slot->record.kind = WEFTI_RECORD_COPY;
    slot->record.name = "copy";
    slot->record.copy.dst = dst;
    slot->record.copy.src = src;
    slot->record.copy.size_bytes = bytes;
    return wefti_stream_commit(stream, slot);
}

typedef struct fill {
    void *dst;
    size_t bytes;
    uint8_t value;
} fill_t;

static weft_status_t run_fill(void *user)
{
    const fill_t *fill = user;
    memset(fill->dst, fill->value, fill->bytes);
    return WEFT_OK;
}

weft_status_t weft_stream_fill(weft_stream_t *stream, void *dst, uint8_t value, size_t bytes)
{
    WEFT_CHECK_ARG(stream);
    wefti_slot_t *slot;
    if (bytes > 0) {
        WEFT_CHECK_ARG(dst);
    }
    weft_status_t status = wefti_stream_reserve(stream, &slot);
    if (status != WEFT_OK || bytes == 0) {
        return status;
    }
    /* The slot keeps what the fill needs until it ran: the arguments, or the device's pattern. */
    size_t room = stream->queue != NULL ? WEFTI_FILL_BYTES : sizeof(fill_t);
    status =
        wefti_array_reserve(stream->context->allocator, &slot->pointers, &slot->pointer_capacity,
                            room / sizeof(*slot->pointers), sizeof(*slot->pointers));
    if (status < 0) {
        return status;
    }
    slot->record.name = "fill";
    if (stream->queue != NULL) {
        memset((void *)slot->pointers, value, WEFTI_FILL_BYTES);
        slot->record.kind = WEFTI_RECORD_COPY;
        slot->record.copy.dst = dst;
        slot->record.copy.src = NULL; /* the pattern, again and again */
        slot->record.copy.size_bytes = bytes;
    } else {
        fill_t fill = {dst, bytes, value};
        memcpy((void *)slot->pointers, &fill, sizeof fill);
        slot->record.kind = WEFTI_RECORD_HOST;
        slot->record.host.fn = run_fill;
        slot->record.host.user = (void *)slot->pointers;
    }
    return wefti_stream_commit(stream, slot);
}

weft_status_t weft_stream_query(weft_stream_t *stream)
{
    WEFT_CHECK_ARG(stream);
    wefti_streams_progress(stream->context, NULL);
    if (stream->queue != NULL) {
        return wefti_stream_poll(stream);
    }
    if (done_count(stream) != tail_count(stream)) {
        return WEFT_IN_PROGRESS;
    }
    return wefti_fault_get(&stream->fault);
}

static bool wait_over(wefti_mark_t *mark, weft_stream_t *stream, uint32_t target)
{
    if (mark != NULL) {
        /* A stream that is gone has posted its marks or left its error in them: not looked into. */
        return wefti_mark_reached(mark, target) || wefti_fault_get(&mark->fault) < 0 ||
               (mark->context->device != NULL && wefti_stream_poll(stream) < 0);
    }
    if (stream->queue != NULL) {
        return wefti_stream_poll(stream) != WEFT_IN_PROGRESS;
    }
    return wefti_signal_reached(done_count(stream), target);
}

/*
 * A device wakes no thread, so it is polled: at once for a while, then ever less often. A signal
 * that an opaque record waits for is posted by a thread; a mark lies on the device.
 */
static void nap_beside_device(weft_context_t *context, const wefti_stream_block_t *blocked,
                              uint64_t waited_ns)
{
    uint64_t slice_ns = waited_ns / 8 < SLICE_MAX_NS ? waited_ns / 8 : SLICE_MAX_NS;
    if (waited_ns < DEVICE_YIELDS_NS) {
        sched_yield();
    } else if (blocked->signal != NULL && blocked->mark == NULL) {
        wefti_signal_await(context->endpoint, blocked->signal, blocked->target, 0, slice_ns);
    } else {
        wefti_endpoint_yield_progress(context->endpoint);
        wefti_sleep_ns(slice_ns);
    }
}

/* What a host wait has seen of its signal; 0 on a device, whose memory the host may not see. */
static uint32_t seen_value(const weft_context_t *context, const wefti_signal_t *signal)
{
    return context->device != NULL ? 0 : atomic_load_explicit(&signal->value, memory_order_relaxed);
}

/*
 * One nap of a host wait: until signal, or what an inline stream is blocked on, or the slice is
 * over. Other inline streams may be blocked on something else, hence the slice.
 */
static void nap(weft_context_t *context, wefti_signal_t *signal, uint32_t target, bool inline_work,
                bool threaded, const wefti_stream_block_t *blocked, uint64_t slice_ns,
                uint64_t most_ns)
{
    if (context->device != NULL) {
        nap_beside_device(context, blocked, slice_ns);
        return;
    }
    /* Once per wait: naps that all began with it would keep a core busy for as long as they last.
     */
    bool first = slice_ns == SLICE_MIN_NS;
    uint64_t spin_ns = first && context->endpoint->may_spin ? context->settings.spin_ns : 0;
    if (threaded && context->endpoint->free_cores == 0) {
        spin_ns = 0; /* the stream's thread needs this core */
    }
    if (blocked->signal != NULL) {
        wefti_signal_await(context->endpoint, blocked->signal, blocked->target, spin_ns,
                           slice_ns < most_ns ? slice_ns : most_ns);
    } else {
        slice_ns = inline_work ? slice_ns : CHECK_NS;
        wefti_signal_await(context->endpoint, signal, target, spin_ns,
                           slice_ns < most_ns ? slice_ns : most_ns);
    }
}

static weft_status_t wait_for(weft_context_t *context, wefti_mark_t *mark, weft_stream_t *stream,
                              const char *what, uint64_t patience_ns, wefti_local_wait_t *wait)
{
    wefti_endpoint_t *endpoint = context->endpoint;
    uint64_t slice_ns = SLICE_MIN_NS, start_ns = wefti_now_ns(), checked_ns = start_ns;
    wefti_signal_t *signal = mark != NULL ? mark->signal : &stream->done.signal;
    uint32_t target = wait->target;
    wefti_stream_block_t last = {0}; /* only compared */
    if (!wefti_endpoint_owned(endpoint)) {
        return wefti_endpoint_check(endpoint);
    }
    uint64_t limit_ns = context->settings.timeout_ns, moved_ns = start_ns;
    uint32_t seen = seen_value(context, signal);
    for (;;) {
        wefti_stream_block_t blocked = {0};
        bool inline_work = wefti_streams_progress(context, &blocked);
        if (blocked.signal != last.signal || blocked.target != last.target) {
            slice_ns = SLICE_MIN_NS; /* it went on: the next thing comes soon, too */
            last = blocked;
        }
        bool over = wait_over(mark, stream, target);
        uint64_t gone_ns = over || patience_ns == UINT64_MAX ? 0 : wefti_now_ns() - start_ns;
        if (!over && gone_ns >= patience_ns) {
            wefti_mark_release(blocked.mark);
            return WEFT_IN_PROGRESS;
        }
        if (!over) {
            uint64_t for_ns = context->device != NULL ? wefti_now_ns() - start_ns : slice_ns;
            nap(context, signal, target, inline_work, mark == NULL && stream->threaded, &blocked,
                for_ns, patience_ns - gone_ns);
        }
        wefti_mark_release(blocked.mark);
        if (over) {
            return WEFT_OK;
        }
        slice_ns = slice_ns * 2 < SLICE_MAX_NS ? slice_ns * 2 : SLICE_MAX_NS;
        uint64_t now_ns = wefti_now_ns();
        if (now_ns - checked_ns < CHECK_NS) {
            continue;
        }
        checked_ns = now_ns;
        if (patience_ns == UINT64_MAX && context->device == NULL) {
            wefti_waits_look_local(wait);
        }
        weft_status_t status = wefti_endpoint_check(endpoint);
        if (status < 0) { /* once more: what was waited for may have come before */
            wefti_streams_progress(context, NULL);
            return wait_over(mark, stream, target) ? WEFT_OK : wefti_endpoint_check(endpoint);
        }
        if (seen != seen_value(context, signal)) { /* many calls may take longer than one may */
            seen = seen_value(context, signal);
            moved_ns = now_ns;
        }
        if (limit_ns != 0 && now_ns - moved_ns > limit_ns + AFTER_CALLS_NS) {
            return wefti_error(WEFT_ERR_TIMEOUT, "rank %u: waited %.3g s for %s (WEFT_TIMEOUT)",
                               endpoint->rank, (double)limit_ns * 1e-9, what);
        }
    }
}

weft_status_t wefti_stream_wait_for(weft_context_t *context, wefti_mark_t *mark,
                                    weft_stream_t *stream, uint32_t target, const char *what,
                                    uint64_t patience_ns)
{
    wefti_local_wait_t wait = {.endpoint = context->endpoint,
                               .signal = mark != NULL ? mark->signal : &stream->done.signal,
                               .target = target,
                               .what = what};
    weft_status_t status = wait_for(context, mark, stream, what, patience_ns, &wait);
    wefti_waits_end_local(&wait);
    return status;
}

weft_status_t wefti_stream_wait(weft_context_t *context, wefti_mark_t *mark, weft_stream_t *stream,
                                uint32_t target, const char *what)
{
    return wefti_stream_wait_for(context, mark, stream, target, what, UINT64_MAX);
}

weft_status_t weft_stream_synchronize(weft_stream_t *stream)
{
    WEFT_CHECK_ARG(stream);
    weft_status_t status =
        wefti_stream_wait(stream->context, NULL, stream, tail_count(stream), stream->name);
    return status < 0 ? status : wefti_fault_get(&stream->fault);
}
