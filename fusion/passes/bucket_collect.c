/* SPDX-License-Identifier: Apache-2.0 */
/* The candidates of the bucketing pass, in its order: what they send, when they are ready, and
 * between which operators they run. */
#include "fusion/passes/bucket.h"

#include <stdlib.h>

#include "graph/successors.h"
#include "runtime/base/error.h"

#define MAX_BLOCKS 65536u

/* The parameter whose gradient an all-reduce of one tensor reduces. */
static uint32_t grad_of(const weft_graph_view_t *view, uint32_t op)
{
    return view->values[view->op_outputs[view->ops[op].first_output]].grad_of;
}

static bool is_candidate(const weft_graph_view_t *view, const weft_view_op_t *op,
                         weft_collective_t *out_kind)
{
    return wefti_view_collective(op, out_kind) && op->input_count == 1 && op->output_count == 1 &&
           view->op_inputs[op->first_input] != UINT32_MAX &&
           view->op_outputs[op->first_output] != UINT32_MAX &&
           (*out_kind == WEFT_COLLECTIVE_REDUCE_SCATTER ||
            *out_kind == WEFT_COLLECTIVE_ALL_GATHER ||
            (*out_kind == WEFT_COLLECTIVE_ALL_REDUCE &&
             view->values[view->op_outputs[op->first_output]].grad_of != UINT32_MAX));
}

/* By kind, those apart last. All-gathers: the one that is needed last comes first. */
static int compare_candidates(const void *a, const void *b)
{
    const wefti_bucket_candidate_t *x = a, *y = b;
    bool last_first = x->kind == WEFT_COLLECTIVE_ALL_GATHER;
    uint32_t keys[][2] = {{last_first ? y->end : x->producer, last_first ? x->end : y->producer},
                          {last_first ? y->op : x->output, last_first ? x->op : y->output},
                          {x->op, y->op}};
    if (x->kind != y->kind) {
        return x->kind < y->kind ? -1 : 1;
    }
    if (x->apart != y->apart) {
        return x->apart < y->apart ? -1 : 1;
    }
    for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++) {
        if (keys[k][0] != keys[k][1]) {
            return keys[k][0] < keys[k][1] ? -1 : 1;
        }
    }
    return 0;
}

/* By position in the order of execution and by op, while candidates are collected. */
typedef struct places {
    const weft_graph_view_t *view;
    const uint64_t *ready_ns; /* by op, or NULL */
    uint32_t *position;       /* by op */
    uint32_t *fences;         /* by position: how many fences up to it */
    uint32_t *begin, *end;    /* by op: see wefti_bucket_candidate_t */
    uint64_t end_ns;
} places_t;

static void note_pair(void *user, uint32_t before, uint32_t after)
{
    places_t *p = user;
    if (before >= p->view->op_count || after >= p->view->op_count) {
        return; /* dependence.c refuses the edge */
    }
    uint32_t from = p->position[before], to = p->position[after];
    p->begin[after] = from + 1 > p->begin[after] ? from + 1 : p->begin[after];
    p->end[before] = to < p->end[before] ? to : p->end[before];
}

static weft_status_t find_places(wefti_bucketing_t *b, const uint64_t *ready_ns, places_t *p)
{
    const weft_graph_view_t *view = b->view;
    uint32_t fence_count = 0;
    *p = (places_t){.view = view, .ready_ns = ready_ns};
    p->position = wefti_arena_array(&b->arena, view->op_count, sizeof(*p->position));
    p->fences = wefti_arena_array(&b->arena, view->order_count, sizeof(*p->fences));
    p->begin = wefti_arena_array(&b->arena, view->op_count, sizeof(*p->begin));
    p->end = wefti_arena_array(&b->arena, view->op_count, sizeof(*p->end));
    WEFT_RETURN_IF_NO_MEMORY(p->position && p->fences && p->begin && p->end);
    for (uint32_t i = 0; i < view->order_count; i++) {
        uint32_t op = view->order[i];
        p->position[op] = i;
        p->end[op] = view->order_count;
        fence_count += (view->ops[op].effects & WEFT_EFFECT_UNKNOWN) != 0;
        p->fences[i] = fence_count;
        uint64_t ready = ready_ns != NULL ? ready_ns[op] : 0;
        p->end_ns = ready > p->end_ns ? ready : p->end_ns;
    }
    wefti_view_each_pair(view, note_pair, p);
    return WEFT_OK;
}

/* A tensor of blocks is cut in every block: its unit is one of each block. */
static void set_bytes(wefti_bucket_candidate_t *c, uint64_t in_bytes, uint64_t out_bytes)
{
    uint64_t block = c->kind == WEFT_COLLECTIVE_REDUCE_SCATTER ? out_bytes : in_bytes;
    uint64_t whole = c->kind == WEFT_COLLECTIVE_ALL_GATHER ? out_bytes : in_bytes;
    uint64_t blocks = block > 0 ? whole / block + (whole % block != 0) : 1;
    if (blocks == 0 || blocks > MAX_BLOCKS) { /* of more ranks than there may be: not blocks */
        blocks = 1;
    }
    c->unit_bytes = WEFTI_PLAN_ALIGNMENT * blocks;
    if (__builtin_mul_overflow(wefti_align_up(block, WEFTI_PLAN_ALIGNMENT), blocks, &c->bytes)) {
        c->bytes = UINT64_MAX / c->unit_bytes * c->unit_bytes; /* too large: refused later */
    }
}

/* The time from the first read to the end of the step: the mirror image of readiness. */
static uint64_t mirrored_ns(const places_t *p, const wefti_bucket_candidate_t *c)
{
    bool is_read = c->end < p->view->order_count && c->end > 0;
    uint64_t need = is_read && p->ready_ns != NULL ? p->ready_ns[p->view->order[c->end - 1]] : 0;
    return is_read ? p->end_ns - need : 0;
}

static wefti_bucket_candidate_t make_candidate(const places_t *p, uint32_t id,
                                               weft_collective_t kind)
{
    const weft_graph_view_t *view = p->view;
    const weft_view_op_t *op = &view->ops[id];
    uint32_t input = view->op_inputs[op->first_input];
    const weft_view_value_t *value = &view->values[input];
    const weft_view_value_t *result = &view->values[view->op_outputs[op->first_output]];
    wefti_bucket_candidate_t candidate = {.op = id,
                                          .kind = kind,
                                          .name = kind == WEFT_COLLECTIVE_ALL_REDUCE
                                                      ? view->values[result->grad_of].name
                                                      : value->name,
                                          .value = value->name,
                                          .dtype = value->dtype,
                                          .begin = p->begin[id],
                                          .end = p->end[id],
                                          .fences = {0, p->fences[p->position[id]]}};
    set_bytes(&candidate, value->bytes, result->bytes);
    if (value->producer != UINT32_MAX) {
        const weft_view_op_t *producer = &view->ops[value->producer];
        candidate.producer = p->position[value->producer];
        candidate.fences[0] = p->fences[candidate.producer];
        candidate.ready_ns = p->ready_ns != NULL ? p->ready_ns[value->producer] : 0;
        while (view->op_outputs[producer->first_output + candidate.output] != input) {
            candidate.output++;
        }
    }
    if (kind == WEFT_COLLECTIVE_ALL_GATHER) {
        candidate.ready_ns = mirrored_ns(p, &candidate);
    }
    return candidate;
}

weft_status_t wefti_bucket_collect(wefti_bucketing_t *b, const wefti_bucket_params_t *params)
{
    const weft_graph_view_t *view = b->view;
    weft_collective_t kind;
    places_t places;
    uint32_t *ops = wefti_arena_array(&b->arena, view->op_count, sizeof(*ops));
    b->candidates = wefti_arena_array(&b->arena, view->op_count, sizeof(*b->candidates));
    b->members = wefti_arena_array(&b->arena, view->op_count, sizeof(*b->members));
    WEFT_RETURN_IF_NO_MEMORY(ops && b->candidates && b->members);
    WEFT_RETURN_IF_ERROR(find_places(b, params->ready_ns, &places));
    b->end_ns = places.end_ns;
    for (uint32_t i = 0; i < view->order_count; i++) {
        if (is_candidate(view, &view->ops[view->order[i]], &kind)) {
            wefti_bucket_candidate_t *c = &b->candidates[b->count++];
            *c = make_candidate(&places, view->order[i], kind);
            c->apart = kind == WEFT_COLLECTIVE_ALL_REDUCE && params->apart != NULL
                           ? params->apart[grad_of(view, view->order[i])]
                           : 0;
        }
    }
    qsort(b->candidates, b->count, sizeof(*b->candidates), compare_candidates);
    for (uint32_t i = 0; i < b->count; i++) {
        ops[i] = b->candidates[i].op;
    }
    return wefti_dependence_init(view, ops, b->count, &b->arena, &b->dependence);
}

const char *wefti_bucket_noun(const wefti_bucketing_t *b)
{
    return b->candidates[0].kind == WEFT_COLLECTIVE_ALL_REDUCE ? "gradient" : "tensor";
}
