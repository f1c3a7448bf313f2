/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a function on n ranks: threads over a hub, or forked processes over shared memory; with
 * WEFT_TEST_TRANSPORT=tcp both over sockets.
 */
#ifndef WEFT_TESTS_SUPPORT_RANKS_H
#define WEFT_TESTS_SUPPORT_RANKS_H

#include <stdbool.h>

#include <weft/weft.h>

#include "tests/faults/network.h"

typedef struct rank_world {
    weft_context_t *context;
    weft_group_t *group; /* of the world; the function may destroy it and set NULL */
    uint32_t rank, size;
    void *user; /* threads: shared; processes: each its own copy */
} rank_world_t;

/* A failed check ends the process with the place and the library's last message on standard error.
 */
typedef void (*rank_fn)(rank_world_t *world);

#define RANK_CHECK(condition) support_rank_check((condition), #condition, __FILE__, __LINE__)
#define RANK_OK(call) support_rank_ok((call), #call, __FILE__, __LINE__)
void support_rank_check(bool condition, const char *text, const char *file, int line);
void support_rank_ok(weft_status_t status, const char *text, const char *file, int line);

/* xorshift64: state is not 0. */
/* Of this run: WEFT_TEST_SEED, or the time; printed when first asked for. */
uint64_t support_seed(void);

/* Of the contexts of ranks that begin from here on; NULL: none. */
extern const weft_registry_t *support_ranks_registry;

/* Allocations by the contexts of this process's ranks so far. */
uint64_t support_rank_allocations(void);

void support_rank_threads(uint32_t size, rank_fn run, void *user);
/* The same on simulated hosts, which reach each other by put and signal only. */
void support_rank_threads_over(uint32_t size, rank_fn run, void *user,
                               const wefti_hub_links_t *links);
/* True when every process ended well. */
bool support_rank_processes(uint32_t size, rank_fn run, void *user);
/* For what has run on ranks that are threads. ThreadSanitizer sees the memory of one process only:
 * true there, and nothing is run. */
bool support_rank_processes_too(uint32_t size, rank_fn run, void *user);

/* All weights and states by name and contents, in whatever order the plan has them. Collective. */
void support_digest_state(weft_session_t *session, char digest[65]);

#endif
