/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks of a group share, and the pools of it that a context keeps. */
#include "runtime/interpreter/interpreter.h"
#include "runtime/group/mirror.h"

#include <string.h>

#include "runtime/base/error.h"

#define PAGE_BYTES 4096u
#define PAIRS_BYTES ((size_t)128 << 10) /* all mailboxes of a rank, where that is enough */
#define PAIR_MIN_BYTES (sizeof(wefti_mailbox_t) + 2 * 512u)

void wefti_channel_layout(wefti_channel_layout_t *layout, uint32_t world_size, size_t staging_bytes)
{
    size_t half = staging_bytes / 2 / PAGE_BYTES * PAGE_BYTES;
    /* At least a line for every rank's block. */
    size_t least = wefti_align_up((size_t)world_size * 64, PAGE_BYTES);
    size_t pair = PAIRS_BYTES / world_size / 128 * 128;
    layout->staging = wefti_align_up(sizeof(wefti_channel_t), PAGE_BYTES);
    layout->staging_bytes = half > least ? half : least;
    layout->pairs = layout->staging + 2 * layout->staging_bytes;
    layout->pair_bytes = pair > PAIR_MIN_BYTES ? pair : PAIR_MIN_BYTES;
    layout->area = wefti_align_up(layout->pairs + world_size * layout->pair_bytes, 64);
    layout->total_bytes = wefti_align_up(
        layout->area + wefti_run_area_bytes(world_size, wefti_area_lanes(world_size)), PAGE_BYTES);
}

weft_status_t wefti_channels_grow(weft_context_t *context)
{
    wefti_channels_t *channels = wefti_channels_of(context);
    if (channels->pool_count == WEFTI_POOLS) {
        return wefti_error(
            WEFT_ERR_NO_MEMORY,
            "too many groups: at most %u can exist at the same time; destroy a group",
            WEFTI_POOLS * WEFTI_POOL_CHANNELS);
    }
    size_t offset;
    weft_status_t status = wefti_region_alloc(
        context->endpoint, WEFTI_POOL_CHANNELS * channels->layout.total_bytes, &offset);
    if (status == WEFT_OK) {
        channels->offsets[channels->pool_count++] = offset;
    }
    return status;
}

void wefti_channels_take(weft_group_t *group, uint32_t channel)
{
    wefti_channels_t *channels = wefti_channels_of(group->context);
    uint32_t pool = channel / WEFTI_POOL_CHANNELS, bit = channel % WEFTI_POOL_CHANNELS;
    group->layout = channels->layout;
    group->channel = channel;
    group->channel_offset = channels->offsets[pool] + bit * channels->layout.total_bytes;
    pthread_mutex_lock(&group->context->lock);
    channels->use.used[pool] |= (uint16_t)(1u << bit);
    pthread_mutex_unlock(&group->context->lock);
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

static void channels_init(weft_context_t *context, void *part)
{
    wefti_channels_t *channels = part;
    wefti_channel_layout(&channels->layout, context->endpoint->world_size,
                         wefti_context_staging_bytes(context));
    wefti_mirror_layout(&channels->layout, context->endpoint);
}

wefti_channels_t *wefti_channels_get(weft_context_t *context)
{
    static const wefti_part_ops_t ops = {sizeof(wefti_channels_t), channels_init,
                                         wefti_part_is_plain, wefti_part_always_in_use};
    return wefti_part_get(context, WEFTI_PART_CHANNELS, &ops);
}

/* Resets this rank's channel for a new group. Its former users are all done with it. */
void wefti_group_reset_channel(weft_group_t *group, uint32_t number)
{
    wefti_channel_t *own = group->channels[group->rank];
    atomic_store_explicit(&own->abort.state, 0, memory_order_relaxed);
    wefti_mirror_reset(group, number);
    atomic_store_explicit(&own->staged.signal.value, 0, memory_order_relaxed);
    atomic_store_explicit(&own->done.signal.value, number, memory_order_relaxed);
    atomic_store_explicit(&own->claimed, number, memory_order_relaxed);
    for (uint32_t i = 0; i < 2; i++) {
        atomic_store_explicit(&own->postings[i].signal.value, number, memory_order_relaxed);
    }
    for (uint32_t i = 0; i < group->endpoint->world_size; i++) {
        wefti_mailbox_t *mailbox =
            (wefti_mailbox_t *)(void *)((uint8_t *)own + group->layout.pairs +
                                        i * group->layout.pair_bytes);
        atomic_store_explicit(&mailbox->posted.signal.value, 0, memory_order_relaxed);
        atomic_store_explicit(&mailbox->consumed.signal.value, 0, memory_order_relaxed);
    }
    wefti_run_area_clear((uint8_t *)own + group->layout.area, group->endpoint->world_size,
                         wefti_area_lanes(group->endpoint->world_size));
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
