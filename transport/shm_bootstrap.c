/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How processes of one host join. Rank 0 listens on a unix socket; the others connect and name
 * themselves. Rank 0 answers with the memory of the world, and when all ranks have mapped it, tells
 * them so: four packets per rank, and two descriptors. Any process may connect, so nothing that an unauthenticated peer sends ends rank 0's wait; only a
 * rank of this user that contradicts the world does.
 */
#include "transport/shm.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define RETRY_NS 2000000
/* More than rank 0's own time-out for its report of that to arrive. */
#define ANSWER_NS 1000000000ull

weft_status_t wefti_shm_parse_address(const char *address, struct sockaddr_un *out,
                                      socklen_t *out_length)
{
    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX;
    if (strncmp(address, "unix:", 5) != 0 || address[5] == '\0' || strcmp(address, "unix:@") == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "invalid address '%s': expected unix:@name or unix:/path", address);
    }
    const char *name = address + 5;
    size_t length = strlen(name);
    if (length >= sizeof out->sun_path) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "address '%s' is too long: at most %zu characters", address,
                           sizeof out->sun_path - 1);
    }
    memcpy(out->sun_path, name, length);
    *out_length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    if (name[0] == '@') {
        out->sun_path[0] = '\0'; /* abstract: no file, gone with its socket */
    } else {
        *out_length += 1;
    }
    return WEFT_OK;
}

bool wefti_shm_peer_credentials(int fd, pid_t *out_pid)
{
    struct ucred credentials;
    socklen_t length = sizeof credentials;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 ||
        credentials.uid != geteuid()) {
        return false;
    }
    *out_pid = credentials.pid;
    return true;
}

wefti_shm_packet_t wefti_shm_make_packet(const wefti_endpoint_t *endpoint, wefti_shm_kind_t kind)
{
    return (wefti_shm_packet_t){.magic = WEFTI_SHM_MAGIC,
                                .version = WEFTI_SHM_VERSION,
                                .kind = kind,
                                .rank = endpoint->rank,
                                .world_size = endpoint->world_size};
}

wefti_shm_packet_t wefti_shm_make_error(const wefti_endpoint_t *endpoint, weft_status_t status)
{
    wefti_shm_packet_t packet = wefti_shm_make_packet(endpoint, WEFTI_SHM_ERROR);
    packet.status = status;
    snprintf(packet.text, sizeof packet.text, "%s", weft_last_error());
    return packet;
}

static bool describe(void *user, wefti_wait_t *out)
{
    const wefti_shm_wait_t *wait = user;
    const wefti_endpoint_t *endpoint = wait->endpoint;
    out->kind = WEFTI_WAIT_DATA;
    out->channel = WEFTI_WAIT_WORLD;
    out->since_ns = wait->since_ns;
    snprintf(out->text, sizeof out->text, "%s", wefti_control_name(WEFTI_CONTROL_CONTEXT_CREATE));
    for (uint32_t r = 0; r < endpoint->world_size && out->late_count < WEFTI_WAIT_RANKS; r++) {
        if (endpoint->rank == 0 ? !wait->world->peers[r].ready : r == 0) {
            out->late[out->late_count++] = r;
        }
    }
    return out->late_count > 0;
}

bool wefti_shm_interrupted(wefti_shm_wait_t *wait)
{
    uint64_t now = wefti_now_ns();
    bool waits = now - wait->since_ns >= WEFTI_WAITS_AFTER_NS;
    if (waits && wait->endpoint->outer != NULL) {
        wefti_waits_look(&wait->waiter, wait->endpoint, describe, wait, now);
    } else if (waits && !wait->posted) {
        wefti_wait_t record = {0};
        wait->posted = describe(wait, &record);
        wefti_waits_post_alone(wait->endpoint, wait->posted ? &record : NULL);
    }
    return wefti_interrupted(&wait->endpoint->interrupt);
}

void wefti_shm_waited(wefti_shm_wait_t *wait)
{
    wefti_waits_end(&wait->waiter);
    if (wait->posted) {
        wefti_waits_post_alone(wait->endpoint, NULL);
        wait->posted = false;
    }
}

weft_status_t wefti_shm_timed_out(wefti_shm_wait_t *wait)
{
    wefti_wait_t known = {0};
    (void)describe(wait, &known);
    return wait->endpoint->outer != NULL ? wefti_waits_timed_out(wait->endpoint, &known) : WEFT_OK;
}

/* Connects; WEFT_AGAIN when nobody listens yet. */
static weft_status_t connect_once(const struct sockaddr_un *address, socklen_t length,
                                  const char *text, wefti_shm_peer_t *zero)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "socket failed");
    }
    if (connect(fd, (const struct sockaddr *)address, length) != 0) {
        int error_number = errno;
        close(fd);
        if (error_number == ECONNREFUSED || error_number == ENOENT || error_number == EAGAIN ||
            error_number == EINTR) {
            return WEFT_AGAIN;
        }
        return wefti_error_errno(WEFT_ERR_SYSTEM, error_number, "cannot connect to %s", text);
    }
    if (!wefti_shm_peer_credentials(fd, &zero->pid)) {
        close(fd);
        return wefti_error(WEFT_ERR_SYSTEM, "the socket %s belongs to another user", text);
    }
    zero->socket = fd;
    return WEFT_OK;
}

/* Maps the world's memory, and tells rank 0 how that went. */
static weft_status_t take_world(wefti_endpoint_t *endpoint, wefti_shm_world_t *world,
                                const int fds[WEFTI_SHM_FDS], weft_status_t status)
{
    memcpy(world->fds, fds, sizeof world->fds);
    status = status == WEFT_OK ? world->map(endpoint) : status;
    if (status < 0) {
        wefti_error_prefix(status, "rank %u", wefti_endpoint_number(endpoint, endpoint->rank));
    }
    const wefti_shm_packet_t answer = status == WEFT_OK
                                          ? wefti_shm_make_packet(endpoint, WEFTI_SHM_READY)
                                          : wefti_shm_make_error(endpoint, status);
    /* If rank 0 has closed the connection, its reason may still be there to read. */
    (void)wefti_shm_send(world->peers[0].socket, &answer, NULL, wefti_endpoint_deadline(endpoint));
    return status;
}

/* Rank 0 began before this rank found it. It keeps the time from here on, and names who is missing.
 */
static uint64_t answer_deadline(const wefti_endpoint_t *endpoint)
{
    uint64_t deadline = wefti_endpoint_deadline(endpoint);
    return deadline < UINT64_MAX - ANSWER_NS ? deadline + ANSWER_NS : deadline;
}

/* Reads rank 0's packets until the world is complete. WEFT_AGAIN: it disconnected before it had
 * accepted this rank. */
static weft_status_t await_world(wefti_endpoint_t *endpoint, wefti_shm_world_t *world,
                                 wefti_shm_wait_t *wait)
{
    wefti_shm_peer_t *peers = world->peers;
    bool accepted = false, complete = false, is_gone = false;
    uint64_t deadline = answer_deadline(endpoint);
    while (!complete) {
        wefti_shm_packet_t packet;
        int fds[WEFTI_SHM_FDS];
        weft_status_t status = wefti_shm_receive(peers[0].socket, &packet, fds);
        if (status == WEFT_AGAIN && is_gone) { /* a forked child has its socket */
            return wefti_error(WEFT_ERR_PEER_DIED,
                               "rank %u (pid %d) died while other ranks were still joining",
                               wefti_endpoint_number(endpoint, 0), (int)peers[0].pid);
        }
        if (status == WEFT_AGAIN) {
            uint64_t now = wefti_now_ns(), slice = now + WEFTI_SLICE_NS;
            bool ready =
                wefti_shm_poll(peers[0].socket, POLLIN, slice < deadline ? slice : deadline);
            if (!ready && wefti_shm_interrupted(wait)) {
                return wefti_endpoint_interrupted(endpoint);
            }
            if (!ready) { /* of a rank that has joined */
                WEFT_RETURN_IF_ERROR(wefti_fault_get(&endpoint->control[endpoint->rank]->abort));
            }
            is_gone = !ready && wefti_shm_is_gone(peers[0].pid); /* what it sent is read first */
            if (!ready && !is_gone && now >= deadline) {
                WEFT_RETURN_IF_ERROR(wefti_shm_timed_out(wait));
                return wefti_error(
                    WEFT_ERR_TIMEOUT,
                    "rank %u (pid %d) did not complete the rendezvous before the timeout",
                    wefti_endpoint_number(endpoint, 0), (int)peers[0].pid);
            }
            continue;
        }
        if (status == WEFT_ERR_PEER_DIED && !accepted) {
            return WEFT_AGAIN;
        }
        if (status == WEFT_ERR_PEER_DIED) {
            return wefti_error(status,
                               "rank %u (pid %d) disconnected while other ranks were still joining",
                               wefti_endpoint_number(endpoint, 0), (int)peers[0].pid);
        }
        if (status == WEFT_OK && packet.kind == WEFTI_SHM_COMPLETE && accepted) {
            complete = true;
        } else if (status == WEFT_OK && packet.kind == WEFTI_SHM_ERROR && packet.status < 0) {
            status = wefti_error_adopt((weft_status_t)packet.status, packet.text);
        } else if (status == WEFT_ERR_SYSTEM && !accepted) { /* of its descriptors */
            return take_world(endpoint, world, fds, status);
        } else if (status == WEFT_OK && packet.kind == WEFTI_SHM_ACCEPTED && !accepted) {
            accepted = true;
            wait->posted = false; /* it was where no other rank looks */
            WEFT_RETURN_IF_ERROR(take_world(endpoint, world, fds, status));
            deadline = answer_deadline(endpoint);
        } else {
            status = wefti_error(
                WEFT_ERR_FORMAT,
                "protocol error: the process at the address of rank 0 (pid %d) is not a Weft rank",
                (int)peers[0].pid);
        }
        if (status < 0) {
            wefti_shm_close_fds(fds);
            return status;
        }
    }
    return WEFT_OK;
}

static weft_status_t join(wefti_endpoint_t *endpoint, const char *address, wefti_shm_world_t *world,
                          wefti_shm_wait_t *wait)
{
    struct sockaddr_un where;
    socklen_t length;
    WEFT_RETURN_IF_ERROR(wefti_shm_parse_address(address, &where, &length));
    uint64_t deadline = wefti_endpoint_deadline(endpoint);
    const wefti_shm_packet_t hello = wefti_shm_make_packet(endpoint, WEFTI_SHM_HELLO);
    wefti_shm_peer_t *zero = &world->peers[0];
    for (;;) {
        weft_status_t status = connect_once(&where, length, address, zero);
        if (status == WEFT_OK && wefti_shm_send(zero->socket, &hello, NULL, deadline) == WEFT_OK) {
            status = await_world(endpoint, world, wait);
            if (status != WEFT_AGAIN) {
                return status;
            }
        }
        wefti_close_fd(&zero->socket);
        if (status < 0) {
            return status;
        }
        if (wefti_now_ns() >= deadline) {
            WEFT_RETURN_IF_ERROR(wefti_shm_timed_out(wait));
            return wefti_error(WEFT_ERR_TIMEOUT,
                               "rank %u: rank %u not found at %s within %.3g s; missing ranks: %u",
                               wefti_endpoint_number(endpoint, endpoint->rank),
                               wefti_endpoint_number(endpoint, 0), address,
                               (double)endpoint->settings->timeout_ns * 1e-9,
                               wefti_endpoint_number(endpoint, 0));
        }
        if (wefti_shm_interrupted(wait)) {
            return wefti_endpoint_interrupted(endpoint);
        }
        uint64_t waited = wefti_now_ns() - wait->since_ns;
        if (wefti_endpoint_reports_late(endpoint, waited)) {
            wefti_log(endpoint->log, WEFT_LOG_LEVEL_WARN,
                      "rank %u: rank %u not found at %s for %.0f s; still waiting",
                      wefti_endpoint_number(endpoint, endpoint->rank),
                      wefti_endpoint_number(endpoint, 0), address, (double)waited * 1e-9);
        }
        nanosleep(&(struct timespec){.tv_nsec = RETRY_NS}, NULL);
    }
}

weft_status_t wefti_shm_join(wefti_endpoint_t *endpoint, const char *address,
                             wefti_shm_world_t *world)
{
    wefti_shm_peer_t *own = &world->peers[endpoint->rank];
    own->joined = own->ready = true;
    own->pid = getpid();
    wefti_shm_wait_t wait = {.endpoint = endpoint, .world = world, .since_ns = wefti_now_ns()};
    weft_status_t status = endpoint->rank == 0 ? wefti_shm_host(endpoint, address, world, &wait)
                                               : join(endpoint, address, world, &wait);
    wefti_shm_waited(&wait);
    return status;
}
