/* SPDX-License-Identifier: Apache-2.0 */
/* weft::FlashAttention and its gradient against attention in double precision. */
#include "tests/ops/support_kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct row {
    int64_t batch, heads, kv_heads, queries, keys, width, value_width;
    int64_t tokens_first, past;
    bool causal;
    int bias; /* 0: none, 1: [queries, keys], 2: [batch, 1, 1, keys], 3: all of it, 4: hides all; 5: but finite */
} row_t;

static const row_t rows[] = {
    {.batch = 2, .heads = 3, .kv_heads = 3, .queries = 5, .keys = 7, .width = 8, .value_width = 4},
    {1, 2, 2, 130, 130, 16, 16, 15, 0, true, 0},
    {2, 4, 2, 70, 200, 8, 24, 5, 130, true, 1},
    {2, 2, 1, 65, 129, 16, 8, 10, 0, false, 2},
    {1, 2, 2, 3, 300, 300, 5, 0, 297, true, 3},
    {1, 1, 1, 9, 140, 4, 4, 0, -4, true, 0},      /* the first queries see no key */
    {1, 1, 1, 3, 4, 4, 4, 0, INT64_MAX, true, 0}, /* hostile: as if all keys were seen, or none */
    {1, 1, 1, 3, 4, 4, 4, 0, INT64_MIN, true, 0},
    {2, 1, 1, 6, 6, 4, 4, 8, 0, false, 4},
    {2, 2, 1, 130, 131, 4, 4, 8, 0, true, 5},
    {1, 1, 1, 1, 1, 1, 1, 0, 0, false, 0},
};

/* Offset of element (b, h, s, d). */
static int64_t at(const weft_tensor_desc_t *t, bool first, int64_t b, int64_t h, int64_t s,
                  int64_t d)
{
    const int64_t *n = t->dims;
    return first ? ((b * n[1] + s) * n[2] + h) * n[3] + d : ((b * n[1] + h) * n[2] + s) * n[3] + d;
}

static float *add_tensor(op_case_t *c, const row_t *r, int bit, int64_t heads, int64_t tokens,
                         int64_t width)
{
    const bool first = (r->tokens_first >> bit & 1) != 0;
    const int64_t *dims =
        first ? DIMS(r->batch, tokens, heads, width) : DIMS(r->batch, heads, tokens, width);
    float *x = case_input(c, dims);
    random_fill(x, r->batch * heads * tokens * width, -1.0f, 1.0f);
    return x;
}

static void add_inputs(op_case_t *c, const row_t *r)
{
    add_tensor(c, r, 0, r->heads, r->queries, r->width);
    add_tensor(c, r, 1, r->kv_heads, r->keys, r->width);
    add_tensor(c, r, 2, r->kv_heads, r->keys, r->value_width);
    const int64_t *shapes[] = {NULL,
                               DIMS(r->queries, r->keys),
                               DIMS(r->batch, 1, 1, r->keys),
                               DIMS(r->batch, r->heads, r->queries, r->keys),
                               DIMS(r->batch, 1, r->queries, 1),
                               DIMS(r->batch, 1, r->queries, 1)};
    if (r->bias == 0) {
        case_absent_input(c);
        return;
    }
    const uint32_t index = c->input_count;
    float *bias = case_input(c, shapes[r->bias]);
    const int64_t count = case_count(&c->inputs[index]);
    random_fill(bias, count, -2.0f, 2.0f);
    for (int64_t i = 0; i < count; i += r->bias >= 4 ? 2 : 5) { /* unseen ones */
        bias[i] = r->bias == 5 ? -3e38f : -INFINITY;
    }
}

static void add_attrs(op_case_t *c, const row_t *r)
{
    case_float(c, "scale", 0.3f);
    case_int(c, "causal", r->causal);
    case_int(c, "past", r->past);
    case_int(c, "tokens_first", r->tokens_first);
}

/* Shares of the keys for a query; returns the logarithm of the sum. */
static double shares(const op_case_t *c, uint32_t q, const row_t *r, int64_t b, int64_t h,
                     int64_t i, double *p)
{
    const int64_t kv = h / (r->heads / r->kv_heads);
    const weft_tensor_desc_t *x = c->inputs + q;
    const float *bias = r->bias == 0 ? NULL : c->in[q + 3];
    double top = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j < r->keys; j++) {
        double s = 0.0;
        for (int64_t d = 0; d < r->width; d++) {
            s += (double)((float *)c->in[q])[at(x, r->tokens_first & 1, b, h, i, d)] *
                 (double)((float *)c->in[q + 1])[at(x + 1, r->tokens_first & 2, b, kv, j, d)];
        }
        const int64_t place = r->bias == 1   ? i * r->keys + j
                              : r->bias == 2 ? b * r->keys + j
                              : r->bias == 3 ? ((b * r->heads + h) * r->queries + i) * r->keys + j
                                             : b * r->queries + i;
        p[j] = s * (double)0.3f + (bias == NULL ? 0.0 : (double)bias[place]);
        p[j] = r->causal && j - i > r->past ? -INFINITY : p[j];
        top = p[j] > top ? p[j] : top;
    }
    for (int64_t j = 0; j < r->keys; j++) {
        p[j] = top == -INFINITY ? 0.0 : exp(p[j] - top);
        sum += p[j];
    }
    for (int64_t j = 0; j < r->keys; j++) {
        p[j] = sum > 0.0 ? p[j] / sum : 0.0;
    }
    return sum > 0.0 ? top + log(sum) : -INFINITY;
}

static void check_forward(const op_case_t *c, const row_t *r)
{
    double *p = malloc((size_t)r->keys * sizeof(*p));
    for (int64_t b = 0; b < r->batch; b++) {
        for (int64_t h = 0; h < r->heads; h++) {
            for (int64_t i = 0; i < r->queries; i++) {
                const int64_t kv = h / (r->heads / r->kv_heads);
                const double sum = shares(c, 0, r, b, h, i, p);
                const float got = ((float *)c->out[1])[(b * r->heads + h) * r->queries + i];
                assert_true(isinf(sum) ? isinf(got) && got < 0 : fabs((double)got - sum) < 1e-4);
                for (int64_t d = 0; d < r->value_width; d++) {
                    double want = 0.0;
                    for (int64_t j = 0; j < r->keys; j++) {
                        want += p[j] * (double)((float *)c->in[2])[at(
                                           &c->inputs[2], r->tokens_first & 4, b, kv, j, d)];
                    }
                    const int64_t y = at(&c->outputs[0], r->tokens_first & 8, b, h, i, d);
                    assert_close((double)((float *)c->out[0])[y], want, 1e-5, "Y", y);
                }
            }
        }
    }
    free(p);
}

/* Gradients of row (b, h, i) are added to dx, in double precision. */
static void add_gradients(const op_case_t *g, const row_t *r, int64_t b, int64_t h, int64_t i,
                          double *p, double *const *dx)
{
    const int64_t kv = h / (r->heads / r->kv_heads);
    const weft_tensor_desc_t *x = g->inputs;
    const float *dy = g->in[0], *q = g->in[2], *k = g->in[3], *v = g->in[4], *y = g->in[6];
    double delta = 0.0;
    shares(g, 2, r, b, h, i, p);
    for (int64_t d = 0; d < r->value_width; d++) {
        const int64_t o = at(&x[0], r->tokens_first & 8, b, h, i, d);
        delta += (double)dy[o] * (double)y[o];
    }
    for (int64_t j = 0; j < r->keys; j++) {
        double dp = 0.0;
        for (int64_t d = 0; d < r->value_width; d++) {
            const double grad = (double)dy[at(&x[0], r->tokens_first & 8, b, h, i, d)];
            const int64_t o = at(&x[4], r->tokens_first & 4, b, kv, j, d);
            dx[2][o] += p[j] * grad;
            dp += grad * (double)v[o];
        }
        const double ds = (double)0.3f * p[j] * (dp - delta);
        for (int64_t d = 0; d < r->width; d++) {
            const int64_t iq = at(&x[2], r->tokens_first & 1, b, h, i, d);
            const int64_t ik = at(&x[3], r->tokens_first & 2, b, kv, j, d);
            dx[0][iq] += ds * (double)k[ik];
            dx[1][ik] += ds * (double)q[iq];
        }
    }
}

static void check_gradient(const op_case_t *c, const row_t *r)
{
    op_case_t g = case_make("weft", "FlashAttentionGrad", 1);
    double *p = malloc((size_t)r->keys * sizeof(*p)), *dx[3];
    add_tensor(&g, r, 3, r->heads, r->queries, r->value_width);
    case_absent_input(&g);
    for (uint32_t k = 0; k < 4; k++) {
        if (c->inputs[k].dtype == WEFT_DTYPE_NONE) {
            case_absent_input(&g);
            continue;
        }
        int64_t dims[WEFT_MAX_DIMS + 1];
        memcpy(dims, c->inputs[k].dims, sizeof(c->inputs[k].dims));
        dims[c->inputs[k].rank] = -2;
        memcpy(case_input(&g, dims), c->in[k], (size_t)case_count(&c->inputs[k]) * sizeof(float));
    }
    for (uint32_t k = 0; k < 2; k++) {
        int64_t dims[WEFT_MAX_DIMS + 1];
        memcpy(dims, c->outputs[k].dims, sizeof(c->outputs[k].dims));
        dims[c->outputs[k].rank] = -2;
        memcpy(case_input(&g, dims), c->out[k], (size_t)case_count(&c->outputs[k]) * sizeof(float));
    }
    add_attrs(&g, r);
    assert_int_equal(case_infer(&g, 3, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&g);
    float *one = malloc((size_t)case_count(&g.outputs[1]) * sizeof(*one));
    memcpy(one, g.out[1], (size_t)case_count(&g.outputs[1]) * sizeof(*one));
    case_run_threads(&g, 3);
    assert_memory_equal(one, g.out[1], (size_t)case_count(&g.outputs[1]) * sizeof(*one));
    free(one);
    for (uint32_t k = 0; k < 3; k++) {
        dx[k] = calloc((size_t)case_count(&g.outputs[k]), sizeof(*dx[k]));
    }
    for (int64_t b = 0; b < r->batch; b++) {
        for (int64_t h = 0; h < r->heads; h++) {
            for (int64_t i = 0; i < r->queries; i++) {
                add_gradients(&g, r, b, h, i, p, dx);
            }
        }
    }
    for (uint32_t k = 0; k < 3; k++) {
        for (int64_t i = 0; i < case_count(&g.outputs[k]); i++) {
            assert_close((double)((float *)g.out[k])[i], dx[k][i], 3e-5, "gradient", i);
        }
        free(dx[k]);
    }
    free(p);
    case_free(&g);
}

static void test_attention_and_its_gradient(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof(rows) / sizeof(rows[0]); n++) {
        const row_t *r = &rows[n];
        op_case_t c = case_make("weft", "FlashAttention", 1);
        add_inputs(&c, r);
        add_attrs(&c, r);
        assert_int_equal(case_infer(&c, 2, WEFT_LAYOUT_PLAIN), WEFT_OK);
        case_run(&c);
        check_forward(&c, r);
        float *one = malloc((size_t)case_count(&c.outputs[0]) * sizeof(*one));
        memcpy(one, c.out[0], (size_t)case_count(&c.outputs[0]) * sizeof(*one));
        case_run_threads(&c, 3);
        assert_memory_equal(one, c.out[0], (size_t)case_count(&c.outputs[0]) * sizeof(*one));
        free(one);
        check_gradient(&c, r);
        case_free(&c);
    }
}

/* A row of Q, or the only key that a query sees, is NaN. */
static void test_nan_is_not_hidden(void **state)
{
    (void)state;
    for (int64_t key = 0; key < 2; key++) {
        const row_t r = {1, 1, 1, 3, 4, 4, 4, 0, 0, true, (int)key};
        op_case_t c = case_make("weft", "FlashAttention", 1);
        add_inputs(&c, &r);
        add_attrs(&c, &r);
        for (int64_t j = 0; key == 1 && j < 3 * 4; j++) {
            ((float *)c.in[3])[j] = j % 4 == 1 ? 0.0f : -INFINITY;
        }
        ((float *)c.in[key])[4] = NAN; /* row 1 */
        assert_int_equal(case_infer(&c, 2, WEFT_LAYOUT_PLAIN), WEFT_OK);
        case_run(&c);
        const float *y = c.out[0];
        assert_true(y[0] == y[0] && y[4] != y[4] && (y[8] != y[8]) == (key == 1));
        case_free(&c);
    }
}

static void test_shapes_that_contradict_are_refused(void **state)
{
    op_case_t c = case_make("weft", "FlashAttention", 1);
    (void)state;
    case_input(&c, DIMS(1, 3, 4, 8));
    case_input(&c, DIMS(1, 2, 4, 8)); /* 3 heads do not share 2 */
    case_input(&c, DIMS(1, 2, 4, 8));
    case_output(&c, WEFT_DTYPE_F32, WEFT_LAYOUT_PLAIN, DIMS(1, 3, 4, 8));
    assert_int_equal(case_run_isa(&c, 0), WEFT_ERR_INVALID_ARGUMENT);
    case_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_and_its_gradient),
        cmocka_unit_test(test_nan_is_not_hidden),
        cmocka_unit_test(test_shapes_that_contradict_are_refused),
    };
    random_seed(3);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
