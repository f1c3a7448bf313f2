/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/graph/support_graph.h"

#include <string.h>

wefti_graph_t *test_graph(weft_registry_t **out_registry)
{
    wefti_graph_t *graph;
    CHECK(weft_registry_create(NULL, out_registry));
    CHECK(wefti_graph_create(NULL, *out_registry, 0, &graph));
    graph->name = "test";
    graph->opset = 17;
    return graph;
}

void test_graph_free(wefti_graph_t *graph, weft_registry_t *registry)
{
    wefti_graph_destroy(graph);
    weft_registry_destroy(registry);
}

uint32_t test_value(wefti_graph_t *graph, const char *name, wefti_value_kind_t kind,
                    weft_dtype_t dtype, const int64_t *dims, const void *data)
{
    weft_tensor_desc_t type = {.dtype = dtype};
    uint32_t value;
    for (; dims && dims[type.rank]; type.rank++) {
        type.dims[type.rank] = dims[type.rank];
    }
    int64_t count = weft_tensor_elem_count(&type);
    if (data && count >= 0) {
        type.data =
            wefti_arena_memdup(&graph->arena, data, (size_t)count * weft_dtype_size_bytes(dtype));
        assert_non_null(type.data);
    }
    CHECK(wefti_graph_add_value(graph, name, kind, &type, &value));
    return value;
}

uint32_t test_input(wefti_graph_t *graph, const char *name, const int64_t *dims)
{
    return test_value(graph, name, WEFTI_VALUE_INPUT, WEFT_DTYPE_F32, dims, NULL);
}

uint32_t test_param(wefti_graph_t *graph, const char *name, const int64_t *dims)
{
    return test_value(graph, name, WEFTI_VALUE_PARAM, WEFT_DTYPE_F32, dims, NULL);
}

uint32_t test_ints(wefti_graph_t *graph, const char *name, uint32_t count, const int64_t *ints)
{
    return test_value(graph, name, WEFTI_VALUE_CONST, WEFT_DTYPE_I64, DIMS(count), ints);
}

uint32_t test_node_outputs(wefti_graph_t *graph, const char *domain, const char *op,
                           const char *name, const uint32_t *inputs, uint32_t output_count,
                           const weft_attr_t *attrs, uint32_t attr_count)
{
    const char *names[8] = {name};
    wefti_node_params_t params = {.domain = domain,
                                  .op = op,
                                  .name = name,
                                  .inputs = inputs,
                                  .output_names = names,
                                  .output_count = output_count,
                                  .attrs = attrs,
                                  .attr_count = attr_count};
    uint32_t node;
    while (inputs[params.input_count] != UINT32_MAX - 1) {
        params.input_count++;
    }
    assert_true(output_count <= 8);
    CHECK(wefti_graph_add_node(graph, &params, &node));
    return node;
}

uint32_t test_node(wefti_graph_t *graph, const char *op, const char *name, const uint32_t *inputs,
                   const weft_attr_t *attrs, uint32_t attr_count)
{
    uint32_t node = test_node_outputs(graph, "", op, name, inputs, 1, attrs, attr_count);
    return graph->nodes[node].outputs[0];
}

uint32_t test_loss(wefti_graph_t *graph, uint32_t scores, const int64_t *label_dims)
{
    uint32_t label =
        test_value(graph, "label", WEFTI_VALUE_INPUT, WEFT_DTYPE_I64, label_dims, NULL);
    uint32_t loss =
        test_node(graph, "SoftmaxCrossEntropyLoss", "loss", INPUTS(scores, label), NULL, 0);
    graph->loss = loss;
    graph->logits = scores;
    graph->label = label;
    graph->values[loss].flags |= WEFTI_VALUE_LOSS;
    graph->values[scores].flags |= WEFTI_VALUE_LOGITS;
    graph->values[label].flags |= WEFTI_VALUE_LABEL;
    CHECK(wefti_graph_add_output(graph, loss));
    return loss;
}
