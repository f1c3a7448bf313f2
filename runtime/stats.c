/* SPDX-License-Identifier: Apache-2.0 */
/* Medians over the last steps, computed when somebody asks. */
#include "runtime/session.h"

#include "runtime/base/check.h"
#include "runtime/base/error.h"

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
    if (stats->struct_size < sizeof(*stats)) {
        return wefti_error_struct_size("stats");
    }
    float *scratch = wefti_alloc(session->allocator, WEFTI_STATS_STEPS * sizeof(float));
    if (scratch == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *stats = (weft_session_stats_t){.struct_size = stats->struct_size, .steps = session->steps};
    stats->step_ms_p50 = median(session, offsetof(wefti_step_times_t, step_ms), scratch);
    stats->step_ms_mean = session->steps > 0 ? session->step_ms_sum / (double)session->steps : 0;
    stats->compute_ms_p50 = median(session, offsetof(wefti_step_times_t, compute_ms), scratch);
    stats->comm_ms_p50 = median(session, offsetof(wefti_step_times_t, comm_ms), scratch);
    stats->exposed_comm_ms_p50 = median(session, offsetof(wefti_step_times_t, exposed_ms), scratch);
    wefti_free(session->allocator, scratch);

    stats->timeline_first_step = session->timeline_first_step;
    stats->timeline_last_step = session->timeline_last_step;
    stats->inline_progress = session->context->device == NULL;
    stats->arena_bytes = session->plan->arena_bytes;
    stats->kernels = wefti_kernels_name(session->context->settings.kernels);
    stats->fusion_copied_bytes = session->device_copied_bytes;
    stats->scratch_bytes = session->sweep_bytes;
    for (uint32_t i = 0; i < session->plan->stream_count; i++) {
        stats->inline_progress = stats->inline_progress && !session->on_worker[i];
        stats->scratch_bytes += session->scratch_bytes[i];
        stats->fusion_copied_bytes += session->cursors[i].copied_bytes;
    }
    double comm = stats->comm_ms_p50;
    double overlap = comm > 0 ? 1 - stats->exposed_comm_ms_p50 / comm : 0;
    stats->overlap_fraction = stats->inline_progress || comm <= 0 ? (double)NAN
                              : overlap > 0                       ? overlap
                                                                  : 0;
    return WEFT_OK;
}
