/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that are processes of one host. Two memfds hold the memory of all: the control blocks, and
 * the regions. Each rank maps both once, so neither mappings nor descriptors grow with the world.
 *
 *   regions   | rank 0: memory | hole | rank 1: memory | hole | ...     each stride_bytes long
 *
 * A region grows in place, by memory for more of its part.
 */
#include "transport/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/machine/machine.h"
#include "transport/socket/fork.h"

#define POLL_BATCH 64u
/* A process that ends has this long between its sockets and its pidfd. */
#define CLOSED_NS 100000000ull
#define CONTROL_BYTES sizeof(wefti_mapped_control_t)
/* Ranks that share cores fault in at most this much of their peers' memory before it is used: all
 * of them together have that work for every pair. */
#define FAULT_IN_SHARED_BYTES ((size_t)64 << 20)

/* Worlds of at most so many ranks watch all processes, larger ones those at distances 1, 2, 4, ..
 * and so many others at each look, in turn. */
#define WATCH_ALL 64u
#define LOOKS_IN_TURN 8u

/* Bits of wefti_control_t.region. */
#define REGION_KEPT 1u   /* mapped when the rank has left */
#define REGION_CLOSED 2u /* the rank uses no other region */

typedef struct shm_endpoint {
    wefti_endpoint_t base;
    wefti_shm_world_t world;
    wefti_range_t regions; /* of all ranks */
    size_t stride_bytes;   /* from one to the next */
    wefti_mapped_control_t *blocks;
    uint32_t *watched; /* [watched_count] ranks with a pidfd or a socket */
    uint32_t watched_count;
    _Atomic uint32_t turn; /* the rank that is looked at next of the others */
} shm_endpoint_t;
_Static_assert(offsetof(shm_endpoint_t, base) == 0, "the base is member 0");

/* ---- opening and closing ---- */

static size_t region_at(const shm_endpoint_t *shm, uint32_t rank)
{
    return rank * shm->stride_bytes;
}

/* This rank's part of the regions. */
static wefti_range_t own_range(const shm_endpoint_t *shm)
{
    return (wefti_range_t){.base = shm->regions.base + region_at(shm, shm->base.rank),
                           .bytes = shm->stride_bytes};
}

/* A memfd of rank 0 is only used when it can never become shorter than what is read of it. */
static weft_status_t check_memfd(int fd, size_t bytes, size_t *out_bytes)
{
    struct stat state;
    int seals = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, &state) != 0 || !S_ISREG(state.st_mode) || state.st_size < (off_t)bytes ||
        seals < 0 || (seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_WRITE) != 0) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "invalid shared memory from rank 0: the seal against shrinking is "
                           "missing, or it is too short");
    }
    *out_bytes = (size_t)state.st_size;
    return WEFT_OK;
}

static weft_status_t map_control(shm_endpoint_t *shm)
{
    wefti_endpoint_t *endpoint = &shm->base;
    size_t bytes = endpoint->world_size * CONTROL_BYTES;
    wefti_mapped_control_t *blocks =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shm->world.fds[WEFTI_SHM_CONTROL], 0);
    if (blocks == MAP_FAILED) {
        return wefti_error_errno(WEFT_ERR_NO_MEMORY, errno,
                                 "mmap failed for the control blocks of %u ranks",
                                 endpoint->world_size);
    }
    madvise(blocks, bytes, MADV_DONTFORK);
    /* What this rank has posted of its waits so far is of no use to ranks that could not see it. */
    wefti_free(endpoint->allocator, endpoint->control[endpoint->rank]);
    shm->blocks = blocks;
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        endpoint->control[r] = &blocks[r].control;
    }
    return WEFT_OK;
}

static weft_status_t map_world(wefti_endpoint_t *endpoint)
{
    shm_endpoint_t *shm = (shm_endpoint_t *)endpoint;
    uint32_t count = endpoint->world_size;
    int *fds = shm->world.fds;
    size_t control_bytes, bytes = 0;
    weft_status_t status;
    WEFT_TRY(status, check_memfd(fds[WEFTI_SHM_CONTROL], count * CONTROL_BYTES, &control_bytes),
             done);
    WEFT_TRY(status, check_memfd(fds[WEFTI_SHM_REGIONS], 0, &bytes), done);
    shm->stride_bytes = bytes / count;
    WEFT_TRY(status, map_control(shm), done);
    WEFT_TRY(status, wefti_range_map(&shm->regions, fds[WEFTI_SHM_REGIONS], bytes), done);
done:
    wefti_close_fd(&fds[WEFTI_SHM_CONTROL]); /* the mapping is enough; regions still grow */
    return status;
}

/* How far apart regions lie: as WEFT_RESERVE_BYTES says, or as far as a limit of the size of files
 * allows. */
static weft_status_t choose_stride(const wefti_endpoint_t *endpoint, size_t *out_bytes)
{
    struct rlimit limit;
    size_t stride = endpoint->settings->reserve_bytes & ~(size_t)(WEFTI_PAGE_BYTES - 1), total;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur / endpoint->world_size < stride) {
        stride = (size_t)limit.rlim_cur / endpoint->world_size & ~(size_t)(WEFTI_PAGE_BYTES - 1);
    }
    if (!wefti_mul_size(stride, endpoint->world_size, &total) || total > INT64_MAX) {
        return wefti_error(WEFT_ERR_NO_MEMORY,
                           "cannot reserve address space for %u ranks; lower WEFT_RESERVE_BYTES",
                           endpoint->world_size);
    }
    *out_bytes = total;
    return WEFT_OK;
}

/* Rank 0 does, for all. */
static weft_status_t create_world(shm_endpoint_t *shm)
{
    wefti_endpoint_t *endpoint = &shm->base;
    int *fds = shm->world.fds;
    size_t bytes = 0;
    WEFT_RETURN_IF_ERROR(choose_stride(endpoint, &bytes));
    WEFT_RETURN_IF_ERROR(wefti_memfd_create("weft-control", endpoint->world_size * CONTROL_BYTES,
                                            &fds[WEFTI_SHM_CONTROL]));
    WEFT_RETURN_IF_ERROR(wefti_memfd_create("weft-region", 0, &fds[WEFTI_SHM_REGIONS]));
    WEFT_RETURN_IF_ERROR(wefti_memfd_extend(fds[WEFTI_SHM_REGIONS], bytes));
    int control_fd = fcntl(fds[WEFTI_SHM_CONTROL], F_DUPFD_CLOEXEC, 0); /* map_world closes one */
    if (control_fd < 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot duplicate a descriptor");
    }
    weft_status_t status = map_world(endpoint);
    fds[WEFTI_SHM_CONTROL] = control_fd;
    endpoint->control[0]->pid = (uint32_t)getpid();
    return status;
}

/* Whether a rank is at distance 1, 2, 4, .. from this one, in either direction. */
static bool is_neighbour(const wefti_endpoint_t *endpoint, uint32_t rank)
{
    uint32_t up = (rank + endpoint->world_size - endpoint->rank) % endpoint->world_size;
    uint32_t down = endpoint->world_size - up;
    return (up & (up - 1)) == 0 || (down & (down - 1)) == 0;
}

static void watch_process(wefti_shm_peer_t *peer)
{
#ifdef SYS_pidfd_open
    peer->pid_fd = (int)syscall(SYS_pidfd_open, peer->pid, 0);
#else
    (void)peer;
#endif
}

static weft_status_t watch_processes(shm_endpoint_t *shm)
{
    const wefti_endpoint_t *endpoint = &shm->base;
    uint32_t count = endpoint->world_size;
    shm->watched = wefti_alloc(endpoint->allocator, count * sizeof *shm->watched);
    WEFT_RETURN_IF_NO_MEMORY(shm->watched);
    atomic_init(&shm->turn, endpoint->rank);
    for (uint32_t r = 0; r < count; r++) {
        wefti_shm_peer_t *peer = &shm->world.peers[r];
        if (r != 0 && r != endpoint->rank) { /* those are known: rank 0's by its socket */
            peer->pid = (pid_t)endpoint->control[r]->pid;
        }
        if (r != endpoint->rank && (count <= WATCH_ALL || is_neighbour(endpoint, r))) {
            watch_process(peer);
        }
        if (peer->socket >= 0) {
            wefti_socket_guard(peer->socket);
        }
        if (peer->pid_fd >= 0 || peer->socket >= 0) {
            shm->watched[shm->watched_count++] = r;
        }
    }
    return WEFT_OK;
}

static weft_status_t shm_open_endpoint(wefti_endpoint_t *endpoint,
                                       const wefti_endpoint_params_t *params)
{
    shm_endpoint_t *shm = (shm_endpoint_t *)endpoint;
    shm->world.fds[0] = shm->world.fds[1] = -1;
    shm->world.map = map_world;
    shm->world.peers =
        wefti_alloc(endpoint->allocator, endpoint->world_size * sizeof *shm->world.peers);
    endpoint->control[endpoint->rank] = /* until it sees the world's */
        wefti_alloc(endpoint->allocator, sizeof(wefti_mapped_control_t));
    WEFT_RETURN_IF_NO_MEMORY(shm->world.peers != NULL && endpoint->control[endpoint->rank] != NULL);
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        shm->world.peers[r].socket = shm->world.peers[r].pid_fd = -1;
    }
    weft_status_t status = endpoint->rank == 0 ? create_world(shm) : WEFT_OK;
    if (status == WEFT_OK) {
        status = wefti_shm_join(endpoint, params->address, &shm->world);
    }
    wefti_close_fd(&shm->world.fds[WEFTI_SHM_CONTROL]);
    if (status == WEFT_OK) {
        status = watch_processes(shm);
    }
    if (status < 0) {
        /* Ranks that already wait for this one find this record. */
        wefti_endpoint_abort(endpoint, status, weft_last_error());
        return status;
    }
    return wefti_endpoint_barrier(endpoint);
}

static uint32_t region_state(const shm_endpoint_t *shm, uint32_t rank)
{
    return atomic_load_explicit(&shm->base.control[rank]->region, memory_order_seq_cst);
}

static bool has_ended(const shm_endpoint_t *shm, uint32_t rank)
{
    pid_t pid = shm->world.peers[rank].pid;
    return pid > 0 && wefti_shm_is_dead(pid);
}

/*
 * The file lasts while one rank uses its region. The rank that is last in the world gives back the
 * memory of the others: no rank reads it any more. Processes that died use none.
 */
static void remove_unused(const shm_endpoint_t *shm)
{
    const wefti_endpoint_t *endpoint = &shm->base;
    uint32_t last = REGION_CLOSED | (endpoint->region_kept ? REGION_KEPT : 0);
    /* seq_cst, with the loads below: of two ranks that leave at once, one sees the other's */
    atomic_fetch_or_explicit(&endpoint->control[endpoint->rank]->region, last,
                             memory_order_seq_cst);
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        if ((region_state(shm, r) & REGION_CLOSED) == 0 && !has_ended(shm, r)) {
            return;
        }
    }
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        if ((region_state(shm, r) & REGION_KEPT) == 0 || has_ended(shm, r)) {
            fallocate(shm->world.fds[WEFTI_SHM_REGIONS], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      (off_t)region_at(shm, r), (off_t)shm->stride_bytes); /* best effort */
        }
    }
}

static void unmap_regions(shm_endpoint_t *shm)
{
    wefti_range_t own = own_range(shm);
    uint8_t *base = shm->regions.base, *end = base + shm->regions.bytes;
    if (!shm->base.region_kept) {
        wefti_range_unmap(&shm->regions);
        return;
    }
    if (own.base > base) {
        munmap(base, (size_t)(own.base - base));
    }
    if (own.base + own.bytes < end) {
        munmap(own.base + own.bytes, (size_t)(end - (own.base + own.bytes)));
    }
}

static void shm_close(wefti_endpoint_t *endpoint)
{
    shm_endpoint_t *shm = (shm_endpoint_t *)endpoint;
    /* In a forked child the mappings are not there, and other ones may be in their place. */
    if (wefti_endpoint_owned(endpoint) && shm->regions.base != NULL) {
        remove_unused(shm);
        unmap_regions(shm);
    }
    if (shm->blocks == NULL) {
        wefti_free(endpoint->allocator, endpoint->control[endpoint->rank]);
    } else if (wefti_endpoint_owned(endpoint)) {
        munmap(shm->blocks, endpoint->world_size * CONTROL_BYTES);
    }
    for (uint32_t r = 0; shm->world.peers != NULL && r < endpoint->world_size; r++) {
        wefti_shm_peer_t *peer = &shm->world.peers[r];
        if (peer->socket >= 0) {
            wefti_socket_close(peer->socket);
        }
        wefti_close_fd(&peer->pid_fd);
    }
    wefti_shm_close_fds(shm->world.fds);
    wefti_free(endpoint->allocator, shm->watched);
    wefti_free(endpoint->allocator, shm->world.peers);
}

/* ---- liveness: by pidfd, which cannot be fooled by reused numbers, else by /proc ---- */

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

static weft_status_t died(const wefti_endpoint_t *endpoint, uint32_t rank, const char *how)
{
    char who[WEFTI_WHO_BYTES];
    int pid = (int)((const shm_endpoint_t *)endpoint)->world.peers[rank].pid;
    return wefti_error(WEFT_ERR_PEER_DIED, "%s died%s",
                       wefti_endpoint_who(endpoint, rank, pid, who), how);
}

bool wefti_shm_is_dead(pid_t pid)
{
#ifdef SYS_pidfd_open
    struct pollfd process = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    if (process.fd >= 0) {
        bool ended = poll(&process, 1, 0) > 0;
        close(process.fd);
        return ended;
    }
#endif
    return wefti_shm_is_gone(pid);
}

static weft_status_t check_watched(wefti_endpoint_t *endpoint)
{
    const shm_endpoint_t *shm = (const shm_endpoint_t *)endpoint;
    for (uint32_t first = 0; first < shm->watched_count; first += POLL_BATCH) {
        struct pollfd polls[2 * POLL_BATCH]; /* pidfds, sockets */
        const uint32_t *ranks = shm->watched + first;
        uint32_t rest = shm->watched_count - first, batch = rest < POLL_BATCH ? rest : POLL_BATCH;
        for (uint32_t i = 0; i < batch; i++) {
            const wefti_shm_peer_t *peer = &shm->world.peers[ranks[i]];
            polls[i] = (struct pollfd){.fd = peer->pid_fd, .events = POLLIN};
            polls[batch + i] = (struct pollfd){.fd = peer->socket};
        }
        if (poll(polls, 2 * batch, 0) <= 0) {
            continue;
        }
        for (uint32_t i = 0; i < batch; i++) {
            wefti_shm_peer_t *peer = &shm->world.peers[ranks[i]];
            bool hung_up = polls[batch + i].revents != 0;
            bool dead = polls[i].revents != 0 || (hung_up && peer->pid_fd < 0 && peer->pid > 0 &&
                                                  wefti_shm_is_dead(peer->pid));
            bool closed = has_closed(peer, hung_up);
            if ((dead || closed) && !wefti_endpoint_has_left(endpoint, ranks[i])) {
                return died(endpoint, ranks[i],
                            dead ? "" : ": its process executes another program");
            }
        }
    }
    return WEFT_OK;
}

/*
 * A process that ends is seen by those that watch it, as soon as one of them waits; if none does,
 * by any rank that waits, in its turn, or when its deadline has come. That bounds both what a rank
 * holds and what a look costs.
 */
static weft_status_t check_in_turn(wefti_endpoint_t *endpoint, uint32_t most)
{
    shm_endpoint_t *shm = (shm_endpoint_t *)endpoint;
    uint32_t count = endpoint->world_size;
    uint32_t looks = count < most ? count : most;
    /* relaxed: it only spreads the looks of threads and calls */
    uint32_t turn = atomic_fetch_add_explicit(&shm->turn, looks, memory_order_relaxed);
    for (uint32_t i = 0; i < looks; i++) {
        uint32_t r = (turn + i) % count;
        const wefti_shm_peer_t *peer = &shm->world.peers[r];
        if (r != endpoint->rank && peer->pid_fd < 0 && peer->pid > 0 &&
            !wefti_endpoint_has_left(endpoint, r) && wefti_shm_is_dead(peer->pid) &&
            !wefti_endpoint_has_left(endpoint, r)) {
            return died(endpoint, r, "");
        }
    }
    return WEFT_OK;
}

static weft_status_t shm_check_peers(wefti_endpoint_t *endpoint)
{
    WEFT_RETURN_IF_ERROR(check_watched(endpoint));
    return check_in_turn(endpoint, LOOKS_IN_TURN);
}

static weft_status_t shm_check_all_peers(wefti_endpoint_t *endpoint)
{
    WEFT_RETURN_IF_ERROR(check_watched(endpoint));
    return check_in_turn(endpoint, endpoint->world_size);
}

/* ---- regions ---- */

static weft_status_t shm_region_commit(wefti_endpoint_t *endpoint, size_t offset, size_t bytes)
{
    const shm_endpoint_t *shm = (const shm_endpoint_t *)endpoint;
    const wefti_range_t own = own_range(shm);
    WEFT_RETURN_IF_ERROR(wefti_memory_check(bytes, endpoint->local_rank_count));
    return wefti_memfd_commit(shm->world.fds[WEFTI_SHM_REGIONS], region_at(shm, endpoint->rank),
                              &own, offset, offset + bytes);
}

/* Whether the peers' memory is mapped page by page now, rather than at first touch: not where a
 * page of each peer is more than a rank will ever touch. */
static bool faults_in_peers(const wefti_endpoint_t *endpoint, size_t more)
{
    return endpoint->may_spin ||
           (endpoint->world_size <= WATCH_ALL &&
            more <=
                FAULT_IN_SHARED_BYTES / (endpoint->world_size > 1 ? endpoint->world_size - 1 : 1));
}

static weft_status_t check_room(const shm_endpoint_t *shm, size_t bytes)
{
    char need[32], have[32];
    if (bytes <= shm->stride_bytes) {
        return WEFT_OK;
    }
    bool limited = shm->stride_bytes + WEFTI_PAGE_BYTES <= shm->base.settings->reserve_bytes;
    return wefti_error(WEFT_ERR_NO_MEMORY,
                       "out of shared memory: cannot grow to %s: there is room for %s per rank; "
                       "raise %s",
                       wefti_format_bytes(bytes, need), wefti_format_bytes(shm->stride_bytes, have),
                       limited ? "the file size limit (ulimit -f)" : "WEFT_RESERVE_BYTES");
}

static weft_status_t shm_region_grow(wefti_endpoint_t *endpoint, size_t bytes, bool later)
{
    shm_endpoint_t *shm = (shm_endpoint_t *)endpoint;
    size_t from = endpoint->region_bytes;
    weft_status_t status = check_room(shm, bytes);
    if (status == WEFT_OK && !later) {
        status = shm_region_commit(endpoint, from, bytes - from);
    }
    /* Nobody touches a peer's range before that peer's memory is there. */
    status = wefti_endpoint_agree(endpoint, status);
    bool fault_in = !later && faults_in_peers(endpoint, bytes - from);
    for (uint32_t r = 0; status == WEFT_OK && r < endpoint->world_size; r++) {
        if (fault_in && r != endpoint->rank) { /* the own part is there */
            size_t at = region_at(shm, r);
            wefti_range_populate(&shm->regions, at + from, at + bytes);
        }
        if (endpoint->region_of[r] == NULL) { /* calls in flight may be looking */
            endpoint->region_of[r] = shm->regions.base + region_at(shm, r);
        }
    }
    return status;
}

static weft_status_t shm_region_map(wefti_endpoint_t *endpoint, size_t offset, size_t bytes,
                                    void *address)
{
    const shm_endpoint_t *shm = (const shm_endpoint_t *)endpoint;
    /* The pages stay in use at address. relaxed: before the rank closes */
    atomic_fetch_or_explicit(&endpoint->control[endpoint->rank]->region, REGION_KEPT,
                             memory_order_relaxed);
    return wefti_memfd_map_over(shm->world.fds[WEFTI_SHM_REGIONS],
                                region_at(shm, endpoint->rank) + offset, bytes, address);
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
    .check_all_peers = shm_check_all_peers,
    WEFTI_TRANSPORT_MAPPED,
};
