/* SPDX-License-Identifier: Apache-2.0 */
/* Files of the system; the running kernel, and limits of the control group (version 2) that this
 * process runs in. */
#include "runtime/machine/machine.h"

#include <dirent.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool wefti_read_line(char *line, size_t bytes, const char *format, ...)
{
    char path[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(path, sizeof path, format, args);
    va_end(args);
    line[0] = '\0';
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    bool read = fgets(line, (int)bytes, file) != NULL;
    fclose(file);
    line[strcspn(line, "\n")] = '\0';
    return read;
}

weft_status_t wefti_list_folder(wefti_arena_t *arena, const char ***out_names, uint32_t *out_count,
                                const char *format, ...)
{
    char path[512];
    struct dirent **entries = NULL;
    va_list args;
    va_start(args, format);
    vsnprintf(path, sizeof path, format, args);
    va_end(args);
    *out_count = 0;
    int found = scandir(path, &entries, NULL, alphasort);
    const char **names = wefti_arena_array(arena, found > 0 ? (size_t)found : 1, sizeof *names);
    for (int i = 0; i < found; i++) {
        if (names != NULL && entries[i]->d_name[0] != '.' && strlen(entries[i]->d_name) < 64) {
            names[(*out_count)++] = wefti_arena_strdup(arena, entries[i]->d_name);
        }
        free(entries[i]);
    }
    free(entries);
    *out_names = names;
    return arena->failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

bool wefti_cgroup_read(const char *name, char *line, size_t capacity)
{
    char own[512];
    /* "0::/path"; a group of the older version has another first field and is left alone. */
    return (wefti_read_line(own, sizeof own, "/proc/self/cgroup") && strncmp(own, "0::/", 4) == 0 &&
            wefti_read_line(line, capacity, "/sys/fs/cgroup%s/%s", own + 3, name)) ||
           wefti_read_line(line, capacity, "/sys/fs/cgroup/%s", name);
}

uint32_t wefti_machine_quota(void)
{
    char line[64];
    unsigned long long quota, period;
    if (!wefti_cgroup_read("cpu.max", line, sizeof line) ||
        sscanf(line, "%llu %llu", &quota, &period) != 2 || period == 0) {
        return 0;
    }
    unsigned long long cpus = (quota + period - 1) / period;
    return cpus > CPU_SETSIZE ? CPU_SETSIZE : (uint32_t)cpus;
}

void wefti_machine_key(char *text, size_t bytes)
{
    if (!wefti_read_line(text, bytes, "/proc/sys/kernel/random/boot_id")) {
        gethostname(text, bytes - 1);
        text[bytes - 1] = '\0';
    }
}
