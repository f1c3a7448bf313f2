/* SPDX-License-Identifier: Apache-2.0 */
/* Making and destroying fusers, and what is asked between steps. */
#include "runtime/fuser/fuser.h"

#include <weft/memory.h>

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
    if (group->context->device != NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "fuser: requires the CPU device, the context uses device \"%s\"",
                           group->context->device->ops->name);
    }
    return wefti_stream_check_context(params->stream, group->context);
}

/* What can fail on one rank only. */
static weft_status_t build(weft_group_t *group, const weft_fuser_params_t *params, void *shared,
                           weft_fuser_t **out_fuser)
{
    weft_context_t *context = group->context;
    weft_fuser_t *fuser = wefti_alloc(context->allocator, sizeof *fuser);
    *out_fuser = fuser;
    if (fuser == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    fuser->context = context;
    fuser->group = group;
    fuser->bytes = params->bytes != 0 ? params->bytes : WEFT_FUSER_BYTES_DEFAULT;
    fuser->window_ns = params->window_ns != 0 ? params->window_ns : WEFT_FUSER_WINDOW_NS_DEFAULT;
    fuser->learning = true;
    wefti_arena_init(&fuser->names, context->allocator, 0);
    fuser->reachable = shared != NULL;
    fuser->buffer =
        shared != NULL ? shared : wefti_alloc(context->allocator, WEFTI_BUCKET_PIECE_BYTES);
    if (fuser->buffer == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    fuser->stream = params->stream;
    if (fuser->stream == NULL) {
        weft_stream_params_t stream_params = {sizeof stream_params, "fuser", WEFT_STREAM_INLINE, 0};
        weft_status_t status = weft_stream_create(context, &stream_params, &fuser->stream);
        fuser->owns_stream = status == WEFT_OK;
        return status;
    }
    fuser->target = atomic_load_explicit(&fuser->stream->tail.signal.value, memory_order_relaxed);
    fuser->reduced_target = fuser->target;
    return WEFT_OK;
}

/* WEFT_OK when all ranks have built theirs, with the same parameters. */
static weft_status_t agree(weft_group_t *group, const weft_fuser_t *fuser, weft_status_t status)
{
    uint64_t own[2], *all = NULL;
    if (status == WEFT_OK) {
        all = wefti_alloc(group->context->allocator, group->size * sizeof own);
        status = all != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    }
    WEFT_TRY(status, wefti_group_agree(group, status), done);
    own[0] = fuser->bytes;
    own[1] = fuser->window_ns;
    WEFT_TRY(status, weft_all_gather(own, all, 2, WEFT_DTYPE_U64, group, NULL), done);
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
done:
    wefti_free(group->context->allocator, all);
    return status;
}

static void forget_buckets(weft_fuser_t *fuser)
{
    for (size_t i = 0; i < fuser->bucket_count; i++) {
        wefti_fuser_bucket_free(fuser, fuser->buckets[i]);
    }
    for (uint32_t kind = 0; kind < WEFTI_FUSER_KINDS; kind++) {
        wefti_fuser_bucket_free(fuser, fuser->open[kind]);
        fuser->open[kind] = NULL;
    }
    fuser->bucket_count = 0;
    fuser->open_count = 0;
}

/* Everything but the group and memory that all ranks free together; fuser may be half built. */
static void release(weft_fuser_t *fuser)
{
    if (fuser == NULL) {
        return;
    }
    const weft_allocator_t *allocator = fuser->context->allocator;
    if (fuser->owns_stream) {
        weft_stream_destroy(fuser->stream);
    }
    forget_buckets(fuser);
    wefti_fuser_forget(fuser);
    wefti_arena_deinit(&fuser->names);
    wefti_free(allocator, fuser->buckets);
    wefti_free(allocator, fuser->list);
    if (!fuser->reachable) {
        wefti_free(allocator, fuser->buffer);
    }
    wefti_free(allocator, fuser);
}

weft_status_t weft_fuser_create(weft_group_t *group, const weft_fuser_params_t *params,
                                weft_fuser_t **out_fuser)
{
    WEFT_CHECK_OUT(out_fuser);
    WEFT_CHECK_ARG(group);
    weft_fuser_params_t own_params = WEFT_FUSER_PARAMS_INIT;
    weft_group_t *own = NULL;
    weft_fuser_t *fuser = NULL;
    void *shared = NULL;
    weft_status_t status = WEFTI_PARAMS_READ(params, &own_params);
    params = &own_params;
    status = status < 0 ? status : check_params(group, params);
    if (status < 0) {
        return status;
    }
    status = weft_group_duplicate(group, &own);
    if (status < 0) {
        return status;
    }
    if (own->whole_world) { /* otherwise other ranks would have to take part */
        WEFT_TRY(status, weft_mem_alloc(own->context, WEFTI_BUCKET_PIECE_BYTES, &shared), fail);
    }
    status = build(own, params, shared, &fuser);
    WEFT_TRY(status, agree(own, fuser, status), fail);
    *out_fuser = fuser;
    return WEFT_OK;
fail:
    release(fuser);
    weft_mem_free(own->context, shared);
    weft_group_destroy(own);
    return status;
}

void weft_fuser_destroy(weft_fuser_t *fuser)
{
    if (fuser == NULL) {
        return;
    }
    weft_group_t *group = fuser->group;
    weft_context_t *context = fuser->context;
    void *shared = fuser->reachable ? fuser->buffer : NULL;
    if (wefti_endpoint_owned(group->endpoint)) {
        if (wefti_fuser_in_step(fuser)) {
            wefti_error(WEFT_ERR_ABORTED, "rank %u destroyed its fuser during a step",
                        wefti_fuser_rank(fuser));
            wefti_group_fail(group, WEFT_ERR_ABORTED);
        }
        wefti_group_leave_stream(group, fuser->stream, fuser->target, "a fuser's calls");
        /* Peers of a broken fuser may still write to the buffer, so it is never reused. */
        if (weft_barrier(group, NULL) < 0) {
            shared = NULL;
        }
    }
    release(fuser);
    weft_mem_free(context, shared);
    weft_group_destroy(group);
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
    forget_buckets(fuser);
    wefti_fuser_forget(fuser);
    fuser->learning = true;
    wefti_fuser_rewind(fuser);
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
