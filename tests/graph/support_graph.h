/* SPDX-License-Identifier: Apache-2.0 */
/* Building small graphs in tests. Every call asserts success and prints the library's message if
 * not. */
#ifndef WEFT_TESTS_GRAPH_SUPPORT_GRAPH_H
#define WEFT_TESTS_GRAPH_SUPPORT_GRAPH_H

#include "graph/ir.h"
#include "tests/support/support.h"

/* Registries outlive graphs; one per test program run. */
wefti_graph_t *test_graph(weft_registry_t **out_registry);
void test_graph_free(wefti_graph_t *graph, weft_registry_t *registry);

/* dims ends with 0; -1 is symbolic. */
#define DIMS(...) ((const int64_t[]){__VA_ARGS__, 0})
uint32_t test_value(wefti_graph_t *graph, const char *name, wefti_value_kind_t kind,
                    weft_dtype_t dtype, const int64_t *dims, const void *data);
uint32_t test_input(wefti_graph_t *graph, const char *name, const int64_t *dims);
uint32_t test_param(wefti_graph_t *graph, const char *name, const int64_t *dims);
/* An i64 list constant; the numbers are copied. */
uint32_t test_ints(wefti_graph_t *graph, const char *name, uint32_t count, const int64_t *ints);
/* A node with one output called name; inputs end with UINT32_MAX - 1. Returns the output. */
#define INPUTS(...) ((const uint32_t[]){__VA_ARGS__, UINT32_MAX - 1})
uint32_t test_node(wefti_graph_t *graph, const char *op, const char *name, const uint32_t *inputs,
                   const weft_attr_t *attrs, uint32_t attr_count);
/* The same with any number of outputs; returns the node. */
uint32_t test_node_outputs(wefti_graph_t *graph, const char *domain, const char *op,
                           const char *name, const uint32_t *inputs, uint32_t output_count,
                           const weft_attr_t *attrs, uint32_t attr_count);
/* SoftmaxCrossEntropyLoss of scores with a new label input; marks loss, logits and label. */
uint32_t test_loss(wefti_graph_t *graph, uint32_t scores, const int64_t *label_dims);

#define ATTR_INT(n, v)                                                                             \
    {                                                                                              \
        .name = n, .type = WEFT_ATTR_TYPE_INT, .i = (v)                                            \
    }
#define ATTR_FLOAT(n, v)                                                                           \
    {                                                                                              \
        .name = n, .type = WEFT_ATTR_TYPE_FLOAT, .f = (v)                                          \
    }
#define ATTR_STRING(n, v)                                                                          \
    {                                                                                              \
        .name = n, .type = WEFT_ATTR_TYPE_STRING, .s = (v)                                         \
    }
#define ATTR_INTS(n, c, ...)                                                                       \
    {                                                                                              \
        .name = n, .type = WEFT_ATTR_TYPE_INTS, .count = (c), .ints = (const int64_t[])            \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

#endif
