/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ranks of a group share, and calls on it.
 *
 *   channel.c     the memory that the ranks share, and the pool that it comes from
 *   fault.c       the first error of a group, written down for all its ranks; broken links
 *   mirror.c      channels of ranks whose memory is not mapped
 *   mirror_put.c  keeps copies of this rank's channel up to date there
 *   attach.c      whether ranks may read each other's plain memory, and doing it
 */
#ifndef WEFT_RUNTIME_GROUP_H
#define WEFT_RUNTIME_GROUP_H

#include <weft/collective.h>

#include "runtime/context/context.h"
#include "runtime/memory/memory.h"
#include "runtime/collective/select.h"
#include "runtime/stream/stream.h"

#define WEFTI_CALLS 64u /* in flight per group; a power of two */
#define WEFTI_POSTING_DATA 8192u
#define WEFTI_POSTING_TINY 40u

/*
 * What a rank says when it enters a call: the call's number, which is what others wait for, what it
 * believes the call to be, and either its data or where its buffers are. Two of them take turns: a
 * rank overwrites one only when all peers have said that they are at the next call, so are done
 * with this one.
 */
typedef struct wefti_posting {
    uint8_t signal[8]; /* value and waiters of a wefti_signal_t: wefti_posting_signal() */
    uint64_t what;     /* operator, type, reduction, order, flags, root: wefti_what() */
    uint64_t count;    /* elements; a hash of the counts where there are many */
    union {
        struct {
            uint64_t send, recv;  /* addresses relative to the rank's region */
            uint32_t lead, trail; /* bytes at both ends that peers do not reach */
            uint64_t longest;     /* all-to-all-v: bytes of this rank's longest block; other V
                                     forms: a hash of where blocks are */
            uint64_t selection;   /* what was asked for, where what says so: selection.digest */
        } at;
        uint8_t tiny[WEFTI_POSTING_TINY]; /* data that fits beside the flag */
    };
    uint8_t data[WEFTI_POSTING_DATA];
} wefti_posting_t;
_Static_assert(sizeof(wefti_posting_t) == 64 + WEFTI_POSTING_DATA, "postings are shared memory");

static inline wefti_signal_t *wefti_posting_signal(wefti_posting_t *posting)
{
    return (wefti_signal_t *)(void *)posting; /* only value and waiters are ever touched */
}

/* The buffers in the rank's own process, for peers that attach to it; in the last line of data. */
typedef struct wefti_addresses {
    uint64_t send, recv;
} wefti_addresses_t;
#define WEFTI_POSTING_ADDRESSES (WEFTI_POSTING_DATA - 64u)

static inline wefti_addresses_t *wefti_posting_addresses(wefti_posting_t *posting)
{
    return (wefti_addresses_t *)(void *)(posting->data + WEFTI_POSTING_ADDRESSES);
}

#define WEFTI_POSTED_REACHABLE (1u << 0)  /* what the operator needs of this rank can be reached */
#define WEFTI_POSTED_DATA (1u << 1)       /* data is in the posting */
#define WEFTI_POSTED_ATTACHABLE (1u << 2) /* addresses are in the posting */
#define WEFTI_POSTED_OPEN (1u << 3)       /* peers reach all of the rank's buffers */
#define WEFTI_POSTED_IN_PLACE (1u << 4)   /* they can be taken for in place, */
#define WEFTI_POSTED_OUT_OF_PLACE (1u << 5) /* or for out of place; where one is empty for both */

/* what: operator 8, type 8, reduction 4, order 2, asked for 1, flags 8 (from 24), root 16, and 16
 * bits of the digest of what was asked for */
#define WEFTI_WHAT_ORDER_SHIFT 20
#define WEFTI_WHAT_WANTED (1u << 22)
#define WEFTI_WHAT_FUSED (1u << 23) /* several of a batch; count is a hash of theirs */
#define WEFTI_WHAT_ROOT_SHIFT 32
#define WEFTI_WHAT_SELECTION_SHIFT 48
#define WEFTI_WHAT_SELECTION_MASK                                                                  \
    (0xffffull << WEFTI_WHAT_SELECTION_SHIFT | 7ull << WEFTI_WHAT_ORDER_SHIFT)
#define WEFTI_POSTED_HELPS (1u << 6) /* ranks outnumber cores: any rank may do any share */
#define WEFTI_WHAT_FLAGS_SHIFT 24
#define WEFTI_WHAT_FLAGS_MASK ((uint64_t)0xff << WEFTI_WHAT_FLAGS_SHIFT)

/*
 * What one rank shares with the others of a group: at the same offset of every rank's region.
 *
 * Two postings are enough: a rank posts call k + 2 only after it saw all peers at k + 1, and a peer
 * is at k + 1 only after it finished k. The same holds for the halves of the staging buffers, so
 * nothing is acknowledged.
 */
typedef struct wefti_channel {
    wefti_signal_t staged; /* rounds of staging that this rank has filled in */
    wefti_signal_t done;   /* calls in which this rank is done with the peers' memory */
    struct {
        _Atomic uint32_t state; /* 0 none, 1 being written, 2 readable */
        int32_t status;
        char text[WEFTI_ABORT_TEXT_BYTES];
    } abort;
    uint8_t alarm[8]; /* in mirrors, value and waiters of a counter: 1 says abort is readable */
    _Atomic uint32_t claimed; /* the last call in which some rank took this rank's share upon it */
    uint8_t pad[12];
    wefti_posting_t postings[2];
} wefti_channel_t;
_Static_assert(offsetof(wefti_channel_t, postings) == 768, "channels are shared memory");

/* From s to d: in s's channel, number d. Followed by two buffers. */
typedef struct wefti_mailbox {
    wefti_signal_t posted;   /* pieces that s has put in */
    wefti_signal_t consumed; /* in d's channel, number s: pieces that d has taken out */
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
typedef struct wefti_mend {
    uint8_t flushed[8]; /* value and waiters of a counter: the epoch up to which nothing of the
                         * peer's is in flight any more, */
    uint8_t reset[8];   /* and up to which its channel is reset */
    uint32_t failed[2]; /* by epoch: the last call that ended with an error there */
    uint8_t pad[40];
} wefti_mend_t;
_Static_assert(sizeof(wefti_mend_t) == 64, "mends are shared memory");

/* Where the parts of a channel are, from its start; equal on all ranks of a context. */
typedef struct wefti_channel_layout {
    size_t staging, staging_bytes; /* two halves of staging_bytes */
    size_t pairs, pair_bytes;      /* world_size mailboxes with their buffers */
    size_t area;                   /* counters of schedules; wefti_area_lanes() lanes */
    size_t mirrors, mirror_bytes;  /* world_size mirrors (mirror.c); 0: no rank needs one */
    size_t mends;                  /* world_size of wefti_mend_t, where there are mirrors */
    size_t total_bytes;
} wefti_channel_layout_t;

#define WEFTI_POOLS 8u
#define WEFTI_POOL_CHANNELS 16u

/* Where the context's groups take their channels from. Created with its first group. */
typedef struct wefti_channels {
    wefti_channel_layout_t layout;
    size_t offsets[WEFTI_POOLS]; /* of each pool in the region */
    uint32_t pool_count;
    uint16_t used[WEFTI_POOLS]; /* bits of channels */
    uint32_t last_number;       /* highest number that a destroyed group's calls had */
    /* Of used: this rank is done with them, but a group broke there. Under the context's lock, for
     * a stream's thread may be the last one that holds such a group. */
    uint16_t retired[WEFTI_POOLS];
    uint64_t attach_nonce; /* attach.c */
} wefti_channels_t;

void wefti_channel_layout(wefti_channel_layout_t *layout, uint32_t world_size,
                          size_t staging_bytes);
/* One more pool. Collective over the world. */
weft_status_t wefti_channels_grow(weft_context_t *context);

/* The context's, made at the first call. NULL: out of memory. */
wefti_channels_t *wefti_channels_get(weft_context_t *context);
static inline wefti_channels_t *wefti_channels_of(const weft_context_t *context)
{
    return wefti_part_find(context, WEFTI_PART_CHANNELS);
}
/* The peer's bytes at offset, or NULL when they are not within its region. */
uint8_t *wefti_memory_of_peer(const weft_group_t *group, uint32_t rank, uint64_t offset,
                              uint64_t bytes);

typedef enum wefti_call_state {
    WEFTI_CALL_FREE = 0,
    WEFTI_CALL_ISSUED,
    WEFTI_CALL_RECOVERING,
    WEFTI_CALL_PAIRS,
    WEFTI_CALL_POSTED,
    WEFTI_CALL_REFUSED,
    WEFTI_CALL_MOVING,
    WEFTI_CALL_ROUND,
    WEFTI_CALL_RESULTS,
    WEFTI_CALL_CHECK,
    WEFTI_CALL_COMPARE,
    WEFTI_CALL_DONE,
} wefti_call_state_t;

/* One end of a send or receive. */
typedef struct wefti_pair {
    uint32_t peer;
    bool sends;
    const uint8_t *data;
    uint64_t count, bytes, moved;
    uint32_t piece; /* number of the next piece */
    uint8_t state;
    weft_dtype_t dtype;
    bool direct;
    wefti_blocked_t blocked; /* signal NULL: it is not */
} wefti_pair_t;

typedef struct wefti_path wefti_path_t;

/* What a call published since it looked for sleepers. */
#define WEFTI_UNSETTLED_POSTING (1u << 0)
#define WEFTI_UNSETTLED_ROUND (1u << 1)
#define WEFTI_UNSETTLED_DONE (1u << 2)

typedef struct wefti_call {
    weft_group_t *group;
    wefti_call_state_t state;
    uint32_t number, order;
    const wefti_path_t *path;
    uint32_t peer;      /* how many peers were seen in this state */
    uint32_t unsettled; /* WEFTI_UNSETTLED_* */

    /* The request. */
    weft_collective_t op;
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    uint32_t root;
    uint32_t elem_bytes;
    const uint8_t *send;
    uint8_t *recv;
    uint64_t count; /* elements of one block */
    /* V forms: [4 * size] send counts, send displacements, receive counts, displacements, in
     * elements. Stays with the place in the ring. */
    uint64_t *counts;

    /* What ranks post of it, and learn from the postings. */
    uint64_t what, posted_count;
    uint32_t flags;    /* of all ranks' postings, and-ed */
    bool certain;      /* all ranks post data: nothing of them needs to be known to say so */
    uint64_t longest;  /* bytes of the longest block of any rank */
    size_t area_bytes; /* data that this rank posts, if it fits a posting */
    struct {           /* all-reduce: elements at both ends that some peer does not reach */
        uint64_t lead, trail;
    } ends;

    struct { /* path staged */
        uint64_t round, rounds;
        size_t piece_bytes; /* of each block in a round */
        bool two_shot;
    } staged;
    struct {                                /* path schedule */
        bool possible;                      /* postings carry what it needs */
        const weft_algorithm_t *wanted;     /* requested by name, or NULL */
        const weft_algorithm_t *by_cost[2]; /* memory that is reached, plain; NULL: executors */
        const weft_algorithm_t *algorithm;  /* NULL: executors */
        struct wefti_run *run;
    } schedule;
    struct { /* sends and receives; count 0: a collective */
        wefti_pair_t *list;
        uint32_t count;
        wefti_pair_t single;
        wefti_pair_t *batch; /* [WEFTI_CALLS], from the first batch in this place of the ring on */
    } pairs;
    struct wefti_fused *fused;      /* calls of a batch that this one executes, or NULL */
    struct wefti_fused *fused_kept; /* from the first fused call in this place of the ring on */

    struct {                          /* while blocked */
        const wefti_signal_t *signal; /* last; tells which rank is late */
        uint32_t target;
        uint64_t late_since_ns;        /* when it was first found blocked */
        uint64_t departed_since_ns;    /* when it was first found to wait for a rank that left */
        uint64_t since_ns, checked_ns; /* on a stream: blocked since; last looked at the ranks */
    } wait;
} wefti_call_t;

/*
 * A call that ended before this rank saw all peers' postings, because it needed nothing of them.
 * They are looked at before the next call posts: until then peers may read this rank's former
 * posting, and a disagreement is found there.
 */
typedef struct wefti_debt {
    bool open;
    uint32_t number, peer; /* peer: how many were seen */
    uint64_t what, count;
} wefti_debt_t;

/* link.c */
typedef struct wefti_group_link {
    pthread_mutex_t lock;          /* guards epoch and text */
    _Atomic uint32_t seen;         /* of the endpoint's faults, how many were looked at */
    _Atomic uint32_t broken;       /* a link fault from which the group has not recovered yet */
    uint32_t epoch;                /* faults between ranks of the group */
    char text[240];                /* of the last one */
    _Atomic uint32_t issued;       /* the last number that was given to a call, */
    _Atomic uint32_t issued_order; /* and that call's order */
    _Atomic uint32_t order;        /* the last call that was issued at the last recovery */
    /* Calls run one after the other, so what follows has no lock. */
    bool told;            /* some call returned the error */
    bool owes;            /* calls up to fail_until end with it */
    uint32_t failed;      /* the last one that did, here */
    uint32_t fail_until;  /* on all ranks */
    uint32_t step, mends; /* of link recovery: the step at hand, and the epoch */
    uint32_t peer;        /* how many were seen in this step */
} wefti_group_link_t;

struct weft_group {
    weft_context_t *context;           /* retained */
    _Atomic uint32_t references;       /* the user's, and one per call on a stream */
    void (*free)(weft_group_t *group); /* at the last release */
    wefti_endpoint_t *endpoint;
    uint32_t size, rank;
    uint32_t *ranks; /* in the world */
    bool whole_world;
    uint32_t pool, channel;     /* which of the context's channels */
    bool retires;               /* the channel, when the last one lets go of the group */
    size_t channel_offset;      /* in every rank's region */
    uint8_t **bases;            /* the ranks' regions, as seen here; NULL: over a put link */
    wefti_channel_t **channels; /* over a put link: its mirror in this rank's region */
    uint8_t *put_links;         /* [size * size] as in wefti_links_t; NULL: none in the group */
    uint32_t *put_peers;        /* [put_peer_count] to whom this rank has put links */
    uint32_t put_peer_count;
    wefti_channel_layout_t layout;
    bool attach;         /* all ranks may read and write each other's plain memory: attach.h */
    size_t region_limit; /* adresses in postings are checked against it; SIZE_MAX: one process */
    wefti_fault_t fault;
    wefti_group_link_t link;

    uint32_t number;          /* of the last collective; the same on all ranks */
    uint32_t issued;          /* calls so far, sends and receives too; the issuing thread's */
    wefti_signal_t completed; /* of these: calls run in the order in which they were issued */
    uint32_t staged;          /* how often rounds were published */
    uint32_t area;            /* which half of the staging buffers, by its lowest bit */
    wefti_call_t calls[WEFTI_CALLS];
    const void **sources; /* [size] */
    void **destinations;  /* [size] */

    wefti_selection_t selection;      /* orders, algorithms */
    uint32_t *host_sizes, host_count; /* of runs of ranks that share memory; 0: one, or no runs */
    uint32_t *host_of, host_of_count; /* [size]: ranks that share memory; 0: all do */
    uint32_t *rail_of;      /* [size] as algorithms have it; NULL: hosts have one card each */
    uint64_t posting_bytes; /* blocks up to this go with the postings */
    struct wefti_schedules *schedules; /* schedule_cache.h; NULL until one is needed */
    bool interpret;                    /* tests: no executors */

    struct wefti_batch *batch; /* batch.h; with the first batch */
    wefti_pair_t *pairs;       /* [WEFTI_CALLS], sends and receives of the batch at hand */
    uint32_t pair_count;
    bool batching;                   /* calls are recorded: by the batch, or by recorder */
    struct wefti_recorder *recorder; /* batch.h; NULL: no capture is open */
    uint32_t *sent, *received;       /* pieces so far, per peer */
    wefti_debt_t debt;
    struct wefti_device_calls *device_calls; /* on a card, from the first call on; else NULL */
    const char *path; /* of the last finished collective: "posting", "direct", "attached", "staged",
                         "schedule" */
    const char *algorithm; /* likewise; "one-shot", "mesh" of executors, or label */
    char label[64];
    const weft_algorithm_t *labelled; /* whose label it is */
};

/* As many lanes as schedules may have: fewer in large worlds, where each needs a line per rank. */
static inline uint32_t wefti_area_lanes(uint32_t world_size)
{
    return world_size <= 64 ? WEFTI_MAX_LANES : world_size <= 1024 ? 4 : 1;
}

static inline wefti_posting_t *wefti_posting_of(const weft_group_t *group, uint32_t rank,
                                                uint32_t number)
{
    return &group->channels[rank]->postings[number & 1];
}

static inline uint8_t *wefti_staging_of(const weft_group_t *group, uint32_t rank)
{
    return (uint8_t *)group->channels[rank] + group->layout.staging +
           (group->area & 1u) * group->layout.staging_bytes;
}

/* schedule_cache.c: calls that are under way must not use any of them. */
void wefti_schedules_forget(weft_group_t *group);
void wefti_schedules_destroy(weft_group_t *group);

static inline void wefti_group_release(weft_group_t *group)
{
    /* acq_rel: the last one sees everything the others did */
    if (atomic_fetch_sub_explicit(&group->references, 1, memory_order_acq_rel) == 1) {
        group->free(group);
    }
}
/* fault.c: the first error of the group goes to all its ranks and wakes them. Returns it. */
weft_status_t wefti_group_fail(weft_group_t *group, weft_status_t status);
/* WEFT_OK, or the error of the group or the world, or of a link before the group recovered. */
weft_status_t wefti_group_check(weft_group_t *group);
/* The same without links that can be recovered: errors that are final. */
weft_status_t wefti_group_check_lasting(weft_group_t *group);
/* channel.c: resets this rank's channel to what a new group expects. */
void wefti_group_reset_channel(weft_group_t *group, uint32_t number);
/* mirror.c: a record that a rank behind a put link wrote down, or NULL. */
const wefti_channel_t *wefti_mirror_alarmed(const weft_group_t *group);
/* fault.c. WEFT_OK, or WEFT_ERR_LINK naming the link that broke. */
weft_status_t wefti_link_check(weft_group_t *group);
/* The same for somebody whose put failed: looks for the reason for a while. */
weft_status_t wefti_link_await(weft_group_t *group);
/* Looks at new faults of the endpoint. Called with the lock of group->link. */
void wefti_link_notice(weft_group_t *group);
/* call_recover.c. Before the group is used: faults until then are the past. */
void wefti_link_init(weft_group_t *group, uint32_t fault_count);
/* A call ended with WEFT_ERR_LINK, or will never run because one did. */
void wefti_link_failed(wefti_call_t *call);
/*
 * For a call that is to begin while a link is broken: it ends with the error if none did yet on
 * this rank; else the group is made whole again, with all its ranks (WEFT_IN_PROGRESS: blocked).
 */
weft_status_t wefti_link_mend(wefti_call_t *call, wefti_blocked_t *out_blocked);
/* After that: WEFT_ERR_LINK for calls that ended so on other ranks. */
weft_status_t wefti_link_admit(wefti_call_t *call);
/* A call of a stream that broke with the link: true when no rank waits for it. */
bool wefti_link_excuses(const wefti_call_t *call);
/* Ranks that a mending call waits for: " 3 5". */
void wefti_link_late(const weft_group_t *group, char *text, size_t bytes);
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
/* call_mismatch.c: "all_reduce with 100 x f32 (sum)"; buffer holds 160 bytes. Returns buffer. */
const char *wefti_what_text(uint64_t what, uint64_t count, char *buffer);
weft_status_t wefti_group_mismatch(weft_group_t *group, const wefti_debt_t *own, uint32_t peer);
/* call_late.c: the error of a call that waited too long, for all ranks. */
weft_status_t wefti_group_late(wefti_call_t *call, weft_status_t status);
/* An error for all ranks, when one that the call waits for has left the world without what it waits
 * for; else WEFT_OK. For polls of waits, once endpoint->departed says that some rank has left. */
weft_status_t wefti_group_departed(wefti_call_t *call, uint64_t now);
/* Warns of the late ranks once a call has waited for WEFT_LATE; for its polls. */
void wefti_group_report_late(wefti_call_t *call, uint64_t now);

/*
 * call.c. A place in the ring for the next call; WEFT_AGAIN when 64 are in flight. issue gives it
 * its number; submit hands it to stream (NULL: runs it to the end).
 */
weft_status_t wefti_call_reserve(weft_group_t *group, weft_stream_t *stream,
                                 wefti_call_t **out_call);
weft_status_t wefti_call_submit(wefti_call_t *call, weft_stream_t *stream);
/* The same for host memory, whatever the context's device is; stream runs on the host. */
weft_status_t wefti_call_submit_host(wefti_call_t *call, weft_stream_t *stream);
/* WEFT_OK: done; WEFT_IN_PROGRESS: blocked on *out_blocked (signal NULL: on an earlier call). */
weft_status_t wefti_call_advance(wefti_call_t *call, wefti_blocked_t *out_blocked);
/* To the end, by the transport's way of waiting. A user's thread moves inline streams on meanwhile,
 * since other ranks may need that work before they reach this call. */
typedef enum wefti_waits { WEFTI_WAITS_ON_CALLER, WEFTI_WAITS_ON_STREAM } wefti_waits_t;
weft_status_t wefti_call_run(wefti_call_t *call, wefti_waits_t waits);
/* For streams: once more; looks for errors and at the time-out, too. */
weft_status_t wefti_call_poll(wefti_call_t *call, wefti_blocked_t *out_blocked);
/* Waits until everything issued on this rank is done. */
weft_status_t wefti_group_drain(weft_group_t *group);
/* Waits until stream is done with what was enqueued on it up to target, whatever becomes of it. */
void wefti_group_leave_stream(weft_group_t *group, weft_stream_t *stream, uint32_t target,
                              const char *what);

/*
 * call_staged.c. An area holds what a rank shows its peers of one round: of its one block the same
 * piece to all, or for each peer a piece of that peer's block.
 */
typedef const uint8_t *(*wefti_area_fn)(const wefti_call_t *call, uint32_t rank);
/* Fills longest and area_bytes. */
void wefti_call_measure(wefti_call_t *call);

/* Of calls the operator is known. */
static inline const wefti_collective_t *wefti_call_op(const wefti_call_t *call)
{
    return &wefti_collectives[call->op];
}

/* This rank's buffers. */
static inline wefti_buffer_shape_t wefti_call_send_shape(const wefti_call_t *call)
{
    return wefti_send_shape(call->op, call->group->rank, call->root, call->group->size, call->count,
                            call->counts);
}

static inline wefti_buffer_shape_t wefti_call_recv_shape(const wefti_call_t *call)
{
    return wefti_recv_shape(call->op, call->group->rank, call->root, call->group->size, call->count,
                            call->counts);
}

bool wefti_call_fits_posting(const wefti_call_t *call);
weft_status_t wefti_call_plan_rounds(wefti_call_t *call);
/* All-reduce: whether its rounds are a mesh (two shots) and not one-shot. */
bool wefti_call_stages_two_shots(const wefti_call_t *call);
/* This rank's part of round into area. */
void wefti_call_stage(const wefti_call_t *call, uint8_t *area, uint64_t round, size_t piece_bytes);
/* What this rank gets in round, out of all areas. */
weft_status_t wefti_call_take(wefti_call_t *call, wefti_area_fn area, uint64_t round,
                              size_t piece_bytes);
/* Two-shot all-reduce: this rank's shard of the round to recv and to its own area; then the
 * others'. */
weft_status_t wefti_call_reduce_shard(wefti_call_t *call, wefti_area_fn area);
void wefti_call_take_results(wefti_call_t *call, wefti_area_fn area);
/* All-reduce in place of all but a few elements at the ends. */
void wefti_call_stage_ends(const wefti_call_t *call, uint8_t *area);
weft_status_t wefti_call_take_ends(wefti_call_t *call, wefti_area_fn area);

/* call_direct.c: whether peers reach what they need of this rank, said in posting; then moving it.
 */
bool wefti_call_reach(wefti_call_t *call, wefti_posting_t *posting);
weft_status_t wefti_call_all_reduce_share(wefti_call_t *call, uint32_t rank);
/* call_help.c: WEFTI_POSTED_HELPS or 0; all shares that no rank has claimed. */
uint32_t wefti_call_offer_help(const wefti_call_t *call);
weft_status_t wefti_call_all_reduce_helping(wefti_call_t *call);
weft_status_t wefti_call_move(wefti_call_t *call);
/* All-to-all-v: what every rank sends here is what is expected. */
weft_status_t wefti_call_check_table(wefti_call_t *call);
#define WEFTI_TABLE_RANKS (WEFTI_POSTING_ADDRESSES / 16)

/* call_check.c: the result must be equal on all ranks, and WEFT_CHECK asks for it to be. */
bool wefti_call_is_checked(const wefti_call_t *call);
void wefti_call_post_digests(wefti_call_t *call);
weft_status_t wefti_call_compare_digests(wefti_call_t *call, uint32_t peer);

/* call_pair.c */
weft_status_t wefti_pairs_advance(wefti_call_t *call, wefti_blocked_t *out_blocked);
/* Whether one of several could go on: a wait is for one of them only. */
bool wefti_pairs_ready(const wefti_call_t *call);
bool wefti_pair_is_done(const wefti_pair_t *pair);
/* Those of the batch at hand. */
weft_status_t wefti_pairs_submit(weft_group_t *group, weft_stream_t *stream);

#endif
