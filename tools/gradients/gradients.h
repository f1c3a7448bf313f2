/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft check --gradients: compares the gradients of a plan with slopes of the loss, which the same
 * kernels compute.
 *
 *   subject.c    a session of one rank with random inputs
 *   gradients.c  the loss as a function of weights; one verdict per parameter
 *   slope.c      the slope of a function computed in single precision, and its error
 *   print.c      text and JSON
 */
#ifndef WEFT_TOOLS_GRADIENTS_H
#define WEFT_TOOLS_GRADIENTS_H

#include <stdbool.h>

#include <weft/weft.h>

#include "runtime/base/json.h"
#include "tools/tool.h"

typedef enum gradient_verdict {
    GRADIENT_NONE = 0, /* no f32 gradient in the plan */
    GRADIENT_NOISE,    /* the loss changes too little to measure */
    GRADIENT_KINK, /* the loss has a corner there; the gradient is between the slopes of its sides */
    GRADIENT_OK,
    GRADIENT_WRONG,
} gradient_verdict_t;

/* The slope of the loss along a line through the current weights. */
typedef struct slope {
    double value;  /* d loss / d t */
    double error;  /* uncertainty of value */
    double spread; /* difference of the slopes of parts of the range */
    double step;   /* used for measuring, in t */
} slope_t;

/* The loss at t. */
typedef weft_status_t (*slope_fn)(void *user, double t, double *out_loss);

typedef struct slope_params {
    double at_zero; /* the loss at t = 0 */
    double noise;   /* least uncertainty of the loss */
    double step;    /* the first one tried, a power of two */
    double most;    /* largest step */
    double wanted;  /* |gradient| to compare with: an error far below it is small enough */
} slope_params_t;

/* Measures with the step where the errors of truncation and of rounding are smallest in sum. */
weft_status_t wefti_slope_measure(const slope_params_t *params, slope_fn loss, void *user,
                                  slope_t *out_slope);
/* Compares a gradient with a slope; rounding: the uncertainty of the gradient itself. */
gradient_verdict_t wefti_slope_judge(double gradient, const slope_t *slope, double rounding,
                                     double *out_excess);
/* The uncertainty of a function's values at equally spaced points. */
double wefti_slope_noise(const double *values, size_t count);

typedef struct gradient_report {
    const char *name; /* of the parameter */
    weft_tensor_desc_t desc;
    gradient_verdict_t verdict;
    uint32_t samples, noisy, kinks, wrong; /* elements, and one random direction */
    /* The sample that fits worst, among those with the highest verdict: */
    gradient_verdict_t shown;
    bool direction;  /* all elements at once, by random signs */
    int64_t element; /* otherwise: this one */
    double gradient;
    slope_t slope;
    const char *why; /* reason of NONE; else NULL */
} gradient_report_t;

typedef struct gradients_report {
    double loss, noise;
    uint32_t steps; /* steps that ran */
    size_t count;
    gradient_report_t *params;
    size_t wrong;
} gradients_report_t;

typedef struct gradients_options {
    const char *command;
    compile_options_t *compile;
    const char *path;
    uint32_t samples; /* elements of each parameter */
    uint64_t seed;    /* of inputs and samples */
    bool quiet;       /* no progress */
} gradients_options_t;

/* Zero-initialised; close accepts one whose open failed. */
typedef struct gradient_subject {
    weft_plan_t *plan;
    weft_context_t *context;
    weft_session_t *session;
    bool has_lr;
    int64_t classes; /* of the logits; 0: not known */
    uint64_t random; /* state */
} gradient_subject_t;

weft_status_t wefti_gradients_open(gradient_subject_t *subject, const gradients_options_t *options);
void wefti_gradients_close(gradient_subject_t *subject);
uint64_t wefti_gradients_random(uint64_t *state);

weft_status_t wefti_gradients_check(const gradients_options_t *options,
                                    gradients_report_t *out_report);
void wefti_gradients_free(gradients_report_t *report);
/* print.c */
const char *wefti_gradient_verdict_name(gradient_verdict_t verdict);
void wefti_gradients_text(const gradients_report_t *report, wefti_text_t *out);
void wefti_gradients_json(const gradients_report_t *report, wefti_json_t *json);

#endif
