/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks write before a call, and what they must have after it. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "tools/bench/bench.h"
#include "tools/output.h"

#define PATTERN_ELEMS ((size_t)4096)
#define PERIOD 8u

static uint32_t pattern_value(const bench_t *bench, uint64_t k)
{
    /* Products stay powers of two, exact however many ranks there are. */
    return bench->reduction == WEFT_REDUCTION_PROD ? (uint32_t)(k % 2) + 1
                                                   : (uint32_t)(k % PERIOD) + 1;
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
    case WEFT_REDUCTION_SUM:
        wefti_put_number(at, bench->dtype, total, sum);
        break;
    case WEFT_REDUCTION_AVG:
        wefti_put_number(at, bench->dtype, mean, sum / bench->ranks);
        break;
    case WEFT_REDUCTION_PROD:
        wefti_put_number(at, bench->dtype, product_f, product);
        break;
    case WEFT_REDUCTION_MIN:
        wefti_put_number(at, bench->dtype, (double)low, low);
        break;
    case WEFT_REDUCTION_MAX:
        wefti_put_number(at, bench->dtype, (double)high, high);
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

weft_status_t wefti_bench_pattern_init(bench_rank_t *self)
{
    self->pattern = calloc(PATTERN_ELEMS + PERIOD, self->elem_bytes);
    if (self->pattern == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: tables of the benchmark");
    }
    for (size_t k = 0; k < PATTERN_ELEMS + PERIOD; k++) {
        uint32_t value = pattern_value(self->bench, k);
        wefti_put_number(self->pattern + k * self->elem_bytes, self->bench->dtype, value, value);
    }
    return WEFT_OK;
}

void wefti_bench_produce(const bench_rank_t *self, const bench_case_t *size, uint64_t call)
{
    wefti_side_t send = wefti_collective_of(self->bench->op)->send;
    uint64_t count = wefti_side_blocks(send, self->bench->ranks) *
                     (wefti_collective_is_vector(self->bench->op) ? size->count : size->each);
    rewrite(self, size->send, count, call);
}

uint64_t wefti_bench_check(const bench_rank_t *self, const bench_case_t *size, uint64_t call)
{
    uint32_t n = self->bench->ranks, rank = self->rank;
    size_t block = size->each * self->elem_bytes;
    uint64_t wrong = 0;
    switch (self->bench->op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        return check_reduced(self, size->recv, call, 0, size->count);
    case WEFT_COLLECTIVE_REDUCE:
        return rank == 0 ? check_reduced(self, size->recv, call, 0, size->count) : 0;
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        return check_reduced(self, size->recv, call, rank * size->each, size->each);
    case WEFT_COLLECTIVE_BROADCAST:
        return check_copy(self, size->recv, 0, call, 0, size->count);
    case WEFT_COLLECTIVE_SCATTER:
        return check_copy(self, size->recv, 0, call, rank * size->each, size->each);
    case WEFT_COLLECTIVE_GATHER:
    case WEFT_COLLECTIVE_ALL_GATHER:
        for (uint32_t r = 0; r < n && (rank == 0 || self->bench->op != WEFT_COLLECTIVE_GATHER);
             r++) {
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
