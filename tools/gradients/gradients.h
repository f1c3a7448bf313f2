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

#include "runtime/base/text.h"
#include "tools/tool.h"

typedef enum gradient_verdict {
    GRADIENT_NONE = 0, /* the plan has no gradient of it, or none of a type that can be moved */
    GRADIENT_NOISE,    /* the loss changes too little to tell */
    GRADIENT_KINK, /* the loss has a kink there, and the gradient is between the slopes of its sides
                    */
    GRADIENT_OK,
    GRADIENT_WRONG,
} gradient_verdict_t;

/* What the loss does along a line through the weights as they are. */
typedef struct slope {
    double value;  /* d loss / d t */
    double error;  /* what value is uncertain by */
    double spread; /* what slopes of parts of the range are apart */
    double step;   /* in t */
} slope_t;

/* The loss at t. */
typedef weft_status_t (*slope_fn)(void *user, double t, double *out_loss);

typedef struct slope_params {
    double at_zero; /* the loss at t = 0 */
    double noise;   /* what the loss is uncertain by, at least */
    double step;    /* to begin with, a power of two */
    double most;    /* steps beyond are not tried */
    double wanted;  /* |value| this is compared with: an error far below is small enough */
} slope_params_t;

/* Measures with steps between which the error of truncation and that of rounding are smallest. */
weft_status_t wefti_slope_measure(const slope_params_t *params, slope_fn loss, void *user,
                                  slope_t *out_slope);
/* What gradient is beside slope; rounding: what gradient itself is uncertain by. */
gradient_verdict_t wefti_slope_judge(double gradient, const slope_t *slope, double rounding,
                                     double *out_excess);
/* Of a function's values at equally spaced points: what they are uncertain by. */
double wefti_slope_noise(const double *values, size_t count);

typedef struct gradient_report {
    const char *name; /* of the parameter */
    weft_tensor_desc_t desc;
    gradient_verdict_t verdict;
    uint32_t samples, noisy, kinks, wrong; /* elements, and one random direction */
    /* Of the samples that tell most the one that fits worst: */
    gradient_verdict_t shown;
    bool direction;  /* all elements at once, by random signs */
    int64_t element; /* else */
    double gradient;
    slope_t slope;
    const char *why; /* NONE: why not; else NULL */
} gradient_report_t;

typedef struct gradients_report {
    double loss, noise;
    uint32_t steps; /* that were run */
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

/* Zeroed at first; close accepts half-open ones. */
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
