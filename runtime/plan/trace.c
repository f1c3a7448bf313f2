/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The timeline as Chrome trace JSON: one process per rank, one thread per stream (and per queue of a
 * device, with its commands by the device's clock), collectives with
 * their bytes, and an arrow from where an event is recorded to where a stream waits for it. Every
 * rank writes its fragment; rank 0 joins them.
 *
 * Perfetto takes thread ids as the kernel gives them out: no two threads share one, in whatever
 * process they are, and the thread whose id is its process's is the main one. It takes ids of
 * arrows as integers.
 */
#include "runtime/plan/session.h"

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CHUNK_BYTES 65536u /* per rank and all-gather */
/* Signals are points in time. They are drawn this long, so that arrows start in a slice. */
#define ARROW_NS 200u

/* What the file shows, the same on all ranks except for run numbers: eval is not collective. */
typedef struct span {
    uint64_t first_run;             /* of this rank */
    uint64_t first_step, last_step; /* 0: the file holds no step */
    uint64_t origin_ns;
} span_t;

/* Streams, then the queues of a device. All ranks have as many. */
static uint32_t row_count(const weft_session_t *session)
{
    return session->plan->stream_count +
           (session->context->device != NULL ? wefti_exec_device_queue_count(session) : 0);
}

/* NULL: of a queue whose times are not known. */
static const wefti_history_t *history_of(const weft_session_t *session, uint32_t row)
{
    const uint32_t streams = session->plan->stream_count;
    return row < streams                      ? &session->cursors[row].history
           : session->queue_histories != NULL ? &session->queue_histories[row - streams]
                                              : NULL;
}

static uint32_t thread_id(const weft_session_t *session, uint32_t stream)
{
    uint32_t rank = session->endpoint->rank;
    uint32_t others = row_count(session) - 1;
    return stream == 0 ? rank : session->endpoint->world_size + rank * others + stream - 1;
}

static void begin_event(wefti_json_t *json, const weft_session_t *session, uint32_t stream,
                        const char *phase, const char *name)
{
    wefti_json_begin_object(json, NULL);
    wefti_json_string(json, "ph", phase);
    wefti_json_string(json, "name", name);
    wefti_json_int(json, "pid", session->endpoint->rank);
    wefti_json_int(json, "tid", thread_id(session, stream));
}

/* In microseconds, with the nanoseconds. */
static void add_time(wefti_json_t *json, const char *key, uint64_t ns)
{
    wefti_json_double(json, key, (double)ns / 1e3);
}

static void add_names(wefti_json_t *json, const weft_session_t *session)
{
    char rank[32];
    snprintf(rank, sizeof(rank), "rank %u", session->endpoint->rank);
    begin_event(json, session, 0, "M", "process_name");
    wefti_json_begin_object(json, "args");
    wefti_json_string(json, "name", rank);
    wefti_json_end_object(json);
    wefti_json_end_object(json);
    for (uint32_t i = 0; i < row_count(session); i++) {
        const uint32_t streams = session->plan->stream_count;
        const char *name = session->plan->streams[i % streams].name;
        char queue[160];
        if (history_of(session, i) == NULL) {
            continue;
        }
        if (i >= streams) {
            snprintf(queue, sizeof queue, "%s%s on %s", name, i >= 2 * streams ? " in" : "",
                     session->context->device->ops->name);
        }
        begin_event(json, session, i, "M", "thread_name");
        wefti_json_begin_object(json, "args");
        wefti_json_string(json, "name", i >= streams ? queue : name);
        wefti_json_end_object(json);
        wefti_json_end_object(json);
    }
}

static void add_arrow(wefti_json_t *json, const weft_session_t *session, uint32_t stream,
                      const wefti_history_entry_t *entry, const span_t *span, uint64_t time_ns)
{
    uint64_t event = (entry->run - span->first_run) * session->plan->event_count + entry->event;
    uint64_t id = event * session->endpoint->world_size + session->endpoint->rank;
    bool start = entry->kind == WEFTI_HISTORY_SIGNAL;
    begin_event(json, session, stream, start ? "s" : "f", "event");
    wefti_json_string(json, "cat", "event");
    wefti_json_int(json, "id", (int64_t)id);
    if (!start) {
        wefti_json_string(json, "bp", "e");
    }
    add_time(json, "ts", time_ns);
    wefti_json_end_object(json);
}

/* next_ns: when the row's next slice starts. Slices that overlap in part would be dropped. */
static void add_entry(wefti_json_t *json, const weft_session_t *session, uint32_t stream,
                      const wefti_history_entry_t *entry, const span_t *span, uint64_t next_ns)
{
    static const char *const categories[] = {"", "kernel", "collective", "wait", "event", "part"};
    bool arrow = entry->kind == WEFTI_HISTORY_SIGNAL || entry->kind == WEFTI_HISTORY_WAIT;
    uint64_t start_ns = entry->start_ns - span->origin_ns;
    uint64_t end_ns = entry->end_ns;
    if (arrow && end_ns < entry->start_ns + ARROW_NS) {
        uint64_t shown = entry->start_ns + ARROW_NS;
        shown = shown < next_ns ? shown : next_ns;
        end_ns = shown > end_ns ? shown : end_ns;
    }
    uint64_t duration_ns = end_ns - entry->start_ns;
    begin_event(json, session, stream, "X", entry->name);
    wefti_json_string(json, "cat", categories[entry->kind]);
    add_time(json, "ts", start_ns);
    add_time(json, "dur", duration_ns);
    wefti_json_begin_object(json, "args");
    if (entry->step > 0) {
        wefti_json_int(json, "step", entry->step);
    }
    wefti_json_int(json, "run", entry->run);
    if (entry->kind == WEFTI_HISTORY_COLLECTIVE) {
        wefti_json_int(json, "bytes", (int64_t)entry->bytes);
    }
    if (entry->command != NULL) {
        wefti_json_string(json, "command", entry->command);
    }
    wefti_json_end_object(json);
    wefti_json_end_object(json);
    if (arrow) {
        /* a wait ends where the arrow arrives */
        bool record = entry->kind == WEFTI_HISTORY_SIGNAL || duration_ns == 0;
        add_arrow(json, session, stream, entry, span,
                  record ? start_ns : start_ns + duration_ns - 1);
    }
}

static bool is_shown(const weft_session_t *session, const wefti_history_entry_t *entry,
                     uint64_t first_run)
{
    return entry->run >= first_run &&
           (entry->kind != WEFTI_HISTORY_OTHER || session->context->device != NULL);
}

/* The first run after the one, or the step, of which this stream has forgotten a part. */
static uint64_t first_whole_run(const wefti_history_t *history)
{
    if (history->count <= history->capacity) {
        return 0;
    }
    uint64_t first = wefti_history_oldest(history);
    const wefti_history_entry_t *oldest = wefti_history_at(history, first);
    for (uint64_t j = first + 1; j < history->count; j++) {
        const wefti_history_entry_t *entry = wefti_history_at(history, j);
        if (entry->run != oldest->run && (entry->step == 0 || entry->step != oldest->step)) {
            return entry->run;
        }
    }
    return (uint64_t)oldest->run + 1;
}

/* A walk over what all streams remember. */
typedef struct walk {
    uint32_t stream;
    uint64_t next; /* entries of the stream that were seen */
} walk_t;

static const wefti_history_entry_t *next_entry(const weft_session_t *session, walk_t *walk)
{
    for (; walk->stream < row_count(session); walk->stream++, walk->next = 0) {
        const wefti_history_t *history = history_of(session, walk->stream);
        if (history == NULL) {
            continue;
        }
        uint64_t number = wefti_history_oldest(history) + walk->next++;
        if (number < history->count) {
            return wefti_history_at(history, number);
        }
    }
    return NULL;
}

/* This rank's events, comma-separated, in brackets. */
static char *make_fragment(weft_session_t *session, const span_t *span)
{
    wefti_text_t text;
    wefti_json_t json;
    wefti_text_init(&text, session->allocator);
    wefti_json_init(&json, &text, false);
    wefti_json_begin_array(&json, NULL);
    add_names(&json, session);
    for (uint32_t i = 0; i < row_count(session); i++) {
        const wefti_history_t *history = history_of(session, i);
        const wefti_history_entry_t *previous = NULL;
        for (uint64_t j = history != NULL ? wefti_history_oldest(history) : 0;
             history != NULL && j < history->count; j++) {
            const wefti_history_entry_t *entry = wefti_history_at(history, j);
            if (!is_shown(session, entry, span->first_run)) {
                continue;
            }
            if (previous != NULL) {
                add_entry(&json, session, i, previous, span, entry->start_ns);
            }
            previous = entry;
        }
        if (previous != NULL) {
            add_entry(&json, session, i, previous, span, UINT64_MAX);
        }
    }
    wefti_json_end_array(&json);
    return wefti_text_take(&text);
}

/* What a rank remembers in whole. */
typedef struct memory {
    uint64_t first_step, last_step; /* 0: none */
    uint64_t forgot;                /* not 0: a part of its runs */
} memory_t;

/*
 * All ranks show the same steps: those that each rank remembers in whole. Where no step ran, a rank
 * shows what it remembers. Ranks of one host share CLOCK_MONOTONIC.
 */
static weft_status_t agree_on_span(weft_session_t *session, wefti_arena_t *arena,
                                   weft_status_t status, span_t *out_span)
{
    uint32_t world = session->endpoint->world_size;
    const wefti_history_entry_t *entry;
    void *gathered;
    uint64_t first_run = 0, origin_ns = UINT64_MAX;
    for (uint32_t i = 0; i < row_count(session); i++) {
        const wefti_history_t *history = history_of(session, i);
        uint64_t whole = history != NULL ? first_whole_run(history) : 0;
        first_run = whole > first_run ? whole : first_run;
    }
    memory_t own = {.forgot = first_run > 0}, all = {.last_step = UINT64_MAX};
    for (walk_t walk = {0}; (entry = next_entry(session, &walk)) != NULL;) {
        if (entry->run >= first_run && entry->step > 0) {
            bool earlier = own.first_step == 0 || entry->step < own.first_step;
            own.first_step = earlier ? entry->step : own.first_step;
            own.last_step = entry->step > own.last_step ? entry->step : own.last_step;
        }
    }
    WEFT_RETURN_IF_ERROR(
        wefti_session_gather(session->endpoint, arena, status, &own, sizeof own, &gathered));
    for (uint32_t rank = 0; rank < world; rank++) {
        const memory_t *one = (const memory_t *)gathered + rank;
        all.first_step = one->first_step > all.first_step ? one->first_step : all.first_step;
        all.last_step = one->last_step < all.last_step ? one->last_step : all.last_step;
        all.forgot |= one->forgot;
    }
    /* Where nothing was forgotten, runs before the first step are shown: the program init. */
    if (all.forgot != 0 && all.first_step > 0) {
        uint64_t run = UINT64_MAX;
        for (walk_t walk = {0}; (entry = next_entry(session, &walk)) != NULL;) {
            run = entry->step >= all.first_step && entry->run < run ? entry->run : run;
        }
        first_run = run > first_run ? run : first_run;
    }
    /* Entries are in the order of their ends: the first is not always the one that starts first. */
    for (walk_t walk = {0}; (entry = next_entry(session, &walk)) != NULL;) {
        if (is_shown(session, entry, first_run) && entry->start_ns < origin_ns) {
            origin_ns = entry->start_ns;
        }
    }
    WEFT_RETURN_IF_ERROR(wefti_session_gather(session->endpoint, arena, WEFT_OK, &origin_ns,
                                              sizeof origin_ns, &gathered));
    for (uint32_t rank = 0; rank < world; rank++) {
        uint64_t ns = ((const uint64_t *)gathered)[rank];
        origin_ns = ns < origin_ns ? ns : origin_ns;
    }
    *out_span = (span_t){first_run, all.first_step, all.last_step, origin_ns};
    return WEFT_OK;
}

/* fragments NULL: out of memory. */
static weft_status_t write_file(const weft_session_t *session, char *const *fragments,
                                const uint64_t *lengths, const span_t *span, const char *path)
{
    wefti_text_t all;
    wefti_text_init(&all, session->allocator);
    wefti_text_add(&all, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"first_step\":");
    wefti_text_printf(&all, "%" PRIu64 ",\"last_step\":%" PRIu64 "},\"traceEvents\":[",
                      span->first_step, span->last_step);
    for (uint32_t rank = 0; rank < session->endpoint->world_size; rank++) {
        all.failed = all.failed || fragments[rank] == NULL || lengths[rank] < 2;
        if (!all.failed) { /* without the brackets */
            wefti_text_add(&all, rank > 0 ? ",\n" : "\n");
            wefti_text_add_bytes(&all, fragments[rank] + 1, lengths[rank] - 2);
        }
    }
    wefti_text_add(&all, "\n]}\n");
    wefti_piece_t piece = {all.data, all.length};
    weft_status_t status =
        all.failed ? wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: cannot build the timeline")
                   : wefti_file_write(path, &piece, 1);
    wefti_text_deinit(&all);
    return status;
}

/* Gathers all fragments to rank 0, which writes the file. */
static weft_status_t join(weft_session_t *session, wefti_arena_t *arena, const char *fragment,
                          const span_t *span, const char *path)
{
    wefti_endpoint_t *endpoint = session->endpoint;
    uint32_t world = endpoint->world_size;
    uint64_t own = fragment != NULL ? strlen(fragment) : 0, longest = 0;
    char **fragments = wefti_arena_array(arena, world, sizeof *fragments);
    char *chunks = wefti_arena_array(arena, world + 1ul, CHUNK_BYTES); /* the last is this rank's */
    void *gathered;
    weft_status_t status = WEFT_OK;
    if (fragment == NULL || fragments == NULL || chunks == NULL) {
        status = wefti_error(WEFT_ERR_NO_MEMORY,
                             "out of memory: cannot build the timeline of rank %u", endpoint->rank);
    }
    WEFT_RETURN_IF_ERROR(
        wefti_session_gather(endpoint, arena, status, &own, sizeof(own), &gathered));
    const uint64_t *lengths = gathered;
    for (uint32_t rank = 0; rank < world; rank++) {
        longest = lengths[rank] > longest ? lengths[rank] : longest;
        fragments[rank] = endpoint->rank == 0 ? wefti_arena_alloc(arena, lengths[rank]) : NULL;
    }
    for (uint64_t done = 0; done < longest; done += CHUNK_BYTES) {
        char *mine = chunks + (size_t)world * CHUNK_BYTES;
        size_t left = own > done ? own - done : 0;
        memcpy(mine, fragment + (left > 0 ? done : 0), left < CHUNK_BYTES ? left : CHUNK_BYTES);
        WEFT_RETURN_IF_ERROR(wefti_endpoint_all_gather(endpoint, mine, CHUNK_BYTES, chunks));
        for (uint32_t rank = 0; rank < world; rank++) {
            size_t take = lengths[rank] > done ? lengths[rank] - done : 0;
            if (fragments[rank] != NULL && take > 0) {
                memcpy(fragments[rank] + done, chunks + (size_t)rank * CHUNK_BYTES,
                       take < CHUNK_BYTES ? take : CHUNK_BYTES);
            }
        }
    }
    if (endpoint->rank == 0) {
        status = write_file(session, fragments, lengths, span, path);
    }
    return wefti_endpoint_agree(endpoint, status);
}

weft_status_t weft_session_write_trace(weft_session_t *session, const char *path)
{
    WEFT_CHECK_ARG(session);
    WEFTI_IN_CONTROL(session->endpoint, SESSION_TRACE);
    WEFT_RETURN_IF_ERROR(wefti_fault_get(&session->fault));
    char *fragment = NULL;
    span_t span;
    wefti_arena_t arena;
    wefti_arena_init(&arena, session->allocator, 0);
    weft_status_t status =
        !session->trace
            ? wefti_error(WEFT_ERR_STATE, "trace: the session was created without a trace")
        : path == NULL ? wefti_error_null(__func__, "path")
                       : WEFT_OK;
    WEFT_TRY(status, agree_on_span(session, &arena, status, &span), out);
    fragment = make_fragment(session, &span);
    WEFT_TRY(status, join(session, &arena, fragment, &span, path), out);
    session->timeline_first_step = span.first_step;
    session->timeline_last_step = span.last_step;
out:
    wefti_free(session->allocator, fragment);
    wefti_arena_deinit(&arena);
    return status;
}
