/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by blocks and its gradient; 8_attention.cl has the functions. */
#include "devices/opencl/kernels.h"

#define LINE 16 /* rows of turned tensors are rounded up to it */

/* Sizes, and elements from one to the next, of batch, head, row and column. */
typedef struct heads {
    int64_t sizes[4], batch, head, row;
} heads_t;

typedef struct attention {
    heads_t q, k, v, y;
    bool has_bias;
    int64_t bias[DIMS];
} attention_t;

static heads_t heads_of(const weft_tensor_desc_t *x, bool tokens_first)
{
    const int64_t *d = x->dims;
    heads_t heads = {{d[0], d[1], d[2], d[3]}, d[1] * d[2] * d[3], d[2] * d[3], d[3]};
    if (tokens_first) {
        heads = (heads_t){{d[0], d[2], d[1], d[3]}, d[1] * d[2] * d[3], d[3], d[2] * d[3]};
    }
    return heads;
}

/* Q, K, V and bias from input first on. */
static weft_status_t describe(const weft_node_desc_t *desc, uint32_t first,
                              const weft_tensor_desc_t *y, bool has_sums, cl_node_t *node,
                              attention_t *a)
{
    const weft_tensor_desc_t *x = &desc->inputs[first];
    int64_t order = cl_attr_int(desc, "tokens_first", 0);
    int64_t past = cl_attr_int(desc, "past", 0);
    a->has_bias = cl_has(desc->inputs, desc->input_count, first + 3);
    TRY(cl_need_plain(desc));
    for (uint32_t i = 0; i < 3; i++) {
        if (!cl_has(desc->inputs, desc->input_count, first + i) || x[i].dtype != WEFT_DTYPE_F32 ||
            x[i].rank != 4 || cl_elems(&x[i]) < 1 || cl_elems(&x[i]) > INT32_MAX / LINE) {
            return cl_refuse(desc, "Q, K and V must be f32 with 4 dimensions, and not too large");
        }
    }
    if (y->dtype != WEFT_DTYPE_F32 || y->rank != 4) {
        return cl_refuse(desc, "Y must be f32 with 4 dimensions");
    }
    a->q = heads_of(&x[0], (order & 1) != 0);
    a->k = heads_of(&x[1], (order & 2) != 0);
    a->v = heads_of(&x[2], (order & 4) != 0);
    a->y = heads_of(y, (order & 8) != 0);
    const int64_t *q = a->q.sizes, *k = a->k.sizes, *v = a->v.sizes, *out = a->y.sizes;
    if (k[0] != q[0] || v[0] != q[0] || out[0] != q[0] || v[1] != k[1] || q[1] % k[1] != 0 ||
        out[1] != q[1] || v[2] != k[2] || out[2] != q[2] || k[3] != q[3] || out[3] != v[3]) {
        return cl_refuse(desc, "shapes do not fit");
    }
    if (a->has_bias) {
        const weft_tensor_desc_t scores = {.rank = 4, .dims = {q[0], q[1], q[2], k[2]}};
        if (x[3].dtype != WEFT_DTYPE_F32 || !cl_broadcast(&x[3], &scores, a->bias)) {
            return cl_refuse(desc, "the bias cannot be broadcast");
        }
    }
    past = past < -q[2] ? -q[2] : past > k[2] ? k[2] : past; /* no key is seen, or all are */
    const int64_t numbers[] = {
        q[1],       k[1],       q[2],        k[2],
        q[3],       v[3],       a->q.batch,  a->q.head,
        a->q.row,   a->k.batch, a->k.head,   a->k.row,
        a->v.batch, a->v.head,  a->v.row,    a->y.batch,
        a->y.head,  a->y.row,   a->has_bias, a->bias[0],
        a->bias[1], a->bias[2], a->bias[3],  cl_attr_int(desc, "causal", 0) != 0,
        past,       has_sums};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        cl_add_number(node, numbers[i]);
    }
    cl_add_factor(node, cl_attr_float(desc, "scale", 1.0f));
    return WEFT_OK;
}

/* Elements of a tensor that is turned. */
static int64_t turned_elems(const heads_t *x)
{
    int64_t rows = (x->sizes[2] + LINE - 1) / LINE * LINE;
    return x->sizes[0] * x->sizes[1] * rows * x->sizes[3];
}

/* Turns an operand into scratch, from element to on. */
static void add_turn(cl_node_t *node, uint32_t operand, const heads_t *x, int64_t to)
{
    cl_step_t step = cl_each("attention_turn", turned_elems(x) / LINE);
    step.selected = 2;
    step.chosen[0] = operand;
    step.chosen[1] = node->input_count + node->output_count; /* scratch */
    step.table_at = node->table_count;
    const int64_t numbers[] = {x->sizes[1], x->sizes[2], x->sizes[3], x->batch,
                               x->head,     x->row,      to};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        cl_add_to_table(node, numbers[i]);
    }
    cl_add_step(node, step);
}

PREPARE(cl_prepare_attention)
{
    cl_node_t node = cl_start(4, 2);
    attention_t a = {.has_bias = false};
    bool has_sums = cl_has(desc->outputs, desc->output_count, 1);
    (void)env;
    if (!cl_has(desc->outputs, desc->output_count, 0)) {
        return cl_refuse(desc, "Y is absent");
    }
    TRY(describe(desc, 0, &desc->outputs[0], has_sums, &node, &a));
    int64_t rows = a.q.sizes[0] * a.q.sizes[1] * a.q.sizes[2];
    if (has_sums &&
        (desc->outputs[1].dtype != WEFT_DTYPE_F32 || cl_elems(&desc->outputs[1]) != rows)) {
        return cl_refuse(desc, "output 1 has another shape");
    }
    node.scratch_bytes = (size_t)turned_elems(&a.k) * sizeof(float);
    add_turn(&node, 1, &a.k, 0);
    cl_add_step(&node, cl_each("attention", rows));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}

/* Inputs of the gradient. */
enum { DY, DL, Q, K, V, BIAS, Y, SUMS, ALL };

static bool gradients_fit(const weft_node_desc_t *desc, int64_t rows)
{
    bool fit = cl_same_shape(&desc->inputs[DY], &desc->inputs[Y]) &&
               desc->inputs[DY].dtype == WEFT_DTYPE_F32 &&
               desc->inputs[SUMS].dtype == WEFT_DTYPE_F32 && cl_elems(&desc->inputs[SUMS]) == rows;
    for (uint32_t i = 0; i < 3 && fit; i++) {
        fit = cl_has(desc->outputs, desc->output_count, i) &&
              desc->outputs[i].dtype == WEFT_DTYPE_F32 &&
              cl_same_shape(&desc->outputs[i], &desc->inputs[Q + i]);
    }
    return fit;
}

PREPARE(cl_prepare_attention_grad)
{
    cl_node_t node = cl_start(ALL, 3);
    attention_t a = {.has_bias = false};
    (void)env;
    if (desc->input_count != ALL || cl_has(desc->inputs, ALL, DL) ||
        cl_has(desc->outputs, desc->output_count, 3) || !cl_has(desc->inputs, ALL, Y)) {
        return cl_refuse(desc, "gradients of Q, K and V are supported, of the output alone");
    }
    TRY(describe(desc, Q, &desc->inputs[Y], true, &node, &a));
    int64_t rows = a.q.sizes[0] * a.q.sizes[1] * a.q.sizes[2];
    if (!gradients_fit(desc, rows)) {
        return cl_refuse(desc, "shapes do not fit");
    }
    const heads_t *turned[] = {&a.q, &a.y, &a.k, &a.v};
    const uint32_t operands[] = {Q, DY, K, V};
    int64_t at = 0;
    for (uint32_t i = 0; i < 4; i++) { /* where these are, then delta and totals */
        cl_add_to_table(&node, at);
        at += turned_elems(turned[i]);
    }
    cl_add_to_table(&node, at);
    cl_add_to_table(&node, at + rows);
    node.scratch_bytes = (size_t)(at + 2 * rows) * sizeof(float);
    at = 0;
    for (uint32_t i = 0; i < 4; i++) {
        add_turn(&node, operands[i], turned[i], at);
        at += turned_elems(turned[i]);
    }
    cl_add_step(&node, cl_each("attention_grad_rows", rows));
    cl_add_step(&node, cl_each("attention_grad_queries", rows));
    cl_add_step(&node, cl_each("attention_grad_keys", a.k.sizes[0] * a.k.sizes[1] * a.k.sizes[2]));
    return cl_keep(desc, &node, out_state, out_scratch_bytes);
}
