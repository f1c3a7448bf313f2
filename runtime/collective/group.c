/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: what they allocate, how they end, what they tell of themselves. group_create.c makes
 * them. */
#include <stdio.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/collective/call_aside.h"
#include "runtime/collective/call_meet.h"
#include "runtime/collective/device_call.h"
#include "runtime/collective/fused.h"
#include "runtime/collective/schedule_cache.h"
#include "runtime/group/mirror.h"

/* ---- memory ---- */

static void calls_free(weft_group_t *group)
{
    const weft_allocator_t *allocator = group->context->allocator;
    wefti_calls_t *calls = group->calls;
    if (calls == NULL) {
        return;
    }
    if (calls->recorder != NULL) {
        calls->recorder->ops->release(group);
    }
    for (uint32_t i = 0; i < WEFTI_CALLS; i++) {
        wefti_free(allocator, calls->ring[i].counts);
        wefti_free(allocator, calls->ring[i].pairs.batch);
        wefti_fused_free(allocator, calls->ring[i].fused_kept);
    }
    wefti_batch_free(group);
    wefti_schedules_destroy(group);
    wefti_select_deinit(group);
    wefti_flight_remove_group(&group->context->flight, &calls->flight);
    wefti_asides_free(group);
    wefti_free(allocator, calls->pair_seq);
    wefti_free(allocator, calls->kept);
    wefti_free(allocator, calls->refusals);
    wefti_free(allocator, calls->sent);
    wefti_free(allocator, calls->received);
    wefti_free(allocator, calls->gone_ns);
    wefti_free(allocator, calls->sources);
    wefti_free(allocator, calls->destinations);
    wefti_free(allocator, calls);
}

static bool calls_alloc(weft_group_t *group)
{
    const weft_allocator_t *allocator = group->context->allocator;
    wefti_calls_t *calls = wefti_alloc(allocator, sizeof *calls);
    uint32_t size = group->size;
    group->calls = calls;
    if (calls == NULL) {
        return false;
    }
    wefti_asides_init(group);
    for (uint32_t i = 0; i < WEFTI_CALLS; i++) {
        calls->ring[i].group = group; /* constant: streams read it of calls that are done */
    }
    calls->shape_at = WEFTI_SLOT_ADDRESSES + sizeof(wefti_addresses_t);
    calls->submit =
        group->context->device != NULL ? wefti_device_call_submit : wefti_call_submit_host;
    calls->sources = wefti_alloc(allocator, size * sizeof *calls->sources);
    calls->destinations = wefti_alloc(allocator, size * sizeof *calls->destinations);
    calls->sent = wefti_alloc(allocator, size * sizeof *calls->sent);
    calls->received = wefti_alloc(allocator, size * sizeof *calls->received);
    calls->gone_ns = wefti_alloc(allocator, size * sizeof *calls->gone_ns);
    calls->pair_seq = wefti_alloc(allocator, 2 * size * sizeof *calls->pair_seq);
    if (group->context->settings.check_every != 0) {
        calls->kept = wefti_alloc(allocator, (size_t)WEFTI_CALLS * WEFTI_SLOT_DATA);
    }
    return (calls->kept != NULL || group->context->settings.check_every == 0) &&
           calls->sources != NULL && calls->destinations != NULL && calls->sent != NULL &&
           calls->received != NULL && calls->gone_ns != NULL && calls->pair_seq != NULL;
}

/* The last reference is gone: accepts half-built groups. */
static void group_free(weft_group_t *group)
{
    weft_context_t *context = group->context;
    const weft_allocator_t *allocator = context->allocator;
    /* This rank neither looks at the channel nor writes to the peers' any more, and nothing of it
     * comes to them later; else the channel stays in use. */
    if (group->retires && wefti_endpoint_flush(group->endpoint)) {
        wefti_channels_give_back(group, group->calls->number, true);
    }
    calls_free(group);
    wefti_free(allocator, group->put_peers);
    wefti_free(allocator, group->hosts.firsts);
    wefti_free(allocator, group->channels);
    wefti_free(allocator, group->bases);
    pthread_mutex_destroy(&group->link.lock);
    wefti_free(allocator, group->ranks);
    wefti_free(allocator, group);
    weft_context_release(context);
}

weft_status_t wefti_group_alloc(weft_context_t *context, uint32_t size, weft_group_t **out_group)
{
    const weft_allocator_t *allocator = context->allocator;
    weft_group_t *group = wefti_alloc(allocator, sizeof *group);
    *out_group = NULL;
    WEFT_RETURN_IF_NO_MEMORY(group != NULL);
    atomic_init(&group->references, 1);
    group->free = group_free;
    group->context = context;
    weft_context_retain(context);
    group->endpoint = context->endpoint;
    group->size = size;
    group->recovers = context->settings.fallback != WEFTI_FALLBACK_OFF;
    pthread_mutex_init(&group->link.lock, NULL);
    group->ranks = wefti_alloc(allocator, size * sizeof *group->ranks);
    group->bases = wefti_alloc(allocator, size * sizeof *group->bases);
    group->channels = wefti_alloc(allocator, size * sizeof *group->channels);
    if (!calls_alloc(group) || group->ranks == NULL || group->bases == NULL ||
        group->channels == NULL) {
        group_free(group);
        return WEFT_ERR_NO_MEMORY;
    }
    *out_group = group;
    return WEFT_OK;
}

/* ---- the end ---- */

typedef struct parting { /* from one rank of the group */
    weft_group_t *group;
    uint32_t rank;
    uint64_t deadline_ns;    /* for all ranks of the group */
    wefti_blocked_t blocked; /* on what it will say */
    uint64_t gone_since_ns;  /* it has left the world, and its word has not come; 0: no */
} parting_t;

static bool describe_parting(void *user, wefti_wait_t *out)
{
    const parting_t *parting = user;
    const weft_group_t *group = parting->group;
    uint32_t number = group->calls->number;
    out->kind = WEFTI_WAIT_LEAVE;
    out->channel = group->channel;
    out->number = number;
    if (wefti_group_is_hosted(group)) {
        wefti_meet_describe(group, out);
    }
    for (uint32_t r = 0;
         r < group->size && out->late_count < WEFTI_WAIT_RANKS && !wefti_group_is_hosted(group);
         r++) {
        if (!wefti_signal_has_reached(&group->channels[r]->done.signal, number)) {
            out->late[out->late_count++] = group->ranks[r];
        }
    }
    snprintf(out->text, sizeof out->text, "group_destroy of group %u", out->channel);
    return !wefti_signal_has_reached(parting->blocked.signal, parting->blocked.target);
}

/* Whose word comes by puts is not known by where that lies, so it is looked for here. Other ranks
 * may need the work on inline streams before they destroy the group. */
static weft_status_t poll_parting(void *user)
{
    parting_t *parting = user;
    weft_group_t *group = parting->group;
    wefti_context_progress(group->context);
    if (wefti_group_broken(group)) {
        return wefti_group_check(group);
    }
    if (wefti_now_ns() >= parting->deadline_ns) {
        return wefti_error(WEFT_ERR_TIMEOUT,
                           "rank %u waited too long for rank %u to destroy a group",
                           group->ranks[group->rank], group->ranks[parting->rank]);
    }
    if (!wefti_group_puts(group, parting->rank) ||
        !wefti_endpoint_has_left(group->endpoint, group->ranks[parting->rank])) {
        return WEFT_OK;
    }
    uint64_t now = wefti_now_ns();
    parting->gone_since_ns = parting->gone_since_ns != 0 ? parting->gone_since_ns : now;
    return now - parting->gone_since_ns < WEFTI_ARRIVES_NS
               ? WEFT_OK
               : wefti_error(WEFT_ERR_PEER_DIED,
                             "rank %u left the world while rank %u destroyed a group",
                             group->ranks[parting->rank], group->ranks[group->rank]);
}

static uint64_t parting_deadline(const weft_group_t *group)
{
    uint64_t now = wefti_now_ns(), patience = wefti_endpoint_patience(group->endpoint);
    return patience < UINT64_MAX - now ? now + patience : UINT64_MAX;
}

static weft_status_t await_parting(parting_t *parting)
{
    weft_group_t *group = parting->group;
    weft_status_t status = wefti_wait_signal_described(
        group->endpoint, parting->blocked.signal, parting->blocked.target,
        "a group's ranks to destroy it", poll_parting, describe_parting, parting);
    wefti_wait_t wait = {0};
    if (status == WEFT_ERR_TIMEOUT && describe_parting(parting, &wait)) {
        wefti_waits_gave_up(group->endpoint, wait.late, wait.late_count);
    }
    return status;
}

static weft_status_t part_from_all(weft_group_t *group, uint32_t number, uint64_t deadline)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t r = 0; r < group->size && status >= 0; r++) {
        parting_t parting = {group, r, deadline, {&group->channels[r]->done.signal, number}, 0};
        status = await_parting(&parting);
    }
    return status;
}

/* As a call on which ranks agree. */
static weft_status_t part_by_hosts(weft_group_t *group, uint32_t number, uint64_t deadline)
{
    parting_t parting = {.group = group, .deadline_ns = deadline};
    wefti_meet_begin(group, number, true);
    weft_status_t status = WEFT_OK;
    while (status >= 0 &&
           (status = wefti_meet_advance(group, &parting.blocked)) == WEFT_IN_PROGRESS) {
        bool host;
        for (parting.rank = 0;
             parting.rank + 1 < group->size && !wefti_meet_awaits(group, parting.rank, &host);) {
            parting.rank++;
        }
        status = await_parting(&parting);
    }
    if (status >= 0) {
        return wefti_meet_mismatch(group, wefti_meet_result(group));
    }
    /* Ranks that wait for this one need not wait for what it does: they learn why. */
    return status == WEFT_ERR_LINK ? status : wefti_group_fail(group, status);
}

/* Waits for this rank's calls, then for all ranks; an error when the group is broken, or a rank
 * does not come. */
static weft_status_t part(weft_group_t *group)
{
    if (!wefti_endpoint_owned(group->endpoint)) {
        return WEFT_ERR_STATE; /* a forked child must not run what its parent has in flight */
    }
    WEFT_RETURN_IF_ERROR(wefti_group_drain(group));
    WEFT_RETURN_IF_ERROR(wefti_group_check(group));
    uint32_t number = ++group->calls->number;
    if (group->put_peer_count > 0) {
        wefti_endpoint_flush(group->endpoint); /* nothing of this rank's comes later */
    }
    if (group->put_peer_count > 0 && !wefti_group_is_hosted(group)) {
        wefti_mirror_done(group, number);
    }
    wefti_signal_post(&group->channels[group->rank]->done.signal, number);
    uint64_t since = wefti_now_ns(), deadline = parting_deadline(group);
    weft_status_t status = wefti_group_is_hosted(group) ? part_by_hosts(group, number, deadline)
                                                        : part_from_all(group, number, deadline);
    if (status < 0) {
        wefti_endpoint_spend_patience(group->endpoint, wefti_now_ns() - since);
    }
    return status;
}

/* parted: all ranks got here; else the channel is not used again before all have retired it. */
static void end(weft_group_t *group, bool parted)
{
    wefti_device_calls_destroy(group);
    if (parted) {
        wefti_channels_give_back(group, group->calls->number, false);
    } else if (wefti_endpoint_owned(group->endpoint)) {
        group->retires = true; /* peers may still look at it */
    }
    wefti_group_release(group); /* calls on broken streams may still hold it */
}

void weft_group_destroy(weft_group_t *group)
{
    if (group != NULL) {
        weft_status_t status = part(group);
        if (status == WEFT_ERR_LINK && group->recovers) { /* the others recover it, or will */
            char why[WEFTI_ERROR_TEXT_BYTES];
            snprintf(why, sizeof why, "%s", weft_last_error());
            wefti_error(WEFT_ERR_ABORTED, "rank %u destroyed a group that had not recovered: %s",
                        group->ranks[group->rank], why);
            wefti_group_fail(group, WEFT_ERR_ABORTED);
        }
        if (status == WEFT_ERR_TIMEOUT || status == WEFT_ERR_PEER_DIED) {
            wefti_endpoint_lose_patience(group->endpoint);
        }
        end(group, status == WEFT_OK);
    }
}

void weft_group_leave(weft_group_t *group)
{
    if (group == NULL) {
        return;
    }
    if (wefti_endpoint_owned(group->endpoint)) {
        wefti_group_drain(group);
    }
    end(group, false);
}

/* ---- what they tell ---- */

uint32_t weft_group_size(const weft_group_t *group)
{
    WEFT_CHECK_ARG_OR(group, 0);
    return group->size;
}

uint32_t weft_group_rank(const weft_group_t *group)
{
    WEFT_CHECK_ARG_OR(group, UINT32_MAX);
    return group->rank;
}

uint32_t weft_group_world_rank(const weft_group_t *group, uint32_t rank)
{
    WEFT_CHECK_ARG_OR(group, UINT32_MAX);
    return rank < group->size ? group->ranks[rank] : UINT32_MAX;
}

weft_context_t *weft_group_context(const weft_group_t *group)
{
    WEFT_CHECK_ARG_OR(group, NULL);
    return group->context;
}

weft_status_t weft_group_status(weft_group_t *group)
{
    WEFT_CHECK_ARG(group);
    return wefti_group_check(group);
}

const char *weft_group_last_path(const weft_group_t *group)
{
    WEFT_CHECK_ARG_OR(group, "none");
    return group->calls->path != NULL ? group->calls->path : "none";
}

const char *weft_group_last_algorithm(const weft_group_t *group)
{
    WEFT_CHECK_ARG_OR(group, "none");
    return group->calls->algorithm != NULL ? group->calls->algorithm : "none";
}
