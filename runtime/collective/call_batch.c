/* SPDX-License-Identifier: Apache-2.0 */
/* weft_batch_begin and end: calls in between are recorded, and run together at the end. */
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/collective/fused.h"
#include "runtime/collective/submit.h"

typedef struct wefti_batch {
    wefti_recorder_t recorder;
    wefti_batched_t *list;
    size_t count, capacity;
    wefti_pair_t pairs[WEFTI_CALLS];
    uint32_t pair_count;
    bool pairs_submitted;
    bool shaped; /* some call has a shape */
} wefti_batch_t;

static bool is_open(const weft_group_t *group)
{
    return group->calls->batch != NULL && group->calls->recorder == &group->calls->batch->recorder;
}

/* ---- recording ---- */

static weft_status_t record(weft_group_t *group, const wefti_request_t *request, uint64_t *counts)
{
    wefti_batch_t *batch = group->calls->batch;
    weft_status_t status =
        wefti_array_reserve(group->context->allocator, &batch->list, &batch->capacity,
                            batch->count + 1, sizeof *batch->list);
    if (status < 0 || batch->count >= UINT32_MAX) {
        wefti_free(group->context->allocator, counts);
        return status < 0 ? status
                          : wefti_error(WEFT_ERR_NO_MEMORY, "batch: too many calls: at most %u",
                                        UINT32_MAX);
    }
    batch->list[batch->count++] = (wefti_batched_t){*request, counts, group->calls->shape, false};
    batch->shaped = batch->shaped || group->calls->shape.tag != 0;
    return WEFT_OK;
}

static weft_status_t record_pair(weft_group_t *group, const wefti_pair_t *pair)
{
    wefti_batch_t *batch = group->calls->batch;
    if (batch->pair_count == WEFTI_CALLS) {
        return WEFT_AGAIN;
    }
    if (pair != NULL) {
        batch->pairs[batch->pair_count++] = *pair;
    }
    return WEFT_OK;
}

/* Keeps the list's memory for the next batch. */
static void close_batch(weft_group_t *group)
{
    wefti_batch_t *batch = group->calls->batch;
    for (size_t i = 0; i < batch->count; i++) {
        wefti_free(group->context->allocator, batch->list[i].counts);
    }
    batch->count = 0;
    batch->pair_count = 0;
    batch->pairs_submitted = batch->shaped = false;
    batch->recorder.refused = WEFT_OK;
    group->calls->recorder = NULL;
}

/* Of a batch with a call that this rank refused none is made. The others learn it in the first
 * collective of theirs. Their sends and receives, which come before, cannot tell. */
static weft_status_t refuse_batch(weft_group_t *group, weft_stream_t *stream)
{
    wefti_batch_t *batch = group->calls->batch;
    wefti_recorder_t *recorder = &batch->recorder;
    group->calls->recorder = NULL;
    weft_status_t status = wefti_error_adopt(recorder->refused, recorder->why);
    status = group->size > 1 && (batch->pair_count > 0 || recorder->refused_pair)
                 ? wefti_call_end_group(group, status, recorder->why)
                 : wefti_call_refuse(group, stream, status);
    if (status == WEFT_AGAIN) {
        group->calls->recorder = recorder;
    } else {
        close_batch(group);
    }
    return status;
}

weft_status_t weft_batch_begin(weft_group_t *group)
{
    static const wefti_recorder_ops_t ops = {"batch", record, record_pair, close_batch};
    WEFT_CHECK_ARG(group);
    weft_status_t status = wefti_recorder_check(group, "begin a batch");
    if (status < 0) {
        return status;
    }
    if (group->calls->batch == NULL) {
        group->calls->batch = wefti_alloc(group->context->allocator, sizeof *group->calls->batch);
        if (group->calls->batch == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        group->calls->batch->recorder.ops = &ops;
    }
    group->calls->recorder = &group->calls->batch->recorder;
    return WEFT_OK;
}

void wefti_batch_free(weft_group_t *group)
{
    if (group->calls->batch != NULL) {
        wefti_free(group->context->allocator, group->calls->batch->list);
        wefti_free(group->context->allocator, group->calls->batch);
    }
}

static weft_status_t check_open(const weft_group_t *group)
{
    return is_open(group) ? WEFT_OK
                          : wefti_error(WEFT_ERR_STATE,
                                        "group: no batch is open; call weft_batch_begin first");
}

weft_status_t weft_batch_cancel(weft_group_t *group)
{
    WEFT_CHECK_ARG(group);
    weft_status_t status = check_open(group);
    if (status < 0) {
        return status;
    }
    bool submitted = group->calls->batch->pairs_submitted;
    for (size_t i = 0; i < group->calls->batch->count; i++) {
        submitted = submitted || group->calls->batch->list[i].submitted;
    }
    if (submitted) {
        return wefti_error(WEFT_ERR_STATE, "batch: some of its calls are already submitted; call "
                                           "weft_batch_end again");
    }
    const wefti_recorder_t *recorder = &group->calls->batch->recorder;
    bool told = recorder->refused == WEFT_OK || refuse_batch(group, NULL) != WEFT_AGAIN;
    if (!told) { /* there is no room for the call that says so */
        wefti_call_end_group(group, recorder->refused, recorder->why);
    }
    close_batch(group);
    return WEFT_OK;
}

/* ---- small calls of a kind as one ---- */

/*
 * Packed, a block has at most this much: with the list it fits a call slot, so that the whole batch
 * costs one wait. Beyond that copies cost as much as calls (tests/bench/bench_fuser.c).
 */
static size_t most_fused_bytes(const wefti_batch_t *batch)
{
    return WEFTI_SLOT_DATA - wefti_fused_bytes_of_list(WEFTI_FUSED_MEMBERS, batch->shaped);
}

/* One packed buffer serves both sides. */
static bool is_packed_in_place(weft_collective_t op)
{
    const wefti_collective_t *shape = wefti_collective_of(op);
    return shape->send.extent == shape->recv.extent;
}

static bool same_kind(const wefti_request_t *a, const wefti_request_t *b)
{
    return a->op == b->op && a->dtype == b->dtype && a->reduction == b->reduction &&
           a->root == b->root;
}

/* As many of the batch from first on as go into one call with it; 1: not fused. */
static uint32_t collect(const weft_group_t *group, const wefti_batch_t *batch, size_t first,
                        uint32_t *out_members)
{
    const wefti_request_t *kind = &batch->list[first].request;
    uint64_t total = 0;
    uint32_t count = 0;
    out_members[0] = (uint32_t)first;
    if (group->size == 1 || !wefti_collective_has_one_count(kind->op)) {
        return 1;
    }
    uint32_t blocks = wefti_collective_is_vector(kind->op) ? 1 : group->size;
    uint64_t room = most_fused_bytes(batch) / blocks / weft_dtype_size_bytes(kind->dtype);
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

/* A fused call has fewer than 2^16 elements. */
static uint64_t pack_shape(const wefti_shape_note_t *shape)
{
    uint64_t packed = UINT64_MAX;
    for (uint32_t i = 0; shape->tag != 0 && shape->rank <= 4 && i < shape->rank; i++) {
        uint64_t dim = shape->dims[i] < UINT16_MAX ? shape->dims[i] : UINT16_MAX - 1;
        packed = (packed & ~(0xffffull << 16 * i)) | dim << 16 * i;
    }
    return packed;
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
        WEFT_RETURN_IF_NO_MEMORY(call->fused_kept != NULL);
    }
    wefti_fused_t *fused = call->fused_kept;
    request.count = 0;
    fused->count = count;
    fused->shaped = false;
    for (uint32_t i = 0; i < count; i++) {
        const wefti_request_t *from = &batch->list[members[i]].request;
        const wefti_shape_note_t *shape = &batch->list[members[i]].shape;
        fused->members[i] = (wefti_fused_member_t){from->send, from->recv, from->count,
                                                   members[i], shape->tag, pack_shape(shape)};
        request.count += from->count;
        fused->shaped = fused->shaped || shape->tag != 0;
        hash = wefti_hash_word(hash, from->count | (uint64_t)shape->tag << WEFTI_COUNT_SHAPE_SHIFT);
    }
    size_t block = (size_t)request.count * weft_dtype_size_bytes(request.dtype);
    size_t send_bytes = wefti_align_up(block * wefti_side_blocks(op->send, call->group->size), 64);
    size_t recv_bytes = in_place ? 0 : block * wefti_side_blocks(op->recv, call->group->size);
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(allocator, &fused->packed, &fused->capacity,
                                             send_bytes + recv_bytes + 64, 1));
    request.send = fused->packed;
    request.recv = in_place ? fused->packed : fused->packed + send_bytes;
    wefti_request_fill(call, &request);
    call->what |= WEFTI_WHAT_FUSED;
    call->posted_count = hash;
    call->fused = fused;
    return WEFT_OK;
}

static weft_status_t submit_fused(weft_group_t *group, wefti_batch_t *batch,
                                  const uint32_t *members, uint32_t count, weft_stream_t *stream)
{
    wefti_call_t *call = NULL;
    weft_status_t status = wefti_call_reserve(group, stream, &call);
    if (status == WEFT_OK) {
        status = prepare(call, batch, members, count);
    }
    return status == WEFT_OK ? wefti_call_submit(call, stream) : status;
}

/* ---- the end ---- */

static weft_status_t submit_pairs(weft_group_t *group, const wefti_batch_t *batch,
                                  weft_stream_t *stream)
{
    wefti_call_t *call = NULL;
    weft_status_t status = wefti_call_reserve(group, stream, &call);
    /* The call owns its pairs: the next batch must not overwrite those in flight. */
    if (status == WEFT_OK && call->pairs.batch == NULL) {
        call->pairs.batch =
            wefti_alloc(group->context->allocator, WEFTI_CALLS * sizeof *call->pairs.batch);
        status = call->pairs.batch != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    }
    if (status != WEFT_OK) {
        return status;
    }
    memcpy(call->pairs.batch, batch->pairs, batch->pair_count * sizeof *call->pairs.batch);
    wefti_pairs_fill(call, call->pairs.batch, batch->pair_count);
    return wefti_call_submit(call, stream);
}

static weft_status_t submit_collectives(weft_group_t *group, weft_stream_t *stream)
{
    wefti_batch_t *batch = group->calls->batch;
    uint32_t members[WEFTI_FUSED_MEMBERS];
    weft_status_t status = WEFT_OK;
    for (size_t i = 0; status == WEFT_OK && i < batch->count; i++) {
        if (batch->list[i].submitted) {
            continue;
        }
        uint32_t count = collect(group, batch, i, members);
        group->calls->shape = count > 1 ? (wefti_shape_note_t){0} : batch->list[i].shape;
        status = count > 1 ? submit_fused(group, batch, members, count, stream)
                           : wefti_request_submit(&batch->list[i], group, stream);
        for (uint32_t k = 0; status == WEFT_OK && k < count; k++) {
            batch->list[members[k]].submitted = true;
        }
        if (status < 0) {
            status = wefti_error_prefix(status, "batch: call %zu", i);
        }
    }
    group->calls->shape.tag = 0; /* of a call that was not submitted */
    return status;
}

weft_status_t weft_batch_end(weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    weft_status_t status = check_open(group);
    if (status < 0) {
        return status;
    }
    wefti_batch_t *batch = group->calls->batch;
    if (batch->recorder.refused != WEFT_OK) {
        return refuse_batch(group, stream);
    }
    group->calls->recorder = NULL; /* what is submitted now is not recorded again */
    if (batch->pair_count > 0 && !batch->pairs_submitted) {
        status = submit_pairs(group, batch, stream);
        batch->pairs_submitted = status == WEFT_OK;
    }
    if (status == WEFT_OK) {
        status = submit_collectives(group, stream);
    }
    if (status == WEFT_AGAIN) {
        group->calls->recorder = &batch->recorder; /* the batch stays open: end it again */
        return status;
    }
    close_batch(group);
    if (status == WEFT_ERR_NO_MEMORY) { /* the others have sent their part of it off */
        return wefti_group_fail(group, status);
    }
    return status;
}
