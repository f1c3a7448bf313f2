/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making groups. All ranks of the parent tell each other their colour, key and which channels they
 * have free; from that every rank derives the same groups, and each group takes the lowest channel
 * that is free on all of its ranks.
 */
#include "runtime/group/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/group/attach.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/collective/agree.h"
#include "runtime/collective/fused.h"
#include "runtime/collective/submit.h"
#include "runtime/collective/call_steps.h"
#include "runtime/collective/device_call.h"
#include "runtime/collective/schedule_cache.h"
#include "runtime/interpreter/interpreter.h"
#include "runtime/group/mirror.h"

#define NAME_BYTES 64u

typedef struct offer {
    int64_t key;
    uint64_t digest; /* of the list of ranks, where there is one */
    wefti_attach_offer_t attach;
    uint32_t color, world_rank, parent_rank;
    uint32_t last_number;
    uint32_t leader;      /* the lowest rank with which it shares memory */
    uint32_t fault_count; /* links of the world that broke until now */
    uint32_t pool_count;
    uint16_t used[WEFTI_POOLS], retired[WEFTI_POOLS];
} offer_t;

/* Members of one colour, in group order. */
typedef struct members {
    const offer_t **offers;
    uint32_t count;
} members_t;

static weft_status_t all_gather(weft_context_t *context, weft_group_t *parent, const void *own,
                                size_t bytes, void *all)
{
    if (parent == NULL || parent->whole_world) {
        return wefti_endpoint_all_gather(context->endpoint, own, bytes, all);
    }
    return weft_all_gather(own, all, bytes, WEFT_DTYPE_U8, parent, NULL);
}

static weft_status_t agree(weft_context_t *context, weft_group_t *parent, weft_status_t status)
{
    return parent == NULL || parent->whole_world ? wefti_endpoint_agree(context->endpoint, status)
                                                 : wefti_group_agree(parent, status);
}

static int by_key(const void *a, const void *b)
{
    const offer_t *x = *(const offer_t *const *)a, *y = *(const offer_t *const *)b;
    if (x->key != y->key) {
        return x->key < y->key ? -1 : 1;
    }
    return x->parent_rank < y->parent_rank ? -1 : x->parent_rank > y->parent_rank;
}

static void find_members(const offer_t *offers, uint32_t count, uint32_t color, members_t *out)
{
    out->count = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (offers[i].color == color) {
            out->offers[out->count++] = &offers[i];
        }
    }
    qsort(out->offers, out->count, sizeof(*out->offers), by_key);
}

/* The lowest channel free on all members, among the first pool_count pools; false: none. */
static bool find_channel(const members_t *members, uint32_t pool_count, uint32_t *out_pool,
                         uint32_t *out_channel)
{
    for (uint32_t pool = 0; pool < pool_count; pool++) {
        uint32_t used = 0;
        for (uint32_t i = 0; i < members->count; i++) {
            used |= members->offers[i]->used[pool];
        }
        for (uint32_t channel = 0; channel < WEFTI_POOL_CHANNELS; channel++) {
            if ((used >> channel & 1u) == 0) {
                *out_pool = pool;
                *out_channel = channel;
                return true;
            }
        }
    }
    return false;
}

static bool all_find_channels(const offer_t *offers, uint32_t count, uint32_t pool_count,
                              members_t *scratch)
{
    uint32_t pool, channel;
    for (uint32_t i = 0; i < count; i++) {
        if (offers[i].color == WEFT_COLOR_NONE) {
            continue;
        }
        find_members(offers, count, offers[i].color, scratch);
        if (!find_channel(scratch, pool_count, &pool, &channel)) {
            return false;
        }
    }
    return true;
}

/*
 * This rank neither looks at the channel nor writes to the peers' any more. It may be used again
 * when all ranks say so, which they tell each other when the next group of the world is made.
 */
static void retire_channel(weft_group_t *group)
{
    weft_context_t *context = group->context;
    wefti_channels_t *channels = wefti_channels_of(context);
    pthread_mutex_lock(&context->lock);
    channels->retired[group->pool] =
        (uint16_t)(channels->retired[group->pool] | 1u << group->channel);
    if (wefti_signal_reached(group->calls->number, channels->last_number)) {
        channels->last_number = group->calls->number;
    }
    pthread_mutex_unlock(&context->lock);
}

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
    wefti_free(allocator, calls->sent);
    wefti_free(allocator, calls->received);
    wefti_free(allocator, calls->sources);
    wefti_free(allocator, calls->destinations);
    wefti_free(allocator, calls);
}

static void group_free(weft_group_t *group)
{
    weft_context_t *context = group->context;
    const weft_allocator_t *allocator = context->allocator;
    if (group->retires) {
        wefti_endpoint_flush(group->endpoint); /* nothing of this rank's comes to it later */
        retire_channel(group);
    }
    calls_free(group);
    wefti_free(allocator, group->put_peers);
    wefti_free(allocator, group->put_links);
    wefti_free(allocator, group->channels);
    wefti_free(allocator, group->bases);
    pthread_mutex_destroy(&group->link.lock);
    wefti_free(allocator, group->ranks);
    wefti_free(allocator, group);
    weft_context_release(context);
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
    for (uint32_t i = 0; i < WEFTI_CALLS; i++) {
        calls->ring[i].group = group; /* constant: streams read it of calls that are done */
    }
    calls->submit =
        group->context->device != NULL ? wefti_device_call_submit : wefti_call_submit_host;
    calls->sources = wefti_alloc(allocator, size * sizeof *calls->sources);
    calls->destinations = wefti_alloc(allocator, size * sizeof *calls->destinations);
    calls->sent = wefti_alloc(allocator, size * sizeof *calls->sent);
    calls->received = wefti_alloc(allocator, size * sizeof *calls->received);
    return calls->sources != NULL && calls->destinations != NULL && calls->sent != NULL &&
           calls->received != NULL;
}

static weft_status_t group_alloc(weft_context_t *context, uint32_t size, weft_group_t **out_group)
{
    const weft_allocator_t *allocator = context->allocator;
    weft_group_t *group = wefti_alloc(allocator, sizeof *group);
    *out_group = group;
    if (group == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
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
        *out_group = NULL;
        return WEFT_ERR_NO_MEMORY;
    }
    return WEFT_OK;
}

/* Put links of the group, by what its ranks said of themselves. */
static weft_status_t link_ranks(weft_group_t *group, const members_t *members)
{
    const weft_allocator_t *allocator = group->context->allocator;
    uint32_t *leaders = wefti_alloc(allocator, members->count * sizeof *leaders);
    if (leaders == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < members->count; i++) {
        leaders[i] = members->offers[i]->leader;
    }
    weft_status_t status = wefti_mirror_link(group, leaders);
    wefti_free(allocator, leaders);
    return status;
}

static weft_status_t build(weft_context_t *context, const members_t *members, uint32_t pool,
                           uint32_t channel, weft_group_t **out_group)
{
    wefti_channels_t *channels = wefti_channels_of(context);
    wefti_endpoint_t *endpoint = context->endpoint;
    uint32_t fault_count = 0;
    weft_group_t *group = NULL;
    weft_status_t status = group_alloc(context, members->count, &group);
    *out_group = group;
    if (status < 0) {
        return status;
    }
    size_t offset = channels->offsets[pool] + channel * channels->layout.total_bytes;
    uint32_t number = members->offers[0]->last_number;
    for (uint32_t i = 0; i < members->count; i++) {
        const offer_t *offer = members->offers[i];
        number = wefti_signal_reached(offer->last_number, number) ? offer->last_number : number;
        fault_count = offer->fault_count > fault_count ? offer->fault_count : fault_count;
        group->ranks[i] = offer->world_rank;
        group->bases[i] = endpoint->region_of[offer->world_rank];
        if (group->bases[i] != NULL) {
            group->channels[i] = (wefti_channel_t *)(void *)(group->bases[i] + offset);
        }
        group->rank = offer->world_rank == endpoint->rank ? i : group->rank;
    }
    group->layout = channels->layout;
    group->whole_world = members->count == endpoint->world_size;
    group->pool = pool;
    group->channel = channel;
    group->channel_offset = offset;
    channels->used[pool] = (uint16_t)(channels->used[pool] | 1u << channel);
    status = link_ranks(group, members);
    if (status == WEFT_OK) {
        wefti_link_init(group, fault_count);
        wefti_group_reset_channel(group, number + 2);
        group->calls->number = number + 2;
    }
    return status;
}

static weft_status_t check_offers(const offer_t *offers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (offers[i].digest != offers[0].digest) {
            return wefti_error(WEFT_ERR_MISMATCH,
                               "new group: ranks %u and %u passed different lists of ranks",
                               offers[0].world_rank, offers[i].world_rank);
        }
    }
    return WEFT_OK;
}

static weft_status_t choose_and_build(weft_context_t *context, weft_group_t *parent,
                                      const offer_t *offers, uint32_t count, members_t *members,
                                      uint32_t color, weft_group_t **out_group)
{
    wefti_channels_t *channels = wefti_channels_of(context);
    uint32_t pool_count = channels->pool_count, pool = 0, channel = 0;
    weft_status_t status = check_offers(offers, count);
    if (status < 0) {
        return status;
    }
    if (!all_find_channels(offers, count, pool_count, members)) {
        if (parent != NULL && !parent->whole_world) {
            return wefti_error(WEFT_ERR_NO_MEMORY,
                               "too many groups: no free channel; create it from the "
                               "world group, or destroy a group");
        }
        status = wefti_channels_grow(context);
        if (status < 0) {
            return status;
        }
    }
    if (color == WEFT_COLOR_NONE) {
        return WEFT_OK;
    }
    find_members(offers, count, color, members);
    find_channel(members, channels->pool_count, &pool, &channel);
    return build(context, members, pool, channel, out_group);
}

/* Attaching is for groups in which every rank may attach to every other. */
static weft_status_t agree_on_attach(weft_context_t *context, weft_group_t *parent,
                                     const offer_t *offers, uint32_t count, weft_group_t *group)
{
    uint8_t works = 1;
    uint8_t *all = wefti_alloc(context->allocator, count);
    weft_status_t status = agree(context, parent, all != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY);
    uint32_t color = WEFT_COLOR_NONE;
    for (uint32_t i = 0; i < count; i++) {
        color = offers[i].world_rank == context->endpoint->rank ? offers[i].color : color;
    }
    for (uint32_t i = 0; status == WEFT_OK && i < count; i++) {
        if (color != WEFT_COLOR_NONE && offers[i].color == color &&
            !wefti_attach_works(context, offers[i].world_rank, &offers[i].attach)) {
            works = 0;
        }
    }
    if (status == WEFT_OK) {
        status = all_gather(context, parent, &works, 1, all);
    }
    for (uint32_t i = 0; status == WEFT_OK && i < count; i++) {
        works = offers[i].color == color && all[i] == 0 ? 0 : works;
    }
    if (status == WEFT_OK && group != NULL) {
        group->attach = works != 0;
    }
    wefti_free(context->allocator, all);
    return status;
}

static void offer_channels(weft_context_t *context, offer_t *own)
{
    const wefti_channels_t *channels = wefti_channels_of(context);
    pthread_mutex_lock(&context->lock);
    own->last_number = channels->last_number;
    memcpy(own->used, channels->used, sizeof own->used);
    memcpy(own->retired, channels->retired, sizeof own->retired);
    pthread_mutex_unlock(&context->lock);
}

/*
 * Channels of broken groups become free when every rank of the world that used them has retired
 * them. All ranks find the same, here and in the offers that they choose by.
 */
static void reclaim_channels(weft_context_t *context, offer_t *offers, uint32_t count)
{
    wefti_channels_t *channels = wefti_channels_of(context);
    for (uint32_t pool = 0; pool < channels->pool_count; pool++) {
        uint16_t busy = 0;
        for (uint32_t i = 0; i < count; i++) {
            busy = (uint16_t)(busy | (offers[i].used[pool] & ~offers[i].retired[pool]));
        }
        for (uint32_t i = 0; i < count; i++) {
            offers[i].used[pool] &= busy;
        }
        pthread_mutex_lock(&context->lock);
        channels->used[pool] &= busy;
        channels->retired[pool] &= busy;
        pthread_mutex_unlock(&context->lock);
    }
}

/* parent NULL: the world. */
static weft_status_t create(weft_context_t *context, weft_group_t *parent, uint32_t color,
                            int64_t key, uint64_t digest, weft_group_t **out_group)
{
    wefti_endpoint_t *endpoint = context->endpoint;
    uint32_t count = parent != NULL ? parent->size : endpoint->world_size;
    const wefti_channels_t *channels = wefti_channels_get(context);
    weft_status_t status = channels != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    offer_t own = {.key = key, .digest = digest, .color = color, .world_rank = endpoint->rank};
    own.parent_rank = parent != NULL ? parent->rank : endpoint->rank;
    offer_t *offers = wefti_alloc(context->allocator, count * sizeof *offers);
    members_t members = {wefti_alloc(context->allocator, count * sizeof *members.offers), 0};
    if (status == WEFT_OK && (offers == NULL || members.offers == NULL)) {
        status = WEFT_ERR_NO_MEMORY;
    }
    WEFT_TRY(status, agree(context, parent, status), out);
    own.leader = wefti_mirror_leader(endpoint);
    own.fault_count = atomic_load_explicit(&endpoint->link_faults, memory_order_acquire);
    own.pool_count = channels->pool_count;
    offer_channels(context, &own);
    wefti_attach_offer(context, &own.attach);
    WEFT_TRY(status, all_gather(context, parent, &own, sizeof own, offers), out);
    if (parent == NULL || parent->whole_world) {
        reclaim_channels(context, offers, count);
    }
    status = choose_and_build(context, parent, offers, count, &members, color, out_group);
    if (status == WEFT_OK && *out_group != NULL) {
        status = wefti_select_init(*out_group, parent);
    }
    /* Also the point from which on the others may use this rank's channel. */
    status = agree(context, parent, status);
    if (status == WEFT_OK && wefti_attach_wanted(context)) {
        status = agree_on_attach(context, parent, offers, count, *out_group);
    }
    if (status < 0 && *out_group != NULL) {
        (*out_group)->retires = true; /* not given back: somebody may believe in it */
        group_free(*out_group);
        *out_group = NULL;
    }
out:
    wefti_free(context->allocator, members.offers);
    wefti_free(context->allocator, offers);
    return status;
}

weft_status_t weft_group_create_world(weft_context_t *context, weft_group_t **out_group)
{
    WEFT_CHECK_OUT(out_group);
    WEFT_CHECK_ARG(context);
    return create(context, NULL, 0, 0, 0, out_group);
}

/* A group to create others from: not NULL, not broken, and not in a forked child. */
static weft_status_t check_parent(weft_group_t *parent)
{
    weft_status_t status = wefti_recorder_check(parent, "create a group from it");
    /* Calls on it recover links that can be recovered. */
    return status < 0 ? status : wefti_group_check_lasting(parent);
}

weft_status_t weft_group_split(weft_group_t *parent, uint32_t color, int64_t key,
                               weft_group_t **out_group)
{
    WEFT_CHECK_OUT(out_group);
    WEFT_CHECK_ARG(parent);
    weft_status_t status = check_parent(parent);
    return status < 0 ? status : create(parent->context, parent, color, key, 0, out_group);
}

weft_status_t weft_group_duplicate(weft_group_t *group, weft_group_t **out_group)
{
    WEFT_CHECK_OUT(out_group);
    WEFT_CHECK_ARG(group);
    weft_status_t status = check_parent(group);
    return status < 0 ? status : create(group->context, group, 0, 0, 0, out_group);
}

weft_status_t weft_group_create_ranks(weft_group_t *parent, const uint32_t *ranks, uint32_t count,
                                      weft_group_t **out_group)
{
    WEFT_CHECK_OUT(out_group);
    WEFT_CHECK_ARG(parent);
    WEFT_CHECK_ARG(ranks);
    weft_status_t status = check_parent(parent);
    if (status < 0) {
        return status;
    }
    if (count == 0 || count > parent->size) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "count: must be 1 to the group size %u: %u",
                           parent->size, count);
    }
    uint32_t color = WEFT_COLOR_NONE;
    int64_t key = 0;
    uint64_t digest = WEFTI_HASH_START;
    for (uint32_t i = 0; i < count; i++) {
        if (ranks[i] >= parent->size) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "ranks[%u]: invalid rank %u for group size %u", i, ranks[i],
                               parent->size);
        }
        for (uint32_t j = 0; j < i; j++) {
            if (ranks[j] == ranks[i]) {
                return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                                   "ranks: duplicate rank %u at ranks[%u] and ranks[%u]", ranks[i],
                                   j, i);
            }
        }
        digest = wefti_hash_step(digest, ranks[i]);
        if (ranks[i] == parent->rank) {
            color = 0;
            key = i;
        }
    }
    return create(parent->context, parent, color, key, digest, out_group);
}

weft_status_t weft_group_create_named(const char *name, uint32_t size, uint32_t rank,
                                      weft_group_t **out_group)
{
    WEFT_CHECK_OUT(out_group);
    WEFT_CHECK_ARG(name);
    char address[NAME_BYTES + 48];
    size_t length = strnlen(name, NAME_BYTES + 1);
    if (length == 0 || length > NAME_BYTES) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "name: must have 1 to %u characters",
                           NAME_BYTES);
    }
    for (size_t i = 0; i < length; i++) {
        if (name[i] <= ' ' || name[i] > '~') {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "name: character %zu is not printable ASCII", i);
        }
    }
    if (size == 0 || rank >= size || size > INT32_MAX) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "invalid rank %u for group size %u", rank,
                           size);
    }
    snprintf(address, sizeof address, "unix:@weft-%u-group-%s", (unsigned)getuid(), name);
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = (int32_t)rank;
    params.world_size = (int32_t)size;
    params.address = address;
    weft_context_t *context = NULL;
    weft_status_t status = weft_context_create(&params, &context);
    if (status < 0) {
        return wefti_error_prefix(status, "group \"%s\"", name);
    }
    status = weft_group_create_world(context, out_group);
    weft_context_release(context); /* the group keeps it */
    return status;
}

typedef struct parting { /* from one rank of the group */
    weft_group_t *group;
    uint32_t rank;
    uint64_t gone_since_ns; /* it has left the world, and its word has not come; 0: no */
} parting_t;

/* Whose word comes by puts is not known by where that lies, so it is looked for here. */
static weft_status_t poll_parting(void *user)
{
    parting_t *parting = user;
    weft_group_t *group = parting->group;
    if (wefti_group_broken(group)) {
        return wefti_group_check(group);
    }
    if (!wefti_group_puts(group, parting->rank) ||
        !wefti_endpoint_has_left(group->endpoint, group->ranks[parting->rank])) {
        return WEFT_OK;
    }
    uint64_t now = wefti_now_ns();
    parting->gone_since_ns = parting->gone_since_ns != 0 ? parting->gone_since_ns : now;
    return now - parting->gone_since_ns < WEFTI_ARRIVES_NS ? WEFT_OK : WEFT_ERR_PEER_DIED;
}

/* Waits for this rank's calls, then for all ranks; false when the group is broken. */
static bool part(weft_group_t *group)
{
    if (!wefti_endpoint_owned(group->endpoint)) {
        return false; /* a forked child must not run what its parent has in flight */
    }
    if (wefti_group_drain(group) < 0 || wefti_group_check(group) < 0) {
        return false;
    }
    uint32_t number = ++group->calls->number;
    if (group->put_peer_count > 0) {
        wefti_endpoint_flush(group->endpoint); /* nothing of this rank's comes later */
        wefti_mirror_done(group, number);
    }
    wefti_signal_post(&group->channels[group->rank]->done.signal, number);
    for (uint32_t r = 0; r < group->size; r++) {
        parting_t parting = {group, r, 0};
        if (wefti_wait_signal(group->endpoint, &group->channels[r]->done.signal, number,
                              "a group's ranks to destroy it", poll_parting, &parting) < 0) {
            return false;
        }
    }
    return true;
}

/* The group's end where not all ranks got here: its channel is not used again. */
static void retire(weft_group_t *group)
{
    if (!wefti_endpoint_owned(group->endpoint)) {
        return;
    }
    if (group->put_peer_count > 0) {
        wefti_endpoint_flush(group->endpoint); /* nothing of this rank's comes later */
    }
    group->retires = true; /* peers may still look at it */
}

void weft_group_destroy(weft_group_t *group)
{
    if (group == NULL) {
        return;
    }
    wefti_channels_t *channels = wefti_channels_of(group->context);
    bool parted = part(group);
    wefti_device_calls_destroy(group);
    if (parted) {
        uint32_t bit = 1u << group->channel;
        pthread_mutex_lock(&group->context->lock);
        channels->used[group->pool] = (uint16_t)(channels->used[group->pool] & ~bit);
        if (wefti_signal_reached(group->calls->number, channels->last_number)) {
            channels->last_number = group->calls->number;
        }
        pthread_mutex_unlock(&group->context->lock);
    } else {
        retire(group);
    }
    wefti_group_release(group); /* calls on broken streams may still hold it */
}

void weft_group_leave(weft_group_t *group)
{
    if (group == NULL) {
        return;
    }
    if (wefti_endpoint_owned(group->endpoint)) {
        wefti_group_drain(group);
    }
    wefti_device_calls_destroy(group);
    retire(group);
    wefti_group_release(group);
}

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
