/* SPDX-License-Identifier: Apache-2.0 */
/* weft tune: measures what collectives cost here and writes it down. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "tools/launch.h"
#include "tools/launch_world.h"
#include "tools/tune.h"

enum { KEY_OP = 256, KEY_MAX, KEY_QUICK, KEY_NAME, KEY_JSON };

static const option_def_t own_options[] = {
    {'o', "output", "COSTS.json", "the table to write"},
    {'n', "world", "N,N,..", "local ranks to measure with, each pinned to its cores (default 2)"},
    {KEY_OP, "op", "OP", "only this operator, such as all_reduce (default: all)"},
    {KEY_MAX, "max", "BYTES", "largest size, such as 64M (the default) or 4M"},
    {KEY_QUICK, "quick", NULL, "fewer sizes and calls: seconds instead of a minute or two"},
    {KEY_NAME, "name", "NAME", "what the table calls itself (default: the host's name)"},
    {KEY_JSON, "json", NULL, "print one JSON object"},
    {0, NULL, NULL, NULL},
};

static int run_tune_command(int argc, char **argv);

const command_t wefti_tune_command = {
    .name = "tune",
    .brief = "measure this machine and write a cost table",
    .synopsis = "-o COSTS.json [-n N,N,..] [--op OP] [--quick] [--json]",
    .summary =
        "Measures every algorithm of every operator on local ranks, over sizes, with memory that "
        "peers "
        "reach and with plain memory, and what links and sums cost by themselves. The table "
        "decides "
        "which algorithm runs where WEFT_COSTS names it. Prints what it chooses, and from which "
        "size "
        "on.",
    .epilogue =
        "Sums are of f32. Nothing else should run meanwhile. Ranks that mpirun or weft run --hosts "
        ".. "
        "--\n"
        "has started are taken as they are, and the links between their hosts are measured, too.\n"
        "example:\n  weft tune -o costs.json -n 2,8\n"
        "  WEFT_COSTS=costs.json weft bench all_reduce -n 8\n"
        "  weft run --hosts a:4,b:4 -- weft tune -o costs.json\n",
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
        return wefti_bench_find_op("tune", "--op", value, &command->only);
    case KEY_MAX:
        return wefti_parse_size("tune", "--max", value, &command->max_bytes);
    case KEY_QUICK:
        command->quick = true;
        return EXIT_OK;
    case KEY_NAME:
        command->name = value;
        return EXIT_OK;
    default:
        command->json = true;
        return EXIT_OK;
    }
}

/* ---- measuring ---- */

tune_run_t wefti_tune_make_run(const tune_command_t *command, uint32_t ranks, memory_kind_t memory)
{
    tune_run_t run = {
        .bench = {.ranks = ranks,
                  .min_bytes = 8,
                  .max_bytes = command->max_bytes,
                  .dtype = WEFT_DTYPE_F32,
                  .reduction = WEFT_SUM,
                  .memory = memory},
        .only = command->only,
        .budget_us = command->quick ? 2000 : 20000,
        .rounds = command->quick ? 1 : 2,
        .growth = command->quick ? 16 : 4,
        .progress = isatty(STDERR_FILENO) == 1,
        .done = command->done,
        .total = command->total,
        .host_of = command->host_of,
        .host_count = command->host_count,
    };
    return run;
}

/* One launch; what it found goes into the table. */
static int run_once(tune_command_t *command, uint32_t ranks, memory_kind_t memory)
{
    tune_run_t run = wefti_tune_make_run(command, ranks, memory);
    bool links = ranks == command->groups[0] && memory == MEMORY_REGISTERED;
    run.result =
        mmap(NULL, sizeof *run.result, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (run.result == MAP_FAILED) {
        return wefti_usage_error("tune", "no memory for what is measured");
    }
    run.bench.floor = links ? wefti_bench_floor_create(ranks, command->max_bytes) : NULL;
    int code = wefti_launch(&(launch_t){.command = "tune"}, ranks, wefti_tune_rank, &run);
    weft_status_t status = WEFT_OK;
    if (code == EXIT_OK && links) {
        wefti_tune_set_links(&command->costs, run.result);
        status = wefti_tune_set_steps(&command->costs, &run);
    }
    if (code == EXIT_OK && status == WEFT_OK) {
        status = wefti_tune_add(&command->costs, &run);
    }
    command->done += wefti_tune_count(&run);
    wefti_bench_floor_destroy(run.bench.floor);
    munmap(run.result, sizeof *run.result);
    return status < 0 ? wefti_status_error("tune", status) : code;
}

static int measure_all(tune_command_t *command)
{
    int code = EXIT_OK;
    for (uint32_t i = 0; i < command->group_count; i++) {
        tune_run_t run = wefti_tune_make_run(command, command->groups[i], MEMORY_REGISTERED);
        command->total += 2 * wefti_tune_count(&run);
    }
    for (uint32_t i = 0; i < command->group_count && code == EXIT_OK; i++) {
        code = run_once(command, command->groups[i], MEMORY_REGISTERED);
        if (code == EXIT_OK) {
            code = run_once(command, command->groups[i], MEMORY_PLAIN);
        }
    }
    return code;
}

static weft_status_t write_table(const tune_command_t *command)
{
    wefti_text_t text;
    wefti_text_init(&text, NULL);
    wefti_costs_encode(&command->costs, &text);
    wefti_text_add(&text, "\n");
    wefti_piece_t piece = {text.data, text.length};
    weft_status_t status =
        text.failed ? WEFT_ERR_NO_MEMORY : wefti_file_write(command->output, &piece, 1);
    wefti_text_deinit(&text);
    return status;
}

static void name_table(tune_command_t *command)
{
    struct utsname host;
    const char *name = command->name;
    if (name == NULL) {
        name = uname(&host) == 0 ? host.nodename : "tuned";
    }
    snprintf(command->costs.name, sizeof command->costs.name, "%s", name);
}

weft_status_t wefti_tune_write(const tune_command_t *command)
{
    weft_status_t status = write_table(command);
    return status == WEFT_OK ? wefti_tune_show(command) : status;
}

static int run_tune_command(int argc, char **argv)
{
    tune_command_t command = {.groups = {2}, .group_count = 1, .max_bytes = 64u << 20};
    int positional = 0;
    int code = wefti_parse_options(argc, argv, &wefti_tune_command, handle, &command, &positional);
    if (code != EXIT_OK) {
        return code < 0 ? EXIT_OK : code;
    }
    if (positional != 0) {
        return wefti_usage_error("tune", "unexpected argument '%s'", argv[1]);
    }
    if (command.output == NULL) {
        return wefti_usage_error("tune", "-o COSTS.json is missing");
    }
    weft_status_t status = wefti_file_check_place(command.output);
    if (status < 0) {
        return wefti_status_error("tune", status);
    }
    /* All algorithms are to be measured, whatever was chosen for programs. */
    unsetenv("WEFT_ALGO");
    unsetenv("WEFT_COSTS");
    setenv("WEFT_ORDER", "any", 1);
    wefti_costs_default(&command.costs, NULL);
    name_table(&command);
    if (!command.ranks_given && wefti_is_launched(0)) {
        code = wefti_tune_launched(&command);
    } else {
        code = measure_all(&command);
        status = code == EXIT_OK ? wefti_tune_write(&command) : WEFT_OK;
    }
    wefti_costs_deinit(&command.costs);
    return status < 0 ? wefti_status_error("tune", status) : code;
}
