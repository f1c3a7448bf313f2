/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout: numbers of the paper, masks element by element, ranks, ratios at the edges. */
#include "tests/ops/support_kernel.h"

#include <math.h>
#include <string.h>

#include "ops/compute/philox.h"

/* The known answers that the authors publish with their library (Random123, kat_vectors). */
static void test_philox_gives_the_published_words(void **state)
{
    static const uint32_t known[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    (void)state;
    for (int k = 0; k < 3; k++) {
        wefti_philox_t at;
        for (int w = 0; w < 4; w++) {
            for (int l = 0; l < WEFTI_PHILOX_LANES; l++) {
                at.x[w][l] = known[k][w] + (w == 0 && l != 5 ? (uint32_t)l + 1 : 0);
            }
        }
        wefti_philox_4x32_10(&at, known[k][4], known[k][5]);
        for (int w = 0; w < 4; w++) {
            assert_int_equal(at.x[w][5], known[k][6 + w]);
            assert_int_not_equal(at.x[w][6], known[k][6 + w]);
        }
    }
}

/* One word, written the plain way. */
static uint32_t word_of(uint64_t element, uint32_t step, uint32_t salt, uint64_t seed)
{
    uint64_t block = element / 4;
    uint32_t c[4] = {(uint32_t)block, (uint32_t)(block >> 32), step, salt};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)c[0] * 0xD2511F53u, b = (uint64_t)c[2] * 0xCD9E8D57u;
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b,
                            (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
        memcpy(c, next, sizeof(c));
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c[element % 4];
}

typedef struct draw {
    float ratio, step;
    int64_t salt, seed, rank; /* rank negative: absent */
} draw_t;

/* Runs DropoutMask over count values; the case keeps what it made. */
static op_case_t run_mask(int64_t count, draw_t d, bool wants_mask)
{
    op_case_t c = case_make("weft", "DropoutMask", 1);
    float *x = case_input(&c, DIMS(count));
    random_fill(x, count, 0.5f, 2.0f);
    *(int64_t *)case_input_typed(&c, WEFT_DTYPE_I64, WEFT_LAYOUT_PLAIN, SCALAR) = d.seed;
    *case_input(&c, SCALAR) = d.step;
    if (d.rank >= 0) {
        *(int64_t *)case_input_typed(&c, WEFT_DTYPE_I64, WEFT_LAYOUT_PLAIN, SCALAR) = d.rank;
    }
    case_float(&c, "ratio", d.ratio);
    case_int(&c, "salt", d.salt);
    assert_int_equal(case_infer(&c, wants_mask ? 2 : 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&c);
    case_run_in_place(&c);
    return c;
}

static void test_masks_depend_on_what_they_should_and_nothing_else(void **state)
{
    static const int64_t counts[] = {0, 1, 3, 63, 64, 65, 127, 129, 1000};
    static const draw_t draws[] = {
        {0.5f, 1, 0, 0, -1},
        {0.25f, 7, 3, 42, 0},
        {0.9f, 16777216.0f, 0x7fffffff, -1, 1},
        {0.1f, 2, 1, (int64_t)1 << 40, 5},
        {0.3f, 3, 2, 9, (int64_t)1 << 33}, /* elements beyond 2^32 blocks */
    };
    (void)state;
    for (size_t n = 0; n < sizeof(counts) / sizeof(counts[0]); n++) {
        for (size_t k = 0; k < sizeof(draws) / sizeof(draws[0]); k++) {
            const draw_t *d = &draws[k];
            op_case_t c = run_mask(counts[n], *d, true);
            uint64_t first = d->rank < 0 ? 0 : (uint64_t)d->rank * (uint64_t)counts[n];
            float scale = (float)(1.0 / (1.0 - (double)d->ratio));
            for (int64_t i = 0; i < counts[n]; i++) {
                uint32_t word = word_of(first + (uint64_t)i, (uint32_t)d->step, (uint32_t)d->salt,
                                        (uint64_t)d->seed);
                bool kept = (double)word >= floor((double)d->ratio * 4294967296.0);
                float x = ((float *)c.in[0])[i], y = ((float *)c.out[0])[i];
                assert_int_equal(((uint8_t *)c.out[1])[i], kept);
                assert_true(y == (kept ? x * scale : 0.0f));
            }
            case_free(&c);
        }
    }
}

/* Two ranks with half the elements each draw what one rank with all of them does. */
static void test_ranks_draw_their_part_of_one_mask(void **state)
{
    const int64_t half = 77;
    (void)state;
    op_case_t all = run_mask(2 * half, (draw_t){0.4f, 5, 1, 8, 0}, true);
    for (int64_t rank = 0; rank < 2; rank++) {
        op_case_t part = run_mask(half, (draw_t){0.4f, 5, 1, 8, rank}, true);
        assert_memory_equal(part.out[1], (uint8_t *)all.out[1] + rank * half, (size_t)half);
        case_free(&part);
    }
    case_free(&all);
}

static uint32_t differences(const op_case_t *a, const op_case_t *b, int64_t count)
{
    uint32_t different = 0;
    for (int64_t i = 0; i < count; i++) {
        different += ((uint8_t *)a->out[1])[i] != ((uint8_t *)b->out[1])[i];
    }
    return different;
}

/* Half of the elements differ when anything does; the share that is kept is the one asked for. */
static void test_seed_step_salt_and_rank_give_other_masks(void **state)
{
    const int64_t count = 40000;
    const draw_t base = {0.5f, 4, 2, 11, 0};
    draw_t others[] = {base, base, base, base};
    (void)state;
    others[0].seed++;
    others[1].step++;
    others[2].salt++;
    others[3].rank++;
    op_case_t a = run_mask(count, base, true), again = run_mask(count, base, true);
    assert_int_equal(differences(&a, &again, count), 0);
    case_free(&again);
    for (int k = 0; k < 4; k++) {
        op_case_t b = run_mask(count, others[k], true);
        uint32_t different = differences(&a, &b, count);
        assert_in_range(different, 19400, 20600); /* six standard deviations */
        case_free(&b);
    }
    case_free(&a);
    for (int percent = 10; percent < 100; percent += 20) {
        op_case_t c = run_mask(count, (draw_t){(float)percent / 100.0f, 1, 0, 1, 0}, true);
        double kept = 0, sum_x = 0, sum_y = 0;
        for (int64_t i = 0; i < count; i++) {
            kept += ((uint8_t *)c.out[1])[i];
            sum_x += (double)((float *)c.in[0])[i];
            sum_y += (double)((float *)c.out[0])[i];
        }
        assert_close(kept / (double)count, 1.0 - percent / 100.0, 0.015, "kept", percent);
        assert_close(sum_y / sum_x, 1.0, 0.09, "mean", percent); /* what scaling is for */
        case_free(&c);
    }
}

static void test_ratios_at_the_edges(void **state)
{
    (void)state;
    op_case_t none = run_mask(100, (draw_t){0.0f, 1, 0, 0, 0}, true);
    op_case_t all = run_mask(100, (draw_t){1.0f, 1, 0, 0, 0}, true);
    op_case_t unmasked = run_mask(100, (draw_t){1.0f, 1, 0, 0, -1}, false);
    assert_memory_equal(none.out[0], none.in[0], 400);
    for (int64_t i = 0; i < 100; i++) {
        assert_int_equal(((uint8_t *)none.out[1])[i], 1);
        assert_int_equal(((uint8_t *)all.out[1])[i], 0);
        assert_true(((float *)all.out[0])[i] == 0 && ((float *)unmasked.out[0])[i] == 0);
    }
    case_free(&none);
    case_free(&all);
    case_free(&unmasked);
    const float wrong[] = {-0.1f, 1.5f, NAN, INFINITY};
    for (int k = 0; k < 4; k++) {
        op_case_t c = case_make("weft", "DropoutMask", 1), g = case_make("weft", "DropoutGrad", 1);
        case_input(&c, DIMS(4));
        case_input_typed(&c, WEFT_DTYPE_I64, WEFT_LAYOUT_PLAIN, SCALAR);
        case_input(&c, SCALAR);
        case_float(&c, "ratio", wrong[k]);
        assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_ERR_INVALID_ARGUMENT);
        assert_int_equal(case_run_isa(&c, 0), WEFT_ERR_INVALID_ARGUMENT);
        case_input(&g, DIMS(4));
        case_input_typed(&g, WEFT_DTYPE_U8, WEFT_LAYOUT_PLAIN, DIMS(4));
        case_float(&g, "ratio", wrong[k]);
        assert_int_equal(case_infer(&g, 1, WEFT_LAYOUT_PLAIN), WEFT_ERR_INVALID_ARGUMENT);
        case_free(&c);
        case_free(&g);
    }
}

/* What is dropped is zero even where it was not a number. */
static void test_dropped_infinities_leave_nothing(void **state)
{
    op_case_t c = run_mask(200, (draw_t){0.5f, 1, 0, 3, 0}, true);
    (void)state;
    for (int64_t i = 0; i < 200; i++) {
        ((float *)c.in[0])[i] = i % 2 ? NAN : -INFINITY;
    }
    case_run(&c);
    for (int64_t i = 0; i < 200; i++) {
        float y = ((float *)c.out[0])[i];
        bool kept = ((uint8_t *)c.out[1])[i] != 0;
        assert_true(kept ? !isfinite(y) : y == 0.0f && !signbit(y));
    }
    case_free(&c);
}

static void test_the_gradient_is_the_slope(void **state)
{
    const int64_t count = 150;
    op_case_t c = run_mask(count, (draw_t){0.3f, 2, 1, 6, 1}, true);
    op_case_t g = case_make("weft", "DropoutGrad", 1);
    (void)state;
    float *dy = case_input(&g, DIMS(count));
    random_fill(dy, count, -1.0f, 1.0f);
    memcpy(case_input_typed(&g, WEFT_DTYPE_U8, WEFT_LAYOUT_PLAIN, DIMS(count)), c.out[1],
           (size_t)count);
    case_float(&g, "ratio", 0.3f);
    assert_int_equal(case_infer(&g, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&g);
    case_run_in_place(&g);
    for (int64_t i = 0; i < count; i++) {
        double x = (double)((float *)c.in[0])[i], y = (double)((float *)c.out[0])[i];
        assert_close(((float *)g.out[0])[i], (double)dy[i] * y / x, 1e-6, "dX", i);
    }
    case_free(&c);
    case_free(&g);
}

static void test_inference_passes_on(void **state)
{
    static const int32_t versions[] = {7, 10, 13};
    (void)state;
    for (int v = 0; v < 3; v++) {
        op_case_t c = case_make("", "Dropout", versions[v]);
        random_fill(case_input(&c, DIMS(5, 7)), 35, -1.0f, 1.0f);
        assert_int_equal(case_infer(&c, 2, WEFT_LAYOUT_PLAIN), WEFT_OK);
        case_run(&c);
        assert_memory_equal(c.out[0], c.in[0], 35 * sizeof(float));
        for (int i = 0; i < 35; i++) {
            assert_true(versions[v] < 10 ? ((float *)c.out[1])[i] == 1.0f
                                         : ((uint8_t *)c.out[1])[i] == 1);
        }
        case_free(&c);
    }
    op_case_t training = case_make("", "Dropout", 13);
    case_input(&training, DIMS(4));
    case_input(&training, SCALAR);
    case_input_typed(&training, WEFT_DTYPE_BOOL, WEFT_LAYOUT_PLAIN, SCALAR);
    case_output(&training, WEFT_DTYPE_F32, WEFT_LAYOUT_PLAIN, DIMS(4));
    assert_int_equal(case_run_isa(&training, 0), WEFT_ERR_UNSUPPORTED);
    case_free(&training);
}

static void test_wrong_operands_are_refused(void **state)
{
    (void)state;
    for (int wrong = 0; wrong < 4; wrong++) {
        op_case_t c = case_make("weft", "DropoutMask", 1);
        case_input_typed(&c, WEFT_DTYPE_F32,
                         wrong == 3 ? WEFT_LAYOUT_CHANNELS_LAST : WEFT_LAYOUT_PLAIN,
                         DIMS(1, 2, 2, 2));
        case_input_typed(&c, wrong == 0 ? WEFT_DTYPE_I32 : WEFT_DTYPE_I64, WEFT_LAYOUT_PLAIN,
                         SCALAR);
        case_input(&c, wrong == 1 ? DIMS(2) : SCALAR);
        case_output(&c, WEFT_DTYPE_F32, wrong == 3 ? WEFT_LAYOUT_CHANNELS_LAST : WEFT_LAYOUT_PLAIN,
                    DIMS(1, 2, 2, 2));
        case_output(&c, WEFT_DTYPE_U8, WEFT_LAYOUT_PLAIN,
                    wrong == 2 ? DIMS(1, 2, 2, 1) : DIMS(1, 2, 2, 2));
        assert_true(case_run_isa(&c, 0) < 0);
        case_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_gives_the_published_words),
        cmocka_unit_test(test_masks_depend_on_what_they_should_and_nothing_else),
        cmocka_unit_test(test_ranks_draw_their_part_of_one_mask),
        cmocka_unit_test(test_seed_step_salt_and_rank_give_other_masks),
        cmocka_unit_test(test_ratios_at_the_edges),
        cmocka_unit_test(test_dropped_infinities_leave_nothing),
        cmocka_unit_test(test_the_gradient_is_the_slope),
        cmocka_unit_test(test_inference_passes_on),
        cmocka_unit_test(test_wrong_operands_are_refused),
    };
    random_seed(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
