/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every slot of the device table, called directly: on the fake card, and on the device that
 * WEFT_TEST_DEVICE names. Reductions are compared with those of the CPU, bit for bit.
 */
#include "support_cards.h"
#include "tests/support/support.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/reduce/reduce.h"
#include "runtime/base/sync.h"

#define QUEUES 2
#define MOST_SOURCES 17u
#define ELEMS 37u

typedef struct fixture {
    weft_device_t *card;
    const weft_device_ops_t *ops;
    weft_queue_t *queues[QUEUES];
    uint8_t *memory;    /* of the card */
    uint32_t *counters; /* of the card, a line apart */
} fixture_t;
#define MEMORY_BYTES ((size_t)1 << 16)
#define LINE 16 /* words */

static int setup(void **state)
{
    fixture_t *fixture = calloc(1, sizeof *fixture);
    assert_non_null(fixture);
    assert_int_equal(support_card_open(&fixture->card), WEFT_OK);
    fixture->ops = fixture->card->ops;
    void *address = NULL;
    assert_int_equal(fixture->ops->mem_alloc(fixture->card, MEMORY_BYTES, &address), WEFT_OK);
    fixture->memory = address;
    assert_int_equal(fixture->ops->mem_alloc(fixture->card, 4096, &address), WEFT_OK);
    fixture->counters = address;
    for (int i = 0; i < QUEUES; i++) {
        assert_int_equal(fixture->ops->queue_create(fixture->card, &fixture->queues[i]), WEFT_OK);
    }
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    fixture_t *fixture = *state;
    for (int i = 0; i < QUEUES; i++) {
        fixture->ops->queue_destroy(fixture->queues[i]);
    }
    fixture->ops->mem_free(fixture->card, fixture->counters);
    fixture->ops->mem_free(fixture->card, fixture->memory);
    int left = support_card_close(fixture->card);
    free(fixture);
    return left;
}

static weft_status_t finish(const fixture_t *fixture, int queue)
{
    weft_status_t status = fixture->ops->flush(fixture->queues[queue]);
    while (status == WEFT_OK) {
        status = fixture->ops->query(fixture->queues[queue]);
        if (status != WEFT_IN_PROGRESS) {
            return status;
        }
        status = WEFT_OK;
        sched_yield();
    }
    return status;
}

static void get(const fixture_t *fixture, void *to, const void *from, size_t bytes)
{
    assert_int_equal(fixture->ops->copy(fixture->queues[0], to, from, bytes), WEFT_OK);
    assert_int_equal(finish(fixture, 0), WEFT_OK);
}

static void put(const fixture_t *fixture, void *to, const void *from, size_t bytes)
{
    get(fixture, to, from, bytes);
}

static void test_table_is_complete(void **state)
{
    const fixture_t *fixture = *state;
    const weft_device_ops_t *ops = fixture->ops;
    assert_int_equal(ops->abi_version, WEFT_DEVICE_ABI_VERSION);
    assert_non_null(ops->name);
    assert_true(ops->mem_alloc && ops->mem_free && ops->mem_export && ops->mem_import &&
                ops->mem_unimport && ops->queue_create && ops->queue_destroy && ops->copy &&
                ops->signal && ops->wait && ops->reduce && ops->launch && ops->flush &&
                ops->query && ops->cancel && ops->mem_handle && ops->mem_wrap && ops->mem_unwrap &&
                ops->profile && ops->profile_take);
    assert_true(ops->kernels != NULL || ops->kernel_count == 0);
}

static void test_table_allocates(void **state)
{
    static const size_t sizes[] = {1, 64, 65, 128, 129, 4096, 4097, 1000001};
    const fixture_t *fixture = *state;
    const size_t count = sizeof sizes / sizeof *sizes;
    uint8_t *bytes = malloc(1000001);
    for (int round = 0; round < 2; round++) { /* what was freed is zero again */
        void *blocks[8] = {NULL};
        for (size_t i = 0; i < count; i++) {
            assert_int_equal(fixture->ops->mem_alloc(fixture->card, sizes[i], &blocks[i]), WEFT_OK);
            assert_true(blocks[i] != NULL && (uintptr_t)blocks[i] % 64 == 0);
            memset(bytes, 1, sizes[i]);
            get(fixture, bytes, blocks[i], sizes[i]);
            for (size_t b = 0; b < sizes[i]; b++) {
                assert_int_equal(bytes[b], 0);
            }
            memset(bytes, 0xee, sizes[i]);
            put(fixture, blocks[i], bytes, sizes[i]);
        }
        for (size_t i = 0; i < count; i++) {
            fixture->ops->mem_free(fixture->card, blocks[i]);
        }
    }
    void *none = NULL;
    assert_int_equal(fixture->ops->mem_alloc(fixture->card, SIZE_MAX - 5, &none),
                     WEFT_ERR_NO_MEMORY);
    assert_null(none);
    fixture->ops->mem_free(fixture->card, NULL);
    free(bytes);
}

/* Calls on memory side by side become one, also where an allocation ends between them. */
static void test_table_copies_over_neighbours(void **state)
{
    enum { BLOCKS = 8, BYTES = 4096 };
    const fixture_t *fixture = *state;
    uint8_t bytes[2 * BYTES] = {0};
    void *blocks[BLOCKS] = {NULL};
    for (int i = 0; i < BLOCKS; i++) {
        assert_int_equal(fixture->ops->mem_alloc(fixture->card, BYTES, &blocks[i]), WEFT_OK);
    }
    for (int i = 0; i < BLOCKS; i++) {
        for (int j = 0; j < BLOCKS; j++) {
            if ((uint8_t *)blocks[i] + BYTES == blocks[j]) {
                put(fixture, blocks[i], bytes, sizeof bytes);
            }
        }
    }
    for (int i = 0; i < BLOCKS; i++) {
        fixture->ops->mem_free(fixture->card, blocks[i]);
    }
}

static void test_table_imports(void **state)
{
    const fixture_t *fixture = *state;
    uint8_t handle[64];
    uint32_t word = 0x12345678, back = 0;
    void *other = NULL;
    if (!(fixture->ops->caps & WEFT_DEVICE_PEER_DIRECT)) {
        print_message("skipped: memory of the device cannot be imported\n");
        skip();
    }
    assert_int_equal(fixture->ops->mem_export(fixture->card, fixture->memory, handle), WEFT_OK);
    assert_int_equal(fixture->ops->mem_import(fixture->card, handle, &other), WEFT_OK);
    put(fixture, (uint8_t *)other + 400, &word, sizeof word);
    get(fixture, &back, fixture->memory + 400, sizeof back);
    assert_int_equal(back, word);
    fixture->ops->mem_unimport(fixture->card, other);
    get(fixture, &back, fixture->memory + 400, sizeof back);
    assert_int_equal(back, word);
}

/* Memory by the driver's name of it has the addresses that it has already. */
static void test_table_wraps(void **state)
{
    const fixture_t *fixture = *state;
    const weft_device_ops_t *ops = fixture->ops;
    uint32_t word = 0x12345678, back = 0;
    void *handle = NULL, *wrapped = NULL;
    uint64_t offset = 0;
    assert_true(ops->dlpack_type > 0);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(ops->mem_handle(fixture->card, fixture->memory + 400, &handle, &offset),
                         WEFT_OK);
        assert_int_equal(ops->mem_wrap(fixture->card, handle, offset + sizeof word, &wrapped),
                         WEFT_OK);
        assert_ptr_equal((uint8_t *)wrapped + offset, fixture->memory + 400);
        word += (uint32_t)round;
        put(fixture, (uint8_t *)wrapped + offset, &word, sizeof word);
        ops->mem_unwrap(fixture->card, wrapped);
        get(fixture, &back, fixture->memory + 400, sizeof back); /* the memory stays */
        assert_int_equal(back, word);
    }
    assert_int_equal(ops->mem_handle(fixture->card, &word, &handle, &offset),
                     WEFT_ERR_INVALID_ARGUMENT);
}

/* From anywhere to anywhere, at odd places and sizes. */
static void test_table_copies(void **state)
{
    const fixture_t *fixture = *state;
    uint8_t in[300], out[300];
    for (size_t bytes = 1; bytes < 300; bytes = bytes * 3 + 1) {
        for (size_t i = 0; i < bytes; i++) {
            in[i] = (uint8_t)(i * 7 + bytes);
        }
        memset(out, 0, sizeof out);
        put(fixture, fixture->memory + 3, in, bytes);
        put(fixture, fixture->memory + 1001, fixture->memory + 3, bytes);
        get(fixture, out, fixture->memory + 1001, bytes);
        assert_memory_equal(in, out, bytes);
        memset(out, 0, sizeof out);
        put(fixture, out, in, bytes); /* within the host, in the order of the queue */
        assert_memory_equal(in, out, bytes);
    }
    assert_int_equal(fixture->ops->copy(fixture->queues[0], out, fixture->memory, 0), WEFT_OK);
    assert_int_equal(finish(fixture, 0), WEFT_OK);
}

/* A queue waits for the other one; it is in progress until then. */
static void test_table_waits(void **state)
{
    static const uint32_t starts[] = {0, 5, 0xfffffff0u}; /* the last one wraps */
    const fixture_t *fixture = *state;
    const weft_device_ops_t *ops = fixture->ops;
    for (size_t s = 0; s < 3; s++) {
        uint32_t *counter = fixture->counters + LINE * s;
        put(fixture, counter, &starts[s], sizeof *counter);
        for (uint32_t i = 1; i < 40; i++) {
            uint32_t word = i, back = 0;
            assert_int_equal(ops->wait(fixture->queues[1], counter, starts[s] + i), WEFT_OK);
            assert_int_equal(ops->copy(fixture->queues[1], &back, fixture->memory, sizeof back),
                             WEFT_OK);
            assert_int_equal(ops->flush(fixture->queues[1]), WEFT_OK);
            assert_int_equal(ops->query(fixture->queues[1]), WEFT_IN_PROGRESS);
            assert_int_equal(ops->copy(fixture->queues[0], fixture->memory, &word, sizeof word),
                             WEFT_OK);
            assert_int_equal(ops->signal(fixture->queues[0], counter, starts[s] + i), WEFT_OK);
            assert_int_equal(finish(fixture, 0), WEFT_OK);
            assert_int_equal(finish(fixture, 1), WEFT_OK);
            assert_int_equal(back, word);
        }
        /* Reached already, and by the queue itself. */
        assert_int_equal(ops->wait(fixture->queues[0], counter, starts[s] + 7), WEFT_OK);
        assert_int_equal(ops->signal(fixture->queues[0], counter, starts[s] + 50), WEFT_OK);
        assert_int_equal(ops->wait(fixture->queues[0], counter, starts[s] + 50), WEFT_OK);
        assert_int_equal(finish(fixture, 0), WEFT_OK);
    }
}

/* The counter of a new allocation is another one than that which was there. */
static void test_table_counters_are_new(void **state)
{
    const fixture_t *fixture = *state;
    const weft_device_ops_t *ops = fixture->ops;
    for (int i = 0; i < 5; i++) {
        void *counter = NULL;
        assert_int_equal(ops->mem_alloc(fixture->card, 64, &counter), WEFT_OK);
        assert_int_equal(ops->wait(fixture->queues[0], counter, 9), WEFT_OK);
        assert_int_equal(ops->flush(fixture->queues[0]), WEFT_OK);
        assert_int_equal(ops->query(fixture->queues[0]), WEFT_IN_PROGRESS);
        assert_int_equal(ops->signal(fixture->queues[1], counter, 9), WEFT_OK);
        assert_int_equal(finish(fixture, 1), WEFT_OK);
        assert_int_equal(finish(fixture, 0), WEFT_OK);
        assert_int_equal(ops->signal(fixture->queues[0], counter, 10), WEFT_OK);
        assert_int_equal(finish(fixture, 0), WEFT_OK);
        ops->mem_free(fixture->card, counter);
    }
}

/* Work after a wait that never ends is not executed, and the queue ends. */
static void test_table_cancels(void **state)
{
    fixture_t *fixture = *state;
    const weft_device_ops_t *ops = fixture->ops;
    for (int round = 0; round < 20; round++) {
        uint32_t word = 7, back = 0;
        put(fixture, fixture->memory, &(uint32_t){3}, sizeof word);
        assert_int_equal(ops->wait(fixture->queues[1], fixture->counters, 1000), WEFT_OK);
        for (int i = 0; i < 5; i++) {
            assert_int_equal(ops->copy(fixture->queues[1], fixture->memory, &word, sizeof word),
                             WEFT_OK);
        }
        assert_int_equal(ops->flush(fixture->queues[1]), WEFT_OK);
        assert_int_equal(ops->query(fixture->queues[1]), WEFT_IN_PROGRESS);
        ops->cancel(fixture->queues[1]);
        assert_int_equal(finish(fixture, 1), WEFT_ERR_ABORTED);
        assert_non_null(strstr(weft_last_error(), "cancelled"));
        assert_int_equal(ops->query(fixture->queues[1]), WEFT_ERR_ABORTED); /* for good */
        get(fixture, &back, fixture->memory, sizeof back);
        assert_int_equal(back, 3);
        ops->queue_destroy(fixture->queues[1]);
        assert_int_equal(ops->queue_create(fixture->card, &fixture->queues[1]), WEFT_OK);
    }
}

static weft_status_t fail_now(const weft_kernel_call_t *call)
{
    (void)call;
    return WEFT_ERR_INTERNAL;
}

/* The kernel of a device's own that reads labels. */
static const weft_kernel_t *find_loss(const weft_device_ops_t *ops)
{
    for (size_t i = 0; i < ops->kernel_count; i++) {
        if (strcmp(ops->kernels[i].op, "SoftmaxCrossEntropyLoss") == 0) {
            return &ops->kernels[i];
        }
    }
    return NULL;
}

/* A label that is no class: known only once the kernel has run. */
static void check_late_label(const fixture_t *fixture)
{
    const weft_device_ops_t *ops = fixture->ops;
    const weft_kernel_t *kernel = find_loss(ops);
    const float scores[6] = {1, 2, 3, 4, 5, 6};
    void *state = NULL;
    size_t scratch_bytes = 0;
    assert_non_null(kernel);
    weft_tensor_desc_t inputs[2] = {{.dtype = WEFT_DTYPE_F32, .rank = 2, .dims = {2, 3}},
                                    {.dtype = WEFT_DTYPE_I64, .rank = 1, .dims = {2}}};
    weft_tensor_desc_t outputs[1] = {{.dtype = WEFT_DTYPE_F32, .rank = 0}};
    const weft_node_desc_t node = {.domain = "",
                                   .op = kernel->op,
                                   .version = 13,
                                   .name = "loss",
                                   .input_count = 2,
                                   .inputs = inputs,
                                   .output_count = 1,
                                   .outputs = outputs};
    const weft_kernel_env_t env = WEFT_KERNEL_ENV_INIT;
    assert_int_equal(kernel->prepare(&node, &env, &state, &scratch_bytes), WEFT_OK);
    assert_true(scratch_bytes <= 1024);
    put(fixture, fixture->memory, scores, sizeof scores);
    const void *in[2] = {fixture->memory, fixture->memory + 64};
    void *out[1] = {fixture->memory + 128};
    const weft_kernel_call_t call = {state, in, out, fixture->memory + 1024};
    for (int64_t label = 2; label < 4; label++) {
        const int64_t labels[2] = {0, label};
        put(fixture, fixture->memory + 64, labels, sizeof labels);
        assert_int_equal(ops->launch(fixture->queues[1], kernel, &call, 2, 1), WEFT_OK);
        assert_int_equal(finish(fixture, 1), label < 3 ? WEFT_OK : WEFT_ERR_INVALID_ARGUMENT);
    }
    assert_non_null(strstr(weft_last_error(), "position 1"));
    kernel->destroy(state);
}

/* A kernel fails while it runs: the queue tells of it later, and executes nothing after it. */
static void test_table_tells_of_a_failure(void **state)
{
    static const weft_kernel_t kernel = {
        .abi_version = WEFT_KERNEL_ABI_VERSION, .domain = "", .op = "Fails", .run = fail_now};
    const fixture_t *fixture = *state;
    const weft_kernel_call_t call = {0};
    uint32_t word = 7, back = 0;
    if (fixture->ops->kernels != NULL) {
        check_late_label(fixture);
        return;
    }
    assert_int_equal(fixture->ops->launch(fixture->queues[1], &kernel, &call, 0, 0), WEFT_OK);
    assert_int_equal(fixture->ops->copy(fixture->queues[1], fixture->memory, &word, sizeof word),
                     WEFT_OK);
    assert_int_equal(finish(fixture, 1), WEFT_ERR_INTERNAL);
    get(fixture, &back, fixture->memory, sizeof back);
    assert_int_equal(back, 0);
}

/* ---- reductions ---- */

/* All bits, small numbers for products; floats also infinite, NaN and -0. */
static void fill(uint8_t *data, weft_dtype_t dtype, uint32_t source)
{
    size_t bytes = weft_dtype_size_bytes(dtype);
    for (uint32_t i = 0; i < ELEMS; i++) {
        uint64_t bits = ((uint64_t)i * 2654435761u + source * 40503u) * 0x9e3779b97f4a7c15ull;
        bits ^= bits >> 29;
        float f32 = (float)(int32_t)(bits >> 40) / 65536.0f;
        double f64 = (double)f32 * 1.000000001;
        f32 = i == 3 && source == 1 ? __builtin_inff() : i == 5 && source == 2 ? -0.0f : f32;
        f32 = i == 7 && source == 0 ? __builtin_nanf("") : i == 5 && source != 2 ? 0.0f : f32;
        if (dtype == WEFT_DTYPE_F32) {
            memcpy(data + i * bytes, &f32, bytes);
        } else if (dtype == WEFT_DTYPE_F64) {
            memcpy(data + i * bytes, &f64, bytes);
        } else {
            memcpy(data + i * bytes, &bits, bytes);
        }
    }
}

static void check_reduce(const fixture_t *fixture, weft_dtype_t dtype, weft_reduction_t reduction,
                         uint32_t count)
{
    static uint8_t host[MOST_SOURCES][ELEMS * 8];
    uint8_t expected[ELEMS * 8], got[ELEMS * 8];
    size_t bytes = ELEMS * weft_dtype_size_bytes(dtype);
    const void *here[MOST_SOURCES], *there[MOST_SOURCES];
    for (uint32_t s = 0; s < count; s++) {
        fill(host[s], dtype, s);
        here[s] = host[s];
        there[s] = fixture->memory + s * 512;
        put(fixture, fixture->memory + s * 512, host[s], bytes);
    }
    void *to[2] = {fixture->memory + 32768, fixture->memory}; /* the second one is a source */
    weft_reduce_t reduce = {.sources = here,
                            .source_count = count,
                            .destinations = (void *[]){expected},
                            .destination_count = 1,
                            .elem_count = ELEMS,
                            .dtype = dtype,
                            .reduction = reduction};
    assert_int_equal(wefti_reduce(&reduce, WEFT_ISA_PORTABLE), WEFT_OK);
    reduce.sources = there;
    reduce.destinations = to;
    reduce.destination_count = 2;
    assert_int_equal(fixture->ops->reduce(fixture->queues[0], &reduce), WEFT_OK);
    for (uint32_t d = 0; d < 2; d++) {
        get(fixture, got, to[d], bytes);
        for (size_t i = 0; i < bytes; i++) {
            if (got[i] != expected[i]) {
                fail_msg("%s %s of %u sources: byte %zu is %02x, expected %02x",
                         weft_reduction_name(reduction), weft_dtype_name(dtype), count, i, got[i],
                         expected[i]);
            }
        }
    }
}

static void test_table_reduces(void **state)
{
    static const uint32_t counts[] = {1, 2, 3, 7, 8, 9, MOST_SOURCES};
    const fixture_t *fixture = *state;
    for (int dtype = WEFT_DTYPE_F64; dtype <= WEFT_DTYPE_U8; dtype++) {
        for (int reduction = WEFT_REDUCTION_SUM; reduction <= WEFT_REDUCTION_MAX; reduction++) {
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                check_reduce(fixture, (weft_dtype_t)dtype, (weft_reduction_t)reduction, counts[c]);
            }
        }
    }
}

/* The times of commands in order, with labels; waits have none. Few at a time are taken. */
static void test_table_profiles(void **state)
{
    static const char *const labels[] = {"first", "second", "third"};
    const fixture_t *fixture = *state;
    const weft_device_ops_t *ops = fixture->ops;
    weft_queue_t *queue = NULL;
    weft_command_t commands[2], all[64];
    size_t count = 0, total = 0;
    uint8_t bytes[1000] = {0};
    assert_int_equal(ops->queue_create(fixture->card, &queue), WEFT_OK);
    uint64_t before_ns = wefti_now_ns();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ops->profile(queue, labels[i]), WEFT_OK);
        assert_int_equal(ops->copy(queue, fixture->memory, bytes, sizeof bytes), WEFT_OK);
        assert_int_equal(ops->copy(queue, fixture->memory + 4096, fixture->memory, sizeof bytes),
                         WEFT_OK);
        assert_int_equal(ops->signal(queue, fixture->counters, (uint32_t)i + 1), WEFT_OK);
        assert_int_equal(ops->wait(queue, fixture->counters, (uint32_t)i + 1), WEFT_OK);
    }
    assert_int_equal(ops->flush(queue), WEFT_OK);
    while (ops->query(queue) == WEFT_IN_PROGRESS) {
        sched_yield();
    }
    uint64_t after_ns = wefti_now_ns();
    do {
        assert_int_equal(ops->profile_take(queue, commands, 2, &count), WEFT_OK);
        assert_true(count <= 2 && total + count <= 64);
        for (size_t i = 0; i < count; i++) {
            all[total++] = commands[i];
        }
    } while (count > 0);
    assert_int_equal(total, 9);
    for (size_t i = 0; i < total; i++) {
        assert_string_equal(all[i].label, labels[i / 3]);
        assert_true(all[i].name != NULL && all[i].start_ns <= all[i].end_ns);
        assert_true(i == 0 || all[i - 1].end_ns <= all[i].start_ns);
        /* clocks are compared to some microseconds */
        assert_true(all[i].start_ns + 1000000 > before_ns && all[i].end_ns < after_ns + 1000000);
    }
    ops->queue_destroy(queue);
}

static void test_table_refuses(void **state)
{
    const fixture_t *fixture = *state;
    const weft_device_ops_t *ops = fixture->ops;
    uint32_t word = 0;
    const void *here = &word;
    void *there = fixture->memory;
    weft_reduce_t reduce = {.sources = &here,
                            .source_count = 1,
                            .destinations = &there,
                            .destination_count = 1,
                            .elem_count = 1,
                            .dtype = WEFT_DTYPE_F32};
    assert_int_equal(ops->signal(fixture->queues[0], &word, 1), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(ops->wait(fixture->queues[0], &word, 1), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(ops->reduce(fixture->queues[0], &reduce), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(finish(fixture, 0), WEFT_OK); /* the queue is as before */
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_table_is_complete),
        TEST(test_table_allocates),
        TEST(test_table_copies_over_neighbours),
        TEST(test_table_imports),
        TEST(test_table_copies),
        TEST(test_table_wraps),
        TEST(test_table_waits),
        TEST(test_table_counters_are_new),
        TEST(test_table_cancels),
        TEST(test_table_tells_of_a_failure),
        TEST(test_table_reduces),
        TEST(test_table_refuses),
        TEST(test_table_profiles),
    };
    support_card_or_skip();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
