/* SPDX-License-Identifier: Apache-2.0 */
/* Batches: collectives in them have the same bits as alone, are fused where they are small, and
 * ranks that disagree are told where. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "support_ranks.h"

#include "runtime/collective/fused.h"
#include "tests/support/support.h"

#define MEMBERS 90u
#define OPS 12u

/* ---- random batches, compared with one call after the other ---- */

typedef struct member {
    uint32_t op; /* 0 .. OPS - 1 */
    uint64_t count;
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    uint32_t root;
    bool in_place;
    uint8_t *send, *recv, *expected;
    size_t bytes; /* of each buffer */
    uint64_t counts[8];
} member_t;

static weft_status_t call(const member_t *m, const void *send, void *recv, weft_group_t *group,
                          weft_stream_t *stream)
{
    switch (m->op) {
    case 0:
        return weft_all_reduce(send, recv, m->count, m->dtype, m->reduction, group, stream);
    case 1:
        return weft_broadcast(send, recv, m->count, m->dtype, m->root, group, stream);
    case 2:
        return weft_reduce(send, recv, m->count, m->dtype, m->reduction, m->root, group, stream);
    case 3:
        return weft_all_to_all(send, recv, m->count, m->dtype, group, stream);
    case 4:
        return weft_all_gather(send, recv, m->count, m->dtype, group, stream);
    case 5:
        return weft_gather(send, recv, m->count, m->dtype, m->root, group, stream);
    case 6:
        return weft_reduce_scatter(send, recv, m->count, m->dtype, m->reduction, group, stream);
    case 7:
        return weft_scatter(send, recv, m->count, m->dtype, m->root, group, stream);
    case 8:
        return weft_all_gather_v(send, recv, m->counts, NULL, m->dtype, group, stream);
    case 9:
        return weft_reduce_scatter_v(send, recv, m->counts, NULL, m->dtype, m->reduction, group,
                                     stream);
    case 10:
        return weft_barrier(group, stream);
    default: /* all ranks send the same number to each */
        return weft_all_to_all_v(send, m->counts, NULL, recv, m->counts, NULL, m->dtype, group,
                                 stream);
    }
}

/* Kinds come often enough to be fused; shape is the same on all ranks, data is not. */
static void make_member(member_t *m, uint64_t *shape, uint64_t *data, uint32_t size, bool small)
{
    static const weft_dtype_t dtypes[] = {WEFT_DTYPE_F32, WEFT_DTYPE_BF16, WEFT_DTYPE_I64};
    m->op = (uint32_t)(test_next_random(shape) % 3 == 0 ? 0 : test_next_random(shape) % OPS);
    m->dtype = dtypes[test_next_random(shape) % 3 * (test_next_random(shape) % 2)];
    m->reduction = test_next_random(shape) % 4 == 0 ? WEFT_REDUCTION_MAX : WEFT_REDUCTION_SUM;
    m->root = test_next_random(shape) % 2 == 0 ? 0 : size - 1;
    uint64_t range = small ? 40 : test_next_random(shape) % 8 == 0 ? 9000 : 300;
    m->count = test_next_random(shape) % range;
    for (uint32_t r = 0; r < size; r++) {
        m->counts[r] = m->op == 11 ? 5 : test_next_random(shape) % 20;
    }
    m->in_place = m->op < 3 && test_next_random(shape) % 2 == 0;
    m->bytes = (size_t)(m->count + 20) * 8 * size;
    m->send = malloc(m->bytes);
    m->recv = malloc(m->bytes);
    m->expected = malloc(m->bytes);
    RANK_CHECK(m->send != NULL && m->recv != NULL && m->expected != NULL);
    for (size_t i = 0; i < m->bytes; i++) {
        m->send[i] = (uint8_t)(test_next_random(data) >> 30);
        m->recv[i] = m->expected[i] = m->in_place ? m->send[i] : 0x5a;
    }
}

static void run_random(rank_world_t *world)
{
    uint64_t shape = *(uint64_t *)world->user | 1, data = shape * 31 + world->rank + 1;
    member_t *members = calloc(MEMBERS, sizeof *members);
    RANK_CHECK(members != NULL);
    for (uint32_t round = 0; round < 6; round++) {
        uint32_t count = 1 + (uint32_t)(test_next_random(&shape) % MEMBERS);
        uint32_t pairs = world->size > 1 ? (uint32_t)(test_next_random(&shape) % 4) : 0;
        uint32_t right = (world->rank + 1) % world->size;
        uint32_t left = (world->rank + world->size - 1) % world->size;
        uint32_t out[4], in[4] = {0};
        weft_stream_params_t params = WEFT_STREAM_PARAMS_INIT;
        params.name = "batch";
        params.flags = round % 3;
        weft_stream_t *stream = NULL;
        if (round % 3 != 2) { /* inline, with a thread, none */
            RANK_OK(weft_stream_create(world->context, &params, &stream));
        }
        for (uint32_t i = 0; i < count; i++) {
            make_member(&members[i], &shape, &data, world->size, round % 2 == 0);
            member_t *m = &members[i];
            RANK_OK(call(m, m->in_place ? m->expected : m->send, m->expected, world->group, NULL));
        }
        RANK_OK(weft_batch_begin(world->group));
        for (uint32_t i = 0; i < count; i++) {
            member_t *m = &members[i];
            const int64_t dims[2] = {1, (int64_t)m->count};
            RANK_OK(weft_group_set_shape(world->group, dims, m->count % 2 == 0 ? 2 : 0));
            RANK_OK(call(m, m->in_place ? m->recv : m->send, m->recv, world->group, NULL));
            if (i < pairs) {
                out[i] = world->rank * 10 + i;
                RANK_OK(weft_send(&out[i], 1, WEFT_DTYPE_U32, right, world->group, NULL));
                RANK_OK(weft_recv(&in[i], 1, WEFT_DTYPE_U32, left, world->group, NULL));
            }
        }
        weft_status_t status;
        while ((status = weft_batch_end(world->group, stream)) == WEFT_AGAIN) {
            RANK_CHECK(stream != NULL && weft_stream_query(stream) >= 0);
            sched_yield();
        }
        RANK_OK(status);
        if (stream != NULL) {
            RANK_OK(weft_stream_synchronize(stream));
        }
        for (uint32_t i = 0; i < count; i++) {
            RANK_CHECK(memcmp(members[i].recv, members[i].expected, members[i].bytes) == 0);
            RANK_CHECK(i >= pairs || in[i] == left * 10 + i);
            free(members[i].send);
            free(members[i].recv);
            free(members[i].expected);
        }
        weft_stream_destroy(stream);
    }
    free(members);
}

static void test_same_bits_as_alone(void **state)
{
    (void)state;
    uint64_t seed = support_seed();
    for (uint32_t n = 1; n <= 5; n++) {
        test_next_random(&seed);
        support_rank_threads(n, run_random, &seed);
    }
    test_next_random(&seed);
    assert_true(support_rank_processes_too(3, run_random, &seed));
}

static void test_checked_results(void **state)
{
    (void)state;
    uint64_t seed = support_seed();
    setenv("WEFT_CHECK", "results", 1);
    support_rank_threads(3, run_random, &seed);
    unsetenv("WEFT_CHECK");
}

static void test_other_links(void **state)
{
    (void)state;
    uint64_t seed = support_seed();
    static const uint32_t hosts[] = {0, 0, 1, 1};
    wefti_hub_links_t links = {hosts, seed, 20000};
    support_rank_threads_over(4, run_random, &seed, &links);
}

/* ---- how many calls a batch is ---- */

static void run_counts(rank_world_t *world)
{
    float x[80][16], y[80 * 16];
    weft_group_t *group = world->group;
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 80; i++) {
            for (uint32_t k = 0; k < 16; k++) {
                x[i][k] = (float)(world->rank + i * k);
            }
        }
        uint32_t before = group->calls->issued;
        uint64_t allocations = 0;
        RANK_OK(weft_batch_begin(group));
        for (uint32_t i = 0; i < 64; i++) { /* 4 KiB in all */
            RANK_OK(
                weft_all_reduce(x[i], x[i], 16, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
        }
        RANK_OK(weft_batch_end(group, NULL));
        RANK_CHECK(group->calls->issued - before == 1);
        RANK_CHECK(strcmp(weft_group_last_path(group), "posting") == 0);
        for (uint32_t i = 0; i < 64; i++) {
            float ranks = (float)(world->size * (world->size - 1) / 2);
            RANK_CHECK(x[i][15] == ranks + (float)(world->size * i * 15));
        }
        /* different kinds apart, each as one; what does not fit starts the next */
        before = group->calls->issued;
        RANK_OK(weft_batch_begin(group));
        for (uint32_t i = 0; i < 20; i++) {
            RANK_OK(
                weft_all_reduce(x[i], x[i], 16, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
            RANK_OK(weft_all_reduce(x[i + 20], x[i + 20], 16, WEFT_DTYPE_F32, WEFT_REDUCTION_MAX,
                                    group, NULL));
            RANK_OK(weft_broadcast(x[i + 40], x[i + 40], 16, WEFT_DTYPE_F32, 0, group, NULL));
        }
        RANK_OK(weft_all_reduce(y, y, 1200, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
        RANK_OK(weft_all_reduce(x[60], x[60], 16, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
        RANK_OK(weft_batch_end(group, NULL));
        RANK_CHECK(group->calls->issued - before == (world->size == 1 ? 62 : 3));
        /* nothing at all */
        RANK_OK(weft_batch_begin(group));
        RANK_OK(weft_batch_end(group, NULL));
        /* the same batch again allocates nothing */
        for (uint32_t again = 0; again < 70; again++) {
            if (again == 66) { /* every place of the ring was used */
                RANK_OK(weft_barrier(group, NULL));
                allocations = support_rank_allocations();
                RANK_OK(weft_barrier(group, NULL));
            }
            RANK_OK(weft_batch_begin(group));
            RANK_OK(
                weft_all_reduce(x[0], x[0], 16, WEFT_DTYPE_F32, WEFT_REDUCTION_MIN, group, NULL));
            RANK_OK(
                weft_all_reduce(x[1], x[1], 16, WEFT_DTYPE_F32, WEFT_REDUCTION_MIN, group, NULL));
            RANK_OK(weft_batch_end(group, NULL));
        }
        RANK_OK(weft_barrier(group, NULL));
        RANK_CHECK(support_rank_allocations() == allocations);
        RANK_OK(weft_barrier(group, NULL));
    }
}

static void test_one_call(void **state)
{
    (void)state;
    support_rank_threads(2, run_counts, NULL);
    support_rank_threads(3, run_counts, NULL);
}

/* ---- wrong calls ---- */

static void run_wrong_arguments(rank_world_t *world)
{
    weft_group_t *group = world->group, *other = NULL;
    float x[4] = {1, 1, 1, 1};
    RANK_CHECK(weft_batch_begin(NULL) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_batch_end(group, NULL) == WEFT_ERR_STATE);
    RANK_OK(weft_batch_begin(group));
    RANK_CHECK(weft_batch_begin(group) == WEFT_ERR_STATE);
    RANK_CHECK(weft_all_reduce(NULL, x, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL) ==
               WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_broadcast(x, x, 4, WEFT_DTYPE_F32, 99, group, NULL) ==
               WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_all_gather_v(x, x, NULL, NULL, WEFT_DTYPE_F32, group, NULL) ==
               WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_group_duplicate(group, &other) == WEFT_ERR_STATE);
    RANK_CHECK(strstr(weft_last_error(), "a batch is open") != NULL);
    RANK_OK(weft_all_reduce(x, x, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
    RANK_CHECK(weft_batch_end(group, NULL) ==
               WEFT_ERR_INVALID_ARGUMENT); /* for the first of them */
    RANK_CHECK(strstr(weft_last_error(), "AllReduce: send is NULL") != NULL && x[0] == 1);
    RANK_OK(weft_batch_begin(group));
    RANK_OK(weft_all_reduce(x, x, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
    RANK_OK(weft_batch_end(group, NULL));
    RANK_CHECK(x[0] == (float)world->size && x[3] == x[0]);
    RANK_CHECK(weft_batch_cancel(group) == WEFT_ERR_STATE);
    RANK_OK(weft_batch_begin(group)); /* dropped by all, with a send that nobody receives */
    RANK_OK(weft_all_reduce(x, x, 4, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
    RANK_OK(weft_send(x, 4, WEFT_DTYPE_F32, 1 - world->rank, group, NULL));
    RANK_OK(weft_batch_cancel(group));
    RANK_CHECK(x[0] == (float)world->size);
    RANK_OK(weft_batch_begin(group)); /* and the next one has nothing of it */
    RANK_OK(weft_batch_end(group, NULL));
    RANK_OK(weft_batch_begin(group)); /* left open */
    RANK_OK(weft_barrier(group, NULL));
}

static void test_wrong_arguments(void **state)
{
    (void)state;
    support_rank_threads(2, run_wrong_arguments, NULL);
}

typedef struct difference {
    uint32_t count;   /* of rank 1's third call; else 16 */
    uint32_t members; /* of rank 1; else 4 */
    bool single, broadcast;
    uint32_t root;
    const char *text;
} difference_t;

static void run_difference(rank_world_t *world)
{
    const difference_t *difference = world->user;
    float x[8][64] = {{0}};
    weft_group_t *group = NULL;
    bool other = world->rank == 1;
    RANK_OK(weft_group_duplicate(world->group, &group));
    weft_status_t status = WEFT_OK;
    RANK_OK(weft_batch_begin(group));
    RANK_OK(weft_barrier(group, NULL)); /* number 0 */
    uint32_t members = other && difference->single ? 1 : other ? difference->members : 4;
    for (uint32_t i = 0; i < members; i++) {
        uint64_t count = other && i == 2 ? difference->count : 16;
        uint32_t root = other ? difference->root : 0;
        if (difference->broadcast) {
            RANK_OK(weft_broadcast(x[i], x[i], count, WEFT_DTYPE_F32, root, group, NULL));
        } else {
            RANK_OK(weft_all_reduce(x[i], x[i], count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group,
                                    NULL));
        }
    }
    status = weft_batch_end(group, NULL);
    status = status == WEFT_OK ? weft_barrier(group, NULL) : status;
    if (status != WEFT_ERR_MISMATCH || strstr(weft_last_error(), difference->text) == NULL) {
        fprintf(stderr, "rank %u expected \"%s\"\n", world->rank, difference->text);
    }
    RANK_CHECK(status == WEFT_ERR_MISMATCH);
    RANK_CHECK(strstr(weft_last_error(), difference->text) != NULL);
    RANK_CHECK(weft_barrier(group, NULL) == WEFT_ERR_MISMATCH);
    weft_group_destroy(group);
    RANK_OK(weft_barrier(world->group, NULL));
}

static void test_differences(void **state)
{
    (void)state;
    static const difference_t differences[] = {
        {.count = 17,
         .members = 4,
         .text = "call 3 of the batch has 16 elements on rank 0, call 3 of the batch has 17 "
                 "on rank 1"},
        {.count = 16,
         .members = 5,
         .text = "call 5 of the batch, with 16 elements, exists on rank 1 but not on rank 0"},
        {.count = 16,
         .members = 3,
         .text = "call 4 of the batch, with 16 elements, exists on rank 0 but not on rank 1"},
        {.count = 16,
         .single = true,
         .text = "rank 1 called all_reduce with 16 x f32, rank 0 of f32, fused calls of a batch"},
        {.count = 16,
         .members = 4,
         .broadcast = true,
         .root = 1,
         .text = "rank 1 called broadcast of f32 (root 1), fused calls of a batch, rank 0"},
        {.count = 8, .members = 4, .broadcast = true, .text = "call 3 of the batch"},
    };
    for (size_t i = 0; i < sizeof differences / sizeof *differences; i++) {
        difference_t difference = differences[i];
        support_rank_threads(2, run_difference, &difference);
        assert_true(support_rank_processes_too(2, run_difference, &difference));
    }
}

/* ---- allocations that fail when a batch is submitted ---- */

typedef struct half {
    weft_hub_t *hub;
    int32_t rank;
    test_memory_t memory;
    uint64_t fail_at, made; /* requests while the batch is submitted */
    weft_status_t status;
} half_t;

static void *half_main(void *user)
{
    half_t *half = user;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *context = NULL;
    weft_group_t *group = NULL;
    float x[3][8] = {{0}};
    uint64_t counts[2] = {2, 3};
    test_memory_init(&half->memory);
    params.rank = half->rank;
    params.world_size = 2;
    params.hub = half->hub;
    params.allocator = &half->memory.allocator;
    RANK_OK(weft_context_create(&params, &context));
    RANK_OK(weft_group_create_world(context, &group));
    RANK_OK(weft_barrier(group, NULL));
    /* Not of the group: a barrier that the other rank is about to leave would end with its fault. */
    RANK_OK(weft_context_barrier(context));
    RANK_OK(weft_batch_begin(group));
    RANK_OK(weft_all_reduce(x[0], x[0], 8, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
    RANK_OK(weft_all_gather_v(x[1], x[2], counts, NULL, WEFT_DTYPE_F32, group, NULL));
    RANK_OK(weft_all_reduce(x[1], x[1], 8, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
    test_memory_fail(&half->memory, half->fail_at, UINT64_MAX);
    half->status = weft_batch_end(group, NULL);
    half->made = half->memory.requests;
    test_memory_fail(&half->memory, UINT64_MAX, UINT64_MAX);
    half->status = half->status == WEFT_OK ? weft_barrier(group, NULL) : half->status;
    weft_group_destroy(group);
    weft_context_release(context);
    return NULL;
}

static void test_allocations_fail(void **state)
{
    (void)state;
    bool fails = true;
    for (uint64_t n = 0; fails; n++) {
        half_t halves[2] = {{.rank = 0, .fail_at = UINT64_MAX}, {.rank = 1, .fail_at = n}};
        pthread_t threads[2];
        weft_hub_t *hub = NULL;
        assert_int_equal(weft_hub_create(2, &hub), WEFT_OK);
        for (uint32_t r = 0; r < 2; r++) {
            halves[r].hub = hub;
            assert_int_equal(pthread_create(&threads[r], NULL, half_main, &halves[r]), 0);
        }
        for (uint32_t r = 0; r < 2; r++) {
            pthread_join(threads[r], NULL);
        }
        weft_hub_destroy(hub);
        fails = halves[1].made > n;
        assert_true(fails || n > 1); /* packed data, list, counts */
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(halves[r].status, fails ? WEFT_ERR_NO_MEMORY : WEFT_OK);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_as_alone), cmocka_unit_test(test_checked_results),
        cmocka_unit_test(test_other_links),        cmocka_unit_test(test_one_call),
        cmocka_unit_test(test_wrong_arguments),    cmocka_unit_test(test_differences),
        cmocka_unit_test(test_allocations_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
