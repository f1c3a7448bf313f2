/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making groups. All ranks of the parent tell each other their colour, key and which channels they
 * have free; from that every rank derives the same groups, and each group takes the lowest channel
 * that is free on all of its ranks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/params.h"
#include "runtime/collective/agree.h"
#include "runtime/collective/call_late.h"
#include "runtime/collective/call_steps.h"
#include "runtime/collective/group_create.h"
#include "runtime/collective/recorder.h"
#include "runtime/group/attach.h"
#include "runtime/group/mirror.h"

#define NAME_BYTES 64u
#define NO_CHANNEL UINT32_MAX
#define HEARSAY_NS 5000000000ull /* a flood takes its way */

/* How a rank makes a group: the same on all ranks, but for colour and key. */
typedef struct signature {
    uint32_t making;    /* wefti_control_kind_t */
    uint32_t parent;    /* its channel, which is its own on every rank; NO_CHANNEL: the world */
    uint64_t selection; /* what the new group inherits of it: a digest of order and algorithms */
    uint64_t list;      /* of create_ranks: a digest of the ranks */
    uint64_t list_count;
    uint64_t staging_bytes; /* 0: by the setting */
} signature_t;

typedef struct offer {
    signature_t signature;
    int64_t key;
    wefti_attach_offer_t attach;
    bool attaches; /* to all ranks of its colour */
    uint32_t color, world_rank, parent_rank;
    uint32_t fault_count; /* links of the world that broke until now */
    wefti_channel_use_t channels;
} offer_t;

/* Ranks of a new group, in its order. */
typedef struct members {
    const offer_t *offers;
    uint32_t count;
} members_t;

/* parent NULL: the world. */
static bool is_world(const weft_group_t *parent)
{
    return parent == NULL || parent->whole_world;
}

static weft_status_t exchange(weft_context_t *context, weft_group_t *parent, const offer_t *own,
                              offer_t *out_offers)
{
    return is_world(parent)
               ? wefti_endpoint_all_gather(context->endpoint, own, sizeof *own, out_offers)
               : wefti_group_all_gather(parent, own, sizeof *own, out_offers);
}

static weft_status_t agree(weft_context_t *context, weft_group_t *parent, weft_status_t status)
{
    return is_world(parent) ? wefti_endpoint_agree(context->endpoint, status)
                            : wefti_group_agree(parent, status);
}

/* Colours one after the other, each in the order of its group. */
static int by_color_and_key(const void *a, const void *b)
{
    const offer_t *x = a, *y = b;
    if (x->color != y->color) {
        return x->color < y->color ? -1 : 1;
    }
    if (x->key != y->key) {
        return x->key < y->key ? -1 : 1;
    }
    return x->parent_rank < y->parent_rank ? -1 : x->parent_rank > y->parent_rank;
}

/* Of sorted offers. */
static members_t find_members(const offer_t *offers, uint32_t count, uint32_t color)
{
    uint32_t first = 0, end;
    while (first < count && offers[first].color != color) {
        first++;
    }
    for (end = first; end < count && offers[end].color == color;) {
        end++;
    }
    return (members_t){offers + first, end - first};
}

/* The lowest channel with such staging that is free on all members, or NO_CHANNEL. */
static uint32_t find_channel(const wefti_channels_t *channels, size_t half_bytes,
                             const members_t *members)
{
    uint32_t count = atomic_load_explicit(&channels->pool_count, memory_order_relaxed);
    for (uint32_t pool = 0; pool < count; pool++) {
        uint32_t used = 0;
        if (channels->pools[pool].half_bytes != half_bytes) {
            continue;
        }
        for (uint32_t i = 0; i < members->count; i++) {
            used |= members->offers[i].channels.used[pool];
        }
        uint32_t lowest = (uint32_t)__builtin_ctz(~used);
        if (lowest < WEFTI_POOL_CHANNELS) {
            return pool * WEFTI_POOL_CHANNELS + lowest;
        }
    }
    return NO_CHANNEL;
}

static bool all_find_channels(const wefti_channels_t *channels, size_t half_bytes,
                              const offer_t *offers, uint32_t count)
{
    for (uint32_t i = 0; i < count;) {
        members_t members = find_members(offers, count, offers[i].color);
        if (offers[i].color != WEFT_COLOR_NONE &&
            find_channel(channels, half_bytes, &members) == NO_CHANNEL) {
            return false;
        }
        i += members.count;
    }
    return true;
}

/*
 * Channels of broken groups become free when every rank of the world that used them has retired
 * them. All ranks find the same, here and in the offers that they choose by.
 */
static void reclaim_channels(weft_context_t *context, offer_t *offers, uint32_t count)
{
    for (uint32_t pool = 0; pool < WEFTI_POOLS; pool++) {
        uint16_t busy = 0;
        for (uint32_t i = 0; i < count; i++) {
            const wefti_channel_use_t *use = &offers[i].channels;
            busy = (uint16_t)(busy | (use->used[pool] & ~use->retired[pool]));
        }
        for (uint32_t i = 0; i < count; i++) {
            offers[i].channels.used[pool] &= busy;
        }
        wefti_channels_reclaim(context, pool, busy);
    }
}

static signature_t sign(wefti_control_kind_t making, const weft_group_t *parent)
{
    signature_t signature = {.making = making, .parent = NO_CHANNEL};
    if (parent != NULL) {
        const wefti_selection_t *selection = &parent->calls->selection;
        signature.parent = parent->channel;
        signature.staging_bytes = wefti_group_staging_bytes(parent);
        signature.selection = wefti_hash_words(selection->what, WEFTI_OPS) ^
                              3 * wefti_hash_words(selection->digest, WEFTI_OPS);
    }
    return signature;
}

/* Of two that differ: what is different, as arguments of the function. */
static void arguments_text(const signature_t *own, const signature_t *other, char *out,
                           size_t bytes)
{
    out[0] = '\0';
    if (own->making != other->making) {
        return;
    }
    if (own->parent != other->parent) {
        snprintf(out, bytes, " of the group in channel %u", own->parent);
    } else if (own->selection != other->selection) {
        snprintf(out, bytes, " of a group with order and algorithms %016llx",
                 (unsigned long long)own->selection);
    } else if (own->staging_bytes != other->staging_bytes) {
        snprintf(out, bytes, " with %llu bytes of staging", (unsigned long long)own->staging_bytes);
    } else {
        snprintf(out, bytes, " with %llu ranks (list %016llx)", (unsigned long long)own->list_count,
                 (unsigned long long)own->list);
    }
}

/* All ranks have the same offers, so all find the same. */
static weft_status_t compare_signatures(const offer_t *offers, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        const signature_t *low = &offers[0].signature, *high = &offers[i].signature;
        if (memcmp(high, low, sizeof *high) != 0) {
            char high_text[80], low_text[80];
            arguments_text(high, low, high_text, sizeof high_text);
            arguments_text(low, high, low_text, sizeof low_text);
            return wefti_mismatch(
                &(wefti_caller_t){offers[i].world_rank, wefti_control_name(high->making),
                                  high_text},
                &(wefti_caller_t){offers[0].world_rank, wefti_control_name(low->making), low_text});
        }
    }
    return WEFT_OK;
}

/* Links that broke for a member break for this rank too, before it uses the group: those faults
 * count as past there. */
static weft_status_t hear_of_faults(weft_context_t *context, const offer_t *offers, uint32_t count)
{
    wefti_endpoint_t *endpoint = context->endpoint;
    uint64_t end = wefti_now_ns() + HEARSAY_NS;
    uint32_t most = 0;
    for (uint32_t i = 0; i < count; i++) {
        most = offers[i].fault_count > most ? offers[i].fault_count : most;
    }
    while (atomic_load_explicit(&endpoint->link_faults, memory_order_acquire) < most) {
        WEFT_RETURN_IF_ERROR(wefti_endpoint_check(endpoint));
        if (wefti_now_ns() >= end) {
            return wefti_error(WEFT_ERR_LINK,
                               "rank %u does not learn which %u links of the world broke",
                               endpoint->rank, most);
        }
        wefti_endpoint_progress(endpoint);
        wefti_sleep_ns(100000);
    }
    return WEFT_OK;
}

/* model: whose order and algorithms it has; NULL: those of the settings. *out_group is set, unless
 * there is no memory for it: the caller releases it after an error. */
static weft_status_t build(weft_context_t *context, const members_t *members, uint32_t channel,
                           const weft_group_t *model, weft_group_t **out_group)
{
    wefti_endpoint_t *endpoint = context->endpoint;
    uint32_t fault_count = 0, number = members->offers[0].channels.last_number;
    WEFT_RETURN_IF_ERROR(wefti_group_alloc(context, members->count, out_group));
    weft_group_t *group = *out_group;
    group->whole_world = members->count == endpoint->world_size;
    weft_status_t status = wefti_channels_take(group, channel);
    for (uint32_t i = 0; i < members->count; i++) {
        const offer_t *offer = &members->offers[i];
        uint32_t last = offer->channels.last_number;
        number = wefti_signal_reached(last, number) ? last : number;
        fault_count = offer->fault_count > fault_count ? offer->fault_count : fault_count;
        group->ranks[i] = offer->world_rank;
        group->bases[i] = endpoint->region_of[offer->world_rank];
        if (group->bases[i] != NULL) {
            group->channels[i] =
                (wefti_channel_t *)(void *)(group->bases[i] + group->channel_offset);
        }
        group->rank = offer->world_rank == endpoint->rank ? i : group->rank;
    }
    group->calls->flight =
        wefti_flight_add_group(&context->flight, group->ranks, group->size, group->rank, channel,
                               &group->channels[group->rank]->abort);
    WEFT_RETURN_IF_ERROR(status);
    WEFT_RETURN_IF_ERROR(wefti_mirror_link(group));
    WEFT_RETURN_IF_ERROR(wefti_group_find_hosts(group));
    wefti_link_init(group, fault_count);
    wefti_group_reset_channel(group, number + 2);
    wefti_waits_forget(group->endpoint, channel);
    group->calls->number = number + 2;
    return wefti_select_init(group, model);
}

/* offers: of all ranks of parent. */
static weft_status_t choose_and_build(weft_context_t *context, weft_group_t *parent,
                                      offer_t *offers, uint32_t count, uint32_t color,
                                      const weft_group_t *model, weft_group_t **out_group)
{
    wefti_channels_t *channels = wefti_channels_of(context);
    size_t half_bytes = wefti_channels_half_bytes(context, offers->signature.staging_bytes);
    qsort(offers, count, sizeof *offers, by_color_and_key);
    if (!all_find_channels(channels, half_bytes, offers, count)) {
        if (!is_world(parent)) {
            return wefti_error(WEFT_ERR_NO_MEMORY,
                               "too many groups: no free channel; create it from the "
                               "world group, or destroy a group");
        }
        WEFT_RETURN_IF_ERROR(wefti_channels_grow(context, half_bytes));
    }
    if (color == WEFT_COLOR_NONE) {
        return WEFT_OK;
    }
    members_t members = find_members(offers, count, color);
    return build(context, &members, find_channel(channels, half_bytes, &members), model, out_group);
}

/* Attaching is for groups in which every rank may attach to every other. group NULL: this rank is
 * in none. */
static weft_status_t agree_on_attach(weft_context_t *context, weft_group_t *parent, offer_t *own,
                                     offer_t *offers, uint32_t count, weft_group_t *group)
{
    members_t members = find_members(offers, count, own->color);
    own->attaches = true;
    for (uint32_t i = 0; group != NULL && i < members.count; i++) {
        const offer_t *offer = &members.offers[i];
        own->attaches =
            own->attaches && wefti_attach_works(context, offer->world_rank, &offer->attach);
    }
    WEFT_RETURN_IF_ERROR(exchange(context, parent, own, offers));
    bool all = true;
    for (uint32_t i = 0; i < count; i++) {
        all = all && (offers[i].color != own->color || offers[i].attaches);
    }
    if (group != NULL) {
        group->attach = all;
    }
    return WEFT_OK;
}

static weft_status_t create(weft_context_t *context, weft_group_t *parent,
                            const signature_t *signature, uint32_t color, int64_t key,
                            const weft_group_t *model, weft_group_t **out_group)
{
    wefti_endpoint_t *endpoint = context->endpoint;
    uint32_t count = parent != NULL ? parent->size : endpoint->world_size;
    offer_t own = {
        .signature = *signature, .key = key, .color = color, .world_rank = endpoint->rank};
    own.parent_rank = parent != NULL ? parent->rank : endpoint->rank;
    offer_t *offers = wefti_alloc(context->allocator, count * sizeof *offers);
    bool made = wefti_channels_get(context) != NULL && offers != NULL;
    weft_status_t status;
    WEFTI_IN_CONTROL_AS(endpoint, GROUP, (wefti_control_kind_t)signature->making);
    WEFT_TRY(status, agree(context, parent, made ? WEFT_OK : WEFT_ERR_NO_MEMORY), out);
    own.fault_count = atomic_load_explicit(&endpoint->link_faults, memory_order_acquire);
    own.channels = wefti_channels_use(context);
    wefti_attach_offer(context, &own.attach);
    WEFT_TRY(status, exchange(context, parent, &own, offers), out);
    WEFT_TRY(status, compare_signatures(offers, count), out);
    if (is_world(parent)) {
        reclaim_channels(context, offers, count);
    }
    status = hear_of_faults(context, offers, count);
    if (status == WEFT_OK) {
        status = choose_and_build(context, parent, offers, count, color, model, out_group);
    }
    /* Also the point from which on the others may use this rank's channel. */
    status = agree(context, parent, status);
    if (status == WEFT_OK && wefti_attach_wanted(context)) {
        status = agree_on_attach(context, parent, &own, offers, count, *out_group);
    }
    if (status < 0 && *out_group != NULL) {
        (*out_group)->retires = true; /* not given back: somebody may believe in it */
        wefti_group_release(*out_group);
        *out_group = NULL;
    }
out:
    wefti_free(context->allocator, offers);
    return status;
}

weft_status_t wefti_group_create(weft_context_t *context, uint32_t color, int64_t key,
                                 uint64_t staging_bytes, const weft_group_t *model,
                                 weft_group_t **out_group)
{
    signature_t signature = sign(WEFTI_CONTROL_GROUP_CREATE_WORLD, NULL);
    signature.staging_bytes = staging_bytes;
    return create(context, NULL, &signature, color, key, model, out_group);
}

weft_status_t weft_group_create_world(weft_context_t *context, weft_group_t **out_group)
{
    WEFT_CHECK_OUT(out_group);
    WEFT_CHECK_ARG(context);
    return wefti_group_create(context, 0, 0, 0, NULL, out_group);
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
    WEFT_RETURN_IF_ERROR(check_parent(parent));
    const signature_t signature = sign(WEFTI_CONTROL_GROUP_SPLIT, parent);
    return create(parent->context, parent, &signature, color, key, parent, out_group);
}

weft_status_t weft_group_create(weft_context_t *context, const weft_group_params_t *params,
                                weft_group_t **out_group)
{
    WEFT_CHECK_OUT(out_group);
    WEFT_CHECK_ARG(context);
    weft_group_params_t own = WEFT_GROUP_PARAMS_INIT;
    WEFT_RETURN_IF_ERROR(WEFTI_PARAMS_READ(params, &own));
    if (own.parent != NULL) {
        if (own.parent->context != context) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "parent",
                                     "parent: a group of another context");
        }
        WEFT_RETURN_IF_ERROR(check_parent(own.parent));
    }
    signature_t signature = sign(WEFTI_CONTROL_GROUP_CREATE, own.parent);
    if (own.staging_bytes != 0) {
        signature.staging_bytes = own.staging_bytes;
    }
    return create(context, own.parent, &signature, own.color, own.key, own.parent, out_group);
}

weft_status_t weft_group_duplicate(weft_group_t *group, weft_group_t **out_group)
{
    WEFT_CHECK_OUT(out_group);
    WEFT_CHECK_ARG(group);
    WEFT_RETURN_IF_ERROR(check_parent(group));
    const signature_t signature = sign(WEFTI_CONTROL_GROUP_DUPLICATE, group);
    return create(group->context, group, &signature, 0, 0, group, out_group);
}

weft_status_t weft_group_create_ranks(weft_group_t *parent, const uint32_t *ranks, uint32_t count,
                                      weft_group_t **out_group)
{
    WEFT_CHECK_OUT(out_group);
    WEFT_CHECK_ARG(parent);
    WEFT_CHECK_ARG(ranks);
    WEFT_RETURN_IF_ERROR(check_parent(parent));
    if (count == 0 || count > parent->size) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "count: must be 1 to the group size %u: %u",
                           parent->size, count);
    }
    uint32_t color = WEFT_COLOR_NONE;
    int64_t key = 0;
    signature_t signature = sign(WEFTI_CONTROL_GROUP_CREATE_RANKS, parent);
    signature.list = WEFTI_HASH_START;
    signature.list_count = count;
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
        signature.list = wefti_hash_step(signature.list, ranks[i]);
        if (ranks[i] == parent->rank) {
            color = 0;
            key = i;
        }
    }
    return create(parent->context, parent, &signature, color, key, parent, out_group);
}

weft_status_t weft_group_create_named(const char *name, uint32_t size, uint32_t rank,
                                      const weft_context_params_t *params, weft_group_t **out_group)
{
    WEFT_CHECK_OUT(out_group);
    WEFT_CHECK_ARG(name);
    weft_context_params_t own = WEFT_CONTEXT_PARAMS_INIT;
    WEFT_RETURN_IF_ERROR(WEFTI_PARAMS_READ(params, &own));
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
    own.rank = (int32_t)rank;
    own.world_size = (int32_t)size;
    own.address = address;
    own.hub = NULL;
    weft_context_t *context = NULL;
    weft_status_t status = weft_context_create(&own, &context);
    if (status < 0) {
        return wefti_error_prefix(status, "group \"%s\"", name);
    }
    status = weft_group_create_world(context, out_group);
    weft_context_release(context); /* the group keeps it */
    return status;
}
