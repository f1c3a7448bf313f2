/* SPDX-License-Identifier: Apache-2.0 */
/* weft::FlashAttention; attention.h has the algorithm. */
#include "ops/compute/attention.h"

#include <string.h>

#include "ops/compute/own_kernels.h"
#include "ops/compute/softmax_row.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

#define QUERIES WEFTI_ATTENTION_QUERIES
#define KEYS WEFTI_ATTENTION_KEYS

static weft_status_t need_plain(const weft_tensor_desc_t *x, const char *what)
{
    return x != NULL && x->dtype == WEFT_DTYPE_F32 && x->rank == 4 && x->layout == WEFT_LAYOUT_PLAIN
               ? WEFT_OK
               : wefti_error(WEFT_ERR_UNSUPPORTED, "%s must be f32 with 4 dimensions, plain layout",
                             what);
}

/* [batch, heads, rows, columns], or with tokens first [batch, rows, heads, columns]. */
static wefti_heads_t strides_of(const weft_tensor_desc_t *x, bool tokens_first, int64_t *out_sizes)
{
    const int64_t *d = x->dims;
    out_sizes[0] = d[0];
    out_sizes[1] = tokens_first ? d[2] : d[1];
    out_sizes[2] = tokens_first ? d[1] : d[2];
    out_sizes[3] = d[3];
    return tokens_first ? (wefti_heads_t){d[1] * d[2] * d[3], d[3], d[2] * d[3]}
                        : (wefti_heads_t){d[1] * d[2] * d[3], d[2] * d[3], d[3]};
}

weft_status_t wefti_attention_describe(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                       uint32_t first, const weft_tensor_desc_t *y,
                                       wefti_attention_t *out)
{
    const weft_tensor_desc_t *q = wefti_infer_input(node, first);
    const weft_tensor_desc_t *k = wefti_infer_input(node, first + 1);
    const weft_tensor_desc_t *v = wefti_infer_input(node, first + 2);
    const weft_tensor_desc_t *bias = wefti_infer_input(node, first + 3);
    const int64_t order = weft_node_attr_int(node, "tokens_first", 0);
    int64_t sq[4], sk[4], sv[4], sy[4];
    WEFT_RETURN_IF_ERROR(need_plain(q, "Q"));
    WEFT_RETURN_IF_ERROR(need_plain(k, "K"));
    WEFT_RETURN_IF_ERROR(need_plain(v, "V"));
    WEFT_RETURN_IF_ERROR(need_plain(y, "Y"));
    *out = (wefti_attention_t){.q = strides_of(q, (order & 1) != 0, sq),
                               .k = strides_of(k, (order & 2) != 0, sk),
                               .v = strides_of(v, (order & 4) != 0, sv),
                               .y = strides_of(y, (order & 8) != 0, sy),
                               .causal = weft_node_attr_int(node, "causal", 0) != 0,
                               .past = weft_node_attr_int(node, "past", 0),
                               .scale = weft_node_attr_float(node, "scale", 1.0f),
                               .isa = wefti_kernel_isa(env),
                               .threads = wefti_kernel_threads(env)};
    if (sk[0] != sq[0] || sv[0] != sq[0] || sy[0] != sq[0] || sv[1] != sk[1] || sk[1] == 0 ||
        sq[1] % sk[1] != 0 || sy[1] != sq[1] || sv[2] != sk[2] || sy[2] != sq[2] ||
        sk[3] != sq[3] || sy[3] != sv[3] || sq[3] == 0 || sv[3] == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: Q, K, V and Y differ in shape",
                           node->op);
    }
    out->batch = sq[0];
    out->heads = sq[1];
    out->kv_heads = sk[1];
    out->queries = sq[2];
    out->keys = sk[2];
    out->width = sq[3];
    out->value_width = sv[3];
    /* Beyond these values no key is seen, or all keys are: sums below cannot overflow. */
    out->past = out->past < -sq[2] ? -sq[2] : out->past > sk[2] ? sk[2] : out->past;
    if (bias != NULL) {
        const weft_tensor_desc_t scores = {.dtype = WEFT_DTYPE_F32,
                                           .rank = 4,
                                           .dims = {sq[0], sq[1], sq[2], sk[2]},
                                           .layout = WEFT_LAYOUT_PLAIN};
        WEFT_RETURN_IF_ERROR(wefti_need_known(bias, "input", first + 3));
        WEFT_RETURN_IF_ERROR(wefti_need_f32(node, first + 3));
        WEFT_RETURN_IF_ERROR(wefti_broadcast_strides(bias, &scores, "the bias", out->bias));
        out->has_bias = true;
    }
    return WEFT_OK;
}

void wefti_attention_product(const wefti_attention_t *attention, wefti_gemm_tile_t tile, int rows,
                             int64_t cols, int64_t depth)
{
    const wefti_gemm_kernel_t *kernel = wefti_gemm_kernel(attention->isa);
    for (int64_t k = 0; k < depth; k += WEFTI_GEMM_K_BLOCK) {
        tile.k_count = depth - k < WEFTI_GEMM_K_BLOCK ? depth - k : WEFTI_GEMM_K_BLOCK;
        wefti_gemm_tiles(kernel, &tile, rows, cols);
        tile.a += tile.k_count * tile.a_k;
        tile.b += tile.k_count * tile.b_k;
        tile.add = true;
    }
}

/* Rows of a block of queries, in scratch. */
typedef struct rows {
    float *acc, *total, *top;
    int64_t width;
} rows_t;

/* Scores become shares of the keys so far; what is older shrinks. */
WEFTI_INLINE void soften_body(const wefti_scores_t *s, const rows_t *rows)
{
    float row[KEYS];
    for (int r = 0; r < s->rows; r++) {
        float *p = s->scores + r * KEYS, *acc = rows->acc + r * rows->width;
        const int64_t seen = wefti_scores_seen(s, r);
        float top = rows->top[r];
        if (seen > 0) {
            wefti_scores_row(s, r, seen, row);
            float most = wefti_max_f32(row, seen);
            most = most == -INFINITY ? wefti_sum_f32(row, seen) : most; /* NaN where a score is */
            top = most <= top ? top : most;
        }
        if (seen == 0 || top == -INFINITY) {
            memset(p, 0, (size_t)s->cols * sizeof(*p));
            continue;
        }
        const float left = wefti_exp_of_negative_f32(rows->top[r] - top);
        const float sum = wefti_exps_f32(row, top, p, seen, NULL);
        memset(p + seen, 0, (size_t)(s->cols - seen) * sizeof(*p));
        rows->total[r] = rows->total[r] * left + sum;
        WEFTI_INDEPENDENT
        for (int64_t d = 0; d < rows->width; d++) {
            acc[d] *= left;
        }
        rows->top[r] = top;
    }
}
WEFTI_CLONES(soften, (const wefti_scores_t *s, const rows_t *rows), (s, rows));

/* One block of queries of a head. */
static void run_block(const weft_kernel_call_t *call, int64_t unit, float *scratch)
{
    const wefti_attention_t *a = call->state;
    const int64_t blocks = (a->queries + QUERIES - 1) / QUERIES;
    const int64_t h = unit / blocks % a->heads, b = unit / blocks / a->heads;
    const int64_t kv = h / (a->heads / a->kv_heads), i = unit % blocks * QUERIES;
    const int64_t left = a->queries - i, rows = left < QUERIES ? left : QUERIES;
    const float *q = (const float *)call->inputs[0] + b * a->q.batch + h * a->q.head + i * a->q.row;
    const float *k = (const float *)call->inputs[1] + b * a->k.batch + kv * a->k.head;
    const float *v = (const float *)call->inputs[2] + b * a->v.batch + kv * a->v.head;
    float *y = (float *)call->outputs[0] + b * a->y.batch + h * a->y.head + i * a->y.row;
    float *scores = scratch, *panel = scores + QUERIES * KEYS;
    const rows_t state = {.acc = panel + a->width * KEYS,
                          .total = panel + a->width * KEYS + QUERIES * a->value_width,
                          .top = panel + a->width * KEYS + QUERIES * (a->value_width + 1),
                          .width = a->value_width};
    wefti_scores_t s = {.attention = a, .scores = scores, .i = i, .rows = (int)rows};
    s.bias = a->has_bias ? (const float *)call->inputs[3] + b * a->bias[0] + h * a->bias[1] : NULL;
    memset(state.acc, 0, (size_t)(rows * a->value_width) * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
        state.total[r] = 0.0f;
        state.top[r] = -INFINITY;
    }
    const int64_t last = a->causal && i + rows + a->past < a->keys ? i + rows + a->past : a->keys;
    for (s.j = 0; s.j < last; s.j += KEYS) {
        s.cols = (int)(a->keys - s.j < KEYS ? a->keys - s.j : KEYS);
        wefti_transpose_f32(a->isa, k + s.j * a->k.row, a->k.row, s.cols, a->width, panel, KEYS);
        const wefti_gemm_tile_t qk = {
            .a = q, .a_row = a->q.row, .a_k = 1, .b = panel, .b_k = KEYS, .c = scores, .ldc = KEYS};
        wefti_attention_product(a, qk, s.rows, s.cols, a->width);
        soften[a->isa](&s, &state);
        const wefti_gemm_tile_t pv = {.a = scores,
                                      .a_row = KEYS,
                                      .a_k = 1,
                                      .b = v + s.j * a->v.row,
                                      .b_k = a->v.row,
                                      .c = state.acc,
                                      .ldc = a->value_width,
                                      .add = true};
        wefti_attention_product(a, pv, s.rows, a->value_width, s.cols);
    }
    float *sums = a->has_sums ? call->outputs[1] : NULL;
    for (int64_t r = 0; r < rows; r++) {
        const float total = state.total[r], share = total == 0.0f ? 0.0f : 1.0f / total;
        for (int64_t d = 0; d < a->value_width; d++) {
            y[r * a->y.row + d] = state.acc[r * a->value_width + d] * share;
        }
        if (sums != NULL) {
            const float log = total >= 1.0f ? (float)wefti_log((double)total) : total;
            sums[(b * a->heads + h) * a->queries + i + r] =
                total == 0.0f ? -INFINITY : state.top[r] + log;
        }
    }
}

static void run_range(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = job;
    const wefti_attention_t *a = call->state;
    float *scratch = (float *)call->scratch + (size_t)range.part * a->thread_elems;
    for (int64_t unit = range.from; unit < range.to; unit++) {
        run_block(call, unit, scratch);
    }
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    const wefti_attention_t *a = call->state;
    const int64_t blocks = (a->queries + QUERIES - 1) / QUERIES;
    wefti_parallel_for(a->threads, a->batch * a->heads * blocks, 1, run_range, call);
    return WEFT_OK;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    wefti_attention_t made;
    const weft_tensor_desc_t *sums = wefti_node_output(node, 1);
    WEFT_RETURN_IF_ERROR(wefti_attention_describe(node, env, 0, wefti_node_output(node, 0), &made));
    made.has_sums = sums != NULL && sums->dtype != WEFT_DTYPE_NONE;
    if (made.has_sums && (sums->dtype != WEFT_DTYPE_F32 ||
                          weft_tensor_elem_count(sums) != made.batch * made.heads * made.queries)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "output 1 has another shape");
    }
    made.thread_elems =
        (size_t)(QUERIES * KEYS + made.width * KEYS + QUERIES * (made.value_width + 2));
    wefti_attention_t *state = wefti_state_alloc(sizeof(*state));
    WEFT_RETURN_IF_NO_MEMORY(state);
    *state = made;
    *out_state = state;
    *out_scratch_bytes = made.threads * made.thread_elems * sizeof(float);
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_flash_attention, "weft", "FlashAttention", prepare, run);
