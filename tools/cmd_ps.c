/* SPDX-License-Identifier: Apache-2.0 */
/* weft ps: the worlds of this user on this host, and what their ranks are doing. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "tools/output.h"
#include "tools/tool.h"
#include "tools/worlds.h"

enum { KEY_JSON = 256, KEY_WATCH, KEY_DUMP };

static const option_def_t own_options[] = {
    {KEY_WATCH, "watch", "S", "print again every S seconds, until Ctrl-C"},
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
    .synopsis = "[PID..] [--watch S] [--dump FOLDER] [--json]",
    .summary =
        "Lists the worlds of this user on this host: ranks, processes, states, the current call "
        "and for how long it has run, calls and data per second over the last second, and "
        "resident memory; with PID, only the worlds of these processes. It reads the flight "
        "recorders of the processes, which notice nothing. "
        "Ranks on other hosts are listed by weft ps there.\n"
        "\n"
        "States: waiting (for a rank that has not come to the call), moving (data, or waiting for "
        "data of ranks that have come), queued (behind other calls), running (not blocked), idle "
        "(in no call), stopped (by a signal or debugger), failed (a call ended with an error).",
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

static size_t ranks_here(const wefti_live_ranks_t *ranks, size_t first)
{
    size_t count = 1;
    while (first + count < ranks->count && wefti_worlds_continues(ranks, first + count)) {
        count++;
    }
    return count;
}

static void print_world(const wefti_live_ranks_t *ranks, size_t first)
{
    const wefti_flight_header_t *header = &ranks->list[first].image->header;
    wefti_flight_clock_t clock = wefti_flight_clock(ranks->list[first].image);
    size_t here = ranks_here(ranks, first);
    char up[24], of[32] = "";
    wefti_text_t world; /* the name may hold anything */
    wefti_text_init(&world, NULL);
    wefti_text_add_printable(&world, header->world);
    if (here < header->world_size) {
        snprintf(of, sizeof of, " of %u", header->world_size);
    }
    printf("%sworld %s: %zu%s rank%s, transport %s, up %s\n", first > 0 ? "\n" : "",
           world.length > 0 ? world.data : "without an address", here, of,
           wefti_plural(header->world_size), header->transport,
           duration((double)wefti_flight_now(&clock) * 1e-9, up, sizeof up));
    wefti_text_deinit(&world);
    if (here < header->world_size) {
        uint32_t others = header->world_size - (uint32_t)here;
        printf(
            "%u rank%s not on this host, of another user, or ended: weft ps on other hosts lists "
            "theirs\n",
            others, wefti_plural(others));
    }
    printf("%6s %8s %-10s %8s %8s %8s %8s  %s\n", "RANK", "PID", "STATE", "FOR", "CALLS/S",
           "BYTES/S", "MEMORY", "CALL");
}

static void print_rank(const wefti_activity_t *does)
{
    char since[24], calls[24], data[24], memory[24];
    printf("%6u %8d %-10s %8s %8s %8s %8s  ", does->rank, (int)does->pid, does->state,
           duration(does->seconds, since, sizeof since),
           scaled(does->calls_per_s, calls, sizeof calls),
           scaled(does->bytes_per_s, data, sizeof data),
           scaled((double)does->memory_bytes, memory, sizeof memory));
    if (!does->in_call) {
        printf("%s%s%s\n", does->call[0] != '\0' ? "(last: " : "", does->call,
               does->call[0] != '\0' ? ")" : "");
    } else if (does->awaits != WEFTI_FLIGHT_NO_RANK) {
        printf("%s, for rank %u\n", does->call, does->awaits);
    } else {
        printf("%s\n", does->call);
    }
}

static void print_text(const wefti_live_ranks_t *ranks, wefti_flight_record_t *calls)
{
    if (ranks->count == 0) {
        printf("no ranks found: this user has none on this host\n");
    }
    for (size_t i = 0; i < ranks->count; i++) {
        wefti_activity_t does;
        wefti_live_rank_observe(&ranks->list[i], calls, &does);
        if (!wefti_worlds_continues(ranks, i)) {
            print_world(ranks, i);
        }
        print_rank(&does);
    }
}

static void json_rank(const wefti_activity_t *does, wefti_json_t *json)
{
    wefti_json_begin_object(json, NULL);
    wefti_json_int(json, "rank", does->rank);
    wefti_json_int(json, "pid", does->pid);
    wefti_json_string(json, "state", does->state);
    wefti_json_string(json, does->in_call ? "call" : "last_call",
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

static void print_json(const wefti_live_ranks_t *ranks, wefti_flight_record_t *calls)
{
    output_object_t object;
    wefti_json_t *json = wefti_output_begin(&object);
    wefti_json_begin_array(json, "worlds");
    for (size_t i = 0; i < ranks->count; i++) {
        const wefti_flight_header_t *header = &ranks->list[i].image->header;
        wefti_activity_t does;
        wefti_live_rank_observe(&ranks->list[i], calls, &does);
        if (!wefti_worlds_continues(ranks, i)) {
            wefti_json_begin_object(json, NULL);
            wefti_json_string(json, "world", header->world);
            wefti_json_int(json, "world_size", header->world_size);
            wefti_json_string(json, "transport", header->transport);
            wefti_json_string(json, "launcher", header->launcher);
            wefti_json_string(json, "host", header->host);
            wefti_json_begin_array(json, "ranks");
        }
        json_rank(&does, json);
        if (i + 1 == ranks->count || !wefti_worlds_continues(ranks, i + 1)) {
            wefti_json_end_array(json);
            wefti_json_end_object(json);
        }
    }
    wefti_json_end_array(json);
    wefti_output_end(&object);
}

typedef struct ps_options {
    bool json;
    double watch_s; /* 0: once */
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

static int show(const ps_options_t *options, wefti_flight_record_t *calls)
{
    wefti_live_ranks_t ranks;
    weft_status_t status = wefti_worlds_find(&ranks);
    if (status == WEFT_OK) {
        wefti_worlds_keep(&ranks, is_wanted, options);
    }
    for (size_t i = 0; status == WEFT_OK && options->folder != NULL && i < ranks.count; i++) {
        status = wefti_flight_dump_in(ranks.list[i].image, options->folder, "weft ps --dump");
    }
    if (status < 0) {
        wefti_live_ranks_deinit(&ranks);
        return wefti_status_error("ps", status);
    }
    if (options->json) {
        print_json(&ranks, calls);
    } else {
        print_text(&ranks, calls);
    }
    wefti_live_ranks_deinit(&ranks);
    return EXIT_OK;
}

static void pause_for(double seconds)
{
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

static int run_ps_command(int argc, char **argv)
{
    ps_options_t options = {false, 0, NULL, NULL, 0};
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
    wefti_flight_record_t *calls = malloc(WEFTI_FLIGHT_CALLS * sizeof *calls);
    if (calls == NULL) {
        return wefti_status_error("ps", wefti_error(WEFT_ERR_NO_MEMORY, "out of memory"));
    }
    bool clear = isatty(STDOUT_FILENO) && !options.json;
    code = show(&options, calls);
    while (code == EXIT_OK && options.watch_s > 0 && fflush(stdout) == 0) {
        pause_for(options.watch_s);
        fputs(clear ? "\033[H\033[J" : "\n", stdout);
        code = show(&options, calls);
    }
    free(calls);
    return code;
}
