/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain memory of processes by cross-memory attach: every operator against the oracle, which path
 * is taken when, permission refused before and after a group is made, buffers that cannot be read,
 * and a peer that dies meanwhile.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/sync.h"
#include "runtime/collective/agree.h"
#include "runtime/collective/bucket.h"
#include "runtime/collective/call_trial.h"
#include "runtime/group/attach.h"
#include "support_collectives.h"
#include "tests/support/support.h"

#define NOBODY 65534u
#define MIB ((size_t)1 << 20)

static void setting(const char *value)
{
    setenv("WEFT_ATTACH", value, 1);
}

/* False where the system refuses attaching between any processes. */
static bool system_allows(void)
{
    int ends[2];
    uint64_t word = 42, found = 0;
    bool allows = false;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) < 0);
    }
    /* A child is always allowed to be read by Yama's rule, a sibling need not be: try the worse. */
    pid_t sibling = fork();
    if (sibling == 0) {
        struct iovec here = {&found, sizeof found}, there = {&word, sizeof word};
        _exit(process_vm_readv(child, &here, 1, &there, 1, 0) == (ssize_t)sizeof found &&
                      found == 42
                  ? 0
                  : 1);
    }
    int status = 1;
    allows = waitpid(sibling, &status, 0) == sibling && status == 0;
    close(ends[1]);
    close(ends[0]);
    waitpid(child, &status, 0);
    return allows;
}

static void check_path(rank_world_t *world, const char *expected)
{
    RANK_CHECK(strcmp(weft_group_last_path(world->group), expected) == 0);
}

/* ---- every operator ---- */

static const uint64_t counts[] = {20011, 0, 8193, 50000};
static const weft_dtype_t dtypes[] = {WEFT_DTYPE_F32, WEFT_DTYPE_BF16, WEFT_DTYPE_F64};

static bool attaches(weft_collective_t op, uint64_t block_bytes, bool in_place)
{
    bool v = op == WEFT_COLLECTIVE_ALL_GATHER_V || op == WEFT_COLLECTIVE_REDUCE_SCATTER_V ||
             op == WEFT_COLLECTIVE_ALL_TO_ALL_V ||
             op == WEFT_COLLECTIVE_BARRIER; /* lengths are by chance */
    return !v && block_bytes > WEFTI_SLOT_DATA && !(op == WEFT_COLLECTIVE_ALL_TO_ALL && in_place);
}

static void run_operators(rank_world_t *world)
{
    const uint32_t *offset = world->user;
    one_rank_t one;
    support_one_init(&one, world, false, 7 + *offset);
    uint8_t *aligned[2] = {one.send, one.recv};
    uint8_t *send = malloc(SUPPORT_ROOM + *offset), *recv = malloc(SUPPORT_ROOM + *offset);
    RANK_CHECK(send != NULL && recv != NULL);
    one.send = send + *offset;
    one.recv = recv + *offset;
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        for (size_t t = 0; t < sizeof dtypes / sizeof dtypes[0]; t++) {
            size_t bytes = weft_dtype_size_bytes(dtypes[t]) * counts[c];
            if (bytes * world->size > SUPPORT_ROOM || (world->size > 2 && t > 1)) {
                continue;
            }
            for (uint32_t op = WEFT_COLLECTIVE_ALL_REDUCE; op <= WEFT_COLLECTIVE_BARRIER; op++) {
                for (int in_place = 0; op != WEFT_COLLECTIVE_SEND_RECV && in_place < 2;
                     in_place++) {
                    weft_reduction_t reduction = (weft_reduction_t)(c % 5);
                    support_call(&one, (weft_collective_t)op, counts[c], dtypes[t], reduction,
                                 world->size - 1, in_place);
                    if (attaches((weft_collective_t)op, bytes, in_place)) {
                        check_path(world, "attached");
                    }
                }
            }
        }
    }
    one.send = aligned[0];
    one.recv = aligned[1];
    free(send);
    free(recv);
    support_one_deinit(&one);
}

static void test_every_operator(void **state)
{
    (void)state;
    setting("always");
    for (uint32_t n = 2; n <= 4; n++) {
        uint32_t offset = 13 * (n - 2); /* not even aligned to elements */
        assert_true(support_rank_processes(n, run_operators, &offset));
    }
}

/* ---- which path ---- */

static void check_sum(rank_world_t *world, size_t count, const char *path)
{
    float *x = malloc(count * sizeof *x);
    RANK_CHECK(x != NULL);
    for (size_t i = 0; i < count; i++) {
        x[i] = (float)(world->rank + i % 1000);
    }
    RANK_OK(weft_all_reduce(x, x, count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL));
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (uint32_t r = 0; r < world->size; r++) {
            sum += (float)(r + i % 1000);
        }
        RANK_CHECK(x[i] == sum);
    }
    if (path != NULL) {
        check_path(world, path);
    }
    free(x);
}

static void run_sizes(rank_world_t *world)
{
    const char *large = world->user;
    check_sum(world, 4, "posting");
    check_sum(world, 4000, large);
    check_sum(world, MIB / 4, large);
    weft_group_t *whole = world->group;
    RANK_OK(weft_group_split(whole, 0, -(int64_t)world->rank, &world->group));
    check_sum(world, MIB / 4, large);
    weft_group_destroy(world->group);
    world->group = whole;
}

static void test_sizes(void **state)
{
    (void)state;
    setting("always");
    assert_true(support_rank_processes(2, run_sizes, "attached"));
    setting("off");
    assert_true(support_rank_processes(2, run_sizes, "staged"));
    setting("always");
    support_rank_threads(2, run_sizes, "staged"); /* one process */
}

/* The two ways take turns; then it is one of them on all ranks, whichever was quicker. */
static void run_trial(rank_world_t *world)
{
    const char *path = NULL;
    for (int i = 0; i < 40; i++) {
        check_sum(world, MIB / 4, i >= 4 ? path : i % 2 == 0 ? "staged" : "attached");
        path = i < 16 ? NULL : weft_group_last_path(world->group);
    }
    uint8_t attaches = strcmp(path, "attached") == 0, all[8];
    RANK_OK(weft_context_all_gather(world->context, &attaches, 1, all));
    for (uint32_t r = 0; r < world->size; r++) {
        RANK_CHECK(all[r] == attaches);
    }
}

static void test_trial(void **state)
{
    (void)state;
    setting("auto");
    assert_true(support_rank_processes(2, run_trial, NULL));
    assert_true(support_rank_processes(3, run_trial, NULL));
}

/* Times by hand: the quickest of each way counts, and both are tried again later. */
static void test_choice(void **state)
{
    (void)state;
    wefti_trial_t trial = {0};
    for (uint32_t round = 0; round < 3; round++) {
        uint32_t quick = round % 2, tries = 0, ways[2] = {0};
        for (uint32_t i = 0; i < 1024; i++) {
            uint32_t way = wefti_trial_way(&trial);
            if (wefti_trial_count(&trial)) {
                assert_int_equal(i, tries);
                wefti_trial_note(&trial, way, i == 3 ? UINT64_MAX : way == quick ? 100 : 200);
                tries++;
            } else {
                assert_int_equal(way, quick);
            }
            ways[way]++;
        }
        assert_int_equal(ways[1 - quick], tries / 2);
    }
}

/* A way that is slower by far gets two tries. */
static void test_hopeless(void **state)
{
    (void)state;
    for (uint32_t quick = 0; quick < 2; quick++) {
        wefti_trial_t trial = {0};
        uint32_t ways[2] = {0};
        for (uint32_t i = 0; i < 2048; i++) {
            uint32_t way = wefti_trial_way(&trial);
            if (wefti_trial_count(&trial)) {
                wefti_trial_note(&trial, way, way == quick ? 100 : 1000);
            }
            ways[way]++;
        }
        assert_int_equal(ways[1 - quick], 4);
    }
}

/* A rank with memory that peers reach, one without: the same call, the same bits. */
static void run_mixed(rank_world_t *world)
{
    size_t bytes = MIB, count = bytes / sizeof(uint32_t);
    void *memory = NULL, *plain = malloc(bytes);
    RANK_OK(weft_mem_alloc(world->context, bytes, &memory));
    RANK_CHECK(plain != NULL);
    uint32_t *x = world->rank == 0 ? memory : plain;
    for (size_t i = 0; i < count; i++) {
        x[i] = (uint32_t)(i * (world->rank + 3));
    }
    RANK_OK(weft_all_reduce(x, x, count, WEFT_DTYPE_U32, WEFT_REDUCTION_SUM, world->group, NULL));
    check_path(world, "attached");
    for (size_t i = 0; i < count; i++) {
        RANK_CHECK(x[i] == (uint32_t)(i * 7));
    }
    free(plain);
    RANK_OK(weft_mem_free(world->context, memory));
}

static void test_mixed_memory(void **state)
{
    (void)state;
    setting("always");
    assert_true(support_rank_processes(2, run_mixed, NULL));
}

/* ---- permission ---- */

/* Attaching as root is always allowed. Makes the process one that others of its user may read. */
static void become_nobody(void)
{
    if (geteuid() == 0) {
        RANK_CHECK(setresgid(NOBODY, NOBODY, NOBODY) == 0);
        RANK_CHECK(setresuid(NOBODY, NOBODY, NOBODY) == 0);
    }
    RANK_CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
}

static void with_duplicate(rank_world_t *world, void (*run)(rank_world_t *duplicate))
{
    rank_world_t other = *world;
    RANK_OK(weft_barrier(world->group, NULL)); /* all have the rights that they mean to have */
    RANK_OK(weft_group_duplicate(world->group, &other.group));
    run(&other);
    weft_group_destroy(other.group);
}

static void run_staged(rank_world_t *world)
{
    check_sum(world, MIB, "staged");
}

static void run_refused(rank_world_t *world)
{
    become_nobody();
    if (world->rank == 1) {
        RANK_CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
    }
    with_duplicate(world, run_staged);
}

static void test_refused_at_creation(void **state)
{
    (void)state;
    setting("always");
    assert_true(support_rank_processes(2, run_refused, NULL));
    assert_true(support_rank_processes(3, run_refused, NULL));
}

static void revoke_and_call(rank_world_t *world)
{
    float *x = calloc(MIB, sizeof *x);
    RANK_CHECK(x != NULL);
    check_sum(world, MIB, "attached");
    if (world->rank == 1) {
        RANK_CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
    }
    for (int again = 0; again < 2; again++) {
        weft_status_t status =
            weft_all_reduce(x, x, MIB, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, world->group, NULL);
        RANK_CHECK(status == WEFT_ERR_SYSTEM);
        RANK_CHECK(strstr(weft_last_error(), "rank 0: cannot read the buffer of rank 1") != NULL);
    }
    free(x);
}

static void run_revoked(rank_world_t *world)
{
    become_nobody();
    with_duplicate(world, revoke_and_call);
}

static void test_refused_later(void **state)
{
    (void)state;
    setting("always");
    assert_true(support_rank_processes(2, run_revoked, NULL));
}

/* ---- buffers and peers that are not there ---- */

static void run_unreadable(rank_world_t *world)
{
    uint8_t *recv = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RANK_CHECK(recv != MAP_FAILED);
    uint8_t *own = recv + world->rank * MIB;
    if (world->rank == 1) { /* in place, so that only peers touch it */
        RANK_CHECK(mprotect(own + MIB / 2, MIB / 2, PROT_NONE) == 0);
    }
    weft_status_t status = weft_all_gather(own, recv, MIB, WEFT_DTYPE_U8, world->group, NULL);
    RANK_CHECK(status == WEFT_ERR_SYSTEM);
    RANK_CHECK(strstr(weft_last_error(), "rank 0: cannot read the buffer of rank 1") != NULL);
    munmap(recv, 2 * MIB);
}

static void test_unreadable_buffer(void **state)
{
    (void)state;
    setting("always");
    assert_true(support_rank_processes(2, run_unreadable, NULL));
}

typedef struct dying {
    _Atomic uint32_t calls;
    uint32_t after;
} dying_t;

/* Ends the process while its main thread is at work in a call. */
static void *end_process(void *user)
{
    dying_t *dying = user;
    while (atomic_load(&dying->calls) < dying->after) {
        wefti_cpu_relax();
    }
    _exit(0);
}

static void run_death(rank_world_t *world)
{
    dying_t dying = {.after = *(const uint32_t *)world->user};
    pthread_t thread;
    uint8_t *recv = calloc(2, 8 * MIB);
    RANK_CHECK(recv != NULL);
    if (world->rank == 1) {
        RANK_CHECK(pthread_create(&thread, NULL, end_process, &dying) == 0);
    }
    uint8_t *own = recv + world->rank * 8 * MIB;
    weft_status_t status;
    uint64_t start = wefti_now_ns();
    do {
        status = weft_all_gather(own, recv, 8 * MIB, WEFT_DTYPE_U8, world->group, NULL);
        atomic_fetch_add(&dying.calls, 1);
    } while (status == WEFT_OK);
    RANK_CHECK(status == WEFT_ERR_PEER_DIED);
    RANK_CHECK(strstr(weft_last_error(), "rank 1") != NULL);
    RANK_CHECK(wefti_now_ns() - start < 300000000000ull);
    free(recv);
}

static void test_death(void **state)
{
    (void)state;
    setting("always");
    for (uint32_t after = 1; after < 5; after++) {
        assert_true(support_rank_processes(2, run_death, &after));
    }
}

/* Peers may be about to write to memory whose owner gave its call up: of the library's own memory,
 * none that is freed. */
static void run_own_memory(rank_world_t *world)
{
    uint32_t ranks[] = {0, 1};
    weft_group_t *pair = NULL;
    uint8_t *send = calloc(1, MIB), *recv = calloc(world->size, MIB);
    RANK_CHECK(send != NULL && recv != NULL);
    RANK_OK(weft_group_create_ranks(world->group, ranks, 2, &pair));
    RANK_OK(weft_all_gather(send, recv, MIB, WEFT_DTYPE_U8, world->group, NULL));
    check_path(world, "attached");
    RANK_OK(wefti_group_all_gather(world->group, send, MIB, recv));
    check_path(world, "staged");
    if (pair != NULL) { /* not of the whole world: a bucket's buffer is plain memory */
        wefti_bucket_runner_t runner;
        RANK_OK(wefti_bucket_runner_init(&runner, pair, NULL, "test"));
        RANK_OK(wefti_bucket_runner_alloc(&runner, MIB));
        RANK_CHECK(!runner.reachable && runner.buffer != NULL);
        wefti_error(WEFT_ERR_ABORTED, "by the test");
        wefti_group_fail(pair, WEFT_ERR_ABORTED);
        wefti_bucket_runner_leave(&runner, "nothing", true);
        RANK_CHECK(runner.buffer == NULL);
        wefti_bucket_runner_deinit(&runner);
        weft_group_destroy(pair);
    }
    free(send);
    free(recv);
}

static void test_own_memory(void **state)
{
    (void)state;
    setting("always");
    assert_true(support_rank_processes(3, run_own_memory, NULL));
}

int main(void)
{
    alarm(540); /* a hang is a failure */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_operator),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_trial),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_hopeless),
        cmocka_unit_test(test_mixed_memory),
        cmocka_unit_test(test_refused_at_creation),
        cmocka_unit_test(test_refused_later),
        cmocka_unit_test(test_unreadable_buffer),
        cmocka_unit_test(test_death),
        cmocka_unit_test(test_own_memory),
    };
    if (!system_allows()) {
        printf("cross-memory attach is not allowed between processes here\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
