/* SPDX-License-Identifier: Apache-2.0 */
/* weft algos: which algorithm is chosen over sizes, and why. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/algo/algorithms.h"
#include "ops/algo/msccl.h"
#include "ops/cost/cost.h"
#include "runtime/base/json.h"
#include "tools/tool.h"

#define MAX_HOSTS 256u
#define MAX_RANKS 4096u

enum {
    KEY_OP = 256,
    KEY_RANKS_PER_HOST,
    KEY_ROUND_ROBIN,
    KEY_LINKS,
    KEY_ORDER,
    KEY_COSTS,
    KEY_ALGO,
    KEY_DTYPE,
    KEY_MEMORY,
    KEY_JSON,
};

static const option_def_t own_options[] = {
    {'n', "world", "N",
     "number of ranks of the group (default 2, or all ranks of --ranks-per-host)"},
    {KEY_OP, "op", "OP", "show only this operator, such as all_reduce (default: all)"},
    {KEY_RANKS_PER_HOST, "ranks-per-host", "N,N,..",
     "number of ranks on each host (default: one host)"},
    {KEY_ROUND_ROBIN, "round-robin", NULL,
     "assign ranks to the hosts in turn (default: fill host after host)"},
    {KEY_LINKS, "links", "KIND",
     "default costs of links between hosts: tcp (default) or verbs; measured costs have priority"},
    {KEY_ORDER, "order", "ORDER",
     "reduction order: tree (default), blocks:N,N,.., blocks (one block per host) or any"},
    {KEY_MEMORY, "memory", "KIND", "registered (default: peers access it directly) or plain"},
    {KEY_DTYPE, "dtype", "TYPE", "element type (default f32)"},
    {KEY_COSTS, "costs", "COSTS.json",
     "read measured costs of collectives (default: WEFT_COSTS, or the built-in table)"},
    {KEY_ALGO, "algo", "NAME",
     "show only this algorithm, or that of a file of MSCCL (ring.xml); an error if it is not "
     "eligible"},
    {KEY_JSON, "json", NULL, "print one JSON object"},
    {0, NULL, NULL, NULL},
};

static int run_algos_command(int argc, char **argv);

const command_t wefti_algos_command = {
    .name = "algos",
    .brief = "show which algorithm a collective uses, and why",
    .synopsis =
        "[FILE.xml] [-n N] [--op OP] [--ranks-per-host N,N,..] [--round-robin] [--links KIND] "
        "[--order ORDER] [--costs COSTS.json] [--algo NAME] [--json]",
    .summary =
        "Shows which algorithm the runtime selects for each size, the predicted or measured "
        "time, the second best algorithm, and why other algorithms are not eligible. The "
        "selection uses measured times (weft tune) if the cost table has the group size, and "
        "predicted times otherwise.\n"
        "\n"
        "With a file of MSCCL, shows the operator and number of ranks of the file, and the file's "
        "algorithm among the others.",
    .epilogue = "A size is that of the larger buffer of a rank; the choice holds for sizes up to "
                "twice as large.\n"
                "An algorithm marked * has hand-written code for loads and stores, and is selected "
                "unless another\n"
                "one is 5 % faster. Other schedules are interpreted.\n"
                "\n"
                "example:\n"
                "  weft algos --op all_reduce --ranks-per-host 4,4\n"
                "  weft algos ring.xml --order any\n",
    .options = {own_options},
    .run = run_algos_command,
};

typedef struct algos_command {
    uint32_t ranks, host_count;
    uint32_t hosts[MAX_HOSTS];
    uint32_t host_of[MAX_RANKS];
    bool round_robin, verbs, ranks_given;
    uint32_t blocks[MAX_HOSTS], block_count; /* of --order blocks:..; 0: the hosts */
    bool plain;
    weft_collective_t op;
    weft_order_t order;
    weft_dtype_t dtype;
    const char *costs_path, *algorithm;
    const char *path; /* of a file of MSCCL, which registry has; NULL: none */
    weft_registry_t *registry;
    const weft_algorithm_t *of_file;
    bool json;
    wefti_costs_t costs;
    wefti_text_t text;
    wefti_json_t writer;
} algos_command_t;

/* "4,4": numbers of ranks. */
static bool read_sizes(const char *text, uint32_t *sizes, uint32_t *out_count)
{
    char *end = NULL;
    *out_count = 0;
    do {
        unsigned long size = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;
        if (size == 0 || size > 4096 || (*end != ',' && *end != '\0') || *out_count == MAX_HOSTS) {
            return false;
        }
        sizes[(*out_count)++] = (uint32_t)size;
        text = end + 1;
    } while (*end == ',');
    return true;
}

static int read_order(algos_command_t *command, const char *value)
{
    static const char prefix[] = "blocks:";
    bool good = true;
    command->block_count = 0;
    if (strcmp(value, "tree") == 0) {
        command->order = WEFT_ORDER_TREE;
    } else if (strcmp(value, "any") == 0) {
        command->order = WEFT_ORDER_ANY;
    } else {
        command->order = WEFT_ORDER_BLOCKS;
        good = strcmp(value, "blocks") == 0 ||
               (strncmp(value, prefix, sizeof prefix - 1) == 0 &&
                read_sizes(value + sizeof prefix - 1, command->blocks, &command->block_count));
    }
    return good ? EXIT_OK
                : wefti_usage_error(
                      "algos", "--order %s: must be tree, blocks, blocks:N,N,.. or any", value);
}

static int read_memory(algos_command_t *command, const char *value)
{
    static const char *const names[] = {"registered", "plain"};
    size_t index = 0;
    int code = wefti_option_choice("algos", "--memory", value, names, 2, &index);
    command->plain = index == 1;
    return code;
}

static int handle(void *user, int key, const char *value)
{
    algos_command_t *command = user;
    static const char *const links[] = {"tcp", "verbs"};
    size_t index = 0;
    int code = EXIT_OK;
    switch (key) {
    case 'n':
        command->ranks_given = true;
        return wefti_option_u32("algos", "--world", value, 1, MAX_RANKS, &command->ranks);
    case KEY_ROUND_ROBIN:
        command->round_robin = true;
        break;
    case KEY_LINKS:
        code = wefti_option_choice("algos", "--links", value, links, 2, &index);
        command->verbs = index == 1;
        return code;
    case KEY_OP:
        return wefti_option_op("algos", "--op", value, false, &command->op);
    case KEY_RANKS_PER_HOST:
        return read_sizes(value, command->hosts, &command->host_count)
                   ? EXIT_OK
                   : wefti_usage_error("algos",
                                       "--ranks-per-host %s: must be numbers from 1 to 4096 "
                                       "with commas between, such as 4,4",
                                       value);
    case KEY_ORDER:
        return read_order(command, value);
    case KEY_MEMORY:
        return read_memory(command, value);
    case KEY_DTYPE:
        command->dtype = weft_dtype_from_name(value);
        if (command->dtype == WEFT_DTYPE_NONE) {
            return wefti_usage_error("algos", "--dtype %s: unknown element type", value);
        }
        break;
    case KEY_COSTS:
        command->costs_path = value;
        break;
    case KEY_ALGO:
        command->algorithm = value;
        break;
    default:
        command->json = true;
        break;
    }
    return EXIT_OK;
}

/* " 1.25 times ring" */
static void print_other(const wefti_candidate_t *list, uint32_t index)
{
    if (list[index].reason == NULL && list[0].predicted_ns > 0) {
        printf("   %.2f times %s%s", list[index].predicted_ns / list[0].predicted_ns,
               list[index].algorithm->name, list[index].executor ? "*" : "");
    }
}

static void print_row(const algos_command_t *command, const wefti_candidate_t *list, uint32_t count,
                      uint64_t bytes)
{
    char size[32], name[64];
    const wefti_candidate_t *best = &list[0];
    snprintf(name, sizeof name, "%s%s", best->algorithm->name, best->executor ? "*" : "");
    if (isnan(best->predicted_ns)) {
        printf("  %10s  %-18s (not compared: more than %u ranks)\n",
               wefti_format_bytes(bytes, size), name, WEFTI_MAX_PREDICTED_RANKS);
        return;
    }
    printf("  %10s  %-18s %12.2f us %s", wefti_format_bytes(bytes, size), name,
           best->predicted_ns * 1e-3, best->measured ? "(measured)" : "(predicted)");
    for (uint32_t i = 1; i < count; i++) {
        if (i == 1 || list[i].algorithm == command->of_file) {
            print_other(list, i);
        }
    }
    puts("");
}

static void print_reasons(const wefti_candidate_t *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (list[i].reason != NULL) {
            printf("  not eligible: %s: %s\n", list[i].algorithm->name, list[i].reason);
        }
    }
}

static void write_row(wefti_json_t *json, const wefti_candidate_t *list, uint32_t count,
                      weft_collective_t op, uint64_t bytes)
{
    wefti_json_begin_object(json, NULL);
    wefti_json_string(json, "op", wefti_collective_function(op));
    wefti_json_int(json, "bytes", (int64_t)bytes);
    wefti_json_string(json, "algorithm", list[0].algorithm->name);
    wefti_json_begin_array(json, "candidates");
    for (uint32_t i = 0; i < count; i++) {
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "algorithm", list[i].algorithm->name);
        if (list[i].reason == NULL) {
            wefti_json_double(json, "predicted_us", list[i].predicted_ns * 1e-3);
            wefti_json_bool(json, "measured", list[i].measured);
            wefti_json_bool(json, "executor", list[i].executor);
        } else {
            wefti_json_string(json, "reason", list[i].reason);
        }
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
    wefti_json_end_object(json);
}

/* Assigns ranks to hosts in turn while these have free slots. */
static void deal_ranks(algos_command_t *command)
{
    uint32_t left[MAX_HOSTS];
    memcpy(left, command->hosts, sizeof left);
    for (uint32_t r = 0, host = 0; r < command->ranks; r++) {
        while (left[host] == 0) {
            host = (host + 1) % command->host_count;
        }
        command->host_of[r] = host;
        left[host]--;
        host = (host + 1) % command->host_count;
    }
}

static weft_algo_params_t params_of(const algos_command_t *command, weft_collective_t op)
{
    bool own = command->block_count > 0;
    bool in_turn = command->round_robin && command->host_count > 1;
    return (weft_algo_params_t){
        .struct_size = sizeof(weft_algo_params_t),
        .op = op,
        .group_size = command->ranks,
        .root = command->of_file != NULL ? wefti_msccl_of(command->of_file)->root : 0,
        .peer = command->ranks > 1,
        .order = command->order,
        .order_sizes = own ? command->blocks : command->hosts,
        .order_size_count = own ? command->block_count : command->host_count,
        .host_sizes = in_turn ? NULL : command->hosts,
        .host_count = in_turn ? 0 : command->host_count,
        .host_of = in_turn ? command->host_of : NULL,
        .host_of_count = in_turn ? command->host_count : 0};
}

/* As the runtime does for a call of bytes: sizes between two powers of two are one class. */
static weft_status_t choose(const algos_command_t *command, const weft_algo_params_t *params,
                            uint64_t bytes, wefti_candidate_t *list, uint32_t *out_count)
{
    uint32_t elem_bytes = (uint32_t)weft_dtype_size_bytes(command->dtype);
    uint64_t block = wefti_collective_is_vector(params->op) ? bytes : bytes / command->ranks;
    uint64_t size_class = elem_bytes;
    while (size_class * 2 <= block) {
        size_class *= 2;
    }
    wefti_counts_t counts = {.elem_count = size_class / elem_bytes, .elem_bytes = elem_bytes};
    wefti_choice_t choice = {
        .wanted = command->algorithm, .plain = command->plain, .registry = command->registry};
    if (params->op == WEFT_COLLECTIVE_BARRIER) {
        counts.elem_count = 0;
    }
    choice.executors = command->host_count <= 1 &&
                       (!wefti_collective_reduces(params->op) || wefti_needs_tree(params) == NULL);
    if (command->ranks > WEFTI_MAX_PREDICTED_RANKS && command->costs.measured_count == 0 &&
        choice.wanted == NULL) { /* nothing is compared */
        const weft_algorithm_t *one = choice.executors ? wefti_algorithm_find(params->op, "mesh")
                                                       : wefti_cost_few_steps(params);
        weft_status_t status = wefti_algo_params_check(params);
        if (status < 0 || one != NULL) {
            list[0] = (wefti_candidate_t){
                .algorithm = one, .predicted_ns = NAN, .executor = choice.executors};
            *out_count = 1;
            return status;
        }
    }
    return wefti_cost_choose(&command->costs, params, &counts, &choice, list, out_count);
}

static weft_status_t show_op(algos_command_t *command, weft_collective_t op)
{
    weft_algo_params_t params = params_of(command, op);
    wefti_candidate_t list[WEFTI_MAX_CANDIDATES];
    uint32_t count = 0;
    weft_status_t status = WEFT_OK;
    bool barrier = op == WEFT_COLLECTIVE_BARRIER;
    for (uint64_t bytes = barrier ? 0 : 8; bytes <= 64u << 20 && status >= 0; bytes *= 8) {
        status = choose(command, &params, bytes, list, &count);
        if (status >= 0 && command->json) {
            write_row(&command->writer, list, count, op, bytes);
        } else if (status >= 0) {
            if (bytes == 8 || barrier) {
                printf("%s, %u rank%s\n", wefti_collective_function(op), command->ranks,
                       wefti_plural(command->ranks));
            }
            print_row(command, list, count, bytes);
        }
        if (barrier) {
            break;
        }
    }
    if (status >= 0 && !command->json) {
        print_reasons(list, count);
        uint64_t posted = wefti_cost_slot_bytes(&command->costs, &params);
        if (posted != UINT64_MAX && posted > 0) {
            char text[32];
            printf("  blocks up to %s are sent together with the call's signature\n",
                   wefti_format_bytes(posted, text));
        }
        if (barrier || op == WEFT_COLLECTIVE_SEND_RECV) {
            puts("  calls use hand-written code unless --algo or WEFT_ALGO selects an algorithm");
        }
    }
    return status;
}

static weft_status_t show_all(algos_command_t *command)
{
    weft_status_t status = WEFT_OK;
    bool any = false;
    for (uint32_t op = 1; op < WEFTI_OPS && status >= 0; op++) {
        weft_collective_t one = (weft_collective_t)op;
        /* Variants with lengths per rank use the choice of the plain operator. */
        if ((command->op != 0 && command->op != one) || wefti_collective_is_variable(one) ||
            (one == WEFT_COLLECTIVE_SEND_RECV && command->ranks < 2) ||
            (command->op == 0 && command->algorithm != NULL &&
             weft_registry_find_algorithm(command->registry, one, command->algorithm) == NULL)) {
            continue;
        }
        any = true;
        status = show_op(command, one);
    }
    if (status >= 0 && !any) {
        return (weft_status_t)1;
    }
    return status;
}

/* The file decides on the operator and the number of ranks. */
static int load_file(algos_command_t *command)
{
    weft_status_t status = weft_registry_create(NULL, &command->registry);
    status = status < 0 ? status
                        : weft_registry_load_algorithm(command->registry, command->path,
                                                       &command->of_file);
    if (status < 0) {
        return wefti_status_error("algos", status);
    }
    uint32_t ranks = wefti_msccl_of(command->of_file)->gpu_count;
    if (command->op != 0 && command->op != command->of_file->op) {
        return wefti_usage_error("algos", "--op %s: %s is an algorithm of %s",
                                 wefti_collective_function(command->op), command->path,
                                 wefti_collective_function(command->of_file->op));
    }
    if ((command->ranks_given || command->host_count > 0) && command->ranks != ranks) {
        return wefti_usage_error("algos", "%s: the file describes %u ranks, not %u", command->path,
                                 ranks, command->ranks);
    }
    command->op = command->of_file->op;
    command->ranks = ranks;
    /* Of larger groups only what is asked for is predicted. */
    bool only = command->algorithm != NULL || ranks > WEFTI_MAX_PREDICTED_RANKS;
    command->algorithm = only ? command->of_file->name : NULL;
    return EXIT_OK;
}

static int run_algos_command(int argc, char **argv)
{
    algos_command_t command = {.ranks = 2, .dtype = WEFT_DTYPE_F32};
    int positional = 0;
    int code = wefti_parse_options(argc, argv, &wefti_algos_command, handle, &command, &positional);
    if (code != EXIT_OK) {
        return code < 0 ? EXIT_OK : code;
    }
    command.path = positional > 0 ? argv[1] : NULL;
    if (positional > 1 || (positional == 1 && !wefti_msccl_is_path(argv[1]))) {
        return wefti_usage_error("algos", "unexpected argument '%s'", argv[positional]);
    }
    if (command.algorithm != NULL && wefti_msccl_is_path(command.algorithm)) {
        if (command.path != NULL) {
            return wefti_usage_error("algos", "--algo %s and %s exclude each other",
                                     command.algorithm, command.path);
        }
        command.path = command.algorithm;
    }
    uint64_t placed = 0;
    for (uint32_t host = 0; host < command.host_count; host++) {
        placed += command.hosts[host];
    }
    if (placed > MAX_RANKS) {
        return wefti_usage_error("algos", "--ranks-per-host: too many ranks: %llu, at most %u",
                                 (unsigned long long)placed, MAX_RANKS);
    }
    command.ranks = placed > 0 && !command.ranks_given ? (uint32_t)placed : command.ranks;
    code = command.path != NULL ? load_file(&command) : EXIT_OK;
    if (code != EXIT_OK) {
        weft_registry_destroy(command.registry);
        return code;
    }
    if (command.round_robin && placed == command.ranks) {
        deal_ranks(&command);
    } else {
        command.round_robin = false; /* one host, or sizes that the check of parameters refuses */
    }
    wefti_costs_default(&command.costs, NULL);
    wefti_costs_set_net(&command.costs, command.verbs);
    weft_status_t status = WEFT_OK;
    const char *costs_of_programs = getenv("WEFT_COSTS");
    if (command.costs_path == NULL && costs_of_programs != NULL && costs_of_programs[0] != '\0') {
        command.costs_path = costs_of_programs;
    }
    if (command.costs_path != NULL) {
        status = wefti_costs_load(&command.costs, command.costs_path, NULL);
    }
    wefti_text_init(&command.text, NULL);
    wefti_json_init(&command.writer, &command.text, true);
    wefti_json_begin_object(&command.writer, NULL);
    wefti_json_int(&command.writer, "ranks", command.ranks);
    wefti_json_string(&command.writer, "costs", command.costs.name);
    wefti_json_begin_array(&command.writer, "rows");
    if (status >= 0) {
        status = show_all(&command);
    }
    wefti_json_end_array(&command.writer);
    wefti_json_end_object(&command.writer);
    if (status >= 0 && command.json && !command.text.failed) {
        puts(command.text.data);
    }
    wefti_text_deinit(&command.text);
    wefti_costs_deinit(&command.costs);
    weft_registry_destroy(command.registry);
    if (status == (weft_status_t)1) {
        return wefti_usage_error("algos", "no operator matches these options");
    }
    return status < 0 ? wefti_status_error("algos", status) : EXIT_OK;
}
