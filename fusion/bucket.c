/* SPDX-License-Identifier: Apache-2.0 */
/* Fuses the all-reduces of gradients into buckets; README.md has the rules. */
#include "fusion/fusion.h"

#include <stdlib.h>
#include <string.h>

#include "fusion/dependence.h"
#include "runtime/base/error.h"

/* One gradient's collective. Candidates are sorted by readiness. */
typedef struct candidate {
    uint32_t op;
    const char *name;   /* of the parameter */
    uint32_t producer;  /* position of the gradient's producer in the order of execution */
    uint32_t output;    /* which output of the producer */
    uint32_t fences[2]; /* fences before the producer and before the collective */
    weft_dtype_t dtype;
    uint64_t bytes; /* as laid out: padded */
    uint64_t ready_ns;
    uint32_t segment; /* INDEX, PERCENT: which bucket the user wants it in */
    const char *cut;  /* PERCENT, last of a segment: why it ends there, about its share */
    bool taken;
} candidate_t;

/* Pieces of one graph: enough for 64 MiB buckets of 4 TiB, and checking a plan stays quick. */
#define MAX_PIECES 65536u

typedef struct bucketing {
    const weft_graph_view_t *view;
    const wefti_policy_t *policy;
    wefti_arena_t arena;
    candidate_t *candidates;
    uint32_t count;
    wefti_dependence_t dependence;
    uint32_t *members; /* candidates of the bucket being built */
    uint32_t member_count;
    uint64_t bytes;
    uint64_t piece_count; /* of all gradients that are split */
    weft_edit_list_t *edits;
} bucketing_t;

static bool is_candidate(const weft_graph_view_t *view, const weft_view_op_t *op)
{
    return op->present && (op->effects & WEFT_EFFECT_COMMUNICATES) != 0 &&
           strcmp(op->def->domain, "weft") == 0 && strcmp(op->def->name, "AllReduce") == 0 &&
           op->input_count == 1 && op->output_count == 1 &&
           view->op_inputs[op->first_input] != UINT32_MAX &&
           view->values[view->op_outputs[op->first_output]].grad_of != UINT32_MAX;
}

static int compare_candidates(const void *a, const void *b)
{
    const candidate_t *x = a, *y = b;
    if (x->producer != y->producer) {
        return x->producer < y->producer ? -1 : 1;
    }
    if (x->output != y->output) {
        return x->output < y->output ? -1 : 1;
    }
    return (x->op > y->op) - (x->op < y->op);
}

static candidate_t make_candidate(const weft_graph_view_t *view, uint32_t id,
                                  const uint32_t *position, const uint32_t *fences,
                                  const uint64_t *ready_ns)
{
    const weft_view_op_t *op = &view->ops[id];
    uint32_t input = view->op_inputs[op->first_input];
    const weft_view_value_t *value = &view->values[input];
    const weft_view_value_t *result = &view->values[view->op_outputs[op->first_output]];
    candidate_t candidate = {.op = id,
                             .name = view->values[result->grad_of].name,
                             .dtype = value->dtype,
                             .bytes = wefti_align_up(value->bytes, WEFTI_PLAN_ALIGNMENT),
                             .fences = {0, fences[position[id]]}};
    if (value->producer != UINT32_MAX) {
        const weft_view_op_t *producer = &view->ops[value->producer];
        candidate.producer = position[value->producer];
        candidate.fences[0] = fences[candidate.producer];
        candidate.ready_ns = ready_ns != NULL ? ready_ns[value->producer] : 0;
        while (view->op_outputs[producer->first_output + candidate.output] != input) {
            candidate.output++;
        }
    }
    return candidate;
}

static weft_status_t collect(bucketing_t *b, const uint64_t *ready_ns)
{
    const weft_graph_view_t *view = b->view;
    uint32_t *position = wefti_arena_array(&b->arena, view->op_count, sizeof(*position));
    uint32_t *fences = wefti_arena_array(&b->arena, view->order_count, sizeof(*fences));
    uint32_t *ops = wefti_arena_array(&b->arena, view->op_count, sizeof(*ops));
    uint32_t fence_count = 0;
    b->candidates = wefti_arena_array(&b->arena, view->op_count, sizeof(*b->candidates));
    b->members = wefti_arena_array(&b->arena, view->op_count, sizeof(*b->members));
    if (position == NULL || fences == NULL || ops == NULL || b->candidates == NULL ||
        b->members == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < view->order_count; i++) {
        position[view->order[i]] = i;
        fence_count += (view->ops[view->order[i]].effects & WEFT_EFFECT_UNKNOWN) != 0;
        fences[i] = fence_count;
    }
    for (uint32_t i = 0; i < view->order_count; i++) {
        if (is_candidate(view, &view->ops[view->order[i]])) {
            b->candidates[b->count++] =
                make_candidate(view, view->order[i], position, fences, ready_ns);
        }
    }
    qsort(b->candidates, b->count, sizeof(*b->candidates), compare_candidates);
    for (uint32_t i = 0; i < b->count; i++) {
        ops[i] = b->candidates[i].op;
    }
    return wefti_dependence_init(view, ops, b->count, &b->arena, &b->dependence);
}

static weft_status_t cut_by_index(bucketing_t *b)
{
    const wefti_policy_t *policy = b->policy;
    uint64_t last = policy->values[policy->value_count - 1];
    if (last >= b->count) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "--bucket index: position %llu does not exist, the model has %u gradients (0 to %u)",
            (unsigned long long)last, b->count, b->count - 1);
    }
    /* The end of the final bucket may be named too: it changes nothing. */
    for (uint32_t i = 0, segment = 0; i < b->count; i++) {
        b->candidates[i].segment = segment;
        segment += segment < policy->value_count && policy->values[segment] == i;
    }
    return WEFT_OK;
}

/* Where the segment that begins with candidate first ends: behind the gradient whose end is nearest
 * to the target, but with a gradient for it and for each of the left buckets behind it. */
static uint32_t cut_at(const bucketing_t *b, uint32_t first, uint32_t left, double target,
                       uint64_t *before, const char **out_why)
{
    uint32_t i = first;
    *out_why = "ends nearest to";
    for (; i < b->count; i++) {
        double begin = (double)*before, end = (double)(*before + b->candidates[i].bytes);
        if (left > 0 && i == b->count - left) {
            *out_why = "leaves a gradient for every bucket behind";
            break;
        }
        if (left > 0 && end - target > target - begin) {
            if (i > first) {
                break;
            }
            *out_why = "is one gradient at least, though it ends behind";
        }
        *before += b->candidates[i].bytes;
    }
    return i;
}

static weft_status_t cut_by_percent(bucketing_t *b)
{
    const wefti_policy_t *policy = b->policy;
    uint64_t total = 0, before = 0;
    uint32_t i = 0;
    double share = 0;
    if (policy->value_count > b->count) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "--bucket percent: %u shares, but the model has only %u gradients",
                           policy->value_count, b->count);
    }
    for (uint32_t j = 0; j < b->count; j++) {
        total += b->candidates[j].bytes;
    }
    for (uint32_t segment = 0; segment < policy->value_count; segment++) {
        uint32_t first = i;
        const char *why;
        share += (double)policy->values[segment];
        i = cut_at(b, first, policy->value_count - segment - 1, (double)total * share / 100.0,
                   &before, &why);
        for (uint32_t j = first; j < i; j++) {
            b->candidates[j].segment = segment;
        }
        b->candidates[i - 1].cut = why;
    }
    return WEFT_OK;
}

/* Of all bytes, the percentage at which a segment should end. */
static unsigned percent_of(const wefti_policy_t *policy, uint32_t segment)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i <= segment; i++) {
        sum += policy->values[i];
    }
    return (unsigned)sum;
}

/* Why candidate c may not join the open bucket although the policy would have it, or NULL. */
static const char *incompatible(const bucketing_t *b, const candidate_t *c)
{
    const candidate_t *first = &b->candidates[b->members[0]];
    const weft_view_op_t *x = &b->view->ops[first->op], *y = &b->view->ops[c->op];
    uint32_t index = (uint32_t)(c - b->candidates);
    if (x->group != y->group) {
        return "belongs to another group";
    }
    if (x->def != y->def || x->reduction != y->reduction) {
        return "is another kind of collective";
    }
    if (first->dtype != c->dtype) {
        return "has another type";
    }
    if (memcmp(first->fences, c->fences, sizeof(c->fences)) != 0) {
        return "lies behind an operator of unknown effect";
    }
    /* Rows are kept equal within a fusion, so asking for the first member asks for all. */
    if (wefti_dependence_forbids(&b->dependence, b->members[0], index)) {
        return "depends on a member";
    }
    return NULL;
}

/* Does the policy end the open bucket before candidate c? Then *out_reason says why. */
static bool ends_before(bucketing_t *b, const candidate_t *c, char **out_reason)
{
    const wefti_policy_t *policy = b->policy;
    const candidate_t *first = &b->candidates[b->members[0]];
    char sizes[2][32];
    wefti_format_bytes(policy->cap_bytes, sizes[0]);
    wefti_format_bytes(b->bytes + c->bytes, sizes[1]);
    if (policy->kind == WEFTI_POLICY_NONE) {
        *out_reason = wefti_arena_printf(&b->arena, "every gradient has a bucket of its own");
    } else if (c->segment != first->segment && policy->kind == WEFTI_POLICY_INDEX) {
        *out_reason = wefti_arena_printf(&b->arena, "ends at the given position %llu",
                                         (unsigned long long)policy->values[first->segment]);
    } else if (c->segment != first->segment) {
        /* Segments are taken in order: the candidate before c is the last of this one. */
        *out_reason = wefti_arena_printf(&b->arena, "%s %s %u %% of the bytes", c[-1].name,
                                         c[-1].cut, percent_of(policy, first->segment));
    } else if (policy->kind != WEFTI_POLICY_BYTES) {
        return false;
    } else if (b->bytes + c->bytes > policy->cap_bytes) {
        *out_reason = wefti_arena_printf(&b->arena, "with %s it would have %s, above the cap of %s",
                                         c->name, sizes[1], sizes[0]);
    } else if (policy->window_ns != 0 && c->ready_ns - first->ready_ns > policy->window_ns) {
        *out_reason = wefti_arena_printf(
            &b->arena, "%s comes %.3f ms after the first, later than %.3f ms", c->name,
            (double)(c->ready_ns - first->ready_ns) * 1e-6, (double)policy->window_ns * 1e-6);
    } else {
        return false;
    }
    return true;
}

static weft_status_t take(bucketing_t *b, uint32_t index)
{
    b->candidates[index].taken = true;
    if (b->member_count > 0) {
        wefti_dependence_fuse(&b->dependence, b->members[0], index);
    }
    b->members[b->member_count++] = index;
    return wefti_add_size(b->bytes, b->candidates[index].bytes, &b->bytes)
               ? WEFT_OK
               : wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "the gradients have more bytes than can be counted");
}

static weft_status_t emit(bucketing_t *b, const char *reason)
{
    weft_edit_t edit = {.kind = WEFT_EDIT_FUSE, .member_count = b->member_count, .text = reason};
    uint32_t *ops = wefti_arena_array(&b->arena, b->member_count, sizeof(*ops));
    if (ops == NULL || reason == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < b->member_count; i++) {
        ops[i] = b->candidates[b->members[i]].op;
    }
    edit.members = ops;
    return weft_edit_list_add(b->edits, &edit);
}

/* A gradient above the cap: a bucket of its own, split so that every piece keeps to the cap. */
static weft_status_t split(bucketing_t *b, uint32_t first)
{
    weft_status_t status;
    const candidate_t *c = &b->candidates[first];
    uint64_t units = c->bytes / WEFTI_PLAN_ALIGNMENT;
    uint64_t most = b->policy->cap_bytes / WEFTI_PLAN_ALIGNMENT; /* units of a piece */
    uint64_t parts = units / most + (units % most != 0);
    char sizes[2][32];
    weft_edit_t edit = {.kind = WEFT_EDIT_SPLIT, .op_a = c->op, .parts = (uint32_t)parts};
    wefti_format_bytes(c->bytes, sizes[0]);
    wefti_format_bytes(b->policy->cap_bytes, sizes[1]);
    b->piece_count = parts > MAX_PIECES ? parts : b->piece_count + parts;
    if (b->piece_count > MAX_PIECES) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "--bucket bytes: the cap of %s cuts the gradients up to %s into more than "
            "%u pieces",
            sizes[1], c->name, MAX_PIECES);
    }
    edit.text =
        wefti_arena_printf(&b->arena, "alone has %s, above the cap of %s", sizes[0], sizes[1]);
    if (edit.text == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    WEFT_TRY(status, emit(b, wefti_arena_printf(&b->arena, "%s %s", c->name, edit.text)), fail);
    status = weft_edit_list_add(b->edits, &edit);
fail:
    return status;
}

/* Fills one bucket from candidate first on. */
static weft_status_t build_bucket(bucketing_t *b, uint32_t first)
{
    weft_status_t status;
    const char *skipped_why = NULL;
    const candidate_t *skipped = NULL;
    char *reason = NULL;
    b->member_count = 0;
    b->bytes = 0;
    WEFT_TRY(status, take(b, first), fail);
    if (b->policy->kind == WEFTI_POLICY_BYTES && b->bytes > b->policy->cap_bytes) {
        return split(b, first);
    }
    for (uint32_t i = first + 1; i < b->count; i++) {
        const candidate_t *c = &b->candidates[i];
        const char *why;
        if (c->taken) {
            continue;
        }
        why = incompatible(b, c);
        if (why == NULL || c->segment != b->candidates[first].segment ||
            b->policy->kind == WEFTI_POLICY_NONE) {
            if (ends_before(b, c, &reason)) {
                return emit(b, reason);
            }
            WEFT_TRY(status, take(b, i), fail);
        } else if (skipped == NULL) {
            skipped = c; /* it gets a later bucket; the walk goes on */
            skipped_why = why;
        }
    }
    if (skipped != NULL) {
        reason = wefti_arena_printf(&b->arena, "no later gradient fits: %s %s", skipped->name,
                                    skipped_why);
    } else if (b->policy->kind == WEFTI_POLICY_ONE) {
        reason = wefti_arena_printf(&b->arena, "one bucket for all gradients");
    } else {
        reason = wefti_arena_printf(&b->arena, "no gradient is left");
    }
    return emit(b, reason);
fail:
    return status;
}

weft_status_t wefti_pass_bucket(const weft_graph_view_t *view, const wefti_policy_t *policy,
                                const uint64_t *ready_ns, const weft_allocator_t *allocator,
                                weft_edit_list_t **out_edits)
{
    weft_status_t status;
    bucketing_t b = {.view = view, .policy = policy};
    *out_edits = NULL;
    wefti_arena_init(&b.arena, allocator, 0);
    WEFT_TRY(status, weft_edit_list_create(allocator, &b.edits), done);
    WEFT_TRY(status, collect(&b, ready_ns), done);
    if (policy->kind == WEFTI_POLICY_INDEX && b.count > 0) {
        WEFT_TRY(status, cut_by_index(&b), done);
    } else if (policy->kind == WEFTI_POLICY_PERCENT && b.count > 0) {
        WEFT_TRY(status, cut_by_percent(&b), done);
    }
    for (uint32_t i = 0; i < b.count; i++) {
        if (!b.candidates[i].taken) {
            WEFT_TRY(status, build_bucket(&b, i), done);
        }
    }
    *out_edits = b.edits;
    b.edits = NULL;
done:
    weft_edit_list_destroy(b.edits);
    wefti_arena_deinit(&b.arena);
    return status;
}
