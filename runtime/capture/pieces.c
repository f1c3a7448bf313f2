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

/* A piece that was packed is still in the cache when it is reduced and unpacked; larger tensors are
 * no better off for being packed. */
#define PIECE_BYTES ((uint64_t)1 << 20)
#define LARGE_BYTES ((uint64_t)256 << 10)
#define UNIT_BYTES 64u /* in which tensors are split */

uint8_t *wefti_capture_place(const weft_capture_t *capture, const wefti_capture_unit_t *unit,
                             uint32_t member, uint64_t first, bool recv)
{
    const wefti_request_t *request = &capture->calls[unit->members[member]].batched.request;
    const uint8_t *begin = recv ? request->recv : request->send;
    uint64_t skip = first - unit->places[member];
    return (uint8_t *)(uintptr_t)begin + skip * weft_dtype_size_bytes(request->dtype);
}

/* Member i begins where the one before it ends, in both buffers. */
static bool continues(const weft_capture_t *capture, const wefti_capture_unit_t *unit, uint32_t i)
{
    uint64_t at = unit->places[i];
    return wefti_capture_place(capture, unit, i, at, false) ==
               wefti_capture_place(capture, unit, i - 1, at, false) &&
           wefti_capture_place(capture, unit, i, at, true) ==
               wefti_capture_place(capture, unit, i - 1, at, true);
}

/* By call: it continues the member before it on all ranks. */
static weft_status_t find_runs(weft_capture_t *capture, uint8_t **out_continues)
{
    uint8_t *flags = wefti_arena_array(&capture->arena, capture->call_count, 1);
    weft_status_t status =
        wefti_capture_verdict(capture, flags != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY);
    if (status < 0) {
        return status;
    }
    for (uint32_t u = 0; u < capture->unit_count; u++) {
        const wefti_capture_unit_t *unit = &capture->units[u];
        for (uint32_t i = 1; unit->is_bucket && i < unit->member_count; i++) {
            flags[unit->members[i]] = continues(capture, unit, i);
        }
    }
    *out_continues = flags;
    return weft_all_reduce(flags, flags, capture->call_count, WEFT_DTYPE_U8, WEFT_REDUCTION_MIN,
                           capture->group, NULL);
}

static void add_piece(weft_capture_t *capture, wefti_capture_unit_t *unit, uint32_t member,
                      uint64_t first, uint64_t count, bool packed)
{
    unit->pieces[unit->piece_count++] =
        (wefti_capture_piece_t){capture, unit, first, count, member, packed};
}

/* The parts that the policy's cap asks for. */
static weft_status_t cut_into_parts(weft_capture_t *capture, wefti_capture_unit_t *unit)
{
    uint64_t units = (unit->bytes + UNIT_BYTES - 1) / UNIT_BYTES, at = 0;
    uint64_t unit_elems = UNIT_BYTES * unit->elem_count / unit->bytes;
    unit->pieces = wefti_arena_array(&capture->arena, unit->parts, sizeof *unit->pieces);
    if (unit->pieces == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint64_t i = 1; i <= unit->parts; i++) {
        uint64_t end = i < unit->parts ? units * i / unit->parts * unit_elems : unit->elem_count;
        add_piece(capture, unit, 0, at, end - at, false);
        at = end;
    }
    return WEFT_OK;
}

/* Small runs that wait to be packed together. */
typedef struct packing {
    uint32_t member, runs;
    uint64_t first, count;
} packing_t;

static void flush(weft_capture_t *capture, wefti_capture_unit_t *unit, packing_t *p)
{
    if (p->runs > 0) {
        add_piece(capture, unit, p->member, p->first, p->count, p->runs > 1);
    }
    *p = (packing_t){0};
}

static weft_status_t cut_into_runs(weft_capture_t *capture, wefti_capture_unit_t *unit,
                                   const uint8_t *continues_flags)
{
    uint64_t elem_bytes = unit->bytes / unit->elem_count;
    packing_t p = {0};
    unit->pieces = wefti_arena_array(&capture->arena, unit->member_count, sizeof *unit->pieces);
    if (unit->pieces == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0, end; i < unit->member_count; i = end) {
        for (end = i + 1; end < unit->member_count && continues_flags[unit->members[end]] != 0;) {
            end++;
        }
        uint64_t stop = end < unit->member_count ? unit->places[end] : unit->elem_count;
        uint64_t count = stop - unit->places[i];
        if (count * elem_bytes >= LARGE_BYTES) {
            flush(capture, unit, &p);
            add_piece(capture, unit, i, unit->places[i], count, false);
            continue;
        }
        if ((p.count + count) * elem_bytes > PIECE_BYTES) {
            flush(capture, unit, &p);
        }
        if (p.runs++ == 0) {
            p.member = i;
            p.first = unit->places[i];
        }
        p.count += count;
    }
    flush(capture, unit, &p);
    return WEFT_OK;
}

static weft_status_t cut(weft_capture_t *capture, const uint8_t *continues_flags)
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
                                 : cut_into_runs(capture, unit, continues_flags);
        WEFT_TRY(status, status, fail);
        info->bucket_count++;
        info->run_count += unit->piece_count;
        info->largest_bucket_bytes =
            unit->bytes > info->largest_bucket_bytes ? unit->bytes : info->largest_bucket_bytes;
        for (uint32_t k = 0; k < unit->piece_count; k++) {
            uint64_t bytes = unit->pieces[k].count * (unit->bytes / unit->elem_count);
            if (unit->pieces[k].packed) {
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
        add_word(hasher, unit->piece_count);
        for (uint32_t k = 0; k < unit->piece_count; k++) {
            add_word(hasher, unit->pieces[k].count << 1 | unit->pieces[k].packed);
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
    weft_status_t status;
    char *all = wefti_arena_array(&capture->arena, group->size, bytes);
    WEFT_TRY(status, wefti_capture_verdict(capture, all != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY),
             fail);
    WEFT_TRY(status, weft_all_gather(capture->info.digest, all, bytes, WEFT_DTYPE_U8, group, NULL),
             fail);
    for (uint32_t r = 1; r < group->size; r++) {
        if (memcmp(all, all + r * bytes, bytes) != 0) {
            return wefti_error(WEFT_ERR_MISMATCH,
                               "capture: ranks made different plans: digest %.16s on rank %u, "
                               "%.16s on rank %u; use the same cost table on all ranks",
                               all, group->ranks[0], all + r * bytes, group->ranks[r]);
        }
    }
fail:
    return status;
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
    WEFT_TRY(status, wefti_capture_verdict(capture, status), fail);
    WEFT_TRY(status, compare_digests(capture), fail);
    if (capture->info.buffer_bytes > 0) {
        status = wefti_capture_verdict(capture, get_buffer(capture));
    }
fail:
    return status;
}
