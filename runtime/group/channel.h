/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that ranks of a group share, which is the same in every rank's region, and the pool
 * that it comes from.
 *
 *   channel    two call slots, counters, the first error   wefti_channel_t
 *   mailboxes  one per rank of the world, with two buffers each
 *   area       counters of schedules
 *   meet       of the first rank of a host: what its host and other hosts say of a call
 *   mirrors    of ranks whose memory is not mapped (mirror.h)
 *   recovery   one record per rank of the world
 *
 * and, elsewhere in the region, staging: two halves, which take turns. Each rank commits memory to
 * its own when a call needs it.
 */
#ifndef WEFT_RUNTIME_CHANNEL_H
#define WEFT_RUNTIME_CHANNEL_H

#include <weft/collective.h>

#include "ops/signature.h"
#include "runtime/context/context.h"

#define WEFTI_SLOT_DATA 8192u
#define WEFTI_SLOT_TINY 40u

/*
 * What a rank says when it enters a call: the call's number, which is what others wait for, what it
 * believes the call to be, and either its data or where its buffers are. Two of them take turns: a
 * rank overwrites one only when all peers have said that they are at the next call, so are done
 * with this one.
 */
typedef struct wefti_call_slot {
    wefti_signal_t signal; /* the number of the call */
    uint64_t what;         /* operator, type, reduction, order, flags, root: wefti_what() */
    uint64_t count;        /* elements; a hash of the counts where there are many */
    union {
        struct {
            uint64_t send, recv;  /* addresses relative to the rank's region */
            uint32_t lead, trail; /* bytes at both ends that peers do not reach */
            uint64_t longest;     /* all-to-all-v: bytes of this rank's longest block; other V
                                     forms: a hash of where blocks are */
            uint64_t selection;   /* what was asked for, where what says so: selection.digest */
        } at;
        uint8_t tiny[WEFTI_SLOT_TINY]; /* data that fits beside the flag */
    };
    uint8_t data[WEFTI_SLOT_DATA];
} wefti_call_slot_t;
_Static_assert(sizeof(wefti_call_slot_t) == 64 + WEFTI_SLOT_DATA, "call slots are shared memory");

/* The buffers in the rank's own process, for peers that attach to it; in the last line of data. */
typedef struct wefti_addresses {
    uint64_t send, recv;
} wefti_addresses_t;
#define WEFTI_SLOT_ADDRESSES (WEFTI_SLOT_DATA - 64u)

static inline wefti_addresses_t *wefti_call_slot_addresses(wefti_call_slot_t *slot)
{
    return (wefti_addresses_t *)(void *)(slot->data + WEFTI_SLOT_ADDRESSES);
}

#define WEFTI_POSTED_REACHABLE (1u << 0)  /* what the operator needs of this rank can be reached */
#define WEFTI_POSTED_DATA (1u << 1)       /* data is in the call slot */
#define WEFTI_POSTED_ATTACHABLE (1u << 2) /* addresses are in the call slot */
#define WEFTI_POSTED_OPEN (1u << 3)       /* peers reach all of the rank's buffers */
#define WEFTI_POSTED_IN_PLACE (1u << 4)   /* they can be taken for in place, */
#define WEFTI_POSTED_OUT_OF_PLACE (1u << 5) /* or for out of place; where one is empty for both */
#define WEFTI_POSTED_HELPS (1u << 6)        /* ranks outnumber cores: any rank may do any share */

/*
 * What one rank shares with the others of a group: at the same offset of every rank's region.
 *
 * Two slots are enough: a rank posts call k + 2 only after it saw all peers at k + 1, and a peer
 * is at k + 1 only after it finished k. The same holds for the halves of the staging buffers, so
 * nothing is acknowledged.
 */
typedef struct wefti_channel {
    wefti_signal_line_t staged; /* rounds of staging that this rank has filled in */
    wefti_signal_line_t done;   /* calls in which this rank is done with the peers' memory */
    wefti_fault_t abort;
    wefti_signal_t alarm;     /* in mirrors: 1 says that abort is readable */
    _Atomic uint32_t claimed; /* the last call in which some rank took this rank's share upon it */
    /* Of calls that ranks agree on by hosts: what this rank has sent (wefti_meet_sent_value). */
    wefti_signal_t sent;
    uint8_t pad[4];
    wefti_call_slot_t slots[2];
} wefti_channel_t;
_Static_assert(offsetof(wefti_channel_t, slots) == 768, "channels are shared memory");

/* From s to d: in s's channel, number d. Followed by two buffers. */
typedef struct wefti_mailbox {
    wefti_signal_line_t posted;   /* pieces that s has put in */
    wefti_signal_line_t consumed; /* in d's channel, number s: pieces that d has taken out */
    struct {
        uint64_t what, count, send;
    } head[2];
    uint8_t pad[80];
} wefti_mailbox_t;
_Static_assert(sizeof(wefti_mailbox_t) == 384, "mailboxes are shared memory");

/*
 * What a peer reports to this rank while a group recovers from a link failure: in this rank's
 * channel, by the peer's number. Epochs count the link faults of the group.
 */
typedef struct wefti_recovery_report {
    wefti_signal_t flushed; /* the epoch up to which nothing of the peer is in flight any more, */
    wefti_signal_t reset;   /* and up to which its channel is reset */
    uint32_t failed[2];     /* by epoch: the last call that ended with an error there */
    uint8_t pad[40];
} wefti_recovery_report_t;
_Static_assert(sizeof(wefti_recovery_report_t) == 64, "reports are shared memory");

/*
 * Where ranks agree on a call by hosts (collective/call_meet.c): what several ranks posted, in one
 * record. Sides are the first rank, and the first one that posted something else.
 */
#define WEFTI_MEET_DATA 1088u /* of a call slot's data: what messages of errors are made from */
typedef struct wefti_meet_side {
    uint32_t rank;  /* in the group; WEFTI_MEET_NONE: there is no such side */
    uint32_t bytes; /* of its data */
    uint64_t what, count, selection;
} wefti_meet_side_t;
#define WEFTI_MEET_NONE UINT32_MAX

typedef struct wefti_meet_record {
    wefti_meet_side_t sides[2];
    uint32_t flags; /* WEFTI_POSTED_*, and-ed */
    uint8_t pad[60];
    uint8_t data[2][WEFTI_MEET_DATA]; /* of each side */
} wefti_meet_record_t;
_Static_assert(sizeof(wefti_meet_record_t) == 2304, "records travel");

/* What channel->sent is after so many messages to other hosts for call number. */
static inline uint32_t wefti_meet_sent_value(uint32_t number, uint32_t messages)
{
    return number << 5 | messages;
}

/* In the channel of the first rank of a host. Box 0 is what all ranks agreed on, for the ranks of
 * the host; box i + 1 is what came from another host in round i. Records of calls take turns. */
typedef struct wefti_meet_box {
    wefti_signal_line_t came; /* the number of the call */
    wefti_meet_record_t records[2];
} wefti_meet_box_t;

/* Where the parts of a channel are, from its start; equal on all ranks of a context. */
typedef struct wefti_channel_layout {
    size_t pairs, pair_bytes;     /* world_size mailboxes with their buffers */
    size_t area;                  /* counters of schedules; wefti_area_lanes() lanes */
    size_t meet;                  /* wefti_meet_box_t */
    uint32_t meet_boxes;          /* 0: all ranks map each other's memory */
    size_t mirrors, mirror_bytes; /* world_size mirrors (mirror.c); 0: no rank needs one */
    size_t reports;               /* world_size of wefti_recovery_report_t, if there are mirrors */
    size_t total_bytes;
} wefti_channel_layout_t;

#define WEFTI_POOLS 8u
#define WEFTI_POOL_CHANNELS 16u

/* Which channels this rank uses; ranks tell each other before they make a group. */
typedef struct wefti_channel_use {
    uint16_t used[WEFTI_POOLS]; /* bits of channels */
    uint16_t
        retired[WEFTI_POOLS]; /* of used: this rank is done with them, but a group broke there */
    uint32_t last_number;     /* highest number that a destroyed group's calls had */
} wefti_channel_use_t;

typedef struct wefti_pool {
    size_t channels, staging; /* offsets in the region, of WEFTI_POOL_CHANNELS each */
    size_t half_bytes;        /* of the staging of one channel */
    /* of each half, bytes with memory on this rank */
    _Atomic size_t committed[WEFTI_POOL_CHANNELS][2];
} wefti_pool_t;

/* Where the context's groups take their channels from. Created with its first group. */
typedef struct wefti_channels {
    wefti_channel_layout_t layout;
    wefti_pool_t pools[WEFTI_POOLS];
    _Atomic uint32_t pool_count; /* the thread that looks for circles of waits reads it */
    /* Under the context's lock: a stream's thread may be the last one that holds a broken group. */
    wefti_channel_use_t use;
    uint64_t attach_nonce; /* attach.c */
} wefti_channels_t;

/* Bytes of each of the two halves, if a group asks for staging_bytes; 0: by the setting. */
size_t wefti_channels_half_bytes(const weft_context_t *context, uint64_t staging_bytes);
/* One more pool, with such halves. Collective over the world. */
weft_status_t wefti_channels_grow(weft_context_t *context, size_t half_bytes);
/* Channel is pool * WEFTI_POOL_CHANNELS + its number there. WEFT_ERR_NO_MEMORY on this rank alone:
 * the group has it, and not its memory. */
weft_status_t wefti_channels_take(weft_group_t *group, uint32_t channel);
/* number: of the group's last call. broken: the channel stays in use until all ranks retired it. */
void wefti_channels_give_back(const weft_group_t *group, uint32_t number, bool broken);
wefti_channel_use_t wefti_channels_use(weft_context_t *context);
/* All channels of the pool but busy ones become free: their ranks have retired them. */
void wefti_channels_reclaim(weft_context_t *context, uint32_t pool, uint16_t busy);

/* The context's, made at the first call. NULL: out of memory. */
wefti_channels_t *wefti_channels_get(weft_context_t *context);
static inline wefti_channels_t *wefti_channels_of(const weft_context_t *context)
{
    return wefti_part_find(context, WEFTI_PART_CHANNELS);
}

/* As many lanes as schedules may have: fewer in large worlds, where each needs a line per rank. */
static inline uint32_t wefti_area_lanes(uint32_t world_size)
{
    return world_size <= 64 ? WEFTI_MAX_LANES : world_size <= 1024 ? 4 : 1;
}

#endif
