/* SPDX-License-Identifier: Apache-2.0 */
/* Making and destroying fusers, and what is asked between steps. */
#include "runtime/fuser/fuser.h"

#include <string.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"

/* ---- create and destroy ---- */

static weft_status_t check_params(weft_group_t *group, const weft_fuser_params_t *params)
{
    if (params->bytes != 0 && params->bytes < sizeof(double)) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "bytes",
                                 "must be 0 (default) or at least %zu, one element: %llu",
                                 sizeof(double), (unsigned long long)params->bytes);
    }
    return wefti_stream_check_context(params->stream, group->context);
}

static void forget(weft_fuser_t *fuser)
{
    wefti_arena_deinit(&fuser->arena);
    wefti_arena_init(&fuser->arena, fuser->context->allocator, 0);
    memset(fuser->slots, 0, sizeof fuser->slots);
    fuser->tensors = fuser->first_added = NULL;
    fuser->tensor_count = 0;
    fuser->buckets = fuser->open = NULL;
    fuser->buckets_end = &fuser->buckets;
    fuser->learning = true;
    wefti_fuser_rewind(fuser);
}

/* What can fail on one rank only. */
static weft_status_t build(weft_group_t *group, const weft_fuser_params_t *params,
                           weft_fuser_t **out_fuser)
{
    weft_fuser_t *fuser = wefti_alloc(group->context->allocator, sizeof *fuser);
    *out_fuser = fuser;
    WEFT_RETURN_IF_NO_MEMORY(fuser != NULL);
    fuser->context = group->context;
    fuser->bytes = params->bytes != 0 ? params->bytes : WEFT_FUSER_BYTES_DEFAULT;
    fuser->window_ns = params->window_ns != 0 ? params->window_ns : WEFT_FUSER_WINDOW_NS_DEFAULT;
    forget(fuser);
    return wefti_bucket_runner_init(&fuser->runner, group, params->stream, "fuser");
}

/* WEFT_OK when all ranks have built theirs, with the same parameters. */
static weft_status_t agree(weft_group_t *group, const weft_fuser_t *fuser, weft_status_t status)
{
    uint64_t own[2] = {0}, *all = NULL;
    if (status == WEFT_OK) {
        own[0] = fuser->bytes;
        own[1] = fuser->window_ns;
    }
    status = wefti_group_gather(group, status, own, sizeof own, &all);
    for (uint32_t r = 1; status == WEFT_OK && r < group->size; r++) {
        const uint64_t *other = &all[2 * r];
        if (memcmp(other, all, sizeof own) != 0) {
            status = wefti_error(WEFT_ERR_MISMATCH,
                                 "fuser: ranks passed different parameters: rank %u bytes %llu, "
                                 "window_ns %llu, rank %u bytes %llu, window_ns %llu",
                                 group->ranks[0], (unsigned long long)all[0],
                                 (unsigned long long)all[1], group->ranks[r],
                                 (unsigned long long)other[0], (unsigned long long)other[1]);
        }
    }
    wefti_free(group->context->allocator, all);
    return status;
}

/* Everything but the group; fuser may be half built. */
static void release(weft_fuser_t *fuser)
{
    if (fuser != NULL) {
        const weft_allocator_t *allocator = fuser->context->allocator;
        wefti_bucket_runner_deinit(&fuser->runner);
        wefti_arena_deinit(&fuser->arena);
        wefti_free(allocator, fuser->log);
        wefti_free(allocator, fuser);
    }
}

weft_status_t weft_fuser_create(weft_group_t *group, const weft_fuser_params_t *params,
                                weft_fuser_t **out_fuser)
{
    WEFT_CHECK_OUT(out_fuser);
    WEFT_CHECK_ARG(group);
    weft_fuser_params_t own_params = WEFT_FUSER_PARAMS_INIT;
    weft_group_t *own = NULL;
    weft_fuser_t *fuser = NULL;
    WEFT_RETURN_IF_ERROR(WEFTI_PARAMS_READ(params, &own_params));
    WEFT_RETURN_IF_ERROR(check_params(group, &own_params));
    WEFTI_IN_CONTROL(group->endpoint, FUSER);
    WEFT_RETURN_IF_ERROR(weft_group_duplicate(group, &own));
    weft_status_t status = build(own, &own_params, &fuser);
    WEFT_TRY(status, agree(own, fuser, status), fail);
    WEFT_TRY(status, wefti_bucket_runner_alloc(&fuser->runner, WEFTI_BUCKET_PIECE_BYTES), fail);
    *out_fuser = fuser;
    return WEFT_OK;
fail:
    release(fuser);
    weft_group_destroy(own);
    return status;
}

static void discard(weft_fuser_t *fuser, bool together)
{
    if (fuser == NULL) {
        return;
    }
    weft_group_t *group = fuser->runner.group;
    if (wefti_endpoint_owned(group->endpoint)) {
        if (wefti_fuser_in_step(fuser)) {
            wefti_error(WEFT_ERR_ABORTED, "rank %u destroyed its fuser during a step",
                        wefti_fuser_rank(fuser));
            wefti_group_fail(group, WEFT_ERR_ABORTED);
        }
        wefti_bucket_runner_leave(&fuser->runner, "a fuser's calls", together);
    }
    release(fuser);
    (together ? weft_group_destroy : weft_group_leave)(group);
}

void weft_fuser_destroy(weft_fuser_t *fuser)
{
    discard(fuser, true);
}

void weft_fuser_leave(weft_fuser_t *fuser)
{
    discard(fuser, false);
}

weft_status_t weft_fuser_reset(weft_fuser_t *fuser)
{
    WEFT_CHECK_ARG(fuser);
    weft_status_t status = wefti_fuser_check(fuser);
    if (status < 0) {
        return status;
    }
    if (wefti_fuser_in_step(fuser)) {
        return wefti_error(WEFT_ERR_STATE,
                           "fuser: a step is in progress; finish it with weft_fuser_wait");
    }
    forget(fuser);
    return WEFT_OK;
}

weft_status_t weft_fuser_get_stats(weft_fuser_t *fuser, weft_fuser_stats_t *stats)
{
    WEFT_CHECK_ARG(fuser);
    WEFT_CHECK_ARG(stats);
    weft_status_t status = wefti_report_check("stats", stats);
    if (status < 0) {
        return status;
    }
    wefti_report_write(stats, &fuser->stats, sizeof fuser->stats);
    return WEFT_OK;
}
