/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parameters: decides which initializers are trained.
 *
 * Matches floating-point initializers. The file's verdict (graph/onnx/parameters.c) holds unless a
 * pattern of train or freeze matches the name. Initializers that are not trained become constants,
 * so that fold evaluates what depends on nothing else. A model that contains gradients states by
 * them what it trains.
 */
#include "fusion/passes/passes.h"

#include <string.h>

#include "fusion/patterns.h"
#include "runtime/base/error.h"

static void decide(wefti_parameter_t *parameter, const wefti_patterns_t *train,
                   const wefti_patterns_t *freeze)
{
    bool trains = wefti_patterns_match(train, parameter->name, NULL);
    bool freezes = wefti_patterns_match(freeze, parameter->name, NULL);
    if (trains || freezes) {
        parameter->trained = trains;
        parameter->guess = false;
        parameter->why = trains ? "matches train" : "matches freeze";
    }
}

weft_status_t wefti_parameters_decide(wefti_parameter_t *parameters, uint32_t count,
                                      const char *train, const char *freeze,
                                      const weft_allocator_t *allocator)
{
    static const char noun[] = "floating-point initializer of the model";
    weft_status_t status;
    wefti_arena_t arena;
    wefti_patterns_t trains, freezes;
    wefti_arena_init(&arena, allocator, 0);
    WEFT_TRY(status, wefti_patterns_read(train, "train", &arena, &trains), done);
    WEFT_TRY(status, wefti_patterns_read(freeze, "freeze", &arena, &freezes), done);
    for (uint32_t i = 0; i < count; i++) {
        if (parameters[i].value != WEFTI_NONE && !parameters[i].running) {
            decide(&parameters[i], &trains, &freezes);
        }
    }
    WEFT_TRY(status, wefti_patterns_check_used(&trains, noun), done);
    WEFT_TRY(status, wefti_patterns_check_used(&freezes, noun), done);
done:
    wefti_arena_deinit(&arena);
    return status;
}

/* The pass given-gradients has decided. */
static weft_status_t use_given(wefti_graph_t *graph, const char *train, const char *freeze)
{
    for (uint32_t i = 0; i < graph->parameter_count; i++) {
        wefti_parameter_t *parameter = &graph->parameters[i];
        const bool updated = parameter->value != WEFTI_NONE &&
                             graph->values[parameter->value].kind == WEFTI_VALUE_PARAM;
        if (parameter->value != WEFTI_NONE && !(updated && parameter->running)) {
            parameter->trained = updated;
            parameter->guess = false;
            parameter->fixed_norms = 0; /* as the gradients of the model have it */
            parameter->why = parameter->trained ? "the model contains its gradient"
                                                : "the model does not contain its gradient";
        }
    }
    return train == NULL && freeze == NULL
               ? WEFT_OK
               : wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, train != NULL ? "train" : "freeze",
                                   "must not be set: the model contains gradients, which state "
                                   "what is trained");
}

weft_status_t wefti_pass_parameters(wefti_graph_t *graph, const char *train, const char *freeze)
{
    if (wefti_graph_has_gradients(graph)) {
        return use_given(graph, train, freeze);
    }
    WEFT_RETURN_IF_ERROR(wefti_parameters_decide(graph->parameters, graph->parameter_count, train,
                                                 freeze, graph->arena.allocator));
    for (uint32_t i = 0; i < graph->parameter_count; i++) {
        const wefti_parameter_t *parameter = &graph->parameters[i];
        if (parameter->value != WEFTI_NONE && !parameter->trained && !parameter->running) {
            graph->values[parameter->value].kind = WEFTI_VALUE_CONST;
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_parameters_of_plan(const wefti_parameter_t *parameters, uint32_t count,
                                       wefti_arena_t *arena, wefti_plan_parameter_t **out)
{
    wefti_plan_parameter_t *list = wefti_arena_array(arena, count, sizeof *list);
    WEFT_RETURN_IF_NO_MEMORY(list);
    for (uint32_t i = 0; i < count; i++) {
        const wefti_parameter_t *from = &parameters[i];
        list[i] = (wefti_plan_parameter_t){.name = wefti_arena_strdup(arena, from->name),
                                           .why = wefti_arena_strdup(arena, from->why),
                                           .dtype = from->type.dtype,
                                           .rank = from->type.rank,
                                           .trained = from->trained,
                                           .guess = from->guess};
        memcpy(list[i].dims, from->type.dims, sizeof list[i].dims);
        WEFT_RETURN_IF_NO_MEMORY(list[i].name && list[i].why);
    }
    *out = list;
    return WEFT_OK;
}

weft_status_t wefti_apply_parameters(wefti_compiler_t *c)
{
    return wefti_pass_parameters(c->graph, c->params.train, c->params.freeze);
}
