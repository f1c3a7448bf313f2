/* SPDX-License-Identifier: Apache-2.0 */
/* Names of facts, for `weft ops` and for operators that a file declares. */
#include "ops/op_facts.h"

static const struct {
    weft_fact_flags_t flag;
    const char *name;
} flags[] = {
    {WEFT_FACT_ELEMENTWISE, "elementwise"},
    {WEFT_FACT_VIEW, "view"},
    {WEFT_FACT_COMMUTATIVE, "commutative"},
    {WEFT_FACT_ACCUMULATES, "accumulates"},
    {WEFT_FACT_READS_SHAPE, "reads_shape"},
    {WEFT_FACT_DROPOUT, "dropout"},
    {WEFT_FACT_LOSS, "loss"},
    {WEFT_FACT_STATISTICS, "statistics"},
};

static const char *const mixings[] = {
    [WEFT_MIXING_NONE] = "mixes_none",           [WEFT_MIXING_AXIS] = "mixes_axis",
    [WEFT_MIXING_FROM_AXIS] = "mixes_from_axis", [WEFT_MIXING_FROM_1] = "mixes_from_1",
    [WEFT_MIXING_FROM_2] = "mixes_from_2",
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

bool wefti_op_fact_set(weft_op_facts_t *facts, const char *name)
{
    for (size_t i = 0; i < COUNT(flags); i++) {
        if (strcmp(flags[i].name, name) == 0) {
            facts->flags |= flags[i].flag;
            return true;
        }
    }
    for (size_t i = 1; i < COUNT(mixings); i++) {
        if (strcmp(mixings[i], name) == 0) {
            bool first = facts->mixing == WEFT_MIXING_UNKNOWN;
            facts->mixing = (weft_mixing_t)i;
            return first;
        }
    }
    return false;
}

static bool is_differentiable(const weft_op_def_t *def, const weft_op_facts_t *facts)
{
    return facts->gradient != WEFT_GRADIENT_DEFAULT || def->grad != NULL ||
           facts->arithmetic != WEFT_ARITHMETIC_NONE || (facts->flags & WEFT_FACT_VIEW) != 0;
}

void wefti_op_each_fact(const weft_op_def_t *def, wefti_fact_fn visit, void *user)
{
    const weft_op_facts_t facts = wefti_op_facts(def);
    for (size_t i = 0; i < COUNT(flags); i++) {
        if ((facts.flags & flags[i].flag) != 0) {
            visit(flags[i].name, user);
        }
    }
    if (facts.mixing != WEFT_MIXING_UNKNOWN && (size_t)facts.mixing < COUNT(mixings)) {
        visit(mixings[facts.mixing], user);
    }
    if (def->in_place[0] >= 0) {
        visit("in_place", user);
    }
    if (facts.layout.inputs != 0) {
        visit("channels_last", user);
    }
    if (is_differentiable(def, &facts)) {
        visit("differentiable", user);
    }
}

bool wefti_op_same(const weft_op_def_t *a, const weft_op_def_t *b)
{
    return a == b || (strcmp(a->domain, b->domain) == 0 && strcmp(a->name, b->name) == 0);
}
