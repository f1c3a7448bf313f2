/* SPDX-License-Identifier: Apache-2.0 */
/* The graph of this compiler. */
#include "host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void host_fail(const char *text)
{
    fprintf(stderr, "host_compiler: %s\n", text);
    exit(2);
}

void host_check(weft_status_t status)
{
    if (status < 0) {
        host_fail(weft_last_error());
    }
}

uint32_t host_add_tensor(host_graph_t *graph, const char *name, uint32_t rows, uint32_t cols)
{
    if (graph->tensor_count == HOST_MAX_TENSORS) {
        host_fail("too many tensors");
    }
    host_tensor_t *tensor = &graph->tensors[graph->tensor_count];
    *tensor = (host_tensor_t){.rows = rows,
                              .cols = cols,
                              .producer = HOST_NONE,
                              .grad_of = HOST_NONE,
                              .alias = HOST_NONE};
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    return graph->tensor_count++;
}

uint32_t host_add_node(host_graph_t *graph, host_op_t op, const char *name)
{
    if (graph->node_count == HOST_MAX_NODES) {
        host_fail("too many nodes");
    }
    host_node_t *node = &graph->nodes[graph->node_count];
    *node = (host_node_t){.op = op, .start_after = HOST_NONE, .wait_before = HOST_NONE};
    snprintf(node->name, sizeof node->name, "%s", name);
    graph->order[graph->order_count++] = graph->node_count;
    return graph->node_count++;
}

void host_add_input(host_graph_t *graph, uint32_t node, uint32_t tensor)
{
    host_node_t *to = &graph->nodes[node];
    if (to->input_count == HOST_MAX_IO) {
        host_fail("too many inputs of a node");
    }
    to->inputs[to->input_count++] = tensor;
}

void host_add_output(host_graph_t *graph, uint32_t node, uint32_t tensor)
{
    host_node_t *to = &graph->nodes[node];
    if (to->output_count == HOST_MAX_IO) {
        host_fail("too many outputs of a node");
    }
    to->outputs[to->output_count++] = tensor;
    graph->tensors[tensor].producer = node;
}

size_t host_tensor_bytes(const host_tensor_t *tensor)
{
    return (size_t)tensor->rows * tensor->cols * sizeof(float);
}

/* Does node still wait for one that is not done? */
static int waits(const host_graph_t *graph, uint32_t id, const int *done)
{
    const host_node_t *node = &graph->nodes[id];
    for (uint32_t i = 0; i < node->input_count; i++) {
        uint32_t producer = graph->tensors[node->inputs[i]].producer;
        if (producer != HOST_NONE && !done[producer]) {
            return 1;
        }
    }
    for (uint32_t i = 0; i < graph->edge_count; i++) {
        if (graph->edges[2 * i + 1] == id && !done[graph->edges[2 * i]]) {
            return 1;
        }
    }
    return 0;
}

void host_sort(host_graph_t *graph, const uint32_t *keys)
{
    int done[HOST_MAX_NODES] = {0};
    uint32_t left = 0;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        left += !graph->nodes[i].removed;
    }
    for (graph->order_count = 0; graph->order_count < left;) {
        uint32_t best = HOST_NONE;
        for (uint32_t i = 0; i < graph->node_count; i++) {
            if (!done[i] && !graph->nodes[i].removed && !waits(graph, i, done) &&
                (best == HOST_NONE || keys[i] < keys[best])) {
                best = i;
            }
        }
        if (best == HOST_NONE) {
            host_fail("the graph has a cycle");
        }
        done[best] = 1;
        graph->order[graph->order_count++] = best;
    }
}

/* Its kernels are plain loops: 2 flops a nanosecond, or 4 bytes. */
uint64_t host_node_ns(const host_graph_t *graph, const host_node_t *node)
{
    uint64_t flops = 0, bytes = 0;
    for (uint32_t i = 0; i < node->input_count; i++) {
        bytes += host_tensor_bytes(&graph->tensors[node->inputs[i]]);
    }
    if (node->op == HOST_LINEAR || node->op == HOST_GRAD_X || node->op == HOST_GRAD_W) {
        const host_tensor_t *a = &graph->tensors[node->inputs[0]];
        const host_tensor_t *b = &graph->tensors[node->inputs[1]];
        uint64_t inner = node->op == HOST_GRAD_W ? a->cols : b->rows;
        flops = 2ull * a->rows * inner * b->cols;
    }
    return node->op == HOST_COLLECTIVE ? 0 : flops / 2 + bytes / 4;
}
