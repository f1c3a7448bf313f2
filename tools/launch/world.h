/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds that a launcher has started: this process is one rank. */
#ifndef WEFT_TOOLS_LAUNCH_WORLD_H
#define WEFT_TOOLS_LAUNCH_WORLD_H

#include "runtime/base/json.h"
#include "tools/tool.h"

/* Has a launcher set its variables (WEFT_RANK, torchrun, mpirun, srun, mpiexec, RANK)? A world of
 * one from mpirun or srun counts only if wanted, the number of ranks, is 1 or 0 (any): shells of
 * batch systems are such worlds. */
bool wefti_is_launched(uint32_t wanted);
/* Joins it; prints an error. */
int wefti_launched_join(const char *command, weft_log_fn log, weft_context_t **out_world);
/* The context of one rank: world with one more reference, or if that is NULL a new context from
 * what the launcher passed to the rank. */
weft_status_t wefti_launched_open(weft_context_t *world, int32_t rank, int32_t world_size,
                                  const char *address, weft_log_fn log,
                                  weft_context_t **out_context);
/* Collective: exchanges the status of every rank. Each distinct message is printed once, by one of
 * the ranks that have it. Returns one exit code on all ranks. */
int wefti_launched_agree(weft_context_t *world, const char *command, weft_status_t status);
/* "hosts": names and ranks; "transports": those of rank 0's links. */
void wefti_launched_print_json(const weft_context_t *world, wefti_json_t *json);
/* "2 hosts, tcp" in brackets; nothing on one host. */
void wefti_launched_print_text(const weft_context_t *world);

#endif
