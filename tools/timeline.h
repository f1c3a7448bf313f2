/* SPDX-License-Identifier: Apache-2.0 */
/* The timeline of `weft run --trace`: writing the file, and reporting which steps it holds. */
#ifndef WEFT_TOOLS_TIMELINE_H
#define WEFT_TOOLS_TIMELINE_H

#include "runtime/base/json.h"

#include <weft/session.h>

typedef struct timeline {
    uint64_t first_step, last_step; /* from 1; 0: the file holds no step */
} timeline_t;

/* Collective, as weft_session_write_trace. */
weft_status_t wefti_timeline_write(weft_session_t *session, const char *path,
                                   timeline_t *out_timeline);
/* Neither prints anything where path is NULL. */
void wefti_timeline_print_text(const timeline_t *timeline, const char *path, uint64_t steps);
void wefti_timeline_print_json(const timeline_t *timeline, const char *path, wefti_json_t *json);

#endif
