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

#include <fnmatch.h>
#include <string.h>

#include "runtime/base/error.h"

typedef struct patterns {
    const char *field;
    char **list;
    bool *used; /* by pattern: it matches a name */
    uint32_t count;
} patterns_t;

/* A name that contains special characters also matches itself. */
static bool matches(const patterns_t *patterns, const char *name)
{
    bool any = false;
    for (uint32_t i = 0; i < patterns->count; i++) {
        const char *pattern = patterns->list[i];
        bool match = strcmp(pattern, name) == 0 || fnmatch(pattern, name, 0) == 0;
        patterns->used[i] = patterns->used[i] || match;
        any = any || match;
    }
    return any;
}

static weft_status_t split(const char *text, const char *field, wefti_arena_t *arena,
                           patterns_t *out)
{
    char *rest = text != NULL ? wefti_arena_strdup(arena, text) : NULL;
    size_t most = text != NULL ? strlen(text) + 1 : 1;
    *out = (patterns_t){.field = field,
                        .list = wefti_arena_array(arena, most, sizeof *out->list),
                        .used = wefti_arena_array(arena, most, sizeof *out->used)};
    WEFT_RETURN_IF_NO_MEMORY(out->list && out->used && (text == NULL || rest != NULL));
    for (char *pattern; (pattern = strsep(&rest, ",")) != NULL;) {
        if (pattern[0] == '\0') {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, field, "empty pattern in '%s'",
                                     text);
        }
        out->list[out->count++] = pattern;
    }
    return WEFT_OK;
}

static weft_status_t check_used(const patterns_t *patterns)
{
    for (uint32_t i = 0; i < patterns->count; i++) {
        if (!patterns->used[i]) {
            return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, patterns->field,
                                     "'%s' matches no floating-point initializer of the model",
                                     patterns->list[i]);
        }
    }
    return WEFT_OK;
}

static void decide(wefti_parameter_t *parameter, const patterns_t *train, const patterns_t *freeze)
{
    bool trains = matches(train, parameter->name), freezes = matches(freeze, parameter->name);
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
    weft_status_t status;
    wefti_arena_t arena;
    patterns_t trains, freezes;
    wefti_arena_init(&arena, allocator, 0);
    WEFT_TRY(status, split(train, "train", &arena, &trains), done);
    WEFT_TRY(status, split(freeze, "freeze", &arena, &freezes), done);
    for (uint32_t i = 0; i < count; i++) {
        if (parameters[i].value != WEFTI_NONE && !parameters[i].running) {
            decide(&parameters[i], &trains, &freezes);
        }
    }
    WEFT_TRY(status, check_used(&trains), done);
    WEFT_TRY(status, check_used(&freezes), done);
done:
    wefti_arena_deinit(&arena);
    return status;
}

/* The pass given-gradients has decided. */
static weft_status_t use_given(wefti_graph_t *graph, const char *train, const char *freeze)
{
    for (uint32_t i = 0; i < graph->parameter_count; i++) {
        wefti_parameter_t *parameter = &graph->parameters[i];
        if (parameter->value != WEFTI_NONE) {
            parameter->trained = graph->values[parameter->value].kind == WEFTI_VALUE_PARAM;
            parameter->guess = false;
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
