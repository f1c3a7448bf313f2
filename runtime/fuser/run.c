/* SPDX-License-Identifier: Apache-2.0 */
/* What of the step can go to the stream goes there: a state machine that never blocks. */
#include "runtime/fuser/fuser.h"

#include "runtime/base/error.h"

static bool leads(const weft_fuser_t *fuser)
{
    return fuser->group->rank == 0;
}

static weft_status_t handed(weft_fuser_t *fuser, weft_status_t status, wefti_fuser_phase_t next)
{
    if (status == WEFT_OK) {
        fuser->phase = next;
        fuser->target =
            atomic_load_explicit(&fuser->stream->tail.signal.value, memory_order_relaxed);
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
    uint32_t done = atomic_load_explicit(&fuser->stream->done.signal.value, memory_order_acquire);
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
                    WEFTI_FUSER_PIECES);
    }
    return tell(fuser, fuser->list, (size_t)fuser->header.list_bytes, WEFTI_FUSER_LIST_DUE);
}

static weft_status_t take_list(weft_fuser_t *fuser)
{
    weft_status_t status = arrived(fuser);
    if (status == WEFT_OK) {
        fuser->phase = WEFTI_FUSER_PIECES;
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

/* Where the members are in this step, and which pieces that packs. */
static void locate(const weft_fuser_t *fuser, wefti_fuser_bucket_t *bucket)
{
    wefti_bucket_t *base = &bucket->base;
    for (size_t i = 0; i < bucket->member_count; i++) {
        const wefti_fuser_member_t *member = &bucket->members[i];
        uint8_t *address = fuser->tensors[member->tensor].address;
        base->parts[i].recv = address != NULL ? address + member->first * base->elem_bytes : NULL;
        base->parts[i].send = base->parts[i].recv;
    }
    for (uint32_t i = 0; i < base->piece_count; i++) {
        base->pieces[i].packed = !wefti_bucket_piece_is_range(&base->pieces[i]);
    }
}

static weft_status_t next_bucket(weft_fuser_t *fuser)
{
    fuser->at_bucket++;
    fuser->cursor = (wefti_bucket_cursor_t){0};
    fuser->phase = fuser->learning ? WEFTI_FUSER_HEADER : WEFTI_FUSER_PIECES;
    return WEFT_OK;
}

static void count_piece(weft_fuser_t *fuser, const wefti_bucket_piece_t *piece)
{
    const uint64_t bytes = piece->count * piece->bucket->elem_bytes;
    fuser->stats.call_count++;
    fuser->stats.reduced_bytes += bytes;
    fuser->stats.copied_bytes += piece->packed ? 2 * bytes : 0;
    fuser->reduced_target = fuser->target;
}

static weft_status_t advance_piece(weft_fuser_t *fuser)
{
    if (fuser->at_bucket == fuser->bucket_count) {
        return WEFT_IN_PROGRESS; /* steps after the first: all buckets were handed over */
    }
    wefti_fuser_bucket_t *bucket = fuser->buckets[fuser->at_bucket];
    const uint32_t piece = fuser->cursor.piece;
    if (bucket->missing > 0) {
        return fuser->ending ? name_missing(fuser, bucket) : WEFT_IN_PROGRESS;
    }
    if (piece == bucket->base.piece_count) {
        return next_bucket(fuser);
    }
    if (piece == 0 && fuser->cursor.phase == WEFTI_BUCKET_PACK) {
        locate(fuser, bucket);
    }
    weft_status_t status = handed(
        fuser, wefti_bucket_advance(&bucket->base, &fuser->cursor, fuser->group, fuser->stream),
        WEFTI_FUSER_PIECES);
    if (status == WEFT_OK && fuser->cursor.piece > piece) {
        count_piece(fuser, &bucket->base.pieces[piece]);
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
    case WEFTI_FUSER_PIECES:
        return advance_piece(fuser);
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
    fuser->at_bucket = 0;
    fuser->cursor = (wefti_bucket_cursor_t){0};
    fuser->ending = false;
    fuser->phase = fuser->learning ? WEFTI_FUSER_HEADER : WEFTI_FUSER_PIECES;
}
