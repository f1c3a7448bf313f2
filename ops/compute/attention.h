/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by blocks of queries and keys, after Dao et al., FlashAttention (2022): the scores of a
 * block are in the cache, those of all queries and keys are never in memory.
 *
 *   for each block of 128 queries                       acc, total and top of each row
 *       for each block of 128 keys that they see
 *           s = scale Q K' + bias;  t = max(top, max s)
 *           p = exp(s - t);  total = total exp(top - t) + sum p;  acc = acc exp(top - t) + p V
 *       Y = acc / total;  L = top + log total
 *
 * Blocks begin at multiples of their size and are visited in order; products are those of
 * gemm_f32.h, sums those of sum_f32.h. So bits depend on no thread and no instruction set. A query
 * that sees no key gets Y = 0 and L = -infinity.
 */
#ifndef WEFT_OPS_COMPUTE_ATTENTION_H
#define WEFT_OPS_COMPUTE_ATTENTION_H

#include "ops/compute/gemm_f32.h"
#include "ops/compute/support.h"

#define WEFTI_ATTENTION_QUERIES 128
#define WEFTI_ATTENTION_KEYS 128

/* Elements from one batch, head and row to the next; columns are adjacent. */
typedef struct wefti_heads {
    int64_t batch, head, row;
} wefti_heads_t;

typedef struct wefti_attention {
    int64_t batch, heads, kv_heads, queries, keys, width, value_width;
    wefti_heads_t q, k, v, y;
    int64_t bias[4];                 /* strides */
    bool has_bias, has_sums, causal; /* has_sums: of the forward operator */
    int64_t past;                    /* causal: query i sees keys up to i + past */
    float scale;
    weft_isa_t isa;
    uint32_t threads;
    size_t thread_elems; /* of scratch */
} wefti_attention_t;

/* Reads inputs first to first + 3 of a node (Q, K, V, bias), and attributes. y: of the output. */
weft_status_t wefti_attention_describe(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                       uint32_t first, const weft_tensor_desc_t *y,
                                       wefti_attention_t *out);

/* The scores of rows x cols queries and keys from (i, j) on, of products: scale, bias and order of
 * causal attention applied. Unseen ones are -infinity. bias: of this head, or NULL. */
typedef struct wefti_scores {
    const wefti_attention_t *attention;
    float *scores; /* [rows, WEFTI_ATTENTION_KEYS] */
    const float *bias;
    int64_t i, j;
    int rows, cols;
} wefti_scores_t;

/* Keys of the block that query i + row sees. */
static inline int64_t wefti_scores_seen(const wefti_scores_t *s, int64_t row)
{
    const int64_t seen = s->i + row + s->attention->past + 1 - s->j;
    return !s->attention->causal || seen > s->cols ? s->cols : seen < 0 ? 0 : seen;
}

/* out[j] = the score of a seen key. */
WEFTI_INLINE void wefti_scores_row(const wefti_scores_t *s, int64_t row, int64_t seen, float *out)
{
    const float *from = s->scores + row * WEFTI_ATTENTION_KEYS;
    const float scale = s->attention->scale;
    const int64_t *strides = s->attention->bias;
    if (s->bias == NULL) {
        WEFTI_INDEPENDENT
        for (int64_t j = 0; j < seen; j++) {
            out[j] = from[j] * scale;
        }
        return;
    }
    const float *bias = s->bias + (s->i + row) * strides[2] + s->j * strides[3];
    if (strides[3] == 1) {
        WEFTI_INDEPENDENT
        for (int64_t j = 0; j < seen; j++) {
            out[j] = from[j] * scale + bias[j];
        }
    } else {
        const float same = bias[0];
        WEFTI_INDEPENDENT
        for (int64_t j = 0; j < seen; j++) {
            out[j] = from[j] * scale + same;
        }
    }
}

/* c[rows, cols] (+)= a b, where a has depth columns at strides a_row and a_k. */
void wefti_attention_product(const wefti_attention_t *attention, wefti_gemm_tile_t tile, int rows,
                             int64_t cols, int64_t depth);

#endif
