/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/launch/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/sync.h"
#include "tools/launch/address.h"

struct launch_agent {
    int out_fd;    /* frames to the launcher; from it: reader.fd */
    int said_fd;   /* what was printed here: by the preparation, when it fails */
    int port_fd;   /* holds rank 0's port, or -1 */
    bool reported; /* the launcher knows what became of us */
    bool has_rank_0;
    bool one_host; /* ranks meet at a socket of this host */
    char address[512];
    uint32_t *ranks;
    rank_set_t *set; /* while ranks run */
    frame_reader_t reader;
    frame_t frame; /* received */
    frame_t reply; /* sent */
};

/* ---- streams ---- */

static bool take_streams(launch_agent_t *agent)
{
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    agent->reader.fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 10);
    agent->out_fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10);
    agent->said_fd = memfd_create("weft agent", MFD_CLOEXEC);
    bool done = nothing >= 0 && agent->reader.fd >= 0 && agent->out_fd >= 0 &&
                agent->said_fd >= 0 && dup2(nothing, STDIN_FILENO) >= 0 &&
                dup2(agent->said_fd, STDOUT_FILENO) >= 0 &&
                dup2(agent->said_fd, STDERR_FILENO) >= 0;
    if (nothing >= 0) {
        close(nothing);
    }
    signal(SIGPIPE, SIG_IGN); /* a launcher that is gone is an error of write */
    return done && write(agent->out_fd, FRAMES_HELLO, sizeof FRAMES_HELLO - 1) ==
                       (ssize_t)sizeof FRAMES_HELLO - 1;
}

/* Waits for the next frame; false at the end of the connection. */
static bool receive(launch_agent_t *agent)
{
    int got;
    while ((got = wefti_frame_reader_next(&agent->reader, &agent->frame)) == 0) {
        struct pollfd wait_for = {.fd = agent->reader.fd, .events = POLLIN};
        poll(&wait_for, 1, -1);
        if (wefti_frame_reader_fill(&agent->reader) < 0) {
            return false;
        }
    }
    return got > 0;
}

static bool reply(launch_agent_t *agent)
{
    return wefti_frame_send(&agent->reply, agent->out_fd);
}

/* ---- the job ---- */

static void set_variables(frame_t *frame)
{
    char *entry = malloc(FRAME_MAX_BYTES);
    uint32_t count = wefti_frame_get(frame);
    frame->wrong = frame->wrong || entry == NULL;
    for (uint32_t i = 0; i < count && !frame->wrong; i++) {
        wefti_frame_get_text(frame, entry, FRAME_MAX_BYTES);
        char *equals = strchr(entry, '=');
        if (strncmp(entry, "WEFT_", 5) == 0 && equals != NULL) {
            *equals = '\0';
            setenv(entry, equals + 1, 1);
        }
    }
    free(entry);
}

static int read_job(launch_t *launch, launch_agent_t *agent)
{
    frame_t *frame = &agent->frame;
    char directory[4096];
    uint32_t version = wefti_frame_get(frame);
    launch->world_size = wefti_frame_get(frame);
    launch->rank_count = wefti_frame_get(frame);
    agent->one_host = wefti_frame_get(frame) != 0;
    if (frame->kind != FRAME_JOB || version != FRAMES_VERSION || launch->rank_count == 0 ||
        launch->rank_count > launch->world_size || launch->world_size > LAUNCH_MAX_RANKS) {
        return wefti_usage_error(launch->command,
                                 "version mismatch: the launcher has protocol %u, this agent "
                                 "(weft %s) has %u; install the same version on all hosts",
                                 version, weft_version(), FRAMES_VERSION);
    }
    agent->ranks = calloc(launch->rank_count, sizeof *agent->ranks);
    for (uint32_t i = 0; i < launch->rank_count && agent->ranks != NULL; i++) {
        agent->ranks[i] = wefti_frame_get(frame);
        frame->wrong = frame->wrong || agent->ranks[i] >= launch->world_size;
    }
    wefti_frame_get_text(frame, directory, sizeof directory);
    set_variables(frame);
    if (agent->ranks == NULL) {
        return wefti_usage_error(launch->command, "out of memory: %u ranks", launch->rank_count);
    }
    if (frame->wrong) {
        return wefti_usage_error(launch->command, "malformed message from the launcher: job");
    }
    launch->rank_numbers = agent->ranks;
    agent->has_rank_0 = agent->ranks[0] == 0;
    if (chdir(directory) != 0) {
        return wefti_usage_error(launch->command, "cannot change to directory %s: %s", directory,
                                 strerror(errno));
    }
    return EXIT_OK;
}

int wefti_agent_open(launch_t *launch)
{
    launch_agent_t *agent = calloc(1, sizeof *agent);
    if (agent == NULL) {
        return wefti_usage_error(launch->command, "out of memory: cannot allocate %zu bytes",
                                 sizeof *agent);
    }
    agent->port_fd = agent->said_fd = agent->out_fd = agent->reader.fd = -1;
    agent->reader.greeted = true;
    launch->agent = agent;
    if (!take_streams(agent) || !receive(agent)) {
        return EXIT_RUN_FAILED; /* there is no launcher to report to */
    }
    return read_job(launch, agent);
}

void wefti_agent_close(launch_agent_t *agent, int code)
{
    char text[4096] = "";
    if (!agent->reported && agent->out_fd >= 0) {
        fflush(NULL);
        ssize_t got = pread(agent->said_fd, text, sizeof text - 1, 0);
        text[got > 0 ? got : 0] = '\0';
        wefti_frame_begin(&agent->reply, FRAME_FAILED);
        wefti_frame_put(&agent->reply, (uint32_t)code);
        wefti_frame_put_text(&agent->reply, text);
        (void)reply(agent);
    }
    int fds[] = {agent->port_fd, agent->said_fd, agent->out_fd, agent->reader.fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
    free(agent->ranks);
    free(agent);
}

/* ---- ranks ---- */

/* The launcher is gone: its ranks end. */
static void end_without_launcher(launch_agent_t *agent)
{
    rank_set_t *set = agent->set;
    set->extra_fd = -1;
    if (set->deadline_ns == 0) {
        wefti_ranks_signal(set, set->program ? SIGTERM : SIGKILL);
        set->deadline_ns = wefti_now_ns() + LAUNCH_GRACE_NS;
    }
}

static void send_output(void *owner, const rank_process_t *rank, int stream, const char *data,
                        size_t bytes)
{
    launch_agent_t *agent = owner;
    wefti_frame_begin(&agent->reply, FRAME_OUTPUT);
    wefti_frame_put(&agent->reply, rank->rank);
    wefti_frame_put(&agent->reply, (uint32_t)stream);
    wefti_frame_put_bytes(&agent->reply, data, bytes);
    if (!reply(agent)) {
        end_without_launcher(agent);
    }
}

static void send_ended(void *owner, const rank_process_t *rank)
{
    launch_agent_t *agent = owner;
    wefti_frame_begin(&agent->reply, FRAME_ENDED);
    wefti_frame_put(&agent->reply, rank->rank);
    wefti_frame_put(&agent->reply, (uint32_t)rank->wait_status);
    wefti_frame_put(&agent->reply, rank->killed);
    wefti_frame_put(&agent->reply, (uint32_t)rank->report.status);
    wefti_frame_put_text(&agent->reply, rank->report.message);
    if (!reply(agent)) {
        end_without_launcher(agent);
    }
}

static void hear(void *owner)
{
    launch_agent_t *agent = owner;
    int got = wefti_frame_reader_fill(&agent->reader);
    while (got > 0 && (got = wefti_frame_reader_next(&agent->reader, &agent->frame)) > 0) {
        if (agent->frame.kind == FRAME_END) {
            int number = (int)wefti_frame_get(&agent->frame);
            bool asks = number == SIGTERM || number == SIGINT;
            wefti_ranks_signal(agent->set, !asks                 ? SIGKILL
                                           : agent->set->program ? number
                                                                 : SIGTERM);
        }
    }
    if (got < 0) {
        end_without_launcher(agent);
    }
}

static bool say_ready(launch_agent_t *agent)
{
    uint16_t port = 0;
    if (agent->has_rank_0 && !agent->one_host) {
        agent->port_fd = wefti_port_hold(&port);
        if (agent->port_fd < 0) {
            (void)wefti_usage_error(agent->set->command, "cannot bind a port for rank 0: %s",
                                    strerror(errno));
            return false;
        }
    }
    wefti_frame_begin(&agent->reply, FRAME_READY);
    wefti_frame_put(&agent->reply, port);
    wefti_addresses_put(&agent->reply);
    if (!reply(agent) || !receive(agent) || agent->frame.kind != FRAME_START) {
        agent->reported = true; /* the launcher has given up and reported why */
        return false;
    }
    wefti_frame_get_text(&agent->frame, agent->address, sizeof agent->address);
    return true;
}

static void say_started(launch_agent_t *agent, const rank_set_t *set)
{
    wefti_frame_begin(&agent->reply, FRAME_STARTED);
    for (uint32_t i = 0; i < set->count; i++) {
        wefti_frame_put(&agent->reply, (uint32_t)set->ranks[i].pid);
    }
    if (!reply(agent)) {
        end_without_launcher(agent);
    }
}

int wefti_agent_run(launch_agent_t *agent, rank_set_t *set)
{
    uint32_t failed = 0;
    agent->set = set;
    if (!say_ready(agent)) {
        return EXIT_RUN_FAILED;
    }
    set->address = agent->address;
    set->capture = true;
    set->decides = false;
    set->owner = agent;
    set->output = send_output;
    set->ended = send_ended;
    set->extra = hear;
    set->extra_fd = agent->reader.fd;
    if (wefti_ranks_start(set, &failed) < 0) {
        int code =
            wefti_usage_error(set->command, "cannot start rank %u: %s", failed, strerror(errno));
        set->ended = NULL;
        wefti_ranks_watch(set);
        return code;
    }
    agent->reported = true;
    say_started(agent, set);
    wefti_ranks_watch(set);
    wefti_frame_begin(&agent->reply, FRAME_DONE);
    (void)reply(agent);
    return EXIT_OK;
}
