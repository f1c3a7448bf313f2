/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the collectives' shapes, and what follows from it. */
#include "ops/collective.h"

#include <string.h>

/* Both sides hold blocks of one length, or one side holds a block of the other. */
#define CAN_OVERLAP(send, recv, counts)                                                            \
    ((send) != WEFT_EXTENT_NOTHING && ((send) != (recv) || !(counts)))

const wefti_collective_t wefti_collectives[WEFTI_OPS] = {
#define ROW(op, value, name, function, send_extent, sender, recv_extent, receiver, sums, v, like)  \
    [value] = {.send = {WEFT_EXTENT_##send_extent, WEFT_HOLDER_##sender},                          \
               .recv = {WEFT_EXTENT_##recv_extent, WEFT_HOLDER_##receiver},                        \
               .reduces = (sums),                                                                  \
               .rooted = WEFT_HOLDER_##sender == WEFT_HOLDER_ROOT ||                               \
                         WEFT_HOLDER_##receiver == WEFT_HOLDER_ROOT,                               \
               .variable = (v),                                                                    \
               .in_place = WEFT_HOLDER_##receiver != WEFT_HOLDER_PEER &&                           \
                           CAN_OVERLAP(WEFT_EXTENT_##send_extent, WEFT_EXTENT_##recv_extent, v)},
    WEFT_COLLECTIVE_MAP(ROW)
#undef ROW
};
_Static_assert(sizeof *wefti_collectives == 8, "a row is one load");

static const char *const names[WEFTI_OPS][2] = {{"unknown", "unknown"},
#define NAMES(op, value, name, function, ...) [value] = {(name), (function)},
                                                WEFT_COLLECTIVE_MAP(NAMES)
#undef NAMES
};

const char *weft_collective_name(weft_collective_t op)
{
    return names[wefti_collective_of(op) - wefti_collectives][0];
}

const char *wefti_collective_function(weft_collective_t op)
{
    return names[wefti_collective_of(op) - wefti_collectives][1];
}

weft_collective_t wefti_collective_from_name(const char *name)
{
    for (uint32_t op = 1; op < WEFTI_OPS; op++) {
        if (strcmp(names[op][0], name) == 0) {
            return (weft_collective_t)op;
        }
    }
    return (weft_collective_t)0;
}

static wefti_buffer_shape_t shape_of(const wefti_collective_t *op, bool sends, bool is_root,
                                     uint32_t rank, uint32_t group_size, uint64_t count,
                                     const uint64_t *counts)
{
    wefti_side_t side = sends ? op->send : op->recv;
    wefti_buffer_shape_t shape = {.blocks = wefti_side_blocks(side, group_size), .count = count};
    if (op->variable) {
        /* A rank's own block is as long as its block on the other side. */
        bool incoming = op->send.extent == WEFT_EXTENT_BLOCK ||
                        (!sends && op->recv.extent == WEFT_EXTENT_BLOCKS);
        counts += incoming ? 2 * (size_t)group_size : 0;
        shape.count = counts[rank];
        shape.counts = side.extent == WEFT_EXTENT_BLOCKS ? counts : NULL;
    }
    shape.blocks = wefti_side_is_on(side, is_root) ? shape.blocks : 0;
    return shape;
}

wefti_buffer_shape_t wefti_send_shape(weft_collective_t op, uint32_t rank, uint32_t root,
                                      uint32_t group_size, uint64_t count, const uint64_t *counts)
{
    return shape_of(wefti_collective_of(op), true, rank == root, rank, group_size, count, counts);
}

wefti_buffer_shape_t wefti_recv_shape(weft_collective_t op, uint32_t rank, uint32_t root,
                                      uint32_t group_size, uint64_t count, const uint64_t *counts)
{
    return shape_of(wefti_collective_of(op), false, rank == root, rank, group_size, count, counts);
}

uint64_t wefti_shape_elems(const wefti_buffer_shape_t *shape)
{
    uint64_t end = 0;
    if (shape->counts == NULL) {
        return shape->blocks * shape->count;
    }
    for (uint32_t r = 0; r < shape->blocks; r++) {
        uint64_t count = shape->counts[r];
        uint64_t last = count > 0 ? shape->counts[shape->blocks + r] + count : 0;
        end = last > end ? last : end;
    }
    return end;
}

uint32_t wefti_block_count(const weft_algo_params_t *params, const weft_algo_resources_t *resources)
{
    switch (wefti_collective_of(params->op)->send.extent) {
    case WEFT_EXTENT_NOTHING:
        return 0;
    case WEFT_EXTENT_VECTOR:
        return resources->blocks;
    default:
        return params->group_size * wefti_part_count(resources);
    }
}

static bool holds(const weft_algo_params_t *params, uint8_t holder, uint32_t rank)
{
    return holder == WEFT_HOLDER_ALL ||
           rank == (holder == WEFT_HOLDER_ROOT ? params->root : params->peer);
}

bool wefti_buffer_blocks(const weft_algo_params_t *params, const weft_algo_resources_t *resources,
                         uint32_t rank, uint32_t buffer, uint32_t *out_first, uint32_t *out_count)
{
    const wefti_collective_t *op = wefti_collective_of(params->op);
    if (buffer > WEFT_ALGO_BUFFER_RECV) {
        *out_first = 0;
        *out_count = resources->scratch_slots;
        return buffer == WEFT_ALGO_BUFFER_SCRATCH && *out_count > 0;
    }
    wefti_side_t side = buffer == WEFT_ALGO_BUFFER_SEND ? op->send : op->recv;
    bool own = side.extent == WEFT_EXTENT_BLOCK;
    uint32_t parts = wefti_part_count(resources);
    *out_first = own ? rank * parts : 0;
    *out_count = own ? parts : wefti_block_count(params, resources);
    return side.extent != WEFT_EXTENT_NOTHING && holds(params, side.holder, rank);
}

bool wefti_in_place_alias(const weft_algo_params_t *params, const weft_algo_resources_t *resources,
                          uint32_t rank, uint32_t send_block, uint32_t *out_recv_block)
{
    const wefti_collective_t *op = wefti_collective_of(params->op);
    *out_recv_block = send_block;
    return op->in_place && holds(params, op->send.holder, rank) &&
           holds(params, op->recv.holder, rank) &&
           (op->recv.extent != WEFT_EXTENT_BLOCK ||
            send_block / wefti_part_count(resources) == rank);
}
