/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts as boxes of sockets; inside, cores in rows with the ranks that are bound to them. */
#include "runtime/machine/draw.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime/machine/place.h"

#define LEAST_WIDTH 40u
#define MOST_WIDTH 240u
#define LABEL_WIDTH 11u /* "      rank " */

typedef struct pen {
    const wefti_cluster_t *cluster;
    const wefti_topo_host_t *host;
    const wefti_hardware_t *hardware;
    wefti_text_t *out;
    uint32_t width; /* of a line inside a box */
    uint32_t cell;  /* of a core */
} pen_t;

/* A line of the box: cut or filled up to its width. Names come from files and other hosts. */
static void boxed(pen_t *pen, const char *format, ...) WEFT_PRINTF(2, 3);
static void boxed(pen_t *pen, const char *format, ...)
{
    char line[512];
    wefti_text_t clean;
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    wefti_text_init(&clean, pen->out->allocator);
    wefti_text_add_printable(&clean, line);
    size_t columns = 0, used = 0;
    for (; used < clean.length; used++) {
        bool begins = ((unsigned char)clean.data[used] & 0xc0) != 0x80; /* a character */
        if (begins && columns == pen->width) {
            break;
        }
        columns += begins;
    }
    wefti_text_printf(pen->out, "| %.*s%*s |\n", (int)used, clean.data != NULL ? clean.data : "",
                      (int)(pen->width - columns), "");
    wefti_text_deinit(&clean);
}

static void rule(pen_t *pen, const char *title)
{
    size_t length = strlen(title);
    wefti_text_printf(pen->out, "+-%s%s", title, length > 0 ? " " : "");
    for (size_t i = length + (length > 0); i < pen->width + 1; i++) {
        wefti_text_add(pen->out, "-");
    }
    wefti_text_add(pen->out, "+\n");
}

/* The rank with a processor of the core, the lowest of several with a +, or a dot. */
static void rank_on(const pen_t *pen, const wefti_topo_core_t *core, char *text, size_t bytes)
{
    uint32_t count = 0;
    snprintf(text, bytes, ".");
    for (uint32_t i = 0; i < pen->host->rank_count && count < 2; i++) {
        const wefti_topo_rank_t *rank = &pen->cluster->ranks[pen->host->ranks[i]];
        bool here = false;
        for (uint32_t k = 0; k < rank->cpu_count * core->cpu_count && !here; k++) {
            here = rank->cpus[k / core->cpu_count] ==
                   pen->hardware->cpus[core->first_cpu + k % core->cpu_count];
        }
        if (here && ++count == 1) {
            snprintf(text, bytes, "%u", pen->host->ranks[i]);
        }
    }
    snprintf(text + strlen(text), bytes - strlen(text), "%s", count > 1 ? "+" : "");
}

static uint32_t cell_width(const pen_t *pen)
{
    uint32_t most = pen->hardware->core_count;
    for (uint32_t i = 0; i < pen->hardware->cpu_count; i++) {
        most = pen->hardware->cpus[i] > most ? pen->hardware->cpus[i] : most;
    }
    uint32_t rank = pen->host->rank_count > 0 ? pen->host->ranks[pen->host->rank_count - 1] : 0;
    int of_number = snprintf(NULL, 0, "%u", most), of_rank = snprintf(NULL, 0, "%u+", rank);
    return 1 + (uint32_t)(of_number > of_rank ? of_number : of_rank);
}

/* One row of a run of cores: 0 has their numbers, 1 to threads the nth hardware thread of each, the
 * last one ranks. */
static void core_row(pen_t *pen, uint32_t first, uint32_t end, uint32_t row, uint32_t threads)
{
    char line[512];
    const char *label = row == 0 ? "core" : row > threads ? "rank" : row == 1 ? "cpu" : "";
    size_t used = (size_t)snprintf(line, sizeof line, "      %-5s", label);
    for (uint32_t c = first; c < end && used + 16 < sizeof line; c++) {
        const wefti_topo_core_t *core = &pen->hardware->cores[c];
        char text[16] = "";
        if (row == 0) {
            snprintf(text, sizeof text, "%u", c);
        } else if (row > threads) {
            rank_on(pen, core, text, sizeof text);
        } else if (row <= core->cpu_count) {
            snprintf(text, sizeof text, "%u", pen->hardware->cpus[core->first_cpu + row - 1]);
        }
        used += (size_t)snprintf(line + used, sizeof line - used, "%*s", (int)pen->cell, text);
    }
    boxed(pen, "%s", line);
}

static void core_rows(pen_t *pen, uint32_t first, uint32_t end)
{
    uint32_t per_line = (pen->width - LABEL_WIDTH) / pen->cell;
    per_line = per_line > 0 ? per_line : 1;
    /* Rows that end at multiples of 8 are easier to count. */
    per_line = per_line > 8 ? per_line / 8 * 8 : per_line;
    for (uint32_t c = first; c < end; c += per_line) {
        uint32_t to = end - c > per_line ? c + per_line : end, threads = 0;
        for (uint32_t i = c; i < to; i++) {
            uint32_t count = pen->hardware->cores[i].cpu_count;
            threads = count > threads ? count : threads;
        }
        for (uint32_t row = 0; row < threads + 2; row++) {
            core_row(pen, c, to, row, threads);
        }
    }
}

#define LIST_BYTES 160u

/* "ranks 0-1,4"; buffer of LIST_BYTES, returned. */
static const char *ranks_text(const uint32_t *ranks, uint32_t count, char *buffer)
{
    char list[128];
    snprintf(buffer, LIST_BYTES, "rank%s %s", count == 1 ? "" : "s",
             wefti_cpulist_format(ranks, count, list, sizeof list));
    return buffer;
}

typedef enum trait { HAS_CARD, HAS_NIC, IS_UNBOUND } trait_t;

/* The ranks of the host with that card or interface, or not bound to cores: "" if there are none.
 */
static const char *ranks_with(const pen_t *pen, trait_t trait, uint32_t index, char *buffer)
{
    uint32_t list[256] = {0}, count = 0;
    for (uint32_t i = 0; i < pen->host->rank_count && count < 256; i++) {
        const wefti_topo_rank_t *rank = &pen->cluster->ranks[pen->host->ranks[i]];
        if (trait == HAS_CARD  ? rank->card == index
            : trait == HAS_NIC ? rank->nic == index
                               : rank->cpu_count == 0) {
            list[count++] = pen->host->ranks[i];
        }
    }
    buffer[0] = '\0';
    return count > 0 ? ranks_text(list, count, buffer) : buffer;
}

static void speed_text(uint64_t bits_per_s, char *buffer, size_t bytes)
{
    bool giga = bits_per_s >= 1000000000;
    if (bits_per_s == 0) {
        snprintf(buffer, bytes, "speed unknown");
    } else {
        snprintf(buffer, bytes, "%g %cbit/s", (double)bits_per_s * (giga ? 1e-9 : 1e-6),
                 giga ? 'G' : 'M');
    }
}

static void draw_device(pen_t *pen, const char *indent, bool card, uint32_t index)
{
    const wefti_topo_device_t *device =
        card ? &pen->hardware->cards[index] : &pen->hardware->nics[index];
    char users[LIST_BYTES], speed[32], behind[32] = "", rdma[80] = "";
    ranks_with(pen, card ? HAS_CARD : HAS_NIC, index, users);
    if (device->pci_switch != WEFTI_TOPO_NONE) {
        snprintf(behind, sizeof behind, "  switch %u", device->pci_switch);
    }
    if (device->rdma[0] != '\0') {
        snprintf(rdma, sizeof rdma, " %.40s", device->rdma);
    }
    speed_text(device->bits_per_s, speed, sizeof speed);
    boxed(pen, "%s%s %.40s  %s%s%.20s%s%s%s%s%s", indent, card ? "card" : "nic", device->name,
          card ? "" : speed, card ? "" : "  ", device->kind, rdma, behind,
          device->down ? "  down" : "", users[0] != '\0' ? "  " : "", users);
}

/* Next to a NUMA node; or to a socket of several nodes; or to nothing in particular. */
static bool is_at(const wefti_topo_device_t *device, uint32_t socket, uint32_t numa)
{
    return device->numa == numa && (numa != WEFTI_TOPO_NONE || device->socket == socket);
}

static void draw_devices(pen_t *pen, const char *indent, uint32_t socket, uint32_t numa)
{
    for (uint32_t i = 0; i < pen->hardware->nic_count; i++) {
        if (is_at(&pen->hardware->nics[i], socket, numa)) {
            draw_device(pen, indent, false, i);
        }
    }
    for (uint32_t i = 0; i < pen->hardware->card_count; i++) {
        if (is_at(&pen->hardware->cards[i], socket, numa)) {
            draw_device(pen, indent, true, i);
        }
    }
}

/* "L3 32 MiB"; buffer of 40 bytes, returned. */
static const char *cache_text(const char *name, uint64_t bytes, char *buffer)
{
    char size[32];
    snprintf(buffer, 40, "%s%s%s", name, bytes > 0 ? " " : "",
             bytes > 0 ? wefti_format_bytes(bytes, size) : "");
    return buffer;
}

static void draw_caches(pen_t *pen, uint32_t first, uint32_t end)
{
    const wefti_hardware_t *h = pen->hardware;
    for (uint32_t c = first, to; c < end; c = to) {
        const wefti_topo_core_t *core = &h->cores[c];
        uint32_t sharing = 1;
        for (to = c + 1; to < end && h->cores[to].l3 == core->l3; to++) {
        }
        while (c + sharing < to && h->cores[c + sharing].l2 == core->l2) {
            sharing++;
        }
        char l3[40] = "", l2[40] = "", users[32] = "each core";
        if (core->l3 != WEFTI_TOPO_NONE) {
            cache_text("L3", h->l3_bytes, l3);
        }
        if (sharing > 1) {
            snprintf(users, sizeof users, "%u cores", sharing);
        }
        if (core->l2 != WEFTI_TOPO_NONE) {
            boxed(pen, "    %s%s%s of %s", l3, l3[0] != '\0' ? ", " : "",
                  cache_text("L2", h->l2_bytes, l2), users);
        } else if (l3[0] != '\0') {
            boxed(pen, "    %s", l3);
        }
        core_rows(pen, c, to);
    }
}

static void draw_socket(pen_t *pen, uint32_t first, uint32_t end)
{
    const wefti_hardware_t *h = pen->hardware;
    char title[32], size[32];
    snprintf(title, sizeof title, " socket %u", h->cores[first].socket);
    rule(pen, title);
    for (uint32_t c = first, to; c < end; c = to) {
        const wefti_topo_numa_t *node = &h->numas[h->cores[c].numa];
        bool sized = node->memory_bytes > 0;
        for (to = c + 1; to < end && h->cores[to].numa == h->cores[c].numa; to++) {
        }
        boxed(pen, "  NUMA node %u%s%s", node->os_index, sized ? ", " : "",
              sized ? wefti_format_bytes(node->memory_bytes, size) : "");
        draw_caches(pen, c, to);
        draw_devices(pen, "    ", h->cores[first].socket, h->cores[c].numa);
    }
    draw_devices(pen, "  ", h->cores[first].socket, WEFTI_TOPO_NONE);
}

static void add_count(wefti_text_t *out, const char *before, uint32_t count, const char *what)
{
    wefti_text_printf(out, "%s%u %s%s", before, count, what, count == 1 ? "" : "s");
}

static void host_line(pen_t *pen)
{
    char ranks[LIST_BYTES];
    const wefti_hardware_t *h = pen->hardware;
    wefti_text_add(pen->out, "host ");
    wefti_text_add_printable(pen->out, pen->host->name);
    if (pen->host->rank_count > 0) {
        wefti_text_printf(pen->out, ": %s",
                          ranks_text(pen->host->ranks, pen->host->rank_count, ranks));
    }
    if (h->core_count == 0) {
        wefti_text_add(pen->out, "\n  nothing is known of what it is made of\n");
        return;
    }
    if (h->cpu[0] != '\0') {
        wefti_text_add(pen->out, "\n  ");
        wefti_text_add_printable(pen->out, h->cpu);
    }
    add_count(pen->out, "\n  ", h->socket_count, "socket");
    add_count(pen->out, ", ", h->numa_count, "NUMA node");
    add_count(pen->out, ", ", h->core_count, "core");
    if (h->cpu_count > h->core_count) {
        add_count(pen->out, ", ", h->cpu_count, "hardware thread");
    }
    wefti_text_add(pen->out, "\n");
}

static void draw_host(pen_t *pen)
{
    const wefti_hardware_t *h = pen->hardware;
    host_line(pen);
    pen->cell = cell_width(pen);
    for (uint32_t c = 0, to; c < h->core_count; c = to) {
        for (to = c + 1; to < h->core_count && h->cores[to].socket == h->cores[c].socket; to++) {
        }
        draw_socket(pen, c, to);
    }
    bool loose = false;
    for (uint32_t i = 0; i < h->nic_count; i++) {
        loose = loose || is_at(&h->nics[i], WEFTI_TOPO_NONE, WEFTI_TOPO_NONE);
    }
    for (uint32_t i = 0; i < h->card_count; i++) {
        loose = loose || is_at(&h->cards[i], WEFTI_TOPO_NONE, WEFTI_TOPO_NONE);
    }
    if (loose) {
        rule(pen, h->socket_count > 1 ? " not next to one socket" : " devices");
        draw_devices(pen, "  ", WEFTI_TOPO_NONE, WEFTI_TOPO_NONE);
    }
    if (h->core_count > 0 || loose) {
        rule(pen, "");
    }
    char unbound[LIST_BYTES];
    if (h->core_count > 0 && ranks_with(pen, IS_UNBOUND, 0, unbound)[0] != '\0') {
        wefti_text_printf(pen->out, "  not bound to cores: %s\n", unbound);
    }
}

/* As the host before: the same hardware, and ranks at the same places. */
static bool looks_alike(const wefti_cluster_t *cluster, uint32_t a, uint32_t b)
{
    const wefti_topo_host_t *x = &cluster->hosts[a], *y = &cluster->hosts[b];
    bool alike = x->hardware == y->hardware && x->rank_count == y->rank_count;
    for (uint32_t i = 0; i < x->rank_count && alike; i++) {
        const wefti_topo_rank_t *of_x = &cluster->ranks[x->ranks[i]],
                                *of_y = &cluster->ranks[y->ranks[i]];
        alike = of_x->nic == of_y->nic && of_x->card == of_y->card &&
                of_x->cpu_count == of_y->cpu_count &&
                (of_x->cpu_count == 0 ||
                 memcmp(of_x->cpus, of_y->cpus, of_x->cpu_count * sizeof *of_x->cpus) == 0);
    }
    return alike;
}

void wefti_cluster_draw(const wefti_cluster_t *cluster, uint32_t width, wefti_text_t *out)
{
    char summary[160];
    width = width < LEAST_WIDTH ? LEAST_WIDTH : width > MOST_WIDTH ? MOST_WIDTH : width;
    if (cluster->name[0] != '\0') {
        wefti_text_add_printable(out, cluster->name);
        wefti_text_add(out, ": ");
    }
    if (cluster->rank_count > 0) {
        wefti_text_printf(out, "%s\n", wefti_cluster_summary(cluster, summary, sizeof summary));
    } else {
        wefti_text_printf(out, "%u host%s, no ranks\n", cluster->host_count,
                          cluster->host_count == 1 ? "" : "s");
    }
    for (uint32_t h = 0, drawn = 0; h < cluster->host_count; h++) {
        pen_t pen = {.cluster = cluster,
                     .host = &cluster->hosts[h],
                     .hardware = cluster->hosts[h].hardware,
                     .out = out,
                     .width = width - 4};
        wefti_text_add(out, "\n");
        if (h > 0 && pen.hardware->core_count > 0 && looks_alike(cluster, drawn, h)) {
            host_line(&pen);
            wefti_text_add(out, "  as host ");
            wefti_text_add_printable(out, cluster->hosts[drawn].name);
            wefti_text_add(out, "\n");
        } else {
            draw_host(&pen);
            drawn = h;
        }
    }
}
