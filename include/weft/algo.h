/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file algo.h Writing a collective algorithm.
 *
 * An algorithm is data: a pure function of (operator, group size, rank, root, parameters, topology)
 * that emits, for one rank, copies and reductions between places on any ranks, and the posts and
 * waits that order them. It never sees memory, counts, devices or links. Weft turns what it emits
 * into what the links between the ranks can do, and `weft verify` proves it for all ranks.
 *
 * Places. Every rank has a send buffer, a receive buffer and scratch, each a row of blocks. Sizes
 * stay symbolic: a block's length is known only when the collective is submitted.
 *
 *     operator        blocks  send buffer on rank r    receive buffer on rank r
 *     AllReduce       B       blocks 0..B-1            blocks 0..B-1
 *     Reduce          B       blocks 0..B-1            blocks 0..B-1 on the root
 *     Broadcast       B       blocks 0..B-1 on root    blocks 0..B-1
 *     SendRecv        B       blocks 0..B-1 on root    blocks 0..B-1 on peer
 *     AllGather(V)    N       block r                  blocks 0..N-1
 *     Gather          N       block r                  blocks 0..N-1 on the root
 *     ReduceScatter(V) N      blocks 0..N-1            block r
 *     Scatter         N       blocks 0..N-1 on root    block r
 *     AllToAll(V)     N       block d: goes to rank d  block s: came from rank s
 *
 * B is the algorithm's choice: the vector is cut into B shards that start on cache lines. Scratch
 * is a row of slots, each as long as the longest block. Scratch of an operator that reduces holds
 * sums that are not rounded yet (f32 for half types), so only reductions write it and only
 * reductions with finish write a user's buffer.
 *
 * Order. A lane is a sequence of steps; lanes of a rank run side by side, all starting with the run
 * and ending it. weft_schedule_post publishes all that its lane did so far; a wait for that phase
 * makes it visible. A run must end only when no other rank touches the rank's buffers any more;
 * scratch may be touched until the sets-th next run, sets being what resources asked for.
 */
#ifndef WEFT_ALGO_H
#define WEFT_ALGO_H

#include <weft/registry.h>

#define WEFT_ALGO_ABI_VERSION 1u

/* name, value, text, reduces, has a root */
#define WEFT_COLLECTIVE_MAP(X)                                                                     \
    X(ALL_REDUCE, 1, "AllReduce", 1, 0)                                                            \
    X(BROADCAST, 2, "Broadcast", 0, 1)                                                             \
    X(REDUCE_SCATTER, 3, "ReduceScatter", 1, 0)                                                    \
    X(ALL_GATHER, 4, "AllGather", 0, 0)                                                            \
    X(REDUCE, 5, "Reduce", 1, 1)                                                                   \
    X(GATHER, 6, "Gather", 0, 1)                                                                   \
    X(SCATTER, 7, "Scatter", 0, 1)                                                                 \
    X(ALL_TO_ALL, 8, "AllToAll", 0, 0)                                                             \
    X(ALL_GATHER_V, 9, "AllGatherV", 0, 0)                                                         \
    X(REDUCE_SCATTER_V, 10, "ReduceScatterV", 1, 0)                                                \
    X(ALL_TO_ALL_V, 11, "AllToAllV", 0, 0)                                                         \
    X(SEND_RECV, 12, "SendRecv", 0, 1)                                                             \
    X(BARRIER, 13, "Barrier", 0, 0)

typedef enum weft_collective {
#define WEFT_COLLECTIVE_ENUM(name, value, text, reduces, rooted) WEFT_OP_##name = (value),
    WEFT_COLLECTIVE_MAP(WEFT_COLLECTIVE_ENUM)
#undef WEFT_COLLECTIVE_ENUM
} weft_collective_t;

/** In which order a group's reductions combine ranks; part of the result's bits. */
typedef enum weft_order {
    WEFT_ORDER_TREE = 0, /**< in-order binary tree over ranks, split at the largest power of two */
    WEFT_ORDER_BLOCKS =
        1,              /**< such a tree inside each block of consecutive ranks, then over blocks */
    WEFT_ORDER_ANY = 2, /**< whatever is fastest; bits depend on the algorithm */
} weft_order_t;

/** All an algorithm may look at. Everything is borrowed. */
typedef struct weft_algo_params {
    size_t struct_size;
    weft_collective_t op;
    uint32_t group_size;
    uint32_t rank;     /**< whose schedule is built; resources and eligible must not look at it */
    uint32_t root;     /**< rooted operators; SendRecv: who sends */
    uint32_t peer;     /**< SendRecv: who receives */
    uint32_t in_place; /**< the operator's buffers overlap as its in-place rule says */
    uint32_t pieces; /**< into how many pieces to cut for pipelining; 0: the algorithm's default */
    weft_order_t order;
    const uint32_t *order_sizes; /**< WEFT_ORDER_BLOCKS: ranks of each block */
    uint32_t order_size_count;
    const uint32_t *host_sizes; /**< ranks on each host, hosts being runs of consecutive ranks */
    uint32_t host_count; /**< 0: one host, or hosts whose ranks do not follow each other: host_of */
    /* Appended: not there in the parameters of older callers, whose struct_size says so. */
    const uint32_t *host_of; /**< [group_size] the number of each rank's host; NULL: host_sizes */
    uint32_t host_of_count;  /**< hosts in host_of, each of which has a rank */
    const uint32_t *rail_of; /**< [group_size] the network card that each rank is next to, numbered
                                alike on all hosts; NULL: one, or not known */
} weft_algo_params_t;

/** What a schedule needs, equal on all ranks. */
typedef struct weft_algo_resources {
    uint32_t lanes;         /**< 0: one */
    uint32_t phases;        /**< highest phase that any lane posts */
    uint32_t blocks;        /**< B above, 0: one; ignored where the operator fixes it */
    uint32_t scratch_slots; /**< each as long as the longest block */
    uint32_t scratch_sets;  /**< runs take turns between so many copies of scratch; 0: one */
} weft_algo_resources_t;

typedef enum weft_algo_buffer {
    WEFT_ALGO_SEND = 0,
    WEFT_ALGO_RECV = 1,
    WEFT_ALGO_SCRATCH = 2,
} weft_algo_buffer_t;

/** Blocks block, block + step, ... of a buffer, on rank_count consecutive ranks (0: one). */
typedef struct weft_place {
    uint32_t rank, rank_count;
    weft_algo_buffer_t buffer;
    uint32_t block, step;
} weft_place_t;

/** Which of the operator's blocks are moved: first, first + step, ... (count of them). */
typedef struct weft_blocks {
    uint32_t first, step, count;
} weft_blocks_t;

typedef struct weft_schedule_builder weft_schedule_builder_t;

typedef struct weft_algorithm {
    uint32_t abi_version; /**< WEFT_ALGO_ABI_VERSION */
    weft_collective_t op;
    const char *name; /**< "ring"; unique for the operator */
    const char *doc;  /**< one line */
    /** NULL, or why the algorithm cannot do this (it cannot realise the order, ...). */
    const char *(*eligible)(const weft_algo_params_t *params);
    void (*resources)(const weft_algo_params_t *params, weft_algo_resources_t *out_resources);
    void (*build)(const weft_algo_params_t *params, weft_schedule_builder_t *builder);
} weft_algorithm_t;

WEFT_EXTERN_C_BEGIN
/** Own counter of lane reaches phase (from 1, growing; phases may be skipped). */
WEFT_API void weft_schedule_post(weft_schedule_builder_t *builder, uint32_t lane, uint32_t phase);
/**
 * Lane waits until their_lane of each of rank_count ranks from first_rank has reached phase. A lane
 * is never made to wait for itself: it is skipped.
 * @param[in] runs_back 0: of this run, 1: of the run before (true in the first run), and so on
 */
WEFT_API void weft_schedule_wait(weft_schedule_builder_t *builder, uint32_t lane,
                                 uint32_t first_rank, uint32_t rank_count, uint32_t their_lane,
                                 uint32_t phase, uint32_t runs_back);
/** Copies blocks as they are: both places hold the same kind of element. */
WEFT_API void weft_schedule_copy(weft_schedule_builder_t *builder, uint32_t lane,
                                 weft_place_t destination, weft_place_t source,
                                 weft_blocks_t blocks);
/**
 * Reduces the sources, in the in-order tree over their list (places of several ranks counted one by
 * one, split at the largest power of two), and writes the result to every destination. A single
 * source is only converted.
 * @param[in] finish 1: round and divide (avg): the destinations are user buffers; 0: they are
 * scratch
 */
WEFT_API void weft_schedule_reduce(weft_schedule_builder_t *builder, uint32_t lane,
                                   const weft_place_t *destinations, uint32_t destination_count,
                                   const weft_place_t *sources, uint32_t source_count,
                                   weft_blocks_t blocks, uint32_t finish);

/**
 * Adds an algorithm (borrowed until the registry is destroyed) beside the built-in ones. Groups of contexts made with
 * the registry (weft_context_params_t.registry) run it when asked to, and consider it when not. Before it
 * runs for a group size, root, order, in place or not, it is proved as by weft_algorithm_verify, and
 * refused with that message where it is not.
 * @return WEFT_ERR_INVALID_ARGUMENT if a slot is empty or the operator has an algorithm of that name,
 *         WEFT_ERR_UNSUPPORTED if it was built for another interface version
 */
WEFT_API weft_status_t weft_registry_add_algorithm(weft_registry_t *registry,
                                                   const weft_algorithm_t *algorithm);
/** @return the algorithm called name for op, built in or added; NULL when there is none. registry may be NULL. */
WEFT_API const weft_algorithm_t *weft_registry_find_algorithm(const weft_registry_t *registry,
                                                              weft_collective_t op,
                                                              const char *name);
/**
 * Proves the schedules of all ranks (params->rank is not looked at), over shared memory and over links that only
 * put and signal, for all counts: results and reduction order, no deadlock, no race, no access outside
 * a buffer. For tests of algorithms.
 * @return WEFT_ERR_INVALID_ARGUMENT with a message that names rank, step and why, WEFT_ERR_UNSUPPORTED with the
 *         algorithm's reason if it is not eligible
 */
WEFT_API weft_status_t weft_algorithm_verify(const weft_algorithm_t *algorithm,
                                             const weft_algo_params_t *params);
/** @return "AllReduce" and so on, or "unknown". */
WEFT_API const char *weft_collective_name(weft_collective_t op);
WEFT_EXTERN_C_END

#endif
