/* SPDX-License-Identifier: Apache-2.0 */
/* Public collectives: arguments are checked here once, then a call is filled in and submitted. */
#include <weft/collective.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/collective/submit.h"

WEFT_PRINTF(2, 3)
static weft_status_t bad_argument(const wefti_request_t *request, const char *format, ...)
{
    char text[160];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: %s", weft_collective_name(request->op),
                       text);
}

/* blocks of count elements must be addressable. */
static weft_status_t check_types(const wefti_request_t *request, uint64_t blocks)
{
    size_t elem_bytes = weft_dtype_size_bytes(request->dtype);
    bool reduces = wefti_collectives[request->op].reduces;
    size_t bytes;
    if (elem_bytes == 0) {
        return bad_argument(request, "invalid dtype %d: expected a weft_dtype_t",
                            (int)request->dtype);
    }
    if (reduces && request->dtype == WEFT_DTYPE_BOOL) {
        return bad_argument(request, "dtype bool cannot be reduced");
    }
    if (reduces && (uint32_t)request->reduction > WEFT_REDUCTION_MAX) {
        return bad_argument(request, "invalid reduction %d: expected a weft_reduction_t",
                            (int)request->reduction);
    }
    if (!wefti_mul_size((size_t)request->count, elem_bytes, &bytes) ||
        !wefti_mul_size(bytes, (size_t)blocks, &bytes) || bytes > SIZE_MAX / 2) {
        return bad_argument(request, "count too large: %llu x %s exceeds the address space",
                            (unsigned long long)request->count, weft_dtype_name(request->dtype));
    }
    return WEFT_OK;
}

static weft_status_t check_buffers(const wefti_request_t *request, const weft_group_t *group)
{
    const wefti_collective_t *op = &wefti_collectives[request->op];
    bool is_root = group->rank == request->root;
    bool needs_send = wefti_side_is_on(op->send, is_root);
    bool needs_recv = wefti_side_is_on(op->recv, is_root);
    if (needs_send && request->send == NULL) {
        return bad_argument(request, "send is NULL");
    }
    return needs_recv && request->recv == NULL ? bad_argument(request, "recv is NULL") : WEFT_OK;
}

static uint64_t what_of(const wefti_request_t *request)
{
    return (uint64_t)request->op | (uint64_t)request->dtype << 8 |
           (uint64_t)request->reduction << 16 | (uint64_t)request->root << WEFTI_WHAT_ROOT_SHIFT;
}

void wefti_request_fill(wefti_call_t *call, const wefti_request_t *request)
{
    call->op = request->op;
    call->send = request->send;
    call->recv = request->recv;
    call->count = request->count;
    call->dtype = request->dtype;
    call->elem_bytes = (uint32_t)weft_dtype_size_bytes(request->dtype);
    call->reduction = request->reduction;
    call->root = request->root;
    call->what = what_of(request);
    call->posted_count = request->count;
    wefti_call_measure(call);
}

static weft_status_t check(const wefti_request_t *request, const weft_group_t *group)
{
    weft_status_t status = check_types(
        request,
        wefti_collectives[request->op].send.extent == WEFT_EXTENT_VECTOR ? 1 : group->size);
    if (status == WEFT_OK && request->root >= group->size) {
        status =
            bad_argument(request, "invalid root %u for group size %u", request->root, group->size);
    }
    if (status == WEFT_OK && request->count > 0) {
        status = check_buffers(request, group);
    }
    return status;
}

static weft_status_t submit(const wefti_request_t *request, weft_group_t *group,
                            weft_stream_t *stream)
{
    wefti_call_t *call = NULL;
    if (group->calls->recorder != NULL) {
        weft_status_t checked = check(request, group);
        return checked == WEFT_OK ? group->calls->recorder->ops->record(group, request, NULL)
                                  : checked;
    }
    weft_status_t status = wefti_call_reserve(group, stream, &call);
    if (status == WEFT_OK) {
        status = check(request, group);
    }
    if (status != WEFT_OK) {
        return status;
    }
    wefti_request_fill(call, request);
    return wefti_call_submit(call, stream);
}

weft_status_t weft_all_reduce(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                              weft_reduction_t reduction, weft_group_t *group,
                              weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {WEFT_COLLECTIVE_ALL_REDUCE, send, recv, count, dtype, reduction, 0};
    return submit(&request, group, stream);
}

weft_status_t weft_reduce_scatter(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                                  weft_reduction_t reduction, weft_group_t *group,
                                  weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {
        WEFT_COLLECTIVE_REDUCE_SCATTER, send, recv, count, dtype, reduction, 0};
    return submit(&request, group, stream);
}

weft_status_t weft_all_gather(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                              weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {WEFT_COLLECTIVE_ALL_GATHER, send, recv, count, dtype,
                               WEFT_REDUCTION_SUM,         0};
    return submit(&request, group, stream);
}

weft_status_t weft_broadcast(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                             uint32_t root, weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {WEFT_COLLECTIVE_BROADCAST, send, recv, count, dtype,
                               WEFT_REDUCTION_SUM,        root};
    return submit(&request, group, stream);
}

weft_status_t weft_reduce(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                          weft_reduction_t reduction, uint32_t root, weft_group_t *group,
                          weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {WEFT_COLLECTIVE_REDUCE, send, recv, count, dtype, reduction, root};
    return submit(&request, group, stream);
}

weft_status_t weft_gather(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                          uint32_t root, weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {WEFT_COLLECTIVE_GATHER, send, recv, count, dtype,
                               WEFT_REDUCTION_SUM,     root};
    return submit(&request, group, stream);
}

weft_status_t weft_scatter(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                           uint32_t root, weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {WEFT_COLLECTIVE_SCATTER, send, recv, count, dtype,
                               WEFT_REDUCTION_SUM,      root};
    return submit(&request, group, stream);
}

weft_status_t weft_all_to_all(const void *send, void *recv, uint64_t count, weft_dtype_t dtype,
                              weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {WEFT_COLLECTIVE_ALL_TO_ALL, send, recv, count, dtype,
                               WEFT_REDUCTION_SUM,         0};
    return submit(&request, group, stream);
}

weft_status_t weft_barrier(weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {WEFT_COLLECTIVE_BARRIER, NULL, NULL, 0, WEFT_DTYPE_U8,
                               WEFT_REDUCTION_SUM,      0};
    return submit(&request, group, stream);
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
            return bad_argument(request,
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

/* send, recv: NULL where the operator has no counts on that side. */
static weft_status_t check_v(const wefti_request_t *request, const counts_t *send,
                             const counts_t *recv, const weft_group_t *group)
{
    bool needs_send, needs_recv;
    weft_status_t status = check_types(request, 1);
    if (status < 0) {
        return status;
    }
    needs_send = send != NULL ? any(send->counts, group->size) : recv->counts[group->rank] > 0;
    needs_recv = recv != NULL ? any(recv->counts, group->size) : send->counts[group->rank] > 0;
    if ((needs_send && request->send == NULL) || (needs_recv && request->recv == NULL)) {
        return bad_argument(request,
                            request->send == NULL && needs_send ? "send is NULL" : "recv is NULL");
    }
    if (request->op == WEFT_COLLECTIVE_ALL_TO_ALL_V && group->size > WEFTI_TABLE_RANKS) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "AllToAllV: group too large: %u ranks, at most %u",
                           group->size, WEFTI_TABLE_RANKS);
    }
    if (!wefti_collectives[request->op].in_place && request->send == request->recv &&
        request->send != NULL) {
        return bad_argument(request,
                            "send and recv are the same buffer; in place is not supported");
    }
    return WEFT_OK;
}

static void fill_v(wefti_call_t *call, const wefti_request_t *request)
{
    wefti_request_fill(call, request);
    if (wefti_collective_has_shared_counts(call->op)) {
        const uint64_t *counts = wefti_shared_counts(call->op, call->group->size, call->counts);
        call->posted_count = wefti_hash_words(counts, call->group->size);
    }
    if (wefti_collective_scatters(call->op)) {
        call->count = call->counts[call->group->rank]; /* this rank's block */
    }
}

static weft_status_t submit_v(const wefti_request_t *request, const counts_t *send,
                              const counts_t *recv, weft_group_t *group, weft_stream_t *stream)
{
    const wefti_recorder_t *recorder = group->calls->recorder;
    wefti_call_t *call = NULL;
    weft_status_t status = recorder != NULL ? WEFT_OK : wefti_call_reserve(group, stream, &call);
    if (status == WEFT_OK) {
        status = check_v(request, send, recv, group);
    }
    if (status != WEFT_OK) {
        return status;
    }
    uint64_t *counts = recorder != NULL ? NULL : call->counts;
    if (counts == NULL) { /* once per place in the ring, and for every one in a batch */
        counts = wefti_alloc(group->context->allocator, 4 * group->size * sizeof(uint64_t));
        status = counts != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    }
    if (status == WEFT_OK && send != NULL) {
        status = copy_counts(request, send, group->size, counts);
    }
    if (status == WEFT_OK && recv != NULL) {
        status = copy_counts(request, recv, group->size, counts + 2 * group->size);
    }
    if (recorder != NULL) {
        if (status == WEFT_OK) {
            return recorder->ops->record(group, request, counts);
        }
        wefti_free(group->context->allocator, counts);
        return status;
    }
    call->counts = counts;
    if (status < 0) {
        return status;
    }
    fill_v(call, request);
    return wefti_call_submit(call, stream);
}

weft_status_t weft_all_gather_v(const void *send, void *recv, const uint64_t *counts,
                                const uint64_t *displacements, weft_dtype_t dtype,
                                weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(counts);
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {WEFT_COLLECTIVE_ALL_GATHER_V, send, recv, 0, dtype,
                               WEFT_REDUCTION_SUM,           0};
    counts_t blocks = {counts, displacements};
    return submit_v(&request, NULL, &blocks, group, stream);
}

weft_status_t weft_reduce_scatter_v(const void *send, void *recv, const uint64_t *counts,
                                    const uint64_t *displacements, weft_dtype_t dtype,
                                    weft_reduction_t reduction, weft_group_t *group,
                                    weft_stream_t *stream)
{
    WEFT_CHECK_ARG(counts);
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {
        WEFT_COLLECTIVE_REDUCE_SCATTER_V, send, recv, 0, dtype, reduction, 0};
    counts_t blocks = {counts, displacements};
    return submit_v(&request, &blocks, NULL, group, stream);
}

weft_status_t weft_all_to_all_v(const void *send, const uint64_t *send_counts,
                                const uint64_t *send_displacements, void *recv,
                                const uint64_t *recv_counts, const uint64_t *recv_displacements,
                                weft_dtype_t dtype, weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(send_counts);
    WEFT_CHECK_ARG(recv_counts);
    WEFT_CHECK_ARG(group);
    wefti_request_t request = {WEFT_COLLECTIVE_ALL_TO_ALL_V, send, recv, 0, dtype,
                               WEFT_REDUCTION_SUM,           0};
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
