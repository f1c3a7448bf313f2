/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/worlds.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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
