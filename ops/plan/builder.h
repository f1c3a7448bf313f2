/* SPDX-License-Identifier: Apache-2.0 */
/* A plan that is being made: builder.c adds to it, builder_finish.c places buffers and checks it. */
#ifndef WEFT_OPS_PLAN_BUILDER_H
#define WEFT_OPS_PLAN_BUILDER_H

#include <weft/plan_builder.h>

#include "ops/plan/plan_internal.h"

/* An array of the plan, which grows in the builder. */
typedef struct wefti_builder_steps {
    wefti_plan_step_t *steps;
    size_t capacity;
    uint32_t count;
} wefti_builder_steps_t;

typedef struct wefti_builder_program {
    const char *name;
    wefti_builder_steps_t streams[WEFTI_PLAN_MAX_STREAMS];
} wefti_builder_program_t;

/* What the plan does not keep of a buffer. */
typedef struct wefti_builder_buffer {
    const void *data;
    uint32_t reuses; /* 1 + a buffer */
    bool is_placed;
} wefti_builder_buffer_t;

struct weft_plan_builder {
    const weft_registry_t *registry;
    weft_plan_t *plan; /* names and operands are in its arena; NULL: finished */
    wefti_plan_buffer_t *buffers;
    wefti_builder_buffer_t *sources; /* by buffer */
    wefti_plan_kernel_t *kernels;
    wefti_plan_collective_t *collectives;
    wefti_plan_binding_t *bindings;
    size_t buffer_capacity, source_capacity, kernel_capacity, collective_capacity, binding_capacity;
    wefti_plan_stream_t streams[WEFTI_PLAN_MAX_STREAMS];
    wefti_builder_program_t *programs[WEFTI_PLAN_MAX_PROGRAMS];
};

/* Fills in algorithms (NULL: all that can) of a collective. */
weft_status_t wefti_builder_algorithms(const weft_plan_builder_t *builder, const char *list,
                                       wefti_plan_collective_t *collective);
/* Room for one more buffer, which begins as params say. */
weft_status_t wefti_builder_add(weft_plan_builder_t *builder,
                                const weft_plan_buffer_params_t *params,
                                const wefti_plan_buffer_t *buffer, uint32_t *out);
weft_status_t wefti_builder_append(weft_plan_builder_t *builder, const char *program,
                                   uint32_t stream, wefti_step_kind_t kind, uint32_t index);
/* Room for one more collective. */
weft_status_t wefti_builder_add_collective(weft_plan_builder_t *builder,
                                           const wefti_plan_collective_t *collective,
                                           uint32_t *out);

#endif
