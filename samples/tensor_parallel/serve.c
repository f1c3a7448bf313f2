/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serving a model that is divided among ranks: each has its part of the weights, collectives in the
 * graph put activations together, all ranks hold the whole result.
 *
 *   usage: weft_sample_tensor_parallel whole.onnx block.rank0.onnx block.rank1.onnx ..
 *
 * Compiles the parts into one plan, runs it on as many ranks, threads of this program, and compares
 * with the whole model on one rank. With processes in place of threads (`weft run PLAN`, or a
 * context per process) nothing else changes.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <weft/weft.h>

#define REQUESTS 200
#define MAX_RANKS 64

typedef struct rank {
    weft_hub_t *hub;
    weft_plan_t *plan;
    int32_t number, world_size;
    pthread_t thread;
    float *result; /* of the last request */
    size_t bytes;
    double median_us;
} rank_t;

/* Every call can fail; a sample stops at the first one that does. */
static void check(weft_status_t status)
{
    if (status < 0) {
        fprintf(stderr, "tensor_parallel: %s\n", weft_last_error());
        exit(2);
    }
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The plan's only input and only output: name and size. */
static const char *find_binding(weft_plan_t *plan, weft_binding_role_t role, size_t *out_bytes)
{
    for (size_t i = 0; i < weft_plan_binding_count(plan); i++) {
        weft_binding_t binding = WEFT_BINDING_INIT;
        check(weft_plan_get_binding(plan, i, &binding));
        if (binding.role == role) {
            *out_bytes = (size_t)weft_tensor_elem_count(&binding.desc) *
                         weft_dtype_size_bytes(binding.desc.dtype);
            return binding.name;
        }
    }
    fputs("tensor_parallel: the model has no such tensor\n", stderr);
    exit(2);
}

/* A request as it would come from outside: the same on all ranks. */
static void make_request(int number, float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        x[i] = sinf((float)(i + 1) * 0.37f + (float)number);
    }
}

static void *serve(void *user)
{
    rank_t *rank = user;
    double *times = calloc(REQUESTS, sizeof(*times));
    size_t input_bytes = 0;
    const char *input = find_binding(rank->plan, WEFT_BINDING_ROLE_INPUT, &input_bytes);
    const char *output = find_binding(rank->plan, WEFT_BINDING_ROLE_OUTPUT, &rank->bytes);
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *context = NULL;
    weft_session_t *session = NULL;
    void *memory = NULL;
    params.rank = rank->number;
    params.world_size = rank->world_size;
    params.hub = rank->hub;
    check(weft_context_create(&params, &context));
    weft_session_params_t bind = WEFT_SESSION_PARAMS_INIT;
    bind.context = context;
    bind.plan = rank->plan;
    check(weft_session_create(&bind, &session)); /* every rank takes its own weights */
    check(weft_session_input_memory(session, input, &memory, &input_bytes));
    rank->result = malloc(rank->bytes);
    if (times == NULL || rank->result == NULL) {
        exit(2);
    }
    for (int request = 0; request < REQUESTS; request++) {
        make_request(request, memory, input_bytes / sizeof(float));
        double begin = now_us();
        check(weft_session_step(session));
        times[request] = now_us() - begin;
    }
    check(weft_session_get_output(session, output, rank->result, rank->bytes, NULL));
    qsort(times, REQUESTS, sizeof(*times), compare_doubles);
    rank->median_us = times[REQUESTS / 2];
    weft_session_destroy(session);
    weft_context_release(context);
    free(times);
    return NULL;
}

/* Compiles the models, one per rank, and serves; ranks[] has the results. */
static void run(const char *const *models, uint32_t count, rank_t *ranks)
{
    weft_compile_params_t compile = WEFT_COMPILE_PARAMS_INIT;
    weft_plan_t *plan = NULL;
    weft_hub_t *hub = NULL;
    compile.infer = 1;
    compile.batch = 1;
    compile.world_size = count;
    compile.rank_models = models;
    compile.rank_model_count = count;
    check(weft_compile(&compile, &plan));
    check(weft_hub_create(count, &hub));
    for (uint32_t r = 0; r < count; r++) {
        ranks[r] =
            (rank_t){.hub = hub, .plan = plan, .number = (int32_t)r, .world_size = (int32_t)count};
        if (pthread_create(&ranks[r].thread, NULL, serve, &ranks[r]) != 0) {
            fputs("tensor_parallel: cannot start a thread\n", stderr);
            exit(2);
        }
    }
    for (uint32_t r = 0; r < count; r++) {
        pthread_join(ranks[r].thread, NULL);
    }
    weft_hub_destroy(hub);
    weft_plan_release(plan);
}

int main(int argc, char **argv)
{
    static rank_t whole[1], parts[MAX_RANKS];
    uint32_t count = (uint32_t)argc - 2;
    float worst = 0;
    int equal = 1;
    if (argc < 3 || count > MAX_RANKS) {
        fputs("usage: weft_sample_tensor_parallel WHOLE.onnx PART0.onnx PART1.onnx ..\n", stderr);
        return 2;
    }
    run((const char *const *)argv + 1, 1, whole);
    run((const char *const *)argv + 2, count, parts);
    for (uint32_t r = 1; r < count; r++) {
        equal = equal && memcmp(parts[r].result, parts[0].result, parts[0].bytes) == 0;
    }
    for (size_t i = 0; i < whole[0].bytes / sizeof(float); i++) {
        float distance = fabsf(whole[0].result[i] - parts[0].result[i]);
        worst = distance > worst ? distance : worst;
    }
    printf("whole on 1 rank: %.1f us; in parts on %u ranks: %.1f us (medians of %d requests)\n",
           whole[0].median_us, count, parts[0].median_us, REQUESTS);
    printf("results of the ranks are %s; within %.2g of the whole model's\n",
           equal ? "equal bit for bit" : "DIFFERENT", (double)worst);
    for (uint32_t r = 0; r < count; r++) {
        free(parts[r].result);
    }
    free(whole[0].result);
    return equal && worst < 1e-4f ? 0 : 1;
}
