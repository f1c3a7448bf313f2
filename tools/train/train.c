/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/train/train.h"

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

#define PIXEL_SCALE "pixels / 255" /* by wefti_dataset_gather */

typedef struct trainer {
    const train_options_t *options;
    train_binding_t binding;
    weft_context_t *context;
    weft_session_t *session;
    uint32_t rank, world_size;
    float *images;   /* the input's own memory */
    int64_t *labels; /* likewise */
    uint32_t *order; /* of the current epoch */
    float *logits;
    double *step_ms;
    uint64_t first_step; /* steps before this run */
    uint64_t steps, steps_per_epoch;
    progress_t progress;
    train_report_t report;
    weft_status_t failed; /* the status of a file that could not be written */
    char failure[1024];
} trainer_t;

static int64_t elems_per_sample(const weft_tensor_desc_t *desc)
{
    int64_t count = weft_tensor_elem_count(desc);
    return desc->rank == 0 || desc->dims[0] <= 0 ? -1 : count / desc->dims[0];
}

/* Names the first label that is not a class of the model. */
static weft_status_t name_foreign_label(const dataset_t *data, int64_t class_count)
{
    const image_set_t *sets[] = {&data->train, &data->test};
    for (size_t s = 0; s < 2; s++) {
        for (uint32_t i = 0; i < sets[s]->count; i++) {
            if (sets[s]->labels[i] >= class_count) {
                return wefti_error(
                    WEFT_ERR_INVALID_ARGUMENT,
                    "%s: label %u at index %u is out of range: the model has %lld classes",
                    sets[s]->label_path, sets[s]->labels[i], i, (long long)class_count);
            }
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_train_bind(const train_options_t *options, train_binding_t *out_binding)
{
    const image_set_t *set = &options->data->train;
    weft_binding_t binding;
    memset(out_binding, 0, sizeof *out_binding);
    for (size_t i = 0; wefti_next_binding(options->plan, UINT32_MAX, &i, &binding);) {
        if (binding.role == WEFT_BINDING_ROLE_INPUT) {
            int64_t wanted = (int64_t)set->height * set->width;
            if (out_binding->image_name != NULL) {
                return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                                   "input '%s': the data set has one input: '%s' takes its images",
                                   binding.name, out_binding->image_name);
            }
            if (binding.desc.dtype != WEFT_DTYPE_F32 || elems_per_sample(&binding.desc) != wanted) {
                return wefti_error(
                    WEFT_ERR_INVALID_ARGUMENT,
                    "input '%s': type mismatch: %lld %s per sample, but images of the "
                    "data set are %ux%u f32",
                    binding.name, (long long)elems_per_sample(&binding.desc),
                    weft_dtype_name(binding.desc.dtype), set->height, set->width);
            }
            out_binding->image_name = binding.name;
            out_binding->batch = binding.desc.dims[0];
        } else if (binding.role == WEFT_BINDING_ROLE_LABEL) {
            if (binding.desc.dtype != WEFT_DTYPE_I64 || elems_per_sample(&binding.desc) != 1) {
                return wefti_error(
                    WEFT_ERR_INVALID_ARGUMENT,
                    "label input '%s': type mismatch: %lld %s per sample, but labels "
                    "of the data set are one i64",
                    binding.name, (long long)elems_per_sample(&binding.desc),
                    weft_dtype_name(binding.desc.dtype));
            }
            out_binding->label_name = binding.name;
        } else if (binding.role == WEFT_BINDING_ROLE_LOGITS && binding.desc.rank > 0) {
            out_binding->class_count = binding.desc.dims[binding.desc.rank - 1];
        } else if (binding.role == WEFT_BINDING_ROLE_SCALAR && strcmp(binding.name, "lr") == 0) {
            out_binding->has_lr = true;
            out_binding->lr = binding.default_value;
        } else if (binding.role == WEFT_BINDING_ROLE_SCALAR && strcmp(binding.name, "seed") == 0) {
            out_binding->has_seed = true;
        }
    }
    if (out_binding->image_name == NULL || out_binding->label_name == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "the plan has no %s input",
                           out_binding->image_name == NULL ? "image" : "label");
    }
    weft_status_t status = name_foreign_label(options->data, out_binding->class_count);
    if (status < 0) {
        return status;
    }
    weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
    status = weft_plan_get_info(options->plan, &info);
    if (status >= 0 && !info.has_eval && !options->no_eval) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "the forward pass communicates: a rank cannot evaluate its share of the "
                           "test set alone; use --no-eval");
    }
    out_binding->accumulate = info.accumulate;
    out_binding->global_batch =
        (uint64_t)out_binding->batch * info.world_size * out_binding->accumulate;
    if (status >= 0 && set->count < out_binding->global_batch) {
        status = wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "data set too small: %u training images, but a global batch is %u x %lld%s", set->count,
            info.world_size * info.accumulate, (long long)out_binding->batch,
            info.accumulate > 1 ? " (micro-batches of all ranks)" : "");
    }
    return status;
}

/* Input memory in the arena; the sizes were checked by wefti_train_bind. */
static weft_status_t map_inputs(trainer_t *trainer)
{
    void *data = NULL;
    size_t bytes = 0;
    weft_status_t status =
        weft_session_input_memory(trainer->session, trainer->binding.image_name, &data, &bytes);
    trainer->images = data;
    if (status >= 0) {
        status =
            weft_session_input_memory(trainer->session, trainer->binding.label_name, &data, &bytes);
        trainer->labels = data;
    }
    return status;
}

/* Scalars are set as a double, which holds 53 bits exactly: the others are folded in. */
static double scalar_seed(uint64_t seed)
{
    return (double)((seed ^ (seed >> 53)) & (((uint64_t)1 << 53) - 1));
}

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
    return status;
}

static weft_status_t trainer_open(trainer_t *trainer, int32_t rank, int32_t world_size,
                                  const char *address)
{
    const train_options_t *options = trainer->options;
    const image_set_t *set = &options->data->train;
    weft_log_fn log = isatty(STDERR_FILENO) == 1 ? wefti_progress_log : NULL;
    weft_status_t status;
    WEFT_TRY(status, wefti_train_bind(options, &trainer->binding), done);
    WEFT_TRY(status,
             wefti_launched_open(options->world, rank, world_size, address, log, &trainer->context),
             done);
    trainer->rank = weft_context_rank(trainer->context);
    trainer->world_size = weft_context_world_size(trainer->context);
    trainer->steps_per_epoch = wefti_train_steps_per_epoch(options, &trainer->binding);
    trainer->steps = wefti_train_steps(options, &trainer->binding);
    trainer->first_step = options->resume_path != NULL ? options->resume.step : 0;
    trainer->order = malloc(set->count * sizeof *trainer->order);
    trainer->step_ms = malloc((trainer->steps - trainer->first_step) * sizeof *trainer->step_ms);
    trainer->logits = malloc((size_t)(trainer->binding.batch * trainer->binding.class_count) *
                             sizeof *trainer->logits);
    if (trainer->order == NULL || trainer->step_ms == NULL || trainer->logits == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: %llu steps",
                           (unsigned long long)trainer->steps);
    }
    weft_session_params_t session_params = {.struct_size = sizeof session_params,
                                            .context = trainer->context,
                                            .plan = options->plan,
                                            .registry = options->registry,
                                            .trace = options->trace_path != NULL ||
                                                     options->profile_path != NULL};
    WEFT_TRY(status, weft_session_create(&session_params, &trainer->session), done);
    if (options->resume_path != NULL) {
        WEFT_TRY(status, load_checkpoint(trainer), done);
    }
    if (trainer->binding.has_seed) {
        WEFT_TRY(status,
                 weft_session_set_scalar(trainer->session, "seed", scalar_seed(options->seed)),
                 done);
    }
    status = map_inputs(trainer);
done:
    return status;
}

static void trainer_close(trainer_t *trainer)
{
    weft_session_destroy(trainer->session);
    weft_context_release(trainer->context);
    free(trainer->order);
    free(trainer->step_ms);
    free(trainer->logits);
}

static double scheduled_lr(const trainer_t *trainer, uint64_t step)
{
    double lr = trainer->options->lr >= 0 ? trainer->options->lr : trainer->binding.lr;
    if (trainer->options->linear_lr) {
        lr *= 1.0 - (double)step / (double)trainer->steps;
    }
    return lr;
}

static void show_progress(trainer_t *trainer, uint64_t step, double loss)
{
    uint64_t now = wefti_now_ns();
    if (!wefti_progress_due(&trainer->progress, now)) {
        return;
    }
    weft_session_stats_t stats = WEFT_SESSION_STATS_INIT;
    if (weft_session_get_stats(trainer->session, &stats) < 0) {
        return;
    }
    uint64_t per_epoch = trainer->steps_per_epoch;
    uint64_t left = trainer->steps - step / per_epoch * per_epoch; /* of this epoch and on */
    wefti_progress_show(&trainer->progress, now, (uint32_t)(step / per_epoch) + 1,
                        (uint32_t)((trainer->steps + per_epoch - 1) / per_epoch),
                        step % per_epoch + 1, left < per_epoch ? left : per_epoch, loss,
                        stats.exposed_comm_ms_p50);
}

/* The rank's micro-batch of the step that begins at sample first of the epoch. The micro-batches of
 * all ranks are consecutive, so the global number of one determines its samples. */
static weft_status_t train_micro_batch(trainer_t *trainer, uint64_t first, uint32_t index,
                                       float *out_loss)
{
    uint32_t count = trainer->binding.accumulate;
    size_t batch = (size_t)trainer->binding.batch;
    const uint32_t *samples =
        trainer->order + first + ((uint64_t)trainer->rank * count + index) * batch;
    wefti_dataset_gather(&trainer->options->data->train, samples, batch, trainer->images,
                         trainer->labels);
    weft_status_t status = index + 1 < count ? weft_session_micro_step(trainer->session)
                                             : weft_session_step(trainer->session);
    return status < 0 ? status
                      : weft_session_get_output(trainer->session, "loss", out_loss,
                                                sizeof *out_loss, NULL);
}

/* The loss is the mean over the rank's micro-batches. */
static weft_status_t train_step(trainer_t *trainer, uint64_t step, double *out_loss)
{
    const image_set_t *set = &trainer->options->data->train;
    uint64_t in_epoch = step % trainer->steps_per_epoch;
    uint32_t count = trainer->binding.accumulate;
    double sum = 0;
    if (in_epoch == 0 || step == trainer->first_step) {
        wefti_dataset_shuffle(trainer->order, set->count, trainer->options->seed,
                              (uint32_t)(step / trainer->steps_per_epoch));
    }
    uint64_t started = wefti_now_ns();
    if (trainer->binding.has_lr) {
        WEFT_RETURN_IF_ERROR(
            weft_session_set_scalar(trainer->session, "lr", scheduled_lr(trainer, step)));
    }
    for (uint32_t i = 0; i < count; i++) {
        float loss = 0;
        WEFT_RETURN_IF_ERROR(
            train_micro_batch(trainer, in_epoch * trainer->binding.global_batch, i, &loss));
        sum += (double)loss;
    }
    *out_loss = sum / count;
    trainer->step_ms[step - trainer->first_step] = (double)(wefti_now_ns() - started) * 1e-6;
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

static weft_status_t save_checkpoint(trainer_t *trainer, uint64_t done)
{
    const train_options_t *options = trainer->options;
    weft_checkpoint_info_t info = wefti_train_position(options, &trainer->binding, done);
    return keep_failure(
        trainer, weft_session_save_checkpoint(trainer->session, options->checkpoint_path, &info));
}

/* Is a checkpoint due after done steps? The last one is written by write_files. */
static bool is_checkpoint_due(const trainer_t *trainer, uint64_t done)
{
    const train_options_t *options = trainer->options;
    return options->checkpoint_path != NULL && done != trainer->steps &&
           options->checkpoint_every != 0 && done % options->checkpoint_every == 0;
}

static weft_status_t train(trainer_t *trainer)
{
    double loss = 0;
    for (uint64_t step = trainer->first_step; step < trainer->steps; step++) {
        weft_status_t status = train_step(trainer, step, &loss);
        if (status < 0) {
            return status;
        }
        if (!isfinite(loss)) {
            return wefti_error(WEFT_ERR_STATE,
                               "training diverged: the loss is %f at step %llu; try a lower --lr",
                               loss, (unsigned long long)step + 1);
        }
        if (step == trainer->first_step) {
            trainer->report.loss_first = loss;
        }
        if (trainer->rank == 0) {
            show_progress(trainer, step, loss);
        }
        status = is_checkpoint_due(trainer, step + 1)
                     ? keep_failure(trainer, save_checkpoint(trainer, step + 1))
                     : WEFT_OK;
        if (status < 0) {
            return status;
        }
    }
    trainer->report.loss_last = loss;
    return WEFT_OK;
}

/* Counts right answers in this rank's share of the test set; the last batch may be partial. All
 * ranks evaluate equally often: where weights are sharded they gather them together. */
static weft_status_t count_correct(trainer_t *trainer, uint64_t *out_correct)
{
    const image_set_t *set = &trainer->options->data->test;
    size_t batch = (size_t)trainer->binding.batch;
    size_t classes = (size_t)trainer->binding.class_count;
    uint64_t first = (uint64_t)set->count * trainer->rank / trainer->world_size;
    uint64_t last = (uint64_t)set->count * (trainer->rank + 1) / trainer->world_size;
    uint32_t *samples = malloc(batch * sizeof *samples);
    weft_status_t status = WEFT_OK;
    *out_correct = 0;
    if (samples == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: a batch of %zu", batch);
    }
    uint64_t most = ((uint64_t)set->count + trainer->world_size - 1) / trainer->world_size;
    for (uint64_t i = first; i < first + most && status >= 0; i += batch) {
        size_t left = i < last ? (size_t)(last - i) : 0, valid = left < batch ? left : batch;
        for (size_t k = 0; k < batch; k++) {
            samples[k] = (uint32_t)(k < valid ? i + k : first); /* repeats fill the rest */
        }
        wefti_dataset_gather(set, samples, batch, trainer->images, trainer->labels);
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
            *out_correct += best == set->labels[samples[k]];
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
        correct += all[r].correct;
    }
    uint32_t tested = trainer->options->no_eval ? 0 : trainer->options->data->test.count;
    report->test_accuracy = tested > 0 ? (double)correct / tested : -1;
    free(all);
    return status;
}

static void summarise_times(trainer_t *trainer)
{
    train_report_t *report = &trainer->report;
    uint64_t steps = trainer->steps - trainer->first_step;
    double total = 0;
    for (uint64_t i = 0; i < steps; i++) {
        total += trainer->step_ms[i];
    }
    wefti_sort_doubles(trainer->step_ms, steps);
    report->steps = steps;
    report->first_step = trainer->first_step;
    report->step_ms_p50 = trainer->step_ms[steps / 2];
    report->step_ms_mean = total / (double)steps;
    report->images_per_s = (double)trainer->binding.global_batch * 1e3 / report->step_ms_mean;
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
    snprintf(key, sizeof key, "input.%.60s", trainer->binding.image_name);
    const wefti_onnx_property_t scale = {key, PIXEL_SCALE};
    if (trainer->rank == 0) {
        status = wefti_model_save(trainer->options->plan, tensors, count, &scale, 1,
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
        status = save_checkpoint(trainer, trainer->steps);
        trainer->report.checkpointed = status >= 0;
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
    struct rusage usage;
    rank_summary_t own = {.loss_first = trainer->report.loss_first,
                          .loss_last = trainer->report.loss_last};
    trainer->report.world_size = trainer->world_size;
    trainer->report.stats.struct_size = sizeof trainer->report.stats;
    summarise_times(trainer);
    /* Before eval: its steps are not training steps. */
    WEFT_TRY(status, weft_session_get_stats(trainer->session, &trainer->report.stats), done);
    WEFT_TRY(status, weft_session_param_digest(trainer->session, own.param_digest), done);
    WEFT_TRY(status, compare_weights(trainer, own.param_digest), done);
    WEFT_TRY(status, write_files(trainer), done);
    if (!trainer->options->no_eval) {
        WEFT_TRY(status, count_correct(trainer, &own.correct), done);
    }
    getrusage(RUSAGE_SELF, &usage);
    own.rss_bytes = (uint64_t)usage.ru_maxrss * 1024;
    WEFT_TRY(status, exchange_summaries(trainer, &own), done);
    WEFT_TRY(status, wefti_links_gather(trainer->context, &trainer->report.links), done);
    memcpy(trainer->report.param_digest, own.param_digest, sizeof trainer->report.param_digest);
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

weft_status_t wefti_train_rank(const train_options_t *options, int32_t rank, int32_t world_size,
                               const char *address)
{
    trainer_t trainer = {.options = options};
    weft_status_t status = WEFT_OK;
    WEFT_TRY(status, trainer_open(&trainer, rank, world_size, address), done);
    wefti_progress_begin(&trainer.progress, options->json || trainer.rank != 0);
    status = train(&trainer);
    wefti_progress_end(&trainer.progress);
    if (status >= 0) {
        status = finish(&trainer);
    }
done:
    trainer_close(&trainer);
    return status;
}
