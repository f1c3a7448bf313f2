/* SPDX-License-Identifier: Apache-2.0 */
/* The `weft` command: dispatch to subcommands. */
#include "tools/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct command {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv);
} command_t;

static const command_t commands[] = {
    {"compile", "turn an ONNX model into a plan", wefti_cmd_compile},
    {"check", "say what of a model is supported", wefti_cmd_check},
    {"explain", "say what a plan does and why", wefti_cmd_explain},
    {"run", "train, infer, or start programs as ranks, on one host or several", wefti_cmd_run},
    {"bench", "time collectives on local ranks", wefti_cmd_bench},
    {"ops", "list every operator definition", wefti_cmd_ops},
    {"algos", "say which algorithm costs least for a collective, and why", wefti_cmd_algos},
    {"verify", "prove that the collective algorithms are right", wefti_cmd_verify},
    {"tune", "measure this machine for the choice of algorithms", wefti_cmd_tune},
    {"topo", "draw hosts, cores, interfaces, and how ranks reach each other", wefti_cmd_topo},
    {"info", "show version, machine, transports and settings", wefti_cmd_info},
};

static void print_help(FILE *out)
{
    fputs("usage: weft COMMAND [options]\n\n"
          "Weft compiles ONNX models with collectives inside and runs them on several ranks.\n\n"
          "commands:\n",
          out);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].summary);
    }
    fputs("\n`weft COMMAND --help` explains a command. `weft --version` prints the version.\n"
          "exit status: 0 done, 1 the run failed, 2 bad input, 130 interrupted\n",
          out);
}

/* A standard stream that is closed would be opened again as some file of ours and written to. */
static void hold_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            /* The lowest free number is fd. Output is /dev/null, too: whoever closes it wants none.
             */
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
        }
    }
}

/* What was asked for and could not be written (a full disk) was not delivered. */
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

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return EXIT_BAD_INPUT;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("weft %s\n", weft_version());
        return EXIT_OK;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "weft: no command '%s'; `weft --help` lists them\n", argv[1]);
    return EXIT_BAD_INPUT;
}

int main(int argc, char **argv)
{
    hold_standard_streams();
    return check_output(dispatch(argc, argv));
}
