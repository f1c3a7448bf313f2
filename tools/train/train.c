/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "graph/onnx/onnx.h"
#include "runtime/base/error.h"
#include "runtime/base/sync.h"
#include "tools/output.h"
#include "tools/launch/world.h"
#include "tools/tool.h"

#define REPORT_EVERY_NS 2000000000ull
#define REPORT_SHARE 100u /* of the time between two of them, at most one part is spent on one */
#define PIXEL_SCALE "pixels / 255" /* by wefti_dataset_gather */

/* The file was checked before the ranks started, and may have been replaced since. */
static weft_status_t load_checkpoint(trainer_t *trainer)
{
    const train_options_t *options = trainer->options;
    weft_checkpoint_info_t info = WEFT_CHECKPOINT_INFO_INIT;
    weft_status_t status =
        weft_session_load_checkpoint(trainer->session, options->resume_path, &info);
    if (status >= 0 && (info.step != options->resume.step || info.seed != options->seed ||
                        info.sample != options->resume.sample)) {
        status = wefti_error(WEFT_ERR_STATE, "%s: checkpoint changed while the ranks started",
                             options->resume_path);
    }
    trainer->at.step = info.step;
    trainer->at.epoch = info.epoch;
    trainer->at.sample = info.sample;
    return status;
}

/* After the world has changed, more or fewer steps may be left. */
weft_status_t wefti_trainer_plan_steps(trainer_t *trainer)
{
    wefti_train_fit(trainer->options, &trainer->binding, &trainer->at);
    trainer->steps = wefti_train_steps(trainer->options, &trainer->binding, &trainer->at);
    return wefti_array_reserve(NULL, &trainer->history, &trainer->history_capacity,
                               trainer->steps - trainer->first_step + 1, sizeof *trainer->history);
}

static void note_batch(const trainer_t *trainer)
{
    const train_options_t *options = trainer->options;
    if (trainer->rank == 0 && options->resume.global_batch != trainer->binding.global_batch) {
        fprintf(stderr,
                "weft %s: %s: written with a global batch of %llu (%u rank%s), continues with %llu "
                "(%u rank%s)\n",
                options->command, options->resume_path,
                (unsigned long long)options->resume.global_batch, options->resume.world_size,
                wefti_plural(options->resume.world_size),
                (unsigned long long)trainer->binding.global_batch, trainer->world_size,
                wefti_plural(trainer->world_size));
    }
}

static weft_status_t trainer_open(trainer_t *trainer, int32_t rank, int32_t world_size,
                                  const char *address)
{
    const train_options_t *options = trainer->options;
    weft_log_fn log = isatty(STDERR_FILENO) == 1 ? wefti_progress_log : NULL;
    launch_board_t *board = options->board;
    trainer->plan = options->plan;
    weft_plan_retain(trainer->plan);
    trainer->order_epoch = UINT64_MAX;
    trainer->order = malloc(options->data->train.count * sizeof *trainer->order);
    if (trainer->order == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: the order of %u samples",
                           options->data->train.count);
    }
    if (options->min_ranks > 0) {
        WEFT_RETURN_IF_ERROR(weft_snapshot_create(&trainer->snapshot));
    }
    if (board != NULL && wefti_board_is_joining(board, (uint32_t)rank)) {
        trainer->joined = true;
        return wefti_trainer_join(trainer, (uint32_t)rank, log);
    }
    WEFT_RETURN_IF_ERROR(wefti_train_bind(options, trainer->plan, &trainer->binding));
    WEFT_RETURN_IF_ERROR(
        wefti_launched_open(options->world, rank, world_size, address, log, &trainer->context));
    if (board != NULL) {
        (void)wefti_board_take(board, (uint32_t)rank); /* one of the first world: it is free */
    }
    return WEFT_OK;
}

weft_status_t wefti_trainer_begin(trainer_t *trainer)
{
    const train_options_t *options = trainer->options;
    trainer->at = wefti_train_begin(options, &trainer->binding);
    if (options->resume_path != NULL) {
        WEFT_RETURN_IF_ERROR(load_checkpoint(trainer));
        note_batch(trainer);
    }
    trainer->first_step = trainer->at.step;
    WEFT_RETURN_IF_ERROR(wefti_trainer_plan_steps(trainer));
    return wefti_trainer_keep(trainer);
}

static void trainer_close(trainer_t *trainer)
{
    wefti_trainer_leave(trainer);
    weft_snapshot_destroy(trainer->snapshot);
    weft_context_release(trainer->context);
    weft_plan_release(trainer->plan);
    free(trainer->order);
    wefti_free(NULL, trainer->history);
    free(trainer->logits);
    free(trainer->report.recoveries);
}

/* The plan makes a schedule of both, if it has one. */
static weft_status_t set_learning_rate(trainer_t *trainer)
{
    double lr = trainer->options->lr >= 0 ? trainer->options->lr : trainer->binding.lr;
    if (trainer->binding.has_lr) {
        WEFT_RETURN_IF_ERROR(weft_session_set_scalar(trainer->session, "lr", lr));
    }
    return trainer->binding.has_lr_steps
               ? weft_session_set_scalar(trainer->session, "lr_steps", (double)trainer->steps)
               : WEFT_OK;
}

/* at: where the step began that has ended with this loss. */
static void show_progress(trainer_t *trainer, const weft_checkpoint_info_t *at, double loss)
{
    uint64_t now = wefti_now_ns();
    if (!wefti_progress_due(&trainer->progress, now)) {
        return;
    }
    weft_session_stats_t stats = WEFT_SESSION_STATS_INIT;
    if (weft_session_get_stats(trainer->session, &stats) < 0) {
        return;
    }
    uint64_t batch = trainer->binding.global_batch;
    uint64_t per_epoch = trainer->options->data->train.count / batch;
    uint64_t step = at->sample / batch;
    uint64_t left = trainer->steps - at->step + step; /* of this epoch and on */
    wefti_progress_show(&trainer->progress, now, (uint32_t)at->epoch + 1,
                        (uint32_t)(at->epoch + (left + per_epoch - 1) / per_epoch), step + 1,
                        left < per_epoch ? left : per_epoch, loss, stats.exposed_comm_ms_p50);
}

/* Fills the inputs with a batch of samples. */
static weft_status_t gather(trainer_t *trainer, const data_set_t *set, const uint32_t *samples)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < trainer->binding.input_count && status >= 0; i++) {
        wefti_dataset_gather(set, i, samples, (size_t)trainer->binding.batch,
                             trainer->binding.inputs[i].dtype, trainer->inputs[i]);
        if (trainer->copied_bytes[i] > 0) {
            status = weft_session_set_input(trainer->session, trainer->binding.inputs[i].name,
                                            trainer->inputs[i], trainer->copied_bytes[i]);
        }
    }
    return status;
}

/* The rank's micro-batch of the step that begins at sample first of the epoch. The micro-batches of
 * all ranks are consecutive, so the global number of one determines its samples. */
static weft_status_t train_micro_batch(trainer_t *trainer, uint64_t first, uint32_t index,
                                       float *out_loss)
{
    uint32_t count = trainer->binding.accumulate;
    size_t batch = (size_t)trainer->binding.batch;
    uint32_t rank = trainer->rank / trainer->binding.batch_ranks;
    const uint32_t *samples = trainer->order + first + ((uint64_t)rank * count + index) * batch;
    WEFT_RETURN_IF_ERROR(gather(trainer, &trainer->options->data->train, samples));
    weft_status_t status = index + 1 < count ? weft_session_micro_step(trainer->session)
                                             : weft_session_step(trainer->session);
    return status < 0 ? status
                      : weft_session_get_output(trainer->session, "loss", out_loss,
                                                sizeof *out_loss, NULL);
}

/* The loss is the mean over the rank's micro-batches. */
static weft_status_t train_step(trainer_t *trainer, double *out_loss)
{
    const data_set_t *set = &trainer->options->data->train;
    const weft_checkpoint_info_t *at = &trainer->at;
    uint32_t count = trainer->binding.accumulate;
    double sum = 0;
    if (trainer->order_epoch != at->epoch) {
        wefti_dataset_shuffle(trainer->order, set->count, trainer->options->seed,
                              (uint32_t)at->epoch);
        trainer->order_epoch = at->epoch;
    }
    uint64_t started = wefti_now_ns();
    WEFT_RETURN_IF_ERROR(set_learning_rate(trainer));
    for (uint32_t i = 0; i < count; i++) {
        float loss = 0;
        WEFT_RETURN_IF_ERROR(train_micro_batch(trainer, at->sample, i, &loss));
        sum += (double)loss;
    }
    *out_loss = sum / count;
    trainer->history[at->step - trainer->first_step] =
        (train_step_t){(double)(wefti_now_ns() - started) * 1e-6, *out_loss};
    trainer->progress.images_done += trainer->binding.global_batch;
    return WEFT_OK;
}

/* A file that cannot be written does not end the run: the failure is kept and returned at the end.
 * Other errors (a rank died) end the run. */
static weft_status_t keep_failure(trainer_t *trainer, weft_status_t status)
{
    if (status >= 0 || wefti_exit_code(status) != EXIT_BAD_INPUT) {
        return status;
    }
    size_t used = strlen(trainer->failure);
    if (strstr(trainer->failure, weft_last_error()) == NULL) { /* not the same again */
        snprintf(trainer->failure + used, sizeof trainer->failure - used, "%s%s",
                 used > 0 ? "; " : "", weft_last_error());
    }
    trainer->failed = status;
    return WEFT_OK;
}

/* The file is written while training goes on. */
static weft_status_t start_checkpoint(trainer_t *trainer)
{
    const train_options_t *options = trainer->options;
    WEFT_RETURN_IF_ERROR(wefti_trainer_open_writer(trainer));
    train_pauses_t *pauses = &trainer->report.pauses;
    uint64_t began = wefti_now_ns();
    WEFT_RETURN_IF_ERROR(keep_failure(trainer, weft_checkpoint_writer_wait(trainer->writer)));
    uint64_t waited = wefti_now_ns();
    WEFT_RETURN_IF_ERROR(keep_failure(
        trainer,
        weft_checkpoint_writer_start(trainer->writer, options->checkpoint_path, &trainer->at)));
    double copy_ms = (double)(wefti_now_ns() - waited) * 1e-6;
    pauses->copy_ms += copy_ms;
    pauses->most_ms = copy_ms > pauses->most_ms ? copy_ms : pauses->most_ms;
    pauses->wait_ms += (double)(waited - began) * 1e-6;
    pauses->count++;
    return WEFT_OK;
}

/* The last one is written by write_files. */
static bool is_checkpoint_due(const trainer_t *trainer)
{
    const train_options_t *options = trainer->options;
    uint64_t done = trainer->at.step;
    return options->checkpoint_path != NULL && done != trainer->steps &&
           options->checkpoint_every != 0 && done % options->checkpoint_every == 0;
}

/* One step, and what follows it. */
static weft_status_t advance(trainer_t *trainer)
{
    const weft_checkpoint_info_t began = trainer->at;
    double loss = 0;
    WEFT_RETURN_IF_ERROR(train_step(trainer, &loss));
    if (!isfinite(loss)) {
        return wefti_error(WEFT_ERR_STATE,
                           "training diverged: the loss is %f at step %llu; try a lower --lr", loss,
                           (unsigned long long)began.step + 1);
    }
    wefti_train_advance(trainer->options, &trainer->binding, &trainer->at);
    if (began.step == trainer->first_step) {
        trainer->report.loss_first = loss;
    }
    trainer->report.loss_last = loss;
    if (trainer->rank == 0) {
        show_progress(trainer, &began, loss);
    }
    trainer->started = true;
    WEFT_RETURN_IF_ERROR(wefti_trainer_keep(trainer));
    return is_checkpoint_due(trainer) ? start_checkpoint(trainer) : WEFT_OK;
}

/* Counts right answers in this rank's share of the test set, which is that of the ranks that compute
 * a batch with it; the last batch may be partial. All ranks evaluate equally often: where weights
 * are sharded they gather them together. */
static weft_status_t count_correct(trainer_t *trainer, uint64_t *out_correct)
{
    const data_set_t *set = &trainer->options->data->test;
    size_t batch = (size_t)trainer->binding.batch;
    size_t classes = (size_t)trainer->binding.class_count;
    uint32_t together = trainer->binding.batch_ranks;
    uint32_t shares = trainer->world_size / together, share = trainer->rank / together;
    uint64_t first = (uint64_t)set->count * share / shares;
    uint64_t last = (uint64_t)set->count * (share + 1) / shares;
    uint32_t *samples = malloc(batch * sizeof *samples);
    weft_status_t status = WEFT_OK;
    *out_correct = 0;
    if (samples == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: a batch of %zu", batch);
    }
    uint64_t most = ((uint64_t)set->count + shares - 1) / shares;
    for (uint64_t i = first; i < first + most && status >= 0; i += batch) {
        size_t left = i < last ? (size_t)(last - i) : 0, valid = left < batch ? left : batch;
        for (size_t k = 0; k < batch; k++) {
            samples[k] = (uint32_t)(k < valid ? i + k : first); /* repeats fill the rest */
        }
        WEFT_TRY(status, gather(trainer, set, samples), done);
        WEFT_TRY(status, weft_session_eval(trainer->session), done);
        WEFT_TRY(status,
                 weft_session_get_output(trainer->session, "logits", trainer->logits,
                                         batch * classes * sizeof *trainer->logits, NULL),
                 done);
        for (size_t k = 0; k < valid; k++) {
            const float *row = trainer->logits + k * classes;
            size_t best = 0;
            for (size_t c = 1; c < classes; c++) {
                best = row[c] > row[best] ? c : best;
            }
            *out_correct +=
                (int64_t)best == wefti_dataset_integer(set, trainer->binding.label, samples[k]);
        }
    }
done:
    free(samples);
    return status;
}

/* Exchanged by all ranks at the end. */
typedef struct rank_summary {
    double loss_first, loss_last;
    uint64_t correct, rss_bytes;
    char param_digest[72];
} rank_summary_t;

static weft_status_t exchange_summaries(trainer_t *trainer, const rank_summary_t *own)
{
    train_report_t *report = &trainer->report;
    uint64_t correct = 0;
    rank_summary_t *all = calloc(trainer->world_size, sizeof *all);
    if (all == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: %u summaries", trainer->world_size);
    }
    weft_status_t status = weft_context_all_gather(trainer->context, own, sizeof *own, all);
    report->loss_first = report->loss_last = 0;
    for (uint32_t r = 0; r < trainer->world_size && status >= 0; r++) {
        report->loss_first += all[r].loss_first / trainer->world_size;
        report->loss_last += all[r].loss_last / trainer->world_size;
        report->rss_bytes =
            all[r].rss_bytes > report->rss_bytes ? all[r].rss_bytes : report->rss_bytes;
        correct += r % trainer->binding.batch_ranks == 0 ? all[r].correct : 0;
    }
    uint32_t tested = trainer->binding.evaluates ? trainer->options->data->test.count : 0;
    report->test_accuracy = tested > 0 ? (double)correct / tested : -1;
    free(all);
    return status;
}

/* Of this rank, so far: before eval, whose steps are not training steps. */
static weft_status_t summarise(trainer_t *trainer)
{
    train_report_t *report = &trainer->report;
    report->world_size = trainer->world_size;
    report->stats.struct_size = sizeof report->stats;
    report->snapshot.struct_size = sizeof report->snapshot;
    uint64_t steps = trainer->at.step - trainer->first_step;
    double total = 0, *sorted = calloc(steps + 1, sizeof *sorted);
    if (sorted == NULL) {
        weft_context_abort(trainer->context, "out of memory: the times of steps");
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: the times of %llu steps",
                           (unsigned long long)steps);
    }
    for (uint64_t i = 0; i < steps; i++) {
        sorted[i] = trainer->history[i].ms;
        total += sorted[i];
    }
    wefti_sort_doubles(sorted, steps);
    report->steps = steps;
    report->first_step = trainer->first_step;
    report->step_ms_p50 = sorted[steps / 2];
    free(sorted);
    report->step_ms_mean = steps > 0 ? total / (double)steps : 0;
    report->images_per_s = report->step_ms_mean > 0
                               ? (double)trainer->binding.global_batch * 1e3 / report->step_ms_mean
                               : 0;
    if (trainer->snapshot != NULL) {
        report->snapshot_ms = (double)trainer->snapshot_ns * 1e-6 / (double)(steps + 1);
        (void)weft_snapshot_get_info(trainer->snapshot, &report->snapshot);
    }
    return weft_session_get_stats(trainer->session, &report->stats);
}

static uint64_t peak_bytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_maxrss * 1024;
}

/* The report of a run that goes on: rank 0's steps, every few seconds, and so seldom that it takes
 * little of the run. */
static weft_status_t report_so_far(trainer_t *trainer)
{
    uint64_t began = wefti_now_ns();
    if (trainer->options->report_path == NULL || trainer->rank != 0 ||
        began < trainer->next_report_ns) {
        return WEFT_OK;
    }
    trainer->report.test_accuracy = -1;
    trainer->report.rss_bytes = peak_bytes();
    WEFT_RETURN_IF_ERROR(summarise(trainer));
    weft_status_t status = keep_failure(trainer, wefti_trainer_write_so_far(trainer));
    uint64_t end = wefti_now_ns(), pause = REPORT_SHARE * (end - began);
    trainer->next_report_ns = end + (pause < REPORT_EVERY_NS ? REPORT_EVERY_NS : pause);
    return status;
}

static weft_status_t train(trainer_t *trainer)
{
    while (trainer->at.step < trainer->steps) {
        WEFT_RETURN_IF_ERROR(advance(trainer));
        WEFT_RETURN_IF_ERROR(wefti_trainer_admit_waiting(trainer));
        WEFT_RETURN_IF_ERROR(report_so_far(trainer));
    }
    return WEFT_OK;
}

/* All ranks read the weights, of which each may have a shard; rank 0 writes the model. */
static weft_status_t save_model(trainer_t *trainer)
{
    size_t count = weft_session_param_count(trainer->session);
    weft_named_tensor_t *tensors = calloc(count + 1, sizeof *tensors);
    weft_status_t status = WEFT_OK;
    if (tensors == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: %zu parameters", count);
    }
    for (size_t i = 0; i < count; i++) {
        WEFT_TRY(status,
                 weft_session_param_info(trainer->session, i, &tensors[i].name, &tensors[i].desc),
                 done);
        size_t bytes = (size_t)weft_tensor_elem_count(&tensors[i].desc) *
                       weft_dtype_size_bytes(tensors[i].desc.dtype);
        void *data = malloc(bytes + 1);
        tensors[i].desc.data = data;
        if (data == NULL) {
            status = wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: %zu bytes of weights", bytes);
            goto done;
        }
        WEFT_TRY(status, weft_session_get_param(trainer->session, i, data, bytes), done);
    }
    char key[80];
    const wefti_onnx_property_t scale = {key, PIXEL_SCALE};
    uint32_t input = 0;
    while (input < trainer->binding.input_count &&
           !trainer->options->data->train.columns[input].pixels) {
        input++;
    }
    bool pixels = input < trainer->binding.input_count;
    snprintf(key, sizeof key, "input.%.60s", pixels ? trainer->binding.inputs[input].name : "");
    if (trainer->rank == 0) {
        status = wefti_model_save(trainer->plan, tensors, count, &scale, pixels ? 1 : 0,
                                  trainer->options->save_path);
    }
done:
    for (size_t i = 0; i < count; i++) {
        free((void *)tensors[i].desc.data);
    }
    free(tensors);
    return status;
}

/* A model is written only if all ranks have the same weights. */
static weft_status_t compare_weights(trainer_t *trainer, const char *digest)
{
    char own[72] = "";
    char(*all)[72] = calloc(trainer->world_size, sizeof *all);
    if (all == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: digests of %u ranks",
                           trainer->world_size);
    }
    snprintf(own, sizeof own, "%s", digest);
    weft_status_t status = weft_context_all_gather(trainer->context, own, sizeof own, all);
    for (uint32_t r = 1; r < trainer->world_size && status >= 0; r++) {
        if (strcmp(all[r], all[0]) != 0) {
            status = wefti_error(WEFT_ERR_MISMATCH,
                                 "weights differ after training: digest %.16s on rank 0, %.16s on "
                                 "rank %u",
                                 all[0], all[r], r);
        }
    }
    free(all);
    return status;
}

/* The model first: other files may fill the disk. Before eval, which would be in the trace. */
static weft_status_t write_files(trainer_t *trainer)
{
    const train_options_t *options = trainer->options;
    weft_status_t status = WEFT_OK;
    if (options->save_path != NULL) {
        status = save_model(trainer);
        trainer->report.saved = status >= 0;
        WEFT_TRY(status, keep_failure(trainer, status), done);
    }
    if (options->checkpoint_path != NULL) {
        WEFT_TRY(status, start_checkpoint(trainer), done);
        status = weft_checkpoint_writer_wait(trainer->writer);
        trainer->report.checkpointed = status >= 0 && trainer->failed >= 0;
        WEFT_TRY(status, keep_failure(trainer, status), done);
    }
    if (options->trace_path != NULL) {
        status =
            wefti_timeline_write(trainer->session, options->trace_path, &trainer->report.timeline);
        trainer->report.traced = status >= 0;
        WEFT_TRY(status, keep_failure(trainer, status), done);
    }
    if (options->profile_path != NULL) {
        status = keep_failure(trainer,
                              weft_session_write_profile(trainer->session, options->profile_path));
    }
done:
    return status;
}

static weft_status_t finish(trainer_t *trainer)
{
    weft_status_t status = WEFT_OK;
    rank_summary_t own = {.loss_first = trainer->report.loss_first,
                          .loss_last = trainer->report.loss_last};
    WEFT_TRY(status, summarise(trainer), done);
    WEFT_TRY(status, weft_session_param_digest(trainer->session, own.param_digest), done);
    WEFT_TRY(status, compare_weights(trainer, own.param_digest), done);
    WEFT_TRY(status, write_files(trainer), done);
    if (trainer->binding.evaluates) {
        WEFT_TRY(status, count_correct(trainer, &own.correct), done);
    }
    own.rss_bytes = peak_bytes();
    WEFT_TRY(status, exchange_summaries(trainer, &own), done);
    WEFT_TRY(status, wefti_links_gather(trainer->context, &trainer->report.links), done);
    memcpy(trainer->report.param_digest, own.param_digest, sizeof trainer->report.param_digest);
    if (trainer->options->report_path != NULL) {
        status = wefti_trainer_write_report(trainer, own.rss_bytes);
        WEFT_TRY(status, keep_failure(trainer, status), done);
    }
    if (trainer->rank == 0) {
        status = wefti_report_print(trainer->options, &trainer->report, trainer->context);
    }
    if (status >= 0 && trainer->failed < 0) {
        status = wefti_error_adopt(trainer->failed, trainer->failure);
    }
done:
    wefti_links_free(&trainer->report.links);
    return status;
}

static weft_status_t start(trainer_t *trainer)
{
    if (trainer->joined) {
        WEFT_RETURN_IF_ERROR(wefti_trainer_restore(trainer));
        return wefti_trainer_share(trainer);
    }
    WEFT_RETURN_IF_ERROR(wefti_trainer_enter(trainer));
    return wefti_trainer_begin(trainer);
}

static weft_status_t train_and_finish(trainer_t *trainer)
{
    weft_status_t status = train(trainer);
    wefti_progress_end(&trainer->progress);
    return status < 0 ? status : finish(trainer);
}

weft_status_t wefti_train_rank(const train_options_t *options, int32_t rank, int32_t world_size,
                               const char *address)
{
    trainer_t trainer = {.options = options, .report = {.loss_first = NAN, .loss_last = NAN}};
    weft_status_t status;
    WEFT_TRY(status, trainer_open(&trainer, rank, world_size, address), done);
    trainer.rank = weft_context_rank(trainer.context);
    wefti_progress_begin(&trainer.progress, options->json || trainer.rank != 0,
                         options->data->noun);
    status = start(&trainer);
    status = status < 0 ? status : train_and_finish(&trainer);
    while (status < 0) {
        WEFT_TRY(status, wefti_trainer_recover(&trainer, status), done);
        status = train_and_finish(&trainer);
    }
done:
    if (status < 0) { /* others may leave with errors of their own meanwhile */
        char cause[WEFTI_ERROR_TEXT_BYTES];
        snprintf(cause, sizeof cause, "%s", weft_last_error());
        trainer_close(&trainer);
        return wefti_error_adopt(status, cause);
    }
    trainer_close(&trainer);
    return status;
}
