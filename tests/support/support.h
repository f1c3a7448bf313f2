/* SPDX-License-Identifier: Apache-2.0 */
/* What C tests share: cmocka, checks of statuses, random numbers, an allocator that fails. */
#ifndef WEFT_TESTS_SUPPORT_SUPPORT_H
#define WEFT_TESTS_SUPPORT_SUPPORT_H

/* cmocka.h requires these. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>

#include <weft/status.h>
#include <weft/types.h>

/* Checked code is several times slower: cases that only repeat others are left out there. */
#if defined(__SANITIZE_THREAD__)
#define TEST_THREAD_SANITIZER 1
#else
#define TEST_THREAD_SANITIZER 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#else
#define TEST_SANITIZED 0
#endif

/* Asserts that a status is not an error; shows the library's message. */
#define CHECK(expr) test_check((expr), #expr, __FILE__, __LINE__)
void test_check(weft_status_t status, const char *what, const char *file, int line);
/* Asserts an error whose message contains text. */
void test_expect_error(weft_status_t status, weft_status_t expected, const char *text);

/* splitmix64: equal seeds give equal numbers on every machine. */
uint64_t test_next_random(uint64_t *state);
uint32_t test_draw(uint64_t *state, uint32_t limit); /* [0, limit) */
typedef struct test_random {
    uint64_t state;
} test_random_t;
uint32_t test_random(test_random_t *random);
uint32_t test_random_below(test_random_t *random, uint32_t limit); /* [0, limit) */
float test_random_float(test_random_t *random);                    /* [-1, 1) */
/* WEFT_TEST_SEED, or a fixed number; printed. */
uint64_t test_seed(void);

/* An allocator that counts, and that fails when told to. Threads may share it. */
typedef struct test_memory {
    weft_allocator_t allocator;
    _Atomic uint64_t requests;                /* alloc and realloc */
    _Atomic uint64_t live_blocks, live_bytes; /* not yet freed */
    _Atomic uint64_t most_bytes;
    uint64_t fail_at;   /* the request of this number fails; UINT64_MAX: none */
    uint64_t fail_from; /* every request from this number on */
} test_memory_t;
void test_memory_init(test_memory_t *memory);
/* Counts requests anew. */
void test_memory_fail(test_memory_t *memory, uint64_t at, uint64_t from);
/* Runs work with every request failing once, then with every request from some number on, until it
 * succeeds: WEFT_ERR_NO_MEMORY, nothing left behind. Returns the requests of a success. */
typedef weft_status_t (*test_work_fn)(const weft_allocator_t *allocator, void *user);
uint64_t test_memory_sweep(test_work_fn work, void *user);

/* Processor time of this process: unlike time, it does not depend on what else the machine does. */
uint64_t test_cpu_ns(void);

#endif
