/* SPDX-License-Identifier: Apache-2.0 */
/* The passes as a host compiler calls them, on views built by hand: what they answer, that it may
 * be applied, and that no view however wrong does any harm. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <weft/weft.h>

#include "fusion/fusion.h"
#include "tests/fusion/support_view.h"
#include "tests/support/support.h"

static const weft_bucket_piece_t piece = {500000, 512000}; /* 500 ns and 2 bytes a nanosecond */
static const weft_bucket_cost_t cost = {&piece, 1, NULL, 0};

#define FAILS(call, text)                                                                          \
    do {                                                                                           \
        assert_int_equal(call, WEFT_ERR_INVALID_ARGUMENT);                                         \
        if (strstr(weft_last_error(), text) == NULL) {                                             \
            fail_msg("message is: %s", weft_last_error());                                         \
        }                                                                                          \
    } while (0)

static uint32_t count_kind(const weft_edit_list_t *edits, weft_edit_kind_t kind)
{
    uint32_t count = 0;
    for (size_t i = 0; i < weft_edit_list_count(edits); i++) {
        count += weft_edit_list_get(edits, i)->kind == kind;
    }
    return count;
}

/* ---- what they answer ---- */

static void test_insert(void **state)
{
    static view_builder_t b;
    weft_edit_list_t *edits;
    (void)state;
    view_begin(&b);
    uint32_t param = view_value(&b, WEFT_DTYPE_F32, 64), none = UINT32_MAX;
    uint32_t grad = view_op(&b, "Compute", &none, 0, WEFT_DTYPE_F32, 64);
    uint32_t reduced = view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64);
    b.values[grad].grad_of = param;
    const weft_graph_view_t *view = view_end(&b);
    assert_int_equal(weft_pass_insert_collectives(view, NULL, &edits), WEFT_OK);
    assert_int_equal(weft_edit_list_count(edits), 1); /* the other one has its collective */
    const weft_edit_t *edit = weft_edit_list_get(edits, 0);
    assert_int_equal(edit->kind, WEFT_EDIT_KIND_INSERT_COLLECTIVE);
    assert_int_equal(edit->value, grad);
    assert_string_equal(edit->op_name, "AllReduce");
    assert_int_equal(edit->reduction, WEFT_REDUCTION_AVG);
    assert_int_equal(weft_edits_check(view, edits), WEFT_OK);
    assert_int_not_equal(reduced, grad);
    weft_edit_list_destroy(edits);
}

static void test_bucket_and_forecast(void **state)
{
    static view_builder_t b;
    uint64_t op_ns[VIEW_MAX] = {0}, ready_ns[VIEW_MAX];
    weft_bucket_params_t params = WEFT_BUCKET_PARAMS_INIT;
    weft_bucket_forecast_t forecast = WEFT_BUCKET_FORECAST_INIT;
    weft_edit_list_t *edits;
    (void)state;
    view_begin(&b);
    for (uint32_t i = 0; i < 10; i++) {
        view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64000);
        op_ns[2 * i] = 20000; /* sending takes longer than making */
    }
    const weft_graph_view_t *view = view_end(&b);
    assert_int_equal(weft_pass_ready_times(view, op_ns, ready_ns), WEFT_OK);
    assert_int_equal(ready_ns[0], 20000);
    assert_int_equal(ready_ns[18], 200000);
    params.cost = &cost;
    params.ready_ns = ready_ns;
    assert_int_equal(weft_pass_bucket(view, &params, &edits, &forecast), WEFT_OK);
    assert_int_equal(weft_edits_check(view, edits), WEFT_OK);
    uint32_t members = 0;
    for (size_t i = 0; i < weft_edit_list_count(edits); i++) {
        assert_int_equal(weft_edit_list_get(edits, i)->kind, WEFT_EDIT_KIND_FUSE);
        assert_non_null(weft_edit_list_get(edits, i)->text);
        members += weft_edit_list_get(edits, i)->member_count;
    }
    assert_int_equal(members, 10);
    assert_int_equal(forecast.bucket_count, weft_edit_list_count(edits));
    assert_int_equal(forecast.ready_ps, 200000000);
    assert_true(forecast.lower_bound_ps <= forecast.optimum_ps);
    assert_true(forecast.optimum_ps <= forecast.chosen_ps);
    assert_true(forecast.chosen_ps <= forecast.optimum_ps + forecast.optimum_ps / 1000 + 1);
    weft_edit_list_destroy(edits);
    /* A cap: pieces, too. */
    params.policy = "bytes:16K";
    assert_int_equal(weft_pass_bucket(view, &params, &edits, &forecast), WEFT_OK);
    assert_int_equal(count_kind(edits, WEFT_EDIT_KIND_SPLIT), 10);
    assert_int_equal(forecast.bucket_count, 40);
    assert_int_equal(weft_edits_check(view, edits), WEFT_OK);
    weft_edit_list_destroy(edits);
    /* Costs of the built-in table. */
    params.policy = NULL;
    params.cost = NULL;
    FAILS(weft_pass_bucket(view, &params, &edits, NULL),
          "world_size: must be at least 1 where cost is NULL");
    params.world_size = 4;
    assert_int_equal(weft_pass_bucket(view, &params, &edits, NULL), WEFT_OK);
    assert_true(weft_edit_list_count(edits) >= 1);
    weft_edit_list_destroy(edits);
    params.costs_path = "/nowhere/costs.json";
    assert_int_equal(weft_pass_bucket(view, &params, &edits, NULL), WEFT_ERR_NOT_FOUND);
    assert_null(edits);
}

static void test_algorithms(void **state)
{
    static view_builder_t b;
    static const uint32_t sizes[] = {8};
    weft_algorithms_params_t params = WEFT_ALGORITHMS_PARAMS_INIT;
    weft_edit_list_t *edits;
    (void)state;
    view_begin(&b);
    view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64);
    view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64 << 20);
    const weft_graph_view_t *view = view_end(&b);
    params.group_sizes = sizes;
    params.group_count = 1;
    assert_int_equal(weft_pass_algorithms(view, &params, &edits), WEFT_OK);
    assert_int_equal(weft_edits_check(view, edits), WEFT_OK);
    assert_int_equal(weft_edit_list_count(edits), 2);
    const weft_edit_t *small = weft_edit_list_get(edits, 0), *large = weft_edit_list_get(edits, 1);
    assert_int_equal(small->kind, WEFT_EDIT_KIND_ALGORITHM);
    assert_int_equal(small->op_a, 1);
    assert_int_equal(large->op_a, 3);
    /* Few steps for a few bytes; few bytes per rank for many. The in-order tree excludes rings. */
    assert_memory_equal(small->text, "one-shot", 8);
    assert_memory_equal(large->text, "mesh", 4);
    assert_null(strstr(large->text, "ring"));
    weft_edit_list_destroy(edits);
    params.order = WEFT_ORDER_ANY;
    assert_int_equal(weft_pass_algorithms(view, &params, &edits), WEFT_OK);
    assert_non_null(strstr(weft_edit_list_get(edits, 1)->text, "ring"));
    weft_edit_list_destroy(edits);
    b.ops[3].group = 1;
    FAILS(weft_pass_algorithms(view, &params, &edits), "group_sizes has no size for group 1");
    assert_null(edits);
}

/* Two chains whose collectives no value connects, and a reader of the first result. */
static void test_order_and_start_wait(void **state)
{
    static view_builder_t b;
    weft_edit_list_t *edits;
    (void)state;
    view_begin(&b);
    uint32_t none = UINT32_MAX;
    uint32_t x = view_op(&b, "Compute", &none, 0, WEFT_DTYPE_F32, 64); /* op 0 */
    uint32_t first = view_op(&b, "AllReduce", &x, 1, WEFT_DTYPE_F32, 64);
    uint32_t y = view_op(&b, "Compute", &x, 1, WEFT_DTYPE_F32, 64);
    view_op(&b, "AllReduce", &y, 1, WEFT_DTYPE_F32, 64);                  /* op 3 */
    uint32_t z = view_op(&b, "Compute", &first, 1, WEFT_DTYPE_F32, 64);   /* op 4 */
    uint32_t third = view_op(&b, "AllReduce", &z, 1, WEFT_DTYPE_F32, 64); /* op 5 */
    view_op(&b, "AllReduce", &third, 1, WEFT_DTYPE_F32, 64);              /* op 6 */
    const weft_graph_view_t *view = view_end(&b);
    assert_int_equal(weft_pass_order(view, NULL, &edits), WEFT_OK);
    assert_int_equal(weft_edits_check(view, edits), WEFT_OK);
    assert_int_equal(weft_edit_list_count(edits), 2); /* 1 to 3, 3 to 5; 6 reads what 5 makes */
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(weft_edit_list_get(edits, i)->kind, WEFT_EDIT_KIND_ORDER);
        assert_int_equal(weft_edit_list_get(edits, i)->op_a, 2 * i + 1);
        assert_int_equal(weft_edit_list_get(edits, i)->op_b, 2 * i + 3);
    }
    weft_edit_list_destroy(edits);
    assert_int_equal(weft_pass_start_wait(view, NULL, &edits), WEFT_OK);
    assert_int_equal(weft_edits_check(view, edits), WEFT_OK);
    assert_int_equal(weft_edit_list_count(edits), 4);
    const weft_edit_t *edit = weft_edit_list_get(edits, 0);
    assert_int_equal(edit->op_a, 1);
    assert_int_equal(edit->op_b, 0);
    assert_int_equal(edit->member_count, 1);
    assert_int_equal(edit->members[0], 4);
    edit = weft_edit_list_get(edits, 1);
    assert_int_equal(edit->op_a, 3);
    assert_int_equal(edit->op_b, 2);
    assert_int_equal(edit->member_count, 0); /* nobody reads it */
    weft_edit_list_destroy(edits);
}

/* What is ready first goes first, as in a plan. */
static void test_order_is_that_of_readiness(void **state)
{
    static view_builder_t b;
    weft_edit_list_t *edits;
    (void)state;
    view_begin(&b);
    uint32_t x = view_op(&b, "Compute", NULL, 0, WEFT_DTYPE_F32, 64); /* op 0 */
    uint32_t y = view_op(&b, "Compute", &x, 1, WEFT_DTYPE_F32, 64);
    view_op(&b, "AllReduce", &y, 1, WEFT_DTYPE_F32, 64); /* op 2 */
    uint32_t first = view_op(&b, "AllReduce", &x, 1, WEFT_DTYPE_F32, 64);
    view_op(&b, "AllGather", &first, 1, WEFT_DTYPE_F32, 64); /* op 4, ready with op 3 */
    const weft_graph_view_t *view = view_end(&b);
    assert_int_equal(weft_pass_order(view, NULL, &edits), WEFT_OK);
    assert_int_equal(weft_edits_check(view, edits), WEFT_OK);
    assert_int_equal(weft_edit_list_count(edits), 1); /* a value connects 3 and 4 */
    assert_int_equal(weft_edit_list_get(edits, 0)->op_a, 4);
    assert_int_equal(weft_edit_list_get(edits, 0)->op_b, 2);
    weft_edit_list_destroy(edits);
}

/* Two branches with a collective each: one hides behind the other. */
static void test_schedule(void **state)
{
    static view_builder_t b;
    uint64_t op_ns[VIEW_MAX];
    weft_schedule_params_t params = WEFT_SCHEDULE_PARAMS_INIT;
    weft_schedule_report_t report = WEFT_SCHEDULE_REPORT_INIT;
    weft_edit_list_t *edits = NULL;
    (void)state;
    view_begin(&b);
    for (uint32_t i = 0; i < VIEW_MAX; i++) {
        op_ns[i] = 100;
    }
    for (int branch = 0; branch < 2; branch++) {
        uint32_t value = view_op(&b, "Compute", NULL, 0, WEFT_DTYPE_F32, 64);
        value = view_op(&b, "AllReduce", &value, 1, WEFT_DTYPE_F32, 64);
        view_op(&b, "Compute", &value, 1, WEFT_DTYPE_F32, 64);
    }
    const weft_graph_view_t *view = view_end(&b);
    params.op_ns = op_ns;
    params.most_live_bytes = 1 << 20;
    assert_int_equal(weft_pass_schedule(view, &params, &edits, &report), WEFT_OK);
    assert_int_equal(report.given.finish_ps, 600000);
    assert_int_equal(report.chosen.finish_ps, 400000);
    assert_int_equal(report.chosen.in_flight, 2);
    assert_true(report.changed);
    assert_int_equal(count_kind(edits, WEFT_EDIT_KIND_ORDER), weft_edit_list_count(edits));
    assert_int_equal(weft_edits_check(view, edits), WEFT_OK);
    weft_edit_list_destroy(edits);
    FAILS(weft_pass_schedule(view, NULL, &edits, NULL), "params");
    assert_null(edits);
    params.op_ns = NULL;
    FAILS(weft_pass_schedule(view, &params, &edits, NULL), "op_ns");
    params.op_ns = op_ns;
    report.struct_size = 0;
    FAILS(weft_pass_schedule(view, &params, &edits, &report), "out_report");
    FAILS(weft_pass_schedule(view, &params, NULL, NULL), "out_edits");
}

static void test_predicted_times(void **state)
{
    weft_registry_t *registry = NULL;
    (void)state;
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    const weft_op_def_t *matmul = weft_registry_find_op(registry, "", "MatMul", 13);
    const weft_op_def_t *all_reduce = weft_registry_find_op(registry, "weft", "AllReduce", 1);
    assert_non_null(matmul);
    weft_tensor_desc_t inputs[2] = {{WEFT_DTYPE_F32, WEFT_LAYOUT_PLAIN, 2, {1000, 1000}, NULL},
                                    {WEFT_DTYPE_F32, WEFT_LAYOUT_PLAIN, 2, {1000, 1000}, NULL}};
    weft_tensor_desc_t output = inputs[0];
    weft_node_desc_t node = {.domain = "",
                             .op = "MatMul",
                             .version = 13,
                             .input_count = 2,
                             .inputs = inputs,
                             .output_count = 1,
                             .outputs = &output};
    assert_int_equal(weft_op_predict_ns(matmul, &node), 20000000); /* 2e9 at 100 GFLOP/s */
    assert_int_equal(weft_op_predict_ns(all_reduce, &node), 0);
    assert_int_equal(weft_op_predict_ns(NULL, NULL), 0);
    weft_registry_destroy(registry);
}

/* Kinds that a table of costs lacks are priced by the next one that it has, not by default rates. */
static void test_costs_of_a_former_version(void **state)
{
    static const char *const text =
        "{\"format\": 1, \"cores\": 1, \"kernels\": [\n"
        " {\"kind\": \"move\", \"threads\": 1, \"size\": 8, \"ns\": 1e6}%s]}";
    static const char *const norm =
        ",{\"kind\": \"norm\", \"threads\": 1, \"size\": 8, \"ns\": 2e6}";
    weft_registry_t *registry = NULL;
    (void)state;
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    const weft_op_def_t *def = weft_registry_find_op(registry, "", "LayerNormalization", 17);
    assert_non_null(def);
    weft_tensor_desc_t inputs[2] = {{WEFT_DTYPE_F32, WEFT_LAYOUT_PLAIN, 1, {1}, NULL},
                                    {WEFT_DTYPE_F32, WEFT_LAYOUT_PLAIN, 1, {1}, NULL}};
    weft_tensor_desc_t output = inputs[0];
    weft_node_desc_t node = {.domain = "",
                             .op = def->name,
                             .version = 17,
                             .input_count = 2,
                             .inputs = inputs,
                             .output_count = 1,
                             .outputs = &output};
    double found[2], flops, bytes;
    def->cost(&node, &flops, &bytes);
    for (int i = 0; i < 2; i++) {
        char table[256];
        wefti_costs_t costs;
        snprintf(table, sizeof table, text, i == 0 ? "" : norm);
        assert_int_equal(wefti_costs_decode(&costs, table, strlen(table), NULL), WEFT_OK);
        wefti_rates_t rates = wefti_rates_of(&costs, 1, 1, 0);
        found[i] = wefti_op_predict_ns(def, &node, &rates);
        wefti_costs_deinit(&costs);
    }
    assert_true(found[0] == (bytes > 8 ? bytes / 8 : 1) * 1e6 && found[1] == 2 * found[0]);
    weft_registry_destroy(registry);
}

/* ---- random graphs ---- */

/* Gradients, some behind others' results, of two types, with fences; weights and activations in
 * blocks. */
static const weft_graph_view_t *random_view(view_builder_t *b, uint64_t *state)
{
    uint32_t results[256], count = 0, n = 2 + test_draw(state, 40);
    view_begin(b);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t input = UINT32_MAX;
        if (count > 0 && test_draw(state, 3) == 0) {
            input = results[test_draw(state, count)];
        }
        if (test_draw(state, 15) == 0) {
            view_op(b, "Unknown", &input, input != UINT32_MAX, WEFT_DTYPE_F32, 64);
        }
        for (uint32_t blocks = test_draw(state, 3); blocks > 0; blocks--) {
            bool gathers = test_draw(state, 2) == 0;
            uint64_t block = 1 + test_draw(state, 60000), whole = 4 * block;
            uint32_t from = count > 0 && test_draw(state, 2) == 0
                                ? results[test_draw(state, count)]
                                : view_value(b, WEFT_DTYPE_F32, gathers ? block : whole);
            uint32_t to = view_op(b, gathers ? "AllGather" : "ReduceScatter", &from, 1,
                                  WEFT_DTYPE_F32, gathers ? whole : block);
            results[count++] = view_op(b, "Compute", &to, 1, WEFT_DTYPE_F32, 64);
        }
        results[count++] =
            view_gradient(b, input, test_draw(state, 4) == 0 ? WEFT_DTYPE_F16 : WEFT_DTYPE_F32,
                          1 + test_draw(state, 300000));
    }
    return view_end(b);
}

/* Of buckets of blocks: all inputs are ready before the first reader of a member. */
static void check_no_reader_waits(const weft_graph_view_t *view, const weft_edit_list_t *edits)
{
    for (size_t i = 0; i < weft_edit_list_count(edits); i++) {
        const weft_edit_t *edit = weft_edit_list_get(edits, i);
        uint32_t begin = 0, end = view->op_count; /* ids are positions */
        for (uint32_t k = 0; edit->kind == WEFT_EDIT_KIND_FUSE && k < edit->member_count; k++) {
            const weft_view_op_t *op = &view->ops[edit->members[k]];
            const weft_view_value_t *in = &view->values[view->op_inputs[op->first_input]];
            const weft_view_value_t *out = &view->values[view->op_outputs[op->first_output]];
            if (strcmp(op->def->name, "AllReduce") == 0) {
                break;
            }
            uint32_t from = in->producer == UINT32_MAX ? 0 : in->producer + 1;
            begin = from > begin ? from : begin;
            for (uint32_t u = 0; u < out->user_count; u++) {
                uint32_t user = view->users[out->first_user + u];
                end = user < end ? user : end;
            }
        }
        assert_true(begin <= end);
    }
}

/* Every gradient in exactly one bucket, and all of it may be applied. */
static void test_buckets_of_random_graphs(void **state)
{
    static const char *const policies[] = {"auto",       "auto:64K", "mgwfbp", "bytes:100K",
                                           "bytes:128K", "one",      "none"};
    static view_builder_t b;
    uint64_t seed = (uint64_t)time(NULL) | 1, random = seed;
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint32_t n = 0; n < 700; n++) {
        uint64_t ready_ns[VIEW_MAX], now = 0;
        uint32_t seen[VIEW_MAX] = {0}, gradients = 0;
        weft_bucket_params_t params = WEFT_BUCKET_PARAMS_INIT;
        weft_edit_list_t *edits;
        const weft_graph_view_t *view = random_view(&b, &random);
        for (uint32_t i = 0; i < view->op_count; i++) {
            ready_ns[i] = now += test_draw(&random, 100000);
        }
        params.policy = policies[n % 7];
        params.cost = &cost;
        params.ready_ns = ready_ns;
        assert_int_equal(weft_pass_bucket(view, &params, &edits, NULL), WEFT_OK);
        if (weft_edits_check(view, edits) != WEFT_OK) {
            fail_msg("policy %s: %s", params.policy, weft_last_error());
        }
        for (size_t i = 0; i < weft_edit_list_count(edits); i++) {
            const weft_edit_t *edit = weft_edit_list_get(edits, i);
            for (uint32_t k = 0; edit->kind == WEFT_EDIT_KIND_FUSE && k < edit->member_count; k++) {
                assert_int_equal(seen[edit->members[k]]++, 0);
                gradients += strcmp(view->ops[edit->members[k]].def->name, "AllReduce") == 0;
            }
        }
        for (uint32_t i = 0; i < view->op_count; i++) {
            gradients -= strcmp(view->ops[i].def->name, "AllReduce") == 0;
        }
        assert_int_equal(gradients, 0);
        check_no_reader_waits(view, edits);
        weft_edit_list_destroy(edits);
        assert_int_equal(weft_pass_order(view, NULL, &edits), WEFT_OK);
        assert_int_equal(weft_edits_check(view, edits), WEFT_OK);
        weft_edit_list_destroy(edits);
        assert_int_equal(weft_pass_start_wait(view, NULL, &edits), WEFT_OK);
        assert_int_equal(weft_edits_check(view, edits), WEFT_OK);
        weft_edit_list_destroy(edits);
    }
}

/* ---- edits that may not be applied ---- */

static weft_status_t check_edits(const weft_graph_view_t *view, const weft_edit_t *edits,
                                 size_t count)
{
    weft_edit_list_t *list = NULL;
    assert_int_equal(weft_edit_list_create(NULL, &list), WEFT_OK);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(weft_edit_list_add(list, &edits[i]), WEFT_OK);
    }
    weft_status_t status = weft_edits_check(view, list);
    weft_edit_list_destroy(list);
    return status;
}

/* a1 -> b1 and b2 -> a2: either fusion alone is fine, both together are not. */
static void test_fusions_that_close_a_cycle(void **state)
{
    static view_builder_t b;
    (void)state;
    view_begin(&b);
    uint32_t a1 = view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64); /* op 1 */
    view_gradient(&b, a1, WEFT_DTYPE_F32, 64);                       /* op 3: b1 */
    uint32_t b2 = view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64); /* op 5 */
    view_gradient(&b, b2, WEFT_DTYPE_F32, 64);                       /* op 7: a2 */
    const weft_graph_view_t *view = view_end(&b);
    const uint32_t as[] = {1, 7}, bs[] = {3, 5}, chain[] = {1, 3};
    weft_edit_t both[2] = {
        {.kind = WEFT_EDIT_KIND_FUSE, .members = as, .member_count = 2},
        {.kind = WEFT_EDIT_KIND_FUSE, .members = bs, .member_count = 2},
    };
    assert_int_equal(check_edits(view, &both[0], 1), WEFT_OK);
    assert_int_equal(check_edits(view, &both[1], 1), WEFT_OK);
    FAILS(check_edits(view, both, 2), "depend on itself");
    weft_edit_t alone = {.kind = WEFT_EDIT_KIND_FUSE, .members = chain, .member_count = 2};
    FAILS(check_edits(view, &alone, 1), "the fusion of");
    weft_edit_t orders[2] = {{.kind = WEFT_EDIT_KIND_ORDER, .op_a = 4, .op_b = 0},
                             {.kind = WEFT_EDIT_KIND_ORDER, .op_a = 3, .op_b = 4}};
    assert_int_equal(check_edits(view, &orders[0], 1), WEFT_OK);
    FAILS(check_edits(view, orders, 2), "depend on itself");
}

static void test_edits_that_do_not_fit(void **state)
{
    static view_builder_t b;
    (void)state;
    view_begin(&b);
    view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64);
    view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F16, 128);
    const weft_graph_view_t *view = view_end(&b);
    const uint32_t types[] = {1, 3}, compute[] = {0}, one[] = {1}, beyond[] = {9}, zero[] = {0};
    weft_edit_t twice[2] = {{.kind = WEFT_EDIT_KIND_FUSE, .members = one, .member_count = 1},
                            {.kind = WEFT_EDIT_KIND_FUSE, .members = one, .member_count = 1}};
    FAILS(check_edits(view, twice, 2), "edit 1 (fuse): 'op1' is fused twice");
    weft_edit_t edit = {.kind = WEFT_EDIT_KIND_FUSE, .members = types, .member_count = 2};
    FAILS(check_edits(view, &edit, 1), "has another element type");
    b.ops[3].reduction = WEFT_REDUCTION_MAX;
    FAILS(check_edits(view, &edit, 1), "has another reduction");
    b.ops[3].group = 3;
    FAILS(check_edits(view, &edit, 1), "belongs to another group");
    edit.members = compute;
    edit.member_count = 1;
    FAILS(check_edits(view, &edit, 1), "'op0' is not a collective");
    edit.members = beyond;
    FAILS(check_edits(view, &edit, 1), "op 9 does not exist");
    edit.member_count = 0;
    FAILS(check_edits(view, &edit, 1), "no members");
    edit = (weft_edit_t){.kind = WEFT_EDIT_KIND_SPLIT, .op_a = 1, .parts = 2};
    FAILS(check_edits(view, &edit, 1),
          "parts of 'op1' must be between 2 and 1, its number of 64-byte units: 2");
    edit.op_a = 3;
    assert_int_equal(check_edits(view, &edit, 1), WEFT_OK);
    edit = (weft_edit_t){.kind = WEFT_EDIT_KIND_INSERT_COLLECTIVE, .value = 1, .op_name = "Gemm"};
    FAILS(check_edits(view, &edit, 1), "'Gemm' is not a collective");
    edit =
        (weft_edit_t){.kind = WEFT_EDIT_KIND_INSERT_COLLECTIVE, .value = 0, .op_name = "AllReduce"};
    FAILS(check_edits(view, &edit, 1), "no op produces value 0");
    edit = (weft_edit_t){.kind = WEFT_EDIT_KIND_START_WAIT,
                         .op_a = 3,
                         .op_b = 2,
                         .members = zero,
                         .member_count = 1};
    FAILS(check_edits(view, &edit, 1), "has its wait before its start");
    edit = (weft_edit_t){.kind = WEFT_EDIT_KIND_ALGORITHM, .op_a = 2, .text = "ring"};
    FAILS(check_edits(view, &edit, 1), "'op2' is not a collective");
    FAILS(weft_edits_check(view, NULL), "edits is NULL");
}

/* ---- views that are wrong ---- */

static void test_wrong_views_are_named(void **state)
{
    static view_builder_t b;
    weft_edit_list_t *edits;
    (void)state;
    view_begin(&b);
    view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64);
    uint32_t reduced = view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64);
    weft_graph_view_t view = *view_end(&b);
    FAILS(weft_pass_order(NULL, NULL, &edits), "view is NULL");
    view.struct_size = 0;
    FAILS(weft_pass_order(&view, NULL, &edits), "view: invalid struct_size");
    view = b.view;
    view.ops = NULL;
    FAILS(weft_pass_order(&view, NULL, &edits), "ops is NULL");
    b.order[0] = 1;
    b.order[1] = 0;
    FAILS(weft_pass_order(&b.view, NULL, &edits), "op1 runs before op0");
    b.order[1] = 1;
    FAILS(weft_pass_order(&b.view, NULL, &edits), "is a duplicate");
    b.order[0] = 77;
    FAILS(weft_pass_order(&b.view, NULL, &edits), "does not exist");
    b.order[0] = 0;
    b.ops[2].present = 0;
    FAILS(weft_pass_order(&b.view, NULL, &edits), "was removed");
    b.ops[2].present = 1;
    b.ops[2].def = NULL;
    FAILS(weft_pass_order(&b.view, NULL, &edits), "missing definition");
    b.ops[2].def = b.ops[0].def;
    b.values[reduced].grad_of = 99;
    FAILS(weft_pass_order(&b.view, NULL, &edits), "does not exist");
    b.values[reduced].grad_of = 0;
    b.values[reduced].producer = 0;
    FAILS(weft_pass_order(&b.view, NULL, &edits), "has another producer");
    b.values[reduced].producer = 3;
    const uint32_t edge[] = {3, 0};
    view = b.view;
    view.edges = edge;
    view.edge_count = 1;
    FAILS(weft_pass_order(&view, NULL, &edits), "from op3 to op0, which runs first");
    assert_int_equal(weft_pass_order(&b.view, NULL, &edits), WEFT_OK);
    weft_edit_list_destroy(edits);
    FAILS(weft_pass_order(&b.view, NULL, NULL), "out_edits is NULL");
}

/* One number of a good view is changed; whatever comes out, nothing breaks. */
static void test_damaged_views(void **state)
{
    static view_builder_t b;
    const uint64_t seeds[] = {5386198563u /* block above its tensor */,
                              (uint64_t)time(NULL) * 3 | 1};
    uint64_t random = seeds[0];
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seeds[1]);
    for (uint32_t n = 0; n < 3200; n++) {
        random = n == 200 ? seeds[1] : random;
        static const uint32_t odd[] = {0, 1, 2, 3, 500, UINT32_MAX - 1, UINT32_MAX};
        weft_bucket_params_t params = WEFT_BUCKET_PARAMS_INIT;
        weft_edit_list_t *edits = NULL;
        const weft_graph_view_t *view = random_view(&b, &random);
        uint32_t value = odd[test_draw(&random, 7)];
        uint32_t op = test_draw(&random, view->op_count);
        uint32_t tensor = test_draw(&random, view->value_count);
        switch (test_draw(&random, 7)) {
        case 0:
            b.order[op] = value;
            break;
        case 1:
            b.values[tensor].producer = value;
            break;
        case 2:
            b.values[tensor].grad_of = value;
            break;
        case 3:
            b.op_inputs[test_draw(&random, b.input_count + 1)] = value;
            break;
        case 4:
            b.op_outputs[test_draw(&random, b.output_count)] = value;
            break;
        case 5:
            b.ops[op].present = 0;
            break;
        default:
            b.values[tensor].bytes = UINT64_MAX - value;
        }
        params.policy = test_draw(&random, 2) ? "bytes:100K" : "auto";
        params.cost = &cost;
        weft_status_t status = weft_pass_bucket(view, &params, &edits, NULL);
        if (status == WEFT_OK) {
            assert_int_equal(weft_edits_check(view, edits), WEFT_OK);
        } else {
            assert_null(edits);
            assert_int_equal(status, WEFT_ERR_INVALID_ARGUMENT);
        }
        weft_edit_list_destroy(edits);
        if (weft_pass_start_wait(view, NULL, &edits) == WEFT_OK) {
            weft_edit_list_destroy(edits);
        }
        static const uint64_t op_ns[VIEW_MAX];
        weft_schedule_params_t schedule = WEFT_SCHEDULE_PARAMS_INIT;
        schedule.op_ns = op_ns;
        schedule.in_flight = n % 3;
        if (weft_pass_schedule(view, &schedule, &edits, NULL) == WEFT_OK) {
            assert_int_equal(weft_edits_check(view, edits), WEFT_OK);
            weft_edit_list_destroy(edits);
        }
    }
}

/* ---- definitions for a host compiler ---- */

static int check_definition(const weft_op_def_t *def, void *user)
{
    const weft_registry_t *registry = user;
    bool communicates = (def->effects & WEFT_EFFECT_COMMUNICATES) != 0;
    assert_true(def->infer != NULL || def->rules != NULL);
    assert_non_null(def->cost);
    assert_true(communicates || def->ordering == WEFT_ORDERING_NONE);
    assert_int_equal(def->start != NULL, def->wait != NULL);
    if (def->start != NULL) { /* both halves are there, and both are no pairs themselves */
        const weft_op_def_t *start = weft_registry_find_op(registry, def->domain, def->start, 1);
        const weft_op_def_t *wait = weft_registry_find_op(registry, def->domain, def->wait, 1);
        assert_non_null(start);
        assert_non_null(wait);
        assert_null(start->start);
        assert_null(wait->start);
        assert_int_equal(start->inputs_max, def->inputs_max);
        assert_true(wait->outputs_max >= def->outputs_max);
        assert_true((start->effects & WEFT_EFFECT_COMMUNICATES) != 0);
        assert_int_equal(start->ordering, def->ordering);
    }
    if (strcmp(def->domain, "weft") == 0 && strcmp(def->name, "Send") == 0) {
        assert_int_equal(def->ordering, WEFT_ORDERING_PAIR);
    }
    if (strcmp(def->domain, "weft") == 0 && strcmp(def->name, "AllReduce") == 0) {
        assert_int_equal(def->ordering, WEFT_ORDERING_GROUP);
    }
    return 0;
}

static void test_definitions_say_what_a_host_needs(void **state)
{
    weft_registry_t *registry = NULL;
    (void)state;
    assert_int_equal(weft_registry_create(NULL, &registry), WEFT_OK);
    weft_op_registry_visit(registry, check_definition, registry);
    weft_registry_destroy(registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_insert),
        cmocka_unit_test(test_bucket_and_forecast),
        cmocka_unit_test(test_algorithms),
        cmocka_unit_test(test_order_and_start_wait),
        cmocka_unit_test(test_order_is_that_of_readiness),
        cmocka_unit_test(test_schedule),
        cmocka_unit_test(test_predicted_times),
        cmocka_unit_test(test_costs_of_a_former_version),
        cmocka_unit_test(test_buckets_of_random_graphs),
        cmocka_unit_test(test_fusions_that_close_a_cycle),
        cmocka_unit_test(test_edits_that_do_not_fit),
        cmocka_unit_test(test_wrong_views_are_named),
        cmocka_unit_test(test_damaged_views),
        cmocka_unit_test(test_definitions_say_what_a_host_needs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
