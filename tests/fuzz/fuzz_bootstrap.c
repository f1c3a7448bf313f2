/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks send each other before and beside data. The first byte selects who reads the rest:
 * an acceptor, an initiator, both ends of a handshake whose bytes are changed on their way, a rank's
 * overlay, the report of an error, the notice of rank 0, addresses.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "tests/support/support_fuzz.h"
#include "transport/bootstrap/overlay.h"
#include "transport/bootstrap/rendezvous.h"

enum { READERS = 7, RANKS = 70 };

static const uint8_t key[WEFTI_WORLD_KEY_BYTES] = {1, 2, 3};
static const wefti_greeting_t own = {.version = WEFTI_BOOTSTRAP_VERSION,
                                     .purpose = WEFTI_PURPOSE_MEET,
                                     .rank = 1,
                                     .world_size = RANKS};

static void begin(wefti_handshake_t *shake, int fd, bool initiator)
{
    static const wefti_endpoint_address_t address = {.count = 1};
    fuzz_check(wefti_handshake_init(shake, fd, initiator, &own, key, sizeof key, NULL) == WEFT_OK,
               "no handshake");
    if (initiator) {
        wefti_handshake_set_payload(shake, &address);
    }
}

static void shake_hands(const uint8_t *data, size_t size, bool initiator)
{
    wefti_handshake_t shake;
    int ends[2];
    fuzz_sockets(data, size, ends);
    begin(&shake, ends[0], initiator);
    weft_status_t status = wefti_handshake_step(&shake);
    fuzz_check(status < 0 || status == WEFT_AGAIN, "authenticated without the key");
    if (status < 0) {
        fuzz_check(wefti_handshake_problem(&shake, status) != NULL, "no reason");
    }
    wefti_handshake_deinit(&shake);
    close(ends[1]);
}

/* Passes on what has arrived, with the next changes. False: nothing had. */
static bool relay(int from, int to, const uint8_t **changes, size_t *count, bool *changed)
{
    uint8_t bytes[1024];
    ssize_t got = recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    for (ssize_t i = 0; i<got && * count> 0; i++, (*changes)++, (*count)--) {
        bytes[i] ^= (*changes)[0];
        *changed |= (*changes)[0] != 0;
    }
    return got > 0 && send(to, bytes, (size_t)got, MSG_DONTWAIT | MSG_NOSIGNAL) == got;
}

static void change_on_the_way(const uint8_t *changes, size_t count)
{
    wefti_handshake_t shake[2];
    weft_status_t status[2] = {WEFT_AGAIN, WEFT_AGAIN};
    int ends[2][2];
    bool changed = false, moved = true;
    for (int i = 0; i < 2; i++) {
        fuzz_check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends[i]) == 0, "socketpair");
        begin(&shake[i], ends[i][0], i == 1);
    }
    while (moved) {
        for (int i = 0; i < 2; i++) {
            if (status[i] == WEFT_AGAIN) {
                status[i] = wefti_handshake_step(&shake[i]);
            }
        }
        moved = relay(ends[1][1], ends[0][1], &changes, &count, &changed);
        moved |= relay(ends[0][1], ends[1][1], &changes, &count, &changed);
    }
    fuzz_check(changed || (status[0] == WEFT_OK && status[1] == WEFT_OK), "an honest peer fails");
    fuzz_check(!changed || status[0] != WEFT_OK || status[1] != WEFT_OK, "changed, but proven");
    for (int i = 0; i < 2; i++) {
        wefti_handshake_deinit(&shake[i]);
        close(ends[i][1]);
    }
}

static void received(void *user, uint32_t origin, uint32_t kind, const void *data, size_t bytes)
{
    (void)user;
    (void)kind;
    (void)data;
    fuzz_check(origin < RANKS && bytes <= WEFTI_FLOOD_BYTES, "a flood is out of range");
}

static void left(void *user, uint32_t rank)
{
    (void)user;
    fuzz_check(rank < RANKS, "a rank is out of range");
}

static void died(void *user, uint32_t rank, const char *how)
{
    (void)user;
    fuzz_check(rank < RANKS && strlen(how) < WEFTI_FLOOD_BYTES, "a death is out of range");
}

static void receive_as_overlay(const uint8_t *data, size_t size)
{
    static wefti_seen_t seen[RANKS];
    static uint64_t ranks[3][(RANKS + 63) / 64];
    static wefti_overlay_link_t links[WEFTI_MESH_PEERS_MAX];
    static wefti_overlay_t overlay = {.rank = 1,
                                      .world_size = RANKS,
                                      .lock = PTHREAD_MUTEX_INITIALIZER,
                                      .params = {.received = received, .left = left, .died = died},
                                      .links = links,
                                      .link_count = 2,
                                      .seen = seen,
                                      .gone = ranks[0],
                                      .dead = ranks[1],
                                      .gone_reported = ranks[2],
                                      .gone_words = (RANKS + 63) / 64};
    int ends[2], other[2];
    if (overlay.epoll_fd == 0) {
        overlay.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        overlay.timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
        overlay.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    }
    memset(seen, 0, sizeof seen);
    memset(ranks, 0, sizeof ranks);
    overlay.gone_scan = 0;
    overlay.timer_set = false;
    overlay.gone_sent_ns = 0;
    fuzz_sockets(data, size, ends);
    fuzz_sockets(NULL, 0, other); /* frames that are forwarded */
    links[0] = (wefti_overlay_link_t){.rank = 0, .up = true};
    links[1] = (wefti_overlay_link_t){.rank = 3, .up = true};
    wefti_wire_init(&links[0].wire, ends[0], 1u << 20, NULL);
    wefti_wire_init(&links[1].wire, other[0], 1u << 20, NULL);
    fuzz_check(wefti_watch(overlay.epoll_fd, EPOLL_CTL_ADD, ends[0], EPOLLIN, 0) == WEFT_OK,
               "epoll");
    for (int i = 0; i < 4 && links[0].up; i++) {
        wefti_overlay_progress(&overlay);
    }
    fuzz_check(!links[0].up, "the end of a link is not seen");
    for (wefti_parcel_t *parcel = links[0].parcels, *next; parcel != NULL; parcel = next) {
        next = parcel->next;
        wefti_free(NULL, parcel);
    }
    wefti_wire_deinit(&links[1].wire);
    close(ends[1]);
    close(other[1]);
}

static void adopt_verdict(const uint8_t *data, size_t size)
{
    const wefti_frame_t frame = {WEFTI_ERROR, (uint32_t)size, data};
    weft_status_t status = wefti_verdict_adopt(&frame, 0);
    fuzz_check(status < 0 || status == WEFT_AGAIN, "an error is none");
}

static void read_notice(const char *text)
{
    static const wefti_job_t job;
    char notice[WEFTI_NOTICE_BYTES];
    wefti_place_t place = {.job = &job}, again = {.job = &job};
    if (wefti_place_read_notice(&place, text)) {
        fuzz_check(place.count <= WEFTI_PLACE_CANDIDATES &&
                       place.secret_bytes <= WEFTI_SECRET_BYTES,
                   "a notice is out of range");
        wefti_place_write_notice(&place, notice);
        fuzz_check(wefti_place_read_notice(&again, notice) &&
                       again.secret_bytes == place.secret_bytes,
                   "what was written cannot be read");
    }
}

static void split_address(const char *text)
{
    uint16_t port;
    char *host = malloc(strlen(text) + 1);
    fuzz_check(host != NULL, "no memory");
    (void)wefti_address_split(text, host, &port);
    (void)wefti_interface_wanted(text, "eth0");
    free(host);
}

void fuzz_one(const uint8_t *data, size_t size)
{
    size_t count;
    const uint8_t *first = fuzz_take(&data, &size, 1, &count);
    char *text = calloc(1, size + 1);
    fuzz_check(text != NULL, "no memory");
    if (size > 0) {
        memcpy(text, data, size);
    }
    switch (count > 0 ? first[0] % READERS : 0) {
    case 0:
        shake_hands(data, size, false);
        break;
    case 1:
        shake_hands(data, size, true);
        break;
    case 2:
        change_on_the_way(data, size);
        break;
    case 3:
        receive_as_overlay(data, size);
        break;
    case 4:
        adopt_verdict(data, size);
        break;
    case 5:
        read_notice(text);
        break;
    default:
        split_address(text);
    }
    free(text);
}
