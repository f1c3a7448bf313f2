/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/faults/matrix/events.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int64_t event_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void event_report(const char *event, const char *format, ...)
{
    char line[4096];
    int used = snprintf(line, sizeof line, "%s\t%lld\t", event, (long long)event_now_ns());
    va_list args;
    va_start(args, format);
    vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    strcat(line, "\n");
    if (write(STDOUT_FILENO, line, strlen(line)) < 0) {
        _exit(4);
    }
}

uint32_t event_count_entries(const char *path)
{
    uint32_t count = 0;
    DIR *folder = opendir(path);
    while (folder != NULL && readdir(folder) != NULL) {
        count++;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return count;
}

const char *event_option(char **argv, const char *name)
{
    for (size_t length = strlen(name); *argv != NULL; argv++) {
        if (strncmp(*argv, name, length) == 0 && (*argv)[length] == '=') {
            return *argv + length + 1;
        }
    }
    return NULL;
}

uint64_t event_number(char **argv, const char *name)
{
    const char *text = event_option(argv, name);
    return text == NULL ? 0 : strtoull(text, NULL, 10);
}
