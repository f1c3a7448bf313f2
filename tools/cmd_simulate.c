/* SPDX-License-Identifier: Apache-2.0 */
/* weft simulate: a step of a plan on a described cluster, on a clock. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fusion/simulate/simulate.h"
#include "runtime/base/error.h"
#include "runtime/machine/place.h"
#include "tools/output.h"
#include "tools/tool.h"

#define COLLECTIVES_SHOWN 32u
#define LARGE_BYTES ((uint64_t)256 << 20)
#define MANY_FILES 4096u

enum {
    KEY_TOPOLOGY = 256,
    KEY_COSTS,
    KEY_PROFILE,
    KEY_EXACT,
    KEY_OPS,
    KEY_KERNELS,
    KEY_GOAL,
    KEY_CHAKRA,
    KEY_PERFETTO,
    KEY_JSON
};

static const option_def_t own_options[] = {
    {KEY_TOPOLOGY, "topology", "FILE.json", "the cluster: hosts, racks, links and their costs"},
    {'n', "world", "N", "simulate N ranks (default: those of the plan)"},
    {KEY_COSTS, "costs", "COSTS.json",
     "cost table of kernels and links, written by weft tune (default: WEFT_COSTS, else default "
     "costs)"},
    {KEY_PROFILE, "profile", "PROFILE.json",
     "take kernel times from weft run --write-profile, of a run with any number of ranks and the "
     "same batch per rank"},
    {KEY_EXACT, "exact", "N", "simulate every rank of worlds of up to N ranks (default: 256)"},
    {KEY_GOAL, "goal", "FILE.goal", "write the step as a GOAL schedule (LogGOPSim, ATLAHS)"},
    {KEY_CHAKRA, "chakra", "PREFIX",
     "write Chakra execution traces PREFIX.RANK.et (ASTRA-sim), one file per rank"},
    {KEY_PERFETTO, "perfetto", "FILE.json", "write the timeline for https://ui.perfetto.dev"},
    {KEY_OPS, "ops", "OPS.json", "declare operators from a file (repeatable)"},
    {KEY_KERNELS, "kernels", "LIB.so", "load operators and kernels from a plugin (repeatable)"},
    {KEY_JSON, "json", NULL, "print one JSON object"},
    {0, NULL, NULL, NULL},
};

static int run_simulate_command(int argc, char **argv);

const command_t wefti_simulate_command = {
    .name = "simulate",
    .brief = "predict a step of a plan on a described cluster",
    .synopsis = "PLAN.weft [--topology FILE.json] [-n N] [--costs COSTS.json] [--json]\n"
                "PLAN.weft [--goal FILE] [--chakra PREFIX] [--perfetto FILE]",
    .summary =
        "Runs the schedules of a step's collectives and its kernels on a clock, event by event, "
        "for up to 65536 ranks. Each link of the topology has a latency and a rate, which the "
        "moves on it share. Up to 256 ranks are all simulated. Of more, one rank stands for each "
        "class of ranks with equal places in the cluster and equal schedules.\n"
        "\n"
        "Prints the step time, the exposed communication of each collective, the busiest links, "
        "and what was simulated rank by rank and what by class. Without a topology all ranks are "
        "on one host.\n"
        "\n"
        "Ranks that outnumber the cores of their host are bound to these in turn, as weft run "
        "binds "
        "them, and share them. Cores are those of the topology, or of the machine of the cost "
        "table; of more than 64 ranks on a host of which nothing is known each has a core.",
    .epilogue = "examples:\n"
                "  weft simulate gpt2.weft --topology cluster.json\n"
                "  weft simulate mlp.weft -n 8 --costs costs.json --perfetto step.json\n",
    .options = {own_options},
    .run = run_simulate_command,
};

typedef struct simulate_command {
    weft_registry_t *registry;
    const char *topology, *costs_path, *profile_path, *goal, *chakra, *perfetto;
    uint32_t ranks, exact_ranks;
    bool json;
    weft_plan_t *plan;
    wefti_cluster_t cluster;
    wefti_costs_t costs;
    sim_world_t world;
    sim_step_t step;
} simulate_command_t;

static int handle(void *user, int key, const char *value)
{
    simulate_command_t *command = user;
    weft_status_t status;
    switch (key) {
    case 'n':
        return wefti_option_u32("simulate", "--world", value, 1, WEFTI_TOPO_MAX_RANKS,
                                &command->ranks);
    case KEY_TOPOLOGY:
        command->topology = value;
        break;
    case KEY_COSTS:
        command->costs_path = value;
        break;
    case KEY_PROFILE:
        command->profile_path = value;
        break;
    case KEY_EXACT:
        return wefti_option_u32("simulate", "--exact", value, 1, 4096, &command->exact_ranks);
    case KEY_GOAL:
        command->goal = value;
        break;
    case KEY_CHAKRA:
        command->chakra = value;
        break;
    case KEY_PERFETTO:
        command->perfetto = value;
        break;
    case KEY_OPS:
    case KEY_KERNELS:
        status = key == KEY_OPS ? weft_registry_load_ops(command->registry, value)
                                : weft_registry_load_plugin(command->registry, value);
        return status < 0 ? wefti_status_error("simulate", status) : EXIT_OK;
    default:
        command->json = true;
        break;
    }
    return EXIT_OK;
}

static weft_status_t load_costs(simulate_command_t *command)
{
    const char *variable = getenv("WEFT_COSTS");
    if (command->costs_path == NULL && variable != NULL && variable[0] != '\0') {
        command->costs_path = variable;
    }
    if (command->costs_path != NULL && strcmp(command->costs_path, "default") != 0) {
        return wefti_costs_load(&command->costs, command->costs_path, NULL);
    }
    command->costs_path = NULL;
    wefti_costs_default(&command->costs, NULL);
    return WEFT_OK;
}

/* The ranks of --world, of the topology, or of the plan; on one host if nothing else is known. */
static weft_status_t place_ranks(simulate_command_t *command)
{
    wefti_cluster_t *cluster = &command->cluster;
    if (command->topology != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_cluster_load(command->topology, NULL, NULL, cluster));
    } else {
        wefti_cluster_init(cluster, NULL);
        WEFT_RETURN_IF_ERROR(wefti_cluster_add_host(cluster, "host0", NULL));
    }
    uint32_t wanted = command->ranks > 0        ? command->ranks
                      : cluster->rank_count > 0 ? cluster->rank_count
                                                : command->plan->world_size;
    if (cluster->rank_count == 0) {
        WEFT_RETURN_IF_ERROR(wefti_cluster_spread(cluster, wanted));
    }
    if (wanted != cluster->rank_count) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "world_size",
                                 "does not match the topology: %u, %s has %u ranks", wanted,
                                 command->topology, cluster->rank_count);
    }
    WEFT_RETURN_IF_ERROR(wefti_place_all(cluster, WEFTI_BIND_CORE));
    wefti_place_nics(cluster);
    return WEFT_OK;
}

static weft_status_t simulate(simulate_command_t *command, const char *path)
{
    weft_registry_t *registry = command->registry;
    WEFT_RETURN_IF_ERROR(weft_plan_load(path, registry, &command->plan));
    WEFT_RETURN_IF_ERROR(load_costs(command));
    WEFT_RETURN_IF_ERROR(place_ranks(command));
    WEFT_RETURN_IF_ERROR(wefti_sim_world_init(&command->world, &command->cluster, &command->costs,
                                              command->costs_path != NULL));
    command->world.exact_ranks = command->exact_ranks;
    if (command->profile_path != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_sim_world_load_profile(&command->world, command->profile_path));
    }
    return wefti_sim_step(&command->world, command->plan, registry, &command->step);
}

/* ---- results ---- */

typedef struct busy_link {
    sim_kind_t kind;
    uint32_t part, count; /* count: links that are as busy */
    double share, bytes;  /* of the step in which it moves bytes */
} busy_link_t;

/* Of each kind the busiest link with a rate, the busiest kind first. */
static uint32_t find_busiest(const simulate_command_t *command, busy_link_t out[SIM_KINDS])
{
    const sim_world_t *w = &command->world;
    uint32_t count = 0;
    for (uint32_t kind = 0; kind < SIM_CORE; kind++) {
        busy_link_t best = {.kind = (sim_kind_t)kind};
        for (uint32_t part = 0; part < w->part_count[kind]; part++) {
            double rate = w->rate[kind][part], bytes = w->carried[kind][part];
            double share = rate > 0 ? bytes / rate / command->step.step_ns : 0;
            if (share > best.share * (1 + 1e-9)) {
                best = (busy_link_t){(sim_kind_t)kind, part, 0, share, bytes};
            }
            best.count += share > 0 && share >= best.share * (1 - 1e-9);
        }
        uint32_t at = count;
        if (best.share <= 0) {
            continue;
        }
        for (; at > 0 && out[at - 1].share < best.share; at--) {
            out[at] = out[at - 1];
        }
        out[at] = best;
        count++;
    }
    return count;
}

static const char *how_of(const sim_event_t *event)
{
    return event->measured   ? ", measured"
           : event->exact    ? ", every rank"
           : event->merged   ? ", by place in the cluster, some places merged"
           : event->by_place ? ", by place in the cluster"
                             : ", by class";
}

static void print_collectives(const simulate_command_t *command)
{
    const sim_step_t *step = &command->step;
    uint32_t shown = 0;
    puts("collectives        begin, us       end, us   exposed, us  algorithm, ranks simulated");
    for (size_t i = 0; i < step->count; i++) {
        const sim_event_t *event = &step->events[i];
        if (!event->collective || ++shown > COLLECTIVES_SHOWN) {
            continue;
        }
        wefti_text_t name;
        wefti_text_init(&name, NULL);
        wefti_text_add_printable(&name, command->plan->collectives[event->index].name);
        printf("  %-14.24s %12.1f  %12.1f  %12.1f  %s%s", name.failed ? "" : name.data,
               event->begin_ns * 1e-3, event->end_ns * 1e-3, event->exposed_ns * 1e-3,
               event->algorithm != NULL ? event->algorithm : "none: groups of one rank",
               event->algorithm != NULL ? how_of(event) : "");
        if (event->classes > 0 && !event->exact) {
            printf(": %" PRIu32 " class%s", event->classes, event->classes == 1 ? "" : "es");
        }
        puts("");
        wefti_text_deinit(&name);
    }
    if (shown > COLLECTIVES_SHOWN) {
        printf("  and %" PRIu32 " more (--json has all)\n", shown - COLLECTIVES_SHOWN);
    }
}

static void print_text(const simulate_command_t *command)
{
    char summary[160], bytes[32], name[160];
    const sim_step_t *step = &command->step;
    busy_link_t busy[SIM_KINDS];
    printf("%s; costs: %s\n", wefti_cluster_summary(&command->cluster, summary, sizeof summary),
           command->costs_path != NULL ? command->costs.name : "default");
    printf("step               %12.1f us\n"
           "  kernels          %12.1f us\n"
           "  communication    %12.1f us, %s; %.1f us exposed\n",
           step->step_ns * 1e-3, step->compute_ns * 1e-3, step->comm_ns * 1e-3,
           step->inline_progress ? "between kernels" : "overlapped", step->exposed_ns * 1e-3);
    print_collectives(command);
    uint32_t count = find_busiest(command, busy);
    puts(count > 0 ? "busiest links" : "busiest links: no link has a rate");
    for (uint32_t i = 0; i < count; i++) {
        wefti_sim_link_name(&command->world, busy[i].kind, busy[i].part, name, sizeof name);
        printf("  %5.1f %%  %10s  %s", 100 * busy[i].share,
               wefti_format_bytes((uint64_t)busy[i].bytes, bytes), name);
        printf(busy[i].count > 1 ? " (and %" PRIu32 " more)\n" : "\n", busy[i].count - 1);
    }
    if (step->exact) {
        puts("simulated exactly: every rank");
    } else {
        printf("simulated by class: up to %" PRIu32 " of %" PRIu32
               " ranks, each for all ranks like it\n",
               step->classes, command->world.ranks);
    }
}

static void add_events(const simulate_command_t *command, wefti_json_t *json)
{
    const sim_step_t *step = &command->step;
    wefti_json_begin_array(json, "collectives");
    for (size_t i = 0; i < step->count; i++) {
        const sim_event_t *event = &step->events[i];
        if (!event->collective) {
            continue;
        }
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "name", command->plan->collectives[event->index].name);
        wefti_json_double(json, "begin_us", event->begin_ns * 1e-3);
        wefti_json_double(json, "end_us", event->end_ns * 1e-3);
        wefti_json_double(json, "exposed_us", event->exposed_ns * 1e-3);
        wefti_json_string(json, "algorithm", event->algorithm);
        wefti_json_bool(json, "measured", event->measured);
        wefti_json_bool(json, "exact", event->exact);
        wefti_json_bool(json, "by_place", event->by_place);
        wefti_json_bool(json, "merged", event->merged);
        wefti_json_int(json, "classes", event->classes);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
}

static void print_json(const simulate_command_t *command)
{
    char summary[160], name[160];
    const sim_step_t *step = &command->step;
    busy_link_t busy[SIM_KINDS];
    output_object_t object;
    wefti_json_t *json = wefti_output_begin(&object);
    wefti_json_int(json, "ranks", command->world.ranks);
    wefti_json_string(json, "topology",
                      wefti_cluster_summary(&command->cluster, summary, sizeof summary));
    wefti_json_string(json, "costs", command->costs_path != NULL ? command->costs.name : "default");
    wefti_json_double(json, "step_us", step->step_ns * 1e-3);
    wefti_json_double(json, "kernels_us", step->compute_ns * 1e-3);
    wefti_json_double(json, "communication_us", step->comm_ns * 1e-3);
    wefti_json_double(json, "exposed_us", step->exposed_ns * 1e-3);
    wefti_json_bool(json, "inline", step->inline_progress);
    wefti_json_bool(json, "exact", step->exact);
    wefti_json_int(json, "classes", step->classes);
    add_events(command, json);
    wefti_json_begin_array(json, "busiest_links");
    uint32_t count = find_busiest(command, busy);
    for (uint32_t i = 0; i < count; i++) {
        wefti_sim_link_name(&command->world, busy[i].kind, busy[i].part, name, sizeof name);
        wefti_json_begin_object(json, NULL);
        wefti_json_string(json, "link", name);
        wefti_json_double(json, "busy", busy[i].share);
        wefti_json_double(json, "bytes", busy[i].bytes);
        wefti_json_int(json, "links", busy[i].count);
        wefti_json_end_object(json);
    }
    wefti_json_end_array(json);
    wefti_output_end(&object);
}

/* Files that take long, or much room, are announced. */
static void announce(void *user, const char *path, uint64_t bytes, uint32_t files)
{
    char size[32];
    (void)user;
    if (bytes < LARGE_BYTES && files < MANY_FILES) {
        return;
    }
    fprintf(stderr, "weft simulate: writing %s: about %s", path, wefti_format_bytes(bytes, size));
    if (files > 1) {
        fprintf(stderr, " in %" PRIu32 " files", files);
    }
    fputs("\n", stderr);
}

/* A line on a terminal, which the end removes. */
static void show_progress(void *user, uint32_t done, uint32_t ranks)
{
    uint32_t *shown = user, percent = (uint32_t)(100ull * done / ranks);
    if (isatty(STDERR_FILENO) != 1 || ranks < 1024 || (percent == *shown && done < ranks)) {
        return;
    }
    *shown = percent;
    if (done < ranks) {
        fprintf(stderr, "\r\033[K%3" PRIu32 " %%  rank %" PRIu32 " of %" PRIu32, percent, done,
                ranks);
    } else {
        fputs("\r\033[K", stderr);
    }
}

static weft_status_t write_files(const simulate_command_t *command)
{
    weft_status_t status = WEFT_OK;
    uint32_t shown = 0;
    const sim_progress_t progress = {announce, show_progress, &shown};
    if (command->goal != NULL) {
        status = wefti_sim_write_goal(&command->world, command->plan, command->registry,
                                      command->goal, &progress);
    }
    if (status >= 0 && command->chakra != NULL) {
        status = wefti_sim_write_chakra(&command->world, command->plan, command->registry,
                                        command->chakra, &progress);
    }
    if (status >= 0 && command->perfetto != NULL) {
        status = wefti_sim_write_perfetto(command->plan, &command->step, command->perfetto);
    }
    if (status < 0 && shown > 0) { /* before the message */
        fputs("\r\033[K", stderr);
    }
    return status;
}

static int run(simulate_command_t *command, int positional, char **argv)
{
    if (positional != 1) {
        return positional == 0 ? wefti_usage_error("simulate", "a plan is required: PLAN.weft")
                               : wefti_usage_error("simulate", "unexpected argument '%s'", argv[2]);
    }
    weft_status_t status = simulate(command, argv[1]);
    status = status >= 0 ? write_files(command) : status;
    if (status < 0) {
        return wefti_status_error("simulate", status);
    }
    if (command->json) {
        print_json(command);
    } else {
        print_text(command);
    }
    return EXIT_OK;
}

static int run_simulate_command(int argc, char **argv)
{
    simulate_command_t command = {.exact_ranks = SIM_EXACT_RANKS};
    int positional = 0;
    weft_status_t status = weft_registry_create(NULL, &command.registry);
    if (status < 0) {
        return wefti_status_error("simulate", status);
    }
    int code =
        wefti_parse_options(argc, argv, &wefti_simulate_command, handle, &command, &positional);
    if (code == EXIT_OK) {
        code = run(&command, positional, argv);
    }
    wefti_sim_step_deinit(&command.step);
    wefti_sim_world_deinit(&command.world);
    wefti_cluster_deinit(&command.cluster);
    wefti_costs_deinit(&command.costs);
    weft_plan_release(command.plan);
    weft_registry_destroy(command.registry);
    return code < 0 ? EXIT_OK : code;
}
