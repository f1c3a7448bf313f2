/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a world whose ranks reach each other by RDMA; tests/rdma/suite.sh starts them.
 * usage: rdma_world collectives | broken | memory | speed
 *   collectives  all of them, small and large, in plain and in registered memory
  *   broken       a queue pair dies under a call: the call ends with an error that names the link,
 *                the next ones go over tcp (or, with WEFT_FALLBACK=off, nowhere)
 *   memory       rank 1 may lock little memory: all ranks learn of it, and go on with less
 *   speed        bandwidth and latency of put and signal between ranks 0 and 1
 */
#include <infiniband/verbs.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <weft/weft.h>

#include "runtime/context/context.h"

#define LARGE 20000u /* elements */

static weft_context_t *context;
static weft_group_t *group;
static uint32_t rank, size;
static _Atomic uint32_t warnings;

static void check(bool condition, const char *text, int line)
{
    if (!condition) {
        fprintf(stderr, "rank %u, line %d: %s [%s]\n", rank, line, text, weft_last_error());
        exit(1);
    }
}
#define CHECK(condition) check((condition), #condition, __LINE__)
#define OK(call) check((call) == WEFT_OK, #call, __LINE__)

/* ---- queue pairs of this process, as the library makes them (-Wl,--wrap=ibv_create_qp) ---- */

static struct ibv_qp *made[64];
static uint32_t made_count;

struct ibv_qp *__real_ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *__wrap_ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *__wrap_ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct ibv_qp *qp = __real_ibv_create_qp(pd, attr);
    if (qp != NULL && made_count < sizeof made / sizeof made[0]) {
        made[made_count++] = qp;
    }
    return qp;
}

static void count_warning(void *user, weft_log_level_t level, const char *line)
{
    (void)user;
    if (level == WEFT_LOG_LEVEL_WARN) {
        atomic_fetch_add(&warnings, 1);
    }
    if (level <= WEFT_LOG_LEVEL_INFO) {
        printf("rank %u: %s\n", rank, line);
    }
}

/* ---- collectives ---- */

static float value(uint32_t from, uint64_t i)
{
    return (float)((from * 131 + i * 7) % 251);
}

static void fill(float *x, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        x[i] = value(rank, i);
    }
}

static float sum(uint64_t i)
{
    float total = 0;
    for (uint32_t r = 0; r < size; r++) {
        total += value(r, i);
    }
    return total;
}

static void reductions(float *a, float *b, uint64_t n, uint32_t root)
{
    fill(a, n * size);
    OK(weft_all_reduce(a, b, n, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
    for (uint64_t i = 0; i < n; i++) {
        CHECK(b[i] == sum(i));
    }
    OK(weft_reduce_scatter(a, b, n, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
    for (uint64_t i = 0; i < n; i++) {
        CHECK(b[i] == sum(rank * n + i));
    }
    OK(weft_reduce(a, b, n, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, root, group, NULL));
    for (uint64_t i = 0; i < n && rank == root; i++) {
        CHECK(b[i] == sum(i));
    }
}

static void copies(float *a, float *b, uint64_t n, uint32_t root)
{
    fill(a, n * size);
    OK(weft_all_gather(a, b, n, WEFT_DTYPE_F32, group, NULL));
    for (uint64_t i = 0; i < n * size; i++) {
        CHECK(b[i] == value((uint32_t)(i / n), i % n));
    }
    OK(weft_gather(a, b, n, WEFT_DTYPE_F32, root, group, NULL));
    for (uint64_t i = 0; i < n * size && rank == root; i++) {
        CHECK(b[i] == value((uint32_t)(i / n), i % n));
    }
    OK(weft_scatter(a, b, n, WEFT_DTYPE_F32, root, group, NULL));
    for (uint64_t i = 0; i < n; i++) {
        CHECK(b[i] == value(root, rank * n + i));
    }
    OK(weft_all_to_all(a, b, n, WEFT_DTYPE_F32, group, NULL));
    for (uint64_t i = 0; i < n * size; i++) {
        CHECK(b[i] == value((uint32_t)(i / n), rank * n + i % n));
    }
    OK(weft_broadcast(a, b, n, WEFT_DTYPE_F32, root, group, NULL));
    for (uint64_t i = 0; i < n; i++) {
        CHECK(b[i] == value(root, i));
    }
    OK(weft_barrier(group, NULL));
}

/* Blocks of n, n - 1, n - 2, .. elements. */
static void uneven(float *a, float *b, uint64_t n)
{
    uint64_t counts[64], places[64], matrix[64], from[64], at = 0;
    for (uint32_t r = 0; r < size; r++) {
        counts[r] = n > r ? n - r : 0;
        places[r] = at;
        at += counts[r];
    }
    fill(a, n * size);
    OK(weft_all_gather_v(a, b, counts, NULL, WEFT_DTYPE_F32, group, NULL));
    for (uint32_t r = 0; r < size; r++) {
        for (uint64_t i = 0; i < counts[r]; i++) {
            CHECK(b[places[r] + i] == value(r, i));
        }
    }
    OK(weft_reduce_scatter_v(a, b, counts, NULL, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL));
    for (uint64_t i = 0; i < counts[rank]; i++) {
        CHECK(b[i] == sum(places[rank] + i));
    }
    at = 0;
    for (uint32_t r = 0; r < size; r++) { /* rank s sends counts[s] elements to everybody */
        matrix[r] = counts[rank];
        from[r] = counts[rank] * r;
    }
    OK(weft_all_to_all_v(a, matrix, from, b, counts, places, WEFT_DTYPE_F32, group, NULL));
    for (uint32_t r = 0; r < size; r++) {
        for (uint64_t i = 0; i < counts[r]; i++) {
            CHECK(b[places[r] + i] == value(r, counts[r] * rank + i));
        }
    }
}

static void exchange(float *a, float *b, uint64_t n)
{
    fill(a, n);
    OK(weft_batch_begin(group));
    OK(weft_send(a, n, WEFT_DTYPE_F32, (rank + 1) % size, group, NULL));
    OK(weft_recv(b, n, WEFT_DTYPE_F32, (rank + size - 1) % size, group, NULL));
    OK(weft_batch_end(group, NULL));
    for (uint64_t i = 0; i < n; i++) {
        CHECK(b[i] == value((rank + size - 1) % size, i));
    }
}

static void all_of_them(float *a, float *b)
{
    static const uint64_t counts[] = {1, 300, LARGE};
    for (uint32_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        reductions(a, b, counts[c], c % size);
        copies(a, b, counts[c], (c + 1) % size);
        uneven(a, b, counts[c]);
        exchange(a, b, counts[c]);
    }
}

static void collectives(void)
{
    size_t bytes = (size_t)LARGE * size * sizeof(float);
    void *shared[2];
    float *a = malloc(bytes), *b = malloc(bytes);
    all_of_them(a, b);
    OK(weft_mem_alloc(context, bytes, &shared[0]));
    OK(weft_mem_alloc(context, bytes, &shared[1]));
    all_of_them(shared[0], shared[1]);
    OK(weft_mem_free(context, shared[1]));
    OK(weft_mem_free(context, shared[0]));
    free(a);
    free(b);
}

/* ---- a queue pair dies ---- */

static _Atomic uint32_t calls_done;

static void *kill_queue_pair(void *unused)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    (void)unused;
    while (atomic_load(&calls_done) < 5) {
        sched_yield();
    }
    CHECK(ibv_modify_qp(made[0], &attr, IBV_QP_STATE) == 0);
    return NULL;
}

static void broken(void)
{
    const char *fallback = getenv("WEFT_FALLBACK");
    bool ends = fallback != NULL && strcmp(fallback, "off") == 0;
    float *a = malloc(LARGE * sizeof *a), *b = malloc(LARGE * sizeof *b);
    uint32_t failed = 0, after = 0;
    char text[512] = "";
    pthread_t killer;
    weft_peer_info_t info = WEFT_PEER_INFO_INIT;
    CHECK(size == 2 && made_count > 0);
    fill(a, LARGE);
    if (rank == 1) {
        CHECK(pthread_create(&killer, NULL, kill_queue_pair, NULL) == 0);
    }
    for (uint32_t call = 0; call < 30; call++) {
        if (rank == 1 && call == 7) { /* however late the killer's thread is scheduled */
            pthread_join(killer, NULL);
        }
        weft_status_t status =
            weft_all_reduce(a, b, LARGE, WEFT_DTYPE_F32, WEFT_REDUCTION_SUM, group, NULL);
        if (status == WEFT_ERR_LINK) {
            failed++;
            after = 0;
            snprintf(text, sizeof text, "%s", weft_last_error());
        } else {
            OK(status);
            after++;
            CHECK(b[0] == sum(0) && b[LARGE - 1] == sum(LARGE - 1));
        }
        atomic_store(&calls_done, call);
    }
    CHECK(failed > 0);
    CHECK(strstr(text, "verbs link") != NULL && strstr(text, "rank 0") != NULL &&
          strstr(text, "rank 1") != NULL);
    /* What came over tcp may have told rank 0 first. */
    CHECK((strstr(text, "rxe") != NULL && strstr(text, "queue pair") != NULL &&
           strstr(text, "status") != NULL) ||
          (rank == 0 && strstr(text, "the other end closed it") != NULL));
    OK(weft_context_peer_info(context, 1 - rank, &info));
    printf("rank %u: %u calls failed, then %u were good, over %s: %s\n", rank, failed, after,
           info.transport, text);
    if (ends) {
        CHECK(after == 0 && failed >= 20);
    } else {
        CHECK(after >= 20 && strcmp(info.transport, "tcp") == 0);
        while (atomic_load(&warnings) == 0) { /* the thread that moved the link is about to warn */
            sched_yield();
        }
    }
    free(a);
    free(b);
}

/* ---- memory that may not be locked ---- */

/* Before the device is opened: whoever changed what it may do is refused by the kernel after that.
 */
static void lock_little(void)
{
    struct rlimit limit = {48u << 20, 48u << 20};
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    CHECK(syscall(SYS_capget, &header, data) == 0);
    data[CAP_IPC_LOCK / 32].effective &= ~(1u << (CAP_IPC_LOCK % 32));
    CHECK(syscall(SYS_capset, &header, data) == 0);
}

static void memory(void)
{
    void *large = NULL, *small = NULL;
    CHECK(weft_mem_alloc(context, (size_t)64 << 20, &large) == WEFT_ERR_NO_MEMORY);
    CHECK(large == NULL && strstr(weft_last_error(), "rank 1") != NULL &&
          strstr(weft_last_error(), "ulimit -l") != NULL);
    if (rank == 0) {
        printf("rank 0: %s\n", weft_last_error());
    }
    OK(weft_mem_alloc(context, (size_t)4 << 20, &small));
    exchange(small, (float *)small + LARGE, LARGE);
    OK(weft_mem_free(context, small));
}

/* ---- speed ---- */

static void wait_for(wefti_endpoint_t *endpoint, size_t offset, uint32_t target)
{
    wefti_signal_t *own = (wefti_signal_t *)(void *)(endpoint->region_of[rank] + offset);
    while (!wefti_signal_reached(atomic_load(&own->value), target)) {
        wefti_endpoint_progress(endpoint);
    }
}

static double put_bandwidth(wefti_endpoint_t *endpoint, size_t at, size_t bytes, uint32_t count)
{
    wefti_signal_t lent = {0};
    uint32_t peer = 1 - rank;
    uint64_t begin = wefti_now_ns();
    for (uint32_t i = 0; i < count && rank == 0; i++) {
        OK(wefti_put_zero_copy(endpoint, peer, at + 4096, endpoint->region_of[rank] + at + 4096,
                               bytes, 0, &lent));
        while (!wefti_signal_reached(atomic_load(&lent.value), (uint32_t)-16)) {
            wefti_endpoint_progress(endpoint);
        }
    }
    if (rank == 0) {
        OK(wefti_signal_peer(endpoint, peer, at, count, 0));
        wait_for(endpoint, at + 128, count);
        while (!wefti_signal_reached(atomic_load(&lent.value), 0)) {
            wefti_endpoint_progress(endpoint);
        }
    } else {
        wait_for(endpoint, at, count);
        OK(wefti_signal_peer(endpoint, peer, at + 128, count, 0));
    }
    return (double)bytes * count / 1e6 / ((double)(wefti_now_ns() - begin) / 1e9);
}

static double put_latency(wefti_endpoint_t *endpoint, size_t at, uint32_t rounds)
{
    uint64_t begin = wefti_now_ns(), word = 1;
    uint32_t peer = 1 - rank;
    for (uint32_t i = 1; i <= rounds; i++) {
        if (rank == 1) {
            wait_for(endpoint, at + 256, i);
        }
        OK(wefti_put(endpoint, peer, at + 512, &word, sizeof word, 1));
        OK(wefti_signal_peer(endpoint, peer, at + 256, i, 1));
        if (rank == 0) {
            wait_for(endpoint, at + 256, i);
        }
    }
    return (double)(wefti_now_ns() - begin) / 1e3 / rounds / 2;
}

static void speed(void)
{
    static const size_t sizes[] = {4096, 65536, 1u << 20};
    wefti_endpoint_t *endpoint = context->endpoint;
    size_t at;
    CHECK(size == 2);
    OK(wefti_region_alloc(endpoint, (size_t)2 << 20, &at));
    (void)put_latency(endpoint, at, 200); /* numbers start again: nothing is lowered */
    wefti_signal_t *own = (wefti_signal_t *)(void *)(endpoint->region_of[rank] + at);
    OK(wefti_endpoint_barrier(endpoint));
    atomic_store(&own[2].value, 0);
    OK(wefti_endpoint_barrier(endpoint));
    double latency = put_latency(endpoint, at, 1000);
    for (uint32_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        atomic_store(&own[0].value, 0);
        atomic_store(&own[1].value, 0);
        OK(wefti_endpoint_barrier(endpoint));
        double rate = put_bandwidth(endpoint, at, sizes[i], (uint32_t)((8u << 20) / sizes[i]));
        if (rank == 0) {
            printf("weft: put of %zu B: %.1f MB/s\n", sizes[i], rate);
        }
    }
    if (rank == 0) {
        printf("weft: put of 8 B and signal: %.1f us\n", latency);
    }
    wefti_region_free(endpoint, at);
}

/* ---- */

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } modes[] = {
        {"collectives", collectives}, {"broken", broken}, {"memory", memory}, {"speed", speed}};
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    const char *mode = argc == 2 ? argv[1] : "";
    const char *number = getenv("WEFT_RANK");
    rank = number != NULL ? (uint32_t)strtoul(number, NULL, 10) : 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    params.log = count_warning;
    if (rank == 1 && strcmp(mode, "memory") == 0) {
        lock_little();
    }
    OK(weft_context_create(&params, &context));
    OK(weft_group_create_world(context, &group));
    size = weft_context_world_size(context);
    for (uint32_t r = 0; r < size; r++) {
        weft_peer_info_t info = WEFT_PEER_INFO_INIT;
        OK(weft_context_peer_info(context, r, &info));
        if (rank == 0 && r > 0) {
            printf("rank 0 -> %u: %s (%s)\n", r, info.transport, info.reason);
        }
        CHECK(strcmp(info.transport, "verbs") == 0 || strcmp(info.transport, "shm") == 0 ||
              strcmp(info.transport, "self") == 0);
    }
    for (uint32_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        if (strcmp(mode, modes[i].name) == 0) {
            modes[i].run();
            if (rank == 0) {
                printf("%s on %u ranks, %u hosts: good\n", mode, size,
                       weft_context_host_count(context));
            }
            weft_group_destroy(group);
            weft_context_release(context);
            return 0;
        }
    }
    fprintf(stderr, "usage: rdma_world collectives | broken | memory | speed\n");
    return 2;
}
