/* SPDX-License-Identifier: Apache-2.0 */
/* Functions with the bits of ops/compute/math_f32.h; sums of rows in the shape of sum_f32.h. */

/* An operand: a buffer and a byte offset in it; pointers are made at the top of a function. */
#define IN(name) __global const uchar *name##_base, ulong name##_at
#define OUT(name) __global uchar *name##_base, ulong name##_at
#define POINTER(type, name) __global const type *name = (__global const type *)(name##_base + name##_at)
#define RESULT(type, name) __global type *name = (__global type *)(name##_base + name##_at)

/* The functions of ops/compute/math_f32.h for one float and for 16 of them: names end in n. */
#define MATH(F, I, U, n)                                                                           \
    /* exp(r) of the rest; *power: n << 23 */                                                      \
    F exp_rest##n(F x, U *power)                                                                   \
    {                                                                                              \
        const F turn = (F)(12582912.0f);                                                           \
        const F shifted = x * 1.44269504f + turn, whole = shifted - turn;                          \
        const F r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f, z = r * r;                \
        const F low = 0.49999994f + 0.16666521f * r, high = 0.04166839f + 0.0083687454f * r;       \
        const F q = low + z * (high + z * 0.0013814539f);                                          \
        *power = as_uint##n(shifted) << 23;                                                        \
        return (z * q + r) + 1.0f;                                                                 \
    }                                                                                              \
    F exp_of##n(F x)                                                                               \
    {                                                                                              \
        U power;                                                                                   \
        x = select(x, (F)(-104.0f), (I)(x < -104.0f));                                             \
        x = select(x, (F)(89.0f), (I)(x > 89.0f));                                                 \
        F rest = exp_rest##n(x, &power);                                                           \
        const U turn = as_uint##n(as_int##n(x) >> 31) & (128u << 23);                              \
        rest = rest * as_float##n(power + (63u << 23) + turn);                                     \
        return rest * as_float##n((191u << 23) - turn);                                            \
    }                                                                                              \
    F exp_of_negative##n(F x)                                                                      \
    {                                                                                              \
        U power;                                                                                   \
        const F rest = exp_rest##n(select(x, (F)(-104.0f), (I)(x < -104.0f)), &power);             \
        return rest * as_float##n(power + (191u << 23)) * 0x1p-64f;                                \
    }                                                                                              \
    F into_one##n(F y)                                                                             \
    {                                                                                              \
        y = select(y, (F)(1.0f), (I)(y > 1.0f));                                                   \
        return select(y, (F)(-1.0f), (I)(y < -1.0f));                                              \
    }                                                                                              \
    F tanh_of##n(F x)                                                                              \
    {                                                                                              \
        x = select(x, (F)(9.1f), (I)(x > 9.1f));                                                   \
        x = select(x, (F)(-9.1f), (I)(x < -9.1f));                                                 \
        const F z = x * x;                                                                         \
        F p = (F)(1.33190331e-08f), q = (F)(7.76200288e-07f);                                      \
        p = p * z + 2.0583451e-05f;                                                                \
        p = p * z + 0.00349403264f;                                                                \
        p = p * z + 0.133797163f;                                                                  \
        p = p * z + 1.0f;                                                                          \
        q = q * z + 0.000328308975f;                                                               \
        q = q * z + 0.0258710658f;                                                                 \
        q = q * z + 0.467130316f;                                                                  \
        q = q * z + 1.0f;                                                                          \
        return into_one##n(x * p / q);                                                             \
    }                                                                                              \
    F erf_of##n(F x)                                                                               \
    {                                                                                              \
        x = select(x, (F)(4.0f), (I)(x > 4.0f));                                                   \
        x = select(x, (F)(-4.0f), (I)(x < -4.0f));                                                 \
        const F z = x * x;                                                                         \
        F p = (F)(2.04197548e-06f), q = (F)(3.80040898e-05f);                                      \
        p = p * z + 0.000284807956f;                                                               \
        p = p * z + 0.00377958138f;                                                                \
        p = p * z + 0.0527902001f;                                                                 \
        p = p * z + 0.190783185f;                                                                  \
        p = p * z + 1.12837915f;                                                                   \
        q = q * z + 0.00116520592f;                                                                \
        q = q * z + 0.0149973817f;                                                                 \
        q = q * z + 0.114257255f;                                                                  \
        q = q * z + 0.502409915f;                                                                  \
        q = q * z + 1.0f;                                                                          \
        return into_one##n(x * p / q);                                                             \
    }                                                                                              \
    F sigmoid_of##n(F x)                                                                           \
    {                                                                                              \
        return 1.0f / (1.0f + exp_of##n(-x));                                                      \
    }                                                                                              \
    F ln_of##n(F x)                                                                                \
    {                                                                                              \
        const I tiny = (I)(x < 0x1p-126f);                                                         \
        const U bits = as_uint##n(select(x, x * 0x1p25f, tiny)) - 0x3f3504f3u;                     \
        const F e = convert_float##n(as_int##n(bits) >> 23) - select((F)(0.0f), (F)(25.0f), tiny); \
        const F r = as_float##n((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f, z = r * r;               \
        F p = (F)(0.070376836292f);                                                                \
        p = p * r - 0.11514610310f;                                                                \
        p = p * r + 0.11676998740f;                                                                \
        p = p * r - 0.12420140846f;                                                                \
        p = p * r + 0.14249322787f;                                                                \
        p = p * r - 0.16668057665f;                                                                \
        p = p * r + 0.20000714765f;                                                                \
        p = p * r - 0.24999993993f;                                                                \
        p = p * r + 0.33333331174f;                                                                \
        F y = (r + (p * (r * z) - 2.12194440e-4f * e - 0.5f * z)) + 0.693359375f * e;              \
        y = select((F)(NAN), y, (I)(x > 0.0f));                                                    \
        y = select(y, (F)(-INFINITY), (I)(x == 0.0f));                                             \
        return select(x, y, (I)(x < INFINITY));                                                    \
    }
MATH(float, int, uint, )
MATH(float16, int16, uint16, 16)

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
