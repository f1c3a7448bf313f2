/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resize and Upsample with gradients. Every dimension has a table: a result is the sum of one, two or
 * four elements with weights; with antialias of more, as many as a result covers. The gradient adds
 * to dX in the order of dY: the same bits in every run.
 */
#include "ops/compute/own_kernels.h"

#include <math.h>
#include <string.h>

#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"

#define OUTSIDE (-1)
#define MOST_REACH 0x1p24

typedef struct tap {
    int64_t place; /* times the stride; OUTSIDE: the result is extrapolated */
    float weight;
} tap_t;

typedef struct {
    uint32_t rank, taps[WEFT_MAX_DIMS];
    int64_t size[WEFT_MAX_DIMS], first[WEFT_MAX_DIMS]; /* of Y; first tap of a dimension */
    int64_t x_count, y_count;
    size_t elem_bytes;
    bool copies; /* one element each */
    float extrapolation;
    tap_t table[];
} state_t;

/* One dimension. */
typedef struct side {
    int64_t in, out, stride;
    double scale, roi[2];
    uint32_t taps;
    int64_t before; /* taps below the place */
    double spread;  /* elements that the weights of one are for: above 1 with antialias */
} side_t;

typedef struct form {
    char mode; /* the first letter: nearest, linear, cubic */
    const char *coordinates, *rounding;
    double cubic;
    bool inside, crops, antialias;
} form_t;

static double place_in(const form_t *form, int64_t i, const side_t *side)
{
    const double scale = side->scale;
    const int64_t in = side->in, out = side->out;
    if (form->crops) {
        const double from = side->roi[0], to = side->roi[1], last = (double)(in - 1);
        return out > 1 ? from * last + (double)i * (to - from) * last / (double)(out - 1)
                       : 0.5 * (from + to) * last;
    }
    if (strcmp(form->coordinates, "align_corners") == 0) {
        double last = scale * (double)in - 1.0; /* as ONNX defines it: not rounded to elements */
        return last != 0.0 ? (double)i * (double)(in - 1) / last : 0.0;
    }
    if (strcmp(form->coordinates, "asymmetric") == 0) {
        return (double)i / scale;
    }
    if (strcmp(form->coordinates, "pytorch_half_pixel") == 0 && out == 1) {
        return 0.0;
    }
    if (strcmp(form->coordinates, "tf_half_pixel_for_nn") == 0) {
        return ((double)i + 0.5) / scale;
    }
    double place = ((double)i + 0.5) / scale - 0.5;
    if (strcmp(form->coordinates, "half_pixel_symmetric") == 0) {
        double adjusted = (double)out / (scale * (double)in);
        place += (double)in / 2.0 * (1.0 - adjusted);
    }
    return place;
}

static double nearest(const char *rounding, double place)
{
    return strcmp(rounding, "floor") == 0               ? floor(place)
           : strcmp(rounding, "ceil") == 0              ? ceil(place)
           : strcmp(rounding, "round_prefer_ceil") == 0 ? floor(place + 0.5)
                                                        : ceil(place - 0.5);
}

/* The weight of an element in a distance from the place. */
static double weight_of(const form_t *form, double distance)
{
    const double a = form->cubic, t = fabs(distance);
    if (form->mode == 'l') {
        return t < 1.0 ? 1.0 - t : 0.0;
    }
    return t <= 1.0  ? ((a + 2.0) * t - (a + 3.0)) * t * t + 1.0
           : t < 2.0 ? ((a * t - 5.0 * a) * t + 8.0 * a) * t - 4.0 * a
                     : 0.0;
}

static void fill(const form_t *form, double place, const side_t *side, double *weights, tap_t *taps)
{
    const bool normalized = form->inside || side->spread > 1.0;
    int64_t from = (int64_t)floor(place) - side->before;
    double total = 0.0;
    if (form->crops && (place < 0.0 || place > (double)(side->in - 1))) {
        taps[0].place = OUTSIDE;
        return;
    }
    if (form->mode == 'n') {
        from = (int64_t)nearest(form->rounding, place);
        weights[0] = 1.0;
    }
    for (uint32_t k = 0; k < side->taps; k++) {
        const int64_t at = from + k;
        const bool outside = at < 0 || at >= side->in;
        if (form->mode != 'n') {
            weights[k] = weight_of(form, ((double)at - place) / side->spread);
            weights[k] = form->inside && outside ? 0.0 : weights[k];
        }
        total += weights[k];
        taps[k].place = (at < 0 ? 0 : at >= side->in ? side->in - 1 : at) * side->stride;
    }
    for (uint32_t k = 0; k < side->taps; k++) {
        taps[k].weight = (float)(normalized && total != 0.0 ? weights[k] / total : weights[k]);
    }
}

/* Calls for every element of Y: one by one, in order. */
static void run_elements(const state_t *s, const char *x, float *dx, const float *dy, char *y)
{
    int64_t index[WEFT_MAX_DIMS] = {0};
    uint64_t combinations = 1;
    for (uint32_t d = 0; d < s->rank; d++) {
        combinations *= s->taps[d];
    }
    for (int64_t i = 0; i < s->y_count; i++) {
        double sum = 0.0;
        bool outside = false;
        for (uint64_t c = 0; c < combinations && !outside; c++) {
            int64_t place = 0;
            float weight = 1.0f;
            uint64_t rest = c;
            for (uint32_t d = 0; d < s->rank; d++) {
                const tap_t *taps = &s->table[s->first[d] + index[d] * s->taps[d]];
                place += taps[rest % s->taps[d]].place;
                weight *= taps[rest % s->taps[d]].weight;
                rest /= s->taps[d];
                outside = outside || taps->place == OUTSIDE;
            }
            if (outside) {
                sum = (double)s->extrapolation;
            } else if (dx != NULL) {
                dx[place] += weight * dy[i];
            } else if (s->copies) {
                memcpy(y + (size_t)i * s->elem_bytes, x + (size_t)place * s->elem_bytes,
                       s->elem_bytes);
            } else {
                sum += (double)weight * (double)((const float *)x)[place];
            }
        }
        if (dx == NULL && !s->copies) {
            ((float *)y)[i] = (float)sum;
        }
        for (uint32_t d = s->rank; d-- > 0;) {
            if (++index[d] < s->size[d]) {
                break;
            }
            index[d] = 0;
        }
    }
}

static weft_status_t run(const weft_kernel_call_t *call)
{
    run_elements(call->state, call->inputs[0], NULL, NULL, call->outputs[0]);
    return WEFT_OK;
}

static weft_status_t run_grad(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    memset(call->outputs[0], 0, (size_t)s->x_count * sizeof(float));
    run_elements(s, NULL, call->outputs[0], call->inputs[0], NULL);
    return WEFT_OK;
}

static weft_status_t read_form(const weft_node_desc_t *node, bool old, form_t *form)
{
    static const char *const known[] = {
        "half_pixel",           "pytorch_half_pixel",   "align_corners",     "asymmetric",
        "half_pixel_symmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize"};
    const char *usual = old ? "asymmetric" : "half_pixel";
    bool found = false;
    form->mode = weft_node_attr_string(node, "mode", "nearest")[0];
    form->coordinates = weft_node_attr_string(node, "coordinate_transformation_mode", usual);
    form->rounding =
        weft_node_attr_string(node, "nearest_mode", old ? "floor" : "round_prefer_floor");
    form->cubic = (double)weft_node_attr_float(node, "cubic_coeff_a", -0.75f);
    form->inside = weft_node_attr_int(node, "exclude_outside", 0) != 0;
    form->antialias = weft_node_attr_int(node, "antialias", 0) != 0 && form->mode != 'n';
    form->crops = strcmp(form->coordinates, "tf_crop_and_resize") == 0;
    for (size_t i = 0; i < WEFTI_COUNT(known); i++) {
        found = found || strcmp(known[i], form->coordinates) == 0;
    }
    if (!found || (form->mode != 'n' && form->mode != 'l' && form->mode != 'c')) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: unsupported mode or coordinates '%s'",
                           node->op, form->coordinates);
    }
    return WEFT_OK;
}

/* A dimension whose elements all stay. */
static bool stays(const side_t *side, const form_t *form)
{
    return side->in == side->out && side->scale == 1.0 &&
           !(form->crops && (side->roi[0] != 0.0 || side->roi[1] != 1.0));
}

/* The part of X that is resized: starts of all axes, then ends, relative to the last element. */
static weft_status_t read_roi(const weft_node_desc_t *node, uint32_t x_input, side_t *sides)
{
    const uint32_t rank = node->inputs[x_input].rank;
    const weft_tensor_desc_t *roi = wefti_infer_input(node, x_input + 1);
    const weft_attr_t *axes = weft_node_attr(node, "axes");
    const uint32_t count = axes != NULL ? (uint32_t)axes->count : rank;
    const float *given = roi == NULL ? NULL : roi->data;
    if (given == NULL || roi->dtype != WEFT_DTYPE_F32 ||
        weft_tensor_elem_count(roi) != 2 * (int64_t)count) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: roi must be a constant of f32 with %u elements", node->op,
                           2 * count);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t d = i;
        WEFT_RETURN_IF_ERROR(axes == NULL ? WEFT_OK
                                          : wefti_infer_axis(axes->ints[i], rank, "axes", &d));
        sides[d].roi[0] = (double)given[i];
        sides[d].roi[1] = (double)given[count + i];
        if (!(fabs(sides[d].roi[0]) < 1e6 && fabs(sides[d].roi[1]) < 1e6)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: roi: invalid element", node->op);
        }
    }
    return WEFT_OK;
}

static weft_status_t find_sides(const weft_node_desc_t *node, uint32_t x_input, const form_t *form,
                                const wefti_resize_t *resize, side_t *sides)
{
    const weft_tensor_desc_t *x = &node->inputs[x_input];
    int64_t strides[WEFT_MAX_DIMS];
    wefti_strides(x, strides);
    for (uint32_t d = 0; d < x->rank; d++) {
        sides[d] = (side_t){.in = x->dims[d],
                            .out = resize->size[d],
                            .stride = strides[d],
                            .scale = resize->scale[d],
                            .roi = {0.0, 1.0},
                            .spread = 1.0};
    }
    WEFT_RETURN_IF_ERROR(form->crops ? read_roi(node, x_input, sides) : WEFT_OK);
    for (uint32_t d = 0; d < x->rank; d++) {
        side_t *side = &sides[d];
        double reach = form->mode == 'l' ? 1.0 : 2.0; /* elements to each side */
        if (form->mode == 'n' || stays(side, form)) {
            side->taps = 1;
            continue;
        }
        if (form->antialias && side->scale < 1.0) {
            side->spread = 1.0 / side->scale;
            reach = ceil(reach * side->spread);
        }
        if (!(reach < MOST_REACH)) {
            return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: dimension %u: a scale of %g", node->op, d,
                               side->scale);
        }
        side->taps = 2 * (uint32_t)reach;
        side->before = (int64_t)reach - 1;
    }
    return WEFT_OK;
}

/* x, y: of the forward operator; X is input x_input. */
static weft_status_t make(const weft_node_desc_t *node, uint32_t x_input,
                          const weft_tensor_desc_t *x, const weft_tensor_desc_t *y,
                          void **out_state, size_t *out_scratch_bytes)
{
    wefti_resize_t resize;
    form_t form;
    const bool old =
        strncmp(node->op, "Upsample", 8) == 0 || (node->domain[0] == '\0' && node->version < 11);
    WEFT_RETURN_IF_ERROR(wefti_resize_resolve(node, x_input, &resize));
    WEFT_RETURN_IF_ERROR(read_form(node, old, &form));
    bool fits = resize.known && x->dtype == y->dtype && x->rank == y->rank &&
                x->layout == WEFT_LAYOUT_PLAIN && y->layout == WEFT_LAYOUT_PLAIN;
    for (uint32_t d = 0; d < x->rank && fits; d++) {
        fits = y->dims[d] == resize.size[d] && (x->dims[d] > 0 || y->dims[d] == 0);
    }
    if (!fits || (x->dtype != WEFT_DTYPE_F32 && (form.mode != 'n' || form.crops))) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: scales must be constant, tensors plain, and f32 unless nearest",
                           node->op);
    }
    side_t sides[WEFT_MAX_DIMS];
    WEFT_RETURN_IF_ERROR(find_sides(node, x_input, &form, &resize, sides));
    size_t table_bytes, most = 1, count = 0;
    for (uint32_t d = 0; d < x->rank; d++) {
        size_t taps;
        most = sides[d].taps > most ? sides[d].taps : most;
        if (!wefti_mul_size((size_t)sides[d].out, sides[d].taps, &taps) ||
            !wefti_add_size(count, taps, &count)) {
            return WEFT_ERR_NO_MEMORY;
        }
    }
    state_t *state =
        wefti_mul_size(count, sizeof(tap_t), &table_bytes) && table_bytes < SIZE_MAX / 2
            ? wefti_state_alloc(sizeof(*state) + table_bytes)
            : NULL;
    double *weights = state == NULL ? NULL : wefti_state_alloc(most * sizeof(*weights));
    if (weights == NULL) {
        wefti_state_free(state);
        return WEFT_ERR_NO_MEMORY;
    }
    state->rank = x->rank;
    state->x_count = weft_tensor_elem_count(x);
    state->y_count = weft_tensor_elem_count(y);
    state->elem_bytes = weft_dtype_size_bytes(x->dtype);
    state->copies = form.mode == 'n' && !form.crops;
    state->extrapolation = weft_node_attr_float(node, "extrapolation_value", 0.0f);
    count = 0;
    for (uint32_t d = 0; d < x->rank; d++) {
        const side_t *side = &sides[d];
        form_t of_dim = form;
        const bool same = stays(side, &form);
        of_dim.mode = same ? 'n' : form.mode;
        state->taps[d] = side->taps;
        state->size[d] = side->out;
        state->first[d] = (int64_t)count;
        for (int64_t i = 0; i < side->out; i++, count += side->taps) {
            double place = same ? (double)i : place_in(&form, i, side);
            fill(&of_dim, place, side, weights, &state->table[count]);
        }
    }
    wefti_state_free(weights);
    *out_state = state;
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             void **out_state, size_t *out_scratch_bytes)
{
    (void)env;
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_infer_input(node, 0), "input", 0));
    WEFT_RETURN_IF_ERROR(wefti_need_known(wefti_node_output(node, 0), "output", 0));
    return make(node, 0, &node->inputs[0], &node->outputs[0], out_state, out_scratch_bytes);
}

static weft_status_t prepare_grad(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    (void)env;
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 0));
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 1));
    WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    return make(node, 1, &node->inputs[1], &node->inputs[0], out_state, out_scratch_bytes);
}

static const weft_kernel_t kernels[] = {
    WEFTI_KERNEL_VALUE("", "Resize", prepare, run),
    WEFTI_KERNEL_VALUE("weft", "ResizeGrad", prepare_grad, run_grad),
    WEFTI_KERNEL_VALUE("", "Upsample", prepare, run),
    WEFTI_KERNEL_VALUE("weft", "UpsampleGrad", prepare_grad, run_grad),
};

wefti_kernel_family_t wefti_kernels_resize(void)
{
    return (wefti_kernel_family_t){kernels, WEFTI_COUNT(kernels)};
}
