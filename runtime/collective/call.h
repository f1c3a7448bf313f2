/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of a collective in flight share.
 *
 *   call.c          its place in the ring, issuing, submitting, giving up
 *   call_post.c     the posting of a rank, and what it learns from those of the others
 *   call_advance.c  the state machine and the choice of a path
 *   call_paths.c    the paths through postings, in place, through staging buffers
 *   call_schedule.c the path through the interpreter, and when it is taken
 *   call_offer.c    what it needs to know of ranks' buffers
 *   call_wait.c     running a call to its end, polling it, draining a group
 *
 *   ISSUED   the calls before it are done: post number, signature and either data or addresses
 *   POSTED   every peer's posting: the same signature, or the group is broken; all know now what
 *            all have, and take the same path
 *   MOVING   the path's own steps
 *   CHECK, COMPARE  WEFT_CHECK=results: digests of the result
 *
 * Nothing here blocks: a state that cannot go on says which signal it needs.
 */
#ifndef WEFT_RUNTIME_CALL_H
#define WEFT_RUNTIME_CALL_H

#include "runtime/collective/batch.h"

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

static inline uint8_t *wefti_call_posting_area(const wefti_call_t *call, wefti_posting_t *posting)
{
    return call->area_bytes <= WEFTI_POSTING_TINY ? posting->tiny
                                                  : posting->data + wefti_fused_list_bytes(call);
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
    return group->selection.only_executors[call->op][elem][size] && call->schedule.wanted == NULL &&
           !group->interpret;
}

/* call_post.c */
weft_status_t wefti_call_post(wefti_call_t *call);
weft_status_t wefti_call_see_postings(wefti_call_t *call, wefti_blocked_t *out_blocked);
/* The postings of the call before that this rank has not read yet (wefti_debt_t). */
weft_status_t wefti_call_pay_debt(weft_group_t *group, wefti_blocked_t *out_blocked);

/* call_advance.c: the data is where it belongs. */
void wefti_call_complete(wefti_call_t *call);
/* Waits for a signal of every peer's channel; target is the same for all. */
weft_status_t wefti_call_see_signals(wefti_call_t *call, size_t signal_offset, uint32_t target,
                                     wefti_blocked_t *out_blocked);

#endif
