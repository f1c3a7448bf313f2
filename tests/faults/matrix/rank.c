/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a case of the injection matrix (matrix.py): random legal work until a call fails. On
 * one rank there is a fault at a given moment, or ranks disagree about an operation.
 *
 *   rank seed=N ops=N end=destroy|leave|exit folder=DIR [plan=FILE]
 *        [fault=KIND at=OP [after_us=N | messages=N]] [differ=KIND at=OP [odd=1 [then=leave]]]
 *   rank seed=N folder=DIR [plan=FILE] grows_at=ADDRESS    a rank that goes on (elastic.c)
 *
 * Operation 0 is weft_context_create, operation 1 the start of the work (work_begin). With messages
 * the fault comes after so many of them, at the end of the operation at the latest. Standard
 * output has one line per event: name, CLOCK_MONOTONIC in nanoseconds, details, with tabs between.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "tests/faults/matrix/calls.h"
#include "tests/faults/matrix/disagree.h"
#include "tests/faults/matrix/elastic.h"
#include "tests/faults/matrix/events.h"
#include "tests/faults/matrix/work.h"

typedef struct fault {
    const char *kind; /* NULL: none */
    uint64_t at;
    uint32_t after_us; /* later than the start of the operation, from another thread; 0: before */
    uint64_t messages; /* 0: it does not depend on these */
} fault_t;

/* ---- faults ---- */

static void die_with_child(void)
{
    if (fork() == 0) {
        while (true) {
            pause();
        }
    }
    kill(getpid(), SIGKILL);
}

static void act(const char *kind)
{
    event_report("fault", "%s", kind);
    if (strcmp(kind, "kill") == 0) {
        kill(getpid(), SIGKILL);
    } else if (strcmp(kind, "stop") == 0 || strcmp(kind, "pause") == 0) {
        kill(getpid(), SIGSTOP);
    } else if (strcmp(kind, "segv") == 0) {
        kill(getpid(), SIGSEGV);
    } else if (strcmp(kind, "abort") == 0) {
        abort();
    } else if (strcmp(kind, "exit") == 0) {
        exit(3);
    } else if (strcmp(kind, "quit") == 0) {
        _exit(3);
    } else if (strcmp(kind, "exec") == 0) {
        execl("/bin/sleep", "sleep", "1000", (char *)NULL);
    } else if (strcmp(kind, "orphan") == 0) {
        die_with_child();
    }
}

static void *act_later(void *user)
{
    const fault_t *fault = user;
    struct timespec wait = {fault->after_us / 1000000, fault->after_us % 1000000 * 1000};
    nanosleep(&wait, NULL);
    act(fault->kind);
    return NULL;
}

static void act_now(void *user)
{
    const fault_t *fault = user;
    act(fault->kind);
}

/* Returns true if this rank is to leave in good order. */
static bool inject(fault_t *fault, uint64_t op)
{
    pthread_t thread;
    if (fault->kind != NULL && calls_disarm() > 0) {
        act(fault->kind);
    }
    if (fault->kind == NULL || fault->at != op) {
        return false;
    }
    if (strcmp(fault->kind, "leave") == 0) {
        event_report("fault", "leave");
        return true;
    }
    if (fault->messages > 0) {
        calls_arm(fault->messages, act_now, fault);
    } else if (fault->after_us == 0) {
        act(fault->kind);
    } else if (pthread_create(&thread, NULL, act_later, fault) == 0) {
        pthread_detach(thread);
    }
    return false;
}

/* ---- main ---- */

static weft_status_t run_operation(work_t *work, uint64_t op, const char **name)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_status_t status;
    switch (op) {
    case 0:
        *name = "context_create";
        status = weft_context_create(&params, &work->context);
        if (status == WEFT_OK) {
            work->rank = weft_context_rank(work->context);
            work->size = weft_context_world_size(work->context);
            event_report("joined", "%s", "");
        }
        return status;
    case 1:
        *name = "begin";
        return work_begin(work);
    default:
        return work_run(work, op, name);
    }
}

/* Sets when the rank reaches the operation. */
static weft_status_t run_disagreement(work_t *work, uint64_t op, char **argv, int64_t *began_ns)
{
    draw_t d = draw_begin(work->seed, op);
    weft_status_t status = disagree_prepare(work);
    *began_ns = event_now_ns();
    event_report("call", "%s", "");
    return status == WEFT_OK
               ? disagree_run(work, event_option(argv, "differ"), event_number(argv, "odd"), &d)
               : status;
}

/* A thread that has been joined, or that was to act later, may take a moment to end. */
static uint32_t count_threads(void)
{
    uint32_t threads = event_count_entries("/proc/self/task") - 2;
    for (uint32_t i = 0; threads > 1 && i < 1000; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        threads = event_count_entries("/proc/self/task") - 2;
    }
    return threads;
}

int main(int argc, char **argv)
{
    static work_t work;
    fault_t fault = {event_option(argv, "fault"), event_number(argv, "at"),
                     (uint32_t)event_number(argv, "after_us"), event_number(argv, "messages")};
    const char *end = event_option(argv, "end"), *differ = event_option(argv, "differ"), *name = "";
    uint64_t ops = event_number(argv, "ops"), op = 0;
    weft_status_t status = WEFT_OK;
    bool leaves = false;
    (void)argc;
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    work.seed = event_number(argv, "seed");
    work.folder = event_option(argv, "folder");
    work.plan_path = event_option(argv, "plan");
    work.address = event_option(argv, "grows_at");
    if (work.address != NULL) {
        return elastic_run(&work);
    }
    uint32_t descriptors = event_count_entries("/proc/self/fd");
    int64_t began_ns = 0;
    event_report("start", "%s", "");
    for (; op < ops && status == WEFT_OK && work.wrong[0] == '\0' && !leaves; op++) {
        leaves = inject(&fault, op);
        began_ns = event_now_ns();
        if (differ != NULL && op == fault.at) {
            status = run_disagreement(&work, op, argv, &began_ns);
            name = differ;
            leaves = event_option(argv, "then") != NULL;
        } else if (!leaves) {
            status = run_operation(&work, op, &name);
        }
    }
    if (status != WEFT_OK) {
        event_report("error", "%llu\t%s\t%s\t%lld\t%s", (unsigned long long)op - 1, name,
                     weft_status_name(status), (long long)began_ns, weft_last_error());
    } else if (work.wrong[0] != '\0') {
        event_report("wrong", "%llu\t%s\t%s", (unsigned long long)op - 1, name, work.wrong);
    } else {
        event_report("finished", "%llu", (unsigned long long)op);
    }
    if (strcmp(end, "exit") == 0) {
        return 0;
    }
    work_end(&work, leaves || strcmp(end, "leave") == 0);
    uint32_t threads = count_threads();
    event_report("ended", "%u\t%u\t%u", descriptors, event_count_entries("/proc/self/fd"), threads);
    return 0;
}
