/* SPDX-License-Identifier: Apache-2.0 */
/* The streams of a context: those that make progress while a thread waits, and who hears of ends.
 */
#include "runtime/stream/stream.h"

#include <stdio.h>

/* Part of a context. */
typedef struct streams {
    pthread_mutex_t lock; /* only creating, destroying and walking take it */
    weft_stream_t **list;
    size_t count, capacity;
    uint16_t made;
    _Atomic uint32_t inline_count; /* of them: run by the thread that waits */
    wefti_stream_listener_t *listeners;
} streams_t;

static void streams_init(weft_context_t *context, void *part)
{
    (void)context;
    pthread_mutex_init(&((streams_t *)part)->lock, NULL);
}

static void streams_deinit(weft_context_t *context, void *part)
{
    streams_t *streams = part;
    pthread_mutex_destroy(&streams->lock);
    wefti_free(context->allocator, streams->list);
}

static streams_t *find_streams(const weft_context_t *context)
{
    return wefti_part_find(context, WEFTI_PART_STREAMS);
}

static uint32_t is_inline(const weft_stream_t *stream)
{
    return !stream->threaded && stream->queue == NULL;
}

static bool progress_inline(weft_context_t *context)
{
    /* relaxed: the creator of a new stream makes its progress */
    return atomic_load_explicit(&find_streams(context)->inline_count, memory_order_relaxed) > 0 &&
           wefti_streams_progress(context, NULL);
}

/* On a device: work is queued that may have failed, of which later work must learn. */
static bool is_unsettled(const weft_stream_t *stream)
{
    return atomic_load_explicit(&stream->done.signal.value, memory_order_relaxed) !=
           atomic_load_explicit(&stream->tail.signal.value, memory_order_acquire);
}

/* What the head of an inline stream is blocked on; the caller holds busy. */
static bool describe_head(weft_stream_t *stream, wefti_wait_t *out)
{
    uint32_t done = atomic_load_explicit(&stream->done.signal.value, memory_order_relaxed);
    const wefti_slot_t *slot = &stream->slots[done & (stream->capacity - 1)];
    const wefti_opaque_ops_t *ops = slot->record.opaque.ops;
    if (slot->record.kind == WEFTI_RECORD_OPAQUE) {
        return ops->describe != NULL && ops->describe(slot->record.opaque.user, out);
    }
    out->kind = WEFTI_WAIT_LOCAL;
    out->channel = WEFTI_WAIT_WORLD;
    out->late_count = 1;
    out->late[0] = stream->context->endpoint->rank;
    snprintf(out->text, sizeof out->text, "stream \"%s\"", stream->name);
    return slot->record.kind == WEFTI_RECORD_WAIT && !wefti_mark_reached(slot->mark, slot->value);
}

/* wefti_waits_hooks_t. Threads of streams wait as other threads do. */
static int32_t describe_streams(void *user, wefti_wait_t *list, uint32_t room)
{
    streams_t *streams = find_streams(user);
    uint32_t count = 0;
    bool waits = true;
    pthread_mutex_lock(&streams->lock);
    for (size_t i = 0; i < streams->count && waits; i++) {
        weft_stream_t *stream = streams->list[i];
        if (stream->threaded || !is_unsettled(stream)) {
            continue;
        }
        if (stream->queue != NULL || count == room ||
            atomic_flag_test_and_set_explicit(&stream->busy, memory_order_acquire)) {
            waits = false;
        } else {
            waits = !is_unsettled(stream) || describe_head(stream, &list[count++]);
            atomic_flag_clear_explicit(&stream->busy, memory_order_release);
        }
    }
    pthread_mutex_unlock(&streams->lock);
    return waits ? (int32_t)count : -1;
}

weft_status_t wefti_streams_add(weft_context_t *context, weft_stream_t *stream)
{
    static const wefti_part_ops_t ops = {sizeof(streams_t), streams_init, streams_deinit,
                                         wefti_part_never_in_use};
    streams_t *streams = wefti_part_get(context, WEFTI_PART_STREAMS, &ops);
    if (streams == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    wefti_waits_hook(context->endpoint,
                     &(wefti_waits_hooks_t){.user = context, .streams = describe_streams});
    pthread_mutex_lock(&streams->lock);
    weft_status_t status = wefti_array_reserve(
        context->allocator, &streams->list, &streams->capacity, streams->count + 1, sizeof(stream));
    if (status >= 0) {
        streams->list[streams->count++] = stream;
        stream->number = ++streams->made;
        /* release: a thread that calls it finds the part */
        atomic_store_explicit(&context->progress, progress_inline, memory_order_release);
        /* relaxed: every thread that enqueues on the stream sees it */
        atomic_fetch_add_explicit(&streams->inline_count, is_inline(stream), memory_order_relaxed);
    }
    pthread_mutex_unlock(&streams->lock);
    return status;
}

void wefti_streams_remove(weft_context_t *context, const weft_stream_t *stream)
{
    streams_t *streams = find_streams(context);
    if (streams == NULL) {
        return; /* of a first stream that could not be added */
    }
    pthread_mutex_lock(&streams->lock);
    for (size_t i = 0; i < streams->count; i++) {
        if (streams->list[i] == stream) {
            streams->list[i] = streams->list[--streams->count];
            atomic_fetch_sub_explicit(&streams->inline_count, is_inline(stream),
                                      memory_order_relaxed);
            break;
        }
    }
    pthread_mutex_unlock(&streams->lock);
}

void wefti_stream_listen(weft_context_t *context, wefti_stream_listener_t *listener)
{
    streams_t *streams = find_streams(context);
    pthread_mutex_lock(&streams->lock);
    listener->next = streams->listeners;
    streams->listeners = listener;
    pthread_mutex_unlock(&streams->lock);
}

void wefti_stream_unlisten(weft_context_t *context, const wefti_stream_listener_t *listener)
{
    streams_t *streams = find_streams(context);
    pthread_mutex_lock(&streams->lock);
    wefti_stream_listener_t **link = &streams->listeners;
    while (*link != listener) {
        link = &(*link)->next;
    }
    *link = listener->next;
    pthread_mutex_unlock(&streams->lock);
}

void wefti_streams_tell(const weft_stream_t *stream)
{
    streams_t *streams = find_streams(stream->context);
    if (streams == NULL) {
        return; /* of a first stream that could not be added */
    }
    pthread_mutex_lock(&streams->lock);
    for (wefti_stream_listener_t *at = streams->listeners; at != NULL; at = at->next) {
        at->ended(at, stream);
    }
    pthread_mutex_unlock(&streams->lock);
}

/* Takes what the stream at hand is blocked on; the caller holds busy. */
static void note_blocked(weft_stream_t *stream, wefti_stream_block_t *out)
{
    uint32_t done = atomic_load_explicit(&stream->done.signal.value, memory_order_relaxed);
    if (out->signal != NULL ||
        done == atomic_load_explicit(&stream->tail.signal.value, memory_order_acquire)) {
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

bool wefti_streams_progress(weft_context_t *context, wefti_stream_block_t *out_block)
{
    bool any = false;
    streams_t *streams = find_streams(context);
    if (streams == NULL || !wefti_endpoint_owned(context->endpoint)) {
        return false; /* a forked child has neither the work nor the memory */
    }
    for (size_t i = 0;; i++) {
        weft_stream_t *stream = NULL;
        pthread_mutex_lock(&streams->lock);
        bool more = i < streams->count;
        bool device = more && streams->list[i]->queue != NULL;
        if (device && !is_unsettled(streams->list[i])) {
            device = false;
        } else if (more && !streams->list[i]->threaded) {
            any = any || !device;
            /* acquire and release on busy: one runner sees what the one before it did */
            if (!atomic_flag_test_and_set_explicit(&streams->list[i]->busy, memory_order_acquire)) {
                stream = streams->list[i];
            }
        }
        pthread_mutex_unlock(&streams->lock);
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
