/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/support_lower.h"

#include "runtime/base/error.h"

weft_status_t test_lower(const wefti_graph_t *graph, const wefti_lower_params_t *params,
                         weft_plan_t **out_plan)
{
    weft_status_t status;
    wefti_graph_t *copy = NULL;
    const wefti_program_params_t programs = wefti_program_params(params);
    const wefti_shard_params_t shard = wefti_shard_params(params);
    const wefti_fuse_params_t fuse = wefti_fuse_params(params);
    *out_plan = NULL;
    WEFT_TRY(status, wefti_graph_clone(graph, &copy), done);
    if (params->gradients.divisor > 0 || params->gradients.accumulate > 1) {
        WEFT_TRY(status, wefti_pass_accumulate(copy, params->gradients.accumulate), done);
    }
    if (params->gradients.wire == WEFT_DTYPE_BF16) {
        WEFT_TRY(status, wefti_pass_wire(copy), done);
    }
    if (!params->infer) {
        WEFT_TRY(status, wefti_pass_shard(copy, &shard), done);
        WEFT_TRY(status, wefti_pass_fuse_updates(copy, &fuse), done);
    }
    WEFT_TRY(status, wefti_pass_programs(copy, &programs), done);
    if (params->decouple) {
        WEFT_TRY(status, wefti_pass_decouple(copy, params->gradients.accumulate), done);
    }
    status = wefti_lower(copy, params, out_plan);
done:
    wefti_graph_destroy(copy);
    return status;
}
