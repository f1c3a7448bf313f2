/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file device.h
 * The function table that implements streams, events and memory of one device, and plugins that
 * bring devices.
 *
 * The CPU device is built in. An accelerator plugin fills this table; executor, collectives and
 * streams use nothing else. devices/opencl is one; its README has the CUDA equivalent of every
 * function. A queue is the device's ordered queue (as a CUDA stream). A call that
 * takes a queue is asynchronous and ordered in it. Counters are 32-bit words in device memory. They
 * wrap: a counter has reached target if (int32_t)(value - target) >= 0. The table must stay valid
 * while a context uses it.
 */
#ifndef WEFT_DEVICE_H
#define WEFT_DEVICE_H

#include <weft/registry.h>

/** Version of weft_device_ops_t and weft_device_plugin_t. Version 2 added weft_reduce_t.divisor,
 * version 3 plugins and weft_device_ops_t.kernels, version 4 handles of the driver and times. */
#define WEFT_DEVICE_ABI_VERSION 4u

/** Capabilities of a device: WEFT_DEVICE_ bits. */
typedef uint32_t weft_device_caps_t;
/** The host may load from and store to device memory. */
#define WEFT_DEVICE_HOST_ACCESS (1u << 0)
/** Queues may read and write imported memory. */
#define WEFT_DEVICE_PEER_DIRECT (1u << 1)
/** Reductions and kernels of f32 give the bits of the CPU's exact kernels. */
#define WEFT_DEVICE_CPU_BITS (1u << 2)

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

/** A command of a queue that is done, by the device's own clock. */
typedef struct weft_command {
    const char *name; /**< what it was: "kernel", "copy", "read", "write", "fill"; valid for ever */
    const char *label; /**< of the profile call before it */
    uint64_t start_ns; /**< on the host's CLOCK_MONOTONIC */
    uint64_t end_ns;   /**< likewise */
} weft_command_t;

/** Functions of a device. Every slot is filled. */
typedef struct weft_device_ops {
    uint32_t abi_version;    /**< WEFT_DEVICE_ABI_VERSION */
    const char *name;        /**< name of the device, for messages */
    weft_device_caps_t caps; /**< capabilities */
    /** Allocates zeroed memory, aligned to at least 64 bytes. Copies reach over allocations that lie
     * side by side, or there are none. Equivalent to: cudaMalloc. */
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
    /**
     * [kernel_count] the device's own kernels, of which the compiler and sessions use prepare,
     * destroy and implementation; launch reads the state. Other operators are refused when a plan
     * is compiled for the device or bound to it. NULL: launch executes the kernels of the session's
     * registry.
     */
    const weft_kernel_t *kernels;
    size_t kernel_count; /**< length of kernels */
    /** The driver's own name of memory at address, which lies offset_bytes behind it. Equivalent to:
     * the address itself, 0. */
    weft_status_t (*mem_handle)(weft_device_t *device, const void *address, void **out_handle,
                                uint64_t *out_offset_bytes);
    /**
     * Gives addresses to memory of the driver that the program has made, or finds those that its
     * first bytes have. It stays until it is unwrapped as often. Equivalent to: the handle itself.
     */
    weft_status_t (*mem_wrap)(weft_device_t *device, void *handle, uint64_t bytes,
                              void **out_address);
    /** Gives addresses of mem_wrap back. */
    void (*mem_unwrap)(weft_device_t *device, void *address);
    /**
     * From the first call on, which comes before the first command, the queue keeps the times of its
     * commands. Later commands have label, which stays valid. WEFT_ERR_UNSUPPORTED if the device has
     * no times. Equivalent to: cuptiActivityEnable.
     */
    weft_status_t (*profile)(weft_queue_t *queue, const char *label);
    /** Takes the oldest commands that are done, up to capacity; out_count 0: there are none.
     * Equivalent to: cuptiActivityGetNextRecord. */
    weft_status_t (*profile_take)(weft_queue_t *queue, weft_command_t *out_commands,
                                  size_t capacity, size_t *out_count);
    int32_t dlpack_type;  /**< DLPack's DLDeviceType for handles: 2 CUDA, 4 OpenCL */
    int32_t dlpack_index; /**< DLPack's device_id */
} weft_device_ops_t;

/** Base of every device: member 0 of the implementation's own struct. */
struct weft_device {
    const weft_device_ops_t *ops; /**< functions of the device */
};

/** What a plugin tells about one of its devices. */
typedef struct weft_device_info {
    size_t struct_size;      /**< size of this struct */
    char name[96];           /**< the device's own name; the user may select it by a part of it */
    char platform[96];       /**< the driver, with its version */
    uint64_t memory_bytes;   /**< memory of the device */
    uint32_t compute_units;  /**< processors of the device */
    weft_device_caps_t caps; /**< capabilities, as in weft_device_ops_t */
    char note[160];          /**< what the device cannot do, for people; "": nothing */
} weft_device_info_t;
/** Initial value of weft_device_info_t. */
#define WEFT_DEVICE_INFO_INIT WEFT_STRUCT_INIT(weft_device_info_t, "", "", 0, 0, 0, "")

/** What Weft offers a plugin, which links no library of Weft. Valid for ever. */
typedef struct weft_device_host {
    uint32_t abi_version; /**< WEFT_DEVICE_ABI_VERSION of the library */
    /** Records text as the message of the calling thread (weft_last_error); returns status. */
    weft_status_t (*error)(weft_status_t status, const char *text);
} weft_device_host_t;

/** A plugin: a shared library "libweft_NAME.so" that brings devices. Every slot is filled. */
typedef struct weft_device_plugin {
    uint32_t abi_version; /**< WEFT_DEVICE_ABI_VERSION of the plugin; other versions are refused */
    const char *name;     /**< NAME */
    /** Counts the devices of this machine; WEFT_ERR_NOT_FOUND, with the reason, if none. */
    weft_status_t (*count)(uint32_t *out_count);
    /** Describes a device, without starting it; out_info has struct_size and is zero otherwise. */
    weft_status_t (*describe)(uint32_t index, weft_device_info_t *out_info);
    /** Starts a device. Equivalent to: cudaSetDevice. */
    weft_status_t (*open)(uint32_t index, weft_device_t **out_device);
    /** Ends a device, whose queues and memory are gone. */
    void (*close)(weft_device_t *device);
} weft_device_plugin_t;

/** Entry point "weft_device_plugin" of a plugin. */
typedef const weft_device_plugin_t *(*weft_device_plugin_fn)(const weft_device_host_t *host);

WEFT_EXTERN_C_BEGIN
/**
 * Counts the devices that a plugin finds. The plugin "libweft_NAME.so" is looked for in the folder
 * WEFT_DEVICE_PATH if that is set, else next to the Weft library, then where dlopen looks. Local;
 * any thread.
 * @param[in]  plugin    NAME, such as "opencl"
 * @param[out] out_count number of devices, at least 1
 * @return WEFT_ERR_NOT_FOUND without the plugin, its libraries or a device;
 *         WEFT_ERR_UNSUPPORTED for a plugin of another version
 *
 * Equivalent to: cudaGetDeviceCount
 */
WEFT_API weft_status_t weft_device_count(const char *plugin, uint32_t *out_count);
/**
 * Describes a device of a plugin. Local; any thread.
 * @param[in]  plugin   NAME, such as "opencl"
 * @param[in]  index    0 to count - 1
 * @param[out] out_info set struct_size before the call
 * @return as weft_device_count; WEFT_ERR_NOT_FOUND if there is no such device
 *
 * Equivalent to: cudaGetDeviceProperties
 */
WEFT_API weft_status_t weft_device_describe(const char *plugin, uint32_t index,
                                            weft_device_info_t *out_info);
/**
 * Opens a device for weft_context_params_t.device. A context opens the device itself if
 * weft_context_params_t.device_name or the setting WEFT_DEVICE names it. Local; any thread; not
 * before fork() in the parent of a process that uses the device.
 * @param[in]  name       "PLUGIN", its first device; "PLUGIN:INDEX"; "PLUGIN:PART", the first
 *                        device whose name has PART in it; "cpu", for which *out_device is NULL
 * @param[out] out_device the device; the caller closes it
 * @return as weft_device_count; WEFT_ERR_NOT_FOUND if there is no such device;
 *         WEFT_ERR_INVALID_ARGUMENT if name has another form
 */
WEFT_API weft_status_t weft_device_open(const char *name, weft_device_t **out_device);
/**
 * Closes a device of weft_device_open, after all contexts that used it are released. Any thread.
 * @param[in] device NULL: nothing happens
 */
WEFT_API void weft_device_close(weft_device_t *device);
WEFT_EXTERN_C_END

#endif
