/* SPDX-License-Identifier: Apache-2.0 */
/* Pages: one HTML file with style, script and data in it, which reads nothing else. */
#ifndef WEFT_TOOLS_PAGE_H
#define WEFT_TOOLS_PAGE_H

#include "runtime/base/json.h"

#include <weft/plan.h>

/* Texts of tools/page/, which the build embeds. */
extern const char page_base_css[], page_base_js[], page_planner_js[], page_explain_js[],
    page_report_js[];

/* Writes a page: the scripts run in their order, data is a JSON text. Whatever names are in it, they
 * end neither the data nor a script. */
weft_status_t wefti_page_write(const char *path, const char *title, const char *const *scripts,
                               size_t script_count, const wefti_text_t *data);

/* explain_page.c. measured: a profile or a trace of `weft run`; NULL: none. costs: a cost table for
 * what other numbers of ranks would cost; NULL: WEFT_COSTS, or default costs. */
weft_status_t wefti_explain_page(const weft_plan_t *plan, const char *measured, const char *costs,
                                 const char *path);

/* A JSON file; an error names path. out_text, if not NULL: also its bytes, unchanged. */
weft_status_t wefti_page_read_json(const char *path, wefti_json_tree_t *out,
                                   wefti_text_t *out_text);

#endif
