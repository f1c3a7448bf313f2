/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of the passes, with tables of its own. */
#include "fusion/pipeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/graph/support_graph.h"

typedef struct fixture {
    weft_registry_t *registry;
    wefti_model_t models[2];
    wefti_compiler_t compiler;
    char log[256]; /* names of passes, as reported */
} fixture_t;

static void on_pass(void *user, const weft_pass_report_t *report)
{
    fixture_t *f = user;
    size_t used = strlen(f->log);
    snprintf(f->log + used, sizeof f->log - used, "%s %u->%u%s;", report->name,
             report->nodes_before, report->nodes_after, report->graph_text != NULL ? " text" : "");
}

/* relu(x) */
static void open_fixture(fixture_t *f)
{
    memset(f, 0, sizeof *f);
    wefti_graph_t *graph = test_graph(&f->registry);
    uint32_t x = test_input(graph, "x", DIMS(4));
    CHECK(wefti_graph_add_output(graph, test_node(graph, "Relu", "y", INPUTS(x), NULL, 0)));
    f->models[0].graph = graph;
    f->compiler = (wefti_compiler_t){.models = f->models,
                                     .model_count = 1,
                                     .model = f->models,
                                     .graph = graph,
                                     .params = {.on_pass = on_pass, .on_pass_user = f}};
}

static void close_fixture(fixture_t *f)
{
    wefti_graph_destroy(f->models[1].graph);
    test_graph_free(f->models[0].graph, f->registry);
}

static weft_status_t add_relu(wefti_compiler_t *c)
{
    test_node(c->graph, "Relu", "z", INPUTS(c->graph->outputs[0]), NULL, 0);
    return WEFT_OK;
}

/* Breaks the rule that order[] is topological. */
static weft_status_t swap_order(wefti_compiler_t *c)
{
    uint32_t first = c->graph->order[0];
    c->graph->order[0] = c->graph->order[1];
    c->graph->order[1] = first;
    return WEFT_OK;
}

static weft_status_t refuse(wefti_compiler_t *c)
{
    (void)c;
    return WEFT_ERR_UNSUPPORTED;
}

static bool never(const wefti_compiler_t *c)
{
    (void)c;
    return false;
}

#define BOTH (WEFTI_PASS_TRAINING | WEFTI_PASS_INFERENCE)

static void test_pipeline_runs_rows_that_apply_in_order(void **state)
{
    (void)state;
    static const wefti_pass_t rows[] = {
        {"a", "", BOTH, NULL, add_relu},
        {"skipped", "", BOTH, never, refuse},
        {"infer", "", WEFTI_PASS_INFERENCE, NULL, refuse},
        {"b", "", WEFTI_PASS_TRAINING | WEFTI_PASS_COMPILED, NULL, add_relu},
    };
    fixture_t f;
    open_fixture(&f);
    f.compiler.params.print_after = "b";
    CHECK(wefti_pipeline_run(&f.compiler, rows, 4));
    assert_string_equal(f.log, "a 1->2;b 2->3 text;");
    f.log[0] = '\0';
    f.compiler.params.stop_after = "a";
    CHECK(wefti_pipeline_run(&f.compiler, rows, 4));
    assert_string_equal(f.log, "a 3->4 text;");
    f.log[0] = '\0';
    f.compiler.params.stop_after = NULL;
    f.compiler.compiled.known = true;
    CHECK(wefti_pipeline_run(&f.compiler, rows, 4));
    assert_string_equal(f.log, "b 4->5 text;");
    f.compiler.compiled.known = false;
    f.compiler.params.print_after = NULL;
    f.compiler.params.infer = 1;
    assert_int_equal(wefti_pipeline_run(&f.compiler, rows, 4), WEFT_ERR_UNSUPPORTED);
    close_fixture(&f);
}

static void test_pipeline_verify_each_names_the_pass_that_breaks_the_graph(void **state)
{
    (void)state;
    static const wefti_pass_t rows[] = {
        {"good", "", BOTH, NULL, add_relu},
        {"bad", "", BOTH, NULL, swap_order},
        {"repairs", "", BOTH, NULL, swap_order},
    };
    fixture_t f;
    open_fixture(&f);
    CHECK(wefti_pipeline_run(&f.compiler, rows, 3));
    f.compiler.params.verify_each = 1;
    test_expect_error(wefti_pipeline_run(&f.compiler, rows, 3), WEFT_ERR_INTERNAL,
                      "pass 'bad' made an invalid graph: node '");
    close_fixture(&f);
}

static void test_pipeline_runs_a_row_of_models_on_each(void **state)
{
    (void)state;
    static const wefti_pass_t rows[] = {
        {"each", "", BOTH | WEFTI_PASS_MODELS, NULL, add_relu},
        {"first", "", BOTH, NULL, add_relu},
    };
    fixture_t f;
    open_fixture(&f);
    CHECK(wefti_graph_create(NULL, f.registry, 0, &f.models[1].graph));
    uint32_t x = test_input(f.models[1].graph, "x", DIMS(4));
    CHECK(wefti_graph_add_output(f.models[1].graph, x));
    f.compiler.model_count = 2;
    CHECK(wefti_pipeline_run(&f.compiler, rows, 2));
    assert_int_equal(f.models[0].graph->order_count, 3);
    assert_int_equal(f.models[1].graph->order_count, 1);
    assert_ptr_equal(f.compiler.graph, f.models[0].graph);
    close_fixture(&f);
}

static void test_pipeline_refuses_names_that_no_row_has(void **state)
{
    (void)state;
    static const wefti_pass_t rows[] = {{"bucket", "", BOTH, never, add_relu}};
    fixture_t f;
    open_fixture(&f);
    f.compiler.params.print_after = "all";
    CHECK(wefti_pipeline_run(&f.compiler, rows, 1));
    f.compiler.params.print_after = "buckit";
    test_expect_error(wefti_pipeline_run(&f.compiler, rows, 1), WEFT_ERR_INVALID_ARGUMENT,
                      "print_after: unknown pass 'buckit'; did you mean 'bucket'?");
    f.compiler.params.print_after = NULL;
    f.compiler.params.stop_after = "bucket";
    test_expect_error(wefti_pipeline_run(&f.compiler, rows, 1), WEFT_ERR_INVALID_ARGUMENT,
                      "stop_after: pass 'bucket' does not run");
    close_fixture(&f);
}

static void test_model_check_stops_after_a_pass(void **state)
{
    (void)state;
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    char *text = NULL;
    int compiles = 0;
    params.model_path = WEFT_SOURCE_DIR "/samples/models/mlp.onnx";
    params.batch = 4;
    params.stop_after = "bucket";
    CHECK(weft_model_check(&params, WEFT_FORMAT_TEXT, &text, &compiles));
    assert_non_null(strstr(text, "compiles up to pass 'bucket'\n"));
    assert_int_equal(compiles, 1);
    free(text);
    params.stop_after = "split-batch";
    CHECK(weft_model_check(&params, WEFT_FORMAT_JSON, &text, &compiles));
    assert_non_null(strstr(text, "pass 'split-batch' does not run with these parameters"));
    assert_int_equal(compiles, 0);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipeline_runs_rows_that_apply_in_order),
        cmocka_unit_test(test_pipeline_verify_each_names_the_pass_that_breaks_the_graph),
        cmocka_unit_test(test_pipeline_runs_a_row_of_models_on_each),
        cmocka_unit_test(test_pipeline_refuses_names_that_no_row_has),
        cmocka_unit_test(test_model_check_stops_after_a_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
