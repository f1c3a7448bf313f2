/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/faults/matrix/disagree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof *(a))
#define SECOND 3u /* row of a duplicate of the world */
#define MAX_RANKS 16u

weft_status_t disagree_prepare(work_t *work)
{
    for (uint32_t row = SECOND; row < WORK_GROUPS; row++) {
        weft_group_destroy(work->groups[row].group);
        work->groups[row] = (work_group_t){0};
    }
    work->groups[SECOND].is_made = true;
    return weft_group_duplicate(work->groups[0].group, &work->groups[SECOND].group);
}

/* ---- one collective, with another argument ---- */

static bool is_rooted(const call_t *call)
{
    return call->kind == WEFT_COLLECTIVE_BROADCAST || call->kind == WEFT_COLLECTIVE_REDUCE ||
           call->kind == WEFT_COLLECTIVE_GATHER || call->kind == WEFT_COLLECTIVE_SCATTER;
}

static bool is_reducing(const call_t *call)
{
    return call->kind == WEFT_COLLECTIVE_ALL_REDUCE || call->kind == WEFT_COLLECTIVE_REDUCE ||
           call->kind == WEFT_COLLECTIVE_REDUCE_SCATTER ||
           call->kind == WEFT_COLLECTIVE_REDUCE_SCATTER_V;
}

static bool change_dtype(call_t *call, draw_t *d)
{
    call->dtype = call->dtype == WEFT_DTYPE_F32 && draw(d, 2) ? WEFT_DTYPE_I32
                  : call->dtype == WEFT_DTYPE_F64             ? WEFT_DTYPE_F32
                                                              : WEFT_DTYPE_F64;
    return call->kind != WEFT_COLLECTIVE_BARRIER;
}

static bool change_count(call_t *call, draw_t *d)
{
    call->count += 1 + draw(d, draw(d, 2) ? 3 : 2000);
    return call->kind != WEFT_COLLECTIVE_BARRIER;
}

static bool change_reduction(call_t *call, draw_t *d)
{
    (void)d;
    call->reduction =
        call->reduction == WEFT_REDUCTION_MAX ? WEFT_REDUCTION_SUM : WEFT_REDUCTION_MAX;
    return is_reducing(call);
}

static bool change_root(call_t *call, draw_t *d)
{
    (void)d;
    call->root = (call->root + 1) % call->size;
    return is_rooted(call);
}

static bool change_kind(call_t *call, draw_t *d)
{
    weft_collective_t kind = call->kind;
    while (kind == call->kind || kind == WEFT_COLLECTIVE_SEND_RECV) {
        kind = (weft_collective_t)(1 + draw(d, WEFT_COLLECTIVE_BARRIER));
    }
    call->kind = kind;
    return true;
}

/* In three ways: blocking, on a stream, in a batch with another call. */
static weft_status_t make(work_t *work, const call_t *call, weft_group_t *group, uint32_t way)
{
    weft_stream_t *stream = work->streams[way % 2];
    call_t second = *call;
    weft_status_t status;
    work_fill(work, call);
    switch (way) {
    case 0:
    case 1:
        return work_issue(work, call, group, NULL);
    case 2:
    case 3:
        status = work_issue(work, call, group, stream);
        return status == WEFT_OK ? weft_stream_synchronize(stream) : status;
    default:
        second.slot = call->slot ^ 1;
        work_fill(work, &second);
        status = weft_batch_begin(group);
        status = status == WEFT_OK ? work_issue(work, call, group, NULL) : status;
        status = status == WEFT_OK ? work_issue(work, &second, group, NULL) : status;
        return status == WEFT_OK ? weft_batch_end(group, NULL) : status;
    }
}

static weft_status_t run_changed(work_t *work, draw_t *d, bool is_odd,
                                 bool (*change)(call_t *call, draw_t *d))
{
    weft_group_t *group = work->groups[0].group;
    uint32_t way = draw(d, 5);
    call_t call, changed;
    do {
        changed = call = work_pick_call(d, group, 0);
    } while (!change(&changed, d));
    return make(work, is_odd ? &changed : &call, group, way);
}

static weft_status_t run_dtype(work_t *work, draw_t *d, bool is_odd)
{
    return run_changed(work, d, is_odd, change_dtype);
}

static weft_status_t run_count(work_t *work, draw_t *d, bool is_odd)
{
    return run_changed(work, d, is_odd, change_count);
}

static weft_status_t run_reduction(work_t *work, draw_t *d, bool is_odd)
{
    return run_changed(work, d, is_odd, change_reduction);
}

static weft_status_t run_root(work_t *work, draw_t *d, bool is_odd)
{
    return run_changed(work, d, is_odd, change_root);
}

static weft_status_t run_kind(work_t *work, draw_t *d, bool is_odd)
{
    return run_changed(work, d, is_odd, change_kind);
}

/* ---- groups ---- */

static weft_status_t run_group(work_t *work, draw_t *d, bool is_odd)
{
    weft_group_t *group = work->groups[is_odd ? SECOND : 0].group;
    uint32_t way = draw(d, 5);
    call_t call = work_pick_call(d, group, 0);
    return make(work, &call, group, way);
}

static weft_status_t run_order(work_t *work, draw_t *d, bool is_odd)
{
    weft_group_t *group = work->groups[0].group;
    uint32_t way = draw(d, 5);
    call_t call = work_pick_call(d, group, 0);
    call.kind = WEFT_COLLECTIVE_ALL_REDUCE;
    weft_order_t order =
        weft_group_order(group) == WEFT_ORDER_ANY ? WEFT_ORDER_TREE : WEFT_ORDER_ANY;
    weft_status_t status = is_odd ? weft_group_set_order(group, order, NULL, 0) : WEFT_OK;
    return status == WEFT_OK ? make(work, &call, group, way) : status;
}

static weft_status_t run_algorithm(work_t *work, draw_t *d, bool is_odd)
{
    weft_group_t *group = work->groups[0].group;
    uint32_t way = draw(d, 5);
    call_t call = work_pick_call(d, group, 0);
    call.kind = WEFT_COLLECTIVE_ALL_GATHER;
    weft_status_t status =
        is_odd ? weft_group_set_algorithm(group, WEFT_COLLECTIVE_ALL_GATHER, "bruck") : WEFT_OK;
    return status == WEFT_OK ? make(work, &call, group, way) : status;
}

/* One of the ways to make a group of all ranks of the world, in their order. */
static weft_status_t create(work_t *work, uint32_t way, weft_group_t **out_group)
{
    weft_group_t *world = work->groups[0].group;
    uint32_t ranks[MAX_RANKS];
    for (uint32_t r = 0; r < work->size; r++) {
        ranks[r] = way == 4 ? work->size - 1 - r : r;
    }
    switch (way) {
    case 0:
        return weft_group_create_world(work->context, out_group);
    case 1:
        return weft_group_duplicate(world, out_group);
    case 2:
        return weft_group_split(world, 0, 0, out_group);
    case 3: /* another order */
        return weft_group_split(world, 0, -(int64_t)work->rank, out_group);
    case 4:
        return weft_group_create_ranks(world, ranks, work->size, out_group);
    case 5:
        return weft_group_create_ranks(world, ranks, work->size - 1, out_group);
    case 6: /* of another parent */
        return weft_group_duplicate(work->groups[SECOND].group, out_group);
    default:
        return weft_group_split(work->groups[SECOND].group, 0, 0, out_group);
    }
}

static weft_status_t run_creation(work_t *work, draw_t *d, bool is_odd)
{
    uint32_t way = draw(d, 8), other = (way + 1 + draw(d, 7)) % 8;
    if (way + other == 5 && (way == 2 || way == 3)) {
        other = 1; /* ranks may differ in keys */
    }
    work->groups[4].is_made = true;
    return create(work, is_odd ? other : way, &work->groups[4].group);
}

static weft_status_t run_destroy(work_t *work, draw_t *d, bool is_odd)
{
    call_t call = work_pick_call(d, work->groups[SECOND].group, 0);
    if (!is_odd) {
        return make(work, &call, work->groups[draw(d, 2) ? 0 : SECOND].group, 0);
    }
    weft_group_destroy(work->groups[SECOND].group);
    work->groups[SECOND] = (work_group_t){0};
    return WEFT_OK;
}

/* ---- other objects ---- */

/* Two operations of the program. */
static weft_status_t run_operation(work_t *work, draw_t *d, bool is_odd)
{
    uint32_t count = 0, one, other;
    while (work_operation_name(count) != NULL) {
        count++;
    }
    do {
        one = draw(d, count);
        other = draw(d, count);
    } while (one == other || strcmp(work_operation_name(one), "destroy") == 0 ||
             strcmp(work_operation_name(other), "destroy") == 0);
    work->over_world = true;
    weft_status_t status = work_run_operation(work, is_odd ? other : one, d);
    work->over_world = false;
    return status;
}

/* Two operations in another order. */
static weft_status_t run_swapped(work_t *work, draw_t *d, bool is_odd)
{
    draw_t first = *d;
    weft_status_t status = run_operation(work, is_odd ? &first : d, is_odd);
    return status == WEFT_OK ? run_operation(work, is_odd ? d : &first, !is_odd) : status;
}

static weft_status_t run_gather(work_t *work, draw_t *d, bool is_odd)
{
    uint8_t mine[64] = {0}, all[64 * MAX_RANKS];
    return weft_context_all_gather(work->context, mine, 1 + draw(d, 32) + (is_odd ? 7 : 0), all);
}

static weft_status_t run_fuser(work_t *work, draw_t *d, bool is_odd)
{
    uint32_t way = draw(d, 4);
    weft_fuser_params_t params = WEFT_FUSER_PARAMS_INIT;
    weft_fuser_t *fuser = NULL;
    call_t call = work_pick_call(d, work->groups[0].group, 0);
    float *tensor = (float *)work->recv[0];
    if (way == 0) {
        params.bytes = is_odd ? 4096 : 8192;
    }
    weft_status_t status = weft_fuser_create(work->groups[0].group, &params, &fuser);
    if (status == WEFT_OK) {
        status = weft_fuser_add(fuser, tensor, call.count + (is_odd && way == 1), WEFT_DTYPE_F32,
                                WEFT_REDUCTION_SUM, is_odd && way == 2 ? "odd" : "even");
    }
    if (status == WEFT_OK && !(is_odd && way == 3)) {
        status = weft_fuser_add(fuser, tensor + call.count + 1, 5, WEFT_DTYPE_F32,
                                WEFT_REDUCTION_SUM, "second");
    }
    if (status == WEFT_OK) {
        status = weft_fuser_wait(fuser);
    }
    weft_fuser_destroy(fuser);
    return status;
}

static weft_status_t run_capture(work_t *work, draw_t *d, bool is_odd)
{
    weft_group_t *group = work->groups[0].group;
    weft_capture_t *capture = NULL;
    call_t call = work_pick_call(d, group, 0);
    bool is_more = call.kind == WEFT_COLLECTIVE_BARRIER || draw(d, 2);
    weft_status_t status = weft_capture_begin(group, NULL);
    if (status == WEFT_OK) {
        call.count += is_odd && !is_more;
        status = work_issue(work, &call, group, NULL);
    }
    if (status == WEFT_OK && is_odd && is_more) {
        status = weft_barrier(group, NULL);
    }
    if (status == WEFT_OK) {
        status = weft_capture_end(group, &capture);
    }
    weft_capture_destroy(capture);
    return status;
}

/* On the odd side the plan of another batch size. */
static weft_status_t run_plan(work_t *work, draw_t *d, bool is_odd)
{
    weft_session_t *session = NULL;
    char path[4096];
    (void)d;
    weft_plan_release(work->plan);
    work->plan = NULL;
    snprintf(path, sizeof path, "%s%s", work->plan_path, is_odd ? ".other" : "");
    work->plan_path = path;
    weft_status_t status = work_open_session(work, &session);
    weft_session_destroy(session);
    work->plan_path = NULL;
    return status;
}

/* The odd ranks do not make the call, and go on with the program. */
static weft_status_t run_fewer(work_t *work, draw_t *d, bool is_odd)
{
    weft_group_t *group = work->groups[0].group;
    call_t call = work_pick_call(d, group, 0);
    return is_odd ? WEFT_OK : make(work, &call, group, draw(d, 5));
}

static const struct {
    const char *name;
    weft_status_t (*run)(work_t *work, draw_t *d, bool is_odd);
} kinds[] = {
    {"dtype", run_dtype},     {"count", run_count},         {"reduction", run_reduction},
    {"root", run_root},       {"kind", run_kind},           {"group", run_group},
    {"order", run_order},     {"algorithm", run_algorithm}, {"creation", run_creation},
    {"destroy", run_destroy}, {"operation", run_operation}, {"swapped", run_swapped},
    {"bytes", run_gather},    {"fuser", run_fuser},         {"capture", run_capture},
    {"plan", run_plan},       {"fewer", run_fewer},
};

weft_status_t disagree_run(work_t *work, const char *kind, bool is_odd, draw_t *d)
{
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        if (strcmp(kinds[i].name, kind) == 0) {
            return kinds[i].run(work, d, is_odd);
        }
    }
    fprintf(stderr, "unknown kind of disagreement: %s\n", kind);
    abort();
}
