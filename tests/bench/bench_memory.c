/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels that memory bounds, at sizes of transformers and of ResNet, next to a loop that scales
 * one array into another of the same bytes in total: one line of JSON each.
 *
 * usage: bench_memory [REPEATS [PATTERN [SHRINK [THREADS [ISA]]]]]
 *   PATTERN: only labels that contain it. SHRINK divides the first dimension of every tensor whose
 *   first dimension is that of the first one: 32 or more keeps a row in the cache.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/registry.h>

#include "runtime/base/sync.h"

enum { WARMUP = 2, TENSORS = 8, ATTRS = 4 };

typedef struct row {
    const char *label, *domain, *op;
    int version;
    /* f32, i64 (fN%M: below M), u8 or one (a scalar of value 1), then dimensions */
    const char *inputs, *outputs, *attrs;
} row_t;

#define MS "com.microsoft"
static const row_t rows[] = {
    {"softmax", "", "Softmax", 13, "f49152x512", "f49152x512", "axis=-1"},
    {"softmax 1024", "", "Softmax", 13, "f8192x1024", "f8192x1024", "axis=-1"},
    {"softmax gradient", "weft", "SoftmaxGrad", 1, "f49152x512 f49152x512", "f49152x512",
     "axis=-1"},
    {"log-softmax", "", "LogSoftmax", 13, "f512x30522", "f512x30522", "axis=-1"},
    {"log-softmax gradient", "weft", "LogSoftmaxGrad", 1, "f512x30522 f512x30522", "f512x30522",
     "axis=-1"},
    {"loss", "", "SoftmaxCrossEntropyLoss", 13, "f512x30522 i512%30522", "f f512x30522", ""},
    {"loss gradient", MS, "SoftmaxCrossEntropyLossGrad", 1, "f f512x30522 i512%30522", "f512x30522",
     ""},
    {"layer norm", "", "LayerNormalization", 17, "f8192x768 f768 f768", "f8192x768 f8192x1 f8192x1",
     "axis=-1"},
    {"layer norm gradient", MS, "LayerNormalizationGrad", 1,
     "f8192x768 f8192x768 f768 f8192x1 f8192x1", "f8192x768 f768 f768", "axis=-1"},
    {"batch norm", "weft", "BatchNormTraining", 1, "f32x64x56x56 f64 f64 f64 one64",
     "f32x64x56x56 f64 f64", ""},
    {"batch norm gradient", "weft", "BatchNormGrad", 1, "f32x64x56x56 f32x64x56x56 f64 f64 one64",
     "f32x64x56x56 f64 f64", ""},
    {"batch norm 7x7", "weft", "BatchNormTraining", 1, "f32x2048x7x7 f2048 f2048 f2048 one2048",
     "f32x2048x7x7 f2048 f2048", ""},
    {"batch norm gradient 7x7", "weft", "BatchNormGrad", 1,
     "f32x2048x7x7 f32x2048x7x7 f2048 f2048 one2048", "f32x2048x7x7 f2048 f2048", ""},
    {"gelu", "", "Gelu", 20, "f8192x768", "f8192x768", ""},
    {"gelu gradient", "weft", "GeluGrad", 1, "f8192x768 f8192x768", "f8192x768", ""},
    {"gelu tanh", "", "Gelu", 20, "f8192x768", "f8192x768", "approximate=stanh"},
    {"gelu tanh gradient", "weft", "GeluGrad", 1, "f8192x768 f8192x768", "f8192x768",
     "approximate=stanh"},
    {"erf", "", "Erf", 13, "f8192x768", "f8192x768", ""},
    {"tanh", "", "Tanh", 13, "f8192x768", "f8192x768", ""},
    {"tanh gradient", "weft", "TanhGrad", 1, "f8192x768 f8192x768", "f8192x768", ""},
    {"sigmoid", "", "Sigmoid", 13, "f8192x768", "f8192x768", ""},
    {"sigmoid gradient", "weft", "SigmoidGrad", 1, "f8192x768 f8192x768", "f8192x768", ""},
    {"exp", "", "Exp", 13, "f8192x768", "f8192x768", ""},
    {"log", "", "Log", 13, "f8192x768", "f8192x768", ""},
    {"silu", "", "Swish", 24, "f8192x768", "f8192x768", ""},
    {"silu gradient", "weft", "SwishGrad", 1, "f8192x768 f8192x768", "f8192x768", ""},
    {"sqrt", "", "Sqrt", 13, "f8192x768", "f8192x768", ""},
    {"power", "", "Pow", 13, "f8192x768 two", "f8192x768", ""},
    {"relu", "", "Relu", 14, "f32x64x56x56", "f32x64x56x56", ""},
    {"relu gradient", MS, "ReluGrad", 1, "f32x64x56x56 f32x64x56x56", "f32x64x56x56", ""},
    {"clip", "", "Clip", 13, "f32x64x56x56 f one", "f32x64x56x56", ""},
    {"dropout", "weft", "DropoutMask", 1, "f8192x768 i one", "f8192x768 u8192x768", "ratio=f0.1"},
    {"dropout gradient", "weft", "DropoutGrad", 1, "f8192x768 u8192x768", "f8192x768",
     "ratio=f0.1"},
    {"max pool", "weft", "MaxPoolMask", 1, "f32x64x112x112", "f32x64x56x56 u32x64x56x56",
     "kernel_shape=3,3 strides=2,2 pads=1,1,1,1"},
    {"max pool gradient", "weft", "MaxPoolGrad", 1, "f32x64x56x56 u32x64x56x56", "f32x64x112x112",
     "kernel_shape=3,3 strides=2,2 pads=1,1,1,1"},
    {"average pool", "", "AveragePool", 11, "f32x64x112x112", "f32x64x56x56",
     "kernel_shape=2,2 strides=2,2"},
    {"global average pool", "", "GlobalAveragePool", 1, "f32x2048x7x7", "f32x2048x1x1", ""},
    {"sum of rows", "", "ReduceSum", 11, "f8192x768", "f8192x1", "axes=1"},
    {"sum of columns", "", "ReduceSum", 11, "f8192x768", "f1x768", "axes=0"},
    {"mean of channels", "", "ReduceMean", 11, "f32x64x56x56", "f1x64x1x1", "axes=0,2,3"},
    {"maximum of rows", "", "ReduceMax", 11, "f8192x768", "f8192x1", "axes=1"},
    {"transpose", "", "Transpose", 13, "f8192x768", "f768x8192", "perm=1,0"},
    {"transpose heads", "", "Transpose", 13, "f16x512x12x64", "f16x12x512x64", "perm=0,2,1,3"},
    {"transpose keys", "", "Transpose", 13, "f16x512x12x64", "f16x12x64x512", "perm=0,2,3,1"},
    {"gather", "", "Gather", 13, "f30522x768 i8192%30522", "f8192x768", ""},
    {"gather gradient", "weft", "GatherGrad", 1, "f8192x768 i8192%30522", "f30522x768",
     "axis=0 input_shape=30522,768"},
    {"concat", "", "Concat", 13, "f8192x384 f8192x384", "f8192x768", "axis=1"},
    {"where", "", "Where", 16, "b8192x768 f8192x768 f", "f8192x768", ""},
    {"cast to f16", "", "Cast", 13, "f8192x768", "h8192x768", "to=10"},
    {"sgd", "weft", "SGD", 1, "f8388608 f8388608 one", "f8388608", ""},
    {"momentum", "weft", "Momentum", 1, "f8388608 f8388608 f8388608 one", "f8388608 f8388608", ""},
    {"adam", "weft", "Adam", 1, "f4194304 f4194304 f4194304 one4194304 one one",
     "f4194304 f4194304 f4194304", ""},
    {"adamw", "weft", "AdamW", 1, "f4194304 f4194304 f4194304 one4194304 one one",
     "f4194304 f4194304 f4194304", "weight_decay=f0.01"},
    {"add", "", "Add", 14, "f8192x768 f8192x768", "f8192x768", ""},
    {"add bias", "", "Add", 14, "f8192x768 f768", "f8192x768", ""},
    {"add bias of channels", "", "Add", 14, "f32x64x56x56 f64x1x1", "f32x64x56x56", ""},
    {"scale", "", "Mul", 14, "f8192x768 f", "f8192x768", ""},
    {"divide", "", "Div", 14, "f8192x768 f", "f8192x768", ""},
    {"add mask", "", "Add", 14, "f96x512x512 f512x512", "f96x512x512", ""},
};

static void *allocated(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (p == NULL) {
        fputs("bench_memory: out of memory\n", stderr);
        exit(2);
    }
    memset(p, 0, bytes + 1);
    return p;
}

static const char *read_dims(const char *text, char separator, uint32_t *out_count, int64_t *dims)
{
    for (*out_count = 0; *text >= '0' && *text <= '9';) {
        char *end;
        dims[(*out_count)++] = strtoll(text, &end, 10);
        text = *end == separator ? end + 1 : end;
    }
    return text;
}

static size_t bytes_of(const weft_tensor_desc_t *desc)
{
    return (size_t)weft_tensor_elem_count(desc) * weft_dtype_size_bytes(desc->dtype);
}

/* One word of the lists of a row. below: for integers; ones: all elements are 1. */
static const char *read_tensor(const char *text, int64_t shrink, int64_t *leading,
                               weft_tensor_desc_t *out, int64_t *below, bool *ones)
{
    *out = (weft_tensor_desc_t){0};
    *below = 1;
    *ones = strncmp(text, "one", 3) == 0;
    const char kind = *text;
    text += *ones ? 3 : 1;
    out->dtype = kind == 'i'   ? WEFT_DTYPE_I64
                 : kind == 'u' ? WEFT_DTYPE_U8
                 : kind == 'b' ? WEFT_DTYPE_BOOL
                 : kind == 'h' ? WEFT_DTYPE_F16
                               : WEFT_DTYPE_F32;
    text = read_dims(text, 'x', &out->rank, out->dims);
    *leading = *leading == 0 && out->rank > 1 ? out->dims[0] : *leading;
    if (out->rank > 0 && out->dims[0] == *leading) {
        out->dims[0] = (out->dims[0] + shrink - 1) / shrink;
    }
    if (*text == '%') {
        char *end;
        *below = strtoll(text + 1, &end, 10);
        *below = *below == *leading ? (*below + shrink - 1) / shrink : *below;
        text = end;
    }
    return text + strspn(text, " ");
}

static void fill(const weft_tensor_desc_t *desc, int64_t below, bool ones, void *p)
{
    uint32_t random = 1;
    for (int64_t i = 0; i < weft_tensor_elem_count(desc); i++) {
        random = random * 1664525u + 1013904223u;
        if (desc->dtype == WEFT_DTYPE_F32) {
            ((float *)p)[i] = ones ? 1.0f : (float)(random >> 8) / 8388608.0f - 1.0f;
        } else if (desc->dtype == WEFT_DTYPE_I64) {
            ((int64_t *)p)[i] = (int64_t)(random >> 8) % below;
        } else if (desc->dtype == WEFT_DTYPE_U8 || desc->dtype == WEFT_DTYPE_BOOL) {
            ((uint8_t *)p)[i] = (uint8_t)(random >> 31);
        }
    }
}

static uint32_t read_attrs(char *text, weft_attr_t *attrs, int64_t (*ints)[8])
{
    uint32_t count = 0;
    for (char *save, *word = strtok_r(text, " ", &save); word != NULL && count < ATTRS;
         word = strtok_r(NULL, " ", &save), count++) {
        char *value = strchr(word, '=');
        *value++ = '\0';
        attrs[count] = (weft_attr_t){.name = word, .type = WEFT_ATTR_TYPE_INT};
        if (*value == 'f') {
            attrs[count].type = WEFT_ATTR_TYPE_FLOAT;
            attrs[count].f = strtof(value + 1, NULL);
        } else if (*value == 's') {
            attrs[count].type = WEFT_ATTR_TYPE_STRING;
            attrs[count].s = value + 1;
            attrs[count].count = (uint32_t)strlen(value + 1);
        } else if (strchr(value, ',') != NULL || strcmp(word, "axes") == 0) {
            attrs[count].type = WEFT_ATTR_TYPE_INTS;
            uint32_t length;
            read_dims(value, ',', &length, ints[count]);
            attrs[count].count = length;
            attrs[count].ints = ints[count];
        } else {
            attrs[count].i = strtoll(value, NULL, 10);
        }
    }
    return count;
}

static int compare(const void *x, const void *y)
{
    const uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return (a > b) - (a < b);
}

/* What memory allows: half of the bytes read, half written. */
static uint64_t scale_ns(float *to, const float *from, size_t bytes)
{
    const uint64_t begin = wefti_now_ns();
    for (size_t i = 0; i < bytes / 2 / sizeof *to; i++) {
        to[i] = from[i] * 3.0f;
    }
    return wefti_now_ns() - begin;
}

static void measure(const row_t *row, const weft_kernel_t *kernel, const weft_kernel_call_t *call,
                    size_t bytes, int repeats)
{
    if (kernel->run(call) != WEFT_OK) {
        printf("{\"name\": \"%s\", \"failed\": \"%s\"}\n", row->label, weft_last_error());
        return;
    }
    float *from = allocated(bytes / 2), *to = allocated(bytes / 2);
    uint64_t *ns = allocated((size_t)repeats * sizeof *ns);
    uint64_t *floor = allocated((size_t)repeats * sizeof *floor);
    for (int i = -WARMUP; i < repeats; i++) {
        scale_ns(to, from, bytes); /* twice, as the kernel: caches are as they leave them */
        const uint64_t scale = scale_ns(to, from, bytes);
        kernel->run(call);
        const uint64_t begin = wefti_now_ns();
        kernel->run(call);
        if (i >= 0) {
            ns[i] = wefti_now_ns() - begin;
            floor[i] = scale;
        }
    }
    qsort(ns, (size_t)repeats, sizeof *ns, compare);
    qsort(floor, (size_t)repeats, sizeof *floor, compare);
    printf("{\"name\": \"%s\", \"bytes\": %zu, \"iterations\": %d, \"min_ns\": %llu, "
           "\"median_ns\": %llu, \"p90_ns\": %llu, \"gb_per_s\": %.1f, "
           "\"floor_gb_per_s\": %.1f}\n",
           row->label, bytes, repeats, (unsigned long long)ns[0],
           (unsigned long long)ns[repeats / 2], (unsigned long long)ns[repeats * 9 / 10],
           (double)bytes / (double)ns[repeats / 2], (double)bytes / (double)floor[repeats / 2]);
    fflush(stdout);
    free(from);
    free(to);
    free(ns);
    free(floor);
}

static void bench(const weft_registry_t *registry, const row_t *row, int64_t shrink, int repeats,
                  const weft_kernel_env_t *env)
{
    const weft_kernel_t *kernel =
        weft_registry_find_kernel_of(registry, NULL, row->domain, row->op, row->version);
    weft_tensor_desc_t in[TENSORS], out[TENSORS];
    weft_attr_t attrs[ATTRS];
    int64_t ints[ATTRS][8], leading = 0, below;
    void *inputs[TENSORS] = {NULL}, *outputs[TENSORS] = {NULL}, *state = NULL;
    char text[128];
    bool ones;
    size_t bytes = 0, scratch = 0;
    if (kernel == NULL) {
        printf("{\"name\": \"%s\", \"declined\": \"no kernel\"}\n", row->label);
        return;
    }
    snprintf(text, sizeof text, "%s", row->attrs);
    weft_node_desc_t node = {.domain = row->domain,
                             .op = row->op,
                             .version = row->version,
                             .name = row->label,
                             .inputs = in,
                             .outputs = out,
                             .attrs = attrs,
                             .attr_count = read_attrs(text, attrs, ints)};
    for (const char *at = row->inputs; *at != '\0'; node.input_count++) {
        const uint32_t i = node.input_count;
        at = read_tensor(at, shrink, &leading, &in[i], &below, &ones);
        inputs[i] = allocated(bytes_of(&in[i]));
        fill(&in[i], below, ones, inputs[i]);
        bytes += bytes_of(&in[i]);
    }
    for (const char *at = row->outputs; *at != '\0'; node.output_count++) {
        const uint32_t i = node.output_count;
        at = read_tensor(at, shrink, &leading, &out[i], &below, &ones);
        outputs[i] = allocated(bytes_of(&out[i]));
        bytes += bytes_of(&out[i]);
    }
    if (kernel->prepare(&node, env, &state, &scratch) != WEFT_OK) {
        printf("{\"name\": \"%s\", \"declined\": \"%s\"}\n", row->label, weft_last_error());
    } else {
        const weft_kernel_call_t call = {state, (const void *const *)inputs, outputs,
                                         allocated(scratch)};
        measure(row, kernel, &call, bytes, repeats);
        kernel->destroy(state);
        free(call.scratch);
    }
    for (uint32_t i = 0; i < TENSORS; i++) {
        free(inputs[i]);
        free(outputs[i]);
    }
}

int main(int argc, char **argv)
{
    const int repeats = argc > 1 ? atoi(argv[1]) : 21;
    const char *pattern = argc > 2 ? argv[2] : "";
    const int64_t shrink = argc > 3 ? atoll(argv[3]) : 1;
    weft_kernel_env_t env = WEFT_KERNEL_ENV_INIT;
    weft_registry_t *registry = NULL;
    env.thread_count = argc > 4 ? (uint32_t)atoi(argv[4]) : 1;
    env.isa = argc > 5 ? (weft_isa_t)atoi(argv[5]) : wefti_isa_detect();
    if (repeats < 1 || shrink < 1 || weft_registry_create(NULL, &registry) != WEFT_OK) {
        fputs("usage: bench_memory [REPEATS [PATTERN [SHRINK [THREADS [ISA]]]]]\n", stderr);
        return 2;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strstr(rows[i].label, pattern) != NULL) {
            bench(registry, &rows[i], shrink, repeats, &env);
        }
    }
    weft_registry_destroy(registry);
    return 0;
}
