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

/* Bytes that are neither read nor sent yet: [at, end). Empty when zeroed. */
typedef struct wefti_wire_buffer {
    uint8_t *bytes;
    size_t at, end, capacity;
} wefti_wire_buffer_t;
/* Makes room for more bytes at the end. False: no memory. */
bool wefti_wire_buffer_reserve(const weft_allocator_t *allocator, wefti_wire_buffer_t *buffer,
                               size_t more);
/* There is room. */
void wefti_wire_buffer_append(wefti_wire_buffer_t *buffer, const void *bytes, size_t count);
/* After taking bytes at the front: an empty buffer starts again, and a large one is freed. */
void wefti_wire_buffer_trim(const weft_allocator_t *allocator, wefti_wire_buffer_t *buffer);

typedef struct wefti_wire {
    int fd; /* -1: closed */
    const weft_allocator_t *allocator;
    wefti_wire_buffer_t in, out;
    size_t in_limit; /* longest body that is accepted */
    bool exact;      /* reads no byte beyond a frame: the socket is handed on later */
    int error;       /* errno of what closed it; 0: the other end */
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
/* The next frame. WEFT_AGAIN: not there yet. WEFT_ERR_PEER_DIED (wire->error has the errno),
 * WEFT_ERR_FORMAT (not our frames), WEFT_ERR_NO_MEMORY: the connection is unusable. */
weft_status_t wefti_wire_receive(wefti_wire_t *wire, wefti_frame_t *out_frame);
/* Queues a frame of two parts and sends what the socket takes. WEFT_AGAIN: the rest needs a flush.
 * Errors: as for receive. */
weft_status_t wefti_wire_send(wefti_wire_t *wire, uint32_t kind, const void *head,
                              size_t head_bytes, const void *data, size_t bytes);
weft_status_t wefti_wire_flush(wefti_wire_t *wire);
static inline bool wefti_wire_unsent(const wefti_wire_t *wire)
{
    return wire->out.end > wire->out.at;
}

#endif
