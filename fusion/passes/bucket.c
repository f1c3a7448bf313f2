/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bucket: fuses collectives of gradients, because many small ones cost more than a few large ones.
 *
 * Matches all-reduces of one gradient, in order of readiness: the position of the producer, then
 * its output. A bucket starts with the first free candidate and takes later ones until its policy
 * ends it. A candidate is left for a later bucket if
 *   - its group, collective, reduction or element type differs;
 *   - it runs after an operator of unknown effect (a fence), and the bucket's first member before
 *     the fence;
 *   - it would close a cycle (dependence.c): with a1 -> b1 and b2 -> a2, {a1, a2} and {b1, b2} are
 *     each valid, but not both.
 *
 *   policy              a bucket ends
 *   auto[:25M]          where the planner decides (planner.h), never above the cap
 *   mgwfbp              if the next gradient is not ready within one startup cost of its start
 *   bytes:25M           before the gradient that exceeds the cap (at least 64 bytes)
 *   bytes:25M,time:5ms  also before a gradient that is ready later than this
 *   index:0,4,9         at these positions; the rest is the last bucket
 *   percent:60,40       at the gradient nearest to each share of the bytes, never empty
 *   one, none           with the last gradient; with every gradient
 *
 * Bytes are counted as sent: padded to 64. Produces one collective per bucket (FUSE edits) with the
 * reason for its end. A gradient of U units of 64 bytes above a cap of C units becomes ceil(U / C)
 * pieces (SPLIT), at most 65,536. A piece is a range of the gradient's memory, so no byte is copied
 * and no bit changes. An element-wise update also runs per piece, while the next one is sent; other
 * readers wait for the last piece.
 */
#include "fusion/passes/bucket.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

static bool is_candidate(const weft_graph_view_t *view, const weft_view_op_t *op)
{
    weft_collective_t collective;
    return wefti_view_collective(op, &collective) && collective == WEFT_COLLECTIVE_ALL_REDUCE &&
           op->input_count == 1 && op->output_count == 1 &&
           view->op_inputs[op->first_input] != UINT32_MAX &&
           view->values[view->op_outputs[op->first_output]].grad_of != UINT32_MAX;
}

static int compare_candidates(const void *a, const void *b)
{
    const wefti_gradient_t *x = a, *y = b;
    if (x->producer != y->producer) {
        return x->producer < y->producer ? -1 : 1;
    }
    if (x->output != y->output) {
        return x->output < y->output ? -1 : 1;
    }
    return (x->op > y->op) - (x->op < y->op);
}

static wefti_gradient_t make_candidate(const weft_graph_view_t *view, uint32_t id,
                                       const uint32_t *position, const uint32_t *fences,
                                       const uint64_t *ready_ns)
{
    const weft_view_op_t *op = &view->ops[id];
    uint32_t input = view->op_inputs[op->first_input];
    const weft_view_value_t *value = &view->values[input];
    const weft_view_value_t *result = &view->values[view->op_outputs[op->first_output]];
    wefti_gradient_t candidate = {.op = id,
                                  .name = view->values[result->grad_of].name,
                                  .value = value->name,
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

static weft_status_t collect(wefti_bucketing_t *b, const uint64_t *ready_ns)
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

/* What does not depend on who is fused: equal for whole classes of candidates. */
static const char *of_another_class(const wefti_bucketing_t *b, const wefti_gradient_t *a,
                                    const wefti_gradient_t *c)
{
    const weft_view_op_t *x = &b->view->ops[a->op], *y = &b->view->ops[c->op];
    if (x->group != y->group) {
        return "belongs to another group";
    }
    if (x->def != y->def || x->reduction != y->reduction) {
        return "is another kind of collective";
    }
    if (a->dtype != c->dtype) {
        return "has another element type";
    }
    if (memcmp(a->fences, c->fences, sizeof(c->fences)) != 0) {
        return "runs after an operator of unknown effect";
    }
    return NULL;
}

const char *wefti_bucket_incompatible(const wefti_bucketing_t *b, uint32_t first, uint32_t index)
{
    const char *why = of_another_class(b, &b->candidates[first], &b->candidates[index]);
    if (why != NULL) {
        return why;
    }
    /* Rows are kept equal within a fusion, so asking for the first member asks for all. */
    return wefti_dependence_forbids(&b->dependence, first, index)
               ? "depends on a member of the bucket"
               : NULL;
}

/* Before anything is fused: that changes who depends on whom. Linear where nobody depends. */
static void find_neighbours(wefti_bucketing_t *b)
{
    for (uint32_t i = 0, first = 0; i < b->count; i++) {
        if (i > 0 && of_another_class(b, &b->candidates[i - 1], &b->candidates[i]) != NULL) {
            first = i;
        }
        for (uint32_t j = i; j > first && b->dependence.reach != NULL; j--) {
            if (wefti_dependence_forbids(&b->dependence, j - 1, i)) {
                first = j;
            }
        }
        b->candidates[i].first_with = first;
    }
}

/* Does the policy end the open bucket before candidate c? Then *out_reason says why. */
static bool ends_before(wefti_bucketing_t *b, const wefti_gradient_t *c, char **out_reason)
{
    const wefti_policy_t *policy = b->policy;
    const wefti_gradient_t *first = &b->candidates[b->members[0]];
    char sizes[2][32];
    wefti_format_bytes(policy->cap_bytes, sizes[0]);
    wefti_format_bytes(b->bytes + c->bytes, sizes[1]);
    if (policy->kind == WEFTI_POLICY_NONE) {
        *out_reason = wefti_arena_printf(&b->arena, "one bucket per gradient");
    } else if (c->segment != first->segment && policy->kind == WEFTI_POLICY_INDEX) {
        *out_reason = wefti_arena_printf(&b->arena, "ends at position %llu of the policy",
                                         (unsigned long long)policy->values[first->segment]);
    } else if (c->segment != first->segment && c[-1].cut != NULL &&
               policy->kind != WEFTI_POLICY_PERCENT) {
        *out_reason = wefti_arena_printf(&b->arena, "%s", c[-1].cut);
    } else if (c->segment != first->segment) {
        /* Segments are taken in order: the candidate before c is the last of this one. */
        *out_reason = wefti_arena_printf(&b->arena, "%s %s %u %% of the bytes", c[-1].name,
                                         c[-1].cut, wefti_bucket_percent(policy, first->segment));
    } else if (policy->kind != WEFTI_POLICY_BYTES) {
        return false;
    } else if (b->bytes + c->bytes > policy->cap_bytes) {
        *out_reason = wefti_arena_printf(&b->arena, "%s would grow it to %s, above the cap of %s",
                                         c->name, sizes[1], sizes[0]);
    } else if (policy->window_ns != 0 && c->ready_ns - first->ready_ns > policy->window_ns) {
        *out_reason = wefti_arena_printf(
            &b->arena, "%s is ready %.3f ms after the first gradient, beyond the window of %.3f ms",
            c->name, (double)(c->ready_ns - first->ready_ns) * 1e-6,
            (double)policy->window_ns * 1e-6);
    } else {
        return false;
    }
    return true;
}

static weft_status_t take(wefti_bucketing_t *b, uint32_t index)
{
    b->candidates[index].taken = true;
    b->candidates[index].bucket = b->bucket_count;
    if (b->member_count > 0) {
        wefti_dependence_fuse(&b->dependence, b->members[0], index);
    }
    b->members[b->member_count++] = index;
    return wefti_add_size(b->bytes, b->candidates[index].bytes, &b->bytes)
               ? WEFT_OK
               : wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "gradients too large: size in bytes overflows");
}

static weft_status_t emit(wefti_bucketing_t *b, const char *reason)
{
    weft_edit_t edit = {
        .kind = WEFT_EDIT_KIND_FUSE, .member_count = b->member_count, .text = reason};
    uint32_t *ops = wefti_arena_array(&b->arena, b->member_count, sizeof(*ops));
    if (ops == NULL || reason == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < b->member_count; i++) {
        ops[i] = b->candidates[b->members[i]].op;
    }
    edit.members = ops;
    b->bucket_count++;
    return weft_edit_list_add(b->edits, &edit);
}

/* A gradient above the cap: a bucket of its own, split so that every piece keeps to the cap. */
static weft_status_t split(wefti_bucketing_t *b, uint32_t first)
{
    weft_status_t status;
    const wefti_gradient_t *c = &b->candidates[first];
    uint64_t parts = wefti_bucket_parts(c, b->policy->cap_bytes);
    char sizes[2][32];
    weft_edit_t edit = {.kind = WEFT_EDIT_KIND_SPLIT, .op_a = c->op, .parts = (uint32_t)parts};
    wefti_format_bytes(c->bytes, sizes[0]);
    wefti_format_bytes(b->policy->cap_bytes, sizes[1]);
    b->piece_count = parts > WEFTI_MAX_PIECES ? parts : b->piece_count + parts;
    if (b->piece_count > WEFTI_MAX_PIECES) {
        return wefti_error_field(
            WEFT_ERR_INVALID_ARGUMENT, "bucket",
            "the cap of %s splits the gradients up to %s into more than %u pieces", sizes[1],
            c->name, WEFTI_MAX_PIECES);
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
static weft_status_t build_bucket(wefti_bucketing_t *b, uint32_t first)
{
    weft_status_t status;
    const char *skipped_why = NULL;
    const wefti_gradient_t *skipped = NULL;
    char *reason = NULL;
    b->member_count = 0;
    b->bytes = 0;
    WEFT_TRY(status, take(b, first), fail);
    if (b->policy->cap_bytes != 0 && b->bytes > b->policy->cap_bytes) {
        return split(b, first);
    }
    for (uint32_t i = first + 1; i < b->count; i++) {
        const wefti_gradient_t *c = &b->candidates[i];
        const char *why;
        if (c->taken) {
            continue;
        }
        why = wefti_bucket_incompatible(b, b->members[0], i);
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
    } else if (b->candidates[b->count - 1].cut != NULL && b->policy->kind != WEFTI_POLICY_PERCENT) {
        reason = wefti_arena_printf(&b->arena, "%s", b->candidates[b->count - 1].cut);
    } else if (b->policy->kind == WEFTI_POLICY_ONE) {
        reason = wefti_arena_printf(&b->arena, "one bucket for all gradients");
    } else {
        reason = wefti_arena_printf(&b->arena, "last gradient");
    }
    return emit(b, reason);
fail:
    return status;
}

/* Segments, for policies that have them. */
static weft_status_t cut(wefti_bucketing_t *b)
{
    switch (b->count > 0 ? b->policy->kind : WEFTI_POLICY_ONE) {
    case WEFTI_POLICY_INDEX:
        return wefti_bucket_cut_by_index(b);
    case WEFTI_POLICY_PERCENT:
        return wefti_bucket_cut_by_percent(b);
    case WEFTI_POLICY_AUTO:
    case WEFTI_POLICY_MERGE:
        return wefti_bucket_cut_by_plan(b);
    default:
        return WEFT_OK;
    }
}

weft_status_t wefti_pass_bucket(const weft_graph_view_t *view, const wefti_bucket_params_t *params,
                                weft_edit_list_t **out_edits, wefti_plan_forecast_t *out_forecast)
{
    weft_status_t status;
    const weft_allocator_t *allocator = params->allocator;
    wefti_bucketing_t b = {.view = view, .policy = params->policy, .cost = params->cost};
    *out_edits = NULL;
    wefti_arena_init(&b.arena, allocator, 0);
    WEFT_TRY(status, weft_edit_list_create(allocator, &b.edits), done);
    WEFT_TRY(status, collect(&b, params->ready_ns), done);
    if (b.cost != NULL) {
        find_neighbours(&b);
    }
    WEFT_TRY(status, cut(&b), done);
    for (uint32_t i = 0; i < b.count; i++) {
        if (!b.candidates[i].taken) {
            WEFT_TRY(status, build_bucket(&b, i), done);
        }
    }
    if (out_forecast != NULL) {
        WEFT_TRY(status, wefti_bucket_forecast(&b, params->forecast_arena, out_forecast), done);
    }
    *out_edits = b.edits;
    b.edits = NULL;
done:
    weft_edit_list_destroy(b.edits);
    wefti_arena_deinit(&b.arena);
    return status;
}
