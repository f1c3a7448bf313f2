/* SPDX-License-Identifier: Apache-2.0 */
/* The position of training in steps and in the data; checks of a checkpoint to continue from. */
#include "runtime/base/error.h"
#include "tools/train/train.h"

weft_checkpoint_info_t wefti_train_begin(const train_options_t *options,
                                         const train_binding_t *binding)
{
    return (weft_checkpoint_info_t){.struct_size = sizeof(weft_checkpoint_info_t),
                                    .seed = options->seed,
                                    .sample_count = options->data->train.count,
                                    .lr = options->lr >= 0 ? options->lr : binding->lr};
}

void wefti_train_fit(const train_options_t *options, const train_binding_t *binding,
                     weft_checkpoint_info_t *at)
{
    if (at->sample + binding->global_batch > options->data->train.count) {
        at->epoch++;
        at->sample = 0;
    }
}

void wefti_train_advance(const train_options_t *options, const train_binding_t *binding,
                         weft_checkpoint_info_t *at)
{
    at->step++;
    at->sample += binding->global_batch;
    wefti_train_fit(options, binding, at);
}

uint64_t wefti_train_steps(const train_options_t *options, const train_binding_t *binding,
                           const weft_checkpoint_info_t *at)
{
    uint64_t count = options->data->train.count, batch = binding->global_batch;
    if (options->steps != 0) {
        return options->steps > at->step ? options->steps : at->step;
    }
    return at->epoch >= options->epochs ? at->step
                                        : at->step + (count - at->sample) / batch +
                                              (options->epochs - at->epoch - 1) * (count / batch);
}

/* Seed and length determine the order of the data. The number of ranks may differ, and with it the
 * global batch; another batch of each rank would be a mistake. */
static weft_status_t check_data(const train_options_t *options, const train_binding_t *binding,
                                uint32_t world_size)
{
    const weft_checkpoint_info_t *info = &options->resume;
    if (info->global_batch != binding->global_batch &&
        info->global_batch * world_size != binding->global_batch * info->world_size) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: written with a global batch of %llu (%u rank%s), but this run has "
                           "%llu (%u rank%s); "
                           "change --world or --batch",
                           options->resume_path, (unsigned long long)info->global_batch,
                           info->world_size, info->world_size == 1 ? "" : "s",
                           (unsigned long long)binding->global_batch, world_size,
                           world_size == 1 ? "" : "s");
    }
    if (info->sample_count != options->data->train.count) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s: written with %llu training %ss, but the data set has %u",
                           options->resume_path, (unsigned long long)info->sample_count,
                           options->data->noun, options->data->train.count);
    }
    if (info->sample >= info->sample_count) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: sample %llu is out of range: the data set has %u",
                           options->resume_path, (unsigned long long)info->sample,
                           options->data->train.count);
    }
    return WEFT_OK;
}

weft_status_t wefti_train_resume(train_options_t *options, const train_binding_t *binding,
                                 bool seed_given, bool lr_given, uint64_t *out_steps)
{
    weft_checkpoint_info_t *info = &options->resume;
    weft_plan_info_t plan = WEFT_PLAN_INFO_INIT;
    info->struct_size = sizeof *info;
    weft_status_t status =
        weft_checkpoint_check(options->resume_path, options->plan, options->registry, info);
    status = status < 0 ? status : weft_plan_get_info(options->plan, &plan);
    status = status < 0 ? status : check_data(options, binding, plan.world_size);
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
    weft_checkpoint_info_t at = *info;
    wefti_train_fit(options, binding, &at);
    *out_steps = options->steps != 0 ? options->steps : wefti_train_steps(options, binding, &at);
    return WEFT_OK;
}
