/* SPDX-License-Identifier: Apache-2.0 */
/* What the flight recorder keeps of calls. */
#include "runtime/collective/call.h"
#include "runtime/collective/call_meet.h"
#include "runtime/stream/stream.h"

static void record_pairs(wefti_call_t *call, uint32_t stream)
{
    weft_group_t *group = call->group;
    for (uint32_t i = 0; i < call->pairs.count; i++) {
        wefti_pair_t *pair = &call->pairs.list[i];
        uint32_t *seq =
            &group->calls->pair_seq[pair->sends ? pair->peer : group->size + pair->peer];
        pair->record = wefti_flight_begin(
            &group->calls->flight, pair->sends ? WEFTI_FLIGHT_SEND : WEFTI_FLIGHT_RECV, stream,
            (uint64_t)WEFT_COLLECTIVE_SEND_RECV | (uint64_t)pair->dtype << 8, pair->count, ++*seq,
            group->ranks[pair->peer]);
    }
}

void wefti_call_record(wefti_call_t *call, const weft_stream_t *stream)
{
    uint32_t number = stream != NULL ? stream->number : 0;
    if (call->pairs.count > 0) {
        record_pairs(call, number);
        return;
    }
    call->record =
        wefti_flight_begin(&call->group->calls->flight, WEFTI_FLIGHT_COLLECTIVE, number, call->what,
                           call->posted_count, call->number, WEFTI_FLIGHT_NO_RANK);
}

static wefti_flight_state_t state_of(const wefti_call_t *call)
{
    switch (call->state) {
    case WEFTI_CALL_ISSUED:
        return WEFTI_FLIGHT_QUEUED;
    case WEFTI_CALL_RECOVERING:
        return WEFTI_FLIGHT_RECOVERING;
    case WEFTI_CALL_POSTED:
    case WEFTI_CALL_COMPARE:
        return WEFTI_FLIGHT_WAITING;
    default:
        return WEFTI_FLIGHT_MOVING;
    }
}

static void pairs_blocked(const wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    bool queued = call->state != WEFTI_CALL_PAIRS;
    for (uint32_t i = 0; i < call->pairs.count; i++) {
        const wefti_pair_t *pair = &call->pairs.list[i];
        wefti_flight_block(group->calls->flight.image, pair->record,
                           wefti_pair_is_done(pair) ? WEFTI_FLIGHT_DONE
                           : queued                 ? WEFTI_FLIGHT_QUEUED
                                                    : WEFTI_FLIGHT_WAITING,
                           group->ranks[pair->peer]);
    }
}

void wefti_call_record_blocked(const wefti_call_t *call)
{
    const weft_group_t *group = call->group;
    if (call->pairs.count > 0) {
        pairs_blocked(call);
        return;
    }
    uint32_t awaits = WEFTI_FLIGHT_NO_RANK;
    if (call->state == WEFTI_CALL_POSTED && wefti_group_is_hosted(group) &&
        !wefti_meet_is_over(group)) {
        awaits = group->ranks[wefti_meet_blocks_on(group)];
    } else if (call->state == WEFTI_CALL_POSTED && call->peer < group->size) {
        awaits = group->ranks[wefti_group_nth_peer(group, call->peer)];
    }
    wefti_flight_block(group->calls->flight.image, call->record, state_of(call), awaits);
}

void wefti_call_record_end(const wefti_call_t *call, weft_status_t status)
{
    wefti_flight_image_t *image = call->group->calls->flight.image;
    for (uint32_t i = 0; i < call->pairs.count; i++) {
        wefti_flight_end(image, call->pairs.list[i].record, status);
    }
    if (call->pairs.count == 0) {
        wefti_flight_end(image, call->record, status);
    }
    if (status < 0) {
        wefti_flight_note(&call->group->context->flight, status);
    }
}
