/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of fusion/pipeline.c whose passes lowering also calls. */
#include "fusion/passes/passes.h"

weft_status_t wefti_apply_programs(wefti_compiler_t *c)
{
    wefti_lower_params_t lower;
    weft_status_t status = wefti_compile_lower_params(c, &lower);
    if (status >= 0) {
        const wefti_program_params_t params = wefti_program_params(&lower);
        status = wefti_pass_programs(c->graph, &params);
    }
    return status;
}
