/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0's side of joining: accepts connections, admits ranks, and passes the world's memory to
 * them. */
#include "transport/shm.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define SPARE_PENDING 16u
/* After a failure, ranks that connect within this time still receive the reason. */
#define GRACE_NS 1000000000ull

/* A connection whose hello has not arrived. */
typedef struct pending {
    int socket;
    pid_t pid;
} pending_t;

typedef struct rendezvous {
    wefti_endpoint_t *endpoint;
    const int *fds;
    wefti_shm_peer_t *peers;
    wefti_shm_wait_t *wait;
    const char *address;
    int listener;
    pending_t *pending; /* oldest first */
    uint32_t pending_count, pending_capacity;
    struct pollfd *polls; /* listener, pending, then peers */
    uint64_t deadline;
    weft_status_t failure;
    wefti_shm_packet_t refusal;
} rendezvous_t;

static bool is_stale(const struct sockaddr_un *address, socklen_t length)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return false;
    }
    bool refused =
        connect(fd, (const struct sockaddr *)address, length) != 0 && errno == ECONNREFUSED;
    close(fd);
    return refused;
}

static weft_status_t listen_at(rendezvous_t *meet)
{
    struct sockaddr_un address;
    socklen_t length;
    WEFT_RETURN_IF_ERROR(wefti_shm_parse_address(meet->address, &address, &length));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "socket failed");
    }
    int result = bind(fd, (const struct sockaddr *)&address, length);
    if (result != 0 && errno == EADDRINUSE && address.sun_path[0] != '\0' &&
        is_stale(&address, length)) {
        /* Left behind by a rank 0 that was killed while it waited. */
        unlink(address.sun_path);
        result = bind(fd, (const struct sockaddr *)&address, length);
    }
    if (result != 0 || listen(fd, SOMAXCONN) != 0) {
        int error_number = errno;
        close(fd);
        return wefti_error_errno(WEFT_ERR_SYSTEM, error_number, "rank 0: cannot listen at %s",
                                 meet->address);
    }
    meet->listener = fd;
    return WEFT_OK;
}

static void stop_listening(rendezvous_t *meet)
{
    if (meet->listener >= 0 && meet->address[5] != '@') {
        unlink(meet->address + 5);
    }
    wefti_close_fd(&meet->listener);
}

static void remove_pending(rendezvous_t *meet, uint32_t index, bool close_socket)
{
    if (close_socket) {
        close(meet->pending[index].socket);
    }
    meet->pending_count--;
    memmove(&meet->pending[index], &meet->pending[index + 1],
            (meet->pending_count - index) * sizeof *meet->pending);
}

/* Joining has failed: ranks that have joined receive the reason now, others when they connect. */
static void fail(rendezvous_t *meet, weft_status_t status)
{
    if (meet->failure != WEFT_OK) {
        return;
    }
    meet->failure = status;
    meet->refusal = wefti_shm_make_error(meet->endpoint, status);
    uint64_t now = wefti_now_ns();
    for (uint32_t r = 1; r < meet->endpoint->world_size; r++) {
        if (meet->peers[r].joined) {
            wefti_shm_send(meet->peers[r].socket, &meet->refusal, NULL, now);
        }
    }
    if (meet->deadline > now + GRACE_NS) {
        meet->deadline = now + GRACE_NS;
    }
}

static void accept_pending(rendezvous_t *meet)
{
    int fd;
    while ((fd = accept4(meet->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        pending_t new = {.socket = fd};
        if (!wefti_shm_peer_credentials(fd, &new.pid)) {
            wefti_log(meet->endpoint->log, WEFT_LOG_LEVEL_WARN,
                      "rejected a connection at %s: it belongs to another user", meet->address);
            close(fd);
            continue;
        }
        if (meet->pending_count == meet->pending_capacity) {
            remove_pending(meet, 0, true); /* the one that has been silent longest */
        }
        meet->pending[meet->pending_count++] = new;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        fail(meet, wefti_error_errno(WEFT_ERR_SYSTEM, errno,
                                     "rank 0: cannot accept more connections; raise the limit of "
                                     "open files (ulimit -n)"));
    }
}

static weft_status_t disconnected(const rendezvous_t *meet, uint32_t rank)
{
    return wefti_error(WEFT_ERR_PEER_DIED,
                       "rank %u (pid %d) disconnected while other ranks were still joining",
                       wefti_endpoint_number(meet->endpoint, rank), (int)meet->peers[rank].pid);
}

static weft_status_t check_hello(const rendezvous_t *meet, const pending_t *from,
                                 const wefti_shm_packet_t *hello)
{
    uint32_t world_size = meet->endpoint->world_size;
    int pid = (int)from->pid;
    if (hello->version != WEFTI_SHM_VERSION) {
        return wefti_error(
            WEFT_ERR_MISMATCH,
            "protocol version mismatch: rank %u (pid %d) uses version %u, rank 0 uses version %u",
            hello->rank, pid, hello->version, WEFTI_SHM_VERSION);
    }
    if (hello->world_size != world_size) {
        return wefti_error(WEFT_ERR_MISMATCH,
                           "world size mismatch: rank %u (pid %d) has %u, rank 0 has %u",
                           hello->rank, pid, hello->world_size, world_size);
    }
    if (hello->rank >= world_size) {
        return wefti_error(WEFT_ERR_MISMATCH, "invalid rank from pid %d: rank %u for world size %u",
                           pid, hello->rank, world_size);
    }
    if (meet->peers[hello->rank].joined && wefti_shm_is_gone(meet->peers[hello->rank].pid)) {
        return disconnected(meet, hello->rank); /* and another process has taken its place */
    }
    if (hello->rank == 0 || meet->peers[hello->rank].joined) {
        int other = hello->rank == 0 ? (int)getpid() : (int)meet->peers[hello->rank].pid;
        return wefti_error(WEFT_ERR_MISMATCH, "duplicate rank %u: the processes with pid %d and %d",
                           hello->rank, other, pid);
    }
    return WEFT_OK;
}

static void admit(rendezvous_t *meet, uint32_t index, uint32_t rank)
{
    wefti_shm_peer_t *peer = &meet->peers[rank];
    peer->socket = meet->pending[index].socket;
    peer->pid = meet->pending[index].pid;
    peer->joined = true;
    meet->endpoint->control[rank]->pid = (uint32_t)peer->pid;
    const wefti_shm_packet_t accepted = wefti_shm_make_packet(meet->endpoint, WEFTI_SHM_ACCEPTED);
    bool failed = meet->failure != WEFT_OK;
    wefti_shm_send(peer->socket, failed ? &meet->refusal : &accepted, failed ? NULL : meet->fds,
                   wefti_now_ns());
    remove_pending(meet, index, false);
}

/* A rank that has joined reports that it is ready, or why not, or has gone. */
static void read_report(rendezvous_t *meet, uint32_t rank)
{
    wefti_shm_packet_t packet;
    int fds[WEFTI_SHM_FDS];
    wefti_shm_peer_t *peer = &meet->peers[rank];
    weft_status_t status = wefti_shm_receive(peer->socket, &packet, fds);
    wefti_shm_close_fds(fds);
    if (status == WEFT_AGAIN) {
        return;
    }
    if (status == WEFT_OK && packet.kind == WEFTI_SHM_READY && !peer->ready) {
        peer->ready = true;
    } else if (status == WEFT_OK && packet.kind == WEFTI_SHM_ERROR && packet.status < 0) {
        fail(meet, wefti_error_adopt((weft_status_t)packet.status, packet.text));
    } else {
        fail(meet, disconnected(meet, rank));
    }
}

/* Admits, refuses or drops a connection that has something to read. */
static void read_hello(rendezvous_t *meet, uint32_t index)
{
    wefti_shm_packet_t hello;
    int fds[WEFTI_SHM_FDS];
    pending_t from = meet->pending[index];
    weft_status_t status = wefti_shm_receive(from.socket, &hello, fds);
    if (status == WEFT_AGAIN) {
        return;
    }
    bool has_fds = fds[0] >= 0 || fds[1] >= 0; /* in versions before 4 */
    bool is_rank = status == WEFT_OK && hello.kind == WEFTI_SHM_HELLO &&
                   (hello.version != WEFTI_SHM_VERSION || !has_fds);
    if (is_rank) {
        status = check_hello(meet, &from, &hello);
        if (status == WEFT_OK) {
            admit(meet, index, hello.rank);
            return;
        }
    }
    if (is_rank || status == WEFT_ERR_SYSTEM) {
        fail(meet, is_rank ? status : wefti_error_prefix(status, "rank 0"));
        wefti_shm_send(from.socket, &meet->refusal, NULL, wefti_now_ns());
    } else {
        wefti_log(meet->endpoint->log, WEFT_LOG_LEVEL_WARN,
                  "pid %d connected to %s but is not a Weft rank", (int)from.pid, meet->address);
    }
    wefti_shm_close_fds(fds);
    remove_pending(meet, index, true);
}

static uint32_t missing_ranks(const rendezvous_t *meet, char *names, size_t capacity)
{
    uint32_t count = 0;
    size_t used = 0;
    names[0] = '\0';
    for (uint32_t r = 1; r < meet->endpoint->world_size; r++) {
        if (meet->peers[r].ready) {
            continue;
        }
        if (used + 16 < capacity) {
            used += (size_t)snprintf(names + used, capacity - used, "%s%u", count ? ", " : "",
                                     wefti_endpoint_number(meet->endpoint, r));
        }
        count++;
    }
    return count;
}

/* Waits once for connections, hellos and ranks that disconnect. */
static void poll_once(rendezvous_t *meet)
{
    uint32_t world_size = meet->endpoint->world_size, pending = meet->pending_count;
    struct pollfd *polls = meet->polls;
    polls[0] = (struct pollfd){.fd = meet->listener, .events = POLLIN};
    for (uint32_t i = 0; i < pending; i++) {
        polls[1 + i] = (struct pollfd){.fd = meet->pending[i].socket, .events = POLLIN};
    }
    /* Only what is open: poll() refuses more entries than a process may have descriptors. */
    uint32_t count = 1 + pending;
    for (uint32_t r = 1; r < world_size; r++) {
        if (meet->peers[r].joined && meet->failure == WEFT_OK) {
            polls[count++] = (struct pollfd){.fd = meet->peers[r].socket, .events = POLLIN};
        }
    }
    uint64_t now = wefti_now_ns();
    uint64_t left = meet->deadline > now ? meet->deadline - now : 0;
    int timeout_ms = left > WEFTI_SLICE_NS ? 50 : (int)(left / 1000000 + 1);
    if (poll(polls, count, timeout_ms) <= 0) {
        return;
    }
    for (uint32_t r = 1, at = 1 + pending; r < world_size && at < count; r++) {
        if (meet->peers[r].joined && polls[at].fd == meet->peers[r].socket &&
            polls[at++].revents != 0) {
            read_report(meet, r);
        }
    }
    /* From the last to the first: one that is read may leave the list. */
    for (uint32_t i = pending; i-- > 0;) {
        if (polls[1 + i].revents != 0) {
            read_hello(meet, i);
        }
    }
    if (polls[0].revents != 0) {
        accept_pending(meet);
    }
}

static weft_status_t gather_ranks(rendezvous_t *meet)
{
    wefti_endpoint_t *endpoint = meet->endpoint;
    const uint64_t start = meet->wait->since_ns;
    char names[160];
    uint32_t missing;
    while ((missing = missing_ranks(meet, names, sizeof names)) > 0) {
        uint64_t now = wefti_now_ns();
        if (meet->failure == WEFT_OK && wefti_endpoint_reports_late(endpoint, now - start)) {
            wefti_log(endpoint->log, WEFT_LOG_LEVEL_WARN,
                      "%u of %u ranks have not joined at %s for %.0f s: %s", missing,
                      endpoint->world_size, meet->address, (double)(now - start) * 1e-9, names);
        }
        if (now >= meet->deadline) {
            weft_status_t known =
                meet->failure == WEFT_OK ? wefti_shm_timed_out(meet->wait) : WEFT_OK;
            if (known < 0) {
                fail(meet, known);
            } else if (meet->failure == WEFT_OK) {
                fail(meet, wefti_error(
                               WEFT_ERR_TIMEOUT,
                               "not all of %u ranks joined at %s within %.3g s; missing ranks: %s",
                               endpoint->world_size, meet->address,
                               (double)endpoint->settings->timeout_ns * 1e-9, names));
            }
            break;
        }
        if (meet->failure == WEFT_OK && wefti_shm_interrupted(meet->wait)) {
            fail(meet, wefti_endpoint_interrupted(endpoint));
        }
        poll_once(meet);
    }
    return meet->failure != WEFT_OK ? wefti_error_adopt(meet->failure, meet->refusal.text)
                                    : WEFT_OK;
}

static weft_status_t tell_complete(rendezvous_t *meet)
{
    const wefti_shm_packet_t packet = wefti_shm_make_packet(meet->endpoint, WEFTI_SHM_COMPLETE);
    for (uint32_t to = 1; to < meet->endpoint->world_size; to++) {
        if (wefti_shm_send(meet->peers[to].socket, &packet, NULL, meet->deadline) < 0) {
            fail(meet,
                 wefti_error(WEFT_ERR_PEER_DIED, "rank %u (pid %d) disconnected while joining",
                             wefti_endpoint_number(meet->endpoint, to), (int)meet->peers[to].pid));
            return meet->failure;
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_shm_host(wefti_endpoint_t *endpoint, const char *address,
                             wefti_shm_world_t *world, wefti_shm_wait_t *wait)
{
    const weft_allocator_t *allocator = endpoint->allocator;
    rendezvous_t meet = {.endpoint = endpoint,
                         .fds = world->fds,
                         .peers = world->peers,
                         .wait = wait,
                         .address = address,
                         .listener = -1,
                         .pending_capacity = endpoint->world_size + SPARE_PENDING,
                         .deadline = wefti_endpoint_deadline(endpoint)};
    size_t poll_count = 1 + (size_t)meet.pending_capacity + endpoint->world_size;
    meet.pending = wefti_alloc(allocator, meet.pending_capacity * sizeof *meet.pending);
    meet.polls = wefti_alloc(allocator, poll_count * sizeof *meet.polls);
    weft_status_t status =
        meet.pending == NULL || meet.polls == NULL ? WEFT_ERR_NO_MEMORY : listen_at(&meet);
    status = status == WEFT_OK ? gather_ranks(&meet) : status;
    wefti_shm_waited(wait); /* from here on this rank keeps the others waiting */
    stop_listening(&meet);
    while (meet.pending_count > 0) {
        remove_pending(&meet, meet.pending_count - 1, true);
    }
    status = status == WEFT_OK ? tell_complete(&meet) : status;
    wefti_free(allocator, meet.polls);
    wefti_free(allocator, meet.pending);
    return status;
}
