/* SPDX-License-Identifier: Apache-2.0 */
/* The library speaks through the caller's log callback. */
#ifndef WEFT_RUNTIME_BASE_LOG_H
#define WEFT_RUNTIME_BASE_LOG_H

#include <weft/types.h>

typedef struct wefti_log {
    weft_log_fn fn; /* NULL: standard error, "weft: level: line" */
    void *user;
    weft_log_level_t level; /* lines above it are dropped */
} wefti_log_t;

void wefti_log(const wefti_log_t *log, weft_log_level_t level, const char *format, ...)
    WEFT_PRINTF(3, 4);

#endif
