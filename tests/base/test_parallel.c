/* SPDX-License-Identifier: Apache-2.0 */
/* Parts on several threads: each is executed once, whoever executes it. */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/float_mode.h"
#include "runtime/base/half.h"
#include "runtime/base/parallel.h"
#include "runtime/base/sync.h"
#include "runtime/stream/record.h"
#include "tests/support/support.h"

#define MOST 40

typedef struct counts {
    _Atomic uint32_t *of_part;
    uint32_t *plain; /* written without atomics: the end of the call orders it */
    _Atomic uint32_t *begun;
    uint32_t parts;
} counts_t;

static void count_part(const void *context, int64_t part)
{
    const counts_t *counts = context;
    atomic_fetch_add(&counts->of_part[part], 1);
    counts->plain[part]++;
}

static void check_calls(uint32_t calls)
{
    _Atomic uint32_t of_part[MOST] = {0};
    uint32_t plain[MOST] = {0}, expected[MOST] = {0};
    const counts_t counts = {.of_part = of_part, .plain = plain};
    for (uint32_t call = 0; call < calls; call++) {
        uint32_t parts = call % MOST; /* fewer and more than there are workers; none */
        wefti_parallel(parts, count_part, &counts);
        for (uint32_t part = 0; part < MOST; part++) {
            expected[part] += part < parts;
            assert_int_equal(of_part[part], expected[part]);
            assert_int_equal(plain[part], expected[part]);
        }
    }
}

static void test_parallel_executes_each_part_once(void **state)
{
    (void)state;
    check_calls(5000);
}

typedef struct ranges {
    uint32_t threads;
    int64_t grain, step;
    uint32_t *seen;
} ranges_t;

static void mark_range(const void *context, wefti_range_t range)
{
    const ranges_t *r = context;
    assert_true(range.from < range.to && range.part >= 0);
    assert_true(range.part == 0 || range.part < r->threads);
    assert_int_equal(range.from % r->grain, 0);
    assert_true(r->step == 0 || range.to - range.from <= r->step);
    for (int64_t i = range.from; i < range.to; i++) {
        r->seen[i]++;
    }
}

static void test_parallel_ranges_cover_each_element_once(void **state)
{
    (void)state;
    for (int64_t count = 0; count < 70; count += count < 9 ? 1 : 13) {
        for (uint32_t threads = 0; threads < 9; threads++) {
            for (int64_t size = 1; size < 40; size += 6) {
                uint32_t seen[70] = {0};
                ranges_t ranges = {threads, size, 0, seen};
                wefti_parallel_for(threads, count, size, mark_range, &ranges);
                ranges = (ranges_t){threads, 1, size, seen};
                wefti_parallel_steps(threads, count, size, mark_range, &ranges);
                for (int64_t i = 0; i < 70; i++) {
                    assert_int_equal(seen[i], i < count ? 2 : 0);
                }
            }
        }
    }
}

static void *call_from_thread(void *context)
{
    (void)context;
    check_calls(1000);
    return NULL;
}

static int count_threads(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    closedir(folder);
    return count;
}

/* Every calling thread has workers of its own, which end with it. */
static void test_parallel_threads(void **state)
{
    pthread_t threads[3];
    (void)state;
    int before = count_threads();
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, call_from_thread, NULL), 0);
    }
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    /* The kernel removes a joined thread's entry a moment later. */
    while (count_threads() > before) {
        usleep(1000);
    }
}

static void test_parallel_after_fork(void **state)
{
    int status = -1;
    (void)state;
#ifdef __SANITIZE_THREAD__
    print_message("skipped: ThreadSanitizer allows no threads in a child of a threaded process\n");
    skip();
#endif
    check_calls(10);
    pid_t child = fork();
    if (child == 0) {
        check_calls(100); /* an assertion that fails here exits with another status */
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    check_calls(10);
}

/* Waits in the first part that begins until another one has begun: two threads take part. */
static void wait_for_other(const void *context, int64_t part)
{
    const counts_t *counts = context;
    (void)part;
    atomic_fetch_add(counts->begun, 1);
    while (atomic_load(counts->begun) < counts->parts) {
        usleep(100);
    }
}

static void test_parallel_uses_threads(void **state)
{
    (void)state;
    for (uint32_t parts = 2; parts <= 4; parts++) {
        _Atomic uint32_t begun = 0;
        const counts_t counts = {.begun = &begun, .parts = parts};
        wefti_parallel(parts, wait_for_other, &counts);
        assert_int_equal(begun, parts);
    }
}

static char state_of(const char *thread)
{
    char path[300], text[512] = "", *end;
    snprintf(path, sizeof path, "/proc/self/task/%s/stat", thread);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return 'S'; /* it has ended */
    }
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    end = strrchr(text, ')');
    return end != NULL ? end[2] : '?';
}

/* Workers that have nothing to do sleep, and wake up for the next call. */
static void test_parallel_workers_sleep(void **state)
{
    char self[32];
    (void)state;
    snprintf(self, sizeof self, "%d", (int)gettid());
    for (int round = 0; round < 3; round++) {
        check_calls(20);
        for (int awake = 1; awake > 0;) {
            awake = 0;
            DIR *folder = opendir("/proc/self/task");
            assert_non_null(folder);
            for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
                awake += entry->d_name[0] != '.' && strcmp(entry->d_name, self) != 0 &&
                         state_of(entry->d_name) != 'S';
            }
            closedir(folder);
            usleep(1000);
        }
        test_parallel_uses_threads(state);
    }
}

static _Atomic uint32_t handled_elsewhere;
static pthread_t application;

static void handle(int number)
{
    (void)number;
    handled_elsewhere += !pthread_equal(pthread_self(), application);
}

static void raise_signal(const void *context, int64_t part)
{
    (void)context;
    (void)part;
    kill(getpid(), SIGUSR1);
}

/* A signal for the process goes to a thread of the application. */
static void test_parallel_workers_take_no_signals(void **state)
{
    struct sigaction action = {.sa_handler = handle}, before;
    (void)state;
    application = pthread_self();
    sigaction(SIGUSR1, &action, &before);
    for (int i = 0; i < 100; i++) {
        wefti_parallel(4, raise_signal, NULL);
    }
    sigaction(SIGUSR1, &before, NULL);
    assert_int_equal(handled_elsewhere, 0);
}

#if defined(__x86_64__)
#define ODD_THREADS 3

typedef struct sums {
    _Atomic uint32_t begun;
    float a, b, of_part[ODD_THREADS];
} sums_t;

/* Of denormals; every part on a thread of its own. */
static void add_part(const void *context, int64_t part)
{
    sums_t *sums = *(sums_t *const *)context;
    atomic_fetch_add(&sums->begun, 1);
    while (atomic_load(&sums->begun) < ODD_THREADS) {
        usleep(100);
    }
    sums->of_part[part] = sums->a + sums->b;
}

static weft_status_t add_on_threads(const weft_kernel_call_t *call)
{
    wefti_parallel(ODD_THREADS, add_part, &call->state);
    return WEFT_OK;
}

static void *run_record_in_odd_mode(void *context)
{
    static const weft_kernel_t kernel = {.run = add_on_threads};
    wefti_record_t record = {.kind = WEFTI_RECORD_KERNEL};
    record.kernel.kernel = &kernel;
    record.kernel.call.state = context;
    const unsigned int odd = _mm_getcsr() | WEFTI_FLOAT_MODE_BITS;
    _mm_setcsr(odd);
    wefti_parallel(ODD_THREADS, count_part, /* makes the workers */
                   &(counts_t){.of_part = (_Atomic uint32_t[ODD_THREADS]){0},
                               .plain = (uint32_t[ODD_THREADS]){0}});
    const weft_status_t status = wefti_record_run(&record, 0, WEFT_ISA_PORTABLE);
    assert_int_equal(_mm_getcsr() & WEFTI_FLOAT_MODE_BITS, odd & WEFTI_FLOAT_MODE_BITS);
    assert_int_equal(status, WEFT_OK);
    return NULL;
}
#endif

/* Kernels keep denormals on all their threads, and leave the caller's thread as it was. */
static void test_parallel_mode_of_floats(void **state)
{
    (void)state;
#if defined(__x86_64__)
    pthread_t thread;
    sums_t sums = {.a = wefti_f32_from_bits(3), .b = wefti_f32_from_bits(4)};
    assert_int_equal(pthread_create(&thread, NULL, run_record_in_odd_mode, &sums), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    for (int i = 0; i < ODD_THREADS; i++) {
        assert_int_equal(wefti_f32_bits(sums.of_part[i]), 7);
    }
#else
    print_message("skipped: the test sets a register of x86-64\n");
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parallel_executes_each_part_once),
        cmocka_unit_test(test_parallel_ranges_cover_each_element_once),
        cmocka_unit_test(test_parallel_threads),
        cmocka_unit_test(test_parallel_after_fork),
        cmocka_unit_test(test_parallel_uses_threads),
        cmocka_unit_test(test_parallel_workers_sleep),
        cmocka_unit_test(test_parallel_workers_take_no_signals),
        cmocka_unit_test(test_parallel_mode_of_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
