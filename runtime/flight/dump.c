/* SPDX-License-Identifier: Apache-2.0 */
/* An image as JSON: one call per line. `weft analyze` reads it; docs/dumps.md describes it. */
#include "runtime/flight/flight.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/json.h"

static void write_fault(const wefti_fault_t *fault, wefti_json_t *json)
{
    weft_status_t status = wefti_fault_get(fault);
    if (status == WEFT_OK) {
        return;
    }
    wefti_json_begin_object(json, "error");
    wefti_json_string(json, "status", weft_status_name(status));
    wefti_json_string(json, "message", weft_last_error());
    wefti_json_end_object(json);
}

static void write_group(const wefti_flight_image_t *image, const wefti_flight_group_t *group,
                        wefti_json_t *json)
{
    wefti_json_begin_object(json, NULL);
    json->pretty = false;
    wefti_json_int(json, "id", group->id);
    wefti_json_int(json, "size", group->size);
    wefti_json_int(json, "rank", group->rank);
    if (group->channel != UINT32_MAX) {
        wefti_json_int(json, "channel", group->channel);
    }
    wefti_json_bool(json, "open", group->open != 0);
    if (group->size < image->header.world_size) {
        wefti_json_begin_array(json, "ranks");
        for (uint32_t r = 0; r < image->header.world_size; r++) {
            if (wefti_flight_is_member(image, group, r)) {
                wefti_json_int(json, NULL, r);
            }
        }
        wefti_json_end_array(json);
    }
    wefti_json_end_object(json);
    json->pretty = true;
}

static void write_call(const wefti_flight_record_t *call, wefti_json_t *json)
{
    char text[160];
    wefti_json_begin_object(json, NULL);
    json->pretty = false; /* one line */
    wefti_json_int(json, "record", call->serial);
    wefti_json_int(json, "group", call->group);
    wefti_json_int(json, "seq", call->seq);
    wefti_json_string(json, "kind", wefti_flight_kind_name(call));
    wefti_json_string(json, "call", wefti_flight_text(call, text));
    if (call->peer != WEFTI_FLIGHT_NO_RANK) {
        wefti_json_int(json, "peer", call->peer);
    }
    if (call->stream != 0) {
        wefti_json_int(json, "stream", call->stream);
    }
    wefti_json_string(json, "state", wefti_flight_state_name(call->state));
    if (call->status < 0) {
        wefti_json_string(json, "status", weft_status_name(call->status));
    }
    if (call->state != WEFTI_FLIGHT_DONE && call->awaits != WEFTI_FLIGHT_NO_RANK) {
        wefti_json_int(json, "awaits", call->awaits);
    }
    wefti_json_int(json, "issued_ns", call->issued_ns);
    if (call->ended_ns >= 0) {
        wefti_json_int(json, "ended_ns", call->ended_ns);
    }
    wefti_json_end_object(json);
    json->pretty = true;
}

weft_status_t wefti_flight_write(const wefti_flight_image_t *image, const char *reason,
                                 wefti_text_t *out)
{
    const wefti_flight_header_t *header = &image->header;
    wefti_flight_record_t *calls = malloc(WEFTI_FLIGHT_CALLS * sizeof *calls);
    wefti_json_t json;
    WEFT_RETURN_IF_NO_MEMORY(calls);
    wefti_flight_clock_t clock = wefti_flight_clock(image);
    int64_t now = wefti_flight_now(&clock);
    uint32_t count = wefti_flight_records(image, calls);
    wefti_json_init(&json, out, true);
    wefti_json_begin_object(&json, NULL);
    wefti_json_int(&json, "weft_dump", 1);
    wefti_json_int(&json, "rank", header->rank);
    wefti_json_int(&json, "world_size", header->world_size);
    wefti_json_string(&json, "world", header->world);
    wefti_json_string(&json, "host", header->host);
    wefti_json_int(&json, "pid", header->pid);
    wefti_json_string(&json, "transport", header->transport);
    wefti_json_string(&json, "launcher", header->launcher);
    wefti_json_string(&json, "reason", reason);
    write_fault(&header->fault, &json);
    wefti_json_int(&json, "created_unix_us", (int64_t)header->unix_us);
    wefti_json_int(&json, "dumped_ns", now);
    wefti_json_begin_array(&json, "groups");
    for (uint32_t i = 0; i < WEFTI_FLIGHT_GROUPS; i++) {
        if (atomic_load_explicit(&image->groups[i].id, memory_order_acquire) != 0) {
            write_group(image, &image->groups[i], &json);
        }
    }
    wefti_json_end_array(&json);
    wefti_json_begin_array(&json, "calls");
    for (uint32_t i = 0; i < count; i++) {
        write_call(&calls[i], &json);
    }
    wefti_json_end_array(&json);
    wefti_json_end_object(&json);
    wefti_text_add(out, "\n");
    free(calls);
    return out->failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

weft_status_t wefti_flight_dump(const wefti_flight_image_t *image, const char *path,
                                const char *reason)
{
    struct stat facts;
    wefti_text_t text;
    if (stat(path, &facts) == 0 && S_ISDIR(facts.st_mode)) {
        return wefti_flight_dump_in(image, path, reason);
    }
    wefti_text_init(&text, NULL);
    weft_status_t status = wefti_flight_write(image, reason, &text);
    status = status == WEFT_OK ? wefti_file_write_text(path, &text) : status;
    wefti_text_deinit(&text);
    return status;
}

weft_status_t wefti_flight_dump_path(const char *folder, uint32_t rank, const char *host_name,
                                     uint32_t pid, char *out, size_t bytes)
{
    char host[64];
    snprintf(host, sizeof host, "%s", host_name);
    for (char *at = host; *at != '\0'; at++) {
        *at = *at == '/' ? '_' : *at;
    }
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot create folder %s", folder);
    }
    int length = snprintf(out, bytes, "%s/weft-rank%u-%s-%u.json", folder, rank, host, pid);
    return length < (int)bytes
               ? WEFT_OK
               : wefti_error(WEFT_ERR_INVALID_ARGUMENT, "path: too long: %d characters", length);
}

weft_status_t wefti_flight_dump_in(const wefti_flight_image_t *image, const char *folder,
                                   const char *reason)
{
    const wefti_flight_header_t *header = &image->header;
    char path[PATH_MAX];
    WEFT_RETURN_IF_ERROR(
        wefti_flight_dump_path(folder, header->rank, header->host, header->pid, path, sizeof path));
    return wefti_flight_dump(image, path, reason);
}

void wefti_flight_dump_due(wefti_flight_t *flight, const char *reason, uint64_t quiet_ns)
{
    pthread_mutex_lock(&flight->lock); /* until it is written: who comes next may end the process */
    uint64_t now = wefti_now_ns();
    if (flight->dumped_ns == 0 || now - flight->dumped_ns >= quiet_ns) {
        if (wefti_flight_dump_in(flight->image, flight->folder, reason) < 0) {
            wefti_log(flight->log, WEFT_LOG_LEVEL_WARN, "WEFT_DUMP: %s", weft_last_error());
        }
        flight->dumped_ns = wefti_now_ns();
    }
    pthread_mutex_unlock(&flight->lock);
}
