/* SPDX-License-Identifier: Apache-2.0 */
/* weft bench: how long collectives take on this machine. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/half.h"
#include "runtime/base/sync.h"
#include "tools/launch.h"
#include "tools/tool.h"

#define PATTERN_ELEMS ((size_t)4096)
#define PERIOD 8u
#define MAX_RANKS 256u

enum {
    KEY_MIN = 256,
    KEY_MAX,
    KEY_FACTOR,
    KEY_DTYPE,
    KEY_REDUCTION,
    KEY_MEMORY,
    KEY_ITERS,
    KEY_STREAM,
    KEY_OUT_OF_PLACE,
    KEY_CHECK,
    KEY_JSON
};

static const option_def_t own_options[] = {
    {'n', "ranks", "N", "local ranks to start, each pinned to its cores (default 2)"},
    {KEY_MIN, "min", "BYTES", "smallest size, such as 8 or 4K (default 8)"},
    {KEY_MAX, "max", "BYTES", "largest size (default 64M)"},
    {KEY_FACTOR, "factor", "F", "from one size to the next (default 8; the last is the largest)"},
    {KEY_DTYPE, "dtype", "TYPE", "f32 (default), f64, f16, bf16, i64, i32, i16, i8, u64 ..."},
    {KEY_REDUCTION, "reduction", "R", "sum (default), avg, prod, min or max"},
    {KEY_MEMORY, "memory", "KIND", "registered (default), adopted or plain"},
    {KEY_ITERS, "iterations", "I", "timed calls per size (default: by size)"},
    {KEY_STREAM, "stream", "KIND",
     "none (default): calls run on the calling thread; inline or thread: on such a stream"},
    {KEY_OUT_OF_PLACE, "out-of-place", NULL,
     "another buffer for the result where in place is possible"},
    {KEY_CHECK, "check", NULL, "compare results with what they must be, bit for bit"},
    {KEY_JSON, "json", NULL, "print one JSON object"},
    {0, NULL, NULL, NULL},
};

static const command_help_t help = {
    "bench",
    "OP -n N [options]",
    "Times all_reduce, reduce_scatter, all_gather, broadcast, reduce, gather, scatter or\n"
    "all_to_all on N local ranks. Every rank rewrites its buffer before each call, as a\n"
    "kernel would; a time is that of the slowest rank.",
    "example:\n  weft bench all_reduce -n 2 --memory registered\n",
};

typedef enum memory_kind { MEMORY_REGISTERED, MEMORY_ADOPTED, MEMORY_PLAIN } memory_kind_t;
static const char *const memory_names[] = {"registered", "adopted", "plain"};

typedef struct bench_op {
    const char *name;
    weft_collective_t op;
    bool per_rank; /* bytes are those of the larger buffer, a block per rank */
} bench_op_t;

static const bench_op_t bench_ops[] = {
    {"all_reduce", WEFT_OP_ALL_REDUCE, false}, {"reduce_scatter", WEFT_OP_REDUCE_SCATTER, true},
    {"all_gather", WEFT_OP_ALL_GATHER, true},  {"broadcast", WEFT_OP_BROADCAST, false},
    {"reduce", WEFT_OP_REDUCE, false},         {"gather", WEFT_OP_GATHER, true},
    {"scatter", WEFT_OP_SCATTER, true},        {"all_to_all", WEFT_OP_ALL_TO_ALL, true},
};

typedef struct bench {
    const bench_op_t *op;
    uint32_t ranks;
    uint64_t min_bytes, max_bytes, factor, iterations;
    weft_dtype_t dtype;
    weft_reduction_t reduction;
    memory_kind_t memory;
    bool out_of_place, check, json;
    bool on_stream;
    weft_stream_flags_t stream_flags;
} bench_t;

typedef struct bench_rank {
    const bench_t *bench;
    weft_context_t *context;
    weft_group_t *group;
    weft_stream_t *stream; /* NULL: none */
    uint32_t rank;
    uint8_t *send, *recv; /* of max_bytes */
    void *freed[2];       /* as they were allocated */
    uint8_t *pattern;     /* PATTERN_ELEMS + PERIOD elements */
    double *times;        /* us */
    size_t elem_bytes;
    uint32_t printed;
} bench_rank_t;

/* ---- options ---- */

static int parse_size(const char *option, const char *text, uint64_t *out_bytes)
{
    char *rest = NULL;
    unsigned long long value = strtoull(text, &rest, 10);
    const char *units = "KMG";
    const char *unit = *rest != '\0' ? strchr(units, *rest) : NULL;
    unsigned int shift = unit != NULL ? 10u * (unsigned int)(unit - units + 1) : 0;
    if (text[0] < '0' || text[0] > '9' || (*rest != '\0' && (unit == NULL || rest[1] != '\0')) ||
        value == 0 || value > (1ull << 40) >> shift) {
        return wefti_usage_error("bench", "%s '%s': expected bytes such as 8, 4K or 64M", option,
                                 text);
    }
    *out_bytes = value << shift;
    return EXIT_OK;
}

static int parse_reduction(bench_t *bench, const char *value)
{
    for (int r = WEFT_SUM; r <= WEFT_MAX; r++) {
        if (strcmp(value, weft_reduction_name((weft_reduction_t)r)) == 0) {
            bench->reduction = (weft_reduction_t)r;
            return EXIT_OK;
        }
    }
    return wefti_usage_error("bench", "--reduction '%s': expected sum, avg, prod, min or max",
                             value);
}

static int parse_memory(bench_t *bench, const char *value)
{
    for (int i = 0; i < 3; i++) {
        if (strcmp(value, memory_names[i]) == 0) {
            bench->memory = (memory_kind_t)i;
            return EXIT_OK;
        }
    }
    return wefti_usage_error("bench", "--memory '%s': expected registered, adopted or plain",
                             value);
}

static int parse_number(const char *option, const char *value, long long low, long long high,
                        uint64_t *out)
{
    long long number = 0;
    if (!wefti_parse_int(value, low, high, &number)) {
        return wefti_usage_error("bench", "%s '%s': expected a number from %lld to %lld", option,
                                 value, low, high);
    }
    *out = (uint64_t)number;
    return EXIT_OK;
}

static int handle(void *user, int key, const char *value)
{
    bench_t *bench = user;
    uint64_t number = 0;
    int code = EXIT_OK;
    switch (key) {
    case 'n':
        code = parse_number("-n", value, 1, MAX_RANKS, &number);
        bench->ranks = (uint32_t)number;
        return code;
    case KEY_MIN:
        return parse_size("--min", value, &bench->min_bytes);
    case KEY_MAX:
        return parse_size("--max", value, &bench->max_bytes);
    case KEY_FACTOR:
        return parse_number("--factor", value, 2, 1024, &bench->factor);
    case KEY_ITERS:
        return parse_number("--iterations", value, 1, 1000000, &bench->iterations);
    case KEY_DTYPE:
        bench->dtype = weft_dtype_from_name(value);
        return bench->dtype != WEFT_DTYPE_NONE && bench->dtype != WEFT_DTYPE_BOOL
                   ? EXIT_OK
                   : wefti_usage_error("bench", "--dtype '%s': expected f32, bf16, i64 ...", value);
    case KEY_REDUCTION:
        return parse_reduction(bench, value);
    case KEY_MEMORY:
        return parse_memory(bench, value);
    case KEY_STREAM:
        bench->on_stream = strcmp(value, "none") != 0;
        bench->stream_flags =
            strcmp(value, "thread") == 0 ? WEFT_STREAM_THREAD : WEFT_STREAM_INLINE;
        return !bench->on_stream || strcmp(value, "inline") == 0 || strcmp(value, "thread") == 0
                   ? EXIT_OK
                   : wefti_usage_error("bench", "--stream '%s': expected none, inline or thread",
                                       value);
    case KEY_OUT_OF_PLACE:
        bench->out_of_place = true;
        return EXIT_OK;
    case KEY_CHECK:
        bench->check = true;
        return EXIT_OK;
    default:
        bench->json = true;
        return EXIT_OK;
    }
}

/* ---- data ---- */

/* A number as the type holds it: exact for floats, its low bytes for integers. */
static void put_number(uint8_t *at, weft_dtype_t dtype, double value, uint64_t bits)
{
    union {
        double f64;
        float f32;
        uint16_t half;
        uint64_t bits;
    } x = {.bits = bits};
    switch (dtype) {
    case WEFT_DTYPE_F64:
        x.f64 = value;
        break;
    case WEFT_DTYPE_F32:
        x.f32 = (float)value;
        break;
    case WEFT_DTYPE_F16:
        x.half = wefti_f16_from_f32((float)value);
        break;
    case WEFT_DTYPE_BF16:
        x.half = wefti_bf16_from_f32((float)value);
        break;
    default:
        break; /* little-endian */
    }
    memcpy(at, &x, weft_dtype_size_bytes(dtype));
}

static uint32_t pattern_value(const bench_t *bench, uint64_t k)
{
    /* Products stay powers of two, exact however many ranks there are. */
    return bench->reduction == WEFT_PROD ? (uint32_t)(k % 2) + 1 : (uint32_t)(k % PERIOD) + 1;
}

/* What all ranks' elements k of call i reduce to. */
static void put_reduced(const bench_t *bench, uint8_t *at, uint64_t call, uint64_t k)
{
    uint64_t sum = 0, product = 1, low = UINT64_MAX, high = 0;
    double product_f = 1, n = bench->ranks;
    for (uint32_t r = 0; r < bench->ranks; r++) {
        uint64_t value = pattern_value(bench, (k + 3u * r + call) % PERIOD);
        sum += value;
        product *= value;
        product_f *= (double)value;
        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    double total = (double)sum;
    double mean = bench->dtype == WEFT_DTYPE_F64 ? total / n : (double)((float)total / (float)n);
    switch (bench->reduction) {
    case WEFT_SUM:
        put_number(at, bench->dtype, total, sum);
        break;
    case WEFT_AVG:
        put_number(at, bench->dtype, mean, sum / bench->ranks);
        break;
    case WEFT_PROD:
        put_number(at, bench->dtype, product_f, product);
        break;
    case WEFT_MIN:
        put_number(at, bench->dtype, (double)low, low);
        break;
    case WEFT_MAX:
        put_number(at, bench->dtype, (double)high, high);
        break;
    }
}

/* Element k of rank in call i is number k + 3 rank + i of the pattern: exact in every type. */
static const uint8_t *pattern_at(const bench_rank_t *self, uint32_t rank, uint64_t call, uint64_t k)
{
    return self->pattern + (k + 3u * rank + call) % PERIOD * self->elem_bytes;
}

static void rewrite(const bench_rank_t *self, uint8_t *to, uint64_t count, uint64_t call)
{
    for (uint64_t k = 0; k < count; k += PATTERN_ELEMS) {
        uint64_t left = count - k < PATTERN_ELEMS ? count - k : PATTERN_ELEMS;
        memcpy(to + k * self->elem_bytes, pattern_at(self, self->rank, call, k),
               left * self->elem_bytes);
    }
}

static uint64_t count_wrong(const bench_rank_t *self, const uint8_t *got, const uint8_t *expected,
                            uint64_t count)
{
    uint64_t wrong = 0;
    for (uint64_t k = 0; k < count; k++) {
        wrong += memcmp(got + k * self->elem_bytes, expected + k * self->elem_bytes,
                        self->elem_bytes) != 0;
    }
    return wrong;
}

/* got[0, count) against source's elements from first on. */
static uint64_t check_copy(const bench_rank_t *self, const uint8_t *got, uint32_t source,
                           uint64_t call, uint64_t first, uint64_t count)
{
    uint64_t wrong = 0;
    for (uint64_t k = 0; k < count; k += PATTERN_ELEMS) {
        uint64_t left = count - k < PATTERN_ELEMS ? count - k : PATTERN_ELEMS;
        wrong += count_wrong(self, got + k * self->elem_bytes,
                             pattern_at(self, source, call, first + k), left);
    }
    return wrong;
}

static uint64_t check_reduced(const bench_rank_t *self, const uint8_t *got, uint64_t call,
                              uint64_t first, uint64_t count)
{
    uint8_t expected[PERIOD * sizeof(uint64_t)];
    uint64_t wrong = 0;
    for (uint64_t k = 0; k < PERIOD; k++) {
        put_reduced(self->bench, expected + k * self->elem_bytes, call, first + k);
    }
    for (uint64_t k = 0; k < count; k += PERIOD) {
        uint64_t left = count - k < PERIOD ? count - k : PERIOD;
        wrong += count_wrong(self, got + k * self->elem_bytes, expected, left);
    }
    return wrong;
}

/* ---- calls ---- */

typedef struct size_case {
    uint64_t count, each; /* elements: of the vector; of a rank's block */
    uint8_t *send, *recv;
} size_case_t;

/* Where the call reads and writes: in place where the operator can. */
static size_case_t make_case(const bench_rank_t *self, uint64_t bytes)
{
    const bench_t *bench = self->bench;
    size_case_t size = {bytes / self->elem_bytes, bytes / self->elem_bytes / bench->ranks,
                        self->send, self->recv};
    size_t block = size.each * self->elem_bytes;
    if (bench->out_of_place) {
        return size;
    }
    switch (bench->op->op) {
    case WEFT_OP_ALL_REDUCE:
    case WEFT_OP_BROADCAST:
    case WEFT_OP_REDUCE:
        size.recv = size.send;
        break;
    case WEFT_OP_ALL_GATHER:
    case WEFT_OP_GATHER:
        size.send = size.recv + self->rank * block;
        break;
    case WEFT_OP_REDUCE_SCATTER:
    case WEFT_OP_SCATTER:
        size.recv = size.send + self->rank * block;
        break;
    default:
        break;
    }
    return size;
}

static weft_status_t submit(const bench_rank_t *self, const size_case_t *size)
{
    const bench_t *b = self->bench;
    switch (b->op->op) {
    case WEFT_OP_ALL_REDUCE:
        return weft_all_reduce(size->send, size->recv, size->count, b->dtype, b->reduction,
                               self->group, self->stream);
    case WEFT_OP_REDUCE_SCATTER:
        return weft_reduce_scatter(size->send, size->recv, size->each, b->dtype, b->reduction,
                                   self->group, self->stream);
    case WEFT_OP_ALL_GATHER:
        return weft_all_gather(size->send, size->recv, size->each, b->dtype, self->group,
                               self->stream);
    case WEFT_OP_BROADCAST:
        return weft_broadcast(size->send, size->recv, size->count, b->dtype, 0, self->group,
                              self->stream);
    case WEFT_OP_REDUCE:
        return weft_reduce(size->send, size->recv, size->count, b->dtype, b->reduction, 0,
                           self->group, self->stream);
    case WEFT_OP_GATHER:
        return weft_gather(size->send, size->recv, size->each, b->dtype, 0, self->group,
                           self->stream);
    case WEFT_OP_SCATTER:
        return weft_scatter(size->send, size->recv, size->each, b->dtype, 0, self->group,
                            self->stream);
    default:
        return weft_all_to_all(size->send, size->recv, size->each, b->dtype, self->group,
                               self->stream);
    }
}

static weft_status_t call_once(const bench_rank_t *self, const size_case_t *size)
{
    weft_status_t status = submit(self, size);
    return status == WEFT_OK && self->stream != NULL ? weft_stream_synchronize(self->stream)
                                                     : status;
}

/* What the producer writes before a call: everything that this rank sends. */
static void produce(const bench_rank_t *self, const size_case_t *size, uint64_t call)
{
    switch (self->bench->op->op) {
    case WEFT_OP_ALL_GATHER:
    case WEFT_OP_GATHER:
        rewrite(self, size->send, size->each, call);
        break;
    case WEFT_OP_REDUCE_SCATTER:
    case WEFT_OP_SCATTER:
    case WEFT_OP_ALL_TO_ALL:
        rewrite(self, size->send, size->each * self->bench->ranks, call);
        break;
    default:
        rewrite(self, size->send, size->count, call);
        break;
    }
}

static uint64_t check_case(const bench_rank_t *self, const size_case_t *size, uint64_t call)
{
    uint32_t n = self->bench->ranks, rank = self->rank;
    size_t block = size->each * self->elem_bytes;
    uint64_t wrong = 0;
    switch (self->bench->op->op) {
    case WEFT_OP_ALL_REDUCE:
        return check_reduced(self, size->recv, call, 0, size->count);
    case WEFT_OP_REDUCE:
        return rank == 0 ? check_reduced(self, size->recv, call, 0, size->count) : 0;
    case WEFT_OP_REDUCE_SCATTER:
        return check_reduced(self, size->recv, call, rank * size->each, size->each);
    case WEFT_OP_BROADCAST:
        return check_copy(self, size->recv, 0, call, 0, size->count);
    case WEFT_OP_SCATTER:
        return check_copy(self, size->recv, 0, call, rank * size->each, size->each);
    case WEFT_OP_GATHER:
    case WEFT_OP_ALL_GATHER:
        for (uint32_t r = 0; r < n && (rank == 0 || self->bench->op->op != WEFT_OP_GATHER); r++) {
            wrong += check_copy(self, size->recv + r * block, r, call, 0, size->each);
        }
        return wrong;
    default:
        for (uint32_t r = 0; r < n; r++) {
            wrong +=
                check_copy(self, size->recv + r * block, r, call, rank * size->each, size->each);
        }
        return wrong;
    }
}

/* ---- measuring ---- */

static uint64_t iterations_for(const bench_t *bench, uint64_t bytes)
{
    if (bench->iterations != 0) {
        return bench->iterations;
    }
    return bytes <= 4096 ? 2000 : bytes <= 262144 ? 400 : bytes <= 4u << 20 ? 60 : 12;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double bus_factor(const bench_t *bench)
{
    double n = bench->ranks;
    switch (bench->op->op) {
    case WEFT_OP_ALL_REDUCE:
        return 2 * (n - 1) / n;
    case WEFT_OP_BROADCAST:
    case WEFT_OP_REDUCE:
        return 1;
    default:
        return (n - 1) / n;
    }
}

static void print_row(bench_rank_t *self, const char *path, uint64_t bytes, uint64_t count,
                      uint64_t iterations, uint64_t wrong)
{
    const bench_t *b = self->bench;
    double p50 = self->times[iterations / 2];
    double p99 = self->times[(uint64_t)((double)iterations * 0.99)];
    double algbw = p50 > 0 ? (double)bytes / p50 / 1e3 : 0;
    bool reduces = b->op->op == WEFT_OP_ALL_REDUCE || b->op->op == WEFT_OP_REDUCE ||
                   b->op->op == WEFT_OP_REDUCE_SCATTER;
    const char *redop = reduces ? weft_reduction_name(b->reduction) : "none";
    char wrong_text[24] = "-";
    if (b->check) {
        snprintf(wrong_text, sizeof wrong_text, "%llu", (unsigned long long)wrong);
    }
    if (b->json) {
        printf("%s{\"op\":\"%s\",\"bytes\":%llu,\"ranks\":%u,\"dtype\":\"%s\",\"redop\":\"%s\","
               "\"memory\":\"%s\",\"algo\":\"%s\",\"p50_us\":%.3f,\"p99_us\":%.3f,"
               "\"algbw_gbs\":%.3f,\"busbw_gbs\":%.3f,\"wrong\":%s}",
               self->printed > 0 ? ",\n" : "{\"rows\":[\n", b->op->name, (unsigned long long)bytes,
               b->ranks, weft_dtype_name(b->dtype), redop, memory_names[b->memory], path, p50, p99,
               algbw, algbw * bus_factor(b), b->check ? wrong_text : "null");
    } else {
        if (self->printed == 0) {
            printf("# %s, %u ranks, %s memory, %s\n%12s %12s %6s %6s %10s %10s %10s %9s %9s %7s\n",
                   b->op->name, b->ranks, memory_names[b->memory],
                   b->out_of_place ? "out of place" : "in place", "bytes", "count", "type", "redop",
                   "path", "p50 us", "p99 us", "algbw", "busbw", "wrong");
        }
        printf("%12llu %12llu %6s %6s %10s %10.2f %10.2f %9.2f %9.2f %7s\n",
               (unsigned long long)bytes, (unsigned long long)count, weft_dtype_name(b->dtype),
               redop, path, p50, p99, algbw, algbw * bus_factor(b), wrong_text);
    }
    fflush(stdout);
    self->printed++;
}

static weft_status_t run_size(bench_rank_t *self, uint64_t bytes)
{
    const bench_t *bench = self->bench;
    size_case_t size = make_case(self, bytes);
    uint64_t iterations = iterations_for(bench, bytes), wrong = 0;
    uint64_t warm = iterations / 5 + 2;
    weft_status_t status = WEFT_OK;
    if (bench->op->per_rank && size.each == 0) {
        return WEFT_OK;
    }
    for (uint64_t i = 0; status == WEFT_OK && i < warm + iterations; i++) {
        produce(self, &size, i);
        status = weft_barrier(self->group, NULL);
        uint64_t start = wefti_now_ns();
        if (status == WEFT_OK) {
            status = call_once(self, &size);
        }
        uint64_t end = wefti_now_ns();
        self->times[i < warm ? 0 : i - warm] = (double)(end - start) / 1e3;
    }
    const char *path = weft_group_last_path(self->group);
    if (status == WEFT_OK && bench->check) {
        wrong = check_case(self, &size, warm + iterations - 1);
        status = weft_all_reduce(&wrong, &wrong, 1, WEFT_DTYPE_U64, WEFT_SUM, self->group, NULL);
    }
    if (status == WEFT_OK) { /* the slowest rank's time of every call */
        status = weft_all_reduce(self->times, self->times, iterations, WEFT_DTYPE_F64, WEFT_MAX,
                                 self->group, NULL);
    }
    if (status == WEFT_OK && self->rank == 0) {
        qsort(self->times, iterations, sizeof *self->times, by_value);
        print_row(self, path, bytes, bench->op->per_rank ? size.each : size.count, iterations,
                  wrong);
    }
    return status;
}

static weft_status_t get_buffer(bench_rank_t *self, int index, uint8_t **out)
{
    const bench_t *bench = self->bench;
    void *address = NULL;
    weft_status_t status = WEFT_OK;
    size_t bytes = (size_t)bench->max_bytes;
    if (bench->memory == MEMORY_REGISTERED) {
        status = weft_mem_alloc(self->context, bytes, &address);
    } else {
        address = malloc(bytes);
        if (address == NULL) {
            return wefti_error(WEFT_ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
        }
        memset(address, 1, bytes);
        if (bench->memory == MEMORY_ADOPTED) {
            status = weft_mem_register(self->context, address, bytes);
        }
    }
    self->freed[index] = address;
    *out = address;
    return status;
}

static void put_buffer(bench_rank_t *self, int index)
{
    void *address = self->freed[index];
    if (address == NULL) {
        return;
    }
    if (self->bench->memory == MEMORY_REGISTERED) {
        weft_mem_free(self->context, address);
        return;
    }
    if (self->bench->memory == MEMORY_ADOPTED) {
        weft_mem_unregister(self->context, address);
    }
    free(address);
}

static weft_status_t prepare(bench_rank_t *self, const char *address)
{
    const bench_t *bench = self->bench;
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    weft_status_t status;
    params.rank = (int32_t)self->rank;
    params.world_size = (int32_t)bench->ranks;
    params.address = address;
    self->elem_bytes = weft_dtype_size_bytes(bench->dtype);
    self->pattern = calloc(PATTERN_ELEMS + PERIOD, self->elem_bytes);
    self->times = calloc(1000001, sizeof *self->times);
    if (self->pattern == NULL || self->times == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "no memory for the benchmark's tables");
    }
    for (size_t k = 0; k < PATTERN_ELEMS + PERIOD; k++) {
        uint32_t value = pattern_value(bench, k);
        put_number(self->pattern + k * self->elem_bytes, bench->dtype, value, value);
    }
    WEFT_TRY(status, weft_context_create(&params, &self->context), out);
    WEFT_TRY(status, weft_group_create_world(self->context, &self->group), out);
    if (bench->on_stream) {
        weft_stream_params_t stream = {sizeof stream, "bench", bench->stream_flags, 0};
        WEFT_TRY(status, weft_stream_create(self->context, &stream, &self->stream), out);
    }
    WEFT_TRY(status, get_buffer(self, 0, &self->send), out);
    WEFT_TRY(status, get_buffer(self, 1, &self->recv), out);
out:
    return status;
}

static weft_status_t bench_rank(void *user, uint32_t rank, uint32_t world_size, const char *address)
{
    bench_rank_t self = {.bench = user, .rank = rank};
    const bench_t *bench = user;
    (void)world_size;
    weft_status_t status = prepare(&self, address);
    for (uint64_t bytes = bench->min_bytes; status == WEFT_OK;) {
        status = run_size(&self, bytes);
        if (bytes == bench->max_bytes) {
            break;
        }
        bytes = bytes < bench->max_bytes / bench->factor ? bytes * bench->factor : bench->max_bytes;
    }
    if (status == WEFT_OK && rank == 0 && bench->json) {
        printf("%s]}\n", self.printed > 0 ? "\n" : "{\"rows\":[");
    }
    if (status == WEFT_OK) {
        put_buffer(&self, 1);
        put_buffer(&self, 0);
    }
    weft_stream_destroy(self.stream);
    weft_group_destroy(self.group);
    weft_context_release(self.context);
    free(self.pattern);
    free(self.times);
    return status;
}

int wefti_cmd_bench(int argc, char **argv)
{
    bench_t bench = {
        .ranks = 2, .min_bytes = 8, .max_bytes = 64u << 20, .factor = 8, .dtype = WEFT_DTYPE_F32};
    int positional = 0;
    const option_def_t *const tables[] = {own_options, NULL};
    int code = wefti_parse_options(argc, argv, &help, tables, handle, &bench, &positional);
    if (code != EXIT_OK) {
        return code < 0 ? EXIT_OK : code;
    }
    if (positional != 1) {
        return wefti_usage_error("bench", "expected one operator, got %d arguments", positional);
    }
    for (size_t i = 0; i < sizeof bench_ops / sizeof *bench_ops; i++) {
        bench.op = strcmp(argv[1], bench_ops[i].name) == 0 ? &bench_ops[i] : bench.op;
    }
    if (bench.op == NULL) {
        return wefti_usage_error("bench", "'%s' is not an operator that can be timed", argv[1]);
    }
    if (bench.min_bytes > bench.max_bytes) {
        return wefti_usage_error("bench", "--min is larger than --max");
    }
    return wefti_launch("bench", bench.ranks, bench_rank, &bench);
}
