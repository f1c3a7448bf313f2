/* SPDX-License-Identifier: Apache-2.0 */
/* weft check: which parts of a model are supported, and whether it compiles. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "tools/gradients/gradients.h"
#include "tools/tool.h"

#define DEFAULT_SAMPLES 4u

enum { KEY_JSON = 256, KEY_GRADIENTS, KEY_SAMPLES, KEY_SEED };

static const option_def_t own_options[] = {
    {KEY_GRADIENTS, "gradients", NULL,
     "compare gradients with finite differences of the loss, on random inputs"},
    {KEY_SAMPLES, "samples", "N", "with --gradients: elements to test per parameter (default 4)"},
    {KEY_SEED, "seed", "K", "with --gradients: seed of the random inputs and elements (default 0)"},
    {KEY_JSON, "json", NULL, "print one JSON object"},
    {0, NULL, NULL, NULL},
};

static int run_check_command(int argc, char **argv);

const command_t wefti_check_command = {
    .name = "check",
    .brief = "report which parts of a model are supported",
    .synopsis = "MODEL.onnx [--batch B] [--gradients] [options of compile] [--json]",
    .summary =
        "Lists the inputs of a model, before and after --batch and --shape, and its "
        "operators: whether each is defined, differentiable and has a kernel. Then reports "
        "whether the model compiles for training, or what prevents it. The exit status is 0 "
        "if it compiles and 2 if not. With --device it has to compile for that device; the "
        "kernels of the list are always those of the CPU.\n"
        "\n"
        "With --gradients, one rank runs the model and compares each gradient with the slope "
        "of the loss. The result for the worst element of each parameter is ok; wrong; noise "
        "(the loss changes too little to measure); or kink (the loss has corners nearby, as "
        "Relu at 0, and the gradient is within the range of slopes). The exit status is 1 if "
        "a gradient is wrong.",
    .epilogue = "example:\n"
                "  weft check lenet.onnx --batch 4 --gradients\n",
    .options = {own_options, COMPILE_OPTIONS_CHECK},
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
        return wefti_option_int("check", "--samples", value, 1, 1000000, &command->samples);
    case KEY_SEED:
        return wefti_option_int("check", "--seed", value, 0, INT64_MAX, &command->seed);
    default:
        return wefti_compile_option(&command->compile, "check", key, value);
    }
}

/* Adds the result to the report about the model: more text, or one more member of the object. */
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
    /* A model compiles or not, whatever it costs: nothing is measured. */
    weft_status_t status = wefti_compile_choose_costs(&command->compile, "check", false);
    status = status < 0 ? status
                        : weft_model_check(&command->compile.params,
                                           command->json ? WEFT_FORMAT_JSON : WEFT_FORMAT_TEXT,
                                           &text, &compiles);
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
        code = wefti_usage_error("check", "--gradients and --infer exclude each other");
    } else if (code == EXIT_OK) {
        code = check(&command, argv[1]);
    }
    wefti_compile_options_deinit(&command.compile);
    return code < 0 ? EXIT_OK : code;
}
