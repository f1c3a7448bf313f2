/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/compute/pool_pairs.h"

#include <string.h>

static inline void max_line(const float *top, const float *bottom, int64_t count, float *y,
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

static inline void max_grad_line(const float *dy, const uint8_t *mask, int64_t count, float *top,
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

static inline void mean_line(const float *top, const float *bottom, int64_t count, float *y)
{
    for (int64_t i = 0; i < count; i++) {
        const float sum = 0.0f + top[2 * i] + top[2 * i + 1] + bottom[2 * i] + bottom[2 * i + 1];
        y[i] = sum * 0.25f;
    }
}

static inline void mean_grad_line(const float *dy, int64_t count, float *top, float *bottom)
{
    for (int64_t i = 0; i < count; i++) {
        const float share = 0.0f + dy[i] * 0.25f;
        top[2 * i] = top[2 * i + 1] = bottom[2 * i] = bottom[2 * i + 1] = share;
    }
}

static void max_portable(const wefti_pool_lines_t *l, const float *x, float *y, uint8_t *mask)
{
    for (int64_t line = 0; line < l->lines; line++) {
        const float *top = x + line * 2 * l->wide;
        max_line(top, top + l->wide, l->count, y + line * l->count,
                 mask == NULL ? NULL : mask + line * l->count);
    }
}

static void max_grad_portable(const wefti_pool_lines_t *l, const float *dy, const uint8_t *mask,
                              float *dx)
{
    for (int64_t line = 0; line < l->lines; line++) {
        float *top = dx + line * 2 * l->wide;
        max_grad_line(dy + line * l->count, mask + line * l->count, l->count, top, top + l->wide);
    }
}

static void mean_portable(const wefti_pool_lines_t *l, const float *x, float *y)
{
    for (int64_t line = 0; line < l->lines; line++) {
        const float *top = x + line * 2 * l->wide;
        mean_line(top, top + l->wide, l->count, y + line * l->count);
    }
}

static void mean_grad_portable(const wefti_pool_lines_t *l, const float *dy, float *dx)
{
    for (int64_t line = 0; line < l->lines; line++) {
        float *top = dx + line * 2 * l->wide;
        mean_grad_line(dy + line * l->count, l->count, top, top + l->wide);
    }
}

static const wefti_pool_pairs_t pool_pairs_portable = {max_portable, max_grad_portable,
                                                       mean_portable, mean_grad_portable};

static const wefti_pool_pairs_t *lines_of(const wefti_pool_t *p)
{
#if defined(__x86_64__)
    return p->isa == WEFT_ISA_AVX512 ? &wefti_pool_pairs_avx512
           : p->isa == WEFT_ISA_AVX2 ? &wefti_pool_pairs_avx2
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

/* The lines of one call: of all planes, where none has a line left over, or of one plane. */
static wefti_pool_lines_t lines_at_once(const wefti_pool_t *p)
{
    const int64_t planes = p->y.in % 2 == 0 ? p->n * p->c : 1;
    return (wefti_pool_lines_t){planes * p->y.out, p->x.out, p->x.in};
}

static int64_t calls_of(const wefti_pool_t *p)
{
    return p->y.in % 2 == 0 ? 1 : p->n * p->c;
}

void wefti_pool_pairs_max(const wefti_pool_t *p, const float *x, float *y, uint8_t *mask)
{
    const wefti_pool_lines_t lines = lines_at_once(p);
    const int64_t step = lines.lines * lines.count;
    for (int64_t i = 0; i < calls_of(p); i++, x += p->y.in * p->x.in, y += step) {
        lines_of(p)->max(&lines, x, y, mask);
        mask = mask == NULL ? NULL : mask + step;
    }
}

/* What no window reaches. */
static void clear_rest(const wefti_pool_t *p, float *dx)
{
    if (p->y.in % 2 != 0 || p->x.in % 2 != 0) {
        memset(dx, 0, (size_t)(p->n * p->c * p->y.in * p->x.in) * sizeof *dx);
    }
}

void wefti_pool_pairs_max_grad(const wefti_pool_t *p, const float *dy, const uint8_t *mask,
                               float *dx)
{
    const wefti_pool_lines_t lines = lines_at_once(p);
    const int64_t step = lines.lines * lines.count;
    clear_rest(p, dx);
    for (int64_t i = 0; i < calls_of(p); i++, dx += p->y.in * p->x.in, dy += step, mask += step) {
        lines_of(p)->max_grad(&lines, dy, mask, dx);
    }
}

void wefti_pool_pairs_mean(const wefti_pool_t *p, const float *x, float *y)
{
    const wefti_pool_lines_t lines = lines_at_once(p);
    for (int64_t i = 0; i < calls_of(p); i++, x += p->y.in * p->x.in) {
        lines_of(p)->mean(&lines, x, y);
        y += lines.lines * lines.count;
    }
}

void wefti_pool_pairs_mean_grad(const wefti_pool_t *p, const float *dy, float *dx)
{
    const wefti_pool_lines_t lines = lines_at_once(p);
    clear_rest(p, dx);
    for (int64_t i = 0; i < calls_of(p); i++, dx += p->y.in * p->x.in) {
        lines_of(p)->mean_grad(&lines, dy, dx);
        dy += lines.lines * lines.count;
    }
}
