/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of operators. Arguments: operands in the order of the node, scratch, numbers, factors. */

#define WIDTH 16
#define K_BLOCK 256 /* products of a chain */

/* Copies B to the [k, columns rounded up] that gemm reads, and A to [m, k]. */
__kernel void gemm_turn(IN(a), IN(b), IN(c), OUT(y), OUT(scratch), long m, long n, long k,
                        long trans_a, long trans_b, long c_row, long c_column, long has_c,
                        float alpha, float beta, ITEMS)
{
    POINTER(float, a);
    POINTER(float, b);
    RESULT(float, scratch);
    ITEM(long, at)
    const long padded = (n + WIDTH - 1) / WIDTH * WIDTH;
    if (at < k * padded) {
        const long p = at / padded, j = at % padded;
        scratch[at] = j >= n ? 0.0f : b[trans_b ? j * k + p : p * n + j];
    } else {
        const long i = (at - k * padded) / k, p = (at - k * padded) % k;
        scratch[at] = a[trans_a ? p * m + i : i * k + p];
    }
}

/*
 * Y = alpha A B + beta C. A work item has 16 elements of a row, whose products are added as
 * ops/compute/gemm_f32.h defines: chains of 256 fused multiply-adds, then the sums of these.
 */
__kernel void gemm(IN(a), IN(b), IN(c), OUT(y), OUT(scratch), long m, long n, long k, long trans_a,
                   long trans_b, long c_row, long c_column, long has_c, float alpha, float beta, ITEMS)
{
    POINTER(float, c);
    RESULT(float, y);
    POINTER(float, scratch);
    ITEM(long, at)
    const long blocks = (n + WIDTH - 1) / WIDTH, padded = blocks * WIDTH;
    const long i = at / blocks, j = at % blocks * WIDTH;
    __global const float *turned_b = scratch + j, *turned_a = scratch + k * padded + i * k;
    float16 sum = 0.0f;
    for (long from = 0; from < k; from += K_BLOCK) {
        const long to = min(from + K_BLOCK, k);
        float16 chain = 0.0f;
        for (long p = from; p < to; p++) {
            chain = fma((float16)(turned_a[p]), vload16(0, turned_b + p * padded), chain);
        }
        sum = from == 0 ? chain : sum + chain;
    }
    sum = alpha != 1.0f ? sum * alpha : sum;
    float out[WIDTH];
    vstore16(sum, 0, out);
    for (long q = 0; q < WIDTH && j + q < n; q++) {
        y[i * n + j + q] = has_c ? out[q] + beta * c[i * c_row + (j + q) * c_column] : out[q];
    }
}

__kernel void relu(IN(x), OUT(y), ITEMS)
{
    POINTER(float, x);
    RESULT(float, y);
    ITEM(size_t, i)
    y[i] = x[i] <= 0.0f ? 0.0f : x[i];
}

__kernel void relu_grad(IN(dy), IN(y), OUT(dx), ITEMS)
{
    POINTER(float, dy);
    POINTER(float, y);
    RESULT(float, dx);
    ITEM(size_t, i)
    dx[i] = y[i] > 0.0f ? dy[i] : 0.0f;
}

/* [rows, columns] -> [columns], in the order of the rows */
__kernel void sum_columns(IN(x), OUT(y), long rows, long columns, ITEMS)
{
    POINTER(float, x);
    RESULT(float, y);
    ITEM(size_t, j)
    float sum = 0.0f;
    for (long r = 0; r < rows; r++) {
        sum += x[r * columns + j];
    }
    y[j] = sum;
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

__kernel void copy_words(IN(x), OUT(y), ITEMS)
{
    POINTER(uint, x);
    RESULT(uint, y);
    ITEM(size_t, i)
    y[i] = x[i];
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

/* ---- updates ---- */

float gradient(__global const float *g, __global const uchar *scale, long has_scale,
               __global const float *p, size_t i, float divisor, float decay)
{
    float value = g[i];
    const float factor = has_scale ? ((__global const float *)scale)[0] : 1.0f;
    if (divisor != 1.0f || factor != 1.0f) {
        value = value / divisor * factor;
    }
    return decay != 0.0f ? value + decay * p[i] : value;
}

__kernel void sgd(IN(p), IN(g), IN(lr), IN(scale), OUT(p_out), long has_scale, float divisor,
                  float decay, ITEMS)
{
    POINTER(float, p);
    POINTER(float, g);
    POINTER(float, lr);
    POINTER(uchar, scale);
    RESULT(float, p_out);
    ITEM(size_t, i)
    p_out[i] = p[i] - lr[0] * gradient(g, scale, has_scale, p, i, divisor, decay);
}

__kernel void momentum(IN(p), IN(g), IN(m), IN(lr), IN(scale), OUT(p_out), OUT(m_out),
                       long has_scale, long nesterov, float divisor, float decay, float share, ITEMS)
{
    POINTER(float, p);
    POINTER(float, g);
    POINTER(float, m);
    POINTER(float, lr);
    POINTER(uchar, scale);
    RESULT(float, p_out);
    RESULT(float, m_out);
    ITEM(size_t, i)
    const float gi = gradient(g, scale, has_scale, p, i, divisor, decay);
    const float mi = share * m[i] + gi;
    p_out[i] = p[i] - lr[0] * (nesterov ? gi + share * mi : mi);
    m_out[i] = mi;
}

__kernel void adagrad(IN(p), IN(g), IN(m), IN(lr), IN(step), IN(scale), OUT(p_out), OUT(m_out),
                      long has_scale, long first, float divisor, float decay, float lr_decay,
                      float epsilon, ITEMS)
{
#ifdef WEFT_F64
    POINTER(float, p);
    POINTER(float, g);
    POINTER(float, m);
    POINTER(float, lr);
    POINTER(float, step);
    POINTER(uchar, scale);
    RESULT(float, p_out);
    RESULT(float, m_out);
    ITEM(size_t, i)
    const uint steps =
        (step[0] >= 1.0f && step[0] < 4e9f ? (uint)step[0] : 1) - 1 + (uint)first;
    const float step_size =
        (float)((double)lr[0] / (1.0 + (double)steps * (double)lr_decay));
    const float gi = gradient(g, scale, has_scale, p, i, divisor, decay);
    const float mi = m[i] + gi * gi;
    p_out[i] = p[i] - step_size * gi / (sqrt(mi) + epsilon);
    m_out[i] = mi;
#endif
}

/* Adam, and AdamW, where the parameter decays and not the gradient */
__kernel void adam(IN(p), IN(g), IN(m), IN(v), IN(lr), IN(step), IN(scale), OUT(p_out), OUT(m_out),
                   OUT(v_out), long has_scale, long first, long scaled_epsilon, long decay_last,
                   long apart, float divisor, float decay, float beta1, float beta2, float epsilon, ITEMS)
{
#ifdef WEFT_F64
    POINTER(float, p);
    POINTER(float, g);
    POINTER(float, m);
    POINTER(float, v);
    POINTER(float, lr);
    POINTER(float, step);
    POINTER(uchar, scale);
    RESULT(float, p_out);
    RESULT(float, m_out);
    RESULT(float, v_out);
    ITEM(size_t, i)
    const float number = step[0];
    const uint steps = (number >= 1.0f && number < 4e9f ? (uint)number : 1) - 1 + (uint)first;
    const double bias1 = steps == 0 ? 1.0 : 1.0 - pow_step((double)beta1, steps);
    const double bias2 = steps == 0 ? 1.0 : 1.0 - pow_step((double)beta2, steps);
    const float rest1 = (float)(1.0 - (double)beta1), rest2 = (float)(1.0 - (double)beta2);
    const float step_size = (float)((double)lr[0] / bias1), root_bias = (float)sqrt(bias2);
    const float small = scaled_epsilon ? (float)((double)epsilon / sqrt(bias2)) : epsilon;
    const float kept = (float)(1.0 - (double)lr[0] * (double)decay);
    const float gi = gradient(g, scale, has_scale, p, i, divisor, apart ? 0.0f : decay);
    const bool decays = apart && decay != 0.0f;
    const float before = decays && !decay_last ? p[i] * kept : p[i];
    const float mi = beta1 * m[i] + rest1 * gi;
    const float vi = beta2 * v[i] + rest2 * (gi * gi);
    const float after = before - step_size * mi / (sqrt(vi) / root_bias + small);
    m_out[i] = mi;
    v_out[i] = vi;
    p_out[i] = decays && decay_last ? after * kept : after;
#endif
}
