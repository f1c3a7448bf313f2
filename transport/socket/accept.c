/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/socket/accept.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/sync.h"

#define PATIENCE_NS 20000000000ull
#define LISTENER_TAG UINT32_MAX

weft_status_t wefti_watch(int epoll_fd, int operation, int fd, uint32_t events, uint32_t tag)
{
    struct epoll_event event = {.events = events, .data.u32 = tag};
    return epoll_ctl(epoll_fd, operation, fd, &event) == 0
               ? WEFT_OK
               : wefti_error_errno(WEFT_ERR_SYSTEM, errno, "epoll_ctl failed");
}

weft_status_t wefti_acceptor_open(wefti_acceptor_t *acceptor)
{
    acceptor->pending =
        wefti_alloc(acceptor->allocator, acceptor->capacity * sizeof *acceptor->pending);
    WEFT_RETURN_IF_NO_MEMORY(acceptor->pending != NULL);
    for (uint32_t i = 0; i < acceptor->capacity; i++) {
        acceptor->pending[i].shake.wire.fd = -1;
    }
    return wefti_watch(acceptor->epoll_fd, EPOLL_CTL_ADD, acceptor->listener, EPOLLIN,
                       LISTENER_TAG);
}

void wefti_acceptor_close(wefti_acceptor_t *acceptor)
{
    for (uint32_t i = 0; acceptor->pending != NULL && i < acceptor->capacity; i++) {
        wefti_handshake_deinit(&acceptor->pending[i].shake);
    }
    wefti_free(acceptor->allocator, acceptor->pending);
    acceptor->pending = NULL;
}

static wefti_pending_t *find_entry(wefti_acceptor_t *acceptor)
{
    wefti_pending_t *oldest = &acceptor->pending[0];
    for (uint32_t i = 0; i < acceptor->capacity; i++) {
        wefti_pending_t *pending = &acceptor->pending[i];
        if (pending->shake.wire.fd < 0) {
            return pending;
        }
        oldest = pending->since_ns < oldest->since_ns ? pending : oldest;
    }
    wefti_handshake_deinit(&oldest->shake);
    return oldest;
}

static weft_status_t accept_all(wefti_acceptor_t *acceptor)
{
    int fd;
    while ((fd = accept4(acceptor->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        wefti_pending_t *pending = find_entry(acceptor);
        WEFT_RETURN_IF_ERROR(wefti_handshake_init(&pending->shake, fd, false, &acceptor->greeting,
                                                  acceptor->key, acceptor->key_bytes,
                                                  acceptor->allocator));
        pending->since_ns = wefti_now_ns();
        wefti_address_peer(fd, &pending->from);
        WEFT_RETURN_IF_ERROR(
            wefti_watch(acceptor->epoll_fd, EPOLL_CTL_ADD, fd, EPOLLIN,
                        WEFTI_ACCEPTOR_TAG + (uint32_t)(pending - acceptor->pending)));
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno,
                                 "rank %u: cannot accept more connections; raise the limit of open "
                                 "files (ulimit -n)",
                                 acceptor->greeting.rank);
    }
    return WEFT_OK;
}

static void reject(wefti_acceptor_t *acceptor, wefti_pending_t *pending, weft_status_t why)
{
    char at[WEFTI_ADDRESS_TEXT];
    wefti_address_text(&pending->from, true, at);
    if (why == WEFT_ERR_MISMATCH) {
        snprintf(acceptor->failed, sizeof acceptor->failed,
                 "authentication failed: %s claims to be rank %u but does not know the secret", at,
                 wefti_handshake_peer(&pending->shake)->rank);
    }
    if (why != WEFT_ERR_PEER_DIED) {
        wefti_log(acceptor->log, WEFT_LOG_LEVEL_INFO,
                  "rank %u: rejected the connection from %s: %s", acceptor->greeting.rank, at,
                  why == WEFT_ERR_MISMATCH ? "authentication failed" : "not a rank of Weft");
    }
    wefti_handshake_deinit(&pending->shake);
}

weft_status_t wefti_acceptor_step(wefti_acceptor_t *acceptor, uint32_t tag,
                                  wefti_pending_t **out_peer)
{
    *out_peer = NULL;
    if (tag == LISTENER_TAG) {
        return accept_all(acceptor);
    }
    wefti_pending_t *pending = &acceptor->pending[tag - WEFTI_ACCEPTOR_TAG];
    if (pending->shake.wire.fd < 0) { /* closed since the event was reported */
        return WEFT_OK;
    }
    weft_status_t status = wefti_handshake_step(&pending->shake);
    if (status == WEFT_OK) {
        *out_peer = pending;
    } else if (status < 0) {
        reject(acceptor, pending, status);
    }
    return WEFT_OK;
}

void wefti_acceptor_expire(wefti_acceptor_t *acceptor)
{
    uint64_t now = wefti_now_ns();
    for (uint32_t i = 0; i < acceptor->capacity; i++) {
        wefti_pending_t *pending = &acceptor->pending[i];
        if (pending->shake.wire.fd >= 0 && now > pending->since_ns + PATIENCE_NS) {
            reject(acceptor, pending, WEFT_ERR_FORMAT);
        }
    }
}
