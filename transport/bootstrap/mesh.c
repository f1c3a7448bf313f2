/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/bootstrap/mesh.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/sync.h"

#define SECOND_NS 1000000000ull
/* How long one attempt may take, and how long a visitor may take to prove itself. */
#define ATTEMPT_NS (10 * SECOND_NS)
#define CONNECT_NS (3 * SECOND_NS)
/* A peer that is in the table listens: when all its addresses say no, it is not asked much longer.
 */
#define HARD_NS (3 * SECOND_NS)
#define LISTENER_TAG UINT32_MAX
#define VISITOR_TAG 0x10000u

uint32_t wefti_mesh_neighbours(uint32_t rank, uint32_t world_size, uint32_t *out_ranks)
{
    uint32_t count = 0;
    for (uint32_t distance = 1; distance < world_size; distance *= 2) {
        const uint32_t both[2] = {(rank + distance) % world_size,
                                  (rank + world_size - distance) % world_size};
        for (int side = 0; side < 2; side++) {
            bool known = false;
            for (uint32_t i = 0; i < count; i++) {
                known = known || out_ranks[i] == both[side];
            }
            if (!known) {
                out_ranks[count++] = both[side];
            }
        }
    }
    return count;
}

weft_status_t wefti_mesh_init(wefti_mesh_t *mesh, uint32_t rank, uint32_t world_size,
                              const wefti_log_t *log, const weft_allocator_t *allocator)
{
    uint32_t ranks[WEFTI_MESH_PEERS_MAX];
    *mesh = (wefti_mesh_t){.rank = rank,
                           .world_size = world_size,
                           .log = log,
                           .allocator = allocator,
                           .listener = -1,
                           .greeting = {.version = WEFTI_BOOTSTRAP_VERSION,
                                        .purpose = WEFTI_PURPOSE_LINK,
                                        .rank = rank,
                                        .world_size = world_size}};
    mesh->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (mesh->epoll_fd < 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "epoll_create1 failed");
    }
    uint32_t count = wefti_mesh_neighbours(rank, world_size, ranks);
    mesh->peers = wefti_alloc(allocator, count * sizeof *mesh->peers);
    if (mesh->peers == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    mesh->peer_count = count;
    for (uint32_t i = 0; i < count; i++) {
        mesh->peers[i].rank = ranks[i];
        mesh->peers[i].connects = rank < ranks[i];
        mesh->peers[i].shake.wire.fd = -1;
    }
    return WEFT_OK;
}

static weft_status_t watch(const wefti_mesh_t *mesh, int operation, int fd, uint32_t events,
                           uint32_t tag)
{
    struct epoll_event event = {.events = events, .data.u32 = tag};
    return epoll_ctl(mesh->epoll_fd, operation, fd, &event) == 0
               ? WEFT_OK
               : wefti_error_errno(WEFT_ERR_SYSTEM, errno, "epoll_ctl failed");
}

weft_status_t wefti_mesh_listen(wefti_mesh_t *mesh, const wefti_address_t *at,
                                wefti_address_t *out_bound)
{
    weft_status_t status =
        wefti_address_listen(at, 0, (int)(2 * mesh->peer_count + 64), &mesh->listener, out_bound);
    if (status == WEFT_AGAIN) {
        status = wefti_error(WEFT_ERR_SYSTEM, "no free TCP port to listen on");
    }
    return status;
}

weft_status_t wefti_mesh_begin(wefti_mesh_t *mesh, const uint8_t *key, const wefti_card_t *cards,
                               uint64_t deadline_ns)
{
    memcpy(mesh->key, key, sizeof mesh->key);
    mesh->began_ns = wefti_now_ns();
    mesh->deadline_ns = deadline_ns;
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        mesh->peers[i].card = cards[i];
    }
    return watch(mesh, EPOLL_CTL_ADD, mesh->listener, EPOLLIN, LISTENER_TAG);
}

/* ---- ranks that connect to us ---- */

static void dismiss(wefti_mesh_visitor_t *visitor)
{
    wefti_handshake_deinit(&visitor->shake);
    visitor->present = false;
}

static uint32_t find_seat(wefti_mesh_t *mesh)
{
    uint32_t oldest = 0;
    for (uint32_t i = 0; i < WEFTI_MESH_VISITORS; i++) {
        if (!mesh->visitors[i].present) {
            return i;
        }
        if (mesh->visitors[i].since_ns < mesh->visitors[oldest].since_ns) {
            oldest = i;
        }
    }
    dismiss(&mesh->visitors[oldest]);
    return oldest;
}

static weft_status_t accept_visitors(wefti_mesh_t *mesh)
{
    int fd;
    while ((fd = accept4(mesh->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        uint32_t seat = find_seat(mesh);
        wefti_mesh_visitor_t *visitor = &mesh->visitors[seat];
        weft_status_t status =
            wefti_handshake_init(&visitor->shake, fd, false, &mesh->greeting, NULL, mesh->key,
                                 sizeof mesh->key, mesh->allocator);
        if (status < 0) {
            return status;
        }
        visitor->present = true;
        visitor->since_ns = wefti_now_ns();
        if ((status = watch(mesh, EPOLL_CTL_ADD, fd, EPOLLIN, VISITOR_TAG + seat)) < 0) {
            return status;
        }
    }
    if (errno == EMFILE || errno == ENFILE) {
        return wefti_error_errno(
            WEFT_ERR_SYSTEM, errno,
            "rank %u: accept failed; check the limit of open files (ulimit -n)", mesh->rank);
    }
    return WEFT_OK;
}

static wefti_mesh_peer_t *peer_of(wefti_mesh_t *mesh, uint32_t rank)
{
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        if (mesh->peers[i].rank == rank) {
            return &mesh->peers[i];
        }
    }
    return NULL;
}

static void came_up(wefti_mesh_t *mesh, wefti_mesh_peer_t *peer)
{
    epoll_ctl(mesh->epoll_fd, EPOLL_CTL_DEL, peer->shake.wire.fd, NULL);
    peer->trying = false;
    peer->up = true;
    mesh->up_count++;
}

static void hear_visitor(wefti_mesh_t *mesh, uint32_t seat)
{
    wefti_mesh_visitor_t *visitor = &mesh->visitors[seat];
    if (!visitor->present) {
        return;
    }
    weft_status_t status = wefti_handshake_step(&visitor->shake);
    if (status == WEFT_AGAIN) {
        return;
    }
    const wefti_greeting_t *who = wefti_handshake_peer(&visitor->shake);
    wefti_mesh_peer_t *peer = status == WEFT_OK ? peer_of(mesh, who->rank) : NULL;
    if (peer == NULL || peer->connects || who->world_size != mesh->world_size) {
        wefti_log(mesh->log, WEFT_LOG_LEVEL_DEBUG,
                  "rank %u: rejected an unauthenticated connection", mesh->rank);
        dismiss(visitor);
        return;
    }
    if (peer->up) { /* it gave the first attempt up: this one counts */
        wefti_handshake_deinit(&peer->shake);
        mesh->up_count--;
    }
    peer->shake = visitor->shake;
    visitor->present = false;
    came_up(mesh, peer);
}

/* ---- ranks that we connect to ---- */

static void attempt_failed(wefti_mesh_peer_t *peer, const char *why)
{
    char text[WEFTI_ADDRESS_TEXT];
    uint64_t now = wefti_now_ns();
    snprintf(peer->why, sizeof peer->why, "%s: %s",
             wefti_address_text(&peer->card.addresses[peer->at], true, text), why);
    wefti_handshake_deinit(&peer->shake);
    peer->trying = peer->connected = false;
    peer->next_ns = now;
    if (++peer->at >= peer->card.count) {
        peer->at = 0;
        peer->next_ns = now + (peer->rounds < 5 ? 10000000ull << peer->rounds : SECOND_NS / 2);
        peer->rounds++;
    }
}

static weft_status_t begin_attempt(wefti_mesh_t *mesh, wefti_mesh_peer_t *peer)
{
    int fd = -1;
    uint32_t tag = (uint32_t)(peer - mesh->peers);
    weft_status_t status = wefti_address_connect(&peer->card.addresses[peer->at], &fd);
    if (status == WEFT_AGAIN) {
        peer->hard = true;
        attempt_failed(peer, strerror(errno));
        return WEFT_OK;
    }
    if (status < 0) {
        return status;
    }
    status = wefti_handshake_init(&peer->shake, fd, true, &mesh->greeting, NULL, mesh->key,
                                  sizeof mesh->key, mesh->allocator);
    if (status < 0) {
        return status;
    }
    peer->trying = true;
    peer->next_ns = wefti_now_ns() + CONNECT_NS;
    return watch(mesh, EPOLL_CTL_ADD, fd, EPOLLOUT, tag);
}

static void hear_peer(wefti_mesh_t *mesh, wefti_mesh_peer_t *peer)
{
    int fd = peer->shake.wire.fd;
    if (!peer->trying) {
        return;
    }
    if (!peer->connected) {
        int problem = wefti_address_connected(fd);
        if (problem == EINPROGRESS) {
            return;
        }
        if (problem != 0) {
            peer->hard = true;
            attempt_failed(peer, strerror(problem));
            return;
        }
        peer->connected = true;
        peer->next_ns = wefti_now_ns() + ATTEMPT_NS;
        if (watch(mesh, EPOLL_CTL_MOD, fd, EPOLLIN, (uint32_t)(peer - mesh->peers)) < 0) {
            attempt_failed(peer, weft_last_error());
            return;
        }
    }
    weft_status_t status = wefti_handshake_step(&peer->shake);
    if (status == WEFT_AGAIN) {
        return;
    }
    const wefti_greeting_t *who = wefti_handshake_peer(&peer->shake);
    if (status == WEFT_OK && who->rank == peer->rank && who->world_size == mesh->world_size) {
        came_up(mesh, peer);
    } else {
        attempt_failed(peer, status == WEFT_ERR_PEER_DIED ? "connection closed"
                                                          : "not a rank of this world");
    }
}

static weft_status_t attend_peer(wefti_mesh_t *mesh, wefti_mesh_peer_t *peer, uint64_t now,
                                 uint64_t *wait_ns)
{
    if (peer->up || !peer->connects) {
        return WEFT_OK;
    }
    if (peer->trying && now >= peer->next_ns) {
        peer->hard = false;
        attempt_failed(peer, "no answer before the timeout");
    }
    bool hopeless = peer->rounds >= 3 && peer->hard && now > mesh->began_ns + HARD_NS;
    if (!peer->trying && (hopeless || (now >= mesh->deadline_ns && peer->rounds > 0))) {
        return wefti_error(
            WEFT_ERR_TIMEOUT,
            "rank %u: cannot connect to rank %u: %s; WEFT_IFNAME selects the network interfaces",
            mesh->rank, peer->rank, peer->why);
    }
    if (!peer->trying && now >= peer->next_ns) {
        weft_status_t status = begin_attempt(mesh, peer);
        if (status < 0) {
            return status;
        }
    }
    uint64_t wait = peer->next_ns > now ? peer->next_ns - now : 0;
    *wait_ns = wait < *wait_ns ? wait : *wait_ns;
    return WEFT_OK;
}

weft_status_t wefti_mesh_step(wefti_mesh_t *mesh, uint64_t *out_wait_ns)
{
    struct epoll_event events[64];
    int count = epoll_wait(mesh->epoll_fd, events, 64, 0);
    for (int i = 0; i < count; i++) {
        uint32_t tag = events[i].data.u32;
        weft_status_t status = WEFT_OK;
        if (tag == LISTENER_TAG) {
            status = accept_visitors(mesh);
        } else if (tag >= VISITOR_TAG) {
            hear_visitor(mesh, tag - VISITOR_TAG);
        } else {
            hear_peer(mesh, &mesh->peers[tag]);
        }
        if (status < 0) {
            return status;
        }
    }
    uint64_t now = wefti_now_ns();
    *out_wait_ns = SECOND_NS;
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        weft_status_t status = attend_peer(mesh, &mesh->peers[i], now, out_wait_ns);
        if (status < 0) {
            return status;
        }
    }
    for (uint32_t i = 0; i < WEFTI_MESH_VISITORS; i++) {
        if (mesh->visitors[i].present && now > mesh->visitors[i].since_ns + ATTEMPT_NS) {
            dismiss(&mesh->visitors[i]);
        }
    }
    return mesh->up_count == mesh->peer_count ? WEFT_OK : WEFT_IN_PROGRESS;
}

void wefti_mesh_deinit(wefti_mesh_t *mesh)
{
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        wefti_handshake_deinit(&mesh->peers[i].shake);
    }
    for (uint32_t i = 0; i < WEFTI_MESH_VISITORS; i++) {
        if (mesh->visitors[i].present) {
            dismiss(&mesh->visitors[i]);
        }
    }
    if (mesh->listener >= 0) {
        close(mesh->listener);
    }
    if (mesh->epoll_fd >= 0) {
        close(mesh->epoll_fd);
    }
    wefti_free(mesh->allocator, mesh->peers);
    wefti_forget(mesh->key, sizeof mesh->key);
    mesh->peers = NULL;
    mesh->peer_count = 0;
    mesh->listener = mesh->epoll_fd = -1;
}
