/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/launch/remote.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/settings.h"
#include "runtime/base/sync.h"

typedef struct remote_launcher {
    const launch_t *launch;
    host_plan_t plan;
    remote_host_t *hosts; /* plan.host_count */
    uint32_t world_size, ended_count;
    rank_process_t *ranks; /* of the world */
    rank_lines_t *lines;
    rank_set_t signals; /* no ranks: signal_fd */
    bool started, interrupted;
    uint32_t ends_sent;        /* number of end requests sent */
    uint64_t deadline_ns;      /* when remaining ranks are killed; 0: not set */
    uint64_t connect_until_ns; /* 0: never */
    uint64_t listen_until_ns;  /* after all hosts are done */
    frame_t frame;
    frame_t received;
} remote_launcher_t;

static bool is_over(const remote_host_t *remote)
{
    return remote->state >= REMOTE_DONE;
}

static void close_host(remote_host_t *remote)
{
    if (remote->to_fd >= 0) {
        close(remote->to_fd);
    }
    if (remote->reader.fd >= 0) {
        close(remote->reader.fd);
    }
    remote->to_fd = remote->reader.fd = -1;
}

static void end_by(remote_launcher_t *self, uint64_t grace_ns)
{
    uint64_t at = wefti_now_ns() + grace_ns;
    if (self->deadline_ns == 0 || at < self->deadline_ns) {
        self->deadline_ns = at;
    }
}

/* Its ranks are unheard of from now on; the others notice by themselves or are ended. */
static void lose_host(remote_launcher_t *self, remote_host_t *remote)
{
    remote->state = REMOTE_LOST;
    close_host(remote);
    for (uint32_t i = 0; i < remote->host->rank_count && self->started; i++) {
        rank_process_t *rank = &self->ranks[remote->host->ranks[i]];
        if (!rank->ended) {
            rank->ended = rank->lost = true;
        }
    }
    if (self->deadline_ns == 0 &&
        (!self->started ||
         wefti_ranks_must_end(self->ranks, self->world_size, self->launch->min_ranks))) {
        end_by(self, self->started ? LAUNCH_GRACE_NS
                                   : LAUNCH_GRACE_NS / 4); /* time for reports of others */
    }
}

static void send_frame(remote_launcher_t *self, remote_host_t *remote)
{
    if (!is_over(remote) && remote->to_fd >= 0 && !wefti_frame_send(&self->frame, remote->to_fd)) {
        lose_host(self, remote);
    }
}

static void send_end(remote_launcher_t *self, int number)
{
    wefti_frame_begin(&self->frame, FRAME_END);
    wefti_frame_put(&self->frame, (uint32_t)number);
    for (uint32_t i = 0; i < self->plan.host_count; i++) {
        send_frame(self, &self->hosts[i]);
    }
}

/* ---- frames of agents ---- */

static void take_rank_end(remote_launcher_t *self, const remote_host_t *remote)
{
    frame_t *frame = &self->received;
    uint32_t number = wefti_frame_get(frame);
    if (number >= self->world_size || self->ranks[number].host != remote->host->name ||
        self->ranks[number].ended) {
        return;
    }
    rank_process_t *rank = &self->ranks[number];
    rank->wait_status = (int)wefti_frame_get(frame);
    rank->killed = wefti_frame_get(frame) != 0;
    rank->report.status = (int32_t)wefti_frame_get(frame);
    wefti_frame_get_text(frame, rank->report.message, sizeof rank->report.message);
    rank->ended = true;
    rank->ended_as = ++self->ended_count;
    if (rank->wait_status != 0 && self->deadline_ns == 0 &&
        wefti_ranks_must_end(self->ranks, self->world_size, self->launch->min_ranks)) {
        end_by(self, WIFSIGNALED(rank->wait_status) ? LAUNCH_DEATH_GRACE_NS : LAUNCH_GRACE_NS);
    }
}

static void take_output(remote_launcher_t *self, const remote_host_t *remote)
{
    size_t bytes = 0;
    uint32_t rank = wefti_frame_get(&self->received);
    uint32_t stream = wefti_frame_get(&self->received);
    const uint8_t *data = wefti_frame_get_rest(&self->received, &bytes);
    if (rank < self->world_size && stream < 2 && self->ranks[rank].host == remote->host->name) {
        wefti_rank_lines_add(self->lines, rank, (int)stream, (const char *)data, bytes);
    }
}

static void take_frame(remote_launcher_t *self, remote_host_t *remote)
{
    frame_t *frame = &self->received;
    switch ((frame_kind_t)frame->kind) {
    case FRAME_READY:
        remote->port = wefti_frame_get(frame);
        wefti_addresses_get(frame, &remote->addresses);
        remote->state = remote->state == REMOTE_PREPARING ? REMOTE_READY : remote->state;
        break;
    case FRAME_FAILED:
        remote->code = (int)(wefti_frame_get(frame) & 0xffu);
        wefti_frame_get_text(frame, remote->text, sizeof remote->text);
        remote->state = REMOTE_FAILED;
        end_by(self, self->started ? 0 : LAUNCH_GRACE_NS / 4); /* time for reports of others */
        break;
    case FRAME_STARTED:
        for (uint32_t i = 0; i < remote->host->rank_count; i++) {
            self->ranks[remote->host->ranks[i]].pid = (pid_t)wefti_frame_get(frame);
        }
        break;
    case FRAME_OUTPUT:
        take_output(self, remote);
        break;
    case FRAME_ENDED:
        take_rank_end(self, remote);
        break;
    case FRAME_DONE:
        remote->state = REMOTE_DONE;
        break;
    case FRAME_JOB:
    case FRAME_START:
    case FRAME_END:
        break; /* only sent by the launcher */
    }
}

static void hear(remote_launcher_t *self, remote_host_t *remote)
{
    int got = wefti_frame_reader_fill(&remote->reader);
    int next = 0;
    while (!is_over(remote) &&
           (next = wefti_frame_reader_next(&remote->reader, &self->received)) > 0) {
        take_frame(self, remote);
    }
    if (!is_over(remote) && (got < 0 || next < 0)) {
        lose_host(self, remote);
    }
    if (is_over(remote) && remote->to_fd >= 0) {
        close(remote->to_fd); /* nothing more is sent; ssh ends cleanly if its output is read */
        remote->to_fd = -1;
        self->listen_until_ns = wefti_now_ns() + LAUNCH_GRACE_NS;
    }
    if (is_over(remote)) {
        remote->reader.used = 0;
    }
    if (got < 0 || next < 0) {
        close_host(remote);
    }
}

/* ---- the course of it ---- */

static bool all_are(const remote_launcher_t *self, remote_state_t state)
{
    for (uint32_t i = 0; i < self->plan.host_count; i++) {
        if (self->hosts[i].state != state) {
            return false;
        }
    }
    return true;
}

/* Hosts that are not over, or whose ssh takes leave. */
static bool any_open(const remote_launcher_t *self)
{
    bool running = false, leaving = false;
    for (uint32_t i = 0; i < self->plan.host_count; i++) {
        running = running || !is_over(&self->hosts[i]);
        leaving = leaving || self->hosts[i].reader.fd >= 0;
    }
    return running || (leaving && wefti_now_ns() < self->listen_until_ns);
}

/* Hosts on which all is prepared hear where rank 0 is. */
static int start_world(remote_launcher_t *self)
{
    remote_host_t *first = &self->hosts[0];
    uint32_t count = self->plan.host_count;
    char address[512] = "";
    if (count == 1) {
        if (!wefti_launch_unix_address(address, sizeof address)) {
            return wefti_usage_error(self->launch->command, "cannot read random numbers: %s",
                                     strerror(errno));
        }
    } else {
        char host[64] = "";
        host_addresses_t *all = calloc(count, sizeof *all);
        for (uint32_t i = 0; i < count && all != NULL; i++) {
            all[i] = self->hosts[i].addresses;
        }
        bool found =
            all != NULL && wefti_addresses_choose(all, count, first->host->name, host, sizeof host);
        free(all);
        if (!found) {
            return wefti_usage_error(self->launch->command,
                                     "host %s: no address is reachable from the other hosts; "
                                     "select interfaces with WEFT_IFNAME",
                                     first->host->name);
        }
        snprintf(address, sizeof address, "%s:%u", host, first->port);
    }
    wefti_frame_begin(&self->frame, FRAME_START);
    wefti_frame_put_text(&self->frame, address);
    self->started = true;
    for (uint32_t i = 0; i < count; i++) {
        self->hosts[i].state = REMOTE_RUNNING;
        send_frame(self, &self->hosts[i]);
    }
    return EXIT_OK;
}

static void take_signals(remote_launcher_t *self)
{
    struct signalfd_siginfo info;
    while (read(self->signals.signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo != SIGCHLD) {
            self->interrupted = true;
            send_end(self, info.ssi_signo == SIGINT ? SIGINT : SIGTERM);
            self->ends_sent = 1;
            self->deadline_ns = wefti_now_ns() + LAUNCH_GRACE_NS;
        }
    }
}

/* Ends what runs: asked first (programs), then by force, then without hearing of it. */
static void keep_deadlines(remote_launcher_t *self)
{
    uint64_t now = wefti_now_ns();
    if (!self->started && self->connect_until_ns != 0 && now >= self->connect_until_ns &&
        self->deadline_ns == 0) {
        self->deadline_ns = now;
    }
    if (self->deadline_ns == 0 || now < self->deadline_ns) {
        return;
    }
    bool ask = self->launch->program != NULL && self->ends_sent == 0;
    if (self->ends_sent >= 2 || !self->started) {
        for (uint32_t i = 0; i < self->plan.host_count; i++) {
            remote_host_t *remote = &self->hosts[i];
            if (!is_over(remote) && self->started) {
                lose_host(self, remote);
            } else if (!is_over(remote)) {
                close_host(remote); /* keeps its state */
            }
        }
        return;
    }
    send_end(self, ask ? SIGTERM : SIGKILL);
    self->ends_sent += ask ? 1 : 2;
    self->deadline_ns = now + LAUNCH_GRACE_NS;
}

static bool gave_up(const remote_launcher_t *self)
{
    return !self->started && self->deadline_ns != 0 && wefti_now_ns() >= self->deadline_ns;
}

static int watch(remote_launcher_t *self)
{
    struct pollfd *fds = calloc(1 + (size_t)self->plan.host_count, sizeof *fds);
    int code = fds != NULL ? EXIT_OK
                           : wefti_usage_error(self->launch->command, "out of memory: %u hosts",
                                               self->plan.host_count);
    while (code == EXIT_OK && any_open(self) && !gave_up(self)) {
        fds[0] = (struct pollfd){.fd = self->signals.signal_fd, .events = POLLIN};
        for (uint32_t i = 0; i < self->plan.host_count; i++) {
            fds[1 + i] = (struct pollfd){.fd = self->hosts[i].reader.fd, .events = POLLIN};
        }
        poll(fds, 1 + self->plan.host_count, self->deadline_ns != 0 ? 50 : 500);
        for (uint32_t i = 0; i < self->plan.host_count; i++) {
            if (fds[1 + i].revents != 0) {
                hear(self, &self->hosts[i]);
            }
        }
        take_signals(self);
        if (!self->started && !self->interrupted && all_are(self, REMOTE_READY)) {
            code = start_world(self);
        }
        keep_deadlines(self);
    }
    free(fds);
    return code;
}

/* ---- the end ---- */

/* Agents and their ssh end by themselves when the connection does. */
static void reap_hosts(remote_launcher_t *self)
{
    uint64_t until = wefti_now_ns() + LAUNCH_GRACE_NS;
    for (uint32_t i = 0; i < self->plan.host_count; i++) {
        close_host(&self->hosts[i]);
    }
    for (uint32_t i = 0; i < self->plan.host_count; i++) {
        remote_host_t *remote = &self->hosts[i];
        while (remote->pid > 0 && !remote->reaped) {
            uint64_t now = wefti_now_ns();
            remote->reaped = waitpid(remote->pid, &remote->wait_status, WNOHANG) == remote->pid;
            if (!remote->reaped && now >= until) {
                kill(remote->pid, now >= until + LAUNCH_GRACE_NS ? SIGKILL : SIGTERM);
            }
            if (!remote->reaped) {
                struct pollfd nothing = {.fd = -1};
                poll(&nothing, 1, 5);
            }
        }
    }
}

/* Without "weft run: " in front, and of one line. */
static char *plain_text(const remote_launcher_t *self, remote_host_t *remote)
{
    char prefix[64];
    int length = snprintf(prefix, sizeof prefix, "weft %s: ", self->launch->command);
    char *text = remote->text;
    text[strcspn(text, "\n")] = '\0';
    return strncmp(text, prefix, (size_t)length) == 0 ? text + length : text;
}

static void print_lost(const remote_launcher_t *self, const remote_host_t *remote)
{
    char program[64];
    const char *noise = remote->reader.noise;
    noise += strspn(noise, " \r\n\t");
    fprintf(stderr, "weft %s: host %s: %s ended", self->launch->command, remote->host->name,
            wefti_remote_program(self->launch, remote, program));
    if (WIFSIGNALED(remote->wait_status)) {
        fprintf(stderr, " by signal %d", WTERMSIG(remote->wait_status));
    } else {
        fprintf(stderr, " with status %d", WEXITSTATUS(remote->wait_status));
    }
    if (self->started) {
        fputs(" before its ranks did\n", stderr);
    } else {
        fprintf(stderr, " before the agent answered%s%.*s\n", *noise != '\0' ? ": " : "",
                (int)strcspn(noise, "\r\n"), noise);
    }
}

/* Prints a message once if all hosts failed with it. */
static bool say_for_all(remote_launcher_t *self)
{
    const char *first = plain_text(self, &self->hosts[0]);
    for (uint32_t i = 0; i < self->plan.host_count; i++) {
        if (self->hosts[i].state != REMOTE_FAILED ||
            strcmp(plain_text(self, &self->hosts[i]), first) != 0) {
            return false;
        }
    }
    fprintf(stderr, "weft %s: %s\n", self->launch->command, first);
    return true;
}

/* Hosts that failed before there were ranks, or were lost. */
static int report_hosts(remote_launcher_t *self)
{
    bool said = say_for_all(self);
    int code = EXIT_OK;
    for (uint32_t i = 0; i < self->plan.host_count; i++) {
        remote_host_t *remote = &self->hosts[i];
        if (remote->state == REMOTE_FAILED) {
            int own = remote->code != EXIT_OK ? remote->code : EXIT_RUN_FAILED;
            code = code == EXIT_OK || code == EXIT_RUN_FAILED ? own : code;
            if (!said) {
                fprintf(stderr, "weft %s: host %s: %s\n", self->launch->command, remote->host->name,
                        plain_text(self, remote));
            }
        } else if (remote->state == REMOTE_LOST) {
            code = code == EXIT_OK ? EXIT_RUN_FAILED : code;
            print_lost(self, remote);
        }
    }
    for (uint32_t i = 0; i < self->plan.host_count && code == EXIT_OK && !self->started; i++) {
        if (self->hosts[i].state == REMOTE_PREPARING) {
            fprintf(stderr, "weft %s: host %s: no answer from its agent\n", self->launch->command,
                    self->hosts[i].host->name);
        }
    }
    return code == EXIT_OK && !self->started ? EXIT_RUN_FAILED : code;
}

static int report(remote_launcher_t *self)
{
    if (isatty(STDERR_FILENO) == 1) {
        fputs("\r\033[K", stderr); /* an unfinished progress line */
    }
    if (self->interrupted) {
        fprintf(stderr, "weft %s: interrupted, all ranks ended\n", self->launch->command);
        return EXIT_INTERRUPTED;
    }
    int hosts = report_hosts(self);
    int ranks = self->started
                    ? wefti_ranks_report(self->launch->command, self->ranks, self->world_size,
                                         self->launch->min_ranks, self->launch->program != NULL)
                    : EXIT_OK;
    /* An elastic run that has ended well has done so without the hosts that were lost. */
    return ranks != EXIT_OK || (self->started && self->launch->min_ranks > 0) ? ranks : hosts;
}

static int prepare(remote_launcher_t *self, uint32_t world_size)
{
    const launch_t *launch = self->launch;
    wefti_settings_t settings;
    int code = wefti_host_plan_parse(launch->command, launch->hosts, &self->plan);
    if (code == EXIT_OK) {
        code = wefti_host_plan_place(launch->command, &self->plan, world_size, launch->round_robin);
    }
    if (code != EXIT_OK) {
        return code;
    }
    if (wefti_settings_load(&settings) < 0) {
        return wefti_status_error(launch->command, WEFT_ERR_INVALID_ARGUMENT);
    }
    for (uint32_t i = 0; i < self->plan.host_count; i++) {
        self->world_size += self->plan.hosts[i].rank_count;
    }
    self->connect_until_ns =
        settings.connect_timeout_ns != 0 ? wefti_now_ns() + settings.connect_timeout_ns : 0;
    self->hosts = calloc(self->plan.host_count, sizeof *self->hosts);
    self->ranks = calloc(self->world_size, sizeof *self->ranks);
    self->lines = wefti_rank_lines_create(self->world_size, launch->tag_output);
    if (self->hosts == NULL || self->ranks == NULL || self->lines == NULL ||
        wefti_ranks_init(&self->signals) < 0) {
        return wefti_usage_error(launch->command, "cannot start ranks: %s", strerror(errno));
    }
    for (uint32_t i = 0; i < self->plan.host_count; i++) {
        const launch_host_t *host = &self->plan.hosts[i];
        self->hosts[i].host = host;
        self->hosts[i].to_fd = self->hosts[i].reader.fd = -1;
        for (uint32_t k = 0; k < host->rank_count; k++) {
            self->ranks[host->ranks[k]] =
                (rank_process_t){.rank = host->ranks[k], .host = host->name};
        }
    }
    return wefti_launch_make_secret(launch->command) ? EXIT_OK : EXIT_BAD_INPUT;
}

int wefti_launch_remote(const launch_t *launch, uint32_t world_size)
{
    remote_launcher_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return wefti_usage_error(launch->command, "out of memory: cannot allocate %zu bytes",
                                 sizeof *self);
    }
    self->launch = launch;
    self->signals.signal_fd = -1;
    void (*old_pipe)(int) = signal(SIGPIPE, SIG_IGN); /* an agent that is gone */
    int code = prepare(self, world_size);
    for (uint32_t i = 0; i < self->plan.host_count && code == EXIT_OK; i++) {
        code = wefti_remote_start(launch, &self->hosts[i]);
        if (code == EXIT_OK &&
            !wefti_remote_send_job(&self->hosts[i], &self->frame, self->world_size,
                                   self->plan.host_count == 1)) {
            close(self->hosts[i].to_fd); /* it has ended: its last words come first */
            self->hosts[i].to_fd = -1;
        }
    }
    code = code == EXIT_OK ? watch(self) : code;
    if (self->hosts != NULL) {
        reap_hosts(self);
    }
    wefti_rank_lines_destroy(self->lines);
    code = code == EXIT_OK ? report(self) : code;
    if (self->signals.signal_fd >= 0) {
        wefti_ranks_deinit(&self->signals);
    }
    signal(SIGPIPE, old_pipe);
    wefti_host_plan_deinit(&self->plan);
    free(self->hosts);
    free(self->ranks);
    free(self);
    return code;
}
