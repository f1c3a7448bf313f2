/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures with the ranks of a launcher, on one host or on several: every algorithm over all ranks,
 * and the links between hosts (levels.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "tools/launch/world.h"
#include "tools/tune/tune.h"

/* The host of every rank, and the first rank that is not on rank 0's host (0: none). */
static weft_status_t find_hosts(const weft_context_t *world, uint32_t *host_of, uint32_t *out_other)
{
    weft_status_t status = WEFT_OK;
    *out_other = 0;
    for (uint32_t r = weft_context_world_size(world); r-- > 0 && status == WEFT_OK;) {
        weft_peer_info_t info = WEFT_PEER_INFO_INIT;
        status = weft_context_peer_info(world, r, &info);
        host_of[r] = info.host;
    }
    for (uint32_t r = weft_context_world_size(world); r-- > 1 && status == WEFT_OK;) {
        *out_other = host_of[r] != host_of[0] ? r : *out_other;
    }
    return status;
}

static weft_status_t measure(tune_command_t *command, weft_context_t *world, uint32_t other)
{
    static const memory_kind_t kinds[] = {MEMORY_REGISTERED, MEMORY_PLAIN};
    uint32_t rank = weft_context_rank(world), ranks = weft_context_world_size(world);
    weft_status_t status = WEFT_OK;
    tune_result_t *result = calloc(1, sizeof *result);
    if (result == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: %zu bytes of results",
                           sizeof *result);
    }
    if (other != 0 || command->topology != NULL) {
        status = wefti_tune_levels(world, &command->costs, other, command->topology);
    }
    for (uint32_t k = 0; k < 2 && status == WEFT_OK; k++) {
        tune_run_t run = wefti_tune_make_run(command, ranks, kinds[k]);
        run.bench.world = world;
        run.progress = run.progress && rank == 0;
        run.result = result;
        memset(result->points, 0, sizeof result->points);
        status = wefti_tune_rank(&run, rank, ranks, NULL);
        if (status == WEFT_OK && rank == 0) {
            status = wefti_tune_add(&command->costs, &run);
        }
        command->done += wefti_tune_count(&run);
    }
    free(result);
    return status;
}

int wefti_tune_launched(tune_command_t *command)
{
    weft_context_t *world;
    uint32_t other = 0;
    int code = wefti_launched_join("tune", NULL, &world);
    if (code != EXIT_OK) {
        return code;
    }
    uint32_t ranks = weft_context_world_size(world), rank = weft_context_rank(world);
    weft_status_t status = WEFT_OK;
    if (ranks < 2 || ranks > BENCH_MAX_RANKS) {
        status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "invalid number of ranks %u: must be between 2 and %u", ranks,
                             BENCH_MAX_RANKS);
    }
    command->host_of = calloc(ranks, sizeof *command->host_of);
    if (status == WEFT_OK) {
        status = command->host_of != NULL
                     ? find_hosts(world, command->host_of, &other)
                     : wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: %u ranks", ranks);
    }
    code = wefti_launched_agree(world, "tune", status);
    if (code == EXIT_OK) {
        command->groups[0] = ranks;
        command->group_count = 1;
        command->host_count = weft_context_host_count(world);
        tune_run_t run = wefti_tune_make_run(command, ranks, MEMORY_REGISTERED);
        command->total = 2 * wefti_tune_count(&run);
        status = measure(command, world, other);
        if (status == WEFT_OK && rank == 0) {
            snprintf(command->costs.name, sizeof command->costs.name, "%s",
                     command->name != NULL ? command->name : "launched");
            status = wefti_tune_write(command);
            status = status < 0 ? status : wefti_tune_show(command);
        }
        code = wefti_launched_agree(world, "tune", status);
    }
    weft_context_release(world);
    free(command->host_of);
    command->host_of = NULL;
    return code;
}
