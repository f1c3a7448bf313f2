/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Successors by id, as one array: those of i are next[first[i] .. first[i + 1]). Built in two
 * passes over the same edges: add all, fill, add all again.
 */
#ifndef WEFT_GRAPH_SUCCESSORS_H
#define WEFT_GRAPH_SUCCESSORS_H

#include <weft/graph_view.h>

#include "runtime/base/memory.h"

typedef struct wefti_successors {
    uint32_t count;
    uint32_t *first, *next;
} wefti_successors_t;

/* Ids 0 to count - 1; arrays come from arena. */
weft_status_t wefti_successors_begin(wefti_successors_t *successors, uint32_t count,
                                     wefti_arena_t *arena);
/* Ends the first pass. */
weft_status_t wefti_successors_fill(wefti_successors_t *successors, wefti_arena_t *arena);

static inline void wefti_successors_add(wefti_successors_t *successors, uint32_t from, uint32_t to)
{
    if (successors->next != NULL) { /* first[from + 1] is where the next one goes */
        successors->next[successors->first[from + 1]++] = to;
    } else {
        successors->first[from + 2]++;
    }
}

/* Calls visit for every op of a view that must run before another one: by values, then by edges. */
typedef void (*wefti_pair_fn)(void *user, uint32_t before, uint32_t after);
void wefti_view_each_pair(const weft_graph_view_t *view, wefti_pair_fn visit, void *user);

#endif
