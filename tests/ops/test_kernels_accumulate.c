/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Partial sums, norms and what optimizers do with them. Oracles: sums written out, squares in
 * __int128 or long double, conversions from their definition.
 */
#include "tests/ops/support_kernel.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ops/exact_sum.h"

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* The nearer of the two neighbours in bf16, ties to the even one. */
static uint16_t nearest_bf16(float x)
{
    uint16_t low = (uint16_t)(bits_of(x) >> 16), high = (uint16_t)(low + 1);
    if (isnan(x)) {
        return 0x7fc0;
    }
    long double below = from_bits((uint32_t)low << 16),
                above = (high & 0x7fff) == 0x7f80
                            ? copysignl(0x1p128L, (long double)x) /* infinity counts as 2^128 */
                            : (long double)from_bits((uint32_t)high << 16);
    long double to_low = fabsl((long double)x - below), to_high = fabsl(above - (long double)x);
    if (isinf(x) || to_low < to_high) {
        return low;
    }
    return to_low > to_high || (low & 1) != 0 ? high : low;
}

static void test_fold_continues_the_tree(void **state)
{
    static const int64_t counts[] = {0, 1, 15, 1023, 1024, 1025, 3001};
    (void)state;
    for (size_t n = 0; n < sizeof(counts) / sizeof(counts[0]); n++) {
        for (uint32_t levels = 0; levels <= 4; levels++) {
            op_case_t c = case_make("weft", "TreeFold", 1);
            for (uint32_t i = 0; i <= levels; i++) {
                random_fill(case_input(&c, DIMS(counts[n])), counts[n], -1.0f, 1.0f);
            }
            assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
            case_run(&c);
            case_run_in_place(&c);
            for (int64_t i = 0; i < counts[n]; i++) {
                float sum = ((float *)c.in[0])[i];
                for (uint32_t level = 1; level <= levels; level++) {
                    sum = ((float *)c.in[level])[i] + sum;
                }
                assert_int_equal(bits_of(((float *)c.out[0])[i]), bits_of(sum));
            }
            case_free(&c);
        }
    }
}

/* Micro-batch i folds the t newest partial sums, t the number of trailing ones of i, and the last
 * one all there are: the in-order tree of any number of leaves, split at the largest power of two.
 */
static float tree(const float *leaves, uint32_t count)
{
    uint32_t split = 1;
    if (count == 1) {
        return leaves[0];
    }
    while (split * 2 < count) {
        split *= 2;
    }
    return tree(leaves, split) + tree(leaves + split, count - split);
}

static float fold(const float *const *inputs, uint32_t count)
{
    op_case_t c = case_make("weft", "TreeFold", 1);
    for (uint32_t i = 0; i < count; i++) {
        *case_input(&c, DIMS(1)) = *inputs[i];
    }
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&c);
    float result = *(float *)c.out[0];
    case_free(&c);
    return result;
}

static void test_a_binary_counter_of_partial_sums_is_the_tree(void **state)
{
    (void)state;
    for (uint32_t count = 1; count <= 33; count++) {
        float leaves[33], levels[6] = {0}, result = 0;
        random_fill(leaves, count, -1.0f, 1.0f);
        for (uint32_t i = 0; i < count; i++) {
            const float *inputs[7] = {&leaves[i]};
            uint32_t used = 1, t = 0;
            for (; i + 1 < count && (i >> t & 1) != 0; t++) {
                inputs[used++] = &levels[t];
            }
            for (uint32_t bit = 0; i + 1 == count && bit < 6; bit++) {
                if ((i >> bit & 1) != 0) {
                    inputs[used++] = &levels[bit];
                }
            }
            if (used <= CASE_TENSORS) {
                result = fold(inputs, used);
            } else { /* more levels than a case has room for: as the kernel does it */
                result = *inputs[0];
                for (uint32_t k = 1; k < used; k++) {
                    result = *inputs[k] + result;
                }
            }
            if (i + 1 < count) {
                levels[t] = result;
            }
        }
        assert_int_equal(bits_of(result), bits_of(tree(leaves, count)));
    }
}

static void test_fold_rounds_once_to_bf16(void **state)
{
    enum { COUNT = 70000 };
    op_case_t c = case_make("weft", "TreeFold", 1);
    (void)state;
    float *x = case_input(&c, DIMS(COUNT)), *level = case_input(&c, DIMS(COUNT));
    for (int64_t i = 0; i < COUNT; i++) {
        /* every upper half with lower halves around the tie, then sums */
        static const uint32_t lows[] = {0, 0x7fff, 0x8000, 0x8001, 0xffff, 1};
        x[i] = from_bits((uint32_t)(i & 0xffff) << 16 | lows[random_below(6)]);
        level[i] = i < 0x10000 ? (x[i] == 0 || isnan(x[i]) ? 0.0f : copysignf(0.0f, x[i]))
                               : random_float(-1.0f, 1.0f);
    }
    case_string(&c, "type", "bf16");
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    assert_int_equal(c.outputs[0].dtype, WEFT_DTYPE_BF16);
    case_run(&c);
    for (int64_t i = 0; i < COUNT; i++) {
        assert_int_equal(((uint16_t *)c.out[0])[i], nearest_bf16(level[i] + x[i]));
    }
    case_free(&c);
}

static void test_fold_has_one_nan(void **state)
{
    static const uint32_t odd[] = {0x7fc00001, 0xffc00000, 0x7f800001, 0xff812345};
    op_case_t c = case_make("weft", "TreeFold", 1);
    (void)state;
    float *x = case_input(&c, DIMS(40)), *level = case_input(&c, DIMS(40));
    for (int i = 0; i < 40; i++) {
        x[i] = i % 3 == 0 ? from_bits(odd[i % 4]) : INFINITY;
        level[i] = i % 3 == 1 ? from_bits(odd[i % 4]) : -INFINITY;
    }
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&c);
    for (int i = 0; i < 40; i++) {
        assert_int_equal(bits_of(((float *)c.out[0])[i]), 0x7fc00000);
    }
    case_free(&c);
}

static void add_limbs(int64_t *sum, const int64_t *limbs)
{
    for (int i = 0; i < WEFTI_SUM_LIMBS; i++) {
        sum[i] += limbs[i];
    }
    wefti_sum_carry(sum);
}

/* SquareSum of up to four tensors; half[i]: that one as bf16. */
static void square_sum(const int64_t *before, const float *const *x, const int64_t *counts,
                       uint32_t tensors, bool half, int64_t *out_limbs)
{
    op_case_t c = case_make("weft", "SquareSum", 1);
    if (before != NULL) {
        memcpy(case_input_typed(&c, WEFT_DTYPE_I64, WEFT_LAYOUT_PLAIN, DIMS(WEFTI_SUM_LIMBS)),
               before, WEFTI_SUM_LIMBS * sizeof(int64_t));
    } else {
        case_absent_input(&c);
    }
    for (uint32_t t = 0; t < tensors; t++) {
        void *data = case_input_typed(&c, half ? WEFT_DTYPE_BF16 : WEFT_DTYPE_F32,
                                      WEFT_LAYOUT_PLAIN, DIMS(counts[t]));
        for (int64_t i = 0; i < counts[t]; i++) {
            if (half) {
                ((uint16_t *)data)[i] = (uint16_t)(bits_of(x[t][i]) >> 16);
            } else {
                ((float *)data)[i] = x[t][i];
            }
        }
    }
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&c);
    case_run_in_place(&c);
    memcpy(out_limbs, c.out[0], WEFTI_SUM_LIMBS * sizeof(int64_t));
    case_free(&c);
}

static void test_square_sums_are_exact(void **state)
{
    /* Integers up to 2^20 times 2^-10: squares and sums fit in 128 bits. */
    enum { COUNT = 5003 };
    static float x[COUNT];
    const float *tensors[] = {x};
    const int64_t counts[] = {COUNT};
    int64_t limbs[WEFTI_SUM_LIMBS], again[WEFTI_SUM_LIMBS] = {0};
    unsigned __int128 want = 0, got = 0;
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        int64_t k = (int64_t)random_below(1u << 20) - (1 << 19);
        x[i] = (float)k * 0x1p-10f;
        want += (unsigned __int128)(k * k); /* in units of 2^-20 */
    }
    square_sum(NULL, tensors, counts, 1, false, limbs);
    for (int i = 0; i < WEFTI_SUM_LIMBS; i++) { /* limb 10 counts in 2^-32 */
        assert_true(i >= 10 && i <= 13 ? limbs[i] >= 0 && limbs[i] <= UINT32_MAX : limbs[i] == 0);
        got += i >= 10 && i <= 13 ? (unsigned __int128)limbs[i] << 32 * (i - 10) : 0;
    }
    assert_true(got >> 12 == want && (got & 0xfff) == 0);
    assert_close(wefti_sum_value(limbs), (double)((long double)want * 0x1p-20L), 1e-15, "sum", 0);
    /* Cut at multiples of 16, in another order, continued: the same limbs. */
    const int64_t cuts[] = {1600, 16, 3387};
    const float *pieces[] = {x, x + 1600, x + 1616};
    square_sum(NULL, &pieces[2], &cuts[2], 1, false, again);
    square_sum(again, pieces, cuts, 2, false, again);
    assert_memory_equal(again, limbs, sizeof(limbs));
    memset(again, 0, sizeof(again));
    for (int p = 0; p < 3; p++) { /* as ranks add theirs */
        int64_t part[WEFTI_SUM_LIMBS];
        square_sum(NULL, &pieces[p], &cuts[p], 1, false, part);
        add_limbs(again, part);
    }
    assert_memory_equal(again, limbs, sizeof(limbs));
}

static void test_square_sums_have_no_order(void **state)
{
    /* From denormals to the largest f32: any order of units gives the same limbs. */
    enum { UNITS = 200, COUNT = UNITS * 16 };
    static float x[COUNT], moved[COUNT];
    const float *tensors[] = {x}, *others[] = {moved};
    const int64_t counts[] = {COUNT};
    int64_t limbs[WEFTI_SUM_LIMBS], again[WEFTI_SUM_LIMBS];
    long double want = 0;
    (void)state;
    for (int half = 0; half < 2; half++) {
        want = 0;
        for (int i = 0; i < COUNT; i++) {
            uint32_t bits = random_below(1u << 31) | random_below(2) << 31;
            bits = (bits & 0x7f800000u) == 0x7f800000u ? bits & ~0x800000u : bits;
            x[i] = from_bits(half ? bits & 0xffff0000u : bits);
            want += (long double)x[i] * (long double)x[i];
        }
        for (int u = 0; u < UNITS; u++) {
            memcpy(moved + 16 * (u * 77 % UNITS), x + 16 * u, 16 * sizeof(float));
        }
        square_sum(NULL, tensors, counts, 1, half, limbs);
        square_sum(NULL, others, counts, 1, half, again);
        assert_memory_equal(again, limbs, sizeof(limbs));
        assert_true(fabsl(wefti_sum_value(limbs) / want - 1) < 1e-14L);
        assert_int_equal(limbs[WEFTI_SUM_NOT_FINITE], 0);
    }
    x[5] = from_bits(1); /* the smallest of all: the lowest bit there is */
    const int64_t one[] = {1};
    const float *smallest[] = {x + 5};
    square_sum(NULL, smallest, one, 1, false, limbs);
    assert_int_equal(limbs[1], (int64_t)1 << (352 - 298 - 32));
}

static float clip(const int64_t *limbs, float max_norm, int64_t divisor, float *out_norm)
{
    op_case_t c = case_make("weft", "ClipScale", 1);
    memcpy(case_input_typed(&c, WEFT_DTYPE_I64, WEFT_LAYOUT_PLAIN, DIMS(WEFTI_SUM_LIMBS)), limbs,
           WEFTI_SUM_LIMBS * sizeof(int64_t));
    case_float(&c, "max_norm", max_norm);
    case_int(&c, "divisor", divisor);
    assert_int_equal(case_infer(&c, 2, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&c);
    float scale = *(float *)c.out[0];
    *out_norm = *(float *)c.out[1];
    case_free(&c);
    return scale;
}

static void test_scale_keeps_the_norm(void **state)
{
    const float x[] = {3.0f, 4.0f}, bad[] = {1.0f, INFINITY};
    const float *good_at[] = {x}, *bad_at[] = {bad};
    const int64_t two[] = {2};
    int64_t limbs[WEFTI_SUM_LIMBS];
    float norm;
    (void)state;
    square_sum(NULL, good_at, two, 1, false, limbs);
    assert_true(clip(limbs, 5.0f, 1, &norm) == 1.0f && norm == 5.0f);
    assert_true(clip(limbs, 4.0f, 1, &norm) == 0.8f);
    assert_true(clip(limbs, 1.0f, 4, &norm) == 0.8f && norm == 1.25f);
    memset(limbs, 0, sizeof(limbs));
    assert_true(clip(limbs, 1.0f, 1, &norm) == 1.0f && norm == 0.0f);
    square_sum(NULL, bad_at, two, 1, false, limbs);
    assert_int_equal(limbs[WEFTI_SUM_NOT_FINITE], 1);
    assert_true(isnan(clip(limbs, 1.0f, 1, &norm)) && isnan(norm));
}

/* The three optimizers with a sum to divide, a scale, and gradients in bf16 give exactly what they
 * give for the gradient worked out before. */
static void test_updates_scale_the_gradient(void **state)
{
    static const char *const names[] = {"SGD", "Momentum", "Adam"};
    static const int64_t divisors[] = {1, 3, 8};
    enum { COUNT = 531 };
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        for (int variant = 0; variant < 24; variant++) {
            bool half = variant & 1, scaled = variant & 2, decays = variant & 4;
            int64_t divisor = divisors[variant / 8];
            float scale = scaled ? 0.37f : 1.0f;
            op_case_t plain = case_make("weft", names[kind], 1), all = plain;
            op_case_t *cases[] = {&plain, &all};
            for (int which = 0; which < 2; which++) {
                op_case_t *c = cases[which];
                for (int t = 0; t < kind + 2; t++) {
                    bool as_half = which == 1 && t == 1 && half;
                    void *data = case_input_typed(c, as_half ? WEFT_DTYPE_BF16 : WEFT_DTYPE_F32,
                                                  WEFT_LAYOUT_PLAIN, DIMS(COUNT));
                    for (int i = 0; i < COUNT; i++) {
                        uint32_t bits = bits_of((float)((i + 5) * (t + 3) % 101 + 1) / 101.0f);
                        /* on integers: gcc 12 keeps the low bits of a float here */
                        float x = from_bits(t == 1 && half ? bits & 0xffff0000u : bits);
                        if (as_half) {
                            ((uint16_t *)data)[i] = (uint16_t)(bits_of(x) >> 16);
                        } else {
                            ((float *)data)[i] =
                                t == 1 && which == 0 ? x / (float)divisor * scale : x;
                        }
                    }
                }
                *case_input(c, SCALAR) = 0.01f;
                if (kind == 2) {
                    *case_input(c, SCALAR) = 3.0f;
                }
                case_float(c, "weight_decay", decays ? 0.01f : 0.0f);
            }
            case_int(&all, "divisor", divisor);
            if (scaled && all.input_count < CASE_TENSORS) {
                *case_input(&all, SCALAR) = scale;
            } else if (scaled) { /* Adam has as many inputs as a case has room for */
                case_free(&plain);
                case_free(&all);
                continue;
            }
            for (int which = 0; which < 2; which++) {
                assert_int_equal(case_infer(cases[which], (uint32_t)kind + 1, WEFT_LAYOUT_PLAIN),
                                 WEFT_OK);
                case_run(cases[which]);
                case_run_in_place(cases[which]);
            }
            for (int t = 0; t < kind + 1; t++) {
                assert_memory_equal(plain.out[t], all.out[t], COUNT * sizeof(float));
            }
            case_free(&plain);
            case_free(&all);
        }
    }
}

static void test_bad_operands_are_refused(void **state)
{
    op_case_t c = case_make("weft", "SquareSum", 1);
    (void)state;
    case_input_typed(&c, WEFT_DTYPE_I64, WEFT_LAYOUT_PLAIN, DIMS(4));
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_ERR_INVALID_ARGUMENT);
    case_free(&c);
    c = case_make("weft", "TreeFold", 1);
    case_input(&c, DIMS(4));
    case_input(&c, DIMS(5));
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_ERR_INVALID_ARGUMENT);
    case_free(&c);
    c = case_make("weft", "ClipScale", 1);
    case_input_typed(&c, WEFT_DTYPE_I64, WEFT_LAYOUT_PLAIN, DIMS(WEFTI_SUM_LIMBS));
    case_float(&c, "max_norm", 0.0f);
    assert_int_equal(case_infer(&c, 2, WEFT_LAYOUT_PLAIN), WEFT_ERR_INVALID_ARGUMENT);
    case_free(&c);
    c = case_make("weft", "SGD", 1);
    case_input(&c, DIMS(4));
    case_input(&c, DIMS(4));
    case_input(&c, SCALAR);
    case_int(&c, "divisor", 0);
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_ERR_INVALID_ARGUMENT);
    case_output(&c, WEFT_DTYPE_F32, WEFT_LAYOUT_PLAIN, DIMS(4));
    assert_int_equal(case_run_isa(&c, 0), WEFT_ERR_INVALID_ARGUMENT);
    case_free(&c);
}

/* The first of equal elements, as signs of zeros differ; the last NaN. */
static float extreme_in_order(bool maximum, const float *x, int64_t count)
{
    float most = maximum ? -INFINITY : INFINITY;
    for (int64_t i = 0; i < count; i++) {
        bool takes = maximum ? x[i] > most : x[i] < most;
        most = takes || x[i] != x[i] ? x[i] : most;
    }
    return most;
}

static void test_extremes_are_those_of_their_order(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 2, 31, 32, 33, 64, 95, 200, 1500};
    const float special[] = {0.0f, -0.0f, NAN, INFINITY, -INFINITY, 0.0f, -0.0f};
    for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++) {
        for (int kind = 0; kind < 8;
             kind++) { /* plain, with specials, only specials, not positive */
            const bool maximum = kind % 2 == 0;
            const int64_t rows = 24, count = lengths[n];
            op_case_t c = case_make("", maximum ? "ReduceMax" : "ReduceMin", 13);
            float *x = case_input(&c, DIMS(rows, count));
            random_fill(x, rows * count, -1.0f, kind / 2 == 3 ? 0.0f : 1.0f);
            for (int64_t i = 0; i < rows * count; i++) {
                if (kind / 2 > 0 && (kind / 2 == 2 || random_below(40) == 0)) {
                    x[i] = special[random_below(kind / 2 == 2 ? 2 : 7)];
                }
            }
            case_ints(&c, "axes", (const int64_t[]){1, -2});
            assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
            case_run(&c);
            for (int64_t r = 0; r < rows; r++) {
                float got = ((const float *)c.out[0])[r];
                float want = extreme_in_order(maximum, x + r * count, count);
                assert_true(memcmp(&got, &want, sizeof got) == 0 || (got != got && want != want));
            }
            case_free(&c);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fold_continues_the_tree),
        cmocka_unit_test(test_a_binary_counter_of_partial_sums_is_the_tree),
        cmocka_unit_test(test_fold_rounds_once_to_bf16),
        cmocka_unit_test(test_fold_has_one_nan),
        cmocka_unit_test(test_square_sums_are_exact),
        cmocka_unit_test(test_square_sums_have_no_order),
        cmocka_unit_test(test_scale_keeps_the_norm),
        cmocka_unit_test(test_updates_scale_the_gradient),
        cmocka_unit_test(test_bad_operands_are_refused),
        cmocka_unit_test(test_extremes_are_those_of_their_order),
    };
    random_seed(11);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
