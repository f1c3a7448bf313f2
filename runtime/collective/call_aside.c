/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/call_aside.h"

#include <weft/collective.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"

void wefti_asides_init(weft_group_t *group)
{
    pthread_mutex_init(&group->calls->asides.lock, NULL);
}

void wefti_aside_free(weft_group_t *group, wefti_aside_t *aside)
{
    wefti_free(group->context->allocator, aside);
}

static void publish(wefti_asides_t *asides, wefti_aside_t *first)
{
    atomic_store_explicit(&asides->first, first, memory_order_release);
}

static bool matches(const wefti_aside_t *aside, uint32_t peer, uint32_t tag, bool whole)
{
    return aside->whole == whole && aside->message.peer == peer &&
           (tag == WEFT_ANY_TAG || aside->message.tag == tag);
}

/* Under the lock: the first of peer with tag, or any, of those that are whole, or are not. */
static wefti_aside_t *find(const wefti_asides_t *asides, uint32_t peer, uint32_t tag, bool whole,
                           wefti_aside_t **out_before)
{
    wefti_aside_t *before = NULL;
    wefti_aside_t *aside = atomic_load_explicit(&asides->first, memory_order_relaxed);
    while (aside != NULL && !matches(aside, peer, tag, whole)) {
        before = aside;
        aside = aside->next;
    }
    *out_before = before;
    return aside;
}

/* Under the lock. */
static void unlink_aside(wefti_asides_t *asides, wefti_aside_t *before, wefti_aside_t *aside)
{
    if (before != NULL) {
        before->next = aside->next;
    } else {
        publish(asides, aside->next);
    }
}

weft_status_t wefti_aside_begin(weft_group_t *group, const wefti_pair_t *message,
                                wefti_pair_t **out_message)
{
    wefti_asides_t *asides = &group->calls->asides;
    size_t element = weft_dtype_size_bytes((weft_dtype_t)message->dtype), bytes;
    if (element == 0 || __builtin_mul_overflow(message->count, element, &bytes) ||
        bytes > SIZE_MAX - sizeof(wefti_aside_t)) {
        return wefti_error(WEFT_ERR_MISMATCH, "rank %u sent what is no message",
                           group->ranks[message->peer]);
    }
    wefti_aside_t *aside = wefti_alloc(group->context->allocator, sizeof *aside + bytes);
    WEFT_RETURN_IF_NO_MEMORY(aside != NULL);
    aside->message = *message;
    aside->message.data = aside->data;
    aside->message.bytes = bytes;
    pthread_mutex_lock(&asides->lock);
    wefti_aside_t *last = atomic_load_explicit(&asides->first, memory_order_relaxed);
    if (last == NULL) {
        publish(asides, aside);
    } else {
        while (last->next != NULL) {
            last = last->next;
        }
        last->next = aside;
    }
    pthread_mutex_unlock(&asides->lock);
    *out_message = &aside->message;
    return WEFT_OK;
}

static wefti_aside_t *unfinished(weft_group_t *group, uint32_t peer)
{
    wefti_asides_t *asides = &group->calls->asides;
    wefti_aside_t *before;
    pthread_mutex_lock(&asides->lock);
    wefti_aside_t *aside = find(asides, peer, WEFT_ANY_TAG, false, &before);
    pthread_mutex_unlock(&asides->lock);
    return aside;
}

wefti_pair_t *wefti_aside_unfinished(weft_group_t *group, uint32_t peer)
{
    wefti_aside_t *aside = wefti_aside_any(group) ? unfinished(group, peer) : NULL;
    return aside != NULL ? &aside->message : NULL;
}

void wefti_aside_finish(weft_group_t *group, uint32_t peer)
{
    wefti_aside_t *aside = unfinished(group, peer);
    pthread_mutex_lock(&group->calls->asides.lock);
    aside->whole = true;
    pthread_mutex_unlock(&group->calls->asides.lock);
}

bool wefti_aside_find(weft_group_t *group, uint32_t peer, uint32_t tag,
                      wefti_is_awaited_fn is_awaited, wefti_pair_t *out_message)
{
    wefti_asides_t *asides = &group->calls->asides;
    pthread_mutex_lock(&asides->lock);
    const wefti_aside_t *aside = atomic_load_explicit(&asides->first, memory_order_relaxed);
    while (aside != NULL &&
           (!matches(aside, peer, tag, true) || is_awaited(group, peer, aside->message.tag))) {
        aside = aside->next;
    }
    if (aside != NULL) {
        *out_message = aside->message;
    }
    pthread_mutex_unlock(&asides->lock);
    return aside != NULL;
}

wefti_aside_t *wefti_aside_take(weft_group_t *group, uint32_t peer, uint32_t tag)
{
    wefti_asides_t *asides = &group->calls->asides;
    wefti_aside_t *before;
    pthread_mutex_lock(&asides->lock);
    wefti_aside_t *aside = find(asides, peer, tag, true, &before);
    if (aside != NULL) {
        unlink_aside(asides, before, aside);
    }
    pthread_mutex_unlock(&asides->lock);
    return aside;
}

void wefti_asides_drop_unfinished(weft_group_t *group)
{
    wefti_asides_t *asides = &group->calls->asides;
    wefti_aside_t *before, *aside;
    pthread_mutex_lock(&asides->lock);
    for (uint32_t peer = 0; peer < group->size; peer++) {
        while ((aside = find(asides, peer, WEFT_ANY_TAG, false, &before)) != NULL) {
            unlink_aside(asides, before, aside);
            wefti_aside_free(group, aside);
        }
    }
    pthread_mutex_unlock(&asides->lock);
}

void wefti_asides_free(weft_group_t *group)
{
    wefti_asides_t *asides = &group->calls->asides;
    wefti_aside_t *aside = atomic_load_explicit(&asides->first, memory_order_relaxed);
    while (aside != NULL) {
        wefti_aside_t *next = aside->next;
        wefti_aside_free(group, aside);
        aside = next;
    }
    pthread_mutex_destroy(&asides->lock);
}
