/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention, GroupQueryAttention and RotaryEmbedding become products, a softmax and arithmetic. The
 * pass fuse-attention makes FlashAttention of these where it can.
 */
#include "graph/expand.h"

#define CAUSAL_ELEMENTS ((int64_t)1 << 28) /* 1 GiB */

/* How heads are turned. */
typedef struct turn {
    uint32_t cos, sin; /* [places, N / 2], or with positions NONE [B, S, N / 2] */
    uint32_t positions;
    int64_t count;      /* N: the elements of a head that turn */
    int64_t heads_axis; /* 2: [B, S, H, D], 1: [B, H, S, D] */
    bool interleaved;
} turn_t;

/* Pairs of elements of each head are turned by an angle of their position. */
static uint32_t turn_heads(expander_t *e, uint32_t whole, const turn_t *turn)
{
    const int64_t width = type_of(e, whole).dims[3], turned = turn->count;
    const uint32_t caches[] = {turn->cos, turn->sin};
    uint32_t part = turned < width ? slice(e, whole, 0, turned, 1) : whole, angles[2];
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t cache =
            turn->positions != NONE ? two(e, "Gather", caches[i], turn->positions) : caches[i];
        angles[i] = two(e, "Unsqueeze", cache, ints(e, &turn->heads_axis, 1));
    }
    const bool pairs = turn->interleaved;
    uint32_t a = pairs ? slice(e, part, 0, turned, 2) : slice(e, part, 0, turned / 2, 1);
    uint32_t b = pairs ? slice(e, part, 1, turned, 2) : slice(e, part, turned / 2, turned, 1);
    uint32_t real = two(e, "Sub", two(e, "Mul", angles[0], a), two(e, "Mul", angles[1], b));
    uint32_t imaginary = two(e, "Add", two(e, "Mul", angles[1], a), two(e, "Mul", angles[0], b));
    if (pairs) {
        const int64_t last = -1;
        const weft_tensor_desc_t shape = type_of(e, part);
        real = two(e, "Unsqueeze", real, ints(e, &last, 1));
        imaginary = two(e, "Unsqueeze", imaginary, ints(e, &last, 1));
        part = reshape(e, concat(e, real, imaginary, -1), shape.dims, 4);
    } else {
        part = concat(e, real, imaginary, -1);
    }
    return turned < width ? concat(e, part, slice(e, whole, turned, width, 1), -1) : part;
}

static uint32_t rotary(expander_t *e)
{
    const weft_tensor_desc_t x = type_of(e, input(e, 0));
    const bool flat = x.rank == 3;
    const int64_t heads = int_attr(e, "num_heads"), turned = int_attr(e, "rotary_embedding_dim");
    const int64_t split[] = {x.dims[0], x.dims[1], heads,
                             flat && heads > 0 ? x.dims[2] / heads : 0};
    if ((flat && heads <= 0) || (!flat && x.rank != 4)) {
        e->status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                                "RotaryEmbedding: expected 4 dimensions, or 3 and num_heads");
        return 0;
    }
    const turn_t turn = {.cos = input(e, 1),
                         .sin = input(e, 2),
                         .positions = input(e, 3),
                         .count = turned != 0 ? turned
                                  : flat      ? split[3]
                                              : x.dims[3],
                         .heads_axis = flat ? 2 : 1,
                         .interleaved = int_attr(e, "interleaved") != 0};
    uint32_t y = turn_heads(e, flat ? reshape(e, input(e, 0), split, 4) : input(e, 0), &turn);
    return flat ? reshape(e, y, x.dims, 3) : y;
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

/* How scores become shares of values. */
typedef struct scoring {
    double scale, softcap; /* softcap 0: none */
    int64_t mode;          /* qk_matmul_output_mode */
    uint32_t bias, unseen; /* NONE: none; unseen: rows that see no key */
} scoring_t;

/* Of q, k and v as [B, H, S, D]. Query heads that share a key are rows of one product: keys and
 * values are not repeated. */
static uint32_t attend(expander_t *e, uint32_t q, uint32_t k, uint32_t v, const scoring_t *how)
{
    static const int64_t turn[] = {0, 1, 3, 2};
    const weft_tensor_desc_t tq = type_of(e, q), tk = type_of(e, k), tv = type_of(e, v);
    const int64_t batch = tq.dims[0], heads = tq.dims[1], queries = tq.dims[2], keys = tk.dims[2];
    const int64_t shared = tk.dims[1] > 0 && heads % tk.dims[1] == 0 ? heads / tk.dims[1] : 0;
    if (e->status >= 0 && shared == 0) {
        e->status = wefti_error(WEFT_ERR_UNSUPPORTED,
                                "Attention: the heads of Q are no multiple of those of K");
        return 0;
    }
    double root = sqrt(how->scale);
    q = two(e, "Mul", q, number(e, root, q));
    k = two(e, "Mul", k, number(e, root, k));
    const int64_t rows[] = {batch, tk.dims[1], shared * queries, tq.dims[3]};
    const int64_t square[] = {batch, heads, queries, keys};
    const int64_t grouped[] = {batch, tk.dims[1], shared * queries, keys};
    const int64_t result[] = {batch, heads, queries, tv.dims[3]};
    q = shared > 1 ? reshape(e, q, rows, 4) : q;
    uint32_t scores = two(e, "MatMul", q, transpose(e, k, turn, 4));
    scores = shared > 1 ? reshape(e, scores, square, 4) : scores;
    wefti_expand_give(e, 3, how->mode == 0 ? scores : NONE);
    if (how->softcap > 0.0) {
        scores = one(e, "Tanh", two(e, "Div", scores, number(e, how->softcap, scores)));
        scores = two(e, "Mul", scores, number(e, how->softcap, scores));
    }
    wefti_expand_give(e, 3, how->mode == 1 ? scores : NONE);
    scores = how->bias != NONE ? two(e, "Add", scores, how->bias) : scores;
    wefti_expand_give(e, 3, how->mode == 2 ? scores : NONE);
    uint32_t shares = one(e, "Softmax", scores);
    shares = how->unseen != NONE ? choose(e, how->unseen, number(e, 0.0, shares), shares) : shares;
    wefti_expand_give(e, 3, how->mode == 3 ? shares : NONE);
    shares = shared > 1 ? reshape(e, shares, grouped, 4) : shares;
    uint32_t y = two(e, "MatMul", shares, v);
    return shared > 1 ? reshape(e, y, result, 4) : y;
}

/* [B, H, S, D] as [B, S, H D]. */
static uint32_t join_heads(expander_t *e, uint32_t x)
{
    static const int64_t back[] = {0, 2, 1, 3};
    const weft_tensor_desc_t type = type_of(e, x);
    const int64_t joined[] = {type.dims[0], type.dims[2], -1};
    return reshape(e, transpose(e, x, back, 4), joined, 3);
}

static uint32_t attention(expander_t *e)
{
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
    const weft_tensor_desc_t tq = type_of(e, q);
    scoring_t how = {.scale = float_attr(e, "scale", 1.0 / sqrt((double)tq.dims[3])),
                     .softcap = float_attr(e, "softcap", 0.0),
                     .mode = int_attr(e, "qk_matmul_output_mode")};
    how.bias = attention_bias(e, q, tq.dims[2], type_of(e, k).dims[2], past, &how.unseen);
    uint32_t y = attend(e, q, k, v, &how);
    return flat ? join_heads(e, y) : y;
}

/*
 * GroupQueryAttention of ONNX Runtime. Query i of sample b has position first[b] + i, where
 * first[b] = seqlens_k[b] + 1 - S keys are in its past:
 *
 *   past      k k k - - -           P places, the last ones unused where first[b] < P
 *   present   k k k n n n - - -     P + S places: the new keys follow those of the past
 *
 * Keys that a query does not see have any contents.
 */
typedef struct group {
    int64_t batch, queries, width, heads, shared, past, keys; /* shared: heads of keys */
    uint32_t first; /* [B, 1, 1, 1], or NONE: past in each sample */
} group_t;

static void refuse(expander_t *e, const char *what)
{
    e->status = e->status < 0 ? e->status
                              : wefti_error(WEFT_ERR_UNSUPPORTED,
                                            "GroupQueryAttention: %s is not supported", what);
}

static void check_group(expander_t *e)
{
    static const struct {
        uint32_t input;
        const char *what;
    } inputs[] = {{11, "input head_sink"}, {12, "input k_scale"}, {13, "input v_scale"}};
    const wefti_node_t *node = &e->graph->nodes[e->node];
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        if (input(e, inputs[i].input) != NONE) {
            refuse(e, inputs[i].what);
        }
    }
    if (int_attr(e, "local_window_size") == 0) {
        refuse(e, "attribute local_window_size 0");
    }
    if (node->output_count > 3 && node->outputs[3] != NONE) {
        refuse(e, "output output_qk");
    }
    for (uint32_t i = 0; i < node->attr_count; i++) { /* domains of others are not checked before */
        const weft_attr_t *attr = &node->attrs[i];
        bool known = false;
        for (uint32_t k = 0; k < node->def->attr_count; k++) {
            known = known || strcmp(node->def->attrs[k].name, attr->name) == 0;
        }
        bool off = (attr->type == WEFT_ATTR_TYPE_INT && attr->i <= 0) ||
                   (attr->type == WEFT_ATTR_TYPE_STRING && strcmp(attr->s, "NONE") == 0);
        if (!known && !off) {
            char what[80];
            snprintf(what, sizeof what, "attribute %.60s", attr->name);
            refuse(e, what);
        }
    }
}

/* Is value a constant list of integers that all equal wanted? */
static bool is_every(const expander_t *e, uint32_t value, int64_t wanted)
{
    const weft_tensor_desc_t type = type_of(e, value);
    int64_t count = weft_tensor_elem_count(&type);
    for (int64_t i = 0; i < count && type.data != NULL; i++) {
        int32_t narrow = 0;
        int64_t wide = 0;
        memcpy(&narrow, (const char *)type.data + i * 4, type.dtype == WEFT_DTYPE_I32 ? 4 : 0);
        memcpy(&wide, (const char *)type.data + i * 8, type.dtype == WEFT_DTYPE_I64 ? 8 : 0);
        if ((type.dtype == WEFT_DTYPE_I32 ? narrow : wide) != wanted) {
            return false;
        }
    }
    return type.data != NULL && count > 0 &&
           (type.dtype == WEFT_DTYPE_I32 || type.dtype == WEFT_DTYPE_I64);
}

static group_t read_group(expander_t *e)
{
    const weft_tensor_desc_t q = type_of(e, input(e, 0));
    group_t g = {.batch = q.dims[0],
                 .queries = q.dims[1],
                 .heads = int_attr(e, "num_heads"),
                 .shared = int_attr(e, "kv_num_heads"),
                 .first = NONE};
    check_group(e);
    const int64_t all = g.heads + (input(e, 1) == NONE ? 2 * g.shared : 0);
    if (e->status >= 0 && (g.heads < 1 || g.shared < 1 || q.rank != 3 || q.dims[2] % all != 0)) {
        e->status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                                "GroupQueryAttention: query is not [B, S, H D] for num_heads %lld "
                                "and kv_num_heads %lld",
                                (long long)g.heads, (long long)g.shared);
    }
    if (e->status < 0) {
        return g;
    }
    g.width = q.dims[2] / all;
    g.past = input(e, 3) != NONE && input(e, 4) != NONE ? type_of(e, input(e, 3)).dims[2] : 0;
    g.keys = g.past + g.queries;
    if (input(e, 5) == NONE || input(e, 6) == NONE || !is_every(e, input(e, 6), g.keys)) {
        e->status = wefti_error(
            WEFT_ERR_UNSUPPORTED,
            "GroupQueryAttention: total_sequence_length must be a constant, the number of keys of "
            "past and query, %lld; a cache that past and present share is not supported",
            (long long)g.keys);
        return g;
    }
    if (g.past > 0 && !is_every(e, input(e, 5), g.keys - 1)) {
        static const int64_t column[] = {-1, 1, 1, 1};
        weft_attr_t to = {.name = "to", .type = WEFT_ATTR_TYPE_INT, .i = 7 /* int64 */};
        uint32_t last = input(e, 5);
        last = reshape(e, add(e, "Cast", &last, 1, &to), column, 4);
        g.first =
            two(e, "Max", two(e, "Sub", last, scalar_i64(e, g.queries - 1)), scalar_i64(e, 0));
    }
    return g;
}

/* The positions of the queries, [1, S] or [B, S]. */
static uint32_t positions_of(expander_t *e, const group_t *g)
{
    const int64_t row[] = {-1, g->queries};
    if (input(e, 9) != NONE) {
        return input(e, 9);
    }
    uint32_t first = g->first != NONE ? g->first : scalar_i64(e, g->past);
    return reshape(e, two(e, "Add", places(e, g->queries, false), first), row, 2);
}

/* Keys or values with those of the past before them. */
static uint32_t join_past(expander_t *e, const group_t *g, uint32_t past, uint32_t x)
{
    const int64_t dims[] = {g->batch, g->shared, g->keys, g->width};
    if (g->past == 0) {
        return x;
    }
    x = concat(e, past, x, 2);
    if (g->first == NONE) {
        return x;
    }
    weft_attr_t axis = {.name = "axis", .type = WEFT_ATTR_TYPE_INT, .i = 2};
    uint32_t place = places(e, g->keys, false), after = two(e, "Sub", place, g->first);
    after = two(e, "Max", two(e, "Min", after, scalar_i64(e, g->queries - 1)), scalar_i64(e, 0));
    uint32_t from = choose(e, two(e, "Less", place, g->first), place,
                           two(e, "Add", after, scalar_i64(e, g->past)));
    from = two(e, "Expand", from, ints(e, dims, 4));
    return add(e, "GatherElements", (const uint32_t[]){x, from}, 2, &axis);
}

/* A query sees its own key and those before it; a window counts its own. */
static void bias_of_group(expander_t *e, const group_t *g, uint32_t q, scoring_t *how)
{
    const int64_t last = -1, most = g->keys + g->queries;
    const int64_t size = int_attr(e, "local_window_size");
    const int64_t before = size > 0 && size <= most ? size - 1 : most;
    if (g->first == NONE) {
        how->bias = window(e, g->queries, g->keys, g->past - before, g->past);
        how->bias =
            type_of(e, q).dtype == WEFT_DTYPE_F32 ? how->bias : two(e, "CastLike", how->bias, q);
    } else {
        check_mask(e, g->queries, g->keys);
        uint32_t own = two(e, "Add", places(e, g->queries, false), g->first);
        uint32_t distance = two(e, "Sub", places(e, g->keys, true), own);
        uint32_t seen = two(e, "LessOrEqual", distance, scalar_i64(e, 0));
        if (before < most) {
            seen = two(e, "And", seen, two(e, "GreaterOrEqual", distance, scalar_i64(e, -before)));
        }
        how->bias = choose(e, seen, number(e, 0.0, q), number(e, -INFINITY, q));
    }
    if (input(e, 10) != NONE) {
        how->bias = two(e, "Add", how->bias, input(e, 10));
        uint32_t highest = reduce(e, "ReduceMax", how->bias, &last, 1);
        how->unseen = two(e, "Equal", highest, number(e, -INFINITY, q));
        how->bias = choose(e, how->unseen, number(e, 0.0, q), how->bias);
    }
}

static uint32_t group_query(expander_t *e)
{
    static const int64_t perm[] = {0, 2, 1, 3}, heads_axis = 2, one_step = 1;
    const group_t g = read_group(e);
    uint32_t x[3] = {input(e, 0), input(e, 1), input(e, 2)};
    const int64_t count[] = {g.heads, g.shared, g.shared};
    const int64_t all[] = {g.batch, g.queries, -1, g.width};
    if (e->status < 0) {
        return 0;
    }
    uint32_t packed = x[1] == NONE ? reshape(e, x[0], all, 4) : NONE;
    for (int64_t i = 0, at = 0; i < 3; at += count[i++]) {
        const int64_t end = at + count[i], dims[] = {g.batch, g.queries, count[i], g.width};
        x[i] = packed == NONE
                   ? reshape(e, x[i], dims, 4)
                   : add(e, "Slice",
                         (const uint32_t[]){packed, ints(e, &at, 1), ints(e, &end, 1),
                                            ints(e, &heads_axis, 1), ints(e, &one_step, 1)},
                         5, NULL);
    }
    if (int_attr(e, "do_rotary") != 0) {
        const turn_t turn = {.cos = input(e, 7),
                             .sin = input(e, 8),
                             .positions = positions_of(e, &g),
                             .count = input(e, 7) == NONE ? 0 : 2 * type_of(e, input(e, 7)).dims[1],
                             .heads_axis = heads_axis,
                             .interleaved = int_attr(e, "rotary_interleaved") != 0};
        if (turn.count == 0 || turn.sin == NONE) {
            refuse(e, "do_rotary without cos_cache and sin_cache");
            return 0;
        }
        x[0] = turn_heads(e, x[0], &turn);
        x[1] = turn_heads(e, x[1], &turn);
    }
    for (int i = 0; i < 3; i++) {
        x[i] = transpose(e, x[i], perm, 4);
    }
    x[1] = join_past(e, &g, input(e, 3), x[1]);
    x[2] = join_past(e, &g, input(e, 4), x[2]);
    wefti_expand_give(e, 1, x[1]);
    wefti_expand_give(e, 2, x[2]);
    double scale = float_attr(e, "scale", 0.0);
    scoring_t how = {.scale = scale != 0.0 ? scale : 1.0 / sqrt((double)g.width),
                     .softcap = float_attr(e, "softcap", 0.0),
                     .mode = -1,
                     .unseen = NONE};
    bias_of_group(e, &g, x[0], &how);
    return join_heads(e, attend(e, x[0], x[1], x[2], &how));
}

wefti_expand_fn wefti_expand_attention(weft_expansion_t expansion)
{
    return expansion == WEFT_EXPANSION_ATTENTION     ? attention
           : expansion == WEFT_EXPANSION_GROUP_QUERY ? group_query
           : expansion == WEFT_EXPANSION_ROTARY      ? rotary
                                                     : NULL;
}
