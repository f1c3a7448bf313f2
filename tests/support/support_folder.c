/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/support_folder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support/support.h"

int test_folder_make(void **state)
{
    char *folder = strdup("/tmp/weft-test-XXXXXX");
    *state = mkdtemp(folder);
    return *state != NULL ? 0 : -1;
}

int test_folder_drop(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", (char *)*state);
    int status = system(command);
    free(*state);
    return status;
}

void test_folder_put(const char *folder, const char *name, const char *content)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = path + strlen(folder) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        assert_true(mkdir(path, 0777) == 0 || errno == EEXIST);
        *slash = '/';
    }
    if (content != NULL) {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(content, file);
        fclose(file);
    }
}
