/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of operators: prepare checks a node and writes down the functions to call, launch calls
 * them. A function gets all operands of the node (inputs, outputs, scratch if there is any), then
 * the numbers, then the factors, then the word that tells of a wrong label if it looks at labels.
 */
#include "devices/opencl/opencl.h"

#include <stdlib.h>
#include <string.h>

#define STEPS 2u
#define NUMBERS 10u
#define FACTORS 6u
#define GEMM_TILE 16
#define FOLDED 8u /* levels of 128 micro-batches */

typedef struct cl_step {
    const char *function;
    size_t global[2], local[2];
    uint32_t dims;
    bool tiled; /* local is set */
} cl_step_t;

typedef struct cl_node {
    const char *op; /* of the kernel */
    cl_step_t steps[STEPS];
    uint32_t step_count, number_count, factor_count;
    cl_long numbers[NUMBERS];
    cl_float factors[FACTORS];
    size_t bytes[WEFT_MAX_DIMS * 2]; /* of each operand, inputs first */
    uint32_t input_count, output_count;
    size_t scratch_bytes;
    bool labels, f64;
} cl_node_t;
#define OPERANDS (sizeof((cl_node_t *)0)->bytes / sizeof(size_t))

/* ---- what prepare uses ---- */

static const weft_attr_t *attr(const weft_node_desc_t *desc, const char *name)
{
    for (uint32_t i = 0; i < desc->attr_count; i++) {
        if (strcmp(desc->attrs[i].name, name) == 0) {
            return &desc->attrs[i];
        }
    }
    return NULL;
}

static int64_t attr_int(const weft_node_desc_t *desc, const char *name, int64_t otherwise)
{
    const weft_attr_t *found = attr(desc, name);
    return found != NULL && found->type == WEFT_ATTR_TYPE_INT ? found->i : otherwise;
}

static float attr_float(const weft_node_desc_t *desc, const char *name, float otherwise)
{
    const weft_attr_t *found = attr(desc, name);
    return found != NULL && found->type == WEFT_ATTR_TYPE_FLOAT ? found->f : otherwise;
}

static bool has(const weft_tensor_desc_t *tensors, uint32_t count, uint32_t index)
{
    return index < count && tensors[index].dtype != WEFT_DTYPE_NONE;
}

static int64_t elems(const weft_tensor_desc_t *tensor)
{
    int64_t count = 1;
    for (uint32_t d = 0; d < tensor->rank; d++) {
        count *= tensor->dims[d]; /* known and checked in a plan */
    }
    return count;
}

static bool same_shape(const weft_tensor_desc_t *a, const weft_tensor_desc_t *b)
{
    return a->rank == b->rank && memcmp(a->dims, b->dims, a->rank * sizeof *a->dims) == 0;
}

static weft_status_t refuse(const weft_node_desc_t *desc, const char *why)
{
    return cl_fail(WEFT_ERR_UNSUPPORTED, "%s: no OpenCL kernel: %s", desc->op, why);
}

/* Tensors of f32 in plain layout, but those of the masks; all of them are there. */
static weft_status_t need_f32(const weft_node_desc_t *desc, uint32_t inputs, uint32_t outputs,
                              uint32_t other_inputs)
{
    for (uint32_t i = 0; i < inputs + outputs; i++) {
        bool in = i < inputs;
        uint32_t at = in ? i : i - inputs;
        if (!has(in ? desc->inputs : desc->outputs, in ? desc->input_count : desc->output_count,
                 at)) {
            return refuse(desc, "an operand is absent");
        }
        const weft_tensor_desc_t *tensor = in ? &desc->inputs[at] : &desc->outputs[at];
        if (tensor->layout != WEFT_LAYOUT_PLAIN ||
            (tensor->dtype != WEFT_DTYPE_F32 && !(in && (other_inputs >> at & 1) != 0))) {
            return refuse(desc, "operands must be f32 in plain layout");
        }
    }
    return WEFT_OK;
}

static size_t elem_bytes(weft_dtype_t dtype)
{
    static const uint8_t bytes[] = {0, 8, 4, 2, 2, 8, 4, 2, 1, 8, 4, 2, 1, 1};
    return (size_t)dtype < sizeof bytes ? bytes[dtype] : 0;
}

static weft_status_t keep(const weft_node_desc_t *desc, const cl_node_t *made, void **out_state,
                          size_t *out_scratch_bytes)
{
    cl_node_t *node = malloc(sizeof *node);
    if (node == NULL) {
        return cl_fail(WEFT_ERR_NO_MEMORY, "out of memory: a kernel");
    }
    *node = *made;
    if (desc->input_count + desc->output_count > OPERANDS) {
        free(node);
        return refuse(desc, "too many operands");
    }
    for (uint32_t i = 0; i < desc->input_count; i++) {
        node->bytes[i] = (size_t)elems(&desc->inputs[i]) * elem_bytes(desc->inputs[i].dtype);
    }
    for (uint32_t i = 0; i < desc->output_count; i++) {
        node->bytes[desc->input_count + i] =
            (size_t)elems(&desc->outputs[i]) * elem_bytes(desc->outputs[i].dtype);
    }
    *out_state = node;
    *out_scratch_bytes = node->scratch_bytes;
    return WEFT_OK;
}

static cl_step_t each(const char *function, int64_t count)
{
    return (cl_step_t){.function = function, .global = {(size_t)count, 1}, .dims = 1};
}

static void add_step(cl_node_t *node, cl_step_t step)
{
    if (step.global[0] > 0 && step.global[1] > 0) { /* of no elements nothing is called */
        node->steps[node->step_count++] = step;
    }
}

static void add_number(cl_node_t *node, int64_t number)
{
    node->numbers[node->number_count++] = number;
}

static void add_factor(cl_node_t *node, float factor)
{
    node->factors[node->factor_count++] = factor;
}

/* ---- operators ---- */

#define PREPARE(name)                                                                              \
    static weft_status_t name(const weft_node_desc_t *desc, const weft_kernel_env_t *env,          \
                              void **out_state, size_t *out_scratch_bytes)

/* inputs, outputs: what the function takes; absent ones in between count. */
static cl_node_t start(uint32_t inputs, uint32_t outputs)
{
    return (cl_node_t){.input_count = inputs, .output_count = outputs};
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        weft_status_t try_status = (call);                                                         \
        if (try_status < 0) {                                                                      \
            return try_status;                                                                     \
        }                                                                                          \
    } while (0)

PREPARE(prepare_gemm)
{
    cl_node_t node = start(3, 1);
    bool has_c = has(desc->inputs, desc->input_count, 2);
    (void)env;
    TRY(need_f32(desc, has_c ? 3 : 2, 1, 0));
    const weft_tensor_desc_t *a = &desc->inputs[0], *b = &desc->inputs[1], *y = &desc->outputs[0];
    bool trans_a = attr_int(desc, "transA", 0) != 0, trans_b = attr_int(desc, "transB", 0) != 0;
    if (a->rank != 2 || b->rank != 2 || y->rank != 2) {
        return refuse(desc, "operands must be matrices");
    }
    int64_t m = a->dims[trans_a], k = a->dims[!trans_a], n = b->dims[!trans_b];
    int64_t c_row = 0, c_column = 0;
    float beta = attr_float(desc, "beta", 1.0f);
    if (b->dims[trans_b] != k || y->dims[0] != m || y->dims[1] != n) {
        return refuse(desc, "shapes do not fit");
    }
    if (has_c) {
        const weft_tensor_desc_t *c = &desc->inputs[2];
        int64_t rows = c->rank >= 2 ? c->dims[c->rank - 2] : 1;
        int64_t columns = c->rank >= 1 ? c->dims[c->rank - 1] : 1;
        if (c->rank > 2 || (rows != 1 && rows != m) || (columns != 1 && columns != n)) {
            return refuse(desc, "input 2 cannot be broadcast");
        }
        c_row = rows == 1 ? 0 : columns;
        c_column = columns == 1 ? 0 : 1;
    }
    const int64_t numbers[] = {m, n, k, trans_a, trans_b, c_row, c_column, has_c && beta != 0};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        add_number(&node, numbers[i]);
    }
    add_factor(&node, attr_float(desc, "alpha", 1.0f));
    add_factor(&node, beta);
    const size_t tile = GEMM_TILE;
    add_step(&node, (cl_step_t){.function = "gemm",
                                .global = {((size_t)n + tile - 1) / tile * tile,
                                           ((size_t)m + tile - 1) / tile * tile},
                                .local = {tile, tile},
                                .dims = 2,
                                .tiled = true});
    return keep(desc, &node, out_state, out_scratch_bytes);
}

/* Element by element, of inputs of the shape of the output. */
static weft_status_t prepare_each(const weft_node_desc_t *desc, const char *function,
                                  uint32_t inputs, void **out_state, size_t *out_scratch_bytes)
{
    cl_node_t node = start(inputs, 1);
    TRY(need_f32(desc, inputs, 1, 0));
    for (uint32_t i = 0; i < inputs; i++) {
        if (elems(&desc->inputs[i]) != elems(&desc->outputs[0])) {
            return refuse(desc, "shapes differ");
        }
    }
    add_step(&node, each(function, elems(&desc->outputs[0])));
    return keep(desc, &node, out_state, out_scratch_bytes);
}

PREPARE(prepare_relu)
{
    (void)env;
    return prepare_each(desc, "relu", 1, out_state, out_scratch_bytes);
}

PREPARE(prepare_relu_grad)
{
    (void)env;
    return prepare_each(desc, "relu_grad", 2, out_state, out_scratch_bytes);
}

/* Views: the same elements in another shape. */
PREPARE(prepare_view)
{
    cl_node_t node = start(1, 1);
    (void)env;
    if (!has(desc->inputs, desc->input_count, 0) || !has(desc->outputs, desc->output_count, 0) ||
        desc->inputs[0].dtype != desc->outputs[0].dtype ||
        elems(&desc->inputs[0]) != elems(&desc->outputs[0]) ||
        desc->inputs[0].layout != desc->outputs[0].layout ||
        elem_bytes(desc->inputs[0].dtype) % 4 != 0) {
        return refuse(desc, "operands differ");
    }
    add_step(&node, each("copy_words",
                         elems(&desc->inputs[0]) * (int64_t)elem_bytes(desc->inputs[0].dtype) / 4));
    return keep(desc, &node, out_state, out_scratch_bytes);
}

/* Partial sums of micro-batches, the latest first. */
PREPARE(prepare_tree_fold)
{
    cl_node_t node = start(FOLDED, 1);
    (void)env;
    if (desc->input_count == 0 || desc->input_count > FOLDED) {
        return refuse(desc, "too many inputs");
    }
    TRY(need_f32(desc, desc->input_count, 1, 0));
    for (uint32_t i = 0; i < desc->input_count; i++) {
        if (elems(&desc->inputs[i]) != elems(&desc->outputs[0])) {
            return refuse(desc, "shapes differ");
        }
    }
    add_number(&node, desc->input_count);
    add_step(&node, each("tree_fold", elems(&desc->outputs[0])));
    return keep(desc, &node, out_state, out_scratch_bytes);
}

/* Over the leading dimensions; those of the output are the last ones of the input. */
PREPARE(prepare_sum_to)
{
    cl_node_t node = start(1, 1);
    (void)env;
    TRY(need_f32(desc, 1, 1, 0));
    const weft_tensor_desc_t *x = &desc->inputs[0], *y = &desc->outputs[0];
    uint32_t first = x->rank > y->rank ? x->rank - y->rank : 0;
    if (y->rank > x->rank || first == 0 ||
        memcmp(x->dims + first, y->dims, y->rank * sizeof *y->dims) != 0) {
        return refuse(desc, "sums are over leading dimensions only");
    }
    int64_t columns = elems(y);
    add_number(&node, columns > 0 ? elems(x) / columns : 0);
    add_number(&node, columns);
    add_step(&node, each("sum_columns", columns));
    return keep(desc, &node, out_state, out_scratch_bytes);
}

/* Scores and labels at inputs scores and scores + 1. */
static weft_status_t describe_loss(const weft_node_desc_t *desc, uint32_t scores, cl_node_t *node,
                                   bool *out_mean)
{
    const weft_attr_t *reduction = attr(desc, "reduction");
    const char *name = reduction != NULL && reduction->s != NULL ? reduction->s : "mean";
    const weft_tensor_desc_t *x = &desc->inputs[scores], *labels = &desc->inputs[scores + 1];
    TRY(need_f32(desc, scores + 2, 1, 1u << (scores + 1)));
    if (x->rank != 2 || elems(labels) != x->dims[0] || x->dims[1] < 1 ||
        x->dims[0] > INT32_MAX - 1 ||
        (labels->dtype != WEFT_DTYPE_I64 && labels->dtype != WEFT_DTYPE_I32)) {
        return refuse(desc, "expected scores [rows, classes], and a label per row");
    }
    if (has(desc->inputs, desc->input_count, scores + 2) || strcmp(name, "none") == 0 ||
        attr_float(desc, "label_smoothing", 0.0f) != 0.0f) {
        return refuse(desc, "weights, smoothing and reduction \"none\" are not supported");
    }
    add_number(node, x->dims[0]);
    add_number(node, x->dims[1]);
    add_number(node, labels->dtype == WEFT_DTYPE_I64);
    add_number(node, attr(desc, "ignore_index") != NULL);
    add_number(node, attr_int(desc, "ignore_index", 0));
    *out_mean = strcmp(name, "sum") != 0;
    node->labels = node->f64 = true;
    return WEFT_OK;
}

PREPARE(prepare_loss)
{
    cl_node_t node = start(2, 2);
    bool mean, has_log_prob = has(desc->outputs, desc->output_count, 1);
    (void)env;
    TRY(describe_loss(desc, 0, &node, &mean));
    int64_t rows = desc->inputs[0].dims[0];
    if (elems(&desc->outputs[0]) != 1 ||
        (has_log_prob && !same_shape(&desc->outputs[1], &desc->inputs[0]))) {
        return refuse(desc, "shapes do not fit");
    }
    add_number(&node, has_log_prob);
    add_number(&node, mean);
    node.scratch_bytes =
        (size_t)(rows + (has_log_prob ? 0 : elems(&desc->inputs[0]))) * sizeof(float);
    add_step(&node, each("loss_rows", rows));
    add_step(&node, each("loss_total", 1));
    return keep(desc, &node, out_state, out_scratch_bytes);
}

PREPARE(prepare_loss_grad)
{
    cl_node_t node = start(3, 1);
    bool mean;
    (void)env;
    TRY(describe_loss(desc, 1, &node, &mean));
    if (!same_shape(&desc->outputs[0], &desc->inputs[1]) || elems(&desc->inputs[0]) != 1) {
        return refuse(desc, "shapes do not fit");
    }
    add_number(&node, mean);
    add_step(&node, each("loss_grad", desc->inputs[1].dims[0]));
    return keep(desc, &node, out_state, out_scratch_bytes);
}

/* tensors of the parameter's shape, then scalars, then maybe a scale of the gradient */
static weft_status_t describe_update(const weft_node_desc_t *desc, uint32_t tensors,
                                     uint32_t scalars, cl_node_t *node)
{
    *node = start(tensors + scalars + 1, tensors - 1);
    TRY(need_f32(desc, tensors + scalars, tensors - 1, 0));
    for (uint32_t i = 0; i < tensors + scalars; i++) {
        if (elems(&desc->inputs[i]) != (i < tensors ? elems(&desc->inputs[0]) : 1)) {
            return refuse(desc, "shapes do not fit");
        }
    }
    add_number(node, has(desc->inputs, desc->input_count, tensors + scalars));
    add_factor(node, (float)attr_int(desc, "divisor", 1));
    add_factor(node, attr_float(desc, "weight_decay", 0.0f));
    return WEFT_OK;
}

PREPARE(prepare_sgd)
{
    cl_node_t node;
    (void)env;
    TRY(describe_update(desc, 2, 1, &node));
    add_step(&node, each("sgd", elems(&desc->inputs[0])));
    return keep(desc, &node, out_state, out_scratch_bytes);
}

PREPARE(prepare_momentum)
{
    cl_node_t node;
    (void)env;
    TRY(describe_update(desc, 3, 1, &node));
    add_number(&node, attr_int(desc, "nesterov", 0) != 0);
    add_factor(&node, attr_float(desc, "momentum", 0.9f));
    add_step(&node, each("momentum", elems(&desc->inputs[0])));
    return keep(desc, &node, out_state, out_scratch_bytes);
}

PREPARE(prepare_adagrad)
{
    cl_node_t node;
    (void)env;
    TRY(describe_update(desc, 3, 2, &node));
    add_number(&node, attr_int(desc, "first", 0));
    add_factor(&node, attr_float(desc, "lr_decay", 0.0f));
    add_factor(&node, attr_float(desc, "epsilon", 1e-10f));
    node.f64 = true;
    add_step(&node, each("adagrad", elems(&desc->inputs[0])));
    return keep(desc, &node, out_state, out_scratch_bytes);
}

PREPARE(prepare_adam)
{
    cl_node_t node;
    (void)env;
    TRY(describe_update(desc, 4, 2, &node));
    add_number(&node, attr_int(desc, "first", 1));
    add_number(&node, attr_int(desc, "scaled_epsilon", 0) != 0);
    add_number(&node, attr_int(desc, "decay_last", 0) != 0);
    add_number(&node, strcmp(desc->op, "AdamW") == 0);
    add_factor(&node, attr_float(desc, "beta1", 0.9f));
    add_factor(&node, attr_float(desc, "beta2", 0.999f));
    add_factor(&node, attr_float(desc, "epsilon", 1e-8f));
    node.f64 = true;
    add_step(&node, each("adam", elems(&desc->inputs[0])));
    return keep(desc, &node, out_state, out_scratch_bytes);
}

static void destroy(void *state)
{
    free(state);
}

#define ROW(its_domain, name, function)                                                            \
    {                                                                                              \
        .abi_version = WEFT_KERNEL_ABI_VERSION, .domain = its_domain, .op = name,                  \
        .since_version = 1, .prepare = function, .destroy = destroy, .family = "opencl"            \
    }
const weft_kernel_t cl_kernels[] = {
    ROW("", "Gemm", prepare_gemm),
    ROW("", "Relu", prepare_relu),
    ROW("com.microsoft", "ReluGrad", prepare_relu_grad),
    ROW("", "Flatten", prepare_view),
    ROW("", "Identity", prepare_view),
    ROW("", "Reshape", prepare_view),
    ROW("weft", "SumTo", prepare_sum_to),
    ROW("", "SoftmaxCrossEntropyLoss", prepare_loss),
    ROW("com.microsoft", "SoftmaxCrossEntropyLossGrad", prepare_loss_grad),
    ROW("weft", "TreeFold", prepare_tree_fold),
    ROW("weft", "SGD", prepare_sgd),
    ROW("weft", "Momentum", prepare_momentum),
    ROW("weft", "Adagrad", prepare_adagrad),
    ROW("weft", "Adam", prepare_adam),
    ROW("weft", "AdamW", prepare_adam),
};
const size_t cl_kernel_count = sizeof cl_kernels / sizeof *cl_kernels;

/* ---- launch ---- */

typedef struct operands {
    cl_place_t places[OPERANDS + 1];
    uint32_t count;
} operands_t;

static weft_status_t find_operands(weft_queue_t *queue, const cl_node_t *node,
                                   const weft_kernel_call_t *call, uint32_t input_count,
                                   uint32_t output_count, operands_t *out)
{
    uint32_t all = node->input_count + node->output_count;
    out->count = all + (node->scratch_bytes > 0);
    memset(out->places, 0, sizeof out->places);
    for (uint32_t i = 0; i < all; i++) {
        bool in = i < node->input_count;
        uint32_t at = in ? i : i - node->input_count;
        const void *address = at >= (in ? input_count : output_count) ? NULL
                              : in                                    ? call->inputs[at]
                                                                      : call->outputs[at];
        size_t bytes = node->bytes[in ? at : input_count + at];
        if (address != NULL) {
            TRY(cl_place_need(queue->device, address, bytes, in ? "input" : "output",
                              &out->places[i]));
        }
    }
    return node->scratch_bytes == 0
               ? WEFT_OK
               : cl_place_need(queue->device, call->scratch, node->scratch_bytes, "scratch",
                               &out->places[all]);
}

/* With the lock of the device held. */
static cl_int set_arguments(weft_queue_t *queue, cl_kernel kernel, const cl_node_t *node,
                            const operands_t *operands)
{
    cl_uint index = 0;
    cl_int code = CL_SUCCESS;
    for (uint32_t i = 0; i < operands->count && code == CL_SUCCESS; i++) {
        const cl_place_t *place = &operands->places[i];
        cl_ulong offset = place->offset;
        code = clSetKernelArg(kernel, index++, sizeof place->memory,
                              place->memory != NULL ? &place->memory : NULL);
        code = code == CL_SUCCESS ? clSetKernelArg(kernel, index++, sizeof offset, &offset) : code;
    }
    for (uint32_t i = 0; i < node->number_count && code == CL_SUCCESS; i++) {
        code = clSetKernelArg(kernel, index++, sizeof *node->numbers, &node->numbers[i]);
    }
    for (uint32_t i = 0; i < node->factor_count && code == CL_SUCCESS; i++) {
        code = clSetKernelArg(kernel, index++, sizeof *node->factors, &node->factors[i]);
    }
    if (node->labels && code == CL_SUCCESS) {
        code = clSetKernelArg(kernel, index++, sizeof queue->fault, &queue->fault);
    }
    return code;
}

/* The word in which functions leave the first row with a wrong label, and its copy on the host. */
static cl_int make_fault(weft_queue_t *queue)
{
    cl_int code = CL_SUCCESS;
    if (queue->fault == NULL) {
        queue->fault_seen = INT32_MAX;
        queue->fault =
            clCreateBuffer(queue->device->context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                           sizeof queue->fault_seen, &queue->fault_seen, &code);
    }
    return code;
}

static cl_int enqueue_step(weft_queue_t *queue, const cl_node_t *node, const cl_step_t *step,
                           const operands_t *operands, cl_uint count, const cl_event *events,
                           cl_event *out_event)
{
    pthread_mutex_lock(&queue->device->lock);
    cl_kernel kernel = cl_function(queue->device, step->function);
    cl_int code = kernel != NULL ? set_arguments(queue, kernel, node, operands) : CL_INVALID_KERNEL;
    if (code == CL_SUCCESS) {
        code = clEnqueueNDRangeKernel(queue->commands, kernel, step->dims, NULL, step->global,
                                      step->tiled ? step->local : NULL, count, events, out_event);
    }
    pthread_mutex_unlock(&queue->device->lock);
    return code;
}

weft_status_t cl_launch(weft_queue_t *queue, const weft_kernel_t *kernel,
                        const weft_kernel_call_t *call, uint32_t input_count, uint32_t output_count)
{
    const cl_node_t *node = call->state;
    cl_uint count;
    const cl_event *events;
    cl_event event = NULL;
    operands_t operands;
    if (kernel->destroy != destroy) {
        return cl_fail(WEFT_ERR_UNSUPPORTED, "device %s: operator %s has a kernel for processors",
                       queue->device->name, kernel->op);
    }
    if (node->f64 && !queue->device->f64) {
        return cl_fail(WEFT_ERR_UNSUPPORTED, "device %s: operator %s needs doubles",
                       queue->device->name, kernel->op);
    }
    TRY(find_operands(queue, node, call, input_count, output_count, &operands));
    if (node->step_count == 0 || cl_begin(queue, &count, &events)) {
        return WEFT_OK;
    }
    cl_int code = node->labels ? make_fault(queue) : CL_SUCCESS;
    for (uint32_t i = 0; i < node->step_count && code == CL_SUCCESS; i++) {
        if (i > 0) {
            cl_next(queue, event, &count, &events);
        }
        code = enqueue_step(queue, node, &node->steps[i], &operands, count, events, &event);
    }
    if (node->labels && code == CL_SUCCESS) {
        cl_next(queue, event, &count, &events);
        code = clEnqueueReadBuffer(queue->commands, queue->fault, CL_FALSE, 0,
                                   sizeof queue->fault_seen, &queue->fault_seen, count, events,
                                   &event);
    }
    return cl_end(queue, kernel->op, code, event);
}
