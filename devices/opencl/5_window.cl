/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions and pooling over two dimensions, plain layout; sums as ops/compute/conv_f32.h and
 * conv_lanes.h define them. */

#define LANE_CHAIN 512 /* of conv_lanes.h */
#define LANES 16

/* What all functions of a pass read: source [n, channels, in], destination [n, rows, out]. */
typedef struct pass {
    __global const float *source, *weights;
    long channels, rows, in[2], window[2], step[2], shift[2], dilation[2];
    long turned; /* weights are [channel][row], mirrored */
} pass_t;

/* Tap (ky, kx) of the window of output (y, x): the product's operands, in this order. */
float add_tap(const pass_t *p, long row, long channel, long ky, long kx, long y, long x, float sum)
{
    const long area = p->window[0] * p->window[1], tap = ky * p->window[1] + kx;
    const long iy = y * p->step[0] + ky * p->dilation[0] - p->shift[0];
    const long ix = x * p->step[1] + kx * p->dilation[1] - p->shift[1];
    const bool inside = iy >= 0 && iy < p->in[0] && ix >= 0 && ix < p->in[1];
    const float value = inside ? p->source[(channel * p->in[0] + iy) * p->in[1] + ix] : 0.0f;
    const float weight = p->turned ? p->weights[(channel * p->rows + row) * area + area - 1 - tap]
                                   : p->weights[(row * p->channels + channel) * area + tap];
    return fma(weight, value, sum);
}

/* Taps in the order of the weights, in chains of 256. */
float sum_planes(const pass_t *p, long row, long y, long x)
{
    float sum = 0.0f, chain = 0.0f;
    const long area = p->window[0] * p->window[1], count = p->channels * area;
    for (long k = 0; k < count; k++) {
        const long tap = p->turned ? area - 1 - k % area : k % area;
        chain = add_tap(p, row, k / area, tap / p->window[1], tap % p->window[1], y, x, chain);
        if ((k + 1) % K_BLOCK == 0 || k + 1 == count) {
            sum = k < K_BLOCK ? chain : sum + chain;
            chain = 0.0f;
        }
    }
    return sum;
}

/* Taps of one direction that any of the outputs first to last finds inside the source. */
void valid_taps(const pass_t *p, int d, long first, long last, long *from, long *to)
{
    const long step = p->dilation[d], behind = p->shift[d] + p->in[d];
    *from = last < p->shift[d] ? (p->shift[d] - last + step - 1) / step : 0;
    *to = first < behind ? min(p->window[d], (behind - first + step - 1) / step) : 0;
    *from = min(*from, *to);
}

/* Taps by (ky, kx, channel), without those that miss the image; tiles of columns share these. */
float sum_lanes_of_images(const pass_t *p, long row, long y, long x, long out_width)
{
    const long width = p->rows <= 6 ? 4 : 3, left = x / width * width;
    const long right = min(left + width, out_width) - 1;
    long ky, ky_end, kx, kx_end;
    valid_taps(p, 0, y, y, &ky, &ky_end);
    valid_taps(p, 1, left, right, &kx, &kx_end);
    const bool whole = kx == 0 && kx_end == p->window[1]; /* lines of taps are one run */
    float sum = 0.0f, chain = 0.0f;
    long in_chain = 0;
    bool first = true;
    for (; ky < ky_end; ky++) {
        for (long tap = kx; tap < kx_end; tap++) {
            for (long c = 0; c < p->channels; c++) {
                chain = add_tap(p, row, c, ky, tap, y, x, chain);
                in_chain++;
                const bool line_ends = tap + 1 == kx_end && c + 1 == p->channels;
                if (in_chain == LANE_CHAIN || (line_ends && (!whole || ky + 1 == ky_end))) {
                    sum = first ? chain : sum + chain;
                    chain = 0.0f;
                    in_chain = 0;
                    first = false;
                }
            }
        }
    }
    return sum;
}

#define PASS_NUMBERS                                                                               \
    long rows, long channels, long in_0, long in_1, long out_0, long out_1, long kernel_0,         \
        long kernel_1, long step_0, long step_1, long shift_0, long shift_1, long dilation_0,      \
        long dilation_1, long lanes

void run_pass(size_t at, __global const float *source, __global const float *weights, float nothing,
              __global const float *bias, __global float *dst, PASS_NUMBERS, long turned)
{
    const size_t image = at / (rows * out_0 * out_1);
    const long x = at % out_1, y = at / out_1 % out_0, row = at / (out_0 * out_1) % rows;
    const pass_t p = {source + image * channels * in_0 * in_1,
                      weights,
                      channels,
                      rows,
                      {in_0, in_1},
                      {kernel_0, kernel_1},
                      {step_0, step_1},
                      {shift_0, shift_1},
                      {dilation_0, dilation_1},
                      turned};
    const float sum = lanes ? sum_lanes_of_images(&p, row, y, x, out_1) : sum_planes(&p, row, y, x);
    dst[at] = sum + (bias != 0 ? bias[row] : nothing);
}

__kernel void conv(IN(x), IN(w), IN(b), OUT(y), PASS_NUMBERS, long has_bias, ITEMS)
{
    POINTER(float, x);
    POINTER(float, w);
    POINTER(float, b);
    RESULT(float, y);
    ITEM(size_t, at)
    run_pass(at, x, w, lanes ? 0.0f : -0.0f, has_bias ? b : 0, y, rows, channels, in_0, in_1, out_0,
             out_1, kernel_0, kernel_1, step_0, step_1, shift_0, shift_1, dilation_0, dilation_1,
             lanes, 0);
}

/* dX, from dY and the weights; then dW and dB of all rows, in pieces of sums. */
#define GRAD_NUMBERS                                                                               \
    PASS_NUMBERS, long pad_0, long pad_1, long images, long has_bias, long dw_lanes, long block,   \
        long piece

__kernel void conv_dx(IN(dy), IN(x), IN(w), OUT(dx), OUT(dw), OUT(db), OUT(scratch), GRAD_NUMBERS, ITEMS)
{
    POINTER(float, dy);
    POINTER(float, w);
    RESULT(float, dx);
    ITEM(size_t, at)
    run_pass(at, dy, w, lanes ? 0.0f : -0.0f, 0, dx, rows, channels, in_0, in_1, out_0, out_1, kernel_0,
             kernel_1, step_0, step_1, shift_0, shift_1, dilation_0, dilation_1, lanes, 1);
}

/* Element (y, x) of the window of tap k of the input; 1 for the bias. Here rows are channels of X,
 * in is dY's shape and out is X's, as for dX. */
float input_of_tap(__global const float *x, long image, long k, long y, long x_at, long taps,
                   long rows, long out_0, long out_1, long kernel_0, long kernel_1,
                   long dilation_0, long dilation_1, long pad_0, long pad_1)
{
    if (k == taps) {
        return 1.0f;
    }
    const long kx = k % kernel_1, ky = k / kernel_1 % kernel_0, c = k / (kernel_0 * kernel_1);
    const long iy = y + ky * dilation_0 - pad_0, ix = x_at + kx * dilation_1 - pad_1;
    return iy >= 0 && iy < out_0 && ix >= 0 && ix < out_1
               ? x[((image * rows + c) * out_0 + iy) * out_1 + ix]
               : 0.0f;
}

#define INPUT(image, line, column)                                                                 \
    input_of_tap(x, image, k, line, column, taps, rows, out_0, out_1, kernel_0, kernel_1,          \
                 dilation_0, dilation_1, pad_0, pad_1)

/* A work item has a weight, or a lane of one: of every 16th image. */
__kernel void conv_dw(IN(dy), IN(x), IN(w), OUT(dx), OUT(dw), OUT(db), OUT(scratch), GRAD_NUMBERS, ITEMS)
{
    POINTER(float, dy);
    POINTER(float, x);
    RESULT(float, scratch);
    ITEM(size_t, at)
    const long taps = rows * kernel_0 * kernel_1, lane = dw_lanes ? at % LANES : 0;
    const long sum_at = dw_lanes ? at / LANES : at, k = sum_at % (taps + 1), o = sum_at / (taps + 1);
    const long area = in_0 * in_1;
    float sum = 0.0f;
    for (long first = 0; dw_lanes && first < images; first += LANES) {
        const long image = first + lane;
        for (long from = 0; from < in_0; from += piece) {
            float chain = 0.0f;
            for (long line = from; line < min(from + piece, in_0) && image < images; line++) {
                for (long i = 0; i < in_1; i++) {
                    chain = fma(dy[((image * channels + o) * in_0 + line) * in_1 + i],
                                INPUT(image, line, i), chain);
                }
            }
            sum = sum + chain;
        }
    }
    for (long first = 0; !dw_lanes && first < images; first += block) {
        const long outputs = min(block, images - first) * area;
        for (long from = 0; from < outputs; from += piece) {
            float chain = 0.0f;
            for (long p = from; p < min(from + piece, outputs); p++) {
                const long image = first + p / area, inside = p % area;
                chain = fma(INPUT(image, inside / in_1, inside % in_1),
                            dy[(image * channels + o) * area + inside], chain);
            }
            sum = sum + chain;
        }
    }
    scratch[at] = sum;
}

/* The lanes of a weight are added as a tree. */
__kernel void conv_dw_total(IN(dy), IN(x), IN(w), OUT(dx), OUT(dw), OUT(db), OUT(scratch),
                            GRAD_NUMBERS, ITEMS)
{
    POINTER(float, scratch);
    RESULT(float, dw);
    ITEM(size_t, at)
    const long taps = rows * kernel_0 * kernel_1, k = at % (taps + 1), o = at / (taps + 1);
    float sum = scratch[at];
    if (dw_lanes) {
        float v[LANES];
        for (int i = 0; i < LANES; i++) {
            v[i] = scratch[at * LANES + i];
        }
        for (int width = LANES / 2; width > 0; width /= 2) {
            for (int i = 0; i < width; i++) {
                v[i] += v[i + width];
            }
        }
        sum = v[0];
    }
    if (k < taps) {
        dw[o * taps + k] = sum;
    } else if (has_bias) {
        ((__global float *)(db_base + db_at))[o] = sum;
    }
}

#define POOL_NUMBERS                                                                               \
    long in_0, long in_1, long out_0, long out_1, long kernel_0, long kernel_1, long stride_0,     \
        long stride_1, long pad_0, long pad_1, long dilation_0, long dilation_1

/* The first of equal maxima wins, NaN over everything; the mask has the tap. */
__kernel void max_pool(IN(x), OUT(y), OUT(mask), POOL_NUMBERS, long has_mask, ITEMS)
{
    POINTER(float, x);
    RESULT(float, y);
    RESULT(uchar, mask);
    ITEM(size_t, at)
    const long ox = at % out_1, oy = at / out_1 % out_0;
    float best = -INFINITY;
    int where = -1;
    x += at / (out_0 * out_1) * in_0 * in_1;
    for (long ky = 0; ky < kernel_0; ky++) {
        for (long kx = 0; kx < kernel_1; kx++) {
            const long iy = oy * stride_0 - pad_0 + ky * dilation_0;
            const long ix = ox * stride_1 - pad_1 + kx * dilation_1;
            if (iy < 0 || iy >= in_0 || ix < 0 || ix >= in_1) {
                continue;
            }
            const float value = x[iy * in_1 + ix];
            if (where < 0 || value > best || value != value) {
                best = value;
                where = (int)(ky * kernel_1 + kx);
            }
        }
    }
    y[at] = best;
    if (has_mask) {
        mask[at] = (uchar)(where < 0 ? 0 : where);
    }
}

/* Outputs add up in the order of memory. */
__kernel void max_pool_grad(IN(dy), IN(mask), OUT(dx), POOL_NUMBERS, ITEMS)
{
    POINTER(float, dy);
    POINTER(uchar, mask);
    RESULT(float, dx);
    ITEM(size_t, at)
    const size_t plane = at / (in_0 * in_1) * out_0 * out_1;
    const long ix = at % in_1, iy = at / in_1 % in_0;
    float sum = 0.0f;
    for (long ky = kernel_0 - 1; ky >= 0; ky--) {
        for (long kx = kernel_1 - 1; kx >= 0; kx--) {
            const long top = iy + pad_0 - ky * dilation_0, left = ix + pad_1 - kx * dilation_1;
            const long oy = top / stride_0, ox = left / stride_1;
            if (top < 0 || left < 0 || top % stride_0 != 0 || left % stride_1 != 0 ||
                oy >= out_0 || ox >= out_1) {
                continue;
            }
            const size_t from = plane + oy * out_1 + ox;
            sum += mask[from] == ky * kernel_1 + kx ? dy[from] : 0.0f;
        }
    }
    dx[at] = sum;
}
