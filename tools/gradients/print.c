/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "tools/gradients/gradients.h"

const char *wefti_gradient_verdict_name(gradient_verdict_t verdict)
{
    static const char *const names[] = {"none", "noise", "kink", "ok", "wrong"};
    return names[verdict];
}

/* "[3, 17]" of an element in row-major order. */
static const char *index_text(const weft_tensor_desc_t *desc, int64_t element, char *buffer,
                              size_t bytes)
{
    int64_t index[WEFT_MAX_DIMS] = {0};
    size_t at = 1;
    for (uint32_t i = desc->rank; i-- > 0;) {
        index[i] = element % desc->dims[i];
        element /= desc->dims[i];
    }
    snprintf(buffer, bytes, "[");
    for (uint32_t i = 0; i < desc->rank && at < bytes; i++) {
        int length = snprintf(buffer + at, bytes - at, "%s%" PRId64, i > 0 ? ", " : "", index[i]);
        at += length > 0 ? (size_t)length : 0;
    }
    if (at < bytes) {
        snprintf(buffer + at, bytes - at, "]");
    }
    return buffer;
}

static void write_row(const gradient_report_t *row, wefti_text_t *out)
{
    char where[256];
    static const char *const verdicts[] = {"-", "noise", "kink", "ok", "WRONG"};
    wefti_text_printf(out, "  %-6s ", verdicts[row->verdict]);
    wefti_text_add_printable(out, row->name != NULL ? row->name : "?");
    if (row->why != NULL) {
        wefti_text_printf(out, ": %s\n", row->why);
        return;
    }
    wefti_text_printf(out, " %s: gradient %.4g, slope %.4g +- %.1g",
                      row->direction ? "(all elements, random signs)"
                                     : index_text(&row->desc, row->element, where, sizeof where),
                      row->gradient, row->slope.value, row->slope.error);
    if (row->verdict == GRADIENT_KINK) {
        wefti_text_printf(out, "; nearby slopes differ by %.1g", row->slope.spread);
    }
    if (row->wrong > 0) {
        wefti_text_printf(out, "; %u of %u samples wrong", row->wrong, row->samples);
    }
    wefti_text_add(out, "\n");
}

void wefti_gradients_text(const gradients_report_t *report, wefti_text_t *out)
{
    size_t telling = 0, checked = 0;
    for (size_t i = 0; i < report->count; i++) {
        telling += report->params[i].verdict >= GRADIENT_KINK;
        checked += report->params[i].verdict != GRADIENT_NONE;
    }
    wefti_text_printf(
        out,
        "\ngradients compared with slopes of the loss %.6g (rounding %.1g, %u steps); the worst "
        "element of each parameter\n",
        report->loss, report->noise, report->steps);
    for (size_t i = 0; i < report->count; i++) {
        write_row(&report->params[i], out);
    }
    if (report->wrong > 0) {
        wefti_text_printf(out, "wrong gradients: %zu of %zu parameters\n", report->wrong, checked);
    } else {
        wefti_text_printf(out, "correct gradients: %zu of %zu parameters%s\n", telling, checked,
                          telling < checked ? "; noise: too small to compare" : "");
    }
}

void wefti_gradients_json(const gradients_report_t *report, wefti_json_t *json)
{
    wefti_json_double(json, "loss", report->loss);
    wefti_json_double(json, "noise", report->noise);
    wefti_json_int(json, "steps", report->steps);
    wefti_json_int(json, "wrong", (int64_t)report->wrong);
    wefti_json_begin_array(json, "parameters");
    for (size_t i = 0; i < report->count; i++) {
        const gradient_report_t *row = &report->params[i];
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "name", row->name);
        wefti_json_string(json, "verdict", wefti_gradient_verdict_name(row->verdict));
        wefti_json_string(json, "why", row->why);
        wefti_json_int(json, "samples", row->samples);
        wefti_json_int(json, "wrong", row->wrong);
        wefti_json_int(json, "noisy", row->noisy);
        wefti_json_int(json, "kinks", row->kinks);
        if (row->why == NULL) {
            wefti_json_begin_object(json, "worst");
            if (row->direction) {
                wefti_json_string(json, "element", NULL); /* all, by random signs */
            } else {
                wefti_json_int(json, "element", row->element);
            }
            wefti_json_double(json, "gradient", row->gradient);
            wefti_json_double(json, "slope", row->slope.value);
            wefti_json_double(json, "error", row->slope.error);
            wefti_json_double(json, "spread", row->slope.spread);
            wefti_json_double(json, "step", row->slope.step);
            wefti_json_end_object(json);
        }
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}
