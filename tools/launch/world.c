/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/launch/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "tools/launch/launch.h"

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && *value != '\0' ? value : NULL;
}

bool wefti_is_launched(uint32_t wanted)
{
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"};
    if (variable("WEFT_RANK") != NULL || variable("WEFT_WORLD_SIZE") != NULL ||
        (variable("RANK") != NULL && variable("WORLD_SIZE") != NULL)) {
        return true; /* the half of a set is an error that the context tells */
    }
    if (variable("PMIX_RANK") == NULL && variable("PMI_FD") == NULL) {
        return false;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *size = variable(sizes[i]);
        if (size != NULL) {
            return strcmp(size, "1") != 0 || wanted == 0 || wanted == 1;
        }
    }
    return true;
}

int wefti_launched_join(const char *command, weft_log_fn log, weft_context_t **out_world)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.log = log;
    weft_status_t status = weft_context_create(&params, out_world);
    return status < 0 ? wefti_status_error(command, status) : EXIT_OK;
}

weft_status_t wefti_launched_open(weft_context_t *world, int32_t rank, int32_t world_size,
                                  const char *address, weft_log_fn log,
                                  weft_context_t **out_context)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.rank = rank;
    params.world_size = world_size;
    params.address = address;
    params.log = log;
    if (world == NULL) {
        return weft_context_create(&params, out_context);
    }
    weft_context_retain(world);
    *out_context = world;
    return WEFT_OK;
}

typedef struct verdict {
    int32_t status;
    char message[1020];
} verdict_t;

int wefti_launched_agree(weft_context_t *world, const char *command, weft_status_t status)
{
    uint32_t count = weft_context_world_size(world), own = weft_context_rank(world);
    verdict_t *all = calloc(count + 1, sizeof *all);
    verdict_t mine = {.status = status < 0 ? status : 0};
    int code = EXIT_OK;
    if (status < 0) {
        snprintf(mine.message, sizeof mine.message, "%s", weft_last_error());
    }
    if (all == NULL) {
        return wefti_usage_error(command, "out of memory: %u ranks", count);
    }
    status = weft_context_all_gather(world, &mine, sizeof mine, all);
    if (status < 0) {
        free(all);
        return wefti_status_error(command, status);
    }
    bool by_host = false; /* other hosts have no error, or another one */
    for (uint32_t r = 0; r < count && weft_context_host_count(world) > 1; r++) {
        by_host = by_host || all[r].status >= 0 || strcmp(all[r].message, all[0].message) != 0;
    }
    for (uint32_t r = 0; r < count; r++) {
        bool said = false;
        for (uint32_t k = 0; k < r; k++) {
            said = said || strcmp(all[k].message, all[r].message) == 0;
        }
        if (all[r].status < 0 && !said && r == own) {
            weft_peer_info_t peer = WEFT_PEER_INFO_INIT;
            bool named = by_host && weft_context_peer_info(world, own, &peer) >= 0;
            fprintf(stderr, "weft %s: %s%s%s%s\n", command, named ? "host " : "",
                    named ? peer.host_name : "", named ? ": " : "", mine.message);
        }
        if (all[r].status < 0 && code == EXIT_OK) {
            code = (int)wefti_exit_code((weft_status_t)all[r].status);
        }
    }
    if (code != EXIT_OK) { /* a launcher ends all others once one has failed, so first they speak */
        (void)weft_context_barrier(world);
    }
    free(all);
    return code;
}

/* ---- for reports ---- */

void wefti_launched_print_json(const weft_context_t *world, wefti_json_t *json)
{
    uint32_t count = weft_context_world_size(world);
    weft_peer_info_t peer = WEFT_PEER_INFO_INIT;
    wefti_json_string(json, "launcher", weft_context_launcher(world));
    wefti_json_begin_array(json, "hosts");
    for (uint32_t host = 0; host < weft_context_host_count(world); host++) {
        bool named = false;
        wefti_json_begin_object(json, NULL);
        for (uint32_t r = 0; r < count && !named; r++) {
            named = weft_context_peer_info(world, r, &peer) >= 0 && peer.host == host;
        }
        wefti_json_string(json, "name", named ? peer.host_name : "");
        wefti_json_begin_array(json, "ranks");
        for (uint32_t r = 0; r < count; r++) {
            if (weft_context_peer_info(world, r, &peer) >= 0 && peer.host == host) {
                wefti_json_int(json, NULL, r);
            }
        }
        wefti_json_end_array(json);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
    wefti_json_begin_array(json, "transports");
    for (uint32_t r = 0; r < count; r++) {
        bool known = weft_context_peer_info(world, r, &peer) >= 0;
        wefti_json_string(json, NULL, known ? peer.transport : "");
    }
    wefti_json_end_array(json);
}

void wefti_launched_print_text(const weft_context_t *world)
{
    uint32_t hosts = weft_context_host_count(world), count = weft_context_world_size(world);
    weft_peer_info_t peer = WEFT_PEER_INFO_INIT;
    const char *before = ", ";
    char names[8][16] = {{0}};
    uint32_t used = 0;
    if (hosts < 2) {
        return;
    }
    printf(" (%u hosts", hosts);
    for (uint32_t r = 0; r < count && used < 8; r++) {
        bool known =
            weft_context_peer_info(world, r, &peer) < 0 || strcmp(peer.transport, "self") == 0;
        for (uint32_t i = 0; i < used; i++) {
            known = known || strcmp(names[i], peer.transport) == 0;
        }
        if (!known) {
            snprintf(names[used++], sizeof names[0], "%s", peer.transport);
            printf("%s%s", before, peer.transport);
            before = " and ";
        }
    }
    printf(")");
}
