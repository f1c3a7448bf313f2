/* SPDX-License-Identifier: Apache-2.0 */
/* Moving the data of a call: the paths, and what they share. */
#ifndef WEFT_RUNTIME_CALL_MOVE_H
#define WEFT_RUNTIME_CALL_MOVE_H

#include "runtime/base/copy.h"
#include "runtime/collective/call.h"

/*
 * One way of moving a call's data. Paths are asked in the order of the table in call_advance.c; the
 * answer may depend only on what all ranks know alike once they saw all call slots: the signature,
 * flags (which are and-ed: a rank says in its call slot what it can do) and what else call slots
 * merged. One more path is one more row there, and a flag WEFTI_POSTED_* where it needs something
 * of a rank.
 */
struct wefti_path {
    const char *name; /* weft_group_last_path */
    bool (*takes)(const wefti_call_t *call);
    /* Ends in wefti_call_complete, or in state MOVING with more to come. Names the algorithm that
     * it executes, if that is not the mesh. An error breaks the group, which the caller of start
     * and advance sees to. */
    weft_status_t (*start)(wefti_call_t *call);
    /* WEFT_OK: again, unless the call is complete; WEFT_IN_PROGRESS: blocked. */
    weft_status_t (*advance)(wefti_call_t *call, wefti_blocked_t *out_blocked);
};

extern const wefti_path_t wefti_path_posting, wefti_path_staged; /* call_staged.c */
extern const wefti_path_t wefti_path_schedule, wefti_path_direct, wefti_path_attached;

/* ---- call_move.c: for all paths ---- */

/* Part of one of this rank's buffers. */
typedef struct wefti_block {
    uint64_t at, bytes;
} wefti_block_t;

/* What this rank has for rank to, in its send buffer. */
wefti_block_t wefti_call_send_block(const wefti_call_t *call, uint32_t to);
/* Where what comes from rank from goes, in its receive buffer. */
wefti_block_t wefti_call_recv_block(const wefti_call_t *call, uint32_t from);
/* Rank's share of the vector without its ends, cut at cache lines. */
wefti_block_t wefti_call_share(const wefti_call_t *call, uint32_t rank);

static inline void wefti_call_copy(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    if (bytes > 0 && to != from) {
        wefti_copy(to, from, (size_t)bytes);
    }
}

/* Reduces bytes of each of calls->sources to the first calls->destinations. */
weft_status_t wefti_call_reduce(wefti_call_t *call, uint32_t destination_count, uint64_t bytes);
/* Whether the call waits for rank r of its group. */
typedef bool (*wefti_awaits_fn)(const wefti_call_t *call, uint32_t r);
/* Waits for a signal of every peer's channel, or of those it awaits; target is the same for all. */
weft_status_t wefti_call_see_signals(wefti_call_t *call, size_t signal_offset, uint32_t target,
                                     wefti_awaits_fn awaits, wefti_blocked_t *out_blocked);
/* This rank is done with the memory of its peers. */
void wefti_call_publish_done(wefti_call_t *call);
/* The data is where it belongs. */
void wefti_call_complete(wefti_call_t *call);
/* Of a path on which ranks are done with each other's memory: waits for that. */
weft_status_t wefti_call_await_done(wefti_call_t *call, wefti_blocked_t *out_blocked);

/* ---- call_move.c: for paths that reach the buffers of peers ---- */

/* How they are reached. Offsets are bytes from the begin of a buffer. */
typedef struct wefti_access {
    /* From rank's send buffer to memory of this rank. */
    weft_status_t (*fetch)(wefti_call_t *call, uint32_t rank, uint64_t from, void *to,
                           uint64_t bytes);
    /* From memory of this rank to rank's receive buffer. */
    weft_status_t (*push)(wefti_call_t *call, uint32_t rank, uint64_t to, const void *from,
                          uint64_t bytes);
    /* From all ranks' send buffers, reduced to memory of this rank. */
    weft_status_t (*reduce)(wefti_call_t *call, uint64_t from, uint64_t bytes, void *to);
    /* Root and leaf share the work on their block, so that both move as much as the other. */
    bool root_moves;
} wefti_access_t;

/* Copies a block of rank's send buffer, or of this rank's own, to the receive buffer. */
weft_status_t wefti_call_take_block(wefti_call_t *call, const wefti_access_t *access, uint32_t rank,
                                    uint64_t from, wefti_block_t to);
/* What this rank moves in operators whose buffers have a block per rank. */
weft_status_t wefti_call_move_blocks(wefti_call_t *call, const wefti_access_t *access);

/* ---- call_staged.c ---- */

bool wefti_call_fits_posting(const wefti_call_t *call);
/* All-reduce: whether its rounds are a mesh (two shots) and not one-shot. */
bool wefti_call_stages_two_shots(const wefti_call_t *call);
/* This rank's part of the round at hand, to area: its own, in the call slot or in staging. */
void wefti_call_stage(const wefti_call_t *call, uint8_t *area);
/* All-reduce: the few elements at the ends that some peers do not reach. */
weft_status_t wefti_call_stage_ends(wefti_call_t *call);
weft_status_t wefti_call_take_ends(wefti_call_t *call);

/* ---- call_direct.c ---- */

/* WEFTI_POSTED_HELPS, or 0. */
uint32_t wefti_call_offer_help(const wefti_call_t *call);

/* ---- call_attached.c ---- */

/* Addresses of this rank's buffers into its slot; false when peers may not attach, or must not,
 * because the call overwrites what they would read. */
bool wefti_call_post_addresses(const wefti_call_t *call, wefti_call_slot_t *slot);

/* call_trial.c. Of a call that may go either way: whether this rank is for attaching. */
bool wefti_call_wants_attach(const wefti_call_t *call);

/* ---- call_offer.c: what a call slot says of the rank's buffers ---- */

/* Whether peers reach what they need of this rank, as it says in its call slot. */
bool wefti_call_reach(wefti_call_t *call, wefti_call_slot_t *slot);
/* V forms with shared counts: where this rank's blocks are, which peers rely on if they reach them.
 */
void wefti_call_post_places(const wefti_call_t *call, wefti_call_slot_t *slot);
/* For schedules: flags of what this rank's buffers allow, and their places into its call slot. */
uint32_t wefti_call_offer(wefti_call_t *call, wefti_call_slot_t *slot);
/* What another rank's call slot says of all that. */
void wefti_call_merge_offer(wefti_call_t *call, const wefti_call_slot_t *theirs);
/* Where the block that rank has in both buffers when in place begins, from the longer one's begin.
 */
uint64_t wefti_call_alias_at(const wefti_call_t *call, uint32_t rank);
/* The in-place rule of the operator holds for this rank's buffers. */
bool wefti_call_is_in_place(const wefti_call_t *call);

/* AllToAllV: for each rank, bytes and place of its block in the send buffer of who posts it. */
#define WEFTI_TABLE_RANKS (WEFTI_SLOT_ADDRESSES / 16)
static inline const uint64_t *wefti_call_table(const wefti_call_t *call, uint32_t rank)
{
    return (const uint64_t *)(const void *)wefti_call_slot_of(call->group, rank, call->number)
        ->data;
}
/* What every rank sends here is what is expected. */
weft_status_t wefti_call_check_table(const wefti_call_t *call);

#endif
