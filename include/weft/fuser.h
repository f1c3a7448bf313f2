/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fuser.h Fusion without a graph: for callers that only see gradients appear.
 *
 * Every rank gives each gradient to the fuser when it is there; a step ends with weft_fuser_wait,
 * after which all of them hold the reduction over the group. Gradients travel in buckets, each by
 * as few calls as its size allows, while the caller computes the next gradient.
 *
 * In the first step rank 0 decides: a bucket is closed when the next tensor would make it larger
 * than `bytes`, when its window is over, on weft_fuser_flush, and at the end of the step. It tells
 * the others names and bucket edges while the step runs; they may add in any order. Later steps
 * replay these buckets, without messages and without allocating: a bucket starts when all its
 * tensors were added on this rank and the buckets before it have started. So every step adds the
 * same names, with the same counts, types and reductions; anything else breaks the fuser on all
 * ranks, naming rank and tensor (weft_fuser_reset allows a new set). Addresses may change.
 *
 * A bucket holds one type and reduction; larger tensors are split, so none is ever larger than
 * `bytes`. Results have the same bits as weft_all_reduce of each tensor: which bucket a tensor is
 * in and where does not matter (unless the group's order is WEFT_ORDER_ANY). Tensors of a bucket
 * that lie side by side on a rank, in the order of their addresses on rank 0, and large ones
 * anyway, are reduced where they are; only small ones that are scattered go through a buffer of the
 * fuser's, and are counted. Memory that peers reach (weft_mem_alloc, weft_mem_register) is
 * quickest, as for any collective.
 *
 * Progress happens inside add, flush, query and wait, and on the fuser's stream if that has a
 * thread; only these look at the clock, which is enough: what is added after the window goes into
 * the next bucket, however late that is noticed. One thread at a time uses a fuser.
 *
 * Equivalent to: gradient buckets of PyTorch DDP, tensor fusion of Horovod
 */
#ifndef WEFT_FUSER_H
#define WEFT_FUSER_H

#include <weft/group.h>

typedef struct weft_fuser weft_fuser_t;

#define WEFT_FUSER_NAME_BYTES 1023u                      /**< the longest name */
#define WEFT_FUSER_WINDOW_NONE UINT64_MAX                /**< buckets are not closed by time */
#define WEFT_FUSER_BYTES_DEFAULT ((uint64_t)32 << 20)    /**< 32 MiB */
#define WEFT_FUSER_WINDOW_NS_DEFAULT ((uint64_t)5000000) /**< 5 ms */

typedef struct weft_fuser_params {
    size_t struct_size;
    uint64_t bytes;     /**< of a bucket, at most; 0: 32 MiB; at least 8; equal on all ranks */
    uint64_t window_ns; /**< from a bucket's first tensor on; 0: 5 ms; equal on all ranks */
    /**
     * Where the calls run: after what was enqueued there before, as for any collective, so one that
     * is used for nothing else is best. With a thread, the caller's thread stays free. It must
     * outlive the fuser. NULL: an inline stream of the fuser's own.
     */
    weft_stream_t *stream;
} weft_fuser_params_t;
#define WEFT_FUSER_PARAMS_INIT                                                                     \
    {                                                                                              \
        sizeof(weft_fuser_params_t), 0, 0, NULL                                                    \
    }

typedef struct weft_fuser_stats {
    size_t struct_size;
    uint64_t step_count;           /**< finished */
    uint64_t tensor_count;         /**< of a step, once the first one is over */
    uint64_t bucket_count;         /**< likewise */
    uint64_t largest_bucket_bytes; /**< likewise */
    uint64_t call_count;           /**< all-reduces so far */
    uint64_t reduced_bytes;        /**< of tensors so far */
    uint64_t copied_bytes;         /**< into and out of the fuser's buffer so far */
} weft_fuser_stats_t;
#define WEFT_FUSER_STATS_INIT                                                                      \
    {                                                                                              \
        sizeof(weft_fuser_stats_t), 0, 0, 0, 0, 0, 0, 0                                            \
    }

WEFT_EXTERN_C_BEGIN
/**
 * Collective over group. The fuser's calls are its own and do not mix with others on group, which
 * may go before the fuser; they have the order of reductions and the algorithms that group has now.
 * @param[in] params NULL: defaults
 * @return WEFT_ERR_MISMATCH, on all ranks, when parameters differ
 */
WEFT_API weft_status_t weft_fuser_create(weft_group_t *group, const weft_fuser_params_t *params,
                                         weft_fuser_t **out_fuser);
/**
 * This rank's share of a gradient is there (or will be, by what was enqueued on the stream before).
 * Returns at once; nobody else uses the tensor until weft_fuser_wait is over (or, where that fails,
 * weft_fuser_destroy).
 * @param[in,out] tensor    count elements; in the end their reduction over the group
 * @param[in]     reduction WEFT_SUM, WEFT_AVG, ...
 * @param[in]     name      the tensor's, equal on all ranks, copied; at most WEFT_FUSER_NAME_BYTES
 * @return WEFT_ERR_INVALID_ARGUMENT (the fuser goes on): also for a name added twice in a step;
 *         WEFT_ERR_MISMATCH (the fuser is broken, on all ranks): a name that the first step did not
 *         have, or that had another count, type or reduction
 */
WEFT_API weft_status_t weft_fuser_add(weft_fuser_t *fuser, void *tensor, uint64_t count,
                                      weft_dtype_t dtype, weft_reduction_t reduction,
                                      const char *name);
/** First step, rank 0: closes the open buckets. Otherwise only makes progress. Does not block. */
WEFT_API weft_status_t weft_fuser_flush(weft_fuser_t *fuser);
/** Makes progress. WEFT_OK when all tensors added so far are reduced, else WEFT_IN_PROGRESS. */
WEFT_API weft_status_t weft_fuser_query(weft_fuser_t *fuser);
/**
 * End of the step: waits until all tensors are reduced. Every rank calls it once per step.
 * @return WEFT_ERR_MISMATCH, on all ranks, naming a rank and the tensor that it did not add
 */
WEFT_API weft_status_t weft_fuser_wait(weft_fuser_t *fuser);
/**
 * Between two steps: the next one decides the buckets anew, of whatever is added then. Every rank
 * calls it between the same two steps.
 */
WEFT_API weft_status_t weft_fuser_reset(weft_fuser_t *fuser);
/** @param[in,out] stats struct_size set by the caller */
WEFT_API weft_status_t weft_fuser_get_stats(weft_fuser_t *fuser, weft_fuser_stats_t *stats);
/**
 * Collective; NULL is fine. In the middle of a step, the other ranks' fusers return
 * WEFT_ERR_ABORTED, and so does a stream on which calls were under way.
 */
WEFT_API void weft_fuser_destroy(weft_fuser_t *fuser);
WEFT_EXTERN_C_END

#endif
