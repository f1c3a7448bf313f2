/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of lowering share. They run in this order:
 *
 *   order.c    items (what the compute stream runs), buckets (the comm stream), members;
 *                    updates.c has what comes last
 *   activations.c   plan buffers, lifetimes, offsets; regions.c lays out what lasts;
 *                    ranges.c has weights that are gathered for a time
 *   kernels.c  plan kernels; one update per bucket where its members agree;
 *                    folds.c what comes between gradients and their collective
 *   program.c  events and programs; collectives.c plan collectives
 *   data.c     weights section and bindings
 */
#ifndef WEFT_FUSION_LOWER_H
#define WEFT_FUSION_LOWER_H

#include "fusion/fusion.h"
#include "fusion/passes/gradient_sums.h"
#include "fusion/passes/update_group.h"

/* One kernel of the compute stream. */
typedef struct wefti_item {
    uint32_t node;   /* a coalesced update: the update of the bucket's first member */
    uint32_t bucket; /* WEFTI_NONE, or the bucket whose range this updates at once */
    uint32_t kernel; /* in the plan */
} wefti_item_t;

/* One tensor of a collective. */
typedef struct wefti_member {
    uint32_t value;   /* the gradient, or activation, of this rank */
    uint32_t sent;    /* what is reduced, in place: value, or a fold of it */
    uint32_t reduced; /* the collective's output: the same memory afterwards; WEFTI_NONE: sharded */
    uint32_t param;   /* whose gradient it is, or WEFTI_NONE */
} wefti_member_t;

/* A collective of the comm stream, or a piece of it. They stand in the order of the graph; each is
 * the collective of its number in the plan. */
typedef struct wefti_command {
    uint32_t node;
    uint32_t part, parts; /* parts is 1 unless split */
    uint32_t ready;       /* how many items have run when it may start */
    uint32_t bucket;      /* that it reduces, or whose weights it gathers; init: WEFTI_NONE */
    uint32_t range;       /* ranges.c: what a gather of sharded parameters writes */
} wefti_command_t;

/* What one collective reduces. Members lie side by side. A collective that is split is as many buckets, one
 * behind the other, of one node and one member, each with its part of the member's range; one on
 * several activations is a bucket for each of them, part being its number. */
typedef struct wefti_bucket {
    uint32_t node;
    weft_collective_t op;
    bool in_place; /* activations.c: an activation's result has the memory of what is read */
    wefti_member_t *members;
    uint32_t member_count;
    uint32_t part, parts; /* parts is 1 unless split */
    uint32_t command;     /* that reduces it */
    uint64_t begin_bytes; /* of the bucket in each region: gradients, parameters, states */
    uint64_t end_bytes;
    bool gradients; /* all members are gradients: they have regions; else a single activation */

    /* updates.c: the operator that one kernel runs on all of the range, or NULL; its operands: of
     * the members the first one's, or shards. */
    const weft_op_def_t *update_def;
    const uint32_t *operands;
    uint32_t operand_count;

    /* Sharded: the range divides into a shard for every rank, which that rank reduces, updates and
     * sends to the others. Implies update_def. */
    bool sharded;
    bool fused;                 /* all of that in one collective, whose update is in no stream */
    uint32_t update;            /* the node of update_def */
    uint32_t kernel;            /* in the plan: the update of a fused bucket */
    uint64_t state_begin_bytes; /* in each state region: where the bucket's states begin */
    uint32_t *states;           /* sharded: plan buffer of a rank's share, by state slot */
    uint32_t param_shard, grad_shard, param_range; /* plan buffers, made on first use */

    /* Parameters are sharded: gathers write ranges (ranges.c). Kernels write their gradients to
     * ranges unless partial sums follow, or a norm, which is taken over padding: only padding of
     * memory that is not reused is zero. */
    bool gathered, passing;
    uint32_t own_range, sent_range; /* of the first piece: gradients, as written and as reduced */

    uint32_t *levels; /* folds.c: plan buffers of partial sums, by level */
    bool folded;      /* folds.c: weft::TreeFold makes what is reduced */
} wefti_bucket_t;

/* ranges.c: tensors side by side as in a bucket, in memory that is reused. */
typedef struct wefti_range {
    uint32_t bucket;      /* the first piece */
    uint32_t gather;      /* the node that writes it; WEFTI_NONE: gradients */
    bool sent;            /* gradients: as they are reduced */
    uint32_t first, last; /* times (activations.c) */
    uint64_t size_bytes, offset_bytes;
    uint32_t buffer; /* in the plan */
} wefti_range_t;

typedef struct wefti_lowering {
    const wefti_graph_t *graph;
    const wefti_lower_params_t *params;
    weft_plan_t *plan;
    wefti_arena_t arena; /* what only lowering needs */
    uint32_t *order;     /* nodes of a step and of its micro-batches, in order, without variants */
    uint32_t order_count;
    uint32_t *variant_of, *next_variant; /* of a node: what runs in its place elsewhere, a chain */
    uint32_t *variant_kernel;            /* of a variant: in the plan */
    wefti_item_t *items;
    uint32_t item_count;
    wefti_command_t *commands;
    uint32_t command_count;
    wefti_bucket_t *buckets; /* in the order of commands */
    uint32_t bucket_count;
    wefti_constraint_t *constraints; /* with a collective on one side: nodes */
    uint32_t constraint_count;
    uint32_t *item_of;       /* node -> item, or WEFTI_NONE */
    uint32_t *command_of;    /* node -> (first) command, or WEFTI_NONE */
    uint32_t *buffer_of;     /* value -> plan buffer, or WEFTI_NONE */
    uint32_t *shard_of;      /* value -> the (first) bucket whose shards it is, or WEFTI_NONE */
    wefti_readers_t readers; /* of a step */
    uint32_t *state_slot; /* STATE value -> which state of its parameter, or WEFTI_NONE outside the
                             regions */
    uint32_t state_count; /* state regions */
    uint64_t param_begin, grad_begin, *state_begin; /* offsets of the regions */
    uint64_t
        local_begin; /* of gradients as kernels make them: grad_begin, unless what is reduced has
                             another type (wefti_lower_grad_bytes) */
    uint64_t first_begin; /* of gradients of a micro-batch that folds nothing, the partial sum 0 */
    struct wefti_folds *folds;     /* folds.c's */
    const weft_op_def_t *fold_def; /* weft::TreeFold */
    uint64_t region_bytes;         /* of parameters */
    uint64_t grad_region_bytes;    /* of gradients: also those of sharded parameters */
    uint64_t state_region_bytes;   /* of a state: the same, less what is only on other ranks */
    wefti_range_t *ranges;
    uint32_t range_count;
    bool *in_range;                  /* value: lies in a range */
    uint32_t shards;                 /* the number of ranks if updates are sharded, else 1 */
    struct wefti_rankings *rankings; /* algorithms.c: fusion/rankings.h */
    uint64_t arena_cursor;           /* arena bytes handed out */
    uint64_t kept_bytes;             /* payload of what is there all the time */
} wefti_lowering_t;

weft_status_t wefti_lower_order(wefti_lowering_t *lowering);
weft_status_t wefti_lower_memory(wefti_lowering_t *lowering);
weft_status_t wefti_lower_kernels(wefti_lowering_t *lowering);
weft_status_t wefti_lower_programs(wefti_lowering_t *lowering);
weft_status_t wefti_lower_data(wefti_lowering_t *lowering);

/* order.c: WEFTI_NONE for every id below count; items of a node at the end, of buckets in turn. */
uint32_t *wefti_lower_map(wefti_lowering_t *lowering, uint32_t count);
void wefti_lower_add_items(wefti_lowering_t *lowering, uint32_t node, uint32_t bucket,
                           uint32_t count);
/* The (first) bucket that the producer of a value reduces, or WEFTI_NONE. */
uint32_t wefti_lower_bucket_of(const wefti_lowering_t *lowering, uint32_t value);
/* updates.c: items of an update; its bucket gets operator and operands. */
weft_status_t wefti_lower_update(wefti_lowering_t *lowering, uint32_t node);
/* The same of a ReduceUpdateGather, which is in no stream of items. */
weft_status_t wefti_lower_fused_update(wefti_lowering_t *lowering, uint32_t bucket);
/* A node that only names a part of memory. */
bool wefti_lower_is_view(const wefti_node_t *node);
/* Of how many bytes a bucket's range is a multiple. */
uint64_t wefti_lower_unit_bytes(const wefti_lowering_t *lowering, const wefti_bucket_t *bucket);
/* A rank's share of the states of a sharded bucket. */
weft_status_t wefti_lower_add_shard_states(wefti_lowering_t *lowering, uint32_t bucket);
/* Plan buffer of operand slot of a sharded bucket's update. */
weft_status_t wefti_lower_shard_operand(wefti_lowering_t *lowering, uint32_t bucket, uint32_t slot,
                                        uint32_t *out_buffer);
/* Plan buffer of a rank's shard of a bucket's gradients. */
weft_status_t wefti_lower_grad_shard(wefti_lowering_t *lowering, uint32_t bucket,
                                     uint32_t *out_buffer);
/* Plan buffers of a sharded bucket, made on first use: a rank's parameters, and all of them. */
weft_status_t wefti_lower_param_shard(wefti_lowering_t *lowering, uint32_t bucket);
weft_status_t wefti_lower_param_range(wefti_lowering_t *lowering, uint32_t bucket);
uint64_t wefti_lower_range_bytes(const wefti_bucket_t *bucket);
weft_dtype_t wefti_lower_param_dtype(const wefti_lowering_t *lowering,
                                     const wefti_bucket_t *bucket);
/* Says how long so many bytes take; cost NULL: leaves what is said. */
void wefti_lower_predict(wefti_plan_collective_t *collective, const wefti_bucket_cost_t *cost,
                         uint64_t bytes);
/* Turns the collective of a sharded bucket, an all-reduce of all of the range, into what it is. */
weft_status_t wefti_lower_shard_collective(wefti_lowering_t *lowering, uint32_t bucket,
                                           wefti_plan_collective_t *collective);
/* gathers.c: the collective of a command that gathers the weights of a bucket. */
weft_status_t wefti_lower_gather(wefti_lowering_t *lowering, uint32_t command,
                                 wefti_plan_collective_t *collective);
/* ranges.c: gathers weights into memory of their own, not into that of the parameters? */
bool wefti_lower_is_copy(const wefti_lowering_t *lowering, const wefti_node_t *node);
/* Which ranges there are; ends: by command, when it is over. Then, with offset_bytes set, their
 * buffers. */
weft_status_t wefti_lower_find_ranges(wefti_lowering_t *lowering, const uint32_t *ends);
weft_status_t wefti_lower_place_ranges(wefti_lowering_t *lowering);
/* Plan buffer of what a command gathers, or of the gradients of a bucket, as kernels write them or
 * as they are sent. */
weft_status_t wefti_lower_gathered_range(wefti_lowering_t *lowering, const char *name,
                                         uint32_t command, uint32_t *out_buffer);
weft_status_t wefti_lower_grad_range(wefti_lowering_t *lowering, const char *name, uint32_t bucket,
                                     bool sent, uint32_t *out_buffer);
/* shards.c: where the parameters of a bucket are, or their positions. */
uint64_t wefti_lower_param_offset(const wefti_lowering_t *lowering, const wefti_bucket_t *bucket);
/* Shards of a bucket whose parameters are sharded. */
weft_status_t wefti_lower_add_shards(wefti_lowering_t *lowering, uint32_t bucket);
/* collectives.c: the plan's collectives, one per command; those of init come last. */
weft_status_t wefti_lower_collectives(wefti_lowering_t *lowering);
/* constraints.c: the graph's, where collectives are concerned. */
weft_status_t wefti_lower_constraints(wefti_lowering_t *lowering);
/* activation_collectives.c: the operator of a plan that a node is; false if it is none. */
bool wefti_lower_collective_op(const wefti_node_t *node, weft_collective_t *out_op);
/* The buckets of a collective that is not on gradients. */
weft_status_t wefti_lower_activations(wefti_lowering_t *lowering, uint32_t id);
/* algorithms.c: how a collective on a range of that many bytes may be carried out; what is in the
 * list already is forgotten. */
weft_status_t wefti_lower_add_algorithms(wefti_lowering_t *lowering,
                                         wefti_plan_collective_t *collective, uint64_t bytes);
/* In place of these, those that the graph asks for, and no others. */
weft_status_t wefti_lower_take_algorithms(wefti_lowering_t *lowering, const wefti_node_t *node,
                                          wefti_plan_collective_t *collective);
/* folds.c: how many bytes of what is reduced belong to so many bytes of gradients; and its type. */
uint64_t wefti_lower_grad_bytes(const wefti_lowering_t *lowering, uint64_t bytes);
weft_dtype_t wefti_lower_grad_dtype(const wefti_lowering_t *lowering, const wefti_bucket_t *bucket);
bool wefti_lower_is_fold(const wefti_lowering_t *lowering, uint32_t node);
/* The gradient of which value, read by a collective, is the fold, or value itself. */
uint32_t wefti_lower_unfolded(const wefti_lowering_t *lowering, uint32_t value);
/* How many kernels a fold is: one for each piece of the gradients. */
uint32_t wefti_lower_fold_parts(const wefti_lowering_t *lowering, uint32_t node);
/* Which folds there are, once buckets are known; buffers of partial sums, where buckets are placed;
 * then kernels. */
weft_status_t wefti_lower_find_folds(wefti_lowering_t *lowering);
weft_status_t wefti_lower_levels(wefti_lowering_t *lowering);
weft_status_t wefti_lower_folds(wefti_lowering_t *lowering);
/* regions.c: buffers of parameters, gradients, states and what is fed. */
weft_status_t wefti_lower_regions(wefti_lowering_t *lowering);
/* Hands out bytes of the arena, padded. */
weft_status_t wefti_lower_advance(wefti_lowering_t *lowering, uint64_t bytes);
/* Adds the plan buffer of a value. */
weft_status_t wefti_lower_add_buffer(wefti_lowering_t *lowering, uint32_t value,
                                     wefti_buffer_kind_t kind, uint64_t offset);
/* kernels.c: all of a kernel but its buffers. */
weft_status_t wefti_lower_describe_kernel(wefti_lowering_t *lowering, const wefti_node_t *node,
                                          const char *name, wefti_plan_kernel_t *kernel);
/* Adds a flat range of one region of a bucket as a plan buffer. */
weft_status_t wefti_lower_add_range(wefti_lowering_t *lowering, const char *name,
                                    weft_dtype_t dtype, uint64_t offset_bytes, uint64_t size_bytes,
                                    uint32_t *out_buffer);

#endif
