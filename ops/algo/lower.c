/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/algo/lower.h"

#include "ops/algo/lower_internal.h"

weft_status_t wefti_lower_change(wefti_lowering_t *l, uint32_t rank, uint32_t anchor,
                                 wefti_change_place_t place, uint32_t signal,
                                 const wefti_step_t *step)
{
    weft_status_t status = wefti_array_reserve(l->allocator, &l->changes, &l->change_capacity,
                                               l->change_count + 1, sizeof *l->changes);
    if (status >= 0) {
        l->changes[l->change_count] =
            (wefti_change_t){rank, anchor, place, (uint32_t)l->change_count, signal, *step};
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

weft_status_t wefti_lower_signal(wefti_lowering_t *l, uint32_t rank, uint32_t lane, uint32_t anchor,
                                 wefti_change_place_t place, bool await, uint32_t peer,
                                 uint32_t peer_lane, wefti_signal_kind_t kind, uint32_t signal,
                                 uint32_t back)
{
    wefti_step_t step = {.op = await ? WEFTI_DO_AWAIT : WEFTI_DO_SIGNAL,
                         .flags = (uint8_t)kind,
                         .lane = (uint16_t)lane,
                         .signal = {.peer = peer,
                                    .lane = (uint16_t)(await ? peer_lane : lane),
                                    .back = (uint16_t)back}};
    return wefti_lower_change(l, rank, anchor, place, signal, &step);
}

static weft_status_t begin(wefti_lowering_t *l)
{
    uint32_t n = l->params->group_size;
    l->pending = wefti_alloc(l->allocator, n * sizeof *l->pending);
    l->shown = wefti_alloc(l->allocator, n * sizeof *l->shown);
    l->dropped = wefti_alloc(l->allocator, n * sizeof *l->dropped);
    l->slots = wefti_alloc(l->allocator, n * sizeof *l->slots);
    l->wide_slots = wefti_alloc(l->allocator, n * sizeof *l->wide_slots);
    if (!l->pending || !l->shown || !l->dropped || !l->slots || !l->wide_slots) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t rank = 0; rank < n; rank++) {
        l->slots[rank] = l->schedules[rank].stage_slots;
        l->wide_slots[rank] = l->schedules[rank].stage_wide_slots;
        l->dropped[rank] = wefti_alloc(l->allocator, l->schedules[rank].step_count);
        if (l->dropped[rank] == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
    }
    return WEFT_OK;
}

static void end(wefti_lowering_t *l)
{
    for (uint32_t rank = 0; rank < l->params->group_size; rank++) {
        if (l->pending != NULL) {
            wefti_free(l->allocator, l->pending[rank].items);
        }
        if (l->shown != NULL) {
            wefti_free(l->allocator, l->shown[rank].items);
        }
        if (l->dropped != NULL) {
            wefti_free(l->allocator, l->dropped[rank]);
        }
    }
    wefti_free(l->allocator, l->pending);
    wefti_free(l->allocator, l->shown);
    wefti_free(l->allocator, l->dropped);
    wefti_free(l->allocator, l->slots);
    wefti_free(l->allocator, l->wide_slots);
    wefti_free(l->allocator, l->changes);
    wefti_free(l->allocator, l->operands);
}

static weft_status_t pass(const weft_algo_params_t *params, const wefti_links_t *links,
                          const weft_allocator_t *allocator, wefti_schedule_t *schedules, bool puts)
{
    wefti_lowering_t l = {.params = params,
                          .links = links,
                          .allocator = allocator,
                          .schedules = schedules,
                          .puts = puts};
    wefti_sim_t sim;
    weft_status_t status = begin(&l);
    if (status >= 0) {
        status = wefti_sim_init(&sim, params, schedules, allocator);
        sim.runs = 1;
        sim.visit = wefti_lower_visit;
        sim.user = &l;
        if (status >= 0) {
            status = wefti_sim_run(&sim);
        }
        wefti_sim_deinit(&sim);
    }
    if (status >= 0) {
        status = wefti_lower_apply(&l);
    }
    end(&l);
    return status;
}

weft_status_t wefti_schedules_lower(const weft_algo_params_t *params, const wefti_links_t *links,
                                    const weft_allocator_t *allocator, wefti_schedule_t *schedules)
{
    weft_status_t status = WEFT_OK;
    if (links->hidden != NULL) {
        status = pass(params, links, allocator, schedules, false);
    }
    if (links->memory_of != NULL && status >= 0) {
        status = pass(params, links, allocator, schedules, true);
    }
    return status;
}
