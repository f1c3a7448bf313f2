/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions and pooling over two dimensions, plain layout; sums as ops/compute/conv_f32.h and
 * conv_lanes.h define them. */

#define LANE_CHAIN 512 /* of conv_lanes.h */
#define LANES 16

/*
 * Numbers of all functions of a node. A pass goes from source [images, channels, in] to destination
 * [images, rows, out]; of a gradient it is dX (turned), of which source is dY, and rows are those of
 * X. Scratch has the sums of dW, from at_weights on the weights and from at_lines on dY, both with
 * 16 rows side by side.
 */
#define CONV_NUMBERS                                                                               \
    long rows, long channels, long in_0, long in_1, long out_0, long out_1, long kernel_0,         \
        long kernel_1, long step_0, long step_1, long shift_0, long shift_1, long dilation_0,      \
        long dilation_1, long lanes, long turned, long pad_0, long pad_1, long images,             \
        long has_bias, long dw_lanes, long block, long piece, long at_weights, long at_lines

/* Weights in the order of a pass: [tap, row]. Lanes: taps by (ky, kx, channel), else by (channel, tap),
 * where taps of dX run backwards. */
__kernel void conv_weights(IN(w), OUT(scratch), CONV_NUMBERS, ITEMS)
{
    POINTER(float, w);
    RESULT(float, scratch);
    ITEM(uint, at)
    const uint lines = ((uint)rows + 15) / 16, first = at % lines * 16, step = at / lines;
    const uint area = (uint)(kernel_0 * kernel_1);
    const uint channel = lanes ? step % (uint)channels : step / area;
    const uint tap = lanes ? step / (uint)channels : step % area;
    const uint weight = turned && lanes ? area - 1 - tap : tap;
    float out[16];
    for (uint i = 0; i < 16; i++) {
        const uint row = first + i;
        out[i] = row >= rows ? 0.0f
                 : turned    ? w[(channel * (uint)rows + row) * area + weight]
                             : w[(row * (uint)channels + channel) * area + weight];
    }
    vstore16(vload16(0, out), at, scratch + at_weights);
}

/* Taps of one direction that any of the outputs first to last finds inside the source. */
void valid_taps(int first, int last, int shift, int in, int window, int step, int *from, int *to)
{
    const int behind = shift + in;
    *from = last < shift ? (shift - last + step - 1) / step : 0;
    *to = first < behind ? min(window, (behind - first + step - 1) / step) : 0;
    *from = min(*from, *to);
}

#define TILE 4 /* outputs of a line, of each of 16 rows */
#define EACH_OUTPUT(X) X(0) X(1) X(2) X(3)
#define BEGIN_OUTPUT(t) float16 sum##t = 0.0f, chain##t = 0.0f;
#define FIND_OUTPUT(t)                                                                             \
    const int x##t = (left + min(t, width - 1)) * (int)step_1 + kx * (int)dilation_1 - (int)shift_1; \
    const bool in##t = in_line && x##t >= 0 && x##t < in_1;                                        \
    const int at##t = in##t ? line + x##t : 0;
#define ADD_OUTPUT(t) chain##t = fma((float16)(in##t ? plane[at##t] : 0.0f), weight, chain##t);
#define END_CHAIN(t)                                                                               \
    sum##t = first ? chain##t : sum##t + chain##t;                                                 \
    chain##t = 0.0f;
#define ADD_TAP                                                                                    \
    const float16 weight = vload16(0, weights);                                                    \
    weights += padded;                                                                             \
    EACH_OUTPUT(ADD_OUTPUT)                                                                        \
    plane += plane_step;
#define WRITE_OUTPUT(t)                                                                            \
    vstore16(sum##t, 0, out);                                                                      \
    for (int r = 0; t < width && r < here; r++) {                                                  \
        dst[(long)r * out_0 * out_1 + t] =                                                         \
            out[r] + (adds_bias ? bias[row + r] : lanes ? 0.0f : -0.0f);                           \
    }

/* A work item has a tile of outputs of 16 rows. With lanes, taps that miss the source for all of a
 * tile are left out; conv_lanes.h has the lengths of chains. */
__kernel void conv_pass(IN(source), IN(scratch), IN(bias), OUT(dst), CONV_NUMBERS, ITEMS)
{
    POINTER(float, source);
    POINTER(float, scratch);
    POINTER(float, bias);
    RESULT(float, dst);
    ITEM(uint, item)
    const int most = lanes && rows > 6 ? 3 : TILE;
    const uint tiles = ((uint)out_1 + most - 1) / most, lines = ((uint)rows + 15) / 16;
    const int left = (int)(item % tiles) * most, width = min(most, (int)out_1 - left);
    const int y = item / tiles % (uint)out_0, padded = lines * 16;
    const uint row = item / tiles / (uint)out_0 % lines * 16;
    const uint image = item / tiles / (uint)out_0 / lines;
    const int here = min(16, (int)rows - (int)row), plane_step = (int)(in_0 * in_1);
    const bool adds_bias = has_bias && !turned;
    const int kernel_y = (int)kernel_0, kernel_x = (int)kernel_1;
    __global const float *all = scratch + at_weights + row;
    bool first = true;
    float out[16];
    EACH_OUTPUT(BEGIN_OUTPUT)
    source += (long)image * channels * plane_step;
    dst += (((long)image * rows + row) * out_0 + y) * out_1 + left;
    if (lanes) {
        int ky, ky_end, kx_from, kx_end, in_chain = 0;
        valid_taps(y, y, (int)shift_0, (int)in_0, kernel_y, (int)dilation_0, &ky, &ky_end);
        valid_taps(left, left + width - 1, (int)shift_1, (int)in_1, kernel_x, (int)dilation_1, &kx_from,
                   &kx_end);
        const bool whole = kx_from == 0 && kx_end == kernel_x; /* lines of taps are one run */
        for (; ky < ky_end; ky++) {
            const int line = (y + ky * (int)dilation_0 - (int)shift_0) * (int)in_1;
            const bool in_line = true;
            for (int kx = kx_from; kx < kx_end; kx++) {
                __global const float *plane = source;
                __global const float *weights = all + (long)(ky * kernel_x + kx) * channels * padded;
                EACH_OUTPUT(FIND_OUTPUT)
                for (int c = 0; c < channels; c++) {
                    ADD_TAP
                    if (++in_chain == LANE_CHAIN) {
                        EACH_OUTPUT(END_CHAIN)
                        first = false;
                        in_chain = 0;
                    }
                }
            }
            if (in_chain > 0 && (!whole || ky + 1 == ky_end)) {
                EACH_OUTPUT(END_CHAIN)
                first = false;
                in_chain = 0;
            }
        }
    } else {
        const int area = kernel_y * kernel_x, count = area * (int)channels;
        __global const float *weights = all, *plane = source;
        int in_chain = 0;
        for (int c = 0; c < channels; c++) {
            for (int t = 0; t < area; t++) {
                const int tap = turned ? area - 1 - t : t, ky = tap / kernel_x, kx = tap % kernel_x;
                const int iy = y * (int)step_0 + ky * (int)dilation_0 - (int)shift_0;
                const bool in_line = iy >= 0 && iy < in_0;
                const int line = iy * (int)in_1;
                plane = source + (long)c * plane_step;
                EACH_OUTPUT(FIND_OUTPUT)
                ADD_TAP
                if (++in_chain == K_BLOCK || c * area + t + 1 == count) {
                    EACH_OUTPUT(END_CHAIN)
                    first = false;
                    in_chain = 0;
                }
            }
        }
    }
    EACH_OUTPUT(WRITE_OUTPUT)
}

/* dY with 16 channels side by side: [image, pixel, channel] */
__kernel void conv_lines(IN(dy), OUT(scratch), CONV_NUMBERS, ITEMS)
{
    POINTER(float, dy);
    RESULT(float, scratch);
    ITEM(uint, at)
    const uint lines = ((uint)channels + 15) / 16, first = at % lines * 16, area = (uint)(in_0 * in_1);
    const uint pixel = at / lines % area, image = at / lines / area;
    float out[16];
    for (uint i = 0; i < 16; i++) {
        out[i] = first + i < channels
                     ? dy[((long)image * channels + first + i) * area + pixel]
                     : 0.0f;
    }
    vstore16(vload16(0, out), at, scratch + at_lines);
}

/* Taps of the window, of inputs and of the bias: taps k to k + 3 of a work item. Here in is dY's
 * shape and out is X's. */
#define EACH_WEIGHT(X) X(0) X(1) X(2) X(3)
#define BEGIN_WEIGHT(g)                                                                            \
    const int k##g = min(k + g, taps), kx##g = k##g % (int)kernel_1 * (int)dilation_1 - (int)pad_1; \
    const int ky##g = k##g / (int)kernel_1 % (int)kernel_0 * (int)dilation_0 - (int)pad_0;         \
    const int plane##g = k##g / (int)(kernel_0 * kernel_1) * (int)(out_0 * out_1);                 \
    const bool one##g = k##g == taps;                                                              \
    float16 sum##g = 0.0f, chain##g = 0.0f;
#define ADD_WEIGHT(g)                                                                              \
    {                                                                                              \
        const int iy = line * (int)step_0 + ky##g, ix = i * (int)step_1 + kx##g;                   \
        const bool in = !one##g && iy >= 0 && iy < out_0 && ix >= 0 && ix < out_1;                 \
        const float value = in ? x[first + plane##g + iy * (int)out_1 + ix] : one##g ? 1.0f : 0.0f; \
        chain##g = fma((float16)(value), gradients, chain##g);                                     \
    }
#define END_WEIGHT(g)                                                                              \
    sum##g = sum##g + chain##g;                                                                    \
    chain##g = 0.0f;
#define WRITE_WEIGHT(g)                                                                            \
    vstore16(sum##g, 0, out);                                                                      \
    for (int i = 0; k + g <= taps && i < here; i++) {                                              \
        const long sum_at = (long)(o + i) * (taps + 1) + k + g;                                    \
        scratch[dw_lanes ? sum_at * LANES + lane : sum_at] = out[i];                               \
    }

/* A work item has 4 weights of 16 rows, or a lane of them: of every 16th image. */
__kernel void conv_dw(IN(x), OUT(scratch), CONV_NUMBERS, ITEMS)
{
    POINTER(float, x);
    RESULT(float, scratch);
    ITEM(uint, item)
    const int taps = (int)(rows * kernel_0 * kernel_1), lane_count = dw_lanes ? LANES : 1;
    const uint groups = (uint)taps / 4 + 1, lines = ((uint)channels + 15) / 16;
    const int lane = item % lane_count, k = item / lane_count % groups * 4;
    const uint o = item / lane_count / groups * 16;
    const int here = min(16, (int)channels - (int)o), area = (int)(in_0 * in_1);
    const long image_elems = rows * out_0 * out_1;
    float out[16];
    EACH_WEIGHT(BEGIN_WEIGHT)
    scratch += at_lines;
    for (int image = lane; dw_lanes && image < images; image += LANES) {
        const long first = image * image_elems;
        for (int from = 0; from < in_0; from += (int)piece) {
            for (int line = from; line < min(from + (int)piece, (int)in_0); line++) {
                for (int i = 0; i < in_1; i++) {
                    const long pixel = (long)image * area + line * (int)in_1 + i;
                    const float16 gradients = vload16(0, scratch + pixel * lines * 16 + o);
                    EACH_WEIGHT(ADD_WEIGHT)
                }
            }
            EACH_WEIGHT(END_WEIGHT)
        }
    }
    for (long from = 0; !dw_lanes && from < images; from += block) {
        const int outputs = (int)min(block, images - from) * area;
        int line = 0, i = 0;
        long first = from * image_elems;
        for (int p = 0; p < outputs; p++) {
            const float16 gradients = vload16(0, scratch + (from * area + p) * lines * 16 + o);
            EACH_WEIGHT(ADD_WEIGHT)
            if ((p + 1) % (int)piece == 0 || p + 1 == outputs) {
                EACH_WEIGHT(END_WEIGHT)
            }
            i = i + 1 == in_1 ? 0 : i + 1;
            line = i != 0 ? line : line + 1 == in_0 ? 0 : line + 1;
            first += line == 0 && i == 0 ? image_elems : 0;
        }
    }
    scratch -= at_lines;
    EACH_WEIGHT(WRITE_WEIGHT)
}

/* The lanes of a weight are added as a tree. */
__kernel void conv_dw_total(IN(scratch), OUT(dw), OUT(db), CONV_NUMBERS, ITEMS)
{
    POINTER(float, scratch);
    RESULT(float, dw);
    ITEM(uint, at)
    const uint taps = (uint)(rows * kernel_0 * kernel_1), k = at % (taps + 1), o = at / (taps + 1);
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

/* A work item has a line of outputs. The first of equal maxima wins, NaN over everything; the mask
 * has the tap. */
__kernel void max_pool(IN(x), OUT(y), OUT(mask), POOL_NUMBERS, long has_mask, ITEMS)
{
    POINTER(float, x);
    RESULT(float, y);
    RESULT(uchar, mask);
    ITEM(uint, line)
    const int in_x = (int)in_1, step_x = (int)dilation_1;
    const int top = (int)(line % (uint)out_0) * (int)stride_0 - (int)pad_0;
    x += (long)(line / (uint)out_0) * in_0 * in_1;
    y += line * out_1;
    mask += line * out_1;
    for (int ox = 0, left = -(int)pad_1; ox < out_1; ox++, left += (int)stride_1) {
        float best = -INFINITY;
        int where = -1;
        for (int ky = 0, iy = top; ky < kernel_0; ky++, iy += (int)dilation_0) {
            for (int kx = 0, ix = left; kx < kernel_1 && iy >= 0 && iy < in_0; kx++, ix += step_x) {
                const float value = ix >= 0 && ix < in_x ? x[iy * in_x + ix] : -INFINITY;
                if (ix >= 0 && ix < in_x && (where < 0 || value > best || value != value)) {
                    best = value;
                    where = ky * (int)kernel_1 + kx;
                }
            }
        }
        y[ox] = best;
        if (has_mask) {
            mask[ox] = (uchar)(where < 0 ? 0 : where);
        }
    }
}

/* Windows whose tap 0 to window - 1 may be the element at (with its pad): from and to. */
void windows_of(int at, int window, int dilation, int stride, int out, int *from, int *to)
{
    const int first = at - (window - 1) * dilation;
    *from = first > 0 ? (first + stride - 1) / stride : 0;
    *to = min(at / stride, out - 1);
}

/* A work item has a line of inputs, for each of which outputs add up in the order of memory. */
__kernel void max_pool_grad(IN(dy), IN(mask), OUT(dx), POOL_NUMBERS, ITEMS)
{
    POINTER(float, dy);
    POINTER(uchar, mask);
    RESULT(float, dx);
    ITEM(uint, line)
    const long plane = (long)(line / (uint)in_0) * out_0 * out_1;
    const int top = (int)(line % (uint)in_0) + (int)pad_0, step_y = (int)dilation_0;
    const int step_x = (int)dilation_1, stride_y = (int)stride_0, stride_x = (int)stride_1;
    int oy_from, oy_to, ox_from, ox_to;
    windows_of(top, (int)kernel_0, step_y, stride_y, (int)out_0, &oy_from, &oy_to);
    dx += line * in_1;
    for (int ix = 0, left = (int)pad_1; ix < in_1; ix++, left++) {
        float sum = 0.0f;
        windows_of(left, (int)kernel_1, step_x, stride_x, (int)out_1, &ox_from, &ox_to);
        for (int oy = oy_from; oy <= oy_to; oy++) {
            const int y = top - oy * stride_y, ky = step_y == 1 ? y : y / step_y;
            for (int ox = ox_from; ox <= ox_to; ox++) {
                const int x = left - ox * stride_x, kx = step_x == 1 ? x : x / step_x;
                const long from = plane + oy * (int)out_1 + ox;
                const bool is_tap = ky * step_y == y && kx * step_x == x;
                if (is_tap) {
                    sum += mask[from] == ky * (int)kernel_1 + kx ? dy[from] : 0.0f;
                }
            }
        }
        dx[ix] = sum;
    }
}
