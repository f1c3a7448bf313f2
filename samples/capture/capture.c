/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data-parallel training without a graph, where every step makes the same calls: one step is
 * captured, and from then on its plan is replayed.
 *
  *   capture   gradient 5 | all_reduce (noted) | gradient 4 | all_reduce (noted) | .. | end: agree
 *   a step    gradient 5 | ready 0            | gradient 4 | ready 1   | .. | wait_all | update
 *   stream                                      bucket 0 (as planned) | bucket 1 ..
 *
 * The model is that of samples/fuser: layer l of rank r wants its weights to be target(r, l), and
 * with gradients averaged over the ranks the weights end at the mean of all targets. Four ranks, as
 * threads of this program.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <weft/weft.h>

#define RANKS 4
#define LAYERS 6u
#define STEPS 60
#define RATE 0.25f

static const uint64_t elems[LAYERS] = {40000, 300, 20000, 100, 5000, 10};

typedef struct rank {
    weft_hub_t *hub;
    int32_t number;
    pthread_t thread;
    double worst; /* distance from the mean of all targets */
} rank_t;

typedef struct model {
    float *weights[LAYERS], *gradients[LAYERS];
} model_t;

/* Every call can fail; a sample stops at the first one that does. */
static void check(weft_status_t status)
{
    if (status < 0) {
        fprintf(stderr, "capture: %s\n", weft_last_error());
        exit(2);
    }
}

static float target(int32_t rank, uint64_t elem)
{
    return (float)rank + (float)(elem % 7);
}

static void make_gradient(const model_t *model, int32_t rank, uint32_t layer)
{
    for (uint64_t i = 0; i < elems[layer]; i++) {
        model->gradients[layer][i] = model->weights[layer][i] - target(rank, i);
    }
}

/* The calls are made as ever, but only noted: nothing is reduced in this step. */
static weft_capture_t *capture_step(const model_t *model, int32_t rank, weft_group_t *group,
                                    weft_stream_t *stream)
{
    weft_capture_params_t params = WEFT_CAPTURE_PARAMS_INIT;
    weft_capture_t *capture = NULL;
    params.stream = stream; /* with a thread: buckets are reduced while this one computes */
    params.bucket = "auto:128K";
    check(weft_capture_begin(group, &params));
    for (uint32_t layer = LAYERS; layer-- > 0;) {
        make_gradient(model, rank, layer);
        check(weft_all_reduce(model->gradients[layer], model->gradients[layer], elems[layer],
                              WEFT_DTYPE_F32, WEFT_REDUCTION_AVG, group, NULL));
    }
    check(weft_capture_end(group, &capture));
    return capture;
}

static void step(const model_t *model, int32_t rank, weft_capture_t *capture)
{
    uint32_t call = 0; /* calls are numbered as they were captured */
    for (uint32_t layer = LAYERS; layer-- > 0;) {
        make_gradient(model, rank, layer);
        check(weft_capture_ready(capture, call++, NULL));
    }
    check(weft_capture_wait_all(capture)); /* gradients are averages now */
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint64_t i = 0; i < elems[layer]; i++) {
            model->weights[layer][i] -= RATE * model->gradients[layer][i];
        }
    }
}

static double worst_of(const model_t *model)
{
    double worst = 0;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint64_t i = 0; i < elems[layer]; i++) {
            double mean = (RANKS - 1) / 2.0 + (double)(i % 7);
            double distance = fabs((double)model->weights[layer][i] - mean);
            worst = distance > worst ? distance : worst;
        }
    }
    return worst;
}

static void *run(void *user)
{
    rank_t *rank = user;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_stream_params_t stream_params = WEFT_STREAM_PARAMS_INIT;
    weft_context_t *context = NULL;
    weft_group_t *group = NULL;
    weft_stream_t *stream = NULL;
    model_t model;
    uint64_t total = 0;
    void *memory = NULL;
    char *text = NULL;
    params.rank = rank->number;
    params.world_size = RANKS;
    params.hub = rank->hub;
    check(weft_context_create(&params, &context));
    check(weft_group_create_world(context, &group));
    stream_params.name = "capture";
    stream_params.flags = WEFT_STREAM_THREAD;
    check(weft_stream_create(context, &stream_params, &stream));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        total += elems[layer];
    }
    /* Gradients stay where they are, side by side: buckets are reduced in place. */
    check(weft_mem_alloc(context, total * sizeof(float), &memory));
    float *at = memory;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        model.gradients[layer] = at;
        at += elems[layer];
        model.weights[layer] = calloc(elems[layer], sizeof(float));
        if (model.weights[layer] == NULL) {
            exit(2);
        }
    }
    weft_capture_t *capture = capture_step(&model, rank->number, group, stream);
    if (rank->number == 0) {
        check(weft_capture_explain(capture, WEFT_FORMAT_TEXT, &text));
        fputs(text, stdout);
        free(text);
    }
    for (uint32_t n = 0; n < STEPS; n++) {
        step(&model, rank->number, capture);
    }
    rank->worst = worst_of(&model);
    weft_capture_destroy(capture);
    weft_stream_destroy(stream);
    check(weft_mem_free(context, memory));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        free(model.weights[layer]);
    }
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
            fputs("capture: cannot start a thread\n", stderr);
            return 2;
        }
    }
    for (int32_t r = 0; r < RANKS; r++) {
        pthread_join(ranks[r].thread, NULL);
        worst = ranks[r].worst > worst ? ranks[r].worst : worst;
    }
    weft_hub_destroy(hub);
    printf("%d steps; weights are within %.2g of the mean of all targets\n", STEPS, worst);
    return worst < 1e-4 ? 0 : 1;
}
