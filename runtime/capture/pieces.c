/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of a bucket is one call. Members that lie side by side on every rank are reduced where they
 * are, large ones too; small ones that lie apart are packed into the capture's buffer, as many as
 * fit, and come back from there. Addresses stay, so ranks settle this once.
 */
#include <string.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "runtime/capture/capture.h"

#define LINE_BYTES 64u

/* Members of buckets, one after the other: it continues the member before it on all ranks. */
static weft_status_t find_runs(weft_capture_t *capture, uint8_t **out_continues)
{
    uint8_t *flags = wefti_arena_array(&capture->arena, capture->call_count, 1), *at = flags;
    weft_status_t status =
        wefti_group_agree(capture->runner.group, flags != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY);
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
                           capture->runner.group, NULL);
}

/* The largest piece: a tensor above the policy's cap is split into even parts of whole lines. */
static uint64_t most_bytes(const wefti_capture_unit_t *unit)
{
    const uint64_t lines = (wefti_capture_bytes(unit) + LINE_BYTES - 1) / LINE_BYTES;
    return unit->parts == 1 ? UINT64_MAX : (lines + unit->parts - 1) / unit->parts * LINE_BYTES;
}

static weft_status_t cut_bucket(weft_capture_t *capture, wefti_capture_unit_t *unit,
                                const uint8_t *continues)
{
    weft_capture_info_t *info = &capture->info;
    wefti_bucket_t *bucket = &unit->bucket;
    const uint64_t most = most_bytes(unit), bytes = wefti_capture_bytes(unit);
    bucket->piece_count = wefti_bucket_cut(bucket, continues, most, NULL);
    bucket->pieces =
        wefti_arena_array(&capture->arena, bucket->piece_count, sizeof *bucket->pieces);
    WEFT_RETURN_IF_NO_MEMORY(bucket->pieces != NULL);
    wefti_bucket_cut(bucket, continues, most, bucket->pieces);
    info->bucket_count++;
    info->run_count += bucket->piece_count;
    info->largest_bucket_bytes =
        bytes > info->largest_bucket_bytes ? bytes : info->largest_bucket_bytes;
    for (uint32_t k = 0; k < bucket->piece_count; k++) {
        const uint64_t packed =
            bucket->pieces[k].packed ? bucket->pieces[k].count * bucket->elem_bytes : 0;
        info->copied_bytes += 2 * packed;
        info->buffer_bytes = packed > info->buffer_bytes ? packed : info->buffer_bytes;
    }
    return WEFT_OK;
}

static weft_status_t cut(weft_capture_t *capture, const uint8_t *continues)
{
    capture->info.call_count = capture->call_count;
    for (uint32_t u = 0; u < capture->unit_count; u++) {
        wefti_capture_unit_t *unit = &capture->units[u];
        if (unit->reason == NULL) {
            capture->info.run_count++;
            continue;
        }
        WEFT_RETURN_IF_ERROR(cut_bucket(capture, unit, continues));
        continues += unit->member_count;
    }
    return WEFT_OK;
}

/* ---- the digest ---- */

static weft_status_t seal(weft_capture_t *capture)
{
    wefti_hasher_t *hasher;
    wefti_digest_t digest;
    uint64_t sizes[] = {capture->runner.group->size, capture->unit_count};
    WEFT_RETURN_IF_ERROR(wefti_hasher_create(&hasher));
    wefti_hasher_add(hasher, sizes, sizeof sizes);
    for (uint32_t u = 0; u < capture->unit_count; u++) {
        const wefti_capture_unit_t *unit = &capture->units[u];
        uint64_t counts[] = {unit->member_count, unit->bucket.piece_count};
        wefti_hasher_add(hasher, counts, sizeof counts);
        for (uint32_t i = 0; i < unit->member_count; i++) {
            const wefti_request_t *request = &unit->members[i]->batched.request;
            uint64_t call[] = {wefti_capture_index(capture, unit->members[i]),
                               request->op,
                               request->dtype,
                               request->reduction,
                               request->count,
                               request->root};
            wefti_hasher_add(hasher, call, sizeof call);
        }
        for (uint32_t k = 0; k < unit->bucket.piece_count; k++) {
            const wefti_bucket_piece_t *piece = &unit->bucket.pieces[k];
            uint64_t call[] = {piece->count, piece->packed};
            wefti_hasher_add(hasher, call, sizeof call);
        }
    }
    wefti_hasher_finish(hasher, &digest);
    wefti_hasher_destroy(hasher);
    wefti_digest_hex(&digest, capture->info.digest);
    return WEFT_OK;
}

static weft_status_t compare_digests(weft_capture_t *capture, weft_status_t status)
{
    weft_group_t *group = capture->runner.group;
    const size_t bytes = sizeof capture->info.digest;
    char *all = NULL;
    status = wefti_group_gather(group, status, capture->info.digest, bytes, &all);
    for (uint32_t r = 1; status == WEFT_OK && r < group->size; r++) {
        if (memcmp(all, all + r * bytes, bytes) != 0) {
            status = wefti_error(WEFT_ERR_MISMATCH,
                                 "capture: ranks made different plans: digest %.16s on rank %u, "
                                 "%.16s on rank %u; use the same cost table on all ranks",
                                 all, group->ranks[0], all + r * bytes, group->ranks[r]);
        }
    }
    wefti_free(capture->context->allocator, all);
    return status;
}

/* That of the last unit is at the end of a replay. */
static weft_status_t create_events(weft_capture_t *capture)
{
    for (uint32_t i = 0; i + 1 < capture->unit_count; i++) {
        WEFT_RETURN_IF_ERROR(weft_event_create(capture->context, &capture->units[i].event));
    }
    if (capture->unit_count > 0) {
        capture->units[capture->unit_count - 1].event = capture->over;
    }
    return WEFT_OK;
}

weft_status_t wefti_capture_cut(weft_capture_t *capture)
{
    uint8_t *flags = NULL;
    WEFT_RETURN_IF_ERROR(find_runs(capture, &flags));
    weft_status_t status = cut(capture, flags);
    status = status == WEFT_OK ? create_events(capture) : status;
    status = status == WEFT_OK ? seal(capture) : status;
    status = compare_digests(capture, status);
    if (status != WEFT_OK || capture->info.buffer_bytes == 0) {
        return status;
    }
    WEFT_RETURN_IF_ERROR(
        wefti_bucket_runner_alloc(&capture->runner, (size_t)capture->info.buffer_bytes));
    for (uint32_t u = 0; u < capture->unit_count; u++) {
        capture->units[u].bucket.buffer = capture->runner.buffer;
    }
    return WEFT_OK;
}
