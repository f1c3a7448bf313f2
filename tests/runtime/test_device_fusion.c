/* SPDX-License-Identifier: Apache-2.0 */
/* What joins calls on a card: batches, fusers and captures; and named groups whose context has one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support_cards.h"
#include "support_ranks.h"

#include "runtime/collective/call.h"
#include "tests/support/support.h"

/* Device memory with count elements; the caller frees it. */
static int32_t *alloc(const rank_world_t *world, size_t count)
{
    void *address = NULL;
    RANK_OK(weft_device_alloc(world->context, count * sizeof(int32_t), &address));
    return address;
}

static void put(const rank_world_t *world, void *device, const void *host, size_t bytes)
{
    RANK_OK(weft_mem_copy(world->context, device, host, bytes));
}

/* ---- batches ---- */

/* Each small call is of count 1 + i % 3; every kind becomes one call. */
static void run_batch(rank_world_t *world)
{
    enum { CALLS = 20, EACH = 3, BLOCKS = 8 };
    const int32_t size = (int32_t)world->size, rank = (int32_t)world->rank;
    static const int32_t nothing[CALLS * EACH * BLOCKS];
    int32_t host[CALLS * EACH], many[CALLS * EACH * BLOCKS];
    int32_t *sums = alloc(world, CALLS * EACH), *roots = alloc(world, CALLS * EACH);
    int32_t *all = alloc(world, CALLS * EACH * BLOCKS);
    RANK_CHECK(size <= BLOCKS);
    for (int32_t round = 0; round < 3; round++) {
        for (int32_t i = 0; i < CALLS * EACH; i++) {
            host[i] = rank * 1000 + i + round;
        }
        put(world, sums, host, sizeof host);
        put(world, roots, nothing, sizeof host);
        put(world, all, nothing, sizeof many);
        uint32_t before = world->group->calls->issued;
        RANK_OK(weft_batch_begin(world->group));
        for (uint32_t i = 0; i < CALLS; i++) {
            int32_t *at = sums + (size_t)i * EACH, *to = all + (size_t)i * EACH * BLOCKS;
            uint64_t count = 1 + i % EACH;
            RANK_OK(weft_all_gather(at, to, count, WEFT_DTYPE_I32, world->group, NULL));
            RANK_OK(weft_reduce(at, rank == size - 1 ? roots + (size_t)i * EACH : NULL, count,
                                WEFT_DTYPE_I32, WEFT_REDUCTION_MAX, world->size - 1, world->group,
                                NULL));
            RANK_OK(weft_all_reduce(at, at, count, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, world->group,
                                    NULL));
        }
        RANK_OK(weft_batch_end(world->group, NULL));
        RANK_CHECK(world->group->calls->issued - before == (size == 1 ? 3 * CALLS : 3));
        put(world, many, all, sizeof many);
        for (int32_t i = 0; i < CALLS; i++) {
            for (int32_t k = 0; k < size * (1 + i % EACH); k++) {
                int32_t from = k / (1 + i % EACH), element = k % (1 + i % EACH);
                RANK_CHECK(many[i * EACH * BLOCKS + k] == from * 1000 + i * EACH + element + round);
            }
        }
        for (int root = 0; root < 2; root++) {
            put(world, host, root ? roots : sums, sizeof host);
            for (int32_t i = 0; i < CALLS * EACH; i++) {
                bool called = i % EACH <= i / EACH % EACH;
                int32_t own = rank * 1000 + i + round;
                int32_t sum = 1000 * (size * (size - 1) / 2) + size * (i + round);
                int32_t most = (size - 1) * 1000 + i + round;
                RANK_CHECK(host[i] ==
                           (root ? (called && rank == size - 1 ? most : 0) : (called ? sum : own)));
            }
        }
    }
    RANK_OK(weft_device_free(world->context, sums));
    RANK_OK(weft_device_free(world->context, roots));
    RANK_OK(weft_device_free(world->context, all));
}

static void test_device_batch(void **state)
{
    (void)state;
    support_card_threads(1, run_batch, NULL);
    support_card_threads(2, run_batch, NULL);
    support_card_threads(5, run_batch, NULL);
}

/* ---- fusers ---- */

#define GRADIENTS 40u

static uint64_t count_of(uint32_t tensor)
{
    return tensor == 7 ? 0 : tensor == 9 ? 300000 : 1 + tensor * 37;
}

/* Small tensors are packed, large ones go in pieces; the order in which they are added is the rank's
 * own. stream: the program's, with work of its own before. */
static void run_fuser_on(rank_world_t *world, weft_stream_t *stream)
{
    enum { MOST = 300000 };
    weft_fuser_params_t params = WEFT_FUSER_PARAMS_INIT;
    weft_fuser_stats_t stats = WEFT_FUSER_STATS_INIT;
    weft_fuser_t *fuser = NULL;
    int32_t *tensors[GRADIENTS], *host = malloc(MOST * sizeof *host);
    RANK_CHECK(host != NULL);
    params.bytes = 1u << 18;
    params.stream = stream;
    for (uint32_t t = 0; t < GRADIENTS; t++) {
        tensors[t] = alloc(world, count_of(t) + 1);
    }
    RANK_OK(weft_fuser_create(world->group, &params, &fuser));
    for (uint32_t step = 0; step < 3; step++) {
        for (uint32_t t = 0; t < GRADIENTS; t++) {
            for (uint64_t i = 0; i < count_of(t); i++) {
                host[i] = (int32_t)(i * (t + 1) + world->rank + step);
            }
            put(world, tensors[t], host, count_of(t) * sizeof *host);
        }
        for (uint32_t n = 0; n < GRADIENTS; n++) {
            uint32_t t = (n * (world->rank % 2 == 0 ? 1 : 3) + step) % GRADIENTS;
            char name[16];
            snprintf(name, sizeof name, "tensor%u", t);
            RANK_OK(weft_fuser_add(fuser, tensors[t], count_of(t), WEFT_DTYPE_I32,
                                   WEFT_REDUCTION_SUM, name));
        }
        if (step == 2) {
            weft_status_t status;
            while ((status = weft_fuser_query(fuser)) == WEFT_IN_PROGRESS) {
                usleep(100);
            }
            RANK_OK(status);
        }
        RANK_OK(weft_fuser_wait(fuser));
        for (uint32_t t = 0; t < GRADIENTS; t++) {
            put(world, host, tensors[t], count_of(t) * sizeof *host);
            for (uint64_t i = 0; i < count_of(t); i++) {
                uint32_t ranks = world->size * (world->size - 1) / 2;
                RANK_CHECK(host[i] == (int32_t)(world->size * (i * (t + 1) + step) + ranks));
            }
        }
    }
    RANK_OK(weft_fuser_get_stats(fuser, &stats));
    RANK_CHECK(stats.step_count == 3 && stats.tensor_count == GRADIENTS && stats.copied_bytes > 0);
    RANK_CHECK(stats.call_count < 3ull * GRADIENTS);
    weft_fuser_destroy(fuser);
    for (uint32_t t = 0; t < GRADIENTS; t++) {
        RANK_OK(weft_device_free(world->context, tensors[t]));
    }
    free(host);
}

static void run_fuser(rank_world_t *world)
{
    weft_stream_t *stream = NULL;
    run_fuser_on(world, NULL);
    RANK_OK(weft_stream_create(world->context, NULL, &stream));
    run_fuser_on(world, stream);
    weft_stream_destroy(stream);
}

/* Rank 1 adds a tensor that has another size. */
static void run_fuser_difference(rank_world_t *world)
{
    weft_fuser_t *fuser = NULL;
    int32_t *tensor = alloc(world, 20);
    RANK_OK(weft_fuser_create(world->group, NULL, &fuser));
    weft_status_t status = weft_fuser_add(fuser, tensor, world->rank == 1 ? 20 : 10, WEFT_DTYPE_I32,
                                          WEFT_REDUCTION_SUM, "grad");
    status = status == WEFT_OK ? weft_fuser_wait(fuser) : status;
    RANK_CHECK(status == WEFT_ERR_MISMATCH);
    RANK_CHECK(strstr(weft_last_error(), "\"grad\": rank 0 adds 10 x i32 (sum), rank 1 adds 20"));
    weft_fuser_destroy(fuser);
    RANK_OK(weft_device_free(world->context, tensor));
}

static void test_device_fuser(void **state)
{
    (void)state;
    support_card_threads(1, run_fuser, NULL);
    support_card_threads(2, run_fuser, NULL);
    support_card_threads(3, run_fuser, NULL);
    support_card_threads(2, run_fuser_difference, NULL);
}

static void test_device_fuser_on_threads(void **state)
{
    (void)state;
    setenv("WEFT_PROGRESS", "thread", 1);
    support_card_threads(2, run_fuser, NULL);
    unsetenv("WEFT_PROGRESS");
}

/* ---- captures ---- */

static void run_capture(rank_world_t *world)
{
    enum { COUNT = 64, TENSORS = 5 };
    weft_capture_params_t params = WEFT_CAPTURE_PARAMS_INIT;
    weft_stream_params_t stream_params = WEFT_STREAM_PARAMS_INIT;
    stream_params.name = "user";
    weft_capture_info_t info = WEFT_CAPTURE_INFO_INIT;
    weft_capture_t *capture = NULL;
    weft_stream_t *stream = NULL;
    void *tensors[TENSORS];
    int32_t host[COUNT];
    params.bucket = "one";
    RANK_OK(weft_stream_create(world->context, &stream_params, &stream));
    RANK_OK(weft_capture_begin(world->group, &params));
    for (uint32_t t = 0; t < TENSORS; t++) {
        RANK_OK(weft_device_alloc(world->context, sizeof host, &tensors[t]));
        RANK_OK(weft_all_reduce(tensors[t], tensors[t], COUNT, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM,
                                world->group, NULL));
    }
    RANK_OK(weft_capture_end(world->group, &capture));
    RANK_OK(weft_capture_get_info(capture, &info));
    RANK_CHECK(info.bucket_count == 1);
    for (uint32_t n = 0; n < 3; n++) {
        for (uint32_t t = 0; t < TENSORS; t++) {
            for (int32_t i = 0; i < COUNT; i++) {
                host[i] = (int32_t)(world->rank + 1) * (i + (int32_t)t);
            }
            RANK_OK(weft_mem_copy(world->context, tensors[t], host, sizeof host));
        }
        if (n == 2) {
            for (uint32_t t = 0; t < TENSORS; t++) {
                RANK_OK(weft_capture_ready(capture, t, stream));
            }
            RANK_OK(weft_capture_wait_all(capture));
        } else {
            RANK_OK(weft_capture_launch(capture, n == 0 ? NULL : stream));
            RANK_OK(weft_stream_synchronize(stream));
        }
        for (uint32_t t = 0; t < TENSORS; t++) {
            RANK_OK(weft_mem_copy(world->context, host, tensors[t], sizeof host));
            for (int32_t i = 0; i < COUNT; i++) {
                RANK_CHECK(host[i] == 3 * (i + (int32_t)t));
            }
        }
    }
    weft_capture_destroy(capture);
    weft_stream_destroy(stream);
    for (uint32_t t = 0; t < TENSORS; t++) {
        RANK_OK(weft_device_free(world->context, tensors[t]));
    }
}

static void test_device_capture(void **state)
{
    (void)state;
    support_card_threads(2, run_capture, NULL);
}

/* ---- named groups ---- */

static void run_named(rank_world_t *world)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_group_t *group = NULL;
    char name[64];
    int32_t value = (int32_t)world->rank + 1;
    RANK_OK(support_card_open(&params.device));
    snprintf(name, sizeof name, "test.cards.%d", (int)getpid());
    RANK_OK(weft_group_create_named(name, world->size, world->rank, &params, &group));
    rank_world_t own = {weft_group_context(group), group, world->rank, world->size, NULL};
    RANK_CHECK(weft_context_device(own.context) == params.device);
    int32_t *device = alloc(&own, 1);
    put(&own, device, &value, sizeof value);
    RANK_OK(weft_all_reduce(device, device, 1, WEFT_DTYPE_I32, WEFT_REDUCTION_SUM, group, NULL));
    put(&own, &value, device, sizeof value);
    RANK_CHECK(value == 6);
    RANK_OK(weft_device_free(own.context, device));
    weft_group_destroy(group);
    RANK_CHECK(support_card_close(params.device) == 0);
}

static void test_device_named_group(void **state)
{
    (void)state;
    support_card_contexts(3, run_named, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_batch),
        cmocka_unit_test(test_device_fuser),
        cmocka_unit_test(test_device_fuser_on_threads),
        cmocka_unit_test(test_device_capture),
        cmocka_unit_test(test_device_named_group),
    };
    support_card_or_skip();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
