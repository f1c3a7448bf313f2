/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0's side of joining: the lobby, where ranks and strangers come in and the world is put
 * together. */
#include "transport/shm.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define SPARE_GUESTS 16u
/* After a failure, ranks that come within this time still learn the reason. */
#define GRACE_NS 1000000000ull

/* Somebody who has connected and not said hello yet. */
typedef struct guest {
    int socket;
    pid_t pid;
} guest_t;

typedef struct lobby {
    wefti_endpoint_t *endpoint;
    wefti_shm_peer_t *peers;
    const char *address;
    int listener;
    guest_t *guests; /* oldest first */
    uint32_t guest_count, guest_capacity;
    struct pollfd *polls; /* listener, guests, then peers */
    uint64_t deadline;
    weft_status_t failure;
    wefti_shm_packet_t farewell;
} lobby_t;

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

static weft_status_t listen_at(lobby_t *lobby)
{
    struct sockaddr_un address;
    socklen_t length;
    weft_status_t status = wefti_shm_parse_address(lobby->address, &address, &length);
    if (status < 0) {
        return status;
    }
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
    if (result != 0) {
        int error_number = errno;
        close(fd);
        return wefti_error_errno(WEFT_ERR_SYSTEM, error_number, "rank 0: cannot listen at %s",
                                 lobby->address);
    }
    if (listen(fd, SOMAXCONN) != 0) {
        int error_number = errno;
        close(fd);
        return wefti_error_errno(WEFT_ERR_SYSTEM, error_number, "rank 0: cannot listen at %s",
                                 lobby->address);
    }
    lobby->listener = fd;
    return WEFT_OK;
}

static void stop_listening(lobby_t *lobby)
{
    if (lobby->listener >= 0 && lobby->address[5] != '@') {
        unlink(lobby->address + 5);
    }
    wefti_close_fd(&lobby->listener);
}

static void dismiss_guest(lobby_t *lobby, uint32_t index, bool close_socket)
{
    if (close_socket) {
        close(lobby->guests[index].socket);
    }
    lobby->guest_count--;
    memmove(&lobby->guests[index], &lobby->guests[index + 1],
            (lobby->guest_count - index) * sizeof *lobby->guests);
}

/* The world does not come about: everybody present is told why; those still to come, as they come.
 */
static void fail(lobby_t *lobby, weft_status_t status)
{
    if (lobby->failure != WEFT_OK) {
        return;
    }
    lobby->failure = status;
    lobby->farewell = wefti_shm_make_packet(lobby->endpoint, WEFTI_SHM_ERROR);
    lobby->farewell.status = status;
    snprintf(lobby->farewell.text, sizeof lobby->farewell.text, "%s", weft_last_error());
    uint64_t now = wefti_now_ns();
    for (uint32_t r = 1; r < lobby->endpoint->world_size; r++) {
        if (lobby->peers[r].joined) {
            wefti_shm_send(lobby->peers[r].socket, &lobby->farewell, NULL, now);
        }
    }
    if (lobby->deadline > now + GRACE_NS) {
        lobby->deadline = now + GRACE_NS;
    }
}

static void welcome_guests(lobby_t *lobby)
{
    int fd;
    while ((fd = accept4(lobby->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        guest_t guest = {.socket = fd};
        if (!wefti_shm_peer_credentials(fd, &guest.pid)) {
            wefti_log(lobby->endpoint->log, WEFT_LOG_LEVEL_WARN,
                      "rejected a connection at %s: it belongs to another user", lobby->address);
            close(fd);
            continue;
        }
        if (lobby->guest_count == lobby->guest_capacity) {
            dismiss_guest(lobby, 0, true); /* whoever kept silent longest */
        }
        lobby->guests[lobby->guest_count++] = guest;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        fail(lobby, wefti_error_errno(WEFT_ERR_SYSTEM, errno,
                                      "rank 0: cannot accept more connections; raise the limit of "
                                      "open files (ulimit -n)"));
    }
}

static weft_status_t check_hello(const lobby_t *lobby, const guest_t *guest,
                                 const wefti_shm_packet_t *hello)
{
    uint32_t world_size = lobby->endpoint->world_size;
    int pid = (int)guest->pid;
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
    if (hello->rank == 0 || lobby->peers[hello->rank].joined) {
        int other = hello->rank == 0 ? (int)getpid() : (int)lobby->peers[hello->rank].pid;
        return wefti_error(WEFT_ERR_MISMATCH, "duplicate rank %u: the processes with pid %d and %d",
                           hello->rank, other, pid);
    }
    return WEFT_OK;
}

/* Reads what a guest says; true when it is a guest no more. */
static bool hear_guest(lobby_t *lobby, uint32_t index)
{
    wefti_shm_packet_t hello;
    int fds[WEFTI_SHM_FDS];
    guest_t guest = lobby->guests[index];
    weft_status_t heard = wefti_shm_receive(guest.socket, &hello, fds);
    if (heard == WEFT_AGAIN) {
        return false;
    }
    if (heard == WEFT_ERR_SYSTEM) {
        fail(lobby, wefti_error_prefix(heard, "rank 0"));
        wefti_shm_send(guest.socket, &lobby->farewell, NULL, wefti_now_ns());
        dismiss_guest(lobby, index, true);
        return true;
    }
    if (heard < 0 || hello.kind != WEFTI_SHM_HELLO || fds[0] < 0 || fds[1] < 0) {
        wefti_log(lobby->endpoint->log, WEFT_LOG_LEVEL_WARN,
                  "pid %d connected to %s but is not a Weft rank", (int)guest.pid, lobby->address);
        if (heard == WEFT_OK) {
            wefti_close_fd(&fds[0]);
            wefti_close_fd(&fds[1]);
        }
        dismiss_guest(lobby, index, true);
        return true;
    }
    weft_status_t status = check_hello(lobby, &guest, &hello);
    if (status < 0) {
        fail(lobby, status);
        wefti_shm_send(guest.socket, &lobby->farewell, NULL, wefti_now_ns());
        close(fds[0]);
        close(fds[1]);
        dismiss_guest(lobby, index, true);
        return true;
    }
    wefti_shm_peer_t *peer = &lobby->peers[hello.rank];
    peer->socket = guest.socket;
    peer->pid = guest.pid;
    peer->control_fd = fds[0];
    peer->region_fd = fds[1];
    peer->joined = true;
    wefti_shm_packet_t answer = wefti_shm_make_packet(lobby->endpoint, WEFTI_SHM_ACCEPTED);
    wefti_shm_send(peer->socket, lobby->failure != WEFT_OK ? &lobby->farewell : &answer, NULL,
                   wefti_now_ns());
    dismiss_guest(lobby, index, false);
    return true;
}

static uint32_t missing_ranks(const lobby_t *lobby, char *names, size_t capacity)
{
    uint32_t count = 0;
    size_t used = 0;
    names[0] = '\0';
    for (uint32_t r = 1; r < lobby->endpoint->world_size; r++) {
        if (lobby->peers[r].joined) {
            continue;
        }
        if (used + 16 < capacity) {
            used += (size_t)snprintf(names + used, capacity - used, "%s%u", count ? ", " : "",
                                     wefti_endpoint_number(lobby->endpoint, r));
        }
        count++;
    }
    return count;
}

/* One look at everybody: who came, who spoke, who went. */
static void attend(lobby_t *lobby)
{
    uint32_t world_size = lobby->endpoint->world_size, guests = lobby->guest_count;
    struct pollfd *polls = lobby->polls;
    polls[0] = (struct pollfd){.fd = lobby->listener, .events = POLLIN};
    for (uint32_t i = 0; i < guests; i++) {
        polls[1 + i] = (struct pollfd){.fd = lobby->guests[i].socket, .events = POLLIN};
    }
    for (uint32_t r = 0; r < world_size; r++) {
        bool watch = r > 0 && lobby->peers[r].joined && lobby->failure == WEFT_OK;
        polls[1 + guests + r] = (struct pollfd){.fd = watch ? lobby->peers[r].socket : -1};
    }
    uint64_t now = wefti_now_ns();
    uint64_t left = lobby->deadline > now ? lobby->deadline - now : 0;
    int timeout_ms = left > WEFTI_SLICE_NS ? 50 : (int)(left / 1000000 + 1);
    if (poll(polls, 1 + guests + world_size, timeout_ms) <= 0) {
        return;
    }
    for (uint32_t r = 1; r < world_size; r++) {
        if (polls[1 + guests + r].revents != 0) {
            fail(lobby,
                 wefti_error(WEFT_ERR_PEER_DIED,
                             "rank %u (pid %d) disconnected while other ranks were still joining",
                             wefti_endpoint_number(lobby->endpoint, r), (int)lobby->peers[r].pid));
        }
    }
    /* From the last to the first: hearing one may take it out of the list. */
    for (uint32_t i = guests; i-- > 0;) {
        if (polls[1 + i].revents != 0) {
            hear_guest(lobby, i);
        }
    }
    if (polls[0].revents != 0) {
        welcome_guests(lobby);
    }
}

static weft_status_t gather_ranks(lobby_t *lobby)
{
    wefti_endpoint_t *endpoint = lobby->endpoint;
    const uint64_t start = wefti_now_ns();
    char names[160];
    uint32_t missing;
    while ((missing = missing_ranks(lobby, names, sizeof names)) > 0) {
        uint64_t now = wefti_now_ns();
        if (lobby->failure == WEFT_OK && wefti_endpoint_reports_late(endpoint, now - start)) {
            wefti_log(endpoint->log, WEFT_LOG_LEVEL_WARN,
                      "%u of %u ranks have not joined at %s for %.0f s: %s", missing,
                      endpoint->world_size, lobby->address, (double)(now - start) * 1e-9, names);
        }
        if (now >= lobby->deadline) {
            if (lobby->failure == WEFT_OK) {
                fail(lobby, wefti_error(
                                WEFT_ERR_TIMEOUT,
                                "not all of %u ranks joined at %s within %.3g s; missing ranks: %s",
                                endpoint->world_size, lobby->address,
                                (double)endpoint->settings->timeout_ns * 1e-9, names));
            }
            break;
        }
        if (lobby->failure == WEFT_OK && wefti_interrupted(&endpoint->interrupt)) {
            fail(lobby, wefti_interrupt_error(wefti_endpoint_number(endpoint, 0)));
            break;
        }
        attend(lobby);
    }
    if (lobby->failure != WEFT_OK) {
        return wefti_error_adopt(lobby->failure, lobby->farewell.text);
    }
    return WEFT_OK;
}

/* Everybody's memory to everybody. */
static weft_status_t introduce_all(lobby_t *lobby)
{
    uint32_t world_size = lobby->endpoint->world_size;
    for (uint32_t to = 1; to < world_size; to++) {
        for (uint32_t of = 0; of < world_size; of++) {
            if (of == to) {
                continue;
            }
            wefti_shm_packet_t packet = wefti_shm_make_packet(lobby->endpoint, WEFTI_SHM_PEER);
            packet.rank = of;
            packet.pid = (int32_t)lobby->peers[of].pid;
            const int fds[WEFTI_SHM_FDS] = {lobby->peers[of].control_fd,
                                            lobby->peers[of].region_fd};
            if (wefti_shm_send(lobby->peers[to].socket, &packet, fds, lobby->deadline) < 0) {
                weft_status_t status = wefti_error(
                    WEFT_ERR_PEER_DIED, "rank %u (pid %d) disconnected while joining",
                    wefti_endpoint_number(lobby->endpoint, to), (int)lobby->peers[to].pid);
                fail(lobby, status);
                return status;
            }
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_shm_host(wefti_endpoint_t *endpoint, const char *address,
                             wefti_shm_peer_t *peers)
{
    const weft_allocator_t *allocator = endpoint->allocator;
    lobby_t lobby = {.endpoint = endpoint,
                     .peers = peers,
                     .address = address,
                     .listener = -1,
                     .guest_capacity = endpoint->world_size + SPARE_GUESTS,
                     .deadline = wefti_endpoint_deadline(endpoint)};
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    size_t poll_count = 1 + (size_t)lobby.guest_capacity + endpoint->world_size;
    lobby.guests = wefti_alloc(allocator, lobby.guest_capacity * sizeof *lobby.guests);
    lobby.polls = wefti_alloc(allocator, poll_count * sizeof *lobby.polls);
    if (lobby.guests != NULL && lobby.polls != NULL) {
        status = listen_at(&lobby);
    }
    if (status == WEFT_OK) {
        status = gather_ranks(&lobby);
    }
    stop_listening(&lobby);
    while (lobby.guest_count > 0) {
        dismiss_guest(&lobby, lobby.guest_count - 1, true);
    }
    if (status == WEFT_OK) {
        status = introduce_all(&lobby);
    }
    wefti_free(allocator, lobby.polls);
    wefti_free(allocator, lobby.guests);
    return status;
}
