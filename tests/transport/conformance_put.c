/* SPDX-License-Identifier: Apache-2.0 */
/* Puts and signals: what the rules of links promise, and what they refuse. */
#include "conformance.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

#define CONTROL_BYTES 4096u
#define SLOT_BYTES 65536u

/* What was put before a signal is there when the signal is; sleepers wake. Slots are used again as
 * soon as their reader says so. */
static int puts_come_before_signals(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    uint32_t n = endpoint->world_size, rank = endpoint->rank;
    uint32_t next = (rank + 1) % n, before = (rank + n - 1) % n;
    uint64_t send_state = conform->seed * 2 + 1 + rank, recv_state = conform->seed * 2 + 1 + before;
    size_t offset;
    uint8_t *data = malloc(SLOT_BYTES);
    EXPECT(wefti_region_alloc(endpoint, CONTROL_BYTES + 2 * SLOT_BYTES, &offset) == WEFT_OK);
    wefti_signal_t *arrived = conform_signal(endpoint, offset);
    wefti_signal_t *consumed = conform_signal(endpoint, offset + 128);
    for (uint32_t round = 1; round <= 20; round++) {
        size_t slot = offset + CONTROL_BYTES + (round & 1) * SLOT_BYTES;
        /* The slot's last reader is done with it. */
        EXPECT(wefti_wait_signal(endpoint, consumed, round < 2 ? 0 : round - 2, "room", NULL,
                                 NULL) == WEFT_OK);
        for (uint32_t put = 0; put < 3; put++) { /* side by side, at odd places */
            size_t at = put * 20000 + (size_t)(test_next_random(&send_state) % 64);
            size_t bytes = (size_t)(test_next_random(&send_state) % 19000);
            for (size_t i = 0; i < bytes; i++) {
                data[i] = conform_byte(rank, next, round * 3 + put, i);
            }
            EXPECT(wefti_put(endpoint, next, slot + at, data, bytes, 3) == WEFT_OK);
            memset(data, 0xee, bytes); /* it may be used again at once */
        }
        EXPECT(wefti_signal_peer(endpoint, next, offset, round, 3) == WEFT_OK);
        EXPECT(wefti_wait_signal(endpoint, arrived, round, "data", NULL, NULL) == WEFT_OK);
        for (uint32_t put = 0; put < 3; put++) {
            size_t at = put * 20000 + (size_t)(test_next_random(&recv_state) % 64);
            size_t bytes = (size_t)(test_next_random(&recv_state) % 19000);
            const uint8_t *got = endpoint->region_of[rank] + slot + at;
            for (size_t i = 0; i < bytes; i++) {
                EXPECT(got[i] == conform_byte(before, rank, round * 3 + put, i));
            }
        }
        EXPECT(wefti_signal_peer(endpoint, before, offset + 128, round, 5) == WEFT_OK);
    }
    free(data);
    wefti_endpoint_flush(endpoint);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    wefti_region_free(endpoint, offset);
    return 0;
}

/* All ranks to all ranks on all lanes at once: a counter and a word per sender and lane. */
static int lanes_keep_apart(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    uint32_t n = endpoint->world_size, rank = endpoint->rank;
    size_t offset, counters = (size_t)n * WEFTI_LINK_LANES * sizeof(wefti_signal_line_t);
    (void)conform;
    EXPECT(wefti_region_alloc(endpoint, counters * 2, &offset) == WEFT_OK);
    for (uint32_t round = 1; round <= 4; round++) {
        for (uint32_t i = 0; i < n * WEFTI_LINK_LANES; i++) {
            uint32_t to = i % n, lane = (i / n + round) % WEFTI_LINK_LANES;
            size_t mine = ((size_t)rank * WEFTI_LINK_LANES + lane) * sizeof(wefti_signal_line_t);
            uint64_t word = (uint64_t)round << 32 | lane << 8 | rank;
            EXPECT(wefti_put(endpoint, to, offset + counters + mine + (round & 1) * 64, &word,
                             sizeof word, lane) == WEFT_OK);
            EXPECT(wefti_signal_peer(endpoint, to, offset + mine, round, lane) == WEFT_OK);
        }
        for (uint32_t i = 0; i < n * WEFTI_LINK_LANES; i++) {
            uint32_t from = i / WEFTI_LINK_LANES, lane = i % WEFTI_LINK_LANES;
            size_t at = (size_t)i * sizeof(wefti_signal_line_t);
            uint64_t word;
            EXPECT(wefti_wait_signal(endpoint, conform_signal(endpoint, offset + at), round,
                                     "a lane", NULL, NULL) == WEFT_OK);
            memcpy(&word, endpoint->region_of[rank] + offset + counters + at + (round & 1) * 64,
                   sizeof word);
            EXPECT(word == ((uint64_t)round << 32 | lane << 8 | from));
        }
    }
    wefti_endpoint_flush(endpoint);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    wefti_region_free(endpoint, offset);
    return 0;
}

/* Counters pass 2^32, are never lowered, and come one after the other. */
static int counters_wrap(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    const uint32_t rounds = 60, start = UINT32_MAX - rounds / 2;
    uint32_t next = (endpoint->rank + 1) % endpoint->world_size;
    size_t offset;
    (void)conform;
    EXPECT(wefti_region_alloc(endpoint, CONTROL_BYTES, &offset) == WEFT_OK);
    wefti_signal_t *own = conform_signal(endpoint, offset);
    atomic_store(&own->value, start);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    for (uint32_t i = 1; i <= rounds; i++) {
        EXPECT(wefti_signal_peer(endpoint, next, offset, start + i, 1) == WEFT_OK);
        EXPECT(wefti_signal_peer(endpoint, next, offset, start + i - 1, 1) == WEFT_OK);
    }
    uint32_t last = start;
    while (last != start + rounds) {
        EXPECT(wefti_wait_signal(endpoint, own, last + 1, "one more", NULL, NULL) == WEFT_OK);
        uint32_t now = atomic_load(&own->value);
        EXPECT(now - last <= rounds && now != last);
        last = now;
    }
    wefti_endpoint_flush(endpoint);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    EXPECT(atomic_load(&own->value) == start + rounds);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    wefti_region_free(endpoint, offset);
    return 0;
}

/* After a flush and a barrier everything is there, signals or not. */
static int flush_lands_all(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    uint32_t n = endpoint->world_size, rank = endpoint->rank;
    size_t offset, each = 3001;
    (void)conform;
    EXPECT(wefti_region_alloc(endpoint, n * each, &offset) == WEFT_OK);
    uint8_t *data = malloc(each);
    for (uint32_t r = 0; r < n; r++) {
        for (size_t i = 0; i < each; i++) {
            data[i] = conform_byte(rank, r, 0, i);
        }
        EXPECT(wefti_put(endpoint, r, offset + rank * each, data, each, r % WEFTI_LINK_LANES) ==
               WEFT_OK);
    }
    free(data);
    wefti_endpoint_flush(endpoint);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    const uint8_t *own = endpoint->region_of[rank] + offset;
    for (size_t i = 0; i < n * each; i++) {
        EXPECT(own[i] == conform_byte((uint32_t)(i / each), rank, 0, i % each));
    }
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    wefti_region_free(endpoint, offset);
    return 0;
}

/* Every length from none on at every alignment; what lies beside it is left alone. */
static int any_alignment(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    enum { LENGTHS = 19, PITCH = 48 };
    uint32_t n = endpoint->world_size, rank = endpoint->rank, next = (rank + 1) % n;
    size_t offset, room = CONTROL_BYTES + LENGTHS * 16 * PITCH;
    uint8_t source[64];
    (void)conform;
    EXPECT(wefti_region_alloc(endpoint, room, &offset) == WEFT_OK);
    uint8_t *own = endpoint->region_of[rank] + offset;
    memset(own + CONTROL_BYTES, 0xaa, room - CONTROL_BYTES);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    for (size_t bytes = 0; bytes < LENGTHS; bytes++) {
        for (size_t shift = 0; shift < 16; shift++) {
            size_t at = CONTROL_BYTES + (bytes * 16 + shift) * PITCH + shift;
            size_t odd = (shift * 5 + bytes) % 16; /* the source is anywhere, too */
            for (size_t i = 0; i < bytes; i++) {
                source[odd + i] = conform_byte(rank, next, bytes * 16 + shift, i);
            }
            EXPECT(wefti_put(endpoint, next, offset + at, source + odd, bytes, 7) == WEFT_OK);
        }
    }
    EXPECT(wefti_signal_peer(endpoint, next, offset, 1, 7) == WEFT_OK);
    EXPECT(wefti_wait_signal(endpoint, conform_signal(endpoint, offset), 1, "data", NULL, NULL) ==
           WEFT_OK);
    for (size_t bytes = 0; bytes < LENGTHS; bytes++) {
        for (size_t shift = 0; shift < 16; shift++) {
            const uint8_t *cell = own + CONTROL_BYTES + (bytes * 16 + shift) * PITCH;
            for (size_t i = 0; i < PITCH; i++) {
                bool inside = i >= shift && i < shift + bytes;
                uint8_t byte =
                    conform_byte((rank + n - 1) % n, rank, bytes * 16 + shift, i - shift);
                EXPECT(cell[i] == (inside ? byte : 0xaa));
            }
        }
    }
    wefti_endpoint_flush(endpoint);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    wefti_region_free(endpoint, offset);
    return 0;
}

/* Lent data is read until it is given back, and no longer. */
static int loans(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    uint32_t n = endpoint->world_size, rank = endpoint->rank, next = (rank + 1) % n;
    size_t bytes = 400000, offset;
    uint8_t *data = malloc(bytes);
    wefti_signal_t *lent = calloc(1, sizeof *lent);
    (void)conform;
    EXPECT(wefti_region_alloc(endpoint, CONTROL_BYTES + bytes, &offset) == WEFT_OK);
    for (uint32_t round = 1; round <= 3; round++) {
        memset(data, (int)(rank * 16 + round), bytes);
        for (size_t part = 0; part < 4; part++) { /* several at once */
            size_t from = bytes / 4 * part;
            EXPECT(wefti_put_zero_copy(endpoint, next, offset + CONTROL_BYTES + from, data + from,
                                       bytes / 4, (uint32_t)part, lent) == WEFT_OK);
            EXPECT(wefti_signal_peer(endpoint, next, offset + part * sizeof *lent, round,
                                     (uint32_t)part) == WEFT_OK);
        }
        EXPECT(wefti_wait_signal(endpoint, lent, 0, "what is lent", NULL, NULL) == WEFT_OK);
        memset(data, 0xee, bytes);
        for (size_t part = 0; part < 4; part++) {
            wefti_signal_t *own = conform_signal(endpoint, offset + part * sizeof *own);
            EXPECT(wefti_wait_signal(endpoint, own, round, "data", NULL, NULL) == WEFT_OK);
        }
        const uint8_t *got = endpoint->region_of[rank] + offset + CONTROL_BYTES;
        for (size_t at = 0; at < bytes; at++) {
            EXPECT(got[at] == ((rank + n - 1) % n) * 16 + round);
        }
        EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    }
    wefti_endpoint_flush(endpoint);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    wefti_region_free(endpoint, offset);
    free(lent);
    free(data);
    return 0;
}

/* What went over links that put is counted on both ends. */
static int links_are_measured(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    uint32_t n = endpoint->world_size, rank = endpoint->rank;
    wefti_link_stats_t before[64], after;
    uint8_t data[5000] = {0};
    size_t offset;
    (void)conform;
    EXPECT(wefti_region_alloc(endpoint, n * sizeof data, &offset) == WEFT_OK);
    for (uint32_t r = 0; r < n; r++) {
        wefti_endpoint_link_stats(endpoint, r, &before[r]);
    }
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    for (uint32_t r = 0; r < n; r++) {
        EXPECT(wefti_put(endpoint, r, offset + rank * sizeof data, data, sizeof data, 0) ==
               WEFT_OK);
    }
    wefti_endpoint_flush(endpoint);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    for (uint32_t r = 0; r < n; r++) {
        wefti_endpoint_link_stats(endpoint, r, &after);
        if (r != rank && !wefti_endpoint_direct(endpoint, r)) {
            EXPECT(after.bytes_sent - before[r].bytes_sent == sizeof data);
            EXPECT(after.messages_sent > before[r].messages_sent);
        }
        EXPECT(r != rank || after.bytes_sent == 0);
    }
    wefti_region_free(endpoint, offset);
    return 0;
}

static int refusals(wefti_endpoint_t *endpoint, const conform_t *conform)
{
    uint32_t peer = endpoint->world_size - 1;
    size_t offset, end;
    uint8_t byte = 0;
    (void)conform;
    EXPECT(wefti_region_alloc(endpoint, 4096, &offset) == WEFT_OK);
    end = endpoint->region_bytes;
    EXPECT(wefti_put(endpoint, peer, end, &byte, 1, 0) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(wefti_put(endpoint, peer, 8, &byte, SIZE_MAX - 4, 0) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(wefti_put(endpoint, peer, SIZE_MAX, &byte, 1, 0) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(strstr(weft_last_error(), "region size") != NULL);
    EXPECT(wefti_put(endpoint, peer + 1, 0, &byte, 1, 0) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(wefti_put(endpoint, peer, 0, &byte, 1, WEFTI_LINK_LANES) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(wefti_put(endpoint, peer, 0, NULL, 1, 0) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(wefti_put(endpoint, peer, end, NULL, 0, 0) == WEFT_OK); /* nothing, at the very end */
    EXPECT(wefti_signal_peer(endpoint, peer, offset + 4, 1, 0) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(wefti_signal_peer(endpoint, peer, end, 1, 0) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(wefti_signal_peer(endpoint, peer, end - 4, 1, 0) == WEFT_ERR_INVALID_ARGUMENT);
    EXPECT(wefti_signal_peer(endpoint, peer + 1, offset, 1, 0) == WEFT_ERR_INVALID_ARGUMENT);
    wefti_region_free(endpoint, offset);
    return 0;
}

const conform_case_t conform_put_cases[] = {
    {"puts come before signals", puts_come_before_signals, NEEDS_PUT},
    {"lanes keep apart", lanes_keep_apart, NEEDS_PUT},
    {"counters wrap", counters_wrap, NEEDS_PUT},
    {"flush lands all", flush_lands_all, NEEDS_PUT},
    {"any alignment", any_alignment, NEEDS_PUT},
    {"loans", loans, NEEDS_PUT},
    {"links are measured", links_are_measured, NEEDS_PUT | NEEDS_PEERS},
    {"refusals", refusals, NEEDS_PUT},
    {NULL, NULL, 0},
};
