/* SPDX-License-Identifier: Apache-2.0 */
/* What of the step can go to the stream goes there: a state machine that never blocks. */
#include "runtime/fuser/fuser.h"

#include "runtime/base/error.h"

static weft_status_t handed(weft_fuser_t *fuser, weft_status_t status, wefti_fuser_phase_t next)
{
    if (status == WEFT_OK) {
        fuser->phase = next;
        wefti_bucket_runner_mark(&fuser->runner);
    }
    return status;
}

static weft_status_t start_frame(weft_fuser_t *fuser)
{
    const wefti_bucket_runner_t *runner = &fuser->runner;
    if (runner->group->rank == 0) {
        if (fuser->sent_bytes == fuser->log_bytes && !fuser->ending) {
            return WEFT_IN_PROGRESS;
        }
        wefti_fuser_fill_frame(fuser);
    }
    wefti_group_own_calls(runner->group, true);
    weft_status_t status = weft_broadcast(&fuser->frame, &fuser->frame, sizeof fuser->frame,
                                          WEFT_DTYPE_U8, 0, runner->group, runner->stream);
    wefti_group_own_calls(runner->group, false);
    status = handed(fuser, status, WEFTI_FUSER_FRAME_DUE);
    if (status == WEFT_OK && runner->group->rank == 0) {
        fuser->sent_bytes += fuser->frame.bytes;
    }
    return status;
}

static weft_status_t take_frame(weft_fuser_t *fuser)
{
    const weft_stream_t *stream = fuser->runner.stream;
    /* acquire: the frame is visible */
    uint32_t done = atomic_load_explicit(&stream->done.signal.value, memory_order_acquire);
    if (!wefti_signal_reached(done, fuser->runner.target)) {
        return WEFT_IN_PROGRESS;
    }
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&stream->fault));
    fuser->phase = WEFTI_FUSER_BUCKETS;
    return wefti_fuser_read_frame(fuser);
}

static weft_status_t name_missing(const weft_fuser_t *fuser, const wefti_fuser_bucket_t *bucket)
{
    const wefti_fuser_tensor_t *tensor = bucket->first;
    while (wefti_fuser_has_added(fuser, tensor)) {
        tensor = tensor->next_member;
    }
    return wefti_error(
        WEFT_ERR_MISMATCH, "rank %u did not add tensor \"%.200s\" in step %llu of its fuser",
        wefti_fuser_rank(fuser), tensor->name, (unsigned long long)fuser->stats.step_count + 1);
}

/* Where the members are in this step, and which pieces that packs. */
static weft_status_t locate(weft_fuser_t *fuser, wefti_fuser_bucket_t *bucket)
{
    wefti_bucket_t *base = &bucket->base;
    if (base->pieces == NULL) {
        WEFT_RETURN_IF_ERROR(wefti_fuser_cut(fuser, bucket));
    }
    for (uint32_t i = 0; i < base->part_count; i++) {
        base->parts[i].send = base->parts[i].recv = bucket->members[i]->address;
    }
    for (uint32_t i = 0; i < base->piece_count; i++) {
        base->pieces[i].packed = !wefti_bucket_piece_is_range(&base->pieces[i]);
    }
    return WEFT_OK;
}

static weft_status_t next_bucket(weft_fuser_t *fuser, wefti_fuser_bucket_t *bucket)
{
    bucket->missing = bucket->base.part_count; /* in the next step */
    fuser->handed_over += bucket->base.part_count;
    fuser->at = &bucket->next;
    fuser->cursor = (wefti_bucket_cursor_t){0};
    return WEFT_OK;
}

static void count_piece(weft_fuser_t *fuser, const wefti_bucket_piece_t *piece)
{
    const uint64_t bytes = piece->count * piece->bucket->elem_bytes;
    fuser->stats.call_count++;
    fuser->stats.reduced_bytes += bytes;
    fuser->stats.copied_bytes += piece->packed ? 2 * bytes : 0;
    fuser->reduced_target = fuser->runner.target;
}

static weft_status_t advance_bucket(weft_fuser_t *fuser, wefti_fuser_bucket_t *bucket)
{
    const wefti_bucket_runner_t *runner = &fuser->runner;
    const uint32_t piece = fuser->cursor.piece;
    if (bucket->missing > 0) {
        return fuser->ending ? name_missing(fuser, bucket) : WEFT_IN_PROGRESS;
    }
    if (piece == 0 && fuser->cursor.phase == WEFTI_BUCKET_PACK) {
        WEFT_RETURN_IF_ERROR(locate(fuser, bucket));
    }
    if (piece == bucket->base.piece_count) {
        return next_bucket(fuser, bucket);
    }
    weft_status_t status = handed(
        fuser, wefti_bucket_advance(&bucket->base, &fuser->cursor, runner->group, runner->stream),
        WEFTI_FUSER_BUCKETS);
    if (status == WEFT_OK && fuser->cursor.piece > piece) {
        count_piece(fuser, &bucket->base.pieces[piece]);
    }
    return status;
}

/* Every tensor that was added here was on rank 0, too. */
static weft_status_t check_listed(const weft_fuser_t *fuser)
{
    for (const wefti_fuser_tensor_t *tensor = fuser->tensors; tensor != NULL;
         tensor = tensor->next) {
        if (tensor->bucket == NULL) {
            return wefti_error(
                WEFT_ERR_MISMATCH,
                "rank %u adds tensor \"%.200s\", which rank %u did not add in the first step",
                wefti_fuser_rank(fuser), tensor->name, fuser->runner.group->ranks[0]);
        }
    }
    return WEFT_OK;
}

static weft_status_t advance(weft_fuser_t *fuser)
{
    switch (fuser->phase) {
    case WEFTI_FUSER_FRAME:
        return start_frame(fuser);
    case WEFTI_FUSER_FRAME_DUE:
        return take_frame(fuser);
    case WEFTI_FUSER_BUCKETS:
        if (*fuser->at != NULL) {
            return advance_bucket(fuser, *fuser->at);
        }
        if (!fuser->learning) {
            return WEFT_IN_PROGRESS; /* all were handed over */
        }
        fuser->phase = fuser->frame.end ? WEFTI_FUSER_BARRIER : WEFTI_FUSER_FRAME;
        return WEFT_OK;
    case WEFTI_FUSER_BARRIER:
        if (!fuser->ending) {
            return WEFT_IN_PROGRESS; /* this rank may add more that rank 0 does not have */
        }
        WEFT_RETURN_IF_ERROR(check_listed(fuser));
        return handed(fuser, weft_barrier(fuser->runner.group, fuser->runner.stream),
                      WEFTI_FUSER_OVER);
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
    return fuser->learning ? fuser->phase == WEFTI_FUSER_OVER : *fuser->at == NULL;
}

void wefti_fuser_rewind(weft_fuser_t *fuser)
{
    fuser->added = fuser->handed_over = 0;
    fuser->next_added = &fuser->first_added;
    fuser->at = &fuser->buckets;
    fuser->cursor = (wefti_bucket_cursor_t){0};
    fuser->ending = false;
    fuser->phase = fuser->learning ? WEFTI_FUSER_FRAME : WEFTI_FUSER_BUCKETS;
}
