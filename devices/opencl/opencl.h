/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the plugin share.
 *
 *   plugin.c   platforms and devices; open, close
 *   memory.c   blocks of device memory, by address
 *   queue.c    command queues: copies, signals, waits
 *   watch.c    a thread that opens the gates of waits
 *   reduce.c   reductions
 *   launch.c   kernels of operators
 *   profile.c  times of commands
 */
#ifndef WEFT_DEVICES_OPENCL_OPENCL_H
#define WEFT_DEVICES_OPENCL_OPENCL_H

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <weft/device.h>

#define CL_TEXT_BYTES 256u
#define CL_RECENT 16u /* signals of a queue that its own waits need not wait for */

/* A range of addresses that are memory of the device. */
typedef struct cl_block {
    uint8_t *begin; /* shared: the host sees the memory here; else reserved addresses */
    size_t bytes;
    cl_mem memory;
    uint64_t file_offset; /* shared: in the device's file; imported: unused */
    bool imported;
    uint32_t wraps; /* calls of mem_wrap that gave its addresses */
    bool foreign;   /* the program's buffer: gone after the last of them */
} cl_block_t;

/* Where an address lies. */
typedef struct cl_place {
    cl_mem memory;
    size_t offset, room; /* bytes before and after the address; room 0: host memory */
    uint8_t *host;       /* the same place for the host; NULL: not there */
} cl_place_t;

typedef struct cl_slab cl_slab_t;

/* A wait: a user event that the watcher completes once the counter has reached value. */
typedef struct cl_gate {
    struct cl_gate *next;
    weft_queue_t *queue;
    cl_event event;
    cl_place_t counter;
    uint32_t value;
    uint32_t round; /* of the watcher that looked at it last */
    bool dropped;   /* fails when the watcher comes to it */
} cl_gate_t;

typedef struct cl_watch {
    pthread_mutex_t lock; /* guards what follows; no call of OpenCL is made under it */
    pthread_cond_t change;
    pthread_t thread;
    cl_gate_t *gates;
    uint32_t bells; /* signals that were submitted, gates that came or went */
    uint32_t round;
    bool started, stop;
} cl_watch_t;

/* An OpenCL C function, by its name; arguments are set under the lock of the device. */
typedef struct cl_function {
    const char *name;
    cl_kernel kernel;
} cl_function_t;

typedef struct cl_device {
    weft_device_t base; /* member 0 */
    weft_device_ops_t ops;
    char name[CL_TEXT_BYTES];
    cl_device_id id;
    cl_context context;
    cl_command_queue copies; /* of the host: zeroes, counters */
    bool shared;             /* memory is a file that other ranks map */
    bool f64;
    bool exact_division; /* as the CPU divides */
    int file;
    uint64_t file_bytes;
    pthread_mutex_t lock; /* guards blocks, slabs, functions */
    cl_block_t *blocks;   /* by address */
    size_t block_count, block_capacity;
    cl_slab_t *slabs;
    _Atomic uint32_t frees; /* calls of mem_free */
    cl_program program;
    cl_function_t *functions;
    size_t function_count, function_capacity;
    cl_watch_t watch;
} cl_device_t;

struct weft_queue {
    cl_device_t *device;
    cl_command_queue commands;
    pthread_mutex_t lock; /* guards what follows */
    cl_event *events;     /* of the commands that may not be done, in order */
    size_t event_count, event_capacity;
    weft_status_t status; /* what broke the queue */
    char text[CL_TEXT_BYTES];
    cl_mem scratch; /* of reductions */
    size_t scratch_bytes;
    bool profiling;
    const char *label;     /* of later commands */
    const char **labels;   /* as events */
    weft_command_t *times; /* of commands that are done, until they are taken */
    size_t time_count, time_capacity;
    int64_t clock_ns; /* from the device's clock to the host's */
    bool signalled;   /* since the last flush */
    cl_mem fault;     /* launch.c: the first wrong label or index */
    cl_int fault_seen;
    struct {
        const uint32_t *counter;
        uint32_t value;
        uint32_t frees; /* of the device, then: the counter may be another one since */
    } recent[CL_RECENT];
};

/* program.c */
extern const weft_device_host_t *cl_host; /* set by plugin.c */
weft_status_t cl_fail(weft_status_t status, const char *format, ...) WEFT_PRINTF(2, 3);
/* "device opencl:0: what: CL_OUT_OF_RESOURCES (-5)" */
weft_status_t cl_fail_code(const cl_device_t *device, const char *what, cl_int code);
/* With the lock of the device held. NULL: a message was recorded. */
cl_kernel cl_function(cl_device_t *device, const char *name);
/* Calls a function for each of count items, which becomes its last argument, index. */
cl_int cl_call(weft_queue_t *queue, cl_kernel kernel, cl_uint index, size_t count,
               cl_uint wait_count, const cl_event *waits, cl_event *out_event);

/* memory.c */
weft_status_t cl_memory_open(cl_device_t *device);
void cl_memory_close(cl_device_t *device);
weft_status_t cl_mem_alloc(weft_device_t *device, size_t bytes, void **out_address);
void cl_mem_free(weft_device_t *device, void *address);
weft_status_t cl_mem_export(weft_device_t *device, void *address, uint8_t out_handle[64]);
weft_status_t cl_mem_import(weft_device_t *device, const uint8_t handle[64], void **out_address);
void cl_mem_unimport(weft_device_t *device, void *address);
weft_status_t cl_mem_handle(weft_device_t *device, const void *address, void **out_handle,
                            uint64_t *out_offset_bytes);
weft_status_t cl_mem_wrap(weft_device_t *device, void *handle, uint64_t bytes, void **out_address);
void cl_mem_unwrap(weft_device_t *device, void *address);
/* Host memory has room 0. */
cl_place_t cl_place_of(cl_device_t *device, const void *address);
/* The same for memory of the device with at least bytes after address; what: for the message. */
weft_status_t cl_place_need(cl_device_t *device, const void *address, size_t bytes,
                            const char *what, cl_place_t *out_place);

/* queue.c */
weft_status_t cl_queue_create(weft_device_t *device, weft_queue_t **out_queue);
void cl_queue_destroy(weft_queue_t *queue);
weft_status_t cl_copy(weft_queue_t *queue, void *dst, const void *src, size_t bytes);
weft_status_t cl_signal(weft_queue_t *queue, uint32_t *counter, uint32_t value);
weft_status_t cl_wait(weft_queue_t *queue, const uint32_t *counter, uint32_t value);
weft_status_t cl_flush(weft_queue_t *queue);
weft_status_t cl_query(weft_queue_t *queue);
void cl_cancel(weft_queue_t *queue);
/*
 * Frames one command: begin takes the lock of the queue; returns 1 if there is nothing to do, as
 * the queue is broken. The command waits for the events of begin and gives its own to end.
 */
int cl_begin(weft_queue_t *queue, cl_uint *out_count, const cl_event **out_events);
/* code: of the enqueueing call. Unlocks. */
weft_status_t cl_end(weft_queue_t *queue, const char *what, cl_int code, cl_event event);
/* Between begin and end, where several commands follow each other. */
void cl_next(weft_queue_t *queue, cl_event event, cl_uint *out_count, const cl_event **out_events);
/* The event of a command that has failed is kept as long as the process lives: PoCL 3.1 may still be
 * telling the commands after it, and ends the process where the event is gone. */
void cl_release_event(cl_event event);
/* The latest command; NULL: all are done. */
static inline const cl_event *cl_latest(const weft_queue_t *queue)
{
    return queue->event_count > 0 ? &queue->events[queue->event_count - 1] : NULL;
}

/* profile.c */
weft_status_t cl_profile(weft_queue_t *queue, const char *label);
weft_status_t cl_profile_take(weft_queue_t *queue, weft_command_t *out_commands, size_t capacity,
                              size_t *out_count);
/* Keeps the times of a command that is done; with the lock of the queue held. */
void cl_profile_keep(weft_queue_t *queue, cl_event event, const char *label);

/* watch.c */
weft_status_t cl_watch_open(cl_device_t *device);
void cl_watch_close(cl_device_t *device);
/* Takes the gate over. */
void cl_watch_add(cl_device_t *device, cl_gate_t *gate);
/* Fails the gates of queue. */
void cl_watch_drop(cl_device_t *device, const weft_queue_t *queue);
/* Waits until the watcher is done with all gates of queue, which are open or fail. */
void cl_watch_leave(cl_device_t *device, const weft_queue_t *queue);
/* A signal was submitted. */
void cl_watch_ring(cl_device_t *device);

/* reduce.c, launch.c */
weft_status_t cl_reduce(weft_queue_t *queue, const weft_reduce_t *reduce);
weft_status_t cl_launch(weft_queue_t *queue, const weft_kernel_t *kernel,
                        const weft_kernel_call_t *call, uint32_t input_count,
                        uint32_t output_count);
extern const weft_kernel_t cl_kernels[];
extern const size_t cl_kernel_count, cl_float_kernel_count; /* the second one: without doubles */

/* Generated from kernels .cl. */
extern const char cl_source[];

#endif
