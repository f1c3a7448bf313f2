/* SPDX-License-Identifier: Apache-2.0 */
/* Every instruction set against a scalar tree written anew here: recursive, one element at a time.
 */
#include "ops/reduce/reduce.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "runtime/base/half.h"
#include "tests/ops/reduce_oracle.h"
#include "tests/support/support.h"

#define MAX_SOURCES 17u
#define MAX_BYTES 8192u

static uint64_t state;

static void oracle(const weft_reduce_t *reduce, uint8_t *out)
{
    size_t bytes = weft_dtype_size_bytes(reduce->dtype);
    number_t leaves[WEFT_MAX_GROUP_DIRECT];
    for (size_t i = 0; i < reduce->elem_count; i++) {
        uint32_t n = reduce->source_count;
        for (uint32_t k = 0; k < n; k++) {
            leaves[k] = oracle_read(reduce->dtype, (const uint8_t *)reduce->sources[k] + i * bytes);
        }
        oracle_write(reduce->dtype, reduce->reduction,
                     oracle_tree(reduce->dtype, reduce->reduction, leaves, n), n, out + i * bytes);
    }
}

typedef struct memory {
    uint8_t *block[MAX_SOURCES + 2];
    uint8_t expected[MAX_BYTES];
} memory_t;

/* Runs one case: fresh inputs at odd offsets; outputs apart, or in place into in_place of the
 * sources. */
static void run_case(memory_t *memory, weft_dtype_t dtype, weft_reduction_t reduction,
                     weft_isa_t isa, uint32_t sources, uint32_t in_place, size_t elem_count,
                     size_t granularity)
{
    const void *from[MAX_SOURCES];
    void *to[MAX_SOURCES + 1];
    size_t bytes = elem_count * weft_dtype_size_bytes(dtype);
    uint32_t destinations = in_place ? in_place : 2;
    size_t offset_of_copies = granularity * (test_next_random(&state) % 64 / granularity);
    for (uint32_t k = 0; k < sources; k++) {
        uint8_t *at =
            memory->block[k] + granularity * (test_next_random(&state) % 64 / granularity);
        memset(memory->block[k], 0xa5, MAX_BYTES + 128);
        oracle_fill(dtype, at, elem_count, &state);
        from[k] = at;
        to[k] = at;
    }
    if (!in_place) {
        to[0] = memory->block[MAX_SOURCES] + offset_of_copies;
        to[1] = memory->block[MAX_SOURCES + 1];
        memset(memory->block[MAX_SOURCES], 0xa5, MAX_BYTES + 128);
        memset(memory->block[MAX_SOURCES + 1], 0xa5, MAX_BYTES + 128);
    }
    weft_reduce_t reduce = {from, sources, to, destinations, elem_count, dtype, reduction, 0};
    oracle(&reduce, memory->expected);
    assert_int_equal(wefti_reduce(&reduce, isa), WEFT_OK);
    for (uint32_t d = 0; d < destinations; d++) {
        if (memcmp(to[d], memory->expected, bytes) != 0) {
            fail_msg("%s %s %s: %u sources, %zu elements, destination %u differs",
                     weft_dtype_name(dtype), weft_reduction_name(reduction), wefti_isa_name(isa),
                     sources, elem_count, d);
        }
        /* Nothing behind the end was touched. */
        assert_int_equal(((uint8_t *)to[d])[bytes], 0xa5);
        assert_int_equal(((uint8_t *)to[d])[bytes + 63 - offset_of_copies % 63], 0xa5);
    }
}

static int setup(void **out)
{
    memory_t *memory = calloc(1, sizeof *memory);
    const char *seed = getenv("WEFT_TEST_SEED");
    state = seed ? strtoull(seed, NULL, 0) : 0x5eed2026;
    print_message("seed %llu\n", (unsigned long long)state);
    for (uint32_t k = 0; memory && k < MAX_SOURCES + 2; k++) {
        memory->block[k] = malloc(MAX_BYTES + 128);
    }
    *out = memory;
    return memory ? 0 : -1;
}

static int teardown(void **in)
{
    memory_t *memory = *in;
    for (uint32_t k = 0; k < MAX_SOURCES + 2; k++) {
        free(memory->block[k]);
    }
    free(memory);
    return 0;
}

static const uint32_t source_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17};
#define SOURCE_COUNTS (sizeof source_counts / sizeof source_counts[0])

static void test_reduce_isas_agree(void **in)
{
    static const size_t counts[] = {1,  2,  7,  8,  9,   15,  16,  17,  31,
                                    33, 63, 64, 65, 127, 129, 200, 1000};
    for (weft_isa_t isa = WEFT_ISA_PORTABLE; isa <= wefti_isa_detect(); isa++) {
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            for (size_t s = 0; s < SOURCE_COUNTS; s++) {
                uint32_t n = source_counts[s];
                run_case(*in, WEFT_DTYPE_F16, WEFT_REDUCTION_SUM, isa, n, n, counts[c], 2);
                run_case(*in, WEFT_DTYPE_F16, WEFT_REDUCTION_AVG, isa, n, 0, counts[c], 2);
                run_case(*in, WEFT_DTYPE_BF16, WEFT_REDUCTION_SUM, isa, n, 1, counts[c], 2);
                run_case(*in, WEFT_DTYPE_BF16, WEFT_REDUCTION_AVG, isa, n, n, counts[c], 2);
                run_case(*in, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, isa, n, 0, counts[c], 4);
                run_case(*in, WEFT_DTYPE_F32, WEFT_REDUCTION_AVG, isa, n, n, counts[c], 4);
                run_case(*in, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, isa, n, n, counts[c], 1);
                run_case(*in, WEFT_DTYPE_F32, WEFT_REDUCTION_AVG, isa, n, 1, counts[c], 1);
            }
        }
    }
}

static void test_reduce_every_type_matches_oracle(void **in)
{
    static const size_t counts[] = {1, 3, 127, 128, 129, 300};
    for (size_t t = 0; t < ORACLE_DTYPES; t++) {
        for (int op = WEFT_REDUCTION_SUM; op <= (int)WEFT_REDUCTION_MAX; op++) {
            for (size_t s = 0; s < SOURCE_COUNTS; s++) {
                for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
                    uint32_t n = source_counts[s];
                    for (weft_isa_t isa = WEFT_ISA_PORTABLE; isa <= wefti_isa_detect(); isa++) {
                        run_case(*in, oracle_dtypes[t], (weft_reduction_t)op, isa, n, c % 2 ? n : 0,
                                 counts[c], 1);
                    }
                }
            }
        }
    }
}

/* ---- steps ---- */

#define STEP_LEAVES 40u
#define STEP_ELEMS 300u

typedef struct steps { /* one reduction, cut into steps */
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    weft_isa_t isa;
    uint32_t leaf_count;
    size_t elem_count;
    const uint8_t *leaves[STEP_LEAVES];
    uint8_t *pool; /* what wide sums are taken from, at any alignment */
    size_t pool_used;
} steps_t;

static uint8_t *take_wide(steps_t *steps)
{
    uint8_t *at = steps->pool + steps->pool_used;
    steps->pool_used += STEP_ELEMS * sizeof(uint64_t) + 64 + test_next_random(&state) % 8;
    return at;
}

/* Leaves first, ... count into out: aligned runs of 2^k leaves, the last one cut off, are the
 * sources; a run is a wide sum from a step before, a single leaf as it is or widened. */
static void reduce_run(steps_t *steps, uint32_t first, uint32_t count, bool finish, void *out)
{
    const void *sources[STEP_LEAVES];
    uint8_t wide[STEP_LEAVES];
    void *to[2] = {out, out};
    uint32_t length = 1, n = 0;
    while (length * 2 < count && test_next_random(&state) % 2) {
        length *= 2;
    }
    for (uint32_t at = first; at < first + count; at += length, n++) {
        uint32_t leaves = first + count - at < length ? first + count - at : length;
        wide[n] = leaves > 1 || (count > 1 && test_next_random(&state) % 4 == 0);
        sources[n] = steps->leaves[at];
        if (wide[n]) {
            uint8_t *sum = take_wide(steps);
            reduce_run(steps, at, leaves, false, sum);
            sources[n] = sum;
        }
    }
    if (n > 1 && wide[0] && !finish && test_next_random(&state) % 2) {
        to[1] = (void *)sources[0]; /* in place */
    }
    const wefti_reduce_step_t step = {.sources = sources,
                                      .wide = wide,
                                      .source_count = n,
                                      .destination_count = 2,
                                      .destinations = to,
                                      .elem_count = steps->elem_count,
                                      .dtype = steps->dtype,
                                      .reduction = steps->reduction,
                                      .divisor = steps->leaf_count,
                                      .finish = finish};
    assert_int_equal(wefti_reduce_step(&step, steps->isa), WEFT_OK);
}

static void run_steps(steps_t *steps, uint8_t *inputs)
{
    uint8_t expected[STEP_ELEMS * 8], result[STEP_ELEMS * 8 + 1];
    const void *from[STEP_LEAVES];
    size_t bytes = steps->elem_count * weft_dtype_size_bytes(steps->dtype);
    for (uint32_t k = 0; k < steps->leaf_count; k++) {
        uint8_t *at = inputs + k * (STEP_ELEMS * 8 + 8) + test_next_random(&state) % 8;
        oracle_fill(steps->dtype, at, steps->elem_count, &state);
        from[k] = steps->leaves[k] = at;
    }
    weft_reduce_t whole = {from,         steps->leaf_count, NULL, 0, steps->elem_count,
                           steps->dtype, steps->reduction,  0};
    oracle(&whole, expected);
    for (int way = 0; way < 3; way++) {
        memset(result, 0xa5, sizeof result);
        steps->pool_used = 0;
        reduce_run(steps, 0, steps->leaf_count, true, result);
        if (memcmp(result, expected, bytes) != 0 || result[bytes] != 0xa5) {
            fail_msg("%s %s %s in steps: %u sources, %zu elements", weft_dtype_name(steps->dtype),
                     weft_reduction_name(steps->reduction), wefti_isa_name(steps->isa),
                     steps->leaf_count, steps->elem_count);
        }
    }
}

/* Any way of cutting the tree into steps gives the bits of one pass. */
static void test_reduce_steps_equal_one_pass(void **in)
{
    static const uint32_t leaf_counts[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 33};
    static const size_t elem_counts[] = {1, 5, 16, 33, 64, 129, 300};
    uint8_t *pool = malloc(4 * STEP_LEAVES * (STEP_ELEMS * 8 + 72));
    uint8_t *inputs = malloc(STEP_LEAVES * (STEP_ELEMS * 8 + 8));
    steps_t steps = {.pool = pool};
    (void)in;
    assert_non_null(pool);
    assert_non_null(inputs);
    for (size_t t = 0; t < ORACLE_DTYPES; t++) {
        for (int op = WEFT_REDUCTION_SUM; op <= (int)WEFT_REDUCTION_MAX; op++) {
            for (weft_isa_t isa = WEFT_ISA_PORTABLE; isa <= wefti_isa_detect(); isa++) {
                for (size_t n = 0; n < sizeof leaf_counts / sizeof leaf_counts[0]; n++) {
                    steps.dtype = oracle_dtypes[t];
                    steps.reduction = (weft_reduction_t)op;
                    steps.isa = isa;
                    steps.leaf_count = leaf_counts[n];
                    steps.elem_count = elem_counts[test_next_random(&state) % 7];
                    run_steps(&steps, inputs);
                }
            }
        }
    }
    free(inputs);
    free(pool);
}

static void test_reduce_accumulators(void **in)
{
    static const struct {
        weft_dtype_t dtype;
        weft_reduction_t reduction;
        size_t bytes;
    } rows[] = {
        {WEFT_DTYPE_F16, WEFT_REDUCTION_SUM, 4},   {WEFT_DTYPE_BF16, WEFT_REDUCTION_AVG, 4},
        {WEFT_DTYPE_BF16, WEFT_REDUCTION_PROD, 4}, {WEFT_DTYPE_F16, WEFT_REDUCTION_MIN, 2},
        {WEFT_DTYPE_BF16, WEFT_REDUCTION_MAX, 2},  {WEFT_DTYPE_F32, WEFT_REDUCTION_AVG, 4},
        {WEFT_DTYPE_F64, WEFT_REDUCTION_AVG, 8},   {WEFT_DTYPE_I8, WEFT_REDUCTION_AVG, 8},
        {WEFT_DTYPE_U32, WEFT_REDUCTION_AVG, 8},   {WEFT_DTYPE_I8, WEFT_REDUCTION_SUM, 1},
        {WEFT_DTYPE_U16, WEFT_REDUCTION_PROD, 2},  {WEFT_DTYPE_I64, WEFT_REDUCTION_MIN, 8},
        {WEFT_DTYPE_BOOL, WEFT_REDUCTION_SUM, 0},  {WEFT_DTYPE_NONE, WEFT_REDUCTION_SUM, 0},
        {(weft_dtype_t)99, WEFT_REDUCTION_AVG, 0},
    };
    (void)in;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(wefti_accumulator_bytes(rows[i].dtype, rows[i].reduction), rows[i].bytes);
    }
    assert_int_equal(wefti_accumulator_dtype(WEFT_DTYPE_I8, WEFT_REDUCTION_AVG), WEFT_DTYPE_I64);
    assert_int_equal(wefti_accumulator_dtype(WEFT_DTYPE_U8, WEFT_REDUCTION_AVG), WEFT_DTYPE_U64);
}

static void test_reduce_special_values(void **in)
{
    (void)in;
    struct {
        weft_reduction_t op;
        uint32_t a, b, result;
    } cases[] = {
        {WEFT_REDUCTION_SUM, 0x7f800000u, 0xff800000u, 0x7fc00000u}, /* inf - inf */
        {WEFT_REDUCTION_SUM, 0xffc00001u, 0x3f800000u, 0x7fc00000u}, /* NaN with sign and payload */
        {WEFT_REDUCTION_SUM, 0x3f800000u, 0x7f800001u, 0x7fc00000u}, /* signalling */
        {WEFT_REDUCTION_SUM, 0x80000000u, 0x80000000u, 0x80000000u}, /* -0 + -0 */
        {WEFT_REDUCTION_SUM, 0x80000000u, 0x00000000u, 0x00000000u},
        {WEFT_REDUCTION_SUM, 0x00000001u, 0x00000001u, 0x00000002u}, /* denormals */
        {WEFT_REDUCTION_AVG, 0x00000003u, 0x00000000u, 0x00000002u}, /* tie to even */
        {WEFT_REDUCTION_AVG, 0x00000001u, 0x00000000u, 0x00000000u},
        {WEFT_REDUCTION_SUM, 0x7f7fffffu, 0x7f7fffffu, 0x7f800000u}, /* overflow */
        {WEFT_REDUCTION_AVG, 0x7f7fffffu, 0x7f7fffffu, 0x7f800000u}, /* divided only at the end */
        {WEFT_REDUCTION_MIN, 0x80000000u, 0x00000000u, 0x80000000u},
        {WEFT_REDUCTION_MIN, 0x00000000u, 0x80000000u, 0x80000000u},
        {WEFT_REDUCTION_MAX, 0x80000000u, 0x00000000u, 0x00000000u},
        {WEFT_REDUCTION_MAX, 0x00000000u, 0x80000000u, 0x00000000u},
        {WEFT_REDUCTION_MIN, 0xff800000u, 0xffc00000u, 0x7fc00000u},
        {WEFT_REDUCTION_MAX, 0x7fc00000u, 0x7f800000u, 0x7fc00000u},
        {WEFT_REDUCTION_PROD, 0x00000000u, 0x7f800000u, 0x7fc00000u},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (weft_isa_t isa = WEFT_ISA_PORTABLE; isa <= wefti_isa_detect(); isa++) {
            uint32_t result = 0;
            const void *from[] = {&cases[i].a, &cases[i].b};
            void *to[] = {&result};
            weft_reduce_t reduce = {from, 2, to, 1, 1, WEFT_DTYPE_F32, cases[i].op, 0};
            assert_int_equal(wefti_reduce(&reduce, isa), WEFT_OK);
            if (result != cases[i].result) {
                fail_msg("%s of %08x and %08x by %s: %08x, expected %08x",
                         weft_reduction_name(cases[i].op), cases[i].a, cases[i].b,
                         wefti_isa_name(isa), result, cases[i].result);
            }
        }
    }
}

static void test_reduce_integer_rules(void **in)
{
    (void)in;
    int8_t a = -128, b = -127, c = 2, i8 = 0;
    uint8_t d = 255, e = 254, u8 = 0;
    const void *three[] = {&a, &b, &c};
    const void *two[] = {&d, &e};
    void *to_i8[] = {&i8}, *to_u8[] = {&u8};
    weft_reduce_t reduce = {three, 3, to_i8, 1, 1, WEFT_DTYPE_I8, WEFT_REDUCTION_AVG, 0};
    assert_int_equal(wefti_reduce(&reduce, WEFT_ISA_PORTABLE), WEFT_OK);
    assert_int_equal(i8, -84); /* -253 / 3, toward zero, not wrapped on the way */
    reduce.reduction = WEFT_REDUCTION_SUM;
    assert_int_equal(wefti_reduce(&reduce, WEFT_ISA_PORTABLE), WEFT_OK);
    assert_int_equal(i8, 3); /* -253 + 256 */
    weft_reduce_t unsigned_ = {two, 2, to_u8, 1, 1, WEFT_DTYPE_U8, WEFT_REDUCTION_AVG, 0};
    assert_int_equal(wefti_reduce(&unsigned_, WEFT_ISA_PORTABLE), WEFT_OK);
    assert_int_equal(u8, 254);
}

/* A sum of one after the other is a result in any order, and one wrong element is found. */
static void test_reduce_compare(void **in)
{
    enum { SOURCES = 13, ELEMS = 96 };
    static _Alignas(64) uint8_t values[SOURCES][ELEMS * 8], chain[ELEMS * 8], tree[ELEMS * 8];
    static const uint8_t ordinary[][8] = {/* 1.5 in f64, f32, f16, bf16 */
                                          {0, 0, 0, 0, 0, 0, 0xf8, 0x3f},
                                          {0, 0, 0xc0, 0x3f},
                                          {0, 0x3e},
                                          {0xc0, 0x3f}};
    (void)in;
    for (uint32_t d = WEFT_DTYPE_F64; d <= WEFT_DTYPE_U8; d++) {
        for (uint32_t k = WEFT_REDUCTION_SUM; k <= WEFT_REDUCTION_MAX; k++) {
            const weft_dtype_t dtype = (weft_dtype_t)d;
            const void *from[SOURCES], *pair[] = {chain, NULL};
            void *to[] = {tree}, *back[] = {chain};
            uint64_t wrong;
            size_t bytes = weft_dtype_size_bytes(dtype);
            for (uint32_t r = 0; r < SOURCES; r++) {
                oracle_fill(dtype, values[r], ELEMS, &state);
                memcpy(values[r] + 7 * bytes,
                       dtype <= WEFT_DTYPE_BF16 ? ordinary[d - 1] : values[r],
                       bytes); /* no infinity */
                from[r] = values[r];
            }
            const weft_reduce_t whole = {from, SOURCES, to, 1, ELEMS, dtype, (weft_reduction_t)k,
                                         0};
            assert_int_equal(wefti_reduce(&whole, WEFT_ISA_PORTABLE), WEFT_OK);
            assert_int_equal(wefti_reduce_compare(&whole, tree, false, &wrong), WEFT_OK);
            assert_int_equal(wrong, ELEMS);
            tree[7 * bytes] ^= 1;
            assert_int_equal(wefti_reduce_compare(&whole, tree, false, &wrong), WEFT_OK);
            assert_int_equal(wrong, 7);
            if (k == WEFT_REDUCTION_AVG) {
                continue; /* not one after the other */
            }
            weft_reduce_t step = {pair, 2, back, 1, ELEMS, dtype, (weft_reduction_t)k, 0};
            memcpy(chain, values[SOURCES - 1], sizeof chain);
            for (uint32_t r = SOURCES - 1; r-- > 0;) {
                pair[1] = values[r];
                assert_int_equal(wefti_reduce(&step, WEFT_ISA_PORTABLE), WEFT_OK);
            }
            assert_int_equal(wefti_reduce_compare(&whole, chain, true, &wrong), WEFT_OK);
            assert_int_equal(wrong, ELEMS);
            chain[8 * bytes - 1] ^= 0x40;
            assert_int_equal(wefti_reduce_compare(&whole, chain, true, &wrong), WEFT_OK);
            assert_int_equal(wrong, 7);
        }
    }
}

static void test_reduce_compare_keeps_nan_and_infinities(void **in)
{
    static const struct {
        float sources[3], result;
        bool agrees;
    } rows[] = {{{1, NAN, 2}, NAN, true},
                {{1, NAN, 2}, 3, false},
                {{1, NAN, 2}, INFINITY, false},
                {{1, INFINITY, 2}, INFINITY, true},
                {{1, INFINITY, 2}, 3, false},
                {{-INFINITY, INFINITY, 2}, NAN, true},
                {{-INFINITY, INFINITY, 2}, 2, false},
                {{3e38F, 3e38F, -3e38F}, INFINITY, true}, /* in this order */
                {{3e38F, 3e38F, -3e38F}, 3e38F, true}};
    (void)in;
    for (uint32_t k = WEFT_REDUCTION_SUM; k <= WEFT_REDUCTION_PROD; k++) {
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            const void *from[] = {&rows[i].sources[0], &rows[i].sources[1], &rows[i].sources[2]};
            const weft_reduce_t reduce = {.sources = from,
                                          .source_count = 3,
                                          .elem_count = 1,
                                          .dtype = WEFT_DTYPE_F32,
                                          .reduction = (weft_reduction_t)k};
            uint64_t equal;
            if (k == WEFT_REDUCTION_SUM || !rows[i].agrees) {
                assert_int_equal(wefti_reduce_compare(&reduce, &rows[i].result, true, &equal),
                                 WEFT_OK);
                assert_int_equal(equal, rows[i].agrees);
            }
        }
    }
}

/* Every group size up to the limit: f32 sums of one element, all instruction sets. */
static void test_reduce_up_to_1024_sources(void **in)
{
    static float values[WEFT_MAX_GROUP_DIRECT + 1];
    const void *from[WEFT_MAX_GROUP_DIRECT + 1];
    (void)in;
    for (uint32_t n = 0; n <= WEFT_MAX_GROUP_DIRECT; n++) {
        values[n] = (float)((double)(test_next_random(&state) >> 40) / 1000.0);
        from[n] = &values[n];
    }
    for (uint32_t n = 1; n <= WEFT_MAX_GROUP_DIRECT; n++) {
        uint8_t expected[4];
        float result;
        void *to[] = {&result};
        weft_reduce_t reduce = {from, n, to, 1, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_AVG, 0};
        oracle(&reduce, expected);
        for (weft_isa_t isa = WEFT_ISA_PORTABLE; isa <= wefti_isa_detect(); isa++) {
            assert_int_equal(wefti_reduce(&reduce, isa), WEFT_OK);
            assert_memory_equal(&result, expected, 4);
        }
    }
    float result;
    void *to[] = {&result};
    weft_reduce_t reduce = {from,           WEFT_MAX_GROUP_DIRECT + 1, to, 1, 1,
                            WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,        0};
    assert_int_equal(wefti_reduce(&reduce, WEFT_ISA_PORTABLE), WEFT_ERR_INVALID_ARGUMENT);
}

static void test_reduce_keeps_denormals_whatever_the_caller_set(void **in)
{
    (void)in;
#if defined(__x86_64__)
    float a = wefti_f32_from_bits(3), b = wefti_f32_from_bits(4), result = 1.0f;
    const void *from[] = {&a, &b};
    void *to[] = {&result};
    weft_reduce_t reduce = {from, 2, to, 1, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, 0};
    unsigned int mode = _mm_getcsr();
    for (weft_isa_t isa = WEFT_ISA_PORTABLE; isa <= wefti_isa_detect(); isa++) {
        unsigned int odd =
            mode | 0x8040u | 0x6000u; /* flush to zero, denormals are zero, truncate */
        _mm_setcsr(odd);
        weft_status_t status = wefti_reduce(&reduce, isa);
        unsigned int after = _mm_getcsr();
        _mm_setcsr(mode);
        assert_int_equal(status, WEFT_OK);
        assert_int_equal(after & ~0x3fu, odd & ~0x3fu);
        assert_int_equal(wefti_f32_bits(result), 7);
    }
#else
    print_message("skipped: the test sets a register of x86-64\n");
    skip();
#endif
}

static void test_reduce_rejects_bad_arguments(void **in)
{
    (void)in;
    float value = 1, result = 2;
    const void *from[] = {&value, NULL};
    void *to[] = {&result};
    const weft_reduce_t good = {from, 1, to, 1, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, 0};
    weft_reduce_t bad = good;
    bad.source_count = 2;
    assert_int_equal(wefti_reduce(&bad, WEFT_ISA_PORTABLE), WEFT_ERR_INVALID_ARGUMENT);
    assert_string_equal(weft_last_error(), "reduce: source 1 is NULL");
    bad = good;
    bad.source_count = 0;
    assert_int_equal(wefti_reduce(&bad, WEFT_ISA_PORTABLE), WEFT_ERR_INVALID_ARGUMENT);
    bad = good;
    bad.destination_count = 0;
    assert_int_equal(wefti_reduce(&bad, WEFT_ISA_PORTABLE), WEFT_ERR_INVALID_ARGUMENT);
    bad = good;
    bad.dtype = WEFT_DTYPE_BOOL;
    assert_int_equal(wefti_reduce(&bad, WEFT_ISA_PORTABLE), WEFT_ERR_UNSUPPORTED);
    bad.dtype = (weft_dtype_t)99;
    assert_int_equal(wefti_reduce(&bad, WEFT_ISA_PORTABLE), WEFT_ERR_UNSUPPORTED);
    bad = good;
    bad.reduction = (weft_reduction_t)5;
    assert_int_equal(wefti_reduce(&bad, WEFT_ISA_PORTABLE), WEFT_ERR_INVALID_ARGUMENT);
    bad = good;
    bad.elem_count = UINT64_MAX / 2;
    assert_int_equal(wefti_reduce(&bad, WEFT_ISA_PORTABLE), WEFT_ERR_INVALID_ARGUMENT);
    wefti_reduce_step_t step = {.sources = from,
                                .source_count = 1,
                                .destinations = to,
                                .destination_count = 1,
                                .elem_count = 1,
                                .dtype = WEFT_DTYPE_F32,
                                .reduction = WEFT_REDUCTION_AVG,
                                .finish = true};
    assert_int_equal(wefti_reduce_step(&step, WEFT_ISA_PORTABLE), WEFT_ERR_INVALID_ARGUMENT);
    assert_string_equal(weft_last_error(), "reduce: invalid average over 0 ranks");
    bad = good;
    bad.elem_count = 0;
    assert_int_equal(wefti_reduce(&bad, WEFT_ISA_PORTABLE), WEFT_OK);
    assert_float_equal(result, 2.0f, 0.0f);
}

/* All patterns of both half types survive the way to f32 and back; NaNs become one. */
static void test_half_round_trip(void **in)
{
    (void)in;
    for (uint32_t half = 0; half < 0x10000; half++) {
        float wide = wefti_f16_to_f32((uint16_t)half);
        int nan = (half & 0x7fff) > 0x7c00;
        assert_int_equal(wefti_f16_from_f32(wide), nan ? 0x7e00 : half);
        assert_true(nan ? isnan(wide) : wide == (float)oracle_f16((uint16_t)half));
        nan = (half & 0x7fff) > 0x7f80;
        assert_int_equal(wefti_bf16_from_f32(wefti_bf16_to_f32((uint16_t)half)),
                         nan ? 0x7fc0 : half);
    }
    for (uint32_t i = 0; i < 300000; i++) {
        float value = wefti_f32_from_bits((uint32_t)(test_next_random(&state) >> 32));
        assert_int_equal(wefti_f16_from_f32(value), oracle_nearest_half(WEFT_DTYPE_F16, value));
        assert_int_equal(wefti_bf16_from_f32(value), oracle_nearest_half(WEFT_DTYPE_BF16, value));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reduce_isas_agree),
        cmocka_unit_test(test_reduce_every_type_matches_oracle),
        cmocka_unit_test(test_reduce_steps_equal_one_pass),
        cmocka_unit_test(test_reduce_accumulators),
        cmocka_unit_test(test_reduce_special_values),
        cmocka_unit_test(test_reduce_integer_rules),
        cmocka_unit_test(test_reduce_compare),
        cmocka_unit_test(test_reduce_compare_keeps_nan_and_infinities),
        cmocka_unit_test(test_reduce_up_to_1024_sources),
        cmocka_unit_test(test_reduce_keeps_denormals_whatever_the_caller_set),
        cmocka_unit_test(test_reduce_rejects_bad_arguments),
        cmocka_unit_test(test_half_round_trip),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
