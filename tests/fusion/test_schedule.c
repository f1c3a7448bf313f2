/* SPDX-License-Identifier: Apache-2.0 */
/* List scheduling against a naive clock, all orders of small graphs, and its own bounds. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fusion/passes/schedule.h"
#include "tests/fusion/support_view.h"
#include "tests/support/support.h"

#define NONE UINT32_MAX

typedef struct fixture {
    view_builder_t b;
    uint64_t op_ps[VIEW_MAX];
    uint8_t kept[VIEW_MAX], to_end[VIEW_MAX];
    uint32_t edges[8 * VIEW_MAX];
    wefti_schedule_params_t params;
} fixture_t;

static fixture_t *fixture(void)
{
    static fixture_t f;
    memset(&f, 0, sizeof f);
    view_begin(&f.b);
    f.params = (wefti_schedule_params_t){.op_ps = f.op_ps, .kept = f.kept, .to_end = f.to_end};
    return &f;
}

/* Adds an op that takes ps and makes bytes; inputs end with NONE. */
static uint32_t op(fixture_t *f, const char *def, uint64_t ps, uint64_t bytes, uint32_t a,
                   uint32_t b)
{
    uint32_t inputs[2] = {a, b};
    f->op_ps[f->b.op_count] = ps;
    return view_op(&f->b, def, inputs, (a != NONE) + (b != NONE), WEFT_DTYPE_F32, bytes);
}

static bool communicates(const weft_graph_view_t *view, uint32_t id)
{
    return (view->ops[id].effects & WEFT_EFFECT_COMMUNICATES) != 0;
}

static bool comes_before(const weft_graph_view_t *view, uint32_t before, uint32_t after)
{
    for (uint32_t i = 0; i < view->ops[after].input_count; i++) {
        uint32_t value = view->op_inputs[view->ops[after].first_input + i];
        if (view->values[value].producer == before) {
            return true;
        }
    }
    for (uint32_t i = 0; i < view->edge_count; i++) {
        if (view->edges[2 * i] == before && view->edges[2 * i + 1] == after) {
            return true;
        }
    }
    bool fence =
        ((view->ops[before].effects | view->ops[after].effects) & WEFT_EFFECT_UNKNOWN) != 0;
    return fence && before < after; /* ids are in the given order */
}

/* What the order of the ops that compute comes to, from definitions alone. */
typedef struct naive {
    uint64_t finish_ps, peak_bytes;
    uint32_t in_flight;
} naive_t;

typedef struct run {
    const fixture_t *f;
    const weft_graph_view_t *view;
    bool placed[VIEW_MAX], over[VIEW_MAX];
    uint64_t done[VIEW_MAX], compute, channel;
    uint32_t issued[VIEW_MAX], issued_count;
    naive_t cost;
} run_t;

static bool may_start(const run_t *r, uint32_t id)
{
    for (uint32_t i = 0; i < r->view->op_count; i++) {
        if (i != id && !r->placed[i] && comes_before(r->view, i, id)) {
            return false;
        }
    }
    return true;
}

static void measure(run_t *r)
{
    uint64_t bytes = 0;
    uint32_t in_flight = 0;
    for (uint32_t i = 0; i < r->view->op_count; i++) {
        bool needed = communicates(r->view, i) && !r->over[i];
        uint32_t value = r->view->op_outputs[r->view->ops[i].first_output];
        if (!r->placed[i]) {
            continue;
        }
        in_flight += needed;
        for (uint32_t u = 0; u < r->view->values[value].user_count; u++) {
            uint32_t user = r->view->users[r->view->values[value].first_user + u];
            needed |= !r->placed[user] || (communicates(r->view, user) && !r->over[user]);
        }
        bytes += needed && !r->f->kept[value] ? r->view->values[value].bytes : 0;
    }
    r->cost.peak_bytes = bytes > r->cost.peak_bytes ? bytes : r->cost.peak_bytes;
    r->cost.in_flight = in_flight > r->cost.in_flight ? in_flight : r->cost.in_flight;
}

static bool has_edge(const weft_graph_view_t *view, uint32_t before, uint32_t after)
{
    for (uint32_t i = 0; i < view->edge_count; i++) {
        if (view->edges[2 * i] == before && view->edges[2 * i + 1] == after) {
            return true;
        }
    }
    return false;
}

/* Compute waits for those of the collectives issued that come before id, and all before them.
 * Before it issues a collective, only for those that an edge names. */
static void wait_for(run_t *r, uint32_t id)
{
    uint32_t last = 0;
    for (uint32_t k = 0; k < r->issued_count; k++) {
        bool waits = communicates(r->view, id) ? has_edge(r->view, r->issued[k], id)
                                               : comes_before(r->view, r->issued[k], id);
        last = waits ? k + 1 : last;
    }
    for (uint32_t k = 0; k < last; k++) {
        r->compute = r->done[r->issued[k]] > r->compute ? r->done[r->issued[k]] : r->compute;
        r->over[r->issued[k]] = true;
    }
}

static void issue(run_t *r)
{
    for (uint32_t i = 0; i < r->view->op_count; i++) {
        if (communicates(r->view, i) && !r->placed[i] && may_start(r, i)) {
            wait_for(r, i);
            uint64_t begin = r->compute > r->channel ? r->compute : r->channel;
            r->channel = r->done[i] = begin + r->f->op_ps[i];
            r->placed[i] = true;
            r->issued[r->issued_count++] = i;
            measure(r);
        }
    }
}

static naive_t run_naively(const fixture_t *f, const weft_graph_view_t *view, const uint32_t *order,
                           uint32_t count)
{
    static run_t r;
    memset(&r, 0, sizeof r);
    r.f = f;
    r.view = view;
    issue(&r);
    for (uint32_t i = 0; i < count; i++) {
        wait_for(&r, order[i]);
        assert_true(may_start(&r, order[i]));
        r.compute += f->op_ps[order[i]];
        /* While it runs, what it reads and what it makes is alive. */
        uint32_t value = view->op_outputs[view->ops[order[i]].first_output];
        naive_t before = r.cost;
        r.cost.peak_bytes = 0;
        measure(&r);
        r.cost.peak_bytes += f->kept[value] ? 0 : view->values[value].bytes;
        r.cost.peak_bytes =
            r.cost.peak_bytes > before.peak_bytes ? r.cost.peak_bytes : before.peak_bytes;
        r.placed[order[i]] = true;
        issue(&r);
    }
    r.cost.finish_ps = r.compute > r.channel ? r.compute : r.channel;
    return r.cost;
}

static void random_step(fixture_t *f, uint64_t *random, uint32_t ops, uint32_t fence_in)
{
    uint32_t values[VIEW_MAX], count = 0;
    for (uint32_t i = 0; i < ops; i++) {
        uint32_t a =
            count > 0 && test_draw(random, 4) > 0 ? values[test_draw(random, count)] : NONE;
        uint32_t b =
            count > 0 && test_draw(random, 3) == 0 ? values[test_draw(random, count)] : NONE;
        uint32_t kind = test_draw(random, fence_in);
        bool collective = a != NONE && test_draw(random, 3) == 0;
        if (a == NONE || a == b) {
            b = NONE;
        }
        values[count++] = op(f,
                             collective  ? "AllReduce"
                             : kind == 0 ? "Unknown"
                                         : "Compute",
                             1 + test_draw(random, 100), 64u * (1 + test_draw(random, 8)), a,
                             collective ? NONE : b);
    }
    view_end(&f->b);
}

static uint32_t compute_ops(const weft_graph_view_t *view, uint32_t *out)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < view->order_count; i++) {
        if (!communicates(view, view->order[i])) {
            out[count++] = view->order[i];
        }
    }
    return count;
}

/* needs[a][b]: b has to run before a, whoever is in between. */
static void close_over(const weft_graph_view_t *view, bool needs[16][16])
{
    for (uint32_t a = 0; a < view->op_count; a++) {
        for (uint32_t b = 0; b < view->op_count; b++) {
            needs[a][b] = a != b && comes_before(view, b, a);
        }
    }
    for (uint32_t k = 0; k < view->op_count; k++) {
        for (uint32_t a = 0; a < view->op_count; a++) {
            for (uint32_t b = 0; b < view->op_count; b++) {
                needs[a][b] |= needs[a][k] && needs[k][b];
            }
        }
    }
}

static uint64_t best_of_all(const fixture_t *f, bool needs[16][16], uint32_t *order, uint32_t count,
                            uint32_t placed)
{
    uint64_t best = UINT64_MAX;
    if (placed == count) {
        return run_naively(f, &f->b.view, order, count).finish_ps;
    }
    for (uint32_t i = placed; i < count; i++) {
        bool may = true;
        uint32_t chosen = order[i];
        for (uint32_t k = placed; k < count; k++) {
            may = may && !needs[chosen][order[k]];
        }
        if (may) {
            order[i] = order[placed];
            order[placed] = chosen;
            uint64_t ps = best_of_all(f, needs, order, count, placed + 1);
            best = ps < best ? ps : best;
            order[placed] = order[i];
            order[i] = chosen;
        }
    }
    return best;
}

/* The order that the edits and the values ask for, the given one where they leave a choice. */
static uint32_t follow_edits(fixture_t *f, const weft_edit_list_t *edits, uint32_t *out)
{
    weft_graph_view_t *view = &f->b.view;
    bool placed[VIEW_MAX] = {false};
    uint32_t count = 0, edges = 0;
    for (size_t i = 0; i < weft_edit_list_count(edits); i++) {
        const weft_edit_t *edit = weft_edit_list_get(edits, i);
        assert_int_equal(edit->kind, WEFT_EDIT_KIND_ORDER);
        f->edges[2 * edges] = edit->op_a;
        f->edges[2 * edges++ + 1] = edit->op_b;
    }
    view->edges = f->edges;
    view->edge_count = edges;
    for (bool found = true; found;) {
        found = false;
        for (uint32_t i = 0; i < view->op_count && !found; i++) {
            bool may = !placed[i];
            for (uint32_t k = 0; k < view->op_count && may; k++) {
                may = k == i || placed[k] || !comes_before(view, k, i);
            }
            if (may) {
                found = placed[i] = true;
                if (!communicates(view, i)) {
                    out[count++] = i;
                }
            }
        }
    }
    for (uint32_t i = 0; i < view->op_count; i++) {
        assert_true(placed[i]); /* or the edits close a cycle */
    }
    return count;
}

static void test_schedule_judges_as_definitions_do(void **state)
{
    uint64_t seed = (uint64_t)time(NULL) | 1, random = seed;
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 300; round++) {
        fixture_t *f = fixture();
        uint32_t order[VIEW_MAX], count;
        wefti_schedule_cost_t cost;
        random_step(f, &random, 1 + test_draw(&random, 40), 1000);
        count = compute_ops(&f->b.view, order);
        naive_t naive = run_naively(f, &f->b.view, order, count);
        assert_int_equal(wefti_schedule_judge(&f->b.view, &f->params, NULL, &cost), WEFT_OK);
        assert_int_equal(cost.finish_ps, naive.finish_ps);
        assert_int_equal(cost.peak_bytes, naive.peak_bytes);
        assert_int_equal(cost.in_flight, naive.in_flight);
    }
}

static void test_schedule_is_what_its_edits_come_to(void **state)
{
    uint64_t seed = (uint64_t)time(NULL) | 1, random = seed;
    uint32_t changed = 0;
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 300; round++) {
        fixture_t *f = fixture();
        weft_edit_list_t *edits = NULL;
        wefti_schedule_report_t report;
        uint32_t order[VIEW_MAX], count;
        random_step(f, &random, 1 + test_draw(&random, 40), 12);
        f->params.in_flight = test_draw(&random, 4);
        assert_int_equal(wefti_pass_schedule(&f->b.view, &f->params, NULL, &edits, &report),
                         WEFT_OK);
        count = follow_edits(f, edits, order);
        naive_t naive = run_naively(f, &f->b.view, order, count);
        assert_int_equal(naive.finish_ps, report.chosen.finish_ps);
        assert_int_equal(naive.peak_bytes, report.chosen.peak_bytes);
        assert_true(report.chosen.peak_bytes <= report.given.peak_bytes);
        assert_true(report.chosen.finish_ps <= report.given.finish_ps);
        if (f->params.in_flight > 0) {
            assert_true(naive.in_flight <= f->params.in_flight);
        }
        changed += report.changed;
        weft_edit_list_destroy(edits);
    }
    assert_true(changed > 30);
}

/* Never quicker than the best of all orders, and never more than twice as slow (Graham's bound). */
static void test_schedule_beside_all_orders(void **state)
{
    uint64_t seed = (uint64_t)time(NULL) | 1, random = seed;
    uint32_t optimal = 0;
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 200; round++) {
        fixture_t *f = fixture();
        weft_edit_list_t *edits = NULL;
        wefti_schedule_report_t report;
        uint32_t order[VIEW_MAX], count;
        random_step(f, &random, 2 + test_draw(&random, 7), 1000);
        f->params.most_live_bytes = UINT64_MAX;
        assert_int_equal(wefti_pass_schedule(&f->b.view, &f->params, NULL, &edits, &report),
                         WEFT_OK);
        count = compute_ops(&f->b.view, order);
        bool needs[16][16];
        close_over(&f->b.view, needs);
        uint64_t best = best_of_all(f, needs, order, count, 0);
        assert_in_range(report.chosen.finish_ps, best, 2 * best);
        optimal += report.chosen.finish_ps <= best + best / 1000;
        weft_edit_list_destroy(edits);
    }
    print_message("%u of 200 are optimal\n", optimal);
    assert_true(optimal > 150);
}

/* Two branches, each a collective between two operators: the given order waits for each. */
static void test_schedule_hides_one_branch_behind_the_other(void **state)
{
    fixture_t *f = fixture();
    weft_edit_list_t *edits = NULL;
    wefti_schedule_report_t report;
    uint32_t order[8], count;
    (void)state;
    uint32_t a = op(f, "AllReduce", 100, 64, op(f, "Compute", 100, 64, NONE, NONE), NONE);
    a = op(f, "Compute", 100, 64, a, NONE);
    uint32_t b = op(f, "AllReduce", 100, 64, op(f, "Compute", 100, 64, NONE, NONE), NONE);
    b = op(f, "Compute", 100, 64, b, NONE);
    op(f, "Compute", 100, 64, a, b);
    view_end(&f->b);
    f->params.most_live_bytes = 1024;
    assert_int_equal(wefti_pass_schedule(&f->b.view, &f->params, NULL, &edits, &report), WEFT_OK);
    assert_int_equal(report.given.finish_ps, 700);
    assert_int_equal(report.chosen.finish_ps, 500);
    count = follow_edits(f, edits, order);
    assert_int_equal(count, 5);
    assert_int_equal(order[1], 3); /* the second branch begins while the first one's travels */
    weft_edit_list_destroy(edits);
    /* One at a time: the second collective goes when the first one was waited for. */
    f->params.in_flight = 1;
    f->b.view.edge_count = 0;
    assert_int_equal(wefti_pass_schedule(&f->b.view, &f->params, NULL, &edits, &report), WEFT_OK);
    assert_int_equal(report.chosen.in_flight, 1);
    weft_edit_list_destroy(edits);
}

/* Eight wide values that all die in one operator each: breadth first keeps all of them. */
static void test_schedule_keeps_to_the_memory(void **state)
{
    fixture_t *f = fixture();
    weft_edit_list_t *edits = NULL;
    wefti_schedule_report_t report;
    uint32_t wide[8], sum = NONE;
    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        wide[i] = op(f, "Compute", 10, 6400, NONE, NONE);
    }
    for (uint32_t i = 0; i < 8; i++) {
        sum = op(f, "Compute", 10, 64, wide[i], sum);
    }
    view_end(&f->b);
    f->params.most_live_bytes = 2 * 6400 + 128;
    assert_int_equal(wefti_pass_schedule(&f->b.view, &f->params, NULL, &edits, &report), WEFT_OK);
    assert_true(report.given.peak_bytes >= 8 * 6400);
    assert_true(report.chosen.peak_bytes <= 2 * 6400 + 128);
    assert_true(report.changed);
    weft_edit_list_destroy(edits);
}

/* What an operator may write over is handed on where it dies, and only there. */
static void test_schedule_hands_memory_on(void **state)
{
    fixture_t *f = fixture();
    wefti_schedule_cost_t cost;
    (void)state;
    uint32_t a = op(f, "Compute", 1, 640, NONE, NONE);
    uint32_t b = op(f, "InPlace", 1, 640, a, NONE); /* a is read again below */
    uint32_t c = op(f, "InPlace", 1, 640, b, NONE);
    uint32_t d = op(f, "InPlace", 1, 640, c, NONE);
    op(f, "Compute", 1, 64, d, a);
    view_end(&f->b);
    assert_int_equal(wefti_schedule_judge(&f->b.view, &f->params, NULL, &cost), WEFT_OK);
    assert_int_equal(cost.peak_bytes, 2 * 640 + 64);
    f->to_end[b] = 1; /* readable after the step: nobody writes over it */
    assert_int_equal(wefti_schedule_judge(&f->b.view, &f->params, NULL, &cost), WEFT_OK);
    assert_int_equal(cost.peak_bytes, 3 * 640 + 64);
}

static void test_schedule_refuses_edges_to_nowhere(void **state)
{
    fixture_t *f = fixture();
    weft_edit_list_t *edits = NULL;
    wefti_schedule_report_t report;
    (void)state;
    op(f, "Compute", 1, 64, NONE, NONE);
    view_end(&f->b);
    f->edges[1] = 7;
    f->b.view.edges = f->edges;
    f->b.view.edge_count = 1;
    assert_int_equal(wefti_pass_schedule(&f->b.view, &f->params, NULL, &edits, &report),
                     WEFT_ERR_INVALID_ARGUMENT);
    assert_null(edits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule_judges_as_definitions_do),
        cmocka_unit_test(test_schedule_is_what_its_edits_come_to),
        cmocka_unit_test(test_schedule_beside_all_orders),
        cmocka_unit_test(test_schedule_hides_one_branch_behind_the_other),
        cmocka_unit_test(test_schedule_keeps_to_the_memory),
        cmocka_unit_test(test_schedule_hands_memory_on),
        cmocka_unit_test(test_schedule_refuses_edges_to_nowhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
