/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/algo/lower.h"

#include <stdarg.h>
#include <stdio.h>

#include "ops/algo/lower_internal.h"
#include "ops/algo/table.h"
#include "runtime/base/error.h"

weft_status_t wefti_lower_change(wefti_lowering_t *l, uint32_t rank, uint32_t anchor,
                                 wefti_change_place_t place, uint32_t by, uint32_t signal,
                                 const wefti_step_t *step)
{
    weft_status_t status = wefti_array_reserve(l->allocator, &l->changes, &l->change_capacity,
                                               l->change_count + 1, sizeof *l->changes);
    if (status >= 0) {
        l->changes[l->change_count] =
            (wefti_change_t){rank, anchor, place, by, (uint32_t)l->change_count, signal, *step};
        l->change_count++;
    }
    return status;
}

weft_status_t wefti_lower_operand(wefti_lowering_t *l, const wefti_operand_t *operand)
{
    weft_status_t status = wefti_array_reserve(l->allocator, &l->operands, &l->operand_capacity,
                                               l->operand_count + 1, sizeof *l->operands);
    if (status >= 0) {
        l->operands[l->operand_count++] = *operand;
    }
    return status;
}

weft_status_t wefti_lower_error(const wefti_lowering_t *l, const wefti_site_t *site,
                                const char *format, ...)
{
    char what[400];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return wefti_step_error(&l->schedules[site->rank], site->lane, site->at, 0, what);
}

static weft_status_t list_posts(wefti_lowering_t *l, uint32_t rank)
{
    const wefti_schedule_t *schedule = &l->schedules[rank];
    uint32_t count = 0;
    for (size_t i = 0; i < schedule->step_count; i++) {
        count += schedule->steps[i].op == WEFTI_DO_POST;
    }
    if (count == 0) {
        return WEFT_OK;
    }
    l->posts[rank] = wefti_alloc(l->allocator, count * sizeof *l->posts[rank]);
    WEFT_RETURN_IF_NO_MEMORY(l->posts[rank]);
    for (size_t i = 0; i < schedule->step_count; i++) {
        if (schedule->steps[i].op == WEFTI_DO_POST) {
            l->posts[rank][l->post_count[rank]++] = (uint32_t)i;
        }
    }
    return WEFT_OK;
}

static weft_status_t begin(wefti_lowering_t *l)
{
    uint32_t n = l->params->group_size;
    l->dropped = wefti_alloc(l->allocator, n * sizeof *l->dropped);
    l->posts = wefti_alloc(l->allocator, n * sizeof *l->posts);
    l->post_count = wefti_alloc(l->allocator, n * sizeof *l->post_count);
    l->slots = wefti_alloc(l->allocator, n * sizeof *l->slots);
    l->wide_slots = wefti_alloc(l->allocator, n * sizeof *l->wide_slots);
    l->waited = wefti_alloc(l->allocator, n * sizeof *l->waited);
    WEFT_RETURN_IF_NO_MEMORY(l->dropped && l->posts && l->post_count && l->slots && l->wide_slots &&
                             l->waited);
    for (uint32_t rank = 0; rank < n; rank++) {
        l->slots[rank] = l->schedules[rank].stage_slots;
        l->wide_slots[rank] = l->schedules[rank].stage_wide_slots;
        if (l->schedules[rank].step_count > 0) {
            l->dropped[rank] = wefti_alloc(l->allocator, l->schedules[rank].step_count);
            WEFT_RETURN_IF_NO_MEMORY(l->dropped[rank]);
            WEFT_RETURN_IF_ERROR(list_posts(l, rank));
        }
    }
    return WEFT_OK;
}

static void end(wefti_lowering_t *l)
{
    for (uint32_t rank = 0; rank < l->params->group_size; rank++) {
        wefti_free(l->allocator, l->dropped != NULL ? l->dropped[rank] : NULL);
        wefti_free(l->allocator, l->posts != NULL ? l->posts[rank] : NULL);
    }
    wefti_lower_forget(l);
    wefti_free(l->allocator, l->dropped);
    wefti_free(l->allocator, l->posts);
    wefti_free(l->allocator, l->post_count);
    wefti_free(l->allocator, l->slots);
    wefti_free(l->allocator, l->wide_slots);
    wefti_free(l->allocator, l->waited);
    wefti_free(l->allocator, l->shown);
    wefti_free(l->allocator, l->shown_heads);
    wefti_free(l->allocator, l->changes);
    wefti_free(l->allocator, l->operands);
}

bool wefti_lower_by_two(const weft_algorithm_t *algorithm)
{
    return algorithm != NULL && wefti_algorithm_find(algorithm->op, algorithm->name) == algorithm;
}

weft_status_t wefti_lower_pass(wefti_lowering_t *l)
{
    weft_status_t status = begin(l);
    if (status >= 0 && !wefti_lower_by_two(l->schedules[0].algorithm)) {
        status = wefti_lower_learn(l);
    }
    if (status >= 0) {
        status = wefti_lower_find(l);
    }
    if (status >= 0) {
        status = wefti_lower_apply(l);
    }
    end(l);
    return status;
}

weft_status_t wefti_schedules_lower(const weft_algo_params_t *params, const wefti_links_t *links,
                                    const weft_allocator_t *allocator, wefti_schedule_t *schedules)
{
    weft_status_t status = WEFT_OK;
    for (int puts = 0; puts <= 1 && status >= 0; puts++) {
        wefti_lowering_t l = {.params = params,
                              .links = links,
                              .allocator = allocator,
                              .schedules = schedules,
                              .puts = puts,
                              .only = WEFTI_NOBODY};
        if (puts ? links->memory_of != NULL : links->hidden != NULL) {
            status = wefti_lower_pass(&l);
        }
    }
    return status;
}
