/* SPDX-License-Identifier: Apache-2.0 */
/* Engines that start the ranks of several hosts. */
#ifndef WEFT_TOOLS_LAUNCH_ENGINE_H
#define WEFT_TOOLS_LAUNCH_ENGINE_H

#include "tools/launch/hosts.h"

#define DEFAULT_RSH                                                                                \
    "ssh -x -T -o ConnectTimeout=60 -o ServerAliveInterval=10 -o ServerAliveCountMax=3"

/* --rsh or WEFT_RSH; NULL: neither. */
const char *wefti_engine_rsh(const launch_t *launch);
/* Is the variable passed on to ranks? What belongs to one rank or one host is not the others'. */
bool wefti_engine_passes(const char *entry);
/* What a rank executes: the program, or `weft run` with our arguments. NULL: out of memory. */
char **wefti_engine_rank_command(const launch_t *launch, const char *weft);
/* ssh.c: starts the ranks of the plan through words (NULL: ssh), and waits for them. */
int wefti_launch_ssh(const launch_t *launch, const host_plan_t *plan, const char *words);

#endif
