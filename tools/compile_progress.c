/* SPDX-License-Identifier: Apache-2.0 */
/* Compiles, while a thread shows on a terminal how long that has taken. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/tool.h"
#include "tools/train/train.h"

typedef struct clock_line {
    const weft_compile_params_t *params;
    pthread_mutex_t mutex; /* guards done */
    pthread_cond_t changed;
    bool done;
} clock_line_t;

/* Prints nothing in the first second: most compilations take less. */
static void *show_time(void *user)
{
    clock_line_t *self = user;
    const char *slash = strrchr(self->params->model_path, '/');
    const char *name = slash != NULL ? slash + 1 : self->params->model_path;
    struct timespec next;
    clock_gettime(CLOCK_REALTIME, &next);
    pthread_mutex_lock(&self->mutex);
    for (uint32_t seconds = 1; !self->done; seconds++) {
        int error = 0;
        next.tv_sec++;
        while (!self->done && error == 0) {
            error = pthread_cond_timedwait(&self->changed, &self->mutex, &next);
        }
        if (!self->done && error == ETIMEDOUT) {
            fprintf(stderr, "\r\033[Kcompiling %.48s: %u s", name, seconds);
            fflush(stderr);
        } else if (seconds > 1) {
            fputs("\r\033[K", stderr);
        }
    }
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

/* The levels that the library prints by itself; a line replaces the live one. */
static void log_line(void *user, weft_log_level_t level, const char *line)
{
    if (level <= WEFT_LOG_LEVEL_WARN) {
        wefti_progress_log(user, level, line);
    }
}

weft_status_t wefti_compile_with_progress(const weft_compile_params_t *params,
                                          weft_plan_t **out_plan)
{
    weft_compile_params_t shown = *params;
    clock_line_t line = {
        .params = &shown, .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    pthread_t thread;
    if (isatty(STDERR_FILENO) == 1 && params->log == NULL) {
        shown.log = log_line;
    }
    if (isatty(STDERR_FILENO) != 1 || pthread_create(&thread, NULL, show_time, &line) != 0) {
        return weft_compile(params, out_plan);
    }
    weft_status_t status = weft_compile(&shown, out_plan);
    pthread_mutex_lock(&line.mutex);
    line.done = true;
    pthread_cond_signal(&line.changed);
    pthread_mutex_unlock(&line.mutex);
    pthread_join(thread, NULL);
    return status;
}
