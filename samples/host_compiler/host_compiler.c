/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weft inside another graph compiler: trains a small network on several ranks, once as this
 * compiler would do it alone (every gradient reduced where it appears), once with Weft's passes and
 * streams, once as a plan that it builds, and compares the weights bit for bit.
 *
 *   weft_sample_host_compiler [RANKS [POLICY]]      ranks are threads of this program
 *   WEFT_RANK=0 WEFT_WORLD_SIZE=2 .. weft_sample_host_compiler     one of several processes
 */
#include "host.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 30u
#define MAX_RANKS 16

typedef struct rank {
    weft_hub_t *hub; /* NULL: this process is one rank */
    int32_t number, count;
    const char *policy;
    pthread_t thread;
    int failed;
} rank_t;

typedef struct worker {
    host_graph_t graph;
    host_model_t model;
    host_program_t *program;
} worker_t;

/* ---- operators ---- */

static int print_collective(const weft_op_def_t *def, void *user)
{
    if ((def->effects & WEFT_EFFECT_COMMUNICATES) != 0) {
        uint32_t *count = user;
        printf("  %s %s: %s, %s%s%s\n", def->domain, def->name,
               def->in_place[0] == 0 ? "in place" : "out of place",
               def->ordering == WEFT_ORDERING_PAIR ? "ordered by pair" : "ordered by group",
               def->start != NULL ? ", in halves as " : "", def->start != NULL ? def->start : "");
        (*count)++;
    }
    return 0;
}

/* What a host compiler would put into its own table of operators. */
static void print_operators(const weft_registry_t *registry)
{
    uint32_t count = 0;
    printf("collectives that Weft defines:\n");
    weft_op_registry_visit(registry, print_collective, &count);
    printf("  %u in all, each with shape and type rules, effects and costs\n", count);
}

/* ---- training ---- */

/* The same on every machine. */
static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33);
}

static float next_float(uint64_t *state)
{
    return (float)next_random(state) / 1073741824.0f - 1.0f;
}

static void init_weights(worker_t *worker)
{
    uint64_t state = 1;
    for (uint32_t p = 0; p < worker->model.param_count; p++) {
        const host_tensor_t *tensor = &worker->graph.tensors[worker->model.params[p]];
        float scale = tensor->rows > 1 ? sqrtf(3.0f / (float)tensor->rows) : 0.0f;
        for (size_t i = 0; i < (size_t)tensor->rows * tensor->cols; i++) {
            tensor->data[i] = scale * next_float(&state);
        }
    }
}

/* Every rank has samples of its own: the class is the largest of the first ten inputs. */
static void feed(worker_t *worker, uint32_t rank, uint32_t step)
{
    const host_tensor_t *x = &worker->graph.tensors[worker->model.input];
    const host_tensor_t *labels = &worker->graph.tensors[worker->model.labels];
    uint64_t state = (uint64_t)step * 1000 + rank + 7;
    for (uint32_t r = 0; r < x->rows; r++) {
        float *row = x->data + (size_t)r * x->cols;
        uint32_t best = 0;
        for (uint32_t c = 0; c < x->cols; c++) {
            row[c] = next_float(&state);
            best = c < 10 && row[c] > row[best] ? c : best;
        }
        labels->data[r] = (float)best;
    }
}

static void print_graph(const host_graph_t *graph)
{
    for (uint32_t i = 0; i < graph->order_count; i++) {
        const host_node_t *node = &graph->nodes[graph->order[i]];
        if (node->op != HOST_COLLECTIVE) {
            continue;
        }
        printf("  %s by %s:", node->name, node->algorithm);
        if (node->parts > 0) {
            printf(" %u pieces of", node->parts);
        }
        for (uint32_t k = 0; k < node->input_count; k++) {
            printf(" %s", graph->tensors[node->inputs[k]].name);
        }
        printf("\n    starts after %s, waited for before %s", graph->nodes[node->start_after].name,
               node->wait_before != HOST_NONE ? graph->nodes[node->wait_before].name : "the end");
        printf("%s%s\n", node->reason[0] != '\0' ? "; " : "", node->reason);
    }
    printf("  %u order edges\n", graph->edge_count);
}

static uint32_t differing_params(const worker_t *a, const worker_t *b)
{
    uint32_t count = 0;
    for (uint32_t p = 0; p < a->model.param_count; p++) {
        const host_tensor_t *x = &a->graph.tensors[a->model.params[p]];
        const host_tensor_t *y = &b->graph.tensors[b->model.params[p]];
        count += memcmp(x->data, y->data, host_tensor_bytes(x)) != 0;
    }
    return count;
}

/* Weights of the plan, which has them in the order in which they were added. */
static uint32_t differing_from_plan(const worker_t *worker, weft_session_t *session)
{
    uint32_t count = 0;
    for (uint32_t p = 0; p < worker->model.param_count; p++) {
        const host_tensor_t *tensor = &worker->graph.tensors[worker->model.params[p]];
        void *data = malloc(host_tensor_bytes(tensor));
        if (data == NULL) {
            host_fail("no memory");
        }
        host_check(weft_session_get_param(session, p, data, host_tensor_bytes(tensor)));
        count += memcmp(tensor->data, data, host_tensor_bytes(tensor)) != 0;
        free(data);
    }
    return count;
}

static weft_session_t *bind_plan(worker_t *worker, weft_context_t *context,
                                 weft_registry_t *registry)
{
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    weft_session_t *session = NULL;
    host_register(registry);
    params.context = context;
    params.registry = registry;
    params.plan =
        host_build_plan(&worker->graph, &worker->model, registry, weft_context_world_size(context));
    host_check(weft_session_create(&params, &session));
    weft_plan_release(params.plan);
    return session;
}

static void step_plan(const worker_t *worker, weft_session_t *session)
{
    const host_tensor_t *x = &worker->graph.tensors[worker->model.input];
    const host_tensor_t *labels = &worker->graph.tensors[worker->model.labels];
    host_check(weft_session_set_input(session, x->name, x->data, host_tensor_bytes(x)));
    host_check(
        weft_session_set_input(session, labels->name, labels->data, host_tensor_bytes(labels)));
    host_check(weft_session_step(session));
}

static float train(worker_t *plain, worker_t *fused, weft_session_t *session, uint32_t rank)
{
    float first = 0, last = 0;
    for (uint32_t step = 0; step < STEPS; step++) {
        feed(plain, rank, step);
        feed(fused, rank, step);
        host_program_step_plain(plain->program);
        host_program_step(fused->program);
        step_plan(fused, session);
        last = fused->graph.tensors[fused->model.loss].data[0];
        first = step == 0 ? last : first;
    }
    if (rank == 0) {
        printf("%u steps, loss %.3f to %.3f\n", STEPS, (double)first, (double)last);
    }
    return first - last;
}

/* All ranks have the same weights: of each word the least and the greatest are equal. */
static int ranks_agree(const worker_t *worker, weft_group_t *group)
{
    int same = 1;
    for (uint32_t p = 0; p < worker->model.param_count; p++) {
        const host_tensor_t *tensor = &worker->graph.tensors[worker->model.params[p]];
        size_t words = (size_t)tensor->rows * tensor->cols;
        uint32_t *least = malloc(2 * words * sizeof *least);
        if (least == NULL) {
            host_fail("no memory");
        }
        host_check(weft_all_reduce(tensor->data, least, words, WEFT_DTYPE_U32, WEFT_REDUCTION_MIN,
                                   group, NULL));
        host_check(weft_all_reduce(tensor->data, least + words, words, WEFT_DTYPE_U32,
                                   WEFT_REDUCTION_MAX, group, NULL));
        same &= memcmp(least, least + words, words * sizeof *least) == 0;
        free(least);
    }
    return same;
}

static void *run(void *user)
{
    rank_t *rank = user;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *context = NULL;
    weft_group_t *group = NULL;
    weft_registry_t *registry = NULL;
    worker_t *plain = calloc(1, sizeof *plain), *fused = calloc(1, sizeof *fused);
    if (plain == NULL || fused == NULL) {
        host_fail("no memory");
    }
    params.hub = rank->hub;
    params.rank = rank->hub != NULL ? rank->number : -1;
    params.world_size = rank->hub != NULL ? rank->count : -1;
    host_check(weft_context_create(&params, &context));
    host_check(weft_group_create_world(context, &group));
    host_check(weft_registry_create(NULL, &registry));
    int verbose = weft_group_rank(group) == 0;
    if (verbose) {
        print_operators(registry);
    }
    host_build_model(&plain->graph, &plain->model);
    host_compile_plain(&plain->graph, registry);
    host_build_model(&fused->graph, &fused->model);
    host_compile(&fused->graph, registry, weft_group_size(group), rank->policy, verbose);
    if (verbose) {
        print_graph(&fused->graph);
    }
    plain->program = host_program_create(&plain->graph, group);
    fused->program = host_program_create(&fused->graph, group);
    init_weights(plain);
    init_weights(fused);
    weft_session_t *session = bind_plan(fused, context, registry);
    float learned = train(plain, fused, session, weft_group_rank(group));
    uint32_t wrong = differing_params(plain, fused);
    uint32_t wrong_plan = differing_from_plan(fused, session);
    int same = ranks_agree(fused, group);
    rank->failed = wrong != 0 || wrong_plan != 0 || !same || !(learned > 0);
    if (verbose) {
        printf("%u of %u parameters differ from the run without fusion; ranks %s\n", wrong,
               fused->model.param_count, same ? "agree" : "differ");
        printf("%u of %u parameters differ in the session of the plan\n", wrong_plan,
               fused->model.param_count);
    }
    weft_session_destroy(session);
    host_program_destroy(fused->program);
    host_program_destroy(plain->program);
    weft_registry_destroy(registry);
    weft_group_destroy(group);
    weft_context_release(context);
    free(fused);
    free(plain);
    return NULL;
}

int main(int argc, char **argv)
{
    static rank_t ranks[MAX_RANKS];
    weft_hub_t *hub = NULL;
    int count = argc > 1 ? atoi(argv[1]) : 2, failed = 0;
    const char *policy = argc > 2 ? argv[2] : "auto";
    if (count < 1 || count > MAX_RANKS) {
        host_fail("between 1 and 16 ranks");
    }
    if (getenv("WEFT_RANK") != NULL) { /* one process of several */
        ranks[0] = (rank_t){.policy = policy};
        run(&ranks[0]);
        return ranks[0].failed;
    }
    host_check(weft_hub_create((uint32_t)count, &hub));
    for (int r = 0; r < count; r++) {
        ranks[r] = (rank_t){.hub = hub, .number = r, .count = count, .policy = policy};
        if (pthread_create(&ranks[r].thread, NULL, run, &ranks[r]) != 0) {
            host_fail("cannot start a thread");
        }
    }
    for (int r = 0; r < count; r++) {
        pthread_join(ranks[r].thread, NULL);
        failed |= ranks[r].failed;
    }
    weft_hub_destroy(hub);
    return failed;
}
