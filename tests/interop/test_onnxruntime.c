/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libweft_onnxruntime.so with a table of functions in the place of ONNX Runtime's, so that it also
 * runs under sanitizers. Ranks are forked processes. tests/python/test_onnxruntime.py runs it in
 * ONNX Runtime.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weft/types.h>

#include "interop/onnxruntime/ort_api.h"
#include "tests/interop/support_forked.h"

enum { FLOAT = 1, STRING = 8, VALUES = 100, OPERATORS = 16 };

/* ---- ONNX Runtime ---- */

struct ort_status {
    char text[600];
};

struct ort_shape {
    int type;
    size_t rank;
    int64_t dims[9];
};

struct ort_value {
    ort_shape_t shape;
    void *data;
};

struct ort_domain {
    const char *name;
    const ort_operator_t *ops[OPERATORS];
    size_t count;
};

struct ort_options {
    const char *domains; /* the configuration entry */
    ort_domain_t *added[2];
    size_t count;
    int mode;
};

/* A string, a list of integers, or else a number. */
struct ort_attribute {
    const char *name;
    int64_t number;
    bool is_float; /* the number or the list */
    const char *text;
    int64_t list[MOST_RANKS];
    size_t count;
};

/* A node has at most four attributes; a name of NULL ends them. */
struct ort_kernel_info {
    ort_attribute_t attributes[5];
};

struct ort_kernel_context {
    size_t inputs, outputs;
    ort_value_t *in, *out;
};

struct ort_shape_context {
    ort_kernel_info_t info;
    ort_shape_t in, out;
    bool is_inferred;
};

static int statuses; /* alive */
static bool has_no_memory;

static ort_status_t *create_status(int code, const char *message)
{
    ort_status_t *status = malloc(sizeof *status);
    EXPECT(status != NULL && code > 0);
    snprintf(status->text, sizeof status->text, "%s", message);
    statuses++;
    return status;
}

static void release_status(ort_status_t *status)
{
    statuses -= status != NULL;
    free(status);
}

static ort_status_t *create_domain(const char *name, ort_domain_t **out)
{
    *out = calloc(1, sizeof **out);
    EXPECT(*out != NULL);
    (*out)->name = name;
    return NULL;
}

static ort_status_t *domain_add(ort_domain_t *domain, const ort_operator_t *op)
{
    EXPECT(domain->count < OPERATORS && op->version == ORT_VERSION);
    domain->ops[domain->count++] = op;
    return NULL;
}

static ort_status_t *options_add_domain(ort_options_t *options, ort_domain_t *domain)
{
    options->added[options->count++] = domain;
    return NULL;
}

static ort_status_t *has_config(const ort_options_t *options, const char *key, int *out)
{
    *out = strcmp(key, "weft.domains") == 0 && options->domains != NULL;
    return NULL;
}

static ort_status_t *config(const ort_options_t *options, const char *key, char *out, size_t *bytes)
{
    EXPECT(strcmp(key, "weft.domains") == 0);
    if (strlen(options->domains) >= *bytes) {
        return create_status(ORT_FAIL, "too long");
    }
    snprintf(out, *bytes, "%s", options->domains);
    return NULL;
}

static ort_status_t *execution_mode(const ort_options_t *options, int *out)
{
    *out = options->mode;
    return NULL;
}

static ort_status_t *value_data(ort_value_t *value, void **out)
{
    *out = value->data;
    return NULL;
}

static ort_status_t *value_shape(const ort_value_t *value, ort_shape_t **out)
{
    *out = malloc(sizeof **out);
    EXPECT(*out != NULL);
    **out = value->shape;
    return NULL;
}

static void release_shape(ort_shape_t *shape)
{
    free(shape);
}

static ort_status_t *shape_set_dims(ort_shape_t *shape, const int64_t *dims, size_t count)
{
    shape->rank = count;
    memcpy(shape->dims, dims, count * sizeof *dims);
    return NULL;
}

static ort_status_t *shape_type(const ort_shape_t *shape, int *out)
{
    *out = shape->type;
    return NULL;
}

static ort_status_t *shape_rank(const ort_shape_t *shape, size_t *out)
{
    *out = shape->rank;
    return NULL;
}

static ort_status_t *shape_dims(const ort_shape_t *shape, int64_t *dims, size_t count)
{
    EXPECT(count == shape->rank);
    memcpy(dims, shape->dims, count * sizeof *dims);
    return NULL;
}

static const ort_attribute_t *find(const ort_kernel_info_t *info, const char *name)
{
    for (const ort_attribute_t *a = info->attributes; a->name != NULL; a++) {
        if (strcmp(a->name, name) == 0) {
            return a;
        }
    }
    return NULL;
}

typedef enum { TEXT, LIST, NUMBER } kind_t;

/* NULL: there is none, or it has another type. */
static const ort_attribute_t *find_typed(const ort_kernel_info_t *info, const char *name,
                                         kind_t kind, bool is_float)
{
    const ort_attribute_t *a = find(info, name);
    const kind_t has = a == NULL ? NUMBER : a->text != NULL ? TEXT : a->count > 0 ? LIST : NUMBER;
    return a != NULL && has == kind && a->is_float == is_float ? a : NULL;
}

static ort_status_t *kernel_float(const ort_kernel_info_t *info, const char *name, float *out)
{
    *out = 0;
    return find_typed(info, name, NUMBER, true) != NULL ? NULL
                                                        : create_status(ORT_FAIL, "no such float");
}

/* Of another type: no floats, which is no error. */
static ort_status_t *kernel_floats(const ort_kernel_info_t *info, const char *name, float *out,
                                   size_t *count)
{
    const ort_attribute_t *attribute = find_typed(info, name, LIST, true);
    EXPECT(out == NULL);
    *count = attribute == NULL ? 0 : attribute->count;
    return find(info, name) != NULL ? NULL : create_status(ORT_FAIL, "no such attribute");
}

static ort_status_t *kernel_int(const ort_kernel_info_t *info, const char *name, int64_t *out)
{
    const ort_attribute_t *attribute = find_typed(info, name, NUMBER, false);
    if (attribute == NULL) {
        return create_status(ORT_FAIL, "no such attribute");
    }
    *out = attribute->number;
    return NULL;
}

static ort_status_t *kernel_string(const ort_kernel_info_t *info, const char *name, char *out,
                                   size_t *bytes)
{
    const ort_attribute_t *attribute = find_typed(info, name, TEXT, false);
    if (attribute == NULL || (out != NULL && *bytes <= strlen(attribute->text))) {
        return create_status(ORT_FAIL, "no such attribute, or too long");
    }
    *bytes = strlen(attribute->text) + 1;
    if (out != NULL) {
        memcpy(out, attribute->text, *bytes);
    }
    return NULL;
}

static ort_status_t *kernel_ints(const ort_kernel_info_t *info, const char *name, int64_t *out,
                                 size_t *count)
{
    const ort_attribute_t *attribute = find_typed(info, name, LIST, false);
    if (attribute == NULL) {
        return create_status(ORT_FAIL, "no such attribute");
    }
    *count = attribute->count;
    if (out != NULL) {
        memcpy(out, attribute->list, *count * sizeof *out);
    }
    return NULL;
}

static ort_status_t *input_count(const ort_kernel_context_t *context, size_t *out)
{
    *out = context->inputs;
    return NULL;
}

static ort_status_t *output_count(const ort_kernel_context_t *context, size_t *out)
{
    *out = context->outputs;
    return NULL;
}

static ort_status_t *input(const ort_kernel_context_t *context, size_t index,
                           const ort_value_t **out)
{
    EXPECT(index < context->inputs);
    *out = &context->in[index];
    return NULL;
}

/* Outputs are as large as the caller has made them: the library must not ask for more. */
static ort_status_t *output(ort_kernel_context_t *context, size_t index, const int64_t *dims,
                            size_t count, ort_value_t **out)
{
    EXPECT(index < context->outputs);
    if (has_no_memory) {
        return create_status(ORT_FAIL, "no memory for an output");
    }
    *out = &context->out[index];
    return shape_set_dims(&(*out)->shape, dims, count);
}

static ort_status_t *inferred_count(const ort_shape_context_t *context, size_t *out)
{
    (void)context;
    *out = 1;
    return NULL;
}

static ort_status_t *inferred_input(const ort_shape_context_t *context, size_t index,
                                    ort_shape_t **out)
{
    EXPECT(index == 0);
    *out = (ort_shape_t *)(uintptr_t)&context->in;
    return NULL;
}

static ort_status_t *inferred_attribute(const ort_shape_context_t *context, const char *name,
                                        const ort_attribute_t **out)
{
    *out = find(&context->info, name);
    return *out != NULL ? NULL : create_status(ORT_FAIL, "no such attribute");
}

static ort_status_t *infer_output(const ort_shape_context_t *context, size_t index,
                                  const ort_shape_t *shape)
{
    ort_shape_context_t *mine = (ort_shape_context_t *)(uintptr_t)context;
    EXPECT(index == 0);
    mine->out = *shape;
    mine->is_inferred = true;
    return NULL;
}

static ort_status_t *read_attribute(const ort_attribute_t *attribute, int type, void *data,
                                    size_t bytes, size_t *out_bytes)
{
    EXPECT(type == ORT_ATTRIBUTE_INT && bytes == sizeof attribute->number);
    memcpy(data, &attribute->number, bytes);
    *out_bytes = bytes;
    return NULL;
}

static const ort_api_t api = {
    .create_status = create_status,
    .create_domain = create_domain,
    .domain_add = domain_add,
    .options_add_domain = options_add_domain,
    .value_data = value_data,
    .shape_set_dims = shape_set_dims,
    .shape_type = shape_type,
    .shape_rank = shape_rank,
    .shape_dims = shape_dims,
    .value_shape = value_shape,
    .kernel_float = kernel_float,
    .kernel_floats = kernel_floats,
    .kernel_int = kernel_int,
    .kernel_string = kernel_string,
    .input_count = input_count,
    .output_count = output_count,
    .input = input,
    .output = output,
    .release_status = release_status,
    .release_shape = release_shape,
    .kernel_ints = kernel_ints,
    .has_config = has_config,
    .config = config,
    .inferred_count = inferred_count,
    .inferred_input = inferred_input,
    .inferred_attribute = inferred_attribute,
    .infer_output = infer_output,
    .read_attribute = read_attribute,
    .execution_mode = execution_mode,
};

static const char *version = "1.32.0";

static const char *version_string(void)
{
    return version;
}

static const ort_api_t *api_of(uint32_t number)
{
    unsigned minor = 0;
    sscanf(version, "1.%u", &minor);
    return number <= minor ? &api : NULL;
}

/* ---- what ranks do ---- */

static ort_status_t *register_with(ort_options_t *options)
{
    static const ort_api_base_t base = {api_of, version_string};
    void *library = load_library(WEFT_ONNXRUNTIME_LIBRARY);
    ort_status_t *(*function)(ort_options_t *, const ort_api_base_t *);
    *(void **)&function = find_symbol(library, "RegisterCustomOps");
    ort_status_t *status = function(options, &base);
    dlclose(library); /* as a session does at its end: the library stays */
    return status;
}

static void expect_error(ort_status_t *status, const char *text)
{
    EXPECT(status != NULL);
    expect_text(text, status->text);
    release_status(status);
}

static const ort_operator_t *operator_of(const char *domain, const char *name)
{
    static ort_options_t options = {.domains = "weft,com.microsoft"};
    if (options.count == 0) {
        EXPECT(register_with(&options) == NULL && options.count == 2);
    }
    for (size_t d = 0; d < options.count; d++) {
        for (size_t i = 0; i < options.added[d]->count; i++) {
            const ort_operator_t *op = options.added[d]->ops[i];
            if (strcmp(options.added[d]->name, domain) == 0 && strcmp(op->name(op), name) == 0) {
                return op;
            }
        }
    }
    fprintf(stderr, "no operator %s of %s\n", name, domain);
    exit(1);
}

static ort_status_t *create(const char *domain, const char *name, const ort_kernel_info_t *info,
                            void **out_kernel)
{
    const ort_operator_t *op = operator_of(domain, name);
    return op->create_kernel(op, &api, info, out_kernel);
}

/* One vector or matrix of float in, one out, by a kernel of its own. */
static ort_status_t *run(const char *domain, const char *name, const ort_kernel_info_t *info,
                         ort_shape_t shape, const float *send, float *recv, ort_shape_t *out_shape)
{
    const ort_operator_t *op = operator_of(domain, name);
    void *kernel;
    ort_status_t *status = op->create_kernel(op, &api, info, &kernel);
    if (status != NULL) {
        EXPECT(kernel == NULL);
        return status;
    }
    ort_value_t in = {shape, (void *)(uintptr_t)send}, out = {{FLOAT, 0, {0}}, recv};
    ort_kernel_context_t context = {1, 1, &in, &out};
    status = op->compute(kernel, &context);
    op->destroy_kernel(kernel);
    if (out_shape != NULL) {
        *out_shape = out.shape;
    }
    return status;
}

static ort_shape_t vector(int64_t count)
{
    return (ort_shape_t){FLOAT, 1, {count}};
}

/* Rank r has r * 100 + i. */
static void operators(void)
{
    float mine[VALUES], got[VALUES * MOST_RANKS];
    ort_shape_t shape;
    int64_t n = size;
    for (int i = 0; i < VALUES; i++) {
        mine[i] = (float)(100 * rank + i);
    }
    for (int round = 0; round < 2; round++) {
        const char *domain = round == 0 ? "weft" : "com.microsoft";
        EXPECT(run(domain, "AllReduce", &(ort_kernel_info_t){0}, vector(7), mine, got, &shape) ==
               NULL);
        EXPECT(shape.rank == 1 && shape.dims[0] == 7);
        for (int i = 0; i < 7; i++) {
            EXPECT(got[i] == (float)(50 * size * (size - 1) + size * i));
        }
        ort_kernel_info_t group = {{{.name = "group_size", .number = n}, {.name = "axis"}}};
        EXPECT(run(domain, "AllGather", &group, vector(3), mine, got, &shape) == NULL);
        EXPECT(shape.rank == 1 && shape.dims[0] == 3 * n);
        EXPECT(run(domain, "AllToAll", &group, vector(2 * n), mine, got, &shape) == NULL);
        for (int r = 0; r < size; r++) {
            EXPECT(got[2 * r + 1] == (float)(100 * r + 2 * rank + 1));
        }
    }
    ort_kernel_info_t maximum = {{{.name = "reduction", .text = "max"}}};
    EXPECT(run("weft", "AllReduce", &maximum, vector(2), mine, got, NULL) == NULL);
    EXPECT(got[1] == (float)(100 * (size - 1) + 1));
    ort_shape_t matrix = {FLOAT, 3, {2, 2, 3}};
    ort_kernel_info_t last = {
        {{.name = "group_size", .number = n}, {.name = "axis", .number = -1}}};
    EXPECT(run("com.microsoft", "AllGather", &last, matrix, mine, got, &shape) == NULL);
    EXPECT(shape.rank == 3 && shape.dims[2] == 3 * n);
    for (int row = 0; row < 4; row++) {
        for (int r = 0; r < size; r++) {
            EXPECT(got[row * 3 * size + 3 * r + 2] == (float)(100 * r + 3 * row + 2));
        }
    }
    matrix = (ort_shape_t){FLOAT, 2, {2, 0}};
    EXPECT(run("com.microsoft", "AllGather", &last, matrix, mine, got, &shape) == NULL);
    EXPECT(shape.rank == 2 && shape.dims[0] == 2 && shape.dims[1] == 0);
    ort_kernel_info_t root = {{{.name = "root", .number = n - 1}}};
    EXPECT(run("weft", "Broadcast", &root, vector(4), mine, got, NULL) == NULL);
    EXPECT(got[3] == (float)(100 * (size - 1) + 3));
    EXPECT(run("weft", "Reduce", &root, vector(4), mine, got, NULL) == NULL);
    EXPECT(rank != size - 1 || got[0] == (float)(50 * size * (size - 1)));
    EXPECT(run("weft", "Scatter", &root, vector(4 * n), mine, got, &shape) == NULL);
    EXPECT(shape.dims[0] == 4 && got[1] == (float)(100 * (size - 1) + 4 * rank + 1));
    EXPECT(run("weft", "ReduceScatter", &(ort_kernel_info_t){0}, vector(2 * n), mine, got,
               &shape) == NULL);
    EXPECT(shape.dims[0] == 2 && got[1] == (float)(50 * size * (size - 1) + size * (2 * rank + 1)));

    ort_kernel_info_t rows = {{{.name = "counts", .count = (size_t)size}}};
    ort_kernel_info_t exchange = {{{.name = "send_counts", .count = (size_t)size},
                                   {.name = "recv_counts", .count = (size_t)size}}};
    int64_t all = 0;
    for (int r = 0; r < size; r++) {
        rows.attributes[0].list[r] = r + 1;
        exchange.attributes[0].list[r] = exchange.attributes[1].list[r] = rank + r;
        all += r + 1;
    }
    ort_shape_t pairs = {FLOAT, 2, {rank + 1, 2}};
    EXPECT(run("weft", "AllGatherV", &rows, pairs, mine, got, &shape) == NULL);
    EXPECT(shape.dims[0] == all && got[2 * all - 1] == (float)(100 * (size - 1) + 2 * size - 1));
    EXPECT(run("weft", "ReduceScatterV", &rows, vector(all), mine, got, &shape) == NULL);
    EXPECT(shape.dims[0] == rank + 1);
    all = size * rank + size * (size - 1) / 2;
    EXPECT(run("weft", "AllToAllV", &exchange, vector(all), mine, got, &shape) == NULL);
    EXPECT(shape.dims[0] == all);
    EXPECT(statuses == 0);
}

/* More tensors than a batch takes, one of them without elements. */
static void many_tensors(void)
{
    float mine[VALUES], sums[VALUES];
    ort_value_t in[VALUES], out[VALUES];
    const ort_operator_t *op = operator_of("weft", "AllReduce");
    void *kernel;
    EXPECT(create("weft", "AllReduce", &(ort_kernel_info_t){0}, &kernel) == NULL);
    for (int i = 0; i < VALUES; i++) {
        mine[i] = (float)(i + rank);
        in[i] = (ort_value_t){vector(i != 50), &mine[i]};
        out[i] = (ort_value_t){vector(0), &sums[i]};
    }
    ort_kernel_context_t context = {VALUES, VALUES, in, out};
    EXPECT(op->compute(kernel, &context) == NULL);
    for (int i = 0; i < VALUES; i++) {
        EXPECT(i == 50 || sums[i] == (float)(size * i + size * (size - 1) / 2));
    }
    context.outputs = 1;
    expect_error(op->compute(kernel, &context), "100 inputs but 1 outputs");
    op->destroy_kernel(kernel);
}

static ort_status_t *infer(const char *domain, const char *name, ort_shape_context_t *context)
{
    const ort_operator_t *op = operator_of(domain, name);
    context->is_inferred = false;
    return op->infer_shapes(op, context);
}

static void shapes(void)
{
    ort_shape_context_t context = {.info = {{{.name = "group_size", .number = 4}}},
                                   .in = {FLOAT, 2, {-1, 8}}};
    EXPECT(infer("weft", "AllReduce", &context) == NULL && context.is_inferred);
    EXPECT(context.out.rank == 2 && context.out.dims[0] == -1);
    EXPECT(infer("weft", "AllGather", &context) == NULL && !context.is_inferred);
    EXPECT(infer("com.microsoft", "AllGather", &context) == NULL && context.out.dims[1] == 32);
    context.in.dims[1] = INT64_MAX;
    EXPECT(infer("com.microsoft", "AllGather", &context) == NULL && !context.is_inferred);
    context.in.dims[0] = 8;
    EXPECT(infer("weft", "ReduceScatter", &context) == NULL && context.out.dims[0] == 2);
    context.in.dims[0] = 7;
    EXPECT(infer("weft", "ReduceScatter", &context) == NULL && !context.is_inferred);
    context.in.rank = 0; /* also what an unknown shape looks like */
    EXPECT(infer("weft", "AllReduce", &context) == NULL && !context.is_inferred);
    EXPECT(infer("weft", "AllGatherV", &context) == NULL && !context.is_inferred);
    EXPECT(statuses == 0);
}

static void wrong(void)
{
    float values[VALUES] = {0};
    ort_kernel_info_t none = {0};
    ort_kernel_info_t other = {{{.name = "group_size", .number = 9}}};
    expect_error(run("weft", "AllGather", &other, vector(1), values, values, NULL),
                 "attribute group_size: the model is for 9 ranks, Weft's world has 2");
    expect_error(run("com.microsoft", "AllGather", &none, vector(1), values, values, NULL),
                 "the model is for 1 ranks");
    ort_kernel_info_t unknown = {{{.name = "reduction", .text = "mean"}}};
    expect_error(run("weft", "AllReduce", &unknown, vector(1), values, values, NULL),
                 "attribute reduction: unknown value");
    unknown.attributes[0].text = "a text that is longer than the name of any reduction";
    expect_error(run("weft", "AllReduce", &unknown, vector(1), values, values, NULL),
                 "attribute reduction: unknown value");
    static const struct {
        const char *op, *domain;
        ort_attribute_t attribute;
    } others[] = {
        {"AllGather", "weft", {.name = "group_size", .number = 2, .is_float = true}},
        {"AllReduce", "weft", {.name = "group", .text = "world"}},
        {"AllReduce", "weft", {.name = "flat", .count = 1}},
        {"AllReduce", "weft", {.name = "flat", .count = 1, .is_float = true}},
        {"Broadcast", "weft", {.name = "root", .number = 1, .is_float = true}},
        {"AllGather", "com.microsoft", {.name = "axis", .text = "last"}},
        {"AllReduce", "weft", {.name = "reduction", .number = 1}},
        {"AllGatherV", "weft", {.name = "counts", .number = 2}},
        {"AllGatherV", "weft", {.name = "counts", .count = 2, .is_float = true}},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const bool axis = strcmp(others[i].domain, "weft") != 0; /* with the default of 1 rank */
        ort_kernel_info_t info = {{others[i].attribute, {axis ? "group_size" : NULL, 2}}};
        expect_error(run(others[i].domain, others[i].op, &info, vector(1), values, values, NULL),
                     "wrong type: expected a");
    }
    ort_kernel_info_t count = {{{.name = "counts", .count = 1}}};
    expect_error(run("weft", "AllGatherV", &count, vector(1), values, values, NULL),
                 "attribute counts: 1 counts for 2 ranks");
    count.attributes[0] =
        (ort_attribute_t){.name = "counts", .count = 2, .list = {INT64_MAX, INT64_MAX}};
    expect_error(run("weft", "ReduceScatterV", &count, vector(1), values, values, NULL),
                 "attribute counts: the sum is too large");
    expect_error(run("weft", "ReduceScatter", &none, vector(3), values, values, NULL),
                 "input has 3 rows: expected a multiple of 2 ranks");
    expect_error(run("weft", "AllGather", &none, vector(INT64_MAX), values, values, NULL),
                 "output is too large: 2 blocks");
    ort_shape_t nine = {FLOAT, 9, {1, 1, 1, 1, 1, 1, 1, 1, 1}};
    expect_error(run("weft", "AllReduce", &none, nine, values, values, NULL),
                 "input 0 has 9 dimensions: expected at most 8");
    ort_shape_t strings = {STRING, 1, {1}};
    expect_error(run("weft", "AllReduce", &none, strings, values, values, NULL), "dtype");
    ort_kernel_info_t last = {
        {{.name = "group_size", .number = 2}, {.name = "axis", .number = -1}}};
    strings = (ort_shape_t){STRING, 2, {2, 2}};
    expect_error(run("com.microsoft", "AllGather", &last, strings, values, values, NULL), "dtype");
    has_no_memory = rank == 0; /* the others learn it */
    expect_error(run("weft", "AllReduce", &none, vector(1), values, values, NULL),
                 rank == 0 ? "no memory" : "rank 0: ONNX Runtime has no memory");
    has_no_memory = false;
    EXPECT(run("weft", "AllReduce", &none, vector(1), values, values + 1, NULL) == NULL);
    expect_error(run("weft", "AllReduce", &none, vector(1 + rank), values, values + 10, NULL),
                 "2 x f32");
    EXPECT(statuses == 0);
}

static void registration(void)
{
    ort_options_t options = {.domains = "weft"};
    EXPECT(register_with(&options) == NULL && options.count == 1);
    EXPECT(strcmp(options.added[0]->name, "weft") == 0);
    options = (ort_options_t){.domains = "com.microsoft"};
    EXPECT(register_with(&options) == NULL && options.count == 1);
    options = (ort_options_t){.domains = "ai.onnx"};
    expect_error(register_with(&options), "configuration entry weft.domains: unknown value");
    options.domains = "a text that is longer than any list of the two domains that there are";
    expect_error(register_with(&options), "configuration entry weft.domains: unknown value");
    options = (ort_options_t){.mode = ORT_PARALLEL};
    expect_error(register_with(&options), "execution mode is ORT_PARALLEL");
    version = "1.20.1"; /* which has no function that tells the mode */
    EXPECT(register_with(&options) == NULL && options.count == 1);
    EXPECT(strcmp(options.added[0]->name, "weft") == 0);
    version = "1.17.3";
    expect_error(register_with(&options), "ONNX Runtime 1.17.3 is too old");
    int *inputs, *outputs;
    EXPECT(options.added[0]->ops[0]->in_place(&inputs, &outputs) > 1 && inputs[1] == outputs[1]);
    EXPECT(options.added[0]->ops[0]->aliases(&inputs, &outputs) == 0);
}

static void rank_1_dies(void)
{
    float value = 1;
    ort_kernel_info_t none = {0};
    EXPECT(run("weft", "AllReduce", &none, vector(1), &value, &value, NULL) == NULL);
    if (rank == 1) {
        raise(SIGKILL);
    }
    ort_status_t *status = NULL;
    while (status == NULL) { /* the others may still have had its part of a call */
        status = run("weft", "AllReduce", &none, vector(1), &value, &value, NULL);
    }
    expect_error(status, "rank 1 (pid ");
}

/* ---- tests ---- */

static void test_operators(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        expect_good_ranks(operators, ranks, -1);
    }
}

static void test_many_tensors(void **state)
{
    (void)state;
    expect_good_ranks(many_tensors, 3, -1);
}

static void test_shapes(void **state)
{
    (void)state;
    expect_good_ranks(shapes, 1, -1);
}

static void test_wrong(void **state)
{
    (void)state;
    expect_good_ranks(wrong, 2, -1);
}

static void test_registration(void **state)
{
    (void)state;
    expect_good_ranks(registration, 1, -1);
}

static void test_dead_rank(void **state)
{
    (void)state;
    expect_good_ranks(rank_1_dies, 3, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operators),    cmocka_unit_test(test_many_tensors),
        cmocka_unit_test(test_shapes),       cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_registration), cmocka_unit_test(test_dead_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
