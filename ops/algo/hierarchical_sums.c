/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of hosts: a host that is no whole subtree of the group's order hands on the sums of its
 * largest subtrees, and who finishes joins them as the order says: so bits do not depend on where
 * ranks run. A host whose ranks do not follow each other at all has a subtree per rank.
 *
 *   tree, 8 ranks, hosts aaabbbbb          ((0 1) (2 3)) ((4 5) (6 7))
 *                                            a      a b     b     b     a: 0+1, 2   b: 3, 4..7
 */
#include "ops/algo/hierarchical.h"

#include "ops/algo/schedule.h"

/* Orders whose blocks are no subtrees. */
static bool by_blocks(const weft_algo_params_t *params)
{
    return params->order == WEFT_ORDER_BLOCKS && wefti_needs_tree(params) != NULL;
}

static bool any_order(const weft_algo_params_t *params)
{
    return params->order == WEFT_ORDER_ANY;
}

static wefti_subtree_t whole(const weft_algo_params_t *params)
{
    bool blocks = by_blocks(params);
    return (wefti_subtree_t){blocks, 0, blocks ? params->order_size_count : params->group_size, 0,
                             params->group_size};
}

static uint32_t half_of(uint32_t size)
{
    uint32_t half = 1;
    while (half * 2 < size) {
        half *= 2;
    }
    return half;
}

/* The two subtrees that one consists of; a block of the order is the tree over its ranks. */
static void split(const weft_algo_params_t *params, const wefti_subtree_t *node,
                  wefti_subtree_t out[2])
{
    uint32_t half = half_of(node->size), ranks = half;
    if (node->of_blocks) {
        ranks = 0;
        for (uint32_t i = 0; i < half; i++) {
            ranks += params->order_sizes[node->first + i];
        }
    }
    out[0] = (wefti_subtree_t){node->of_blocks, node->first, half, node->first_rank, ranks};
    out[1] = (wefti_subtree_t){node->of_blocks, node->first + half, node->size - half,
                               node->first_rank + ranks, node->rank_count - ranks};
    for (uint32_t i = 0; i < 2; i++) {
        if (out[i].of_blocks && out[i].size == 1) {
            out[i] = (wefti_subtree_t){false, out[i].first_rank, out[i].rank_count,
                                       out[i].first_rank, out[i].rank_count};
        }
    }
}

static uint32_t host_of_subtree(const wefti_hier_t *h, const wefti_subtree_t *node)
{
    bool inside = h->place.run_end[node->first_rank] - node->first_rank >= node->rank_count;
    return inside ? h->place.host[node->first_rank] : WEFTI_NO_HOST;
}

static void count_sums(wefti_hier_t *h, const wefti_subtree_t *node)
{
    uint32_t host = host_of_subtree(h, node);
    if (host != WEFTI_NO_HOST) {
        h->sums[host]++;
        return;
    }
    wefti_subtree_t halves[2];
    split(h->params, node, halves);
    count_sums(h, &halves[0]);
    count_sums(h, &halves[1]);
}

const char *wefti_hier_eligible(const weft_algo_params_t *params)
{
    if (wefti_placement_hosts(params) < 2) {
        return "the group is on one host";
    }
    return params->group_size > WEFTI_MAX_PLACED_RANKS ? "it is made for up to 4096 ranks" : NULL;
}

const char *wefti_hier_eligible_reduction(const weft_algo_params_t *params)
{
    const char *reason = wefti_hier_eligible(params);
    return reason != NULL ? reason : wefti_any_order(params);
}

bool wefti_hier_init(wefti_hier_t *h, const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    *h = (wefti_hier_t){.params = params, .b = b};
    size_t hosts = wefti_placement_hosts(params);
    h->sums = wefti_alloc(NULL, 2 * hosts * sizeof *h->sums);
    if (h->sums == NULL || !wefti_placement_init(&h->place, params)) {
        if (b != NULL) {
            b->status = WEFT_ERR_NO_MEMORY;
        }
        wefti_hier_deinit(h);
        return false;
    }
    h->met = h->sums + hosts;
    if (any_order(params)) {
        for (uint32_t host = 0; host < hosts; host++) {
            h->sums[host] = 1;
        }
    } else if (wefti_collective_reduces(params->op)) {
        wefti_subtree_t root = whole(params);
        count_sums(h, &root);
    }
    for (uint32_t host = 0; host < hosts; host++) {
        h->most_sums = h->sums[host] > h->most_sums ? h->sums[host] : h->most_sums;
    }
    return true;
}

void wefti_hier_deinit(wefti_hier_t *h)
{
    wefti_placement_deinit(&h->place);
    wefti_free(NULL, h->sums);
    h->sums = NULL;
}

bool wefti_hier_sums_nothing(const wefti_hier_t *h)
{
    for (uint32_t host = 0; host < h->place.hosts; host++) {
        if (h->sums[host] != wefti_host_size(&h->place, host)) {
            return false;
        }
    }
    return true;
}

uint32_t wefti_hier_temporaries(const wefti_hier_t *h)
{
    uint32_t all = 0;
    for (uint32_t host = 0; host < h->place.hosts && !any_order(h->params); host++) {
        all += h->sums[host];
    }
    /* Inside a subtree of blocks each block has a sum of its own, too. */
    return all + (by_blocks(h->params) ? h->params->order_size_count : 0) + 1;
}

static weft_place_t temporary(wefti_hier_t *h)
{
    return wefti_at(h->params->rank, WEFT_ALGO_BUFFER_SCRATCH, h->temporary++);
}

/* Sources that are ranks of one host, however they are spread. */
static uint32_t members_of(const wefti_hier_t *h, uint32_t block, weft_place_t *places)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < h->place.ranks; r = h->place.run_end[r]) {
        if (h->place.host[r] == h->place.own) {
            places[count++] =
                wefti_at_each(r, h->place.run_end[r] - r, WEFT_ALGO_BUFFER_SEND, block);
        }
    }
    return count;
}

/* Under order=any: one sum, of all ranks of the host. */
static void reduce_members(wefti_hier_t *h, uint32_t block, weft_place_t to)
{
    weft_place_t *places = wefti_alloc(NULL, wefti_hier_size(h) * sizeof *places);
    if (places == NULL) {
        h->b->status = WEFT_ERR_NO_MEMORY;
        return;
    }
    uint32_t count = members_of(h, block, places);
    weft_schedule_reduce(h->b, h->lane, &to, 1, places, count, wefti_one(block), 0);
    wefti_free(NULL, places);
}

void wefti_hier_reduce_subtree(wefti_hier_t *h, const wefti_subtree_t *node, uint32_t block,
                               weft_place_t to)
{
    if (any_order(h->params)) {
        reduce_members(h, block, to);
        return;
    }
    if (!node->of_blocks) {
        weft_place_t members =
            wefti_at_each(node->first_rank, node->rank_count, WEFT_ALGO_BUFFER_SEND, block);
        weft_schedule_reduce(h->b, h->lane, &to, 1, &members, 1, wefti_one(block), 0);
        return;
    }
    /* The tree over the blocks is the one over their sums. */
    weft_place_t partial[WEFTI_MAX_ORDER_BLOCKS];
    uint32_t first_rank = node->first_rank;
    for (uint32_t i = 0; i < node->size; i++) {
        uint32_t size = h->params->order_sizes[node->first + i];
        weft_place_t members = wefti_at_each(first_rank, size, WEFT_ALGO_BUFFER_SEND, block);
        partial[i] = members;
        if (size > 1) {
            partial[i] = temporary(h);
            weft_schedule_reduce(h->b, h->lane, &partial[i], 1, &members, 1, wefti_one(block), 0);
        }
        first_rank += size;
    }
    weft_schedule_reduce(h->b, h->lane, &to, 1, partial, node->size, wefti_one(block), 0);
}

typedef struct own_sums {
    uint32_t block, slot;
} own_sums_t;

static void reduce_in_host(wefti_hier_t *h, const wefti_subtree_t *node, own_sums_t *own)
{
    uint32_t host = host_of_subtree(h, node);
    if (host == h->place.own) {
        weft_place_t sum = wefti_at(h->params->rank, WEFT_ALGO_BUFFER_SCRATCH, own->slot++);
        wefti_hier_reduce_subtree(h, node, own->block, sum);
    } else if (host == WEFTI_NO_HOST) {
        wefti_subtree_t halves[2];
        split(h->params, node, halves);
        reduce_in_host(h, &halves[0], own);
        reduce_in_host(h, &halves[1], own);
    }
}

void wefti_hier_reduce_own(wefti_hier_t *h, uint32_t block, uint32_t first_slot)
{
    own_sums_t own = {block, first_slot};
    wefti_subtree_t root = whole(h->params);
    if (any_order(h->params)) {
        reduce_members(h, block, wefti_at(h->params->rank, WEFT_ALGO_BUFFER_SCRATCH, first_slot));
        return;
    }
    reduce_in_host(h, &root, &own);
}

typedef struct joining {
    wefti_hier_t *h;
    uint32_t block;
    weft_place_t to;
    wefti_sum_place_fn place;
    void *user;
} joining_t;

/* Where the sum of node is: as a host has it, or joined here. */
static weft_place_t join(const joining_t *j, const wefti_subtree_t *node, bool finish)
{
    wefti_hier_t *h = j->h;
    uint32_t host = host_of_subtree(h, node);
    if (host != WEFTI_NO_HOST) {
        uint32_t number = h->met[host]++;
        return h->direct ? wefti_at(node->first_rank, WEFT_ALGO_BUFFER_SEND, j->block)
                         : j->place(j->user, host, j->block, node, number);
    }
    wefti_subtree_t halves[2];
    weft_place_t sources[2];
    split(h->params, node, halves);
    sources[0] = join(j, &halves[0], false);
    sources[1] = join(j, &halves[1], false);
    weft_place_t sum = finish ? j->to : temporary(h);
    weft_schedule_reduce(h->b, h->lane, &sum, 1, sources, 2, wefti_one(j->block), finish);
    return sum;
}

/* Under order=any: one reduction of all hosts' sums. */
static void join_all(const joining_t *j)
{
    wefti_hier_t *h = j->h;
    weft_place_t *sources = wefti_alloc(NULL, h->place.hosts * sizeof *sources);
    wefti_subtree_t none = {0};
    if (sources == NULL) {
        h->b->status = WEFT_ERR_NO_MEMORY;
        return;
    }
    for (uint32_t host = 0; host < h->place.hosts; host++) {
        uint32_t first = wefti_member(&h->place, host, 0);
        sources[host] = h->direct ? wefti_at(first, WEFT_ALGO_BUFFER_SEND, j->block)
                                  : j->place(j->user, host, j->block, &none, 0);
    }
    weft_schedule_reduce(h->b, h->lane, &j->to, 1, sources, h->place.hosts, wefti_one(j->block), 1);
    wefti_free(NULL, sources);
}

void wefti_hier_join(wefti_hier_t *h, uint32_t block, weft_place_t to, wefti_sum_place_fn place,
                     void *user)
{
    joining_t j = {h, block, to, place, user};
    wefti_subtree_t root = whole(h->params);
    if (any_order(h->params)) {
        join_all(&j);
        return;
    }
    for (uint32_t host = 0; host < h->place.hosts; host++) {
        h->met[host] = 0;
    }
    join(&j, &root, true);
}

/* ---- steps on the lane at hand ---- */

void wefti_hier_post(wefti_hier_t *h, uint32_t phase)
{
    weft_schedule_post(h->b, h->lane, phase);
}

void wefti_hier_wait(wefti_hier_t *h, uint32_t rank, uint32_t phase)
{
    if (rank != h->params->rank) {
        weft_schedule_wait(h->b, h->lane, rank, 1, h->lane, phase, 0);
    }
}

void wefti_hier_wait_host(wefti_hier_t *h, uint32_t phase)
{
    for (uint32_t r = 0; r < h->place.ranks; r = h->place.run_end[r]) {
        uint32_t count = h->place.run_end[r] - r;
        if (h->place.host[r] == h->place.own && (count > 1 || r != h->params->rank)) {
            weft_schedule_wait(h->b, h->lane, r, count, h->lane, phase, 0);
        }
    }
}

void wefti_hier_copy(wefti_hier_t *h, weft_place_t to, weft_place_t from, weft_blocks_t blocks)
{
    weft_schedule_copy(h->b, h->lane, to, from, blocks);
}
