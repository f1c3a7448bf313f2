/* SPDX-License-Identifier: Apache-2.0 */
/* The other ranks' side of the rendezvous: look for rank 0 until it is there, then do as it says.
 */
#include "transport/bootstrap/meet.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"

#define SECOND_NS 1000000000ull
#define MILLISECOND_NS 1000000ull
#define CONNECT_NS (3 * SECOND_NS)
#define SLICE_MS 50 /* of waiting, between two looks whether the rank is interrupted */
/* An address whose port others may own is not waited for long at first. */
#define SCAN_NS SECOND_NS
#define ANSWER_NS (20 * SECOND_NS)
/* Rank 0's tables, for the largest worlds. */
#define TABLE_BYTES 16384u

typedef struct guest {
    wefti_meeting_t *meeting;
    wefti_handshake_t shake; /* with rank 0 */
    uint64_t patience_ns;    /* for an answer */
    uint32_t rank;           /* whom it says it is */
    char why[200];           /* of the latest attempt */
} guest_t;

/* False: time is up, or the rank is interrupted, which whoever tries again looks for. */
static bool await(const guest_t *guest, int fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now = wefti_now_ns();
        if (now >= deadline_ns) {
            return false;
        }
        uint64_t left_ms = (deadline_ns - now) / MILLISECOND_NS + 1;
        struct pollfd poll_fd = {.fd = fd, .events = events};
        if (poll(&poll_fd, 1, left_ms < SLICE_MS ? (int)left_ms : SLICE_MS) > 0) {
            return true;
        }
        if (wefti_interrupted(&guest->meeting->interrupt)) {
            return false;
        }
    }
}

static weft_status_t no_luck(guest_t *guest, const wefti_address_t *at, const char *why)
{
    char text[WEFTI_ADDRESS_TEXT];
    snprintf(guest->why, sizeof guest->why, "%s: %s", wefti_address_text(at, true, text), why);
    return WEFT_AGAIN;
}

/* A connected socket to rank 0, or to whoever is there. */
static weft_status_t reach(guest_t *guest, const wefti_address_t *at, int *out_fd)
{
    wefti_meeting_t *meeting = guest->meeting;
    uint64_t until =
        wefti_now_ns() + (guest->patience_ns < CONNECT_NS ? guest->patience_ns : CONNECT_NS);
    int fd, problem = ETIMEDOUT;
    weft_status_t status = wefti_address_connect(at, &fd);
    if (status != WEFT_OK) {
        return status < 0 ? status : no_luck(guest, at, strerror(errno));
    }
    if (await(guest, fd, POLLOUT, until < meeting->deadline_ns ? until : meeting->deadline_ns)) {
        problem = wefti_address_connected(fd);
    }
    if (problem != 0) {
        close(fd);
        return no_luck(guest, at, strerror(problem));
    }
    *out_fd = fd;
    return WEFT_OK;
}

/* Proves itself to who is there. WEFT_AGAIN: it is not this job's rank 0. */
static weft_status_t introduce(guest_t *guest, const wefti_address_t *at)
{
    wefti_meeting_t *meeting = guest->meeting;
    uint64_t until = wefti_now_ns() + guest->patience_ns;
    until = until < meeting->deadline_ns ? until : meeting->deadline_ns;
    weft_status_t status;
    while ((status = wefti_handshake_step(&guest->shake)) == WEFT_AGAIN) {
        if (!await(guest, guest->shake.wire.fd, POLLIN, until)) {
            return no_luck(guest, at, "does not answer");
        }
    }
    if (status == WEFT_ERR_NOT_FOUND) {
        return no_luck(guest, at, "it belongs to another job");
    }
    if (status == WEFT_ERR_FORMAT) {
        return no_luck(guest, at, "something that is no Weft answered");
    }
    if (status == WEFT_ERR_PEER_DIED) {
        return no_luck(guest, at, "hung up");
    }
    if (status == WEFT_ERR_MISMATCH) {
        /* At an address that was given, what is there counts; else it is somebody else. */
        return meeting->place.scanned || meeting->place.job->ports != WEFTI_PORT_ONE
                   ? no_luck(guest, at, guest->shake.why)
                   : wefti_error(status, "rank %u: %s", guest->rank, guest->shake.why);
    }
    return status;
}

static weft_status_t hear_error(const wefti_frame_t *frame)
{
    wefti_verdict_t verdict;
    if (frame->bytes != sizeof verdict) {
        return wefti_error(WEFT_ERR_FORMAT, "malformed message from rank 0: error report");
    }
    memcpy(&verdict, frame->body, sizeof verdict);
    verdict.text[sizeof verdict.text - 1] = '\0';
    if (verdict.again != 0) {
        return WEFT_AGAIN;
    }
    return wefti_error_adopt(verdict.status < 0 ? (weft_status_t)verdict.status : WEFT_ERR_INTERNAL,
                             verdict.text);
}

static weft_status_t hear_table(guest_t *guest, const wefti_frame_t *frame)
{
    wefti_meeting_t *meeting = guest->meeting;
    wefti_mesh_t *mesh = &meeting->mesh;
    wefti_table_t table;
    wefti_card_t cards[WEFTI_MESH_PEERS_MAX];
    uint8_t key[WEFTI_WORLD_KEY_BYTES];
    bool good = frame->bytes >= sizeof table && mesh->began_ns == 0;
    if (good) {
        memcpy(&table, frame->body, sizeof table);
        good = table.count == mesh->peer_count &&
               frame->bytes == sizeof table + table.count * sizeof(wefti_table_entry_t);
    }
    for (uint32_t i = 0; good && i < table.count; i++) {
        wefti_table_entry_t entry;
        memcpy(&entry, frame->body + sizeof table + i * sizeof entry, sizeof entry);
        good = entry.rank == mesh->peers[i].rank && entry.card.count > 0 &&
               entry.card.count <= WEFTI_CARD_ADDRESSES;
        cards[i] = entry.card;
    }
    if (!good) {
        return wefti_error(WEFT_ERR_FORMAT, "malformed message from rank 0: address table");
    }
    weft_status_t status = wefti_meet_world_key(meeting, table.seed, key);
    if (status == WEFT_OK) {
        uint64_t least = wefti_now_ns() + 5 * SECOND_NS;
        status = wefti_mesh_begin(mesh, key, cards,
                                  meeting->deadline_ns > least ? meeting->deadline_ns : least);
    }
    wefti_forget(key, sizeof key);
    return status;
}

static void complain(guest_t *guest, weft_status_t status)
{
    wefti_verdict_t verdict = {.status = status};
    snprintf(verdict.text, sizeof verdict.text, "%s", weft_last_error());
    wefti_wire_send(&guest->shake.wire, WEFTI_FAILED, &verdict, sizeof verdict, NULL, 0);
}

/* All that rank 0 has said. WEFT_OK: go; WEFT_IN_PROGRESS: not yet; WEFT_AGAIN: not our world. */
static weft_status_t hear_rank_0(guest_t *guest, bool *failed)
{
    char at[WEFTI_ADDRESS_TEXT] = "?";
    wefti_address_t from;
    wefti_frame_t frame;
    weft_status_t status = wefti_wire_flush(&guest->shake.wire);
    while (status >= 0 && (status = wefti_wire_receive(&guest->shake.wire, &frame)) == WEFT_OK) {
        if (frame.kind == WEFTI_GO) {
            return WEFT_OK;
        }
        if (frame.kind == WEFTI_ERROR) {
            return hear_error(&frame);
        }
        if (frame.kind != WEFTI_TABLE) {
            return wefti_error(WEFT_ERR_FORMAT,
                               "protocol error: unexpected message type %u from rank 0",
                               (unsigned int)frame.kind);
        }
        status = hear_table(guest, &frame);
        if (status < 0 && !*failed) {
            *failed = true;
            complain(guest, status); /* rank 0 tells everybody, this rank too */
        }
    }
    if (status == WEFT_AGAIN) {
        return WEFT_IN_PROGRESS;
    }
    if (status == WEFT_ERR_PEER_DIED) {
        if (wefti_address_peer(guest->shake.wire.fd, &from)) {
            wefti_address_text(&from, true, at);
        }
        return wefti_error(status, "rank 0 (%s) disconnected while other ranks were still joining",
                           guest->meeting->place.text);
    }
    return status;
}

/* With rank 0's connection: until all ranks are there and connected. */
static weft_status_t take_part(guest_t *guest)
{
    wefti_meeting_t *meeting = guest->meeting;
    wefti_mesh_t *mesh = &meeting->mesh;
    bool ready = false, failed = false;
    /* Rank 0 keeps the time from here on, and names who is missing. */
    uint64_t timeout = meeting->settings->connect_timeout_ns;
    uint64_t patience = timeout == 0 ? UINT64_MAX : wefti_now_ns() + 2 * timeout + 10 * SECOND_NS;
    guest->shake.wire.in_limit = TABLE_BYTES;
    for (;;) {
        uint64_t wait_ns = SECOND_NS;
        weft_status_t status = hear_rank_0(guest, &failed);
        if (status != WEFT_IN_PROGRESS) {
            return status;
        }
        if (mesh->began_ns != 0 && !ready && !failed) {
            status = wefti_mesh_step(mesh, &wait_ns);
            if (status < 0) {
                failed = true;
                complain(guest, status);
            } else if (status == WEFT_OK) {
                ready = true;
                wefti_wire_send(&guest->shake.wire, WEFTI_READY, NULL, 0, NULL, 0);
            }
        }
        if (wefti_now_ns() >= patience) {
            return wefti_error(WEFT_ERR_TIMEOUT,
                               "rank 0 (%s) did not complete the rendezvous before the timeout",
                               meeting->place.text);
        }
        if (wefti_interrupted(&meeting->interrupt)) {
            return wefti_interrupt_error(meeting->rank);
        }
        struct pollfd fds[2] = {
            {.fd = guest->shake.wire.fd,
             .events = (short)(POLLIN | (wefti_wire_unsent(&guest->shake.wire) ? POLLOUT : 0))},
            {.fd = mesh->began_ns != 0 && !ready && !failed ? mesh->epoll_fd : -1,
             .events = POLLIN}};
        uint64_t wait_ms = wait_ns / MILLISECOND_NS + 1;
        poll(fds, 2, wait_ms < SLICE_MS ? (int)wait_ms : SLICE_MS);
    }
}

/* One attempt at one address. WEFT_AGAIN: not there. */
static weft_status_t visit(guest_t *guest, const wefti_address_t *at)
{
    wefti_meeting_t *meeting = guest->meeting;
    wefti_greeting_t greeting = {.version = WEFTI_BOOTSTRAP_VERSION,
                                 .purpose = WEFTI_PURPOSE_MEET,
                                 .rank = guest->rank,
                                 .world_size = meeting->world_size};
    memcpy(greeting.job, meeting->place.id, sizeof greeting.job);
    wefti_card_t card;
    wefti_address_t local;
    int fd = -1;
    weft_status_t status = reach(guest, at, &fd);
    if (status != WEFT_OK) {
        return status;
    }
    if (!wefti_address_local(fd, &local)) {
        close(fd);
        return no_luck(guest, at, strerror(errno));
    }
    /* What an attempt at another address left behind. */
    wefti_mesh_deinit(&meeting->mesh);
    status = wefti_mesh_init(&meeting->mesh, meeting->rank, meeting->world_size, meeting->log,
                             meeting->allocator);
    if (status == WEFT_OK) {
        status = wefti_meet_listen(meeting, &local, &card);
    }
    if (status < 0) {
        close(fd);
        return status;
    }
    status = wefti_handshake_init(&guest->shake, fd, true, &greeting, &card, meeting->place.secret,
                                  meeting->place.secret_bytes, meeting->allocator);
    if (status < 0) {
        return status;
    }
    status = introduce(guest, at);
    if (status == WEFT_OK) {
        status = take_part(guest);
    }
    meeting->sent += guest->shake.wire.sent;
    meeting->received += guest->shake.wire.received;
    wefti_handshake_deinit(&guest->shake);
    return status;
}

static weft_status_t look_once(guest_t *guest)
{
    wefti_place_t *place = &guest->meeting->place;
    weft_status_t status = wefti_place_find(place);
    if (status == WEFT_AGAIN) {
        snprintf(guest->why, sizeof guest->why, "%s", place->why);
    }
    if (status != WEFT_OK) {
        return status;
    }
    status = WEFT_AGAIN;
    for (uint32_t i = 0; i < place->count && status == WEFT_AGAIN; i++) {
        if (wefti_interrupted(&guest->meeting->interrupt)) {
            return wefti_interrupt_error(guest->rank);
        }
        if (wefti_now_ns() < guest->meeting->deadline_ns) {
            status = visit(guest, &place->candidates[i]);
        }
    }
    return status;
}

weft_status_t wefti_meet_look(wefti_meeting_t *meeting)
{
    guest_t guest = {.meeting = meeting, .patience_ns = 2 * SECOND_NS, .rank = meeting->rank};
    weft_status_t status = look_once(&guest);
    wefti_mesh_deinit(&meeting->mesh); /* the card of a guest led there */
    weft_status_t fresh = wefti_mesh_init(&meeting->mesh, meeting->rank, meeting->world_size,
                                          meeting->log, meeting->allocator);
    return fresh < 0 ? fresh : status;
}

weft_status_t wefti_meet_guest(wefti_meeting_t *meeting)
{
    guest_t guest = {.meeting = meeting, .rank = meeting->rank};
    uint64_t pause_ns = 2 * MILLISECOND_NS;
    for (uint32_t round = 0;; round++) {
        bool scan = meeting->place.job->ports != WEFTI_PORT_ONE;
        guest.patience_ns = scan && round < 5 ? SCAN_NS << round : ANSWER_NS;
        weft_status_t status = look_once(&guest);
        if (status != WEFT_AGAIN) {
            return status;
        }
        uint64_t now = wefti_now_ns();
        if (now >= meeting->deadline_ns) {
            return wefti_error(
                WEFT_ERR_TIMEOUT,
                "rank %u: rank 0 not found at %s within %.3g s; missing ranks: 0%s%s%s",
                meeting->rank, meeting->place.text,
                (double)meeting->settings->connect_timeout_ns * 1e-9,
                guest.why[0] != '\0' ? " (" : "", guest.why, guest.why[0] != '\0' ? ")" : "");
        }
        if (wefti_interrupted(&meeting->interrupt)) {
            return wefti_interrupt_error(meeting->rank);
        }
        /* Not all at the same moment, and not more often than helps. */
        uint64_t nap = pause_ns + pause_ns * (meeting->rank % 16) / 16;
        nap = nap < meeting->deadline_ns - now ? nap : meeting->deadline_ns - now;
        nanosleep(&(struct timespec){.tv_sec = (time_t)(nap / SECOND_NS),
                                     .tv_nsec = (long)(nap % SECOND_NS)},
                  NULL);
        pause_ns = pause_ns < 60 * MILLISECOND_NS ? 2 * pause_ns : pause_ns;
    }
}
