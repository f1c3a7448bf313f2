/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that are processes of one host. Each has two memfds, mapped by everyone: the control block
 * and the region, whose whole address range is mapped once and which then grows in place.
 * All-gather goes over the sockets that the ranks met on, relayed by rank 0.
 */
#include "transport/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define CHUNK_BYTES ((size_t)32 << 10)
#define MEANWHILE_NS 1000000ull /* of waiting, where there is something to be done meanwhile */

typedef struct shm_endpoint {
    wefti_endpoint_t base;
    wefti_shm_peer_t *peers; /* [world_size] */
    uint32_t sequence;       /* of all-gathers */
} shm_endpoint_t;
_Static_assert(offsetof(shm_endpoint_t, base) == 0, "the base is member 0");

/* Goes before the parts of an all-gather. */
typedef struct gather_header {
    uint32_t magic, sequence;
    uint64_t bytes;
} gather_header_t;

/* ---- opening and closing ---- */

static weft_status_t map_control(wefti_endpoint_t *endpoint, uint32_t rank, int fd)
{
    void *page =
        mmap(NULL, WEFTI_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (page == MAP_FAILED) {
        return wefti_error_errno(WEFT_ERR_NO_MEMORY, errno,
                                 "mmap failed for the control block of rank %u",
                                 wefti_endpoint_number(endpoint, rank));
    }
    madvise(page, WEFTI_PAGE_BYTES, MADV_DONTFORK);
    endpoint->control[rank] = page;
    return WEFT_OK;
}

/* A peer's memfd is only used when it can never become shorter than what is read of it. */
static weft_status_t check_memfd(int fd, uint32_t rank, size_t bytes)
{
    struct stat state;
    int seals = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, &state) != 0 || !S_ISREG(state.st_mode) || state.st_size < (off_t)bytes ||
        seals < 0 || (seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_WRITE) != 0) {
        return wefti_error(
            WEFT_ERR_FORMAT,
            "invalid shared memory from rank %u: the seal against shrinking is missing", rank);
    }
    return WEFT_OK;
}

static weft_status_t map_peer(shm_endpoint_t *shm, uint32_t rank)
{
    wefti_endpoint_t *endpoint = &shm->base;
    wefti_shm_peer_t *peer = &shm->peers[rank];
    weft_status_t status;
    WEFT_TRY(status, check_memfd(peer->control_fd, rank, WEFTI_PAGE_BYTES), done);
    WEFT_TRY(status, check_memfd(peer->region_fd, rank, 0), done);
    WEFT_TRY(status, map_control(endpoint, rank, peer->control_fd), done);
    WEFT_TRY(status,
             wefti_range_map(&peer->range, peer->region_fd, endpoint->settings->reserve_bytes),
             done);
    wefti_shm_watch(peer);
done:
    /* The mappings are enough. */
    wefti_close_fd(&peer->control_fd);
    wefti_close_fd(&peer->region_fd);
    return status;
}

static weft_status_t create_own(shm_endpoint_t *shm)
{
    wefti_endpoint_t *endpoint = &shm->base;
    wefti_shm_peer_t *own = &shm->peers[endpoint->rank];
    weft_status_t status;
    WEFT_TRY(status, wefti_memfd_create("weft-control", WEFTI_PAGE_BYTES, &own->control_fd), done);
    WEFT_TRY(status, map_control(endpoint, endpoint->rank, own->control_fd), done);
    endpoint->control[endpoint->rank]->pid = (uint32_t)getpid();
    WEFT_TRY(status, wefti_memfd_create("weft-region", 0, &own->region_fd), done);
    status = wefti_range_map(&own->range, own->region_fd, endpoint->settings->reserve_bytes);
done:
    return status;
}

static weft_status_t shm_open_endpoint(wefti_endpoint_t *endpoint,
                                       const wefti_endpoint_params_t *params)
{
    shm_endpoint_t *shm = (shm_endpoint_t *)endpoint;
    weft_status_t status;
    shm->peers = wefti_alloc(endpoint->allocator, endpoint->world_size * sizeof *shm->peers);
    if (shm->peers == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        wefti_shm_peer_t *peer = &shm->peers[r];
        peer->socket = peer->control_fd = peer->region_fd = peer->pid_fd = -1;
    }
    WEFT_TRY(status, create_own(shm), done);
    WEFT_TRY(status, wefti_shm_join(endpoint, params->address, shm->peers), done);
    wefti_close_fd(&shm->peers[endpoint->rank].control_fd);
    for (uint32_t r = 0; status == WEFT_OK && r < endpoint->world_size; r++) {
        status = r == endpoint->rank ? WEFT_OK : map_peer(shm, r);
    }
    status = wefti_endpoint_agree(endpoint, status);
done:
    return status;
}

static void shm_close(wefti_endpoint_t *endpoint)
{
    shm_endpoint_t *shm = (shm_endpoint_t *)endpoint;
    /* In a forked child the mappings are not there, and other ones may be in their place. */
    bool mapped = wefti_endpoint_owned(endpoint);
    for (uint32_t r = 0; shm->peers != NULL && r < endpoint->world_size; r++) {
        wefti_shm_peer_t *peer = &shm->peers[r];
        if (mapped) {
            if (r != endpoint->rank || !endpoint->region_kept) {
                wefti_range_unmap(&peer->range);
            }
            if (endpoint->control[r] != NULL) {
                munmap(endpoint->control[r], WEFTI_PAGE_BYTES);
            }
        }
        wefti_close_fd(&peer->socket);
        wefti_close_fd(&peer->control_fd);
        wefti_close_fd(&peer->region_fd);
        wefti_close_fd(&peer->pid_fd);
    }
    wefti_free(endpoint->allocator, shm->peers);
}

/* ---- liveness ---- */

/* Also while ranks meet, when not all are mapped. */
static bool has_left(const wefti_endpoint_t *endpoint, uint32_t rank)
{
    return endpoint->control[rank] != NULL && wefti_endpoint_has_left(endpoint, rank);
}

static weft_status_t shm_check_peers(wefti_endpoint_t *endpoint)
{
    shm_endpoint_t *shm = (shm_endpoint_t *)endpoint;
    uint32_t count = endpoint->world_size;
    for (uint32_t first = 0; first < count; first++) {
        uint32_t own = endpoint->rank >= first ? endpoint->rank - first : count;
        uint32_t dead = first + wefti_shm_find_dead(shm->peers + first, count - first, own);
        if (dead >= count) {
            return WEFT_OK;
        }
        if (!has_left(endpoint, dead)) {
            char who[WEFTI_WHO_BYTES];
            return wefti_error(WEFT_ERR_PEER_DIED, "%s died",
                               wefti_endpoint_who(endpoint, dead, (int)shm->peers[dead].pid, who));
        }
        first = dead; /* ended after it had left: look at those behind it */
    }
    return WEFT_OK;
}

/* ---- all-gather ---- */

static weft_status_t gone_error(wefti_endpoint_t *endpoint, uint32_t rank)
{
    shm_endpoint_t *shm = (shm_endpoint_t *)endpoint;
    /* A reason written down by somebody says more than a closed socket. */
    weft_status_t status = wefti_endpoint_check(endpoint);
    if (status < 0) {
        return status;
    }
    char who[WEFTI_WHO_BYTES];
    return wefti_error(WEFT_ERR_PEER_DIED, "%s %s while rank %u was in a control all-gather",
                       wefti_endpoint_who(endpoint, rank, (int)shm->peers[rank].pid, who),
                       has_left(endpoint, rank) ? "left the world" : "died",
                       wefti_endpoint_number(endpoint, endpoint->rank));
}

/* Waits until the socket to rank is ready, looking around in between. */
static weft_status_t await_socket(wefti_endpoint_t *endpoint, uint32_t rank, short events,
                                  uint64_t deadline)
{
    shm_endpoint_t *shm = (shm_endpoint_t *)endpoint;
    for (;;) {
        uint64_t now = wefti_now_ns();
        uint64_t slice = now + (wefti_endpoint_meanwhile(endpoint) ? MEANWHILE_NS : WEFTI_SLICE_NS);
        if (wefti_shm_poll(shm->peers[rank].socket, events, slice < deadline ? slice : deadline)) {
            return WEFT_OK;
        }
        weft_status_t status = wefti_endpoint_check(endpoint);
        if (status < 0) {
            return status;
        }
        if (now >= deadline) {
            char who[WEFTI_WHO_BYTES];
            return wefti_error(WEFT_ERR_TIMEOUT,
                               "rank %u waited %.3g s for %s in a control all-gather",
                               wefti_endpoint_number(endpoint, endpoint->rank),
                               (double)endpoint->settings->timeout_ns * 1e-9,
                               wefti_endpoint_who(endpoint, rank, (int)shm->peers[rank].pid, who));
        }
    }
}

static weft_status_t send_piece(wefti_endpoint_t *endpoint, uint32_t rank, const void *data,
                                size_t bytes, uint64_t deadline)
{
    shm_endpoint_t *shm = (shm_endpoint_t *)endpoint;
    for (;;) {
        ssize_t sent = send(shm->peers[rank].socket, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent == (ssize_t)bytes) {
            return WEFT_OK;
        }
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
            return gone_error(endpoint, rank);
        }
        weft_status_t status = await_socket(endpoint, rank, POLLOUT, deadline);
        if (status < 0) {
            return status;
        }
    }
}

static weft_status_t receive_piece(wefti_endpoint_t *endpoint, uint32_t rank, void *data,
                                   size_t bytes, uint64_t deadline)
{
    shm_endpoint_t *shm = (shm_endpoint_t *)endpoint;
    for (;;) {
        /* MSG_TRUNC: the packet's true length, so that a longer one is noticed. */
        ssize_t got = recv(shm->peers[rank].socket, data, bytes, MSG_DONTWAIT | MSG_TRUNC);
        if (got == (ssize_t)bytes) {
            return WEFT_OK;
        }
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got > 0) {
            return wefti_error(
                WEFT_ERR_MISMATCH,
                "control all-gather: malformed message from rank %u: %zd bytes instead of %zu",
                rank, got, bytes);
        }
        if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
            return gone_error(endpoint, rank);
        }
        weft_status_t status = await_socket(endpoint, rank, POLLIN, deadline);
        if (status < 0) {
            return status;
        }
    }
}

static weft_status_t send_all(wefti_endpoint_t *endpoint, uint32_t rank, const uint8_t *data,
                              size_t bytes, size_t part_bytes, uint64_t deadline)
{
    const gather_header_t header = {WEFTI_SHM_MAGIC, ((shm_endpoint_t *)endpoint)->sequence,
                                    part_bytes};
    weft_status_t status = send_piece(endpoint, rank, &header, sizeof header, deadline);
    for (size_t at = 0; status == WEFT_OK && at < bytes; at += CHUNK_BYTES) {
        size_t piece = bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES;
        status = send_piece(endpoint, rank, data + at, piece, deadline);
    }
    return status;
}

static weft_status_t receive_all(wefti_endpoint_t *endpoint, uint32_t rank, uint8_t *data,
                                 size_t bytes, size_t part_bytes, uint64_t deadline)
{
    gather_header_t header;
    weft_status_t status = receive_piece(endpoint, rank, &header, sizeof header, deadline);
    if (status < 0) {
        return status;
    }
    if (header.magic != WEFTI_SHM_MAGIC ||
        header.sequence != ((shm_endpoint_t *)endpoint)->sequence || header.bytes != part_bytes) {
        return wefti_error(WEFT_ERR_MISMATCH,
                           "control all-gather: size mismatch: rank %u has %llu bytes (call %u), "
                           "rank %u has %zu bytes (call %u)",
                           rank, (unsigned long long)header.bytes, header.sequence, endpoint->rank,
                           part_bytes, ((shm_endpoint_t *)endpoint)->sequence);
    }
    for (size_t at = 0; status == WEFT_OK && at < bytes; at += CHUNK_BYTES) {
        size_t piece = bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES;
        status = receive_piece(endpoint, rank, data + at, piece, deadline);
    }
    return status;
}

static weft_status_t relay(wefti_endpoint_t *endpoint, const void *send, size_t bytes,
                           uint8_t *recv, uint64_t deadline)
{
    weft_status_t status = WEFT_OK;
    uint32_t count = endpoint->world_size;
    if (bytes > 0) {
        memmove(recv, send, bytes);
    }
    for (uint32_t r = 1; status == WEFT_OK && r < count; r++) {
        status = receive_all(endpoint, r, recv + r * bytes, bytes, bytes, deadline);
    }
    for (uint32_t r = 1; status == WEFT_OK && r < count; r++) {
        status = send_all(endpoint, r, recv, count * bytes, bytes, deadline);
    }
    return status;
}

static weft_status_t shm_all_gather(wefti_endpoint_t *endpoint, const void *send, size_t bytes,
                                    void *recv)
{
    uint64_t deadline = wefti_endpoint_deadline(endpoint);
    weft_status_t status;
    if (endpoint->rank == 0) {
        status = relay(endpoint, send, bytes, recv, deadline);
    } else {
        status = send_all(endpoint, 0, send, bytes, bytes, deadline);
        if (status == WEFT_OK) {
            status = receive_all(endpoint, 0, recv, endpoint->world_size * bytes, bytes, deadline);
        }
    }
    ((shm_endpoint_t *)endpoint)->sequence++;
    if (status < 0) {
        /* What is still under way belongs to this call: nobody must go on. */
        wefti_endpoint_abort(endpoint, status, weft_last_error());
    }
    return status;
}

/* ---- regions ---- */

static weft_status_t shm_region_grow(wefti_endpoint_t *endpoint, size_t bytes)
{
    shm_endpoint_t *shm = (shm_endpoint_t *)endpoint;
    wefti_shm_peer_t *own = &shm->peers[endpoint->rank];
    size_t from = endpoint->region_bytes;
    weft_status_t status = wefti_memory_check(bytes - from, endpoint->local_rank_count);
    if (status == WEFT_OK) {
        status = wefti_memfd_grow(own->region_fd, &own->range, from, bytes);
    }
    /* Nobody touches a peer's range before that peer's memory is there. */
    status = wefti_endpoint_agree(endpoint, status);
    for (uint32_t r = 0; status == WEFT_OK && r < endpoint->world_size; r++) {
        wefti_range_populate(&shm->peers[r].range, from, bytes);
        if (endpoint->region_of[r] == NULL) { /* calls in flight may be looking */
            endpoint->region_of[r] = shm->peers[r].range.base;
        }
    }
    return status;
}

static weft_status_t shm_region_map(wefti_endpoint_t *endpoint, size_t offset, size_t bytes,
                                    void *address)
{
    shm_endpoint_t *shm = (shm_endpoint_t *)endpoint;
    return wefti_memfd_map_over(shm->peers[endpoint->rank].region_fd, offset, bytes, address);
}

static void shm_describe(wefti_endpoint_t *endpoint, uint32_t peer, char *name, size_t name_bytes,
                         char *reason, size_t reason_bytes)
{
    wefti_mapped_describe(endpoint, peer, name, name_bytes, reason, reason_bytes);
    snprintf(reason, reason_bytes, "processes of one host");
}

const wefti_transport_ops_t wefti_transport_shm = {
    .name = "shm",
    .endpoint_bytes = sizeof(shm_endpoint_t),
    .open = shm_open_endpoint,
    .close = shm_close,
    .all_gather = shm_all_gather,
    .region_grow = shm_region_grow,
    .region_map = shm_region_map,
    .check_peers = shm_check_peers,
    .describe = shm_describe,
    WEFTI_TRANSPORT_MAPPED,
};
