/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/text.h"
#include "runtime/machine/machine.h"

/* Descriptors of a rank besides those for peers, and for one peer besides the sockets of tcp. */
#define OWN_DESCRIPTORS 20u
#define PEER_DESCRIPTORS 2u
/* Fewer descriptors than a small cluster needs. */
#define FEW_DESCRIPTORS 256u
/* A clock that user space reads takes some 20 ns, one behind a system call hundreds. */
#define SLOW_CLOCK_NS 200u
/* A link of 25 Gbit/s over which an answer takes 1 ms holds 3 MiB. */
#define SMALL_WINDOW ((uint64_t)3 << 20)
#define PROBE_BYTES ((size_t)4 << 20)

const char *wefti_doctor_level_name(doctor_level_t level)
{
    static const char *const names[DOCTOR_LEVELS] = {"ok", "hint", "warning", "error"};
    return names[level];
}

static void find(doctor_result_t *out, doctor_level_t level, const char *format, ...)
    WEFT_PRINTF(3, 4);
static void find(doctor_result_t *out, doctor_level_t level, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    out->level = level;
    vsnprintf(out->found, sizeof out->found, format, args);
    va_end(args);
}

static void advise(doctor_result_t *out, const char *format, ...) WEFT_PRINTF(2, 3);
static void advise(doctor_result_t *out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(out->remedy, sizeof out->remedy, format, args);
    va_end(args);
}

/* First line of a file; false and "" if it cannot be read. */
static bool read_line(const doctor_machine_t *machine, const char *path, char *line, size_t bytes)
{
    return wefti_read_line(line, bytes, "%s%s", machine->root, path);
}

static void check_cores(const doctor_machine_t *machine, doctor_result_t *out)
{
    cpu_set_t allowed;
    uint32_t total = machine->hardware->cpu_count, quota = wefti_machine_quota();
    uint32_t own =
        sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? (uint32_t)CPU_COUNT(&allowed) : total;
    if (quota > 0 && quota < own) {
        find(out, DOCTOR_WARNING, "%u processors, but the control group may use the time of %u",
             own, quota);
        advise(out, "start at most %u ranks here, or raise cpu.max of the control group", quota);
        return;
    }
    find(out, DOCTOR_OK, "%u of %u processors, %u cores", own, total,
         machine->hardware->core_count);
}

static void check_frequency(const doctor_machine_t *machine, doctor_result_t *out)
{
    char governor[64], driver[64];
    if (!read_line(machine, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor,
                   sizeof governor)) {
        find(out, DOCTOR_OK, "not set by this system");
        return;
    }
    read_line(machine, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", driver,
              sizeof driver);
    /* These drivers raise the frequency under load with any governor. */
    bool by_load = strcmp(driver, "intel_pstate") == 0 || strcmp(driver, "amd-pstate-epp") == 0;
    bool low = strcmp(governor, "powersave") == 0 && !by_load;
    find(out, low ? DOCTOR_WARNING : DOCTOR_OK, "governor %s, driver %s", governor, driver);
    if (low) {
        advise(out, "cpupower frequency-set -g performance");
    }
}

/* The least of several rounds: other programs only add to it. */
static uint64_t clock_ns(void)
{
    enum { ROUNDS = 16, READS = 256 };
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t begin = wefti_now_ns();
        for (int k = 1; k < READS; k++) {
            (void)wefti_now_ns();
        }
        uint64_t took = wefti_now_ns() - begin;
        least = took < least ? took : least;
    }
    return least / READS;
}

static void check_clock(const doctor_machine_t *machine, doctor_result_t *out)
{
    char source[64];
    read_line(machine, "/sys/devices/system/clocksource/clocksource0/current_clocksource", source,
              sizeof source);
    uint64_t ns = clock_ns();
    find(out, ns > SLOW_CLOCK_NS ? DOCTOR_WARNING : DOCTOR_OK, "%s, read in %llu ns",
         source[0] != '\0' ? source : "unknown source", (unsigned long long)ns);
    if (ns > SLOW_CLOCK_NS) {
        advise(out, "use the processor's own counter where it is stable (clocksource=tsc at boot)");
    }
}

static void check_numa(const doctor_machine_t *machine, doctor_result_t *out)
{
    char line[64];
    uint32_t nodes = machine->hardware->numa_count;
    read_line(machine, "/proc/sys/kernel/numa_balancing", line, sizeof line);
    if (nodes > 1 && strtol(line, NULL, 10) > 0) {
        find(out, DOCTOR_WARNING, "%u nodes, and the kernel moves pages between them", nodes);
        advise(out, "sysctl kernel.numa_balancing=0");
        return;
    }
    find(out, DOCTOR_OK, "%u node%s", nodes, nodes == 1 ? "" : "s");
}

static void check_huge_pages(const doctor_machine_t *machine, doctor_result_t *out)
{
    char line[128];
    read_line(machine, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", line, sizeof line);
    char *chosen = strchr(line, '[');
    char *end = chosen != NULL ? strchr(chosen, ']') : NULL;
    if (end == NULL) {
        find(out, DOCTOR_HINT, "this kernel has none for shared memory");
        return;
    }
    *end = '\0';
    chosen++;
    bool off = strcmp(chosen, "never") == 0 || strcmp(chosen, "deny") == 0;
    find(out, off ? DOCTOR_HINT : DOCTOR_OK, "%s for shared memory", chosen);
    if (off) {
        advise(out, "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled");
    }
}

static void check_address_space(const doctor_machine_t *machine, doctor_result_t *out)
{
    char text[32];
    size_t bytes = (size_t)machine->settings->reserve_bytes;
    void *address =
        mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
        find(out, DOCTOR_ERROR, "cannot reserve %s", wefti_format_bytes(bytes, text));
        advise(out, "raise ulimit -v, set vm.overcommit_memory to 0 or 1, or lower "
                    "WEFT_RESERVE_BYTES");
        return;
    }
    munmap(address, bytes);
    find(out, DOCTOR_OK, "%s per rank can be reserved", wefti_format_bytes(bytes, text));
}

static int grow_probe(void)
{
    int fd = memfd_create("weft doctor", MFD_CLOEXEC);
    if (fd < 0) {
        return errno;
    }
    int number = posix_fallocate(fd, 0, (off_t)PROBE_BYTES);
    close(fd);
    return number;
}

static void check_shared_memory(const doctor_machine_t *machine, doctor_result_t *out)
{
    (void)machine;
    char text[32], line[64];
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        find(out, limit.rlim_cur < PROBE_BYTES ? DOCTOR_ERROR : DOCTOR_WARNING,
             "files, and so the memory that ranks share, are limited to %s",
             wefti_format_bytes(limit.rlim_cur, text));
        advise(out, "ulimit -f unlimited");
        return;
    }
    int number = grow_probe();
    if (number != 0) {
        find(out, DOCTOR_ERROR, "memfd_create or fallocate failed: %s", strerror(number));
        advise(out, "allow memfd_create in the container's seccomp profile, or free memory");
        return;
    }
    bool limited = wefti_cgroup_read("memory.max", line, sizeof line) && line[0] != 'm';
    uint64_t most = limited ? strtoull(line, NULL, 10) : 0;
    find(out, DOCTOR_OK, "works%s%s; /dev/shm is not used",
         limited ? "; limit of the control group: " : "",
         limited ? wefti_format_bytes(most, text) : "");
}

/* What one child reads in another one. */
static const uint64_t probe_value = 0x5765667470726f62u;

/* In a child: reads the word of its sibling; the exit status is 0 or errno. */
static void read_sibling(pid_t sibling)
{
    uint64_t value = 0;
    struct iovec here = {&value, sizeof value},
                 there = {(void *)(uintptr_t)&probe_value, sizeof value};
    ssize_t moved = process_vm_readv(sibling, &here, 1, &there, 1, 0);
    _exit(moved == (ssize_t)sizeof value && value == probe_value ? 0 : errno);
}

/* 0, or the error with which the system refuses one rank to read another. */
static int attach_error(void)
{
    int status = 0;
    pid_t target = fork();
    if (target == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) {
            pause();
        }
    }
    pid_t reader = target > 0 ? fork() : -1;
    if (reader == 0) {
        read_sibling(target);
    }
    int number = reader < 0 ? errno : 0;
    if (reader > 0) {
        while (waitpid(reader, &status, 0) < 0 && errno == EINTR) {
        }
        number = WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
    }
    if (target > 0) {
        kill(target, SIGKILL);
        while (waitpid(target, &status, 0) < 0 && errno == EINTR) {
        }
    }
    return number;
}

static void check_attach(const doctor_machine_t *machine, doctor_result_t *out)
{
    char scope[16];
    if (machine->settings->attach == WEFTI_ATTACH_OFF) {
        find(out, DOCTOR_OK, "off (WEFT_ATTACH)");
        return;
    }
    int number = attach_error();
    if (number == 0) {
        find(out, DOCTOR_OK, "ranks may read each other's memory");
        return;
    }
    read_line(machine, "/proc/sys/kernel/yama/ptrace_scope", scope, sizeof scope);
    find(out, DOCTOR_WARNING, "process_vm_readv failed: %s%s%s", strerror(number),
         scope[0] != '\0' ? "; kernel.yama.ptrace_scope is " : "", scope);
    advise(out,
           "sysctl kernel.yama.ptrace_scope=0 (containers: --cap-add SYS_PTRACE), or use memory "
           "of weft_mem_alloc or weft.empty");
}

static void check_descriptors(const doctor_machine_t *machine, doctor_result_t *out)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        find(out, DOCTOR_WARNING, "getrlimit failed: %s", strerror(errno));
        return;
    }
    if (limit.rlim_cur == RLIM_INFINITY) {
        find(out, DOCTOR_OK, "no limit");
        return;
    }
    uint64_t most = limit.rlim_cur,
             ranks = most > OWN_DESCRIPTORS ? (most - OWN_DESCRIPTORS) /
                                                  (PEER_DESCRIPTORS + machine->settings->sockets)
                                            : 0;
    bool few = most < FEW_DESCRIPTORS;
    find(out, few ? DOCTOR_WARNING : DOCTOR_OK, "%llu, enough for about %llu ranks over tcp",
         (unsigned long long)most, (unsigned long long)ranks);
    if (few) {
        advise(out, "ulimit -n 65536");
    }
}

/* Names in a folder of /sys; none if there is no folder. */
static uint32_t list(const doctor_machine_t *machine, const char *folder, const char ***out_names)
{
    uint32_t count;
    weft_status_t status =
        wefti_list_folder(machine->arena, out_names, &count, "%s%s", machine->root, folder);
    return status < 0 ? 0 : count;
}

static void check_locked_memory(const doctor_machine_t *machine, doctor_result_t *out)
{
    const char **names;
    char text[32];
    struct rlimit limit;
    if (list(machine, "/sys/class/infiniband", &names) == 0) {
        find(out, DOCTOR_OK, "not needed without an RDMA device");
    } else if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        find(out, DOCTOR_OK, "no limit");
    } else {
        find(out, DOCTOR_WARNING, "an RDMA device can register %s",
             wefti_format_bytes(limit.rlim_cur, text));
        advise(out,
               "ulimit -l unlimited (memlock in limits.conf; with Slurm LimitMEMLOCK of slurmd)");
    }
}

/* An active port of a device? */
static bool is_active(const doctor_machine_t *machine, const char *device)
{
    const char **ports;
    char folder[256], path[512], line[64];
    snprintf(folder, sizeof folder, "/sys/class/infiniband/%s/ports", device);
    uint32_t count = list(machine, folder, &ports);
    for (uint32_t i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s/state", folder, ports[i]);
        if (read_line(machine, path, line, sizeof line) && strstr(line, "ACTIVE") != NULL) {
            return true;
        }
    }
    return false;
}

/* May this process open the device nodes? */
static bool may_open(const doctor_machine_t *machine)
{
    const char **names;
    char path[512];
    uint32_t count = list(machine, "/dev/infiniband", &names), nodes = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (strncmp(names[i], "uverbs", 6) == 0) {
            snprintf(path, sizeof path, "%s/dev/infiniband/%s", machine->root, names[i]);
            if (access(path, R_OK | W_OK) != 0) {
                return false;
            }
            nodes++;
        }
    }
    return nodes > 0;
}

static void check_rdma(const doctor_machine_t *machine, doctor_result_t *out)
{
    const char **names;
    char active[256] = "";
    uint32_t count = list(machine, "/sys/class/infiniband", &names);
    for (uint32_t i = 0; i < count; i++) {
        size_t used = strlen(active);
        if (is_active(machine, names[i])) {
            snprintf(active + used, sizeof active - used, "%s%s", used > 0 ? ", " : "", names[i]);
        }
    }
    if (count == 0) {
        find(out, DOCTOR_OK, "no device; hosts are linked over tcp");
    } else if (active[0] == '\0') {
        find(out, DOCTOR_WARNING, "%u device%s without an active port", count,
             count == 1 ? "" : "s");
        advise(out, "check the cable and the subnet manager (ibv_devinfo)");
    } else if (!WEFT_HAVE_VERBS) {
        find(out, DOCTOR_WARNING, "%s, but this build has no verbs transport", active);
        advise(out, "install libibverbs-dev and build again");
    } else if (!may_open(machine)) {
        find(out, DOCTOR_WARNING, "%s, but this process cannot open /dev/infiniband/uverbs*",
             active);
        advise(out, "give the user access, or the container --device /dev/infiniband");
    } else {
        find(out, DOCTOR_OK, "%s", active);
    }
}

static void check_network(const doctor_machine_t *machine, doctor_result_t *out)
{
    const wefti_hardware_t *hardware = machine->hardware;
    char up[256] = "";
    for (uint32_t i = 0; i < hardware->nic_count; i++) {
        const wefti_topo_device_t *nic = &hardware->nics[i];
        size_t used = strlen(up);
        if (nic->down) {
            continue;
        }
        snprintf(up + used, sizeof up - used, "%s%s", used > 0 ? ", " : "", nic->name);
        used = strlen(up);
        if (nic->bits_per_s > 0) {
            snprintf(up + used, sizeof up - used, " %g Gbit/s", (double)nic->bits_per_s / 1e9);
        }
    }
    find(out, up[0] != '\0' ? DOCTOR_OK : DOCTOR_HINT, "%s",
         up[0] != '\0' ? up : "no interface but the loopback is up: worlds on this host only");
}

/* The greatest window: the last of the three numbers of a file. */
static uint64_t window(const doctor_machine_t *machine, const char *path)
{
    char line[128];
    unsigned long long least, usual, most;
    return read_line(machine, path, line, sizeof line) &&
                   sscanf(line, "%llu %llu %llu", &least, &usual, &most) == 3
               ? most
               : 0;
}

static void check_tcp_buffers(const doctor_machine_t *machine, doctor_result_t *out)
{
    char in[32], sent[32];
    uint64_t receive = window(machine, "/proc/sys/net/ipv4/tcp_rmem"),
             send = window(machine, "/proc/sys/net/ipv4/tcp_wmem");
    if (receive == 0 || send == 0) {
        find(out, DOCTOR_OK, "not visible here");
        return;
    }
    bool small = receive < SMALL_WINDOW || send < SMALL_WINDOW;
    find(out, small ? DOCTOR_HINT : DOCTOR_OK, "receive up to %s, send up to %s",
         wefti_format_bytes(receive, in), wefti_format_bytes(send, sent));
    if (small) {
        advise(out, "sysctl net.ipv4.tcp_rmem='4096 131072 16777216' "
                    "net.ipv4.tcp_wmem='4096 65536 16777216'");
    }
}

/* The interface whose interrupts, two or more, all go to one processor; NULL: there is none. */
static const char *crowded(const wefti_interrupt_t *interrupts, uint32_t count)
{
    for (uint32_t i = 0, same = 0; i < count; i++) {
        const wefti_interrupt_t *it = &interrupts[i], *next = it + 1;
        bool last = i + 1 == count || strcmp(it->interface, next->interface) != 0;
        bool alone = it->affinity[0] != '\0' && strpbrk(it->affinity, ",-") == NULL;
        bool first = i == 0 || strcmp(it->interface, it[-1].interface) != 0;
        same = alone && (first || strcmp(it->affinity, it[-1].affinity) == 0)
                   ? (first ? 1 : same + (same > 0))
                   : 0;
        if (last && same > 1) {
            return it->interface;
        }
    }
    return NULL;
}

static void check_interrupts(const doctor_machine_t *machine, doctor_result_t *out)
{
    wefti_interrupt_t *interrupts;
    uint32_t count = 0;
    weft_status_t status = wefti_interrupts_read(machine->root, machine->hardware, machine->arena,
                                                 &interrupts, &count);
    const char *interface = status >= 0 ? crowded(interrupts, count) : NULL;
    if (status < 0) {
        find(out, DOCTOR_WARNING, "%s", weft_last_error());
    } else if (interface != NULL) {
        find(out, DOCTOR_HINT, "all interrupts of %s go to one processor", interface);
        advise(out, "weft topo --bind-irqs or weft run --bind-irqs (needs root), or irqbalance");
    } else {
        find(out, DOCTOR_OK, "%u of network interfaces", count);
    }
}

const doctor_check_t wefti_doctor_checks[] = {
    {"cores", "Ranks wait by spinning: they need a core each.", check_cores},
    {"frequency", "A core at its lowest frequency is slow in every call.", check_frequency},
    {"clock", "Every wait reads the clock.", check_clock},
    {"numa", "Ranks place their memory on the NUMA node that they are bound to.", check_numa},
    {"huge pages", "Large buffers of ranks need fewer TLB entries with them.", check_huge_pages},
    {"address space", "Each rank reserves addresses for memory that all ranks of a host map.",
     check_address_space},
    {"shared memory", "Ranks of one host exchange data through memfds.", check_shared_memory},
    {"attach", "One copy in place of two for large data in memory that is not registered.",
     check_attach},
    {"descriptors", "Every connection and every shared buffer takes a file descriptor.",
     check_descriptors},
    {"locked memory", "An RDMA device locks the memory that it accesses.", check_locked_memory},
    {"rdma", "Links of hosts use RDMA devices if all ranks have one.", check_rdma},
    {"network", "Ranks on other hosts are reached over these interfaces.", check_network},
    {"tcp buffers", "A fast link to a distant host needs a large window.", check_tcp_buffers},
    {"interrupts", "A processor that serves all interrupts of an interface limits its rate.",
     check_interrupts},
    {NULL, NULL, NULL},
};

doctor_result_t wefti_doctor_run(const char *name, const doctor_machine_t *machine)
{
    doctor_result_t result = {DOCTOR_OK, "", ""};
    const doctor_check_t *check = wefti_doctor_checks;
    while (strcmp(check->name, name) != 0) {
        check++;
    }
    check->run(machine, &result);
    return result;
}
