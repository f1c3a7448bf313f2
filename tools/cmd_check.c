/* SPDX-License-Identifier: Apache-2.0 */
/* weft check: what of a model is supported, and whether it compiles. */
#include <stdio.h>
#include <stdlib.h>

#include "tools/tool.h"

enum { KEY_JSON = 256 };

static const option_def_t own_options[] = {
    {KEY_JSON, "json", NULL, "print one JSON object"},
    {0, NULL, NULL, NULL},
};

static const command_help_t help = {
    "check",
    "MODEL.onnx [--batch B] [options of compile] [--json]",
    "Lists a model's operators (defined here? differentiable? with a kernel?) and inputs, before\n"
    "and after --batch and --shape, and says whether it compiles for training or what is in the\n"
    "way. Exit status 0 if it compiles, 2 if not.",
    NULL,
};

typedef struct check_command {
    compile_options_t compile;
    bool json;
} check_command_t;

static int handle(void *user, int key, const char *value)
{
    check_command_t *command = user;
    if (key == KEY_JSON) {
        command->json = true;
        return EXIT_OK;
    }
    return wefti_compile_option(&command->compile, "check", key, value);
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
    fputs(text, stdout);
    free(text);
    return compiles ? EXIT_OK : EXIT_BAD_INPUT;
}

int wefti_cmd_check(int argc, char **argv)
{
    check_command_t command = {0};
    int positional = 0;
    int code = wefti_compile_options_init(&command.compile);
    if (code != EXIT_OK) {
        return code;
    }
    const option_def_t *const tables[] = {own_options, wefti_compile_option_defs, NULL};
    code = wefti_parse_options(argc, argv, &help, tables, handle, &command, &positional);
    if (code == EXIT_OK && positional != 1) {
        code = wefti_usage_error("check", "expected one MODEL.onnx, got %d arguments", positional);
    } else if (code == EXIT_OK) {
        code = check(&command, argv[1]);
    }
    wefti_compile_options_deinit(&command.compile);
    return code < 0 ? EXIT_OK : code;
}
