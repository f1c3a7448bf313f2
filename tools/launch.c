/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/sync.h"
#include "tools/tool.h"
#include "transport/transport.h"

/* How long ranks have to end by themselves: after one was killed, after one failed or an interrupt.
 */
#define DEATH_GRACE_NS 800000000ull
#define GRACE_NS 2000000000ull
#define MAX_CPUS 1024u

/* What a failed rank leaves in its pipe: written once, at its end. */
typedef struct rank_report {
    int32_t status;
    char message[1024];
} rank_report_t;

typedef struct rank_process {
    pid_t pid;
    int pipe_fd;
    bool ended;
    bool killed; /* by us, because it did not end by itself */
    int wait_status;
    rank_report_t report; /* message "" when it left none */
} rank_process_t;

typedef struct launcher {
    const char *command;
    uint32_t world_size;
    rank_process_t *ranks;
    char address[64];
    sigset_t old_mask;
    int signal_fd;
    bool interrupted;
    uint64_t deadline_ns; /* 0, or when the remaining ranks are killed */
} launcher_t;

static void rank_main(const launcher_t *launcher, uint32_t rank, int pipe_fd, pid_t parent,
                      rank_fn run, void *user)
{
    uint32_t cpus[MAX_CPUS];
    /* The terminal's Ctrl-C is the launcher's to handle; it ends us by SIGTERM. */
    signal(SIGINT, SIG_IGN);
    sigprocmask(SIG_SETMASK, &launcher->old_mask, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(EXIT_RUN_FAILED);
    }
    uint32_t count = wefti_machine_cpus_of_rank(rank, launcher->world_size, cpus, MAX_CPUS);
    if (count > 0) {
        wefti_pin_thread(cpus, count);
    }
    rank_report_t report = {0};
    report.status = run(user, rank, launcher->world_size, launcher->address);
    int code = EXIT_OK;
    if (report.status < 0) {
        snprintf(report.message, sizeof report.message, "%s", weft_last_error());
        code = (int)wefti_exit_code((weft_status_t)report.status);
        if (write(pipe_fd, &report, sizeof report) != (ssize_t)sizeof report) {
            fprintf(stderr, "weft %s: rank %u: %s\n", launcher->command, rank, report.message);
        }
    }
    fflush(NULL);
    _exit(code);
}

static weft_status_t start_rank(launcher_t *launcher, uint32_t rank, rank_fn run, void *user)
{
    int fds[2];
    pid_t parent = getpid();
    if (pipe2(fds, O_CLOEXEC) != 0) {
        return WEFT_ERR_SYSTEM;
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        close(fds[0]);
        close(fds[1]);
        return WEFT_ERR_SYSTEM;
    }
    if (pid == 0) {
        close(fds[0]);
        close(launcher->signal_fd);
        rank_main(launcher, rank, fds[1], parent, run, user);
    }
    close(fds[1]);
    launcher->ranks[rank].pid = pid;
    launcher->ranks[rank].pipe_fd = fds[0];
    return WEFT_OK;
}

static void signal_all(launcher_t *launcher, int signal_number)
{
    for (uint32_t i = 0; i < launcher->world_size; i++) {
        if (launcher->ranks[i].pid > 0 && !launcher->ranks[i].ended) {
            launcher->ranks[i].killed = launcher->ranks[i].killed || signal_number == SIGKILL;
            kill(launcher->ranks[i].pid, signal_number);
        }
    }
}

/* Reaps whoever ended; returns how many still run. */
static uint32_t reap(launcher_t *launcher)
{
    uint32_t running = 0;
    for (uint32_t i = 0; i < launcher->world_size; i++) {
        rank_process_t *rank = &launcher->ranks[i];
        if (rank->pid <= 0 || rank->ended) {
            continue;
        }
        if (waitpid(rank->pid, &rank->wait_status, WNOHANG) != rank->pid) {
            running++;
            continue;
        }
        rank->ended = true;
        ssize_t got = read(rank->pipe_fd, &rank->report, sizeof rank->report);
        if (got != (ssize_t)sizeof rank->report) {
            memset(&rank->report, 0, sizeof rank->report);
        }
        rank->report.message[sizeof rank->report.message - 1] = '\0';
        bool failed = !WIFEXITED(rank->wait_status) || WEXITSTATUS(rank->wait_status) != 0;
        if (failed && launcher->deadline_ns == 0) {
            launcher->deadline_ns =
                wefti_now_ns() + (WIFSIGNALED(rank->wait_status) ? DEATH_GRACE_NS : GRACE_NS);
        }
    }
    return running;
}

static void watch(launcher_t *launcher)
{
    while (reap(launcher) > 0) {
        struct pollfd wait_for = {.fd = launcher->signal_fd, .events = POLLIN};
        uint64_t now = wefti_now_ns();
        if (launcher->deadline_ns != 0 && now >= launcher->deadline_ns) {
            signal_all(launcher, SIGKILL);
            launcher->deadline_ns = now + GRACE_NS;
        }
        poll(&wait_for, 1, launcher->deadline_ns == 0 ? -1 : 50);
        struct signalfd_siginfo info;
        while (read(launcher->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
            if (info.ssi_signo != SIGCHLD) {
                launcher->interrupted = true;
                launcher->deadline_ns = wefti_now_ns() + GRACE_NS;
                signal_all(launcher, SIGTERM);
            }
        }
    }
}

/* A rank that only noticed somebody else's failure has less to say than the one that failed. */
static bool is_echo(const rank_process_t *rank)
{
    return rank->report.status == WEFT_ERR_ABORTED;
}

static bool said_before(const launcher_t *launcher, uint32_t index)
{
    for (uint32_t i = 0; i < index; i++) {
        if (strcmp(launcher->ranks[i].report.message, launcher->ranks[index].report.message) == 0) {
            return true;
        }
    }
    return false;
}

static void name_deaths(const launcher_t *launcher, bool by_us)
{
    for (uint32_t i = 0; i < launcher->world_size; i++) {
        const rank_process_t *rank = &launcher->ranks[i];
        if (!rank->ended || !WIFSIGNALED(rank->wait_status) || rank->killed != by_us) {
            continue;
        }
        if (by_us) {
            fprintf(stderr, "weft %s: rank %u (pid %d) did not answer any more and was ended\n",
                    launcher->command, i, (int)rank->pid);
        } else {
            fprintf(stderr, "weft %s: rank %u (pid %d) was killed by signal %d (%s)\n",
                    launcher->command, i, (int)rank->pid, WTERMSIG(rank->wait_status),
                    strsignal(WTERMSIG(rank->wait_status)));
        }
    }
}

/* Prints what went wrong, root causes only where there are any; returns the exit code. */
static int report_failures(const launcher_t *launcher)
{
    bool have_cause = false, deaths = false, silent = false, explained = false;
    for (uint32_t i = 0; i < launcher->world_size; i++) {
        const rank_process_t *rank = &launcher->ranks[i];
        bool signalled = rank->ended && WIFSIGNALED(rank->wait_status);
        bool cause = rank->report.status < 0 && !is_echo(rank);
        have_cause = have_cause || cause;
        /* Whoever waited in vain does not explain why others were silent: they are the reason. */
        explained = explained || (cause && rank->report.status != WEFT_ERR_TIMEOUT);
        deaths = deaths || (signalled && !rank->killed);
        silent = silent || (signalled && rank->killed);
    }
    silent = silent && !deaths && !explained;
    int code = deaths || silent ? EXIT_RUN_FAILED : EXIT_OK;
    if (deaths || silent) {
        name_deaths(launcher, silent);
    }
    for (uint32_t i = 0; i < launcher->world_size; i++) {
        const rank_process_t *rank = &launcher->ranks[i];
        if (rank->report.status >= 0 || (have_cause && is_echo(rank))) {
            continue;
        }
        int own = (int)wefti_exit_code((weft_status_t)rank->report.status);
        code = code == EXIT_OK ? own : code;
        if (!said_before(launcher, i)) {
            fprintf(stderr, "weft %s: %s\n", launcher->command, rank->report.message);
        }
    }
    for (uint32_t i = 0; i < launcher->world_size && code == EXIT_OK; i++) {
        if (WIFEXITED(launcher->ranks[i].wait_status) &&
            WEXITSTATUS(launcher->ranks[i].wait_status) != 0) {
            code = WEXITSTATUS(launcher->ranks[i].wait_status);
        }
    }
    return code;
}

static bool any_failed(const launcher_t *launcher)
{
    for (uint32_t i = 0; i < launcher->world_size; i++) {
        if (launcher->ranks[i].wait_status != 0) {
            return true;
        }
    }
    return false;
}

static weft_status_t prepare(launcher_t *launcher)
{
    uint64_t token = 0;
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGHUP);
    sigaddset(&mask, SIGCHLD);
    if (getrandom(&token, sizeof token, 0) != (ssize_t)sizeof token ||
        sigprocmask(SIG_BLOCK, &mask, &launcher->old_mask) != 0) {
        return WEFT_ERR_SYSTEM;
    }
    snprintf(launcher->address, sizeof launcher->address, "unix:@weft-%u-%016llx",
             (unsigned)getuid(), (unsigned long long)token);
    launcher->signal_fd = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
    return launcher->signal_fd < 0 ? WEFT_ERR_SYSTEM : WEFT_OK;
}

int wefti_launch(const char *command, uint32_t world_size, rank_fn run, void *user)
{
    launcher_t launcher = {.command = command, .world_size = world_size, .signal_fd = -1};
    int code = EXIT_OK;
    launcher.ranks = calloc(world_size, sizeof *launcher.ranks);
    if (launcher.ranks == NULL || prepare(&launcher) < 0) {
        free(launcher.ranks);
        return wefti_usage_error(command, "cannot start ranks: %s", strerror(errno));
    }
    for (uint32_t i = 0; i < world_size; i++) {
        if (start_rank(&launcher, i, run, user) < 0) {
            code = wefti_usage_error(command, "cannot start rank %u of %u: %s", i, world_size,
                                     strerror(errno));
            signal_all(&launcher, SIGKILL);
            break;
        }
    }
    watch(&launcher);
    if ((launcher.interrupted || code != EXIT_OK || any_failed(&launcher)) &&
        isatty(STDERR_FILENO) == 1) {
        fputs("\r\033[K", stderr); /* a progress line that nobody ended */
    }
    if (launcher.interrupted) {
        fprintf(stderr, "weft %s: interrupted, all ranks ended\n", command);
        code = EXIT_INTERRUPTED;
    } else if (code == EXIT_OK) {
        code = report_failures(&launcher);
    }
    for (uint32_t i = 0; i < world_size; i++) {
        if (launcher.ranks[i].pid > 0) {
            close(launcher.ranks[i].pipe_fd);
        }
    }
    close(launcher.signal_fd);
    sigprocmask(SIG_SETMASK, &launcher.old_mask, NULL);
    free(launcher.ranks);
    return code;
}
