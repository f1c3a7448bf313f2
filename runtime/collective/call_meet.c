/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks of a hosted group agree on a call. The first rank of each host speaks for it:
 *
 *   host a   0 1 2 3   1  the first rank reads the call slots of its host, in shared memory
 *            |
 *            |         2  first ranks: in round i, what is known so far to the host 2^i further on,
 *            |            and the same from the host 2^i before: ceil(log2 hosts) messages each
 *   host b   4 5 6
 *                      3  the first rank writes the result into its channel, box 0
 *
 * A record names the first rank and the first one that differs from it, and flags are and-ed: it
 * does not matter that a host's slots come by several ways. So all ranks have the same record in
 * the end, find the same error, and know that all are in this call.
 *
 * Two records of each box are enough, as two call slots are: a rank is in the meeting k + 2 only
 * after all were in k + 1, so had taken what came for k. Meetings are counted, as calls with a
 * check have two numbers.
 */
#include "runtime/collective/call_meet.h"

#include <string.h>

#include "runtime/base/error.h"
#include "runtime/collective/fused.h"
#include "runtime/group/mirror.h"

#define LANE WEFTI_LANE_CHANNEL

_Static_assert(offsetof(wefti_fused_list_t, members) + 2 * WEFTI_FUSED_MEMBERS * 8 <=
                   WEFTI_MEET_DATA,
               "a record holds the list of a fused call");
_Static_assert(WEFTI_REFUSAL_BYTES <= WEFTI_MEET_DATA, "and the message of a refusal");

enum { LOCALS, ROUNDS, DONE };

static wefti_meeting_t *meeting_of(const weft_group_t *group)
{
    return &group->calls->meeting;
}

static bool speaks(const weft_group_t *group)
{
    return group->rank == wefti_group_first(group);
}

/* ---- records ---- */

static size_t record_bytes(const wefti_meet_record_t *record)
{
    size_t at = offsetof(wefti_meet_record_t, data);
    return record->sides[1].rank != WEFTI_MEET_NONE ? sizeof *record : at + record->sides[0].bytes;
}

static void set_side(wefti_meet_record_t *record, uint32_t at, const wefti_meet_side_t *side,
                     const uint8_t *data)
{
    record->sides[at] = *side;
    memcpy(record->data[at], data, side->bytes);
}

static bool same_side(const wefti_meet_side_t *a, const wefti_meet_side_t *b)
{
    return a->what == b->what && a->count == b->count && a->selection == b->selection;
}

static void add_side(wefti_meet_record_t *record, const wefti_meet_side_t *side,
                     const uint8_t *data)
{
    wefti_meet_side_t *first = &record->sides[0], *other = &record->sides[1];
    if (first->rank == WEFTI_MEET_NONE || same_side(first, side)) {
        if (side->rank < first->rank) {
            set_side(record, 0, side, data);
        }
    } else if (side->rank < first->rank) { /* nobody before the former first one was different */
        const wefti_meet_side_t former = *first;
        set_side(record, 1, &former, record->data[0]);
        set_side(record, 0, side, data);
    } else if (side->rank < other->rank) {
        set_side(record, 1, side, data);
    }
}

/* Another host's, which is not trusted to be well-formed. */
static weft_status_t add_record(const weft_group_t *group, wefti_meet_record_t *record,
                                const wefti_meet_record_t *theirs, uint32_t from)
{
    record->flags &= theirs->flags;
    for (uint32_t i = 0; i < 2; i++) {
        wefti_meet_side_t side = theirs->sides[i];
        if (i == 1 && side.rank == WEFTI_MEET_NONE) {
            break;
        }
        if (side.rank >= group->size || side.bytes > WEFTI_MEET_DATA) {
            return wefti_error(WEFT_ERR_FORMAT, "malformed call record from rank %u",
                               group->ranks[from]);
        }
        add_side(record, &side, theirs->data[i]);
    }
    return WEFT_OK;
}

/* Of a slot's data, what an error message is made from. */
static uint32_t find_data(const weft_group_t *group, const wefti_call_slot_t *slot,
                          const uint8_t **out_data)
{
    const wefti_fused_list_t *list = (const wefti_fused_list_t *)(const void *)slot->data;
    *out_data = slot->data;
    if (slot->what == WEFTI_WHAT_REFUSED) {
        return WEFTI_REFUSAL_BYTES;
    }
    if ((slot->what & WEFTI_WHAT_FUSED) != 0) {
        uint32_t count = list->count < WEFTI_FUSED_MEMBERS ? list->count : WEFTI_FUSED_MEMBERS;
        return (uint32_t)wefti_fused_bytes_of_list(count, list->shaped != 0);
    }
    if (slot->count > WEFTI_COUNT_MASK) {
        *out_data = slot->data + group->calls->shape_at;
        return sizeof(wefti_shape_note_t);
    }
    return 0;
}

static void add_slot(const weft_group_t *group, wefti_meeting_t *meeting, uint32_t r)
{
    wefti_meet_side_t side = {.rank = r};
    const uint8_t *data = NULL;
    if (meeting->leaves) {
        side.what = WEFT_COLLECTIVE_ALL_GATHER | (uint64_t)WEFTI_CONTROL_GROUP_DESTROY
                                                     << WEFTI_WHAT_ROOT_SHIFT;
        add_side(&meeting->record, &side, (const uint8_t *)"");
        return;
    }
    const wefti_call_slot_t *slot = wefti_call_slot_of(group, r, meeting->number);
    side.what = slot->what & ~WEFTI_WHAT_FLAGS_MASK;
    side.count = slot->count;
    side.selection = (side.what & WEFTI_WHAT_SELECTION_MASK) != 0 ? slot->at.selection : 0;
    side.bytes = find_data(group, slot, &data);
    meeting->record.flags &= (uint32_t)(slot->what >> WEFTI_WHAT_FLAGS_SHIFT) & 0xffu;
    add_side(&meeting->record, &side, data);
}

/* ---- the way of a call ---- */

void wefti_meet_begin(weft_group_t *group, uint32_t number, bool leaves)
{
    wefti_meeting_t *meeting = meeting_of(group);
    meeting->count++;
    meeting->number = number;
    meeting->leaves = leaves;
    meeting->stage = LOCALS;
    meeting->next = meeting->sent = meeting->round = 0;
    meeting->record.flags = UINT32_MAX;
    meeting->record.sides[0].rank = meeting->record.sides[1].rank = WEFTI_MEET_NONE;
    meeting->record.sides[0].bytes = meeting->record.sides[1].bytes = 0;
}

/* What tells that rank r of this host is there. */
static wefti_signal_t *signal_of(const weft_group_t *group, uint32_t r)
{
    const wefti_meeting_t *meeting = meeting_of(group);
    return meeting->leaves ? &group->channels[r]->done.signal
                           : &wefti_call_slot_of(group, r, meeting->number)->signal;
}

static bool has_rounds(const weft_group_t *group)
{
    return 1ull << meeting_of(group)->round < group->hosts.count;
}

/* The first rank of the host that is as far before this one as the round at hand goes. */
static uint32_t sender_of(const weft_group_t *group)
{
    const wefti_group_hosts_t *hosts = &group->hosts;
    uint32_t distance = 1u << meeting_of(group)->round;
    return hosts->firsts[(hosts->own + hosts->count - distance) % hosts->count];
}

/* Once the ranks of its host are there: where what this rank waits for comes, and from whom. */
static wefti_meet_box_t *awaited_box(const weft_group_t *group, uint32_t *out_from)
{
    bool own = speaks(group);
    *out_from = own ? sender_of(group) : wefti_group_first(group);
    return own ? wefti_meet_box(group, group->rank, meeting_of(group)->round + 1)
               : wefti_meet_box(group, *out_from, 0);
}

static weft_status_t send(weft_group_t *group)
{
    const wefti_group_hosts_t *hosts = &group->hosts;
    wefti_meeting_t *meeting = meeting_of(group);
    uint32_t number = meeting->number, round = meeting->round;
    uint32_t peer = hosts->firsts[(hosts->own + (1u << round)) % hosts->count];
    size_t box =
        group->channel_offset + group->layout.meet + (round + 1) * sizeof(wefti_meet_box_t);
    size_t at =
        box + offsetof(wefti_meet_box_t, records) + (meeting->count & 1) * sizeof meeting->record;
    WEFT_RETURN_IF_ERROR(wefti_put(group->endpoint, group->ranks[peer], at, &meeting->record,
                                   record_bytes(&meeting->record), LANE));
    WEFT_RETURN_IF_ERROR(wefti_signal_peer(group->endpoint, group->ranks[peer],
                                           box + offsetof(wefti_meet_box_t, came), number, LANE));
    meeting->sent = ++round;
    wefti_signal_publish(&group->channels[group->rank]->sent, wefti_meet_sent_value(number, round));
    return WEFT_OK;
}

static weft_status_t see_locals(weft_group_t *group, wefti_blocked_t *out_blocked)
{
    wefti_meeting_t *meeting = meeting_of(group);
    for (; meeting->next < group->hosts.local_count; meeting->next++) {
        uint32_t r = group->hosts.locals[meeting->next];
        wefti_signal_t *signal = signal_of(group, r);
        if (!wefti_signal_comes_soon(group->endpoint, signal, meeting->number)) {
            return wefti_call_blocked_on(signal, meeting->number, out_blocked);
        }
        add_slot(group, meeting, r);
    }
    meeting->stage = ROUNDS;
    return WEFT_OK;
}

static weft_status_t exchange(weft_group_t *group, wefti_blocked_t *out_blocked)
{
    wefti_meeting_t *meeting = meeting_of(group);
    for (; has_rounds(group); meeting->round++) {
        if (meeting->sent == meeting->round) {
            WEFT_RETURN_IF_ERROR(send(group));
        }
        uint32_t from;
        wefti_meet_box_t *box = awaited_box(group, &from);
        if (!wefti_signal_comes_soon(group->endpoint, &box->came.signal, meeting->number)) {
            return wefti_call_blocked_on(&box->came.signal, meeting->number, out_blocked);
        }
        WEFT_RETURN_IF_ERROR(
            add_record(group, &meeting->record, &box->records[meeting->count & 1], from));
    }
    wefti_meet_box_t *result = wefti_meet_box(group, group->rank, 0);
    memcpy(&result->records[meeting->count & 1], &meeting->record, record_bytes(&meeting->record));
    wefti_signal_post(&result->came.signal, meeting->number);
    meeting->stage = DONE;
    return WEFT_OK;
}

weft_status_t wefti_meet_advance(weft_group_t *group, wefti_blocked_t *out_blocked)
{
    wefti_meeting_t *meeting = meeting_of(group);
    weft_status_t status = WEFT_OK;
    if (meeting->stage == DONE) {
        return WEFT_OK;
    }
    if (!speaks(group)) {
        wefti_signal_t *signal = &wefti_meet_box(group, wefti_group_first(group), 0)->came.signal;
        if (!wefti_signal_comes_soon(group->endpoint, signal, meeting->number)) {
            return wefti_call_blocked_on(signal, meeting->number, out_blocked);
        }
        meeting->stage = DONE;
        return WEFT_OK;
    }
    if (meeting->stage == LOCALS) {
        status = see_locals(group, out_blocked);
    }
    return status == WEFT_OK ? exchange(group, out_blocked) : status;
}

bool wefti_meet_is_over(const weft_group_t *group)
{
    return meeting_of(group)->stage == DONE;
}

const wefti_meet_record_t *wefti_meet_result(const weft_group_t *group)
{
    return &wefti_meet_box(group, wefti_group_first(group), 0)
                ->records[meeting_of(group)->count & 1];
}

/* ---- who is late ---- */

static bool is_there(const weft_group_t *group, uint32_t r)
{
    return wefti_signal_has_reached(signal_of(group, r), meeting_of(group)->number);
}

bool wefti_meet_awaits(const weft_group_t *group, uint32_t r, bool *out_host)
{
    const wefti_meeting_t *meeting = meeting_of(group);
    *out_host = false;
    if (meeting->stage == DONE) {
        return false;
    }
    if (!wefti_group_puts(group, r) && !is_there(group, r)) {
        return true;
    }
    *out_host = true;
    for (uint32_t i = 0; i < group->hosts.local_count; i++) {
        if (!is_there(group, group->hosts.locals[i])) {
            return false; /* that one comes first */
        }
    }
    bool rounds = meeting->stage == ROUNDS && has_rounds(group);
    if (speaks(group) && !rounds) {
        return false;
    }
    /* What r has left for this rank may have come since: r may have gone. */
    uint32_t from;
    const wefti_meet_box_t *box = awaited_box(group, &from);
    return r == from && !wefti_signal_has_reached(&box->came.signal, meeting->number);
}

uint32_t wefti_meet_blocks_on(const weft_group_t *group)
{
    const wefti_meeting_t *meeting = meeting_of(group);
    return !speaks(group)             ? wefti_group_first(group)
           : meeting->stage == LOCALS ? group->hosts.locals[meeting->next]
                                      : sender_of(group);
}

void wefti_meet_describe(const weft_group_t *group, wefti_wait_t *out)
{
    const wefti_meeting_t *meeting = meeting_of(group);
    for (uint32_t r = 0; r < group->size && out->late_count < WEFTI_WAIT_RANKS; r++) {
        bool host;
        if (wefti_meet_awaits(group, r, &host)) {
            /* Of another host it is known what it has sent; of this one what it has posted. */
            out->kind = host              ? WEFTI_WAIT_HOST
                        : meeting->leaves ? WEFTI_WAIT_LEAVE
                                          : WEFTI_WAIT_CALL;
            out->number =
                host ? wefti_meet_sent_value(meeting->number, meeting->round + 1) : meeting->number;
            out->late[out->late_count++] = group->ranks[r];
        }
    }
}
