/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hardware as few bytes. It is a row of numbers, columns of the tables one behind the other, and
 * names, letter by letter; of the row, differences are written, equal ones once with how often:
 * sockets, nodes and caches of cores come in long runs, processors grow by one. One walk over the
 * tables both writes and reads.
 */
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/machine/cluster.h"

#define FORMAT 1u
#define MAX_NAME 4096u

typedef struct codec {
    wefti_text_t *out; /* writing */
    const uint8_t *at; /* reading */
    const uint8_t *end;
    wefti_arena_t *arena; /* likewise */
    uint64_t last, difference, run;
    bool bad;
} codec_t;

static void write_varint(codec_t *codec, uint64_t value)
{
    uint8_t bytes[10];
    size_t count = 0;
    do {
        bytes[count++] = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
    } while (value != 0);
    wefti_text_add_bytes(codec->out, bytes, count);
}

static uint64_t read_varint(codec_t *codec)
{
    uint64_t value = 0;
    for (uint32_t shift = 0; shift < 64 && codec->at < codec->end; shift += 7) {
        uint8_t byte = *codec->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0) {
            return value;
        }
    }
    codec->bad = true;
    return 0;
}

/* Differences wrap around; small ones of either sign become small numbers. */
static uint64_t fold(uint64_t difference)
{
    return difference << 1 ^ (0 - (difference >> 63));
}

static uint64_t unfold(uint64_t folded)
{
    return folded >> 1 ^ (0 - (folded & 1));
}

static void flush_run(codec_t *codec)
{
    if (codec->run > 0) {
        write_varint(codec, fold(codec->difference));
        write_varint(codec, codec->run);
    }
    codec->run = 0;
}

static void walk64(codec_t *codec, uint64_t *value)
{
    if (codec->out != NULL) {
        uint64_t difference = *value - codec->last;
        if (codec->run > 0 && difference != codec->difference) {
            flush_run(codec);
        }
        codec->difference = difference;
        codec->run++;
        codec->last = *value;
        return;
    }
    if (codec->run == 0) {
        codec->difference = unfold(read_varint(codec));
        codec->run = read_varint(codec);
        codec->bad = codec->bad || codec->run == 0;
    }
    codec->run = codec->bad ? 0 : codec->run - 1;
    codec->last = codec->bad ? 0 : codec->last + codec->difference;
    *value = codec->last;
}

static void walk32(codec_t *codec, uint32_t *value)
{
    uint64_t wide = *value;
    walk64(codec, &wide);
    codec->bad = codec->bad || wide > UINT32_MAX;
    *value = codec->bad ? 0 : (uint32_t)wide;
}

static void walk_count(codec_t *codec, uint32_t *count, uint32_t most)
{
    walk32(codec, count);
    codec->bad = codec->bad || *count > most;
    *count = codec->bad ? 0 : *count;
}

/* Reading: room for what the walk is about to fill. */
static void *room(codec_t *codec, void *array, uint32_t count, size_t elem_bytes)
{
    if (codec->out != NULL) {
        return array;
    }
    void *made = codec->bad ? NULL : wefti_arena_array(codec->arena, count + 1ul, elem_bytes);
    codec->bad = codec->bad || made == NULL;
    return made;
}

static void walk_text(codec_t *codec, const char **text)
{
    uint32_t length = codec->out != NULL ? (uint32_t)strlen(*text) : 0;
    walk_count(codec, &length, MAX_NAME);
    char *read = room(codec, NULL, length, 1);
    for (uint32_t i = 0; i < length && !codec->bad; i++) {
        uint64_t letter = codec->out != NULL ? (uint8_t)(*text)[i] : 0;
        walk64(codec, &letter);
        codec->bad = codec->bad || letter == 0 || letter > 255;
        if (codec->out == NULL && !codec->bad) {
            read[i] = (char)(uint8_t)letter;
        }
    }
    if (codec->out == NULL) {
        *text = codec->bad ? "" : read;
    }
}

static void walk_cores(codec_t *codec, wefti_hardware_t *h)
{
    uint32_t next = 0;
    h->cores = room(codec, h->cores, h->core_count, sizeof *h->cores);
    h->cpus = room(codec, h->cpus, h->cpu_count, sizeof *h->cpus);
    for (uint32_t c = 0; c < h->core_count && !codec->bad; c++) {
        walk32(codec, &h->cores[c].socket);
    }
    for (uint32_t c = 0; c < h->core_count && !codec->bad; c++) {
        walk32(codec, &h->cores[c].numa);
    }
    for (uint32_t c = 0; c < h->core_count && !codec->bad; c++) {
        walk32(codec, &h->cores[c].l2);
    }
    for (uint32_t c = 0; c < h->core_count && !codec->bad; c++) {
        walk32(codec, &h->cores[c].l3);
    }
    for (uint32_t c = 0; c < h->core_count && !codec->bad; c++) {
        walk_count(codec, &h->cores[c].cpu_count, h->cpu_count);
        h->cores[c].first_cpu = next;
        next += h->cores[c].cpu_count;
        codec->bad = codec->bad || next > h->cpu_count;
    }
    /* First threads, then second ones: mostly one run each. */
    for (uint32_t t = 0, found = 1; found > 0 && !codec->bad; t++) {
        found = 0;
        for (uint32_t c = 0; c < h->core_count && !codec->bad; c++) {
            if (h->cores[c].cpu_count > t) {
                walk32(codec, &h->cpus[h->cores[c].first_cpu + t]);
                found++;
            }
        }
    }
}

static void walk_devices(codec_t *codec, uint32_t *count, wefti_topo_device_t **devices)
{
    walk_count(codec, count, WEFTI_TOPO_MAX_DEVICES);
    *devices = room(codec, *devices, *count, sizeof **devices);
    for (uint32_t i = 0; i < *count && !codec->bad; i++) {
        wefti_topo_device_t *device = &(*devices)[i];
        uint32_t down = device->down;
        walk_text(codec, &device->name);
        walk_text(codec, &device->kind);
        walk_text(codec, &device->rdma);
        walk_text(codec, &device->bus);
        walk64(codec, &device->bits_per_s);
        walk32(codec, &device->socket);
        walk32(codec, &device->numa);
        walk32(codec, &device->pci_switch);
        walk32(codec, &down);
        if (codec->out == NULL) {
            device->down = down != 0;
        }
    }
}

static void walk(codec_t *codec, wefti_hardware_t *h)
{
    uint32_t format = FORMAT;
    walk32(codec, &format);
    codec->bad = codec->bad || format != FORMAT;
    walk_text(codec, &h->cpu);
    walk_count(codec, &h->socket_count, WEFTI_TOPO_MAX_CORES);
    walk64(codec, &h->l1_bytes);
    walk64(codec, &h->l2_bytes);
    walk64(codec, &h->l3_bytes);
    walk_count(codec, &h->numa_count, WEFTI_TOPO_MAX_CORES);
    h->numas = room(codec, h->numas, h->numa_count, sizeof *h->numas);
    for (uint32_t n = 0; n < h->numa_count && !codec->bad; n++) {
        walk32(codec, &h->numas[n].os_index);
        walk32(codec, &h->numas[n].socket);
        walk64(codec, &h->numas[n].memory_bytes);
    }
    walk_count(codec, &h->core_count, WEFTI_TOPO_MAX_CORES);
    walk_count(codec, &h->cpu_count, WEFTI_TOPO_MAX_CPUS);
    walk_cores(codec, h);
    walk_devices(codec, &h->nic_count, &h->nics);
    walk_devices(codec, &h->card_count, &h->cards);
}

weft_status_t wefti_hardware_pack(const wefti_hardware_t *hardware, wefti_text_t *out)
{
    wefti_hardware_t copy = *hardware; /* what is written is not changed */
    codec_t codec = {.out = out};
    walk(&codec, &copy);
    flush_run(&codec);
    return out->failed ? WEFT_ERR_NO_MEMORY
           : codec.bad ? wefti_error(WEFT_ERR_FORMAT, "host description: too large to send")
                       : WEFT_OK;
}

weft_status_t wefti_hardware_unpack(const void *bytes, size_t size_bytes, wefti_arena_t *arena,
                                    wefti_hardware_t *out)
{
    const uint8_t *begin = bytes;
    codec_t codec = {.at = begin, .end = begin + size_bytes, .arena = arena};
    *out = (wefti_hardware_t){.cpu = ""};
    walk(&codec, out);
    if (codec.bad || codec.run != 0 || codec.at != codec.end) {
        *out = (wefti_hardware_t){.cpu = ""};
        return wefti_error(WEFT_ERR_FORMAT, "malformed host description of %zu bytes", size_bytes);
    }
    weft_status_t status = wefti_hardware_check(out);
    if (status < 0) {
        *out = (wefti_hardware_t){.cpu = ""};
    }
    return status;
}
