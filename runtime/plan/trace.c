/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The timeline as Chrome trace JSON: one process per rank, one thread per stream, collectives with
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

static uint32_t thread_id(const weft_session_t *session, uint32_t stream)
{
    uint32_t rank = session->endpoint->rank;
    uint32_t others = session->plan->stream_count - 1;
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

static void add_time(wefti_json_t *json, const char *key, uint64_t ns)
{
    /* microseconds with the nanoseconds kept: a double would round the clock of a long-running host
     */
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
    for (uint32_t i = 0; i < session->plan->stream_count; i++) {
        begin_event(json, session, i, "M", "thread_name");
        wefti_json_begin_object(json, "args");
        wefti_json_string(json, "name", session->plan->streams[i].name);
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
    wefti_json_end_object(json);
    wefti_json_end_object(json);
    if (arrow) {
        /* a wait ends where the arrow arrives */
        bool record = entry->kind == WEFTI_HISTORY_SIGNAL || duration_ns == 0;
        add_arrow(json, session, stream, entry, span,
                  record ? start_ns : start_ns + duration_ns - 1);
    }
}

/* Of the oldest entry that is still there. */
static uint64_t oldest_index(const wefti_history_t *history)
{
    return history->count > history->capacity ? history->count - history->capacity : 0;
}

static const wefti_history_entry_t *entry_at(const wefti_history_t *history, uint64_t index)
{
    return &history->entries[index & (history->capacity - 1)];
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
    const wefti_history_entry_t *oldest = entry_at(history, oldest_index(history));
    for (uint64_t j = oldest_index(history) + 1; j < history->count; j++) {
        const wefti_history_entry_t *entry = entry_at(history, j);
        if (entry->run != oldest->run && (entry->step == 0 || entry->step != oldest->step)) {
            return entry->run;
        }
    }
    return (uint64_t)oldest->run + 1;
}

/* The lowest or highest step among this rank's entries of first_run and later; 0: none. */
static uint64_t find_step(const weft_session_t *session, uint64_t first_run, bool highest)
{
    uint64_t found = 0;
    for (uint32_t i = 0; i < session->plan->stream_count; i++) {
        const wefti_history_t *history = &session->cursors[i].history;
        for (uint64_t j = oldest_index(history); j < history->count; j++) {
            const wefti_history_entry_t *entry = entry_at(history, j);
            if (entry->run >= first_run && entry->step > 0 &&
                (found == 0 || (highest ? entry->step > found : entry->step < found))) {
                found = entry->step;
            }
        }
    }
    return found;
}

/* The first run of step or a later one. */
static uint64_t find_run(const weft_session_t *session, uint64_t step)
{
    uint64_t found = UINT64_MAX;
    for (uint32_t i = 0; i < session->plan->stream_count; i++) {
        const wefti_history_t *history = &session->cursors[i].history;
        for (uint64_t j = oldest_index(history); j < history->count; j++) {
            const wefti_history_entry_t *entry = entry_at(history, j);
            found = entry->step >= step && entry->run < found ? entry->run : found;
        }
    }
    return found;
}

/* This rank's events, comma-separated, without the brackets. */
static char *make_fragment(weft_session_t *session, const span_t *span)
{
    wefti_text_t text;
    wefti_json_t json;
    wefti_text_init(&text, session->allocator);
    wefti_json_init(&json, &text, false);
    wefti_json_begin_array(&json, NULL);
    add_names(&json, session);
    for (uint32_t i = 0; i < session->plan->stream_count; i++) {
        const wefti_history_t *history = &session->cursors[i].history;
        const wefti_history_entry_t *previous = NULL;
        for (uint64_t j = oldest_index(history); j < history->count; j++) {
            const wefti_history_entry_t *entry = entry_at(history, j);
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
    char *fragment = wefti_text_take(&text);
    if (fragment == NULL) {
        wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: cannot build the timeline of rank %u",
                    session->endpoint->rank);
    }
    return fragment;
}

/* Entries are in the order of their ends, so the first is not always the one that starts first. */
static uint64_t oldest_ns(const weft_session_t *session, uint64_t first_run)
{
    uint64_t oldest = UINT64_MAX;
    for (uint32_t i = 0; i < session->plan->stream_count; i++) {
        const wefti_history_t *history = &session->cursors[i].history;
        for (uint64_t j = oldest_index(history); j < history->count; j++) {
            const wefti_history_entry_t *entry = entry_at(history, j);
            if (is_shown(session, entry, first_run) && entry->start_ns < oldest) {
                oldest = entry->start_ns;
            }
        }
    }
    return oldest;
}

static weft_status_t gather_extremes(weft_session_t *session, uint64_t own, uint64_t *all,
                                     uint64_t *out_least, uint64_t *out_most)
{
    wefti_endpoint_t *endpoint = session->endpoint;
    weft_status_t status = wefti_endpoint_all_gather(endpoint, &own, sizeof(own), all);
    *out_least = UINT64_MAX;
    *out_most = 0;
    for (uint32_t rank = 0; status >= 0 && rank < endpoint->world_size; rank++) {
        *out_least = all[rank] < *out_least ? all[rank] : *out_least;
        *out_most = all[rank] > *out_most ? all[rank] : *out_most;
    }
    return status;
}

/*
 * All ranks show the same steps: those that each rank remembers in whole. Where no step ran, a rank
 * shows what it remembers. Ranks of one host share CLOCK_MONOTONIC.
 */
static weft_status_t agree_on_span(weft_session_t *session, uint64_t *all, span_t *out_span)
{
    uint64_t unused, first_run = 0;
    for (uint32_t i = 0; i < session->plan->stream_count; i++) {
        uint64_t whole = first_whole_run(&session->cursors[i].history);
        first_run = whole > first_run ? whole : first_run;
    }
    /* Where nothing was forgotten, runs before the first step are shown, too: the program init. */
    bool forgot = first_run > 0;
    WEFT_RETURN_IF_ERROR(gather_extremes(session, find_step(session, first_run, false), all,
                                         &unused, &out_span->first_step));
    WEFT_RETURN_IF_ERROR(gather_extremes(session, find_step(session, first_run, true), all,
                                         &out_span->last_step, &unused));
    uint64_t any_forgot = 0;
    WEFT_RETURN_IF_ERROR(gather_extremes(session, forgot, all, &unused, &any_forgot));
    if (any_forgot > 0 && out_span->first_step > 0) {
        uint64_t run = find_run(session, out_span->first_step);
        first_run = run > first_run ? run : first_run;
    }
    out_span->first_run = first_run;
    return gather_extremes(session, oldest_ns(session, first_run), all, &out_span->origin_ns,
                           &unused);
}

/* Gathers all fragments (brackets cut off) to rank 0, which writes the file. */
static weft_status_t join(weft_session_t *session, const char *fragment, uint64_t *lengths,
                          const span_t *span, const char *path)
{
    wefti_endpoint_t *endpoint = session->endpoint;
    uint32_t world = endpoint->world_size;
    uint64_t own = fragment != NULL ? strlen(fragment) : 0, longest = 0, done = 0;
    wefti_text_t *texts = wefti_alloc(session->allocator, world * sizeof(*texts));
    char *chunks = wefti_alloc(session->allocator, (size_t)world * CHUNK_BYTES + CHUNK_BYTES);
    weft_status_t status = texts && chunks && fragment ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    WEFT_TRY(status, wefti_endpoint_agree(endpoint, status), out);
    WEFT_TRY(status, wefti_endpoint_all_gather(endpoint, &own, sizeof(own), lengths), out);
    for (uint32_t rank = 0; rank < world; rank++) {
        longest = lengths[rank] > longest ? lengths[rank] : longest;
        wefti_text_init(&texts[rank], session->allocator);
    }
    for (; done < longest; done += CHUNK_BYTES) {
        char *mine = chunks + (size_t)world * CHUNK_BYTES;
        size_t left = own > done ? own - done : 0;
        memcpy(mine, fragment + (left > 0 ? done : 0), left < CHUNK_BYTES ? left : CHUNK_BYTES);
        WEFT_TRY(status, wefti_endpoint_all_gather(endpoint, mine, CHUNK_BYTES, chunks), out);
        for (uint32_t rank = 0; rank < world && endpoint->rank == 0; rank++) {
            size_t take = lengths[rank] > done ? lengths[rank] - done : 0;
            wefti_text_add_bytes(&texts[rank], chunks + (size_t)rank * CHUNK_BYTES,
                                 take < CHUNK_BYTES ? take : CHUNK_BYTES);
        }
    }
    if (endpoint->rank == 0) {
        wefti_text_t all;
        wefti_text_init(&all, session->allocator);
        wefti_text_add(&all, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"first_step\":");
        wefti_text_printf(&all, "%" PRIu64 ",\"last_step\":%" PRIu64 "},\"traceEvents\":[",
                          span->first_step, span->last_step);
        for (uint32_t rank = 0; rank < world; rank++) {
            all.failed = all.failed || texts[rank].failed || texts[rank].length < 2;
            if (!all.failed) {
                wefti_text_add(&all, rank > 0 ? ",\n" : "\n");
                wefti_text_add_bytes(&all, texts[rank].data + 1, texts[rank].length - 2);
            }
        }
        wefti_text_add(&all, "\n]}\n");
        wefti_piece_t piece = {all.data, all.length};
        status = all.failed
                     ? wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: cannot build the timeline")
                     : wefti_file_write(path, &piece, 1);
        wefti_text_deinit(&all);
    }
    status = wefti_endpoint_agree(endpoint, status);
out:
    for (uint32_t rank = 0; texts != NULL && rank < world; rank++) {
        wefti_text_deinit(&texts[rank]);
    }
    wefti_free(session->allocator, texts);
    wefti_free(session->allocator, chunks);
    return status;
}

weft_status_t weft_session_write_trace(weft_session_t *session, const char *path)
{
    WEFT_CHECK_ARG(session);
    wefti_endpoint_t *endpoint = session->endpoint;
    char *fragment = NULL;
    span_t span = {0};
    weft_status_t status = wefti_fault_get(&session->fault);
    if (status < 0) {
        return status;
    }
    uint64_t *all = wefti_alloc(session->allocator, endpoint->world_size * sizeof(*all));
    if (all == NULL) {
        status = WEFT_ERR_NO_MEMORY;
    } else if (!session->trace) {
        status = wefti_error(WEFT_ERR_STATE, "trace: the session was created without a trace");
    } else if (path == NULL) {
        status = wefti_error_null(__func__, "path");
    }
    WEFT_TRY(status, wefti_endpoint_agree(endpoint, status), out);
    WEFT_TRY(status, agree_on_span(session, all, &span), out);
    fragment = make_fragment(session, &span);
    WEFT_TRY(status, join(session, fragment, all, &span, path), out);
    session->timeline_first_step = span.first_step;
    session->timeline_last_step = span.last_step;
out:
    wefti_free(session->allocator, fragment);
    wefti_free(session->allocator, all);
    return status;
}
