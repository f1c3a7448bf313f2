/* SPDX-License-Identifier: Apache-2.0 */
/* weft bench --plot: times over sizes as a picture, peers' curves beside them. */
#ifndef WEFT_TOOLS_BENCH_PLOT_H
#define WEFT_TOOLS_BENCH_PLOT_H

#include "tools/bench/bench.h"

#define PLOT_MAX_CURVES 12u
#define PLOT_MAX_POINTS 64u /* sizes at least double from point to point */

typedef struct bench_curve {
    char name[48];
    bool dashed;
    uint32_t count;
    double bytes[PLOT_MAX_POINTS], us[PLOT_MAX_POINTS];
} bench_curve_t;

struct bench_plot {
    const char *path;
    uint32_t count;
    bench_curve_t curves[PLOT_MAX_CURVES]; /* the first two: Weft, and the floor */
};

/* The curves of a file that fit the operator, ranks and memory of bench: rows of
 * tests/bench/compare_peers.py --json ("peers_us"), or of weft bench --json ("p50_us"). An error
 * where the file has none. */
weft_status_t wefti_bench_plot_read(bench_plot_t *plot, const bench_t *bench, const char *path);
void wefti_bench_plot_add(bench_plot_t *plot, const bench_row_t *row);
/* SVG; an error where nothing was measured. */
weft_status_t wefti_bench_plot_write(const bench_plot_t *plot, const bench_t *bench);

#endif
