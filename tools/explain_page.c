/* SPDX-License-Identifier: Apache-2.0 */
/* weft explain --html: the data of the page; page/explain.js draws it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/cost/cost.h"
#include "ops/plan/explain.h"
#include "runtime/base/error.h"
#include "tools/output.h"
#include "tools/page.h"

#define LEAST_BYTES (1ull << 10)
#define MOST_BYTES (1ull << 30)
#define MOST_SPANS 65536u /* of a measured step */

/* ---- what was measured ---- */

static const wefti_json_node_t *child(const wefti_json_tree_t *tree,
                                      const wefti_json_node_t *object, const char *key,
                                      wefti_json_kind_t kind)
{
    const wefti_json_node_t *node = object != NULL && object->kind == WEFTI_JSON_OBJECT
                                        ? wefti_json_get(tree, object, key)
                                        : NULL;
    return node != NULL && node->kind == kind ? node : NULL;
}

static double number(const wefti_json_tree_t *tree, const wefti_json_node_t *object,
                     const char *key)
{
    const wefti_json_node_t *node = child(tree, object, key, WEFTI_JSON_NUMBER);
    return node != NULL && node->number >= 0 && node->number <= 1e18 ? node->number : NAN;
}

static const char *string(const wefti_json_tree_t *tree, const wefti_json_node_t *object,
                          const char *key)
{
    const wefti_json_node_t *node = child(tree, object, key, WEFTI_JSON_STRING);
    return node != NULL ? node->string : "";
}

/* Times of kernels and collectives by name: [name, us]. */
static void add_profile(wefti_json_t *json, const wefti_json_tree_t *tree)
{
    static const char *const lists[] = {"kernels", "collectives"};
    wefti_json_string(json, "kind", "profile");
    wefti_json_double(json, "step_us", number(tree, tree->nodes, "step_ns") * 1e-3);
    for (size_t i = 0; i < 2; i++) {
        const wefti_json_node_t *list = child(tree, tree->nodes, lists[i], WEFTI_JSON_ARRAY);
        wefti_json_begin_array(json, lists[i]);
        for (const wefti_json_node_t *at = list != NULL ? wefti_json_first(tree, list) : NULL;
             at != NULL; at = wefti_json_after(tree, at)) {
            wefti_json_begin_array(json, NULL);
            wefti_json_string(json, NULL, string(tree, at, "name"));
            wefti_json_double(json, NULL, number(tree, at, "ns") * 1e-3);
            wefti_json_end_array(json);
        }
        wefti_json_end_array(json);
    }
}

/* A step of one rank in a trace. */
typedef struct traced_step {
    double step, begin_us, end_us;
} traced_step_t;

static int by_step(const void *left, const void *right)
{
    const traced_step_t *a = left, *b = right;
    return (a->step > b->step) - (a->step < b->step);
}

static int by_duration(const void *left, const void *right)
{
    const traced_step_t *a = left, *b = right;
    double x = a->end_us - a->begin_us, y = b->end_us - b->begin_us;
    return x != y ? (x > y) - (x < y) : by_step(a, b);
}

/* The kernels, collectives and waits of the steps of a rank; NAN: of no step. */
static double step_of(const wefti_json_tree_t *tree, const wefti_json_node_t *event, double rank)
{
    const char *category = string(tree, event, "cat");
    bool shown = strcmp(category, "kernel") == 0 || strcmp(category, "collective") == 0 ||
                 strcmp(category, "wait") == 0;
    if (!shown || strcmp(string(tree, event, "ph"), "X") != 0 ||
        number(tree, event, "pid") != rank || isnan(number(tree, event, "ts")) ||
        isnan(number(tree, event, "dur"))) {
        return NAN;
    }
    return number(tree, child(tree, event, "args", WEFTI_JSON_OBJECT), "step");
}

/* The step of median duration; count 0: none. */
static weft_status_t median_step(const wefti_json_tree_t *tree, const wefti_json_node_t *events,
                                 double rank, traced_step_t *out_step, size_t *out_count)
{
    size_t count = 0;
    traced_step_t *steps = calloc((size_t)events->count + 1, sizeof *steps);
    if (steps == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory");
    }
    for (const wefti_json_node_t *at = wefti_json_first(tree, events); at != NULL;
         at = wefti_json_after(tree, at)) {
        double step = step_of(tree, at, rank), begin = number(tree, at, "ts");
        if (!isnan(step)) {
            steps[count++] = (traced_step_t){step, begin, begin + number(tree, at, "dur")};
        }
    }
    qsort(steps, count, sizeof *steps, by_step);
    size_t spans = count;
    count = 0;
    for (size_t i = 0; i < spans; i++) {
        traced_step_t *last = &steps[count > 0 ? count - 1 : 0];
        if (i == 0 || last->step != steps[i].step) {
            steps[count++] = steps[i];
            continue;
        }
        last->begin_us = steps[i].begin_us < last->begin_us ? steps[i].begin_us : last->begin_us;
        last->end_us = steps[i].end_us > last->end_us ? steps[i].end_us : last->end_us;
    }
    qsort(steps, count, sizeof *steps, by_duration);
    *out_count = count;
    if (count > 0) {
        *out_step = steps[count / 2];
    }
    free(steps);
    return WEFT_OK;
}

/* Spans of the median step of the lowest rank: [thread, category, name, begin us, us]. */
static weft_status_t add_trace(wefti_json_t *json, const wefti_json_tree_t *tree,
                               const wefti_json_node_t *events)
{
    traced_step_t step = {0};
    size_t count = 0, spans = 0;
    double rank = INFINITY;
    for (const wefti_json_node_t *at = wefti_json_first(tree, events); at != NULL;
         at = wefti_json_after(tree, at)) {
        double pid = number(tree, at, "pid");
        rank = pid < rank ? pid : rank;
    }
    WEFT_RETURN_IF_ERROR(median_step(tree, events, rank, &step, &count));
    if (count == 0) {
        return wefti_error(WEFT_ERR_FORMAT, "no step in this trace");
    }
    wefti_json_string(json, "kind", "trace");
    wefti_json_double(json, "rank", rank);
    wefti_json_double(json, "step", step.step);
    wefti_json_int(json, "steps", (int64_t)count);
    wefti_json_double(json, "step_us", step.end_us - step.begin_us);
    wefti_json_begin_array(json, "spans");
    for (const wefti_json_node_t *at = wefti_json_first(tree, events); at != NULL;
         at = wefti_json_after(tree, at)) {
        if (step_of(tree, at, rank) != step.step || spans++ >= MOST_SPANS) {
            continue;
        }
        wefti_json_begin_array(json, NULL);
        wefti_json_double(json, NULL, number(tree, at, "tid"));
        wefti_json_string(json, NULL, string(tree, at, "cat"));
        wefti_json_string(json, NULL, string(tree, at, "name"));
        wefti_json_double(json, NULL, number(tree, at, "ts") - step.begin_us);
        wefti_json_double(json, NULL, number(tree, at, "dur"));
        wefti_json_end_array(json);
    }
    wefti_json_end_array(json);
    return WEFT_OK;
}

static weft_status_t add_measured(wefti_json_t *json, const char *path)
{
    wefti_json_tree_t tree = {0};
    weft_status_t status = wefti_page_read_json(path, &tree, NULL);
    if (status < 0) {
        return status;
    }
    const wefti_json_node_t *events = child(&tree, tree.nodes, "traceEvents", WEFTI_JSON_ARRAY);
    wefti_json_begin_object(json, "measured");
    if (events != NULL) {
        status = add_trace(json, &tree, events);
    } else if (child(&tree, tree.nodes, "kernels", WEFTI_JSON_ARRAY) != NULL) {
        add_profile(json, &tree);
    } else {
        status = wefti_error(WEFT_ERR_FORMAT,
                             "neither a profile nor a trace: no kernels and no traceEvents");
    }
    wefti_json_end_object(json);
    wefti_json_tree_deinit(&tree);
    return status < 0 ? wefti_error_prefix(status, "%s", path) : WEFT_OK;
}

/* ---- other numbers of ranks ---- */

/* By number of ranks, the time and the algorithm of the buckets' operator at every size. */
static weft_status_t add_row(wefti_json_t *json, const wefti_costs_t *costs, weft_collective_t op,
                             uint32_t ranks)
{
    weft_algo_params_t params = {.struct_size = sizeof params,
                                 .op = op,
                                 .group_size = ranks,
                                 .in_place = true,
                                 .order = WEFT_ORDER_TREE};
    wefti_json_begin_object(json, NULL);
    wefti_json_int(json, "ranks", ranks);
    wefti_json_begin_array(json, "rows"); /* [bytes, ps, algorithm] */
    for (uint64_t bytes = LEAST_BYTES; bytes <= MOST_BYTES; bytes *= 4) {
        wefti_candidate_t list[WEFTI_MAX_CANDIDATES];
        uint32_t count = 0;
        uint64_t blocks = wefti_collective_is_vector(op) ? 1 : ranks;
        wefti_counts_t counts = {.elem_count = bytes / 4 / blocks, .elem_bytes = 4};
        WEFT_RETURN_IF_ERROR(wefti_cost_choose(costs, &params, &counts, NULL, list, &count));
        wefti_json_begin_array(json, NULL);
        wefti_json_int(json, NULL, (int64_t)bytes);
        wefti_json_double(json, NULL, round(list[0].predicted_ns * 1e3));
        wefti_json_string(json, NULL, list[0].algorithm->name);
        wefti_json_end_array(json);
    }
    wefti_json_end_array(json);
    wefti_json_end_object(json);
    return WEFT_OK;
}

static weft_status_t add_ranks(wefti_json_t *json, const weft_plan_t *plan, const char *path)
{
    static const uint32_t sizes[] = {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
    const char *fallback = getenv("WEFT_COSTS");
    weft_collective_t op = WEFT_COLLECTIVE_ALL_REDUCE;
    weft_status_t status = WEFT_OK;
    wefti_costs_t costs;
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        op = plan->collectives[i].op == WEFT_COLLECTIVE_REDUCE_SCATTER ? plan->collectives[i].op
                                                                       : op;
    }
    wefti_costs_default(&costs, NULL);
    path = path != NULL ? path : fallback != NULL && fallback[0] != '\0' ? fallback : NULL;
    if (path != NULL) {
        WEFT_TRY(status, wefti_costs_load(&costs, path, NULL), done);
    }
    wefti_json_begin_object(json, "ranks");
    wefti_json_string(json, "op", weft_collective_name(op));
    wefti_json_string(json, "costs", costs.name);
    wefti_json_begin_array(json, "table");
    bool own = plan->world_size < 2; /* is the plan's row there? */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (!own && plan->world_size < sizes[i]) {
            WEFT_TRY(status, add_row(json, &costs, op, plan->world_size), done);
        }
        own |= plan->world_size <= sizes[i];
        WEFT_TRY(status, add_row(json, &costs, op, sizes[i]), done);
    }
    wefti_json_end_array(json);
    wefti_json_end_object(json);
done:
    wefti_costs_deinit(&costs);
    return status;
}

weft_status_t wefti_explain_page(const weft_plan_t *plan, const char *measured, const char *costs,
                                 const char *path)
{
    const char *const scripts[] = {page_base_js, page_planner_js, page_explain_js};
    wefti_text_t data;
    wefti_json_t json;
    char *title = NULL;
    weft_status_t status;
    wefti_text_init(&data, NULL);
    wefti_text_add(&data, "{\"explain\": ");
    WEFT_TRY(status, wefti_plan_explain_json(plan, &data), done);
    wefti_text_add(&data, ", \"plan\": ");
    wefti_json_init(&json, &data, false);
    wefti_json_begin_object(&json, NULL);
    wefti_plan_explain_page(plan, &json);
    WEFT_TRY(status, add_ranks(&json, plan, costs), done);
    if (measured != NULL) {
        WEFT_TRY(status, add_measured(&json, measured), done);
    }
    wefti_json_end_object(&json);
    wefti_text_add(&data, "}\n");
    wefti_text_t name;
    wefti_text_init(&name, NULL);
    wefti_text_printf(&name, "%s: plan for %u ranks - weft explain",
                      plan->model_name[0] != '\0' ? plan->model_name : "plan", plan->world_size);
    title = wefti_text_take(&name);
    WEFT_TRY(status, title == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK, done);
    status = wefti_page_write(path, title, scripts, 3, &data);
done:
    free(title);
    wefti_text_deinit(&data);
    return status;
}
