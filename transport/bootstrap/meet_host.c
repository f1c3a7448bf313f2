/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0's side of the rendezvous. Whoever connects may be anything: only somebody who has proved
 * to know the secret and contradicts the world ends it.
 */
#include "transport/bootstrap/meet.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"

#define SECOND_NS 1000000000ull
/* Strangers that may be waited for at once, beside one connection for each rank. */
#define SPARE_VISITORS 64u
/* A visitor that does not prove itself for so long may be a stranger. */
#define PATIENCE_NS (20 * SECOND_NS)
/* After a contradiction, ranks that come within this time still learn of it. */
#define GRACE_NS SECOND_NS
/* Ranks send little: a verdict at most. */
#define RANK_BYTES 1024u
#define LISTENER_TAG UINT32_MAX
#define MESH_TAG (UINT32_MAX - 1)
#define NOTE_BYTES 200u

typedef struct visitor {
    wefti_handshake_t shake;
    bool present;
    bool rank_known; /* proved, and a rank of this world */
    bool ready;      /* connected to its neighbours */
    uint64_t since_ns;
    wefti_address_t from;
    wefti_card_t card;
} visitor_t;

typedef struct host {
    wefti_meeting_t *meeting;
    visitor_t *visitors;
    uint32_t capacity;
    visitor_t **of_rank; /* [world_size] */
    uint32_t come, ready;
    bool tables_sent;
    int epoll_fd;
    weft_status_t failure;
    wefti_verdict_t verdict;
    uint64_t end_ns;       /* of the grace */
    char note[NOTE_BYTES]; /* of somebody who was turned away */
    wefti_card_t own_card;
    uint8_t seed[32];
} host_t;

static uint32_t rank_of(const visitor_t *visitor)
{
    return wefti_handshake_peer(&visitor->shake)->rank;
}

static weft_status_t watch(const host_t *host, int operation, int fd, uint32_t events, uint32_t tag)
{
    struct epoll_event event = {.events = events, .data.u32 = tag};
    return epoll_ctl(host->epoll_fd, operation, fd, &event) == 0
               ? WEFT_OK
               : wefti_error_errno(WEFT_ERR_SYSTEM, errno, "epoll_ctl failed");
}

static void dismiss(host_t *host, visitor_t *visitor)
{
    if (visitor->rank_known) {
        host->of_rank[rank_of(visitor)] = NULL;
        host->come--;
        host->ready -= visitor->ready;
    }
    host->meeting->sent += visitor->shake.wire.sent;
    host->meeting->received += visitor->shake.wire.received;
    wefti_handshake_deinit(&visitor->shake);
    *visitor = (visitor_t){.shake.wire.fd = -1};
}

/* To one rank; what does not fit into its socket follows by events. */
static void tell(host_t *host, visitor_t *visitor, uint32_t kind, const void *head,
                 size_t head_bytes, const void *data, size_t bytes)
{
    weft_status_t status =
        wefti_wire_send(&visitor->shake.wire, kind, head, head_bytes, data, bytes);
    if (status == WEFT_AGAIN) {
        watch(host, EPOLL_CTL_MOD, visitor->shake.wire.fd, EPOLLIN | EPOLLOUT,
              (uint32_t)(visitor - host->visitors));
    }
}

/* The world does not come about: everybody who came is told why. */
static void fail(host_t *host, weft_status_t status)
{
    wefti_meeting_t *meeting = host->meeting;
    if (host->failure != WEFT_OK) {
        return;
    }
    host->failure = status;
    host->verdict.status = status;
    snprintf(host->verdict.text, sizeof host->verdict.text, "%s", weft_last_error());
    for (uint32_t r = 1; r < meeting->world_size; r++) {
        if (host->of_rank[r] != NULL) {
            tell(host, host->of_rank[r], WEFTI_ERROR, &host->verdict, sizeof host->verdict, NULL,
                 0);
        }
    }
    /* Who did not come in all that time does not come in the next second either. */
    uint64_t timeout = meeting->settings->connect_timeout_ns;
    uint64_t grace = timeout != 0 && timeout / 10 < GRACE_NS ? timeout / 10 : GRACE_NS;
    host->end_ns = wefti_now_ns() + (status == WEFT_ERR_TIMEOUT ? 0 : grace);
}

/* ---- visitors ---- */

static visitor_t *find_seat(host_t *host)
{
    visitor_t *oldest = NULL;
    for (uint32_t i = 0; i < host->capacity; i++) {
        visitor_t *visitor = &host->visitors[i];
        if (!visitor->present) {
            return visitor;
        }
        if (!visitor->rank_known && (oldest == NULL || visitor->since_ns < oldest->since_ns)) {
            oldest = visitor;
        }
    }
    if (oldest != NULL) { /* ranks that are sent away for others come again */
        dismiss(host, oldest);
    }
    return oldest;
}

static void accept_visitors(host_t *host)
{
    wefti_meeting_t *meeting = host->meeting;
    const wefti_greeting_t greeting = {.version = WEFTI_BOOTSTRAP_VERSION,
                                       .purpose = WEFTI_PURPOSE_MEET,
                                       .rank = 0,
                                       .world_size = meeting->world_size};
    int fd;
    while ((fd = accept4(meeting->place.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        visitor_t *visitor = find_seat(host);
        wefti_greeting_t own = greeting;
        memcpy(own.job, meeting->place.id, sizeof own.job);
        if (visitor == NULL) {
            close(fd);
            continue;
        }
        if (wefti_handshake_init(&visitor->shake, fd, false, &own, NULL, meeting->place.secret,
                                 meeting->place.secret_bytes, meeting->allocator) < 0) {
            fail(host, WEFT_ERR_SYSTEM);
            return;
        }
        visitor->present = true;
        visitor->since_ns = wefti_now_ns();
        wefti_address_peer(fd, &visitor->from);
        if (watch(host, EPOLL_CTL_ADD, fd, EPOLLIN, (uint32_t)(visitor - host->visitors)) < 0) {
            fail(host, WEFT_ERR_SYSTEM);
        }
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        fail(host, wefti_error_errno(WEFT_ERR_SYSTEM, errno,
                                     "rank 0: cannot accept more connections; raise the limit of "
                                     "open files (ulimit -n)"));
    }
}

/* Somebody of this job, but does it fit this world? */
static weft_status_t check_rank(const host_t *host, const visitor_t *visitor)
{
    const wefti_greeting_t *who = wefti_handshake_peer(&visitor->shake);
    uint32_t world_size = host->meeting->world_size;
    char at[WEFTI_ADDRESS_TEXT], other[WEFTI_ADDRESS_TEXT];
    wefti_address_text(&visitor->from, true, at);
    if (who->version != WEFTI_BOOTSTRAP_VERSION) {
        return wefti_error(
            WEFT_ERR_MISMATCH,
            "protocol version mismatch: rank %u (%s) uses version %u, rank 0 uses version %u",
            who->rank, at, who->version, WEFTI_BOOTSTRAP_VERSION);
    }
    if (who->world_size != world_size) {
        return wefti_error(WEFT_ERR_MISMATCH,
                           "world size mismatch: rank %u (%s) has %u, rank 0 has %u", who->rank, at,
                           who->world_size, world_size);
    }
    if (who->rank >= world_size) {
        return wefti_error(WEFT_ERR_MISMATCH, "invalid rank from %s: rank %u for world size %u", at,
                           who->rank, world_size);
    }
    if (who->rank == 0) {
        return wefti_error(WEFT_ERR_MISMATCH, "duplicate rank 0: the processes at %s and %s",
                           host->meeting->place.text, at);
    }
    if (host->of_rank[who->rank] != NULL) {
        return wefti_error(WEFT_ERR_MISMATCH, "duplicate rank %u: the processes at %s and %s",
                           who->rank,
                           wefti_address_text(&host->of_rank[who->rank]->from, true, other), at);
    }
    return WEFT_OK;
}

static void welcome(host_t *host, visitor_t *visitor)
{
    weft_status_t status = check_rank(host, visitor);
    visitor->shake.wire.in_limit = RANK_BYTES;
    if (status == WEFT_OK && !wefti_handshake_card(&visitor->shake, &visitor->card)) {
        status = wefti_error(WEFT_ERR_FORMAT, "malformed message from rank %u: endpoint address",
                             rank_of(visitor));
    }
    if (status < 0) {
        fail(host, status);
    }
    if (host->failure != WEFT_OK) {
        tell(host, visitor, WEFTI_ERROR, &host->verdict, sizeof host->verdict, NULL, 0);
    }
    if (status == WEFT_OK) {
        host->of_rank[rank_of(visitor)] = visitor;
        visitor->rank_known = true;
        host->come++;
    }
}

static void turn_away(host_t *host, visitor_t *visitor, weft_status_t why)
{
    char at[WEFTI_ADDRESS_TEXT];
    const wefti_greeting_t *who = wefti_handshake_peer(&visitor->shake);
    wefti_address_text(&visitor->from, true, at);
    if (why == WEFT_ERR_MISMATCH) {
        snprintf(host->note, sizeof host->note,
                 "authentication failed: %s claims to be rank %u but does not know the secret", at,
                 who->rank);
    }
    if (why != WEFT_ERR_PEER_DIED) {
        wefti_log(host->meeting->log, WEFT_LOG_LEVEL_INFO,
                  "rank 0: rejected the connection from %s: %s", at,
                  why == WEFT_ERR_MISMATCH ? "authentication failed" : "not a Weft rank");
    }
    dismiss(host, visitor);
}

/* A rank that came speaks, or is gone. */
static void hear_rank(host_t *host, visitor_t *visitor)
{
    char at[WEFTI_ADDRESS_TEXT];
    wefti_frame_t frame;
    uint32_t rank = rank_of(visitor);
    weft_status_t status = wefti_wire_flush(&visitor->shake.wire);
    if (status == WEFT_OK) {
        watch(host, EPOLL_CTL_MOD, visitor->shake.wire.fd, EPOLLIN,
              (uint32_t)(visitor - host->visitors));
    }
    while (status >= 0 && (status = wefti_wire_receive(&visitor->shake.wire, &frame)) == WEFT_OK) {
        wefti_verdict_t verdict;
        if (frame.kind == WEFTI_READY && host->tables_sent) {
            host->ready += !visitor->ready;
            visitor->ready = true;
        } else if (frame.kind == WEFTI_FAILED && frame.bytes == sizeof verdict) {
            memcpy(&verdict, frame.body, sizeof verdict);
            verdict.text[sizeof verdict.text - 1] = '\0';
            fail(host, wefti_error_adopt(verdict.status < 0 ? (weft_status_t)verdict.status
                                                            : WEFT_ERR_INTERNAL,
                                         verdict.text));
        } else {
            status = WEFT_ERR_FORMAT;
        }
    }
    if (status == WEFT_AGAIN) {
        return;
    }
    wefti_address_text(&visitor->from, true, at);
    if (host->tables_sent) {
        fail(host, wefti_error(WEFT_ERR_PEER_DIED,
                               "rank %u (%s) disconnected while other ranks were still joining",
                               rank, at));
    } else {
        snprintf(host->note, sizeof host->note, "rank %u (%s) joined and disconnected", rank, at);
    }
    dismiss(host, visitor);
}

static void hear(host_t *host, visitor_t *visitor)
{
    if (!visitor->present) {
        return;
    }
    if (visitor->rank_known) {
        hear_rank(host, visitor);
        return;
    }
    if (visitor->shake.proven) { /* it was told that it does not fit: nothing more to hear */
        if (wefti_wire_flush(&visitor->shake.wire) != WEFT_AGAIN) {
            dismiss(host, visitor);
        }
        return;
    }
    weft_status_t status = wefti_handshake_step(&visitor->shake);
    if (status == WEFT_OK) {
        welcome(host, visitor);
    } else if (status != WEFT_AGAIN) {
        turn_away(host, visitor, status);
    }
}

/* ---- the course of things ---- */

/* Looks at everybody once; waits for something to happen until the deadline, but not for long. */
static void attend(host_t *host, uint64_t wait_ns)
{
    struct epoll_event events[128];
    wefti_meeting_t *meeting = host->meeting;
    int count = epoll_wait(host->epoll_fd, events, 128, (int)(wait_ns / 1000000 + 1));
    for (int i = 0; i < count; i++) {
        uint32_t tag = events[i].data.u32;
        if (tag == LISTENER_TAG) {
            accept_visitors(host);
        } else if (tag != MESH_TAG) {
            hear(host, &host->visitors[tag]);
        }
    }
    uint64_t now = wefti_now_ns();
    for (uint32_t i = 0; i < host->capacity; i++) {
        visitor_t *visitor = &host->visitors[i];
        if (visitor->present && !visitor->rank_known && now > visitor->since_ns + PATIENCE_NS) {
            turn_away(host, visitor, WEFT_ERR_FORMAT);
        }
    }
    if (host->failure == WEFT_OK && !wefti_place_held(&meeting->place)) {
        host->verdict.again = 1;
        fail(host,
             wefti_error(WEFT_ERR_MISMATCH, "another rank 0 took over %s", meeting->place.text));
    }
}

/* "3, 5-7": ranks that wanted(user) says yes to. */
static uint32_t list_ranks(const host_t *host, bool unready, char *text, size_t capacity)
{
    uint32_t count = 0;
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t r = 1; r < host->meeting->world_size; r++) {
        uint32_t last = r;
        while (last < host->meeting->world_size &&
               (host->of_rank[last] == NULL || (unready && !host->of_rank[last]->ready))) {
            last++;
        }
        if (last == r) {
            continue;
        }
        count += last - r;
        if (used + 28 < capacity) {
            used +=
                (size_t)snprintf(text + used, capacity - used, last - r > 1 ? "%s%u-%u" : "%s%u",
                                 used > 0 ? ", " : "", r, last - 1);
        } else if (text[used - 1] != '.') {
            used += (size_t)snprintf(text + used, capacity - used, ", ...");
        }
        r = last;
    }
    return count;
}

static void fail_late(host_t *host)
{
    const wefti_meeting_t *meeting = host->meeting;
    char names[160];
    double seconds = (double)meeting->settings->connect_timeout_ns * 1e-9;
    uint32_t count = list_ranks(host, host->tables_sent, names, sizeof names);
    if (host->tables_sent) {
        fail(host,
             wefti_error(WEFT_ERR_TIMEOUT,
                         "%u of %u ranks did not connect to their neighbours within %.3g s: %s",
                         count, meeting->world_size, seconds, names));
    } else {
        fail(host,
             wefti_error(WEFT_ERR_TIMEOUT,
                         "%u of %u ranks did not join at %s within %.3g s; missing ranks: %s%s%s%s",
                         count, meeting->world_size, meeting->place.text, seconds, names,
                         host->note[0] != '\0' ? " (" : "", host->note,
                         host->note[0] != '\0' ? ")" : ""));
    }
}

static weft_status_t send_tables(host_t *host)
{
    wefti_meeting_t *meeting = host->meeting;
    wefti_table_entry_t entries[WEFTI_MESH_PEERS_MAX];
    wefti_card_t own[WEFTI_MESH_PEERS_MAX];
    uint8_t key[WEFTI_WORLD_KEY_BYTES];
    host->tables_sent = true;
    for (uint32_t r = 0; r < meeting->world_size; r++) {
        uint32_t ranks[WEFTI_MESH_PEERS_MAX];
        wefti_table_t table = {.count = wefti_mesh_neighbours(r, meeting->world_size, ranks)};
        memcpy(table.seed, host->seed, sizeof table.seed);
        for (uint32_t i = 0; i < table.count; i++) {
            const visitor_t *of = ranks[i] == 0 ? NULL : host->of_rank[ranks[i]];
            entries[i].rank = ranks[i];
            entries[i].card = of != NULL ? of->card : host->own_card;
            own[i] = entries[i].card;
        }
        if (r > 0) {
            tell(host, host->of_rank[r], WEFTI_TABLE, &table, sizeof table, entries,
                 table.count * sizeof *entries);
            continue;
        }
        weft_status_t status = wefti_meet_world_key(meeting, host->seed, key);
        if (status == WEFT_OK) {
            status = wefti_mesh_begin(&meeting->mesh, key, own, meeting->deadline_ns);
        }
        if (status == WEFT_OK) {
            status = watch(host, EPOLL_CTL_ADD, meeting->mesh.epoll_fd, EPOLLIN, MESH_TAG);
        }
        if (status < 0) {
            return status;
        }
    }
    return WEFT_OK;
}

static void gather_ranks(host_t *host)
{
    wefti_meeting_t *meeting = host->meeting;
    while (host->failure == WEFT_OK && host->come < meeting->world_size - 1) {
        uint64_t now = wefti_now_ns();
        if (now >= meeting->deadline_ns) {
            fail_late(host);
            return;
        }
        if (wefti_interrupted(&meeting->interrupt)) {
            fail(host, wefti_interrupt_error(meeting->rank));
            return;
        }
        uint64_t left = meeting->deadline_ns - now;
        attend(host, left < SECOND_NS / 10 ? left : SECOND_NS / 10);
    }
}

static void connect_ranks(host_t *host)
{
    wefti_meeting_t *meeting = host->meeting;
    bool connected = false;
    weft_status_t status = send_tables(host);
    if (status < 0) {
        fail(host, status);
    }
    /* Those who came at the last moment get their time to connect. */
    uint64_t deadline = wefti_now_ns() + 5 * SECOND_NS;
    deadline = deadline > meeting->deadline_ns ? deadline : meeting->deadline_ns;
    while (host->failure == WEFT_OK && !(connected && host->ready == meeting->world_size - 1)) {
        uint64_t wait_ns = SECOND_NS / 10;
        if (!connected) {
            status = wefti_mesh_step(&meeting->mesh, &wait_ns);
            if (status < 0) {
                fail(host, status);
                return;
            }
            connected = status == WEFT_OK;
            wait_ns = wait_ns < SECOND_NS / 10 ? wait_ns : SECOND_NS / 10;
            if (connected) {
                epoll_ctl(host->epoll_fd, EPOLL_CTL_DEL, meeting->mesh.epoll_fd, NULL);
                continue;
            }
        }
        if (wefti_now_ns() >= deadline) {
            fail_late(host);
            return;
        }
        if (wefti_interrupted(&meeting->interrupt)) {
            fail(host, wefti_interrupt_error(meeting->rank));
            return;
        }
        attend(host, wait_ns);
    }
}

/* Sends what is left to be sent; after a failure, waits a little for those who come late. */
static void see_off(host_t *host)
{
    wefti_meeting_t *meeting = host->meeting;
    uint64_t until = wefti_now_ns() + SECOND_NS;
    for (;;) {
        uint64_t now = wefti_now_ns();
        bool unsent = false;
        for (uint32_t i = 0; i < host->capacity; i++) {
            unsent = unsent || (host->visitors[i].present &&
                                wefti_wire_unsent(&host->visitors[i].shake.wire));
        }
        bool grace =
            host->failure != WEFT_OK && now < host->end_ns && host->come < meeting->world_size - 1;
        if ((!unsent && !grace) || now >= until) {
            return;
        }
        attend(host, SECOND_NS / 100);
    }
}

/* A connection per rank: more than many systems let a process have at first. */
static bool raise_limit(uint32_t world_size, struct rlimit *before)
{
    struct rlimit limit;
    rlim_t need = (rlim_t)world_size + SPARE_VISITORS + 512;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= need) {
        return false;
    }
    *before = limit;
    limit.rlim_cur = need < limit.rlim_max ? need : limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

/* As when the place is open: everybody comes, and connects. */
static weft_status_t receive_all(host_t *host)
{
    wefti_meeting_t *meeting = host->meeting;
    wefti_address_t local = {0};
    weft_status_t status = WEFT_OK;
    if (!wefti_address_local(meeting->place.listener, &local)) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "getsockname failed");
    }
    static const uint8_t none[16] = {0};
    if (memcmp(local.bytes, none, sizeof none) == 0) {
        local.family = 0; /* it listens everywhere: no address is better than another one */
    }
    WEFT_TRY(status, wefti_meet_listen(meeting, &local, &host->own_card), out);
    WEFT_TRY(status, wefti_random_bytes(host->seed, sizeof host->seed), out);
    WEFT_TRY(status, watch(host, EPOLL_CTL_ADD, meeting->place.listener, EPOLLIN, LISTENER_TAG),
             out);
    gather_ranks(host);
    if (host->failure == WEFT_OK) {
        connect_ranks(host);
    }
    for (uint32_t r = 1; r < meeting->world_size && host->failure == WEFT_OK; r++) {
        tell(host, host->of_rank[r], WEFTI_GO, NULL, 0, NULL, 0);
    }
    see_off(host);
    if (host->failure != WEFT_OK) {
        status = wefti_error_adopt(host->failure, host->verdict.text);
    }
out:
    return status;
}

weft_status_t wefti_meet_host(wefti_meeting_t *meeting)
{
    struct rlimit before;
    bool raised = raise_limit(meeting->world_size, &before);
    host_t host = {.meeting = meeting,
                   .epoll_fd = epoll_create1(EPOLL_CLOEXEC),
                   .capacity = meeting->world_size + SPARE_VISITORS};
    weft_status_t status = WEFT_OK;
    if (host.epoll_fd < 0) {
        status = wefti_error_errno(WEFT_ERR_SYSTEM, errno, "epoll_create1 failed");
    }
    host.visitors = wefti_alloc(meeting->allocator, host.capacity * sizeof *host.visitors);
    host.of_rank = wefti_alloc(meeting->allocator, meeting->world_size * sizeof *host.of_rank);
    if (host.visitors == NULL || host.of_rank == NULL) {
        status = WEFT_ERR_NO_MEMORY;
    }
    if (status == WEFT_OK) {
        status = receive_all(&host);
    }
    for (uint32_t i = 0; host.visitors != NULL && i < host.capacity; i++) {
        if (host.visitors[i].present) {
            dismiss(&host, &host.visitors[i]);
        }
    }
    wefti_free(meeting->allocator, host.visitors);
    wefti_free(meeting->allocator, host.of_rank);
    if (host.epoll_fd >= 0) {
        close(host.epoll_fd);
    }
    if (raised) {
        setrlimit(RLIMIT_NOFILE, &before);
    }
    return status;
}
