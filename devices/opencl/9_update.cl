/* SPDX-License-Identifier: Apache-2.0 */
/* Updates of parameters, the learning rate, and the norm that gradients are clipped by. */

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

#ifdef WEFT_F64
/* cos(pi p) for p from 0 to 1, as in ops/compute/learning_rate.c */
double cos_pi(double p)
{
    const double x = 3.14159265358979323846 * (p <= 0.5 ? p : 1.0 - p);
    double sum = 1.0;
    for (int k = 24; k > 0; k -= 2) {
        sum = 1.0 - sum * (x * x) / (double)(k * (k - 1));
    }
    return p <= 0.5 ? sum : -sum;
}

uint whole_of(float number)
{
    return number >= 1.0f && number < 4e9f ? (uint)number : 0;
}

__kernel void learning_rate(IN(lr), IN(step), IN(steps), OUT(rate), long schedule, long given_steps,
                            long warmup, float min_lr, float gamma, ITEMS)
{
    POINTER(float, lr);
    POINTER(float, step);
    POINTER(float, steps);
    RESULT(float, rate);
    ITEM(uint, item)
    const uint number = whole_of(step[0]), at = number > 0 ? number - 1 : 0, warm = (uint)warmup;
    const uint count = schedule > 0 && given_steps == 0 ? whole_of(steps[0]) : (uint)given_steps;
    const double full = (double)lr[0], low = (double)min_lr < full ? (double)min_lr : full;
    double now = full;
    if (at < warm) {
        now = full * ((double)at + 1.0) / (double)warm;
    } else {
        const double past = (double)(at - warm), span = count > warm ? (double)(count - warm) : 1.0;
        const double p = past < span ? past / span : 1.0;
        if (schedule == 1) {
            now = low + (full - low) * (1.0 - p);
        } else if (schedule == 2) {
            now = low + (full - low) * 0.5 * (1.0 + cos_pi(p));
        } else if (schedule == 3 && count > 0) {
            now = full * pow_step((double)gamma, (at - warm) / count);
            now = now < low ? low : now;
        }
    }
    rate[item] = schedule > 0 && count == 0 ? NAN : (float)now;
}

/* Sums of squares without rounding: the numbers of ops/exact_sum.h. */
#define LIMBS 24
#define NOT_FINITE 23
#define SUM_SCALE 352

void sum_add(long *limbs, double value)
{
    const ulong bits = as_ulong(value);
    const uint exponent = (uint)(bits >> 52);
    if (exponent < 1023 + 52 - SUM_SCALE) {
        return;
    }
    if (exponent >= 0x7ff || exponent > 1023 + 300) {
        limbs[NOT_FINITE]++;
        return;
    }
    const ulong mantissa = (bits & 0xffffffffffffful) | 0x10000000000000ul;
    const uint lowest = exponent + SUM_SCALE - 1023 - 52, limb = lowest / 32, shift = lowest % 32;
    const ulong low = (mantissa & 0xffffffffu) << shift, high = (mantissa >> 32) << shift;
    limbs[limb] += (long)(low & 0xffffffffu);
    limbs[limb + 1] += (long)((low >> 32) + (high & 0xffffffffu));
    limbs[limb + 2] += (long)(high >> 32);
}

void sum_carry(long *limbs)
{
    for (int i = 0; i + 1 < NOT_FINITE; i++) {
        limbs[i + 1] += limbs[i] >> 32;
        limbs[i] &= 0xffffffff;
    }
}

/* A work item has every items-th unit of 16 elements. Table: elements, is this the first tensor. */
__kernel void square_add(IN(x), OUT(scratch), IN(table), ITEMS)
{
    POINTER(float, x);
    RESULT(long, scratch);
    POINTER(long, table);
    ITEM(uint, part)
    const long count = table[0];
    long limbs[LIMBS];
    for (int i = 0; i < LIMBS; i++) {
        limbs[i] = table[1] ? 0 : scratch[part * LIMBS + i];
    }
    for (long from = part * 16l; from < count; from += items * 16) {
        double s[8];
        for (int i = 0; i < 8; i++) {
            const double a = from + i < count ? (double)x[from + i] : 0.0;
            const double b = from + i + 8 < count ? (double)x[from + i + 8] : 0.0;
            s[i] = a * a + b * b;
        }
        for (int i = 0; i < 4; i++) {
            s[i] = s[i] + s[i + 4];
        }
        sum_add(limbs, (s[0] + s[2]) + (s[1] + s[3]));
    }
    sum_carry(limbs);
    for (int i = 0; i < LIMBS; i++) {
        scratch[part * LIMBS + i] = limbs[i];
    }
}

/* Table: is there a sum so far, number of parts. */
__kernel void square_total(IN(before), IN(scratch), OUT(sum), IN(table), ITEMS)
{
    POINTER(long, before);
    POINTER(long, scratch);
    RESULT(long, sum);
    POINTER(long, table);
    ITEM(uint, item)
    long limbs[LIMBS];
    for (int i = 0; i < LIMBS; i++) {
        limbs[i] = table[0] ? before[i] : 0;
        for (long part = 0; part < table[1]; part++) {
            limbs[i] += scratch[part * LIMBS + i];
        }
    }
    sum_carry(limbs);
    for (int i = 0; i < LIMBS; i++) {
        sum[item + i] = limbs[i];
    }
}

__kernel void clip_scale(IN(sum), OUT(scale), OUT(norm), long divisor, long has_norm, float max_norm,
                         ITEMS)
{
    POINTER(long, sum);
    RESULT(float, scale);
    RESULT(float, norm);
    ITEM(uint, item)
    double value = 0.0;
    long limbs[LIMBS];
    for (int i = 0; i < LIMBS; i++) {
        limbs[i] = sum[i];
    }
    sum_carry(limbs);
    for (int i = 0; i < NOT_FINITE; i++) { /* from the smallest on */
        value += (double)limbs[i] * as_double((ulong)(1023 + 32 * i - SUM_SCALE) << 52);
    }
    value = sum[NOT_FINITE] != 0 ? NAN : sqrt(value) / (double)divisor;
    scale[item] = value <= (double)max_norm ? 1.0f : (float)((double)max_norm / value);
    if (has_norm) {
        norm[item] = (float)value;
    }
}
#endif
