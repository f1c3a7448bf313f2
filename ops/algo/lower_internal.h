/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of lowering share: changes to schedules, collected first and applied at the end.
 */
#ifndef WEFT_OPS_ALGO_LOWER_INTERNAL_H
#define WEFT_OPS_ALGO_LOWER_INTERNAL_H

#include "ops/algo/lower.h"
#include "ops/algo/simulate.h"

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
    uint32_t sequence;
    uint32_t
        signal; /* SIGNAL, AWAIT: which one, numbered over all ranks; index follows at the end */
    wefti_step_t step; /* move.operand counts in the operand pool of the pass */
} wefti_change_t;

/* A write to a rank that it does not know of yet. */
typedef struct wefti_pending {
    uint32_t thread, clock; /* who wrote, when */
    uint32_t signal;        /* put: what says that it landed */
    uint32_t from_slot;     /* hidden: where it is staged */
    wefti_operand_t to;
    weft_blocks_t blocks;
    bool done;
} wefti_pending_t;

typedef struct wefti_pending_list {
    wefti_pending_t *items;
    size_t count, capacity, first; /* all before first are done */
} wefti_pending_list_t;

/* A block already staged for others after a post, or a signal already sent. */
typedef struct wefti_shown {
    uint32_t anchor, peer, slot, signal;
    wefti_operand_t from;
    weft_blocks_t blocks;
} wefti_shown_t;

typedef struct wefti_shown_list {
    wefti_shown_t *items;
    size_t count, capacity;
} wefti_shown_list_t;

typedef struct wefti_lowering {
    const weft_algo_params_t *params;
    const wefti_links_t *links;
    const weft_allocator_t *allocator;
    wefti_schedule_t *schedules;
    bool puts; /* this pass handles put links, else hidden buffers */
    wefti_change_t *changes;
    size_t change_count, change_capacity;
    wefti_operand_t *operands;
    size_t operand_count, operand_capacity;
    wefti_pending_list_t *pending; /* [rank] */
    wefti_shown_list_t *shown;     /* [rank] */
    uint8_t **dropped;             /* [rank][step] */
    uint32_t *slots, *wide_slots;  /* [rank] staging slots in use */
    uint32_t signal_count;
} wefti_lowering_t;

weft_status_t wefti_lower_change(wefti_lowering_t *l, uint32_t rank, uint32_t anchor,
                                 wefti_change_place_t place, uint32_t signal,
                                 const wefti_step_t *step);
weft_status_t wefti_lower_operand(wefti_lowering_t *l, const wefti_operand_t *operand);
/* SIGNAL or AWAIT. back: in how many runs before the signal was sent. */
weft_status_t wefti_lower_signal(wefti_lowering_t *l, uint32_t rank, uint32_t lane, uint32_t anchor,
                                 wefti_change_place_t place, bool await, uint32_t peer,
                                 uint32_t peer_lane, wefti_signal_kind_t kind, uint32_t signal,
                                 uint32_t back);
/* One pass: finds changes by simulating, in lower_find.c */
weft_status_t wefti_lower_visit(void *user, wefti_sim_t *sim, uint32_t thread,
                                const wefti_step_t *step);
/* Applies the changes: lower_apply.c */
weft_status_t wefti_lower_apply(wefti_lowering_t *l);

#endif
