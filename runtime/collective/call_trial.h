/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether calls in plain memory are quicker attached or staged: nobody knows before. It depends on
 * the size of pages, the caches, the number of ranks, how they share cores, and the load. So the
 * first calls of each operator and power of two take the two ways in turns and are timed, from when
 * all ranks have come to their end; later calls take the quicker way, and now and then both are
 * timed again. A way that is slower by far is left after two tries. One rank decides: it offers its addresses only when it wants to attach, and flags of
 * ranks are and-ed. Results have the same bits either way.
 */
#ifndef WEFT_RUNTIME_CALL_TRIAL_H
#define WEFT_RUNTIME_CALL_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

/* Two ways for one size of an operator. All zero: none was tried. */
typedef struct wefti_trial {
    uint32_t calls;
    uint32_t best_ns[2]; /* of the last tries */
} wefti_trial_t;

/* 0 or 1: the way of the next call. */
uint32_t wefti_trial_way(const wefti_trial_t *trial);
/* It is made. True: wefti_trial_note says how long it takes. */
bool wefti_trial_count(wefti_trial_t *trial);
void wefti_trial_note(wefti_trial_t *trial, uint32_t way, uint64_t ns);

/* The call at hand, if it is timed: calls of a group run one after the other. */
typedef struct wefti_timed {
    wefti_trial_t *trial; /* NULL: it is not */
    uint64_t began_ns;    /* 0: not yet */
    uint32_t way;
} wefti_timed_t;

void wefti_timed_begin(wefti_timed_t *timed, uint32_t way);
void wefti_timed_end(wefti_timed_t *timed);

#endif
