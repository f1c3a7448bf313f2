/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slope at 0 of a loss that is computed in single precision. Its values at -4h to 4h are fitted
 * by a cubic, whose odd part is the slope; what the fit leaves over is noise. Rounding weighs 1/h,
 * curvature weighs more the larger h is, so several h are tried.
 *
 * Relu and MaxPool give the loss corners. With some of them between -4h and 4h the slope is a walk
 * by chance, and the slope at 0 may be off by about what slopes of parts of the range are apart:
 * the spread.
 */
#include <float.h>
#include <math.h>

#include "tools/gradients/gradients.h"

#define SIDE 4            /* points on either side */
#define TRIES 5           /* steps */
#define GOOD 0.003        /* an error of this share of the slope is small enough */
#define STRAIGHT 0.1      /* and such a spread */
#define SURE 4.0          /* errors beyond which two numbers are different ones */
#define RELATIVE 2e-3     /* by which gradients may be off for the sake of single precision */
#define TELLING 0.25      /* a slope says something if it is known to this share */
#define SPREAD_NOISE 1.03 /* what rounding alone makes of a spread */

/* Sums of powers of j = 1 to 4. */
#define S2 30.0
#define S4 354.0
#define S6 4890.0

typedef struct fit {
    double slope, error, spread; /* per step */
    bool noisy;                  /* mostly rounding keeps it from being exact */
} fit_t;

/* Slopes right and left of 0, and of the inner and outer halves of both sides. y[SIDE] is at 0. */
static double spread_of(const double *y)
{
    const double *zero = y + SIDE;
    double right = 0, left = 0;
    for (int j = 0; j <= SIDE; j++) {
        right += (j - SIDE / 2) * zero[j] / 10;
        left -= (j - SIDE / 2) * zero[-j] / 10;
    }
    double bend_right = (zero[4] - 2 * zero[2] + zero[0]) / 2;
    double bend_left = (zero[-4] - 2 * zero[-2] + zero[0]) / 2;
    double apart = right - left;
    return (apart * apart + bend_right * bend_right + bend_left * bend_left) / 3;
}

static fit_t fit_points(const double *y, double noise)
{
    double d[SIDE + 1];
    double jd = 0, j3d = 0, rest = 0, det = S2 * S6 - S4 * S4;
    for (int j = 1; j <= SIDE; j++) {
        d[j] = (y[SIDE + j] - y[SIDE - j]) / 2;
        jd += j * d[j];
        j3d += j * j * j * d[j];
    }
    double a1 = (S6 * jd - S4 * j3d) / det, a3 = (S2 * j3d - S4 * jd) / det;
    for (int j = 1; j <= SIDE; j++) {
        double left = d[j] - a1 * j - a3 * j * j * j;
        rest += left * left;
    }
    double floor = noise / sqrt(2.0) * sqrt(S6 / det);
    double statistical = fmax(sqrt(rest / 2) * sqrt(S6 / det), floor);
    /* Five points near by, and five further out: what the curve does beyond a cubic. */
    double near = (8 * d[1] - d[2]) / 6, far = (8 * d[2] - d[4]) / 12;
    double squares = spread_of(y) - SPREAD_NOISE * noise * SPREAD_NOISE * noise;
    fit_t fit = {
        .slope = a1, .error = statistical + fabs(near - far) / 2, .spread = sqrt(fmax(squares, 0))};
    fit.noisy = 4 * floor > fit.error && 4 * floor > fit.spread;
    return fit;
}

static weft_status_t measure_once(const slope_params_t *params, double step, slope_fn loss,
                                  void *user, slope_t *out_slope, bool *out_noisy)
{
    double y[2 * SIDE + 1];
    for (int j = -SIDE; j <= SIDE; j++) {
        weft_status_t status = WEFT_OK;
        y[SIDE + j] = params->at_zero;
        if (j != 0) {
            status = loss(user, j * step, &y[SIDE + j]);
        }
        if (status < 0) {
            return status;
        }
    }
    fit_t fit = fit_points(y, params->noise);
    *out_slope = (slope_t){.value = fit.slope / step,
                           .error = fit.error / step,
                           .spread = fit.spread / step,
                           .step = step};
    *out_noisy = fit.noisy;
    return WEFT_OK;
}

static double badness(const slope_t *slope)
{
    double sum = slope->error + slope->spread / 2;
    return isfinite(sum) ? sum : DBL_MAX;
}

weft_status_t wefti_slope_measure(const slope_params_t *params, slope_fn loss, void *user,
                                  slope_t *out_slope)
{
    double step = params->step;
    bool grew = false, shrank = false;
    *out_slope = (slope_t){.error = INFINITY};
    for (int i = 0; i < TRIES; i++) {
        slope_t slope;
        bool noisy = false;
        weft_status_t status = measure_once(params, step, loss, user, &slope, &noisy);
        if (status < 0) {
            return status;
        }
        if (badness(&slope) < badness(out_slope)) {
            *out_slope = slope;
        }
        double size = fmax(fabs(slope.value), params->wanted);
        if ((slope.error <= GOOD * size && slope.spread <= STRAIGHT * size) ||
            (noisy && step * 4 > params->most) || (grew && shrank)) {
            break;
        }
        /* Between one that was too small and one that was too large there is a last one. */
        bool turns = noisy ? shrank : grew;
        step = noisy ? step * (turns ? 2 : 4) : step / (turns ? 2 : 4);
        grew = grew || noisy;
        shrank = shrank || !noisy;
    }
    return WEFT_OK;
}

gradient_verdict_t wefti_slope_judge(double gradient, const slope_t *slope, double rounding,
                                     double *out_excess)
{
    double size = fmax(fabs(gradient), fabs(slope->value));
    double apart = fabs(gradient - slope->value);
    double allowed = SURE * slope->error + RELATIVE * size + rounding;
    *out_excess = INFINITY;
    if (!isfinite(gradient) || !isfinite(slope->error)) {
        return isfinite(gradient) ? GRADIENT_NOISE : GRADIENT_WRONG;
    }
    *out_excess = apart / fmax(allowed + SURE * slope->spread, DBL_MIN);
    if (apart > allowed) {
        return apart > allowed + SURE * slope->spread ? GRADIENT_WRONG : GRADIENT_KINK;
    }
    return SURE * slope->error + rounding > TELLING * size ? GRADIENT_NOISE : GRADIENT_OK;
}

/* Differences of the fourth order: the smooth part is gone from them if the points are close. */
double wefti_slope_noise(const double *values, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i + 4 < count; i++) {
        double difference =
            values[i] - 4 * values[i + 1] + 6 * values[i + 2] - 4 * values[i + 3] + values[i + 4];
        sum += difference * difference;
    }
    return count > 4 ? sqrt(sum / (double)(count - 4) / 70) : 0;
}
