/* SPDX-License-Identifier: Apache-2.0 */
/* A plan and a data set that fit; the world of a trainer: its session, and where inputs lie. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "tools/output.h"
#include "tools/tool.h"
#include "tools/train/trainer.h"

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

weft_status_t wefti_train_bind(const train_options_t *options, const weft_plan_t *plan,
                               train_binding_t *out_binding)
{
    const image_set_t *set = &options->data->train;
    weft_binding_t binding;
    memset(out_binding, 0, sizeof *out_binding);
    for (size_t i = 0; wefti_next_binding(plan, UINT32_MAX, &i, &binding);) {
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
        } else if (binding.role == WEFT_BINDING_ROLE_SCALAR &&
                   strcmp(binding.name, "lr_steps") == 0) {
            out_binding->has_lr_steps = true;
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
    status = weft_plan_get_info(plan, &info);
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

weft_status_t wefti_trainer_enter(trainer_t *trainer)
{
    const train_options_t *options = trainer->options;
    weft_status_t status;
    trainer->rank = weft_context_rank(trainer->context);
    trainer->world_size = weft_context_world_size(trainer->context);
    WEFT_TRY(status, wefti_train_bind(options, trainer->plan, &trainer->binding), done);
    free(trainer->logits);
    trainer->logits = malloc((size_t)(trainer->binding.batch * trainer->binding.class_count) *
                             sizeof *trainer->logits);
    if (trainer->logits == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: logits of a batch");
    }
    weft_session_params_t session_params = {.struct_size = sizeof session_params,
                                            .context = trainer->context,
                                            .plan = trainer->plan,
                                            .registry = options->registry,
                                            .trace = options->trace_path != NULL ||
                                                     options->profile_path != NULL};
    WEFT_TRY(status, weft_session_create(&session_params, &trainer->session), done);
    if (options->min_ranks > 0) {
        WEFT_TRY(status, weft_group_create_world(trainer->context, &trainer->group), done);
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

void wefti_trainer_leave(trainer_t *trainer)
{
    weft_session_destroy(trainer->session);
    weft_group_destroy(trainer->group);
    trainer->session = NULL;
    trainer->group = NULL;
}
