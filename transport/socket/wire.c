/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/socket/wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "transport/socket/fork.h"

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
        wefti_socket_close(wire->fd);
    }
    wefti_free(wire->allocator, wire->in.bytes);
    wefti_free(wire->allocator, wire->out.bytes);
    *wire = (wefti_wire_t){.fd = -1, .error = wire->error};
}

static weft_status_t broken(wefti_wire_t *wire, int error_number)
{
    wire->error = wire->error == 0 ? error_number : wire->error;
    return WEFT_ERR_PEER_DIED;
}

bool wefti_wire_buffer_reserve(const weft_allocator_t *allocator, wefti_wire_buffer_t *buffer,
                               size_t more)
{
    size_t used = buffer->end - buffer->at, need = used + more;
    if (buffer->capacity - buffer->end >= more) {
        return true;
    }
    uint8_t *old = buffer->bytes;
    if (need > buffer->capacity / 2) { /* moving within the buffer would soon be repeated */
        size_t capacity = need < GROW_BYTES ? 2 * need : need + need / 8;
        uint8_t *larger = wefti_alloc(allocator, capacity);
        if (larger == NULL) {
            return false;
        }
        buffer->bytes = larger;
        buffer->capacity = capacity;
    }
    if (used > 0) {
        memmove(buffer->bytes, old + buffer->at, used);
    }
    if (old != buffer->bytes) {
        wefti_free(allocator, old);
    }
    buffer->at = 0;
    buffer->end = used;
    return true;
}

void wefti_wire_buffer_trim(const weft_allocator_t *allocator, wefti_wire_buffer_t *buffer)
{
    if (buffer->at == buffer->end) {
        buffer->at = buffer->end = 0;
        if (buffer->capacity > KEEP_BYTES) {
            wefti_free(allocator, buffer->bytes);
            *buffer = (wefti_wire_buffer_t){0};
        }
    }
}

void wefti_wire_buffer_append(wefti_wire_buffer_t *buffer, const void *bytes, size_t count)
{
    if (count > 0) {
        memcpy(buffer->bytes + buffer->end, bytes, count);
        buffer->end += count;
    }
}

/* WEFT_OK when the buffer has a whole frame; else *out_need: how many bytes it must have. */
static weft_status_t look(const wefti_wire_t *wire, header_t *header, size_t *out_need)
{
    size_t have = wire->in.end - wire->in.at;
    *out_need = sizeof *header;
    if (have < sizeof *header) {
        /* Other protocols are detected by their first bytes, before a header is complete. */
        static const uint32_t mark = MARK;
        return have > 0 && memcmp(wire->in.bytes + wire->in.at, &mark, have < 4 ? have : 4) != 0
                   ? WEFT_ERR_FORMAT
                   : WEFT_AGAIN;
    }
    memcpy(header, wire->in.bytes + wire->in.at, sizeof *header);
    if (header->mark != MARK || header->zero != 0 || header->bytes > wire->in_limit) {
        return WEFT_ERR_FORMAT;
    }
    *out_need += header->bytes;
    return have < *out_need ? WEFT_AGAIN : WEFT_OK;
}

weft_status_t wefti_wire_receive(wefti_wire_t *wire, wefti_frame_t *out_frame)
{
    wefti_wire_buffer_t *in = &wire->in;
    if (wire->fd < 0) {
        return WEFT_ERR_PEER_DIED;
    }
    wefti_wire_buffer_trim(wire->allocator, in);
    for (;;) {
        header_t header;
        size_t need;
        weft_status_t status = look(wire, &header, &need);
        if (status == WEFT_OK) {
            *out_frame =
                (wefti_frame_t){header.kind, header.bytes, in->bytes + in->at + sizeof header};
            in->at += need;
        }
        if (status != WEFT_AGAIN) {
            return status;
        }
        size_t usual =
            IN_BYTES < sizeof header + wire->in_limit ? IN_BYTES : sizeof header + wire->in_limit;
        size_t more = (need < usual ? usual : need) - (in->end - in->at);
        WEFT_RETURN_IF_NO_MEMORY(wefti_wire_buffer_reserve(wire->allocator, in, more));
        size_t most = wire->exact ? in->at + need : in->capacity;
        ssize_t got = recv(wire->fd, in->bytes + in->end, most - in->end, 0);
        if (got == 0) {
            return broken(wire, 0);
        }
        if (got < 0 && errno != EINTR) {
            return errno == EAGAIN || errno == EWOULDBLOCK ? WEFT_AGAIN : broken(wire, errno);
        }
        in->end += got > 0 ? (size_t)got : 0;
    }
}

weft_status_t wefti_wire_flush(wefti_wire_t *wire)
{
    wefti_wire_buffer_t *out = &wire->out;
    while (wire->fd >= 0 && wefti_wire_unsent(wire)) {
        ssize_t sent = send(wire->fd, out->bytes + out->at, out->end - out->at, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR) {
            return errno == EAGAIN || errno == EWOULDBLOCK ? WEFT_AGAIN : broken(wire, errno);
        }
        out->at += sent > 0 ? (size_t)sent : 0;
    }
    wefti_wire_buffer_trim(wire->allocator, out);
    return wire->fd >= 0 ? WEFT_OK : WEFT_ERR_PEER_DIED;
}

weft_status_t wefti_wire_send(wefti_wire_t *wire, uint32_t kind, const void *head,
                              size_t head_bytes, const void *data, size_t bytes)
{
    const header_t header = {MARK, (uint16_t)kind, 0, (uint32_t)(head_bytes + bytes)};
    if (wire->fd < 0) {
        return WEFT_ERR_PEER_DIED;
    }
    WEFT_RETURN_IF_NO_MEMORY(
        wefti_wire_buffer_reserve(wire->allocator, &wire->out, sizeof header + head_bytes + bytes));
    wefti_wire_buffer_append(&wire->out, &header, sizeof header);
    wefti_wire_buffer_append(&wire->out, head, head_bytes);
    wefti_wire_buffer_append(&wire->out, data, bytes);
    return wefti_wire_flush(wire);
}
