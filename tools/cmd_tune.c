/* SPDX-License-Identifier: Apache-2.0 */
/* weft tune: measures communication and kernels of this machine and writes a cost table. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/file.h"
#include "tools/launch/world.h"
#include "tools/tune/tune.h"

enum { KEY_OP = 256, KEY_MAX, KEY_QUICK, KEY_NAME, KEY_WRITE_TOPOLOGY, KEY_JSON };

static const option_def_t own_options[] = {
    {'o', "output", "COSTS.json",
     "cost table to write (default: the calibration of this machine, which weft compile reads)"},
    {'n', "world", "N,N,..", "numbers of local ranks to measure with (default 2)"},
    {KEY_OP, "op", "OP", "only this collective, such as all_reduce, and no kernels (default: all)"},
    {KEY_MAX, "max", "BYTES", "largest size (default 64M, with --quick 4M)"},
    {KEY_QUICK, "quick", NULL, "fewer sizes and calls: under 2 seconds instead of 1 to 2 minutes"},
    {KEY_NAME, "name", "NAME", "name of the table (default: CPU, cores and instruction set)"},
    {KEY_WRITE_TOPOLOGY, "write-topology", "FILE.json",
     "write a description of the ranks' hosts with measured costs of their levels: caches, NUMA "
     "nodes, sockets, hosts, racks, links"},
    {KEY_JSON, "json", NULL, "print one JSON object"},
    {0, NULL, NULL, NULL},
};

static int run_tune_command(int argc, char **argv);

const command_t wefti_tune_command = {
    .name = "tune",
    .brief = "measure this machine and write a cost table",
    .synopsis =
        "[-o COSTS.json] [-n N,N,..] [--op OP] [--quick] [--write-topology FILE.json] [--json]",
    .summary =
        "Measures every algorithm of every collective on local ranks, in registered and in plain "
        "memory, then memory, links, reductions and compute kernels. Writes a cost table and "
        "prints which algorithm it chooses for which sizes.\n"
        "Without -o the table is cached as the calibration of this machine: weft compile and weft "
        "run MODEL.onnx predict times with it. Where no calibration is cached, they measure one "
        "themselves, once. A table written with -o is used where --costs or WEFT_COSTS names it.",
    .epilogue =
        "Reductions use f32. Keep the machine otherwise idle while weft tune runs. Started by "
        "mpirun\n"
        "or by weft run --hosts, its ranks measure the collectives and the links between their\n"
        "hosts, but no kernels; -o is then required. --write-topology describes the ranks' hosts\n"
        "with measured costs of their levels, for weft compile --topology and weft simulate. "
        "Hosts\n"
        "that are much nearer to each other than to others become a rack.\n\n"
        "examples:\n"
        "  weft tune --quick\n"
        "  weft tune -o costs.json -n 2,8\n"
        "  WEFT_COSTS=costs.json weft bench all_reduce -n 8\n"
        "  weft run --hosts a:4,b:4 -- weft tune -o costs.json\n"
        "  weft run --hosts a:4,b:4 -- weft tune -o costs.json --write-topology cluster.json\n",
    .options = {own_options},
    .run = run_tune_command,
};

/* ---- options ---- */

static int read_groups(tune_command_t *command, const char *value)
{
    const char *at = value;
    char *end = NULL;
    command->group_count = 0;
    do {
        unsigned long ranks = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
        if (ranks < 2 || ranks > BENCH_MAX_RANKS || (*end != ',' && *end != '\0') ||
            command->group_count == TUNE_GROUPS) {
            return wefti_usage_error("tune", "-n '%s': expected up to %u numbers from 2 to %u",
                                     value, TUNE_GROUPS, BENCH_MAX_RANKS);
        }
        command->groups[command->group_count++] = (uint32_t)ranks;
        at = end + 1;
    } while (*end == ',');
    return EXIT_OK;
}

static int handle(void *user, int key, const char *value)
{
    tune_command_t *command = user;
    switch (key) {
    case 'o':
        command->output = value;
        return EXIT_OK;
    case 'n':
        command->ranks_given = true;
        return read_groups(command, value);
    case KEY_OP:
        return wefti_option_op("tune", "--op", value, true, &command->only);
    case KEY_MAX:
        return wefti_parse_size("tune", "--max", value, &command->max_bytes);
    case KEY_QUICK:
        command->quick = true;
        return EXIT_OK;
    case KEY_NAME:
        command->name = value;
        return EXIT_OK;
    case KEY_WRITE_TOPOLOGY:
        command->topology = value;
        return EXIT_OK;
    default:
        command->json = true;
        return EXIT_OK;
    }
}

static int run_tune_command(int argc, char **argv)
{
    tune_command_t command;
    calibration_t calibration;
    int positional = 0;
    wefti_tune_init(&command);
    int code = wefti_parse_options(argc, argv, &wefti_tune_command, handle, &command, &positional);
    if (code != EXIT_OK) {
        return code < 0 ? EXIT_OK : code;
    }
    if (positional != 0) {
        return wefti_usage_error("tune", "unexpected argument '%s'", argv[1]);
    }
    bool launched = !command.ranks_given && wefti_is_launched(0);
    weft_status_t status = wefti_calibration_find(&calibration);
    if (command.output == NULL && (launched || command.only != 0 || calibration.path[0] == 0)) {
        return wefti_usage_error("tune", "missing -o COSTS.json: %s",
                                 launched ? "ranks of a launcher do not cache a calibration"
                                 : command.only != 0
                                     ? "a table of one collective cannot serve as calibration"
                                     : "no cache folder: XDG_CACHE_HOME and HOME are not set");
    }
    if (status >= 0 && command.output == NULL) {
        command.output = calibration.path;
        status = wefti_calibration_make_place(&calibration);
    }
    status = status < 0 ? status : wefti_file_check_place(command.output);
    if (status >= 0 && command.topology != NULL) {
        status = wefti_file_check_place(command.topology);
    }
    if (status < 0) {
        return wefti_status_error("tune", status);
    }
    /* All algorithms are measured, whatever programs choose. */
    unsetenv("WEFT_ALGO");
    unsetenv("WEFT_COSTS");
    setenv("WEFT_ORDER", "any", 1);
    if (launched) {
        code = wefti_tune_launched(&command);
    } else {
        code = wefti_tune_measure(&command, &calibration);
        status = code == EXIT_OK ? wefti_tune_write(&command) : WEFT_OK;
        status = code == EXIT_OK && status >= 0 ? wefti_tune_show(&command) : status;
    }
    wefti_tune_deinit(&command);
    return status < 0 ? wefti_status_error("tune", status) : code;
}
