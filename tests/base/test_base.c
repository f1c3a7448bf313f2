/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, types, digests, logging, threads and messages of runtime/base. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/memory.h"
#include "runtime/base/sync.h"
#include "tests/support/support.h"

static void test_arena_aligns_and_zeroes(void **in)
{
    (void)in;
    wefti_arena_t arena;
    wefti_arena_init(&arena, NULL, 0);
    for (size_t bytes = 0; bytes < 300; bytes++) {
        uint8_t *ptr = wefti_arena_alloc(&arena, bytes);
        assert_int_equal((uintptr_t)ptr % 16, 0);
        for (size_t i = 0; i < bytes; i++) {
            assert_int_equal(ptr[i], 0);
        }
        memset(ptr, 0xff, bytes);
    }
    uint8_t *large = wefti_arena_alloc(&arena, (size_t)3 << 20);
    assert_non_null(large);
    assert_int_equal(large[((size_t)3 << 20) - 1], 0);
    assert_string_equal(wefti_arena_printf(&arena, "%s %d", "bucket", 7), "bucket 7");
    assert_string_equal(wefti_arena_strdup(&arena, "text"), "text");
    wefti_arena_deinit(&arena);
    assert_int_equal(arena.used_bytes, 0);
}

static void test_arena_keeps_its_budget(void **in)
{
    (void)in;
    wefti_arena_t arena;
    wefti_arena_init(&arena, NULL, 1024);
    assert_non_null(wefti_arena_alloc(&arena, 1000));
    assert_null(wefti_arena_alloc(&arena, 17));
    assert_non_null(strstr(weft_last_error(), "limit of 1024 bytes"));
    assert_non_null(wefti_arena_alloc(&arena, 16)); /* still usable */
    assert_null(wefti_arena_alloc(&arena, SIZE_MAX));
    assert_null(wefti_arena_array(&arena, SIZE_MAX / 2, 4));
    wefti_arena_deinit(&arena);
}

static void test_memory_fails_cleanly(void **in)
{
    (void)in;
    test_memory_t memory;
    const weft_allocator_t *allocator = &memory.allocator;
    test_memory_init(&memory);
    for (int allowed = 0; allowed < 6; allowed++) {
        wefti_arena_t arena;
        uint32_t *array = NULL;
        size_t capacity = 0;
        int failures = 0;
        test_memory_fail(&memory, UINT64_MAX, (uint64_t)allowed);
        wefti_arena_init(&arena, allocator, 0);
        failures += wefti_arena_alloc(&arena, 5000) == NULL;
        failures += wefti_arena_alloc(&arena, 9000) == NULL;
        failures += wefti_array_reserve(allocator, &array, &capacity, 3, sizeof *array) != WEFT_OK;
        failures +=
            wefti_array_reserve(allocator, &array, &capacity, 100, sizeof *array) != WEFT_OK;
        assert_int_equal(failures > 0, allowed < 4);
        for (size_t i = 0; i < capacity; i++) {
            assert_int_equal(array[i], 0);
        }
        wefti_free(allocator, array);
        wefti_arena_deinit(&arena);
        assert_int_equal(memory.live_blocks, 0);
    }
}

static void test_array_refuses_overflow(void **in)
{
    (void)in;
    uint64_t *array = NULL;
    size_t capacity = 0;
    assert_int_equal(wefti_array_reserve(NULL, &array, &capacity, SIZE_MAX / 4, sizeof *array),
                     WEFT_ERR_NO_MEMORY);
    assert_null(array);
    assert_int_equal(wefti_array_reserve(NULL, &array, &capacity, 1, sizeof *array), WEFT_OK);
    array[0] = 7;
    assert_int_equal(wefti_array_reserve(NULL, &array, &capacity, 1000, sizeof *array), WEFT_OK);
    assert_int_equal(array[0], 7);
    assert_int_equal(array[999], 0);
    wefti_free(NULL, array);
}

static void test_types_count_and_name(void **in)
{
    (void)in;
    weft_tensor_desc_t desc = {.dtype = WEFT_DTYPE_F32, .rank = 3, .dims = {2, 3, 4}};
    assert_int_equal(weft_tensor_elem_count(&desc), 24);
    desc.dims[1] = -1;
    assert_int_equal(weft_tensor_elem_count(&desc), -1);
    desc.dims[1] = INT64_MAX;
    assert_int_equal(weft_tensor_elem_count(&desc), -1);
    desc.dims[2] = 0; /* empty, however large the rest is */
    assert_int_equal(weft_tensor_elem_count(&desc), 0);
    desc.rank = 0;
    assert_int_equal(weft_tensor_elem_count(&desc), 1);
    for (int i = 1; i <= 13; i++) {
        const char *name = weft_dtype_name((weft_dtype_t)i);
        assert_int_equal(weft_dtype_from_name(name), i);
        assert_true(weft_dtype_size_bytes((weft_dtype_t)i) > 0);
    }
    assert_int_equal(weft_dtype_size_bytes((weft_dtype_t)14), 0);
    assert_int_equal(weft_dtype_from_name("none"), WEFT_DTYPE_NONE);
    assert_string_equal(weft_reduction_name(WEFT_REDUCTION_AVG), "avg");
    assert_string_equal(weft_reduction_name((weft_reduction_t)9), "unknown");
}

static void test_node_attrs_have_defaults(void **in)
{
    (void)in;
    const weft_attr_t attrs[] = {{.name = "axis", .type = WEFT_ATTR_TYPE_INT, .i = 3},
                                 {.name = "alpha", .type = WEFT_ATTR_TYPE_FLOAT, .f = 0.5f},
                                 {.name = "mode", .type = WEFT_ATTR_TYPE_STRING, .s = "same"}};
    const weft_node_desc_t node = {.attr_count = 3, .attrs = attrs};
    assert_int_equal(weft_node_attr_int(&node, "axis", 1), 3);
    assert_int_equal(weft_node_attr_int(&node, "alpha", 1), 1); /* of another type */
    assert_int_equal(weft_node_attr_int(&node, "none", 9), 9);
    assert_float_equal(weft_node_attr_float(&node, "alpha", 1.0f), 0.5f, 0.0f);
    assert_string_equal(weft_node_attr_string(&node, "mode", "x"), "same");
    assert_string_equal(weft_node_attr_string(&node, "axis", "x"), "x");
}

/* FIPS 180-2, appendix B. */
static void test_digest_known_vectors(void **in)
{
    (void)in;
    static const char *const vectors[][2] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        wefti_digest_t whole, pieces;
        wefti_hasher_t *hasher;
        char hex[65];
        size_t length = strlen(vectors[i][0]);
        assert_int_equal(wefti_digest_of(vectors[i][0], length, &whole), WEFT_OK);
        assert_string_equal(wefti_digest_hex(&whole, hex), vectors[i][1]);
        assert_int_equal(wefti_hasher_create(&hasher), WEFT_OK);
        for (size_t k = 0; k < length; k++) {
            wefti_hasher_add(hasher, vectors[i][0] + k, 1);
        }
        wefti_hasher_finish(hasher, &pieces);
        wefti_hasher_destroy(hasher);
        assert_memory_equal(&pieces, &whole, sizeof whole);
    }
    wefti_hasher_destroy(NULL);
}

static void collect(void *user, weft_log_level_t level, const char *line)
{
    snprintf(user, 64, "%d %s", (int)level, line);
}

static void test_log_drops_what_is_too_fine(void **in)
{
    (void)in;
    char line[64] = "";
    wefti_log_t log = {collect, line, WEFT_LOG_LEVEL_INFO};
    wefti_log(&log, WEFT_LOG_LEVEL_DEBUG, "rank %u", 1u);
    assert_string_equal(line, "");
    wefti_log(&log, WEFT_LOG_LEVEL_WARN, "rank %u peer %u", 1u, 2u);
    assert_string_equal(line, "1 rank 1 peer 2");
    wefti_log(NULL, WEFT_LOG_LEVEL_ERROR, "nobody listens");
}

static void test_error_message_is_prefixed_once(void **in)
{
    (void)in;
    wefti_error(WEFT_ERR_FORMAT, "dimension %d", 3);
    assert_int_equal(wefti_error_prefix(WEFT_ERR_FORMAT, "node %s", "conv1"), WEFT_ERR_FORMAT);
    assert_string_equal(weft_last_error(), "node conv1: dimension 3");
    wefti_error_errno(WEFT_ERR_SYSTEM, 2, "open %s", "x");
    assert_string_equal(weft_last_error(), "open x: No such file or directory");
    assert_null(weft_last_error_field());
    wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "batch", "must be at least 1: %d", 0);
    assert_string_equal(weft_last_error(), "batch: must be at least 1: 0");
    assert_string_equal(weft_last_error_field(), "batch");
    wefti_error_prefix(WEFT_ERR_INVALID_ARGUMENT, "mlp.onnx");
    assert_string_equal(weft_last_error_field(), "batch");
    wefti_error(WEFT_ERR_INVALID_ARGUMENT, "another");
    assert_null(weft_last_error_field());
    assert_string_equal(weft_status_name(WEFT_ERR_PEER_DIED), "ERR_PEER_DIED");
    assert_string_equal(weft_status_name((weft_status_t)-99), "unknown");
}

#define ROUNDS 2000u

typedef struct duel {
    wefti_signal_t ping, pong;
    uint32_t payload; /* not atomic: the signals order it */
} duel_t;

/* Sleeps at once, without spinning, so that the futex path is what is tested. */
static void wait_for(wefti_signal_t *signal, uint32_t target)
{
    uint32_t value;
    while (!wefti_signal_reached(value = atomic_load(&signal->value), target)) {
        atomic_fetch_add(&signal->waiters, 1);
        value = atomic_load(&signal->value);
        if (!wefti_signal_reached(value, target)) {
            wefti_futex_wait(&signal->value, value, 10000000000ull);
        }
        atomic_fetch_sub(&signal->waiters, 1);
    }
}

static void *answer(void *user)
{
    duel_t *duel = user;
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        wait_for(&duel->ping, UINT32_MAX - 1000 + i); /* wraps on the way */
        duel->payload++;
        wefti_signal_post(&duel->pong, i);
    }
    return NULL;
}

static void test_signal_loses_no_wake_up(void **in)
{
    (void)in;
    static duel_t duel;
    pthread_t thread;
    atomic_store(&duel.ping.value, UINT32_MAX - 1000);
    assert_int_equal(pthread_create(&thread, NULL, answer, &duel), 0);
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        duel.payload++;
        wefti_signal_post(&duel.ping, UINT32_MAX - 1000 + i);
        wait_for(&duel.pong, i);
        assert_int_equal(duel.payload, 2 * i);
    }
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&duel.ping.waiters), 0);
}

static void test_futex_returns_at_its_timeout(void **in)
{
    (void)in;
    _Atomic uint32_t word = 5;
    uint64_t before = wefti_now_ns();
    wefti_futex_wait(&word, 5, 2000000);
    assert_true(wefti_now_ns() - before >= 1000000);
    wefti_futex_wait(&word, 4, 600000000000ull); /* another value: returns at once */
    assert_true(wefti_now_ns() - before < 300000000000ull);
}

static void test_isa_parses_its_names(void **in)
{
    (void)in;
    weft_isa_t isa;
    assert_int_equal(wefti_isa_parse("auto", &isa), WEFT_OK);
    assert_int_equal(isa, wefti_isa_detect());
    assert_int_equal(wefti_isa_parse("portable", &isa), WEFT_OK);
    assert_int_equal(isa, WEFT_ISA_PORTABLE);
    weft_status_t expected = wefti_isa_detect() >= WEFT_ISA_AVX2 ? WEFT_OK : WEFT_ERR_UNSUPPORTED;
    assert_int_equal(wefti_isa_parse("avx2", &isa), expected);
    assert_int_equal(wefti_isa_parse("sse9", &isa), WEFT_ERR_INVALID_ARGUMENT);
    assert_string_equal(wefti_isa_name(WEFT_ISA_AVX512), "avx512");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena_aligns_and_zeroes),
        cmocka_unit_test(test_arena_keeps_its_budget),
        cmocka_unit_test(test_memory_fails_cleanly),
        cmocka_unit_test(test_array_refuses_overflow),
        cmocka_unit_test(test_types_count_and_name),
        cmocka_unit_test(test_node_attrs_have_defaults),
        cmocka_unit_test(test_digest_known_vectors),
        cmocka_unit_test(test_log_drops_what_is_too_fine),
        cmocka_unit_test(test_error_message_is_prefixed_once),
        cmocka_unit_test(test_signal_loses_no_wake_up),
        cmocka_unit_test(test_futex_returns_at_its_timeout),
        cmocka_unit_test(test_isa_parses_its_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
