/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/compile_passes.h"
#include "tools/output.h"

#include <stdlib.h>
#include <string.h>

static const char *modes(const weft_pass_info_t *pass)
{
    return pass->training && pass->inference ? "both" : pass->training ? "training" : "inference";
}

static int print_pass(const weft_pass_info_t *pass, void *user)
{
    (void)user;
    printf("%-21s %-9s  %s\n", pass->name, modes(pass), pass->summary);
    return 0;
}

static int write_pass(const weft_pass_info_t *pass, void *user)
{
    wefti_json_t *json = user;
    wefti_json_begin_object(json, NULL);
    wefti_json_string(json, "name", pass->name);
    wefti_json_string(json, "runs_in", modes(pass));
    wefti_json_string(json, "summary", pass->summary);
    wefti_json_end_object(json);
    return 0;
}

void wefti_list_passes(bool as_json)
{
    output_object_t object;
    if (!as_json) {
        weft_compile_visit_passes(print_pass, NULL);
        return;
    }
    wefti_json_t *json = wefti_output_begin(&object);
    wefti_json_begin_array(json, "passes");
    weft_compile_visit_passes(write_pass, json);
    wefti_json_end_array(json);
    wefti_output_end(&object);
}

void wefti_log_pass(void *user, const weft_pass_report_t *report)
{
    pass_log_t *log = user;
    bool print = log->print_after != NULL && (strcmp(log->print_after, "all") == 0 ||
                                              strcmp(log->print_after, report->name) == 0);
    if (print && report->graph_text != NULL) {
        fprintf(stderr, "graph after %s\n%s\n", report->name, report->graph_text);
    }
    if (log->stop_after != NULL && strcmp(log->stop_after, report->name) == 0) {
        log->stopped = strdup(report->graph_text);
    }
    if (log->count < MAX_PASS_TIMES) {
        pass_time_t *time = &log->times[log->count++];
        snprintf(time->name, sizeof time->name, "%s", report->name);
        time->nodes = report->nodes_after;
        time->ms = (double)report->duration_ns * 1e-6;
    }
}

void wefti_print_pass_times(const pass_log_t *log)
{
    double sum = 0;
    fprintf(stderr, "%10s  %9s  pass\n", "ms", "operators");
    for (size_t i = 0; i < log->count; i++) {
        fprintf(stderr, "%10.3f  %9u  %s\n", log->times[i].ms, log->times[i].nodes,
                log->times[i].name);
        sum += log->times[i].ms;
    }
    fprintf(stderr, "%10.3f  %9s  in total\n", sum, "");
}

void wefti_write_pass_times(const pass_log_t *log, wefti_json_t *json)
{
    wefti_json_begin_array(json, "passes");
    for (size_t i = 0; i < log->count; i++) {
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "name", log->times[i].name);
        wefti_json_double(json, "ms", log->times[i].ms);
        wefti_json_int(json, "operators", log->times[i].nodes);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}
