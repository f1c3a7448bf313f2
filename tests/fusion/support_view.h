/* SPDX-License-Identifier: Apache-2.0 */
/* Builds graph views by hand, as a host compiler would: passes are tested without ONNX and without
 * the IR. */
#ifndef WEFT_TESTS_FUSION_SUPPORT_VIEW_H
#define WEFT_TESTS_FUSION_SUPPORT_VIEW_H

#include <weft/graph_view.h>

#define VIEW_MAX 512u
#define VIEW_MAX_EDGES 4096u

typedef struct view_builder {
    weft_view_value_t values[VIEW_MAX];
    weft_view_op_t ops[VIEW_MAX];
    uint32_t order[VIEW_MAX];
    uint32_t op_inputs[VIEW_MAX_EDGES], op_outputs[VIEW_MAX_EDGES], users[VIEW_MAX_EDGES];
    uint32_t value_count, op_count, input_count, output_count;
    char names[VIEW_MAX * 2][16];
    uint32_t name_count;
    weft_graph_view_t view;
} view_builder_t;

void view_begin(view_builder_t *b);
uint32_t view_value(view_builder_t *b, weft_dtype_t dtype, uint64_t bytes);
/* An op of one output; def by name: "Compute", "InPlace", "Unknown",
 * "AllReduce", "ReduceScatter", "AllGather". Returns its output. */
uint32_t view_op(view_builder_t *b, const char *def, const uint32_t *inputs, uint32_t input_count,
                 weft_dtype_t dtype, uint64_t bytes);
/* A parameter, its gradient made from input (or nothing: UINT32_MAX) and the gradient's all-reduce.
 * Returns the reduced value; the all-reduce is the last op. */
uint32_t view_gradient(view_builder_t *b, uint32_t input, weft_dtype_t dtype, uint64_t bytes);
/* Fills users and the view. */
const weft_graph_view_t *view_end(view_builder_t *b);

#endif
