/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a compilation, and the files of weft_compile: compile_params.c checks the
 * parameters, compile_import.c imports the models, pipeline.c runs the passes, compile_lower.c
 * produces the plan.
 */
#ifndef WEFT_FUSION_COMPILE_H
#define WEFT_FUSION_COMPILE_H

#include "fusion/fusion.h"
#include "fusion/simulate/simulate.h"
#include "graph/onnx/onnx.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"

/* A file that is compiled. Usually there is one; with rank_models one per rank, with split_batch
 * the share of a rank and then the whole batch. */
typedef struct wefti_model {
    const char *path;
    int64_t batch;    /* 0: from the file */
    bool inputs_only; /* only types of inputs are known: the operators are for another batch */
    wefti_graph_t *graph;
} wefti_model_t;

/* What passes run on. */
typedef struct wefti_compiler {
    weft_compile_params_t params; /* defaults filled in */
    const weft_allocator_t *allocator;
    wefti_log_t log;
    weft_registry_t *own_registry;
    wefti_arena_t arena;
    wefti_policy_t policy;
    wefti_costs_t costs;
    wefti_rates_t rates;
    wefti_profile_t profile;
    const wefti_plan_place_t *place; /* of topology_path, or NULL */
    wefti_cluster_t cluster;         /* of topology_path */
    sim_world_t world;               /* likewise: predicts collectives */
    sim_group_t described;
    wefti_axis_t axes[2]; /* WEFTI_GROUP_DATA, WEFTI_GROUP_TENSOR or _STAGE */
    wefti_mesh_t mesh;    /* no axes: all ranks are one group */
    uint32_t place_group; /* WEFTI_GROUP_STAGE where ranks run different nodes, else 0 */
    wefti_rules_t rules;
    wefti_bucket_cost_t bucket_cost;
    bool sharded;                  /* updates are: there is more than one rank to do them */
    wefti_shard_cost_t shard_cost; /* where they are */
    wefti_plan_forecast_t forecast;
    wefti_optimizer_params_t optimizer;
    wefti_gradient_params_t gradient_params;
    uint64_t micro_batches_ns;      /* what those before a step's last one are predicted to take */
    wefti_gradient_map_t gradients; /* of grads_path */
    weft_compile_params_t given;    /* before defaults were filled in */
    wefti_compiled_t compiled;      /* the model is a compiled graph */
    wefti_onnx_devices_t devices;   /* annotations of the model set tensor_parallel */
    wefti_onnx_emit_t *emit;        /* of emit_path */
    wefti_model_t *models;
    uint32_t model_count;
    const wefti_model_t *model; /* the model that the present pass changes: the first, or each */
    wefti_graph_t *graph;       /* its graph */
    /* Runs the passes after the present one on c->graph, for fit-arena. The driver sets it. */
    weft_status_t (*run_rest)(struct wefti_compiler *compiler);
    const struct wefti_pass *rest;
    size_t rest_count;
    wefti_plan_recomputed_t *recomputed; /* recompute.c: operators that run again */
    uint32_t recomputed_count;
    uint64_t kept_arena_bytes; /* of a plan that recomputes nothing */
    uint32_t clip_scale;       /* value that updates multiply gradients by, or WEFTI_NONE */
} wefti_compiler_t;

/* Checks params, fills in defaults, loads costs and profile. Also after an error the caller frees
 * what compiler has. */
weft_status_t wefti_compile_read_params(wefti_compiler_t *compiler,
                                        const weft_compile_params_t *params);

/* The mesh "data" x inner, whose ranks are neighbours. */
void wefti_compile_set_mesh(wefti_compiler_t *compiler, const char *inner, uint32_t size);

/* Puts the recorded error, about a file, under the parameter that names the file. */
static inline weft_status_t wefti_error_under_field(weft_status_t status, const char *name)
{
    return wefti_error_field(status, name, "%s", weft_last_error());
}
/* compile_topology.c: reads topology_path, which may set world_size, and the costs of links. */
weft_status_t wefti_compile_read_topology(wefti_compiler_t *compiler);

/* compile_import.c: reads all models; collectives, gradients and shapes are as in the files. */
weft_status_t wefti_compile_import(wefti_compiler_t *compiler);
/* Prefixes the recorded error with the rank of the model, where every rank has its own. */
weft_status_t wefti_error_in_model(const wefti_compiler_t *compiler, const wefti_model_t *model,
                                   weft_status_t status);
void wefti_compile_destroy_graphs(wefti_compiler_t *compiler);

/* Completes the forecast: predicted time of a step's kernels, and what it is predicted with. */
weft_status_t wefti_compile_predict_step(wefti_compiler_t *compiler);
/* Most collectives in flight; 0: no bound. */
uint32_t wefti_compile_in_flight(const wefti_compiler_t *compiler);
/* Whether a bucket may become a ReduceUpdateGather. */
bool wefti_compile_may_fuse(const wefti_compiler_t *compiler);

/* compile_lower.c: from the graph that all passes have changed to a sealed and verified plan. */
weft_status_t wefti_compile_lower(wefti_compiler_t *compiler, weft_plan_t **out_plan);
weft_status_t wefti_compile_lower_params(wefti_compiler_t *compiler, wefti_lower_params_t *params);

#endif
