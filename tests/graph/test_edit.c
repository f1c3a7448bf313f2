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
    weft_edit_t edit = {.kind = WEFT_EDIT_KIND_INSERT_COLLECTIVE,
                        .value = value,
                        .op_name = "AllReduce",
                        .reduction = WEFT_REDUCTION_AVG};
    CHECK(weft_edit_list_add(list, &edit));
}

static void fuse(weft_edit_list_t *list, const uint32_t *members, uint32_t count)
{
    weft_edit_t edit = {
        .kind = WEFT_EDIT_KIND_FUSE, .members = members, .member_count = count, .text = "because"};
    CHECK(weft_edit_list_add(list, &edit));
}

static void order(weft_edit_list_t *list, uint32_t before, uint32_t after)
{
    weft_edit_t edit = {.kind = WEFT_EDIT_KIND_ORDER, .op_a = before, .op_b = after};
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
        .kind = WEFT_EDIT_KIND_FUSE, .members = members, .member_count = 2, .text = text};
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

/* Edits end with kind 0. */
static weft_status_t apply(wefti_graph_t *graph, void *user)
{
    weft_edit_list_t *list = new_list();
    for (const weft_edit_t *edit = user; edit->kind; edit++) {
        CHECK(weft_edit_list_add(list, edit));
    }
    weft_status_t status = wefti_graph_apply(graph, list);
    weft_edit_list_destroy(list);
    return status;
}

#define EDITS(...) ((weft_edit_t[]){__VA_ARGS__, {0}})
#define FUSE(...)                                                                                  \
    {                                                                                              \
        .kind = WEFT_EDIT_KIND_FUSE, .members = (const uint32_t[]){__VA_ARGS__},                   \
        .member_count = sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t),                \
        .text = "because"                                                                          \
    }
#define SPLIT(op, n)                                                                               \
    {                                                                                              \
        .kind = WEFT_EDIT_KIND_SPLIT, .op_a = (op), .parts = (n), .text = "large"                  \
    }

static void insert_takes_over_users_and_gradient(void **state)
{
    (void)state;
    test_pass(apply,
              EDITS({.kind = WEFT_EDIT_KIND_INSERT_COLLECTIVE,
                     .value = 2,
                     .op_name = "AllReduce",
                     .reduction = WEFT_REDUCTION_AVG}),
              "input %x : f32[4]\n"
              "param %w : f32[4]\n"
              "%g = Relu(%x) : grad(%w)\n"
              "%t = Tanh(%x)\n"
              "%user = Add(%g, %g)\n"
              "output %g\n",
              "input %x : f32[4]\n"
              "param %w : f32[4]\n"
              "%g = Relu(%x)\n"
              "comm %g_reduced = weft::AllReduce(%g) {group=0, reduction=\"avg\"} : grad(%w) as "
              "\"AllReduce(g)\"\n"
              "%t = Tanh(%x)\n"
              "%user = Add(%g_reduced, %g_reduced)\n"
              "output %g_reduced\n");
}

/* The fused node runs as early as its last input: after the third gradient, before the fourth. */
static void fuse_makes_one_node(void **state)
{
    static const char text[] = "input %x : f32[4]\n"
                               "%a = Relu(%x)\n"
                               "%ra = weft::AllReduce(%a)\n"
                               "%b = Relu(%x)\n"
                               "%rb = weft::AllReduce(%b)\n"
                               "%c = Relu(%x)\n"
                               "%rc = weft::AllReduce(%c)\n"
                               "%d = Relu(%x)\n"
                               "%rd = weft::AllReduce(%d)\n";
    (void)state;
    test_pass(
        apply,
        EDITS(FUSE(5, 1, 3), {.kind = WEFT_EDIT_KIND_ALGORITHM, .op_a = 3, .text = "mesh,ring"}),
        text,
        "input %x : f32[4]\n"
        "%a = Relu(%x)\n"
        "%b = Relu(%x)\n"
        "%c = Relu(%x)\n"
        "%rc, %ra, %rb = weft::AllReduce(%c, %a, %b) {reason=\"because\", "
        "algorithm=\"mesh,ring\"} as fused_AllReduce_8\n"
        "%d = Relu(%x)\n"
        "%rd = weft::AllReduce(%d)\n");
    /* A fused node is fused again by naming the fused node, not its members. */
    test_pass_error(apply, EDITS(FUSE(5, 1, 3), FUSE(5, 1)), text, WEFT_ERR_INVALID_ARGUMENT,
                    "was removed or fused before");
}

static void fusion_refusals(void **state)
{
    static const struct {
        uint32_t with;
        const char *message;
    } rows[] = {{1, "differ"},
                {2, "differ"},
                {3, "cycle"},
                {4, "cannot be fused"},
                {0, "duplicate member"}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        test_pass_error(apply, EDITS(FUSE(0, rows[i].with)),
                        "input %x : f32[4]\n"
                        "input %y : f64[4]\n"
                        "%a = weft::AllReduce(%x) {reduction=\"avg\"}\n"
                        "%type = weft::AllReduce(%y) {reduction=\"avg\"}\n"
                        "%sum = weft::AllReduce(%x) {reduction=\"sum\"}\n"
                        "%user = weft::AllReduce(%a) {reduction=\"avg\"}\n"
                        "%relu = Relu(%x)\n",
                        WEFT_ERR_INVALID_ARGUMENT, rows[i].message);
    }
    /* a -> d and c -> b: {a, b} and {c, d} are each fine, together they close a cycle. */
    test_pass_error(apply, EDITS(FUSE(0, 3), FUSE(1, 2)),
                    "input %x : f32[4]\n"
                    "%a = weft::AllReduce(%x)\n"
                    "%c = weft::AllReduce(%x)\n"
                    "%d = weft::AllReduce(%a)\n"
                    "%b = weft::AllReduce(%c)\n",
                    WEFT_ERR_INVALID_ARGUMENT, "cycle: 'fused_AllReduce");
}

/* 400 bytes: 7 units. */
static const char two_reduces[] = "input %x : f32[100]\n"
                                  "%a = weft::AllReduce(%x)\n"
                                  "%b = weft::AllReduce(%x)\n"
                                  "%relu = Relu(%x)\n";

static void split_marks_one_tensor(void **state)
{
    const struct {
        weft_edit_t *edits;
        const char *message;
    } rows[] = {{EDITS(SPLIT(0, 1)), "number of 64-byte units: 1"},
                {EDITS(SPLIT(0, 8)), "number of 64-byte units: 8"},
                {EDITS(SPLIT(2, 3)), "not a collective"},
                {EDITS(SPLIT(99, 3)), "does not exist"},
                {EDITS(SPLIT(0, 3), FUSE(0, 1)), "was split before"},
                {EDITS(FUSE(0, 1), SPLIT(1, 3)), "on one tensor"}};
    (void)state;
    test_pass(apply, EDITS(SPLIT(0, 3)), two_reduces,
              "input %x : f32[100]\n"
              "%a = weft::AllReduce(%x) {parts=3, split_reason=\"large\"}\n"
              "%b = weft::AllReduce(%x)\n"
              "%relu = Relu(%x)\n");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        test_pass_error(apply, rows[i].edits, two_reduces, WEFT_ERR_INVALID_ARGUMENT,
                        rows[i].message);
    }
}

/* Lowering sees to that itself: nothing of the graph changes. */
static void start_and_wait_change_nothing(void **state)
{
    (void)state;
    test_pass(apply, EDITS({.kind = WEFT_EDIT_KIND_START_WAIT, .op_a = 0, .op_b = UINT32_MAX}),
              two_reduces, two_reduces);
    test_pass_error(
        apply, EDITS({.kind = WEFT_EDIT_KIND_START_WAIT, .op_a = 99, .op_b = UINT32_MAX}),
        two_reduces, WEFT_ERR_INVALID_ARGUMENT, "start and wait: operator 99 does not exist");
}

#define MERGE(a, b)                                                                                \
    {                                                                                              \
        .kind = WEFT_EDIT_KIND_MERGE, .op_a = (a), .op_b = (b)                                     \
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
    test_pass(apply, EDITS(MERGE(0, 1)), repeated,
              "input %x : f32[2]\n"
              "%a = weft::AllReduce(%x) {reduction=\"sum\"}\n"
              "%c = weft::AllReduce(%x) {reduction=\"max\"}\n"
              "%d = weft::AllReduce(%x) {reduction=\"sum\"}\n"
              "%y = Add(%a, %c)\n"
              "order %a -> %c\n"
              "output %d\n");
    test_pass_error(apply, EDITS(MERGE(0, 2)), repeated, WEFT_ERR_INVALID_ARGUMENT,
                    "merge: 'c' does not repeat 'a'");
    test_pass_error(apply, EDITS(MERGE(0, 0)), repeated, WEFT_ERR_INVALID_ARGUMENT,
                    "merge: 'a' does not repeat 'a'");
    test_pass_error(apply, EDITS(MERGE(0, 3)), repeated, WEFT_ERR_INVALID_ARGUMENT,
                    "merge: 'd' is an output or a gradient of the graph");
    test_pass_error(apply, EDITS(MERGE(0, 9)), repeated, WEFT_ERR_INVALID_ARGUMENT,
                    "merge: operator 9 does not exist");
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
        cmocka_unit_test(order_edges_hold),
        cmocka_unit_test(random_graphs),
        cmocka_unit_test(large_edits_are_quick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
