/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/launch/frames.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define HEAD_BYTES 8u
#define SEND_TIMEOUT_MS 10000 /* where the descriptor is non-blocking: the launcher's */
#define HELLO_BYTES (sizeof FRAMES_HELLO - 1)

static void store(uint8_t *to, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        to[i] = (uint8_t)(value >> (8 * i));
    }
}

static uint32_t load(const uint8_t *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 |
           (uint32_t)from[3] << 24;
}

void wefti_frame_begin(frame_t *frame, frame_kind_t kind)
{
    frame->kind = (uint32_t)kind;
    frame->bytes = frame->at = 0;
    frame->wrong = false;
}

void wefti_frame_put_bytes(frame_t *frame, const void *data, size_t bytes)
{
    if (bytes > FRAME_MAX_BYTES - frame->bytes) {
        frame->wrong = true;
        return;
    }
    if (bytes > 0) {
        memcpy(frame->data + HEAD_BYTES + frame->bytes, data, bytes);
    }
    frame->bytes += bytes;
}

void wefti_frame_put(frame_t *frame, uint32_t value)
{
    uint8_t raw[4];
    store(raw, value);
    wefti_frame_put_bytes(frame, raw, sizeof raw);
}

void wefti_frame_put_text(frame_t *frame, const char *text)
{
    size_t bytes = strlen(text);
    wefti_frame_put(frame, (uint32_t)bytes);
    wefti_frame_put_bytes(frame, text, bytes);
}

bool wefti_frame_send(frame_t *frame, int fd)
{
    size_t total = HEAD_BYTES + frame->bytes, sent = 0;
    store(frame->data, frame->kind);
    store(frame->data + 4, (uint32_t)frame->bytes);
    if (frame->wrong) {
        errno = EMSGSIZE;
        return false;
    }
    while (sent < total) {
        ssize_t now = write(fd, frame->data + sent, total - sent);
        if (now < 0 && errno == EAGAIN) {
            struct pollfd wait_for = {.fd = fd, .events = POLLOUT};
            if (poll(&wait_for, 1, SEND_TIMEOUT_MS) == 0) {
                errno = ETIMEDOUT;
                return false;
            }
        } else if (now < 0 && errno != EINTR) {
            return false;
        }
        sent += now > 0 ? (size_t)now : 0;
    }
    return true;
}

uint32_t wefti_frame_get(frame_t *frame)
{
    if (frame->bytes - frame->at < 4) {
        frame->wrong = true;
        frame->at = frame->bytes;
        return 0;
    }
    frame->at += 4;
    return load(frame->data + HEAD_BYTES + frame->at - 4);
}

const uint8_t *wefti_frame_get_rest(frame_t *frame, size_t *out_bytes)
{
    const uint8_t *rest = frame->data + HEAD_BYTES + frame->at;
    *out_bytes = frame->bytes - frame->at;
    frame->at = frame->bytes;
    return rest;
}

void wefti_frame_get_text(frame_t *frame, char *out, size_t out_bytes)
{
    size_t bytes = wefti_frame_get(frame);
    if (bytes > frame->bytes - frame->at) {
        frame->wrong = true;
        bytes = 0;
    }
    size_t kept = bytes < out_bytes ? bytes : out_bytes - 1;
    memcpy(out, frame->data + HEAD_BYTES + frame->at, kept);
    out[kept] = '\0';
    frame->at += bytes;
}

/* ---- reading ---- */

/* The last of what came before the hello, for a message. */
static void keep_noise(frame_reader_t *reader, size_t bytes)
{
    size_t kept = bytes < sizeof reader->noise ? bytes : sizeof reader->noise - 1;
    if (bytes > 0) {
        memcpy(reader->noise, reader->data + bytes - kept, kept);
        reader->noise[kept] = '\0';
    }
}

int wefti_frame_reader_fill(frame_reader_t *reader)
{
    if (reader->used == sizeof reader->data) {
        return 1; /* frames first */
    }
    ssize_t got = read(reader->fd, reader->data + reader->used, sizeof reader->data - reader->used);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return 0;
    }
    reader->used += got > 0 ? (size_t)got : 0;
    if (got <= 0 && !reader->greeted) {
        keep_noise(reader, reader->used); /* there is no hello to come */
    }
    return got > 0 ? 1 : -1;
}

static void drop(frame_reader_t *reader, size_t bytes)
{
    reader->used -= bytes;
    memmove(reader->data, reader->data + bytes, reader->used);
}

/* A login shell may greet first; its last words are kept for a message. */
static bool find_hello(frame_reader_t *reader)
{
    const uint8_t *hello = memmem(reader->data, reader->used, FRAMES_HELLO, HELLO_BYTES);
    size_t noise = hello != NULL                 ? (size_t)(hello - reader->data)
                   : reader->used >= HELLO_BYTES ? reader->used - (HELLO_BYTES - 1)
                                                 : 0;
    if (noise > 0) {
        keep_noise(reader, noise);
        drop(reader, noise);
    }
    if (hello != NULL) {
        drop(reader, HELLO_BYTES);
        reader->greeted = true;
    }
    return reader->greeted;
}

int wefti_frame_reader_next(frame_reader_t *reader, frame_t *out_frame)
{
    if (!reader->greeted && !find_hello(reader)) {
        return 0;
    }
    if (reader->used < HEAD_BYTES) {
        return 0;
    }
    uint32_t kind = load(reader->data), bytes = load(reader->data + 4);
    if (kind == 0 || kind > FRAME_END || bytes > FRAME_MAX_BYTES) {
        return -1;
    }
    if (reader->used < HEAD_BYTES + bytes) {
        return 0;
    }
    wefti_frame_begin(out_frame, (frame_kind_t)kind);
    memcpy(out_frame->data, reader->data, HEAD_BYTES + bytes);
    out_frame->bytes = bytes;
    drop(reader, HEAD_BYTES + bytes);
    return 1;
}
