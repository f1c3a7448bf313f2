/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The algorithms of a collective, the fastest predicted one first. Predictions run the schedules of
 * all ranks, so they are made once per operator, group size and class of sizes: from 2^k bytes to
 * twice that. Within a class times are affine in bytes.
 */
#ifndef WEFT_FUSION_RANKINGS_H
#define WEFT_FUSION_RANKINGS_H

#include "fusion/fusion.h"

typedef struct wefti_ranking {
    weft_collective_t op;
    uint32_t ranks, elem_bytes, class;
    bool in_place;
    uint32_t count;
    const char *names[WEFTI_MAX_CANDIDATES];
    double low_ns[WEFTI_MAX_CANDIDATES], high_ns[WEFTI_MAX_CANDIDATES]; /* at either end */
    struct wefti_ranking *next;
} wefti_ranking_t;

/* What all predictions share, and those made so far. */
typedef struct wefti_rankings {
    const wefti_costs_t *costs;      /* NULL: mesh */
    const wefti_rules_t *rules;      /* NULL: the order of ranks, one host, nothing is fixed */
    const weft_registry_t *registry; /* its algorithms are candidates; NULL: only built-in ones */
    uint32_t most;                   /* names listed, mesh included if it is eligible; 0: all */
    wefti_arena_t *arena;
    wefti_ranking_t *first;
} wefti_rankings_t;

/* bytes: of a vector, or of one rank's block. */
weft_status_t wefti_rank_algorithms(wefti_rankings_t *rankings, weft_collective_t op,
                                    uint32_t ranks, bool in_place, uint32_t elem_bytes,
                                    uint64_t bytes, const wefti_ranking_t **out_ranking);
/* Predicted time of an algorithm of the list. */
double wefti_ranking_ns(const wefti_ranking_t *ranking, uint32_t index, uint64_t bytes);

#endif
