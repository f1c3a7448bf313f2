/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that graph/expand.c replaces by others: normalizations, attention, Einsum. */
#include <inttypes.h>
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/error.h"

static weft_status_t infer_scaled(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, node->input_count));
    return wefti_infer_same(node);
}

static weft_status_t infer_global_max(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    weft_tensor_desc_t y = node->inputs[0];
    if (y.rank < 3) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "X has %u dimensions, at least 3 are needed",
                           y.rank);
    }
    for (uint32_t d = 2; d < y.rank; d++) {
        y.dims[d] = 1;
    }
    wefti_infer_set_like(node, 0, &y);
    return WEFT_OK;
}

/* Needs N and C. */
static weft_status_t infer_channels(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 3));
    const weft_tensor_desc_t *x = &node->inputs[0];
    int64_t groups = weft_node_attr_int(node, "num_groups", 1);
    if (x->rank < 2 || groups < 1 || (x->dims[1] >= 0 && x->dims[1] % groups != 0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "X has %u dimensions, in %" PRId64 " groups of channels", x->rank,
                           groups);
    }
    return wefti_infer_same(node);
}

/* The heads of an input [B, S, H D] or [B, H, S, D] as the latter. */
static weft_status_t split_heads(const weft_node_desc_t *node, uint32_t index, const char *attr,
                                 weft_tensor_desc_t *out)
{
    const weft_tensor_desc_t *x = &node->inputs[index];
    *out = *x;
    if (x->rank == 4) {
        return WEFT_OK;
    }
    int64_t heads = weft_node_attr_int(node, attr, 0);
    if (x->rank != 3 || heads < 1 || (x->dims[2] >= 0 && x->dims[2] % heads != 0)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "input %u: expected 4 dimensions, or 3 and a divisor of the last one in "
                           "attribute %s",
                           index, attr);
    }
    out->rank = 4;
    out->dims[1] = heads;
    out->dims[2] = x->dims[1];
    out->dims[3] = x->dims[2] < 0 ? -1 : x->dims[2] / heads;
    return WEFT_OK;
}

static weft_status_t infer_attention(weft_node_desc_t *node)
{
    weft_tensor_desc_t q, k, v;
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 3));
    WEFT_RETURN_IF_ERROR(split_heads(node, 0, "q_num_heads", &q));
    WEFT_RETURN_IF_ERROR(split_heads(node, 1, "kv_num_heads", &k));
    WEFT_RETURN_IF_ERROR(split_heads(node, 2, "kv_num_heads", &v));
    if (q.dtype != k.dtype || q.dtype != v.dtype) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "Q, K and V have types %s, %s and %s",
                           weft_dtype_name(q.dtype), weft_dtype_name(k.dtype),
                           weft_dtype_name(v.dtype));
    }
    const weft_tensor_desc_t *past = wefti_infer_input(node, 4);
    if (past != NULL && past->rank == 4) {
        bool known = past->dims[2] >= 0 && k.dims[2] >= 0;
        k.dims[2] = v.dims[2] = known ? past->dims[2] + k.dims[2] : -1;
    }
    const int64_t flat[] = {q.dims[0], q.dims[2],
                            v.dims[3] < 0 || q.dims[1] < 0 ? -1 : q.dims[1] * v.dims[3]};
    const int64_t heads[] = {q.dims[0], q.dims[1], q.dims[2], v.dims[3]};
    const int64_t scores[] = {q.dims[0], q.dims[1], q.dims[2], k.dims[2]};
    const bool is_flat = node->inputs[0].rank == 3;
    wefti_infer_set(node, 0, q.dtype, is_flat ? 3 : 4, is_flat ? flat : heads);
    wefti_infer_set_like(node, 1, &k);
    wefti_infer_set_like(node, 2, &v);
    wefti_infer_set(node, 3, q.dtype, 4, scores);
    return WEFT_OK;
}

/* Query may hold keys and values as well: then it has heads of all three. */
static weft_status_t infer_group_query(weft_node_desc_t *node)
{
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, 1));
    const weft_tensor_desc_t *q = &node->inputs[0], *past = wefti_infer_input(node, 3);
    const int64_t heads = weft_node_attr_int(node, "num_heads", 0);
    const int64_t shared = weft_node_attr_int(node, "kv_num_heads", 0);
    if (heads < 1 || heads > INT32_MAX || shared < 1 || shared > INT32_MAX) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attributes num_heads and kv_num_heads: expected 1 to %d: %" PRId64
                           ", %" PRId64,
                           INT32_MAX, heads, shared);
    }
    const int64_t all = heads + (wefti_infer_input(node, 1) == NULL ? 2 * shared : 0);
    if (q->rank != 3 || (q->dims[2] >= 0 && q->dims[2] % all != 0)) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "query: expected 3 dimensions, the last one a multiple of %" PRId64 " heads", all);
    }
    const int64_t width = q->dims[2] < 0 ? -1 : q->dims[2] / all;
    const bool has_past = past != NULL && past->rank == 4;
    const int64_t keys = q->dims[1] < 0      ? -1
                         : !has_past         ? q->dims[1]
                         : past->dims[2] < 0 ? -1
                                             : q->dims[1] + past->dims[2];
    const int64_t y[] = {q->dims[0], q->dims[1], width < 0 ? -1 : heads * width};
    const int64_t present[] = {q->dims[0], shared, keys, width};
    wefti_infer_set(node, 0, q->dtype, 3, y);
    wefti_infer_set(node, 1, q->dtype, 4, present);
    wefti_infer_set(node, 2, q->dtype, 4, present);
    return WEFT_OK;
}

/* The dimensions of the labels of the result. */
/* The dimension of a label, which is -1 where it is not known yet. */
static bool same_size(int64_t *size, int64_t dim)
{
    bool same = *size < 0 || dim < 0 || *size == dim;
    *size = dim >= 0 ? dim : *size;
    return same;
}

static weft_status_t infer_einsum(weft_node_desc_t *node)
{
    int64_t sizes[128], dims[WEFT_MAX_DIMS];
    uint32_t rank = 0, most = 0;
    const char *text = weft_node_attr_string(node, "equation", ""), *arrow = strstr(text, "->");
    bool fits = true;
    int seen[128] = {0};
    WEFT_RETURN_IF_ERROR(wefti_infer_need(node, node->input_count));
    for (int i = 0; i < 128; i++) {
        sizes[i] = -1;
    }
    for (uint32_t i = 0; i < node->input_count; i++) {
        uint32_t letters = 0, d = 0;
        const char *end = text;
        for (; *end != '\0' && *end != ',' && *end != '-'; end++) {
            letters += *end >= 'A' && *end <= 'z';
        }
        uint32_t dots = node->inputs[i].rank - letters;
        fits = fits && letters <= node->inputs[i].rank;
        for (; text < end && fits; text++) {
            if (*text == '.') {
                for (uint32_t k = dots; k > 0; k--) {
                    fits = fits && same_size(&sizes[k], node->inputs[i].dims[d++]);
                }
                most = dots > most ? dots : most;
                dots = 0;
            } else if (*text >= 'A' && *text <= 'z') {
                seen[(int)*text]++;
                fits = fits && same_size(&sizes[(int)*text], node->inputs[i].dims[d++]);
            }
        }
        fits = fits && d == node->inputs[i].rank;
        text = *end == ',' ? end + 1 : end;
    }
    /* Where the dimensions of an ellipsis go: first, if the result is not given. */
    for (const char *c = arrow != NULL ? arrow + 2 : "."; *c != '\0' && fits; c++) {
        for (uint32_t k = *c == '.' ? most : 0; k > 0 && rank < WEFT_MAX_DIMS; k--) {
            dims[rank++] = sizes[k];
        }
        most = *c == '.' ? 0 : most;
        fits = *c < 'A' || (*c <= 'z' && rank < WEFT_MAX_DIMS);
        if (*c >= 'A' && fits) {
            dims[rank++] = sizes[(int)*c];
        }
    }
    for (int c = 'A'; c <= 'z' && arrow == NULL && rank < WEFT_MAX_DIMS; c++) {
        if (seen[c] == 1) {
            dims[rank++] = sizes[c];
        }
    }
    if (!fits) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attribute equation does not match the inputs");
    }
    wefti_infer_set(node, 0, node->inputs[0].dtype, rank, dims);
    return WEFT_OK;
}

/* Products of all queries and keys. */
static void cost_attention(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    const weft_tensor_desc_t *k = wefti_infer_input(node, 1);
    double keys = k == NULL ? 0.0 : (double)k->dims[k->rank == 4 ? 2 : 1];
    *out_flops = 4.0 * wefti_cost_elems(&node->inputs[0]) * (keys > 0.0 ? keys : 1.0);
    *out_bytes = wefti_cost_bytes(node);
}

static void cost_rows(const weft_node_desc_t *node, double *out_flops, double *out_bytes)
{
    *out_flops = 8.0 * wefti_cost_elems(&node->inputs[0]);
    *out_bytes = wefti_cost_bytes(node);
}

#define INT(key, value, text)                                                                      \
    {                                                                                              \
        .name = key, .type = WEFT_ATTR_TYPE_INT, .default_i = value, .doc = text                   \
    }
#define FLOAT(key, value, text)                                                                    \
    {                                                                                              \
        .name = key, .type = WEFT_ATTR_TYPE_FLOAT, .default_f = value, .doc = text                 \
    }
#define EPSILON FLOAT("epsilon", 1e-5f, "added to the variance")
static const weft_attr_def_t instance_attrs[] = {EPSILON};
static const weft_attr_def_t group_attrs[] = {
    EPSILON,
    {.name = "num_groups", .type = WEFT_ATTR_TYPE_INT, .required = 1, .doc = "of channels"},
    INT("stash_type", 1, "type of the computation"),
};
static const weft_attr_def_t mean_attrs[] = {
    {.name = "axes", .type = WEFT_ATTR_TYPE_INTS, .default_s = "0,2,3", .doc = "dimensions"},
};
static const weft_attr_def_t rms_attrs[] = {
    INT("axis", -1, "the first dimension of a row"),
    EPSILON,
    INT("stash_type", 1, "type of the computation"),
};
static const weft_attr_def_t rotary_attrs[] = {
    INT("interleaved", 0, "1: a pair lies side by side, 0: in both halves"),
    INT("num_heads", 0, "of an input with 3 dimensions"),
    INT("rotary_embedding_dim", 0, "elements of a head that turn; 0: all"),
};
#define ATTENTION                                                                                  \
    INT("is_causal", 0, "1: a query sees no later key"),                                           \
        INT("kv_num_heads", 0, "of an input with 3 dimensions"),                                   \
        INT("q_num_heads", 0, "of an input with 3 dimensions"),                                    \
        INT("qk_matmul_output_mode", 0, "which scores are output 3"),                              \
        {.name = "scale",                                                                          \
         .type = WEFT_ATTR_TYPE_FLOAT,                                                             \
         .default_s = "1 / sqrt(D)",                                                               \
         .doc = "of scores"},                                                                      \
        FLOAT("softcap", 0.0f, "bound of scores; 0: none"),                                        \
    {                                                                                              \
        .name = "softmax_precision", .type = WEFT_ATTR_TYPE_INT, .default_s = "of Q",              \
        .doc = "ignored"                                                                           \
    }
static const weft_attr_def_t attention_attrs[] = {ATTENTION};
static const weft_attr_def_t window_attrs[] = {
    ATTENTION,
    INT("left_window_size", -1, "keys before that of the query; -1: all"),
    INT("right_window_size", -1, "keys after that of the query; -1: all"),
};
static const weft_attr_def_t group_query_attrs[] = {
    INT("do_rotary", 0, "1: queries and keys are turned by their positions"),
    {.name = "kv_num_heads", .type = WEFT_ATTR_TYPE_INT, .required = 1, .doc = "of key and value"},
    INT("local_window_size", -1, "keys that a query sees, its own included; -1: all"),
    {.name = "num_heads", .type = WEFT_ATTR_TYPE_INT, .required = 1, .doc = "of query"},
    INT("rotary_interleaved", 0, "1: a pair lies side by side, 0: in both halves"),
    {.name = "scale", .type = WEFT_ATTR_TYPE_FLOAT, .default_s = "1 / sqrt(D)", .doc = "of scores"},
    FLOAT("softcap", 0.0f, "bound of scores; 0: none"),
};
static const weft_attr_def_t swiglu_attrs[] = {FLOAT("alpha", 1.0f, "factor in the sigmoid")};
static const weft_attr_def_t einsum_attrs[] = {
    {.name = "equation", .type = WEFT_ATTR_TYPE_STRING, .required = 1, .doc = "such as ij,jk->ik"},
};

#define ROW(op, version, least, most, out, list, rule, price, becomes, text)                       \
    {                                                                                              \
        .domain = "", .name = op, .since_version = version, .inputs_min = least,                   \
        .inputs_max = most, .outputs_min = 1, .outputs_max = out, .dtypes = WEFTI_BIT_FLOATS,      \
        .in_place = WEFTI_IN_PLACE_NONE, .attrs = list, .attr_count = WEFTI_COUNT(list),           \
        .infer = rule, .cost = price, .doc = text,                                                 \
        WEFTI_FACTS(.expansion = WEFT_EXPANSION_##becomes)                                         \
    }

static const weft_op_def_t defs[] = {
    ROW("Attention", 23, 3, 6, 4, attention_attrs, infer_attention, cost_attention, ATTENTION,
        "softmax(scale Q K' + mask) V; heads of Q may share those of K and V"),
    ROW("Attention", 24, 3, 7, 4, attention_attrs, infer_attention, cost_attention, ATTENTION,
        "as of version 23; samples may have different numbers of keys"),
    ROW("Attention", 25, 3, 7, 4, window_attrs, infer_attention, cost_attention, ATTENTION,
        "as of version 24; a query sees a window of keys"),
    ROW("Einsum", 12, 1, 2, 1, einsum_attrs, infer_einsum, cost_rows, EINSUM,
        "a product or sum by labels of dimensions, of one or two operands"),
    {.domain = "",
     .name = "GlobalMaxPool",
     .since_version = 1,
     .inputs_min = 1,
     .inputs_max = 1,
     .outputs_min = 1,
     .outputs_max = 1,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = WEFTI_IN_PLACE_NONE,
     .infer = infer_global_max,
     .cost = cost_rows,
     .doc = "maximum over all spatial dimensions",
     WEFTI_FACTS(.expansion = WEFT_EXPANSION_GLOBAL_MAX)},
    {.domain = "com.microsoft",
     .name = "GroupQueryAttention",
     .since_version = 1,
     .inputs_min = 7,
     .inputs_max = 14,
     .outputs_min = 1,
     .outputs_max = 4,
     .dtypes = WEFTI_BIT_FLOATS,
     .in_place = WEFTI_IN_PLACE_NONE,
     .attrs = group_query_attrs,
     .attr_count = WEFTI_COUNT(group_query_attrs),
     .infer = infer_group_query,
     .cost = cost_rows,
     .doc = "causal attention of queries to past and new keys, which heads share; returns both",
     WEFTI_FACTS(.expansion = WEFT_EXPANSION_GROUP_QUERY)},
    ROW("GroupNormalization", 18, 3, 3, 1, group_attrs, infer_channels, cost_rows, GROUP_NORM,
        "groups of channels by mean and variance, scaled; scale and bias per group"),
    ROW("GroupNormalization", 21, 3, 3, 1, group_attrs, infer_channels, cost_rows, GROUP_NORM,
        "groups of channels by mean and variance, scaled"),
    ROW("InstanceNormalization", 6, 3, 3, 1, instance_attrs, infer_channels, cost_rows,
        INSTANCE_NORM, "each channel of a sample by mean and variance, scaled"),
    ROW("MeanVarianceNormalization", 9, 1, 1, 1, mean_attrs, wefti_infer_same, cost_rows,
        MEAN_VARIANCE, "X by mean and deviation over dimensions"),
    ROW("RMSNormalization", 23, 2, 2, 1, rms_attrs, infer_scaled, cost_rows, RMS_NORM,
        "rows by the root of the mean of squares, scaled"),
    ROW("RotaryEmbedding", 23, 3, 4, 1, rotary_attrs, infer_scaled, cost_rows, ROTARY,
        "pairs of elements turned by angles of their positions"),
    ROW("SwiGLU", 28, 2, 2, 1, swiglu_attrs, infer_scaled, cost_rows, SWIGLU,
        "B times Swish of A, a gate"),
};

wefti_op_family_t wefti_op_defs_composed(void)
{
    return (wefti_op_family_t){defs, WEFTI_COUNT(defs)};
}
