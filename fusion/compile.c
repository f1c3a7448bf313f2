/* SPDX-License-Identifier: Apache-2.0 */
/* weft_compile: import, passes, lowering. */
#include "fusion/compile.h"

#include "fusion/pipeline.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/settings.h"
#include "runtime/base/sync.h"

/* WEFT_VERIFY_EACH sets verify_each for every compilation of the process, such as those of a
 * test. */
static weft_status_t read_verify_each(wefti_compiler_t *c)
{
    wefti_settings_t settings = {0};
    weft_status_t status = wefti_settings_load_one("WEFT_VERIFY_EACH", &settings);
    c->params.verify_each |= settings.verify_each != 0;
    return status;
}

weft_status_t weft_compile(const weft_compile_params_t *params, weft_plan_t **out_plan)
{
    WEFT_CHECK_OUT(out_plan);
    WEFT_CHECK_ARG(params);
    weft_status_t status;
    wefti_compiler_t c = {.clip_scale = WEFTI_NONE};
    size_t count;
    const wefti_pass_t *passes = wefti_passes(&count);
    uint64_t start_ns = wefti_now_ns();
    WEFT_TRY(status, wefti_compile_read_params(&c, params), done);
    WEFT_TRY(status, read_verify_each(&c), done);
    WEFT_TRY(status, wefti_compile_import(&c), done);
    WEFT_TRY(status, wefti_pipeline_report(&c, "import", 0, start_ns, false), done);
    WEFT_TRY(status, wefti_pipeline_run(&c, passes, count), done);
    if (c.params.stop_after == NULL) {
        start_ns = wefti_now_ns();
        WEFT_TRY(status, wefti_compile_lower(&c, out_plan), done);
        status = wefti_pipeline_report(&c, "lower", c.graph->order_count, start_ns, false);
    }
done:
    wefti_onnx_emit_destroy(c.emit);
    wefti_compile_destroy_graphs(&c); /* before the registry whose definitions they use */
    weft_registry_destroy(c.own_registry);
    wefti_sim_forget_divisions(&c.world);
    wefti_sim_world_deinit(&c.world);
    wefti_cluster_deinit(&c.cluster);
    wefti_rules_deinit(&c.rules);
    wefti_costs_deinit(&c.costs);
    wefti_arena_deinit(&c.arena);
    return status;
}
