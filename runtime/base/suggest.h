/* SPDX-License-Identifier: Apache-2.0 */
/* "did you mean": the known name closest to a misspelt one, by edit distance. */
#ifndef WEFT_RUNTIME_BASE_SUGGEST_H
#define WEFT_RUNTIME_BASE_SUGGEST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct wefti_suggestion {
    const char *word; /* what was written */
    const char *best; /* the closest name so far; NULL: no name is close enough */
    size_t distance;  /* of best */
} wefti_suggestion_t;

/*
 * Edits that turn a into b: insert, delete or replace a character, or swap two neighbours. Case is
 * ignored; '-' and '_' are equal. Only the first 63 characters of each count.
 */
size_t wefti_edit_distance(const char *a, const char *b);

/* Are a and b one name? Case, '-' and '_' are ignored: all_reduce, AllReduce, all-reduce. */
bool wefti_same_name(const char *a, const char *b);

/* Set word, offer every known name, then read best. The first of equally close names wins. */
void wefti_suggestion_offer(wefti_suggestion_t *suggestion, const char *name);

#endif
