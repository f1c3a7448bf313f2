/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring collectives, on ranks of this machine or those of a launcher, for `weft bench` and
 * `weft tune`.
 *
 *   cmd_bench.c    options, one size after the other
 *   rank.c   one rank: its context, group and buffers; timing one case
 *   data.c   what ranks write before a call, and what they must have after it
 *   floor.c  the same movement of data without a library; sum.c its sums
 *   print.c  rows
 *   plot.c   a picture of them
 */
#ifndef WEFT_TOOLS_BENCH_H
#define WEFT_TOOLS_BENCH_H

#include "ops/collective.h"
#include "tools/tool.h"

#define BENCH_MAX_RANKS 256u
#define BENCH_MAX_ITERATIONS 1000000u

typedef enum memory_kind { MEMORY_REGISTERED, MEMORY_ADOPTED, MEMORY_PLAIN } memory_kind_t;

extern const char *const wefti_bench_memory_names[];

typedef struct bench_floor bench_floor_t;
typedef struct bench_plot bench_plot_t;

/* What is measured. */
typedef struct bench {
    weft_collective_t op; /* one count; bytes are those of the larger buffer */
    uint32_t ranks;
    uint64_t min_bytes, max_bytes, factor, iterations;
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    memory_kind_t memory;
    const char *algorithm, *order; /* NULL: the runtime's choice; the group's own */
    bool out_of_place, check, json;
    bool on_stream;
    weft_stream_flags_t stream_flags;
    bench_floor_t *floor;  /* NULL: none */
    bench_plot_t *plot;    /* NULL: none; rank 0 writes it */
    weft_context_t *world; /* of ranks that something else launched, or NULL */
} bench_t;

/* One rank of it. */
typedef struct bench_rank {
    const bench_t *bench;
    weft_context_t *context;
    weft_group_t *group;   /* what is measured runs on it */
    weft_group_t *control; /* the benchmark's own calls */
    weft_stream_t *stream; /* NULL: none */
    uint32_t rank;
    uint8_t *send, *recv; /* of max_bytes */
    void *freed[2];       /* as they were allocated */
    uint8_t *pattern;     /* a few thousand elements, repeating */
    double *times;        /* us */
    size_t elem_bytes;
} bench_rank_t;

/* Where a call of some size reads and writes. */
typedef struct bench_case {
    uint64_t count, each; /* elements: of the vector; of a rank's block */
    uint8_t *send, *recv;
} bench_case_t;

/* What was measured; complete on rank 0. */
typedef struct bench_row {
    uint64_t bytes, count, wrong;
    double p25_us, p50_us, p99_us;
    double floor_us;              /* negative: not measured */
    char algorithm[64], path[16]; /* what really ran */
} bench_row_t;

/* rank.c: address comes from the launcher, if there is no bench->world. deinit accepts a rank whose
 * init failed. */
weft_status_t wefti_bench_rank_init(bench_rank_t *self, const bench_t *bench, uint32_t rank,
                                    const char *address);
void wefti_bench_rank_deinit(bench_rank_t *self);
/* The algorithm of self's operator; NULL: the runtime selects. */
weft_status_t wefti_bench_set_algorithm(bench_rank_t *self, const char *name);
/* Replaces self->times of the calls by those of the slowest rank, sorted. */
weft_status_t wefti_bench_combine(bench_rank_t *self, uint64_t iterations);
/* Of such times: the one that share of them lie below, 0.5 for the median; us. */
double wefti_bench_quantile(const bench_rank_t *self, uint64_t iterations, double share);
/* How often a call of bytes is timed, where nothing was asked for. */
uint64_t wefti_bench_iterations(uint64_t bytes);
/* More ranks than cores. */
bool wefti_bench_shares_cores(uint32_t ranks);
/* Times calls of bytes; collective. *out_fits: false if that is less than one element per rank. */
weft_status_t wefti_bench_measure(bench_rank_t *self, uint64_t bytes, bool *out_fits,
                                  bench_row_t *out_row);

/* Where a rank's calls of bytes read and write: in place where the operator can. */
bench_case_t wefti_bench_case(const bench_t *bench, uint32_t rank, uint8_t *send, uint8_t *recv,
                              uint64_t bytes);

/* floor.c: created before the ranks start, which share it; NULL if memory ran out. time writes this
 * rank's time of every call to self->times; collective. shows: data next to a flag instead of in
 * place, for sizes where floor_shows is true. With --check, wrong elements are added to *wrong. */
bench_floor_t *wefti_bench_floor_create(uint32_t ranks, uint64_t max_bytes);
void wefti_bench_floor_destroy(bench_floor_t *floor);
bool wefti_bench_floor_shows(uint64_t bytes);
weft_status_t wefti_bench_floor_time(bench_rank_t *self, uint64_t bytes, bool shows, uint64_t warm,
                                     uint64_t iterations, uint64_t *wrong);

/* data.c: pattern_init fills in the pattern; produce writes the elements that this rank sends;
 * check counts wrong elements that it received. */
weft_status_t wefti_bench_pattern_init(bench_rank_t *self);
void wefti_bench_produce(const bench_rank_t *self, const bench_case_t *size, uint64_t call);
uint64_t wefti_bench_check(const bench_rank_t *self, const bench_case_t *size, uint64_t call);

/* print.c; printed: number of rows before. */
void wefti_bench_print_row(const bench_t *bench, const bench_row_t *row, uint32_t printed);
void wefti_bench_print_end(const bench_t *bench, uint32_t printed);

#endif
