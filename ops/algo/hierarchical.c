/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hierarchical composition over hosts, which are runs of consecutive ranks: what crosses hosts does
 * so once.
 *
 * The data is cut into shards (blocks, for an all-gather); on each host, shard b belongs to member
 * b mod size.
 *
 *   all-reduce   the owners reduce their host's ranks | owners of one shard read each other's sums
 * and finish | the host's ranks copy from its owners all-gather   each block is fetched by its
 * owner on every other host | the host's ranks copy from its owners broadcast    one rank per host
 * reads from the root | the others from that one
 *
 * A host that is no whole subtree of the in-order tree hands on the sums of its largest subtrees
 * (at most 2 log2 n of them), and who finishes joins them as the tree says: so bits do not depend
 * on where ranks run.
 */
#include "ops/algo/algorithms.h"

#define MAX_HOSTS 4096u

typedef struct host {
    uint32_t first, size;
} host_t;

static uint32_t host_count(const weft_algo_params_t *params)
{
    return params->host_count;
}

static host_t host_at(const weft_algo_params_t *params, uint32_t index)
{
    host_t host = {0, params->host_sizes[0]};
    for (uint32_t i = 1; i <= index; i++) {
        host.first += params->host_sizes[i - 1];
        host.size = params->host_sizes[i];
    }
    return host;
}

static host_t host_of(const weft_algo_params_t *params, uint32_t rank)
{
    host_t host = {0, params->host_sizes[0]};
    for (uint32_t i = 1; rank - host.first >= host.size; i++) {
        host.first += host.size;
        host.size = params->host_sizes[i];
    }
    return host;
}

static uint32_t largest_host(const weft_algo_params_t *params)
{
    uint32_t largest = 1;
    for (uint32_t i = 0; i < host_count(params); i++) {
        largest = params->host_sizes[i] > largest ? params->host_sizes[i] : largest;
    }
    return largest;
}

static uint32_t smallest_host(const weft_algo_params_t *params)
{
    uint32_t smallest = params->group_size;
    for (uint32_t i = 0; i < host_count(params); i++) {
        smallest = params->host_sizes[i] < smallest ? params->host_sizes[i] : smallest;
    }
    return smallest;
}

static uint32_t owner(host_t host, uint32_t block)
{
    return host.first + block % host.size;
}

/* Whether sums are handed on per block of the order, which are then the hosts. */
static bool by_blocks(const weft_algo_params_t *params)
{
    return params->order == WEFT_ORDER_BLOCKS && wefti_needs_tree(params) != NULL;
}

static const char *eligible(const weft_algo_params_t *params)
{
    if (params->host_count < 2) {
        return "the group is on one host";
    }
    return params->host_count > MAX_HOSTS ? "it is made for up to 4096 hosts" : NULL;
}

static const char *eligible_reduction(const weft_algo_params_t *params)
{
    const char *reason = eligible(params);
    if (reason != NULL || !by_blocks(params)) {
        return reason;
    }
    for (uint32_t i = 0; i < params->host_count; i++) {
        if (params->host_count != params->order_size_count ||
            params->host_sizes[i] != params->order_sizes[i]) {
            return "the order's blocks are not the hosts";
        }
    }
    return params->host_count > WEFTI_MAX_ORDER_BLOCKS ? WEFTI_REASON_ORDER : NULL;
}

static uint32_t half_of(uint32_t size)
{
    uint32_t half = 1;
    while (half * 2 < size) {
        half *= 2;
    }
    return half;
}

/* Subtrees of [first, first + size) that lie in the host and in no larger one that does. */
static uint32_t count_subtrees(host_t host, uint32_t first, uint32_t size)
{
    if (first >= host.first + host.size || first + size <= host.first) {
        return 0;
    }
    if (first >= host.first && first + size <= host.first + host.size) {
        return 1;
    }
    uint32_t half = half_of(size);
    return count_subtrees(host, first, half) + count_subtrees(host, first + half, size - half);
}

static uint32_t sums_of_host(const weft_algo_params_t *params, host_t host)
{
    return by_blocks(params) ? 1 : count_subtrees(host, 0, params->group_size);
}

static void reduce_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    uint32_t most = 0, all = 0;
    for (uint32_t i = 0; i < host_count(params); i++) {
        uint32_t sums = sums_of_host(params, host_at(params, i));
        most = sums > most ? sums : most;
        all += sums;
    }
    uint32_t shards = largest_host(params);
    uint32_t smallest = smallest_host(params);
    out->phases = 4;
    out->blocks = shards;
    /* Sums for the shards a rank may own, then what joining needs. */
    out->scratch_slots = (shards + smallest - 1) / smallest * most + all;
}

typedef struct joining {
    const weft_algo_params_t *params;
    weft_schedule_builder_t *b;
    uint32_t block, most;
    uint32_t slot; /* next free one for a joined sum */
} joining_t;

static uint32_t most_sums(const weft_algo_params_t *params)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < host_count(params); i++) {
        uint32_t sums = sums_of_host(params, host_at(params, i));
        most = sums > most ? sums : most;
    }
    return most;
}

/* First slot of the sums that an owner keeps for a block. */
static uint32_t slot_of(host_t host, uint32_t block, uint32_t most)
{
    return block / host.size * most;
}

/* The owner's part: its host's subtrees, left to right. Returns how many. */
static uint32_t reduce_subtrees(const joining_t *j, host_t host, uint32_t first, uint32_t size,
                                uint32_t number)
{
    if (first >= host.first + host.size || first + size <= host.first) {
        return 0;
    }
    if ((first >= host.first && first + size <= host.first + host.size)) {
        weft_place_t members = wefti_at_each(first, size, WEFT_ALGO_SEND, j->block);
        weft_place_t sum =
            wefti_at(j->params->rank, WEFT_ALGO_SCRATCH, slot_of(host, j->block, j->most) + number);
        weft_schedule_reduce(j->b, 0, &sum, 1, &members, 1, wefti_one(j->block), 0);
        return 1;
    }
    uint32_t half = half_of(size);
    uint32_t left = reduce_subtrees(j, host, first, half, number);
    return left + reduce_subtrees(j, host, first + half, size - half, number + left);
}

/* Where the sum of [first, first + size) is, joined here unless a host has it. */
static weft_place_t join(joining_t *j, uint32_t first, uint32_t size, bool whole)
{
    host_t host = host_of(j->params, first);
    if (first + size <= host.first + host.size && !whole) {
        /* The hosts' sums are met from left to right, so those left of first in the host come
         * before. */
        host_t before = {host.first, first - host.first};
        uint32_t number = before.size > 0 ? count_subtrees(before, 0, j->params->group_size) : 0;
        uint32_t rank = owner(host, j->block);
        return wefti_at(rank, WEFT_ALGO_SCRATCH, slot_of(host, j->block, j->most) + number);
    }
    uint32_t half = half_of(size);
    weft_place_t sources[2];
    sources[0] = join(j, first, half, false);
    sources[1] = join(j, first + half, size - half, false);
    weft_place_t sum = whole ? wefti_at(j->params->rank, WEFT_ALGO_RECV, j->block)
                             : wefti_at(j->params->rank, WEFT_ALGO_SCRATCH, j->slot++);
    weft_schedule_reduce(j->b, 0, &sum, 1, sources, 2, wefti_one(j->block), whole);
    return sum;
}

static void join_blocks(const joining_t *j)
{
    weft_place_t sources[WEFTI_MAX_ORDER_BLOCKS];
    for (uint32_t i = 0; i < host_count(j->params); i++) {
        host_t host = host_at(j->params, i);
        sources[i] =
            wefti_at(owner(host, j->block), WEFT_ALGO_SCRATCH, slot_of(host, j->block, j->most));
    }
    weft_place_t result = wefti_at(j->params->rank, WEFT_ALGO_RECV, j->block);
    weft_schedule_reduce(j->b, 0, &result, 1, sources, host_count(j->params), wefti_one(j->block),
                         1);
}

/* Waits until the owners of the block on all other hosts have reached phase. */
static void wait_owners(const joining_t *j, uint32_t phase)
{
    for (uint32_t i = 0; i < host_count(j->params); i++) {
        uint32_t rank = owner(host_at(j->params, i), j->block);
        if (rank != j->params->rank) {
            wefti_wait(j->b, rank, phase);
        }
    }
}

/* Everybody of the host copies the blocks that others of the host own. */
static void copy_in_host(const weft_algo_params_t *params, weft_schedule_builder_t *b, host_t host,
                         uint32_t blocks, uint32_t phase)
{
    uint32_t r = params->rank;
    for (uint32_t member = 1; member < host.size; member++) {
        uint32_t from = host.first + wefti_next(r - host.first, member, host.size);
        uint32_t first = from - host.first;
        wefti_wait(b, from, phase);
        if (first < blocks) {
            weft_blocks_t owned = {first, host.size, (blocks - first - 1) / host.size + 1};
            weft_schedule_copy(b, 0, (weft_place_t){r, 1, WEFT_ALGO_RECV, first, host.size},
                               (weft_place_t){from, 1, WEFT_ALGO_RECV, first, host.size}, owned);
        }
    }
    weft_schedule_post(b, 0, phase + 1);
    weft_schedule_wait(b, 0, host.first, host.size, 0, phase + 1, 0);
}

static void all_reduce(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    host_t host = host_of(params, params->rank);
    uint32_t shards = largest_host(params);
    uint32_t own = params->rank - host.first;
    joining_t j = {.params = params, .b = b, .most = most_sums(params)};
    weft_schedule_post(b, 0, 1);
    weft_schedule_wait(b, 0, host.first, host.size, 0, 1, 0);
    for (j.block = own; j.block < shards; j.block += host.size) {
        if (by_blocks(params)) {
            weft_place_t members = wefti_at_each(host.first, host.size, WEFT_ALGO_SEND, j.block);
            weft_place_t sum =
                wefti_at(params->rank, WEFT_ALGO_SCRATCH, slot_of(host, j.block, j.most));
            weft_schedule_reduce(b, 0, &sum, 1, &members, 1, wefti_one(j.block), 0);
        } else {
            reduce_subtrees(&j, host, 0, params->group_size, 0);
        }
    }
    weft_schedule_post(b, 0, 2);
    for (j.block = own; j.block < shards; j.block += host.size) {
        wait_owners(&j, 2);
        j.slot = (shards + smallest_host(params) - 1) / smallest_host(params) * j.most;
        if (by_blocks(params)) {
            join_blocks(&j);
        } else {
            join(&j, 0, params->group_size, true);
        }
    }
    weft_schedule_post(b, 0, 3);
    copy_in_host(params, b, host, shards, 3);
    for (j.block = own; j.block < shards; j.block += host.size) {
        wait_owners(&j, 3);
    }
}

static void gather_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    (void)params;
    out->phases = 3;
}

/* Every rank starts with another block, so that not all read from one. */
static void all_gather(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t n = params->group_size;
    host_t host = host_of(params, params->rank);
    uint32_t r = params->rank;
    weft_schedule_post(b, 0, 1);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t block = wefti_next(r, i, n);
        if (owner(host, block) != r) {
            continue;
        }
        if (block == r) {
            wefti_copy_own(params, b, wefti_one(r));
            continue;
        }
        wefti_wait(b, block, 1);
        weft_schedule_copy(b, 0, wefti_at(r, WEFT_ALGO_RECV, block),
                           wefti_at(block, WEFT_ALGO_SEND, block), wefti_one(block));
    }
    weft_schedule_post(b, 0, 2);
    /* The blocks of residue m modulo the host's size belong to member m. */
    for (uint32_t i = 0; i < host_count(params); i++) {
        host_t other = host_at(params, i);
        wefti_wait(b, owner(other, r), 2); /* who fetched the own block there */
    }
    copy_in_host(params, b, host, n, 2);
}

static void broadcast_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    (void)params;
    out->phases = 2;
}

/* Phase 1: the data is here, 2: the rank has read what it wanted. */
static void broadcast(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    uint32_t r = params->rank, root = params->root;
    host_t host = host_of(params, r);
    bool with_root = root - host.first < host.size;
    uint32_t leader = with_root ? root : host.first;
    uint32_t from = r == leader ? root : leader;
    if (r != root) {
        weft_algo_buffer_t buffer = from == root ? WEFT_ALGO_SEND : WEFT_ALGO_RECV;
        wefti_wait(b, from, 1);
        weft_schedule_copy(b, 0, wefti_at(r, WEFT_ALGO_RECV, 0), wefti_at(from, buffer, 0),
                           wefti_one(0));
    }
    weft_schedule_post(b, 0, r == root || r == leader ? 1 : 2);
    if (r == root) {
        wefti_copy_own(params, b, wefti_one(0));
        for (uint32_t i = 0; i < host_count(params); i++) {
            host_t other = host_at(params, i);
            if (other.first != host.first) {
                wefti_wait(b, other.first, 1);
            }
        }
    }
    for (uint32_t member = host.first; r == leader && member < host.first + host.size; member++) {
        if (member != leader) {
            wefti_wait(b, member, 2);
        }
    }
}

static const weft_algorithm_t table[] = {
    WEFTI_ALGORITHM(WEFT_OP_ALL_REDUCE, "hierarchical", "inside hosts, between hosts, inside hosts",
                    eligible_reduction, reduce_resources, all_reduce),
    WEFTI_ALGORITHM(WEFT_OP_ALL_GATHER, "hierarchical", "each block crosses to each host once",
                    eligible, gather_resources, all_gather),
    WEFTI_ALGORITHM(WEFT_OP_ALL_GATHER_V, "hierarchical", "each block crosses to each host once",
                    eligible, gather_resources, all_gather),
    WEFTI_ALGORITHM(WEFT_OP_BROADCAST, "hierarchical", "once to each host, then inside", eligible,
                    broadcast_resources, broadcast),
};
WEFTI_ALGORITHM_LIST(wefti_hierarchical_algorithms, table);
