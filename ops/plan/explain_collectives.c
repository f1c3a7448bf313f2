/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of a step, of its micro-steps and of flush that are no buckets: weights that are
 * gathered, activations, numbers of the whole group. */
#include "ops/plan/explain.h"

#include <inttypes.h>
#include <string.h>

#include "ops/plan/plan_internal.h"

#define SHOWN 40u /* by the text; the others are counted */

/* The next step of a program, of any stream, that runs such a collective. */
typedef struct walk {
    const weft_plan_t *plan;
    uint32_t program, stream, at;
} walk_t;

static int is_init(const wefti_plan_program_t *program)
{
    return strcmp(program->name, "init") == 0; /* weights to everybody, once */
}

static const wefti_plan_collective_t *next(walk_t *walk, const char **out_program,
                                           const char **out_stream)
{
    const weft_plan_t *plan = walk->plan;
    for (; walk->program < plan->program_count; walk->program++, walk->stream = 0) {
        const wefti_plan_program_t *program = &plan->programs[walk->program];
        for (; !is_init(program) && walk->stream < plan->stream_count;
             walk->stream++, walk->at = 0) {
            const wefti_plan_stream_program_t *steps = &program->streams[walk->stream];
            while (walk->at < steps->step_count) {
                const wefti_plan_step_t *step = &steps->steps[walk->at++];
                const wefti_plan_collective_t *collective =
                    step->kind == WEFTI_STEP_COLLECTIVE ? &plan->collectives[step->index] : NULL;
                if (collective && !wefti_plan_reduces_gradients(plan, collective)) {
                    *out_program = program->name;
                    *out_stream = plan->streams[walk->stream].name;
                    return collective;
                }
            }
        }
    }
    return NULL;
}

static uint64_t whole_bytes(const weft_plan_t *plan, const wefti_plan_collective_t *collective)
{
    return plan->buffers[wefti_plan_whole(plan, collective)].size_bytes;
}

/* What one place sends to others is a Broadcast of their group. */
static const char *op_name(const weft_plan_t *plan, const wefti_plan_collective_t *collective)
{
    return weft_collective_name(wefti_plan_sends(plan, collective) ? WEFT_COLLECTIVE_SEND_RECV
                                                                   : collective->op);
}

void wefti_plan_explain_group(wefti_text_t *out, const weft_plan_t *plan,
                              const wefti_plan_collective_t *collective)
{
    if (wefti_plan_sends(plan, collective)) {
        const wefti_axis_t axis = wefti_plan_axis(plan, collective);
        wefti_text_add(out, "  ");
        wefti_text_add_printable(out, axis.name);
        wefti_text_printf(out, " %" PRIu32 " to ", collective->root);
        if (axis.size == 2) {
            wefti_text_printf(out, "%" PRIu32, 1 - collective->root);
        } else {
            wefti_text_add(out, "the others");
        }
        return;
    }
    if (collective->group != 0) {
        wefti_text_add(out, "  along ");
        wefti_text_add_printable(out, wefti_plan_axis(plan, collective).name);
    }
}

static void add_one(wefti_text_t *out, const weft_plan_t *plan,
                    const wefti_plan_collective_t *collective, const char *program,
                    const char *stream)
{
    char bytes[32];
    wefti_text_printf(out, "  %-12s %-13s %10s  %s  ", program, op_name(plan, collective),
                      wefti_format_bytes(whole_bytes(plan, collective), bytes),
                      weft_dtype_name(collective->dtype));
    wefti_text_add_printable(out, collective->name);
    wefti_plan_explain_group(out, plan, collective);
    wefti_text_add(out, "  algorithm ");
    wefti_text_add_printable(out, collective->algorithms[0].name);
    wefti_text_add(out, "  stream ");
    wefti_text_add_printable(out, stream);
    wefti_text_add(out, "\n");
    if (collective->reason && collective->reason[0]) {
        wefti_text_add(out, "               why: ");
        wefti_text_add_printable(out, collective->reason);
        wefti_text_add(out, "\n");
    }
}

void wefti_plan_explain_collectives(const weft_plan_t *plan, wefti_text_t *out)
{
    const wefti_plan_collective_t *collective;
    const char *program, *stream;
    walk_t walk = {.plan = plan};
    uint32_t count = 0;
    while ((collective = next(&walk, &program, &stream)) != NULL) {
        if (count == 0) {
            wefti_text_add(out, plan->kind == WEFT_PLAN_KIND_TRAINING ? "\nother collectives\n"
                                                                      : "\ncollectives\n");
        }
        if (count++ < SHOWN) {
            add_one(out, plan, collective, program, stream);
        }
    }
    if (count > SHOWN) {
        wefti_text_printf(out, "  and %" PRIu32 " more\n", count - SHOWN);
    }
}

void wefti_plan_explain_collectives_json(const weft_plan_t *plan, wefti_json_t *json)
{
    const wefti_plan_collective_t *collective;
    const char *program, *stream;
    walk_t walk = {.plan = plan};
    wefti_json_begin_array(json, "collectives");
    while ((collective = next(&walk, &program, &stream)) != NULL) {
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "name", collective->name);
        wefti_json_string(json, "program", program);
        wefti_json_string(json, "stream", stream);
        wefti_json_string(json, "group", wefti_plan_axis(plan, collective).name);
        wefti_json_string(json, "op", op_name(plan, collective));
        wefti_json_string(json, "reduction", weft_reduction_name(collective->reduction));
        wefti_json_string(json, "dtype", weft_dtype_name(collective->dtype));
        wefti_json_int(json, "elem_count", (int64_t)collective->elem_count);
        wefti_json_int(json, "bytes", (int64_t)whole_bytes(plan, collective));
        wefti_json_int(json, "root", collective->root);
        wefti_json_string(json, "source", plan->buffers[collective->source].name);
        wefti_json_string(json, "buffer", plan->buffers[collective->buffer].name);
        wefti_json_string(json, "algorithm", collective->algorithms[0].name);
        wefti_json_int(json, "predicted_ps", (int64_t)collective->algorithms[0].predicted_ps);
        wefti_json_string(json, "reason", collective->reason);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}
