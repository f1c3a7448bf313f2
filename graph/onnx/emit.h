/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by onnx_emit*.c: a compiled graph on its way to a file. */
#ifndef WEFT_GRAPH_ONNX_EMIT_H
#define WEFT_GRAPH_ONNX_EMIT_H

#include <weft/version.h>

#include "graph/onnx/internal.h"

#define WEFTI_ONNX_EMIT_EXTRA_ATTRIBUTES 4u /* that a collective may be given */

struct wefti_onnx_emit {
    const weft_allocator_t *allocator;
    wefti_arena_t arena; /* the message; strings and contents stay in the graph */
    const wefti_graph_t *graph;
    Onnx__ModelProto *model;
    Onnx__NodeProto **made; /* by node of the graph; updates have none */
    uint32_t
        *place; /* by position in the file (updates last): node of the graph, WEFTI_NONE: a wait */
    uint32_t update_count;
    int32_t opset;
};

Onnx__AttributeProto *wefti_onnx_emit_attribute(wefti_onnx_emit_t *emit, const weft_attr_t *attr);

#endif
