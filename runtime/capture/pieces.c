/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of a bucket is one call. Members that lie side by side on every rank are reduced where they
 * are, large ones too; small ones that lie apart are packed into the capture's buffer, as many as
 * fit, and come back from there. Addresses stay, so ranks settle this once.
 */
#include <stdio.h>
#include <string.h>

#include <weft/memory.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "runtime/capture/capture.h"

#define UNIT_BYTES 64u /* in which tensors are split */

/* Members of buckets, one after the other: it continues the member before it on all ranks. */
static weft_status_t find_runs(weft_capture_t *capture, uint8_t **out_continues)
{
    uint8_t *flags = wefti_arena_array(&capture->arena, capture->call_count, 1), *at = flags;
    weft_status_t status =
        wefti_group_agree(capture->group, flags != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY);
    if (status < 0) {
        return status;
    }
    for (uint32_t u = 0; u < capture->unit_count; u++) {
        const wefti_bucket_t *bucket = &capture->units[u].bucket;
        for (uint32_t i = 1; i < bucket->part_count; i++) {
            at[i] = wefti_bucket_part_continues(bucket, i);
        }
        at += bucket->part_count;
    }
    *out_continues = flags;
    return weft_all_reduce(flags, flags, capture->call_count, WEFT_DTYPE_U8, WEFT_REDUCTION_MIN,
                           capture->group, NULL);
}

/* The parts that the policy's cap asks for. */
static weft_status_t cut_into_parts(weft_capture_t *capture, wefti_capture_unit_t *unit)
{
    uint64_t units = (unit->bytes + UNIT_BYTES - 1) / UNIT_BYTES, at = 0;
    uint64_t unit_elems = UNIT_BYTES / unit->bucket.elem_bytes;
    wefti_bucket_t *bucket = &unit->bucket;
    bucket->pieces = wefti_arena_array(&capture->arena, unit->parts, sizeof *bucket->pieces);
    if (bucket->pieces == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint64_t i = 1; i <= unit->parts; i++) {
        uint64_t end = i < unit->parts ? units * i / unit->parts * unit_elems : bucket->count;
        bucket->pieces[bucket->piece_count++] =
            (wefti_bucket_piece_t){bucket, at, end - at, 0, false};
        at = end;
    }
    return WEFT_OK;
}

static weft_status_t cut_into_runs(weft_capture_t *capture, wefti_bucket_t *bucket,
                                   const uint8_t *continues)
{
    bucket->piece_count = wefti_bucket_cut(bucket, continues, false, NULL);
    bucket->pieces =
        wefti_arena_array(&capture->arena, bucket->piece_count, sizeof *bucket->pieces);
    if (bucket->pieces == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    wefti_bucket_cut(bucket, continues, false, bucket->pieces);
    return WEFT_OK;
}

static weft_status_t cut(weft_capture_t *capture, const uint8_t *continues)
{
    weft_status_t status = WEFT_OK;
    weft_capture_info_t *info = &capture->info;
    info->call_count = capture->call_count;
    for (uint32_t u = 0; u < capture->unit_count; u++) {
        wefti_capture_unit_t *unit = &capture->units[u];
        if (!unit->is_bucket) {
            info->run_count++;
            continue;
        }
        status = unit->parts > 0 ? cut_into_parts(capture, unit)
                                 : cut_into_runs(capture, &unit->bucket, continues);
        WEFT_TRY(status, status, fail);
        continues += unit->member_count;
        info->bucket_count++;
        info->run_count += unit->bucket.piece_count;
        info->largest_bucket_bytes =
            unit->bytes > info->largest_bucket_bytes ? unit->bytes : info->largest_bucket_bytes;
        for (uint32_t k = 0; k < unit->bucket.piece_count; k++) {
            uint64_t bytes = unit->bucket.pieces[k].count * unit->bucket.elem_bytes;
            if (unit->bucket.pieces[k].packed) {
                info->copied_bytes += 2 * bytes;
                info->buffer_bytes = bytes > info->buffer_bytes ? bytes : info->buffer_bytes;
            }
        }
    }
fail:
    return status;
}

/* ---- the digest ---- */

static void add_word(wefti_hasher_t *hasher, uint64_t word)
{
    uint8_t bytes[8];
    for (uint32_t i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(word >> (8 * i));
    }
    wefti_hasher_add(hasher, bytes, sizeof bytes);
}

static weft_status_t seal(weft_capture_t *capture)
{
    wefti_hasher_t *hasher;
    wefti_digest_t digest;
    weft_status_t status = wefti_hasher_create(&hasher);
    if (status < 0) {
        return status;
    }
    wefti_hasher_add(hasher, "weft capture 1", 14);
    add_word(hasher, capture->group->size);
    add_word(hasher, capture->unit_count);
    for (uint32_t u = 0; u < capture->unit_count; u++) {
        const wefti_capture_unit_t *unit = &capture->units[u];
        add_word(hasher, unit->member_count);
        for (uint32_t i = 0; i < unit->member_count; i++) {
            const wefti_request_t *request = &capture->calls[unit->members[i]].batched.request;
            add_word(hasher, unit->members[i]);
            add_word(hasher, (uint64_t)request->op | (uint64_t)request->dtype << 8 |
                                 (uint64_t)request->reduction << 16);
            add_word(hasher, request->count);
            add_word(hasher, request->root);
        }
        add_word(hasher, unit->bucket.piece_count);
        for (uint32_t k = 0; k < unit->bucket.piece_count; k++) {
            const wefti_bucket_piece_t *piece = &unit->bucket.pieces[k];
            add_word(hasher, piece->count << 1 | piece->packed);
        }
    }
    wefti_hasher_finish(hasher, &digest);
    wefti_hasher_destroy(hasher);
    wefti_digest_hex(&digest, capture->info.digest);
    return WEFT_OK;
}

static weft_status_t compare_digests(weft_capture_t *capture)
{
    weft_group_t *group = capture->group;
    size_t bytes = sizeof capture->info.digest;
    char *all = wefti_arena_array(&capture->arena, group->size, bytes);
    WEFT_RETURN_IF_ERROR(
        wefti_group_agree(capture->group, all != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY));
    weft_status_t status =
        weft_all_gather(capture->info.digest, all, bytes, WEFT_DTYPE_U8, group, NULL);
    WEFT_RETURN_IF_ERROR(status);
    for (uint32_t r = 1; r < group->size; r++) {
        if (memcmp(all, all + r * bytes, bytes) != 0) {
            return wefti_error(WEFT_ERR_MISMATCH,
                               "capture: ranks made different plans: digest %.16s on rank %u, "
                               "%.16s on rank %u; use the same cost table on all ranks",
                               all, group->ranks[0], all + r * bytes, group->ranks[r]);
        }
    }
    return status; /* WEFT_AGAIN is no error */
}

static weft_status_t create_events(weft_capture_t *capture)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; status == WEFT_OK && i < capture->unit_count; i++) {
        status = weft_event_create(capture->context, &capture->units[i].event);
    }
    return status;
}

/* Where pieces are packed. */
static weft_status_t get_buffer(weft_capture_t *capture)
{
    weft_status_t status;
    weft_context_t *context = capture->context;
    void *buffer = NULL;
    size_t bytes = (size_t)capture->info.buffer_bytes;
    if (capture->group->whole_world) { /* otherwise other ranks would have to take part */
        status = weft_mem_alloc(context, bytes, &buffer);
        capture->reachable = status == WEFT_OK;
    } else if (context->device != NULL) {
        status = weft_device_alloc(context, bytes, &buffer);
    } else {
        buffer = wefti_alloc(context->allocator, bytes);
        status = buffer != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    }
    capture->buffer = buffer;
    for (uint32_t u = 0; u < capture->unit_count; u++) {
        capture->units[u].bucket.buffer = buffer;
    }
    return status;
}

weft_status_t wefti_capture_cut(weft_capture_t *capture)
{
    weft_status_t status;
    uint8_t *flags = NULL;
    WEFT_TRY(status, find_runs(capture, &flags), fail);
    status = cut(capture, flags);
    status = status == WEFT_OK ? create_events(capture) : status;
    status = status == WEFT_OK ? seal(capture) : status;
    WEFT_TRY(status, wefti_group_agree(capture->group, status), fail);
    WEFT_TRY(status, compare_digests(capture), fail);
    if (capture->info.buffer_bytes > 0) {
        status = wefti_group_agree(capture->group, get_buffer(capture));
    }
fail:
    return status;
}
