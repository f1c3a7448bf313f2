/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resize and Upsample with gradients. Every dimension has a table: a result is the sum of up to four
 * elements with weights. The gradient adds to dX in the order of dY: the same bits in every run.
 */
#include "ops/compute/own_kernels.h"

#include <math.h>
#include <string.h>

#include "ops/compute/support.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"

#define MOST_TAPS 4

typedef struct tap {
    int64_t place[MOST_TAPS]; /* times the stride */
    float weight[MOST_TAPS];
} tap_t;

typedef struct {
    uint32_t rank, taps[WEFT_MAX_DIMS];
    int64_t size[WEFT_MAX_DIMS], first[WEFT_MAX_DIMS]; /* of Y; first tap of a dimension */
    int64_t x_count, y_count;
    size_t elem_bytes;
    bool copies; /* one element each */
    tap_t table[];
} state_t;

typedef struct form {
    char mode; /* the first letter: nearest, linear, cubic */
    const char *coordinates, *rounding;
    double cubic;
    bool inside;
} form_t;

static double place_in(const form_t *form, int64_t i, double scale, int64_t in, int64_t out)
{
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

/* The weights of the elements at floor(place) - 1 and the three after it. */
static void cubic_weights(double a, double t, double *w)
{
    double s = t + 1.0, u = 1.0 - t, v = 2.0 - t;
    w[0] = ((a * s - 5.0 * a) * s + 8.0 * a) * s - 4.0 * a;
    w[1] = ((a + 2.0) * t - (a + 3.0)) * t * t + 1.0;
    w[2] = ((a + 2.0) * u - (a + 3.0)) * u * u + 1.0;
    w[3] = ((a * v - 5.0 * a) * v + 8.0 * a) * v - 4.0 * a;
}

static void fill(const form_t *form, double place, int64_t in, int64_t stride, tap_t *tap)
{
    double weights[MOST_TAPS] = {1.0}, below = floor(place), total = 0.0;
    int64_t from = (int64_t)below;
    uint32_t count = 1;
    if (form->mode == 'n') {
        from = (int64_t)nearest(form->rounding, place);
    } else if (form->mode == 'l') {
        count = 2;
        weights[1] = place - below;
        weights[0] = 1.0 - weights[1];
    } else {
        count = 4;
        from--;
        cubic_weights(form->cubic, place - below, weights);
    }
    for (uint32_t k = 0; k < count; k++) {
        int64_t at = from + k;
        bool outside = at < 0 || at >= in;
        weights[k] = form->inside && form->mode != 'n' && outside ? 0.0 : weights[k];
        total += weights[k];
        tap->place[k] = (at < 0 ? 0 : at >= in ? in - 1 : at) * stride;
    }
    for (uint32_t k = 0; k < count; k++) {
        tap->weight[k] = (float)(form->inside && total != 0.0 ? weights[k] / total : weights[k]);
    }
}

/* Calls for every element of Y: one by one, in order. */
static void run_elements(const state_t *s, const char *x, float *dx, const float *dy, char *y)
{
    int64_t index[WEFT_MAX_DIMS] = {0};
    uint32_t combinations = 1;
    for (uint32_t d = 0; d < s->rank; d++) {
        combinations *= s->taps[d];
    }
    for (int64_t i = 0; i < s->y_count; i++) {
        double sum = 0.0;
        for (uint32_t c = 0; c < combinations; c++) {
            int64_t place = 0;
            float weight = 1.0f;
            uint32_t rest = c;
            for (uint32_t d = 0; d < s->rank; d++) {
                const tap_t *tap = &s->table[s->first[d] + index[d]];
                place += tap->place[rest % s->taps[d]];
                weight *= tap->weight[rest % s->taps[d]];
                rest /= s->taps[d];
            }
            if (dx != NULL) {
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
    static const char *const known[] = {"half_pixel",           "pytorch_half_pixel",
                                        "align_corners",        "asymmetric",
                                        "half_pixel_symmetric", "tf_half_pixel_for_nn"};
    const char *usual = old ? "asymmetric" : "half_pixel";
    bool found = false;
    form->mode = weft_node_attr_string(node, "mode", "nearest")[0];
    form->coordinates = weft_node_attr_string(node, "coordinate_transformation_mode", usual);
    form->rounding =
        weft_node_attr_string(node, "nearest_mode", old ? "floor" : "round_prefer_floor");
    form->cubic = (double)weft_node_attr_float(node, "cubic_coeff_a", -0.75f);
    form->inside = weft_node_attr_int(node, "exclude_outside", 0) != 0;
    for (size_t i = 0; i < WEFTI_COUNT(known); i++) {
        found = found || strcmp(known[i], form->coordinates) == 0;
    }
    if (!found || (form->mode != 'n' && form->mode != 'l' && form->mode != 'c')) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: unsupported mode or coordinates '%s'",
                           node->op, form->coordinates);
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
    int64_t strides[WEFT_MAX_DIMS], rows = 0;
    const bool old =
        strncmp(node->op, "Upsample", 8) == 0 || (node->domain[0] == '\0' && node->version < 11);
    WEFT_RETURN_IF_ERROR(wefti_resize_resolve(node, x_input, &resize));
    WEFT_RETURN_IF_ERROR(read_form(node, old, &form));
    bool fits = resize.known && x->dtype == y->dtype && x->rank == y->rank &&
                x->layout == WEFT_LAYOUT_PLAIN && y->layout == WEFT_LAYOUT_PLAIN;
    for (uint32_t d = 0; d < x->rank && fits; d++) {
        fits = y->dims[d] == resize.size[d] && (x->dims[d] > 0 || y->dims[d] == 0);
        rows += y->dims[d];
    }
    if (!fits || (x->dtype != WEFT_DTYPE_F32 && form.mode != 'n')) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: scales must be constant, tensors plain, and f32 unless nearest",
                           node->op);
    }
    size_t table_bytes;
    state_t *state = wefti_mul_size((size_t)rows, sizeof(tap_t), &table_bytes)
                         ? wefti_state_alloc(sizeof(*state) + table_bytes)
                         : NULL;
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    wefti_strides(x, strides);
    state->rank = x->rank;
    state->x_count = weft_tensor_elem_count(x);
    state->y_count = weft_tensor_elem_count(y);
    state->elem_bytes = weft_dtype_size_bytes(x->dtype);
    state->copies = form.mode == 'n';
    rows = 0;
    for (uint32_t d = 0; d < x->rank; d++) {
        form_t of_dim = form;
        of_dim.mode = x->dims[d] == y->dims[d] && resize.scale[d] == 1.0 ? 'n' : form.mode;
        state->taps[d] = of_dim.mode == 'n' ? 1 : of_dim.mode == 'l' ? 2 : 4;
        state->size[d] = y->dims[d];
        state->first[d] = rows;
        for (int64_t i = 0; i < y->dims[d]; i++) {
            double place = of_dim.mode == form.mode && resize.scale[d] != 1.0
                               ? place_in(&form, i, resize.scale[d], x->dims[d], y->dims[d])
                               : (double)i;
            fill(&of_dim, place, x->dims[d], strides[d], &state->table[rows++]);
        }
    }
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
