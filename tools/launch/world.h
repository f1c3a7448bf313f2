/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds that something else has launched: this process is one rank of it. */
#ifndef WEFT_TOOLS_LAUNCH_WORLD_H
#define WEFT_TOOLS_LAUNCH_WORLD_H

#include "runtime/base/text.h"
#include "tools/tool.h"

/* Do the variables of a launcher (WEFT_RANK, torchrun, mpirun, srun, mpiexec, RANK) say
 * so? A world of one by mpirun or srun counts only where no other number of ranks is wanted (0:
 * any): shells of batch systems are such worlds. */
bool wefti_is_launched(uint32_t wanted);
/* Joins it. EXIT_OK, or says what is wrong. */
int wefti_launched_join(const char *command, weft_log_fn log, weft_context_t **out_world);
/* Collective: how all ranks fared, each with the message of its last error. What several say is
 * said once, by one of them. Returns the exit code for all of them. */
int wefti_launched_agree(weft_context_t *world, const char *command, weft_status_t status);
/* "hosts": number, names and ranks, "transports": how ranks reach each other, of rank 0's links. */

void wefti_launched_print_json(const weft_context_t *world, wefti_json_t *json);
/* "2 hosts, tcp" in brackets; nothing on one host. */
void wefti_launched_print_text(const weft_context_t *world);

#endif
