/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The world's cluster, put together by all ranks. Every rank tells where it may run, in one card
 * of fixed size; the lowest rank of each machine then looks at it (which takes hwloc some 50 ms)
 * and tells a digest. Descriptions are sent once for machines that are alike: a cluster is mostly
 * one sort of them, and a description, packed, is a few hundred bytes.
 */
#include "runtime/context/context.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/machine/machine.h"
#include "transport/socket/address.h"

#define CARD_RUNS 12u
/* More than this is not sent to everybody: hosts are then told apart by digests alone. */
#define MOST_GATHERED ((size_t)2 << 20)

typedef struct card {
    uint64_t machine;   /* with its network namespace, whose interfaces may be others */
    uint32_t run_count; /* of processors; CARD_RUNS + 1: more than fit */
    uint32_t pad;
    struct {
        uint16_t first, count;
    } runs[CARD_RUNS];
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
    wefti_text_t packed; /* of this rank, if it is its machine's lowest */
    card_t *cards;       /* [world_size] */
    found_t *found;      /* [world_size] */
    uint32_t *speaker;   /* [host] the lowest rank of its machine */
    uint32_t host_count;
} exchange_t;

static weft_status_t prepare(exchange_t *x)
{
    const wefti_endpoint_t *endpoint = x->endpoint;
    x->host_count = endpoint->host_count;
    x->cards = wefti_arena_array(&x->scratch, endpoint->world_size, sizeof *x->cards);
    x->found = wefti_arena_array(&x->scratch, endpoint->world_size, sizeof *x->found);
    x->speaker = wefti_arena_array(&x->scratch, x->host_count, sizeof *x->speaker);
    return x->cards != NULL && x->found != NULL && x->speaker != NULL ? WEFT_OK
                                                                      : WEFT_ERR_NO_MEMORY;
}

static uint64_t machine_of_caller(void)
{
    char text[256];
    uint64_t hash = WEFTI_HASH_START;
    wefti_machine_key(text, sizeof text);
    hash = wefti_hash_text(hash, text);
    ssize_t length = readlink("/proc/self/ns/net", text, sizeof text - 1);
    text[length > 0 ? length : 0] = '\0';
    return wefti_hash_text(hash, text);
}

static uint32_t lowest_like(const exchange_t *x, uint32_t rank)
{
    uint32_t lowest = 0;
    while (x->cards[lowest].machine != x->cards[rank].machine) {
        lowest++;
    }
    return lowest;
}

static void find_speakers(exchange_t *x)
{
    for (uint32_t r = x->endpoint->world_size; r-- > 0;) {
        x->speaker[x->endpoint->host_of[r]] = r; /* the host's lowest, in the end */
    }
    for (uint32_t h = 0; h < x->host_count; h++) {
        x->speaker[h] = lowest_like(x, x->speaker[h]);
    }
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
    if (wefti_hardware_discover(true, &x->scratch, &hardware) < 0) {
        wefti_log(x->endpoint->log, WEFT_LOG_LEVEL_WARN, "%s", weft_last_error());
        hardware = (wefti_hardware_t){.cpu = ""};
    }
    leave_out_unused(&hardware, x->endpoint->settings->ifname);
    weft_status_t status = wefti_hardware_pack(&hardware, &x->packed);
    wefti_digest_t digest;
    if (status >= 0) {
        status = wefti_digest_of(x->packed.data, x->packed.length, &digest);
    }
    if (status >= 0) {
        memcpy(&own->key, digest.bytes, sizeof own->key);
        own->key |= 1; /* never 0 */
        own->bytes = x->packed.length;
    }
    return status;
}

static weft_status_t describe_own(exchange_t *x, card_t *own)
{
    uint32_t *cpus, count;
    weft_status_t status = wefti_binding_read(&x->scratch, &cpus, &count);
    for (uint32_t i = 0, end; i < count && status >= 0; i = end) {
        for (end = i + 1; end < count && cpus[end] == cpus[end - 1] + 1; end++) {
        }
        if (own->run_count < CARD_RUNS) {
            own->runs[own->run_count].first = (uint16_t)cpus[i];
            own->runs[own->run_count].count = (uint16_t)(end - i);
        }
        own->run_count += own->run_count <= CARD_RUNS;
    }
    own->machine = machine_of_caller();
    return status;
}

/* The first host with the same hardware. */
static uint32_t first_like(const exchange_t *x, uint32_t host)
{
    uint64_t key = x->found[x->speaker[host]].key;
    uint32_t first = 0;
    while (first < host && x->found[x->speaker[first]].key != key) {
        first++;
    }
    return first;
}

/* Does this rank's description go to everybody? */
static bool is_heard(const exchange_t *x)
{
    for (uint32_t h = 0; h < x->host_count; h++) {
        if (x->speaker[h] == x->endpoint->rank && first_like(x, h) == h) {
            return true;
        }
    }
    return false;
}

/* bytes of every rank's description, of which only the first of each sort is one. */
static weft_status_t gather_packed(exchange_t *x, size_t bytes, uint8_t **out)
{
    const wefti_endpoint_t *endpoint = x->endpoint;
    uint8_t *own = wefti_arena_alloc(&x->scratch, bytes);
    *out = wefti_arena_array(&x->scratch, endpoint->world_size, bytes);
    weft_status_t status = own != NULL && *out != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    status = wefti_endpoint_agree(x->endpoint, status);
    if (status < 0) {
        return status;
    }
    if (is_heard(x)) {
        memcpy(own, x->packed.data, x->packed.length);
    }
    return wefti_endpoint_all_gather(x->endpoint, own, bytes, *out);
}

static const char *name_of(const exchange_t *x, uint32_t host, char *buffer, size_t bytes)
{
    const wefti_endpoint_t *endpoint = x->endpoint;
    if (endpoint->host_names != NULL && endpoint->host_names[host][0] != '\0') {
        return endpoint->host_names[host];
    }
    if (x->host_count > 1 || gethostname(buffer, bytes) != 0 || buffer[0] == '\0') {
        snprintf(buffer, bytes, "host%u", host);
    }
    buffer[bytes - 1] = '\0';
    return buffer;
}

/* packed NULL: hosts are only told apart. */
static weft_status_t add_hosts(exchange_t *x, const uint8_t *packed, size_t bytes)
{
    weft_status_t status = WEFT_OK;
    for (uint32_t h = 0; h < x->host_count && status >= 0; h++) {
        char name[64];
        uint32_t like = first_like(x, h);
        const wefti_hardware_t *hardware = NULL;
        if (like < h) {
            hardware = x->cluster->hosts[like].hardware;
        } else {
            wefti_hardware_t *made = wefti_arena_alloc(&x->cluster->arena, sizeof *made);
            const found_t *found = &x->found[x->speaker[h]];
            if (made == NULL) {
                return WEFT_ERR_NO_MEMORY;
            }
            made->cpu = "";
            if (packed != NULL && found->bytes <= bytes) {
                status = wefti_hardware_unpack(packed + x->speaker[h] * bytes, found->bytes,
                                               &x->cluster->arena, made);
            }
            hardware = made;
        }
        if (status >= 0) {
            status = wefti_cluster_add_host(x->cluster, name_of(x, h, name, sizeof name), hardware);
        }
    }
    return status;
}

/* Where a rank may run. Anywhere on its host is as good as not said. */
static weft_status_t add_binding(exchange_t *x, uint32_t index)
{
    const card_t *card = &x->cards[index];
    wefti_topo_rank_t *rank = &x->cluster->ranks[index];
    const wefti_hardware_t *hardware = x->cluster->hosts[rank->host].hardware;
    uint32_t total = 0;
    if (card->run_count > CARD_RUNS) {
        return WEFT_OK;
    }
    for (uint32_t i = 0; i < card->run_count; i++) {
        total += card->runs[i].count;
    }
    if (total == 0 || (hardware->cpu_count > 0 && total >= hardware->cpu_count &&
                       x->cluster->hosts[rank->host].rank_count > 1)) {
        return WEFT_OK;
    }
    rank->cpus = wefti_arena_array(&x->cluster->arena, total, sizeof *rank->cpus);
    if (rank->cpus == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < card->run_count; i++) {
        for (uint32_t k = 0; k < card->runs[i].count; k++) {
            rank->cpus[rank->cpu_count++] = (uint32_t)card->runs[i].first + k;
        }
    }
    return WEFT_OK;
}

/* What machines there are, and a digest of each. */
static weft_status_t gather_cards(exchange_t *x)
{
    weft_status_t status;
    card_t card;
    found_t found = {0, 0};
    memset(&card, 0, sizeof card);
    status = prepare(x);
    status = status >= 0 ? describe_own(x, &card) : status;
    WEFT_TRY(status, wefti_endpoint_agree(x->endpoint, status), fail);
    WEFT_TRY(status, wefti_endpoint_all_gather(x->endpoint, &card, sizeof card, x->cards), fail);
    find_speakers(x);
    if (lowest_like(x, x->endpoint->rank) == x->endpoint->rank) {
        status = look(x, &found);
    }
    WEFT_TRY(status, wefti_endpoint_agree(x->endpoint, status), fail);
    WEFT_TRY(status, wefti_endpoint_all_gather(x->endpoint, &found, sizeof found, x->found), fail);
fail:
    return status;
}

static weft_status_t find(exchange_t *x)
{
    weft_status_t status;
    uint8_t *packed = NULL;
    size_t most = 0, total;
    WEFT_TRY(status, gather_cards(x), fail);
    for (uint32_t r = 0; r < x->endpoint->world_size; r++) {
        most = x->found[r].bytes > most ? x->found[r].bytes : most;
    }
    if (most > 0 && wefti_mul_size(most, x->endpoint->world_size, &total) &&
        total <= MOST_GATHERED) {
        WEFT_TRY(status, gather_packed(x, most, &packed), fail);
    }
    status = add_hosts(x, packed, most);
    if (status >= 0) {
        status = wefti_cluster_set_ranks(x->cluster, x->endpoint->host_of, x->endpoint->world_size);
    }
    for (uint32_t r = 0; r < x->endpoint->world_size && status >= 0; r++) {
        status = add_binding(x, r);
    }
fail:
    return status;
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

/* Everybody has the same, or nobody goes on. */
static weft_status_t compare(wefti_endpoint_t *endpoint, const wefti_cluster_t *cluster,
                             weft_status_t status, wefti_digest_t *out_digest)
{
    wefti_digest_t own = {{0}};
    wefti_digest_t *all = wefti_alloc(endpoint->allocator, endpoint->world_size * sizeof *all);
    if (status >= 0) {
        status = all != NULL ? wefti_cluster_digest(cluster, &own) : WEFT_ERR_NO_MEMORY;
    }
    status = wefti_endpoint_agree(endpoint, status);
    if (status >= 0) {
        status = wefti_endpoint_all_gather(endpoint, &own, sizeof own, all);
    }
    for (uint32_t r = 1; r < endpoint->world_size && status >= 0; r++) {
        if (memcmp(&all[r], &all[0], sizeof own) != 0) {
            status =
                wefti_error(WEFT_ERR_MISMATCH,
                            "topology mismatch: rank %u and rank 0 have different descriptions of "
                            "the cluster%s",
                            r, endpoint->settings->topology[0] != '\0' ? " (WEFT_TOPOLOGY)" : "");
        }
    }
    wefti_free(endpoint->allocator, all);
    *out_digest = own;
    return status;
}

weft_status_t wefti_cluster_gather(wefti_endpoint_t *endpoint, wefti_cluster_t *out,
                                   wefti_digest_t *out_digest)
{
    weft_status_t status;
    wefti_cluster_init(out, endpoint->allocator);
    if (endpoint->settings->topology[0] != '\0') {
        status = read_file(endpoint, out);
    } else {
        exchange_t exchange = {.endpoint = endpoint, .cluster = out};
        wefti_arena_init(&exchange.scratch, endpoint->allocator, 0);
        wefti_text_init(&exchange.packed, endpoint->allocator);
        status = find(&exchange);
        wefti_text_deinit(&exchange.packed);
        wefti_arena_deinit(&exchange.scratch);
    }
    status = compare(endpoint, out, status, out_digest);
    if (status < 0) {
        wefti_cluster_deinit(out);
    } else {
        wefti_place_nics(out);
    }
    return status;
}
