/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds that end: each case has one of its own. */
#include "conformance.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"

#define SOON_NS 300000000000ull /* half of the time-out: the wait ended before it */

/* Megabytes at once, and a rank that leaves right after: what it sent arrives. */
static int leaves_behind(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    uint32_t n = endpoint->world_size, rank = endpoint->rank, next = (rank + 1) % n;
    size_t offset, bytes = (1u << 20) + 13;
    (void)conform;
    EXPECT(wefti_region_alloc(endpoint, 4096 + bytes, &offset) == WEFT_OK);
    uint8_t *data = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = conform_byte(rank, next, 1, i);
    }
    EXPECT(wefti_put(endpoint, next, offset + 4096, data, bytes, 0) == WEFT_OK);
    free(data);
    EXPECT(wefti_signal_peer(endpoint, next, offset, 1, 0) == WEFT_OK);
    if (rank == 0 && n > 1) {
        return 0;
    }
    EXPECT(wefti_wait_signal(endpoint, conform_signal(endpoint, offset), 1, "data", NULL, NULL) ==
           WEFT_OK);
    const uint8_t *got = endpoint->region_of[rank] + offset + 4096;
    for (size_t i = 0; i < bytes; i++) {
        EXPECT(got[i] == conform_byte((rank + n - 1) % n, rank, 1, i));
    }
    return 0;
}

/* Whatever the others are in: a wait, a barrier, an all-gather. */
static weft_status_t wait_somehow(wefti_endpoint_t *endpoint, size_t offset)
{
    uint8_t byte = 0, all[64];
    if (endpoint->rank % 2 == 1) {
        return wefti_wait_signal(endpoint, conform_signal(endpoint, offset), 1, "what never comes",
                                 NULL, NULL);
    }
    return endpoint->world_size % 2 == 0 ? wefti_endpoint_barrier(endpoint)
                                         : wefti_endpoint_all_gather(endpoint, &byte, 1, all);
}

/* One rank waits until all others are past what they did together; *out_offset: counters. */
static int gather_at(wefti_endpoint_t *endpoint, uint32_t one, size_t *out_offset)
{
    size_t each = sizeof(wefti_signal_line_t);
    EXPECT(wefti_region_alloc(endpoint, (endpoint->world_size + 1) * each, out_offset) == WEFT_OK);
    size_t there = *out_offset + each;
    EXPECT(wefti_signal_peer(endpoint, one, there + endpoint->rank * each, 1, 0) == WEFT_OK);
    for (uint32_t r = 0; r < endpoint->world_size && endpoint->rank == one; r++) {
        EXPECT(wefti_wait_signal(endpoint, conform_signal(endpoint, there + r * each), 1, "all",
                                 NULL, NULL) == WEFT_OK);
    }
    return 0;
}

static int aborts(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    size_t offset;
    (void)conform;
    EXPECT(gather_at(endpoint, 0, &offset) == 0);
    uint64_t start = wefti_now_ns();
    if (endpoint->rank == 0) {
        wefti_endpoint_abort(endpoint, WEFT_ERR_MISMATCH, "bucket 3: f32 against f16");
        EXPECT(wefti_endpoint_check(endpoint) == WEFT_ERR_MISMATCH);
    } else {
        EXPECT(wait_somehow(endpoint, offset) == WEFT_ERR_MISMATCH);
    }
    EXPECT(strcmp(weft_last_error(), "bucket 3: f32 against f16") == 0);
    EXPECT(wefti_now_ns() - start < SOON_NS);
    return 0;
}

/* Rank 0 alone has heard of a death when its program shrinks the world: the others learn that. */
static int shrinks(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    size_t offset;
    (void)conform;
    EXPECT(gather_at(endpoint, 0, &offset) == 0);
    if (endpoint->rank == 0) {
        wefti_fault_set(&endpoint->control[0]->abort, WEFT_ERR_PEER_DIED, "rank 9 died");
        wefti_endpoint_abort_to_shrink(endpoint);
        EXPECT(wefti_endpoint_check(endpoint) == WEFT_ERR_PEER_DIED);
    } else {
        EXPECT(wait_somehow(endpoint, offset) == WEFT_ERR_PEER_DIED);
    }
    EXPECT(strcmp(weft_last_error(), "rank 9 died") == 0);
    return 0;
}

static int unequal_all_gathers(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    uint64_t own[2] = {0}, all[128];
    size_t bytes = endpoint->rank == 1 ? 16 : 8;
    (void)conform;
    EXPECT(wefti_endpoint_all_gather(endpoint, own, bytes, all) == WEFT_ERR_MISMATCH);
    EXPECT(strstr(weft_last_error(), "16") != NULL && strstr(weft_last_error(), "8") != NULL);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_ERR_MISMATCH);
    return 0;
}

/* Leaving early is told from dying. */
static int leaves_early(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    (void)conform;
    if (endpoint->rank == 1) {
        return 0;
    }
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_ERR_PEER_DIED);
    EXPECT(strstr(weft_last_error(), "rank 1") != NULL &&
           strstr(weft_last_error(), "left") != NULL);
    return 0;
}

static int dies(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    size_t offset;
    char expected[16];
    uint32_t victim = endpoint->world_size - 1;
    (void)conform;
    EXPECT(gather_at(endpoint, victim, &offset) == 0);
    if (endpoint->rank == victim) {
        kill(getpid(), SIGKILL);
    }
    uint64_t start = wefti_now_ns();
    EXPECT(wait_somehow(endpoint, offset) == WEFT_ERR_PEER_DIED);
    snprintf(expected, sizeof expected, "rank %u", victim);
    EXPECT(strstr(weft_last_error(), expected) != NULL);
    EXPECT(strstr(weft_last_error(), "died") != NULL);
    EXPECT(wefti_now_ns() - start < SOON_NS);
    return 0;
}

/* A child forked by a rank gets errors, and leaves the world as it is. */
static int forks(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    size_t offset;
    (void)conform;
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    pid_t pid = fork();
    if (pid == 0) {
        uint8_t byte = 0, all[64];
        int wrong = wefti_endpoint_owned(endpoint);
        wrong |= wefti_endpoint_barrier(endpoint) != WEFT_ERR_STATE;
        wrong |= wefti_endpoint_all_gather(endpoint, &byte, 1, all) != WEFT_ERR_STATE;
        wrong |= wefti_region_alloc(endpoint, 4096, &offset) != WEFT_ERR_STATE;
        wrong |= wefti_endpoint_check(endpoint) != WEFT_ERR_STATE;
        wrong |= wefti_wait_signal(endpoint, NULL, 1, "x", NULL, NULL) != WEFT_ERR_STATE;
        wrong |= wefti_put(endpoint, 0, offset, &byte, 1, 0) != WEFT_ERR_STATE;
        wrong |= wefti_signal_peer(endpoint, 0, offset, 1, 0) != WEFT_ERR_STATE;
        wefti_endpoint_abort(endpoint, WEFT_ERR_ABORTED, "by the child");
        wefti_endpoint_close(endpoint);
        _exit(wrong);
    }
    EXPECT(wait_for(pid) == 0);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    return wefti_endpoint_barrier(endpoint) == WEFT_OK ? 0 : 99;
}

const conform_case_t conform_end_cases[] = {
    {"leaves behind", leaves_behind, NEEDS_PUT},
    {"aborts", aborts, NEEDS_PEERS | NEEDS_PUT},
    {"shrinks", shrinks, NEEDS_PEERS | NEEDS_PUT},
    {"unequal all-gathers", unequal_all_gathers, NEEDS_PEERS},
    {"leaves early", leaves_early, NEEDS_THREE},
    {"dies", dies, NEEDS_PROCESSES | NEEDS_PEERS | NEEDS_PUT},
    {"forks", forks, NEEDS_PROCESSES},
    {NULL, NULL, 0},
};

uint32_t conform_killed(const conform_case_t *end_case, uint32_t size)
{
    return end_case->fn == dies && size > 1 ? size : 0;
}
