/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/bootstrap/mesh.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/sync.h"

#define SECOND_NS 1000000000ull
#define CONNECT_NS (3 * SECOND_NS)
#define ANSWER_NS (10 * SECOND_NS)
/* All peers listen before they are in the table: one that refuses is not tried for longer. */
#define REFUSED_NS (3 * SECOND_NS)
#define PENDING_MAX 64u
#define BACKLOG (int)(WEFTI_MESH_PEERS_MAX + PENDING_MAX)

uint32_t wefti_mesh_neighbours(const uint32_t *members, uint32_t member_count, uint32_t own,
                               uint32_t *ranks, uint32_t count)
{
    for (uint32_t distance = 1; distance < member_count; distance *= 2) {
        const uint32_t both[2] = {(own + distance) % member_count,
                                  (own + member_count - distance) % member_count};
        for (int side = 0; side < 2; side++) {
            uint32_t rank = members != NULL ? members[both[side]] : both[side];
            bool known = false;
            for (uint32_t i = 0; i < count; i++) {
                known = known || ranks[i] == rank;
            }
            if (!known) {
                ranks[count++] = rank;
            }
        }
    }
    return count;
}

static weft_status_t add_peers(wefti_mesh_t *mesh, const uint32_t *ranks,
                               const wefti_endpoint_address_t *addresses, uint32_t count)
{
    const wefti_job_t *job = mesh->params->job;
    mesh->peers = wefti_alloc(mesh->params->allocator, count * sizeof *mesh->peers);
    WEFT_RETURN_IF_NO_MEMORY(mesh->peers != NULL);
    mesh->peer_count = count;
    for (uint32_t i = 0; i < count; i++) {
        mesh->peers[i] = (wefti_mesh_peer_t){.rank = ranks[i],
                                             .address = addresses[i],
                                             .connects = job->rank < ranks[i],
                                             .shake.wire.fd = -1,
                                             .wire.fd = -1};
    }
    return WEFT_OK;
}

weft_status_t wefti_mesh_listen(wefti_mesh_t *mesh, const wefti_overlay_params_t *params,
                                const wefti_address_t *at, wefti_address_t *out_bound)
{
    *mesh = (wefti_mesh_t){.params = params, .listener = -1};
    mesh->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (mesh->epoll_fd < 0) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "epoll_create1 failed");
    }
    weft_status_t status = wefti_address_listen(at, 0, BACKLOG, &mesh->listener, out_bound);
    return status == WEFT_AGAIN ? wefti_error(WEFT_ERR_SYSTEM, "no free TCP port to listen on")
                                : status;
}

weft_status_t wefti_mesh_begin(wefti_mesh_t *mesh, const uint8_t *key, const uint32_t *ranks,
                               const wefti_endpoint_address_t *addresses, uint32_t count,
                               uint64_t deadline_ns)
{
    WEFT_RETURN_IF_ERROR(add_peers(mesh, ranks, addresses, count));
    memcpy(mesh->key, key, sizeof mesh->key);
    mesh->began_ns = wefti_now_ns();
    mesh->deadline_ns = deadline_ns;
    mesh->acceptor = (wefti_acceptor_t){
        .listener = mesh->listener,
        .epoll_fd = mesh->epoll_fd,
        .greeting = {.version = WEFTI_BOOTSTRAP_VERSION,
                     .purpose = WEFTI_PURPOSE_LINK,
                     .rank = mesh->params->job->rank,
                     .world_size = mesh->params->job->world_size},
        .key = mesh->key,
        .key_bytes = sizeof mesh->key,
        .log = mesh->params->log,
        .allocator = mesh->params->allocator,
        .capacity = PENDING_MAX,
        .patience_ns = 2 * ANSWER_NS,
    };
    return wefti_acceptor_open(&mesh->acceptor);
}

static void link_up(wefti_mesh_t *mesh, wefti_mesh_peer_t *peer, wefti_wire_t wire)
{
    epoll_ctl(mesh->epoll_fd, EPOLL_CTL_DEL, wire.fd, NULL);
    mesh->up_count += !peer->up;
    peer->trying = false;
    peer->up = true;
    wefti_wire_deinit(&peer->wire); /* of an attempt that the peer gave up */
    peer->wire = wire;
}

static void accept_peer(wefti_mesh_t *mesh, wefti_pending_t *pending)
{
    const wefti_greeting_t *greeting = wefti_handshake_peer(&pending->shake);
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        wefti_mesh_peer_t *peer = &mesh->peers[i];
        if (peer->rank == greeting->rank && !peer->connects &&
            greeting->world_size == mesh->params->job->world_size) {
            link_up(mesh, peer, wefti_pending_take(pending));
            return;
        }
    }
    wefti_handshake_deinit(&pending->shake);
}

/* ---- ranks that this rank connects to ---- */

static void attempt_failed(wefti_mesh_peer_t *peer, bool refused, const char *why)
{
    char text[WEFTI_ADDRESS_TEXT];
    uint64_t now = wefti_now_ns();
    snprintf(peer->why, sizeof peer->why, "%s: %s",
             wefti_address_text(&peer->address.addresses[peer->at], true, text), why);
    wefti_handshake_deinit(&peer->shake);
    peer->trying = false;
    peer->refused = refused;
    peer->next_ns = now;
    if (++peer->at >= peer->address.count) {
        peer->at = 0;
        peer->next_ns = now + (peer->rounds < 5 ? 10000000ull << peer->rounds : SECOND_NS / 2);
        peer->rounds++;
    }
}

static weft_status_t begin_attempt(wefti_mesh_t *mesh, wefti_mesh_peer_t *peer)
{
    weft_status_t status = wefti_handshake_connect(&peer->shake, &peer->address.addresses[peer->at],
                                                   &mesh->acceptor.greeting, mesh->key,
                                                   sizeof mesh->key, mesh->params->allocator);
    if (status == WEFT_AGAIN) {
        attempt_failed(peer, true, strerror(errno));
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(status);
    peer->trying = true;
    peer->next_ns = wefti_now_ns() + CONNECT_NS;
    return wefti_watch(mesh->epoll_fd, EPOLL_CTL_ADD, peer->shake.wire.fd, EPOLLOUT,
                       (uint32_t)(peer - mesh->peers));
}

static weft_status_t step_attempt(wefti_mesh_t *mesh, wefti_mesh_peer_t *peer)
{
    if (!peer->trying) {
        return WEFT_OK;
    }
    bool connecting = peer->shake.connecting;
    weft_status_t status = wefti_handshake_step(&peer->shake);
    if (status == WEFT_IN_PROGRESS) {
        peer->next_ns = wefti_now_ns() + ANSWER_NS;
        WEFT_RETURN_IF_ERROR(wefti_watch(mesh->epoll_fd, EPOLL_CTL_MOD, peer->shake.wire.fd,
                                         EPOLLIN, (uint32_t)(peer - mesh->peers)));
        status = wefti_handshake_step(&peer->shake);
    }
    const wefti_greeting_t *greeting = wefti_handshake_peer(&peer->shake);
    if (status < 0) {
        attempt_failed(peer, connecting, wefti_handshake_problem(&peer->shake, status));
    } else if (status == WEFT_OK && (greeting->rank != peer->rank ||
                                     greeting->world_size != mesh->params->job->world_size)) {
        attempt_failed(peer, false, "not a rank of this world");
    } else if (status == WEFT_OK) {
        link_up(mesh, peer, peer->shake.wire);
        peer->shake.wire = (wefti_wire_t){.fd = -1};
    }
    return WEFT_OK;
}

static weft_status_t attend_peer(wefti_mesh_t *mesh, wefti_mesh_peer_t *peer, uint64_t now,
                                 uint64_t *wait_ns)
{
    if (peer->up || !peer->connects) {
        return WEFT_OK;
    }
    if (peer->trying && now >= peer->next_ns) {
        attempt_failed(peer, false, "no answer before the timeout");
    }
    bool hopeless = peer->rounds >= 3 && peer->refused && now > mesh->began_ns + REFUSED_NS;
    if (!peer->trying && (hopeless || (now >= mesh->deadline_ns && peer->rounds > 0))) {
        return wefti_error(
            WEFT_ERR_TIMEOUT,
            "rank %u: cannot connect to rank %u: %s; WEFT_IFNAME selects the network interfaces",
            mesh->params->job->rank, peer->rank, peer->why);
    }
    if (!peer->trying && now >= peer->next_ns) {
        WEFT_RETURN_IF_ERROR(begin_attempt(mesh, peer));
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
        wefti_pending_t *pending = NULL;
        if (tag < WEFTI_ACCEPTOR_TAG) {
            WEFT_RETURN_IF_ERROR(step_attempt(mesh, &mesh->peers[tag]));
            continue;
        }
        WEFT_RETURN_IF_ERROR(wefti_acceptor_step(&mesh->acceptor, tag, &pending));
        if (pending != NULL) {
            accept_peer(mesh, pending);
        }
    }
    uint64_t now = wefti_now_ns();
    *out_wait_ns = SECOND_NS;
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        WEFT_RETURN_IF_ERROR(attend_peer(mesh, &mesh->peers[i], now, out_wait_ns));
    }
    wefti_acceptor_expire(&mesh->acceptor);
    return mesh->up_count == mesh->peer_count ? WEFT_OK : WEFT_IN_PROGRESS;
}

bool wefti_mesh_hears(const wefti_mesh_t *mesh)
{
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        const wefti_wire_t *wire = &mesh->peers[i].wire;
        uint8_t byte;
        if (wire->fd >= 0 &&
            (wire->in.end > wire->in.at || recv(wire->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0)) {
            return true;
        }
    }
    return false;
}

void wefti_mesh_deinit(wefti_mesh_t *mesh)
{
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        wefti_handshake_deinit(&mesh->peers[i].shake);
        wefti_wire_deinit(&mesh->peers[i].wire);
    }
    wefti_acceptor_close(&mesh->acceptor);
    if (mesh->listener >= 0) {
        close(mesh->listener);
    }
    if (mesh->epoll_fd >= 0) {
        close(mesh->epoll_fd);
    }
    if (mesh->params != NULL) {
        wefti_free(mesh->params->allocator, mesh->peers);
    }
    wefti_forget(mesh->key, sizeof mesh->key);
    *mesh = (wefti_mesh_t){.listener = -1, .epoll_fd = -1};
}
