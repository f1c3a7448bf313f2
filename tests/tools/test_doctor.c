/* SPDX-License-Identifier: Apache-2.0 */
/* What the checks of `weft doctor` find on machines that are made up, and under limits. */
#include "tools/doctor.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/support_folder.h"
#include "tests/support/support.h"

static wefti_settings_t settings = {
    .reserve_bytes = 1 << 30, .sockets = 2, .attach = WEFTI_ATTACH_AUTO};
static wefti_topo_device_t nics[] = {{.name = "eth0", .bits_per_s = 25000000000u},
                                     {.name = "eth1", .down = true}};
static wefti_hardware_t hardware = {
    .numa_count = 2, .core_count = 4, .cpu_count = 8, .nic_count = 2, .nics = nics};

static doctor_result_t run(const char *root, const char *name)
{
    wefti_arena_t arena;
    doctor_machine_t machine = {root, &settings, &hardware, &arena};
    wefti_arena_init(&arena, NULL, 0);
    doctor_result_t result = wefti_doctor_run(name, &machine);
    wefti_arena_deinit(&arena);
    assert_true(result.found[0] != '\0');
    /* Everything that is wrong can be fixed, or is a fact of this machine. */
    assert_true(result.level < DOCTOR_WARNING || result.remedy[0] != '\0');
    return result;
}

static void expect(const char *root, const char *name, doctor_level_t level, const char *found)
{
    doctor_result_t result = run(root, name);
    if (result.level != level || strstr(result.found, found) == NULL) {
        fail_msg("%s: %s: %s; expected %s: %s", name, wefti_doctor_level_name(result.level),
                 result.found, wefti_doctor_level_name(level), found);
    }
}

static void test_every_check_runs_here(void **state)
{
    (void)state;
    for (const doctor_check_t *check = wefti_doctor_checks; check->name != NULL; check++) {
        run("", check->name);
    }
}

static void test_nothing_is_wrong_where_nothing_is_known(void **state)
{
    const char *root = *state;
    expect(root, "frequency", DOCTOR_OK, "not set");
    expect(root, "numa", DOCTOR_OK, "2 nodes");
    expect(root, "huge pages", DOCTOR_HINT, "none for shared memory");
    expect(root, "locked memory", DOCTOR_OK, "not needed");
    expect(root, "rdma", DOCTOR_OK, "no device");
    expect(root, "tcp buffers", DOCTOR_OK, "not visible");
    expect(root, "interrupts", DOCTOR_OK, "0 of");
    expect(root, "clock", run(root, "clock").level, "unknown source");
}

static void test_kernel_settings(void **state)
{
    const char *root = *state;
    test_folder_put(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
    test_folder_put(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n");
    expect(root, "frequency", DOCTOR_WARNING, "governor powersave, driver acpi-cpufreq");
    test_folder_put(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_pstate\n");
    expect(root, "frequency", DOCTOR_OK, "intel_pstate");

    test_folder_put(root, "proc/sys/kernel/numa_balancing", "1\n");
    expect(root, "numa", DOCTOR_WARNING, "2 nodes, and the kernel moves pages");
    hardware.numa_count = 1;
    expect(root, "numa", DOCTOR_OK, "1 node");
    hardware.numa_count = 2;

    const char *shmem = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
    test_folder_put(root, shmem, "always within_size advise [never] deny force\n");
    expect(root, "huge pages", DOCTOR_HINT, "never");
    test_folder_put(root, shmem, "always within_size [advise] never deny force\n");
    expect(root, "huge pages", DOCTOR_OK, "advise");

    test_folder_put(root, "proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t212992\n");
    test_folder_put(root, "proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t16777216\n");
    expect(root, "tcp buffers", DOCTOR_HINT, "receive up to 208.0 KiB");
    test_folder_put(root, "proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t16777216\n");
    expect(root, "tcp buffers", DOCTOR_OK, "16.0 MiB");
    test_folder_put(root, "proc/sys/net/ipv4/tcp_rmem", "damaged\n");
    expect(root, "tcp buffers", DOCTOR_OK, "not visible");
}

static void test_rdma_devices(void **state)
{
    const char *root = *state;
    struct rlimit before, low;
    test_folder_put(root, "sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
    expect(root, "rdma", DOCTOR_WARNING, "1 device without an active port");
    test_folder_put(root, "sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
    test_folder_put(root, "sys/class/infiniband/mlx5_1/ports/2/state", "4: ACTIVE\n");
    if (WEFT_HAVE_VERBS) {
        expect(root, "rdma", DOCTOR_WARNING, "mlx5_1, but this process cannot open");
        test_folder_put(root, "dev/infiniband/uverbs0", "");
        expect(root, "rdma", DOCTOR_OK, "mlx5_1");
    } else {
        expect(root, "rdma", DOCTOR_WARNING, "mlx5_1, but this build has no verbs");
    }
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &before), 0);
    low = before;
    low.rlim_cur = 65536;
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &low), 0);
    expect(root, "locked memory", DOCTOR_WARNING, "can register 64.0 KiB");
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

static void test_network(void **state)
{
    const char *root = *state;
    expect(root, "network", DOCTOR_OK, "eth0 25 Gbit/s");
    assert_null(strstr(run(root, "network").found, "eth1"));
    hardware.nic_count = 0;
    expect(root, "network", DOCTOR_HINT, "this host only");
    hardware.nic_count = 2;

    for (int number = 38; number < 41; number++) {
        char name[64];
        snprintf(name, sizeof name, "sys/class/net/eth0/device/msi_irqs/%d", number);
        test_folder_put(root, name, "msix\n");
        snprintf(name, sizeof name, "proc/irq/%d/smp_affinity_list", number);
        test_folder_put(root, name, "3\n");
    }
    expect(root, "interrupts", DOCTOR_HINT, "all interrupts of eth0 go to one processor");
    test_folder_put(root, "proc/irq/40/smp_affinity_list", "3,4\n");
    expect(root, "interrupts", DOCTOR_OK, "3 of network interfaces");
    test_folder_put(root, "proc/irq/40/smp_affinity_list", "4\n");
    expect(root, "interrupts", DOCTOR_OK, "3 of network interfaces");
}

/* Runs the check with one soft limit lowered. */
static void expect_limited(int resource, rlim_t limit, const char *name, doctor_level_t level,
                           const char *found)
{
    struct rlimit before, low;
    assert_int_equal(getrlimit(resource, &before), 0);
    low = before;
    low.rlim_cur = limit;
    assert_int_equal(setrlimit(resource, &low), 0);
    expect("", name, level, found);
    assert_int_equal(setrlimit(resource, &before), 0);
}

static void test_limits(void **state)
{
    (void)state;
    expect_limited(RLIMIT_NOFILE, 100, "descriptors", DOCTOR_WARNING, "about 20 ranks over tcp");
    expect_limited(RLIMIT_NOFILE, 10, "descriptors", DOCTOR_WARNING, "about 0 ranks");
    expect_limited(RLIMIT_NOFILE, 1024, "descriptors", DOCTOR_OK, "1024");
    expect_limited(RLIMIT_FSIZE, 1 << 20, "shared memory", DOCTOR_ERROR, "limited to 1.0 MiB");
    expect_limited(RLIMIT_FSIZE, 1 << 30, "shared memory", DOCTOR_WARNING, "limited to 1.0 GiB");
    expect("", "address space", DOCTOR_OK, "1.0 GiB per rank");
    settings.reserve_bytes = (uint64_t)1 << 62;
    expect("", "address space", DOCTOR_ERROR, "cannot reserve");
    settings.reserve_bytes = 1 << 30;
}

/* As a container does: process_vm_readv fails with EPERM from here on. */
static bool forbid_attach(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void test_attach_is_tried(void **state)
{
    const char *root = *state;
    int status = 0;
    settings.attach = WEFTI_ATTACH_OFF;
    expect(root, "attach", DOCTOR_OK, "off");
    settings.attach = WEFTI_ATTACH_AUTO;
    test_folder_put(root, "proc/sys/kernel/yama/ptrace_scope", "1\n");
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!forbid_attach()) {
            _exit(2);
        }
        doctor_result_t result = run(root, "attach");
        _exit(result.level == DOCTOR_WARNING &&
                      strstr(result.found, "not permitted; kernel.yama.ptrace_scope is 1") != NULL
                  ? 0
                  : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2) {
        print_message("seccomp is not available: a refusal was not tested\n");
        return;
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_check_runs_here),
        cmocka_unit_test_setup_teardown(test_nothing_is_wrong_where_nothing_is_known,
                                        test_folder_make, test_folder_drop),
        cmocka_unit_test_setup_teardown(test_kernel_settings, test_folder_make, test_folder_drop),
        cmocka_unit_test_setup_teardown(test_rdma_devices, test_folder_make, test_folder_drop),
        cmocka_unit_test_setup_teardown(test_network, test_folder_make, test_folder_drop),
        cmocka_unit_test(test_limits),
        cmocka_unit_test_setup_teardown(test_attach_is_tried, test_folder_make, test_folder_drop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
