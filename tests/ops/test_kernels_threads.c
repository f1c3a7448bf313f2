/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that memory bounds give the same bits for every number of threads and on every instruction
 * set, also at sizes that divide by neither, with NaN, infinities and denormals among the inputs; of
 * half types those of f32, rounded once. */
#include "tests/ops/support_kernel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/op_infer.h"
#include "runtime/base/half.h"

typedef struct {
    const char *domain, *op;
    int32_t version;
    /* f: random with odd values, g: without, p: positive, u: 0 or 1, c: bool, l: labels below 50,
     * s: the scalar 2, -: absent; then dimensions */
    const char *inputs, *outputs;
    const char *ints, *number; /* attributes: name=list, name=float */
} row_t;

#define MS "com.microsoft"
static const row_t rows[] = {
    {"", "Transpose", 13, "f203x511", "f511x203", "perm=1,0", ""},
    {"", "Transpose", 13, "f7x61x5x59", "f7x5x61x59", "perm=0,2,1,3", ""},
    {"", "Identity", 13, "f203x511", "f203x511", "", ""},
    {"", "Gather", 13, "f50x511 l203", "f203x511", "axis=0", ""},
    {"weft", "GatherGrad", 1, "f203x511 l203", "f50x511", "axis=0 input_shape=50,511", ""},
    {"", "Concat", 13, "f203x300 f203x211", "f203x511", "axis=1", ""},
    {"", "Concat", 13, "f100x511 f103x511", "f203x511", "axis=0", ""},
    {"", "Split", 2, "f203x511", "f203x300 f203x211", "axis=1 split=300,211", ""},
    {"", "Slice", 1, "f203x511", "f200x300", "starts=1,5 ends=201,305", ""},
    {"", "Expand", 8, "f1x511", "f203x511", "", ""},
    {"", "Where", 9, "c203x511 f511 f203x511", "f203x511", "", ""},
    {"", "Cast", 13, "l100003", "f100003", "to=1", ""},
    {"weft", "SumTo", 1, "f203x511", "f511", "shape=511", ""},
    {"weft", "SumTo", 1, "f7x61x5x59", "f61x1x59", "shape=61,1,59", ""},
    {"weft", "SumTo", 1, "f203x511", "f203x1", "shape=203,1", ""},
    {"", "ReduceMax", 1, "f203x511", "f1x511", "axes=0", ""},
    {"", "ReduceLogSumExp", 1, "f203x511", "f203x1", "axes=1", ""},
    {"", "Gelu", 20, "f203x511", "f203x511", "", ""},
    {"weft", "TanhGrad", 1, "f203x511 f203x511", "f203x511", "", ""},
    {"", "Exp", 13, "f203x511", "f203x511", "", ""},
    {"", "Add", 14, "f203x511 f511", "f203x511", "", ""},
    {"", "Mul", 14, "f100003 f100003", "f100003", "", ""},
    {"", "Sub", 14, "f203x1 f203x511", "f203x511", "", ""},
    {"", "Greater", 13, "f203x511 f203x511", "u203x511", "", ""},
    {"", "Max", 13, "f203x511 f511 f203x511", "f203x511", "", ""},
    {"", "Softmax", 13, "f203x511", "f203x511", "axis=1", ""},
    {"", "Softmax", 13, "f7x50x300", "f7x50x300", "axis=1", ""},
    {"", "LogSoftmax", 13, "f203x511", "f203x511", "axis=1", ""},
    {"weft", "SoftmaxGrad", 1, "f203x511 f203x511", "f203x511", "axis=1", ""},
    {"weft", "LogSoftmaxGrad", 1, "f7x50x300 f7x50x300", "f7x50x300", "axis=1", ""},
    {"", "SoftmaxCrossEntropyLoss", 13, "f2003x50 l2003", "f f2003x50", "", ""},
    {"", "SoftmaxCrossEntropyLoss", 13, "f2003x50 l2003 p50", "f", "", ""},
    {MS, "SoftmaxCrossEntropyLossGrad", 1, "f f2003x50 l2003", "f2003x50", "", ""},
    {"", "LayerNormalization", 17, "f203x511 f511 f511", "f203x511 f203x1 f203x1", "axis=1", ""},
    {MS, "LayerNormalizationGrad", 1, "f203x511 f203x511 f511 f203x1 f203x1", "f203x511 f511 f511",
     "axis=1", ""},
    {"weft", "BatchNormTraining", 1, "f5x37x25x23 f37 f37 f37 p37", "f5x37x25x23 f37 f37", "", ""},
    {"weft", "BatchNormTraining", 1, "f7x4099x2x2 f4099 f4099 f4099 p4099",
     "f7x4099x2x2 f4099 f4099", "", ""},
    {"weft", "BatchNormGrad", 1, "f5x37x25x23 f5x37x25x23 f37 f37 p37", "f5x37x25x23 f37 f37", "",
     ""},
    {"", "BatchNormalization", 15, "f1x0x4611686018427387903 f0 f0 f0 p0",
     "f1x0x4611686018427387903", "", ""},
    {"weft", "BatchNormTraining", 1, "f4611686018427387904x3x0 f3 f3 f3 p3",
     "f4611686018427387904x3x0 f3 f3", "", ""},
    {"weft", "DropoutMask", 1, "f203x511 l s", "f203x511 u203x511", "", "ratio=0.3"},
    {"weft", "DropoutGrad", 1, "f203x511 u203x511", "f203x511", "", "ratio=0.3"},
    {"weft", "MaxPoolMask", 1, "f7x5x61x59", "f7x5x31x30 u7x5x31x30",
     "kernel_shape=3,3 strides=2,2 pads=1,1,1,1", ""},
    {"weft", "MaxPoolGrad", 1, "f7x5x31x30 u7x5x31x30", "f7x5x61x59",
     "kernel_shape=3,3 strides=2,2 pads=1,1,1,1", ""},
    {"", "AveragePool", 11, "f7x5x61x59", "f7x5x31x30", "kernel_shape=3,3 strides=2,2 pads=1,1,1,1",
     ""},
    {"", "Softmax", 13, "f6x150x511", "f6x150x511", "axis=1", ""},
    {"weft", "SoftmaxGrad", 1, "f6x150x511 f6x150x511", "f6x150x511", "axis=2", ""},
    {"", "LayerNormalization", 17, "f6x150x511 f511 f511", "f6x150x511 f6x150x1 f6x150x1", "axis=2",
     ""},
    {"", "Conv", 11, "f6x30x43x41 f7x30x3x3 f7", "f6x7x43x41", "pads=1,1,1,1", ""},
    {"", "BatchNormalization", 15, "g6x30x43x61 f30 f30 f30 p30", "f6x30x43x61", "training_mode=1",
     ""},
    {"weft", "FlashAttention", 1, "g6x4x150x64 g6x4x150x64 g6x4x150x64", "f6x4x150x64 f6x4x150",
     "causal=1", ""},
    {"weft", "FlashAttention", 1, "g6x4x70x64 g6x4x70x64 g6x4x70x64 g6x1x1x70", "f6x4x70x64", "",
     ""},
    {"weft", "FlashAttentionGrad", 1,
     "g6x4x70x64 - g6x4x70x64 g6x4x70x64 g6x4x70x64 - g6x4x70x64 g6x4x70",
     "f6x4x70x64 f6x4x70x64 f6x4x70x64", "causal=1", ""},
    {"", "Where", 9, "c203x511 f203x511 f1", "f203x511", "", ""},
    {"", "MatMul", 13, "f61x700 f700x77", "f61x77", "", ""},
    {"", "MatMul", 13, "f3x33x40 f3x40x520", "f3x33x520", "", ""},
    {MS, "FusedMatMul", 1, "f3x40x33 f3x40x520", "f3x33x520", "transA=1", ""},
    {MS, "FusedMatMul", 1, "f130x257 f301x257", "f130x301", "transB=1", ""},
    {"", "Gemm", 13, "f300x29 f99x300 f99", "f29x99", "transA=1 transB=1", ""},
    {"", "Gemm", 13, "f1000x30 f30x9 f9", "f1000x9", "", ""},
    {"", "Gemm", 13, "f20x40 f1950x40 f1950", "f20x1950", "transB=1", ""},
    {"", "Conv", 11, "f2x5x23x21 f7x5x3x3 f7", "f2x7x23x21", "pads=1,1,1,1", ""},
    {MS, "ConvGrad", 1, "f2x7x12x11 f2x5x23x21 f7x5x3x3", "f2x5x23x21 f7x5x3x3 f7",
     "pads=1,1,1,1 strides=2,2", ""},
    {MS, "ConvGrad", 1, "f2x7x23x21 f2x5x23x21 f7x5x3x3", "f2x5x23x21 f7x5x3x3 f7", "pads=1,1,1,1",
     ""},
    {"", "GlobalAveragePool", 1, "f30x99x7x7", "f30x99x1x1", "", ""},
    {"weft", "SGD", 1, "f100003 f100003 s", "f100003", "", ""},
    {"weft", "Adam", 1, "f100003 f100003 f100003 p100003 s s", "f100003 f100003 f100003", "", ""},
    {"weft", "Lamb", 1, "f100003 f100003 f100003 p100003 s s", "f100003 f100003 f100003", "", ""},
};

/* Dimensions, up to a space. */
static const char *read_dims(const char *text, char separator, int64_t *dims)
{
    int count = 0;
    while (*text >= '0' && *text <= '9') {
        char *end;
        dims[count++] = strtoll(text, &end, 10);
        text = *end == separator ? end + 1 : end;
    }
    dims[count] = -2;
    return text + strspn(text, " ");
}

static void fill_floats(float *x, int64_t count, char kind)
{
    static const float odd[] = {0.0f, -0.0f, 1e-40f, -1e-45f, 1e30f, -1e30f};
    random_fill(x, count, kind == 'p' ? 0.5f : -4.0f, 4.0f);
    for (int64_t i = 17; i < count && kind == 'f'; i += 997) {
        x[i] = odd[random_below(WEFTI_COUNT(odd))];
    }
    if (kind == 's') {
        x[0] = 2.0f;
    }
}

static void add_input(op_case_t *c, const char **text)
{
    int64_t dims[WEFT_MAX_DIMS + 1];
    const char kind = *(*text)++;
    *text = read_dims(*text, 'x', dims);
    if (kind == '-') {
        case_absent_input(c);
    } else if (kind == 'u' || kind == 'c') {
        const weft_dtype_t dtype = kind == 'c' ? WEFT_DTYPE_BOOL : WEFT_DTYPE_U8;
        uint8_t *x = case_input_typed(c, dtype, WEFT_LAYOUT_PLAIN, dims);
        for (int64_t i = 0; i < case_count(&c->inputs[c->input_count - 1]); i++) {
            x[i] = (uint8_t)random_below(2);
        }
    } else if (kind == 'l') {
        int64_t *x = case_input_typed(c, WEFT_DTYPE_I64, WEFT_LAYOUT_PLAIN, dims);
        for (int64_t i = 0; i < case_count(&c->inputs[c->input_count - 1]); i++) {
            x[i] = random_below(50);
        }
    } else {
        float *x = case_input(c, dims);
        fill_floats(x, case_count(&c->inputs[c->input_count - 1]), kind);
    }
}

static op_case_t make(const row_t *row)
{
    op_case_t c = case_make(row->domain, row->op, row->version);
    int64_t dims[WEFT_MAX_DIMS + 1];
    char name[32];
    for (const char *at = row->inputs; *at != '\0';) {
        add_input(&c, &at);
    }
    for (const char *at = row->outputs; *at != '\0';) {
        const bool compares = strcmp(row->op, "Greater") == 0;
        const weft_dtype_t bytes = compares ? WEFT_DTYPE_BOOL : WEFT_DTYPE_U8;
        const weft_dtype_t dtype = *at++ == 'u' ? bytes : WEFT_DTYPE_F32;
        at = read_dims(at, 'x', dims);
        case_output(&c, dtype, WEFT_LAYOUT_PLAIN, dims);
    }
    for (const char *at = row->ints; *at != '\0';) {
        const size_t length = strcspn(at, "=");
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        at = read_dims(at + length + 1, ',', dims);
        /* The first ones are numbers. */
        static const char *const names[] = {"axis",          "transA", "transB",  "to",
                                            "training_mode", "causal", "pads",    "kernel_shape",
                                            "perm",          "starts", "strides", "input_shape",
                                            "ends",          "split",  "shape",   "axes"};
        size_t n = 0;
        while (strcmp(name, names[n]) != 0) {
            assert_true(++n < WEFTI_COUNT(names));
        }
        if (n < 6) {
            case_int(&c, names[n], dims[0]);
        } else {
            case_ints(&c, names[n], dims);
        }
    }
    if (strncmp(row->number, "ratio=", 6) == 0) {
        case_float(&c, "ratio", strtof(row->number + 6, NULL));
    }
    return c;
}

static void poison(op_case_t *c)
{
    for (uint32_t i = 0; i < c->output_count; i++) {
        const size_t size = weft_dtype_size_bytes(c->outputs[i].dtype);
        memset(c->out[i], 0xff, (size_t)case_count(&c->outputs[i]) * size);
    }
}

static void test_threads_do_not_change_bits(void **state)
{
    (void)state;
    random_seed(test_seed());
    for (size_t r = 0; r < WEFTI_COUNT(rows); r++) {
        op_case_t c = make(&rows[r]);
        void *one[CASE_TENSORS] = {NULL};
        case_run(&c); /* portable C first; outputs are those of the best instruction set */
        for (uint32_t i = 0; i < c.output_count; i++) {
            const size_t size = weft_dtype_size_bytes(c.outputs[i].dtype);
            const size_t bytes = (size_t)case_count(&c.outputs[i]) * size;
            one[i] = malloc(bytes + 1);
            assert_non_null(one[i]);
            memcpy(one[i], c.out[i], bytes);
        }
        for (uint32_t threads = 2; threads <= 5; threads += 3) {
            poison(&c);
            case_run_threads(&c, threads);
            for (uint32_t i = 0; i < c.output_count; i++) {
                const size_t size = weft_dtype_size_bytes(c.outputs[i].dtype);
                if (memcmp(one[i], c.out[i], (size_t)case_count(&c.outputs[i]) * size) != 0) {
                    fail_msg("%s: output %u differs on %u threads", rows[r].op, i, threads);
                }
            }
        }
        for (uint32_t i = 0; i < c.output_count; i++) {
            free(one[i]);
        }
        case_free(&c);
    }
}

/* Tensor in the half type in place of f32; what a half cannot hold is rounded in both. */
static void *halve(weft_tensor_desc_t *desc, float *wide, weft_dtype_t half)
{
    const int64_t count = case_count(desc);
    uint16_t *narrow = malloc((size_t)count * sizeof(*narrow) + 1);
    assert_non_null(narrow);
    for (int64_t i = 0; i < count; i++) {
        narrow[i] =
            half == WEFT_DTYPE_F16 ? wefti_f16_from_f32(wide[i]) : wefti_bf16_from_f32(wide[i]);
        wide[i] =
            half == WEFT_DTYPE_F16 ? wefti_f16_to_f32(narrow[i]) : wefti_bf16_to_f32(narrow[i]);
    }
    desc->dtype = half;
    return narrow;
}

/* The result of f32 rounded once, on every instruction set and by several threads. */
static void check_half(const row_t *row, weft_dtype_t half)
{
    op_case_t c = make(row), narrow = c;
    for (uint32_t i = 0; i < c.input_count; i++) {
        if (c.inputs[i].dtype == WEFT_DTYPE_F32) {
            narrow.in[i] = halve(&narrow.inputs[i], c.in[i], half);
        }
    }
    case_run_threads(&c, 1);
    for (uint32_t i = 0; i < c.output_count; i++) {
        if (c.outputs[i].dtype == WEFT_DTYPE_F32) {
            narrow.out[i] = halve(&narrow.outputs[i], c.out[i], half);
        }
    }
    void *expected[CASE_TENSORS] = {NULL};
    for (uint32_t i = 0; i < c.output_count; i++) {
        const size_t bytes =
            (size_t)case_count(&c.outputs[i]) * weft_dtype_size_bytes(narrow.outputs[i].dtype);
        expected[i] = malloc(bytes + 1);
        assert_non_null(expected[i]);
        memcpy(expected[i], narrow.out[i], bytes);
    }
    for (uint32_t pass = 0; pass < 2; pass++) {
        if (pass == 0) {
            case_run(&narrow);
        } else {
            poison(&narrow);
            case_run_threads(&narrow, 3);
        }
        for (uint32_t i = 0; i < c.output_count; i++) {
            const size_t size = weft_dtype_size_bytes(narrow.outputs[i].dtype);
            if (memcmp(expected[i], narrow.out[i], (size_t)case_count(&c.outputs[i]) * size) != 0) {
                fail_msg("%s of %s: output %u is not that of f32, rounded once", row->op,
                         weft_dtype_name(half), i);
            }
        }
    }
    for (uint32_t i = 0; i < CASE_TENSORS; i++) {
        if (i < c.input_count && narrow.in[i] != c.in[i]) {
            free(narrow.in[i]);
        }
        if (i < c.output_count && narrow.out[i] != c.out[i]) {
            free(narrow.out[i]);
        }
        free(expected[i]);
    }
    case_free(&c);
}

static void test_half_types_are_rounded_once(void **state)
{
    (void)state;
    random_seed(test_seed());
    for (size_t r = 0; r < WEFTI_COUNT(rows); r++) {
        check_half(&rows[r], r % 2 == 0 ? WEFT_DTYPE_BF16 : WEFT_DTYPE_F16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_do_not_change_bits),
        cmocka_unit_test(test_half_types_are_rounded_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
