/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data-parallel training without a graph: every rank walks backwards through its layers, hands each
 * gradient to a fuser as soon as it has it, and waits once, at the end of the step.
 *
 *   caller    gradient 5 | add | gradient 4 | add | .. | gradient 0 | add | wait | update
 *   stream                       bucket 0 (layers 5, 4, 3)        | bucket 1 ..
 *
 * The model is as small as it gets: layer l of rank r wants its weights to be target(r, l), so the
 * gradient is their difference, and with gradients averaged over the ranks the weights end at the
 * mean of all targets. Four ranks, as threads of this program.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <weft/weft.h>

#define RANKS 4
#define LAYERS 6
#define STEPS 60
#define RATE 0.25f

static const uint64_t elems[LAYERS] = {40000, 300, 20000, 100, 5000, 10};
static const char *const names[LAYERS] = {"embed.w",  "embed.b", "hidden.w",
                                          "hidden.b", "out.w",   "out.b"};

typedef struct rank {
    weft_hub_t *hub;
    int32_t number;
    pthread_t thread;
    double worst; /* distance from the mean of all targets */
} rank_t;

/* Every call can fail; a sample stops at the first one that does. */
static void check(weft_status_t status)
{
    if (status < 0) {
        fprintf(stderr, "fuser: %s\n", weft_last_error());
        exit(2);
    }
}

static float target(int32_t rank, uint64_t elem)
{
    return (float)rank + (float)(elem % 7);
}

/* Backwards, as gradients appear. */
static void backward(weft_fuser_t *fuser, int32_t rank, float *const *weights,
                     float *const *gradients)
{
    for (uint32_t layer = LAYERS; layer-- > 0;) {
        for (uint64_t i = 0; i < elems[layer]; i++) {
            gradients[layer][i] = weights[layer][i] - target(rank, i);
        }
        check(weft_fuser_add(fuser, gradients[layer], elems[layer], WEFT_DTYPE_F32,
                             WEFT_REDUCTION_AVG, names[layer]));
    }
}

static void update(float *const *weights, float *const *gradients)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint64_t i = 0; i < elems[layer]; i++) {
            weights[layer][i] -= RATE * gradients[layer][i];
        }
    }
}

static void train(rank_t *rank, weft_fuser_t *fuser, float *gradient_memory)
{
    float *weights[LAYERS], *gradients[LAYERS];
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        weights[layer] = calloc(elems[layer], sizeof(float));
        if (weights[layer] == NULL) {
            exit(2);
        }
        gradients[layer] = gradient_memory;
        gradient_memory += elems[layer]; /* side by side: the fuser need not copy */
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        backward(fuser, rank->number, weights, gradients);
        check(weft_fuser_wait(fuser)); /* gradients are averages now */
        update(weights, gradients);
    }
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint64_t i = 0; i < elems[layer]; i++) {
            double mean = (RANKS - 1) / 2.0 + (double)(i % 7);
            double distance = fabs((double)weights[layer][i] - mean);
            rank->worst = distance > rank->worst ? distance : rank->worst;
        }
        free(weights[layer]);
    }
    weft_fuser_stats_t stats = WEFT_FUSER_STATS_INIT;
    check(weft_fuser_get_stats(fuser, &stats));
    if (rank->number == 0) {
        printf(
            "%llu steps, %llu tensors in %llu buckets of at most %llu bytes; %llu bytes reduced, "
            "%llu copied\n",
            (unsigned long long)stats.step_count, (unsigned long long)stats.tensor_count,
            (unsigned long long)stats.bucket_count, (unsigned long long)stats.largest_bucket_bytes,
            (unsigned long long)stats.reduced_bytes, (unsigned long long)stats.copied_bytes);
    }
}

static void *run(void *user)
{
    rank_t *rank = user;
    weft_context_params_t context_params = WEFT_CONTEXT_PARAMS_INIT;
    weft_stream_params_t stream_params = WEFT_STREAM_PARAMS_INIT;
    weft_fuser_params_t params = WEFT_FUSER_PARAMS_INIT;
    weft_context_t *context = NULL;
    weft_group_t *group = NULL;
    weft_fuser_t *fuser = NULL;
    void *memory = NULL;
    uint64_t total = 0;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        total += elems[layer];
    }
    stream_params.name = "fuser";
    stream_params.flags = WEFT_STREAM_THREAD;
    context_params.rank = rank->number;
    context_params.world_size = RANKS;
    context_params.hub = rank->hub;
    check(weft_context_create(&context_params, &context));
    check(weft_group_create_world(context, &group));
    check(weft_mem_alloc(context, total * sizeof(float), &memory));
    /* With a stream that has a thread, buckets are reduced while this thread computes. */
    check(weft_stream_create(context, &stream_params, &params.stream));
    params.bytes = 128 << 10; /* small, so that there are several buckets */
    params.window_ns = WEFT_FUSER_WINDOW_NONE;
    check(weft_fuser_create(group, &params, &fuser));
    train(rank, fuser, memory);
    weft_fuser_destroy(fuser);
    weft_stream_destroy(params.stream);
    check(weft_mem_free(context, memory));
    weft_group_destroy(group);
    weft_context_release(context);
    return NULL;
}

int main(void)
{
    static rank_t ranks[RANKS];
    weft_hub_t *hub = NULL;
    double worst = 0;
    check(weft_hub_create(RANKS, &hub));
    for (int32_t r = 0; r < RANKS; r++) {
        ranks[r].hub = hub;
        ranks[r].number = r;
        if (pthread_create(&ranks[r].thread, NULL, run, &ranks[r]) != 0) {
            fputs("fuser: cannot start a thread\n", stderr);
            return 2;
        }
    }
    for (int32_t r = 0; r < RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
        worst = ranks[r].worst > worst ? ranks[r].worst : worst;
    }
    weft_hub_destroy(hub);
    printf("weights are within %.2g of the mean of all targets\n", worst);
    return worst < 1e-4 ? 0 : 1;
}
