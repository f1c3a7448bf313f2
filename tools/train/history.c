/* SPDX-License-Identifier: Apache-2.0 */
/* weft run --report: the steps of all ranks as a file. Each rank sums its steps up in as many points
 * as all ranks together can exchange; rank 0 writes them. While the run goes on, rank 0 writes its
 * own steps, as ranks exchange nothing that is not part of a step. */
#include "tools/train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "tools/output.h"

#define FORMAT 1
#define MOST_POINTS 2048u /* of a rank */
#define ALL_POINTS ((uint64_t)1 << 20)
#define LEAST_POINTS 8u

/* Some consecutive steps of a rank: means, and the longest step. */
enum { COLUMN_LOSS, COLUMN_MS, COLUMN_MS_MOST, COLUMN_COUNT };
typedef struct history_point {
    float columns[COLUMN_COUNT];
} history_point_t;

/* What a rank sends, followed by its points. */
typedef struct history_head {
    double compute_ms, comm_ms, exposed_ms;
    uint64_t rss_bytes;
} history_head_t;

static uint64_t count_points(const trainer_t *trainer, uint64_t steps)
{
    uint64_t most = ALL_POINTS / trainer->world_size;
    most = most < LEAST_POINTS ? LEAST_POINTS : most > MOST_POINTS ? MOST_POINTS : most;
    return steps < most ? steps : most;
}

/* The step after the last one of a point. */
static uint64_t end_of(uint64_t point, uint64_t points, uint64_t steps)
{
    return (uint64_t)((double)(point + 1) * (double)steps / (double)points);
}

static void sum_up(const trainer_t *trainer, uint64_t steps, history_point_t *points,
                   uint64_t count)
{
    uint64_t step = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t first = step, end = i + 1 == count ? steps : end_of(i, count, steps);
        double loss = 0, ms = 0, most = 0;
        for (; step < end; step++) {
            loss += trainer->history[step].loss;
            ms += trainer->history[step].ms;
            most = fmax(most, trainer->history[step].ms);
        }
        double number = (double)(end > first ? end - first : 1);
        points[i] = (history_point_t){{(float)(loss / number), (float)(ms / number), (float)most}};
    }
}

static void add_column(wefti_json_t *json, const char *key, const history_point_t *points,
                       uint64_t count, size_t column)
{
    wefti_json_begin_array(json, key);
    for (uint64_t i = 0; i < count; i++) {
        char text[32];
        snprintf(text, sizeof text, "%.6g",
                 (double)points[i].columns[column]); /* digits of a float */
        wefti_json_double(json, NULL, strtod(text, NULL));
    }
    wefti_json_end_array(json);
}

static void add_rank(wefti_json_t *json, const trainer_t *trainer, uint32_t rank,
                     const history_head_t *head, const history_point_t *points, uint64_t count)
{
    weft_peer_info_t peer = WEFT_PEER_INFO_INIT;
    bool known = weft_context_peer_info(trainer->context, rank, &peer) >= 0;
    wefti_json_begin_object(json, NULL);
    wefti_json_int(json, "rank", rank);
    wefti_json_int(json, "host", known ? peer.host : 0);
    wefti_json_double(json, "compute_ms", head->compute_ms);
    wefti_json_double(json, "comm_ms", head->comm_ms);
    wefti_json_double(json, "exposed_ms", head->exposed_ms);
    wefti_json_int(json, "rss_bytes", (int64_t)head->rss_bytes);
    add_column(json, "loss", points, count, COLUMN_LOSS);
    add_column(json, "ms", points, count, COLUMN_MS);
    add_column(json, "ms_most", points, count, COLUMN_MS_MOST);
    wefti_json_end_object(json);
}

/* all: of ranks 0 .. ranks - 1, bytes each. */
static weft_status_t write_file(trainer_t *trainer, const uint8_t *all, uint32_t ranks,
                                size_t bytes, uint64_t count, bool complete)
{
    uint64_t steps = trainer->report.steps;
    wefti_text_t text;
    wefti_json_t json;
    wefti_text_init(&text, NULL);
    wefti_json_init(&json, &text, false);
    wefti_json_begin_object(&json, NULL);
    wefti_json_int(&json, "format", FORMAT);
    wefti_json_bool(&json, "complete", complete);
    weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
    (void)weft_plan_get_info(trainer->plan, &info);
    wefti_json_string(&json, "model", info.model_name);
    wefti_json_int(&json, "global_batch", (int64_t)trainer->binding.global_batch);
    wefti_json_string(&json, "noun", trainer->options->data->noun);
    wefti_json_begin_object(&json, "report");
    wefti_report_add_json(trainer->options, &trainer->report, trainer->context, &json);
    wefti_json_end_object(&json);
    wefti_json_begin_array(&json, "steps"); /* done at the end of each point */
    for (uint64_t i = 0; i < count; i++) {
        uint64_t end = i + 1 == count ? steps : end_of(i, count, steps);
        wefti_json_int(&json, NULL, (int64_t)(trainer->first_step + end));
    }
    wefti_json_end_array(&json);
    wefti_json_begin_array(&json, "ranks");
    for (uint32_t r = 0; r < ranks; r++) {
        const history_head_t *head = (const void *)(all + r * bytes);
        add_rank(&json, trainer, r, head, (const void *)(head + 1), count);
    }
    wefti_json_end_array(&json);
    wefti_json_end_object(&json);
    wefti_text_add(&text, "\n");
    weft_status_t status = wefti_file_write_text(trainer->options->report_path, &text);
    wefti_text_deinit(&text);
    return status;
}

static size_t bytes_of(uint64_t count)
{
    return sizeof(history_head_t) + (size_t)(count + 1) / 2 * 2 * sizeof(history_point_t);
}

static void fill(const trainer_t *trainer, uint64_t rss_bytes, uint64_t count, uint8_t *out)
{
    const weft_session_stats_t *stats = &trainer->report.stats;
    *(history_head_t *)(void *)out = (history_head_t){stats->compute_ms_p50, stats->comm_ms_p50,
                                                      stats->exposed_comm_ms_p50, rss_bytes};
    sum_up(trainer, trainer->report.steps, (void *)(out + sizeof(history_head_t)), count);
}

weft_status_t wefti_trainer_write_so_far(trainer_t *trainer)
{
    uint64_t count = count_points(trainer, trainer->report.steps);
    size_t bytes = bytes_of(count);
    uint8_t *own = calloc(1, bytes);
    if (own == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: %zu bytes of steps", bytes);
    }
    fill(trainer, trainer->report.rss_bytes, count, own);
    weft_status_t status = write_file(trainer, own, 1, bytes, count, false);
    free(own);
    return status;
}

weft_status_t wefti_trainer_write_report(trainer_t *trainer, uint64_t rss_bytes)
{
    uint64_t count = count_points(trainer, trainer->report.steps);
    size_t bytes = bytes_of(count);
    uint8_t *own = calloc(1, bytes), *all = calloc(trainer->world_size, bytes);
    weft_status_t status;
    if (own == NULL || all == NULL) {
        status = wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: the steps of %u ranks",
                             trainer->world_size);
        weft_context_abort(trainer->context, weft_last_error()); /* the others would wait */
    } else {
        fill(trainer, rss_bytes, count, own);
        status = weft_context_all_gather(trainer->context, own, bytes, all);
    }
    if (status >= 0 && trainer->rank == 0) {
        status = write_file(trainer, all, trainer->world_size, bytes, count, true);
        trainer->report.reported = status >= 0;
    }
    free(own);
    free(all);
    return status;
}
