/* SPDX-License-Identifier: Apache-2.0 */
/* A step as the caller sees it: add, flush, query, wait. */
#include "runtime/fuser/fuser.h"

#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"

/* What broke the fuser: the group knows it from all ranks. */
static weft_status_t broken(weft_fuser_t *fuser, weft_status_t status)
{
    weft_group_t *group = fuser->runner.group;
    weft_status_t known = wefti_group_broken(group) ? wefti_group_check(group) : status;
    return known == status ? wefti_group_fail(group, status) : known;
}

weft_status_t wefti_fuser_check(weft_fuser_t *fuser)
{
    weft_group_t *group = fuser->runner.group;
    const weft_stream_t *stream = fuser->runner.stream;
    /* relaxed: only whether to look closer */
    if (!wefti_endpoint_owned(group->endpoint) || wefti_group_ended(group) ||
        atomic_load_explicit(&group->fault.state, memory_order_relaxed) != 0) {
        return wefti_group_check_lasting(group); /* its calls recover broken links */
    }
    if (atomic_load_explicit(&stream->fault.state, memory_order_relaxed) != 0) {
        return broken(fuser, wefti_fault_get(&stream->fault));
    }
    return WEFT_OK;
}

/* Without blocking. */
static weft_status_t progress(weft_fuser_t *fuser)
{
    const weft_stream_t *stream = fuser->runner.stream;
    weft_status_t status = wefti_fuser_pump(fuser);
    if (status == WEFT_OK && !stream->threaded) {
        wefti_streams_progress(fuser->context, NULL);
        status = wefti_fuser_pump(fuser); /* there may be room, or a frame, now */
    }
    return status < 0 ? broken(fuser, status) : wefti_fuser_check(fuser);
}

static bool decides(const weft_fuser_t *fuser)
{
    return fuser->learning && fuser->runner.group->rank == 0;
}

/* Buckets opened at or before this time are beyond the window. */
static uint64_t window_ends(const weft_fuser_t *fuser, uint64_t now_ns)
{
    return now_ns < fuser->window_ns ? 0 : now_ns - fuser->window_ns;
}

static weft_status_t check_tensor(const weft_fuser_t *fuser, const void *tensor, uint64_t count,
                                  weft_dtype_t dtype, weft_reduction_t reduction, const char *name,
                                  size_t *out_length)
{
    size_t length = name != NULL ? strnlen(name, WEFT_FUSER_NAME_BYTES + 1) : 0, bytes;
    if (length == 0 || length > WEFT_FUSER_NAME_BYTES) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "name: must have 1 to %u bytes",
                           WEFT_FUSER_NAME_BYTES);
    }
    size_t elem_bytes = weft_dtype_size_bytes(dtype);
    if (elem_bytes == 0 || dtype == WEFT_DTYPE_BOOL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "tensor \"%.200s\": dtype %s has no reductions", name,
                           weft_dtype_name(dtype));
    }
    if ((uint32_t)reduction > WEFT_REDUCTION_MAX) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "tensor \"%.200s\": invalid reduction %d: expected a weft_reduction_t",
                           name, (int)reduction);
    }
    if (tensor == NULL && count > 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "tensor \"%.200s\": address is NULL", name);
    }
    if (!wefti_mul_size((size_t)count, elem_bytes, &bytes) || bytes > SIZE_MAX / 2 ||
        count / (fuser->bytes / elem_bytes) >= UINT32_MAX) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "tensor \"%.200s\": count too large: %llu x %s exceeds the address space", name,
            (unsigned long long)count, weft_dtype_name(dtype));
    }
    *out_length = length;
    return WEFT_OK;
}

static weft_status_t changed(const weft_fuser_t *fuser, const wefti_fuser_tensor_t *entry,
                             uint64_t count, weft_dtype_t dtype, weft_reduction_t reduction)
{
    return wefti_error(
        WEFT_ERR_MISMATCH,
        "rank %u adds tensor \"%.200s\" with %llu x %s (%s), in earlier steps with %llu x %s (%s)",
        wefti_fuser_rank(fuser), entry->name, (unsigned long long)count, weft_dtype_name(dtype),
        weft_reduction_name(reduction), (unsigned long long)entry->count,
        weft_dtype_name(entry->dtype), weft_reduction_name(entry->reduction));
}

/* The tensor that is added; a new one in the first step. An error breaks the fuser. */
static weft_status_t enter(weft_fuser_t *fuser, uint64_t count, weft_dtype_t dtype,
                           weft_reduction_t reduction, const char *name, size_t length,
                           wefti_fuser_tensor_t **tensor)
{
    if (*tensor == NULL) {
        if (!fuser->learning) {
            return wefti_error(
                WEFT_ERR_MISMATCH,
                "rank %u adds tensor \"%.200s\" in step %llu of its fuser, but not in the first "
                "step; call weft_fuser_reset when the tensors change",
                wefti_fuser_rank(fuser), name, (unsigned long long)fuser->stats.step_count + 1);
        }
        WEFT_RETURN_IF_ERROR(wefti_fuser_new_tensor(fuser, name, length, tensor));
        (*tensor)->count = count;
        (*tensor)->dtype = dtype;
        (*tensor)->reduction = reduction;
    }
    const wefti_fuser_tensor_t *entry = *tensor;
    if (entry->count != count || entry->dtype != dtype || entry->reduction != reduction) {
        return changed(fuser, entry, count, dtype, reduction);
    }
    return WEFT_OK;
}

static void mark_added(weft_fuser_t *fuser, wefti_fuser_tensor_t *tensor, void *address)
{
    tensor->added_in = fuser->stats.step_count + 1;
    tensor->address = address;
    *fuser->next_added = tensor;
    fuser->next_added = &tensor->after;
    fuser->added++;
    if (tensor->bucket != NULL) {
        tensor->bucket->missing--;
    }
}

weft_status_t weft_fuser_add(weft_fuser_t *fuser, void *tensor, uint64_t count, weft_dtype_t dtype,
                             weft_reduction_t reduction, const char *name)
{
    WEFT_CHECK_ARG(fuser);
    WEFT_CHECK_ARG(name);
    size_t length = 0;
    WEFT_RETURN_IF_ERROR(wefti_fuser_check(fuser));
    WEFT_RETURN_IF_ERROR(check_tensor(fuser, tensor, count, dtype, reduction, name, &length));
    wefti_fuser_tensor_t *entry = wefti_fuser_find(fuser, name, length);
    if (entry != NULL && wefti_fuser_has_added(fuser, entry)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "tensor \"%.200s\": already added in this step", name);
    }
    weft_status_t status = enter(fuser, count, dtype, reduction, name, length, &entry);
    if (status == WEFT_OK) {
        mark_added(fuser, entry, tensor);
        if (decides(fuser)) {
            const uint64_t now_ns = wefti_now_ns();
            status = wefti_fuser_log(fuser, entry, window_ends(fuser, now_ns), now_ns);
        }
    }
    return status < 0 ? broken(fuser, status) : progress(fuser);
}

/* Rank 0, first step: buckets opened at or before this time end; those that tensors in the log or
 * in a frame that is under way open may be among them. */
static weft_status_t end_buckets(weft_fuser_t *fuser, uint64_t opened_ns)
{
    const uint64_t oldest = decides(fuser) ? wefti_fuser_oldest(fuser) : UINT64_MAX;
    return oldest != UINT64_MAX && oldest <= opened_ns ? wefti_fuser_log(fuser, NULL, opened_ns, 0)
                                                       : WEFT_OK;
}

weft_status_t weft_fuser_flush(weft_fuser_t *fuser)
{
    WEFT_CHECK_ARG(fuser);
    weft_status_t status = wefti_fuser_check(fuser);
    if (status < 0 || !wefti_fuser_in_step(fuser)) {
        return status;
    }
    status = end_buckets(fuser, UINT64_MAX);
    return status < 0 ? broken(fuser, status) : progress(fuser);
}

weft_status_t weft_fuser_query(weft_fuser_t *fuser)
{
    WEFT_CHECK_ARG(fuser);
    weft_status_t status = wefti_fuser_check(fuser);
    if (status < 0 || !wefti_fuser_in_step(fuser)) {
        return status;
    }
    status = end_buckets(fuser, window_ends(fuser, wefti_now_ns()));
    status = status < 0 ? broken(fuser, status) : progress(fuser);
    if (status < 0) {
        return status;
    }
    /* acquire: the results are visible */
    uint32_t done =
        atomic_load_explicit(&fuser->runner.stream->done.signal.value, memory_order_acquire);
    return fuser->handed_over == fuser->added && wefti_signal_reached(done, fuser->reduced_target)
               ? wefti_fuser_check(fuser)
               : WEFT_IN_PROGRESS;
}

/* ---- the end of a step ---- */

static weft_status_t hand_over_all(weft_fuser_t *fuser)
{
    static const char what[] = "a step of a fuser";
    const wefti_bucket_runner_t *runner = &fuser->runner;
    WEFT_RETURN_IF_ERROR(wefti_fuser_pump(fuser));
    while (!wefti_fuser_all_handed_over(fuser)) {
        WEFT_RETURN_IF_ERROR(wefti_bucket_wait_some(runner, runner->stream, what));
        WEFT_RETURN_IF_ERROR(wefti_fuser_check(fuser));
        WEFT_RETURN_IF_ERROR(wefti_fuser_pump(fuser));
    }
    WEFT_RETURN_IF_ERROR(
        wefti_stream_wait(fuser->context, NULL, runner->stream, runner->target, what));
    return wefti_fault_get(&runner->stream->fault);
}

static void learned(weft_fuser_t *fuser)
{
    weft_fuser_stats_t *stats = &fuser->stats;
    fuser->learning = fuser->buckets == NULL; /* a step of nothing teaches nothing */
    stats->tensor_count = fuser->tensor_count;
    stats->bucket_count = stats->largest_bucket_bytes = 0;
    for (const wefti_fuser_bucket_t *bucket = fuser->buckets; bucket != NULL;
         bucket = bucket->next) {
        const uint64_t room = fuser->bytes / bucket->base.elem_bytes, count = bucket->base.count;
        const uint64_t bytes = (count < room ? count : room) * bucket->base.elem_bytes;
        stats->bucket_count += count > room ? (count + room - 1) / room : 1; /* above room: split */
        stats->largest_bucket_bytes =
            bytes > stats->largest_bucket_bytes ? bytes : stats->largest_bucket_bytes;
    }
}

weft_status_t weft_fuser_wait(weft_fuser_t *fuser)
{
    WEFT_CHECK_ARG(fuser);
    WEFT_RETURN_IF_ERROR(wefti_fuser_check(fuser));
    fuser->ending = true;
    weft_status_t status = end_buckets(fuser, UINT64_MAX);
    status = status == WEFT_OK ? hand_over_all(fuser) : status;
    if (status < 0) {
        return broken(fuser, status);
    }
    if (fuser->learning) {
        learned(fuser);
    }
    fuser->stats.step_count++;
    wefti_fuser_rewind(fuser);
    return WEFT_OK;
}
