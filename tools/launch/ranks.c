/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/launch/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/settings.h"
#include "runtime/base/sync.h"
#include "runtime/machine/machine.h"

/* ---- one rank ---- */

static void set_number(const char *name, uint32_t value)
{
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    setenv(name, text, 1);
}

/* What a program finds out by itself who it is from. */
static void set_environment(const rank_set_t *set, uint32_t index)
{
    set_number("WEFT_RANK", set->ranks[index].rank);
    set_number("WEFT_WORLD_SIZE", set->world_size);
    set_number("WEFT_LOCAL_RANK", index);
    set_number("WEFT_LOCAL_SIZE", set->count);
    setenv("WEFT_ADDRESS", set->address, 1);
}

/* Within what this process may use itself. A setting that is wrong is for the rank to complain of,
 * and one that cannot be bound runs anyway. */
static void bind_rank(const rank_set_t *set, uint32_t index)
{
    wefti_settings_t settings;
    wefti_bind_t bind = WEFTI_BIND_CORE;
    if (wefti_settings_load(&settings) == WEFT_OK && settings.bind != WEFTI_BIND_AUTO) {
        bind = (wefti_bind_t)settings.bind;
    }
    (void)wefti_binding_apply(index, set->count, bind);
}

/* Rank 0 has our standard input, but not the terminal (it is not in its foreground), nor the
 * launcher's messages. */
static void set_streams(const rank_set_t *set, uint32_t index, const int *outputs)
{
    bool ours = set->extra_fd >= 0 || isatty(STDIN_FILENO) == 1;
    if (set->program && (set->ranks[index].rank != 0 || ours)) {
        int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (nothing >= 0) {
            dup2(nothing, STDIN_FILENO);
            close(nothing);
        }
    }
    if (outputs[0] >= 0) {
        dup2(outputs[0], STDOUT_FILENO);
        dup2(outputs[1], STDERR_FILENO);
        close(outputs[0]);
        close(outputs[1]);
    }
}

static void rank_main(const rank_set_t *set, uint32_t index, int report_fd, const int *outputs,
                      pid_t parent)
{
    uint32_t rank = set->ranks[index].rank;
    /* The terminal's Ctrl-C is the launcher's to handle; it ends us by SIGTERM, and passes it on to
     * programs. */
    signal(SIGINT, set->program ? SIG_DFL : SIG_IGN);
    sigprocmask(SIG_SETMASK, &set->old_mask, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(EXIT_RUN_FAILED);
    }
    if (set->program) {
        setpgid(0, 0); /* it may start others, which end with it */
    }
    set_streams(set, index, outputs);
    set_environment(set, index);
    bind_rank(set, index);
    rank_report_t report = {0};
    report.status = set->run(set->user, rank, set->world_size, set->address);
    int code = EXIT_OK;
    if (report.status < 0) {
        snprintf(report.message, sizeof report.message, "%s", weft_last_error());
        code = (int)wefti_exit_code((weft_status_t)report.status);
        if (write(report_fd, &report, sizeof report) != (ssize_t)sizeof report) {
            fprintf(stderr, "weft %s: rank %u: %s\n", set->command, rank, report.message);
        }
    }
    fflush(NULL);
    _exit(code);
}

static void close_pair(int *fds)
{
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
        fds[i] = -1;
    }
}

/* One end of each pipe is the rank's. */
static weft_status_t open_pipes(const rank_set_t *set, rank_process_t *rank, int *report_end,
                                int *output_ends)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
        return WEFT_ERR_SYSTEM;
    }
    rank->report_fd = fds[0];
    *report_end = fds[1];
    for (int i = 0; i < 2 && set->capture; i++) {
        if (pipe2(fds, O_CLOEXEC) != 0) {
            return WEFT_ERR_SYSTEM;
        }
        rank->output_fds[i] = fds[0];
        output_ends[i] = fds[1];
        fcntl(fds[0], F_SETFL, O_NONBLOCK);
    }
    return WEFT_OK;
}

static weft_status_t start_rank(rank_set_t *set, uint32_t index)
{
    rank_process_t *rank = &set->ranks[index];
    int report[2] = {-1, -1}, outputs[2] = {-1, -1};
    pid_t parent = getpid(), pid = -1;
    if (open_pipes(set, rank, &report[1], outputs) == WEFT_OK) {
        fflush(NULL);
        pid = fork();
    }
    if (pid == 0) {
        close(rank->report_fd);
        close(set->signal_fd);
        rank_main(set, index, report[1], outputs, parent);
    }
    int error = errno;
    close_pair(report);
    close_pair(outputs);
    errno = error;
    if (pid < 0) {
        return WEFT_ERR_SYSTEM;
    }
    if (set->program) {
        setpgid(pid, pid); /* also called by the child: either may run first */
    }
    rank->pid = pid;
    return WEFT_OK;
}

static void close_rank(rank_process_t *rank)
{
    if (rank->report_fd >= 0) {
        close(rank->report_fd);
    }
    rank->report_fd = -1;
    close_pair(rank->output_fds);
}

weft_status_t wefti_ranks_start(rank_set_t *set, uint32_t *out_failed)
{
    for (uint32_t i = 0; i < set->count; i++) {
        if (start_rank(set, i) < 0) {
            int error = errno;
            *out_failed = set->ranks[i].rank;
            wefti_ranks_signal(set, SIGKILL);
            errno = error;
            return WEFT_ERR_SYSTEM;
        }
    }
    return WEFT_OK;
}

void wefti_ranks_signal(rank_set_t *set, int signal_number)
{
    for (uint32_t i = 0; i < set->count; i++) {
        rank_process_t *rank = &set->ranks[i];
        if (rank->pid > 0 && !rank->ended) {
            rank->killed = true;
            kill(set->program ? -rank->pid : rank->pid, signal_number);
        }
    }
}

/* ---- all of them ---- */

/* What the rank has printed so far; its children may hold the other end for long. */
static void read_output(rank_set_t *set, rank_process_t *rank, int stream)
{
    char data[16384];
    while (rank->output_fds[stream] >= 0) {
        ssize_t got = read(rank->output_fds[stream], data, sizeof data);
        if (got > 0) {
            wefti_rank_lines_add(set->lines, rank->rank, stream, data, (size_t)got);
            if ((size_t)got == sizeof data && !rank->ended) {
                return; /* the others' turn */
            }
        } else if (got < 0 && errno == EINTR) {
            continue;
        } else {
            if (got == 0 || errno != EAGAIN) {
                close(rank->output_fds[stream]);
                rank->output_fds[stream] = -1;
            }
            return;
        }
    }
}

static bool has_failed(const rank_process_t *rank)
{
    return !WIFEXITED(rank->wait_status) || WEXITSTATUS(rank->wait_status) != 0;
}

/* A rank that was killed or left behind, or that failed before it was one; other errors would come
 * again. */
static bool is_replaceable(const rank_process_t *rank, bool was_member)
{
    weft_status_t status = (weft_status_t)rank->report.status;
    return !rank->killed && has_failed(rank) &&
           (!was_member || status == WEFT_OK || status == WEFT_ERR_PEER_DIED ||
            status == WEFT_ERR_TIMEOUT);
}

/* Ranks that run and are in the world, which new ones can join. */
static uint32_t count_members(rank_set_t *set)
{
    uint32_t members = 0;
    bool over = false; /* training has ended */
    for (uint32_t i = 0; i < set->count; i++) {
        rank_process_t *rank = &set->ranks[i];
        rank->joins = !rank->ended && wefti_board_is_joining(set->board, rank->rank);
        members += !rank->ended && !rank->joins;
        over = over || (rank->ended && !has_failed(rank));
    }
    return over ? 0 : members;
}

/* Starts a process in place of one that has died. */
static bool take_place(rank_set_t *set, rank_process_t *rank, bool was_member)
{
    char what[96];
    launch_board_t *board = set->board;
    wefti_board_vacate(board, rank->rank);
    uint32_t members = count_members(set);
    if (members == 0) {
        wefti_board_close(board);
    }
    if (members == 0 || !wefti_board_has_world(board) || !is_replaceable(rank, was_member) ||
        set->interrupted || set->deadline_ns != 0 || wefti_board_restarts_left(board) == 0) {
        return false;
    }
    const rank_process_t before = *rank;
    wefti_board_offer(board, rank->rank);
    wefti_board_restart(board);
    *rank = (rank_process_t){
        .rank = before.rank, .joins = true, .report_fd = -1, .output_fds = {-1, -1}};
    if (start_rank(set, (uint32_t)(rank - set->ranks)) < 0) {
        close_rank(rank);
        *rank = before;
        wefti_board_vacate(board, rank->rank);
        return false;
    }
    set->restarts++;
    snprintf(what, sizeof what, "; pid %d takes its place (restart %u of %u)", (int)rank->pid,
             set->restarts, set->restarts + wefti_board_restarts_left(board));
    wefti_rank_report_end(set->command, &before, what);
    return true;
}

bool wefti_ranks_start_over(rank_set_t *set)
{
    const rank_process_t *dead = NULL;
    for (uint32_t i = 0; i < set->count; i++) {
        rank_process_t *rank = &set->ranks[i];
        bool died = has_failed(rank) && !rank->killed && rank->report.status == WEFT_OK;
        dead = died && (dead == NULL || rank->ended_as < dead->ended_as) ? rank : dead;
    }
    if (dead == NULL || set->board == NULL || set->interrupted ||
        wefti_board_has_world(set->board) || wefti_board_restarts_left(set->board) == 0) {
        return false;
    }
    char what[96];
    wefti_board_restart(set->board);
    set->restarts++;
    snprintf(what, sizeof what, " before all ranks had joined; all start again (restart %u of %u)",
             set->restarts, set->restarts + wefti_board_restarts_left(set->board));
    wefti_rank_report_end(set->command, dead, what);
    for (uint32_t i = 0; i < set->count; i++) {
        set->ranks[i] =
            (rank_process_t){.rank = set->ranks[i].rank, .report_fd = -1, .output_fds = {-1, -1}};
    }
    set->ended_count = 0;
    set->deadline_ns = 0;
    return true;
}

static void take_end(rank_set_t *set, rank_process_t *rank)
{
    rank->ended = true;
    rank->ended_as = ++set->ended_count;
    ssize_t got = read(rank->report_fd, &rank->report, sizeof rank->report);
    if (got != (ssize_t)sizeof rank->report) {
        memset(&rank->report, 0, sizeof rank->report);
    }
    rank->report.message[sizeof rank->report.message - 1] = '\0';
    bool was_member = set->board != NULL && wefti_board_is_taken(set->board, rank->rank);
    for (int stream = 0; stream < 2; stream++) {
        read_output(set, rank, stream);
    }
    close_rank(rank);
    if (set->board != NULL && take_place(set, rank, was_member)) {
        return;
    }
    if (has_failed(rank) && set->deadline_ns == 0 &&
        wefti_ranks_must_end(set->ranks, set->count, set->min_ranks)) {
        set->deadline_ns = wefti_now_ns() + (WIFSIGNALED(rank->wait_status) ? LAUNCH_DEATH_GRACE_NS
                                                                            : LAUNCH_GRACE_NS);
    }
}

/* Ends the children of a program, before the process id is free for reuse. */
static void end_group(const rank_set_t *set, const rank_process_t *rank)
{
    siginfo_t info = {0};
    if (set->program && waitid(P_PID, (id_t)rank->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == rank->pid) {
        kill(-rank->pid, SIGTERM);
    }
}

/* Reaps ended processes; returns the number of running ones. */
static uint32_t reap(rank_set_t *set)
{
    uint32_t running = 0;
    for (uint32_t i = 0; i < set->count; i++) {
        rank_process_t *rank = &set->ranks[i];
        if (rank->pid <= 0 || rank->ended) {
            continue;
        }
        end_group(set, rank);
        if (waitpid(rank->pid, &rank->wait_status, WNOHANG) != rank->pid) {
            running++;
            continue;
        }
        take_end(set, rank);
        running += !rank->ended;
    }
    return running;
}

static void take_signals(rank_set_t *set)
{
    struct signalfd_siginfo info;
    while (read(set->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo != SIGCHLD) {
            set->interrupted = true;
            set->deadline_ns = wefti_now_ns() + LAUNCH_GRACE_NS;
            /* Programs get what the terminal would have sent them. */
            wefti_ranks_signal(set, set->program && info.ssi_signo == SIGINT ? SIGINT : SIGTERM);
        }
    }
}

/* Programs are asked first. */
static void keep_deadline(rank_set_t *set, bool *asked)
{
    uint64_t now = wefti_now_ns();
    if (set->deadline_ns == 0 || now < set->deadline_ns) {
        return;
    }
    wefti_ranks_signal(set, set->program && !*asked && !set->interrupted ? SIGTERM : SIGKILL);
    *asked = true;
    set->deadline_ns = now + LAUNCH_GRACE_NS;
}

void wefti_ranks_watch(rank_set_t *set)
{
    struct pollfd *fds = calloc(2 + 2 * (size_t)set->count, sizeof *fds);
    bool asked = false;
    while (reap(set) > 0) {
        nfds_t used = 0;
        struct pollfd none[2];
        struct pollfd *all = fds != NULL ? fds : none;
        keep_deadline(set, &asked);
        all[used++] = (struct pollfd){.fd = set->signal_fd, .events = POLLIN};
        all[used++] = (struct pollfd){.fd = set->extra_fd, .events = POLLIN};
        for (uint32_t i = 0; i < 2 * set->count && fds != NULL; i++) {
            all[used++] =
                (struct pollfd){.fd = set->ranks[i / 2].output_fds[i % 2], .events = POLLIN};
        }
        poll(all, used, set->deadline_ns == 0 && fds != NULL ? -1 : 50);
        for (uint32_t i = 0; i < 2 * set->count; i++) {
            if (fds == NULL || fds[2 + i].revents != 0) {
                read_output(set, &set->ranks[i / 2], (int)(i % 2));
            }
        }
        if (all[1].revents != 0) {
            set->extra(set);
        }
        take_signals(set);
    }
    free(fds);
}

weft_status_t wefti_ranks_init(rank_set_t *set)
{
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGHUP);
    sigaddset(&mask, SIGCHLD);
    set->signal_fd = -1;
    for (uint32_t i = 0; i < set->count; i++) {
        set->ranks[i].report_fd = set->ranks[i].output_fds[0] = set->ranks[i].output_fds[1] = -1;
    }
    if (sigprocmask(SIG_BLOCK, &mask, &set->old_mask) != 0) {
        return WEFT_ERR_SYSTEM;
    }
    set->signal_fd = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
    return set->signal_fd < 0 ? WEFT_ERR_SYSTEM : WEFT_OK;
}

void wefti_ranks_deinit(rank_set_t *set)
{
    for (uint32_t i = 0; i < set->count; i++) {
        close_rank(&set->ranks[i]);
    }
    if (set->signal_fd >= 0) {
        close(set->signal_fd);
    }
    sigprocmask(SIG_SETMASK, &set->old_mask, NULL);
}
