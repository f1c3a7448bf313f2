/* SPDX-License-Identifier: Apache-2.0 */
/* Everything goes over one lane and is followed by a signal on it, so what a signal speaks of is
 * there when it is. */
#include "runtime/group/mirror.h"

#include <string.h>

#include "runtime/base/error.h"

void wefti_mirror_layout(wefti_channel_layout_t *layout, const wefti_endpoint_t *endpoint)
{
    if (endpoint->caps & WEFTI_CAP_DIRECT) {
        return;
    }
    layout->mirrors = layout->total_bytes;
    layout->mirror_bytes = wefti_align_up(WEFTI_MIRROR_MAILBOX + layout->pair_bytes, 128);
    layout->reports = layout->mirrors + endpoint->world_size * layout->mirror_bytes;
    layout->total_bytes = wefti_align_up(
        layout->reports + endpoint->world_size * sizeof(wefti_recovery_report_t), 4096);
}

/* ---- making a group ---- */

uint32_t wefti_mirror_leader(const wefti_endpoint_t *endpoint)
{
    uint32_t r = 0;
    while (r != endpoint->rank && !wefti_endpoint_direct(endpoint, r)) {
        r++;
    }
    return r;
}

static wefti_channel_t *mirror_of(const weft_group_t *group, uint32_t world_rank)
{
    uint8_t *own = (uint8_t *)group->channels[group->rank];
    return (wefti_channel_t *)(void *)(own + group->layout.mirrors +
                                       world_rank * group->layout.mirror_bytes);
}

weft_status_t wefti_mirror_link(weft_group_t *group, const uint32_t *leaders)
{
    const weft_allocator_t *allocator = group->context->allocator;
    uint32_t n = group->size, count = 0;
    for (uint32_t r = 0; r < n; r++) {
        bool direct = r == group->rank || wefti_endpoint_direct(group->endpoint, group->ranks[r]);
        if (direct != (leaders[r] == leaders[group->rank])) {
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "ranks %u and %u: cannot map each other's memory, but a third rank "
                               "maps the memory of both",
                               group->ranks[group->rank], group->ranks[r]);
        }
        count += !direct;
    }
    if (count == 0) {
        return WEFT_OK; /* on all ranks: sets of those that reach each other are the same to all */
    }
    group->put_links = wefti_alloc(allocator, (size_t)n * n);
    group->put_peers = wefti_alloc(allocator, count * sizeof *group->put_peers);
    if (group->put_links == NULL || group->put_peers == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < (size_t)n * n; i++) {
        group->put_links[i] = leaders[i / n] != leaders[i % n];
    }
    for (uint32_t r = 0; r < n; r++) {
        if (wefti_group_puts(group, r)) {
            group->put_peers[group->put_peer_count++] = r;
            group->channels[r] = mirror_of(group, group->ranks[r]);
        }
    }
    return WEFT_OK;
}

static void set(wefti_signal_t *signal, uint32_t value)
{
    /* relaxed: peers learn later that they may use the group */
    atomic_store_explicit(&signal->value, value, memory_order_relaxed);
}

void wefti_mirror_reset(weft_group_t *group, uint32_t number)
{
    for (uint32_t i = 0; i < group->put_peer_count; i++) {
        wefti_channel_t *mirror = group->channels[group->put_peers[i]];
        wefti_mailbox_t *mailbox = wefti_mailbox_of(group, group->put_peers[i], group->rank);
        set(&mirror->done.signal, number);
        set(&mirror->alarm, 0);
        set(&mirror->postings[0].signal, number);
        set(&mirror->postings[1].signal, number);
        set(&mailbox->posted.signal, 0);
        set(&mailbox->consumed.signal, 0);
    }
}

/* ---- keeping mirrors up to date ---- */

/* Where in a peer's region this rank's mirror is. */
static size_t own_mirror(const weft_group_t *group)
{
    return group->channel_offset + group->layout.mirrors +
           group->endpoint->rank * group->layout.mirror_bytes;
}

weft_status_t wefti_mirror_put(const weft_group_t *group, uint32_t peer, size_t at,
                               const void *data, size_t bytes)
{
    return bytes == 0 ? WEFT_OK
                      : wefti_put(group->endpoint, group->ranks[peer], own_mirror(group) + at, data,
                                  bytes, WEFTI_LANE_CHANNEL);
}

weft_status_t wefti_mirror_send(const weft_group_t *group, uint32_t peer, size_t at,
                                const void *data, size_t bytes, size_t counter, uint32_t value)
{
    WEFT_RETURN_IF_ERROR(wefti_mirror_put(group, peer, at, data, bytes));
    return wefti_signal_peer(group->endpoint, group->ranks[peer], own_mirror(group) + counter,
                             value, WEFTI_LANE_CHANNEL);
}

void wefti_mirror_abort(weft_group_t *group)
{
    const wefti_channel_t *own = group->channels[group->rank];
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < group->put_peer_count && status == WEFT_OK; i++) {
        status =
            wefti_mirror_send(group, group->put_peers[i], offsetof(wefti_channel_t, abort),
                              &own->abort, sizeof own->abort, offsetof(wefti_channel_t, alarm), 1);
    }
    if (status < 0) {
        /* The peers would never learn it otherwise. */
        wefti_endpoint_abort(group->endpoint, (weft_status_t)own->abort.status, own->abort.text);
    }
}

const wefti_channel_t *wefti_mirror_alarmed(const weft_group_t *group)
{
    for (uint32_t i = 0; i < group->put_peer_count; i++) {
        wefti_channel_t *mirror = group->channels[group->put_peers[i]];
        /* acquire: the record is complete */
        if (atomic_load_explicit(&mirror->alarm.value, memory_order_acquire) != 0) {
            return mirror;
        }
    }
    return NULL;
}
