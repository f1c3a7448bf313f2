/* SPDX-License-Identifier: Apache-2.0 */
/* What a step costs: no allocation and no system call. And what it leaves: a timeline. */
#include "support.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/sync.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1 /* these replace malloc and make system calls of their own */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#ifndef SANITIZED
static atomic_ulong allocations;

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *ptr, size_t bytes);

void *malloc(size_t bytes)
{
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    return __libc_calloc(count, bytes);
}

void *realloc(void *ptr, size_t bytes)
{
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    return __libc_realloc(ptr, bytes);
}

typedef struct runner {
    weft_context_params_t params;
    training_t training;
    pthread_barrier_t *barrier;
    unsigned long counted;
    weft_status_t status;
    pthread_t thread;
} runner_t;

static void *count_main(void *user)
{
    runner_t *runner = user;
    weft_context_t *context = NULL;
    weft_registry_t *registry = NULL;
    weft_plan_t *plan = NULL;
    weft_session_t *session = NULL;
    runner->status = weft_context_create(&runner->params, &context);
    runner->status |= support_registry(true, &registry);
    runner->status |= support_plan(&runner->training, false, &plan);
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    params.context = context;
    params.plan = plan;
    params.registry = registry;
    params.trace = 1;
    runner->status |= weft_session_create(&params, &session);
    for (int i = 0; i < 10 && runner->status == WEFT_OK; i++) {
        runner->status = weft_session_step(session);
    }
    pthread_barrier_wait(runner->barrier);
    unsigned long before = atomic_load(&allocations);
    pthread_barrier_wait(runner->barrier);
    for (int i = 0; i < 100 && runner->status == WEFT_OK; i++) {
        runner->status = weft_session_step(session);
    }
    pthread_barrier_wait(runner->barrier);
    runner->counted = atomic_load(&allocations) - before;
    pthread_barrier_wait(runner->barrier);
    weft_session_destroy(session);
    weft_plan_release(plan);
    weft_registry_destroy(registry);
    weft_context_release(context);
    return NULL;
}

static void test_step_allocates_nothing(void **state)
{
    (void)state;
    static const support_mode_t modes[] = {SUPPORT_WHOLE, SUPPORT_WHOLE, SUPPORT_SWEEP,
                                           SUPPORT_DECOUPLED};
    for (int i = 0; i < 4; i++) {
        int progress = i % 2 == 0 ? WEFT_PROGRESS_INLINE : WEFT_PROGRESS_THREAD;
        runner_t runners[2];
        pthread_barrier_t barrier;
        weft_hub_t *hub = NULL;
        assert_int_equal(weft_hub_create(2, &hub), WEFT_OK);
        pthread_barrier_init(&barrier, NULL, 2);
        for (int r = 0; r < 2; r++) {
            weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
            params.rank = r;
            params.world_size = 2;
            params.hub = hub;
            params.progress = (weft_progress_t)progress;
            runners[r] = (runner_t){.params = params,
                                    .training = {.world = 2, .buckets = 3, .mode = modes[i]},
                                    .barrier = &barrier};
            assert_int_equal(pthread_create(&runners[r].thread, NULL, count_main, &runners[r]), 0);
        }
        for (int r = 0; r < 2; r++) {
            pthread_join(runners[r].thread, NULL);
        }
        for (int r = 0; r < 2; r++) {
            assert_int_equal(runners[r].status, WEFT_OK);
            assert_int_equal(runners[r].counted, 0);
        }
        pthread_barrier_destroy(&barrier);
        weft_hub_destroy(hub);
    }
}

/* Trains alone; steps 10 to 109 lie between two getppid calls. */
static void traced_child(void)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    training_t training = {.world = 1, .buckets = 3};
    weft_context_t *context = NULL;
    weft_registry_t *registry = NULL;
    weft_plan_t *plan = NULL;
    weft_session_t *session = NULL;
    params.rank = 0;
    params.world_size = 1;
    params.progress = WEFT_PROGRESS_INLINE;
    weft_status_t status = weft_context_create(&params, &context);
    status |= support_registry(true, &registry);
    status |= support_plan(&training, false, &plan);
    weft_session_params_t session_params = WEFT_SESSION_PARAMS_INIT;
    session_params.context = context;
    session_params.plan = plan;
    session_params.registry = registry;
    session_params.trace = 1;
    status |= weft_session_create(&session_params, &session);
    for (int i = 0; i < 110 && status == WEFT_OK; i++) {
        if (i == 10) {
            syscall(SYS_getppid);
        }
        status = weft_session_step(session);
    }
    syscall(SYS_getppid);
    _exit(status == WEFT_OK ? 0 : 1);
}

/* Counts the child's system calls between the marks, reading the clock apart; -1: cannot trace
 * here. */
static long count_calls(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) {
            _exit(77);
        }
        raise(SIGSTOP);
        traced_child();
    }
    int wait_status = 0;
    long calls = 0;
    int marks = 0;
    bool entering = true;
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    if (WIFEXITED(wait_status)) {
        return -1;
    }
    ptrace(PTRACE_SETOPTIONS, pid, NULL, (void *)PTRACE_O_TRACESYSGOOD);
    for (;;) {
        ptrace(PTRACE_SYSCALL, pid, NULL, NULL);
        assert_int_equal(waitpid(pid, &wait_status, 0), pid);
        if (WIFEXITED(wait_status)) {
            assert_int_equal(WEXITSTATUS(wait_status), 0);
            assert_int_equal(marks, 2);
            return calls;
        }
        assert_false(WIFSIGNALED(wait_status));
        if (!WIFSTOPPED(wait_status) || WSTOPSIG(wait_status) != (SIGTRAP | 0x80)) {
            continue;
        }
        if (entering) {
            struct __ptrace_syscall_info info = {0};
            ptrace(PTRACE_GET_SYSCALL_INFO, pid, (void *)sizeof(info), &info);
            if (info.entry.nr == SYS_getppid) {
                marks++;
            } else if (marks == 1 && info.entry.nr != SYS_clock_gettime) {
                calls++;
            }
        }
        entering = !entering;
    }
}

static void test_step_makes_no_system_call(void **state)
{
    (void)state;
    long calls = count_calls();
    if (calls < 0) {
        print_message("skipped: ptrace is not allowed here\n");
        skip();
    }
    assert_int_equal(calls, 0);
}
#endif

/* Reads a whole file. */
static char *read_text(const char *path)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *text = malloc(1 << 22);
    size_t length = fread(text, 1, (1 << 22) - 1, file);
    text[length] = '\0';
    fclose(file);
    return text;
}

static int count(const char *text, const char *what)
{
    int found = 0;
    for (const char *at = strstr(text, what); at != NULL; at = strstr(at + 1, what)) {
        found++;
    }
    return found;
}

static void check_timeline(weft_progress_t progress, bool card)
{
    char path[128], command[256];
    outcome_t outcomes[2];
    snprintf(path, sizeof(path), "/tmp/weft-timeline-%d.json", (int)getpid());
    training_t training = {
        .world = 2, .steps = 5, .buckets = 3, .progress = progress, .card = card, .trace = path};
    support_run_threads(&training, outcomes);
    assert_int_equal(outcomes[0].status, WEFT_OK);
    assert_int_equal(outcomes[1].status, WEFT_OK);
    snprintf(command, sizeof(command), "python3 -m json.tool %s > /dev/null", path);
    assert_int_equal(system(command), 0);
    char *text = read_text(path);
    assert_int_equal(count(text, "\"process_name\""), 2);
    assert_int_equal(count(text, "\"thread_name\""), card ? 8 : 4); /* also the queues */
    if (card) {
        assert_true(count(text, "\"cat\": \"kernel\"") >= 2 * 5 * 11);
        assert_int_equal(count(text, "on fake card\""), 4);
    } else {
        /* per rank and step: 11 kernels; 3 buckets; an arrow to the bucket and one back from it */
        assert_int_equal(count(text, "\"cat\": \"kernel\""), 2 * 5 * 11);
        assert_int_equal(count(text, "\"cat\": \"collective\""), 2 * (5 * 3 + 1));
        assert_int_equal(count(text, "\"ph\": \"s\""), 2 * 5 * 6);
        assert_int_equal(count(text, "\"ph\": \"f\""), 2 * 5 * 6);
        assert_int_equal(count(text, "\"name\": \"bucket 1\""), 2 * 5);
        assert_true(count(text, "\"name\": \"start bucket 2\"") >= 2 * 5);
    }
    free(text);
    remove(path);
}

static void test_timeline_has_rows_and_arrows(void **state)
{
    (void)state;
    check_timeline(WEFT_PROGRESS_INLINE, false);
    check_timeline(WEFT_PROGRESS_THREAD, false);
    check_timeline(WEFT_PROGRESS_INLINE, true);
}

static void test_timeline_path_error_reaches_every_rank(void **state)
{
    outcome_t outcomes[2];
    training_t training = {
        .world = 2, .steps = 1, .buckets = 1, .trace = "/nowhere/at/all.json", .quiet = true};
    (void)state;
    support_run_threads(&training, outcomes);
    for (int r = 0; r < 2; r++) {
        assert_true(outcomes[r].status < 0);
        assert_non_null(strstr(outcomes[r].message, "/nowhere/at/all.json"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifndef SANITIZED
        cmocka_unit_test(test_step_makes_no_system_call), /* forks: before any thread */
        cmocka_unit_test(test_step_allocates_nothing),
#endif
        cmocka_unit_test(test_timeline_has_rows_and_arrows),
        cmocka_unit_test(test_timeline_path_error_reaches_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
