/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks of a group share, and the pools of it that a context keeps. */
#include "runtime/interpreter/interpreter.h"
#include "runtime/group/mirror.h"

#include <string.h>

#include "ops/algo/algorithms.h"
#include "runtime/base/error.h"

#define PAGE_BYTES 4096u
#define COMMIT_MIN_BYTES ((size_t)256 << 10)
#define PAIRS_BYTES ((size_t)128 << 10) /* all mailboxes of a rank, where that is enough */
#define PAIR_MIN_BYTES (sizeof(wefti_mailbox_t) + 2 * 512u)

static void lay_out(wefti_channel_layout_t *layout, const wefti_endpoint_t *endpoint)
{
    size_t n = endpoint->world_size;
    size_t pair = PAIRS_BYTES / n / 128 * 128;
    layout->pairs = wefti_align_up(sizeof(wefti_channel_t), PAGE_BYTES);
    layout->pair_bytes = pair > PAIR_MIN_BYTES ? pair : PAIR_MIN_BYTES;
    layout->area = wefti_align_up(layout->pairs + n * layout->pair_bytes, 64);
    size_t end = layout->area + wefti_run_area_bytes((uint32_t)n, wefti_area_lanes((uint32_t)n));
    if ((endpoint->caps & WEFTI_CAP_DIRECT) == 0) {
        layout->meet = wefti_align_up(end, 128);
        layout->meet_boxes = 1 + wefti_log2_ceil((uint32_t)n);
        layout->mirrors = wefti_align_up(
            layout->meet + layout->meet_boxes * sizeof(wefti_meet_box_t), PAGE_BYTES);
        layout->mirror_bytes = wefti_align_up(WEFTI_MIRROR_MAILBOX + layout->pair_bytes, 128);
        layout->reports = layout->mirrors + n * layout->mirror_bytes;
        end = layout->reports + n * sizeof(wefti_recovery_report_t);
    }
    layout->total_bytes = wefti_align_up(end, PAGE_BYTES);
}

size_t wefti_channels_half_bytes(const weft_context_t *context, uint64_t staging_bytes)
{
    size_t bytes =
        staging_bytes != 0 ? (size_t)staging_bytes : wefti_context_staging_bytes(context);
    size_t half = bytes / 2 / PAGE_BYTES * PAGE_BYTES;
    /* at least a line for every rank's block */
    size_t least = wefti_align_up((size_t)context->endpoint->world_size * 64, PAGE_BYTES);
    return half > least ? half : least;
}

weft_status_t wefti_channels_grow(weft_context_t *context, size_t half_bytes)
{
    wefti_channels_t *channels = wefti_channels_of(context);
    /* relaxed: only the thread that creates a group adds pools */
    uint32_t count = atomic_load_explicit(&channels->pool_count, memory_order_relaxed);
    wefti_pool_t *pool = &channels->pools[count];
    size_t staging_bytes;
    if (count == WEFTI_POOLS) {
        return wefti_error(
            WEFT_ERR_NO_MEMORY,
            "too many groups: at most %u can exist at the same time; destroy a group",
            WEFTI_POOLS * WEFTI_POOL_CHANNELS);
    }
    if (!wefti_mul_size(half_bytes, (size_t)2 * WEFTI_POOL_CHANNELS, &staging_bytes)) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "staging of %zu bytes exceeds the address space",
                           half_bytes);
    }
    WEFT_RETURN_IF_ERROR(wefti_region_reserve(
        context->endpoint, WEFTI_POOL_CHANNELS * channels->layout.total_bytes, &pool->channels));
    weft_status_t status = wefti_region_reserve(context->endpoint, staging_bytes, &pool->staging);
    if (status < 0) {
        wefti_region_free(context->endpoint, pool->channels);
        return status;
    }
    pool->half_bytes = half_bytes;
    /* Release: the pool is whole before it is counted. */
    atomic_store_explicit(&channels->pool_count, count + 1, memory_order_release);
    return WEFT_OK;
}

weft_status_t wefti_channels_take(weft_group_t *group, uint32_t channel)
{
    wefti_channels_t *channels = wefti_channels_of(group->context);
    uint32_t number = channel / WEFTI_POOL_CHANNELS, index = channel % WEFTI_POOL_CHANNELS;
    const wefti_pool_t *pool = &channels->pools[number];
    group->layout = channels->layout;
    group->channel = channel;
    /* What was refused in a group that had it before is not for this one. */
    wefti_endpoint_retry_refusal(group->endpoint, WEFTI_WAIT_CALL, channel, UINT32_MAX,
                                 WEFTI_REFUSAL_NONE);
    group->channel_offset = pool->channels + index * channels->layout.total_bytes;
    group->staging.offset = pool->staging + index * 2 * pool->half_bytes;
    group->staging.half_bytes = pool->half_bytes;
    /* relaxed: memory that another group of this rank committed */
    for (uint32_t half = 0; half < 2; half++) {
        group->staging.committed[half] =
            atomic_load_explicit(&pool->committed[index][half], memory_order_relaxed);
    }
    pthread_mutex_lock(&group->context->lock);
    channels->use.used[number] |= (uint16_t)(1u << index);
    pthread_mutex_unlock(&group->context->lock);
    /* Memory for one channel at a time: for all of a pool it takes most of a context's start. */
    return wefti_region_commit(group->endpoint, group->channel_offset, group->layout.total_bytes);
}

weft_status_t wefti_group_commit_half(weft_group_t *group, uint32_t half, size_t bytes)
{
    size_t from = group->staging.committed[half], half_bytes = group->staging.half_bytes;
    size_t to = 2 * from > bytes ? 2 * from : bytes; /* seldom */
    to = wefti_align_up(to > COMMIT_MIN_BYTES ? to : COMMIT_MIN_BYTES, PAGE_BYTES);
    to = to < half_bytes ? to : half_bytes;
    WEFT_RETURN_IF_ERROR(wefti_region_commit(
        group->endpoint, group->staging.offset + half * half_bytes + from, to - from));
    wefti_pool_t *pool =
        &wefti_channels_of(group->context)->pools[group->channel / WEFTI_POOL_CHANNELS];
    atomic_store_explicit(&pool->committed[group->channel % WEFTI_POOL_CHANNELS][half], to,
                          memory_order_relaxed);
    group->staging.committed[half] = to;
    return WEFT_OK;
}

void wefti_channels_give_back(const weft_group_t *group, uint32_t number, bool broken)
{
    wefti_channel_use_t *use = &wefti_channels_of(group->context)->use;
    uint32_t pool = group->channel / WEFTI_POOL_CHANNELS;
    uint16_t bit = (uint16_t)(1u << group->channel % WEFTI_POOL_CHANNELS);
    pthread_mutex_lock(&group->context->lock);
    if (broken) {
        use->retired[pool] |= bit;
    } else {
        use->used[pool] &= (uint16_t)~bit;
    }
    use->last_number = wefti_signal_reached(number, use->last_number) ? number : use->last_number;
    pthread_mutex_unlock(&group->context->lock);
}

wefti_channel_use_t wefti_channels_use(weft_context_t *context)
{
    pthread_mutex_lock(&context->lock);
    wefti_channel_use_t use = wefti_channels_of(context)->use;
    pthread_mutex_unlock(&context->lock);
    return use;
}

void wefti_channels_reclaim(weft_context_t *context, uint32_t pool, uint16_t busy)
{
    wefti_channel_use_t *use = &wefti_channels_of(context)->use;
    pthread_mutex_lock(&context->lock);
    use->used[pool] &= busy;
    use->retired[pool] &= busy;
    pthread_mutex_unlock(&context->lock);
}

/* What this rank has done of what another one waits for. */
static const wefti_signal_t *signal_of(const wefti_channels_t *channels,
                                       const wefti_channel_t *channel, const wefti_wait_t *wait)
{
    const wefti_mailbox_t *mailbox =
        (const void *)((const uint8_t *)channel + channels->layout.pairs +
                       wait->waiter * channels->layout.pair_bytes);
    switch (wait->kind) {
    case WEFTI_WAIT_LEAVE:
        return &channel->done.signal;
    case WEFTI_WAIT_HOST:
        return &channel->sent;
    case WEFTI_WAIT_RECV:
        return &mailbox->posted.signal;
    case WEFTI_WAIT_SEND:
        return &mailbox->consumed.signal;
    default:
        return &channel->slots[wait->number & 1].signal;
    }
}

/* wefti_waits_hooks_t: calls post to a slot, the end of a group counts as a call that is done. A
 * channel that another group uses now has higher numbers. */
static bool has_come(void *user, const wefti_wait_t *wait)
{
    const weft_context_t *context = user;
    const wefti_channels_t *channels = wefti_channels_of(context);
    uint32_t pool = wait->channel / WEFTI_POOL_CHANNELS;
    /* Acquire: a pool that is counted is whole. */
    if (channels == NULL ||
        pool >= atomic_load_explicit(&channels->pool_count, memory_order_acquire) ||
        wait->waiter >= context->endpoint->world_size) {
        return true;
    }
    size_t offset = channels->pools[pool].channels +
                    wait->channel % WEFTI_POOL_CHANNELS * channels->layout.total_bytes;
    const wefti_channel_t *channel =
        (const void *)(context->endpoint->region_of[context->endpoint->rank] + offset);
    return wefti_signal_has_reached(signal_of(channels, channel, wait), wait->number);
}

static void channels_init(weft_context_t *context, void *part)
{
    wefti_waits_hook(context->endpoint,
                     &(wefti_waits_hooks_t){.user = context, .has_come = has_come});
    lay_out(&((wefti_channels_t *)part)->layout, context->endpoint);
}

wefti_channels_t *wefti_channels_get(weft_context_t *context)
{
    static const wefti_part_ops_t ops = {sizeof(wefti_channels_t), channels_init,
                                         wefti_part_is_plain, wefti_part_always_in_use};
    return wefti_part_get(context, WEFTI_PART_CHANNELS, &ops);
}

static void set(wefti_signal_t *signal, uint32_t value)
{
    /* relaxed: peers learn later that they may use the group */
    atomic_store_explicit(&signal->value, value, memory_order_relaxed);
}

/* A channel or mirror: all calls up to number are done. */
static void reset(wefti_channel_t *channel, uint32_t number)
{
    atomic_store_explicit(&channel->abort.state, 0, memory_order_relaxed);
    atomic_store_explicit(&channel->claimed, number, memory_order_relaxed);
    set(&channel->alarm, 0);
    set(&channel->staged.signal, 0);
    set(&channel->done.signal, number);
    set(&channel->slots[0].signal, number);
    set(&channel->slots[1].signal, number);
    set(&channel->sent, wefti_meet_sent_value(number, 0));
}

static void reset_mailbox(wefti_mailbox_t *mailbox)
{
    set(&mailbox->posted.signal, 0);
    set(&mailbox->consumed.signal, 0);
}

void wefti_group_reset_channel(weft_group_t *group, uint32_t number)
{
    wefti_channel_t *own = group->channels[group->rank];
    uint32_t n = group->endpoint->world_size;
    reset(own, number);
    for (uint32_t i = 0; i < group->layout.meet_boxes; i++) {
        set(&wefti_meet_box(group, group->rank, i)->came.signal, number);
    }
    for (uint32_t i = 0; i < n; i++) {
        reset_mailbox(wefti_mailbox_of(group, group->rank, i));
    }
    for (uint32_t i = 0; i < group->put_peer_count; i++) {
        uint32_t peer = group->put_peers[i];
        reset(group->channels[peer], number);
        reset_mailbox(wefti_mailbox_of(group, peer, group->rank));
    }
    wefti_run_area_clear((uint8_t *)own + group->layout.area, n, wefti_area_lanes(n));
}

uint8_t *wefti_memory_of_peer(const weft_group_t *group, uint32_t rank, uint64_t offset,
                              uint64_t bytes)
{
    const wefti_endpoint_t *endpoint = group->endpoint;
    uint8_t *base = group->bases[rank];
    if (base == NULL) {
        return NULL; /* over a put link */
    }
    if (!group->context->one_process) {
        size_t limit = atomic_load_explicit(&endpoint->region_bytes, memory_order_relaxed);
        if (offset > limit || bytes > limit - offset) {
            return NULL;
        }
    }
    return (uint8_t *)((uintptr_t)base + (uintptr_t)offset);
}
