/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEFT_TESTS_SUPPORT_LOWER_H
#define WEFT_TESTS_SUPPORT_LOWER_H

#include "fusion/fusion.h"

/* The plan of a copy of a graph that has no programs: runs the passes after scheduling, then
 * lowers. */
weft_status_t test_lower(const wefti_graph_t *graph, const wefti_lower_params_t *params,
                         weft_plan_t **out_plan);

#endif
