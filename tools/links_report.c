/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/links_report.h"
#include "tools/output.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/error.h"

/* Less traffic does not determine the rate of a link. */
#define LEAST_BYTES ((uint64_t)1 << 20)
#define LEAST_S 0.002
#define LINES 12u /* of text */

/* What a rank sent to the ranks of one host. */
typedef struct sent {
    uint64_t bytes;
    double rate; /* bytes a second; all its links to that host are busy side by side */
} sent_t;

/* Number of the host of a rank, or 0. */
static uint32_t host_of(const weft_context_t *context, uint32_t rank, weft_peer_info_t *peer)
{
    *peer = (weft_peer_info_t)WEFT_PEER_INFO_INIT;
    return weft_context_peer_info(context, rank, peer) >= 0 ? peer->host : 0;
}

static void measure(const weft_context_t *context, sent_t *own, double *busy_s, uint32_t hosts)
{
    weft_peer_info_t peer;
    for (uint32_t r = 0; r < weft_context_world_size(context); r++) {
        weft_link_stats_t stats = WEFT_LINK_STATS_INIT;
        uint32_t host = host_of(context, r, &peer);
        if (host < hosts && weft_context_link_stats(context, r, &stats) >= 0) {
            own[host].bytes += stats.bytes_sent;
            busy_s[host] = stats.busy_s > busy_s[host] ? stats.busy_s : busy_s[host];
        }
    }
    for (uint32_t h = 0; h < hosts; h++) {
        bool says = own[h].bytes >= LEAST_BYTES && busy_s[h] >= LEAST_S;
        own[h].rate = says ? (double)own[h].bytes / busy_s[h] : 0;
    }
}

/* all: [world_size * hosts]. */
static weft_status_t add_up(const weft_context_t *context, const sent_t *all, uint32_t hosts,
                            links_report_t *report)
{
    weft_peer_info_t peer;
    sent_t *ways = calloc((size_t)hosts * hosts + 1, sizeof *ways);
    report->links = calloc((size_t)hosts * hosts / 2 + 1, sizeof *report->links);
    if (ways == NULL || report->links == NULL) {
        free(ways);
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: the links of %u hosts", hosts);
    }
    for (uint32_t r = 0; r < weft_context_world_size(context); r++) {
        uint32_t from = host_of(context, r, &peer);
        for (uint32_t to = 0; to < hosts && from < hosts; to++) {
            ways[from * hosts + to].bytes += all[(size_t)r * hosts + to].bytes;
            ways[from * hosts + to].rate += all[(size_t)r * hosts + to].rate;
        }
    }
    for (uint32_t a = 0; a < hosts; a++) {
        for (uint32_t b = a + 1; b < hosts; b++) {
            const sent_t *there = &ways[a * hosts + b], *back = &ways[b * hosts + a];
            host_link_t link = {.hosts = {a, b}, .bytes = there->bytes + back->bytes};
            bool both = there->rate > 0 && back->rate > 0;
            link.rate_bytes_per_s =
                both ? fmin(there->rate, back->rate) : fmax(there->rate, back->rate);
            if (link.bytes > 0) {
                report->links[report->count++] = link;
            }
        }
    }
    free(ways);
    return WEFT_OK;
}

void wefti_links_mark_slow(links_report_t *report)
{
    double *others = malloc((report->count + 1) * sizeof *others);
    for (uint32_t i = 0; others != NULL && i < report->count; i++) {
        uint32_t count = 0;
        for (uint32_t k = 0; k < report->count; k++) {
            if (k != i && report->links[k].rate_bytes_per_s > 0) {
                others[count++] = report->links[k].rate_bytes_per_s;
            }
        }
        wefti_sort_doubles(others, count);
        double rate = report->links[i].rate_bytes_per_s;
        report->links[i].slow = count > 0 && rate > 0 && rate < others[count / 2] / 2;
    }
    free(others);
}

weft_status_t wefti_links_gather(weft_context_t *context, links_report_t *out_report)
{
    uint32_t hosts = weft_context_host_count(context), count = weft_context_world_size(context);
    *out_report = (links_report_t){0};
    if (hosts < 2) {
        return WEFT_OK;
    }
    sent_t *own = calloc(hosts, sizeof *own);
    sent_t *all = calloc((size_t)hosts * count, sizeof *all);
    double *busy_s = calloc(hosts, sizeof *busy_s);
    weft_status_t status = WEFT_OK;
    if (own == NULL || all == NULL || busy_s == NULL) {
        status = wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: the links of %u hosts", hosts);
        weft_context_abort(context, weft_last_error()); /* the others would wait */
    } else {
        measure(context, own, busy_s, hosts);
        status = weft_context_all_gather(context, own, hosts * sizeof *own, all);
    }
    if (status >= 0) {
        status = add_up(context, all, hosts, out_report);
        wefti_links_mark_slow(out_report);
    }
    free(own);
    free(all);
    free(busy_s);
    return status;
}

void wefti_links_free(links_report_t *report)
{
    free(report->links);
    *report = (links_report_t){0};
}

/* Its name, or its number where it has none. */
static void name_host(const weft_context_t *context, uint32_t host, char *name, size_t bytes)
{
    weft_peer_info_t peer;
    snprintf(name, bytes, "%u", host);
    for (uint32_t r = 0; r < weft_context_world_size(context); r++) {
        if (host_of(context, r, &peer) == host && peer.host_name[0] != '\0') {
            snprintf(name, bytes, "%s", peer.host_name);
            return;
        }
    }
}

void wefti_links_print_json(const links_report_t *report, const weft_context_t *context,
                            wefti_json_t *json)
{
    char name[72];
    wefti_json_begin_array(json, "links");
    for (uint32_t i = 0; i < report->count; i++) {
        const host_link_t *link = &report->links[i];
        wefti_json_begin_object(json, NULL);
        wefti_json_begin_array(json, "hosts");
        for (uint32_t end = 0; end < 2; end++) {
            name_host(context, link->hosts[end], name, sizeof name);
            wefti_json_string(json, NULL, name);
        }
        wefti_json_end_array(json);
        wefti_json_int(json, "bytes", (int64_t)link->bytes);
        wefti_json_double(json, "mb_per_s",
                          link->rate_bytes_per_s > 0 ? link->rate_bytes_per_s * 1e-6 : NAN);
        wefti_json_bool(json, "slow", link->slow);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}

void wefti_links_print_text(const links_report_t *report, const weft_context_t *context)
{
    uint32_t printed = 0;
    for (int slow = 1; slow >= 0; slow--) { /* those first */
        for (uint32_t i = 0; i < report->count; i++) {
            const host_link_t *link = &report->links[i];
            char first[72], second[72], bytes[32], rate[48] = "";
            if (link->slow != (slow != 0) || printed++ >= LINES) {
                continue;
            }
            name_host(context, link->hosts[0], first, sizeof first);
            name_host(context, link->hosts[1], second, sizeof second);
            if (link->rate_bytes_per_s > 0) {
                snprintf(rate, sizeof rate, ", %.3g MB/s while busy",
                         link->rate_bytes_per_s * 1e-6);
            }
            printf("between %s and %s: %s%s%s\n", first, second,
                   wefti_format_bytes(link->bytes, bytes), rate,
                   link->slow ? " -- SLOW compared with the others" : "");
        }
    }
    if (printed > LINES) {
        printf("and %u more pair%s of hosts\n", printed - LINES, printed - LINES == 1 ? "" : "s");
    }
}
