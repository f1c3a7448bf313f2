/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hierarchical composition over hosts, whatever the ranks' placement: what crosses hosts does so
 * once. Inside a host ranks load and store each other's memory; the links between hosts are what
 * is scarce. hierarchical.c has the table and the pictures.
 */
#ifndef WEFT_OPS_ALGO_HIERARCHICAL_H
#define WEFT_OPS_ALGO_HIERARCHICAL_H

#include "ops/algo/algorithms.h"
#include "ops/algo/placement.h"

#define WEFTI_NO_HOST UINT32_MAX

/* A subtree of the group's reduction order: consecutive ranks, or consecutive blocks of them. */
typedef struct wefti_subtree {
    bool of_blocks;
    uint32_t first, size; /* of ranks; of_blocks: of blocks of the order */
    uint32_t first_rank, rank_count;
} wefti_subtree_t;

/* The building of one rank's schedule. */
typedef struct wefti_hier {
    const weft_algo_params_t *params;
    weft_schedule_builder_t *b;
    wefti_placement_t place;
    uint32_t lane;
    uint32_t *sums; /* [host]: largest subtrees that lie in it */
    uint32_t *met;  /* [host]: of these, so far; of the walk at hand */
    uint32_t most_sums;
    uint32_t temporary; /* next free slot of scratch for what is joined on the way */
    bool direct; /* there is nothing to sum inside hosts: ranks' blocks are read where they are */
} wefti_hier_t;

/* Where sum number `number` of host's for block is, that of subtree. */
typedef weft_place_t (*wefti_sum_place_fn)(void *user, uint32_t host, uint32_t block,
                                           const wefti_subtree_t *subtree, uint32_t number);

const char *wefti_hier_eligible(const weft_algo_params_t *params);
const char *wefti_hier_eligible_reduction(const weft_algo_params_t *params);
/* False: no memory, which the builder (may be NULL) is told. */
bool wefti_hier_init(wefti_hier_t *h, const weft_algo_params_t *params, weft_schedule_builder_t *b);
void wefti_hier_deinit(wefti_hier_t *h);

static inline uint32_t wefti_hier_size(const wefti_hier_t *h)
{
    return wefti_host_size(&h->place, h->place.own);
}

static inline uint32_t wefti_hier_member(const wefti_hier_t *h)
{
    return h->place.member[h->params->rank];
}

/*
 * Block d of another host's rank: on this host it is dealt with by one member, its collector (the
 * one opposite), which deals with its blocks in turns, from 0, host after host.
 */
uint32_t wefti_hier_collector(const wefti_hier_t *h, uint32_t host, uint32_t rank);
uint32_t wefti_hier_turn(const wefti_hier_t *h, uint32_t host, uint32_t rank);
/* The rank whose block is this one's in a turn; false: it has no so many. */
bool wefti_hier_collected(const wefti_hier_t *h, uint32_t collector, uint32_t turn,
                          uint32_t *out_rank);
/* Turns of the collector that has most. */
uint32_t wefti_hier_turns(const wefti_hier_t *h);

/* On the lane at hand. */
void wefti_hier_post(wefti_hier_t *h, uint32_t phase);
void wefti_hier_wait(wefti_hier_t *h, uint32_t rank, uint32_t phase);
/* For all ranks of the own host. */
void wefti_hier_wait_host(wefti_hier_t *h, uint32_t phase);
void wefti_hier_copy(wefti_hier_t *h, weft_place_t to, weft_place_t from, weft_blocks_t blocks);

/* hierarchical_sums.c */
/* Slots that a rank needs beside those of its sums, to join them. */
uint32_t wefti_hier_temporaries(const wefti_hier_t *h);
/* Whether every subtree of every host is one rank. */
bool wefti_hier_sums_nothing(const wefti_hier_t *h);
/* The own host's sums of a block into first_slot, first_slot + 1, ... */
void wefti_hier_reduce_own(wefti_hier_t *h, uint32_t block, uint32_t first_slot);
/* The sum of a subtree that lies in the own host, reduced from its ranks' send buffers. */
void wefti_hier_reduce_subtree(wefti_hier_t *h, const wefti_subtree_t *subtree, uint32_t block,
                               weft_place_t to);
/* All hosts' sums of a block, joined as the order says and finished. */
void wefti_hier_join(wefti_hier_t *h, uint32_t block, weft_place_t to, wefti_sum_place_fn place,
                     void *user);

/* One file per idea; see hierarchical.c. */
void wefti_hier_reduce_resources(const weft_algo_params_t *params, weft_algo_resources_t *out);
void wefti_hier_rails_resources(const weft_algo_params_t *params, weft_algo_resources_t *out);
void wefti_hier_reduce(const weft_algo_params_t *params, weft_schedule_builder_t *b);
void wefti_hier_reduce_rails(const weft_algo_params_t *params, weft_schedule_builder_t *b);

void wefti_hier_reduce_scatter_resources(const weft_algo_params_t *params,
                                         weft_algo_resources_t *out);
void wefti_hier_reduce_scatter(const weft_algo_params_t *params, weft_schedule_builder_t *b);

void wefti_hier_all_gather_resources(const weft_algo_params_t *params, weft_algo_resources_t *out);
void wefti_hier_all_gather(const weft_algo_params_t *params, weft_schedule_builder_t *b);
void wefti_hier_broadcast_resources(const weft_algo_params_t *params, weft_algo_resources_t *out);
void wefti_hier_broadcast(const weft_algo_params_t *params, weft_schedule_builder_t *b);
void wefti_hier_broadcast_rails_resources(const weft_algo_params_t *params,
                                          weft_algo_resources_t *out);
void wefti_hier_broadcast_rails(const weft_algo_params_t *params, weft_schedule_builder_t *b);

void wefti_hier_collect_resources(const weft_algo_params_t *params, weft_algo_resources_t *out);
void wefti_hier_all_to_all(const weft_algo_params_t *params, weft_schedule_builder_t *b);
void wefti_hier_gather(const weft_algo_params_t *params, weft_schedule_builder_t *b);
void wefti_hier_scatter(const weft_algo_params_t *params, weft_schedule_builder_t *b);

#endif
