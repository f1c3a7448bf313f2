/* SPDX-License-Identifier: Apache-2.0 */
/* Capturing: from the begin, when a group's calls are noted, to a capture that can be replayed. */
#include "runtime/capture/capture.h"

#include <stdio.h>
#include <string.h>

#include <weft/compile.h>
#include <weft/memory.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"
#include "runtime/base/sync.h"

static void free_calls(const weft_allocator_t *allocator, wefti_captured_t *calls, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        wefti_free(allocator, calls[i].batched.counts);
        weft_event_destroy(calls[i].event);
    }
    wefti_free(allocator, calls);
}

static void free_recording(const weft_allocator_t *allocator, wefti_recording_t *recording)
{
    if (recording != NULL) {
        free_calls(allocator, recording->calls, recording->count);
        wefti_free(allocator, (char *)recording->params.bucket);
        wefti_free(allocator, (char *)recording->params.costs_path);
        wefti_free(allocator, recording);
    }
}

/* The open recording, detached from its group, whose recorder it is. */
static wefti_recording_t *take_recording(weft_group_t *group)
{
    wefti_recording_t *recording = (wefti_recording_t *)group->calls->recorder;
    group->calls->recorder = NULL;
    return recording;
}

static void cancel(weft_group_t *group)
{
    free_recording(group->context->allocator, take_recording(group));
}

static weft_status_t check_params(const weft_group_t *group, const weft_capture_params_t *params)
{
    weft_status_t status = wefti_stream_check_context(params->stream, group->context);
    if (status < 0 || params->bucket == NULL) {
        return status;
    }
    return weft_bucket_policy_check(params->bucket);
}

static weft_status_t record(weft_group_t *group, const wefti_request_t *request, uint64_t *counts)
{
    wefti_recording_t *recording = (wefti_recording_t *)group->calls->recorder;
    const weft_allocator_t *allocator = group->context->allocator;
    uint64_t now = wefti_now_ns();
    weft_status_t status = WEFT_OK;
    if (recording->count == WEFTI_CAPTURE_CALLS) {
        status = wefti_error(WEFT_ERR_UNSUPPORTED, "capture: too many calls: at most %u",
                             WEFTI_CAPTURE_CALLS);
    } else {
        status = wefti_array_reserve(allocator, &recording->calls, &recording->capacity,
                                     recording->count + 1, sizeof *recording->calls);
    }
    if (status < 0) {
        wefti_free(allocator, counts);
        return status;
    }
    recording->calls[recording->count++] =
        (wefti_captured_t){.batched = {*request, counts, group->calls->shape, false},
                           .at_ns = now - recording->begun_ns};
    return WEFT_OK;
}

static const wefti_recorder_ops_t recorder_ops = {"capture", record, wefti_recorder_no_pairs,
                                                  cancel};

weft_status_t weft_capture_begin(weft_group_t *group, const weft_capture_params_t *params)
{
    WEFT_CHECK_ARG(group);
    weft_capture_params_t own = WEFT_CAPTURE_PARAMS_INIT;
    WEFT_RETURN_IF_ERROR(wefti_group_check_lasting(group));
    if (group->calls->recorder != NULL) {
        return wefti_error(WEFT_ERR_STATE, "group: a %s is already open",
                           group->calls->recorder->ops->name);
    }
    weft_status_t status = WEFTI_PARAMS_READ(params, &own);
    status = status < 0 ? status : check_params(group, &own);
    if (status < 0) { /* the others learn it when they end theirs */
        return wefti_call_refuse(group, NULL, wefti_error_prefix(status, "capture_begin"));
    }
    const weft_allocator_t *allocator = group->context->allocator;
    wefti_recording_t *recording = wefti_alloc(allocator, sizeof *recording);
    if (recording == NULL) {
        return wefti_call_refuse(group, NULL, WEFT_ERR_NO_MEMORY);
    }
    const char *costs = own.costs_path;
    own.bucket = wefti_strdup(allocator, own.bucket != NULL ? own.bucket : "auto");
    own.costs_path = costs != NULL ? wefti_strdup(allocator, costs) : NULL;
    recording->params = own;
    if (own.bucket == NULL || (costs != NULL && own.costs_path == NULL)) {
        free_recording(allocator, recording);
        return wefti_call_refuse(group, NULL, WEFT_ERR_NO_MEMORY);
    }
    recording->begun_ns = wefti_now_ns();
    recording->recorder.ops = &recorder_ops;
    group->calls->recorder = &recording->recorder;
    return WEFT_OK;
}

static weft_status_t check_end(const weft_group_t *group)
{
    const wefti_recorder_t *recorder = group->calls->recorder; /* or that of a batch */
    if (recorder == NULL || recorder->ops != &recorder_ops) {
        return wefti_error(WEFT_ERR_STATE,
                           "group: no capture is open; call weft_capture_begin first");
    }
    return WEFT_OK;
}

weft_status_t weft_capture_cancel(weft_group_t *group)
{
    WEFT_CHECK_ARG(group);
    weft_status_t status = check_end(group);
    if (status == WEFT_OK) {
        cancel(group);
    }
    return status;
}

/* ---- the end ---- */

/* Everything but the group; may be half built. */
static void release(weft_capture_t *capture)
{
    const weft_allocator_t *allocator = capture->context->allocator;
    for (uint32_t i = 0; i + 1 < capture->unit_count; i++) { /* the last one has that of the end */
        weft_event_destroy(capture->units[i].event);
    }
    weft_event_destroy(capture->over);
    wefti_bucket_runner_deinit(&capture->runner);
    free_calls(allocator, capture->calls, capture->call_count);
    wefti_arena_deinit(&capture->arena);
    wefti_free(allocator, capture);
}

static weft_status_t build(weft_group_t *own, wefti_recording_t *recording,
                           weft_capture_t **out_capture)
{
    weft_capture_t *capture = wefti_alloc(own->context->allocator, sizeof *capture);
    *out_capture = capture;
    WEFT_RETURN_IF_NO_MEMORY(capture != NULL);
    capture->context = own->context;
    wefti_arena_init(&capture->arena, own->context->allocator, 0);
    capture->calls = recording->calls; /* taken over */
    capture->call_count = (uint32_t)recording->count;
    recording->calls = NULL;
    recording->count = 0;
    for (uint32_t i = 0; recording->params.no_times && i < capture->call_count; i++) {
        capture->calls[i].at_ns = 0;
    }
    capture->forecast.struct_size = sizeof capture->forecast;
    WEFT_RETURN_IF_ERROR(
        wefti_bucket_runner_init(&capture->runner, own, recording->params.stream, "capture"));
    capture->policy = wefti_arena_strdup(&capture->arena, recording->params.bucket);
    WEFT_RETURN_IF_NO_MEMORY(capture->policy != NULL);
    return weft_event_create(own->context, &capture->over);
}

/* All steps that ranks take together are taken by all or by none. */
static weft_status_t finish(weft_capture_t *capture, const wefti_recording_t *recording)
{
    weft_group_t *group = capture->runner.group;
    wefti_conflict_t *conflicts = NULL;
    size_t count = 0;
    weft_status_t status = wefti_capture_conflicts(capture, &conflicts, &count);
    WEFT_TRY(status, wefti_group_agree(group, status), done);
    WEFT_TRY(status, wefti_capture_share(capture, &conflicts, &count), done);
    status = wefti_capture_plan(capture, &recording->params, conflicts, count);
    WEFT_TRY(status, wefti_group_agree(group, status), done);
    status = wefti_capture_cut(capture);
done:
    wefti_free(capture->context->allocator, conflicts);
    return status;
}

weft_status_t weft_capture_end(weft_group_t *group, weft_capture_t **out_capture)
{
    WEFT_CHECK_OUT(out_capture);
    WEFT_CHECK_ARG(group);
    weft_group_t *own = NULL;
    weft_capture_t *capture = NULL;
    WEFT_RETURN_IF_ERROR(check_end(group));
    wefti_recording_t *recording = take_recording(group);
    WEFTI_IN_CONTROL(group->endpoint, CAPTURE_END);
    weft_status_t status =
        recording->recorder.refused == WEFT_OK
            ? WEFT_OK
            : wefti_error_adopt(recording->recorder.refused, recording->recorder.why);
    /* a rank may have refused to begin */
    status = wefti_group_meet(group, status);
    status = status < 0 ? status : weft_group_duplicate(group, &own);
    if (status == WEFT_OK) {
        wefti_group_own_calls(own, true);
        status = build(own, recording, &capture);
        if (capture == NULL) { /* the others learn it as an error of the group made for this */
            wefti_group_fail(own, status);
        } else {
            status = wefti_capture_compare(capture, recording, status);
            status = status < 0 ? status : finish(capture, recording);
        }
    }
    free_recording(group->context->allocator, recording);
    if (status < 0) {
        char text[WEFTI_ERROR_TEXT_BYTES];
        snprintf(text, sizeof text, "%s", weft_last_error());
        if (capture != NULL) {
            release(capture);
        }
        weft_group_destroy(own); /* may find that other ranks have ended since */
        return wefti_error_adopt(status, text);
    }
    wefti_group_own_calls(own, false);
    *out_capture = capture;
    return WEFT_OK;
}

static void discard(weft_capture_t *capture, bool together)
{
    if (capture == NULL) {
        return;
    }
    weft_group_t *group = capture->runner.group;
    if (wefti_endpoint_owned(group->endpoint)) {
        if (capture->active) {
            wefti_error(WEFT_ERR_ABORTED, "rank %u destroyed its capture during a replay",
                        group->ranks[group->rank]);
            wefti_group_fail(group, WEFT_ERR_ABORTED);
        }
        weft_event_synchronize(capture->over); /* a failed stream executes nothing more */
        wefti_bucket_runner_leave(&capture->runner, "a capture's calls", together);
    }
    release(capture);
    (together ? weft_group_destroy : weft_group_leave)(group);
}

void weft_capture_destroy(weft_capture_t *capture)
{
    discard(capture, true);
}

void weft_capture_leave(weft_capture_t *capture)
{
    discard(capture, false);
}

weft_status_t weft_capture_get_info(const weft_capture_t *capture, weft_capture_info_t *info)
{
    WEFT_CHECK_ARG(capture);
    WEFT_CHECK_ARG(info);
    WEFT_RETURN_IF_ERROR(wefti_report_check("info", info));
    wefti_report_write(info, &capture->info, sizeof capture->info);
    return WEFT_OK;
}
