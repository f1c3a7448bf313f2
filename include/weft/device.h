/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file device.h
 * The function table that implements streams, events and memory of one device.
 *
 * The CPU device is built in. An accelerator plugin fills this table; executor, collectives and
 * streams use nothing else. A queue is the device's ordered queue (as a CUDA stream). A call that
 * takes a queue is asynchronous and ordered in it. Counters are 32-bit words in device memory. They
 * wrap: a counter has reached target if (int32_t)(value - target) >= 0. The table must stay valid
 * while a context uses it.
 */
#ifndef WEFT_DEVICE_H
#define WEFT_DEVICE_H

#include <weft/registry.h>

/** Version of weft_device_ops_t. Version 2 added weft_reduce_t.divisor. */
#define WEFT_DEVICE_ABI_VERSION 2u

/** Capabilities of a device: WEFT_DEVICE_ bits. */
typedef uint32_t weft_device_caps_t;
/** The host may load from and store to device memory. */
#define WEFT_DEVICE_HOST_ACCESS (1u << 0)
/** Queues may read and write imported memory. */
#define WEFT_DEVICE_PEER_DIRECT (1u << 1)

/** A device; base of the implementation's own struct. */
typedef struct weft_device weft_device_t;
/** An ordered queue of a device; defined by the implementation. */
typedef struct weft_queue weft_queue_t;

/** Largest number of ranks whose memory one reduction reads directly. */
#define WEFT_MAX_GROUP_DIRECT 1024u

/**
 * One reduction: dst[d][i] = op over sources, in the in-order tree, for i in [0, elem_count), for
 * every destination d. Sources and destinations are the ranks' copies of the same range. A
 * destination may be a source.
 */
typedef struct weft_reduce {
    const void *const *sources; /**< [source_count] device addresses, in group order */
    uint32_t source_count;      /**< length of sources */
    void *const *destinations;  /**< [destination_count] device addresses */
    uint32_t destination_count; /**< length of destinations */
    uint64_t elem_count;        /**< elements of each source and destination */
    weft_dtype_t dtype;         /**< type of the elements */
    weft_reduction_t reduction; /**< operation */
    uint32_t divisor; /**< WEFT_REDUCTION_AVG: divisor of the sum, up to 2^24; 0: source_count */
} weft_reduce_t;

/** Functions of a device. Every slot is filled. */
typedef struct weft_device_ops {
    uint32_t abi_version;    /**< WEFT_DEVICE_ABI_VERSION */
    const char *name;        /**< name of the device, for messages */
    weft_device_caps_t caps; /**< capabilities */
    /** Allocates zeroed memory, aligned to at least 64 bytes. Equivalent to: cudaMalloc. */
    weft_status_t (*mem_alloc)(weft_device_t *device, size_t bytes, void **out_address);
    /** Frees memory of mem_alloc. */
    void (*mem_free)(weft_device_t *device, void *address);
    /** Gives an opaque handle of 64 bytes that other ranks of the host import. Equivalent to:
     * cudaIpcGetMemHandle. */
    weft_status_t (*mem_export)(weft_device_t *device, void *address, uint8_t out_handle[64]);
    /** Maps memory that another rank has exported. Equivalent to: cudaIpcOpenMemHandle. */
    weft_status_t (*mem_import)(weft_device_t *device, const uint8_t handle[64],
                                void **out_address);
    /** Unmaps imported memory. */
    void (*mem_unimport)(weft_device_t *device, void *address);
    /** Creates a queue. Equivalent to: cudaStreamCreate. */
    weft_status_t (*queue_create)(weft_device_t *device, weft_queue_t **out_queue);
    /** Destroys a queue. */
    void (*queue_destroy)(weft_queue_t *queue);
    /** Copies bytes. dst and src may be host memory, which must stay valid until the copy ran. */
    weft_status_t (*copy)(weft_queue_t *queue, void *dst, const void *src, size_t bytes);
    /** Stores value in counter once all earlier work of the queue is visible to all devices that
     * reach counter. */
    weft_status_t (*signal)(weft_queue_t *queue, uint32_t *counter, uint32_t value);
    /** Delays later work of the queue until counter has reached value. */
    weft_status_t (*wait)(weft_queue_t *queue, const uint32_t *counter, uint32_t value);
    /** Enqueues a reduction; its arrays are copied before the call returns. */
    weft_status_t (*reduce)(weft_queue_t *queue, const weft_reduce_t *reduce);
    /** Enqueues a kernel. Pointers of call are device addresses; its arrays are copied before the
     * call returns. */
    weft_status_t (*launch)(weft_queue_t *queue, const weft_kernel_t *kernel,
                            const weft_kernel_call_t *call, uint32_t input_count,
                            uint32_t output_count);
    /** Submits work that the host still buffers. */
    weft_status_t (*flush)(weft_queue_t *queue);
    /** WEFT_OK if all work is done, WEFT_IN_PROGRESS, or the error that broke the queue. */
    weft_status_t (*query)(weft_queue_t *queue);
    /** Ends all queued work, waits included, with WEFT_ERR_ABORTED. */
    void (*cancel)(weft_queue_t *queue);
} weft_device_ops_t;

/** Base of every device: member 0 of the implementation's own struct. */
struct weft_device {
    const weft_device_ops_t *ops; /**< functions of the device */
};

#endif
