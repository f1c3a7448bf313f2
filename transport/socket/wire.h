/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames over a non-blocking stream socket: twelve bytes of header (mark, kind, length), then the
 * body. Nothing here blocks. The longest body is limited; the limit is raised when the peer has
 * authenticated itself.
 */
#ifndef WEFT_TRANSPORT_SOCKET_WIRE_H
#define WEFT_TRANSPORT_SOCKET_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <weft/types.h>

typedef struct wefti_wire {
    int fd; /* -1: closed */
    const weft_allocator_t *allocator;
    uint8_t *in;
    size_t in_at, in_end, in_capacity; /* unread bytes lie in [in_at, in_end) */
    size_t in_limit;                   /* longest body that is accepted */
    uint8_t *out;
    size_t out_at, out_end, out_capacity;
    uint64_t sent, received; /* frames */
    bool exact;              /* reads no byte beyond a frame: the socket is handed on later */
    int error;               /* errno of what closed it; 0: the other end */
} wefti_wire_t;

typedef struct wefti_frame {
    uint32_t kind;
    uint32_t bytes;
    const uint8_t *body; /* until the next call that receives; not aligned */
} wefti_frame_t;

void wefti_wire_init(wefti_wire_t *wire, int fd, size_t in_limit,
                     const weft_allocator_t *allocator);
/* Also closes the socket, unless fd is -1. */
void wefti_wire_deinit(wefti_wire_t *wire);
/* The next frame. WEFT_AGAIN: not there yet. WEFT_ERR_PEER_DIED (wire->error says how),
 * WEFT_ERR_FORMAT (no frames of ours), WEFT_ERR_NO_MEMORY: of no use any more. */
weft_status_t wefti_wire_receive(wefti_wire_t *wire, wefti_frame_t *out_frame);
/* Queues a frame of two parts and sends what goes. Errors: as for receive. */
weft_status_t wefti_wire_send(wefti_wire_t *wire, uint32_t kind, const void *head,
                              size_t head_bytes, const void *data, size_t bytes);
weft_status_t wefti_wire_flush(wefti_wire_t *wire);
static inline bool wefti_wire_unsent(const wefti_wire_t *wire)
{
    return wire->out_end > wire->out_at;
}

#endif
