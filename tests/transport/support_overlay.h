/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of an overlay as threads or processes, meeting at a port or in a file. */
#ifndef WEFT_TESTS_TRANSPORT_SUPPORT_OVERLAY_H
#define WEFT_TESTS_TRANSPORT_SUPPORT_OVERLAY_H

#include "support.h"

#include <pthread.h>

#include "transport/bootstrap/bootstrap.h"

#define SEATS_MAX 128u

/* One rank: what it is given, and what it was told. */
typedef struct seat {
    wefti_job_t job;
    wefti_settings_t settings;
    wefti_overlay_t *overlay;
    weft_status_t status; /* of opening */
    char text[600];
    uint32_t told, left, died;
    uint32_t told_by[SEATS_MAX], left_by[SEATS_MAX];
    uint32_t last_dead;
    char how[256];
    pthread_t thread;
    const struct overlay_world *world;
    int result;
} seat_t;

/* 0 when all was well, else a number that names the failed check. */
typedef int (*seat_fn)(seat_t *seat, void *user);

typedef struct overlay_world {
    uint32_t size;
    seat_fn fn;
    void *user;
    void *(*answer)(void *seat, bool relays, uint32_t turn, size_t *out_bytes); /* or NULL */
} overlay_world_t;

/* "127.0.0.1:port" of a port that is free, or was a moment ago. */
void reserve_address(char *address, size_t capacity);
/* Sets a seat up, without opening: secret of the tests, time-out of 20 s. */
void seat_init(seat_t *seat, uint32_t rank, uint32_t world_size, const char *address);
/* Opens; fills status and text. */
void seat_open(seat_t *seat);
void seat_close(seat_t *seat);
/* Opens all seats, each on a thread. */
void seats_open(seat_t *seats, uint32_t count);

void run_overlay_threads(const overlay_world_t *world);
/* results: exit status, or -signal. */
void run_overlay_processes(const overlay_world_t *world, int *results);

/* Makes progress until so many floods came, ranks left, ranks died (at least; 0: any). */
bool await_events(seat_t *seat, uint32_t told, uint32_t left, uint32_t died);
uint64_t soon(uint32_t seconds);

#define SEAT_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "rank %u, line %d: %s [%s]\n", seat->job.rank, __LINE__, #condition,   \
                    weft_last_error());                                                            \
            return __LINE__ % 90 + 1;                                                              \
        }                                                                                          \
    } while (0)

#endif
