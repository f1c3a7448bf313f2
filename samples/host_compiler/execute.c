/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop that runs a step. Kernels go to one stream, collectives to another, which has a thread;
 * events order the two where Weft's passes said a collective starts and is waited for:
 *
 *   compute   .. grad w3 | grad b3 | ready ^ | grad x3 | .. | done v | update 6 | update 7
 *   comm                             ready v | bucket of 2 | done ^
 */
#include "host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNIT_FLOATS 16u /* 64 bytes, to which tensors are padded and at which they are split */

/* What the stream calls for a kernel. */
typedef struct launch {
    const host_graph_t *graph;
    const host_node_t *node;
} launch_t;

typedef struct transfer {
    uint32_t node;
    float *data; /* all of the bucket's tensors lie side by side */
    uint64_t count;
    weft_group_t *group; /* with the algorithm that was chosen for it */
    weft_event_t *ready, *done;
} transfer_t;

struct host_program {
    host_graph_t *graph;
    weft_group_t *group;
    weft_context_t *context;
    weft_stream_t *compute, *comm;
    launch_t launches[HOST_MAX_NODES];
    transfer_t transfers[HOST_MAX_NODES]; /* in the order of execution */
    uint32_t transfer_count;
    void *gradients;
    float *memory; /* of everything else */
};

static uint64_t padded(const host_tensor_t *tensor)
{
    uint64_t floats = (uint64_t)tensor->rows * tensor->cols;
    return (floats + UNIT_FLOATS - 1) / UNIT_FLOATS * UNIT_FLOATS;
}

/* Gradients first, in memory that peers reach, in the order in which they travel. */
static void place_gradients(host_program_t *program)
{
    host_graph_t *graph = program->graph;
    uint64_t total = 0, at = 0;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const host_node_t *node = &graph->nodes[graph->order[i]];
        for (uint32_t k = 0; node->op == HOST_COLLECTIVE && k < node->input_count; k++) {
            total += padded(&graph->tensors[node->inputs[k]]);
        }
    }
    host_check(weft_mem_alloc(program->context, total * sizeof(float), &program->gradients));
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        const host_node_t *node = &graph->nodes[id];
        if (node->op != HOST_COLLECTIVE) {
            continue;
        }
        transfer_t *transfer = &program->transfers[program->transfer_count++];
        *transfer = (transfer_t){.node = id, .data = (float *)program->gradients + at};
        for (uint32_t k = 0; k < node->input_count; k++) {
            graph->tensors[node->inputs[k]].data = (float *)program->gradients + at;
            at += padded(&graph->tensors[node->inputs[k]]);
        }
        transfer->count = (uint64_t)((float *)program->gradients + at - transfer->data);
    }
}

static void place_others(host_program_t *program)
{
    host_graph_t *graph = program->graph;
    uint64_t total = 0;
    for (uint32_t t = 0; t < graph->tensor_count; t++) {
        total += graph->tensors[t].data == NULL ? padded(&graph->tensors[t]) : 0;
    }
    program->memory = calloc(total, sizeof(float));
    if (program->memory == NULL) {
        host_fail("no memory");
    }
    float *at = program->memory;
    for (uint32_t t = 0; t < graph->tensor_count; t++) {
        host_tensor_t *tensor = &graph->tensors[t];
        if (tensor->alias != HOST_NONE) {
            tensor->data = graph->tensors[tensor->alias].data;
        } else if (tensor->data == NULL) {
            tensor->data = at;
            at += padded(tensor);
        }
    }
}

/* Buckets with one algorithm share a group. */
static weft_group_t *group_with(host_program_t *program, uint32_t index, const char *algorithm)
{
    weft_group_t *group = NULL;
    for (uint32_t i = 0; i < index; i++) {
        const transfer_t *other = &program->transfers[i];
        if (strcmp(program->graph->nodes[other->node].algorithm, algorithm) == 0) {
            return other->group;
        }
    }
    host_check(weft_group_duplicate(program->group, &group));
    if (algorithm[0] != '\0') {
        host_check(weft_group_set_algorithm(group, WEFT_COLLECTIVE_ALL_REDUCE, algorithm));
    }
    return group;
}

host_program_t *host_program_create(host_graph_t *graph, weft_group_t *group)
{
    host_program_t *program = calloc(1, sizeof *program);
    weft_stream_params_t compute = WEFT_STREAM_PARAMS_INIT;
    weft_stream_params_t comm = WEFT_STREAM_PARAMS_INIT;
    if (program == NULL) {
        host_fail("no memory");
    }
    program->graph = graph;
    program->group = group;
    program->context = weft_group_context(group);
    compute.name = "compute";
    comm.name = "comm";
    comm.flags = WEFT_STREAM_THREAD;
    host_check(weft_stream_create(program->context, &compute, &program->compute));
    host_check(weft_stream_create(program->context, &comm, &program->comm));
    place_gradients(program);
    place_others(program);
    for (uint32_t i = 0; i < graph->node_count; i++) {
        program->launches[i] = (launch_t){graph, &graph->nodes[i]};
    }
    for (uint32_t i = 0; i < program->transfer_count; i++) {
        transfer_t *transfer = &program->transfers[i];
        transfer->group = group_with(program, i, graph->nodes[transfer->node].algorithm);
        host_check(weft_event_create(program->context, &transfer->ready));
        host_check(weft_event_create(program->context, &transfer->done));
    }
    return program;
}

/* Pieces at whole units, where the pass asked for some. */
static void reduce(const host_program_t *program, const transfer_t *transfer, weft_stream_t *stream)
{
    const host_node_t *node = &program->graph->nodes[transfer->node];
    uint64_t units = transfer->count / UNIT_FLOATS, parts = node->parts > 0 ? node->parts : 1;
    for (uint64_t i = 0; i < parts; i++) {
        uint64_t begin = units * i / parts * UNIT_FLOATS;
        uint64_t end = units * (i + 1) / parts * UNIT_FLOATS;
        weft_status_t status;
        do { /* full: what is in flight makes room */
            status = weft_all_reduce(transfer->data + begin, transfer->data + begin, end - begin,
                                     WEFT_DTYPE_F32, node->reduction, transfer->group, stream);
            if (status == WEFT_AGAIN) {
                host_check(weft_stream_query(stream));
            }
        } while (status == WEFT_AGAIN);
        host_check(status);
    }
}

static weft_status_t run_launch(void *user)
{
    const launch_t *launch = user;
    host_run_kernel(launch->graph, launch->node);
    return WEFT_OK;
}

/* Collectives in the order that all ranks keep, as soon as the node that each starts behind was
 * launched. */
static void start_transfers(host_program_t *program, const int *launched, uint32_t *next)
{
    for (; *next < program->transfer_count; (*next)++) {
        transfer_t *transfer = &program->transfers[*next];
        uint32_t after = program->graph->nodes[transfer->node].start_after;
        if (after != HOST_NONE && !launched[after]) {
            return;
        }
        host_check(weft_event_record(transfer->ready, program->compute));
        host_check(weft_stream_wait_event(program->comm, transfer->ready));
        reduce(program, transfer, program->comm);
        host_check(weft_event_record(transfer->done, program->comm));
    }
}

static void wait_before(const host_program_t *program, uint32_t id)
{
    for (uint32_t i = 0; i < program->transfer_count; i++) {
        if (program->graph->nodes[program->transfers[i].node].wait_before == id) {
            host_check(weft_stream_wait_event(program->compute, program->transfers[i].done));
        }
    }
}

void host_program_step(host_program_t *program)
{
    const host_graph_t *graph = program->graph;
    int launched[HOST_MAX_NODES] = {0};
    uint32_t next = 0;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        if (graph->nodes[id].op != HOST_COLLECTIVE) {
            wait_before(program, id);
            host_check(
                weft_stream_launch_host(program->compute, run_launch, &program->launches[id]));
        }
        launched[id] = 1;
        start_transfers(program, launched, &next);
    }
    host_check(weft_stream_synchronize(program->compute));
    host_check(weft_stream_synchronize(program->comm));
}

void host_program_step_plain(host_program_t *program)
{
    const host_graph_t *graph = program->graph;
    uint32_t next = 0;
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const host_node_t *node = &graph->nodes[graph->order[i]];
        if (node->op == HOST_COLLECTIVE) {
            reduce(program, &program->transfers[next++], NULL);
        } else {
            host_run_kernel(graph, node);
        }
    }
}

void host_program_destroy(host_program_t *program)
{
    weft_stream_destroy(program->compute);
    weft_stream_destroy(program->comm);
    for (uint32_t i = 0; i < program->transfer_count; i++) {
        transfer_t *transfer = &program->transfers[i];
        int shared = 0;
        for (uint32_t k = 0; k < i; k++) {
            shared |= program->transfers[k].group == transfer->group;
        }
        weft_event_destroy(transfer->ready);
        weft_event_destroy(transfer->done);
        if (!shared) {
            weft_group_destroy(transfer->group);
        }
    }
    host_check(weft_mem_free(program->context, program->gradients));
    free(program->memory);
    free(program);
}
