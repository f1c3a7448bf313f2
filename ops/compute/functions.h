/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of a number in double precision: the same operations whatever the instruction set, to
 * about 1e-12 of the result; sines and cosines beyond 1e6 are the library's. */
#ifndef WEFT_OPS_COMPUTE_FUNCTIONS_H
#define WEFT_OPS_COMPUTE_FUNCTIONS_H

#include "ops/compute/math_f32.h"

#define WEFTI_PI_HALF 1.5707963267948966

static inline double wefti_log_any(double x)
{
    /* The logarithm takes normal numbers. */
    return x != x || x < 0.0 ? NAN
           : x == 0.0        ? -INFINITY
           : x == INFINITY   ? INFINITY
           : x < 0x1p-1000   ? wefti_log(x * 0x1p54) - 54 * 0.69314718055994531
                             : wefti_log(x);
}

/* log(1 + exp(x)) */
static inline double wefti_softplus(double x)
{
    double small = wefti_exp(x < 0.0 ? x : -x);
    /* By the series where 1 + small has lost digits. */
    double log = small < 1e-5 ? small - 0.5 * small * small : wefti_log_any(1.0 + small);
    return (x > 0.0 ? x : 0.0) + log;
}

/* sin(x), or cos(x) with turn 1: x less its multiple of pi / 2, then a Taylor polynomial. Beyond
 * 1e6, where few elements are, the library's function. */
static inline double wefti_sine(double x, int turn)
{
    if (!(fabs(x) < 1e6)) {
        return turn ? cos(x) : sin(x);
    }
    double n = floor(x * 0.63661977236758134 + 0.5);
    /* pi / 2 in parts of 33 bits, the first two of which have exact products with n. */
    double r = (x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34;
    r -= n * 0x1.3198a2e037073p-69;
    double z = r * r;
    int64_t quarter = ((int64_t)n + turn) & 3;
    double s = 1.0, c = 1.0; /* of z: from the last term of each series */
    for (int k = 19; k > 1; k -= 2) {
        s = 1.0 - s * z / (k * (k - 1));
        c = 1.0 - c * z / ((k - 1) * (k - 2));
    }
    double value = (quarter & 1) != 0 ? c : s * r;
    return quarter >= 2 ? -value : value;
}

static inline double wefti_sin(double x)
{
    return wefti_sine(x, 0);
}

static inline double wefti_cos(double x)
{
    return wefti_sine(x, 1);
}

static inline double wefti_tan(double x)
{
    return wefti_sine(x, 0) / wefti_sine(x, 1);
}

/* Twice half the angle, then the series. */
static inline double wefti_atan(double x)
{
    double a = fabs(x), t = a > 1.0 ? 1.0 / a : a, sum = 0.0;
    t = t / (1.0 + sqrt(1.0 + t * t));
    t = t / (1.0 + sqrt(1.0 + t * t));
    for (int k = 23; k >= 1; k -= 2) {
        sum = 1.0 / k - sum * (t * t);
    }
    double angle = 4.0 * (sum * t);
    return copysign(a > 1.0 ? WEFTI_PI_HALF - angle : angle, x);
}

static inline double wefti_asin(double x)
{
    double root = (1.0 - x) * (1.0 + x);
    return root > 0.0 ? wefti_atan(x / sqrt(root)) : root == 0.0 ? copysign(WEFTI_PI_HALF, x) : NAN;
}

static inline double wefti_acos(double x)
{
    return x > 0.5 ? 2.0 * wefti_asin(sqrt(0.5 * (1.0 - x))) : WEFTI_PI_HALF - wefti_asin(x);
}

static inline double wefti_cosh(double x)
{
    return 0.5 * wefti_exp(x) + 0.5 * wefti_exp(-x);
}

static inline double wefti_sinh(double x)
{
    double z = x * x;
    return fabs(x) < 0.01 ? x * (1.0 + z / 6.0 * (1.0 + z / 20.0 * (1.0 + z / 42.0)))
                          : 0.5 * wefti_exp(x) - 0.5 * wefti_exp(-x);
}

static inline double wefti_acosh(double x)
{
    return x < 1.0   ? NAN
           : x > 1e9 ? wefti_log_any(x) + 0.69314718055994531
                     : wefti_log_any(x + sqrt((x - 1.0) * (x + 1.0)));
}

static inline double wefti_asinh(double x)
{
    double a = fabs(x), z = x * x;
    double y = a < 0.01  ? a * (1.0 - z / 6.0 * (1.0 - z * 9.0 / 20.0 * (1.0 - z * 25.0 / 42.0)))
               : a > 1e9 ? wefti_log_any(a) + 0.69314718055994531
                         : wefti_log_any(a + sqrt(z + 1.0));
    return copysign(y, x);
}

static inline double wefti_atanh(double x)
{
    double z = x * x;
    return fabs(x) < 0.01 ? x * (1.0 + z * (1.0 / 3.0 + z * (1.0 / 5.0 + z / 7.0)))
                          : 0.5 * wefti_log_any((1.0 + x) / (1.0 - x));
}

#endif
