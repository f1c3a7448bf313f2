/* SPDX-License-Identifier: Apache-2.0 */
/* What the subcommands of `weft` share: exit codes, options, messages. */
#ifndef WEFT_TOOLS_TOOL_H
#define WEFT_TOOLS_TOOL_H

#include <stdbool.h>
#include <stdio.h>

#include <weft/weft.h>

/* Stable exit codes, documented in README.md. */
typedef enum exit_code {
    EXIT_OK = 0,
    EXIT_RUN_FAILED = 1,    /* a rank died, ranks disagree, a deadline passed, a bug */
    EXIT_BAD_INPUT = 2,     /* arguments, files, models, data, no room */
    EXIT_INTERRUPTED = 130, /* Ctrl-C */
} exit_code_t;

/* One option of a command. Tables of options produce parsing, --help and the reference. */
typedef struct option_def {
    int key;          /* short option letter, or a number from 256 on */
    const char *name; /* long name */
    const char *arg;  /* placeholder of the value; NULL: the option takes none */
    const char *help; /* one sentence, lower case, without a line break */
} option_def_t;

/* One command. Texts are wrapped when they are printed; a line break starts a new line. */
typedef struct command {
    const char *name;     /* "compile" */
    const char *brief;    /* what it does, for the list of commands */
    const char *synopsis; /* "MODEL.onnx -o PLAN.weft -n N [options]"; one line per form */
    const char *summary;  /* paragraphs */
    const char *epilogue; /* examples, printed as they are; may be NULL */
    const option_def_t *options[4]; /* tables, each ended by key 0; the list by NULL */
    int (*run)(int argc, char **argv);
    /* Called with the first positional argument, argv[index]; prints an error and returns its exit
     * code to refuse it. May be NULL. */
    int (*check_positional)(int argc, char **argv, int index);
} command_t;

/* All commands, ended by NULL (main.c). */
extern const command_t *const wefti_commands[];

/* help.c. Prints words up to the terminal's width (at most 100; 80 in a file): the first line goes
 * on at column, the others start at indent. */
void wefti_print_wrapped(FILE *out, const char *text, size_t column, size_t indent);
/* The text of `weft COMMAND --help`, and of `weft help`. */
void wefti_print_command_help(const command_t *command);
void wefti_print_help(FILE *out);
/* Every command, option, exit status and setting as one JSON object: the source of the reference.
 */
int wefti_print_help_json(void);

/* Handles one parsed option; returns EXIT_OK to go on. value is NULL for options without argument.
 */
typedef int (*option_fn)(void *user, int key, const char *value);

/*
 * Parses argv[1..] by the command's tables: short and long options, unambiguous abbreviations,
 * options after positional arguments. Positional arguments are left in argv[1..*out_positional].
 * -h and --help print and return -1; an error prints one line and returns EXIT_BAD_INPUT.
 */
int wefti_parse_options(int argc, char **argv, const command_t *command, option_fn handle,
                        void *user, int *out_positional);

/* "weft NAME: message", one line on standard error; returns EXIT_BAD_INPUT. */
int wefti_usage_error(const char *command, const char *format, ...) WEFT_PRINTF(2, 3);
/*
 * The same with the library's last message, and with the option that sets the parameter field that
 * the message is about; returns the exit code that belongs to status.
 */
int wefti_status_error(const char *command, weft_status_t status);
exit_code_t wefti_exit_code(weft_status_t status);
/* "" for 1, "s" for other counts: "1 rank", "2 ranks". */
const char *wefti_plural(uint64_t count);

/*
 * Values of options: EXIT_OK, or EXIT_BAD_INPUT with one line that names the option, its value and
 * what is allowed. option is the long name with its dashes, "--world".
 */
int wefti_option_int(const char *command, const char *option, const char *text, long long low,
                     long long high, long long *out_value);
int wefti_option_u32(const char *command, const char *option, const char *text, uint32_t low,
                     uint32_t high, uint32_t *out_value);
/* The position of text in names. */
int wefti_option_choice(const char *command, const char *option, const char *text,
                        const char *const *names, size_t count, size_t *out_index);
/* An operator: all_reduce, AllReduce, allreduce and all-reduce are one name. measured: only those
 * that weft bench measures. */
int wefti_option_op(const char *command, const char *option, const char *text, bool measured,
                    weft_collective_t *out_op);

/* Numbers: whole text, within range; false otherwise. */
bool wefti_parse_int(const char *text, long long low, long long high, long long *out_value);
bool wefti_parse_double(const char *text, double *out_value);
/* Do both paths name the same file? */
bool wefti_same_file(const char *a, const char *b);
/* "8", "4K", "64M", "1G", not 0; EXIT_BAD_INPUT with one line printed if it is invalid. */
int wefti_parse_size(const char *command, const char *option, const char *text,
                     uint64_t *out_bytes);

/* The options of compiling, shared by `compile` and `run MODEL.onnx`. */
#define COMPILE_OPTIONS_MAX 128u

typedef struct compile_options {
    weft_compile_params_t params;
    weft_input_shape_t shapes[16];
    char shape_names[16][128];
    char *lists[COMPILE_OPTIONS_MAX]; /* texts that several options of one name give together */
    weft_registry_t *registry;
    const weft_compile_option_t *batch_option; /* that set the batch; NULL: none */
    const char *used;        /* an option that a plan does not take was passed; NULL: none */
    char costs[1024];        /* path of the cost table, after wefti_compile_choose_costs */
    const char *costs_words; /* what the costs are, for people */
    bool interrupted;        /* Ctrl-C while calibrating: no message is due, EXIT_INTERRUPTED is */
} compile_options_t;

/* Written by wefti_compile_options_load before any command runs. The options of `weft compile`
 * alone come first, then --world, then those of every command that compiles. */
extern option_def_t wefti_compile_option_defs[COMPILE_OPTIONS_MAX + 1];
#define COMPILE_OPTIONS_CHECK (wefti_compile_option_defs + 4) /* from --world on */
#define COMPILE_OPTIONS_RUN (wefti_compile_option_defs + 6)   /* after --world and --device */
void wefti_compile_options_load(void);
int wefti_compile_options_init(compile_options_t *options);
void wefti_compile_options_deinit(compile_options_t *options);
/* Handles one of wefti_compile_option_defs; EXIT_BAD_INPUT with one line printed if it is invalid.
 */
int wefti_compile_option(compile_options_t *options, const char *command, int key,
                         const char *value);
/*
 * calibration.c. Sets params.costs_path: --costs, else WEFT_COSTS, else the calibration of this
 * machine, which is measured if none is cached, else default costs. alone: this process compiles
 * for all ranks; else only what is equal on all hosts is used.
 */
weft_status_t wefti_compile_choose_costs(compile_options_t *options, const char *command,
                                         bool alone);
/* Prints the message of a failed compilation, and returns the exit code. */
int wefti_compile_error(const compile_options_t *options, const char *command,
                        weft_status_t status);
/* compile_progress.c: weft_compile; after a second, a terminal on standard error shows the time. */
weft_status_t wefti_compile_with_progress(const weft_compile_params_t *params,
                                          weft_plan_t **out_plan);

/* main.c: the whole command, for program.c. Exported where it is in the library. */
WEFT_API int weft_command_main(int argc, char **argv);

extern const command_t wefti_compile_command;
extern const command_t wefti_check_command;
extern const command_t wefti_explain_command;
extern const command_t wefti_run_command;
extern const command_t wefti_bench_command;
extern const command_t wefti_ops_command;
extern const command_t wefti_algos_command;
extern const command_t wefti_verify_command;
extern const command_t wefti_tune_command;
extern const command_t wefti_topo_command;
extern const command_t wefti_doctor_command;
extern const command_t wefti_ps_command;
extern const command_t wefti_analyze_command;
extern const command_t wefti_report_command;
extern const command_t wefti_info_command;
extern const command_t wefti_simulate_command;

#endif
