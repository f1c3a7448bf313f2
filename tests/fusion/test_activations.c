/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives on activations: where they read and write, how long that memory lives, what is
 * refused. */
#include <stdio.h>
#include <string.h>

#include "fusion/fusion.h"
#include "tests/graph/support_graph.h"
#include "tests/support/support_lower.h"

#define RANKS 2u

typedef struct fixture {
    weft_registry_t *registry;
    wefti_graph_t *graph;
    weft_plan_t *plan;
} fixture_t;

static int setup(void **state)
{
    static fixture_t fixture;
    memset(&fixture, 0, sizeof(fixture));
    fixture.graph = test_graph(&fixture.registry);
    *state = &fixture;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *f = *state;
    weft_plan_release(f->plan);
    test_graph_free(f->graph, f->registry);
    return 0;
}

static uint32_t collective(wefti_graph_t *graph, const char *op, uint32_t input)
{
    const weft_attr_t size = ATTR_INT("group_size", RANKS);
    bool sized = strcmp(op, "AllGather") == 0 || strcmp(op, "ReduceScatter") == 0 ||
                 strcmp(op, "Gather") == 0 || strcmp(op, "Scatter") == 0;
    uint32_t node =
        test_node_outputs(graph, "weft", op, op, INPUTS(input), 1, sized ? &size : NULL, sized);
    return graph->nodes[node].outputs[0];
}

static uint32_t relu(wefti_graph_t *graph, const char *name, uint32_t input)
{
    return test_node(graph, "Relu", name, INPUTS(input), NULL, 0);
}

static weft_status_t lower(fixture_t *f)
{
    wefti_lower_params_t params = {.world_size = RANKS,
                                   .policy = "none",
                                   .optimizer = "none",
                                   .model_name = "test",
                                   .infer = true};
    weft_plan_release(f->plan);
    return test_lower(f->graph, &params, &f->plan);
}

/* Lowers, seals and proves. */
static void lower_well(fixture_t *f)
{
    CHECK(lower(f));
    CHECK(wefti_plan_seal(f->plan));
    CHECK(wefti_plan_verify(f->plan, f->registry));
}

static const wefti_plan_buffer_t *buffer(const weft_plan_t *plan, const char *name)
{
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        if (strcmp(plan->buffers[i].name, name) == 0) {
            return &plan->buffers[i];
        }
    }
    fail_msg("no buffer %s", name);
    return NULL;
}

static bool overlap(const wefti_plan_buffer_t *a, const wefti_plan_buffer_t *b)
{
    return a->offset_bytes < b->offset_bytes + b->size_bytes &&
           b->offset_bytes < a->offset_bytes + a->size_bytes;
}

static void test_a_result_takes_the_memory_of_what_dies(void **state)
{
    fixture_t *f = *state;
    uint32_t x = test_input(f->graph, "x", DIMS(16));
    uint32_t a = relu(f->graph, "a", x), b = collective(f->graph, "AllReduce", a);
    CHECK(wefti_graph_add_output(f->graph, relu(f->graph, "y", b)));
    lower_well(f);
    assert_int_equal(f->plan->kind, WEFT_PLAN_KIND_INFERENCE);
    assert_int_equal(f->plan->collectives[0].source, f->plan->collectives[0].buffer);
    assert_null(wefti_plan_program(f->plan, "eval"));
}

static void test_a_result_has_memory_of_its_own(void **state)
{
    fixture_t *f = *state;
    wefti_graph_t *graph = f->graph;
    static const float weights[16];
    uint32_t x = test_input(graph, "x", DIMS(16));
    uint32_t w = test_value(graph, "w", WEFTI_VALUE_PARAM, WEFT_DTYPE_F32, DIMS(16), weights);
    uint32_t a = relu(graph, "a", x);
    uint32_t used_later = collective(graph, "AllReduce", a);
    uint32_t of_input = collective(graph, "AllReduce", x);
    uint32_t of_weight = collective(graph, "Broadcast", w);
    uint32_t to_output = collective(graph, "AllReduce", relu(graph, "b", x));
    CHECK(wefti_graph_add_output(graph, to_output));
    CHECK(wefti_graph_add_output(graph,
                                 test_node(graph, "Add", "s", INPUTS(a, used_later), NULL, 0)));
    CHECK(wefti_graph_add_output(
        graph, test_node(graph, "Add", "t", INPUTS(of_input, of_weight), NULL, 0)));
    lower_well(f);
    for (uint32_t c = 0; c < 4; c++) {
        const wefti_plan_collective_t *at = &f->plan->collectives[c];
        assert_int_not_equal(at->source, at->buffer);
        assert_false(overlap(&f->plan->buffers[at->source], &f->plan->buffers[at->buffer]));
    }
}

/* What a kernel reads before the collective begins does not keep the result from its place. */
static void test_earlier_readers_do_not_matter(void **state)
{
    fixture_t *f = *state;
    wefti_graph_t *graph = f->graph;
    uint32_t a = relu(graph, "a", test_input(graph, "x", DIMS(16))), b = relu(graph, "b", a);
    uint32_t c = test_node(graph, "Add", "c", INPUTS(a, b), NULL, 0);
    CHECK(wefti_graph_add_output(graph, relu(graph, "y", collective(graph, "AllReduce", c))));
    lower_well(f);
    assert_int_equal(f->plan->collectives[0].source, f->plan->collectives[0].buffer);
}

/* Both are read later, by kernels and a collective; a plan that overwrites the one is refused for the
 * other. */
static void test_a_view_has_the_memory_of_what_it_views(void **state)
{
    fixture_t *f = *state;
    wefti_graph_t *graph = f->graph;
    uint32_t a = relu(graph, "a", test_input(graph, "x", DIMS(16)));
    uint32_t v = test_node(graph, "Identity", "v", INPUTS(a), NULL, 0);
    uint32_t sum = collective(graph, "AllReduce", v), b = relu(graph, "b", a);
    uint32_t c = test_node(graph, "Add", "c", INPUTS(b, v), NULL, 0);
    uint32_t d = test_node(graph, "Add", "d", INPUTS(c, a), NULL, 0);
    CHECK(wefti_graph_add_output(graph, test_node(graph, "Add", "y", INPUTS(d, sum), NULL, 0)));
    lower_well(f);
    CHECK(wefti_plan_verify(f->plan, NULL));
    const wefti_plan_buffer_t *first = buffer(f->plan, "a");
    assert_int_equal(buffer(f->plan, "v")->offset_bytes, first->offset_bytes);
    assert_int_not_equal(f->plan->collectives[0].source, f->plan->collectives[0].buffer);
    for (uint32_t i = 0; i < f->plan->buffer_count; i++) {
        wefti_plan_buffer_t *other = &f->plan->buffers[i];
        if (strcmp(other->name, "b") == 0) {
            assert_int_not_equal(other->offset_bytes, first->offset_bytes);
            other->offset_bytes = first->offset_bytes;
        }
    }
    CHECK(wefti_plan_seal(f->plan));
    assert_int_equal(wefti_plan_verify(f->plan, f->registry), WEFT_ERR_FORMAT);
}

/* While peers read it a tensor keeps its memory; when the first reader has waited it may go. */
static void test_memory_lives_until_the_collective_is_over(void **state)
{
    fixture_t *f = *state;
    wefti_graph_t *graph = f->graph;
    uint32_t x = test_input(graph, "x", DIMS(64));
    uint32_t a = relu(graph, "a", x), all = collective(graph, "AllGather", a);
    uint32_t during = test_node(graph, "Add", "during", INPUTS(x, x), NULL, 0);
    uint32_t first = relu(graph, "first", all);
    uint32_t after = test_node(graph, "Sub", "after", INPUTS(x, x), NULL, 0);
    CHECK(wefti_graph_add_output(graph,
                                 test_node(graph, "Mul", "y1", INPUTS(after, during), NULL, 0)));
    CHECK(wefti_graph_add_output(graph, relu(graph, "y2", first)));
    lower_well(f);
    const wefti_plan_collective_t *gather = &f->plan->collectives[0];
    assert_int_equal(gather->op, WEFT_COLLECTIVE_ALL_GATHER);
    assert_false(overlap(buffer(f->plan, "during"), buffer(f->plan, "a")));
    assert_false(overlap(buffer(f->plan, "during"), &f->plan->buffers[gather->buffer]));
    assert_true(overlap(buffer(f->plan, "after"), buffer(f->plan, "a")));
}

static void test_blocks(void **state)
{
    static const struct {
        const char *op;
        uint64_t elems;
    } cases[] = {{"AllReduce", 24}, {"Broadcast", 24}, {"Reduce", 24},   {"AllGather", 24},
                 {"Gather", 24},    {"Scatter", 12},   {"AllToAll", 12}, {"ReduceScatter", 12}};
    fixture_t *f = *state;
    uint32_t x = test_input(f->graph, "x", DIMS(4, 6));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK(wefti_graph_add_output(f->graph, collective(f->graph, cases[i].op, x)));
    }
    lower_well(f);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const wefti_plan_collective_t *c = &f->plan->collectives[i];
        assert_string_equal(weft_collective_name(c->op), cases[i].op);
        assert_int_equal(c->elem_count, cases[i].elems);
        assert_int_equal(f->plan->buffers[c->source].kind, WEFTI_BUFFER_INPUT);
    }
}

/* One collective for each of several tensors; they start together. */
static void test_several_tensors(void **state)
{
    fixture_t *f = *state;
    wefti_graph_t *graph = f->graph;
    uint32_t x = test_input(graph, "x", DIMS(8));
    uint32_t a = relu(graph, "a", x), b = test_node(graph, "Add", "b", INPUTS(x, x), NULL, 0);
    uint32_t node = test_node_outputs(graph, "weft", "AllReduce", "r", INPUTS(a, b), 2, NULL, 0);
    uint32_t first = graph->nodes[node].outputs[0], second = graph->nodes[node].outputs[1];
    CHECK(wefti_graph_add_output(graph, relu(graph, "y", first)));
    CHECK(wefti_graph_add_output(graph, relu(graph, "z", second)));
    lower_well(f);
    assert_string_equal(f->plan->collectives[0].name, "r 0");
    assert_string_equal(f->plan->collectives[1].name, "r 1");
    assert_int_equal(f->plan->collectives[0].source, f->plan->collectives[0].buffer);
    assert_int_equal(f->plan->collectives[1].source, f->plan->collectives[1].buffer);
}

static void refused(fixture_t *f, const char *op, const int64_t *dims, const weft_attr_t *attr,
                    const char *text)
{
    wefti_graph_t *graph = f->graph;
    uint32_t x = test_input(graph, "x", dims);
    uint32_t node = test_node_outputs(graph, "weft", op, "bad", INPUTS(x), 1, attr, attr != NULL);
    CHECK(wefti_graph_add_output(graph, graph->nodes[node].outputs[0]));
    weft_status_t status = lower(f);
    assert_null(f->plan);
    test_expect_error(status, status == WEFT_ERR_INVALID_ARGUMENT ? status : WEFT_ERR_UNSUPPORTED,
                      text);
    test_graph_free(f->graph, f->registry);
    f->graph = test_graph(&f->registry);
}

static void test_what_is_refused(void **state)
{
    fixture_t *f = *state;
    const weft_attr_t group = ATTR_INT("group", 1), root = ATTR_INT("root", 2),
                      parts = ATTR_INT("parts", 1), size = ATTR_INT("group_size", RANKS);
    refused(f, "AllReduce", DIMS(4), &group,
            "'bad' (AllReduce): no such group: the plan has group 0, all ranks, and 0 axes");
    refused(f, "Broadcast", DIMS(4), &root, "invalid root 2 for world size 2");
    refused(f, "AllReduce", DIMS(4), &parts, "split, but only gradients can be split");
    refused(f, "AllToAll", DIMS(3), NULL,
            "'bad' (AllToAll): first dimension of 'x' must be divisible by the number of ranks: 3, "
            "2 ranks");
    refused(f, "ReduceScatter", DIMS(5), &size,
            "must be divisible by the number of ranks: 5, 2 ranks");
}

/* Memory is handed on in every way that a graph allows; the verifier watches every access. */
static void test_random_graphs_are_proved(void **state)
{
    static const char *const ops[] = {"AllReduce", "Broadcast", "Reduce", "AllToAll"};
    uint64_t seed = test_seed();
    uint32_t in_place = 0, apart = 0;
    fixture_t *f = *state;
    for (uint32_t run = 0; run < 60; run++) {
        test_random_t random = {seed + run};
        uint32_t live[64], count = 0;
        char name[16];
        live[count++] = test_input(f->graph, "x", DIMS(16));
        while (count < 40) {
            uint32_t a = live[count - 1 - test_random_below(&random, count < 5 ? count : 5)];
            uint32_t b = live[test_random_below(&random, count)];
            snprintf(name, sizeof(name), "t%u", count);
            switch (test_random_below(&random, 4)) {
            case 0:
                live[count++] = relu(f->graph, name, a);
                break;
            case 1:
                live[count++] = test_node(f->graph, "Add", name, INPUTS(a, b), NULL, 0);
                break;
            case 2:
                live[count++] = collective(f->graph, ops[test_random_below(&random, 4)], a);
                break;
            default: /* there and back */
                live[count] = collective(f->graph, "AllGather", a);
                live[count] = collective(f->graph, "ReduceScatter", live[count]);
                count++;
            }
        }
        for (uint32_t i = 1; i < count; i += 1 + test_random_below(&random, 12)) {
            CHECK(wefti_graph_add_output(f->graph, live[i]));
        }
        CHECK(wefti_graph_add_output(f->graph, live[count - 1]));
        CHECK(wefti_graph_prune(f->graph));
        lower_well(f);
        for (uint32_t c = 0; c < f->plan->collective_count; c++) {
            bool same = f->plan->collectives[c].source == f->plan->collectives[c].buffer;
            in_place += same;
            apart += !same;
        }
        test_graph_free(f->graph, f->registry);
        f->graph = test_graph(&f->registry);
    }
    assert_true(in_place > 100 && apart > 100);
}

/* Contents that ranks share are stored once; of the others there is a block for each rank. */
static void test_weights_of_ranks(void **state)
{
    static const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    static const float twos[8] = {2, 2, 2, 2, 2, 2, 2, 2};
    fixture_t *f = *state;
    wefti_graph_t *graphs[RANKS];
    weft_registry_t *registries[RANKS] = {f->registry, NULL};
    graphs[0] = f->graph;
    graphs[1] = test_graph(&registries[1]);
    for (uint32_t r = 0; r < RANKS; r++) {
        uint32_t x = test_input(graphs[r], "x", DIMS(8));
        uint32_t same =
            test_value(graphs[r], "same", WEFTI_VALUE_PARAM, WEFT_DTYPE_F32, DIMS(8), ones);
        uint32_t own = test_value(graphs[r], "own", WEFTI_VALUE_PARAM, WEFT_DTYPE_F32, DIMS(8),
                                  r == 0 ? ones : twos);
        uint32_t a = test_node(graphs[r], "Add", "a", INPUTS(x, same), NULL, 0);
        CHECK(wefti_graph_add_output(graphs[r],
                                     test_node(graphs[r], "Add", "b", INPUTS(a, own), NULL, 0)));
    }
    wefti_lower_params_t params = {.world_size = RANKS,
                                   .policy = "none",
                                   .optimizer = "none",
                                   .model_name = "test",
                                   .infer = true,
                                   .rank_graphs = (const wefti_graph_t *const *)graphs,
                                   .rank_graph_count = RANKS,
                                   .rank_data = true};
    CHECK(test_lower(f->graph, &params, &f->plan));
    CHECK(wefti_plan_seal(f->plan));
    CHECK(wefti_plan_verify(f->plan, f->registry));
    assert_true((f->plan->flags & WEFTI_PLAN_RANK_DATA) != 0);
    assert_null(wefti_plan_program(f->plan, "init"));
    assert_int_equal(f->plan->weights_bytes, 3 * 64);
    assert_int_equal(buffer(f->plan, "same")->rank_data_stride_bytes, 0);
    const wefti_plan_buffer_t *own = buffer(f->plan, "own");
    assert_int_equal(own->rank_data_stride_bytes, 64);
    assert_memory_equal(f->plan->weights + own->data_offset_bytes, ones, sizeof(ones));
    assert_memory_equal(f->plan->weights + own->data_offset_bytes + 64, twos, sizeof(twos));
    test_graph_free(graphs[1], registries[1]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_result_takes_the_memory_of_what_dies),
        TEST(test_a_result_has_memory_of_its_own),
        TEST(test_earlier_readers_do_not_matter),
        TEST(test_a_view_has_the_memory_of_what_it_views),
        TEST(test_memory_lives_until_the_collective_is_over),
        TEST(test_blocks),
        TEST(test_several_tensors),
        TEST(test_what_is_refused),
        TEST(test_random_graphs_are_proved),
        TEST(test_weights_of_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
