/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/timeline.h"

#include <stdio.h>

weft_status_t wefti_timeline_write(weft_session_t *session, const char *path,
                                   timeline_t *out_timeline)
{
    weft_session_stats_t stats = WEFT_SESSION_STATS_INIT;
    weft_status_t status = weft_session_write_trace(session, path);
    if (status >= 0) {
        status = weft_session_get_stats(session, &stats);
    }
    *out_timeline = (timeline_t){stats.timeline_first_step, stats.timeline_last_step};
    return status;
}

void wefti_timeline_print_text(const timeline_t *timeline, const char *path, uint64_t steps)
{
    if (path == NULL) {
        return;
    }
    printf("timeline: %s, ", path);
    if (timeline->first_step == 0) {
        printf("no step");
    } else {
        printf("steps %llu to %llu of %llu", (unsigned long long)timeline->first_step,
               (unsigned long long)timeline->last_step, (unsigned long long)steps);
    }
    printf(" (open it in https://ui.perfetto.dev or chrome://tracing)\n");
}

void wefti_timeline_print_json(const timeline_t *timeline, const char *path, wefti_json_t *json)
{
    if (path == NULL) {
        return;
    }
    wefti_json_begin_object(json, "timeline");
    wefti_json_string(json, "path", path);
    wefti_json_int(json, "first_step", (int64_t)timeline->first_step);
    wefti_json_int(json, "last_step", (int64_t)timeline->last_step);
    wefti_json_end_object(json);
}
