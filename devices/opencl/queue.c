/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue is an in-order command queue. Every command also waits for the event of the one before, so
 * that by the rules of OpenCL all later commands fail with one that has failed.
 */
#include "devices/opencl/opencl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

weft_status_t cl_queue_create(weft_device_t *base, weft_queue_t **out_queue)
{
    cl_device_t *device = (cl_device_t *)base;
    cl_int code;
    weft_queue_t *queue = calloc(1, sizeof *queue);
    if (queue == NULL) {
        return cl_fail(WEFT_ERR_NO_MEMORY, "out of memory: a queue of device %s", device->name);
    }
    queue->commands = clCreateCommandQueue(device->context, device->id, 0, &code);
    if (code != CL_SUCCESS) {
        free(queue);
        return cl_fail_code(device, "cannot create a command queue", code);
    }
    queue->device = device;
    pthread_mutex_init(&queue->lock, NULL);
    *out_queue = queue;
    return WEFT_OK;
}

static cl_int state_of(cl_event event)
{
    cl_int state = CL_COMPLETE;
    cl_int code =
        clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
    return code == CL_SUCCESS ? state : code;
}

void cl_release_event(cl_event event)
{
    if (state_of(event) >= CL_COMPLETE) {
        clReleaseEvent(event);
    }
}

void cl_queue_destroy(weft_queue_t *queue)
{
    if (queue == NULL) {
        return;
    }
    clFlush(queue->commands);
    if (cl_latest(queue) != NULL) {
        clWaitForEvents(1, cl_latest(queue));
    }
    cl_watch_leave(queue->device, queue);
    for (size_t i = 0; i < queue->event_count; i++) {
        cl_release_event(queue->events[i]);
    }
    free(queue->events);
    free((void *)queue->labels);
    free(queue->times);
    clReleaseCommandQueue(queue->commands);
    if (queue->scratch != NULL) {
        clReleaseMemObject(queue->scratch);
    }
    if (queue->fault != NULL) {
        clReleaseMemObject(queue->fault);
    }
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}

/* ---- what frames a command ---- */

static void break_queue(weft_queue_t *queue, weft_status_t status, const char *text)
{
    if (queue->status == WEFT_OK) {
        queue->status = status;
        snprintf(queue->text, sizeof queue->text, "%s", text);
    }
}

/*
 * Events are kept until their commands have succeeded, or the queue is destroyed: PoCL 3.1 ends the
 * process when a command fails whose event has been released.
 */
static void forget_done(weft_queue_t *queue, size_t most)
{
    size_t done = 0;
    while (done < most && state_of(queue->events[done]) == CL_COMPLETE) {
        if (queue->profiling) {
            cl_profile_keep(queue, queue->events[done], queue->labels[done]);
        }
        clReleaseEvent(queue->events[done++]);
    }
    if (done > 0) {
        queue->event_count -= done;
        memmove((void *)queue->labels, (void *)(queue->labels + done),
                queue->event_count * sizeof *queue->labels);
        memmove(queue->events, queue->events + done, queue->event_count * sizeof *queue->events);
    }
}

/* WEFT_IN_PROGRESS, or the status of the queue, all whose commands are done. */
static weft_status_t settle(weft_queue_t *queue)
{
    const cl_event *latest = cl_latest(queue);
    cl_int state = latest != NULL ? state_of(*latest) : CL_COMPLETE;
    if (state > CL_COMPLETE) {
        return WEFT_IN_PROGRESS;
    }
    if (state < 0) {
        char text[CL_TEXT_BYTES];
        snprintf(text, sizeof text, "device %s: a command failed: code %d", queue->device->name,
                 (int)state);
        break_queue(queue, WEFT_ERR_SYSTEM, text);
    } else {
        forget_done(queue, queue->event_count);
        if (queue->fault != NULL && queue->fault_seen != INT32_MAX) {
            char text[CL_TEXT_BYTES];
            snprintf(text, sizeof text,
                     "device %s: the label or index at position %d is out of range",
                     queue->device->name, (int)queue->fault_seen);
            break_queue(queue, WEFT_ERR_INVALID_ARGUMENT, text);
        }
    }
    return queue->status;
}

/* Room for a few events, found before a command is enqueued. */
static bool reserve_events(weft_queue_t *queue)
{
    if (queue->event_count + 1 >= queue->event_capacity) {
        forget_done(queue, queue->event_count / 2);
    }
    if (queue->event_count + 1 < queue->event_capacity) {
        return true;
    }
    size_t capacity = 2 * queue->event_capacity + 64;
    cl_event *events = realloc(queue->events, capacity * sizeof *events);
    if (events == NULL) {
        return false;
    }
    queue->events = events;
    const char **labels = realloc((void *)queue->labels, capacity * sizeof *labels);
    if (labels == NULL) {
        return false;
    }
    queue->labels = labels;
    queue->event_capacity = capacity;
    return true;
}

int cl_begin(weft_queue_t *queue, cl_uint *out_count, const cl_event **out_events)
{
    pthread_mutex_lock(&queue->lock);
    settle(queue);
    if (queue->status == WEFT_OK && !reserve_events(queue)) {
        break_queue(queue, WEFT_ERR_NO_MEMORY, "out of memory: list of events");
    }
    if (queue->status < 0) {
        pthread_mutex_unlock(&queue->lock);
        return 1;
    }
    *out_events = cl_latest(queue);
    *out_count = *out_events != NULL;
    return 0;
}

void cl_next(weft_queue_t *queue, cl_event event, cl_uint *out_count, const cl_event **out_events)
{
    queue->labels[queue->event_count] = queue->label;
    queue->events[queue->event_count++] = event; /* there is room */
    if (!reserve_events(queue)) {
        break_queue(queue, WEFT_ERR_NO_MEMORY, "out of memory: list of events");
        clWaitForEvents(1, cl_latest(queue));
        forget_done(queue, queue->event_count - 1);
    }
    *out_events = cl_latest(queue);
    *out_count = *out_events != NULL;
}

weft_status_t cl_end(weft_queue_t *queue, const char *what, cl_int code, cl_event event)
{
    weft_status_t status = WEFT_OK;
    if (code == CL_SUCCESS) {
        cl_uint count;
        const cl_event *events;
        cl_next(queue, event, &count, &events);
    } else { /* a function that cannot be built has its message */
        status =
            code == CL_INVALID_KERNEL ? WEFT_ERR_SYSTEM : cl_fail_code(queue->device, what, code);
    }
    pthread_mutex_unlock(&queue->lock);
    return status;
}

/* ---- copies ---- */

static bool is_inside(const cl_device_t *device, const void *address, const cl_place_t *place,
                      size_t bytes)
{
    if (place->room != 0 && place->room < bytes) {
        cl_fail(WEFT_ERR_INVALID_ARGUMENT,
                "device %s: copy of %zu bytes exceeds the allocation at %p", device->name, bytes,
                address);
        return false;
    }
    return true;
}

/* Between two places of the host, in the order of the queue: by a buffer in between. */
static cl_int copy_on_host(weft_queue_t *queue, void *dst, const void *src, size_t bytes,
                           cl_event *out_event)
{
    cl_int code;
    const cl_event *events = cl_latest(queue);
    cl_uint count = events != NULL;
    cl_mem between = clCreateBuffer(queue->device->context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    if (code != CL_SUCCESS) {
        return code;
    }
    cl_event written = NULL;
    code = clEnqueueWriteBuffer(queue->commands, between, CL_FALSE, 0, bytes, src, count, events,
                                &written);
    if (code == CL_SUCCESS) {
        cl_next(queue, written, &count, &events);
        code = clEnqueueReadBuffer(queue->commands, between, CL_FALSE, 0, bytes, dst, count, events,
                                   out_event);
    }
    clReleaseMemObject(between);
    return code;
}

weft_status_t cl_copy(weft_queue_t *queue, void *dst, const void *src, size_t bytes)
{
    cl_uint count;
    const cl_event *events;
    cl_event event = NULL;
    cl_int code;
    cl_device_t *device = queue->device;
    cl_place_t to = cl_place_of(device, dst), from = cl_place_of(device, src);
    if (!is_inside(device, dst, &to, bytes) || !is_inside(device, src, &from, bytes)) {
        return WEFT_ERR_INVALID_ARGUMENT;
    }
    if (bytes == 0 || cl_begin(queue, &count, &events)) {
        return WEFT_OK;
    }
    if (to.room > 0 && from.room > 0) {
        code = clEnqueueCopyBuffer(queue->commands, from.memory, to.memory, from.offset, to.offset,
                                   bytes, count, events, &event);
    } else if (to.room > 0) {
        code = clEnqueueWriteBuffer(queue->commands, to.memory, CL_FALSE, to.offset, bytes, src,
                                    count, events, &event);
    } else if (from.room > 0) {
        code = clEnqueueReadBuffer(queue->commands, from.memory, CL_FALSE, from.offset, bytes, dst,
                                   count, events, &event);
    } else {
        code = copy_on_host(queue, dst, src, bytes, &event);
    }
    return cl_end(queue, "cannot copy", code, event);
}

/* ---- counters ---- */

static uint32_t slot_of(const uint32_t *counter)
{
    return (uint32_t)((uintptr_t)counter / 64) % CL_RECENT;
}

weft_status_t cl_signal(weft_queue_t *queue, uint32_t *counter, uint32_t value)
{
    cl_uint count;
    const cl_event *events;
    cl_event event = NULL;
    cl_place_t place;
    weft_status_t status =
        cl_place_need(queue->device, counter, sizeof *counter, "counter", &place);
    if (status < 0 || cl_begin(queue, &count, &events)) {
        return status;
    }
    cl_int code = clEnqueueFillBuffer(queue->commands, place.memory, &value, sizeof value,
                                      place.offset, sizeof value, count, events, &event);
    if (code == CL_SUCCESS) {
        queue->recent[slot_of(counter)].counter = counter;
        queue->recent[slot_of(counter)].value = value;
        queue->recent[slot_of(counter)].frees = queue->device->frees;
        queue->signalled = true;
    }
    return cl_end(queue, "cannot signal", code, event);
}

/* The queue itself has raised the counter that far, or the host sees that it is. */
static bool needs_no_gate(const weft_queue_t *queue, const cl_place_t *place,
                          const uint32_t *counter, uint32_t value)
{
    uint32_t slot = slot_of(counter);
    if (queue->recent[slot].counter == counter &&
        queue->recent[slot].frees == queue->device->frees &&
        (int32_t)(queue->recent[slot].value - value) >= 0) {
        return true;
    }
    return place->host != NULL &&
           (int32_t)(__atomic_load_n((const uint32_t *)place->host, __ATOMIC_ACQUIRE) - value) >= 0;
}

weft_status_t cl_wait(weft_queue_t *queue, const uint32_t *counter, uint32_t value)
{
    cl_uint count;
    const cl_event *events;
    cl_event event = NULL;
    cl_int code;
    cl_device_t *device = queue->device;
    cl_place_t place;
    weft_status_t status = cl_place_need(device, counter, sizeof *counter, "counter", &place);
    if (status < 0 || cl_begin(queue, &count, &events)) {
        return status;
    }
    if (needs_no_gate(queue, &place, counter, value)) {
        pthread_mutex_unlock(&queue->lock);
        return WEFT_OK;
    }
    cl_gate_t *gate = calloc(1, sizeof *gate);
    if (gate == NULL) {
        pthread_mutex_unlock(&queue->lock);
        return cl_fail(WEFT_ERR_NO_MEMORY, "out of memory: a wait of device %s", device->name);
    }
    *gate = (cl_gate_t){.queue = queue, .counter = place, .value = value};
    gate->event = clCreateUserEvent(device->context, &code);
    if (code == CL_SUCCESS) {
        cl_event both[2] = {gate->event, count > 0 ? events[0] : NULL};
        code = clEnqueueBarrierWithWaitList(queue->commands, 1 + count, both, &event);
        if (code != CL_SUCCESS) {
            clReleaseEvent(gate->event);
        }
    }
    if (code != CL_SUCCESS) {
        free(gate);
    } else {
        cl_watch_add(device, gate);
    }
    return cl_end(queue, "cannot wait", code, event);
}

/* ---- the queue ---- */

weft_status_t cl_flush(weft_queue_t *queue)
{
    cl_int code = clFlush(queue->commands);
    pthread_mutex_lock(&queue->lock);
    bool signalled = queue->signalled;
    queue->signalled = false;
    pthread_mutex_unlock(&queue->lock);
    if (signalled) {
        cl_watch_ring(queue->device);
    }
    return code == CL_SUCCESS ? WEFT_OK
                              : cl_fail_code(queue->device, "cannot submit commands", code);
}

weft_status_t cl_query(weft_queue_t *queue)
{
    pthread_mutex_lock(&queue->lock);
    weft_status_t status = settle(queue);
    if (status < 0) {
        cl_fail(status, "%s", queue->text);
    }
    pthread_mutex_unlock(&queue->lock);
    return status;
}

void cl_cancel(weft_queue_t *queue)
{
    char text[CL_TEXT_BYTES];
    snprintf(text, sizeof text, "device %s: the queue was cancelled", queue->device->name);
    pthread_mutex_lock(&queue->lock);
    break_queue(queue, WEFT_ERR_ABORTED, text);
    pthread_mutex_unlock(&queue->lock);
    clFlush(queue->commands);
    cl_watch_drop(queue->device, queue);
}
