/* SPDX-License-Identifier: Apache-2.0 */
/* All-gathers, barriers, agreement, regions. */
#include "conformance.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

/* Sizes from nothing to more than any socket's buffer; the result is as the ranks are numbered. */
static int all_gathers(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    static const size_t sizes[] = {1, 8, 13, 640, 4096, 70001, 300000};
    uint32_t n = endpoint->world_size, rank = endpoint->rank;
    (void)conform;
    EXPECT(wefti_endpoint_all_gather(endpoint, NULL, 0, NULL) == WEFT_OK);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        size_t bytes = sizes[s];
        uint8_t *own = malloc(bytes), *all = malloc(bytes * n);
        for (uint32_t round = 0; round < (bytes < 1000 ? 10u : 1u); round++) {
            for (size_t i = 0; i < bytes; i++) {
                own[i] = conform_byte(rank, 0, round, i);
            }
            EXPECT(wefti_endpoint_all_gather(endpoint, own, bytes, all) == WEFT_OK);
            for (size_t i = 0; i < bytes * n; i++) {
                EXPECT(all[i] == conform_byte((uint32_t)(i / bytes), 0, round, i % bytes));
            }
        }
        free(own);
        free(all);
    }
    EXPECT(wefti_endpoint_all_gather(endpoint, NULL, 8, NULL) == WEFT_ERR_INVALID_ARGUMENT);
    return 0;
}

/* Nobody passes a barrier early: what ranks of this host wrote before it is there. */
static int barriers(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    size_t offset;
    (void)conform;
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    for (uint32_t round = 1; round <= 30; round++) {
        *(uint32_t *)(void *)(endpoint->region_of[endpoint->rank] + offset) = round;
        EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
        for (uint32_t r = 0; r < endpoint->world_size; r++) {
            EXPECT(!wefti_endpoint_direct(endpoint, r) ||
                   *(uint32_t *)(void *)(endpoint->region_of[r] + offset) == round);
        }
        EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    }
    wefti_region_free(endpoint, offset);
    return 0;
}

/* The lowest failing rank's error on all, however long it is, and the world goes on. */
static int agreement(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    static const int digits[] = {1, 100, 101, 102, 103, 400, 700};
    (void)conform;
    EXPECT(wefti_endpoint_agree(endpoint, WEFT_OK) == WEFT_OK);
    for (uint32_t bad = 0; bad < endpoint->world_size; bad++) {
        for (size_t i = 0; i < sizeof digits / sizeof *digits; i++) {
            weft_status_t own = WEFT_OK;
            char expected[800];
            if (endpoint->rank >= bad) {
                own =
                    wefti_error(WEFT_ERR_FORMAT, "trouble of rank %0*u", digits[i], endpoint->rank);
            }
            snprintf(expected, sizeof expected, "rank %u: trouble of rank %0*u", bad, digits[i],
                     bad);
            EXPECT(wefti_endpoint_agree(endpoint, own) == WEFT_ERR_FORMAT);
            EXPECT(strcmp(weft_last_error(), expected) == 0);
        }
    }
    return 0;
}

/* Flags say what slots hold, links what region_of does; hosts are numbered by their first ranks. */
static int flags_are_true(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    size_t offset;
    bool all = true;
    uint32_t hosts = 0;
    char name[32], reason[160];
    (void)conform;
    EXPECT(endpoint->ops->put != NULL && endpoint->ops->signal != NULL &&
           endpoint->ops->flush != NULL && endpoint->ops->region_map != NULL);
    EXPECT(wefti_region_alloc(endpoint, 64, &offset) == WEFT_OK);
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        bool direct = wefti_endpoint_direct(endpoint, r);
        EXPECT((endpoint->region_of[r] != NULL) == direct);
        EXPECT(direct || endpoint->host_of[r] != endpoint->host_of[endpoint->rank]);
        EXPECT((endpoint->caps & ~endpoint->host_caps) == 0);
        EXPECT(endpoint->control[r] != NULL);
        EXPECT(endpoint->host_of[r] <= hosts);
        hosts += endpoint->host_of[r] == hosts;
        wefti_endpoint_describe(endpoint, r, name, sizeof name, reason, sizeof reason);
        EXPECT((strcmp(name, "self") == 0) == (r == endpoint->rank));
        all = all && direct;
    }
    EXPECT(wefti_endpoint_direct(endpoint, endpoint->rank));
    EXPECT(hosts == endpoint->host_count);
    EXPECT(((endpoint->caps & WEFTI_CAP_DIRECT) != 0) == all);
    EXPECT(endpoint->local_rank_count >= 1 && endpoint->local_rank_count <= endpoint->world_size);
    wefti_region_free(endpoint, offset);
    return 0;
}

/* Every rank writes its slice of every rank's memory: by stores where it can, else by puts. */
static int regions_are_shared(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    uint32_t n = endpoint->world_size, rank = endpoint->rank;
    size_t slice = 1000, offset;
    uint8_t bytes[1000];
    (void)conform;
    EXPECT(wefti_region_alloc(endpoint, n * slice, &offset) == WEFT_OK);
    EXPECT(offset % 4096 == 0);
    const uint8_t *own = endpoint->region_of[rank] + offset;
    for (size_t i = 0; i < n * slice; i++) {
        EXPECT(own[i] == 0);
    }
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    for (uint32_t r = 0; r < n; r++) {
        for (size_t i = 0; i < slice; i++) {
            bytes[i] = conform_byte(rank, r, 1, i);
        }
        if (wefti_endpoint_direct(endpoint, r)) {
            memcpy(endpoint->region_of[r] + offset + rank * slice, bytes, slice);
        } else {
            EXPECT(wefti_put(endpoint, r, offset + rank * slice, bytes, slice, 0) == WEFT_OK);
        }
    }
    wefti_endpoint_flush(endpoint);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    for (size_t i = 0; i < n * slice; i++) {
        EXPECT(own[i] == conform_byte((uint32_t)(i / slice), rank, 1, i % slice));
    }
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    wefti_region_free(endpoint, offset);
    return 0;
}

/* Random allocations and frees: the same places everywhere, zeroed, old contents kept. */
static int regions_come_and_go(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    enum { LIVE = 6, TURNS = 40 };
    size_t offsets[LIVE] = {0}, sizes[LIVE] = {0}, mine[2], all[64][2];
    uint64_t state = conform->seed | 1;
    uint32_t rank = endpoint->rank;
    const uint8_t *base = NULL;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        uint32_t i = (uint32_t)(test_next_random(&state) % LIVE);
        size_t bytes = 1 + (size_t)(test_next_random(&state) % 300000);
        if (sizes[i] > 0) {
            const uint8_t *held = endpoint->region_of[rank] + offsets[i];
            EXPECT(held[0] == (uint8_t)(i + rank + 1) && held[sizes[i] - 1] == held[0]);
            wefti_region_free(endpoint, offsets[i]);
            sizes[i] = 0;
            continue;
        }
        EXPECT(wefti_region_alloc(endpoint, bytes, &offsets[i]) == WEFT_OK);
        sizes[i] = bytes;
        uint8_t *own = endpoint->region_of[rank] + offsets[i];
        for (size_t at = 0; at < bytes; at++) {
            EXPECT(own[at] == 0);
        }
        memset(own, (int)(i + rank + 1), bytes);
        mine[0] = offsets[i];
        mine[1] = bytes;
        EXPECT(wefti_endpoint_all_gather(endpoint, mine, sizeof mine, all) == WEFT_OK);
        for (uint32_t r = 0; r < endpoint->world_size; r++) {
            EXPECT(all[r][0] == mine[0] && all[r][1] == mine[1]);
            EXPECT(!wefti_endpoint_direct(endpoint, r) ||
                   endpoint->region_of[r][mine[0] + bytes - 1] == (uint8_t)(i + r + 1));
        }
        EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
        EXPECT(base == NULL || base == endpoint->region_of[rank]); /* it never moves */
        base = endpoint->region_of[rank];
    }
    for (uint32_t i = 0; i < LIVE; i++) {
        if (sizes[i] > 0) {
            wefti_region_free(endpoint, offsets[i]);
        }
    }
    return 0;
}

/* Each rank frees what it likes: new ones lie at the same place everywhere, and on nothing that is
 * held. */
static int regions_freed_by_each(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    enum { LIVE = 5, TURNS = 40 };
    size_t offsets[LIVE] = {0}, sizes[LIVE] = {0}, offset, all[64];
    uint64_t state = conform->seed | 1, own_state = conform->seed + 977 * (endpoint->rank + 1);
    uint32_t rank = endpoint->rank;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        size_t bytes = 1 + (size_t)(test_next_random(&state) % 50000);
        uint32_t place = LIVE;
        for (uint32_t i = 0; i < LIVE; i++) {
            if (sizes[i] > 0 && test_next_random(&own_state) % 3 == 0) {
                EXPECT(wefti_region_free(endpoint, offsets[i]));
                EXPECT(!wefti_region_free(endpoint, offsets[i]));
                sizes[i] = 0;
            }
            place = sizes[i] == 0 ? i : place;
        }
        EXPECT(wefti_region_alloc(endpoint, bytes, &offset) == WEFT_OK);
        wefti_region_block_t block;
        EXPECT(wefti_region_find(endpoint, offset + bytes - 1, &block) && block.offset == offset);
        EXPECT(wefti_endpoint_all_gather(endpoint, &offset, sizeof offset, all) == WEFT_OK);
        for (uint32_t r = 0; r < endpoint->world_size; r++) {
            EXPECT(all[r] == offset);
        }
        for (uint32_t i = 0; i < LIVE; i++) {
            const uint8_t *held = endpoint->region_of[rank] + offsets[i];
            EXPECT(sizes[i] == 0 ||
                   (held[0] == (uint8_t)(i + rank + 1) && held[sizes[i] - 1] == held[0] &&
                    (offset >= offsets[i] + sizes[i] || offsets[i] >= offset + bytes)));
        }
        uint8_t *own = endpoint->region_of[rank] + offset;
        EXPECT(own[0] == 0 && own[bytes - 1] == 0);
        if (place == LIVE) {
            wefti_region_free(endpoint, offset);
            continue;
        }
        offsets[place] = offset;
        sizes[place] = bytes;
        memset(own, (int)(place + rank + 1), bytes);
    }
    for (uint32_t i = 0; i < LIVE; i++) {
        if (sizes[i] > 0) {
            wefti_region_free(endpoint, offsets[i]);
        }
    }
    return 0;
}

static int regions_refuse(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    size_t offset = 7;
    (void)conform;
    EXPECT(wefti_region_alloc(endpoint, 65u << 20, &offset) == WEFT_ERR_NO_MEMORY);
    EXPECT(strstr(weft_last_error(), "WEFT_RESERVE_BYTES") != NULL);
    EXPECT(wefti_region_alloc(endpoint, SIZE_MAX - 5, &offset) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(wefti_region_alloc(endpoint, 0, &offset) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(offset == 7);
    if (endpoint->world_size > 1) {
        EXPECT(wefti_region_alloc(endpoint, 4096 + endpoint->rank * 4096, &offset) ==
               WEFT_ERR_MISMATCH);
        EXPECT(strstr(weft_last_error(), "rank 0 requests 4096 bytes, rank 1 requests 8192") !=
               NULL);
    }
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    wefti_region_free(endpoint, offset);
    return 0;
}

static weft_status_t count_down(void *user)
{
    int *left = user;
    return --*left > 0 ? WEFT_OK : wefti_error(WEFT_ERR_FORMAT, "enough");
}

static int waits_poll(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    int left = 100;
    wefti_signal_t *never = calloc(1, sizeof *never);
    (void)conform;
    EXPECT(wefti_wait_signal(endpoint, never, 1, "nothing", count_down, &left) == WEFT_ERR_FORMAT);
    EXPECT(left == 0 && atomic_load(&never->waiters) == 0);
    free(never);
    return 0;
}

/* A token round the ring, by stores and wake-ups. */
static int rings_of_stores(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    size_t offset;
    uint32_t next = (endpoint->rank + 1) % endpoint->world_size;
    (void)conform;
    EXPECT(wefti_region_alloc(endpoint, sizeof(wefti_signal_t), &offset) == WEFT_OK);
    wefti_signal_t *own = conform_signal(endpoint, offset);
    wefti_signal_t *theirs = (wefti_signal_t *)(void *)(endpoint->region_of[next] + offset);
    for (uint32_t round = 1; round <= 100; round++) {
        if (endpoint->rank == 0) {
            wefti_signal_post(theirs, round);
        }
        EXPECT(wefti_wait_signal(endpoint, own, round, "the token", NULL, NULL) == WEFT_OK);
        if (endpoint->rank != 0) {
            wefti_signal_post(theirs, round);
        }
    }
    EXPECT(atomic_load(&own->waiters) == 0);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    wefti_region_free(endpoint, offset);
    return 0;
}

const conform_case_t conform_world_cases[] = {
    {"all-gathers", all_gathers, 0},
    {"barriers", barriers, 0},
    {"agreement", agreement, 0},
    {"flags are true", flags_are_true, 0},
    {"regions are shared", regions_are_shared, NEEDS_PUT},
    {"regions come and go", regions_come_and_go, 0},
    {"regions are freed by each rank in its own order", regions_freed_by_each, 0},
    {"regions refuse", regions_refuse, 0},
    {"waits poll", waits_poll, 0},
    {"rings of stores", rings_of_stores, NEEDS_DIRECT},
    {NULL, NULL, 0},
};
