/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs_world.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void hear_break(void *owner, uint32_t peer, bool died, const char *text)
{
    verbs_rank_t *rank = owner;
    rank->breaks++;
    rank->broken_peer = died ? UINT32_MAX : peer;
    snprintf(rank->text, sizeof rank->text, "%s", text);
    if (getenv("WEFT_TEST_VERBS_DEVICES") != NULL) {
        print_message("rank %u lost rank %u: %s\n", rank->params.rank, peer, text);
    }
}

static void wake(void *owner)
{
    (void)owner;
}

static void ignore_peer(void *owner, uint32_t peer)
{
    (void)owner, (void)peer;
}

static void hear_log(void *user, weft_log_level_t level, const char *line)
{
    verbs_world_t *world = user;
    (void)line;
    world->warnings += level == WEFT_LOG_LEVEL_WARN;
}

void verbs_world_init(verbs_world_t *world, uint32_t size)
{
    static const uint8_t key[WEFTI_LINK_KEY_BYTES] = "what the ranks of a world know";
    nic_reset();
    memset(world, 0, sizeof *world);
    world->size = size;
    world->settings = test_settings();
    world->settings.verbs.gid_index = -1;
    world->settings.verbs.timeout = 18; /* real devices on a busy machine lose packets */
    world->settings.verbs.retry = 7;
    world->log = (wefti_log_t){hear_log, world, WEFT_LOG_LEVEL_DEBUG};
    for (uint32_t r = 0; r < size; r++) {
        verbs_rank_t *rank = &world->ranks[r];
        world->host_of[r] = r;
        rank->params = (wefti_link_params_t){
            .rank = r,
            .world_size = size,
            .host_of = world->host_of,
            .settings = &rank->settings,
            .log = &world->log,
            .key = key,
            .owner = rank,
            .broken = hear_break,
            .arriving = ignore_peer,
            .leaving = ignore_peer,
            .wake = wake,
        };
        rank->region =
            mmap(NULL, VERBS_REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(rank->region != MAP_FAILED);
    }
}

/* WEFT_TEST_VERBS_DEVICES=rxe0,rxe1: ranks take them in turn. */
static void choose_device(uint32_t rank, wefti_settings_t *settings)
{
    const char *names = getenv("WEFT_TEST_VERBS_DEVICES");
    if (names != NULL) {
        const char *second = strchr(names, ',');
        const char *from = rank % 2 == 1 && second != NULL ? second + 1 : names;
        snprintf(settings->verbs.device, sizeof settings->verbs.device, "%.*s",
                 (int)strcspn(from, ","), from);
    }
}

weft_status_t verbs_world_open(verbs_world_t *world)
{
    wefti_verbs_address_t cards[VERBS_RANKS] = {0};
    uint8_t offers[VERBS_RANKS][VERBS_RANKS * 256], for_me[VERBS_RANKS * 256];
    bool peers[VERBS_RANKS];
    weft_status_t status = WEFT_OK;
    for (uint32_t r = 0; r < world->size && status == WEFT_OK; r++) {
        world->ranks[r].params.allocator = world->allocator;
        world->ranks[r].settings = world->settings;
        choose_device(r, &world->ranks[r].settings);
        status = wefti_link_verbs.open(&world->ranks[r].params, &world->ranks[r].driver, &cards[r]);
    }
    for (uint32_t r = 0; r < world->size && status == WEFT_OK; r++) {
        for (uint32_t p = 0; p < world->size; p++) {
            peers[p] = world->host_of[p] != world->host_of[r];
        }
        status = wefti_link_verbs.join(world->ranks[r].driver, (const uint8_t *)cards, peers);
        if (status == WEFT_OK) {
            status = wefti_link_verbs.offer(world->ranks[r].driver, offers[r]);
        }
    }
    size_t each = wefti_link_verbs.offer_bytes(&world->ranks[0].params);
    assert_true(each <= 256);
    for (uint32_t r = 0; r < world->size && status == WEFT_OK; r++) {
        for (uint32_t p = 0; p < world->size; p++) {
            memcpy(for_me + p * each, offers[p] + r * each, each);
        }
        status = wefti_link_verbs.offered(world->ranks[r].driver, for_me);
    }
    return status;
}

weft_status_t verbs_world_grow(verbs_world_t *world, size_t to)
{
    wefti_verbs_key_t keys[VERBS_RANKS];
    weft_status_t status = WEFT_OK;
    for (uint32_t r = 0; r < world->size && status == WEFT_OK; r++) {
        status = wefti_link_verbs.grow(world->ranks[r].driver, world->ranks[r].region, world->grown,
                                       to, &keys[r]);
    }
    for (uint32_t r = 0; r < world->size && status == WEFT_OK; r++) {
        status = wefti_link_verbs.grown(world->ranks[r].driver, (const uint8_t *)keys);
    }
    world->grown = status == WEFT_OK ? to : world->grown;
    return status;
}

void verbs_world_close(verbs_world_t *world)
{
    for (uint32_t r = 0; r < world->size; r++) {
        wefti_link_verbs.close(world->ranks[r].driver, false);
        munmap(world->ranks[r].region, VERBS_REGION);
    }
    assert_int_equal(nic.live, 0);
    assert_int_equal(nic.wrong, 0);
}

bool verbs_world_turn(verbs_world_t *world)
{
    bool moved = false;
    for (uint32_t r = 0; r < world->size; r++) {
        moved = wefti_link_verbs.progress(world->ranks[r].driver) || moved;
    }
    return moved;
}

void verbs_world_flush(verbs_world_t *world)
{
    for (uint64_t end = wefti_now_ns() + 300000000000ull; wefti_now_ns() < end;) {
        bool done = true;
        uint32_t peer;
        verbs_world_turn(world);
        for (uint32_t r = 0; r < world->size; r++) {
            done = wefti_link_verbs.flushed(world->ranks[r].driver, &peer) && done;
        }
        if (done) {
            verbs_world_turn(world);
            return;
        }
    }
    fail_msg("something is on its way for ever");
}

wefti_signal_t *verbs_counter(verbs_world_t *world, uint32_t rank, size_t offset)
{
    return (wefti_signal_t *)(void *)(world->ranks[rank].region + offset);
}
