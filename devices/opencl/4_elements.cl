/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of element-wise steps (elements.h, elements.c). A work item has 16 elements of the
 * output: it reads them from all inputs, executes the steps one after the other, and writes the
 * results that leave the program. Nothing is read after the first result is written, which may
 * have the memory of an input.
 */
#define ELEMENT_INPUTS 12
#define ELEMENT_OUTPUTS 12
#define ELEMENT_STEPS 24
#define INPUT_NUMBERS 19 /* kind, type, rank, dims, strides */
#define STEP_NUMBERS 8   /* operator, a, b, c, output, type, p, q */
#define AS_OUTPUT 0           /* elements lie as in the output */
#define ONE 1            /* one element */
#define BY_ROWS 2        /* by dims and strides; the last dimension has a multiple of 16 elements */
#define F32 0
#define BOOL 1
#define I64 2
#define I32 3

#define ALL(x) ((float16)(x))
#define IF(condition, x, y) select((float16)(y), (float16)(x), (int16)(condition))
#define TRUTH(condition) IF(condition, ALL(1.0f), ALL(0.0f))
#define SIGN_OF(x) IF((x) > 0.0f, ALL(1.0f), IF((x) < 0.0f, ALL(-1.0f), x))
#define INTO_0_1(x) IF((x) < 0.0f, ALL(0.0f), IF((x) > 1.0f, ALL(1.0f), x))
#define EXP_MINUS_1(x) (tanh_of16(0.5f * (x)) * (exp_of16(x) + 1.0f))
#define SQRT_HALF 0.70710678f

float16 gelu_inner16(float16 x)
{
    return tanh_of16(0.79788456f * (x + 0.044715f * (x * x * x)));
}

/* Exponents that ops/compute/pow.c computes by products and roots. */
float16 power_of16(float16 a, float exponent)
{
    return exponent == 2.0f    ? a * a
           : exponent == 3.0f  ? a * a * a
           : exponent == 0.5f  ? sqrt(a)
           : exponent == -0.5f ? 1.0f / sqrt(a)
           : exponent == -1.0f ? 1.0f / a
                               : a;
}

float16 slope_of16(float16 a, float exponent)
{
    return exponent == 2.0f    ? 2.0f * a
           : exponent == 3.0f  ? 3.0f * (a * a)
           : exponent == 0.5f  ? 0.5f / sqrt(a)
           : exponent == -0.5f ? -0.5f / (a * sqrt(a))
           : exponent == -1.0f ? -1.0f / (a * a)
                               : ALL(1.0f);
}

#define SYMBOL(symbol, ...) E_##symbol,
enum { ELEMENTS(SYMBOL) ELEMENT_FORMS(SYMBOL) };

float element_at(__global const uchar *x, long type, long at)
{
    switch (type) {
    case F32:
        return ((__global const float *)x)[at];
    case BOOL:
        return x[at] != 0 ? 1.0f : 0.0f;
#ifdef WEFT_F64
    case I64:
        return (float)(double)((__global const long *)x)[at];
#else
    case I64:
        return (float)((__global const long *)x)[at];
#endif
    default:
        return (float)((__global const int *)x)[at];
    }
}

/* Element at of the output, by the dims and strides of an input. */
long offset_of(__global const long *in, long at)
{
    long offset = 0;
    uint left = (uint)at;
    for (int d = (int)in[2] - 1; d >= 0; d--) {
        const uint size = (uint)in[3 + d];
        offset += (long)(left % size) * in[11 + d];
        left /= size;
    }
    return offset;
}

float16 read_elements(__global const uchar *x, __global const long *in, long at, int count)
{
    const long kind = in[0], type = in[1];
    float lanes[16];
    if (kind == ONE) {
        return ALL(element_at(x, type, 0));
    }
    if (kind == AS_OUTPUT && type == F32 && count == 16) {
        return vload16(0, (__global const float *)x + at);
    }
    if (kind == BY_ROWS && type == F32) {
        const long from = offset_of(in, at), stride = in[11 + in[2] - 1];
        if (stride == 0) {
            return ALL(((__global const float *)x)[from]);
        }
        if (stride == 1) {
            return vload16(0, (__global const float *)x + from);
        }
    }
    for (int i = 0; i < 16; i++) {
        const long from = at + min(i, count - 1);
        lanes[i] = element_at(x, type, kind == AS_OUTPUT ? from : offset_of(in, from));
    }
    return vload16(0, lanes);
}

void write_elements(__global uchar *y, long type, long at, int count, float16 value)
{
    float lanes[16];
    if (type == F32 && count == 16) {
        vstore16(value, 0, (__global float *)y + at);
        return;
    }
    vstore16(value, 0, lanes);
    for (int i = 0; i < count; i++) {
        if (type == F32) {
            ((__global float *)y)[at + i] = lanes[i];
        } else {
            y[at + i] = lanes[i] != 0.0f;
        }
    }
}

#define RESULT_OF(symbol, domain, name, count, p_name, p_value, q_name, q_value, result)           \
    case E_##symbol:                                                                               \
        value = result;                                                                            \
        break;

__kernel void elements(IN(x0), IN(x1), IN(x2), IN(x3), IN(x4), IN(x5), IN(x6), IN(x7), IN(x8),
                       IN(x9), IN(x10), IN(x11), OUT(y0), OUT(y1), OUT(y2), OUT(y3), OUT(y4),
                       OUT(y5), OUT(y6), OUT(y7), OUT(y8), OUT(y9), OUT(y10), OUT(y11), IN(table), long inputs, long steps, long count, ITEMS)
{
    POINTER(long, table);
    __global const uchar *xs[ELEMENT_INPUTS] = {
        x0_base + x0_at, x1_base + x1_at, x2_base + x2_at,   x3_base + x3_at,
        x4_base + x4_at, x5_base + x5_at, x6_base + x6_at,   x7_base + x7_at,
        x8_base + x8_at, x9_base + x9_at, x10_base + x10_at, x11_base + x11_at};
    __global uchar *ys[ELEMENT_OUTPUTS] = {
        y0_base + y0_at, y1_base + y1_at, y2_base + y2_at,   y3_base + y3_at,
        y4_base + y4_at, y5_base + y5_at, y6_base + y6_at,   y7_base + y7_at,
        y8_base + y8_at, y9_base + y9_at, y10_base + y10_at, y11_base + y11_at};
    float16 values[ELEMENT_INPUTS + ELEMENT_STEPS];
    ITEM(long, item)
    const long at = 16 * item;
    const int here = (int)min(16l, count - at);
    for (int i = 0; i < inputs; i++) {
        values[i] = read_elements(xs[i], table + i * INPUT_NUMBERS, at, here);
    }
    table += inputs * INPUT_NUMBERS;
    for (int s = 0; s < steps; s++, table += STEP_NUMBERS) {
        const float16 a = values[table[1]], b = values[table[2]], c = values[table[3]];
        const float p = as_float((uint)table[6]), q = as_float((uint)table[7]);
        float16 value = a;
        switch ((int)table[0]) {
            ELEMENTS(RESULT_OF)
            ELEMENT_FORMS(RESULT_OF)
        }
        values[inputs + s] = value;
    }
    table -= steps * STEP_NUMBERS;
    for (int s = 0; s < steps; s++, table += STEP_NUMBERS) {
        if (table[4] >= 0) {
            write_elements(ys[table[4]], table[5], at, here, values[inputs + s]);
        }
    }
}
