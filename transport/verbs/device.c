/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which device, port and GID a rank uses.
 *
 * Among the active ports that WEFT_VERBS_DEVICE allows, ports close to the processors of this
 * thread come first, then the fastest. Ranks of one host share equal ports in turn.
 */
#include "transport/verbs/verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fnmatch.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/machine/cluster.h"
#include "runtime/machine/machine.h"

#define CANDIDATES_MAX 64u
#define GID_ENTRIES_MAX 512u

typedef struct candidate {
    struct ibv_device *device;
    uint8_t port;
    bool far;      /* not close to any processor of this rank */
    uint64_t rate; /* in units of 2.5 Gbit/s */
} candidate_t;

/* WEFT_VERBS_DEVICE: patterns such as mlx5_*, rxe0:1. */
static bool allowed(const wefti_verbs_settings_t *settings, const char *name, uint32_t port)
{
    char patterns[sizeof settings->device], *rest = NULL;
    memcpy(patterns, settings->device, sizeof patterns);
    for (char *at = strtok_r(patterns, ",", &rest); at != NULL; at = strtok_r(NULL, ",", &rest)) {
        char *colon = strchr(at, ':');
        if (colon != NULL) {
            *colon = '\0';
        }
        if (fnmatch(at, name, 0) == 0 && (colon == NULL || strtoul(colon + 1, NULL, 10) == port)) {
            return true;
        }
    }
    return settings->device[0] == '\0';
}

/* A device without a list of processors (soft-RoCE) is close to all of them. */
static bool is_far(const struct ibv_device *device)
{
    char list[1024];
    cpu_set_t own;
    wefti_arena_t arena;
    uint32_t *cpus, count = 0, common = 0;
    wefti_arena_init(&arena, NULL, 0);
    if (wefti_read_line(list, sizeof list, "%s/device/local_cpulist", device->ibdev_path) &&
        sched_getaffinity(0, sizeof own, &own) == 0 &&
        wefti_cpulist_parse(list, CPU_SETSIZE, &arena, &cpus, &count) == WEFT_OK) {
        for (uint32_t i = 0; i < count; i++) {
            common += CPU_ISSET(cpus[i], &own) != 0;
        }
    }
    wefti_arena_deinit(&arena);
    return count > 0 && common == 0;
}

static uint64_t rate_of(const struct ibv_port_attr *port)
{
    uint64_t lanes = port->active_width == 16  ? 2
                     : port->active_width == 8 ? 12
                     : port->active_width == 4 ? 8
                     : port->active_width == 2 ? 4
                                               : 1;
    uint64_t speed = port->active_speed; /* a bit mask: each step about doubles */
    return lanes * (speed == 0 ? 1 : speed);
}

/* ---- choice ---- */

static int by_worth(const void *a, const void *b)
{
    const candidate_t *x = a, *y = b;
    if (x->far != y->far) {
        return x->far ? 1 : -1;
    }
    if (x->rate != y->rate) {
        return x->rate > y->rate ? -1 : 1;
    }
    int order = strcmp(ibv_get_device_name(x->device), ibv_get_device_name(y->device));
    return order != 0 ? order : (int)x->port - (int)y->port;
}

/* Adds the device's active ports. The error is about the last port or call that is of no use. */
static weft_status_t look_at(const wefti_verbs_t *verbs, struct ibv_device *device,
                             candidate_t *list, uint32_t *count)
{
    const char *name = ibv_get_device_name(device);
    struct ibv_device_attr attr;
    struct ibv_port_attr port_attr;
    weft_status_t status = WEFT_OK;
    errno = 0;
    struct ibv_context *context = ibv_open_device(device);
    if (context == NULL) {
        return wefti_error_errno(WEFT_ERR_UNSUPPORTED, errno, "ibv_open_device failed on %s", name);
    }
    int error = ibv_query_device(context, &attr);
    if (error != 0) {
        status =
            wefti_error_errno(WEFT_ERR_UNSUPPORTED, error, "ibv_query_device failed on %s", name);
    }
    for (uint32_t port = 1; error == 0 && port <= attr.phys_port_cnt; port++) {
        if (!allowed(&verbs->params.settings->verbs, name, port)) {
            continue;
        }
        if (ibv_query_port(context, (uint8_t)port, &port_attr) != 0 ||
            port_attr.state != IBV_PORT_ACTIVE) {
            status = wefti_error(WEFT_ERR_UNSUPPORTED, "%s: port %u is not active", name, port);
        } else if (*count < CANDIDATES_MAX) {
            list[(*count)++] =
                (candidate_t){device, (uint8_t)port, is_far(device), rate_of(&port_attr)};
        }
    }
    ibv_close_device(context);
    return status;
}

/* Ranks of one host take equally good ports in turn. */
static const candidate_t *pick(const wefti_verbs_t *verbs, candidate_t *list, uint32_t count)
{
    const wefti_link_params_t *params = &verbs->params;
    uint32_t equal = 1, mine = 0;
    qsort(list, count, sizeof *list, by_worth);
    while (equal < count && list[equal].far == list[0].far && list[equal].rate == list[0].rate) {
        equal++;
    }
    for (uint32_t r = 0; r < params->rank; r++) {
        mine += params->host_of[r] == params->host_of[params->rank];
    }
    return &list[mine % equal];
}

/* ---- GIDs ---- */

static wefti_verbs_gid_kind_t kind_of(const struct ibv_gid_entry *entry)
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    const uint8_t *raw = entry->gid.raw;
    if (entry->gid_type == IBV_GID_TYPE_IB) {
        return WEFTI_VERBS_GID_INFINIBAND;
    }
    if (entry->gid_type == IBV_GID_TYPE_ROCE_V1) {
        return WEFTI_VERBS_GID_V1;
    }
    if (memcmp(raw, mapped, sizeof mapped) == 0) {
        return WEFTI_VERBS_GID_V2_IPV4;
    }
    return raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80 ? WEFTI_VERBS_GID_V2_LINK_LOCAL
                                                     : WEFTI_VERBS_GID_V2_IPV6;
}

static bool is_zero(const union ibv_gid *gid)
{
    static const union ibv_gid zero;
    return memcmp(gid, &zero, sizeof zero) == 0;
}

/* The first GID of every kind; with WEFT_VERBS_GID_INDEX that one only. */
static weft_status_t read_gids(wefti_verbs_t *verbs)
{
    wefti_verbs_address_t *address = &verbs->own;
    int wanted = verbs->params.settings->verbs.gid_index;
    struct ibv_gid_entry *entries =
        wefti_alloc(verbs->params.allocator, GID_ENTRIES_MAX * sizeof *entries);
    if (entries == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    ssize_t count = ibv_query_gid_table(verbs->context, entries, GID_ENTRIES_MAX, 0);
    for (ssize_t i = 0; i < count; i++) {
        wefti_verbs_gid_kind_t kind = kind_of(&entries[i]);
        if (entries[i].port_num != verbs->own.port || is_zero(&entries[i].gid) ||
            (address->gid_mask & 1u << kind) != 0 ||
            (wanted >= 0 && entries[i].gid_index != (uint32_t)wanted)) {
            continue;
        }
        address->gid_mask |= 1u << kind;
        memcpy(address->gids[kind], entries[i].gid.raw, sizeof address->gids[kind]);
        verbs->gid_index[kind] = (int)entries[i].gid_index;
    }
    wefti_free(verbs->params.allocator, entries);
    if (count < 0) {
        return wefti_error_errno(WEFT_ERR_UNSUPPORTED, (int)-count,
                                 "%s port %u: cannot read the GID table", verbs->own.device,
                                 verbs->own.port);
    }
    if (address->gid_mask == 0 && wanted >= 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s port %u: no GID at index %d; set WEFT_VERBS_GID_INDEX",
                           verbs->own.device, verbs->own.port, wanted);
    }
    if (address->gid_mask == 0 && verbs->port_attr.link_layer == IBV_LINK_LAYER_ETHERNET) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s port %u: no GID; check that its network interface has an address",
                           verbs->own.device, verbs->own.port);
    }
    return WEFT_OK;
}

wefti_verbs_gid_kind_t wefti_verbs_gid_common(const wefti_verbs_address_t *a,
                                              const wefti_verbs_address_t *b)
{
    uint32_t both = (a->gid_mask & b->gid_mask) | 1u << WEFTI_VERBS_GID_KINDS;
    return (wefti_verbs_gid_kind_t)__builtin_ctz(both);
}

static void gid_text(const wefti_verbs_address_t *address, wefti_verbs_gid_kind_t kind, char *text,
                     size_t bytes)
{
    const uint8_t *raw = address->gids[kind];
    bool is_v4 = kind == WEFTI_VERBS_GID_V2_IPV4;
    char number[INET6_ADDRSTRLEN];
    inet_ntop(is_v4 ? AF_INET : AF_INET6, is_v4 ? raw + 12 : raw, number, sizeof number);
    snprintf(text, bytes, "%.31s port %u %s", address->device, address->port, number);
}

void wefti_verbs_describe_path(const wefti_verbs_address_t *a, const wefti_verbs_address_t *b,
                               char *text, size_t bytes)
{
    wefti_verbs_gid_kind_t kind = wefti_verbs_gid_common(a, b);
    if (kind == WEFTI_VERBS_GID_KINDS) {
        snprintf(text, bytes, "%.31s lid %u -> %.31s lid %u", a->device, a->lid, b->device, b->lid);
        return;
    }
    char from[96], to[96];
    gid_text(a, kind, from, sizeof from);
    gid_text(b, kind, to, sizeof to);
    snprintf(text, bytes, "%s -> %s", from, to);
}

/* ---- opening ---- */

static uint32_t mtu_of(const wefti_verbs_t *verbs)
{
    uint32_t active = 128u << verbs->port_attr.active_mtu; /* IBV_MTU_256 is 1 */
    uint32_t wanted = verbs->params.settings->verbs.mtu;
    return wanted != 0 && wanted < active ? wanted : active;
}

static weft_status_t use(wefti_verbs_t *verbs, const candidate_t *chosen)
{
    wefti_verbs_address_t *own = &verbs->own;
    own->magic = WEFTI_VERBS_ADDRESS_MAGIC;
    own->version = WEFTI_VERBS_ADDRESS_VERSION;
    own->port = chosen->port;
    snprintf(own->device, sizeof own->device, "%s", ibv_get_device_name(chosen->device));
    verbs->context = ibv_open_device(chosen->device);
    if (verbs->context == NULL) {
        return wefti_error_errno(WEFT_ERR_UNSUPPORTED, errno, "ibv_open_device failed on %s",
                                 own->device);
    }
    int error = ibv_query_device(verbs->context, &verbs->limits);
    if (error == 0) {
        error = ibv_query_port(verbs->context, own->port, &verbs->port_attr);
    }
    if (error != 0) {
        return wefti_error_errno(WEFT_ERR_UNSUPPORTED, error, "ibv_query_port failed on %s port %u",
                                 own->device, own->port);
    }
    own->mtu = mtu_of(verbs);
    own->lid = verbs->port_attr.lid;
    return read_gids(verbs);
}

weft_status_t wefti_verbs_device_open(wefti_verbs_t *verbs)
{
    const char *patterns = verbs->params.settings->verbs.device;
    candidate_t list[CANDIDATES_MAX];
    uint32_t count = 0;
    int device_count = 0;
    weft_status_t status = WEFT_OK;
    WEFT_RETURN_IF_ERROR(wefti_verbs_load());
    errno = 0;
    struct ibv_device **devices = ibv_get_device_list(&device_count);
    if (devices == NULL) {
        return wefti_error_errno(WEFT_ERR_UNSUPPORTED, errno, "ibv_get_device_list failed");
    }
    for (int i = 0; i < device_count; i++) {
        weft_status_t looked = look_at(verbs, devices[i], list, &count);
        status = looked < 0 ? looked : status;
    }
    if (count > 0) {
        status = use(verbs, pick(verbs, list, count));
    } else if (status == WEFT_OK && device_count > 0 && patterns[0] != '\0') {
        status = wefti_error(WEFT_ERR_UNSUPPORTED,
                             "WEFT_VERBS_DEVICE: none of %d RDMA devices is called '%s'",
                             device_count, patterns);
    } else if (status == WEFT_OK) {
        status = wefti_error(WEFT_ERR_UNSUPPORTED, "no RDMA device on this machine");
    }
    ibv_free_device_list(devices);
    return status;
}
