/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-to-all, gather and scatter: blocks of one host for one rank of another cross together, as one
 * message of the collector instead of one of every rank. One more copy inside the host, for fewer
 * messages: for small blocks.
 */
#include "ops/algo/hierarchical.h"

#define FIRST 2u /* phase of the first turn */

void wefti_hier_collect_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    wefti_hier_t h;
    if (!wefti_hier_init(&h, params, NULL)) {
        return;
    }
    bool all = params->op == WEFT_COLLECTIVE_ALL_TO_ALL;
    uint32_t turns = all ? wefti_hier_turns(&h) : 1;
    out->phases = FIRST + turns + 1;
    out->scratch_slots = (turns + (all && params->in_place)) * h.place.largest;
    wefti_hier_deinit(&h);
}

/* Members [i, end) of a host whose ranks follow each other. */
static uint32_t end_of_run(const wefti_placement_t *p, uint32_t host, uint32_t i)
{
    uint32_t size = wefti_host_size(p, host);
    while (i + 1 < size && wefti_member(p, host, i + 1) == wefti_member(p, host, i) + 1) {
        i++;
    }
    return i + 1;
}

/* From the host's ranks into slots of scratch, in the order of its row. */
static void collect(wefti_hier_t *h, uint32_t block, uint32_t first_slot)
{
    uint32_t size = wefti_hier_size(h);
    bool gathers =
        h->params->op == WEFT_COLLECTIVE_GATHER; /* a rank's only block has its own number */
    for (uint32_t i = 0; i < size; i++) {
        uint32_t from = wefti_member(&h->place, h->place.own, i), at = gathers ? from : block;
        wefti_hier_copy(h, wefti_at(h->params->rank, WEFT_ALGO_BUFFER_SCRATCH, first_slot + i),
                        wefti_at(from, WEFT_ALGO_BUFFER_SEND, at), wefti_one(at));
    }
}

/* Slots of a host's ranks, from its collector or from own scratch, to where they belong. */
static void spread(wefti_hier_t *h, uint32_t host, uint32_t from, uint32_t first_slot)
{
    uint32_t size = wefti_host_size(&h->place, host), end;
    for (uint32_t i = 0; i < size; i = end) {
        uint32_t rank = wefti_member(&h->place, host, i);
        end = end_of_run(&h->place, host, i);
        wefti_hier_copy(h, wefti_at(h->params->rank, WEFT_ALGO_BUFFER_RECV, rank),
                        wefti_at(from, WEFT_ALGO_BUFFER_SCRATCH, first_slot + i),
                        (weft_blocks_t){rank, 1, end - i});
    }
}

/* The own host's blocks; in place they are kept in scratch until all have read what they want. */
static void exchange_in_host(wefti_hier_t *h, uint32_t spare_slot)
{
    uint32_t size = wefti_hier_size(h), own = wefti_hier_member(h), rank = h->params->rank;
    if (h->params->in_place) {
        collect(h, rank, spare_slot);
        return;
    }
    wefti_copy_own(h->params, h->b, wefti_one(rank));
    for (uint32_t i = 1; i < size; i++) {
        uint32_t from = wefti_member(&h->place, h->place.own, wefti_next(own, i, size));
        wefti_hier_copy(h, wefti_at(rank, WEFT_ALGO_BUFFER_RECV, from),
                        wefti_at(from, WEFT_ALGO_BUFFER_SEND, rank), wefti_one(from));
    }
}

/* 1 ready | 2 + turn collected | then the host's ranks are read | then the collectors are. */
void wefti_hier_all_to_all(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    wefti_hier_t h;
    uint32_t rank = params->rank, other;
    if (!wefti_hier_init(&h, params, b)) {
        return;
    }
    uint32_t turns = wefti_hier_turns(&h), most = h.place.largest, read = FIRST + turns;
    wefti_hier_post(&h, 1);
    wefti_hier_wait_host(&h, 1);
    for (uint32_t turn = 0; wefti_hier_collected(&h, rank, turn, &other); turn++) {
        collect(&h, other, turn * most);
        wefti_hier_post(&h, FIRST + turn);
    }
    exchange_in_host(&h, turns * most);
    wefti_hier_post(&h, read);
    if (params->in_place) {
        wefti_hier_wait_host(&h, read);
        spread(&h, h.place.own, rank, turns * most);
    }
    for (uint32_t i = 1; i < h.place.hosts; i++) {
        uint32_t host = wefti_next(h.place.own, i, h.place.hosts);
        uint32_t from = wefti_hier_collector(&h, host, rank);
        uint32_t turn = wefti_hier_turn(&h, host, rank);
        wefti_hier_wait(&h, from, FIRST + turn);
        spread(&h, host, from, turn * most);
    }
    wefti_hier_post(&h, read + 1);
    wefti_hier_wait_host(&h, read);
    for (uint32_t turn = 0; wefti_hier_collected(&h, rank, turn, &other); turn++) {
        wefti_hier_wait(&h, other, read + 1);
    }
    wefti_hier_deinit(&h);
}

static void gather_to_root(wefti_hier_t *h)
{
    uint32_t rank = h->params->rank;
    wefti_copy_own(h->params, h->b, wefti_one(rank));
    for (uint32_t i = 0; i < wefti_hier_size(h); i++) {
        uint32_t from = wefti_member(&h->place, h->place.own, i);
        if (from != rank) {
            wefti_hier_wait(h, from, 1);
            wefti_hier_copy(h, wefti_at(rank, WEFT_ALGO_BUFFER_RECV, from),
                            wefti_at(from, WEFT_ALGO_BUFFER_SEND, from), wefti_one(from));
        }
    }
    for (uint32_t i = 1; i < h->place.hosts; i++) {
        uint32_t host = wefti_next(h->place.own, i, h->place.hosts);
        uint32_t from = wefti_hier_collector(h, host, rank);
        wefti_hier_wait(h, from, 2);
        spread(h, host, from, 0);
    }
    wefti_hier_post(h, 3);
}

/* 1 ready | 2 collected | 3 the root has them. */
void wefti_hier_gather(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    wefti_hier_t h;
    if (!wefti_hier_init(&h, params, b)) {
        return;
    }
    uint32_t rank = params->rank, root = params->root;
    uint32_t collector = wefti_hier_collector(&h, h.place.own, root);
    bool at_root = h.place.own == h.place.host[root];
    wefti_hier_post(&h, 1);
    if (rank == root) {
        gather_to_root(&h);
    } else if (!at_root && rank == collector) {
        wefti_hier_wait_host(&h, 1);
        collect(&h, 0, 0);
        wefti_hier_post(&h, 2);
        wefti_hier_wait(&h, root, 3);
    } else {
        wefti_hier_wait(&h, at_root ? root : collector, at_root ? 3 : 2);
    }
    wefti_hier_deinit(&h);
}

/* What crosses to another host: its collector takes all of it. */
static void take_for_host(wefti_hier_t *h)
{
    uint32_t size = wefti_hier_size(h), own = h->place.own, end;
    for (uint32_t i = 0; i < size; i = end) {
        uint32_t rank = wefti_member(&h->place, own, i);
        end = end_of_run(&h->place, own, i);
        wefti_hier_copy(h, wefti_at(h->params->rank, WEFT_ALGO_BUFFER_SCRATCH, i),
                        wefti_at(h->params->root, WEFT_ALGO_BUFFER_SEND, rank),
                        (weft_blocks_t){rank, 1, end - i});
    }
}

/* 1 the root's blocks are here | 2 a collector has its host's | 3 the rank has its own. */
void wefti_hier_scatter(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    wefti_hier_t h;
    if (!wefti_hier_init(&h, params, b)) {
        return;
    }
    uint32_t rank = params->rank, root = params->root;
    uint32_t collector = wefti_hier_collector(&h, h.place.own, root);
    bool at_root = h.place.own == h.place.host[root];
    weft_place_t to = wefti_at(rank, WEFT_ALGO_BUFFER_RECV, rank);
    if (rank == root) {
        wefti_hier_post(&h, 1);
        wefti_copy_own(params, b, wefti_one(rank));
        wefti_hier_post(&h, 3);
    } else if (at_root) {
        wefti_hier_wait(&h, root, 1);
        wefti_hier_copy(&h, to, wefti_at(root, WEFT_ALGO_BUFFER_SEND, rank), wefti_one(rank));
        wefti_hier_post(&h, 3);
    } else {
        uint32_t slot = h.place.member[rank];
        if (rank == collector) {
            wefti_hier_wait(&h, root, 1);
            take_for_host(&h);
            wefti_hier_post(&h, 2);
        }
        wefti_hier_wait(&h, collector, 2);
        wefti_hier_copy(&h, to, wefti_at(collector, WEFT_ALGO_BUFFER_SCRATCH, slot),
                        wefti_one(rank));
        wefti_hier_post(&h, 3);
    }
    if (rank == root || (!at_root && rank == collector)) {
        wefti_hier_wait_host(&h, 3);
    }
    for (uint32_t i = 1; rank == root && i < h.place.hosts; i++) {
        uint32_t host = wefti_next(h.place.own, i, h.place.hosts);
        wefti_hier_wait(&h, wefti_hier_collector(&h, host, root), 2);
    }
    wefti_hier_deinit(&h);
}
