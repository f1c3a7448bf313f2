/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/collective/schedule_cache.h"

#include <string.h>

#include "runtime/base/error.h"
#include "runtime/interpreter/proof.h"

void wefti_schedules_forget(weft_group_t *group)
{
    wefti_schedules_t *all = group->calls->schedules;
    for (uint32_t i = 0; all != NULL && i < WEFTI_SCHEDULES; i++) {
        wefti_run_destroy(all->entries[i].run);
        all->entries[i] = (wefti_cached_schedule_t){0};
    }
}

void wefti_schedules_destroy(weft_group_t *group)
{
    const weft_allocator_t *allocator = group->context->allocator;
    wefti_schedules_t *all = group->calls->schedules;
    if (all != NULL) {
        wefti_schedules_forget(group);
        wefti_run_counters_deinit(&all->counters);
        wefti_free(allocator, all->send);
        wefti_free(allocator, all->recv);
        wefti_free(allocator, all->matrix);
        wefti_free(allocator, all->hidden);
        wefti_free(allocator, all->spare);
        wefti_free(allocator, all);
        group->calls->schedules = NULL;
    }
}

static void share_memory(weft_group_t *group, wefti_schedules_t *all)
{
    all->memory = (wefti_run_memory_t){
        .endpoint = group->endpoint,
        .ranks = group->ranks,
        .bases = group->bases,
        .area = group->channel_offset + group->layout.area,
        .work = group->staging.offset,
        .counters = &all->counters,
        .isa = group->context->settings.isa,
    };
    memset(all->hidden, 1, group->size);
}

static weft_status_t make(weft_group_t *group)
{
    const weft_allocator_t *allocator = group->context->allocator;
    wefti_schedules_t *all = wefti_alloc(allocator, sizeof *all);
    WEFT_RETURN_IF_NO_MEMORY(all != NULL);
    group->calls->schedules = all;
    all->send = wefti_alloc(allocator, group->size * sizeof *all->send);
    all->recv = wefti_alloc(allocator, group->size * sizeof *all->recv);
    all->hidden = wefti_alloc(allocator, group->size);
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    if (all->send != NULL && all->recv != NULL && all->hidden != NULL) {
        share_memory(group, all);
        status = wefti_run_counters_init(&all->counters, group->size,
                                         wefti_area_lanes(group->endpoint->world_size), allocator);
    }
    if (status < 0) {
        wefti_schedules_destroy(group);
    }
    return status;
}

static bool same_key(const wefti_schedule_key_t *a, const wefti_schedule_key_t *b)
{
    return a->algorithm == b->algorithm && a->root == b->root && a->in_place == b->in_place &&
           a->hidden == b->hidden;
}

/* Its place in the cache; *out_found: it is there. */
static wefti_cached_schedule_t *find(wefti_schedules_t *all, const wefti_schedule_key_t *key,
                                     bool *out_found)
{
    wefti_cached_schedule_t *oldest = &all->entries[0];
    for (uint32_t i = 0; i < WEFTI_SCHEDULES; i++) {
        wefti_cached_schedule_t *entry = &all->entries[i];
        if (entry->run != NULL && same_key(&entry->key, key)) {
            *out_found = true;
            return entry;
        }
        if (entry->run == NULL ? oldest->run != NULL : entry->used < oldest->used) {
            oldest = entry; /* a free one was never used */
        }
    }
    *out_found = false;
    return oldest;
}

/* Who cannot run here says so before anything is built, on all ranks alike. */
static weft_status_t check_resources(const weft_group_t *group, const weft_algorithm_t *algorithm,
                                     const weft_algo_params_t *params)
{
    weft_algo_resources_t resources = {0};
    WEFT_RETURN_IF_ERROR(wefti_algo_params_check(params));
    const char *reason = wefti_algorithm_reason(algorithm, params);
    if (reason == NULL) {
        wefti_algorithm_resources(algorithm, params, &resources);
        reason = resources.lanes > group->calls->schedules->counters.lanes
                     ? "needs more lanes than the group supports"
                     : NULL;
    }
    return reason == NULL ? WEFT_OK : wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s", reason);
}

static weft_status_t build(weft_group_t *group, const wefti_schedule_key_t *key,
                           wefti_run_t **out_run)
{
    wefti_schedules_t *all = group->calls->schedules;
    wefti_links_t links = {.memory_of = group->calls->selection.params.host_of,
                           .hidden = key->hidden ? all->hidden : NULL};
    weft_algo_params_t params;
    wefti_select_params(group, key->algorithm->op, key->root, &params);
    params.in_place = key->in_place;
    params.rank = group->rank;
    WEFT_RETURN_IF_ERROR(wefti_algorithm_prove(group->context, key->algorithm, &params));
    weft_status_t status = check_resources(group, key->algorithm, &params);
    if (status == WEFT_OK) {
        status =
            wefti_run_create(key->algorithm, &params, &links, group->context->allocator, out_run);
    }
    if (status == WEFT_ERR_INVALID_ARGUMENT) { /* of the algorithm: the same on all ranks */
        return wefti_error_prefix(WEFT_ERR_UNSUPPORTED, "%s %s",
                                  weft_collective_name(key->algorithm->op), key->algorithm->name);
    }
    return status;
}

weft_status_t wefti_schedules_get(weft_group_t *group, const wefti_schedule_key_t *key,
                                  wefti_run_t **out_run)
{
    bool found;
    if (group->calls->schedules == NULL) {
        WEFT_RETURN_IF_ERROR(make(group));
    }
    wefti_schedules_t *all = group->calls->schedules;
    wefti_cached_schedule_t *entry = find(all, key, &found);
    if (!found) {
        wefti_run_t *run = NULL;
        WEFT_RETURN_IF_ERROR(build(group, key, &run));
        wefti_run_destroy(entry->run);
        *entry = (wefti_cached_schedule_t){.key = *key, .run = run};
    }
    entry->used = ++all->clock;
    *out_run = entry->run;
    return WEFT_OK;
}

weft_status_t wefti_schedules_matrix(weft_group_t *group, uint64_t **out_matrix)
{
    wefti_schedules_t *all = group->calls->schedules;
    if (all->matrix == NULL) {
        all->matrix = wefti_alloc(group->context->allocator,
                                  3ul * group->size * group->size * sizeof *all->matrix);
    }
    *out_matrix = all->matrix;
    return all->matrix != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

weft_status_t wefti_schedules_spare(weft_group_t *group, size_t bytes, uint8_t **out_spare)
{
    const weft_allocator_t *allocator = group->context->allocator;
    wefti_schedules_t *all = group->calls->schedules;
    if (all->spare_bytes < bytes) {
        wefti_free(allocator, all->spare);
        all->spare = wefti_alloc(allocator, bytes);
        all->spare_bytes = all->spare != NULL ? bytes : 0;
    }
    *out_spare = all->spare;
    return all->spare != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}
