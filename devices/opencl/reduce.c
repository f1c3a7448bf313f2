/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions: up to 8 sources in one command, more in several, by scratch of the queue. */
#include "devices/opencl/opencl.h"

#include <string.h>

#define RADIX 8u
#define WIDE_BYTES ((size_t)8) /* at most, of an element between two commands */

/* By weft_dtype_t: the function, bytes per element, and per wide element. */
static const struct {
    const char *function;
    uint8_t bytes, wide_bytes;
} types[] = {
    [WEFT_DTYPE_F64] = {"reduce_f64", 8, 8}, [WEFT_DTYPE_F32] = {"reduce_f32", 4, 4},
    [WEFT_DTYPE_F16] = {"reduce_f16", 2, 4}, [WEFT_DTYPE_BF16] = {"reduce_bf16", 2, 4},
    [WEFT_DTYPE_I64] = {"reduce_i64", 8, 8}, [WEFT_DTYPE_I32] = {"reduce_i32", 4, 8},
    [WEFT_DTYPE_I16] = {"reduce_i16", 2, 8}, [WEFT_DTYPE_I8] = {"reduce_i8", 1, 8},
    [WEFT_DTYPE_U64] = {"reduce_u64", 8, 8}, [WEFT_DTYPE_U32] = {"reduce_u32", 4, 8},
    [WEFT_DTYPE_U16] = {"reduce_u16", 2, 8}, [WEFT_DTYPE_U8] = {"reduce_u8", 1, 8},
};
#define TYPES (sizeof types / sizeof *types)

typedef struct command {
    const cl_place_t *sources;
    uint32_t source_count;
    cl_place_t destination;
    cl_int wide, finish, reduction;
    cl_uint divisor;
} command_t;

static cl_int set_place(cl_kernel kernel, cl_uint *index, const cl_place_t *place)
{
    cl_ulong offset = place->offset;
    cl_int code = clSetKernelArg(kernel, (*index)++, sizeof place->memory, &place->memory);
    return code == CL_SUCCESS ? clSetKernelArg(kernel, (*index)++, sizeof offset, &offset) : code;
}

/* With the lock of the device held. */
static cl_int enqueue(weft_queue_t *queue, cl_kernel kernel, const command_t *command,
                      size_t elem_count, cl_uint wait_count, const cl_event *waits, cl_event *event)
{
    cl_uint index = 0;
    cl_int code = CL_SUCCESS, count = (cl_int)command->source_count;
    for (uint32_t s = 0; s < RADIX && code == CL_SUCCESS; s++) {
        code = set_place(kernel, &index, &command->sources[s < command->source_count ? s : 0]);
    }
    code = code == CL_SUCCESS ? set_place(kernel, &index, &command->destination) : code;
    const cl_int numbers[] = {count, command->wide, command->finish, command->reduction,
                              (cl_int)command->divisor};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && code == CL_SUCCESS; i++) {
        code = clSetKernelArg(kernel, index++, sizeof numbers[i], &numbers[i]);
    }
    return code == CL_SUCCESS ? cl_call(queue, kernel, index, elem_count, wait_count, waits, event)
                              : code;
}

/* Room for the results of all commands but the last. */
static cl_int reserve(weft_queue_t *queue, size_t bytes)
{
    cl_int code = CL_SUCCESS;
    if (bytes <= queue->scratch_bytes) {
        return code;
    }
    if (queue->scratch != NULL) {
        clReleaseMemObject(queue->scratch); /* commands that use it keep it */
    }
    queue->scratch_bytes = 0;
    queue->scratch = clCreateBuffer(queue->device->context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    if (code == CL_SUCCESS) {
        queue->scratch_bytes = bytes;
    } else {
        queue->scratch = NULL;
    }
    return code;
}

/* All commands; places: the sources, of which later rounds overwrite the first ones. */
static weft_status_t run(weft_queue_t *queue, const weft_reduce_t *reduce, cl_place_t *places,
                         const cl_place_t *destinations)
{
    cl_device_t *device = queue->device;
    size_t elem_count = (size_t)reduce->elem_count, bytes = elem_count * types[reduce->dtype].bytes;
    uint32_t count = reduce->source_count, slots = 0;
    cl_uint wait_count;
    const cl_event *waits;
    cl_event event = NULL;
    cl_int code, wide = 0;
    if (cl_begin(queue, &wait_count, &waits)) {
        return WEFT_OK;
    }
    for (uint32_t n = count; n > RADIX; n = (n + RADIX - 1) / RADIX) {
        slots += (n + RADIX - 1) / RADIX;
    }
    code = reserve(queue, slots * elem_count * WIDE_BYTES);
    pthread_mutex_lock(&device->lock);
    cl_kernel kernel = cl_function(device, types[reduce->dtype].function);
    if (kernel == NULL) {
        pthread_mutex_unlock(&device->lock);
        pthread_mutex_unlock(&queue->lock);
        return WEFT_ERR_SYSTEM;
    }
    for (uint32_t slot = 0; count > RADIX && code == CL_SUCCESS; wide = 1) {
        uint32_t groups = 0;
        for (uint32_t s = 0; s < count && code == CL_SUCCESS; s += RADIX) {
            cl_place_t result = {.memory = queue->scratch,
                                 .offset = slot++ * elem_count * WIDE_BYTES};
            command_t command = {.sources = places + s,
                                 .source_count = count - s < RADIX ? count - s : RADIX,
                                 .destination = result,
                                 .wide = wide,
                                 .reduction = (cl_int)reduce->reduction};
            code = enqueue(queue, kernel, &command, elem_count, wait_count, waits, &event);
            if (code == CL_SUCCESS) {
                cl_next(queue, event, &wait_count, &waits);
                places[groups++] = result;
            }
        }
        count = groups;
    }
    if (code == CL_SUCCESS) {
        command_t command = {.sources = places,
                             .source_count = count,
                             .destination = destinations[0],
                             .wide = wide,
                             .finish = 1,
                             .reduction = (cl_int)reduce->reduction,
                             .divisor =
                                 reduce->divisor != 0 ? reduce->divisor : reduce->source_count};
        code = enqueue(queue, kernel, &command, elem_count, wait_count, waits, &event);
    }
    pthread_mutex_unlock(&device->lock);
    for (uint32_t d = 1; d < reduce->destination_count && code == CL_SUCCESS; d++) {
        cl_next(queue, event, &wait_count, &waits);
        code = clEnqueueCopyBuffer(queue->commands, destinations[0].memory, destinations[d].memory,
                                   destinations[0].offset, destinations[d].offset, bytes,
                                   wait_count, waits, &event);
    }
    return cl_end(queue, "cannot reduce", code, event);
}

weft_status_t cl_reduce(weft_queue_t *queue, const weft_reduce_t *reduce)
{
    cl_device_t *device = queue->device;
    cl_place_t places[WEFT_MAX_GROUP_DIRECT], destinations[WEFT_MAX_GROUP_DIRECT];
    weft_status_t status = WEFT_OK;
    if ((size_t)reduce->dtype >= TYPES || types[reduce->dtype].function == NULL ||
        (reduce->dtype == WEFT_DTYPE_F64 && !device->f64)) {
        return cl_fail(WEFT_ERR_UNSUPPORTED, "device %s: reduction: unsupported type %d",
                       device->name, (int)reduce->dtype);
    }
    if (reduce->source_count == 0 || reduce->source_count > WEFT_MAX_GROUP_DIRECT ||
        reduce->destination_count == 0 || reduce->destination_count > WEFT_MAX_GROUP_DIRECT ||
        reduce->elem_count > SIZE_MAX / (2 * WIDE_BYTES * WEFT_MAX_GROUP_DIRECT)) {
        return cl_fail(WEFT_ERR_INVALID_ARGUMENT,
                       "device %s: reduction of %u sources to %u destinations", device->name,
                       reduce->source_count, reduce->destination_count);
    }
    if (reduce->elem_count == 0) {
        return WEFT_OK;
    }
    size_t bytes = (size_t)reduce->elem_count * types[reduce->dtype].bytes;
    for (uint32_t s = 0; s < reduce->source_count && status == WEFT_OK; s++) {
        status = cl_place_need(device, reduce->sources[s], bytes, "source", &places[s]);
    }
    for (uint32_t d = 0; d < reduce->destination_count && status == WEFT_OK; d++) {
        status =
            cl_place_need(device, reduce->destinations[d], bytes, "destination", &destinations[d]);
    }
    return status == WEFT_OK ? run(queue, reduce, places, destinations) : status;
}
