/* SPDX-License-Identifier: Apache-2.0 */
/* Small collectives of a batch as one: members' blocks lie one after the other in a packed buffer.
 */
#include "runtime/base/hash.h"
#include "runtime/collective/batch.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/error.h"

/*
 * Packed, a block has at most this much: with the list it fits a posting, so that the whole batch
 * costs one wait. Beyond that copies cost as much as calls (tests/bench/bench_fuser.c).
 */
#define FUSED_MAX_BYTES (WEFTI_POSTING_DATA - WEFTI_FUSED_LIST_BYTES)

/* One packed buffer serves both sides. */
static bool is_packed_in_place(weft_collective_t op)
{
    const wefti_collective_t *shape = wefti_collective_of(op);
    return shape->send.extent == shape->recv.extent;
}

/* ---- which ---- */

static bool same_kind(const wefti_request_t *a, const wefti_request_t *b)
{
    return a->op == b->op && a->dtype == b->dtype && a->reduction == b->reduction &&
           a->root == b->root;
}

uint32_t wefti_fused_collect(const weft_group_t *group, const wefti_batch_t *batch, size_t first,
                             uint32_t *out_members)
{
    const wefti_request_t *kind = &batch->list[first].request;
    uint64_t total = 0;
    uint32_t count = 0;
    out_members[0] = (uint32_t)first;
    if (group->size == 1 || group->context->device != NULL ||
        !wefti_collective_has_one_count(kind->op)) {
        return 1;
    }
    uint32_t blocks = wefti_collective_is_vector(kind->op) ? 1 : group->size;
    uint64_t room = FUSED_MAX_BYTES / blocks / weft_dtype_size_bytes(kind->dtype);
    for (size_t i = first; i < batch->count && count < WEFTI_FUSED_MEMBERS; i++) {
        const wefti_batched_t *other = &batch->list[i];
        if (other->submitted || !same_kind(&other->request, kind)) {
            continue;
        }
        if (other->request.count > room - total) {
            break; /* calls of a kind stay in order */
        }
        total += other->request.count;
        out_members[count++] = (uint32_t)i;
    }
    return count > 0 ? count : 1;
}

/* ---- the call ---- */

static weft_status_t reserve_packed(const weft_allocator_t *allocator, wefti_fused_t *fused,
                                    size_t bytes)
{
    if (fused->capacity >= bytes) {
        return WEFT_OK;
    }
    wefti_free(allocator, fused->packed);
    fused->capacity = 0;
    fused->packed = wefti_alloc(allocator, bytes);
    fused->capacity = fused->packed != NULL ? bytes : 0;
    return fused->packed != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static weft_status_t prepare(wefti_call_t *call, const wefti_batch_t *batch,
                             const uint32_t *members, uint32_t count)
{
    const weft_allocator_t *allocator = call->group->context->allocator;
    wefti_request_t request = batch->list[members[0]].request;
    uint64_t hash = WEFTI_HASH_START;
    const wefti_collective_t *op = wefti_collective_of(request.op);
    bool in_place = is_packed_in_place(request.op);
    if (call->fused_kept == NULL) {
        call->fused_kept = wefti_alloc(allocator, sizeof *call->fused_kept);
        if (call->fused_kept == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
    }
    wefti_fused_t *fused = call->fused_kept;
    request.count = 0;
    fused->count = count;
    for (uint32_t i = 0; i < count; i++) {
        const wefti_request_t *from = &batch->list[members[i]].request;
        fused->members[i] = (wefti_fused_member_t){from->send, from->recv, from->count, members[i]};
        request.count += from->count;
        hash = wefti_hash_word(hash, from->count);
    }
    size_t block = (size_t)request.count * weft_dtype_size_bytes(request.dtype);
    size_t send_bytes = wefti_align_up(block * wefti_side_blocks(op->send, call->group->size), 64);
    size_t recv_bytes = in_place ? 0 : block * wefti_side_blocks(op->recv, call->group->size);
    weft_status_t status = reserve_packed(allocator, fused, send_bytes + recv_bytes + 64);
    if (status == WEFT_OK) {
        request.send = fused->packed;
        request.recv = in_place ? fused->packed : fused->packed + send_bytes;
        wefti_request_fill(call, &request);
        call->what |= WEFTI_WHAT_FUSED;
        call->posted_count = hash;
        call->fused = fused;
    }
    return status;
}

weft_status_t wefti_fused_submit(weft_group_t *group, wefti_batch_t *batch, const uint32_t *members,
                                 uint32_t count, weft_stream_t *stream)
{
    wefti_call_t *call = NULL;
    weft_status_t status = wefti_call_reserve(group, stream, &call);
    if (status == WEFT_OK) {
        status = prepare(call, batch, members, count);
    }
    return status == WEFT_OK ? wefti_call_submit(call, stream) : status;
}

void wefti_fused_free(const weft_allocator_t *allocator, wefti_fused_t *fused)
{
    if (fused != NULL) {
        wefti_free(allocator, fused->packed);
        wefti_free(allocator, fused);
    }
}

/* ---- while it runs ---- */

void wefti_fused_pack(const wefti_call_t *call)
{
    const wefti_fused_t *fused = call->fused;
    uint8_t *to = fused->packed;
    uint32_t blocks = wefti_call_send_shape(call).blocks;
    for (uint32_t block = 0; block < blocks; block++) {
        for (uint32_t i = 0; i < fused->count; i++) {
            const wefti_fused_member_t *member = &fused->members[i];
            size_t bytes = (size_t)member->count * call->elem_bytes;
            if (bytes > 0) {
                memcpy(to, member->send + block * bytes, bytes);
                to += bytes;
            }
        }
    }
}

void wefti_fused_unpack(const wefti_call_t *call)
{
    const wefti_fused_t *fused = call->fused;
    const uint8_t *from = call->recv;
    uint32_t blocks = wefti_call_recv_shape(call).blocks;
    for (uint32_t block = 0; block < blocks; block++) {
        for (uint32_t i = 0; i < fused->count; i++) {
            const wefti_fused_member_t *member = &fused->members[i];
            size_t bytes = (size_t)member->count * call->elem_bytes;
            if (bytes > 0) {
                memcpy(member->recv + block * bytes, from, bytes);
                from += bytes;
            }
        }
    }
}

void wefti_fused_post(const wefti_call_t *call, wefti_posting_t *posting)
{
    const wefti_fused_t *fused = call->fused;
    wefti_fused_list_t *list = (wefti_fused_list_t *)(void *)posting->data;
    list->count = fused->count;
    for (uint32_t i = 0; i < fused->count; i++) {
        list->members[i] = (uint64_t)fused->members[i].index << 32 | fused->members[i].count;
    }
}

/* ---- when ranks disagree ---- */

bool wefti_fused_difference(const wefti_posting_t *low, uint32_t low_rank,
                            const wefti_posting_t *high, uint32_t high_rank, char *text,
                            size_t bytes)
{
    /* A peer's memory: values read from it are only printed. */
    const wefti_fused_list_t *a = (const wefti_fused_list_t *)(const void *)low->data;
    const wefti_fused_list_t *b = (const wefti_fused_list_t *)(const void *)high->data;
    uint32_t a_count = a->count < WEFTI_FUSED_MEMBERS ? a->count : WEFTI_FUSED_MEMBERS;
    uint32_t b_count = b->count < WEFTI_FUSED_MEMBERS ? b->count : WEFTI_FUSED_MEMBERS;
    for (uint32_t i = 0; i < a_count && i < b_count; i++) {
        uint64_t x = a->members[i], y = b->members[i];
        if ((uint32_t)x != (uint32_t)y) {
            snprintf(text, bytes,
                     "call %u of the batch has %u elements on rank %u, call %u of the batch has %u "
                     "on rank %u",
                     (unsigned)(x >> 32), (unsigned)x, low_rank, (unsigned)(y >> 32), (unsigned)y,
                     high_rank);
            return true;
        }
    }
    if (a_count != b_count) {
        bool a_longer = a_count > b_count;
        uint64_t more = a_longer ? a->members[b_count] : b->members[a_count];
        snprintf(text, bytes,
                 "call %u of the batch, with %u elements, exists on rank %u but not on "
                 "rank %u",
                 (unsigned)(more >> 32), (unsigned)more, a_longer ? low_rank : high_rank,
                 a_longer ? high_rank : low_rank);
        return true;
    }
    return false;
}
