/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random graphs with collectives on activations, on two to four ranks, threads of this program:
 * every output has exactly the bits of a reference that runs rank by rank. Shared memory and links
 * that only put, inline and with a thread; memory is reused while collectives are under way.
 */
#include <stdlib.h>
#include <string.h>

#include "support_ranks.h"

#include "fusion/passes/passes.h"
#include "runtime/base/error.h"
#include "tests/support/support.h"
#include "tests/support/support_lower.h"

#define ELEMS 24
#define OPS 24
#define MAX_RANKS 4

typedef enum kind { RELU, ADD, ALL_REDUCE, ALL_TO_ALL, BROADCAST, THERE_AND_BACK, KINDS } kind_t;

/* Step i makes value i + 1 of a and b; value 0 is the input. */
typedef struct step {
    kind_t kind;
    uint32_t a, b, root;
} step_t;

typedef struct job {
    weft_registry_t *registry;
    wefti_graph_t *graph;
    weft_plan_t *plan;
    step_t steps[OPS];
    float values[MAX_RANKS][OPS + 1][ELEMS]; /* the reference's */
} job_t;

/* In the order of a plan: the in-order tree, split at the largest power of two. */
static float sum_of(const job_t *job, uint32_t value, uint32_t elem, uint32_t first, uint32_t count)
{
    uint32_t half = 1;
    if (count == 1) {
        return job->values[first][value][elem];
    }
    while (half * 2 < count) {
        half *= 2;
    }
    return sum_of(job, value, elem, first, half) +
           sum_of(job, value, elem, first + half, count - half);
}

static float reference(const job_t *job, const step_t *step, uint32_t rank, uint32_t ranks,
                       uint32_t i)
{
    uint32_t block = ELEMS / ranks;
    const float *a = job->values[rank][step->a];
    switch (step->kind) {
    case RELU:
        return a[i] > 0 ? a[i] : 0;
    case ADD:
        return a[i] + job->values[rank][step->b][i];
    case ALL_TO_ALL:
        return job->values[i / block][step->a][rank * block + i % block];
    case BROADCAST:
        return job->values[step->root][step->a][i];
    default:
        return sum_of(job, step->a, i, 0, ranks);
    }
}

static void run_reference(job_t *job, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        for (uint32_t i = 0; i < ELEMS; i++) {
            job->values[r][0][i] = (float)((int)(i * 7 + r * 13) % 11 - 5) / 8;
        }
    }
    for (uint32_t s = 0; s < OPS; s++) {
        for (uint32_t r = 0; r < ranks; r++) {
            for (uint32_t i = 0; i < ELEMS; i++) {
                job->values[r][s + 1][i] = reference(job, &job->steps[s], r, ranks, i);
            }
        }
    }
}

static uint32_t add_node(job_t *job, const char *domain, const char *op, const uint32_t *inputs,
                         uint32_t input_count, const weft_attr_t *attr)
{
    uint32_t node;
    wefti_node_params_t params = {.domain = domain,
                                  .op = op,
                                  .inputs = inputs,
                                  .input_count = input_count,
                                  .output_count = 1,
                                  .attrs = attr,
                                  .attr_count = attr != NULL};
    RANK_OK(wefti_graph_add_node(job->graph, &params, &node));
    return job->graph->nodes[node].outputs[0];
}

static uint32_t add_step(job_t *job, const step_t *step, const uint32_t *ids, uint32_t ranks)
{
    const uint32_t inputs[] = {ids[step->a], ids[step->b]};
    weft_attr_t size = {.name = "group_size", .type = WEFT_ATTR_TYPE_INT, .i = ranks};
    weft_attr_t root = {.name = "root", .type = WEFT_ATTR_TYPE_INT, .i = step->root};
    uint32_t part;
    switch (step->kind) {
    case RELU:
        return add_node(job, "", "Relu", inputs, 1, NULL);
    case ADD:
        return add_node(job, "", "Add", inputs, 2, NULL);
    case ALL_REDUCE:
        return add_node(job, "weft", "AllReduce", inputs, 1, NULL);
    case ALL_TO_ALL:
        return add_node(job, "weft", "AllToAll", inputs, 1, NULL);
    case BROADCAST:
        return add_node(job, "weft", "Broadcast", inputs, 1, &root);
    default:
        part = add_node(job, "weft", "ReduceScatter", inputs, 1, &size);
        return add_node(job, "weft", "AllGather", &part, 1, &size);
    }
}

/* Output s is the s-th value that nobody else reads, and the last one. */
static void make_job(job_t *job, uint32_t ranks, uint64_t *random)
{
    const weft_tensor_desc_t type = {.dtype = WEFT_DTYPE_F32, .rank = 1, .dims = {ELEMS}};
    uint32_t ids[OPS + 1];
    memset(job, 0, sizeof(*job));
    RANK_OK(weft_registry_create(NULL, &job->registry));
    RANK_OK(wefti_graph_create(NULL, job->registry, 0, &job->graph));
    job->graph->opset = 17;
    RANK_OK(wefti_graph_add_value(job->graph, "x", WEFTI_VALUE_INPUT, &type, &ids[0]));
    for (uint32_t s = 0; s < OPS; s++) {
        step_t *step = &job->steps[s];
        step->kind = (kind_t)(test_next_random(random) % KINDS);
        step->a = s - (uint32_t)(test_next_random(random) % (s < 4 ? s + 1 : 4));
        step->b = (uint32_t)(test_next_random(random) % (s + 1));
        step->root = (uint32_t)(test_next_random(random) % ranks);
        ids[s + 1] = add_step(job, step, ids, ranks);
        if (s + 1 == OPS || s % 7 == 3) {
            RANK_OK(wefti_graph_add_output(job->graph, ids[s + 1]));
        }
    }
    RANK_OK(wefti_pass_inference_form(job->graph));
    wefti_lower_params_t params = {.world_size = ranks,
                                   .policy = "none",
                                   .optimizer = "none",
                                   .model_name = "random",
                                   .infer = true};
    RANK_OK(test_lower(job->graph, &params, &job->plan));
    RANK_OK(wefti_plan_seal(job->plan));
    RANK_OK(wefti_plan_verify(job->plan, job->registry));
    run_reference(job, ranks);
}

static void free_job(job_t *job)
{
    weft_plan_release(job->plan);
    wefti_graph_destroy(job->graph);
    weft_registry_destroy(job->registry);
}

static void check_outputs(const job_t *job, weft_session_t *session, uint32_t rank)
{
    uint32_t output = 0;
    for (uint32_t s = 0; s < OPS; s++) {
        float got[ELEMS];
        if (s + 1 == OPS || s % 7 == 3) {
            const char *name = job->graph->values[job->graph->outputs[output++]].name;
            RANK_OK(weft_session_get_output(session, name, got, sizeof(got), NULL));
            RANK_CHECK(memcmp(got, job->values[rank][s + 1], sizeof(got)) == 0);
        }
    }
}

static void infer(rank_world_t *world)
{
    const job_t *job = world->user;
    weft_session_t *session;
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = world->context;
    params.plan = job->plan;
    RANK_OK(weft_session_create(&params, &session));
    RANK_OK(weft_session_set_input(session, "x", job->values[world->rank][0],
                                   sizeof(job->values[0][0])));
    for (int run = 0; run < 3; run++) {
        RANK_OK(weft_session_step(session));
        check_outputs(job, session, world->rank);
    }
    RANK_CHECK(weft_session_eval(session) == WEFT_ERR_STATE);
    weft_session_destroy(session);
}

static void test_random_graphs(void **state)
{
    static job_t job;
    uint64_t random = support_seed() | 1;
    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        uint32_t ranks = 2 + i % 3;
        setenv("WEFT_PROGRESS", i % 2 == 0 ? "inline" : "thread", 1);
        make_job(&job, ranks, &random);
        support_rank_threads(ranks, infer, &job);
        free_job(&job);
    }
}

/* Between simulated hosts of two ranks each, everything is a schedule of the interpreter. */
static void test_random_graphs_over_put_links(void **state)
{
    static const uint32_t host_of[MAX_RANKS] = {0, 0, 1, 1};
    static job_t job;
    wefti_hub_links_t links = {.host_of = host_of};
    uint64_t random = support_seed() | 1;
    (void)state;
    setenv("WEFT_PROGRESS", "inline", 1);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t ranks = 3 + i % 2;
        make_job(&job, ranks, &random);
        support_rank_threads_over(ranks, infer, &job, &links);
        free_job(&job);
    }
}

/* Whoever carries collectives out, from one buffer to another or in place, the bits stay. */
static void test_random_graphs_with_every_algorithm(void **state)
{
    static const char *const algorithms[] = {
        "AllReduce=doubling,AllGather=bruck,ReduceScatter=halving,AllToAll=bruck,Broadcast=chain",
        "AllReduce=halving-doubling,AllGather=ring,AllToAll=pairwise,Broadcast=binomial",
        "AllReduce=one-shot,AllGather=log-step,Broadcast=scatter-gather"};
    static job_t job;
    uint64_t random = support_seed() | 1;
    (void)state;
    setenv("WEFT_PROGRESS", "inline", 1);
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t ranks = 2 + i % 2 * 2;
        setenv("WEFT_ALGO", algorithms[i / 2], 1);
        make_job(&job, ranks, &random);
        support_rank_threads(ranks, infer, &job);
        free_job(&job);
    }
    unsetenv("WEFT_ALGO");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_graphs),
        cmocka_unit_test(test_random_graphs_over_put_links),
        cmocka_unit_test(test_random_graphs_with_every_algorithm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
