/* SPDX-License-Identifier: Apache-2.0 */
/* A step as the caller sees it: add, flush, query, wait. */
#include "runtime/fuser/fuser.h"

#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"

/* What broke the fuser: the group knows it from all ranks. */
static weft_status_t broken(weft_fuser_t *fuser, weft_status_t status)
{
    weft_status_t known =
        wefti_group_broken(fuser->group) ? wefti_group_check(fuser->group) : status;
    return known == status ? wefti_group_fail(fuser->group, status) : known;
}

weft_status_t wefti_fuser_check(weft_fuser_t *fuser)
{
    weft_group_t *group = fuser->group;
    /* relaxed: only whether to look closer */
    if (!wefti_endpoint_owned(group->endpoint) || wefti_group_ended(group) ||
        atomic_load_explicit(&group->fault.state, memory_order_relaxed) != 0) {
        return wefti_group_check_lasting(group); /* its calls recover broken links */
    }
    if (atomic_load_explicit(&fuser->stream->fault.state, memory_order_relaxed) != 0) {
        return broken(fuser, wefti_fault_get(&fuser->stream->fault));
    }
    return WEFT_OK;
}

/* Without blocking. */
static weft_status_t progress(weft_fuser_t *fuser)
{
    weft_status_t status = wefti_fuser_pump(fuser);
    if (status == WEFT_OK && !fuser->stream->threaded && fuser->stream->queue == NULL) {
        wefti_streams_progress(fuser->context, NULL);
        status = wefti_fuser_pump(fuser); /* there may be room, or a list, now */
    }
    return status < 0 ? broken(fuser, status) : wefti_fuser_check(fuser);
}

static bool decides(const weft_fuser_t *fuser)
{
    return fuser->learning && fuser->group->rank == 0;
}

static weft_status_t close_late(weft_fuser_t *fuser, uint64_t now_ns)
{
    if (!decides(fuser) || fuser->open_count == 0 || now_ns < fuser->window_ns) {
        return WEFT_OK;
    }
    return wefti_fuser_close(fuser, now_ns - fuser->window_ns);
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

/* The entry of a tensor that is added; a new one in the first step. Negative: breaks the fuser. */
static weft_status_t enter(weft_fuser_t *fuser, uint64_t count, weft_dtype_t dtype,
                           weft_reduction_t reduction, const char *name, size_t length,
                           uint32_t *tensor)
{
    if (*tensor == WEFTI_FUSER_NONE) {
        if (!fuser->learning) {
            return wefti_error(
                WEFT_ERR_MISMATCH,
                "rank %u adds tensor \"%.200s\" in step %llu of its fuser, but not in the first "
                "step; call weft_fuser_reset when the tensors change",
                wefti_fuser_rank(fuser), name, (unsigned long long)fuser->stats.step_count + 1);
        }
        weft_status_t status = wefti_fuser_new_tensor(fuser, name, length, tensor);
        if (status == WEFT_OK) {
            fuser->tensors[*tensor].count = count;
            fuser->tensors[*tensor].dtype = dtype;
            fuser->tensors[*tensor].reduction = reduction;
        }
        return status;
    }
    const wefti_fuser_tensor_t *entry = &fuser->tensors[*tensor];
    if (entry->count != count || entry->dtype != dtype || entry->reduction != reduction) {
        return changed(fuser, entry, count, dtype, reduction);
    }
    return WEFT_OK;
}

/* The buckets that the tensor is in miss one less. */
static void mark_added(weft_fuser_t *fuser, uint32_t tensor, void *address)
{
    wefti_fuser_tensor_t *entry = &fuser->tensors[tensor];
    entry->added = true;
    entry->address = address;
    fuser->order[fuser->added++] = tensor;
    uint32_t bucket = entry->last_bucket, member = entry->last_member;
    while (bucket != WEFTI_FUSER_NONE) {
        const wefti_fuser_member_t *part = &fuser->buckets[bucket]->members[member];
        fuser->buckets[bucket]->missing--;
        bucket = part->bucket_before;
        member = part->member_before;
    }
}

weft_status_t weft_fuser_add(weft_fuser_t *fuser, void *tensor, uint64_t count, weft_dtype_t dtype,
                             weft_reduction_t reduction, const char *name)
{
    WEFT_CHECK_ARG(fuser);
    WEFT_CHECK_ARG(name);
    size_t length = 0;
    weft_status_t status = wefti_fuser_check(fuser);
    if (status == WEFT_OK) {
        status = check_tensor(fuser, tensor, count, dtype, reduction, name, &length);
    }
    if (status < 0) {
        return status;
    }
    uint32_t index = wefti_fuser_find(fuser, name, length);
    if (index != WEFTI_FUSER_NONE && fuser->tensors[index].added) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "tensor \"%.200s\": already added in this step", name);
    }
    status = enter(fuser, count, dtype, reduction, name, length, &index);
    if (status == WEFT_OK) {
        mark_added(fuser, index, tensor);
        if (decides(fuser)) {
            uint64_t now_ns = wefti_now_ns();
            status = close_late(fuser, now_ns);
            status = status == WEFT_OK ? wefti_fuser_place(fuser, index, now_ns) : status;
        }
    }
    return status < 0 ? broken(fuser, status) : progress(fuser);
}

weft_status_t weft_fuser_flush(weft_fuser_t *fuser)
{
    WEFT_CHECK_ARG(fuser);
    weft_status_t status = wefti_fuser_check(fuser);
    if (status < 0 || !wefti_fuser_in_step(fuser)) {
        return status;
    }
    if (decides(fuser)) {
        status = wefti_fuser_close(fuser, UINT64_MAX);
    }
    return status < 0 ? broken(fuser, status) : progress(fuser);
}

/* All that was added is in buckets that were handed over. */
static bool all_on_its_way(const weft_fuser_t *fuser)
{
    if (fuser->open_count > 0) {
        return false;
    }
    for (size_t i = fuser->at_bucket; i < fuser->bucket_count; i++) {
        if (fuser->buckets[i]->missing < fuser->buckets[i]->member_count) {
            return false;
        }
    }
    for (size_t i = 0; fuser->learning && i < fuser->tensor_count; i++) {
        if (fuser->tensors[i].added && fuser->tensors[i].listed < fuser->tensors[i].count) {
            return false;
        }
    }
    return true;
}

weft_status_t weft_fuser_query(weft_fuser_t *fuser)
{
    WEFT_CHECK_ARG(fuser);
    weft_status_t status = wefti_fuser_check(fuser);
    if (status < 0 || !wefti_fuser_in_step(fuser)) {
        return status;
    }
    status = close_late(fuser, wefti_now_ns());
    status = status < 0 ? broken(fuser, status) : progress(fuser);
    if (status < 0) {
        return status;
    }
    /* acquire: the results are visible */
    uint32_t done = atomic_load_explicit(&fuser->stream->done.signal.value, memory_order_acquire);
    return all_on_its_way(fuser) && wefti_signal_reached(done, fuser->reduced_target)
               ? wefti_fuser_check(fuser)
               : WEFT_IN_PROGRESS;
}

/* ---- the end of a step ---- */

/* Until the stream has done some of what it has: there is room then, or a list. */
static weft_status_t wait_some(weft_fuser_t *fuser)
{
    weft_stream_t *stream = fuser->stream;
    uint32_t done = atomic_load_explicit(&stream->done.signal.value, memory_order_acquire);
    uint32_t tail = atomic_load_explicit(&stream->tail.signal.value, memory_order_relaxed);
    uint32_t target = wefti_signal_reached(done, fuser->target) ? tail : fuser->target;
    target = done + (target - done + 1) / 2;
    return wefti_stream_wait(fuser->context, NULL, stream, target, "a step of a fuser");
}

static weft_status_t hand_over_all(weft_fuser_t *fuser)
{
    weft_status_t status = wefti_fuser_pump(fuser);
    while (status == WEFT_OK && !wefti_fuser_all_handed_over(fuser)) {
        status = wait_some(fuser);
        status = status == WEFT_OK ? wefti_fuser_check(fuser) : status;
        status = status == WEFT_OK ? wefti_fuser_pump(fuser) : status;
    }
    if (status == WEFT_OK) {
        status = wefti_stream_wait(fuser->context, NULL, fuser->stream, fuser->target,
                                   "a step of a fuser");
    }
    return status < 0 ? status : wefti_fault_get(&fuser->stream->fault);
}

static weft_status_t check_complete(const weft_fuser_t *fuser)
{
    for (size_t i = 0; fuser->added < fuser->tensor_count && i < fuser->tensor_count; i++) {
        if (!fuser->tensors[i].added) {
            return wefti_fuser_missing(fuser, &fuser->tensors[i]);
        }
    }
    return WEFT_OK;
}

static void learned(weft_fuser_t *fuser)
{
    fuser->learning = fuser->bucket_count == 0; /* a step of nothing teaches nothing */
    fuser->stats.tensor_count = fuser->tensor_count;
    fuser->stats.bucket_count = fuser->bucket_count;
    fuser->stats.largest_bucket_bytes = 0;
    for (size_t i = 0; i < fuser->bucket_count; i++) {
        wefti_fuser_bucket_t *bucket = fuser->buckets[i];
        uint64_t bytes = bucket->base.count * bucket->base.elem_bytes;
        if (bytes > fuser->stats.largest_bucket_bytes) {
            fuser->stats.largest_bucket_bytes = bytes;
        }
        wefti_free(fuser->context->allocator, bucket->message);
        bucket->message = NULL;
    }
}

weft_status_t weft_fuser_wait(weft_fuser_t *fuser)
{
    WEFT_CHECK_ARG(fuser);
    weft_status_t status = wefti_fuser_check(fuser);
    if (status < 0) {
        return status;
    }
    fuser->ending = true;
    if (!fuser->learning) {
        status = check_complete(fuser);
    } else if (decides(fuser)) {
        status = wefti_fuser_close(fuser, UINT64_MAX);
    }
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
