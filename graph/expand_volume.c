/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows over three dimensions become windows over two. Kernels exist for these.
 *
 *   pool:  over H and W of [N, C D, H, W], then over D of [N, C, D, H W]
 *   conv:  X [N, C, D, H, W] --Gather--> [N, C, D of Y, K, H, W] --> [N D of Y, C K, H, W] --Conv-->
 *          K: places along D under a window; they are channels of one convolution over H and W.
 */
#include "graph/expand.h"

#define MOST_ATTRS 12
#define MOST_PLACES ((int64_t)1 << 20)

typedef struct attrs {
    weft_attr_t list[MOST_ATTRS];
    int64_t ints[MOST_ATTRS][4];
    uint32_t count;
} attrs_t;

/* The attributes of the node for the dimensions H and W, or for D beside one without a window. */
static void attrs_of(const expander_t *e, bool depth, attrs_t *out)
{
    const wefti_node_t *node = &e->graph->nodes[e->node];
    out->count = 0;
    for (uint32_t i = 0; i < node->attr_count && out->count < MOST_ATTRS; i++) {
        weft_attr_t *attr = &out->list[out->count];
        int64_t *ints = out->ints[out->count++];
        *attr = node->attrs[i];
        if (attr->type != WEFT_ATTR_TYPE_INTS) {
            continue;
        }
        const int64_t *from = attr->ints, none = attr->count == 6 ? 0 : 1; /* pads: begins, ends */
        for (size_t part = 0; part < attr->count / 3; part++, from += 3) {
            ints[2 * part] = from[depth ? 0 : 1];
            ints[2 * part + 1] = depth ? none : from[2];
        }
        attr->ints = ints;
        attr->count = attr->count / 3 * 2;
    }
}

static uint32_t window(expander_t *e, bool depth, const uint32_t *inputs, uint32_t count)
{
    attrs_t attrs;
    if (e->status < 0) {
        return 0;
    }
    attrs_of(e, depth, &attrs);
    return add_node(e, &(const wefti_node_params_t){.domain = "",
                                                    .op = e->graph->nodes[e->node].def->name,
                                                    .inputs = inputs,
                                                    .input_count = count,
                                                    .output_count = 1,
                                                    .attrs = attrs.list,
                                                    .attr_count = attrs.count});
}

static uint32_t pool(expander_t *e)
{
    const weft_tensor_desc_t x = type_of(e, input(e, 0));
    const weft_tensor_desc_t y = type_of(e, e->graph->nodes[e->node].outputs[0]);
    const int64_t planes[] = {x.dims[0], x.dims[1] * x.dims[2], x.dims[3], x.dims[4]};
    const int64_t columns[] = {x.dims[0], x.dims[1], x.dims[2], y.dims[3] * y.dims[4]};
    uint32_t value = reshape(e, input(e, 0), planes, 4);
    value = reshape(e, window(e, false, &value, 1), columns, 4);
    return reshape(e, window(e, true, &value, 1), y.dims, 5);
}

/* The place along D of X under place k of the window of result i, in X with zeros around it; of a
 * transposed window, which lies in the result, a zero after X where there is none. */
static int64_t place_of(const wefti_window_t *w, bool transposed, int64_t depth, int64_t i,
                        int64_t k)
{
    int64_t at = i + w->pad_begin[0] - k * w->dilation[0];
    if (!transposed) {
        return i * w->stride[0] + k * w->dilation[0];
    }
    return at >= 0 && at % w->stride[0] == 0 && at / w->stride[0] < depth ? at / w->stride[0]
                                                                          : depth;
}

/* X with a dimension of the places under the window after D: [N, C, D of Y, K, H, W]. */
static uint32_t unfold(expander_t *e, const wefti_window_t *w, bool transposed)
{
    const int64_t depth = type_of(e, input(e, 0)).dims[2], out = w->out[0], size = w->kernel[0];
    const int64_t pads[] = {0, 0, transposed ? 0 : w->pad_begin[0], 0, 0,
                            0, 0, transposed ? 1 : w->pad_end[0],   0, 0};
    const weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_I64, .rank = 2, .dims = {out, size}};
    const weft_attr_t axis = {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .i = 2};
    if (out > MOST_PLACES || size > MOST_PLACES || out * size > MOST_PLACES) {
        e->status = wefti_error(WEFT_ERR_UNSUPPORTED, "window of %lld at %lld places",
                                (long long)size, (long long)out);
        return 0;
    }
    int64_t *places =
        wefti_arena_alloc(&e->graph->arena, (size_t)(out * size) * sizeof(*places) + 1);
    for (int64_t at = 0; places != NULL && at < out * size; at++) {
        places[at] = place_of(w, transposed, depth, at / size, at % size);
    }
    uint32_t x = two(e, "Pad", input(e, 0), ints(e, pads, 10));
    return add(e, "Gather", (const uint32_t[]){x, constant_of(e, &type, places)}, 2, &axis);
}

static uint32_t convolution(expander_t *e, bool transposed)
{
    static const int64_t by_result[] = {0, 2, 1, 3, 4, 5}, by_channel[] = {0, 2, 1, 3, 4};
    const weft_tensor_desc_t x = type_of(e, input(e, 0)), w = type_of(e, input(e, 1));
    const weft_tensor_desc_t y = type_of(e, e->graph->nodes[e->node].outputs[0]);
    weft_node_desc_t desc;
    wefti_window_t win;
    e->status = wefti_graph_node_desc(e->graph, e->node, &e->graph->arena, &desc);
    if (e->status >= 0) {
        e->status = transposed ? wefti_window_resolve_transposed(&desc, 5, x.dims, w.dims + 2, &win)
                               : wefti_window_resolve(&desc, 5, x.dims, w.dims + 2, &win);
    }
    if (e->status < 0) {
        return 0;
    }
    const int64_t size = win.kernel[0];
    const int64_t images[] = {x.dims[0] * y.dims[2], x.dims[1] * size, x.dims[3], x.dims[4]};
    const int64_t results[] = {x.dims[0], y.dims[2], y.dims[1], y.dims[3], y.dims[4]};
    const int64_t weights[] = {transposed ? w.dims[0] * size : w.dims[0],
                               transposed ? w.dims[1] : w.dims[1] * size, w.dims[3], w.dims[4]};
    uint32_t inputs[] = {unfold(e, &win, transposed), input(e, 1), input(e, 2)};
    inputs[0] = reshape(e, transpose(e, inputs[0], by_result, 6), images, 4);
    inputs[1] = transposed ? transpose(e, inputs[1], by_channel, 5) : inputs[1];
    inputs[1] = reshape(e, inputs[1], weights, 4);
    uint32_t value = window(e, false, inputs, inputs[2] == NONE ? 2 : 3);
    return transpose(e, reshape(e, value, results, 5), by_channel, 5);
}

uint32_t wefti_expand_volume(expander_t *e)
{
    const wefti_node_t *node = &e->graph->nodes[e->node];
    const weft_gradient_t rule = wefti_op_facts(node->def).gradient;
    const weft_tensor_desc_t x = type_of(e, input(e, 0));
    if (x.rank != 5 || x.dims[0] < 0 || (node->output_count > 1 && node->outputs[1] != NONE)) {
        return NONE;
    }
    return rule == WEFT_GRADIENT_WINDOW_MAXIMUM || rule == WEFT_GRADIENT_WINDOW_MEAN
               ? pool(e)
               : convolution(e, rule == WEFT_GRADIENT_CONVOLUTION_TRANSPOSED);
}
