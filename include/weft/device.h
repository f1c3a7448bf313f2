/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file device.h The table of functions behind streams, events and memory of one device.
 *
 * The CPU device is built in. An accelerator fills this table; everything above it (executor,
 * collectives, streams) uses nothing else. A queue is the device's own ordered queue; every call that takes
 * a queue is asynchronous and ordered in it. Counters are 32-bit words in device memory; they wrap, so
 * "reached" means (int32_t)(value - target) >= 0. Copies of the table must stay valid while a context uses it.
 */
#ifndef WEFT_DEVICE_H
#define WEFT_DEVICE_H

#include <weft/registry.h>

#define WEFT_DEVICE_ABI_VERSION 2u /* 2: weft_reduce_t has a divisor */

typedef uint32_t weft_device_caps_t;
#define WEFT_DEVICE_HOST_ACCESS (1u << 0) /**< the host may load and store device memory */
#define WEFT_DEVICE_PEER_DIRECT (1u << 1) /**< imported memory may be read and written by queues */

typedef struct weft_device weft_device_t;
typedef struct weft_queue weft_queue_t;

#define WEFT_MAX_GROUP_DIRECT 1024u

/**
 * dst[d][i] = op over sources in the in-order tree, for i in [0, elem_count), for every d.
 * Sources and destinations are ranks' copies of the same range; a destination may be a source.
 */
typedef struct weft_reduce {
    const void *const *sources; /**< device addresses, in group order */
    uint32_t source_count;
    void *const *destinations;
    uint32_t destination_count;
    uint64_t elem_count;
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    uint32_t divisor; /**< WEFT_AVG: what the sum is divided by, up to 2^24; 0: source_count */
} weft_reduce_t;

typedef struct weft_device_ops {
    uint32_t abi_version; /**< WEFT_DEVICE_ABI_VERSION */
    const char *name;
    weft_device_caps_t caps;
    /** Zeroed memory, aligned to at least 64. */
    weft_status_t (*mem_alloc)(weft_device_t *device, size_t bytes, void **out_address);
    void (*mem_free)(weft_device_t *device, void *address);
    /** A handle other ranks of the host import; 64 bytes, opaque. */
    weft_status_t (*mem_export)(weft_device_t *device, void *address, uint8_t out_handle[64]);
    weft_status_t (*mem_import)(weft_device_t *device, const uint8_t handle[64], void **out_address);
    void (*mem_unimport)(weft_device_t *device, void *address);
    weft_status_t (*queue_create)(weft_device_t *device, weft_queue_t **out_queue);
    void (*queue_destroy)(weft_queue_t *queue);
    /** Any of dst and src may be host memory, which must stay valid until the copy ran. */
    weft_status_t (*copy)(weft_queue_t *queue, void *dst, const void *src, size_t bytes);
    /** Stores value after everything before it in the queue is visible to all devices that reach counter. */
    weft_status_t (*signal)(weft_queue_t *queue, uint32_t *counter, uint32_t value);
    weft_status_t (*wait)(weft_queue_t *queue, const uint32_t *counter, uint32_t value);
    weft_status_t (*reduce)(weft_queue_t *queue, const weft_reduce_t *reduce);
    /** Pointers of call are device addresses; arrays are copied before the call returns. */
    weft_status_t (*launch)(weft_queue_t *queue, const weft_kernel_t *kernel, const weft_kernel_call_t *call,
                            uint32_t input_count, uint32_t output_count);
    /** Pushes what is still buffered on the host towards the device. */
    weft_status_t (*flush)(weft_queue_t *queue);
    /** WEFT_OK: all done; WEFT_IN_PROGRESS; or the error that broke the queue. */
    weft_status_t (*query)(weft_queue_t *queue);
    /** Ends everything queued, waits included, with WEFT_ERR_ABORTED. */
    void (*cancel)(weft_queue_t *queue);
} weft_device_ops_t;

/** Base of every device: member 0 of the implementation's own struct. */
struct weft_device {
    const weft_device_ops_t *ops;
};

#endif
