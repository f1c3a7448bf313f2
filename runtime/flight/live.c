/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/flight/live.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ops/collective.h"
#include "ops/signature.h"
#include "runtime/base/memory.h"
#include "transport/bootstrap/bootstrap.h"

#define LINK_NAME "/memfd:" WEFTI_FLIGHT_NAME
#define WINDOW_NS 1000000000ll /* of rates */

/* state and memory; false: the process has ended. */
static bool read_process(wefti_live_rank_t *rank)
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

static wefti_live_rank_t *find_inode(const wefti_live_ranks_t *ranks, ino_t inode)
{
    for (size_t i = 0; i < ranks->count; i++) {
        if (ranks->list[i].inode == inode) {
            return &ranks->list[i];
        }
    }
    return NULL;
}

static bool map_image(int fd, wefti_live_rank_t *out)
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
static weft_status_t add(wefti_live_ranks_t *ranks, pid_t pid, const char *path)
{
    wefti_live_rank_t rank = {.pid = pid};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool mapped = fd >= 0 && map_image(fd, &rank);
    if (fd >= 0) {
        close(fd);
    }
    if (!mapped) {
        return WEFT_OK;
    }
    wefti_live_rank_t *known = find_inode(ranks, rank.inode);
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
weft_status_t wefti_live_ranks_add(wefti_live_ranks_t *ranks, pid_t pid)
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

void wefti_live_ranks_deinit(wefti_live_ranks_t *ranks)
{
    for (size_t i = 0; i < ranks->count; i++) {
        munmap((void *)(uintptr_t)ranks->list[i].image, ranks->list[i].bytes);
    }
    wefti_free(NULL, ranks->list);
    *ranks = (wefti_live_ranks_t){0};
}

/* Of this rank's data; fused calls do not count. */
static double bytes_of(const wefti_flight_record_t *call)
{
    bool counts = call->kind <= WEFTI_FLIGHT_RECV && (call->what & WEFTI_WHAT_FUSED) == 0;
    weft_collective_t op = (weft_collective_t)(call->what & 0xff);
    counts =
        counts && (call->kind != WEFTI_FLIGHT_COLLECTIVE || wefti_collective_has_one_count(op));
    return counts ? (double)call->count *
                        (double)weft_dtype_size_bytes((weft_dtype_t)(call->what >> 8 & 0xff))
                  : 0;
}

static void rates(const wefti_flight_record_t *calls, uint32_t count, int64_t now,
                  wefti_activity_t *out)
{
    uint32_t recent = 0;
    int64_t window = WINDOW_NS;
    for (uint32_t i = count; i > 0 && calls[i - 1].issued_ns > now - WINDOW_NS; i--) {
        recent++;
        out->bytes_per_s += bytes_of(&calls[i - 1]);
        window = recent == count && count == WEFTI_FLIGHT_CALLS ? now - calls[0].issued_ns : window;
    }
    double seconds = (double)(window > 0 ? window : 1) * 1e-9;
    out->calls_per_s = recent / seconds;
    out->bytes_per_s /= seconds;
}

void wefti_live_rank_observe(const wefti_live_rank_t *rank, wefti_flight_record_t *calls,
                             wefti_activity_t *out)
{
    const wefti_flight_header_t *header = &rank->image->header;
    wefti_flight_clock_t clock = wefti_flight_clock(rank->image);
    uint32_t count = wefti_flight_records(rank->image, calls);
    int64_t now = wefti_flight_now(&clock);
    const wefti_flight_record_t *call = NULL, *last = count > 0 ? &calls[count - 1] : NULL;
    const char *state = "idle";
    *out = (wefti_activity_t){.rank = header->rank,
                              .pid = (uint32_t)rank->pid,
                              .awaits = WEFTI_FLIGHT_NO_RANK,
                              .memory_bytes = rank->memory_bytes};
    for (uint32_t i = 0; i < count; i++) {
        /* a call of a group says more than the one of this rank that it is for */
        if (calls[i].state != WEFTI_FLIGHT_DONE &&
            (call == NULL || call->group == WEFTI_FLIGHT_ALONE)) {
            call = &calls[i];
        }
    }
    if (call != NULL) {
        out->in_call = 1;
        state = wefti_flight_state_name(call->state);
        out->awaits = call->awaits;
        out->seconds = (double)(now - call->issued_ns) * 1e-9;
    } else if (last != NULL) {
        int64_t end = last->ended_ns >= 0 ? last->ended_ns : last->issued_ns;
        state = last->status < 0 ? "failed" : "idle";
        out->seconds = (double)(now - end) * 1e-9;
    } else {
        out->seconds = (double)now * 1e-9;
    }
    if (rank->state == 'T' || rank->state == 't') {
        state = "stopped";
    }
    snprintf(out->state, sizeof out->state, "%s", state);
    snprintf(out->host, sizeof out->host, "%s", header->host);
    if (call != NULL || last != NULL) {
        wefti_flight_text(call != NULL ? call : last, out->call);
    }
    rates(calls, count, now, out);
}

/* ---- answers to other hosts ---- */

/* A rank of this host, by what is known without its recorder. */
static const char *state_without_recorder(const wefti_endpoint_t *endpoint, uint32_t rank)
{
    pid_t pid = (pid_t)endpoint->control[rank]->pid;
    return wefti_endpoint_has_left(endpoint, rank)          ? "left"
           : pid > 0 && kill(pid, 0) != 0 && errno == ESRCH ? "ended"
                                                            : "unknown";
}

/* NULL: the rank has no recorder. */
static const wefti_live_rank_t *find_local(const wefti_endpoint_t *endpoint,
                                           wefti_live_ranks_t *ranks, uint32_t rank)
{
    pid_t pid = (pid_t)endpoint->control[rank]->pid;
    (void)wefti_live_ranks_add(ranks, pid); /* no memory: as without a recorder */
    for (size_t i = 0; i < ranks->count; i++) {
        const wefti_flight_header_t *header = &ranks->list[i].image->header;
        if (ranks->list[i].pid == pid && header->world_key == endpoint->world_key &&
            header->rank == rank) {
            return &ranks->list[i];
        }
    }
    return NULL;
}

static void observe_local(const wefti_endpoint_t *endpoint, wefti_live_ranks_t *ranks,
                          wefti_flight_record_t *calls, uint32_t rank, wefti_activity_t *out)
{
    pid_t pid = (pid_t)endpoint->control[rank]->pid;
    const wefti_live_rank_t *live = find_local(endpoint, ranks, rank);
    if (live != NULL) {
        wefti_live_rank_observe(live, calls, out);
    }
    if (!wefti_activity_is_known(out)) {
        out->pid = (uint32_t)pid;
        snprintf(out->state, sizeof out->state, "%s", state_without_recorder(endpoint, rank));
    }
}

/* Does this rank answer for its host in this turn? */
static bool has_turn(const wefti_endpoint_t *endpoint, uint32_t turn)
{
    uint32_t here = 0, before = 0;
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        bool same = endpoint->host_of[r] == endpoint->host_of[endpoint->rank];
        here += same;
        before += same && r < endpoint->rank;
    }
    return turn % here == before;
}

static bool dump_local(const wefti_endpoint_t *endpoint, wefti_live_ranks_t *ranks, uint32_t rank,
                       wefti_text_t *out)
{
    wefti_dumped_t head = {.rank = rank, .pid = endpoint->control[rank]->pid};
    const wefti_live_rank_t *live = find_local(endpoint, ranks, rank);
    wefti_text_t json;
    wefti_text_init(&json, NULL);
    weft_status_t status =
        live != NULL ? wefti_flight_write(live->image, "weft ps --dump", &json) : WEFT_OK;
    head.bytes = json.length;
    snprintf(head.host, sizeof head.host, "%s", live != NULL ? live->image->header.host : "");
    wefti_text_add_bytes(out, &head, sizeof head);
    wefti_text_add_bytes(out, json.data, json.length);
    wefti_text_deinit(&json);
    return status == WEFT_OK && !out->failed;
}

/* Of the ranks of this host. */
static void *answer_dumps(const wefti_endpoint_t *endpoint, size_t *out_bytes)
{
    wefti_live_ranks_t ranks = {0};
    wefti_text_t out;
    bool good = true;
    wefti_text_init(&out, endpoint->allocator);
    for (uint32_t r = 0; r < endpoint->world_size && good; r++) {
        good = endpoint->host_of[r] != endpoint->host_of[endpoint->rank] ||
               dump_local(endpoint, &ranks, r, &out);
    }
    wefti_live_ranks_deinit(&ranks);
    *out_bytes = out.length;
    void *data = good ? wefti_text_take(&out) : NULL;
    wefti_text_deinit(&out);
    return data;
}

void *wefti_live_answer(const wefti_endpoint_t *endpoint, bool relays, uint32_t turn,
                        size_t *out_bytes)
{
    wefti_live_ranks_t ranks = {0};
    uint32_t count = 0;
    bool dumps = (turn & WEFTI_ASK_DUMPS) != 0;
    if (dumps ? relays || !has_turn(endpoint, turn & ~WEFTI_ASK_DUMPS)
              : !relays && !has_turn(endpoint, turn)) {
        return NULL;
    }
    if (dumps) {
        return answer_dumps(endpoint, out_bytes);
    }
    wefti_activity_t *list = wefti_alloc(endpoint->allocator, endpoint->world_size * sizeof *list);
    wefti_flight_record_t *calls = wefti_alloc(NULL, WEFTI_FLIGHT_CALLS * sizeof *calls);
    for (uint32_t r = 0; r < endpoint->world_size && list != NULL && calls != NULL; r++) {
        uint32_t host = endpoint->host_of[r];
        bool here = host == endpoint->host_of[endpoint->rank];
        if (!here && !relays) {
            continue;
        }
        wefti_activity_t *out = &list[count++];
        *out = (wefti_activity_t){.rank = r, .awaits = WEFTI_FLIGHT_NO_RANK};
        if (here) {
            observe_local(endpoint, &ranks, calls, r, out);
        } else if (wefti_endpoint_has_left(endpoint, r)) {
            snprintf(out->state, sizeof out->state, "left");
        }
        if (endpoint->host_names != NULL) {
            snprintf(out->host, sizeof out->host, "%s", endpoint->host_names[host]);
        }
    }
    wefti_free(NULL, calls);
    wefti_live_ranks_deinit(&ranks);
    *out_bytes = count * sizeof *list;
    return list;
}
