/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From calls to units. The sequence is described as a graph: before each call an op that makes its
 * data at the time at which it was captured, and behind calls that use the same memory an edge.
 *
 *   data 0 -> call 0   data 1 -> call 1   data 2 -> call 2 ..
 *                           call 1 - - - - - - - - > call 2     uses what call 1 writes
 *
 * weft_pass_bucket says which all-reduces travel together; then units get one order.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/capture/capture.h"

static const weft_op_def_t data_def = {.domain = "capture", .name = "Data"};
static const weft_op_def_t call_def = {
    .domain = "capture", .name = "Call", .effects = WEFT_EFFECT_COMMUNICATES};
/* Nothing is fused over it. */
static const weft_op_def_t barrier_def = {.domain = "capture",
                                          .name = "Barrier",
                                          .effects =
                                              WEFT_EFFECT_COMMUNICATES | WEFT_EFFECT_UNKNOWN};
static const weft_op_facts_t all_reduce_facts = {.struct_size = sizeof all_reduce_facts,
                                                 .collective = WEFT_COLLECTIVE_ALL_REDUCE};
static const weft_op_def_t all_reduce_def = {.domain = "weft",
                                             .name = "AllReduce",
                                             .effects = WEFT_EFFECT_COMMUNICATES,
                                             .facts = &all_reduce_facts};

/* Of call i: values 3 i (what is reduced, as a parameter's name), its data, its result; ops 2 i and
 * 2 i + 1. */
typedef struct graph {
    weft_graph_view_t view;
    weft_view_value_t *values;
    weft_view_op_t *ops;
    uint32_t *order, *inputs, *outputs, *users, *edges;
    uint64_t *ready_ns;
    size_t edge_count; /* those of barriers too, which the view shows as effects */
} graph_t;

static bool may_be_fused(const wefti_captured_t *call)
{
    return call->batched.request.op == WEFT_COLLECTIVE_ALL_REDUCE &&
           call->batched.request.count > 0;
}

static weft_status_t add_call(weft_capture_t *capture, wefti_arena_t *arena, graph_t *g, uint32_t i)
{
    const wefti_captured_t *call = &capture->calls[i];
    const wefti_request_t *request = &call->batched.request;
    bool fused = may_be_fused(call);
    const weft_op_def_t *def = fused                                    ? &all_reduce_def
                               : request->op == WEFT_COLLECTIVE_BARRIER ? &barrier_def
                                                                        : &call_def;
    char *name = wefti_arena_printf(arena, "call %u", i);
    WEFT_RETURN_IF_NO_MEMORY(name != NULL);
    for (uint32_t k = 0; k < 3; k++) {
        g->values[3 * i + k] =
            (weft_view_value_t){.name = name,
                                .dtype = request->dtype,
                                .bytes = request->count * weft_dtype_size_bytes(request->dtype),
                                .producer = k > 0 && fused ? 2 * i + k - 1 : UINT32_MAX,
                                .grad_of = k == 2 && fused ? 3 * i : UINT32_MAX,
                                .first_user = i,
                                .user_count = k == 1 && fused};
    }
    g->ops[2 * i] = (weft_view_op_t){
        .name = name, .def = &data_def, .first_output = 2 * i, .output_count = fused, .present = 1};
    g->ops[2 * i + 1] = (weft_view_op_t){.name = name,
                                         .def = def,
                                         .effects = def->effects,
                                         .first_input = i,
                                         .input_count = fused,
                                         .first_output = 2 * i + 1,
                                         .output_count = fused,
                                         .reduction = request->reduction,
                                         .present = 1};
    g->order[2 * i] = 2 * i;
    g->order[2 * i + 1] = 2 * i + 1;
    g->inputs[i] = 3 * i + 1;
    g->outputs[2 * i] = 3 * i + 1;
    g->outputs[2 * i + 1] = 3 * i + 2;
    g->users[i] = 2 * i + 1;
    g->ready_ns[2 * i] = g->ready_ns[2 * i + 1] = call->at_ns;
    return WEFT_OK;
}

static void add_edge(graph_t *g, uint32_t before, uint32_t behind)
{
    g->edges[2 * g->edge_count] = 2 * before + 1;
    g->edges[2 * g->edge_count++ + 1] = 2 * behind + 1;
}

/* Calls captured before a barrier run before it, calls captured after it run after it. */
static void add_barriers(const weft_capture_t *capture, graph_t *g)
{
    uint32_t last = UINT32_MAX;
    for (uint32_t i = 0; i < capture->call_count; i++) {
        bool barrier = capture->calls[i].batched.request.op == WEFT_COLLECTIVE_BARRIER;
        for (uint32_t k = last == UINT32_MAX ? 0 : last + 1; barrier && k < i; k++) {
            add_edge(g, k, i);
        }
        if (last != UINT32_MAX) {
            add_edge(g, last, i);
        }
        last = barrier ? i : last;
    }
}

static weft_status_t describe(weft_capture_t *capture, wefti_arena_t *arena,
                              const wefti_conflict_t *conflicts, size_t count, graph_t *g)
{
    uint32_t n = capture->call_count;
    *g =
        (graph_t){.view = WEFT_GRAPH_VIEW_INIT,
                  .values = wefti_arena_array(arena, 3 * (size_t)n, sizeof *g->values),
                  .ops = wefti_arena_array(arena, 2 * (size_t)n, sizeof *g->ops),
                  .order = wefti_arena_array(arena, 2 * (size_t)n, sizeof *g->order),
                  .inputs = wefti_arena_array(arena, n, sizeof *g->inputs),
                  .outputs = wefti_arena_array(arena, 2 * (size_t)n, sizeof *g->outputs),
                  .users = wefti_arena_array(arena, n, sizeof *g->users),
                  .ready_ns = wefti_arena_array(arena, 2 * (size_t)n, sizeof *g->ready_ns),
                  .edges = wefti_arena_array(arena, 2 * (count + 2 * (size_t)n), sizeof *g->edges)};
    WEFT_RETURN_IF_NO_MEMORY(!arena->failed);
    for (uint32_t i = 0; i < n; i++) {
        WEFT_RETURN_IF_ERROR(add_call(capture, arena, g, i));
    }
    for (size_t i = 0; i < count; i++) {
        add_edge(g, conflicts[i].a, conflicts[i].b);
    }
    g->view.edge_count = (uint32_t)g->edge_count;
    add_barriers(capture, g);
    g->view.value_count = 3 * n;
    g->view.values = g->values;
    g->view.op_count = g->view.order_count = 2 * n;
    g->view.ops = g->ops;
    g->view.order = g->order;
    g->view.op_inputs = g->inputs;
    g->view.op_outputs = g->outputs;
    g->view.users = g->users;
    g->view.edges = g->edges;
    return WEFT_OK;
}

/* ---- the edits, applied ---- */

static int compare_places(const void *a, const void *b)
{
    const wefti_captured_t *x = *(wefti_captured_t *const *)a;
    const wefti_captured_t *y = *(wefti_captured_t *const *)b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : (x > y) - (x < y);
}

/* A unit with room for members. */
static wefti_capture_unit_t *new_unit(weft_capture_t *capture, uint32_t capacity)
{
    wefti_capture_unit_t *unit = &capture->units[capture->unit_count++];
    unit->members = wefti_arena_array(&capture->arena, capacity, sizeof *unit->members);
    return unit->members != NULL ? unit : NULL;
}

static void add_member(weft_capture_t *capture, wefti_capture_unit_t *unit, uint32_t call)
{
    wefti_captured_t *member = &capture->calls[call];
    unit->members[unit->member_count++] = member;
    member->unit = (uint32_t)(unit - capture->units);
    unit->ready_ns = member->at_ns > unit->ready_ns ? member->at_ns : unit->ready_ns;
}

/* Members in the order of rank 0's memory: what lies side by side there need not be copied. */
static weft_status_t add_bucket(weft_capture_t *capture, const weft_edit_t *edit)
{
    const uint32_t count = edit->member_count;
    wefti_capture_unit_t *unit = new_unit(capture, count);
    WEFT_RETURN_IF_NO_MEMORY(unit != NULL);
    wefti_bucket_t *bucket = &unit->bucket;
    bucket->parts = wefti_arena_array(&capture->arena, count, sizeof *bucket->parts);
    unit->reason = wefti_arena_strdup(&capture->arena, edit->text != NULL ? edit->text : "");
    WEFT_RETURN_IF_NO_MEMORY(bucket->parts != NULL && unit->reason != NULL);
    for (uint32_t i = 0; i < count; i++) {
        add_member(capture, unit, edit->members[i] / 2);
    }
    qsort(unit->members, count, sizeof *unit->members, compare_places);
    for (uint32_t i = 0; i < count; i++) {
        const wefti_request_t *request = &unit->members[i]->batched.request;
        bucket->dtype = request->dtype;
        bucket->reduction = request->reduction;
        bucket->parts[i] = (wefti_bucket_part_t){request->send, request->recv, bucket->count};
        bucket->count += request->count;
    }
    bucket->part_count = count;
    bucket->elem_bytes = weft_dtype_size_bytes(bucket->dtype);
    unit->parts = 1;
    return WEFT_OK;
}

static weft_status_t apply(weft_capture_t *capture, const weft_edit_list_t *edits)
{
    capture->units =
        wefti_arena_array(&capture->arena, capture->call_count, sizeof *capture->units);
    WEFT_RETURN_IF_NO_MEMORY(capture->units != NULL);
    for (uint32_t i = 0; i < capture->call_count; i++) {
        capture->calls[i].unit = WEFTI_CAPTURE_NONE;
    }
    for (size_t i = 0; i < weft_edit_list_count(edits); i++) {
        const weft_edit_t *edit = weft_edit_list_get(edits, i);
        if (edit->kind == WEFT_EDIT_KIND_FUSE) {
            WEFT_RETURN_IF_ERROR(add_bucket(capture, edit));
        } else if (edit->kind == WEFT_EDIT_KIND_SPLIT) {
            capture->units[capture->calls[edit->op_a / 2].unit].parts = edit->parts;
        }
    }
    for (uint32_t i = 0; i < capture->call_count; i++) {
        if (capture->calls[i].unit == WEFTI_CAPTURE_NONE) {
            wefti_capture_unit_t *unit = new_unit(capture, 1);
            WEFT_RETURN_IF_NO_MEMORY(unit != NULL);
            add_member(capture, unit, i);
        }
    }
    return WEFT_OK;
}

/* ---- one order ---- */

typedef struct place {
    uint64_t at;   /* call << 32, and more after the units that it waits for */
    uint32_t last; /* of its calls */
    uint32_t unit;
} place_t;

static int compare_orders(const void *a, const void *b)
{
    const place_t *x = a, *y = b;
    return x->at != y->at ? (x->at < y->at ? -1 : 1) : (x->last > y->last) - (x->last < y->last);
}

/*
 * A unit comes after the units that it waits for. Edges are in the order of calls and most lead to
 * later units, so that one round over them and one to see it are the rule.
 */
static weft_status_t put_after(const weft_capture_t *capture, const graph_t *g, place_t *places)
{
    bool moved = true;
    for (uint32_t round = 0; moved; round++) {
        moved = false;
        if (round > capture->unit_count) {
            return wefti_error(WEFT_ERR_INTERNAL, "capture: cyclic dependency between buckets");
        }
        for (size_t i = 0; i < g->edge_count; i++) {
            const place_t *before = &places[capture->calls[g->edges[2 * i] / 2].unit];
            place_t *after = &places[capture->calls[g->edges[2 * i + 1] / 2].unit];
            if (after->at <= before->at) {
                after->at = before->at + 1;
                moved = true;
            }
        }
    }
    return WEFT_OK;
}

/* A unit stands where its last call stood, or after what it has to wait for. */
static weft_status_t sort_units(weft_capture_t *capture, const graph_t *g, wefti_arena_t *arena)
{
    const uint32_t n = capture->unit_count;
    place_t *places = wefti_arena_array(arena, n, sizeof *places);
    wefti_capture_unit_t *sorted = wefti_arena_array(&capture->arena, n, sizeof *sorted);
    WEFT_RETURN_IF_NO_MEMORY(places != NULL && sorted != NULL);
    for (uint32_t i = 0; i < capture->call_count; i++) { /* the last one stays */
        const uint32_t unit = capture->calls[i].unit;
        places[unit] = (place_t){(uint64_t)i << 32, i, unit};
    }
    WEFT_RETURN_IF_ERROR(put_after(capture, g, places));
    qsort(places, n, sizeof *places, compare_orders);
    for (uint32_t i = 0; i < n; i++) {
        sorted[i] = capture->units[places[i].unit];
        for (uint32_t k = 0; k < sorted[i].member_count; k++) {
            sorted[i].members[k]->unit = i;
        }
    }
    capture->units = sorted;
    return WEFT_OK;
}

weft_status_t wefti_capture_plan(weft_capture_t *capture, const weft_capture_params_t *params,
                                 const wefti_conflict_t *conflicts, size_t count)
{
    weft_status_t status;
    wefti_arena_t arena;
    weft_edit_list_t *edits = NULL;
    graph_t g;
    wefti_arena_init(&arena, capture->context->allocator, 0);
    WEFT_TRY(status, describe(capture, &arena, conflicts, count, &g), done);
    weft_bucket_params_t bucket = {.struct_size = sizeof bucket,
                                   .policy = params->bucket,
                                   .ready_ns = g.ready_ns,
                                   .world_size = capture->runner.group->size,
                                   .costs_path = params->costs_path,
                                   .allocator = capture->context->allocator};
    WEFT_TRY(status, weft_pass_bucket(&g.view, &bucket, &edits, &capture->forecast), done);
    WEFT_TRY(status, apply(capture, edits), done);
    status = sort_units(capture, &g, &arena);
done:
    weft_edit_list_destroy(edits);
    wefti_arena_deinit(&arena);
    return status;
}
