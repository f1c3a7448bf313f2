/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between launcher and agents, over the agent's standard input and output.
 *
 *   launcher                         agent
 *                                    FRAMES_HELLO, before which a login shell may have printed
 *   JOB      who you are       ->
 *                              <-    READY    addresses of this host, prepared; or FAILED
 *   START    rank 0's address  ->
 *                              <-    STARTED, OUTPUT .., ENDED .., DONE
 *   END      a signal          ->
 *
 * A frame: kind and bytes, 32 bits each, little endian; then the bytes.
 */
#ifndef WEFT_TOOLS_LAUNCH_FRAMES_H
#define WEFT_TOOLS_LAUNCH_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAMES_HELLO "\n\001weft agent\002"
#define FRAMES_VERSION 1u
#define FRAME_MAX_BYTES 60000u /* less than a pipe holds */

typedef enum frame_kind {
    FRAME_JOB = 1,
    FRAME_READY,
    FRAME_FAILED,
    FRAME_START,
    FRAME_STARTED,
    FRAME_OUTPUT,
    FRAME_ENDED,
    FRAME_DONE,
    FRAME_END
} frame_kind_t;

/* Written one value after the other. */
typedef struct frame {
    uint32_t kind;
    size_t bytes; /* written */
    size_t at;    /* read */
    bool wrong;   /* did not fit, or ended early */
    uint8_t data[8 + FRAME_MAX_BYTES];
} frame_t;

void wefti_frame_begin(frame_t *frame, frame_kind_t kind);
void wefti_frame_put(frame_t *frame, uint32_t value);
void wefti_frame_put_bytes(frame_t *frame, const void *data, size_t bytes);
/* A length, then the text. */
void wefti_frame_put_text(frame_t *frame, const char *text);
/* All of it, waiting where it must. False with errno when the other side is gone. */
bool wefti_frame_send(frame_t *frame, int fd);

uint32_t wefti_frame_get(frame_t *frame);
const uint8_t *wefti_frame_get_rest(frame_t *frame, size_t *out_bytes);
/* Cut to out_bytes - 1. */
void wefti_frame_get_text(frame_t *frame, char *out, size_t out_bytes);

/* What has come from a descriptor. */
typedef struct frame_reader {
    int fd;
    bool greeted; /* the hello has been seen */
    size_t used;
    char noise[256]; /* what came before it, the last of it */
    uint8_t data[2 * (8 + FRAME_MAX_BYTES)];
} frame_reader_t;

/* Reads once: 1 something, 0 nothing now, -1 the end. */
int wefti_frame_reader_fill(frame_reader_t *reader);
/* 1 a whole frame, 0 none yet, -1 nonsense. */
int wefti_frame_reader_next(frame_reader_t *reader, frame_t *out_frame);

#endif
