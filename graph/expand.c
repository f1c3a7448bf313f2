/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators that ONNX defines by others, and that have no kernel, become these: then they have
 * gradients as well. Shapes are known.
 */
#include "graph/expand.h"

#define MOST_PADDED ((int64_t)1 << 28)

/* x less its mean, by its deviation, over the last dimension. */
static uint32_t normalize(expander_t *e, uint32_t x, double epsilon)
{
    const int64_t last = -1;
    uint32_t centred = two(e, "Sub", x, reduce(e, "ReduceMean", x, &last, 1));
    uint32_t variance = reduce(e, "ReduceMean", two(e, "Mul", centred, centred), &last, 1);
    uint32_t deviation = one(e, "Sqrt", two(e, "Add", variance, number(e, epsilon, x)));
    return two(e, "Div", centred, deviation);
}

/* A tensor with an element per channel, to be broadcast to [N, C, ..]. */
static uint32_t per_channel(expander_t *e, uint32_t x, uint32_t rank)
{
    int64_t dims[WEFT_MAX_DIMS];
    for (uint32_t d = 0; d < rank; d++) {
        dims[d] = d == 0 ? -1 : 1;
    }
    return rank > 1 ? reshape(e, x, dims, rank - 1) : x;
}

static uint32_t instance_norm(expander_t *e)
{
    const weft_tensor_desc_t x = type_of(e, input(e, 0));
    const int64_t rows[] = {x.dims[0], x.dims[1], -1};
    uint32_t y = normalize(e, reshape(e, input(e, 0), rows, 3), float_attr(e, "epsilon", 1e-5));
    y = reshape(e, y, x.dims, x.rank);
    y = two(e, "Mul", y, per_channel(e, input(e, 1), x.rank));
    return two(e, "Add", y, per_channel(e, input(e, 2), x.rank));
}

/* Before opset 21 scale and bias have an element per group. */
static uint32_t group_norm(expander_t *e)
{
    const weft_tensor_desc_t x = type_of(e, input(e, 0));
    const int64_t groups = int_attr(e, "num_groups"), rows[] = {x.dims[0], groups, -1};
    const bool by_group = type_of(e, input(e, 1)).dims[0] != x.dims[1];
    uint32_t y = normalize(e, reshape(e, input(e, 0), rows, 3), float_attr(e, "epsilon", 1e-5));
    uint32_t rank = by_group ? 3 : x.rank;
    y = by_group ? y : reshape(e, y, x.dims, x.rank);
    y = two(e, "Mul", y, per_channel(e, input(e, 1), rank));
    y = two(e, "Add", y, per_channel(e, input(e, 2), rank));
    return by_group ? reshape(e, y, x.dims, x.rank) : y;
}

static uint32_t mean_variance_norm(expander_t *e)
{
    const weft_attr_t *attr = wefti_node_attr(&e->graph->nodes[e->node], "axes");
    static const int64_t usual[] = {0, 2, 3};
    const int64_t *axes = attr != NULL ? attr->ints : usual;
    uint32_t count = attr != NULL ? (uint32_t)attr->count : 3, x = input(e, 0);
    uint32_t centred = two(e, "Sub", x, reduce(e, "ReduceMean", x, axes, count));
    uint32_t variance = reduce(e, "ReduceMean", two(e, "Mul", centred, centred), axes, count);
    uint32_t deviation = two(e, "Add", one(e, "Sqrt", variance), number(e, 1e-9, x));
    return two(e, "Div", centred, deviation);
}

/*
 * Einsum: labels of each operand and of the result. Dimensions of an ellipsis get labels 1, 2, ..
 * from the last one.
 */
typedef struct labels {
    char at[2 * WEFT_MAX_DIMS];
    uint32_t count;
} labels_t;

static bool has(const labels_t *list, char label)
{
    return memchr(list->at, label, list->count) != NULL;
}

/* From *text up to a comma, an arrow or the end; rank: of the operand, or of the ellipsis of the
 * result with dots < 0. */
static bool read_labels(const char **text, int64_t rank, uint32_t *dots, labels_t *out)
{
    const char *from = *text;
    uint32_t letters = 0;
    bool ellipsis = false;
    for (; **text != '\0' && **text != ',' && **text != '-'; (*text)++) {
        ellipsis = ellipsis || **text == '.';
        letters += **text >= 'A' && **text != '.' ? 1 : 0;
    }
    if (rank >= 0) {
        if (letters > rank || (!ellipsis && letters != rank)) {
            return false;
        }
        *dots = (uint32_t)rank - letters;
    }
    out->count = 0;
    for (const char *c = from; c < *text; c++) {
        if (c[0] == '.' && c + 2 < *text && c[1] == '.' && c[2] == '.') {
            for (uint32_t i = *dots; i > 0 && out->count < sizeof(out->at); i--) {
                out->at[out->count++] = (char)i;
            }
            c += 2;
        } else if (*c != ' ') {
            if ((rank < 0 && has(out, *c)) || out->count == sizeof(out->at) || *c < 'A') {
                return false; /* a diagonal as result, or no label */
            }
            out->at[out->count++] = *c;
        }
    }
    return out->count <= WEFT_MAX_DIMS;
}

/* Labels in order of the alphabet that occur once in all operands; an ellipsis comes first. */
static void implied_labels(const labels_t *operands, uint32_t count, uint32_t dots, labels_t *out)
{
    out->count = 0;
    for (uint32_t i = dots; i > 0; i--) {
        out->at[out->count++] = (char)i;
    }
    for (int c = 'A'; c <= 'z' && out->count < WEFT_MAX_DIMS; c++) {
        uint32_t found = 0;
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t d = 0; d < operands[i].count; d++) {
                found += operands[i].at[d] == (char)c;
            }
        }
        if (found == 1) {
            out->at[out->count++] = (char)c;
        }
    }
}

/* x, with labels from, summed over labels that are not in to, with its dimensions in that order. */
static uint32_t arrange(expander_t *e, uint32_t x, const labels_t *from, const labels_t *to)
{
    int64_t gone[WEFT_MAX_DIMS], perm[WEFT_MAX_DIMS];
    uint32_t gone_count = 0, kept = 0;
    labels_t left = {.count = 0};
    for (uint32_t d = 0; d < from->count; d++) {
        if (has(to, from->at[d])) {
            left.at[left.count++] = from->at[d];
        } else {
            gone[gone_count++] = d;
        }
    }
    if (gone_count > 0) {
        weft_attr_t flat = {.name = "keepdims", .type = WEFT_ATTR_TYPE_INT, .i = 0};
        x = add(e, "ReduceSum", (const uint32_t[]){x, ints(e, gone, gone_count)}, 2, &flat);
    }
    bool moved = false;
    for (uint32_t d = 0; d < to->count; d++) {
        const char *at = memchr(left.at, to->at[d], left.count);
        if (at != NULL) {
            perm[kept] = at - left.at;
            moved = moved || perm[kept] != kept;
            kept++;
        }
    }
    return moved ? transpose(e, x, perm, kept) : x;
}

/* x without labels that it has twice: their diagonal, as the last dimension. */
static uint32_t diagonal(expander_t *e, uint32_t x, labels_t *labels)
{
    for (uint32_t a = 0; a < labels->count; a++) {
        const weft_tensor_desc_t type = type_of(e, x);
        int64_t perm[WEFT_MAX_DIMS], dims[WEFT_MAX_DIMS], size = type.dims[a];
        const char label = labels->at[a];
        uint32_t kept = 0, b = a + 1;
        while (b < labels->count && labels->at[b] != label) {
            b++;
        }
        if (b == labels->count || e->status < 0) {
            continue;
        }
        if (type.dims[b] != size) {
            e->status =
                wefti_error(WEFT_ERR_INVALID_ARGUMENT, "Einsum: label '%c': sizes %lld, %lld",
                            label, (long long)size, (long long)type.dims[b]);
            return 0;
        }
        for (uint32_t d = 0; d < labels->count; d++) {
            if (d != a && d != b) {
                perm[kept] = d;
                dims[kept] = type.dims[d];
                labels->at[kept++] = labels->at[d];
            }
        }
        perm[kept] = a;
        perm[kept + 1] = b;
        x = transpose(e, x, perm, type.rank);
        dims[kept] = size * size;
        labels->at[kept++] = label;
        x = slice(e, reshape(e, x, dims, kept), 0, size * size, size + 1);
        labels->count = kept;
        a = UINT32_MAX; /* from the first label again */
    }
    return x;
}

static uint32_t einsum_product(expander_t *e, const uint32_t *x, const labels_t *in,
                               const labels_t *out)
{
    labels_t parts[4] = {{.count = 0}}; /* in both and the result, in a, summed, in b */
    labels_t a = {.count = 0}, b = {.count = 0}, y = {.count = 0};
    int64_t sizes[4] = {1, 1, 1, 1}, dims[WEFT_MAX_DIMS];
    const weft_tensor_desc_t ta = type_of(e, x[0]), tb = type_of(e, x[1]);
    for (uint32_t k = 0; k < 2; k++) {
        for (uint32_t d = 0; d < in[k].count; d++) {
            const char label = in[k].at[d];
            bool other = has(&in[1 - k], label), result = has(out, label);
            int part = other ? (result ? 0 : 2) : !result ? -1 : k == 0 ? 1 : 3;
            if (part >= 0 && !has(&parts[part], label)) {
                parts[part].at[parts[part].count++] = label;
                sizes[part] *= k == 0 ? ta.dims[d] : tb.dims[d];
            }
        }
    }
    static const int of_a[] = {0, 1, 2}, of_b[] = {0, 2, 3}, of_y[] = {0, 1, 3};
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t n = 0; n < parts[of_a[i]].count; n++) {
            a.at[a.count++] = parts[of_a[i]].at[n];
        }
        for (uint32_t n = 0; n < parts[of_b[i]].count; n++) {
            b.at[b.count++] = parts[of_b[i]].at[n];
        }
        for (uint32_t n = 0; n < parts[of_y[i]].count && y.count < WEFT_MAX_DIMS; n++) {
            const char label = parts[of_y[i]].at[n];
            const char *at = memchr(in[0].at, label, in[0].count);
            const char *in_b = memchr(in[1].at, label, in[1].count);
            dims[y.count] = at != NULL ? ta.dims[at - in[0].at] : tb.dims[in_b - in[1].at];
            y.at[y.count++] = label;
        }
    }
    const int64_t left[] = {sizes[0], sizes[1], sizes[2]};
    const int64_t right[] = {sizes[0], sizes[2], sizes[3]};
    uint32_t p = reshape(e, arrange(e, x[0], &in[0], &a), left, 3);
    uint32_t q = reshape(e, arrange(e, x[1], &in[1], &b), right, 3);
    return arrange(e, reshape(e, two(e, "MatMul", p, q), dims, y.count), &y, out);
}

static uint32_t einsum(expander_t *e)
{
    const wefti_node_t *node = &e->graph->nodes[e->node];
    const weft_attr_t *attr = wefti_node_attr(node, "equation");
    const char *text = attr != NULL && attr->s != NULL ? attr->s : "";
    labels_t in[2], out = {.count = 0};
    uint32_t dots = 0, most = 0;
    bool known = node->input_count <= 2;
    for (uint32_t i = 0; i < node->input_count && known; i++) {
        known = read_labels(&text, type_of(e, input(e, i)).rank, &dots, &in[i]);
        most = dots > most ? dots : most;
        text += *text == ',' && i + 1 < node->input_count;
    }
    if (known && text[0] == '-' && text[1] == '>') {
        text += 2;
        known = read_labels(&text, -1, &most, &out);
    } else if (known && text[0] == '\0') {
        implied_labels(in, node->input_count, most, &out);
    } else {
        known = false;
    }
    for (uint32_t i = 0; i < out.count && known; i++) {
        known = has(&in[0], out.at[i]) || (node->input_count > 1 && has(&in[1], out.at[i]));
    }
    if (!known) {
        e->status = wefti_error(WEFT_ERR_UNSUPPORTED,
                                "Einsum: equation '%s': expected one or two operands and a result "
                                "without a diagonal",
                                attr != NULL && attr->s != NULL ? attr->s : "");
        return 0;
    }
    const uint32_t operands = node->input_count;
    const uint32_t x[] = {diagonal(e, input(e, 0), &in[0]),
                          operands > 1 ? diagonal(e, input(e, 1), &in[1]) : NONE};
    uint32_t y = operands == 1 ? arrange(e, x[0], &in[0], &out) : einsum_product(e, x, in, &out);
    return y == input(e, 0) ? one(e, "Identity", y) : y;
}

/* The element of x, with size elements, that is in place at: edge, reflect or wrap. */
static int64_t padded_place(char mode, int64_t at, int64_t size)
{
    if (mode == 'e') {
        return at < 0 ? 0 : at >= size ? size - 1 : at;
    }
    const int64_t period = mode == 'w' ? size : size > 1 ? 2 * (size - 1) : 1;
    at %= period;
    at += at < 0 ? period : 0;
    return at < size ? at : period - at;
}

/* Padding by elements of X gathers them, one dimension after the other. NONE: the node stays. */
static uint32_t pad(expander_t *e)
{
    const char *mode = wefti_node_text(&e->graph->nodes[e->node], "mode");
    int64_t pads[2 * WEFT_MAX_DIMS];
    bool known = false;
    weft_node_desc_t desc;
    uint32_t x = input(e, 0);
    const weft_tensor_desc_t type = type_of(e, x);
    if (strcmp(mode, "edge") != 0 && strcmp(mode, "reflect") != 0 && strcmp(mode, "wrap") != 0) {
        return NONE;
    }
    e->status = wefti_graph_node_desc(e->graph, e->node, &e->graph->arena, &desc);
    e->status = e->status < 0 ? e->status : wefti_pad_amounts(&desc, pads, &known);
    for (uint32_t d = 0; d < type.rank && known && e->status >= 0; d++) {
        const int64_t size = type.dims[d], out = size + pads[d] + pads[type.rank + d];
        weft_attr_t axis = {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .i = d};
        if (pads[d] == 0 && pads[type.rank + d] == 0) {
            continue;
        }
        if (size < 1 || out > MOST_PADDED) {
            e->status = wefti_error(WEFT_ERR_UNSUPPORTED, "Pad: dimension %u of %lld becomes %lld",
                                    d, (long long)size, (long long)out);
            break;
        }
        int64_t *list = wefti_arena_alloc(&e->graph->arena, (size_t)out * sizeof(*list) + 1);
        for (int64_t i = 0; list != NULL && i < out; i++) {
            list[i] = padded_place(mode[0], i - pads[d], size);
        }
        const weft_tensor_desc_t places = {.dtype = WEFT_DTYPE_I64, .rank = 1, .dims = {out}};
        x = add(e, "Gather", (const uint32_t[]){x, constant_of(e, &places, list)}, 2, &axis);
    }
    if (e->status >= 0 && !known) {
        return NONE;
    }
    return x == input(e, 0) ? one(e, "Identity", x) : x;
}

static uint32_t global_max(expander_t *e)
{
    int64_t axes[WEFT_MAX_DIMS];
    uint32_t count = 0;
    for (uint32_t d = 2; d < type_of(e, input(e, 0)).rank; d++) {
        axes[count++] = d;
    }
    return reduce(e, "ReduceMax", input(e, 0), axes, count);
}

static uint32_t swiglu(expander_t *e)
{
    weft_attr_t alpha = {.name = "alpha", .type = WEFT_ATTR_TYPE_FLOAT};
    uint32_t gate = input(e, 0);
    alpha.f = (float)float_attr(e, "alpha", 1.0);
    return two(e, "Mul", add(e, "Swish", &gate, 1, &alpha), input(e, 1));
}

static wefti_expand_fn find_expansion(const weft_op_def_t *def)
{
    static const wefti_expand_fn rows[] = {
        [WEFT_EXPANSION_EINSUM] = einsum,
        [WEFT_EXPANSION_GROUP_NORM] = group_norm,
        [WEFT_EXPANSION_INSTANCE_NORM] = instance_norm,
        [WEFT_EXPANSION_MEAN_VARIANCE] = mean_variance_norm,
        [WEFT_EXPANSION_PAD] = pad,
        [WEFT_EXPANSION_GLOBAL_MAX] = global_max,
        [WEFT_EXPANSION_SWIGLU] = swiglu,
        [WEFT_EXPANSION_VOLUME] = wefti_expand_volume,
    };
    const size_t row = (size_t)wefti_op_facts(def).expansion;
    wefti_expand_fn fn = row < sizeof(rows) / sizeof(rows[0]) ? rows[row] : NULL;
    fn = fn != NULL ? fn : wefti_expand_gradient((weft_expansion_t)row);
    fn = fn != NULL ? fn : wefti_expand_attention((weft_expansion_t)row);
    fn = fn != NULL ? fn : wefti_expand_contrib((weft_expansion_t)row);
    return fn != NULL ? fn : wefti_expand_recurrent((weft_expansion_t)row);
}

bool wefti_is_expanded(const weft_op_def_t *def)
{
    return find_expansion(def) != NULL;
}

weft_status_t wefti_graph_expand(wefti_graph_t *graph)
{
    bool any = false;
    expander_t e = {.graph = graph, .causal.value = NONE};
    for (uint32_t i = 0, count = graph->order_count; i < count; i++) {
        uint32_t id = graph->order[i];
        wefti_expand_fn fn = find_expansion(graph->nodes[id].def);
        if (fn == NULL) {
            continue;
        }
        e.node = e.last = id;
        uint32_t y = fn(&e);
        if (e.status < 0) {
            return wefti_error_prefix(e.status, "node '%s' (%s)", graph->nodes[id].name,
                                      graph->nodes[id].def->name);
        }
        if (y == NONE) {
            continue;
        }
        if (graph->nodes[id].outputs[0] != NONE) {
            wefti_expand_take(&e, 0, graph->values[y].producer, 0);
        }
        graph->nodes[id].dead = any = true;
    }
    wefti_graph_compact_order(graph);
    return any ? wefti_graph_sort(graph) : WEFT_OK;
}
