/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/graph/support_interpreter.h"

#include <stdlib.h>
#include <string.h>

#include "ops/compute/halves.h"
#include "runtime/base/sync.h"
#include "tests/graph/support_graph.h"

static void *aligned(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0, (bytes + 64) / 64 * 64);
    return memory;
}

/* Outputs of updates share the memory of the input they overwrite. */
static void *output_buffer(const test_interpreter_t *interpreter, uint32_t value)
{
    const wefti_graph_t *graph = interpreter->graph;
    const wefti_value_t *at = &graph->values[value];
    if (at->producer != WEFTI_NONE && at->producer_output < 4) {
        const wefti_node_t *node = &graph->nodes[at->producer];
        int in_place = node->def->in_place[at->producer_output];
        if ((node->def->effects & WEFT_EFFECT_UPDATES) && in_place >= 0) {
            return interpreter->buffers[node->inputs[in_place]];
        }
    }
    return NULL;
}

static void prepare_node(test_interpreter_t *interpreter, uint32_t position, wefti_arena_t *arena)
{
    const wefti_graph_t *graph = interpreter->graph;
    const wefti_node_t *node = &graph->nodes[graph->order[position]];
    weft_kernel_env_t env = WEFT_KERNEL_ENV_INIT;
    env.isa = wefti_isa_detect();
    weft_node_desc_t desc;
    size_t scratch_bytes = 0;
    const weft_kernel_t *kernel = weft_registry_find_kernel(graph->registry, node->def->domain,
                                                            node->def->name, node->version);
    if (!kernel) {
        print_error("no kernel for node '%s' (%s)\n", node->name, node->def->name);
    }
    assert_non_null(kernel);
    CHECK(wefti_graph_node_desc(graph, graph->order[position], arena, &desc));
    CHECK(wefti_prepare_kernel(kernel, &desc, &env, &interpreter->kernels[position],
                               &interpreter->states[position], &scratch_bytes));
    interpreter->scratch[position] = aligned(scratch_bytes);
}

void test_interpreter_init(test_interpreter_t *interpreter, const wefti_graph_t *graph)
{
    wefti_arena_t arena;
    wefti_arena_init(&arena, NULL, 0);
    interpreter->graph = graph;
    interpreter->buffers = calloc(graph->value_count + 1u, sizeof(void *));
    interpreter->kernels = calloc(graph->order_count + 1u, sizeof(weft_kernel_t *));
    interpreter->states = calloc(graph->order_count + 1u, sizeof(void *));
    interpreter->scratch = calloc(graph->order_count + 1u, sizeof(void *));
    for (uint32_t i = 0; i < graph->value_count; i++) {
        const wefti_value_t *value = &graph->values[i];
        interpreter->buffers[i] = output_buffer(interpreter, i);
        if (!interpreter->buffers[i]) {
            interpreter->buffers[i] = aligned(wefti_value_bytes(value));
        }
        if (value->type.data) {
            memcpy(interpreter->buffers[i], value->type.data, wefti_value_bytes(value));
        }
    }
    for (uint32_t i = 0; i < graph->order_count; i++) {
        prepare_node(interpreter, i, &arena);
    }
    wefti_arena_deinit(&arena);
}

void test_interpreter_deinit(test_interpreter_t *interpreter)
{
    const wefti_graph_t *graph = interpreter->graph;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        if (interpreter->kernels[i]->destroy) {
            interpreter->kernels[i]->destroy(interpreter->states[i]);
        }
        free(interpreter->scratch[i]);
    }
    for (uint32_t i = 0; i < graph->value_count; i++) {
        if (!output_buffer(interpreter, i)) {
            free(interpreter->buffers[i]);
        }
    }
    free(interpreter->buffers);
    free(interpreter->kernels);
    free(interpreter->states);
    free(interpreter->scratch);
}

void test_interpreter_run(test_interpreter_t *interpreter, wefti_phase_t phase)
{
    const wefti_graph_t *graph = interpreter->graph;
    const void *inputs[64];
    void *outputs[64];
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const wefti_node_t *node = &graph->nodes[graph->order[i]];
        if (node->phase > phase) {
            continue;
        }
        assert_true(node->input_count <= 64 && node->output_count <= 64);
        for (uint32_t k = 0; k < node->input_count; k++) {
            inputs[k] =
                node->inputs[k] == WEFTI_NONE ? NULL : interpreter->buffers[node->inputs[k]];
        }
        for (uint32_t k = 0; k < node->output_count; k++) {
            outputs[k] =
                node->outputs[k] == WEFTI_NONE ? NULL : interpreter->buffers[node->outputs[k]];
        }
        weft_kernel_call_t call = {interpreter->states[i], inputs, outputs,
                                   interpreter->scratch[i]};
        CHECK(interpreter->kernels[i]->run(&call));
    }
}
