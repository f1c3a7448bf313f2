/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that ONNX Runtime's optimizer writes in place of several of ONNX become these again;
 * so does RMSNormalization, which two of them are forms of. */
#include "graph/expand.h"

static bool is_read(const expander_t *e, uint32_t index)
{
    const wefti_node_t *node = &e->graph->nodes[e->node];
    return index < node->output_count && node->outputs[index] != NONE;
}

static uint32_t gelu_by(expander_t *e, const char *approximate)
{
    const weft_attr_t attr = {
        .name = "approximate", .type = WEFT_ATTR_TYPE_STRING, .s = approximate};
    uint32_t x = input(e, 0);
    x = input(e, 1) != NONE ? two(e, "Add", x, input(e, 1)) : x;
    return add(e, "Gelu", &x, 1, &attr);
}

static uint32_t gelu(expander_t *e)
{
    return gelu_by(e, "none");
}

static uint32_t fast_gelu(expander_t *e)
{
    return gelu_by(e, "tanh");
}

static uint32_t quick_gelu(expander_t *e)
{
    weft_attr_t alpha = {.name = "alpha", .type = WEFT_ATTR_TYPE_FLOAT};
    uint32_t x = input(e, 0);
    alpha.f = (float)float_attr(e, "alpha", 1.702);
    return add(e, "Swish", &x, 1, &alpha);
}

/* Input, skip and, as input bias, a bias; output 3 as well. ONNX Runtime on CPUs does not compute
 * outputs 1 and 2. */
static uint32_t residual(expander_t *e, uint32_t bias)
{
    if (e->status >= 0 && (is_read(e, 1) || is_read(e, 2))) {
        e->status = wefti_error(WEFT_ERR_UNSUPPORTED, "output %s is not supported",
                                is_read(e, 1) ? "mean" : "inv_std_var");
    }
    uint32_t sum = two(e, "Add", input(e, 0), input(e, 1));
    sum = input(e, bias) != NONE ? two(e, "Add", sum, input(e, bias)) : sum;
    wefti_expand_give(e, 3, sum);
    return sum;
}

/* Rows of given from dimension first on by the root of the mean of squares, scaled; output index of
 * the node, if it has that, is 1 / root. In f32 where given is narrower. */
static uint32_t rms_rows(expander_t *e, uint32_t given, uint32_t scale, int64_t first,
                         double epsilon, uint32_t index)
{
    int64_t axes[WEFT_MAX_DIMS];
    const weft_tensor_desc_t type = type_of(e, given);
    const bool narrow = type.dtype == WEFT_DTYPE_F16 || type.dtype == WEFT_DTYPE_BF16;
    weft_attr_t to_f32 = {.name = "to", .type = WEFT_ATTR_TYPE_INT, .i = 1};
    uint32_t count = 0, x = given;
    first = first < 0 ? first + type.rank : first;
    for (int64_t d = first; d >= 0 && d < type.rank; d++) {
        axes[count++] = d;
    }
    x = narrow ? add(e, "Cast", &x, 1, &to_f32) : x;
    uint32_t square = reduce(e, "ReduceMean", two(e, "Mul", x, x), axes, count);
    uint32_t root = one(e, "Sqrt", two(e, "Add", square, number(e, epsilon, x)));
    if (index < e->graph->nodes[e->node].output_count &&
        e->graph->nodes[e->node].outputs[index] != NONE) {
        wefti_expand_give(e, index, one(e, "Reciprocal", root));
    }
    uint32_t y = two(e, "Div", x, root);
    y = narrow ? two(e, "CastLike", y, given) : y;
    return two(e, "Mul", y, scale);
}

static uint32_t rms_norm(expander_t *e)
{
    return rms_rows(e, input(e, 0), input(e, 1), int_attr(e, "axis"),
                    float_attr(e, "epsilon", 1e-5), 1);
}

static uint32_t skip_layer_norm(expander_t *e)
{
    const weft_attr_t epsilon = {.name = "epsilon",
                                 .type = WEFT_ATTR_TYPE_FLOAT,
                                 .f = (float)float_attr(e, "epsilon", 1e-12)};
    const uint32_t in[] = {residual(e, 4), input(e, 2), input(e, 3)};
    return add(e, "LayerNormalization", in, in[2] != NONE ? 3 : 2, &epsilon);
}

static uint32_t skip_rms_norm(expander_t *e)
{
    const uint32_t sum = residual(e, 3);
    return rms_rows(e, sum, input(e, 2), -1, float_attr(e, "epsilon", 1e-12), NONE);
}

/* x with its last two dimensions exchanged, if attribute flag says so; a vector stays. */
static uint32_t exchanged(expander_t *e, uint32_t x, const char *flag)
{
    const uint32_t rank = type_of(e, x).rank;
    int64_t perm[WEFT_MAX_DIMS];
    if (int_attr(e, flag) == 0 || rank < 2) {
        return x;
    }
    for (uint32_t d = 0; d < rank; d++) {
        perm[d] = d + 2 < rank ? d : 2 * (int64_t)rank - 3 - d;
    }
    return transpose(e, x, perm, rank);
}

/* As MatMul it has a gradient and is recognised in attention. Pass absorb-transposes removes the
 * transpositions again. */
static uint32_t fused_matmul(expander_t *e)
{
    const double alpha = float_attr(e, "alpha", 1.0);
    const uint32_t a = exchanged(e, input(e, 0), "transA");
    const uint32_t y = two(e, "MatMul", a, exchanged(e, input(e, 1), "transB"));
    return alpha == 1.0 ? y : two(e, "Mul", y, number(e, alpha, y));
}

wefti_expand_fn wefti_expand_contrib(weft_expansion_t expansion)
{
    return expansion == WEFT_EXPANSION_RMS_NORM          ? rms_norm
           : expansion == WEFT_EXPANSION_GELU            ? gelu
           : expansion == WEFT_EXPANSION_FAST_GELU       ? fast_gelu
           : expansion == WEFT_EXPANSION_QUICK_GELU      ? quick_gelu
           : expansion == WEFT_EXPANSION_SKIP_LAYER_NORM ? skip_layer_norm
           : expansion == WEFT_EXPANSION_SKIP_RMS_NORM   ? skip_rms_norm
           : expansion == WEFT_EXPANSION_FUSED_MATMUL    ? fused_matmul
                                                         : NULL;
}
