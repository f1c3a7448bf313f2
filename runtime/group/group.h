/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks of a group, the memory that they share, and its first error. Calls are above it.
 *
 *   channel.h     the memory that the ranks share, and the pool that it comes from
 *   hosts.c       the hosts of large groups
 *   fault.c       the first error of a group, written down for all its ranks; broken links
 *   mirror.c      channels of ranks whose memory is not mapped
 *   mirror_put.c  keeps copies of this rank's channel up to date there
 *   attach.c      whether ranks may read each other's plain memory, and doing it
 */
#ifndef WEFT_RUNTIME_GROUP_H
#define WEFT_RUNTIME_GROUP_H

#include "runtime/group/channel.h"
#include "runtime/memory/memory.h"
#include "runtime/stream/record.h"

/* Faults of links between ranks of the group. */
typedef struct wefti_group_link {
    pthread_mutex_t lock;    /* guards epoch and text */
    _Atomic uint32_t seen;   /* of the endpoint's faults, how many were looked at */
    _Atomic uint32_t broken; /* a link fault from which the group has not recovered yet */
    uint32_t epoch;          /* faults between ranks of the group */
    char text[240];          /* of the last one */
} wefti_group_link_t;

/* Of a group whose ranks agree on calls by hosts; count 0: of any other. */
typedef struct wefti_group_hosts {
    uint32_t count, own;  /* hosts; this rank's */
    uint32_t *firsts;     /* [count] the first rank of each, which speaks for it */
    uint32_t *locals;     /* [local_count] the ranks of this host, in ascending order */
    uint32_t local_count; /* locals[0] == firsts[own] */
} wefti_group_hosts_t;

/* Groups of more ranks than this, on several hosts, agree on calls by hosts: their ranks open links
 * to few others. Others take one message from each rank to each, which is quicker. A variable for
 * tests alone, which set it before any rank begins. */
#define WEFTI_MESH_RANKS 32u
extern uint32_t wefti_mesh_ranks;

struct weft_group {
    struct wefti_calls *calls;         /* collective/call.h */
    weft_context_t *context;           /* retained */
    _Atomic uint32_t references;       /* the user's, and one per call on a stream */
    void (*free)(weft_group_t *group); /* at the last release */
    wefti_endpoint_t *endpoint;
    uint32_t size, rank;
    uint32_t *ranks; /* in the world */
    bool whole_world;
    uint32_t channel;           /* which of the context's channels */
    bool retires;               /* the channel, when the last one lets go of the group */
    size_t channel_offset;      /* in every rank's region */
    uint8_t **bases;            /* the ranks' regions, as seen here; NULL: over a put link */
    wefti_channel_t **channels; /* over a put link: its mirror in this rank's region */
    uint32_t *put_peers;        /* [put_peer_count] to whom this rank has put links */
    uint32_t put_peer_count;
    wefti_group_hosts_t hosts;
    wefti_channel_layout_t layout;
    struct {
        size_t offset, half_bytes; /* in every rank's region: two halves, which take turns */
        size_t committed[2];       /* bytes from the start of this rank's that have memory */
    } staging;
    bool attach; /* all ranks may read and write each other's plain memory: attach.h */
    wefti_fault_t fault;
    wefti_group_link_t link;
    bool recovers; /* from broken links; else they break the group */
};

static inline void wefti_group_release(weft_group_t *group)
{
    /* acq_rel: the last one sees everything the others did */
    if (atomic_fetch_sub_explicit(&group->references, 1, memory_order_acq_rel) == 1) {
        group->free(group);
    }
}

static inline wefti_call_slot_t *wefti_call_slot_of(const weft_group_t *group, uint32_t rank,
                                                    uint32_t number)
{
    return &group->channels[rank]->slots[number & 1];
}

/* hosts.c: finds the hosts of a large group whose put links are known. */
weft_status_t wefti_group_find_hosts(weft_group_t *group);
/* Whether its ranks agree on calls by hosts. */
static inline bool wefti_group_is_hosted(const weft_group_t *group)
{
    return group->hosts.count > 0;
}
/* The rank that speaks for this rank's host. */
static inline uint32_t wefti_group_first(const weft_group_t *group)
{
    return group->hosts.firsts[group->hosts.own];
}
static inline wefti_meet_box_t *wefti_meet_box(const weft_group_t *group, uint32_t rank,
                                               uint32_t box)
{
    return (wefti_meet_box_t *)(void *)((uint8_t *)group->channels[rank] + group->layout.meet +
                                        box * sizeof(wefti_meet_box_t));
}

/* channel.c: memory for the first bytes of one half of this rank's staging, before this rank or a
 * peer touches them. */
weft_status_t wefti_group_commit_half(weft_group_t *group, uint32_t half, size_t bytes);
/* The same for both halves, */
static inline weft_status_t wefti_group_commit_staging(weft_group_t *group, size_t bytes)
{
    for (uint32_t half = 0; half < 2; half++) {
        if (bytes > group->staging.committed[half]) {
            WEFT_RETURN_IF_ERROR(wefti_group_commit_half(group, half, bytes));
        }
    }
    return WEFT_OK;
}
/* and where the halves are one piece of memory, of which the first bytes are used. */
static inline weft_status_t wefti_group_commit_work(weft_group_t *group, size_t bytes)
{
    size_t half_bytes = group->staging.half_bytes;
    size_t first = bytes < half_bytes ? bytes : half_bytes, rest = bytes - first;
    if (first > group->staging.committed[0]) {
        WEFT_RETURN_IF_ERROR(wefti_group_commit_half(group, 0, first));
    }
    return rest <= group->staging.committed[1] ? WEFT_OK : wefti_group_commit_half(group, 1, rest);
}
/* As weft_group_params_t asks for it. */
static inline uint64_t wefti_group_staging_bytes(const weft_group_t *group)
{
    return 2 * (uint64_t)group->staging.half_bytes;
}
/* Of a rank whose region is mapped here. */
static inline uint8_t *wefti_group_staging(const weft_group_t *group, uint32_t rank)
{
    return group->bases[rank] + group->staging.offset;
}

/* The peer's bytes at offset, or NULL when they are not within its region. */
uint8_t *wefti_memory_of_peer(const weft_group_t *group, uint32_t rank, uint64_t offset,
                              uint64_t bytes);

/* fault.c: the first error of the group goes to all its ranks and wakes them. Returns it. */
weft_status_t wefti_group_fail(weft_group_t *group, weft_status_t status);
/* The same of an error that ranks on other hosts find by themselves. */
weft_status_t wefti_group_fail_here(weft_group_t *group, weft_status_t status);
/* WEFT_OK, or the error of the group or the world, or of a link before the group recovered. */
weft_status_t wefti_group_check(weft_group_t *group);
/* The same without links that can be recovered: errors that are final. */
weft_status_t wefti_group_check_lasting(weft_group_t *group);
/* channel.c: this rank's channel and mirrors as a new group expects them, whose calls have numbers
 * after number. Their former users are all done with them. */
void wefti_group_reset_channel(weft_group_t *group, uint32_t number);
/* mirror.c: a record that a rank behind a put link wrote down, or NULL. */
const wefti_channel_t *wefti_mirror_alarmed(const weft_group_t *group);
/* fault.c. WEFT_OK, or WEFT_ERR_LINK naming the link that broke. */
weft_status_t wefti_link_check(weft_group_t *group);
/* Looks at new faults of the endpoint. Called with the lock of group->link. */
void wefti_link_notice(weft_group_t *group);
/* The quick half of the check. */
static inline bool wefti_link_broken(const weft_group_t *group)
{
    return group->put_peer_count > 0 &&
           (atomic_load_explicit(&group->link.broken, memory_order_relaxed) != 0 ||
            atomic_load_explicit(&group->endpoint->link_faults, memory_order_relaxed) >
                atomic_load_explicit(&group->link.seen, memory_order_relaxed));
}
/* The quick half of the lasting one, for every try of a blocked call: whether some rank wrote an
 * error down. */
static inline bool wefti_group_ended(const weft_group_t *group)
{
    return atomic_load_explicit(&group->channels[group->rank]->abort.state, memory_order_relaxed) !=
               0 ||
           (group->put_peer_count > 0 && wefti_mirror_alarmed(group) != NULL);
}
static inline bool wefti_group_broken(const weft_group_t *group)
{
    return wefti_group_ended(group) || wefti_link_broken(group);
}

#endif
