/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libweft_onnxruntime.so: collectives as custom operators of ONNX Runtime, for its CPU provider.
 * Domain weft has Weft's operators; domain com.microsoft those that ONNX Runtime itself has only
 * where it was built with NCCL. They read the input tensors and write the output tensors in place.
 *
 * The calls of all ranks need one order. The sequential executor runs the nodes of equal graphs in
 * one order; the parallel one, which does not, is refused.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft/weft.h>

#include "interop/onnxruntime/ort_api.h"
#include "interop/onnxruntime/world.h"

/* Most tensors of a node: the group runs as many calls at once. */
enum { TENSORS_MAX = 64, MESSAGE_BYTES = 512 };

/* What an operator of a domain is. */
typedef struct op {
    ort_operator_t base;
    const ort_api_t *api; /* of the ONNX Runtime that has it registered */
    const char *name;
    const char *domain;
    weft_collective_t collective;
    weft_extent_t send, recv;
    bool is_variadic; /* any number of tensors, one collective each */
    bool reduces, has_root, has_counts;
    int64_t axis, group_size; /* defaults; group_size 0: there is no default */
} op_t;

typedef struct kernel {
    const op_t *op;
    const ort_api_t *api;
    weft_reduction_t reduction;
    uint32_t size, rank, root;
    int64_t axis;
    int64_t *send_counts, *recv_counts; /* [size] rows; NULL: the operator has none */
    uint64_t *elem_counts;              /* [2 * size], of one call */
    void *blocks;                       /* what an all-gather along a later axis receives */
    size_t blocks_bytes;
} kernel_t;

/* One tensor of a call: what is sent, and received. */
typedef struct tensor {
    weft_dtype_t dtype;
    uint32_t rank;
    int64_t dims[WEFT_MAX_DIMS];
    uint64_t sent, received; /* elements */
    const void *send;
    void *recv;
} tensor_t;

static ort_status_t *fail(const ort_api_t *api, int code, const char *format, ...)
    WEFT_PRINTF(3, 4);
static ort_status_t *fail(const ort_api_t *api, int code, const char *format, ...)
{
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return api->create_status(code, text);
}

static ort_status_t *status_of(const ort_api_t *api, weft_status_t status)
{
    return status == WEFT_OK ? NULL : fail(api, ORT_FAIL, "%s", weft_last_error());
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        ort_status_t *tried = (call);                                                              \
        if (tried != NULL) {                                                                       \
            return tried;                                                                          \
        }                                                                                          \
    } while (0)

static weft_dtype_t dtype_of(int type)
{
    switch (type) {
#define TYPE(name, value, bytes, text, onnx)                                                       \
    case onnx:                                                                                     \
        return WEFT_DTYPE_##name;
        WEFT_DTYPE_MAP(TYPE)
#undef TYPE
    default:
        return WEFT_DTYPE_NONE;
    }
}

/* ---- attributes ---- */

/* ONNX Runtime reports an attribute that is absent, or of another type, by a status. */
static bool is_set(const ort_api_t *api, ort_status_t *status)
{
    api->release_status(status);
    return status == NULL;
}

/* A list; ONNX Runtime finds none, without an error, where the attribute has another type. */
static bool is_list(const ort_api_t *api, ort_status_t *status, size_t count)
{
    return is_set(api, status) && count > 0;
}

/* An attribute that does not have the expected type is absent, or an error. */
static ort_status_t *check_absent(const ort_api_t *api, const ort_kernel_info_t *info,
                                  const char *name, const char *expected)
{
    int64_t integer;
    float number;
    size_t bytes = 0, integers = 0, numbers = 0;
    ort_status_t *const list = api->kernel_ints(info, name, NULL, &integers);
    ort_status_t *const other = api->kernel_floats(info, name, NULL, &numbers);
    bool is_there = is_list(api, list, integers);
    is_there = is_list(api, other, numbers) || is_there;
    is_there = is_there || is_set(api, api->kernel_int(info, name, &integer)) ||
               is_set(api, api->kernel_float(info, name, &number)) ||
               is_set(api, api->kernel_string(info, name, NULL, &bytes));
    return is_there ? fail(api, ORT_INVALID_ARGUMENT, "attribute %s: wrong type: expected %s", name,
                           expected)
                    : NULL;
}

static ort_status_t *read_int(const kernel_t *kernel, const ort_kernel_info_t *info,
                              const char *name, int64_t otherwise, int64_t *out)
{
    if (is_set(kernel->api, kernel->api->kernel_int(info, name, out))) {
        return NULL;
    }
    *out = otherwise;
    return check_absent(kernel->api, info, name, "an integer");
}

static ort_status_t *read_reduction(kernel_t *kernel, const ort_kernel_info_t *info)
{
    char text[16] = "sum";
    size_t bytes = 0;
    if (!is_set(kernel->api, kernel->api->kernel_string(info, "reduction", NULL, &bytes))) {
        return check_absent(kernel->api, info, "reduction",
                            "a string"); /* the default is the sum */
    }
    bytes = sizeof text;
    if (is_set(kernel->api, kernel->api->kernel_string(info, "reduction", text, &bytes))) {
        for (int r = WEFT_REDUCTION_SUM; r <= WEFT_REDUCTION_MAX; r++) {
            if (strcmp(text, weft_reduction_name((weft_reduction_t)r)) == 0) {
                kernel->reduction = (weft_reduction_t)r;
                return NULL;
            }
        }
    }
    return fail(kernel->api, ORT_INVALID_ARGUMENT,
                "attribute reduction: unknown value: expected sum, avg, prod, min or max");
}

/* Rows of each rank. */
static ort_status_t *read_counts(const kernel_t *kernel, const ort_kernel_info_t *info,
                                 const char *name, int64_t **out_counts)
{
    size_t count = 0;
    ort_status_t *const status = kernel->api->kernel_ints(info, name, NULL, &count);
    const bool is_there = is_list(kernel->api, status, count);
    if (!is_there) {
        TRY(check_absent(kernel->api, info, name, "a list of integers"));
    }
    if (!is_there || count != kernel->size) {
        return fail(kernel->api, ORT_INVALID_ARGUMENT,
                    "attribute %s: %zu counts for %u ranks: expected one per rank", name, count,
                    kernel->size);
    }
    *out_counts = calloc(count, sizeof **out_counts);
    if (*out_counts == NULL) {
        return fail(kernel->api, ORT_FAIL, "out of memory: %zu counts", count);
    }
    TRY(kernel->api->kernel_ints(info, name, *out_counts, &count));
    for (size_t r = 0; r < count; r++) {
        if ((*out_counts)[r] < 0) {
            return fail(kernel->api, ORT_INVALID_ARGUMENT,
                        "attribute %s: invalid count of rank %zu: %" PRId64, name, r,
                        (*out_counts)[r]);
        }
    }
    return NULL;
}

static ort_status_t *read_all_counts(kernel_t *kernel, const ort_kernel_info_t *info)
{
    bool exchanges = kernel->op->collective == WEFT_COLLECTIVE_ALL_TO_ALL_V;
    const char *name = exchanges ? "recv_counts" : "counts";
    TRY(read_counts(kernel, info, name, &kernel->recv_counts));
    if (exchanges) {
        TRY(read_counts(kernel, info, "send_counts", &kernel->send_counts));
    }
    kernel->elem_counts = calloc(2 * (size_t)kernel->size, sizeof *kernel->elem_counts);
    return kernel->elem_counts != NULL
               ? NULL
               : fail(kernel->api, ORT_FAIL, "out of memory: counts of %u ranks", kernel->size);
}

static ort_status_t *read_attributes(kernel_t *kernel, const ort_kernel_info_t *info)
{
    const op_t *op = kernel->op;
    int64_t size, root = 0, group, flat;
    TRY(read_int(kernel, info, "group_size", op->group_size, &size));
    TRY(op->has_root ? read_int(kernel, info, "root", 0, &root) : NULL);
    TRY(read_int(kernel, info, "group", 0, &group));
    TRY(read_int(kernel, info, "flat", 0, &flat));
    if (size != 0 && size != kernel->size) {
        return fail(kernel->api, ORT_INVALID_ARGUMENT,
                    "attribute group_size: the model is for %" PRId64
                    " ranks, Weft's world has %u: start all ranks by weft run, mpirun or srun",
                    size, kernel->size);
    }
    if (group != 0) {
        return fail(kernel->api, ORT_INVALID_ARGUMENT,
                    "attribute group: unsupported group %" PRId64 ": expected 0, the world", group);
    }
    if (flat != 0) {
        return fail(kernel->api, ORT_INVALID_ARGUMENT,
                    "attribute flat: unsupported: only plans have flat ranges");
    }
    if (root < 0 || root >= kernel->size) {
        return fail(kernel->api, ORT_INVALID_ARGUMENT,
                    "attribute root: invalid rank %" PRId64 " for world size %u", root,
                    kernel->size);
    }
    kernel->root = (uint32_t)root;
    TRY(op->axis != 0 ? read_int(kernel, info, "axis", op->axis, &kernel->axis) : NULL);
    if (op->reduces) {
        TRY(read_reduction(kernel, info));
    }
    return op->has_counts ? read_all_counts(kernel, info) : NULL;
}

static void destroy_kernel(void *user)
{
    kernel_t *kernel = user;
    free(kernel->send_counts);
    free(kernel->recv_counts);
    free(kernel->elem_counts);
    free(kernel->blocks);
    free(kernel);
}

static ort_status_t *create_kernel(const ort_operator_t *base, const ort_api_t *api,
                                   const ort_kernel_info_t *info, void **out_kernel)
{
    kernel_t *kernel = calloc(1, sizeof *kernel);
    *out_kernel = NULL;
    if (kernel == NULL) {
        return fail(api, ORT_FAIL, "out of memory: a kernel");
    }
    kernel->op = (const op_t *)base;
    kernel->api = api;
    ort_status_t *status = status_of(api, weft_ort_join(&kernel->size, &kernel->rank));
    if (status == NULL) {
        status = read_attributes(kernel, info);
    }
    if (status != NULL) {
        destroy_kernel(kernel);
        return status;
    }
    *out_kernel = kernel;
    return NULL;
}

/* ---- shapes ---- */

static bool wrong(char *message, const char *format, ...) WEFT_PRINTF(2, 3);
static bool wrong(char *message, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(message, MESSAGE_BYTES, format, args);
    va_end(args);
    return false;
}

static bool sum_of(const kernel_t *kernel, const int64_t *counts, int64_t *out_sum)
{
    *out_sum = 0;
    for (uint32_t r = 0; r < kernel->size; r++) {
        if (__builtin_add_overflow(*out_sum, counts[r], out_sum)) {
            return false;
        }
    }
    return true;
}

/* Counts say how many rows this rank sends and receives. */
static bool shape_by_counts(const kernel_t *kernel, int64_t *dim, char *message)
{
    const op_t *op = kernel->op;
    const int64_t *sends = kernel->send_counts != NULL ? kernel->send_counts : kernel->recv_counts;
    int64_t sent, received, mine = kernel->recv_counts[kernel->rank];
    if (!sum_of(kernel, sends, &sent) || !sum_of(kernel, kernel->recv_counts, &received)) {
        return wrong(message, "attribute counts: the sum is too large");
    }
    sent = op->send == WEFT_EXTENT_BLOCK ? mine : sent;
    if (*dim != sent) {
        return wrong(message, "input has %" PRId64 " rows: rank %u has %" PRId64 " by the counts",
                     *dim, kernel->rank, sent);
    }
    *dim = op->recv == WEFT_EXTENT_BLOCK ? mine : received;
    return true;
}

/* Turns the dimensions of an input into those of its output. */
static bool shape_output(const kernel_t *kernel, tensor_t *tensor, char *message)
{
    const op_t *op = kernel->op;
    int64_t axis = kernel->axis < 0 ? kernel->axis + tensor->rank : kernel->axis;
    if (op->send == WEFT_EXTENT_VECTOR) {
        return true;
    }
    if (axis < 0 || axis >= tensor->rank) {
        return wrong(message, "input has %u dimensions: axis %" PRId64 " is not one of them",
                     tensor->rank, kernel->axis);
    }
    int64_t *dim = &tensor->dims[axis];
    if (op->has_counts) {
        return shape_by_counts(kernel, dim, message);
    }
    if (op->send == WEFT_EXTENT_BLOCKS && *dim % kernel->size != 0) {
        return wrong(message, "input has %" PRId64 " rows: expected a multiple of %u ranks", *dim,
                     kernel->size);
    }
    if (op->send == WEFT_EXTENT_BLOCK && __builtin_mul_overflow(*dim, kernel->size, dim)) {
        return wrong(message, "output is too large: %u blocks", kernel->size);
    }
    if (op->recv == WEFT_EXTENT_BLOCK) {
        *dim /= kernel->size;
    }
    return true;
}

static uint64_t elements_of(const tensor_t *tensor)
{
    uint64_t count = 1;
    for (uint32_t d = 0; d < tensor->rank; d++) {
        count *= (uint64_t)tensor->dims[d];
    }
    return count;
}

static int64_t inferred_int(const ort_api_t *api, const ort_shape_context_t *context,
                            const char *name, int64_t otherwise)
{
    const ort_attribute_t *attribute;
    int64_t value;
    size_t bytes;
    if (!is_set(api, api->inferred_attribute(context, name, &attribute)) ||
        !is_set(api,
                api->read_attribute(attribute, ORT_ATTRIBUTE_INT, &value, sizeof value, &bytes))) {
        return otherwise;
    }
    return value;
}

/* Multiplies or divides the dimension that ranks share. */
static ort_status_t *infer_blocks(const op_t *op, const ort_shape_context_t *context, size_t index,
                                  ort_shape_t *shape, size_t rank)
{
    int64_t dims[WEFT_MAX_DIMS];
    int64_t size = inferred_int(op->api, context, "group_size", op->group_size);
    int64_t axis = op->axis != 0 ? inferred_int(op->api, context, "axis", op->axis) : 0;
    axis += axis < 0 ? (int64_t)rank : 0;
    if (size < 1 || rank > WEFT_MAX_DIMS || axis < 0 || axis >= (int64_t)rank) {
        return NULL;
    }
    TRY(op->api->shape_dims(shape, dims, rank));
    bool is_block = op->send == WEFT_EXTENT_BLOCK;
    if (dims[axis] < 0 || (is_block ? __builtin_mul_overflow(dims[axis], size, &dims[axis])
                                    : dims[axis] % size != 0)) {
        return NULL; /* unknown, or refused by the call */
    }
    dims[axis] = is_block ? dims[axis] : dims[axis] / size;
    TRY(op->api->shape_set_dims(shape, dims, rank)); /* of the context: for this call only */
    return op->api->infer_output(context, index, shape);
}

/*
 * Tells the graph what outputs will be, for its optimisations. Nothing about an input of unknown
 * shape, which looks like a scalar.
 */
static ort_status_t *infer_shapes(const ort_operator_t *base, ort_shape_context_t *context)
{
    const op_t *op = (const op_t *)base;
    size_t count;
    TRY(op->api->inferred_count(context, &count));
    for (size_t i = 0; i < count && !op->has_counts; i++) {
        ort_shape_t *shape; /* the context's */
        size_t rank;
        TRY(op->api->inferred_input(context, i, &shape));
        TRY(op->api->shape_rank(shape, &rank));
        if (rank > 0 && op->send == op->recv) {
            TRY(op->api->infer_output(context, i, shape));
        } else if (rank > 0) {
            TRY(infer_blocks(op, context, i, shape, rank));
        }
    }
    return NULL;
}

/* ---- calls ---- */

/* Elements of each rank's rows. */
static uint64_t *scale(const int64_t *rows, uint64_t row, uint32_t size, uint64_t *out)
{
    for (uint32_t r = 0; r < size; r++) {
        out[r] = (uint64_t)rows[r] * row;
    }
    return out;
}

static uint64_t row_of(const tensor_t *tensor)
{
    tensor_t row = *tensor;
    row.dims[0] = 1;
    return elements_of(&row);
}

static weft_status_t issue(const kernel_t *k, const tensor_t *t, weft_group_t *group)
{
    uint64_t *counts = k->elem_counts;
    switch (k->op->collective) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        return weft_all_reduce(t->send, t->recv, t->sent, t->dtype, k->reduction, group, NULL);
    case WEFT_COLLECTIVE_BROADCAST:
        return weft_broadcast(t->send, t->recv, t->sent, t->dtype, k->root, group, NULL);
    case WEFT_COLLECTIVE_REDUCE:
        return weft_reduce(t->send, t->recv, t->sent, t->dtype, k->reduction, k->root, group, NULL);
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        return weft_reduce_scatter(t->send, t->recv, t->received, t->dtype, k->reduction, group,
                                   NULL);
    case WEFT_COLLECTIVE_ALL_GATHER:
        return weft_all_gather(t->send, t->recv, t->sent, t->dtype, group, NULL);
    case WEFT_COLLECTIVE_SCATTER:
        return weft_scatter(t->send, t->recv, t->received, t->dtype, k->root, group, NULL);
    case WEFT_COLLECTIVE_ALL_TO_ALL:
        return weft_all_to_all(t->send, t->recv, t->sent / k->size, t->dtype, group, NULL);
    case WEFT_COLLECTIVE_ALL_GATHER_V:
        return weft_all_gather_v(t->send, t->recv,
                                 scale(k->recv_counts, row_of(t), k->size, counts), NULL, t->dtype,
                                 group, NULL);
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
        return weft_reduce_scatter_v(t->send, t->recv,
                                     scale(k->recv_counts, row_of(t), k->size, counts), NULL,
                                     t->dtype, k->reduction, group, NULL);
    default:
        return weft_all_to_all_v(t->send, scale(k->send_counts, row_of(t), k->size, counts), NULL,
                                 t->recv,
                                 scale(k->recv_counts, row_of(t), k->size, counts + k->size), NULL,
                                 t->dtype, group, NULL);
    }
}

/* Several tensors at once, or a tensor with its shape, which the ranks compare. */
static weft_status_t run(const kernel_t *kernel, const tensor_t *tensors, size_t count,
                         weft_group_t *group)
{
    weft_status_t status;
    if (count == 1) {
        status = weft_group_set_shape(group, tensors->dims, tensors->rank);
        return status == WEFT_OK ? issue(kernel, tensors, group) : status;
    }
    status = weft_batch_begin(group);
    if (status != WEFT_OK) {
        return status;
    }
    for (size_t i = 0; i < count && status == WEFT_OK; i++) {
        status = issue(kernel, &tensors[i], group);
    }
    return weft_batch_end(group, NULL); /* also the status of a wrong argument */
}

static ort_status_t *read_input(const kernel_t *kernel, ort_kernel_context_t *context, size_t index,
                                tensor_t *tensor)
{
    const ort_api_t *api = kernel->api;
    const ort_value_t *value;
    ort_shape_t *shape;
    int type = 0;
    size_t rank = 0;
    void *data;
    TRY(api->input(context, index, &value));
    TRY(api->value_data((ort_value_t *)(uintptr_t)value, &data));
    TRY(api->value_shape(value, &shape));
    ort_status_t *status = api->shape_type(shape, &type);
    if (status == NULL) {
        status = api->shape_rank(shape, &rank);
    }
    if (status == NULL && rank <= WEFT_MAX_DIMS) {
        status = api->shape_dims(shape, tensor->dims, rank);
    }
    api->release_shape(shape);
    tensor->rank = (uint32_t)rank;
    tensor->dtype = dtype_of(type);
    tensor->send = data;
    return status;
}

/*
 * An error of this rank takes the place of its call, so that the others do not wait for it.
 * status: of ONNX Runtime, or NULL.
 */
static ort_status_t *refuse(const kernel_t *kernel, ort_status_t *status, const char *message)
{
    weft_group_t *group;
    weft_status_t refused = weft_ort_begin(&group);
    if (refused == WEFT_OK) {
        refused = weft_group_refuse(group, WEFT_ERR_INVALID_ARGUMENT, message, NULL);
        weft_ort_end();
    }
    return status != NULL ? status : status_of(kernel->api, refused);
}

#define NO_TENSOR "ONNX Runtime has no memory for an input or output"

/* Reads an input and creates its output. Without a status, message says what is wrong, if it is. */
static ort_status_t *prepare(const kernel_t *kernel, ort_kernel_context_t *context, size_t index,
                             tensor_t *tensor, char *message)
{
    const ort_api_t *api = kernel->api;
    ort_value_t *value;
    message[0] = '\0';
    TRY(read_input(kernel, context, index, tensor));
    if (tensor->rank > WEFT_MAX_DIMS) {
        wrong(message, "input %zu has %u dimensions: expected at most %d", index, tensor->rank,
              WEFT_MAX_DIMS);
        return NULL;
    }
    tensor->sent = elements_of(tensor);
    if (!shape_output(kernel, tensor, message)) {
        return NULL;
    }
    TRY(api->output(context, index, tensor->dims, tensor->rank, &value));
    TRY(api->value_data(value, &tensor->recv));
    tensor->received = elements_of(tensor);
    return NULL;
}

/* The bytes from axis on are what a rank adds to each row of the output. Without any, or of a type
 * that Weft does not have, there is nothing to put apart: the call says so. */
static bool gathers_apart(const kernel_t *kernel, const tensor_t *tensor, uint64_t *out_rows)
{
    int64_t axis = kernel->axis < 0 ? kernel->axis + tensor->rank : kernel->axis;
    *out_rows = 1;
    for (int64_t d = 0; d < axis; d++) {
        *out_rows *= (uint64_t)tensor->dims[d];
    }
    return *out_rows > 1 && kernel->size > 1 && tensor->sent > 0 &&
           weft_dtype_size_bytes(tensor->dtype) > 0;
}

static weft_status_t reserve_blocks(kernel_t *kernel, size_t bytes, weft_group_t *group)
{
    if (bytes > kernel->blocks_bytes) {
        free(kernel->blocks);
        kernel->blocks = malloc(bytes);
        kernel->blocks_bytes = kernel->blocks == NULL ? 0 : bytes;
    }
    return kernel->blocks != NULL
               ? WEFT_OK
               : weft_group_refuse(group, WEFT_ERR_NO_MEMORY, "out of memory: all-gather", NULL);
}

/*
 * All-gather along a later axis, of which Weft receives whole blocks:
 *
 *     rank 0   | a b |      blocks  a b c d  e f g h     output  a b e f
 *              | c d |                                           c d g h
 */
static weft_status_t gather_apart(kernel_t *kernel, const tensor_t *tensor, uint64_t rows,
                                  weft_group_t *group)
{
    size_t bytes = tensor->sent * weft_dtype_size_bytes(tensor->dtype);
    size_t part = bytes / rows;
    weft_status_t status = reserve_blocks(kernel, bytes * kernel->size, group);
    if (status != WEFT_OK) {
        return status;
    }
    tensor_t whole = *tensor;
    whole.recv = kernel->blocks;
    status = run(kernel, &whole, 1, group);
    char *to = tensor->recv;
    for (uint64_t row = 0; row < rows && status == WEFT_OK; row++) {
        for (uint32_t r = 0; r < kernel->size; r++, to += part) {
            memcpy(to, (const char *)kernel->blocks + r * bytes + row * part, part);
        }
    }
    return status;
}

static ort_status_t *compute(void *user, ort_kernel_context_t *context)
{
    kernel_t *kernel = user;
    const ort_api_t *api = kernel->api;
    tensor_t tensors[TENSORS_MAX];
    char message[MESSAGE_BYTES];
    size_t inputs, outputs, count;
    TRY(api->input_count(context, &inputs));
    TRY(api->output_count(context, &outputs));
    if (inputs != outputs) {
        wrong(message, "%zu inputs but %zu outputs: expected as many outputs as inputs", inputs,
              outputs);
        return refuse(kernel, NULL, message);
    }
    for (size_t begin = 0; begin < inputs; begin += count) {
        weft_group_t *group;
        uint64_t rows;
        count = inputs - begin < TENSORS_MAX ? inputs - begin : TENSORS_MAX;
        count = kernel->axis != 0 ? 1 : count;
        for (size_t i = 0; i < count; i++) {
            ort_status_t *failed = prepare(kernel, context, begin + i, &tensors[i], message);
            if (failed != NULL || message[0] != '\0') {
                return refuse(kernel, failed, failed == NULL ? message : NO_TENSOR);
            }
        }
        weft_status_t status = weft_ort_begin(&group);
        if (status == WEFT_OK) {
            status = kernel->axis != 0 && gathers_apart(kernel, tensors, &rows)
                         ? gather_apart(kernel, tensors, rows, group)
                         : run(kernel, tensors, count, group);
            weft_ort_end();
        }
        TRY(status_of(api, status));
    }
    return NULL;
}

/* ---- the table of operators ---- */

static const char *name_of(const ort_operator_t *base)
{
    return ((const op_t *)base)->name;
}

static const char *provider_of(const ort_operator_t *base)
{
    (void)base;
    return "CPUExecutionProvider";
}

static int type_of(const ort_operator_t *base, size_t index)
{
    (void)base, (void)index;
    return ORT_ANY_TYPE;
}

static size_t one(const ort_operator_t *base)
{
    (void)base;
    return 1;
}

static int kind_of(const ort_operator_t *base, size_t index)
{
    (void)index;
    return ((const op_t *)base)->is_variadic ? ORT_VARIADIC : ORT_SINGLE;
}

static int memory_of(const ort_operator_t *base, size_t index)
{
    (void)base, (void)index;
    return ORT_MEMORY_DEFAULT;
}

static int at_least_one(const ort_operator_t *base)
{
    (void)base;
    return 1;
}

static int no_version_limit(const ort_operator_t *base)
{
    (void)base;
    return INT32_MAX;
}

static size_t none_in_place(int **out_inputs, int **out_outputs)
{
    *out_inputs = *out_outputs = NULL;
    return 0;
}

/* Output i may overwrite input i; later ones get memory of their own. */
static size_t each_in_place(int **out_inputs, int **out_outputs)
{
    static int places[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    *out_inputs = *out_outputs = places;
    return sizeof places / sizeof *places;
}

static void release_places(int *inputs, int *outputs)
{
    (void)inputs, (void)outputs;
}

#define BASE(places)                                                                               \
    {                                                                                              \
        .version = ORT_VERSION, .name = name_of, .provider = provider_of, .input_type = type_of,   \
        .input_type_count = one, .output_type = type_of, .output_type_count = one,                 \
        .destroy_kernel = destroy_kernel, .input_kind = kind_of, .output_kind = kind_of,           \
        .input_memory = memory_of, .variadic_inputs_min = at_least_one,                            \
        .variadic_inputs_alike = at_least_one, .variadic_outputs_min = at_least_one,               \
        .variadic_outputs_alike = at_least_one, .create_kernel = create_kernel,                    \
        .compute = compute, .infer_shapes = infer_shapes, .since_version = at_least_one,           \
        .until_version = no_version_limit, .in_place = places, .release_in_place = release_places, \
        .aliases = none_in_place, .release_aliases = release_places                                \
    }

/* Extents and facts of collectives, from the table in weft/types.h. */
enum {
#define FACTS(op, value, name, function, send, sender, recv, receiver, reduces, counts, text)      \
    SEND_##op = WEFT_EXTENT_##send, RECV_##op = WEFT_EXTENT_##recv, REDUCES_##op = (reduces),      \
    COUNTS_##op = (counts),                                                                        \
    ROOT_##op =                                                                                    \
        WEFT_HOLDER_##sender == WEFT_HOLDER_ROOT || WEFT_HOLDER_##receiver == WEFT_HOLDER_ROOT,
    WEFT_COLLECTIVE_MAP(FACTS)
#undef FACTS
};

#define OPERATOR(place, text, op, variadic, places, first_axis, ranks)                             \
    {                                                                                              \
        .base = BASE(places), .name = text, .domain = place, .collective = WEFT_COLLECTIVE_##op,   \
        .send = (weft_extent_t)SEND_##op, .recv = (weft_extent_t)RECV_##op,                        \
        .is_variadic = variadic, .reduces = REDUCES_##op, .has_root = ROOT_##op,                   \
        .has_counts = COUNTS_##op, .axis = first_axis, .group_size = ranks                         \
    }
#define OURS(text, op, variadic, places) OPERATOR("weft", text, op, variadic, places, 0, 0)

/* Not weft::Gather: ONNX Runtime's passes take a node of that name for ONNX's and end the process. */
static const op_t OPERATORS[] = {
    OURS("AllReduce", ALL_REDUCE, true, each_in_place),
    OURS("ReduceScatter", REDUCE_SCATTER, true, none_in_place),
    OURS("AllGather", ALL_GATHER, true, none_in_place),
    OURS("Broadcast", BROADCAST, true, each_in_place),
    OURS("Reduce", REDUCE, false, none_in_place),
    OURS("Scatter", SCATTER, false, none_in_place),
    OURS("AllToAll", ALL_TO_ALL, false, each_in_place),
    OURS("AllGatherV", ALL_GATHER_V, false, none_in_place),
    OURS("ReduceScatterV", REDUCE_SCATTER_V, false, none_in_place),
    OURS("AllToAllV", ALL_TO_ALL_V, false, none_in_place),
    /* As in ONNX Runtime's own schemas, which have these defaults. */
    OPERATOR("com.microsoft", "AllReduce", ALL_REDUCE, true, each_in_place, 0, 0),
    OPERATOR("com.microsoft", "AllGather", ALL_GATHER, true, none_in_place, 1, 1),
    OPERATOR("com.microsoft", "AllToAll", ALL_TO_ALL, true, each_in_place, 0, 1),
};

/* ---- registration ---- */

/* What one copy of ONNX Runtime in this process uses. Sessions refer to it: it is never freed. */
typedef struct registry {
    struct registry *next;
    const ort_api_t *api;
    ort_domain_t *domains[2];
    op_t ops[sizeof OPERATORS / sizeof *OPERATORS];
} registry_t;

static struct {
    pthread_mutex_t lock; /* of first */
    registry_t *first;
} registries = {.lock = PTHREAD_MUTEX_INITIALIZER};

static ort_status_t *create_domain(registry_t *registry, const char *name, ort_domain_t **out)
{
    TRY(registry->api->create_domain(name, out));
    for (size_t i = 0; i < sizeof OPERATORS / sizeof *OPERATORS; i++) {
        if (strcmp(OPERATORS[i].domain, name) == 0) {
            TRY(registry->api->domain_add(*out, &registry->ops[i].base));
        }
    }
    return NULL;
}

static ort_status_t *create_registry(const ort_api_t *api, registry_t **out)
{
    registry_t *registry = calloc(1, sizeof *registry);
    if (registry == NULL) {
        return fail(api, ORT_FAIL, "out of memory: operators");
    }
    registry->api = api;
    memcpy(registry->ops, OPERATORS, sizeof OPERATORS);
    for (size_t i = 0; i < sizeof OPERATORS / sizeof *OPERATORS; i++) {
        registry->ops[i].api = api;
    }
    TRY(create_domain(registry, "weft", &registry->domains[0]));
    TRY(create_domain(registry, "com.microsoft", &registry->domains[1]));
    registry->next = registries.first;
    registries.first = *out = registry;
    return NULL;
}

/*
 * Which domains the session gets: what its configuration entry weft.domains lists; without it weft
 * alone. Where a custom domain com.microsoft is registered, a model that does not import
 * com.microsoft gets that in version 1000, in which ONNX Runtime does not find the operators of its
 * own fusions.
 */
static ort_status_t *read_domains(const ort_api_t *api, const ort_options_t *options,
                                  bool out_chosen[2])
{
    char text[64];
    size_t bytes = sizeof text;
    int has = 0;
    out_chosen[0] = true;
    out_chosen[1] = false;
    TRY(api->has_config(options, "weft.domains", &has));
    if (has == 0) {
        return NULL;
    }
    bool fits = is_set(api, api->config(options, "weft.domains", text, &bytes));
    if (fits && strcmp(text, "weft,com.microsoft") == 0) {
        out_chosen[1] = true;
    } else if (fits && strcmp(text, "com.microsoft") == 0) {
        out_chosen[0] = false;
        out_chosen[1] = true;
    } else if (!fits || strcmp(text, "weft") != 0) {
        return fail(api, ORT_INVALID_ARGUMENT,
                    "configuration entry weft.domains: unknown value: expected weft, com.microsoft "
                    "or weft,com.microsoft");
    }
    return NULL;
}

static ort_status_t *add_domains(const ort_api_t *api, ort_options_t *options)
{
    bool chosen[2];
    TRY(read_domains(api, options, chosen));
    registry_t *registry = registries.first;
    while (registry != NULL && registry->api != api) {
        registry = registry->next;
    }
    if (registry == NULL) {
        TRY(create_registry(api, &registry));
    }
    for (int i = 0; i < 2; i++) {
        if (chosen[i]) {
            TRY(api->options_add_domain(options, registry->domains[i]));
        }
    }
    return NULL;
}

/* The parallel executor has no order that is the same on all ranks. */
static ort_status_t *check_mode(const ort_api_base_t *base, const ort_options_t *options)
{
    unsigned major = 0, minor = 0;
    int mode = ORT_SEQUENTIAL;
    sscanf(base->version(), "%u.%u", &major, &minor);
    if (major == 1 && minor < ORT_VERSION_EXECUTION_MODE) {
        return NULL; /* which has no function that tells; weft_ort_begin notices */
    }
    const ort_api_t *api = base->api(ORT_VERSION_EXECUTION_MODE);
    if (api == NULL) {
        return NULL;
    }
    TRY(api->execution_mode(options, &mode));
    return mode == ORT_SEQUENTIAL
               ? NULL
               : fail(api, ORT_INVALID_ARGUMENT,
                      "execution mode is ORT_PARALLEL, which runs collectives in an order of its "
                      "own on each rank: expected ORT_SEQUENTIAL");
}

/* What SessionOptions.register_custom_ops_library looks up and calls. */
WEFT_API ort_status_t *RegisterCustomOps(ort_options_t *options, const ort_api_base_t *base);
ort_status_t *RegisterCustomOps(ort_options_t *options, const ort_api_base_t *base)
{
    const ort_api_t *api = base->api(ORT_VERSION);
    if (api == NULL) { /* every version has the first table */
        return fail(base->api(1), ORT_FAIL,
                    "ONNX Runtime %s is too old for libweft_onnxruntime.so: expected 1.%d or later",
                    base->version(), ORT_VERSION);
    }
    TRY(check_mode(base, options));
    pthread_mutex_lock(&registries.lock);
    ort_status_t *status = add_domains(api, options);
    pthread_mutex_unlock(&registries.lock);
    return status;
}
