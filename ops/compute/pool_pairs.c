/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/compute/pool_pairs.h"

#include <string.h>

static void max_portable(const float *top, const float *bottom, int64_t count, float *y,
                         uint8_t *mask)
{
    for (int64_t i = 0; i < count; i++) {
        const float taps[4] = {top[2 * i], top[2 * i + 1], bottom[2 * i], bottom[2 * i + 1]};
        float best = taps[0];
        int where = 0;
        for (int t = 1; t < 4; t++) {
            const int wins = (taps[t] > best) | (taps[t] != taps[t]);
            best = wins ? taps[t] : best;
            where = wins ? t : where;
        }
        y[i] = best;
        if (mask != NULL) {
            mask[i] = (uint8_t)where;
        }
    }
}

static void max_grad_portable(const float *dy, const uint8_t *mask, int64_t count, float *top,
                              float *bottom)
{
    for (int64_t i = 0; i < count; i++) {
        const float d = 0.0f + dy[i]; /* a sum of one, so never -0 */
        const int where = mask[i];
        top[2 * i] = where == 0 ? d : 0.0f;
        top[2 * i + 1] = where == 1 ? d : 0.0f;
        bottom[2 * i] = where == 2 ? d : 0.0f;
        bottom[2 * i + 1] = where == 3 ? d : 0.0f;
    }
}

static void mean_portable(const float *top, const float *bottom, int64_t count, float *y)
{
    for (int64_t i = 0; i < count; i++) {
        const float sum = 0.0f + top[2 * i] + top[2 * i + 1] + bottom[2 * i] + bottom[2 * i + 1];
        y[i] = sum * 0.25f;
    }
}

static void mean_grad_portable(const float *dy, int64_t count, float *top, float *bottom)
{
    for (int64_t i = 0; i < count; i++) {
        const float share = 0.0f + dy[i] * 0.25f;
        top[2 * i] = top[2 * i + 1] = bottom[2 * i] = bottom[2 * i + 1] = share;
    }
}

static const wefti_pool_pairs_t pool_pairs_portable = {max_portable, max_grad_portable,
                                                       mean_portable, mean_grad_portable};

static const wefti_pool_pairs_t *lines_of(const wefti_pool_t *p)
{
#if defined(__x86_64__)
    return p->isa == 2   ? &wefti_pool_pairs_avx512
           : p->isa == 1 ? &wefti_pool_pairs_avx2
                         : &pool_pairs_portable;
#else
    (void)p;
    return &pool_pairs_portable;
#endif
}

static bool is_pairs(const wefti_pool_dim_t *d)
{
    /* One element may be left over, that no window reaches. */
    return d->kernel == 2 && d->stride == 2 && d->dilation == 1 && d->pad == 0 &&
           d->out == d->in / 2;
}

bool wefti_pool_is_pairs(const wefti_pool_t *p)
{
    return !p->channels_last && is_pairs(&p->y) && is_pairs(&p->x);
}

void wefti_pool_pairs_max(const wefti_pool_t *p, const float *x, float *y, uint8_t *mask)
{
    const wefti_pool_pairs_t *lines = lines_of(p);
    for (int64_t plane = 0; plane < p->n * p->c; plane++, x += p->y.in * p->x.in) {
        for (int64_t oy = 0; oy < p->y.out; oy++, y += p->x.out) {
            const float *top = x + 2 * oy * p->x.in;
            lines->max(top, top + p->x.in, p->x.out, y, mask);
            mask = mask == NULL ? NULL : mask + p->x.out;
        }
    }
}

void wefti_pool_pairs_max_grad(const wefti_pool_t *p, const float *dy, const uint8_t *mask,
                               float *dx)
{
    const wefti_pool_pairs_t *lines = lines_of(p);
    const int64_t size = p->y.in * p->x.in;
    if (p->y.in % 2 != 0 || p->x.in % 2 != 0) {
        memset(dx, 0, (size_t)(p->n * p->c * size) * sizeof *dx);
    }
    for (int64_t plane = 0; plane < p->n * p->c; plane++, dx += size) {
        for (int64_t oy = 0; oy < p->y.out; oy++, dy += p->x.out, mask += p->x.out) {
            float *top = dx + 2 * oy * p->x.in;
            lines->max_grad(dy, mask, p->x.out, top, top + p->x.in);
        }
    }
}

void wefti_pool_pairs_mean(const wefti_pool_t *p, const float *x, float *y)
{
    const wefti_pool_pairs_t *lines = lines_of(p);
    for (int64_t plane = 0; plane < p->n * p->c; plane++, x += p->y.in * p->x.in) {
        for (int64_t oy = 0; oy < p->y.out; oy++, y += p->x.out) {
            const float *top = x + 2 * oy * p->x.in;
            lines->mean(top, top + p->x.in, p->x.out, y);
        }
    }
}

void wefti_pool_pairs_mean_grad(const wefti_pool_t *p, const float *dy, float *dx)
{
    const wefti_pool_pairs_t *lines = lines_of(p);
    const int64_t size = p->y.in * p->x.in;
    if (p->y.in % 2 != 0 || p->x.in % 2 != 0) {
        memset(dx, 0, (size_t)(p->n * p->c * size) * sizeof *dx);
    }
    for (int64_t plane = 0; plane < p->n * p->c; plane++, dx += size) {
        for (int64_t oy = 0; oy < p->y.out; oy++, dy += p->x.out) {
            float *top = dx + 2 * oy * p->x.in;
            lines->mean_grad(dy, p->x.out, top, top + p->x.in);
        }
    }
}
