/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call of a group in flight, and what a group keeps for its calls.
 *
 *   submit.c         a place in the ring, issuing, a call on a stream
 *   call_wait.c      running a call to its end, polling it, draining a group
 *   call_advance.c   the state machine and the choice of a path
 *   call_post.c      the posting of a rank, and what it learns from those of the others
 *   call_paths.c, call_schedule.c, call_attached.c   the paths
 *   call_pair.c      sends and receives
 *   call.c           the end of a call, what paths share
 *
 *        reserve         post            choose a path
 *   FREE ──────> ISSUED ──────> POSTED ──┬────────────> MOVING ───────────────┬──┬──> DONE
 *                 │ │ ^           │      └──> ROUND <──> RESULTS ─────────────┤  │
 *      link broke v │ │ recovered └──> REFUSED ──────────────────────────────┼──┤
 *         RECOVERING ─'                                                      v  │
 *                   └──> PAIRS ───────────────────────────┐   CHECK ──> COMPARE ┤
 *                                                         └─────────────────────┘
 *
 *   ISSUED      waits for the calls before it; then posts number, signature and either data or
 *               addresses
 *   RECOVERING  waits for all ranks to recover the group (call_recover.c)
 *   PAIRS       sends and receives: waits for mailboxes
 *   POSTED      waits for the postings of all peers: the same signature, or the group is broken.
 *               All ranks know the same then, and take the same path
 *   MOVING      in its path; the staged path alternates between the next two
 *   ROUND       waits for what peers staged
 *   RESULTS     two-shot: waits for the shards that peers reduced
 *   REFUSED     all ranks return the same error, and the group stays usable
 *   CHECK       WEFT_CHECK=results: the result is complete, its digests are to be posted
 *   COMPARE     waits for the digests of all peers
 *
 * An error in any state leads to DONE. No state blocks: one that cannot go on returns
 * WEFT_IN_PROGRESS and the signal that it needs.
 */
#ifndef WEFT_RUNTIME_CALL_H
#define WEFT_RUNTIME_CALL_H

#include "ops/reduce/reduce.h"
#include "runtime/collective/select.h"
#include "runtime/group/group.h"

#define WEFTI_CALLS 64u /* in flight per group; a power of two */

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
    weft_dtype_t dtype;
    const uint8_t *data;
    uint64_t count, bytes, moved;
    wefti_blocked_t blocked; /* signal NULL: it is not */
    bool sends, direct;
    uint8_t state;
} wefti_pair_t;

typedef struct wefti_path wefti_path_t;
typedef struct wefti_call wefti_call_t;

/* What a call published since it looked for sleepers. */
#define WEFTI_UNSETTLED_POSTING (1u << 0)
#define WEFTI_UNSETTLED_ROUND (1u << 1)
#define WEFTI_UNSETTLED_DONE (1u << 2)

struct wefti_call {
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
    struct {                          /* while blocked */
        const wefti_signal_t *signal; /* last; tells which rank is late */
        uint32_t target;
        uint64_t late_since_ns;        /* when it was first found blocked */
        uint64_t departed_since_ns;    /* when it was first found to wait for a rank that left */
        uint64_t since_ns, checked_ns; /* on a stream: blocked since; last looked at the ranks */
    } wait;
    struct wefti_fused *fused; /* calls of a batch that this one executes, or NULL */
    struct {                   /* sends and receives; count 0: a collective */
        wefti_pair_t *list;
        uint32_t count;
        wefti_pair_t single;
        wefti_pair_t *batch; /* [WEFTI_CALLS], from the first batch in this place of the ring on */
    } pairs;
    struct wefti_fused *fused_kept; /* from the first fused call in this place of the ring on */
};

/*
 * A call that ended before this rank saw all peers' postings, because it needed nothing of them.
 * They are looked at before the next call posts: until then peers may read this rank's former
 * posting, and a disagreement is found there.
 */
typedef struct wefti_deferred {
    bool open;
    uint32_t number, peer; /* peer: how many were seen */
    uint64_t what, count;
} wefti_deferred_t;

/* Link recovery (call_recover.c). Calls run one after the other, so fields without _Atomic have no
 * lock. */
typedef struct wefti_recovery {
    _Atomic uint32_t issued;       /* the last number that was given to a call, */
    _Atomic uint32_t issued_order; /* and that call's order */
    _Atomic uint32_t order;        /* the last call that was issued at the last recovery */
    bool told;                     /* some call returned the error */
    bool owes;                     /* calls up to fail_until end with it */
    uint32_t failed;               /* the last one that did, here */
    uint32_t fail_until;           /* on all ranks */
    uint32_t step, epoch;          /* the step at hand; faults of the group until then */
    uint32_t peer;                 /* how many were seen in this step */
} wefti_recovery_t;

/* What a group keeps for its calls. */
typedef struct wefti_calls {
    wefti_call_t ring[WEFTI_CALLS]; /* by order */
    uint32_t number;                /* of the last collective; the same on all ranks */
    uint32_t issued;                /* calls so far, sends and receives too; the issuing thread's */
    wefti_signal_line_t completed;  /* of these: calls run in the order in which they were issued */
    uint32_t staged;                /* how often rounds were published */
    uint32_t area;                  /* which half of the staging buffers, by its lowest bit */
    /* Hands a call to a stream: wefti_call_submit_host, or device_call.h. */
    weft_status_t (*submit)(wefti_call_t *call, weft_stream_t *stream);
    const void **sources; /* [size] */
    void **destinations;  /* [size] */
    wefti_deferred_t deferred;
    wefti_recovery_t recovery;
    struct wefti_recorder *recorder; /* takes calls instead of the group; NULL: none is open */
    const char *path;                /* of the last collective, for weft_group_last_path */
    const char *algorithm;           /* likewise */
    char label[64];
    const weft_algorithm_t *labelled; /* whose label it is */

    wefti_selection_t selection;       /* orders, algorithms */
    uint64_t posting_bytes;            /* blocks up to this go with the postings */
    struct wefti_schedules *schedules; /* schedule_cache.h; NULL until one is needed */
    bool interpret;                    /* tests: no executors */

    struct wefti_batch *batch;               /* call_batch.c; with the first batch */
    uint32_t *sent, *received;               /* pieces so far, per peer */
    struct wefti_device_calls *device_calls; /* on a device, from the first call on; else NULL */
} wefti_calls_t;

/*
 * One way of moving a call's data. Paths are asked in the order of the table in call_advance.c; the
 * answer may depend only on what all ranks know alike once they saw all postings: the signature,
 * flags (which are and-ed: a rank says in its posting what it can do) and what else postings
 * merged. One more path is one more row there, and a flag WEFTI_POSTED_* where it needs something
 * of a rank.
 */
struct wefti_path {
    const char *name; /* weft_group_last_path */
    bool (*takes)(const wefti_call_t *call);
    /* Ends in wefti_call_complete, or in state MOVING with more to come. An error breaks the group,
     * which the caller of start and advance sees to. */
    weft_status_t (*start)(wefti_call_t *call);
    /* WEFT_OK: again, unless the call is complete; WEFT_IN_PROGRESS: blocked. */
    weft_status_t (*advance)(wefti_call_t *call, wefti_blocked_t *out_blocked);
    /* The algorithm that it executes. */
    const char *(*algorithm)(const wefti_call_t *call);
    /* While blocked: true when it can go on, though not with what it returned. */
    bool (*ready)(const wefti_call_t *call);
    /* The call has failed in state MOVING: the caller gets its buffers back. */
    void (*abandon)(wefti_call_t *call);
};

/* Slots of paths that call the mesh executor, wait for one thing at a time, lend no buffer. */
const char *wefti_path_mesh(const wefti_call_t *call);
bool wefti_path_never_ready(const wefti_call_t *call);
void wefti_path_lends_nothing(wefti_call_t *call);

extern const wefti_path_t wefti_path_posting, wefti_path_schedule, wefti_path_direct,
    wefti_path_staged;
extern const wefti_path_t wefti_path_attached; /* call_attached.c */

static inline weft_status_t wefti_call_blocked_on(wefti_signal_t *signal, uint32_t target,
                                                  wefti_blocked_t *out)
{
    out->signal = signal;
    out->target = target;
    return WEFT_IN_PROGRESS;
}

static inline uint32_t wefti_group_nth_peer(const weft_group_t *group, uint32_t n)
{
    uint32_t r = group->rank + n;
    return r < group->size ? r : r - group->size;
}

/* Reduces the sources of the group to its first destinations. */
static inline weft_status_t wefti_call_reduce(wefti_call_t *call, uint32_t destination_count,
                                              uint64_t elem_count)
{
    const weft_group_t *group = call->group;
    const wefti_calls_t *calls = group->calls;
    weft_reduce_t args = {
        .sources = calls->sources,
        .source_count = group->size,
        .destinations = calls->destinations,
        .destination_count = destination_count,
        .elem_count = elem_count,
        .dtype = call->dtype,
        .reduction = call->reduction,
    };
    return wefti_reduce(&args, group->context->settings.isa);
}

/* call.c: wakes the ranks that sleep on what this call published; see wefti_fence. */
void wefti_call_settle(wefti_call_t *call);
/* The call is complete, with or without an error; the next call of the group may run. */
void wefti_call_finish(wefti_call_t *call);
/* The same after an error. */
void wefti_call_give_up(wefti_call_t *call, weft_status_t status);

/* call_schedule.c. Before the posting: what its size and the user ask for. */
weft_status_t wefti_call_consider(wefti_call_t *call, bool *out_may_post);
/* After all postings: the algorithm to run as a schedule, or none. */
weft_status_t wefti_call_settle_algorithm(wefti_call_t *call);

/* call_offer.c: flags of what this rank's buffers allow, and their places into posting. */
uint32_t wefti_call_offer(wefti_call_t *call, wefti_posting_t *posting);
/* What another rank's posting says of that. */
void wefti_call_merge_offer(wefti_call_t *call, const wefti_posting_t *theirs);
/* AllGatherV and ReduceScatterV: counts and displacements of the blocks, [2 * size]. */
static inline const uint64_t *wefti_call_blocks(const wefti_call_t *call)
{
    return wefti_shared_counts(call->op, call->group->size, call->counts);
}

/* Where the block that rank has in both buffers when in place begins, from the longer one's begin.
 */
uint64_t wefti_call_alias_at(const wefti_call_t *call, uint32_t rank);
/* The in-place rule of the operator holds for this rank's buffers. */
bool wefti_call_is_in_place(const wefti_call_t *call);

/* Known from earlier calls of this size: executors carry it out, whatever the memory is. */
static inline bool wefti_call_only_executors(const wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    uint32_t elem = (uint32_t)__builtin_ctz(call->elem_bytes);
    uint32_t size = 63u - (uint32_t)__builtin_clzll(call->longest | call->elem_bytes);
    return group->calls->selection.only_executors[call->op][elem][size] &&
           call->schedule.wanted == NULL && !group->calls->interpret;
}

/* call_post.c */
weft_status_t wefti_call_post(wefti_call_t *call);
weft_status_t wefti_call_see_postings(wefti_call_t *call, wefti_blocked_t *out_blocked);
/* The postings of the call before that this rank has not read yet (wefti_deferred_t). */
weft_status_t wefti_call_check_deferred(weft_group_t *group, wefti_blocked_t *out_blocked);

/* call_advance.c: the data is where it belongs. */
void wefti_call_complete(wefti_call_t *call);
/* Waits for a signal of every peer's channel; target is the same for all. */
weft_status_t wefti_call_see_signals(wefti_call_t *call, size_t signal_offset, uint32_t target,
                                     wefti_blocked_t *out_blocked);

static inline uint8_t *wefti_staging_of(const weft_group_t *group, uint32_t rank)
{
    return (uint8_t *)group->channels[rank] + group->layout.staging +
           (group->calls->area & 1u) * group->layout.staging_bytes;
}

/* schedule_cache.c: calls that are under way must not use any of them. */
void wefti_schedules_forget(weft_group_t *group);
void wefti_schedules_destroy(weft_group_t *group);

/* call_recover.c. Before the group is used: faults until then are the past. */
void wefti_link_init(weft_group_t *group, uint32_t fault_count);
/* A call ended with WEFT_ERR_LINK, or will never run because one did. */
void wefti_recovery_note(wefti_call_t *call);
/*
 * For a call that is to begin while a link is broken: it ends with the error if none did yet on
 * this rank; else the group is made whole again, with all its ranks (WEFT_IN_PROGRESS: blocked).
 */
weft_status_t wefti_recovery_advance(wefti_call_t *call, wefti_blocked_t *out_blocked);
/* After that: WEFT_ERR_LINK for calls that ended so on other ranks. */
weft_status_t wefti_recovery_admit(wefti_call_t *call);
/* A call of a stream that broke with the link: true when no rank waits for it. */
bool wefti_recovery_excuses(const wefti_call_t *call);
/* Ranks that a recovering call waits for: " 3 5". */
void wefti_recovery_late(const weft_group_t *group, char *text, size_t bytes);
/* call_mismatch.c: "all_reduce with 100 x f32 (sum)"; buffer holds 160 bytes. Returns buffer. */
const char *wefti_what_text(uint64_t what, uint64_t count, char *buffer);
weft_status_t wefti_group_mismatch(weft_group_t *group, const wefti_deferred_t *own, uint32_t peer);
/* call_late.c: the error of a call that waited too long, for all ranks. */
weft_status_t wefti_group_late(wefti_call_t *call, weft_status_t status);
/* An error for all ranks, when one that the call waits for has left the world without what it waits
 * for; else WEFT_OK. For polls of waits, once endpoint->departed says that some rank has left. */
weft_status_t wefti_group_departed(wefti_call_t *call, uint64_t now);
/* Warns of the late ranks once a call has waited for WEFT_LATE; for its polls. */
void wefti_group_report_late(wefti_call_t *call, uint64_t now);

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

/* call_attached.c: addresses of this rank's buffers into posting; false when peers may not attach,
 * or must not, because the call overwrites what they would read. */
bool wefti_call_post_addresses(const wefti_call_t *call, wefti_posting_t *posting);
/* call_direct.c: rank's share of elements [begin, end), cut at cache lines. */
void wefti_call_share(const wefti_call_t *call, uint32_t rank, uint64_t *begin, uint64_t *end);
/* call_direct.c: whether peers reach what they need of this rank, said in posting; then moving it.
 */
bool wefti_call_reach(wefti_call_t *call, wefti_posting_t *posting);
/* call_help.c: WEFTI_POSTED_HELPS or 0; all shares that no rank has claimed. */
uint32_t wefti_call_offer_help(const wefti_call_t *call);
typedef weft_status_t (*wefti_share_fn)(wefti_call_t *call, uint32_t rank);
weft_status_t wefti_call_all_reduce_helping(wefti_call_t *call, wefti_share_fn move_share);
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
/* Fills an empty call. pairs must stay as long as it is in flight. */
void wefti_pairs_fill(wefti_call_t *call, wefti_pair_t *pairs, uint32_t count);

#endif
