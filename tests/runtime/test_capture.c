/* SPDX-License-Identifier: Apache-2.0 */
/* Captures: replays give the bits of the calls one by one, in buckets, whatever the order in which
 * data appears; and what happens when ranks differ. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support_ranks.h"

#include "runtime/capture/capture.h"
#include "tests/support/support.h"

#define MAX_CALLS 400u

/* ---- sequences of calls, captured and made one by one ---- */

typedef struct tensor {
    uint64_t count;
    size_t bytes;
    uint8_t *captured, *single; /* the same contents, for both ways */
} tensor_t;

typedef struct step {
    weft_collective_t op;
    uint32_t send, recv; /* tensors; equal: in place */
    uint64_t count;
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    uint32_t root;
} step_t;

typedef enum how {
    AT_ONCE,
    ON_STREAM,
    ON_THREAD,
    GRADUAL,
    GRADUAL_STREAMS,
    GRADUAL_THREADS, /* the capture's stream has a thread, and so have the user's */
    HOW_COUNT,
} how_t;

typedef struct job {
    uint32_t steps, replays;
    const char *bucket;
    how_t how;
    bool arena;  /* memory that peers reach, gradients side by side */
    bool others; /* not only all-reduces */
    bool half;   /* the even ranks only */
    uint64_t seed;
} job_t;

typedef struct run {
    const job_t *job;
    rank_world_t *world;
    weft_group_t *group;
    tensor_t tensors[MAX_CALLS * 2];
    uint32_t tensor_count;
    step_t steps[MAX_CALLS];
    uint32_t count;
    uint8_t *arena;
    size_t arena_used, arena_bytes;
    uint64_t state; /* of this rank's random numbers */
} run_t;

static uint32_t new_tensor(run_t *run, uint64_t count, weft_dtype_t dtype, bool apart)
{
    tensor_t *tensor = &run->tensors[run->tensor_count];
    tensor->count = count;
    tensor->bytes = (size_t)count * weft_dtype_size_bytes(dtype);
    if (run->arena != NULL) {
        run->arena_used += apart ? 64 : 0;
        run->arena_used = (run->arena_used + 7) / 8 * 8;
        RANK_CHECK(run->arena_used + tensor->bytes <= run->arena_bytes);
        tensor->captured = run->arena + run->arena_used;
        run->arena_used += tensor->bytes;
    } else {
        tensor->captured = malloc(tensor->bytes + 1);
    }
    tensor->single = malloc(tensor->bytes + 1);
    RANK_CHECK(tensor->captured != NULL && tensor->single != NULL);
    return run->tensor_count++;
}

/* The same on all ranks. */
static void make_step(run_t *run, uint64_t *state)
{
    step_t *step = &run->steps[run->count++];
    uint64_t kind = test_next_random(state) % 16;
    uint32_t size = weft_group_size(run->group);
    *step = (step_t){
        .op = WEFT_COLLECTIVE_ALL_REDUCE, .dtype = WEFT_DTYPE_F32, .reduction = WEFT_REDUCTION_SUM};
    step->count = kind == 0   ? 0
                  : kind == 1 ? 70000 + test_next_random(state) % 60000
                              : 1 + test_next_random(state) % 3000;
    if (test_next_random(state) % 8 == 0) {
        step->dtype = WEFT_DTYPE_BF16;
        step->reduction = WEFT_REDUCTION_AVG;
    }
    uint64_t other = run->job->others ? test_next_random(state) % 12 : 0;
    if (other == 1 && run->tensor_count > 0) { /* once more the same tensor: it has to wait */
        uint32_t before = (uint32_t)(test_next_random(state) % (run->count - 1));
        if (run->steps[before].op == WEFT_COLLECTIVE_ALL_REDUCE) {
            *step = run->steps[before];
            step->send = step->recv;
            return;
        }
    } else if (other == 2) {
        step->op = WEFT_COLLECTIVE_ALL_GATHER;
    } else if (other == 3) {
        step->op = WEFT_COLLECTIVE_BROADCAST;
        step->root = (uint32_t)(test_next_random(state) % size);
    } else if (other == 4) {
        step->op = WEFT_COLLECTIVE_BARRIER;
        step->count = 0;
        step->dtype = WEFT_DTYPE_U8;
        step->reduction = WEFT_REDUCTION_SUM;
    } else if (other == 5) {
        step->op = WEFT_COLLECTIVE_REDUCE_SCATTER;
    }
    bool apart = test_next_random(state) % 2 == 0;
    uint64_t sends = step->op == WEFT_COLLECTIVE_REDUCE_SCATTER ? step->count * size : step->count;
    uint64_t recvs = step->op == WEFT_COLLECTIVE_ALL_GATHER ? step->count * size : step->count;
    bool in_place = sends == recvs && test_next_random(state) % 3 != 0;
    step->send = new_tensor(run, sends, step->dtype, apart);
    step->recv = in_place ? step->send : new_tensor(run, recvs, step->dtype, apart);
}

static weft_status_t issue(const run_t *run, const step_t *step, bool captured,
                           weft_stream_t *stream)
{
    const tensor_t *from = &run->tensors[step->send], *to = &run->tensors[step->recv];
    const void *send = captured ? from->captured : from->single;
    void *recv = captured ? to->captured : to->single;
    switch (step->op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        return weft_all_reduce(send, recv, step->count, step->dtype, step->reduction, run->group,
                               stream);
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        return weft_reduce_scatter(send, recv, step->count, step->dtype, step->reduction,
                                   run->group, stream);
    case WEFT_COLLECTIVE_ALL_GATHER:
        return weft_all_gather(send, recv, step->count, step->dtype, run->group, stream);
    case WEFT_COLLECTIVE_BROADCAST:
        return weft_broadcast(send, recv, step->count, step->dtype, step->root, run->group, stream);
    default:
        return weft_barrier(run->group, stream);
    }
}

static void fill(run_t *run)
{
    for (uint32_t i = 0; i < run->tensor_count; i++) {
        for (size_t k = 0; k < run->tensors[i].bytes; k++) {
            run->tensors[i].captured[k] = (uint8_t)test_next_random(&run->state);
        }
        memcpy(run->tensors[i].single, run->tensors[i].captured, run->tensors[i].bytes);
    }
}

/* The next call whose data this rank has: a random one of those that wait for nothing of the
 * user's. The data of a call that uses what another one makes is there when that one was made
 * ready. */
static void replay_gradually(run_t *run, weft_capture_t *capture, weft_stream_t *const *streams)
{
    uint32_t order[MAX_CALLS];
    for (uint32_t i = 0; i < run->count; i++) {
        order[i] = i;
    }
    for (uint32_t i = run->count; i-- > 1;) {
        uint32_t k = (uint32_t)(test_next_random(&run->state) % (i + 1)), other = order[i];
        order[i] = order[k];
        order[k] = other;
    }
    for (uint32_t i = 0; i < run->count; i++) {
        weft_stream_t *stream = streams != NULL ? streams[order[i] % 2] : NULL;
        RANK_OK(weft_capture_ready(capture, order[i], stream));
    }
    if (test_next_random(&run->state) % 2 == 0) {
        RANK_OK(weft_capture_wait_all(capture));
        return;
    }
    for (uint32_t i = 0; i < run->count; i++) {
        RANK_OK(weft_capture_wait(capture, order[run->count - 1 - i],
                                  streams != NULL ? streams[i % 2] : NULL));
    }
    for (uint32_t i = 0; streams != NULL && i < 2; i++) {
        RANK_OK(weft_stream_synchronize(streams[i]));
    }
}

static void replay(run_t *run, weft_capture_t *capture, weft_stream_t *const *streams)
{
    switch (run->job->how) {
    case AT_ONCE:
        RANK_OK(weft_capture_launch(capture, NULL));
        break;
    case ON_STREAM:
    case ON_THREAD:
        RANK_OK(weft_capture_launch(capture, streams[0]));
        RANK_OK(weft_stream_synchronize(streams[0]));
        break;
    default:
        replay_gradually(run, capture, run->job->how != GRADUAL ? streams : NULL);
    }
}

static void compare(const run_t *run)
{
    for (uint32_t i = 0; i < run->count; i++) {
        const tensor_t *tensor = &run->tensors[run->steps[i].recv];
        RANK_CHECK(memcmp(tensor->captured, tensor->single, tensor->bytes) == 0);
    }
}

static void check_info(const run_t *run, const weft_capture_t *capture, uint64_t replays)
{
    weft_capture_info_t info = WEFT_CAPTURE_INFO_INIT;
    RANK_OK(weft_capture_get_info(capture, &info));
    RANK_CHECK(info.call_count == run->count && info.replays == replays);
    RANK_CHECK(strlen(info.digest) == 64 && info.bucket_count <= run->count);
}

static void run_job(rank_world_t *world)
{
    const job_t *job = world->user;
    uint64_t shared = job->seed;
    run_t *run = calloc(1, sizeof *run);
    weft_capture_params_t params = WEFT_CAPTURE_PARAMS_INIT;
    weft_stream_params_t stream_params = WEFT_STREAM_PARAMS_INIT;
    stream_params.name = "user";
    weft_stream_t *streams[3] = {NULL, NULL, NULL};
    weft_capture_t *capture = NULL;
    RANK_CHECK(run != NULL);
    run->job = job;
    run->world = world;
    run->group = world->group;
    run->state = job->seed * 31 + world->rank + 1;
    if (job->half) {
        RANK_OK(weft_group_split(world->group, world->rank % 2, 0, &run->group));
    }
    if (job->arena) {
        void *memory;
        run->arena_bytes = (size_t)24 << 20;
        RANK_OK(weft_mem_alloc(world->context, run->arena_bytes, &memory));
        run->arena = memory;
    }
    bool threads = job->how == ON_THREAD || job->how == GRADUAL_THREADS;
    stream_params.flags = threads ? WEFT_STREAM_THREAD : WEFT_STREAM_INLINE;
    for (uint32_t i = 0; i < 3; i++) {
        RANK_OK(weft_stream_create(world->context, &stream_params, &streams[i]));
    }
    for (uint32_t i = 0; i < job->steps; i++) {
        make_step(run, &shared);
    }
    params.bucket = job->bucket;
    params.stream = job->how == GRADUAL_THREADS ? streams[2] : NULL;
    RANK_OK(weft_capture_begin(run->group, &params));
    for (uint32_t i = 0; i < run->count; i++) {
        RANK_OK(issue(run, &run->steps[i], true, i % 3 == 0 ? streams[0] : NULL));
    }
    RANK_OK(weft_capture_end(run->group, &capture));
    for (uint32_t n = 0; n < job->replays; n++) {
        fill(run);
        replay(run, capture, streams);
        for (uint32_t i = 0; i < run->count; i++) {
            RANK_OK(issue(run, &run->steps[i], false, NULL));
        }
        compare(run);
        check_info(run, capture, run->count > 0 || job->how < GRADUAL ? n + 1 : 0);
    }
    weft_capture_destroy(capture);
    for (uint32_t i = 0; i < 3; i++) {
        weft_stream_destroy(streams[i]);
    }
    RANK_OK(weft_mem_free(world->context, run->arena));
    for (uint32_t i = 0; i < run->tensor_count; i++) {
        if (!job->arena) {
            free(run->tensors[i].captured);
        }
        free(run->tensors[i].single);
    }
    if (job->half) {
        weft_group_destroy(run->group);
    }
    free(run);
}

static void test_same_bits_every_way(void **state)
{
    (void)state;
    for (how_t how = AT_ONCE; how < HOW_COUNT; how++) {
        for (uint32_t arena = 0; arena < 2; arena++) {
            job_t job = {.steps = 40,
                         .replays = 2,
                         .bucket = arena ? "auto" : "bytes:64K",
                         .how = how,
                         .arena = arena,
                         .seed = support_seed() + how};
            support_rank_threads(3, run_job, &job);
        }
    }
}

/* All-gathers, broadcasts, barriers between them, and calls that use what others make. */
static void test_calls_that_depend_on_others(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 4; n++) {
        job_t job = {.steps = 60,
                     .replays = 2,
                     .bucket = n % 3 == 0   ? "one"
                               : n % 3 == 1 ? "auto"
                                            : "bytes:8K",
                     .how = n % 2 == 0 ? ON_STREAM : AT_ONCE,
                     .arena = n % 4 < 2,
                     .others = true,
                     .seed = support_seed() * 7 + n};
        support_rank_threads(2 + n % 3, run_job, &job);
    }
}

static void test_processes(void **state)
{
    job_t job = {.steps = 50, .replays = 2, .how = GRADUAL, .arena = true, .others = true};
    (void)state;
    job.seed = support_seed() + 99;
    assert_true(support_rank_processes_too(2, run_job, &job));
}

/* More calls than a group or a stream takes at once, and policies at both ends. */
static void test_many_calls(void **state)
{
    static const char *const policies[] = {"none", "one", "bytes:1K", "mgwfbp"};
    (void)state;
    for (uint32_t n = 0; n < 4; n += TEST_SANITIZED ? 3 : 1) {
        job_t job = {.steps = 140,
                     .replays = 2,
                     .bucket = policies[n],
                     .how = n % 2 == 0 ? ON_STREAM : GRADUAL,
                     .seed = support_seed() + 1000 + n};
        support_rank_threads(2, run_job, &job);
    }
}

static void test_part_of_the_world(void **state)
{
    job_t job = {.steps = 30, .replays = 2, .how = GRADUAL, .half = true};
    (void)state;
    job.seed = support_seed() + 5;
    support_rank_threads(4, run_job, &job);
}

static void test_nothing_captured(void **state)
{
    job_t job = {.replays = 2, .how = AT_ONCE, .seed = 1};
    (void)state;
    support_rank_threads(2, run_job, &job);
}

/* ---- what is planned ---- */

#define LAYERS 6u

static weft_capture_t *capture_layers(rank_world_t *world, const char *bucket, float *memory,
                                      size_t stride)
{
    weft_capture_params_t params = WEFT_CAPTURE_PARAMS_INIT;
    weft_capture_t *capture = NULL;
    params.bucket = bucket;
    params.no_times = 1;
    RANK_OK(weft_capture_begin(world->group, &params));
    for (uint32_t i = LAYERS; i-- > 0;) { /* backwards in memory, as gradients appear */
        RANK_OK(weft_all_reduce(memory + i * stride, memory + i * stride, 1000, WEFT_DTYPE_F32,
                                WEFT_REDUCTION_AVG, world->group, NULL));
    }
    RANK_OK(weft_capture_end(world->group, &capture));
    return capture;
}

static void plan_layers(rank_world_t *world)
{
    weft_capture_info_t info = WEFT_CAPTURE_INFO_INIT;
    char digest[65];
    void *memory;
    RANK_OK(weft_mem_alloc(world->context, LAYERS * 2000 * sizeof(float), &memory));
    /* Side by side: one call where they are, nothing is copied. */
    weft_capture_t *capture = capture_layers(world, "one", memory, 1000);
    RANK_OK(weft_capture_get_info(capture, &info));
    RANK_CHECK(info.call_count == LAYERS && info.bucket_count == 1 && info.run_count == 1);
    RANK_CHECK(info.copied_bytes == 0 && info.buffer_bytes == 0);
    RANK_CHECK(info.largest_bucket_bytes == LAYERS * 4000);
    memcpy(digest, info.digest, sizeof digest);
    weft_capture_destroy(capture);
    capture = capture_layers(world, "one", memory, 1000);
    RANK_OK(weft_capture_get_info(capture, &info));
    RANK_CHECK(strcmp(digest, info.digest) == 0);
    weft_capture_destroy(capture);
    /* Apart: one call through the buffer. */
    capture = capture_layers(world, "one", memory, 2000);
    RANK_OK(weft_capture_get_info(capture, &info));
    RANK_CHECK(info.run_count == 1 && info.buffer_bytes == LAYERS * 4000);
    RANK_CHECK(info.copied_bytes == 2 * LAYERS * 4000);
    RANK_CHECK(strcmp(digest, info.digest) != 0);
    weft_capture_destroy(capture);
    /* A cap below a tensor: pieces of whole units of 64 bytes. */
    capture = capture_layers(world, "bytes:1K", memory, 1000);
    RANK_OK(weft_capture_get_info(capture, &info));
    RANK_CHECK(info.bucket_count == LAYERS && info.run_count == LAYERS * 4);
    weft_capture_destroy(capture);
    RANK_OK(weft_mem_free(world->context, memory));
}

static void test_plans(void **state)
{
    (void)state;
    support_rank_threads(3, plan_layers, NULL);
}

static void explain_layers(rank_world_t *world)
{
    static const char golden[] =
        "6 buckets, 6 calls per replay; buffer of 0 B, 0 B copied per replay\n";
    void *memory;
    char *text = NULL, *json = NULL;
    RANK_OK(weft_mem_alloc(world->context, LAYERS * 1000 * sizeof(float), &memory));
    weft_capture_t *capture = capture_layers(world, "none", memory, 1000);
    RANK_OK(weft_capture_explain(capture, WEFT_FORMAT_TEXT, &text));
    RANK_CHECK(strstr(text, "capture of 6 calls over 2 ranks, buckets none, digest ") == text);
    RANK_CHECK(strstr(text, golden) != NULL);
    RANK_CHECK(strstr(text, "  bucket 0: avg f32 of 3.9 KiB, data ready after 0.000 ms; 1 call\n"
                            "    members: 0\n"
                            "    one bucket per gradient\n") != NULL);
    RANK_OK(weft_capture_explain(capture, WEFT_FORMAT_JSON, &json));
    RANK_CHECK(strstr(json, "\"policy\": \"none\"") != NULL &&
               strstr(json, "\"reason\": \"one bucket per gradient\"") != NULL);
    free(text);
    free(json);
    weft_capture_destroy(capture);
    RANK_OK(weft_mem_free(world->context, memory));
}

static void test_explain(void **state)
{
    (void)state;
    support_rank_threads(2, explain_layers, NULL);
}

static void replay_without_allocating(rank_world_t *world)
{
    float *memory = calloc(LAYERS * 2000, sizeof *memory);
    weft_capture_t *capture = capture_layers(world, "one", memory, 2000);
    for (uint32_t n = 0; n < 3; n++) { /* events and the like come with the first */
        RANK_OK(weft_capture_launch(capture, NULL));
        for (uint32_t i = 0; i < LAYERS; i++) {
            RANK_OK(weft_capture_ready(capture, i, NULL));
        }
        RANK_OK(weft_capture_wait_all(capture));
    }
    RANK_OK(weft_context_barrier(world->context));
    uint64_t before = support_rank_allocations();
    RANK_OK(weft_context_barrier(world->context));
    for (uint32_t n = 0; n < 20; n++) {
        RANK_OK(weft_capture_launch(capture, NULL));
        for (uint32_t i = 0; i < LAYERS; i++) {
            RANK_OK(weft_capture_ready(capture, i, NULL));
        }
        RANK_OK(weft_capture_wait_all(capture));
    }
    RANK_OK(weft_context_barrier(world->context));
    RANK_CHECK(support_rank_allocations() == before);
    RANK_OK(weft_context_barrier(world->context));
    weft_capture_destroy(capture);
    free(memory);
}

static void test_replays_allocate_nothing(void **state)
{
    (void)state;
    support_rank_threads(2, replay_without_allocating, NULL);
}

/* Buffers that overlap on one rank only: every rank keeps the order. */
static void overlap_on_one_rank(rank_world_t *world)
{
    weft_capture_params_t params = WEFT_CAPTURE_PARAMS_INIT;
    weft_capture_info_t info = WEFT_CAPTURE_INFO_INIT;
    weft_capture_t *capture = NULL;
    int32_t a[8], b[8], *second = world->rank == 1 ? a : b;
    params.bucket = "one";
    RANK_OK(weft_capture_begin(world->group, &params));
    RANK_OK(weft_all_reduce(a, a, 8, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, world->group, NULL));
    RANK_OK(
        weft_all_reduce(second, second, 8, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, world->group, NULL));
    RANK_OK(weft_capture_end(world->group, &capture));
    RANK_OK(weft_capture_get_info(capture, &info));
    RANK_CHECK(info.bucket_count == 2);
    for (int32_t i = 0; i < 8; i++) {
        a[i] = b[i] = i + 1;
    }
    RANK_OK(weft_capture_launch(capture, NULL));
    for (int32_t i = 0; i < 8; i++) { /* rank 1 gives its first result, rank 0 its own */
        RANK_CHECK(second[i] == 3 * (i + 1));
    }
    weft_capture_destroy(capture);
}

static void test_overlap_on_one_rank(void **state)
{
    (void)state;
    support_rank_threads(2, overlap_on_one_rank, NULL);
}

/* ---- one behind the other, on streams that do not wait for each other ---- */

static weft_status_t nothing(void *user)
{
    (void)user;
    return WEFT_OK;
}

/* Replays share the buffer in which members are packed. The second one is on its way before the
 * first has run. */
static void replay_twice(rank_world_t *world)
{
    enum { TENSORS = 4, COUNT = 64, ROUNDS = 20 };
    weft_capture_params_t params = WEFT_CAPTURE_PARAMS_INIT;
    weft_stream_params_t stream_params = WEFT_STREAM_PARAMS_INIT;
    stream_params.name = "user";
    weft_capture_info_t info = WEFT_CAPTURE_INFO_INIT;
    weft_capture_t *capture = NULL;
    weft_stream_t *first, *second;
    int32_t data[TENSORS][2 * COUNT], n = (int32_t)world->size;
    params.bucket = "index:1";
    params.no_times = 1;
    RANK_OK(weft_stream_create(world->context, &stream_params, &first));
    RANK_OK(weft_stream_create(world->context, &stream_params, &second));
    RANK_OK(weft_capture_begin(world->group, &params));
    for (uint32_t t = 0; t < TENSORS; t++) {
        RANK_OK(weft_all_reduce(data[t], data[t], COUNT, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM,
                                world->group, NULL));
    }
    RANK_OK(weft_capture_end(world->group, &capture));
    RANK_OK(weft_capture_get_info(capture, &info));
    RANK_CHECK(info.bucket_count == 2 && info.buffer_bytes > 0);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        bool gradual = round % 2 == 0;
        for (uint32_t i = 0; i < TENSORS * COUNT; i++) {
            data[i / COUNT][i % COUNT] = (int32_t)(i + round);
        }
        for (uint32_t t = 0; t < TENSORS && gradual; t++) {
            RANK_OK(weft_capture_ready(capture, t, first));
        }
        for (uint32_t t = 0; t < TENSORS && gradual; t++) {
            RANK_OK(weft_capture_wait(capture, t, first));
        }
        if (gradual) {
            RANK_OK(weft_capture_launch(capture, round % 4 == 0 ? NULL : second));
        } else {
            RANK_OK(weft_capture_launch(capture, first));
            while (weft_stream_launch_host(second, nothing, NULL) ==
                   WEFT_OK) { /* until it is full */
            }
            RANK_OK(weft_capture_launch(capture, second));
        }
        RANK_OK(weft_stream_synchronize(second));
        RANK_OK(weft_stream_synchronize(first));
        for (uint32_t i = 0; i < TENSORS * COUNT; i++) {
            RANK_CHECK(data[i / COUNT][i % COUNT] == n * n * (int32_t)(i + round));
        }
    }
    for (uint32_t t = 0; t < TENSORS;
         t++) { /* nothing else is waited for: all of it is over then */
        RANK_OK(weft_capture_ready(capture, t, NULL));
    }
    for (uint32_t t = 0; t < TENSORS; t++) {
        RANK_OK(weft_capture_wait(capture, t, second));
    }
    RANK_OK(weft_capture_wait_all(capture));
    RANK_CHECK(data[TENSORS - 1][1] == n * n * n * ((TENSORS - 1) * COUNT + 1 + ROUNDS - 1));
    weft_capture_destroy(capture);
    weft_stream_destroy(first);
    weft_stream_destroy(second);
}

static void test_one_replay_behind_the_other(void **state)
{
    (void)state;
    support_rank_threads(2, replay_twice, NULL);
}

/* ---- ranks that differ, wrong use ---- */

static void expect(weft_status_t got, weft_status_t wanted, const char *text)
{
    RANK_CHECK(got == wanted);
    if (strstr(weft_last_error(), text) == NULL) {
        fprintf(stderr, "message is: %s\n", weft_last_error());
    }
    RANK_CHECK(strstr(weft_last_error(), text) != NULL);
}

static void differ(rank_world_t *world)
{
    weft_capture_params_t params = WEFT_CAPTURE_PARAMS_INIT;
    weft_capture_t *capture = NULL;
    float data[8] = {0};
    int32_t one = 1;
    bool odd = world->rank == 1;
    RANK_OK(weft_capture_begin(world->group, NULL));
    RANK_OK(weft_all_reduce(data, data, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL));
    RANK_OK(weft_all_reduce(data, data, odd ? 5 : 4, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                            world->group, NULL));
    expect(weft_capture_end(world->group, &capture), WEFT_ERR_MISMATCH, "call 1 (of 2) is ");
    RANK_CHECK(strstr(weft_last_error(), "4 x f32 (sum) on rank 0") != NULL);
    RANK_CHECK(strstr(weft_last_error(), "5 x f32 (sum) (of 2) on rank 1") != NULL);
    RANK_CHECK(capture == NULL);
    RANK_OK(weft_capture_begin(world->group, NULL));
    if (odd) {
        RANK_OK(weft_barrier(world->group, NULL));
    }
    expect(weft_capture_end(world->group, &capture), WEFT_ERR_MISMATCH,
           "call 0 (of 0) is missing on rank 0, but ");
    params.bucket = odd ? "one" : "none";
    RANK_OK(weft_capture_begin(world->group, &params));
    expect(weft_capture_end(world->group, &capture), WEFT_ERR_MISMATCH,
           "rank 0 bucket \"none\", rank 1 bucket \"one\"");
    const uint64_t expected[] = {1, 1, 1}, sent[] = {odd ? 2 : 1, 1, 1};
    RANK_OK(weft_capture_begin(world->group, NULL));
    RANK_OK(weft_barrier(world->group, NULL));
    RANK_OK(weft_all_to_all_v(data, sent, NULL, data + 4, expected, NULL, WEFT_DTYPE_F32,
                              world->group, NULL));
    expect(weft_capture_end(world->group, &capture), WEFT_ERR_MISMATCH,
           "in call 1 (of 2), AllToAllV, rank 1 sends 2 elements to rank 0, which expects 1");
    params.bucket = "index:7";
    RANK_OK(weft_capture_begin(world->group, &params));
    RANK_OK(weft_all_reduce(data, data, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL));
    expect(weft_capture_end(world->group, &capture), WEFT_ERR_INVALID_ARGUMENT,
           "position 7 is out of range");
    /* The group is as good as ever. */
    RANK_OK(weft_all_reduce(&one, &one, 1, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, world->group, NULL));
    RANK_CHECK(one == (int32_t)world->size);
}

static void test_ranks_differ(void **state)
{
    (void)state;
    support_rank_threads(3, differ, NULL);
}

static void misuse(rank_world_t *world)
{
    weft_capture_params_t params = WEFT_CAPTURE_PARAMS_INIT;
    weft_capture_info_t info = {0};
    weft_capture_t *capture = NULL;
    weft_group_t *other = NULL;
    weft_group_t *group = world->group;
    float a[4] = {1, 2, 3, 4}, b[4] = {0};
    char *text;
    expect(weft_capture_begin(NULL, NULL), WEFT_ERR_INVALID_ARGUMENT, "group is NULL");
    expect(weft_capture_end(group, &capture), WEFT_ERR_STATE, "no capture is open");
    expect(weft_capture_cancel(group), WEFT_ERR_STATE, "no capture is open");
    params.bucket = "sometimes";
    expect(weft_capture_begin(group, &params), WEFT_ERR_INVALID_ARGUMENT, "unknown policy");
    RANK_OK(weft_batch_begin(group));
    expect(weft_capture_begin(group, NULL), WEFT_ERR_STATE, "a batch is already open");
    RANK_OK(weft_all_reduce(b, b, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
    expect(weft_capture_end(group, &capture), WEFT_ERR_STATE, "no capture is open");
    expect(weft_capture_cancel(group), WEFT_ERR_STATE, "no capture is open");
    expect(weft_group_set_order(group, WEFT_ORDER_ANY, NULL, 0), WEFT_ERR_STATE,
           "cannot set its order or its algorithms while a batch is open");
    expect(weft_group_set_algorithm(group, WEFT_COLLECTIVE_ALL_REDUCE, NULL), WEFT_ERR_STATE,
           "cannot set its order or its algorithms while a batch is open");
    RANK_OK(weft_batch_end(group, NULL)); /* it is still open */
    RANK_OK(weft_capture_begin(group, NULL));
    expect(weft_capture_begin(group, NULL), WEFT_ERR_STATE, "a capture is already open");
    expect(weft_batch_begin(group), WEFT_ERR_STATE, "cannot begin a batch while");
    expect(weft_batch_end(group, NULL), WEFT_ERR_STATE, "no batch is open");
    expect(weft_send(a, 1, WEFT_DTYPE_F32, 0, group, NULL), WEFT_ERR_STATE,
           "cannot send or receive");
    expect(weft_group_duplicate(group, &other), WEFT_ERR_STATE, "cannot create a group");
    expect(weft_group_set_order(group, WEFT_ORDER_ANY, NULL, 0), WEFT_ERR_STATE,
           "cannot set its order");
    expect(weft_all_reduce(NULL, a, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL),
           WEFT_ERR_INVALID_ARGUMENT, "send is NULL");
    RANK_OK(weft_all_reduce(a, a, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
    RANK_OK(weft_capture_cancel(group));
    RANK_CHECK(a[0] == 1); /* nothing was carried out */
    RANK_OK(weft_capture_begin(group, NULL));
    RANK_OK(weft_all_reduce(a, a, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_MAX, group, NULL));
    RANK_OK(weft_all_reduce(b, b, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
    RANK_OK(weft_capture_end(group, &capture));
    expect(weft_capture_get_info(capture, &info), WEFT_ERR_INVALID_ARGUMENT, "struct_size");
    expect(weft_capture_explain(NULL, WEFT_FORMAT_TEXT, &text), WEFT_ERR_INVALID_ARGUMENT,
           "capture is NULL");
    expect(weft_capture_wait(capture, 0, NULL), WEFT_ERR_STATE, "no replay is in progress");
    expect(weft_capture_ready(capture, 2, NULL), WEFT_ERR_INVALID_ARGUMENT,
           "invalid index 2: 2 calls were");
    RANK_OK(weft_capture_ready(capture, 1, NULL));
    expect(weft_capture_ready(capture, 1, NULL), WEFT_ERR_STATE,
           "call 1, AllReduce of 4 f32, is already ready");
    expect(weft_capture_wait(capture, 1, NULL), WEFT_ERR_STATE,
           "call 0, AllReduce of 4 f32, is not ready, and runs before");
    expect(weft_capture_wait_all(capture), WEFT_ERR_STATE, "call 0, AllReduce");
    expect(weft_capture_launch(capture, NULL), WEFT_ERR_STATE,
           "replay by weft_capture_ready is in progress");
    RANK_OK(weft_capture_ready(capture, 0, NULL));
    RANK_OK(weft_capture_wait_all(capture));
    RANK_OK(weft_capture_wait_all(capture));
    RANK_CHECK(a[3] == 4);
    weft_capture_destroy(capture);
    weft_capture_destroy(NULL);
    RANK_OK(weft_capture_begin(group, NULL)); /* and the group goes while it captures */
    RANK_OK(weft_all_reduce(a, a, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_MAX, group, NULL));
    weft_group_destroy(group);
    world->group = NULL;
}

static void test_misuse(void **state)
{
    (void)state;
    support_rank_threads(2, misuse, NULL);
}

/* One rank gives up in the middle of a replay: the others are told who. */
static void leave_in_the_middle(rank_world_t *world)
{
    weft_capture_t *capture = NULL;
    float a[4] = {0}, b[4] = {0};
    RANK_OK(weft_capture_begin(world->group, NULL));
    RANK_OK(weft_all_reduce(a, a, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_MAX, world->group, NULL));
    RANK_OK(weft_all_reduce(b, b, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL));
    weft_status_t status = weft_capture_end(world->group, &capture);
    if (world->rank == 1) {
        RANK_OK(status);
        RANK_OK(weft_capture_ready(capture, 0, NULL));
        weft_capture_destroy(capture);
        return;
    }
    /* Any of these may be the first that hears of it, the end of the capture as well. */
    status = status == WEFT_OK ? weft_capture_ready(capture, 0, NULL) : status;
    status = status == WEFT_OK ? weft_capture_ready(capture, 1, NULL) : status;
    status = status == WEFT_OK ? weft_capture_wait_all(capture) : status;
    expect(status, WEFT_ERR_ABORTED, "rank 1 destroyed its capture");
    weft_capture_destroy(capture);
}

static void test_leaving_in_the_middle(void **state)
{
    (void)state;
    support_rank_threads(2, leave_in_the_middle, NULL);
}

/* ---- no memory ---- */

/* One rank of two, whose n-th allocation from the end of the capture on fails. */
typedef struct pair_rank {
    weft_hub_t *hub;
    int32_t rank;
    test_memory_t memory;
    uint64_t fail_at;
    weft_status_t status;
} pair_rank_t;

static weft_status_t capture_and_replay(weft_group_t *group, test_memory_t *memory,
                                        uint64_t fail_at)
{
    weft_capture_params_t params = WEFT_CAPTURE_PARAMS_INIT;
    weft_capture_t *capture = NULL;
    float x[100] = {0}, y[300] = {0}, z[600];
    params.bucket = "one";
    weft_status_t status = weft_capture_begin(group, &params);
    if (status == WEFT_ERR_NO_MEMORY) { /* the other rank had none for a call of the group */
        return status;
    }
    RANK_OK(status);
    RANK_OK(weft_all_reduce(x, x, 100, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
    RANK_OK(weft_all_reduce(y, y, 300, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
    RANK_OK(weft_all_gather(y, z, 300, WEFT_DTYPE_F32, group, NULL));
    test_memory_fail(memory, fail_at, UINT64_MAX);
    status = weft_capture_end(group, &capture);
    RANK_CHECK((status == WEFT_OK) == (capture != NULL));
    for (uint32_t n = 0; status == WEFT_OK && n < 2; n++) {
        status = weft_capture_launch(capture, NULL);
        for (uint32_t call = 0; status == WEFT_OK && call < 3; call++) {
            status = weft_capture_ready(capture, call, NULL);
        }
        status = status == WEFT_OK ? weft_capture_wait_all(capture) : status;
    }
    weft_capture_destroy(capture);
    return status;
}

static void *pair_main(void *user)
{
    pair_rank_t *rank = user;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *context = NULL;
    weft_group_t *group = NULL;
    test_memory_init(&rank->memory);
    params.rank = rank->rank;
    params.world_size = 2;
    params.hub = rank->hub;
    params.allocator = &rank->memory.allocator;
    RANK_OK(weft_context_create(&params, &context));
    RANK_OK(weft_group_create_world(context, &group));
    rank->status = capture_and_replay(group, &rank->memory, rank->fail_at);
    weft_group_destroy(group);
    weft_context_release(context);
    return NULL;
}

/* Returns how many allocations rank which made. */
static uint64_t run_pair(uint32_t which, uint64_t fail_at)
{
    pair_rank_t ranks[2] = {{.rank = 0, .fail_at = UINT64_MAX}, {.rank = 1, .fail_at = UINT64_MAX}};
    pthread_t threads[2];
    weft_hub_t *hub = NULL;
    ranks[which].fail_at = fail_at;
    assert_int_equal(weft_hub_create(2, &hub), WEFT_OK);
    for (uint32_t r = 0; r < 2; r++) {
        ranks[r].hub = hub;
        assert_int_equal(pthread_create(&threads[r], NULL, pair_main, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < 2; r++) {
        pthread_join(threads[r], NULL);
    }
    weft_hub_destroy(hub);
    bool fails = ranks[which].memory.requests > fail_at;
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(ranks[r].status, fails ? WEFT_ERR_NO_MEMORY : WEFT_OK);
    }
    return ranks[which].memory.requests;
}

static void test_allocations_fail(void **state)
{
    (void)state;
    for (uint32_t which = 0; which < 2; which++) {
        uint64_t calls = run_pair(which, UINT64_MAX);
        assert_true(calls > 10);
        for (uint64_t n = 0; n < calls; n += 1 + n / 8) {
            run_pair(which, n);
        }
    }
}

/* What a rank does alone leaves nothing behind. */
static void test_begin_without_memory(void **state)
{
    test_memory_t memory;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *context = NULL;
    weft_group_t *group = NULL;
    float x[4] = {0};
    (void)state;
    params.rank = 0;
    params.world_size = 1;
    params.allocator = &memory.allocator;
    test_memory_init(&memory);
    assert_int_equal(weft_context_create(&params, &context), WEFT_OK);
    assert_int_equal(weft_group_create_world(context, &group), WEFT_OK);
    for (uint64_t n = 0; n < 9; n++) {
        test_memory_fail(&memory, n, UINT64_MAX);
        weft_status_t status = weft_capture_begin(group, NULL);
        if (status == WEFT_OK) {
            status = weft_all_reduce(x, x, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL);
            assert_int_equal(weft_capture_cancel(group), WEFT_OK);
        }
        assert_int_equal(status, memory.requests > n ? WEFT_ERR_NO_MEMORY : WEFT_OK);
        assert_int_equal(weft_capture_cancel(group), WEFT_ERR_STATE);
    }
    test_memory_fail(&memory, UINT64_MAX, UINT64_MAX);
    weft_group_destroy(group);
    weft_context_release(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_every_way),
        cmocka_unit_test(test_calls_that_depend_on_others),
        cmocka_unit_test(test_processes),
        cmocka_unit_test(test_many_calls),
        cmocka_unit_test(test_part_of_the_world),
        cmocka_unit_test(test_nothing_captured),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_explain),
        cmocka_unit_test(test_replays_allocate_nothing),
        cmocka_unit_test(test_overlap_on_one_rank),
        cmocka_unit_test(test_one_replay_behind_the_other),
        cmocka_unit_test(test_ranks_differ),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_leaving_in_the_middle),
        cmocka_unit_test(test_allocations_fail),
        cmocka_unit_test(test_begin_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
