/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/settings.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

typedef weft_status_t (*parse_fn)(const char *text, void *field);

typedef struct row {
    parse_fn parse;
    size_t offset; /* into wefti_settings_t */
} row_t;

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

static weft_status_t parse_isa(const char *text, void *field)
{
    return wefti_isa_parse(text, field);
}

static weft_status_t parse_progress(const char *text, void *field)
{
    static const char *const names[] = {"auto", "inline", "thread"};
    int found = choice(text, names, 3);
    if (found < 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "\"%s\" is not auto, inline or thread", text);
    }
    *(wefti_progress_t *)field = (wefti_progress_t)found;
    return WEFT_OK;
}

static const char *const kernels_names[] = {"exact", "onednn"};

const char *wefti_kernels_name(wefti_kernels_t kernels)
{
    return kernels_names[kernels == WEFTI_KERNELS_ONEDNN];
}

static weft_status_t parse_kernels(const char *text, void *field)
{
    int found = choice(text, kernels_names, 2);
    if (found < 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "\"%s\" is not exact or onednn", text);
    }
    *(wefti_kernels_t *)field = (wefti_kernels_t)found;
    return WEFT_OK;
}

static weft_status_t parse_check(const char *text, void *field)
{
    static const char *const names[] = {"off", "results"};
    int found = choice(text, names, 2);
    if (found < 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "\"%s\" is not off or results", text);
    }
    *(uint32_t *)field = (uint32_t)found;
    return WEFT_OK;
}

static weft_status_t parse_calibrate(const char *text, void *field)
{
    static const char *const names[] = {"off", "cached", "auto"};
    int found = choice(text, names, 3);
    if (found < 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "expected auto, cached or off");
    }
    *(uint32_t *)field = (uint32_t)found;
    return WEFT_OK;
}

static weft_status_t parse_attach(const char *text, void *field)
{
    static const char *const names[] = {"off", "auto", "always"};
    int found = choice(text, names, 3);
    if (found < 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "\"%s\" is not auto, always or off", text);
    }
    *(uint32_t *)field = (uint32_t)found;
    return WEFT_OK;
}

static weft_status_t parse_log_level(const char *text, void *field)
{
    static const char *const names[] = {"error", "warn", "info", "debug", "trace"};
    int found = choice(text, names, 5);
    if (found < 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "\"%s\" is not error, warn, info, debug or trace", text);
    }
    *(uint32_t *)field = (uint32_t)found;
    return WEFT_OK;
}

/* A number of at least 0, times scale, up to most. */
static weft_status_t parse_scaled(const char *text, double scale, uint64_t most, uint64_t *out)
{
    char *rest = NULL;
    double value;
    errno = 0;
    value = strtod(text, &rest);
    if (rest == text || *rest != '\0' || !isfinite(value) || value < 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "\"%s\" is not a number of at least 0", text);
    }
    if (value * scale > (double)most) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "\"%s\" is too large, at most %g", text,
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
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "\"%s\" is not a number of bytes such as 4096, 64M or 16G", text);
    }
    uint64_t factor = unit ? (uint64_t)1 << (10 * (unit - units + 1)) : 1;
    if (errno == ERANGE || __builtin_mul_overflow(bytes, factor, &bytes)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "\"%s\" bytes is too large", text);
    }
    *(uint64_t *)field = bytes;
    return WEFT_OK;
}

static weft_status_t parse_threads(const char *text, void *field)
{
    char *rest = NULL;
    unsigned long value = strtoul(text, &rest, 10);
    if (text[0] < '0' || text[0] > '9' || *rest || value > 4096) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "\"%s\" is not a whole number from 0 to 4096",
                           text);
    }
    *(uint32_t *)field = (uint32_t)value;
    return WEFT_OK;
}

static weft_status_t copy_text(const char *text, char *field, size_t bytes)
{
    size_t length = strlen(text);
    if (length >= bytes) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "longer than %zu characters", bytes - 1);
    }
    memcpy(field, text, length + 1);
    return WEFT_OK;
}

/* Names are looked up when the context is there: a program may bring algorithms of its own. */
static weft_status_t parse_algo(const char *text, void *field)
{
    return copy_text(text, field, sizeof((wefti_settings_t *)0)->algo);
}

static weft_status_t parse_costs(const char *text, void *field)
{
    return copy_text(text, field, sizeof((wefti_settings_t *)0)->costs);
}

static weft_status_t bad_order(const char *text)
{
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                       "\"%s\" is not tree, any, or blocks: and up to %u numbers of ranks, as in "
                       "blocks:4,4",
                       text, WEFTI_ORDER_SETTING_BLOCKS);
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
                return bad_order(text);
            }
            order.sizes[order.count++] = (uint32_t)value;
            at = rest;
        } while (*at == ',');
        if (*at != '\0') {
            return bad_order(text);
        }
    } else if (strcmp(text, "tree") != 0) {
        return bad_order(text);
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
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "\"%s\" is not auto, or some of shm, tcp and verbs with commas "
                               "between",
                               text);
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
    int found = choice(text, names, 2);
    if (found < 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "\"%s\" is not tcp or off", text);
    }
    *(uint32_t *)field = (uint32_t)found;
    return WEFT_OK;
}

static weft_status_t parse_topology(const char *text, void *field)
{
    return copy_text(text, field, sizeof((wefti_settings_t *)0)->topology);
}

static weft_status_t parse_bind(const char *text, void *field)
{
    static const char *const names[] = {"auto", "none", "core", "numa"};
    int found = choice(text, names, 4);
    if (found < 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "\"%s\" is not auto, none, core or numa",
                           text);
    }
    *(uint32_t *)field = (uint32_t)found;
    return WEFT_OK;
}

/* A whole number from least to most. */
static weft_status_t parse_within(const char *text, long least, long most, long *out)
{
    char *rest = NULL;
    errno = 0;
    long value = strtol(text, &rest, 10);
    if (rest == text || *rest != '\0' || errno != 0 || value < least || value > most) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "\"%s\" is not a whole number from %ld to %ld", text, least, most);
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
        status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "\"%s\" is not 0, 256, 512, 1024, 2048 or 4096", text);
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
      "instruction set of kernels and reductions: auto, portable, avx2 or avx512; results do not " \
      "depend on it")                                                                              \
    X("WEFT_PROGRESS", progress, parse_progress, "auto", "", 0,                                    \
      "communication runs inline between kernels, on a thread of its own, or as cores allow: "     \
      "auto, inline or thread")                                                                    \
    X("WEFT_TIMEOUT", timeout_ns, parse_seconds, "600", "s", 0,                                    \
      "how long a wait for other ranks may last; 0 is for ever")                                   \
    X("WEFT_SPIN_US", spin_ns, parse_microseconds, "100", "us", 0,                                 \
      "how long a wait spins before it yields; not at all when ranks outnumber cores")             \
    X("WEFT_RESERVE_BYTES", reserve_bytes, parse_bytes, "64G", "bytes", 1,                         \
      "address space reserved per rank for memory that peers reach; takes no memory itself")       \
    X("WEFT_STAGING_BYTES", staging_bytes, parse_bytes, "512K", "bytes", 1,                        \
      "staging buffers per group and rank, for collectives on memory that peers do not reach; "    \
      "four times as much in worlds of several hosts")                                             \
    X("WEFT_ATTACH", attach, parse_attach, "auto", "", 1,                                          \
      "memory that peers do not reach: auto (ranks read and write each other's by cross-memory "   \
      "attach where the system allows it and it pays), always (also where it does not pay) or "    \
      "off (through staging buffers)")                                                             \
    X("WEFT_CHECK", check, parse_check, "off", "", 1,                                              \
      "results: compare a digest of every collective's result over the ranks, where it must be "   \
      "equal; off")                                                                                \
    X("WEFT_LOG", log_level, parse_log_level, "warn", "", 0,                                       \
      "what is logged: error, warn, info, debug or trace")                                         \
    X("WEFT_THREADS", threads, parse_threads, "0", "threads", 0,                                   \
      "kernel threads per rank; 0 is the rank's share of the cores")                               \
    X("WEFT_KERNELS", kernels, parse_kernels, "exact", "", 1,                                      \
      "products and convolutions: exact (the same bits on every instruction set, no allocation "   \
      "per step) or onednn (results depend on instruction set and threads)")                       \
    X("WEFT_ALGO", algo, parse_algo, "", "", 1,                                                    \
      "algorithm of collectives: a name (ring), for all operators that have one of that name, or " \
      "Operator=name pairs (AllReduce=ring,AllGather=bruck); what cannot be honoured is an "       \
      "error; "                                                                                    \
      "unset: by the cost table")                                                                  \
    X("WEFT_ORDER", order, parse_order, "tree", "", 1,                                             \
      "in which order reductions of the world's groups combine ranks: tree, blocks:4,4 (a tree "   \
      "inside each block of so many ranks, then over blocks) or any (bits depend on the "          \
      "algorithm)")                                                                                \
    X("WEFT_COSTS", costs, parse_costs, "", "", 1,                                                 \
      "cost table by which algorithms are chosen, as weft tune writes it; unset: the built-in "    \
      "one; "                                                                                      \
      "ranks must have equal tables")                                                              \
    X("WEFT_CALIBRATE", calibrate, parse_calibrate, "auto", "", 0,                                 \
      "costs of weft compile and weft run MODEL.onnx without --costs and WEFT_COSTS: auto (the "   \
      "cached calibration of this machine, measured once), cached (if there is one) or off "       \
      "(default costs)")                                                                           \
    X("WEFT_TRANSPORT", transport, parse_transport, "auto", "", 1,                                 \
      "what ranks may reach each other by: auto, or some of shm, tcp and verbs with commas "       \
      "between; without shm every rank counts as a host of its own")                               \
    X("WEFT_IFNAME", ifname, parse_ifname, "", "", 0,                                              \
      "network interfaces: patterns with commas between (eth*,ib0), a leading ^ takes all "        \
      "others; unset: all that are up, loopback last")                                             \
    X("WEFT_HOST_ID", host_id, parse_host_id, "", "", 0,                                           \
      "which host a rank is on, where boot id and namespaces do not say so: ranks with equal ids " \
      "share memory")                                                                              \
    X("WEFT_CONNECT_TIMEOUT", connect_timeout_ns, parse_seconds, "60", "s", 0,                     \
      "how long ranks wait for all others to come (at unix:, on one host: WEFT_TIMEOUT)")          \
    X("WEFT_LINK_TIMEOUT", link_timeout_ns, parse_seconds, "15", "s", 0,                           \
      "how long another host may not answer before its link counts as broken")                     \
    X("WEFT_LATE", late_ns, parse_seconds, "10", "s", 0,                                           \
      "how long a call waits until a warning says for which ranks and links; 0: never")            \
    X("WEFT_SOCKETS", sockets, parse_sockets, "2", "", 1,                                          \
      "tcp: sockets per pair of ranks, 1 to 8")                                                    \
    X("WEFT_TCP_CONGESTION", congestion, parse_congestion, "auto", "", 0,                          \
      "tcp: congestion control: system, the name of one (cubic), or auto: the system's, but "      \
      "cubic "                                                                                     \
      "where that is bbr, which takes what collectives send in bursts for a slower link")          \
    X("WEFT_FALLBACK", fallback, parse_fallback, "tcp", "", 1,                                     \
      "what follows when a verbs link breaks: tcp (the call in flight fails, the next ones take "  \
      "tcp, with a warning) or off (all calls fail)")                                              \
    X("WEFT_VERBS_DEVICE", verbs.device, parse_verbs_device, "", "", 0,                            \
      "verbs: devices and ports, as patterns (mlx5_*, rxe0:1); unset: the one next to the rank")   \
    X("WEFT_VERBS_GID_INDEX", verbs.gid_index, parse_gid_index, "-1", "", 0,                       \
      "verbs: index of the GID; -1: RoCE v2 with an address of the peers' family")                 \
    X("WEFT_VERBS_MTU", verbs.mtu, parse_mtu, "0", "bytes", 0,                                     \
      "verbs: 256 to 4096; 0: the port's")                                                         \
    X("WEFT_VERBS_SL", verbs.service_level, parse_up_to_15, "0", "", 0, "verbs: service level")    \
    X("WEFT_VERBS_TRAFFIC_CLASS", verbs.traffic_class, parse_up_to_255, "0", "", 0,                \
      "verbs: traffic class")                                                                      \
    X("WEFT_VERBS_TIMEOUT", verbs.timeout, parse_up_to_31, "16", "", 0,                            \
      "verbs: 4.096 us * 2^timeout until an unacknowledged packet is sent again")                  \
    X("WEFT_VERBS_RETRY", verbs.retry, parse_up_to_7, "7", "", 0,                                  \
      "verbs: how often it is sent again before the link counts as broken")                        \
    X("WEFT_VERBS_QUEUE_PAIRS", verbs.queue_pairs, parse_up_to_16, "0", "", 1,                     \
      "verbs: queue pairs per pair of ranks; 0: by the link")                                      \
    X("WEFT_TOPOLOGY", topology, parse_topology, "", "", 1,                                        \
      "description of the cluster (JSON) in place of what is found; ranks must have equal ones")   \
    X("WEFT_BIND", bind, parse_bind, "auto", "", 0,                                                \
      "processors of ranks: core (cores of its own for each), numa (all of its cores' NUMA "       \
      "nodes), none, or auto: weft run and weft bench bind to cores, other programs' ranks are "   \
      "left as they were started")

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

weft_status_t wefti_settings_load(wefti_settings_t *out_settings)
{
    wefti_settings_t settings = {0};
    for (size_t i = 0; i < sizeof defs / sizeof defs[0]; i++) {
        const char *text = getenv(defs[i].name);
        if (!text || !*text) {
            text = defs[i].default_text;
        }
        weft_status_t status = rows[i].parse(text, (uint8_t *)&settings + rows[i].offset);
        if (status != WEFT_OK) {
            return wefti_error_prefix(WEFT_ERR_INVALID_ARGUMENT, "%s", defs[i].name);
        }
    }
    *out_settings = settings;
    return WEFT_OK;
}
