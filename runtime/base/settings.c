/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/settings.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/suggest.h"

typedef weft_status_t (*parse_fn)(const char *text, void *field);

typedef struct row {
    parse_fn parse;
    size_t offset; /* into wefti_settings_t */
} row_t;

/*
 * Parsers record what they expect; wefti_settings_load puts "invalid value 'x' for WEFT_Y: " before
 * that.
 */
static weft_status_t expected(const char *what)
{
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "expected %s", what);
}

/* The position of text in names, or -1. */
static int choice(const char *text, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, names[i]) == 0) {
            return (int)i;
        }
    }
    return -1;
}

static weft_status_t parse_choice(const char *text, const char *const *names, size_t count,
                                  uint32_t *out)
{
    char list[128] = "";
    size_t used = 0;
    int found = choice(text, names, count);
    if (found >= 0) {
        *out = (uint32_t)found;
        return WEFT_OK;
    }
    for (size_t i = 0; i < count; i++) {
        const char *between = i == 0 ? "" : i + 1 < count ? ", " : " or ";
        used += (size_t)snprintf(list + used, sizeof list - used, "%s'%s'", between, names[i]);
    }
    return expected(list);
}

/* An instruction set that this processor lacks is refused as well as an unknown one. */
static weft_status_t parse_isa(const char *text, void *field)
{
    weft_status_t status = wefti_isa_parse(text, field);
    return status == WEFT_ERR_UNSUPPORTED ? wefti_error(status, "this CPU supports %s at most",
                                                        wefti_isa_name(wefti_isa_detect()))
           : status < 0                   ? expected("'auto', 'portable', 'avx2' or 'avx512'")
                                          : status;
}

static weft_status_t parse_progress(const char *text, void *field)
{
    static const char *const names[] = {"auto", "inline", "thread"};
    uint32_t found = 0;
    weft_status_t status = parse_choice(text, names, 3, &found);
    *(weft_progress_t *)field = (weft_progress_t)(WEFT_PROGRESS_AUTO + found);
    return status;
}

static const char *const kernels_names[] = {"exact", "onednn"};

const char *wefti_kernels_name(wefti_kernels_t kernels)
{
    return kernels_names[kernels == WEFTI_KERNELS_ONEDNN];
}

static weft_status_t parse_kernels(const char *text, void *field)
{
    uint32_t found = 0;
    weft_status_t status = parse_choice(text, kernels_names, 2, &found);
    *(wefti_kernels_t *)field = (wefti_kernels_t)found;
    return status;
}

static weft_status_t parse_check(const char *text, void *field)
{
    static const char *const names[] = {"off", "results"};
    return parse_choice(text, names, 2, field);
}

static weft_status_t parse_switch(const char *text, void *field)
{
    static const char *const names[] = {"off", "on"};
    return parse_choice(text, names, 2, field);
}

static weft_status_t parse_calibrate(const char *text, void *field)
{
    static const char *const names[] = {"off", "cached", "auto"};
    return parse_choice(text, names, 3, field);
}

static weft_status_t parse_attach(const char *text, void *field)
{
    static const char *const names[] = {"off", "auto", "always"};
    return parse_choice(text, names, 3, field);
}

static weft_status_t parse_log_level(const char *text, void *field)
{
    static const char *const names[] = {"error", "warn", "info", "debug", "trace"};
    return parse_choice(text, names, 5, field);
}

/* A number of at least 0, times scale, up to most. */
static weft_status_t parse_scaled(const char *text, double scale, uint64_t most, uint64_t *out)
{
    char *rest = NULL;
    double value;
    errno = 0;
    value = strtod(text, &rest);
    if (rest == text || *rest != '\0' || !isfinite(value) || value < 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "expected a number of at least 0");
    }
    if (value * scale > (double)most) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "too large: at most %g",
                           (double)most / scale);
    }
    *out = (uint64_t)(value * scale);
    return WEFT_OK;
}

static weft_status_t parse_seconds(const char *text, void *field)
{
    return parse_scaled(text, 1e9, (uint64_t)1 << 62, field);
}

static weft_status_t parse_microseconds(const char *text, void *field)
{
    return parse_scaled(text, 1e3, (uint64_t)1 << 62, field);
}

/* A whole number with an optional K, M, G or T (powers of 1024). */
static weft_status_t parse_bytes(const char *text, void *field)
{
    static const char units[] = "KMGT";
    char *rest = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &rest, 10);
    uint64_t bytes = value;
    const char *unit = NULL;
    if (text[0] < '0' || text[0] > '9') { /* strtoull would take "-1" and " 1" */
        rest = NULL;
    } else if (*rest && (unit = strchr(units, *rest)) != NULL) {
        rest++;
    }
    if (!rest || *rest) {
        return expected("a number of bytes such as 4096, 64M or 16G");
    }
    uint64_t factor = unit ? (uint64_t)1 << (10 * (unit - units + 1)) : 1;
    if (errno == ERANGE || __builtin_mul_overflow(bytes, factor, &bytes)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "too large: at most 2^64 - 1 bytes");
    }
    *(uint64_t *)field = bytes;
    return WEFT_OK;
}

static weft_status_t parse_threads(const char *text, void *field)
{
    char *rest = NULL;
    unsigned long value = strtoul(text, &rest, 10);
    if (text[0] < '0' || text[0] > '9' || *rest || value > 4096) {
        return expected("a whole number between 0 and 4096");
    }
    *(uint32_t *)field = (uint32_t)value;
    return WEFT_OK;
}

static weft_status_t copy_text(const char *text, char *field, size_t bytes)
{
    size_t length = strlen(text);
    if (length >= bytes) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "too long: %zu characters, at most %zu",
                           length, bytes - 1);
    }
    memcpy(field, text, length + 1);
    return WEFT_OK;
}

/* Names are looked up by the context: a program may register algorithms of its own. */
static weft_status_t parse_algo(const char *text, void *field)
{
    return copy_text(text, field, sizeof((wefti_settings_t *)0)->algo);
}

static weft_status_t parse_costs(const char *text, void *field)
{
    return copy_text(text, field, sizeof((wefti_settings_t *)0)->costs);
}

static weft_status_t bad_order(void)
{
    return expected("'tree', 'any', or 'blocks:' with the number of ranks of each block, as in "
                    "blocks:4,4");
}

static weft_status_t parse_order(const char *text, void *field)
{
    static const char prefix[] = "blocks:";
    wefti_order_setting_t order = {.order = WEFT_ORDER_TREE};
    if (strcmp(text, "any") == 0) {
        order.order = WEFT_ORDER_ANY;
    } else if (strncmp(text, prefix, sizeof prefix - 1) == 0) {
        const char *at = text + sizeof prefix - 2;
        order.order = WEFT_ORDER_BLOCKS;
        do {
            char *rest = NULL;
            at++; /* the colon or a comma */
            errno = 0;
            unsigned long long value = *at >= '0' && *at <= '9' ? strtoull(at, &rest, 10) : 0;
            if (value == 0 || value > UINT32_MAX || errno != 0 ||
                order.count == WEFTI_ORDER_SETTING_BLOCKS) {
                return bad_order();
            }
            order.sizes[order.count++] = (uint32_t)value;
            at = rest;
        } while (*at == ',');
        if (*at != '\0') {
            return bad_order();
        }
    } else if (strcmp(text, "tree") != 0) {
        return bad_order();
    }
    *(wefti_order_setting_t *)field = order;
    return WEFT_OK;
}

static weft_status_t parse_transport(const char *text, void *field)
{
    static const char *const names[] = {"auto", "shm", "tcp", "verbs"};
    const char *at = text;
    for (;;) {
        size_t length = strcspn(at, ",");
        char name[16] = "";
        if (length < sizeof name) {
            memcpy(name, at, length);
        }
        int found = choice(name, names, 4);
        if (found < 0 || (found == 0 && strcmp(text, "auto") != 0)) {
            return expected(
                "'auto', or one or more of 'shm', 'tcp' and 'verbs' with commas between");
        }
        if (at[length] == '\0') {
            break;
        }
        at += length + 1;
    }
    return copy_text(text, field, sizeof((wefti_settings_t *)0)->transport);
}

static weft_status_t parse_ifname(const char *text, void *field)
{
    return copy_text(text, field, sizeof((wefti_settings_t *)0)->ifname);
}

static weft_status_t parse_congestion(const char *text, void *field)
{
    return copy_text(text, field, sizeof((wefti_settings_t *)0)->congestion);
}

static weft_status_t parse_host_id(const char *text, void *field)
{
    return copy_text(text, field, sizeof((wefti_settings_t *)0)->host_id);
}

static weft_status_t parse_verbs_device(const char *text, void *field)
{
    return copy_text(text, field, sizeof((wefti_verbs_settings_t *)0)->device);
}

static weft_status_t parse_fallback(const char *text, void *field)
{
    static const char *const names[] = {"off", "tcp"};
    return parse_choice(text, names, 2, field);
}

static weft_status_t parse_topology(const char *text, void *field)
{
    return copy_text(text, field, sizeof((wefti_settings_t *)0)->topology);
}

static weft_status_t parse_bind(const char *text, void *field)
{
    static const char *const names[] = {"auto", "none", "core", "numa"};
    return parse_choice(text, names, 4, field);
}

/* A whole number from least to most. */
static weft_status_t parse_within(const char *text, long least, long most, long *out)
{
    char *rest = NULL;
    errno = 0;
    long value = strtol(text, &rest, 10);
    if (rest == text || *rest != '\0' || errno != 0 || value < least || value > most) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "expected a whole number between %ld and %ld",
                           least, most);
    }
    *out = value;
    return WEFT_OK;
}

static weft_status_t parse_sockets(const char *text, void *field)
{
    long value = 0;
    weft_status_t status = parse_within(text, 1, 8, &value);
    *(uint32_t *)field = (uint32_t)value;
    return status;
}

static weft_status_t parse_gid_index(const char *text, void *field)
{
    long value = 0;
    weft_status_t status = parse_within(text, -1, 255, &value);
    *(int32_t *)field = (int32_t)value;
    return status;
}

static weft_status_t parse_mtu(const char *text, void *field)
{
    long value = 0;
    weft_status_t status = parse_within(text, 0, 4096, &value);
    if (status == WEFT_OK && value != 0 && (value < 256 || (value & (value - 1)) != 0)) {
        status = expected("0, 256, 512, 1024, 2048 or 4096");
    }
    *(uint32_t *)field = (uint32_t)value;
    return status;
}

#define PARSE_UP_TO(name, most)                                                                    \
    static weft_status_t name(const char *text, void *field)                                       \
    {                                                                                              \
        long value = 0;                                                                            \
        weft_status_t status = parse_within(text, 0, most, &value);                                \
        *(uint32_t *)field = (uint32_t)value;                                                      \
        return status;                                                                             \
    }
PARSE_UP_TO(parse_up_to_7, 7)
PARSE_UP_TO(parse_up_to_15, 15)
PARSE_UP_TO(parse_up_to_16, 16)
PARSE_UP_TO(parse_up_to_31, 31)
PARSE_UP_TO(parse_up_to_255, 255)

/* name, field, parser, default, unit, collective, help */
#define SETTINGS(X)                                                                                \
    X("WEFT_ISA", isa, parse_isa, "auto", "", 0,                                                   \
      "instruction set of kernels and reductions: auto, portable, avx2 or avx512; "                \
      "results do not depend on it")                                                               \
    X("WEFT_PROGRESS", progress, parse_progress, "auto", "", 0,                                    \
      "where communication of a plan runs: inline (between kernels), thread (on its "              \
      "own thread) or auto (thread if cores are free)")                                            \
    X("WEFT_TIMEOUT", timeout_ns, parse_seconds, "600", "s", 0,                                    \
      "maximum time that a call waits for other ranks; 0: no limit")                               \
    X("WEFT_SPIN_US", spin_ns, parse_microseconds, "100", "us", 0,                                 \
      "time that a wait spins before it yields the core; ignored if ranks outnumber "              \
      "cores")                                                                                     \
    X("WEFT_RESERVE_BYTES", reserve_bytes, parse_bytes, "64G", "bytes", 1,                         \
      "address space per rank for registered memory; physical memory is used only as "             \
      "it is allocated")                                                                           \
    X("WEFT_STAGING_BYTES", staging_bytes, parse_bytes, "512K", "bytes", 1,                        \
      "staging buffers per group and rank, for collectives on memory that is not "                 \
      "registered; four times as large if ranks are on several hosts")                             \
    X("WEFT_ATTACH", attach, parse_attach, "auto", "", 1,                                          \
      "how peers access memory that is not registered: auto (cross-memory attach where "           \
      "the system permits it and it is faster), always (wherever permitted) or off "               \
      "(staging buffers)")                                                                         \
    X("WEFT_CHECK", check, parse_check, "off", "", 1,                                              \
      "results: compare digests of every collective's result between ranks; off: no "              \
      "check")                                                                                     \
    X("WEFT_LOG", log_level, parse_log_level, "warn", "", 0,                                       \
      "log level: error, warn, info, debug or trace")                                              \
    X("WEFT_THREADS", threads, parse_threads, "0", "threads", 0,                                   \
      "kernel threads per rank; 0: the number of cores of the rank")                               \
    X("WEFT_KERNELS", kernels, parse_kernels, "exact", "", 1,                                      \
      "matrix products and convolutions: exact (same bits on every instruction set, no "           \
      "allocation per step) or onednn (results depend on instruction set and threads)")            \
    X("WEFT_ALGO", algo, parse_algo, "", "", 1,                                                    \
      "algorithm of collectives: a name such as ring, for every operator that has it, "            \
      "or pairs such as all_reduce=ring,all_gather=bruck; an error if it is not "                  \
      "eligible; unset: the choice by cost")                                                       \
    X("WEFT_ORDER", order, parse_order, "tree", "", 1,                                             \
      "reduction order of groups: tree, blocks:4,4 (a tree within each block of that "             \
      "number of ranks, then over the blocks) or any (bits depend on the algorithm)")              \
    X("WEFT_COSTS", costs, parse_costs, "", "", 1,                                                 \
      "cost table that decides the choice of algorithms, written by weft tune; unset: "            \
      "the built-in table")                                                                        \
    X("WEFT_CALIBRATE", calibrate, parse_calibrate, "auto", "", 0,                                 \
      "costs of weft compile and weft run MODEL.onnx without --costs and WEFT_COSTS: auto (the "   \
      "cached calibration of this machine, measured if there is none), cached (only if there is "  \
      "one) or off (default costs)")                                                               \
    X("WEFT_TRANSPORT", transport, parse_transport, "auto", "", 1,                                 \
      "transports to use: auto, or one or more of shm, tcp and verbs with commas "                 \
      "between; without shm every rank counts as a host of its own")                               \
    X("WEFT_IFNAME", ifname, parse_ifname, "", "", 0,                                              \
      "network interfaces to use, as patterns with commas between (eth*,ib0); a "                  \
      "leading ^ excludes them; unset: all that are up, loopback last")                            \
    X("WEFT_HOST_ID", host_id, parse_host_id, "", "", 0,                                           \
      "identity of this host, if boot id and namespaces do not identify it: ranks with "           \
      "equal ids share memory")                                                                    \
    X("WEFT_CONNECT_TIMEOUT", connect_timeout_ns, parse_seconds, "60", "s", 0,                     \
      "maximum time until all ranks have connected (addresses unix: use WEFT_TIMEOUT)")            \
    X("WEFT_LINK_TIMEOUT", link_timeout_ns, parse_seconds, "15", "s", 0,                           \
      "time without an answer after which a link to another host counts as broken")                \
    X("WEFT_LATE", late_ns, parse_seconds, "10", "s", 0,                                           \
      "time after which a warning names the ranks and links that a call waits for; 0: "            \
      "never")                                                                                     \
    X("WEFT_SOCKETS", sockets, parse_sockets, "2", "", 1,                                          \
      "tcp: sockets per pair of ranks, 1 to 8")                                                    \
    X("WEFT_TCP_CONGESTION", congestion, parse_congestion, "auto", "", 0,                          \
      "tcp: congestion control: system, a name such as cubic, or auto (the system's, "             \
      "but cubic in place of bbr, which underestimates links with bursts)")                        \
    X("WEFT_FALLBACK", fallback, parse_fallback, "tcp", "", 1,                                     \
      "when a verbs link breaks: tcp (calls in flight fail, later ones use tcp, with a "           \
      "warning) or off (all calls fail)")                                                          \
    X("WEFT_VERBS_DEVICE", verbs.device, parse_verbs_device, "", "", 0,                            \
      "verbs: devices and ports, as patterns (mlx5_*, rxe0:1); unset: the device "                 \
      "nearest to the rank")                                                                       \
    X("WEFT_VERBS_GID_INDEX", verbs.gid_index, parse_gid_index, "-1", "", 0,                       \
      "verbs: index of the GID; -1: RoCE v2 with the address family of the peers")                 \
    X("WEFT_VERBS_MTU", verbs.mtu, parse_mtu, "0", "bytes", 0,                                     \
      "verbs: path MTU, 256 to 4096; 0: that of the port")                                         \
    X("WEFT_VERBS_SL", verbs.service_level, parse_up_to_15, "0", "", 0,                            \
      "verbs: service level, 0 to 15")                                                             \
    X("WEFT_VERBS_TRAFFIC_CLASS", verbs.traffic_class, parse_up_to_255, "0", "", 0,                \
      "verbs: traffic class, 0 to 255")                                                            \
    X("WEFT_VERBS_TIMEOUT", verbs.timeout, parse_up_to_31, "16", "", 0,                            \
      "verbs: exponent t of the retransmission timeout, 4.096 us * 2^t")                           \
    X("WEFT_VERBS_RETRY", verbs.retry, parse_up_to_7, "7", "", 0,                                  \
      "verbs: retransmissions before the link counts as broken, 0 to 7")                           \
    X("WEFT_VERBS_QUEUE_PAIRS", verbs.queue_pairs, parse_up_to_16, "0", "", 1,                     \
      "verbs: queue pairs per pair of ranks, 1 to 16; 0: depends on the link")                     \
    X("WEFT_TOPOLOGY", topology, parse_topology, "", "", 1,                                        \
      "description of the cluster (JSON), used in place of discovery")                             \
    X("WEFT_BIND", bind, parse_bind, "auto", "", 0,                                                \
      "binding of ranks: core (own cores), numa (all cores of their NUMA nodes), none, "           \
      "or auto (weft run and weft bench bind to cores; ranks of other launchers keep "             \
      "their binding)")                                                                            \
    X("WEFT_VERIFY_EACH", verify_each, parse_switch, "off", "", 0,                                 \
      "on: every compilation verifies the graph after each pass, as with --verify-each")

static const wefti_setting_def_t defs[] = {
#define SETTING_DEF(env, field, parse, text, unit, collective, help)                               \
    {env, text, unit, help, collective},
    SETTINGS(SETTING_DEF)
#undef SETTING_DEF
};

static const row_t rows[] = {
#define SETTING_ROW(env, field, parse, text, unit, collective, help)                               \
    {parse, offsetof(wefti_settings_t, field)},
    SETTINGS(SETTING_ROW)
#undef SETTING_ROW
};

const wefti_setting_def_t *wefti_setting_defs(size_t *out_count)
{
    *out_count = sizeof defs / sizeof defs[0];
    return defs;
}

/* Variables that are not settings. */
static const char *const other_names[] = {
    "WEFT_RANK",    "WEFT_WORLD_SIZE", "WEFT_LOCAL_RANK",  "WEFT_LOCAL_SIZE",
    "WEFT_ADDRESS", "WEFT_SECRET",     "WEFT_SECRET_FILE", "WEFT_RSH",
};

static bool muted; /* set by the command before it starts threads */

void wefti_settings_mute_misspelt(void)
{
    muted = true;
}

bool wefti_settings_misspelt_muted(void)
{
    return muted;
}

void wefti_settings_find_misspelt(wefti_misspelt_fn report, void *user)
{
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        char name[64];
        size_t length = strcspn(*at, "=");
        if (strncasecmp(*at, "WEFT_", 5) != 0 || length >= sizeof name) {
            continue;
        }
        memcpy(name, *at, length);
        name[length] = '\0';
        /* The common prefix says nothing about what is meant. */
        wefti_suggestion_t near = {.word = name + 5};
        for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++) {
            wefti_suggestion_offer(&near, other_names[i] + 5);
        }
        for (size_t i = 0; i < sizeof defs / sizeof defs[0]; i++) {
            wefti_suggestion_offer(&near, defs[i].name + 5);
        }
        if (near.best != NULL && strcmp(name, near.best - 5) != 0) {
            report(user, name, near.best - 5);
        }
    }
}

static weft_status_t load_row(size_t row, wefti_settings_t *settings)
{
    const char *text = getenv(defs[row].name);
    if (!text || !*text) {
        text = defs[row].default_text;
    }
    weft_status_t status = rows[row].parse(text, (uint8_t *)settings + rows[row].offset);
    return status == WEFT_OK
               ? WEFT_OK
               : wefti_error_prefix(WEFT_ERR_INVALID_ARGUMENT, "invalid value '%.100s' for %s",
                                    text, defs[row].name);
}

weft_status_t wefti_settings_load(wefti_settings_t *out_settings)
{
    wefti_settings_t settings = {0};
    for (size_t i = 0; i < sizeof defs / sizeof defs[0]; i++) {
        weft_status_t status = load_row(i, &settings);
        if (status != WEFT_OK) {
            return status;
        }
    }
    *out_settings = settings;
    return WEFT_OK;
}

weft_status_t wefti_settings_load_one(const char *name, wefti_settings_t *settings)
{
    for (size_t i = 0; i < sizeof defs / sizeof defs[0]; i++) {
        if (strcmp(defs[i].name, name) == 0) {
            return load_row(i, settings);
        }
    }
    return WEFT_ERR_NOT_FOUND;
}
