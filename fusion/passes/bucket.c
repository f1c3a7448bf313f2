/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bucket: fuses collectives of one tensor, because many small ones cost more than a few large ones.
 *
 * Matches three kinds, one after another, each with its own cost:
 *   - all-reduces of gradients and reduce-scatters, in order of readiness: the position of the
 *     producer, then its output;
 *   - all-gathers, the one that is needed last first. Time from the end of the step backwards makes
 *     need the same problem as readiness: all-gathers of weights are prefetched by bucket.
 *
 * A bucket starts with the first free candidate and takes later ones until its policy ends it. A
 * candidate is left for a later bucket if
 *   - its group, collective, reduction or element type differs;
 *   - it runs after an operator of unknown effect (a fence), and the bucket's first member before
 *     the fence;
 *   - kernels would wait: a reduce-scatter or all-gather is not ready when the first reader of the
 *     bucket runs;
 *   - it would close a cycle (dependence.c): with a1 -> b1 and b2 -> a2, {a1, a2} and {b1, b2} are
 *     each valid, but not both.
 *
 *   policy              a bucket ends
 *   auto[:25M]          where the planner decides (planner.h), never above the cap
 *   mgwfbp              if the next tensor is not ready within one startup cost of its start
 *   bytes:25M           before the tensor that exceeds the cap (at least 64 bytes)
 *   bytes:25M,time:5ms  also before a tensor that is ready later than this
 *   index:0,4,9         at these positions; the rest is the last bucket
 *   percent:60,40       at the tensor nearest to each share of the bytes, never empty
 *   one, none           with the last tensor; with every tensor
 *
 * Gradients that are updated with other settings have buckets of their own where updates run on
 * shards: they come after the others, by the same policy.
 *
 * index and percent apply to the first kind that the graph has; other kinds stay unfused, gradients
 * with other settings are one bucket. Bytes are
 * counted as sent, whole ranges, padded to 64; of reduce-scatters and all-gathers every block is
 * padded. Produces one collective per bucket (FUSE edits) with the reason for its end. A tensor of
 * U units of 64 bytes above a cap of C units becomes ceil(U / C) pieces (SPLIT), at most 65,536. A
 * piece of a gradient is a range of its memory, so no byte is copied and no bit changes. An
 * element-wise update also runs per piece, while the next one is sent; other readers wait for the
 * last piece. What becomes of blocks: pack.c.
 */
#include "fusion/passes/bucket.h"

#include <string.h>

#include "runtime/base/error.h"

/* Properties that fusing does not change: equal within a class of candidates. */
static const char *of_another_class(const wefti_bucketing_t *b, const wefti_bucket_candidate_t *a,
                                    const wefti_bucket_candidate_t *c)
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

/* Updates, which come last, read reduced gradients. Any other reader would wait: all inputs of a
 * bucket must be there before its first reader runs. */
static const char *delays(const wefti_bucket_candidate_t *c, uint32_t begin, uint32_t end)
{
    return c->kind == WEFT_COLLECTIVE_ALL_REDUCE ? NULL
           : c->begin > end                      ? "is ready after the first reader of the bucket"
           : c->end < begin                      ? "is read before the bucket is ready"
                                                 : NULL;
}

static const char *incompatible(const wefti_bucketing_t *b, uint32_t first, uint32_t index)
{
    const char *why = of_another_class(b, &b->candidates[first], &b->candidates[index]);
    why = why == NULL ? delays(&b->candidates[index], b->begin, b->end) : why;
    if (why != NULL) {
        return why;
    }
    /* Rows are kept equal within a fusion, so asking for the first member asks for all. */
    return wefti_dependence_forbids(&b->dependence, b->base + first, b->base + index)
               ? "depends on a member of the bucket"
               : NULL;
}

/* Called before anything is fused, which changes dependences. Linear if there are none. */
static void find_neighbours(wefti_bucketing_t *b)
{
    for (uint32_t i = 0, first = 0; i < b->count; i++) {
        if (i > 0 && of_another_class(b, &b->candidates[i - 1], &b->candidates[i]) != NULL) {
            first = i;
        }
        const wefti_bucket_candidate_t *c = &b->candidates[i];
        bool ordered = c->kind != WEFT_COLLECTIVE_ALL_REDUCE || b->dependence.reach != NULL;
        for (uint32_t j = i; j > first && ordered; j--) {
            if (delays(c, b->candidates[j - 1].begin, b->candidates[j - 1].end) != NULL ||
                wefti_dependence_forbids(&b->dependence, b->base + j - 1, b->base + i)) {
                first = j;
            }
        }
        b->candidates[i].first_with = first;
    }
}

/* Does the policy end the open bucket before candidate c? Then *out_reason says why. */
static bool ends_before(wefti_bucketing_t *b, const wefti_bucket_candidate_t *c, char **out_reason)
{
    const wefti_policy_t *policy = b->policy;
    const wefti_bucket_candidate_t *first = &b->candidates[b->members[0]];
    bool mirrored = c->kind == WEFT_COLLECTIVE_ALL_GATHER;
    char sizes[2][32];
    wefti_format_bytes(policy->cap_bytes, sizes[0]);
    wefti_format_bytes(b->bytes + c->bytes, sizes[1]);
    if (policy->kind == WEFTI_POLICY_NONE) {
        *out_reason = wefti_arena_printf(&b->arena, "one bucket per %s", wefti_bucket_noun(b));
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
            &b->arena, "%s is %s %.3f ms %s the first %s, beyond the window of %.3f ms", c->name,
            mirrored ? "needed" : "ready", (double)(c->ready_ns - first->ready_ns) * 1e-6,
            mirrored ? "before" : "after", wefti_bucket_noun(b), (double)policy->window_ns * 1e-6);
    } else {
        return false;
    }
    return true;
}

static weft_status_t take(wefti_bucketing_t *b, uint32_t index)
{
    wefti_bucket_candidate_t *c = &b->candidates[index];
    c->taken = true;
    c->bucket = b->bucket_count;
    if (b->member_count > 0) {
        wefti_dependence_fuse(&b->dependence, b->base + b->members[0], b->base + index);
    }
    b->begin = b->member_count == 0 || c->begin > b->begin ? c->begin : b->begin;
    b->end = b->member_count == 0 || c->end < b->end ? c->end : b->end;
    b->members[b->member_count++] = index;
    return wefti_add_size(b->bytes, c->bytes, &b->bytes)
               ? WEFT_OK
               : wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%ss too large: size in bytes overflows",
                             wefti_bucket_noun(b));
}

static weft_status_t emit(wefti_bucketing_t *b, const char *reason)
{
    weft_edit_t edit = {
        .kind = WEFT_EDIT_KIND_FUSE, .member_count = b->member_count, .text = reason};
    uint32_t *ops = wefti_arena_array(&b->arena, b->member_count, sizeof(*ops));
    WEFT_RETURN_IF_NO_MEMORY(ops && reason);
    bool mirrored =
        b->candidates[0].kind == WEFT_COLLECTIVE_ALL_GATHER; /* the first one needed first */
    for (uint32_t i = 0; i < b->member_count; i++) {
        ops[mirrored ? b->member_count - 1 - i : i] = b->candidates[b->members[i]].op;
    }
    edit.members = ops;
    b->bucket_count++;
    return edit.member_count == 1 && b->candidates[0].kind != WEFT_COLLECTIVE_ALL_REDUCE
               ? WEFT_OK
               : weft_edit_list_add(b->edits, &edit);
}

/* A gradient above the cap: a bucket of its own, split so that every piece keeps to the cap. */
static weft_status_t split(wefti_bucketing_t *b, uint32_t first)
{
    const wefti_bucket_candidate_t *c = &b->candidates[first];
    uint64_t parts = wefti_bucket_parts(c, b->policy->cap_bytes);
    char sizes[2][32];
    weft_edit_t edit = {.kind = WEFT_EDIT_KIND_SPLIT, .op_a = c->op, .parts = (uint32_t)parts};
    wefti_format_bytes(c->bytes, sizes[0]);
    wefti_format_bytes(b->policy->cap_bytes, sizes[1]);
    b->piece_count = parts > WEFTI_MAX_PIECES ? parts : b->piece_count + parts;
    if (b->piece_count > WEFTI_MAX_PIECES) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "bucket",
                                 "the cap of %s splits the %ss up to %s into more than %u pieces",
                                 sizes[1], wefti_bucket_noun(b), c->name, WEFTI_MAX_PIECES);
    }
    edit.text =
        wefti_arena_printf(&b->arena, "alone has %s, above the cap of %s", sizes[0], sizes[1]);
    WEFT_RETURN_IF_NO_MEMORY(edit.text);
    WEFT_RETURN_IF_ERROR(emit(b, wefti_arena_printf(&b->arena, "%s %s", c->name, edit.text)));
    return weft_edit_list_add(b->edits, &edit);
}

/* Fills one bucket from candidate first on. */
static weft_status_t build_bucket(wefti_bucketing_t *b, uint32_t first)
{
    const char *skipped_why = NULL;
    const wefti_bucket_candidate_t *skipped = NULL;
    char *reason = NULL;
    b->member_count = 0;
    b->bytes = 0;
    WEFT_RETURN_IF_ERROR(take(b, first));
    if (b->policy->cap_bytes != 0 && b->bytes > b->policy->cap_bytes) {
        return split(b, first);
    }
    for (uint32_t i = first + 1; i < b->count; i++) {
        const wefti_bucket_candidate_t *c = &b->candidates[i];
        const char *why;
        if (c->taken) {
            continue;
        }
        why = incompatible(b, b->members[0], i);
        if (why == NULL || c->segment != b->candidates[first].segment ||
            b->policy->kind == WEFTI_POLICY_NONE) {
            if (ends_before(b, c, &reason)) {
                return emit(b, reason);
            }
            WEFT_RETURN_IF_ERROR(take(b, i));
        } else if (skipped == NULL) {
            skipped = c; /* it gets a later bucket; the walk goes on */
            skipped_why = why;
        }
    }
    if (skipped != NULL) {
        reason = wefti_arena_printf(&b->arena, "no later %s fits: %s %s", wefti_bucket_noun(b),
                                    skipped->name, skipped_why);
    } else if (b->candidates[b->count - 1].cut != NULL && b->policy->kind != WEFTI_POLICY_PERCENT) {
        reason = wefti_arena_printf(&b->arena, "%s", b->candidates[b->count - 1].cut);
    } else if (b->policy->kind == WEFTI_POLICY_ONE) {
        reason = wefti_arena_printf(&b->arena, "one bucket for all %ss", wefti_bucket_noun(b));
    } else {
        reason = wefti_arena_printf(&b->arena, "last %s", wefti_bucket_noun(b));
    }
    return emit(b, reason);
}

/* Segments, for policies that have them. */
static weft_status_t cut(wefti_bucketing_t *b)
{
    switch (b->policy->kind) {
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

/* A cap below the unit of a candidate is that unit. Lists of positions and shares apply to one
 * kind; others keep a bucket per tensor. */
static wefti_policy_t policy_of(const wefti_bucketing_t *b, const wefti_policy_t *policy)
{
    wefti_policy_t own = *policy;
    for (uint32_t i = 0; own.cap_bytes != 0 && i < b->count; i++) {
        uint64_t unit = b->candidates[i].unit_bytes;
        own.cap_bytes = own.cap_bytes < unit ? unit : own.cap_bytes;
    }
    if (b->base > 0 && (own.kind == WEFTI_POLICY_INDEX || own.kind == WEFTI_POLICY_PERCENT)) {
        own.kind = b->candidates[0].apart != 0 ? WEFTI_POLICY_ONE : WEFTI_POLICY_NONE;
    }
    return own;
}

static weft_status_t bucket_kind(wefti_bucketing_t *b)
{
    b->bucket_count = 0;
    b->begin = b->end = 0;
    if (b->cost != NULL) {
        find_neighbours(b);
    }
    WEFT_RETURN_IF_ERROR(cut(b));
    for (uint32_t i = 0; i < b->count; i++) {
        if (!b->candidates[i].taken) {
            WEFT_RETURN_IF_ERROR(build_bucket(b, i));
        }
    }
    return WEFT_OK;
}

static const wefti_bucket_cost_t *cost_of(const wefti_shard_cost_t *cost, weft_collective_t kind)
{
    return cost == NULL                             ? NULL
           : kind == WEFT_COLLECTIVE_REDUCE_SCATTER ? &cost->reduce_scatter
                                                    : &cost->all_gather;
}

/* The candidates of one kind after another, those apart by themselves. The forecast is that of the
 * first kind. */
static weft_status_t bucket_kinds(wefti_bucketing_t *b, const wefti_bucket_params_t *params,
                                  wefti_plan_forecast_t *out_forecast)
{
    uint32_t count = b->count;
    for (; b->base < count; b->base += b->count, b->candidates += b->count) {
        weft_collective_t kind = b->candidates[0].kind;
        bool reduces = kind == WEFT_COLLECTIVE_ALL_REDUCE;
        uint8_t apart = b->candidates[0].apart;
        for (b->count = 1; b->base + b->count < count && b->candidates[b->count].kind == kind &&
                           b->candidates[b->count].apart == apart;) {
            b->count++;
        }
        b->cost = reduces ? params->cost : cost_of(params->shard_cost, kind);
        b->alone = reduces ? NULL : cost_of(params->alone_cost, kind);
        const wefti_policy_t policy = policy_of(b, params->policy);
        b->policy = &policy;
        WEFT_RETURN_IF_ERROR(bucket_kind(b));
        if (b->base == 0 && out_forecast != NULL && kind != WEFT_COLLECTIVE_ALL_GATHER) {
            WEFT_RETURN_IF_ERROR(wefti_bucket_forecast(b, params->forecast_arena, out_forecast));
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_pass_bucket(const weft_graph_view_t *view, const wefti_bucket_params_t *params,
                                weft_edit_list_t **out_edits, wefti_plan_forecast_t *out_forecast)
{
    weft_status_t status;
    const weft_allocator_t *allocator = params->allocator;
    wefti_bucketing_t b = {.view = view};
    *out_edits = NULL;
    if (out_forecast != NULL) {
        *out_forecast = (wefti_plan_forecast_t){0};
    }
    wefti_arena_init(&b.arena, allocator, 0);
    WEFT_TRY(status, weft_edit_list_create(allocator, &b.edits), done);
    WEFT_TRY(status, wefti_bucket_collect(&b, params), done);
    WEFT_TRY(status, bucket_kinds(&b, params, out_forecast), done);
    *out_edits = b.edits;
    b.edits = NULL;
done:
    weft_edit_list_destroy(b.edits);
    wefti_arena_deinit(&b.arena);
    return status;
}
