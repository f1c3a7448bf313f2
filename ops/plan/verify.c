/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plan must satisfy before anybody trusts it, whoever wrote it: this file checks the whole
 * and bindings; buffers, kernels, collectives, sweeps, programs, gradients and races have files of
 * their own. Later parts index by ids that earlier parts have checked.
 */
#include "ops/plan/plan_internal.h"

#include <math.h>
#include <string.h>

#include "runtime/base/error.h"

static weft_status_t check_binding(const weft_plan_t *plan, uint32_t index)
{
    const wefti_plan_binding_t *binding = &plan->bindings[index];
    const char *what = NULL;
    wefti_buffer_kind_t kind = WEFTI_BUFFER_OUTPUT;
    switch (binding->role) {
    case WEFT_BINDING_ROLE_INPUT:
    case WEFT_BINDING_ROLE_LABEL:
        kind = WEFTI_BUFFER_INPUT;
        break;
    case WEFT_BINDING_ROLE_SCALAR:
        kind = WEFTI_BUFFER_SCALAR;
        break;
    case WEFT_BINDING_ROLE_LOSS:
    case WEFT_BINDING_ROLE_LOGITS:
    case WEFT_BINDING_ROLE_OUTPUT:
        break;
    default:
        what = "unknown role";
    }
    if (!what && binding->buffer >= plan->buffer_count) {
        what = "no such buffer";
    } else if (!what && plan->buffers[binding->buffer].kind != kind) {
        what = "its buffer is of another kind";
    } else if (!what && !binding->name[0]) {
        what = "it has no name";
    }
    /* What is fed and what is read are two sets of names, and one output may be known in several
     * roles; the limit on bindings keeps the square small. */
    for (uint32_t i = 0; !what && i < index; i++) {
        const wefti_plan_binding_t *other = &plan->bindings[i];
        int both_fed =
            binding->role <= WEFT_BINDING_ROLE_SCALAR && other->role <= WEFT_BINDING_ROLE_SCALAR;
        if ((both_fed || binding->role == other->role) && strcmp(other->name, binding->name) == 0) {
            what = "its name is taken";
        }
    }
    return what
               ? wefti_error(WEFT_ERR_FORMAT, "binding %u (%.100s): %s", index, binding->name, what)
               : WEFT_OK;
}

/* NULL, or what is wrong with the mesh. */
static const char *check_mesh(const weft_plan_t *plan)
{
    const wefti_mesh_t *mesh = &plan->mesh;
    if (mesh->axis_count > WEFTI_MAX_AXES || plan->data_group > mesh->axis_count) {
        return "too many axes, or no such data_group";
    }
    for (uint32_t i = 0; i < mesh->axis_count; i++) {
        uint64_t ranks = (uint64_t)mesh->axes[i].size * mesh->axes[i].stride;
        if (ranks == 0 || plan->world_size % ranks != 0) {
            return "size and stride of an axis do not divide the ranks";
        }
        if (plan->data_group == i + 1 &&
            (ranks != plan->world_size || (plan->flags & WEFTI_PLAN_RANK_DATA) == 0)) {
            return "data_group is not the outermost axis of ranks with weights of their own";
        }
    }
    return plan->place_group <= mesh->axis_count ? NULL : "no such place_group";
}

/* A collective of one place meets no rank of another place: the group's axis lies across that of
 * places. */
static int stays_at_place(const weft_plan_t *plan, uint32_t group)
{
    const wefti_axis_t *places = &plan->mesh.axes[plan->place_group - 1];
    if (places->size == 1 || group == 0) {
        return places->size == 1;
    }
    const wefti_axis_t *axis = &plan->mesh.axes[group - 1];
    return axis->stride % ((uint64_t)places->stride * places->size) == 0 ||
           places->stride % ((uint64_t)axis->stride * axis->size) == 0;
}

static int is_place(const weft_plan_t *plan, uint32_t place)
{
    return place == 0 ||
           (plan->place_group != 0 && place <= plan->mesh.axes[plan->place_group - 1].size);
}

/* Every rank of a group runs the group's collectives: what is sent is received, in one order. */
static weft_status_t check_places(const weft_plan_t *plan)
{
    for (uint32_t i = 0; i < plan->kernel_count; i++) {
        if (!is_place(plan, plan->kernels[i].place)) {
            return wefti_error(WEFT_ERR_FORMAT, "kernel %u (%.100s): no such place %u", i,
                               plan->kernels[i].name, plan->kernels[i].place);
        }
    }
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        const wefti_plan_collective_t *collective = &plan->collectives[i];
        if (!is_place(plan, collective->place) ||
            (collective->place != 0 && !stays_at_place(plan, collective->group))) {
            return wefti_error(
                WEFT_ERR_FORMAT,
                "collective %u (%.100s): no such place %u, or its group has ranks of "
                "other places, which do not run it",
                i, collective->name, collective->place);
        }
    }
    return WEFT_OK;
}

/* Kind, flags and numbers that must agree with each other; NULL, or what does not. */
static const char *check_kind(const weft_plan_t *plan)
{
    const uint32_t known = WEFTI_PLAN_SHARDED | WEFTI_PLAN_DECOUPLED | WEFTI_PLAN_RANK_DATA |
                           WEFTI_PLAN_SPLIT_BATCH | WEFTI_PLAN_SHARDED_PARAMETERS;
    uint32_t of_training =
        WEFTI_PLAN_SHARDED | WEFTI_PLAN_DECOUPLED | WEFTI_PLAN_SHARDED_PARAMETERS;
    int trains = plan->kind == WEFT_PLAN_KIND_TRAINING;
    if (!trains && plan->kind != WEFT_PLAN_KIND_INFERENCE) {
        return "unknown kind";
    }
    if (plan->flags & ~known) {
        return "unknown flags";
    }
    if (plan->flags & (trains ? WEFTI_PLAN_SPLIT_BATCH : of_training)) {
        return "flags of another kind of plan";
    }
    if ((plan->flags & WEFTI_PLAN_RANK_DATA) && (plan->flags & of_training)) {
        return "ranks have weights of their own, and shards of common ones";
    }
    if ((plan->flags & WEFTI_PLAN_DECOUPLED) && !(plan->flags & WEFTI_PLAN_SHARDED)) {
        return "decoupled, but not sharded";
    }
    if ((plan->flags & WEFTI_PLAN_SHARDED_PARAMETERS) &&
        (plan->flags & (WEFTI_PLAN_SHARDED | WEFTI_PLAN_DECOUPLED)) != WEFTI_PLAN_SHARDED) {
        return "parameters are sharded, but updates are not, or the plan is decoupled";
    }
    if (plan->accumulate == 0 || (!trains && plan->accumulate != 1)) {
        return "no such number of micro-batches";
    }
    if (plan->global_micro_batches != 0 &&
        plan->global_micro_batches != (uint64_t)plan->accumulate * plan->world_size) {
        return "global_micro_batches is not the number of micro-batches of all ranks";
    }
    if (!isfinite(plan->clip_norm) || plan->clip_norm < 0 || (!trains && plan->clip_norm != 0)) {
        return "no such norm to clip to";
    }
    return NULL;
}

static weft_status_t check_whole(const weft_plan_t *plan)
{
    if (plan->world_size == 0 || plan->world_size > WEFTI_PLAN_MAX_WORLD) {
        return wefti_error(WEFT_ERR_FORMAT, "invalid world size %u", plan->world_size);
    }
    if (plan->batch < 0) {
        return wefti_error(WEFT_ERR_FORMAT, "invalid batch %lld", (long long)plan->batch);
    }
    if (plan->arena_bytes > WEFTI_PLAN_NOWHERE || plan->arena_bytes > SIZE_MAX) {
        return wefti_error(WEFT_ERR_FORMAT, "invalid arena size: %llu bytes",
                           (unsigned long long)plan->arena_bytes);
    }
    if (plan->stream_count == 0 || plan->stream_count > WEFTI_PLAN_MAX_STREAMS) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "invalid number of streams %u: must be between 1 and %u",
                           plan->stream_count, WEFTI_PLAN_MAX_STREAMS);
    }
    if (plan->program_count > WEFTI_PLAN_MAX_PROGRAMS ||
        plan->binding_count > WEFTI_PLAN_MAX_BINDINGS) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "too many programs or bindings: %u programs, %u bindings",
                           plan->program_count, plan->binding_count);
    }
    const char *what = check_kind(plan);
    what = what ? what : check_mesh(plan);
    return what ? wefti_error(WEFT_ERR_FORMAT, "plan: %s", what) : WEFT_OK;
}

weft_status_t wefti_plan_verify(const weft_plan_t *plan, const weft_registry_t *registry)
{
    weft_status_t status;
    wefti_plan_layout_t layout = {0};
    WEFT_TRY(status, check_whole(plan), fail);
    WEFT_TRY(status, wefti_plan_verify_buffers(plan, &layout), fail);
    for (uint32_t i = 0; i < plan->binding_count; i++) {
        WEFT_TRY(status, check_binding(plan, i), fail);
    }
    WEFT_TRY(status, wefti_plan_verify_kernels(plan, registry), fail);
    WEFT_TRY(status, wefti_plan_verify_collectives(plan, &layout), fail);
    WEFT_TRY(status, wefti_plan_verify_algorithms(plan), fail);
    WEFT_TRY(status, check_places(plan), fail);
    WEFT_TRY(status, wefti_plan_verify_programs(plan), fail);
    WEFT_TRY(status, wefti_plan_verify_sweeps(plan, &layout, registry), fail);
    WEFT_TRY(status, wefti_plan_verify_gradients(plan), fail);
    WEFT_TRY(status, wefti_plan_verify_trees(plan), fail);
    WEFT_TRY(status, wefti_plan_verify_races(plan, registry), fail);
fail:
    wefti_plan_layout_deinit(plan, &layout);
    return status;
}
