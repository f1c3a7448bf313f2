/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds for the transport's tests: ranks as threads over a hub, or as forked processes. */
#ifndef WEFT_TESTS_TRANSPORT_SUPPORT_H
#define WEFT_TESTS_TRANSPORT_SUPPORT_H

#include <stdio.h>
#include <sys/types.h>

#include "tests/faults/network.h"
#include "tests/support/support.h"

/* What a rank does; returns 0 when all was well, else a number that names the failed check. */
typedef int (*rank_fn)(wefti_endpoint_t *endpoint, void *user);

typedef struct world {
    uint32_t size;
    rank_fn fn;
    void *user;
    wefti_settings_t settings;
    const wefti_hub_links_t *links; /* threads: not NULL hides DIRECT */
    const char *hook; /* rules around every rank's endpoint (tests/faults/hook.h), or NULL */
    /* processes: not NULL is WEFT_TRANSPORT of a world of several hosts, which meets through a file
     */
    const char *transport;
    uint32_t ranks_per_host; /* of it; 0: 1 */
    uint32_t killed;         /* 1 + the rank that dies by a signal; 0: none */
} world_t;

wefti_settings_t test_settings(void);
/* Runs fn on every rank and requires 0 from all. */
void run_threads(const world_t *world);
void run_processes(const world_t *world);
/* A new abstract address. */
void new_address(char *address, size_t capacity);
/* In a child: opens, runs, closes, _exits with fn's result, or 100 when opening fails. */
pid_t fork_rank(const world_t *world, uint32_t rank, const char *address);
/* Exit status, or -signal. */
int wait_for(pid_t pid);
int open_fd_count(void);
weft_status_t open_rank(uint32_t rank, uint32_t world_size, const char *address, weft_hub_t *hub,
                        const wefti_settings_t *settings, wefti_endpoint_t **out_endpoint);

/* Inside rank functions, where cmocka's asserts do not reach. */
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "rank %u, line %d: %s [%s]\n", endpoint->rank, __LINE__, #condition,   \
                    weft_last_error());                                                            \
            return __LINE__ % 90 + 1;                                                              \
        }                                                                                          \
    } while (0)

#endif
