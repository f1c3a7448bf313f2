/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file memory.h Memory of the context's device, and memory that peers reach directly.
 *
 * On the CPU device both are host memory; on a card (weft_context_params_t.device, or
 * weft_context_set_device) both are the card's, which the host must not touch unless the card says
 * that it may: data goes in and out by copies. The same calls serve both, so a program written for a
 * card runs on the CPU device.
 *
 *     weft_device_alloc    memory of this rank's device           cudaMalloc, aclrtMalloc
 *     weft_mem_alloc       the same, that peers reach, too        ncclMemAlloc, MPI_Win_allocate
 *     weft_mem_register    existing host memory that peers reach  ncclCommRegister
 *     weft_mem_copy        in, out, within; waits                 cudaMemcpy, aclrtMemcpy
 *     weft_stream_copy     the same in a stream's order           cudaMemcpyAsync, aclrtMemcpyAsync
 *     weft_mem_fill        bytes of one value; waits              cudaMemset, aclrtMemset
 *     weft_stream_fill     the same in a stream's order           cudaMemsetAsync, aclrtMemsetAsync
 *     weft_mem_query       what an address belongs to             cudaPointerGetAttributes
 *
 * Collectives on memory that peers reach read and write the peers' copies in place; on any other
 * memory they go through staging buffers that the group owns or, between processes that may read each
 * other's memory (WEFT_ATTACH), in one copy from where it pays. Results have the same bits in any case.
 */
#ifndef WEFT_MEMORY_H
#define WEFT_MEMORY_H

#include <weft/stream.h>

typedef enum weft_mem_kind {
    WEFT_MEM_OTHER = 0,      /**< host memory of any other origin, as far as the context knows */
    WEFT_MEM_PEER = 1,       /**< from weft_mem_alloc */
    WEFT_MEM_REGISTERED = 2, /**< weft_mem_register */
    WEFT_MEM_DEVICE = 3,     /**< from weft_device_alloc */
} weft_mem_kind_t;

typedef struct weft_mem_info {
    size_t struct_size; /**< set by the caller */
    weft_mem_kind_t kind;
    void *base;           /**< where the allocation or registration starts; NULL: WEFT_MEM_OTHER */
    size_t bytes;         /**< of it, from base; weft_mem_alloc rounds up to whole pages */
    uint32_t host_access; /**< 1: the host may load and store there */
} weft_mem_info_t;

#define WEFT_MEM_INFO_INIT {sizeof(weft_mem_info_t), WEFT_MEM_OTHER, 0, 0, 0}

WEFT_EXTERN_C_BEGIN
/**
 * Zeroed memory of the context's device for this rank alone, aligned to at least 64. Not collective;
 * any thread.
 * @param[in] bytes more than 0
 * @return WEFT_ERR_NO_MEMORY naming the device
 * Equivalent to: cudaMalloc, aclrtMalloc
 */
WEFT_API weft_status_t weft_device_alloc(weft_context_t *context, size_t bytes, void **out_address);
/**
 * Gives it back; NULL is fine. Nothing that is queued may use it any more. What was not given back
 * goes with the context.
 * @return WEFT_ERR_INVALID_ARGUMENT when address is not the start of an allocation of the context
 */
WEFT_API weft_status_t weft_device_free(weft_context_t *context, void *address);
/**
 * Copies bytes and waits until it is done. Not ordered with streams: work that uses the memory is
 * synchronised with before.
 * @param[in] dst,src device or host addresses, not overlapping
 * Any thread. @return also what ended the world meanwhile; nothing is copied after the return.
 * Equivalent to: cudaMemcpy, aclrtMemcpy
 */
WEFT_API weft_status_t weft_mem_copy(weft_context_t *context, void *dst, const void *src,
                                     size_t bytes);
/** Sets bytes at dst to value, in the way of weft_mem_copy. Equivalent to: cudaMemset, aclrtMemset */
WEFT_API weft_status_t weft_mem_fill(weft_context_t *context, void *dst, uint8_t value,
                                     size_t bytes);
/** Enqueues the same on stream. WEFT_AGAIN when it is full. Equivalent to: cudaMemsetAsync */
WEFT_API weft_status_t weft_stream_fill(weft_stream_t *stream, void *dst, uint8_t value,
                                        size_t bytes);
/**
 * What address belongs to: an allocation or registration of the context that holds it, the first byte
 * or any other. Not while another thread allocates, frees or registers.
 * @param[out] out_info struct_size is set by the caller
 * Equivalent to: cudaPointerGetAttributes
 */
WEFT_API weft_status_t weft_mem_query(weft_context_t *context, const void *address,
                                      weft_mem_info_t *out_info);

/**
 * Zeroed memory of the context's device that all ranks of the host reach, at the same offset on every
 * rank; aligned to 4096. A card's is taken at the first call, for all that follow, and cannot grow.
 * Collective over the world: all ranks ask for the same sizes in the same order. One thread
 * of a rank at a time allocates, frees, registers and makes groups; calls in flight are not
 * disturbed.
 */
WEFT_API weft_status_t weft_mem_alloc(weft_context_t *context, size_t bytes, void **out_address);
/**
 * NULL is fine. No call of this rank may be using it. Not collective: the memory is given out again once
 * all ranks have freed it, in whichever order.
 */
WEFT_API weft_status_t weft_mem_free(weft_context_t *context, void *address);
/**
 * What weft_mem_alloc gives stays where it is, readable and writable by this rank, when the context is
 * gone, until the process ends: for programs that leave their world before they are done with its memory.
 * Not collective. After the context has gone the pages of what is no longer needed can be given back to
 * the system by madvise(MADV_REMOVE).
 * @return WEFT_ERR_UNSUPPORTED on a context with a card, or whose ranks are threads
 */
WEFT_API weft_status_t weft_mem_keep(weft_context_t *context);
/**
 * Adopts the whole pages of an existing allocation in place: contents and address stay, and later
 * calls on it take the direct path (a partial first or last page goes through staging). Nobody may
 * use the range during the call. Collective; sizes may differ. Memory must be private, readable and
 * writable. A forked child does not inherit adopted pages. Host memory only:
 * @return WEFT_ERR_UNSUPPORTED on a context with a card, whose calls copy host memory anyway
 */
WEFT_API weft_status_t weft_mem_register(weft_context_t *context, void *address, size_t bytes);
/**
 * Gives the pages back as private memory, contents kept; before the allocation is freed. Address is
 * what was registered. Not collective; no call of this rank may be using it.
 */
WEFT_API weft_status_t weft_mem_unregister(weft_context_t *context, void *address);
WEFT_EXTERN_C_END

#endif
