/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in the graph of a rank: shapes, axes, sizes and ranges become those of its part. */
#include "fusion/tensor/rewrite.h"

#include <string.h>

#include "ops/op_facts.h"
#include "runtime/base/error.h"

bool wefti_split_ints(const wefti_graph_t *graph, uint32_t value, int64_t *out, uint32_t *out_count)
{
    const weft_tensor_desc_t *type = &graph->values[value].type;
    size_t count = wefti_value_bytes(&graph->values[value]) / sizeof(int64_t);
    if (graph->values[value].kind != WEFTI_VALUE_CONST || type->data == NULL ||
        type->dtype != WEFT_DTYPE_I64 || count > WEFT_MAX_DIMS) {
        return false;
    }
    memcpy(out, type->data, count * sizeof(*out));
    *out_count = (uint32_t)count;
    return true;
}

bool wefti_split_range(const wefti_graph_t *graph, const wefti_node_t *node, int64_t axis,
                       int64_t out_range[2], uint32_t *out_place)
{
    int64_t lists[4][WEFT_MAX_DIMS];
    uint32_t counts[4] = {0};
    const weft_tensor_desc_t *in = &graph->values[node->inputs[0]].type;
    for (uint32_t i = 0; i < 4; i++) { /* starts, ends, axes, steps */
        uint32_t value = i + 1 < node->input_count ? node->inputs[i + 1] : WEFTI_NONE;
        if (value == WEFTI_NONE ? i < 3 : !wefti_split_ints(graph, value, lists[i], &counts[i])) {
            return false;
        }
    }
    for (uint32_t i = 0; i < counts[2] && i < counts[0] && i < counts[1]; i++) {
        const int64_t size = in->dims[axis];
        const int64_t own = lists[2][i] + (lists[2][i] < 0 ? in->rank : 0);
        if (own != axis || (i < counts[3] && lists[3][i] != 1)) {
            continue;
        }
        for (uint32_t k = 0; k < 2; k++) {
            int64_t at = lists[k][i] < 0 ? lists[k][i] + size : lists[k][i];
            out_range[k] = at < 0 ? 0 : at > size ? size : at;
        }
        *out_place = i;
        return out_range[0] < out_range[1];
    }
    return false;
}

static weft_status_t add_ints(rewriter_t *r, const char *name, const int64_t *ints, uint32_t count,
                              uint32_t *out_value)
{
    weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_I64, .rank = 1, .dims = {count}};
    type.data = wefti_arena_memdup(&r->graph->arena, ints, count * sizeof(*ints));
    WEFT_RETURN_IF_NO_MEMORY(type.data);
    return wefti_graph_add_value(r->graph, name, WEFTI_VALUE_CONST, &type, out_value);
}

/* A list that a node reads as input 1, or, in older versions, as an attribute. */
static weft_status_t set_ints(rewriter_t *r, uint32_t id, const char *attr_name, int64_t *ints,
                              uint32_t count)
{
    const wefti_node_t *node = &r->graph->nodes[id];
    uint32_t inputs[] = {node->inputs[0], WEFTI_NONE};
    if (node->def->inputs_max < 2) {
        const weft_attr_t attr = {
            .name = attr_name, .type = WEFT_ATTR_TYPE_INTS, .ints = ints, .count = count};
        return wefti_graph_set_attr(r->graph, id, &attr);
    }
    char *name = wefti_arena_printf(&r->graph->arena, "%s.%s", node->name, attr_name);
    WEFT_RETURN_IF_NO_MEMORY(name);
    WEFT_RETURN_IF_ERROR(add_ints(r, name, ints, count, &inputs[1]));
    r->graph->nodes[id].inputs = wefti_arena_memdup(&r->graph->arena, inputs, sizeof inputs);
    WEFT_RETURN_IF_NO_MEMORY(r->graph->nodes[id].inputs);
    r->graph->nodes[id].input_count = 2;
    return WEFT_OK;
}

static weft_status_t set_shape(rewriter_t *r, uint32_t id)
{
    weft_tensor_desc_t out = r->graph->values[r->graph->nodes[id].outputs[0]].type;
    out.dims[r->s->nodes[id].out.axis] /= r->s->ranks;
    return set_ints(r, id, "shape", out.dims, out.rank);
}

/* Does it drop all dimensions of 1, whichever they are? */
static bool drops_ones(const wefti_node_t *node)
{
    const weft_op_def_t *def = node->def;
    bool takes_axes =
        def->inputs_max > 1 || (def->attr_count > 0 && strcmp(def->attrs[0].name, "axes") == 0);
    return wefti_op_has(def, WEFT_FACT_VIEW) && takes_axes &&
           (node->input_count < 2 || node->inputs[1] == WEFTI_NONE) &&
           wefti_node_attr(node, "axes") == NULL;
}

/* Those that are 1 on all ranks together: the part of the split one may be 1, too. */
static weft_status_t set_axes(rewriter_t *r, uint32_t id)
{
    const wefti_node_t *node = &r->graph->nodes[id];
    const weft_tensor_desc_t in = r->graph->values[node->inputs[0]].type;
    int32_t split = r->s->nodes[id].need[0].axis;
    int64_t axes[WEFT_MAX_DIMS];
    uint32_t count = 0;
    for (uint32_t d = 0; d < in.rank; d++) {
        if (in.dims[d] == 1 && (int32_t)d != split) {
            axes[count++] = d;
        }
    }
    return set_ints(r, id, "axes", axes, count);
}

/* Parts along the split axis: of each, a rank has its part. */
static weft_status_t set_sizes(rewriter_t *r, uint32_t id)
{
    const wefti_node_t *node = &r->graph->nodes[id];
    const wefti_split_t *split = &r->s->nodes[id].need[0];
    int64_t ints[WEFT_MAX_DIMS];
    uint32_t value;
    for (uint32_t i = 0; i < split->count; i++) {
        ints[i] = split->sizes[i] / r->s->ranks;
    }
    if (node->input_count > 1 && node->inputs[1] != WEFTI_NONE) {
        WEFT_RETURN_IF_ERROR(
            add_ints(r, r->graph->values[node->inputs[1]].name, ints, split->count, &value));
        r->graph->nodes[id].inputs[1] = value;
    } else if (wefti_node_attr(node, "split") != NULL) {
        const weft_attr_t attr = {
            .name = "split", .type = WEFT_ATTR_TYPE_INTS, .ints = ints, .count = split->count};
        return wefti_graph_set_attr(r->graph, id, &attr);
    }
    return WEFT_OK;
}

/* A range of segments: the range of the rank's parts. */
static weft_status_t set_range(rewriter_t *r, uint32_t id)
{
    const wefti_node_t *node = &r->graph->nodes[id];
    int64_t range[2], ints[WEFT_MAX_DIMS];
    uint32_t place, count, value;
    if (!wefti_split_range(r->graph, node, r->s->nodes[id].need[0].axis, range, &place)) {
        return WEFT_OK; /* of another axis */
    }
    uint32_t *inputs =
        wefti_arena_memdup(&r->graph->arena, node->inputs, node->input_count * sizeof(*inputs));
    WEFT_RETURN_IF_NO_MEMORY(inputs);
    for (uint32_t k = 0; k < 2; k++) {
        (void)wefti_split_ints(r->graph, inputs[k + 1], ints, &count);
        ints[place] = range[k] / r->s->ranks;
        WEFT_RETURN_IF_ERROR(
            add_ints(r, r->graph->values[inputs[k + 1]].name, ints, count, &value));
        inputs[k + 1] = value;
    }
    r->graph->nodes[id].inputs = inputs;
    return WEFT_OK;
}

/* Shapes and sizes that a node reads are those of a rank. */
weft_status_t wefti_split_make_local(rewriter_t *r, uint32_t id)
{
    const wefti_node_split_t *split = &r->s->nodes[id];
    const wefti_node_t *node = &r->graph->nodes[id];
    const weft_op_facts_t facts = wefti_op_facts(node->def);
    if (!wefti_is_split(&split->out)) {
        return WEFT_OK;
    }
    if (drops_ones(node)) {
        return set_axes(r, id);
    }
    if ((facts.shape_inputs & 2u) != 0 || facts.gradient == WEFT_GRADIENT_REPEATED ||
        wefti_node_attr(node, "shape") != NULL) {
        return set_shape(r, id);
    }
    if (facts.gradient == WEFT_GRADIENT_RANGE && split->need[0].count > 1) {
        return set_range(r, id);
    }
    /* Segments end where the parts do. */
    bool ends = split->need[0].count > 1 && split->out.count == 1;
    return facts.gradient == WEFT_GRADIENT_PARTS && ends ? set_sizes(r, id) : WEFT_OK;
}
