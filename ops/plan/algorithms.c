/* SPDX-License-Identifier: Apache-2.0 */
/* The algorithms that a plan brings along: XML files of MSCCL, as text. */
#include "ops/plan/plan_internal.h"

#include <string.h>

#include "ops/algo/msccl.h"
#include "ops/algo/table.h"
#include "runtime/base/error.h"
#include "runtime/base/order.h"

const weft_algorithm_t *wefti_plan_find_algorithm(const weft_plan_t *plan,
                                                  const weft_registry_t *registry,
                                                  weft_collective_t op, const char *name)
{
    const weft_algorithm_t *found = weft_registry_find_algorithm(plan->algorithms, op, name);
    return found != NULL ? found : weft_registry_find_algorithm(registry, op, name);
}

const weft_registry_t *wefti_plan_registry_of(const weft_plan_t *plan,
                                              const weft_registry_t *registry,
                                              const weft_algorithm_t *algorithm)
{
    for (uint32_t i = 0; i < plan->algorithm_file_count; i++) {
        if (plan->algorithm_files[i].algorithm == algorithm) {
            return plan->algorithms;
        }
    }
    return registry;
}

weft_status_t wefti_plan_load_algorithms(weft_plan_t *plan)
{
    if (plan->algorithm_file_count == 0) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(weft_registry_create(plan->arena.allocator, &plan->algorithms));
    for (uint32_t i = 0; i < plan->algorithm_file_count; i++) {
        wefti_plan_algorithm_file_t *file = &plan->algorithm_files[i];
        WEFT_RETURN_IF_ERROR(wefti_registry_load_algorithm(plan->algorithms, file->name, file->text,
                                                           file->size_bytes, &file->algorithm));
    }
    return WEFT_OK;
}

/* Does the collective, which was verified, list the algorithm, and what excludes it? */
static bool lists(const weft_plan_t *plan, const wefti_plan_collective_t *collective,
                  const weft_algorithm_t *algorithm, const char **out_why)
{
    wefti_order_setting_t order = {0};
    bool listed = false;
    for (uint32_t i = 0; i < collective->algorithm_count && collective->op == algorithm->op; i++) {
        listed = listed || strcmp(collective->algorithms[i].name, algorithm->name) == 0;
    }
    bool ordered = wefti_order_parse(collective->order, &order) >= 0;
    const weft_algo_params_t params = {.struct_size = sizeof params,
                                       .op = collective->op,
                                       .group_size = wefti_plan_axis(plan, collective).size,
                                       .root = collective->root,
                                       .order = order.order,
                                       .order_sizes = order.sizes,
                                       .order_size_count = order.count};
    *out_why = listed && ordered ? wefti_algorithm_reason(algorithm, &params) : NULL;
    return listed;
}

/* Each file serves a collective of the plan, and every collective that lists it. */
weft_status_t wefti_plan_verify_algorithms(const weft_plan_t *plan)
{
    for (uint32_t i = 0; i < plan->algorithm_file_count; i++) {
        const wefti_plan_algorithm_file_t *file = &plan->algorithm_files[i];
        uint32_t uses = 0;
        for (uint32_t c = 0; c < plan->collective_count; c++) {
            const wefti_plan_collective_t *collective = &plan->collectives[c];
            const char *why;
            uses += lists(plan, collective, file->algorithm, &why);
            if (why != NULL) {
                return wefti_error(WEFT_ERR_FORMAT, "collective %u (%.100s): algorithm %s: %s", c,
                                   collective->name, file->algorithm->name, why);
            }
        }
        if (uses == 0) {
            return wefti_error(WEFT_ERR_FORMAT, "algorithm file %u (%.100s): no collective uses it",
                               i, file->name);
        }
    }
    return WEFT_OK;
}
