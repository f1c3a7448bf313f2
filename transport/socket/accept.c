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

#define ACCEPTS_AT_ONCE 16u
#define LISTENER_TAG 0xc0000000u /* and the descriptor */

weft_status_t wefti_watch(int epoll_fd, int operation, int fd, uint32_t events, uint32_t tag)
{
    struct epoll_event event = {.events = events, .data.u32 = tag};
    return epoll_ctl(epoll_fd, operation, fd, &event) == 0
               ? WEFT_OK
               : wefti_error_errno(WEFT_ERR_SYSTEM, errno, "epoll_ctl failed");
}

weft_status_t wefti_acceptor_open(wefti_acceptor_t *acceptor)
{
    return acceptor->listener < 0 ? WEFT_OK : wefti_acceptor_listen(acceptor, acceptor->listener);
}

weft_status_t wefti_acceptor_listen(wefti_acceptor_t *acceptor, int listener)
{
    return wefti_watch(acceptor->epoll_fd, EPOLL_CTL_ADD, listener, EPOLLIN,
                       LISTENER_TAG + (uint32_t)listener);
}

void wefti_acceptor_dismiss(wefti_acceptor_t *acceptor, wefti_pending_t *pending)
{
    if (pending->shake.wire.fd >= 0) { /* close alone leaves it there while a child has a copy */
        (void)epoll_ctl(acceptor->epoll_fd, EPOLL_CTL_DEL, pending->shake.wire.fd, NULL);
    }
    wefti_handshake_deinit(&pending->shake);
}

void wefti_acceptor_close(wefti_acceptor_t *acceptor)
{
    for (uint32_t i = 0; i < acceptor->used; i++) {
        wefti_acceptor_dismiss(acceptor, &acceptor->pending[i]);
    }
    wefti_free(acceptor->allocator, acceptor->pending);
    acceptor->pending = NULL;
    acceptor->allocated = acceptor->used = 0;
}

/* NULL: no memory for the first one. */
static wefti_pending_t *find_entry(wefti_acceptor_t *acceptor)
{
    wefti_pending_t *oldest = acceptor->pending;
    for (uint32_t i = 0; i < acceptor->used; i++) {
        wefti_pending_t *pending = &acceptor->pending[i];
        if (pending->shake.wire.fd < 0) {
            return pending;
        }
        oldest = pending->since_ns < oldest->since_ns ? pending : oldest;
    }
    if (acceptor->used < acceptor->capacity &&
        wefti_array_reserve(acceptor->allocator, &acceptor->pending, &acceptor->allocated,
                            acceptor->used + 1, sizeof *acceptor->pending) == WEFT_OK) {
        return &acceptor->pending[acceptor->used++];
    }
    if (oldest != NULL) {
        wefti_acceptor_dismiss(acceptor, oldest);
    }
    return oldest;
}

static weft_status_t accept_some(wefti_acceptor_t *acceptor, int listener)
{
    for (uint32_t i = 0; i < ACCEPTS_AT_ONCE; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            break;
        }
        wefti_pending_t *pending = find_entry(acceptor);
        if (pending == NULL) {
            close(fd);
            return WEFT_ERR_NO_MEMORY;
        }
        WEFT_RETURN_IF_ERROR(wefti_handshake_init(&pending->shake, fd, false, &acceptor->greeting,
                                                  acceptor->key, acceptor->key_bytes,
                                                  acceptor->allocator));
        if (acceptor->accepts != NULL) {
            pending->shake.accepts = acceptor->accepts;
            pending->shake.owner = acceptor->owner;
            pending->shake.withheld = pending->shake.wire.exact = true;
        }
        pending->since_ns = wefti_now_ns();
        wefti_address_peer(fd, &pending->from);
        WEFT_RETURN_IF_ERROR(
            wefti_watch(acceptor->epoll_fd, EPOLL_CTL_ADD, fd, EPOLLIN,
                        WEFTI_ACCEPTOR_TAG + (uint32_t)(pending - acceptor->pending)));
        errno = 0;
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
    wefti_acceptor_dismiss(acceptor, pending);
}

weft_status_t wefti_acceptor_step(wefti_acceptor_t *acceptor, uint32_t tag,
                                  wefti_pending_t **out_peer)
{
    *out_peer = NULL;
    if (tag >= LISTENER_TAG) {
        return accept_some(acceptor, (int)(tag - LISTENER_TAG));
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

uint64_t wefti_acceptor_expire(wefti_acceptor_t *acceptor)
{
    uint64_t now = wefti_now_ns(), next = UINT64_MAX;
    for (uint32_t i = 0; i < acceptor->used; i++) {
        wefti_pending_t *pending = &acceptor->pending[i];
        uint64_t end = pending->since_ns + acceptor->patience_ns;
        if (pending->shake.wire.fd >= 0 && now > end) {
            reject(acceptor, pending, WEFT_ERR_FORMAT);
        } else if (pending->shake.wire.fd >= 0) {
            next = end < next ? end : next;
        }
    }
    return next;
}
