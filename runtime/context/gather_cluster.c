/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The world's cluster, put together by all ranks. Every rank sends the processors that it may run
 * on. The lowest rank of each machine then queries hwloc, which takes some 50 ms, and sends a
 * digest of what it found. Last come the descriptions, of which only the first of each kind is
 * read.
 */
#include "runtime/context/context.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/machine/machine.h"
#include "transport/socket/address.h"

/* Beyond it hosts are told apart by digests alone. */
#define MOST_GATHERED ((size_t)16 << 20)

typedef struct card {
    uint64_t machine; /* with its network namespace, whose interfaces may be others */
    char cpus[120];   /* a list; "" if it does not fit */
} card_t;

/* What the lowest rank of a machine found; zero from others. */
typedef struct found {
    uint64_t key;   /* of the hardware */
    uint64_t bytes; /* of its description */
} found_t;

typedef struct exchange {
    wefti_endpoint_t *endpoint;
    wefti_cluster_t *cluster;
    wefti_arena_t scratch;
    wefti_text_t text;    /* the description, if this rank is its machine's lowest */
    const card_t *cards;  /* [world_size] */
    const found_t *found; /* [world_size] */
    uint32_t *speaker;    /* [host] the lowest rank of its machine */
} exchange_t;

/* Gathers bytes of all ranks in an array of x->scratch. NULL if *status is an error on any rank;
 * *status is then an error on all of them. */
static void *share(exchange_t *x, const void *own, size_t bytes, weft_status_t *status)
{
    void *all = wefti_arena_array(&x->scratch, x->endpoint->world_size, bytes);
    *status = *status >= 0 && all == NULL ? WEFT_ERR_NO_MEMORY : *status;
    *status = wefti_endpoint_agree(x->endpoint, *status);
    if (*status >= 0) {
        *status = wefti_endpoint_all_gather(x->endpoint, own, bytes, all);
    }
    return *status >= 0 ? all : NULL;
}

static uint64_t machine_of_caller(void)
{
    char text[256];
    wefti_machine_key(text, sizeof text);
    uint64_t hash = wefti_hash_text(WEFTI_HASH_START, text);
    ssize_t length = readlink("/proc/self/ns/net", text, sizeof text - 1);
    text[length > 0 ? length : 0] = '\0';
    return wefti_hash_text(hash, text);
}

static void describe_own(card_t *own)
{
    uint32_t cpus[WEFTI_AFFINITY_CPUS];
    memset(own, 0, sizeof *own);
    own->machine = machine_of_caller();
    wefti_cpulist_format(cpus, wefti_binding_read(cpus), own->cpus, sizeof own->cpus);
    if (strstr(own->cpus, "..") != NULL) {
        own->cpus[0] = '\0';
    }
}

static uint32_t lowest_like(const exchange_t *x, uint32_t rank)
{
    uint32_t lowest = 0;
    while (x->cards[lowest].machine != x->cards[rank].machine) {
        lowest++;
    }
    return lowest;
}

/* Interfaces that WEFT_IFNAME forbids carry nothing. */
static void leave_out_unused(wefti_hardware_t *hardware, const char *patterns)
{
    uint32_t kept = 0;
    for (uint32_t n = 0; n < hardware->nic_count; n++) {
        if (wefti_interface_wanted(patterns, hardware->nics[n].name)) {
            hardware->nics[kept++] = hardware->nics[n];
        }
    }
    hardware->nic_count = kept;
}

/* A machine that cannot be read is one of which nothing is known. */
static weft_status_t look(exchange_t *x, found_t *own)
{
    wefti_hardware_t hardware;
    wefti_digest_t digest;
    if (wefti_hardware_discover(true, &x->scratch, &hardware) < 0) {
        wefti_log(x->endpoint->log, WEFT_LOG_LEVEL_WARN, "%s", weft_last_error());
        hardware = (wefti_hardware_t){.cpu = ""};
    }
    leave_out_unused(&hardware, x->endpoint->settings->ifname);
    WEFT_RETURN_IF_ERROR(wefti_hardware_encode(&hardware, &x->text));
    WEFT_RETURN_IF_ERROR(wefti_digest_of(x->text.data, x->text.length, &digest));
    memcpy(&own->key, digest.bytes, sizeof own->key);
    own->bytes = x->text.length;
    return WEFT_OK;
}

/* texts: a description of bytes from each rank; NULL: hosts are only told apart. */
static weft_status_t add_hardware(exchange_t *x, const char *texts, size_t bytes)
{
    wefti_topo_host_t *hosts = x->cluster->hosts;
    for (uint32_t h = 0; h < x->cluster->host_count; h++) {
        const found_t *found = &x->found[x->speaker[h]];
        uint32_t first = 0;
        while (x->found[x->speaker[first]].key != found->key) {
            first++;
        }
        if (first < h) {
            hosts[h].hardware = hosts[first].hardware;
            continue;
        }
        wefti_hardware_t *made = wefti_arena_alloc(&x->cluster->arena, sizeof *made);
        WEFT_RETURN_IF_NO_MEMORY(made);
        made->cpu = "";
        if (texts != NULL) {
            WEFT_RETURN_IF_ERROR(wefti_hardware_decode(texts + x->speaker[h] * bytes, found->bytes,
                                                       &x->cluster->arena, made));
        }
        hosts[h].hardware = made;
    }
    return WEFT_OK;
}

/* Where a rank may run. Anywhere on a host that it shares counts as not bound. */
static weft_status_t add_binding(exchange_t *x, uint32_t index)
{
    char cpus[sizeof x->cards->cpus + 1]; /* a peer's text may have no end */
    snprintf(cpus, sizeof cpus, "%.*s", (int)sizeof x->cards->cpus, x->cards[index].cpus);
    wefti_topo_rank_t *rank = &x->cluster->ranks[index];
    const wefti_topo_host_t *host = &x->cluster->hosts[rank->host];
    WEFT_RETURN_IF_ERROR(wefti_cpulist_parse(cpus, WEFTI_TOPO_MAX_CPUS, &x->cluster->arena,
                                             &rank->cpus, &rank->cpu_count));
    if (host->hardware->cpu_count > 0 && rank->cpu_count >= host->hardware->cpu_count &&
        host->rank_count > 1) {
        rank->cpu_count = 0;
    }
    return WEFT_OK;
}

/* Adds to the cluster, which has hosts and ranks, what they are made of and bound to. status: how
 * this rank fared before. */
static weft_status_t find(exchange_t *x, weft_status_t status)
{
    card_t card;
    found_t found = {0, 0};
    char *own, *texts = NULL;
    size_t most = 0;
    describe_own(&card);
    x->cards = share(x, &card, sizeof card, &status);
    WEFT_RETURN_IF_ERROR(status);
    if (lowest_like(x, x->endpoint->rank) == x->endpoint->rank) {
        status = look(x, &found);
    }
    x->found = share(x, &found, sizeof found, &status);
    WEFT_RETURN_IF_ERROR(status);
    for (uint32_t r = 0; r < x->endpoint->world_size; r++) {
        most = x->found[r].bytes > most ? x->found[r].bytes : most;
    }
    if (most <= MOST_GATHERED / x->endpoint->world_size) {
        own = wefti_arena_alloc(&x->scratch, most);
        status = own != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
        if (status >= 0 && x->text.length > 0) {
            memcpy(own, x->text.data, x->text.length);
        }
        texts = share(x, own, most, &status);
        WEFT_RETURN_IF_ERROR(status);
    }
    x->speaker = wefti_arena_array(&x->scratch, x->cluster->host_count, sizeof *x->speaker);
    WEFT_RETURN_IF_NO_MEMORY(x->speaker);
    for (uint32_t h = 0; h < x->cluster->host_count; h++) {
        x->speaker[h] = lowest_like(x, x->cluster->hosts[h].ranks[0]);
    }
    WEFT_RETURN_IF_ERROR(add_hardware(x, texts, most));
    for (uint32_t r = 0; r < x->endpoint->world_size; r++) {
        WEFT_RETURN_IF_ERROR(add_binding(x, r));
    }
    return WEFT_OK;
}

/* What the user says instead. */
static weft_status_t read_file(const wefti_endpoint_t *endpoint, wefti_cluster_t *out)
{
    weft_status_t status = wefti_cluster_load(endpoint->settings->topology, wefti_hardware_from_xml,
                                              endpoint->allocator, out);
    if (status < 0) {
        return wefti_error_prefix(status, "WEFT_TOPOLOGY");
    }
    if (out->rank_count == 0) {
        return wefti_cluster_spread(out, endpoint->world_size);
    }
    if (out->rank_count != endpoint->world_size) {
        return wefti_error(
            WEFT_ERR_INVALID_ARGUMENT,
            "WEFT_TOPOLOGY=%s: world size mismatch: the file describes %u ranks, the world has %u",
            endpoint->settings->topology, out->rank_count, endpoint->world_size);
    }
    return WEFT_OK;
}

/* Fails on all ranks unless all have the same description. status: how this rank fared before. */
static weft_status_t compare(exchange_t *x, weft_status_t status, wefti_digest_t *out_digest)
{
    const wefti_endpoint_t *endpoint = x->endpoint;
    status = status >= 0 ? wefti_cluster_digest(x->cluster, out_digest) : status;
    const wefti_digest_t *all = share(x, out_digest, sizeof *out_digest, &status);
    for (uint32_t r = 1; status >= 0 && r < endpoint->world_size; r++) {
        if (memcmp(&all[r], &all[0], sizeof *all) != 0) {
            return wefti_error(WEFT_ERR_MISMATCH,
                               "topology mismatch: rank %u and rank 0 have different descriptions "
                               "of the cluster%s",
                               r,
                               endpoint->settings->topology[0] != '\0' ? " (WEFT_TOPOLOGY)" : "");
        }
    }
    return status;
}

weft_status_t wefti_cluster_guess(const wefti_endpoint_t *endpoint, wefti_cluster_t *out,
                                  wefti_digest_t *out_digest)
{
    wefti_cluster_init(out, endpoint->allocator);
    for (uint32_t h = 0; h < endpoint->host_count; h++) {
        char name[64] = "";
        if (endpoint->host_names != NULL) {
            snprintf(name, sizeof name, "%s", endpoint->host_names[h]);
        }
        if (name[0] == '\0' && (endpoint->host_count > 1 ||
                                gethostname(name, sizeof name - 1) != 0 || name[0] == '\0')) {
            snprintf(name, sizeof name, "host%u", h);
        }
        WEFT_RETURN_IF_ERROR(wefti_cluster_add_host(out, name, NULL));
    }
    WEFT_RETURN_IF_ERROR(wefti_cluster_set_ranks(out, endpoint->host_of, endpoint->world_size));
    return wefti_cluster_digest(out, out_digest);
}

weft_status_t wefti_cluster_gather(wefti_endpoint_t *endpoint, wefti_cluster_t *out,
                                   wefti_digest_t *out_digest)
{
    weft_status_t status;
    exchange_t exchange = {.endpoint = endpoint, .cluster = out};
    wefti_arena_init(&exchange.scratch, endpoint->allocator, 0);
    wefti_text_init(&exchange.text, endpoint->allocator);
    if (endpoint->settings->topology[0] != '\0') {
        status = read_file(endpoint, out);
    } else {
        status = find(&exchange, wefti_cluster_guess(endpoint, out, out_digest));
    }
    status = compare(&exchange, status, out_digest);
    wefti_text_deinit(&exchange.text);
    wefti_arena_deinit(&exchange.scratch);
    if (status < 0) {
        wefti_cluster_deinit(out);
    } else {
        wefti_place_nics(out);
    }
    return status;
}
