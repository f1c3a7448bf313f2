/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls drawn at random, and what must come out of them: every collective, type and reduction, in
 * place or not and blocks elsewhere on every rank. The reference knows no algorithm and no path:
 * only the shapes of the collectives, and sums that are exact in any order.
 *
 * What a rank contributes depends on the rank, the group, the call, the block and the element, so a
 * wrong result tells whose contribution to which other call would explain it.
 */
#ifndef WEFT_TESTS_RANDOM_CALLS_H
#define WEFT_TESTS_RANDOM_CALLS_H

#include "support_ranks.h"

#define RANDOM_RANKS 16u
#define RANDOM_COUNT 6000u

typedef enum random_kind {
    RANDOM_PLAIN,
    RANDOM_REACHED,
    RANDOM_ADOPTED,
    RANDOM_KINDS
} random_kind_t;

typedef struct random_side { /* one of this rank's buffers */
    uint8_t *at;
    uint32_t blocks;
    bool packed;
    uint64_t counts[RANDOM_RANKS], displacements[RANDOM_RANKS], elems;
} random_side_t;

typedef struct random_call {
    weft_collective_t op;
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    uint32_t root, index, rank, size; /* index: of the calls of its group */
    uint64_t id, shape;               /* of the group; of the counts per rank */
    uint64_t count;                   /* of each block; the most, where they differ */
    bool in_place;                    /* on this rank */
    random_side_t send, recv;
    weft_status_t status;
    uint8_t *memory[2], *image[2]; /* where the buffers are; what that must be afterwards */
    size_t bytes[2];
    uint8_t *kinds[2][RANDOM_KINDS]; /* memory to choose from */
} random_call_t;

/* a and b as one number that looks like neither. */
uint64_t support_random_mix(uint64_t a, uint64_t b);

/* Collective. Freed by deinit, before the context's end; no call is under way then. */
void support_random_init(random_call_t *call, weft_context_t *context);
void support_random_deinit(random_call_t *call, weft_context_t *context);
/* The next call of group id, alike on all ranks but for this rank's buffers, which are filled. */
void support_random_draw(random_call_t *call, const weft_group_t *group, uint64_t id,
                         uint32_t index, uint64_t *draws);
weft_status_t support_random_submit(const random_call_t *call, weft_group_t *group,
                                    weft_stream_t *stream);
/* On standard error. */
void support_random_show(const random_call_t *call);
/* The call is done. False: reported on standard error. */
bool support_random_check(const random_call_t *call, const weft_group_t *group);

#endif
