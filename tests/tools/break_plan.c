/* SPDX-License-Identifier: Apache-2.0 */
/*
 * break_plan IN OUT WAY: loads a plan, breaks it in one way, seals it again, so that only what it
 * says is wrong, and prints what `weft verify` must then say. Exit status 3: the plan has nothing
 * that could be broken in that way. break_plan --list: all ways.
 */
#include <stdio.h>
#include <string.h>

#include "ops/plan/plan_internal.h"

typedef struct way {
    const char *name;
    int (*apply)(weft_plan_t *plan); /* 0: does not apply */
    const char *says;                /* some of the words of the message; | means or */
} way_t;

static wefti_plan_program_t *program(weft_plan_t *plan, const char *name)
{
    return (wefti_plan_program_t *)wefti_plan_program(plan, name);
}

/* Takes a step out of a stream. */
static void take_out(wefti_plan_stream_program_t *stream, uint32_t at)
{
    memmove(&stream->steps[at], &stream->steps[at + 1],
            (stream->step_count - at - 1) * sizeof *stream->steps);
    stream->step_count--;
}

/* The first step of a kind in streams that communicate, or in those that do not. */
static wefti_plan_stream_program_t *find_step(weft_plan_t *plan, const char *name,
                                              uint32_t communicates, wefti_step_kind_t kind,
                                              uint32_t *out_at)
{
    wefti_plan_program_t *in = program(plan, name);
    for (uint32_t s = 0; in && s < plan->stream_count; s++) {
        for (uint32_t i = 0; i < in->streams[s].step_count; i++) {
            if (plan->streams[s].communicates == communicates &&
                in->streams[s].steps[i].kind == kind) {
                *out_at = i;
                return &in->streams[s];
            }
        }
    }
    return NULL;
}

static int drop_step(weft_plan_t *plan, const char *name, uint32_t communicates,
                     wefti_step_kind_t kind)
{
    uint32_t at;
    wefti_plan_stream_program_t *stream = find_step(plan, name, communicates, kind, &at);
    if (stream) {
        take_out(stream, at);
    }
    return stream != NULL;
}

/* The first bucket of program step: the collective, and where it stands. */
static wefti_plan_collective_t *find_bucket(weft_plan_t *plan, wefti_plan_stream_program_t **stream,
                                            uint32_t *out_at)
{
    wefti_plan_program_t *step = program(plan, "step");
    for (uint32_t s = 0; s < plan->stream_count; s++) {
        for (uint32_t i = 0; i < step->streams[s].step_count; i++) {
            wefti_plan_step_t *at = &step->streams[s].steps[i];
            if (at->kind == WEFTI_STEP_COLLECTIVE &&
                wefti_plan_reduces_gradients(plan, &plan->collectives[at->index])) {
                *stream = &step->streams[s];
                *out_at = i;
                return &plan->collectives[at->index];
            }
        }
    }
    return NULL;
}

/* The wait of the first bucket: others may only bound how many are in flight. */
static int comm_does_not_wait(weft_plan_t *plan)
{
    wefti_plan_stream_program_t *stream;
    uint32_t at;
    if (!find_bucket(plan, &stream, &at)) {
        return 0;
    }
    while (at > 0 && stream->steps[at].kind != WEFTI_STEP_WAIT) {
        at--;
    }
    bool waits = stream->steps[at].kind == WEFTI_STEP_WAIT;
    if (waits) {
        take_out(stream, at);
    }
    return waits;
}

/* The last wait, which is that of an update. */
static int compute_does_not_wait(weft_plan_t *plan)
{
    uint32_t at;
    wefti_plan_stream_program_t *stream = find_step(plan, "step", 0, WEFTI_STEP_WAIT, &at);
    for (uint32_t i = 0; stream && i < stream->step_count; i++) {
        at = stream->steps[i].kind == WEFTI_STEP_WAIT ? i : at;
    }
    if (stream) {
        take_out(stream, at);
    }
    return stream != NULL;
}

static int nobody_records(weft_plan_t *plan)
{
    return drop_step(plan, "step", 0, WEFTI_STEP_RECORD);
}

/* Each stream waits for what the other records behind its own wait. */
static int circle(weft_plan_t *plan)
{
    uint32_t wait, record;
    wefti_plan_stream_program_t *comm = find_step(plan, "step", 1, WEFTI_STEP_WAIT, &wait);
    wefti_plan_stream_program_t *compute = find_step(plan, "step", 0, WEFTI_STEP_RECORD, &record);
    uint32_t back;
    wefti_plan_stream_program_t *waits = find_step(plan, "step", 0, WEFTI_STEP_WAIT, &back);
    if (!comm || !compute || !waits || back < record) {
        return 0;
    }
    wefti_plan_step_t moved = waits->steps[back];
    memmove(&waits->steps[record + 1], &waits->steps[record],
            (back - record) * sizeof *waits->steps);
    waits->steps[record] = moved;
    return 1;
}

static int bucket_left_out(weft_plan_t *plan)
{
    wefti_plan_stream_program_t *stream;
    uint32_t at;
    if (!find_bucket(plan, &stream, &at)) {
        return 0;
    }
    take_out(stream, at);
    return 1;
}

/* One more bucket takes the place of whatever stands behind the first, or of a wait before it. */
static int bucket_twice(weft_plan_t *plan)
{
    wefti_plan_stream_program_t *stream;
    uint32_t at;
    wefti_plan_collective_t *bucket = find_bucket(plan, &stream, &at);
    if (!bucket || at == 0) {
        return 0;
    }
    stream->steps[at - 1] = stream->steps[at];
    return 1;
}

static int bucket_moved(weft_plan_t *plan)
{
    wefti_plan_stream_program_t *stream;
    uint32_t at;
    wefti_plan_collective_t *bucket = find_bucket(plan, &stream, &at);
    if (!bucket || plan->buffers[bucket->source].kind != WEFTI_BUFFER_RANGE) {
        return 0;
    }
    plan->buffers[bucket->source].offset_bytes -= 64;
    return 1;
}

static int bucket_on_compute(weft_plan_t *plan)
{
    wefti_plan_stream_program_t *stream;
    uint32_t at, kernel;
    wefti_plan_collective_t *bucket = find_bucket(plan, &stream, &at);
    wefti_plan_stream_program_t *compute = find_step(plan, "step", 0, WEFTI_STEP_KERNEL, &kernel);
    if (!bucket || !compute || compute == stream) {
        return 0;
    }
    compute->steps[kernel] = stream->steps[at];
    return 1;
}

/* The last update runs when gradients are ready, and only then are they sent. */
static int update_before_bucket(weft_plan_t *plan)
{
    wefti_plan_stream_program_t *compute = &program(plan, "step")->streams[0];
    for (uint32_t i = compute->step_count; i-- > 1;) {
        wefti_plan_step_t *steps = compute->steps;
        if (steps[i].kind != WEFTI_STEP_KERNEL || plan->kernels[steps[i].index].phase != 3) {
            continue;
        }
        for (uint32_t to = i; to-- > 0;) {
            if (steps[to].kind == WEFTI_STEP_RECORD) {
                wefti_plan_step_t moved = steps[i];
                memmove(&steps[to + 1], &steps[to], (i - to) * sizeof moved);
                steps[to] = moved;
                return 1;
            }
        }
    }
    return 0;
}

static wefti_plan_buffer_t *find_buffer(weft_plan_t *plan, wefti_buffer_kind_t kind, uint32_t skip)
{
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        if (plan->buffers[i].kind == kind && plan->buffers[i].size_bytes > 0 && skip-- == 0) {
            return &plan->buffers[i];
        }
    }
    return NULL;
}

static int params_overlap(weft_plan_t *plan)
{
    wefti_plan_buffer_t *a = find_buffer(plan, WEFTI_BUFFER_PARAM, 0);
    wefti_plan_buffer_t *b = find_buffer(plan, WEFTI_BUFFER_PARAM, 1);
    if (a && b) {
        b->offset_bytes = a->offset_bytes;
    }
    return a && b;
}

/* A kernel's result goes where something that it reads, and must not write, lies. */
static int temporaries_overlap(weft_plan_t *plan)
{
    for (uint32_t k = 0; k < plan->kernel_count; k++) {
        const wefti_plan_kernel_t *kernel = &plan->kernels[k];
        for (uint32_t i = 0; i < kernel->input_count; i++) {
            if (kernel->inputs[i] == WEFTI_PLAN_NONE || kernel->output_count == 0 ||
                kernel->outputs[0] == WEFTI_PLAN_NONE || strcmp(kernel->op, "Gemm") != 0) {
                continue;
            }
            wefti_plan_buffer_t *in = &plan->buffers[kernel->inputs[i]];
            wefti_plan_buffer_t *out = &plan->buffers[kernel->outputs[0]];
            if (in->kind == WEFTI_BUFFER_TEMP && out->kind == WEFTI_BUFFER_TEMP) {
                out->offset_bytes = in->offset_bytes;
                return 1;
            }
        }
    }
    return 0;
}

static int arena_too_small(weft_plan_t *plan)
{
    plan->arena_bytes -= 64;
    return 1;
}

static int weights_too_short(weft_plan_t *plan)
{
    plan->weights_bytes /= 2;
    return 1;
}

static int shape_differs(weft_plan_t *plan)
{
    wefti_plan_buffer_t *temp = find_buffer(plan, WEFTI_BUFFER_TEMP, 0);
    if (!temp || temp->rank < 2 || temp->dims[0] == temp->dims[1]) {
        return 0;
    }
    int64_t dim = temp->dims[0];
    temp->dims[0] = temp->dims[1];
    temp->dims[1] = dim;
    return 1;
}

static int operator_differs(weft_plan_t *plan)
{
    plan->kernels[0].op = "Nonsense";
    return 1;
}

static int weights_kept_by_rank_0(weft_plan_t *plan)
{
    uint32_t at;
    wefti_plan_stream_program_t *init = find_step(plan, "init", 1, WEFTI_STEP_COLLECTIVE, &at);
    if (init) {
        init->step_count = 0;
    }
    return init != NULL;
}

static int eval_communicates(weft_plan_t *plan)
{
    uint32_t at, gather;
    wefti_plan_program_t *eval = program(plan, "eval");
    wefti_plan_stream_program_t *stream;
    if (!eval || !find_bucket(plan, &stream, &at)) {
        return 0;
    }
    wefti_plan_stream_program_t *gathers =
        find_step(plan, "eval", 1, WEFTI_STEP_COLLECTIVE, &gather);
    if (gathers) { /* of sharded weights, which is allowed */
        gathers->steps[gather] = stream->steps[at];
        return 1;
    }
    eval->streams[1].steps = &stream->steps[at];
    eval->streams[1].step_count = 1;
    return 1;
}

/* The first all-gather of a program. */
static wefti_plan_stream_program_t *find_gather(weft_plan_t *plan, const char *name,
                                                uint32_t *out_at)
{
    wefti_plan_program_t *in = program(plan, name);
    for (uint32_t s = 0; in && s < plan->stream_count; s++) {
        for (uint32_t i = 0; i < in->streams[s].step_count; i++) {
            const wefti_plan_step_t *step = &in->streams[s].steps[i];
            if (step->kind == WEFTI_STEP_COLLECTIVE &&
                plan->collectives[step->index].op == WEFT_COLLECTIVE_ALL_GATHER) {
                *out_at = i;
                return &in->streams[s];
            }
        }
    }
    return NULL;
}

static int weights_not_gathered(weft_plan_t *plan)
{
    uint32_t at;
    wefti_plan_stream_program_t *stream =
        plan->flags & WEFTI_PLAN_DECOUPLED ? NULL : find_gather(plan, "step", &at);
    if (stream) {
        take_out(stream, at);
    }
    return stream != NULL;
}

static int next_step_does_not_gather(weft_plan_t *plan)
{
    uint32_t at;
    wefti_plan_stream_program_t *stream =
        plan->flags & WEFTI_PLAN_DECOUPLED ? find_gather(plan, "step", &at) : NULL;
    if (stream) {
        take_out(stream, at);
    }
    return stream != NULL;
}

static int flush_does_not_gather(weft_plan_t *plan)
{
    uint32_t at;
    wefti_plan_stream_program_t *stream = find_gather(plan, "flush", &at);
    if (stream) {
        take_out(stream, at);
    }
    return stream != NULL;
}

static int flush_missing(weft_plan_t *plan)
{
    wefti_plan_program_t *flush = program(plan, "flush");
    if (flush) {
        flush->name = "flash";
    }
    return flush != NULL;
}

/* A buffer with a rank stride. */
static wefti_plan_buffer_t *find_shard(weft_plan_t *plan)
{
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        if (plan->buffers[i].rank_stride_bytes > 0) {
            return &plan->buffers[i];
        }
    }
    return NULL;
}

static int shards_overlap(weft_plan_t *plan)
{
    wefti_plan_buffer_t *shard = find_shard(plan);
    if (shard) {
        shard->rank_stride_bytes -= 64;
    }
    return shard != NULL;
}

static int shards_leave_the_arena(weft_plan_t *plan)
{
    wefti_plan_buffer_t *shard = find_shard(plan);
    if (shard) {
        shard->rank_stride_bytes = plan->arena_bytes & ~63ull;
    }
    return shard != NULL;
}

static int shards_cut_units(weft_plan_t *plan)
{
    wefti_plan_buffer_t *shard = find_shard(plan);
    if (shard) {
        shard->rank_stride_bytes += 4;
    }
    return shard != NULL;
}

static wefti_plan_collective_t *find_sweep(weft_plan_t *plan)
{
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        if (plan->collectives[i].update != WEFTI_PLAN_NONE) {
            return &plan->collectives[i];
        }
    }
    return NULL;
}

static int sweep_updates_something_else(weft_plan_t *plan)
{
    wefti_plan_collective_t *sweep = find_sweep(plan);
    if (sweep) {
        plan->kernels[sweep->update].inputs[1] = plan->kernels[sweep->update].inputs[0];
    }
    return sweep != NULL;
}

static int sweep_kernel_is_run_alone(weft_plan_t *plan)
{
    wefti_plan_collective_t *sweep = find_sweep(plan);
    uint32_t at;
    wefti_plan_stream_program_t *compute = find_step(plan, "step", 0, WEFTI_STEP_KERNEL, &at);
    if (sweep && compute) {
        compute->steps[at].index = sweep->update;
    }
    return sweep && compute;
}

static int sweep_state_too_long(weft_plan_t *plan)
{
    wefti_plan_collective_t *sweep = find_sweep(plan);
    if (!sweep || plan->kernels[sweep->update].input_count < 3) {
        return 0;
    }
    plan->kernels[sweep->update].inputs[2] = sweep->buffer;
    return 1;
}

static int micro_step_missing(weft_plan_t *plan)
{
    wefti_plan_program_t *micro = program(plan, "micro_step");
    if (micro) {
        micro->name = "macro_step";
    }
    return micro != NULL;
}

static int micro_step_reduces(weft_plan_t *plan)
{
    wefti_plan_stream_program_t *stream;
    uint32_t at;
    wefti_plan_program_t *micro = program(plan, "micro_step");
    if (!micro || !find_bucket(plan, &stream, &at)) {
        return 0;
    }
    micro->streams[1].steps = &stream->steps[at];
    micro->streams[1].step_count = 1;
    return 1;
}

static int micro_step_does_nothing(weft_plan_t *plan)
{
    wefti_plan_program_t *micro = program(plan, "micro_step");
    for (uint32_t s = 0; micro && s < plan->stream_count; s++) {
        micro->streams[s].step_count = 0;
    }
    return micro != NULL;
}

static wefti_plan_kernel_t *find_fold(weft_plan_t *plan, uint32_t inputs)
{
    for (uint32_t i = 0; i < plan->kernel_count; i++) {
        wefti_plan_kernel_t *kernel = &plan->kernels[i];
        if (strcmp(kernel->op, "TreeFold") == 0 && kernel->input_count >= inputs) {
            return kernel;
        }
    }
    return NULL;
}

static int fold_in_another_order(weft_plan_t *plan)
{
    wefti_plan_kernel_t *fold = find_fold(plan, 3);
    if (fold) {
        uint32_t moved = fold->inputs[1];
        fold->inputs[1] = fold->inputs[2];
        fold->inputs[2] = moved;
    }
    return fold != NULL;
}

static int fold_leaves_one_out(weft_plan_t *plan)
{
    wefti_plan_kernel_t *fold = find_fold(plan, 2);
    if (fold) {
        fold->input_count--;
    }
    return fold != NULL;
}

/* The first shard of sharded parameters, or NULL. */
static wefti_plan_buffer_t *find_param_shard(weft_plan_t *plan)
{
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        if (plan->buffers[i].whole_offset_bytes != 0) {
            return &plan->buffers[i];
        }
    }
    return NULL;
}

static int shard_is_of_others(weft_plan_t *plan)
{
    wefti_plan_buffer_t *shard = find_param_shard(plan);
    if (shard) {
        shard->whole_offset_bytes += WEFTI_PLAN_ALIGNMENT;
    }
    return shard != NULL;
}

/* A tensor that lies in a range is said to lie in no range. */
static int gathered_alone(weft_plan_t *plan)
{
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        if (plan->buffers[i].kind == WEFTI_BUFFER_TEMP && plan->buffers[i].range != 0) {
            plan->buffers[i].range = 0;
            return 1;
        }
    }
    return 0;
}

/* All memory that is reused at one place. */
static int gathered_over_others(weft_plan_t *plan)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < plan->buffer_count; i++) {
        if (plan->buffers[i].range == i + 1 && plan->buffers[i].offset_bytes < least) {
            least = plan->buffers[i].offset_bytes;
        }
    }
    for (uint32_t i = plan->buffer_count; i-- > 0 && least != UINT64_MAX;) {
        wefti_plan_buffer_t *buffer = &plan->buffers[i];
        if (buffer->range != 0) {
            buffer->offset_bytes -= plan->buffers[buffer->range - 1].offset_bytes - least;
        }
    }
    return least != UINT64_MAX;
}

static int shards_are_not_micro_batches(weft_plan_t *plan)
{
    plan->global_micro_batches = plan->accumulate * plan->world_size + 1;
    return 1;
}

static const way_t ways[] = {
    {"comm-does-not-wait", comm_does_not_wait, "stream"},
    {"compute-does-not-wait", compute_does_not_wait, "stream"},
    {"nobody-records", nobody_records, "never satisfied"},
    {"circle", circle, "never satisfied"},
    {"bucket-left-out", bucket_left_out, "is not reduced"},
    {"bucket-twice", bucket_twice, "reduced twice"},
    {"bucket-moved", bucket_moved, ""},
    {"bucket-on-compute", bucket_on_compute, "several streams"},
    {"update-before-bucket", update_before_bucket, "before it is reduced|stream"},
    {"params-overlap", params_overlap, "overlap"},
    {"temporaries-overlap", temporaries_overlap, "overwrites an input"},
    {"arena-too-small", arena_too_small, "arena size"},
    {"weights-too-short", weights_too_short, "weights section"},
    {"shape-differs", shape_differs, ""},
    {"operator-differs", operator_differs, "Nonsense"},
    {"weights-kept-by-rank-0", weights_kept_by_rank_0, "not broadcast to all ranks"},
    {"eval-communicates", eval_communicates, "communicates"},
    {"shard-is-of-others", shard_is_of_others, "no range of sharded|lie where its parameter"},
    {"gathered-alone", gathered_alone, "do not lie in its range"},
    {"gathered-over-others", gathered_over_others,
     "used for something else|stream|overwrites an input"},
    {"weights-not-gathered", weights_not_gathered, "is not gathered|before it is written"},
    {"next-step-does-not-gather", next_step_does_not_gather, "only a shard of it was written"},
    {"flush-does-not-gather", flush_does_not_gather, "is not gathered|only a shard"},
    {"flush-missing", flush_missing, "missing program 'flush'"},
    {"shards-overlap", shards_overlap, ""},
    {"shards-leave-the-arena", shards_leave_the_arena, "arena size"},
    {"shards-cut-units", shards_cut_units, "multiple of 64"},
    {"sweep-updates-something-else", sweep_updates_something_else,
     "the shards of its ranges|overwrites"},
    {"sweep-kernel-is-run-alone", sweep_kernel_is_run_alone, "by somebody else"},
    {"sweep-state-too-long", sweep_state_too_long, ""},
    {"micro-step-missing", micro_step_missing, "program for 0 folds"},
    {"micro-step-reduces", micro_step_reduces, "program step only|never satisfied"},
    {"micro-step-does-nothing", micro_step_does_nothing, "before it is written"},
    {"fold-in-another-order", fold_in_another_order, "order of the tree"},
    {"fold-leaves-one-out", fold_leaves_one_out, "partial sum is missing|is not reduced"},
    {"shards-are-not-micro-batches", shards_are_not_micro_batches, "global_micro_batches is not"},
};

static int break_plan(const char *in, const char *out, const way_t *way)
{
    weft_plan_t *plan = NULL;
    int code = 1;
    if (weft_plan_load(in, NULL, &plan) == WEFT_OK) {
        code = 3;
        if (way->apply(plan)) {
            code = wefti_plan_seal(plan) == WEFT_OK && weft_plan_save(plan, out) == WEFT_OK ? 0 : 1;
        }
    }
    if (code == 1) {
        fprintf(stderr, "break_plan: %s\n", weft_last_error());
    } else if (code == 0) {
        puts(way->says);
    }
    weft_plan_release(plan);
    return code;
}

static int says(const way_t *way, const char *message)
{
    char words[128];
    snprintf(words, sizeof words, "%s", way->says);
    for (char *next = words, *word; (word = next) != NULL;) {
        next = strchr(word, '|');
        if (next) {
            *next++ = 0;
        }
        if (strstr(message, word)) {
            return 1;
        }
    }
    return 0;
}

/* The names of the ways that apply; exit status 1 if one is accepted, or refused in other words. */
static int break_all(const char *path, const way_t *way, size_t count)
{
    weft_registry_t *registry;
    int wrong = 0;
    if (weft_registry_create(NULL, &registry) != WEFT_OK) {
        return 1;
    }
    for (; count > 0; count--, way++) {
        weft_plan_t *plan = NULL;
        if (weft_plan_load(path, registry, &plan) != WEFT_OK) {
            fprintf(stderr, "break_plan: %s\n", weft_last_error());
            wrong = 1;
        } else if (way->apply(plan)) {
            weft_status_t status = wefti_plan_verify(plan, registry);
            if (status >= 0 || !says(way, weft_last_error())) {
                fprintf(stderr, "%s: %s\n", way->name,
                        status >= 0 ? "accepted" : weft_last_error());
                wrong = 1;
            }
            puts(way->name);
        }
        weft_plan_release(plan);
    }
    weft_registry_destroy(registry);
    return wrong;
}

int main(int argc, char **argv)
{
    size_t count = sizeof ways / sizeof ways[0];
    if (argc == 3 && strcmp(argv[1], "--all") == 0) {
        return break_all(argv[2], ways, count);
    }
    for (size_t i = 0; argc == 2 && i < count; i++) {
        puts(ways[i].name);
    }
    for (size_t i = 0; argc == 4 && i < count; i++) {
        if (strcmp(ways[i].name, argv[3]) == 0) {
            return break_plan(argv[1], argv[2], &ways[i]);
        }
    }
    return argc == 2 ? 0 : 2;
}
