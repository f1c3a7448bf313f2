/* SPDX-License-Identifier: Apache-2.0 */
/* The report of weft_model_check: operators of a model, support for them, the result of
 * compiling. */
#include <inttypes.h>
#include <string.h>

#include "fusion/passes/passes.h"
#include "graph/onnx/onnx.h"
#include "ops/plan/explain.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/params.h"

typedef struct check {
    const char *path;
    wefti_arena_t arena;
    wefti_onnx_survey_t survey;
    weft_plan_t *plan;
    char *error;            /* why there is no plan */
    const char *stop_after; /* the last pass that ran without an error, so there is no plan */
    uint64_t param_bytes;
    uint32_t param_count, bucket_count;
    wefti_plan_parameter_t *parameters; /* of the plan, else of the survey */
    uint32_t parameter_count;
} check_t;

static const char *yes(bool value)
{
    return value ? "yes" : "-";
}

/* The input as a plan has it: its shape with the batch that was asked for. */
static const char *bound_text(check_t *check, const char *name)
{
    for (uint32_t i = 0; check->plan != NULL && i < check->plan->binding_count; i++) {
        const wefti_plan_binding_t *binding = &check->plan->bindings[i];
        const wefti_plan_buffer_t *buffer = &check->plan->buffers[binding->buffer];
        if (buffer->kind != WEFTI_BUFFER_INPUT || strcmp(binding->name, name) != 0) {
            continue;
        }
        char *text = wefti_arena_strdup(&check->arena, "[");
        for (uint32_t d = 0; d < buffer->rank && text != NULL; d++) {
            text = wefti_arena_printf(&check->arena, "%s%s%" PRId64, text, d > 0 ? ", " : "",
                                      buffer->dims[d]);
        }
        return text != NULL ? wefti_arena_printf(&check->arena, "%s]", text) : NULL;
    }
    return NULL;
}

static void add_op(wefti_text_t *out, const wefti_onnx_op_use_t *op)
{
    wefti_text_printf(out, "  %6" PRIu32 "  %-10s  %-8s  %-6s  ", op->count, yes(op->defined),
                      yes(op->differentiable), yes(op->has_kernel));
    wefti_text_add_printable(out, op->domain);
    wefti_text_add(out, op->domain[0] != '\0' ? "::" : "");
    wefti_text_add_printable(out, op->name);
    if (!op->defined) {
        wefti_text_add(out, "    unsupported, first at ");
        wefti_text_add_printable(out, op->first);
    }
    wefti_text_add(out, "\n");
}

/* Of a step: not those that give all ranks the weights before the first one. */
static uint32_t count_collectives(const weft_plan_t *plan)
{
    const wefti_plan_program_t *step = wefti_plan_program(plan, "step");
    uint32_t count = 0;
    for (uint32_t s = 0; step != NULL && s < plan->stream_count; s++) {
        for (uint32_t i = 0; i < step->streams[s].step_count; i++) {
            count += step->streams[s].steps[i].kind == WEFTI_STEP_COLLECTIVE;
        }
    }
    return count;
}

static void write_text(check_t *check, wefti_text_t *out)
{
    const wefti_onnx_survey_t *survey = &check->survey;
    char bytes[32];
    wefti_text_add_printable(out, check->path);
    wefti_text_printf(out,
                      ": IR %" PRId64 ", ai.onnx %" PRId64 ", %" PRIu32 " nodes, %" PRIu32
                      " initializers\n\n   nodes  definition  gradient  kernel  operator\n",
                      survey->ir_version, survey->opset, survey->node_count,
                      survey->initializer_count);
    for (uint32_t i = 0; i < survey->op_count; i++) {
        add_op(out, &survey->ops[i]);
    }
    wefti_text_add(out, "  (no kernel: folded at compile time, rewritten, or missing)\n\ninputs\n");
    for (uint32_t i = 0; i < survey->input_count; i++) {
        const char *bound = bound_text(check, survey->inputs[i].name);
        wefti_text_add(out, "  ");
        wefti_text_add_printable(out, survey->inputs[i].name);
        wefti_text_add(out, "  ");
        wefti_text_add_printable(out, survey->inputs[i].text);
        if (bound != NULL) {
            wefti_text_printf(out, "  compiled as %s", bound);
        }
        wefti_text_add(out, "\n");
    }
    wefti_plan_explain_parameters(check->parameters, check->parameter_count, out);
    if (check->stop_after != NULL) {
        wefti_text_printf(out, "\ncompiles up to pass '%s'\n", check->stop_after);
        return;
    }
    if (check->plan == NULL) {
        wefti_text_add(out, "\ndoes not compile: ");
        wefti_text_add_printable(out, check->error);
        wefti_text_add(out, "\n");
        return;
    }
    if (check->plan->kind == WEFT_PLAN_KIND_INFERENCE) {
        uint32_t collectives = count_collectives(check->plan);
        wefti_text_printf(out,
                          "\ncompiles for inference: %" PRIu32 " weight%s of %s, batch %" PRId64
                          " per rank, %" PRIu32 " collective%s\n",
                          check->param_count, check->param_count == 1 ? "" : "s",
                          wefti_format_bytes(check->param_bytes, bytes), check->plan->batch,
                          collectives, collectives == 1 ? "" : "s");
        return;
    }
    wefti_text_printf(out,
                      "\ncompiles: %" PRIu32 " parameter%s of %s %s trained, batch %" PRId64
                      " per rank, %" PRIu32 " bucket%s\n",
                      check->param_count, check->param_count == 1 ? "" : "s",
                      wefti_format_bytes(check->param_bytes, bytes),
                      check->param_count == 1 ? "is" : "are", check->plan->batch,
                      check->bucket_count, check->bucket_count == 1 ? "" : "s");
}

static void write_json(check_t *check, wefti_text_t *out)
{
    const wefti_onnx_survey_t *survey = &check->survey;
    wefti_json_t json;
    wefti_json_init(&json, out, true);
    wefti_json_begin_object(&json, NULL);
    wefti_json_string(&json, "model", check->path);
    wefti_json_int(&json, "ir_version", survey->ir_version);
    wefti_json_int(&json, "opset", survey->opset);
    wefti_json_int(&json, "nodes", survey->node_count);
    wefti_json_int(&json, "initializers", survey->initializer_count);
    wefti_json_begin_array(&json, "operators");
    for (uint32_t i = 0; i < survey->op_count; i++) {
        const wefti_onnx_op_use_t *op = &survey->ops[i];
        wefti_json_begin_object(&json, NULL);
        wefti_json_string(&json, "domain", op->domain);
        wefti_json_string(&json, "name", op->name);
        wefti_json_int(&json, "count", op->count);
        wefti_json_bool(&json, "definition", op->defined);
        wefti_json_bool(&json, "gradient", op->differentiable);
        wefti_json_bool(&json, "kernel", op->has_kernel);
        wefti_json_string(&json, "first", op->first);
        wefti_json_end_object(&json);
    }
    wefti_json_end_array(&json);
    wefti_json_begin_array(&json, "inputs");
    for (uint32_t i = 0; i < survey->input_count; i++) {
        wefti_json_begin_object(&json, NULL);
        wefti_json_string(&json, "name", survey->inputs[i].name);
        wefti_json_string(&json, "declared", survey->inputs[i].text);
        wefti_json_string(&json, "compiled", bound_text(check, survey->inputs[i].name));
        wefti_json_end_object(&json);
    }
    wefti_json_end_array(&json);
    wefti_plan_explain_parameters_json(check->parameters, check->parameter_count, &json);
    wefti_json_bool(&json, "compiles", check->plan != NULL || check->stop_after != NULL);
    if (check->stop_after != NULL) {
        wefti_json_string(&json, "stop_after", check->stop_after);
    }
    wefti_json_string(&json, "error", check->error);
    if (check->plan != NULL) {
        wefti_json_int(&json, "batch", check->plan->batch);
        wefti_json_int(&json, "parameters", check->param_count);
        wefti_json_int(&json, "parameter_bytes", (int64_t)check->param_bytes);
        wefti_json_int(&json, "buckets", check->bucket_count);
    }
    wefti_json_end_object(&json);
    wefti_text_add(out, "\n");
}

static void count_params(check_t *check)
{
    const weft_plan_t *plan = check->plan;
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        if (plan->buffers[i].kind == WEFTI_BUFFER_PARAM) {
            check->param_count++;
            check->param_bytes += plan->buffers[i].size_bytes;
        }
    }
    weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
    if (weft_plan_get_info(plan, &info) >= 0) {
        check->bucket_count = info.bucket_count;
    }
}

/* The plan knows also what no gradient reaches. */
static weft_status_t list_parameters(const weft_compile_params_t *params, check_t *check)
{
    wefti_onnx_survey_t *survey = &check->survey;
    if (check->plan != NULL) {
        check->parameters = check->plan->parameters;
        check->parameter_count = check->plan->parameter_count;
        return WEFT_OK;
    }
    if (params->infer) {
        return WEFT_OK;
    }
    /* Patterns that match nothing are the error of the compilation. */
    wefti_parameters_decide(survey->parameters, survey->parameter_count, params->train,
                            params->freeze, params->allocator);
    check->parameter_count = survey->parameter_count;
    return wefti_parameters_of_plan(survey->parameters, survey->parameter_count, &check->arena,
                                    &check->parameters);
}

static weft_status_t look(const weft_compile_params_t *params, check_t *check)
{
    weft_status_t status;
    weft_registry_t *own = NULL;
    wefti_onnx_property_t *properties = NULL;
    uint32_t property_count = 0;
    const weft_registry_t *registry = params->registry;
    if (registry == NULL) {
        WEFT_TRY(status, weft_registry_create(params->allocator, &own), done);
        registry = own;
    }
    WEFT_TRY(status,
             wefti_onnx_survey(params->model_path, params->allocator, registry, &check->arena,
                               &check->survey),
             done);
    weft_compile_params_t compile = *params;
    compile.registry = registry;
    /* A compiled graph says itself for how many ranks it is. */
    WEFT_TRY(status,
             wefti_onnx_properties(params->model_path, &check->arena, &properties, &property_count),
             done);
    if (compile.world_size == 0 &&
        wefti_onnx_property(properties, property_count, "world") == NULL) {
        compile.world_size = 2;
    }
    status = weft_compile(&compile, &check->plan);
    if (status < 0) {
        check->error = wefti_arena_strdup(&check->arena, weft_last_error());
        status =
            status == WEFT_ERR_NO_MEMORY || check->error == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
    } else if (check->plan != NULL) {
        count_params(check);
    } else {
        check->stop_after = params->stop_after;
    }
    status = status < 0 ? status : list_parameters(params, check);
done:
    /* Definitions may go: texts were copied, and the plan is only looked at. */
    weft_registry_destroy(own);
    return status;
}

weft_status_t weft_model_check(const weft_compile_params_t *params, weft_format_t format,
                               char **out_text, int *out_compiles)
{
    WEFT_CHECK_OUT(out_text);
    WEFT_CHECK_ARG(params);
    WEFT_CHECK_ARG(out_compiles);
    WEFT_CHECK_FORMAT(format);
    weft_status_t status;
    check_t check = {0};
    wefti_text_t text;
    weft_compile_params_t own = WEFT_COMPILE_PARAMS_INIT;
    status = WEFTI_PARAMS_READ(params, &own);
    if (status < 0) {
        return status;
    }
    params = &own;
    if (params->model_path == NULL) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "model_path", "must be set");
    }
    *out_compiles = 0;
    check.path = params->model_path;
    wefti_arena_init(&check.arena, params->allocator, 0);
    WEFT_TRY(status, look(params, &check), done);
    wefti_text_init(&text, NULL); /* the default allocator is malloc: the caller frees */
    if (format == WEFT_FORMAT_JSON) {
        write_json(&check, &text);
    } else {
        write_text(&check, &text);
    }
    *out_text = wefti_text_take(&text);
    *out_compiles = check.plan != NULL || check.stop_after != NULL;
    status = *out_text != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
done:
    weft_plan_release(check.plan);
    wefti_arena_deinit(&check.arena);
    return status;
}
