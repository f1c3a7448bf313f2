/* SPDX-License-Identifier: Apache-2.0 */
/* Who keeps ranks waiting, and whether a slow link is the reason: for warnings and errors. */
#include "transport/transport.h"

#include <stdio.h>
#include <string.h>

#include "transport/endpoint.h"

/* Less says nothing of a link. */
#define LEAST_BYTES ((uint64_t)1 << 20)
#define LEAST_NS 2000000ull
/* Of the median of the others: a link this slow is named. */
#define SLOW_FRACTION 0.5
#define PEERS_MAX 256u

bool wefti_endpoint_reports_late(wefti_endpoint_t *endpoint, uint64_t waited_ns)
{
    uint64_t late_ns = endpoint->settings->late_ns;
    if (late_ns == 0 || waited_ns < late_ns) {
        return false;
    }
    uint64_t now = wefti_now_ns();
    uint64_t last = atomic_load_explicit(&endpoint->late_reported_ns, memory_order_relaxed);
    if (last != 0 && now - last < late_ns) {
        return false;
    }
    /* Of several threads one reports. */
    return atomic_compare_exchange_strong_explicit(&endpoint->late_reported_ns, &last, now,
                                                   memory_order_relaxed, memory_order_relaxed);
}

double wefti_endpoint_link_rate(wefti_endpoint_t *endpoint, uint32_t peer)
{
    wefti_link_stats_t stats;
    wefti_endpoint_link_stats(endpoint, peer, &stats);
    return stats.bytes_sent < LEAST_BYTES || stats.busy_ns < LEAST_NS
               ? 0
               : (double)stats.bytes_sent * 1e9 / (double)stats.busy_ns;
}

/* The median rate of links to others; 0: none can be measured. */
static double rate_of_others(wefti_endpoint_t *endpoint, uint32_t peer)
{
    double rates[PEERS_MAX];
    uint32_t count = 0;
    for (uint32_t r = 0; r < endpoint->world_size && count < PEERS_MAX; r++) {
        double rate = r != peer && r != endpoint->rank && !wefti_endpoint_direct(endpoint, r)
                          ? wefti_endpoint_link_rate(endpoint, r)
                          : 0;
        if (rate > 0) {
            uint32_t at = count++;
            for (; at > 0 && rates[at - 1] > rate; at--) {
                rates[at] = rates[at - 1];
            }
            rates[at] = rate;
        }
    }
    return count > 0 ? rates[count / 2] : 0;
}

static bool is_slow(wefti_endpoint_t *endpoint, uint32_t rank, double *out_rate, double *out_others)
{
    *out_rate = wefti_endpoint_link_rate(endpoint, rank);
    *out_others = rate_of_others(endpoint, rank);
    return *out_rate > 0 && *out_rate < *out_others * SLOW_FRACTION;
}

void wefti_endpoint_late_facts(wefti_endpoint_t *endpoint, uint32_t rank, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    if (rank >= endpoint->world_size) {
        return;
    }
    if (endpoint->host_names != NULL && endpoint->host_count > 1) {
        used = (size_t)snprintf(text, bytes, "; rank %u is on host %s", rank,
                                endpoint->host_names[endpoint->host_of[rank]]);
    }
    double rate, others;
    if (is_slow(endpoint, rank, &rate, &others) && used < bytes) {
        char name[32], reason[8];
        wefti_endpoint_describe(endpoint, rank, name, sizeof name, reason, sizeof reason);
        snprintf(text + used, bytes - used,
                 "; the %s link to rank %u runs at %.3g MB/s, others at %.3g MB/s", name, rank,
                 rate * 1e-6, others * 1e-6);
    }
}

/* ---- the report of a world ---- */

#define CAUSES_NAMED 6u
#define CALLS_NAMED 4u

/* What the ranks of a world wait in, and those that they wait for in the end. */
typedef struct stall {
    uint32_t waiting;                           /* ranks that wait for others */
    uint32_t causes[CAUSES_NAMED], cause_count; /* they wait for nobody */
} stall_t;

/* For another rank: a thread that waits for another one of its own rank only is not stuck by it. */
static bool is_for_others(const wefti_wait_t *wait)
{
    return wait->kind != WEFTI_WAIT_NONE && wait->kind != WEFTI_WAIT_LOCAL;
}

/* What rank waits in; own: of this rank, which may not have posted it. */
static uint32_t read_waits(const wefti_endpoint_t *endpoint, const wefti_wait_t *own, uint32_t rank,
                           wefti_wait_t *list)
{
    uint32_t count = wefti_waits_read(endpoint, rank, list), kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (is_for_others(&list[i])) {
            list[kept++] = list[i];
        }
    }
    if (kept == 0 && rank == endpoint->rank) {
        list[kept++] = *own;
    }
    return kept;
}

static void add_cause(stall_t *stall, const wefti_endpoint_t *endpoint, const wefti_wait_t *own,
                      uint32_t rank)
{
    wefti_wait_t list[WEFTI_WAITS];
    for (uint32_t i = 0; i < stall->cause_count; i++) {
        if (stall->causes[i] == rank) {
            return;
        }
    }
    if (rank < endpoint->world_size && stall->cause_count < CAUSES_NAMED &&
        read_waits(endpoint, own, rank, list) == 0) {
        stall->causes[stall->cause_count++] = rank;
    }
}

static stall_t look(const wefti_endpoint_t *endpoint, const wefti_wait_t *own)
{
    stall_t stall = {.waiting = 0};
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        wefti_wait_t list[WEFTI_WAITS];
        uint32_t count = read_waits(endpoint, own, r, list);
        stall.waiting += count > 0;
        for (uint32_t w = 0; w < count; w++) {
            for (uint32_t l = 0; l < list[w].late_count; l++) {
                add_cause(&stall, endpoint, own, list[w].late[l]);
            }
        }
    }
    return stall;
}

/*
 * A lower rank waits, and will report: it has waited for WEFT_LATE, or this one has not for long
 * enough to know that it will not.
 */
static bool other_reports(const wefti_endpoint_t *endpoint, const wefti_wait_t *own,
                          uint64_t waited_ns, bool on_this_host)
{
    uint64_t now = wefti_now_ns(), late_ns = endpoint->settings->late_ns;
    for (uint32_t r = 0; r < endpoint->rank; r++) {
        wefti_wait_t list[WEFTI_WAITS];
        if (on_this_host && endpoint->host_of[r] != endpoint->host_of[endpoint->rank]) {
            continue;
        }
        uint32_t count = read_waits(endpoint, own, r, list);
        for (uint32_t w = 0; w < count; w++) {
            uint64_t since = list[w].since_ns;
            if (waited_ns < 2 * late_ns || (since < now && now - since >= late_ns)) {
                return true;
            }
        }
    }
    return false;
}

/* "; ranks 1 3 wait in barrier (call 2 of group 1)": calls other than the reporter's. */
static void describe_others(const wefti_endpoint_t *endpoint, const wefti_wait_t *own, char *text,
                            size_t bytes)
{
    char seen[CALLS_NAMED][sizeof own->text];
    uint32_t count = 0;
    size_t used = 0;
    for (uint32_t r = 0; r < endpoint->world_size && count < CALLS_NAMED; r++) {
        wefti_wait_t list[WEFTI_WAITS];
        uint32_t waits = read_waits(endpoint, own, r, list);
        bool known = waits == 0 || strcmp(list[0].text, own->text) == 0;
        for (uint32_t i = 0; i < count && !known; i++) {
            known = strcmp(seen[i], list[0].text) == 0;
        }
        if (known || used >= bytes) {
            continue;
        }
        memcpy(seen[count++], list[0].text, sizeof own->text);
        used += (size_t)snprintf(text + used, bytes - used, "; rank %u waits for rank %u in %s",
                                 wefti_endpoint_number(endpoint, r),
                                 wefti_endpoint_number(endpoint, list[0].late[0]), list[0].text);
    }
}

/* The process, if it is one of this host and namespace; else 0. */
static int32_t process_of(const wefti_endpoint_t *endpoint, uint32_t rank)
{
    bool here = endpoint->host_of[rank] == endpoint->host_of[endpoint->rank];
    return here && endpoint->control[rank] != NULL ? (int32_t)endpoint->control[rank]->pid : 0;
}

/* What /proc knows of a process; NULL: nothing. */
static const char *state_of(int32_t pid)
{
    char path[48], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    size_t length = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file != NULL) {
        fclose(file);
    }
    text[length] = '\0';
    const char *name_end = strrchr(text, ')');
    switch (name_end != NULL && name_end[1] == ' ' ? name_end[2] : 0) {
    case 'T':
        return "stopped by a signal";
    case 't':
        return "stopped by a debugger";
    case 'R':
        return "computing, in no call that waits";
    case 'S':
        return "asleep in the program, in no call that waits";
    case 'D':
        return "in the kernel: a disk, a network file system or a device";
    case 'Z':
        return "ended";
    default:
        return NULL;
    }
}

/* "; rank 2 (host b, pid 77) is stopped by a signal" */
static void describe_causes(const wefti_endpoint_t *endpoint, const stall_t *stall, char *text,
                            size_t bytes)
{
    size_t used = 0;
    for (uint32_t i = 0; i < stall->cause_count && used < bytes; i++) {
        uint32_t rank = stall->causes[i];
        char who[WEFTI_WHO_BYTES];
        int32_t pid = process_of(endpoint, rank);
        bool is_thread = pid == (int32_t)endpoint->control[endpoint->rank]->pid;
        const char *state = pid != 0 && !is_thread ? state_of(pid) : NULL;
        used += (size_t)snprintf(
            text + used, bytes - used, "; %s is %s",
            wefti_endpoint_who(endpoint, rank, is_thread || state == NULL ? 0 : pid, who),
            wefti_endpoint_has_left(endpoint, rank) ? "gone: it has left the world"
            : state != NULL                         ? state
                                                    : "in no call that waits");
    }
}

/* slow: a rank behind a slow link, or world_size. */
static void report_alone(wefti_endpoint_t *endpoint, const wefti_wait_t *wait, uint64_t waited_ns,
                         uint32_t slow)
{
    char late[200], facts[200];
    uint32_t first = wefti_waits_causes(endpoint, wait->late, wait->late_count, late, sizeof late);
    wefti_endpoint_late_facts(endpoint, slow < endpoint->world_size ? slow : first, facts,
                              sizeof facts);
    wefti_log(endpoint->log, WEFT_LOG_LEVEL_WARN, "rank %u waited %.3g s in %s; late: rank%s%s",
              endpoint->rank, (double)waited_ns * 1e-9, wait->text,
              wait->late_count > 0 ? late : " unknown", facts);
}

static void report_world(wefti_endpoint_t *endpoint, const wefti_wait_t *wait, uint64_t waited_ns,
                         const stall_t *stall)
{
    char late[100] = "", others[500] = "", doing[500] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < stall->cause_count; i++) {
        used += (size_t)snprintf(late + used, sizeof late - used, " %u", stall->causes[i]);
    }
    describe_others(endpoint, wait, others, sizeof others);
    describe_causes(endpoint, stall, doing, sizeof doing);
    wefti_log(endpoint->log, WEFT_LOG_LEVEL_WARN,
              "rank %u waited %.3g s in %s; late: rank%s; %u of %u ranks wait%s%s", endpoint->rank,
              (double)waited_ns * 1e-9, wait->text, late, stall->waiting, endpoint->world_size,
              others, doing);
}

_Static_assert(CAUSES_NAMED <= WEFTI_STACKS, "all of a report");

static void log_stacks(wefti_endpoint_t *endpoint, const stall_t *stall)
{
    uint32_t ranks[CAUSES_NAMED], count = 0;
    int32_t pids[CAUSES_NAMED];
    for (uint32_t i = 0; i < stall->cause_count; i++) {
        int32_t pid = process_of(endpoint, stall->causes[i]);
        if (pid != 0 && pid != (int32_t)endpoint->control[endpoint->rank]->pid) {
            ranks[count] = stall->causes[i];
            pids[count++] = pid;
        }
    }
    wefti_stacks_log(endpoint, ranks, pids, count);
}

/* Of the ranks that a wait is for, one behind a slow link; world_size: none. */
static uint32_t find_slow(wefti_endpoint_t *endpoint, const wefti_wait_t *wait)
{
    double rate, others;
    for (uint32_t i = 0; i < wait->late_count; i++) {
        if (wait->late[i] < endpoint->world_size &&
            is_slow(endpoint, wait->late[i], &rate, &others)) {
            return wait->late[i];
        }
    }
    return endpoint->world_size;
}

/* What another thread of the rank waits in says more. */
static bool is_secondary(const wefti_endpoint_t *endpoint, const wefti_wait_t *wait)
{
    wefti_wait_t list[WEFTI_WAITS];
    uint32_t count = is_for_others(wait) ? 0 : wefti_waits_read(endpoint, endpoint->rank, list);
    for (uint32_t i = 0; i < count; i++) {
        if (is_for_others(&list[i])) {
            return true;
        }
    }
    return false;
}

void wefti_endpoint_report_late(wefti_endpoint_t *endpoint, const wefti_wait_t *wait,
                                uint64_t waited_ns)
{
    wefti_wait_t known;
    endpoint = endpoint->host;
    if (endpoint->outer != NULL && endpoint->outer->inner == endpoint) {
        wait = wefti_waits_in_world(endpoint, wait, &known);
        endpoint = endpoint->outer;
    }
    if (endpoint->numbers != NULL || is_secondary(endpoint, wait) ||
        !wefti_endpoint_reports_late(endpoint, waited_ns)) {
        return; /* numbers: while ranks join, those that join report */
    }
    stall_t stall = look(endpoint, wait);
    uint32_t slow = find_slow(endpoint, wait);
    if (stall.cause_count == 0 || slow < endpoint->world_size || !is_for_others(wait)) {
        report_alone(endpoint, wait, waited_ns, slow);
        return;
    }
    if (!other_reports(endpoint, wait, waited_ns, false)) {
        report_world(endpoint, wait, waited_ns, &stall);
    }
    if (endpoint->settings->late_stacks != 0 && !other_reports(endpoint, wait, waited_ns, true)) {
        log_stacks(endpoint, &stall);
    }
}
