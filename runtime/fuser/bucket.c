/* SPDX-License-Identifier: Apache-2.0 */
/* The log of rank 0, frame by frame, and the buckets that all ranks fill by it. */
#include "runtime/fuser/fuser.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

/* ---- buckets ---- */

/* It gets the next turn. */
static void close_bucket(weft_fuser_t *fuser, wefti_fuser_bucket_t **link)
{
    wefti_fuser_bucket_t *bucket = *link;
    *link = bucket->next;
    bucket->next = NULL;
    *fuser->buckets_end = bucket;
    fuser->buckets_end = &bucket->next;
}

static void close_opened_by(weft_fuser_t *fuser, uint64_t time_ns)
{
    while (fuser->open != NULL && fuser->open->opened_ns <= time_ns) {
        close_bucket(fuser, &fuser->open);
    }
}

/* The link to the open bucket for tensors like this one, or the last link. */
static wefti_fuser_bucket_t **find_open(weft_fuser_t *fuser, const wefti_fuser_tensor_t *tensor)
{
    wefti_fuser_bucket_t **link = &fuser->open;
    while (*link != NULL &&
           ((*link)->base.dtype != tensor->dtype || (*link)->base.reduction != tensor->reduction)) {
        link = &(*link)->next;
    }
    return link;
}

static wefti_fuser_bucket_t *new_bucket(weft_fuser_t *fuser, const wefti_fuser_tensor_t *tensor,
                                        uint64_t now_ns)
{
    wefti_fuser_bucket_t *bucket = wefti_arena_alloc(&fuser->arena, sizeof *bucket);
    if (bucket != NULL) {
        bucket->base.dtype = tensor->dtype;
        bucket->base.reduction = tensor->reduction;
        bucket->base.elem_bytes = weft_dtype_size_bytes(tensor->dtype);
        bucket->base.buffer = fuser->runner.buffer;
        bucket->opened_ns = now_ns;
        bucket->end = &bucket->first;
    }
    return bucket;
}

/* A tensor above fuser->bytes has a bucket of its own, the pieces of which keep to them. */
static weft_status_t place(weft_fuser_t *fuser, wefti_fuser_tensor_t *tensor, uint64_t now_ns)
{
    const uint64_t room = fuser->bytes / weft_dtype_size_bytes(tensor->dtype);
    wefti_fuser_bucket_t **link = find_open(fuser, tensor);
    if (*link != NULL && tensor->count > room - (*link)->base.count) {
        close_bucket(fuser, link);
        link = find_open(fuser, tensor);
    }
    if (*link == NULL) {
        *link = new_bucket(fuser, tensor, now_ns);
        WEFT_RETURN_IF_NO_MEMORY(*link != NULL);
    }
    wefti_fuser_bucket_t *bucket = *link;
    *bucket->end = tensor;
    bucket->end = &tensor->next_member;
    bucket->base.part_count++;
    bucket->base.count += tensor->count;
    bucket->missing += !wefti_fuser_has_added(fuser, tensor);
    tensor->bucket = bucket;
    if (bucket->base.count >= room) {
        close_bucket(fuser, link);
    }
    return WEFT_OK;
}

static int compare_keys(const void *a, const void *b)
{
    const wefti_fuser_tensor_t *x = *(wefti_fuser_tensor_t *const *)a;
    const wefti_fuser_tensor_t *y = *(wefti_fuser_tensor_t *const *)b;
    if (x->key == y->key) { /* one of them is empty */
        return x->count != y->count ? (x->count < y->count ? -1 : 1) : strcmp(x->name, y->name);
    }
    return x->key < y->key ? -1 : 1;
}

/*
 * Gradients appear in about the reverse order of their parameters, so often of their addresses: in
 * the order of these on rank 0, a bucket may be a range of memory.
 */
weft_status_t wefti_fuser_cut(weft_fuser_t *fuser, wefti_fuser_bucket_t *bucket)
{
    wefti_bucket_t *base = &bucket->base;
    const uint64_t most =
        fuser->bytes < WEFTI_BUCKET_PIECE_BYTES ? fuser->bytes : WEFTI_BUCKET_PIECE_BYTES;
    uint64_t at = 0;
    uint32_t count = 0;
    bucket->members = wefti_arena_array(&fuser->arena, base->part_count, sizeof *bucket->members);
    base->parts = wefti_arena_array(&fuser->arena, base->part_count, sizeof *base->parts);
    WEFT_RETURN_IF_NO_MEMORY(bucket->members != NULL && base->parts != NULL);
    for (wefti_fuser_tensor_t *tensor = bucket->first; tensor != NULL;) {
        bucket->members[count++] = tensor;
        tensor = tensor->next_member;
    }
    qsort(bucket->members, count, sizeof *bucket->members, compare_keys);
    for (uint32_t i = 0; i < count; i++) {
        base->parts[i].at = at;
        at += bucket->members[i]->count;
    }
    base->piece_count = wefti_bucket_cut(base, NULL, most, NULL);
    base->pieces = wefti_arena_array(&fuser->arena, base->piece_count, sizeof *base->pieces);
    WEFT_RETURN_IF_NO_MEMORY(base->pieces != NULL);
    wefti_bucket_cut(base, NULL, most, base->pieces);
    return WEFT_OK;
}

/* ---- the log ---- */

/* When the first of these entries that is a tensor was added; UINT64_MAX: none is. */
static uint64_t first_added_ns(const uint8_t *entries, size_t bytes)
{
    wefti_fuser_entry_t entry;
    for (size_t at = 0; at < bytes; at += sizeof entry + entry.name_bytes) {
        memcpy(&entry, entries + at, sizeof entry);
        if (entry.name_bytes > 0) {
            return entry.time_ns;
        }
    }
    return UINT64_MAX;
}

uint64_t wefti_fuser_oldest(const weft_fuser_t *fuser)
{
    uint64_t oldest = fuser->open != NULL ? fuser->open->opened_ns : UINT64_MAX;
    if (oldest == UINT64_MAX && fuser->phase == WEFTI_FUSER_FRAME_DUE) {
        oldest = first_added_ns(fuser->frame.entries, fuser->frame.bytes);
    }
    if (oldest == UINT64_MAX && fuser->log_bytes > fuser->sent_bytes) {
        oldest =
            first_added_ns(fuser->log + fuser->sent_bytes, fuser->log_bytes - fuser->sent_bytes);
    }
    return oldest;
}

/* The log ends with a time, which a later one replaces: however often a program asks, the log grows
 * with its tensors only. */
static bool replace_end(weft_fuser_t *fuser, uint64_t ends_ns)
{
    wefti_fuser_entry_t entry;
    if (!fuser->log_ends_with_time || fuser->log_bytes == fuser->sent_bytes) {
        return false;
    }
    memcpy(&entry, fuser->log + fuser->log_bytes - sizeof entry, sizeof entry);
    entry.ends_ns = ends_ns > entry.ends_ns ? ends_ns : entry.ends_ns;
    memcpy(fuser->log + fuser->log_bytes - sizeof entry, &entry, sizeof entry);
    return true;
}

weft_status_t wefti_fuser_log(weft_fuser_t *fuser, const wefti_fuser_tensor_t *tensor,
                              uint64_t ends_ns, uint64_t now_ns)
{
    wefti_fuser_entry_t entry = {.ends_ns = ends_ns, .time_ns = now_ns};
    if (tensor != NULL) {
        entry.count = tensor->count;
        entry.key = (uintptr_t)tensor->address;
        entry.name_bytes = (uint32_t)strlen(tensor->name);
        entry.dtype = (uint16_t)tensor->dtype;
        entry.reduction = (uint16_t)tensor->reduction;
    }
    if (tensor == NULL && replace_end(fuser, ends_ns)) {
        return WEFT_OK;
    }
    const size_t bytes = sizeof entry + entry.name_bytes;
    if (fuser->sent_bytes == fuser->log_bytes) {
        fuser->sent_bytes = fuser->log_bytes = 0;
    }
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(fuser->context->allocator, &fuser->log,
                                             &fuser->log_capacity, fuser->log_bytes + bytes, 1));
    memcpy(fuser->log + fuser->log_bytes, &entry, sizeof entry);
    if (tensor != NULL) {
        memcpy(fuser->log + fuser->log_bytes + sizeof entry, tensor->name, entry.name_bytes);
    }
    fuser->log_bytes += bytes;
    fuser->log_ends_with_time = tensor == NULL;
    return WEFT_OK;
}

void wefti_fuser_fill_frame(weft_fuser_t *fuser)
{
    wefti_fuser_frame_t *frame = &fuser->frame;
    const uint8_t *log = fuser->log + fuser->sent_bytes;
    const size_t log_bytes = fuser->log_bytes - fuser->sent_bytes;
    uint32_t bytes = 0;
    for (frame->bytes = 0; frame->bytes < log_bytes; frame->bytes += bytes) {
        wefti_fuser_entry_t entry;
        memcpy(&entry, log + frame->bytes, sizeof entry);
        bytes = (uint32_t)sizeof entry + entry.name_bytes;
        if (frame->bytes + bytes > WEFTI_FUSER_FRAME_BYTES) {
            break;
        }
    }
    if (frame->bytes > 0) {
        memcpy(frame->entries, log, frame->bytes);
    }
    frame->end = fuser->ending && frame->bytes == log_bytes;
}

static weft_status_t bad_frame(const weft_fuser_t *fuser)
{
    return wefti_error(WEFT_ERR_FORMAT, "malformed message from rank %u: tensor list",
                       fuser->runner.group->ranks[0]);
}

static weft_status_t differs(const weft_fuser_t *fuser, const wefti_fuser_tensor_t *own,
                             const wefti_fuser_entry_t *entry)
{
    return wefti_error(
        WEFT_ERR_MISMATCH,
        "tensor \"%.200s\": rank %u adds %llu x %s (%s), rank %u adds %llu x %s (%s)", own->name,
        fuser->runner.group->ranks[0], (unsigned long long)entry->count,
        weft_dtype_name((weft_dtype_t)entry->dtype),
        weft_reduction_name((weft_reduction_t)entry->reduction), wefti_fuser_rank(fuser),
        (unsigned long long)own->count, weft_dtype_name(own->dtype),
        weft_reduction_name(own->reduction));
}

static weft_status_t read_tensor(weft_fuser_t *fuser, const wefti_fuser_entry_t *entry,
                                 const char *name)
{
    const size_t elem_bytes = weft_dtype_size_bytes((weft_dtype_t)entry->dtype);
    size_t bytes;
    if (entry->name_bytes > WEFT_FUSER_NAME_BYTES || memchr(name, 0, entry->name_bytes) != NULL ||
        elem_bytes == 0 || entry->dtype == WEFT_DTYPE_BOOL ||
        entry->reduction > WEFT_REDUCTION_MAX ||
        !wefti_mul_size((size_t)entry->count, elem_bytes, &bytes)) {
        return bad_frame(fuser);
    }
    wefti_fuser_tensor_t *tensor = wefti_fuser_find(fuser, name, entry->name_bytes);
    if (tensor == NULL) { /* not added here yet */
        WEFT_RETURN_IF_ERROR(wefti_fuser_new_tensor(fuser, name, entry->name_bytes, &tensor));
        tensor->count = entry->count;
        tensor->dtype = (weft_dtype_t)entry->dtype;
        tensor->reduction = (weft_reduction_t)entry->reduction;
    }
    if (tensor->count != entry->count || (uint16_t)tensor->dtype != entry->dtype ||
        (uint16_t)tensor->reduction != entry->reduction) {
        return differs(fuser, tensor, entry);
    }
    if (tensor->bucket != NULL) {
        return bad_frame(fuser);
    }
    tensor->key = entry->key;
    return place(fuser, tensor, entry->time_ns);
}

weft_status_t wefti_fuser_read_frame(weft_fuser_t *fuser)
{
    const wefti_fuser_frame_t *frame = &fuser->frame;
    wefti_fuser_entry_t entry;
    if (frame->bytes > WEFTI_FUSER_FRAME_BYTES) {
        return bad_frame(fuser);
    }
    for (uint32_t at = 0; at < frame->bytes; at += entry.name_bytes) {
        if (frame->bytes - at < sizeof entry) {
            return bad_frame(fuser);
        }
        memcpy(&entry, frame->entries + at, sizeof entry);
        at += (uint32_t)sizeof entry;
        if (frame->bytes - at < entry.name_bytes) {
            return bad_frame(fuser);
        }
        close_opened_by(fuser, entry.ends_ns);
        if (entry.name_bytes > 0) {
            WEFT_RETURN_IF_ERROR(read_tensor(fuser, &entry, (const char *)frame->entries + at));
        }
    }
    return frame->end != 0 && fuser->open != NULL ? bad_frame(fuser) : WEFT_OK;
}
