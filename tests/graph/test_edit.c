/* SPDX-License-Identifier: Apache-2.0 */
/* Edit lists and reachability, against brute force on random graphs. */
#include "tests/graph/support_graph.h"
#include "tests/support/support_text.h"

#include <stdlib.h>
#include <string.h>

static weft_edit_list_t *new_list(void)
{
    weft_edit_list_t *list;
    CHECK(weft_edit_list_create(NULL, &list));
    return list;
}

static void insert(weft_edit_list_t *list, uint32_t value)
{
    weft_edit_t edit = {.kind = WEFT_EDIT_INSERT_COLLECTIVE,
                        .value = value,
                        .op_name = "AllReduce",
                        .reduction = WEFT_AVG};
    CHECK(weft_edit_list_add(list, &edit));
}

static void fuse(weft_edit_list_t *list, const uint32_t *members, uint32_t count)
{
    weft_edit_t edit = {
        .kind = WEFT_EDIT_FUSE, .members = members, .member_count = count, .text = "because"};
    CHECK(weft_edit_list_add(list, &edit));
}

static void order(weft_edit_list_t *list, uint32_t before, uint32_t after)
{
    weft_edit_t edit = {.kind = WEFT_EDIT_ORDER, .op_a = before, .op_b = after};
    CHECK(weft_edit_list_add(list, &edit));
}

/* count parameters, their gradients made in order from a chain of Tanh. */
static wefti_graph_t *chain(weft_registry_t **registry, uint32_t count, uint32_t *grads)
{
    wefti_graph_t *graph = test_graph(registry);
    uint32_t at = test_input(graph, "x", DIMS(4));
    for (uint32_t i = 0; i < count; i++) {
        uint32_t param = test_param(graph, "w", DIMS(4));
        at = test_node(graph, "Tanh", "t", INPUTS(at), NULL, 0);
        grads[i] = test_node(graph, "Relu", "g", INPUTS(at), NULL, 0);
        graph->values[grads[i]].grad_of = param;
    }
    return graph;
}

static void list_owns_its_edits(void **state)
{
    (void)state;
    weft_edit_list_t *list = new_list();
    uint32_t members[] = {1, 2};
    char text[] = "why";
    weft_edit_t edit = {
        .kind = WEFT_EDIT_FUSE, .members = members, .member_count = 2, .text = text};
    CHECK(weft_edit_list_add(list, &edit));
    members[0] = 9;
    text[0] = 'x';
    assert_int_equal(weft_edit_list_count(list), 1);
    assert_int_equal(weft_edit_list_get(list, 0)->members[0], 1);
    assert_string_equal(weft_edit_list_get(list, 0)->text, "why");
    assert_null(weft_edit_list_get(list, 1));
    edit.kind = (weft_edit_kind_t)99;
    test_expect_error(weft_edit_list_add(list, &edit), WEFT_ERR_INVALID_ARGUMENT, "99");
    weft_edit_list_destroy(list);
    weft_edit_list_destroy(NULL);
}

static void insert_takes_over_users_and_gradient(void **state)
{
    (void)state;
    weft_registry_t *registry;
    uint32_t grads[2];
    wefti_graph_t *graph = chain(&registry, 2, grads);
    uint32_t user =
        test_node_outputs(graph, "", "Add", "user", INPUTS(grads[0], grads[0]), 1, NULL, 0);
    uint32_t param = graph->values[grads[0]].grad_of;
    CHECK(wefti_graph_add_output(graph, grads[0]));
    weft_edit_list_t *list = new_list();
    insert(list, grads[0]);
    CHECK(wefti_graph_apply(graph, list));
    CHECK(wefti_graph_verify(graph));
    uint32_t reduce = graph->node_count - 1, result = graph->nodes[reduce].outputs[0];
    assert_string_equal(graph->nodes[reduce].def->name, "AllReduce");
    assert_string_equal(wefti_node_attr(&graph->nodes[reduce], "reduction")->s, "avg");
    assert_int_equal(graph->nodes[reduce].phase, WEFTI_PHASE_COMM);
    assert_int_equal(graph->nodes[user].inputs[0], result);
    assert_int_equal(graph->nodes[user].inputs[1], result);
    assert_int_equal(graph->nodes[reduce].inputs[0], grads[0]);
    assert_int_equal(graph->values[result].grad_of, param);
    assert_int_equal(graph->values[grads[0]].grad_of, WEFTI_NONE);
    assert_int_equal(graph->outputs[0], result);
    /* right behind its producer */
    assert_int_equal(graph->order[2], reduce);
    weft_edit_list_destroy(list);
    test_graph_free(graph, registry);
}

static void fuse_makes_one_node(void **state)
{
    (void)state;
    weft_registry_t *registry;
    uint32_t grads[4], results[4];
    wefti_graph_t *graph = chain(&registry, 4, grads);
    weft_edit_list_t *list = new_list();
    for (int i = 0; i < 4; i++) {
        insert(list, grads[i]);
    }
    CHECK(wefti_graph_apply(graph, list));
    weft_edit_list_destroy(list);
    uint32_t first = graph->node_count - 4, members[] = {first + 2, first, first + 1};
    for (uint32_t i = 0; i < 4; i++) {
        results[i] = graph->nodes[first + i].outputs[0];
    }
    list = new_list();
    fuse(list, members, 3);
    weft_edit_t algorithm = {.kind = WEFT_EDIT_ALGORITHM, .op_a = first + 1, .text = "mesh,ring"};
    CHECK(weft_edit_list_add(list, &algorithm));
    CHECK(wefti_graph_apply(graph, list));
    CHECK(wefti_graph_verify(graph));
    const wefti_node_t *node = &graph->nodes[graph->node_count - 1];
    assert_int_equal(node->input_count, 3);
    assert_int_equal(node->inputs[0], grads[2]);
    assert_int_equal(node->outputs[0], results[2]);
    assert_int_equal(node->outputs[1], results[0]);
    assert_string_equal(wefti_node_attr(node, "reason")->s, "because");
    assert_string_equal(wefti_node_attr(node, "algorithm")->s, "mesh,ring");
    assert_true(graph->nodes[first].dead);
    assert_int_equal(graph->nodes[first].replaced_by, graph->node_count - 1);
    /* as early as its last input: behind the third gradient, before the fourth */
    uint32_t place = 0, fourth = 0;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        place = graph->order[i] == graph->node_count - 1 ? i : place;
        fourth = graph->order[i] == graph->values[grads[3]].producer ? i : fourth;
    }
    assert_true(place < fourth);
    /* a fused node is fused again by naming the fused node, not its members */
    weft_edit_list_destroy(list);
    list = new_list();
    fuse(list, members, 2);
    test_expect_error(wefti_graph_apply(graph, list), WEFT_ERR_INVALID_ARGUMENT,
                      "was removed or fused before");
    weft_edit_list_destroy(list);
    test_graph_free(graph, registry);
}

static void fusion_refusals(void **state)
{
    (void)state;
    for (int form = 0; form < 5; form++) {
        weft_registry_t *registry;
        wefti_graph_t *graph = test_graph(&registry);
        uint32_t x = test_input(graph, "x", DIMS(4));
        uint32_t y = test_value(graph, "y", WEFTI_VALUE_INPUT, WEFT_DTYPE_F64, DIMS(4), NULL);
        weft_attr_t avg[] = {ATTR_STRING("reduction", "avg")},
                    sum[] = {ATTR_STRING("reduction", "sum")};
        uint32_t a = test_node_outputs(graph, "weft", "AllReduce", "a", INPUTS(x), 1, avg, 1);
        uint32_t b = test_node_outputs(graph, "weft", "AllReduce", "b", INPUTS(form == 0 ? y : x),
                                       1, form == 1 ? sum : avg, 1);
        uint32_t c = test_node_outputs(graph, "weft", "AllReduce", "c",
                                       INPUTS(graph->nodes[a].outputs[0]), 1, avg, 1);
        uint32_t relu = test_node_outputs(graph, "", "Relu", "relu", INPUTS(x), 1, NULL, 0);
        uint32_t members[] = {a, form == 2 ? c : form == 3 ? relu : form == 4 ? a : b};
        static const char *const messages[] = {"differ", "differ", "cycle", "cannot be fused",
                                               "duplicate member"};
        weft_edit_list_t *list = new_list();
        fuse(list, members, 2);
        test_expect_error(wefti_graph_apply(graph, list), WEFT_ERR_INVALID_ARGUMENT,
                          messages[form]);
        weft_edit_list_destroy(list);
        test_graph_free(graph, registry);
    }
}

static void split_marks_one_tensor(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t x = test_input(graph, "x", DIMS(100)); /* 400 bytes: 7 units */
    uint32_t a = test_node_outputs(graph, "weft", "AllReduce", "a", INPUTS(x), 1, NULL, 0);
    uint32_t b = test_node_outputs(graph, "weft", "AllReduce", "b", INPUTS(x), 1, NULL, 0);
    uint32_t relu = test_node_outputs(graph, "", "Relu", "relu", INPUTS(x), 1, NULL, 0);
    static const char *const messages[] = {
        "number of 64-byte units: 1", "number of 64-byte units: 8",
        "not a collective",           "does not exist",
        "was split before",           "on one tensor"};
    for (int form = 0; form < 6; form++) {
        weft_edit_t edit = {.kind = WEFT_EDIT_SPLIT, .op_a = a, .parts = 3};
        uint32_t members[] = {a, b};
        weft_edit_list_t *list = new_list();
        edit.parts = form == 0 ? 1 : form == 1 ? 8 : 3;
        edit.op_a = form == 2 ? relu : form == 3 ? 99 : a;
        if (form == 5) { /* fused first, behind the refusal of form 4 */
            members[0] = b;
            members[1] = test_node_outputs(graph, "weft", "AllReduce", "c", INPUTS(x), 1, NULL, 0);
            assert_int_equal(wefti_node_attr(&graph->nodes[a], "parts")->i, 3);
            fuse(list, members, 2);
            edit.op_a = b;
        }
        CHECK(weft_edit_list_add(list, &edit));
        if (form == 4) {
            fuse(list, members, 2);
        }
        test_expect_error(wefti_graph_apply(graph, list), WEFT_ERR_INVALID_ARGUMENT,
                          messages[form]);
        weft_edit_list_destroy(list);
    }
    test_graph_free(graph, registry);
}

/* Lowering sees to that itself: nothing of the graph changes. */
static void start_and_wait_change_nothing(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t x = test_input(graph, "x", DIMS(100));
    uint32_t a = test_node_outputs(graph, "weft", "AllReduce", "a", INPUTS(x), 1, NULL, 0);
    weft_edit_t edit = {.kind = WEFT_EDIT_START_WAIT, .op_a = a, .op_b = UINT32_MAX};
    weft_edit_list_t *list = new_list();
    uint32_t nodes = graph->node_count, values = graph->value_count;
    CHECK(weft_edit_list_add(list, &edit));
    CHECK(wefti_graph_apply(graph, list));
    assert_int_equal(graph->node_count, nodes);
    assert_int_equal(graph->value_count, values);
    assert_int_equal(graph->nodes[a].attr_count, 0);
    edit.op_a = 99;
    CHECK(weft_edit_list_add(list, &edit));
    test_expect_error(wefti_graph_apply(graph, list), WEFT_ERR_INVALID_ARGUMENT,
                      "start and wait: operator 99 does not exist");
    weft_edit_list_destroy(list);
    test_graph_free(graph, registry);
}

/* a -> d and c -> b: {a, b} and {c, d} are each fine, together they close a cycle. */
static weft_status_t merge(wefti_graph_t *graph, void *user)
{
    const uint32_t *ops = user;
    weft_edit_t edit = {.kind = WEFT_EDIT_MERGE, .op_a = ops[0], .op_b = ops[1]};
    weft_edit_list_t *list = new_list();
    CHECK(weft_edit_list_add(list, &edit));
    weft_status_t status = wefti_graph_apply(graph, list);
    weft_edit_list_destroy(list);
    return status;
}

/* Users of the second node read the first one; anything that differs is refused. */
static void merge_removes_a_repeated_node(void **state)
{
    static const char repeated[] = "input %x : f32[2]\n"
                                   "%a = weft::AllReduce(%x) {reduction=\"sum\"}\n"
                                   "%b = weft::AllReduce(%x) {reduction=\"sum\"}\n"
                                   "%c = weft::AllReduce(%x) {reduction=\"max\"}\n"
                                   "%d = weft::AllReduce(%x) {reduction=\"sum\"}\n"
                                   "%y = Add(%b, %c)\n"
                                   "order %b -> %c\n"
                                   "output %d\n";
    (void)state;
    test_pass(merge, (uint32_t[]){0, 1}, repeated,
              "input %x : f32[2]\n"
              "%a = weft::AllReduce(%x) {reduction=\"sum\"}\n"
              "%c = weft::AllReduce(%x) {reduction=\"max\"}\n"
              "%d = weft::AllReduce(%x) {reduction=\"sum\"}\n"
              "%y = Add(%a, %c)\n"
              "order %a -> %c\n"
              "output %d\n");
    test_pass_error(merge, (uint32_t[]){0, 2}, repeated, WEFT_ERR_INVALID_ARGUMENT,
                    "merge: 'c' does not repeat 'a'");
    test_pass_error(merge, (uint32_t[]){0, 0}, repeated, WEFT_ERR_INVALID_ARGUMENT,
                    "merge: 'a' does not repeat 'a'");
    test_pass_error(merge, (uint32_t[]){0, 3}, repeated, WEFT_ERR_INVALID_ARGUMENT,
                    "merge: 'd' is an output or a gradient of the graph");
    test_pass_error(merge, (uint32_t[]){0, 9}, repeated, WEFT_ERR_INVALID_ARGUMENT,
                    "merge: operator 9 does not exist");
}

static void two_fusions_may_not_cross(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t x = test_input(graph, "x", DIMS(4));
    uint32_t a = test_node_outputs(graph, "weft", "AllReduce", "a", INPUTS(x), 1, NULL, 0);
    uint32_t c = test_node_outputs(graph, "weft", "AllReduce", "c", INPUTS(x), 1, NULL, 0);
    uint32_t d = test_node_outputs(graph, "weft", "AllReduce", "d",
                                   INPUTS(graph->nodes[a].outputs[0]), 1, NULL, 0);
    uint32_t b = test_node_outputs(graph, "weft", "AllReduce", "b",
                                   INPUTS(graph->nodes[c].outputs[0]), 1, NULL, 0);
    weft_edit_list_t *list = new_list();
    fuse(list, (const uint32_t[]){a, b}, 2);
    fuse(list, (const uint32_t[]){c, d}, 2);
    test_expect_error(wefti_graph_apply(graph, list), WEFT_ERR_INVALID_ARGUMENT,
                      "cycle: 'fused_AllReduce");
    weft_edit_list_destroy(list);
    test_graph_free(graph, registry);
}

static void order_edges_hold(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t x = test_input(graph, "x", DIMS(4));
    uint32_t a = test_node_outputs(graph, "", "Relu", "a", INPUTS(x), 1, NULL, 0);
    uint32_t b = test_node_outputs(graph, "", "Relu", "b", INPUTS(x), 1, NULL, 0);
    weft_edit_list_t *list = new_list();
    order(list, b, a);
    CHECK(wefti_graph_apply(graph, list));
    assert_int_equal(graph->order[0], b);
    CHECK(wefti_graph_sort(graph));
    assert_int_equal(graph->order[0], b);
    CHECK(wefti_graph_verify(graph));
    wefti_arena_t arena;
    weft_graph_view_t view;
    wefti_reachability_t *reach;
    wefti_arena_init(&arena, NULL, 0);
    CHECK(wefti_graph_view(graph, &arena, &view));
    assert_int_equal(view.edge_count, 1);
    CHECK(wefti_reachability_create(&view, NULL, &reach));
    assert_true(wefti_reachable(reach, b, a));
    assert_false(wefti_reachable(reach, a, b));
    assert_true(wefti_reachable(reach, a, a));
    assert_false(wefti_reachable(reach, a, 1000));
    wefti_reachability_destroy(reach);
    wefti_arena_deinit(&arena);
    weft_edit_list_destroy(list);
    list = new_list();
    order(list, a, b);
    test_expect_error(wefti_graph_apply(graph, list), WEFT_ERR_INVALID_ARGUMENT, "cycle");
    weft_edit_list_destroy(list);
    test_graph_free(graph, registry);
}

/* paths[a * n + b], by closing over direct edges. */
static uint8_t *brute_force(const wefti_graph_t *graph)
{
    uint32_t n = graph->node_count;
    uint8_t *paths = calloc((size_t)n * n, 1);
    for (uint32_t b = 0; b < n; b++) {
        paths[b * n + b] = 1;
        for (uint32_t k = 0; k < graph->nodes[b].input_count; k++) {
            uint32_t a = graph->values[graph->nodes[b].inputs[k]].producer;
            if (a != WEFTI_NONE) {
                paths[a * n + b] = 1;
            }
        }
    }
    for (uint32_t k = 0; k < n; k++) {
        for (uint32_t a = 0; a < n; a++) {
            for (uint32_t b = 0; b < n && paths[a * n + k]; b++) {
                paths[a * n + b] |= paths[k * n + b];
            }
        }
    }
    return paths;
}

/* Random graphs of Add and AllReduce: reachability equals brute force, and a pair fuses exactly
 * when independent. */
static void random_graphs(void **state)
{
    (void)state;
    test_random_t random = {test_seed()};
    for (int round = 0; round < 60; round++) {
        weft_registry_t *registry;
        wefti_graph_t *graph = test_graph(&registry);
        wefti_arena_t arena;
        weft_graph_view_t view;
        wefti_reachability_t *reach;
        wefti_arena_init(&arena, NULL, 0);
        uint32_t count = 2 + test_random_below(&random, 40);
        test_input(graph, "x", DIMS(2));
        for (uint32_t i = 0; i < count; i++) {
            uint32_t a = test_random_below(&random, graph->value_count),
                     b = test_random_below(&random, graph->value_count);
            if (test_random_below(&random, 2)) {
                test_node(graph, "Add", "add", INPUTS(a, b), NULL, 0);
            } else {
                test_node_outputs(graph, "weft", "AllReduce", "reduce", INPUTS(a), 1, NULL, 0);
            }
        }
        uint8_t *paths = brute_force(graph);
        CHECK(wefti_graph_view(graph, &arena, &view));
        CHECK(wefti_reachability_create(&view, NULL, &reach));
        for (uint32_t i = 0; i < 3 * count * count; i++) {
            uint32_t a = test_random_below(&random, count), b = test_random_below(&random, count);
            assert_int_equal(wefti_reachable(reach, a, b), paths[a * count + b]);
        }
        uint32_t members[2], found = 0;
        for (uint32_t tries = 0; tries < 50 && found < 2; tries++) {
            uint32_t id = test_random_below(&random, count);
            if (graph->nodes[id].input_count == 1 && (found == 0 || members[0] != id)) {
                members[found++] = id;
            }
        }
        if (found == 2) {
            bool dependent =
                paths[members[0] * count + members[1]] || paths[members[1] * count + members[0]];
            weft_edit_list_t *list = new_list();
            fuse(list, members, 2);
            weft_status_t status = wefti_graph_apply(graph, list);
            assert_int_equal(status, dependent ? WEFT_ERR_INVALID_ARGUMENT : WEFT_OK);
            if (!dependent) {
                CHECK(wefti_graph_verify(graph));
            }
            weft_edit_list_destroy(list);
        }
        free(paths);
        wefti_reachability_destroy(reach);
        wefti_arena_deinit(&arena);
        test_graph_free(graph, registry);
    }
}

/* 50,000 inserts, then pairwise fusions, then questions about reachability. */
static void large_edits_are_quick(void **state)
{
    (void)state;
    enum { COUNT = 50000 };
    weft_registry_t *registry;
    uint32_t *grads = malloc(COUNT * sizeof(*grads));
    wefti_graph_t *graph = chain(&registry, COUNT, grads);
    weft_edit_list_t *list = new_list();
    uint64_t start = test_cpu_ns();
    for (uint32_t i = 0; i < COUNT; i++) {
        insert(list, grads[i]);
    }
    CHECK(wefti_graph_apply(graph, list));
    weft_edit_list_destroy(list);
    uint64_t inserted = test_cpu_ns();
    uint32_t first = graph->node_count - COUNT;
    list = new_list();
    for (uint32_t i = 0; i + 1 < COUNT; i += 2) {
        fuse(list, (const uint32_t[]){first + i, first + i + 1}, 2);
    }
    CHECK(wefti_graph_apply(graph, list));
    weft_edit_list_destroy(list);
    uint64_t fused = test_cpu_ns();
    wefti_arena_t arena;
    weft_graph_view_t view;
    wefti_reachability_t *reach;
    wefti_arena_init(&arena, NULL, 0);
    CHECK(wefti_graph_view(graph, &arena, &view));
    CHECK(wefti_reachability_create(&view, NULL, &reach));
    uint32_t last = view.order[view.order_count - 1];
    for (uint32_t i = 0; i < 2000; i++) {
        assert_true(wefti_reachable(reach, 0, last));
        assert_false(wefti_reachable(reach, view.op_count - 1 - i,
                                     last == view.op_count - 1 - i ? 0 : last));
    }
    uint64_t asked = test_cpu_ns();
    print_message("%d inserts %.0f ms, %d fusions %.0f ms, view and 4,000 questions %.0f ms\n",
                  COUNT, (double)(inserted - start) / 1e6, COUNT / 2,
                  (double)(fused - inserted) / 1e6, (double)(asked - fused) / 1e6);
    assert_true(asked - start < 8000000000u);
    wefti_reachability_destroy(reach);
    wefti_arena_deinit(&arena);
    free(grads);
    test_graph_free(graph, registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(list_owns_its_edits),
        cmocka_unit_test(insert_takes_over_users_and_gradient),
        cmocka_unit_test(fuse_makes_one_node),
        cmocka_unit_test(fusion_refusals),
        cmocka_unit_test(split_marks_one_tensor),
        cmocka_unit_test(start_and_wait_change_nothing),
        cmocka_unit_test(merge_removes_a_repeated_node),
        cmocka_unit_test(two_fusions_may_not_cross),
        cmocka_unit_test(order_edges_hold),
        cmocka_unit_test(random_graphs),
        cmocka_unit_test(large_edits_are_quick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
