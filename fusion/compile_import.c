/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the models that are compiled: usually one, with rank_models one per rank. */
#include "fusion/compile.h"

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
        wefti_log(&c->log, WEFT_LOG_LEVEL_WARN,
                  "%s: %u operator%s of unknown effect, %snode '%s' (%s::%s): nothing is reordered "
                  "across %s; declare the effect in the file ops_path",
                  path, count, count == 1 ? "" : "s", count == 1 ? "" : "first ", first->name,
                  first->def->domain, first->def->name, count == 1 ? "it" : "them");
    }
}

/* An update rule that the model states holds unless the caller sets an optimizer. */
static weft_status_t take_update_rule(wefti_compiler_t *c)
{
    const wefti_update_rule_t *rule = &c->graph->update_rule;
    if (!rule->stated || c->given.optimizer != NULL) {
        return WEFT_OK;
    }
    if (c->given.momentum != 0 || c->given.weight_decay != 0) {
        return wefti_error_field(
            WEFT_ERR_INVALID_ARGUMENT, c->given.momentum != 0 ? "momentum" : "weight_decay",
            "must not be set without optimizer: %s states its update rule", c->model->path);
    }
    const wefti_optimizer_row_t *row = &wefti_optimizers[rule->kind];
    c->optimizer.kind = rule->kind;
    c->optimizer.rule = rule;
    c->optimizer.lr = c->given.lr != 0 ? c->given.lr : rule->lr != 0 ? rule->lr : row->lr;
    c->params.optimizer = c->given.optimizer = row->name;
    if (rule->clip_norm > 0 && c->params.clip_norm == 0) {
        c->params.clip_norm = c->optimizer.clip_norm = c->gradient_params.clip_norm =
            rule->clip_norm;
    }
    return WEFT_OK;
}

static weft_status_t import_model(wefti_compiler_t *c, wefti_model_t *model)
{
    wefti_onnx_import_params_t params = {
        .path = model->path,
        .loss = c->params.loss,
        .loss_optional = c->params.infer != 0,
        .training_form = c->params.training_form != 0,
        .may_lack_loss = true, /* the pass given-gradients decides whether a loss is necessary */
        .compiled = c->compiled.known ? c->compiled.properties : NULL,
        .compiled_count = c->compiled.count,
        .devices = c->devices};
    weft_status_t status =
        wefti_onnx_import(&params, c->allocator, c->params.registry, &model->graph);
    if (status >= 0) {
        name_fences(c, model->graph, model->path);
        if (model->graph->device_configurations > 0 && c->devices.count == 0) {
            wefti_log(&c->log, WEFT_LOG_LEVEL_WARN,
                      "%s: %u device configurations and sharding specifications are ignored: each "
                      "rank runs the whole graph",
                      model->path, model->graph->device_configurations);
        }
        wefti_log(&c->log, WEFT_LOG_LEVEL_DEBUG, "%s: %u operators imported", model->path,
                  model->graph->order_count);
    }
    return status;
}

static bool has_updates(const wefti_graph_t *graph)
{
    bool has = false;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        has = has || graph->nodes[graph->order[i]].phase == WEFTI_PHASE_UPDATE;
    }
    return has;
}

/* A compiled graph has all types that do not depend on layouts. A file can break any rule. */
static weft_status_t check_compiled(wefti_compiler_t *c)
{
    if (has_updates(c->graph) != !c->params.infer) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: compiled graph for %s has %s",
                           c->params.model_path, c->params.infer ? "inference" : "training",
                           c->params.infer ? "updates" : "no updates");
    }
    WEFT_RETURN_IF_ERROR(wefti_graph_infer_shapes(c->graph));
    return wefti_graph_verify(c->graph);
}

/* The passes split-batch and pipeline compare a share of the batch with the whole batch. */
static weft_status_t list_models(wefti_compiler_t *c)
{
    uint32_t ranks = c->params.rank_model_count;
    uint32_t parts = c->compiled.known        ? 1
                     : c->params.split_batch  ? c->params.world_size
                     : c->params.pipeline > 1 ? c->params.pipeline_micro_batches
                                              : 1;
    bool split = c->params.split_batch && !c->compiled.known;
    uint32_t count = ranks > 0 ? ranks : split || parts > 1 ? 2 : 1;
    c->models = wefti_arena_array(&c->arena, count, sizeof(*c->models));
    WEFT_RETURN_IF_NO_MEMORY(c->models);
    c->model_count = count;
    for (uint32_t i = 0; i < count; i++) {
        c->models[i] = (wefti_model_t){
            .path = ranks > 0 ? c->params.rank_models[i] : c->params.model_path,
            .batch = ranks == 0 && i == 0 && parts > 1 ? c->params.batch / parts : c->params.batch};
    }
    return WEFT_OK;
}

weft_status_t wefti_compile_import(wefti_compiler_t *c)
{
    weft_status_t status;
    WEFT_TRY(status, list_models(c), fail);
    for (uint32_t i = 0; i < c->model_count; i++) {
        status = import_model(c, &c->models[i]);
        if (status < 0) {
            return wefti_error_in_model(c, &c->models[i], status);
        }
    }
    c->model = &c->models[0];
    c->graph = c->model->graph;
    status = c->compiled.known ? check_compiled(c) : take_update_rule(c);
fail:
    return status;
}

void wefti_compile_destroy_graphs(wefti_compiler_t *c)
{
    for (uint32_t i = 0; i < c->model_count; i++) {
        wefti_graph_destroy(c->models[i].graph);
    }
}

weft_status_t wefti_error_in_model(const wefti_compiler_t *c, const wefti_model_t *model,
                                   weft_status_t status)
{
    return c->params.rank_model_count == 0
               ? status
               : wefti_error_prefix(status, "model of rank %u", (uint32_t)(model - c->models));
}
