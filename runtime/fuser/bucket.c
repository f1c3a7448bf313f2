/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buckets. In the first step rank 0 fills them as tensors appear; a closed one is told to the
 * others as a list of its members, which they take over. A bucket's place in the array is its turn.
 */
#include "runtime/fuser/fuser.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

#define MAGIC 0x57465553u
#define LIST_HEAD_BYTES 8u    /* members, dtype, reduction */
#define LIST_MEMBER_BYTES 28u /* tensor's count, first, count, length of the name that follows */
#define LIST_MAX_BYTES ((uint64_t)256 << 20) /* a longer one is no list of ours */

/* ---- what is said over the wire ---- */

static uint8_t *put(uint8_t *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return to + bytes;
}

static weft_status_t write_message(weft_fuser_t *fuser, wefti_fuser_bucket_t *bucket)
{
    size_t bytes = LIST_HEAD_BYTES;
    for (size_t i = 0; i < bucket->member_count; i++) {
        bytes += LIST_MEMBER_BYTES + strlen(fuser->tensors[bucket->members[i].tensor].name);
    }
    if (bytes > LIST_MAX_BYTES) {
        return wefti_error(WEFT_ERR_NO_MEMORY,
                           "fuser: tensor names too long: the names of the %zu tensors of a bucket "
                           "need %zu bytes, at most %zu",
                           bucket->member_count, bytes, (size_t)LIST_MAX_BYTES);
    }
    wefti_fuser_header_t header = {MAGIC, 0, bytes};
    bucket->message = wefti_alloc(fuser->context->allocator, sizeof header + bytes);
    if (bucket->message == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    bucket->list_bytes = bytes;
    uint32_t head[2] = {(uint32_t)bucket->member_count,
                        (uint32_t)bucket->base.dtype | (uint32_t)bucket->base.reduction << 8};
    uint8_t *to = put(bucket->message, &header, sizeof header);
    to = put(to, head, sizeof head);
    for (size_t i = 0; i < bucket->member_count; i++) {
        const wefti_fuser_member_t *member = &bucket->members[i];
        const wefti_fuser_tensor_t *tensor = &fuser->tensors[member->tensor];
        uint64_t numbers[3] = {tensor->count, member->first, member->count};
        uint32_t length = (uint32_t)strlen(tensor->name);
        to = put(to, numbers, sizeof numbers);
        to = put(to, &length, sizeof length);
        to = put(to, tensor->name, length);
    }
    return WEFT_OK;
}

void wefti_fuser_end_header(wefti_fuser_header_t *header)
{
    *header = (wefti_fuser_header_t){MAGIC, 1, 0};
}

bool wefti_fuser_header_is_good(const wefti_fuser_header_t *header)
{
    return header->magic == MAGIC && (header->end != 0 || header->list_bytes >= LIST_HEAD_BYTES) &&
           header->list_bytes <= LIST_MAX_BYTES;
}

/* ---- all ranks ---- */

void wefti_fuser_bucket_free(weft_fuser_t *fuser, wefti_fuser_bucket_t *bucket)
{
    const weft_allocator_t *allocator = fuser->context->allocator;
    if (bucket != NULL) {
        wefti_free(allocator, bucket->members);
        wefti_free(allocator, bucket->base.parts);
        wefti_free(allocator, bucket->base.pieces);
        wefti_free(allocator, bucket->message);
        wefti_free(allocator, bucket);
    }
}

static weft_status_t new_bucket(weft_fuser_t *fuser, weft_dtype_t dtype, weft_reduction_t reduction,
                                wefti_fuser_bucket_t **out_bucket)
{
    wefti_fuser_bucket_t *bucket = wefti_alloc(fuser->context->allocator, sizeof *bucket);
    *out_bucket = bucket;
    if (bucket == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    bucket->base.dtype = dtype;
    bucket->base.reduction = reduction;
    bucket->base.elem_bytes = weft_dtype_size_bytes(dtype);
    bucket->base.buffer = fuser->buffer;
    return WEFT_OK;
}

static weft_status_t add_member(weft_fuser_t *fuser, wefti_fuser_bucket_t *bucket, uint32_t tensor,
                                uint64_t count)
{
    wefti_fuser_tensor_t *entry = &fuser->tensors[tensor];
    weft_status_t status =
        wefti_array_reserve(fuser->context->allocator, &bucket->members, &bucket->member_capacity,
                            bucket->member_count + 1, sizeof *bucket->members);
    if (status == WEFT_OK) {
        bucket->members[bucket->member_count++] = (wefti_fuser_member_t){
            .tensor = tensor, .first = entry->listed, .count = count, .order = bucket->base.count};
        bucket->base.count += count;
        entry->listed += count;
    }
    return status;
}

/* Its parts, in the order of the members, and its pieces. */
static weft_status_t cut(const weft_fuser_t *fuser, wefti_fuser_bucket_t *bucket)
{
    const weft_allocator_t *allocator = fuser->context->allocator;
    wefti_bucket_t *base = &bucket->base;
    uint64_t at = 0;
    base->parts = wefti_alloc(allocator, bucket->member_count * sizeof *base->parts);
    if (base->parts == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    base->part_count = (uint32_t)bucket->member_count;
    for (size_t i = 0; i < bucket->member_count; i++) {
        base->parts[i].at = at;
        at += bucket->members[i].count;
    }
    base->piece_count = wefti_bucket_cut(base, NULL, true, NULL);
    base->pieces = wefti_alloc(allocator, (base->piece_count + 1) * sizeof *base->pieces);
    if (base->pieces == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    wefti_bucket_cut(base, NULL, true, base->pieces);
    return WEFT_OK;
}

/* The bucket gets the next turn, and its tensors know that they are in it. */
static weft_status_t append(weft_fuser_t *fuser, wefti_fuser_bucket_t *bucket)
{
    weft_status_t status =
        wefti_array_reserve(fuser->context->allocator, &fuser->buckets, &fuser->bucket_capacity,
                            fuser->bucket_count + 1, sizeof(wefti_fuser_bucket_t *));
    if (status == WEFT_OK) {
        status = cut(fuser, bucket);
    }
    if (status < 0) {
        return status;
    }
    uint32_t index = (uint32_t)fuser->bucket_count;
    for (size_t i = 0; i < bucket->member_count; i++) {
        wefti_fuser_member_t *member = &bucket->members[i];
        wefti_fuser_tensor_t *tensor = &fuser->tensors[member->tensor];
        member->bucket_before = tensor->last_bucket;
        member->member_before = tensor->last_member;
        tensor->last_bucket = index;
        tensor->last_member = (uint32_t)i;
        bucket->missing += !tensor->added;
    }
    fuser->buckets[fuser->bucket_count++] = bucket;
    return WEFT_OK;
}

/* ---- rank 0 ---- */

static int by_address(const void *a, const void *b)
{
    const wefti_fuser_member_t *x = a, *y = b;
    uintptr_t left = (uintptr_t)x->address, right = (uintptr_t)y->address;
    if (left == right) { /* one of them is empty */
        return x->count != y->count ? (x->count < y->count ? -1 : 1)
                                    : (x->order < y->order ? -1 : x->order > y->order);
    }
    return left < right ? -1 : 1;
}

static int by_place(const void *a, const void *b)
{
    const wefti_fuser_member_t *x = a, *y = b;
    return x->tensor != y->tensor ? (x->tensor < y->tensor ? -1 : 1)
                                  : (x->first < y->first ? -1 : x->first > y->first);
}

/*
 * Gradients appear in about the reverse order of their parameters, so often of their addresses. If
 * they lie side by side that way, the bucket is a range of memory. Otherwise they stay as they
 * came: their numbers tell.
 */
static void put_in_order(const weft_fuser_t *fuser, wefti_fuser_bucket_t *bucket)
{
    bool side_by_side = true;
    for (size_t i = 0; i < bucket->member_count; i++) {
        wefti_fuser_member_t *member = &bucket->members[i];
        const uint8_t *address = fuser->tensors[member->tensor].address;
        member->address =
            address != NULL ? address + member->first * bucket->base.elem_bytes : NULL;
    }
    qsort(bucket->members, bucket->member_count, sizeof *bucket->members, by_address);
    for (size_t i = 1; i < bucket->member_count; i++) {
        const wefti_fuser_member_t *before = &bucket->members[i - 1];
        side_by_side &=
            before->address + before->count * bucket->base.elem_bytes == bucket->members[i].address;
    }
    if (!side_by_side) {
        qsort(bucket->members, bucket->member_count, sizeof *bucket->members, by_place);
    }
}

static uint32_t kind_of(weft_dtype_t dtype, weft_reduction_t reduction)
{
    return (uint32_t)dtype * 8 + (uint32_t)reduction;
}

static weft_status_t close_one(weft_fuser_t *fuser, uint32_t kind)
{
    wefti_fuser_bucket_t *bucket = fuser->open[kind];
    put_in_order(fuser, bucket);
    weft_status_t status = write_message(fuser, bucket);
    if (status == WEFT_OK) {
        status = append(fuser, bucket);
    }
    if (status == WEFT_OK) { /* else it is freed with the open ones */
        fuser->open[kind] = NULL;
        fuser->open_count--;
    }
    return status;
}

weft_status_t wefti_fuser_close(weft_fuser_t *fuser, uint64_t time_ns)
{
    weft_status_t status = WEFT_OK;
    while (status == WEFT_OK && fuser->open_count > 0) {
        uint32_t oldest = WEFTI_FUSER_KINDS;
        for (uint32_t kind = 0; kind < WEFTI_FUSER_KINDS; kind++) {
            const wefti_fuser_bucket_t *bucket = fuser->open[kind];
            if (bucket != NULL && (oldest == WEFTI_FUSER_KINDS ||
                                   bucket->opened_ns < fuser->open[oldest]->opened_ns)) {
                oldest = kind;
            }
        }
        if (fuser->open[oldest]->opened_ns > time_ns) {
            break;
        }
        status = close_one(fuser, oldest);
    }
    return status;
}

weft_status_t wefti_fuser_place(weft_fuser_t *fuser, uint32_t tensor, uint64_t now_ns)
{
    wefti_fuser_tensor_t *entry = &fuser->tensors[tensor];
    uint32_t kind = kind_of(entry->dtype, entry->reduction);
    uint64_t room = fuser->bytes / weft_dtype_size_bytes(entry->dtype), left = entry->count;
    weft_status_t status = WEFT_OK;
    if (fuser->open[kind] != NULL && left > room - fuser->open[kind]->base.count) {
        status = close_one(fuser, kind);
    }
    do { /* once for a tensor without elements, too */
        if (status == WEFT_OK && fuser->open[kind] == NULL) {
            status = new_bucket(fuser, entry->dtype, entry->reduction, &fuser->open[kind]);
            if (status == WEFT_OK) {
                fuser->open[kind]->opened_ns = now_ns;
                fuser->open_count++;
            }
        }
        if (status < 0) {
            return status;
        }
        uint64_t count = left < room ? left : room;
        status = add_member(fuser, fuser->open[kind], tensor, count);
        left -= count;
        if (status == WEFT_OK && fuser->open[kind]->base.count == room) {
            status = close_one(fuser, kind);
        }
    } while (status == WEFT_OK && left > 0);
    return status;
}

/* ---- the other ranks ---- */

typedef struct reader {
    const uint8_t *at, *end;
} reader_t;

static bool get(reader_t *reader, void *to, size_t bytes)
{
    if ((size_t)(reader->end - reader->at) < bytes) {
        return false;
    }
    memcpy(to, reader->at, bytes);
    reader->at += bytes;
    return true;
}

static weft_status_t bad_list(const weft_fuser_t *fuser)
{
    return wefti_error(WEFT_ERR_FORMAT, "malformed message from rank %u: tensor list",
                       fuser->group->ranks[0]);
}

static weft_status_t differs(const weft_fuser_t *fuser, const wefti_fuser_tensor_t *own,
                             const wefti_fuser_bucket_t *bucket, uint64_t count)
{
    return wefti_error(
        WEFT_ERR_MISMATCH,
        "tensor \"%.200s\": rank %u adds %llu x %s (%s), rank %u adds %llu x %s (%s)", own->name,
        fuser->group->ranks[0], (unsigned long long)count, weft_dtype_name(bucket->base.dtype),
        weft_reduction_name(bucket->base.reduction), wefti_fuser_rank(fuser),
        (unsigned long long)own->count, weft_dtype_name(own->dtype),
        weft_reduction_name(own->reduction));
}

static weft_status_t adopt_member(weft_fuser_t *fuser, wefti_fuser_bucket_t *bucket,
                                  reader_t *reader)
{
    uint64_t numbers[3]; /* the tensor's count, first, count */
    uint32_t length, tensor;
    size_t bytes;
    if (!get(reader, numbers, sizeof numbers) || !get(reader, &length, sizeof length) ||
        length == 0 || length > WEFT_FUSER_NAME_BYTES ||
        (size_t)(reader->end - reader->at) < length || memchr(reader->at, 0, length) != NULL ||
        !wefti_mul_size((size_t)numbers[0], bucket->base.elem_bytes, &bytes) ||
        numbers[1] > numbers[0] || numbers[2] > numbers[0] - numbers[1] ||
        numbers[2] > fuser->bytes / bucket->base.elem_bytes - bucket->base.count) {
        return bad_list(fuser);
    }
    const char *name = (const char *)reader->at;
    reader->at += length;
    tensor = wefti_fuser_find(fuser, name, length);
    if (tensor == WEFTI_FUSER_NONE) { /* not added here yet */
        weft_status_t status = wefti_fuser_new_tensor(fuser, name, length, &tensor);
        if (status < 0) {
            return status;
        }
        fuser->tensors[tensor].count = numbers[0];
        fuser->tensors[tensor].dtype = bucket->base.dtype;
        fuser->tensors[tensor].reduction = bucket->base.reduction;
    }
    const wefti_fuser_tensor_t *entry = &fuser->tensors[tensor];
    if (entry->count != numbers[0] || entry->dtype != bucket->base.dtype ||
        entry->reduction != bucket->base.reduction) {
        return differs(fuser, entry, bucket, numbers[0]);
    }
    if (entry->listed != numbers[1]) {
        return bad_list(fuser);
    }
    return add_member(fuser, bucket, tensor, numbers[2]);
}

weft_status_t wefti_fuser_adopt(weft_fuser_t *fuser, const uint8_t *list, size_t bytes)
{
    reader_t reader = {list, list + bytes};
    wefti_fuser_bucket_t *bucket = NULL;
    uint32_t head[2];
    if (!get(&reader, head, sizeof head)) {
        return bad_list(fuser);
    }
    weft_dtype_t dtype = (weft_dtype_t)(head[1] & 0xff);
    uint32_t reduction = head[1] >> 8;
    if (weft_dtype_size_bytes(dtype) == 0 || dtype == WEFT_DTYPE_BOOL ||
        reduction > WEFT_REDUCTION_MAX) {
        return bad_list(fuser);
    }
    weft_status_t status = new_bucket(fuser, dtype, (weft_reduction_t)reduction, &bucket);
    for (uint32_t i = 0; status == WEFT_OK && i < head[0]; i++) {
        status = adopt_member(fuser, bucket, &reader);
    }
    if (status == WEFT_OK && reader.at != reader.end) {
        status = bad_list(fuser);
    }
    if (status == WEFT_OK) {
        status = append(fuser, bucket);
    }
    if (status < 0) {
        wefti_fuser_bucket_free(fuser, bucket);
    }
    return status;
}

weft_status_t wefti_fuser_check_listed(const weft_fuser_t *fuser)
{
    for (size_t i = 0; i < fuser->tensor_count; i++) {
        const wefti_fuser_tensor_t *tensor = &fuser->tensors[i];
        if (tensor->last_bucket == WEFTI_FUSER_NONE) {
            return wefti_error(
                WEFT_ERR_MISMATCH,
                "rank %u adds tensor \"%.200s\", which rank %u did not add in the first step",
                wefti_fuser_rank(fuser), tensor->name, fuser->group->ranks[0]);
        }
        if (tensor->listed != tensor->count) {
            return bad_list(fuser);
        }
    }
    return WEFT_OK;
}
