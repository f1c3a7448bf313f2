/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that are processes of one host. Each has two memfds, mapped by everyone: the control block
 * and the region, whose whole address range is mapped once and which then grows in place.
 */
#include "transport/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/machine/machine.h"
#include "transport/socket/fork.h"

#define POLL_BATCH 64u
/* A process that ends has this long between its sockets and its pidfd. */
#define CLOSED_NS 100000000ull
#define CONTROL_BYTES sizeof(wefti_mapped_control_t)
/* Ranks that share cores fault in at most this much of their peers' memory before it is used: all
 * of them together have that work for every pair. */
#define FAULT_IN_SHARED_BYTES ((size_t)64 << 20)

typedef struct shm_endpoint {
    wefti_endpoint_t base;
    wefti_shm_peer_t *peers; /* [world_size] */
} shm_endpoint_t;
_Static_assert(offsetof(shm_endpoint_t, base) == 0, "the base is member 0");

/* ---- opening and closing ---- */

static weft_status_t map_control(wefti_endpoint_t *endpoint, uint32_t rank, int fd)
{
    void *block =
        mmap(NULL, CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (block == MAP_FAILED) {
        return wefti_error_errno(WEFT_ERR_NO_MEMORY, errno,
                                 "mmap failed for the control block of rank %u",
                                 wefti_endpoint_number(endpoint, rank));
    }
    madvise(block, CONTROL_BYTES, MADV_DONTFORK);
    endpoint->control[rank] = block;
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
    WEFT_TRY(status, check_memfd(peer->control_fd, rank, CONTROL_BYTES), done);
    WEFT_TRY(status, check_memfd(peer->region_fd, rank, 0), done);
    WEFT_TRY(status, map_control(endpoint, rank, peer->control_fd), done);
    WEFT_TRY(status,
             wefti_range_map(&peer->range, peer->region_fd, endpoint->settings->reserve_bytes),
             done);
#ifdef SYS_pidfd_open
    peer->pid_fd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
#endif
done:
    /* The mappings are enough; the socket tells of the end. */
    if (peer->socket >= 0) {
        wefti_socket_guard(peer->socket);
    }
    wefti_close_fd(&peer->control_fd);
    wefti_close_fd(&peer->region_fd);
    return status;
}

static weft_status_t create_own(shm_endpoint_t *shm)
{
    wefti_endpoint_t *endpoint = &shm->base;
    wefti_shm_peer_t *own = &shm->peers[endpoint->rank];
    WEFT_RETURN_IF_ERROR(wefti_memfd_create("weft-control", CONTROL_BYTES, &own->control_fd));
    WEFT_RETURN_IF_ERROR(map_control(endpoint, endpoint->rank, own->control_fd));
    endpoint->control[endpoint->rank]->pid = (uint32_t)getpid();
    WEFT_RETURN_IF_ERROR(wefti_memfd_create("weft-region", 0, &own->region_fd));
    return wefti_range_map(&own->range, own->region_fd, endpoint->settings->reserve_bytes);
}

static weft_status_t shm_open_endpoint(wefti_endpoint_t *endpoint,
                                       const wefti_endpoint_params_t *params)
{
    shm_endpoint_t *shm = (shm_endpoint_t *)endpoint;
    shm->peers = wefti_alloc(endpoint->allocator, endpoint->world_size * sizeof *shm->peers);
    WEFT_RETURN_IF_NO_MEMORY(shm->peers);
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        wefti_shm_peer_t *peer = &shm->peers[r];
        peer->socket = peer->control_fd = peer->region_fd = peer->pid_fd = -1;
    }
    WEFT_RETURN_IF_ERROR(create_own(shm));
    weft_status_t status = wefti_shm_join(endpoint, params->address, shm->peers);
    wefti_close_fd(&shm->peers[endpoint->rank].control_fd);
    for (uint32_t r = 0; status == WEFT_OK && r < endpoint->world_size; r++) {
        status = r == endpoint->rank ? WEFT_OK : map_peer(shm, r);
        if (status < 0) {
            wefti_error_prefix(status, "rank %u", wefti_endpoint_number(endpoint, endpoint->rank));
        }
    }
    if (status < 0) {
        /* Ranks cannot agree without all control blocks: the others find this record. */
        wefti_endpoint_abort(endpoint, status, weft_last_error());
        return status;
    }
    return wefti_endpoint_barrier(endpoint);
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
                munmap(endpoint->control[r], CONTROL_BYTES);
            }
        }
        if (peer->socket >= 0) {
            wefti_socket_close(peer->socket);
        }
        wefti_close_fd(&peer->control_fd);
        wefti_close_fd(&peer->region_fd);
        wefti_close_fd(&peer->pid_fd);
    }
    wefti_free(endpoint->allocator, shm->peers);
}

/* ---- liveness: by pidfd, which cannot be fooled by reused numbers, else by /proc ---- */

/* Also while ranks meet, when not all are mapped. */
static bool has_left(const wefti_endpoint_t *endpoint, uint32_t rank)
{
    return endpoint->control[rank] != NULL && wefti_endpoint_has_left(endpoint, rank);
}

/* A process that has ended but was not waited for still answers kill: its state tells. */
static bool is_zombie(pid_t pid)
{
    char line[256];
    if (!wefti_read_line(line, sizeof line, "/proc/%d/stat", (int)pid)) {
        return false;
    }
    /* The name before it may contain anything, also parentheses. */
    const char *state = strrchr(line, ')');
    return state != NULL && (strncmp(state, ") Z", 3) == 0 || strncmp(state, ") X", 3) == 0);
}

bool wefti_shm_is_gone(pid_t pid)
{
    return (kill(pid, 0) != 0 && errno == ESRCH) || is_zombie(pid);
}

/* The socket of a process that ends closes a moment before the pidfd tells; one that executes
 * another program lives on. */
static bool has_closed(wefti_shm_peer_t *peer, bool closed)
{
    if (!closed) {
        return false;
    }
    /* relaxed: threads that look at the same time may differ by the time of a look */
    uint64_t now = wefti_now_ns();
    uint64_t since = atomic_load_explicit(&peer->closed_ns, memory_order_relaxed);
    if (since == 0) {
        atomic_store_explicit(&peer->closed_ns, now, memory_order_relaxed);
    }
    return since != 0 && now - since >= CLOSED_NS;
}

static weft_status_t shm_check_peers(wefti_endpoint_t *endpoint)
{
    wefti_shm_peer_t *peers = ((shm_endpoint_t *)endpoint)->peers;
    for (uint32_t first = 0; first < endpoint->world_size; first += POLL_BATCH) {
        struct pollfd polls[2 * POLL_BATCH]; /* pidfds, sockets */
        uint32_t rest = endpoint->world_size - first, batch = rest < POLL_BATCH ? rest : POLL_BATCH;
        for (uint32_t i = 0; i < batch; i++) {
            polls[i] = (struct pollfd){.fd = peers[first + i].pid_fd, .events = POLLIN};
            polls[batch + i] = (struct pollfd){.fd = peers[first + i].socket};
        }
        bool polled = poll(polls, 2 * batch, 0) > 0;
        for (uint32_t i = 0; i < batch; i++) {
            uint32_t r = first + i;
            bool dead = peers[r].pid_fd >= 0 ? polled && polls[i].revents != 0
                                             : r != endpoint->rank && peers[r].pid > 0 &&
                                                   wefti_shm_is_gone(peers[r].pid);
            bool closed = has_closed(&peers[r], polled && polls[batch + i].revents != 0);
            if ((dead || closed) && !has_left(endpoint, r)) {
                char who[WEFTI_WHO_BYTES];
                return wefti_error(WEFT_ERR_PEER_DIED, "%s died%s",
                                   wefti_endpoint_who(endpoint, r, (int)peers[r].pid, who),
                                   dead ? "" : ": its process executes another program");
            }
        }
    }
    return WEFT_OK;
}

/* ---- regions ---- */

static weft_status_t shm_region_commit(wefti_endpoint_t *endpoint, size_t offset, size_t bytes)
{
    wefti_shm_peer_t *own = &((shm_endpoint_t *)endpoint)->peers[endpoint->rank];
    WEFT_RETURN_IF_ERROR(wefti_memory_check(bytes, endpoint->local_rank_count));
    return wefti_memfd_commit(own->region_fd, &own->range, offset, offset + bytes);
}

/* Whether the peers' memory is mapped page by page now, rather than at first touch. */
static bool faults_in_peers(const wefti_endpoint_t *endpoint, size_t more)
{
    return endpoint->may_spin ||
           more <=
               FAULT_IN_SHARED_BYTES / (endpoint->world_size > 1 ? endpoint->world_size - 1 : 1);
}

static weft_status_t shm_region_grow(wefti_endpoint_t *endpoint, size_t bytes, bool later)
{
    shm_endpoint_t *shm = (shm_endpoint_t *)endpoint;
    wefti_shm_peer_t *own = &shm->peers[endpoint->rank];
    size_t from = endpoint->region_bytes;
    weft_status_t status = wefti_memfd_extend(own->region_fd, &own->range, bytes);
    if (status == WEFT_OK && !later) {
        status = shm_region_commit(endpoint, from, bytes - from);
    }
    /* Nobody touches a peer's range before that peer's memory is there. */
    status = wefti_endpoint_agree(endpoint, status);
    bool fault_in = !later && faults_in_peers(endpoint, bytes - from);
    for (uint32_t r = 0; status == WEFT_OK && r < endpoint->world_size; r++) {
        if (fault_in && r != endpoint->rank) { /* the own part is there */
            wefti_range_populate(&shm->peers[r].range, from, bytes);
        }
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

const wefti_transport_ops_t wefti_transport_shm = {
    .name = "shm",
    .endpoint_bytes = sizeof(shm_endpoint_t),
    .open = shm_open_endpoint,
    .close = shm_close,
    .region_grow = shm_region_grow,
    .region_commit = shm_region_commit,
    .region_map = shm_region_map,
    .check_peers = shm_check_peers,
    WEFTI_TRANSPORT_MAPPED,
};
