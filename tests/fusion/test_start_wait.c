/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs of a start and a wait: the collective is issued where the one stands and waited for where
 * the other does. */
#include <stdio.h>
#include <string.h>

#include "fusion/passes/passes.h"
#include "tests/support/support.h"
#include "tests/support/support_lower.h"

typedef struct fixture {
    weft_registry_t *registry;
    wefti_graph_t *graph;
} fixture_t;

static int setup(void **state)
{
    static fixture_t fixture;
    assert_int_equal(weft_registry_create(NULL, &fixture.registry), WEFT_OK);
    assert_int_equal(wefti_graph_create(NULL, fixture.registry, 0, &fixture.graph), WEFT_OK);
    *state = &fixture;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *fixture = *state;
    wefti_graph_destroy(fixture->graph);
    weft_registry_destroy(fixture->registry);
    return 0;
}

static uint32_t add(wefti_graph_t *graph, const char *domain, const char *op, const char *name,
                    const uint32_t *inputs, uint32_t count)
{
    uint32_t node;
    bool two = strcmp(op, "Add") == 0;
    wefti_node_params_t params = {.domain = domain,
                                  .op = op,
                                  .name = name,
                                  .inputs = inputs,
                                  .input_count = count,
                                  .output_count = two ? 1 : count};
    if (wefti_graph_add_node(graph, &params, &node) < 0) {
        fail_msg("%s", weft_last_error());
    }
    return graph->nodes[node].outputs[0];
}

static uint32_t relu(wefti_graph_t *graph, const char *name, uint32_t input)
{
    return add(graph, "", "Relu", name, &input, 1);
}

static uint32_t input(wefti_graph_t *graph)
{
    weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_F32, .rank = 2, .dims = {4, 8}};
    uint32_t value;
    assert_int_equal(wefti_graph_add_value(graph, "x", WEFTI_VALUE_INPUT, &type, &value), WEFT_OK);
    return value;
}

/* a, b, start(a), c, d, wait, e, add(e, what was waited for) */
static void build(wefti_graph_t *graph)
{
    uint32_t x = input(graph);
    uint32_t a = relu(graph, "a", x), b = relu(graph, "b", x);
    uint32_t flying = add(graph, "weft", "AllReduceStart", "start", &a, 1);
    uint32_t c = relu(graph, "c", b), d = relu(graph, "d", c);
    uint32_t whole = add(graph, "weft", "AllReduceWait", "wait", &flying, 1);
    uint32_t e = relu(graph, "e", d);
    uint32_t sum = add(graph, "", "Add", "sum", (const uint32_t[]){e, whole}, 2);
    assert_int_equal(wefti_graph_add_output(graph, sum), WEFT_OK);
}

static weft_plan_t *lower(const wefti_graph_t *graph)
{
    weft_plan_t *plan = NULL;
    wefti_lower_params_t params = {.world_size = 2,
                                   .policy = "none",
                                   .optimizer = "none",
                                   .model_name = "test",
                                   .infer = true};
    if (test_lower(graph, &params, &plan) < 0 || wefti_plan_seal(plan) < 0 ||
        wefti_plan_verify(plan, graph->registry) < 0) {
        fail_msg("%s", weft_last_error());
    }
    return plan;
}

/* "a b record0 c": the compute stream of the step, or the other one: "wait0 AllReduce record1". */
static void describe(const weft_plan_t *plan, bool communicates, char *out, size_t size)
{
    size_t used = 0;
    const wefti_plan_program_t *step = NULL;
    for (uint32_t p = 0; p < plan->program_count; p++) {
        step = strcmp(plan->programs[p].name, "step") == 0 ? &plan->programs[p] : step;
    }
    assert_non_null(step);
    out[0] = '\0';
    for (uint32_t s = 0; s < plan->stream_count; s++) {
        for (uint32_t i = 0; plan->streams[s].communicates == communicates &&
                             i < step->streams[s].step_count && used < size;
             i++) {
            const wefti_plan_step_t *at = &step->streams[s].steps[i];
            const char *space = used > 0 ? " " : "";
            int n = at->kind == WEFTI_STEP_KERNEL ? snprintf(out + used, size - used, "%s%s", space,
                                                             plan->kernels[at->index].name)
                    : at->kind == WEFTI_STEP_RECORD
                        ? snprintf(out + used, size - used, "%srecord", space)
                    : at->kind == WEFTI_STEP_WAIT
                        ? snprintf(out + used, size - used, "%swait", space)
                        : snprintf(out + used, size - used, "%s%s", space,
                                   weft_collective_name(plan->collectives[at->index].op));
            used += (size_t)n;
        }
    }
}

static void test_a_pair_keeps_its_places(void **state)
{
    wefti_graph_t *graph = ((fixture_t *)*state)->graph;
    char text[256];
    build(graph);
    assert_int_equal(wefti_pass_normalize_collectives(graph, 2, true), WEFT_OK);
    assert_int_equal(wefti_graph_verify(graph), WEFT_OK);
    weft_plan_t *plan = lower(graph);
    describe(plan, false, text, sizeof text);
    assert_string_equal(text, "a b record c d wait e sum");
    describe(plan, true, text, sizeof text);
    assert_string_equal(text, "wait AllReduce record");
    weft_plan_release(plan);
}

/* The same without its halves: as soon as it can be, and as late as it can be. */
static void test_without_a_pair_values_decide(void **state)
{
    wefti_graph_t *graph = ((fixture_t *)*state)->graph;
    char text[256];
    uint32_t x = input(graph);
    uint32_t a = relu(graph, "a", x), b = relu(graph, "b", x);
    uint32_t whole = add(graph, "weft", "AllReduce", "reduce", &a, 1);
    uint32_t c = relu(graph, "c", b), d = relu(graph, "d", c), e = relu(graph, "e", d);
    uint32_t sum = add(graph, "", "Add", "sum", (const uint32_t[]){e, whole}, 2);
    assert_int_equal(wefti_graph_add_output(graph, sum), WEFT_OK);
    weft_plan_t *plan = lower(graph);
    describe(plan, false, text, sizeof text);
    assert_string_equal(text, "a record b c d e wait sum");
    weft_plan_release(plan);
}

static void expect_refused(wefti_graph_t *graph, const char *words)
{
    assert_true(wefti_pass_normalize_collectives(graph, 2, true) < 0);
    if (strstr(weft_last_error(), words) == NULL) {
        fail_msg("'%s' says nothing of '%s'", weft_last_error(), words);
    }
}

static void test_what_is_in_flight_is_not_read(void **state)
{
    wefti_graph_t *graph = ((fixture_t *)*state)->graph;
    uint32_t x = input(graph);
    uint32_t flying = add(graph, "weft", "AllReduceStart", "start", &x, 1);
    relu(graph, "reader", flying);
    add(graph, "weft", "AllReduceWait", "wait", &flying, 1);
    expect_refused(graph, "'reader' (Relu): reads 'start', which is in flight: missing wait");
}

static void test_a_start_without_a_wait(void **state)
{
    wefti_graph_t *graph = ((fixture_t *)*state)->graph;
    uint32_t x = input(graph);
    add(graph, "weft", "AllReduceStart", "start", &x, 1);
    expect_refused(graph, "'start' (AllReduceStart): only 0 of 1 outputs have a wait");
}

static void test_a_wait_of_something_else(void **state)
{
    wefti_graph_t *graph = ((fixture_t *)*state)->graph;
    uint32_t x = input(graph);
    uint32_t flying = add(graph, "weft", "BroadcastStart", "start", &x, 1);
    add(graph, "weft", "AllReduceWait", "wait", &flying, 1);
    expect_refused(graph, "must be the output of AllReduceStart");
}

static void test_a_wait_twice(void **state)
{
    wefti_graph_t *graph = ((fixture_t *)*state)->graph;
    uint32_t x = input(graph);
    uint32_t flying = add(graph, "weft", "AllReduceStart", "start", &x, 1);
    add(graph, "weft", "AllReduceWait", "wait", &flying, 1);
    add(graph, "weft", "AllReduceWait", "again", &flying, 1);
    expect_refused(graph, "duplicate wait for 'start'");
}

static void test_an_output_in_flight(void **state)
{
    wefti_graph_t *graph = ((fixture_t *)*state)->graph;
    uint32_t x = input(graph);
    uint32_t flying = add(graph, "weft", "AllReduceStart", "start", &x, 1);
    add(graph, "weft", "AllReduceWait", "wait", &flying, 1);
    assert_int_equal(wefti_graph_add_output(graph, flying), WEFT_OK);
    expect_refused(graph, "output 'start' is in flight");
}

/* Two of one start are waited for at two places: the first of them is where all must be there. */
static void test_several_tensors(void **state)
{
    wefti_graph_t *graph = ((fixture_t *)*state)->graph;
    char text[256];
    uint32_t x = input(graph);
    uint32_t both[] = {relu(graph, "a", x), relu(graph, "b", x)};
    uint32_t first = add(graph, "weft", "AllReduceStart", "start", both, 2);
    uint32_t second = graph->nodes[graph->values[first].producer].outputs[1];
    uint32_t c = relu(graph, "c", x);
    uint32_t whole = add(graph, "weft", "AllReduceWait", "wait1", &first, 1);
    uint32_t d = relu(graph, "d", c);
    uint32_t other = add(graph, "weft", "AllReduceWait", "wait2", &second, 1);
    uint32_t e = add(graph, "", "Add", "e", (const uint32_t[]){d, whole}, 2);
    uint32_t f = add(graph, "", "Add", "f", (const uint32_t[]){e, other}, 2);
    assert_int_equal(wefti_graph_add_output(graph, f), WEFT_OK);
    assert_int_equal(wefti_pass_normalize_collectives(graph, 2, true), WEFT_OK);
    weft_plan_t *plan = lower(graph);
    describe(plan, false, text, sizeof text);
    assert_string_equal(text, "a b record c wait d e f");
    describe(plan, true, text, sizeof text);
    assert_string_equal(text, "wait AllReduce AllReduce record");
    weft_plan_release(plan);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_pair_keeps_its_places),       TEST(test_without_a_pair_values_decide),
        TEST(test_what_is_in_flight_is_not_read), TEST(test_a_start_without_a_wait),
        TEST(test_a_wait_of_something_else),      TEST(test_a_wait_twice),
        TEST(test_an_output_in_flight),           TEST(test_several_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
