/* SPDX-License-Identifier: Apache-2.0 */
/* Ends of buckets from the planner (planner.h), and predictions for any list of buckets. */
#include "fusion/passes/bucket.h"

#include <stdlib.h>

#include "runtime/base/error.h"

#define PS_PER_NS 1000u
/* A step of more than 1,000 s is planned like one of 1,000 s. */
#define MAX_READY_NS 1000000000000ull

/* Items of the planner: one per gradient, and one per piece of a gradient above the cap. */
typedef struct items {
    wefti_plan_item_t *items;
    uint32_t *first_with;
    uint32_t *owners; /* which candidate an item belongs to */
    uint32_t count;
    uint32_t *ends; /* room for the buckets of a policy */
} items_t;

static uint64_t ready_ps(const wefti_bucket_candidate_t *gradient)
{
    return PS_PER_NS * (gradient->ready_ns < MAX_READY_NS ? gradient->ready_ns : MAX_READY_NS);
}

static uint64_t piece_bytes(const wefti_bucket_candidate_t *gradient, uint64_t part, uint64_t parts)
{
    uint64_t units = gradient->bytes / gradient->unit_bytes;
    return (units * (part + 1) / parts - units * part / parts) * gradient->unit_bytes;
}

static uint64_t count_items(const wefti_bucketing_t *b, uint64_t cap_bytes)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < b->count; i++) {
        count += wefti_bucket_parts(&b->candidates[i], cap_bytes);
    }
    return count;
}

static bool are_too_many(const wefti_bucketing_t *b, uint64_t count)
{
    return count > WEFTI_MAX_PIECES + (uint64_t)b->count;
}

static weft_status_t make_items(wefti_bucketing_t *b, uint64_t cap_bytes, items_t *out)
{
    uint64_t count = count_items(b, cap_bytes), ready = 0;
    if (are_too_many(b, count)) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "bucket",
                                 "the cap splits the %ss into more than %u pieces",
                                 wefti_bucket_noun(b), WEFTI_MAX_PIECES);
    }
    *out = (items_t){.items = wefti_arena_array(&b->arena, count, sizeof(*out->items)),
                     .first_with = wefti_arena_array(&b->arena, count, sizeof(uint32_t)),
                     .owners = wefti_arena_array(&b->arena, count, sizeof(uint32_t)),
                     .ends = wefti_arena_array(&b->arena, count, sizeof(uint32_t))};
    uint32_t *item_of = wefti_arena_array(&b->arena, b->count, sizeof(*item_of));
    WEFT_RETURN_IF_NO_MEMORY(out->items && out->first_with && out->owners && out->ends && item_of);
    uint32_t first = 0; /* candidate */
    for (uint32_t i = 0; i < b->count; i++) {
        const wefti_bucket_candidate_t *gradient = &b->candidates[i];
        uint64_t parts = wefti_bucket_parts(gradient, cap_bytes);
        bool alone = parts > 1 || (i > 0 && wefti_bucket_parts(gradient - 1, cap_bytes) > 1);
        /* A bucket cannot go before what it waits for: times may fall where ops are side by side.
         */
        ready = ready_ps(gradient) > ready ? ready_ps(gradient) : ready;
        first = alone ? i : first;
        first = gradient->first_with > first ? gradient->first_with : first;
        item_of[i] = out->count;
        for (uint64_t part = 0; part < parts; part++) {
            out->items[out->count] = (wefti_plan_item_t){ready, piece_bytes(gradient, part, parts)};
            out->first_with[out->count] = parts > 1 ? out->count : item_of[first];
            out->owners[out->count++] = i;
        }
    }
    return WEFT_OK;
}

static wefti_planner_params_t planner_params(const wefti_bucketing_t *b, const items_t *items,
                                             uint64_t cap_bytes)
{
    return (wefti_planner_params_t){.items = items->items,
                                    .item_count = items->count,
                                    .cost = *b->cost,
                                    .alone = b->alone,
                                    .cap_bytes = cap_bytes,
                                    .first_with = items->first_with};
}

/* Times of all-gathers are mirrored: a step whose gathers take longer begins later. */
static const char *bucket_text(wefti_bucketing_t *b, const wefti_planner_params_t *params,
                               uint32_t end, uint64_t start_ps, uint64_t finish_ps, uint64_t all_ps)
{
    uint64_t ready_ps = params->items[end - 1].ready_ps;
    uint64_t end_ps = PS_PER_NS * (b->end_ns < MAX_READY_NS ? b->end_ns : MAX_READY_NS);
    end_ps = end_ps > all_ps ? end_ps : all_ps;
    if (b->candidates[0].kind == WEFT_COLLECTIVE_ALL_GATHER) {
        return wefti_arena_printf(
            &b->arena, "planned: sent from %.1f to %.1f us, needed at %.1f us",
            (double)(end_ps - finish_ps) * 1e-6, (double)(end_ps - start_ps) * 1e-6,
            (double)(end_ps - ready_ps) * 1e-6);
    }
    return wefti_arena_printf(&b->arena, "planned: ready at %.1f us, sent from %.1f to %.1f us",
                              (double)ready_ps * 1e-6, (double)start_ps * 1e-6,
                              (double)finish_ps * 1e-6);
}

/* Segments of candidates from buckets of items; pieces of one gradient stay with it. */
static weft_status_t mark(wefti_bucketing_t *b, const items_t *items,
                          const wefti_planner_params_t *params, const uint32_t *ends,
                          uint32_t count)
{
    uint64_t *finish = wefti_arena_array(&b->arena, count, sizeof(*finish));
    WEFT_RETURN_IF_NO_MEMORY(finish);
    wefti_buckets_finish_ps(params, ends, count, finish);
    for (uint32_t bucket = 0, i = 0, segment = 0; bucket < count; bucket++) {
        uint32_t last = items->owners[ends[bucket] - 1];
        bool goes_on = bucket + 1 < count && items->owners[ends[bucket]] == last;
        for (; i < ends[bucket]; i++) {
            b->candidates[items->owners[i]].segment = segment;
        }
        uint64_t ready = params->items[ends[bucket] - 1].ready_ps;
        uint64_t before = bucket > 0 ? finish[bucket - 1] : 0;
        b->candidates[last].cut =
            bucket_text(b, params, ends[bucket], ready > before ? ready : before, finish[bucket],
                        finish[count - 1]);
        WEFT_RETURN_IF_NO_MEMORY(b->candidates[last].cut);
        segment += !goes_on;
    }
    return WEFT_OK;
}

weft_status_t wefti_bucket_cut_by_plan(wefti_bucketing_t *b)
{
    items_t items;
    wefti_bucket_plan_t plan = {0};
    if (b->cost == NULL) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "bucket",
                                 "policy auto requires costs of collectives");
    }
    WEFT_RETURN_IF_ERROR(make_items(b, b->policy->cap_bytes, &items));
    wefti_planner_params_t params = planner_params(b, &items, b->policy->cap_bytes);
    if (b->policy->kind == WEFTI_POLICY_MERGE) {
        plan.ends = items.ends;
        plan.bucket_count = wefti_buckets_merge_rule(&params, items.ends);
    } else {
        WEFT_RETURN_IF_ERROR(wefti_plan_buckets(&params, &b->arena, &plan));
    }
    return mark(b, &items, &params, plan.ends, plan.bucket_count);
}

/* ---- forecast ---- */

typedef struct made {
    uint64_t ready_ps, bytes, parts;
    const wefti_bucket_candidate_t *first;
} made_t;

static int by_readiness(const void *a, const void *b)
{
    const made_t *x = a, *y = b;
    if (x->ready_ps != y->ready_ps) {
        return x->ready_ps < y->ready_ps ? -1 : 1;
    }
    return (x->first > y->first) - (x->first < y->first);
}

/* The buckets that were made, as the comm stream carries them out. */
static weft_status_t finish_of_made(wefti_bucketing_t *b, const wefti_bucket_cost_t *cost,
                                    uint64_t *out_ps, uint64_t *out_comm_ps)
{
    made_t *made = wefti_arena_array(&b->arena, b->bucket_count, sizeof(*made));
    uint64_t now = 0, comm = 0;
    WEFT_RETURN_IF_NO_MEMORY(made);
    for (uint32_t i = 0; i < b->count; i++) {
        const wefti_bucket_candidate_t *gradient = &b->candidates[i];
        made_t *bucket = &made[gradient->bucket];
        uint64_t ready = ready_ps(gradient);
        bucket->first = bucket->first == NULL ? gradient : bucket->first;
        bucket->ready_ps = ready > bucket->ready_ps ? ready : bucket->ready_ps;
        bucket->bytes += gradient->bytes;
        bucket->parts = wefti_bucket_parts(gradient, b->policy->cap_bytes);
    }
    qsort(made, b->bucket_count, sizeof(*made), by_readiness);
    for (uint32_t i = 0; i < b->bucket_count; i++) {
        now = now > made[i].ready_ps ? now : made[i].ready_ps;
        for (uint64_t part = 0; part < made[i].parts; part++) {
            uint64_t bytes =
                made[i].parts > 1 ? piece_bytes(made[i].first, part, made[i].parts) : made[i].bytes;
            uint64_t ps = wefti_bucket_cost_ps(cost, bytes);
            now += ps;
            comm += ps;
        }
    }
    *out_comm_ps = comm;
    *out_ps = now;
    return WEFT_OK;
}

/* Buckets filled up to a threshold, one after the other. */
static uint32_t fill_up(const wefti_planner_params_t *params, uint64_t threshold, uint32_t *ends)
{
    uint32_t count = 0, first = 0;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < params->item_count; i++) {
        const wefti_plan_item_t *item = &params->items[i];
        if (i > first && (bytes + item->bytes > threshold || params->first_with[i] > first)) {
            ends[count++] = i;
            first = i;
            bytes = 0;
        }
        bytes += item->bytes;
    }
    ends[count++] = params->item_count;
    return count;
}

static void add_row(wefti_plan_forecast_t *forecast, const char *policy,
                    const wefti_planner_params_t *params, const uint32_t *ends, uint32_t count)
{
    forecast->rows[forecast->row_count++] = (wefti_plan_forecast_row_t){
        policy, count, wefti_buckets_finish_ps(params, ends, count, NULL)};
}

/* Policies side by side, whatever was asked for; without a cap, so that they differ in nothing
 * else. */
static weft_status_t compare(wefti_bucketing_t *b, wefti_arena_t *arena,
                             wefti_plan_forecast_t *forecast)
{
    static const struct {
        const char *name;
        uint64_t threshold;
    } fills[] = {{"none", 0},
                 {"bytes:1M", 1ull << 20},
                 {"bytes:25M", 25ull << 20},
                 {"bytes:128M", 128ull << 20},
                 {"one", UINT64_MAX}};
    items_t items;
    wefti_bucket_plan_t plan;
    forecast->rows =
        wefti_arena_array(arena, 2 + sizeof(fills) / sizeof(*fills), sizeof(*forecast->rows));
    WEFT_RETURN_IF_NO_MEMORY(forecast->rows);
    WEFT_RETURN_IF_ERROR(make_items(b, 0, &items));
    wefti_planner_params_t params = planner_params(b, &items, 0);
    WEFT_RETURN_IF_ERROR(wefti_plan_buckets(&params, &b->arena, &plan));
    forecast->optimum_ps = plan.optimum_ps;
    forecast->optimum_count = plan.optimum_count;
    forecast->lower_bound_ps = plan.lower_bound_ps;
    add_row(forecast, "auto", &params, plan.ends, plan.bucket_count);
    uint32_t count = wefti_buckets_merge_rule(&params, items.ends);
    add_row(forecast, "mgwfbp", &params, items.ends, count);
    for (size_t i = 0; i < sizeof(fills) / sizeof(*fills); i++) {
        uint64_t threshold = fills[i].threshold;
        uint64_t cap = threshold != UINT64_MAX ? threshold : 0; /* it is one, too */
        if (are_too_many(b, count_items(b, cap))) {
            continue; /* that policy would be refused; this is only a comparison */
        }
        WEFT_RETURN_IF_ERROR(make_items(b, cap, &items));
        params = planner_params(b, &items, 0);
        count = fill_up(&params, threshold, items.ends);
        add_row(forecast, fills[i].name, &params, items.ends, count);
    }
    return WEFT_OK;
}

weft_status_t wefti_bucket_forecast(wefti_bucketing_t *b, wefti_arena_t *arena,
                                    wefti_plan_forecast_t *out_forecast)
{
    static const double slower[] = {1.2, 2};
    *out_forecast = (wefti_plan_forecast_t){0};
    if (b->count == 0 || b->cost == NULL) {
        return WEFT_OK;
    }
    out_forecast->gradients = wefti_arena_array(arena, b->count, sizeof(*out_forecast->gradients));
    WEFT_RETURN_IF_NO_MEMORY(out_forecast->gradients);
    for (uint32_t i = 0; i < b->count; i++) {
        uint64_t ready = ready_ps(&b->candidates[i]);
        out_forecast->gradients[out_forecast->gradient_count++] = (wefti_plan_forecast_gradient_t){
            b->candidates[i].value, ready, b->candidates[i].bytes, b->candidates[i].unit_bytes,
            b->candidates[i].first_with};
        out_forecast->ready_ps = ready > out_forecast->ready_ps ? ready : out_forecast->ready_ps;
    }
    out_forecast->cap_bytes = b->policy->cap_bytes;
    WEFT_RETURN_IF_ERROR(wefti_bucket_cost_scale(b->cost, 1, arena, &out_forecast->cost));
    if (b->alone != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_bucket_cost_scale(b->alone, 1, arena, &out_forecast->alone));
    }
    WEFT_RETURN_IF_ERROR(compare(b, arena, out_forecast));
    WEFT_RETURN_IF_ERROR(
        finish_of_made(b, b->cost, &out_forecast->chosen_ps, &out_forecast->comm_ps));
    for (size_t i = 0; i < 2; i++) {
        wefti_bucket_cost_t slow;
        WEFT_RETURN_IF_ERROR(wefti_bucket_cost_scale(b->cost, slower[i], arena, &slow));
        WEFT_RETURN_IF_ERROR(finish_of_made(b, &slow, &out_forecast->chosen_slow_ps[i],
                                            &out_forecast->comm_slow_ps[i]));
    }
    out_forecast->chosen_count = b->bucket_count;
    for (uint32_t i = 0; i < b->count; i++) { /* every piece is a bucket of its own */
        out_forecast->chosen_count +=
            (uint32_t)wefti_bucket_parts(&b->candidates[i], b->policy->cap_bytes) - 1;
    }
    return WEFT_OK;
}
