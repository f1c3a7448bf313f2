/* SPDX-License-Identifier: Apache-2.0 */
/* What the subcommands of `weft` share: exit codes, options, messages. */
#ifndef WEFT_TOOLS_TOOL_H
#define WEFT_TOOLS_TOOL_H

#include <stdbool.h>

#include <weft/weft.h>

/* Stable exit codes, documented in README.md. */
typedef enum exit_code {
    EXIT_OK = 0,
    EXIT_RUN_FAILED = 1,    /* a rank died, ranks disagree, a deadline passed, a bug */
    EXIT_BAD_INPUT = 2,     /* arguments, files, models, data, no room */
    EXIT_INTERRUPTED = 130, /* Ctrl-C */
} exit_code_t;

/* One option of a subcommand; tables of them generate parsing and --help. */
typedef struct option_def {
    int key;          /* short option letter, or a number from 256 on */
    const char *name; /* long name */
    const char *arg;  /* NULL: takes none */
    const char *help;
} option_def_t;

typedef struct command_help {
    const char *name;     /* "compile" */
    const char *synopsis; /* "MODEL.onnx -o PLAN.weft --world N [options]" */
    const char *summary;
    const char *epilogue; /* examples; may be NULL */
} command_help_t;

/* Handles one parsed option; returns EXIT_OK to go on. value is NULL for options without argument.
 */
typedef int (*option_fn)(void *user, int key, const char *value);

/*
 * Parses argv[1..] by tables (each ends with key 0); both long and short forms. Positional
 * arguments are left in argv[1..*out_positional]. --help prints and returns -1; anything wrong
 * prints one line and returns EXIT_BAD_INPUT.
 */
int wefti_parse_options(int argc, char **argv, const command_help_t *help,
                        const option_def_t *const *tables, option_fn handle, void *user,
                        int *out_positional);

/* "weft NAME: message", one line on standard error; returns EXIT_BAD_INPUT. */
int wefti_usage_error(const char *command, const char *format, ...) WEFT_PRINTF(2, 3);
/* The same with the library's last message; returns the exit code that belongs to status. */
int wefti_status_error(const char *command, weft_status_t status);
exit_code_t wefti_exit_code(weft_status_t status);

/* Numbers from the command line: whole text, within range; false otherwise. */
bool wefti_parse_int(const char *text, long long low, long long high, long long *out_value);
bool wefti_parse_double(const char *text, double *out_value);
/* Is it one file, whatever it is called? */
bool wefti_same_file(const char *a, const char *b);
/* "8", "4K", "64M", "1G", not 0; EXIT_BAD_INPUT with a line printed when it is wrong. */
int wefti_parse_size(const char *command, const char *option, const char *text,
                     uint64_t *out_bytes);

/* The options of compiling, shared by `compile` and `run MODEL.onnx`. */
typedef struct compile_options {
    weft_compile_params_t params;
    weft_input_shape_t shapes[16];
    char shape_names[16][128];
    weft_registry_t *registry;
    bool used; /* any was given that only a compiler can heed: not --lr, --ops, --kernels */
} compile_options_t;

extern const option_def_t wefti_compile_option_defs[];
int wefti_compile_options_init(compile_options_t *options);
void wefti_compile_options_deinit(compile_options_t *options);
/* Handles one of wefti_compile_option_defs; EXIT_BAD_INPUT with a line printed when it is wrong. */
int wefti_compile_option(compile_options_t *options, const char *command, int key,
                         const char *value);
bool wefti_is_compile_option(int key);

int wefti_cmd_compile(int argc, char **argv);
int wefti_cmd_check(int argc, char **argv);
int wefti_cmd_explain(int argc, char **argv);
int wefti_cmd_run(int argc, char **argv);
int wefti_cmd_bench(int argc, char **argv);
int wefti_cmd_ops(int argc, char **argv);
int wefti_cmd_info(int argc, char **argv);
int wefti_cmd_verify(int argc, char **argv);
int wefti_cmd_algos(int argc, char **argv);
int wefti_cmd_tune(int argc, char **argv);
int wefti_cmd_topo(int argc, char **argv);

#endif
