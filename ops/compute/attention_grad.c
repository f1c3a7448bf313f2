/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft::FlashAttentionGrad. Scores are computed again, a block at a time; L gives the shares.
 *
 *   p = exp(scale Q K' + bias - L);  dV += p' dY;  dS = scale p (dY V' - sum(dY Y))
 *   dQ += dS K;  dK += dS' Q
 *
 * A thread has whole heads of K and V: it visits blocks of keys in order, for each the heads of Q
 * that share them, and for each of these the blocks of queries in order. So sums have one order.
 */
#include "ops/compute/attention.h"

#include <math.h>
#include <string.h>

#include "ops/compute/math_f32.h"
#include "ops/compute/own_kernels.h"
#include "ops/compute/sum_f32.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

#define QUERIES WEFTI_ATTENTION_QUERIES
#define KEYS WEFTI_ATTENTION_KEYS

/* Inputs, in the order of the operator. */
enum { DY, DL, Q, K, V, BIAS, Y, L };

/* delta = sum(dY Y) of each row. */
WEFTI_INLINE void dots_body(const float *dy, const float *y, int64_t row, int64_t rows,
                            int64_t width, float *products, float *delta)
{
    for (int64_t r = 0; r < rows; r++, dy += row, y += row) {
        WEFTI_INDEPENDENT
        for (int64_t d = 0; d < width; d++) {
            products[d] = dy[d] * y[d];
        }
        delta[r] = wefti_sum_f32(products, width);
    }
}
WEFTI_CLONES(dots,
             (const float *dy, const float *y, int64_t row, int64_t rows, int64_t width,
              float *products, float *delta),
             (dy, y, row, rows, width, products, delta));

/* L of great size, of biases such as -3e38, has lost the logarithm of the row's sum. */
static inline bool is_coarse(float sum)
{
    return fabsf(sum) >= 1024.0f && sum != -INFINITY;
}

/* totals += exp(score - L) of the keys of a block, in rows with a coarse L. */
WEFTI_INLINE void total_body(const wefti_scores_t *s, const float *sums, float *totals)
{
    float row[KEYS];
    for (int r = 0; r < s->rows; r++) {
        const int64_t seen = is_coarse(sums[r]) ? wefti_scores_seen(s, r) : 0;
        const float sum = sums[r];
        if (seen > 0) {
            wefti_scores_row(s, r, seen, row);
            WEFTI_INDEPENDENT
            for (int64_t j = 0; j < seen; j++) {
                row[j] = wefti_exp_f32(row[j] - sum);
            }
            totals[r] += wefti_sum_f32(row, seen);
        }
    }
}
WEFTI_CLONES(total, (const wefti_scores_t *s, const float *sums, float *totals), (s, sums, totals));

/* Scores become shares, and gradients of shares those of scores. */
WEFTI_INLINE void shares_body(const wefti_scores_t *s, const float *sums, const float *totals,
                              const float *delta, float *ds)
{
    float row[KEYS];
    for (int r = 0; r < s->rows; r++) {
        float *p = s->scores + r * KEYS, *d = ds + r * KEYS;
        const int64_t seen = sums[r] == -INFINITY ? 0 : wefti_scores_seen(s, r);
        const float sum = sums[r], less = delta[r], scale = s->attention->scale;
        const float one = is_coarse(sum) ? 1.0f / totals[r] : 1.0f;
        if (seen > 0) {
            wefti_scores_row(s, r, seen, row);
        }
        WEFTI_INDEPENDENT
        for (int64_t j = 0; j < seen; j++) {
            const float share = wefti_exp_f32(row[j] - sum) * one;
            p[j] = share;
            d[j] = share * (d[j] - less) * scale;
        }
        memset(p + seen, 0, (size_t)(s->cols - seen) * sizeof(*p));
        memset(d + seen, 0, (size_t)(s->cols - seen) * sizeof(*d));
    }
}
WEFTI_CLONES(shares,
             (const wefti_scores_t *s, const float *sums, const float *totals, const float *delta,
              float *ds),
             (s, sums, totals, delta, ds));

typedef struct head {
    const float *q, *dy, *y, *sums;
    float *dq, *delta, *totals;
    wefti_scores_t scores;
} head_t;

/* Tensors of one key head, and scratch. */
typedef struct pair {
    const wefti_attention_t *a;
    const float *k, *v;
    float *dk, *dv, *ds, *keys, *values; /* transposed blocks of K and V */
} pair_t;

/* Scores of the block at (i, j), whose keys are transposed. */
static void score_block(const pair_t *t, head_t *h)
{
    const wefti_attention_t *a = t->a;
    wefti_scores_t *s = &h->scores;
    s->rows = (int)(a->queries - s->i < QUERIES ? a->queries - s->i : QUERIES);
    const wefti_gemm_tile_t qk = {.a = h->q + s->i * a->q.row,
                                  .a_row = a->q.row,
                                  .a_k = 1,
                                  .b = t->keys,
                                  .b_k = KEYS,
                                  .c = s->scores,
                                  .ldc = KEYS};
    wefti_attention_product(a, qk, s->rows, s->cols, a->width);
}

static void run_blocks(const pair_t *t, head_t *h)
{
    const wefti_attention_t *a = t->a;
    wefti_scores_t *s = &h->scores;
    score_block(t, h);
    const float *q = h->q + s->i * a->q.row, *dy = h->dy + s->i * a->y.row;
    const wefti_gemm_tile_t dp = {
        .a = dy, .a_row = a->y.row, .a_k = 1, .b = t->values, .b_k = KEYS, .c = t->ds, .ldc = KEYS};
    wefti_attention_product(a, dp, s->rows, s->cols, a->value_width);
    shares[a->isa](s, h->sums + s->i, h->totals + s->i, h->delta + s->i, t->ds);
    const wefti_gemm_tile_t to_v = {.a = s->scores,
                                    .a_row = 1,
                                    .a_k = KEYS,
                                    .b = dy,
                                    .b_k = a->y.row,
                                    .c = t->dv + s->j * a->v.row,
                                    .ldc = a->v.row,
                                    .add = true};
    const wefti_gemm_tile_t to_k = {.a = t->ds,
                                    .a_row = 1,
                                    .a_k = KEYS,
                                    .b = q,
                                    .b_k = a->q.row,
                                    .c = t->dk + s->j * a->k.row,
                                    .ldc = a->k.row,
                                    .add = true};
    const wefti_gemm_tile_t to_q = {.a = t->ds,
                                    .a_row = KEYS,
                                    .a_k = 1,
                                    .b = t->k + s->j * a->k.row,
                                    .b_k = a->k.row,
                                    .c = h->dq + s->i * a->q.row,
                                    .ldc = a->q.row,
                                    .add = true};
    wefti_attention_product(a, to_v, s->cols, a->value_width, s->rows);
    wefti_attention_product(a, to_k, s->cols, a->width, s->rows);
    wefti_attention_product(a, to_q, s->rows, a->width, s->cols);
}

static void clear(float *x, int64_t row, int64_t rows, int64_t width)
{
    for (int64_t r = 0; r < rows; r++) {
        memset(x + r * row, 0, (size_t)width * sizeof(*x));
    }
}

/* Head n of those that share the keys of unit. */
static head_t find_head(const weft_kernel_call_t *call, int64_t unit, int64_t n, float *scratch)
{
    const wefti_attention_t *a = call->state;
    const int64_t b = unit / a->kv_heads, shared = a->heads / a->kv_heads;
    const int64_t h = unit % a->kv_heads * shared + n;
    const int64_t q = b * a->q.batch + h * a->q.head, y = b * a->y.batch + h * a->y.head;
    head_t head = {.q = (const float *)call->inputs[Q] + q,
                   .dy = (const float *)call->inputs[DY] + y,
                   .y = (const float *)call->inputs[Y] + y,
                   .sums = (const float *)call->inputs[L] + (b * a->heads + h) * a->queries,
                   .dq = (float *)call->outputs[0] + q,
                   .delta = scratch + n * a->queries,
                   .totals = scratch + (shared + n) * a->queries};
    head.scores.attention = a;
    head.scores.bias =
        a->has_bias ? (const float *)call->inputs[BIAS] + b * a->bias[0] + h * a->bias[1] : NULL;
    return head;
}

static void turn_keys(const pair_t *t, int64_t j, int cols)
{
    const wefti_attention_t *a = t->a;
    wefti_transpose_f32(a->isa, t->k + j * a->k.row, a->k.row, cols, a->width, t->keys, KEYS);
}

/* The totals of all rows with a coarse L. */
static void find_totals(const pair_t *t, head_t *h)
{
    const wefti_attention_t *a = t->a;
    bool coarse = false;
    for (int64_t i = 0; i < a->queries; i++) {
        h->totals[i] = 0.0f;
        coarse = coarse || is_coarse(h->sums[i]);
    }
    for (int64_t j = 0; coarse && j < a->keys; j += KEYS) {
        h->scores.j = j;
        h->scores.cols = (int)(a->keys - j < KEYS ? a->keys - j : KEYS);
        turn_keys(t, j, h->scores.cols);
        for (h->scores.i = 0; h->scores.i < a->queries; h->scores.i += QUERIES) {
            score_block(t, h);
            total[a->isa](&h->scores, h->sums + h->scores.i, h->totals + h->scores.i);
        }
    }
}

static void run_unit(const weft_kernel_call_t *call, int64_t unit, float *scratch)
{
    const wefti_attention_t *a = call->state;
    const int64_t b = unit / a->kv_heads, kv = unit % a->kv_heads, shared = a->heads / a->kv_heads;
    const int64_t k = b * a->k.batch + kv * a->k.head, v = b * a->v.batch + kv * a->v.head;
    float *scores = scratch, *ds = scores + QUERIES * KEYS, *keys = ds + QUERIES * KEYS;
    const pair_t t = {.a = a,
                      .k = (const float *)call->inputs[K] + k,
                      .v = (const float *)call->inputs[V] + v,
                      .dk = (float *)call->outputs[1] + k,
                      .dv = (float *)call->outputs[2] + v,
                      .ds = ds,
                      .keys = keys,
                      .values = keys + a->width * KEYS};
    float *delta = t.values + a->value_width * KEYS;
    clear(t.dk, a->k.row, a->keys, a->width);
    clear(t.dv, a->v.row, a->keys, a->value_width);
    for (int64_t n = 0; n < shared; n++) {
        head_t h = find_head(call, unit, n, delta);
        h.scores.scores = scores;
        clear(h.dq, a->q.row, a->queries, a->width);
        dots[a->isa](h.dy, h.y, a->y.row, a->queries, a->value_width, ds, h.delta);
        find_totals(&t, &h);
    }
    for (int64_t j = 0; j < a->keys; j += KEYS) {
        const int cols = (int)(a->keys - j < KEYS ? a->keys - j : KEYS);
        turn_keys(&t, j, cols);
        wefti_transpose_f32(a->isa, t.v + j * a->v.row, a->v.row, cols, a->value_width, t.values,
                            KEYS);
        for (int64_t n = 0; n < shared; n++) {
            head_t h = find_head(call, unit, n, delta);
            h.scores.scores = scores;
            h.scores.j = j;
            h.scores.cols = cols;
            /* The first query that sees key j. */
            const int64_t from = a->causal && j > a->past ? (j - a->past) / QUERIES * QUERIES : 0;
            for (h.scores.i = from; h.scores.i < a->queries; h.scores.i += QUERIES) {
                run_blocks(&t, &h);
            }
        }
    }
}

static void run_range(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    const wefti_attention_t *a = call->state;
    float *scratch = (float *)call->scratch + (size_t)range.part * a->thread_elems;
    for (int64_t unit = range.from; unit < range.to; unit++) {
        run_unit(call, unit, scratch);
    }
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const wefti_attention_t *a = call->state;
    wefti_parallel_for(a->threads, a->batch * a->kv_heads, 1, run_range, call);
    return WEFT_OK;
}

/* dY is like Y, and gradients are like their inputs. L has an element per query. */
static weft_status_t check_shapes(const weft_node_desc_t *node, const wefti_attention_t *a)
{
    const weft_tensor_desc_t *dy = wefti_infer_input(node, DY), *sums = wefti_infer_input(node, L);
    const weft_tensor_desc_t *y = wefti_infer_input(node, Y);
    bool good = dy != NULL && sums != NULL && wefti_same_shape(dy, y) &&
                dy->dtype == WEFT_DTYPE_F32 && sums->dtype == WEFT_DTYPE_F32 &&
                weft_tensor_elem_count(sums) == a->batch * a->heads * a->queries &&
                wefti_infer_input(node, DL) == NULL;
    for (uint32_t i = 0; i < 3 && good; i++) {
        const weft_tensor_desc_t *dx = wefti_node_output(node, i);
        good =
            dx != NULL && dx->dtype == WEFT_DTYPE_F32 && wefti_same_shape(dx, &node->inputs[Q + i]);
    }
    const weft_tensor_desc_t *dbias = wefti_node_output(node, 3);
    return good && (dbias == NULL || dbias->dtype == WEFT_DTYPE_NONE)
               ? WEFT_OK
               : wefti_error(WEFT_ERR_UNSUPPORTED,
                             "gradients of Q, K and V are needed, and no others, like these");
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    wefti_attention_t made;
    WEFT_RETURN_IF_ERROR(wefti_attention_describe(node, env, Q, wefti_infer_input(node, Y), &made));
    WEFT_RETURN_IF_ERROR(check_shapes(node, &made));
    const int64_t products = made.value_width > QUERIES * KEYS ? made.value_width : QUERIES * KEYS;
    made.thread_elems =
        (size_t)(QUERIES * KEYS + products + (made.width + made.value_width) * KEYS +
                 2 * (made.heads / made.kv_heads) * made.queries);
    wefti_attention_t *state = wefti_state_alloc(sizeof(*state));
    WEFT_RETURN_IF_NO_MEMORY(state);
    *state = made;
    *out_state = state;
    *out_scratch_bytes = made.threads * made.thread_elems * sizeof(float);
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_flash_attention_grad, "weft", "FlashAttentionGrad", prepare, run);
