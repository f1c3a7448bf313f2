/* SPDX-License-Identifier: Apache-2.0 */
/* A session of one rank on the user's model, with random inputs and learning rate 0. */
#include "tools/gradients/gradients.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "tools/launch/world.h"
#include "tools/output.h"

uint64_t wefti_gradients_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* About normal: the sum of four uniform numbers. */
static double random_normal(gradient_subject_t *subject)
{
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += (double)(wefti_gradients_random(&subject->random) >> 11) * 0x1p-53 - 0.5;
    }
    return sum * 1.732;
}

static weft_status_t compile(gradient_subject_t *subject, const gradients_options_t *options)
{
    weft_compile_params_t params = options->compile->params;
    params.model_path = options->path;
    params.world_size = 1;
    params.optimizer = "sgd";
    params.momentum = params.weight_decay = params.clip_norm = 0;
    params.shard_optimizer = params.decouple = 0;
    params.accumulate = params.global_micro_batches = 0;
    params.wire = NULL;
    return weft_compile(&params, &subject->plan);
}

/* Class indices for labels; other integers are 0 or 1, valid indices of most tables. */
static void fill_element(gradient_subject_t *subject, const weft_binding_t *binding, uint8_t *to)
{
    int64_t whole = (int64_t)(wefti_gradients_random(&subject->random) >> 33);
    whole %=
        binding->role == WEFT_BINDING_ROLE_LABEL && subject->classes > 0 ? subject->classes : 2;
    wefti_put_number(to, binding->desc.dtype, random_normal(subject), (uint64_t)whole);
}

static weft_status_t feed(gradient_subject_t *subject, const weft_binding_t *binding)
{
    size_t elem = weft_dtype_size_bytes(binding->desc.dtype);
    size_t count = (size_t)weft_tensor_elem_count(&binding->desc);
    uint8_t *data = malloc(count * elem + 1);
    if (data == NULL) {
        return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: input '%s'", binding->name);
    }
    for (size_t i = 0; i < count; i++) {
        fill_element(subject, binding, data + i * elem);
    }
    weft_status_t status =
        weft_session_set_input(subject->session, binding->name, data, count * elem);
    free(data);
    return status;
}

static weft_status_t feed_all(gradient_subject_t *subject)
{
    weft_status_t status = WEFT_OK;
    weft_binding_t binding;
    for (size_t i = 0; wefti_next_binding(subject->plan, UINT32_MAX, &i, &binding);) {
        if (binding.role == WEFT_BINDING_ROLE_LOGITS && binding.desc.rank > 1) {
            subject->classes = binding.desc.dims[1]; /* [samples, classes, ..] */
        } else if (binding.role == WEFT_BINDING_ROLE_SCALAR && strcmp(binding.name, "lr") == 0) {
            subject->has_lr = true;
        }
    }
    for (size_t i = 0;
         status >= 0 && wefti_next_binding(subject->plan, BINDINGS_OF_INPUTS, &i, &binding);) {
        status = feed(subject, &binding);
    }
    return status;
}

static weft_status_t open_session(gradient_subject_t *subject, const gradients_options_t *options)
{
    weft_status_t status;
    WEFT_TRY(status, wefti_launched_open(NULL, 0, 1, NULL, NULL, &subject->context), done);
    weft_session_params_t params = {.struct_size = sizeof params,
                                    .context = subject->context,
                                    .plan = subject->plan,
                                    .registry = options->compile->registry};
    WEFT_TRY(status, weft_session_create(&params, &subject->session), done);
    WEFT_TRY(status, feed_all(subject), done);
    if (subject->has_lr) {
        status = weft_session_set_scalar(subject->session, "lr", 0);
    }
done:
    return status;
}

static weft_status_t refuse_loss(const gradient_subject_t *subject)
{
    weft_binding_t binding;
    for (size_t i = 0;
         wefti_next_binding(subject->plan, 1u << WEFT_BINDING_ROLE_LOSS, &i, &binding);) {
        if (binding.desc.dtype == WEFT_DTYPE_F32 && weft_tensor_elem_count(&binding.desc) == 1) {
            return WEFT_OK;
        }
    }
    return wefti_error(WEFT_ERR_UNSUPPORTED, "--gradients requires a scalar loss of type f32");
}

weft_status_t wefti_gradients_open(gradient_subject_t *subject, const gradients_options_t *options)
{
    weft_status_t status;
    subject->random = (options->seed + 1) * 0x9e3779b97f4a7c15u | 1;
    WEFT_TRY(status, compile(subject, options), done);
    WEFT_TRY(status, refuse_loss(subject), done);
    status = open_session(subject, options);
done:
    return status;
}

void wefti_gradients_close(gradient_subject_t *subject)
{
    weft_session_destroy(subject->session);
    weft_context_release(subject->context);
    weft_plan_release(subject->plan);
}
