/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stacks of late ranks on this host, by the first of gdb, eu-stack and gstack that is installed. The
 * tool runs for a bounded time, and what it prints is read up to a bound. A helper waits for it, so
 * the rank that reports goes on meanwhile.
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
#include "transport/helper.h"

#define OUTPUT_BYTES 32768u
#define LINES_MAX 120u
#define ARGUMENTS 10u
#define STACKS_NS 15000000000ull /* for all of one report */
#define SLICE_NS 100000000ull    /* the endpoint may close meanwhile */

/* Of an endpoint, from its first such report on. */
typedef struct wefti_stacks {
    wefti_helper_t helper;
    const wefti_endpoint_t *endpoint;
    uint32_t ranks[WEFTI_STACKS];
    int32_t pids[WEFTI_STACKS];
    _Atomic uint32_t count; /* not 0: the helper is at work */
} wefti_stacks_t;

extern char **environ;

#define PID_PLACE "PID"
static const char *const tools[][ARGUMENTS] = {
    {"gdb", "-p", PID_PLACE, "-batch", "-nx", "-iex", "set debuginfod enabled off", "-ex",
     "thread apply all bt 30", NULL},
    {"eu-stack", "-p", PID_PLACE, NULL},
    {"gstack", PID_PLACE, NULL},
};
#define TOOLS (sizeof tools / sizeof *tools)

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
static size_t read_all(const wefti_stacks_t *stacks, int fd, uint64_t end, char *text, size_t bytes)
{
    size_t used = 0;
    for (;;) {
        uint64_t now = wefti_now_ns();
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (now >= end || used + 1 >= bytes || wefti_helper_stops(&stacks->helper)) {
            break;
        }
        uint64_t slice = end - now < SLICE_NS ? end - now : SLICE_NS;
        if (poll(&ready, 1, 1 + (int)(slice / 1000000u)) < 0) {
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
static const char *run_tools(const wefti_stacks_t *stacks, int32_t pid, uint64_t end, char *text,
                             size_t bytes)
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
            read_all(stacks, ends[0], end, text, bytes);
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

/* One rank's, or why there is none. */
static void log_one(const wefti_stacks_t *stacks, uint32_t rank, int32_t pid, uint64_t end)
{
    const wefti_endpoint_t *endpoint = stacks->endpoint;
    char *text = malloc(OUTPUT_BYTES), *rest = NULL;
    uint32_t number = wefti_endpoint_number(endpoint, rank), lines = 0;
    const char *why = "no stack in the time for reports, 15 s", *tool;
    if (text == NULL) {
        return;
    }
    tool = run_tools(stacks, pid, end, text, OUTPUT_BYTES);
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

static void log_all(void *user)
{
    wefti_stacks_t *stacks = user;
    /* acquire: the ranks are those of this count */
    uint32_t count = atomic_load_explicit(&stacks->count, memory_order_acquire);
    uint64_t end = wefti_now_ns() + STACKS_NS;
    for (uint32_t i = 0; i < count && !wefti_helper_stops(&stacks->helper); i++) {
        log_one(stacks, stacks->ranks[i], stacks->pids[i], end);
    }
    atomic_store_explicit(&stacks->count, 0, memory_order_release);
}

weft_status_t wefti_stacks_begin(wefti_endpoint_t *endpoint)
{
    wefti_stacks_t *stacks = wefti_alloc(endpoint->allocator, sizeof *stacks);
    WEFT_RETURN_IF_NO_MEMORY(stacks);
    stacks->endpoint = endpoint;
    wefti_helper_init(&stacks->helper, log_all, stacks);
    endpoint->stacks = stacks;
#ifdef PR_SET_PTRACER
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* fails where nothing forbids it */
#endif
    return WEFT_OK;
}

void wefti_stacks_log(wefti_endpoint_t *endpoint, const uint32_t *ranks, const int32_t *pids,
                      uint32_t count)
{
    wefti_stacks_t *stacks = endpoint->stacks;
    /* acquire: the helper is done with the ranks of before */
    if (count == 0 || stacks == NULL ||
        atomic_load_explicit(&stacks->count, memory_order_acquire) != 0) {
        return;
    }
    memcpy(stacks->ranks, ranks, count * sizeof *ranks);
    memcpy(stacks->pids, pids, count * sizeof *pids);
    atomic_store_explicit(&stacks->count, count, memory_order_release);
    wefti_helper_wake(&stacks->helper);
}

void wefti_stacks_end(wefti_endpoint_t *endpoint)
{
    if (endpoint->stacks != NULL) {
        wefti_helper_deinit(&endpoint->stacks->helper, !wefti_endpoint_owned(endpoint));
        wefti_free(endpoint->allocator, endpoint->stacks);
        endpoint->stacks = NULL;
    }
}
