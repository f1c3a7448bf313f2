/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of a benchmark: its context, group and buffers, and timing one case. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/sync.h"
#include "tools/bench/bench.h"
#include "tools/launch/world.h"
#include "tools/output.h"

bench_case_t wefti_bench_case(const bench_t *bench, uint32_t rank, uint8_t *send, uint8_t *recv,
                              uint64_t bytes)
{
    size_t elem_bytes = weft_dtype_size_bytes(bench->dtype);
    bench_case_t size = {bytes / elem_bytes, bytes / elem_bytes / bench->ranks, send, recv};
    size_t block = size.each * elem_bytes;
    if (bench->out_of_place) {
        return size;
    }
    if (wefti_collective_is_vector(bench->op)) {
        size.recv = size.send;
    } else if (wefti_collective_gathers(bench->op)) {
        size.send = size.recv + rank * block;
    } else if (wefti_collective_scatters(bench->op)) {
        size.recv = size.send + rank * block;
    }
    return size;
}

static weft_status_t submit(const bench_rank_t *self, const bench_case_t *size)
{
    const bench_t *b = self->bench;
    switch (b->op) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        return weft_all_reduce(size->send, size->recv, size->count, b->dtype, b->reduction,
                               self->group, self->stream);
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        return weft_reduce_scatter(size->send, size->recv, size->each, b->dtype, b->reduction,
                                   self->group, self->stream);
    case WEFT_COLLECTIVE_ALL_GATHER:
        return weft_all_gather(size->send, size->recv, size->each, b->dtype, self->group,
                               self->stream);
    case WEFT_COLLECTIVE_BROADCAST:
        return weft_broadcast(size->send, size->recv, size->count, b->dtype, 0, self->group,
                              self->stream);
    case WEFT_COLLECTIVE_REDUCE:
        return weft_reduce(size->send, size->recv, size->count, b->dtype, b->reduction, 0,
                           self->group, self->stream);
    case WEFT_COLLECTIVE_GATHER:
        return weft_gather(size->send, size->recv, size->each, b->dtype, 0, self->group,
                           self->stream);
    case WEFT_COLLECTIVE_SCATTER:
        return weft_scatter(size->send, size->recv, size->each, b->dtype, 0, self->group,
                            self->stream);
    default:
        return weft_all_to_all(size->send, size->recv, size->each, b->dtype, self->group,
                               self->stream);
    }
}

static weft_status_t call_one(const bench_rank_t *self, const bench_case_t *size)
{
    weft_status_t status = submit(self, size);
    return status == WEFT_OK && self->stream != NULL ? weft_stream_synchronize(self->stream)
                                                     : status;
}

bool wefti_bench_shares_cores(uint32_t ranks)
{
    return sysconf(_SC_NPROCESSORS_ONLN) < (long)ranks;
}

uint64_t wefti_bench_iterations(uint64_t bytes)
{
    return bytes <= 4096 ? 2000 : bytes <= 262144 ? 400 : bytes <= 4u << 20 ? 60 : 12;
}

/*
 * Times warm + iterations calls into times, each between a barrier and its own end. Where ranks
 * share cores all meet again before anybody writes its buffer anew: that would be part of others'
 * times.
 */
static weft_status_t time_calls(bench_rank_t *self, const bench_case_t *size, uint64_t warm,
                                uint64_t iterations)
{
    weft_status_t status = WEFT_OK;
    bool shared_cores = wefti_bench_shares_cores(self->bench->ranks);
    for (uint64_t i = 0; status == WEFT_OK && i < warm + iterations; i++) {
        wefti_bench_produce(self, size, i);
        status = weft_barrier(self->group, NULL);
        uint64_t start = wefti_now_ns();
        if (status == WEFT_OK) {
            status = call_one(self, size);
        }
        uint64_t end = wefti_now_ns();
        self->times[i < warm ? 0 : i - warm] = (double)(end - start) / 1e3;
        if (status == WEFT_OK && shared_cores) {
            status = weft_barrier(self->control, NULL);
        }
    }
    return status;
}

weft_status_t wefti_bench_set_algorithm(bench_rank_t *self, const char *name)
{
    return weft_group_set_algorithm(self->group, self->bench->op, name);
}

weft_status_t wefti_bench_combine(bench_rank_t *self, uint64_t iterations)
{
    weft_status_t status = weft_all_reduce(self->times, self->times, iterations, WEFT_DTYPE_F64,
                                           WEFT_REDUCTION_MAX, self->control, NULL);
    if (status == WEFT_OK) {
        wefti_sort_doubles(self->times, iterations);
    }
    return status;
}

double wefti_bench_quantile(const bench_rank_t *self, uint64_t iterations, double share)
{
    return self->times[(uint64_t)((double)iterations * share)];
}

/* The quicker way of the two that there are for small sizes. */
static weft_status_t find_floor(bench_rank_t *self, uint64_t bytes, uint64_t warm,
                                uint64_t iterations, uint64_t *wrong, double *out_us)
{
    for (int shows = 0; shows <= (wefti_bench_floor_shows(bytes) ? 1 : 0); shows++) {
        WEFT_RETURN_IF_ERROR(
            wefti_bench_floor_time(self, bytes, shows == 1, warm, iterations, wrong));
        WEFT_RETURN_IF_ERROR(wefti_bench_combine(self, iterations));
        double us = wefti_bench_quantile(self, iterations, 0.5);
        *out_us = shows == 0 || us < *out_us ? us : *out_us;
    }
    return WEFT_OK;
}

weft_status_t wefti_bench_measure(bench_rank_t *self, uint64_t bytes, bool *out_fits,
                                  bench_row_t *out_row)
{
    const bench_t *bench = self->bench;
    bench_case_t size = wefti_bench_case(bench, self->rank, self->send, self->recv, bytes);
    uint64_t iterations =
        bench->iterations != 0 ? bench->iterations : wefti_bench_iterations(bytes);
    uint64_t warm = iterations / 5 + 2, wrong = 0;
    *out_row =
        (bench_row_t){.bytes = bytes,
                      .count = wefti_collective_is_vector(bench->op) ? size.count : size.each,
                      .floor_us = -1};
    *out_fits = out_row->count > 0;
    if (!*out_fits) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(time_calls(self, &size, warm, iterations));
    snprintf(out_row->algorithm, sizeof out_row->algorithm, "%s",
             weft_group_last_algorithm(self->group));
    snprintf(out_row->path, sizeof out_row->path, "%s", weft_group_last_path(self->group));
    if (bench->check) {
        wrong = wefti_bench_check(self, &size, warm + iterations - 1);
    }
    WEFT_RETURN_IF_ERROR(wefti_bench_combine(self, iterations));
    out_row->p25_us = wefti_bench_quantile(self, iterations, 0.25);
    out_row->p50_us = wefti_bench_quantile(self, iterations, 0.5);
    out_row->p99_us = wefti_bench_quantile(self, iterations, 0.99);
    if (bench->floor != NULL) {
        WEFT_RETURN_IF_ERROR(find_floor(self, bytes, warm, iterations, &wrong, &out_row->floor_us));
    }
    if (bench->check) {
        WEFT_RETURN_IF_ERROR(weft_all_reduce(&wrong, &wrong, 1, WEFT_DTYPE_U64, WEFT_REDUCTION_SUM,
                                             self->control, NULL));
        out_row->wrong = wrong;
    }
    return WEFT_OK;
}

static weft_status_t get_buffer(bench_rank_t *self, int index, uint8_t **out)
{
    const bench_t *bench = self->bench;
    void *address = NULL;
    weft_status_t status = WEFT_OK;
    size_t bytes = (size_t)bench->max_bytes;
    if (bench->memory == MEMORY_REGISTERED) {
        status = weft_mem_alloc(self->context, bytes, &address);
        weft_mem_info_t info = WEFT_MEM_INFO_INIT;
        if (status == WEFT_OK) {
            status = weft_mem_query(self->context, address, &info);
        }
        if (status == WEFT_OK && !info.host_access) { /* inputs are written and results checked */
            weft_mem_free(self->context, address);
            return wefti_error(WEFT_ERR_UNSUPPORTED,
                               "bench: device \"%s\" is not accessible by the host",
                               weft_context_device(self->context)->ops->name);
        }
    } else {
        address = malloc(bytes);
        if (address == NULL) {
            return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: cannot allocate %zu bytes",
                               bytes);
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

weft_status_t wefti_bench_rank_init(bench_rank_t *self, const bench_t *bench, uint32_t rank,
                                    const char *address)
{
    *self = (bench_rank_t){.bench = bench, .rank = rank};
    self->elem_bytes = weft_dtype_size_bytes(bench->dtype);
    self->times = calloc(BENCH_MAX_ITERATIONS + 1ul, sizeof *self->times);
    if (self->times == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: tables of the benchmark");
    }
    WEFT_RETURN_IF_ERROR(wefti_bench_pattern_init(self));
    WEFT_RETURN_IF_ERROR(wefti_launched_open(bench->world, (int32_t)rank, (int32_t)bench->ranks,
                                             address, NULL, &self->context));
    WEFT_RETURN_IF_ERROR(weft_group_create_world(self->context, &self->group));
    WEFT_RETURN_IF_ERROR(weft_group_duplicate(self->group, &self->control));
    if (bench->on_stream) {
        weft_stream_params_t stream = WEFT_STREAM_PARAMS_INIT;
        stream.name = "bench";
        stream.flags = bench->stream_flags;
        WEFT_RETURN_IF_ERROR(weft_stream_create(self->context, &stream, &self->stream));
    }
    if (bench->algorithm != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_bench_set_algorithm(self, bench->algorithm));
    }
    WEFT_RETURN_IF_ERROR(get_buffer(self, 0, &self->send));
    return get_buffer(self, 1, &self->recv);
}

void wefti_bench_rank_deinit(bench_rank_t *self)
{
    /* Peers of a broken group may still read its memory, which is freed with the process. */
    if (self->group != NULL && weft_group_status(self->group) == WEFT_OK) {
        put_buffer(self, 1);
        put_buffer(self, 0);
    }
    weft_stream_destroy(self->stream);
    weft_group_destroy(self->control);
    weft_group_destroy(self->group);
    weft_context_release(self->context);
    free(self->pattern);
    free(self->times);
}
