/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three ways of moving a call's data:
 *
 *   posting  it came with the postings: take it
 *   direct   all ranks reach what they need of the peers' memory: move it in place, say done, and
 *            wait until every peer is done with this rank's memory
 *   staged   anything else: through the staging buffers, round after round
 */
#include "runtime/base/error.h"
#include "runtime/collective/fused.h"

static const uint8_t *area_in_posting(const wefti_call_t *call, uint32_t rank)
{
    return wefti_call_posting_area(call, wefti_posting_of(call->group, rank, call->number));
}

static const uint8_t *area_in_staging(const wefti_call_t *call, uint32_t rank)
{
    return wefti_staging_of(call->group, rank);
}

static void publish_round(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    wefti_signal_publish(&group->channels[group->rank]->staged.signal, ++group->calls->staged);
    call->unsettled |= WEFTI_UNSETTLED_ROUND;
}

static void stage_round(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    group->calls->area++;
    wefti_call_stage(call, wefti_staging_of(group, group->rank), call->staged.round,
                     call->staged.piece_bytes);
    publish_round(call);
    call->peer = 1;
    call->state = WEFTI_CALL_ROUND;
}

static bool posting_takes(const wefti_call_t *call)
{
    return (call->flags & WEFTI_POSTED_DATA) != 0;
}

static weft_status_t posting_start(wefti_call_t *call)
{
    weft_status_t status = wefti_call_take(call, area_in_posting, 0, call->longest);
    wefti_call_complete(call);
    return status;
}

/* Never asked: such a call ends as it starts. */
static weft_status_t posting_advance(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    (void)out_blocked;
    wefti_call_complete(call);
    return WEFT_OK;
}

/* All-reduce. */
static const char *one_shot_or_mesh(const wefti_call_t *call)
{
    return call->op == WEFT_COLLECTIVE_ALL_REDUCE && !call->staged.two_shot ? "one-shot" : "mesh";
}

const wefti_path_t wefti_path_posting = {
    "posting",        posting_takes,          posting_start,           posting_advance,
    one_shot_or_mesh, wefti_path_never_ready, wefti_path_lends_nothing};

/* All-reduce: the few elements at the ends that some peers do not reach go through staging. */
static bool direct_takes(const wefti_call_t *call)
{
    uint64_t ends = call->ends.lead + call->ends.trail;
    return (call->flags & WEFTI_POSTED_REACHABLE) != 0 && call->group->put_links == NULL &&
           ends <= call->count && ends * call->elem_bytes <= call->group->layout.staging_bytes;
}

static weft_status_t direct_start(wefti_call_t *call)
{
    weft_group_t *group = call->group;
    if (call->ends.lead + call->ends.trail > 0) {
        group->calls->area++;
        wefti_call_stage_ends(call, wefti_staging_of(group, group->rank));
        publish_round(call);
    }
    weft_status_t status = wefti_call_move(call);
    if (status < 0) {
        return status;
    }
    bool helped = (call->flags & WEFTI_POSTED_HELPS) != 0;
    if (!helped) { /* else whoever did a share has said so, and the own one is waited for, too */
        wefti_signal_publish(&group->channels[group->rank]->done.signal, call->number);
        call->unsettled |= WEFTI_UNSETTLED_DONE;
    }
    call->peer = helped ? 0 : 1;
    call->state = WEFTI_CALL_MOVING;
    return WEFT_OK;
}

static weft_status_t direct_advance(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_status_t status =
        wefti_call_see_signals(call, offsetof(wefti_channel_t, done), call->number, out_blocked);
    if (status == WEFT_OK && call->ends.lead + call->ends.trail > 0) {
        status = wefti_call_take_ends(call, area_in_staging);
    }
    if (status == WEFT_OK) {
        wefti_call_complete(call);
    }
    return status;
}

const wefti_path_t wefti_path_direct = {"direct",
                                        direct_takes,
                                        direct_start,
                                        direct_advance,
                                        wefti_path_mesh,
                                        wefti_path_never_ready,
                                        wefti_path_lends_nothing};

static bool staged_takes(const wefti_call_t *call)
{
    (void)call;
    return true;
}

static weft_status_t staged_start(wefti_call_t *call)
{
    if (call->group->put_links != NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "staged path: requires ranks that map each other's memory");
    }
    weft_status_t status = wefti_call_plan_rounds(call);
    wefti_call_complete(call);
    if (status == WEFT_OK && call->staged.rounds > 0) {
        stage_round(call);
    }
    return status;
}

/* Two-shot: the second half of a round brings the reduced shards. */
static weft_status_t to_results(wefti_call_t *call)
{
    weft_status_t status = wefti_call_reduce_shard(call, area_in_staging);
    if (status == WEFT_OK) {
        publish_round(call);
        call->peer = 1;
        call->state = WEFTI_CALL_RESULTS;
    }
    return status;
}

static weft_status_t staged_advance(wefti_call_t *call, wefti_blocked_t *out_blocked)
{
    weft_status_t status = wefti_call_see_signals(call, offsetof(wefti_channel_t, staged),
                                                  call->group->calls->staged, out_blocked);
    if (status != WEFT_OK) {
        return status;
    }
    if (call->staged.two_shot && call->state == WEFTI_CALL_ROUND) {
        return to_results(call);
    }
    if (call->state == WEFTI_CALL_RESULTS) {
        wefti_call_take_results(call, area_in_staging);
    } else {
        status =
            wefti_call_take(call, area_in_staging, call->staged.round, call->staged.piece_bytes);
    }
    if (status < 0) {
        return status;
    }
    if (++call->staged.round == call->staged.rounds) {
        wefti_call_complete(call);
    } else {
        stage_round(call);
    }
    return WEFT_OK;
}

const wefti_path_t wefti_path_staged = {"staged",
                                        staged_takes,
                                        staged_start,
                                        staged_advance,
                                        one_shot_or_mesh,
                                        wefti_path_never_ready,
                                        wefti_path_lends_nothing};
