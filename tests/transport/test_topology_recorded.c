/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where ranks go on machines that were recorded (tests/data/topologies), and what a fake /sys and
 * /proc say of interfaces, nodes and interrupts. The table of all placements is a golden file: with
 * WEFT_UPDATE_GOLDEN set it is written anew, to be read by a person.
 */
#include "support.h"
#include "tests/support/support_folder.h"
#include "runtime/context/context.h"
#include "runtime/machine/machine.h"
#include "transport/socket/address.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FOLDER WEFT_SOURCE_DIR "/tests/data/topologies/"
#define TABLE FOLDER "placements.txt"

static const char *const machines[] = {"one-socket", "two-sockets", "four-sockets", "eight-nodes",
                                       "eight-cards"};
#define MACHINES (sizeof machines / sizeof *machines)

static void load_machine(const char *name, wefti_cluster_t *out)
{
    char path[512];
    wefti_cluster_init(out, NULL);
    wefti_hardware_t *hardware = wefti_arena_alloc(&out->arena, sizeof *hardware);
    snprintf(path, sizeof path, FOLDER "%s.xml", name);
    if (wefti_hardware_from_xml(path, &out->arena, hardware) != WEFT_OK) {
        fail_msg("%s", weft_last_error());
    }
    assert_int_equal(wefti_cluster_add_host(out, name, hardware), WEFT_OK);
}

static void place(wefti_cluster_t *cluster, uint32_t ranks, bool cards, wefti_bind_t bind)
{
    assert_int_equal(wefti_cluster_spread(cluster, ranks), WEFT_OK);
    for (uint32_t r = 0; r < ranks && cards; r++) {
        cluster->ranks[r].card = r % cluster->hosts[0].hardware->card_count;
    }
    assert_int_equal(wefti_place_all(cluster, bind), WEFT_OK);
    wefti_place_nics(cluster);
}

static uint32_t numa_of(const wefti_hardware_t *h, const wefti_topo_rank_t *rank)
{
    uint32_t socket, numa;
    wefti_place_locate(h, rank->cpus, rank->cpu_count, &socket, &numa);
    return numa;
}

static void add_table(wefti_text_t *out, const char *name, uint32_t ranks, bool cards)
{
    wefti_cluster_t cluster;
    char list[128];
    load_machine(name, &cluster);
    place(&cluster, ranks, cards, WEFTI_BIND_CORE);
    const wefti_hardware_t *h = cluster.hosts[0].hardware;
    wefti_text_printf(out, "%s, %u ranks%s\n", name, ranks, cards ? " with cards" : "");
    for (uint32_t r = 0; r < ranks; r++) {
        const wefti_topo_rank_t *rank = &cluster.ranks[r];
        uint32_t numa = numa_of(h, rank);
        uint32_t progress =
            wefti_place_progress_cpu(h, &h->nics[rank->nic], rank->cpus, rank->cpu_count);
        wefti_text_printf(out, "  rank %2u  cpus %-12s node %-2s %s (%s), progress on %u\n", r,
                          wefti_cpulist_format(rank->cpus, rank->cpu_count, list, sizeof list),
                          numa == WEFTI_TOPO_NONE ? "-" : (char[]){(char)('0' + numa % 10), '\0'},
                          h->nics[rank->nic].name, wefti_place_nic_why(&cluster, r), progress);
    }
    wefti_cluster_deinit(&cluster);
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 20);
    if (file != NULL) {
        size_t got = fread(text, 1, (1 << 20) - 1, file);
        text[got] = '\0';
        fclose(file);
    }
    return text;
}

static void test_placements_are_those_of_the_table(void **state)
{
    (void)state;
    static const uint32_t counts[] = {1, 2, 3, 4, 5, 8};
    wefti_text_t text;
    wefti_text_init(&text, NULL);
    for (size_t m = 0; m < MACHINES; m++) {
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            add_table(&text, machines[m], counts[c], false);
        }
    }
    add_table(&text, "one-socket", 6, false); /* second threads */
    add_table(&text, "one-socket", 9, false); /* shared */
    add_table(&text, "eight-cards", 4, true);
    add_table(&text, "eight-cards", 8, true);
    assert_false(text.failed);
    if (getenv("WEFT_UPDATE_GOLDEN") != NULL) {
        FILE *file = fopen(TABLE, "w");
        assert_non_null(file);
        fputs(text.data, file);
        fclose(file);
    }
    char *golden = read_file(TABLE);
    assert_string_equal(text.data, golden);
    free(golden);
    wefti_text_deinit(&text);
}

/* What must hold however ranks are spread: equal shares, nobody's core is somebody else's, and a
 * share that fits into a node is on one. */
static void test_shares_are_equal_and_apart(void **state)
{
    (void)state;
    for (size_t m = 0; m < MACHINES; m++) {
        for (uint32_t ranks = 1; ranks <= 20; ranks++) {
            wefti_cluster_t cluster;
            uint8_t used[256] = {0};
            load_machine(machines[m], &cluster);
            place(&cluster, ranks, false, WEFTI_BIND_CORE);
            const wefti_hardware_t *h = cluster.hosts[0].hardware;
            for (uint32_t r = 0; r < ranks; r++) {
                const wefti_topo_rank_t *rank = &cluster.ranks[r];
                assert_int_equal(rank->cpu_count, cluster.ranks[0].cpu_count);
                assert_true(rank->cpu_count >= 1);
                for (uint32_t i = 0; i < rank->cpu_count; i++) {
                    uint32_t core = wefti_hardware_core_of(h, rank->cpus[i]);
                    assert_int_not_equal(core, WEFTI_TOPO_NONE);
                    assert_true(i == 0 || rank->cpus[i] > rank->cpus[i - 1]);
                    used[core]++;
                }
            }
            for (uint32_t c = 0; c < h->core_count; c++) {
                assert_true(used[c] <= (ranks + h->core_count - 1) / h->core_count);
            }
            uint32_t nodes = h->numa_count;
            if (ranks % nodes == 0 && ranks <= h->core_count) {
                for (uint32_t r = 0; r < ranks; r++) {
                    assert_int_equal(numa_of(h, &cluster.ranks[r]), r / (ranks / nodes));
                }
            }
            wefti_cluster_deinit(&cluster);
        }
    }
}

static void test_binding_to_nodes_and_to_what_is_allowed(void **state)
{
    (void)state;
    wefti_cluster_t cluster;
    load_machine("two-sockets", &cluster);
    const wefti_hardware_t *h = cluster.hosts[0].hardware;
    uint32_t *cpus, count;
    char list[64];
    assert_int_equal(
        wefti_place_cpus(h, NULL, 0, 1, 2, WEFTI_BIND_NUMA, &cluster.arena, &cpus, &count),
        WEFT_OK);
    assert_string_equal(wefti_cpulist_format(cpus, count, list, sizeof list), "4-7,12-15");
    assert_int_equal(
        wefti_place_cpus(h, NULL, 0, 1, 2, WEFTI_BIND_NONE, &cluster.arena, &cpus, &count),
        WEFT_OK);
    assert_int_equal(count, 0);
    /* What a launcher left: one core's second thread, and half of the other socket. */
    const uint32_t allowed[] = {10, 6, 7, 14, 15};
    assert_int_equal(
        wefti_place_cpus(h, allowed, 5, 0, 3, WEFTI_BIND_CORE, &cluster.arena, &cpus, &count),
        WEFT_OK);
    assert_string_equal(wefti_cpulist_format(cpus, count, list, sizeof list), "10");
    assert_int_equal(
        wefti_place_cpus(h, allowed, 5, 2, 3, WEFTI_BIND_CORE, &cluster.arena, &cpus, &count),
        WEFT_OK);
    assert_string_equal(wefti_cpulist_format(cpus, count, list, sizeof list), "7");
    /* Of processors that this machine has not, nothing comes. */
    const uint32_t none[] = {99};
    assert_int_equal(
        wefti_place_cpus(h, none, 1, 0, 1, WEFTI_BIND_CORE, &cluster.arena, &cpus, &count),
        WEFT_OK);
    assert_int_equal(count, 0);
    wefti_cluster_deinit(&cluster);
}

static void test_rails_are_numbered_alike(void **state)
{
    (void)state;
    wefti_cluster_t cluster;
    uint32_t rails[16];
    load_machine("eight-cards", &cluster);
    assert_int_equal(wefti_cluster_add_host(&cluster, "second", cluster.hosts[0].hardware),
                     WEFT_OK);
    assert_int_equal(wefti_cluster_spread(&cluster, 16), WEFT_OK);
    for (uint32_t r = 0; r < 16; r++) {
        cluster.ranks[r].card = r % 8;
    }
    assert_int_equal(wefti_place_all(&cluster, WEFTI_BIND_CORE), WEFT_OK);
    wefti_place_nics(&cluster);
    assert_int_equal(wefti_place_rails(&cluster, rails), 4);
    for (uint32_t r = 0; r < 16; r++) {
        assert_int_equal(rails[r], r % 8 / 2);
    }
    wefti_topo_link_t link = wefti_cluster_link(&cluster, 0, 1);
    assert_true(link.rails == 4 && link.bits_per_s == 800000000000ull);
    wefti_cluster_deinit(&cluster);
}

/* ---- XML that a child reads ---- */

static _Atomic uint32_t *sleepers; /* so many children to come never get further than fork() */

static void sleep_in_child(void)
{
    if (sleepers != NULL && atomic_load(sleepers) > 0) {
        atomic_fetch_sub(sleepers, 1);
        for (;;) {
            pause();
        }
    }
}

/* As a child does that needs a lock which another thread held during fork(). */
static void test_child_that_sleeps_is_replaced(void **state)
{
    (void)state;
    wefti_arena_t arena;
    wefti_hardware_t hardware;
    sleepers =
        mmap(NULL, sizeof *sleepers, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(sleepers != MAP_FAILED);
    assert_int_equal(pthread_atfork(NULL, NULL, sleep_in_child), 0);
    atomic_store(sleepers, 2);
    wefti_arena_init(&arena, NULL, 0);
    assert_int_equal(wefti_hardware_from_xml(FOLDER "one-socket.xml", &arena, &hardware), WEFT_OK);
    assert_int_equal(hardware.core_count, 4);
    assert_int_equal(atomic_load(sleepers), 0);
    wefti_arena_deinit(&arena);
}

static void test_damaged_xml_is_refused(void **state)
{
    (void)state;
    char path[] = "/tmp/weft-xml-XXXXXX";
    unsigned int seed = (unsigned int)time(NULL);
    char *text = read_file(FOLDER "one-socket.xml");
    size_t length = strlen(text);
    int fd = mkstemp(path);
    assert_true(fd >= 0 && length > 1000);
    print_message("seed %u\n", seed);
    setenv("HWLOC_HIDE_ERRORS", "2", 1);
    for (int round = 0; round < 60; round++) {
        wefti_arena_t arena;
        wefti_hardware_t hardware;
        size_t cut = round % 2 == 0 ? (size_t)rand_r(&seed) % length : length;
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, text, cut, 0), (ssize_t)cut);
        if (round % 2 != 0) { /* numbers become others */
            for (size_t at = (size_t)rand_r(&seed) % length; at < length; at += 97) {
                char digit = (char)('0' + rand_r(&seed) % 10);
                if (text[at] >= '0' && text[at] <= '9') {
                    assert_int_equal(pwrite(fd, &digit, 1, (off_t)at), 1);
                    break;
                }
            }
        }
        wefti_arena_init(&arena, NULL, 0);
        if (wefti_hardware_from_xml(path, &arena, &hardware) == WEFT_OK) {
            assert_int_equal(wefti_hardware_check(&hardware), WEFT_OK);
        } else {
            assert_int_equal(hardware.core_count, 0);
        }
        wefti_arena_deinit(&arena);
    }
    wefti_arena_t arena;
    wefti_hardware_t hardware;
    wefti_arena_init(&arena, NULL, 0);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(wefti_hardware_from_xml(path, &arena, &hardware), WEFT_ERR_FORMAT);
    assert_int_equal(wefti_hardware_from_xml("/nonexistent.xml", &arena, &hardware),
                     WEFT_ERR_NOT_FOUND);
    wefti_arena_deinit(&arena);
    close(fd);
    unlink(path);
    free(text);
}

/* ---- a system that is made up ---- */

static void test_interfaces_of_a_system(void **state)
{
    const char *root = *state;
    wefti_cluster_t cluster;
    char link[512], sys[256];
    snprintf(sys, sizeof sys, "%s", root);
    /* A card on PCI behind a switch that hwloc did not see, one of virtio, a bridge, one down. */
    test_folder_put(root, "devices/pci0000:3a/0000:3b:00.0/numa_node", "1\n");
    test_folder_put(root, "devices/pci0000:00/0000:00:03.0/virtio2/x", "");
    test_folder_put(root, "class/net/eth7/speed", "100000\n");
    test_folder_put(root, "class/net/eth7/type", "1\n");
    test_folder_put(root, "class/net/eth7/operstate", "up\n");
    test_folder_put(root, "class/net/ib9/speed", "-1\n");
    test_folder_put(root, "class/net/ib9/type", "32\n");
    test_folder_put(root, "class/net/ib9/operstate", "down\n");
    test_folder_put(root, "class/net/lo/type", "772\n");
    test_folder_put(root, "class/net/docker0/bridge/x", "");
    test_folder_put(root, "class/infiniband/mlx5_7/ports/1/gid_attrs/ndevs/0", "eth7\n");
    test_folder_put(root, "class/infiniband/mlx5_9/ports/1/gid_attrs/ndevs/0", "ib9\n");
    test_folder_put(root, "class/infiniband/mlx5_9/ports/1/rate", "200 Gb/sec (4X HDR)\n");
    snprintf(link, sizeof link, "%s/class/net/eth7/device", root);
    assert_int_equal(symlink("../../../devices/pci0000:3a/0000:3b:00.0", link), 0);
    snprintf(link, sizeof link, "%s/class/net/ib9/device", root);
    assert_int_equal(symlink("../../../devices/pci0000:00/0000:00:03.0/virtio2", link), 0);

    load_machine("two-sockets", &cluster);
    wefti_hardware_t h = *cluster.hosts[0].hardware;
    h.nics = NULL;
    h.nic_count = 0;
    assert_int_equal(wefti_interfaces_read(sys, &cluster.arena, &h), WEFT_OK);
    assert_int_equal(h.nic_count, 2);
    assert_string_equal(h.nics[0].name, "eth7");
    assert_string_equal(h.nics[0].bus, "0000:3b:00.0");
    assert_string_equal(h.nics[0].kind, "roce");
    assert_string_equal(h.nics[0].rdma, "mlx5_7");
    assert_true(h.nics[0].bits_per_s == 100000000000ull && !h.nics[0].down);
    assert_int_equal(h.nics[0].numa, 1);
    assert_int_equal(h.nics[0].socket, 1);
    assert_string_equal(h.nics[1].kind, "infiniband");
    assert_string_equal(h.nics[1].bus, "0000:00:03.0");
    assert_true(h.nics[1].bits_per_s == 200000000000ull && h.nics[1].down);
    assert_int_equal(h.nics[1].numa, WEFTI_TOPO_NONE);
    assert_int_equal(wefti_hardware_check(&h), WEFT_OK);
    wefti_cluster_deinit(&cluster);
}

/* A container: nothing is a device, ports of bridges and loopback lead nowhere. */
static void test_interfaces_of_a_container(void **state)
{
    const char *root = *state;
    wefti_arena_t arena;
    wefti_hardware_t h = {.cpu = "", .socket_count = 1};
    test_folder_put(root, "class/net/lo/operstate", "unknown\n");
    test_folder_put(root, "class/net/eth0/operstate", "up\n");
    test_folder_put(root, "class/net/eth0/speed", "10000\n");
    test_folder_put(root, "class/net/port1/master/x", "");
    test_folder_put(root, "class/net/port1/operstate", "up\n");
    test_folder_put(root, "class/net/br0/bridge/x", "");
    test_folder_put(root, "class/net/dummy0/operstate", "down\n");
    wefti_arena_init(&arena, NULL, 0);
    assert_int_equal(wefti_interfaces_read(root, &arena, &h), WEFT_OK);
    assert_int_equal(h.nic_count, 1);
    assert_string_equal(h.nics[0].name, "eth0");
    assert_true(h.nics[0].bits_per_s == 10000000000ull);
    wefti_arena_deinit(&arena);
}

static void test_patterns_of_interfaces(void **state)
{
    (void)state;
    assert_true(wefti_interface_wanted("", "eth0"));
    assert_true(wefti_interface_wanted("ib0,eth*", "eth12"));
    assert_false(wefti_interface_wanted("ib0,eth", "eth12"));
    assert_false(wefti_interface_wanted("^docker*,virbr?", "virbr0"));
    assert_true(wefti_interface_wanted("^docker*,virbr?", "virbr10"));
    assert_false(wefti_interface_wanted(",,", "eth0"));
    assert_true(wefti_interface_wanted("^", "eth0"));
}

static void test_interrupts_of_a_system(void **state)
{
    const char *root = *state;
    wefti_cluster_t cluster;
    wefti_interrupt_t *found;
    uint32_t count;
    load_machine("two-sockets", &cluster);
    const wefti_hardware_t *h = cluster.hosts[0].hardware; /* eno1 on node 0, eth0 on node 1 */
    test_folder_put(
        root, "proc/interrupts",
        "            CPU0       CPU1\n"
        "  0:         42          0   IO-APIC    2-edge      timer\n"
        " 38:          0       8130 PCI-MSIX-0000:86:00.0   0-edge      "
        "mlx5_comp0@pci:0000:86:00.0\n"
        " 39:       6822          0 PCI-MSIX-0000:86:00.0   1-edge      eth0-TxRx-1\n"
        " 40:          0          0 PCI-MSIX-0000:18:00.0   0-edge      eno1\n"
        " 41:          0          0 PCI-MSIX-0000:18:00.0   1-edge      eno12-not-ours\n"
        "NMI:          0          0   Non-maskable interrupts\n"
        "garbage\n");
    test_folder_put(root, "sys/class/net/eth0/device/msi_irqs/38", "msix\n");
    test_folder_put(root, "sys/class/net/eth0/device/msi_irqs/39", "msix\n");
    test_folder_put(root, "sys/class/net/eth0/device/msi_irqs/x", "msix\n");
    test_folder_put(root, "proc/irq/38/smp_affinity_list", "0-15\n");
    test_folder_put(root, "proc/irq/39/smp_affinity_list", "5\n");
    test_folder_put(root, "proc/irq/40/smp_affinity_list", "2\n");
    assert_int_equal(wefti_interrupts_read(root, h, &cluster.arena, &found, &count), WEFT_OK);
    assert_int_equal(count, 3);
    assert_int_equal(found[0].number, 38);
    assert_string_equal(found[0].interface, "eth0");
    assert_string_equal(found[0].name, "mlx5_comp0@pci:0000:86:00.0");
    assert_string_equal(found[0].affinity, "0-15");
    assert_string_equal(found[1].name, "eth0-TxRx-1");
    assert_string_equal(found[2].interface, "eno1");

    /* eth0's go to node 1 (4-7, 12-15), where ranks have 4 and 5; eno1's is next to it already. */
    const uint32_t avoid[] = {0, 1, 3, 4, 5};
    assert_int_equal(wefti_interrupts_bind(root, h, avoid, 5, found, count), WEFT_OK);
    char path[512], *text;
    snprintf(path, sizeof path, "%s/proc/irq/38/smp_affinity_list", root);
    text = read_file(path);
    assert_string_equal(text, "6");
    free(text);
    assert_string_equal(found[1].affinity, "7");
    assert_string_equal(found[2].affinity, "2");
    assert_string_equal(found[0].affinity, "6");
    assert_int_equal(wefti_interrupts_bind(root, h, avoid, 5, found, count), WEFT_OK);
    assert_string_equal(found[0].affinity, "6");
    assert_string_equal(found[1].affinity, "7");

    /* Not even root binds what is not there. */
    found[0].number = 77;
    found[0].affinity[0] = '\0';
    assert_int_equal(wefti_interrupts_bind(root, h, NULL, 0, found, count), WEFT_ERR_SYSTEM);
    assert_non_null(strstr(weft_last_error(), "interrupt 77 of eth0"));
    wefti_cluster_deinit(&cluster);
}

static void test_node_of_the_caller(void **state)
{
    const char *root = *state;
    uint32_t cpus[WEFTI_AFFINITY_CPUS], count = wefti_binding_read(cpus);
    char list[4096];
    assert_true(count > 0);
    assert_int_equal(wefti_binding_node(root), -1); /* nothing is known */
    test_folder_put(root, "devices/system/node/online", "0\n");
    test_folder_put(root, "devices/system/node/node0/cpulist", "0-8191\n");
    assert_int_equal(wefti_binding_node(root), -1); /* one node: nothing to prefer */
    test_folder_put(root, "devices/system/node/online", "0,3\n");
    test_folder_put(root, "devices/system/node/node0/cpulist",
                    "\n"); /* memory without processors */
    wefti_cpulist_format(cpus, count, list, sizeof list);
    test_folder_put(root, "devices/system/node/node3/cpulist", list);
    assert_int_equal(wefti_binding_node(root), 3);
    snprintf(list, sizeof list, "%u\n", cpus[count - 1] + 1);
    test_folder_put(root, "devices/system/node/node3/cpulist", list);
    assert_int_equal(wefti_binding_node(root), -1);
}

/* ---- between ranks ---- */

/* Ranks of several hosts come to one description, with everybody's processors in it. */
static int gathers(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    wefti_cluster_t cluster;
    wefti_digest_t digest, own;
    uint32_t cpus[WEFTI_AFFINITY_CPUS], count = wefti_binding_read(cpus);
    EXPECT(wefti_cluster_gather(endpoint, &cluster, &digest) == WEFT_OK);
    EXPECT(cluster.rank_count == endpoint->world_size);
    EXPECT(cluster.host_count == endpoint->host_count);
    for (uint32_t r = 0; r < cluster.rank_count; r++) {
        EXPECT(cluster.ranks[r].host == endpoint->host_of[r]);
    }
    const wefti_hardware_t *h = cluster.hosts[0].hardware;
    for (uint32_t i = 1; i < cluster.host_count; i++) {
        EXPECT(cluster.hosts[i].hardware == h); /* one machine is looked at once */
    }
    EXPECT(count > 0);
    EXPECT(h->core_count >= 1 && wefti_hardware_check(h) == WEFT_OK);
    for (uint32_t i = 0; i < count; i++) {
        EXPECT(wefti_hardware_core_of(h, cpus[i]) != WEFTI_TOPO_NONE);
    }
    EXPECT(wefti_cluster_digest(&cluster, &own) == WEFT_OK);
    EXPECT(memcmp(&own, &digest, sizeof own) == 0);
    wefti_cluster_deinit(&cluster);
    return 0;
}

static void test_ranks_gather_one_description(void **state)
{
    (void)state;
    run_processes(&(world_t){.size = 3, .fn = gathers, .settings = test_settings()});
    run_processes(&(world_t){.size = 4,
                             .fn = gathers,
                             .settings = test_settings(),
                             .transport = "auto",
                             .ranks_per_host = 2});
}

static int reads_file(wefti_endpoint_t *endpoint, void *user)
{
    const char *expected = user;
    wefti_cluster_t cluster;
    wefti_digest_t digest;
    weft_status_t status = wefti_cluster_gather(endpoint, &cluster, &digest);
    if (expected != NULL) {
        EXPECT(status < 0 && strstr(weft_last_error(), expected) != NULL);
        return 0;
    }
    EXPECT(status == WEFT_OK && cluster.host_count == 3 && cluster.rank_count == 10);
    EXPECT(cluster.hosts[0].hardware->core_count == 8);
    EXPECT(strcmp(cluster.hosts[1].name, "small") == 0);
    wefti_cluster_deinit(&cluster);
    return 0;
}

static void test_a_file_stands_in_for_discovery(void **state)
{
    (void)state;
    world_t world = {.size = 10, .fn = reads_file, .settings = test_settings()};
    snprintf(world.settings.topology, sizeof world.settings.topology, FOLDER "uneven.json");
    run_threads(&world);
    world.size = 3;
    world.user = "describes 10 ranks, the world has 3";
    run_threads(&world);
    snprintf(world.settings.topology, sizeof world.settings.topology, "/nonexistent.json");
    world.user = "WEFT_TOPOLOGY";
    run_threads(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_placements_are_those_of_the_table),
        cmocka_unit_test(test_shares_are_equal_and_apart),
        cmocka_unit_test(test_binding_to_nodes_and_to_what_is_allowed),
        cmocka_unit_test(test_rails_are_numbered_alike),
        cmocka_unit_test(test_child_that_sleeps_is_replaced),
        cmocka_unit_test(test_damaged_xml_is_refused),
        cmocka_unit_test_setup_teardown(test_interfaces_of_a_system, test_folder_make,
                                        test_folder_drop),
        cmocka_unit_test_setup_teardown(test_interfaces_of_a_container, test_folder_make,
                                        test_folder_drop),
        cmocka_unit_test(test_patterns_of_interfaces),
        cmocka_unit_test_setup_teardown(test_interrupts_of_a_system, test_folder_make,
                                        test_folder_drop),
        cmocka_unit_test_setup_teardown(test_node_of_the_caller, test_folder_make,
                                        test_folder_drop),
        cmocka_unit_test(test_ranks_gather_one_description),
        cmocka_unit_test(test_a_file_stands_in_for_discovery),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
