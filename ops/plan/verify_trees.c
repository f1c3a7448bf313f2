/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Micro-batches are added up along the in-order tree, each once: partial sum t is made of the
 * gradients and of partial sums 0 to t - 1 in that order, by the program that folds t; what program
 * step hands over is made of those that are left, the bits of K - 1. And where sums are handed
 * over, updates divide by the number of all micro-batches. Folds that are no weft::TreeFold are
 * somebody else's: nothing is said about them.
 */
#include "ops/plan/plan_internal.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

/* Of kernels, as in the IR. */
#define PHASE_COMM 2u
#define PHASE_UPDATE 3u

/* The folds of one program, sorted by where the gradients lie that they begin with. */
typedef struct fold_list {
    const wefti_plan_kernel_t **folds;
    size_t count;
} fold_list_t;

static int is_fold(const wefti_plan_kernel_t *kernel)
{
    return kernel->phase == PHASE_COMM && strcmp(kernel->domain, "weft") == 0 &&
           strcmp(kernel->op, "TreeFold") == 0;
}

typedef struct sorted {
    uint64_t offset;
    const wefti_plan_kernel_t *kernel;
} sorted_t;

static int by_offset(const void *a, const void *b)
{
    const sorted_t *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static const wefti_plan_buffer_t *input(const weft_plan_t *plan, const wefti_plan_kernel_t *kernel,
                                        uint32_t index)
{
    return index < kernel->input_count && kernel->inputs[index] != WEFTI_PLAN_NONE
               ? &plan->buffers[kernel->inputs[index]]
               : NULL;
}

static size_t find_folds(const weft_plan_t *plan, const wefti_plan_program_t *program,
                         sorted_t *out)
{
    size_t count = 0;
    for (uint32_t s = 0; s < plan->stream_count; s++) {
        for (uint32_t i = 0; i < program->streams[s].step_count; i++) {
            const wefti_plan_step_t *step = &program->streams[s].steps[i];
            const wefti_plan_kernel_t *kernel =
                step->kind == WEFTI_STEP_KERNEL ? &plan->kernels[step->index] : NULL;
            if (kernel && is_fold(kernel) && input(plan, kernel, 0)) {
                if (out) {
                    out[count] = (sorted_t){input(plan, kernel, 0)->offset_bytes, kernel};
                }
                count++;
            }
        }
    }
    return count;
}

static weft_status_t list_folds(const weft_plan_t *plan, const wefti_plan_program_t *program,
                                wefti_arena_t *arena, fold_list_t *out)
{
    size_t count = find_folds(plan, program, NULL);
    sorted_t *sorted = wefti_arena_array(arena, count, sizeof *sorted);
    out->folds = wefti_arena_array(arena, count, sizeof *out->folds);
    if (!sorted || !out->folds) {
        return WEFT_ERR_NO_MEMORY;
    }
    find_folds(plan, program, sorted);
    qsort(sorted, count, sizeof *sorted, by_offset);
    for (size_t i = 0; i < count; i++) {
        out->folds[i] = sorted[i].kernel;
    }
    out->count = count;
    return WEFT_OK;
}

/* The fold that begins with the same gradients, or NULL. */
static const wefti_plan_kernel_t *find_like(const weft_plan_t *plan, const fold_list_t *list,
                                            const wefti_plan_kernel_t *like)
{
    const wefti_plan_buffer_t *wanted = input(plan, like, 0);
    size_t low = 0, high = list->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (input(plan, list->folds[middle], 0)->offset_bytes < wanted->offset_bytes) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < list->count &&
                   input(plan, list->folds[low], 0)->offset_bytes == wanted->offset_bytes
               ? list->folds[low]
               : NULL;
}

static weft_status_t bad_fold(const wefti_plan_kernel_t *fold, const char *what)
{
    return wefti_error(WEFT_ERR_FORMAT, "kernel %.100s: %s", fold->name, what);
}

/* Inputs are the gradients and the partial sums of mask, lowest first. sums[t] is where partial sum
 * t lies; UINT64_MAX: not known yet. */
static weft_status_t check_inputs(const weft_plan_t *plan, const wefti_plan_kernel_t *fold,
                                  uint32_t mask, uint64_t *sums)
{
    uint32_t at = 1;
    for (uint32_t t = 0; t < 32; t++) {
        if ((mask >> t & 1) == 0) {
            continue;
        }
        const wefti_plan_buffer_t *sum = input(plan, fold, at++);
        if (!sum || sum->size_bytes != input(plan, fold, 0)->size_bytes) {
            return bad_fold(fold, "a partial sum is missing, or is of other gradients");
        }
        sums[t] = sums[t] == UINT64_MAX ? sum->offset_bytes : sums[t];
        if (sums[t] != sum->offset_bytes) {
            return bad_fold(fold, "partial sums are not added in the order of the tree");
        }
    }
    return at == fold->input_count ? WEFT_OK
                                   : bad_fold(fold, "it adds more than the partial sums there are");
}

/* One bucket: the fold of program step, and those of the micro-steps' programs that lead to it. */
static weft_status_t check_bucket(const weft_plan_t *plan, const wefti_plan_kernel_t *last,
                                  const fold_list_t *micro, uint32_t levels)
{
    uint64_t sums[32];
    memset(sums, 0xff, sizeof sums);
    weft_status_t status = WEFT_OK;
    for (uint32_t t = 0; t < levels && status == WEFT_OK; t++) {
        const wefti_plan_kernel_t *fold = find_like(plan, &micro[t], last);
        if (!fold && t > 0) {
            return bad_fold(last, "there is no fold for each of its partial sums");
        }
        if (!fold) { /* kernels write partial sum 0 */
            continue;
        }
        if (fold->output_count == 0 || fold->outputs[0] == WEFTI_PLAN_NONE) {
            return bad_fold(fold, "its result is absent");
        }
        status = check_inputs(plan, fold, ((uint32_t)1 << t) - 1, sums);
        sums[t] = plan->buffers[fold->outputs[0]].offset_bytes;
    }
    return status == WEFT_OK ? check_inputs(plan, last, plan->accumulate - 1, sums) : status;
}

static weft_status_t check_folds(const weft_plan_t *plan, wefti_arena_t *arena)
{
    fold_list_t last, micro[32];
    const wefti_plan_program_t *program;
    uint32_t levels = 0;
    WEFT_RETURN_IF_ERROR(list_folds(plan, wefti_plan_program(plan, "step"), arena, &last));
    for (; levels < 32 && (program = wefti_plan_micro_step(plan, levels)) != NULL; levels++) {
        WEFT_RETURN_IF_ERROR(list_folds(plan, program, arena, &micro[levels]));
    }
    for (size_t i = 0; i < last.count; i++) {
        WEFT_RETURN_IF_ERROR(check_bucket(plan, last.folds[i], micro, levels));
    }
    return WEFT_OK;
}

/* An update divides by the number of all micro-batches, if at all. */
static weft_status_t check_divisors(const weft_plan_t *plan)
{
    uint64_t leaves =
        (uint64_t)plan->accumulate * (plan->world_size / wefti_plan_batch_ranks(plan));
    for (uint32_t i = 0; i < plan->kernel_count; i++) {
        const wefti_plan_kernel_t *kernel = &plan->kernels[i];
        for (uint32_t a = 0; kernel->phase == PHASE_UPDATE && a < kernel->attr_count; a++) {
            const weft_attr_t *attr = &kernel->attrs[a];
            if (strcmp(kernel->domain, "weft") == 0 && attr->type == WEFT_ATTR_TYPE_INT &&
                strcmp(attr->name, "divisor") == 0 && attr->i != 1 && (uint64_t)attr->i != leaves) {
                return wefti_error(WEFT_ERR_FORMAT,
                                   "kernel %u (%.100s): divisor mismatch: it divides by %lld, a "
                                   "step has %llu micro-batches",
                                   i, kernel->name, (long long)attr->i, (unsigned long long)leaves);
            }
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_plan_verify_trees(const weft_plan_t *plan)
{
    weft_status_t status;
    wefti_arena_t arena;
    wefti_arena_init(&arena, plan->arena.allocator, 0);
    WEFT_TRY(status, check_divisors(plan), done);
    WEFT_TRY(status, check_folds(plan, &arena), done);
done:
    wefti_arena_deinit(&arena);
    return status;
}
