/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/support_text.h"

#include <stdlib.h>
#include <string.h>

static wefti_graph_t *parse(const char *text, const weft_registry_t *registry)
{
    wefti_graph_t *graph;
    if (wefti_graph_from_text(text, strlen(text), NULL, registry, &graph) < 0) {
        fail_msg("%s\n%s", weft_last_error(), text);
    }
    return graph;
}

test_graph_t test_graph_parse(const char *text)
{
    test_graph_t test;
    CHECK(weft_registry_create(NULL, &test.registry));
    test.graph = parse(text, test.registry);
    return test;
}

void test_graph_close(test_graph_t *test)
{
    wefti_graph_destroy(test->graph);
    weft_registry_destroy(test->registry);
}

char *test_graph_print(const wefti_graph_t *graph)
{
    wefti_text_t text;
    wefti_text_init(&text, NULL);
    wefti_graph_to_text(graph, UINT32_MAX, &text);
    char *taken = wefti_text_take(&text);
    assert_non_null(taken);
    return taken;
}

static bool has_line(const char *text, const char *line, size_t length)
{
    for (; *text; text = strchr(text, '\n') + 1) {
        if (strncmp(text, line, length) == 0) {
            return true;
        }
    }
    return false;
}

/* Lines of a text, those that other has not with mark in front of them. */
static void show(const char *text, const char *other, char mark, bool all)
{
    for (const char *end; *text; text = end) {
        end = strchr(text, '\n') + 1;
        bool common = has_line(other, text, (size_t)(end - text));
        if (all || !common) {
            print_error("%c %.*s", common ? ' ' : mark, (int)(end - text), text);
        }
    }
}

static void expect_equal(const char *got, const char *expected)
{
    if (strcmp(got, expected) != 0) {
        show(got, expected, '+', true);
        show(expected, got, '-', false);
        fail_msg("the graph is not the expected one (+: not expected, -: missing)");
    }
}

void test_expect_graph(const wefti_graph_t *graph, const char *text)
{
    CHECK(wefti_graph_verify(graph));
    wefti_graph_t *expected = parse(text, graph->registry);
    char *got = test_graph_print(graph), *wanted = test_graph_print(expected);
    expect_equal(got, wanted);
    wefti_graph_destroy(expected);
    free(wanted);
    free(got);
}

void test_pass(test_pass_fn pass, void *user, const char *before, const char *after)
{
    test_graph_t test = test_graph_parse(before);
    CHECK(pass(test.graph, user));
    test_expect_graph(test.graph, after);
    test_graph_close(&test);
}

void test_pass_error(test_pass_fn pass, void *user, const char *before, weft_status_t expected,
                     const char *message)
{
    test_graph_t test = test_graph_parse(before);
    test_expect_error(pass(test.graph, user), expected, message);
    test_graph_close(&test);
}
