/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same measurement as `weft bench`, by MPI: f32, every rank writes what it sends before each
 * call, all meet at a barrier, and the time of a call is that of the slowest rank. One JSON line
 * per size.
 *
 *   mpicc -O3 peer_mpi_collectives.c && mpirun -np 2 a.out OPERATOR MAX_BYTES [MIN_BYTES FACTOR]
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct collective {
    const char *name;
    int blocks; /* bytes are those of the larger buffer, a block per rank */
    int (*run)(float *send, float *recv, int count);
} collective_t;

static int run_all_reduce(float *send, float *recv, int count)
{
    return MPI_Allreduce(send, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int run_reduce_scatter(float *send, float *recv, int count)
{
    return MPI_Reduce_scatter_block(send, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static int run_all_gather(float *send, float *recv, int count)
{
    return MPI_Allgather(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, MPI_COMM_WORLD);
}

static int run_broadcast(float *send, float *recv, int count)
{
    (void)recv;
    return MPI_Bcast(send, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static int run_all_to_all(float *send, float *recv, int count)
{
    return MPI_Alltoall(send, count, MPI_FLOAT, recv, count, MPI_FLOAT, MPI_COMM_WORLD);
}

static const collective_t collectives[] = {
    {"all_reduce", 0, run_all_reduce}, {"reduce_scatter", 1, run_reduce_scatter},
    {"all_gather", 1, run_all_gather}, {"broadcast", 0, run_broadcast},
    {"all_to_all", 1, run_all_to_all},
};

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int rounds_for(size_t bytes)
{
    if (bytes <= 4096) {
        return 2000;
    }
    if (bytes <= 256u << 10) {
        return 400;
    }
    return bytes <= 4u << 20 ? 60 : 12;
}

/* Seconds of the slowest rank, sorted. */
static void measure(const collective_t *collective, float *send, float *recv, size_t elems,
                    int count, int rounds, double *times)
{
    int rank, ranks;
    int warm_up = rounds / 5 + 2;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int shared_cores = sysconf(_SC_NPROCESSORS_ONLN) < ranks;
    for (int i = 0; i < warm_up + rounds; i++) {
        for (size_t k = 0; k < elems; k++) {
            send[k] = (float)(rank + 1 + i);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        collective->run(send, recv, count);
        double own = MPI_Wtime() - start;
        times[i < warm_up ? 0 : i - warm_up] = own;
        /* Where ranks share cores, writing buffers anew would be part of the others' times. */
        if (shared_cores) {
            MPI_Barrier(MPI_COMM_WORLD);
        }
    }
    MPI_Allreduce(MPI_IN_PLACE, times, rounds, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    qsort(times, (size_t)rounds, sizeof *times, ascending);
}

/* 64 MiB follow 16 MiB, as in `weft bench`. */
static size_t next_size(size_t bytes, size_t factor)
{
    return factor == 8 && bytes == 16u << 20 ? 64u << 20 : bytes * (factor > 1 ? factor : 2);
}

int main(int argc, char **argv)
{
    const collective_t *collective = NULL;
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (size_t i = 0; (argc == 3 || argc == 5) && i < sizeof collectives / sizeof *collectives;
         i++) {
        if (strcmp(argv[1], collectives[i].name) == 0) {
            collective = &collectives[i];
        }
    }
    if (collective == NULL) {
        fprintf(stderr, "usage: %s OPERATOR MAX_BYTES [MIN_BYTES FACTOR]\n", argv[0]);
        MPI_Abort(MPI_COMM_WORLD, 2);
        return 2;
    }
    size_t most = strtoull(argv[2], NULL, 10);
    float *send = malloc(most + 64), *recv = malloc(most + 64);
    double *times = malloc(2000 * sizeof *times);
    if (send == NULL || recv == NULL || times == NULL) {
        MPI_Abort(MPI_COMM_WORLD, 1);
        return 1;
    }
    memset(send, 0, most);
    memset(recv, 0, most);
    size_t least = argc == 5 ? strtoull(argv[3], NULL, 10) : 8;
    size_t factor = argc == 5 ? strtoull(argv[4], NULL, 10) : 8;
    for (size_t bytes = least; bytes <= most; bytes = next_size(bytes, factor)) {
        size_t elems = bytes / sizeof(float);
        int count = (int)(collective->blocks ? elems / (size_t)ranks : elems);
        int rounds = rounds_for(bytes);
        if (count == 0) {
            continue;
        }
        measure(collective, send, recv, elems, count, rounds, times);
        if (rank == 0) {
            printf("{\"op\":\"%s\",\"bytes\":%zu,\"ranks\":%d,\"p50_us\":%.3f,\"p99_us\":%.3f}\n",
                   collective->name, bytes, ranks, times[rounds / 2] * 1e6,
                   times[rounds - rounds / 100 - 1] * 1e6);
            fflush(stdout);
        }
    }
    free(send);
    free(recv);
    free(times);
    MPI_Finalize();
    return 0;
}
