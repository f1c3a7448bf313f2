/* SPDX-License-Identifier: Apache-2.0 */
/* A rank stops or dies: what the others then destroy and release ends soon after the deadline. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weft/weft.h>

#include "runtime/base/sync.h"
#include "tests/support/support.h"

#define RANKS 4u
#define VICTIM 2u
#define GROUPS 8u
/* A deadline for each part of leaving would be several times as long. */
#define GUARD_NS 60000000000ull

typedef struct outcome {
    int how; /* it ended, as waitpid reports */
    weft_status_t status;
    uint64_t left_ns; /* from the fault until everything was released */
    char text[512];
} outcome_t;

/* Shared with the ranks. */
typedef struct board {
    _Atomic uint32_t ready; /* ranks that have completed the calls before the fault */
    _Atomic uint32_t over;
    pid_t pids[RANKS];
    outcome_t outcomes[RANKS];
} board_t;

typedef struct fault {
    const char *name;
    uint32_t ranks_per_host;
    size_t count;                   /* elements of each call */
    void (*strike)(board_t *board); /* what happens to the victim */
    bool idle;                      /* it happens while nothing is in flight */
    weft_status_t status;           /* of the others' next call */
    const char *text;               /* part of its message */
} fault_t;

static void stop(board_t *board)
{
    (void)board;
    raise(SIGSTOP);
}

/* In a child that keeps what its parent had until the test is over. */
static void live_on(const board_t *board)
{
    alarm(300);
    while (atomic_load(&board->over) == 0) {
        wefti_sleep_ns(10000000);
    }
    _exit(0);
}

static void fork_and_die(board_t *board)
{
    if (fork() == 0) {
        live_on(board);
    }
    raise(SIGKILL);
}

/* No handler runs: the child has the sockets. */
static void clone_and_die(board_t *board)
{
    if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) {
        live_on(board);
    }
    raise(SIGKILL);
}

static void fail_rank(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, weft_last_error());
    _exit(1);
}

static void reduce(weft_group_t *group, size_t count, outcome_t *out)
{
    float *values = calloc(2 * count, sizeof *values);
    out->status = weft_all_reduce(values, values + count, count, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM,
                                  group, NULL);
    snprintf(out->text, sizeof out->text, "%s", weft_last_error());
    free(values);
}

static void run_rank(const fault_t *fault, uint32_t rank, const char *address, board_t *board)
{
    outcome_t *out = &board->outcomes[rank];
    char host[16];
    weft_context_t *context;
    weft_group_t *groups[GROUPS];
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = (int32_t)rank;
    params.world_size = RANKS;
    params.address = address;
    snprintf(host, sizeof host, "host-%u", rank / fault->ranks_per_host);
    setenv("WEFT_HOST_ID", host, 1);
    if (weft_context_create(&params, &context) < 0) {
        fail_rank("weft_context_create");
    }
    for (uint32_t g = 0; g < GROUPS; g++) {
        if (weft_group_create_world(context, &groups[g]) < 0) {
            fail_rank("weft_group_create_world");
        }
    }
    for (uint32_t call = 0; call < 3; call++) {
        reduce(groups[0], fault->count, out);
        if (out->status < 0) {
            fail_rank("weft_all_reduce");
        }
    }
    atomic_fetch_add(&board->ready, 1);
    if (rank == VICTIM) { /* none of those calls may see it */
        while (atomic_load(&board->ready) < RANKS) {
            wefti_sleep_ns(1000000);
        }
        fault->strike(board);
        _exit(0);
    }
    uint64_t start = wefti_now_ns();
    if (!fault->idle) {
        reduce(groups[0], fault->count, out);
    }
    for (uint32_t g = 0; g < GROUPS; g++) {
        weft_group_destroy(groups[g]);
    }
    weft_context_release(context);
    out->left_ns = wefti_now_ns() - start;
    _exit(0);
}

/* Begins a world in which the fault strikes. */
static board_t *begin_fault(const fault_t *fault)
{
    char address[256];
    bool one_host = fault->ranks_per_host == RANKS;
    board_t *board =
        mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(board != MAP_FAILED);
    snprintf(address, sizeof address, "%s-%d-%s",
             one_host ? "unix:@weft-bounded" : "file:///tmp/weft-bounded", (int)getpid(),
             fault->name);
    fflush(NULL);
    for (uint32_t r = 0; r < RANKS; r++) {
        pid_t pid = fork();
        if (pid == 0) {
            run_rank(fault, r, address, board);
        }
        board->pids[r] = pid;
    }
    return board;
}

/* Nothing fails here, so that no process of any fault remains. */
static void end_fault(board_t *board)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        if (r != VICTIM) {
            waitpid(board->pids[r], &board->outcomes[r].how, 0);
        }
    }
    kill(board->pids[VICTIM], SIGKILL);
    waitpid(board->pids[VICTIM], NULL, 0);
    atomic_store(&board->over, 1);
}

static void check_fault(const fault_t *fault, board_t *board)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        const outcome_t *out = &board->outcomes[r];
        if (r == VICTIM) {
            continue;
        }
        if (out->how != 0) {
            fail_msg("%s: rank %u ended with status 0x%x", fault->name, r, (unsigned)out->how);
        }
        if (!fault->idle &&
            (out->status != fault->status || strstr(out->text, fault->text) == NULL)) {
            fail_msg("%s: rank %u: %d %s", fault->name, r, out->status, out->text);
        }
        if (out->left_ns >= GUARD_NS) {
            fail_msg("%s: rank %u left after %.1f s", fault->name, r, (double)out->left_ns * 1e-9);
        }
    }
    munmap(board, sizeof *board);
}

static void test_bounded_leaving(void **state)
{
    (void)state;
    static const fault_t faults[] = {
        {"shm", RANKS, 4, stop, false, WEFT_ERR_TIMEOUT, "late: rank 2"},
        {"tcp", 1, 4, stop, false, WEFT_ERR_TIMEOUT, "late: rank 2"},
        {"mixed", 2, 300000, stop, false, WEFT_ERR_TIMEOUT, "late: rank 2"},
        {"idle-tcp", 1, 300000, stop, true, WEFT_OK, ""},
        {"idle-shm", RANKS, 4, stop, true, WEFT_OK, ""},
        {"forked-tcp", 1, 4, fork_and_die, false, WEFT_ERR_PEER_DIED, "rank 2 (host host-2) died"},
        {"forked-shm", RANKS, 4, fork_and_die, false, WEFT_ERR_PEER_DIED, "rank 2 (pid "},
        {"cloned-tcp", 1, 300000, clone_and_die, false, WEFT_ERR_PEER_DIED,
         "rank 2 (host host-2) died"},
        {"cloned-mixed", 2, 4, clone_and_die, false, WEFT_ERR_PEER_DIED, "rank 2 (host host-1"},
    };
    enum { FAULTS = sizeof faults / sizeof faults[0] };
    board_t *boards[FAULTS];
    for (size_t i = 0; i < FAULTS; i++) {
        boards[i] = begin_fault(&faults[i]);
    }
    for (size_t i = 0; i < FAULTS; i++) {
        end_fault(boards[i]);
    }
    for (size_t i = 0; i < FAULTS; i++) {
        check_fault(&faults[i], boards[i]);
    }
}

int main(void)
{
    setenv("WEFT_TIMEOUT", "8", 1);
    setenv("WEFT_LOG", "error", 1);
    setenv("WEFT_IFNAME", "lo", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounded_leaving),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
