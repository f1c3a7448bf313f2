/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training that continues when ranks die: after each step every rank takes a snapshot. When a step
 * fails because a rank is gone, the others make a world of their own, compile the model for their
 * number, and restore the newest snapshot that all of them have.
 *
 *   step 17   step 18 ..  rank 2 dies
 *   snapshot              shrink ── compile ── session ── restore 17 ── step 18 ..  on three ranks
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/sync.h"
#include "tools/tool.h"
#include "tools/train/trainer.h"

weft_status_t wefti_trainer_keep(trainer_t *trainer)
{
    if (trainer->snapshot == NULL) {
        return WEFT_OK;
    }
    uint64_t started = wefti_now_ns();
    weft_status_t status =
        weft_snapshot_take(trainer->snapshot, trainer->session, trainer->group, &trainer->at);
    trainer->snapshot_ns += wefti_now_ns() - started;
    return status;
}

/* A rank that has stopped (TIMEOUT) counts as dead; ABORTED: another rank has found out first. */
static bool is_death(weft_status_t status)
{
    return status == WEFT_ERR_PEER_DIED || status == WEFT_ERR_TIMEOUT || status == WEFT_ERR_ABORTED;
}

static bool is_member(const weft_context_t *context, uint32_t member)
{
    for (uint32_t r = 0; r < weft_context_world_size(context); r++) {
        if (weft_context_member(context, r) == member) {
            return true;
        }
    }
    return false;
}

void wefti_trainer_list_members(const weft_context_t *context, uint32_t count,
                                const weft_context_t *other, char *out, size_t bytes,
                                uint32_t *out_count)
{
    for (uint32_t r = 0; r < count; r++) {
        uint32_t member = weft_context_member(context, r);
        size_t used = strlen(out);
        if (!is_member(other, member)) {
            snprintf(out + used, bytes - used, "%s%u", used > 0 ? ", " : "", member);
            ++*out_count;
        }
    }
}

/* The context of the ranks that are left; those from count on leave by themselves. */
static weft_status_t shrink(trainer_t *trainer, uint32_t count)
{
    train_recovery_t *change = &trainer->change;
    weft_context_t *next = NULL;
    wefti_trainer_leave(trainer);
    if (weft_context_shrink(trainer->context, &next) < 0) {
        return wefti_error_prefix(WEFT_ERR_STATE, "elastic"); /* no world is left to try again */
    }
    wefti_trainer_list_members(trainer->context, count, next, change->dead, sizeof change->dead,
                               &change->dead_count);
    weft_context_release(trainer->context);
    trainer->context = next;
    return WEFT_OK;
}

weft_status_t wefti_trainer_replan(const trainer_t *trainer, uint32_t low, uint32_t high,
                                   weft_plan_t **out_plan, uint32_t *out_size)
{
    const train_options_t *options = trainer->options;
    char reason[512] = "";
    for (*out_size = high; *out_size >= low; --*out_size) {
        weft_plan_t *plan = NULL;
        train_binding_t binding;
        weft_status_t status = options->replan(options->replan_user, *out_size, &plan);
        if (status >= 0 && wefti_train_bind(options, plan, &binding) >= 0) {
            *out_plan = plan;
            return WEFT_OK;
        }
        if (reason[0] == '\0') {
            snprintf(reason, sizeof reason, "%s", weft_last_error());
        }
        weft_plan_release(plan);
    }
    return wefti_error(WEFT_ERR_STATE, "elastic: no plan for %u to %u ranks: %s", low, high,
                       reason);
}

/* Shards that no rank has are no bad input. */
static weft_status_t name_loss(weft_status_t status)
{
    return status == WEFT_ERR_NOT_FOUND ? wefti_error_prefix(WEFT_ERR_STATE, "elastic") : status;
}

/* Has no rank done a step? */
static weft_status_t agree_on_beginning(trainer_t *trainer, bool *out_first)
{
    uint8_t own = trainer->started;
    uint8_t *all = calloc(trainer->world_size, 1);
    WEFT_RETURN_IF_NO_MEMORY(all);
    weft_status_t status = weft_context_all_gather(trainer->context, &own, 1, all);
    *out_first = memchr(all, 1, trainer->world_size) == NULL;
    free(all);
    return status;
}

weft_status_t wefti_trainer_restore(trainer_t *trainer)
{
    weft_checkpoint_info_t info = WEFT_CHECKPOINT_INFO_INIT;
    bool first = false;
    WEFT_RETURN_IF_ERROR(wefti_trainer_enter(trainer));
    weft_status_t status =
        weft_snapshot_restore(trainer->snapshot, trainer->session, trainer->group, &info);
    if (status == WEFT_ERR_NOT_FOUND) { /* on all ranks */
        WEFT_RETURN_IF_ERROR(agree_on_beginning(trainer, &first));
    }
    if (first) {
        return wefti_trainer_begin(trainer);
    }
    WEFT_RETURN_IF_ERROR(name_loss(status));
    trainer->at = wefti_train_begin(trainer->options, &trainer->binding);
    trainer->at.step = info.step;
    trainer->at.epoch = info.epoch;
    trainer->at.sample = info.sample;
    return WEFT_OK;
}

/* Before ranks leave that may be the only ones with some shards. */
static weft_status_t gather(trainer_t *trainer)
{
    weft_group_t *group = NULL;
    weft_status_t status = weft_group_create_world(trainer->context, &group);
    status = status < 0 ? status : weft_snapshot_gather(trainer->snapshot, group);
    weft_group_destroy(group);
    return name_loss(status);
}

static weft_status_t refuse_few(const trainer_t *trainer)
{
    const train_recovery_t *change = &trainer->change;
    uint32_t left = weft_context_world_size(trainer->context);
    return wefti_error(
        WEFT_ERR_STATE, "elastic: %u rank%s left, fewer than %u: rank%s %s died in step %llu", left,
        left == 1 ? " is" : "s are", trainer->options->min_ranks, wefti_plural(change->dead_count),
        change->dead, (unsigned long long)trainer->at.step + 1);
}

/* Ranks for which there is no room leave; the others do without them. */
static weft_status_t continue_with_rest(trainer_t *trainer, bool *out_spare)
{
    const train_options_t *options = trainer->options;
    weft_plan_t *plan = NULL;
    uint32_t size = 0;
    bool grown = false;
    WEFT_RETURN_IF_ERROR(shrink(trainer, weft_context_world_size(trainer->context)));
    WEFT_RETURN_IF_ERROR(wefti_trainer_admit(trainer, options->min_ranks, &grown));
    if (grown) {
        return wefti_trainer_restore(trainer);
    }
    uint32_t left = weft_context_world_size(trainer->context);
    if (left < options->min_ranks) {
        return refuse_few(trainer);
    }
    WEFT_RETURN_IF_ERROR(wefti_trainer_replan(trainer, options->min_ranks, left, &plan, &size));
    weft_plan_release(trainer->plan);
    trainer->plan = plan;
    WEFT_RETURN_IF_ERROR(size < left ? gather(trainer) : WEFT_OK);
    if (weft_context_rank(trainer->context) >= size) {
        *out_spare = true;
        return wefti_error(WEFT_ERR_ABORTED,
                           "elastic: %u of %u ranks continue, without this one: the model does not "
                           "suit all",
                           size, left);
    }
    while (size < weft_context_world_size(trainer->context)) {
        WEFT_RETURN_IF_ERROR(shrink(trainer, size));
    }
    return size == weft_context_world_size(trainer->context) ? wefti_trainer_restore(trainer)
                                                             : WEFT_ERR_PEER_DIED;
}

static void print_change(const trainer_t *trainer, const train_recovery_t *recovery)
{
    fprintf(stderr, "%sweft %s: ", isatty(STDERR_FILENO) == 1 ? "\r\033[K" : "",
            trainer->options->command);
    if (recovery->dead_count > 0) {
        fprintf(stderr, "rank%s %s died in step %llu; ", wefti_plural(recovery->dead_count),
                recovery->dead, (unsigned long long)recovery->step + 1);
    }
    if (recovery->joined_count > 0) {
        fprintf(stderr, "rank%s %s joined; ", wefti_plural(recovery->joined_count),
                recovery->joined);
    }
    fprintf(stderr, "%u rank%s continue%s after step %llu (%s took %.3f s)\n", recovery->world_size,
            wefti_plural(recovery->world_size), recovery->world_size == 1 ? "s" : "",
            (unsigned long long)recovery->step, recovery->dead_count > 0 ? "recovery" : "joining",
            recovery->seconds);
}

weft_status_t wefti_trainer_note(trainer_t *trainer, uint64_t started_ns)
{
    train_report_t *report = &trainer->report;
    train_recovery_t *grown =
        realloc(report->recoveries, (report->recovery_count + 1) * sizeof *grown);
    WEFT_RETURN_IF_NO_MEMORY(grown);
    train_recovery_t change = trainer->change;
    change.step = trainer->at.step;
    change.world_size = trainer->world_size;
    change.seconds = (double)(wefti_now_ns() - started_ns) * 1e-9;
    trainer->change = (train_recovery_t){0};
    report->recoveries = grown;
    grown[report->recovery_count++] = change;
    WEFT_RETURN_IF_ERROR(wefti_trainer_share(trainer));
    trainer->progress.quiet = trainer->options->json || trainer->rank != 0;
    if (trainer->rank == 0) {
        print_change(trainer, &change);
    }
    return WEFT_OK;
}

weft_status_t wefti_trainer_recover(trainer_t *trainer, weft_status_t cause)
{
    bool spare = false;
    uint64_t started = wefti_now_ns();
    if (trainer->options->min_ranks == 0) {
        return cause;
    }
    /* Ranks that die meanwhile are found by the next turn. */
    while (is_death(cause) && !spare) {
        cause = continue_with_rest(trainer, &spare);
        cause = cause < 0 ? cause : wefti_trainer_note(trainer, started);
    }
    return cause;
}
