/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a benchmark, as a table or as JSON. */
#include <stdio.h>

#include "tools/bench/bench.h"

const char *const wefti_bench_memory_names[] = {"registered", "adopted", "plain"};

static double bus_factor(const bench_t *bench)
{
    double n = bench->ranks;
    switch (bench->op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        return 2 * (n - 1) / n;
    case WEFT_COLLECTIVE_BROADCAST:
    case WEFT_COLLECTIVE_REDUCE:
        return 1;
    default:
        return (n - 1) / n;
    }
}

static void print_json(const bench_t *bench, const bench_row_t *row, const char *redop,
                       double algbw, uint32_t printed)
{
    char wrong[24] = "null", floor_us[32] = "null";
    if (bench->check) {
        snprintf(wrong, sizeof wrong, "%llu", (unsigned long long)row->wrong);
    }
    if (row->floor_us >= 0) {
        snprintf(floor_us, sizeof floor_us, "%.3f", row->floor_us);
    }
    printf("%s{\"op\":\"%s\",\"bytes\":%llu,\"ranks\":%u,\"dtype\":\"%s\",\"redop\":\"%s\","
           "\"memory\":\"%s\",\"algo\":\"%s\",\"path\":\"%s\",\"p50_us\":%.3f,\"p99_us\":%.3f,"
           "\"floor_us\":%s,\"algbw_gbs\":%.3f,\"busbw_gbs\":%.3f,\"wrong\":%s}",
           printed > 0 ? ",\n" : "{\"rows\":[\n", wefti_collective_function(bench->op),
           (unsigned long long)row->bytes, bench->ranks, weft_dtype_name(bench->dtype), redop,
           wefti_bench_memory_names[bench->memory], row->algorithm, row->path, row->p50_us,
           row->p99_us, floor_us, algbw, algbw * bus_factor(bench), wrong);
}

static void print_text(const bench_t *bench, const bench_row_t *row, const char *redop,
                       double algbw, uint32_t printed)
{
    char wrong[24] = "-", floor_us[32] = "-";
    if (bench->check) {
        snprintf(wrong, sizeof wrong, "%llu", (unsigned long long)row->wrong);
    }
    if (row->floor_us >= 0) {
        snprintf(floor_us, sizeof floor_us, "%.2f", row->floor_us);
    }
    if (printed == 0) {
        printf("# %s, %u rank%s, %s memory, %s\n", wefti_collective_function(bench->op),
               bench->ranks, wefti_plural(bench->ranks), wefti_bench_memory_names[bench->memory],
               bench->out_of_place ? "out of place" : "in place");
        printf("%12s %12s %6s %6s %18s %9s %10s %10s %10s %9s %9s %7s\n", "bytes", "count", "type",
               "redop", "algo", "path", "p50 us", "p99 us", "floor us", "algbw", "busbw", "wrong");
    }
    printf("%12llu %12llu %6s %6s %18s %9s %10.2f %10.2f %10s %9.2f %9.2f %7s\n",
           (unsigned long long)row->bytes, (unsigned long long)row->count,
           weft_dtype_name(bench->dtype), redop, row->algorithm, row->path, row->p50_us,
           row->p99_us, floor_us, algbw, algbw * bus_factor(bench), wrong);
}

void wefti_bench_print_row(const bench_t *bench, const bench_row_t *row, uint32_t printed)
{
    bool reduces = wefti_collective_reduces(bench->op);
    const char *redop = reduces ? weft_reduction_name(bench->reduction) : "none";
    double algbw = row->p50_us > 0 ? (double)row->bytes / row->p50_us / 1e3 : 0;
    if (bench->json) {
        print_json(bench, row, redop, algbw, printed);
    } else {
        print_text(bench, row, redop, algbw, printed);
    }
    fflush(stdout);
}

void wefti_bench_print_end(const bench_t *bench, uint32_t printed)
{
    if (bench->json) {
        printf("%s]}\n", printed > 0 ? "\n" : "{\"rows\":[");
    }
}
