/* SPDX-License-Identifier: Apache-2.0 */
/* The running kernel, and limits of the control group (version 2) that this process runs in. */
#include "runtime/machine/machine.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool first_line(const char *path, char *line, size_t capacity)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    bool found = fgets(line, (int)capacity, file) != NULL;
    fclose(file);
    return found;
}

bool wefti_cgroup_read(const char *name, char *line, size_t capacity)
{
    char own[512], path[640];
    /* "0::/path"; a group of the older version has another first field and is left alone. */
    if (first_line("/proc/self/cgroup", own, sizeof own) && strncmp(own, "0::/", 4) == 0) {
        own[strcspn(own, "\n")] = '\0';
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", own + 3, name);
        if (first_line(path, line, capacity)) {
            return true;
        }
    }
    snprintf(path, sizeof path, "/sys/fs/cgroup/%s", name);
    return first_line(path, line, capacity);
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
    char boot[64];
    if (first_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot)) {
        boot[strcspn(boot, "\n")] = '\0';
    } else {
        gethostname(boot, sizeof boot - 1);
        boot[sizeof boot - 1] = '\0';
    }
    snprintf(text, bytes, "%s", boot);
}
