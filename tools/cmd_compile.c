/* SPDX-License-Identifier: Apache-2.0 */
/* weft compile: ONNX model in, plan file out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/json.h"
#include "tools/compile_passes.h"
#include "tools/output.h"
#include "tools/tool.h"

enum { KEY_JSON = 256, KEY_LIST_PASSES, KEY_TIME_PASSES };

static const option_def_t own_options[] = {
    {'o', "output", "PLAN.weft",
     "write the plan to this file (required, but for --stop-after and --list-passes)"},
    {KEY_JSON, "json", NULL, "print one JSON object about the plan"},
    {KEY_LIST_PASSES, "list-passes", NULL, "list the passes of the compiler in order, and exit"},
    {KEY_TIME_PASSES, "time-passes", NULL,
     "print the duration of every pass and the number of operators after it"},
    {0, NULL, NULL, NULL},
};

static int run_compile_command(int argc, char **argv);

const command_t wefti_compile_command = {
    .name = "compile",
    .brief = "compile an ONNX model to a plan",
    .synopsis = "MODEL.onnx.. -o PLAN.weft -n N [options]",
    .summary = "Compiles a model with a loss to a training plan for N ranks, or with --infer any "
               "model to an inference plan. With --infer, one model per rank may be passed: models "
               "with collectives differ only in their initializers, others in anything.",
    .epilogue = "examples:\n"
                "  weft compile samples/models/mlp.onnx -o mlp.weft -n 2 --batch 64 --lr 0.05\n"
                "  weft compile mlp.onnx -o mlp.weft -n 2 --batch 64 --emit-onnx compiled.onnx\n"
                "  weft compile compiled.onnx -o again.weft\n"
                "  weft compile m.rank0.onnx m.rank1.onnx -o tp.weft -n 2 --infer --batch 1\n",
    .options = {own_options, wefti_compile_option_defs},
    .run = run_compile_command,
};

typedef struct compile_command {
    compile_options_t compile;
    const char *output;
    bool json, list_passes, time_passes;
    pass_log_t passes;
} compile_command_t;

static int handle(void *user, int key, const char *value)
{
    compile_command_t *command = user;
    if (key == 'o') {
        command->output = value;
        return EXIT_OK;
    }
    if (key == KEY_JSON) {
        command->json = true;
        return EXIT_OK;
    }
    if (key == KEY_LIST_PASSES) {
        command->list_passes = true;
        return EXIT_OK;
    }
    if (key == KEY_TIME_PASSES) {
        command->time_passes = true;
        return EXIT_OK;
    }
    return wefti_compile_option(&command->compile, "compile", key, value);
}

/* ", decoupled, 4 micro-batches, clipped": the options that differ from their default. */
static void describe_training(const weft_plan_info_t *info, char *out, size_t bytes)
{
    size_t used = (size_t)snprintf(out, bytes, "%s",
                                   info->decouple          ? ", decoupled"
                                   : info->shard_optimizer ? ", sharded"
                                                           : "");
    if (info->accumulate > 1) {
        used += (size_t)snprintf(out + used, bytes - used, ", %u micro-batches", info->accumulate);
    }
    if (info->clip_norm > 0) {
        snprintf(out + used, bytes - used, ", clipped");
    }
}

static void print_costs(const compile_command_t *command)
{
    const compile_options_t *compile = &command->compile;
    bool given = compile->params.costs_path != NULL;
    if (!command->json) {
        printf("costs: %s%s%s%s\n", compile->costs_words, given ? " (" : "", compile->costs,
               given ? ")" : "");
    }
}

static void print_result(const compile_command_t *command, const weft_plan_info_t *info)
{
    char arena[32];
    if (!command->json) {
        if (info->kind == WEFT_PLAN_KIND_INFERENCE) {
            printf("%s: inference on %u rank%s, batch %lld per rank%s, arena %s, digest %.16s\n",
                   command->output, info->world_size, info->world_size == 1 ? "" : "s",
                   (long long)info->batch,
                   info->rank_weights  ? ", weights of their own"
                   : info->split_batch ? " of a batch that is split"
                                       : "",
                   wefti_format_bytes(info->arena_bytes, arena), info->structure_digest);
            return;
        }
        char more[96] = "";
        describe_training(info, more, sizeof more);
        printf("%s: %u rank%s, batch %lld per rank, %s%s, %u bucket%s (%s), arena %s, digest "
               "%.16s\n",
               command->output, info->world_size, wefti_plural(info->world_size),
               (long long)info->batch, info->optimizer, more, info->bucket_count,
               info->bucket_count == 1 ? "" : "s", info->policy,
               wefti_format_bytes(info->arena_bytes, arena), info->structure_digest);
        return;
    }
    output_object_t object;
    wefti_json_t *json = wefti_output_begin(&object);
    wefti_json_string(json, "plan", command->output);
    wefti_json_string(json, "model", info->model_name);
    wefti_json_string(json, "kind",
                      info->kind == WEFT_PLAN_KIND_INFERENCE ? "inference" : "training");
    wefti_json_int(json, "world", info->world_size);
    wefti_json_int(json, "batch", info->batch);
    wefti_json_string(json, "optimizer", info->optimizer);
    wefti_json_string(json, "policy", info->policy);
    wefti_json_int(json, "accumulate", info->accumulate);
    wefti_json_int(json, "global_micro_batches", info->global_micro_batches);
    wefti_json_bool(json, "sharded", info->shard_optimizer != 0);
    wefti_json_bool(json, "decoupled", info->decouple != 0);
    wefti_json_double(json, "clip_norm", info->clip_norm);
    wefti_json_int(json, "buckets", info->bucket_count);
    wefti_json_string(json, "costs",
                      command->compile.params.costs_path != NULL ? command->compile.costs
                                                                 : "default");
    wefti_json_int(json, "arena_bytes", (int64_t)info->arena_bytes);
    wefti_json_int(json, "live_bytes", (int64_t)info->live_bytes);
    wefti_json_int(json, "fusion_copied_bytes", (int64_t)info->fusion_copied_bytes);
    wefti_json_string(json, "structure_digest", info->structure_digest);
    wefti_json_string(json, "weights_digest", info->weights_digest);
    if (command->time_passes) {
        wefti_write_pass_times(&command->passes, json);
    }
    wefti_output_end(&object);
}

/* No output may overwrite an input or the other output. */
static int check_files(const compile_command_t *command, char *const *models, int count)
{
    const char *emit = command->compile.params.emit_path;
    if (command->output == NULL) {
        return EXIT_OK;
    }
    for (int i = 0; i < count; i++) {
        if (wefti_same_file(command->output, models[i]) ||
            (emit && wefti_same_file(emit, models[i]))) {
            return wefti_usage_error("compile", "%s: an output would overwrite this input",
                                     models[i]);
        }
    }
    return emit && wefti_same_file(command->output, emit)
               ? wefti_usage_error("compile", "-o and --emit-onnx name the same file: %s", emit)
               : EXIT_OK;
}

static weft_status_t save(const compile_command_t *command, const weft_plan_t *plan)
{
    weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
    weft_status_t status = weft_plan_save(plan, command->output);
    status = status < 0 ? status : weft_plan_get_info(plan, &info);
    if (status >= 0) {
        print_result(command, &info);
        print_costs(command);
    }
    return status;
}

static int compile_and_save(compile_command_t *command)
{
    weft_plan_t *plan = NULL;
    weft_compile_params_t *params = &command->compile.params;
    pass_log_t *passes = &command->passes;
    if (command->time_passes || params->print_after != NULL || params->stop_after != NULL) {
        passes->print_after = params->print_after;
        passes->stop_after = params->stop_after;
        params->on_pass = wefti_log_pass;
        params->on_pass_user = passes;
    }
    weft_status_t status = wefti_compile_choose_costs(&command->compile, "compile", true);
    status = status < 0 ? status : wefti_compile_with_progress(params, &plan);
    if (status >= 0 && params->stop_after == NULL) {
        status = save(command, plan);
    } else if (status >= 0) {
        puts(passes->stopped != NULL ? passes->stopped : "");
    }
    weft_plan_release(plan);
    free(passes->stopped);
    if (status < 0) {
        return wefti_compile_error(&command->compile, "compile", status);
    }
    if (command->time_passes && !command->json) {
        wefti_print_pass_times(passes);
    }
    return EXIT_OK;
}

static int run_compile_command(int argc, char **argv)
{
    compile_command_t command = {0};
    int positional = 0;
    int code = wefti_compile_options_init(&command.compile);
    if (code != EXIT_OK) {
        return code;
    }
    code = wefti_parse_options(argc, argv, &wefti_compile_command, handle, &command, &positional);
    if (code != EXIT_OK) {
        wefti_compile_options_deinit(&command.compile);
        return code < 0 ? EXIT_OK : code;
    }
    if (command.list_passes) {
        wefti_list_passes(command.json);
    } else if (positional < 1 || (positional > 1 && !command.compile.params.infer)) {
        code = wefti_usage_error(
            "compile", "expected one MODEL.onnx (with --infer: one per rank), got %d arguments",
            positional);
    } else if (command.compile.params.stop_after != NULL && (command.output || command.json)) {
        code = wefti_usage_error("compile", "--stop-after and %s exclude each other",
                                 command.output != NULL ? "-o" : "--json");
    } else if (command.output == NULL && command.compile.params.stop_after == NULL) {
        code = wefti_usage_error("compile", "missing option: -o PLAN.weft");
    } else {
        command.compile.params.model_path = argv[1];
        if (positional > 1) {
            command.compile.params.rank_models = (const char *const *)argv + 1;
            command.compile.params.rank_model_count = (uint32_t)positional;
            if (command.compile.params.world_size == 0) {
                command.compile.params.world_size = (uint32_t)positional;
            }
        }
        code = check_files(&command, argv + 1, positional);
        if (code == EXIT_OK) {
            code = compile_and_save(&command);
        }
    }
    wefti_compile_options_deinit(&command.compile);
    return code;
}
