/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fusion/fusion.h"
#include "tests/fusion/support_view.h"
#include "tests/support/support.h"

/* Buckets as text: members by the number of their parameter's gradient in the order of creation, "0
 * 1|2", and "/3" behind one that is split into three pieces. */
static char *buckets_as_text(const weft_graph_view_t *view, const weft_edit_list_t *edits,
                             char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t e = 0; e < weft_edit_list_count(edits); e++) {
        const weft_edit_t *edit = weft_edit_list_get(edits, e);
        if (edit->kind == WEFT_EDIT_KIND_SPLIT) { /* of the bucket before it */
            assert_int_equal(weft_edit_list_get(edits, e - 1)->member_count, 1);
            assert_int_equal(weft_edit_list_get(edits, e - 1)->members[0], edit->op_a);
            used += (size_t)snprintf(text + used, size - used, "/%u", edit->parts);
            continue;
        }
        assert_int_equal(edit->kind, WEFT_EDIT_KIND_FUSE);
        for (uint32_t i = 0; i < edit->member_count; i++) {
            uint32_t number = 0;
            for (uint32_t o = 0; o < edit->members[i]; o++) {
                number += strcmp(view->ops[o].def->name, "AllReduce") == 0;
            }
            used += (size_t)snprintf(text + used, size - used, "%s%u",
                                     i == 0 ? (e == 0 ? "" : "|") : " ", number);
        }
    }
    return text;
}

/* A call of 500 ns and 2 bytes a nanosecond. */
static const wefti_bucket_piece_t all_reduce_piece = {500000, 512000};
static const wefti_bucket_cost_t all_reduce_cost = {&all_reduce_piece, 1, NULL, 0};

static weft_status_t run_policy(const weft_graph_view_t *view, const char *text,
                                const uint64_t *ready_ns, weft_edit_list_t **out_edits)
{
    wefti_arena_t arena;
    wefti_policy_t policy;
    weft_status_t status;
    wefti_arena_init(&arena, NULL, 0);
    assert_int_equal(wefti_policy_parse(text, &arena, &policy), WEFT_OK);
    wefti_bucket_params_t params = {
        .policy = &policy, .ready_ns = ready_ns, .cost = &all_reduce_cost};
    status = wefti_pass_bucket(view, &params, out_edits, NULL);
    wefti_arena_deinit(&arena);
    return status;
}

/* Six gradients of 640, 64, 1280, 64, 2560 and 64 bytes, made one after the other. */
static const weft_graph_view_t *six_gradients(view_builder_t *b, uint64_t *ready_ns)
{
    static const uint64_t bytes[] = {640, 64, 1280, 64, 2560, 64};
    view_begin(b);
    for (uint32_t i = 0; i < 6; i++) {
        view_gradient(b, UINT32_MAX, WEFT_DTYPE_F32, bytes[i]);
        ready_ns[b->op_count - 2] = ready_ns[b->op_count - 1] = (i + 1) * 1000;
    }
    return view_end(b);
}

static void test_bucket_follows_the_policy(void **state)
{
    static const struct {
        const char *policy, *buckets, *first_reason, *last_reason;
    } rows[] = {
        {"one", "0 1 2 3 4 5", "one bucket", "one bucket"},
        {"none", "0|1|2|3|4|5", "one bucket per gradient", "last gradient"},
        {"bytes:25M", "0 1 2 3 4 5", "last gradient", "last gradient"},
        {"bytes:704", "0 1|2/2|3|4/4|5", "v6 would grow it to 1.9 KiB, above the cap of 704 B",
         "last gradient"},
        {"bytes:2048", "0 1 2 3|4/2|5", "above the cap", "last gradient"},
        {"bytes:2559", "0 1 2 3|4/2|5", "above the cap", "last gradient"},
        {"bytes:2560", "0 1 2 3|4|5", "above the cap", "last gradient"},
        {"bytes:100", "0/10|1|2/20|3|4/40|5", "v0 alone has 640 B, above the cap of 100 B",
         "last gradient"},
        {"bytes:25M,time:2us", "0 1 2|3 4 5", "ms after the first", "last gradient"},
        {"bytes:25M,time:1500ns", "0 1|2 3|4 5", "ms after the first", "last gradient"},
        {"index:0,4", "0|1 2 3 4|5", "position 0", "last gradient"},
        {"index:4", "0 1 2 3 4|5", "position 4", "last gradient"},
        {"percent:60,40", "0 1 2 3|4 5", "v9 ends nearest to 60 % of the bytes", "last gradient"},
        {"percent:90,5,5", "0 1 2 3|4|5", "v9 leaves a gradient for each later bucket, at 90 %",
         "last gradient"},
        {"percent:10,10,10,70", "0|1|2|3 4 5", "v0 ends nearest to 10 %", "last gradient"},
        {"percent:1,99", "0|1 2 3 4 5", "v0 is the only gradient, though it exceeds 1 %",
         "last gradient"},
        {"percent:100", "0 1 2 3 4 5", "last gradient", "last gradient"},
        /* Ready at 1 to 6 us, and 4 must go when it is there, at 5 us: 3 only makes it alone, and 0
         * and 1 may share because nothing is late by that. */
        {"auto", "0 1|2|3|4|5", "planned: ready at 2.0 us, sent from 2.0 to 2.9 us",
         "planned: ready at 6.0 us, sent from 6.8 to 7.3 us"},
        {"auto:1280", "0 1|2|3|4/2|5", "planned: ready at 2.0 us", "planned: ready at 6.0 us"},
        /* Nothing is ready within 0.5 us of the time at which a bucket could start. */
        {"mgwfbp", "0|1|2|3|4|5", "planned: ready at 1.0 us, sent from 1.0 to 1.8 us", "planned"},
    };
    static view_builder_t b;
    uint64_t ready_ns[VIEW_MAX];
    const weft_graph_view_t *view = six_gradients(&b, ready_ns);
    char text[256];
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        weft_edit_list_t *edits;
        size_t count;
        assert_int_equal(run_policy(view, rows[i].policy, ready_ns, &edits), WEFT_OK);
        count = weft_edit_list_count(edits);
        if (strcmp(buckets_as_text(view, edits, text, sizeof(text)), rows[i].buckets) != 0) {
            fail_msg("%s: %s, expected %s", rows[i].policy, text, rows[i].buckets);
        }
        if (strstr(weft_edit_list_get(edits, 0)->text, rows[i].first_reason) == NULL ||
            strstr(weft_edit_list_get(edits, count - 1)->text, rows[i].last_reason) == NULL) {
            fail_msg("%s: first \"%s\", last \"%s\"", rows[i].policy,
                     weft_edit_list_get(edits, 0)->text,
                     weft_edit_list_get(edits, count - 1)->text);
        }
        weft_edit_list_destroy(edits);
    }
}

/* Forecasts of what was made, next to other policies over the same gradients. */
static void test_bucket_forecasts(void **state)
{
    static const char *const policies[] = {"auto",          "one",       "none",   "bytes:704",
                                           "percent:60,40", "auto:1280", "index:2"};
    static view_builder_t b;
    uint64_t ready_ns[VIEW_MAX];
    const weft_graph_view_t *view = six_gradients(&b, ready_ns);
    (void)state;
    for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
        wefti_arena_t arena;
        wefti_policy_t policy;
        weft_edit_list_t *edits;
        wefti_plan_forecast_t forecast;
        wefti_arena_init(&arena, NULL, 0);
        assert_int_equal(wefti_policy_parse(policies[i], &arena, &policy), WEFT_OK);
        wefti_bucket_params_t params = {.policy = &policy,
                                        .ready_ns = ready_ns,
                                        .cost = &all_reduce_cost,
                                        .forecast_arena = &arena};
        assert_int_equal(wefti_pass_bucket(view, &params, &edits, &forecast), WEFT_OK);
        assert_int_equal(forecast.ready_ps, 6000000);
        assert_true(forecast.lower_bound_ps <= forecast.optimum_ps);
        assert_true(forecast.optimum_ps <= forecast.chosen_ps);
        assert_int_equal(forecast.row_count, 7);
        for (uint32_t r = 0; r < forecast.row_count; r++) {
            const wefti_plan_forecast_row_t *row = &forecast.rows[r];
            assert_true(row->finish_ps >= forecast.optimum_ps);
            if (strcmp(row->policy, policies[i]) == 0) { /* made as forecast */
                assert_int_equal(row->finish_ps, forecast.chosen_ps);
                assert_int_equal(row->bucket_count, forecast.chosen_count);
            }
        }
        /* 4,672 bytes from 6 us on, in one bucket. */
        if (strcmp(policies[i], "one") == 0) {
            assert_int_equal(forecast.chosen_ps, 6000000 + 500000 + 4672 * 500);
        }
        /* 0 1|2/2|3|4/4|5 */
        if (strcmp(policies[i], "bytes:704") == 0) {
            assert_int_equal(forecast.chosen_count, 9);
        }
        weft_edit_list_destroy(edits);
        wefti_arena_deinit(&arena);
    }
}

/* Types that alternate cannot share: every gradient is its own bucket, and the planner says so. */
static void test_bucket_plans_only_what_may_share(void **state)
{
    static view_builder_t b;
    uint64_t ready_ns[VIEW_MAX] = {0};
    weft_edit_list_t *edits;
    char text[64];
    (void)state;
    view_begin(&b);
    view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64);
    view_gradient(&b, UINT32_MAX, WEFT_DTYPE_BF16, 64);
    view_gradient(&b, UINT32_MAX, WEFT_DTYPE_BF16, 64);
    view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64);
    const weft_graph_view_t *view = view_end(&b);
    assert_int_equal(run_policy(view, "auto", ready_ns, &edits), WEFT_OK);
    assert_string_equal(buckets_as_text(view, edits, text, sizeof(text)), "0|1 2|3");
    weft_edit_list_destroy(edits);
}

static void test_bucket_refuses_positions_that_do_not_exist(void **state)
{
    static view_builder_t b;
    uint64_t ready_ns[VIEW_MAX];
    const weft_graph_view_t *view = six_gradients(&b, ready_ns);
    weft_edit_list_t *edits;
    (void)state;
    assert_int_equal(run_policy(view, "index:0,6", ready_ns, &edits), WEFT_ERR_INVALID_ARGUMENT);
    assert_null(edits);
    assert_non_null(strstr(weft_last_error(), "position 6"));
    assert_int_equal(run_policy(view, "index:0,5", ready_ns, &edits), WEFT_OK);
    assert_int_equal(weft_edit_list_count(edits), 2); /* the final bucket's end, named or not */
    weft_edit_list_destroy(edits);
    edits = NULL;
    assert_int_equal(run_policy(view, "percent:10,10,10,10,10,10,40", ready_ns, &edits),
                     WEFT_ERR_INVALID_ARGUMENT);
    assert_null(edits);
    assert_non_null(strstr(weft_last_error(), "7 shares"));
}

static void test_bucket_of_a_graph_without_gradients_is_empty(void **state)
{
    static const char *const policies[] = {"one", "none", "bytes:64", "index:3", "percent:50,50"};
    static view_builder_t b;
    (void)state;
    view_begin(&b);
    for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
        weft_edit_list_t *edits;
        assert_int_equal(run_policy(view_end(&b), policies[i], NULL, &edits), WEFT_OK);
        assert_int_equal(weft_edit_list_count(edits), 0);
        weft_edit_list_destroy(edits);
    }
}

static void expect(view_builder_t *b, const char *policy, const char *buckets, const char *reason)
{
    char text[256];
    weft_edit_list_t *edits;
    const weft_graph_view_t *view = view_end(b);
    assert_int_equal(run_policy(view, policy, NULL, &edits), WEFT_OK);
    assert_string_equal(buckets_as_text(view, edits, text, sizeof(text)), buckets);
    if (strstr(weft_edit_list_get(edits, 0)->text, reason) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", weft_edit_list_get(edits, 0)->text, reason);
    }
    weft_edit_list_destroy(edits);
}

static void test_bucket_skips_a_dependent_gradient(void **state)
{
    static view_builder_t b;
    uint32_t reduced;
    (void)state;
    view_begin(&b);
    reduced = view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64);
    view_gradient(&b, reduced, WEFT_DTYPE_F32, 64); /* reads the first one's result */
    view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64);
    expect(&b, "one", "0 2|1", "depends on a member");
    expect(&b, "bytes:1M", "0 2|1", "depends on a member");
}

/* What only an order edge puts behind a gradient's collective depends on it too. */
static void test_bucket_heeds_order_edges(void **state)
{
    static view_builder_t b;
    static uint32_t edges[2];
    weft_graph_view_t *view = &b.view;
    (void)state;
    view_begin(&b);
    for (int i = 0; i < 3; i++) {
        view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64);
    }
    view_end(&b);
    edges[0] = b.op_count / 3 - 1; /* the first all-reduce, before what makes the second gradient */
    edges[1] = b.op_count / 3;
    view->edges = edges;
    view->edge_count = 1;
    wefti_bucket_params_t params = {.policy = &(wefti_policy_t){.kind = WEFTI_POLICY_ONE}};
    weft_edit_list_t *edits = NULL;
    assert_int_equal(wefti_pass_bucket(view, &params, &edits, NULL), WEFT_OK);
    assert_int_equal(weft_edit_list_count(edits), 2);
    assert_int_equal(weft_edit_list_get(edits, 0)->member_count, 2);
    assert_non_null(strstr(weft_edit_list_get(edits, 0)->text, "depends on a member"));
    weft_edit_list_destroy(edits);
    edges[1] = 2 * b.op_count / 3; /* the third now */
    edges[0] = 0;                  /* what makes the first gradient: nothing depends */
    assert_int_equal(wefti_pass_bucket(view, &params, &edits, NULL), WEFT_OK);
    assert_int_equal(weft_edit_list_count(edits), 1);
    weft_edit_list_destroy(edits);
    edges[1] = b.op_count;
    assert_int_equal(wefti_pass_bucket(view, &params, &edits, NULL), WEFT_ERR_INVALID_ARGUMENT);
}

/* a1 -> b1 and b2 -> a2 of two types: each pair alone is independent, both fused would close a
 * cycle. */
static void test_bucket_never_closes_a_cycle_over_two_buckets(void **state)
{
    static view_builder_t b;
    uint32_t a1, b2;
    (void)state;
    view_begin(&b);
    a1 = view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64);
    b2 = view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F64, 64);
    view_gradient(&b, a1, WEFT_DTYPE_F64, 64);
    view_gradient(&b, b2, WEFT_DTYPE_F32, 64);
    expect(&b, "one", "0 3|1|2", "has another element type");
}

static void test_bucket_keeps_kinds_and_fences_apart(void **state)
{
    static view_builder_t b;
    (void)state;
    view_begin(&b);
    for (uint32_t i = 0; i < 4; i++) {
        view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64);
    }
    b.ops[3].group = 1;
    expect(&b, "one", "0 2 3|1", "another group");
    b.ops[3].group = 0;
    b.ops[5].reduction = WEFT_REDUCTION_SUM;
    expect(&b, "one", "0 1 3|2", "another kind");
    view_begin(&b);
    view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64);
    view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64);
    view_op(&b, "Unknown", NULL, 0, WEFT_DTYPE_F32, 64);
    view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64);
    expect(&b, "one", "0 1|2", "unknown effect");
    expect(&b, "bytes:25M", "0 1|2", "unknown effect");
}

static void random_graph(view_builder_t *b, uint64_t *random)
{
    uint32_t steps = 5 + test_draw(random, 40), fences = test_draw(random, 3);
    bool dependent = test_draw(random, 2) == 0;
    view_begin(b);
    view_value(b, WEFT_DTYPE_F32, 64);
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t inputs[3], count = test_draw(random, 4);
        for (uint32_t j = 0; j < count; j++) {
            do {
                inputs[j] = test_draw(random, b->value_count);
            } while (!dependent && b->values[inputs[j]].grad_of != UINT32_MAX);
        }
        if (test_draw(random, 3) != 0) {
            view_gradient(b, count > 0 ? inputs[0] : UINT32_MAX,
                          test_draw(random, 4) == 0 ? WEFT_DTYPE_F64 : WEFT_DTYPE_F32,
                          1 + test_draw(random, 5000));
            b->ops[b->op_count - 1].group = test_draw(random, 5) == 0;
        } else if (test_draw(random, 10) < fences) {
            view_op(b, "Unknown", inputs, count, WEFT_DTYPE_F32, 64);
        } else {
            view_op(b, "Compute", inputs, count, WEFT_DTYPE_F32, 64);
        }
    }
    view_end(b);
}

/* Kahn's algorithm over the graph in which every bucket is one node. */
static bool has_cycle(const weft_graph_view_t *view, const uint32_t *bucket_of, uint32_t node_count)
{
    uint32_t done_count = 0;
    bool done[VIEW_MAX] = {false}, progress = true;
    while (progress) {
        progress = false;
        for (uint32_t n = 0; n < node_count; n++) {
            bool ready = !done[n];
            for (uint32_t o = 0; ready && o < view->op_count; o++) {
                for (uint32_t j = 0; bucket_of[o] == n && j < view->ops[o].input_count; j++) {
                    uint32_t producer =
                        view->values[view->op_inputs[view->ops[o].first_input + j]].producer;
                    ready &= producer == UINT32_MAX || done[bucket_of[producer]];
                }
            }
            if (ready) {
                done[n] = progress = true;
                done_count++;
            }
        }
    }
    return done_count != node_count;
}

/* Only what is larger than the cap is split, into the fewest pieces, none of them above the cap. */
static void check_pieces(const weft_edit_t *fusion, const weft_edit_t *split, uint64_t bytes,
                         uint64_t cap_bytes)
{
    uint64_t units = bytes / 64, before = 0;
    assert_int_equal(fusion->member_count, 1);
    assert_int_equal(split->op_a, fusion->members[0]);
    assert_true(bytes > cap_bytes && split->parts >= 2);
    assert_non_null(strstr(split->text, "above the cap"));
    for (uint32_t i = 1; i <= split->parts; i++) {
        uint64_t end = units * i / split->parts;
        assert_true(end > before && (end - before) * 64 <= cap_bytes);
        before = end;
    }
    assert_int_equal(before, units);
    assert_true((split->parts - 1) * (cap_bytes / 64) < units);
}

static void check_buckets(const view_builder_t *b, const weft_edit_list_t *edits,
                          uint64_t cap_bytes)
{
    const weft_graph_view_t *view = &b->view;
    uint32_t bucket_of[VIEW_MAX], nodes = 0, fence[VIEW_MAX], fences = 0;
    memset(bucket_of, 0xff, sizeof(bucket_of));
    for (uint32_t o = 0; o < view->op_count; o++) {
        fences += (view->ops[o].effects & WEFT_EFFECT_UNKNOWN) != 0;
        fence[o] = fences;
    }
    for (size_t e = 0; e < weft_edit_list_count(edits); e++) {
        const weft_edit_t *edit = weft_edit_list_get(edits, e),
                          *split = weft_edit_list_get(edits, e + 1);
        uint64_t bytes = 0;
        if (edit->kind == WEFT_EDIT_KIND_SPLIT) {
            continue;
        }
        assert_true(edit->member_count > 0 && strlen(edit->text) > 8);
        for (uint32_t i = 0; i < edit->member_count; i++) {
            const weft_view_op_t *op = &view->ops[edit->members[i]],
                                 *first = &view->ops[edit->members[0]];
            const weft_view_value_t *value = &view->values[view->op_inputs[op->first_input]];
            assert_int_equal(bucket_of[edit->members[i]], UINT32_MAX); /* in one bucket only */
            bucket_of[edit->members[i]] = nodes;
            bytes += (value->bytes + 63) / 64 * 64;
            assert_ptr_equal(op->def, first->def);
            assert_int_equal(op->group, first->group);
            assert_int_equal(value->dtype, view->values[view->op_inputs[first->first_input]].dtype);
            assert_int_equal(fence[edit->members[i]], fence[edit->members[0]]);
            assert_true(i == 0 || edit->members[i] > edit->members[i - 1]); /* readiness order */
        }
        nodes++;
        if (split != NULL && split->kind == WEFT_EDIT_KIND_SPLIT) {
            check_pieces(edit, split, bytes, cap_bytes);
        } else {
            assert_true(bytes <= cap_bytes);
        }
    }
    for (uint32_t o = 0; o < view->op_count; o++) {
        bool candidate = strcmp(view->ops[o].def->name, "AllReduce") == 0;
        assert_int_equal(candidate, bucket_of[o] != UINT32_MAX);
        bucket_of[o] = candidate ? bucket_of[o] : nodes++;
    }
    assert_false(has_cycle(view, bucket_of, nodes));
}

static uint32_t count_gradients(const view_builder_t *b)
{
    uint32_t count = 0;
    for (uint32_t v = 0; v < b->value_count; v++) {
        count += b->values[v].grad_of != UINT32_MAX;
    }
    return count;
}

static void test_bucket_rules_hold_on_random_graphs(void **state)
{
    static view_builder_t b;
    uint64_t seed = (uint64_t)time(NULL) | 1, random = seed;
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 400; round++) {
        char policy[32], text[2][2048];
        uint64_t cap = UINT64_MAX, ready_ns[VIEW_MAX];
        weft_edit_list_t *edits[2];
        random_graph(&b, &random);
        for (uint32_t i = 0; i < VIEW_MAX; i++) {
            ready_ns[i] = i * 500;
        }
        switch (test_draw(&random, 5)) {
        case 0:
            snprintf(policy, sizeof(policy), "one");
            break;
        case 1:
            snprintf(policy, sizeof(policy), "none");
            break;
        case 2:
            /* A single gradient has no position to end a bucket at but the last. */
            snprintf(policy, sizeof(policy), "%s", count_gradients(&b) > 1 ? "index:0" : "one");
            break;
        case 3:
            cap = 64 + test_draw(&random, 9000);
            snprintf(policy, sizeof(policy), "bytes:%u,time:%uus", (unsigned)cap,
                     1 + test_draw(&random, 20));
            break;
        default:
            cap = 64 + test_draw(&random, 9000);
            snprintf(policy, sizeof(policy), "bytes:%u", (unsigned)cap);
        }
        for (int twice = 0; twice < 2; twice++) {
            if (run_policy(&b.view, policy, ready_ns, &edits[twice]) < 0) {
                fail_msg("%s: %s", policy, weft_last_error());
            }
            buckets_as_text(&b.view, edits[twice], text[twice], sizeof(text[0]));
        }
        assert_string_equal(text[0], text[1]);
        check_buckets(&b, edits[0], cap);
        weft_edit_list_destroy(edits[0]);
        weft_edit_list_destroy(edits[1]);
    }
}

static void test_insert_puts_an_average_on_every_local_gradient(void **state)
{
    static view_builder_t b;
    weft_edit_list_t *edits;
    uint32_t param, grads[2];
    (void)state;
    view_begin(&b);
    view_gradient(&b, UINT32_MAX, WEFT_DTYPE_F32, 64); /* reduced already: left alone */
    for (uint32_t i = 0; i < 2; i++) {
        param = view_value(&b, WEFT_DTYPE_F32, 64);
        grads[i] = view_op(&b, "Compute", NULL, 0, WEFT_DTYPE_F32, 64);
        b.values[grads[i]].grad_of = param;
    }
    assert_int_equal(wefti_pass_insert_collectives(view_end(&b), 0, NULL, &edits), WEFT_OK);
    assert_int_equal(weft_edit_list_count(edits), 2);
    for (uint32_t i = 0; i < 2; i++) {
        const weft_edit_t *edit = weft_edit_list_get(edits, i);
        assert_int_equal(edit->kind, WEFT_EDIT_KIND_INSERT_COLLECTIVE);
        assert_int_equal(edit->value, grads[i]);
        assert_int_equal(edit->reduction, WEFT_REDUCTION_AVG);
        assert_string_equal(edit->op_name, "AllReduce");
    }
    weft_edit_list_destroy(edits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bucket_follows_the_policy),
        cmocka_unit_test(test_bucket_forecasts),
        cmocka_unit_test(test_bucket_plans_only_what_may_share),
        cmocka_unit_test(test_bucket_refuses_positions_that_do_not_exist),
        cmocka_unit_test(test_bucket_of_a_graph_without_gradients_is_empty),
        cmocka_unit_test(test_bucket_skips_a_dependent_gradient),
        cmocka_unit_test(test_bucket_heeds_order_edges),
        cmocka_unit_test(test_bucket_never_closes_a_cycle_over_two_buckets),
        cmocka_unit_test(test_bucket_keeps_kinds_and_fences_apart),
        cmocka_unit_test(test_bucket_rules_hold_on_random_graphs),
        cmocka_unit_test(test_insert_puts_an_average_on_every_local_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
