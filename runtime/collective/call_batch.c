/* SPDX-License-Identifier: Apache-2.0 */
/* weft_batch_begin and end: calls in between are noted, and run together at the end. */
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/collective/batch.h"

weft_status_t wefti_recorder_refuse(const char *call)
{
    return wefti_error(WEFT_ERR_STATE, "group: cannot %s while a capture is open", call);
}

weft_status_t weft_batch_begin(weft_group_t *group)
{
    WEFT_CHECK_ARG(group);
    if (group->recorder != NULL) {
        return wefti_recorder_refuse("begin a batch");
    }
    if (group->batching) {
        return wefti_error(WEFT_ERR_STATE, "group: a batch is already open");
    }
    const weft_allocator_t *allocator = group->context->allocator;
    if (group->pairs == NULL) {
        group->pairs = wefti_alloc(allocator, WEFTI_CALLS * sizeof *group->pairs);
    }
    if (group->batch == NULL && group->pairs != NULL) {
        group->batch = wefti_alloc(allocator, sizeof *group->batch);
    }
    if (group->batch == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    group->batching = true;
    group->pair_count = 0;
    return WEFT_OK;
}

weft_status_t wefti_batch_add(weft_group_t *group, const wefti_request_t *request, uint64_t *counts)
{
    wefti_batch_t *batch = group->batch;
    if (group->recorder != NULL) {
        return group->recorder->record(group, request, counts);
    }
    weft_status_t status =
        wefti_array_reserve(group->context->allocator, &batch->list, &batch->capacity,
                            batch->count + 1, sizeof *batch->list);
    if (status < 0 || batch->count >= UINT32_MAX) {
        wefti_free(group->context->allocator, counts);
        return status < 0 ? status
                          : wefti_error(WEFT_ERR_NO_MEMORY, "batch: too many calls: at most %u",
                                        UINT32_MAX);
    }
    batch->list[batch->count++] = (wefti_batched_t){*request, counts, false};
    return WEFT_OK;
}

/* Keeps the list's memory for the next batch. */
static void close_batch(weft_group_t *group)
{
    wefti_batch_t *batch = group->batch;
    for (size_t i = 0; i < batch->count; i++) {
        wefti_free(group->context->allocator, batch->list[i].counts);
    }
    batch->count = 0;
    batch->pairs_submitted = false;
    group->batching = false;
}

void wefti_batch_free(weft_group_t *group)
{
    if (group->recorder != NULL) {
        group->recorder->release(group);
    }
    if (group->batch != NULL) {
        close_batch(group);
        wefti_free(group->context->allocator, group->batch->list);
        wefti_free(group->context->allocator, group->batch);
    }
    wefti_free(group->context->allocator, group->pairs);
}

static weft_status_t check_open(const weft_group_t *group)
{
    if (!group->batching || group->recorder != NULL) {
        return wefti_error(WEFT_ERR_STATE, "group: no batch is open; call weft_batch_begin first");
    }
    return WEFT_OK;
}

weft_status_t weft_batch_cancel(weft_group_t *group)
{
    WEFT_CHECK_ARG(group);
    weft_status_t status = check_open(group);
    if (status < 0) {
        return status;
    }
    bool submitted = group->batch->pairs_submitted;
    for (size_t i = 0; i < group->batch->count; i++) {
        submitted = submitted || group->batch->list[i].submitted;
    }
    if (submitted) {
        return wefti_error(WEFT_ERR_STATE, "batch: some of its calls are already submitted; call "
                                           "weft_batch_end again");
    }
    group->pair_count = 0;
    close_batch(group);
    return WEFT_OK;
}

static weft_status_t submit_collectives(weft_group_t *group, weft_stream_t *stream)
{
    wefti_batch_t *batch = group->batch;
    uint32_t members[WEFTI_FUSED_MEMBERS];
    weft_status_t status = WEFT_OK;
    for (size_t i = 0; status == WEFT_OK && i < batch->count; i++) {
        if (batch->list[i].submitted) {
            continue;
        }
        uint32_t count = wefti_fused_collect(group, batch, i, members);
        status = count > 1 ? wefti_fused_submit(group, batch, members, count, stream)
                           : wefti_request_submit(&batch->list[i], group, stream);
        for (uint32_t k = 0; status == WEFT_OK && k < count; k++) {
            batch->list[members[k]].submitted = true;
        }
        if (status < 0) {
            status = wefti_error_prefix(status, "batch: call %zu", i);
        }
    }
    return status;
}

weft_status_t weft_batch_end(weft_group_t *group, weft_stream_t *stream)
{
    WEFT_CHECK_ARG(group);
    weft_status_t status = check_open(group);
    if (status < 0) {
        return status;
    }
    group->batching = false; /* what is submitted now is not noted again */
    if (group->pair_count > 0 && !group->batch->pairs_submitted) {
        status = wefti_pairs_submit(group, stream);
        group->batch->pairs_submitted = status == WEFT_OK;
    }
    if (status == WEFT_OK) {
        status = submit_collectives(group, stream);
    }
    if (status == WEFT_AGAIN) {
        group->batching = true; /* the batch stays open: end it again */
        return status;
    }
    close_batch(group);
    if (status == WEFT_ERR_NO_MEMORY) { /* the others have sent their part of it off */
        return wefti_group_fail(group, status);
    }
    return status;
}
