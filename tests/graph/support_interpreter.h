/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a graph with the kernels of its registry: one buffer per value, one node after the other. */
#ifndef WEFT_TESTS_GRAPH_SUPPORT_INTERPRETER_H
#define WEFT_TESTS_GRAPH_SUPPORT_INTERPRETER_H

#include "graph/ir.h"

typedef struct test_interpreter {
    const wefti_graph_t *graph;
    void **buffers;                /* by value; NULL where the type is unknown */
    const weft_kernel_t **kernels; /* by position in order */
    void **states;
    void **scratch;
} test_interpreter_t;

/* Fails the test, naming the node, where a kernel is missing. PARAM and CONST buffers get their
 * contents. */
void test_interpreter_init(test_interpreter_t *interpreter, const wefti_graph_t *graph);
void test_interpreter_deinit(test_interpreter_t *interpreter);
/* Runs all nodes up to and including phase. */
void test_interpreter_run(test_interpreter_t *interpreter, wefti_phase_t phase);

#endif
