/* SPDX-License-Identifier: Apache-2.0 */
/* Calls the functions that prepare wrote down. */
#include "devices/opencl/kernels.h"

#include <string.h>

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
                            const operands_t *operands, cl_uint *out_index)
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
    *out_index = index;
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
    cl_uint index = 0;
    cl_int code =
        kernel != NULL ? set_arguments(queue, kernel, node, operands, &index) : CL_INVALID_KERNEL;
    if (code == CL_SUCCESS) {
        code = cl_call(queue, kernel, index, step->count, count, events, out_event);
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
    if (kernel->destroy != cl_node_destroy) {
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
