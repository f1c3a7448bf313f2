/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/algo/algo.h"

#include <string.h>

static const struct {
    wefti_collective_op_t op;
    const char *name;
    wefti_algo_fn fn;
} algorithms[] = {
    {WEFTI_COLLECTIVE_ALL_REDUCE, "mesh", wefti_all_reduce_mesh},
    {WEFTI_COLLECTIVE_BROADCAST, "mesh", wefti_broadcast_mesh},
};

wefti_algo_fn wefti_algo_find(wefti_collective_op_t op, const char *name)
{
    for (size_t i = 0; i < sizeof(algorithms) / sizeof(algorithms[0]); i++) {
        if (algorithms[i].op == op && strcmp(algorithms[i].name, name) == 0) {
            return algorithms[i].fn;
        }
    }
    return NULL;
}
