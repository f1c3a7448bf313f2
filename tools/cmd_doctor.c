/* SPDX-License-Identifier: Apache-2.0 */
/* weft doctor: what on this machine makes Weft slow, or keeps it from running. */
#include <stdio.h>
#include <string.h>

#include "runtime/machine/machine.h"
#include "tools/doctor.h"
#include "tools/output.h"
#include "tools/tool.h"

enum { KEY_JSON = 256 };

static const option_def_t own_options[] = {
    {KEY_JSON, "json", NULL, "print one JSON object"},
    {0, NULL, NULL, NULL},
};

static int run_doctor_command(int argc, char **argv);

const command_t wefti_doctor_command = {
    .name = "doctor",
    .brief = "check this machine and its limits for running ranks",
    .synopsis = "[--json]",
    .summary = "Checks this machine and the limits of this process: processors, clock, memory, "
               "file descriptors, network and RDMA devices. For everything that is not ok it "
               "prints what depends on it and how to fix it. Run it where ranks run: in the "
               "container, under the launcher. Nothing is changed.\n"
               "\n"
               "hint: could be faster. warning: slower, or not for every use. error: ranks cannot "
               "start here; the exit status is 1.",
    .epilogue = NULL,
    .options = {own_options},
    .run = run_doctor_command,
};

static int handle(void *user, int key, const char *value)
{
    (void)key;
    (void)value;
    *(bool *)user = true;
    return EXIT_OK;
}

static void print_text(const doctor_check_t *check, const doctor_result_t *result)
{
    enum { INDENT = 25 };
    int at = printf("%-8s %-15s ", wefti_doctor_level_name(result->level), check->name);
    wefti_print_wrapped(stdout, result->found, (size_t)at, INDENT);
    if (result->level != DOCTOR_OK) {
        printf("%*s", INDENT, "");
        wefti_print_wrapped(stdout, check->meaning, INDENT, INDENT);
    }
    if (result->remedy[0] != '\0') {
        at = printf("%*sfix: ", INDENT, "");
        wefti_print_wrapped(stdout, result->remedy, (size_t)at, INDENT + 5);
    }
}

static void print_json(const doctor_check_t *check, const doctor_result_t *result,
                       wefti_json_t *json)
{
    wefti_json_begin_object(json, NULL);
    wefti_json_string(json, "name", check->name);
    wefti_json_string(json, "level", wefti_doctor_level_name(result->level));
    wefti_json_string(json, "found", result->found);
    wefti_json_string(json, "meaning", check->meaning);
    wefti_json_string(json, "remedy", result->remedy);
    wefti_json_end_object(json);
}

/* Runs all checks; returns how many found an error. */
static uint32_t report(const doctor_machine_t *machine, bool as_json)
{
    output_object_t object;
    wefti_json_t *json = as_json ? wefti_output_begin(&object) : NULL;
    uint32_t counts[DOCTOR_LEVELS] = {0};
    if (as_json) {
        wefti_json_begin_array(json, "checks");
    }
    for (const doctor_check_t *check = wefti_doctor_checks; check->name != NULL; check++) {
        doctor_result_t result = {DOCTOR_OK, "", ""};
        check->run(machine, &result);
        counts[result.level]++;
        if (as_json) {
            print_json(check, &result, json);
        } else {
            print_text(check, &result);
        }
    }
    if (as_json) {
        wefti_json_end_array(json);
        wefti_json_int(json, "hints", counts[DOCTOR_HINT]);
        wefti_json_int(json, "warnings", counts[DOCTOR_WARNING]);
        wefti_json_int(json, "errors", counts[DOCTOR_ERROR]);
        wefti_output_end(&object);
    } else {
        printf("\n%u ok, %u hint%s, %u warning%s, %u error%s\n", counts[DOCTOR_OK],
               counts[DOCTOR_HINT], wefti_plural(counts[DOCTOR_HINT]), counts[DOCTOR_WARNING],
               wefti_plural(counts[DOCTOR_WARNING]), counts[DOCTOR_ERROR],
               wefti_plural(counts[DOCTOR_ERROR]));
    }
    return counts[DOCTOR_ERROR];
}

static int run_doctor_command(int argc, char **argv)
{
    bool as_json = false;
    int positional = 0;
    int code =
        wefti_parse_options(argc, argv, &wefti_doctor_command, handle, &as_json, &positional);
    if (code != EXIT_OK) {
        return code < 0 ? EXIT_OK : code;
    }
    if (positional != 0) {
        return wefti_usage_error("doctor", "unexpected argument '%s'", argv[1]);
    }
    wefti_settings_t settings;
    wefti_hardware_t hardware;
    wefti_arena_t arena;
    wefti_arena_init(&arena, NULL, 0);
    weft_status_t status = wefti_settings_load(&settings);
    if (status >= 0) {
        status = wefti_hardware_discover(true, &arena, &hardware);
    }
    code = status < 0 ? wefti_status_error("doctor", status) : EXIT_OK;
    if (status >= 0) {
        const doctor_machine_t machine = {"", &settings, &hardware, &arena};
        code = report(&machine, as_json) > 0 ? EXIT_RUN_FAILED : EXIT_OK;
    }
    wefti_arena_deinit(&arena);
    return code;
}
