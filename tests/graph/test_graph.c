/* SPDX-License-Identifier: Apache-2.0 */
/* Values, nodes, names, order, verifier, prune, view. */
#include "tests/graph/support_graph.h"

#include <stdlib.h>
#include <string.h>

static void names_are_unique_and_found(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t a = test_input(graph, "x", DIMS(2));
    uint32_t b = test_input(graph, "x", DIMS(2));
    uint32_t c = test_input(graph, "x.2", DIMS(2));
    assert_string_equal(graph->values[a].name, "x");
    assert_string_equal(graph->values[b].name, "x.2");
    assert_string_equal(graph->values[c].name, "x.2.2");
    assert_int_equal(wefti_graph_find_value(graph, "x.2"), b);
    CHECK(wefti_graph_rename_value(graph, a, "y"));
    assert_int_equal(wefti_graph_find_value(graph, "x"), WEFTI_NONE);
    assert_int_equal(wefti_graph_find_value(graph, "y"), a);
    uint32_t d = test_input(graph, "x", DIMS(2));
    assert_string_equal(graph->values[d].name, "x");
    assert_int_equal(wefti_graph_find_value(graph, "nobody"), WEFTI_NONE);
    assert_int_equal(graph->input_count, 4);
    CHECK(wefti_graph_verify(graph));
    test_graph_free(graph, registry);
}

static void nodes_infer_types_and_check_counts(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t x = test_input(graph, "x", DIMS(-1, 3)), w = test_param(graph, "w", DIMS(5, 3));
    weft_attr_t attrs[] = {ATTR_INT("transB", 1)};
    uint32_t y = test_node(graph, "Gemm", "fc", INPUTS(x, w), attrs, 1);
    assert_int_equal(graph->values[y].type.rank, 2);
    assert_int_equal(graph->values[y].type.dims[0], -1);
    assert_int_equal(graph->values[y].type.dims[1], 5);
    assert_int_equal(wefti_value_bytes(&graph->values[y]), 0);
    assert_int_equal(wefti_value_bytes(&graph->values[w]), 60);
    /* attributes are copies */
    attrs[0].i = 0;
    assert_int_equal(wefti_node_attr(&graph->nodes[0], "transB")->i, 1);
    assert_null(wefti_node_attr(&graph->nodes[0], "transA"));

    uint32_t node, inputs[] = {x, w, x, x};
    wefti_node_params_t params = {
        .op = "Gemm", .name = "many", .inputs = inputs, .input_count = 4, .output_count = 1};
    test_expect_error(wefti_graph_add_node(graph, &params, &node), WEFT_ERR_INVALID_ARGUMENT,
                      "'many' (Gemm): wrong number of inputs: 4, expected 2 to 3");
    params.op = "Gemmm";
    test_expect_error(wefti_graph_add_node(graph, &params, &node), WEFT_ERR_UNSUPPORTED, "Gemmm");
    params.op = "MatMul";
    params.name = "mm";
    params.input_count = 2;
    test_expect_error(wefti_graph_add_node(graph, &params, &node), WEFT_ERR_INVALID_ARGUMENT,
                      "node 'mm' (MatMul)");
    test_graph_free(graph, registry);
}

static void verify_names_what_is_broken(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t x = test_input(graph, "x", DIMS(2));
    uint32_t a = test_node(graph, "Relu", "a", INPUTS(x), NULL, 0);
    uint32_t b = test_node(graph, "Tanh", "b", INPUTS(a), NULL, 0);
    CHECK(wefti_graph_verify(graph));
    graph->order[0] = 1;
    graph->order[1] = 0;
    test_expect_error(wefti_graph_verify(graph), WEFT_ERR_INVALID_ARGUMENT,
                      "node 'b': reads 'a' before");
    CHECK(wefti_graph_sort(graph));
    CHECK(wefti_graph_verify(graph));
    graph->order[1] = 0;
    test_expect_error(wefti_graph_verify(graph), WEFT_ERR_INVALID_ARGUMENT,
                      "order[1]: node 0 does not exist or is a duplicate");
    graph->order[1] = 1;
    graph->values[b].producer_output = 3;
    test_expect_error(wefti_graph_verify(graph), WEFT_ERR_INVALID_ARGUMENT, "value 'b'");
    graph->values[b].producer_output = 0;
    graph->values[b].grad_of = x;
    test_expect_error(wefti_graph_verify(graph), WEFT_ERR_INVALID_ARGUMENT, "gradient 'b'");
    graph->values[b].grad_of = WEFTI_NONE;
    graph->values[b].type.rank = 9;
    test_expect_error(wefti_graph_verify(graph), WEFT_ERR_INVALID_ARGUMENT,
                      "value 'b': too many dimensions: 9, limit 8");
    graph->values[b].type.rank = 1;
    graph->loss = b;
    test_expect_error(wefti_graph_verify(graph), WEFT_ERR_INVALID_ARGUMENT, "loss");
    graph->loss = WEFTI_NONE;
    graph->nodes[0].inputs[0] = 77;
    test_expect_error(wefti_graph_verify(graph), WEFT_ERR_INVALID_ARGUMENT, "node 'a'");
    test_graph_free(graph, registry);
}

static void cycles_are_named(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t x = test_input(graph, "x", DIMS(2));
    uint32_t a = test_node(graph, "Relu", "a", INPUTS(x), NULL, 0);
    uint32_t b = test_node(graph, "Add", "b", INPUTS(a, x), NULL, 0);
    uint32_t c = test_node(graph, "Relu", "c", INPUTS(b), NULL, 0);
    test_node(graph, "Relu", "behind", INPUTS(c), NULL, 0);
    graph->nodes[1].inputs[1] = c;
    test_expect_error(wefti_graph_sort(graph), WEFT_ERR_INVALID_ARGUMENT, "'b'");
    assert_non_null(strstr(weft_last_error(), "'c'"));
    assert_null(strstr(weft_last_error(), "'behind'"));
    assert_null(strstr(weft_last_error(), "'a'"));
    graph->nodes[1].inputs[1] = b;
    test_expect_error(wefti_graph_sort(graph), WEFT_ERR_INVALID_ARGUMENT, "'b' needs 'b'");
    test_graph_free(graph, registry);
}

/* Random graphs, shuffled: sorting restores a valid order, and leaves a valid one alone. */
static void sort_random_graphs(void **state)
{
    (void)state;
    test_random_t random = {test_seed()};
    for (int round = 0; round < 50; round++) {
        weft_registry_t *registry;
        wefti_graph_t *graph = test_graph(&registry);
        uint32_t count = 1 + test_random_below(&random, 60);
        test_input(graph, "x", DIMS(2));
        for (uint32_t i = 0; i < count; i++) {
            uint32_t a = test_random_below(&random, graph->value_count);
            uint32_t b = test_random_below(&random, graph->value_count);
            test_node(graph, "Add", "n", INPUTS(a, b), NULL, 0);
        }
        uint32_t *before = malloc(count * sizeof(*before));
        memcpy(before, graph->order, count * sizeof(*before));
        CHECK(wefti_graph_sort(graph));
        assert_memory_equal(before, graph->order, count * sizeof(*before));
        for (uint32_t i = count; i > 1; i--) {
            uint32_t k = test_random_below(&random, i), swap = graph->order[i - 1];
            graph->order[i - 1] = graph->order[k];
            graph->order[k] = swap;
        }
        CHECK(wefti_graph_sort(graph));
        CHECK(wefti_graph_verify(graph));
        free(before);
        test_graph_free(graph, registry);
    }
}

/* A node that updates in place runs after all readers, whatever order it was added in. */
static void updates_run_after_readers(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t w = test_param(graph, "w", DIMS(4)), g = test_input(graph, "g", DIMS(4));
    uint32_t lr = test_value(graph, "lr", WEFTI_VALUE_SCALAR, WEFT_DTYPE_F32, NULL, NULL);
    uint32_t update =
        test_node_outputs(graph, "weft", "SGD", "update", INPUTS(w, g, lr), 1, NULL, 0);
    test_node(graph, "Relu", "reader", INPUTS(w), NULL, 0);
    test_expect_error(wefti_graph_verify(graph), WEFT_ERR_INVALID_ARGUMENT,
                      "'reader' must run before 'update'");
    CHECK(wefti_graph_sort(graph));
    CHECK(wefti_graph_verify(graph));
    assert_int_equal(graph->order[1], update);
    test_graph_free(graph, registry);
}

static uint32_t insert_relu(wefti_graph_t *graph, const char *name, uint32_t input, uint32_t after)
{
    const wefti_node_params_t params = {
        .op = "Relu", .name = name, .inputs = &input, .input_count = 1, .output_count = 1};
    uint32_t node;
    CHECK(wefti_graph_insert_node(graph, &params, after, &node));
    return node;
}

static void replace_node(wefti_graph_t *graph, uint32_t node, uint32_t by)
{
    graph->nodes[node].dead = true;
    graph->nodes[node].replaced_by = by;
}

/* After a node that was removed; as soon as the input is computed; where the last of two replaced
 * nodes was. Of nodes in one place the first that was inserted goes first. */
static void inserted_nodes_take_their_places(void **state)
{
    (void)state;
    static const char *const expected[] = {"a", "ready", "b", "after", "after2", "d", "fused", "f"};
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t x = test_input(graph, "x", DIMS(2)), a = 0;
    for (const char *name = "abcdef"; *name != '\0'; name++) {
        const char text[] = {*name, '\0'};
        uint32_t value = test_node(graph, "Tanh", text, INPUTS(x), NULL, 0);
        a = *name == 'a' ? value : a;
    }
    insert_relu(graph, "after", x, 2);
    insert_relu(graph, "ready", a, WEFTI_WHEN_READY);
    insert_relu(graph, "after2", x, 2);
    uint32_t fused = insert_relu(graph, "fused", x, WEFTI_AS_REPLACED);
    replace_node(graph, 2, fused);
    replace_node(graph, 4, fused);
    CHECK(wefti_graph_sort(graph));
    CHECK(wefti_graph_verify(graph));
    assert_int_equal(graph->order_count, 8);
    for (uint32_t i = 0; i < graph->order_count; i++) {
        assert_string_equal(graph->nodes[graph->order[i]].name, expected[i]);
    }
    CHECK(wefti_graph_sort(graph)); /* places hold for one sort only */
    assert_string_equal(graph->nodes[graph->order[1]].name, "ready");
    test_graph_free(graph, registry);
}

static void prune_keeps_what_is_needed(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t x = test_input(graph, "x", DIMS(2));
    uint32_t a = test_node(graph, "Relu", "a", INPUTS(x), NULL, 0);
    uint32_t dead = test_node(graph, "Relu", "dead", INPUTS(a), NULL, 0);
    test_node(graph, "Relu", "dead2", INPUTS(dead), NULL, 0);
    uint32_t y = test_node(graph, "Tanh", "y", INPUTS(a), NULL, 0);
    test_node_outputs(graph, "weft", "AllReduce", "talks", INPUTS(x), 1, NULL, 0);
    CHECK(wefti_graph_add_output(graph, y));
    CHECK(wefti_graph_prune(graph));
    CHECK(wefti_graph_verify(graph));
    assert_int_equal(graph->order_count, 3);
    assert_true(graph->nodes[1].dead && graph->nodes[2].dead);
    test_graph_free(graph, registry);
}

static void replace_uses_moves_outputs(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t x = test_input(graph, "x", DIMS(2));
    uint32_t a = test_node(graph, "Relu", "a", INPUTS(x), NULL, 0);
    uint32_t b = test_node(graph, "Identity", "b", INPUTS(a), NULL, 0);
    test_node(graph, "Add", "c", INPUTS(a, a), NULL, 0);
    CHECK(wefti_graph_add_output(graph, a));
    wefti_graph_replace_uses(graph, a, b, 1);
    assert_int_equal(graph->nodes[1].inputs[0], a);
    assert_int_equal(graph->nodes[2].inputs[0], b);
    assert_int_equal(graph->nodes[2].inputs[1], b);
    assert_int_equal(graph->outputs[0], b);
    graph->nodes[2].dead = true;
    wefti_graph_compact_order(graph);
    assert_int_equal(graph->order_count, 2);
    CHECK(wefti_graph_verify(graph));
    test_graph_free(graph, registry);
}

/* The view says about every value and op what the graph says. */
static void view_matches_graph(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    wefti_arena_t arena;
    weft_graph_view_t view;
    wefti_arena_init(&arena, NULL, 0);
    uint32_t x = test_input(graph, "x", DIMS(2, 3)), w = test_param(graph, "w", DIMS(2, 3));
    uint32_t a = test_node(graph, "Add", "a", INPUTS(x, w), NULL, 0);
    uint32_t b = test_node(graph, "Add", "b", INPUTS(a, a), NULL, 0);
    weft_attr_t attrs[] = {ATTR_STRING("reduction", "avg"), ATTR_INT("group", 0)};
    uint32_t r = test_node_outputs(graph, "weft", "AllReduce", "r", INPUTS(b), 1, attrs, 2);
    graph->values[b].grad_of = w;
    uint32_t gone = test_node_outputs(graph, "", "Relu", "gone", INPUTS(x), 1, NULL, 0);
    graph->nodes[gone].dead = true;
    wefti_graph_compact_order(graph);
    CHECK(wefti_graph_view(graph, &arena, &view));
    assert_int_equal(view.struct_size, sizeof(view));
    assert_int_equal(view.op_count, 4);
    assert_int_equal(view.order_count, 3);
    assert_int_equal(view.ops[3].present, 0);
    assert_int_equal(view.values[x].bytes, 24);
    assert_int_equal(view.values[x].producer, UINT32_MAX);
    assert_int_equal(view.values[x].user_count, 1);
    assert_int_equal(view.values[a].user_count, 2);
    assert_int_equal(view.users[view.values[a].first_user], 1);
    assert_int_equal(view.values[b].grad_of, w);
    assert_int_equal(view.values[b].producer, 1);
    assert_int_equal(view.op_inputs[view.ops[1].first_input + 1], a);
    assert_int_equal(view.op_outputs[view.ops[r].first_output], graph->nodes[r].outputs[0]);
    assert_int_equal(view.ops[r].reduction, WEFT_REDUCTION_AVG);
    assert_true(view.ops[r].effects & WEFT_EFFECT_COMMUNICATES);
    wefti_arena_deinit(&arena);
    test_graph_free(graph, registry);
}

/* Near-linear: 100,000 nodes with colliding names, sorted, verified and viewed. */
/* eval runs Identity in place of DropoutMask; readers keep reading the output of DropoutMask. */
static void programs_are_lists_of_nodes(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    uint32_t x = test_input(graph, "x", DIMS(2));
    uint32_t a = test_node(graph, "Relu", "a", INPUTS(x), NULL, 0);
    uint32_t kept = test_node(graph, "Identity", "a.eval", INPUTS(x), NULL, 0);
    uint32_t b = test_node(graph, "Tanh", "b", INPUTS(a), NULL, 0);
    uint32_t all[] = {2, 0}, eval[] = {1, 2}, broken[] = {2};
    graph->values[kept].alias_of = a;
    CHECK(wefti_graph_add_output(graph, b));
    CHECK(wefti_graph_add_program(graph, "step", all, 2));
    CHECK(wefti_graph_add_program(graph, "eval", eval, 2));
    CHECK(wefti_graph_verify(graph));
    assert_int_equal(wefti_graph_variant_of(graph, 1), 0);
    assert_int_equal(wefti_graph_variant_of(graph, 0), WEFTI_NONE);
    assert_int_equal(wefti_graph_find_program(graph, "step")->nodes[0], 0);
    wefti_text_t text;
    wefti_text_init(&text, NULL);
    wefti_graph_to_text(graph, UINT32_MAX, &text);
    assert_non_null(strstr(text.data, "%a.eval = Identity(%x) : f32[2] alias(%a)\n"));
    assert_non_null(strstr(text.data, "program step: %a, %b\nprogram eval: %a.eval, %b\n"));
    wefti_text_deinit(&text);

    test_expect_error(wefti_graph_add_program(graph, "eval", eval, 2), WEFT_ERR_INVALID_ARGUMENT,
                      "duplicate program 'eval'");
    CHECK(wefti_graph_add_program(graph, "broken", broken, 1));
    test_expect_error(wefti_graph_verify(graph), WEFT_ERR_INVALID_ARGUMENT,
                      "program 'broken': node 'b' reads 'a', which no earlier node of it produces");
    graph->values[a].flags |= WEFTI_VALUE_PERSISTENT;
    CHECK(wefti_graph_verify(graph));
    graph->values[kept].type.dims[0] = 3;
    test_expect_error(wefti_graph_verify(graph), WEFT_ERR_INVALID_ARGUMENT,
                      "alias 'a.eval': type does not match value 'a': f32 [3] and f32 [2]");
    test_graph_free(graph, registry);
}

static void large_graph_is_quick(void **state)
{
    (void)state;
    weft_registry_t *registry;
    wefti_graph_t *graph = test_graph(&registry);
    test_random_t random = {1};
    uint32_t node;
    uint64_t start = test_cpu_ns();
    test_input(graph, "x", DIMS(2));
    for (uint32_t i = 0; i < 100000; i++) {
        uint32_t inputs[] = {graph->value_count - 1 -
                                 test_random_below(&random, graph->value_count < 50 ? 1 : 50),
                             test_random_below(&random, graph->value_count)};
        const char *name = "same";
        wefti_node_params_t params = {.op = "Add",
                                      .name = name,
                                      .inputs = inputs,
                                      .input_count = 2,
                                      .output_names = &name,
                                      .output_count = 1};
        CHECK(wefti_graph_add_node(graph, &params, &node));
    }
    uint64_t built = test_cpu_ns();
    CHECK(wefti_graph_sort(graph));
    uint64_t sorted = test_cpu_ns();
    CHECK(wefti_graph_verify(graph));
    uint64_t verified = test_cpu_ns();
    print_message("100,000 nodes: build %.0f ms, sort %.0f ms, verify %.0f ms\n",
                  (double)(built - start) / 1e6, (double)(sorted - built) / 1e6,
                  (double)(verified - sorted) / 1e6);
    assert_true(verified - start < 5000000000u); /* quadratic would be minutes */
    test_graph_free(graph, registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_unique_and_found),
        cmocka_unit_test(nodes_infer_types_and_check_counts),
        cmocka_unit_test(verify_names_what_is_broken),
        cmocka_unit_test(cycles_are_named),
        cmocka_unit_test(sort_random_graphs),
        cmocka_unit_test(updates_run_after_readers),
        cmocka_unit_test(inserted_nodes_take_their_places),
        cmocka_unit_test(prune_keeps_what_is_needed),
        cmocka_unit_test(replace_uses_moves_outputs),
        cmocka_unit_test(view_matches_graph),
        cmocka_unit_test(programs_are_lists_of_nodes),
        cmocka_unit_test(large_graph_is_quick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
