/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over rows: a work item has a row. Sums have the shape of ops/compute/sum_f32.h. */

float sum_of_lanes16(float16 acc)
{
    float lanes[16];
    vstore16(acc, 0, lanes);
    return sum_of_lanes(lanes);
}

/*
 * ROW_SUM(sum, count, term): adds term of i from 0 to count - 1. Element i goes to lane i % 16, the
 * last count % 16 to the last lanes, where there are 16.
 */
#define ROW_SUM(sum, count, term)                                                                  \
    do {                                                                                           \
        float lanes_[16];                                                                          \
        const long whole_ = (count) / 16 * 16;                                                     \
        for (int j_ = 0; j_ < 16; j_++) {                                                          \
            lanes_[j_] = 0.0f;                                                                     \
        }                                                                                          \
        for (long from_ = 0; from_ < whole_; from_ += 16) {                                        \
            for (int j_ = 0; j_ < 16; j_++) {                                                      \
                const long i = from_ + j_;                                                         \
                lanes_[j_] += (term);                                                              \
            }                                                                                      \
        }                                                                                          \
        for (long i = whole_; i < (count); i++) {                                                  \
            lanes_[whole_ == 0 ? i : 16 - ((count) - i)] += (term);                                \
        }                                                                                          \
        sum = sum_of_lanes(lanes_);                                                                \
    } while (0)

float top_of(__global const float *x, long count, long step)
{
    float top = x[0];
    for (long i = 1; i < count; i++) {
        top = x[i * step] > top ? x[i * step] : top;
    }
    return top;
}

#define ROW_OF_AXIS                                                                                \
    ITEM(size_t, row)                                                                              \
    const size_t first = row / (size_t)inner * (size_t)(length * inner) + row % (size_t)inner;

__kernel void softmax(IN(x), OUT(y), long length, long inner, long logarithm, ITEMS)
{
    POINTER(float, x);
    RESULT(float, y);
    ROW_OF_AXIS
    float sum;
    x += first;
    y += first;
    const float top = top_of(x, length, inner);
    ROW_SUM(sum, length, exp_of_negative(x[i * inner] - top));
    if (!logarithm) {
        const float share = 1.0f / sum;
        for (long i = 0; i < length; i++) {
            y[i * inner] = exp_of_negative(x[i * inner] - top) * share;
        }
        return;
    }
#ifdef WEFT_F64
    const float shift = sum >= 1.0f ? (float)log_of((double)sum) : sum;
    for (long i = 0; i < length; i++) {
        y[i * inner] = (x[i * inner] - top) - shift;
    }
#endif
}

__kernel void softmax_grad(IN(dy), IN(y), OUT(dx), long length, long inner, long logarithm, ITEMS)
{
    POINTER(float, dy);
    POINTER(float, y);
    RESULT(float, dx);
    ROW_OF_AXIS
    float sum;
    dy += first;
    y += first;
    dx += first;
    if (logarithm) {
        ROW_SUM(sum, length, dy[i * inner]);
        for (long i = 0; i < length; i++) {
            dx[i * inner] = dy[i * inner] - exp_of(y[i * inner]) * sum;
        }
    } else {
        ROW_SUM(sum, length, dy[i * inner] * y[i * inner]);
        for (long i = 0; i < length; i++) {
            dx[i * inner] = (dy[i * inner] - sum) * y[i * inner];
        }
    }
}

__kernel void layer_norm(IN(x), IN(scale), IN(bias), OUT(y), OUT(mean), OUT(inverse), long length,
                         long has_bias, long has_mean, long has_inverse, float epsilon, ITEMS)
{
    POINTER(float, x);
    POINTER(float, scale);
    POINTER(float, bias);
    RESULT(float, y);
    RESULT(float, mean);
    RESULT(float, inverse);
    ITEM(size_t, row)
    float sum, squares;
    x += row * length;
    y += row * length;
    ROW_SUM(sum, length, x[i]);
    const float middle = sum / (float)length;
    ROW_SUM(squares, length, (x[i] - middle) * (x[i] - middle));
    const float inv = 1.0f / sqrt(squares / (float)length + epsilon);
    for (long i = 0; i < length; i++) {
        const float value = ((x[i] - middle) * inv) * scale[i];
        y[i] = has_bias ? value + bias[i] : value;
    }
    if (has_mean) {
        mean[row] = middle;
    }
    if (has_inverse) {
        inverse[row] = inv;
    }
}

/* A work item has a column, whose rows are added in order. Comes before dX, which may overwrite dY. */
__kernel void layer_norm_columns(IN(dy), IN(x), IN(scale), IN(mean), IN(inverse), OUT(dx),
                                 OUT(dscale), OUT(dbias), long length, long rows, long has_dscale,
                                 long has_dbias, ITEMS)
{
    POINTER(float, dy);
    POINTER(float, x);
    POINTER(float, mean);
    POINTER(float, inverse);
    RESULT(float, dscale);
    RESULT(float, dbias);
    ITEM(size_t, i)
    float scales = 0.0f, biases = 0.0f;
    for (long r = 0; r < rows; r++) {
        const float g = dy[r * length + i];
        scales += g * ((x[r * length + i] - mean[r]) * inverse[r]);
        biases += g;
    }
    if (has_dscale) {
        dscale[i] = scales;
    }
    if (has_dbias) {
        dbias[i] = biases;
    }
}

__kernel void layer_norm_rows(IN(dy), IN(x), IN(scale), IN(mean), IN(inverse), OUT(dx), OUT(dscale),
                              OUT(dbias), long length, long rows, long has_dscale, long has_dbias,
                              ITEMS)
{
    POINTER(float, dy);
    POINTER(float, x);
    POINTER(float, scale);
    POINTER(float, mean);
    POINTER(float, inverse);
    RESULT(float, dx);
    ITEM(size_t, row)
    const float middle = mean[row], inv = inverse[row], count = (float)length;
    float sum, products;
    dy += row * length;
    x += row * length;
    dx += row * length;
    ROW_SUM(sum, length, dy[i] * scale[i]);
    ROW_SUM(products, length, dy[i] * scale[i] * ((x[i] - middle) * inv));
    const float a = sum / count, b = products / count;
    for (long i = 0; i < length; i++) {
        dx[i] = (dy[i] * scale[i] - a - ((x[i] - middle) * inv) * b) * inv;
    }
}

/*
 * Sums over some dimensions, in the order of memory; rows at the end have the shape above. Table:
 * numbers of kept and of summed dimensions, sizes and strides of both, the length of a row or 0.
 */
__kernel void sum_dims(IN(x), OUT(y), IN(table), float divisor, ITEMS)
{
    POINTER(float, x);
    RESULT(float, y);
    POINTER(long, table);
    ITEM(size_t, at)
    __global const long *kept = table + 3, *summed = kept + 2 * MOST_DIMS;
    const long length = table[2];
    long count = 1;
    uint left = (uint)at;
    float total = 0.0f;
    for (int d = (int)table[0] - 1; d >= 0; d--) {
        x += left % (uint)kept[d] * kept[MOST_DIMS + d];
        left /= (uint)kept[d];
    }
    for (int d = 0; d < table[1]; d++) {
        count *= summed[d];
    }
    for (long n = 0; n < count; n++) {
        __global const float *row = x;
        uint rest = (uint)n;
        for (int d = (int)table[1] - 1; d >= 0; d--) {
            row += rest % (uint)summed[d] * summed[MOST_DIMS + d];
            rest /= (uint)summed[d];
        }
        float sum = length == 0 ? row[0] : 0.0f;
        if (length > 0) {
            ROW_SUM(sum, length, row[i]);
        }
        total += sum;
    }
    y[at] = divisor != 1.0f ? total / divisor : total;
}
