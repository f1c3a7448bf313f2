/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training state in memory. A version is what a checkpoint holds, cut as the plan cuts it; a rank
 * of n holds
 *
 *   | pieces that all ranks have | own shards | shards of the rank before |
 *          copied                   copied  ----> received there
 *
 * so the death of a rank takes nothing with it unless the next one dies with it. There are two
 * versions: no rank ends step k + 1 before all have taken version k, so when a rank dies the
 * newest versions of the others are at most one step apart, and all have the older of the two.
 */
#include "runtime/checkpoint/snapshot.h"

#include <stdio.h>
#include <string.h>

#include <weft/collective.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/params.h"
#include "runtime/plan/session_state.h"

static uint32_t rank_before(const wefti_version_t *version)
{
    uint32_t world = version->plan->world_size;
    return world > 1 ? (version->rank + world - 1) % world : UINT32_MAX;
}

/* WEFTI_SECTION_COUNT: this rank does not hold it. */
wefti_section_t wefti_version_section(const wefti_version_t *version,
                                      const wefti_state_piece_t *piece)
{
    return piece->rank == WEFTI_ALL_RANKS || version->whole ? WEFTI_SECTION_ALL
           : piece->rank == version->rank                   ? WEFTI_SECTION_OWN
           : piece->rank == rank_before(version)            ? WEFTI_SECTION_BEFORE
                                                            : WEFTI_SECTION_COUNT;
}

uint8_t *wefti_version_begin(const wefti_version_t *version, wefti_section_t section)
{
    uint8_t *at = version->data;
    for (uint32_t s = 0; s < (uint32_t)section; s++) {
        at += version->bytes[s];
    }
    return at;
}

static bool is_newer(const wefti_version_t *a, const wefti_version_t *b)
{
    return a->generation != b->generation ? a->generation > b->generation
                                          : a->info.step > b->info.step;
}

bool wefti_version_is_sharded(const wefti_version_t *version)
{
    return !version->whole && (version->states.params.sharded || version->states.states.sharded);
}

/* ---- a version ---- */

static void clear(wefti_version_t *version)
{
    if (version->plan != NULL) {
        wefti_free(NULL, version->data);
        wefti_arena_deinit(&version->arena);
        weft_plan_release(version->plan);
    }
    *version = (wefti_version_t){0};
}

static weft_status_t count_bytes(wefti_version_t *version)
{
    size_t total = 1;
    for (uint32_t i = 0; i < version->tensors.count; i++) {
        const wefti_state_t *tensor = version->tensors.list[i];
        for (uint32_t k = 0; k < tensor->piece_count; k++) {
            wefti_section_t section = wefti_version_section(version, &tensor->pieces[k]);
            if (section != WEFTI_SECTION_COUNT) {
                version->bytes[section] += tensor->pieces[k].size_bytes;
                total += tensor->pieces[k].size_bytes;
            }
        }
    }
    version->data = wefti_alloc(NULL, total);
    version->scalars = wefti_arena_array(&version->arena, version->plan->binding_count + 1u,
                                         sizeof *version->scalars);
    WEFT_RETURN_IF_NO_MEMORY(version->data && version->scalars);
    return WEFT_OK;
}

/* Makes a version one of the session's plan. */
static weft_status_t shape(wefti_version_t *version, const weft_session_t *session)
{
    if (version->plan == session->plan && version->rank == session->endpoint->rank &&
        !version->whole) {
        return WEFT_OK;
    }
    clear(version);
    version->plan = session->plan;
    version->rank = session->endpoint->rank;
    weft_plan_retain(version->plan);
    wefti_arena_init(&version->arena, NULL, 0);
    weft_status_t status =
        wefti_state_map_build(session->plan, session->registry, &version->arena, &version->states);
    if (status >= 0) {
        status = wefti_checkpoint_tensors(session->plan, &version->states, &version->arena,
                                          &version->tensors);
    }
    status = status < 0 ? status : count_bytes(version);
    if (status < 0) {
        clear(version);
    }
    return status;
}

/* ---- taking ---- */

weft_status_t wefti_snapshot_check(const weft_session_t *session, const weft_group_t *group)
{
    if (weft_group_context((weft_group_t *)group) != session->context ||
        weft_group_size(group) != session->endpoint->world_size ||
        weft_group_rank(group) != session->endpoint->rank) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "group: must be all ranks of the session's world in their order");
    }
    if ((session->plan->flags & WEFTI_PLAN_RANK_DATA) != 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "plan: ranks have parts of the weights: it has no snapshots");
    }
    if (session->micro_count != 0) {
        return wefti_error(WEFT_ERR_STATE,
                           "session: no snapshot within a step: %u of %u micro-batches are done",
                           session->micro_count, session->plan->accumulate);
    }
    return WEFT_OK;
}

static weft_status_t copy_pieces(wefti_version_t *version, weft_session_t *session)
{
    uint8_t *at[WEFTI_SECTION_COUNT] = {wefti_version_begin(version, WEFTI_SECTION_ALL),
                                        wefti_version_begin(version, WEFTI_SECTION_OWN)};
    for (uint32_t i = 0; i < version->tensors.count; i++) {
        const wefti_state_t *tensor = version->tensors.list[i];
        for (uint32_t k = 0; k < tensor->piece_count; k++) {
            const wefti_state_piece_t *piece = &tensor->pieces[k];
            wefti_section_t section = wefti_version_section(version, piece);
            if (section < WEFTI_SECTION_BEFORE) {
                WEFT_RETURN_IF_ERROR(wefti_session_copy(
                    session, at[section], wefti_session_piece(session, piece), piece->size_bytes));
                at[section] += piece->size_bytes;
            }
        }
    }
    return WEFT_OK;
}

static weft_status_t copy_scalars(wefti_version_t *version, weft_session_t *session)
{
    const weft_plan_t *plan = version->plan;
    for (uint32_t i = 0; i < plan->binding_count; i++) {
        if (wefti_checkpoint_has_scalar(&plan->bindings[i])) {
            WEFT_RETURN_IF_ERROR(
                weft_session_get_scalar(session, plan->bindings[i].name, &version->scalars[i]));
        }
    }
    return WEFT_OK;
}

/* To the next rank, and from the one before. */
static weft_status_t send_shards(const wefti_version_t *version, weft_group_t *group)
{
    uint32_t next = (version->rank + 1) % version->plan->world_size;
    weft_status_t status = WEFT_OK;
    if (!wefti_version_is_sharded(version) || version->plan->world_size == 1) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(weft_batch_begin(group));
    WEFT_TRY(status,
             weft_send(wefti_version_begin(version, WEFTI_SECTION_OWN),
                       version->bytes[WEFTI_SECTION_OWN], WEFT_DTYPE_U8, next, group, NULL),
             fail);
    WEFT_TRY(status,
             weft_recv(wefti_version_begin(version, WEFTI_SECTION_BEFORE),
                       version->bytes[WEFTI_SECTION_BEFORE], WEFT_DTYPE_U8, rank_before(version),
                       group, NULL),
             fail);
    return weft_batch_end(group, NULL);
fail:
    (void)weft_batch_cancel(group);
    return status;
}

static void describe(wefti_version_t *version, const weft_session_t *session,
                     const weft_checkpoint_info_t *info)
{
    const weft_plan_t *plan = version->plan;
    version->info = *info;
    version->info.step = session->steps_before + session->steps;
    version->info.global_batch =
        (uint64_t)plan->batch * (plan->accumulate > 0 ? plan->accumulate : 1) * plan->world_size;
    version->info.world_size = plan->world_size;
    version->info.tensor_count = version->tensors.count;
    snprintf(version->info.optimizer, sizeof version->info.optimizer, "%s",
             plan->optimizer != NULL ? plan->optimizer : "");
}

static weft_status_t fill(wefti_version_t *version, weft_session_t *session, weft_group_t *group,
                          const weft_checkpoint_info_t *info)
{
    WEFT_RETURN_IF_ERROR(wefti_session_gather_weights(session));
    WEFT_RETURN_IF_ERROR(copy_pieces(version, session));
    WEFT_RETURN_IF_ERROR(copy_scalars(version, session));
    WEFT_RETURN_IF_ERROR(send_shards(version, group));
    describe(version, session, info);
    return WEFT_OK;
}

/* Over the older version, or an incomplete one. */
weft_status_t wefti_snapshot_take(weft_snapshot_t *snapshot, weft_session_t *session,
                                  weft_group_t *group, const weft_checkpoint_info_t *info)
{
    wefti_version_t *v = snapshot->versions;
    wefti_version_t *version =
        !v[0].complete || (v[1].complete && is_newer(&v[1], &v[0])) ? &v[0] : &v[1];
    weft_status_t status = wefti_snapshot_check(session, group);
    status = status < 0 ? status : shape(version, session);
    WEFTI_IN_CONTROL(session->endpoint, SNAPSHOT_TAKE);
    WEFT_RETURN_IF_ERROR(wefti_endpoint_agree(session->endpoint, status));
    version->complete = false;
    WEFT_RETURN_IF_ERROR(fill(version, session, group, info));
    version->generation = snapshot->generation;
    version->complete = true;
    return WEFT_OK;
}

weft_status_t weft_snapshot_take(weft_snapshot_t *snapshot, weft_session_t *session,
                                 weft_group_t *group, const weft_checkpoint_info_t *info)
{
    WEFT_CHECK_ARG(snapshot);
    WEFT_CHECK_ARG(session);
    WEFT_CHECK_ARG(group);
    weft_checkpoint_info_t own = WEFT_CHECKPOINT_INFO_INIT;
    WEFT_RETURN_IF_ERROR(WEFTI_PARAMS_READ(info, &own));
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    return wefti_snapshot_take(snapshot, session, group, &own);
}

/* ---- the snapshot itself ---- */

weft_status_t weft_snapshot_create(weft_snapshot_t **out_snapshot)
{
    WEFT_CHECK_OUT(out_snapshot);
    *out_snapshot = wefti_alloc(NULL, sizeof **out_snapshot);
    WEFT_RETURN_IF_NO_MEMORY(*out_snapshot);
    return WEFT_OK;
}

void weft_snapshot_destroy(weft_snapshot_t *snapshot)
{
    if (snapshot == NULL) {
        return;
    }
    for (uint32_t i = 0; i < WEFTI_SNAPSHOT_VERSIONS; i++) {
        clear(&snapshot->versions[i]);
    }
    wefti_free(NULL, snapshot);
}

weft_status_t weft_snapshot_get_info(const weft_snapshot_t *snapshot, weft_snapshot_info_t *info)
{
    WEFT_CHECK_ARG(snapshot);
    WEFT_CHECK_ARG(info);
    WEFT_RETURN_IF_ERROR(wefti_report_check("info", info));
    weft_snapshot_info_t own = WEFT_SNAPSHOT_INFO_INIT;
    const wefti_version_t *newest = NULL;
    for (uint32_t i = 0; i < WEFTI_SNAPSHOT_VERSIONS; i++) {
        const wefti_version_t *version = &snapshot->versions[i];
        for (uint32_t s = 0; s < WEFTI_SECTION_COUNT; s++) {
            own.memory_bytes += version->bytes[s];
        }
        if (version->complete) {
            own.versions++;
            newest = newest == NULL || is_newer(version, newest) ? version : newest;
        }
    }
    if (newest != NULL) {
        own.step = newest->info.step;
        own.copied_bytes = newest->bytes[WEFTI_SECTION_ALL] + newest->bytes[WEFTI_SECTION_OWN];
        own.sent_bytes = newest->plan->world_size > 1 ? newest->bytes[WEFTI_SECTION_OWN] : 0;
    }
    wefti_report_write(info, &own, sizeof own);
    return WEFT_OK;
}
