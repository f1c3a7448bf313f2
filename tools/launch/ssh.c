/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of hosts that have no other: one ssh per host, which executes `weft run --host-ranks`.
 * Standard input passes the job, so no variable (one of them is the secret) is on a command line:
 *
 *   4 bytes, little endian   how many bytes follow
 *   texts, each ended by a zero   version, host, address of rank 0, ranks of the world, flags,
 *                                 directory, count and ranks of this host, count and variables,
 *                                 count and words of the command
 *   later                    one byte: a signal for the ranks; the end: they end
 *
 * Ranks print on the standard output and error of their ssh, which are ours.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/sync.h"
#include "runtime/base/text.h"
#include "tools/launch/engine.h"
#include "tools/launch/ranks.h"

#define MAX_JOB_BYTES 60000u /* less than a pipe holds, so writing does not wait for ssh */
#define FLAG_TAG 1u
#define FLAG_BIND_IRQS 2u
#define FLAG_ELASTIC 4u
#define FLAG_RANKS 8u /* the command is `weft run --rank` */

extern char **environ;

/* ---- on the host ---- */

typedef struct part {
    char job[MAX_JOB_BYTES];
    size_t bytes, at;
    bool wrong;
} part_t;

static bool read_all(void *to, size_t bytes)
{
    size_t got = 0;
    while (got < bytes) {
        ssize_t now = read(STDIN_FILENO, (char *)to + got, bytes - got);
        if (now <= 0 && !(now < 0 && errno == EINTR)) {
            return false;
        }
        got += now > 0 ? (size_t)now : 0;
    }
    return true;
}

static char *next_text(part_t *part)
{
    static char nothing[] = "";
    char *text = part->job + part->at;
    size_t length = strnlen(text, part->bytes - part->at);
    if (part->at + length >= part->bytes) {
        part->wrong = true;
        return nothing;
    }
    part->at += length + 1;
    return text;
}

static uint32_t next_number(part_t *part, uint32_t most)
{
    long long number = 0;
    part->wrong = !wefti_parse_int(next_text(part), 0, most, &number) || part->wrong;
    return part->wrong ? 0 : (uint32_t)number;
}

static int read_job(part_t *part, launch_t *launch, uint32_t *out_world, uint32_t *ranks,
                    char **words)
{
    uint8_t head[4];
    if (!read_all(head, sizeof head)) {
        return EXIT_RUN_FAILED; /* the launcher has ended */
    }
    part->bytes = (size_t)head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16;
    if (part->bytes > sizeof part->job || head[3] != 0 || !read_all(part->job, part->bytes)) {
        return wefti_usage_error(launch->command, "malformed job from the launcher");
    }
    const char *version = next_text(part);
    launch->host = next_text(part);
    if (strcmp(version, weft_version()) != 0) {
        return wefti_usage_error(launch->command,
                                 "host %s: version mismatch: weft %s, but the launcher has %s",
                                 launch->host, weft_version(), version);
    }
    launch->address = next_text(part);
    *out_world = next_number(part, LAUNCH_MAX_RANKS);
    uint32_t flags = next_number(part, FLAG_TAG | FLAG_BIND_IRQS | FLAG_ELASTIC | FLAG_RANKS);
    launch->tag_output = (flags & FLAG_TAG) != 0;
    launch->bind_irqs = (flags & FLAG_BIND_IRQS) != 0;
    launch->min_ranks = (flags & FLAG_ELASTIC) != 0; /* of this host */
    launch->is_rank = (flags & FLAG_RANKS) != 0;
    const char *directory = next_text(part);
    launch->rank_count = next_number(part, LAUNCH_MAX_RANKS);
    for (uint32_t i = 0; i < launch->rank_count; i++) {
        ranks[i] = next_number(part, *out_world - (*out_world > 0));
    }
    for (uint32_t left = next_number(part, MAX_JOB_BYTES); left > 0 && !part->wrong; left--) {
        char *entry = next_text(part), *equals = strchr(entry, '=');
        if (equals != NULL && wefti_engine_passes(entry)) {
            *equals = '\0';
            setenv(entry, equals + 1, 1);
        }
    }
    uint32_t count = next_number(part, MAX_JOB_BYTES);
    for (uint32_t i = 0; i < count && !part->wrong; i++) {
        words[i] = next_text(part);
    }
    if (part->wrong || launch->rank_count == 0 || count == 0) {
        return wefti_usage_error(launch->command, "malformed job from the launcher");
    }
    return chdir(directory) == 0
               ? EXIT_OK
               : wefti_usage_error(launch->command, "host %s: cannot change to directory %s: %s",
                                   launch->host, directory, strerror(errno));
}

bool wefti_launch_is_part(int argc, char **argv)
{
    return argc == 2 && strcmp(argv[1], "--host-ranks") == 0;
}

int wefti_launch_part(const char *command)
{
    launch_t launch = {.command = command};
    part_t *part = calloc(1, sizeof *part);
    char **words = calloc(MAX_JOB_BYTES + 1, sizeof *words);
    uint32_t world_size = 0, ranks[LAUNCH_MAX_RANKS];
    int code = part != NULL && words != NULL
                   ? read_job(part, &launch, &world_size, ranks, words)
                   : wefti_usage_error(command, "out of memory: the job of a host");
    if (code == EXIT_OK) {
        launch.program = words;
        launch.rank_numbers = ranks;
        code = wefti_launch_program(&launch, world_size);
    }
    free(words);
    free(part);
    return code;
}

/* ---- the launcher ---- */

typedef struct ssh_host {
    const launch_host_t *host;
    pid_t pid;
    int fd; /* its standard input; -1: closed */
    bool ended;
} ssh_host_t;

typedef struct ssh_launcher {
    const launch_t *launch;
    const char *words; /* of ssh */
    ssh_host_t *hosts;
    uint32_t count, running, succeeded;
    rank_set_t signals; /* no ranks: signal_fd */
    bool interrupted, closed;
    int code;             /* of the first host that failed, or where a signal has ended a rank */
    uint64_t deadline_ns; /* 0: none; when the ranks, then the ssh that are left are ended */
} ssh_launcher_t;

static void add_text(wefti_text_t *job, const char *text)
{
    wefti_text_add_bytes(job, text, strlen(text) + 1);
}

static void add_number(wefti_text_t *job, size_t number)
{
    char text[24];
    snprintf(text, sizeof text, "%zu", number);
    add_text(job, text);
}

static void add_list(wefti_text_t *job, char **texts, bool (*passes)(const char *))
{
    size_t count = 0;
    for (char **at = texts; *at != NULL; at++) {
        count += passes == NULL || passes(*at);
    }
    add_number(job, count);
    for (char **at = texts; *at != NULL; at++) {
        if (passes == NULL || passes(*at)) {
            add_text(job, *at);
        }
    }
}

static bool build_job(const ssh_launcher_t *self, const launch_host_t *host, uint32_t world_size,
                      const char *address, char **command, wefti_text_t *job)
{
    const launch_t *launch = self->launch;
    char directory[PATH_MAX];
    add_text(job, weft_version());
    add_text(job, host->name);
    add_text(job, address);
    add_number(job, world_size);
    add_number(job, (launch->tag_output ? FLAG_TAG : 0) | (launch->bind_irqs ? FLAG_BIND_IRQS : 0) |
                        (launch->min_ranks > 0 ? FLAG_ELASTIC : 0) |
                        (launch->program == NULL ? FLAG_RANKS : 0));
    add_text(job, getcwd(directory, sizeof directory) != NULL ? directory : "/");
    add_number(job, host->rank_count);
    for (uint32_t i = 0; i < host->rank_count; i++) {
        add_number(job, host->ranks[i]);
    }
    add_list(job, environ, wefti_engine_passes);
    add_list(job, command, NULL);
    return !job->failed && job->length <= MAX_JOB_BYTES;
}

/* In the child: becomes ssh, or on this host the part itself. */
static void become_ssh(const ssh_launcher_t *self, const launch_host_t *host, const char *weft,
                       int input)
{
    const launch_t *launch = self->launch;
    char command[PATH_MAX + 64], *copy = strdup(self->words), *rest = NULL;
    char **words = calloc(strlen(self->words) / 2 + 4, sizeof *words); /* and ours */
    int count = 0;
    sigprocmask(SIG_SETMASK, &self->signals.old_mask, NULL);
    signal(SIGINT, SIG_IGN); /* Ctrl-C: the launcher tells the ranks */
    signal(SIGPIPE, SIG_DFL);
    unsetenv("WEFT_SECRET"); /* it comes with the job */
    dup2(input, STDIN_FILENO);
    snprintf(command, sizeof command, "exec '%s' %s --host-ranks", weft, launch->command);
    if (host->here) {
        execl("/proc/self/exe", weft, launch->command, "--host-ranks", (char *)NULL);
    } else if (copy != NULL && words != NULL) {
        for (char *word = strtok_r(copy, " \t", &rest); word != NULL;
             word = strtok_r(NULL, " \t", &rest)) {
            words[count++] = word;
        }
        words[count] = (char *)host->name;
        words[count + 1] = command;
        execvp(words[0], words);
    }
    fprintf(stderr, "weft %s: cannot run %s: %s\n", launch->command, count > 0 ? words[0] : "weft",
            strerror(errno));
    _exit(127);
}

static int start_host(ssh_launcher_t *self, ssh_host_t *host, const char *weft,
                      const wefti_text_t *job)
{
    int fds[2];
    uint8_t head[4] = {(uint8_t)job->length, (uint8_t)(job->length >> 8),
                       (uint8_t)(job->length >> 16), 0};
    fflush(NULL);
    if (pipe2(fds, O_CLOEXEC) == 0) {
        host->pid = fork();
        if (host->pid == 0) {
            become_ssh(self, host->host, weft, fds[0]);
        }
        close(fds[0]);
        host->fd = fds[1];
        fcntl(host->fd, F_SETFL, O_NONBLOCK);
    }
    if (host->pid <= 0) {
        host->pid = 0;
        return wefti_usage_error(self->launch->command, "cannot reach host %s: %s",
                                 host->host->name, strerror(errno));
    }
    self->running++;
    /* An ssh that has ended already reports why. */
    bool sent = write(host->fd, head, sizeof head) == (ssize_t)sizeof head &&
                write(host->fd, job->data, job->length) == (ssize_t)job->length;
    (void)sent;
    return EXIT_OK;
}

static void end_by(ssh_launcher_t *self, uint64_t grace_ns)
{
    self->deadline_ns = self->deadline_ns != 0 ? self->deadline_ns : wefti_now_ns() + grace_ns;
}

static void take_signals(ssh_launcher_t *self)
{
    struct signalfd_siginfo info;
    while (read(self->signals.signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        uint8_t number = info.ssi_signo == SIGINT ? SIGINT : SIGTERM;
        for (uint32_t i = 0; i < self->count && info.ssi_signo != SIGCHLD; i++) {
            if (self->hosts[i].fd >= 0 && write(self->hosts[i].fd, &number, 1) != 1) {
                close(self->hosts[i].fd);
                self->hosts[i].fd = -1;
            }
        }
        if (info.ssi_signo != SIGCHLD) {
            self->interrupted = true;
            end_by(self, LAUNCH_GRACE_NS);
        }
    }
}

/* Statuses of ssh itself, or of a shell there that cannot execute the command. */
static bool is_of_ssh(const ssh_host_t *host, int code)
{
    return !host->host->here && (code == 255 || code == 126 || code == 127);
}

/* What the ranks of the host do not report: that ssh, or the command there, could not be run. */
static void report_host(const ssh_launcher_t *self, const ssh_host_t *host, int wait_status)
{
    char name[64];
    size_t length = strcspn(self->words, " \t");
    const char *slash = memrchr(self->words, '/', length);
    const char *start = slash != NULL ? slash + 1 : self->words;
    snprintf(name, sizeof name, "%.*s", (int)(length - (size_t)(start - self->words)), start);
    const char *program = host->host->here ? "weft" : name;
    if (WIFSIGNALED(wait_status)) {
        fprintf(stderr, "weft %s: host %s: %s was killed by signal %d\n", self->launch->command,
                host->host->name, program, WTERMSIG(wait_status));
    } else if (is_of_ssh(host, WEXITSTATUS(wait_status))) {
        fprintf(stderr, "weft %s: host %s: %s ended with status %d\n", self->launch->command,
                host->host->name, program, WEXITSTATUS(wait_status));
    }
}

static void reap(ssh_launcher_t *self)
{
    for (uint32_t i = 0; i < self->count; i++) {
        ssh_host_t *host = &self->hosts[i];
        int status = 0;
        if (host->pid <= 0 || host->ended || waitpid(host->pid, &status, WNOHANG) != host->pid) {
            continue;
        }
        host->ended = true;
        self->running--;
        self->succeeded += status == 0;
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_RUN_FAILED;
        code = is_of_ssh(host, code) ? EXIT_RUN_FAILED : code;
        if (status != 0 && self->code == EXIT_OK && !self->interrupted) {
            report_host(self, host, status);
            self->code = code;
        } else if (code > 128 && self->code != EXIT_OK && self->code <= 128) {
            self->code = code; /* the others failed as this rank died, and may end before it does */
        }
        if (status != 0 && self->launch->min_ranks == 0) {
            end_by(self, LAUNCH_GRACE_NS);
        }
    }
}

/* Ends the ranks that are left, by the end of their input; then the ssh. */
static void keep_deadline(ssh_launcher_t *self)
{
    if (self->deadline_ns == 0 || wefti_now_ns() < self->deadline_ns) {
        return;
    }
    for (uint32_t i = 0; i < self->count; i++) {
        ssh_host_t *host = &self->hosts[i];
        if (host->fd >= 0) {
            close(host->fd);
            host->fd = -1;
        }
        if (self->closed && host->pid > 0 && !host->ended) {
            kill(host->pid, SIGKILL);
        }
    }
    self->closed = true;
    self->deadline_ns = wefti_now_ns() + 3 * LAUNCH_GRACE_NS;
}

static void watch(ssh_launcher_t *self)
{
    while (self->running > 0) {
        struct pollfd wait_for = {.fd = self->signals.signal_fd, .events = POLLIN};
        poll(&wait_for, 1, self->deadline_ns != 0 ? 50 : 1000);
        take_signals(self);
        reap(self);
        keep_deadline(self);
    }
}

/* The name by which the other hosts reach the first one, and a port: held here where it is this
 * host, else one below those that systems give away. */
static bool choose_address(const host_plan_t *plan, char *out, size_t bytes, int *out_port_fd)
{
    const launch_host_t *first = &plan->hosts[0];
    const char *at = strrchr(first->name, '@'); /* user@host */
    const char *name = at != NULL ? at + 1 : first->name;
    char own[LAUNCH_HOST_BYTES] = "";
    uint16_t port = 0;
    if (first->here) {
        *out_port_fd = wefti_port_hold(&port);
    } else if (wefti_random_bytes(&port, sizeof port) == WEFT_OK) {
        port = (uint16_t)(20000 + port % 10000);
    }
    if (plan->host_count > 1 && strcmp(name, "localhost") == 0 &&
        gethostname(own, sizeof own - 1) == 0) {
        name = own;
    }
    snprintf(out, bytes, strchr(name, ':') != NULL ? "[%s]:%u" : "%s:%u", name, port);
    return port != 0;
}

static int start_hosts(ssh_launcher_t *self, const host_plan_t *plan, uint32_t world_size,
                       const char *address)
{
    const launch_t *launch = self->launch;
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    const char *weft = launch->remote_weft != NULL ? launch->remote_weft : path;
    char **command = wefti_engine_rank_command(launch, weft);
    int code = strchr(weft, '\'') != NULL || strlen(weft) >= PATH_MAX
                   ? wefti_usage_error(launch->command, "--remote-weft: invalid path: %s", weft)
                   : EXIT_OK;
    for (uint32_t i = 0; i < plan->host_count && code == EXIT_OK; i++) {
        wefti_text_t job;
        wefti_text_init(&job, NULL);
        code =
            command != NULL && build_job(self, &plan->hosts[i], world_size, address, command, &job)
                ? start_host(self, &self->hosts[i], weft, &job)
                : wefti_usage_error(launch->command,
                                    "arguments and WEFT_ variables are longer than %u bytes",
                                    MAX_JOB_BYTES);
        wefti_text_deinit(&job);
    }
    free(command);
    return code;
}

int wefti_launch_ssh(const launch_t *launch, const host_plan_t *plan, const char *words)
{
    const char *rsh = wefti_engine_rsh(launch);
    ssh_launcher_t self = {.launch = launch, .count = plan->host_count};
    char address[LAUNCH_HOST_BYTES + 16];
    uint32_t world_size = 0;
    int port_fd = -1, code = EXIT_OK;
    self.words = rsh != NULL                                  ? rsh
                 : words != NULL && strcmp(words, "ssh") != 0 ? words
                                                              : DEFAULT_RSH;
    self.hosts = calloc(plan->host_count, sizeof *self.hosts);
    if (self.hosts == NULL || wefti_ranks_init(&self.signals) < 0 ||
        !choose_address(plan, address, sizeof address, &port_fd)) {
        free(self.hosts);
        return wefti_usage_error(launch->command, "cannot start ranks: %s", strerror(errno));
    }
    for (uint32_t i = 0; i < plan->host_count; i++) {
        self.hosts[i] = (ssh_host_t){.host = &plan->hosts[i], .fd = -1};
        world_size += plan->hosts[i].rank_count;
    }
    void (*old_pipe)(int) = signal(SIGPIPE, SIG_IGN); /* an ssh that has ended */
    code = wefti_launch_make_secret(launch->command) ? EXIT_OK : EXIT_BAD_INPUT;
    code = code == EXIT_OK ? start_hosts(&self, plan, world_size, address) : code;
    if (code != EXIT_OK) {
        end_by(&self, 0);
    }
    watch(&self);
    signal(SIGPIPE, old_pipe);
    wefti_ranks_deinit(&self.signals);
    if (port_fd >= 0) {
        close(port_fd);
    }
    for (uint32_t i = 0; i < self.count; i++) {
        if (self.hosts[i].fd >= 0) {
            close(self.hosts[i].fd);
        }
    }
    free(self.hosts);
    if (self.interrupted) {
        fprintf(stderr, "weft %s: interrupted, all ranks ended\n", launch->command);
        return EXIT_INTERRUPTED;
    }
    /* An elastic run that has ended well has done so without the hosts that were lost. */
    bool elastic_end = launch->min_ranks > 0 && self.succeeded > 0;
    return code != EXIT_OK ? code : elastic_end ? EXIT_OK : self.code;
}
