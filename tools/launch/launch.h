/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts ranks as processes, on this host or on several, and supervises them.
 *
 *   launch.c   options; ranks on this host, on several, or of a program
 *   ranks.c    processes of one host: pinning, output, signals, reaping
 *   hosts.c    --hosts: names and slots, placement of ranks
 *   remote.c   the launcher of several hosts: one agent on each
 *   rsh.c      starting an agent through ssh; its first message
 *   agent.c    the agent: `weft COMMAND --agent ...` at the other end of ssh
 *   address.c  an address of rank 0 that all hosts reach
 *   frames.c   messages between launcher and agents
 *   board.c    processes that take the place of dead ranks
 *   report.c   each failure printed once; the exit code
 *   program.c  `weft run -- PROGRAM`
 */
#ifndef WEFT_TOOLS_LAUNCH_H
#define WEFT_TOOLS_LAUNCH_H

#include "tools/launch/board.h"
#include "tools/tool.h"

#define LAUNCH_MAX_RANKS 1024u
#define LAUNCH_HOST_BYTES 256u

/* The work of one rank, in a process of its own. The message of its error goes to the launcher. */
typedef weft_status_t (*rank_fn)(void *user, uint32_t rank, uint32_t world_size,
                                 const char *address);

typedef struct launch_agent launch_agent_t;

/* How ranks are to be started. */
typedef struct launch {
    const char *command;
    const char *hosts;       /* NULL: this one */
    const char *rsh;         /* NULL: ssh */
    const char *remote_weft; /* NULL: the same path as here */
    bool tag_output, round_robin, bind_irqs;
    uint32_t min_ranks; /* 0: the run ends when a rank dies; else when fewer than these are left */
    launch_board_t *board; /* elastic: for processes in place of ranks that die; NULL: none */
    char **program;        /* NULL, or what follows "--" */
    int argument_count;
    char **arguments;      /* before parsing, for the agents; owned */
    launch_agent_t *agent; /* not NULL: this process is the agent of a host */
    /* Of an agent: of the world, and its host's ranks. */
    uint32_t world_size, rank_count;
    const uint32_t *rank_numbers;
} launch_t;

extern const option_def_t wefti_launch_option_defs[];
bool wefti_is_launch_option(int key);

/*
 * Before options are parsed: keeps the arguments, takes "-- PROGRAM ARGS.." away from them and, in
 * an agent, receives its job from the launcher and sets its environment.
 */
int wefti_launch_init(launch_t *launch, const char *command, int *argc, char **argv);
/* An agent that has not started ranks tells the launcher why: code, and what was printed. */
void wefti_launch_deinit(launch_t *launch, int code);
int wefti_launch_option(launch_t *launch, int key, const char *value);

/* Sets WEFT_SECRET, unless the user has, before ranks or agents start. Prints an error. */
bool wefti_launch_make_secret(const char *command);
/* "unix:@weft-.." that is not in use; false with errno. */
bool wefti_launch_unix_address(char *out, size_t bytes);

/* Ranks are started by agents, which prepare what ranks share themselves. */
bool wefti_launch_is_remote(const launch_t *launch);
/* Starts the agents; world_size 0: as many as there are slots. Returns an exit code of tool.h. */
int wefti_launch_remote(const launch_t *launch, uint32_t world_size);

/*
 * Forks the ranks of this host, binds each to its share of the cores and waits for all. Ctrl-C,
 * SIGTERM or the death of the launcher ends every rank; when a rank dies the others get two seconds
 * to notice by themselves, unless launch->min_ranks are left. Prints one line per distinct failure as "weft COMMAND: ...". Returns an
 * exit code of tool.h. launch may be on the stack with a command only.
 */
int wefti_launch(const launch_t *launch, uint32_t world_size, rank_fn run, void *user);
/* The same for launch->program; returns the exit code of the first rank that failed. */
int wefti_launch_program(const launch_t *launch, uint32_t world_size);

#endif
