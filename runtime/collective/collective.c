/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls: arguments are checked here once, then a call is filled in and submitted. */
#include <weft/collective.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/collective/call_move.h"
#include "runtime/collective/submit.h"

#define SUM WEFT_REDUCTION_SUM /* operators that do not reduce */

/* ---- arguments: callers add the name of the call to messages ---- */

/* blocks of count elements must be addressable. */
static weft_status_t check_elements(weft_dtype_t dtype, uint64_t count, uint64_t blocks)
{
    size_t elem_bytes = weft_dtype_size_bytes(dtype), bytes;
    if (elem_bytes == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "invalid dtype %d: expected a weft_dtype_t",
                           (int)dtype);
    }
    if (!wefti_mul_size((size_t)count, elem_bytes, &bytes) ||
        !wefti_mul_size(bytes, (size_t)blocks, &bytes) || bytes > SIZE_MAX / 2) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "count too large: %llu x %s exceeds the address space",
                           (unsigned long long)count, weft_dtype_name(dtype));
    }
    return WEFT_OK;
}

static weft_status_t check_types(const wefti_request_t *request, uint64_t blocks)
{
    bool reduces = wefti_collectives[request->op].reduces;
    WEFT_RETURN_IF_ERROR(check_elements(request->dtype, request->count, blocks));
    if (reduces && request->dtype == WEFT_DTYPE_BOOL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "dtype bool cannot be reduced");
    }
    if (reduces && (uint32_t)request->reduction > WEFT_REDUCTION_MAX) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "invalid reduction %d: expected a weft_reduction_t",
                           (int)request->reduction);
    }
    return WEFT_OK;
}

/* ---- counts per rank ---- */

typedef struct counts {
    const uint64_t *counts, *displacements; /* displacements NULL: one after the other */
} counts_t;

/* Into counts[0, n) and displacements[0, n) of the call, checked. */
static weft_status_t copy_counts(const wefti_request_t *request, const counts_t *from, uint32_t n,
                                 uint64_t *counts)
{
    uint64_t limit = SIZE_MAX / 2 / weft_dtype_size_bytes(request->dtype);
    uint64_t next = 0;
    for (uint32_t r = 0; r < n; r++) {
        uint64_t count = from->counts[r];
        uint64_t at = from->displacements != NULL ? from->displacements[r] : next;
        if (count > limit || at > limit || at + count > limit) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "counts[%u] too large: %llu x %s exceeds the address space", r,
                               (unsigned long long)count, weft_dtype_name(request->dtype));
        }
        counts[r] = count;
        counts[n + r] = at;
        next = at + count;
    }
    return WEFT_OK;
}

static bool any(const uint64_t *counts, uint32_t n)
{
    uint64_t all = 0;
    for (uint32_t r = 0; r < n; r++) {
        all |= counts[r];
    }
    return all != 0;
}

/* send, recv: of V forms; NULL where the operator has no counts on that side. */
static weft_status_t check(const wefti_request_t *request, const counts_t *send,
                           const counts_t *recv, const weft_group_t *group)
{
    const wefti_collective_t *op = &wefti_collectives[request->op];
    bool is_root = group->rank == request->root;
    bool is_vector = op->send.extent == WEFT_EXTENT_VECTOR;
    WEFT_RETURN_IF_ERROR(check_types(request, is_vector || op->variable ? 1 : group->size));
    if (request->root >= group->size) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "invalid root %u for group size %u",
                           request->root, group->size);
    }
    bool needs_send = request->count > 0 && wefti_side_is_on(op->send, is_root);
    bool needs_recv = request->count > 0 && wefti_side_is_on(op->recv, is_root);
    if (op->variable) {
        needs_send = send != NULL ? any(send->counts, group->size) : recv->counts[group->rank] > 0;
        needs_recv = recv != NULL ? any(recv->counts, group->size) : send->counts[group->rank] > 0;
    }
    if (needs_send && request->send == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "send is NULL");
    }
    if (needs_recv && request->recv == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "recv is NULL");
    }
    if (request->op == WEFT_COLLECTIVE_ALL_TO_ALL_V && group->size > WEFTI_TABLE_RANKS) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "group too large: %u ranks, at most %u",
                           group->size, WEFTI_TABLE_RANKS);
    }
    if (!op->in_place && request->send == request->recv && request->send != NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "send and recv are the same buffer; in place is not supported");
    }
    return WEFT_OK;
}

/* Counts and displacements of both sides into *io_counts, made if NULL. */
static weft_status_t take_counts(const wefti_request_t *request, const counts_t *send,
                                 const counts_t *recv, const weft_group_t *group,
                                 uint64_t **io_counts)
{
    uint32_t n = group->size;
    if (*io_counts == NULL) {
        *io_counts = wefti_alloc(group->context->allocator, 4 * n * sizeof **io_counts);
        WEFT_RETURN_IF_NO_MEMORY(*io_counts != NULL);
    }
    if (send != NULL) {
        WEFT_RETURN_IF_ERROR(copy_counts(request, send, n, *io_counts));
    }
    return recv != NULL ? copy_counts(request, recv, n, *io_counts + 2 * n) : WEFT_OK;
}

/* ---- calls ---- */

/* V forms. Returns the elements of the longest block. */
static uint64_t fill_v(wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    const uint64_t *counts = wefti_call_blocks(call);
    uint64_t longest = 0;
    for (uint32_t r = 0; r < group->size; r++) {
        longest = counts[r] > longest ? counts[r] : longest;
    }
    if (wefti_collective_has_shared_counts(call->request.op)) {
        call->posted_count = wefti_hash_words(counts, group->size);
    }
    if (wefti_collective_scatters(call->request.op)) {
        call->request.count = call->counts[group->rank]; /* this rank's block */
    }
    return longest;
}

void wefti_request_fill(wefti_call_t *call, const wefti_request_t *request)
{
    call->request = *request;
    call->elem_bytes = (uint32_t)weft_dtype_size_bytes(request->dtype);
    call->what = wefti_request_what(request);
    call->posted_count = request->count;
    const wefti_collective_t *op = wefti_call_op(call);
    call->longest = (op->variable ? fill_v(call) : request->count) * call->elem_bytes;
    uint64_t blocks = op->send.extent == WEFT_EXTENT_BLOCKS ? call->group->size : 1;
    call->area_bytes =
        call->longest > WEFTI_SLOT_DATA ? SIZE_MAX : (size_t)(blocks * call->longest);
}

/* send, recv: as check has them. */
static weft_status_t submit_v(const wefti_request_t *request, const counts_t *send,
                              const counts_t *recv, weft_group_t *group, weft_stream_t *stream)
{
    const wefti_recorder_t *recorder = group->calls->recorder;
    wefti_call_t *call = NULL;
    if (recorder == NULL) {
        weft_status_t status = wefti_call_reserve(group, stream, &call);
        if (status != WEFT_OK) {
            return status < 0 ? wefti_call_refuse(group, stream, status) : status;
        }
    }
    /* Once per place in the ring, and for every one that is recorded. */
    uint64_t *recorded = NULL, **counts = call != NULL ? &call->counts : &recorded;
    weft_status_t status = check(request, send, recv, group);
    if (status == WEFT_OK && (send != NULL || recv != NULL)) {
        status = take_counts(request, send, recv, group, counts);
    }
    if (status < 0) {
        wefti_free(group->context->allocator, recorded);
        if (status != WEFT_ERR_NO_MEMORY) {
            wefti_error_prefix(status, "%s", weft_collective_name(request->op));
        }
        return wefti_call_refuse(group, stream, status);
    }
    if (recorder != NULL) {
        status = recorder->ops->record(group, request, recorded);
        group->calls->shape.tag = 0;
        return status < 0 ? wefti_call_refuse(group, stream, status) : status;
    }
    wefti_request_fill(call, request);
    if (group->calls->shape.tag != 0 && !group->calls->own) {
        wefti_call_take_shape(call);
    }
    if (group->calls->own && request->op == WEFT_COLLECTIVE_ALL_GATHER) {
        /* the library's own: named after what it is for */
        call->what |= (uint64_t)wefti_control_kind() << WEFTI_WHAT_ROOT_SHIFT;
    }
    return wefti_call_submit(call, stream);
}

static weft_status_t submit(const wefti_request_t *request, weft_group_t *group,
                            weft_stream_t *stream)
{
    return submit_v(request, NULL, NULL, group, stream);
}

weft_status_t weft_all_reduce(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                              weft_reduction_t reduction, weft_group_t *group,
                              weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {WEFT_COLLECTIVE_ALL_REDUCE, dtype, reduction, 0, send, recv, count};
    return submit(&request, group, stream);
}

weft_status_t weft_reduce_scatter(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                                  weft_reduction_t reduction, weft_group_t *group,
                                  weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {
        WEFT_COLLECTIVE_REDUCE_SCATTER, dtype, reduction, 0, send, recv, count};
    return submit(&request, group, stream);
}

weft_status_t weft_all_gather(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                              weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {WEFT_COLLECTIVE_ALL_GATHER, dtype, SUM, 0, send, recv, count};
    return submit(&request, group, stream);
}

weft_status_t weft_broadcast(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                             uint32_t root, weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {WEFT_COLLECTIVE_BROADCAST, dtype, SUM, root, send, recv, count};
    return submit(&request, group, stream);
}

weft_status_t weft_reduce(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                          weft_reduction_t reduction, uint32_t root, weft_group_t *group,
                          weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {WEFT_COLLECTIVE_REDUCE, dtype, reduction, root, send, recv, count};
    return submit(&request, group, stream);
}

weft_status_t weft_gather(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                          uint32_t root, weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {WEFT_COLLECTIVE_GATHER, dtype, SUM, root, send, recv, count};
    return submit(&request, group, stream);
}

weft_status_t weft_scatter(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                           uint32_t root, weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {WEFT_COLLECTIVE_SCATTER, dtype, SUM, root, send, recv, count};
    return submit(&request, group, stream);
}

weft_status_t weft_all_to_all(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                              weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {WEFT_COLLECTIVE_ALL_TO_ALL, dtype, SUM, 0, send, recv, count};
    return submit(&request, group, stream);
}

weft_status_t weft_barrier(weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {WEFT_COLLECTIVE_BARRIER, WEFT_DTYPE_U8, SUM, 0, NULL, NULL, 0};
    return submit(&request, group, stream);
}

#define REFUSE_IF_NULL(list)                                                                       \
    do {                                                                                           \
        if (WEFT_UNLIKELY((list) == NULL)) {                                                       \
            return wefti_call_refuse(group, stream, wefti_error_null(__func__, #list));            \
        }                                                                                          \
    } while (0)

weft_status_t weft_all_gather_v(const void *send, void *recv, const uint64_t *counts,
                                const uint64_t *displacements, weft_dtype_t dtype,
                                weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    REFUSE_IF_NULL(counts);
    wefti_request_t request = {WEFT_COLLECTIVE_ALL_GATHER_V, dtype, SUM, 0, send, recv, 0};
    counts_t blocks = {counts, displacements};
    return submit_v(&request, NULL, &blocks, group, stream);
}

weft_status_t weft_reduce_scatter_v(const void *send, void *recv, const uint64_t *counts,
                                    const uint64_t *displacements, weft_dtype_t dtype,
                                    weft_reduction_t reduction, weft_group_t *group,
                                    weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    REFUSE_IF_NULL(counts);
    wefti_request_t request = {
        WEFT_COLLECTIVE_REDUCE_SCATTER_V, dtype, reduction, 0, send, recv, 0};
    counts_t blocks = {counts, displacements};
    return submit_v(&request, &blocks, NULL, group, stream);
}

weft_status_t weft_all_to_all_v(const void *send, const uint64_t *send_counts,
                                const uint64_t *send_displacements, void *recv,
                                const uint64_t *recv_counts, const uint64_t *recv_displacements,
                                weft_dtype_t dtype, weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    REFUSE_IF_NULL(send_counts);
    REFUSE_IF_NULL(recv_counts);
    wefti_request_t request = {WEFT_COLLECTIVE_ALL_TO_ALL_V, dtype, SUM, 0, send, recv, 0};
    counts_t outgoing = {send_counts, send_displacements};
    counts_t incoming = {recv_counts, recv_displacements};
    return submit_v(&request, &outgoing, &incoming, group, stream);
}

weft_status_t wefti_request_submit(const wefti_batched_t *batched, weft_group_t *group,
                                   weft_stream_t *stream)
{
    const wefti_request_t *request = &batched->request;
    uint32_t n = group->size;
    if (batched->counts == NULL) {
        return submit(request, group, stream);
    }
    counts_t outgoing = {batched->counts, batched->counts + n};
    counts_t incoming = {batched->counts + 2 * n, batched->counts + 3 * n};
    return submit_v(request, wefti_collective_gathers(request->op) ? NULL : &outgoing,
                    wefti_collective_scatters(request->op) ? NULL : &incoming, group, stream);
}

/* ---- sends and receives ---- */

static weft_status_t check_pair(const wefti_pair_t *pair, weft_dtype_t dtype,
                                const weft_group_t *group)
{
    if (pair->peer >= group->size || pair->peer == group->rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "invalid peer %u for rank %u of a group of %u ranks", pair->peer,
                           group->rank, group->size);
    }
    if (pair->tag == WEFT_ANY_TAG) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "WEFT_ANY_TAG is for weft_probe only");
    }
    WEFT_RETURN_IF_ERROR(check_elements(dtype, pair->count, 1));
    return pair->data == NULL && pair->count > 0
               ? wefti_error(WEFT_ERR_INVALID_ARGUMENT, "data is NULL")
               : WEFT_OK;
}

static weft_status_t submit_pair(wefti_pair_t *pair, weft_dtype_t dtype, weft_group_t *group,
                                 weft_stream_t *stream)
{
    const wefti_recorder_t *recorder = group->calls->recorder;
    wefti_call_t *call = NULL;
    weft_status_t status = recorder != NULL ? recorder->ops->record_pair(group, NULL)
                                            : wefti_call_reserve(group, stream, &call);
    if (status != WEFT_OK) {
        return status;
    }
    status = check_pair(pair, dtype, group);
    if (status < 0) {
        wefti_error_prefix(status, pair->sends ? "Send" : "Recv");
        return recorder != NULL ? wefti_recorder_refuse(group->calls->recorder, true, status)
                                : wefti_pair_refuse(call, pair, stream, status);
    }
    pair->dtype = (uint8_t)dtype;
    pair->bytes = pair->count * weft_dtype_size_bytes(dtype);
    if (recorder != NULL) {
        return recorder->ops->record_pair(group, pair);
    }
    if (stream == NULL && wefti_pair_take_early(group, pair, &status)) {
        return status;
    }
    call->pairs.single = *pair;
    wefti_pairs_fill(call, &call->pairs.single, 1);
    return wefti_call_submit(call, stream);
}

weft_status_t weft_send_tagged(const void *data, uint64_t count, weft_dtype_t dtype, uint32_t peer,
                               uint32_t tag, weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_pair_t pair = {.peer = peer, .tag = tag, .data = data, .count = count, .sends = true};
    return submit_pair(&pair, dtype, group, stream);
}

weft_status_t weft_recv_tagged(void *data, uint64_t count, weft_dtype_t dtype, uint32_t peer,
                               uint32_t tag, weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_pair_t pair = {.peer = peer, .tag = tag, .data = data, .count = count};
    return submit_pair(&pair, dtype, group, stream);
}

weft_status_t weft_send(const void *data, uint64_t count, weft_dtype_t dtype, uint32_t peer,
                        weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    return weft_send_tagged(data, count, dtype, peer, 0, group, stream);
}

weft_status_t weft_recv(void *data, uint64_t count, weft_dtype_t dtype, uint32_t peer,
                        weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    return weft_recv_tagged(data, count, dtype, peer, 0, group, stream);
}
