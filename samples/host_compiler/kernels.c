/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of this compiler: plain loops over row-major matrices. */
#include "host.h"

#include <math.h>
#include <string.h>

#define RATE 0.2f

static const host_tensor_t *in(const host_graph_t *graph, const host_node_t *node, uint32_t i)
{
    return &graph->tensors[node->inputs[i]];
}

static const host_tensor_t *out(const host_graph_t *graph, const host_node_t *node, uint32_t i)
{
    return &graph->tensors[node->outputs[i]];
}

static void linear(const host_tensor_t *x, const host_tensor_t *w, const host_tensor_t *b,
                   const host_tensor_t *z)
{
    for (uint32_t r = 0; r < z->rows; r++) {
        float *row = z->data + (size_t)r * z->cols;
        memcpy(row, b->data, z->cols * sizeof(float));
        for (uint32_t k = 0; k < x->cols; k++) {
            float value = x->data[(size_t)r * x->cols + k];
            for (uint32_t c = 0; c < z->cols; c++) {
                row[c] += value * w->data[(size_t)k * w->cols + c];
            }
        }
    }
}

static void grad_x(const host_tensor_t *dz, const host_tensor_t *w, const host_tensor_t *da)
{
    for (uint32_t r = 0; r < da->rows; r++) {
        for (uint32_t k = 0; k < da->cols; k++) {
            float sum = 0;
            for (uint32_t c = 0; c < dz->cols; c++) {
                sum += dz->data[(size_t)r * dz->cols + c] * w->data[(size_t)k * w->cols + c];
            }
            da->data[(size_t)r * da->cols + k] = sum;
        }
    }
}

static void grad_w(const host_tensor_t *x, const host_tensor_t *dz, const host_tensor_t *dw)
{
    memset(dw->data, 0, host_tensor_bytes(dw));
    for (uint32_t r = 0; r < x->rows; r++) {
        for (uint32_t k = 0; k < x->cols; k++) {
            float value = x->data[(size_t)r * x->cols + k];
            for (uint32_t c = 0; c < dz->cols; c++) {
                dw->data[(size_t)k * dw->cols + c] += value * dz->data[(size_t)r * dz->cols + c];
            }
        }
    }
}

static void grad_b(const host_tensor_t *dz, const host_tensor_t *db)
{
    memset(db->data, 0, host_tensor_bytes(db));
    for (uint32_t r = 0; r < dz->rows; r++) {
        for (uint32_t c = 0; c < dz->cols; c++) {
            db->data[c] += dz->data[(size_t)r * dz->cols + c];
        }
    }
}

static void cross_entropy(const host_tensor_t *z, const host_tensor_t *labels,
                          const host_tensor_t *loss, const host_tensor_t *dz)
{
    loss->data[0] = 0;
    for (uint32_t r = 0; r < z->rows; r++) {
        const float *row = z->data + (size_t)r * z->cols;
        float *grad = dz->data + (size_t)r * z->cols, most = row[0], sum = 0;
        uint32_t label = (uint32_t)labels->data[r];
        for (uint32_t c = 1; c < z->cols; c++) {
            most = row[c] > most ? row[c] : most;
        }
        for (uint32_t c = 0; c < z->cols; c++) {
            grad[c] = expf(row[c] - most);
            sum += grad[c];
        }
        loss->data[0] -= (row[label] - most - logf(sum)) / (float)z->rows;
        for (uint32_t c = 0; c < z->cols; c++) {
            grad[c] = (grad[c] / sum - (c == label ? 1.0f : 0.0f)) / (float)z->rows;
        }
    }
}

void host_run_kernel(const host_graph_t *graph, const host_node_t *node)
{
    const host_tensor_t *a = in(graph, node, 0);
    const host_tensor_t *b = node->input_count > 1 ? in(graph, node, 1) : NULL;
    const host_tensor_t *y = node->output_count > 0 ? out(graph, node, 0) : NULL;
    size_t elems = (size_t)a->rows * a->cols;
    switch (node->op) {
    case HOST_LINEAR:
        linear(a, b, in(graph, node, 2), y);
        break;
    case HOST_RELU:
        for (size_t i = 0; i < elems; i++) {
            y->data[i] = a->data[i] > 0 ? a->data[i] : 0;
        }
        break;
    case HOST_XENT:
        cross_entropy(a, b, y, out(graph, node, 1));
        break;
    case HOST_RELU_GRAD:
        for (size_t i = 0; i < elems; i++) {
            y->data[i] = b->data[i] > 0 ? a->data[i] : 0;
        }
        break;
    case HOST_GRAD_X:
        grad_x(a, b, y);
        break;
    case HOST_GRAD_W:
        grad_w(a, b, y);
        break;
    case HOST_GRAD_B:
        grad_b(a, y);
        break;
    case HOST_SGD:
        for (size_t i = 0; i < elems; i++) {
            a->data[i] -= RATE * b->data[i];
        }
        break;
    case HOST_COLLECTIVE:
        break; /* execute.c */
    }
}
