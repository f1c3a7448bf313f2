/* SPDX-License-Identifier: Apache-2.0 */
/* Orders of the graph itself: what is simulated is what lowering comes to, and bounds hold in the
 * plan's programs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fusion/passes/schedule_graph.h"
#include "tests/fusion/support_view.h"
#include "tests/graph/support_graph.h"
#include "tests/support/support_lower.h"

#define MOST_VALUES 64u

typedef struct fixture {
    weft_registry_t *registry;
    wefti_graph_t *graph;
    wefti_arena_t arena;
    wefti_costs_t costs;
    wefti_bucket_cost_t cost;
    wefti_profile_t profile;
    wefti_log_t log;
    wefti_lower_params_t lower;
    wefti_schedule_options_t options;
} fixture_t;

static weft_status_t arena_of(void *user, uint64_t *out_bytes)
{
    fixture_t *f = user;
    weft_plan_t *plan = NULL;
    weft_status_t status = test_lower(f->graph, &f->lower, &plan);
    *out_bytes = plan != NULL ? plan->arena_bytes : 0;
    weft_plan_release(plan);
    return status;
}

static uint64_t bytes_of(fixture_t *f)
{
    uint64_t bytes = 0;
    assert_int_equal(arena_of(f, &bytes), WEFT_OK);
    return bytes;
}

static void open_fixture(fixture_t *f)
{
    memset(f, 0, sizeof *f);
    f->graph = test_graph(&f->registry);
    wefti_arena_init(&f->arena, NULL, 0);
    wefti_costs_default(&f->costs, NULL);
    assert_int_equal(wefti_collective_cost(&f->costs, 2, NULL, &f->profile, &f->arena, &f->cost),
                     WEFT_OK);
    f->log = (wefti_log_t){NULL, NULL, WEFT_LOG_LEVEL_ERROR};
    f->lower = (wefti_lower_params_t){.world_size = 2,
                                      .policy = "none",
                                      .optimizer = "none",
                                      .model_name = "test",
                                      .infer = true,
                                      .costs = &f->costs};
    f->options = (wefti_schedule_options_t){.profile = &f->profile,
                                            .cost = &f->cost,
                                            .arena_of = arena_of,
                                            .user = f,
                                            .arena = &f->arena,
                                            .log = &f->log};
}

static void close_fixture(fixture_t *f)
{
    wefti_costs_deinit(&f->costs);
    wefti_arena_deinit(&f->arena);
    test_graph_free(f->graph, f->registry);
}

/* Element-wise operators and all-reduces on values of different sizes; what nobody reads is an
 * output. */
static void random_graph(fixture_t *f, uint64_t *random)
{
    wefti_graph_t *graph = f->graph;
    uint32_t values[MOST_VALUES], count = 0, ops = 3 + test_draw(random, 30);
    bool read[MOST_VALUES] = {false};
    for (uint32_t i = 0; i < 2; i++) {
        char name[16];
        snprintf(name, sizeof name, "x%u", i);
        values[count++] =
            test_value(graph, name, WEFTI_VALUE_INPUT, WEFT_DTYPE_F32, DIMS(64 << (2 * i)), NULL);
    }
    for (uint32_t i = 0; i < ops; i++) {
        uint32_t a = test_draw(random, count), b = test_draw(random, count);
        char name[16];
        bool same = wefti_value_bytes(&graph->values[values[a]]) ==
                    wefti_value_bytes(&graph->values[values[b]]);
        snprintf(name, sizeof name, "v%u", i);
        read[a] = true;
        if (test_draw(random, 4) == 0) {
            uint32_t node =
                test_node_outputs(graph, "weft", "AllReduce", name, INPUTS(values[a]), 1, NULL, 0);
            values[count++] = graph->nodes[node].outputs[0];
        } else if (test_draw(random, 4) == 0) {
            values[count++] =
                test_node(graph, "Identity", name, INPUTS(values[a]), NULL, 0); /* a view */
        } else if (same && a != b) {
            read[b] = true;
            values[count++] = test_node(graph, "Add", name, INPUTS(values[a], values[b]), NULL, 0);
        } else {
            values[count++] = test_node(graph, "Relu", name, INPUTS(values[a]), NULL, 0);
        }
    }
    for (uint32_t i = 2; i < count; i++) {
        if (!read[i]) {
            assert_int_equal(wefti_graph_add_output(graph, values[i]), WEFT_OK);
            graph->values[values[i]].flags |= WEFTI_VALUE_OUTPUT;
        }
    }
}

/* Bytes of activations and outputs that the plan counts as alive at once. */
static uint64_t live_of(const weft_plan_t *plan)
{
    uint64_t bytes = plan->live_bytes;
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        wefti_buffer_kind_t kind = plan->buffers[i].kind;
        if (kind == WEFTI_BUFFER_INPUT || kind == WEFTI_BUFFER_CONST) {
            bytes -= plan->buffers[i].size_bytes;
        }
    }
    return bytes;
}

/* Most collectives that the step's compute stream has issued and not waited for. */
static uint32_t most_in_flight(const weft_plan_t *plan)
{
    const wefti_plan_program_t *step = wefti_plan_program(plan, "step");
    const wefti_plan_stream_program_t *comm = &step->streams[1];
    uint32_t *issued_by = calloc(plan->event_count + 1u, sizeof *issued_by);
    uint32_t *ends = calloc(plan->event_count + 1u, sizeof *ends);
    uint32_t issued = 0, over = 0, most = 0, collectives = 0;
    assert_non_null(issued_by);
    assert_non_null(ends);
    for (uint32_t i = 0; i < comm->step_count; i++) {
        collectives += comm->steps[i].kind == WEFTI_STEP_COLLECTIVE;
    }
    /* An event that comm waits for lets it run up to its next wait; one that it records says how
     * many it has run. */
    for (uint32_t i = 0, run = 0, gate = UINT32_MAX; i <= comm->step_count; i++) {
        bool end = i == comm->step_count;
        if (end || comm->steps[i].kind == WEFTI_STEP_WAIT) {
            if (gate != UINT32_MAX) {
                issued_by[gate] = run;
            } else {
                issued = run;
            }
            gate = end ? gate : comm->steps[i].index;
        } else if (comm->steps[i].kind == WEFTI_STEP_COLLECTIVE) {
            run++;
        } else if (comm->steps[i].kind == WEFTI_STEP_RECORD) {
            ends[comm->steps[i].index] = run;
        }
    }
    most = issued;
    for (uint32_t i = 0; i < step->streams[0].step_count; i++) {
        const wefti_plan_step_t *at = &step->streams[0].steps[i];
        if (at->kind == WEFTI_STEP_WAIT && ends[at->index] > over) {
            over = ends[at->index];
        } else if (at->kind == WEFTI_STEP_RECORD) {
            issued = issued_by[at->index];
        }
        most = issued - over > most ? issued - over : most;
    }
    assert_int_equal(issued, collectives);
    free(issued_by);
    free(ends);
    return most;
}

static void check_plan(fixture_t *f, uint32_t bound)
{
    weft_plan_t *plan = NULL;
    wefti_schedule_cost_t cost;
    f->lower.in_flight = bound;
    assert_int_equal(wefti_schedule_judge_graph(f->graph, &f->options, &cost), WEFT_OK);
    if (test_lower(f->graph, &f->lower, &plan) != WEFT_OK || wefti_plan_seal(plan) != WEFT_OK ||
        wefti_plan_verify(plan, f->registry) != WEFT_OK) {
        fail_msg("at most %u in flight: %s", bound, weft_last_error());
    }
    if (bound == 0) {
        assert_int_equal(live_of(plan), cost.peak_bytes);
    } else {
        assert_true(most_in_flight(plan) <= bound);
    }
    weft_plan_release(plan);
}

static void check_random_plans(uint64_t random)
{
    for (int round = 0; round < 100; round++) {
        fixture_t f;
        uint32_t bound = (uint32_t)round % 3;
        open_fixture(&f);
        random_graph(&f, &random);
        check_plan(&f, 0);
        f.options.in_flight = bound;
        if (wefti_schedule_graph(f.graph, &f.options) != WEFT_OK) {
            fail_msg("%s", weft_last_error());
        }
        f.options.in_flight = 0;
        check_plan(&f, bound);
        close_fixture(&f);
    }
}

static void test_simulated_memory_is_the_plans(void **state)
{
    (void)state;
    check_random_plans(test_seed());
    check_random_plans(13); /* has steps of collectives alone */
}

/* Wide values, each summed into a small one: the given order makes all of them first. */
static void wide_graph(fixture_t *f)
{
    wefti_graph_t *graph = f->graph;
    uint32_t x = test_value(graph, "x", WEFTI_VALUE_INPUT, WEFT_DTYPE_F32, DIMS(4096), NULL);
    uint32_t wide[6], sum = WEFTI_NONE;
    for (uint32_t i = 0; i < 6; i++) {
        char name[16];
        snprintf(name, sizeof name, "wide%u", i);
        wide[i] = test_node(graph, "Relu", name, INPUTS(x), NULL, 0);
    }
    for (uint32_t i = 0; i < 6; i++) {
        char name[16];
        snprintf(name, sizeof name, "sum%u", i);
        sum = i == 0 ? test_node(graph, "Relu", name, INPUTS(wide[i]), NULL, 0)
                     : test_node(graph, "Add", name, INPUTS(wide[i], sum), NULL, 0);
    }
    assert_int_equal(wefti_graph_add_output(graph, sum), WEFT_OK);
    graph->values[sum].flags |= WEFTI_VALUE_OUTPUT;
}

static void test_an_arena_limit_is_kept_or_refused(void **state)
{
    (void)state;
    for (int refused = 0; refused < 2; refused++) {
        fixture_t f;
        open_fixture(&f);
        wide_graph(&f);
        uint64_t given = bytes_of(&f);
        f.options.arena_limit = refused ? 16384 : given - 2 * 16384;
        weft_status_t status = wefti_schedule_graph(f.graph, &f.options);
        if (refused) {
            assert_int_equal(status, WEFT_ERR_UNSUPPORTED);
            assert_non_null(strstr(weft_last_error(), "arena_limit: 16.0 KiB is too small"));
            assert_non_null(strstr(weft_last_error(), "shard_parameters or accumulate"));
        } else {
            assert_int_equal(status, WEFT_OK);
            assert_true(bytes_of(&f) <= f.options.arena_limit);
        }
        close_fixture(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simulated_memory_is_the_plans),
        cmocka_unit_test(test_an_arena_limit_is_kept_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
