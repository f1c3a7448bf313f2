/* SPDX-License-Identifier: Apache-2.0 */
/* weft ps: the worlds of this user with ranks on this host, and what all their ranks are doing. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "tools/output.h"
#include "tools/tool.h"
#include "tools/worlds.h"

enum { KEY_JSON = 256, KEY_WATCH, KEY_WAIT, KEY_DUMP };

static const option_def_t own_options[] = {
    {KEY_WATCH, "watch", "S", "print again every S seconds, until Ctrl-C"},
    {KEY_WAIT, "wait", "S",
     "wait up to S seconds for ranks on other hosts (default 2); 0: do not ask them"},
    {KEY_DUMP, "dump", "FOLDER",
     "also write the last calls of every rank there, for weft analyze; a rank may be stopped or "
     "stuck"},
    {KEY_JSON, "json", NULL, "print one JSON object"},
    {0, NULL, NULL, NULL},
};

static int run_ps_command(int argc, char **argv);

const command_t wefti_ps_command = {
    .name = "ps",
    .brief = "list running ranks and what they are doing",
    .synopsis = "[PID..] [--watch S] [--wait S] [--dump FOLDER] [--json]",
    .summary =
        "Lists the worlds of this user that have ranks on this host: their ranks on all hosts, "
        "processes, states, the current call and for how long it has run, calls and data per "
        "second over the last second, and resident memory; with PID, only the worlds of these "
        "processes. It reads the flight recorders of the processes, which notice nothing. A rank "
        "of this host asks those on other hosts, over the connections of the world; a host that "
        "does not answer is named.\n"
        "\n"
        "States: waiting (for a rank that has not come to the call), moving (data, or waiting for "
        "data of ranks that have come), queued (behind other calls), running (not blocked), idle "
        "(in no call), stopped (by a signal or debugger), failed (a call ended with an error), "
        "left (the world), "
        "ended (its process), unknown (a rank of another host without a flight recorder).",
    .epilogue = NULL,
    .options = {own_options},
    .run = run_ps_command,
};

/* "3.2 s", "2 min", "5 h" */
static const char *duration(double seconds, char *out, size_t bytes)
{
    if (seconds < 0.1) {
        snprintf(out, bytes, "%.0f ms", seconds * 1e3);
    } else if (seconds < 100) {
        snprintf(out, bytes, "%.1f s", seconds);
    } else if (seconds < 6000) {
        snprintf(out, bytes, "%.0f min", seconds / 60);
    } else {
        snprintf(out, bytes, "%.0f h", seconds / 3600);
    }
    return out;
}

static const char *scaled(double value, char *out, size_t bytes)
{
    static const char *const units[] = {"", "k", "M", "G", "T"};
    uint32_t unit = 0;
    for (; value >= 1000 && unit < 4; unit++) {
        value /= 1000;
    }
    snprintf(out, bytes, value < 10 && unit > 0 ? "%.1f%s" : "%.0f%s", value, units[unit]);
    return out;
}

/* Are ranks on several hosts known? */
static bool spans_hosts(const live_world_t *world)
{
    const char *first = NULL;
    for (size_t i = 0; i < world->count; i++) {
        const char *host = world->ranks[i].host;
        if (first != NULL && host[0] != '\0' && strcmp(host, first) != 0) {
            return true;
        }
        first = first == NULL && host[0] != '\0' ? host : first;
    }
    return false;
}

/* A name of a file, peer or process may hold anything. Returns out. */
#define NAME_BYTES 256u
static const char *printable(const char *name, char out[NAME_BYTES])
{
    wefti_text_t text;
    wefti_text_init(&text, NULL);
    wefti_text_add_printable(&text, name);
    snprintf(out, NAME_BYTES, "%s", text.length > 0 ? text.data : "");
    wefti_text_deinit(&text);
    return out;
}

static void print_head(const live_world_t *world)
{
    const wefti_flight_header_t *header = world->header;
    char name[NAME_BYTES], up[24], of[32] = "";
    if (world->count < header->world_size) {
        snprintf(of, sizeof of, " of %u", header->world_size);
    }
    printf("world %s: %zu%s rank%s, transport %s, up %s\n",
           header->world[0] != '\0' ? printable(header->world, name) : "without an address",
           world->count, of, wefti_plural(header->world_size), header->transport,
           duration(world->seconds, up, sizeof up));
    if (world->count < header->world_size) {
        uint32_t others = header->world_size - (uint32_t)world->count;
        printf("%u rank%s not on this host, of another user, or ended\n", others,
               wefti_plural(others));
    }
    if (spans_hosts(world)) {
        printf("%6s %-12s %8s ", "RANK", "HOST", "PID");
    } else {
        printf("%6s %8s ", "RANK", "PID");
    }
    printf("%-10s %8s %8s %8s %8s  %s\n", "STATE", "FOR", "CALLS/S", "BYTES/S", "MEMORY", "CALL");
}

static void print_rank(const wefti_activity_t *does, bool with_host)
{
    char since[24], calls[24], data[24], memory[24], name[NAME_BYTES];
    printf("%6u ", does->rank);
    if (with_host) {
        printf("%-12s ", printable(does->host, name));
    }
    printf("%8u ", does->pid);
    printf("%-10s %8s %8s %8s %8s  ", printable(does->state, name),
           duration(does->seconds, since, sizeof since),
           scaled(does->calls_per_s, calls, sizeof calls),
           scaled(does->bytes_per_s, data, sizeof data),
           scaled((double)does->memory_bytes, memory, sizeof memory));
    bool is_last = does->in_call == 0 && does->call[0] != '\0';
    printf(is_last ? "(last: %s)" : "%s", printable(does->call, name));
    if (does->in_call != 0 && does->awaits != WEFTI_FLIGHT_NO_RANK) {
        printf(", for rank %u", does->awaits);
    }
    printf("\n");
}

static void print_silent(const live_world_t *world, size_t first, double wait_s)
{
    const char *host = world->ranks[first].host;
    char name[NAME_BYTES];
    if (world->fail[0] != '\0') {
        printf("no answer from other hosts: %s; try again, or run weft ps there: ranks",
               world->fail);
    } else {
        printf("no answer from host %s within %g s: ranks", printable(host, name), wait_s);
    }
    for (size_t i = first; i < world->count; i = wefti_world_next_silent(world, host, i + 1)) {
        printf(" %zu", i);
    }
    printf("\n");
}

static void print_world(const live_world_t *world, double wait_s)
{
    bool with_host = spans_hosts(world);
    print_head(world);
    for (size_t i = 0; i < world->count; i++) {
        if (wefti_activity_is_known(&world->ranks[i])) {
            print_rank(&world->ranks[i], with_host);
        }
    }
    for (size_t i = 0; i < world->count; i++) {
        if (wefti_world_first_silent(world, i)) {
            print_silent(world, i, wait_s);
        }
    }
}

static void json_rank(const wefti_activity_t *does, wefti_json_t *json)
{
    wefti_json_begin_object(json, NULL);
    wefti_json_int(json, "rank", does->rank);
    wefti_json_string(json, "host", does->host);
    wefti_json_int(json, "pid", does->pid);
    wefti_json_string(json, "state", does->state);
    wefti_json_string(json, does->in_call != 0 ? "call" : "last_call",
                      does->call[0] != '\0' ? does->call : NULL);
    wefti_json_double(json, "seconds", does->seconds);
    if (does->awaits != WEFTI_FLIGHT_NO_RANK) {
        wefti_json_int(json, "awaits", does->awaits);
    }
    wefti_json_double(json, "calls_per_s", does->calls_per_s);
    wefti_json_double(json, "bytes_per_s", does->bytes_per_s);
    wefti_json_int(json, "memory_bytes", (int64_t)does->memory_bytes);
    wefti_json_end_object(json);
}

static void json_silent(const live_world_t *world, size_t first, wefti_json_t *json)
{
    const char *host = world->ranks[first].host;
    wefti_json_begin_object(json, NULL);
    wefti_json_string(json, "host", host[0] != '\0' ? host : NULL);
    wefti_json_begin_array(json, "ranks");
    for (size_t i = first; i < world->count; i = wefti_world_next_silent(world, host, i + 1)) {
        wefti_json_int(json, NULL, (int64_t)i);
    }
    wefti_json_end_array(json);
    if (world->fail[0] != '\0') {
        wefti_json_string(json, "reason", world->fail);
    }
    wefti_json_end_object(json);
}

static void json_world(const live_world_t *world, wefti_json_t *json)
{
    wefti_json_begin_object(json, NULL);
    wefti_json_string(json, "world", world->header->world);
    wefti_json_int(json, "world_size", world->header->world_size);
    wefti_json_string(json, "transport", world->header->transport);
    wefti_json_string(json, "launcher", world->header->launcher);
    wefti_json_string(json, "host", world->header->host);
    wefti_json_begin_array(json, "ranks");
    for (size_t i = 0; i < world->count; i++) {
        if (wefti_activity_is_known(&world->ranks[i])) {
            json_rank(&world->ranks[i], json);
        }
    }
    wefti_json_end_array(json);
    wefti_json_begin_array(json, "no_answer");
    for (size_t i = 0; i < world->count; i++) {
        if (wefti_world_first_silent(world, i)) {
            json_silent(world, i, json);
        }
    }
    wefti_json_end_array(json);
    wefti_json_end_object(json);
}

typedef struct ps_options {
    bool json;
    double watch_s; /* 0: once */
    double wait_s;  /* for other hosts */
    const char *folder;
    char **pids; /* [pid_count] */
    int pid_count;
} ps_options_t;

static int handle(void *user, int key, const char *value)
{
    ps_options_t *options = user;
    if (key == KEY_WATCH && (!wefti_parse_double(value, &options->watch_s) ||
                             !(options->watch_s >= 0.1 && options->watch_s <= 86400))) {
        return wefti_usage_error("ps", "--watch: expected 0.1 to 86400 seconds: %s", value);
    }
    if (key == KEY_WAIT && (!wefti_parse_double(value, &options->wait_s) ||
                            !(options->wait_s >= 0 && options->wait_s <= 86400))) {
        return wefti_usage_error("ps", "--wait: expected 0 to 86400 seconds: %s", value);
    }
    options->json = options->json || key == KEY_JSON;
    options->folder = key == KEY_DUMP ? value : options->folder;
    return EXIT_OK;
}

static bool is_wanted(const void *user, const wefti_live_rank_t *rank)
{
    const ps_options_t *options = user;
    bool wanted = options->pid_count == 0;
    for (int i = 0; i < options->pid_count; i++) {
        wanted = wanted || strtol(options->pids[i], NULL, 10) == rank->pid;
    }
    return wanted;
}

/* Each world, as it is looked at: the next one may take time. */
static weft_status_t show_worlds(const wefti_live_ranks_t *ranks, const ps_options_t *options,
                                 wefti_json_t *json)
{
    if (ranks->count == 0 && json == NULL) {
        printf("no ranks found: this user has none on this host\n");
    }
    for (size_t i = 0; i < ranks->count; i++) {
        live_world_t world;
        if (wefti_worlds_continues(ranks, i)) {
            continue;
        }
        WEFT_RETURN_IF_ERROR(wefti_world_init(ranks, i, options->wait_s, &world));
        if (json != NULL) {
            json_world(&world, json);
        } else {
            fputs(i > 0 ? "\n" : "", stdout);
            print_world(&world, options->wait_s);
        }
        wefti_world_deinit(&world);
    }
    return WEFT_OK;
}

static weft_status_t show_json(const wefti_live_ranks_t *ranks, const ps_options_t *options)
{
    output_object_t object;
    wefti_json_t *json = wefti_output_begin(&object);
    wefti_json_begin_array(json, "worlds");
    weft_status_t status = show_worlds(ranks, options, json);
    wefti_json_end_array(json);
    wefti_output_end(&object);
    return status;
}

static int show(const ps_options_t *options)
{
    wefti_live_ranks_t ranks;
    weft_status_t status = wefti_worlds_find(&ranks);
    if (status == WEFT_OK) {
        wefti_worlds_keep(&ranks, is_wanted, options);
    }
    for (size_t i = 0; status == WEFT_OK && options->folder != NULL && i < ranks.count; i++) {
        status = wefti_worlds_continues(&ranks, i)
                     ? WEFT_OK
                     : wefti_world_dump(&ranks, i, options->wait_s, options->folder);
    }
    if (status == WEFT_OK) {
        status = options->json ? show_json(&ranks, options) : show_worlds(&ranks, options, NULL);
    }
    wefti_live_ranks_deinit(&ranks);
    return status < 0 ? wefti_status_error("ps", status) : EXIT_OK;
}

static void pause_for(double seconds)
{
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

static int run_ps_command(int argc, char **argv)
{
    ps_options_t options = {false, 0, 2, NULL, NULL, 0};
    int positional = 0;
    int code = wefti_parse_options(argc, argv, &wefti_ps_command, handle, &options, &positional);
    if (code != EXIT_OK) {
        return code < 0 ? EXIT_OK : code;
    }
    options.pids = argv + 1;
    options.pid_count = positional;
    for (int i = 0; i < positional; i++) {
        long long pid;
        if (!wefti_parse_int(options.pids[i], 1, INT32_MAX, &pid)) {
            return wefti_usage_error("ps", "PID: expected the number of a process: %s",
                                     options.pids[i]);
        }
    }
    bool clear = isatty(STDOUT_FILENO) && !options.json;
    code = show(&options);
    while (code == EXIT_OK && options.watch_s > 0 && fflush(stdout) == 0) {
        pause_for(options.watch_s);
        fputs(clear ? "\033[H\033[J" : "\n", stdout);
        code = show(&options);
    }
    return code;
}
