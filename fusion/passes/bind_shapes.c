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

weft_status_t wefti_apply_bind_shapes(wefti_compiler_t *c)
{
    bool opened = false;
    wefti_shape_override_t *shapes =
        wefti_arena_array(&c->arena, c->params.shape_count, sizeof(*shapes));
    WEFT_RETURN_IF_NO_MEMORY(shapes);
    for (uint32_t i = 0; i < c->params.shape_count; i++) {
        shapes[i] = (wefti_shape_override_t){.name = c->params.shapes[i].name,
                                             .rank = c->params.shapes[i].rank};
        memcpy(shapes[i].dims, c->params.shapes[i].dims, sizeof(shapes[i].dims));
    }
    WEFT_RETURN_IF_ERROR(wefti_graph_bind_inputs(c->graph, c->model->batch, c->params.open_batch,
                                                 shapes, c->params.shape_count, &opened));
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
    return status < 0 ? status : wefti_check_gradients(c->graph);
}
