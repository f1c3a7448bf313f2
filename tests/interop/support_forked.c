/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/interop/support_forked.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int rank, size;

void expect_text(const char *part, const char *text)
{
    if (strstr(text, part) == NULL) {
        fprintf(stderr, "rank %d: expected '%s' in '%s'\n", rank, part, text);
        exit(1);
    }
}

static void *present(void *pointer)
{
    if (pointer == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return pointer;
}

void *load_library(const char *path)
{
    return present(dlopen(path, RTLD_NOW | RTLD_LOCAL));
}

void *find_symbol(void *library, const char *name)
{
    return present(dlsym(library, name));
}

void run_ranks(void (*body)(void), int ranks, int statuses[], char *errors, size_t bytes)
{
    static int worlds;
    char group[64], number[16];
    pid_t pids[MOST_RANKS];
    FILE *log = tmpfile();
    assert_non_null(log);
    snprintf(group, sizeof group, "weft-test-interop-%d-%d", (int)getpid(), worlds++);
    snprintf(number, sizeof number, "%d", ranks);
    setenv("WEFT_GROUP", group, 1);
    setenv("WEFT_WORLD_SIZE", number, 1);
    for (int r = 0; r < ranks; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            dup2(fileno(log), STDERR_FILENO);
            rank = r;
            size = ranks;
            snprintf(number, sizeof number, "%d", r);
            setenv("WEFT_RANK", number, 1);
            body();
            exit(0);
        }
    }
    for (int r = 0; r < ranks; r++) {
        assert_int_equal(waitpid(pids[r], &statuses[r], 0), pids[r]);
    }
    size_t read = (size_t)pread(fileno(log), errors, bytes - 1, 0);
    errors[read] = '\0';
    fclose(log);
}

void expect_good_ranks(void (*body)(void), int ranks, int dead)
{
    int statuses[MOST_RANKS];
    char errors[20000];
    run_ranks(body, ranks, statuses, errors, sizeof errors);
    for (int r = 0; r < ranks; r++) {
        if (r != dead && statuses[r] != 0) {
            print_error("%s", errors);
            fail_msg("rank %d of %d ended with status %d", r, ranks, statuses[r]);
        }
    }
}
