/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan in memory: what the compiler writes and the runtime replays. Offsets and ids only; one
 * plan serves all ranks. README.md beside this file describes the file format, plan.proto its
 * structure.
 *
 * Ownership: everything a plan points to lives in its arena or in the mapped file.
 */
#ifndef WEFT_OPS_PLAN_PLAN_H
#define WEFT_OPS_PLAN_PLAN_H

#include <weft/algo.h>
#include <weft/passes.h>
#include <weft/plan.h>
#include <weft/registry.h>

#include "runtime/base/digest.h"
#include "runtime/base/file.h"
#include "runtime/base/memory.h"
#include "runtime/base/mesh.h"

#define WEFTI_PLAN_NONE UINT32_MAX
/* What algorithms ask of the transport: the values of WEFTI_CAP_* of transport.h, which compilers
 * do not include. */
#define WEFTI_PLAN_CAP_DIRECT (1ull << 0)
#define WEFTI_PLAN_CAP_PUT (1ull << 1)
#define WEFTI_PLAN_CAP_SIGNAL (1ull << 2)
#define WEFTI_PLAN_ALIGNMENT 64u /* of every buffer in the arena and section in the file */

#define WEFTI_PLAN_SHARDED (1u << 0) /* a rank updates its shard of the parameters */
#define WEFTI_PLAN_DECOUPLED                                                                       \
    (1u << 1) /* weights are gathered at the next step's begin, or by flush */
#define WEFTI_PLAN_RANK_DATA                                                                       \
    (1u << 2)                            /* ranks have weights of their own: init gives nobody any \
                                          */
#define WEFTI_PLAN_SPLIT_BATCH (1u << 3) /* rank 0's batch is scattered, its results gathered */
#define WEFTI_PLAN_SHARDED_PARAMETERS                                                              \
    (1u << 4) /* a rank has only its shard of the parameters from WEFTI_PLAN_NOWHERE on */

/* Offsets of parameters that no rank has whole begin here: positions, side by side as in their
 * buckets, without memory. Only their shards (WEFTI_BUFFER_SHARD) are in the arena. */
#define WEFTI_PLAN_NOWHERE ((uint64_t)1 << 62)

/*
 * Entry points. init: once, weights to everybody. micro_step: forward and backward of a micro-batch
 * that is not the last of its step; "micro_step.<t>" folds it with the t newest partial sums. step:
 * all of a step, or the last micro-batch of one; of inference, the graph. flush: gathers the
 * weights of a decoupled step. eval: forward, without communication.
 */
#define WEFTI_PROGRAMS "init", "micro_step", "step", "flush", "eval"

typedef enum wefti_buffer_kind {
    WEFTI_BUFFER_PARAM = 1, /* weights; kinds 1 to 3 lie in regions in the same (readiness) order */
    WEFTI_BUFFER_GRAD = 2,
    WEFTI_BUFFER_STATE = 3,
    WEFTI_BUFFER_INPUT = 4,  /* fed before a step */
    WEFTI_BUFFER_SCALAR = 5, /* one element, fed by name, has a default */
    WEFTI_BUFFER_CONST = 6,  /* contents in the weights section */
    WEFTI_BUFFER_TEMP = 7,   /* activations: memory is reused once the last reader is done */
    WEFTI_BUFFER_OUTPUT = 8, /* loss, logits: readable after the step */
    WEFTI_BUFFER_RANGE =
        9, /* a flat range over consecutive PARAM, GRAD or STATE buffers: a bucket, or a shard */
    WEFTI_BUFFER_SHARD = 10, /* flat: this rank's shard of parameters that are nowhere whole, or of
                                the gradients of a bucket whose own memory is reused */
} wefti_buffer_kind_t;

typedef struct wefti_plan_buffer {
    const char *name;
    wefti_buffer_kind_t kind;
    weft_dtype_t dtype;
    weft_layout_t layout;
    uint32_t rank;
    int64_t dims[WEFT_MAX_DIMS]; /* RANGE: rank 1, the padded element count */
    uint64_t offset_bytes;       /* in the arena, of rank 0; multiple of 64 */
    /* Rank r's is at offset_bytes + r * rank_stride_bytes: its shard of a range that all ranks
     * have. 0: at the same place on every rank. */
    uint64_t rank_stride_bytes;
    uint64_t size_bytes; /* payload; buffers are padded to 64 */
    /* SHARD of parameters: rank r's is at position whole_offset_bytes + r * size_bytes. Else 0. */
    uint64_t whole_offset_bytes;
    /* TEMP, GRAD: id + 1 of the RANGE in which the buffer lies side by side with others, and whose
     * memory is reused. RANGE: id + 1 of itself, or of the RANGE that it is a piece of. 0: none. */
    uint32_t range;
    uint64_t data_offset_bytes; /* PARAM, CONST: where the contents start in the weights section */
    /* Contents number i (wefti_plan_contents_of) start at data_offset_bytes + i * this; 0: all ranks
     * have the same. */
    uint64_t rank_data_stride_bytes;
    wefti_division_t parts; /* PARAM with contents by rank: how the whole parameter is divided */
    double default_value;   /* SCALAR */
} wefti_plan_buffer_t;

typedef struct wefti_plan_kernel {
    const char *name, *domain, *op;
    int32_t version;
    uint32_t phase; /* wefti_phase_t of the IR: forward, backward, comm, update */
    uint32_t input_count, output_count, attr_count;
    uint32_t *inputs, *outputs; /* buffers, WEFTI_PLAN_NONE where absent */
    weft_attr_t *attrs;
    uint32_t place; /* 0: every rank runs it; else 1 + the place of those that do (place_group) */
    uint64_t predicted_ps; /* 0: not known */
} wefti_plan_kernel_t;

/* One way of carrying a collective out; bind takes the first that every rank can do. */
typedef struct wefti_plan_algorithm {
    const char *name;      /* "mesh" */
    uint64_t capabilities; /* what the transport must have: WEFTI_CAP_* of transport.h */
    uint64_t predicted_ps;
} wefti_plan_algorithm_t;

typedef struct wefti_plan_collective {
    const char *name; /* "bucket 0" */
    weft_collective_t op;
    weft_reduction_t reduction;
    weft_dtype_t dtype;
    uint32_t group;  /* 0: all ranks; k: the ranks along axis k - 1 of the mesh */
    uint32_t place;  /* as of a kernel: only groups of ranks at that place run it */
    uint32_t root;   /* operators with a root: a number in the group */
    uint32_t buffer; /* the result: a RANGE or a single buffer */
    uint32_t source; /* what a rank contributes; buffer itself, or a rank's own block of it (or the
                        buffer is that of the source): in place */
    uint64_t elem_count; /* of one block: all of it; AllGather, Gather: what each rank contributes;
                            ReduceScatter, Scatter: receives; AllToAll: per pair of ranks */
    uint32_t divisor;    /* avg: what the sum is divided by; 0: the number of ranks of the group */
    /* WEFTI_PLAN_NONE, or the kernel that a rank runs on its shard between reducing it and giving
     * the result to everybody ("one sweep"). The kernel reads and writes RANGE buffers with a rank
     * stride, works element by element, and is in no stream. buffer is then the range of
     * parameters, source the range of gradients; op is ALL_REDUCE. */
    uint32_t update;
    const char *order; /* as in WEFT_ORDER: "tree", "any", "blocks:4,4" */
    uint32_t member_count;
    uint32_t *members; /* the buffers it covers, in readiness order */
    uint32_t algorithm_count;
    wefti_plan_algorithm_t *algorithms;
    const char *reason; /* why this bucket ends where it ends */
} wefti_plan_collective_t;

typedef enum wefti_step_kind {
    WEFTI_STEP_KERNEL = 1,     /* index: kernel */
    WEFTI_STEP_COLLECTIVE = 2, /* index: collective */
    WEFTI_STEP_RECORD = 3,     /* index: event */
    WEFTI_STEP_WAIT = 4, /* index: event, recorded earlier in the same program by another stream */
} wefti_step_kind_t;

typedef struct wefti_plan_step {
    wefti_step_kind_t kind;
    uint32_t index;
} wefti_plan_step_t;

typedef struct wefti_plan_stream_program {
    uint32_t step_count;
    wefti_plan_step_t *steps;
} wefti_plan_stream_program_t;

/* An entry point: what each stream runs. Every event of a program is recorded once per run. */
typedef struct wefti_plan_program {
    const char *name;                     /* one of WEFTI_PROGRAMS; "micro_step.1" and so on too */
    wefti_plan_stream_program_t *streams; /* one per stream of the plan */
} wefti_plan_program_t;

typedef struct wefti_plan_stream {
    const char *name; /* "compute", "comm" */
    uint32_t communicates;
} wefti_plan_stream_t;

typedef struct wefti_plan_binding {
    const char *name;
    weft_binding_role_t role;
    uint32_t buffer;
} wefti_plan_binding_t;

/* What one bucket policy was predicted to come to. */
typedef struct wefti_plan_forecast_row {
    const char *policy;
    uint32_t bucket_count;
    uint64_t finish_ps; /* when the last bucket is done, from the step's begin */
} wefti_plan_forecast_row_t;

/* What the planner of buckets knew of a gradient (fusion/planner.h), in the order of readiness. */
typedef struct wefti_plan_forecast_gradient {
    const char *name; /* of its buffer */
    uint64_t ready_ps;
    uint64_t bytes, unit_bytes; /* of its range; a cap divides it at multiples of the unit */
    uint32_t first_with;        /* the first gradient that may share a bucket with it */
} wefti_plan_forecast_gradient_t;

typedef enum wefti_forecast_progress {
    WEFTI_FORECAST_UNKNOWN = 0, /* the number of cores is not known */
    WEFTI_FORECAST_INLINE = 1,  /* between kernels */
    WEFTI_FORECAST_THREAD = 2,  /* on a thread of its own */
} wefti_forecast_progress_t;

/* Predicted times of one step on a rank whose communication has one channel; ready_ps 0 and no rows
 * when nothing was predicted. */
typedef struct wefti_plan_forecast {
    uint64_t ready_ps; /* when the last gradient is there */
    uint64_t optimum_ps, chosen_ps, lower_bound_ps;
    uint64_t compute_ps; /* all kernels of a step, updates included */
    uint64_t update_ps;  /* updates among them; 0: not known */
    uint64_t comm_ps;    /* all buckets, one after another */
    /* chosen_ps and comm_ps again, if collectives cost 20 % more and twice as much */
    uint64_t chosen_slow_ps[2], comm_slow_ps[2];
    uint32_t optimum_count, chosen_count; /* buckets */
    uint32_t row_count;
    uint32_t gradient_count;
    const char *costs; /* name of the measured cost table; NULL or "": default costs */
    wefti_forecast_progress_t progress; /* how communication is predicted to run */
    wefti_plan_forecast_row_t *rows;    /* policies side by side */
    wefti_plan_forecast_gradient_t *gradients;
    weft_bucket_cost_t cost, alone; /* of a bucket; alone: of one gradient, empty where equal */
    uint64_t cap_bytes;             /* of a bucket; 0: none */
} wefti_plan_forecast_t;

/* A floating-point initializer of the model, or one that the exporter left out. */
typedef struct wefti_plan_parameter {
    const char *name, *why;
    weft_dtype_t dtype; /* NONE: the model lacks it */
    uint32_t rank;
    int64_t dims[WEFT_MAX_DIMS];
    bool trained, guess;
} wefti_plan_parameter_t;

/* An operator of the forward pass that runs again in the backward pass. */
typedef struct wefti_plan_recomputed {
    const char *name;
    uint64_t ps, bytes; /* of its kernel, of its outputs */
} wefti_plan_recomputed_t;

/* An XML file of MSCCL that collectives of the plan run by. */
typedef struct wefti_plan_algorithm_file {
    const char *name; /* of the file, without folders */
    const char *text;
    size_t size_bytes;
    const weft_algorithm_t *algorithm; /* of the registry algorithms of the plan */
} wefti_plan_algorithm_file_t;

#define WEFTI_PLAN_MAX_ALGORITHM_FILES 16u

struct weft_plan {
    uint32_t references;
    wefti_arena_t arena;
    wefti_mapping_t mapping; /* of the file it was loaded from, if any */

    const char *model_name;
    uint32_t world_size;
    int64_t batch;         /* samples of a rank's micro-batch; without accumulation: per step */
    const char *policy;    /* "bytes:25M" */
    const char *optimizer; /* "momentum" */
    uint64_t arena_bytes;
    uint64_t live_bytes; /* params + gradients + state + the most activations alive at once */
    uint64_t fusion_copied_bytes; /* bytes a step copies only to fuse: 0 by construction */
    weft_plan_kind_t kind;
    uint32_t accumulate; /* micro-batches of a rank and step, at least 1 */
    uint32_t
        global_micro_batches; /* leaves of the reduction tree, accumulate * world_size; 0: not fixed */
    uint32_t flags;           /* WEFTI_PLAN_* */
    double clip_norm;         /* of the global gradient; 0: not clipped */
    /* What algorithms were chosen for: "2 hosts x 4 ranks", "" where nobody said; and a digest of
     * which ranks share a host, in hexadecimal. Results do not depend on it, nor the structure
     * digest but by the algorithms. */
    const char *topology, *placement;
    wefti_mesh_t mesh;   /* groups of collectives */
    uint32_t data_group; /* ranks with equal weights and different batches; 0: by flags */
    /* The axis whose places run different kernels: stages of a pipeline, models. A Broadcast of this
     * group sends what one place has computed. 0: all ranks run the same. */
    uint32_t place_group;
    weft_bits_t bits;
    const char *device; /* that it was compiled for: "cpu", "opencl:0,1" */

    uint32_t buffer_count, kernel_count, collective_count, stream_count, event_count, program_count,
        binding_count;
    wefti_plan_buffer_t *buffers;
    wefti_plan_kernel_t *kernels;
    wefti_plan_collective_t *collectives;
    wefti_plan_stream_t *streams;
    wefti_plan_program_t *programs;
    wefti_plan_binding_t *bindings;

    wefti_plan_algorithm_file_t *algorithm_files;
    uint32_t algorithm_file_count;
    weft_registry_t *algorithms; /* of these files, proved; NULL: there are none */

    /* What is trained, and why; for people. None where the model was a compiled graph. */
    wefti_plan_parameter_t *parameters;
    uint32_t parameter_count;
    /* What is computed again, for people; none where the model was a compiled graph. */
    wefti_plan_recomputed_t *recomputed;
    uint32_t recomputed_count;
    uint64_t kept_arena_bytes; /* arena of a plan that recomputes nothing */

    wefti_plan_forecast_t forecast; /* not part of the structure digest */

    const uint8_t *weights; /* section: contents of PARAM and CONST buffers */
    uint64_t weights_bytes;
    const uint8_t *eval_model; /* section: ONNX of the evaluation model without trained weights */
    uint64_t eval_model_bytes;
    const char *no_eval_model; /* why there is none, or "" */

    wefti_digest_t
        structure_digest; /* without names, reasons, predictions, model_name and policy text */
    wefti_digest_t weights_digest;
};

/* An empty plan with one reference and an initialised arena. */
weft_status_t wefti_plan_create(const weft_allocator_t *allocator, weft_plan_t **out_plan);
/* Computes both digests. Called by the compiler once the plan is complete, and by load to compare.
 */
weft_status_t wefti_plan_seal(weft_plan_t *plan);
/* Proves what a hostile file could break: every id, offset, size and overlap rule, waits that can
 * be satisfied, kernels known by arity. registry may be NULL: then operators are not looked up. */
weft_status_t wefti_plan_verify(const weft_plan_t *plan, const weft_registry_t *registry);
/* Ranks that a collective is of. */
static inline wefti_axis_t wefti_plan_axis(const weft_plan_t *plan,
                                           const wefti_plan_collective_t *collective)
{
    return wefti_mesh_axis(&plan->mesh, plan->world_size, collective->group);
}
/* Ranks that compute one batch together, each with weights of its own. */
static inline uint32_t wefti_plan_batch_ranks(const weft_plan_t *plan)
{
    return (plan->flags & WEFTI_PLAN_RANK_DATA) == 0 ? 1
           : plan->data_group == 0                   ? plan->world_size
                                                     : plan->mesh.axes[plan->data_group - 1].stride;
}
/* Which contents of buffers that differ by rank a rank has. */
static inline uint32_t wefti_plan_contents_of(const weft_plan_t *plan, uint32_t rank)
{
    return rank % wefti_plan_batch_ranks(plan);
}
/* The number of a rank's batch, among those that ranks compute at the same time. */
static inline uint32_t wefti_plan_batch_of(const weft_plan_t *plan, uint32_t rank)
{
    return plan->place_group == 0 || plan->data_group == 0
               ? rank
               : wefti_axis_place(&plan->mesh.axes[plan->data_group - 1], rank);
}
/* Does a rank run the kernels and collectives of a place? */
static inline bool wefti_plan_runs(const weft_plan_t *plan, uint32_t place, uint32_t rank)
{
    return place == 0 ||
           wefti_axis_place(&plan->mesh.axes[plan->place_group - 1], rank) == place - 1;
}
/* The ranks of group that a collective sends from its root to: from one place to the others. */
static inline bool wefti_plan_sends(const weft_plan_t *plan,
                                    const wefti_plan_collective_t *collective)
{
    return plan->place_group != 0 && collective->group == plan->place_group &&
           collective->op == WEFT_COLLECTIVE_BROADCAST;
}
/* places.c: by buffer, where its contents are: 0 on every rank, else 1 + the place whose kernels and
 * collectives alone use it. In arena; NULL: no memory. */
uint32_t *wefti_plan_buffer_places(const weft_plan_t *plan, wefti_arena_t *arena);
/* The memory that ranks of a place (1 + number) use, sorted and apart. In arena. */
typedef struct wefti_plan_span {
    uint64_t begin, end; /* in the plan's arena */
} wefti_plan_span_t;
weft_status_t wefti_plan_place_spans(const weft_plan_t *plan, uint32_t place, wefti_arena_t *arena,
                                     wefti_plan_span_t **out_spans, uint32_t *out_count);
const wefti_plan_program_t *wefti_plan_program(const weft_plan_t *plan, const char *name);
/* algorithms.c: the algorithm called name: of a file in the plan, of the registry (may be NULL), or
 * built in; NULL: none. */
const weft_algorithm_t *wefti_plan_find_algorithm(const weft_plan_t *plan,
                                                  const weft_registry_t *registry,
                                                  weft_collective_t op, const char *name);
/* The registry in which a search by name finds algorithm: that of the plan's files, or registry. */
const weft_registry_t *wefti_plan_registry_of(const weft_plan_t *plan,
                                              const weft_registry_t *registry,
                                              const weft_algorithm_t *algorithm);
/* Does a program of a decoupled plan gather weights, or has flush to run before it? What else it
 * communicates says nothing. */
bool wefti_plan_gathers_weights(const weft_plan_t *plan, const wefti_plan_program_t *program);
/* Fills a node description of kernel from its buffers; arrays come from arena. */
weft_status_t wefti_plan_kernel_desc(const weft_plan_t *plan, uint32_t kernel, wefti_arena_t *arena,
                                     weft_node_desc_t *out_desc);

#endif
