/* SPDX-License-Identifier: Apache-2.0 */
/* What a context knows of the machines that its ranks are on. */
#include "runtime/context/context.h"

#include <stdio.h>
#include <string.h>

#include "ops/plan/plan.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/machine/draw.h"
#include "runtime/machine/machine.h"

#define DEFAULT_WIDTH 100u
#define MOST_TOLD 32u /* ranks whose pairs are described with addresses and all */
#define REASON_BYTES 160u

/* The launcher may have bound the ranks already: then each has its own cores. */
static bool has_its_own(const wefti_endpoint_t *endpoint)
{
    uint32_t cpus[WEFTI_AFFINITY_CPUS];
    return wefti_binding_read(cpus) <= endpoint->free_cores + 1;
}

/* A rank that cannot be bound runs as well, if not as fast. */
static void bind(const weft_context_t *context)
{
    const wefti_endpoint_t *endpoint = context->endpoint;
    const wefti_topo_host_t *host = &context->cluster.hosts[endpoint->host_of[endpoint->rank]];
    wefti_bind_t how = (wefti_bind_t)context->settings.bind;
    if (context->one_process || how == WEFTI_BIND_AUTO || how == WEFTI_BIND_NONE ||
        (host->rank_count > 1 && has_its_own(endpoint))) {
        return;
    }
    uint32_t index = 0;
    while (host->ranks[index] != endpoint->rank) {
        index++;
    }
    if (wefti_binding_apply(index, host->rank_count, how) < 0) {
        wefti_log(&context->log, WEFT_LOG_LEVEL_WARN, "WEFT_BIND: %s", weft_last_error());
    }
}

/* What makes progress between hosts runs on those of the rank's processors that are next to its
 * network interface; it was started before the interface was known. */
static void bind_progress(const weft_context_t *context)
{
    const wefti_topo_rank_t *rank = &context->cluster.ranks[context->endpoint->rank];
    const wefti_hardware_t *hardware = context->cluster.hosts[rank->host].hardware;
    uint32_t cpus[WEFTI_AFFINITY_CPUS], kept = 0;
    if (context->settings.topology[0] != '\0' || rank->nic == WEFTI_TOPO_NONE) {
        return;
    }
    for (uint32_t i = 0, count = wefti_binding_read(cpus); i < count; i++) {
        if (wefti_place_is_near(hardware, &hardware->nics[rank->nic], cpus[i])) {
            cpus[kept++] = cpus[i];
        }
    }
    if (kept > 0) {
        context->endpoint->ops->bind_progress(context->endpoint, cpus, kept);
    }
}

weft_status_t wefti_context_find_cluster(weft_context_t *context)
{
    wefti_endpoint_t *endpoint = context->endpoint;
    wefti_cluster_t found;
    bind(context);
    /* Threads share what they are bound to, and looking takes time that one host does not need. */
    if (context->settings.topology[0] == '\0' &&
        (endpoint->host_count == 1 || context->one_process)) {
        return WEFT_OK;
    }
    weft_status_t status = wefti_cluster_gather(endpoint, &found, &context->cluster_digest);
    if (status >= 0) {
        wefti_cluster_deinit(&context->cluster);
        context->cluster = found;
        bind_progress(context);
    }
    return status;
}

/* Elsewhere, sums of such a plan may be added in another order. */
static bool leaves_order(const weft_plan_t *plan)
{
    bool any = false;
    for (uint32_t i = 0; i < plan->collective_count; i++) {
        any = any || (wefti_collective_reduces(plan->collectives[i].op) &&
                      strcmp(plan->collectives[i].order, "any") == 0);
    }
    return any;
}

void wefti_context_compare_placement(const weft_context_t *context, const weft_plan_t *plan)
{
    wefti_digest_t here;
    char summary[160], hex[65];
    if (plan->topology == NULL || plan->topology[0] == '\0' || context->endpoint->rank != 0 ||
        wefti_cluster_placement_digest(&context->cluster, &here) < 0) {
        return;
    }
    wefti_digest_hex(&here, hex);
    if (strcmp(hex, plan->placement) != 0) {
        wefti_log(&context->log, WEFT_LOG_LEVEL_WARN,
                  "plan: compiled for %s, but running on %s; %s, the chosen algorithms may not be "
                  "the fastest",
                  plan->topology, wefti_cluster_summary(&context->cluster, summary, sizeof summary),
                  leaves_order(plan) ? "with order=any sums may have other bits"
                                     : "results are the same");
    }
}

/* ---- for people ---- */

static const char *const transports[] = {"?", "self", "shm", "inproc", "tcp", "verbs"};

/* How each rank reaches each other one. */
typedef struct world {
    const wefti_cluster_t *cluster;
    uint8_t *links; /* [rank][rank][link_bytes] an index of transports; the rest is a reason */
    uint32_t count;
    size_t link_bytes;
} world_t;

static uint8_t code_of(const char *name)
{
    uint8_t code = sizeof transports / sizeof *transports - 1;
    while (code > 0 && strcmp(transports[code], name) != 0) {
        code--;
    }
    return code;
}

static void path_between(void *user, uint32_t a, uint32_t b, wefti_topo_path_t *out)
{
    const world_t *world = user;
    const uint8_t *link = world->links + ((size_t)a * world->count + b) * world->link_bytes;
    const char *real = transports[*link < sizeof transports / sizeof *transports ? *link : 0];
    if (strcmp(real, out->transport) != 0) {
        out->why[0] = '\0'; /* was only a guess */
    }
    if (strcmp(real, "tcp") == 0 || strcmp(real, "verbs") == 0) {
        out->path[0] = '\0'; /* the link says by which interfaces it goes */
    }
    snprintf(out->transport, sizeof out->transport, "%s", real);
    if (world->link_bytes > 1 && link[1] != '\0') {
        snprintf(out->why, sizeof out->why, "%.*s", (int)REASON_BYTES, (const char *)link + 1);
    }
}

static weft_status_t gather_links(weft_context_t *context, world_t *world)
{
    uint32_t n = world->count;
    world->link_bytes = n <= MOST_TOLD ? sizeof(uint8_t) + REASON_BYTES : sizeof(uint8_t);
    uint8_t *own = wefti_alloc(context->allocator, n * world->link_bytes);
    world->links = wefti_alloc(context->allocator, (size_t)n * n * world->link_bytes);
    weft_status_t status = own != NULL && world->links != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    for (uint32_t r = 0; r < n && status >= 0; r++) {
        char transport[16], reason[REASON_BYTES] = "";
        wefti_endpoint_describe(context->endpoint, r, transport, sizeof transport, reason,
                                sizeof reason);
        uint8_t *link = own + r * world->link_bytes;
        link[0] = code_of(transport);
        memcpy(link + 1, reason, world->link_bytes - 1);
    }
    status = wefti_endpoint_agree(context->endpoint, status);
    if (status >= 0) {
        status =
            wefti_endpoint_all_gather(context->endpoint, own, n * world->link_bytes, world->links);
    }
    wefti_free(context->allocator, own);
    return status;
}

static void write_world(world_t *world, weft_format_t format, uint32_t width, wefti_text_t *out)
{
    if (format == WEFT_FORMAT_TEXT) {
        width = width == 0 ? DEFAULT_WIDTH : width;
        wefti_cluster_draw(world->cluster, width, out);
        wefti_cluster_draw_pairs(world->cluster, path_between, world, width, out);
        return;
    }
    wefti_json_t writer;
    wefti_json_init(&writer, out, true);
    wefti_json_begin_object(&writer, NULL);
    wefti_cluster_write(world->cluster, &writer);
    wefti_cluster_write_pairs(world->cluster, path_between, world, &writer);
    wefti_json_end_object(&writer);
    wefti_text_add(out, "\n");
}

weft_status_t weft_context_topology(weft_context_t *context, weft_format_t format, uint32_t width,
                                    char **out_text)
{
    WEFT_CHECK_OUT(out_text);
    WEFT_CHECK_ARG(context);
    WEFT_CHECK_FORMAT(format);
    WEFTI_IN_CONTROL(context->endpoint, TOPOLOGY);
    wefti_text_t text;
    wefti_cluster_t fresh;
    wefti_digest_t digest;
    WEFT_RETURN_IF_ERROR(wefti_cluster_gather(context->endpoint, &fresh, &digest));
    world_t world = {.cluster = &fresh, .count = context->endpoint->world_size};
    weft_status_t status = gather_links(context, &world);
    wefti_text_init(&text, NULL); /* the default allocator is malloc: the caller frees */
    if (status >= 0) {
        write_world(&world, format, width, &text);
        *out_text = wefti_text_take(&text);
        status = *out_text != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    }
    wefti_text_deinit(&text);
    wefti_free(context->allocator, world.links);
    wefti_cluster_deinit(&fresh);
    return status;
}
