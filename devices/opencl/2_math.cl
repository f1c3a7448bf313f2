/* SPDX-License-Identifier: Apache-2.0 */
/* exp and log with the bits of ops/compute/math_f32.h; sums of rows in the shape of sum_f32.h. */

/* An operand: a buffer and a byte offset in it; pointers are made at the top of a function. */
#define IN(name) __global const uchar *name##_base, ulong name##_at
#define OUT(name) __global uchar *name##_base, ulong name##_at
#define POINTER(type, name) __global const type *name = (__global const type *)(name##_base + name##_at)
#define RESULT(type, name) __global type *name = (__global type *)(name##_base + name##_at)

/* exp(r) of the rest; *power: n << 23 */
float exp_rest(float x, uint *power)
{
    const float turn = 12582912.0f;
    float shifted = x * 1.44269504f + turn, n = shifted - turn;
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f, z = r * r;
    float low = 0.49999994f + 0.16666521f * r, high = 0.04166839f + 0.0083687454f * r;
    float q = low + z * (high + z * 0.0013814539f);
    *power = as_uint(shifted) << 23;
    return (z * q + r) + 1.0f;
}

float exp_of(float x)
{
    uint power;
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    float rest = exp_rest(x, &power);
    uint turn = (uint)(as_int(x) >> 31) & (128u << 23);
    rest = rest * as_float(power + (63u << 23) + turn);
    return rest * as_float((191u << 23) - turn);
}

float exp_of_negative(float x)
{
    uint power;
    float rest = exp_rest(x < -104.0f ? -104.0f : x, &power);
    return rest * as_float(power + (191u << 23)) * 0x1p-64f;
}

float sum_of_lanes(const float *acc)
{
    float s[8];
    for (int j = 0; j < 8; j++) {
        s[j] = acc[j] + acc[j + 8];
    }
    for (int j = 0; j < 4; j++) {
        s[j] += s[j + 4];
    }
    return (s[0] + s[2]) + (s[1] + s[3]);
}

#ifdef WEFT_F64
double log_of(double x)
{
    ulong bits = as_ulong(x), exponent = bits >> 52;
    bits &= 0x000ffffffffffffful;
    const ulong halve = bits > 0x6a09e667f3bcdul ? 1ul : 0ul;
    bits |= (1023ul - halve) << 52;
    exponent += halve;
    const double m = as_double(bits);
    double s = (m - 1.0) / (m + 1.0), z = s * s, sum = 0.0;
    sum = sum * z + 1.0 / 15.0;
    sum = sum * z + 1.0 / 13.0;
    sum = sum * z + 1.0 / 11.0;
    sum = sum * z + 1.0 / 9.0;
    sum = sum * z + 1.0 / 7.0;
    sum = sum * z + 1.0 / 5.0;
    sum = sum * z + 1.0 / 3.0;
    sum = sum * z + 1.0;
    const double e = as_double(0x4330000000000000ul | exponent) - (0x1p52 + 1023.0);
    return e * 0.69314718055994531 + 2.0 * s * sum;
}

/* base^exponent by products only */
double pow_step(double base, uint exponent)
{
    double result = 1.0;
    for (; exponent != 0; exponent >>= 1) {
        result = (exponent & 1) != 0 ? result * base : result;
        base *= base;
    }
    return result;
}
#endif
