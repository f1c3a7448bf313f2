/* SPDX-License-Identifier: Apache-2.0 */
/* Calls the functions that prepare wrote down. */
#include "devices/opencl/kernels.h"

#include <string.h>

static weft_status_t find_operands(weft_queue_t *queue, const cl_node_t *node,
                                   const weft_kernel_call_t *call, uint32_t input_count,
                                   uint32_t output_count)
{
    uint32_t all = node->input_count + node->output_count;
    memset(node->places, 0, (all + 1u) * sizeof *node->places);
    for (uint32_t i = 0; i < all; i++) {
        bool in = i < node->input_count;
        uint32_t at = in ? i : i - node->input_count;
        const void *address = at >= (in ? input_count : output_count) ? NULL
                              : in                                    ? call->inputs[at]
                                                                      : call->outputs[at];
        size_t bytes = address != NULL ? node->bytes[in ? at : input_count + at] : 0;
        if (address != NULL) {
            TRY(cl_place_need(queue->device, address, bytes, in ? "input" : "output",
                              &node->places[i]));
        }
    }
    return node->scratch_bytes == 0
               ? WEFT_OK
               : cl_place_need(queue->device, call->scratch, node->scratch_bytes, "scratch",
                               &node->places[all]);
}

static cl_int set_place(cl_kernel kernel, cl_mem memory, size_t at, cl_uint *index)
{
    cl_ulong offset = at;
    cl_int code =
        clSetKernelArg(kernel, (*index)++, sizeof memory, memory != NULL ? &memory : NULL);
    return code == CL_SUCCESS ? clSetKernelArg(kernel, (*index)++, sizeof offset, &offset) : code;
}

/* With the lock of the device held. */
static cl_int set_arguments(weft_queue_t *queue, cl_kernel kernel, const cl_node_t *node,
                            const cl_step_t *step, cl_uint *out_index)
{
    cl_uint index = 0;
    cl_int code = CL_SUCCESS;
    uint32_t all = node->input_count + node->output_count + (node->scratch_bytes > 0);
    uint32_t count = step->selected > 0 ? step->selected : all;
    for (uint32_t i = 0; i < count && code == CL_SUCCESS; i++) {
        const cl_place_t *place = &node->places[step->selected > 0 ? step->chosen[i] : i];
        code = set_place(kernel, place->memory, place->offset, &index);
    }
    if (node->table_count > 0 && code == CL_SUCCESS) {
        code = set_place(kernel, node->table_memory, step->table_at * sizeof *node->table, &index);
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

/* The word in which functions leave the first wrong label or index, and its copy on the host. */
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

static cl_int make_table(weft_queue_t *queue, cl_node_t *node)
{
    cl_int code = CL_SUCCESS;
    if (node->table_count > 0 && node->table_memory == NULL) {
        node->table_memory =
            clCreateBuffer(queue->device->context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR,
                           node->table_count * sizeof *node->table, node->table, &code);
    }
    return code;
}

static cl_int enqueue_step(weft_queue_t *queue, const cl_node_t *node, const cl_step_t *step,
                           cl_uint count, const cl_event *events, cl_event *out_event)
{
    pthread_mutex_lock(&queue->device->lock);
    cl_kernel kernel = cl_function(queue->device, step->function);
    cl_uint index = 0;
    cl_int code =
        kernel != NULL ? set_arguments(queue, kernel, node, step, &index) : CL_INVALID_KERNEL;
    if (code == CL_SUCCESS) {
        code = cl_call(queue, kernel, index, step->count, count, events, out_event);
    }
    pthread_mutex_unlock(&queue->device->lock);
    return code;
}

weft_status_t cl_launch(weft_queue_t *queue, const weft_kernel_t *kernel,
                        const weft_kernel_call_t *call, uint32_t input_count, uint32_t output_count)
{
    cl_node_t *node = call->state;
    cl_uint count;
    const cl_event *events;
    cl_event event = NULL;
    if (kernel->destroy != cl_node_destroy) {
        return cl_fail(WEFT_ERR_UNSUPPORTED, "device %s: operator %s has a kernel for processors",
                       queue->device->name, kernel->op);
    }
    TRY(find_operands(queue, node, call, input_count, output_count));
    const cl_place_t *from = &node->places[0], *to = &node->places[node->input_count];
    if (node->step_count == 0 ||
        (node->view && from->memory == to->memory && from->offset == to->offset) ||
        cl_begin(queue, &count, &events)) {
        return WEFT_OK;
    }
    cl_int code = node->labels ? make_fault(queue) : CL_SUCCESS;
    code = code == CL_SUCCESS ? make_table(queue, node) : code;
    for (size_t i = 0; i < node->step_count && code == CL_SUCCESS; i++) {
        if (i > 0) {
            cl_next(queue, event, &count, &events);
        }
        code = enqueue_step(queue, node, &node->steps[i], count, events, &event);
    }
    if (node->labels && code == CL_SUCCESS) {
        cl_next(queue, event, &count, &events);
        code = clEnqueueReadBuffer(queue->commands, queue->fault, CL_FALSE, 0,
                                   sizeof queue->fault_seen, &queue->fault_seen, count, events,
                                   &event);
    }
    return cl_end(queue, kernel->op, code, event);
}
