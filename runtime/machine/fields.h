/* SPDX-License-Identifier: Apache-2.0 */
/* JSON of clusters: members that are fields of a structure, in one table for reading and writing.
 */
#ifndef WEFT_RUNTIME_MACHINE_FIELDS_H
#define WEFT_RUNTIME_MACHINE_FIELDS_H

#include "runtime/base/json.h"
#include "runtime/machine/cluster.h"

typedef enum wefti_field_kind {
    WEFTI_FIELD_TEXT,  /* const char *, at most 127 characters; "" is not written */
    WEFTI_FIELD_COUNT, /* uint32_t */
    WEFTI_FIELD_INDEX, /* uint32_t; WEFTI_TOPO_NONE is not written */
    WEFTI_FIELD_FLAG,  /* bool; false is not written */
    WEFTI_FIELD_SIZE,  /* uint64_t; 0 is not written */
} wefti_field_kind_t;

typedef struct wefti_field {
    const char *key; /* NULL ends a table */
    wefti_field_kind_t kind;
    size_t offset;
    double most; /* of a number */
    double unit; /* of a size: how many of the field's units the number in JSON is in */
} wefti_field_t;

/* Fields whose key is missing or null keep their value. Texts are copied to arena. */
weft_status_t wefti_fields_read(const wefti_json_tree_t *tree, const wefti_json_node_t *object,
                                const wefti_field_t *fields, wefti_arena_t *arena, void *out);
void wefti_fields_write(wefti_json_t *json, const wefti_field_t *fields, const void *structure);
/* A whole number from 0 to most? */
bool wefti_json_whole(const wefti_json_node_t *node, uint32_t most, uint32_t *out);

/* cluster_write.c */
extern const wefti_field_t wefti_link_fields[], wefti_cost_fields[];
extern const char *const wefti_level_names[WEFTI_TOPO_LEVELS];

/* hardware_json.c: the members of a host's object that describe its hardware. names: the model of
 * its processors is written. */
weft_status_t wefti_hardware_read(const wefti_json_tree_t *tree, const wefti_json_node_t *node,
                                  wefti_arena_t *arena, wefti_hardware_t *out);
void wefti_hardware_write(wefti_json_t *json, const wefti_hardware_t *hardware, bool names);

#endif
