/* SPDX-License-Identifier: Apache-2.0 */
/* A plan and a data set that fit; the world of a trainer: its session, and where inputs lie. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "tools/output.h"
#include "tools/tool.h"
#include "tools/train/trainer.h"

/* Names the first label that is not a class of the model. */
static weft_status_t name_foreign_label(const dataset_t *data, uint32_t column, int64_t class_count)
{
    const data_set_t *sets[] = {&data->train, &data->test};
    for (size_t s = 0; s < 2; s++) {
        for (uint32_t i = 0; i < sets[s]->count; i++) {
            int64_t label = wefti_dataset_integer(sets[s], column, i);
            if (label < 0 || label >= class_count) {
                return wefti_error(
                    WEFT_ERR_INVALID_ARGUMENT,
                    "%s: label %lld at index %u is out of range: the model has %lld classes",
                    sets[s]->sources[column], (long long)label, i, (long long)class_count);
            }
        }
    }
    return WEFT_OK;
}

/* The first dimension of inputs is the batch; labels may have it in another shape. */
static weft_status_t add_input(const weft_binding_t *binding, train_binding_t *out)
{
    bool is_label = binding->role == WEFT_BINDING_ROLE_LABEL;
    if (out->input_count == DATA_MAX_INPUTS) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "too many inputs: at most %u", DATA_MAX_INPUTS);
    }
    if (is_label) {
        out->label = out->input_count;
    } else if (out->batch == 0) {
        out->batch = binding->desc.rank > 0 ? binding->desc.dims[0] : 1;
    }
    out->inputs[out->input_count++] =
        (data_input_t){.name = binding->name,
                       .dtype = binding->desc.dtype,
                       .elems = weft_tensor_elem_count(&binding->desc),
                       .is_label = is_label};
    return WEFT_OK;
}

/* Of the whole batch until now. */
static weft_status_t divide_by_batch(train_binding_t *out)
{
    for (uint32_t i = 0; i < out->input_count; i++) {
        data_input_t *input = &out->inputs[i];
        if (out->batch < 1 || input->elems < out->batch || input->elems % out->batch != 0) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "input '%s': %lld elements are not %lld samples", input->name,
                               (long long)input->elems, (long long)out->batch);
        }
        input->elems /= out->batch;
    }
    out->label = out->label < out->input_count ? out->label : out->input_count;
    return WEFT_OK;
}

weft_status_t wefti_train_inputs(const weft_plan_t *plan, train_binding_t *out_binding)
{
    weft_binding_t binding;
    memset(out_binding, 0, sizeof *out_binding);
    out_binding->label = DATA_MAX_INPUTS;
    for (size_t i = 0; wefti_next_binding(plan, UINT32_MAX, &i, &binding);) {
        if (binding.role == WEFT_BINDING_ROLE_INPUT || binding.role == WEFT_BINDING_ROLE_LABEL) {
            WEFT_RETURN_IF_ERROR(add_input(&binding, out_binding));
        } else if (binding.role == WEFT_BINDING_ROLE_LOGITS && binding.desc.rank == 2) {
            out_binding->class_count = binding.desc.dims[1];
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
    return divide_by_batch(out_binding);
}

/* One label per sample, and a row of logits. */
static bool classifies(const train_binding_t *binding)
{
    return binding->label < binding->input_count && binding->class_count > 0 &&
           binding->inputs[binding->label].elems == 1;
}

weft_status_t wefti_train_bind(const train_options_t *options, const weft_plan_t *plan,
                               train_binding_t *out_binding)
{
    const data_set_t *set = &options->data->train;
    WEFT_RETURN_IF_ERROR(wefti_train_inputs(plan, out_binding));
    if (classifies(out_binding)) {
        WEFT_RETURN_IF_ERROR(
            name_foreign_label(options->data, out_binding->label, out_binding->class_count));
        out_binding->evaluates = !options->no_eval && options->data->test.count > 0;
    } else if (options->data->test.count > 0 && !options->no_eval) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "a test set is for models with one label and one row of logits per "
                           "sample; use --no-eval");
    }
    weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
    WEFT_RETURN_IF_ERROR(weft_plan_get_info(plan, &info));
    if (!info.has_eval && out_binding->evaluates) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "the forward pass communicates: a rank cannot evaluate its share of the "
                           "test set alone; use --no-eval");
    }
    if (options->min_ranks > 0 && info.batch_ranks > 1) {
        return wefti_error(
            WEFT_ERR_UNSUPPORTED,
            "elastic training requires whole weights on every rank, but %u ranks have "
            "parts of them",
            (uint32_t)info.batch_ranks);
    }
    out_binding->accumulate = info.accumulate;
    out_binding->batch_ranks = (uint32_t)info.batch_ranks;
    out_binding->global_batch = (uint64_t)out_binding->batch *
                                (info.world_size / info.batch_ranks) * out_binding->accumulate;
    if (set->count < out_binding->global_batch) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "data set too small: %u training %ss, but a global batch is %u x "
                           "%lld%s",
                           set->count, options->data->noun,
                           (uint32_t)(info.world_size / info.batch_ranks) * info.accumulate,
                           (long long)out_binding->batch,
                           info.accumulate > 1 ? " (micro-batches of all ranks)" : "");
    }
    return WEFT_OK;
}

static void free_copies(trainer_t *trainer)
{
    for (uint32_t i = 0; i < DATA_MAX_INPUTS; i++) {
        if (trainer->copied_bytes[i] > 0) {
            free(trainer->inputs[i]);
        }
        trainer->inputs[i] = NULL;
        trainer->copied_bytes[i] = 0;
    }
}

/* Input memory in the arena, or a copy if that is on a device which the host does not reach; the
 * sizes were checked by wefti_train_bind. */
static weft_status_t map_inputs(trainer_t *trainer)
{
    const weft_device_t *device = weft_context_device(trainer->context);
    bool reached = device == NULL || (device->ops->caps & WEFT_DEVICE_HOST_ACCESS) != 0;
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < trainer->binding.input_count && status >= 0; i++) {
        const data_input_t *input = &trainer->binding.inputs[i];
        size_t bytes =
            (size_t)(input->elems * trainer->binding.batch) * weft_dtype_size_bytes(input->dtype);
        if (reached) {
            status = weft_session_input_memory(trainer->session, input->name, &trainer->inputs[i],
                                               &bytes);
            continue;
        }
        trainer->inputs[i] = calloc(1, bytes);
        if (trainer->inputs[i] == NULL) {
            return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: inputs of a batch");
        }
        trainer->copied_bytes[i] = bytes;
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
                                 sizeof *trainer->logits +
                             1);
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
    WEFT_TRY(status, map_inputs(trainer), done);
    if (options->checkpoint_path != NULL && options->checkpoint_every != 0) {
        status = wefti_trainer_open_writer(trainer);
    }
done:
    return status;
}

weft_status_t wefti_trainer_open_writer(trainer_t *trainer)
{
    const weft_checkpoint_writer_params_t params = {.struct_size = sizeof params,
                                                    .keep = trainer->options->checkpoint_keep};
    return trainer->writer != NULL
               ? WEFT_OK
               : weft_checkpoint_writer_create(trainer->session, &params, &trainer->writer);
}

void wefti_trainer_leave(trainer_t *trainer)
{
    weft_checkpoint_writer_destroy(trainer->writer);
    free_copies(trainer);
    weft_session_destroy(trainer->session);
    weft_group_destroy(trainer->group);
    trainer->writer = NULL;
    trainer->session = NULL;
    trainer->group = NULL;
}
