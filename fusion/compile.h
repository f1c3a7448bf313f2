/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of weft_compile share: compile_params.c reads what the caller gave,
 * compile_import.c makes graphs of models, compile_buckets.c inserts collectives and predicts,
 * compile.c runs the chain.
 */
#ifndef WEFT_FUSION_COMPILE_H
#define WEFT_FUSION_COMPILE_H

#include "fusion/fusion.h"
#include "graph/onnx/onnx.h"
#include "runtime/base/log.h"

/* What a compile needs and gives back at the end. */
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
    wefti_onnx_emit_t *emit;        /* of emit_path */
    wefti_graph_t *graph;
    wefti_graph_t **rank_graphs; /* several models: one per rank, the first being graph */
} wefti_compiler_t;

/* Checks params, fills in defaults, loads costs and profile. Also after an error the caller frees
 * what compiler has. */
weft_status_t wefti_compile_read_params(wefti_compiler_t *compiler,
                                        const weft_compile_params_t *params);

/* Puts the recorded error, about a file, under the parameter that names the file. */
weft_status_t wefti_error_under_field(weft_status_t status, const char *name);
/* compile_topology.c: reads topology_path, which may set world_size, and the costs of links. */
weft_status_t wefti_compile_read_topology(wefti_compiler_t *compiler);

/* A model with its shapes bound. */
weft_status_t wefti_compile_import_graph(wefti_compiler_t *compiler, const char *path,
                                         int64_t batch, wefti_graph_t **out_graph);
/* compiler->graph: of a graph that was compiled before; of one model per rank; for a rank's share
 * of the batch, between the operators that give and gather it. */
weft_status_t wefti_compile_import_compiled(wefti_compiler_t *compiler);
weft_status_t wefti_compile_import_ranks(wefti_compiler_t *compiler);
weft_status_t wefti_compile_import_share(wefti_compiler_t *compiler);

weft_status_t wefti_compile_insert_and_fuse(wefti_compiler_t *compiler);
/* Completes the forecast: predicted time of a step's kernels, and what it is predicted with. */
weft_status_t wefti_compile_predict_step(wefti_compiler_t *compiler);
/* Whether buckets may be reduced, updated and given in one sweep. */
bool wefti_compile_may_sweep(const wefti_compiler_t *compiler);

#endif
