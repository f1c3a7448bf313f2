/* SPDX-License-Identifier: Apache-2.0 */
/* Starts local ranks as processes of this program and watches over them. */
#ifndef WEFT_TOOLS_LAUNCH_H
#define WEFT_TOOLS_LAUNCH_H

#include <weft/context.h>

/* What one rank does. Runs in a process of its own; a message of the last error goes to the
 * launcher. */
typedef weft_status_t (*rank_fn)(void *user, uint32_t rank, uint32_t world_size,
                                 const char *address);

/*
 * Forks world_size ranks, pins each to its share of the cores and waits for all. Ctrl-C, SIGTERM or
 * the death of the launcher ends every rank; when a rank dies the others get two seconds to notice
 * by themselves. Prints one line per distinct failure as "weft COMMAND: ...". Returns an exit code
 * of tool.h.
 */
int wefti_launch(const char *command, uint32_t world_size, rank_fn run, void *user);

#endif
