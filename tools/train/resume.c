/* SPDX-License-Identifier: Apache-2.0 */
/* The position of training in steps and in the data; checks of a checkpoint to continue from. */
#include "runtime/base/error.h"
#include "tools/train/train.h"

uint64_t wefti_train_steps_per_epoch(const train_options_t *options, const train_binding_t *binding)
{
    return options->data->train.count / binding->global_batch;
}

uint64_t wefti_train_steps(const train_options_t *options, const train_binding_t *binding)
{
    return options->steps != 0 ? options->steps
                               : options->epochs * wefti_train_steps_per_epoch(options, binding);
}

weft_checkpoint_info_t wefti_train_position(const train_options_t *options,
                                            const train_binding_t *binding, uint64_t done)
{
    uint64_t per_epoch = wefti_train_steps_per_epoch(options, binding);
    return (weft_checkpoint_info_t){.struct_size = sizeof(weft_checkpoint_info_t),
                                    .seed = options->seed,
                                    .epoch = done / per_epoch,
                                    .sample = done % per_epoch * binding->global_batch,
                                    .sample_count = options->data->train.count,
                                    .lr = options->lr >= 0 ? options->lr : binding->lr,
                                    .step = done,
                                    .global_batch = binding->global_batch};
}

/* Seed and length determine the order of the data, the global batch the position. */
static weft_status_t check_data(const train_options_t *options, const train_binding_t *binding)
{
    const weft_checkpoint_info_t *info = &options->resume;
    if (info->global_batch != binding->global_batch) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "%s: written with a global batch of %llu (%u rank%s), but this run has %llu; "
            "change --world or --batch",
            options->resume_path, (unsigned long long)info->global_batch, info->world_size,
            info->world_size == 1 ? "" : "s", (unsigned long long)binding->global_batch);
    }
    if (info->sample_count != options->data->train.count) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: written with %llu training images, but the data set has %u",
                           options->resume_path, (unsigned long long)info->sample_count,
                           options->data->train.count);
    }
    weft_checkpoint_info_t expected = wefti_train_position(options, binding, info->step);
    if (info->epoch != expected.epoch || info->sample != expected.sample) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "%s: epoch %llu, sample %llu does not match %llu steps of %llu samples",
                           options->resume_path, (unsigned long long)info->epoch,
                           (unsigned long long)info->sample, (unsigned long long)info->step,
                           (unsigned long long)binding->global_batch);
    }
    return WEFT_OK;
}

weft_status_t wefti_train_resume(train_options_t *options, const train_binding_t *binding,
                                 bool seed_given, bool lr_given)
{
    weft_checkpoint_info_t *info = &options->resume;
    info->struct_size = sizeof *info;
    weft_status_t status =
        weft_checkpoint_check(options->resume_path, options->plan, options->registry, info);
    if (status >= 0) {
        status = check_data(options, binding);
    }
    if (status < 0) {
        return status;
    }
    if (seed_given && options->seed != info->seed) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: written with --seed %llu; resuming requires the same seed",
                           options->resume_path, (unsigned long long)info->seed);
    }
    options->seed = info->seed;
    if (!lr_given && info->lr > 0) {
        options->lr = info->lr;
    }
    uint64_t steps = wefti_train_steps(options, binding);
    if (info->step >= steps) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "%s: written after %llu steps, but training ends after %llu; --epochs and "
            "--steps count from the start of training",
            options->resume_path, (unsigned long long)info->step, (unsigned long long)steps);
    }
    return WEFT_OK;
}
