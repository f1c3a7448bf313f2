/* SPDX-License-Identifier: Apache-2.0 */
/* Killed ranks, file size limits, forked children: processes only. */
#include "support.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "transport/endpoint.h"
#include "transport/shm.h"
#include "transport/socket/fork.h"

#define MAX_RANKS 8u

/* Shared with the children: what each rank saw, and when. */
typedef struct board {
    _Atomic uint64_t killed_at_ns;
    uint64_t returned_at_ns[MAX_RANKS];
    int status[MAX_RANKS];
    pid_t pids[MAX_RANKS];
    char text[MAX_RANKS][256];
    wefti_signal_t ready; /* counts ranks that are about to wait */
    _Atomic uint32_t ready_count;
    int how;       /* 0 signal, 1 barrier, 2 all-gather */
    bool executes; /* the victim executes another program, and keeps its pid */
} board_t;

static board_t *board_create(int how)
{
    board_t *board =
        mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(board != MAP_FAILED);
    board->how = how;
    return board;
}

/* The victim tells that it is about to die, once all others are about to wait, and kills itself. */
static int wait_while_one_dies(wefti_endpoint_t *endpoint, void *user)
{
    board_t *board = user;
    size_t offset;
    uint32_t rank = endpoint->rank, victim = endpoint->world_size - 1;
    EXPECT(wefti_region_alloc(endpoint, sizeof(wefti_signal_t), &offset) == WEFT_OK);
    wefti_signal_t *own = (wefti_signal_t *)(void *)(endpoint->region_of[rank] + offset);
    board->pids[rank] = getpid();
    if (rank == victim) {
        EXPECT(wefti_wait_signal(endpoint, &board->ready, victim, "the others", NULL, NULL) ==
               WEFT_OK);
        atomic_store(&board->killed_at_ns, wefti_now_ns());
        if (board->executes) {
            execl("/bin/sleep", "sleep", "1000", (char *)NULL);
        }
        kill(getpid(), SIGKILL);
    }
    uint32_t ready = atomic_fetch_add(&board->ready_count, 1) + 1;
    if (ready == victim) {
        wefti_signal_post(&board->ready, ready);
    }
    uint8_t byte = 0, all[MAX_RANKS];
    weft_status_t status = board->how == 0
                               ? wefti_wait_signal(endpoint, own, 1, "a step", NULL, NULL)
                           : board->how == 1 ? wefti_endpoint_barrier(endpoint)
                                             : wefti_endpoint_all_gather(endpoint, &byte, 1, all);
    board->returned_at_ns[rank] = wefti_now_ns();
    board->status[rank] = status;
    snprintf(board->text[rank], sizeof board->text[rank], "%s", weft_last_error());
    return 0;
}

static void check_kill(uint32_t size, int how, bool executes)
{
    char address[64], expected[128];
    pid_t pids[MAX_RANKS];
    board_t *board = board_create(how);
    board->executes = executes;
    world_t world = {
        .size = size, .fn = wait_while_one_dies, .user = board, .settings = test_settings()};
    new_address(address, sizeof address);
    for (uint32_t r = 0; r < size; r++) {
        pids[r] = fork_rank(&world, r, address);
    }
    /* Not yet waited for, the victim is a zombie: that must count as dead. */
    for (uint32_t r = 0; r < size - 1; r++) {
        assert_int_equal(wait_for(pids[r]), 0);
    }
    kill(pids[size - 1], SIGKILL); /* the other program */
    assert_int_equal(wait_for(pids[size - 1]), -SIGKILL);
    snprintf(expected, sizeof expected, "rank %u (pid %d) died%s", size - 1, (int)pids[size - 1],
             executes ? ": its process executes another program" : "");
    uint64_t slowest = 0;
    for (uint32_t r = 0; r < size - 1; r++) {
        uint64_t took = board->returned_at_ns[r] - board->killed_at_ns;
        slowest = took > slowest ? took : slowest;
        if (board->status[r] != WEFT_ERR_PEER_DIED || strstr(board->text[r], expected) == NULL) {
            fail_msg("rank %u: %d %s", r, board->status[r], board->text[r]);
        }
        assert_true(took < 300000000000ull); /* half of the time-out */
    }
    print_message("%u ranks, one %s: the slowest returned after %.1f ms\n", size,
                  executes ? "executes" : "killed", (double)slowest * 1e-6);
    munmap(board, sizeof *board);
}

static void test_failure_killed_rank(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        check_kill(3, how, false);
        check_kill(5, how, false);
        check_kill(2, how, false);
    }
}

static void test_failure_executes_another_program(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        check_kill(3, how, true);
    }
}

typedef struct storm {
    board_t *board;
    uint32_t victim, rounds;
} storm_t;

/* Everything collective in turn; the victim dies somewhere in the midst of it. */
static int work_until_one_dies(wefti_endpoint_t *endpoint, void *user)
{
    storm_t *storm = user;
    board_t *board = storm->board;
    uint32_t rank = endpoint->rank;
    weft_status_t status = WEFT_OK;
    for (uint32_t round = 0; status == WEFT_OK; round++) {
        uint64_t part[600] = {round}, all[600 * MAX_RANKS];
        size_t offset = 0;
        if (rank == storm->victim && round == storm->rounds) {
            atomic_store(&board->killed_at_ns, wefti_now_ns());
            kill(getpid(), SIGKILL);
        }
        switch (round % 4) {
        case 0:
            status = wefti_endpoint_all_gather(endpoint, part, sizeof part, all);
            break;
        case 1:
            status = wefti_region_alloc(endpoint, 100000, &offset);
            break;
        case 2:
            wefti_region_free(endpoint, 0);
            status = wefti_endpoint_barrier(endpoint);
            break;
        default:
            status = wefti_endpoint_agree(endpoint, WEFT_OK);
        }
    }
    board->returned_at_ns[rank] = wefti_now_ns();
    board->status[rank] = status;
    snprintf(board->text[rank], sizeof board->text[rank], "%s", weft_last_error());
    return 0;
}

static void test_failure_killed_anywhere(void **state)
{
    (void)state;
    unsigned seed = (unsigned)getpid();
    print_message("seed %u\n", seed);
    for (uint32_t trial = 0; trial < 24; trial++) {
        uint32_t size = 2 + (uint32_t)rand_r(&seed) % 5;
        storm_t storm = {board_create(0), (uint32_t)rand_r(&seed) % size,
                         (uint32_t)rand_r(&seed) % 40};
        world_t world = {
            .size = size, .fn = work_until_one_dies, .user = &storm, .settings = test_settings()};
        char address[64], expected[64];
        pid_t pids[MAX_RANKS];
        new_address(address, sizeof address);
        for (uint32_t r = 0; r < size; r++) {
            pids[r] = fork_rank(&world, r, address);
        }
        snprintf(expected, sizeof expected, "rank %u (pid %d) died", storm.victim,
                 (int)pids[storm.victim]);
        for (uint32_t r = 0; r < size; r++) {
            assert_int_equal(wait_for(pids[r]), r == storm.victim ? -SIGKILL : 0);
        }
        for (uint32_t r = 0; r < size; r++) {
            if (r != storm.victim && (storm.board->status[r] != WEFT_ERR_PEER_DIED ||
                                      strstr(storm.board->text[r], expected) == NULL)) {
                fail_msg("rank %u of %u: %d %s, not %s", r, size, storm.board->status[r],
                         storm.board->text[r], expected);
            }
            assert_true(r == storm.victim ||
                        storm.board->returned_at_ns[r] - storm.board->killed_at_ns <
                            300000000000ull);
        }
        munmap(storm.board, sizeof *storm.board);
    }
}

#define FILE_LIMIT (3u * (4u << 20))

/* The memory of all ranks lies in one file: each has its share of the limit. */
static int under_file_size_limit(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    size_t offset;
    EXPECT(wefti_region_alloc(endpoint, 8u << 20, &offset) == WEFT_ERR_NO_MEMORY);
    EXPECT(strstr(weft_last_error(), "rank 0: ") != NULL);
    EXPECT(strstr(weft_last_error(), "cannot grow to 8.0 MiB") != NULL);
    EXPECT(strstr(weft_last_error(), "4.0 MiB per rank") != NULL);
    EXPECT(strstr(weft_last_error(), "ulimit -f") != NULL);
    sigset_t pending, blocked;
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    EXPECT(!sigismember(&pending, SIGXFSZ) && !sigismember(&blocked, SIGXFSZ));
    /* What fits still works, on all. */
    EXPECT(wefti_region_alloc(endpoint, 512u << 10, &offset) == WEFT_OK);
    memset(endpoint->region_of[0] + offset, 1, 512u << 10);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    return 0;
}

static void test_failure_file_size_limit(void **state)
{
    (void)state;
    struct rlimit before, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = (struct rlimit){FILE_LIMIT, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    run_processes(&(world_t){.size = 3, .fn = under_file_size_limit, .settings = test_settings()});
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
}

/* One rank may not open enough files for the memory of the world: the others learn why it left. */
static void test_failure_few_descriptors(void **state)
{
    (void)state;
    board_t *board = board_create(0);
    char address[64];
    pid_t pids[3];
    const wefti_settings_t settings = test_settings();
    new_address(address, sizeof address);
    for (uint32_t r = 0; r < 3; r++) {
        fflush(NULL);
        pids[r] = fork();
        if (pids[r] == 0) {
            wefti_endpoint_t *endpoint;
            int next = dup(0);
            close(next);
            if (r == 2) { /* the socket and one descriptor more */
                const struct rlimit limit = {(rlim_t)next + 2, (rlim_t)next + 2};
                setrlimit(RLIMIT_NOFILE, &limit);
            }
            board->status[r] = open_rank(r, 3, address, NULL, &settings, &endpoint);
            snprintf(board->text[r], sizeof board->text[r], "%s", weft_last_error());
            _exit(0);
        }
    }
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(wait_for(pids[r]), 0);
    }
    for (uint32_t r = 0; r < 3; r++) {
        if (board->status[r] != WEFT_ERR_SYSTEM ||
            strstr(board->text[r], "rank 2: cannot receive the descriptors") == NULL) {
            fail_msg("rank %u: %d %s", r, board->status[r], board->text[r]);
        }
    }
    munmap(board, sizeof *board);
}

static void test_failure_more_than_the_machine(void **state)
{
    (void)state;
    assert_int_equal(wefti_memory_check((size_t)1 << 50, 2), WEFT_ERR_NO_MEMORY);
    assert_non_null(strstr(weft_last_error(), "each of 2 ranks"));
    assert_int_equal(wefti_memory_check(SIZE_MAX, 3), WEFT_ERR_NO_MEMORY);
    assert_int_equal(wefti_memory_check(4096, 2), WEFT_OK);
}

/* More ranks than each watches all the time, and a pair of them that do not watch each other. */
#define LARGE 72u
#define LARGE_VICTIM 37u

typedef struct large {
    uint32_t waiter;
    bool at_its_deadline;     /* it begins to wait when the other one is dead, for a moment */
    _Atomic uint32_t blocked; /* ranks that only look at this */
    uint32_t descriptors[LARGE], mappings[LARGE];
    char text[256];
} large_t;

static uint32_t mapping_count(void)
{
    uint32_t lines = 0;
    FILE *file = fopen("/proc/self/maps", "re");
    for (int c; file != NULL && (c = fgetc(file)) != EOF;) {
        lines += c == '\n';
    }
    if (file != NULL) {
        fclose(file);
    }
    return lines;
}

/* Only one rank waits in Weft when another dies; the others wait for it elsewhere. */
static int large_world(wefti_endpoint_t *endpoint, void *user)
{
    large_t *large = user;
    size_t offset;
    uint32_t rank = endpoint->rank;
    EXPECT(wefti_region_alloc(endpoint, sizeof(wefti_signal_t), &offset) == WEFT_OK);
    large->descriptors[rank] = (uint32_t)open_fd_count();
    large->mappings[rank] = mapping_count();
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    atomic_fetch_add(&large->blocked, rank != large->waiter);
    if (rank == LARGE_VICTIM) {
        while (atomic_load(&large->blocked) < LARGE - 1) {
            sched_yield();
        }
        kill(getpid(), SIGKILL);
    }
    if (rank == large->waiter) {
        static wefti_settings_t settings;
        settings = *endpoint->settings;
        if (large->at_its_deadline) {
            settings.timeout_ns = 1;
            endpoint->settings = &settings;
            while (!wefti_shm_is_dead((pid_t)endpoint->control[LARGE_VICTIM]->pid)) {
                sched_yield();
            }
        }
        wefti_signal_t *signal = (wefti_signal_t *)(void *)(endpoint->region_of[rank] + offset);
        weft_status_t status = wefti_wait_signal(endpoint, signal, 1, "a step", NULL, NULL);
        snprintf(large->text, sizeof large->text, "%s", weft_last_error());
        atomic_store(&large->blocked, LARGE);
        wefti_futex_wake_all(&large->blocked);
        EXPECT(status == WEFT_ERR_PEER_DIED);
        return 0;
    }
    for (uint32_t seen; (seen = atomic_load(&large->blocked)) < LARGE;) {
        wefti_futex_wait(&large->blocked, seen, UINT64_MAX / 4);
    }
    return 0;
}

/* What a rank holds grows with the logarithm of the world, and any rank's death is still seen by
 * any rank that waits. */
static void large_world_with(uint32_t waiter, bool at_its_deadline)
{
    large_t *large =
        mmap(NULL, sizeof *large, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(large != MAP_FAILED);
    large->waiter = waiter;
    large->at_its_deadline = at_its_deadline;
    uint32_t mappings = mapping_count(), descriptors = (uint32_t)open_fd_count();
    run_processes(&(world_t){.size = LARGE,
                             .fn = large_world,
                             .user = large,
                             .settings = test_settings(),
                             .killed = LARGE_VICTIM + 1});
    assert_non_null(strstr(large->text, "rank 37 (pid "));
    if (strstr(large->text, "died") == NULL || strstr(large->text, "executes") != NULL) {
        fail_msg("%s", large->text);
    }
    for (uint32_t r = 1; r < LARGE; r++) { /* rank 0 keeps a connection to each */
        /* neighbours at distances 1 to 64 in both directions, rank 0, the regions */
        assert_in_range(large->descriptors[r] - descriptors, 2, 2 * 7 + 2);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they map much themselves */
        assert_in_range(large->mappings[r] - mappings, 2, 16);
#endif
    }
    (void)mappings;
    munmap(large, sizeof *large);
}

static void test_failure_large_world(void **state)
{
    (void)state;
    large_world_with(0, false); /* has a connection to the rank that dies */
    large_world_with(1, false);
    large_world_with(1, true); /* of the rank's turn there is no time to wait for */
}

#define KEPT_BYTES ((size_t)4 << 20)

typedef struct kept {
    _Atomic uint32_t allocated, closed;
} kept_t;

/* A descriptor of the file of all regions. */
static int open_regions(void)
{
    char name[64], path[64];
    for (int fd = 0; fd < 1024; fd++) {
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(name, path, sizeof path - 1);
        path[length > 0 ? length : 0] = '\0';
        if (strstr(path, "weft-region") != NULL) {
            return dup(fd);
        }
    }
    return -1;
}

/* Rank 2 dies, rank 1 leaves, and rank 0 keeps its region. */
static int keeps_region(uint32_t rank, const char *address, kept_t *kept)
{
    wefti_settings_t settings = test_settings();
    wefti_endpoint_t *endpoint;
    size_t offset;
    struct stat before, after;
    if (open_rank(rank, 3, address, NULL, &settings, &endpoint) < 0) {
        return 100;
    }
    EXPECT(wefti_region_alloc(endpoint, KEPT_BYTES, &offset) == WEFT_OK);
    uint8_t *own = endpoint->region_of[rank] + offset;
    memset(own, 0x5a, KEPT_BYTES);
    atomic_fetch_add(&kept->allocated, 1);
    while (atomic_load(&kept->allocated) < 3) {
        sched_yield();
    }
    if (rank == 2) {
        kill(getpid(), SIGKILL);
    }
    if (rank == 1) {
        wefti_endpoint_close(endpoint);
        atomic_store(&kept->closed, 1);
        return 0;
    }
    while (atomic_load(&kept->closed) == 0 || wefti_endpoint_check(endpoint) == WEFT_OK) {
        sched_yield();
    }
    int fd = open_regions();
    EXPECT(fd >= 0 && fstat(fd, &before) == 0);
    EXPECT((size_t)before.st_blocks * 512 >= 3 * KEPT_BYTES);
    wefti_region_keep(endpoint);
    wefti_endpoint_close(endpoint);
    if (fstat(fd, &after) != 0 || (size_t)after.st_blocks * 512 >= 2 * KEPT_BYTES) {
        fprintf(stderr, "%lld blocks, %lld before\n", (long long)after.st_blocks,
                (long long)before.st_blocks);
        return 1;
    }
    return own[0] == 0x5a && own[KEPT_BYTES - 1] == 0x5a ? 0 : 2;
}

/* Memory of ranks that died or left does not stay because another rank has kept its own. */
static void test_failure_kept_region(void **state)
{
    (void)state;
    kept_t *kept =
        mmap(NULL, sizeof *kept, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(kept != MAP_FAILED);
    char address[64];
    pid_t pids[3];
    new_address(address, sizeof address);
    for (uint32_t r = 0; r < 3; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            _exit(keeps_region(r, address, kept));
        }
    }
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(wait_for(pids[r]), r == 2 ? -SIGKILL : 0);
    }
    munmap(kept, sizeof *kept);
}

/* A child forked by a rank gets errors, and leaves the world as it is. */
static int forks(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    size_t offset;
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    pid_t pid = fork();
    if (pid == 0) {
        uint8_t byte = 0, all[MAX_RANKS];
        int wrong = wefti_endpoint_owned(endpoint);
        wrong |= wefti_endpoint_barrier(endpoint) != WEFT_ERR_STATE;
        wrong |= wefti_endpoint_all_gather(endpoint, &byte, 1, all) != WEFT_ERR_STATE;
        wrong |= wefti_region_alloc(endpoint, 4096, &offset) != WEFT_ERR_STATE;
        wrong |= wefti_endpoint_check(endpoint) != WEFT_ERR_STATE;
        wrong |= wefti_wait_signal(endpoint, NULL, 1, "x", NULL, NULL) != WEFT_ERR_STATE;
        wefti_endpoint_abort(endpoint, WEFT_ERR_ABORTED, "by the child");
        wefti_endpoint_close(endpoint);
        _exit(wrong);
    }
    EXPECT(wait_for(pid) == 0);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

static void test_failure_forked_child(void **state)
{
    (void)state;
    run_processes(&(world_t){.size = 2, .fn = forks, .settings = test_settings()});
}

/* A child that lives longer than its parent does not keep the parent's connections. */
static void test_failure_child_gives_sockets_up(void **state)
{
    (void)state;
    int ends[2], stays[2];
    char byte;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, stays), 0);
    wefti_socket_guard(ends[0]);
    int before = open_fd_count();
    pid_t pid = fork();
    if (pid == 0) {
        int wrong = open_fd_count() != before || write(ends[0], "x", 1) != 1;
        wefti_socket_close(ends[0]);
        wrong |= open_fd_count() != before - 1;
        close(stays[1]);
        wrong |= read(stays[0], &byte, 1) != 0; /* until the test is over */
        _exit(wrong);
    }
    close(stays[0]);
    wefti_socket_close(ends[0]);
    assert_int_equal(read(ends[1], &byte, 1), 0); /* the end, and not what the child wrote */
    close(ends[1]);
    close(stays[1]);
    assert_int_equal(wait_for(pid), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failure_killed_rank),
        cmocka_unit_test(test_failure_executes_another_program),
        cmocka_unit_test(test_failure_killed_anywhere),
        cmocka_unit_test(test_failure_file_size_limit),
        cmocka_unit_test(test_failure_few_descriptors),
        cmocka_unit_test(test_failure_large_world),
        cmocka_unit_test(test_failure_kept_region),
        cmocka_unit_test(test_failure_more_than_the_machine),
        cmocka_unit_test(test_failure_forked_child),
        cmocka_unit_test(test_failure_child_gives_sockets_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
