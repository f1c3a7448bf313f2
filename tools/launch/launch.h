/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts ranks as processes. Those of this host it supervises itself; those of several hosts an
 * engine starts: srun, mpirun, mpiexec or ssh.
 *
 *   launch.c   options; ranks on this host
 *   ranks.c    processes of one host: pinning, output, signals, reaping
 *   hosts.c    --hosts: names and slots, placement of ranks
 *   engine.c   --engine: becomes srun, prterun, mpirun or mpiexec.hydra
 *   ssh.c      the engine of hosts that have none of these
 *   board.c    processes that take the place of dead ranks
 *   report.c   each failure printed once; the exit code
 *   program.c  `weft run -- PROGRAM`
 *   world.c    this process is one rank, whatever has started it
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

/* How ranks are to be started. */
typedef struct launch {
    const char *command;
    const char *hosts;       /* NULL: this one */
    const char *engine;      /* NULL: the first one that is there */
    const char *rsh;         /* NULL: ssh */
    const char *remote_weft; /* NULL: the same path as here */
    bool tag_output, round_robin, bind_irqs;
    uint32_t min_ranks; /* 0: the run ends when a rank dies; else when fewer than these are left */
    launch_board_t *board; /* elastic: for processes in place of ranks that die; NULL: none */
    char **program;        /* NULL, or what follows "--" */
    int argument_count;
    char **arguments; /* before parsing, for the ranks of an engine; owned */
    bool is_rank;     /* an engine of ours has started this process; of ssh.c: what it starts */
    /* Of one of several hosts (ssh.c): its name and ranks, and where rank 0 is. */
    const char *host, *address;
    uint32_t rank_count;
    const uint32_t *rank_numbers;
} launch_t;

extern const option_def_t wefti_launch_option_defs[];
bool wefti_is_launch_option(int key);

/* Before options are parsed: keeps the arguments, and takes "-- PROGRAM ARGS.." away from them. */
int wefti_launch_init(launch_t *launch, const char *command, int *argc, char **argv);
void wefti_launch_deinit(launch_t *launch);
int wefti_launch_option(launch_t *launch, int key, const char *value);

/* Sets WEFT_SECRET, unless the user has, before ranks start. Prints an error. */
bool wefti_launch_make_secret(const char *command);
/* "unix:@weft-.." that is not in use; false with errno. */
bool wefti_launch_unix_address(char *out, size_t bytes);
/* Binds a port that is free on all addresses and keeps it until rank 0, which asks for reuse,
 * listens; the descriptor, or -1 with errno. */
int wefti_port_hold(uint16_t *out_port);

/* An engine starts the ranks, which prepare what they need themselves. */
bool wefti_launch_is_remote(const launch_t *launch);
/* Hands over to the engine; world_size 0: as many ranks as there are slots. Returns an exit code of
 * tool.h, or not at all. */
int wefti_launch_remote(const launch_t *launch, uint32_t world_size);

/*
 * Forks the ranks of this host, binds each to its share of the cores and waits for all. Ctrl-C,
 * SIGTERM or the death of the launcher ends every rank; when a rank dies the others get two seconds
 * to notice by themselves, unless launch->min_ranks are left. Prints one line per distinct failure
 * as "weft COMMAND: ...". Returns an exit code of tool.h. launch may be on the stack with a command
 * only.
 */
int wefti_launch(const launch_t *launch, uint32_t world_size, rank_fn run, void *user);
/* The same for launch->program; returns the exit code of the first rank that failed. */
int wefti_launch_program(const launch_t *launch, uint32_t world_size);

/* "weft run --host-ranks": this process starts the ranks of one host, as standard input says. */
bool wefti_launch_is_part(int argc, char **argv);
int wefti_launch_part(const char *command);

#endif
