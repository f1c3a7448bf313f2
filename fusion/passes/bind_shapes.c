/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bind-shapes, fold and expand: every dimension becomes a number, because memory is planned at compile
 * time.
 *
 * bind-shapes matches symbolic dimensions of inputs, and a batch that the exporter fixed. Produces
 * the numbers of shapes and batch. fold matches operators in order: it infers the types of their
 * results and, where all inputs are constants, produces a constant (graph/fold.c). One walk does
 * both, because exporters compute shapes with operators. expand matches operators without a kernel
 * that ONNX defines by others, such as Attention, and produces these (graph/expand.c).
 */
#include "fusion/passes/passes.h"

#include <string.h>

#include "runtime/base/error.h"

static bool has_input(const wefti_graph_t *graph, const char *name)
{
    bool has = false;
    for (uint32_t i = 0; i < graph->input_count && name != NULL; i++) {
        has = has || strcmp(graph->values[graph->inputs[i]].name, name) == 0;
    }
    return has;
}

/* Is the shape meant for another model, which has that input? */
static bool is_of_another(const wefti_compiler_t *c, const char *name)
{
    bool has = false;
    for (uint32_t m = 0; m < c->model_count && !has_input(c->graph, name); m++) {
        has = has || has_input(c->models[m].graph, name);
    }
    return has;
}

weft_status_t wefti_apply_bind_shapes(wefti_compiler_t *c)
{
    bool opened = false;
    uint32_t count = 0;
    wefti_shape_override_t *shapes =
        wefti_arena_array(&c->arena, c->params.shape_count, sizeof(*shapes));
    WEFT_RETURN_IF_NO_MEMORY(shapes);
    for (uint32_t i = 0; i < c->params.shape_count; i++) {
        const weft_input_shape_t *shape = &c->params.shapes[i];
        if (!is_of_another(c, shape->name)) {
            shapes[count] = (wefti_shape_override_t){.name = shape->name, .rank = shape->rank};
            memcpy(shapes[count++].dims, shape->dims, sizeof(shape->dims));
        }
    }
    WEFT_RETURN_IF_ERROR(wefti_graph_bind_inputs(c->graph, c->model->batch, c->params.open_batch,
                                                 shapes, count, &opened));
    if (opened) {
        wefti_log(&c->log, WEFT_LOG_LEVEL_WARN, "%s: symbolic batch size: compiled for %lld %s",
                  c->model->path, (long long)c->graph->batch,
                  c->graph->batch == 1 ? "sample per rank" : "samples per rank");
    }
    return WEFT_OK;
}

weft_status_t wefti_apply_expand(wefti_compiler_t *c)
{
    return wefti_graph_expand(c->graph);
}

weft_status_t wefti_apply_fold(wefti_compiler_t *c)
{
    weft_status_t status = wefti_graph_fold(c->graph);
    if (status < 0 && status != WEFT_ERR_NO_MEMORY && c->model == &c->models[1] &&
        !c->params.infer) {
        c->models[1].inputs_only = true; /* a batch that parts have, and the whole cannot have */
        return WEFT_OK;
    }
    return status < 0 ? status : wefti_check_gradients(c->graph);
}
