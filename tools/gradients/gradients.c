/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves weights of a model with random inputs: single elements of each parameter (the one with the
 * largest gradient, and random ones), and all elements at once by random signs. The loss is the
 * output of the plan's step, with learning rate 0.
 */
#include "tools/gradients/gradients.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/sync.h"

#define NOISE_POINTS 17
#define FIRST_STEP 0.01 /* of the size of a parameter's elements */
#define MOST_STEP 0.5   /* likewise */
#define ROUNDING 3e-5   /* uncertainty of a gradient, relative to the largest of its tensor */
#define PROGRESS_NS 200000000ull

typedef struct checked_param {
    float *values, *gradient;
    int64_t count;
    double rms, largest; /* of values; of the gradient's magnitude */
} checked_param_t;

typedef struct checker {
    const gradients_options_t *options;
    gradients_report_t *report;
    gradient_subject_t subject;
    checked_param_t *params; /* as report->params; values NULL where there is nothing to move */
    float *moved;            /* room for the largest of them */
    uint64_t shown_ns;
    /* the current line */
    size_t param;
    int64_t element; /* -1: all, by signs */
    uint64_t signs;
} checker_t;

/* +1 or -1 for an element, a function of seed and element. */
static double sign_of(uint64_t seed, int64_t element)
{
    uint64_t mixed = (seed ^ (uint64_t)element) * 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9u;
    return (mixed >> 63) != 0 ? 1 : -1;
}

/* ---- the loss as a function of weights ---- */

/* Restores every parameter, since a step may have changed it, and moves that of the current line to
 * t. */
static weft_status_t place_weights(checker_t *checker, double t)
{
    weft_status_t status = WEFT_OK;
    for (size_t i = 0; i < checker->report->count && status >= 0; i++) {
        const checked_param_t *param = &checker->params[i];
        const float *values = param->values;
        if (values == NULL) {
            continue;
        }
        if (i == checker->param && (t > 0 || t < 0)) {
            memcpy(checker->moved, values, (size_t)param->count * sizeof *values);
            for (int64_t k = 0; checker->element < 0 && k < param->count; k++) {
                checker->moved[k] = (float)((double)values[k] + t * sign_of(checker->signs, k));
            }
            if (checker->element >= 0) {
                checker->moved[checker->element] = (float)((double)values[checker->element] + t);
            }
            values = checker->moved;
        }
        status = weft_session_set_param(checker->subject.session, i, values,
                                        (size_t)param->count * sizeof *values);
    }
    return status;
}

static weft_status_t loss_at(void *user, double t, double *out_loss)
{
    checker_t *checker = user;
    float loss = 0;
    WEFT_RETURN_IF_ERROR(place_weights(checker, t));
    WEFT_RETURN_IF_ERROR(
        weft_session_set_steps_done(checker->subject.session, 0)); /* one dropout mask */
    WEFT_RETURN_IF_ERROR(weft_session_step(checker->subject.session));
    WEFT_RETURN_IF_ERROR(
        weft_session_get_output(checker->subject.session, "loss", &loss, sizeof loss, NULL));
    checker->report->steps++;
    *out_loss = (double)loss;
    return WEFT_OK;
}

/* ---- one model ---- */

static weft_status_t read_weights(checker_t *checker)
{
    gradients_report_t *report = checker->report;
    int64_t largest = 1;
    for (size_t i = 0; i < report->count; i++) {
        gradient_report_t *row = &report->params[i];
        checked_param_t *param = &checker->params[i];
        weft_status_t status =
            weft_session_param_info(checker->subject.session, i, &row->name, &row->desc);
        if (status < 0) {
            return status;
        }
        param->count = weft_tensor_elem_count(&row->desc);
        if (row->desc.dtype != WEFT_DTYPE_F32 || param->count <= 0) {
            row->why = param->count <= 0 ? "no elements" : "not of type f32";
            continue;
        }
        param->values = malloc((size_t)param->count * sizeof(float));
        param->gradient = malloc((size_t)param->count * sizeof(float));
        if (param->values == NULL || param->gradient == NULL) {
            return wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: parameter '%s'", row->name);
        }
        status = weft_session_get_param(checker->subject.session, i, param->values,
                                        (size_t)param->count * sizeof(float));
        if (status < 0) {
            return status;
        }
        double squares = 0;
        for (int64_t k = 0; k < param->count; k++) {
            squares += (double)param->values[k] * (double)param->values[k];
        }
        param->rms = sqrt(squares / (double)param->count);
        largest = param->count > largest ? param->count : largest;
    }
    checker->moved = malloc((size_t)largest * sizeof *checker->moved);
    return checker->moved != NULL ? WEFT_OK
                                  : wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: weights");
}

/* The gradients of the last step, which ran with unmoved weights. */
static weft_status_t read_gradients(checker_t *checker)
{
    for (size_t i = 0; i < checker->report->count; i++) {
        checked_param_t *param = &checker->params[i];
        if (param->values == NULL) {
            continue;
        }
        weft_status_t status = weft_session_get_gradient(
            checker->subject.session, i, param->gradient, (size_t)param->count * sizeof(float));
        if (status == WEFT_ERR_NOT_FOUND || status == WEFT_ERR_UNSUPPORTED) {
            checker->report->params[i].why =
                status == WEFT_ERR_NOT_FOUND ? "not trained" : "the gradient has another type";
            free(param->gradient);
            param->gradient = NULL;
        } else if (status < 0) {
            return status;
        }
        for (int64_t k = 0; param->gradient != NULL && k < param->count; k++) {
            double size = fabs((double)param->gradient[k]);
            param->largest = size > param->largest || !(size == size) ? size : param->largest;
        }
    }
    return WEFT_OK;
}

/* The scale of steps: the size of the element, or of its tensor where that is larger. */
static double unit_of(const checked_param_t *param, int64_t element)
{
    double size = element >= 0 ? fabs((double)param->values[element]) : 0;
    double unit = size > param->rms ? size : param->rms;
    unit = unit > 1e-3 ? unit : 0.1; /* weights that start as zeros */
    return element >= 0 ? unit : unit * 3 / sqrt((double)param->count + 8);
}

static double power_of_two(double value)
{
    return exp2(round(log2(value)));
}

/* The effect of rounding on the loss: many close points, with all weights moved. */
static weft_status_t measure_noise(checker_t *checker)
{
    gradients_report_t *report = checker->report;
    double values[NOISE_POINTS];
    report->noise = fabs(report->loss) * 0x1p-26; /* a quarter of the last place */
    for (size_t i = 0; i < report->count && i < 8; i++) {
        const checked_param_t *param = &checker->params[i];
        if (param->gradient == NULL) {
            continue;
        }
        checker->param = i;
        checker->element = -1;
        checker->signs = wefti_gradients_random(&checker->subject.random);
        double step = power_of_two(unit_of(param, -1) * FIRST_STEP / 16);
        for (int k = 0; k < NOISE_POINTS; k++) {
            weft_status_t status = loss_at(checker, (k - NOISE_POINTS / 2) * step, &values[k]);
            if (status < 0) {
                return status;
            }
        }
        double noise = wefti_slope_noise(values, NOISE_POINTS);
        report->noise = noise > report->noise ? noise : report->noise;
        break;
    }
    return WEFT_OK;
}

static void note(gradient_report_t *row, const checker_t *checker, double gradient,
                 const slope_t *slope, gradient_verdict_t verdict, double excess, double *worst)
{
    row->samples++;
    row->noisy += verdict == GRADIENT_NOISE;
    row->kinks += verdict == GRADIENT_KINK;
    row->wrong += verdict == GRADIENT_WRONG;
    /* A line with a corner may fit arbitrarily badly, so a higher verdict replaces it. */
    if (row->samples == 1 || verdict > row->shown || (verdict == row->shown && excess > *worst)) {
        *worst = excess;
        row->shown = verdict;
        row->direction = checker->element < 0;
        row->element = checker->element;
        row->gradient = gradient;
        row->slope = *slope;
    }
}

/* The gradient along the current line. */
static double gradient_along(const checker_t *checker)
{
    const checked_param_t *param = &checker->params[checker->param];
    double sum = 0;
    if (checker->element >= 0) {
        return (double)param->gradient[checker->element];
    }
    for (int64_t k = 0; k < param->count; k++) {
        sum += (double)param->gradient[k] * sign_of(checker->signs, k);
    }
    return sum;
}

/* A corner at 0 looks the same with a fraction of the step. Another corner would be out of the
 * range, or have less effect. */
static bool is_corner(const slope_t *slope, const slope_t *closer)
{
    return closer->step < slope->step / 3 && closer->spread > 0.6 * slope->spread &&
           closer->spread > 4 * closer->error;
}

/* One line through the weights. A gradient that seems wrong is compared again, with smaller steps.
 */
static weft_status_t check_line(checker_t *checker, gradient_report_t *row, double *worst)
{
    const checked_param_t *param = &checker->params[checker->param];
    double gradient = gradient_along(checker);
    double rounding =
        ROUNDING * param->largest * (checker->element >= 0 ? 1 : sqrt((double)param->count));
    double unit = unit_of(param, checker->element), excess = 0;
    slope_params_t params = {.at_zero = checker->report->loss,
                             .noise = checker->report->noise,
                             .step = power_of_two(unit * FIRST_STEP),
                             .most = unit * MOST_STEP,
                             .wanted = fabs(gradient)};
    slope_t slope, closer;
    weft_status_t status = wefti_slope_measure(&params, loss_at, checker, &slope);
    if (status < 0) {
        return status;
    }
    gradient_verdict_t verdict = wefti_slope_judge(gradient, &slope, rounding, &excess);
    if (verdict == GRADIENT_WRONG && isfinite(gradient)) {
        double closer_excess;
        params.step = slope.step * 0.15625; /* not a power of two: rounds differently */
        status = wefti_slope_measure(&params, loss_at, checker, &closer);
        if (status < 0) {
            return status;
        }
        gradient_verdict_t again = wefti_slope_judge(gradient, &closer, rounding, &closer_excess);
        verdict = is_corner(&slope, &closer) ? GRADIENT_KINK : again;
        if (again != GRADIENT_WRONG) {
            slope = closer;
            excess = closer_excess;
        }
    }
    note(row, checker, gradient, &slope, verdict, excess, worst);
    return WEFT_OK;
}

static void show_progress(checker_t *checker)
{
    uint64_t now = wefti_now_ns();
    if (!checker->options->quiet && isatty(STDERR_FILENO) == 1 &&
        now - checker->shown_ns > PROGRESS_NS) {
        fprintf(stderr, "\r\033[Kgradients: parameter %zu of %zu", checker->param + 1,
                checker->report->count);
        fflush(stderr);
        checker->shown_ns = now;
    }
}

static int64_t largest_element(const checked_param_t *param)
{
    int64_t at = 0;
    for (int64_t k = 1; k < param->count; k++) {
        if (!(fabsf(param->gradient[k]) <= fabsf(param->gradient[at]))) {
            at = k; /* or NaN */
        }
    }
    return at;
}

static weft_status_t check_param(checker_t *checker, size_t index)
{
    gradient_report_t *row = &checker->report->params[index];
    const checked_param_t *param = &checker->params[index];
    weft_status_t status = WEFT_OK;
    double worst = 0;
    checker->param = index;
    int64_t samples = checker->options->samples;
    samples = samples < param->count ? samples : param->count;
    for (int64_t s = -1; s < samples && status >= 0; s++) {
        show_progress(checker);
        checker->signs = wefti_gradients_random(&checker->subject.random);
        checker->element = s < 0                     ? -1
                           : samples == param->count ? s
                           : s == 0                  ? largest_element(param)
                                    : (int64_t)(wefti_gradients_random(&checker->subject.random) %
                                                (uint64_t)param->count);
        status = check_line(checker, row, &worst);
    }
    row->verdict = row->wrong > 0                            ? GRADIENT_WRONG
                   : row->noisy == row->samples              ? GRADIENT_NOISE
                   : row->kinks + row->noisy == row->samples ? GRADIENT_KINK
                                                             : GRADIENT_OK;
    checker->report->wrong += row->wrong > 0;
    return status;
}

static weft_status_t check_all(checker_t *checker)
{
    gradients_report_t *report = checker->report;
    double again = 0;
    WEFT_RETURN_IF_ERROR(read_weights(checker));
    checker->param = report->count; /* no line */
    WEFT_RETURN_IF_ERROR(loss_at(checker, 0, &report->loss));
    WEFT_RETURN_IF_ERROR(read_gradients(checker));
    WEFT_RETURN_IF_ERROR(loss_at(checker, 0, &again));
    if (!isfinite(report->loss)) {
        return wefti_error(WEFT_ERR_STATE, "the loss of random inputs is not finite: %f",
                           report->loss);
    }
    if (again > report->loss || again < report->loss) {
        return wefti_error(
            WEFT_ERR_STATE,
            "the loss differs when a step is repeated: %.9g and %.9g; an operator is not "
            "deterministic",
            report->loss, again);
    }
    WEFT_RETURN_IF_ERROR(measure_noise(checker));
    for (size_t i = 0; i < report->count; i++) {
        if (checker->params[i].gradient != NULL) {
            WEFT_RETURN_IF_ERROR(check_param(checker, i));
        }
    }
    return WEFT_OK;
}

weft_status_t wefti_gradients_check(const gradients_options_t *options,
                                    gradients_report_t *out_report)
{
    checker_t checker = {.options = options, .report = out_report};
    weft_status_t status;
    *out_report = (gradients_report_t){0};
    WEFT_TRY(status, wefti_gradients_open(&checker.subject, options), done);
    out_report->count = weft_session_param_count(checker.subject.session);
    out_report->params = calloc(out_report->count + 1, sizeof *out_report->params);
    checker.params = calloc(out_report->count + 1, sizeof *checker.params);
    if (out_report->params == NULL || checker.params == NULL) {
        status =
            wefti_error(WEFT_ERR_NO_MEMORY, "out of memory: %zu parameters", out_report->count);
        goto done;
    }
    status = check_all(&checker);
    for (size_t i = 0; i < out_report->count && status >= 0; i++) {
        out_report->params[i].name = strdup(out_report->params[i].name);
    }
done:
    if (checker.shown_ns != 0) {
        fputs("\r\033[K", stderr);
    }
    for (size_t i = 0; checker.params != NULL && i < out_report->count; i++) {
        free(checker.params[i].values);
        free(checker.params[i].gradient);
    }
    if (status < 0) {
        free(out_report->params);
        *out_report = (gradients_report_t){0};
    }
    free(checker.params);
    free(checker.moved);
    wefti_gradients_close(&checker.subject);
    return status;
}

void wefti_gradients_free(gradients_report_t *report)
{
    for (size_t i = 0; i < report->count; i++) {
        free((void *)(uintptr_t)report->params[i].name);
    }
    free(report->params);
    *report = (gradients_report_t){0};
}
