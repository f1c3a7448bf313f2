/* SPDX-License-Identifier: Apache-2.0 */
/* weft info: version, machine, transports, settings. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/json.h"
#include "runtime/base/library.h"
#include "runtime/base/settings.h"
#include "runtime/machine/machine.h"
#include "tools/doctor.h"
#include "tools/output.h"
#include "tools/tool.h"
#include "transport/bootstrap/bootstrap.h"

enum { KEY_JSON = 256, KEY_DEVICES };

static const option_def_t own_options[] = {
    {KEY_DEVICES, "devices", NULL, "only the devices that plugins find, with what each can do"},
    {KEY_JSON, "json", NULL, "print one JSON object"},
    {0, NULL, NULL, NULL},
};

static int run_info_command(int argc, char **argv);

const command_t wefti_info_command = {
    .name = "info",
    .brief = "show the version, this machine, transports, libraries, devices and settings",
    .synopsis = "[--devices] [--json]",
    .summary = "Shows the version, the CPU and its topology, the launcher that a rank started here "
               "would join, transports, libraries, devices, and every setting with its value.",
    .epilogue = "Example:\n"
                "  weft info --devices\n",
    .options = {own_options},
    .run = run_info_command,
};

typedef struct transport_row {
    const char *name;
    const char *summary;
    const char *check; /* of weft doctor, which tells what there is; NULL: none */
} transport_row_t;

static const transport_row_t transports[] = {
    {"shm", "processes of one host: memory mapped by all, found over a unix socket", NULL},
    {"inproc", "threads of one process", NULL},
    {"tcp", "ranks on several hosts: ", "network"},
    {"verbs", "ranks on several hosts, RDMA: ", "rdma"},
    {"null", "a world of one", NULL},
};

typedef struct info_options {
    bool json, devices;
} info_options_t;

static int handle(void *user, int key, const char *value)
{
    info_options_t *options = user;
    (void)value;
    *(key == KEY_JSON ? &options->json : &options->devices) = true;
    return EXIT_OK;
}

static const char *setting_value(const wefti_setting_def_t *def)
{
    const char *value = getenv(def->name);
    return value != NULL ? value : def->default_text;
}

/* What a rank started in place of this process would find; *out_status < 0: message. */
static void probe(wefti_job_t *job, weft_status_t *out_status)
{
    static const wefti_job_wish_t nothing = {-1, -1, NULL};
    static const wefti_log_t log = {.level = WEFT_LOG_LEVEL_ERROR};
    *out_status = wefti_job_probe(&nothing, &log, job);
}

static void print_launcher(void)
{
    wefti_job_t job;
    weft_status_t status;
    probe(&job, &status);
    if (status < 0) {
        printf("launcher   %s\n\n", weft_last_error());
    } else if (job.world_size == 1) {
        printf("launcher   %s: world size 1\n\n", job.launcher);
    } else {
        printf("launcher   %s: rank %u of %u, rendezvous at %s%s\n\n", job.launcher, job.rank,
               job.world_size, job.address, job.secret_bytes > 0 ? ", with a secret" : "");
    }
    wefti_job_deinit(&job);
}

static void print_launcher_json(wefti_json_t *json)
{
    wefti_job_t job;
    weft_status_t status;
    probe(&job, &status);
    wefti_json_begin_object(json, "launcher");
    if (status < 0) {
        wefti_json_string(json, "error", weft_last_error());
    } else {
        wefti_json_string(json, "name", job.launcher);
        wefti_json_int(json, "rank", job.rank);
        wefti_json_int(json, "world_size", job.world_size);
        wefti_json_string(json, "address", job.address);
    }
    wefti_json_end_object(json);
    wefti_job_deinit(&job);
}

static void print_transports(const wefti_hardware_t *hardware, wefti_arena_t *arena)
{
    const doctor_machine_t machine = {"", NULL, hardware, arena};
    printf("transports\n");
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++) {
        const transport_row_t *row = &transports[i];
        printf("  %-8s %s%s\n", row->name, row->summary,
               row->check != NULL ? wefti_doctor_run(row->check, &machine).found : "");
    }
    puts("\nlibraries, loaded when they are needed");
    for (int i = 0; i < WEFTI_LIBRARIES; i++) {
        const wefti_library_def_t *def = &wefti_libraries[i];
        bool found = wefti_library_probe((wefti_library_t)i) == WEFT_OK;
        if (found) {
            printf("  %-8s %s: found %s\n", def->name, def->use, def->file);
        } else { /* without its name again */
            printf("  %-8s %s: %s\n", def->name, def->use,
                   weft_last_error() + strlen(def->name) + 2);
        }
    }
    printf("\ndevices\n  %-8s kernels of this build\n", "cpu");
    for (uint32_t i = 0; i < hardware->card_count; i++) {
        printf("  %-8s %s, for programs that bring its functions (weft/device.h)\n",
               hardware->cards[i].name, hardware->cards[i].kind);
    }
}

/* Not hwloc's sum over nodes: memory added while the machine runs is missing there. */
static uint64_t memory_bytes(void)
{
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static const char *cpu_name(const wefti_hardware_t *hardware)
{
    return hardware->cpu[0] != '\0' ? hardware->cpu : "unknown";
}

static void print_text(const wefti_hardware_t *hardware, wefti_arena_t *arena)
{
    char l2[32];
    char l3[32];
    char memory[32];
    size_t count = 0;
    const wefti_setting_def_t *defs = wefti_setting_defs(&count);
    printf("weft %s\n\n", weft_version());
    printf("CPU        %s, %s\n", cpu_name(hardware), wefti_isa_name(wefti_isa_detect()));
    printf("topology   %u socket(s), %u NUMA node(s), %u cores, %u hardware threads\n",
           hardware->socket_count, hardware->numa_count, hardware->core_count, hardware->cpu_count);
    printf("caches     L2 %s, L3 %s; memory %s\n\n", wefti_format_bytes(hardware->l2_bytes, l2),
           wefti_format_bytes(hardware->l3_bytes, l3), wefti_format_bytes(memory_bytes(), memory));
    print_launcher();
    print_transports(hardware, arena);
    puts("\nsettings (environment variables; = equal on all ranks)");
    for (size_t i = 0; i < count; i++) {
        const char *value = setting_value(&defs[i]);
        bool changed = strcmp(value, defs[i].default_text) != 0;
        char head[256];
        snprintf(head, sizeof head, "%s%s%s%s%s%s", value[0] != '\0' ? value : "unset",
                 defs[i].unit[0] != '\0' && value[0] != '\0' ? " " : "",
                 value[0] != '\0' ? defs[i].unit : "", changed ? " (default: " : "",
                 !changed                          ? ""
                 : defs[i].default_text[0] != '\0' ? defs[i].default_text
                                                   : "unset",
                 changed ? ")" : "");
        printf("  %-26s%s %s\n%6s", defs[i].name, defs[i].collective ? "=" : " ", head, "");
        wefti_print_wrapped(stdout, defs[i].help, 6, 6);
    }
}

static void print_json(const wefti_hardware_t *hardware)
{
    output_object_t object;
    size_t count = 0;
    const wefti_setting_def_t *defs = wefti_setting_defs(&count);
    wefti_json_t *json = wefti_output_begin(&object);
    wefti_json_string(json, "version", weft_version());
    wefti_json_begin_object(json, "machine");
    wefti_json_string(json, "cpu", cpu_name(hardware));
    wefti_json_string(json, "isa", wefti_isa_name(wefti_isa_detect()));
    wefti_json_int(json, "sockets", hardware->socket_count);
    wefti_json_int(json, "numa_nodes", hardware->numa_count);
    wefti_json_int(json, "cores", hardware->core_count);
    wefti_json_int(json, "hardware_threads", hardware->cpu_count);
    wefti_json_int(json, "l2_bytes", (int64_t)hardware->l2_bytes);
    wefti_json_int(json, "l3_bytes", (int64_t)hardware->l3_bytes);
    wefti_json_int(json, "memory_bytes", (int64_t)memory_bytes());
    wefti_json_end_object(json);
    print_launcher_json(json);
    wefti_json_begin_array(json, "transports");
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++) {
        wefti_json_string(json, NULL, transports[i].name);
    }
    wefti_json_end_array(json);
    wefti_json_begin_array(json, "libraries");
    for (int i = 0; i < WEFTI_LIBRARIES; i++) {
        bool found = wefti_library_probe((wefti_library_t)i) == WEFT_OK;
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "name", wefti_libraries[i].name);
        wefti_json_string(json, "file", wefti_libraries[i].file);
        wefti_json_string(json, "use", wefti_libraries[i].use);
        wefti_json_string(json, "error", found ? "" : weft_last_error());
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
    wefti_json_begin_array(json, "devices");
    wefti_json_string(json, NULL, "cpu");
    for (uint32_t i = 0; i < hardware->card_count; i++) {
        wefti_json_string(json, NULL, hardware->cards[i].name);
    }
    wefti_json_end_array(json);
    wefti_json_begin_array(json, "settings");
    for (size_t i = 0; i < count; i++) {
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "name", defs[i].name);
        wefti_json_string(json, "value", setting_value(&defs[i]));
        wefti_json_string(json, "default", defs[i].default_text);
        wefti_json_string(json, "unit", defs[i].unit);
        wefti_json_bool(json, "collective", defs[i].collective != 0);
        wefti_json_string(json, "help", defs[i].help);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
    wefti_output_end(&object);
}

/* ---- devices of plugins ---- */

/* The plugin of this project, and that of the setting WEFT_DEVICE if it is another one. */
static uint32_t plugin_names(char out[2][64])
{
    const char *asked = getenv("WEFT_DEVICE");
    int length = asked != NULL ? (int)strcspn(asked, ":,") : 0;
    snprintf(out[0], sizeof out[0], "opencl");
    snprintf(out[1], sizeof out[1], "%.*s", length, length > 0 ? asked : "");
    return length > 0 && strcmp(out[1], out[0]) != 0 && strcmp(out[1], "cpu") != 0 ? 2 : 1;
}

static void print_device(const char *plugin, uint32_t index, const weft_device_info_t *info)
{
    char memory[32];
    printf("%s:%u    %s\n  platform   %s\n  memory     %s\n  processors %u\n  host       %s\n"
           "  peers      %s\n  bits       %s\n  note       %s\n",
           plugin, index, info->name, info->platform,
           wefti_format_bytes(info->memory_bytes, memory), info->compute_units,
           info->caps & WEFT_DEVICE_HOST_ACCESS ? "may access the memory" : "copies",
           info->caps & WEFT_DEVICE_PEER_DIRECT ? "of this host may access the memory"
                                                : "by copies through host memory",
           info->caps & WEFT_DEVICE_CPU_BITS ? "of f32 are those of the CPU" : "are its own",
           info->note[0] != '\0' ? info->note : "none");
}

static void print_device_json(wefti_json_t *json, const char *plugin, uint32_t index,
                              const weft_device_info_t *info)
{
    char name[96];
    snprintf(name, sizeof name, "%s:%u", plugin, index);
    wefti_json_begin_object(json, NULL);
    wefti_json_string(json, "device", name);
    wefti_json_string(json, "name", info->name);
    wefti_json_string(json, "platform", info->platform);
    wefti_json_int(json, "memory_bytes", (int64_t)info->memory_bytes);
    wefti_json_int(json, "compute_units", info->compute_units);
    wefti_json_bool(json, "host_access", (info->caps & WEFT_DEVICE_HOST_ACCESS) != 0);
    wefti_json_bool(json, "peer_direct", (info->caps & WEFT_DEVICE_PEER_DIRECT) != 0);
    wefti_json_bool(json, "cpu_bits", (info->caps & WEFT_DEVICE_CPU_BITS) != 0);
    wefti_json_string(json, "note", info->note);
    wefti_json_end_object(json);
}

/* What became of the plugins so far. */
typedef struct shown {
    uint32_t devices;
    weft_status_t status; /* of the first plugin that failed */
    char errors[2][512];  /* per plugin; "": none */
} shown_t;

/* The devices of plugin number p, as items of an array of json if that is not NULL. */
static void show_plugin(wefti_json_t *json, const char *name, uint32_t p, shown_t *shown)
{
    uint32_t count = 0;
    weft_status_t status = weft_device_count(name, &count);
    for (uint32_t i = 0; i < count && status == WEFT_OK; i++) {
        weft_device_info_t info = WEFT_DEVICE_INFO_INIT;
        status = weft_device_describe(name, i, &info);
        if (status == WEFT_OK && json != NULL) {
            print_device_json(json, name, i, &info);
        } else if (status == WEFT_OK) {
            print_device(name, i, &info);
        }
        shown->devices += status == WEFT_OK;
    }
    if (status < 0) {
        snprintf(shown->errors[p], sizeof shown->errors[p], "%s", weft_last_error());
        shown->status = shown->status < 0 ? shown->status : status;
    }
}

/* A plugin's error hides no other one's devices: it fails the command if there are none at all. */
static int show_only_devices(bool as_json)
{
    output_object_t object;
    char names[2][64];
    shown_t shown = {.status = WEFT_OK};
    const uint32_t plugins = plugin_names(names);
    wefti_json_t *json = as_json ? wefti_output_begin(&object) : NULL;
    if (json != NULL) {
        wefti_json_begin_array(json, "devices");
    }
    for (uint32_t p = 0; p < plugins; p++) {
        show_plugin(json, names[p], p, &shown);
    }
    if (json != NULL) {
        wefti_json_end_array(json);
        wefti_json_begin_array(json, "errors");
    }
    for (uint32_t p = 0; p < plugins; p++) {
        if (shown.errors[p][0] != '\0') {
            fprintf(stderr, "weft info: %s\n", shown.errors[p]);
        }
        if (shown.errors[p][0] != '\0' && json != NULL) {
            wefti_json_string(json, NULL, shown.errors[p]);
        }
    }
    if (json != NULL) {
        wefti_json_end_array(json);
        wefti_output_end(&object);
    }
    return shown.devices > 0 || shown.status == WEFT_OK ? EXIT_OK
                                                        : (int)wefti_exit_code(shown.status);
}

static int run_info_command(int argc, char **argv)
{
    info_options_t options = {false, false};
    int positional = 0;
    wefti_hardware_t hardware;
    wefti_arena_t arena;
    int code = wefti_parse_options(argc, argv, &wefti_info_command, handle, &options, &positional);
    if (code != EXIT_OK) {
        return code < 0 ? EXIT_OK : code;
    }
    if (positional != 0) {
        return wefti_usage_error("info", "unexpected argument '%s'", argv[1]);
    }
    if (options.devices) {
        return show_only_devices(options.json);
    }
    wefti_arena_init(&arena, NULL, 0);
    weft_status_t status = wefti_hardware_discover(true, &arena, &hardware);
    if (status >= 0 && options.json) {
        print_json(&hardware);
    } else if (status >= 0) {
        print_text(&hardware, &arena);
    }
    wefti_arena_deinit(&arena);
    if (status < 0) {
        return wefti_status_error("info", status);
    }
    /* After the table, which shows all values: the first one that other commands refuse. */
    wefti_settings_t settings;
    status = wefti_settings_load(&settings);
    return status < 0 ? wefti_status_error("info", status) : EXIT_OK;
}
