/* SPDX-License-Identifier: Apache-2.0 */
/* A host's hardware from JSON, for cluster_read.c. */
#ifndef WEFT_RUNTIME_MACHINE_HARDWARE_READ_H
#define WEFT_RUNTIME_MACHINE_HARDWARE_READ_H

#include "runtime/base/json.h"
#include "runtime/machine/cluster.h"

/* node is an object; what it does not say is not known. */
weft_status_t wefti_topo_read_hardware(const wefti_json_tree_t *tree, const wefti_json_node_t *node,
                                       wefti_arena_t *arena, wefti_hardware_t *out);
/* A whole number from 0 to most? */
bool wefti_topo_whole(const wefti_json_node_t *node, uint32_t most, uint32_t *out);
/* Member key of object, from 0 to most; left as it is where there is none. */
weft_status_t wefti_topo_number(const wefti_json_tree_t *tree, const wefti_json_node_t *object,
                                const char *key, double most, double *out);

#endif
