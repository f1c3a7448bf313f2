/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every byte of every gradient is averaged exactly once in a step: never means ranks drift apart,
 * twice a wrong mean.
 */
#include "ops/plan/plan_internal.h"

#include <stdlib.h>

#include "runtime/base/error.h"

#define PHASE_UPDATE 3u /* of kernels: WEFTI_PHASE_UPDATE of the IR */

typedef struct piece {
    uint64_t begin, end;
    uint32_t collective;
} piece_t;

/* Where gradients are, so that no two share a place: those in a range whose memory is reused are
 * behind the arena, range by range. */
typedef struct places {
    const weft_plan_t *plan;
    uint64_t *base; /* by range */
} places_t;

static weft_status_t find_places(const weft_plan_t *plan, places_t *out)
{
    uint64_t next = plan->arena_bytes;
    *out = (places_t){plan, wefti_alloc(plan->arena.allocator,
                                        ((size_t)plan->buffer_count + 1) * sizeof *out->base)};
    for (uint32_t i = 0; out->base && i < plan->buffer_count; i++) {
        out->base[i] = next;
        next += plan->buffers[i].range == i + 1 ? plan->buffers[i].size_bytes : 0;
    }
    return out->base ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

static uint64_t place_of(const places_t *places, uint32_t id)
{
    const wefti_plan_buffer_t *buffer = &places->plan->buffers[id];
    return buffer->range == 0 ? buffer->offset_bytes
                              : places->base[buffer->range - 1] + buffer->offset_bytes -
                                    places->plan->buffers[buffer->range - 1].offset_bytes;
}

static int compare_pieces(const void *a, const void *b)
{
    const piece_t *left = a, *right = b;
    if (left->begin != right->begin) {
        return left->begin < right->begin ? -1 : 1;
    }
    return left->collective < right->collective ? -1 : left->collective > right->collective;
}

/* What of gradients the buckets reduce that the program runs; out may be NULL to count them. */
static size_t find_pieces(const places_t *places, const wefti_plan_program_t *step, piece_t *out)
{
    const weft_plan_t *plan = places->plan;
    size_t count = 0;
    for (uint32_t s = 0; s < plan->stream_count; s++) {
        for (uint32_t i = 0; i < step->streams[s].step_count; i++) {
            const wefti_plan_step_t *at = &step->streams[s].steps[i];
            const wefti_plan_collective_t *collective =
                at->kind == WEFTI_STEP_COLLECTIVE ? &plan->collectives[at->index] : NULL;
            if (!collective || !wefti_plan_reduces_gradients(plan, collective) ||
                plan->buffers[collective->source].size_bytes == 0) {
                continue;
            }
            if (out) {
                uint64_t begin = place_of(places, collective->source);
                out[count] = (piece_t){begin, begin + plan->buffers[collective->source].size_bytes,
                                       at->index};
            }
            count++;
        }
    }
    return count;
}

/* Sorted pieces do not overlap. */
static weft_status_t check_once(const weft_plan_t *plan, const piece_t *pieces, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        if (pieces[i].begin < pieces[i - 1].end) {
            const wefti_plan_collective_t *collective = &plan->collectives[pieces[i].collective];
            return wefti_error(WEFT_ERR_FORMAT,
                               "program step: gradient %.100s is reduced twice: by collectives %u "
                               "(%.100s) and %u (%.100s)",
                               plan->buffers[collective->members[0]].name, pieces[i - 1].collective,
                               plan->collectives[pieces[i - 1].collective].name,
                               pieces[i].collective, collective->name);
        }
    }
    return WEFT_OK;
}

/* The last piece that begins at or before offset, or count. */
static size_t find_piece(const piece_t *pieces, size_t count, uint64_t offset)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (pieces[middle].begin <= offset) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low > 0 ? low - 1 : count;
}

/* What kernels of a program read, updates (or all others); out may be NULL to count. */
static size_t find_reads(const places_t *places, const wefti_plan_program_t *program, int updates,
                         piece_t *out)
{
    const weft_plan_t *plan = places->plan;
    size_t count = 0;
    for (uint32_t s = 0; s < plan->stream_count; s++) {
        for (uint32_t i = 0; i < program->streams[s].step_count; i++) {
            const wefti_plan_step_t *at = &program->streams[s].steps[i];
            const wefti_plan_kernel_t *kernel =
                at->kind == WEFTI_STEP_KERNEL ? &plan->kernels[at->index] : NULL;
            for (uint32_t k = 0; kernel && k < kernel->input_count; k++) {
                uint32_t id = kernel->inputs[k];
                if (id == WEFTI_PLAN_NONE || (kernel->phase == PHASE_UPDATE) != updates ||
                    (plan->buffers[id].kind != WEFTI_BUFFER_GRAD &&
                     plan->buffers[id].kind != WEFTI_BUFFER_RANGE)) {
                    continue;
                }
                if (out) {
                    const wefti_plan_buffer_t *buffer = &plan->buffers[id];
                    uint64_t begin = place_of(places, id);
                    uint64_t bytes = wefti_plan_buffer_end(plan, buffer) - buffer->offset_bytes;
                    out[count] = (piece_t){begin, begin + bytes, id};
                }
                count++;
            }
        }
    }
    return count;
}

/* Those of a whole step, micro-batches included. */
static size_t find_all_reads(const places_t *places, int updates, piece_t *out)
{
    const weft_plan_t *plan = places->plan;
    const wefti_plan_program_t *program = wefti_plan_program(plan, "step");
    size_t count = find_reads(places, program, updates, out);
    for (uint32_t folds = 0; (program = wefti_plan_micro_step(plan, folds)) != NULL; folds++) {
        count += find_reads(places, program, updates, out ? out + count : NULL);
    }
    return count;
}

/* Sorted, and joined where they touch. */
typedef struct cover {
    piece_t *pieces;
    size_t count;
} cover_t;

static weft_status_t make_cover(const places_t *places, int updates, cover_t *out_cover)
{
    size_t count = find_all_reads(places, updates, NULL), kept = 0;
    piece_t *pieces = wefti_alloc(places->plan->arena.allocator, (count + 1) * sizeof *pieces);
    if (!pieces) {
        return WEFT_ERR_NO_MEMORY;
    }
    find_all_reads(places, updates, pieces);
    qsort(pieces, count, sizeof *pieces, compare_pieces);
    for (size_t i = 0; i < count; i++) {
        if (kept > 0 && pieces[i].begin <= pieces[kept - 1].end) {
            pieces[kept - 1].end =
                pieces[i].end > pieces[kept - 1].end ? pieces[i].end : pieces[kept - 1].end;
        } else {
            pieces[kept++] = pieces[i];
        }
    }
    *out_cover = (cover_t){pieces, kept};
    return WEFT_OK;
}

/* Does any of the sorted, disjoint pieces touch it? */
static int touches(const piece_t *pieces, size_t count, uint64_t begin, uint64_t end)
{
    size_t at = find_piece(pieces, count, begin);
    return (at < count && pieces[at].end > begin) ||
           (count > 0 &&
            (at == count ? pieces[0].begin < end : at + 1 < count && pieces[at + 1].begin < end));
}

static int holds(const cover_t *cover, uint64_t begin, uint64_t end)
{
    size_t at = find_piece(cover->pieces, cover->count, begin);
    return at < cover->count && cover->pieces[at].end >= end;
}

/* What kernels read of gradients: others than updates, and updates. */
typedef struct readers {
    cover_t used, updated;
} readers_t;

/* A gradient that only goes into what is reduced (partial sums, another type on the wire) is not
 * reduced itself. */
static int goes_elsewhere(const readers_t *readers, const piece_t *pieces, size_t count,
                          uint64_t begin, uint64_t end)
{
    return !touches(pieces, count, begin, end) && holds(&readers->used, begin, end) &&
           !touches(readers->updated.pieces, readers->updated.count, begin, end);
}

/* The first gradient that is neither reduced nor goes elsewhere (readers may be NULL: none do), and
 * from which byte on; or WEFTI_PLAN_NONE. */
static uint32_t find_uncovered(const places_t *places, const piece_t *pieces, size_t count,
                               const readers_t *readers, uint64_t *out_byte)
{
    for (uint32_t b = 0; b < places->plan->buffer_count; b++) {
        const wefti_plan_buffer_t *buffer = &places->plan->buffers[b];
        uint64_t at = place_of(places, b), end = at + buffer->size_bytes;
        if (buffer->kind != WEFTI_BUFFER_GRAD ||
            (readers && goes_elsewhere(readers, pieces, count, at, end))) {
            continue;
        }
        for (size_t i = find_piece(pieces, count, at); at < end; i++) {
            if (i >= count || pieces[i].begin > at || pieces[i].end <= at) {
                *out_byte = at - place_of(places, b);
                return b;
            }
            at = pieces[i].end;
        }
    }
    return WEFTI_PLAN_NONE;
}

static weft_status_t check_covered(const places_t *places, const piece_t *pieces, size_t count)
{
    const weft_plan_t *plan = places->plan;
    readers_t readers = {0};
    uint64_t byte = 0;
    uint32_t found = find_uncovered(places, pieces, count, NULL, &byte);
    if (found == WEFTI_PLAN_NONE) { /* as a rule; else look at who reads what */
        return WEFT_OK;
    }
    weft_status_t status = make_cover(places, 0, &readers.used);
    if (status == WEFT_OK) {
        status = make_cover(places, 1, &readers.updated);
    }
    if (status == WEFT_OK) {
        found = find_uncovered(places, pieces, count, &readers, &byte);
    }
    if (status == WEFT_OK && found != WEFTI_PLAN_NONE) {
        status =
            wefti_error(WEFT_ERR_FORMAT,
                        "program step: gradient %.100s is not reduced from byte %llu to its end",
                        plan->buffers[found].name, (unsigned long long)byte);
    }
    wefti_free(plan->arena.allocator, readers.used.pieces);
    wefti_free(plan->arena.allocator, readers.updated.pieces);
    return status;
}

weft_status_t wefti_plan_verify_gradients(const weft_plan_t *plan)
{
    places_t places;
    piece_t *pieces = NULL;
    const wefti_plan_program_t *step = wefti_plan_program(plan, "step");
    weft_status_t status = find_places(plan, &places);
    size_t count = status == WEFT_OK ? find_pieces(&places, step, NULL) : 0;
    if (status == WEFT_OK) {
        pieces = wefti_alloc(plan->arena.allocator, (count + 1) * sizeof *pieces);
        status = pieces ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    }
    if (status == WEFT_OK) {
        find_pieces(&places, step, pieces);
        qsort(pieces, count, sizeof *pieces, compare_pieces);
        status = check_once(plan, pieces, count);
    }
    if (status == WEFT_OK && plan->world_size > 1) {
        status = check_covered(&places, pieces, count);
    }
    wefti_free(plan->arena.allocator, pieces);
    wefti_free(plan->arena.allocator, places.base);
    return status;
}
