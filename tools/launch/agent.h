/* SPDX-License-Identifier: Apache-2.0 */
/* One host of several: starts its ranks on the launcher's request. */
#ifndef WEFT_TOOLS_LAUNCH_AGENT_H
#define WEFT_TOOLS_LAUNCH_AGENT_H

#include "tools/launch/ranks.h"

/* Takes standard input and output for frames, and what is printed from now on for the launcher.
 * Hears what is to be done; sets the environment, the directory and launch's ranks. EXIT_OK, or
 * the process is of no use. */
int wefti_agent_open(launch_t *launch);
/* Says why no ranks were started, unless they were. Frees. */
void wefti_agent_close(launch_agent_t *agent, int code);
/* Says that everything is prepared, waits for the address of rank 0, and carries set out. */
int wefti_agent_run(launch_agent_t *agent, rank_set_t *set);

#endif
