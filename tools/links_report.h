/* SPDX-License-Identifier: Apache-2.0 */
/* What went between hosts, for reports: bytes and rates per pair, slow ones marked. */
#ifndef WEFT_TOOLS_LINKS_REPORT_H
#define WEFT_TOOLS_LINKS_REPORT_H

#include <weft/weft.h>

#include "runtime/base/json.h"

/* Both directions between two hosts. */
typedef struct host_link {
    uint32_t hosts[2];
    uint64_t bytes;
    double rate_bytes_per_s; /* of the slower direction while busy; 0: too little traffic */
    bool slow;               /* less than half of the median of the others */
} host_link_t;

typedef struct links_report {
    host_link_t *links; /* that moved anything */
    uint32_t count;
} links_report_t;

/* Collective. All ranks get the same. */
weft_status_t wefti_links_gather(weft_context_t *context, links_report_t *out_report);
void wefti_links_free(links_report_t *report);
/* Marks what is slow; wefti_links_gather has done so. */
void wefti_links_mark_slow(links_report_t *report);
/* "links": objects with "hosts", "bytes", "mb_per_s" and "slow". */
void wefti_links_print_json(const links_report_t *report, const weft_context_t *context,
                            wefti_json_t *json);
/* A line per pair; nothing on one host. */
void wefti_links_print_text(const links_report_t *report, const weft_context_t *context);

#endif
