/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks send each other before and beside data. The first byte selects who reads the rest:
 * an acceptor, an initiator, both ends of a handshake whose bytes are changed on their way, a rank's
 * overlay, the report of an error, the notice of rank 0, addresses, a rank that is asked by weft ps,
 * the process that asks, a rank that learns what those of other hosts wait in.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/support_fuzz.h"
#include "transport/bootstrap/overlay.h"
#include "transport/bootstrap/rendezvous.h"
#include "transport/hosts.h"

enum { READERS = 10, RANKS = 70, HOSTS_RANKS = 5 };

static const uint8_t key[WEFTI_WORLD_KEY_BYTES] = {1, 2, 3};
static const wefti_greeting_t own = {.version = WEFTI_BOOTSTRAP_VERSION,
                                     .purpose = WEFTI_PURPOSE_MEET,
                                     .rank = 1,
                                     .world_size = RANKS};

static void begin(wefti_handshake_t *shake, int fd, bool initiator)
{
    static const wefti_application_t payload = {.address.count = 1};
    fuzz_check(wefti_handshake_init(shake, fd, initiator, &own, key, sizeof key, NULL) == WEFT_OK,
               "no handshake");
    if (initiator) {
        wefti_handshake_set_payload(shake, &payload, sizeof payload);
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

static void *answer(void *user, bool relays, uint32_t turn, size_t *out_bytes)
{
    (void)user;
    (void)relays;
    *out_bytes = turn % 3000;
    return turn % 7 == 0 ? NULL : calloc(1, *out_bytes + 1);
}

static void rest(void *user)
{
    (void)user; /* questions are answered here, by the caller */
}

/* Of rank 1; links lead to ranks 0 and 3, askers have none. */
static wefti_overlay_t *fresh_overlay(void)
{
    static wefti_seen_t seen[RANKS];
    static uint64_t ranks[3][(RANKS + 63) / 64];
    static wefti_overlay_link_t links[WEFTI_MESH_PEERS_MAX];
    static const wefti_settings_t settings = {.timeout_ns = 1};
    static wefti_overlay_t overlay = {.rank = 1,
                                      .world_size = RANKS,
                                      .lock = PTHREAD_MUTEX_INITIALIZER,
                                      .params = {.settings = &settings,
                                                 .received = received,
                                                 .left = left,
                                                 .died = died,
                                                 .answer = answer},
                                      .links = links,
                                      .link_count = 2,
                                      .seen = seen,
                                      .gone = ranks[0],
                                      .dead = ranks[1],
                                      .gone_reported = ranks[2],
                                      .gone_words = (RANKS + 63) / 64};
    if (overlay.epoll_fd == 0) {
        overlay.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        overlay.timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
        overlay.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        wefti_helper_init(&overlay.answering, rest, NULL);
    }
    memset(seen, 0, sizeof seen);
    memset(ranks, 0, sizeof ranks);
    memset(overlay.routes, 0, sizeof overlay.routes);
    overlay.gone_scan = overlay.question_count = overlay.flood_sequence = 0;
    overlay.timer_set = false;
    overlay.gone_sent_ns = 0;
    for (uint32_t i = 0; i < WEFTI_ASKERS; i++) {
        overlay.askers[i] = (wefti_asker_t){.wire.fd = -1};
    }
    links[0] = (wefti_overlay_link_t){.rank = 0, .up = true};
    links[1] = (wefti_overlay_link_t){.rank = 3, .up = true};
    return &overlay;
}

/* Links, whose other ends are closed; frames that are passed on stay unread. */
static void open_links(wefti_overlay_t *overlay, const uint8_t *data, size_t size, int ends[2][2])
{
    fuzz_sockets(data, size, ends[0]);
    fuzz_sockets(NULL, 0, ends[1]);
    for (uint32_t i = 0; i < 2; i++) {
        wefti_wire_init(&overlay->links[i].wire, ends[i][0], 1u << 20, NULL);
    }
}

static void close_links(wefti_overlay_t *overlay, int ends[2][2])
{
    for (uint32_t i = 0; i < 2; i++) {
        wefti_overlay_link_t *link = &overlay->links[i];
        while (link->parcels != NULL) {
            wefti_parcel_t *next = link->parcels->next;
            wefti_free(NULL, link->parcels);
            link->parcels = next;
        }
        wefti_wire_deinit(&link->wire);
        close(ends[i][1]);
    }
}

/* Rank 0 is linked to a process that asked here before, and waits for answers. */
static void receive_as_overlay(const uint8_t *data, size_t size)
{
    wefti_overlay_t *overlay = fresh_overlay();
    int ends[2][2], asker[2];
    fuzz_sockets(NULL, 0, asker);
    wefti_wire_init(&overlay->askers[0].wire, asker[0], 64, NULL);
    overlay->askers[0].first = overlay->askers[0].last = overlay->flood_sequence = 1;
    open_links(overlay, data, size, ends);
    fuzz_check(wefti_watch(overlay->epoll_fd, EPOLL_CTL_ADD, ends[0][0], EPOLLIN, 0) == WEFT_OK,
               "epoll");
    for (int i = 0; i < 4 && overlay->links[0].up; i++) {
        wefti_overlay_progress(overlay);
        wefti_overlay_answer(overlay);
    }
    fuzz_check(!overlay->links[0].up, "the end of a link is not seen");
    fuzz_check(overlay->question_count == 0, "a question is not answered");
    wefti_wire_deinit(&overlay->askers[0].wire);
    close(asker[1]);
    close_links(overlay, ends);
}

static void be_asked(const uint8_t *data, size_t size)
{
    wefti_overlay_t *overlay = fresh_overlay();
    int ends[2][2], asker[2];
    open_links(overlay, NULL, 0, ends);
    fuzz_sockets(data, size, asker);
    wefti_wire_init(&overlay->askers[2].wire, asker[0], 64, NULL);
    for (int i = 0; i < 8 && overlay->askers[2].wire.fd >= 0; i++) {
        wefti_overlay_serve(overlay, 2);
        wefti_overlay_answer(overlay);
    }
    wefti_wire_deinit(&overlay->askers[2].wire);
    close(asker[1]);
    close_links(overlay, ends);
}

/* ---- the process that asks ---- */

typedef struct served {
    int listener;
    const uint8_t *data;
    size_t size;
} served_t;

static void *serve(void *user)
{
    const served_t *served = user;
    for (;;) {
        int fd = accept(served->listener, NULL, NULL);
        if (fd < 0) {
            return NULL;
        }
        (void)!send(fd, served->data, served->size, MSG_DONTWAIT | MSG_NOSIGNAL);
        close(fd);
    }
}

static bool answered(void *user, const void *data, size_t bytes)
{
    uint8_t *sum = user;
    for (size_t i = 0; i < bytes; i++) {
        *sum ^= ((const uint8_t *)data)[i];
    }
    return bytes > 0 && *sum == 0;
}

static void ask(const uint8_t *data, size_t size)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t length = sizeof address.sun_family;
    served_t served = {socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), data, size};
    pthread_t thread;
    uint8_t sum = 0;
    fuzz_check(bind(served.listener, (const struct sockaddr *)&address, length) == 0 &&
                   listen(served.listener, 8) == 0,
               "cannot listen");
    length = sizeof address;
    getsockname(served.listener, (struct sockaddr *)&address, &length);
    address.sun_path[length - offsetof(struct sockaddr_un, sun_path)] = '\0';
    fuzz_check(pthread_create(&thread, NULL, serve, &served) == 0, "no thread");
    const wefti_asked_rank_t rank = {address.sun_path + 1, getpid()};
    weft_status_t status = wefti_ask(&rank, 1, 1000000, 0, answered, &sum);
    fuzz_check(status == WEFT_OK || status == WEFT_AGAIN || status == WEFT_ERR_SYSTEM,
               "another status");
    shutdown(served.listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(served.listener);
}

/* ---- what ranks of other hosts wait in ---- */

static void hear_of_waits(const uint8_t *data, size_t size)
{
    static wefti_settings_t settings = {.timeout_ns = 1};
    static uint32_t local_of[HOSTS_RANKS] = {0, 1, WEFTI_HOSTS_FAR, WEFTI_HOSTS_FAR,
                                             WEFTI_HOSTS_FAR};
    static wefti_hosts_peer_t peers[HOSTS_RANKS];
    wefti_control_t *control[HOSTS_RANKS];
    wefti_hosts_t hosts = {.base = {.rank = 1, .world_size = HOSTS_RANKS, .settings = &settings}};
    hosts.base.host = &hosts.base;
    hosts.local_of = local_of;
    hosts.base.control = control;
    hosts.peers = peers;
    memset(peers, 0, sizeof peers);
    for (uint32_t r = 0; r < HOSTS_RANKS; r++) {
        control[r] = &peers[r].control;
    }
    size_t count;
    for (const uint8_t *head; (head = fuzz_take(&data, &size, 4, &count)), count == 4;) {
        char text[300];
        uint32_t kind = WEFTI_HOSTS_WAITS + head[0] % 3, origin = head[1];
        const uint8_t *message = fuzz_take(&data, &size, head[2] | (size_t)head[3] << 8, &count);
        wefti_hosts_received(&hosts, origin, kind, message, count);
        for (uint32_t r = 0; r < HOSTS_RANKS; r++) {
            const uint32_t late[2] = {r, origin};
            wefti_wait_t list[WEFTI_WAITS];
            uint32_t waits = wefti_waits_read(&hosts.base, r, list);
            fuzz_check(waits <= WEFTI_WAITS, "more records than there is room for");
            for (uint32_t w = 0; w < waits; w++) {
                fuzz_check(list[w].late_count <= WEFTI_WAIT_RANKS &&
                               memchr(list[w].text, 0, sizeof list[w].text) != NULL,
                           "a record is out of range");
            }
            wefti_waits_causes(&hosts.base, late, 2, text, sizeof text);
            wefti_endpoint_add_error_of(&hosts.base, r, text, sizeof text);
            (void)wefti_endpoint_given_up(&hosts.base, origin);
        }
    }
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
    case 7:
        be_asked(data, size);
        break;
    case 8:
        ask(data, size);
        break;
    case 9:
        hear_of_waits(data, size);
        break;
    default:
        split_address(text);
    }
    free(text);
}
