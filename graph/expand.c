/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators that ONNX defines by others, and that have no kernel, become these: then they have
 * gradients as well. Shapes are known.
 */
#include "graph/expand.h"

#define CAUSAL_ELEMENTS ((int64_t)1 << 28) /* 1 GiB */

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

/* In f32 where X is narrower. */
static uint32_t rms_norm(expander_t *e)
{
    int64_t axes[WEFT_MAX_DIMS], first = int_attr(e, "axis");
    const weft_tensor_desc_t type = type_of(e, input(e, 0));
    const bool narrow = type.dtype == WEFT_DTYPE_F16 || type.dtype == WEFT_DTYPE_BF16;
    weft_attr_t to_f32 = {.name = "to", .type = WEFT_ATTR_TYPE_INT, .i = 1};
    uint32_t count = 0, x = input(e, 0);
    first = first < 0 ? first + type.rank : first;
    for (int64_t d = first; d >= 0 && d < type.rank; d++) {
        axes[count++] = d;
    }
    x = narrow ? add(e, "Cast", &x, 1, &to_f32) : x;
    uint32_t square = reduce(e, "ReduceMean", two(e, "Mul", x, x), axes, count);
    uint32_t root =
        one(e, "Sqrt", two(e, "Add", square, number(e, float_attr(e, "epsilon", 1e-5), x)));
    uint32_t y = two(e, "Div", x, root);
    y = narrow ? two(e, "CastLike", y, input(e, 0)) : y;
    return two(e, "Mul", y, input(e, 1));
}

/* Pairs of elements of each head are turned by an angle of their position. */
static uint32_t rotary(expander_t *e)
{
    const weft_tensor_desc_t x = type_of(e, input(e, 0));
    const bool flat = x.rank == 3, interleaved = int_attr(e, "interleaved") != 0;
    const int64_t heads = int_attr(e, "num_heads");
    int64_t split[] = {x.dims[0], x.dims[1], heads, flat && heads > 0 ? x.dims[2] / heads : 0};
    int64_t width = flat ? split[3] : x.dims[3], turned = int_attr(e, "rotary_embedding_dim");
    const int64_t heads_axis = flat ? 2 : 1; /* [B, S, H, D], or [B, H, S, D] */
    if ((flat && heads <= 0) || (!flat && x.rank != 4)) {
        e->status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                                "RotaryEmbedding: expected 4 dimensions, or 3 and num_heads");
        return 0;
    }
    turned = turned == 0 ? width : turned;
    uint32_t whole = flat ? reshape(e, input(e, 0), split, 4) : input(e, 0);
    uint32_t part = turned < width ? slice(e, whole, 0, turned, 1) : whole;
    uint32_t angles[2];
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t cache = input(e, 1 + i), positions = input(e, 3);
        cache = positions != NONE ? two(e, "Gather", cache, positions) : cache;
        angles[i] = two(e, "Unsqueeze", cache, ints(e, &heads_axis, 1));
    }
    uint32_t a = interleaved ? slice(e, part, 0, turned, 2) : slice(e, part, 0, turned / 2, 1);
    uint32_t b = interleaved ? slice(e, part, 1, turned, 2) : slice(e, part, turned / 2, turned, 1);
    uint32_t real = two(e, "Sub", two(e, "Mul", angles[0], a), two(e, "Mul", angles[1], b));
    uint32_t imaginary = two(e, "Add", two(e, "Mul", angles[1], a), two(e, "Mul", angles[0], b));
    if (interleaved) {
        const int64_t last = -1;
        const weft_tensor_desc_t shape = type_of(e, part);
        real = two(e, "Unsqueeze", real, ints(e, &last, 1));
        imaginary = two(e, "Unsqueeze", imaginary, ints(e, &last, 1));
        part = reshape(e, concat(e, real, imaginary, -1), shape.dims, 4);
    } else {
        part = concat(e, real, imaginary, -1);
    }
    whole = turned < width ? concat(e, part, slice(e, whole, turned, width, 1), -1) : part;
    return flat ? reshape(e, whole, x.dims, 3) : whole;
}

/* [B, S, H D] as [B, H, S, D]. */
static uint32_t heads_of(expander_t *e, uint32_t x, int64_t heads)
{
    static const int64_t perm[] = {0, 2, 1, 3};
    const weft_tensor_desc_t type = type_of(e, x);
    const int64_t dims[] = {type.dims[0], type.dims[1], heads, -1};
    return type.rank == 4 ? x : transpose(e, reshape(e, x, dims, 4), perm, 4);
}

static void check_mask(expander_t *e, int64_t queries, int64_t keys)
{
    int64_t count;
    if (e->status >= 0 &&
        (__builtin_mul_overflow(queries, keys, &count) || count > CAUSAL_ELEMENTS)) {
        e->status =
            wefti_error(WEFT_ERR_UNSUPPORTED, "a mask of %lld x %lld elements, limit %lld in all",
                        (long long)queries, (long long)keys, (long long)CAUSAL_ELEMENTS);
    }
}

/* 0 where query i may see key j, i + first <= j <= i + last, else -infinity. */
static uint32_t window(expander_t *e, int64_t queries, int64_t keys, int64_t first, int64_t last)
{
    const weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_F32, .rank = 2, .dims = {queries, keys}};
    if (e->causal.value != NONE && e->causal.queries == queries && e->causal.keys == keys &&
        e->causal.first == first && e->causal.last == last) {
        return e->causal.value;
    }
    check_mask(e, queries, keys);
    size_t bytes = e->status < 0 ? 0 : (size_t)(queries * keys) * sizeof(float);
    float *mask = e->status < 0 ? NULL : wefti_arena_alloc(&e->graph->arena, bytes + 1);
    for (int64_t i = 0; mask != NULL && i < queries; i++) {
        for (int64_t j = 0; j < keys; j++) {
            mask[i * keys + j] = j - i >= first && j - i <= last ? 0.0f : -INFINITY;
        }
    }
    e->causal.queries = queries;
    e->causal.keys = keys;
    e->causal.first = first;
    e->causal.last = last;
    return e->causal.value = constant_of(e, &type, mask);
}

/* 0, 1, .. count - 1 as [1, 1, count, 1], or with last [count]. */
static uint32_t places(expander_t *e, int64_t count, bool last)
{
    const weft_tensor_desc_t type = {
        .dtype = WEFT_DTYPE_I64, .rank = last ? 1 : 4, .dims = {last ? count : 1, 1, count, 1}};
    size_t bytes = e->status < 0 ? 0 : (size_t)count * sizeof(int64_t);
    int64_t *list = e->status < 0 ? NULL : wefti_arena_alloc(&e->graph->arena, bytes + 1);
    for (int64_t i = 0; list != NULL && i < count; i++) {
        list[i] = i;
    }
    return constant_of(e, &type, list);
}

static uint32_t scalar_i64(expander_t *e, int64_t value)
{
    const weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_I64};
    return constant(e, &type, &value, sizeof(value));
}

/* The keys that a query may see, as distances from its own position: first .. last. */
typedef struct visible {
    int64_t first, last;
    int64_t most; /* beyond all keys: no bound */
} visible_t;

/* A bias where each sample has its own number of keys, nonpad_kv_seqlen. Without a past the last
 * query has the position of the last of them. */
static uint32_t bias_of_lengths(expander_t *e, uint32_t q, int64_t queries, int64_t keys,
                                int64_t past, const visible_t *see)
{
    static const int64_t column[] = {-1, 1, 1, 1};
    check_mask(e, queries, keys);
    uint32_t key = places(e, keys, true), query = places(e, queries, false);
    uint32_t lengths = reshape(e, input(e, 6), column, 4);
    uint32_t seen = two(e, "Less", key, lengths);
    uint32_t offset =
        input(e, 4) != NONE ? scalar_i64(e, past) : two(e, "Sub", lengths, scalar_i64(e, queries));
    uint32_t distance = two(e, "Sub", key, two(e, "Add", query, offset));
    if (see->last < see->most) {
        seen = two(e, "And", seen, two(e, "LessOrEqual", distance, scalar_i64(e, see->last)));
    }
    if (see->first > -see->most) {
        seen = two(e, "And", seen, two(e, "GreaterOrEqual", distance, scalar_i64(e, see->first)));
    }
    return choose(e, seen, number(e, 0.0, q), number(e, -INFINITY, q));
}

/* By order and distance only, or NONE. *out_empty: a query may see no key at all. */
static uint32_t bias_of_places(expander_t *e, uint32_t q, int64_t queries, int64_t keys,
                               int64_t past, bool *out_empty)
{
    const bool windows = e->status >= 0 && e->graph->nodes[e->node].version >= 25;
    const int64_t left = windows ? int_attr(e, "left_window_size") : -1;
    const int64_t right = windows ? int_attr(e, "right_window_size") : -1;
    const bool causal = int_attr(e, "is_causal") != 0;
    visible_t see = {.most = queries + keys + past};
    see.first = left >= 0 && left < see.most ? -left : -see.most;
    see.last = causal ? 0 : right >= 0 && right < see.most ? right : see.most;
    *out_empty = input(e, 6) != NONE || left >= 0 || right >= 0;
    if (input(e, 6) != NONE) {
        return bias_of_lengths(e, q, queries, keys, past, &see);
    }
    if (!causal && !*out_empty) {
        return NONE;
    }
    uint32_t bias = window(e, queries, keys, past + see.first, past + see.last);
    return type_of(e, q).dtype == WEFT_DTYPE_F32 ? bias : two(e, "CastLike", bias, q);
}

/* From opset 24 on a mask may end before the keys do: the others are not seen. */
static uint32_t pad_last(expander_t *e, uint32_t bias, int64_t keys, uint32_t filling)
{
    const weft_tensor_desc_t type = type_of(e, bias);
    int64_t pads[2 * WEFT_MAX_DIMS] = {0};
    int64_t lacks = type.rank > 0 ? keys - type.dims[type.rank - 1] : 0;
    if (e->status < 0 || lacks <= 0 || e->graph->nodes[e->node].version < 24) {
        return bias;
    }
    pads[2 * type.rank - 1] = lacks;
    return add(e, "Pad", (const uint32_t[]){bias, ints(e, pads, 2 * type.rank), filling}, 3, NULL);
}

/* What is added to the scores, or NONE. *out_unseen: rows that see no key, or NONE. */
static uint32_t attention_bias(expander_t *e, uint32_t q, int64_t queries, int64_t keys,
                               int64_t past, uint32_t *out_unseen)
{
    const int64_t last = -1;
    uint32_t mask = input(e, 3), bias = NONE;
    bool empty;
    *out_unseen = NONE;
    if (mask != NONE) {
        uint32_t zero = number(e, 0.0, q), never = number(e, -INFINITY, q);
        bias = type_of(e, mask).dtype == WEFT_DTYPE_BOOL ? choose(e, mask, zero, never) : mask;
        bias = pad_last(e, bias, keys, never);
    }
    uint32_t order = bias_of_places(e, q, queries, keys, past, &empty);
    bias = bias == NONE ? order : order == NONE ? bias : two(e, "Add", bias, order);
    if (mask != NONE || empty) {
        uint32_t most = reduce(e, "ReduceMax", bias, &last, 1);
        *out_unseen = two(e, "Equal", most, number(e, -INFINITY, q));
        bias = choose(e, *out_unseen, number(e, 0.0, q), bias);
    }
    return bias;
}

/* Query heads that share a key are rows of one product: keys and values are not repeated. */
static uint32_t attention(expander_t *e)
{
    static const int64_t turn[] = {0, 1, 3, 2}, back[] = {0, 2, 1, 3};
    const bool flat = type_of(e, input(e, 0)).rank == 3;
    uint32_t q = heads_of(e, input(e, 0), int_attr(e, "q_num_heads"));
    uint32_t k = heads_of(e, input(e, 1), int_attr(e, "kv_num_heads"));
    uint32_t v = heads_of(e, input(e, 2), int_attr(e, "kv_num_heads"));
    int64_t past = 0;
    if (input(e, 4) != NONE && input(e, 5) != NONE) {
        past = type_of(e, input(e, 4)).dims[2];
        k = concat(e, input(e, 4), k, 2);
        v = concat(e, input(e, 5), v, 2);
    }
    wefti_expand_give(e, 1, k);
    wefti_expand_give(e, 2, v);
    const weft_tensor_desc_t tq = type_of(e, q), tk = type_of(e, k), tv = type_of(e, v);
    const int64_t batch = tq.dims[0], heads = tq.dims[1], queries = tq.dims[2], keys = tk.dims[2];
    const int64_t shared = tk.dims[1] > 0 && heads % tk.dims[1] == 0 ? heads / tk.dims[1] : 0;
    const int64_t mode = int_attr(e, "qk_matmul_output_mode");
    if (e->status >= 0 && shared == 0) {
        e->status = wefti_error(WEFT_ERR_UNSUPPORTED,
                                "Attention: the heads of Q are no multiple of those of K");
        return 0;
    }
    double root = sqrt(float_attr(e, "scale", 1.0 / sqrt((double)tq.dims[3])));
    q = two(e, "Mul", q, number(e, root, q));
    k = two(e, "Mul", k, number(e, root, k));
    const int64_t rows[] = {batch, tk.dims[1], shared * queries, tq.dims[3]};
    const int64_t square[] = {batch, heads, queries, keys};
    const int64_t grouped[] = {batch, tk.dims[1], shared * queries, keys};
    const int64_t result[] = {batch, heads, queries, tv.dims[3]};
    q = shared > 1 ? reshape(e, q, rows, 4) : q;
    uint32_t scores = two(e, "MatMul", q, transpose(e, k, turn, 4));
    scores = shared > 1 ? reshape(e, scores, square, 4) : scores;
    wefti_expand_give(e, 3, mode == 0 ? scores : NONE);
    double cap = float_attr(e, "softcap", 0.0);
    if (cap > 0.0) {
        scores = one(e, "Tanh", two(e, "Div", scores, number(e, cap, scores)));
        scores = two(e, "Mul", scores, number(e, cap, scores));
    }
    wefti_expand_give(e, 3, mode == 1 ? scores : NONE);
    uint32_t unseen, bias = attention_bias(e, q, queries, keys, past, &unseen);
    scores = bias != NONE ? two(e, "Add", scores, bias) : scores;
    wefti_expand_give(e, 3, mode == 2 ? scores : NONE);
    uint32_t shares = one(e, "Softmax", scores);
    shares = unseen != NONE ? choose(e, unseen, number(e, 0.0, shares), shares) : shares;
    wefti_expand_give(e, 3, mode == 3 ? shares : NONE);
    shares = shared > 1 ? reshape(e, shares, grouped, 4) : shares;
    uint32_t y = two(e, "MatMul", shares, v);
    y = shared > 1 ? reshape(e, y, result, 4) : y;
    if (flat) {
        const int64_t joined[] = {batch, queries, -1};
        y = reshape(e, transpose(e, y, back, 4), joined, 3);
    }
    return y;
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
        if (size < 1 || out > CAUSAL_ELEMENTS) {
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
        [WEFT_EXPANSION_ATTENTION] = attention,
        [WEFT_EXPANSION_EINSUM] = einsum,
        [WEFT_EXPANSION_GROUP_NORM] = group_norm,
        [WEFT_EXPANSION_INSTANCE_NORM] = instance_norm,
        [WEFT_EXPANSION_MEAN_VARIANCE] = mean_variance_norm,
        [WEFT_EXPANSION_RMS_NORM] = rms_norm,
        [WEFT_EXPANSION_ROTARY] = rotary,
        [WEFT_EXPANSION_PAD] = pad,
        [WEFT_EXPANSION_GLOBAL_MAX] = global_max,
        [WEFT_EXPANSION_SWIGLU] = swiglu,
        [WEFT_EXPANSION_VOLUME] = wefti_expand_volume,
    };
    const size_t row = (size_t)wefti_op_facts(def).expansion;
    wefti_expand_fn fn = row < sizeof(rows) / sizeof(rows[0]) ? rows[row] : NULL;
    fn = fn != NULL ? fn : wefti_expand_gradient((weft_expansion_t)row);
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
