/* SPDX-License-Identifier: Apache-2.0 */
/* Joining: strangers, contradictions, absentees, and that nothing stays behind. */
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "transport/shm.h"

/* One rank's attempt to join, on a thread of its own. */
typedef struct attempt {
    uint32_t rank, world_size;
    const char *address;
    weft_hub_t *hub;
    wefti_settings_t settings;
    pthread_t thread;
    weft_status_t status;
    char text[512];
    wefti_endpoint_t *endpoint;
} attempt_t;

static void *attempt_main(void *argument)
{
    attempt_t *attempt = argument;
    attempt->status = open_rank(attempt->rank, attempt->world_size, attempt->address, attempt->hub,
                                &attempt->settings, &attempt->endpoint);
    if (attempt->status < 0) {
        snprintf(attempt->text, sizeof attempt->text, "%s", weft_last_error());
    }
    return NULL;
}

static void attempt_start(attempt_t *attempt, uint32_t rank, uint32_t world_size,
                          const char *address)
{
    memset(attempt, 0, sizeof *attempt);
    attempt->rank = rank;
    attempt->world_size = world_size;
    attempt->address = address;
    attempt->settings = test_settings();
    attempt->settings.timeout_ns = 300000000000ull;
}

static void attempts_run(attempt_t *attempts, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(pthread_create(&attempts[i].thread, NULL, attempt_main, &attempts[i]), 0);
    }
    for (uint32_t i = 0; i < count; i++) {
        pthread_join(attempts[i].thread, NULL);
    }
}

static void expect_all(attempt_t *attempts, uint32_t count, weft_status_t status, const char *text)
{
    for (uint32_t i = 0; i < count; i++) {
        if (attempts[i].status != status || strstr(attempts[i].text, text) == NULL) {
            fail_msg("rank %u of %u: %d %s", attempts[i].rank, count, attempts[i].status,
                     attempts[i].text);
        }
        assert_null(attempts[i].endpoint);
    }
}

/* True when the kernel still knows a socket of this name. */
static int socket_exists(const char *address)
{
    char line[512];
    int found = 0;
    FILE *file = fopen("/proc/net/unix", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        found |= strstr(line, address + 5) != NULL;
    }
    if (file != NULL) {
        fclose(file);
    }
    return found;
}

static void test_bootstrap_wrong_world_size(void **state)
{
    (void)state;
    attempt_t attempts[3];
    char address[64];
    int fds = open_fd_count();
    new_address(address, sizeof address);
    attempt_start(&attempts[0], 0, 3, address);
    attempt_start(&attempts[1], 1, 3, address);
    attempt_start(&attempts[2], 2, 4, address);
    attempts_run(attempts, 3);
    expect_all(attempts, 3, WEFT_ERR_MISMATCH, "has 4, rank 0 has 3");
    assert_int_equal(open_fd_count(), fds);
    assert_false(socket_exists(address));
}

static void test_bootstrap_duplicate_rank(void **state)
{
    (void)state;
    attempt_t attempts[3];
    char address[64];
    int fds = open_fd_count();
    new_address(address, sizeof address);
    attempt_start(&attempts[0], 0, 3, address);
    attempt_start(&attempts[1], 1, 3, address);
    attempt_start(&attempts[2], 1, 3, address);
    attempts_run(attempts, 3);
    expect_all(attempts, 3, WEFT_ERR_MISMATCH, "duplicate rank 1: ");
    assert_int_equal(open_fd_count(), fds);
}

static void test_bootstrap_second_rank_zero(void **state)
{
    (void)state;
    attempt_t attempts[3];
    char address[64];
    new_address(address, sizeof address);
    attempt_start(&attempts[0], 0, 2, address);
    attempt_start(&attempts[1], 0, 2, address);
    attempt_start(&attempts[2], 1, 2, address);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&attempts[i].thread, NULL, attempt_main, &attempts[i]), 0);
    }
    /* One of the two listens; the other one cannot, and returns at once. */
    uint32_t lost = 0;
    while (pthread_tryjoin_np(attempts[lost].thread, NULL) != 0) {
        lost = 1 - lost;
        sched_yield();
    }
    attempts_run(&attempts[2], 1);
    pthread_join(attempts[1 - lost].thread, NULL);
    assert_int_equal(attempts[lost].status, WEFT_ERR_SYSTEM);
    assert_non_null(strstr(attempts[lost].text, address));
    assert_int_equal(attempts[1 - lost].status, WEFT_OK);
    assert_int_equal(attempts[2].status, WEFT_OK);
    wefti_endpoint_close(attempts[1 - lost].endpoint);
    wefti_endpoint_close(attempts[2].endpoint);
}

static void test_bootstrap_missing_rank(void **state)
{
    (void)state;
    attempt_t attempts[2];
    char address[64];
    int fds = open_fd_count();
    new_address(address, sizeof address);
    attempt_start(&attempts[0], 0, 4, address);
    attempt_start(&attempts[1], 2, 4, address);
    attempts[0].settings.timeout_ns = attempts[1].settings.timeout_ns = 300000000ull;
    attempts_run(attempts, 2);
    expect_all(attempts, 2, WEFT_ERR_TIMEOUT, "missing ranks: 1, 3");
    /* Rank 0 is the one that is missing. */
    attempt_start(&attempts[0], 1, 2, address);
    attempts[0].settings.timeout_ns = 100000000ull;
    attempts_run(attempts, 1);
    expect_all(attempts, 1, WEFT_ERR_TIMEOUT, "missing ranks: 0");
    assert_int_equal(open_fd_count(), fds);
    assert_false(socket_exists(address));
}

static void test_bootstrap_different_settings(void **state)
{
    (void)state;
    attempt_t attempts[3];
    char address[64];
    new_address(address, sizeof address);
    for (uint32_t r = 0; r < 3; r++) {
        attempt_start(&attempts[r], r, 3, address);
    }
    attempts[2].settings.reserve_bytes = 32u << 20;
    attempts_run(attempts, 3);
    expect_all(attempts, 3, WEFT_ERR_MISMATCH, "rank 0 has 67108864, rank 2 has 33554432");
}

static void test_bootstrap_hub_mistakes(void **state)
{
    (void)state;
    attempt_t attempts[3];
    weft_hub_t *hub;
    assert_int_equal(weft_hub_create(0, &hub), WEFT_ERR_INVALID_ARGUMENT);
    assert_null(hub);
    assert_int_equal(weft_hub_create(3, &hub), WEFT_OK);
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t r = 0; r < 2; r++) {
            attempt_start(&attempts[r], r, 3, NULL);
            attempts[r].hub = hub;
            attempts[r].settings.timeout_ns = 100000000ull;
        }
        attempts_run(attempts, 2);
        expect_all(attempts, 2, WEFT_ERR_TIMEOUT, "missing ranks: 2");
    }
    /* The hub is as new after that: the next world comes about. */
    for (uint32_t r = 0; r < 3; r++) {
        attempt_start(&attempts[r], r, 3, NULL);
        attempts[r].hub = hub;
    }
    attempts_run(attempts, 3);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(attempts[r].status, WEFT_OK);
    }
    attempt_t late;
    attempt_start(&late, 1, 3, NULL);
    late.hub = hub;
    attempts_run(&late, 1);
    expect_all(&late, 1, WEFT_ERR_MISMATCH, "duplicate rank 1: two threads");
    attempt_start(&late, 1, 2, NULL);
    late.hub = hub;
    attempts_run(&late, 1);
    expect_all(&late, 1, WEFT_ERR_MISMATCH, "has 2, the hub has 3");
    for (uint32_t r = 0; r < 3; r++) {
        wefti_endpoint_close(attempts[r].endpoint);
    }
    weft_hub_destroy(hub);
    weft_hub_destroy(NULL);
}

static int connect_to(const char *address)
{
    struct sockaddr_un where = {.sun_family = AF_UNIX};
    size_t length = strlen(address + 5);
    memcpy(where.sun_path, address + 5, length);
    where.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    while (connect(fd, (struct sockaddr *)&where,
                   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)) != 0) {
        sched_yield();
    }
    return fd;
}

static void send_with_fds(int fd, const void *data, size_t bytes, const int *fds, size_t count)
{
    char room[CMSG_SPACE(sizeof(int) * 8)] = {0};
    struct iovec part = {(void *)(uintptr_t)data, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (count > 0) {
        message.msg_control = room;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * count);
        memcpy(CMSG_DATA(header), fds, sizeof(int) * count);
    }
    sendmsg(fd, &message, MSG_NOSIGNAL);
}

/* Strangers send all sorts of things while rank 0 waits; the world comes about all the same. */
static void test_bootstrap_garbage(void **state)
{
    (void)state;
    attempt_t attempts[2];
    char address[64];
    int sockets[80], used = 0, fds = open_fd_count();
    unsigned seed = (unsigned)getpid();
    print_message("seed %u\n", seed);
    new_address(address, sizeof address);
    attempt_start(&attempts[0], 0, 2, address);
    assert_int_equal(pthread_create(&attempts[0].thread, NULL, attempt_main, &attempts[0]), 0);
    int many[8] = {0, 1, 2, 0, 1, 2, 0, 1};
    for (int i = 0; i < 60; i++) {
        uint8_t noise[2048];
        for (size_t b = 0; b < sizeof noise; b++) {
            noise[b] = (uint8_t)rand_r(&seed);
        }
        sockets[used] = connect_to(address);
        size_t bytes = (size_t)rand_r(&seed) % sizeof noise;
        send_with_fds(sockets[used], noise, i % 3 == 0 ? 512 : bytes, many, (size_t)(i % 9));
        used++;
    }
    /* The right form with wrong contents: descriptors, kinds that do not come first from a
     * guest's. */
    wefti_shm_packet_t hello = {.magic = WEFTI_SHM_MAGIC,
                                .version = WEFTI_SHM_VERSION,
                                .kind = WEFTI_SHM_HELLO,
                                .rank = 1,
                                .world_size = 2};
    send_with_fds(sockets[used++] = connect_to(address), &hello, sizeof hello, many, 1);
    send_with_fds(sockets[used++] = connect_to(address), &hello, sizeof hello, many, 8);
    hello.kind = WEFTI_SHM_READY;
    send_with_fds(sockets[used++] = connect_to(address), &hello, sizeof hello, NULL, 0);
    hello.kind = WEFTI_SHM_COMPLETE;
    send_with_fds(sockets[used++] = connect_to(address), &hello, sizeof hello, many, 2);
    sockets[used++] = connect_to(address); /* says nothing */
    close(connect_to(address));            /* goes at once */
    attempt_start(&attempts[1], 1, 2, address);
    assert_int_equal(pthread_create(&attempts[1].thread, NULL, attempt_main, &attempts[1]), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(attempts[i].thread, NULL);
        if (attempts[i].status != WEFT_OK) {
            fail_msg("rank %d: %s", i, attempts[i].text);
        }
    }
    wefti_endpoint_close(attempts[0].endpoint);
    wefti_endpoint_close(attempts[1].endpoint);
    for (int i = 0; i < used; i++) {
        close(sockets[i]);
    }
    assert_int_equal(open_fd_count(), fds);
    assert_false(socket_exists(address));
}

/* A rank 0 that hands out memory which it can take away again, or too little, is refused: it could
 * kill every rank by SIGBUS. */
static void refuses_memory(bool sealed)
{
    attempt_t attempt;
    char address[64];
    struct sockaddr_un where;
    socklen_t length;
    new_address(address, sizeof address);
    assert_int_equal(wefti_shm_parse_address(address, &where, &length), WEFT_OK);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&where, length), 0);
    assert_int_equal(listen(listener, 1), 0);
    attempt_start(&attempt, 1, 2, address);
    assert_int_equal(pthread_create(&attempt.thread, NULL, attempt_main, &attempt), 0);
    int guest = accept(listener, NULL, NULL);
    wefti_shm_packet_t packet;
    assert_int_equal(recv(guest, &packet, sizeof packet, 0), sizeof packet);
    assert_int_equal(packet.kind, WEFTI_SHM_HELLO);
    packet.kind = WEFTI_SHM_ACCEPTED;
    packet.rank = 0;
    int fds[2] = {memfd_create("a", MFD_CLOEXEC | MFD_ALLOW_SEALING),
                  memfd_create("b", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    assert_int_equal(ftruncate(fds[0], sealed ? 4096 : 1 << 20), 0);
    assert_int_equal(ftruncate(fds[1], 1 << 20), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fcntl(fds[i], F_ADD_SEALS, sealed ? F_SEAL_SHRINK : 0), 0);
    }
    send_with_fds(guest, &packet, sizeof packet, fds, 2);
    assert_int_equal(recv(guest, &packet, sizeof packet, 0), sizeof packet);
    assert_int_equal(packet.kind, WEFTI_SHM_ERROR);
    assert_non_null(strstr(packet.text, "rank 1: invalid shared memory from rank 0"));
    pthread_join(attempt.thread, NULL);
    assert_int_equal(attempt.status, WEFT_ERR_FORMAT);
    assert_null(attempt.endpoint);
    close(guest);
    close(listener);
    close(fds[0]);
    close(fds[1]);
}

static void test_bootstrap_unsealed_memory(void **state)
{
    (void)state;
    int before = open_fd_count();
    refuses_memory(false);
    refuses_memory(true); /* but too short */
    assert_int_equal(open_fd_count(), before);
}

/* A rank of an older build sends descriptors with its hello: rank 0 names both versions. */
static void test_bootstrap_older_version(void **state)
{
    (void)state;
    attempt_t attempt;
    char address[64];
    int before = open_fd_count();
    const int fds[2] = {0, 1};
    new_address(address, sizeof address);
    attempt_start(&attempt, 0, 2, address);
    assert_int_equal(pthread_create(&attempt.thread, NULL, attempt_main, &attempt), 0);
    wefti_shm_packet_t packet = {.magic = WEFTI_SHM_MAGIC,
                                 .version = WEFTI_SHM_VERSION - 1,
                                 .kind = WEFTI_SHM_HELLO,
                                 .rank = 1,
                                 .world_size = 2};
    int socket_fd = connect_to(address);
    send_with_fds(socket_fd, &packet, sizeof packet, fds, 2);
    assert_int_equal(recv(socket_fd, &packet, sizeof packet, 0), sizeof packet);
    assert_non_null(strstr(packet.text, "protocol version mismatch: rank 1"));
    pthread_join(attempt.thread, NULL);
    expect_all(&attempt, 1, WEFT_ERR_MISMATCH, "protocol version mismatch: rank 1");
    close(socket_fd);
    assert_int_equal(open_fd_count(), before);
}

/* Rank 0 gives up, and closes with packets of a rank unread: the reason arrives all the same. */
static void test_bootstrap_reason_before_close(void **state)
{
    (void)state;
    int fds[WEFTI_SHM_FDS], pair[2];
    wefti_shm_packet_t packet = {.magic = WEFTI_SHM_MAGIC, .kind = WEFTI_SHM_ERROR, .status = -1};
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(wefti_shm_send(pair[1], &packet, NULL, 0), WEFT_OK);
    assert_int_equal(wefti_shm_send(pair[0], &packet, NULL, 0), WEFT_OK);
    close(pair[0]);
    assert_int_equal(wefti_shm_receive(pair[1], &packet, fds), WEFT_OK);
    assert_int_equal(wefti_shm_receive(pair[1], &packet, fds), WEFT_ERR_PEER_DIED);
    close(pair[1]);
}

/* A rank that joined and died before the others came ends the join, and is named. */
static void test_bootstrap_joined_and_gone(void **state)
{
    (void)state;
    attempt_t attempt;
    char address[64];
    int before = open_fd_count();
    new_address(address, sizeof address);
    attempt_start(&attempt, 0, 3, address);
    assert_int_equal(pthread_create(&attempt.thread, NULL, attempt_main, &attempt), 0);
    wefti_shm_packet_t hello = {.magic = WEFTI_SHM_MAGIC,
                                .version = WEFTI_SHM_VERSION,
                                .kind = WEFTI_SHM_HELLO,
                                .rank = 2,
                                .world_size = 3};
    int socket_fd = connect_to(address);
    send_with_fds(socket_fd, &hello, sizeof hello, NULL, 0);
    close(socket_fd);
    pthread_join(attempt.thread, NULL);
    assert_int_equal(attempt.status, WEFT_ERR_PEER_DIED);
    assert_non_null(strstr(attempt.text, "rank 2 (pid "));
    assert_int_equal(open_fd_count(), before);
}

static int does_nothing(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

/* A path instead of a name; a file that a killed rank 0 left behind is replaced, and none is left.
 */
static void test_bootstrap_path(void **state)
{
    (void)state;
    char directory[] = "/tmp/weft-test-XXXXXX", address[96];
    assert_non_null(mkdtemp(directory));
    snprintf(address, sizeof address, "unix:%s/socket", directory);
    world_t world = {.size = 2, .fn = does_nothing, .settings = test_settings()};
    pid_t pid = fork_rank(&world, 0, address);
    struct stat file;
    while (stat(address + 5, &file) != 0) {
        sched_yield();
    }
    kill(pid, SIGKILL);
    assert_int_equal(wait_for(pid), -SIGKILL);
    assert_int_equal(stat(address + 5, &file), 0);
    pid_t pids[2] = {fork_rank(&world, 0, address), fork_rank(&world, 1, address)};
    assert_int_equal(wait_for(pids[0]), 0);
    assert_int_equal(wait_for(pids[1]), 0);
    assert_int_equal(stat(address + 5, &file), -1);
    assert_int_equal(rmdir(directory), 0);
}

static void test_bootstrap_bad_addresses(void **state)
{
    (void)state;
    static const char *const bad[] = {"unix:", "unix:@", "unix", "/tmp/x",
                                      "unix:/no/such/folder/x"};
    wefti_settings_t settings = test_settings();
    wefti_endpoint_t *endpoint;
    char longer[300];
    memset(longer, 'a', sizeof longer);
    memcpy(longer, "unix:@", 6);
    longer[sizeof longer - 1] = '\0';
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_true(open_rank(0, 2, bad[i], NULL, &settings, &endpoint) < 0);
        assert_non_null(strstr(weft_last_error(), bad[i]));
    }
    assert_int_equal(open_rank(0, 2, longer, NULL, &settings, &endpoint),
                     WEFT_ERR_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bootstrap_wrong_world_size),
        cmocka_unit_test(test_bootstrap_duplicate_rank),
        cmocka_unit_test(test_bootstrap_second_rank_zero),
        cmocka_unit_test(test_bootstrap_missing_rank),
        cmocka_unit_test(test_bootstrap_different_settings),
        cmocka_unit_test(test_bootstrap_hub_mistakes),
        cmocka_unit_test(test_bootstrap_garbage),
        cmocka_unit_test(test_bootstrap_unsealed_memory),
        cmocka_unit_test(test_bootstrap_older_version),
        cmocka_unit_test(test_bootstrap_reason_before_close),
        cmocka_unit_test(test_bootstrap_joined_and_gone),
        cmocka_unit_test(test_bootstrap_path),
        cmocka_unit_test(test_bootstrap_bad_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
