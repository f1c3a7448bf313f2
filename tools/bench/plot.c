/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/plot.h"

#include <math.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "tools/page.h"

#define WIDTH 860.0
#define HEIGHT 520.0
#define LEFT 76.0
#define RIGHT 150.0 /* of the legend */
#define TOP 54.0
#define BOTTOM 56.0

enum { CURVE_WEFT = 0, CURVE_FLOOR = 1, CURVE_PEERS = 2 };

static const char *const paints[] = {"#2458c5", "#8a93a3", "#c2410c", "#15803d",
                                     "#7c3aed", "#b45309", "#0e7490", "#be185d",
                                     "#4d7c0f", "#6d28d9", "#9f1239", "#334155"};

/* Sizes grow along a curve, whatever the order of a file. */
static void add_point(bench_curve_t *curve, double bytes, double us)
{
    uint32_t at = curve->count;
    if (at == PLOT_MAX_POINTS || !(bytes > 0) || !(us >= 0) || us > 1e12) {
        return;
    }
    for (; at > 0 && curve->bytes[at - 1] > bytes; at--) {
        curve->bytes[at] = curve->bytes[at - 1];
        curve->us[at] = curve->us[at - 1];
    }
    curve->bytes[at] = bytes;
    curve->us[at] = us > 1e-3 ? us : 1e-3; /* the scale has no 0 */
    curve->count++;
}

/* The curve called name; NULL: too many. */
static bench_curve_t *find_curve(bench_plot_t *plot, const char *name)
{
    for (uint32_t i = CURVE_PEERS; i < plot->count; i++) {
        if (strncmp(plot->curves[i].name, name, sizeof plot->curves[i].name - 1) == 0) {
            return &plot->curves[i];
        }
    }
    if (plot->count == PLOT_MAX_CURVES) {
        return NULL;
    }
    bench_curve_t *curve = &plot->curves[plot->count++];
    *curve = (bench_curve_t){.count = 0};
    snprintf(curve->name, sizeof curve->name, "%s", name);
    return curve;
}

static const wefti_json_node_t *member(const wefti_json_tree_t *tree, const wefti_json_node_t *row,
                                       const char *key, wefti_json_kind_t kind)
{
    const wefti_json_node_t *node =
        row->kind == WEFTI_JSON_OBJECT ? wefti_json_get(tree, row, key) : NULL;
    return node != NULL && node->kind == kind ? node : NULL;
}

static bool fits(const wefti_json_tree_t *tree, const wefti_json_node_t *row, const bench_t *bench)
{
    const wefti_json_node_t *op = member(tree, row, "op", WEFTI_JSON_STRING);
    const wefti_json_node_t *ranks = member(tree, row, "ranks", WEFTI_JSON_NUMBER);
    const wefti_json_node_t *memory = member(tree, row, "memory", WEFTI_JSON_STRING);
    return op != NULL && strcmp(op->string, wefti_collective_function(bench->op)) == 0 &&
           ranks != NULL && ranks->number == bench->ranks &&
           (memory == NULL || strcmp(memory->string, wefti_bench_memory_names[bench->memory]) == 0);
}

/* A row's points; those of sizes outside of the picture are left out. */
static void read_row(const wefti_json_tree_t *tree, const wefti_json_node_t *row,
                     bench_plot_t *plot, const bench_t *bench)
{
    const wefti_json_node_t *bytes = member(tree, row, "bytes", WEFTI_JSON_NUMBER);
    const wefti_json_node_t *peers = member(tree, row, "peers_us", WEFTI_JSON_OBJECT);
    const wefti_json_node_t *own = member(tree, row, "p50_us", WEFTI_JSON_NUMBER);
    if (!fits(tree, row, bench) || bytes == NULL || bytes->number < (double)bench->min_bytes ||
        bytes->number > (double)bench->max_bytes) {
        return;
    }
    if (own != NULL) {
        bench_curve_t *curve = find_curve(plot, "weft, in the file");
        if (curve != NULL) {
            add_point(curve, bytes->number, own->number);
        }
    }
    for (const wefti_json_node_t *at = peers != NULL ? wefti_json_first(tree, peers) : NULL;
         at != NULL; at = wefti_json_after(tree, at)) {
        bench_curve_t *curve = at->kind == WEFTI_JSON_NUMBER ? find_curve(plot, at->key) : NULL;
        if (curve != NULL) {
            add_point(curve, bytes->number, at->number);
        }
    }
}

weft_status_t wefti_bench_plot_read(bench_plot_t *plot, const bench_t *bench, const char *path)
{
    wefti_json_tree_t tree = {0};
    WEFT_RETURN_IF_ERROR(wefti_page_read_json(path, &tree, NULL));
    const wefti_json_node_t *rows = member(&tree, tree.nodes, "rows", WEFTI_JSON_ARRAY);
    uint32_t before = plot->count;
    for (const wefti_json_node_t *row = rows != NULL ? wefti_json_first(&tree, rows) : NULL;
         row != NULL; row = wefti_json_after(&tree, row)) {
        read_row(&tree, row, plot, bench);
    }
    wefti_json_tree_deinit(&tree);
    if (plot->count == before) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "%s: no rows of %s on %u rank%s in %s memory with peers_us or p50_us",
                           path, wefti_collective_function(bench->op), bench->ranks,
                           wefti_plural(bench->ranks), wefti_bench_memory_names[bench->memory]);
    }
    return WEFT_OK;
}

void wefti_bench_plot_add(bench_plot_t *plot, const bench_row_t *row)
{
    add_point(&plot->curves[CURVE_WEFT], (double)row->bytes, row->p50_us);
    if (row->floor_us >= 0) {
        add_point(&plot->curves[CURVE_FLOOR], (double)row->bytes, row->floor_us);
    }
}

/* ---- the picture ---- */

typedef struct scale {
    double x_low, x_high, y_low, y_high; /* powers: of 2, of 10 */
} scale_t;

static double px(const scale_t *scale, double bytes)
{
    double span = scale->x_high - scale->x_low;
    return LEFT + (log2(bytes) - scale->x_low) / span * (WIDTH - LEFT - RIGHT);
}

static double py(const scale_t *scale, double us)
{
    double span = scale->y_high - scale->y_low;
    return HEIGHT - BOTTOM - (log10(us) - scale->y_low) / span * (HEIGHT - TOP - BOTTOM);
}

static scale_t scale_of(const bench_plot_t *plot)
{
    scale_t scale = {INFINITY, -INFINITY, INFINITY, -INFINITY};
    for (uint32_t c = 0; c < plot->count; c++) {
        for (uint32_t i = 0; i < plot->curves[c].count; i++) {
            double x = log2(plot->curves[c].bytes[i]), y = log10(plot->curves[c].us[i]);
            scale.x_low = fmin(scale.x_low, x);
            scale.x_high = fmax(scale.x_high, x);
            scale.y_low = fmin(scale.y_low, y);
            scale.y_high = fmax(scale.y_high, y);
        }
    }
    scale.x_low = floor(scale.x_low - 0.5);
    scale.x_high = ceil(scale.x_high + 0.5);
    scale.y_low = floor(scale.y_low - 0.05);
    scale.y_high = fmax(ceil(scale.y_high + 0.05), scale.y_low + 1);
    return scale;
}

static void add_escaped(wefti_text_t *out, const char *text)
{
    for (; *text != '\0'; text++) {
        const char *special = strchr("<>&", *text);
        if (special != NULL || (unsigned char)*text < 0x20) {
            wefti_text_printf(out, "&#%u;", special != NULL ? (unsigned)*text : (unsigned)'?');
        } else {
            wefti_text_add_bytes(out, text, 1);
        }
    }
}

static void add_line(wefti_text_t *out, double x1, double y1, double x2, double y2,
                     const char *style)
{
    wefti_text_printf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n",
                      x1, y1, x2, y2, style);
}

static void add_axes(wefti_text_t *out, const scale_t *scale)
{
    double bottom = HEIGHT - BOTTOM, right = WIDTH - RIGHT;
    int step = scale->x_high - scale->x_low > 14 ? 3 : 1;
    for (int k = (int)scale->x_low; k <= (int)scale->x_high; k++) {
        char text[32];
        double x = px(scale, ldexp(1, k));
        if (k % step == 0 && k >= 0 && k < 63) {
            add_line(out, x, TOP, x, bottom, "grid");
            wefti_text_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                              x, bottom + 18, wefti_format_bytes(1ull << k, text));
        }
    }
    for (int k = (int)scale->y_low; k <= (int)scale->y_high; k++) {
        static const char *const units[] = {"ns", "µs", "ms", "s"};
        double us = pow(10, k), value = us;
        size_t unit = 1;
        for (; value >= 999 && unit < 3; unit++) {
            value /= 1000;
        }
        if (value < 0.9) {
            value *= 1000;
            unit = 0;
        }
        for (int minor = 2; minor < 10 && k < (int)scale->y_high; minor++) {
            add_line(out, LEFT, py(scale, us * minor), right, py(scale, us * minor), "minor");
        }
        add_line(out, LEFT, py(scale, us), right, py(scale, us), "grid");
        wefti_text_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%g %s</text>\n",
                          LEFT - 8, py(scale, us) + 4, value, units[unit]);
    }
    add_line(out, LEFT, bottom, right, bottom, "axis");
    add_line(out, LEFT, TOP, LEFT, bottom, "axis");
    wefti_text_printf(out,
                      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" class=\"name\">size: "
                      "bytes of the larger buffer of a rank</text>\n"
                      "<text transform=\"translate(18 %.1f) rotate(-90)\" text-anchor=\"middle\" "
                      "class=\"name\">time of a call: median of the slowest rank</text>\n",
                      (LEFT + right) / 2, HEIGHT - 14, (TOP + bottom) / 2);
}

static void add_curve(wefti_text_t *out, const bench_curve_t *curve, const scale_t *scale,
                      uint32_t number, double legend_y)
{
    const char *paint = paints[number % (sizeof paints / sizeof *paints)];
    double x = WIDTH - RIGHT + 16;
    wefti_text_printf(out, "<g stroke=\"%s\" fill=\"%s\">\n<polyline class=\"curve\"%s points=\"",
                      paint, paint, curve->dashed ? " stroke-dasharray=\"6 4\"" : "");
    for (uint32_t i = 0; i < curve->count; i++) {
        wefti_text_printf(out, "%s%.1f,%.1f", i > 0 ? " " : "", px(scale, curve->bytes[i]),
                          py(scale, curve->us[i]));
    }
    wefti_text_add(out, "\"/>\n");
    for (uint32_t i = 0; i < curve->count; i++) {
        char text[32];
        wefti_text_printf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>",
                          px(scale, curve->bytes[i]), py(scale, curve->us[i]));
        add_escaped(out, curve->name);
        wefti_text_printf(out, ": %.2f µs at %s</title></circle>\n", curve->us[i],
                          wefti_format_bytes((uint64_t)curve->bytes[i], text));
    }
    wefti_text_printf(
        out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"curve\"%s/>\n</g>\n", x,
        legend_y - 4, x + 22, legend_y - 4, curve->dashed ? " stroke-dasharray=\"6 4\"" : "");
    wefti_text_printf(out, "<text x=\"%.1f\" y=\"%.1f\">", x + 28, legend_y);
    add_escaped(out, curve->name);
    wefti_text_add(out, "</text>\n");
}

static void add_picture(wefti_text_t *out, const bench_plot_t *plot, const bench_t *bench)
{
    scale_t scale = scale_of(plot);
    wefti_text_printf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 "
        "%.0f %.0f\" role=\"img\">\n<style>\n"
        "text { font: 12px system-ui, 'DejaVu Sans', sans-serif; fill: #5b6678; }\n"
        ".title { font-size: 15px; font-weight: 600; fill: #1c2330; }\n.name { fill: #1c2330; }\n"
        ".back { fill: #fff; }\n.axis { stroke: #5b6678; }\n.grid { stroke: #d9dee6; }\n"
        ".minor { stroke: #eff1f5; }\n.curve { fill: none; stroke-width: 2; stroke-linejoin: "
        "round; }\n"
        "@media (prefers-color-scheme: dark) { text { fill: #9aa6b8; } .title, .name { fill: "
        "#e4e8ef; } .back { fill: #1a1f28; } .grid { stroke: #303848; } .minor { stroke: #222834; "
        "} g { filter: brightness(1.5); } }\n"
        "</style>\n",
        WIDTH, HEIGHT, WIDTH, HEIGHT);
    wefti_text_printf(out, "<rect class=\"back\" width=\"%.0f\" height=\"%.0f\"/>\n", WIDTH,
                      HEIGHT);
    wefti_text_printf(out,
                      "<text x=\"%.0f\" y=\"28\" class=\"title\">%s, %u rank%s, %s, %s memory, %s"
                      "</text>\n",
                      LEFT, wefti_collective_function(bench->op), bench->ranks,
                      wefti_plural(bench->ranks), weft_dtype_name(bench->dtype),
                      wefti_bench_memory_names[bench->memory],
                      bench->out_of_place ? "out of place" : "in place");
    add_axes(out, &scale);
    double legend_y = TOP + 12;
    for (uint32_t c = plot->count; c-- > 0;) { /* Weft's own on top */
        if (plot->curves[c].count > 0) {
            add_curve(out, &plot->curves[c], &scale, c, legend_y + 20 * c);
        }
    }
    wefti_text_add(out, "</svg>\n");
}

weft_status_t wefti_bench_plot_write(const bench_plot_t *plot, const bench_t *bench)
{
    wefti_text_t out;
    weft_status_t status;
    if (plot->curves[CURVE_WEFT].count == 0) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "%s: nothing was measured", plot->path);
    }
    wefti_text_init(&out, NULL);
    add_picture(&out, plot, bench);
    status = wefti_file_write_text(plot->path, &out);
    wefti_text_deinit(&out);
    return status;
}
