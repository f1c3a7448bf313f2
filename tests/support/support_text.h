/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes tested as "graph in, graph out", in the text form of graph/text/parse.c:
 *
 *   test_pass(fold, NULL,
 *             "const %a : i64[2] = [2,3]\n"
 *             "%b = Add(%a, %a)\n",
 *             "const %a : i64[2] = [2,3]\n"
 *             "const %b : i64[2] = [4,6]\n");
 *
 * Both texts may leave out what the parser knows: types of outputs, header, order of blanks.
 */
#ifndef WEFT_TESTS_SUPPORT_SUPPORT_TEXT_H
#define WEFT_TESTS_SUPPORT_SUPPORT_TEXT_H

#include "graph/ir.h"
#include "tests/support/support.h"

/* A graph, with its registry. */
typedef struct test_graph {
    weft_registry_t *registry;
    wefti_graph_t *graph;
} test_graph_t;

test_graph_t test_graph_parse(const char *text);
void test_graph_close(test_graph_t *test);
/* The text of the whole graph; free it. */
char *test_graph_print(const wefti_graph_t *graph);
/* Verifies graph, compares it with text, and reads back what it prints. Shows the lines that
 * differ. */
void test_expect_graph(const wefti_graph_t *graph, const char *text);

typedef weft_status_t (*test_pass_fn)(wefti_graph_t *graph, void *user);
void test_pass(test_pass_fn pass, void *user, const char *before, const char *after);
/* The pass refuses the graph, with a message that contains message. */
void test_pass_error(test_pass_fn pass, void *user, const char *before, weft_status_t expected,
                     const char *message);

#endif
