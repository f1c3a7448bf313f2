/* SPDX-License-Identifier: Apache-2.0 */
/* Medians over the last steps, computed on request. */
#include "runtime/plan/session.h"

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare_floats(const void *a, const void *b)
{
    float x, y;
    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return (x > y) - (x < y);
}

/* Median of the member at offset of all remembered steps. */
static double median(const weft_session_t *session, size_t offset, float *scratch)
{
    size_t count = session->steps < WEFTI_STATS_STEPS ? session->steps : WEFTI_STATS_STEPS;
    if (count == 0) {
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        memcpy(&scratch[i], (const uint8_t *)&session->times[i] + offset, sizeof(float));
    }
    qsort(scratch, count, sizeof(float), compare_floats);
    return ((double)scratch[(count - 1) / 2] + (double)scratch[count / 2]) / 2;
}

weft_status_t weft_session_get_stats(const weft_session_t *session, weft_session_stats_t *stats)
{
    WEFT_CHECK_ARG(session);
    WEFT_CHECK_ARG(stats);
    WEFT_RETURN_IF_ERROR(wefti_report_check("stats", stats));
    weft_session_stats_t own = WEFT_SESSION_STATS_INIT;
    float *scratch = wefti_alloc(session->allocator, WEFTI_STATS_STEPS * sizeof(float));
    WEFT_RETURN_IF_NO_MEMORY(scratch);
    own.steps = session->steps;
    own.step_ms_p50 = median(session, offsetof(wefti_step_times_t, step_ms), scratch);
    own.step_ms_mean = session->steps > 0 ? session->step_ms_sum / (double)session->steps : 0;
    own.compute_ms_p50 = median(session, offsetof(wefti_step_times_t, compute_ms), scratch);
    own.comm_ms_p50 = median(session, offsetof(wefti_step_times_t, comm_ms), scratch);
    own.exposed_comm_ms_p50 = median(session, offsetof(wefti_step_times_t, exposed_ms), scratch);
    wefti_free(session->allocator, scratch);

    own.timeline_first_step = session->timeline_first_step;
    own.timeline_last_step = session->timeline_last_step;
    own.inline_progress = session->context->device == NULL;
    own.arena_bytes = session->plan->arena_bytes;
    own.kernels = wefti_kernels_name(session->context->settings.kernels);
    own.scratch_bytes = session->sweep_bytes;
    for (uint32_t i = 0; i < session->plan->stream_count; i++) {
        own.inline_progress = own.inline_progress && !session->on_worker[i];
        own.scratch_bytes += session->scratch_bytes[i];
        own.fusion_copied_bytes += session->cursors[i].copied_bytes;
    }
    double comm = own.comm_ms_p50;
    double overlap = comm > 0 ? 1 - own.exposed_comm_ms_p50 / comm : 0;
    own.overlap_fraction = own.inline_progress || comm <= 0 ? (double)NAN
                           : overlap > 0                    ? overlap
                                                            : 0;
    wefti_report_write(stats, &own, sizeof own);
    return WEFT_OK;
}
