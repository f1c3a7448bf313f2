/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/log.h"

#include <stdarg.h>
#include <stdio.h>

void wefti_log(const wefti_log_t *log, weft_log_level_t level, const char *format, ...)
{
    static const char *const names[] = {"error", "warn", "info", "debug", "trace"};
    char line[1024];
    va_list args;
    if (!log || level > log->level) {
        return;
    }
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (log->fn) {
        log->fn(log->user, level, line);
    } else {
        size_t index = (size_t)level;
        fprintf(stderr, "weft: %s: %s\n", index < 5 ? names[index] : "log", line);
    }
}
