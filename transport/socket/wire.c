/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/socket/wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"

#define MARK 0x74665765u /* "eWft": bytes of other protocols rarely look like it */
#define IN_BYTES 4096u
/* Buffers that grew larger than this are given back when they are empty. */
#define KEEP_BYTES 65536u
/* Buffers double up to this size, and grow by less beyond. */
#define GROW_BYTES 1048576u

typedef struct header {
    uint32_t mark;
    uint16_t kind;
    uint16_t zero;
    uint32_t bytes;
} header_t;
_Static_assert(sizeof(header_t) == 12, "headers travel");

void wefti_wire_init(wefti_wire_t *wire, int fd, size_t in_limit, const weft_allocator_t *allocator)
{
    *wire = (wefti_wire_t){.fd = fd, .allocator = allocator, .in_limit = in_limit};
}

void wefti_wire_deinit(wefti_wire_t *wire)
{
    if (wire->fd >= 0) {
        close(wire->fd);
    }
    wefti_free(wire->allocator, wire->in);
    wefti_free(wire->allocator, wire->out);
    *wire = (wefti_wire_t){
        .fd = -1, .error = wire->error, .sent = wire->sent, .received = wire->received};
}

static weft_status_t broken(wefti_wire_t *wire, int error_number)
{
    wire->error = wire->error == 0 ? error_number : wire->error; /* what was heard first */
    return WEFT_ERR_PEER_DIED;
}

/* Room for need bytes from *at on, moving what is there to the front. */
static weft_status_t make_room(const weft_allocator_t *allocator, uint8_t **buffer, size_t *at,
                               size_t *end, size_t *capacity, size_t need)
{
    size_t used = *end - *at;
    if (*at + need <= *capacity) {
        return WEFT_OK;
    }
    if (need <= *capacity) {
        memmove(*buffer, *buffer + *at, used);
    } else {
        size_t larger = need < GROW_BYTES ? 2 * need : need + need / 8;
        uint8_t *fresh = wefti_alloc(allocator, larger);
        if (fresh == NULL) {
            return WEFT_ERR_NO_MEMORY;
        }
        if (used > 0) {
            memcpy(fresh, *buffer + *at, used);
        }
        wefti_free(allocator, *buffer);
        *buffer = fresh;
        *capacity = larger;
    }
    *at = 0;
    *end = used;
    return WEFT_OK;
}

static void give_back(const weft_allocator_t *allocator, uint8_t **buffer, size_t *at, size_t *end,
                      size_t *capacity)
{
    if (*at == *end) {
        *at = *end = 0;
        if (*capacity > KEEP_BYTES) {
            wefti_free(allocator, *buffer);
            *buffer = NULL;
            *capacity = 0;
        }
    }
}

/* WEFT_OK when a whole frame is in the buffer; else *out_need: how many bytes there have to be. */
static weft_status_t look(const wefti_wire_t *wire, header_t *header, size_t *out_need)
{
    size_t have = wire->in_end - wire->in_at;
    *out_need = sizeof *header;
    if (have < sizeof *header) {
        /* Other protocols are detected by their first bytes, before a header is complete. */
        static const uint32_t mark = MARK;
        return have > 0 && memcmp(wire->in + wire->in_at, &mark, have < 4 ? have : 4) != 0
                   ? WEFT_ERR_FORMAT
                   : WEFT_AGAIN;
    }
    memcpy(header, wire->in + wire->in_at, sizeof *header);
    if (header->mark != MARK || header->zero != 0 || header->bytes > wire->in_limit) {
        return WEFT_ERR_FORMAT;
    }
    *out_need += header->bytes;
    return have < *out_need ? WEFT_AGAIN : WEFT_OK;
}

weft_status_t wefti_wire_receive(wefti_wire_t *wire, wefti_frame_t *out_frame)
{
    if (wire->fd < 0) {
        return WEFT_ERR_PEER_DIED;
    }
    give_back(wire->allocator, &wire->in, &wire->in_at, &wire->in_end, &wire->in_capacity);
    for (;;) {
        header_t header;
        size_t need;
        weft_status_t status = look(wire, &header, &need);
        if (status == WEFT_OK) {
            *out_frame =
                (wefti_frame_t){header.kind, header.bytes, wire->in + wire->in_at + sizeof header};
            wire->in_at += need;
            wire->received++;
        }
        if (status != WEFT_AGAIN) {
            return status;
        }
        size_t usual =
            IN_BYTES < sizeof header + wire->in_limit ? IN_BYTES : sizeof header + wire->in_limit;
        status = make_room(wire->allocator, &wire->in, &wire->in_at, &wire->in_end,
                           &wire->in_capacity, need < usual ? usual : need);
        if (status < 0) {
            return status;
        }
        size_t most = wire->exact ? wire->in_at + need : wire->in_capacity;
        ssize_t got = recv(wire->fd, wire->in + wire->in_end, most - wire->in_end, 0);
        if (got == 0) {
            return broken(wire, 0);
        }
        if (got < 0 && errno != EINTR) {
            return errno == EAGAIN || errno == EWOULDBLOCK ? WEFT_AGAIN : broken(wire, errno);
        }
        wire->in_end += got > 0 ? (size_t)got : 0;
    }
}

weft_status_t wefti_wire_flush(wefti_wire_t *wire)
{
    while (wire->fd >= 0 && wire->out_at < wire->out_end) {
        ssize_t sent =
            send(wire->fd, wire->out + wire->out_at, wire->out_end - wire->out_at, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR) {
            return errno == EAGAIN || errno == EWOULDBLOCK ? WEFT_AGAIN : broken(wire, errno);
        }
        wire->out_at += sent > 0 ? (size_t)sent : 0;
    }
    give_back(wire->allocator, &wire->out, &wire->out_at, &wire->out_end, &wire->out_capacity);
    return wire->fd >= 0 ? WEFT_OK : WEFT_ERR_PEER_DIED;
}

weft_status_t wefti_wire_send(wefti_wire_t *wire, uint32_t kind, const void *head,
                              size_t head_bytes, const void *data, size_t bytes)
{
    const header_t header = {MARK, (uint16_t)kind, 0, (uint32_t)(head_bytes + bytes)};
    if (wire->fd < 0) {
        return WEFT_ERR_PEER_DIED;
    }
    size_t need = wire->out_end - wire->out_at + sizeof header + head_bytes + bytes;
    weft_status_t status = make_room(wire->allocator, &wire->out, &wire->out_at, &wire->out_end,
                                     &wire->out_capacity, need);
    if (status < 0) {
        return status;
    }
    memcpy(wire->out + wire->out_end, &header, sizeof header);
    wire->out_end += sizeof header;
    if (head_bytes > 0) {
        memcpy(wire->out + wire->out_end, head, head_bytes);
        wire->out_end += head_bytes;
    }
    if (bytes > 0) {
        memcpy(wire->out + wire->out_end, data, bytes);
        wire->out_end += bytes;
    }
    wire->sent++;
    return wefti_wire_flush(wire);
}
