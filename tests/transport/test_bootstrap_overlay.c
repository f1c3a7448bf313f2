/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks meet and talk over the overlay: all-gathers, floods, who leaves, who dies. */
#include "support_overlay.h"

#include <pthread.h>
#include <sched.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "transport/bootstrap/overlay.h"

/* ---- all-gather ---- */

static weft_status_t gather(seat_t *seat, const void *send, size_t bytes, void *recv,
                            uint32_t timeout_ms, weft_status_t (*check)(void *user), void *user)
{
    const wefti_gather_t params = {.send = send,
                                   .bytes = bytes,
                                   .recv = recv,
                                   .timeout_ns = timeout_ms * 1000000ull,
                                   .check = check,
                                   .user = user};
    return wefti_overlay_all_gather(seat->overlay, &params);
}

static int gather_some(seat_t *seat, void *user)
{
    static const size_t sizes[] = {0, 1, 7, 64, 5000};
    uint32_t n = seat->job.world_size;
    (void)user;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t bytes = sizes[s];
        uint8_t *send = malloc(bytes + 1), *recv = malloc(n * bytes + 1);
        memset(send, (int)(seat->job.rank * 31 + s), bytes);
        SEAT_CHECK(gather(seat, send, bytes, recv, 60000, NULL, NULL) == WEFT_OK);
        for (size_t i = 0; i < n * bytes; i++) {
            SEAT_CHECK(recv[i] == (uint8_t)(i / bytes * 31 + s));
        }
        free(send);
        free(recv);
    }
    return 0;
}

static void test_all_gather(void **state)
{
    (void)state;
    for (uint32_t size = 2; size <= 13; size++) {
        overlay_world_t world = {.size = size, .fn = gather_some};
        run_overlay_threads(&world);
    }
}

static int gather_unequal(seat_t *seat, void *user)
{
    uint8_t send[8] = {0}, recv[64];
    (void)user;
    weft_status_t status = gather(seat, send, seat->job.rank == 1 ? 4 : 8, recv, 60000, NULL, NULL);
    /* Not everybody sees it at once: those who do tell the others, which is the caller's part. */
    if (seat->job.rank <= 1) {
        SEAT_CHECK(status == WEFT_ERR_MISMATCH);
        SEAT_CHECK(strstr(weft_last_error(), "bytes per rank") != NULL);
    }
    return 0;
}

static void test_all_gather_of_unequal_bytes(void **state)
{
    (void)state;
    overlay_world_t world = {.size = 2, .fn = gather_unequal};
    run_overlay_threads(&world);
}

static weft_status_t give_up(void *user)
{
    return ++*(int *)user > 2 ? wefti_error(WEFT_ERR_ABORTED, "enough") : WEFT_OK;
}

static int gather_alone(seat_t *seat, void *user)
{
    uint8_t send[8] = {0}, recv[64];
    int looks = 0;
    (void)user;
    if (seat->job.rank == 0) {
        SEAT_CHECK(gather(seat, send, 8, recv, 60000, give_up, &looks) == WEFT_ERR_ABORTED);
        SEAT_CHECK(gather(seat, send, 8, recv, 20, NULL, NULL) == WEFT_ERR_TIMEOUT);
        SEAT_CHECK(strstr(weft_last_error(), "rank 1") != NULL);
        wefti_overlay_flood(seat->overlay, 1, "go", 2);
    } else {
        SEAT_CHECK(await_events(seat, 1, 0, 0));
    }
    return 0;
}

static void test_all_gather_ends(void **state)
{
    (void)state;
    overlay_world_t world = {.size = 2, .fn = gather_alone};
    run_overlay_threads(&world);
}

/* While rank 0 checks for an abort, rank 1 runs the whole all-gather; then the check fails. */
typedef struct late_check {
    atomic_bool checking, done;
} late_check_t;

static void await_flag(atomic_bool *flag)
{
    uint64_t end = soon(60);
    while (!atomic_load(flag) && wefti_now_ns() < end) {
        sched_yield();
    }
}

static weft_status_t fail_when_sent(void *user)
{
    late_check_t *late = user;
    atomic_store(&late->checking, true);
    await_flag(&late->done);
    return wefti_error(WEFT_ERR_ABORTED, "aborted by a later call");
}

static int gather_before_abort(seat_t *seat, void *user)
{
    late_check_t *late = user;
    uint8_t send = (uint8_t)(seat->job.rank + 1), recv[2] = {0};
    if (seat->job.rank == 0) {
        SEAT_CHECK(gather(seat, &send, 1, recv, 60000, fail_when_sent, late) == WEFT_OK);
    } else {
        await_flag(&late->checking);
        weft_status_t status = gather(seat, &send, 1, recv, 60000, NULL, NULL);
        atomic_store(&late->done, true);
        SEAT_CHECK(status == WEFT_OK);
    }
    SEAT_CHECK(recv[0] == 1 && recv[1] == 2);
    return 0;
}

static void test_all_gather_completed_before_an_abort(void **state)
{
    (void)state;
    late_check_t late = {0};
    overlay_world_t world = {.size = 2, .fn = gather_before_abort, .user = &late};
    run_overlay_threads(&world);
}

/* ---- deadlines of all-gathers ---- */

static void move_on(wefti_overlay_t *overlay, uint64_t at_ns)
{
    atomic_store((_Atomic uint64_t *)(uintptr_t)wefti_overlay_moved(overlay), at_ns);
}

typedef struct long_wait {
    uint64_t since_ns;
    atomic_bool over;
} long_wait_t;

static weft_status_t look_at_the_clock(void *user)
{
    long_wait_t *wait = user;
    if (wefti_now_ns() - wait->since_ns > 60000000) {
        atomic_store(&wait->over, true);
    }
    return WEFT_OK;
}

/* Rank 0 waits for longer than its time-out, as something went on since. */
static int gather_late(seat_t *seat, void *user)
{
    uint8_t send = 0, recv[2];
    long_wait_t *wait = user;
    if (seat->job.rank == 0) {
        move_on(seat->overlay, soon(600));
        wait->since_ns = wefti_now_ns();
        SEAT_CHECK(gather(seat, &send, 1, recv, 20, look_at_the_clock, wait) == WEFT_OK);
    } else {
        await_flag(&wait->over);
        SEAT_CHECK(gather(seat, &send, 1, recv, 60000, NULL, NULL) == WEFT_OK);
    }
    return 0;
}

static void test_deadline_from_the_last_move(void **state)
{
    (void)state;
    long_wait_t wait = {0};
    overlay_world_t world = {.size = 2, .fn = gather_late, .user = &wait};
    run_overlay_threads(&world);
}

/* Rank 0 learns that an all-gather goes on at rank 3, to which it has no link. */
static int hear_of_moves(seat_t *seat, void *user)
{
    uint8_t send = 0, recv[8];
    uint64_t begin, end = soon(60);
    const _Atomic uint64_t *moved_ns = wefti_overlay_moved(seat->overlay);
    (void)user;
    seat->settings.timeout_ns = 16000000; /* news once per millisecond */
    SEAT_CHECK(gather(seat, &send, 1, recv, 60000, NULL, NULL) == WEFT_OK);
    begin = wefti_now_ns();
    if (seat->job.rank == 0) {
        wefti_overlay_flood(seat->overlay, 1, "begin", 5);
        while (atomic_load(moved_ns) < begin && wefti_now_ns() < end) {
            wefti_overlay_progress(seat->overlay);
        }
        SEAT_CHECK(atomic_load(moved_ns) >= begin);
        wefti_overlay_flood(seat->overlay, 1, "end", 3);
    } else if (seat->job.rank == 3) {
        SEAT_CHECK(await_events(seat, 1, 0, 0));
        while (seat->told < 2 && wefti_now_ns() < end) {
            wefti_overlay_gather_moves(seat->overlay);
            wefti_overlay_progress(seat->overlay);
            sched_yield();
        }
    } else {
        SEAT_CHECK(await_events(seat, 2, 0, 0));
    }
    SEAT_CHECK(gather(seat, &send, 1, recv, 60000, NULL, NULL) == WEFT_OK);
    return 0;
}

static void test_moves_are_known(void **state)
{
    (void)state;
    overlay_world_t far = {.size = 8, .fn = hear_of_moves};
    run_overlay_threads(&far);
}

/* ---- floods ---- */

static int flood_all(seat_t *seat, void *user)
{
    uint8_t data[WEFTI_FLOOD_BYTES];
    uint32_t n = seat->job.world_size;
    (void)user;
    for (uint32_t i = 0; i < 3; i++) {
        memset(data, (int)(seat->job.rank + i), sizeof data);
        wefti_overlay_flood(seat->overlay, 7 + i, data, sizeof data);
    }
    SEAT_CHECK(await_events(seat, 3 * (n - 1), 0, 0));
    uint8_t token = 0, tokens[64];
    SEAT_CHECK(gather(seat, &token, 1, tokens, 60000, NULL, NULL) == WEFT_OK);
    wefti_overlay_progress(seat->overlay);
    SEAT_CHECK(seat->told == 3 * (n - 1)); /* each once, however it came */
    for (uint32_t r = 0; r < n; r++) {
        SEAT_CHECK(seat->told_by[r] == (r == seat->job.rank ? 0 : 3));
    }
    return 0;
}

static void test_floods_arrive_once(void **state)
{
    (void)state;
    overlay_world_t world = {.size = 11, .fn = flood_all};
    run_overlay_threads(&world);
}

/* ---- questions ---- */

#define ASKED 9u
#define LONG_WORDS (1u << 20) /* more than sockets take at once */

typedef struct question {
    char name[WEFTI_ASK_NAME_BYTES];
    uint32_t answers[ASKED]; /* how often each rank answered */
    atomic_uint relays;
    atomic_bool listens, done;
} question_t;

#define SHORT_TURN 8u
#define MANY 4u

/* Its number, at the front of a long answer where the number is odd; rank 5 is slow to answer. */
static void *answer(void *user, bool relays, uint32_t turn, size_t *out_bytes)
{
    seat_t *seat = user;
    uint32_t words = seat->job.rank % 2 == 1 && turn < SHORT_TURN ? LONG_WORDS : 1;
    if (seat->job.rank == 5 && turn == 0) {
        return NULL;
    }
    if (relays) { /* one rank */
        ((question_t *)seat->world->user)->relays++;
    }
    uint32_t *data = calloc(words, sizeof *data);
    data[0] = seat->job.rank;
    *out_bytes = words * sizeof *data;
    return data;
}

static bool take_answer(void *user, const void *data, size_t bytes)
{
    question_t *question = user;
    uint32_t rank, heard = 0;
    memcpy(&rank, data, sizeof rank);
    bool whole = rank < ASKED && bytes == (rank % 2 == 1 ? LONG_WORDS : 1) * sizeof rank;
    question->answers[whole ? rank : 0]++;
    for (uint32_t r = 0; r < ASKED; r++) {
        heard += question->answers[r] > 0;
    }
    return heard == ASKED;
}

static int connect_to(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(address.sun_path + 1, name, strlen(name));
    if (connect(fd, (struct sockaddr *)&address,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Many questions at once are passed on one after the other. */
static bool ask_many(question_t *question)
{
    uint32_t turn = SHORT_TURN, asked = question->relays;
    uint64_t began = wefti_now_ns();
    wefti_wire_t wire;
    wefti_wire_init(&wire, connect_to(question->name), 1 << 20, NULL);
    for (uint32_t i = 0; i < MANY; i++) {
        if (wefti_wire_send(&wire, WEFTI_ASK, &turn, sizeof turn, NULL, 0) != WEFT_OK) {
            return false;
        }
    }
    while (question->relays < asked + MANY) {
        poll(NULL, 0, 1);
    }
    wefti_wire_deinit(&wire);
    return wefti_now_ns() - began >= (MANY - 1) * WEFTI_ASK_PAUSE_NS;
}

/* After processes that are silent or send something else; then one that does not read. */
static void *ask_main(void *argument)
{
    question_t *question = argument;
    static const char garbage[100] = "GET / HTTP/1.1";
    int fds[6];
    await_flag(&question->listens);
    for (uint32_t i = 0; i < 6; i++) {
        fds[i] = connect_to(question->name);
        (void)!send(fds[i], garbage, i * 10, MSG_NOSIGNAL);
    }
    const wefti_asked_rank_t nobody[] = {{question->name, 1}, {"nowhere", getpid()}};
    const wefti_asked_rank_t asked[] = {{"nowhere", getpid()}, {question->name, getpid()}};
    weft_status_t refused = wefti_ask(nobody, 2, 1000000, 0, take_answer, question);
    weft_status_t status = wefti_ask(asked, 2, 300000000000ull, 0, take_answer, question);
    bool paused = ask_many(question);
    atomic_store(&question->done, true);
    for (uint32_t i = 0; i < 6; i++) {
        close(fds[i]);
    }
    return refused == WEFT_ERR_SYSTEM && status == WEFT_OK && paused ? question : NULL;
}

static int serve_questions(seat_t *seat, void *user)
{
    question_t *question = user;
    struct pollfd poll_fd = {.fd = wefti_overlay_poll_fd(seat->overlay), .events = POLLIN};
    if (seat->job.rank == 3) {
        SEAT_CHECK(wefti_overlay_listen(seat->overlay, question->name) == WEFT_OK);
        atomic_store(&question->listens, true);
    }
    while (!atomic_load(&question->done)) {
        poll(&poll_fd, 1, 1);
        wefti_overlay_progress(seat->overlay);
    }
    return 0;
}

static void test_questions_of_other_processes(void **state)
{
    (void)state;
    pthread_t asker;
    void *all;
    question_t question = {.relays = 0};
    overlay_world_t world = {
        .size = ASKED, .fn = serve_questions, .user = &question, .answer = answer};
    assert_int_equal(pthread_create(&asker, NULL, ask_main, &question), 0);
    run_overlay_threads(&world);
    pthread_join(asker, &all);
    assert_ptr_equal(all, &question);
    assert_true(question.relays > 0);
    assert_int_equal(question.answers[5], 1); /* in the second turn */
}

/* ---- leaving ---- */

static int leave_in_turn(seat_t *seat, void *user)
{
    (void)user;
    if (seat->job.rank % 3 == 1) {
        return 0;
    }
    uint32_t leavers = (seat->job.world_size + 1) / 3;
    SEAT_CHECK(await_events(seat, 0, leavers, 0));
    SEAT_CHECK(seat->died == 0);
    for (uint32_t r = 1; r < seat->job.world_size; r += 3) {
        SEAT_CHECK(seat->left_by[r] == 1);
    }
    return 0; /* those who stayed may see each other leave too */
}

static void test_all_learn_who_left(void **state)
{
    (void)state;
    overlay_world_t world = {.size = 12, .fn = leave_in_turn};
    run_overlay_threads(&world);
}

/* ---- dying ---- */

static int die_or_learn(seat_t *seat, void *user)
{
    uint8_t token = 0, tokens[64];
    (void)user;
    SEAT_CHECK(gather(seat, &token, 1, tokens, 60000, NULL, NULL) == WEFT_OK);
    if (seat->job.rank == 5) {
        raise(SIGKILL);
    }
    SEAT_CHECK(await_events(seat, 0, 0, 1));
    SEAT_CHECK(seat->last_dead == 5);
    SEAT_CHECK(seat->how[0] != '\0');
    SEAT_CHECK(seat->left_by[5] == 0);
    return 0;
}

static void test_all_learn_who_died(void **state)
{
    (void)state;
    int results[9];
    overlay_world_t world = {.size = 9, .fn = die_or_learn};
    run_overlay_processes(&world, results);
    for (int r = 0; r < 9; r++) {
        assert_int_equal(results[r], r == 5 ? -SIGKILL : 0);
    }
}

/* Rank 0 has a forked child, which keeps copies of its descriptors, when rank 1 dies. */
static int die_or_become_quiet(seat_t *seat, void *user)
{
    int32_t pid = (int32_t)getpid(), pids[2];
    (void)user;
    SEAT_CHECK(gather(seat, &pid, sizeof pid, pids, 60000, NULL, NULL) == WEFT_OK);
    if (seat->job.rank == 1) {
        pause();
    }
    wefti_overlay_watch_process(seat->overlay, 1, (pid_t)pids[1]);
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    kill((pid_t)pids[1], SIGKILL);
    bool died = await_events(seat, 0, 0, 1);
    struct pollfd poll_fd = {.fd = wefti_overlay_poll_fd(seat->overlay), .events = POLLIN};
    uint64_t end = soon(20);
    for (uint32_t quiet = 0; quiet < 20 && wefti_now_ns() < end;) {
        quiet = poll(&poll_fd, 1, 1) > 0 ? 0 : quiet + 1;
        wefti_overlay_progress(seat->overlay);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    SEAT_CHECK(died && wefti_now_ns() < end);
    return 0;
}

static void test_nothing_is_left_to_do_for_the_dead(void **state)
{
    (void)state;
    int results[2];
    overlay_world_t world = {.size = 2, .fn = die_or_become_quiet};
    run_overlay_processes(&world, results);
    assert_int_equal(results[0], 0);
    assert_int_equal(results[1], -SIGKILL);
}

/* ---- many ---- */

/* Links, and so messages, grow with the logarithm of the world. */
static int gather_and_flood(seat_t *seat, void *user)
{
    uint32_t n = seat->job.world_size, steps = 0;
    uint64_t own = seat->job.rank, all[SEATS_MAX];
    (void)user;
    while (1u << steps < n) {
        steps++;
    }
    SEAT_CHECK(gather(seat, &own, sizeof own, all, 60000, NULL, NULL) == WEFT_OK);
    for (uint32_t r = 0; r < n; r++) {
        SEAT_CHECK(all[r] == r);
    }
    SEAT_CHECK(seat->overlay->link_count <= 2 * steps);
    if (own == n / 2) {
        wefti_overlay_flood(seat->overlay, 3, "all", 3);
    } else {
        SEAT_CHECK(await_events(seat, 1, 0, 0));
    }
    SEAT_CHECK(gather(seat, &own, 0, all, 60000, NULL, NULL) == WEFT_OK);
    return 0;
}

static void test_many_processes(void **state)
{
    static int results[SEATS_MAX];
    (void)state;
    overlay_world_t world = {.size = SEATS_MAX, .fn = gather_and_flood};
    uint64_t began = wefti_now_ns();
    run_overlay_processes(&world, results);
    print_message("%u processes: %.2f s\n", SEATS_MAX, (double)(wefti_now_ns() - began) * 1e-9);
    for (uint32_t r = 0; r < SEATS_MAX; r++) {
        assert_int_equal(results[r], 0);
    }
}

/* ---- keys, descriptors, forks ---- */

static uint8_t keys[4][32];

static int keep_key(seat_t *seat, void *user)
{
    uint32_t turn = *(uint32_t *)user;
    if (seat->job.rank == 0) {
        memcpy(keys[turn], wefti_overlay_key(seat->overlay), 32);
    }
    uint8_t all[3][32];
    SEAT_CHECK(gather(seat, wefti_overlay_key(seat->overlay), 32, all, 60000, NULL, NULL) ==
               WEFT_OK);
    SEAT_CHECK(memcmp(all[0], all[1], 32) == 0 && memcmp(all[0], all[2], 32) == 0);
    SEAT_CHECK(strcmp(wefti_overlay_local_address(seat->overlay), "127.0.0.1") == 0);
    pid_t child = fork();
    if (child == 0) {
        wefti_overlay_close(seat->overlay, true);
        _exit(0);
    }
    int result = 0;
    SEAT_CHECK(waitpid(child, &result, 0) == child && result == 0);
    /* The child's closing was no goodbye. */
    SEAT_CHECK(gather(seat, "", 0, all, 60000, NULL, NULL) == WEFT_OK);
    SEAT_CHECK(seat->died == 0);
    return 0;
}

static void test_keys_and_descriptors(void **state)
{
    (void)state;
    int before = open_fd_count();
    for (uint32_t turn = 0; turn < 2; turn++) {
        overlay_world_t world = {.size = 3, .fn = keep_key, .user = &turn};
        run_overlay_threads(&world);
    }
    assert_memory_not_equal(keys[0], keys[1], 32);
    assert_int_equal(open_fd_count(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_gather),
        cmocka_unit_test(test_all_gather_of_unequal_bytes),
        cmocka_unit_test(test_all_gather_ends),
        cmocka_unit_test(test_all_gather_completed_before_an_abort),
        cmocka_unit_test(test_deadline_from_the_last_move),
        cmocka_unit_test(test_moves_are_known),
        cmocka_unit_test(test_floods_arrive_once),
        cmocka_unit_test(test_questions_of_other_processes),
        cmocka_unit_test(test_all_learn_who_left),
        cmocka_unit_test(test_all_learn_who_died),
        cmocka_unit_test(test_nothing_is_left_to_do_for_the_dead),
        cmocka_unit_test(test_many_processes),
        cmocka_unit_test(test_keys_and_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
