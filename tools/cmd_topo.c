/* SPDX-License-Identifier: Apache-2.0 */
/* weft topo: draws this rank's world, this machine, or the cluster in a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/machine/draw.h"
#include "tools/interrupts.h"

#define MAX_XML 256u
#define INTERRUPTS_SHOWN 8u

enum {
    KEY_TOPOLOGY = 256,
    KEY_XML,
    KEY_BIND,
    KEY_DEVICES,
    KEY_ROUND_ROBIN,
    KEY_WIDTH,
    KEY_BIND_IRQS,
    KEY_JSON
};

static const option_def_t own_options[] = {
    {'n', "world", "N", "show the placement of N ranks"},
    {KEY_TOPOLOGY, "topology", "FILE.json", "read the description of a cluster"},
    {KEY_XML, "xml", "HOST=FILE.xml", "add a host from an hwloc file (repeatable)"},
    {KEY_BIND, "bind", "HOW", "binding of the ranks of -n: core (default), numa or none"},
    {KEY_DEVICES, "devices", NULL, "rank i of a host computes on accelerator i of that host"},
    {KEY_ROUND_ROBIN, "round-robin", NULL,
     "assign ranks to the hosts in turn (default: fill host after host)"},
    {KEY_WIDTH, "width", "COLUMNS", "width of the drawing (default: that of the terminal, or 100)"},
    {KEY_BIND_IRQS, "bind-irqs", NULL,
     "bind the interrupts of each network interface to cores of its NUMA node that have no ranks "
     "of -n (needs root)"},
    {KEY_JSON, "json", NULL, "print a description that --topology and WEFT_TOPOLOGY accept"},
    {0, NULL, NULL, NULL},
};

static int run_topo_command(int argc, char **argv);

const command_t wefti_topo_command = {
    .name = "topo",
    .brief = "draw hosts, cores, network interfaces and the links between ranks",
    .synopsis = "[-n N] [--topology FILE.json | --xml HOST=FILE.xml ..] [options]",
    .summary = "Draws hosts, sockets, NUMA nodes, caches and cores with the ranks bound to them, "
               "network interfaces and accelerators, and lists the transport between each pair of "
               "ranks, with the reason. A rank of a world (mpirun weft topo) draws that world; "
               "otherwise the command draws this machine, or the cluster in a file.",
    .epilogue = "In the drawing, + marks a core with several ranks (the lowest is shown), a dot a "
                "core without ranks.\n"
                "\n"
                "examples:\n"
                "  weft run -n 4 -- weft topo\n"
                "  weft topo --xml a=a.xml --xml b=b.xml -n 8 --json > cluster.json\n"
                "  weft compile mlp.onnx -o mlp.weft --topology cluster.json --batch 64\n",
    .options = {own_options},
    .run = run_topo_command,
};

typedef struct topo_command {
    uint32_t ranks; /* 0: not passed */
    const char *path;
    const char *xml[MAX_XML];
    uint32_t xml_count;
    wefti_bind_t bind;
    bool cards, round_robin, bind_irqs, json;
    uint32_t width;
    wefti_cluster_t cluster;
    wefti_interrupt_t *interrupts;
    uint32_t interrupt_count;
} topo_command_t;

static int read_bind(topo_command_t *command, const char *value)
{
    static const char *const names[] = {"none", "core", "numa"};
    size_t index = 0;
    int code = wefti_option_choice("topo", "--bind", value, names, 3, &index);
    command->bind = (wefti_bind_t)(WEFTI_BIND_NONE + index);
    return code;
}

static int handle(void *user, int key, const char *value)
{
    topo_command_t *command = user;
    switch (key) {
    case 'n':
        return wefti_option_u32("topo", "--world", value, 1, 4096, &command->ranks);
    case KEY_TOPOLOGY:
        command->path = value;
        return EXIT_OK;
    case KEY_XML:
        if (command->xml_count == MAX_XML) {
            return wefti_usage_error("topo", "too many --xml options: at most %u", MAX_XML);
        }
        if (strchr(value, '=') == NULL || value[0] == '=' || strcspn(value, "=") > 63) {
            return wefti_usage_error(
                "topo", "--xml %s: must be HOST=FILE.xml, the name at most 63 characters", value);
        }
        command->xml[command->xml_count++] = value;
        return EXIT_OK;
    case KEY_BIND:
        return read_bind(command, value);
    case KEY_WIDTH:
        return wefti_option_u32("topo", "--width", value, 40, 240, &command->width);
    case KEY_DEVICES:
        command->cards = true;
        return EXIT_OK;
    case KEY_ROUND_ROBIN:
        command->round_robin = true;
        return EXIT_OK;
    case KEY_BIND_IRQS:
        command->bind_irqs = true;
        return EXIT_OK;
    default:
        command->json = true;
        return EXIT_OK;
    }
}

static uint32_t terminal_width(void)
{
    struct winsize size;
    const char *columns = getenv("COLUMNS");
    long long number;
    if (isatty(STDOUT_FILENO) == 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 &&
        size.ws_col > 0) {
        return size.ws_col;
    }
    return columns != NULL && wefti_parse_int(columns, 40, 240, &number) ? (uint32_t)number : 100;
}

/* Called on every rank of a world; rank 0 prints. */
static int show_world(const topo_command_t *command, weft_context_t *context)
{
    char *text = NULL;
    weft_status_t status = weft_context_topology(
        context, command->json ? WEFT_FORMAT_JSON : WEFT_FORMAT_TEXT, command->width, &text);
    if (status >= 0 && weft_context_rank(context) == 0) {
        fputs(text, stdout);
        if (!command->json) {
            printf("\nstarted by: %s\n", weft_context_launcher(context));
        }
    }
    free(text);
    return status < 0 ? wefti_status_error("topo", status) : EXIT_OK;
}

static weft_status_t add_xml_hosts(topo_command_t *command)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t i = 0; i < command->xml_count && status >= 0; i++) {
        char name[64];
        const char *equals = strchr(command->xml[i], '=');
        snprintf(name, sizeof name, "%.*s", (int)(equals - command->xml[i]), command->xml[i]);
        wefti_hardware_t *hardware = wefti_arena_alloc(&command->cluster.arena, sizeof *hardware);
        status = hardware != NULL
                     ? wefti_hardware_from_xml(equals + 1, &command->cluster.arena, hardware)
                     : WEFT_ERR_NO_MEMORY;
        status = status >= 0 ? wefti_cluster_add_host(&command->cluster, name, hardware) : status;
    }
    return status;
}

static weft_status_t add_this_host(topo_command_t *command)
{
    char name[64] = "";
    wefti_arena_t *arena = &command->cluster.arena;
    wefti_hardware_t *hardware = wefti_arena_alloc(arena, sizeof *hardware);
    weft_status_t status =
        hardware != NULL ? wefti_hardware_discover(true, arena, hardware) : WEFT_ERR_NO_MEMORY;
    if (status >= 0) {
        status = wefti_interrupts_read("", hardware, arena, &command->interrupts,
                                       &command->interrupt_count);
    }
    if (gethostname(name, sizeof name) != 0 || name[0] == '\0') {
        snprintf(name, sizeof name, "localhost");
    }
    name[sizeof name - 1] = '\0';
    return status < 0 ? status : wefti_cluster_add_host(&command->cluster, name, hardware);
}

/* Ranks host by host, or in turn. */
static weft_status_t add_ranks(topo_command_t *command)
{
    wefti_cluster_t *cluster = &command->cluster;
    weft_status_t status = WEFT_OK;
    if (command->ranks > 0 && command->round_robin) {
        uint32_t *host_of = wefti_arena_array(&cluster->arena, command->ranks, sizeof *host_of);
        for (uint32_t r = 0; host_of != NULL && r < command->ranks; r++) {
            host_of[r] = r % cluster->host_count;
        }
        status = host_of != NULL ? wefti_cluster_set_ranks(cluster, host_of, command->ranks)
                                 : WEFT_ERR_NO_MEMORY;
    } else if (command->ranks > 0) {
        status = wefti_cluster_spread(cluster, command->ranks);
    }
    for (uint32_t h = 0; h < cluster->host_count && command->cards; h++) {
        for (uint32_t i = 0; i < cluster->hosts[h].rank_count; i++) {
            bool there = i < cluster->hosts[h].hardware->card_count;
            cluster->ranks[cluster->hosts[h].ranks[i]].card = there ? i : WEFTI_TOPO_NONE;
        }
    }
    return status < 0 ? status : wefti_place_all(cluster, command->bind);
}

static weft_status_t make_cluster(topo_command_t *command)
{
    weft_status_t status;
    if (command->path != NULL) {
        status =
            wefti_cluster_load(command->path, wefti_hardware_from_xml, NULL, &command->cluster);
    } else {
        wefti_cluster_init(&command->cluster, NULL);
        status = command->xml_count > 0 ? add_xml_hosts(command) : add_this_host(command);
    }
    status = status >= 0 ? add_ranks(command) : status;
    if (status >= 0) {
        wefti_place_nics(&command->cluster);
    }
    return status;
}

static void print_cluster(const topo_command_t *command)
{
    wefti_text_t text;
    wefti_json_t json;
    wefti_text_init(&text, NULL);
    if (command->json) {
        wefti_json_init(&json, &text, true);
        wefti_json_begin_object(&json, NULL);
        wefti_cluster_write(&command->cluster, &json);
        wefti_cluster_write_pairs(&command->cluster, NULL, NULL, &json);
        if (command->path == NULL && command->xml_count == 0) {
            wefti_interrupts_write(command->interrupts, command->interrupt_count, &json);
        }
        wefti_json_end_object(&json);
        wefti_text_add(&text, "\n");
    } else {
        wefti_cluster_draw(&command->cluster, command->width, &text);
        wefti_interrupts_print(command->interrupts, command->interrupt_count, INTERRUPTS_SHOWN,
                               &text);
        wefti_cluster_draw_pairs(&command->cluster, NULL, NULL, command->width, &text);
    }
    if (!text.failed) {
        fputs(text.data, stdout);
    }
    wefti_text_deinit(&text);
}

static int show_cluster(topo_command_t *command)
{
    if (command->bind_irqs) {
        int code = wefti_bind_interrupts("topo", command->ranks);
        if (code != EXIT_OK) {
            return code;
        }
    }
    weft_status_t status = make_cluster(command);
    if (status >= 0) {
        print_cluster(command);
    }
    wefti_cluster_deinit(&command->cluster);
    return status < 0 ? wefti_status_error("topo", status) : EXIT_OK;
}

static int run_topo_command(int argc, char **argv)
{
    topo_command_t command = {.bind = WEFTI_BIND_CORE};
    int positional = 0;
    int code = wefti_parse_options(argc, argv, &wefti_topo_command, handle, &command, &positional);
    if (code != EXIT_OK) {
        return code < 0 ? EXIT_OK : code;
    }
    if (positional != 0) {
        return wefti_usage_error("topo", "unexpected argument '%s'", argv[1]);
    }
    if (command.path != NULL && command.xml_count > 0) {
        return wefti_usage_error("topo", "--topology and --xml exclude each other");
    }
    bool described = command.path != NULL || command.xml_count > 0;
    if (described && command.bind_irqs) {
        return wefti_usage_error(
            "topo", "--bind-irqs binds interrupts of this machine: not with --topology or --xml");
    }
    command.width = command.width > 0 ? command.width : terminal_width();
    if (!described && command.ranks == 0 && !command.bind_irqs) {
        weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
        params.device_name = "cpu";
        weft_context_t *context = NULL;
        weft_status_t status = weft_context_create(&params, &context);
        if (status < 0) {
            return wefti_status_error("topo", status);
        }
        if (weft_context_world_size(context) > 1) {
            code = show_world(&command, context);
            weft_context_release(context);
            return code;
        }
        weft_context_release(context);
    }
    return show_cluster(&command);
}
