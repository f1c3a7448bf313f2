/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this machine allows: an f32 all-reduce of two pinned threads written directly, without
 * anything that a library has to look after. Up to 4 KiB each shows its data beside a flag and adds
 * what the other shows; from there on each adds its half of both buffers in place, between two
 * pairs of flags. One JSON line per size.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MAX_ROUNDS 2000
#define SHOWN_FLOATS 1024

typedef struct side {
    _Alignas(128) _Atomic uint32_t meet;
    _Alignas(128) _Atomic uint32_t ready;
    _Alignas(128) _Atomic uint32_t finished;
    _Alignas(128) float shown[2][SHOWN_FLOATS];
    float *data;
    double times[MAX_ROUNDS];
} side_t;

typedef struct floor_run {
    side_t sides[2];
    size_t bytes;
    uint32_t rounds, warm_up;
} floor_run_t;

typedef struct thread_arg {
    floor_run_t *run;
    int own;
} thread_arg_t;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void tell_and_wait(_Atomic uint32_t *own, const _Atomic uint32_t *other, uint32_t value)
{
    /* release and acquire: what was written before is seen after */
    atomic_store_explicit(own, value, memory_order_release);
    while (atomic_load_explicit(other, memory_order_acquire) < value) {
    }
}

static void add(float *restrict a, float *restrict b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        a[i] = b[i] = a[i] + b[i];
    }
}

static void add_shown(float *restrict to, const float *restrict shown, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        to[i] += shown[i];
    }
}

static void one_call(side_t *me, side_t *it, int own, size_t bytes, uint32_t k)
{
    size_t count = bytes / sizeof(float), half = count / 2;
    if (bytes < sizeof me->shown[0]) {
        memcpy(me->shown[k & 1], me->data, bytes);
        tell_and_wait(&me->ready, &it->ready, k);
        add_shown(me->data, it->shown[k & 1], count);
        return;
    }
    tell_and_wait(&me->ready, &it->ready, k);
    add(me->data + (size_t)own * half, it->data + (size_t)own * half, half);
    tell_and_wait(&me->finished, &it->finished, k);
}

static cpu_set_t cpu_of(const cpu_set_t *allowed, int own)
{
    cpu_set_t cpus;
    int seen = 0;
    CPU_ZERO(&cpus);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, allowed) && seen++ == own) {
            CPU_SET(cpu, &cpus);
        }
    }
    return cpus;
}

static void *thread_main(void *user)
{
    thread_arg_t *arg = user;
    floor_run_t *run = arg->run;
    side_t *me = &run->sides[arg->own], *it = &run->sides[1 - arg->own];
    size_t count = run->bytes / sizeof(float);
    for (uint32_t k = 1; k <= run->warm_up + run->rounds; k++) {
        for (size_t i = 0; i < count; i++) {
            me->data[i] = (float)(k + (uint32_t)arg->own);
        }
        tell_and_wait(&me->meet, &it->meet, k);
        double start = now_us();
        one_call(me, it, arg->own, run->bytes, k);
        me->times[k <= run->warm_up ? 0 : k - run->warm_up - 1] = now_us() - start;
    }
    return NULL;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure(floor_run_t *run, const cpu_set_t *allowed, size_t bytes)
{
    pthread_t other;
    memset(run, 0, sizeof *run);
    run->bytes = bytes;
    run->rounds = bytes <= 4096 ? 2000 : bytes <= 256u << 10 ? 400 : bytes <= 4u << 20 ? 60 : 12;
    run->warm_up = run->rounds / 5 + 2;
    for (int i = 0; i < 2; i++) {
        run->sides[i].data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (run->sides[i].data == MAP_FAILED) {
            return 1;
        }
    }
    thread_arg_t args[2] = {{run, 0}, {run, 1}};
    /* Before it runs: under a real-time policy it would wait for ever for this thread's core. */
    cpu_set_t here = cpu_of(allowed, 0), there = cpu_of(allowed, 1);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setaffinity_np(&attributes, sizeof there, &there);
    pthread_setaffinity_np(pthread_self(), sizeof here, &here);
    if (pthread_create(&other, &attributes, thread_main, &args[1]) != 0) {
        return 1;
    }
    pthread_attr_destroy(&attributes);
    thread_main(&args[0]);
    pthread_join(other, NULL);
    double *times = run->sides[0].times;
    for (uint32_t i = 0; i < run->rounds; i++) {
        times[i] = run->sides[1].times[i] > times[i] ? run->sides[1].times[i] : times[i];
    }
    qsort(times, run->rounds, sizeof *times, ascending);
    printf("{\"op\":\"all_reduce\",\"bytes\":%zu,\"ranks\":2,\"p50_us\":%.3f,\"p99_us\":%.3f}\n",
           bytes, times[run->rounds / 2], times[run->rounds - run->rounds / 100 - 1]);
    for (int i = 0; i < 2; i++) {
        munmap(run->sides[i].data, bytes);
    }
    return 0;
}

int main(int argc, char **argv)
{
    size_t most = argc > 1 ? strtoull(argv[1], NULL, 10) : (size_t)64 << 20;
    floor_run_t *run = aligned_alloc(128, (sizeof *run + 127) / 128 * 128);
    int failed = run == NULL;
    cpu_set_t allowed; /* asked for once: the first measurement pins this thread */
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (size_t bytes = 8; !failed && bytes <= most;
         bytes = bytes == 16u << 20 ? 64u << 20 : bytes * 8) {
        failed = measure(run, &allowed, bytes);
    }
    free(run);
    return failed;
}
