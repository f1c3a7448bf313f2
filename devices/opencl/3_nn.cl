/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of operators. Arguments: operands in the order of the node, scratch, numbers, factors. */

#define WIDTH 16    /* columns of a work item */
#define ROWS 8      /* its rows */
#define K_BLOCK 256 /* products of a chain */

#define PRODUCT_NUMBERS                                                                            \
    long m, long n, long k, long a_row, long a_k, long b_k, long b_column, long c_row,             \
        long c_column, long has_c, long batch, long panels

/* Copies the matrices of B to panels of 16 columns, [columns / 16, k, 16], which gemm reads. */
__kernel void gemm_turn(IN(a), IN(b), IN(c), OUT(y), OUT(scratch), IN(table), PRODUCT_NUMBERS,
                        float alpha, float beta, ITEMS)
{
    POINTER(float, b);
    RESULT(float, scratch);
    ITEM(uint, at)
    const uint lines = ((uint)n + WIDTH - 1) / WIDTH, p = at % (uint)k, row = at / (uint)k;
    const uint line = row % lines, matrix = row / lines;
    const long from = (long)matrix * k * n + p * b_k, left = min((long)WIDTH, n - (long)line * WIDTH);
    float out[WIDTH];
    for (int i = 0; i < WIDTH; i++) {
        out[i] = i < left ? b[from + ((long)line * WIDTH + i) * b_column] : 0.0f;
    }
    vstore16(vload16(0, out), at, scratch);
}

#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define BEGIN_ROW(r)                                                                               \
    float16 sum##r = 0.0f, chain##r;                                                               \
    __global const float *a##r = a + min(i + r, m - 1) * a_row;
#define BEGIN_CHAIN(r) chain##r = 0.0f;
#define ADD_PRODUCT(r) chain##r = fma((float16)(a##r[p * a_k]), columns, chain##r);
#define ADD_CHAIN(r) sum##r = from == 0 ? chain##r : sum##r + chain##r;
#define END_ROW(r)                                                                                 \
    if (i + r < m) {                                                                               \
        write_row(y + (i + r) * n + j, alpha != 1.0f ? sum##r * alpha : sum##r,                    \
                  (int)min((long)WIDTH, n - j), has_c ? c + (i + r) * c_row + j * c_column : 0,    \
                  c_column, beta);                                                                 \
    }

void write_row(__global float *y, float16 sum, int width, __global const float *c, long c_column,
               float beta)
{
    float out[WIDTH];
    if (width == WIDTH && c == 0) {
        vstore16(sum, 0, y);
        return;
    }
    vstore16(sum, 0, out);
    for (int q = 0; q < width; q++) {
        y[q] = c != 0 ? out[q] + beta * c[q * c_column] : out[q];
    }
}

/*
 * Y = alpha A B + beta C, of a batch of matrices. A work item has 16 elements of 8 rows, whose
 * products are added as ops/compute/gemm_f32.h defines: chains of 256 fused multiply-adds, then the
 * sums of these. panels: B was copied by gemm_turn. Table: for each matrix of Y that of A and of B.
 */
__kernel void gemm(IN(a), IN(b), IN(c), OUT(y), OUT(scratch), IN(table), PRODUCT_NUMBERS, float alpha,
                   float beta, ITEMS)
{
    POINTER(float, a);
    POINTER(float, b);
    POINTER(float, c);
    POINTER(long, table);
    RESULT(float, y);
    ITEM(uint, at)
    const uint row_blocks = ((uint)m + ROWS - 1) / ROWS, lines = ((uint)n + WIDTH - 1) / WIDTH;
    const uint left = at / row_blocks, matrix = left / lines;
    const long i = (long)(at % row_blocks) * ROWS, j = (long)(left % lines) * WIDTH;
    const long step = panels ? WIDTH : n, b_matrix = table[2 * matrix + 1];
    a += table[2 * matrix] * m * k;
    b = panels ? (__global const float *)(scratch_base + scratch_at) + (b_matrix * lines * WIDTH + j) * k
               : b + b_matrix * k * n + j;
    y += (long)matrix * m * n;
    EACH_ROW(BEGIN_ROW)
    for (long from = 0; from < k; from += K_BLOCK) {
        const long to = min(from + K_BLOCK, k);
        EACH_ROW(BEGIN_CHAIN)
        for (long p = from; p < to; p++) {
            const float16 columns = vload16(0, b + p * step);
            EACH_ROW(ADD_PRODUCT)
        }
        EACH_ROW(ADD_CHAIN)
    }
    EACH_ROW(END_ROW)
}

#define ADD_LEVEL(k)                                                                              \
    if (count > k) {                                                                              \
        sum = ((__global const float *)(x##k##_base + x##k##_at))[i] + sum;                       \
    }

/* the first input, and onto it one after the other */
__kernel void tree_fold(IN(x0), IN(x1), IN(x2), IN(x3), IN(x4), IN(x5), IN(x6), IN(x7), OUT(y),
                        long count, ITEMS)
{
    POINTER(float, x0);
    RESULT(float, y);
    ITEM(size_t, i)
    float sum = x0[i];
    ADD_LEVEL(1)
    ADD_LEVEL(2)
    ADD_LEVEL(3)
    ADD_LEVEL(4)
    ADD_LEVEL(5)
    ADD_LEVEL(6)
    ADD_LEVEL(7)
    y[i] = count > 1 && sum != sum ? as_float(0x7fc00000u) : sum;
}

/* ---- dropout ---- */

/* Word number at of the sequence of a key and the upper half of counters: ops/compute/philox.h. */
uint philox_word(ulong at, ulong high, ulong key)
{
    uint4 x = (uint4)((uint)(at / 4), (uint)(at / 4 >> 32), (uint)high, (uint)(high >> 32));
    uint key_0 = (uint)key, key_1 = (uint)(key >> 32);
    for (int round = 0; round < 10; round++) {
        const ulong a = (ulong)x.s0 * 0xd2511f53u, b = (ulong)x.s2 * 0xcd9e8d57u;
        x = (uint4)((uint)(b >> 32) ^ x.s1 ^ key_0, (uint)b, (uint)(a >> 32) ^ x.s3 ^ key_1, (uint)a);
        key_0 += 0x9e3779b9u;
        key_1 += 0xbb67ae85u;
    }
    return at % 4 == 0 ? x.s0 : at % 4 == 1 ? x.s1 : at % 4 == 2 ? x.s2 : x.s3;
}

__kernel void dropout_mask(IN(x), IN(seed), IN(step), IN(rank), OUT(y), OUT(mask), long count, long salt,
                           long threshold, long all, long has_rank, long has_mask, float factor,
                           ITEMS)
{
    POINTER(float, x);
    POINTER(ulong, seed);
    POINTER(float, step);
    POINTER(long, rank);
    RESULT(float, y);
    RESULT(uchar, mask);
    ITEM(size_t, i)
    const uint number = step[0] >= 1.0f && step[0] < 4e9f ? (uint)step[0] : 1;
    const ulong first = has_rank ? (ulong)rank[0] * (ulong)count : 0;
    const uint word = philox_word(first + i, (ulong)salt << 32 | number, seed[0]);
    const bool keeps = !all && word >= (uint)threshold;
    y[i] = keeps ? x[i] * factor : 0.0f;
    if (has_mask) {
        mask[i] = keeps;
    }
}

/* ---- the loss ---- */

long label_at(__global const uchar *labels, size_t i, long wide)
{
    return wide ? ((__global const long *)labels)[i] : ((__global const int *)labels)[i];
}

bool is_label(long label, long classes, long ignores, long ignored, __global int *fault, size_t row)
{
    const bool skipped = ignores && label == ignored;
    if (!skipped && (label < 0 || label >= classes)) {
        atomic_min(fault, (int)row);
        return false;
    }
    return !skipped;
}

/* A work item has a row: its logarithms of softmax, and its loss in rows. */
__kernel void loss_rows(IN(x), IN(labels), OUT(loss), OUT(log_prob), OUT(scratch), long count,
                        long classes, long wide, long ignores, long ignored, long has_log_prob,
                        long mean, __global int *fault, ITEMS)
{
#ifdef WEFT_F64
    POINTER(float, x);
    POINTER(uchar, labels);
    RESULT(float, scratch);
    __global float *to = has_log_prob ? (__global float *)(log_prob_base + log_prob_at)
                                      : scratch + count;
    ITEM(size_t, row)
    x += row * classes;
    to += row * classes;
    float top = x[0], acc[16];
    for (long i = 1; i < classes; i++) {
        top = x[i] > top ? x[i] : top;
    }
    for (int j = 0; j < 16; j++) {
        acc[j] = 0.0f;
    }
    const long whole = classes / 16 * 16;
    for (long i = 0; i < classes; i++) { /* after the last 16 the rest goes to the last places */
        const long lane = i < whole || whole == 0 ? i % 16 : 16 - (classes - i);
        acc[lane] += exp_of_negative(x[i] - top);
    }
    const float sum = sum_of_lanes(acc);
    const float shift = sum >= 1.0f ? (float)log_of((double)sum) : sum;
    for (long i = 0; i < classes; i++) {
        to[i] = (x[i] - top) - shift;
    }
    const long label = label_at(labels, row, wide);
    scratch[row] = is_label(label, classes, ignores, ignored, fault, row) ? -to[label] : 0.0f;
#endif
}

/* One work item adds up all rows in order. */
__kernel void loss_total(IN(x), IN(labels), OUT(loss), OUT(log_prob), OUT(scratch), long count,
                         long classes, long wide, long ignores, long ignored, long has_log_prob,
                         long mean, __global int *fault, ITEMS)
{
#ifdef WEFT_F64
    POINTER(uchar, labels);
    POINTER(float, scratch);
    RESULT(float, loss);
    double total = 0.0, weight = 0.0;
    if (get_global_id(0) >= items) {
        return;
    }
    for (long i = 0; i < count; i++) {
        total += (double)scratch[i];
        weight += ignores && label_at(labels, i, wide) == ignored ? 0.0 : 1.0;
    }
    loss[0] = (float)(mean ? total / weight : total);
#endif
}

__kernel void loss_grad(IN(dloss), IN(log_prob), IN(labels), OUT(d), long count, long classes,
                        long wide, long ignores, long ignored, long mean, __global int *fault, ITEMS)
{
#ifdef WEFT_F64
    POINTER(float, dloss);
    POINTER(float, log_prob);
    POINTER(uchar, labels);
    RESULT(float, d);
    ITEM(size_t, row)
    double divisor = 1.0;
    if (mean) {
        divisor = 0.0;
        for (long i = 0; i < count; i++) {
            divisor += ignores && label_at(labels, i, wide) == ignored ? 0.0 : 1.0;
        }
    }
    const long label = label_at(labels, row, wide);
    const bool counts = is_label(label, classes, ignores, ignored, fault, row);
    const float scale = (float)((double)dloss[0] * 1.0 / divisor);
    for (long k = 0; k < classes; k++) {
        const size_t at = row * classes + k;
        d[at] = counts ? (exp_of(log_prob[at]) - (k == label ? 1.0f : 0.0f)) * scale : 0.0f;
    }
#endif
}
