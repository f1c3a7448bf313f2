/* SPDX-License-Identifier: Apache-2.0 */
/* Which processors interrupts of network interfaces go to, and giving them better ones. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/machine/machine.h"

#define MOST_INTERRUPTS 4096u

typedef struct finder {
    const char *root;
    wefti_interrupt_t *found;
    uint32_t count;
} finder_t;

static wefti_interrupt_t *find(const finder_t *finder, uint32_t number)
{
    for (uint32_t i = 0; i < finder->count; i++) {
        if (finder->found[i].number == number) {
            return &finder->found[i];
        }
    }
    return NULL;
}

static void add(finder_t *finder, uint32_t number, const char *interface)
{
    if (finder->count < MOST_INTERRUPTS && find(finder, number) == NULL) {
        wefti_interrupt_t *it = &finder->found[finder->count++];
        it->number = number;
        snprintf(it->interface, sizeof it->interface, "%s", interface);
    }
}

/* Message interrupts of the interface's PCI function: a file each, named by number. */
static weft_status_t find_messages(finder_t *finder, wefti_arena_t *arena, const char *interface)
{
    /* virtio and others lie one folder below the function that has the interrupts */
    static const char *const places[] = {"device", "device/.."};
    uint32_t count = 0;
    for (size_t p = 0; p < sizeof places / sizeof *places && count == 0; p++) {
        const char **names;
        WEFT_RETURN_IF_ERROR(wefti_list_folder(arena, &names, &count,
                                               "%s/sys/class/net/%s/%s/msi_irqs", finder->root,
                                               interface, places[p]));
        for (uint32_t i = 0; i < count; i++) {
            char *end = NULL;
            unsigned long number = strtoul(names[i], &end, 10);
            if (end != names[i] && *end == '\0' && number < UINT32_MAX) {
                add(finder, (uint32_t)number, interface);
            }
        }
    }
    return WEFT_OK;
}

/* Is the interface's name a word of what the interrupt is called: "eth0-TxRx-3"? */
static bool names(const char *name, const char *interface)
{
    size_t length = strlen(interface);
    for (const char *at = name; (at = strstr(at, interface)) != NULL; at++) {
        bool begins = at == name || strchr("-@:,_ ", at[-1]) != NULL;
        if (begins && (at[length] == '\0' || strchr("-@:,_ ", at[length]) != NULL)) {
            return true;
        }
    }
    return false;
}

/* " 38:   0   8130  PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0": number, and what it is
 * called, behind a column for each processor, the controller and the kind. */
static bool parse_line(char *line, uint32_t *out_number, const char **out_name)
{
    char *end = NULL;
    unsigned long number = strtoul(line, &end, 10);
    if (end == line || *end != ':' || number >= UINT32_MAX) {
        return false;
    }
    char *last = line + strlen(line);
    while (last > end && (last[-1] == '\n' || last[-1] == ' ')) {
        *--last = '\0';
    }
    /* Names may have spaces and commas; two blanks end what is before them. */
    char *name = last;
    while (name > end + 1 && !(name[-1] == ' ' && name[-2] == ' ')) {
        name--;
    }
    *out_number = (uint32_t)number;
    *out_name = name;
    return true;
}

static void read_names(finder_t *finder, const wefti_hardware_t *hardware)
{
    char path[512], *line = NULL;
    size_t capacity = 0;
    snprintf(path, sizeof path, "%s/proc/interrupts", finder->root);
    FILE *file = fopen(path, "re");
    while (file != NULL && getline(&line, &capacity, file) > 0) {
        uint32_t number;
        const char *name;
        if (!parse_line(line, &number, &name)) {
            continue;
        }
        for (uint32_t n = 0; n < hardware->nic_count; n++) {
            if (names(name, hardware->nics[n].name)) {
                add(finder, number, hardware->nics[n].name);
            }
        }
        wefti_interrupt_t *it = find(finder, number);
        if (it != NULL) {
            snprintf(it->name, sizeof it->name, "%s", name);
        }
    }
    free(line);
    if (file != NULL) {
        fclose(file);
    }
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = ((const wefti_interrupt_t *)a)->number, y = ((const wefti_interrupt_t *)b)->number;
    return (x > y) - (x < y);
}

weft_status_t wefti_interrupts_read(const char *root, const wefti_hardware_t *hardware,
                                    wefti_arena_t *arena, wefti_interrupt_t **out,
                                    uint32_t *out_count)
{
    finder_t finder = {.root = root};
    finder.found = wefti_arena_array(arena, MOST_INTERRUPTS, sizeof *finder.found);
    WEFT_RETURN_IF_NO_MEMORY(finder.found);
    for (uint32_t n = 0; n < hardware->nic_count; n++) {
        WEFT_RETURN_IF_ERROR(find_messages(&finder, arena, hardware->nics[n].name));
    }
    read_names(&finder, hardware);
    for (uint32_t i = 0; i < finder.count; i++) {
        wefti_interrupt_t *it = &finder.found[i];
        wefti_read_line(it->affinity, sizeof it->affinity, "%s/proc/irq/%u/smp_affinity_list", root,
                        it->number);
    }
    qsort(finder.found, finder.count, sizeof *finder.found, by_number);
    *out = finder.found;
    *out_count = finder.count;
    return WEFT_OK;
}

static weft_status_t write_affinity(const char *root, wefti_interrupt_t *it, uint32_t cpu)
{
    char path[512], text[32];
    snprintf(path, sizeof path, "%s/proc/irq/%u/smp_affinity_list", root, it->number);
    int length = snprintf(text, sizeof text, "%u", cpu);
    if (strcmp(it->affinity, text) == 0) {
        return WEFT_OK;
    }
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    ssize_t written = fd >= 0 ? write(fd, text, (size_t)length) : -1;
    int error_number = errno;
    if (fd >= 0) {
        close(fd);
    }
    if (written != length && (error_number == EIO || error_number == EINVAL)) {
        return WEFT_OK; /* the kernel moves this one by itself, or not at all */
    }
    if (written != length) {
        return wefti_error_errno(WEFT_ERR_SYSTEM, error_number,
                                 "cannot set the affinity of interrupt %u of %s; root is required",
                                 it->number, it->interface);
    }
    snprintf(it->affinity, sizeof it->affinity, "%s", text);
    return WEFT_OK;
}

static bool contains(const uint32_t *list, uint32_t count, uint32_t cpu)
{
    for (uint32_t i = 0; i < count; i++) {
        if (list[i] == cpu) {
            return true;
        }
    }
    return false;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Processors next to an interface, growing: those not in avoid, or if there are none, all. Returns
 * how many. */
static uint32_t find_near(const wefti_hardware_t *hardware, const wefti_topo_device_t *nic,
                          const uint32_t *avoid, uint32_t avoid_count, uint32_t *out_cpus)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < hardware->cpu_count; i++) {
        uint32_t cpu = hardware->cpus[i];
        if (!contains(avoid, avoid_count, cpu) && wefti_place_is_near(hardware, nic, cpu)) {
            out_cpus[count++] = cpu;
        }
    }
    qsort(out_cpus, count, sizeof *out_cpus, compare);
    return count > 0 || avoid_count == 0 ? count : find_near(hardware, nic, NULL, 0, out_cpus);
}

weft_status_t wefti_interrupts_bind(const char *root, const wefti_hardware_t *hardware,
                                    const uint32_t *avoid, uint32_t avoid_count,
                                    wefti_interrupt_t *interrupts, uint32_t count)
{
    weft_status_t status = WEFT_OK;
    uint32_t *cpus = wefti_alloc(NULL, (hardware->cpu_count + 1ul) * sizeof *cpus);
    WEFT_RETURN_IF_NO_MEMORY(cpus);
    for (uint32_t n = 0; n < hardware->nic_count; n++) {
        const wefti_topo_device_t *nic = &hardware->nics[n];
        uint32_t next = 0, near = find_near(hardware, nic, avoid, avoid_count, cpus);
        for (uint32_t i = 0; i < count && near > 0 && status >= 0; i++) {
            if (strcmp(interrupts[i].interface, nic->name) == 0) {
                status = write_affinity(root, &interrupts[i], cpus[next++ % near]);
            }
        }
    }
    wefti_free(NULL, cpus);
    return status;
}
