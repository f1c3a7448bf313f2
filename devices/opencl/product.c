/* SPDX-License-Identifier: Apache-2.0 */
/* Products of matrices: Gemm, and batches of MatMul, whose leading dimensions are broadcast. */
#include "devices/opencl/kernels.h"

#define WIDTH 16 /* columns of a work item */
#define ROWS 8   /* its rows */
#define PANEL_ROWS 64
#define PANEL_ELEMS 65536

typedef struct product {
    int64_t m, n, k, batch, b_matrices;
    bool trans_a, trans_b, has_c;
    int64_t c_row, c_column;
    float alpha, beta;
} product_t;

/* Functions and numbers; the table has the matrices of A and B for each of Y. */
static weft_status_t keep_product(const weft_node_desc_t *desc, const product_t *p, cl_node_t *node,
                                  void **out_state, size_t *out_scratch_bytes)
{
    int64_t lines = (p->n + WIDTH - 1) / WIDTH, rows = (p->m + ROWS - 1) / ROWS;
    /* Lines of a large B would be far apart in memory. */
    bool panels =
        p->trans_b || p->n % WIDTH != 0 || (p->m >= PANEL_ROWS && p->k * p->n >= PANEL_ELEMS);
    if (p->m < 1 || p->n < 1 || p->k < 1 || p->batch < 1 || p->batch > 65536 ||
        p->m > INT32_MAX / p->k || p->k > INT32_MAX / (lines * WIDTH) / p->b_matrices ||
        p->m > INT32_MAX / (lines * WIDTH) / p->batch) {
        return cl_drop(desc, node, "the matrices are empty or too large");
    }
    const int64_t numbers[] = {p->m,
                               p->n,
                               p->k,
                               p->trans_a ? 1 : p->k,
                               p->trans_a ? p->m : 1,
                               p->trans_b ? 1 : p->n,
                               p->trans_b ? p->k : 1,
                               p->c_row,
                               p->c_column,
                               p->has_c && p->beta != 0,
                               p->batch,
                               panels};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        cl_add_number(node, numbers[i]);
    }
    cl_add_factor(node, p->alpha);
    cl_add_factor(node, p->beta);
    int64_t copied = p->b_matrices * p->k * lines;
    node->scratch_bytes = panels ? (size_t)(copied * WIDTH) * sizeof(float) : sizeof(float);
    cl_add_step(node, cl_each("gemm_turn", panels ? copied : 0));
    cl_add_step(node, cl_each("gemm", p->batch * rows * lines));
    return cl_keep(desc, node, out_state, out_scratch_bytes);
}

PREPARE(cl_prepare_gemm)
{
    cl_node_t node = cl_start(3, 1);
    product_t p = {.has_c = cl_has(desc->inputs, desc->input_count, 2),
                   .batch = 1,
                   .b_matrices = 1,
                   .trans_a = cl_attr_int(desc, "transA", 0) != 0,
                   .trans_b = cl_attr_int(desc, "transB", 0) != 0,
                   .alpha = cl_attr_float(desc, "alpha", 1.0f),
                   .beta = cl_attr_float(desc, "beta", 1.0f)};
    (void)env;
    TRY(cl_need_f32(desc, p.has_c ? 3 : 2, 1, 0));
    const weft_tensor_desc_t *a = &desc->inputs[0], *b = &desc->inputs[1], *y = &desc->outputs[0];
    if (a->rank != 2 || b->rank != 2 || y->rank != 2) {
        return cl_refuse(desc, "operands must be matrices");
    }
    p.m = a->dims[p.trans_a];
    p.k = a->dims[!p.trans_a];
    p.n = b->dims[!p.trans_b];
    if (b->dims[p.trans_b] != p.k || y->dims[0] != p.m || y->dims[1] != p.n) {
        return cl_refuse(desc, "shapes do not fit");
    }
    if (p.has_c) {
        const weft_tensor_desc_t *c = &desc->inputs[2];
        int64_t rows = c->rank >= 2 ? c->dims[c->rank - 2] : 1;
        int64_t columns = c->rank >= 1 ? c->dims[c->rank - 1] : 1;
        if (c->rank > 2 || (rows != 1 && rows != p.m) || (columns != 1 && columns != p.n)) {
            return cl_refuse(desc, "input 2 cannot be broadcast");
        }
        p.c_row = rows == 1 ? 0 : columns;
        p.c_column = columns == 1 ? 0 : 1;
    }
    cl_add_to_table(&node, 0);
    cl_add_to_table(&node, 0);
    return keep_product(desc, &p, &node, out_state, out_scratch_bytes);
}

/* Matrix i of the leading dimensions of y, in those of x. */
static int64_t matrix_of(const weft_tensor_desc_t *x, const weft_tensor_desc_t *y, int64_t i)
{
    int64_t at = 0, step = 1;
    for (uint32_t d = 3; d <= x->rank; d++) { /* from the last leading dimension to the first */
        int64_t size = x->dims[x->rank - d], index = i % y->dims[y->rank - d];
        i /= y->dims[y->rank - d];
        at += size == 1 ? 0 : index * step;
        step *= size;
    }
    return at;
}

static bool is_broadcast(const weft_tensor_desc_t *x, const weft_tensor_desc_t *y)
{
    for (uint32_t d = 3; d <= x->rank; d++) {
        int64_t size = x->dims[x->rank - d];
        if (d > y->rank || (size != 1 && size != y->dims[y->rank - d])) {
            return false;
        }
    }
    return true;
}

PREPARE(cl_prepare_matmul)
{
    cl_node_t node = cl_start(3, 1);
    product_t p = {.batch = 1, .alpha = cl_attr_float(desc, "alpha", 1.0f)};
    (void)env;
    TRY(cl_need_f32(desc, 2, 1, 0));
    const weft_tensor_desc_t *a = &desc->inputs[0], *b = &desc->inputs[1], *y = &desc->outputs[0];
    if (a->rank < 2 || b->rank < 2 || y->rank < 2 || cl_attr_int(desc, "transBatchA", 0) != 0 ||
        cl_attr_int(desc, "transBatchB", 0) != 0) {
        return cl_refuse(desc, "operands must be matrices");
    }
    p.trans_a = cl_attr_int(desc, "transA", 0) != 0;
    p.trans_b = cl_attr_int(desc, "transB", 0) != 0;
    p.m = y->dims[y->rank - 2];
    p.n = y->dims[y->rank - 1];
    p.k = a->dims[a->rank - (p.trans_a ? 2 : 1)];
    if (a->dims[a->rank - (p.trans_a ? 1 : 2)] != p.m ||
        b->dims[b->rank - (p.trans_b ? 2 : 1)] != p.n ||
        b->dims[b->rank - (p.trans_b ? 1 : 2)] != p.k || !is_broadcast(a, y) ||
        !is_broadcast(b, y) || p.m < 1 || p.n < 1 || p.k < 1) {
        return cl_refuse(desc, "shapes do not fit");
    }
    p.batch = cl_elems(y) / (p.m * p.n);
    p.b_matrices = cl_elems(b) / (p.n * p.k);
    if (p.b_matrices == 1 && !p.trans_a && cl_elems(a) == p.batch * p.m * p.k) {
        p.m *= p.batch; /* the rows of all matrices on the left are one matrix */
        p.batch = 1;
    }
    if (p.batch < 1 || p.batch > 65536 || p.b_matrices < 1) {
        return cl_refuse(desc, "there are no matrices, or too many");
    }
    for (int64_t i = 0; i < p.batch; i++) {
        cl_add_to_table(&node, p.batch > 1 ? matrix_of(a, y, i) : 0);
        cl_add_to_table(&node, p.batch > 1 ? matrix_of(b, y, i) : 0);
    }
    return keep_product(desc, &p, &node, out_state, out_scratch_bytes);
}
