/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/context/context.h"

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/params.h"
#include "runtime/base/device_plugin.h"
#include "runtime/flight/live.h"
#include "runtime/machine/machine.h"
#include "transport/bootstrap/bootstrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELLO_SETTINGS 32u
#define STAGING ((size_t)512 << 10)
/* Each round costs a trip between hosts, or a change of processes: fewer, longer ones. */
#define SLOW_TURN_STAGING ((size_t)2 << 20)

/* What ranks tell each other when they meet. */
typedef struct hello {
    uint32_t free_cores;
    uint32_t rdma; /* all links to other hosts are verbs */
    uint32_t on_device, pad;
    uint64_t settings[HELLO_SETTINGS]; /* hashes of the collective settings' text, in table order */
} hello_t;

static void warn_of_variable(void *log, const char *name, const char *known)
{
    wefti_log(log, WEFT_LOG_LEVEL_WARN, "unknown variable %s: did you mean %s?", name, known);
}

static weft_status_t read_params(weft_context_t *context, const weft_context_params_t *params,
                                 wefti_job_t *job, wefti_endpoint_params_t *endpoint)
{
    WEFT_RETURN_IF_ERROR(wefti_settings_load(&context->settings));
    if (params->isa < WEFT_ISA_DEFAULT || params->isa > WEFT_ISA_AVX512) {
        return wefti_error_field(
            WEFT_ERR_INVALID_ARGUMENT, "isa",
            "invalid value %d: expected -1 (the setting WEFT_ISA), 0 (portable), "
            "1 (avx2) or 2 (avx512)",
            (int)params->isa);
    }
    if (params->isa != WEFT_ISA_DEFAULT) {
        context->settings.isa = params->isa;
    }
    if (context->settings.isa > wefti_isa_detect()) {
        context->settings.isa = wefti_isa_detect();
    }
    if ((uint32_t)params->progress > WEFT_PROGRESS_THREAD) {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "progress",
                                 "invalid value %d: expected a weft_progress_t",
                                 (int)params->progress);
    }
    if (params->progress != WEFT_PROGRESS_DEFAULT) {
        context->settings.progress = params->progress;
    }
    context->log.fn = params->log;
    context->log.user = params->log_user;
    context->log.level = (weft_log_level_t)context->settings.log_level;

    const wefti_job_wish_t wish = {params->rank, params->world_size,
                                   params->hub != NULL ? "hub:" : params->address};
    WEFT_RETURN_IF_ERROR(wefti_job_probe(&wish, &context->log, job));
    if (job->rank == 0 && !wefti_settings_misspelt_muted()) {
        wefti_settings_find_misspelt(warn_of_variable, &context->log);
    }
    snprintf(context->launcher, sizeof context->launcher, "%s",
             params->hub != NULL ? "hub" : job->launcher);
    endpoint->rank = job->rank;
    endpoint->world_size = job->world_size;
    endpoint->address = job->address;
    snprintf(context->world, sizeof context->world, "%s", job->address);
    endpoint->job = job;
    endpoint->hub = params->hub;
    endpoint->interrupt.fn = params->interrupt;
    endpoint->interrupt.user = params->interrupt_user;
    return WEFT_OK;
}

/* Of a table of costs what matters is what it says; of a description of the cluster, too, but that
 * is compared when it has been read. */
static uint32_t collective_settings(const weft_context_t *context, uint64_t *hashes,
                                    const char **names)
{
    size_t count = 0;
    uint32_t used = 0;
    const wefti_setting_def_t *defs = wefti_setting_defs(&count);
    for (size_t i = 0; i < count && used < HELLO_SETTINGS; i++) {
        if (defs[i].collective) {
            const char *text = getenv(defs[i].name);
            names[used] = defs[i].name;
            hashes[used++] =
                strcmp(defs[i].name, "WEFT_COSTS") == 0 ? wefti_costs_digest(&context->costs)
                : strcmp(defs[i].name, "WEFT_TOPOLOGY") == 0
                    ? context->settings.topology[0] != '\0'
                    : wefti_hash_text(WEFTI_HASH_START,
                                      text != NULL && *text != '\0' ? text : defs[i].default_text);
        }
    }
    return used;
}

static bool uses_rdma(wefti_endpoint_t *endpoint)
{
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        char name[32] = "verbs", reason[8];
        if (endpoint->host_of[r] != endpoint->host_of[endpoint->rank]) {
            wefti_endpoint_describe(endpoint, r, name, sizeof name, reason, sizeof reason);
        }
        if (strcmp(name, "verbs") != 0) {
            return false;
        }
    }
    return true;
}

/*
 * Compares the collective settings and finds out whether every rank has a core to spare and which
 * network there is. status: how this rank fared before.
 */
static weft_status_t meet(weft_context_t *context, weft_status_t status)
{
    wefti_endpoint_t *endpoint = context->endpoint;
    const char *names[HELLO_SETTINGS] = {NULL};
    hello_t own = {endpoint->free_cores, uses_rdma(endpoint), context->device != NULL, 0, {0}};
    uint32_t count = collective_settings(context, own.settings, names);
    hello_t *all = wefti_alloc(context->allocator, endpoint->world_size * sizeof(*all));
    status = status == WEFT_OK && all == NULL ? WEFT_ERR_NO_MEMORY : status;

    WEFT_TRY(status, wefti_endpoint_agree(endpoint, status), out);
    WEFT_TRY(status, wefti_endpoint_all_gather(endpoint, &own, sizeof(own), all), out);
    bool spare = endpoint->world_size > 1, rdma = true;
    for (uint32_t rank = 0; rank < endpoint->world_size; rank++) {
        spare = spare && all[rank].free_cores > 0;
        rdma = rdma && all[rank].rdma != 0;
        if (all[rank].on_device != all[0].on_device) {
            status = wefti_error(WEFT_ERR_MISMATCH,
                                 "device: rank 0 is on %s, rank %u on %s; all ranks must be on "
                                 "devices, or none",
                                 all[0].on_device ? "a device" : "the CPU", rank,
                                 all[rank].on_device ? "a device" : "the CPU");
            goto out;
        }
        for (uint32_t i = 0; i < count; i++) {
            if (all[rank].settings[i] != all[0].settings[i]) {
                status = wefti_error(WEFT_ERR_MISMATCH,
                                     "%s: ranks 0 and %u have different values; set it to the same "
                                     "value on all ranks",
                                     names[i], rank);
                goto out;
            }
        }
    }
    if (endpoint->host_count > 1 && context->settings.costs[0] == '\0') {
        wefti_costs_set_net(&context->costs, rdma);
    }
    /* Between hosts communication is mostly waiting for the network, which takes no core. */
    bool far = endpoint->host_count > 1 && !context->one_process;
    context->progress_thread = context->settings.progress == WEFT_PROGRESS_THREAD ||
                               (context->settings.progress == WEFT_PROGRESS_AUTO && (spare || far));
out:
    wefti_free(context->allocator, all);
    return status;
}

/* Shares the rank's cores between kernels and the progress thread. */
static void divide_cores(weft_context_t *context)
{
    uint32_t cores = context->endpoint->free_cores + 1;
    bool spare = context->progress_thread && cores > 1;
    context->kernel_threads = context->settings.threads;
    if (context->kernel_threads == 0) {
        context->kernel_threads = spare ? cores - 1 : cores;
    }
    context->progress_cpu = -1;
    uint32_t cpus[WEFTI_AFFINITY_CPUS];
    /* Keep a core only where the affinity is the rank's alone: others would be kept off theirs. */
    if (spare && !context->one_process && context->endpoint->local_rank_count > 1 &&
        wefti_binding_read(cpus) == cores) {
        const wefti_topo_rank_t *rank = &context->cluster.ranks[context->endpoint->rank];
        const wefti_hardware_t *hardware = context->cluster.hosts[rank->host].hardware;
        context->progress_cpu = (int)wefti_place_progress_cpu(
            hardware, rank->nic != WEFTI_TOPO_NONE ? &hardware->nics[rank->nic] : NULL, cpus,
            cores);
    }
}

static bool no_progress(weft_context_t *context)
{
    (void)context;
    return false;
}

static bool progress(void *user)
{
    return wefti_context_progress(user);
}

static void context_destroy(weft_context_t *context)
{
    atomic_store_explicit(&context->progress, no_progress, memory_order_relaxed);
    wefti_parts_destroy(context);
    wefti_flight_deinit(&context->flight);
    if (context->memory != context->endpoint) {
        wefti_endpoint_device_side_close(context->memory);
    }
    if (context->endpoint != NULL && wefti_endpoint_owned(context->endpoint)) {
        weft_device_close(context->device); /* has no thread in a forked child */
    }
    wefti_membership_leave(&context->membership);
    wefti_endpoint_close(context->endpoint);
    wefti_costs_deinit(&context->costs);
    wefti_cluster_deinit(&context->cluster);
    if (context->watch != NULL) {
        pthread_mutex_destroy(&context->watch->lock);
        wefti_free(context->allocator, context->watch);
    }
    wefti_algo_files_release(context->files);
    pthread_mutex_destroy(&context->lock);
    weft_allocator_t allocator = context->own_allocator;
    wefti_free(context->allocator != NULL ? &allocator : NULL, context);
}

static weft_status_t check_device(const weft_device_t *device)
{
    return device != NULL ? wefti_device_check(device) : WEFT_OK;
}

/* The device's memory, beside the host's. */
static weft_status_t use_device(weft_context_t *context, weft_device_t *device)
{
    wefti_endpoint_t *side = context->endpoint;
    if (device != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_endpoint_device_side(context->endpoint, device, &side));
    }
    if (context->memory != context->endpoint) {
        wefti_endpoint_device_side_close(context->memory);
    }
    context->memory = side;
    wefti_device_retain(device);
    weft_device_close(context->device);
    context->device = device;
    return WEFT_OK;
}

/* The device that names mentions; "": the CPU device. */
static weft_status_t open_device(weft_context_t *context, const char *names)
{
    const wefti_endpoint_t *endpoint = context->endpoint;
    uint32_t local_rank = 0;
    weft_device_t *device = NULL;
    for (uint32_t r = 0; r < endpoint->rank; r++) {
        local_rank += endpoint->host_of[r] == endpoint->host_of[endpoint->rank];
    }
    if (names[0] != '\0') {
        WEFT_RETURN_IF_ERROR(wefti_device_open_of(names, local_rank, &device));
    }
    weft_status_t status = use_device(context, device);
    weft_device_close(device);
    return status;
}

weft_context_t *wefti_context_new(const weft_allocator_t *allocator)
{
    weft_context_t *context = wefti_alloc(allocator, sizeof(*context));
    if (context == NULL) {
        return NULL;
    }
    context->files = wefti_algo_files_create(allocator);
    if (context->files == NULL) {
        wefti_free(allocator, context);
        return NULL;
    }
    atomic_init(&context->references, 1);
    if (allocator != NULL) {
        context->own_allocator = *allocator;
        context->allocator = &context->own_allocator;
    }
    atomic_init(&context->progress, no_progress);
    pthread_mutex_init(&context->lock, NULL);
    return context;
}

weft_status_t wefti_context_join(weft_context_t *context, const wefti_endpoint_params_t *params,
                                 const wefti_device_wish_t *device,
                                 const wefti_membership_t *former, uint32_t generation)
{
    WEFTI_IN_CONTROL(NULL, CONTEXT_CREATE); /* also where a world shrinks or grows */
    wefti_endpoint_params_t own = *params;
    own.settings = &context->settings;
    own.log = &context->log;
    own.allocator = context->allocator;
    own.answer = wefti_live_answer;
    context->one_process = params->hub != NULL;
    WEFT_RETURN_IF_ERROR(wefti_endpoint_open(&own, &context->endpoint));
    weft_status_t status =
        wefti_flight_init(&context->flight, context->endpoint, context->world, context->launcher);
    if (status >= 0) {
        status = wefti_context_find_algorithms(context);
    }
    if (status >= 0) {
        status =
            wefti_cluster_guess(context->endpoint, &context->cluster, &context->cluster_digest);
    }
    if (status >= 0) {
        status = device->names != NULL ? open_device(context, device->names)
                                       : use_device(context, device->device);
    }
    WEFT_RETURN_IF_ERROR(meet(context, status));
    WEFT_RETURN_IF_ERROR(
        wefti_membership_join(context->endpoint, former, generation, &context->membership));
    WEFT_RETURN_IF_ERROR(wefti_context_find_cluster(context));
    divide_cores(context);
    wefti_endpoint_while_waiting(context->endpoint, progress, context);
    wefti_log(&context->log, WEFT_LOG_LEVEL_DEBUG,
              "rank %u of %u: transport %s, isa %s, progress %s, %u kernel threads", params->rank,
              params->world_size, context->endpoint->ops->name,
              wefti_isa_name(context->settings.isa), context->progress_thread ? "thread" : "inline",
              context->kernel_threads);
    return WEFT_OK;
}

weft_status_t weft_context_create(const weft_context_params_t *params, weft_context_t **out_context)
{
    WEFT_CHECK_OUT(out_context);
    WEFT_CHECK_ARG(params);
    weft_status_t status;
    wefti_endpoint_params_t endpoint = {0};
    wefti_job_t job = {0};
    weft_context_params_t own = WEFT_CONTEXT_PARAMS_INIT;
    WEFT_RETURN_IF_ERROR(WEFTI_PARAMS_READ(params, &own));
    params = &own;
    WEFT_RETURN_IF_ERROR(check_device(params->device));
    weft_context_t *context = wefti_context_new(params->allocator);
    WEFT_RETURN_IF_NO_MEMORY(context);
    context->registry = params->registry;
    WEFT_TRY(status, read_params(context, params, &job, &endpoint), fail);
    const wefti_device_wish_t device = {params->device, params->device != NULL ? NULL
                                                        : params->device_name != NULL
                                                            ? params->device_name
                                                            : context->settings.device};
    WEFT_TRY(status, wefti_context_join(context, &endpoint, &device, NULL, 0), fail);
    wefti_membership_commit(&context->membership);
    wefti_job_deinit(&job);
    *out_context = context;
    return WEFT_OK;
fail:
    wefti_job_deinit(&job);
    weft_context_release(context);
    return status;
}

void weft_context_retain(weft_context_t *context)
{
    WEFT_CHECK_ARG_VOID(context);
    atomic_fetch_add_explicit(&context->references, 1, memory_order_relaxed);
}

void weft_context_release(weft_context_t *context)
{
    /* acq_rel: the last one sees everything the others did */
    if (context != NULL &&
        atomic_fetch_sub_explicit(&context->references, 1, memory_order_acq_rel) == 1) {
        context_destroy(context);
    }
}

weft_status_t weft_context_set_device(weft_context_t *context, weft_device_t *device)
{
    WEFT_CHECK_ARG(context);
    WEFT_RETURN_IF_ERROR(check_device(device));
    if (!wefti_endpoint_owned(context->endpoint)) {
        return wefti_endpoint_check(context->endpoint);
    }
    /* acquire: sees everything the last holder did. Streams, events, groups and sessions retain it.
     */
    if (atomic_load_explicit(&context->references, memory_order_acquire) != 1 ||
        context->memory->block_count > 0 || wefti_parts_in_use(context)) {
        return wefti_error(WEFT_ERR_STATE, "the context's device is in use; set it before creating "
                                           "streams, memory, groups and sessions");
    }
    return device == context->device ? WEFT_OK : use_device(context, device);
}

weft_device_t *weft_context_device(const weft_context_t *context)
{
    WEFT_CHECK_ARG_OR(context, NULL);
    return context->device;
}

uint32_t weft_context_rank(const weft_context_t *context)
{
    WEFT_CHECK_ARG_OR(context, UINT32_MAX);
    return context->endpoint->rank;
}

uint32_t weft_context_world_size(const weft_context_t *context)
{
    WEFT_CHECK_ARG_OR(context, 0);
    return context->endpoint->world_size;
}

weft_status_t weft_context_barrier(weft_context_t *context)
{
    WEFT_CHECK_ARG(context);
    WEFTI_IN_CONTROL(context->endpoint, BARRIER);
    return wefti_endpoint_barrier(context->endpoint);
}

weft_status_t weft_context_all_gather(weft_context_t *context, const void *send, size_t bytes,
                                      void *recv)
{
    WEFT_CHECK_ARG(context);
    if (bytes > 0) {
        WEFT_CHECK_ARG(send);
        WEFT_CHECK_ARG(recv);
    }
    WEFTI_IN_CONTROL(context->endpoint, ALL_GATHER);
    return wefti_endpoint_all_gather(context->endpoint, send, bytes, recv);
}

void weft_context_abort(weft_context_t *context, const char *message)
{
    WEFT_CHECK_ARG_VOID(context);
    message = message != NULL ? message : "weft_context_abort was called";
    wefti_endpoint_abort(context->endpoint, WEFT_ERR_ABORTED, message);
    wefti_error(WEFT_ERR_ABORTED, "%s", message);
    wefti_flight_note(&context->flight, WEFT_ERR_ABORTED);
}

weft_status_t weft_context_dump(weft_context_t *context, const char *path)
{
    WEFT_CHECK_ARG(context);
    const char *folder = context->settings.dump;
    if (!wefti_endpoint_owned(context->endpoint)) {
        return wefti_endpoint_check(context->endpoint);
    }
    if (path == NULL && folder[0] == '\0') {
        return wefti_error_field(WEFT_ERR_INVALID_ARGUMENT, "path",
                                 "must not be NULL unless WEFT_DUMP names a folder");
    }
    pthread_mutex_lock(&context->flight.lock); /* no group is described meanwhile */
    weft_status_t status =
        path != NULL ? wefti_flight_dump(context->flight.image, path, "weft_context_dump")
                     : wefti_flight_dump_in(context->flight.image, folder, "weft_context_dump");
    pthread_mutex_unlock(&context->flight.lock);
    return status;
}

size_t wefti_context_staging_bytes(const weft_context_t *context)
{
    const wefti_endpoint_t *endpoint = context->endpoint;
    bool far = endpoint->host_count > 1 && !context->one_process;
    return context->settings.staging_bytes != 0 ? (size_t)context->settings.staging_bytes
           : far || endpoint->crowded           ? SLOW_TURN_STAGING
                                                : STAGING;
}

static weft_status_t bad_rank(const weft_context_t *context, uint32_t rank)
{
    return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "invalid rank %u for world size %u", rank,
                       context->endpoint->world_size);
}

weft_status_t weft_context_peer_info(const weft_context_t *context, uint32_t rank,
                                     weft_peer_info_t *out_info)
{
    WEFT_CHECK_ARG(context);
    WEFT_CHECK_ARG(out_info);
    wefti_endpoint_t *endpoint = context->endpoint;
    weft_peer_info_t info = WEFT_PEER_INFO_INIT;
    weft_status_t status = wefti_report_check("out_info", out_info);
    if (status < 0 || rank >= endpoint->world_size) {
        return status < 0 ? status : bad_rank(context, rank);
    }
    info.host = endpoint->host_of[rank];
    snprintf(info.host_name, sizeof info.host_name, "%s",
             endpoint->host_names != NULL ? endpoint->host_names[info.host] : "");
    wefti_endpoint_describe(endpoint, rank, info.transport, sizeof info.transport, info.reason,
                            sizeof info.reason);
    wefti_report_write(out_info, &info, sizeof info);
    return WEFT_OK;
}

weft_status_t weft_context_link_stats(const weft_context_t *context, uint32_t rank,
                                      weft_link_stats_t *out_stats)
{
    WEFT_CHECK_ARG(context);
    WEFT_CHECK_ARG(out_stats);
    wefti_link_stats_t stats;
    weft_status_t status = wefti_report_check("out_stats", out_stats);
    if (status < 0 || rank >= context->endpoint->world_size) {
        return status < 0 ? status : bad_rank(context, rank);
    }
    wefti_endpoint_link_stats(context->endpoint, rank, &stats);
    weft_link_stats_t own = {.bytes_sent = stats.bytes_sent,
                             .bytes_received = stats.bytes_received,
                             .messages_sent = stats.messages_sent,
                             .messages_received = stats.messages_received,
                             .busy_s = (double)stats.busy_ns * 1e-9};
    wefti_report_write(out_stats, &own, sizeof own);
    return WEFT_OK;
}

uint32_t weft_context_host_count(const weft_context_t *context)
{
    WEFT_CHECK_ARG_OR(context, 0);
    return context->endpoint->host_count;
}

const char *weft_context_launcher(const weft_context_t *context)
{
    WEFT_CHECK_ARG_OR(context, "unknown");
    return context->launcher;
}
