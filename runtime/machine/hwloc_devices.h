/* SPDX-License-Identifier: Apache-2.0 */
/* What the two files that include hwloc share. */
#ifndef WEFT_RUNTIME_MACHINE_HWLOC_DEVICES_H
#define WEFT_RUNTIME_MACHINE_HWLOC_DEVICES_H

#include "runtime/machine/cluster.h"

struct hwloc_topology;

/* hwloc_devices.c: network interfaces and cards; cores and nodes are there already. */
weft_status_t wefti_hwloc_devices(struct hwloc_topology *topology, wefti_arena_t *arena,
                                  wefti_hardware_t *out);

#endif
