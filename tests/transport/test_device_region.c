/* SPDX-License-Identifier: Apache-2.0 */
/* Regions on a device whose memory the host must not touch; and allocators that fail. */
#include "support.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "tests/support/support.h"

/* A card: what is handed out as an address is a number that only the card's own calls understand.
 */
typedef struct card {
    weft_device_t base;
    _Atomic int live;      /* allocations and imports not yet given back */
    size_t capacity_bytes; /* an allocation above it fails */
    _Atomic int copies;
} card_t;

#define HIDDEN ((uintptr_t)1 << 62)

static void *hide(void *address)
{
    return (void *)((uintptr_t)address | HIDDEN);
}

static uint8_t *reveal(void *address)
{
    return (uint8_t *)((uintptr_t)address & ~HIDDEN);
}

static weft_status_t card_alloc(weft_device_t *device, size_t bytes, void **out_address)
{
    card_t *card = (card_t *)device;
    void *memory = bytes <= card->capacity_bytes ? calloc(1, bytes) : NULL;
    if (memory == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "card full");
    }
    card->live++;
    *out_address = hide(memory);
    return WEFT_OK;
}

static void card_free(weft_device_t *device, void *address)
{
    ((card_t *)device)->live--;
    free(reveal(address));
}

static weft_status_t card_export(weft_device_t *device, void *address, uint8_t out_handle[64])
{
    (void)device;
    memset(out_handle, 0xa5, 64);
    memcpy(out_handle, &address, sizeof address);
    return WEFT_OK;
}

static weft_status_t card_import(weft_device_t *device, const uint8_t handle[64],
                                 void **out_address)
{
    if (handle[63] != 0xa5) {
        return wefti_error(WEFT_ERR_FORMAT, "not a handle");
    }
    ((card_t *)device)->live++;
    memcpy(out_address, handle, sizeof *out_address);
    return WEFT_OK;
}

static void card_unimport(weft_device_t *device, void *address)
{
    (void)address;
    ((card_t *)device)->live--;
}

static weft_status_t card_queue_create(weft_device_t *device, weft_queue_t **out_queue)
{
    *out_queue = (weft_queue_t *)device;
    return WEFT_OK;
}

static void card_queue_destroy(weft_queue_t *queue)
{
    (void)queue;
}

static weft_status_t card_copy(weft_queue_t *queue, void *dst, const void *src, size_t bytes)
{
    ((card_t *)(void *)queue)->copies++;
    memcpy(reveal(dst), src, bytes);
    return WEFT_OK;
}

static weft_status_t card_done(weft_queue_t *queue)
{
    (void)queue;
    return WEFT_OK;
}

static const weft_device_ops_t card_ops = {.abi_version = WEFT_DEVICE_ABI_VERSION,
                                           .name = "card",
                                           .caps = WEFT_DEVICE_PEER_DIRECT,
                                           .mem_alloc = card_alloc,
                                           .mem_free = card_free,
                                           .mem_export = card_export,
                                           .mem_import = card_import,
                                           .mem_unimport = card_unimport,
                                           .queue_create = card_queue_create,
                                           .queue_destroy = card_queue_destroy,
                                           .copy = card_copy,
                                           .flush = card_done,
                                           .query = card_done};

static int with_side(wefti_endpoint_t *endpoint, weft_device_t *device,
                     int (*fn)(wefti_endpoint_t *side))
{
    wefti_endpoint_t *side;
    EXPECT(wefti_endpoint_device_side(endpoint, device, &side) == WEFT_OK);
    int result = fn(side);
    wefti_endpoint_device_side_close(side);
    return result;
}

static int use_side(wefti_endpoint_t *endpoint)
{
    size_t a, b, c;
    uint32_t n = endpoint->world_size, rank = endpoint->rank;
    EXPECT(wefti_region_alloc(endpoint, 10000, &a) == WEFT_OK);
    EXPECT(wefti_region_alloc(endpoint, 3u << 20, &b) == WEFT_OK);
    EXPECT(a == 0 && b == 12288);
    for (uint32_t r = 0; r < n; r++) {
        EXPECT((uintptr_t)endpoint->region_of[r] & HIDDEN);
        reveal(endpoint->region_of[r] + a)[rank] = (uint8_t)(rank + 1);
    }
    memset(reveal(endpoint->region_of[rank] + b), 0xee, 3u << 20);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    for (uint32_t r = 0; r < n; r++) {
        EXPECT(reveal(endpoint->region_of[rank] + a)[r] == r + 1);
    }
    /* Used memory is cleared by the card's own copies. */
    wefti_region_free(endpoint, b);
    EXPECT(wefti_region_alloc(endpoint, 3u << 20, &c) == WEFT_OK);
    EXPECT(c == b);
    for (size_t i = 0; i < 3u << 20; i++) {
        EXPECT(reveal(endpoint->region_of[rank] + c)[i] == 0);
    }
    /* A card's memory does not grow: all ranks learn of it, and go on. */
    EXPECT(wefti_region_alloc(endpoint, 63u << 20, &c) == WEFT_ERR_NO_MEMORY);
    EXPECT(wefti_endpoint_barrier(endpoint) == WEFT_OK);
    return 0;
}

static int use_card(wefti_endpoint_t *endpoint, void *user)
{
    return with_side(endpoint, user, use_side);
}

static void test_region_on_card(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        card_t card = {.base = {&card_ops}, .capacity_bytes = (size_t)20 << 20};
        run_threads(
            &(world_t){.size = n, .fn = use_card, .settings = test_settings(), .user = &card.base});
        assert_int_equal(card.live, 0);
        assert_true(card.copies > 0);
    }
}

static int fill_side(wefti_endpoint_t *endpoint)
{
    size_t offset;
    EXPECT(wefti_region_alloc(endpoint, 8192, &offset) == WEFT_ERR_NO_MEMORY);
    EXPECT(strstr(weft_last_error(), "rank 0: out of memory: device card") != NULL);
    return 0;
}

static int card_is_full(wefti_endpoint_t *endpoint, void *user)
{
    return with_side(endpoint, user, fill_side);
}

static void test_region_card_is_full(void **state)
{
    (void)state;
    card_t card = {.base = {&card_ops}, .capacity_bytes = 4096};
    run_threads(
        &(world_t){.size = 2, .fn = card_is_full, .settings = test_settings(), .user = &card.base});
    assert_int_equal(card.live, 0);
}

typedef struct seat {
    weft_hub_t *hub;
    const char *address;
    uint32_t rank, world_size;
    uint64_t fail_at, live;
    weft_status_t status;
    pthread_t thread;
} seat_t;

static void *failing_main(void *argument)
{
    seat_t *seat = argument;
    test_memory_t memory;
    wefti_settings_t settings = test_settings();
    settings.timeout_ns = 60000000000ull;
    wefti_log_t log = {.level = WEFT_LOG_LEVEL_ERROR};
    wefti_endpoint_params_t params = {.rank = seat->rank,
                                      .world_size = seat->world_size,
                                      .hub = seat->hub,
                                      .address = seat->address,
                                      .settings = &settings,
                                      .log = &log,
                                      .allocator = &memory.allocator};
    wefti_endpoint_t *endpoint;
    size_t offset;
    test_memory_init(&memory);
    test_memory_fail(&memory, UINT64_MAX, seat->fail_at);
    seat->status = wefti_endpoint_open(&params, &endpoint);
    for (int i = 0; seat->status == WEFT_OK && i < 10; i++) {
        seat->status = wefti_region_alloc(endpoint, 4096, &offset);
    }
    wefti_endpoint_close(endpoint);
    seat->live = memory.live_blocks;
    return NULL;
}

/* Every allocation fails once, on all ranks at the same place: no leak, no crash, no hang. */
static void sweep(uint32_t world_size, bool processes)
{
    int passed = 0;
    for (uint64_t fail_at = 0; fail_at < 100 && !passed; fail_at++) {
        seat_t seats[3];
        char address[64];
        weft_hub_t *hub = NULL;
        int fds = open_fd_count();
        new_address(address, sizeof address);
        if (!processes) {
            assert_int_equal(weft_hub_create(world_size, &hub), WEFT_OK);
        }
        for (uint32_t r = 0; r < world_size; r++) {
            seats[r] = (seat_t){hub, address, r, world_size, fail_at, 0, WEFT_OK, 0};
            assert_int_equal(pthread_create(&seats[r].thread, NULL, failing_main, &seats[r]), 0);
        }
        passed = 1;
        for (uint32_t r = 0; r < world_size; r++) {
            pthread_join(seats[r].thread, NULL);
            assert_int_equal(seats[r].live, 0);
            passed &= seats[r].status == WEFT_OK;
        }
        weft_hub_destroy(hub);
        assert_int_equal(open_fd_count(), fds);
    }
    assert_true(passed);
}

static void test_region_allocations_fail(void **state)
{
    (void)state;
    sweep(1, true);
    sweep(3, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_region_on_card),
        cmocka_unit_test(test_region_card_is_full),
        cmocka_unit_test(test_region_allocations_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
