/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss and their gradients. Scores are
 * [N, C, inner...], labels [N, inner...].
 * Losses are added up in double, in order. A label outside of [0, C) that is not ignore_index is an
 * error of the call.
 */
#include "ops/compute/own_kernels.h"

#include <inttypes.h>
#include <string.h>

#include "ops/compute/softmax_row.h"
#include "ops/op_infer.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

typedef enum { REDUCE_MEAN, REDUCE_SUM, REDUCE_NONE } reduce_t;

typedef struct {
    int64_t n, c, inner;
    reduce_t reduce;
    bool ignores, wide_labels;
    int64_t ignored;
    weft_isa_t isa;
    bool has_weights, has_log_prob;
    float smoothing; /* E of torch.nn.CrossEntropyLoss */
    bool given;      /* the scores are log probabilities */
    uint32_t threads;
} state_t;

static int64_t label_at(const state_t *s, const void *labels, int64_t index)
{
    return s->wide_labels ? ((const int64_t *)labels)[index] : ((const int32_t *)labels)[index];
}

/* Nothing may be read with a label before this: it comes from a data set. */
static weft_status_t check_labels(const state_t *s, const void *labels)
{
    for (int64_t i = 0; i < s->n * s->inner; i++) {
        int64_t label = label_at(s, labels, i);
        if ((label < 0 || label >= s->c) && !(s->ignores && label == s->ignored)) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "label %" PRId64 " at position %" PRId64 " is outside [0, %" PRId64
                               ")",
                               label, i, s->c);
        }
    }
    return WEFT_OK;
}

static float weight_of(const state_t *s, const float *weights, int64_t label)
{
    return s->ignores && label == s->ignored ? 0.0f : weights == NULL ? 1.0f : weights[label];
}

static double total_weight(const state_t *s, const void *labels, const float *weights)
{
    double total = 0.0;
    for (int64_t i = 0; i < s->n * s->inner; i++) {
        total += weight_of(s, weights, label_at(s, labels, i));
    }
    return total;
}

/* log_prob: [N, C, inner...]; row is scratch of C floats. */
WEFTI_INLINE void log_prob_of_body(const state_t *s, int64_t rows, const float *x, float *log_prob,
                                   float *row)
{
    for (int64_t n = 0; n < rows; n++, x += s->c * s->inner, log_prob += s->c * s->inner) {
        if (s->inner == 1) {
            wefti_log_softmax_row(x, log_prob, NULL, s->c, true);
            continue;
        }
        for (int64_t i = 0; i < s->inner; i++) {
            for (int64_t k = 0; k < s->c; k++) {
                row[k] = x[k * s->inner + i];
            }
            wefti_log_softmax_row(row, row, NULL, s->c, true);
            for (int64_t k = 0; k < s->c; k++) {
                log_prob[k * s->inner + i] = row[k];
            }
        }
    }
}
WEFTI_CLONES(log_prob_of,
             (const state_t *s, int64_t rows, const float *x, float *log_prob, float *row),
             (s, rows, x, log_prob, row));

/* Some rows; scratch: a row of each thread. */
typedef struct {
    const state_t *s;
    const float *x;
    float *log_prob, *scratch;
} log_prob_t;

static void log_prob_range(const void *job, wefti_range_t range)
{
    const log_prob_t *l = job;
    const int64_t at = range.from * l->s->c * l->s->inner;
    log_prob_of[l->s->isa](l->s, range.to - range.from, l->x + at, l->log_prob + at,
                           l->scratch + range.part * l->s->c);
}

/* The loss of a row: of the label, and with smoothing also E / C of every class. */
static float row_loss(const state_t *s, const float *log_prob, const float *weights, int64_t label)
{
    float one = -log_prob[label * s->inner] * weight_of(s, weights, label);
    double all = 0.0;
    if (s->smoothing == 0.0f) {
        return one;
    }
    for (int64_t k = 0; k < s->c; k++) {
        all -= (double)log_prob[k * s->inner] * (double)(weights == NULL ? 1.0f : weights[k]);
    }
    return (float)((1.0 - (double)s->smoothing) * (double)one +
                   (double)s->smoothing / (double)s->c * all);
}

static weft_status_t run_loss(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    const void *labels = call->inputs[1];
    const float *weights = s->has_weights ? call->inputs[2] : NULL;
    float *loss = call->outputs[0], *rows = call->scratch;
    float *made = s->has_log_prob ? call->outputs[1] : rows + s->threads * s->c;
    const float *log_prob = s->given ? call->inputs[0] : made;
    double total = 0.0;
    weft_status_t status = check_labels(s, labels);
    if (status < 0) {
        return status;
    }
    if (!s->given) {
        const log_prob_t job = {s, call->inputs[0], made, rows};
        wefti_parallel_for(s->threads, s->n, wefti_grain_rows(s->c * s->inner), log_prob_range,
                           &job);
    }
    for (int64_t n = 0; n < s->n; n++) {
        for (int64_t i = 0; i < s->inner; i++) {
            int64_t at = n * s->inner + i, label = label_at(s, labels, at);
            bool counts = !(s->ignores && label == s->ignored);
            float one =
                counts ? row_loss(s, log_prob + n * s->c * s->inner + i, weights, label) : 0.0f;
            if (s->reduce == REDUCE_NONE) {
                loss[at] = one;
            }
            total += one;
        }
    }
    if (s->reduce != REDUCE_NONE) {
        loss[0] =
            (float)(s->reduce == REDUCE_SUM ? total : total / total_weight(s, labels, weights));
    }
    return WEFT_OK;
}

/* d = scale (exp(log_prob) - [k = label]); d may be log_prob. */
WEFTI_INLINE void grad_row_body(const float *log_prob, float *d, int64_t count, int64_t stride,
                                int64_t label, float scale)
{
    if (stride == 1) {
        WEFTI_INDEPENDENT
        for (int64_t k = 0; k < count; k++) {
            d[k] = (wefti_exp_f32(log_prob[k]) - (k == label ? 1.0f : 0.0f)) * scale;
        }
        return;
    }
    for (int64_t k = 0; k < count; k++) {
        d[k * stride] = (wefti_exp_f32(log_prob[k * stride]) - (k == label ? 1.0f : 0.0f)) * scale;
    }
}
WEFTI_CLONES(grad_row,
             (const float *log_prob, float *d, int64_t count, int64_t stride, int64_t label,
              float scale),
             (log_prob, d, count, stride, label, scale));

/* d = incoming (sum(q) exp(log_prob) - q), where q are the smoothed weights of the classes. */
static void smooth_grad_row(const state_t *s, const float *log_prob, const float *weights, float *d,
                            int64_t label, double incoming)
{
    double of_label = (1.0 - (double)s->smoothing) * (double)weight_of(s, weights, label);
    double share = (double)s->smoothing / (double)s->c, sum = of_label;
    for (int64_t k = 0; k < s->c; k++) {
        sum += share * (double)(weights == NULL ? 1.0f : weights[k]);
    }
    for (int64_t k = 0; k < s->c; k++) {
        double q =
            share * (double)(weights == NULL ? 1.0f : weights[k]) + (k == label ? of_label : 0.0);
        d[k * s->inner] =
            (float)(incoming * (sum * (double)wefti_exp_f32(log_prob[k * s->inner]) - q));
    }
}

/* The gradient of some rows. */
typedef struct {
    const weft_kernel_call_t *call;
    double divisor;
} grad_t;

static void grad_range(const void *job, wefti_range_t range)
{
    const weft_kernel_call_t *call = ((const grad_t *)job)->call;
    const double divisor = ((const grad_t *)job)->divisor;
    const state_t *s = call->state;
    const float *dloss = call->inputs[0], *log_prob = call->inputs[1];
    const void *labels = call->inputs[2];
    const float *weights = s->has_weights ? call->inputs[3] : NULL;
    float *d = call->outputs[0];
    for (int64_t n = range.from; n < range.to; n++) {
        for (int64_t i = 0; i < s->inner; i++) {
            int64_t at = n * s->inner + i, first = n * s->c * s->inner + i;
            int64_t label = label_at(s, labels, at);
            if (s->ignores && label == s->ignored) {
                for (int64_t k = 0; k < s->c; k++) {
                    d[first + k * s->inner] = 0.0f;
                }
                continue;
            }
            float incoming = dloss[s->reduce == REDUCE_NONE ? at : 0];
            if (s->smoothing != 0.0f) {
                smooth_grad_row(s, log_prob + first, weights, d + first, label,
                                (double)incoming / divisor);
                continue;
            }
            float scale = (float)((double)incoming * weight_of(s, weights, label) / divisor);
            if (s->given) {
                for (int64_t k = 0; k < s->c; k++) {
                    d[first + k * s->inner] = k == label ? -scale : 0.0f;
                }
                continue;
            }
            grad_row[s->isa](log_prob + first, d + first, s->c, s->inner, label, scale);
        }
    }
}

static weft_status_t run_grad(const weft_kernel_call_t *call)
{
    const state_t *s = call->state;
    const void *labels = call->inputs[2];
    const float *weights = s->has_weights ? call->inputs[3] : NULL;
    grad_t job = {.call = call, .divisor = 1.0};
    weft_status_t status = check_labels(s, labels);
    if (status < 0) {
        return status;
    }
    if (s->reduce == REDUCE_MEAN) {
        job.divisor = total_weight(s, labels, weights);
    }
    wefti_parallel_for(s->threads, s->n, wefti_grain_rows(s->c * s->inner), grad_range, &job);
    return WEFT_OK;
}

/* x: scores or log probabilities at input scores, labels after it, weights after those. */
static weft_status_t prepare(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                             uint32_t scores, state_t *s)
{
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, scores));
    WEFT_RETURN_IF_ERROR(
        wefti_need_known(wefti_infer_input(node, scores + 1), "input", scores + 1));
    WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 0));
    const weft_tensor_desc_t *x = &node->inputs[scores], *label = &node->inputs[scores + 1];
    const weft_tensor_desc_t *weights = wefti_infer_input(node, scores + 2);
    if (x->rank < 2 || x->layout != WEFT_LAYOUT_PLAIN || label->layout != WEFT_LAYOUT_PLAIN ||
        (label->dtype != WEFT_DTYPE_I64 && label->dtype != WEFT_DTYPE_I32)) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "expected scores in plain layout with at least 2 "
                                                 "dimensions and labels of type i64 or i32");
    }
    s->n = x->dims[0];
    s->c = x->dims[1];
    s->inner = 1;
    for (uint32_t d = 2; d < x->rank; d++) {
        s->inner *= x->dims[d];
    }
    if (weft_tensor_elem_count(label) != s->n * s->inner) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "labels: expected one label per row of scores");
    }
    if (weights != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_need_f32(node, scores + 2));
        if (weft_tensor_elem_count(weights) != s->c) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "weights: expected one weight per class");
        }
    }
    const char *reduce = weft_node_attr_string(node, "reduction", "mean");
    s->reduce = strcmp(reduce, "none") == 0  ? REDUCE_NONE
                : strcmp(reduce, "sum") == 0 ? REDUCE_SUM
                                             : REDUCE_MEAN;
    s->ignores = weft_node_attr(node, "ignore_index") != NULL;
    s->smoothing = weft_node_attr_float(node, "label_smoothing", 0.0f);
    if (!(s->smoothing >= 0.0f && s->smoothing <= 1.0f)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "attribute label_smoothing must be between 0 and 1");
    }
    s->ignored = weft_node_attr_int(node, "ignore_index", 0);
    s->wide_labels = label->dtype == WEFT_DTYPE_I64;
    s->has_weights = weights != NULL;
    s->given = strncmp(node->op, "NegativeLogLikelihoodLoss", 25) == 0;
    s->isa = wefti_kernel_isa(env);
    s->threads = wefti_kernel_threads(env);
    return WEFT_OK;
}

static weft_status_t keep(const state_t *made, void **out_state)
{
    state_t *state = wefti_state_alloc(sizeof(*state));
    if (state == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    *state = *made;
    *out_state = state;
    return WEFT_OK;
}

static weft_status_t prepare_loss(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    state_t s = {0};
    WEFT_RETURN_IF_ERROR(prepare(node, env, 0, &s));
    const weft_tensor_desc_t *log_prob = wefti_node_output(node, 1);
    int64_t losses = s.reduce == REDUCE_NONE ? s.n * s.inner : 1;
    if (weft_tensor_elem_count(&node->outputs[0]) != losses) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "the loss must have %" PRId64 " elements",
                           losses);
    }
    if (log_prob != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_need_f32_output(node, 1));
        if (!wefti_same_shape(log_prob, &node->inputs[0])) {
            return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                               "log_prob must have the shape of the scores");
        }
    }
    s.has_log_prob = log_prob != NULL;
    WEFT_RETURN_IF_ERROR(keep(&s, out_state));
    int64_t floats = s.threads * s.c + (s.has_log_prob ? 0 : s.n * s.c * s.inner);
    *out_scratch_bytes = (size_t)floats * sizeof(float);
    return WEFT_OK;
}

static weft_status_t prepare_grad(const weft_node_desc_t *node, const weft_kernel_env_t *env,
                                  void **out_state, size_t *out_scratch_bytes)
{
    state_t s = {0};
    WEFT_RETURN_IF_ERROR(wefti_need_f32(node, 0));
    WEFT_RETURN_IF_ERROR(prepare(node, env, 1, &s));
    if (!wefti_same_shape(&node->outputs[0], &node->inputs[1]) ||
        weft_tensor_elem_count(&node->inputs[0]) != (s.reduce == REDUCE_NONE ? s.n * s.inner : 1)) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "dLoss or dLogits has the wrong shape");
    }
    WEFT_RETURN_IF_ERROR(keep(&s, out_state));
    *out_scratch_bytes = 0;
    return WEFT_OK;
}

WEFTI_KERNEL(wefti_kernel_nll, "", "NegativeLogLikelihoodLoss", prepare_loss, run_loss);
WEFTI_KERNEL(wefti_kernel_nll_grad, "weft", "NegativeLogLikelihoodLossGrad", prepare_grad,
             run_grad);
WEFTI_KERNEL(wefti_kernel_loss, "", "SoftmaxCrossEntropyLoss", prepare_loss, run_loss);
WEFTI_KERNEL(wefti_kernel_loss_grad, "com.microsoft", "SoftmaxCrossEntropyLossGrad", prepare_grad,
             run_grad);
WEFTI_KERNEL(wefti_kernel_smooth_loss, "weft", "SoftmaxCrossEntropyLoss", prepare_loss, run_loss);
