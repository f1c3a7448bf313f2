/* SPDX-License-Identifier: Apache-2.0 */
/* What was planned, for people and for programs. */
#include <inttypes.h>
#include <stdio.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/capture/capture.h"

void wefti_capture_describe(const weft_capture_t *capture, const wefti_captured_t *call, char *text,
                            size_t bytes)
{
    const uint32_t index = wefti_capture_index(capture, call);
    const wefti_request_t *request = &call->batched.request;
    if (request->op == WEFT_COLLECTIVE_BARRIER || call->batched.counts != NULL) {
        snprintf(text, bytes, "call %u, %s", index, weft_collective_name(request->op));
    } else {
        snprintf(text, bytes, "call %u, %s of %" PRIu64 " %s", index,
                 weft_collective_name(request->op), request->count,
                 weft_dtype_name(request->dtype));
    }
}

static uint32_t count_packed(const wefti_capture_unit_t *unit)
{
    uint32_t packed = 0;
    for (uint32_t i = 0; i < unit->bucket.piece_count; i++) {
        packed += unit->bucket.pieces[i].packed;
    }
    return packed;
}

static void print_bucket(const weft_capture_t *capture, const wefti_capture_unit_t *unit,
                         uint32_t number, wefti_text_t *out)
{
    const wefti_request_t *request = &unit->members[0]->batched.request;
    char size[32];
    wefti_format_bytes(wefti_capture_bytes(unit), size);
    wefti_text_printf(out, "  bucket %u: %s %s of %s, data ready after %.3f ms; ", number,
                      weft_reduction_name(request->reduction), weft_dtype_name(request->dtype),
                      size, (double)unit->ready_ns * 1e-6);
    wefti_text_printf(out, "%u call%s", unit->bucket.piece_count,
                      unit->bucket.piece_count == 1 ? "" : "s");
    if (count_packed(unit) > 0) {
        wefti_text_printf(out, ", %u packed", count_packed(unit));
    }
    wefti_text_printf(out, "\n    members:");
    for (uint32_t i = 0; i < unit->member_count; i++) {
        wefti_text_printf(out, " %u", wefti_capture_index(capture, unit->members[i]));
    }
    wefti_text_printf(out, "\n    %s\n", unit->reason);
}

static void print_text(const weft_capture_t *capture, wefti_text_t *out)
{
    const weft_capture_info_t *info = &capture->info;
    char sizes[2][32];
    uint32_t bucket = 0;
    wefti_format_bytes(info->buffer_bytes, sizes[0]);
    wefti_format_bytes(info->copied_bytes, sizes[1]);
    wefti_text_printf(out, "capture of %u calls over %u ranks, buckets %s, digest %.16s\n",
                      info->call_count, capture->runner.group->size, capture->policy, info->digest);
    wefti_text_printf(out, "%u buckets, %u calls per replay; buffer of %s, %s copied per replay\n",
                      info->bucket_count, info->run_count, sizes[0], sizes[1]);
    if (info->bucket_count > 0) {
        wefti_text_printf(out,
                          "predicted: data ready after %.3f ms, done after %.3f ms (best found "
                          "%.3f ms, lower bound %.3f ms)\n",
                          (double)capture->forecast.ready_ps * 1e-9,
                          (double)capture->forecast.chosen_ps * 1e-9,
                          (double)capture->forecast.optimum_ps * 1e-9,
                          (double)capture->forecast.lower_bound_ps * 1e-9);
    }
    for (uint32_t u = 0; u < capture->unit_count; u++) {
        const wefti_capture_unit_t *unit = &capture->units[u];
        char text[160];
        if (unit->reason != NULL) {
            print_bucket(capture, unit, bucket++, out);
            continue;
        }
        wefti_capture_describe(capture, unit->members[0], text, sizeof text);
        wefti_text_printf(out, "  %s, alone\n", text);
    }
}

static void write_unit(const weft_capture_t *capture, const wefti_capture_unit_t *unit,
                       wefti_json_t *json)
{
    const wefti_request_t *request = &unit->members[0]->batched.request;
    wefti_json_begin_object(json, NULL);
    wefti_json_string(json, "operator", weft_collective_name(request->op));
    wefti_json_string(json, "dtype", weft_dtype_name(request->dtype));
    wefti_json_begin_array(json, "calls");
    for (uint32_t i = 0; i < unit->member_count; i++) {
        wefti_json_int(json, NULL, wefti_capture_index(capture, unit->members[i]));
    }
    wefti_json_end_array(json);
    if (unit->reason != NULL) {
        wefti_json_string(json, "reduction", weft_reduction_name(request->reduction));
        wefti_json_int(json, "bytes", (int64_t)wefti_capture_bytes(unit));
        wefti_json_int(json, "pieces", unit->bucket.piece_count);
        wefti_json_int(json, "packed", count_packed(unit));
        wefti_json_double(json, "ready_us", (double)unit->ready_ns * 1e-3);
        wefti_json_string(json, "reason", unit->reason);
    }
    wefti_json_end_object(json);
}

static void print_json(const weft_capture_t *capture, wefti_text_t *out)
{
    const weft_capture_info_t *info = &capture->info;
    wefti_json_t json;
    wefti_json_init(&json, out, true);
    wefti_json_begin_object(&json, NULL);
    wefti_json_int(&json, "calls", info->call_count);
    wefti_json_int(&json, "ranks", capture->runner.group->size);
    wefti_json_string(&json, "policy", capture->policy);
    wefti_json_string(&json, "digest", info->digest);
    wefti_json_int(&json, "buckets", info->bucket_count);
    wefti_json_int(&json, "run_count", info->run_count);
    wefti_json_int(&json, "buffer_bytes", (int64_t)info->buffer_bytes);
    wefti_json_int(&json, "copied_bytes", (int64_t)info->copied_bytes);
    wefti_json_double(&json, "ready_us", (double)capture->forecast.ready_ps * 1e-6);
    wefti_json_double(&json, "chosen_us", (double)capture->forecast.chosen_ps * 1e-6);
    wefti_json_double(&json, "optimum_us", (double)capture->forecast.optimum_ps * 1e-6);
    wefti_json_double(&json, "lower_bound_us", (double)capture->forecast.lower_bound_ps * 1e-6);
    wefti_json_begin_array(&json, "units");
    for (uint32_t u = 0; u < capture->unit_count; u++) {
        write_unit(capture, &capture->units[u], &json);
    }
    wefti_json_end_array(&json);
    wefti_json_end_object(&json);
}

weft_status_t weft_capture_explain(const weft_capture_t *capture, weft_format_t format,
                                   char **out_text)
{
    WEFT_CHECK_OUT(out_text);
    WEFT_CHECK_ARG(capture);
    WEFT_CHECK_FORMAT(format);
    wefti_text_t text;
    wefti_text_init(&text, NULL);
    if (format == WEFT_FORMAT_JSON) {
        print_json(capture, &text);
    } else {
        print_text(capture, &text);
    }
    *out_text = wefti_text_take(&text);
    return *out_text != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}
