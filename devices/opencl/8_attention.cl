/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by blocks of 128 queries and keys, whose order and sums ops/compute/attention.h defines.
 * A work item has one query, or for gradients of keys and values one key; it computes 16 scores at
 * once, from tensors that were copied to [batch, head, column, row rounded up].
 */
#define BLOCK 128

#define ATTENTION_NUMBERS                                                                          \
    long heads, long kv_heads, long queries, long keys, long width, long value_width,              \
        long q_batch, long q_head, long q_row, long k_batch, long k_head, long k_row,              \
        long v_batch, long v_head, long v_row, long y_batch, long y_head, long y_row, long has_bias, \
        long bias_0, long bias_1, long bias_2, long bias_3, long causal, long past, long has_sums

/* dst [batch, heads, columns, rows rounded up to 16] of src; Table: sizes and strides */
__kernel void attention_turn(IN(x), OUT(scratch), IN(table), ATTENTION_NUMBERS, float scale, ITEMS)
{
    POINTER(float, x);
    RESULT(float, scratch);
    POINTER(long, table);
    ITEM(uint, at)
    const uint lines = ((uint)table[1] + 15) / 16, line = at % lines, rest = at / lines;
    const uint column = rest % (uint)table[2], head = rest / (uint)table[2] % (uint)table[0];
    const uint image = rest / (uint)table[2] / (uint)table[0];
    float out[16];
    x += image * table[3] + head * table[4] + column;
    for (int i = 0; i < 16; i++) {
        const long row = line * 16 + i;
        out[i] = row < table[1] ? x[row * table[5]] : 0.0f;
    }
    vstore16(vload16(0, out), 0, scratch + table[6] + (size_t)at * 16);
}

float16 load_some(__global const float *x, long count)
{
    float out[16];
    if (count >= 16) {
        return vload16(0, x);
    }
    for (int i = 0; i < 16; i++) {
        out[i] = i < count ? x[i] : 0.0f;
    }
    return vload16(0, out);
}

void store_some(__global float *x, long count, float16 value)
{
    float out[16];
    if (count >= 16) {
        vstore16(value, 0, x);
        return;
    }
    vstore16(value, 0, out);
    for (int i = 0; i < count; i++) {
        x[i] = out[i];
    }
}

/* 16 products of a row with columns of turned: chains of 256, then their sums. */
float16 dots(__global const float *row, __global const float *turned, long padded, long width)
{
    float16 sum = 0.0f;
    for (long from = 0; from < width; from += K_BLOCK) {
        float16 chain = 0.0f;
        for (long d = from; d < min(from + K_BLOCK, width); d++) {
            chain = fma((float16)(row[d]), vload16(0, turned + d * padded), chain);
        }
        sum = from == 0 ? chain : sum + chain;
    }
    return sum;
}

/* to += the sum over rows of share times row, a chain that starts at 0 */
void add_rows(__global float *to, const float *shares, __global const float *rows, long step, long count,
              long width)
{
    for (long d = 0; d < width; d += 16) {
        float16 chain = 0.0f;
        for (long r = 0; r < count; r++) {
            chain = fma((float16)(shares[r]), load_some(rows + r * step + d, width - d), chain);
        }
        store_some(to + d, width - d, load_some(to + d, width - d) + chain);
    }
}

void scale_row(__global float *x, long width, float factor)
{
    for (long d = 0; d < width; d++) {
        x[d] *= factor;
    }
}

/* Scores of a query and the keys of a block from j on; out[0] to out[seen - 1] count. */
void scores_of_keys(__global const float *q, __global const float *turned, long padded, long width,
                    __global const float *bias, long bias_step, float scale, int count, float *out)
{
    for (int from = 0; from < count; from += 16) {
        vstore16(dots(q, turned + from, padded, width) * scale, 0, out + from);
    }
    for (int j = 0; j < count && bias != 0; j++) {
        out[j] = out[j] + bias[j * bias_step];
    }
}

long seen_keys(long query, long j, long cols, long causal, long past)
{
    const long seen = query + past + 1 - j;
    return !causal || seen > cols ? cols : max(seen, 0l);
}

#define HEAD_OF_QUERY                                                                              \
    ITEM(uint, at)                                                                                 \
    const long i = at % (uint)queries, h = at / (uint)queries % (uint)heads;                       \
    const long image = at / (uint)queries / (uint)heads, kv = h / (heads / kv_heads);              \
    const long padded_keys = (keys + 15) / 16 * 16;

__kernel void attention(IN(q), IN(k), IN(v), IN(bias), OUT(y), OUT(sums), OUT(scratch), IN(table),
                        ATTENTION_NUMBERS, float scale, ITEMS)
{
#ifdef WEFT_F64
    POINTER(float, q);
    POINTER(float, v);
    POINTER(float, bias);
    POINTER(float, scratch);
    RESULT(float, y);
    RESULT(float, sums);
    HEAD_OF_QUERY
    float p[BLOCK], total = 0.0f, top = -INFINITY;
    const long first = i / BLOCK * BLOCK, rows = min((long)BLOCK, queries - first);
    const long last = causal ? min(keys, first + rows + past) : keys;
    q += image * q_batch + h * q_head + i * q_row;
    v += image * v_batch + kv * v_head;
    y += image * y_batch + h * y_head + i * y_row;
    scratch += (image * kv_heads + kv) * width * padded_keys;
    for (long d = 0; d < value_width; d++) {
        y[d] = 0.0f;
    }
    for (long j = 0; j < last; j += BLOCK) {
        const int cols = (int)min((long)BLOCK, keys - j);
        const int seen = (int)seen_keys(i, j, cols, causal, past);
        __global const float *b = has_bias ? bias + image * bias_0 + h * bias_1 + i * bias_2 + j * bias_3 : 0;
        float now = top;
        if (seen > 0) {
            scores_of_keys(q, scratch + j, padded_keys, width, b, bias_3, scale, seen, p);
            float most = p[0], sum;
            for (int n = 1; n < seen; n++) {
                most = p[n] > most ? p[n] : most;
            }
            if (most == -INFINITY) { /* NaN where a score is */
                ROW_SUM(sum, seen, p[i]);
                most = sum;
            }
            now = most <= top ? top : most;
        }
        if (seen == 0 || now == -INFINITY) {
            for (int n = 0; n < cols; n++) {
                p[n] = 0.0f;
            }
        } else {
            const float left = exp_of_negative(top - now);
            float sum;
            for (int n = 0; n < seen; n += 16) {
                vstore16(exp_of_negative16(vload16(0, p + n) - now), 0, p + n);
            }
            for (int n = seen; n < cols; n++) {
                p[n] = 0.0f;
            }
            ROW_SUM(sum, seen, p[i]);
            total = total * left + sum;
            scale_row(y, value_width, left);
            top = now;
        }
        add_rows(y, p, v + j * v_row, v_row, cols, value_width);
    }
    scale_row(y, value_width, total == 0.0f ? 0.0f : 1.0f / total);
    if (has_sums) {
        const float log = total >= 1.0f ? (float)log_of((double)total) : total;
        sums[at] = total == 0.0f ? -INFINITY : top + log;
    }
#endif
}

/* L of great size has lost the logarithm of the row's sum. */
bool is_coarse(float sum)
{
    return fabs(sum) >= 1024.0f && sum != -INFINITY;
}

/* Scratch of the gradient: turned Q, dY, K, V (gradient of queries, then of keys), delta, totals */
#define GRADIENT                                                                                   \
    IN(dy), IN(dl), IN(q), IN(k), IN(v), IN(bias), IN(y), IN(sums), OUT(dq), OUT(dk), OUT(dv),     \
        OUT(scratch), IN(table), ATTENTION_NUMBERS, float scale, ITEMS
#define TURNED                                                                                     \
    RESULT(float, scratch);                                                                        \
    POINTER(long, table);                                                                          \
    __global const float *turned_q = scratch + table[0], *turned_dy = scratch + table[1];          \
    __global const float *turned_k = scratch + table[2], *turned_v = scratch + table[3];           \
    __global float *delta = scratch + table[4], *totals = scratch + table[5];                      \
    (void)turned_q, (void)turned_dy, (void)turned_k, (void)turned_v;

/* delta = sum(dY Y) of a query, and the total of its shares where L is coarse. */
__kernel void attention_grad_rows(GRADIENT)
{
    POINTER(float, dy);
    POINTER(float, y);
    POINTER(float, q);
    POINTER(float, bias);
    POINTER(float, sums);
    TURNED
    HEAD_OF_QUERY
    const long row = image * y_batch + h * y_head + i * y_row, query = i;
    float p[BLOCK], sum, total = 0.0f;
    ROW_SUM(sum, value_width, dy[row + i] * y[row + i]);
    delta[at] = sum;
    q += image * q_batch + h * q_head + i * q_row;
    turned_k += (image * kv_heads + kv) * width * padded_keys;
    for (long j = 0; is_coarse(sums[at]) && j < keys; j += BLOCK) {
        const int cols = (int)min((long)BLOCK, keys - j);
        const int seen = (int)seen_keys(query, j, cols, causal, past);
        __global const float *b =
            has_bias ? bias + image * bias_0 + h * bias_1 + query * bias_2 + j * bias_3 : 0;
        if (seen > 0) {
            scores_of_keys(q, turned_k + j, padded_keys, width, b, bias_3, scale, seen, p);
            ROW_SUM(sum, seen, exp_of(p[i] - sums[at]));
            total += sum;
        }
    }
    totals[at] = total;
}

/* Blocks of queries from that of the first one which sees a key of the block at j. */
long first_query(long j, long causal, long past)
{
    return causal && j > past ? (j - past) / BLOCK * BLOCK : 0;
}

/* dQ of a query: dS K. */
__kernel void attention_grad_queries(GRADIENT)
{
    POINTER(float, dy);
    POINTER(float, q);
    POINTER(float, k);
    POINTER(float, bias);
    POINTER(float, sums);
    RESULT(float, dq);
    TURNED
    HEAD_OF_QUERY
    float p[BLOCK], ds[BLOCK];
    const float sum = sums[at], less = delta[at], one = is_coarse(sum) ? 1.0f / totals[at] : 1.0f;
    q += image * q_batch + h * q_head + i * q_row;
    dq += image * q_batch + h * q_head + i * q_row;
    dy += image * y_batch + h * y_head + i * y_row;
    k += image * k_batch + kv * k_head;
    turned_k += (image * kv_heads + kv) * width * padded_keys;
    turned_v += (image * kv_heads + kv) * value_width * padded_keys;
    for (long d = 0; d < width; d++) {
        dq[d] = 0.0f;
    }
    for (long j = 0; j < keys; j += BLOCK) {
        const int cols = (int)min((long)BLOCK, keys - j);
        const int seen = sum == -INFINITY ? 0 : (int)seen_keys(i, j, cols, causal, past);
        __global const float *b = has_bias ? bias + image * bias_0 + h * bias_1 + i * bias_2 + j * bias_3 : 0;
        if (i < first_query(j, causal, past)) {
            continue;
        }
        scores_of_keys(q, turned_k + j, padded_keys, width, b, bias_3, scale, seen, p);
        for (int n = 0; n < seen; n += 16) {
            const float16 share = exp_of16(vload16(0, p + n) - sum) * one;
            const float16 d = dots(dy, turned_v + j + n, padded_keys, value_width);
            vstore16(share * (d - less) * scale, 0, ds + n);
        }
        for (int n = seen; n < cols; n++) {
            ds[n] = 0.0f;
        }
        add_rows(dq, ds, k + j * k_row, k_row, cols, width);
    }
}

/* dK and dV of a key: dS' Q and P' dY, over the heads that share it. */
__kernel void attention_grad_keys(GRADIENT)
{
    POINTER(float, dy);
    POINTER(float, q);
    POINTER(float, k);
    POINTER(float, v);
    POINTER(float, bias);
    POINTER(float, sums);
    RESULT(float, dk);
    RESULT(float, dv);
    TURNED
    ITEM(uint, at)
    const long key = at % (uint)keys, kv = at / (uint)keys % (uint)kv_heads;
    const long image = at / (uint)keys / (uint)kv_heads, shared = heads / kv_heads;
    const long padded = (queries + 15) / 16 * 16, j = key / BLOCK * BLOCK;
    float p[BLOCK], ds[BLOCK];
    k += image * k_batch + kv * k_head + key * k_row;
    dk += image * k_batch + kv * k_head + key * k_row;
    v += image * v_batch + kv * v_head + key * v_row;
    dv += image * v_batch + kv * v_head + key * v_row;
    for (long d = 0; d < width; d++) {
        dk[d] = 0.0f;
    }
    for (long d = 0; d < value_width; d++) {
        dv[d] = 0.0f;
    }
    for (long n = 0; n < shared; n++) {
        const long h = kv * shared + n, head = image * heads + h;
        __global const float *qs = q + image * q_batch + h * q_head;
        __global const float *dys = dy + image * y_batch + h * y_head;
        for (long i = first_query(j, causal, past); i < queries; i += BLOCK) {
            const int rows = (int)min((long)BLOCK, queries - i);
            for (int r = 0; r < rows; r += 16) {
                const long row = head * queries + i + r, left = rows - r;
                const float16 sum = load_some(sums + row, left);
                const float16 total = load_some(totals + row, left);
                const int16 coarse = fabs(sum) >= 1024.0f && sum != -INFINITY;
                const float16 one = select((float16)(1.0f), 1.0f / total, coarse);
                /* of the first queries none sees the key */
                const int16 order = (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                const int blind = causal ? (int)(key - past - i) - r : 0;
                const int16 sees = sum != -INFINITY && order >= blind;
                float16 score =
                    dots(k, turned_q + head * width * padded + i + r, padded, width) * scale;
                if (has_bias) {
                    vstore16(score, 0, p + r);
                    for (int n = 0; n < min(left, 16l); n++) {
                        p[r + n] += bias[image * bias_0 + h * bias_1 + (i + r + n) * bias_2 + key * bias_3];
                    }
                    score = vload16(0, p + r);
                }
                const float16 share = select((float16)(0.0f), exp_of16(score - sum) * one, sees);
                const float16 d =
                    dots(v, turned_dy + head * value_width * padded + i + r, padded, value_width);
                vstore16(share, 0, p + r);
                vstore16(select((float16)(0.0f), share * (d - load_some(delta + row, left)) * scale, sees),
                         0, ds + r);
            }
            add_rows(dv, p, dys + i * y_row, y_row, rows, value_width);
            add_rows(dk, ds, qs + i * q_row, q_row, rows, width);
        }
    }
}
