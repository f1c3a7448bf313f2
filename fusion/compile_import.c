/* SPDX-License-Identifier: Apache-2.0 */
/* From the model, or the models, to the graph that is compiled. */
#include "fusion/compile.h"

#include <string.h>

#include "runtime/base/error.h"

/* Operators of unknown effect keep others apart: who does not know that wonders about the buckets.
 */
static void name_fences(const wefti_compiler_t *c, const wefti_graph_t *graph, const char *path)
{
    uint32_t count = 0;
    const wefti_node_t *first = NULL;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        if ((node->def->effects & WEFT_EFFECT_UNKNOWN) != 0) {
            first = first != NULL ? first : node;
            count++;
        }
    }
    if (first != NULL) {
        wefti_log(&c->log, WEFT_LOG_WARN,
                  "%s: %u operator%s of unknown effect, %snode '%s' (%s::%s): nothing is reordered "
                  "across %s; declare the effect in the file ops_path",
                  path, count, count == 1 ? "" : "s", count == 1 ? "" : "first ", first->name,
                  first->def->domain, first->def->name, count == 1 ? "it" : "them");
    }
}

/* A model with its shapes bound. */
weft_status_t wefti_compile_import_graph(wefti_compiler_t *c, const char *path, int64_t batch,
                                         wefti_graph_t **out_graph)
{
    weft_status_t status;
    bool opened = false;
    wefti_graph_t *graph = NULL;
    wefti_onnx_import_params_t params = {.path = path,
                                         .loss = c->params.loss,
                                         .loss_optional = c->params.infer != 0,
                                         .world_size = c->params.world_size,
                                         .infer = c->params.infer != 0};
    wefti_shape_override_t *shapes =
        wefti_arena_array(&c->arena, c->params.shape_count, sizeof(*shapes));
    if (shapes == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < c->params.shape_count; i++) {
        shapes[i] = (wefti_shape_override_t){.name = c->params.shapes[i].name,
                                             .rank = c->params.shapes[i].rank};
        memcpy(shapes[i].dims, c->params.shapes[i].dims, sizeof(shapes[i].dims));
    }
    if (c->params.grads_path != NULL) {
        WEFT_TRY(status, wefti_grads_map_load(c->params.grads_path, &c->arena, &c->gradients),
                 fail);
        params.gradients = &c->gradients;
    }
    WEFT_TRY(status, wefti_onnx_import(&params, c->allocator, c->params.registry, &graph), fail);
    name_fences(c, graph, path);
    if (wefti_graph_has_gradients(graph)) {
        WEFT_TRY(status, wefti_graph_use_gradients(graph, &c->log), fail);
    }
    WEFT_TRY(status,
             wefti_graph_bind_open_shapes(graph, batch, c->params.open_batch, shapes,
                                          c->params.shape_count, &opened),
             fail);
    if (opened) {
        wefti_log(&c->log, WEFT_LOG_WARN, "%s: symbolic batch size: compiled for %lld %s", path,
                  (long long)graph->batch,
                  graph->batch == 1 ? "sample per rank" : "samples per rank");
    }
    WEFT_TRY(status, wefti_graph_tidy_collectives(graph, c->params.world_size), fail);
    WEFT_TRY(status, wefti_graph_settle_gradients(graph), fail);
    wefti_log(&c->log, WEFT_LOG_DEBUG, "%s: %u operators imported", path, graph->order_count);
    *out_graph = graph;
    return WEFT_OK;
fail:
    wefti_graph_destroy(graph);
    return status;
}

/* A graph that was compiled before, up to what depends on layouts. */
weft_status_t wefti_compile_import_compiled(wefti_compiler_t *c)
{
    weft_status_t status;
    wefti_onnx_import_params_t params = {.path = c->params.model_path,
                                         .compiled = c->compiled.properties,
                                         .compiled_count = c->compiled.count};
    WEFT_TRY(status, wefti_onnx_import(&params, c->allocator, c->params.registry, &c->graph), fail);
    if (wefti_graph_has_gradients(c->graph) != !c->params.infer) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: compiled graph for %s has %s",
                           c->params.model_path, c->params.infer ? "inference" : "training",
                           c->params.infer ? "gradients" : "no gradients");
    }
    status = wefti_graph_infer_shapes(c->graph);
fail:
    return status;
}

/* The graphs of all ranks; the first is the one that is compiled. */
weft_status_t wefti_compile_import_ranks(wefti_compiler_t *c)
{
    uint32_t count = c->params.rank_model_count;
    c->rank_graphs = wefti_arena_array(&c->arena, count, sizeof(*c->rank_graphs));
    if (c->rank_graphs == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t r = 0; r < count; r++) {
        weft_status_t status = wefti_compile_import_graph(c, c->params.rank_models[r],
                                                          c->params.batch, &c->rank_graphs[r]);
        if (status >= 0) {
            status = wefti_graph_prepare_inference(c->rank_graphs[r]);
        }
        if (status < 0) {
            return wefti_error_prefix(status, "model of rank %u", r);
        }
    }
    c->graph = c->rank_graphs[0];
    return wefti_graph_compare_ranks((const wefti_graph_t *const *)c->rank_graphs,
                                     c->params.rank_models, count);
}

/* The graph for a rank's share of the batch, between the operators that give and gather it. */
weft_status_t wefti_compile_import_share(wefti_compiler_t *c)
{
    weft_status_t status;
    wefti_graph_t *whole = NULL;
    int64_t batch = c->params.batch;
    WEFT_TRY(status,
             wefti_compile_import_graph(c, c->params.model_path, batch / c->params.world_size,
                                        &c->graph),
             fail);
    WEFT_TRY(status, wefti_graph_prepare_inference(c->graph), fail);
    WEFT_TRY(status, wefti_compile_import_graph(c, c->params.model_path, batch, &whole), fail);
    WEFT_TRY(status, wefti_graph_prepare_inference(whole), fail);
    WEFT_TRY(status, wefti_graph_split_batch(c->graph, whole, c->params.world_size), fail);
fail:
    wefti_graph_destroy(whole);
    return status;
}
