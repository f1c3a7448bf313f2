/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts that replace others: a smaller world of survivors, a larger one with ranks that join.
 * Nothing of a broken world is repaired, since its ranks stopped anywhere. A context of another
 * world takes its place, and the former one stays as it is until the program releases it.
 */
#include "runtime/context/context.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/params.h"
#include "transport/bootstrap/bootstrap.h"

/* What ranks pass to weft_context_grow. */
typedef struct growth {
    uint32_t world_size;
    uint32_t threads;
    uint64_t address;    /* a hash */
    uint32_t generation; /* of the latest world that the rank was in; all ranks take the highest */
    uint32_t zero;
} growth_t;

/* ---- a context in place of another one ---- */

static int interrupted(void *user)
{
    wefti_watch_t *watch = user;
    if (wefti_interrupted(&watch->program)) {
        return 1;
    }
    pthread_mutex_lock(&watch->lock);
    bool ends = wefti_interrupted(&watch->other);
    pthread_mutex_unlock(&watch->lock);
    return ends;
}

static void watch_no_longer(weft_context_t *context)
{
    pthread_mutex_lock(&context->watch->lock);
    context->watch->other.fn = NULL;
    pthread_mutex_unlock(&context->watch->lock);
}

static const wefti_interrupter_t *program_of(const weft_context_t *context)
{
    return context->watch != NULL ? &context->watch->program : &context->endpoint->interrupt;
}

/* As former, but for its world. */
static weft_context_t *create_like(const weft_context_t *former, uint32_t world_size,
                                   wefti_interrupter_t other)
{
    weft_context_t *context = wefti_context_new(former->allocator);
    wefti_watch_t *watch = wefti_alloc(former->allocator, sizeof *watch);
    if (context == NULL || watch == NULL) {
        wefti_free(former->allocator, watch);
        weft_context_release(context);
        return NULL;
    }
    watch->program = *program_of(former);
    watch->other = other;
    pthread_mutex_init(&watch->lock, NULL);
    context->watch = watch;
    context->settings = former->settings;
    context->log = former->log;
    context->registry = former->registry;
    wefti_algo_files_release(context->files);
    context->files = wefti_algo_files_retain(former->files);
    memcpy(context->launcher, former->launcher, sizeof context->launcher);
    memcpy(context->world, former->world, sizeof context->world);
    wefti_order_setting_t *order = &context->settings.order;
    uint64_t ranks = 0;
    for (uint32_t i = 0; i < order->count; i++) {
        ranks += order->sizes[i];
    }
    if (order->order == WEFT_ORDER_BLOCKS && ranks != world_size) {
        order->order = WEFT_ORDER_TREE;
    }
    return context;
}

static weft_status_t join(weft_context_t *context, const weft_context_t *former,
                          wefti_endpoint_params_t *params, uint32_t generation)
{
    const wefti_device_wish_t device = {former->device, NULL};
    params->interrupt = (wefti_interrupter_t){interrupted, context->watch};
    weft_status_t status =
        wefti_context_join(context, params, &device, &former->membership, generation);
    if (status < 0 && context->endpoint != NULL) {
        wefti_endpoint_abort(context->endpoint, status, weft_last_error()); /* others may wait */
    }
    return status;
}

/* ---- survivors ---- */

/* All survivors are in the new world. */
static weft_status_t meet(weft_context_t *context)
{
    WEFTI_IN_CONTROL(context->endpoint, CONTEXT_SHRINK);
    return wefti_endpoint_barrier(context->endpoint);
}

static weft_status_t join_survivors(weft_context_t *former, wefti_meeting_t *meeting,
                                    weft_context_t **out_context)
{
    wefti_endpoint_params_t params = {0};
    WEFT_RETURN_IF_ERROR(wefti_meeting_params(meeting, &params));
    weft_context_t *context = create_like(former, params.world_size,
                                          (wefti_interrupter_t){wefti_meeting_broken, meeting});
    WEFT_RETURN_IF_NO_MEMORY(context != NULL);
    weft_status_t status = join(context, former, &params, wefti_meeting_generation(meeting));
    status = status < 0 ? status : meet(context);
    watch_no_longer(context);
    if (status < 0) {
        weft_context_release(context);
        return status;
    }
    wefti_membership_commit(&context->membership);
    *out_context = context;
    return WEFT_OK;
}

weft_status_t weft_context_shrink(weft_context_t *context, weft_context_t **out_context)
{
    WEFT_CHECK_OUT(out_context);
    WEFT_CHECK_ARG(context);
    if (!wefti_endpoint_owned(context->endpoint)) {
        return wefti_endpoint_check(context->endpoint);
    }
    WEFT_RETURN_IF_ERROR(wefti_membership_check(&context->membership));
    wefti_meeting_t *meeting = NULL, *before = NULL;
    char text[WEFTI_ERROR_TEXT_BYTES];
    uint32_t generation = context->membership.generation;
    weft_status_t status, failure = WEFT_OK;
    wefti_endpoint_abort_to_shrink(context->endpoint);
    for (;;) {
        WEFT_TRY(status,
                 wefti_meeting_hold(&context->membership, context->endpoint, generation, &meeting),
                 out);
        if (before != NULL && wefti_meeting_same(before, meeting)) {
            status = wefti_error_adopt(failure, text); /* not because some rank died */
            break;
        }
        status = join_survivors(context, meeting, out_context);
        if (status == WEFT_OK || wefti_interrupted(program_of(context))) {
            break;
        }
        failure = status;
        snprintf(text, sizeof text, "%s", weft_last_error());
        generation = wefti_meeting_generation(meeting);
        wefti_meeting_leave(meeting, false);
        wefti_meeting_free(before);
        before = meeting;
        meeting = NULL;
    }
    wefti_meeting_leave(meeting, status == WEFT_OK);
out:
    wefti_meeting_free(meeting);
    wefti_meeting_free(before);
    return status;
}

/* ---- ranks that join ---- */

/* Of one call. */
typedef struct growing {
    const weft_context_t *former;
    uint32_t attempt; /* equal on all ranks of the former world */
    wefti_interrupter_t caller;
} growing_t;

static int growing_ends(void *user)
{
    const growing_t *growing = user;
    return wefti_endpoint_check(growing->former->endpoint) < 0 ||
           wefti_endpoint_given_up(growing->former->endpoint, growing->attempt) ||
           wefti_interrupted(&growing->caller);
}

static weft_status_t read_growth(const weft_context_t *context, const weft_context_params_t *params,
                                 wefti_job_t *job, growth_t *out)
{
    const wefti_endpoint_t *endpoint = context->endpoint;
    if (params->rank != -1 && params->rank != (int32_t)endpoint->rank) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "rank",
                                 "a rank keeps its number %u when the world grows: %d",
                                 endpoint->rank, (int)params->rank);
    }
    if (params->world_size <= (int32_t)endpoint->world_size) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "world_size",
                                 "must be more than the %u ranks of the world: %d",
                                 endpoint->world_size, (int)params->world_size);
    }
    if (params->hub == NULL && params->address == NULL) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "address",
                                 "ranks that join need an address or a hub");
    }
    out->world_size = (uint32_t)params->world_size;
    out->threads = params->hub != NULL;
    out->address = wefti_hash_text(WEFTI_HASH_START, params->hub != NULL ? "hub" : params->address);
    const wefti_job_wish_t wish = {(int32_t)endpoint->rank, params->world_size,
                                   params->hub != NULL ? "hub:" : params->address};
    return wefti_job_probe(&wish, &context->log, job);
}

static weft_status_t agree(weft_context_t *context, weft_status_t status)
{
    WEFTI_IN_CONTROL(context->endpoint, CONTEXT_GROW);
    return wefti_endpoint_agree(context->endpoint, status);
}

static weft_status_t agree_on_growth(weft_context_t *context, growth_t *own)
{
    wefti_endpoint_t *endpoint = context->endpoint;
    growth_t *all = wefti_alloc(context->allocator, endpoint->world_size * sizeof *all);
    WEFTI_IN_CONTROL(endpoint, CONTEXT_GROW);
    weft_status_t status =
        wefti_endpoint_agree(endpoint, all != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY);
    WEFT_TRY(status, status, out);
    WEFT_TRY(status, wefti_endpoint_all_gather(endpoint, own, sizeof *own, all), out);
    for (uint32_t r = 1; r < endpoint->world_size && status == WEFT_OK; r++) {
        if (all[r].world_size != all[0].world_size) {
            status =
                wefti_error(WEFT_ERR_MISMATCH,
                            "growing the world: rank 0 passed world_size %u, rank %u passed %u",
                            all[0].world_size, r, all[r].world_size);
        } else if (all[r].address != all[0].address || all[r].threads != all[0].threads) {
            status = wefti_error(WEFT_ERR_MISMATCH,
                                 "growing the world: ranks 0 and %u passed different addresses", r);
        }
    }
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        own->generation = all[r].generation > own->generation ? all[r].generation : own->generation;
    }
out:
    wefti_free(context->allocator, all);
    return status;
}

/* A rank whose join failed tells those that may look for it. */
static weft_status_t agree_on_attempt(weft_context_t *former, uint32_t attempt,
                                      weft_status_t status)
{
    bool follows = status < 0 && !wefti_endpoint_give_up(former->endpoint, attempt);
    weft_status_t agreed = agree(former, follows ? WEFT_OK : status);
    return agreed < 0 ? agreed : status;
}

static weft_status_t grow(weft_context_t *former, const weft_context_params_t *params,
                          const wefti_job_t *job, uint32_t generation, wefti_grown_fn grown,
                          void *user, weft_context_t **out_context)
{
    wefti_endpoint_params_t endpoint = {.rank = job->rank,
                                        .world_size = job->world_size,
                                        .address = job->address,
                                        .job = job,
                                        .hub = params->hub};
    growing_t growing = {
        former, former->endpoint->control_count, {params->interrupt, params->interrupt_user}};
    weft_context_t *context =
        create_like(former, job->world_size, (wefti_interrupter_t){growing_ends, &growing});
    weft_status_t status = agree(former, context != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY);
    if (status >= 0) {
        status = join(context, former, &endpoint, generation);
        status = status >= 0 && grown != NULL ? grown(user, context) : status;
        status = agree_on_attempt(former, growing.attempt, status);
    }
    if (context != NULL) {
        watch_no_longer(context);
    }
    if (status < 0) {
        if (context != NULL && context->endpoint != NULL) {
            wefti_endpoint_abort(context->endpoint, status, weft_last_error());
        }
        weft_context_release(context);
        return status;
    }
    wefti_membership_commit(&context->membership);
    *out_context = context;
    return WEFT_OK;
}

weft_status_t wefti_context_grow(weft_context_t *context, const weft_context_params_t *params,
                                 wefti_grown_fn grown, void *user, weft_context_t **out_context)
{
    weft_context_params_t own = WEFT_CONTEXT_PARAMS_INIT;
    wefti_job_t job = {0};
    growth_t growth = {0};
    WEFT_RETURN_IF_ERROR(WEFTI_PARAMS_READ(params, &own));
    WEFT_RETURN_IF_ERROR(wefti_endpoint_check(context->endpoint));
    weft_status_t status = wefti_membership_latest(&context->membership, &growth.generation);
    status = agree(context, status < 0 ? status : read_growth(context, &own, &job, &growth));
    status = status < 0 ? status : agree_on_growth(context, &growth);
    status = status < 0
                 ? status
                 : grow(context, &own, &job, growth.generation + 1, grown, user, out_context);
    wefti_job_deinit(&job);
    return status;
}

weft_status_t weft_context_grow(weft_context_t *context, const weft_context_params_t *params,
                                weft_context_t **out_context)
{
    WEFT_CHECK_OUT(out_context);
    WEFT_CHECK_ARG(context);
    WEFT_CHECK_ARG(params);
    return wefti_context_grow(context, params, NULL, NULL, out_context);
}

/* ---- who is who ---- */

uint32_t weft_context_member(const weft_context_t *context, uint32_t rank)
{
    WEFT_CHECK_ARG_OR(context, UINT32_MAX);
    return rank < context->membership.count ? wefti_membership_number(&context->membership, rank)
                                            : UINT32_MAX;
}

uint32_t weft_context_generation(const weft_context_t *context)
{
    WEFT_CHECK_ARG_OR(context, 0);
    return context->membership.generation;
}
