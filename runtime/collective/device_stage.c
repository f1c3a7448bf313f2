/* SPDX-License-Identifier: Apache-2.0 */
/* Which parts of a call's buffers go to host memory and back, and where they lie there. */
#include "runtime/collective/device_call.h"

#include <string.h>

#include "runtime/base/error.h"
#include "runtime/collective/fused.h"

#define ALIGNMENT 64u

/* Part of one of the user's buffers; empty when end == begin. */
typedef struct range {
    uintptr_t begin, end;
} range_t;

static weft_status_t append(const weft_allocator_t *allocator, wefti_segments_t *segments,
                            wefti_segment_t segment)
{
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(allocator, &segments->list, &segments->capacity,
                                             segments->count + 1, sizeof *segments->list));
    segments->list[segments->count++] = segment;
    return WEFT_OK;
}

/* bytes from at on, to or from host, which may be NULL: not placed yet. What is one range is one
 * copy. */
static weft_status_t add(const weft_allocator_t *allocator, wefti_segments_t *segments,
                         uintptr_t at, uint8_t *host, size_t bytes)
{
    if (bytes == 0) {
        return WEFT_OK;
    }
    if (segments->count > 0) {
        wefti_segment_t *last = &segments->list[segments->count - 1];
        if ((uintptr_t)last->device + last->bytes == at &&
            (host == NULL || last->host + last->bytes == host)) {
            last->bytes += bytes;
            return WEFT_OK;
        }
    }
    return append(allocator, segments, (wefti_segment_t){(uint8_t *)at, host, bytes});
}

/* What the rank has at base. */
static weft_status_t add_buffer(wefti_segments_t *segments, const wefti_call_t *call,
                                const uint8_t *base, const wefti_buffer_shape_t *shape)
{
    const weft_allocator_t *allocator = call->group->context->allocator;
    if (shape->counts == NULL) {
        return add(allocator, segments, (uintptr_t)base, NULL,
                   (size_t)wefti_shape_elems(shape) * call->elem_bytes);
    }
    for (uint32_t r = 0; r < shape->blocks; r++) {
        size_t at = (size_t)shape->counts[shape->blocks + r] * call->elem_bytes;
        WEFT_RETURN_IF_ERROR(add(allocator, segments, (uintptr_t)base + at, NULL,
                                 (size_t)shape->counts[r] * call->elem_bytes));
    }
    return WEFT_OK;
}

static range_t range_of(const wefti_segments_t *segments)
{
    range_t range = {0, 0};
    for (size_t i = 0; i < segments->count; i++) {
        uintptr_t begin = (uintptr_t)segments->list[i].device;
        uintptr_t end = begin + segments->list[i].bytes;
        range.begin = i == 0 || begin < range.begin ? begin : range.begin;
        range.end = end > range.end ? end : range.end;
    }
    return range;
}

/* Host bytes of a range, which keeps its alignment. */
static size_t room_of(range_t range)
{
    return range.end > range.begin
               ? wefti_align_up(range.end - range.begin + range.begin % ALIGNMENT, ALIGNMENT)
               : 0;
}

static weft_status_t reserve(wefti_device_call_t *place, size_t bytes)
{
    const weft_allocator_t *allocator = place->calls->group->context->allocator;
    if (bytes == 0 || bytes + ALIGNMENT <= place->host_bytes) {
        return WEFT_OK;
    }
    wefti_free(allocator, place->host);
    place->host_bytes = 0;
    place->host = bytes <= WEFTI_ADDRESS_SPACE ? wefti_alloc(allocator, bytes + ALIGNMENT) : NULL;
    if (place->host == NULL) {
        return wefti_error(
            WEFT_ERR_NO_MEMORY,
            "out of memory: cannot allocate %zu bytes of host memory to stage a call", bytes);
    }
    place->host_bytes = bytes + ALIGNMENT;
    return WEFT_OK;
}

static uint8_t *host_begin(const wefti_device_call_t *place)
{
    return (uint8_t *)wefti_align_up((uintptr_t)place->host, ALIGNMENT);
}

/* Where the host has what is at address, range lying at base there. */
static uint8_t *host_of(uint8_t *base, range_t range, const void *address)
{
    return base + range.begin % ALIGNMENT + ((uintptr_t)address - range.begin);
}

static void place_segments(wefti_segments_t *segments, uint8_t *base, range_t range)
{
    for (size_t i = 0; i < segments->count; i++) {
        segments->list[i].host = host_of(base, range, segments->list[i].device);
    }
}

static weft_status_t stage_collective(wefti_device_call_t *place, wefti_call_t *call)
{
    wefti_request_t *request = &call->request;
    wefti_buffer_shape_t send_shape = wefti_call_send_shape(call);
    wefti_buffer_shape_t recv_shape = wefti_call_recv_shape(call);
    WEFT_RETURN_IF_ERROR(add_buffer(&place->outs, call, request->send, &send_shape));
    WEFT_RETURN_IF_ERROR(add_buffer(&place->ins, call, request->recv, &recv_shape));
    range_t send = range_of(&place->outs), recv = range_of(&place->ins);
    bool in_place = send.begin < recv.end && recv.begin < send.end; /* there as here */
    if (in_place) {
        send.begin = recv.begin = send.begin < recv.begin ? send.begin : recv.begin;
        send.end = recv.end = send.end > recv.end ? send.end : recv.end;
    }
    WEFT_RETURN_IF_ERROR(reserve(place, room_of(send) + (in_place ? 0 : room_of(recv))));
    uint8_t *send_base = host_begin(place);
    uint8_t *recv_base = in_place ? send_base : send_base + room_of(send);
    place_segments(&place->outs, send_base, send);
    place_segments(&place->ins, recv_base, recv);
    /* Of buffers that this rank has no use for nothing must be believed. */
    request->send = place->outs.count > 0 ? host_of(send_base, send, request->send) : NULL;
    request->recv = place->ins.count > 0 ? host_of(recv_base, recv, request->recv) : NULL;
    return WEFT_OK;
}

static range_t range_of_pair(const wefti_pair_t *pair)
{
    return (range_t){(uintptr_t)pair->data, (uintptr_t)pair->data + (size_t)pair->bytes};
}

static weft_status_t stage_pairs(wefti_device_call_t *place, wefti_call_t *call)
{
    size_t total = 0;
    for (uint32_t i = 0; i < call->pairs.count; i++) {
        total += room_of(range_of_pair(&call->pairs.list[i]));
    }
    WEFT_RETURN_IF_ERROR(reserve(place, total));
    uint8_t *next = host_begin(place);
    for (uint32_t i = 0; i < call->pairs.count; i++) {
        wefti_pair_t *pair = &call->pairs.list[i];
        range_t range = range_of_pair(pair);
        if (pair->bytes == 0) {
            continue;
        }
        uint8_t *host = host_of(next, range, pair->data);
        WEFT_RETURN_IF_ERROR(
            append(call->group->context->allocator, pair->sends ? &place->outs : &place->ins,
                   (wefti_segment_t){(uint8_t *)range.begin, host, (size_t)pair->bytes}));
        pair->data = host;
        next += room_of(range);
    }
    return WEFT_OK;
}

/* The host packs what it has of the members (call_fused.c). */
static weft_status_t stage_members(wefti_device_call_t *place, wefti_call_t *call)
{
    const weft_allocator_t *allocator = call->group->context->allocator;
    const uint32_t out_blocks = wefti_call_send_shape(call).blocks;
    const uint32_t in_blocks = wefti_call_recv_shape(call).blocks;
    const size_t block_bytes = (size_t)call->request.count * call->elem_bytes;
    WEFT_RETURN_IF_ERROR(reserve(place, block_bytes * ((size_t)out_blocks + in_blocks)));
    uint8_t *out = host_begin(place), *in = out + block_bytes * out_blocks;
    for (uint32_t i = 0; i < call->fused->count; i++) {
        wefti_fused_member_t *member = &call->fused->members[i];
        const size_t bytes = (size_t)member->count * call->elem_bytes;
        WEFT_RETURN_IF_ERROR(
            add(allocator, &place->outs, (uintptr_t)member->send, out, bytes * out_blocks));
        WEFT_RETURN_IF_ERROR(
            add(allocator, &place->ins, (uintptr_t)member->recv, in, bytes * in_blocks));
        member->send = out;
        member->recv = in;
        out += bytes * out_blocks;
        in += bytes * in_blocks;
    }
    return WEFT_OK;
}

weft_status_t wefti_device_call_stage(wefti_device_call_t *place, wefti_call_t *call)
{
    place->outs.count = place->ins.count = 0;
    weft_context_t *context = call->group->context;
    if (wefti_context_host_reaches(context) &&
        !atomic_load_explicit(&context->wraps, memory_order_relaxed)) {
        return WEFT_OK; /* nothing moves: the host's part works on the device's memory */
    }
    if (call->fused != NULL) {
        return stage_members(place, call);
    }
    return call->pairs.count > 0 ? stage_pairs(place, call) : stage_collective(place, call);
}
