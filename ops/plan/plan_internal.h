/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of ops/plan share. */
#ifndef WEFT_OPS_PLAN_INTERNAL_H
#define WEFT_OPS_PLAN_INTERNAL_H

#include "ops/collective.h"
#include "ops/plan/plan.h"

#define WEFTI_PLAN_MAGIC "WEFTPLAN"
#define WEFTI_PLAN_FORMAT 1u
/* Limits that keep checking a hostile file cheap; a format version can raise them. */
#define WEFTI_PLAN_MAX_STREAMS 64u
#define WEFTI_PLAN_MAX_PROGRAMS 64u
#define WEFTI_PLAN_MAX_BINDINGS 4096u
#define WEFTI_PLAN_MAX_WORLD (1u << 20)
#define WEFTI_PLAN_MAX_STRUCTURE_BYTES ((size_t)256 << 20)

/* The structure section: protobuf bytes from arena, and back into an empty plan. */
weft_status_t wefti_plan_encode_structure(const weft_plan_t *plan, wefti_arena_t *arena,
                                          const uint8_t **out_data, size_t *out_bytes);
weft_status_t wefti_plan_decode_structure(weft_plan_t *plan, const uint8_t *data, size_t bytes);
/* A whole file: header, sections, digests. The plan keeps pointing into data. */
weft_status_t wefti_plan_decode(weft_plan_t *plan, const uint8_t *data, size_t bytes);

/* Reads and proves the algorithms of the plan's files. */
weft_status_t wefti_plan_load_algorithms(weft_plan_t *plan);
weft_status_t wefti_plan_digests(const weft_plan_t *plan, wefti_digest_t *out_structure,
                                 wefti_digest_t *out_weights);

/* Bytes a buffer takes in the arena. Only after its size has been checked. */
static inline uint64_t wefti_plan_padded_bytes(uint64_t bytes)
{
    return (bytes + WEFTI_PLAN_ALIGNMENT - 1) / WEFTI_PLAN_ALIGNMENT * WEFTI_PLAN_ALIGNMENT;
}

/* A parameter that no rank has whole: its offset is a position. */
static inline int wefti_plan_is_nowhere(const wefti_plan_buffer_t *buffer)
{
    return buffer->offset_bytes >= WEFTI_PLAN_NOWHERE;
}

/* Is its memory reused by others? */
static inline int wefti_plan_passes(const wefti_plan_buffer_t *buffer)
{
    return buffer->kind == WEFTI_BUFFER_TEMP || buffer->range != 0;
}

/* Behind the padded places of all ranks. Only after the place has been checked. */
static inline uint64_t wefti_plan_buffer_end(const weft_plan_t *plan,
                                             const wefti_plan_buffer_t *buffer)
{
    return buffer->offset_bytes + (plan->world_size - 1) * buffer->rank_stride_bytes +
           wefti_plan_padded_bytes(buffer->size_bytes);
}

/* Where a buffer that is no range lies, on all ranks together. */
typedef struct wefti_plan_extent {
    uint64_t begin, end; /* padded */
    uint64_t reach;      /* of what passes: the furthest end so far */
    uint32_t id;
    uint32_t run;    /* of what lasts: the same for neighbours of one kind and dtype */
    uint32_t class_; /* 0 lasting, 1 output, 2 temporary */
} wefti_plan_extent_t;

/* Sorted by place: what lasts, which does not overlap, and what passes. */
typedef struct wefti_plan_layout {
    wefti_plan_extent_t *lasting, *passing;
    size_t lasting_count, passing_count;
} wefti_plan_layout_t;

/* The lasting buffer at offset, or WEFTI_PLAN_NONE. */
uint32_t wefti_plan_layout_at(const wefti_plan_layout_t *layout, uint64_t offset);
void wefti_plan_layout_deinit(const weft_plan_t *plan, wefti_plan_layout_t *layout);

typedef struct wefti_plan_place {
    uint64_t offset_bytes;
    uint32_t id;
} wefti_plan_place_t;

/* By offset, those at one place in the order in which they were. */
weft_status_t wefti_plan_sort_places(const weft_plan_t *plan, wefti_plan_place_t *places,
                                     size_t count);

/* The parts of wefti_plan_verify. Each relies on those before it. */
weft_status_t wefti_plan_verify_buffers(const weft_plan_t *plan, wefti_plan_layout_t *out_layout);
weft_status_t wefti_plan_verify_kernels(const weft_plan_t *plan, const weft_registry_t *registry);
weft_status_t wefti_plan_verify_collectives(const weft_plan_t *plan,
                                            const wefti_plan_layout_t *layout);
weft_status_t wefti_plan_verify_algorithms(const weft_plan_t *plan);
weft_status_t wefti_plan_verify_sweeps(const weft_plan_t *plan, const wefti_plan_layout_t *layout,
                                       const weft_registry_t *registry);
weft_status_t wefti_plan_verify_programs(const weft_plan_t *plan);
weft_status_t wefti_plan_verify_gradients(const weft_plan_t *plan);
weft_status_t wefti_plan_verify_trees(const weft_plan_t *plan);
/* registry NULL: the built-in operators, whose facts tell what is a view. */
weft_status_t wefti_plan_verify_races(const weft_plan_t *plan, const weft_registry_t *registry);
/* The same, with how many pieces of memory there are and how many of them were visited. */
weft_status_t wefti_plan_run_races(const weft_plan_t *plan, const weft_registry_t *registry,
                                   uint64_t *out_accesses, uint32_t *out_pieces);

/* The side of a collective that holds what all ranks' blocks make up: source, or buffer. */
uint32_t wefti_plan_whole(const weft_plan_t *plan, const wefti_plan_collective_t *collective);
/* Does it reduce gradients (a bucket)? Members are those of its whole side. */
int wefti_plan_reduces_gradients(const weft_plan_t *plan,
                                 const wefti_plan_collective_t *collective);
/* Is part what rank r has of whole, at offset r * part's size? */
int wefti_plan_is_shard(const weft_plan_t *plan, uint32_t part, uint32_t whole);
/* The micro-step that folds t partial sums, "micro_step" or "micro_step.<t>"; NULL: none. */
const wefti_plan_program_t *wefti_plan_micro_step(const weft_plan_t *plan, uint32_t folds);

/* A text form of what fusion decided, shared by both forms of explain. */
typedef struct wefti_plan_summary {
    /* in memory that nothing else has; activations: the most bytes alive at once in other memory */
    uint64_t param_bytes, gradient_bytes, state_bytes, activation_bytes;
    uint64_t partial_bytes; /* of gradients: what no bucket reduces, but goes into what is */
    uint64_t bucket_bytes;  /* of all buckets together, payload of their members */
    uint32_t bucket_count;
} wefti_plan_summary_t;

/* What a rank of each place has: kernels of its own, weights that it loads. Free with the plan's
 * allocator; none where ranks run the same. */
typedef struct wefti_plan_place_summary {
    uint32_t kernel_count;
    uint64_t weight_bytes;
    uint64_t arena_bytes; /* used of the arena */
} wefti_plan_place_summary_t;
weft_status_t wefti_plan_summarise_places(const weft_plan_t *plan,
                                          wefti_plan_place_summary_t **out_places,
                                          uint32_t *out_count);
void wefti_plan_summarise(const weft_plan_t *plan, wefti_plan_summary_t *out_summary);
/* The next bucket: what reduces gradients in program step, in the order of its stream. Start with
 * *position 0. */
const wefti_plan_collective_t *wefti_plan_next_bucket(const weft_plan_t *plan, uint64_t *position,
                                                      uint32_t *out_stream);
/* Payload bytes that the collective covers of one member, and of all. */
uint64_t wefti_plan_covered_bytes(const weft_plan_t *plan,
                                  const wefti_plan_collective_t *collective, uint32_t member);
uint64_t wefti_plan_member_bytes(const weft_plan_t *plan,
                                 const wefti_plan_collective_t *collective);

/* Which buckets are pieces of one tensor, by the tensor's buffer. */
typedef struct wefti_plan_pieces {
    uint32_t *parts; /* how many buckets are pieces of it */
    uint32_t *seen;  /* how many wefti_plan_next_piece has met */
} wefti_plan_pieces_t;

weft_status_t wefti_plan_pieces_init(const weft_plan_t *plan, wefti_plan_pieces_t *out_pieces);
void wefti_plan_pieces_deinit(const weft_plan_t *plan, wefti_plan_pieces_t *pieces);
/* If the bucket is a piece, its number (from 1) in the order of the steps and of how many; else 0.
 * To be asked once for each bucket, in that order. */
uint32_t wefti_plan_next_piece(const weft_plan_t *plan, wefti_plan_pieces_t *pieces,
                               const wefti_plan_collective_t *bucket, uint32_t *out_parts);

#endif
