/* SPDX-License-Identifier: Apache-2.0 */
/* Shape rules: a table made by onnx 1.12's own shape inference, contradictions, and unknown
 * dimensions. */
#include "ops/op_infer.h"
#include "tests/ops/support_kernel.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * inputs: shapes, "." a scalar, "!i" marks i64 labels or indices. attrs: i: integer, l: list, s:
 * string. constants: further inputs, constant lists of i64. "?" is an unknown dimension.
 */
typedef struct {
    const char *op;
    int32_t version;
    const char *inputs, *attrs, *constants, *expected;
} infer_case_t;

static const infer_case_t cases[] = {
    {"Conv", 11, "1,3,32,32 8,3,3,3", "", "", "1,8,30,30"},
    {"Conv", 11, "2,1,28,28 6,1,5,5 6", "l:pads=2,2,2,2", "", "2,6,28,28"},
    {"Conv", 11, "2,6,14,14 16,6,5,5", "l:kernel_shape=5,5 l:strides=1,1", "", "2,16,10,10"},
    {"Conv", 11, "1,3,31,32 8,3,3,3", "s:auto_pad=SAME_UPPER l:strides=2,2", "", "1,8,16,16"},
    {"Conv", 11, "1,3,32,33 8,3,4,4", "s:auto_pad=SAME_LOWER l:strides=3,2", "", "1,8,11,17"},
    {"Conv", 11, "1,3,32,33 8,3,4,4", "s:auto_pad=VALID l:strides=3,2", "", "1,8,10,15"},
    {"Conv", 11, "1,8,20 4,2,3", "i:group=4 l:dilations=2", "", "1,4,16"},
    {"Conv", 11, "1,2,8,9,10 4,2,3,3,3", "l:pads=1,0,1,0,1,0 l:dilations=1,2,1", "", "1,4,7,6,9"},
    {"ConvTranspose", 11, "1,1,3,3 1,2,3,3", "", "", "1,2,5,5"},
    {"ConvTranspose", 11, "2,4,3,3 4,2,3,3 4", "i:group=2 l:strides=3,2 l:pads=1,2,1,2", "",
     "2,4,7,3"},
    {"ConvTranspose", 11, "1,1,3,3 1,2,3,3", "l:strides=3,2 l:output_shape=10,8", "", "1,2,10,8"},
    {"ConvTranspose", 11, "1,1,3,3 1,2,3,3", "l:strides=3,2 l:output_padding=1,1", "", "1,2,10,8"},
    {"ConvTranspose", 11, "1,1,3,3 1,2,3,3", "s:auto_pad=SAME_LOWER l:strides=2,2", "", "1,2,6,6"},
    {"ConvTranspose", 11, "1,1,3,3 1,1,2,2", "l:dilations=2,2", "", "1,1,5,5"},
    {"ConvTranspose", 11, "1,1,3 1,2,3", "", "", "1,2,5"},
    {"BatchNormalization", 14, "2,3,4 3 3 3 3", "", "", "2,3,4"},
    {"MaxPool", 12, "1,3,32,32", "l:kernel_shape=2,2 l:strides=2,2", "", "1,3,16,16"},
    {"MaxPool", 12, "1,3,31", "l:kernel_shape=3 l:strides=2 s:auto_pad=SAME_UPPER", "", "1,3,16"},
    {"MaxPool", 12, "1,3,10,10", "l:kernel_shape=3,3 l:strides=2,2 i:ceil_mode=1", "", "1,3,5,5"},
    {"AveragePool", 11, "1,3,32,32", "l:kernel_shape=3,3 l:pads=1,1,1,1 i:count_include_pad=1", "",
     "1,3,32,32"},
    {"AveragePool", 11, "1,3,8,8,8", "l:kernel_shape=2,2,2 l:strides=2,2,2", "", "1,3,4,4,4"},
    {"GlobalAveragePool", 11, "2,5,7,9", "", "", "2,5,1,1"},
    {"Gemm", 13, "4,3 3,5 5", "", "", "4,5"},
    {"Gemm", 13, "3,4 5,3 4,1", "i:transA=1 i:transB=1", "", "4,5"},
    {"MatMul", 13, "2,3,4 4,5", "", "", "2,3,5"},
    {"MatMul", 13, "4 4,5", "", "", "5"},
    {"MatMul", 13, "3,4 4", "", "", "3"},
    {"MatMul", 13, "4 4", "", "", ""},
    {"MatMul", 13, "2,1,3,4 7,4,6", "", "", "2,7,3,6"},
    {"Add", 14, "2,3,4 3,1", "", "", "2,3,4"},
    {"Mul", 14, "2,1,4 3,1", "", "", "2,3,4"},
    {"Sub", 14, "5 .", "", "", "5"},
    {"Div", 14, "5 3,1", "", "", "3,5"},
    {"Relu", 14, "2,3", "", "", "2,3"},
    {"Tanh", 13, "2,3,4", "", "", "2,3,4"},
    {"Softmax", 13, "2,3", "i:axis=0", "", "2,3"},
    {"Flatten", 13, "2,3,4,5", "", "", "2,60"},
    {"Flatten", 13, "2,3,4,5", "i:axis=0", "", "1,120"},
    {"Flatten", 13, "2,3,4,5", "i:axis=-1", "", "24,5"},
    {"Flatten", 13, "2,3,4,5", "i:axis=4", "", "120,1"},
    {"Reshape", 13, "2,3,4", "", "0,-1", "2,12"},
    {"Reshape", 13, "2,3,4", "", "-1", "24"},
    {"Reshape", 13, "2,3,4", "", "4,0,2", "4,3,2"},
    {"Reshape", 14, "0,3,4", "i:allowzero=1", "3,4,0", "3,4,0"},
    {"Identity", 13, "2,3", "", "", "2,3"},
    {"Shape", 13, "2,3,4", "", "", "3"},
    {"Shape", 15, "2,3,4,5", "i:start=1 i:end=-1", "", "2"},
    {"Gather", 13, "5,4,3 !i2,7", "i:axis=1", "", "5,2,7,3"},
    {"Slice", 13, "10,20", "", "1,-5 9,-1 0,1 2,1", "4,4"},
    {"Slice", 13, "10,20", "", "-1 -100 0 -3", "4,20"},
    {"Slice", 13, "10,20", "", "2,3 7,100", "5,17"},
    {"Slice", 9, "10,20", "l:starts=2,3 l:ends=7,100", "", "5,17"},
    {"Concat", 13, "2,3 2,5 2,1", "i:axis=-1", "", "2,9"},
    {"Unsqueeze", 13, "3,4", "", "0,-1", "1,3,4,1"},
    {"Unsqueeze", 11, "3,4", "l:axes=1,2", "", "3,1,1,4"},
    {"Squeeze", 13, "1,3,1,4", "", "0,-2", "3,4"},
    {"Squeeze", 11, "1,3,1,4", "l:axes=2", "", "1,3,4"},
    {"Transpose", 13, "2,3,4", "", "", "4,3,2"},
    {"Transpose", 13, "2,3,4", "l:perm=1,2,0", "", "3,4,2"},
    {"Pad", 13, "2,3,4", "", "0,1,2,3,0,1", "5,4,7"},
    {"Pad", 10, "2,3", "l:pads=1,-1,0,2", "", "3,4"},
    {"Cast", 13, "2,3", "i:to=7", "", "2,3"},
    {"Dropout", 13, "2,3", "", "", "2,3"},
    {"SoftmaxCrossEntropyLoss", 13, "4,10 !i4", "", "", ""},
    {"SoftmaxCrossEntropyLoss", 13, "4,10,5 !i4,5", "s:reduction=none", "", "4,5"},
};

/* Not what onnx computes: rules of ours, and dimensions that are unknown. */
static const infer_case_t own_cases[] = {
    {"Conv", 11, "?,3,?,32 8,3,3,3", "l:pads=1,1,1,1", "", "?,8,?,32"},
    {"MaxPool", 12, "?,3,10,10", "l:kernel_shape=2,2 l:strides=2,2", "", "?,3,5,5"},
    {"MaxPool", 12, "1,1,5,5", "l:kernel_shape=2,2 l:strides=3,3 i:ceil_mode=1", "", "1,1,2,2"},
    {"MaxPool", 12, "1,1,4,4", "l:kernel_shape=1,1 l:strides=3,3 i:ceil_mode=1", "", "1,1,2,2"},
    {"Gemm", 13, "?,784 784,512 512", "", "", "?,512"},
    {"Flatten", 13, "?,16,5,5", "", "", "?,400"},
    {"Flatten", 13, "2,?,5,5", "", "", "2,?"},
    {"Reshape", 13, "?,16,5,5", "", "-1,400", "?,400"},
    {"Reshape", 13, "?,16,5,5", "", "0,-1", "?,?"},
    {"Reshape", 1, "2,6", "l:shape=3,-1", "", "3,4"},
    {"Add", 14, "?,4 4", "", "", "?,4"},
    {"Add", 14, "?,4 3,4", "", "", "3,4"},
    {"MatMul", 13, "?,3,? 5,4", "", "", "?,3,4"},
    {"Slice", 13, "?,20", "", "0 5 1", "?,5"},
    {"Concat", 13, "2,? 2,3", "i:axis=1", "", "2,?"},
    {"Pad", 13, "?,4", "", "0,1,0,1", "?,6"},
    {"Pad", 1, "2,4", "l:paddings=0,1,0,1", "", "2,6"},
    {"Softmax", 11, "2,3", "", "", "2,3"},
    {"SoftmaxCrossEntropyLoss", 12, "?,10 !i4", "s:reduction=none", "", "4"},
};

static const infer_case_t wrong[] = {
    {"ConvTranspose", 11, "1,3,3,3 2,2,3,3", "", "", ""},
    {"ConvTranspose", 11, "1,1,3,3 1,2,3,3 3", "", "", ""},
    {"ConvTranspose", 11, "1,1,3,3 1,2,3,3", "l:output_padding=1,1", "", ""},
    {"ConvTranspose", 11, "1,1,3,3 1,2,3,3", "l:pads=3,3,3,3", "", ""},
    {"BatchNormalization", 14, "2,3,4 3 3 3 4", "", "", ""},
    {"Conv", 11, "1,3,32,32 8,4,3,3", "", "", ""},
    {"Conv", 11, "1,3,32,32 8,3,3", "", "", ""},
    {"Conv", 11, "1,3,2,2 8,3,3,3", "", "", ""},
    {"Conv", 11, "1,3 8,3", "", "", ""},
    {"Conv", 11, "1,3,9,9 8,3,3,3 7", "", "", ""},
    {"Conv", 11, "1,3,9,9 8,3,3,3", "l:strides=0,1", "", ""},
    {"Conv", 11, "1,3,9,9 8,3,3,3", "l:strides=1", "", ""},
    {"Conv", 11, "1,3,9,9 8,3,3,3", "l:pads=-1,0,0,0", "", ""},
    {"Conv", 11, "1,3,9,9 8,3,3,3", "l:kernel_shape=5,5", "", ""},
    {"Conv", 11, "1,3,9,9 8,3,3,3", "l:dilations=9223372036854775807,1", "", ""},
    {"Conv", 11, "1,3,9,9 8,3,3,3", "s:auto_pad=MIDDLE", "", ""},
    {"Conv", 11, "1,4,9,9 3,2,3,3", "i:group=2", "", ""},
    {"Conv", 11, "1,4,9,9 3,2,3,3", "i:group=0", "", ""},
    {"MaxPool", 12, "1,3,9,9", "", "", ""},
    {"MaxPool", 12, "1,3,9,9", "l:kernel_shape=2,2 l:pads=2,2,2,2", "", ""},
    {"Gemm", 13, "4,3 4,5", "", "", ""},
    {"Gemm", 13, "4,3 3,5 4", "", "", ""},
    {"Gemm", 13, "4,3 3,5 2,4,5", "", "", ""},
    {"Gemm", 13, "4,3,2 3,5", "", "", ""},
    {"MatMul", 13, "4,3 4,5", "", "", ""},
    {"MatMul", 13, ". 4,5", "", "", ""},
    {"Add", 14, "2,3 2", "", "", ""},
    {"Add", 14, "2,3", "", "", ""},
    {"Add", 14, "2,3 !i2,3", "", "", ""},
    {"Flatten", 13, "2,3", "i:axis=3", "", ""},
    {"Reshape", 13, "2,3", "", "4", ""},
    {"Reshape", 13, "2,3", "", "-1,-1", ""},
    {"Reshape", 13, "2,3", "", "-3", ""},
    {"Reshape", 13, "2,3", "", "-1,4", ""},
    {"Reshape", 13, "2,3", "", "1,1,0,6", ""},
    {"Reshape", 13, "2,3", "", "4611686018427387904,4611686018427387904", ""},
    {"Gather", 13, "2,3 !i1", "i:axis=2", "", ""},
    {"Slice", 13, "4", "", "0 4 0 0", ""},
    {"Slice", 13, "4", "", "0,1 4", ""},
    {"Slice", 13, "4", "", "0 4 1", ""},
    {"Concat", 13, "2,3 3,3", "i:axis=1", "", ""},
    {"Concat", 13, "9223372036854775807 9223372036854775807", "i:axis=0", "", ""},
    {"Unsqueeze", 13, "3", "", "0,0", ""},
    {"Unsqueeze", 13, "1,1,1,1,1,1,1,1", "", "0", ""},
    {"Squeeze", 13, "2,1", "", "0", ""},
    {"Transpose", 13, "2,3", "l:perm=0,0", "", ""},
    {"Transpose", 13, "2,3", "l:perm=0", "", ""},
    {"Pad", 13, "2,3", "", "1,1", ""},
    {"Pad", 13, "2,3", "", "-3,0,0,0", ""},
    {"Pad", 13, "2,3", "", "9223372036854775807,0,0,0", ""},
    {"Cast", 13, "2", "i:to=8", "", ""},
    {"Constant", 13, "", "", "", ""},
    {"SoftmaxCrossEntropyLoss", 13, "4,10 !i5", "", "", ""},
    {"SoftmaxCrossEntropyLoss", 13, "4,10 4", "", "", ""},
    {"SoftmaxCrossEntropyLoss", 13, "4,10 !i4", "s:reduction=max", "", ""},
    {"SoftmaxCrossEntropyLoss", 13, "4,10 !i4 9", "", "", ""},
};

/* Reads "1,2,?" and stops at a blank or the end; @return what follows. */
static const char *read_list(const char *text, int64_t *out, uint32_t *count)
{
    *count = 0;
    if (*text == '.') {
        text++;
    }
    while (*text != '\0' && *text != ' ') {
        char *end;
        assert_true(*count < 2 * WEFT_MAX_DIMS);
        out[(*count)++] = *text == '?' ? -1 : strtoll(text, &end, 10);
        text = *text == '?' ? text + 1 : end;
        text += *text == ',';
    }
    return text + (*text == ' ');
}

typedef struct {
    op_case_t c;
    int64_t lists[CASE_TENSORS][2 * WEFT_MAX_DIMS]; /* contents of constants */
    char text[4][32];                               /* string attributes */
} parsed_t;

static void parse_tensors(parsed_t *p, const infer_case_t *from)
{
    for (const char *at = from->inputs; *at != '\0';) {
        weft_tensor_desc_t *t = &p->c.inputs[p->c.input_count++];
        t->dtype = WEFT_DTYPE_F32;
        if (strncmp(at, "!i", 2) == 0) {
            t->dtype = WEFT_DTYPE_I64;
            at += 2;
        }
        int64_t dims[2 * WEFT_MAX_DIMS] = {0};
        at = read_list(at, dims, &t->rank);
        assert_true(t->rank <= WEFT_MAX_DIMS);
        memcpy(t->dims, dims, sizeof(t->dims));
    }
    for (const char *at = from->constants; *at != '\0';) {
        uint32_t i = p->c.input_count++, count;
        at = read_list(at, p->lists[i], &count);
        p->c.inputs[i] = (weft_tensor_desc_t){
            .dtype = WEFT_DTYPE_I64, .rank = 1, .dims = {count}, .data = p->lists[i]};
    }
}

static void parse_attrs(parsed_t *p, const infer_case_t *from, char *names)
{
    uint32_t texts = 0;
    for (const char *at = from->attrs; *at != '\0';) {
        const char *equal = strchr(at, '=');
        assert_non_null(equal);
        int64_t values[2 * WEFT_MAX_DIMS + 1];
        uint32_t count = 0;
        snprintf(names, 32, "%.*s", (int)(equal - at - 2), at + 2);
        if (*at == 's') {
            size_t length = strcspn(equal + 1, " ");
            snprintf(p->text[texts], 32, "%.*s", (int)length, equal + 1);
            case_string(&p->c, names, p->text[texts++]);
            at = equal + 1 + length + (equal[1 + length] == ' ');
        } else {
            const char *rest = read_list(equal + 1, values, &count);
            values[count] = -2;
            if (*at == 'i') {
                case_int(&p->c, names, values[0]);
            } else {
                case_ints(&p->c, names, values);
            }
            at = rest;
        }
        names += 32;
    }
}

static weft_status_t infer(const infer_case_t *from, weft_tensor_desc_t *out)
{
    static char names[CASE_ATTRS][32];
    parsed_t p = {.c = case_make("", from->op, from->version)};
    parse_tensors(&p, from);
    parse_attrs(&p, from, names[0]);
    weft_node_desc_t node = case_node(&p.c);
    memset(out, 0x5a, sizeof(*out));
    node.output_count = 1;
    node.outputs = out;
    return case_def(&p.c)->infer(&node);
}

static void check(const infer_case_t *from)
{
    weft_tensor_desc_t out;
    int64_t want[2 * WEFT_MAX_DIMS];
    uint32_t rank;
    if (infer(from, &out) != WEFT_OK) {
        fail_msg("%s %s %s: %s", from->op, from->inputs, from->attrs, weft_last_error());
    }
    read_list(from->expected, want, &rank);
    bool same = out.rank == rank && out.data == NULL && out.layout == WEFT_LAYOUT_PLAIN;
    for (uint32_t d = 0; same && d < rank; d++) {
        same = out.dims[d] == want[d];
    }
    if (!same) {
        fail_msg("%s %s %s: rank %u, %lld..., expected %s", from->op, from->inputs, from->attrs,
                 out.rank, (long long)out.dims[0], from->expected);
    }
}

static void test_shapes_are_those_of_onnx(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        check(&cases[i]);
    }
}

static void test_unknown_dimensions_are_carried(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(own_cases) / sizeof(own_cases[0]); i++) {
        check(&own_cases[i]);
    }
}

static void test_contradictions_are_errors_with_a_message(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        weft_tensor_desc_t out;
        weft_status_t status = infer(&wrong[i], &out);
        if (status != WEFT_ERR_INVALID_ARGUMENT && status != WEFT_ERR_UNSUPPORTED) {
            fail_msg("%s %s %s %s was accepted", wrong[i].op, wrong[i].inputs, wrong[i].attrs,
                     wrong[i].constants);
        }
        assert_true(strlen(weft_last_error()) > 10);
    }
}

static void test_integer_constants_may_be_unaligned_and_narrow(void **state)
{
    char bytes[17] = {0};
    const int64_t wide[2] = {6, -1};
    const int32_t narrow[2] = {6, -1};
    (void)state;
    for (int is_wide = 0; is_wide < 2; is_wide++) {
        weft_tensor_desc_t out, in[2] = {{.dtype = WEFT_DTYPE_F32, .rank = 2, .dims = {4, 3}}};
        memcpy(bytes + 1, is_wide ? (const void *)wide : narrow, is_wide ? 16 : 8);
        in[1] = (weft_tensor_desc_t){.dtype = is_wide ? WEFT_DTYPE_I64 : WEFT_DTYPE_I32,
                                     .rank = 1,
                                     .dims = {2},
                                     .data = bytes + 1};
        op_case_t c = case_make("", "Reshape", 13);
        weft_node_desc_t node = case_node(&c);
        node.inputs = in;
        node.input_count = 2;
        node.outputs = &out;
        node.output_count = 1;
        assert_int_equal(case_def(&c)->infer(&node), WEFT_OK);
        assert_int_equal(out.rank, 2);
        assert_int_equal(out.dims[0], 6);
        assert_int_equal(out.dims[1], 2);
    }
}

static void test_pad_of_some_axes(void **state)
{
    const int64_t pads[2] = {1, 2}, axes[1] = {-1};
    weft_tensor_desc_t out, in[4] = {
                                {.dtype = WEFT_DTYPE_F32, .rank = 3, .dims = {2, 3, 4}},
                                {.dtype = WEFT_DTYPE_I64, .rank = 1, .dims = {2}, .data = pads},
                                {.dtype = WEFT_DTYPE_NONE},
                                {.dtype = WEFT_DTYPE_I64, .rank = 1, .dims = {1}, .data = axes},
                            };
    op_case_t c = case_make("", "Pad", 18);
    weft_node_desc_t node = case_node(&c);
    (void)state;
    node.inputs = in;
    node.input_count = 4;
    node.outputs = &out;
    node.output_count = 1;
    assert_int_equal(case_def(&c)->infer(&node), WEFT_OK);
    assert_int_equal(out.dims[0], 2);
    assert_int_equal(out.dims[2], 7);
}

/* Every rule on every number of inputs of odd shapes: no crash, and success only with sane outputs.
 */
static int poke(const weft_op_def_t *def, void *user)
{
    (void)user;
    for (int round = 0; round < 60; round++) {
        weft_tensor_desc_t in[6], out[4];
        weft_attr_t attrs[8];
        const int64_t values[8] = {0, -1, 1, 2, INT64_MAX, INT64_MIN, 3, -2};
        const char *words[8] = {"float32",  "",        "Add",  "x",
                                "bfloat16", "float99", "Tanh", "float16"};
        memset(in, 0, sizeof(in));
        memset(attrs, 0, sizeof(attrs));
        for (int i = 0; i < 6; i++) {
            in[i].dtype = (weft_dtype_t)random_below(15);
            in[i].rank = random_below(random_below(9) == 0 ? 40 : 6);
            for (uint32_t d = 0; d < WEFT_MAX_DIMS; d++) {
                in[i].dims[d] = random_below(3) == 0 ? values[random_below(8)] : random_below(9);
            }
            if (random_below(2) == 0) {
                in[i] = (weft_tensor_desc_t){
                    .dtype = WEFT_DTYPE_I64, .rank = 1, .dims = {random_below(9)}, .data = values};
            }
        }
        uint32_t count = 0;
        for (; count < def->attr_count && count < 8; count++) {
            attrs[count] = (weft_attr_t){.name = def->attrs[count].name,
                                         .type = def->attrs[count].type,
                                         .i = values[random_below(8)],
                                         .s = "mean",
                                         .count = random_below(9),
                                         .ints = values,
                                         .strings = words};
        }
        weft_node_desc_t node = {.domain = def->domain,
                                 .op = def->name,
                                 .name = "n",
                                 .version = def->since_version,
                                 .inputs = in,
                                 .outputs = out,
                                 .attrs = attrs,
                                 .attr_count = random_below(count + 1),
                                 .input_count = random_below(7),
                                 .output_count = random_below(5)};
        weft_status_t status = wefti_op_infer(def, &node);
        assert_true(status == WEFT_OK || status == WEFT_ERR_INVALID_ARGUMENT ||
                    status == WEFT_ERR_UNSUPPORTED);
    }
    return 0;
}

static void test_hostile_nodes_are_survived(void **state)
{
    (void)state;
    weft_op_registry_visit(case_registry(), poke, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes_are_those_of_onnx),
        cmocka_unit_test(test_unknown_dimensions_are_carried),
        cmocka_unit_test(test_contradictions_are_errors_with_a_message),
        cmocka_unit_test(test_integer_constants_may_be_unaligned_and_narrow),
        cmocka_unit_test(test_pad_of_some_axes),
        cmocka_unit_test(test_hostile_nodes_are_survived),
    };
    random_seed(4);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
