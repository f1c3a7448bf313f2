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

/* The one rank, or the lowest of several, with a processor of the core. */
static uint32_t rank_on(const pen_t *pen, const wefti_topo_core_t *core, uint32_t *out_count)
{
    uint32_t lowest = WEFTI_TOPO_NONE;
    *out_count = 0;
    for (uint32_t i = 0; i < pen->host->rank_count; i++) {
        const wefti_topo_rank_t *rank = &pen->cluster->ranks[pen->host->ranks[i]];
        bool here = false;
        for (uint32_t k = 0; k < rank->cpu_count && !here; k++) {
            for (uint32_t t = 0; t < core->cpu_count && !here; t++) {
                here = rank->cpus[k] == pen->hardware->cpus[core->first_cpu + t];
            }
        }
        lowest = here && *out_count == 0 ? pen->host->ranks[i] : lowest;
        *out_count += here;
    }
    return lowest;
}

static uint32_t digits(uint32_t number)
{
    return (uint32_t)snprintf(NULL, 0, "%u", number);
}

static uint32_t cell_width(const pen_t *pen)
{
    uint32_t most = pen->hardware->core_count;
    for (uint32_t i = 0; i < pen->hardware->cpu_count; i++) {
        most = pen->hardware->cpus[i] > most ? pen->hardware->cpus[i] : most;
    }
    uint32_t rank = pen->host->rank_count > 0 ? pen->host->ranks[pen->host->rank_count - 1] : 0;
    uint32_t width = digits(most), of_rank = digits(rank) + 1; /* "3+" */
    return 1 + (width > of_rank ? width : of_rank);
}

/* One row of a run of cores: what 0: numbers, 1..: the nth hardware thread, UINT32_MAX: ranks. */
static void core_row(pen_t *pen, uint32_t first, uint32_t end, uint32_t what, const char *label)
{
    char line[512];
    size_t used = (size_t)snprintf(line, sizeof line, "%-*s", (int)LABEL_WIDTH, label);
    for (uint32_t c = first; c < end && used + 16 < sizeof line; c++) {
        const wefti_topo_core_t *core = &pen->hardware->cores[c];
        char text[16] = "";
        if (what == 0) {
            snprintf(text, sizeof text, "%u", c);
        } else if (what == UINT32_MAX) {
            uint32_t count, rank = rank_on(pen, core, &count);
            if (count > 0) {
                snprintf(text, sizeof text, "%u%s", rank, count > 1 ? "+" : "");
            } else {
                snprintf(text, sizeof text, ".");
            }
        } else if (what <= core->cpu_count) {
            snprintf(text, sizeof text, "%u", pen->hardware->cpus[core->first_cpu + what - 1]);
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
        core_row(pen, c, to, 0, "      core");
        for (uint32_t t = 1; t <= threads; t++) {
            core_row(pen, c, to, t, t == 1 ? "      cpu" : "");
        }
        core_row(pen, c, to, UINT32_MAX, "      rank");
    }
}

/* " for ranks 0, 1" */
static void users_of(const pen_t *pen, bool card, uint32_t index, char *out, size_t bytes)
{
    uint32_t list[64] = {0}, count = 0;
    char text[128];
    for (uint32_t i = 0; i < pen->host->rank_count && count < 64; i++) {
        const wefti_topo_rank_t *rank = &pen->cluster->ranks[pen->host->ranks[i]];
        if ((card ? rank->card : rank->nic) == index) {
            list[count++] = pen->host->ranks[i];
        }
    }
    wefti_cpulist_format(list, count, text, sizeof text);
    snprintf(out, bytes, "%s%s", count == 0 ? "" : count == 1 ? "  rank " : "  ranks ", text);
}

static const char *speed_text(uint64_t bits_per_s, char *buffer, size_t bytes)
{
    if (bits_per_s == 0) {
        snprintf(buffer, bytes, "speed unknown");
    } else if (bits_per_s >= 1000000000) {
        snprintf(buffer, bytes, "%g Gbit/s", (double)bits_per_s * 1e-9);
    } else {
        snprintf(buffer, bytes, "%g Mbit/s", (double)bits_per_s * 1e-6);
    }
    return buffer;
}

static void draw_device(pen_t *pen, const char *indent, bool card, uint32_t index)
{
    const wefti_topo_device_t *device =
        card ? &pen->hardware->cards[index] : &pen->hardware->nics[index];
    char users[160], speed[32], behind[32] = "", rdma[80] = "";
    users_of(pen, card, index, users, sizeof users);
    if (device->pci_switch != WEFTI_TOPO_NONE) {
        snprintf(behind, sizeof behind, "  switch %u", device->pci_switch);
    }
    if (device->rdma[0] != '\0') {
        snprintf(rdma, sizeof rdma, " %.40s", device->rdma);
    }
    speed_text(device->bits_per_s, speed, sizeof speed);
    boxed(pen, "%s%s %.40s  %s%s%.20s%s%s%s%s", indent, card ? "card" : "nic", device->name,
          card ? "" : speed, card ? "" : "  ", device->kind, rdma, behind,
          device->down ? "  down" : "", users);
}

/* Devices next to a NUMA node; or to a socket of several nodes; or to nothing in particular. */
static void draw_devices(pen_t *pen, const char *indent, uint32_t socket, uint32_t numa)
{
    for (uint32_t card = 0; card < 2; card++) {
        uint32_t count = card ? pen->hardware->card_count : pen->hardware->nic_count;
        for (uint32_t i = 0; i < count; i++) {
            const wefti_topo_device_t *device =
                card ? &pen->hardware->cards[i] : &pen->hardware->nics[i];
            bool here = numa != WEFTI_TOPO_NONE
                            ? device->numa == numa
                            : device->numa == WEFTI_TOPO_NONE && device->socket == socket;
            if (here) {
                draw_device(pen, indent, card != 0, i);
            }
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
        char name[40], l3[44] = "", of_l2[64] = "";
        if (core->l2 != WEFTI_TOPO_NONE) {
            cache_text("L2", h->l2_bytes, name);
            if (sharing > 1) {
                snprintf(of_l2, sizeof of_l2, "%s of %u cores", name, sharing);
            } else {
                snprintf(of_l2, sizeof of_l2, "%s of each core", name);
            }
        }
        if (core->l3 != WEFTI_TOPO_NONE) {
            snprintf(l3, sizeof l3, "%s%s", cache_text("L3", h->l3_bytes, name),
                     of_l2[0] != '\0' ? ", " : "");
        }
        if (l3[0] != '\0' || of_l2[0] != '\0') {
            boxed(pen, "    %s%s", l3, of_l2);
        }
        core_rows(pen, c, to);
    }
}

static void draw_numa(pen_t *pen, uint32_t numa, uint32_t first, uint32_t end)
{
    char size[32];
    const wefti_topo_numa_t *node = &pen->hardware->numas[numa];
    bool sized = node->memory_bytes > 0;
    boxed(pen, "  NUMA node %u%s%s", node->os_index, sized ? ", " : "",
          sized ? wefti_format_bytes(node->memory_bytes, size) : "");
    draw_caches(pen, first, end);
}

static void draw_socket(pen_t *pen, uint32_t first, uint32_t end)
{
    const wefti_hardware_t *h = pen->hardware;
    char title[32];
    snprintf(title, sizeof title, " socket %u", h->cores[first].socket);
    rule(pen, title);
    for (uint32_t c = first, to; c < end; c = to) {
        for (to = c + 1; to < end && h->cores[to].numa == h->cores[c].numa; to++) {
        }
        draw_numa(pen, h->cores[c].numa, c, to);
        draw_devices(pen, "    ", h->cores[first].socket, h->cores[c].numa);
    }
    draw_devices(pen, "  ", h->cores[first].socket, WEFTI_TOPO_NONE);
}

static void add_count(wefti_text_t *out, uint32_t count, const char *what)
{
    wefti_text_printf(out, "%u %s%s", count, what, count == 1 ? "" : "s");
}

static void host_line(pen_t *pen)
{
    char list[128];
    const wefti_hardware_t *h = pen->hardware;
    wefti_text_add(pen->out, "host ");
    wefti_text_add_printable(pen->out, pen->host->name);
    if (pen->host->rank_count > 0) {
        wefti_cpulist_format(pen->host->ranks, pen->host->rank_count, list, sizeof list);
        wefti_text_printf(pen->out, ": rank%s %s", pen->host->rank_count == 1 ? "" : "s", list);
    }
    wefti_text_add(pen->out, "\n");
    if (h->core_count > 0) {
        wefti_text_add(pen->out, "  ");
        if (h->cpu[0] != '\0') {
            wefti_text_add_printable(pen->out, h->cpu);
            wefti_text_add(pen->out, "\n  ");
        }
        add_count(pen->out, h->socket_count, "socket");
        wefti_text_add(pen->out, ", ");
        add_count(pen->out, h->numa_count, "NUMA node");
        wefti_text_add(pen->out, ", ");
        add_count(pen->out, h->core_count, "core");
        if (h->cpu_count > h->core_count) {
            wefti_text_add(pen->out, ", ");
            add_count(pen->out, h->cpu_count, "hardware thread");
        }
        wefti_text_add(pen->out, "\n");
    } else {
        wefti_text_add(pen->out, "  nothing is known of what it is made of\n");
    }
}

/* Bound ranks are on the cores; what is left is said. */
static void say_unbound(pen_t *pen)
{
    uint32_t list[256] = {0}, count = 0;
    char text[128];
    for (uint32_t i = 0; i < pen->host->rank_count && count < 256; i++) {
        if (pen->cluster->ranks[pen->host->ranks[i]].cpu_count == 0) {
            list[count++] = pen->host->ranks[i];
        }
    }
    if (count > 0 && pen->hardware->core_count > 0) {
        wefti_cpulist_format(list, count, text, sizeof text);
        wefti_text_printf(pen->out, "  not bound to cores: rank%s %s\n", count == 1 ? "" : "s",
                          text);
    }
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
    for (uint32_t i = 0; i < h->nic_count + h->card_count; i++) {
        const wefti_topo_device_t *device =
            i < h->nic_count ? &h->nics[i] : &h->cards[i - h->nic_count];
        loose = loose || (device->numa == WEFTI_TOPO_NONE && device->socket == WEFTI_TOPO_NONE);
    }
    if (loose) {
        rule(pen, h->socket_count > 1 ? " not next to one socket" : " devices");
        draw_devices(pen, "  ", WEFTI_TOPO_NONE, WEFTI_TOPO_NONE);
    }
    if (h->core_count > 0 || loose) {
        rule(pen, "");
    }
    say_unbound(pen);
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
