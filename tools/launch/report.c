/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tools/launch/ranks.h"

/* A rank that noticed the failure of another one: its message is printed after that one's. */
static bool is_echo(const rank_process_t *rank)
{
    return rank->report.status == WEFT_ERR_ABORTED;
}

static bool was_signalled(const rank_process_t *rank)
{
    return rank->ended && WIFSIGNALED(rank->wait_status);
}

static bool said_before(const rank_process_t *ranks, uint32_t index)
{
    for (uint32_t i = 0; i < index; i++) {
        if (strcmp(ranks[i].report.message, ranks[index].report.message) == 0) {
            return true;
        }
    }
    return false;
}

/* "weft run: rank 1 (pid 17, host b) ended", in one write: launchers of hosts share a terminal. */
static WEFT_PRINTF(3, 4) void print_of(const char *command, const rank_process_t *rank,
                                       const char *format, ...)
{
    char what[1536];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    fprintf(stderr, "weft %s: rank %u (pid %d%s%s) %s\n", command, rank->rank, (int)rank->pid,
            rank->host != NULL ? ", host " : "", rank->host != NULL ? rank->host : "", what);
}

static void name_deaths(const char *command, const rank_process_t *ranks, uint32_t count,
                        bool by_us)
{
    for (uint32_t i = 0; i < count; i++) {
        const rank_process_t *rank = &ranks[i];
        if (!was_signalled(rank) || rank->killed != by_us) {
            continue;
        }
        if (by_us) {
            print_of(command, rank, "stopped responding and was killed");
        } else {
            wefti_rank_report_end(command, rank, "");
        }
    }
}

void wefti_rank_report_end(const char *command, const rank_process_t *rank, const char *what)
{
    if (was_signalled(rank)) {
        print_of(command, rank, "was killed by signal %d (%s)%s", WTERMSIG(rank->wait_status),
                 strsignal(WTERMSIG(rank->wait_status)), what);
    } else if (rank->report.status < 0) {
        print_of(command, rank, "failed: %s%s", rank->report.message, what);
    } else {
        print_of(command, rank, "exited with status %d%s", WEXITSTATUS(rank->wait_status), what);
    }
}

/* Ranks that ran a function of ours. */
static int report_ranks(const char *command, const rank_process_t *ranks, uint32_t count)
{
    bool have_cause = false, deaths = false, silent = false, explained = false;
    for (uint32_t i = 0; i < count; i++) {
        const rank_process_t *rank = &ranks[i];
        bool cause = rank->report.status < 0 && !is_echo(rank);
        have_cause = have_cause || cause;
        /* A rank whose wait timed out does not explain why others stopped responding. */
        explained = explained || (cause && rank->report.status != WEFT_ERR_TIMEOUT);
        deaths = deaths || (was_signalled(rank) && !rank->killed);
        silent = silent || (was_signalled(rank) && rank->killed);
    }
    silent = silent && !deaths && !explained;
    int code = deaths || silent ? EXIT_RUN_FAILED : EXIT_OK;
    if (deaths || silent) {
        name_deaths(command, ranks, count, silent);
    }
    for (uint32_t i = 0; i < count; i++) {
        const rank_process_t *rank = &ranks[i];
        if (rank->report.status >= 0 || (have_cause && is_echo(rank))) {
            continue;
        }
        int own = (int)wefti_exit_code((weft_status_t)rank->report.status);
        code = code == EXIT_OK ? own : code;
        if (!said_before(ranks, i)) {
            fprintf(stderr, "weft %s: %s\n", command, rank->report.message);
        }
    }
    for (uint32_t i = 0; i < count && code == EXIT_OK; i++) {
        if (WIFEXITED(ranks[i].wait_status) && WEXITSTATUS(ranks[i].wait_status) != 0) {
            code = WEXITSTATUS(ranks[i].wait_status);
        }
    }
    return code;
}

/* Programs have reported their errors themselves, but do not know which of them failed first. */
static int report_programs(const rank_set_t *set)
{
    const rank_process_t *first = NULL;
    for (uint32_t i = 0; i < set->count; i++) {
        const rank_process_t *rank = &set->ranks[i];
        if (rank->ended && !rank->killed && rank->wait_status != 0 &&
            (first == NULL || rank->ended_as < first->ended_as)) {
            first = rank;
        }
    }
    if (first == NULL) {
        return EXIT_OK;
    }
    if (first->report.status < 0) {
        fprintf(stderr, "weft %s: %s\n", set->command, first->report.message);
        return (int)wefti_exit_code((weft_status_t)first->report.status);
    }
    if (!set->speaks || WIFSIGNALED(first->wait_status)) {
        wefti_rank_report_end(set->command, first, "");
    }
    return WIFSIGNALED(first->wait_status) ? 128 + WTERMSIG(first->wait_status) /* as in a shell */
                                           : WEXITSTATUS(first->wait_status);
}

/* Ranks that have ended well, those that run, and processes that are about to join them. */
static void count_good(const rank_process_t *ranks, uint32_t count, uint32_t *out_done,
                       uint32_t *out_running, uint32_t *out_joining)
{
    *out_done = *out_running = *out_joining = 0;
    for (uint32_t i = 0; i < count; i++) {
        const rank_process_t *rank = &ranks[i];
        *out_running += !rank->ended && !rank->joins;
        *out_joining += !rank->ended && rank->joins;
        *out_done += rank->ended && rank->wait_status == 0;
    }
}

/* Why ranks have ended that the others did without; they have reported that they did. */
static void report_dropped(const char *command, const rank_process_t *ranks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ranks[i].report.status < 0 && !is_echo(&ranks[i])) {
            fprintf(stderr, "weft %s: rank %u: %s\n", command, ranks[i].rank,
                    ranks[i].report.message);
        }
    }
}

bool wefti_ranks_must_end(const rank_process_t *ranks, uint32_t count, uint32_t min_ranks)
{
    uint32_t done, running, joining;
    count_good(ranks, count, &done, &running, &joining);
    return min_ranks == 0 || done + running == 0 || done + running + joining < min_ranks;
}

int wefti_ranks_report(const rank_set_t *set)
{
    uint32_t done, running, joining;
    count_good(set->ranks, set->count, &done, &running, &joining);
    if (set->min_ranks > 0 && done >= set->min_ranks) {
        report_dropped(set->command, set->ranks, set->count);
        return EXIT_OK;
    }
    return set->program ? report_programs(set) : report_ranks(set->command, set->ranks, set->count);
}

/* ---- lines ---- */

#define LINE_BYTES 4096u

typedef struct half_line {
    char *data;
    size_t used;
} half_line_t;

struct rank_lines {
    uint32_t world_size;
    bool tag;
    half_line_t halves[]; /* two per rank */
};

rank_lines_t *wefti_rank_lines_create(uint32_t world_size, bool tag)
{
    rank_lines_t *lines = calloc(1, sizeof *lines + 2 * world_size * sizeof *lines->halves);
    if (lines != NULL) {
        lines->world_size = world_size;
        lines->tag = tag;
    }
    return lines;
}

/* One write: launchers of several hosts may share standard error. */
static void print_line(FILE *file, uint32_t rank, const half_line_t *half, const char *data,
                       size_t bytes)
{
    char tag[16];
    size_t used = (size_t)snprintf(tag, sizeof tag, "[%u] ", rank);
    char *line = malloc(used + half->used + bytes + 1);
    if (line == NULL) {
        return;
    }
    memcpy(line, tag, used);
    if (half->used > 0) {
        memcpy(line + used, half->data, half->used);
        used += half->used;
    }
    memcpy(line + used, data, bytes);
    used += bytes;
    if (bytes == 0 || data[bytes - 1] != '\n') {
        line[used++] = '\n';
    }
    fwrite(line, 1, used, file);
    free(line);
}

/* Keeps what has no end yet; lines that are too long are cut in pieces. */
static void keep_half(FILE *file, uint32_t rank, half_line_t *half, const char *data, size_t bytes)
{
    half->data = half->data != NULL ? half->data : malloc(LINE_BYTES);
    if (half->data == NULL || half->used + bytes > LINE_BYTES) {
        print_line(file, rank, half, data, bytes);
        half->used = 0;
        return;
    }
    memcpy(half->data + half->used, data, bytes);
    half->used += bytes;
}

void wefti_rank_lines_add(rank_lines_t *lines, uint32_t rank, int stream, const char *data,
                          size_t bytes)
{
    FILE *file = stream == 0 ? stdout : stderr;
    if (!lines->tag) {
        fwrite(data, 1, bytes, file);
        fflush(file);
        return;
    }
    half_line_t *half = &lines->halves[2 * rank + (uint32_t)stream];
    while (bytes > 0) {
        const char *end = memchr(data, '\n', bytes);
        size_t now = end != NULL ? (size_t)(end - data) + 1 : bytes;
        if (end != NULL) {
            print_line(file, rank, half, data, now);
            half->used = 0;
        } else {
            keep_half(file, rank, half, data, now);
        }
        data += now;
        bytes -= now;
    }
    fflush(file);
}

void wefti_rank_lines_destroy(rank_lines_t *lines)
{
    for (uint32_t i = 0; lines != NULL && i < 2 * lines->world_size; i++) {
        if (lines->halves[i].used > 0) {
            print_line(i % 2 == 0 ? stdout : stderr, i / 2, &lines->halves[i], "", 0);
        }
        free(lines->halves[i].data);
    }
    free(lines);
}
