/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels over put links. A rank cannot load what a peer on another host has in its channel, so
 * the peer writes it here: into its mirror in this rank's channel, which begins like the channel
 * itself, so that readers do not distinguish hosts.
 *
 *   rank a                                   rank b, on another host
 *   own channel: call slot, done, mailboxes    channel: mirrors[a]: the same of a
 *        |                                                ^
 *        '---- put what changed, then signal ------------'
 *
 * Mirrored are call slots, done, the abort record and the mailboxes of the two; staging is not.
 */
#ifndef WEFT_RUNTIME_MIRROR_H
#define WEFT_RUNTIME_MIRROR_H

#include "runtime/group/group.h"

/* Whether this rank reaches the other one's memory by put and signal only. */
static inline bool wefti_group_puts(const weft_group_t *group, uint32_t rank)
{
    return group->put_peer_count > 0 && group->bases[rank] == NULL;
}

#define WEFTI_MIRROR_MAILBOX sizeof(wefti_channel_t) /* where it is in a mirror */
/* Finds the put links of a group, which are those between hosts, and sets channels of ranks behind
 * them. */
weft_status_t wefti_mirror_link(weft_group_t *group);
/* Puts bytes, if any, into this rank's mirror at the peer. */
weft_status_t wefti_mirror_put(const weft_group_t *group, uint32_t peer, size_t at,
                               const void *data, size_t bytes);
/* The same, then raises a counter there. */
weft_status_t wefti_mirror_send(const weft_group_t *group, uint32_t peer, size_t at,
                                const void *data, size_t bytes, size_t counter, uint32_t value);
/* An error to all peers over put links; of a hosted group, to the first rank of each host. */
void wefti_mirror_abort(weft_group_t *group, weft_status_t error, const char *text);

/* mirror_put.c: what changed in this rank's channel to all peers over put links. An error breaks
 * the group. */
void wefti_mirror_slot(weft_group_t *group, const wefti_call_slot_t *own, uint32_t number,
                       size_t data_bytes);
void wefti_mirror_done(weft_group_t *group, uint32_t number);
/* To one peer, what the mailboxes of the two say: a piece (head and bytes at data) was put in; a
 * piece was taken out. */
weft_status_t wefti_mirror_posted(weft_group_t *group, uint32_t peer, wefti_mailbox_t *own,
                                  uint32_t piece, const void *data, size_t bytes);
weft_status_t wefti_mirror_consumed(weft_group_t *group, uint32_t peer, uint32_t piece);

/* Of what owner sends to other, or has received from it. */
static inline wefti_mailbox_t *wefti_mailbox_of(const weft_group_t *group, uint32_t owner,
                                                uint32_t other)
{
    size_t at = owner != group->rank && wefti_group_puts(group, owner)
                    ? WEFTI_MIRROR_MAILBOX /* in a mirror there is one, with this rank */
                    : group->layout.pairs + other * group->layout.pair_bytes;
    return (wefti_mailbox_t *)(void *)((uint8_t *)group->channels[owner] + at);
}

/* Of each of its two buffers. */
static inline size_t wefti_mailbox_bytes(const wefti_channel_layout_t *layout)
{
    return (layout->pair_bytes - sizeof(wefti_mailbox_t)) / 2 / 64 * 64;
}

/* The same for a call slot with data_bytes in its data, to ranks behind put links, too. */
static inline void wefti_call_slot_publish(weft_group_t *group, wefti_call_slot_t *own,
                                           uint32_t number, size_t data_bytes)
{
    if (group->put_peer_count > 0) {
        wefti_mirror_slot(group, own, number, data_bytes);
    }
    wefti_signal_publish(&own->signal, number);
}

#endif
