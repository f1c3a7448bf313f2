/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the context's device, on the CPU device and on a fake card: the same calls, the same
 * results. What lies on the card is only looked at through copies.
 */
#include "support_cards.h"
#include "tests/support/support.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The CPU device, over threads and processes, and a card. */
static void on_both(uint32_t size, rank_fn run, void *user)
{
    support_rank_threads(size, run, user);
    support_card_threads(size, run, user);
    assert_true(support_rank_processes_too(size, run, user));
}

static uint8_t pattern(size_t i, uint32_t seed)
{
    return (uint8_t)((i * 2654435761u + seed) >> 7);
}

static void fill_pattern(uint8_t *bytes, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        bytes[i] = pattern(i, seed);
    }
}

static bool is_pattern(const uint8_t *bytes, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != pattern(i, seed)) {
            return false;
        }
    }
    return true;
}

static bool is_value(const uint8_t *bytes, size_t count, uint8_t value)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != value) {
            return false;
        }
    }
    return true;
}

/* Sizes around the pattern of fills and odd ones; offsets that no word likes. */
static const size_t sizes[] = {1, 3, 4, 7, 64, 4095, 4096, 4097, 12288, 100001};
#define SIZES (sizeof sizes / sizeof *sizes)

static void run_copies(rank_world_t *world)
{
    uint8_t *in = malloc(100100), *out = malloc(100100);
    RANK_CHECK(in != NULL && out != NULL);
    for (size_t i = 0; i < SIZES; i++) {
        size_t bytes = sizes[i];
        uint8_t *a = NULL, *b = NULL;
        fill_pattern(in, bytes, (uint32_t)i);
        RANK_OK(weft_device_alloc(world->context, bytes + 3, (void **)&a));
        RANK_OK(weft_device_alloc(world->context, bytes, (void **)&b));
        RANK_CHECK(((uintptr_t)a & 63) == 0 && ((uintptr_t)b & 63) == 0);
        memset(out, 0xee, bytes);
        RANK_OK(weft_mem_copy(world->context, out, a, bytes)); /* zeroed */
        RANK_CHECK(is_value(out, bytes, 0));
        RANK_OK(weft_mem_copy(world->context, a + 3, in, bytes)); /* in */
        RANK_OK(weft_mem_copy(world->context, b, a + 3, bytes));  /* within */
        RANK_OK(weft_mem_copy(world->context, out, b, bytes));    /* out */
        RANK_CHECK(is_pattern(out, bytes, (uint32_t)i));
        RANK_OK(weft_mem_fill(world->context, a + 1, 0xa5, bytes));
        RANK_OK(weft_mem_copy(world->context, out, a, bytes + 3));
        RANK_CHECK(out[0] == 0 && is_value(out + 1, bytes, 0xa5));
        RANK_CHECK(bytes < 2 || out[bytes + 2] == pattern(bytes - 1, (uint32_t)i));
        RANK_OK(weft_device_free(world->context, b));
        RANK_OK(weft_device_free(world->context, a));
    }
    free(in);
    free(out);
}

static void test_memory_copies_in_and_out(void **state)
{
    (void)state;
    on_both(1, run_copies, NULL);
    on_both(3, run_copies, NULL);
}

static void run_streams(rank_world_t *world)
{
    enum { BYTES = 50003 };
    weft_stream_t *a = NULL, *b = NULL;
    weft_event_t *event = NULL;
    uint8_t *device = NULL;
    uint8_t *in = malloc(BYTES), *out = calloc(1, BYTES);
    RANK_CHECK(in != NULL && out != NULL);
    fill_pattern(in, BYTES, 9);
    RANK_OK(weft_device_alloc(world->context, BYTES, (void **)&device));
    RANK_OK(weft_stream_create(world->context, NULL, &a));
    RANK_OK(weft_stream_create(world->context, NULL, &b));
    RANK_OK(weft_event_create(world->context, &event));
    for (uint32_t round = 0; round < 20; round++) {
        memset(out, 0, BYTES);
        RANK_OK(weft_stream_copy(a, device, in, BYTES));
        RANK_OK(weft_stream_fill(a, device + 5, (uint8_t)round, 9000 + round));
        RANK_OK(weft_stream_fill(a, device, 1, 0)); /* nothing */
        RANK_OK(weft_event_record(event, a));
        RANK_OK(weft_stream_wait_event(b, event));
        RANK_OK(weft_stream_copy(b, out, device, BYTES));
        RANK_OK(weft_stream_synchronize(b));
        RANK_CHECK(is_value(out + 5, 9000 + round, (uint8_t)round));
        memcpy(out + 5, in + 5, 9000 + round);
        RANK_CHECK(memcmp(out, in, BYTES) == 0);
    }
    RANK_CHECK(weft_stream_fill(a, NULL, 0, 1) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_stream_fill(NULL, device, 0, 1) == WEFT_ERR_INVALID_ARGUMENT);
    weft_event_destroy(event);
    weft_stream_destroy(a);
    weft_stream_destroy(b);
    RANK_OK(weft_device_free(world->context, device));
    free(in);
    free(out);
}

static void test_memory_streams(void **state)
{
    (void)state;
    on_both(2, run_streams, NULL);
}

static void expect_kind(rank_world_t *world, const void *address, weft_mem_kind_t kind,
                        const void *base, size_t bytes, bool host)
{
    weft_mem_info_t info = WEFT_MEM_INFO_INIT;
    RANK_OK(weft_mem_query(world->context, address, &info));
    RANK_CHECK(info.kind == kind && info.base == base && info.bytes == bytes);
    RANK_CHECK(info.host_access == host && info.struct_size == sizeof info);
}

static void run_query(rank_world_t *world)
{
    bool card = weft_context_device(world->context) != NULL;
    bool reaches = support_host_reaches(world->context);
    uint8_t *own = NULL, *other = NULL, *peer = NULL, *plain = malloc(20000);
    RANK_CHECK(plain != NULL);
    RANK_OK(weft_device_alloc(world->context, 100, (void **)&own));
    RANK_OK(weft_device_alloc(world->context, 5000, (void **)&other));
    RANK_OK(weft_mem_alloc(world->context, 5000, (void **)&peer));
    expect_kind(world, own, WEFT_MEM_KIND_DEVICE, own, 100, reaches);
    expect_kind(world, own + 99, WEFT_MEM_KIND_DEVICE, own, 100, reaches);
    expect_kind(world, other + 4000, WEFT_MEM_KIND_DEVICE, other, 5000, reaches);
    expect_kind(world, peer, WEFT_MEM_KIND_PEER, peer, 8192, reaches);
    expect_kind(world, peer + 8191, WEFT_MEM_KIND_PEER, peer, 8192, reaches);
    expect_kind(world, plain, WEFT_MEM_KIND_OTHER, NULL, 0, true);
    expect_kind(world, &card, WEFT_MEM_KIND_OTHER, NULL, 0, true);
    if (card) {
        RANK_CHECK(weft_mem_register(world->context, plain, 20000) == WEFT_ERR_UNSUPPORTED);
    } else {
        RANK_OK(weft_mem_register(world->context, plain, 20000));
        expect_kind(world, plain + 19999, WEFT_MEM_KIND_REGISTERED, plain, 20000, true);
        RANK_OK(weft_mem_unregister(world->context, plain));
        expect_kind(world, plain + 19999, WEFT_MEM_KIND_OTHER, NULL, 0, true);
    }
    RANK_OK(weft_mem_free(world->context, peer));
    expect_kind(world, peer, WEFT_MEM_KIND_OTHER, NULL, 0, true);
    RANK_OK(weft_device_free(world->context, own));
    expect_kind(world, own, WEFT_MEM_KIND_OTHER, NULL, 0, true);
    RANK_OK(weft_device_free(world->context, other));
    free(plain);
}

static void test_memory_tells_what_an_address_is(void **state)
{
    (void)state;
    on_both(2, run_query, NULL);
}

#define FLOATS 4096u /* too many to post: calls ask whether peers reach the buffer */
#define BUFFERS 24u

/* What a stream's thread has in flight is not disturbed by registering something else. */
static void run_register_beside_calls(rank_world_t *world)
{
    static const weft_stream_params_t params = {sizeof params, "calls", WEFT_STREAM_THREAD, 0};
    weft_stream_t *stream;
    float *used = malloc(FLOATS * sizeof *used);
    uint8_t *others[BUFFERS];
    RANK_CHECK(used != NULL);
    RANK_OK(weft_stream_create(world->context, &params, &stream));
    for (uint32_t i = 0; i < FLOATS; i++) {
        used[i] = 1.0f;
    }
    RANK_OK(weft_mem_register(world->context, used, FLOATS * sizeof *used));
    for (uint32_t i = 0; i < BUFFERS; i++) {
        others[i] = malloc(3 * 4096);
        RANK_CHECK(others[i] != NULL);
        RANK_OK(weft_all_reduce(used, used, FLOATS, WEFT_DTYPE_F32, WEFT_REDUCTION_AVG,
                                world->group, stream));
        RANK_OK(weft_mem_register(world->context, others[i], 3 * 4096));
    }
    for (uint32_t i = 0; i < BUFFERS; i++) {
        RANK_OK(weft_all_reduce(used, used, FLOATS, WEFT_DTYPE_F32, WEFT_REDUCTION_AVG,
                                world->group, stream));
        RANK_OK(weft_mem_unregister(world->context, others[i]));
    }
    RANK_OK(weft_stream_synchronize(stream));
    RANK_CHECK(used[0] == 1.0f && used[FLOATS - 1] == 1.0f);
    for (uint32_t i = 0; i < BUFFERS; i++) {
        free(others[i]);
    }
    weft_stream_destroy(stream);
    RANK_OK(weft_mem_unregister(world->context, used));
    free(used);
}

static void test_memory_register_beside_calls(void **state)
{
    (void)state;
    support_rank_threads(2, run_register_beside_calls, NULL);
    assert_true(support_rank_processes_too(2, run_register_beside_calls, NULL));
}

typedef struct giver { /* a thread that gives back what others have no use for, as a garbage
                          collector does */
    weft_context_t *context;
    uint8_t **registered, **taken;
    uint32_t count;
    pthread_t thread;
} giver_t;

static void *give_back_main(void *user)
{
    giver_t *giver = user;
    weft_mem_info_t info = WEFT_MEM_INFO_INIT;
    for (uint32_t i = 0; i < giver->count; i++) {
        RANK_OK(weft_mem_query(giver->context, giver->registered[i] + 5000, &info));
        RANK_CHECK(info.kind == WEFT_MEM_KIND_REGISTERED && info.base == giver->registered[i]);
        RANK_OK(weft_mem_unregister(giver->context, giver->registered[i]));
        RANK_CHECK(giver->registered[i][0] == 7 && giver->registered[i][3 * 4096 - 1] == 7);
        free(giver->registered[i]);
        RANK_OK(weft_mem_query(giver->context, giver->taken[i] + 1, &info));
        RANK_CHECK(info.kind == WEFT_MEM_KIND_PEER && info.base == giver->taken[i]);
        RANK_OK(weft_mem_free(giver->context, giver->taken[i]));
    }
    return NULL;
}

/* Several threads give memory back, while one takes more. */
static void run_give_back(rank_world_t *world)
{
    enum { GIVERS = 4, EACH = 12 };
    uint8_t *registered[GIVERS * EACH], *taken[GIVERS * EACH];
    giver_t givers[GIVERS];
    for (uint32_t i = 0; i < GIVERS * EACH; i++) {
        registered[i] = malloc(3 * 4096);
        RANK_CHECK(registered[i] != NULL);
        memset(registered[i], 7, 3 * 4096);
        RANK_OK(weft_mem_register(world->context, registered[i], 3 * 4096));
        RANK_OK(weft_mem_alloc(world->context, 100 + 999 * i, (void **)&taken[i]));
    }
    for (uint32_t i = 0; i < GIVERS; i++) {
        givers[i] = (giver_t){world->context, registered + EACH * i, taken + EACH * i, EACH, 0};
        RANK_CHECK(pthread_create(&givers[i].thread, NULL, give_back_main, &givers[i]) == 0);
    }
    for (uint32_t i = 0; i < EACH; i++) {
        uint8_t *more = NULL, *other = malloc(3 * 4096);
        RANK_CHECK(other != NULL);
        RANK_OK(weft_mem_alloc(world->context, 5000, (void **)&more));
        RANK_OK(weft_mem_register(world->context, other, 3 * 4096));
        RANK_OK(weft_mem_free(world->context, more));
        RANK_OK(weft_mem_unregister(world->context, other));
        free(other);
    }
    for (uint32_t i = 0; i < GIVERS; i++) {
        RANK_CHECK(pthread_join(givers[i].thread, NULL) == 0);
    }
}

static void test_memory_given_back_by_threads(void **state)
{
    (void)state;
    support_rank_threads(2, run_give_back, NULL);
    assert_true(support_rank_processes_too(2, run_give_back, NULL));
}

static void run_hostile(rank_world_t *world)
{
    void *memory = &world, *own = NULL;
    uint8_t bytes[16] = {0};
    weft_mem_info_t info = WEFT_MEM_INFO_INIT;
    weft_context_t *context = world->context;
    RANK_CHECK(weft_device_alloc(NULL, 1, &memory) == WEFT_ERR_INVALID_ARGUMENT && memory == NULL);
    RANK_CHECK(weft_device_alloc(context, 0, &memory) == WEFT_ERR_INVALID_ARGUMENT);
    memory = bytes;
    RANK_CHECK(weft_device_alloc(context, SIZE_MAX - 10, &memory) == WEFT_ERR_NO_MEMORY);
    RANK_CHECK(memory == NULL);
    RANK_CHECK(weft_device_alloc(context, SIZE_MAX / 2, &memory) == WEFT_ERR_NO_MEMORY);
    RANK_OK(weft_device_alloc(context, 64, &own));
    RANK_CHECK(weft_device_free(NULL, own) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_device_free(context, (uint8_t *)own + 1) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_device_free(context, bytes) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_OK(weft_device_free(context, NULL));
    RANK_CHECK(weft_mem_copy(NULL, own, bytes, 1) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_mem_copy(context, NULL, bytes, 1) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_mem_copy(context, own, NULL, 1) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_mem_copy(context, bytes + 3, bytes, 4) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_mem_copy(context, bytes, bytes + 3, 4) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_OK(weft_mem_copy(context, NULL, NULL, 0));
    RANK_CHECK(weft_mem_fill(NULL, own, 0, 1) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_mem_fill(context, NULL, 0, 1) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_OK(weft_mem_fill(context, NULL, 0, 0));
    RANK_CHECK(weft_mem_query(NULL, own, &info) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_mem_query(context, NULL, &info) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(weft_mem_query(context, own, NULL) == WEFT_ERR_INVALID_ARGUMENT);
    info.struct_size = 0;
    RANK_CHECK(weft_mem_query(context, own, &info) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_OK(weft_device_free(context, own));
    RANK_CHECK(weft_device_free(context, own) == WEFT_ERR_INVALID_ARGUMENT); /* twice */
}

static void test_memory_wrong_arguments(void **state)
{
    (void)state;
    on_both(1, run_hostile, NULL);
}

/* The driver's name of memory, and addresses for it again. */
static void run_handles(rank_world_t *world)
{
    weft_mem_handle_t handle = WEFT_MEM_HANDLE_INIT;
    weft_context_t *context = world->context;
    const weft_device_t *device = weft_context_device(context);
    uint8_t *memory = NULL, bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8}, back[8] = {0};
    void *wrapped = NULL;
    RANK_OK(weft_device_alloc(context, 5000, (void **)&memory));
    RANK_OK(weft_mem_get_handle(context, memory + 100, &handle));
    RANK_CHECK(handle.dlpack_type == (device != NULL ? device->ops->dlpack_type : 1));
    RANK_CHECK(device != NULL || (handle.handle == memory + 100 && handle.offset_bytes == 0));
    RANK_OK(weft_mem_wrap(context, handle.handle, handle.offset_bytes + 8, &wrapped));
    RANK_OK(weft_mem_copy(context, (uint8_t *)wrapped + handle.offset_bytes, bytes, 8));
    RANK_OK(weft_mem_copy(context, back, memory + 100, 8));
    RANK_CHECK(memcmp(back, bytes, 8) == 0);
    RANK_CHECK(weft_mem_wrap(context, handle.handle, 0, &wrapped) == WEFT_ERR_INVALID_ARGUMENT);
    RANK_CHECK(wrapped == NULL);
    RANK_OK(weft_mem_unwrap(context, memory + 100 - handle.offset_bytes));
    RANK_OK(weft_mem_unwrap(context, NULL));
    RANK_OK(weft_device_free(context, memory));
}

static void test_memory_handles(void **state)
{
    (void)state;
    on_both(2, run_handles, NULL);
}

/* Left over: the context gives it back, and the card counts what it got. */
static void run_leave(rank_world_t *world)
{
    void *memory = NULL;
    for (size_t i = 1; i < 40; i++) {
        RANK_OK(weft_device_alloc(world->context, i * 100, &memory));
        RANK_CHECK(memory != NULL);
    }
}

/* A second world, which is left while its memory is in use. */
static void run_keep(rank_world_t *world)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *context = NULL;
    uint8_t *kept = NULL, *more = NULL;
    char address[64];
    uint32_t rank = weft_context_rank(world->context),
             size = weft_context_world_size(world->context);
    int32_t pid = (int32_t)getpid(), pids[8];
    RANK_CHECK(size <= 8);
    RANK_OK(weft_context_all_gather(world->context, &pid, sizeof pid, pids));
    snprintf(address, sizeof address, "unix:@weft-keep-%d", (int)pids[0]);
    params.rank = (int32_t)rank;
    params.world_size = (int32_t)size;
    params.address = address;
    RANK_OK(weft_context_create(&params, &context));
    RANK_OK(weft_mem_alloc(context, 50000, (void **)&kept));
    RANK_OK(weft_mem_alloc(context, 5000, (void **)&more));
    fill_pattern(kept, 50000, rank);
    RANK_OK(weft_mem_keep(context));
    RANK_OK(weft_mem_free(context, more));
    if (rank == 0) {
        RANK_OK(weft_context_barrier(world->context)); /* all others have left before */
    }
    weft_context_release(context);
    if (rank != 0) {
        RANK_OK(weft_context_barrier(world->context));
    }
    RANK_CHECK(is_pattern(kept, 50000, rank));
    fill_pattern(kept, 50000, rank + 1);
    RANK_OK(weft_context_barrier(world->context));
    RANK_CHECK(is_pattern(kept, 50000, rank + 1));
    RANK_CHECK(madvise(kept, 49152, MADV_REMOVE) == 0 || size == 1);
    RANK_CHECK(is_value(kept, 49152, 0) || size == 1);
}

static void run_keep_refused(rank_world_t *world)
{
    RANK_CHECK(weft_mem_keep(world->context) == WEFT_ERR_UNSUPPORTED);
    RANK_CHECK(weft_mem_keep(NULL) == WEFT_ERR_INVALID_ARGUMENT);
}

static void test_memory_outlives_the_context(void **state)
{
    (void)state;
    assert_true(support_rank_processes(1, run_keep, NULL));
    assert_true(support_rank_processes(3, run_keep, NULL));
    support_rank_threads(2, run_keep_refused, NULL);
    support_card_threads(2, run_keep_refused, NULL);
}

static void test_memory_goes_with_the_context(void **state)
{
    (void)state;
    on_both(2, run_leave, NULL);
}

/* Random allocations and frees against a list. */
static void run_churn(rank_world_t *world)
{
    enum { LIVE = 64 };
    struct {
        uint8_t *address;
        size_t bytes;
        uint8_t value;
    } live[LIVE] = {{0}};
    uint64_t seed = *(const uint64_t *)world->user + world->rank;
    uint8_t *out = malloc(9000);
    RANK_CHECK(out != NULL);
    for (uint32_t step = 0; step < 400; step++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        uint32_t i = (uint32_t)(seed >> 33) % LIVE;
        if (live[i].address == NULL) {
            live[i].bytes = 1 + (size_t)(seed >> 40) % 9000;
            live[i].value = (uint8_t)(seed >> 20);
            RANK_OK(weft_device_alloc(world->context, live[i].bytes, (void **)&live[i].address));
            RANK_OK(weft_mem_fill(world->context, live[i].address, live[i].value, live[i].bytes));
            continue;
        }
        RANK_OK(weft_mem_copy(world->context, out, live[i].address, live[i].bytes));
        RANK_CHECK(is_value(out, live[i].bytes, live[i].value));
        expect_kind(world, live[i].address + live[i].bytes - 1, WEFT_MEM_KIND_DEVICE,
                    live[i].address, live[i].bytes, support_host_reaches(world->context));
        RANK_OK(weft_device_free(world->context, live[i].address));
        live[i].address = NULL;
    }
    free(out);
}

static void test_memory_churn(void **state)
{
    (void)state;
    uint64_t seed = 20260801;
    printf("seed %llu\n", (unsigned long long)seed);
    on_both(2, run_churn, &seed);
}

/* ---- choosing the device ---- */

static void test_memory_set_device(void **state)
{
    (void)state;
    weft_device_t *first = NULL, *second = NULL;
    weft_context_t *context = NULL;
    weft_stream_t *stream = NULL;
    void *memory = NULL;
    uint32_t word = 77, back = 0;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = 0;
    params.world_size = 1;
    assert_int_equal(support_card_open(&first), WEFT_OK);
    assert_int_equal(support_card_open(&second), WEFT_OK);
    assert_int_equal(weft_context_create(&params, &context), WEFT_OK);
    assert_null(weft_context_device(context));
    weft_device_t broken = {NULL};
    assert_int_equal(weft_context_set_device(context, &broken), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_context_set_device(NULL, first), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(weft_context_set_device(context, first), WEFT_OK);
    assert_int_equal(weft_context_set_device(context, second), WEFT_OK); /* changed its mind */
    assert_ptr_equal(weft_context_device(context), second);
    assert_int_equal(weft_device_alloc(context, 4, &memory), WEFT_OK);
    assert_int_equal(weft_context_set_device(context, first), WEFT_ERR_STATE);
    assert_int_equal(weft_mem_copy(context, memory, &word, 4), WEFT_OK);
    assert_int_equal(weft_mem_copy(context, &back, memory, 4), WEFT_OK);
    assert_int_equal(back, 77);
    assert_int_equal(weft_device_free(context, memory), WEFT_OK);
    assert_int_equal(weft_context_set_device(context, NULL), WEFT_OK); /* nothing is left on it */
    assert_int_equal(weft_context_set_device(context, first), WEFT_OK);
    assert_int_equal(weft_stream_create(context, NULL, &stream), WEFT_OK);
    assert_int_equal(weft_context_set_device(context, NULL), WEFT_ERR_STATE);
    weft_stream_destroy(stream);
    assert_int_equal(weft_mem_alloc(context, 100, &memory), WEFT_OK);
    assert_int_equal(weft_context_set_device(context, NULL), WEFT_ERR_STATE);
    assert_int_equal(weft_mem_free(context, memory), WEFT_OK);
    weft_context_release(context);
    assert_int_equal(support_card_close(first), 0);
    assert_int_equal(support_card_close(second), 0);
}

/* ---- what fails ---- */

/* Every allocation of the library, and every one of the card, fails once. */
static weft_status_t use_once(weft_context_t *context)
{
    void *memory = NULL;
    uint8_t bytes[100] = {1};
    weft_stream_t *stream = NULL;
    weft_status_t status = weft_device_alloc(context, 100, &memory);
    if (status == WEFT_OK) {
        status = weft_mem_copy(context, memory, bytes, 100);
        status = status == WEFT_OK ? weft_mem_fill(context, memory, 3, 100) : status;
        status = status == WEFT_OK ? weft_mem_copy(context, bytes, memory, 100) : status;
        assert_true(status != WEFT_OK || bytes[99] == 3);
    } else {
        assert_null(memory);
    }
    if (status == WEFT_OK) {
        status = weft_stream_create(context, NULL, &stream);
        status = status == WEFT_OK ? weft_stream_fill(stream, memory, 4, 100) : status;
        status = status == WEFT_OK ? weft_stream_synchronize(stream) : status;
    }
    weft_stream_destroy(stream);
    assert_int_equal(weft_device_free(context, memory), WEFT_OK);
    return status;
}

static void sweep(weft_device_t *card)
{
    for (uint64_t at = 0;; at++) {
        test_memory_t memory;
        weft_context_t *context = NULL;
        weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
        params.rank = 0;
        params.world_size = 1;
        params.allocator = &memory.allocator;
        params.device = card;
        test_memory_init(&memory);
        assert_int_equal(weft_context_create(&params, &context), WEFT_OK);
        test_memory_fail(&memory, UINT64_MAX, at);
        weft_status_t status = use_once(context);
        test_memory_fail(&memory, UINT64_MAX, UINT64_MAX);
        if (status < 0) {
            assert_int_equal(status, WEFT_ERR_NO_MEMORY);
            assert_int_equal(use_once(context), WEFT_OK); /* nothing is broken by it */
        }
        weft_context_release(context);
        if (status == WEFT_OK) {
            assert_true(at > 0);
            return;
        }
    }
}

/* A queue for copies does not outlive the choice of its device. */
static void test_memory_leaves_a_device(void **state)
{
    (void)state;
    weft_device_t *card = NULL;
    weft_context_t *context = NULL;
    void *memory = NULL;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = 0;
    params.world_size = 1;
    assert_int_equal(support_card_open(&card), WEFT_OK);
    assert_int_equal(weft_context_create(&params, &context), WEFT_OK);
    assert_int_equal(weft_context_set_device(context, card), WEFT_OK);
    assert_int_equal(weft_device_alloc(context, 4, &memory), WEFT_OK);
    assert_int_equal(weft_mem_fill(context, memory, 1, 4), WEFT_OK);
    assert_int_equal(weft_device_free(context, memory), WEFT_OK);
    assert_int_equal(weft_context_set_device(context, NULL), WEFT_OK);
    assert_int_equal(support_card_close(card), 0); /* nothing is left on it */
    weft_context_release(context);
}

static void test_memory_failing_allocations(void **state)
{
    (void)state;
    weft_device_t *card = NULL;
    sweep(NULL);
    assert_int_equal(support_card_open(&card), WEFT_OK);
    sweep(card);
    assert_int_equal(support_card_close(card), 0);
}

static void test_memory_failing_card(void **state)
{
    (void)state;
    if (!support_card_is_fake()) {
        print_message("skipped: nothing makes allocations of a real device fail\n");
        skip();
    }
    for (int at = 0; at < 40; at++) {
        weft_device_t *card = NULL;
        weft_context_t *context = NULL;
        weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
        params.rank = 0;
        params.world_size = 1;
        assert_int_equal(support_card_open(&card), WEFT_OK);
        params.device = card;
        assert_int_equal(weft_context_create(&params, &context), WEFT_OK);
        fake_card_fail(card, at);
        weft_status_t status = use_once(context);
        fake_card_fail(card, -1);
        assert_int_equal(use_once(context), WEFT_OK);
        weft_context_release(context);
        assert_int_equal(support_card_close(card), 0);
        if (status == WEFT_OK) {
            assert_true(at > 5);
            return;
        }
    }
    fail_msg("the card never succeeded");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_copies_in_and_out),
        cmocka_unit_test(test_memory_streams),
        cmocka_unit_test(test_memory_tells_what_an_address_is),
        cmocka_unit_test(test_memory_register_beside_calls),
        cmocka_unit_test(test_memory_given_back_by_threads),
        cmocka_unit_test(test_memory_wrong_arguments),
        cmocka_unit_test(test_memory_handles),
        cmocka_unit_test(test_memory_goes_with_the_context),
        cmocka_unit_test(test_memory_outlives_the_context),
        cmocka_unit_test(test_memory_churn),
        cmocka_unit_test(test_memory_set_device),
        cmocka_unit_test(test_memory_leaves_a_device),
        cmocka_unit_test(test_memory_failing_allocations),
        cmocka_unit_test(test_memory_failing_card),
    };
    support_card_or_skip();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
