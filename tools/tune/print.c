/* SPDX-License-Identifier: Apache-2.0 */
/* Prints which algorithms a cost table chooses, for which sizes. */
#include <stdio.h>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/machine/fields.h"
#include "tools/tune/tune.h"

/* Sizes that one algorithm is chosen for. */
typedef struct stretch {
    uint64_t from, to;                     /* bytes of the larger buffer */
    wefti_candidate_t first, last, second; /* second best at the beginning; may have no algorithm */
} stretch_t;

static weft_status_t choose(const tune_command_t *command, weft_collective_t op, uint32_t ranks,
                            bool plain, uint64_t bytes, wefti_candidate_t *out_best,
                            wefti_candidate_t *out_second)
{
    wefti_candidate_t list[WEFTI_MAX_CANDIDATES];
    uint32_t count;
    weft_algo_params_t params = {.struct_size = sizeof params, .op = op, .group_size = ranks};
    wefti_counts_t counts = {.elem_count = bytes / (wefti_collective_is_vector(op) ? 1 : ranks) / 4,
                             .elem_bytes = 4};
    wefti_choice_t choice = {.plain = plain, .executors = command->host_count <= 1};
    wefti_tune_place(&params, command->host_of, command->host_count);
    weft_status_t status =
        wefti_cost_choose(&command->costs, &params, &counts, &choice, list, &count);
    if (status == WEFT_OK) {
        *out_best = list[0];
        *out_second = count > 1 && list[1].reason == NULL ? list[1] : (wefti_candidate_t){0};
    }
    return status;
}

/* The stretch that begins at bytes. */
static weft_status_t next_stretch(const tune_command_t *command, weft_collective_t op,
                                  uint32_t ranks, bool plain, uint64_t bytes, stretch_t *out)
{
    wefti_candidate_t best, second;
    weft_status_t status = choose(command, op, ranks, plain, bytes, &out->first, &out->second);
    out->from = out->to = bytes;
    out->last = out->first;
    for (bytes *= 2; status == WEFT_OK && bytes <= wefti_tune_max_bytes(command); bytes *= 2) {
        status = choose(command, op, ranks, plain, bytes, &best, &second);
        if (status < 0 || best.algorithm != out->first.algorithm) {
            break;
        }
        out->to = bytes;
        out->last = best;
    }
    return status;
}

static void print_stretch(const stretch_t *stretch)
{
    char from[32], to[32];
    printf("  %10s .. %-10s %-18s %10.2f .. %.2f us", wefti_format_bytes(stretch->from, from),
           wefti_format_bytes(stretch->to, to), stretch->first.algorithm->name,
           stretch->first.predicted_ns * 1e-3, stretch->last.predicted_ns * 1e-3);
    if (stretch->second.algorithm != NULL && stretch->first.predicted_ns > 0) {
        printf("   %.2f times %s", stretch->second.predicted_ns / stretch->first.predicted_ns,
               stretch->second.algorithm->name);
    }
    puts("");
}

static void write_stretch(wefti_json_t *json, const stretch_t *stretch, weft_collective_t op,
                          uint32_t ranks, bool plain)
{
    wefti_json_begin_object(json, NULL);
    wefti_json_string(json, "op", wefti_collective_function(op));
    wefti_json_int(json, "ranks", ranks);
    wefti_json_string(json, "memory", plain ? "plain" : "registered");
    wefti_json_int(json, "from_bytes", (int64_t)stretch->from);
    wefti_json_int(json, "to_bytes", (int64_t)stretch->to);
    wefti_json_string(json, "algorithm", stretch->first.algorithm->name);
    wefti_json_double(json, "from_us", stretch->first.predicted_ns * 1e-3);
    wefti_json_double(json, "to_us", stretch->last.predicted_ns * 1e-3);
    wefti_json_end_object(json);
}

static weft_status_t show_op(const tune_command_t *command, weft_collective_t op, uint32_t ranks,
                             bool plain, wefti_json_t *json)
{
    stretch_t stretch = {0};
    weft_status_t status = WEFT_OK;
    uint64_t least = wefti_collective_is_vector(op) ? 4 : 4ul * ranks;
    if (!command->json) {
        printf("%s, %u rank%s, %s memory\n", wefti_collective_function(op), ranks,
               wefti_plural(ranks), plain ? "plain" : "registered");
    }
    for (uint64_t bytes = least < 8 ? 8 : least;
         status == WEFT_OK && bytes <= wefti_tune_max_bytes(command); bytes = stretch.to * 2) {
        status = next_stretch(command, op, ranks, plain, bytes, &stretch);
        if (status == WEFT_OK && command->json) {
            write_stretch(json, &stretch, op, ranks, plain);
        } else if (status == WEFT_OK) {
            print_stretch(&stretch);
        }
    }
    return status;
}

static weft_status_t show_choices(const tune_command_t *command, wefti_json_t *json)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < command->group_count * 2 && status == WEFT_OK; i++) {
        for (uint32_t op = 1; op < WEFTI_OPS && status == WEFT_OK; op++) {
            if (wefti_tune_measures(command->only, (weft_collective_t)op)) {
                status = show_op(command, (weft_collective_t)op, command->groups[i / 2], i % 2 == 1,
                                 json);
            }
        }
    }
    return status;
}

static void write_links(wefti_json_t *json, const wefti_costs_t *costs)
{
    const wefti_link_cost_t *self = &costs->level[WEFTI_LEVEL_SELF];
    const wefti_link_cost_t *host = &costs->level[WEFTI_LEVEL_HOST];
    wefti_json_double(json, "self_beta_ns_per_byte", self->beta_ns_per_byte);
    wefti_json_double(json, "host_alpha_ns", host->alpha_ns);
    wefti_json_double(json, "host_beta_ns_per_byte", host->beta_ns_per_byte);
    wefti_json_double(json, "net_alpha_ns", costs->level[WEFTI_LEVEL_NET].alpha_ns);
    wefti_json_double(json, "net_beta_ns_per_byte", costs->level[WEFTI_LEVEL_NET].beta_ns_per_byte);
    wefti_json_double(json, "gamma_ns_per_byte", costs->gamma_ns_per_byte);
    wefti_json_double(json, "step_ns", costs->step_ns);
    wefti_json_double(json, "call_ns", costs->call_ns);
    wefti_json_int(json, "measured", (int64_t)costs->measured_count);
    wefti_json_int(json, "kernels", (int64_t)costs->kernel_count);
}

/* The largest measured call of every kind and number of threads. */
static void print_kernels(const wefti_costs_t *costs)
{
    for (size_t i = 0; i < costs->kernel_count; i++) {
        const wefti_kernel_point_t *point = &costs->kernels[i];
        bool last = i + 1 == costs->kernel_count || point[1].kind != point->kind ||
                    point[1].threads != point->threads;
        if (last) {
            printf("kernels: %-9s %2u thread%s %8.1f %s\n", wefti_kernel_kind_name(point->kind),
                   point->threads, point->threads == 1 ? " " : "s", point->size / point->ns,
                   wefti_kernel_counts_flops(point->kind) ? "GFLOP/s" : "GB/s");
        }
    }
}

/* The description that was written: what was measured of each level. */
static weft_status_t show_levels(const tune_command_t *command, wefti_json_t *json)
{
    wefti_cluster_t cluster;
    char summary[160];
    if (command->topology == NULL) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_cluster_load(command->topology, NULL, NULL, &cluster));
    wefti_json_string(json, "topology", command->topology);
    if (!command->json) {
        printf("%s: %s\n", command->topology,
               wefti_cluster_summary(&cluster, summary, sizeof summary));
    }
    for (uint32_t i = 0; i < WEFTI_TOPO_LEVELS && !command->json; i++) {
        const wefti_topo_cost_t *cost = &cluster.levels[i];
        if (cost->latency_ns > 0) {
            printf("level %-6s %10.2f us %10.2f Gbit/s\n", wefti_level_names[i],
                   (double)cost->latency_ns * 1e-3, (double)cost->bits_per_s * 1e-9);
        }
    }
    for (uint32_t i = 0; i < cluster.link_count && !command->json; i++) {
        const wefti_topo_link_t *link = &cluster.links[i];
        bool usual = link->hosts[0] == WEFTI_TOPO_NONE;
        printf("link %-7s %10.2f us %10.2f Gbit/s%s%s%s%s\n", usual ? "" : "of",
               (double)link->latency_ns * 1e-3, (double)link->bits_per_s * 1e-9, usual ? "" : "  ",
               usual ? "" : cluster.hosts[link->hosts[0]].name, usual ? "" : " and ",
               usual ? "" : cluster.hosts[link->hosts[1]].name);
    }
    wefti_cluster_deinit(&cluster);
    return WEFT_OK;
}

weft_status_t wefti_tune_show(const tune_command_t *command)
{
    const wefti_costs_t *costs = &command->costs;
    wefti_text_t text;
    wefti_json_t json;
    wefti_text_init(&text, NULL);
    wefti_json_init(&json, &text, true);
    wefti_json_begin_object(&json, NULL);
    wefti_json_string(&json, "output", command->output);
    wefti_json_string(&json, "name", costs->name);
    write_links(&json, costs);
    wefti_json_begin_array(&json, "choices");
    weft_status_t status = show_choices(command, &json);
    wefti_json_end_array(&json);
    status = status < 0 ? status : show_levels(command, &json);
    wefti_json_end_object(&json);
    if (status == WEFT_OK && command->json) {
        puts(text.failed ? "{}" : text.data);
    } else if (status == WEFT_OK) {
        if (command->host_count > 1) {
            printf("between hosts: %.0f ns + %.4f ns/B\n", costs->level[WEFTI_LEVEL_NET].alpha_ns,
                   costs->level[WEFTI_LEVEL_NET].beta_ns_per_byte);
        }
        printf("links: own memory %.4f ns/B, memory of other ranks %.0f ns + %.4f ns/B; reduction "
               "%.4f ns/B; interpreted schedule %.0f ns + %.1f ns per step\n",
               costs->level[WEFTI_LEVEL_SELF].beta_ns_per_byte,
               costs->level[WEFTI_LEVEL_HOST].alpha_ns,
               costs->level[WEFTI_LEVEL_HOST].beta_ns_per_byte, costs->gamma_ns_per_byte,
               costs->call_ns, costs->step_ns);
        print_kernels(costs);
        printf("written to %s: %zu time%s of algorithms, %zu of kernels\n", command->output,
               costs->measured_count, wefti_plural(costs->measured_count), costs->kernel_count);
    }
    wefti_text_deinit(&text);
    return status;
}
