/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of definitions, for passes. No pass compares names of operators. */
#ifndef WEFT_OPS_OP_FACTS_H
#define WEFT_OPS_OP_FACTS_H

#include <stdbool.h>
#include <string.h>

#include <weft/registry.h>

/* All facts; zero where a definition, or the header that it was compiled with, has none. */
static inline weft_op_facts_t wefti_op_facts(const weft_op_def_t *def)
{
    weft_op_facts_t facts = {0};
    if (def->facts != NULL && def->facts->struct_size >= sizeof(facts)) {
        return *def->facts;
    }
    if (def->facts != NULL) {
        memcpy(&facts, def->facts, def->facts->struct_size);
    }
    return facts;
}

static inline bool wefti_op_has(const weft_op_def_t *def, weft_fact_flags_t flag)
{
    return (wefti_op_facts(def).flags & flag) != 0;
}

/* op_facts.c: the same operator, in whatever version. */
bool wefti_op_same(const weft_op_def_t *a, const weft_op_def_t *b);
/* Sets a flag or mixing by its name; false: unknown, or a second mixing. */
bool wefti_op_fact_set(weft_op_facts_t *facts, const char *name);
/* Calls visit with the name of each fact that is yes or no. */
typedef void (*wefti_fact_fn)(const char *name, void *user);
void wefti_op_each_fact(const weft_op_def_t *def, wefti_fact_fn visit, void *user);

#endif
