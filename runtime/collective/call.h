/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call of a group in flight, and what a group keeps for its calls.
 *
 *   submit.h       a place in the ring, issuing, a call on a stream
 *   call_wait.c    running a call to its end, polling it, draining a group
 *   call.c         the end of a call
 *   call_steps.h   what the states do; call_advance.c goes from one to the next
 *   call_move.h    the paths that move data
 *   call_late.h    late ranks and ranks that disagree
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
 *   POSTED      waits for the call slots of all peers: the same signature, or the group is broken.
 *               All ranks know the same then, and take the same path
 *   MOVING      in its path; the staged path alternates between the next two
 *   ROUND       waits for what peers staged
 *   RESULTS     two-shot: waits for the shards that peers reduced
 *   REFUSED     all ranks return the same error, and the group stays usable: no algorithm can run
 *               the call, or a rank refused its arguments (call_refuse.c)
 *   CHECK       WEFT_CHECK=results: the result is complete, its digests are to be posted
 *   COMPARE     waits for the digests of all peers
 *
 * An error in any state leads to DONE. No state blocks: one that cannot go on returns
 * WEFT_IN_PROGRESS and the signal that it needs.
 */
#ifndef WEFT_RUNTIME_CALL_H
#define WEFT_RUNTIME_CALL_H

#include "ops/reduce/reduce.h"
#include "runtime/collective/call_trial.h"
#include "runtime/collective/select.h"
#include "runtime/group/group.h"

#define WEFTI_CALLS 64u /* in flight per group; a power of two */
#define WEFTI_REFUSAL_BYTES 512u

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
    uint32_t peer, tag;
    const uint8_t *data;
    uint64_t count, bytes, moved;
    wefti_blocked_t blocked; /* signal NULL: it is not */
    bool sends;
    uint8_t dtype;                 /* weft_dtype_t */
    uint8_t state : 7, direct : 1; /* of whoever advances the call */
    int8_t refused;                /* 0, or the error of the sender: data is its message */
    uint32_t record;               /* of the flight recorder */
} wefti_pair_t;

/* The arguments of a collective. */
typedef struct wefti_request {
    weft_collective_t op;
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    uint32_t root;
    const uint8_t *send;
    uint8_t *recv;
    uint64_t count; /* elements of one block */
} wefti_request_t;

/* Messages that came before their receive: call_aside.h. */
typedef struct wefti_asides {
    pthread_mutex_t lock;
    _Atomic(struct wefti_aside *) first; /* as they came */
} wefti_asides_t;

typedef struct wefti_path wefti_path_t;
typedef struct wefti_call wefti_call_t;

/* What a call published since it looked for sleepers. */
#define WEFTI_UNSETTLED_POSTING (1u << 0)
#define WEFTI_UNSETTLED_ROUND (1u << 1)
#define WEFTI_UNSETTLED_DONE (1u << 2)

/* How the result is checked: call_check.c. */
typedef enum wefti_check {
    WEFTI_CHECK_NOTHING,
    WEFTI_CHECK_EMPTY, /* it is this call's turn, and there is nothing to compare */
    WEFTI_CHECK_EQUAL,
    WEFTI_CHECK_MOVED,
    WEFTI_CHECK_REDUCED,
} wefti_check_t;

struct wefti_call {
    weft_group_t *group;
    wefti_call_state_t state;
    uint32_t number, order;
    uint32_t record; /* of the flight recorder; of pairs: theirs */
    const wefti_path_t *path;
    uint32_t peer;      /* how many peers were seen in this state */
    uint32_t unsettled; /* WEFTI_UNSETTLED_* */

    wefti_request_t request;
    /* V forms: [4 * size] send counts, send displacements, receive counts, displacements, in
     * elements. Stays with the place in the ring. */
    uint64_t *counts;

    uint32_t elem_bytes;
    /* What ranks post of it, and learn from the call slots. */
    uint64_t what, posted_count;
    uint32_t flags;    /* of all ranks' call slots, and-ed */
    bool certain;      /* all ranks post data: nothing of them needs to be known to say so */
    bool own;          /* the library's, see wefti_group_own_calls */
    uint8_t check;     /* wefti_check_t */
    bool refuses;      /* this rank only posts that it does not make the call: call_refuse.c */
    uint64_t longest;  /* bytes of the longest block of any rank */
    size_t area_bytes; /* data that this rank posts, if it fits a call slot */
    struct {           /* all-reduce: elements at both ends that some peer does not reach */
        uint64_t lead, trail;
    } ends;

    struct { /* path staged */
        uint64_t round, rounds;
        size_t piece_bytes; /* of each block in a round */
        bool two_shot;
    } staged;
    struct {                                /* path schedule */
        bool possible;                      /* call slots carry what it needs */
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
_Static_assert(sizeof(wefti_call_t) == 384, "every small call reads most of it");

/*
 * A call that ended before this rank saw all peers' call slots, because it needed nothing of them.
 * They are looked at before the next call posts: until then peers may read this rank's former
 * call slot, and a disagreement is found there.
 *
 * follows: the call has a second sequence number, for its check, and no check. The next call posts
 * that, so that ranks that refused the call and ranks that made it count alike.
 */
typedef struct wefti_deferred {
    bool open, follows;
    bool refused;          /* some rank refused the call */
    uint32_t number, peer; /* peer: how many were seen */
    uint64_t what, count;
} wefti_deferred_t;

/* Of a hosted group: how far its ranks have agreed on a call (call_meet.c). */
typedef struct wefti_meeting {
    uint32_t count; /* meetings since the group was made, or recovered: the same on all ranks */
    uint32_t number, stage;
    uint32_t next;        /* of the ranks of this host: how many have come */
    uint32_t round, sent; /* messages from other hosts, to other hosts */
    bool leaves;
    wefti_meet_record_t record; /* of the first rank of a host */
} wefti_meeting_t;

/* Link recovery (call_recover.c). Calls run one after the other, so fields without _Atomic have no
 * lock. */
typedef struct wefti_recovery {
    _Atomic uint32_t order; /* the last call that was issued at the last recovery */
    bool told;              /* some call returned the error */
    bool owes;              /* calls up to fail_until end with it */
    uint32_t failed;        /* the last one that did, here */
    uint32_t fail_until;    /* on all ranks */
    uint32_t step, epoch;   /* the step at hand; faults of the group until then */
    uint32_t peer;          /* how many were seen in this step */
} wefti_recovery_t;

/* What weft_group_set_shape said; also in the slot of a call, behind its addresses. */
#define WEFTI_SHAPE_DIMS 10u
typedef struct wefti_shape_note {
    uint32_t tag; /* 16 bits that are not 0; 0: none */
    uint32_t rank;
    uint32_t dims[WEFTI_SHAPE_DIMS]; /* the first of them; large ones are cut */
} wefti_shape_note_t;
_Static_assert(sizeof(wefti_shape_note_t) == 48, "lies in call slots");

/* What a group keeps for its calls. */
typedef struct wefti_calls {
    wefti_call_t ring[WEFTI_CALLS]; /* by order */
    /* Written by the issuing thread, one store each; recovery reads them on others. */
    _Atomic uint32_t number; /* of the last collective; the same on all ranks */
    _Atomic uint32_t issued; /* calls so far, sends and receives too */
    wefti_flight_writer_t flight;
    wefti_signal_line_t completed; /* of these: calls run in the order in which they were issued */
    uint32_t staged;               /* how often rounds were published */
    uint32_t area;                 /* which half of the staging buffers, by its lowest bit */
    /* Hands a call to a stream: wefti_call_submit_host, or device_call.h. */
    weft_status_t (*submit)(wefti_call_t *call, weft_stream_t *stream);
    wefti_shape_note_t posted_shapes[WEFTI_CALLS]; /* of calls that have one, as ring */
    size_t shape_at;      /* where that is in the data of the last call's slot */
    const void **sources; /* [size] */
    void **destinations;  /* [size] */
    wefti_deferred_t deferred;
    wefti_meeting_t meeting;
    wefti_recovery_t recovery;
    wefti_shape_note_t shape;        /* of the next collective */
    struct wefti_recorder *recorder; /* takes calls instead of the group; NULL: none is open */
    /* Sends or receives that this rank refused without telling their peers (call_refuse.c). */
    _Atomic bool refused;
    bool
        own; /* calls that are issued now are the library's: what the program set is not for them */
    const char *path;      /* of the last collective, for weft_group_last_path */
    const char *algorithm; /* likewise */
    char label[64];
    const weft_algorithm_t *labelled; /* whose label it is */

    wefti_selection_t selection; /* orders, algorithms */
    /* [WEFTI_CALLS], from the first refused call on, of whichever thread */
    _Atomic(char (*)[WEFTI_REFUSAL_BYTES]) refusals;
    uint8_t *kept;       /* for each place of the ring, with WEFT_CHECK; else NULL */
    uint32_t turns;      /* with WEFT_CHECK: collectives that were issued */
    uint64_t slot_bytes; /* blocks up to this go with the call slots */
    wefti_timed_t timed;
    wefti_trial_t trials[WEFTI_OPS][64]; /* by operator and power of two of the longest block */
    struct wefti_schedules *schedules;   /* schedule_cache.h; NULL until one is needed */

    struct wefti_batch *batch; /* call_batch.c; with the first batch */
    uint32_t *sent, *received; /* pieces so far, per peer */
    uint64_t *gone_ns;         /* per peer: when weft_probe first saw that it had left; 0: not */
    uint32_t *pair_seq;        /* [2 * size] sends to each, then receives from each */
    wefti_asides_t asides;
    struct wefti_device_calls *device_calls; /* on a device, from the first call on; else NULL */
} wefti_calls_t;

static inline weft_status_t wefti_call_blocked_on(wefti_signal_t *signal, uint32_t target,
                                                  wefti_blocked_t *out)
{
    out->signal = signal;
    out->target = target;
    return WEFT_IN_PROGRESS;
}

/* In the order in which a rank looks at the ranks of a group: 0 is itself. */
static inline uint32_t wefti_group_nth_peer(const weft_group_t *group, uint32_t n)
{
    uint32_t r = group->rank + n;
    return r < group->size ? r : r - group->size;
}

/* From here on (own) or no more, calls on group are the library's own: the algorithms that the
 * program asked for do not apply to them, nor must ranks agree on these. Peers do not attach to
 * their memory, so it may be freed after an error. Returns what was before. */
static inline bool wefti_group_own_calls(weft_group_t *group, bool own)
{
    bool before = group->calls->own;
    group->calls->own = own;
    return before;
}

/* ---- what a call is ---- */

static inline const wefti_collective_t *wefti_call_op(const wefti_call_t *call)
{
    return &wefti_collectives[call->request.op]; /* which is known */
}

/* This rank's buffers. */
static inline wefti_buffer_shape_t wefti_call_send_shape(const wefti_call_t *call)
{
    return wefti_send_shape(call->request.op, call->group->rank, call->request.root,
                            call->group->size, call->request.count, call->counts);
}

static inline wefti_buffer_shape_t wefti_call_recv_shape(const wefti_call_t *call)
{
    return wefti_recv_shape(call->request.op, call->group->rank, call->request.root,
                            call->group->size, call->request.count, call->counts);
}

/* AllGatherV and ReduceScatterV: counts and displacements of the blocks, [2 * size]. */
static inline const uint64_t *wefti_call_blocks(const wefti_call_t *call)
{
    return wefti_shared_counts(call->request.op, call->group->size, call->counts);
}

/* The interpreter is at work on its schedule. */
static inline bool wefti_call_runs_schedule(const wefti_call_t *call)
{
    return call->state == WEFTI_CALL_MOVING && call->schedule.algorithm != NULL;
}

/* The signature, but for order, algorithm and flags. */
static inline uint64_t wefti_request_what(const wefti_request_t *request)
{
    return (uint64_t)request->op | (uint64_t)request->dtype << 8 |
           (uint64_t)request->reduction << 16 | (uint64_t)request->root << WEFTI_WHAT_ROOT_SHIFT;
}

/* ---- call_shape.c ---- */

/* The call is the one that a shape was set for. */
void wefti_call_take_shape(wefti_call_t *call);
/* To its slot, which has data_bytes, for the message of ranks that differ. Returns the bytes that it
 * has then. */
size_t wefti_call_post_shape(const wefti_call_t *call, wefti_call_slot_t *slot, size_t data_bytes);
/* " of shape (32, 32)" by what is known of a shape; without a tag it is that of a vector. */
void wefti_note_text(const wefti_shape_note_t *shape, uint64_t count, char *out, size_t bytes);
/* The same by what the rank that posted count noted; NULL: nothing. */
void wefti_shape_text(uint64_t count, const wefti_shape_note_t *note, char *out, size_t bytes);
/* That, in the slot of a rank. */
const wefti_shape_note_t *wefti_shape_of_slot(const weft_group_t *group,
                                              const wefti_call_slot_t *slot);

/* ---- group.c ---- */

/* With memory for calls, but without ranks and channels: group_create.c. */
weft_status_t wefti_group_alloc(weft_context_t *context, uint32_t size, weft_group_t **out_group);

/* ---- call_wait.c ---- */

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

/* ---- call.c ---- */

/* Wakes the ranks that sleep on what this call published; see wefti_fence. */
void wefti_call_settle(wefti_call_t *call);
/* The call is complete, with or without an error; the next call of the group may run. */
void wefti_call_finish(wefti_call_t *call, weft_status_t status);
/* The same, where links may have broken. */
void wefti_call_give_up(wefti_call_t *call, weft_status_t status);

/* ---- call_flight.c: its record in the flight recorder ---- */

void wefti_call_record(wefti_call_t *call, const weft_stream_t *stream);
void wefti_call_record_blocked(const wefti_call_t *call);
void wefti_call_record_end(const wefti_call_t *call, weft_status_t status);

/* ---- call_pair.c ---- */

weft_status_t wefti_pairs_advance(wefti_call_t *call, wefti_blocked_t *out_blocked);
/* Whether one of several could go on: a wait is for one of them only. */
bool wefti_pairs_ready(const wefti_call_t *call);
bool wefti_pair_is_done(const wefti_pair_t *pair);
/* Whether a message that was set aside is pair's, and no receive in flight comes before it: then it
 * is done, with *out_status. */
bool wefti_pair_take_early(weft_group_t *group, wefti_pair_t *pair, weft_status_t *out_status);
/* Fills an empty call. pairs must stay as long as it is in flight. */
void wefti_pairs_fill(wefti_call_t *call, wefti_pair_t *pairs, uint32_t count);

#endif
