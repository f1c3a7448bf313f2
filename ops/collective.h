/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shapes of the collectives: one table, from which all other files take who contributes, who
 * receives, how long buffers are and what they share in place. A new collective is one row of
 * WEFT_COLLECTIVE_MAP (include/weft/types.h) and its algorithms.
 *
 *     send      receive   without a root           root sends   root receives   in place
 *     VECTOR    VECTOR    AllReduce                Broadcast    Reduce          recv == send
 *     BLOCK     BLOCKS    AllGather, AllGatherV                 Gather          send == recv + at
 *     BLOCKS    BLOCK     ReduceScatter(V)         Scatter                      recv == send + at
 *     BLOCKS    BLOCKS    AllToAll, AllToAllV                                   recv == send
 *
 * A call has one count: elements of the VECTOR or of every block. V forms have counts and
 * displacements per rank instead, and a rank's own BLOCK has no displacement. "at" is where the
 * rank's block begins among the BLOCKS. AllToAllV is never in place, because the blocks that it
 * sends and receives differ in length. SendRecv moves a VECTOR between two ranks, so neither has
 * both buffers.
 *
 * Received block b on rank r is: the reduction of all ranks' blocks b; or the root's block b; or
 * rank b's own block; or, from BLOCKS to BLOCKS, rank b's block r.
 */
#ifndef WEFT_OPS_COLLECTIVE_H
#define WEFT_OPS_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>

#include <weft/algo.h>

/* One side of an operator: weft_extent_t and weft_holder_t. */
typedef struct wefti_side {
    uint8_t extent, holder;
} wefti_side_t;

/* Eight bytes, since every call reads them several times. */
typedef struct wefti_collective {
    wefti_side_t send, recv;
    bool reduces, rooted;
    bool variable; /* V forms: counts per rank */
    bool in_place; /* the buffers may overlap, in the way that the extents imply */
} wefti_collective_t;

/* Rows of the table: values of weft_collective_t start at 1 and have no gaps. */
enum {
#define ONE_MORE(...) +1
    WEFTI_OPS = 1 WEFT_COLLECTIVE_MAP(ONE_MORE)
#undef ONE_MORE
};

/* By weft_collective_t; the first row stands for every other value. */
extern const wefti_collective_t wefti_collectives[WEFTI_OPS];

static inline const wefti_collective_t *wefti_collective_of(weft_collective_t op)
{
    return &wefti_collectives[(uint32_t)op < WEFTI_OPS ? (uint32_t)op : 0];
}

static inline bool wefti_collective_known(weft_collective_t op)
{
    return (uint32_t)op - 1 < WEFTI_OPS - 1;
}

/* Of C and Python: "reduce_scatter". */
const char *wefti_collective_function(weft_collective_t op);
/* 0 for a name that no operator has. */
weft_collective_t wefti_collective_from_name(const char *name);

static inline bool wefti_collective_reduces(weft_collective_t op)
{
    return wefti_collective_of(op)->reduces;
}

static inline bool wefti_collective_rooted(weft_collective_t op)
{
    return wefti_collective_of(op)->rooted;
}

static inline bool wefti_collective_is_variable(weft_collective_t op)
{
    return wefti_collective_of(op)->variable;
}

/* The operator moves one vector, which algorithms cut into as many shards as they need. */
static inline bool wefti_collective_is_vector(weft_collective_t op)
{
    return wefti_collective_of(op)->send.extent == WEFT_EXTENT_VECTOR;
}

/* Each rank sends its own block; all ranks, or the root, receive the blocks of all. */
static inline bool wefti_collective_gathers(weft_collective_t op)
{
    return wefti_collective_of(op)->send.extent == WEFT_EXTENT_BLOCK;
}

/* Each rank receives its own block of those that all ranks, or the root, send. */
static inline bool wefti_collective_scatters(weft_collective_t op)
{
    return wefti_collective_of(op)->recv.extent == WEFT_EXTENT_BLOCK;
}

/* Each rank sends a block to each rank. */
static inline bool wefti_collective_exchanges(weft_collective_t op)
{
    const wefti_collective_t *shape = wefti_collective_of(op);
    return shape->send.extent == WEFT_EXTENT_BLOCKS && shape->recv.extent == WEFT_EXTENT_BLOCKS;
}

/* One count describes the buffers of all ranks: no V form, SendRecv or Barrier. Plans, buckets and
 * fused calls have room for nothing else. */
static inline bool wefti_collective_has_one_count(weft_collective_t op)
{
    const wefti_collective_t *shape = wefti_collective_of(op);
    return shape->send.extent != WEFT_EXTENT_NOTHING && !shape->variable &&
           shape->recv.holder != WEFT_HOLDER_PEER;
}

/* V forms of which all ranks have the same counts: AllGatherV and ReduceScatterV. */
static inline bool wefti_collective_has_shared_counts(weft_collective_t op)
{
    return wefti_collective_is_variable(op) && !wefti_collective_exchanges(op);
}

/* Their counts, then displacements, [2 * group_size]: a part of counts as wefti_send_shape takes
 * them. */
static inline const uint64_t *wefti_shared_counts(weft_collective_t op, uint32_t group_size,
                                                  const uint64_t *counts)
{
    return counts + (wefti_collective_gathers(op) ? 2 * (size_t)group_size : 0);
}

/* Whether the rank has the buffer. Not for SendRecv: the peer is not an argument. */
static inline bool wefti_side_is_on(wefti_side_t side, bool is_root)
{
    return side.holder == WEFT_HOLDER_ALL || is_root;
}

/* Blocks of count elements in the buffer: the vector counts as one. */
static inline uint32_t wefti_side_blocks(wefti_side_t side, uint32_t group_size)
{
    return side.extent == WEFT_EXTENT_BLOCKS ? group_size : side.extent != WEFT_EXTENT_NOTHING;
}

/* Where the rank's block begins in the longer buffer, which is where the shorter one lies in place.
 * 0 if both have the same length. Not for V forms, where displacements determine it. */
static inline uint64_t wefti_in_place_elems(weft_collective_t op, uint32_t rank, uint64_t count)
{
    const wefti_collective_t *shape = wefti_collective_of(op);
    return shape->send.extent != shape->recv.extent ? rank * count : 0;
}

/* A rank's buffer in one call. */
typedef struct wefti_buffer_shape {
    uint32_t blocks;        /* 0: the rank has no such buffer */
    uint64_t count;         /* elements of each block, if counts is NULL */
    const uint64_t *counts; /* NULL, or the blocks' counts, then their displacements */
} wefti_buffer_shape_t;

/* V forms: counts has [4 * group_size] entries: counts and displacements of the blocks of the send
 * buffer, then of the receive buffer. Only those of BLOCKS are read. */
wefti_buffer_shape_t wefti_send_shape(weft_collective_t op, uint32_t rank, uint32_t root,
                                      uint32_t group_size, uint64_t count, const uint64_t *counts);
wefti_buffer_shape_t wefti_recv_shape(weft_collective_t op, uint32_t rank, uint32_t root,
                                      uint32_t group_size, uint64_t count, const uint64_t *counts);
/* Elements from the buffer's begin to the end of the last block that is not empty. */
uint64_t wefti_shape_elems(const wefti_buffer_shape_t *shape);

/* ---- in schedules, where blocks have numbers ---- */

/* Calls of an algorithm, which may have data of its own. */
static inline const char *wefti_algorithm_reason(const weft_algorithm_t *algorithm,
                                                 const weft_algo_params_t *params)
{
    weft_algo_params_t own = *params;
    own.algorithm = algorithm;
    return algorithm->eligible(&own);
}

static inline void wefti_algorithm_resources(const weft_algorithm_t *algorithm,
                                             const weft_algo_params_t *params,
                                             weft_algo_resources_t *out)
{
    weft_algo_params_t own = *params;
    own.algorithm = algorithm;
    algorithm->resources(&own, out);
}

/* Parts of each block whose number the operator fixes. */
static inline uint32_t wefti_part_count(const weft_algo_resources_t *resources)
{
    return resources->parts > 0 ? resources->parts : 1;
}

/* Blocks of the operator: resources->blocks, or the group size times the parts of a block. */
uint32_t wefti_block_count(const weft_algo_params_t *params,
                           const weft_algo_resources_t *resources);
/* Whether the buffer (weft_algo_buffer_t) exists on rank, and then its blocks: *out_first and
 * *out_count. */
bool wefti_buffer_blocks(const weft_algo_params_t *params, const weft_algo_resources_t *resources,
                         uint32_t rank, uint32_t buffer, uint32_t *out_first, uint32_t *out_count);
/* The receive block that shares memory with the send block of the same rank when in place, or
 * false. */
bool wefti_in_place_alias(const weft_algo_params_t *params, const weft_algo_resources_t *resources,
                          uint32_t rank, uint32_t send_block, uint32_t *out_recv_block);

#endif
