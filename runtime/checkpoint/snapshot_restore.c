/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restoring a snapshot. The ranks tell each other which versions they hold; the newest whole one
 * counts. Versions are numbered by generation (how many restores were before) and step. Every
 * sharded tensor is then put together from the ranks that have its shards.
 */
#include "runtime/checkpoint/snapshot.h"

#include <math.h>
#include <string.h>

#include <weft/collective.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/params.h"
#include "runtime/plan/session_state.h"

#define NO_RANK UINT32_MAX

/* What a rank tells the others about one of its versions. */
typedef struct held {
    uint64_t generation, step;
    uint32_t world_size, rank; /* of the world that took it */
    uint32_t complete, sharded;
} held_t;

typedef struct holdings {
    uint64_t generation;
    held_t versions[WEFTI_SNAPSHOT_VERSIONS];
} holdings_t;

typedef struct restorer {
    weft_snapshot_t *snapshot;
    weft_session_t *session; /* NULL: the version is made whole where it is */
    weft_group_t *group;
    wefti_endpoint_t *endpoint;
    weft_status_t status; /* of this rank's arguments */
    wefti_arena_t arena;
    wefti_checkpoint_tensors_t tensors; /* of the session */
    const holdings_t *all;              /* [rank] */
    held_t chosen;
    wefti_version_t *version; /* what this rank holds of it; NULL: nothing */
    uint32_t first;           /* the lowest rank that holds any of it */
    bool everywhere;          /* every rank does */
    uint32_t *sources;        /* [rank of the old world] the rank that has its shards */
    uint8_t *raw, *plain;
} restorer_t;

static const held_t *held_by(const restorer_t *restorer, uint32_t rank, const held_t *version)
{
    for (uint32_t i = 0; i < WEFTI_SNAPSHOT_VERSIONS; i++) {
        const held_t *held = &restorer->all[rank].versions[i];
        if (held->complete && held->generation == version->generation &&
            held->step == version->step) {
            return held;
        }
    }
    return NULL;
}

/* The rank that has the shards of a rank of the old world: itself, or the one after it. */
static uint32_t source_of(const restorer_t *restorer, const held_t *version, uint32_t old)
{
    uint32_t found = NO_RANK;
    for (uint32_t r = 0; r < restorer->endpoint->world_size; r++) {
        const held_t *held = held_by(restorer, r, version);
        if (held != NULL && held->rank == old) {
            return r;
        }
        if (held != NULL && held->rank == (old + 1) % version->world_size) {
            found = r;
        }
    }
    return found;
}

/* The first rank of the old world whose shards no rank has; NO_RANK: the version is whole. */
static uint32_t find_lost(const restorer_t *restorer, const held_t *version)
{
    for (uint32_t old = 0; version->sharded && old < version->world_size; old++) {
        if (source_of(restorer, version, old) == NO_RANK) {
            return old;
        }
    }
    return NO_RANK;
}

static weft_status_t choose(restorer_t *restorer)
{
    const held_t *newest = NULL, *best = NULL;
    uint32_t lost = NO_RANK;
    for (uint32_t r = 0; r < restorer->endpoint->world_size; r++) {
        for (uint32_t i = 0; i < WEFTI_SNAPSHOT_VERSIONS; i++) {
            const held_t *held = &restorer->all[r].versions[i];
            if (!held->complete) {
                continue;
            }
            bool newer = best == NULL || held->generation > best->generation ||
                         (held->generation == best->generation && held->step > best->step);
            newest = newest == NULL ? held : newest;
            lost = newer ? find_lost(restorer, held) : lost;
            best = newer && lost == NO_RANK ? held : best;
        }
    }
    if (best == NULL && newest == NULL) {
        return wefti_error(WEFT_ERR_NOT_FOUND, "snapshot: empty on all ranks");
    }
    if (best == NULL) {
        lost = find_lost(restorer, newest);
        return wefti_error(WEFT_ERR_NOT_FOUND,
                           "snapshot: the shards of rank %u of %u are lost: neither it nor rank %u "
                           "is left; continue from a checkpoint",
                           lost, newest->world_size, (lost + 1) % newest->world_size);
    }
    restorer->chosen = *best;
    return WEFT_OK;
}

static void find_own(restorer_t *restorer)
{
    uint32_t world_size = restorer->endpoint->world_size;
    restorer->everywhere = true;
    restorer->first = NO_RANK;
    for (uint32_t r = 0; r < world_size; r++) {
        bool holds = held_by(restorer, r, &restorer->chosen) != NULL;
        restorer->everywhere = restorer->everywhere && holds;
        restorer->first = holds && restorer->first == NO_RANK ? r : restorer->first;
    }
    for (uint32_t i = 0; i < WEFTI_SNAPSHOT_VERSIONS; i++) {
        wefti_version_t *version = &restorer->snapshot->versions[i];
        if (version->complete && version->generation == restorer->chosen.generation &&
            version->info.step == restorer->chosen.step) {
            restorer->version = version;
        }
    }
}

static weft_status_t match_tensors(const restorer_t *restorer)
{
    const wefti_checkpoint_tensors_t *has = &restorer->version->tensors,
                                     *wants = &restorer->tensors;
    bool same = has->count == wants->count;
    for (uint32_t i = 0; same && i < wants->count; i++) {
        const wefti_state_t *a = has->list[i], *b = wants->list[i];
        same = strcmp(a->name, b->name) == 0 && a->desc.dtype == b->desc.dtype &&
               a->size_bytes == b->size_bytes;
    }
    return same ? WEFT_OK
                : wefti_error(WEFT_ERR_FORMAT,
                              "snapshot: has %u tensors of model \"%s\", the plan other ones: %u "
                              "of \"%s\"",
                              has->count, restorer->version->plan->model_name, wants->count,
                              restorer->session->plan->model_name);
}

static weft_status_t make_room(restorer_t *restorer)
{
    size_t largest = 1;
    for (uint32_t i = 0; i < restorer->tensors.count; i++) {
        size_t bytes = restorer->tensors.list[i]->size_bytes;
        largest = bytes > largest ? bytes : largest;
    }
    restorer->raw = wefti_arena_alloc(&restorer->arena, largest);
    restorer->plain = wefti_arena_alloc(&restorer->arena, largest);
    restorer->sources =
        wefti_arena_array(&restorer->arena, restorer->chosen.world_size, sizeof *restorer->sources);
    WEFT_RETURN_IF_NO_MEMORY(restorer->raw && restorer->plain && restorer->sources);
    for (uint32_t old = 0; old < restorer->chosen.world_size; old++) {
        restorer->sources[old] = source_of(restorer, &restorer->chosen, old);
    }
    return WEFT_OK;
}

/* Of a tensor, what this rank is the source of (alone: all that it holds); the rest is 0. */
static void gather_pieces(const restorer_t *restorer, const wefti_state_t *tensor, bool alone,
                          const uint8_t **at)
{
    const wefti_version_t *version = restorer->version;
    uint32_t own = restorer->endpoint->rank;
    memset(restorer->raw, 0, tensor->size_bytes);
    for (uint32_t k = 0; k < tensor->piece_count; k++) {
        const wefti_state_piece_t *piece = &tensor->pieces[k];
        wefti_section_t section = wefti_version_section(version, piece);
        if (section == WEFTI_SECTION_COUNT) {
            continue;
        }
        uint32_t source =
            section == WEFTI_SECTION_ALL ? restorer->first : restorer->sources[piece->rank];
        if (alone || source == own) {
            memcpy(restorer->raw + piece->begin_bytes, at[section], piece->size_bytes);
        }
        at[section] += piece->size_bytes;
    }
}

/* Every rank's part of a tensor, in raw. from: NULL if this rank holds none. */
static weft_status_t put_together(const restorer_t *restorer, const wefti_state_t *from,
                                  uint64_t bytes, const uint8_t **at)
{
    /* A rank that holds nothing does not know which tensors were sharded. */
    bool exchanged = restorer->chosen.sharded && (!restorer->everywhere || from->sharded);
    if (from != NULL) {
        gather_pieces(restorer, from, !exchanged, at);
    } else {
        memset(restorer->raw, 0, bytes);
    }
    /* Each byte comes from one rank, and is 0 on the others. */
    return exchanged && bytes > 0
               ? weft_all_reduce(restorer->raw, restorer->raw, bytes, WEFT_DTYPE_U8,
                                 WEFT_REDUCTION_SUM, restorer->group, NULL)
               : WEFT_OK;
}

static weft_status_t restore_tensor(const restorer_t *restorer, uint32_t index, const uint8_t **at)
{
    const wefti_state_t *to = restorer->tensors.list[index];
    const wefti_state_t *from =
        restorer->version != NULL ? restorer->version->tensors.list[index] : NULL;
    uint64_t bytes = to->size_bytes;
    WEFT_RETURN_IF_ERROR(put_together(restorer, from, bytes, at));
    if (from != NULL) {
        wefti_state_to_plain(from, restorer->raw, restorer->plain);
    }
    if (!restorer->everywhere && bytes > 0) {
        WEFT_RETURN_IF_ERROR(weft_broadcast(restorer->plain, restorer->plain, bytes, WEFT_DTYPE_U8,
                                            restorer->first, restorer->group, NULL));
    }
    return bytes > 0 ? wefti_session_distribute(restorer->session, to, restorer->plain) : WEFT_OK;
}

static void begin_sections(const restorer_t *restorer, const uint8_t **at)
{
    for (uint32_t s = 0; s < WEFTI_SECTION_COUNT; s++) {
        at[s] = restorer->version != NULL
                    ? wefti_version_begin(restorer->version, (wefti_section_t)s)
                    : NULL;
    }
}

static weft_status_t restore_tensors(const restorer_t *restorer)
{
    const uint8_t *at[WEFTI_SECTION_COUNT];
    begin_sections(restorer, at);
    for (uint32_t i = 0; i < restorer->tensors.count; i++) {
        WEFT_RETURN_IF_ERROR(restore_tensor(restorer, i, at));
    }
    return WEFT_OK;
}

/* By name: the plan of the version is another one. */
static double old_scalar(const wefti_version_t *version, const char *name)
{
    for (uint32_t i = 0; version != NULL && i < version->plan->binding_count; i++) {
        const wefti_plan_binding_t *binding = &version->plan->bindings[i];
        if (wefti_checkpoint_has_scalar(binding) && strcmp(binding->name, name) == 0) {
            return version->scalars[i];
        }
    }
    return (double)NAN;
}

static weft_status_t restore_scalars(restorer_t *restorer)
{
    weft_session_t *session = restorer->session;
    const weft_plan_t *plan = session->plan;
    size_t count = plan->binding_count + 1u;
    double *own = wefti_arena_array(&restorer->arena, count, sizeof *own);
    void *gathered;
    for (uint32_t i = 0; own != NULL && i < plan->binding_count; i++) {
        own[i] = old_scalar(restorer->version, plan->bindings[i].name);
    }
    WEFT_RETURN_IF_ERROR(wefti_session_gather(session->endpoint, &restorer->arena,
                                              own != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY, own,
                                              count * sizeof *own, &gathered));
    const double *values = (const double *)gathered + restorer->first * count;
    for (uint32_t i = 0; i < plan->binding_count; i++) {
        if (wefti_checkpoint_has_scalar(&plan->bindings[i]) && !isnan(values[i])) {
            WEFT_RETURN_IF_ERROR(
                wefti_session_write_scalar(session, plan->bindings[i].buffer, values[i]));
        }
    }
    return WEFT_OK;
}

static weft_status_t share_info(restorer_t *restorer, weft_checkpoint_info_t *info)
{
    weft_checkpoint_info_t own = WEFT_CHECKPOINT_INFO_INIT;
    void *gathered;
    if (restorer->version != NULL) {
        own = restorer->version->info;
    }
    WEFT_RETURN_IF_ERROR(wefti_session_gather(restorer->endpoint, &restorer->arena, WEFT_OK, &own,
                                              sizeof own, &gathered));
    *info = ((const weft_checkpoint_info_t *)gathered)[restorer->first];
    return WEFT_OK;
}

/* Tells the others what this rank holds, and decides with them which version counts. */
static weft_status_t meet(restorer_t *restorer)
{
    const weft_snapshot_t *snapshot = restorer->snapshot;
    holdings_t own;
    void *gathered;
    memset(&own, 0, sizeof own);
    own.generation = snapshot->generation;
    for (uint32_t i = 0; i < WEFTI_SNAPSHOT_VERSIONS; i++) {
        const wefti_version_t *version = &snapshot->versions[i];
        if (version->complete) {
            own.versions[i] = (held_t){.generation = version->generation,
                                       .step = version->info.step,
                                       .world_size = version->plan->world_size,
                                       .rank = version->rank,
                                       .complete = 1,
                                       .sharded = wefti_version_is_sharded(version)};
        }
    }
    WEFT_RETURN_IF_ERROR(wefti_session_gather(restorer->endpoint, &restorer->arena,
                                              restorer->status, &own, sizeof own, &gathered));
    restorer->all = gathered;
    WEFT_RETURN_IF_ERROR(choose(restorer));
    find_own(restorer);
    return WEFT_OK;
}

/* What is restored is the only version then, until it is taken again in the new generation. */
static void begin_generation(const restorer_t *restorer)
{
    weft_snapshot_t *snapshot = restorer->snapshot;
    for (uint32_t r = 0; r < restorer->endpoint->world_size; r++) {
        uint64_t generation = restorer->all[r].generation;
        snapshot->generation =
            generation > snapshot->generation ? generation : snapshot->generation;
    }
    snapshot->generation++;
    for (uint32_t i = 0; i < WEFTI_SNAPSHOT_VERSIONS; i++) {
        wefti_version_t *version = &snapshot->versions[i];
        version->complete = version->complete && version == restorer->version;
    }
}

/* What fits the session; before ranks meet. */
static weft_status_t prepare(restorer_t *restorer)
{
    const weft_session_t *session = restorer->session;
    WEFT_RETURN_IF_ERROR(restorer->status);
    WEFT_RETURN_IF_ERROR(wefti_snapshot_check(session, restorer->group));
    return wefti_checkpoint_tensors(session->plan, &session->states, &restorer->arena,
                                    &restorer->tensors);
}

static weft_status_t restore(restorer_t *restorer, weft_checkpoint_info_t *info)
{
    weft_session_t *session = restorer->session;
    restorer->status = prepare(restorer);
    WEFT_RETURN_IF_ERROR(meet(restorer));
    weft_status_t status = restorer->version != NULL ? match_tensors(restorer) : WEFT_OK;
    status = status < 0 ? status : make_room(restorer);
    WEFT_RETURN_IF_ERROR(wefti_endpoint_agree(restorer->endpoint, status));
    WEFT_RETURN_IF_ERROR(share_info(restorer, info));
    status = restore_tensors(restorer);
    status = wefti_endpoint_agree(restorer->endpoint, status);
    status = status < 0 ? status : restore_scalars(restorer);
    WEFT_RETURN_IF_ERROR(wefti_endpoint_agree(restorer->endpoint, status));
    session->behind = false;                             /* all ranks have all weights */
    session->steps_before = info->step - session->steps; /* their sum counts */
    begin_generation(restorer);
    return wefti_snapshot_take(restorer->snapshot, session, restorer->group, info);
}

weft_status_t weft_snapshot_restore(weft_snapshot_t *snapshot, weft_session_t *session,
                                    weft_group_t *group, weft_checkpoint_info_t *out_info)
{
    WEFT_CHECK_ARG(snapshot);
    WEFT_CHECK_ARG(session);
    WEFT_CHECK_ARG(group);
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    restorer_t restorer = {
        .snapshot = snapshot, .session = session, .group = group, .endpoint = session->endpoint};
    restorer.status = wefti_report_check("out_info", out_info);
    weft_checkpoint_info_t info = WEFT_CHECKPOINT_INFO_INIT;
    wefti_arena_init(&restorer.arena, NULL, 0);
    weft_status_t status = restore(&restorer, &info);
    if (status >= 0) {
        wefti_report_write(out_info, &info, sizeof info);
    }
    wefti_arena_deinit(&restorer.arena);
    return status;
}

/* ---- making a version whole ---- */

static weft_status_t gather_tensors(const restorer_t *restorer, uint8_t *to)
{
    const wefti_version_t *version = restorer->version;
    const uint8_t *at[WEFTI_SECTION_COUNT];
    begin_sections(restorer, at);
    for (uint32_t i = 0; i < version->tensors.count; i++) {
        const wefti_state_t *tensor = version->tensors.list[i];
        WEFT_RETURN_IF_ERROR(put_together(restorer, tensor, tensor->size_bytes, at));
        memcpy(to, restorer->raw, tensor->size_bytes); /* pieces cover it, in their order */
        to += tensor->size_bytes;
    }
    return WEFT_OK;
}

static weft_status_t gather(restorer_t *restorer, uint8_t **out_data)
{
    size_t total = 0;
    WEFT_RETURN_IF_ERROR(meet(restorer));
    if (!restorer->everywhere) { /* the same on all ranks */
        return wefti_error(WEFT_ERR_STATE, "snapshot: not all ranks hold a part of it");
    }
    restorer->tensors = restorer->version->tensors;
    for (uint32_t i = 0; i < restorer->tensors.count; i++) {
        total += restorer->tensors.list[i]->size_bytes;
    }
    weft_status_t status = make_room(restorer);
    *out_data = wefti_alloc(NULL, total + 1);
    status = status >= 0 && *out_data == NULL ? WEFT_ERR_NO_MEMORY : status;
    WEFT_RETURN_IF_ERROR(wefti_endpoint_agree(restorer->endpoint, status));
    status = gather_tensors(restorer, *out_data);
    WEFT_RETURN_IF_ERROR(wefti_endpoint_agree(restorer->endpoint, status));
    begin_generation(restorer);
    wefti_version_t *version = restorer->version;
    wefti_free(NULL, version->data);
    version->data = *out_data;
    *out_data = NULL;
    version->whole = true;
    version->generation = restorer->snapshot->generation;
    memset(version->bytes, 0, sizeof version->bytes);
    version->bytes[WEFTI_SECTION_ALL] = total;
    return WEFT_OK;
}

weft_status_t weft_snapshot_gather(weft_snapshot_t *snapshot, weft_group_t *group)
{
    WEFT_CHECK_ARG(snapshot);
    WEFT_CHECK_ARG(group);
    restorer_t restorer = {
        .snapshot = snapshot, .group = group, .endpoint = weft_group_context(group)->memory};
    uint8_t *data = NULL;
    if (weft_group_size(group) != restorer.endpoint->world_size ||
        weft_group_rank(group) != restorer.endpoint->rank) {
        restorer.status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                                      "group: must be all ranks of the world in their order");
    }
    wefti_arena_init(&restorer.arena, NULL, 0);
    weft_status_t status = gather(&restorer, &data);
    wefti_free(NULL, data);
    wefti_arena_deinit(&restorer.arena);
    return status;
}
