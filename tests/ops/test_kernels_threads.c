/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that memory bounds give the same bits for every number of threads and on every instruction
 * set, also at sizes that divide by neither, with NaN, infinities and denormals among the inputs. */
#include "tests/ops/support_kernel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/op_infer.h"

typedef struct {
    const char *domain, *op;
    int32_t version;
    /* f: random, p: positive, u: 0 or 1, l: labels below 50, s: the scalar 2; then dimensions */
    const char *inputs, *outputs;
    const char *ints, *number; /* attributes: name=list, name=float */
} row_t;

#define MS "com.microsoft"
static const row_t rows[] = {
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
    if (kind == 'u') {
        uint8_t *x = case_input_typed(c, WEFT_DTYPE_U8, WEFT_LAYOUT_PLAIN, dims);
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
        if (strcmp(name, "axis") == 0) {
            case_int(&c, "axis", dims[0]);
        } else {
            case_ints(&c,
                      strcmp(name, "pads") == 0      ? "pads"
                      : strcmp(name, "strides") == 0 ? "strides"
                                                     : "kernel_shape",
                      dims);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_do_not_change_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
