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
    if (name == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
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
    if (g->values == NULL || g->ops == NULL || g->order == NULL || g->inputs == NULL ||
        g->outputs == NULL || g->users == NULL || g->ready_ns == NULL || g->edges == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
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

typedef struct place {
    uint64_t key;
    uint32_t call;
} place_t;

static int compare_places(const void *a, const void *b)
{
    const place_t *x = a, *y = b;
    if (x->key != y->key) {
        return x->key < y->key ? -1 : 1;
    }
    return (x->call > y->call) - (x->call < y->call);
}

/* Members in the order of rank 0's memory: what lies side by side there need not be copied. */
static weft_status_t order_members(weft_capture_t *capture, wefti_capture_unit_t *unit)
{
    wefti_bucket_t *bucket = &unit->bucket;
    place_t *places = wefti_alloc(capture->context->allocator, unit->member_count * sizeof *places);
    bucket->parts = wefti_arena_array(&capture->arena, unit->member_count, sizeof *bucket->parts);
    if (places == NULL || bucket->parts == NULL) {
        wefti_free(capture->context->allocator, places);
        return WEFT_ERR_NO_MEMORY;
    }
    bucket->part_count = unit->member_count;
    for (uint32_t i = 0; i < unit->member_count; i++) {
        places[i] = (place_t){capture->calls[unit->members[i]].key, unit->members[i]};
    }
    qsort(places, unit->member_count, sizeof *places, compare_places);
    for (uint32_t i = 0; i < unit->member_count; i++) {
        const wefti_request_t *request = &capture->calls[places[i].call].batched.request;
        unit->members[i] = places[i].call;
        bucket->parts[i] = (wefti_bucket_part_t){request->send, request->recv, bucket->count};
        bucket->count += request->count;
    }
    wefti_free(capture->context->allocator, places);
    return WEFT_OK;
}

static weft_status_t new_unit(weft_capture_t *capture, const uint32_t *calls, uint32_t count,
                              wefti_capture_unit_t **out_unit)
{
    wefti_capture_unit_t *unit = &capture->units[capture->unit_count];
    *out_unit = unit;
    unit->members = wefti_arena_array(&capture->arena, count, sizeof *unit->members);
    if (unit->members == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    unit->member_count = unit->missing = count;
    for (uint32_t i = 0; i < count; i++) {
        wefti_captured_t *call = &capture->calls[calls[i]];
        unit->members[i] = calls[i];
        call->unit = capture->unit_count;
        unit->ready_ns = call->at_ns > unit->ready_ns ? call->at_ns : unit->ready_ns;
    }
    capture->unit_count++;
    return WEFT_OK;
}

static weft_status_t add_bucket(weft_capture_t *capture, const weft_edit_t *edit)
{
    weft_status_t status;
    wefti_capture_unit_t *unit;
    uint32_t *calls = wefti_alloc(capture->context->allocator, edit->member_count * sizeof *calls);
    if (calls == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < edit->member_count; i++) {
        calls[i] = edit->members[i] / 2;
    }
    WEFT_TRY(status, new_unit(capture, calls, edit->member_count, &unit), done);
    WEFT_TRY(status, order_members(capture, unit), done);
    const wefti_request_t *request = &capture->calls[calls[0]].batched.request;
    unit->is_bucket = true;
    unit->bucket.dtype = request->dtype;
    unit->bucket.reduction = request->reduction;
    unit->bucket.elem_bytes = weft_dtype_size_bytes(request->dtype);
    unit->bytes = unit->bucket.count * unit->bucket.elem_bytes;
    unit->reason = wefti_arena_strdup(&capture->arena, edit->text != NULL ? edit->text : "");
    status = unit->reason != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
done:
    wefti_free(capture->context->allocator, calls);
    return status;
}

static weft_status_t apply(weft_capture_t *capture, const weft_edit_list_t *edits)
{
    wefti_capture_unit_t *unit;
    capture->units =
        wefti_arena_array(&capture->arena, capture->call_count, sizeof *capture->units);
    if (capture->units == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
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
            WEFT_RETURN_IF_ERROR(new_unit(capture, &i, 1, &unit));
        }
    }
    return WEFT_OK;
}

/* ---- one order ---- */

/* A unit stands where its last call stood, or behind what it has to wait for. */
static uint32_t key_of(const wefti_capture_unit_t *unit)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < unit->member_count; i++) {
        last = unit->members[i] > last ? unit->members[i] : last;
    }
    return last;
}

typedef struct sorter {
    uint32_t *first, *next, *waiting; /* units behind a unit; how many a unit waits for */
    uint32_t *by_key;                 /* by last call: its unit + 1, when it may run */
    uint32_t *key;
} sorter_t;

static weft_status_t link_units(const weft_capture_t *capture, const graph_t *g,
                                wefti_arena_t *arena, sorter_t *s)
{
    uint32_t n = capture->unit_count;
    *s = (sorter_t){.first = wefti_arena_array(arena, (size_t)n + 2, sizeof(uint32_t)),
                    .next = wefti_arena_array(arena, g->edge_count, sizeof(uint32_t)),
                    .waiting = wefti_arena_array(arena, n, sizeof(uint32_t)),
                    .by_key = wefti_arena_array(arena, capture->call_count, sizeof(uint32_t)),
                    .key = wefti_arena_array(arena, n, sizeof(uint32_t))};
    if (s->first == NULL || s->next == NULL || s->waiting == NULL || s->by_key == NULL ||
        s->key == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < g->edge_count; i++) {
        uint32_t from = capture->calls[g->edges[2 * i] / 2].unit;
        uint32_t to = capture->calls[g->edges[2 * i + 1] / 2].unit;
        s->first[from + 2]++;
        s->waiting[to]++;
    }
    for (uint32_t i = 0; i < n; i++) {
        s->first[i + 2] += s->first[i + 1];
        s->key[i] = key_of(&capture->units[i]);
    }
    for (size_t i = 0; i < g->edge_count; i++) {
        uint32_t from = capture->calls[g->edges[2 * i] / 2].unit;
        s->next[s->first[from + 1]++] = capture->calls[g->edges[2 * i + 1] / 2].unit;
    }
    return WEFT_OK;
}

/* A heap of keys: the least one that may run comes next. */
static void push(uint32_t *heap, uint32_t *count, uint32_t key)
{
    uint32_t at = (*count)++;
    for (; at > 0 && heap[(at - 1) / 2] > key; at = (at - 1) / 2) {
        heap[at] = heap[(at - 1) / 2];
    }
    heap[at] = key;
}

static uint32_t pop(uint32_t *heap, uint32_t *count)
{
    uint32_t least = heap[0], key = heap[--*count], at = 0;
    for (uint32_t child = 1; child < *count; child = 2 * at + 1) {
        child += child + 1 < *count && heap[child + 1] < heap[child];
        if (heap[child] >= key) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = key;
    return least;
}

static weft_status_t sort_units(weft_capture_t *capture, const graph_t *g, wefti_arena_t *arena)
{
    sorter_t s;
    uint32_t n = capture->unit_count, heap_count = 0, done = 0;
    wefti_capture_unit_t *sorted = wefti_arena_array(&capture->arena, n, sizeof *sorted);
    uint32_t *heap = wefti_arena_array(arena, n, sizeof *heap);
    weft_status_t status = link_units(capture, g, arena, &s);
    if (status < 0 || sorted == NULL || heap == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < n; i++) {
        s.by_key[s.key[i]] = i;
        if (s.waiting[i] == 0) {
            push(heap, &heap_count, s.key[i]);
        }
    }
    while (heap_count > 0) {
        uint32_t unit = s.by_key[pop(heap, &heap_count)];
        sorted[done++] = capture->units[unit];
        for (uint32_t k = s.first[unit]; k < s.first[unit + 1]; k++) {
            if (--s.waiting[s.next[k]] == 0) {
                push(heap, &heap_count, s.key[s.next[k]]);
            }
        }
    }
    if (done < n) {
        return wefti_error(WEFT_ERR_INTERNAL, "capture: cyclic dependency between buckets");
    }
    capture->units = sorted;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < sorted[i].member_count; k++) {
            capture->calls[sorted[i].members[k]].unit = i;
        }
    }
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
                                   .world_size = capture->group->size,
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
