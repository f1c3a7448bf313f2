/* SPDX-License-Identifier: Apache-2.0 */
/* The machine, the share of it that each rank gets, and who may spin. */
#include "support.h"
#include "runtime/machine/machine.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

static void test_topology_machine_is_discovered(void **state)
{
    (void)state;
    wefti_arena_t arena;
    wefti_hardware_t machine;
    wefti_arena_init(&arena, NULL, 0);
    assert_int_equal(wefti_hardware_discover(false, &arena, &machine), WEFT_OK);
    assert_true(machine.cpu_count >= machine.core_count && machine.core_count >= 1);
    assert_true(machine.core_count >= machine.socket_count && machine.socket_count >= 1);
    assert_true(machine.numa_count >= 1);
    /* What the kernel says, read another way. */
    assert_true(machine.cpu_count <= (uint32_t)sysconf(_SC_NPROCESSORS_CONF));
    wefti_arena_deinit(&arena);
}

/* The first processors of those that rank of count gets; returns their number. */
static uint32_t choose(uint32_t rank, uint32_t count, uint32_t *out_cpus, uint32_t capacity)
{
    wefti_arena_t arena;
    uint32_t *cpus, found;
    wefti_arena_init(&arena, NULL, 0);
    assert_int_equal(wefti_binding_choose(rank, count, WEFTI_BIND_CORE, &arena, &cpus, &found),
                     WEFT_OK);
    for (uint32_t i = 0; i < found && i < capacity; i++) {
        out_cpus[i] = cpus[i];
    }
    wefti_arena_deinit(&arena);
    return found;
}

/* Cores with a processor that this thread may use. */
static uint32_t count_cores(const cpu_set_t *allowed)
{
    wefti_arena_t arena;
    wefti_hardware_t hardware;
    uint32_t count = 0;
    wefti_arena_init(&arena, NULL, 0);
    assert_int_equal(wefti_hardware_discover(false, &arena, &hardware), WEFT_OK);
    for (uint32_t c = 0; c < hardware.core_count; c++) {
        bool usable = false;
        for (uint32_t t = 0; t < hardware.cores[c].cpu_count; t++) {
            uint32_t number = hardware.cpus[hardware.cores[c].first_cpu + t];
            usable = usable || (number < CPU_SETSIZE && CPU_ISSET(number, allowed));
        }
        count += usable;
    }
    wefti_arena_deinit(&arena);
    return count;
}

static void test_topology_shares(void **state)
{
    (void)state;
    cpu_set_t allowed;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    uint32_t available = (uint32_t)CPU_COUNT(&allowed), cores = count_cores(&allowed);
    for (uint32_t count = 1; count <= 2 * available + 1 && count < 40; count++) {
        uint32_t users[CPU_SETSIZE] = {0}, most = 0, shares = 0;
        for (uint32_t rank = 0; rank < count; rank++) {
            uint32_t cpus[CPU_SETSIZE];
            uint32_t got = choose(rank, count, cpus, CPU_SETSIZE);
            /* Equal for all, one processor of a core; sockets and caches may cost a quarter. */
            shares = rank == 0 ? got : shares;
            assert_int_equal(got, shares);
            assert_true(got >= 1 && (got == 1 || got * count <= cores));
            assert_true(got * 4 >= cores / count * 3);
            for (uint32_t i = 0; i < got; i++) {
                assert_true(CPU_ISSET(cpus[i], &allowed));
                users[cpus[i]]++;
                most = users[cpus[i]] > most ? users[cpus[i]] : most;
            }
        }
        assert_int_equal(most, (count + available - 1) / available);
    }
    uint32_t cpu;
    assert_int_equal(choose(0, 0, &cpu, 1), 0);
    assert_int_equal(choose(3, 3, &cpu, 1), 0);
}

static void test_topology_pin(void **state)
{
    (void)state;
    cpu_set_t before, now;
    uint32_t cpu, missing = CPU_SETSIZE;
    sched_getaffinity(0, sizeof before, &before);
    assert_true(choose(0, 1, &cpu, 1) >= 1);
    assert_int_equal(wefti_pin_thread(&cpu, 1), WEFT_OK);
    sched_getaffinity(0, sizeof now, &now);
    assert_int_equal(CPU_COUNT(&now), 1);
    assert_true(CPU_ISSET(cpu, &now));
    /* Within its own affinity a thread now has one processor, however many ranks share it. */
    uint32_t cpus[4];
    assert_int_equal(choose(5, 7, cpus, 4), 1);
    assert_int_equal(cpus[0], cpu);
    assert_int_equal(wefti_pin_thread(&missing, 1), WEFT_ERR_INVALID_ARGUMENT);
    assert_int_equal(wefti_pin_thread(&cpu, 0), WEFT_ERR_SYSTEM);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static int must_not_spin(wefti_endpoint_t *endpoint, void *user)
{
    (void)user;
    EXPECT(!endpoint->may_spin && endpoint->free_cores == 0);
    return 0;
}

static int reports_spinning(wefti_endpoint_t *endpoint, void *user)
{
    bool *expected = user;
    EXPECT(endpoint->may_spin == *expected);
    return 0;
}

static void test_topology_who_spins(void **state)
{
    (void)state;
    cpu_set_t before;
    uint32_t cpu;
    world_t world = {.size = 2, .fn = must_not_spin, .settings = test_settings()};
    sched_getaffinity(0, sizeof before, &before);
    /* Two ranks on one processor. */
    assert_true(choose(0, 1, &cpu, 1) >= 1);
    assert_int_equal(wefti_pin_thread(&cpu, 1), WEFT_OK);
    run_threads(&world);
    run_processes(&world);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    world.size = (uint32_t)CPU_COUNT(&before) + 1;
    if (world.size <= 64) {
        run_threads(&world);
    }
    /* As many ranks as processors: a progress thread each would be one too many. */
    world.size--;
    world.settings.progress = WEFT_PROGRESS_THREAD;
    if (world.size <= 64) {
        run_threads(&world);
    }
    bool alone = true;
    run_threads(
        &(world_t){.size = 1, .fn = reports_spinning, .user = &alone, .settings = test_settings()});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_topology_machine_is_discovered),
        cmocka_unit_test(test_topology_shares),
        cmocka_unit_test(test_topology_pin),
        cmocka_unit_test(test_topology_who_spins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
