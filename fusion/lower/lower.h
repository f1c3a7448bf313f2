/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lowering: from the graph, whose programs list what a plan runs, to the records of the plan. Each
 * stage reads the results of earlier ones, and fills its own:
 *
 *   order.c      what each stream runs: items (kernels), commands (collectives)
 *   buckets.c    the flat ranges of collectives: members; updates.c: their updates
 *   folds.c      partial sums and roundings between gradients and their collectives
 *   regions.c    memory that lasts; activations.c: memory of the other values; ranges.c: of
 *                weights that are gathered for a time
 *   kernels.c    plan kernels
 *   collectives.c, program.c    plan collectives; events and programs
 *   data.c       weights section and bindings
 *
 * Helpers of several stages: buffers.c, bucket_buffers.c (plan buffers), algorithms.c.
 */
#ifndef WEFT_FUSION_LOWER_H
#define WEFT_FUSION_LOWER_H

#include "fusion/fusion.h"

typedef struct wefti_lowering wefti_lowering_t;

/* ---- order.c ---- */

/* One kernel of the compute stream, or a piece of it. */
typedef struct wefti_item {
    uint32_t node, part;
} wefti_item_t;

/* One collective of the comm stream, or a piece of it: the plan collective of the same number. */
typedef struct wefti_command {
    uint32_t node;
    uint32_t part, parts; /* of a collective on several activations: which one */
    uint32_t ready;       /* how many items have run when it may start */
} wefti_command_t;

typedef struct wefti_order {
    uint32_t *nodes; /* of all programs but init and eval, without variants */
    uint32_t node_count;
    uint32_t *variant_of, *next_variant; /* of a node: what runs in its place elsewhere, a chain */
    wefti_readers_t readers;
    wefti_item_t *items;
    uint32_t item_count;
    wefti_command_t *commands;
    uint32_t command_count;
    uint32_t *item_of, *command_of;  /* node -> its first one, or WEFTI_NONE */
    wefti_constraint_t *constraints; /* with a collective on one side: nodes */
    uint32_t constraint_count;
} wefti_order_t;

weft_status_t wefti_lower_order(wefti_lowering_t *lowering, wefti_order_t *out);
/* The first input of a collective that is a member of its range, and the number of members. */
uint32_t wefti_lower_members(const wefti_node_t *node, uint32_t *out_first);
/* A node that only names a part of memory. */
static inline bool wefti_lower_is_view(const wefti_node_t *node)
{
    return wefti_node_range(node) == WEFT_RANGE_ROLE_SHARD;
}
/* Is it an update that reads what a collective reduced as one range? Then the collective's node,
 * else WEFTI_NONE. */
uint32_t wefti_lower_range_update(const wefti_graph_t *graph, const wefti_node_t *update);

/* ---- buckets.c ---- */

/* One tensor of a bucket. */
typedef struct wefti_member {
    uint32_t value;   /* the gradient of this rank */
    uint32_t sent;    /* what is reduced, in place: value, or a fold of it */
    uint32_t reduced; /* the collective's output: the same memory afterwards; WEFTI_NONE: sharded */
    uint32_t param;   /* whose gradient it is */
} wefti_member_t;

/* What one command reduces. Members lie side by side. A collective that is split is as many
 * buckets, one after the other, of one node and one member, each with its part of the range. */
typedef struct wefti_bucket {
    uint32_t node, command;
    wefti_member_t *members;
    uint32_t member_count;
    uint32_t part, parts;
    /* The range divides into a shard for every rank, which that rank reduces and updates. */
    bool sharded;
    bool fused; /* one collective reduces, updates and gathers: the update is in no stream */
    /* Parameters are sharded: gathers write ranges (ranges.c). Kernels write their gradients to
     * ranges unless partial sums follow, or a norm, which is taken over padding: only padding of
     * memory that is not reused is zero. */
    bool gathered, passing;
    /* One kernel updates all of the range; else WEFTI_NONE and NULL. Of operands that members have
     * in turn the first one's, or shards. */
    uint32_t update;
    const weft_op_def_t *update_def;
    const uint32_t *operands;
    uint32_t operand_count;
} wefti_bucket_t;

typedef struct wefti_buckets {
    wefti_bucket_t *list; /* in the order of commands */
    uint32_t count;
    uint32_t *of_node;  /* -> the first bucket that it reduces, updates or gathers, or WEFTI_NONE */
    uint32_t *shard_of; /* value -> the first bucket whose shards it is, or WEFTI_NONE */
    uint32_t *state_of; /* value -> the first bucket whose sharded state it is, or WEFTI_NONE */
    uint32_t *state_slot; /* STATE value -> its region, or WEFTI_NONE */
    uint32_t state_count; /* regions */
    uint32_t shards;      /* the number of ranks if a bucket is sharded, else 1 */
    bool half;            /* gradients are reduced as bf16, all but running statistics */
} wefti_buckets_t;

weft_status_t wefti_lower_buckets(wefti_lowering_t *lowering, wefti_buckets_t *out);
/* The bucket of a command or of an item; WEFTI_NONE: of an activation, of other kernels. */
uint32_t wefti_lower_command_bucket(const wefti_lowering_t *lowering, uint32_t command);
uint32_t wefti_lower_item_bucket(const wefti_lowering_t *lowering, uint32_t item);
/* Are the gradients of a bucket reduced as bf16? Else they are reduced where kernels write them. */
bool wefti_lower_is_rounded(const wefti_lowering_t *lowering, const wefti_bucket_t *bucket);
/* How many bytes of what is reduced belong to so many bytes of gradients, where any are reduced as
 * bf16; its type. */
uint64_t wefti_lower_grad_bytes(const wefti_lowering_t *lowering, uint64_t bytes);
weft_dtype_t wefti_lower_grad_dtype(const wefti_lowering_t *lowering, const wefti_bucket_t *bucket);
weft_dtype_t wefti_lower_param_dtype(const wefti_lowering_t *lowering,
                                     const wefti_bucket_t *bucket);
/* Does a node gather weights into memory of their own, not into that of the parameters? */
bool wefti_lower_is_copy(const wefti_graph_t *graph, const wefti_node_t *node);
/* Where the parameters of a bucket are, or their positions. */
uint64_t wefti_lower_param_offset(const wefti_lowering_t *lowering, uint32_t bucket);
/* updates.c: operator and operands of the update of a bucket, and its number among the state
 * regions. */
weft_status_t wefti_lower_update(wefti_lowering_t *lowering, uint32_t node,
                                 wefti_buckets_t *buckets);

/* ---- folds.c ---- */

typedef struct wefti_fold {
    uint32_t node, bucket; /* the first piece */
    uint32_t level;        /* of the partial sum, or WEFTI_NONE: what the collective reduces */
} wefti_fold_t;

typedef struct wefti_folds {
    wefti_fold_t *list; /* in the order of the compute stream */
    uint32_t count, level_count;
    uint32_t *level_of; /* by value: of a partial sum, or WEFTI_NONE */
    uint32_t *first_of; /* by value, of a gradient: its partial sum 0, or WEFTI_NONE */
    bool *has;          /* by bucket: a fold makes what is reduced */
} wefti_folds_t;

weft_status_t wefti_lower_find_folds(wefti_lowering_t *lowering, wefti_folds_t *out);

/* ---- buffers.c: plan buffers ---- */

/* Of a bucket, made on first use (bucket_buffers.c). */
typedef struct wefti_bucket_buffers {
    uint32_t param_shard, grad_shard, param_range;
} wefti_bucket_buffers_t;

typedef struct wefti_buffers {
    uint32_t *of; /* value -> plan buffer, or WEFTI_NONE */
    wefti_bucket_buffers_t *of_bucket;
    uint64_t cursor; /* arena bytes handed out */
} wefti_buffers_t;

weft_status_t wefti_lower_create_buffers(wefti_lowering_t *lowering, wefti_buffers_t *out);
/* Hands out bytes of the arena, padded. */
weft_status_t wefti_lower_advance(wefti_lowering_t *lowering, uint64_t bytes);
/* Adds the plan buffer of a value. */
weft_status_t wefti_lower_add_buffer(wefti_lowering_t *lowering, uint32_t value,
                                     wefti_buffer_kind_t kind, uint64_t offset);
/* Adds a flat range of one region of a bucket as a plan buffer. */
weft_status_t wefti_lower_add_range(wefti_lowering_t *lowering, const char *name,
                                    weft_dtype_t dtype, uint64_t offset_bytes, uint64_t size_bytes,
                                    uint32_t *out_buffer);

/* ---- regions.c ---- */

/* Where a bucket lies in the regions. */
typedef struct wefti_place {
    uint64_t begin_bytes, end_bytes; /* of parameters and gradients */
    uint64_t state_begin_bytes;
    uint32_t *states; /* sharded: plan buffer of a rank's share, by state slot */
    uint32_t *levels; /* plan buffers of partial sums, by level, without the first */
} wefti_place_t;

typedef struct wefti_regions {
    wefti_place_t *places; /* by bucket */
    uint64_t param_begin, grad_begin, *state_begin;
    uint64_t local_begin; /* gradients as kernels write them: grad_begin unless reduced as bf16 */
    uint64_t first_begin; /* partial sum 0: gradients of a micro-batch that folds nothing */
    uint64_t bytes;       /* of parameters */
    uint64_t grad_bytes;  /* of gradients: the same, and those of sharded parameters */
    uint64_t state_bytes; /* of a state: the same, less what is only on other ranks */
    uint64_t kept_bytes;  /* payload of all that lasts */
} wefti_regions_t;

weft_status_t wefti_lower_regions(wefti_lowering_t *lowering, wefti_regions_t *out);
/* ---- ranges.c: tensors side by side as in a bucket, in memory that is reused ---- */

typedef struct wefti_range {
    uint32_t bucket;      /* the first piece */
    uint32_t gather;      /* the node that writes it; WEFTI_NONE: gradients */
    bool sent;            /* gradients: as they are reduced */
    uint32_t first, last; /* times (activations.c) */
    uint64_t size_bytes, offset_bytes;
    uint32_t buffer; /* in the plan */
} wefti_range_t;

typedef struct wefti_ranges {
    wefti_range_t *list;
    uint32_t count;
    bool *has;                  /* value: lies in a range */
    uint32_t *of_gather;        /* node -> range */
    uint32_t *own_of, *sent_of; /* bucket -> gradients as kernels write them, as they are reduced */
} wefti_ranges_t;

/* activations.c: memory of all other values, and of ranges. */
weft_status_t wefti_lower_activations(wefti_lowering_t *lowering, wefti_ranges_t *out);
/* Which ranges there are; ends: by command, when it is over. Then, with offset_bytes set, their
 * buffers. */
weft_status_t wefti_lower_find_ranges(wefti_lowering_t *lowering, const uint32_t *ends,
                                      wefti_ranges_t *out);
weft_status_t wefti_lower_place_ranges(wefti_lowering_t *lowering, wefti_ranges_t *ranges);
/* Adds the plan buffer of the piece of a range that belongs to a bucket. */
weft_status_t wefti_lower_add_piece(wefti_lowering_t *lowering, const char *name, uint32_t range,
                                    uint32_t bucket, uint32_t *out_buffer);

/* ---- bucket_buffers.c: plan buffers of ranges of buckets ---- */

/* Of a sharded bucket: a rank's parameters and gradients. */
weft_status_t wefti_lower_param_shard(wefti_lowering_t *lowering, uint32_t bucket,
                                      uint32_t *out_buffer);
weft_status_t wefti_lower_grad_shard(wefti_lowering_t *lowering, uint32_t bucket,
                                     uint32_t *out_buffer);
/* The same of a bucket whose parameters are sharded: shards last, though the ranges do not.
 * inout_kept_bytes: of all that lasts. */
weft_status_t wefti_lower_add_shards(wefti_lowering_t *lowering, uint32_t bucket,
                                     uint64_t *inout_kept_bytes);
/* All of it; gradients as they are sent, or as kernels write them: a new buffer. */
weft_status_t wefti_lower_param_range(wefti_lowering_t *lowering, uint32_t bucket,
                                      uint32_t *out_buffer);
weft_status_t wefti_lower_grad_range(wefti_lowering_t *lowering, const char *name, uint32_t bucket,
                                     bool sent, uint32_t *out_buffer);
uint64_t wefti_lower_range_bytes(const wefti_lowering_t *lowering, uint32_t bucket);

/* ---- kernels.c ---- */

typedef struct wefti_kernels {
    uint32_t *of_item, *of_variant; /* of_variant: by node, or WEFTI_NONE */
    uint32_t *of_bucket;            /* the update of a fused bucket */
} wefti_kernels_t;

weft_status_t wefti_lower_kernels(wefti_lowering_t *lowering, wefti_kernels_t *out);
/* describe_kernel.c: all of a kernel but its buffers. */
weft_status_t wefti_lower_describe_kernel(wefti_lowering_t *lowering, const wefti_node_t *node,
                                          const char *name, wefti_plan_kernel_t *kernel);
/* fold_kernels.c: adds those of folds. */
weft_status_t wefti_lower_folds(wefti_lowering_t *lowering, wefti_kernels_t *kernels);

/* ---- collectives.c, program.c, data.c ---- */

weft_status_t wefti_lower_collectives(wefti_lowering_t *lowering);
/* activation_collectives.c: the ranks that a collective is of; all ranks where the mesh lacks its
 * group. */
wefti_axis_t wefti_lower_axis(const wefti_lowering_t *lowering, const wefti_node_t *node);
/* Checks a collective on activations. */
weft_status_t wefti_lower_check_activations(const wefti_lowering_t *lowering,
                                            const wefti_node_t *node);
/* algorithms.c: the candidates for a collective on a range of that many bytes, by cost; what is in
 * the list already is forgotten. Then, if the node has a list of its own, these. */
weft_status_t wefti_lower_add_algorithms(wefti_lowering_t *lowering, const wefti_node_t *node,
                                         wefti_plan_collective_t *collective, uint64_t bytes,
                                         const wefti_bucket_cost_t *cost);
weft_status_t wefti_lower_programs(wefti_lowering_t *lowering);
weft_status_t wefti_lower_data(wefti_lowering_t *lowering);

/* What all stages get. */
struct wefti_lowering {
    const wefti_graph_t *graph;
    const wefti_lower_params_t *params;
    weft_plan_t *plan;
    wefti_arena_t arena;       /* what only lowering needs */
    const weft_op_def_t *fold; /* weft::TreeFold */
    const wefti_order_t *order;
    const wefti_buckets_t *buckets;
    const wefti_folds_t *folds;
    const wefti_regions_t *regions;
    const wefti_kernels_t *kernels;
    const wefti_ranges_t *ranges;
    wefti_buffers_t *buffers;
    struct wefti_rankings *rankings; /* [group] algorithms.c: fusion/rankings.h */
    const uint32_t *places;          /* by node (wefti_graph_places); NULL: all ranks run all */
};

static inline uint32_t wefti_lower_place_of(const wefti_lowering_t *lowering, uint32_t node)
{
    return lowering->places == NULL ? 0 : lowering->places[node];
}

static inline bool wefti_lower_is_fold(const wefti_lowering_t *lowering, uint32_t node)
{
    return lowering->fold != NULL && lowering->graph->nodes[node].def == lowering->fold;
}

#endif
