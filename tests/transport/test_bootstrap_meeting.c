/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous when something is wrong: contradictions, absentees, strangers, stale files. */
#include "support_overlay.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "transport/bootstrap/rendezvous.h"

#define SECOND_NS 1000000000ull

static seat_t *new_seats(uint32_t count, uint32_t world_size, const char *address, double seconds)
{
    seat_t *seats = calloc(count, sizeof *seats);
    for (uint32_t i = 0; i < count; i++) {
        seat_init(&seats[i], i, world_size, address);
        seats[i].settings.connect_timeout_ns = (uint64_t)(seconds * 1e9);
    }
    return seats;
}

static void expect(const seat_t *seat, weft_status_t status, const char *words)
{
    if (seat->status != status || strstr(seat->text, words) == NULL) {
        fail_msg("rank %u: %s \"%s\" instead of %s and \"%s\"", seat->job.rank,
                 weft_status_name(seat->status), seat->text, weft_status_name(status), words);
    }
    assert_null(seat->overlay);
}

static void close_all(seat_t *seats, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        seat_close(&seats[i]);
    }
    free(seats);
}

/* ---- contradictions: an error for all, at once ---- */

static void test_rank_twice(void **state)
{
    char address[64];
    (void)state;
    reserve_address(address, sizeof address);
    seat_t *seats = new_seats(4, 5, address, 300);
    seats[3].job.rank = 2;
    uint64_t began = wefti_now_ns();
    seats_open(seats, 4);
    for (int i = 0; i < 4; i++) {
        expect(&seats[i], WEFT_ERR_MISMATCH, "duplicate rank 2: ");
    }
    assert_true(wefti_now_ns() - began < 120 * SECOND_NS);
    free(seats);
}

static void test_rank_zero_twice(void **state)
{
    char address[64];
    (void)state;
    reserve_address(address, sizeof address);
    seat_t *seats = new_seats(3, 3, address, 300);
    seats[2].job.rank = 0;
    seats_open(seats, 3);
    for (int i = 0; i < 3; i++) {
        expect(&seats[i], WEFT_ERR_MISMATCH, "duplicate rank 0: ");
    }
    free(seats);
}

static void test_world_sizes_differ(void **state)
{
    char address[64];
    (void)state;
    reserve_address(address, sizeof address);
    seat_t *seats = new_seats(3, 3, address, 300);
    seats[1].job.world_size = 4;
    seats_open(seats, 3);
    for (int i = 0; i < 3; i++) {
        expect(&seats[i], WEFT_ERR_MISMATCH, "has 4, rank 0 has 3");
    }
    free(seats);
}

/* -1: over before anybody listened. */
static int connect_plain(const char *address, _Atomic uint32_t *over)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    while (over == NULL || atomic_load(over) == 0) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0 &&
            wefti_address_connected(fd) == 0) {
            return fd;
        }
        close(fd);
        usleep(500);
    }
    return -1;
}

/* A guest of our own making, which knows the tests' secret. */
typedef struct impostor {
    const char *address;
    uint32_t version;
    const wefti_verdict_t *reports; /* FAILED, with this; or NULL */
    wefti_address_t listens;        /* where others are to connect to it */
    weft_status_t status;
    char text[512];
} impostor_t;

static void *impostor_main(void *argument)
{
    impostor_t *impostor = argument;
    static const uint8_t secret[] = "a secret that tests have";
    wefti_greeting_t greeting = {impostor->version, WEFTI_PURPOSE_MEET, 1, 3, {0}, {0}};
    const wefti_application_t own = {.address = {.count = 1, .addresses = {impostor->listens}}};
    wefti_handshake_t shake;
    wefti_frame_t frame;
    int fd = connect_plain(impostor->address, NULL);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    wefti_handshake_init(&shake, fd, true, &greeting, secret, sizeof secret, NULL);
    wefti_handshake_set_payload(&shake, &own, sizeof own);
    while ((impostor->status = wefti_handshake_step(&shake)) == WEFT_AGAIN) {
        usleep(1000);
    }
    if (impostor->reports != NULL) {
        wefti_wire_send(&shake.wire, WEFTI_FAILED, impostor->reports, sizeof *impostor->reports,
                        NULL, 0);
    }
    shake.wire.in_limit = 4096;
    while ((impostor->status = wefti_wire_receive(&shake.wire, &frame)) == WEFT_AGAIN ||
           (impostor->status == WEFT_OK && frame.kind == WEFTI_TABLE)) {
        usleep(1000);
    }
    if (impostor->status == WEFT_OK && frame.kind == WEFTI_ERROR) {
        wefti_verdict_t verdict;
        memcpy(&verdict, frame.body, sizeof verdict);
        snprintf(impostor->text, sizeof impostor->text, "%.400s", verdict.text);
    }
    wefti_handshake_deinit(&shake);
    return NULL;
}

static void test_wrong_version(void **state)
{
    char address[64];
    pthread_t thread;
    (void)state;
    reserve_address(address, sizeof address);
    impostor_t impostor = {.address = address, .version = 9};
    seat_t *seats = new_seats(3, 3, address, 300);
    seats[1].job.rank = 2;
    pthread_create(&thread, NULL, impostor_main, &impostor);
    seats_open(seats, 2);
    pthread_join(thread, NULL);
    expect(&seats[0], WEFT_ERR_MISMATCH, "uses version 9, rank 0 uses version 5");
    expect(&seats[1], WEFT_ERR_MISMATCH, "uses version 9, rank 0 uses version 5");
    assert_non_null(strstr(impostor.text, "uses version 9"));
    free(seats);
}

/* Only rank 0 says "again". From another rank it is a failure like any other. */
static void test_failure_with_again(void **state)
{
    char address[64];
    pthread_t thread;
    (void)state;
    reserve_address(address, sizeof address);
    const wefti_verdict_t verdict = {WEFT_ERR_SYSTEM, 1, "rank 1: no room"};
    impostor_t impostor = {
        .address = address, .version = WEFTI_BOOTSTRAP_VERSION, .reports = &verdict};
    seat_t *seats = new_seats(3, 3, address, 300);
    seats[1].job.rank = 2;
    pthread_create(&thread, NULL, impostor_main, &impostor);
    seats_open(seats, 2);
    pthread_join(thread, NULL);
    expect(&seats[0], WEFT_ERR_SYSTEM, "rank 1: no room");
    expect(&seats[1], WEFT_ERR_SYSTEM, "rank 1: no room");
    free(seats);
}

/* ---- absentees: an error for all who came, naming them, after the time-out ---- */

static void test_missing_ranks(void **state)
{
    char address[64];
    (void)state;
    reserve_address(address, sizeof address);
    seat_t *seats = new_seats(3, 9, address, 2);
    seats[2].job.rank = 4;
    uint64_t began = wefti_now_ns();
    seats_open(seats, 3);
    uint64_t took = wefti_now_ns() - began;
    for (int i = 0; i < 3; i++) {
        expect(&seats[i], WEFT_ERR_TIMEOUT, "6 of 9 ranks did not join at 127.0.0.1:");
        expect(&seats[i], WEFT_ERR_TIMEOUT, "within 2 s; missing ranks: 2-3, 5-8");
    }
    assert_true(took >= 2 * SECOND_NS);
    free(seats);
}

/* A rank stops when it has joined. The others wait for it, and are not named. */
static void test_joined_and_stopped(void **state)
{
    char address[64];
    pthread_t thread;
    int listener;
    (void)state;
    reserve_address(address, sizeof address);
    impostor_t impostor = {.address = address, .version = WEFTI_BOOTSTRAP_VERSION};
    const wefti_address_t loopback = {
        .family = 4, .loopback = 1, .bytes = {127, 0, 0, 1}}; /* of any port */
    assert_int_equal(wefti_address_listen(&loopback, 0, 16, &listener, &impostor.listens), WEFT_OK);
    seat_t *seats = new_seats(2, 3, address, 2);
    seats[1].job.rank = 2;
    pthread_create(&thread, NULL, impostor_main, &impostor);
    seats_open(seats, 2);
    pthread_join(thread, NULL);
    for (int i = 0; i < 2; i++) {
        expect(&seats[i], WEFT_ERR_TIMEOUT,
               "1 of 3 ranks did not connect to their neighbours within 2 s; missing ranks: 1");
    }
    close(listener);
    free(seats);
}

static void test_no_rank_zero(void **state)
{
    char address[64];
    (void)state;
    reserve_address(address, sizeof address);
    seat_t *seats = new_seats(2, 3, address, 2);
    seats[0].job.rank = 2;
    seats_open(seats, 2);
    expect(&seats[0], WEFT_ERR_TIMEOUT, "rank 2: rank 0 not found at 127.0.0.1:");
    expect(&seats[1], WEFT_ERR_TIMEOUT, "missing ranks: 0 (127.0.0.1:");
    free(seats);
}

static void test_wrong_secret(void **state)
{
    char address[64];
    (void)state;
    reserve_address(address, sizeof address);
    seat_t *seats = new_seats(3, 3, address, 3);
    seats[2].job.secret[0] ^= 1;
    seats_open(seats, 3);
    expect(&seats[2], WEFT_ERR_MISMATCH, "rank 2 and rank 0 have different secrets");
    for (int i = 0; i < 2; i++) {
        expect(&seats[i], WEFT_ERR_TIMEOUT, "missing ranks: 2 (authentication failed: 127.0.0.1:");
        expect(&seats[i], WEFT_ERR_TIMEOUT, "claims to be rank 2 but does not know the secret");
    }
    free(seats);
}

static void test_secret_and_none(void **state)
{
    char address[64];
    (void)state;
    reserve_address(address, sizeof address);
    seat_t *seats = new_seats(2, 2, address, 3);
    seats[1].job.secret_bytes = 0;
    seats_open(seats, 2);
    expect(&seats[1], WEFT_ERR_MISMATCH, "rank 1 and rank 0 have different secrets");
    expect(&seats[0], WEFT_ERR_TIMEOUT, "missing ranks: 1");
    free(seats);
}

/* ---- strangers: of no consequence ---- */

typedef struct stranger {
    const char *address;
    const char *text; /* repeated */
    size_t bytes;
    uint32_t repeat;
    pthread_t thread;
    _Atomic uint32_t *over; /* stays until then */
} stranger_t;

static void *stranger_main(void *argument)
{
    stranger_t *stranger = argument;
    int fd = connect_plain(stranger->address, stranger->over);
    for (uint32_t i = 0; i < stranger->repeat; i++) {
        if (send(fd, stranger->text, stranger->bytes, MSG_NOSIGNAL) < 0) {
            break;
        }
    }
    while (atomic_load(stranger->over) == 0) {
        usleep(1000);
    }
    close(fd);
    return NULL;
}

static void test_strangers(void **state)
{
    static const uint8_t long_frame[12] = {0x65, 0x57, 0x66, 0x74, 1,    0,
                                           0,    0,    0xff, 0xff, 0xff, 0x7f};
    static const uint8_t short_frame[12] = {0x65, 0x57, 0x66, 0x74, 3, 0, 0, 0, 3, 0, 0, 0};
    static const uint8_t half_header[5] = {0x65, 0x57, 0x66, 0x74, 1};
    char address[64];
    _Atomic uint32_t over = 0;
    stranger_t strangers[8];
    (void)state;
    reserve_address(address, sizeof address);
    for (int i = 0; i < 8; i++) {
        strangers[i] = (stranger_t){.address = address, .text = "", .over = &over};
    }
    strangers[1].text = "GET / HTTP/1.1\r\nHost: here\r\n\r\n";
    strangers[1].bytes = strlen(strangers[1].text);
    strangers[1].repeat = 1000;
    strangers[2].text = (const char *)long_frame;
    strangers[2].bytes = sizeof long_frame;
    strangers[2].repeat = 3;
    strangers[3].text = (const char *)short_frame;
    strangers[3].bytes = sizeof short_frame;
    strangers[3].repeat = 1;
    strangers[4].text = (const char *)half_header;
    strangers[4].bytes = sizeof half_header;
    strangers[4].repeat = 1;
    seat_t *seats = new_seats(4, 4, address, 300);
    /* They come first: rank 0 alone is there, with nothing but strangers. */
    for (int i = 0; i < 8; i++) {
        pthread_create(&strangers[i].thread, NULL, stranger_main, &strangers[i]);
    }
    seats_open(seats, 4);
    atomic_store(&over, 1);
    for (int i = 0; i < 8; i++) {
        pthread_join(strangers[i].thread, NULL);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(seats[i].status, WEFT_OK);
    }
    close_all(seats, 4);
}

/* Random bytes, and good frames with bytes changed: a mesh's listening socket and a handshake. */
static void test_random_bytes_to_a_host(void **state)
{
    uint64_t seed = wefti_now_ns() | 1;
    static const uint8_t key[32] = {1};
    const wefti_greeting_t greeting = {WEFTI_BOOTSTRAP_VERSION, WEFTI_PURPOSE_LINK, 0, 4, {0}, {0}};
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 400; round++) {
        int fds[2];
        uint8_t bytes[300];
        wefti_handshake_t shake;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
        assert_int_equal(wefti_handshake_init(&shake, fds[0], false, &greeting, key, 32, NULL),
                         WEFT_OK);
        for (size_t i = 0; i < sizeof bytes; i++) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            bytes[i] = (uint8_t)seed;
        }
        /* A header that is right, of a kind and length that may be. */
        const uint8_t mark[4] = {0x65, 0x57, 0x66, 0x74};
        memcpy(bytes, mark, 4);
        bytes[4] = (uint8_t)(seed % 12), bytes[5] = bytes[6] = bytes[7] = 0;
        bytes[8] = round % 3 == 0 ? 64 : (uint8_t)(seed >> 8);
        bytes[9] = (uint8_t)(seed >> 16) & 1, bytes[10] = bytes[11] = 0;
        if (round % 3 == 0) {
            bytes[4] = WEFTI_HELLO, bytes[9] = 0;
            memcpy(bytes + 12, &greeting, 8);
            memcpy(bytes + 76, mark, 4);
            bytes[80] = WEFTI_PROOF, bytes[81] = bytes[82] = bytes[83] = 0;
            bytes[84] = 32, bytes[85] = bytes[86] = bytes[87] = 0;
        }
        assert_int_equal(write(fds[1], bytes, sizeof bytes), sizeof bytes);
        weft_status_t status = wefti_handshake_step(&shake);
        assert_true(status != WEFT_OK);
        if (round % 3 == 0) {
            assert_int_equal(status, WEFT_ERR_MISMATCH); /* as far as a proof, which is wrong */
        }
        wefti_handshake_deinit(&shake);
        close(fds[1]);
    }
}

/* ---- addresses ---- */

/* Only data connections are deferred: elsewhere such a host is none of Weft's. */
static void test_only_data_connections_are_deferred(void **state)
{
    static const uint8_t key[32] = {1};
    (void)state;
    for (uint32_t purpose = WEFTI_PURPOSE_MEET; purpose <= WEFTI_PURPOSE_DATA; purpose++) {
        const wefti_greeting_t greeting = {1, purpose, 0, 4, {0}, {0}};
        wefti_handshake_t initiator, acceptor;
        int fds[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
        assert_int_equal(wefti_handshake_init(&initiator, fds[0], true, &greeting, key, 32, NULL),
                         WEFT_OK);
        assert_int_equal(wefti_handshake_init(&acceptor, fds[1], false, &greeting, key, 32, NULL),
                         WEFT_OK);
        acceptor.withheld = true;
        assert_int_equal(wefti_handshake_step(&initiator), WEFT_AGAIN);
        assert_int_equal(wefti_handshake_step(&acceptor), WEFT_AGAIN);
        assert_int_equal(wefti_handshake_step(&initiator), WEFT_AGAIN);
        assert_int_equal(wefti_handshake_step(&acceptor), WEFT_OK);
        assert_int_equal(wefti_handshake_defer(&acceptor), WEFT_OK);
        assert_int_equal(wefti_handshake_step(&initiator),
                         purpose == WEFTI_PURPOSE_DATA ? WEFT_ERR_STATE : WEFT_ERR_FORMAT);
        wefti_handshake_deinit(&initiator);
        wefti_handshake_deinit(&acceptor);
    }
}

static void test_no_secret_beyond_loopback(void **state)
{
    (void)state;
    seat_t *seats = new_seats(2, 2, "192.0.2.1:4000", 1);
    seats[0].job.secret_bytes = seats[1].job.secret_bytes = 0;
    seats_open(seats, 2);
    for (int i = 0; i < 2; i++) {
        expect(&seats[i], WEFT_ERR_INVALID_ARGUMENT, "so a secret is required");
        expect(&seats[i], WEFT_ERR_INVALID_ARGUMENT, "WEFT_SECRET");
    }
    free(seats);
    static const char *const wrong[] = {"",           "host",      "host:",  ":1",
                                        "host:70000", "host:0",    "::1:80", "[::1]",
                                        "unix",       "tcp://a:1", "a:1x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        seats = new_seats(1, 2, wrong[i], 1);
        seat_open(&seats[0]);
        expect(&seats[0], WEFT_ERR_INVALID_ARGUMENT, "expected unix:@name");
        free(seats);
    }
}

static void test_other_addresses(void **state)
{
    char address[64], v6[64];
    (void)state;
    reserve_address(address, sizeof address);
    const char *port = strrchr(address, ':');
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    bool has_v6 = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
    close(fd);
    snprintf(v6, sizeof v6, "%s%s", has_v6 ? "[::1]" : "127.0.0.2", port);
    seat_t *seats = new_seats(3, 3, v6, 300);
    seats_open(seats, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(seats[i].status, WEFT_OK);
    }
    close_all(seats, 3);
    snprintf(v6, sizeof v6, "localhost%s", port);
    seats = new_seats(3, 3, v6, 300);
    seats[0].job.secret_bytes = seats[1].job.secret_bytes = seats[2].job.secret_bytes = 0;
    seats_open(seats, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(seats[i].status, WEFT_OK);
    }
    close_all(seats, 3);
}

static void test_interface_names(void **state)
{
    char address[64];
    (void)state;
    snprintf(address, sizeof address, "file:///tmp/weft-test-%d-ifname", (int)getpid());
    seat_t *seats = new_seats(2, 2, address, 1);
    snprintf(seats[0].settings.ifname, sizeof seats[0].settings.ifname, "nosuch*");
    snprintf(seats[1].settings.ifname, sizeof seats[1].settings.ifname, "nosuch*");
    seat_open(&seats[0]);
    expect(&seats[0], WEFT_ERR_INVALID_ARGUMENT,
           "WEFT_IFNAME=nosuch* matches no network interface");
    free(seats);
    seats = new_seats(2, 2, address, 300);
    for (int i = 0; i < 2; i++) {
        snprintf(seats[i].settings.ifname, sizeof seats[i].settings.ifname, "x*,lo");
    }
    seats_open(seats, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(seats[i].status, WEFT_OK);
        assert_int_equal(strncmp(wefti_overlay_local_address(seats[i].overlay), "127.", 4), 0);
    }
    close_all(seats, 2);
}

/* Somebody else's server, which says nothing; and torch's store, which closes on garbage. */
static void test_ports_of_others(void **state)
{
    char address[64];
    (void)state;
    reserve_address(address, sizeof address);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    int squatter = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(squatter, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(squatter, 16), 0);
    for (int kind = 0; kind < 2; kind++) {
        seat_t *seats = new_seats(3, 3, address, 300);
        for (int i = 0; i < 3; i++) {
            seats[i].job.ports = kind == 0 ? WEFTI_PORT_FIRST : WEFTI_PORT_OTHERS;
            seats[i].job.delivered = true;
            seats[i].job.secret_bytes = 0;
            memcpy(seats[i].job.id, &at, sizeof seats[i].job.id);
        }
        seats_open(seats, 3);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(seats[i].status, WEFT_OK);
        }
        close_all(seats, 3);
    }
    seat_t *seats = new_seats(1, 3, address, 0.3);
    seat_open(&seats[0]);
    expect(&seats[0], WEFT_ERR_TIMEOUT, "another process is listening there");
    free(seats);
    close(squatter);
}

/* Two jobs whose ports are the same ones do not mix. */
static void test_jobs_do_not_mix(void **state)
{
    char address[64];
    (void)state;
    reserve_address(address, sizeof address);
    seat_t *seats = calloc(6, sizeof *seats);
    for (uint32_t i = 0; i < 6; i++) {
        seat_init(&seats[i], i % 3, 3, address);
        seats[i].job.ports = WEFTI_PORT_OTHERS;
        seats[i].job.delivered = true;
        seats[i].job.secret_bytes = 0;
        memcpy(seats[i].job.id, address + 10, 5);
        seats[i].job.id[15] = (uint8_t)(i / 3); /* the window follows from the first bytes */
    }
    seats_open(seats, 6);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(seats[i].status, WEFT_OK);
        assert_memory_equal(wefti_overlay_key(seats[i].overlay),
                            wefti_overlay_key(seats[i / 3 * 3].overlay), 32);
    }
    assert_memory_not_equal(wefti_overlay_key(seats[0].overlay),
                            wefti_overlay_key(seats[3].overlay), 32);
    close_all(seats, 6);
}

/* ---- files ---- */

static void open_file_world(const char *address, uint32_t size)
{
    seat_t *seats = new_seats(size, size, address, 300);
    for (uint32_t i = 0; i < size; i++) {
        seats[i].job.secret_bytes = 0;
    }
    seats_open(seats, size);
    for (uint32_t i = 0; i < size; i++) {
        if (seats[i].status != WEFT_OK) {
            fail_msg("rank %u: %s", i, seats[i].text);
        }
    }
    close_all(seats, size);
}

static void write_text(const char *path, const char *text, mode_t mode)
{
    unlink(path);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, mode);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    fchmod(fd, mode);
    close(fd);
}

static void test_file(void **state)
{
    static const char *const stale[] = {
        "",
        "something else\n",
        "weft-rank-0;id:00;end\n",
        "weft-rank-0;id:0011",
        "weft-rank-0;",
        ("weft-rank-0;id:000102030405060708090a0b0c0d0e0f;secret:00112233;at:127.0.0.1:9;"
         "at:[::1]:9;at:example.invalid:7;end\n")};
    char address[128];
    struct stat info;
    (void)state;
    snprintf(address, sizeof address, "file:///tmp/weft-test-%d-place", (int)getpid());
    const char *path = address + 7;
    unlink(path);
    open_file_world(address, 4);
    assert_int_not_equal(stat(path, &info), 0); /* nothing stays behind */
    for (size_t i = 0; i < sizeof stale / sizeof *stale; i++) {
        write_text(path, stale[i], 0600);
        open_file_world(address, 3);
    }
    write_text(path, stale[5], 0644);
    open_file_world(address, 3);
    assert_int_equal(mkdir(path, 0700), 0); /* nobody can put anything in its place */
    seat_t *seats = new_seats(1, 2, address, 1);
    seat_open(&seats[0]);
    expect(&seats[0], WEFT_ERR_SYSTEM, "cannot write");
    free(seats);
    rmdir(path);
    seats = new_seats(2, 2, address, 0.3);
    seats[0].job.rank = 1;
    write_text(path, stale[5], 0644);
    seat_open(&seats[0]);
    expect(&seats[0], WEFT_ERR_TIMEOUT, "must belong to this user");
    unlink(path);
    free(seats);
}

static void *open_seat(void *seat)
{
    seat_open(seat);
    return NULL;
}

/* A job that never became complete is still there when the next one begins. */
static void test_file_of_a_job_that_waits(void **state)
{
    char address[128];
    (void)state;
    snprintf(address, sizeof address, "file:///tmp/weft-test-%d-taken", (int)getpid());
    seat_t *old = new_seats(1, 3, address, 300);
    old[0].job.secret_bytes = 0;
    assert_int_equal(pthread_create(&old[0].thread, NULL, open_seat, &old[0]), 0);
    struct stat info;
    while (stat(address + 7, &info) != 0) {
        usleep(1000);
    }
    seat_t *seats = new_seats(3, 3, address, 300);
    for (int i = 1; i >= 0; i--) { /* rank 1 may well go to the old rank 0 first */
        seats[i].job.secret_bytes = 0;
        assert_int_equal(pthread_create(&seats[i].thread, NULL, open_seat, &seats[i]), 0);
    }
    pthread_join(old[0].thread, NULL);
    expect(&old[0], WEFT_ERR_MISMATCH, "another rank 0 took over file:///");
    seats[2].job.secret_bytes = 0;
    seat_open(&seats[2]);
    for (int i = 0; i < 2; i++) {
        pthread_join(seats[i].thread, NULL);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(seats[i].status, WEFT_OK);
    }
    close_all(seats, 3);
    free(old);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_twice),
        cmocka_unit_test(test_rank_zero_twice),
        cmocka_unit_test(test_world_sizes_differ),
        cmocka_unit_test(test_wrong_version),
        cmocka_unit_test(test_failure_with_again),
        cmocka_unit_test(test_missing_ranks),
        cmocka_unit_test(test_joined_and_stopped),
        cmocka_unit_test(test_no_rank_zero),
        cmocka_unit_test(test_wrong_secret),
        cmocka_unit_test(test_secret_and_none),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_random_bytes_to_a_host),
        cmocka_unit_test(test_only_data_connections_are_deferred),
        cmocka_unit_test(test_no_secret_beyond_loopback),
        cmocka_unit_test(test_other_addresses),
        cmocka_unit_test(test_interface_names),
        cmocka_unit_test(test_ports_of_others),
        cmocka_unit_test(test_jobs_do_not_mix),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_file_of_a_job_that_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
