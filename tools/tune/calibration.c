/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calibration of this machine: a cost table in the user's cache folder, measured once, and the
 * choice of the costs that a command compiles with.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/base/settings.h"
#include "runtime/base/sync.h"
#include "runtime/machine/machine.h"
#include "tools/tune/tune.h"

/* Cores that this process may use, as ranks of `weft run` divide them. */
static uint32_t count_cores(void)
{
    wefti_arena_t arena;
    uint32_t *cpus, count = 0;
    wefti_arena_init(&arena, NULL, 0);
    (void)wefti_binding_choose(0, 1, WEFTI_BIND_CORE, &arena, &cpus, &count);
    wefti_arena_deinit(&arena);
    uint32_t quota = wefti_machine_quota();
    count = quota != 0 && quota < count ? quota : count;
    return count == 0 ? 1 : count > WEFTI_MAX_GROUP ? WEFTI_MAX_GROUP : count;
}

static void find_path(calibration_t *out)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME"), *below = "";
    out->path[0] = '\0';
    if (cache == NULL || cache[0] != '/') { /* the standard ignores relative paths */
        cache = home;
        below = "/.cache";
    }
    if (cache == NULL || cache[0] != '/') {
        return;
    }
    int length = snprintf(out->path, sizeof out->path, "%s%s/weft/costs-%016llx.json", cache, below,
                          (unsigned long long)wefti_hash_text(WEFTI_HASH_START, out->machine));
    if (length < 0 || (size_t)length >= sizeof out->path) {
        out->path[0] = '\0';
    }
}

weft_status_t wefti_calibration_find(calibration_t *out)
{
    wefti_arena_t arena;
    wefti_hardware_t machine;
    wefti_settings_t settings;
    *out = (calibration_t){.cores = 0};
    WEFT_RETURN_IF_ERROR(wefti_settings_load(&settings));
    wefti_arena_init(&arena, NULL, 0);
    weft_status_t status = wefti_hardware_discover(false, &arena, &machine);
    const char *cpu = machine.cpu[0] != '\0' ? machine.cpu : "unknown";
    out->cores = count_cores();
    out->cache_bytes = machine.l2_bytes;
    snprintf(out->name, sizeof out->name, "%.36s, %u core%s, %s", cpu, out->cores,
             out->cores == 1 ? "" : "s", wefti_isa_name(settings.isa));
    snprintf(out->machine, sizeof out->machine,
             "weft %s, kernels 2; %s; %u cores of %u; L2 %llu, L3 %llu; %s; %s", weft_version(),
             cpu, out->cores, machine.core_count, (unsigned long long)machine.l2_bytes,
             (unsigned long long)machine.l3_bytes, wefti_isa_name(settings.isa),
             wefti_kernels_name(settings.kernels));
    find_path(out);
    wefti_arena_deinit(&arena);
    return status;
}

weft_status_t wefti_calibration_make_place(const calibration_t *calibration)
{
    char path[sizeof calibration->path];
    snprintf(path, sizeof path, "%s", calibration->path);
    for (char *at = strchr(path + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        *at = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST) {
            return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot create folder %s", path);
        }
        *at = '/';
    }
    return WEFT_OK;
}

/* ---- settings of the ranks that measure ---- */

/* A calibration depends on the machine only, not on settings for one program. */
static const char *const neutral[] = {"WEFT_ALGO",      "WEFT_COSTS",    "WEFT_ORDER",
                                      "WEFT_TRANSPORT", "WEFT_CHECK",    "WEFT_TOPOLOGY",
                                      "WEFT_HOST_ID",   "WEFT_PROGRESS", "WEFT_LOG"};
#define NEUTRAL (sizeof neutral / sizeof *neutral)

static void set_aside(char *saved[NEUTRAL])
{
    for (size_t i = 0; i < NEUTRAL; i++) {
        const char *value = getenv(neutral[i]);
        saved[i] = value != NULL ? strdup(value) : NULL;
        unsetenv(neutral[i]);
    }
    setenv("WEFT_ORDER", "any", 1); /* all algorithms are measured */
}

static void put_back(char *saved[NEUTRAL])
{
    for (size_t i = 0; i < NEUTRAL; i++) {
        if (saved[i] != NULL) {
            setenv(neutral[i], saved[i], 1);
        } else {
            unsetenv(neutral[i]);
        }
        free(saved[i]);
    }
}

/* ---- the choice ---- */

/* Whether the cached table is there and is of this machine. */
static bool is_cached(const calibration_t *calibration, const char *command)
{
    wefti_costs_t costs;
    weft_status_t status = wefti_costs_load(&costs, calibration->path, NULL);
    if (status < 0) {
        if (status != WEFT_ERR_NOT_FOUND) {
            fprintf(stderr, "weft %s: warning: calibration ignored: %s\n", command,
                    weft_last_error());
        }
        return false;
    }
    bool same = strcmp(costs.machine, calibration->machine) == 0;
    if (!same) {
        fprintf(stderr, "weft %s: warning: calibration ignored: %s: made on another machine: %s\n",
                command, calibration->path, costs.machine);
    }
    wefti_costs_deinit(&costs);
    return same;
}

static int calibrate(const calibration_t *calibration, const char *command)
{
    char *saved[NEUTRAL];
    tune_command_t tune;
    uint64_t start = wefti_now_ns();
    wefti_tune_init(&tune);
    tune.command = command;
    tune.quick = true;
    tune.output = calibration->path;
    set_aside(saved);
    int code = wefti_tune_measure(&tune, calibration);
    put_back(saved);
    if (code == EXIT_OK) {
        weft_status_t status = wefti_calibration_make_place(calibration);
        status = status < 0 ? status : wefti_tune_write(&tune);
        if (status < 0) {
            fprintf(stderr, "weft %s: warning: calibration not cached: %s\n", command,
                    weft_last_error());
            code = EXIT_BAD_INPUT;
        } else {
            fprintf(stderr, "calibrated this machine in %.1f s, once; cached in %s\n",
                    (double)(wefti_now_ns() - start) * 1e-9, calibration->path);
        }
    }
    wefti_tune_deinit(&tune);
    return code;
}

static void use(compile_options_t *options, const char *path, const char *words)
{
    snprintf(options->costs, sizeof options->costs, "%s", path);
    options->params.costs_path = path[0] != '\0' ? options->costs : NULL;
    options->costs_words = words;
}

weft_status_t wefti_compile_choose_costs(compile_options_t *options, const char *command,
                                         bool alone)
{
    static const char by_default[] = "default costs of a generic CPU; run weft tune";
    const char *given = options->params.costs_path, *variable = getenv("WEFT_COSTS");
    wefti_settings_t settings;
    calibration_t calibration;
    use(options, "", by_default);
    if (given == NULL && variable != NULL && variable[0] != '\0') {
        given = variable;
    }
    if (given != NULL) {
        if (strcmp(given, "default") != 0) {
            use(options, given, "measured");
        }
        return WEFT_OK;
    }
    weft_status_t status = wefti_settings_load(&settings);
    if (status < 0) {
        return status;
    }
    /* Ranks that compile by themselves must agree, and a cluster is not this machine. */
    if (!alone || options->params.topology_path != NULL ||
        settings.calibrate == WEFTI_CALIBRATE_OFF) {
        return WEFT_OK;
    }
    if (wefti_calibration_find(&calibration) < 0 || calibration.path[0] == '\0') {
        if (settings.log_level >= WEFT_LOG_LEVEL_DEBUG) {
            fprintf(stderr, "weft %s: no calibration: %s\n", command,
                    calibration.path[0] == '\0' ? "XDG_CACHE_HOME and HOME are not set"
                                                : weft_last_error());
        }
        return WEFT_OK;
    }
    if (!is_cached(&calibration, command)) {
        int code = settings.calibrate == WEFTI_CALIBRATE_AUTO ? calibrate(&calibration, command)
                                                              : EXIT_BAD_INPUT;
        if (code != EXIT_OK) {
            options->interrupted = code == EXIT_INTERRUPTED; /* the launcher has reported it */
            return options->interrupted ? wefti_error(WEFT_ERR_ABORTED, "calibration interrupted")
                                        : WEFT_OK;
        }
    }
    use(options, calibration.path, "measured on this machine");
    return WEFT_OK;
}

int wefti_compile_error(const compile_options_t *options, const char *command, weft_status_t status)
{
    return options->interrupted ? EXIT_INTERRUPTED : wefti_status_error(command, status);
}
