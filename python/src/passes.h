/* SPDX-License-Identifier: Apache-2.0 */
/* What passes.c, passes_view.c and passes_run.c share: one call of weft._core._pass. */
#ifndef WEFT_PYTHON_PASSES_H
#define WEFT_PYTHON_PASSES_H

#include "python/src/weft_python.h"

#include <weft/passes.h>

/* Longest array or list: counts and ids are of 32 bits. */
#define WP_PASS_MOST 0x7fffffff

/* Memory that lasts until the call ends. */
typedef struct wp_pass_block {
    struct wp_pass_block *next;
    uint64_t unused; /* keeps what follows aligned to 16 bytes */
} wp_pass_block_t;

typedef struct wp_pass_memory {
    wp_state_t *state;
    wp_pass_block_t *first;
} wp_pass_memory_t;

/* Zeroed memory; NULL with MemoryError. */
void *wp_pass_take(wp_pass_memory_t *memory, size_t count, size_t size);
/* A copy of a buffer of integers of at most most; absent: -1 is UINT64_MAX. NULL with an exception
 * that names the argument. */
uint64_t *wp_pass_u64(wp_pass_memory_t *memory, PyObject *object, const char *name, uint64_t most,
                      bool absent, size_t *out_count);
/* ValueError unless the two are equal. */
int wp_pass_length(const char *name, size_t count, size_t expected);
/* Copies of a str, and of a sequence of them. */
const char *wp_pass_text(wp_pass_memory_t *memory, PyObject *object, const char *name);
const char **wp_pass_texts(wp_pass_memory_t *memory, PyObject *object, const char *name,
                           size_t *out_count);
/* A list of tuples (kind, value, op_name, reduction, group, members, op_a, op_b, text, parts). */
PyObject *wp_pass_edits(const weft_edit_list_t *edits);

/* passes_view.c: the view of a tuple of WP_VIEW_FIELDS objects. */
int wp_pass_view(wp_pass_memory_t *memory, PyObject *flat, weft_graph_view_t *out);
/* passes_run.c: the pass called name. */
PyObject *wp_pass_run(wp_pass_memory_t *memory, const char *name, const weft_graph_view_t *view,
                      PyObject *params);

#endif
