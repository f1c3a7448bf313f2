/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of the rows of fusion/pipeline.c, in its order; each changes compiler->graph.
 * Passes that need little of the compiler are also functions of a graph, for tests.
 */
#ifndef WEFT_FUSION_PASSES_H
#define WEFT_FUSION_PASSES_H

#include "fusion/compile.h"

weft_status_t wefti_apply_normalize_collectives(wefti_compiler_t *compiler);
weft_status_t wefti_apply_given_gradients(wefti_compiler_t *compiler);
weft_status_t wefti_apply_parameters(wefti_compiler_t *compiler);
weft_status_t wefti_apply_bind_shapes(wefti_compiler_t *compiler);
weft_status_t wefti_apply_fold(wefti_compiler_t *compiler);
weft_status_t wefti_apply_expand(wefti_compiler_t *compiler);
weft_status_t wefti_apply_tidy_collectives(wefti_compiler_t *compiler);
weft_status_t wefti_apply_tensor_parallel(wefti_compiler_t *compiler);
weft_status_t wefti_apply_tensor_training(wefti_compiler_t *compiler);
weft_status_t wefti_apply_tensor_gradients(wefti_compiler_t *compiler);
weft_status_t wefti_apply_pipeline(wefti_compiler_t *compiler);
weft_status_t wefti_apply_stage_order(wefti_compiler_t *compiler);
weft_status_t wefti_apply_stage_outputs(wefti_compiler_t *compiler);
weft_status_t wefti_apply_settle_gradients(wefti_compiler_t *compiler);
weft_status_t wefti_apply_expand_dropout(wefti_compiler_t *compiler);
weft_status_t wefti_apply_label_smoothing(wefti_compiler_t *compiler);
weft_status_t wefti_apply_inference_form(wefti_compiler_t *compiler);
weft_status_t wefti_apply_compare_models(wefti_compiler_t *compiler);
weft_status_t wefti_apply_split_batch(wefti_compiler_t *compiler);
weft_status_t wefti_apply_check_micro_batches(wefti_compiler_t *compiler);
weft_status_t wefti_apply_precision(wefti_compiler_t *compiler);
weft_status_t wefti_apply_differentiate(wefti_compiler_t *compiler);
weft_status_t wefti_pass_sync_batch_norm(wefti_graph_t *graph);
weft_status_t wefti_apply_sync_batch_norm(wefti_compiler_t *compiler);
/* trains: the graph is differentiated after it. */
weft_status_t wefti_pass_fuse_attention(wefti_graph_t *graph, bool trains);
weft_status_t wefti_apply_fuse_attention(wefti_compiler_t *compiler);
weft_status_t wefti_pass_absorb_transposes(wefti_graph_t *graph);
weft_status_t wefti_apply_absorb_transposes(wefti_compiler_t *compiler);
weft_status_t wefti_pass_convert_again(wefti_graph_t *graph);
weft_status_t wefti_apply_convert_again(wefti_compiler_t *compiler);
weft_status_t wefti_pass_fuse_normalization(wefti_graph_t *graph);
weft_status_t wefti_apply_fuse_normalization(wefti_compiler_t *compiler);
weft_status_t wefti_pass_fuse_elementwise(wefti_graph_t *graph);
weft_status_t wefti_apply_fuse_elementwise(wefti_compiler_t *compiler);
weft_status_t wefti_apply_insert_collectives(wefti_compiler_t *compiler);
weft_status_t wefti_apply_bucket(wefti_compiler_t *compiler);
weft_status_t wefti_apply_pack(wefti_compiler_t *compiler);
weft_status_t wefti_apply_clip(wefti_compiler_t *compiler);
weft_status_t wefti_apply_optimizer(wefti_compiler_t *compiler);
weft_status_t wefti_apply_shard(wefti_compiler_t *compiler);
weft_status_t wefti_apply_shard_parameters(wefti_compiler_t *compiler);
weft_status_t wefti_apply_fuse_updates(wefti_compiler_t *compiler);
weft_status_t wefti_apply_schedule(wefti_compiler_t *compiler);
weft_status_t wefti_apply_fit_arena(wefti_compiler_t *compiler);
weft_status_t wefti_apply_recompute(wefti_compiler_t *compiler);
weft_status_t wefti_apply_emit_onnx(wefti_compiler_t *compiler);
weft_status_t wefti_apply_accumulate(wefti_compiler_t *compiler);
weft_status_t wefti_apply_wire(wefti_compiler_t *compiler);
weft_status_t wefti_apply_programs(wefti_compiler_t *compiler);
weft_status_t wefti_apply_decouple(wefti_compiler_t *compiler);
weft_status_t wefti_apply_layout(wefti_compiler_t *compiler);

/* infer: the groups of parts of a model are the world. */
weft_status_t wefti_pass_normalize_collectives(wefti_graph_t *graph, uint32_t world_size,
                                               bool infer);
/* map NULL: by name. log: weights without a gradient. */
weft_status_t wefti_pass_given_gradients(wefti_graph_t *graph, const wefti_gradient_map_t *map,
                                         const wefti_log_t *log);
/* train, freeze: as in weft_compile_params_t. */
weft_status_t wefti_pass_parameters(wefti_graph_t *graph, const char *train, const char *freeze);
/* The same for a list alone. */
weft_status_t wefti_parameters_decide(wefti_parameter_t *parameters, uint32_t count,
                                      const char *train, const char *freeze,
                                      const weft_allocator_t *allocator);
/* A copy for a plan: texts are in arena. */
weft_status_t wefti_parameters_of_plan(const wefti_parameter_t *parameters, uint32_t count,
                                       wefti_arena_t *arena, wefti_plan_parameter_t **out);
weft_status_t wefti_pass_tidy_collectives(wefti_graph_t *graph, uint32_t world_size);
/* tidy_collectives.c: a Transpose "<of>/<suffix>" of a value of that rank, which exchanges axis and
 * axis 0; at as for wefti_graph_insert_node. */
weft_status_t wefti_insert_swap(wefti_graph_t *graph, uint32_t value, uint32_t rank, uint32_t axis,
                                const char *of, const char *suffix, uint32_t at,
                                uint32_t *out_value);
weft_status_t wefti_pass_settle_gradients(wefti_graph_t *graph);
weft_status_t wefti_pass_expand_dropout(wefti_graph_t *graph, bool infer);
/* half: F16 or BF16. infer: weights become half, else they stay and are converted in every step. */
/* Weights of bf16 become f32 for training. */
weft_status_t wefti_pass_widen_parameters(wefti_graph_t *graph);
weft_status_t wefti_pass_precision(wefti_graph_t *graph, weft_dtype_t half, bool infer);
weft_status_t wefti_pass_label_smoothing(wefti_graph_t *graph, double smoothing);
weft_status_t wefti_pass_inference_form(wefti_graph_t *graph);
/* tensor/propagate.c: log receives a warning if some products stay whole. */
typedef struct wefti_tensor_params {
    uint32_t ranks, group; /* of the mesh */
    bool trains;
    bool annotated; /* the shardings of the graph say what is split */
} wefti_tensor_params_t;
weft_status_t wefti_pass_tensor_parallel(wefti_graph_t *graph, const wefti_tensor_params_t *params,
                                         const wefti_log_t *log);
/* labels: of the graphs, for messages. */
weft_status_t wefti_pass_compare_models(const wefti_graph_t *const *graphs,
                                        const char *const *labels, uint32_t count);
/* graph is bound to a rank's share of the batch, whole to all of it. */
weft_status_t wefti_pass_split_batch(wefti_graph_t *graph, const wefti_graph_t *whole,
                                     uint32_t world_size);
/* One tensor for each collective of several. */
weft_status_t wefti_pass_pack(wefti_graph_t *graph);
/* scale: of the pass clip, or WEFTI_NONE. */
weft_status_t wefti_pass_optimizer(wefti_graph_t *graph, const wefti_optimizer_params_t *params,
                                   uint32_t scale);

/* given_gradients.c: an AllReduce with as many inputs as outputs? */
bool wefti_is_all_reduce(const wefti_node_t *node);
/* By value: 1 if data of this rank reaches it other than through a collective whose result is equal
 * on all ranks. In arena; NULL: no memory. */
uint8_t *wefti_mark_local(const wefti_graph_t *graph, wefti_arena_t *arena);
/* settle_gradients.c: types of gradients are those of their parameters. */
weft_status_t wefti_check_gradients(const wefti_graph_t *graph);
/* split_check.c: WEFT_ERR_UNSUPPORTED, of field, where samples are combined, so that part does not
 * compute one of parts shares of what whole computes. reductions: what has fewer elements than
 * samples need is refused, and not what may mix samples. arena: working memory. */
weft_status_t wefti_check_split(const wefti_graph_t *part, const wefti_graph_t *whole,
                                uint32_t parts, const char *field, bool reductions,
                                wefti_arena_t *arena);
/* The batch decides which operators run. */
weft_status_t wefti_error_split_graph(const char *field);
/* split_batch.c: how the type of a tensor changes with the batch. */
typedef enum wefti_share {
    WEFTI_SHARE_SAME,  /* no batch */
    WEFTI_SHARE_FIRST, /* the first dimension is the batch */
    WEFTI_SHARE_OTHER, /* anything else differs */
} wefti_share_t;
wefti_share_t wefti_batch_share(const weft_tensor_desc_t *part, const weft_tensor_desc_t *whole,
                                uint32_t parts);
weft_status_t wefti_error_no_gradients(void); /* optimizer.c */

#endif
