/* SPDX-License-Identifier: Apache-2.0 */
/* The text form: what is printed reads back as the same graph; errors name the line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fusion/passes/passes.h"
#include "tests/support/support_text.h"

/* A graph with everything that the text form knows; prints as it is written. */
#define EVERYTHING WEFT_SOURCE_DIR "/tests/data/everything.graph"

static char *read_everything(void)
{
    wefti_mapping_t file;
    CHECK(wefti_file_map(EVERYTHING, &file));
    char *text = calloc(1, file.size_bytes + 1);
    memcpy(text, file.data, file.size_bytes);
    wefti_file_unmap(&file);
    return text;
}

static void everything_reads_back(void **state)
{
    (void)state;
    char *everything = read_everything();
    test_graph_t test = test_graph_parse(everything);
    char *text = test_graph_print(test.graph);
    assert_string_equal(text, everything);
    free(everything);
    free(text);
    assert_string_equal(test.graph->name, "odd name\n");
    assert_string_equal(test.graph->values[1].dim_names[1], "4");
    assert_int_equal(test.graph->loss, wefti_graph_find_value(test.graph, "l"));
    assert_int_equal(test.graph->constraint_count, 2);
    test_graph_close(&test);
}

static void the_parser_knows_the_rest(void **state)
{
    (void)state;
    test_graph_t test = test_graph_parse("# a comment\n"
                                         "input %x :f32[4 , 6]  # another\n\n"
                                         "\tparam %w : f32[3,6]\r\n"
                                         "%y = Gemm(%x,%w){transB=1,alpha=2}\n"
                                         "%z = Relu(%y) : logits reduced\n"
                                         "program none:");
    char *text = test_graph_print(test.graph);
    assert_string_equal(text, "graph graph opset 0 batch 0\n"
                              "input %x : f32[4,6]\n"
                              "param %w : f32[3,6]\n"
                              "%y = Gemm(%x, %w) {transB=1, alpha=2.0} : f32[4,3]\n"
                              "%z = Relu(%y) : f32[4,3] logits reduced\n"
                              "program none:\n");
    free(text);
    test_graph_close(&test);
}

static void errors_name_the_line(void **state)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"graph\n", "line 1: expected the graph's name, got the end of the line"},
        {"graph g opset x", "line 1: not a whole number: 'x'"},
        {"graph g opset 99999999999", "line 1: number out of range: 99999999999, expected 0 to"},
        {"\nvalue %x : f32[]\n", "line 2: expected '(', got '%'"},
        {"input x : f32[]", "line 1: expected '%', got 'x'"},
        {"input %x f32[]", "line 1: expected ':', got 'f32'"},
        {"input %x : f33[]", "line 1: unknown type 'f33'"},
        {"input %x : f32[4", "line 1: expected ']', got the end of the line"},
        {"input %x : f32[1,1,1,1,1,1,1,1,1]", "line 1: too many dimensions: limit 8"},
        {"input %x : f32[99999999999999999999]", "line 1: number out of range"},
        {"input %x : f32[] : f32[]", "line 1: expected the end of the line, got ':'"},
        {"input %x : f32[]\n#\ninput %x : f32[]", "line 3: duplicate definition of value 'x'"},
        {"input %\"\\x4\" : f32[]", "line 1: '\\' begins an escape, which has the form \\xNN"},
        {"input %\"\\x00\" : f32[]", "line 1: a name has a zero byte"},
        {"input %x\x01 : f32[]", "line 1: expected ':', got byte 0x01"},
        {"const %c : i8[2] = [1,2,3]", "line 1: contents: more than 2 elements"},
        {"const %c : i8[2] = [1]", "line 1: contents: fewer than 2 elements"},
        {"const %c : i8[2] = [1,200]", "line 1: number out of range: 200, expected -128 to 127"},
        {"const %c : i8[2] = x01", "line 1: contents: expected 4 hexadecimal digits, got 2"},
        {"const %c : i8[?] = 1", "line 1: contents of an unknown shape"},
        {"const %c : f32[9999999,9999999] = 1", "line 1: contents too large: limit"},
        {"const %c : f32[2] = two", "line 1: not a number: 'two'"},
        {"const %c : f32[2] = ...", "constant 'c': no contents"},
        {"state %m : f32[2] of %w", "line 1: value 'w' is not defined"},
        {"%y = Relu(%y)", "line 1: value 'y' is not defined"},
        {"%y = Relu(-, -)", "line 1: node 'y' (Relu): wrong number of inputs: 2, expected 1"},
        {"%y = Rely(-)", "line 1: unknown operator Rely"},
        {"%y = other::Rely()", "line 1: unknown operator other::Rely"},
        {"input %x : f32[2]\n%y = Relu(%x) : f32[3]",
         "line 2: value 'y': type does not match inference: f32 [3], inferred f32 [2]"},
        {"input %x : f32[2]\n%y = Relu(%x) : f32[2], f32[2]", "line 2: more types than outputs: 1"},
        {"input %x : f32[2]\n%y, %z = Relu(%x)",
         "line 2: node 'y' (Relu): wrong number of outputs"},
        {"input %x : f32[2] loss\n%y = Relu(%x) : loss",
         "line 2: duplicate mark 'loss': on values 'x' and 'y'"},
        {"input %x : f32[2]\n%y = Relu(%x) {a=1, a=2}", "line 2: duplicate attribute 'a'"},
        {"input %x : f32[2]\n%y = Relu(%x) {a=[1,\"x\"]}",
         "line 2: attribute 'a': elements of several types"},
        {"input %x : f32[2]\n%y = Relu(%x) {a=\"x}", "line 2: a string has no closing '\"'"},
        {"input %x : f32[2]\n%y = Relu(%x) as n\n%z = Relu(%x) as n",
         "line 3: duplicate definition of node 'n'"},
        {"input %x : f32[2]\n%y = Relu(%x) : alias(%z)", "line 2: value 'z' is not defined"},
        {"input %x : f32[2]\norder %x -> %x", "line 2: value 'x' is not the output of a node"},
        {"order @a -> @a", "line 1: node 'a' is not defined"},
        {"input %x : f32[2]\n%y = Relu(%x)\n%z = Relu(%y)\norder %z -> %y",
         "node 'z' must run before 'y'"},
        {"input %x : f32[2]\n%y = Relu(%x)\n%z = Relu(%y)\nprogram p: %z, %y",
         "line 4: program 'p': nodes are not in the order of the graph"},
        {"output %x", "line 1: value 'x' is not defined"},
    };
    weft_registry_t *registry;
    wefti_graph_t *graph;
    (void)state;
    CHECK(weft_registry_create(NULL, &registry));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        weft_status_t status =
            wefti_graph_from_text(rows[i].text, strlen(rows[i].text), NULL, registry, &graph);
        if (status >= 0 || graph != NULL || strstr(weft_last_error(), rows[i].message) == NULL) {
            fail_msg("%s\ngot: %s, expected: %s", rows[i].text,
                     status < 0 ? weft_last_error() : "success", rows[i].message);
        }
    }
    weft_registry_destroy(registry);
}

static void check_round_trip(const wefti_graph_t *graph)
{
    char *text = test_graph_print(graph);
    test_expect_graph(graph, text);
    free(text);
}

/* Models of exporters, after each step towards a training graph. */
static void models_read_back(void **state)
{
    static const char *const models[] = {
        "torch_mlp",     "torch_mlp_batch4",     "torch_lenet_avgpool",
        "torch_dropout", "torch_dropout_batch4", "torch_lenet_avgpool_batch4",
        "torch_reshape", "torch_reshape_batch4", "given_gradients"};
    const wefti_optimizer_params_t adam = {.kind = WEFTI_OPTIMIZER_ADAM, .lr = 0.001};
    weft_registry_t *registry;
    (void)state;
    CHECK(weft_registry_create(NULL, &registry));
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        wefti_graph_t *graph;
        char path[256];
        snprintf(path, sizeof(path), WEFT_SOURCE_DIR "/tests/data/%s.onnx", models[i]);
        wefti_onnx_import_params_t params = {.path = path, .loss_optional = true};
        CHECK(wefti_onnx_import(&params, NULL, registry, &graph));
        check_round_trip(graph);
        CHECK(wefti_graph_bind_shapes(graph, strstr(path, "batch4") ? 0 : 4, NULL, 0));
        check_round_trip(graph);
        if (graph->loss != WEFTI_NONE) {
            CHECK(wefti_graph_differentiate(graph));
            CHECK(wefti_pass_optimizer(graph, &adam, WEFTI_NONE));
            CHECK(wefti_graph_sort(graph));
            check_round_trip(graph);
        }
        wefti_graph_destroy(graph);
    }
    weft_registry_destroy(registry);
}

/* Large contents may be left out, for people. */
static void contents_may_be_left_out(void **state)
{
    wefti_text_t text;
    (void)state;
    test_graph_t test = test_graph_parse("param %w : i8[2,2] = [1,2,3,4]\nparam %v : i8[9] = 7\n");
    wefti_text_init(&text, NULL);
    wefti_graph_to_text(test.graph, 3, &text);
    assert_non_null(strstr(text.data, "param %w : i8[2,2] = ...\nparam %v : i8[9] = 7\n"));
    wefti_text_deinit(&text);
    test_graph_close(&test);
}

typedef struct source {
    const char *text;
    weft_registry_t *registry;
} source_t;

static weft_status_t parse_once(const weft_allocator_t *allocator, void *user)
{
    const source_t *source = user;
    wefti_graph_t *graph;
    weft_status_t status = wefti_graph_from_text(source->text, strlen(source->text), allocator,
                                                 source->registry, &graph);
    wefti_graph_destroy(graph);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    char *everything = read_everything();
    source_t source = {.text = everything};
    (void)state;
    CHECK(weft_registry_create(NULL, &source.registry));
    assert_true(test_memory_sweep(parse_once, &source) > 10);
    weft_registry_destroy(source.registry);
    free(everything);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_reads_back),    cmocka_unit_test(the_parser_knows_the_rest),
        cmocka_unit_test(errors_name_the_line),     cmocka_unit_test(models_read_back),
        cmocka_unit_test(contents_may_be_left_out), cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
