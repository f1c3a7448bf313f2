/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranks behave alike. Ranks of one colour have equal places in the cluster and, step by step,
 * the same schedule towards ranks of the same colours at the same distances. Colours are refined
 * until that holds, so that one rank of each colour stands for all.
 */
#include "fusion/simulate/simulate.h"

#include <stdlib.h>
#include <string.h>

#include "ops/algo/resolve_internal.h"
#include "runtime/base/error.h"

#define MOST_CLASSES 1024u
#define MOST_STEPS ((uint64_t)1 << 23) /* of classes that are told apart by place alone */
#define MOST_ROUNDS 24u
#define FEW_RANKS 64u /* of an operand, to look at each */

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
    hash *= 0xff51afd7ed558ccdu;
    return hash ^ hash >> 32;
}

double wefti_sim_block_bytes(const sim_call_t *call, const wefti_schedule_t *schedule,
                             uint32_t first, uint32_t step, uint32_t count)
{
    uint64_t all = call->counts.elem_count, elems = 0;
    uint32_t blocks = wefti_shard_count(&call->params, &schedule->resources);
    if (!wefti_collective_is_vector(call->params.op) && blocks == 1) {
        return (double)count * (double)all * call->counts.elem_bytes;
    }
    uint64_t share = wefti_shard_elems(all, call->counts.elem_bytes, blocks);
    if (step == 1 && first % blocks + count <= blocks) { /* side by side */
        first %= blocks;
        uint64_t begin = first * share, end = begin + count * share;
        elems = (end < all ? end : all) - (begin < all ? begin : all);
        return (double)elems * call->counts.elem_bytes;
    }
    for (uint64_t i = 0; i < count; i++) {
        uint64_t begin = (first + i * step) % blocks * share;
        if (begin >= all && step > 0 && wefti_collective_is_vector(call->params.op)) {
            break;
        }
        elems += begin >= all ? 0 : all - begin < share ? all - begin : share;
    }
    return (double)elems * call->counts.elem_bytes;
}

/* detail 2: within the rack; 1: within the host; 0: all alike */
static void colour_places(const sim_world_t *w, uint32_t detail, uint64_t *colour)
{
    for (uint32_t r = 0; r < w->ranks; r++) {
        const wefti_topo_rank_t *at = &w->cluster->ranks[r];
        const wefti_hardware_t *hardware = w->cluster->hosts[at->host].hardware;
        uint64_t hash = 1;
        if (detail > 0) {
            hash = mix(hash, w->seat[r]);
            hash = mix(hash, w->host_size[w->host_of[r]]);
            hash = mix(mix(hash, hardware->core_count), hardware->nic_count);
            hash = mix(mix(hash, hardware->socket_count), hardware->numa_count);
            hash = mix(hash, w->on_core[w->part[SIM_CORE][r]]);
            hash = w->pair_links ? mix(hash, at->host) : hash;
        }
        colour[r] = detail > 1 ? mix(hash, w->stand[w->host_of[r]]) : hash;
    }
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* sorted: room for as many. Returns how many colours there are, which sorted begins with. */
static uint32_t count_colours(const uint64_t *colour, uint32_t ranks, uint64_t *sorted)
{
    uint32_t count = 0;
    memcpy(sorted, colour, ranks * sizeof *sorted);
    qsort(sorted, ranks, sizeof *sorted, compare);
    for (uint32_t i = 0; i < ranks; i++) {
        if (i == 0 || sorted[i] != sorted[i - 1]) {
            sorted[count++] = sorted[i];
        }
    }
    return count;
}

static uint64_t mix_ranks(const sim_world_t *w, const sim_call_t *call, uint32_t rank,
                          uint32_t first, uint32_t count, const uint64_t *colour, uint64_t hash)
{
    hash = mix(hash, count);
    for (uint32_t i = 0; i < count && count <= FEW_RANKS; i++) {
        uint32_t peer = wefti_sim_member(call, rank, first + i);
        hash = mix(mix(hash, wefti_sim_distance(w, rank, peer)), colour[peer]);
    }
    return hash;
}

static uint64_t mix_step(const sim_world_t *w, const sim_call_t *call, uint32_t rank,
                         const wefti_schedule_t *schedule, const wefti_step_t *step,
                         const uint64_t *colour, uint64_t hash)
{
    hash = mix(mix(mix(hash, step->op), step->lane), step->flags);
    if (step->op == WEFTI_DO_POST) {
        return mix(hash, step->post.phase);
    }
    if (step->op == WEFTI_DO_WAIT) {
        hash = mix(mix(mix(hash, step->wait.lane), step->wait.phase), step->wait.back);
        return mix_ranks(w, call, rank, step->wait.first_rank, step->wait.rank_count, colour, hash);
    }
    hash = mix(hash, (uint64_t)wefti_sim_block_bytes(call, schedule, step->move.first,
                                                     step->move.step, step->move.count));
    uint32_t operands = (uint32_t)step->move.source_count + step->move.destination_count;
    for (uint32_t i = 0; i < operands; i++) {
        const wefti_operand_t *at = &schedule->operands[step->move.operand + i];
        hash = mix(hash, at->buffer == WEFTI_SCRATCH);
        hash = mix_ranks(w, call, rank, at->rank, at->rank_count, colour, hash);
    }
    return hash;
}

static weft_status_t refine(const sim_world_t *w, const sim_call_t *call, const uint64_t *colour,
                            uint64_t *out)
{
    weft_status_t status = WEFT_OK;
    wefti_rank_numbers_t numbers;
    WEFT_RETURN_IF_ERROR(wefti_rank_numbers_init(&numbers, &call->params));
    for (uint32_t rank = 0; rank < w->ranks; rank++) {
        wefti_schedule_t schedule;
        weft_algo_params_t params = call->params;
        params.rank = wefti_sim_group_rank(call, rank);
        status = wefti_schedule_build_numbered(call->algorithm, &params, &numbers, NULL, &schedule);
        if (status < 0) {
            break;
        }
        uint64_t hash = colour[rank];
        for (size_t i = 0; i < schedule.step_count; i++) {
            hash = mix_step(w, call, rank, &schedule, &schedule.steps[i], colour, hash);
        }
        wefti_schedule_deinit(&schedule);
        out[rank] = hash;
    }
    wefti_rank_numbers_deinit(&numbers);
    return status;
}

/* Ranks on links that serve other colours are of other colours. */
static void mix_links(const sim_world_t *w, sim_kind_t kind, uint64_t *colour, uint64_t *sums)
{
    memset(sums, 0, w->ranks * sizeof *sums);
    for (uint32_t r = 0; r < w->ranks; r++) {
        sums[w->part[kind][r]] += mix(kind, colour[r]);
    }
    for (uint32_t r = 0; r < w->ranks; r++) {
        colour[r] = mix(colour[r], sums[w->part[kind][r]]);
    }
}

/* Steps of a rank's schedule; of all, or blocks, which building loops over. */
static weft_status_t work_of(const sim_world_t *w, const sim_call_t *call, uint64_t *out_steps,
                             uint64_t *out_work)
{
    wefti_schedule_t schedule;
    weft_algo_params_t params = call->params;
    params.rank = params.group_size - 1;
    WEFT_RETURN_IF_ERROR(wefti_schedule_build(call->algorithm, &params, NULL, &schedule));
    uint64_t blocks = wefti_block_count(&params, &schedule.resources);
    uint64_t steps = schedule.step_count + schedule.operand_count;
    *out_steps = schedule.step_count;
    *out_work = (blocks > steps ? blocks : steps) * w->ranks;
    wefti_schedule_deinit(&schedule);
    return WEFT_OK;
}

static weft_status_t number(const sim_world_t *w, const uint64_t *colour, const uint64_t *sorted,
                            sim_division_t *out)
{
    out->class_of = wefti_alloc(NULL, (w->ranks + 1ul) * sizeof *out->class_of);
    out->first = wefti_alloc(NULL, (out->count + 1ul) * sizeof *out->first);
    out->size = wefti_alloc(NULL, (out->count + 1ul) * sizeof *out->size);
    WEFT_RETURN_IF_NO_MEMORY(out->class_of && out->first && out->size);
    for (uint32_t r = 0; r < w->ranks; r++) {
        const uint64_t *at = bsearch(&colour[r], sorted, out->count, sizeof *sorted, compare);
        uint32_t class = (uint32_t)(at - sorted);
        out->class_of[r] = class;
        if (out->size[class]++ == 0) {
            out->first[class] = r;
        }
    }
    return WEFT_OK;
}

/* As many details of places as there can be classes. */
static void colour_by_place(const sim_world_t *w, uint64_t steps, uint64_t *colour,
                            uint64_t *sorted, sim_division_t *out)
{
    for (uint32_t detail = 3; detail-- > 0;) {
        colour_places(w, detail, colour);
        out->count = count_colours(colour, w->ranks, sorted);
        out->merged = detail < 2;
        if (out->count <= MOST_CLASSES && out->count * steps <= MOST_STEPS) {
            break;
        }
    }
}

static weft_status_t find_colours(const sim_world_t *w, const sim_call_t *call, uint64_t *colour,
                                  uint64_t *next, uint64_t *sorted, sim_division_t *out)
{
    uint64_t steps, work;
    if (w->ranks <= w->exact_ranks) {
        for (uint32_t r = 0; r < w->ranks; r++) {
            colour[r] = r;
        }
        out->exact = true;
        out->count = count_colours(colour, w->ranks, sorted);
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(work_of(w, call, &steps, &work));
    colour_by_place(w, steps, colour, sorted, out);
    out->by_place = work > w->most_work;
    for (uint32_t round = 0; !out->by_place && round < MOST_ROUNDS; round++) {
        WEFT_RETURN_IF_ERROR(refine(w, call, colour, next));
        mix_links(w, SIM_NIC_OUT, next, sorted);
        mix_links(w, SIM_RACK_UP, next, sorted);
        uint32_t count = count_colours(next, w->ranks, sorted);
        bool stable = count == out->count;
        if (count > MOST_CLASSES) {
            out->by_place = true;
            colour_by_place(w, steps, colour, sorted, out);
            return WEFT_OK;
        }
        memcpy(colour, next, w->ranks * sizeof *colour);
        out->count = count;
        if (stable) {
            break;
        }
    }
    out->exact = out->count == w->ranks;
    return WEFT_OK;
}

weft_status_t wefti_sim_divide(const sim_world_t *w, const sim_call_t *call, sim_division_t *out)
{
    *out = (sim_division_t){0};
    uint64_t *colour = wefti_alloc(NULL, 3 * (w->ranks + 1ul) * sizeof *colour);
    WEFT_RETURN_IF_NO_MEMORY(colour);
    uint64_t *next = colour + w->ranks + 1, *sorted = next + w->ranks + 1;
    weft_status_t status = find_colours(w, call, colour, next, sorted, out);
    status = status >= 0 ? number(w, colour, sorted, out) : status;
    wefti_free(NULL, colour);
    if (status < 0) {
        wefti_sim_division_deinit(out);
    }
    return status;
}

void wefti_sim_division_deinit(sim_division_t *division)
{
    wefti_free(NULL, division->class_of);
    wefti_free(NULL, division->first);
    wefti_free(NULL, division->size);
    *division = (sim_division_t){0};
}
