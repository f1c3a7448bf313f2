/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times of commands, by the event of each. A device has a clock of its own: a marker, whose
 * CL_PROFILING_COMMAND_QUEUED the driver takes while the host enqueues it, tells how far it is from
 * the host's.
 */
#include "devices/opencl/opencl.h"

#include <stdlib.h>
#include <time.h>

#define TRIES 8u /* of markers; the one that was enqueued the fastest counts */

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static cl_int time_of(cl_event event, cl_profiling_info what, int64_t *out_ns)
{
    cl_ulong ns = 0;
    cl_int code = clGetEventProfilingInfo(event, what, sizeof ns, &ns, NULL);
    *out_ns = (int64_t)ns;
    return code;
}

static cl_int compare_clocks(cl_command_queue commands, int64_t *out_clock_ns)
{
    int64_t least_ns = INT64_MAX, queued_ns = 0;
    cl_int code = CL_SUCCESS;
    for (uint32_t i = 0; i < TRIES && code == CL_SUCCESS; i++) {
        cl_event marker = NULL;
        int64_t before_ns = now_ns();
        code = clEnqueueMarkerWithWaitList(commands, 0, NULL, &marker);
        int64_t after_ns = now_ns();
        code = code == CL_SUCCESS ? clWaitForEvents(1, &marker) : code;
        code = code == CL_SUCCESS ? time_of(marker, CL_PROFILING_COMMAND_QUEUED, &queued_ns) : code;
        if (code == CL_SUCCESS && after_ns - before_ns < least_ns) {
            least_ns = after_ns - before_ns;
            *out_clock_ns = before_ns + least_ns / 2 - queued_ns;
        }
        if (marker != NULL) {
            clReleaseEvent(marker);
        }
    }
    return code;
}

/* A queue that keeps times takes the place of one without commands. */
static weft_status_t begin(weft_queue_t *queue)
{
    const cl_device_t *device = queue->device;
    cl_int code;
    cl_command_queue commands =
        clCreateCommandQueue(device->context, device->id, CL_QUEUE_PROFILING_ENABLE, &code);
    if (code == CL_SUCCESS) {
        code = compare_clocks(commands, &queue->clock_ns);
        if (code != CL_SUCCESS) {
            clReleaseCommandQueue(commands);
        }
    }
    if (code != CL_SUCCESS) {
        return cl_fail_code(device, "cannot keep the times of commands", code);
    }
    clReleaseCommandQueue(queue->commands);
    queue->commands = commands;
    queue->profiling = true;
    return WEFT_OK;
}

weft_status_t cl_profile(weft_queue_t *queue, const char *label)
{
    pthread_mutex_lock(&queue->lock);
    weft_status_t status = queue->profiling ? WEFT_OK : begin(queue);
    queue->label = label;
    pthread_mutex_unlock(&queue->lock);
    return status;
}

/* NULL: a wait, which takes the device no time. */
static const char *name_of(cl_command_type type)
{
    switch (type) {
    case CL_COMMAND_NDRANGE_KERNEL:
        return "kernel";
    case CL_COMMAND_COPY_BUFFER:
        return "copy";
    case CL_COMMAND_READ_BUFFER:
        return "read";
    case CL_COMMAND_WRITE_BUFFER:
        return "write";
    case CL_COMMAND_FILL_BUFFER:
        return "fill";
    default:
        return NULL;
    }
}

void cl_profile_keep(weft_queue_t *queue, cl_event event, const char *label)
{
    cl_command_type type = 0;
    int64_t start_ns, end_ns;
    clGetEventInfo(event, CL_EVENT_COMMAND_TYPE, sizeof type, &type, NULL);
    const char *name = name_of(type);
    if (name == NULL || time_of(event, CL_PROFILING_COMMAND_START, &start_ns) != CL_SUCCESS ||
        time_of(event, CL_PROFILING_COMMAND_END, &end_ns) != CL_SUCCESS) {
        return;
    }
    if (queue->time_count == queue->time_capacity) {
        size_t capacity = 2 * queue->time_capacity + 64;
        weft_command_t *times = realloc(queue->times, capacity * sizeof *times);
        if (times == NULL) {
            return; /* this one is missing */
        }
        queue->times = times;
        queue->time_capacity = capacity;
    }
    queue->times[queue->time_count++] =
        (weft_command_t){.name = name,
                         .label = label,
                         .start_ns = (uint64_t)(start_ns + queue->clock_ns),
                         .end_ns = (uint64_t)(end_ns + queue->clock_ns)};
}

weft_status_t cl_profile_take(weft_queue_t *queue, weft_command_t *out_commands, size_t capacity,
                              size_t *out_count)
{
    queue->device->ops.query(queue); /* keeps those that are done */
    pthread_mutex_lock(&queue->lock);
    size_t count = queue->time_count < capacity ? queue->time_count : capacity;
    for (size_t i = 0; i < count; i++) {
        out_commands[i] = queue->times[i];
    }
    queue->time_count -= count;
    for (size_t i = 0; i < queue->time_count; i++) {
        queue->times[i] = queue->times[i + count];
    }
    pthread_mutex_unlock(&queue->lock);
    *out_count = count;
    return WEFT_OK;
}
