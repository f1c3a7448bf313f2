/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The timeline as Chrome trace JSON: one process per rank, one row per stream, collectives with
 * their bytes, and an arrow from where an event is recorded to where it is waited for. Every rank
 * writes its fragment; rank 0 joins them.
 */
#include "runtime/session.h"

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CHUNK_BYTES 65536u /* per rank and all-gather */
#define ARROW_NS                                                                                   \
    200u /* records are points in time: shown this long, so that arrows have a slice               \
          */

static void begin_event(wefti_json_t *json, const weft_session_t *session, uint32_t stream,
                        const char *phase, const char *name)
{
    wefti_json_begin_object(json, NULL);
    wefti_json_string(json, "ph", phase);
    wefti_json_string(json, "name", name);
    wefti_json_int(json, "pid", session->endpoint->rank);
    wefti_json_int(json, "tid", stream);
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
                      const wefti_history_entry_t *entry, uint64_t time_ns)
{
    char id[64];
    snprintf(id, sizeof(id), "%u.%u.%u", session->endpoint->rank, entry->run, entry->event);
    bool start = entry->kind == WEFTI_HISTORY_SIGNAL;
    begin_event(json, session, stream, start ? "s" : "f", "event");
    wefti_json_string(json, "cat", "event");
    wefti_json_string(json, "id", id);
    if (!start) {
        wefti_json_string(json, "bp", "e");
    }
    add_time(json, "ts", time_ns);
    wefti_json_end_object(json);
}

/* next_ns: when the row's next slice starts. Slices that overlap in part would be dropped. */
static void add_entry(wefti_json_t *json, const weft_session_t *session, uint32_t stream,
                      const wefti_history_entry_t *entry, uint64_t origin_ns, uint64_t next_ns)
{
    static const char *const categories[] = {"", "kernel", "collective", "wait", "event", "part"};
    bool arrow = entry->kind == WEFTI_HISTORY_SIGNAL || entry->kind == WEFTI_HISTORY_WAIT;
    uint64_t start_ns = entry->start_ns - origin_ns;
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
    wefti_json_int(json, "run", entry->run);
    if (entry->kind == WEFTI_HISTORY_COLLECTIVE) {
        wefti_json_int(json, "bytes", (int64_t)entry->bytes);
    }
    wefti_json_end_object(json);
    wefti_json_end_object(json);
    if (arrow) {
        /* a wait ends where the arrow arrives */
        bool record = entry->kind == WEFTI_HISTORY_SIGNAL || duration_ns == 0;
        add_arrow(json, session, stream, entry, record ? start_ns : start_ns + duration_ns - 1);
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

/* What the timeline shows: whole runs only. */
static bool is_shown(const weft_session_t *session, const wefti_history_entry_t *entry,
                     uint64_t first_run)
{
    return entry->run >= first_run &&
           (entry->kind != WEFTI_HISTORY_OTHER || session->context->device != NULL);
}

/* The first run of which all streams still know everything. */
static uint64_t first_whole_run(const weft_session_t *session)
{
    uint64_t first_run = 0;
    for (uint32_t i = 0; i < session->plan->stream_count; i++) {
        const wefti_history_t *history = &session->cursors[i].history;
        if (history->count > history->capacity) {
            uint64_t whole = (uint64_t)entry_at(history, oldest_index(history))->run + 1;
            first_run = whole > first_run ? whole : first_run;
        }
    }
    return first_run;
}

/* This rank's events, comma-separated, without the brackets. */
static char *make_fragment(weft_session_t *session, uint64_t first_run, uint64_t origin_ns)
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
            if (!is_shown(session, entry, first_run)) {
                continue;
            }
            if (previous != NULL) {
                add_entry(&json, session, i, previous, origin_ns, entry->start_ns);
            }
            previous = entry;
        }
        if (previous != NULL) {
            add_entry(&json, session, i, previous, origin_ns, UINT64_MAX);
        }
    }
    wefti_json_end_array(&json);
    char *fragment = wefti_text_take(&text);
    if (fragment == NULL) {
        wefti_error(WEFT_ERR_NO_MEMORY, "no room for the timeline of rank %u",
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

/* Where all ranks' timelines start. Ranks of one host share CLOCK_MONOTONIC. */
static weft_status_t agree_on_start(weft_session_t *session, uint64_t *all, uint64_t *out_first_run,
                                    uint64_t *out_origin_ns)
{
    wefti_endpoint_t *endpoint = session->endpoint;
    uint64_t own = first_whole_run(session);
    *out_first_run = 0;
    *out_origin_ns = UINT64_MAX;
    weft_status_t status = wefti_endpoint_all_gather(endpoint, &own, sizeof(own), all);
    for (uint32_t rank = 0; status >= 0 && rank < endpoint->world_size; rank++) {
        *out_first_run = all[rank] > *out_first_run ? all[rank] : *out_first_run;
    }
    if (status < 0) {
        return status;
    }
    own = oldest_ns(session, *out_first_run);
    status = wefti_endpoint_all_gather(endpoint, &own, sizeof(own), all);
    for (uint32_t rank = 0; status >= 0 && rank < endpoint->world_size; rank++) {
        *out_origin_ns = all[rank] < *out_origin_ns ? all[rank] : *out_origin_ns;
    }
    return status;
}

/* Gathers all fragments (brackets cut off) to rank 0, which writes the file. */
static weft_status_t join(weft_session_t *session, const char *fragment, uint64_t *lengths,
                          const char *path)
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
        wefti_text_add(&all, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
        for (uint32_t rank = 0; rank < world; rank++) {
            all.failed = all.failed || texts[rank].failed || texts[rank].length < 2;
            if (!all.failed) {
                wefti_text_add(&all, rank > 0 ? ",\n" : "\n");
                wefti_text_add_bytes(&all, texts[rank].data + 1, texts[rank].length - 2);
            }
        }
        wefti_text_add(&all, "\n]}\n");
        wefti_piece_t piece = {all.data, all.length};
        status = all.failed ? wefti_error(WEFT_ERR_NO_MEMORY, "no room for the timeline")
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
    uint64_t first_run = 0, origin_ns = 0;
    weft_status_t status = wefti_fault_get(&session->fault);
    if (status < 0) {
        return status;
    }
    uint64_t *all = wefti_alloc(session->allocator, endpoint->world_size * sizeof(*all));
    if (all == NULL) {
        status = WEFT_ERR_NO_MEMORY;
    } else if (!session->trace) {
        status = wefti_error(WEFT_ERR_STATE, "the session was created without a trace");
    } else if (path == NULL) {
        status = wefti_error_null(__func__, "path");
    }
    WEFT_TRY(status, wefti_endpoint_agree(endpoint, status), out);
    WEFT_TRY(status, agree_on_start(session, all, &first_run, &origin_ns), out);
    fragment = make_fragment(session, first_run, origin_ns);
    WEFT_TRY(status, join(session, fragment, all, path), out);
out:
    wefti_free(session->allocator, fragment);
    wefti_free(session->allocator, all);
    return status;
}
