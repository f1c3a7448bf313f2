/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of lowering share: changes to schedules, collected first and applied at the end.
 */
#ifndef WEFT_OPS_ALGO_LOWER_INTERNAL_H
#define WEFT_OPS_ALGO_LOWER_INTERNAL_H

#include "ops/algo/lower.h"
#include "ops/algo/simulate.h"

/* Steps of another rank that do not concern the rank whose schedule is lowered alone (lower_one.c).
 * They move; move.first and move.step: slots that they stage in. */
#define WEFTI_DO_OTHERS 8u

typedef enum wefti_change_place {
    WEFTI_CHANGE_BEFORE = 0,
    WEFTI_CHANGE_INSTEAD = 1,
    WEFTI_CHANGE_READY = 2, /* after the step, and before */
    WEFTI_CHANGE_AFTER = 3,
} wefti_change_place_t;

/* A step to be put before, instead of or after step anchor of rank. */
typedef struct wefti_change {
    uint32_t rank, anchor;
    uint32_t place;
    uint32_t by;       /* the rank whose step asks for it: those of one place are in their order */
    uint32_t sequence; /* of one rank: as they were found */
    uint32_t
        signal; /* SIGNAL, AWAIT: which one, numbered over all ranks; index follows at the end */
    wefti_step_t step; /* move.operand counts in the operand pool of the pass */
} wefti_change_t;

/* A block already staged for others after a post of rank, or a signal already sent. */
typedef struct wefti_shown {
    uint32_t rank, anchor, peer, slot, signal;
    uint32_t next; /* with the same hash, + 1 */
    wefti_operand_t from;
    weft_blocks_t blocks;
} wefti_shown_t;

/* A step of a rank. */
typedef struct wefti_site {
    uint32_t rank, lane, at;
    const wefti_step_t *step;
} wefti_site_t;

/* What the simulator found of a thread: for its reads from ranks that it cannot reach, in their
 * order, the post that it had seen, and for its writes to such ranks their wait that knew of it. */
typedef struct wefti_known {
    wefti_site_t *reads;
    uint32_t *writes; /* step, or WEFTI_NOBODY */
    size_t read_count, read_capacity, next_read;
    size_t write_count, write_capacity, next_write;
} wefti_known_t;

typedef struct wefti_lowering {
    const weft_algo_params_t *params;
    const wefti_links_t *links;
    const weft_allocator_t *allocator;
    wefti_schedule_t *schedules;
    bool puts;     /* this pass handles put links, else hidden buffers */
    uint32_t only; /* whose schedule is needed: changes that do not concern it are left out; or
                      WEFTI_NOBODY: all are */
    wefti_change_t *changes;
    size_t change_count, change_capacity;
    wefti_operand_t *operands;
    size_t operand_count, operand_capacity;
    wefti_shown_t *shown;
    size_t shown_count, shown_capacity;
    uint32_t *shown_heads; /* [hash], + 1 */
    size_t head_count;
    uint8_t **dropped;            /* [rank][step] */
    uint32_t *slots, *wide_slots; /* [rank] staging slots in use */
    uint32_t signal_count;
    uint32_t **posts; /* [rank]: the steps that post; post_count[rank] of them */
    uint32_t *post_count;
    wefti_known_t *known; /* [thread] by the simulator; NULL: ranks know what they waited for */
    uint64_t *waited; /* [rank] the last wait for it: number of the lane that is looked at, step */
    uint64_t visit;   /* that number */
    uint8_t *put_targets; /* [row of a rank][block] of receive buffers that are put to */
    const uint32_t *row;  /* [rank], or WEFTI_NOBODY: not needed; NULL: every rank has its own */
} wefti_lowering_t;

/* Whether a change of rank's schedule that peer takes part in is needed. */
static inline bool wefti_lower_concerns(const wefti_lowering_t *l, uint32_t rank, uint32_t peer)
{
    return l->only == WEFTI_NOBODY || rank == l->only || peer == l->only;
}

/* One pass over schedules whose last member of l is set by the caller: lower.c */
weft_status_t wefti_lower_pass(wefti_lowering_t *l);
weft_status_t wefti_lower_change(wefti_lowering_t *l, uint32_t rank, uint32_t anchor,
                                 wefti_change_place_t place, uint32_t by, uint32_t signal,
                                 const wefti_step_t *step);
weft_status_t wefti_lower_operand(wefti_lowering_t *l, const wefti_operand_t *operand);
weft_status_t wefti_lower_error(const wefti_lowering_t *l, const wefti_site_t *site,
                                const char *format, ...) WEFT_PRINTF(3, 4);

/* lower_find.c: finds the changes. */
weft_status_t wefti_lower_find(wefti_lowering_t *l);
/* A part of an operand: its only rank. */
static inline wefti_operand_t wefti_part_of(const wefti_operand_t *operand, uint32_t i)
{
    return (wefti_operand_t){operand->rank + i, 1, operand->block, operand->step, operand->buffer};
}
/* What a link does not let rank do with an operand on another rank. */
bool wefti_lower_unreachable(const wefti_lowering_t *l, uint32_t rank,
                             const wefti_operand_t *operand);
/* The slots that rank adds on its side to execute a move over put links. */
void wefti_lower_count_slots(const wefti_lowering_t *l, uint32_t rank, const wefti_step_t *step,
                             const wefti_operand_t *operands, uint32_t *slots,
                             uint32_t *wide_slots);

/* lower_know.c: who knows what. */
weft_status_t wefti_lower_learn(wefti_lowering_t *l);
void wefti_lower_forget(wefti_lowering_t *l);
/* A new lane is looked at; a wait of it. */
void wefti_lower_begin_lane(wefti_lowering_t *l);
void wefti_lower_waited(wefti_lowering_t *l, const wefti_site_t *site);
/* The last post of rank that the lane at site has seen: its step, and its lane. */
bool wefti_lower_seen(wefti_lowering_t *l, const wefti_site_t *site, uint32_t rank,
                      uint32_t *out_step, uint32_t *out_lane);
/* The step of rank that first waits for what site wrote there; WEFTI_NOBODY: none. */
uint32_t wefti_lower_settled(wefti_lowering_t *l, const wefti_site_t *site, uint32_t rank);
/* The step of rank's lane that posts phase, or a later one in the run: the next. */
bool wefti_lower_find_post(const wefti_lowering_t *l, uint32_t rank, uint32_t lane, uint32_t phase,
                           uint32_t *out_step);

/* Applies the changes: lower_apply.c */
weft_status_t wefti_lower_apply(wefti_lowering_t *l);

#endif
