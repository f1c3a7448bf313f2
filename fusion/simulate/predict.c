/* SPDX-License-Identifier: Apache-2.0 */
/* The planner's predictions of one collective by itself: what weft simulate says of it. Ranks are
 * divided into classes once per algorithm and group, whatever the size. */
#include "fusion/simulate/simulate.h"

#include <math.h>

#include "runtime/base/error.h"

#define FULL_COUNT ((uint64_t)1 << 24) /* elements with which no rank's block is empty */
#define MOST_PEERS 1024u

struct sim_known {
    const weft_algorithm_t *algorithm;
    weft_algo_params_t params; /* its pointers are not read */
    uint32_t stride;
    sim_division_t division;
    sim_schedules_t schedules; /* of its classes */
    struct sim_known *next;
};

static bool is_known(const struct sim_known *known, const sim_call_t *call)
{
    const weft_algo_params_t *a = &known->params, *b = &call->params;
    return known->algorithm == call->algorithm && known->stride == call->stride &&
           a->group_size == b->group_size && a->root == b->root && a->in_place == b->in_place &&
           a->order == b->order && a->order_size_count == b->order_size_count;
}

/* Does a rank read from so many ranks at once that nobody would choose the algorithm? */
static weft_status_t check_peers(const sim_call_t *call)
{
    wefti_schedule_t schedule;
    weft_algo_params_t params = call->params;
    uint32_t most = 0;
    params.rank = params.group_size - 1;
    WEFT_RETURN_IF_ERROR(wefti_schedule_build(call->algorithm, &params, NULL, &schedule));
    for (size_t i = 0; i < schedule.operand_count; i++) {
        uint32_t count = schedule.operands[i].rank_count;
        most = count > most ? count : most;
    }
    wefti_schedule_deinit(&schedule);
    return most > MOST_PEERS ? wefti_error(WEFT_ERR_UNSUPPORTED,
                                           "algorithm %s: not predicted: a rank reads from %u "
                                           "ranks at once, more than %u",
                                           call->algorithm->name, most, MOST_PEERS)
                             : WEFT_OK;
}

static weft_status_t divide(sim_world_t *w, const sim_call_t *call, struct sim_known **out)
{
    for (*out = w->known; *out != NULL; *out = (*out)->next) {
        if (is_known(*out, call)) {
            return WEFT_OK;
        }
    }
    WEFT_RETURN_IF_ERROR(check_peers(call));
    struct sim_known *known = wefti_alloc(NULL, sizeof *known);
    WEFT_RETURN_IF_NO_MEMORY(known);
    *known = (struct sim_known){
        .algorithm = call->algorithm, .params = call->params, .stride = call->stride};
    sim_call_t full = *call;
    full.counts.elem_count = FULL_COUNT;
    weft_status_t status = wefti_sim_divide(w, &full, &known->division);
    if (status < 0) {
        wefti_free(NULL, known);
        return status;
    }
    known->next = w->known;
    w->known = known;
    *out = known;
    return WEFT_OK;
}

weft_status_t wefti_sim_predict(void *user, const weft_algorithm_t *algorithm,
                                const weft_algo_params_t *params, const wefti_counts_t *counts,
                                double *out_ns)
{
    const sim_group_t *group = user;
    sim_world_t *w = group->world;
    struct sim_known *known;
    sim_call_t call = {
        .algorithm = algorithm, .params = *params, .counts = *counts, .stride = group->stride};
    WEFT_RETURN_IF_ERROR(divide(w, &call, &known));
    double *now_ns = wefti_alloc(NULL, (w->ranks + 1ul) * sizeof *now_ns);
    WEFT_RETURN_IF_NO_MEMORY(now_ns);
    sim_schedules_t others = w->schedules;
    w->schedules = known->schedules;
    weft_status_t status = wefti_sim_collective(w, &call, &known->division, now_ns);
    known->schedules = w->schedules;
    w->schedules = others;
    *out_ns = 0;
    for (uint32_t r = 0; r < w->ranks; r++) {
        *out_ns = fmax(*out_ns, now_ns[r]);
    }
    wefti_free(NULL, now_ns);
    return status;
}

void wefti_sim_forget_divisions(sim_world_t *w)
{
    while (w->known != NULL) {
        struct sim_known *next = w->known->next;
        wefti_sim_division_deinit(&w->known->division);
        wefti_sim_schedules_deinit(&w->known->schedules);
        wefti_free(NULL, w->known);
        w->known = next;
    }
}
