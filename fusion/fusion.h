/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of fusion share: policies, costs, views and edits of passes, lowering. The table
 * in pipeline.c has the order of the passes.
 */
#ifndef WEFT_FUSION_FUSION_H
#define WEFT_FUSION_FUSION_H

#include <weft/compile.h>
#include <weft/graph_view.h>
#include <weft/passes.h>

#include "fusion/planner.h"
#include "fusion/profile.h"
#include "graph/ir.h"
#include "graph/onnx/onnx.h"
#include "ops/collective.h"
#include "ops/cost/cost.h"
#include "ops/optimizers.h"
#include "ops/plan/plan.h"
#include "runtime/base/order.h"

typedef enum wefti_policy_kind {
    WEFTI_POLICY_BYTES = 0,
    WEFTI_POLICY_INDEX,
    WEFTI_POLICY_PERCENT,
    WEFTI_POLICY_ONE,
    WEFTI_POLICY_NONE,
    WEFTI_POLICY_AUTO,  /* planner.h */
    WEFTI_POLICY_MERGE, /* "mgwfbp": the merge rule of MG-WFBP */
} wefti_policy_kind_t;

typedef struct wefti_policy {
    wefti_policy_kind_t kind;
    uint64_t cap_bytes; /* never exceeded; at least 64, or 0: none */
    uint64_t
        window_ns; /* BYTES: 0, or close a bucket this long after its first gradient became ready */
    uint32_t value_count;
    uint64_t *values; /* INDEX, PERCENT; in arena */
} wefti_policy_t;

weft_status_t wefti_policy_parse(const char *text, wefti_arena_t *arena,
                                 wefti_policy_t *out_policy);
/* Rounds a cap down to a multiple of unit bytes, but to one at least. */
void wefti_policy_round_cap(wefti_policy_t *policy, uint64_t unit_bytes);

/* grads_map.c: the map of grads_path; in arena. */
typedef struct wefti_gradient_name {
    const char *param, *grad;
} wefti_gradient_name_t;
typedef struct wefti_gradient_map {
    const wefti_gradient_name_t *entries;
    uint32_t count;
} wefti_gradient_map_t;
weft_status_t wefti_grads_map_load(const char *path, wefti_arena_t *arena,
                                   wefti_gradient_map_t *out_map);

/* compiled.c: a model that is a compiled graph. Its parameters take the place of those that are not
 * given; given ones must be the same. */
typedef struct wefti_compiled {
    bool known;
    wefti_onnx_property_t *properties;
    uint32_t count;
} wefti_compiled_t;
weft_status_t wefti_compiled_params(weft_compile_params_t *params, wefti_arena_t *arena,
                                    wefti_compiled_t *out);
struct wefti_rules;
/* Writes what wefti_onnx_emit_begin took, with the choices of the plan, the files of rules, and
 * params as the caller gave them. */
weft_status_t wefti_compiled_write(const weft_compile_params_t *params,
                                   const struct wefti_rules *rules, const wefti_graph_t *graph,
                                   const weft_plan_t *plan, wefti_arena_t *arena,
                                   wefti_onnx_emit_t *emit);
/* Warns if the plan is not the one that was written. */
void wefti_compiled_compare(const wefti_compiled_t *compiled, const weft_plan_t *plan,
                            const wefti_log_t *log);

/* insert_collectives.c: an AllReduce (avg) of group on every value with grad_of. */
weft_status_t wefti_pass_insert_collectives(const weft_graph_view_t *view, uint32_t group,
                                            const weft_allocator_t *allocator,
                                            weft_edit_list_t **out_edits);
/* What an all-reduce is made of, by the bytes of the whole range. */
typedef struct wefti_shard_cost {
    wefti_bucket_cost_t reduce_scatter, all_gather;
} wefti_shard_cost_t;
typedef struct wefti_bucket_params {
    const wefti_policy_t *policy;
    const uint64_t *ready_ns;        /* per op, predicted; NULL: all at once */
    const wefti_bucket_cost_t *cost; /* of an all-reduce; policies auto and mgwfbp need it */
    const weft_allocator_t *allocator;
    wefti_arena_t *forecast_arena;        /* where the forecast's rows live */
    const wefti_shard_cost_t *shard_cost; /* of the other kinds; needed as cost is */
    const wefti_shard_cost_t *alone_cost; /* of a bucket of one tensor; NULL: shard_cost */
    const uint8_t *apart;                 /* by parameter: only equal ones share a bucket */
} wefti_bucket_params_t;

/* bucket.c: FUSE edits by policy, SPLIT edits for what is larger than the cap. out_forecast may be
 * NULL; it is about all-reduces, or where there are none about reduce-scatters. */
weft_status_t wefti_pass_bucket(const weft_graph_view_t *view, const wefti_bucket_params_t *params,
                                weft_edit_list_t **out_edits, wefti_plan_forecast_t *out_forecast);
/* view_check.c: replaces a caller's view by a copy in arena and checks that against graph_view.h.
 * *out_position, if not NULL: by op its position in the order (UINT32_MAX: removed), from arena. */
weft_status_t wefti_view_read(const weft_graph_view_t **in_view, wefti_arena_t *arena,
                              uint32_t **out_position);
/* What messages call an op. */
const char *wefti_view_op_name(const weft_graph_view_t *view, uint32_t op);
/* Is op a collective of domain weft? Then which one. */
bool wefti_view_collective(const weft_view_op_t *op, weft_collective_t *out_collective);

/* cost.c: how fast kernels are predicted to run. */
typedef struct wefti_rates {
    const wefti_costs_t *costs; /* a table without kernels: default rates */
    uint32_t threads;           /* of a kernel */
    uint32_t core_ranks;        /* at least 1: ranks that share a core, and its cache */
    double slowdown;            /* of kernels for that reason: core_ranks, or 1 */
    bool inline_progress;       /* ranks have no core for communication */
} wefti_rates_t;
/* Time by a definition's cost rule. rates may be NULL: default rates. */
double wefti_op_predict_ns(const weft_op_def_t *def, const weft_node_desc_t *node,
                           const wefti_rates_t *rates);
/* Time at which each node has run, in order: measured times where the profile has them, else
 * predicted ones. *out_ready_ns, indexed by node id, is allocated from arena. */
weft_status_t wefti_predict_ready(wefti_graph_t *graph, const wefti_profile_t *profile,
                                  const wefti_rates_t *rates, wefti_arena_t *arena,
                                  uint64_t **out_ready_ns);
/* Time per byte that an update reads or writes, where a rank's updates of a step touch so many
 * bytes. */
double wefti_update_ns_per_byte(const wefti_rates_t *rates, double bytes);
/* Time of a kernel that moves bytes: of each one, and per byte that it reads or writes. */
void wefti_move_ns(const wefti_rates_t *rates, double *out_ns, double *out_ns_per_byte);
/* Groups of a mesh of data and tensor parallelism: of ranks with equal weights, and of ranks that
 * compute one batch together. */
#define WEFTI_GROUP_DATA 1u
#define WEFTI_GROUP_TENSOR 2u
/* The same with stages of a pipeline, or models, in place of parts: of ranks that run different
 * nodes. */
#define WEFTI_GROUP_STAGE 2u
/* Where the plan's ranks are. */
typedef struct wefti_plan_place {
    uint32_t host_count;          /* 0 or 1: one host */
    const uint32_t *host_of;      /* [world_size] */
    const uint32_t *rail_of;      /* [world_size], or NULL: one */
    const uint32_t *rack_of;      /* [world_size], or NULL: one */
    const char *summary, *digest; /* "2 hosts x 4 ranks"; of the placement */
} wefti_plan_place_t;
/* A file of MSCCL that algo names. */
typedef struct wefti_rules_file {
    const char *path, *text;
    size_t size_bytes;
    const weft_algorithm_t *algorithm;
    uint32_t ranks; /* that it is for */
} wefti_rules_file_t;
/* rules.c: what the parameters algo and order, and the topology, state of all collectives. */
typedef struct wefti_rules {
    const wefti_plan_place_t *place; /* NULL: one host */
    struct sim_group *described;     /* predicts for ranks of a described cluster, or NULL */
    wefti_order_setting_t order;
    const char *order_text;
    const weft_algorithm_t *fixed[WEFTI_OPS]; /* NULL: by cost, or by a file */
    wefti_rules_file_t files[WEFTI_PLAN_MAX_ALGORITHM_FILES];
    uint32_t file_count;
    weft_registry_t *registry; /* that has the algorithms of files; owned */
} wefti_rules_t;
/* Texts that a compiled graph has of its files: the property "file:PATH". */
#define WEFTI_RULES_FILE_PROPERTY "file:"
/* Files are read unless properties have their texts. Also after an error the caller deinits rules. */
weft_status_t wefti_rules_read(const weft_compile_params_t *params, const wefti_plan_place_t *place,
                               const wefti_mesh_t *mesh, const wefti_compiled_t *compiled,
                               wefti_arena_t *arena, wefti_rules_t *out_rules);
void wefti_rules_deinit(wefti_rules_t *rules);
/* Gives the plan the files, all of which must serve one of its collectives. */
weft_status_t wefti_rules_give_files(wefti_rules_t *rules, weft_plan_t *plan);
/* What an algorithm has to serve; rules NULL: the order of ranks, on one host. Points into rules. */
weft_algo_params_t wefti_rules_params(const wefti_rules_t *rules, weft_collective_t op,
                                      uint32_t ranks, bool in_place);
/* The rules for collectives of an axis's groups: where their ranks are; in arena, or rules. */
weft_status_t wefti_rules_of_axis(const wefti_rules_t *rules, const wefti_axis_t *axis,
                                  uint32_t world_size, wefti_arena_t *arena,
                                  const wefti_rules_t **out_rules);
/* The algorithm that the rules fix for an operator of so many ranks, or NULL. */
const weft_algorithm_t *wefti_rules_fixed(const wefti_rules_t *rules, weft_collective_t op,
                                          uint32_t ranks);
/* An error of field algo where params exclude the algorithm: the reason, and what could run. */
weft_status_t wefti_rules_check(const weft_algorithm_t *algorithm,
                                const weft_algo_params_t *params);
/* So many ranks at most are taken to be on one host of which nothing is known. In larger worlds
 * each rank has a core. */
#define WEFTI_HOST_MAX_RANKS 64u
/* The cores of the fullest host, which has host_ranks, are divided among these as the runtime
 * divides them. host_cores 0: as many as where the costs were measured. */
wefti_rates_t wefti_rates_of(const wefti_costs_t *costs, uint32_t hosts, uint32_t host_ranks,
                             uint32_t host_cores);

/* collective_cost.c: what an all-reduce of f32 over all ranks costs by the best algorithm: affine
 * pieces from predictions, points where something was measured; scaled by what a profile says of
 * the calls in it. */
weft_status_t wefti_collective_cost(const wefti_costs_t *costs, uint32_t world_size,
                                    const wefti_rules_t *rules, const wefti_profile_t *profile,
                                    wefti_arena_t *arena, wefti_bucket_cost_t *out_cost);

/* The same of reduce-scatter and all-gather. */
weft_status_t wefti_shard_cost(const wefti_costs_t *costs, uint32_t world_size,
                               const wefti_rules_t *rules, const wefti_profile_t *profile,
                               wefti_arena_t *arena, wefti_shard_cost_t *out_cost);

/* A cost, and something that takes so long, and so long for every byte. */
weft_status_t wefti_bucket_cost_add(const wefti_bucket_cost_t *cost, double ns, double ns_per_byte,
                                    wefti_arena_t *arena, wefti_bucket_cost_t *out_cost);
weft_status_t wefti_bucket_cost_scale(const wefti_bucket_cost_t *cost, double factor,
                                      wefti_arena_t *arena, wefti_bucket_cost_t *out_cost);

/* layout.c: channels-last activations between convolutions and poolings; sets type.layout of
 * values. */
weft_status_t wefti_pass_layout(wefti_graph_t *graph);

typedef struct wefti_optimizer_params {
    wefti_optimizer_t kind;
    double lr;                    /* default of the scalar input "lr" */
    double momentum;              /* momentum: 0.9 */
    double beta1, beta2, epsilon; /* adam: 0.9, 0.999, 1e-8 */
    double weight_decay;
    uint32_t divisor;     /* 0: gradients are averages; else sums, which updates divide by it */
    double clip_norm;     /* 0: not clipped */
    const char *schedule; /* of the learning rate; NULL: constant */
    uint32_t schedule_steps, warmup_steps;
    double min_lr, gamma;
    const wefti_update_rule_t *rule; /* of the model, in place of the settings; NULL: none */
    const char *no_decay;            /* patterns of parameters without weight decay; NULL: none */
} wefti_optimizer_params_t;

/* gradient_params.c: what becomes of gradients before they are used. */
typedef struct wefti_gradient_params {
    uint32_t accumulate; /* micro-batches of a rank per step, at least 1 */
    uint32_t leaves;     /* micro-batches of all ranks, as the user fixed them; 0: not fixed */
    uint32_t divisor;    /* updates divide by it: collectives sum; 0: collectives average */
    weft_dtype_t wire;   /* F32, or BF16: rounded to it before they are reduced */
    double clip_norm;    /* 0: gradients are not clipped */
} wefti_gradient_params_t;
weft_status_t wefti_read_gradient_params(const weft_compile_params_t *params,
                                         wefti_gradient_params_t *out_params);
/* passes/optimizer.c: by value: is it a parameter without weight decay? In arena. */
weft_status_t wefti_find_undecayed(const wefti_graph_t *graph,
                                   const wefti_optimizer_params_t *params, wefti_arena_t *arena,
                                   bool **out_undecayed);
/* collective_cost.c: the cost where only this share of a gradient's bytes travels. */
weft_status_t wefti_bucket_cost_shrink(const wefti_bucket_cost_t *cost, double share,
                                       wefti_arena_t *arena, wefti_bucket_cost_t *out_cost);

/* passes/accumulate.c: collectives sum micro-batches; programs of all but the last one of a
 * step. */
weft_status_t wefti_pass_accumulate(wefti_graph_t *graph, uint32_t accumulate);
/* passes/wire.c: gradients are rounded to bf16 before they are reduced. */
weft_status_t wefti_pass_wire(wefti_graph_t *graph);
/* passes/programs.c: orders a step and adds the programs of a plan. */
typedef struct wefti_program_params {
    bool infer;
    bool broadcast_weights; /* init gives all ranks the weights of rank 0 */
} wefti_program_params_t;
weft_status_t wefti_pass_programs(wefti_graph_t *graph, const wefti_program_params_t *params);
/* passes/decouple.c: gathers weights at the start of a step of accumulate micro-batches, and in
 * program flush. */
weft_status_t wefti_pass_decouple(wefti_graph_t *graph, uint32_t accumulate);
/* passes/shard.c: reduce-scatter, update of a shard and all-gather per bucket. */
typedef struct wefti_shard_params {
    uint32_t ranks;      /* 1: nothing to do */
    uint32_t flat_bytes; /* at which members of a range are aligned */
} wefti_shard_params_t;
weft_status_t wefti_pass_shard(wefti_graph_t *graph, const wefti_shard_params_t *params);

/* passes/shard_parameters.c, after wefti_pass_shard: weights are gathered before each pass.
 * in_flight: at least 1. */
weft_status_t wefti_pass_shard_parameters(wefti_graph_t *graph, uint32_t in_flight);

/* passes/fuse_updates.c: one update per bucket, and reduce-update-gathers. */
typedef struct wefti_fuse_params {
    bool reduce_update_gather;             /* allowed, where it is predicted to cost less */
    const wefti_bucket_cost_t *all_reduce; /* with shard; NULL: fused wherever it is possible */
    const wefti_shard_cost_t *shard;
    const wefti_rates_t *rates; /* NULL: default rates */
} wefti_fuse_params_t;
weft_status_t wefti_pass_fuse_updates(wefti_graph_t *graph, const wefti_fuse_params_t *params);

/* lower.c: streams, events, memory and everything else of the plan from the finished graph. */
typedef struct wefti_lower_params {
    uint32_t world_size;
    const char *policy, *optimizer, *model_name;
    const wefti_plan_forecast_t *forecast;  /* NULL: none */
    const wefti_bucket_cost_t *bucket_cost; /* NULL: nothing is predicted */
    bool infer;                             /* no training: programs init and step, no eval */
    uint32_t flags;                         /* of the plan: WEFTI_PLAN_SPLIT_BATCH */
    /* One graph per rank, equal but for contents, the first of which is the graph; 0: one for all.
     */
    const wefti_graph_t *const *rank_graphs;
    uint32_t rank_graph_count;
    bool rank_data; /* contents of values differ by rank */
    wefti_mesh_t mesh;
    uint32_t data_group;  /* of the mesh: ranks with equal contents; 0: none */
    uint32_t place_group; /* of the mesh: its places run different nodes; 0: none */
    bool shard;           /* the graph went through wefti_pass_shard */
    bool decouple;        /* with shard: weights are gathered at the begin of the next step */
    bool fuse;            /* with shard: ReduceUpdateGather where it costs less */
    const wefti_shard_cost_t *shard_cost; /* NULL: nothing is predicted, and it costs less */
    wefti_gradient_params_t gradients;    /* all 0: nothing special */
    const wefti_costs_t *costs;           /* what algorithms are chosen by; NULL: mesh */
    const wefti_rates_t *rates;           /* NULL: default rates */
    uint32_t in_flight;         /* most collectives issued and not waited for; 0: no bound */
    const wefti_rules_t *rules; /* NULL: one host, the order of ranks, algorithms by cost */
    const weft_allocator_t *allocator;
} wefti_lower_params_t;
weft_status_t wefti_lower(const wefti_graph_t *graph, const wefti_lower_params_t *params,
                          weft_plan_t **out_plan);
/* What passes make of a graph that is lowered with params. */
wefti_shard_params_t wefti_shard_params(const wefti_lower_params_t *params);
wefti_fuse_params_t wefti_fuse_params(const wefti_lower_params_t *params);
wefti_program_params_t wefti_program_params(const wefti_lower_params_t *params);

#endif
