/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of one host, as their launcher sees them. */
#ifndef WEFT_TOOLS_LAUNCH_RANKS_H
#define WEFT_TOOLS_LAUNCH_RANKS_H

#include <signal.h>
#include <sys/types.h>

#include "tools/launch/launch.h"

/* How long ranks have to end by themselves: after one was killed, after one failed or an interrupt.
 */
#define LAUNCH_DEATH_GRACE_NS 800000000ull
#define LAUNCH_GRACE_NS 2000000000ull
#define LAUNCH_MESSAGE_BYTES 1024u

/* What a failed rank leaves in its pipe: written once, at its end. */
typedef struct rank_report {
    int32_t status;
    char message[LAUNCH_MESSAGE_BYTES];
} rank_report_t;

typedef struct rank_process {
    uint32_t rank;
    const char *host; /* NULL: this one */
    pid_t pid;
    int report_fd;
    int output_fds[2]; /* what it prints on standard output and error; -1: not ours to read */
    bool ended;
    bool killed; /* by us, because it did not end by itself */
    bool joins;  /* it has taken a dead rank's place, and is not in the world yet */
    int wait_status;
    rank_report_t report; /* message "" when it left none */
    uint32_t ended_as;    /* the how manieth to end, from 1 */
} rank_process_t;

typedef struct rank_set {
    const char *command;
    uint32_t world_size, count; /* count: of this host */
    uint32_t min_ranks;         /* as in launch_t */
    launch_board_t *board;      /* likewise */
    uint32_t restarts;          /* processes that were started in place of others */
    rank_process_t *ranks;      /* of this host */
    const char *address;
    rank_fn run;
    void *user;
    bool program;         /* run becomes another program */
    bool speaks;          /* which prints why it fails */
    bool capture;         /* output comes through pipes */
    bool interrupted;     /* a signal that asks for the end came */
    uint64_t deadline_ns; /* 0, or when the remaining ranks are killed */
    uint32_t ended_count;
    sigset_t old_mask;
    int signal_fd;

    struct rank_lines *lines; /* captured output goes here */
    int extra_fd;             /* where the launcher of several hosts is heard; -1: none */
    void (*extra)(void *set);
} rank_set_t;

/* Blocks the signals that the owner handles from now on, and opens signal_fd. */
weft_status_t wefti_ranks_init(rank_set_t *set);
void wefti_ranks_deinit(rank_set_t *set);
/* Starts all; at the first failure ends those started, with errno as it was. */
weft_status_t wefti_ranks_start(rank_set_t *set, uint32_t *out_failed);
void wefti_ranks_signal(rank_set_t *set, int signal_number);
/* Until all have ended. With a board, starts others in place of those that die. */
void wefti_ranks_watch(rank_set_t *set);

/* Some died before there was a world: prepares to start all of them again. */
bool wefti_ranks_start_over(rank_set_t *set);

/* report.c. Is a rank that has failed the end of the run? min_ranks as in launch_t. */
bool wefti_ranks_must_end(const rank_process_t *ranks, uint32_t count, uint32_t min_ranks);
/* Prints how a rank has ended, and what follows. */
void wefti_rank_report_end(const char *command, const rank_process_t *rank, const char *what);
/* Prints what went wrong, root causes only where there are any; the exit code. */
int wefti_ranks_report(const rank_set_t *set);

/* Lines of ranks as they come, or each behind its rank's number. */
typedef struct rank_lines rank_lines_t;
rank_lines_t *wefti_rank_lines_create(uint32_t world_size, bool tag);
void wefti_rank_lines_add(rank_lines_t *lines, uint32_t rank, int stream, const char *data,
                          size_t bytes);
/* What has no end of line yet is printed with one. */
void wefti_rank_lines_destroy(rank_lines_t *lines);

#endif
