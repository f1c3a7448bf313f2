/* SPDX-License-Identifier: Apache-2.0 */
/* Which device, port and GID the verbs driver takes, what it asks of queue pairs, and small
 * devices. */
#include "verbs_world.h"

#include <arpa/inet.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/error.h"

/* The path between ranks 0 and 1 as people are told it. */
static const char *path_of(verbs_world_t *world, uint32_t rank, char text[256])
{
    wefti_link_verbs.describe(world->ranks[rank].driver, rank == 0 ? 1 : 0, text, 256);
    return text;
}

static void expect_path(verbs_world_t *world, const char *path)
{
    char text[256];
    weft_status_t status = verbs_world_open(world);
    if (status < 0) {
        fail_msg("%s", weft_last_error());
    }
    if (strncmp(path_of(world, 0, text), path, strlen(path)) != 0) {
        fail_msg("\"%s\" is not \"%s\"", text, path);
    }
    assert_int_equal(verbs_world_grow(world, 65536), WEFT_OK);
    assert_int_equal(wefti_link_verbs.signal(world->ranks[0].driver, 1, 64, 1, 0), WEFT_OK);
    verbs_world_flush(world);
    assert_int_equal(atomic_load(&verbs_counter(world, 1, 64)->value), 1);
    verbs_world_close(world);
}

static void expect_reason(verbs_world_t *world, const char *reason)
{
    assert_int_equal(verbs_world_open(world), WEFT_ERR_UNSUPPORTED);
    if (strstr(weft_last_error(), reason) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", weft_last_error(), reason);
    }
    verbs_world_close(world);
}

static void two_devices(verbs_world_t *world)
{
    verbs_world_init(world, 2);
    nic.device_count = 2;
    nic_gid(1, 0, IBV_GID_TYPE_ROCE_V2, "10.0.1.1");
}

static void test_names_are_patterns(void **state)
{
    verbs_world_t world;
    (void)state;
    two_devices(&world);
    snprintf(world.settings.verbs.device, sizeof world.settings.verbs.device, "other*,*1");
    expect_path(&world, "fake1 port 1 10.0.1.1 -> fake1 port 1 10.0.1.1, 2 queue pairs");
    two_devices(&world);
    snprintf(world.settings.verbs.device, sizeof world.settings.verbs.device, "fake1:1");
    expect_path(&world, "fake1 port 1");
    two_devices(&world);
    snprintf(world.settings.verbs.device, sizeof world.settings.verbs.device, "fake1:2");
    expect_reason(&world, "none of 2 RDMA devices is called 'fake1:2'");
    verbs_world_init(&world, 2);
    nic.device_count = 0;
    expect_reason(&world, "no RDMA device on this machine");
    verbs_world_init(&world, 2);
    nic.inactive[0] = true;
    expect_reason(&world, "fake0: port 1 is not active");
    verbs_world_init(&world, 2);
    nic.gid_count[0] = 0;
    expect_reason(&world, "fake0 port 1: no GID");
}

static void test_the_fastest_goes_first(void **state)
{
    verbs_world_t world;
    (void)state;
    two_devices(&world);
    nic.speed[1] = 64;
    expect_path(&world, "fake1");
    two_devices(&world);
    nic.speed[1] = 64;
    nic.inactive[1] = true;
    expect_path(&world, "fake0");
}

/* Ranks of one host take equal ones in turn. */
static void test_ranks_share_devices(void **state)
{
    verbs_world_t world;
    char text[256];
    (void)state;
    verbs_world_init(&world, 4);
    nic.device_count = 2;
    nic_gid(1, 0, IBV_GID_TYPE_ROCE_V2, "10.0.1.1");
    for (uint32_t r = 0; r < 4; r++) {
        world.host_of[r] = r / 2;
    }
    assert_int_equal(verbs_world_open(&world), WEFT_OK);
    for (uint32_t r = 0; r < 4; r++) {
        wefti_link_verbs.describe(world.ranks[r].driver, r < 2 ? 2 : 0, text, sizeof text);
        assert_int_equal(strncmp(text, r % 2 == 0 ? "fake0" : "fake1", 5), 0);
    }
    verbs_world_close(&world);
}

/* Next to the processors that the rank may run on, whatever its speed. */
static void test_the_nearest_goes_first(void **state)
{
    verbs_world_t world;
    char folder[] = "/tmp/weft-verbs-XXXXXX", device[64], list[96], text[32];
    cpu_set_t set;
    (void)state;
    uint32_t own = 0, other = 0;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    while (!CPU_ISSET(own, &set)) {
        own++;
    }
    while (CPU_ISSET(other, &set)) {
        other++;
    }
    assert_non_null(mkdtemp(folder));
    snprintf(device, sizeof device, "%s/device", folder);
    snprintf(list, sizeof list, "%s/local_cpulist", device);
    assert_int_equal(mkdir(device, 0700), 0);
    for (uint32_t near = 0; near < 2; near++) {
        FILE *file = fopen(list, "w");
        assert_non_null(file);
        snprintf(text, sizeof text, "%u-%u\n", near ? own : other, near ? own : other);
        assert_true(fputs(text, file) >= 0 && fclose(file) == 0);
        two_devices(&world);
        nic.sysfs[1] = folder;
        nic.speed[1] = 64;
        expect_path(&world, near ? "fake1" : "fake0");
    }
    unlink(list);
    rmdir(device);
    rmdir(folder);
}

/* RoCE version 2 before 1, IPv4 before IPv6 before link-local, as far as both ends have them. */
static void test_gids_follow_the_family(void **state)
{
    verbs_world_t world;
    (void)state;
    verbs_world_init(&world, 2);
    nic_gid(0, 2, IBV_GID_TYPE_ROCE_V1, "10.0.0.1");
    nic_gid(0, 3, IBV_GID_TYPE_ROCE_V2, "fd00::5");
    expect_path(&world, "fake0 port 1 10.0.0.1 ->");
    static const uint8_t mapped[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1};
    assert_memory_equal(nic.destination.raw, mapped, sizeof mapped);

    for (uint32_t v6 = 0; v6 < 2; v6++) { /* rank 1 has no IPv4 */
        verbs_world_init(&world, 2);
        if (v6) {
            nic_gid(0, 2, IBV_GID_TYPE_ROCE_V2, "fd00::5");
        }
        wefti_verbs_address_t a = {.gid_mask = 1u << WEFTI_VERBS_GID_V2_IPV4 |
                                               1u << WEFTI_VERBS_GID_V2_IPV6 |
                                               1u << WEFTI_VERBS_GID_V1},
                              b = {.gid_mask = (v6 ? 1u << WEFTI_VERBS_GID_V2_IPV6 : 0) |
                                               1u << WEFTI_VERBS_GID_V1};
        assert_int_equal(wefti_verbs_gid_common(&a, &b),
                         v6 ? WEFTI_VERBS_GID_V2_IPV6 : WEFTI_VERBS_GID_V1);
        nic.gids[0][1] = nic.gids[0][0]; /* link-local only, or before a global one */
        expect_path(&world, v6 ? "fake0 port 1 fd00::5" : "fake0 port 1 fe80::1");
    }
    verbs_world_init(&world, 2);
    world.settings.verbs.gid_index = 0;
    expect_path(&world, "fake0 port 1 fe80::1 ->");
    verbs_world_init(&world, 2);
    world.settings.verbs.gid_index = 7;
    expect_reason(&world, "fake0 port 1: no GID at index 7; set WEFT_VERBS_GID_INDEX");
}

/* Without a kind in common there is a broken link, not a broken world. */
static void test_gids_have_nothing_in_common(void **state)
{
    verbs_world_t world;
    (void)state;
    two_devices(&world);
    world.host_of[1] = 0; /* takes the second device, and then is on a host of its own again */
    nic.gid_count[0] = 1;
    nic.gid_count[1] = 0;
    nic_gid(1, 0, IBV_GID_TYPE_ROCE_V2, "10.0.1.1");
    verbs_rank_t *ranks = world.ranks;
    wefti_verbs_address_t cards[2] = {0};
    static uint8_t offers[2][512], mine[512];
    const bool peers[2][2] = {{false, true}, {true, false}};
    for (uint32_t r = 0; r < 2; r++) {
        ranks[r].settings = world.settings;
        assert_int_equal(wefti_link_verbs.open(&ranks[r].params, &ranks[r].driver, &cards[r]),
                         WEFT_OK);
    }
    size_t each = wefti_link_verbs.offer_bytes(&ranks[0].params);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(wefti_link_verbs.join(ranks[r].driver, (const uint8_t *)cards, peers[r]),
                         WEFT_OK);
        assert_int_equal(wefti_link_verbs.offer(ranks[r].driver, offers[r]), WEFT_OK);
    }
    for (uint32_t r = 0; r < 2; r++) {
        memcpy(mine + (1 - r) * each, offers[1 - r] + r * each, each);
        assert_int_equal(wefti_link_verbs.offered(ranks[r].driver, mine), WEFT_OK);
        assert_int_equal(ranks[r].breaks, 0); /* not while its owner is still opening */
        wefti_link_verbs.progress(ranks[r].driver);
        assert_int_equal(ranks[r].breaks, 1);
        assert_non_null(strstr(ranks[r].text, "no kind of GID in common"));
    }
    verbs_world_close(&world);
}

static void test_infiniband_needs_no_gid(void **state)
{
    verbs_world_t world;
    (void)state;
    verbs_world_init(&world, 2);
    nic.link_layer = IBV_LINK_LAYER_INFINIBAND;
    nic.gid_count[0] = 0;
    nic.lid = 17;
    expect_path(&world, "fake0 lid 17 -> fake0 lid 17");
}

static void test_settings_reach_queue_pairs(void **state)
{
    verbs_world_t world;
    (void)state;
    verbs_world_init(&world, 2);
    world.settings.verbs.mtu = 1024;
    world.settings.verbs.service_level = 3;
    world.settings.verbs.traffic_class = 106;
    world.settings.verbs.timeout = 19;
    world.settings.verbs.retry = 5;
    world.settings.verbs.queue_pairs = 16;
    expect_path(&world, "fake0 port 1 10.0.0.1 -> fake0 port 1 10.0.0.1, 16 queue pairs");
    assert_int_equal(nic.mtu, 1024);
    assert_int_equal(nic.service_level, 3);
    assert_int_equal(nic.traffic_class, 106);
    assert_int_equal(nic.timeout, 19);
    assert_int_equal(nic.retry, 5);
    verbs_world_init(&world, 2);
    expect_path(&world, "fake0");
    assert_int_equal(nic.mtu, 4096);
}

/* Short completion queues make short queue pairs, down to a least; little or no inline data does
 * not matter. */
static void test_small_devices(void **state)
{
    verbs_world_t world;
    (void)state;
    static const int entries[] = {400, 200, 100, 40};
    for (uint32_t i = 0; i < 4; i++) {
        verbs_world_init(&world, 2);
        nic.max_cqe = entries[i];
        expect_path(&world, "fake0");
    }
    verbs_world_init(&world, 2);
    nic.max_cqe = 39;
    expect_reason(&world, "39 completions per queue, but 2 queue pairs are required");
    verbs_world_init(&world, 2);
    nic.max_qp_wr = 10;
    expect_reason(&world, "10 requests per queue pair");
    verbs_world_init(&world, 2);
    nic.max_qp = 1;
    expect_reason(&world, "is too small: 1 queue pairs");
    verbs_world_init(&world, 2);
    nic.max_inline = 60;
    nic.refuse_inline = true;
    expect_path(&world, "fake0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_are_patterns),
        cmocka_unit_test(test_the_fastest_goes_first),
        cmocka_unit_test(test_ranks_share_devices),
        cmocka_unit_test(test_the_nearest_goes_first),
        cmocka_unit_test(test_gids_follow_the_family),
        cmocka_unit_test(test_gids_have_nothing_in_common),
        cmocka_unit_test(test_infiniband_needs_no_gid),
        cmocka_unit_test(test_settings_reach_queue_pairs),
        cmocka_unit_test(test_small_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
