/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/support.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void test_check(weft_status_t status, const char *what, const char *file, int line)
{
    if (status < 0) {
        print_error("%s: %s: %s\n", what, weft_status_name(status), weft_last_error());
        _fail(file, line);
    }
}

void test_expect_error(weft_status_t status, weft_status_t expected, const char *text)
{
    if (status != expected || !strstr(weft_last_error(), text)) {
        print_error("got %s: %s\n", weft_status_name(status), weft_last_error());
    }
    assert_int_equal(status, expected);
    assert_non_null(strstr(weft_last_error(), text));
}

uint64_t test_next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t test_draw(uint64_t *state, uint32_t limit)
{
    return (uint32_t)(test_next_random(state) >> 32) % limit;
}

uint32_t test_random(test_random_t *random)
{
    return (uint32_t)(test_next_random(&random->state) >> 32);
}

uint32_t test_random_below(test_random_t *random, uint32_t limit)
{
    return test_draw(&random->state, limit);
}

float test_random_float(test_random_t *random)
{
    return (float)(test_random(random) >> 8) / 8388608.0f - 1.0f;
}

uint64_t test_seed(void)
{
    const char *text = getenv("WEFT_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : 20240601u;
    print_message("WEFT_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* Bytes of a block are kept before it; 16 keep its alignment. */
#define HEAD_BYTES 16u

static void *memory_alloc(void *user, size_t bytes)
{
    test_memory_t *memory = user;
    uint64_t request = memory->requests++;
    if (request == memory->fail_at || request >= memory->fail_from) {
        return NULL;
    }
    unsigned char *block = malloc(HEAD_BYTES + bytes);
    if (!block) {
        return NULL;
    }
    memcpy(block, &bytes, sizeof(bytes));
    memory->live_blocks++;
    uint64_t live = atomic_fetch_add(&memory->live_bytes, bytes) + bytes;
    uint64_t most = memory->most_bytes;
    while (live > most && !atomic_compare_exchange_weak(&memory->most_bytes, &most, live)) {
    }
    return block + HEAD_BYTES;
}

static void memory_free(void *user, void *ptr)
{
    test_memory_t *memory = user;
    size_t bytes;
    if (ptr) {
        unsigned char *block = (unsigned char *)ptr - HEAD_BYTES;
        memcpy(&bytes, block, sizeof(bytes));
        memory->live_blocks--;
        memory->live_bytes -= bytes;
        free(block);
    }
}

static void *memory_realloc(void *user, void *ptr, size_t old_bytes, size_t bytes)
{
    void *grown = memory_alloc(user, bytes);
    if (grown && ptr) {
        memcpy(grown, ptr, old_bytes < bytes ? old_bytes : bytes);
        memory_free(user, ptr);
    }
    return grown;
}

void test_memory_init(test_memory_t *memory)
{
    memset(memory, 0, sizeof(*memory));
    memory->allocator = (weft_allocator_t){memory_alloc, memory_realloc, memory_free, memory};
    test_memory_fail(memory, UINT64_MAX, UINT64_MAX);
}

void test_memory_fail(test_memory_t *memory, uint64_t at, uint64_t from)
{
    memory->requests = 0;
    memory->fail_at = at;
    memory->fail_from = from;
}

uint64_t test_memory_sweep(test_work_fn work, void *user)
{
    test_memory_t memory;
    test_memory_init(&memory);
    for (int once = 0; once < 2; once++) {
        bool failed = true;
        for (uint64_t number = 0; failed; number++) {
            test_memory_fail(&memory, once ? number : UINT64_MAX, once ? UINT64_MAX : number);
            weft_status_t status = work(&memory.allocator, user);
            failed = memory.requests > number;
            if (status != WEFT_OK && status != WEFT_ERR_NO_MEMORY) {
                fail_msg("request %llu failed: %s", (unsigned long long)number, weft_last_error());
            }
            assert_int_equal(memory.live_blocks, 0);
        }
    }
    return memory.requests;
}

uint64_t test_cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
