/* SPDX-License-Identifier: Apache-2.0 */
/* Fusers: the same bits as without, buckets as rank 0 decides, and what happens when ranks differ.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support_ranks.h"

#include "runtime/base/sync.h"
#include "runtime/fuser/fuser.h"
#include "tests/support/support.h"

#define SECOND_NS 1000000000ull

/* ---- steps of random tensors, compared with one call per tensor ---- */

typedef struct tensor {
    char name[24];
    uint64_t count;
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    uint8_t *fused, *single;
    size_t bytes;
} tensor_t;

typedef struct job {
    uint32_t tensor_count, step_count;
    uint64_t longest; /* elements */
    weft_fuser_params_t params;
    weft_stream_flags_t flags;
    bool own_stream, every_kind, ordered, blocks;
    uint64_t seed;
} job_t;

/* The same on all ranks. */
static tensor_t *make_tensors(const job_t *job)
{
    static const weft_dtype_t dtypes[] = {WEFT_DTYPE_F32,  WEFT_DTYPE_F64, WEFT_DTYPE_F16,
                                          WEFT_DTYPE_BF16, WEFT_DTYPE_I64, WEFT_DTYPE_I32,
                                          WEFT_DTYPE_I16,  WEFT_DTYPE_I8,  WEFT_DTYPE_U64,
                                          WEFT_DTYPE_U32,  WEFT_DTYPE_U16, WEFT_DTYPE_U8};
    uint64_t state = job->seed;
    tensor_t *tensors = calloc(job->tensor_count, sizeof *tensors);
    RANK_CHECK(tensors != NULL);
    for (uint32_t i = 0; i < job->tensor_count; i++) {
        tensor_t *tensor = &tensors[i];
        snprintf(tensor->name, sizeof tensor->name, "layer%u.grad", i);
        tensor->dtype = WEFT_DTYPE_F32;
        tensor->reduction = WEFT_REDUCTION_SUM;
        if (job->every_kind) {
            tensor->dtype = dtypes[i % 12];
            tensor->reduction = (weft_reduction_t)(i / 12 % 5);
        } else if (test_next_random(&state) % 8 == 0) {
            tensor->dtype = WEFT_DTYPE_BF16;
        }
        uint64_t kind = test_next_random(&state) % 16;
        tensor->count = kind == 0   ? 0
                        : kind == 1 ? job->longest
                                    : test_next_random(&state) % (job->longest / 8 + 1);
        tensor->bytes = (size_t)tensor->count * weft_dtype_size_bytes(tensor->dtype);
        tensor->fused = malloc(tensor->bytes + 1);
        tensor->single = malloc(tensor->bytes + 1);
        RANK_CHECK(tensor->fused != NULL && tensor->single != NULL);
    }
    return tensors;
}

static void free_tensors(tensor_t *tensors, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        free(tensors[i].fused);
        free(tensors[i].single);
    }
    free(tensors);
}

/* Any bits: NaN, infinities and denormals among them. */
static void fill(tensor_t *tensors, uint32_t count, uint64_t *state)
{
    for (uint32_t i = 0; i < count; i++) {
        for (size_t at = 0; at < tensors[i].bytes; at++) {
            tensors[i].fused[at] = (uint8_t)(test_next_random(state) >> 24);
        }
        memcpy(tensors[i].single, tensors[i].fused, tensors[i].bytes);
    }
}

static void shuffle(uint32_t *order, uint32_t count, bool really, uint64_t *state)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = really ? (uint32_t)(test_next_random(state) % (i + 1)) : i;
        order[i] = order[j];
        order[j] = i;
    }
}

static void dawdle(uint64_t *state)
{
    for (uint64_t i = test_next_random(state) % 8; i > 6; i--) {
        sched_yield();
    }
}

static void run_steps(rank_world_t *world)
{
    job_t *job = world->user;
    weft_stream_params_t stream_params = WEFT_STREAM_PARAMS_INIT;
    stream_params.name = "fuse";
    stream_params.flags = job->flags;
    weft_fuser_params_t params = job->params;
    weft_stream_t *stream = NULL;
    weft_fuser_t *fuser = NULL;
    uint64_t state = job->seed * 31 + world->rank + 1;
    uint32_t *order = calloc(job->tensor_count, sizeof *order);
    tensor_t *tensors = make_tensors(job);
    if (!job->own_stream) {
        RANK_OK(weft_stream_create(world->context, &stream_params, &stream));
        params.stream = stream;
    }
    if (job->blocks) { /* another order of reductions: other bits */
        uint32_t sizes[] = {1, world->size - 1};
        RANK_OK(weft_group_set_order(world->group, WEFT_ORDER_BLOCKS, sizes, 2));
    }
    RANK_OK(weft_fuser_create(world->group, &params, &fuser));
    RANK_OK(weft_fuser_wait(fuser)); /* a step of nothing teaches nothing */
    for (uint32_t step = 0; step < job->step_count; step++) {
        fill(tensors, job->tensor_count, &state);
        shuffle(order, job->tensor_count, !job->ordered, &state);
        for (uint32_t i = 0; i < job->tensor_count; i++) {
            tensor_t *tensor = &tensors[order[i]];
            RANK_OK(weft_fuser_add(fuser, tensor->fused, tensor->count, tensor->dtype,
                                   tensor->reduction, tensor->name));
            if (test_next_random(&state) % 16 == 0) {
                RANK_OK(weft_fuser_flush(fuser));
            }
            dawdle(&state);
        }
        RANK_OK(weft_fuser_wait(fuser));
        for (uint32_t i = 0; i < job->tensor_count; i++) {
            tensor_t *tensor = &tensors[i];
            RANK_OK(weft_all_reduce(tensor->single, tensor->single, tensor->count, tensor->dtype,
                                    tensor->reduction, world->group, NULL));
            RANK_CHECK(memcmp(tensor->fused, tensor->single, tensor->bytes) == 0);
        }
    }
    weft_fuser_stats_t stats = WEFT_FUSER_STATS_INIT;
    RANK_OK(weft_fuser_get_stats(fuser, &stats));
    uint64_t cap = job->params.bytes != 0 ? job->params.bytes : WEFT_FUSER_BYTES_DEFAULT;
    RANK_CHECK(stats.largest_bucket_bytes <= cap);
    RANK_CHECK(stats.step_count == job->step_count + 1);
    RANK_CHECK(stats.tensor_count == job->tensor_count);
    weft_fuser_destroy(fuser);
    weft_stream_destroy(stream);
    free_tensors(tensors, job->tensor_count);
    free(order);
}

static job_t random_job(uint64_t *state)
{
    job_t job = {.tensor_count = 40, .step_count = 4, .longest = 20000};
    job.params = (weft_fuser_params_t)WEFT_FUSER_PARAMS_INIT;
    job.params.bytes = (uint64_t)512 << test_next_random(state) % 12;
    job.params.window_ns = test_next_random(state) % 2 == 0 ? WEFT_FUSER_WINDOW_NONE : 100000;
    job.flags = test_next_random(state) % 2 == 0 ? WEFT_STREAM_INLINE : WEFT_STREAM_THREAD;
    job.own_stream = test_next_random(state) % 4 == 0;
    job.seed = test_next_random(state) | 1;
    return job;
}

static void test_same_bits_in_any_order(void **state)
{
    (void)state;
    uint64_t random = support_seed();
    for (uint32_t n = 1; n <= 5; n++) {
        for (uint32_t i = 0; i < (TEST_SANITIZED ? 1 : 3); i++) {
            job_t job = random_job(&random);
            support_rank_threads(n, run_steps, &job);
        }
    }
    for (uint32_t i = 0; i < (TEST_SANITIZED ? 1 : 3); i++) {
        job_t job = random_job(&random);
        assert_true(support_rank_processes_too(4, run_steps, &job));
    }
}

static void test_every_type_and_reduction(void **state)
{
    (void)state;
    uint64_t random = support_seed();
    job_t job = random_job(&random);
    job.every_kind = true;
    job.tensor_count = 120;
    job.longest = 3000;
    support_rank_threads(3, run_steps, &job);
    job.params.bytes = 0;
    job.flags = WEFT_STREAM_THREAD;
    assert_true(support_rank_processes_too(2, run_steps, &job));
}

static void test_order_of_the_group(void **state)
{
    (void)state;
    uint64_t random = support_seed();
    job_t job = random_job(&random);
    job.blocks = true;
    support_rank_threads(4, run_steps, &job);
}

/* Ranks that reach each other by put and signal only, late and out of order. */
static void test_other_links(void **state)
{
    (void)state;
    static const uint32_t hosts[] = {0, 0, 1, 1};
    uint64_t random = support_seed();
    wefti_hub_links_t links = {hosts, random, 20000};
    job_t job = random_job(&random);
    job.longest = 5000;
    support_rank_threads_over(4, run_steps, &job, &links);
}

/* More pieces than calls or records can be in flight. */
static void test_large_buckets(void **state)
{
    (void)state;
    uint64_t random = support_seed();
    job_t job = random_job(&random);
    job.tensor_count = 12;
    job.step_count = 2;
    job.longest = 3000000;
    job.params.bytes = 0;
    job.params.window_ns = WEFT_FUSER_WINDOW_NONE;
    support_rank_threads(2, run_steps, &job);
}

static void test_thousands_of_tensors(void **state)
{
    (void)state;
    uint64_t random = support_seed();
    job_t job = random_job(&random);
    job.tensor_count = 3000;
    job.step_count = 2;
    job.longest = 64;
    job.params.bytes = 65536;
    support_rank_threads(3, run_steps, &job);
    job.params.bytes = 64; /* thousands of buckets, too: more than a stream holds */
    job.ordered = true;
    support_rank_threads(2, run_steps, &job);
}

/* ---- where buckets end ---- */

static weft_fuser_t *make(rank_world_t *world, uint64_t bytes, uint64_t window_ns)
{
    weft_fuser_params_t params = WEFT_FUSER_PARAMS_INIT;
    params.bytes = bytes;
    params.window_ns = window_ns;
    weft_fuser_t *fuser = NULL;
    RANK_OK(weft_fuser_create(world->group, &params, &fuser));
    return fuser;
}

static weft_status_t add_f32(weft_fuser_t *fuser, float *tensor, uint64_t count, const char *name)
{
    return weft_fuser_add(fuser, tensor, count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, name);
}

static weft_fuser_stats_t stats_of(weft_fuser_t *fuser)
{
    weft_fuser_stats_t stats = WEFT_FUSER_STATS_INIT;
    RANK_OK(weft_fuser_get_stats(fuser, &stats));
    return stats;
}

static void run_edges(rank_world_t *world)
{
    static const char *names[] = {"a", "b", "c", "d"};
    float x[4][100] = {{0}};
    /* 400 bytes each: two fit, and a third does not */
    weft_fuser_t *fuser = make(world, 1000, WEFT_FUSER_WINDOW_NONE);
    for (uint32_t i = 0; i < 4; i++) {
        RANK_OK(add_f32(fuser, x[i], 100, names[i]));
    }
    RANK_OK(weft_fuser_wait(fuser));
    RANK_CHECK(stats_of(fuser).bucket_count == 2 && stats_of(fuser).largest_bucket_bytes == 800);
    weft_fuser_destroy(fuser);
    /* one bucket is full, and 50 elements of the second tensor are more than fit into the next */
    fuser = make(world, 200, WEFT_FUSER_WINDOW_NONE);
    RANK_OK(add_f32(fuser, x[0], 50, "a"));
    RANK_OK(add_f32(fuser, x[1], 100, "b"));
    RANK_OK(add_f32(fuser, x[2], 7, "c"));
    RANK_OK(weft_fuser_wait(fuser));
    RANK_CHECK(stats_of(fuser).bucket_count == 4 && stats_of(fuser).largest_bucket_bytes == 200);
    weft_fuser_destroy(fuser);
    /* the window is over at once */
    fuser = make(world, 0, 1);
    for (uint32_t i = 0; i < 4; i++) {
        uint64_t start = wefti_now_ns();
        RANK_OK(add_f32(fuser, x[i], 100, names[i]));
        while (wefti_now_ns() - start < 2) {
        }
    }
    RANK_OK(weft_fuser_wait(fuser));
    RANK_CHECK(stats_of(fuser).bucket_count == 4);
    weft_fuser_destroy(fuser);
    /* never over */
    fuser = make(world, 0, WEFT_FUSER_WINDOW_NONE);
    RANK_OK(add_f32(fuser, x[0], 100, "a"));
    RANK_OK(weft_fuser_add(fuser, x[1], 100, WEFT_DTYPE_F32, WEFT_REDUCTION_MAX, "b"));
    RANK_OK(add_f32(fuser, x[2], 100, "c"));
    RANK_OK(weft_fuser_add(fuser, x[3], 100, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, "d"));
    RANK_OK(weft_fuser_wait(fuser));
    RANK_CHECK(stats_of(fuser).bucket_count == 3 && stats_of(fuser).largest_bucket_bytes == 800);
    weft_fuser_destroy(fuser);
}

/* Reduced before wait: because of the window, on demand, and because the bucket is complete. */
static void run_early(rank_world_t *world)
{
    float sum = (float)(world->size * (world->size + 1) / 2), x[2], y[3] = {0};
    for (uint32_t round = 0; round < 2; round++) {
        weft_fuser_t *fuser = make(world, 0, round == 0 ? 1 : WEFT_FUSER_WINDOW_NONE);
        for (uint32_t step = 0; step < 3; step++) {
            x[0] = x[1] = (float)world->rank + 1;
            RANK_OK(add_f32(fuser, x, 2, "x"));
            if (round == 1) {
                RANK_OK(weft_fuser_flush(fuser));
            }
            weft_status_t status;
            uint64_t start = wefti_now_ns();
            while ((status = weft_fuser_query(fuser)) == WEFT_IN_PROGRESS) {
                RANK_CHECK(wefti_now_ns() - start < 300 * SECOND_NS);
                sched_yield();
            }
            RANK_OK(status);
            RANK_CHECK(x[0] == sum && x[1] == sum);
            RANK_OK(add_f32(fuser, y, 3, "y"));
            RANK_OK(weft_fuser_wait(fuser));
            RANK_OK(weft_fuser_query(fuser));
        }
        RANK_CHECK(stats_of(fuser).bucket_count == 2);
        weft_fuser_destroy(fuser);
    }
}

static void test_bucket_edges(void **state)
{
    (void)state;
    support_rank_threads(1, run_edges, NULL);
    support_rank_threads(3, run_edges, NULL);
    support_rank_threads(1, run_early, NULL);
    support_rank_threads(3, run_early, NULL);
    assert_true(support_rank_processes_too(2, run_early, NULL));
}

typedef struct polls {
    uint64_t window_ns;
    _Atomic uint32_t done; /* rank 0 has asked often enough */
} polls_t;

/* Rank 0 asks over and over while its second frame waits for another rank, then all do: neither the
 * log nor the calls grow with that. */
static void run_polls(rank_world_t *world)
{
    polls_t *polls = world->user;
    weft_fuser_t *fuser = make(world, 0, polls->window_ns);
    const wefti_calls_t *calls = fuser->runner.group->calls;
    const uint32_t before = calls->issued;
    float x[2][100];
    for (uint32_t i = 0; i < 100; i++) {
        x[0][i] = x[1][i] = (float)(world->rank + i);
    }
    while (world->rank != 0 && atomic_load(&polls->done) == 0) {
        sched_yield();
    }
    RANK_OK(add_f32(fuser, x[0], 100, "a"));
    RANK_OK(add_f32(fuser, x[1], 100, "b"));
    for (uint32_t i = 0; world->rank == 0 && i < 20000; i++) {
        RANK_CHECK(weft_fuser_query(fuser) >= WEFT_OK);
    }
    RANK_CHECK(fuser->log_bytes < 1000);
    atomic_store(&polls->done, 1);
    for (uint32_t i = 0; i < 2000; i++) {
        RANK_CHECK(weft_fuser_query(fuser) >= WEFT_OK);
    }
    RANK_CHECK(calls->issued - before < 20);
    RANK_OK(weft_fuser_wait(fuser));
    for (uint32_t i = 0; i < 100; i++) {
        RANK_CHECK(x[0][i] == (float)(2 * i + 1) && x[1][i] == x[0][i]);
    }
    weft_fuser_destroy(fuser);
}

static void test_polling_says_nothing_new(void **state)
{
    (void)state;
    static const uint64_t windows[] = {WEFT_FUSER_WINDOW_NONE, 1};
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        polls_t polls = {.window_ns = windows[i]};
        support_rank_threads(2, run_polls, &polls);
    }
}

/* ---- no copies, no allocations ---- */

#define PARTS 37u

/* gap: elements between two of them. */
static void reduce_range(rank_world_t *world, float *range, uint64_t each, uint64_t gap)
{
    weft_fuser_t *fuser = make(world, 0, WEFT_FUSER_WINDOW_NONE);
    char names[PARTS][8];
    uint64_t allocations = 0;
    for (uint32_t i = 0; i < PARTS; i++) {
        snprintf(names[i], sizeof names[i], "p%u", i);
    }
    for (uint32_t step = 0; step < 4; step++) {
        for (uint64_t i = 0; i < PARTS * (each + gap); i++) {
            range[i] = (float)(world->rank + i % (each + gap) % 13);
        }
        if (step == 2) { /* all ranks are past what allocates */
            RANK_OK(weft_barrier(world->group, NULL));
            allocations = support_rank_allocations();
            RANK_OK(weft_barrier(world->group, NULL));
        }
        for (uint32_t i = PARTS; i-- > 0;) { /* as backward passes go */
            RANK_OK(add_f32(fuser, range + i * (each + gap), each, names[i]));
        }
        RANK_OK(weft_fuser_wait(fuser));
        for (uint64_t i = 0; i < PARTS * (each + gap); i++) {
            float ranks = (float)(world->size * (world->size - 1) / 2);
            uint64_t k = i % (each + gap);
            RANK_CHECK(range[i] == (k < each ? ranks + (float)(world->size * (k % 13))
                                             : (float)(world->rank + k % 13))); /* not touched */
        }
    }
    RANK_OK(weft_barrier(world->group, NULL));
    RANK_CHECK(support_rank_allocations() == allocations);
    RANK_OK(weft_barrier(world->group, NULL));
    weft_fuser_stats_t stats = stats_of(fuser);
    uint64_t bytes = 4 * PARTS * each * sizeof *range;
    RANK_CHECK(stats.reduced_bytes == bytes);
    RANK_CHECK(stats.copied_bytes == (gap == 0 ? 0 : 2 * bytes));
    weft_fuser_destroy(fuser);
}

static void run_copies(rank_world_t *world)
{
    uint64_t each = 20011;
    size_t bytes = PARTS * each * sizeof(float);
    void *shared = NULL;
    float *adopted = malloc(bytes), *plain = malloc(bytes);
    RANK_CHECK(adopted != NULL && plain != NULL);
    RANK_OK(weft_mem_alloc(world->context, bytes, &shared));
    reduce_range(world, shared, each, 0);
    reduce_range(world, shared, each - 3, 3);
    RANK_OK(weft_mem_free(world->context, shared));
    RANK_OK(weft_mem_register(world->context, adopted, bytes));
    reduce_range(world, adopted, each, 0);
    RANK_OK(weft_mem_unregister(world->context, adopted));
    reduce_range(world, plain, each, 0);
    reduce_range(world, plain, each - 1, 1);
    reduce_range(world, plain, each - 1, world->rank % 2); /* each rank for itself */
    free(adopted);
    free(plain);
}

static void test_zero_copies(void **state)
{
    (void)state;
    support_rank_threads(2, run_copies, NULL);
    assert_true(support_rank_processes_too(2, run_copies, NULL));
}

/* A group that is not the world, beside calls on the group that it was made of. */
static void run_part(rank_world_t *world)
{
    weft_group_t *part = NULL;
    RANK_OK(weft_group_split(world->group, world->rank % 2, 0, &part));
    float x = (float)world->rank, y[2000], all = 1, expected = 0;
    rank_world_t inner = {world->context, part, weft_group_rank(part), weft_group_size(part), NULL};
    for (uint32_t r = 0; r < inner.size; r++) {
        expected += (float)weft_group_world_rank(part, r);
    }
    weft_fuser_t *fuser = make(&inner, 4096, 0);
    for (uint32_t step = 0; step < 3; step++) {
        x = y[0] = y[1999] = (float)world->rank;
        RANK_OK(add_f32(fuser, &x, 1, "x"));
        RANK_OK(weft_all_reduce(&all, &all, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_MAX, part, NULL));
        RANK_OK(add_f32(fuser, y, 2000, "y"));
        RANK_OK(
            weft_all_reduce(&all, &all, 1, WEFT_DTYPE_F32, WEFT_REDUCTION_MAX, world->group, NULL));
        RANK_OK(weft_fuser_wait(fuser));
        RANK_CHECK(x == expected && y[0] == expected && y[1999] == expected);
    }
    weft_group_destroy(part); /* may go first */
    x = (float)world->rank;
    RANK_OK(add_f32(fuser, &x, 1, "x"));
    RANK_OK(add_f32(fuser, y, 2000, "y"));
    RANK_OK(weft_fuser_wait(fuser));
    RANK_CHECK(x == expected);
    weft_fuser_destroy(fuser);
}

static void test_part_of_the_world(void **state)
{
    (void)state;
    support_rank_threads(5, run_part, NULL);
}

/* ---- wrong calls ---- */

static void run_bad_arguments(rank_world_t *world)
{
    weft_fuser_t *fuser = NULL;
    weft_fuser_params_t params = WEFT_FUSER_PARAMS_INIT;
    weft_fuser_stats_t stats = {0};
    float x[4] = {1, 1, 1, 1};
    char name[WEFT_FUSER_NAME_BYTES + 2];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    RANK_CHECK(weft_fuser_create(NULL, NULL, &fuser) == WEFT_ERR_INVALID_ARGUMENT);
    params.bytes = 7;
    RANK_CHECK(weft_fuser_create(world->group, &params, &fuser) == WEFT_ERR_INVALID_ARGUMENT);
    params.struct_size = 0;
    RANK_CHECK(weft_fuser_create(world->group, &params, &fuser) == WEFT_ERR_INVALID_ARGUMENT);
    params = (weft_fuser_params_t)WEFT_FUSER_PARAMS_INIT;
    params.bytes = 4096 + world->rank;
    RANK_CHECK(weft_fuser_create(world->group, &params, &fuser) == WEFT_ERR_MISMATCH);
    RANK_CHECK(fuser == NULL && strstr(weft_last_error(), "rank 1 bytes 4097") != NULL);
    fuser = make(world, 0, 0);
    for (uint32_t step = 0; step < 2; step++) {
        RANK_CHECK(add_f32(NULL, x, 4, "x") == WEFT_ERR_INVALID_ARGUMENT);
        RANK_CHECK(add_f32(fuser, NULL, 4, "x") == WEFT_ERR_INVALID_ARGUMENT);
        RANK_CHECK(add_f32(fuser, x, 4, NULL) == WEFT_ERR_INVALID_ARGUMENT);
        RANK_CHECK(add_f32(fuser, x, 4, "") == WEFT_ERR_INVALID_ARGUMENT);
        RANK_CHECK(add_f32(fuser, x, 4, name) == WEFT_ERR_INVALID_ARGUMENT);
        RANK_CHECK(add_f32(fuser, x, UINT64_MAX / 2, "x") == WEFT_ERR_INVALID_ARGUMENT);
        RANK_CHECK(weft_fuser_add(fuser, x, 4, WEFT_DTYPE_BOOL, WEFT_REDUCTION_SUM, "x") ==
                   WEFT_ERR_INVALID_ARGUMENT);
        RANK_CHECK(weft_fuser_add(fuser, x, 4, (weft_dtype_t)77, WEFT_REDUCTION_SUM, "x") ==
                   WEFT_ERR_INVALID_ARGUMENT);
        RANK_CHECK(weft_fuser_add(fuser, x, 4, WEFT_DTYPE_F32, (weft_reduction_t)5, "x") ==
                   WEFT_ERR_INVALID_ARGUMENT);
        RANK_CHECK(weft_fuser_get_stats(fuser, &stats) == WEFT_ERR_INVALID_ARGUMENT);
        RANK_OK(add_f32(fuser, x, 4, "x"));
        RANK_CHECK(weft_fuser_reset(fuser) == WEFT_ERR_STATE);
        RANK_CHECK(add_f32(fuser, x, 4, "x") == WEFT_ERR_INVALID_ARGUMENT);
        RANK_CHECK(strstr(weft_last_error(), "\"x\": already added") != NULL);
        RANK_OK(add_f32(fuser, NULL, 0, name + 1)); /* the longest name, and no elements */
        RANK_OK(weft_fuser_flush(fuser));
        RANK_OK(weft_fuser_wait(fuser)); /* nothing of it did harm */
    }
    RANK_CHECK(x[3] == (float)(world->size * world->size));
    RANK_CHECK(weft_fuser_wait(NULL) == WEFT_ERR_INVALID_ARGUMENT);
    weft_fuser_destroy(fuser);
    weft_fuser_destroy(NULL);
}

static void test_bad_arguments(void **state)
{
    (void)state;
    support_rank_threads(2, run_bad_arguments, NULL);
}

/* One rank does something else than the others in a step. */
typedef struct difference {
    uint32_t step, rank; /* where */
    const char *drops, *adds, *changes;
    uint64_t count; /* of what changes */
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    const char *text; /* in everybody's error */
    weft_stream_flags_t flags;
} difference_t;

static void run_difference(rank_world_t *world)
{
    static const char *names[] = {"w0", "w1", "w2", "w3", "w4"};
    const difference_t *difference = world->user;
    weft_stream_params_t stream_params = WEFT_STREAM_PARAMS_INIT;
    stream_params.name = "fuse";
    stream_params.flags = difference->flags;
    weft_fuser_params_t params = WEFT_FUSER_PARAMS_INIT;
    float x[6][100] = {{0}};
    weft_status_t status = WEFT_OK;
    weft_fuser_t *fuser = NULL;
    params.bytes = 700; /* buckets of one tensor: most are reduced before it is noticed */
    RANK_OK(weft_stream_create(world->context, &stream_params, &params.stream));
    RANK_OK(weft_fuser_create(world->group, &params, &fuser));
    uint64_t start = wefti_now_ns();
    for (uint32_t step = 0; status == WEFT_OK && step < 5; step++) {
        bool here = step == difference->step && world->rank == difference->rank;
        start = step <= difference->step ? wefti_now_ns() : start;
        for (uint32_t i = 0; status == WEFT_OK && i < 5; i++) {
            if (here && difference->drops != NULL && strcmp(difference->drops, names[i]) == 0) {
                continue;
            }
            if (here && difference->changes != NULL && strcmp(difference->changes, names[i]) == 0) {
                status = weft_fuser_add(fuser, x[i], difference->count, difference->dtype,
                                        difference->reduction, names[i]);
            } else {
                status = add_f32(fuser, x[i], 100, names[i]);
            }
        }
        if (here && status == WEFT_OK && difference->adds != NULL) {
            status = add_f32(fuser, x[5], 100, difference->adds);
        }
        status = status == WEFT_OK ? weft_fuser_wait(fuser) : status;
        RANK_CHECK(!(here && status == WEFT_OK));
    }
    if (status != WEFT_ERR_MISMATCH || strstr(weft_last_error(), difference->text) == NULL) {
        fprintf(stderr, "rank %u expected \"%s\"\n", world->rank, difference->text);
    }
    RANK_CHECK(status == WEFT_ERR_MISMATCH);
    RANK_CHECK(strstr(weft_last_error(), difference->text) != NULL);
    RANK_CHECK(wefti_now_ns() - start < 300 * SECOND_NS); /* half of the time-out */
    RANK_CHECK(add_f32(fuser, x[0], 100, "w0") == WEFT_ERR_MISMATCH);
    RANK_CHECK(weft_fuser_query(fuser) == WEFT_ERR_MISMATCH);
    RANK_CHECK(weft_fuser_wait(fuser) == WEFT_ERR_MISMATCH);
    weft_fuser_destroy(fuser);
    weft_stream_destroy(params.stream);
    RANK_OK(weft_barrier(world->group, NULL)); /* the caller's group is as it was */
}

static void test_differences(void **state)
{
    (void)state;
    static const difference_t differences[] = {
        {.step = 0, .rank = 1, .drops = "w1", .text = "rank 1 did not add tensor \"w1\""},
        {.step = 0, .rank = 0, .drops = "w1", .text = "adds tensor \"w1\", which rank 0 did not"},
        {.step = 0, .rank = 2, .adds = "new", .text = "rank 2 adds tensor \"new\""},
        {.step = 0, .rank = 0, .adds = "new", .text = "did not add tensor \"new\""},
        {.step = 2, .rank = 1, .drops = "w4", .text = "rank 1 did not add tensor \"w4\""},
        {.step = 1, .rank = 0, .drops = "w0", .text = "rank 0 did not add tensor \"w0\""},
        {.step = 2, .rank = 1, .adds = "new", .text = "rank 1 adds tensor \"new\""},
        {.step = 1, .rank = 0, .adds = "new", .text = "rank 0 adds tensor \"new\""},
        {.step = 0,
         .rank = 1,
         .changes = "w2",
         .count = 99,
         .dtype = WEFT_DTYPE_F32,
         .text = "tensor \"w2\""},
        {.step = 0,
         .rank = 0,
         .changes = "w3",
         .count = 100,
         .dtype = WEFT_DTYPE_I32,
         .text = "tensor \"w3\""},
        {.step = 1,
         .rank = 2,
         .changes = "w2",
         .count = 101,
         .dtype = WEFT_DTYPE_F32,
         .text = "rank 2 adds tensor \"w2\" with 101"},
        {.step = 2,
         .rank = 0,
         .changes = "w0",
         .count = 100,
         .dtype = WEFT_DTYPE_F32,
         .reduction = WEFT_REDUCTION_AVG,
         .text = "rank 0 adds tensor \"w0\""},
    };
    for (size_t i = 0; i < sizeof differences / sizeof *differences; i++) {
        difference_t difference = differences[i];
        difference.flags = i % 2 == 0 ? WEFT_STREAM_INLINE : WEFT_STREAM_THREAD;
        support_rank_threads(3, run_difference, &difference);
        if (i % 3 == 0) {
            difference.flags ^= WEFT_STREAM_THREAD;
            assert_true(support_rank_processes_too(3, run_difference, &difference));
        }
    }
}

static void run_reset(rank_world_t *world)
{
    weft_fuser_t *fuser = make(world, 0, 0);
    float x[8] = {0};
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t step = 0; step < 2; step++) {
            RANK_OK(add_f32(fuser, x, 4 - round, "x"));
            if (round == 1) {
                RANK_OK(add_f32(fuser, x + 4, 4, "y"));
            }
            RANK_OK(weft_fuser_wait(fuser));
        }
        RANK_OK(weft_fuser_reset(fuser));
    }
    RANK_CHECK(stats_of(fuser).step_count == 6);
    weft_fuser_destroy(fuser);
}

static void test_reset(void **state)
{
    (void)state;
    support_rank_threads(3, run_reset, NULL);
}

/* ---- ends ---- */

static void run_destroy(rank_world_t *world)
{
    static const char *names[] = {"a", "b", "c"};
    float x[3][1000] = {{0}};
    for (uint32_t round = 0; round < 12; round++) {
        bool all = round % 3 == 0, late = round % 2 == 0, threaded = round % 4 < 2;
        weft_stream_params_t stream_params = {
            sizeof stream_params, "fuse", threaded ? WEFT_STREAM_THREAD : WEFT_STREAM_INLINE, 0};
        weft_fuser_params_t params = WEFT_FUSER_PARAMS_INIT;
        params.bytes = 4000;
        weft_fuser_t *fuser = NULL;
        RANK_OK(weft_stream_create(world->context, &stream_params, &params.stream));
        RANK_OK(weft_fuser_create(world->group, &params, &fuser));
        /* Otherwise a rank may destroy its fuser while another still waits in weft_fuser_create. */
        RANK_OK(weft_barrier(world->group, NULL));
        weft_status_t status = WEFT_OK;
        for (uint32_t step = 0; late && step < 2; step++) {
            for (uint32_t i = 0; status == WEFT_OK && i < 3; i++) {
                status = add_f32(fuser, x[i], 1000, names[i]);
            }
            status = status == WEFT_OK ? weft_fuser_wait(fuser) : status;
            /* Who is done with the second step may have left before another has seen its end. */
            RANK_CHECK(status == WEFT_OK || (status == WEFT_ERR_ABORTED && step == 1));
        }
        bool leaves = all || world->rank == 1;
        for (uint32_t i = 0; status == WEFT_OK && i < 3; i++) {
            /* not all have the same in flight */
            if (!leaves || i < 2 - world->rank % 2) {
                status = add_f32(fuser, x[i], 1000, names[i]);
            }
        }
        if (!leaves) {
            status = status == WEFT_OK ? weft_fuser_wait(fuser) : status;
            RANK_CHECK(status == WEFT_ERR_ABORTED);
            RANK_CHECK(strstr(weft_last_error(), "rank 1 destroyed its fuser") != NULL);
        }
        weft_fuser_destroy(fuser);
        weft_stream_destroy(params.stream);
        RANK_OK(weft_barrier(world->group, NULL));
    }
}

static void test_destroy_in_mid_step(void **state)
{
    (void)state;
    support_rank_threads(2, run_destroy, NULL);
    support_rank_threads(3, run_destroy, NULL);
    assert_true(support_rank_processes_too(3, run_destroy, NULL));
}

/* Ranks leave at different times; the world and a fuser of the same ranks go on. */
static void run_leave(rank_world_t *world)
{
    float x[1000] = {0};
    weft_fuser_t *left = make(world, 0, 0), *kept = make(world, 0, 0);
    for (uint32_t step = 0; step < 2; step++) {
        RANK_OK(add_f32(left, x, 1000, "x"));
        RANK_OK(weft_fuser_wait(left));
    }
    for (uint32_t r = 0; r < world->size; r++) {
        if (r == world->rank) {
            weft_fuser_leave(left);
        }
        RANK_OK(weft_barrier(world->group, NULL));
        RANK_OK(add_f32(kept, x, 1000, "x"));
        RANK_OK(weft_fuser_wait(kept));
    }
    weft_fuser_leave(kept);
}

static void test_leave(void **state)
{
    (void)state;
    support_rank_threads(1, run_leave, NULL);
    support_rank_threads(3, run_leave, NULL);
}

static void run_death(rank_world_t *world)
{
    weft_fuser_t *fuser = make(world, 0, 0);
    float x[3000] = {0};
    weft_status_t status = WEFT_OK;
    for (uint32_t step = 0; step < 2; step++) {
        RANK_OK(add_f32(fuser, x, 3000, "x"));
        status = weft_fuser_wait(fuser);
        /* the others may hear of the death before they see that the second step is over */
        RANK_CHECK(status == WEFT_OK ||
                   (status == WEFT_ERR_PEER_DIED && step == 1 && world->rank != 1));
    }
    if (world->rank == 1) {
        _exit(0); /* without leaving */
    }
    uint64_t start = wefti_now_ns();
    status = add_f32(fuser, x, 3000, "x");
    status = status == WEFT_OK ? weft_fuser_wait(fuser) : status;
    RANK_CHECK(status == WEFT_ERR_PEER_DIED);
    RANK_CHECK(strstr(weft_last_error(), "rank 1") != NULL);
    RANK_CHECK(wefti_now_ns() - start < 300 * SECOND_NS);
    RANK_CHECK(weft_fuser_wait(fuser) == WEFT_ERR_PEER_DIED);
    weft_fuser_destroy(fuser);
}

static void test_death(void **state)
{
    (void)state;
    assert_true(support_rank_processes(3, run_death, NULL));
}

static void run_fork(rank_world_t *world)
{
    weft_fuser_t *fuser = make(world, 0, 0);
    float x[2] = {0};
    for (uint32_t step = 0; step < 2; step++) {
        RANK_OK(add_f32(fuser, x, 1, "x"));
        pid_t child = fork();
        if (child == 0) {
            bool good = add_f32(fuser, x + 1, 1, "y") == WEFT_ERR_STATE &&
                        weft_fuser_wait(fuser) == WEFT_ERR_STATE &&
                        strstr(weft_last_error(), "forked") != NULL;
            weft_fuser_destroy(fuser);
            weft_group_destroy(world->group);
            weft_context_release(world->context);
            _exit(good ? 0 : 1);
        }
        int status = 0;
        RANK_CHECK(waitpid(child, &status, 0) == child);
        RANK_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        RANK_OK(add_f32(fuser, x + 1, 1, "y"));
        RANK_OK(weft_fuser_wait(fuser));
    }
    weft_fuser_destroy(fuser);
}

static void test_forked_child(void **state)
{
    (void)state;
    assert_true(support_rank_processes(2, run_fork, NULL));
}

/* ---- hostile lists, allocations that fail ---- */

static void run_hostile(rank_world_t *world)
{
    uint64_t random = support_seed();
    for (uint32_t round = 0; round < 30; round++) {
        weft_fuser_t *fuser = make(world, 1000, 0);
        for (uint32_t i = 0; i < 100; i++) {
            /* "ab" of 10 elements, and a time, with a few bytes damaged */
            wefti_fuser_entry_t entries[2] = {{.time_ns = 5, .count = 10, .name_bytes = 2},
                                              {.ends_ns = 5}};
            wefti_fuser_frame_t *frame = &fuser->frame;
            entries[0].dtype = WEFT_DTYPE_F32;
            memcpy(frame->entries, &entries[0], sizeof *entries);
            memcpy(frame->entries + sizeof *entries, "ab", 2);
            memcpy(frame->entries + sizeof *entries + 2, &entries[1], sizeof *entries);
            uint32_t bytes = 2 * sizeof *entries + 2;
            frame->end = 0;
            frame->bytes = test_next_random(&random) % 4 == 0
                               ? (uint32_t)(test_next_random(&random) % (2 * bytes))
                               : bytes;
            for (uint64_t k = test_next_random(&random) % 4; k > 0; k--) {
                frame->entries[test_next_random(&random) % bytes] =
                    (uint8_t)(test_next_random(&random) >> 11);
            }
            weft_status_t status = wefti_fuser_read_frame(fuser);
            RANK_CHECK(status == WEFT_OK || status == WEFT_ERR_FORMAT ||
                       status == WEFT_ERR_MISMATCH);
        }
        weft_fuser_destroy(fuser);
    }
}

static void test_hostile_lists(void **state)
{
    (void)state;
    support_rank_threads(1, run_hostile, NULL);
}

/* One rank of two, whose n-th allocation fails. */
typedef struct pair_rank {
    weft_hub_t *hub;
    int32_t rank;
    test_memory_t memory;
    uint64_t fail_at;
    weft_status_t status;
} pair_rank_t;

static void *pair_main(void *user)
{
    pair_rank_t *rank = user;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *context = NULL;
    weft_group_t *group = NULL;
    weft_fuser_t *fuser = NULL;
    float x[100] = {0}, y[3000] = {0};
    test_memory_init(&rank->memory);
    params.rank = rank->rank;
    params.world_size = 2;
    params.hub = rank->hub;
    params.allocator = &rank->memory.allocator;
    RANK_OK(weft_context_create(&params, &context));
    RANK_OK(weft_group_create_world(context, &group));
    test_memory_fail(&rank->memory, rank->fail_at, UINT64_MAX);
    rank->status = weft_fuser_create(group, NULL, &fuser);
    for (uint32_t step = 0; rank->status == WEFT_OK && step < 2; step++) {
        rank->status = add_f32(fuser, x, 100, "x");
        rank->status = rank->status == WEFT_OK ? add_f32(fuser, y, 3000, "y") : rank->status;
        rank->status = rank->status == WEFT_OK ? weft_fuser_wait(fuser) : rank->status;
    }
    weft_fuser_destroy(fuser);
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
    assert_int_equal(ranks[0].status, ranks[1].status);
    bool fails = ranks[which].memory.requests > fail_at;
    assert_int_equal(ranks[0].status, fails ? WEFT_ERR_NO_MEMORY : WEFT_OK);
    return ranks[which].memory.requests;
}

/* The first ones one by one, and some of the rest. */
static void test_allocations_fail(void **state)
{
    (void)state;
    for (uint32_t which = 0; which < 2; which++) {
        uint64_t calls = run_pair(which, UINT64_MAX);
        assert_true(calls > 10);
        for (uint64_t n = 0; n < calls; n += 1 + n / (TEST_THREAD_SANITIZER ? 2 : 8)) {
            run_pair(which, n);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_in_any_order),
        cmocka_unit_test(test_every_type_and_reduction),
        cmocka_unit_test(test_order_of_the_group),
        cmocka_unit_test(test_other_links),
        cmocka_unit_test(test_large_buckets),
        cmocka_unit_test(test_thousands_of_tensors),
        cmocka_unit_test(test_bucket_edges),
        cmocka_unit_test(test_polling_says_nothing_new),
        cmocka_unit_test(test_zero_copies),
        cmocka_unit_test(test_part_of_the_world),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_reset),
        cmocka_unit_test(test_destroy_in_mid_step),
        cmocka_unit_test(test_leave),
        cmocka_unit_test(test_death),
        cmocka_unit_test(test_forked_child),
        cmocka_unit_test(test_hostile_lists),
        cmocka_unit_test(test_allocations_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
