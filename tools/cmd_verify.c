/* SPDX-License-Identifier: Apache-2.0 */
/* weft verify: proves the schedules of all algorithms. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ops/algo/sweep.h"
#include "runtime/base/sync.h"
#include "runtime/base/text.h"
#include "tools/tool.h"

#define SMALL_CELLS (1u << 20) /* of what is proved above 64 ranks */

enum { KEY_ALL = 256, KEY_JSON, KEY_OP, KEY_ALGO };

static const option_def_t own_options[] = {
    {KEY_ALL, "all", NULL, "every size up to 64 ranks, and a sample up to 1024"},
    {'n', "ranks", "N", "only groups of N ranks"},
    {KEY_OP, "op", "OP", "only this operator, such as AllReduce"},
    {KEY_ALGO, "algo", "NAME", "only algorithms of this name"},
    {KEY_JSON, "json", NULL, "print one JSON object"},
    {0, NULL, NULL, NULL},
};

static const command_help_t help = {
    "verify",
    "[--all | -n N] [--op OP] [--algo NAME] [--json]",
    "Simulates all ranks of every collective algorithm on symbols, over shared memory and over "
    "links that\n"
    "only put and signal, and proves for all counts: results and reduction order, no deadlock, no "
    "race, no\n"
    "access outside a buffer. Without --all: 1 to 17, 32, 33 and 64 ranks.",
    "exit status: 0 all proved, 1 a schedule is wrong (its rank, step and why are printed), 2 bad "
    "input\n",
};

typedef struct verify_command {
    bool all, json;
    uint32_t ranks;
    weft_collective_t op;
    const char *algorithm;
    uint64_t proved, left_out, steps, accesses;
} verify_command_t;

static int handle(void *user, int key, const char *value)
{
    verify_command_t *command = user;
    long long number;
    switch (key) {
    case KEY_ALL:
        command->all = true;
        break;
    case KEY_JSON:
        command->json = true;
        break;
    case KEY_ALGO:
        command->algorithm = value;
        break;
    case KEY_OP:
        command->op = wefti_collective_from_name(value);
        if (command->op == 0) {
            return wefti_usage_error("verify", "no operator '%s'", value);
        }
        break;
    case 'n':
        if (!wefti_parse_int(value, 1, 4096, &number)) {
            return wefti_usage_error("verify", "--ranks %s is not within 1 to 4096", value);
        }
        command->ranks = (uint32_t)number;
        break;
    default:
        break;
    }
    return EXIT_OK;
}

static void show_progress(const verify_command_t *command, uint32_t ranks)
{
    if (!command->json && isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r%u ranks, %" PRIu64 " cases proved ", ranks, command->proved);
    }
}

static weft_status_t prove(verify_command_t *command, uint32_t ranks, wefti_sweep_links_t links)
{
    wefti_sweep_t sweep = {.op = command->op,
                           .algorithm = command->algorithm,
                           .links = links,
                           .cell_limit = ranks > 64 ? SMALL_CELLS : 0};
    weft_status_t status = wefti_sweep_size(&sweep, ranks);
    command->proved += sweep.proved;
    command->left_out += sweep.left_out;
    command->steps += sweep.steps;
    command->accesses += sweep.accesses;
    show_progress(command, ranks);
    return status;
}

static weft_status_t prove_all(verify_command_t *command)
{
    static const uint32_t usual[] = {32, 33, 64};
    static const uint32_t sample[] = {65, 96, 127, 128, 255, 256, 511, 512, 1000, 1024};
    weft_status_t status = WEFT_OK;
    uint32_t full = command->all ? 64 : 17;
    if (command->ranks > 0) {
        return prove(command, command->ranks,
                     command->ranks > 64 ? WEFTI_SWEEP_DIRECT : WEFTI_SWEEP_ALL);
    }
    for (uint32_t ranks = 1; ranks <= full && status >= 0; ranks++) {
        status = prove(command, ranks, WEFTI_SWEEP_ALL);
    }
    for (size_t i = 0; !command->all && i < sizeof usual / sizeof *usual && status >= 0; i++) {
        status = prove(command, usual[i], WEFTI_SWEEP_ALL);
    }
    for (size_t i = 0; command->all && i < sizeof sample / sizeof *sample && status >= 0; i++) {
        status = prove(command, sample[i], WEFTI_SWEEP_DIRECT);
    }
    return status;
}

static void print_result(const verify_command_t *command, weft_status_t status, double seconds)
{
    if (!command->json) {
        if (isatty(STDERR_FILENO)) {
            fputs("\r\033[K", stderr);
        }
        printf("%" PRIu64 " cases proved (%" PRIu64 " steps, %" PRIu64 " accesses) in %.1f s",
               command->proved, command->steps, command->accesses, seconds);
        if (command->left_out > 0) {
            printf(", %" PRIu64 " left out as too large", command->left_out);
        }
        puts("");
        return;
    }
    wefti_text_t text;
    wefti_json_t json;
    wefti_text_init(&text, NULL);
    wefti_json_init(&json, &text, true);
    wefti_json_begin_object(&json, NULL);
    wefti_json_bool(&json, "ok", status >= 0);
    wefti_json_int(&json, "proved", (int64_t)command->proved);
    wefti_json_int(&json, "left_out", (int64_t)command->left_out);
    wefti_json_int(&json, "steps", (int64_t)command->steps);
    wefti_json_int(&json, "accesses", (int64_t)command->accesses);
    wefti_json_double(&json, "seconds", seconds);
    wefti_json_string(&json, "error", status < 0 ? weft_last_error() : NULL);
    wefti_json_end_object(&json);
    puts(text.failed ? "{}" : text.data);
    wefti_text_deinit(&text);
}

int wefti_cmd_verify(int argc, char **argv)
{
    verify_command_t command = {0};
    int positional = 0;
    const option_def_t *const tables[] = {own_options, NULL};
    int code = wefti_parse_options(argc, argv, &help, tables, handle, &command, &positional);
    if (code != EXIT_OK) {
        return code < 0 ? EXIT_OK : code;
    }
    if (positional != 0) {
        return wefti_usage_error("verify", "unexpected argument '%s'", argv[1]);
    }
    uint64_t begin_ns = wefti_now_ns();
    weft_status_t status = prove_all(&command);
    print_result(&command, status, (double)(wefti_now_ns() - begin_ns) * 1e-9);
    if (status < 0) {
        fprintf(stderr, "weft verify: %s\n", weft_last_error());
        return EXIT_RUN_FAILED;
    }
    if (command.proved == 0) {
        return wefti_usage_error("verify", "no algorithm fits what was asked for");
    }
    return EXIT_OK;
}
