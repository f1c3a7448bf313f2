/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks agree on what they captured: they compare digests, and where these differ two ranks tell
 * all others their lists, so that everybody returns the same message. Then each learns what the
 * plan needs of the others. All of it by calls on the capture's own group.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/capture/capture.h"
#include "runtime/collective/call_late.h"

/* One call, as far as ranks must have the same. */
typedef struct signature {
    uint64_t what, count, counts; /* counts: a hash of those of V forms that all ranks give alike */
    wefti_shape_note_t shape;
} signature_t;

typedef struct summary {
    uint64_t count, no_times;
    wefti_digest_t calls;
    char policy[64];
} summary_t;

static signature_t sign(const wefti_captured_t *call, uint32_t size)
{
    const wefti_request_t *request = &call->batched.request;
    const uint64_t *counts = wefti_collective_has_shared_counts(request->op)
                                 ? wefti_shared_counts(request->op, size, call->batched.counts)
                                 : NULL;
    signature_t signature = {.what = wefti_request_what(request),
                             .count = request->count,
                             .counts = counts != NULL ? wefti_hash_words(counts, size) : 0};
    if (call->batched.counts == NULL && call->batched.shape.tag != 0) {
        signature.shape = call->batched.shape;
    }
    return signature;
}

/* ---- differences ---- */

/* shaped: the shapes are what differs. */
static void describe(const signature_t *list, uint32_t count, uint32_t index, bool shaped,
                     char *text, size_t bytes)
{
    char what[160], shape[80] = "";
    if (index >= count) {
        snprintf(text, bytes, "missing");
        return;
    }
    if (shaped) {
        wefti_note_text(&list[index].shape, list[index].count, shape, sizeof shape);
    }
    snprintf(text, bytes, "%s%s", wefti_what_text(list[index].what, list[index].count, what),
             shape);
}

static weft_status_t name_difference(const weft_group_t *group, const signature_t *lists[2],
                                     const uint32_t counts[2], uint32_t other)
{
    char texts[2][240];
    uint32_t i = 0;
    while (i < counts[0] && i < counts[1] &&
           memcmp(&lists[0][i], &lists[1][i], sizeof(signature_t)) == 0) {
        i++;
    }
    bool shaped = i < counts[0] && i < counts[1] &&
                  memcmp(&lists[0][i], &lists[1][i], offsetof(signature_t, shape)) == 0;
    describe(lists[0], counts[0], i, shaped, texts[0], sizeof texts[0]);
    describe(lists[1], counts[1], i, shaped, texts[1], sizeof texts[1]);
    return wefti_error(
        WEFT_ERR_MISMATCH,
        "capture: ranks captured different calls: call %u (of %u) is %s on rank %u, but %s "
        "(of %u) on rank %u%s",
        i, counts[0], texts[0], group->ranks[0], texts[1], counts[1], group->ranks[other],
        strcmp(texts[0], texts[1]) == 0 ? ", with different counts" : "");
}

/* Rank 0 and the first rank that differs from it broadcast their lists. */
static weft_status_t tell_difference(weft_capture_t *capture, signature_t *own,
                                     const summary_t *all, uint32_t other)
{
    weft_group_t *group = capture->runner.group;
    uint32_t ranks[2] = {0, other}, counts[2] = {all[0].count, all[other].count};
    const signature_t *lists[2];
    for (uint32_t i = 0; i < 2; i++) {
        signature_t *list = wefti_arena_array(&capture->arena, counts[i], sizeof *list);
        if (list == NULL) {
            return wefti_group_fail(group, WEFT_ERR_NO_MEMORY);
        }
        WEFT_RETURN_IF_ERROR(weft_broadcast(group->rank == ranks[i] ? own : list, list,
                                            counts[i] * sizeof *list, WEFT_DTYPE_U8, ranks[i],
                                            group, NULL));
        lists[i] = list;
    }
    return name_difference(group, lists, counts, other);
}

static weft_status_t compare(weft_capture_t *capture, signature_t *own, summary_t *all)
{
    const weft_group_t *group = capture->runner.group;
    for (uint32_t r = 1; r < group->size; r++) {
        if (all[r].count != all[0].count ||
            memcmp(&all[r].calls, &all[0].calls, sizeof all[r].calls) != 0) {
            return tell_difference(capture, own, all, r);
        }
    }
    for (uint32_t r = 1; r < group->size; r++) {
        all[r].policy[sizeof all[r].policy - 1] = all[0].policy[sizeof all[0].policy - 1] = '\0';
        if (strcmp(all[r].policy, all[0].policy) != 0 || all[r].no_times != all[0].no_times) {
            return wefti_error(
                WEFT_ERR_MISMATCH,
                "capture: ranks passed different parameters: rank %u bucket \"%s\"%s, rank %u "
                "bucket \"%s\"%s",
                group->ranks[0], all[0].policy, all[0].no_times ? " with no_times" : "",
                group->ranks[r], all[r].policy, all[r].no_times ? " with no_times" : "");
        }
    }
    return WEFT_OK;
}

/* Of a call whose counts only pairs of ranks share: its counts, else NULL. */
static const uint64_t *exchanged(const wefti_captured_t *call)
{
    return wefti_collective_exchanges(call->batched.request.op) ? call->batched.counts : NULL;
}

/* What the other ranks send is what this one expects. exchanges: how many such calls there are, on
 * every rank; theirs: [rank][exchange] */
static weft_status_t check_exchanges(const weft_capture_t *capture, uint32_t exchanges,
                                     const uint64_t *theirs)
{
    const weft_group_t *group = capture->runner.group;
    for (uint32_t i = 0; i < capture->call_count; i++) {
        const uint64_t *counts = exchanged(&capture->calls[i]);
        for (uint32_t r = 0; counts != NULL && r < group->size; r++) {
            const uint64_t sent = theirs[(size_t)r * exchanges],
                           wanted = counts[2 * group->size + r];
            if (sent != wanted) {
                return wefti_error(
                    WEFT_ERR_MISMATCH,
                    "capture: ranks captured different calls: in call %u (of %u), AllToAllV, rank "
                    "%u sends %llu elements to rank %u, which expects %llu",
                    i, capture->call_count, group->ranks[r], (unsigned long long)sent,
                    group->ranks[group->rank], (unsigned long long)wanted);
            }
        }
        theirs += counts != NULL;
    }
    return WEFT_OK;
}

static weft_status_t compare_exchanges(weft_capture_t *capture)
{
    weft_group_t *group = capture->runner.group;
    uint32_t exchanges = 0, next = 0;
    for (uint32_t i = 0; i < capture->call_count; i++) {
        exchanges += exchanged(&capture->calls[i]) != NULL;
    }
    if (exchanges == 0) {
        return WEFT_OK;
    }
    size_t words = (size_t)group->size * exchanges;
    uint64_t *own = wefti_arena_array(&capture->arena, 2 * words, sizeof *own);
    uint64_t *theirs = own != NULL ? own + words : NULL;
    weft_status_t status = wefti_group_agree(group, own != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY);
    if (status != WEFT_OK) {
        return status;
    }
    for (uint32_t i = 0; i < capture->call_count; i++) {
        const uint64_t *counts = exchanged(&capture->calls[i]);
        for (uint32_t r = 0; counts != NULL && r < group->size; r++) {
            own[(size_t)r * exchanges + next] = counts[r];
        }
        next += counts != NULL;
    }
    status = weft_all_to_all(own, theirs, exchanges, WEFT_DTYPE_U64, group, NULL);
    if (status != WEFT_OK) {
        return status;
    }
    return wefti_group_agree(group, check_exchanges(capture, exchanges, theirs));
}

static weft_status_t summarize(weft_capture_t *capture, const wefti_recording_t *recording,
                               signature_t *list, summary_t *out)
{
    *out = (summary_t){.count = capture->call_count, .no_times = recording->params.no_times != 0};
    snprintf(out->policy, sizeof out->policy, "%s", recording->params.bucket);
    for (uint32_t i = 0; i < capture->call_count; i++) {
        list[i] = sign(&capture->calls[i], capture->runner.group->size);
    }
    return wefti_digest_of(list, capture->call_count * sizeof *list, &out->calls);
}

weft_status_t wefti_capture_compare(weft_capture_t *capture, const wefti_recording_t *recording,
                                    weft_status_t status)
{
    weft_group_t *group = capture->runner.group;
    summary_t own = {0}, *all = NULL;
    signature_t *list = wefti_arena_array(&capture->arena, capture->call_count, sizeof *list);
    if (status == WEFT_OK) {
        status = list != NULL ? summarize(capture, recording, list, &own) : WEFT_ERR_NO_MEMORY;
    }
    status = wefti_group_gather(group, status, &own, sizeof own, &all);
    if (status == WEFT_OK) {
        status = compare(capture, list, all);
        wefti_free(capture->context->allocator, all);
        status = status < 0 ? status : compare_exchanges(capture);
    }
    return status;
}

/* ---- what others know ---- */

static weft_status_t share_times(weft_capture_t *capture)
{
    uint32_t n = capture->call_count;
    uint64_t *words = wefti_arena_array(&capture->arena, 2 * (size_t)n, sizeof *words);
    uint64_t *times = words, *keys = words != NULL ? words + n : NULL;
    WEFT_RETURN_IF_ERROR(
        wefti_group_agree(capture->runner.group, words != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY));
    for (uint32_t i = 0; i < n; i++) {
        times[i] = capture->calls[i].at_ns;
        keys[i] = (uint64_t)(uintptr_t)capture->calls[i].batched.request.recv;
    }
    WEFT_RETURN_IF_ERROR(weft_all_reduce(times, times, n, WEFT_DTYPE_U64, WEFT_REDUCTION_MAX,
                                         capture->runner.group, NULL));
    weft_status_t status =
        weft_broadcast(keys, keys, n, WEFT_DTYPE_U64, 0, capture->runner.group, NULL);
    WEFT_RETURN_IF_ERROR(status);
    for (uint32_t i = 0; i < n; i++) {
        capture->calls[i].at_ns = times[i];
        capture->calls[i].key = keys[i];
    }
    return status; /* WEFT_AGAIN is no error */
}

/* Those of all ranks; counts: words of each. */
static weft_status_t gather_conflicts(weft_group_t *group, const uint64_t *counts,
                                      wefti_conflict_t **conflicts, size_t *count)
{
    const weft_allocator_t *allocator = group->context->allocator;
    uint64_t total = 0;
    for (uint32_t r = 0; r < group->size; r++) {
        total += counts[r];
    }
    if (total == 0) {
        return WEFT_OK;
    }
    wefti_conflict_t *all = wefti_alloc(allocator, total * sizeof(uint32_t));
    weft_status_t status = wefti_group_agree(group, all != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY);
    if (status == WEFT_OK) {
        status = weft_all_gather_v(*conflicts, all, counts, NULL, WEFT_DTYPE_U32, group, NULL);
        if (status == WEFT_ERR_NO_MEMORY) { /* for the counts: the others have posted */
            status = wefti_group_fail(group, status);
        }
    }
    if (status != WEFT_OK) {
        wefti_free(allocator, all);
        return status;
    }
    wefti_free(allocator, *conflicts);
    *conflicts = all;
    *count = total / 2;
    return WEFT_OK;
}

weft_status_t wefti_capture_share(weft_capture_t *capture, wefti_conflict_t **conflicts,
                                  size_t *count)
{
    weft_group_t *group = capture->runner.group;
    uint64_t words = 2 * (uint64_t)*count, *counts = NULL;
    weft_status_t status = share_times(capture);
    if (status != WEFT_OK) {
        return status; /* WEFT_AGAIN is no error */
    }
    status = wefti_group_gather(group, WEFT_OK, &words, sizeof words, &counts);
    if (status == WEFT_OK) {
        status = gather_conflicts(group, counts, conflicts, count);
        wefti_free(capture->context->allocator, counts);
    }
    return status;
}
