/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file memory.h
 * Memory of the context's device, and memory that peers access directly.
 *
 * On the CPU device both are host memory. On an accelerator (weft_context_params_t.device or
 * weft_context_set_device) both are device memory. The host must not access device memory unless
 * the device has WEFT_DEVICE_HOST_ACCESS: data goes in and out by copies. A program written for an
 * accelerator runs unchanged on the CPU device.
 *
 *     weft_device_alloc    memory of this rank's device             cudaMalloc, aclrtMalloc
 *     weft_mem_alloc       the same, and peers access it            ncclMemAlloc, MPI_Win_allocate
 *     weft_mem_register    existing host memory that peers access   ncclCommRegister
 *     weft_mem_copy        copies in, out or within; blocking       cudaMemcpy, aclrtMemcpy
 *     weft_stream_copy     the same, ordered in a stream            cudaMemcpyAsync
 *     weft_mem_fill        sets bytes to one value; blocking        cudaMemset, aclrtMemset
 *     weft_stream_fill     the same, ordered in a stream            cudaMemsetAsync
 *     weft_mem_query       the allocation of an address             cudaPointerGetAttributes
 *
 * Collectives read and write memory that peers access in place. They move any other memory through
 * staging buffers of the group or, between processes that may read each other's memory
 * (WEFT_ATTACH), in one copy where that is faster. Results have the same bits in all cases.
 */
#ifndef WEFT_MEMORY_H
#define WEFT_MEMORY_H

#include <weft/stream.h>

/** Origin of an address. */
typedef enum weft_mem_kind {
    WEFT_MEM_KIND_OTHER = 0,      /**< other host memory */
    WEFT_MEM_KIND_PEER = 1,       /**< weft_mem_alloc */
    WEFT_MEM_KIND_REGISTERED = 2, /**< weft_mem_register */
    WEFT_MEM_KIND_DEVICE = 3,     /**< weft_device_alloc */
} weft_mem_kind_t;

/** The allocation that an address belongs to. */
typedef struct weft_mem_info {
    size_t struct_size;   /**< size of this struct, set by the caller */
    weft_mem_kind_t kind; /**< origin */
    void *base;           /**< start of the allocation or registration; NULL: WEFT_MEM_KIND_OTHER */
    size_t bytes;         /**< its size; weft_mem_alloc rounds up to whole pages */
    uint32_t host_access; /**< 1: the host may load and store there */
} weft_mem_info_t;

/** Initial value of weft_mem_info_t. */
#define WEFT_MEM_INFO_INIT WEFT_STRUCT_INIT(weft_mem_info_t, WEFT_MEM_KIND_OTHER, 0, 0, 0)

/** The driver's name of memory, as DLPack passes it on. */
typedef struct weft_mem_handle {
    size_t struct_size;    /**< size of this struct */
    void *handle;          /**< OpenCL: the cl_mem; CUDA, CPU: the address */
    uint64_t offset_bytes; /**< of the address behind handle */
    int32_t dlpack_type;   /**< DLPack's DLDeviceType: 1 CPU, 2 CUDA, 4 OpenCL */
    int32_t dlpack_index;  /**< DLPack's device_id */
} weft_mem_handle_t;
/** Initial value of weft_mem_handle_t. */
#define WEFT_MEM_HANDLE_INIT WEFT_STRUCT_INIT(weft_mem_handle_t, 0, 0, 0, 0)

WEFT_EXTERN_C_BEGIN
/**
 * Allocates zeroed memory of the context's device for this rank, aligned to at least 64 bytes. Not
 * collective; any thread.
 * @param[in]  context     the context
 * @param[in]  bytes       more than 0
 * @param[out] out_address the memory; freed by weft_device_free or with the context
 * @return WEFT_ERR_NO_MEMORY naming the device, WEFT_ERR_INVALID_ARGUMENT for 0 bytes
 *
 * Equivalent to: cudaMalloc, aclrtMalloc
 */
WEFT_API weft_status_t weft_device_alloc(weft_context_t *context, size_t bytes, void **out_address);
/**
 * Frees memory of weft_device_alloc. No queued work may use it. Any thread.
 * @param[in] context the context
 * @param[in] address start of an allocation; NULL: nothing happens
 * @return WEFT_ERR_INVALID_ARGUMENT if address is not the start of an allocation of the context
 *
 * Equivalent to: cudaFree, aclrtFree
 */
WEFT_API weft_status_t weft_device_free(weft_context_t *context, void *address);
/**
 * Copies bytes. Blocking. Not ordered with streams: synchronize earlier work on the memory first.
 * Any thread.
 * @param[in]  context the context
 * @param[out] dst     device or host address; may be NULL if bytes is 0
 * @param[in]  src     device or host address, not overlapping dst; may be NULL if bytes is 0
 * @param[in]  bytes   bytes to copy
 * @return WEFT_ERR_INVALID_ARGUMENT if the ranges overlap; on an accelerator also WEFT_ERR_TIMEOUT
 *         and the device's error; an error that ended the world. Nothing is copied after the
 *         return.
 *
 * Equivalent to: cudaMemcpy, aclrtMemcpy
 */
WEFT_API weft_status_t weft_mem_copy(weft_context_t *context, void *dst, const void *src,
                                     size_t bytes);
/**
 * Sets bytes to a value. Blocking. Not ordered with streams. Any thread.
 * @param[in]  context the context
 * @param[out] dst     device or host address; may be NULL if bytes is 0
 * @param[in]  value   value of each byte
 * @param[in]  bytes   bytes to set
 * @return as weft_mem_copy
 *
 * Equivalent to: cudaMemset, aclrtMemset
 */
WEFT_API weft_status_t weft_mem_fill(weft_context_t *context, void *dst, uint8_t value,
                                     size_t bytes);
/**
 * Enqueues the setting of bytes to a value. Non-blocking; dst must stay valid until it has run.
 * @param[in]  stream the stream
 * @param[out] dst    device or host address; may be NULL if bytes is 0
 * @param[in]  value  value of each byte
 * @param[in]  bytes  bytes to set
 * @return WEFT_AGAIN if the stream is full; the error that broke the stream
 *
 * Equivalent to: cudaMemsetAsync
 */
WEFT_API weft_status_t weft_stream_fill(weft_stream_t *stream, void *dst, uint8_t value,
                                        size_t bytes);
/**
 * Finds the allocation or registration of the context that contains an address. Local. Not while
 * another thread allocates, frees or registers.
 * @param[in]  context  the context
 * @param[in]  address  its first byte or any other
 * @param[out] out_info set struct_size before the call
 * @return WEFT_ERR_INVALID_ARGUMENT
 *
 * Equivalent to: cudaPointerGetAttributes
 */
WEFT_API weft_status_t weft_mem_query(weft_context_t *context, const void *address,
                                      weft_mem_info_t *out_info);

/**
 * Finds the driver's name of memory of the context's device, for other libraries that use the same
 * driver. Local; any thread.
 * @param[in]  context    the context
 * @param[in]  address    of weft_device_alloc, weft_mem_alloc or weft_mem_wrap, or inside
 * @param[out] out_handle set struct_size before the call
 * @return WEFT_ERR_INVALID_ARGUMENT if address is not memory of the device
 */
WEFT_API weft_status_t weft_mem_get_handle(weft_context_t *context, const void *address,
                                           weft_mem_handle_t *out_handle);
/**
 * Gives addresses to memory of the driver that another library has made, without a copy. Local; any
 * thread.
 * @param[in]  context     the context
 * @param[in]  handle      valid, of the kind of weft_mem_handle_t.handle; OpenCL: a cl_mem of the
 *                         cl_context of the device, which memory of weft_device_alloc has
 * @param[in]  bytes       that the program uses from its begin on, more than 0
 * @param[out] out_address of its first byte; weft_mem_unwrap gives it back
 * @return WEFT_ERR_INVALID_ARGUMENT if the memory is smaller, WEFT_ERR_UNSUPPORTED if it is another
 *         context's, WEFT_ERR_NO_MEMORY
 */
WEFT_API weft_status_t weft_mem_wrap(weft_context_t *context, void *handle, uint64_t bytes,
                                     void **out_address);
/**
 * Gives back addresses of weft_mem_wrap. No queued work may use them. Any thread.
 * @param[in] context the context
 * @param[in] address of weft_mem_wrap, once for each call; NULL: nothing happens
 * @return errors of a context that ended
 */
WEFT_API weft_status_t weft_mem_unwrap(weft_context_t *context, void *address);

/**
 * Allocates zeroed memory of the context's device that all ranks of the host access, at the same
 * offset on every rank, aligned to 4096 bytes. Collective over the world, blocking: all ranks ask
 * for the same sizes in the same order. An accelerator's memory is reserved at the first call for
 * all later ones and cannot grow. One thread of a rank at a time allocates, frees, registers and
 * creates groups. Calls in flight are not disturbed.
 * @param[in]  context     the context
 * @param[in]  bytes       more than 0, equal on all ranks
 * @param[out] out_address this rank's memory; freed by weft_mem_free or with the context
 * @return WEFT_ERR_NO_MEMORY, WEFT_ERR_MISMATCH if sizes differ, WEFT_ERR_INVALID_ARGUMENT for 0
 *         bytes
 *
 * Equivalent to: ncclMemAlloc, MPI_Win_allocate_shared
 */
WEFT_API weft_status_t weft_mem_alloc(weft_context_t *context, size_t bytes, void **out_address);
/**
 * Frees memory of weft_mem_alloc. No call of this rank may be using it. Not collective: the memory
 * is reused once all ranks have freed it, in any order.
 * @param[in] context the context
 * @param[in] address start of an allocation; NULL: nothing happens
 * @return WEFT_ERR_INVALID_ARGUMENT if address is not from weft_mem_alloc
 *
 * Equivalent to: ncclMemFree
 */
WEFT_API weft_status_t weft_mem_free(weft_context_t *context, void *address);
/**
 * Keeps the memory of weft_mem_alloc when the context goes: it stays at its address, readable and
 * writable by this rank, until the process ends. For programs that leave their world before they
 * are done with its memory. Not collective. madvise(MADV_REMOVE) then returns unused pages to the
 * system. On an accelerator: the memory of weft_device_alloc and weft_mem_wrap, and the device.
 * @param[in] context the context
 * @return WEFT_ERR_UNSUPPORTED if ranks are threads, or on an accelerator that the program did not
 *         open by its name
 */
WEFT_API weft_status_t weft_mem_keep(weft_context_t *context);
/**
 * Registers the whole pages of an existing allocation for direct access by peers. Contents and
 * address stay; a partial first or last page goes through staging. No thread may use the range
 * during the call. Collective over the world, blocking; sizes may differ. The memory must be
 * private, readable and writable host memory. A forked child does not inherit registered pages.
 * @param[in] context the context
 * @param[in] address start of the range
 * @param[in] bytes   size of the range
 * @return on all ranks: WEFT_ERR_INVALID_ARGUMENT if the range is empty or its address is
 *         registered already, WEFT_ERR_NO_MEMORY, WEFT_ERR_SYSTEM; WEFT_ERR_UNSUPPORTED on an
 *         accelerator, whose calls copy host memory anyway
 *
 * Equivalent to: ncclCommRegister, ibv_reg_mr
 */
WEFT_API weft_status_t weft_mem_register(weft_context_t *context, void *address, size_t bytes);
/**
 * Returns registered pages to private memory, contents kept. Call it before the allocation is
 * freed. Not collective; no call of this rank may be using the range.
 * @param[in] context the context
 * @param[in] address start of a registered range
 * @return WEFT_ERR_INVALID_ARGUMENT if address is not registered, WEFT_ERR_NO_MEMORY,
 *         WEFT_ERR_SYSTEM
 *
 * Equivalent to: ncclCommDeregister, ibv_dereg_mr
 */
WEFT_API weft_status_t weft_mem_unregister(weft_context_t *context, void *address);
WEFT_EXTERN_C_END

#endif
