/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/text.h"
#include "tools/launch/remote.h"

/* A link that is cut ends ssh, and so the connection, after half a minute. */
#define DEFAULT_RSH "ssh -x -T -o ServerAliveInterval=10 -o ServerAliveCountMax=3"
#define MAX_WORDS 32

extern char **environ;

static const char *rsh_text(const launch_t *launch)
{
    const char *setting = getenv("WEFT_RSH");
    if (launch->rsh != NULL) {
        return launch->rsh;
    }
    return setting != NULL && *setting != '\0' ? setting : DEFAULT_RSH;
}

const char *wefti_remote_program(const launch_t *launch, const remote_host_t *remote, char *buffer)
{
    const char *text = remote->host->here ? "its agent" : rsh_text(launch);
    size_t length = remote->host->here ? strlen(text) : strcspn(text, " \t");
    const char *slash = memrchr(text, '/', length);
    if (slash != NULL) {
        length -= (size_t)(slash + 1 - text);
        text = slash + 1;
    }
    snprintf(buffer, 64, "%.*s", (int)(length < 63 ? length : 63), text);
    return buffer;
}

/* A shell takes it as one word, whatever is in it. */
static void add_quoted(wefti_text_t *text, const char *word)
{
    wefti_text_add(text, " '");
    for (const char *at = word; *at != '\0'; at++) {
        if (*at == '\'') {
            wefti_text_add(text, "'\\''");
        } else {
            wefti_text_printf(text, "%c", *at);
        }
    }
    wefti_text_add(text, "'");
}

static bool own_path(char *path, size_t bytes)
{
    ssize_t length = readlink("/proc/self/exe", path, bytes - 1);
    path[length > 0 ? length : 0] = '\0';
    return length > 0;
}

/* exec weft run --agent ..., as the launcher was called. */
static void build_command(const launch_t *launch, const char *path, wefti_text_t *text)
{
    wefti_text_add(text, "exec");
    add_quoted(text, launch->remote_weft != NULL ? launch->remote_weft : path);
    add_quoted(text, launch->command);
    add_quoted(text, "--agent");
    for (int i = 1; i < launch->argument_count; i++) {
        add_quoted(text, launch->arguments[i]);
    }
}

/* In the child: ends in another program. */
static void become_rsh(const launch_t *launch, const remote_host_t *remote, const char *path,
                       char *command, const int *fds)
{
    char *words[MAX_WORDS + 3];
    char *rest = NULL, *text = strdup(rsh_text(launch));
    int count = 0;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGINT, SIG_IGN); /* Ctrl-C: we tell the agents */
    signal(SIGPIPE, SIG_DFL);
    unsetenv("WEFT_SECRET"); /* the agent hears it from us */
    dup2(fds[0], STDIN_FILENO);
    dup2(fds[1], STDOUT_FILENO);
    if (remote->host->here) {
        char **arguments = calloc((size_t)launch->argument_count + 3, sizeof *arguments);
        if (arguments != NULL) {
            arguments[0] = (char *)path;
            arguments[1] = (char *)launch->command;
            arguments[2] = (char *)"--agent";
            memcpy(arguments + 3, launch->arguments + 1,
                   (size_t)(launch->argument_count - 1) * sizeof *arguments);
            execv("/proc/self/exe", arguments);
        }
    } else if (text != NULL) {
        for (char *word = strtok_r(text, " \t", &rest); word != NULL && count < MAX_WORDS;
             word = strtok_r(NULL, " \t", &rest)) {
            words[count++] = word;
        }
        words[count] = (char *)remote->host->name;
        words[count + 1] = command;
        words[count + 2] = NULL;
        execvp(words[0], words);
    }
    fprintf(stderr, "weft %s: cannot run %s: %s\n", launch->command,
            count > 0 ? words[0] : "the agent", strerror(errno));
    _exit(127);
}

int wefti_remote_start(const launch_t *launch, remote_host_t *remote)
{
    int to[2] = {-1, -1}, from[2] = {-1, -1};
    char path[PATH_MAX];
    wefti_text_t command;
    pid_t pid = -1;
    wefti_text_init(&command, NULL);
    if (own_path(path, sizeof path) && pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0) {
        build_command(launch, path, &command);
        fflush(NULL);
        pid = command.failed ? -1 : fork();
    }
    if (pid == 0) {
        become_rsh(launch, remote, path, command.data, (const int[]){to[0], from[1]});
    }
    int error = errno;
    wefti_text_deinit(&command);
    if (to[0] >= 0) {
        close(to[0]);
    }
    if (from[1] >= 0) {
        close(from[1]);
    }
    if (pid < 0) {
        if (to[1] >= 0) {
            close(to[1]);
        }
        if (from[0] >= 0) {
            close(from[0]);
        }
        return wefti_usage_error(launch->command, "cannot reach host %s: %s", remote->host->name,
                                 strerror(error));
    }
    remote->pid = pid;
    remote->to_fd = to[1];
    remote->reader.fd = from[0];
    fcntl(from[0], F_SETFL, O_NONBLOCK);
    fcntl(to[1], F_SETFL, O_NONBLOCK);
    return EXIT_OK;
}

/* What belongs to one rank or one host is not the others'. */
static bool is_passed_on(const char *entry)
{
    static const char *const own[] = {
        "WEFT_RANK=",       "WEFT_WORLD_SIZE=", "WEFT_ADDRESS=", "WEFT_LOCAL_RANK=",
        "WEFT_LOCAL_SIZE=", "WEFT_HOST_ID=",    "WEFT_GROUP=",   "WEFT_RSH="};
    if (strncmp(entry, "WEFT_", 5) != 0) {
        return false;
    }
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        if (strncmp(entry, own[i], strlen(own[i])) == 0) {
            return false;
        }
    }
    return true;
}

bool wefti_remote_send_job(remote_host_t *remote, frame_t *frame, uint32_t world_size,
                           bool one_host)
{
    char directory[PATH_MAX];
    uint32_t count = 0;
    wefti_frame_begin(frame, FRAME_JOB);
    wefti_frame_put(frame, FRAMES_VERSION);
    wefti_frame_put(frame, world_size);
    wefti_frame_put(frame, remote->host->rank_count);
    wefti_frame_put(frame, one_host);
    for (uint32_t i = 0; i < remote->host->rank_count; i++) {
        wefti_frame_put(frame, remote->host->ranks[i]);
    }
    wefti_frame_put_text(frame, getcwd(directory, sizeof directory) != NULL ? directory : "/");
    for (char **at = environ; *at != NULL; at++) {
        count += is_passed_on(*at);
    }
    wefti_frame_put(frame, count);
    for (char **at = environ; *at != NULL; at++) {
        if (is_passed_on(*at)) {
            wefti_frame_put_text(frame, *at);
        }
    }
    return wefti_frame_send(frame, remote->to_fd);
}
