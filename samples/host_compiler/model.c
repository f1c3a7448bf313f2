/* SPDX-License-Identifier: Apache-2.0 */
/* A training step: a network of four layers, its backward pass, and the updates at the end. */
#include "host.h"

#include <stdio.h>

#define LAYERS 4u
#define BATCH 32u

static const uint32_t widths[LAYERS + 1] = {48, 256, 256, 128, 10};

typedef struct layer {
    uint32_t x, w, b, z, a; /* a: what the next layer reads */
} layer_t;

static uint32_t named(host_graph_t *graph, const char *kind, uint32_t layer, uint32_t rows,
                      uint32_t cols)
{
    char name[32];
    snprintf(name, sizeof name, "%s%u", kind, layer);
    return host_add_tensor(graph, name, rows, cols);
}

/* A node with up to three inputs and one output. */
static uint32_t emit(host_graph_t *graph, host_op_t op, const char *kind, uint32_t layer,
                     const uint32_t inputs[3], uint32_t output)
{
    char name[48];
    snprintf(name, sizeof name, "%s%u", kind, layer);
    uint32_t node = host_add_node(graph, op, name);
    for (uint32_t i = 0; i < 3 && inputs[i] != HOST_NONE; i++) {
        host_add_input(graph, node, inputs[i]);
    }
    if (output != HOST_NONE) {
        host_add_output(graph, node, output);
    }
    return node;
}

static void forward(host_graph_t *graph, host_model_t *model, layer_t *layers)
{
    uint32_t x = model->input;
    for (uint32_t i = 0; i < LAYERS; i++) {
        layer_t *layer = &layers[i];
        layer->x = x;
        layer->w = named(graph, "w", i, widths[i], widths[i + 1]);
        layer->b = named(graph, "b", i, 1, widths[i + 1]);
        layer->z = layer->a = named(graph, "z", i, BATCH, widths[i + 1]);
        model->params[model->param_count++] = layer->w;
        model->params[model->param_count++] = layer->b;
        emit(graph, HOST_LINEAR, "linear", i, (uint32_t[3]){x, layer->w, layer->b}, layer->z);
        if (i + 1 < LAYERS) {
            layer->a = named(graph, "a", i, BATCH, widths[i + 1]);
            emit(graph, HOST_RELU, "relu", i, (uint32_t[3]){layer->z, HOST_NONE, HOST_NONE},
                 layer->a);
        }
        x = layer->a;
    }
}

/* From the last layer to the first; dw and db are what every rank has of its own samples. */
static void backward(host_graph_t *graph, const layer_t *layers, uint32_t dz, uint32_t *grads)
{
    for (uint32_t i = LAYERS; i-- > 0;) {
        const layer_t *layer = &layers[i];
        uint32_t dw = named(graph, "dw", i, widths[i], widths[i + 1]);
        uint32_t db = named(graph, "db", i, 1, widths[i + 1]);
        graph->tensors[dw].grad_of = layer->w;
        graph->tensors[db].grad_of = layer->b;
        grads[2 * i] = dw;
        grads[2 * i + 1] = db;
        emit(graph, HOST_GRAD_W, "grad w", i, (uint32_t[3]){layer->x, dz, HOST_NONE}, dw);
        emit(graph, HOST_GRAD_B, "grad b", i, (uint32_t[3]){dz, HOST_NONE, HOST_NONE}, db);
        if (i > 0) {
            uint32_t da = named(graph, "da", i - 1, BATCH, widths[i]);
            uint32_t next = named(graph, "dz", i - 1, BATCH, widths[i]);
            emit(graph, HOST_GRAD_X, "grad x", i, (uint32_t[3]){dz, layer->w, HOST_NONE}, da);
            emit(graph, HOST_RELU_GRAD, "relu grad", i - 1,
                 (uint32_t[3]){da, layers[i - 1].a, HOST_NONE}, next);
            dz = next;
        }
    }
}

void host_build_model(host_graph_t *graph, host_model_t *model)
{
    layer_t layers[LAYERS];
    uint32_t grads[2 * LAYERS];
    *model = (host_model_t){0};
    model->input = host_add_tensor(graph, "input", BATCH, widths[0]);
    model->labels = host_add_tensor(graph, "labels", BATCH, 1);
    forward(graph, model, layers);
    model->loss = host_add_tensor(graph, "loss", 1, 1);
    uint32_t dz = named(graph, "dz", LAYERS - 1, BATCH, widths[LAYERS]);
    uint32_t loss =
        emit(graph, HOST_XENT, "loss", 0,
             (uint32_t[3]){layers[LAYERS - 1].z, model->labels, HOST_NONE}, model->loss);
    host_add_output(graph, loss, dz);
    backward(graph, layers, dz, grads);
    for (uint32_t i = 0; i < model->param_count; i++) {
        emit(graph, HOST_SGD, "update", i, (uint32_t[3]){model->params[i], grads[i], HOST_NONE},
             HOST_NONE);
    }
}
