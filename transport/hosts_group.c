/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank is on which host. */
#include "transport/hosts.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/digest.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/machine/machine.h"

/* A rank's report of its place. */
typedef struct placement {
    uint8_t key[WEFTI_HOST_KEY_BYTES];
    char name[64];
    int32_t status; /* this rank cannot take part */
    int32_t pid;
    uint64_t processes; /* equal on ranks that see each other's processes */
} placement_t;

bool wefti_hosts_allows(const wefti_settings_t *settings, const char *name)
{
    const char *at = settings->transport;
    size_t wanted = strlen(name);
    if (at[0] == '\0' || strcmp(at, "auto") == 0) {
        return true;
    }
    for (;;) {
        size_t length = strcspn(at, ",");
        if (length == wanted && strncmp(at, name, length) == 0) {
            return true;
        }
        if (at[length] == '\0') {
            return false;
        }
        at += length + 1;
    }
}

/* A namespace's number, 0: unknown. */
static unsigned long long namespace_of(const char *path)
{
    struct stat state;
    return stat(path, &state) == 0 ? (unsigned long long)state.st_ino : 0;
}

/*
 * Ranks share memory when they run under one kernel and user, in one network namespace (abstract
 * sockets) and in one namespace of processes, unless WEFT_HOST_ID says where they are.
 */
weft_status_t wefti_hosts_key(const wefti_settings_t *settings, uint8_t key[WEFTI_HOST_KEY_BYTES])
{
    char machine[64], text[384];
    wefti_digest_t digest;
    memset(key, 0, WEFTI_HOST_KEY_BYTES);
    if (!wefti_hosts_allows(settings, "shm")) {
        return WEFT_OK;
    }
    wefti_machine_key(machine, sizeof machine);
    int length = snprintf(text, sizeof text, "%s\nuser %u\nnet %llu\n", machine,
                          (unsigned)geteuid(), namespace_of("/proc/self/ns/net"));
    if (settings->host_id[0] != '\0') {
        snprintf(text + length, sizeof text - (size_t)length, "id %s\n", settings->host_id);
    } else {
        snprintf(text + length, sizeof text - (size_t)length, "pid %llu\n",
                 namespace_of("/proc/self/ns/pid"));
    }
    WEFT_RETURN_IF_ERROR(wefti_digest_of(text, strlen(text), &digest));
    memcpy(key, digest.bytes, WEFTI_HOST_KEY_BYTES);
    return WEFT_OK;
}

static weft_status_t introduce(const wefti_hosts_t *hosts, placement_t *own)
{
    const wefti_settings_t *settings = hosts->base.settings;
    unsigned long long processes = namespace_of("/proc/self/ns/pid");
    char machine[64];
    memset(own, 0, sizeof *own);
    wefti_machine_key(machine, sizeof machine);
    own->processes = wefti_hash_step(wefti_hash_text(WEFTI_HASH_START, machine), processes);
    own->pid = processes != 0 ? (int32_t)getpid() : 0;
    if (settings->host_id[0] != '\0') {
        snprintf(own->name, sizeof own->name, "%s", settings->host_id);
    } else if (gethostname(own->name, sizeof own->name - 1) != 0 || own->name[0] == '\0') {
        snprintf(own->name, sizeof own->name, "%s", wefti_overlay_local_address(hosts->overlay));
    }
    return wefti_hosts_key(settings, own->key);
}

/* Names come from peers and go into messages. */
static void clean_name(char name[64])
{
    name[63] = '\0';
    for (char *at = name; *at != '\0'; at++) {
        if ((unsigned char)*at < 0x20 || (unsigned char)*at == 0x7f) {
            *at = '?';
        }
    }
}

/* Hosts with the same name get numbers: "node", "node#2". */
static weft_status_t name_hosts(wefti_endpoint_t *endpoint, const placement_t *placements,
                                const uint32_t *firsts)
{
    const weft_allocator_t *allocator = endpoint->allocator;
    uint32_t count = endpoint->host_count, names;
    char(*host_names)[64] = wefti_alloc(allocator, count * sizeof *host_names);
    uint32_t *name_of = wefti_alloc(allocator, 3 * count * sizeof *name_of);
    weft_status_t status = WEFT_ERR_NO_MEMORY;
    for (uint32_t h = 0; host_names != NULL && h < count; h++) {
        memcpy(host_names[h], placements[firsts[h]].name, sizeof *host_names);
        clean_name(host_names[h]);
    }
    if (host_names != NULL && name_of != NULL) {
        status = wefti_number_keys(allocator, host_names, sizeof *host_names, sizeof *host_names,
                                   count, name_of, name_of + count, &names);
    }
    for (uint32_t h = 0; status == WEFT_OK && h < count; h++) {
        uint32_t number = ++name_of[2 * count + name_of[h]];
        char *name = host_names[h];
        if (number > 1) {
            name[52] = '\0';
            snprintf(name + strlen(name), 12, "#%u", number);
        }
    }
    wefti_free(allocator, name_of);
    endpoint->host_names = host_names;
    return status;
}

/* Hosts are numbered by their first ranks. */
static weft_status_t group_by_host(wefti_hosts_t *hosts, const placement_t *placements)
{
    wefti_endpoint_t *endpoint = &hosts->base;
    uint32_t count = endpoint->world_size;
    hosts->firsts = wefti_alloc(endpoint->allocator, count * sizeof *hosts->firsts);
    WEFT_RETURN_IF_NO_MEMORY(hosts->firsts != NULL);
    WEFT_RETURN_IF_ERROR(wefti_number_keys(
        endpoint->allocator, placements[0].key, sizeof *placements, WEFTI_HOST_KEY_BYTES, count,
        endpoint->host_of, hosts->firsts, &endpoint->host_count));
    return name_hosts(endpoint, placements, hosts->firsts);
}

/* A rank that cannot take part says so with its placement: its text is asked for afterwards. */
static weft_status_t check_placements(wefti_hosts_t *hosts, const placement_t *placements,
                                      weft_status_t own)
{
    bool any = false;
    for (uint32_t r = 0; r < hosts->base.world_size; r++) {
        any = any || placements[r].status < 0;
    }
    return any ? wefti_endpoint_agree(&hosts->base, own) : WEFT_OK;
}

static void watch_processes(wefti_hosts_t *hosts, const placement_t *placements)
{
    const placement_t *own = &placements[hosts->base.rank];
    for (uint32_t r = 0; r < hosts->base.world_size; r++) {
        const placement_t *peer = &placements[r];
        if (peer != own && peer->processes == own->processes && peer->pid > 0) {
            wefti_overlay_watch_process(hosts->overlay, r, (pid_t)peer->pid);
        }
    }
}

static uint32_t number_locally(wefti_hosts_t *hosts)
{
    const wefti_endpoint_t *endpoint = &hosts->base;
    uint32_t local_count = 0;
    for (uint32_t r = 0; r < endpoint->world_size; r++) {
        if (endpoint->host_of[r] == endpoint->host_of[endpoint->rank]) {
            hosts->world_of[local_count] = r;
            hosts->local_of[r] = local_count++;
        }
    }
    return local_count;
}

/* Other worlds cannot guess it. */
static weft_status_t choose_address(const wefti_hosts_t *hosts, char *out_address)
{
    const wefti_endpoint_t *endpoint = &hosts->base;
    uint32_t host = endpoint->host_of[endpoint->rank];
    wefti_digest_t digest;
    char hex[65];
    WEFT_RETURN_IF_ERROR(wefti_hmac(wefti_overlay_key(hosts->overlay), WEFTI_LINK_KEY_BYTES,
                                    "weft shm", &host, sizeof host, &digest));
    snprintf(out_address, 64, "unix:@weft-%.32s", wefti_digest_hex(&digest, hex));
    return WEFT_OK;
}

weft_status_t wefti_hosts_group(wefti_hosts_t *hosts, char *out_address, uint32_t *out_local_count)
{
    wefti_endpoint_t *endpoint = &hosts->base;
    placement_t own;
    placement_t *placements =
        wefti_alloc(endpoint->allocator, endpoint->world_size * sizeof *placements);
    weft_status_t status;
    if (placements == NULL) {
        return wefti_hosts_end_world(endpoint, WEFT_ERR_NO_MEMORY);
    }
    status = introduce(hosts, &own);
    own.status = status;
    WEFT_TRY(status, wefti_endpoint_all_gather(endpoint, &own, sizeof own, placements), done);
    WEFT_TRY(status, check_placements(hosts, placements, (weft_status_t)own.status), done);
    watch_processes(hosts, placements);
    status = group_by_host(hosts, placements);
    if (status == WEFT_OK) {
        *out_local_count = number_locally(hosts);
        status = choose_address(hosts, out_address);
    }
    if (status < 0) { /* without a vote: ranks go on with those of their hosts */
        status = wefti_hosts_end_world(endpoint, status);
    }
done:
    wefti_free(endpoint->allocator, placements);
    return status;
}
