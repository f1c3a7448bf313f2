/* SPDX-License-Identifier: Apache-2.0 */
/* What of the step can go to the stream goes there: a state machine that never blocks. */
#include "runtime/fuser/fuser.h"

#include <string.h>

#include "runtime/base/error.h"

/* ---- on the stream ---- */

/* Copies between a piece's place in the buffer and its tensors. */
static weft_status_t move(wefti_fuser_piece_t *piece, bool into_buffer)
{
    const wefti_fuser_bucket_t *bucket = piece->bucket;
    weft_fuser_t *fuser = piece->fuser;
    uint64_t at = piece->first, end = piece->first + piece->count;
    uint8_t *buffer = piece->address;
    for (uint32_t i = piece->member; at < end; i++) {
        const wefti_fuser_member_t *member = &bucket->members[i];
        uint64_t skip = at - member->at, count = member->count - skip;
        count = count < end - at ? count : end - at;
        size_t bytes = (size_t)(count * bucket->elem_bytes);
        if (bytes > 0) {
            uint8_t *tensor = member->address + skip * bucket->elem_bytes;
            memcpy(into_buffer ? buffer : tensor, into_buffer ? tensor : buffer, bytes);
            buffer += bytes;
            at += count;
        }
    }
    /* relaxed: a statistic; its readers have waited for the stream */
    atomic_fetch_add_explicit(&fuser->copied_bytes, piece->count * bucket->elem_bytes,
                              memory_order_relaxed);
    return WEFT_OK;
}

static weft_status_t pack(void *piece)
{
    return move(piece, true);
}

static weft_status_t unpack(void *piece)
{
    return move(piece, false);
}

/* ---- handing over ---- */

static bool leads(const weft_fuser_t *fuser)
{
    return fuser->group->rank == 0;
}

static weft_status_t handed(weft_fuser_t *fuser, weft_status_t status, wefti_fuser_phase_t next)
{
    if (status == WEFT_OK) {
        fuser->phase = next;
        fuser->target = atomic_load_explicit(&fuser->stream->tail.value, memory_order_relaxed);
    }
    return status;
}

static weft_status_t tell(weft_fuser_t *fuser, void *message, size_t bytes,
                          wefti_fuser_phase_t next)
{
    weft_status_t status =
        weft_broadcast(message, message, bytes, WEFT_DTYPE_U8, 0, fuser->group, fuser->stream);
    return handed(fuser, status, next);
}

static weft_status_t start_header(weft_fuser_t *fuser)
{
    if (!leads(fuser)) {
        return tell(fuser, &fuser->header, sizeof fuser->header, WEFTI_FUSER_HEADER_DUE);
    }
    if (fuser->at_bucket < fuser->bucket_count) {
        return tell(fuser, fuser->buckets[fuser->at_bucket]->message, sizeof fuser->header,
                    WEFTI_FUSER_LIST);
    }
    if (!fuser->ending) {
        return WEFT_IN_PROGRESS;
    }
    wefti_fuser_end_header(&fuser->header);
    return tell(fuser, &fuser->header, sizeof fuser->header, WEFTI_FUSER_BARRIER);
}

/* What was asked for is there: WEFT_OK. */
static weft_status_t arrived(weft_fuser_t *fuser)
{
    /* acquire: the message is visible */
    uint32_t done = atomic_load_explicit(&fuser->stream->done.value, memory_order_acquire);
    if (!wefti_signal_reached(done, fuser->target)) {
        return WEFT_IN_PROGRESS;
    }
    return wefti_fault_get(&fuser->stream->fault);
}

static weft_status_t take_header(weft_fuser_t *fuser)
{
    weft_status_t status = arrived(fuser);
    if (status != WEFT_OK) {
        return status;
    }
    if (!wefti_fuser_header_is_good(&fuser->header)) {
        return wefti_error(WEFT_ERR_FORMAT, "malformed message from rank %u: bucket header",
                           fuser->group->ranks[0]);
    }
    if (fuser->header.end != 0) {
        fuser->phase = WEFTI_FUSER_END;
        return WEFT_OK;
    }
    fuser->phase = WEFTI_FUSER_LIST;
    return wefti_array_reserve(fuser->context->allocator, &fuser->list, &fuser->list_capacity,
                               (size_t)fuser->header.list_bytes, 1);
}

static weft_status_t start_list(weft_fuser_t *fuser)
{
    if (leads(fuser)) {
        const wefti_fuser_bucket_t *bucket = fuser->buckets[fuser->at_bucket];
        return tell(fuser, bucket->message + sizeof(wefti_fuser_header_t), bucket->list_bytes,
                    WEFTI_FUSER_PACK);
    }
    return tell(fuser, fuser->list, (size_t)fuser->header.list_bytes, WEFTI_FUSER_LIST_DUE);
}

static weft_status_t take_list(weft_fuser_t *fuser)
{
    weft_status_t status = arrived(fuser);
    if (status == WEFT_OK) {
        fuser->phase = WEFTI_FUSER_PACK;
        status = wefti_fuser_adopt(fuser, fuser->list, (size_t)fuser->header.list_bytes);
    }
    return status;
}

weft_status_t wefti_fuser_missing(const weft_fuser_t *fuser, const wefti_fuser_tensor_t *tensor)
{
    return wefti_error(
        WEFT_ERR_MISMATCH, "rank %u did not add tensor \"%.200s\" in step %llu of its fuser",
        wefti_fuser_rank(fuser), tensor->name, (unsigned long long)fuser->stats.step_count + 1);
}

static weft_status_t name_missing(const weft_fuser_t *fuser, const wefti_fuser_bucket_t *bucket)
{
    for (size_t i = 0; i < bucket->member_count; i++) {
        const wefti_fuser_tensor_t *tensor = &fuser->tensors[bucket->members[i].tensor];
        if (!tensor->added) {
            return wefti_fuser_missing(fuser, tensor);
        }
    }
    return wefti_error(WEFT_ERR_INTERNAL, "fuser: no tensor of the bucket is missing");
}

/* The address of the piece if it is one range of memory, which is then used in place; else NULL. */
static uint8_t *range_of(const wefti_fuser_piece_t *piece)
{
    const wefti_fuser_bucket_t *bucket = piece->bucket;
    uint64_t at = piece->first, end = piece->first + piece->count;
    uint8_t *range = NULL, *next = NULL;
    for (uint32_t i = piece->member; at < end; i++) {
        const wefti_fuser_member_t *member = &bucket->members[i];
        if (member->count == 0) {
            continue;
        }
        uint8_t *address = member->address + (at - member->at) * bucket->elem_bytes;
        range = range == NULL ? address : range;
        if (next != NULL && address != next) {
            return NULL;
        }
        next = address + (member->at + member->count - at) * bucket->elem_bytes;
        at = member->at + member->count;
    }
    return range;
}

/* Where the members are. The stream's thread must not look at tensors, whose array may grow. */
static void locate(const weft_fuser_t *fuser, const wefti_fuser_bucket_t *bucket)
{
    for (size_t i = 0; i < bucket->member_count; i++) {
        wefti_fuser_member_t *member = &bucket->members[i];
        uint8_t *address = fuser->tensors[member->tensor].address;
        member->address = address != NULL ? address + member->first * bucket->elem_bytes : NULL;
    }
}

static weft_status_t next_bucket(weft_fuser_t *fuser)
{
    fuser->at_bucket++;
    fuser->at_piece = 0;
    fuser->phase = fuser->learning ? WEFTI_FUSER_HEADER : WEFTI_FUSER_PACK;
    return WEFT_OK;
}

static weft_status_t start_piece(weft_fuser_t *fuser)
{
    if (fuser->at_bucket == fuser->bucket_count) {
        return WEFT_IN_PROGRESS; /* steps after the first: all buckets were handed over */
    }
    const wefti_fuser_bucket_t *bucket = fuser->buckets[fuser->at_bucket];
    if (bucket->missing > 0) {
        return fuser->ending ? name_missing(fuser, bucket) : WEFT_IN_PROGRESS;
    }
    if (fuser->at_piece == bucket->piece_count) {
        return next_bucket(fuser);
    }
    if (fuser->at_piece == 0) {
        locate(fuser, bucket);
    }
    wefti_fuser_piece_t *piece = &bucket->pieces[fuser->at_piece];
    piece->address = range_of(piece);
    if (piece->address != NULL) {
        fuser->phase = WEFTI_FUSER_REDUCE;
        return WEFT_OK;
    }
    piece->address = fuser->buffer;
    return handed(fuser, weft_stream_launch_host(fuser->stream, pack, piece), WEFTI_FUSER_REDUCE);
}

static weft_status_t reduce_piece(weft_fuser_t *fuser)
{
    const wefti_fuser_bucket_t *bucket = fuser->buckets[fuser->at_bucket];
    wefti_fuser_piece_t *piece = &bucket->pieces[fuser->at_piece];
    weft_status_t status =
        weft_all_reduce(piece->address, piece->address, piece->count, bucket->dtype,
                        bucket->reduction, fuser->group, fuser->stream);
    if (status == WEFT_OK) {
        fuser->stats.call_count++;
        fuser->stats.reduced_bytes += piece->count * bucket->elem_bytes;
    }
    return handed(fuser, status, WEFTI_FUSER_UNPACK);
}

static weft_status_t finish_piece(weft_fuser_t *fuser)
{
    wefti_fuser_piece_t *piece = &fuser->buckets[fuser->at_bucket]->pieces[fuser->at_piece];
    weft_status_t status = WEFT_OK;
    if (piece->address == fuser->buffer) {
        status = weft_stream_launch_host(fuser->stream, unpack, piece);
    }
    status = handed(fuser, status, WEFTI_FUSER_PACK);
    if (status == WEFT_OK) {
        fuser->reduced_target = fuser->target;
        fuser->at_piece++;
    }
    return status;
}

static weft_status_t advance(weft_fuser_t *fuser)
{
    weft_status_t status;
    switch (fuser->phase) {
    case WEFTI_FUSER_HEADER:
        return start_header(fuser);
    case WEFTI_FUSER_HEADER_DUE:
        return take_header(fuser);
    case WEFTI_FUSER_LIST:
        return start_list(fuser);
    case WEFTI_FUSER_LIST_DUE:
        return take_list(fuser);
    case WEFTI_FUSER_PACK:
        return start_piece(fuser);
    case WEFTI_FUSER_REDUCE:
        return reduce_piece(fuser);
    case WEFTI_FUSER_UNPACK:
        return finish_piece(fuser);
    case WEFTI_FUSER_END: /* not rank 0; every rank must have had the time to add everything */
        status = fuser->ending ? wefti_fuser_check_listed(fuser) : WEFT_IN_PROGRESS;
        fuser->phase = status == WEFT_OK ? WEFTI_FUSER_BARRIER : fuser->phase;
        return status;
    case WEFTI_FUSER_BARRIER:
        return handed(fuser, weft_barrier(fuser->group, fuser->stream), WEFTI_FUSER_OVER);
    case WEFTI_FUSER_OVER:
        break;
    }
    return WEFT_IN_PROGRESS;
}

weft_status_t wefti_fuser_pump(weft_fuser_t *fuser)
{
    weft_status_t status;
    do {
        status = advance(fuser);
    } while (status == WEFT_OK);
    /* full (WEFT_AGAIN) or waiting for something: both end by progress of the stream or more adds
     */
    return status > 0 ? WEFT_OK : status;
}

bool wefti_fuser_all_handed_over(const weft_fuser_t *fuser)
{
    return fuser->learning ? fuser->phase == WEFTI_FUSER_OVER
                           : fuser->at_bucket == fuser->bucket_count;
}

void wefti_fuser_rewind(weft_fuser_t *fuser)
{
    for (size_t i = 0; i < fuser->tensor_count; i++) {
        fuser->tensors[i].added = false;
    }
    for (size_t i = 0; i < fuser->bucket_count; i++) {
        fuser->buckets[i]->missing = (uint32_t)fuser->buckets[i]->member_count;
    }
    fuser->added = 0;
    fuser->at_bucket = fuser->at_piece = 0;
    fuser->ending = false;
    fuser->phase = fuser->learning ? WEFTI_FUSER_HEADER : WEFTI_FUSER_PACK;
}
