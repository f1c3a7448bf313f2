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
    if (trainer->options->min_ranks == 0) {
        return WEFT_OK;
    }
    if (trainer->snapshot == NULL) {
        WEFT_RETURN_IF_ERROR(weft_snapshot_create(&trainer->snapshot));
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

/* Of the first count ranks, by the numbers that they began with. */
static void list_dead(train_recovery_t *recovery, const weft_context_t *before, uint32_t count,
                      const weft_context_t *after)
{
    for (uint32_t r = 0; r < count; r++) {
        uint32_t member = weft_context_member(before, r);
        size_t used = strlen(recovery->dead);
        if (!is_member(after, member)) {
            snprintf(recovery->dead + used, sizeof recovery->dead - used, "%s%u",
                     used > 0 ? ", " : "", member);
            recovery->dead_count++;
        }
    }
}

/* The context of the ranks that are left; those from count on leave by themselves. */
static weft_status_t shrink(trainer_t *trainer, uint32_t count, train_recovery_t *recovery)
{
    weft_context_t *next = NULL;
    wefti_trainer_leave(trainer);
    if (weft_context_shrink(trainer->context, &next) < 0) {
        return wefti_error_prefix(WEFT_ERR_STATE, "elastic"); /* no world is left to try again */
    }
    list_dead(recovery, trainer->context, count, next);
    weft_context_release(trainer->context);
    trainer->context = next;
    return WEFT_OK;
}

/* The plan for as many ranks as possible; all ranks come to the same. */
static weft_status_t replan(trainer_t *trainer, uint32_t *out_size)
{
    const train_options_t *options = trainer->options;
    uint32_t size = weft_context_world_size(trainer->context);
    char reason[512] = "";
    for (*out_size = size; *out_size >= options->min_ranks; --*out_size) {
        weft_plan_t *plan = NULL;
        train_binding_t binding;
        weft_status_t status = options->replan(options->replan_user, *out_size, &plan);
        if (status >= 0 && wefti_train_bind(options, plan, &binding) >= 0) {
            weft_plan_release(trainer->plan);
            trainer->plan = plan;
            return WEFT_OK;
        }
        if (reason[0] == '\0') {
            snprintf(reason, sizeof reason, "%s", weft_last_error());
        }
        weft_plan_release(plan);
    }
    return wefti_error(WEFT_ERR_STATE, "elastic: no plan for %u to %u ranks: %s",
                       options->min_ranks, size, reason);
}

/* Shards that no rank has are no bad input. */
static weft_status_t name_loss(weft_status_t status)
{
    return status == WEFT_ERR_NOT_FOUND ? wefti_error_prefix(WEFT_ERR_STATE, "elastic") : status;
}

static weft_status_t restore(trainer_t *trainer)
{
    weft_checkpoint_info_t info = WEFT_CHECKPOINT_INFO_INIT;
    WEFT_RETURN_IF_ERROR(wefti_trainer_enter(trainer));
    weft_status_t status =
        weft_snapshot_restore(trainer->snapshot, trainer->session, trainer->group, &info);
    WEFT_RETURN_IF_ERROR(name_loss(status));
    trainer->at.step = info.step;
    trainer->at.epoch = info.epoch;
    trainer->at.sample = info.sample;
    return wefti_trainer_plan_steps(trainer);
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

/* Ranks for which there is no room leave; the others do without them. */
static weft_status_t continue_with_rest(trainer_t *trainer, train_recovery_t *recovery,
                                        bool *out_spare)
{
    const train_options_t *options = trainer->options;
    uint32_t size = 0;
    WEFT_RETURN_IF_ERROR(shrink(trainer, weft_context_world_size(trainer->context), recovery));
    uint32_t left = weft_context_world_size(trainer->context);
    if (left < options->min_ranks) {
        return wefti_error(WEFT_ERR_STATE,
                           "elastic: %u rank%s left, fewer than %u: rank%s %s died in step %llu",
                           left, left == 1 ? " is" : "s are", options->min_ranks,
                           wefti_plural(recovery->dead_count), recovery->dead,
                           (unsigned long long)trainer->at.step + 1);
    }
    WEFT_RETURN_IF_ERROR(replan(trainer, &size));
    WEFT_RETURN_IF_ERROR(size < left ? gather(trainer) : WEFT_OK);
    if (weft_context_rank(trainer->context) >= size) {
        *out_spare = true;
        return wefti_error(WEFT_ERR_ABORTED,
                           "elastic: %u of %u ranks continue, without this one: the model does not "
                           "suit all",
                           size, left);
    }
    while (size < weft_context_world_size(trainer->context)) {
        WEFT_RETURN_IF_ERROR(shrink(trainer, size, recovery));
    }
    return size == weft_context_world_size(trainer->context) ? restore(trainer)
                                                             : WEFT_ERR_PEER_DIED;
}

static weft_status_t add_recovery(trainer_t *trainer, train_recovery_t *recovery)
{
    train_report_t *report = &trainer->report;
    train_recovery_t *grown =
        realloc(report->recoveries, (report->recovery_count + 1) * sizeof *grown);
    WEFT_RETURN_IF_NO_MEMORY(grown);
    recovery->step = trainer->at.step;
    recovery->world_size = trainer->world_size;
    report->recoveries = grown;
    grown[report->recovery_count++] = *recovery;
    return WEFT_OK;
}

static void print_recovery(const trainer_t *trainer, const train_recovery_t *recovery)
{
    fprintf(stderr,
            "%sweft %s: rank%s %s died in step %llu; %u rank%s continue%s after step %llu "
            "(recovery took %.3f s)\n",
            isatty(STDERR_FILENO) == 1 ? "\r\033[K" : "", trainer->options->command,
            wefti_plural(recovery->dead_count), recovery->dead,
            (unsigned long long)recovery->step + 1, recovery->world_size,
            wefti_plural(recovery->world_size), recovery->world_size == 1 ? "s" : "",
            (unsigned long long)recovery->step, recovery->seconds);
}

weft_status_t wefti_trainer_recover(trainer_t *trainer, weft_status_t cause)
{
    train_recovery_t recovery = {0};
    bool spare = false;
    uint64_t started = wefti_now_ns();
    if (trainer->options->min_ranks == 0 || !is_death(cause)) {
        return cause;
    }
    /* Ranks that die meanwhile are found by the next turn. */
    while (is_death(cause) && !spare) {
        cause = continue_with_rest(trainer, &recovery, &spare);
    }
    WEFT_RETURN_IF_ERROR(cause);
    recovery.seconds = (double)(wefti_now_ns() - started) * 1e-9;
    WEFT_RETURN_IF_ERROR(add_recovery(trainer, &recovery));
    trainer->progress.quiet = trainer->options->json || trainer->rank != 0;
    if (trainer->rank == 0) {
        print_recovery(trainer, &recovery);
    }
    return WEFT_OK;
}
