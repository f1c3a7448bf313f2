/* SPDX-License-Identifier: Apache-2.0 */
/* What `weft compile` shows of the compiler's passes. */
#ifndef WEFT_TOOLS_COMPILE_PASSES_H
#define WEFT_TOOLS_COMPILE_PASSES_H

#include "runtime/base/json.h"
#include "tools/tool.h"

typedef struct pass_time {
    char name[32];
    uint32_t nodes; /* after the pass */
    double ms;
} pass_time_t;

#define MAX_PASS_TIMES 64u

typedef struct pass_log {
    const char *print_after, *stop_after;
    char *stopped; /* the graph after stop_after, for standard output */
    pass_time_t times[MAX_PASS_TIMES];
    size_t count;
} pass_log_t;

/* `weft compile --list-passes`. */
void wefti_list_passes(bool json);
/* The callback on_pass; user is a pass_log_t. Prints graphs for print_after to standard error. */
void wefti_log_pass(void *user, const weft_pass_report_t *report);
/* --time-passes: a table on standard error, or an array "passes" of json. */
void wefti_print_pass_times(const pass_log_t *log);
void wefti_write_pass_times(const pass_log_t *log, wefti_json_t *json);

#endif
