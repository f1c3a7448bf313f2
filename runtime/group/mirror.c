/* SPDX-License-Identifier: Apache-2.0 */
/* Everything goes over one lane and is followed by a signal on it, so what a signal speaks of is
 * there when it is. */
#include "runtime/group/mirror.h"

#include <string.h>

#include "runtime/base/error.h"

/* ---- making a group ---- */

/* In the channel of reader, a rank of this host. */
static wefti_channel_t *mirror_of(const weft_group_t *group, uint32_t reader, uint32_t world_rank)
{
    uint8_t *channel = (uint8_t *)group->channels[reader];
    return (wefti_channel_t *)(void *)(channel + group->layout.mirrors +
                                       world_rank * group->layout.mirror_bytes);
}

weft_status_t wefti_mirror_link(weft_group_t *group)
{
    const weft_allocator_t *allocator = group->context->allocator;
    uint32_t count = 0;
    for (uint32_t r = 0; r < group->size; r++) {
        count += group->bases[r] == NULL;
    }
    if (count == 0) {
        return WEFT_OK; /* on all ranks */
    }
    group->put_peers = wefti_alloc(allocator, count * sizeof *group->put_peers);
    WEFT_RETURN_IF_NO_MEMORY(group->put_peers != NULL);
    for (uint32_t r = 0; r < group->size; r++) {
        if (group->bases[r] == NULL) {
            group->put_peers[group->put_peer_count++] = r;
            group->channels[r] = mirror_of(group, group->rank, group->ranks[r]);
        }
    }
    return WEFT_OK;
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

/* To one rank. In a hosted group it is the first one of its host, and its own alarm says that some
 * mirror has one. */
static weft_status_t send_record(const weft_group_t *group, uint32_t peer,
                                 const wefti_fault_t *record)
{
    size_t alarm = offsetof(wefti_channel_t, alarm);
    WEFT_RETURN_IF_ERROR(wefti_mirror_send(group, peer, offsetof(wefti_channel_t, abort), record,
                                           sizeof *record, alarm, 1));
    return wefti_group_is_hosted(group)
               ? wefti_signal_peer(group->endpoint, group->ranks[peer],
                                   group->channel_offset + alarm, 1, WEFTI_LANE_CHANNEL)
               : WEFT_OK;
}

void wefti_mirror_abort(weft_group_t *group, weft_status_t error, const char *text)
{
    const wefti_group_hosts_t *hosts = &group->hosts;
    wefti_fault_t record = {0}; /* not the channel's, which other ranks look at */
    weft_status_t status = WEFT_OK;
    wefti_fault_set(&record, error, text);
    const uint32_t *peers = hosts->count > 0 ? hosts->firsts : group->put_peers;
    uint32_t count = hosts->count > 0 ? hosts->count : group->put_peer_count;
    for (uint32_t i = 0; i < count && status == WEFT_OK; i++) {
        status =
            wefti_group_puts(group, peers[i]) ? send_record(group, peers[i], &record) : WEFT_OK;
    }
    if (status < 0) {
        /* The peers would never learn it otherwise. */
        wefti_endpoint_abort(group->endpoint, error, text);
    }
}

const wefti_channel_t *wefti_mirror_alarmed(const weft_group_t *group)
{
    uint32_t reader = wefti_group_is_hosted(group) ? wefti_group_first(group) : group->rank;
    if (wefti_group_is_hosted(group) &&
        atomic_load_explicit(&group->channels[reader]->alarm.value, memory_order_acquire) == 0) {
        return NULL;
    }
    for (uint32_t i = 0; i < group->put_peer_count; i++) {
        const wefti_channel_t *mirror = mirror_of(group, reader, group->ranks[group->put_peers[i]]);
        /* acquire: the record is complete */
        if (atomic_load_explicit(&mirror->alarm.value, memory_order_acquire) != 0) {
            return mirror;
        }
    }
    return NULL;
}
