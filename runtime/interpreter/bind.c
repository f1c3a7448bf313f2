/* SPDX-License-Identifier: Apache-2.0 */
/* One call of a run: how it is cut into chunks, where everything is. */
#include "runtime/interpreter/internal.h"

#include <string.h>

#include "runtime/base/error.h"

#define LINE_BYTES 64u

/* Bytes of one element of each buffer. */
static void elem_bytes_of(const wefti_run_t *run, weft_dtype_t dtype, weft_reduction_t reduction,
                          uint32_t *bytes)
{
    uint32_t own = (uint32_t)weft_dtype_size_bytes(dtype), sum = own;
    if (run->params.op == WEFT_COLLECTIVE_BARRIER) {
        own = sum = 1; /* of nothing */
    } else if (wefti_collective_reduces(run->params.op)) {
        sum = (uint32_t)wefti_accumulator_bytes(dtype, reduction);
    }
    bytes[WEFTI_SEND] = bytes[WEFTI_RECV] = bytes[WEFTI_STAGE] = own;
    bytes[WEFTI_SCRATCH] = bytes[WEFTI_STAGE_WIDE] = sum;
}

/* One set of a buffer, rounded up to cache lines; false: too many bytes. */
static bool set_bytes(const wefti_run_t *run, uint32_t buffer, uint32_t elem_bytes,
                      uint64_t slot_elems, uint64_t *out_bytes)
{
    uint64_t bytes;
    if (__builtin_mul_overflow((uint64_t)run->slots[buffer] * elem_bytes, slot_elems, &bytes) ||
        bytes > INT64_MAX / 16) {
        return false;
    }
    *out_bytes = (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    return true;
}

static size_t work_bytes_of(const wefti_run_t *run, const uint32_t *elem_bytes, uint64_t slot_elems)
{
    uint64_t total = 0, bytes;
    for (uint32_t b = WEFTI_SCRATCH; b < WEFTI_BUFFER_COUNT; b++) {
        if (!set_bytes(run, b, elem_bytes[b], slot_elems, &bytes) ||
            __builtin_mul_overflow(bytes, run->sets[b], &bytes) ||
            __builtin_add_overflow(total, bytes, &total) || total > SIZE_MAX / 2) {
            return SIZE_MAX;
        }
    }
    return total;
}

/* What a call moves in all: of the vector, or of its longest block; 0 also when sizes overflow.
 * Also completes its counts, and finds the bytes of one element of each buffer. */
static uint64_t total_of(const wefti_run_t *run, weft_dtype_t dtype, weft_reduction_t reduction,
                         wefti_counts_t *counts, uint32_t *elem_bytes)
{
    wefti_slice_t whole;
    elem_bytes_of(run, dtype, reduction, elem_bytes);
    counts->elem_bytes = elem_bytes[WEFTI_SEND];
    return wefti_slice_init(&run->params, &run->schedule, counts, &whole) >= 0 ? whole.elem_count
                                                                               : 0;
}

size_t wefti_run_work_bytes(const wefti_run_t *run, weft_dtype_t dtype, weft_reduction_t reduction,
                            const wefti_counts_t *counts, uint64_t chunk)
{
    uint32_t bytes[WEFTI_BUFFER_COUNT];
    wefti_counts_t typed = *counts;
    uint64_t total = total_of(run, dtype, reduction, &typed, bytes);
    chunk = chunk == 0 || chunk > total ? total : chunk;
    return work_bytes_of(run, bytes,
                         wefti_slice_slot_elems(&run->params, &run->schedule, &typed, chunk));
}

/* The longest slot for which there is room. */
static uint64_t longest_slot(const wefti_run_t *run, const uint32_t *elem_bytes, size_t work_bytes)
{
    uint64_t per_elem = 0, padding = 0;
    for (uint32_t b = WEFTI_SCRATCH; b < WEFTI_BUFFER_COUNT; b++) {
        per_elem += (uint64_t)run->slots[b] * run->sets[b] * elem_bytes[b];
        padding += run->slots[b] > 0 ? (uint64_t)run->sets[b] * (LINE_BYTES - 1) : 0;
    }
    if (per_elem == 0) {
        return UINT64_MAX;
    }
    return work_bytes > padding ? (work_bytes - padding) / per_elem : 0;
}

static uint64_t chunk_of(const wefti_run_t *run, const uint32_t *elem_bytes,
                         const wefti_counts_t *counts, uint64_t total, size_t work_bytes)
{
    uint64_t slot = longest_slot(run, elem_bytes, work_bytes);
    uint64_t whole = wefti_slice_slot_elems(&run->params, &run->schedule, counts, total);
    if (slot >= whole || work_bytes_of(run, elem_bytes, whole) <= work_bytes) {
        return total;
    }
    /* Whole cache lines, unless not even one fits: then blocks but the first are empty. */
    uint64_t unit = counts->elem_bytes < LINE_BYTES ? LINE_BYTES / counts->elem_bytes : 1;
    if (slot < unit) {
        return slot;
    }
    uint64_t blocks = wefti_shard_count(&run->params, &run->schedule.resources);
    uint64_t most = slot / unit * unit * blocks;
    if (most >= total) { /* the last lines were not whole */
        return total;
    }
    /* As many chunks as are needed anyway, but of about the same size. */
    uint64_t chunks = total / most + (total % most != 0);
    uint64_t even = total / chunks + (total % chunks != 0);
    unit *= blocks;
    even = (even + unit - 1) / unit * unit;
    return even < most ? even : most;
}

uint64_t wefti_run_chunk(const wefti_run_t *run, weft_dtype_t dtype, weft_reduction_t reduction,
                         const wefti_counts_t *counts, size_t work_bytes)
{
    uint32_t bytes[WEFTI_BUFFER_COUNT];
    wefti_counts_t typed = *counts;
    uint64_t total = total_of(run, dtype, reduction, &typed, bytes);
    return total == 0 ? 1 : chunk_of(run, bytes, &typed, total, work_bytes);
}

weft_status_t wefti_group_bad_address(uint32_t world_rank)
{
    return wefti_error(WEFT_ERR_FORMAT,
                       "malformed message from rank %u: address outside its memory region",
                       world_rank);
}

/* Peers' offsets come from outside: all that this run touches must be theirs. */
static weft_status_t check_reach(const wefti_run_t *run)
{
    const wefti_run_memory_t *memory = run->memory;
    uint32_t n = run->params.group_size, own = run->params.rank;
    if (memory->limit == UINT64_MAX) {
        return WEFT_OK;
    }
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t b = WEFTI_SEND; b <= WEFTI_RECV && r != own; b++) {
            uint64_t reach = run->tasks.reach[(size_t)r * 2 + b];
            uint64_t offset = (b == WEFTI_SEND ? run->call.send : run->call.recv)[r];
            uint64_t bytes = (run->slice.at + reach) * run->elem_bytes[b];
            if (reach > 0 && (offset > memory->limit || bytes > memory->limit - offset)) {
                return wefti_group_bad_address(memory->ranks[r]);
            }
        }
    }
    return WEFT_OK;
}

/* Where each buffer of each rank begins for this run. */
static void find_places(wefti_run_t *run)
{
    const wefti_run_memory_t *memory = run->memory;
    uint32_t n = run->params.group_size;
    uint64_t skip = run->slice.at * run->elem_bytes[WEFTI_SEND], work = memory->work;
    for (uint32_t r = 0; r < n; r++) {
        uintptr_t base = (uintptr_t)memory->bases[r];
        run->places[WEFTI_SEND * n + r] = base + run->call.send[r] + skip;
        run->places[WEFTI_RECV * n + r] = base + run->call.recv[r] + skip;
    }
    for (uint32_t b = WEFTI_SCRATCH; b < WEFTI_BUFFER_COUNT; b++) {
        uint64_t bytes = 0;
        uint32_t sets = run->sets[b];
        if (run->slots[b] == 0) {
            continue;
        }
        set_bytes(run, b, run->elem_bytes[b], run->slice.slot_elems, &bytes);
        uint64_t begin = work + (sets > 1 ? run->number % sets * bytes : 0);
        for (uint32_t r = 0; r < n; r++) {
            run->places[b * n + r] = (uintptr_t)memory->bases[r] + begin;
        }
        work += sets * bytes;
    }
}

weft_status_t wefti_run_begin(wefti_run_t *run)
{
    uint64_t left = run->total - run->slice.at;
    uint64_t elem_count = left < run->chunk ? left : run->chunk;
    if (!run->resolved || elem_count != run->slice.elem_count || run->call.counts.counts != NULL) {
        run->slice.elem_count = elem_count;
        run->resolved = false;
        WEFT_RETURN_IF_ERROR(wefti_tasks_resolve(&run->tasks, &run->params, &run->schedule,
                                                 &run->call.counts, &run->call.displacements,
                                                 &run->slice));
        run->resolved = true;
    }
    WEFT_RETURN_IF_ERROR(check_reach(run));
    if (run->call.hooks != NULL) {
        WEFT_RETURN_IF_ERROR(run->call.hooks->begin(run->call.hooks, run->slice.at, elem_count));
    }
    find_places(run);
    for (uint32_t lane = 0; lane < run->lanes; lane++) {
        run->lane[lane] =
            (wefti_run_lane_t){run->tasks.lane_begin[lane], run->tasks.lane_begin[lane + 1], 0};
    }
    return WEFT_OK;
}

static weft_status_t check_memory(const wefti_run_t *run, const wefti_run_memory_t *memory)
{
    const wefti_run_counters_t *counters = memory->counters;
    if (counters->lanes < run->lanes || counters->group_size != run->params.group_size) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "schedule: too many lanes: %u, the group supports %u", run->lanes,
                           counters->lanes);
    }
    for (uint32_t r = 0; run->sent == NULL && r < run->params.group_size; r++) {
        if (memory->bases[r] == NULL) {
            return wefti_error(WEFT_ERR_INTERNAL, "rank %u: its memory is not mapped on this rank",
                               memory->ranks[r]);
        }
    }
    return WEFT_OK;
}

/* Whether the last call was cut in the same way. */
static bool is_sized(const wefti_run_t *run, const wefti_run_memory_t *memory,
                     const wefti_run_call_t *call)
{
    const wefti_run_call_t *last = &run->call;
    return run->sized && call->counts.counts == NULL && last->counts.counts == NULL &&
           call->counts.elem_count == last->counts.elem_count && call->dtype == last->dtype &&
           call->reduction == last->reduction && call->chunk == run->sized_chunk &&
           memory->work_bytes == run->sized_bytes;
}

/* Cuts a call into chunks. */
static weft_status_t size_call(wefti_run_t *run, const wefti_run_memory_t *memory,
                               const wefti_run_call_t *call)
{
    wefti_slice_t whole;
    wefti_counts_t counts = call->counts;
    run->sized = run->resolved = false;
    elem_bytes_of(run, call->dtype, call->reduction, run->elem_bytes);
    run->narrow = run->elem_bytes[WEFTI_SCRATCH] == run->elem_bytes[WEFTI_SEND];
    counts.elem_bytes = run->elem_bytes[WEFTI_SEND];
    if (run->elem_bytes[WEFTI_SCRATCH] == 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "dtype %s has no reductions",
                           weft_dtype_name(call->dtype));
    }
    WEFT_RETURN_IF_ERROR(wefti_slice_init(&run->params, &run->schedule, &counts, &whole));
    uint64_t most = chunk_of(run, run->elem_bytes, &counts, whole.elem_count, memory->work_bytes);
    run->chunk = call->chunk != 0 && call->chunk < most ? call->chunk : most;
    if (run->chunk == 0 && whole.elem_count > 0) {
        return wefti_error(WEFT_ERR_NO_MEMORY,
                           "%s: staging buffers too small for one element: %llu bytes; increase "
                           "WEFT_STAGING_BYTES",
                           weft_collective_name(run->params.op),
                           (unsigned long long)memory->work_bytes);
    }
    run->total = whole.elem_count;
    run->slice.slot_elems =
        wefti_slice_slot_elems(&run->params, &run->schedule, &counts, run->chunk);
    run->sized_chunk = call->chunk;
    run->sized_bytes = memory->work_bytes;
    run->sized = true;
    return WEFT_OK;
}

weft_status_t wefti_run_start(wefti_run_t *run, const wefti_run_memory_t *memory,
                              const wefti_run_call_t *call)
{
    WEFT_RETURN_IF_ERROR(check_memory(run, memory));
    if (!is_sized(run, memory, call)) {
        WEFT_RETURN_IF_ERROR(size_call(run, memory, call));
    }
    run->memory = memory;
    run->call = *call;
    run->call.counts.elem_bytes = run->elem_bytes[WEFTI_SEND];
    run->slice.at = 0;
    run->number = call->follows ? run->number : 0;
    run->area = (uint8_t *)memory->bases[run->params.rank] + memory->area;
    run->unsettled = 0;
    return wefti_run_begin(run);
}
