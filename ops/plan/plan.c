/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/plan/plan.h"

#include <stdio.h>
#include <string.h>

#include "ops/plan/plan_internal.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"

weft_status_t wefti_plan_create(const weft_allocator_t *allocator, weft_plan_t **out_plan)
{
    weft_plan_t *plan = wefti_alloc(allocator, sizeof *plan);
    *out_plan = plan;
    if (!plan) {
        return WEFT_ERR_NO_MEMORY;
    }
    plan->references = 1;
    wefti_arena_init(&plan->arena, allocator, 0);
    plan->model_name = "";
    plan->no_eval_model = "";
    plan->policy = "";
    plan->optimizer = "";
    plan->topology = "";
    plan->device = "cpu";
    plan->placement = "";
    plan->kind = WEFT_PLAN_KIND_TRAINING;
    plan->accumulate = 1;
    return WEFT_OK;
}

/* Ranks that are threads share a plan, so the count is atomic. */
void weft_plan_retain(weft_plan_t *plan)
{
    WEFT_CHECK_ARG_VOID(plan);
    __atomic_fetch_add(&plan->references, 1, __ATOMIC_RELAXED);
}

void weft_plan_release(weft_plan_t *plan)
{
    /* Release our uses of the plan, acquire those of everybody else before it goes. */
    if (!plan || __atomic_sub_fetch(&plan->references, 1, __ATOMIC_ACQ_REL) != 0) {
        return;
    }
    const weft_allocator_t *allocator = plan->arena.allocator;
    weft_registry_destroy(plan->algorithms);
    wefti_arena_deinit(&plan->arena);
    wefti_file_unmap(&plan->mapping);
    wefti_free(allocator, plan);
}

weft_status_t weft_plan_get_info(const weft_plan_t *plan, weft_plan_info_t *info)
{
    WEFT_CHECK_ARG(plan);
    WEFT_CHECK_ARG(info);
    wefti_plan_summary_t summary;
    weft_status_t status = wefti_report_check("info", info);
    if (status < 0) {
        return status;
    }
    wefti_plan_summarise(plan, &summary);
    weft_plan_info_t own = {
        .model_name = plan->model_name,
        .world_size = plan->world_size,
        .batch = plan->batch,
        .policy = plan->policy,
        .optimizer = plan->optimizer,
        .bucket_count = summary.bucket_count,
        .arena_bytes = plan->arena_bytes,
        .live_bytes = plan->live_bytes,
        .fusion_copied_bytes = plan->fusion_copied_bytes,
        .kind = plan->kind,
        .accumulate = plan->accumulate,
        .global_micro_batches = plan->global_micro_batches,
        .shard_optimizer = (plan->flags & WEFTI_PLAN_SHARDED) != 0,
        .decouple = (plan->flags & WEFTI_PLAN_DECOUPLED) != 0,
        .clip_norm = plan->clip_norm,
        .split_batch = (plan->flags & WEFTI_PLAN_SPLIT_BATCH) != 0,
        .rank_weights = (plan->flags & WEFTI_PLAN_RANK_DATA) != 0,
        .has_eval = wefti_plan_program(plan, "eval") != NULL,
        .batch_ranks = wefti_plan_batch_ranks(plan),
        .bits = plan->bits,
        .device = plan->device,
    };
    wefti_digest_hex(&plan->structure_digest, own.structure_digest);
    wefti_digest_hex(&plan->weights_digest, own.weights_digest);
    wefti_report_write(info, &own, sizeof own);
    return WEFT_OK;
}

const wefti_plan_program_t *wefti_plan_program(const weft_plan_t *plan, const char *name)
{
    for (uint32_t i = 0; i < plan->program_count; i++) {
        if (strcmp(plan->programs[i].name, name) == 0) {
            return &plan->programs[i];
        }
    }
    return NULL;
}

static uint32_t first_collective(const weft_plan_t *plan, const wefti_plan_program_t *program)
{
    for (uint32_t s = 0; s < plan->stream_count; s++) {
        for (uint32_t i = 0; i < program->streams[s].step_count; i++) {
            if (program->streams[s].steps[i].kind == WEFTI_STEP_COLLECTIVE) {
                return program->streams[s].steps[i].index;
            }
        }
    }
    return WEFTI_PLAN_NONE;
}

bool wefti_plan_gathers_weights(const weft_plan_t *plan, const wefti_plan_program_t *program)
{
    const wefti_plan_program_t *flush = wefti_plan_program(plan, "flush");
    uint32_t gather = flush != NULL ? first_collective(plan, flush) : WEFTI_PLAN_NONE;
    for (uint32_t s = 0; s < plan->stream_count && gather != WEFTI_PLAN_NONE; s++) {
        for (uint32_t i = 0; i < program->streams[s].step_count; i++) {
            const wefti_plan_step_t *step = &program->streams[s].steps[i];
            if (step->kind == WEFTI_STEP_COLLECTIVE && step->index == gather) {
                return true;
            }
        }
    }
    return false;
}

/* Describes one operand; constants carry their contents, so that shape rules can read them, but not
 * where ranks have their own: all ranks must come to the same shapes. */
static void describe(const weft_plan_t *plan, uint32_t id, weft_tensor_desc_t *out_desc)
{
    *out_desc = (weft_tensor_desc_t){.dtype = WEFT_DTYPE_NONE};
    if (id == WEFTI_PLAN_NONE) {
        return;
    }
    const wefti_plan_buffer_t *buffer = &plan->buffers[id];
    out_desc->dtype = buffer->dtype;
    out_desc->layout = buffer->layout;
    out_desc->rank = buffer->rank;
    memcpy(out_desc->dims, buffer->dims, sizeof out_desc->dims);
    if (buffer->kind == WEFTI_BUFFER_CONST && plan->weights &&
        buffer->rank_data_stride_bytes == 0) {
        out_desc->data = plan->weights + buffer->data_offset_bytes;
    }
}

weft_status_t wefti_plan_kernel_desc(const weft_plan_t *plan, uint32_t kernel, wefti_arena_t *arena,
                                     weft_node_desc_t *out_desc)
{
    const wefti_plan_kernel_t *source = &plan->kernels[kernel];
    size_t count = (size_t)source->input_count + source->output_count;
    weft_tensor_desc_t *tensors = wefti_arena_array(arena, count, sizeof *tensors);
    if (!tensors) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < source->input_count; i++) {
        describe(plan, source->inputs[i], &tensors[i]);
    }
    for (uint32_t i = 0; i < source->output_count; i++) {
        describe(plan, source->outputs[i], &tensors[source->input_count + i]);
    }
    *out_desc = (weft_node_desc_t){
        .domain = source->domain,
        .op = source->op,
        .version = source->version,
        .name = source->name,
        .input_count = source->input_count,
        .inputs = tensors,
        .output_count = source->output_count,
        .outputs = tensors + source->input_count,
        .attr_count = source->attr_count,
        .attrs = source->attrs,
    };
    return WEFT_OK;
}
