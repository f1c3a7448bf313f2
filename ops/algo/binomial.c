/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Binomial trees over the in-order subtrees of ranks, for any root. Each subtree of 2^k ranks has
 * one holder: the root where it is inside, else the subtree's first rank. Data moves between the
 * holders of two neighbouring subtrees, upwards (reduce, gather) or downwards (broadcast, scatter).
 */
#include "ops/algo/algorithms.h"

/* A rank's place in the tree: the level at which another holder takes over, its own subtree below.
 */
typedef struct tree {
    uint32_t n, levels, r, root;
    uint32_t top;    /* r holds its subtree of 2^top and no larger one */
    uint32_t parent; /* holder of the larger one; r itself at the root */
} tree_t;

static uint32_t holder(const tree_t *tree, uint32_t base, uint32_t level)
{
    bool inside = tree->root >= base && tree->root - base < 1u << level;
    return inside ? tree->root : base;
}

static tree_t tree_of(const weft_algo_params_t *params)
{
    tree_t tree = {
        params->group_size, wefti_log2_ceil(params->group_size), params->rank, params->root, 0,
        params->rank};
    while (tree.top < tree.levels) {
        uint32_t base = (tree.r >> (tree.top + 1)) << (tree.top + 1);
        uint32_t above = holder(&tree, base, tree.top + 1);
        if (above != tree.r) {
            tree.parent = above;
            break;
        }
        tree.top++;
    }
    return tree;
}

/* The neighbour of r's subtree of 2^level, if r holds the join of both: its base and holder. */
static bool child_at(const tree_t *tree, uint32_t level, uint32_t *out_base, uint32_t *out_child)
{
    uint32_t base = ((tree->r >> level) << level) ^ (1u << level);
    *out_base = base;
    *out_child = holder(tree, base, level);
    return base < tree->n;
}

static uint32_t subtree_size(const tree_t *tree, uint32_t base, uint32_t level)
{
    return tree->n - base < 1u << level ? tree->n - base : 1u << level;
}

static void vector_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    out->phases = wefti_log2_ceil(params->group_size) + 1;
    out->scratch_slots = params->op == WEFT_COLLECTIVE_REDUCE ? 1 : 0;
    out->by_placement = 1;
}

static void broadcast(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    tree_t tree = tree_of(params);
    uint32_t base, child;
    if (tree.r != tree.root) {
        weft_algo_buffer_t buffer =
            tree.parent == tree.root ? WEFT_ALGO_BUFFER_SEND : WEFT_ALGO_BUFFER_RECV;
        wefti_wait(b, tree.parent, 1);
        weft_schedule_copy(b, 0, wefti_at(tree.r, WEFT_ALGO_BUFFER_RECV, 0),
                           wefti_at(tree.parent, buffer, 0), wefti_one(0));
    }
    weft_schedule_post(b, 0, 1);
    if (tree.r == tree.root) {
        wefti_copy_own(params, b, wefti_one(0));
    }
    for (uint32_t level = tree.top; level-- > 0;) {
        if (child_at(&tree, level, &base, &child)) {
            wefti_wait(b, child, 1);
        }
    }
}

/* Sums stay in one slot: who reads it reads the last one. */
static void reduce(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    tree_t tree = tree_of(params);
    uint32_t base, child;
    if (tree.n == 1) {
        wefti_copy_own(params, b, wefti_one(0));
        return;
    }
    weft_place_t mine = wefti_at(tree.r, WEFT_ALGO_BUFFER_SEND, 0);
    for (uint32_t level = 0; level < tree.top; level++) {
        if (!child_at(&tree, level, &base, &child)) {
            continue;
        }
        tree_t below = tree;
        below.r = child;
        uint32_t ignored_base, ignored;
        bool leaf = true; /* the child has added nothing to its own data */
        for (uint32_t k = 0; k < level; k++) {
            leaf = leaf && !child_at(&below, k, &ignored_base, &ignored);
        }
        bool last = tree.r == tree.root && level + 1 == tree.levels;
        weft_place_t theirs =
            wefti_at(child, leaf ? WEFT_ALGO_BUFFER_SEND : WEFT_ALGO_BUFFER_SCRATCH, 0);
        weft_place_t sources[2] = {base < tree.r ? theirs : mine, base < tree.r ? mine : theirs};
        mine = wefti_at(tree.r, last ? WEFT_ALGO_BUFFER_RECV : WEFT_ALGO_BUFFER_SCRATCH, 0);
        wefti_wait(b, child, level + 1);
        weft_schedule_reduce(b, 0, &mine, 1, sources, 2, wefti_one(0), last);
        weft_schedule_post(b, 0, level + 1);
    }
    if (tree.r != tree.root) {
        weft_schedule_post(b, 0, tree.top + 1);
        wefti_wait(b, tree.parent, tree.top + 1);
    }
}

/* Slot i of a holder: the block of rank r + i, for it is the first of its subtree. */
static void block_resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    uint32_t levels = wefti_log2_ceil(params->group_size);
    out->phases = levels + 1;
    out->scratch_slots = levels > 0 ? 1u << (levels - 1) : 0;
    out->by_placement = 1;
}

static void gather(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    tree_t tree = tree_of(params);
    uint32_t base, child;
    if (tree.r == tree.root) {
        wefti_copy_own(params, b, wefti_one(tree.r));
    }
    for (uint32_t level = 0; level < tree.top; level++) {
        if (!child_at(&tree, level, &base, &child)) {
            continue;
        }
        uint32_t size = subtree_size(&tree, base, level);
        weft_algo_buffer_t buffer =
            tree.r == tree.root ? WEFT_ALGO_BUFFER_RECV : WEFT_ALGO_BUFFER_SCRATCH;
        uint32_t first = tree.r == tree.root ? base : base - tree.r;
        wefti_wait(b, child, level + 1);
        weft_schedule_copy(b, 0, wefti_at(tree.r, buffer, first),
                           wefti_at(child, WEFT_ALGO_BUFFER_SEND, child), wefti_one(child));
        weft_schedule_copy(b, 0, wefti_at(tree.r, buffer, first + 1),
                           wefti_at(child, WEFT_ALGO_BUFFER_SCRATCH, 1),
                           (weft_blocks_t){child + 1, 1, size - 1});
        weft_schedule_post(b, 0, level + 1);
    }
    if (tree.r != tree.root) {
        weft_schedule_post(b, 0, tree.top + 1);
        wefti_wait(b, tree.parent, tree.top + 1);
    }
}

static void scatter(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    tree_t tree = tree_of(params);
    uint32_t base, child;
    if (tree.r == tree.root) {
        weft_schedule_post(b, 0, 1);
        wefti_copy_own(params, b, wefti_one(tree.r));
    } else {
        uint32_t size = subtree_size(&tree, tree.r, tree.top);
        bool root = tree.parent == tree.root;
        weft_algo_buffer_t buffer = root ? WEFT_ALGO_BUFFER_SEND : WEFT_ALGO_BUFFER_SCRATCH;
        uint32_t first = root ? tree.r : tree.r - tree.parent;
        wefti_wait(b, tree.parent, 1);
        weft_schedule_copy(b, 0, wefti_at(tree.r, WEFT_ALGO_BUFFER_RECV, tree.r),
                           wefti_at(tree.parent, buffer, first), wefti_one(tree.r));
        weft_schedule_copy(b, 0, wefti_at(tree.r, WEFT_ALGO_BUFFER_SCRATCH, 1),
                           wefti_at(tree.parent, buffer, first + 1),
                           (weft_blocks_t){tree.r + 1, 1, size - 1});
        weft_schedule_post(b, 0, 1);
    }
    for (uint32_t level = tree.top; level-- > 0;) {
        if (child_at(&tree, level, &base, &child)) {
            wefti_wait(b, child, 1);
        }
    }
}

static const weft_algorithm_t table[] = {
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_BROADCAST, "binomial", "holders of subtrees, in log2 n steps",
                    wefti_always_eligible, vector_resources, broadcast),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_REDUCE, "binomial", "sums of subtrees, in log2 n steps",
                    wefti_needs_tree, vector_resources, reduce),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_GATHER, "binomial", "blocks of subtrees, in log2 n steps",
                    wefti_always_eligible, block_resources, gather),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_SCATTER, "binomial", "blocks of subtrees, in log2 n steps",
                    wefti_always_eligible, block_resources, scatter),
};
WEFTI_ALGORITHM_LIST(wefti_binomial_algorithms, table);
