/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/page.h"

#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/file.h"

/* '<' is in no JSON text but inside strings, where it may be written so: then no name is a tag. */
static void add_data(wefti_text_t *out, const wefti_text_t *data)
{
    for (const char *at = data->data; *at != '\0';) {
        size_t length = strcspn(at, "<>&");
        wefti_text_add_bytes(out, at, length);
        at += length;
        if (*at != '\0') {
            wefti_text_printf(out, "\\u%04x", (unsigned)*at++);
        }
    }
}

static void add_escaped(wefti_text_t *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (strchr("<>&", *text) != NULL) {
            wefti_text_printf(out, "&#%u;", (unsigned)*text);
        } else {
            wefti_text_add_bytes(out, text, 1);
        }
    }
}

weft_status_t wefti_page_write(const char *path, const char *title, const char *const *scripts,
                               size_t script_count, const wefti_text_t *data)
{
    wefti_text_t out;
    wefti_text_init(&out, NULL);
    /* The page may not load anything, whatever is in it. */
    wefti_text_add(&out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src "
                         "'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
                         "<meta name=\"viewport\" content=\"width=device-width\">\n"
                         "<meta name=\"color-scheme\" content=\"light dark\">\n<title>");
    add_escaped(&out, title);
    wefti_text_add(&out, "</title>\n<style>\n");
    wefti_text_add(&out, page_base_css);
    wefti_text_add(&out,
                   "</style>\n</head>\n<body>\n<noscript>This page needs JavaScript; it loads "
                   "nothing.</noscript>\n<script id=\"data\" type=\"application/json\">\n");
    if (!data->failed) {
        add_data(&out, data);
    }
    wefti_text_add(&out, "</script>\n");
    for (size_t i = 0; i < script_count; i++) {
        wefti_text_add(&out, "<script>\n");
        wefti_text_add(&out, scripts[i]);
        wefti_text_add(&out, "</script>\n");
    }
    wefti_text_add(&out, "</body>\n</html>\n");
    out.failed = out.failed || data->failed;
    weft_status_t status = wefti_file_write_text(path, &out);
    wefti_text_deinit(&out);
    return status;
}

weft_status_t wefti_page_read_json(const char *path, wefti_json_tree_t *out, wefti_text_t *out_text)
{
    wefti_mapping_t mapping;
    weft_status_t status = wefti_file_map(path, &mapping);
    if (status >= 0) {
        status = wefti_json_parse((const char *)mapping.data, mapping.size_bytes, NULL, out);
        status = status < 0 ? wefti_error_prefix(status, "%s", path) : status;
        if (status >= 0 && out_text != NULL) {
            wefti_text_add_bytes(out_text, mapping.data, mapping.size_bytes);
        }
        wefti_file_unmap(&mapping);
    }
    return status;
}
