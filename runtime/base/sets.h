/* SPDX-License-Identifier: Apache-2.0 */
/* Disjoint sets of numbers as a forest: the root of a set is its smallest number. */
#ifndef WEFT_RUNTIME_BASE_SETS_H
#define WEFT_RUNTIME_BASE_SETS_H

#include <stdbool.h>
#include <stdint.h>

static inline uint32_t wefti_sets_root(uint32_t *parent, uint32_t at)
{
    while (parent[at] != at) {
        parent[at] = parent[parent[at]];
        at = parent[at];
    }
    return at;
}

/* Joins the sets of *a and *b, which become the root and the former root; false: one set already. */
static inline bool wefti_sets_join(uint32_t *parent, uint32_t *a, uint32_t *b)
{
    const uint32_t x = wefti_sets_root(parent, *a), y = wefti_sets_root(parent, *b);
    *a = x < y ? x : y;
    *b = x < y ? y : x;
    parent[*b] = *a;
    return *a != *b;
}

#endif
