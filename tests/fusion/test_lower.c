/* SPDX-License-Identifier: Apache-2.0 */
/* Lowering of graphs that training a plain model does not make. */
#include <string.h>

#include "fusion/fusion.h"
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

static const float contents[1024];

static uint32_t add_value(wefti_graph_t *graph, const char *name, wefti_value_kind_t kind,
                          int64_t elems)
{
    weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_F32, .rank = 1, .dims = {elems}};
    uint32_t value;
    type.data = kind == WEFTI_VALUE_PARAM ? contents : NULL;
    type.rank = kind == WEFTI_VALUE_SCALAR ? 0 : 1;
    assert_int_equal(wefti_graph_add_value(graph, name, kind, &type, &value), WEFT_OK);
    return value;
}

static uint32_t add_op(wefti_graph_t *graph, const char *domain, const char *op,
                       const uint32_t *inputs, uint32_t count, wefti_phase_t phase)
{
    uint32_t node;
    wefti_node_params_t params = {.domain = domain,
                                  .op = op,
                                  .inputs = inputs,
                                  .input_count = count,
                                  .output_count = 1,
                                  .phase = phase};
    if (wefti_graph_add_node(graph, &params, &node) < 0) {
        fail_msg("%s", weft_last_error());
    }
    return graph->nodes[node].outputs[0];
}

static uint32_t relu(wefti_graph_t *graph, uint32_t input)
{
    return add_op(graph, "", "Relu", &input, 1, WEFTI_PHASE_FORWARD);
}

/* A parameter, its gradient, the all-reduce (of "op") and an SGD update with this weight decay. */
static void add_training(wefti_graph_t *graph, const char *name, int64_t elems, uint32_t lr,
                         float decay)
{
    const weft_attr_t attr = {.name = "weight_decay", .type = WEFT_ATTR_TYPE_FLOAT, .f = decay};
    uint32_t inputs[3], node, grad;
    wefti_node_params_t params = {.domain = "weft",
                                  .op = "SGD",
                                  .inputs = inputs,
                                  .input_count = 3,
                                  .output_count = 1,
                                  .phase = WEFTI_PHASE_UPDATE,
                                  .attrs = &attr,
                                  .attr_count = 1};
    inputs[0] = add_value(graph, name, WEFTI_VALUE_PARAM, elems);
    grad = add_op(graph, "", "Relu", inputs, 1, WEFTI_PHASE_BACKWARD);
    inputs[1] = add_op(graph, "weft", "AllReduce", &grad, 1, WEFTI_PHASE_COMM);
    graph->values[inputs[1]].grad_of = inputs[0];
    inputs[2] = lr;
    assert_int_equal(wefti_graph_add_node(graph, &params, &node), WEFT_OK);
}

static weft_status_t fuse(wefti_graph_t *graph, weft_edit_list_t **out_edits)
{
    weft_status_t status;
    weft_graph_view_t view = WEFT_GRAPH_VIEW_INIT;
    wefti_policy_t policy = {.kind = WEFTI_POLICY_ONE};
    wefti_arena_t arena;
    wefti_arena_init(&arena, NULL, 0);
    assert_int_equal(wefti_graph_view(graph, &arena, &view), WEFT_OK);
    wefti_bucket_params_t params = {.policy = &policy};
    assert_int_equal(wefti_pass_bucket(&view, &params, out_edits, NULL), WEFT_OK);
    status = wefti_graph_apply(graph, *out_edits);
    wefti_arena_deinit(&arena);
    return status;
}

static void split(wefti_graph_t *graph, uint32_t op, uint32_t parts)
{
    weft_edit_t edit = {
        .kind = WEFT_EDIT_KIND_SPLIT, .op_a = op, .parts = parts, .text = "is for a test"};
    weft_edit_list_t *edits;
    assert_int_equal(weft_edit_list_create(NULL, &edits), WEFT_OK);
    assert_int_equal(weft_edit_list_add(edits, &edit), WEFT_OK);
    assert_int_equal(wefti_graph_apply(graph, edits), WEFT_OK);
    weft_edit_list_destroy(edits);
}

static weft_status_t lower(wefti_graph_t *graph, weft_plan_t **out_plan)
{
    wefti_lower_params_t params = {
        .world_size = 2,
        .policy = "one",
        .optimizer = "sgd",
        .model_name = "test",
    };
    return test_lower(graph, &params, out_plan);
}

/* Steps as text: k kernel, c collective, r record, w wait. */
static const char *steps_as_text(const weft_plan_t *plan, const char *program, uint32_t stream,
                                 char *text)
{
    const wefti_plan_stream_program_t *steps = &wefti_plan_program(plan, program)->streams[stream];
    uint32_t i;
    for (i = 0; i < steps->step_count && i < 63; i++) {
        text[i] = " kcrw"[steps->steps[i].kind];
    }
    text[i] = '\0';
    return text;
}

static uint32_t count_updates(const weft_plan_t *plan)
{
    uint32_t count = 0;
    for (uint32_t k = 0; k < plan->kernel_count; k++) {
        count += plan->kernels[k].phase == WEFTI_PHASE_UPDATE;
    }
    return count;
}

static void test_lower_a_collective_inside_the_forward_pass(void **state)
{
    wefti_graph_t *graph = ((fixture_t *)*state)->graph;
    uint32_t x = add_value(graph, "x", WEFTI_VALUE_INPUT, 16), a = relu(graph, x), b, c;
    weft_plan_t *plan;
    char text[64];
    b = add_op(graph, "weft", "AllReduce", &a, 1, WEFTI_PHASE_COMM);
    c = relu(graph, b);
    relu(graph, x); /* takes nothing from the collective's memory while peers read there */
    assert_int_equal(wefti_graph_add_output(graph, c), WEFT_OK);
    assert_int_equal(lower(graph, &plan), WEFT_OK);
    assert_string_equal(steps_as_text(plan, "step", 0, text), "krwkk");
    assert_string_equal(steps_as_text(plan, "step", 1, text), "wcr");
    assert_string_equal(steps_as_text(plan, "init", 1, text), "");
    assert_int_equal(plan->collectives[0].member_count, 1);
    assert_int_equal(plan->collectives[0].members[0], plan->collectives[0].buffer);
    assert_int_equal(plan->kernels[1].inputs[0], plan->collectives[0].buffer); /* in place */
    assert_string_equal(plan->collectives[0].reason, "from the graph");
    assert_null(wefti_plan_program(plan, "eval")); /* nobody can run the forward pass alone */
    assert_int_equal(wefti_plan_seal(plan), WEFT_OK);
    assert_int_equal(wefti_plan_verify(plan, ((fixture_t *)*state)->registry), WEFT_OK);
    weft_plan_release(plan);
}

static void test_lower_updates_a_bucket_at_once_only_if_members_agree(void **state)
{
    static const struct {
        float decay;
        uint32_t updates;
    } rows[] = {{0.5f, 1}, {0.25f, 3}};
    fixture_t *fixture = *state;
    for (int r = 0; r < 2; r++) {
        wefti_graph_t *graph;
        weft_edit_list_t *edits;
        weft_plan_t *plan;
        uint32_t lr;
        char text[64];
        assert_int_equal(wefti_graph_create(NULL, fixture->registry, 0, &graph), WEFT_OK);
        lr = add_value(graph, "lr", WEFTI_VALUE_SCALAR, 1);
        add_training(graph, "a", 16, lr, 0.5f);
        add_training(graph, "b", 5, lr, rows[r].decay);
        add_training(graph, "c", 33, lr, 0.5f);
        add_value(graph, "frozen", WEFTI_VALUE_PARAM, 7); /* no gradient: behind the others */
        assert_int_equal(fuse(graph, &edits), WEFT_OK);
        if (lower(graph, &plan) < 0) {
            fail_msg("%s", weft_last_error());
        }
        assert_int_equal(count_updates(plan), rows[r].updates);
        assert_string_equal(steps_as_text(plan, "step", 0, text), r == 0 ? "kkkrwk" : "kkkrwkkk");
        assert_string_equal(steps_as_text(plan, "step", 1, text), "wcr");
        assert_int_equal(plan->collectives[0].member_count, 3);
        /* 16, 5 and 33 floats take 64, 64 and 192 bytes. */
        assert_int_equal(plan->collectives[0].elem_count, (64 + 64 + 192) / 4);
        assert_string_equal(plan->collectives[0].reason, "one bucket for all gradients");
        /* The broadcast covers the one without a gradient, too. */
        assert_int_equal(plan->collectives[1].op, WEFT_COLLECTIVE_BROADCAST);
        assert_int_equal(plan->collectives[1].member_count, 4);
        assert_int_equal(plan->collectives[1].elem_count, (64 + 64 + 192 + 64) / 4);
        weft_plan_release(plan);
        weft_edit_list_destroy(edits);
        wefti_graph_destroy(graph);
    }
}

static void verify(weft_plan_t *plan, const weft_registry_t *registry)
{
    assert_int_equal(wefti_plan_seal(plan), WEFT_OK);
    if (wefti_plan_verify(plan, registry) < 0) {
        fail_msg("%s", weft_last_error());
    }
}

/* Pieces start by one event, one behind the other; each has its update, which waits for it only. */
static void test_lower_updates_piece_by_piece(void **state)
{
    static const uint64_t begins[] = {0, 64, 128}, sizes[] = {64, 64, 128};
    wefti_graph_t *graph = ((fixture_t *)*state)->graph;
    uint32_t lr = add_value(graph, "lr", WEFTI_VALUE_SCALAR, 1);
    weft_plan_t *plan;
    char text[64];
    add_training(graph, "a", 61, lr, 0); /* 244 bytes: 4 units */
    add_training(graph, "b", 5, lr, 0);
    split(graph, graph->values[graph->nodes[graph->order[1]].outputs[0]].producer, 3);
    if (lower(graph, &plan) < 0) {
        fail_msg("%s", weft_last_error());
    }
    assert_string_equal(steps_as_text(plan, "step", 0, text), "krkrwkwkwkwk");
    assert_string_equal(steps_as_text(plan, "step", 1, text), "wcrcrcrwcr");
    for (uint32_t i = 0; i < 3; i++) {
        const wefti_plan_collective_t *piece = &plan->collectives[i];
        const wefti_plan_buffer_t *range = &plan->buffers[piece->buffer];
        const wefti_plan_kernel_t *update = &plan->kernels[2 + i];
        assert_int_equal(range->offset_bytes - plan->buffers[piece->members[0]].offset_bytes,
                         begins[i]);
        assert_int_equal(range->size_bytes, sizes[i]);
        assert_int_equal(plan->buffers[update->inputs[1]].offset_bytes, range->offset_bytes);
        assert_int_equal(plan->buffers[update->outputs[0]].size_bytes, sizes[i]);
        assert_int_equal(update->phase, WEFTI_PHASE_UPDATE);
    }
    assert_non_null(strstr(plan->collectives[1].reason, "piece 2 of 3 of "));
    assert_non_null(strstr(plan->collectives[1].reason, ", which is for a test"));
    verify(plan, ((fixture_t *)*state)->registry);
    weft_plan_release(plan);
}

/* Regions end where every rank's share ends; what has no gradient lies behind, with its own
 * broadcast. */
static void test_lower_pads_regions_to_equal_shares(void **state)
{
    wefti_graph_t *graph = ((fixture_t *)*state)->graph;
    uint32_t lr = add_value(graph, "lr", WEFTI_VALUE_SCALAR, 1);
    const wefti_plan_collective_t *c;
    weft_plan_t *plan;
    add_training(graph, "a", 1, lr, 0);
    add_training(graph, "b", 60 * 16 + 1, lr, 0); /* 61 units */
    add_training(graph, "c", 2, lr, 0);           /* 63 in all: one more for two ranks */
    add_value(graph, "frozen", WEFTI_VALUE_PARAM, 7);
    if (lower(graph, &plan) < 0) {
        fail_msg("%s", weft_last_error());
    }
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
        if (strcmp(plan->buffers[b].name, "frozen") == 0) {
            assert_int_equal(plan->buffers[b].offset_bytes, 64 * 64);
        }
    }
    assert_int_equal(plan->buffers[plan->collectives[0].members[0]].offset_bytes, (64 + 1) * 64);
    assert_int_equal(plan->collective_count, 5);
    c = plan->collectives;
    assert_int_equal(c[3].op, WEFT_COLLECTIVE_BROADCAST);
    assert_int_equal(c[3].member_count, 3);
    assert_int_equal(c[4].op, WEFT_COLLECTIVE_BROADCAST);
    assert_int_equal(c[4].member_count, 1);
    verify(plan, ((fixture_t *)*state)->registry);
    weft_plan_release(plan);
}

/* Who reads the whole tensor waits for the last piece. */
static void test_lower_waits_once_for_all_pieces(void **state)
{
    wefti_graph_t *graph = ((fixture_t *)*state)->graph;
    uint32_t param = add_value(graph, "p", WEFTI_VALUE_PARAM, 64), grad, reduced;
    weft_plan_t *plan;
    char text[64];
    grad = add_op(graph, "", "Relu", &param, 1, WEFTI_PHASE_BACKWARD);
    reduced = add_op(graph, "weft", "AllReduce", &grad, 1, WEFTI_PHASE_COMM);
    graph->values[reduced].grad_of = param;
    add_op(graph, "", "Tanh", &reduced, 1, WEFTI_PHASE_BACKWARD);
    split(graph, graph->values[reduced].producer, 4);
    assert_int_equal(lower(graph, &plan), WEFT_OK);
    assert_string_equal(steps_as_text(plan, "step", 0, text), "krwk");
    assert_string_equal(steps_as_text(plan, "step", 1, text), "wccccr");
    verify(plan, ((fixture_t *)*state)->registry);
    weft_plan_release(plan);
}

static void test_lower_refuses_pieces_it_cannot_make(void **state)
{
    wefti_graph_t *graph = ((fixture_t *)*state)->graph;
    uint32_t x = add_value(graph, "x", WEFTI_VALUE_INPUT, 64), a = relu(graph, x);
    uint32_t reduced = add_op(graph, "weft", "AllReduce", &a, 1, WEFTI_PHASE_COMM);
    uint32_t op = graph->values[reduced].producer;
    weft_attr_t parts = {.name = "parts", .type = WEFT_ATTR_TYPE_INT, .i = 5};
    weft_plan_t *plan;
    split(graph, op, 2);
    assert_int_equal(lower(graph, &plan), WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(weft_last_error(), "only gradients can be split"));
    for (int form = 0; form < 3; form++) { /* as a model file might say */
        parts.i = form == 0 ? 5 : form == 1 ? -1 : INT64_MAX;
        assert_int_equal(wefti_graph_set_attr(graph, op, &parts), WEFT_OK);
        assert_int_equal(lower(graph, &plan), WEFT_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(weft_last_error(), "attribute 'parts' must be between 1 and"));
    }
}

static void test_lower_refuses_gradients_without_elements(void **state)
{
    wefti_graph_t *graph = ((fixture_t *)*state)->graph;
    uint32_t lr = add_value(graph, "lr", WEFTI_VALUE_SCALAR, 1);
    weft_plan_t *plan;
    add_training(graph, "a", 3, lr, 0);
    add_training(graph, "hollow", 0, lr, 0);
    assert_int_equal(lower(graph, &plan), WEFT_ERR_UNSUPPORTED);
    assert_non_null(strstr(weft_last_error(), "parameter 'hollow': no elements"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lower_a_collective_inside_the_forward_pass, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_lower_updates_piece_by_piece, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lower_pads_regions_to_equal_shares, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lower_waits_once_for_all_pieces, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lower_refuses_pieces_it_cannot_make, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lower_refuses_gradients_without_elements, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_lower_updates_a_bucket_at_once_only_if_members_agree,
                                        setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
