/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stacks of a late rank on this host, by the first of gdb, eu-stack and gstack that is installed.
 * The tool runs for a bounded time, and what it prints is read up to a bound.
 */
#include "transport/endpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/sync.h"

#define OUTPUT_BYTES 32768u
#define LINES_MAX 120u
#define ARGUMENTS 10u

extern char **environ;

#define PID_PLACE "PID"
static const char *const tools[][ARGUMENTS] = {
    {"gdb", "-p", PID_PLACE, "-batch", "-nx", "-iex", "set debuginfod enabled off", "-ex",
     "thread apply all bt 30", NULL},
    {"eu-stack", "-p", PID_PLACE, NULL},
    {"gstack", PID_PLACE, NULL},
};
#define TOOLS (sizeof tools / sizeof *tools)

void wefti_stacks_allow(void)
{
#ifdef PR_SET_PTRACER
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* fails where nothing forbids it */
#endif
}

/* ENOENT: it is not installed. */
static int start(const char *const *tool, const char *pid, int output, pid_t *out_child)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    char *arguments[ARGUMENTS] = {NULL};
    sigset_t none;
    for (uint32_t i = 0; tool[i] != NULL; i++) {
        arguments[i] = (char *)(uintptr_t)(strcmp(tool[i], PID_PLACE) == 0 ? pid : tool[i]);
    }
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, output, 1);
    posix_spawn_file_actions_adddup2(&actions, output, 2);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    int error = posix_spawnp(out_child, tool[0], &actions, &attributes, arguments, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* Until the other end is closed, text is full, or the time is over. */
static size_t read_all(int fd, uint64_t end, char *text, size_t bytes)
{
    size_t used = 0;
    for (;;) {
        uint64_t now = wefti_now_ns();
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (now >= end || used + 1 >= bytes) {
            break;
        }
        if (poll(&ready, 1, 1 + (int)((end - now) / 1000000u)) < 0) {
            continue; /* a signal */
        }
        ssize_t got = (ready.revents & (POLLIN | POLLHUP)) != 0
                          ? read(fd, text + used, bytes - 1 - used)
                          : -1;
        if (got <= 0 && ready.revents != 0) {
            break;
        }
        used += got > 0 ? (size_t)got : 0;
    }
    text[used] = '\0';
    return used;
}

/* What a tool printed of a process; its name, or NULL: none is installed, or it cannot start. */
static const char *run_tools(int32_t pid, uint64_t end, char *text, size_t bytes)
{
    char number[16];
    int ends[2];
    pid_t child = -1;
    const char *name = NULL;
    snprintf(number, sizeof number, "%d", pid);
    text[0] = '\0';
    for (size_t i = 0; i < TOOLS && name == NULL; i++) {
        if (pipe2(ends, O_CLOEXEC) != 0) {
            return NULL;
        }
        int error = start(tools[i], number, ends[1], &child);
        close(ends[1]);
        if (error == 0) {
            name = tools[i][0];
            read_all(ends[0], end, text, bytes);
            kill(child, SIGKILL); /* it has ended, or takes too long */
            while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {
            }
        }
        close(ends[0]);
    }
    return name;
}

/* Of frames and threads, in the outputs of all tools. */
static bool is_frame(const char *line)
{
    return line[0] == '#' || strncmp(line, "Thread ", 7) == 0 || strncmp(line, "TID ", 4) == 0;
}

void wefti_stacks_log(const wefti_endpoint_t *endpoint, uint32_t rank, int32_t pid, uint64_t end)
{
    char *text = malloc(OUTPUT_BYTES), *rest = NULL;
    uint32_t number = wefti_endpoint_number(endpoint, rank), lines = 0;
    const char *why = "no stack in the time for reports, 15 s", *tool;
    if (text == NULL) {
        return;
    }
    tool = run_tools(pid, end, text, OUTPUT_BYTES);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        if (is_frame(line) && lines < LINES_MAX) {
            lines++;
            wefti_log(endpoint->log, WEFT_LOG_LEVEL_WARN, "stack of rank %u (pid %d): %.200s",
                      number, pid, line);
        } else if (strstr(line, "ptrace") != NULL || strstr(line, "ermitted") != NULL) {
            why = line;
        }
    }
    if (tool == NULL) {
        wefti_log(endpoint->log, WEFT_LOG_LEVEL_WARN,
                  "no stack of rank %u (pid %d): none of gdb, eu-stack and gstack is installed",
                  number, pid);
    } else if (lines == 0) {
        wefti_log(endpoint->log, WEFT_LOG_LEVEL_WARN, "no stack of rank %u (pid %d): %s: %.200s",
                  number, pid, tool, why);
    }
    free(text);
}
