/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that only move elements: every element is checked to be where an index calculation puts
 * it. */
#include "tests/ops/support_kernel.h"

#include <string.h>

static void count_up(float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        x[i] = (float)(i + 1);
    }
}

static const int64_t *plain_index(const int64_t *dims, int64_t i, int64_t *at)
{
    for (int d = 3; d >= 0; d--) {
        at[d] = i % dims[d];
        i /= dims[d];
    }
    return at;
}

/* Element i in plain order of a tensor of rank 4 or less in either layout. */
static float element(const weft_tensor_desc_t *t, const float *x, int64_t i)
{
    int64_t at[4];
    if (t->layout == WEFT_LAYOUT_PLAIN) {
        return x[i];
    }
    plain_index(t->dims, i, at);
    return x[offset4(t, at[0], at[1], at[2], at[3])];
}

static void check_reshape(weft_layout_t in, const int64_t *from, weft_layout_t out,
                          const int64_t *to)
{
    op_case_t c = case_make("", "Reshape", 13);
    float *x = case_input_typed(&c, WEFT_DTYPE_F32, in, from);
    count_up(x, case_count(&c.inputs[0]));
    case_input_typed(&c, WEFT_DTYPE_I64, WEFT_LAYOUT_PLAIN, DIMS(1)); /* kernels do not need it */
    case_output(&c, WEFT_DTYPE_F32, out, to);
    case_run(&c);
    for (int64_t i = 0; i < case_count(&c.inputs[0]); i++) {
        assert_true(element(&c.outputs[0], c.out[0], i) == element(&c.inputs[0], x, i));
    }
    case_run_in_place(&c);
    case_free(&c);
}

static void test_reshape_permutes_between_layouts(void **state)
{
    const weft_layout_t plain = WEFT_LAYOUT_PLAIN, last = WEFT_LAYOUT_CHANNELS_LAST;
    (void)state;
    check_reshape(plain, DIMS(2, 3, 4, 5), plain, DIMS(6, 20));
    check_reshape(last, DIMS(2, 16, 5, 5), plain, DIMS(2, 400));
    check_reshape(plain, DIMS(2, 400), last, DIMS(2, 16, 5, 5));
    check_reshape(last, DIMS(2, 3, 4, 5), last, DIMS(2, 3, 4, 5));
    check_reshape(last, DIMS(2, 3, 4, 5), last, DIMS(2, 6, 5, 2));
    check_reshape(last, DIMS(2, 1, 4, 5), plain, DIMS(40));
    check_reshape(last, DIMS(2, 7, 1, 1), plain, DIMS(2, 7));
    check_reshape(plain, DIMS(0, 7), plain, DIMS(7, 0));
}

static void test_identity_moves_any_type_and_changes_layout(void **state)
{
    op_case_t c = case_make("", "Identity", 13);
    (void)state;
    uint8_t *x = case_input_typed(&c, WEFT_DTYPE_U8, WEFT_LAYOUT_PLAIN, DIMS(1, 3, 2, 2));
    for (int i = 0; i < 12; i++) {
        x[i] = (uint8_t)i;
    }
    case_output(&c, WEFT_DTYPE_U8, WEFT_LAYOUT_CHANNELS_LAST, DIMS(1, 3, 2, 2));
    case_run(&c);
    const uint8_t want[12] = {0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11};
    assert_memory_equal(c.out[0], want, 12);
    case_free(&c);
}

static void check_pad(weft_layout_t layout, const int64_t *dims, const int64_t *pads,
                      int with_value)
{
    op_case_t c = case_make("", "Pad", 13);
    float *x = case_input_typed(&c, WEFT_DTYPE_F32, layout, dims);
    count_up(x, case_count(&c.inputs[0]));
    int64_t *amounts = case_input_typed(&c, WEFT_DTYPE_I64, WEFT_LAYOUT_PLAIN, DIMS(8));
    memcpy(amounts, pads, 64);
    c.inputs[1].data = amounts;
    if (with_value) {
        *case_input(&c, SCALAR) = -7.0f;
    }
    assert_int_equal(case_infer(&c, 1, layout), WEFT_OK);
    case_run(&c);
    for (int64_t i = 0; i < case_count(&c.outputs[0]); i++) {
        int64_t at[4];
        float want = with_value ? -7.0f : 0.0f;
        int inside = 1;
        plain_index(c.outputs[0].dims, i, at);
        for (int d = 0; d < 4; d++) {
            at[d] -= pads[d];
            inside = inside && at[d] >= 0 && at[d] < dims[d];
        }
        want = inside ? x[offset4(&c.inputs[0], at[0], at[1], at[2], at[3])] : want;
        assert_true(element(&c.outputs[0], c.out[0], i) == want);
    }
    case_free(&c);
}

static void test_pad(void **state)
{
    static const int64_t pads[][8] = {{0, 0, 0, 0, 0, 0, 0, 0},   {0, 0, 2, 2, 0, 0, 2, 2},
                                      {0, 0, 1, 0, 0, 0, 0, 3},   {1, 2, 0, 0, 0, 1, 0, 0},
                                      {0, 0, -1, -2, 0, 0, 2, 0}, {0, -3, 1, 5, 0, 1, -4, -5},
                                      {2, 0, 0, 1, -2, 0, 0, 0}};
    (void)state;
    for (int layout = 0; layout < 2; layout++) {
        for (size_t i = 0; i < sizeof(pads) / sizeof(pads[0]); i++) {
            check_pad((weft_layout_t)layout, DIMS(2, 3, 4, 5), pads[i], (int)(i % 2));
        }
        check_pad((weft_layout_t)layout, DIMS(2, 3, 0, 5), pads[1], 1);
    }
}

static void test_pad_of_older_opsets(void **state)
{
    op_case_t c = case_make("", "Pad", 10);
    (void)state;
    count_up(case_input(&c, DIMS(2)), 2);
    case_ints(&c, "pads", DIMS(1, 2));
    case_float(&c, "value", 9.0f);
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&c);
    const float want[5] = {9, 1, 2, 9, 9};
    assert_memory_equal(c.out[0], want, sizeof(want));
    case_string(&c, "mode", "reflect");
    assert_int_equal(case_run_isa(&c, 0), WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(weft_last_error(), "reflect"));
    case_free(&c);
}

static void test_pad_gradient_takes_the_padding_off(void **state)
{
    (void)state;
    for (int layout = 0; layout < 2; layout++) {
        op_case_t c = case_make("weft", "PadGrad", 1);
        float *dy = case_input_typed(&c, WEFT_DTYPE_F32, (weft_layout_t)layout, DIMS(2, 3, 8, 9));
        count_up(dy, 432);
        case_ints(&c, "pads", DIMS(0, 0, 2, 1, 0, 0, 1, 3));
        assert_int_equal(case_infer(&c, 1, (weft_layout_t)layout), WEFT_OK);
        case_run(&c);
        assert_int_equal(c.outputs[0].dims[2], 5);
        for (int64_t i = 0; i < case_count(&c.outputs[0]); i++) {
            int64_t at[4];
            plain_index(c.outputs[0].dims, i, at);
            assert_true(element(&c.outputs[0], c.out[0], i) ==
                        dy[offset4(&c.inputs[0], at[0], at[1], at[2] + 2, at[3] + 1)]);
        }
        case_free(&c);
    }
}

static void check_transpose(const int64_t *dims, const int64_t *perm)
{
    op_case_t c = case_make("", "Transpose", 13);
    float *x = case_input(&c, dims);
    count_up(x, case_count(&c.inputs[0]));
    case_ints(&c, "perm", perm);
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&c);
    for (int64_t i = 0; i < case_count(&c.outputs[0]); i++) {
        int64_t rest = i, digits[WEFT_MAX_DIMS], from = 0;
        for (uint32_t d = c.outputs[0].rank; d-- > 0;) {
            digits[perm[d]] = rest % c.outputs[0].dims[d];
            rest /= c.outputs[0].dims[d];
        }
        for (uint32_t d = 0; d < c.inputs[0].rank; d++) {
            from = from * dims[d] + digits[d];
        }
        assert_true(((float *)c.out[0])[i] == x[from]);
    }
    case_free(&c);
}

static void test_transpose(void **state)
{
    (void)state;
    check_transpose(DIMS(70, 45), DIMS(1, 0));
    check_transpose(DIMS(3, 4, 5), DIMS(2, 0, 1));
    check_transpose(DIMS(3, 4, 5), DIMS(0, 2, 1));
    check_transpose(DIMS(3, 4, 5), DIMS(0, 1, 2));
    check_transpose(DIMS(2, 1, 3, 2, 1, 2, 2, 3), DIMS(7, 0, 6, 1, 5, 2, 4, 3));
    check_transpose(DIMS(0, 4), DIMS(1, 0));
    check_transpose(DIMS(1, 1), DIMS(1, 0));
}

/* Blocks of two tensors side by side, and back. */
static void test_pack_and_unpack(void **state)
{
    op_case_t pack = case_make("weft", "Pack", 1), unpack = case_make("weft", "Unpack", 1);
    static const float packed[] = {1, 2, 3, 1, 4, 5, 6, 2, 7, 8, 9, 3};
    (void)state;
    count_up(case_input(&pack, DIMS(3, 3)), 9);
    count_up(case_input(&pack, DIMS(3)), 3);
    case_int(&pack, "blocks", 3);
    assert_int_equal(case_infer(&pack, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&pack);
    assert_memory_equal(pack.out[0], packed, sizeof(packed));
    memcpy(case_input(&unpack, DIMS(12)), packed, sizeof(packed));
    case_int(&unpack, "blocks", 3);
    case_ints(&unpack, "shapes", DIMS(2, 3, 3, 1, 3));
    assert_int_equal(case_infer(&unpack, 2, WEFT_LAYOUT_PLAIN), WEFT_OK);
    case_run(&unpack);
    assert_memory_equal(unpack.out[0], pack.in[0], 9 * sizeof(float));
    assert_memory_equal(unpack.out[1], pack.in[1], 3 * sizeof(float));
    case_free(&pack);
    case_free(&unpack);
}

/* Shapes that do not divide, or do not fit. */
static void test_pack_refuses(void **state)
{
    static const struct {
        const char *op, *message;
        int64_t elems, blocks, shape[4]; /* ends at -2 */
    } rows[] = {
        {"Pack", "5 elements do not divide into 2 blocks", 5, 2, {-2}},
        {"Pack", "attribute blocks must be at least 1: 0", 4, 0, {-2}},
        {"Pack", "attribute shape has 6 elements, the inputs have 4", 4, 1, {2, 3, -2}},
        {"Unpack", "outputs have 3 elements, the input has 4", 4, 1, {1, 3, -2}},
        {"Unpack", "must be rank and dimensions", 4, 1, {2, 3, -2}},
        {"Unpack", "output 0: 3 elements do not divide into 2 blocks", 4, 2, {1, 3, -2}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        op_case_t c = case_make("weft", rows[i].op, 1);
        case_input(&c, DIMS(rows[i].elems));
        case_int(&c, "blocks", rows[i].blocks);
        if (rows[i].shape[0] != -2) {
            case_ints(&c, rows[i].op[0] == 'P' ? "shape" : "shapes", rows[i].shape);
        }
        test_expect_error(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_ERR_INVALID_ARGUMENT,
                          rows[i].message);
        case_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reshape_permutes_between_layouts),
        cmocka_unit_test(test_identity_moves_any_type_and_changes_layout),
        cmocka_unit_test(test_pad),
        cmocka_unit_test(test_pad_of_older_opsets),
        cmocka_unit_test(test_pad_gradient_takes_the_padding_off),
        cmocka_unit_test(test_transpose),
        cmocka_unit_test(test_pack_and_unpack),
        cmocka_unit_test(test_pack_refuses),
    };
    random_seed(6);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
