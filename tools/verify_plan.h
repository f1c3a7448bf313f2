/* SPDX-License-Identifier: Apache-2.0 */
/* The half of `weft verify` that proves plans. */
#ifndef WEFT_TOOLS_VERIFY_PLAN_H
#define WEFT_TOOLS_VERIFY_PLAN_H

#include "tools/tool.h"

/* Proves the plan and prints the result, or one line with the error. Returns the exit
 * code: 1 if the plan, or a schedule that it may run, is wrong. */
int wefti_verify_plan(const char *path, const weft_registry_t *registry, bool json);

#endif
