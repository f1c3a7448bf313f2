/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/worlds.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/base/error.h"
#include "runtime/base/file.h"

static int by_world(const wefti_live_rank_t *a, const wefti_live_rank_t *b)
{
    const wefti_flight_header_t *x = &a->image->header, *y = &b->image->header;
    int order = strcmp(x->world, y->world);
    if (order == 0 && x->world[0] == '\0' && x->pid != y->pid) {
        order = x->pid < y->pid ? -1 : 1; /* without an address: threads of one process, or alone */
    }
    if (order == 0 && x->world_size != y->world_size) {
        order = x->world_size < y->world_size ? -1 : 1;
    }
    return order;
}

static int by_rank(const void *a, const void *b)
{
    const wefti_live_rank_t *x = a, *y = b;
    int order = by_world(x, y);
    uint32_t left = x->image->header.rank, right = y->image->header.rank;
    return order != 0 ? order : left < right ? -1 : left > right;
}

weft_status_t wefti_worlds_find(wefti_live_ranks_t *out)
{
    weft_status_t status = WEFT_OK;
    DIR *directory = opendir("/proc");
    struct dirent *entry;
    *out = (wefti_live_ranks_t){0};
    while (directory != NULL && status == WEFT_OK && (entry = readdir(directory)) != NULL) {
        char *end;
        long pid = strtol(entry->d_name, &end, 10);
        if (pid > 0 && *end == '\0') {
            status = wefti_live_ranks_add(out, (pid_t)pid);
        }
    }
    if (directory != NULL) {
        closedir(directory);
    }
    if (status < 0) {
        wefti_live_ranks_deinit(out);
        return status;
    }
    if (out->count > 0) {
        qsort(out->list, out->count, sizeof *out->list, by_rank);
    }
    return WEFT_OK;
}

void wefti_worlds_keep(wefti_live_ranks_t *ranks, wefti_live_rank_fn wanted, const void *user)
{
    size_t kept = 0;
    for (size_t from = 0, to; from < ranks->count; from = to) {
        bool keep = false;
        /* kept ranks are written before from: what is compared is still there */
        for (to = from; to == from ||
                        (to < ranks->count && by_world(&ranks->list[from], &ranks->list[to]) == 0);
             to++) {
            keep = keep || wanted(user, &ranks->list[to]);
        }
        for (size_t i = from; i < to; i++) {
            if (keep) {
                ranks->list[kept++] = ranks->list[i];
            } else {
                munmap((void *)(uintptr_t)ranks->list[i].image, ranks->list[i].bytes);
            }
        }
    }
    ranks->count = kept;
}

bool wefti_worlds_continues(const wefti_live_ranks_t *ranks, size_t index)
{
    return index > 0 && by_world(&ranks->list[index - 1], &ranks->list[index]) == 0;
}

/* ---- other hosts ---- */

/* Takes what a rank answered; what is known of ranks here is newer. True: all are known. */
static bool take_answer(void *user, const void *data, size_t bytes)
{
    live_world_t *world = user;
    bool all = true;
    for (size_t at = 0; at + sizeof(wefti_activity_t) <= bytes; at += sizeof(wefti_activity_t)) {
        wefti_activity_t does;
        memcpy(&does, (const char *)data + at, sizeof does);
        does.state[sizeof does.state - 1] = '\0';
        does.host[sizeof does.host - 1] = '\0';
        does.call[sizeof does.call - 1] = '\0';
        if (does.rank < world->count && !wefti_activity_is_known(&world->ranks[does.rank])) {
            world->ranks[does.rank] = does;
        }
    }
    for (size_t i = 0; i < world->count; i++) {
        all = all && wefti_activity_is_known(&world->ranks[i]);
    }
    return all;
}

/* By ranks of this host that are not stopped. */
static weft_status_t ask_others(live_world_t *world, const wefti_live_rank_t *ranks, double wait_s,
                                uint32_t kind,
                                bool (*answered)(void *user, const void *data, size_t bytes),
                                void *user)
{
    wefti_asked_rank_t *asked = calloc(world->here, sizeof *asked);
    uint32_t count = 0;
    WEFT_RETURN_IF_NO_MEMORY(asked != NULL);
    for (size_t i = 0; i < world->here; i++) {
        const char *name = ranks[i].image->header.ask_name;
        if (name[0] != '\0' && ranks[i].state != 'T' && ranks[i].state != 't') {
            asked[count++] = (wefti_asked_rank_t){name, ranks[i].pid};
        }
    }
    weft_status_t status = wefti_ask(asked, count, (uint64_t)(wait_s * 1e9), kind, answered, user);
    snprintf(world->fail, sizeof world->fail, "%s",
             count == 0   ? "all of its ranks here are stopped"
             : status < 0 ? weft_last_error()
                          : "");
    free(asked);
    return WEFT_OK;
}

/* Dumps of ranks on other hosts. */
typedef struct dumping {
    const live_world_t *world;
    const char *folder;
    bool *has_come; /* [world size] */
    weft_status_t status;
} dumping_t;

static weft_status_t write_dump(const dumping_t *dumping, const wefti_dumped_t *head,
                                const void *json)
{
    char path[4096];
    const wefti_piece_t piece = {json, head->bytes};
    WEFT_RETURN_IF_ERROR(wefti_flight_dump_path(dumping->folder, head->rank, head->host, head->pid,
                                                path, sizeof path));
    return wefti_file_write(path, &piece, 1);
}

/* True: all have come, or a file cannot be written. */
static bool take_dumps(void *user, const void *data, size_t bytes)
{
    dumping_t *dumping = user;
    uint32_t count = dumping->world->header->world_size;
    bool all = true;
    for (size_t at = 0; dumping->status == WEFT_OK && bytes - at >= sizeof(wefti_dumped_t);) {
        wefti_dumped_t head;
        memcpy(&head, (const char *)data + at, sizeof head);
        head.host[sizeof head.host - 1] = '\0';
        at += sizeof head;
        if (head.rank >= count || head.bytes > bytes - at) {
            break; /* not a rank's answer */
        }
        if (!dumping->has_come[head.rank] && head.bytes > 0) {
            dumping->status = write_dump(dumping, &head, (const char *)data + at);
        }
        dumping->has_come[head.rank] = true;
        at += head.bytes;
    }
    for (uint32_t r = 0; r < count; r++) {
        all = all && dumping->has_come[r];
    }
    return all || dumping->status < 0;
}

weft_status_t wefti_world_dump(const wefti_live_ranks_t *ranks, size_t first, double wait_s,
                               const char *folder)
{
    const wefti_live_rank_t *list = &ranks->list[first];
    live_world_t world = {.header = &list->image->header};
    weft_status_t status = WEFT_OK;
    for (; first + world.here < ranks->count &&
           (world.here == 0 || wefti_worlds_continues(ranks, first + world.here)) &&
           status == WEFT_OK;
         world.here++) {
        status = wefti_flight_dump_in(list[world.here].image, folder, "weft ps --dump");
    }
    if (status < 0 || wait_s <= 0 || world.header->ask_name[0] == '\0' ||
        world.here >= world.header->world_size) {
        return status;
    }
    dumping_t dumping = {.world = &world, .folder = folder};
    dumping.has_come = calloc(world.header->world_size, sizeof *dumping.has_come);
    WEFT_RETURN_IF_NO_MEMORY(dumping.has_come != NULL);
    for (size_t i = 0; i < world.here; i++) {
        if (list[i].image->header.rank < world.header->world_size) {
            dumping.has_come[list[i].image->header.rank] = true;
        }
    }
    status = ask_others(&world, list, wait_s, WEFTI_ASK_DUMPS, take_dumps, &dumping);
    free(dumping.has_come);
    return status < 0 ? status : dumping.status;
}

weft_status_t wefti_world_init(const wefti_live_ranks_t *ranks, size_t first, double wait_s,
                               live_world_t *out)
{
    const wefti_live_rank_t *list = &ranks->list[first];
    const wefti_flight_header_t *header = &list->image->header;
    wefti_flight_clock_t clock = wefti_flight_clock(list->image);
    wefti_flight_record_t *calls = malloc(WEFTI_FLIGHT_CALLS * sizeof *calls);
    *out = (live_world_t){
        .header = header, .seconds = (double)wefti_flight_now(&clock) * 1e-9, .here = 1};
    while (first + out->here < ranks->count && wefti_worlds_continues(ranks, first + out->here)) {
        out->here++;
    }
    out->asked = wait_s > 0 && header->ask_name[0] != '\0' && out->here < header->world_size;
    out->count = out->asked ? header->world_size : out->here;
    out->ranks = calloc(out->count, sizeof *out->ranks);
    for (size_t i = 0; calls != NULL && out->ranks != NULL && i < out->here; i++) {
        size_t place = out->asked ? list[i].image->header.rank : i;
        wefti_live_rank_observe(&list[i], calls, &out->ranks[place]);
    }
    bool whole = calls != NULL && out->ranks != NULL;
    free(calls);
    if (!whole) {
        wefti_world_deinit(out);
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory");
    }
    for (size_t i = 0; i < out->count; i++) {
        out->ranks[i].rank = out->asked ? (uint32_t)i : out->ranks[i].rank;
    }
    weft_status_t status =
        out->asked ? ask_others(out, list, wait_s, 0, take_answer, out) : WEFT_OK;
    if (status < 0) {
        wefti_world_deinit(out);
    }
    return status;
}

void wefti_world_deinit(live_world_t *world)
{
    free(world->ranks);
    world->ranks = NULL;
}

static bool is_silent_on(const live_world_t *world, size_t rank, const char *host)
{
    return !wefti_activity_is_known(&world->ranks[rank]) &&
           strcmp(world->ranks[rank].host, host) == 0;
}

size_t wefti_world_next_silent(const live_world_t *world, const char *host, size_t from)
{
    while (from < world->count && !is_silent_on(world, from, host)) {
        from++;
    }
    return from;
}

bool wefti_world_first_silent(const live_world_t *world, size_t rank)
{
    return !wefti_activity_is_known(&world->ranks[rank]) &&
           wefti_world_next_silent(world, world->ranks[rank].host, 0) == rank;
}
