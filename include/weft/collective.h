/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file collective.h Collectives without a graph.
 *
 * Every call is asynchronous in stream's order: buffers must live, and not be written, until it is
 * done there. stream NULL: the call runs on the calling thread and returns when it is done (the
 * quickest way for small sizes). WEFT_AGAIN: the stream or the group (64 calls in flight) is full,
 * retry after progress.
 *
 * Counts are elements. In place: send == recv for all-reduce, broadcast, reduce and all-to-all;
 * send lies where this rank's block of recv is for all-gather and gather; recv lies where this
 * rank's block of send is for reduce-scatter and scatter. Otherwise the buffers do not overlap.
 * Buffers that only the root uses may be NULL elsewhere. Reductions combine ranks in the group's
 * order (weft_group_set_order; the in-order tree over the group unless set otherwise), so bits depend
 * neither on the algorithm, nor on the path that data takes, nor on timing; but for WEFT_ORDER_ANY.
 * Which algorithm carries a call out is chosen by cost, or asked for by weft_group_set_algorithm.
 *
 * After an error the results of calls that were in flight are undefined, and a peer that was moving
 * data just then may still read or write this rank's buffers of them until it notices.
 *
 * WEFT_ERR_LINK: a link between two ranks of the group broke, though both live. What each rank had in
 * flight in the group ends with it, or its next call does; then the group is made whole again, within
 * the next call of every rank, and goes on over the path that is left (WEFT_FALLBACK=off: it stays
 * broken). Calls of the ranks stay in step by their count, failed ones counted, and the last one that
 * fails is the same on all ranks: whoever starts over after each such error starts over with the
 * others. Sends that were not received are lost. A stream that had such a call stays broken: destroy
 * it and create another. Until a later call succeeds, peers may still write to buffers of those that
 * failed.
 *
 * On a context with a card buffers are memory of the card (or of the host), and calls are staged
 * through the host, ordered in stream like its other work; bits are those of the CPU device. 16 calls
 * are in flight then. An error breaks stream: what is queued behind the call does not run. The host's
 * part goes on inside calls that wait or query (weft_stream_query, _synchronize, ...), or on a thread
 * of the group where progress is WEFT_PROGRESS_THREAD.
 */
#ifndef WEFT_COLLECTIVE_H
#define WEFT_COLLECTIVE_H

#include <weft/group.h>

WEFT_EXTERN_C_BEGIN
/** recv[i] = reduction over ranks of send[i]. */
WEFT_API weft_status_t weft_all_reduce(const void *send, void *recv, uint64_t count,
                                       weft_dtype_t dtype, weft_reduction_t reduction,
                                       weft_group_t *group, weft_stream_t *stream);
/** send holds size * count elements; this rank gets the reduced block number rank. */
WEFT_API weft_status_t weft_reduce_scatter(const void *send, void *recv, uint64_t count,
                                           weft_dtype_t dtype, weft_reduction_t reduction,
                                           weft_group_t *group, weft_stream_t *stream);
/** recv holds size * count elements: the blocks of all ranks in order. */
WEFT_API weft_status_t weft_all_gather(const void *send, void *recv, uint64_t count,
                                       weft_dtype_t dtype, weft_group_t *group,
                                       weft_stream_t *stream);
WEFT_API weft_status_t weft_broadcast(const void *send, void *recv, uint64_t count,
                                      weft_dtype_t dtype, uint32_t root, weft_group_t *group,
                                      weft_stream_t *stream);
WEFT_API weft_status_t weft_reduce(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                                   weft_reduction_t reduction, uint32_t root, weft_group_t *group,
                                   weft_stream_t *stream);
/** recv, on root, holds size * count elements. */
WEFT_API weft_status_t weft_gather(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                                   uint32_t root, weft_group_t *group, weft_stream_t *stream);
/** send, on root, holds size * count elements. */
WEFT_API weft_status_t weft_scatter(const void *send, void *recv, uint64_t count,
                                    weft_dtype_t dtype, uint32_t root, weft_group_t *group,
                                    weft_stream_t *stream);
/** Both hold size * count elements: block d goes to rank d, block s came from rank s. */
WEFT_API weft_status_t weft_all_to_all(const void *send, void *recv, uint64_t count,
                                       weft_dtype_t dtype, weft_group_t *group,
                                       weft_stream_t *stream);
/**
 * Blocks of different lengths: rank r's has counts[r] elements and lies at displacements[r] of recv
 * (NULL: one after the other). Arrays of size elements, copied by the call; counts are equal on all
 * ranks.
 */
WEFT_API weft_status_t weft_all_gather_v(const void *send, void *recv, const uint64_t *counts,
                                         const uint64_t *displacements, weft_dtype_t dtype,
                                         weft_group_t *group, weft_stream_t *stream);
/** The same for blocks of send. */
WEFT_API weft_status_t weft_reduce_scatter_v(const void *send, void *recv, const uint64_t *counts,
                                             const uint64_t *displacements, weft_dtype_t dtype,
                                             weft_reduction_t reduction, weft_group_t *group,
                                             weft_stream_t *stream);
/** Every pair has its own length; what s sends to d and what d expects from s must agree. Not in
 * place. */
WEFT_API weft_status_t weft_all_to_all_v(const void *send, const uint64_t *send_counts,
                                         const uint64_t *send_displacements, void *recv,
                                         const uint64_t *recv_counts,
                                         const uint64_t *recv_displacements, weft_dtype_t dtype,
                                         weft_group_t *group, weft_stream_t *stream);
/** Done when data may be overwritten. Calls between the same two ranks match in order. */
WEFT_API weft_status_t weft_send(const void *data, uint64_t count, weft_dtype_t dtype,
                                 uint32_t peer, weft_group_t *group, weft_stream_t *stream);
WEFT_API weft_status_t weft_recv(void *data, uint64_t count, weft_dtype_t dtype, uint32_t peer,
                                 weft_group_t *group, weft_stream_t *stream);
WEFT_API weft_status_t weft_barrier(weft_group_t *group, weft_stream_t *stream);
/**
 * Calls on group between begin and end only check their arguments; end submits them, on its stream,
 * and their own stream is ignored. None of them may use what another one writes. Sends and receives
 * (at most 64) come first and run side by side, so that an exchange needs no order. Then the
 * collectives: small ones of the same operator, type, reduction and root become one call (together
 * up to about 7 KiB per rank, at most 64), the others follow one by one. All ranks issue the same
 * collectives in the same order; where they disagree, the error says which call of the batch it is,
 * counted from 0 without sends and receives. Bits are the same as without a batch (unless the group's
 * order is WEFT_ORDER_ANY).
 * @return WEFT_AGAIN from end: the stream or the group is full, and the batch still open; end it
 * again after progress
 * Equivalent to: ncclGroupStart, ncclGroupEnd
 */
WEFT_API weft_status_t weft_batch_begin(weft_group_t *group);
WEFT_API weft_status_t weft_batch_end(weft_group_t *group, weft_stream_t *stream);
/**
 * Drops what was noted since begin, in place of end: none of it is called. For the caller that found something wrong
 * in between; whether the other ranks still make these calls is for it to know. Local.
 * @return WEFT_ERR_STATE when no batch was begun, or an end that was WEFT_AGAIN has submitted part of it
 */
WEFT_API weft_status_t weft_batch_cancel(weft_group_t *group);
WEFT_EXTERN_C_END

#endif
