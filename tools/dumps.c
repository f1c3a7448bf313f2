/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/dumps.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/flight/image.h"
#include "tools/tool.h"

#define WORLD_SIZE_MAX 16384u /* the analysis has a matrix of ranks */

/* ---- one dump ---- */

/* In place: what a file holds must not control a terminal. */
static void make_printable(char *string)
{
    for (unsigned char *at = (unsigned char *)string; *at != '\0';) {
        size_t length = wefti_utf8_length(at);
        bool shown = length > 0 && !wefti_utf8_control(at, length);
        length = length > 0 ? length : 1;
        if (!shown) {
            memset(at, '?', length);
        }
        at += length;
    }
}

/* The tree is the dump's own. */
static const char *text_of(const dump_t *dump, const wefti_json_node_t *object, const char *key)
{
    const wefti_json_node_t *node = wefti_json_get(&dump->tree, object, key);
    if (node == NULL || node->kind != WEFTI_JSON_STRING) {
        return NULL;
    }
    make_printable((char *)(uintptr_t)node->string);
    return node->string;
}

static double number_of(const dump_t *dump, const wefti_json_node_t *object, const char *key,
                        double otherwise)
{
    const wefti_json_node_t *node = wefti_json_get(&dump->tree, object, key);
    return node != NULL && node->kind == WEFTI_JSON_NUMBER ? node->number : otherwise;
}

/* otherwise: also for numbers that are out of range. */
static uint32_t whole_of(const dump_t *dump, const wefti_json_node_t *object, const char *key,
                         uint32_t otherwise)
{
    double number = number_of(dump, object, key, otherwise);
    return number >= 0 && number <= UINT32_MAX ? (uint32_t)number : otherwise;
}

static void read_call(const dump_t *dump, const wefti_json_node_t *object, dump_call_t *out)
{
    const char *kind = text_of(dump, object, "kind"), *state = text_of(dump, object, "state");
    const char *text = text_of(dump, object, "call");
    double ended = number_of(dump, object, "ended_ns", -1);
    kind = kind != NULL ? kind : "";
    state = state != NULL ? state : "";
    *out = (dump_call_t){
        .group = whole_of(dump, object, "group", 0),
        .seq = whole_of(dump, object, "seq", 0),
        .kind = strcmp(kind, "send") == 0   ? DUMP_SEND
                : strcmp(kind, "recv") == 0 ? DUMP_RECV
                                            : DUMP_COLLECTIVE,
        .text = text != NULL ? text : kind,
        .peer = whole_of(dump, object, "peer", DUMP_NO_RANK),
        .stream = whole_of(dump, object, "stream", 0),
        .done = strcmp(state, "done") == 0,
        .queued = strcmp(state, "queued") == 0,
        .status = text_of(dump, object, "status"),
        .awaits = whole_of(dump, object, "awaits", DUMP_NO_RANK),
        .issued = dump->created + number_of(dump, object, "issued_ns", 0) * 1e-3,
        .ended = ended >= 0 ? dump->created + ended * 1e-3 : DUMP_NO_TIME,
    };
}

static weft_status_t read_dump(dumps_t *dumps, dump_t *dump)
{
    const wefti_json_node_t *top = dump->tree.nodes;
    const wefti_json_node_t *calls = wefti_json_get(&dump->tree, top, "calls");
    const wefti_json_node_t *error = wefti_json_get(&dump->tree, top, "error");
    dump->rank = whole_of(dump, top, "rank", DUMP_NO_RANK);
    dump->world_size = whole_of(dump, top, "world_size", 0);
    if (dump->world_size > WORLD_SIZE_MAX) {
        return wefti_error(WEFT_ERR_FORMAT, "world_size: too large: %u, at most %u",
                           dump->world_size, WORLD_SIZE_MAX);
    }
    if (whole_of(dump, top, "weft_dump", 0) != 1 || dump->rank >= dump->world_size ||
        calls == NULL || calls->kind != WEFTI_JSON_ARRAY) {
        return wefti_error(WEFT_ERR_FORMAT, "not a dump of weft_context_dump");
    }
    dump->pid = whole_of(dump, top, "pid", 0);
    dump->world = text_of(dump, top, "world");
    dump->host = text_of(dump, top, "host");
    dump->reason = text_of(dump, top, "reason");
    dump->error = error != NULL ? text_of(dump, error, "message") : NULL;
    double created = number_of(dump, top, "created_unix_us", 0);
    dumps->origin = dumps->count == 1 ? created : dumps->origin; /* of the first dump */
    dump->created = created - dumps->origin;
    dump->dumped = dump->created + number_of(dump, top, "dumped_ns", 0) * 1e-3;
    dump->calls = calloc(calls->count + 1u, sizeof *dump->calls);
    WEFT_RETURN_IF_NO_MEMORY(dump->calls);
    for (const wefti_json_node_t *at = wefti_json_first(&dump->tree, calls); at != NULL;
         at = wefti_json_after(&dump->tree, at)) {
        read_call(dump, at, &dump->calls[dump->call_count++]);
    }
    return WEFT_OK;
}

static void dump_deinit(dump_t *dump)
{
    free((void *)(uintptr_t)dump->path);
    free(dump->calls);
    wefti_json_tree_deinit(&dump->tree);
}

static weft_status_t load(dumps_t *dumps, const char *path, dump_t *out)
{
    wefti_mapping_t file;
    *out = (dump_t){.path = strdup(path)};
    WEFT_RETURN_IF_NO_MEMORY(out->path);
    weft_status_t status = wefti_file_map(path, &file);
    if (status < 0) {
        return status;
    }
    status = wefti_json_parse((const char *)file.data, file.size_bytes, NULL, &out->tree);
    wefti_file_unmap(&file);
    status = status < 0 ? status : read_dump(dumps, out);
    return status < 0 ? wefti_error_prefix(status, "%s", path) : WEFT_OK;
}

/* ---- all of them ---- */

static int add_file(dumps_t *dumps, const char *command, const char *path)
{
    weft_status_t status = wefti_array_reserve(NULL, &dumps->list, &dumps->capacity,
                                               dumps->count + 1, sizeof *dumps->list);
    if (status == WEFT_OK) {
        dumps->count++;
        status = load(dumps, path, &dumps->list[dumps->count - 1]);
    }
    return status < 0 ? wefti_status_error(command, status) : EXIT_OK;
}

static int only_dumps(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return strncmp(entry->d_name, "weft-rank", 9) == 0 && length > 5 &&
           strcmp(entry->d_name + length - 5, ".json") == 0;
}

int wefti_dumps_add(dumps_t *dumps, const char *command, const char *path)
{
    struct stat facts;
    if (stat(path, &facts) != 0 || !S_ISDIR(facts.st_mode)) {
        return add_file(dumps, command, path);
    }
    struct dirent **names = NULL;
    int count = scandir(path, &names, only_dumps, alphasort);
    int code = count > 0
                   ? EXIT_OK
                   : wefti_usage_error(command, "no dumps (weft-rank*.json) in folder %s", path);
    for (int i = 0; i < count; i++) {
        char file[PATH_MAX];
        snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name);
        code = code == EXIT_OK ? add_file(dumps, command, file) : code;
        free(names[i]);
    }
    free(names);
    return code;
}

static int by_rank(const void *a, const void *b)
{
    const dump_t *x = a, *y = b;
    if (x->rank != y->rank) {
        return x->rank < y->rank ? -1 : 1;
    }
    return x->dumped > y->dumped ? -1 : x->dumped < y->dumped; /* the latest first */
}

int wefti_dumps_complete(dumps_t *dumps, const char *command)
{
    const dump_t *first = &dumps->list[0];
    size_t count = dumps->count;
    qsort(dumps->list, count, sizeof *dumps->list, by_rank);
    const char *theirs = first->world != NULL ? first->world : "";
    for (size_t i = 1; i < count; i++) {
        const dump_t *dump = &dumps->list[i];
        const char *ours = dump->world != NULL ? dump->world : "";
        if (dump->world_size != first->world_size || strcmp(ours, theirs) != 0) {
            return wefti_usage_error(command,
                                     "dumps of different worlds: %s is of \"%s\" with %u ranks, %s "
                                     "of \"%s\" with %u ranks",
                                     first->path, theirs, first->world_size, dump->path, ours,
                                     dump->world_size);
        }
    }
    dumps->world_size = first->world_size;
    dumps->count = 1;
    for (size_t i = 1; i < count; i++) {
        dump_t *dump = &dumps->list[i];
        if (dumps->list[dumps->count - 1].rank == dump->rank) {
            dump_deinit(dump);
        } else {
            dumps->list[dumps->count++] = *dump;
        }
    }
    return EXIT_OK;
}

void wefti_dumps_deinit(dumps_t *dumps)
{
    for (size_t i = 0; i < dumps->count; i++) {
        dump_deinit(&dumps->list[i]);
    }
    wefti_free(NULL, dumps->list);
}

const dump_t *wefti_dumps_find(const dumps_t *dumps, uint32_t rank)
{
    for (size_t i = 0; i < dumps->count; i++) {
        if (dumps->list[i].rank == rank) {
            return &dumps->list[i];
        }
    }
    return NULL;
}

/* ---- groups ---- */

/* In some dump. */
static const wefti_json_node_t *find_group(const dumps_t *dumps, uint32_t id,
                                           const dump_t **out_dump)
{
    for (size_t i = 0; i < dumps->count; i++) {
        const dump_t *dump = &dumps->list[i];
        const wefti_json_node_t *groups = wefti_json_get(&dump->tree, dump->tree.nodes, "groups");
        const wefti_json_node_t *at = groups != NULL ? wefti_json_first(&dump->tree, groups) : NULL;
        for (; at != NULL; at = wefti_json_after(&dump->tree, at)) {
            if (whole_of(dump, at, "id", 0) == id) {
                *out_dump = dump;
                return at;
            }
        }
    }
    return NULL;
}

bool wefti_dumps_is_member(const dumps_t *dumps, uint32_t group, uint32_t rank)
{
    const dump_t *dump = NULL;
    const wefti_json_node_t *found = find_group(dumps, group, &dump);
    if (group == WEFTI_FLIGHT_ALONE) {
        return false;
    }
    if (found == NULL && group > WEFTI_FLIGHT_ALONE) {
        dump = wefti_dumps_find(dumps, rank);
        for (uint32_t i = 0; dump != NULL && i < dump->call_count; i++) {
            if (dump->calls[i].group == group) {
                return true;
            }
        }
        return false;
    }
    const wefti_json_node_t *ranks =
        found != NULL ? wefti_json_get(&dump->tree, found, "ranks") : NULL;
    if (ranks == NULL) {
        return true;
    }
    for (const wefti_json_node_t *at = wefti_json_first(&dump->tree, ranks); at != NULL;
         at = wefti_json_after(&dump->tree, at)) {
        if (at->number == rank) {
            return true;
        }
    }
    return false;
}

const char *wefti_dumps_group_name(const dumps_t *dumps, uint32_t group, char *out, size_t bytes)
{
    const dump_t *dump = NULL;
    const wefti_json_node_t *found = find_group(dumps, group, &dump);
    if (group <= WEFTI_FLIGHT_ALONE) {
        static const char *const names[] = {"no group", "the world", "the world's control calls",
                                            "the rank's own control calls"};
        snprintf(out, bytes, "%s", names[group]);
        return out;
    }
    if (found == NULL) {
        snprintf(out, bytes, "group %08x", group);
        return out;
    }
    uint32_t channel = whole_of(dump, found, "channel", 0);
    const wefti_json_node_t *ranks = wefti_json_get(&dump->tree, found, "ranks");
    if (ranks == NULL) {
        snprintf(out, bytes, "the group of all %u ranks (channel %u)", dumps->world_size, channel);
        return out;
    }
    size_t used = (size_t)snprintf(out, bytes, "the group of rank%s", wefti_plural(ranks->count));
    const wefti_json_node_t *at = wefti_json_first(&dump->tree, ranks);
    for (; at != NULL && used + 40 < bytes; at = wefti_json_after(&dump->tree, at)) {
        if (at->kind == WEFTI_JSON_NUMBER && at->number >= 0 && at->number < dumps->world_size) {
            used += (size_t)snprintf(out + used, bytes - used, " %u", (uint32_t)at->number);
        }
    }
    snprintf(out + used, bytes - used, "%s (channel %u)", at != NULL ? " .." : "", channel);
    return out;
}

/* ---- timeline ---- */

static void add_name(wefti_json_t *json, const char *what, uint32_t pid, uint32_t tid,
                     const char *name)
{
    wefti_json_begin_object(json, NULL);
    wefti_json_string(json, "name", what);
    wefti_json_string(json, "ph", "M");
    wefti_json_int(json, "pid", pid);
    wefti_json_int(json, "tid", tid);
    wefti_json_begin_object(json, "args");
    wefti_json_string(json, "name", name);
    wefti_json_end_object(json);
    wefti_json_end_object(json);
}

/* Rows of one rank: one per group for collectives, and one for its sends and receives. */
typedef struct row {
    uint32_t group;
    bool pairs;
    double end; /* of what is on it */
} row_t;

#define ROWS_MAX 512u

static uint32_t find_row(row_t *rows, uint32_t *count, const dump_call_t *call)
{
    bool pairs = call->kind != DUMP_COLLECTIVE;
    uint32_t i = 0;
    while (i < *count && (rows[i].group != call->group || rows[i].pairs != pairs)) {
        i++;
    }
    if (i == *count && i < ROWS_MAX) {
        rows[(*count)++] = (row_t){call->group, pairs, DUMP_NO_TIME};
    }
    return i < ROWS_MAX ? i : ROWS_MAX - 1;
}

/* Calls of a row run one after the other: one begins when it was issued, and the one before it has
 * ended. Calls without an end of their own took about a microsecond at most. */
static void add_call(wefti_json_t *json, const dump_t *dump, const dump_call_t *call, double origin,
                     uint32_t tid, row_t *row)
{
    double begin = call->issued > row->end ? call->issued : row->end;
    double end = call->ended > DUMP_NO_TIME ? call->ended : call->done ? begin : dump->dumped;
    end = end > begin ? end : begin;
    row->end = end;
    wefti_json_begin_object(json, NULL);
    wefti_json_string(json, "name", call->text);
    wefti_json_string(json, "ph", "X");
    wefti_json_int(json, "pid", dump->rank);
    wefti_json_int(json, "tid", tid);
    wefti_json_double(json, "ts", begin - origin);
    wefti_json_double(json, "dur", end - begin);
    wefti_json_begin_object(json, "args");
    wefti_json_int(json, "seq", call->seq);
    wefti_json_int(json, "stream", call->stream);
    wefti_json_string(json, "status",
                      call->status != NULL ? call->status
                      : call->done         ? "ok"
                                           : "not done");
    if (call->awaits != DUMP_NO_RANK) {
        wefti_json_int(json, "awaits_rank", call->awaits);
    }
    wefti_json_end_object(json);
    wefti_json_end_object(json);
}

static void add_rank(const dumps_t *dumps, const dump_t *dump, double origin, uint32_t *next_tid,
                     wefti_json_t *json)
{
    row_t rows[ROWS_MAX];
    uint32_t count = 0, first = *next_tid;
    char name[200];
    snprintf(name, sizeof name, "rank %u (host %s, pid %u)", dump->rank,
             dump->host != NULL ? dump->host : "unknown", dump->pid);
    add_name(json, "process_name", dump->rank, first, name);
    for (uint32_t i = 0; i < dump->call_count; i++) {
        uint32_t row = find_row(rows, &count, &dump->calls[i]);
        add_call(json, dump, &dump->calls[i], origin, first + row, &rows[row]);
    }
    for (uint32_t i = 0; i < count; i++) {
        char group[160];
        wefti_dumps_group_name(dumps, rows[i].group, group, sizeof group);
        snprintf(name, sizeof name, "%s%s", rows[i].pairs ? "send/recv in " : "", group);
        add_name(json, "thread_name", dump->rank, first + i, name);
    }
    *next_tid = first + count + 1;
}

weft_status_t wefti_dumps_timeline(const dumps_t *dumps, const char *path)
{
    wefti_text_t text;
    wefti_json_t json;
    uint32_t next_tid = 1;
    double origin = 0;
    for (size_t i = 0; i < dumps->count; i++) {
        const dump_t *dump = &dumps->list[i];
        double first = dump->call_count > 0 ? dump->calls[0].issued : dump->dumped;
        origin = i == 0 || first < origin ? first : origin;
    }
    wefti_text_init(&text, NULL);
    wefti_json_init(&json, &text, false);
    wefti_json_begin_object(&json, NULL);
    wefti_json_string(&json, "displayTimeUnit", "ms");
    wefti_json_begin_array(&json, "traceEvents");
    for (size_t i = 0; i < dumps->count; i++) {
        add_rank(dumps, &dumps->list[i], origin, &next_tid, &json);
    }
    wefti_json_end_array(&json);
    wefti_json_end_object(&json);
    wefti_text_add(&text, "\n");
    weft_status_t status = wefti_file_write_text(path, &text);
    wefti_text_deinit(&text);
    return status;
}
