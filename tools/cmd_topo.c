/* SPDX-License-Identifier: Apache-2.0 */
/* weft topo: the world that this process is a rank of, this machine, or one that a file describes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "ops/topo/draw.h"
#include "runtime/base/error.h"
#include "tools/interrupts.h"

#define MAX_XML 256u
#define INTERRUPTS_SHOWN 8u

enum {
    KEY_TOPOLOGY = 256,
    KEY_XML,
    KEY_BIND,
    KEY_CARDS,
    KEY_ROUND_ROBIN,
    KEY_WIDTH,
    KEY_BIND_IRQS,
    KEY_JSON
};

static const option_def_t own_options[] = {
    {'n', "ranks", "N", "show where N ranks would go"},
    {KEY_TOPOLOGY, "topology", "FILE.json", "the cluster that a file describes"},
    {KEY_XML, "xml", "HOST=FILE.xml", "a host that hwloc described (repeatable)"},
    {KEY_BIND, "bind", "HOW", "with ranks that are not running: core (default), numa or none"},
    {KEY_CARDS, "cards", NULL, "the nth rank of a host computes on its nth card"},
    {KEY_ROUND_ROBIN, "round-robin", NULL, "ranks go to the hosts in turn, not host by host"},
    {KEY_WIDTH, "width", "COLUMNS", "of the drawing (default: the terminal's, else 100)"},
    {KEY_BIND_IRQS, "bind-irqs", NULL,
     "bind interrupts of this host's interfaces to cores next to them; "
     "with -n away from those of ranks (as root)"},
    {KEY_JSON, "json", NULL, "print a description that --topology and WEFT_TOPOLOGY take"},
    {0, NULL, NULL, NULL},
};

static int run_topo_command(int argc, char **argv);

const command_t wefti_topo_command = {
    .name = "topo",
    .brief = "draw hosts, cores, network interfaces and the links between ranks",
    .synopsis = "[-n N] [--topology FILE | --xml HOST=FILE ..] [options]",
    .summary =
        "Draws hosts, sockets, NUMA nodes, caches and cores with the ranks that are bound to them, "
        "network "
        "interfaces and cards, and says by what each pair of ranks is connected, and why. As a "
        "rank "
        "of "
        "a world (mpirun weft topo) it draws that world as it is, otherwise this machine or a "
        "file's.",
    .epilogue =
        "example:\n"
        "  weft run -n 4 -- weft topo\n"
        "  weft topo --xml a=a.xml --xml b=b.xml -n 8 --json > cluster.json\n"
        "  weft compile mlp.onnx -o mlp.weft --topology cluster.json --batch 64\n"
        "A number with + is the lowest of several ranks on a core, a dot a core without any.\n",
    .options = {own_options},
    .run = run_topo_command,
};

typedef struct topo_command {
    uint32_t ranks; /* 0: none said */
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
    for (uint32_t i = 0; i < 3; i++) {
        if (strcmp(value, names[i]) == 0) {
            command->bind = (wefti_bind_t)(WEFTI_BIND_NONE + i);
            return EXIT_OK;
        }
    }
    return wefti_usage_error("topo", "--bind %s is not core, numa or none", value);
}

static int handle(void *user, int key, const char *value)
{
    topo_command_t *command = user;
    long long number;
    switch (key) {
    case 'n':
        if (!wefti_parse_int(value, 1, 4096, &number)) {
            return wefti_usage_error("topo", "--ranks %s is not within 1 to 4096", value);
        }
        command->ranks = (uint32_t)number;
        return EXIT_OK;
    case KEY_TOPOLOGY:
        command->path = value;
        return EXIT_OK;
    case KEY_XML:
        if (command->xml_count == MAX_XML) {
            return wefti_usage_error("topo", "more than %u --xml options", MAX_XML);
        }
        if (strchr(value, '=') == NULL || value[0] == '=' || strcspn(value, "=") > 63) {
            return wefti_usage_error("topo", "--xml %s: expected HOST=FILE.xml", value);
        }
        command->xml[command->xml_count++] = value;
        return EXIT_OK;
    case KEY_BIND:
        return read_bind(command, value);
    case KEY_WIDTH:
        if (!wefti_parse_int(value, 40, 240, &number)) {
            return wefti_usage_error("topo", "--width %s is not within 40 to 240", value);
        }
        command->width = (uint32_t)number;
        return EXIT_OK;
    case KEY_CARDS:
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

/* A rank of a world: all of them tell, the first one prints. */
static int show_world(const topo_command_t *command, weft_context_t *context)
{
    char *text = NULL;
    weft_status_t status = weft_context_topology(context, command->json, command->width, &text);
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
        return wefti_usage_error("topo", "--bind-irqs is for this machine, not for a file's");
    }
    command.width = command.width > 0 ? command.width : terminal_width();
    if (!described && command.ranks == 0 && !command.bind_irqs) {
        weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
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
