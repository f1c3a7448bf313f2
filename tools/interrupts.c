/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/interrupts.h"

#include <stdio.h>
#include <string.h>

/* The processors that ranks of this host will be bound to. */
static weft_status_t find_taken(const wefti_hardware_t *hardware, uint32_t rank_count,
                                wefti_arena_t *arena, uint32_t *out_cpus, uint32_t *out_count)
{
    weft_status_t status = WEFT_OK;
    *out_count = 0;
    for (uint32_t r = 0; r < rank_count && status >= 0; r++) {
        uint32_t *cpus, count;
        status = wefti_place_cpus(hardware, NULL, 0, r, rank_count, WEFTI_BIND_CORE, arena, &cpus,
                                  &count);
        for (uint32_t i = 0; i < count && *out_count < hardware->cpu_count; i++) {
            out_cpus[(*out_count)++] = cpus[i];
        }
    }
    return status;
}

int wefti_bind_interrupts(const char *command, uint32_t rank_count)
{
    wefti_arena_t arena;
    wefti_hardware_t hardware;
    wefti_interrupt_t *interrupts;
    uint32_t count = 0, taken_count = 0;
    wefti_arena_init(&arena, NULL, 0);
    weft_status_t status = wefti_hardware_discover(true, &arena, &hardware);
    uint32_t *taken = wefti_arena_array(&arena, hardware.cpu_count + 1ul, sizeof *taken);
    if (status >= 0) {
        status = taken != NULL ? find_taken(&hardware, rank_count, &arena, taken, &taken_count)
                               : WEFT_ERR_NO_MEMORY;
    }
    if (status >= 0) {
        status = wefti_interrupts_read("", &hardware, &arena, &interrupts, &count);
    }
    if (status >= 0) {
        status = wefti_interrupts_bind("", &hardware, taken, taken_count, interrupts, count);
    }
    wefti_arena_deinit(&arena);
    return status < 0 ? wefti_status_error(command, status) : EXIT_OK;
}

void wefti_interrupts_print(const wefti_interrupt_t *interrupts, uint32_t count, uint32_t most,
                            wefti_text_t *out)
{
    if (count == 0) {
        return;
    }
    wefti_text_add(out, "\ninterrupts\n");
    for (uint32_t i = 0, shown = 0, left = 0; i < count; i++) {
        const wefti_interrupt_t *it = &interrupts[i];
        bool first = i == 0 || strcmp(it->interface, interrupts[i - 1].interface) != 0;
        bool last = i + 1 == count || strcmp(it->interface, interrupts[i + 1].interface) != 0;
        shown = first ? 0 : shown;
        left = first ? 0 : left;
        if (shown++ < most) {
            wefti_text_printf(out, "  %-12s %5u  on %-10s ", first ? it->interface : "", it->number,
                              it->affinity[0] != '\0' ? it->affinity : "?");
            wefti_text_add_printable(out, it->name);
            wefti_text_add(out, "\n");
        } else {
            left++;
        }
        if (last && left > 0) {
            wefti_text_printf(out, "  %-12s and %u more\n", "", left);
        }
    }
}

void wefti_interrupts_write(const wefti_interrupt_t *interrupts, uint32_t count, wefti_json_t *json)
{
    wefti_json_begin_array(json, "interrupts");
    for (uint32_t i = 0; i < count; i++) {
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "interface", interrupts[i].interface);
        wefti_json_int(json, "number", interrupts[i].number);
        wefti_json_string(json, "name", interrupts[i].name);
        wefti_json_string(json, "affinity", interrupts[i].affinity);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}
