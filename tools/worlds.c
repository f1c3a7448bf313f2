/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/worlds.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINK_NAME "/memfd:" WEFTI_FLIGHT_NAME

/* state and memory; false: the process has ended. */
static bool read_process(live_rank_t *rank)
{
    char path[64], text[1024];
    unsigned long long pages = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)rank->pid);
    FILE *file = fopen(path, "re");
    size_t length = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file != NULL) {
        fclose(file);
    }
    text[length] = '\0';
    const char *end = strrchr(text, ')'); /* of the name, which may hold anything */
    if (end == NULL || sscanf(end + 1, " %c", &rank->state) != 1) {
        return false;
    }
    snprintf(path, sizeof path, "/proc/%d/statm", (int)rank->pid);
    file = fopen(path, "re");
    if (file != NULL) {
        if (fscanf(file, "%*s %llu", &pages) == 1) {
            rank->memory_bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
        }
        fclose(file);
    }
    return true;
}

static live_rank_t *find_inode(const live_ranks_t *ranks, ino_t inode)
{
    for (size_t i = 0; i < ranks->count; i++) {
        if (ranks->list[i].inode == inode) {
            return &ranks->list[i];
        }
    }
    return NULL;
}

static bool map_image(int fd, live_rank_t *out)
{
    struct stat facts;
    int seals = fcntl(fd, F_GET_SEALS); /* memory that may shrink cannot be read safely */
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &facts) != 0 ||
        facts.st_size < (off_t)sizeof *out->image) {
        return false;
    }
    out->bytes = (size_t)facts.st_size;
    out->inode = facts.st_ino;
    void *memory = mmap(NULL, out->bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return false;
    }
    out->image = memory;
    if (!wefti_flight_is_image(out->image, out->bytes)) {
        munmap(memory, out->bytes);
        return false;
    }
    return true;
}

/* Forked children hold the descriptor of their parent's recorder: the rank itself is the process
 * whose number the recorder has, or in a container with numbers of its own the first one found. */
static weft_status_t add(live_ranks_t *ranks, pid_t pid, const char *path)
{
    live_rank_t rank = {.pid = pid};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool mapped = fd >= 0 && map_image(fd, &rank);
    if (fd >= 0) {
        close(fd);
    }
    if (!mapped) {
        return WEFT_OK;
    }
    live_rank_t *known = find_inode(ranks, rank.inode);
    if (known != NULL && (uint32_t)pid == rank.image->header.pid) {
        known->pid = pid;
        read_process(known);
    }
    weft_status_t status = WEFT_OK;
    bool is_new = known == NULL && read_process(&rank);
    if (is_new) {
        status = wefti_array_reserve(NULL, &ranks->list, &ranks->capacity, ranks->count + 1,
                                     sizeof *ranks->list);
    }
    if (!is_new || status < 0) {
        munmap((void *)(uintptr_t)rank.image, rank.bytes);
        return status;
    }
    ranks->list[ranks->count++] = rank;
    return WEFT_OK;
}

/* Other users' processes cannot be looked at, and processes end meanwhile: neither is an error. */
static weft_status_t look_at(live_ranks_t *ranks, pid_t pid)
{
    char folder[64], path[128], target[64];
    weft_status_t status = WEFT_OK;
    snprintf(folder, sizeof folder, "/proc/%d/fd", (int)pid);
    DIR *directory = opendir(folder);
    struct dirent *entry;
    while (directory != NULL && status == WEFT_OK && (entry = readdir(directory)) != NULL) {
        snprintf(path, sizeof path, "%s/%.60s", folder, entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        if (strncmp(target, LINK_NAME, sizeof LINK_NAME - 1) == 0) {
            status = add(ranks, pid, path);
        }
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return status;
}

static int by_world(const live_rank_t *a, const live_rank_t *b)
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
    const live_rank_t *x = a, *y = b;
    int order = by_world(x, y);
    uint32_t left = x->image->header.rank, right = y->image->header.rank;
    return order != 0 ? order : left < right ? -1 : left > right;
}

weft_status_t wefti_worlds_find(live_ranks_t *out)
{
    weft_status_t status = WEFT_OK;
    DIR *directory = opendir("/proc");
    struct dirent *entry;
    *out = (live_ranks_t){0};
    while (directory != NULL && status == WEFT_OK && (entry = readdir(directory)) != NULL) {
        char *end;
        long pid = strtol(entry->d_name, &end, 10);
        if (pid > 0 && *end == '\0') {
            status = look_at(out, (pid_t)pid);
        }
    }
    if (directory != NULL) {
        closedir(directory);
    }
    if (status < 0) {
        wefti_worlds_deinit(out);
        return status;
    }
    if (out->count > 0) {
        qsort(out->list, out->count, sizeof *out->list, by_rank);
    }
    return WEFT_OK;
}

void wefti_worlds_deinit(live_ranks_t *ranks)
{
    for (size_t i = 0; i < ranks->count; i++) {
        munmap((void *)(uintptr_t)ranks->list[i].image, ranks->list[i].bytes);
    }
    wefti_free(NULL, ranks->list);
    *ranks = (live_ranks_t){0};
}

void wefti_worlds_keep(live_ranks_t *ranks, wefti_live_rank_fn wanted, const void *user)
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

bool wefti_worlds_continues(const live_ranks_t *ranks, size_t index)
{
    return index > 0 && by_world(&ranks->list[index - 1], &ranks->list[index]) == 0;
}
