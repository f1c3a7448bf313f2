/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of the control group (version 2) this process runs in. */
#include "transport/endpoint.h"

#include <stdio.h>
#include <string.h>

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
