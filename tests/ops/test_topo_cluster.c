/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters as files and as bytes: what is read, what is refused, and what survives going through.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <weft/status.h>

#include "runtime/machine/draw.h"
#include "runtime/machine/place.h"
#include "tests/ops/support_hosts.h"
#include "tests/support/support.h"

static const char two_hosts[] =
    "{\"format\": 1, \"name\": \"two\", \"hosts\": ["
    "{\"name\": \"a\", \"ranks\": [0, 2, 4], \"cpu\": \"Example\", \"cores\": 8, \"threads\": 2,"
    " \"sockets\": 2, \"l3_bytes\": 1048576, \"numa\": [1073741824, {\"bytes\": 2, \"os\": 4}],"
    " \"nics\": [{\"name\": \"eth0\", \"kind\": \"roce\", \"rdma\": \"mlx5_0\", \"bus\": "
    "\"0000:3b:00.0\", \"gbit_per_s\": 25, \"numa\": 1, \"switch\": 3},"
    " {\"name\": \"eth1\", \"gbit_per_s\": 25, \"down\": true}],"
    " \"cards\": [{\"name\": \"card0\", \"socket\": 0}],"
    " \"binding\": [\"0-1\", \"4\", \"\"], \"rank_cards\": [0, null, null]},"
    "{\"name\": \"b\", \"like\": \"a\", \"ranks\": [1, 3]}],"
    "\"link\": {\"gbit_per_s\": 10, \"latency_us\": 5},"
    "\"links\": [{\"hosts\": [\"b\", 0], \"gbit_per_s\": 40, \"rails\": 2}]}";

static weft_status_t decode(const char *text, wefti_cluster_t *out)
{
    return wefti_cluster_decode(text, strlen(text), NULL, NULL, NULL, out);
}

static void check_two_hosts(const wefti_cluster_t *cluster)
{
    const wefti_hardware_t *h = cluster->hosts[0].hardware;
    assert_int_equal(cluster->host_count, 2);
    assert_int_equal(cluster->rank_count, 5);
    assert_ptr_equal(cluster->hosts[1].hardware, h);
    assert_int_equal(cluster->ranks[3].host, 1);
    assert_int_equal(cluster->hosts[0].ranks[2], 4);
    assert_int_equal(cluster->ranks[0].cpu_count, 2);
    assert_int_equal(cluster->ranks[2].cpus[0], 4);
    assert_int_equal(cluster->ranks[4].cpu_count, 0);
    assert_int_equal(cluster->ranks[0].card, 0);
    assert_int_equal(cluster->ranks[2].card, WEFTI_TOPO_NONE);
    assert_int_equal(h->core_count, 8);
    assert_int_equal(h->cpu_count, 16);
    assert_int_equal(h->cpus[h->cores[3].first_cpu + 1], 11);
    assert_int_equal(h->cores[4].socket, 1);
    assert_int_equal(h->numa_count, 2);
    assert_int_equal(h->numas[1].os_index, 4);
    assert_true(h->numas[0].memory_bytes == 1u << 30 && h->l3_bytes == 1u << 20);
    assert_int_equal(h->nic_count, 2);
    assert_string_equal(h->nics[0].rdma, "mlx5_0");
    assert_true(h->nics[0].bits_per_s == 25000000000ull && h->nics[1].down);
    assert_int_equal(h->nics[0].numa, 1);
    assert_int_equal(h->nics[0].pci_switch, 3);
    assert_int_equal(h->nics[1].numa, WEFTI_TOPO_NONE);
    assert_int_equal(h->cards[0].socket, 0);
}

static void test_cluster_is_read(void **state)
{
    (void)state;
    wefti_cluster_t cluster;
    assert_int_equal(decode(two_hosts, &cluster), WEFT_OK);
    check_two_hosts(&cluster);
    wefti_topo_link_t link = wefti_cluster_link(&cluster, 0, 1);
    assert_true(link.bits_per_s == 40000000000ull && link.rails == 2);
    char summary[64];
    assert_string_equal(wefti_cluster_summary(&cluster, summary, sizeof summary),
                        "2 hosts, 3 + 2 ranks, round-robin");
    wefti_topology_t runs;
    assert_int_equal(wefti_topology_from_cluster(&cluster, NULL, &runs), WEFT_OK);
    assert_int_equal(runs.host_count, 5);
    wefti_topology_deinit(&runs);
    wefti_cluster_deinit(&cluster);
}

/* Writing and reading again, twice, gives the same text and the same digest. */
static void encode(const wefti_cluster_t *cluster, wefti_text_t *out)
{
    wefti_json_t json;
    wefti_json_init(&json, out, true);
    wefti_json_begin_object(&json, NULL);
    wefti_cluster_write(cluster, &json);
    wefti_json_end_object(&json);
}

static void test_cluster_survives_its_file(void **state)
{
    (void)state;
    /* Cores that are not regular are written one by one. */
    static const char odd[] =
        "{\"format\": 1, \"hosts\": [{\"name\": \"x\", \"ranks\": 2, \"cores\": ["
        "{\"cpus\": \"0\", \"numa\": 1}, {\"cpus\": \"2,5\", \"numa\": 0, \"l3\": 0}]}, 3]}";
    const char *const texts[] = {two_hosts, odd};
    for (size_t i = 0; i < 2; i++) {
        wefti_cluster_t first, second;
        wefti_text_t once, twice;
        wefti_digest_t digests[2];
        assert_int_equal(decode(texts[i], &first), WEFT_OK);
        wefti_text_init(&once, NULL);
        wefti_text_init(&twice, NULL);
        encode(&first, &once);
        assert_int_equal(decode(once.data, &second), WEFT_OK);
        encode(&second, &twice);
        assert_string_equal(once.data, twice.data);
        assert_int_equal(wefti_cluster_digest(&first, &digests[0]), WEFT_OK);
        assert_int_equal(wefti_cluster_digest(&second, &digests[1]), WEFT_OK);
        assert_memory_equal(&digests[0], &digests[1], sizeof digests[0]);
        if (i == 0) {
            check_two_hosts(&second);
        }
        wefti_cluster_deinit(&first);
        wefti_cluster_deinit(&second);
        wefti_text_deinit(&once);
        wefti_text_deinit(&twice);
    }
}

static void test_hostile_files_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *hosts, *why;
    } rows[] = {
        {"[]", "not a topology description"},
        {"[0]", "'ranks' is missing"},
        {"[1.5]", "'ranks' is missing"},
        {"[-1]", "'ranks' is missing"},
        {"[70000]", "'ranks' is missing"},
        {"[\"a\"]", "'ranks' is missing"},
        {"[1, {\"name\": \"b\"}]", "'ranks' is missing"},
        {"[{\"name\": \"\"}]", "1 to 63 characters"},
        {"[{\"ranks\": [0, 0]}]", "duplicate rank 0: on hosts 0 and 0"},
        {"[{\"ranks\": [0, 2]}]", "rank 1 is on no host"},
        {"[{\"ranks\": [0]}, {\"ranks\": [0]}]", "duplicate rank 0: on hosts 0 and 1"},
        {"[{\"ranks\": [1e9]}]", "'ranks' is missing"},
        {"[{\"like\": \"a\"}]", "no host before it is called"},
        {"[{\"hwloc\": \"a.xml\"}]", "convert them with `weft topo`"},
        {"[{\"cores\": 0}]", "invalid machine"},
        {"[{\"cores\": 99999999}]", "key 'cores': expected an integer"},
        {"[{\"cores\": 65536, \"threads\": 16}]", "invalid machine"},
        {"[{\"cores\": 4, \"sockets\": 5}]", "invalid machine"},
        {"[{\"cores\": []}]", "key 'cores': expected 1 to"},
        {"[{\"cores\": [{}]}]", "cores: 0: key 'cpus' is missing"},
        {"[{\"cores\": [{\"cpus\": \"3-1\"}]}]", "invalid cpu list"},
        {"[{\"cores\": [{\"cpus\": \"0-99\"}]}]", "too many cpus on one core: 100"},
        {"[{\"cores\": [{\"cpus\": \"999999999\"}]}]", "invalid cpu list"},
        {"[{\"cores\": [{\"cpus\": \"0\"}, {\"cpus\": \"0\"}]}]", "cpu 0 is on two cores"},
        {"[{\"cores\": [{\"cpus\": \"0\", \"l3\": 7}]}]", "core 0"},
        {"[{\"cores\": 2, \"numa\": [1, 2]}]", "expected a list of the 1 NUMA nodes"},
        {"[{\"cores\": 2, \"nics\": 3}]", "key 'nics': expected a list"},
        {"[{\"cores\": 2, \"nics\": [{}]}]", "the name is missing"},
        {"[{\"cores\": 2, \"nics\": [{\"name\": \"e\", \"numa\": 1}]}]", "NUMA node"},
        {"[{\"cores\": 2, \"nics\": [{\"name\": \"e\", \"gbit_per_s\": -1}]}]",
         "expected a number from 0"},
        {"[{\"ranks\": 2, \"binding\": [\"0\"]}]", "one entry for each of its 2 ranks"},
        {"[{\"ranks\": 1, \"binding\": [7]}]", "invalid cpu list"},
        {"[{\"ranks\": 1, \"rank_cards\": [0]}]", "unknown device"},
        {"[2], \"links\": 3", "key 'links': expected a list"},
        {"[2], \"links\": [{\"hosts\": [0, 0]}]", "the two hosts must differ"},
        {"[2], \"links\": [{\"hosts\": [0, \"x\"]}]", "expected host names"},
        {"[2], \"links\": [{\"hosts\": [0]}]", "expected two hosts"},
        {"[2], \"link\": 7", "link: expected an object"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512];
        wefti_cluster_t cluster;
        snprintf(text, sizeof text, "{\"format\": 1, \"hosts\": %s}", rows[i].hosts);
        weft_status_t status = decode(text, &cluster);
        if (status != WEFT_ERR_FORMAT && status != WEFT_ERR_UNSUPPORTED) {
            fail_msg("%s is taken", text);
        }
        if (strstr(weft_last_error(), rows[i].why) == NULL) {
            fail_msg("%s: '%s' does not say '%s'", text, weft_last_error(), rows[i].why);
        }
        assert_null(cluster.hosts);
    }
}

static unsigned int seed_of_run(void)
{
    const char *text = getenv("WEFT_TEST_SEED");
    unsigned int seed =
        text != NULL ? (unsigned int)strtoul(text, NULL, 10) : (unsigned int)time(NULL);
    print_message("seed %u (WEFT_TEST_SEED)\n", seed);
    return seed;
}

/* Damaged files and messages end in an error or in something whose numbers hold together. */
static void test_damaged_files_and_messages(void **state)
{
    (void)state;
    unsigned int seed = seed_of_run();
    wefti_cluster_t cluster;
    wefti_text_t message;
    assert_int_equal(decode(two_hosts, &cluster), WEFT_OK);
    wefti_text_init(&message, NULL);
    assert_int_equal(wefti_hardware_encode(cluster.hosts[0].hardware, &message), WEFT_OK);
    for (int round = 0; round < 3000; round++) {
        char text[sizeof two_hosts];
        wefti_cluster_t other;
        memcpy(text, two_hosts, sizeof text);
        for (int k = 0; k < 1 + round % 3; k++) {
            text[(size_t)rand_r(&seed) % (sizeof text - 1)] =
                "0123456789{}[],:\"x-e"[rand_r(&seed) % 20];
        }
        if (decode(text, &other) == WEFT_OK) {
            wefti_place_nics(&other);
            wefti_text_t drawing;
            wefti_text_init(&drawing, NULL);
            wefti_cluster_draw(&other, 80, &drawing);
            wefti_text_deinit(&drawing);
        }
        wefti_cluster_deinit(&other);
    }
    char *text = malloc(message.length);
    for (int round = 0; round < 20000; round++) {
        wefti_arena_t arena;
        wefti_hardware_t hardware;
        memcpy(text, message.data, message.length);
        for (int k = 0; k < 1 + round % 3; k++) {
            text[(size_t)rand_r(&seed) % message.length] =
                round % 2 == 0 ? (char)rand_r(&seed) : "0123456789-,:\"x"[rand_r(&seed) % 15];
        }
        size_t length = round % 4 == 0 ? (size_t)rand_r(&seed) % message.length : message.length;
        wefti_arena_init(&arena, NULL, 64u << 20);
        if (wefti_hardware_decode(text, length, &arena, &hardware) == WEFT_OK) {
            assert_int_equal(wefti_hardware_check(&hardware), WEFT_OK);
        }
        wefti_arena_deinit(&arena);
    }
    free(text);
    wefti_text_deinit(&message);
    wefti_cluster_deinit(&cluster);
}

/* Sends hardware and compares what arrives: its message is the same. */
static size_t send_hardware(const wefti_hardware_t *hardware, wefti_arena_t *arena,
                            wefti_hardware_t *arrived)
{
    wefti_text_t once, twice;
    wefti_text_init(&once, NULL);
    wefti_text_init(&twice, NULL);
    assert_int_equal(wefti_hardware_encode(hardware, &once), WEFT_OK);
    assert_int_equal(wefti_hardware_decode(once.data, once.length, arena, arrived), WEFT_OK);
    assert_int_equal(wefti_hardware_encode(arrived, &twice), WEFT_OK);
    assert_string_equal(once.data, twice.data);
    size_t length = once.length;
    wefti_text_deinit(&once);
    wefti_text_deinit(&twice);
    return length;
}

static void test_hardware_survives_sending(void **state)
{
    (void)state;
    const wefti_regular_t shapes[] = {
        {1, 1, 0, 0, 1, 1, false}, {2, 8, 16, 128, 128, 2, false}, {4, 4, 4, 32, 64, 4, true}};
    for (size_t i = 0; i < 3; i++) {
        wefti_arena_t arena;
        wefti_hardware_t first, second;
        wefti_regular_t shape;
        wefti_arena_init(&arena, NULL, 0);
        assert_int_equal(wefti_hardware_make(&shapes[i], &arena, &first), WEFT_OK);
        assert_true(wefti_hardware_is_regular(&first, &shape));
        assert_memory_equal(&shape.sockets, &shapes[i].sockets, 6 * sizeof(uint32_t));
        /* That is why it may be sent to everybody. */
        assert_true(send_hardware(&first, &arena, &second) < 500);
        assert_memory_equal(first.cores, second.cores, first.core_count * sizeof *first.cores);
        assert_memory_equal(first.cpus, second.cpus, first.cpu_count * sizeof *first.cpus);
        wefti_arena_deinit(&arena);
    }
}

/* NUMA nodes without cores: memory of devices, or on a socket whose cores this process may not use.
 */
static void test_nodes_of_memory_only(void **state)
{
    (void)state;
    wefti_arena_t arena;
    wefti_hardware_t first, second;
    wefti_topo_numa_t numas[] = {{0, 0, 1u << 30}, {2, 1, 1u << 30}, {3, WEFTI_TOPO_NONE, 0}};
    wefti_arena_init(&arena, NULL, 0);
    const wefti_regular_t shape = {1, 1, 1, 2, 2, 1, false};
    assert_int_equal(wefti_hardware_make(&shape, &arena, &first), WEFT_OK);
    first.numas = numas;
    first.numa_count = 3;
    first.socket_count = 2;
    assert_int_equal(wefti_hardware_check(&first), WEFT_OK);
    (void)send_hardware(&first, &arena, &second);
    assert_int_equal(second.numa_count, 3);
    assert_int_equal(second.socket_count, 2);
    assert_int_equal(second.numas[1].os_index, 2);
    assert_int_equal(second.numas[1].socket, 1);
    assert_int_equal(second.numas[2].socket, WEFTI_TOPO_NONE);
    wefti_arena_deinit(&arena);
}

static void test_lists_of_processors(void **state)
{
    (void)state;
    static const char *const good[] = {"", "0", "0-3", "0-3,8", "1,3,5-7"};
    static const char *const bad[] = {"-", "1-", "a", "3,1", "1,,2", "1,", "0-3x", "4096"};
    wefti_arena_t arena;
    uint32_t *cpus, count;
    char text[64];
    wefti_arena_init(&arena, NULL, 0);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(wefti_cpulist_parse(good[i], 4096, &arena, &cpus, &count), WEFT_OK);
        assert_string_equal(wefti_cpulist_format(cpus, count, text, sizeof text), good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(wefti_cpulist_parse(bad[i], 4096, &arena, &cpus, &count), WEFT_ERR_FORMAT);
    }
    wefti_arena_deinit(&arena);
}

static void test_links_and_placements(void **state)
{
    (void)state;
    wefti_cluster_t cluster;
    wefti_digest_t digests[2];
    char summary[64];
    /* Without words on links, interfaces say what there is: slow ones are for logging in. */
    assert_int_equal(decode("{\"format\": 1, \"hosts\": [{\"name\": \"a\", \"cores\": 8, \"nics\": "
                            "[{\"name\": \"x\", \"gbit_per_s\": 100}, {\"name\": \"y\", "
                            "\"gbit_per_s\": 100}, {\"name\": \"z\", \"gbit_per_s\": 1}]}, "
                            "{\"name\": \"b\", \"cores\": 4, \"nics\": [{\"name\": \"x\", "
                            "\"gbit_per_s\": 50}]}]}",
                            &cluster),
                     WEFT_OK);
    wefti_topo_link_t link = wefti_cluster_link(&cluster, 0, 1);
    assert_true(link.bits_per_s == 50000000000ull && link.rails == 1);
    assert_int_equal(wefti_cluster_slowest_link(&cluster).rails, 0); /* no ranks yet */
    assert_int_equal(wefti_cluster_spread(&cluster, 6), WEFT_OK);
    assert_int_equal(cluster.hosts[0].rank_count, 4);
    assert_int_equal(cluster.hosts[1].rank_count, 2);
    assert_string_equal(wefti_cluster_summary(&cluster, summary, sizeof summary),
                        "2 hosts, 4 + 2 ranks");
    assert_true(wefti_cluster_slowest_link(&cluster).bits_per_s == 50000000000ull);
    assert_int_equal(wefti_cluster_placement_digest(&cluster, &digests[0]), WEFT_OK);
    /* The same ranks together, on hosts that are numbered the other way round. */
    const uint32_t same[] = {1, 1, 1, 1, 0, 0}, other[] = {0, 1, 0, 1, 0, 1};
    assert_int_equal(wefti_cluster_set_ranks(&cluster, same, 6), WEFT_OK);
    assert_int_equal(wefti_cluster_placement_digest(&cluster, &digests[1]), WEFT_OK);
    assert_memory_equal(&digests[0], &digests[1], sizeof digests[0]);
    assert_int_equal(wefti_cluster_set_ranks(&cluster, other, 6), WEFT_OK);
    assert_int_equal(wefti_cluster_placement_digest(&cluster, &digests[1]), WEFT_OK);
    assert_memory_not_equal(&digests[0], &digests[1], sizeof digests[0]);
    assert_string_equal(wefti_cluster_summary(&cluster, summary, sizeof summary),
                        "2 hosts x 3 ranks, round-robin");
    /* Racks with one host each are another placement than one rack for both. */
    cluster.hosts[0].rack = cluster.hosts[1].rack = 5;
    assert_int_equal(wefti_cluster_placement_digest(&cluster, &digests[0]), WEFT_OK);
    assert_memory_equal(&digests[0], &digests[1], sizeof digests[0]);
    cluster.hosts[1].rack = 2;
    assert_int_equal(wefti_cluster_placement_digest(&cluster, &digests[0]), WEFT_OK);
    assert_memory_not_equal(&digests[0], &digests[1], sizeof digests[0]);
    assert_string_equal(wefti_cluster_summary(&cluster, summary, sizeof summary),
                        "2 hosts x 3 ranks, round-robin, 2 racks");
    wefti_cluster_deinit(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cluster_is_read),
        cmocka_unit_test(test_cluster_survives_its_file),
        cmocka_unit_test(test_hostile_files_are_refused),
        cmocka_unit_test(test_damaged_files_and_messages),
        cmocka_unit_test(test_hardware_survives_sending),
        cmocka_unit_test(test_nodes_of_memory_only),
        cmocka_unit_test(test_lists_of_processors),
        cmocka_unit_test(test_links_and_placements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
