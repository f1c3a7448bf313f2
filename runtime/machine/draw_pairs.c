/* SPDX-License-Identifier: Apache-2.0 */
/* By what pairs of ranks reach each other, one by one or in classes. */
#include <stdio.h>
#include <string.h>

#include "runtime/machine/draw.h"
#include "runtime/machine/place.h"

#define MOST_SINGLE 4u      /* ranks whose pairs are listed one by one */
#define MOST_CLASSES 48u    /* that are told apart */
#define MOST_COMPARED 2048u /* ranks whose pairs are looked at */

typedef struct class
{
    wefti_topo_path_t path;
    uint32_t a, b; /* the first of them */
    uint64_t count;
} class_t;

static const char *inside(const wefti_hardware_t *h, const wefti_topo_rank_t *a,
                          const wefti_topo_rank_t *b)
{
    uint32_t x = a->cpu_count > 0 ? wefti_hardware_core_of(h, a->cpus[0]) : WEFTI_TOPO_NONE,
             y = b->cpu_count > 0 ? wefti_hardware_core_of(h, b->cpus[0]) : WEFTI_TOPO_NONE;
    if (x == WEFTI_TOPO_NONE || y == WEFTI_TOPO_NONE) {
        return "same host";
    }
    const wefti_topo_core_t *of_a = &h->cores[x], *of_b = &h->cores[y];
    return x == y                                                ? "same core"
           : of_a->l2 == of_b->l2 && of_a->l2 != WEFTI_TOPO_NONE ? "same L2 cache"
           : of_a->l3 == of_b->l3 && of_a->l3 != WEFTI_TOPO_NONE ? "same L3 cache"
           : of_a->numa == of_b->numa                            ? "same NUMA node"
           : of_a->socket == of_b->socket                        ? "same socket"
                                                                 : "other socket";
}

static const wefti_topo_device_t *nic_of(const wefti_cluster_t *cluster, uint32_t rank)
{
    const wefti_topo_rank_t *it = &cluster->ranks[rank];
    return it->nic != WEFTI_TOPO_NONE ? &cluster->hosts[it->host].hardware->nics[it->nic] : NULL;
}

void wefti_topo_path(const wefti_cluster_t *cluster, uint32_t a, uint32_t b, wefti_topo_path_t *out)
{
    const wefti_topo_rank_t *x = &cluster->ranks[a], *y = &cluster->ranks[b];
    *out = (wefti_topo_path_t){"", "", ""};
    if (x->host == y->host) {
        snprintf(out->transport, sizeof out->transport, "%s", a == b ? "self" : "shm");
        snprintf(out->path, sizeof out->path, "%s", inside(cluster->hosts[x->host].hardware, x, y));
        snprintf(out->why, sizeof out->why, "one host: memory mapped by both");
        return;
    }
    const wefti_topo_device_t *from = nic_of(cluster, a), *to = nic_of(cluster, b);
    wefti_topo_link_t link = wefti_cluster_link(cluster, x->host, y->host);
    bool rdma = from != NULL && to != NULL && from->rdma[0] != '\0' && to->rdma[0] != '\0';
    char speed[32] = "", rails[32] = "";
    if (link.bits_per_s / link.rails > 0) {
        snprintf(speed, sizeof speed, ", %g Gbit/s", (double)(link.bits_per_s / link.rails) * 1e-9);
    }
    if (link.rails > 1) {
        snprintf(rails, sizeof rails, ", 1 of %u rails", link.rails);
    }
    snprintf(out->transport, sizeof out->transport, "%s", rdma ? "verbs" : "tcp");
    snprintf(out->path, sizeof out->path, "%.24s - %.24s%s%s", from != NULL ? from->name : "?",
             to != NULL ? to->name : "?", speed, rails);
    const char *place = wefti_place_nic_why(cluster, a);
    bool placed = place[0] != '\0';
    snprintf(out->why, sizeof out->why, "%s%s%.24s%s%s",
             rdma                           ? "two hosts with RDMA at both ends"
             : from == NULL || to == NULL   ? "two hosts of which no interface is known"
             : from->rdma[0] != to->rdma[0] ? "two hosts, RDMA at one end only"
                                            : "two hosts without RDMA",
             placed ? "; " : "", placed ? from->name : "", placed ? ": " : "", place);
}

typedef struct table {
    const wefti_cluster_t *cluster;
    wefti_topo_path_fn path;
    void *user;
    class_t classes[MOST_CLASSES];
    uint32_t count;
    bool single; /* every pair on its own */
} table_t;

/* Pairs of the same hosts (of more than a few: of one, or of two), by the same transport along the
 * same path. */
static bool is_of_class(const table_t *table, const class_t *class, uint32_t a, uint32_t b,
                        const wefti_topo_path_t *path)
{
    const wefti_topo_rank_t *ranks = table->cluster->ranks;
    uint32_t from = ranks[a].host, to = ranks[b].host, x = ranks[class->a].host,
             y = ranks[class->b].host;
    return (x == y) == (from == to) &&
           (table->cluster->host_count > 4 || (x == from && y == to) || (x == to && y == from)) &&
           strcmp(class->path.transport, path->transport) == 0 &&
           strcmp(class->path.path, path->path) == 0 &&
           /* real ones name addresses, which differ for every pair */
           (table->path != NULL || strcmp(class->path.why, path->why) == 0);
}

static void add_pair(table_t *table, uint32_t a, uint32_t b)
{
    wefti_topo_path_t path;
    wefti_topo_path(table->cluster, a, b, &path);
    if (table->path != NULL) {
        table->path(table->user, a, b, &path);
    }
    for (uint32_t i = 0; i < table->count && !table->single; i++) {
        if (i + 1 == MOST_CLASSES || is_of_class(table, &table->classes[i], a, b, &path)) {
            table->classes[i].count++;
            return;
        }
    }
    if (table->count < MOST_CLASSES) {
        table->classes[table->count++] = (class_t){.path = path, .a = a, .b = b, .count = 1};
    }
}

static void fill(table_t *table)
{
    uint32_t count = table->cluster->rank_count;
    table->single = count <= MOST_SINGLE;
    count = count > MOST_COMPARED ? MOST_COMPARED : count;
    for (uint32_t a = 0; a < count; a++) {
        for (uint32_t b = a + 1; b < count; b++) {
            add_pair(table, a, b);
        }
    }
}

/* A text that begins in column indent, broken between words. */
static void add_wrapped(wefti_text_t *out, const char *text, uint32_t indent, uint32_t width)
{
    uint32_t column = indent;
    while (*text != '\0') {
        size_t length = strcspn(text, " ");
        if (column > indent && column + 1 + length > width) {
            wefti_text_printf(out, "\n%*s", (int)indent, "");
            column = indent;
        } else {
            wefti_text_add(out, column > indent ? " " : "");
            column += column > indent;
        }
        char word[200];
        snprintf(word, sizeof word, "%.*s", (int)length, text);
        wefti_text_add_printable(out, word);
        column += (uint32_t)length;
        text += length;
        text += strspn(text, " ");
    }
    wefti_text_add(out, "\n");
}

static void draw_class(const table_t *table, const class_t *class, uint32_t width,
                       wefti_text_t *out)
{
    char text[320];
    if (!table->single) {
        wefti_text_printf(out, "%8llu  ", (unsigned long long)class->count);
    }
    wefti_text_printf(out, "%4u - %-4u %-6s ", class->a, class->b, class->path.transport);
    snprintf(text, sizeof text, "%s%s%s", class->path.path,
             class->path.path[0] != '\0' && class->path.why[0] != '\0' ? ": " : "",
             class->path.why);
    add_wrapped(out, text, table->single ? 19 : 29, width);
}

void wefti_cluster_draw_pairs(const wefti_cluster_t *cluster, wefti_topo_path_fn path, void *user,
                              uint32_t width, wefti_text_t *out)
{
    table_t table = {.cluster = cluster, .path = path, .user = user};
    if (cluster->rank_count < 2) {
        return;
    }
    fill(&table);
    wefti_text_add(out, table.single ? "\n   ranks    by     path, and why\n"
                                     : "\n   pairs  such as     by     path, and why\n");
    for (uint32_t i = 0; i < table.count; i++) {
        draw_class(&table, &table.classes[i], width, out);
    }
    if (table.count == MOST_CLASSES) {
        wefti_text_add(out, "  the last line has whatever else there is\n");
    }
}

void wefti_cluster_write_pairs(const wefti_cluster_t *cluster, wefti_topo_path_fn path, void *user,
                               wefti_json_t *json)
{
    table_t table = {.cluster = cluster, .path = path, .user = user};
    fill(&table);
    wefti_json_begin_array(json, "pairs");
    for (uint32_t i = 0; i < table.count; i++) {
        const class_t *class = &table.classes[i];
        wefti_json_begin_object(json, NULL);
        wefti_json_begin_array(json, "ranks");
        wefti_json_int(json, NULL, class->a);
        wefti_json_int(json, NULL, class->b);
        wefti_json_end_array(json);
        wefti_json_int(json, "count", (int64_t) class->count);
        wefti_json_string(json, "transport", class->path.transport);
        wefti_json_string(json, "path", class->path.path);
        wefti_json_string(json, "why", class->path.why);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}
