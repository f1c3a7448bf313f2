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
#include "runtime/base/text.h"

/*
 * Parsers record what they expect; wefti_settings_load puts "invalid value 'x' for WEFT_Y: " before
 * that.
 */
static weft_status_t expected(const char *what)
{
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "expected %s", what);
}

/* The position of text in names, or -1. */
static int find_choice(const char *text, const char *const *names)
{
    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(text, names[i]) == 0) {
            return i;
        }
    }
    return -1;
}

/* Also of the numbers by which other programs know off and on. */
static int find_value(const char *text, const char *const *names)
{
    static const char *const numbers[] = {"0", "1", NULL};
    bool is_switch =
        strcmp(names[0], "off") == 0 && strcmp(names[1], "on") == 0 && names[2] == NULL;
    int found = find_choice(text, names);
    return found < 0 && is_switch ? find_choice(text, numbers) : found;
}

/* Fields are uint32_t or enumerations. */
static weft_status_t parse_choice(const char *text, const wefti_setting_def_t *def, void *field)
{
    char list[128] = "";
    size_t used = 0;
    int found = find_value(text, def->choices);
    if (found >= 0) {
        *(uint32_t *)field = (uint32_t)(def->least + found);
        return WEFT_OK;
    }
    for (const char *const *name = def->choices; *name != NULL; name++) {
        const char *between = name == def->choices ? "" : name[1] != NULL ? ", " : " or ";
        used += (size_t)snprintf(list + used, sizeof list - used, "%s'%s'", between, *name);
    }
    return expected(list);
}

static weft_status_t parse_isa(const char *text, const wefti_setting_def_t *def, void *field)
{
    (void)def;
    return wefti_isa_parse(text, field);
}

/* A number of at least 0, in units of def->scale. */
static weft_status_t parse_time(const char *text, const wefti_setting_def_t *def, void *field)
{
    const double most = 0x1p62;
    double value;
    if (!wefti_double_parse(text, &value) || !isfinite(value) || value < 0) {
        return expected("a number of at least 0");
    }
    if (value * def->scale > most) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "too large: at most %g", most / def->scale);
    }
    *(uint64_t *)field = (uint64_t)(value * def->scale);
    return WEFT_OK;
}

/* A whole number with an optional K, M, G or T (powers of 1024). */
static weft_status_t parse_bytes(const char *text, const wefti_setting_def_t *def, void *field)
{
    static const char units[] = "KMGT";
    char *rest = NULL;
    const char *unit = NULL;
    (void)def;
    errno = 0;
    uint64_t bytes = strtoull(text, &rest, 10);
    if (*rest != '\0' && (unit = strchr(units, *rest)) != NULL) {
        rest++;
    }
    if (text[0] < '0' || text[0] > '9' || *rest != '\0') { /* strtoull takes "-1" and " 1" */
        return expected("a number of bytes such as 4096, 64M or 16G");
    }
    uint64_t factor = unit != NULL ? (uint64_t)1 << (10 * (unit - units + 1)) : 1;
    if (errno == ERANGE || __builtin_mul_overflow(bytes, factor, &bytes)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "too large: at most 2^64 - 1 bytes");
    }
    *(uint64_t *)field = bytes;
    return WEFT_OK;
}

static weft_status_t parse_check(const char *text, const wefti_setting_def_t *def, void *field)
{
    static const char results[] = "results";
    size_t length = sizeof results - 1;
    uint32_t *every = field;
    (void)def;
    if (strcmp(text, "off") == 0) {
        *every = 0;
        return WEFT_OK;
    }
    if (strcmp(text, results) == 0) {
        *every = 1;
        return WEFT_OK;
    }
    char *rest = NULL;
    unsigned long number = 0;
    if (strncmp(text, "results:", length + 1) == 0 && text[length + 1] >= '0' &&
        text[length + 1] <= '9') {
        number = strtoul(text + length + 1, &rest, 10);
    }
    if (number == 0 || number > INT32_MAX || *rest != '\0') {
        return expected("'off', 'results' or 'results:N' with N at least 1");
    }
    *every = (uint32_t)number;
    return WEFT_OK;
}

/* Fields are uint32_t or int32_t. */
static weft_status_t parse_whole(const char *text, const wefti_setting_def_t *def, void *field)
{
    char *rest = NULL;
    errno = 0;
    long value = strtol(text, &rest, 10);
    const char *digits = text + (*text == '-' && def->least < 0); /* strtol takes " 1" and "+1" */
    if (*digits < '0' || *digits > '9' || *rest != '\0' || errno != 0 || value < def->least ||
        value > def->most) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "expected a whole number between %d and %d",
                           def->least, def->most);
    }
    *(int32_t *)field = (int32_t)value;
    return WEFT_OK;
}

static weft_status_t parse_mtu(const char *text, const wefti_setting_def_t *def, void *field)
{
    static const char *const names[] = {"0", "256", "512", "1024", "2048", "4096", NULL};
    if (find_choice(text, names) < 0) {
        return expected("0, 256, 512, 1024, 2048 or 4096");
    }
    (void)def;
    *(uint32_t *)field = (uint32_t)strtoul(text, NULL, 10);
    return WEFT_OK;
}

static weft_status_t parse_text(const char *text, const wefti_setting_def_t *def, void *field)
{
    size_t length = strlen(text);
    if (length >= def->field_bytes) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "too long: %zu characters, at most %zu",
                           length, def->field_bytes - 1);
    }
    memcpy(field, text, length + 1);
    return WEFT_OK;
}

static weft_status_t parse_order(const char *text, const wefti_setting_def_t *def, void *field)
{
    (void)def;
    return wefti_order_parse(text, field);
}

static weft_status_t parse_transport(const char *text, const wefti_setting_def_t *def, void *field)
{
    static const char *const names[] = {"shm", "tcp", "verbs", NULL};
    for (const char *at = text; strcmp(text, "auto") != 0; at++) {
        size_t length = strcspn(at, ",");
        char name[16] = "";
        memcpy(name, at, length < sizeof name ? length : 0);
        if (find_choice(name, names) < 0) {
            return expected(
                "'auto', or one or more of 'shm', 'tcp' and 'verbs' with commas between");
        }
        at += length;
        if (*at == '\0') {
            break;
        }
    }
    return parse_text(text, def, field);
}

#define FIELD(name) offsetof(wefti_settings_t, name), sizeof((wefti_settings_t *)0)->name
#define PARSED(function) .parse = function
#define TEXT .parse = parse_text
#define SECONDS .parse = parse_time, .scale = 1e9
#define MICROSECONDS .parse = parse_time, .scale = 1e3
#define WHOLE(from, to) .parse = parse_whole, .least = (from), .most = (to)
/* The first name is the value first, the others follow. */
#define CHOICE(first, ...)                                                                         \
    .parse = parse_choice, .least = (first), .choices = (const char *const[])                      \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

static const wefti_setting_def_t defs[] = {
    {"WEFT_ISA", "auto", "",
     "instruction set of kernels and reductions: auto, portable, avx2 or avx512; results do "
     "not depend on it",
     false, FIELD(isa), PARSED(parse_isa)},
    {"WEFT_PROGRESS", "auto", "",
     "where communication of a plan runs: inline (between kernels), thread (on its own "
     "thread) or auto (thread if cores are free)",
     false, FIELD(progress), CHOICE(WEFT_PROGRESS_AUTO, "auto", "inline", "thread")},
    {"WEFT_TIMEOUT", "600", "s", "maximum time that a call waits for other ranks; 0: no limit",
     false, FIELD(timeout_ns), SECONDS},
    {"WEFT_SPIN_US", "100", "us",
     "time that a wait spins before it yields the core; ignored if ranks outnumber cores", false,
     FIELD(spin_ns), MICROSECONDS},
    {"WEFT_RESERVE_BYTES", "64G", "bytes",
     "address space per rank for registered memory; physical memory is used only as it is "
     "allocated",
     true, FIELD(reserve_bytes), PARSED(parse_bytes)},
    {"WEFT_STAGING_BYTES", "0", "bytes",
     "the most that staging buffers per group and rank take, for collectives on memory that is not "
     "registered; 0: 512K, or 2M where ranks are on several hosts or outnumber the cores",
     true, FIELD(staging_bytes), PARSED(parse_bytes)},
    {"WEFT_ATTACH", "auto", "",
     "how peers access memory that is not registered: auto (cross-memory attach where the "
     "system permits it and calls of that size were faster, which the first of them measure), "
     "always (wherever permitted) or off (staging buffers)",
     true, FIELD(attach), CHOICE(0, "off", "auto", "always")},
    {"WEFT_CHECK", "off", "",
     "results: check the result of every collective between ranks, also of plans; results:N: of "
     "every Nth call, and in every Nth run of a plan; off: no check. Not checked: plans on "
     "devices, "
     "and parts among more than 1024 ranks",
     true, FIELD(check_every), PARSED(parse_check)},
    {"WEFT_LOG", "warn", "", "log level: error, warn, info, debug or trace", false,
     FIELD(log_level), CHOICE(0, "error", "warn", "info", "debug", "trace")},
    {"WEFT_THREADS", "0", "threads", "kernel threads per rank; 0: the number of cores of the rank",
     false, FIELD(threads), WHOLE(0, 4096)},
    {"WEFT_KERNELS", "exact", "",
     "matrix products and convolutions: exact (same bits on every instruction set, no "
     "allocation per step) or onednn (results depend on instruction set and threads)",
     true, FIELD(kernels), CHOICE(0, "exact", "onednn")},
    {"WEFT_DEVICE", "cpu", "",
     "device of a rank whose program names none: cpu, or PLUGIN, PLUGIN:INDEX or PLUGIN:NAME, such "
     "as opencl:0; of PLUGIN:A,B the ranks of a host take one each in turn",
     false, FIELD(device), TEXT},
    {"WEFT_DEVICE_PATH", "", "",
     "folder of device plugins (libweft_opencl.so); unset: next to the library, then where the "
     "system looks for libraries",
     false, FIELD(device_path), TEXT},
    {"WEFT_ALGO", "", "",
     "algorithm of collectives: a name such as ring, for every operator that has it, or pairs "
     "such as all_reduce=ring,all_gather=bruck; an XML file of MSCCL (ring.xml) is loaded and "
     "proved; an error if it is not eligible; unset: the choice by cost",
     true, FIELD(algo), TEXT},
    {"WEFT_ORDER", "tree", "",
     "reduction order of groups: tree, blocks:4,4 (a tree within each block of that number of "
     "ranks, then over the blocks) or any (bits depend on the algorithm)",
     true, FIELD(order), PARSED(parse_order)},
    {"WEFT_COSTS", "", "",
     "cost table that decides the choice of algorithms, written by weft tune; unset: the "
     "built-in table",
     true, FIELD(costs), TEXT},
    {"WEFT_CALIBRATE", "auto", "",
     "costs of weft compile and weft run MODEL.onnx without --costs and WEFT_COSTS: auto (the "
     "cached calibration of this machine, measured if there is none), cached (only if there "
     "is one) or off (default costs)",
     false, FIELD(calibrate), CHOICE(0, "off", "cached", "auto")},
    {"WEFT_TRANSPORT", "auto", "",
     "transports to use: auto, or one or more of shm, tcp and verbs with commas between; "
     "without shm every rank counts as a host of its own",
     true, FIELD(transport), PARSED(parse_transport)},
    {"WEFT_IFNAME", "", "",
     "network interfaces to use, as patterns with commas between (eth*,ib0); a leading ^ "
     "excludes them; unset: all that are up, loopback last",
     false, FIELD(ifname), TEXT},
    {"WEFT_HOST_ID", "", "",
     "identity of this host, if boot id and namespaces do not identify it: ranks with equal "
     "ids share memory",
     false, FIELD(host_id), TEXT},
    {"WEFT_CONNECT_TIMEOUT", "60", "s",
     "maximum time until all ranks have connected (addresses unix: use WEFT_TIMEOUT)", false,
     FIELD(connect_timeout_ns), SECONDS},
    {"WEFT_LINK_TIMEOUT", "15", "s",
     "time without an answer after which a link to another host counts as broken", false,
     FIELD(link_timeout_ns), SECONDS},
    {"WEFT_LATE", "10", "s",
     "time after which a warning names the ranks and links that a call waits for; 0: never", false,
     FIELD(late_ns), SECONDS},
    {"WEFT_LATE_STACKS", "off", "",
     "on or 1: reports of WEFT_LATE come with stacks of the late ranks, by gdb, eu-stack or gstack "
     "on "
     "their hosts; processes of this user may then trace the ranks",
     false, FIELD(late_stacks), CHOICE(0, "off", "on")},
    {"WEFT_DUMP", "", "",
     "folder to which ranks dump their last calls after an error, and on SIGUSR1 if the program "
     "leaves that signal alone; files are named by rank, host and process; `weft analyze` reads "
     "them",
     false, FIELD(dump), TEXT},
    {"WEFT_SOCKETS", "2", "", "tcp: sockets per pair of ranks, 1 to 8", true, FIELD(sockets),
     WHOLE(1, 8)},
    {"WEFT_TCP_CONGESTION", "auto", "",
     "tcp: congestion control: system, a name such as cubic, or auto (the system's, but cubic "
     "in place of bbr, which underestimates links with bursts)",
     false, FIELD(congestion), TEXT},
    {"WEFT_FALLBACK", "tcp", "",
     "when a verbs link breaks: tcp (calls in flight fail, later ones use tcp, with a "
     "warning) or off (all calls fail)",
     true, FIELD(fallback), CHOICE(0, "off", "tcp")},
    {"WEFT_VERBS_DEVICE", "", "",
     "verbs: devices and ports, as patterns (mlx5_*, rxe0:1); unset: the device nearest to "
     "the rank",
     false, FIELD(verbs.device), TEXT},
    {"WEFT_VERBS_GID_INDEX", "-1", "",
     "verbs: index of the GID; -1: RoCE v2 with the address family of the peers", false,
     FIELD(verbs.gid_index), WHOLE(-1, 255)},
    {"WEFT_VERBS_MTU", "0", "bytes", "verbs: path MTU, 256 to 4096; 0: that of the port", false,
     FIELD(verbs.mtu), PARSED(parse_mtu)},
    {"WEFT_VERBS_SL", "0", "", "verbs: service level, 0 to 15", false, FIELD(verbs.service_level),
     WHOLE(0, 15)},
    {"WEFT_VERBS_TRAFFIC_CLASS", "0", "", "verbs: traffic class, 0 to 255", false,
     FIELD(verbs.traffic_class), WHOLE(0, 255)},
    {"WEFT_VERBS_TIMEOUT", "16", "",
     "verbs: exponent t of the retransmission timeout, 4.096 us * 2^t", false, FIELD(verbs.timeout),
     WHOLE(0, 31)},
    {"WEFT_VERBS_RETRY", "7", "", "verbs: retransmissions before the link counts as broken, 0 to 7",
     false, FIELD(verbs.retry), WHOLE(0, 7)},
    {"WEFT_VERBS_QUEUE_PAIRS", "0", "",
     "verbs: queue pairs per pair of ranks, 1 to 16; 0: depends on the link", true,
     FIELD(verbs.queue_pairs), WHOLE(0, 16)},
    {"WEFT_TOPOLOGY", "", "", "description of the cluster (JSON), used in place of discovery", true,
     FIELD(topology), TEXT},
    {"WEFT_BIND", "auto", "",
     "binding of ranks: core (own cores), numa (all cores of their NUMA nodes), none, or auto "
     "(weft run and weft bench bind to cores; ranks of other launchers keep their binding)",
     false, FIELD(bind), CHOICE(0, "auto", "none", "core", "numa")},
    {"WEFT_VERIFY_EACH", "off", "",
     "on or 1: every compilation verifies the graph after each pass, as with --verify-each", false,
     FIELD(verify_each), CHOICE(0, "off", "on")},
};

const char *wefti_kernels_name(wefti_kernels_t kernels)
{
    return kernels == WEFTI_KERNELS_ONEDNN ? "onednn" : "exact";
}

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

static weft_status_t load_one(const wefti_setting_def_t *def, wefti_settings_t *settings)
{
    const char *text = getenv(def->name);
    if (text == NULL || *text == '\0') {
        text = def->default_text;
    }
    return def->parse(text, def, (uint8_t *)settings + def->offset) == WEFT_OK
               ? WEFT_OK
               : wefti_error_prefix(WEFT_ERR_INVALID_ARGUMENT, "invalid value '%.100s' for %s",
                                    text, def->name);
}

weft_status_t wefti_settings_load(wefti_settings_t *out_settings)
{
    wefti_settings_t settings = {0};
    for (size_t i = 0; i < sizeof defs / sizeof defs[0]; i++) {
        WEFT_RETURN_IF_ERROR(load_one(&defs[i], &settings));
    }
    *out_settings = settings;
    return WEFT_OK;
}

weft_status_t wefti_settings_load_one(const char *name, wefti_settings_t *settings)
{
    for (size_t i = 0; i < sizeof defs / sizeof defs[0]; i++) {
        if (strcmp(defs[i].name, name) == 0) {
            return load_one(&defs[i], settings);
        }
    }
    return WEFT_ERR_NOT_FOUND;
}
