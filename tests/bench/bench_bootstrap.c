/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Meeting of many processes on this machine. usage: bench_bootstrap [RANKS [RANKS_PER_HOST | shm]];
 * 1,024 by default. Without the second argument: the overlay alone, as one flat world: rendezvous,
 * all-gather, a flood, leaving. With a number: whole contexts, so many on each host by WEFT_HOST_ID.
 * With shm: whole contexts at a unix address. Prints one JSON line: seconds since the start at which
 * the last rank was past each stage; then what the ranks hold when all have joined.
 */
#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weft/weft.h>

#include "transport/bootstrap/bootstrap.h"

typedef struct result {
    uint64_t open_ns, gather_ns, flood_ns, close_ns; /* when each was over */
    uint64_t pss_bytes;                              /* of a context, with its share of all */
    uint64_t page_table_bytes, descriptors;
    uint32_t good;
} result_t;

typedef struct told {
    uint32_t count;
} told_t;

static void hear(void *user, uint32_t origin, uint32_t kind, const void *data, size_t bytes)
{
    told_t *told = user;
    (void)origin, (void)kind, (void)data, (void)bytes;
    told->count++;
}

static void ignore_left(void *user, uint32_t rank)
{
    (void)user, (void)rank;
}

static void ignore_died(void *user, uint32_t rank, const char *how)
{
    (void)user, (void)rank, (void)how;
}

static uint16_t free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &length) != 0) {
        perror("a port");
        exit(1);
    }
    close(fd);
    return ntohs(at.sin_port);
}

static bool await_flood(wefti_overlay_t *overlay, const told_t *told)
{
    uint64_t deadline = wefti_now_ns() + 30000000000ull;
    while (told->count == 0 && wefti_now_ns() < deadline) {
        struct pollfd poll_fd = {.fd = wefti_overlay_poll_fd(overlay), .events = POLLIN};
        wefti_overlay_progress(overlay);
        if (told->count == 0) {
            poll(&poll_fd, 1, 1000);
        }
    }
    return told->count == 1;
}

static bool gather(wefti_overlay_t *overlay, const void *own, size_t bytes, void *all)
{
    const wefti_gather_t gather = {
        .send = own, .bytes = bytes, .recv = all, .timeout_ns = 30000000000ull};
    return wefti_overlay_all_gather(overlay, &gather) == WEFT_OK;
}

static bool run_rank(uint32_t rank, uint32_t size, uint16_t port, result_t *result)
{
    wefti_settings_t settings;
    const wefti_log_t log = {.level = WEFT_LOG_LEVEL_WARN};
    wefti_job_t job = {.rank = rank, .world_size = size};
    told_t told = {0};
    wefti_overlay_t *overlay;
    const wefti_overlay_params_t params = {.job = &job,
                                           .settings = &settings,
                                           .log = &log,
                                           .user = &told,
                                           .received = hear,
                                           .left = ignore_left,
                                           .died = ignore_died};
    snprintf(job.address, sizeof job.address, "127.0.0.1:%u", port);
    if (wefti_settings_load(&settings) < 0 || wefti_overlay_open(&params, &overlay) < 0) {
        fprintf(stderr, "rank %u: %s\n", rank, weft_last_error());
        return false;
    }
    result->open_ns = wefti_now_ns();
    uint64_t own[8] = {rank}, *all = calloc(size, sizeof own);
    bool good = all != NULL && gather(overlay, own, sizeof own, all);
    for (uint32_t r = 0; r < size && good; r++) {
        good = all[8 * r] == r;
    }
    result->gather_ns = wefti_now_ns();
    if (rank == size / 2) {
        wefti_overlay_flood(overlay, 1, "news", 4);
    } else {
        good = await_flood(overlay, &told) && good;
    }
    result->flood_ns = wefti_now_ns();
    /* Whoever leaves takes the paths of the flood with it. */
    good = gather(overlay, own, 0, all) && good;
    wefti_overlay_close(overlay, false);
    result->close_ns = wefti_now_ns();
    result->good = good;
    free(all);
    return good;
}

static void measure(result_t *result)
{
    char line[128];
    unsigned long long kib;
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "Pss: %llu kB", &kib) == 1) {
            result->pss_bytes = kib * 1024;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    file = fopen("/proc/self/status", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "VmPTE: %llu kB", &kib) == 1) {
            result->page_table_bytes = kib * 1024;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    DIR *folder = opendir("/proc/self/fd");
    while (folder != NULL && readdir(folder) != NULL) {
        result->descriptors++;
    }
    if (folder != NULL) {
        closedir(folder);
        result->descriptors -= 3; /* ., .. and itself */
    }
}

/* As a program would join: shared memory inside a host, links between hosts. per_host 0: at a unix
 * address. */
static bool run_context(uint32_t rank, uint32_t size, uint16_t port, uint32_t per_host,
                        result_t *result)
{
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_context_t *context;
    char address[64], host[32];
    if (per_host > 0) {
        snprintf(address, sizeof address, "127.0.0.1:%u", port);
        snprintf(host, sizeof host, "host-%u", rank / per_host);
        setenv("WEFT_HOST_ID", host, 1);
    } else {
        snprintf(address, sizeof address, "unix:@weft-bench-%u", port);
    }
    params.rank = (int32_t)rank;
    params.world_size = (int32_t)size;
    params.address = address;
    if (weft_context_create(&params, &context) < 0) {
        fprintf(stderr, "rank %u: %s\n", rank, weft_last_error());
        return false;
    }
    result->open_ns = wefti_now_ns();
    uint64_t own[8] = {rank}, *all = calloc(size, sizeof own);
    bool good = all != NULL && weft_context_all_gather(context, own, sizeof own, all) == WEFT_OK;
    for (uint32_t r = 0; r < size && good; r++) {
        good = all[8 * r] == r;
    }
    result->gather_ns = wefti_now_ns();
    good = weft_context_barrier(context) == WEFT_OK && good;
    result->flood_ns = wefti_now_ns();
    if (getenv("WEFT_BENCH_MEMORY") != NULL) { /* it takes time */
        measure(result);
        good = weft_context_barrier(context) == WEFT_OK && good;
    }
    weft_context_release(context);
    result->close_ns = wefti_now_ns();
    result->good = good;
    free(all);
    return good;
}

static double worst(const result_t *results, uint32_t size, size_t offset, uint64_t began)
{
    uint64_t most = 0;
    for (uint32_t r = 0; r < size; r++) {
        uint64_t value;
        memcpy(&value, (const uint8_t *)&results[r] + offset, sizeof value);
        most = value > most ? value : most;
    }
    return (double)(most - began) * 1e-9;
}

static void print_memory(const result_t *results, uint32_t size)
{
    uint64_t pss = 0, tables = 0, most = 0;
    for (uint32_t r = 0; r < size; r++) {
        pss += results[r].pss_bytes;
        tables += results[r].page_table_bytes;
        most = r > 0 && results[r].descriptors > most ? results[r].descriptors : most;
    }
    if (pss > 0) {
        printf("{\"name\": \"memory\", \"ranks\": %u, \"pss_kib_per_rank\": %llu, "
               "\"page_tables_kib_per_rank\": %llu, \"descriptors_of_rank_0\": %llu, "
               "\"most_descriptors_of_others\": %llu}\n",
               size, (unsigned long long)(pss / size / 1024),
               (unsigned long long)(tables / size / 1024),
               (unsigned long long)results[0].descriptors, (unsigned long long)most);
    }
}

static void print(const result_t *results, uint32_t size, bool contexts, uint64_t began)
{
    uint32_t good = 0;
    for (uint32_t r = 0; r < size; r++) {
        good += results[r].good;
    }
    printf("{\"name\": \"%s\", \"ranks\": %u, \"good\": %u, \"open_s\": %.3f, "
           "\"all_gather_s\": %.3f, \"%s\": %.3f, \"left_s\": %.3f}\n",
           contexts ? "contexts" : "bootstrap", size, good,
           worst(results, size, offsetof(result_t, open_ns), began),
           worst(results, size, offsetof(result_t, gather_ns), began),
           contexts ? "barrier_s" : "flood_s",
           worst(results, size, offsetof(result_t, flood_ns), began),
           worst(results, size, offsetof(result_t, close_ns), began));
}

int main(int argc, char **argv)
{
    uint32_t size = argc > 1 ? (uint32_t)atoi(argv[1]) : 1024;
    bool contexts = argc > 2;
    uint32_t per_host = contexts ? (uint32_t)atoi(argv[2]) : 0; /* of "shm": 0 */
    bool good = true;
    if (size < 2 || size > 4096) {
        fprintf(stderr, "usage: bench_bootstrap [RANKS [RANKS_PER_HOST | shm]]\n");
        return 2;
    }
    result_t *results = mmap(NULL, size * sizeof *results, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t *pids = calloc(size, sizeof *pids);
    uint16_t port = free_port();
    uint64_t began = wefti_now_ns();
    for (uint32_t r = 0; r < size; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            bool fine = contexts ? run_context(r, size, port, per_host, &results[r])
                                 : run_rank(r, size, port, &results[r]);
            _exit(fine ? 0 : 1);
        }
        good = good && pids[r] > 0;
    }
    for (uint32_t r = 0; r < size; r++) {
        int state = 0;
        good = pids[r] > 0 && waitpid(pids[r], &state, 0) == pids[r] && state == 0 && good;
    }
    print(results, size, contexts, began);
    print_memory(results, size);
    free(pids);
    return good ? 0 : 1;
}
