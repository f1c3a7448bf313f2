/* SPDX-License-Identifier: Apache-2.0 */
/* The `weft` command: the list of commands, and dispatch to them. */
#include "tools/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/settings.h"
#include "runtime/base/suggest.h"

const command_t *const wefti_commands[] = {
    &wefti_compile_command,
    &wefti_check_command,
    &wefti_explain_command,
    &wefti_run_command,
    &wefti_bench_command,
    &wefti_ops_command,
    &wefti_algos_command,
    &wefti_verify_command,
    &wefti_tune_command,
    &wefti_topo_command,
    &wefti_doctor_command,
    &wefti_ps_command,
    &wefti_analyze_command,
    &wefti_report_command,
    &wefti_info_command,
    &wefti_simulate_command,
    NULL,
};

/* A file opened later must not take the number of a closed standard stream. */
static void hold_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            /* open() returns the lowest free number, which is fd. A closed output discards. */
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
        }
    }
}

/* Output that could not be written (a full disk) is a failure. */
static int check_output(int code)
{
    errno = 0;
    bool failed = fflush(stdout) != 0;
    if ((failed || ferror(stdout)) && code == EXIT_OK) {
        fprintf(stderr, "weft: cannot write standard output: %s\n",
                errno != 0 ? strerror(errno) : "some of it is lost");
        return EXIT_BAD_INPUT;
    }
    return code;
}

/* The command of that name, or NULL with a message. */
static const command_t *find_command(const char *name)
{
    wefti_suggestion_t near = {.word = name};
    for (size_t i = 0; wefti_commands[i] != NULL; i++) {
        if (strcmp(name, wefti_commands[i]->name) == 0) {
            return wefti_commands[i];
        }
        wefti_suggestion_offer(&near, wefti_commands[i]->name);
    }
    wefti_suggestion_offer(&near, "help");
    fprintf(stderr, "weft: unknown %s '%s'", name[0] == '-' ? "option" : "command", name);
    if (near.best != NULL) {
        fprintf(stderr, " (did you mean '%s'?)\n", near.best);
    } else {
        fputs("; `weft help` lists the commands\n", stderr);
    }
    return NULL;
}

/* weft help [COMMAND | --json] */
static int help(int argc, char **argv)
{
    if (argc < 3 || strcmp(argv[2], "help") == 0 || strcmp(argv[2], "--help") == 0 ||
        strcmp(argv[2], "-h") == 0) {
        wefti_print_help(stdout);
        return EXIT_OK;
    }
    if (argc > 3) {
        return wefti_usage_error("help", "unexpected argument '%s'", argv[3]);
    }
    if (strcmp(argv[2], "--json") == 0) {
        return wefti_print_help_json();
    }
    const command_t *command = find_command(argv[2]);
    if (command == NULL) {
        return EXIT_BAD_INPUT;
    }
    wefti_print_command_help(command);
    return EXIT_OK;
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        wefti_print_help(stderr);
        return EXIT_BAD_INPUT;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        wefti_print_help(stdout);
        return EXIT_OK;
    }
    if (strcmp(argv[1], "help") == 0) {
        return help(argc, argv);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("weft %s\n", weft_version());
        return EXIT_OK;
    }
    const command_t *command = find_command(argv[1]);
    return command != NULL ? command->run(argc - 1, argv + 1) : EXIT_BAD_INPUT;
}

static void warn_of_variable(void *user, const char *name, const char *known)
{
    (void)user;
    fprintf(stderr, "weft: warning: unknown variable %s: did you mean %s?\n", name, known);
}

/* Misspelt settings are reported once, by the first rank of several. */
static void check_environment(void)
{
    const char *rank = getenv("WEFT_RANK");
    if (rank == NULL || strcmp(rank, "0") == 0) {
        wefti_settings_find_misspelt(warn_of_variable, NULL);
    }
    wefti_settings_mute_misspelt();
}

int weft_command_main(int argc, char **argv)
{
    hold_standard_streams();
    check_environment();
    wefti_compile_options_load();
    return check_output(dispatch(argc, argv));
}
