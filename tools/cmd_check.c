/* SPDX-License-Identifier: Apache-2.0 */
/* weft check: what of a model is supported, and whether it compiles. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "tools/gradients.h"
#include "tools/tool.h"

#define DEFAULT_SAMPLES 4u

enum { KEY_JSON = 256, KEY_GRADIENTS, KEY_SAMPLES, KEY_SEED };

static const option_def_t own_options[] = {
    {KEY_GRADIENTS, "gradients", NULL,
     "compare gradients with finite differences of the loss, on random inputs"},
    {KEY_SAMPLES, "samples", "N", "elements of each parameter that are moved (default 4)"},
    {KEY_SEED, "seed", "K", "of inputs and samples (default 0)"},
    {KEY_JSON, "json", NULL, "print one JSON object"},
    {0, NULL, NULL, NULL},
};

static int run_check_command(int argc, char **argv);

const command_t wefti_check_command = {
    .name = "check",
    .brief = "report which parts of a model are supported",
    .synopsis = "MODEL.onnx [--batch B] [--gradients] [options of compile] [--json]",
    .summary =
        "Lists a model's operators (defined here? differentiable? with a kernel?) and inputs, "
        "before "
        "and after --batch and --shape, and says whether it compiles for training or what is in "
        "the "
        "way. Exit status 0 if it compiles, 2 if not.\n\n"
        "--gradients then runs it on one rank with its own kernels: elements of every parameter "
        "are "
        "moved, and the slope of the loss is compared with the gradient. Of each parameter the "
        "worst "
        "is shown: ok; wrong; noise (the loss changes too little to tell); kink (the loss has "
        "corners "
        "near by, as at 0 of Relu, and the gradient is among the slopes there). Exit status 1 if a "
        "gradient is wrong.",
    .epilogue = "example:\n"
                "  weft check lenet.onnx --batch 4 --gradients\n",
    .options = {own_options, wefti_compile_option_defs},
    .run = run_check_command,
};

typedef struct check_command {
    compile_options_t compile;
    bool json, gradients;
    long long samples, seed;
} check_command_t;

static int handle(void *user, int key, const char *value)
{
    check_command_t *command = user;
    switch (key) {
    case KEY_JSON:
        command->json = true;
        return EXIT_OK;
    case KEY_GRADIENTS:
        command->gradients = true;
        return EXIT_OK;
    case KEY_SAMPLES:
        return wefti_parse_int(value, 1, 1000000, &command->samples)
                   ? EXIT_OK
                   : wefti_usage_error("check", "--samples '%s': expected a number from 1", value);
    case KEY_SEED:
        return wefti_parse_int(value, 0, INT64_MAX, &command->seed)
                   ? EXIT_OK
                   : wefti_usage_error("check", "--seed '%s': expected a number from 0", value);
    default:
        return wefti_compile_option(&command->compile, "check", key, value);
    }
}

/* Behind what was found without running it: more text, or a member more of the JSON object. */
static int check_gradients(check_command_t *command, const char *path, const char *before)
{
    gradients_report_t report;
    wefti_text_t text;
    wefti_json_t json;
    const gradients_options_t options = {.command = "check",
                                         .compile = &command->compile,
                                         .path = path,
                                         .samples = (uint32_t)command->samples,
                                         .seed = (uint64_t)command->seed,
                                         .quiet = command->json};
    if (!command->json) {
        fputs(before, stdout);
        fflush(stdout);
    }
    weft_status_t status = wefti_gradients_check(&options, &report);
    if (status < 0) {
        return wefti_status_error("check", status);
    }
    wefti_text_init(&text, NULL);
    if (command->json) {
        const char *end = strrchr(before, '}');
        wefti_text_add_bytes(&text, before, end != NULL ? (size_t)(end - before) : 0);
        wefti_text_add(&text, ", \"gradients\": ");
        wefti_json_init(&json, &text, false);
        wefti_json_begin_object(&json, NULL);
        wefti_gradients_json(&report, &json);
        wefti_json_end_object(&json);
        wefti_text_add(&text, "}\n");
    } else {
        wefti_gradients_text(&report, &text);
    }
    int code = report.wrong > 0 ? EXIT_RUN_FAILED : EXIT_OK;
    if (text.failed) {
        code = wefti_status_error("check", WEFT_ERR_NO_MEMORY);
    } else {
        fputs(text.data, stdout);
    }
    wefti_text_deinit(&text);
    wefti_gradients_free(&report);
    return code;
}

static int check(check_command_t *command, const char *path)
{
    char *text = NULL;
    int compiles = 0;
    command->compile.params.model_path = path;
    weft_status_t status =
        weft_model_check(&command->compile.params, command->json, &text, &compiles);
    if (status < 0) {
        return wefti_status_error("check", status);
    }
    int code = compiles ? EXIT_OK : EXIT_BAD_INPUT;
    if (compiles && command->gradients) {
        code = check_gradients(command, path, text);
    } else {
        fputs(text, stdout);
    }
    free(text);
    return code;
}

static int run_check_command(int argc, char **argv)
{
    check_command_t command = {.samples = DEFAULT_SAMPLES};
    int positional = 0;
    int code = wefti_compile_options_init(&command.compile);
    if (code != EXIT_OK) {
        return code;
    }
    code = wefti_parse_options(argc, argv, &wefti_check_command, handle, &command, &positional);
    if (code == EXIT_OK && positional != 1) {
        code = wefti_usage_error("check", "expected one MODEL.onnx, got %d arguments", positional);
    } else if (code == EXIT_OK && command.gradients && command.compile.params.infer) {
        code = wefti_usage_error("check", "--infer: there are no gradients to check");
    } else if (code == EXIT_OK) {
        code = check(&command, argv[1]);
    }
    wefti_compile_options_deinit(&command.compile);
    return code < 0 ? EXIT_OK : code;
}
