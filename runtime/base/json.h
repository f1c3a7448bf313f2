/* SPDX-License-Identifier: Apache-2.0 */
/* JSON: a writer, and a reader of small files (costs, topologies) into a flat array of nodes. */
#ifndef WEFT_RUNTIME_BASE_JSON_H
#define WEFT_RUNTIME_BASE_JSON_H

#include <stdbool.h>

#include "runtime/base/memory.h"
#include "runtime/base/text.h"

/* The writer: commas and quoting are handled; key NULL inside arrays and at the top. */
typedef struct wefti_json {
    wefti_text_t *out;
    uint32_t depth;
    uint64_t has_items; /* bit per depth */
    bool pretty;
} wefti_json_t;

void wefti_json_init(wefti_json_t *json, wefti_text_t *out, bool pretty);
void wefti_json_begin_object(wefti_json_t *json, const char *key);
void wefti_json_end_object(wefti_json_t *json);
void wefti_json_begin_array(wefti_json_t *json, const char *key);
void wefti_json_end_array(wefti_json_t *json);
void wefti_json_string(wefti_json_t *json, const char *key, const char *value); /* NULL: null */
void wefti_json_int(wefti_json_t *json, const char *key, int64_t value);
void wefti_json_double(wefti_json_t *json, const char *key, double value); /* not finite: null */
void wefti_json_bool(wefti_json_t *json, const char *key, bool value);

typedef enum wefti_json_kind {
    WEFTI_JSON_NULL = 0,
    WEFTI_JSON_BOOL = 1,
    WEFTI_JSON_NUMBER = 2,
    WEFTI_JSON_STRING = 3,
    WEFTI_JSON_ARRAY = 4,
    WEFTI_JSON_OBJECT = 5,
} wefti_json_kind_t;

typedef struct wefti_json_node {
    wefti_json_kind_t kind;
    const char *key;    /* inside objects */
    const char *string; /* terminated; escapes are resolved */
    double number;      /* bool: 0 or 1 */
    uint32_t next;      /* sibling, 0: none; the first child follows its parent */
    uint32_t count;     /* children */
} wefti_json_node_t;

typedef struct wefti_json_tree {
    const weft_allocator_t *allocator;
    wefti_json_node_t *nodes; /* [0] is the top */
    size_t count, capacity;
    char *text; /* strings lie in it */
} wefti_json_tree_t;

/* WEFT_ERR_FORMAT with line and cause. Depth and size are limited. */
weft_status_t wefti_json_parse(const char *text, size_t bytes, const weft_allocator_t *allocator,
                               wefti_json_tree_t *out);
void wefti_json_tree_deinit(wefti_json_tree_t *tree);
/* Child called key of an object, or NULL. */
const wefti_json_node_t *wefti_json_get(const wefti_json_tree_t *tree,
                                        const wefti_json_node_t *object, const char *key);
/* First child, then siblings; NULL at the end. */
const wefti_json_node_t *wefti_json_first(const wefti_json_tree_t *tree,
                                          const wefti_json_node_t *parent);
const wefti_json_node_t *wefti_json_after(const wefti_json_tree_t *tree,
                                          const wefti_json_node_t *node);

#endif
