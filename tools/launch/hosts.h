/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts of --hosts, their slots, and which ranks they get. */
#ifndef WEFT_TOOLS_LAUNCH_HOSTS_H
#define WEFT_TOOLS_LAUNCH_HOSTS_H

#include "tools/launch/launch.h"

typedef struct launch_host {
    char name[LAUNCH_HOST_BYTES]; /* as it was given, without brackets */
    uint32_t slots;
    bool here; /* it is this one: needs no ssh */
    uint32_t rank_count;
    uint32_t *ranks; /* in ascending order; into the plan's array */
} launch_host_t;

typedef struct host_plan {
    launch_host_t *hosts;
    uint32_t host_count, slot_count;
    uint32_t *rank_array; /* of all hosts */
} host_plan_t;

/* "a:4,b:4" (a is a name, an address, or [address]; one slot by default), or a file with one host
 * per line: "a:4", "a slots=4" or "a 4"; # begins a comment. Slots of a repeated host are added.
 * Prints an error. */
int wefti_host_plan_parse(const char *command, const char *text, host_plan_t *out_plan);
/* Places ranks 0 .. world_size - 1 (0: one per slot): all slots of a host, then the next host; or
 * one slot of each host in turn. Hosts without ranks are not used. */
int wefti_host_plan_place(const char *command, host_plan_t *plan, uint32_t world_size,
                          bool round_robin);
void wefti_host_plan_deinit(host_plan_t *plan);

#endif
