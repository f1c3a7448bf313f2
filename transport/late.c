/* SPDX-License-Identifier: Apache-2.0 */
/* Who keeps a rank waiting, and whether a slow link is the reason: for warnings and errors. */
#include "transport/transport.h"

#include <stdio.h>

#include "transport/endpoint.h"

/* Less says nothing of a link. */
#define LEAST_BYTES ((uint64_t)1 << 20)
#define LEAST_NS 2000000ull
/* Of the median of the others: a link this slow is named. */
#define SLOW_FRACTION 0.5
#define PEERS_MAX 256u

bool wefti_endpoint_reports_late(wefti_endpoint_t *endpoint, uint64_t waited_ns)
{
    uint64_t late_ns = endpoint->settings->late_ns;
    if (late_ns == 0 || waited_ns < late_ns) {
        return false;
    }
    uint64_t now = wefti_now_ns();
    uint64_t last = atomic_load_explicit(&endpoint->late_reported_ns, memory_order_relaxed);
    if (last != 0 && now - last < late_ns) {
        return false;
    }
    /* Of several threads one reports. */
    return atomic_compare_exchange_strong_explicit(&endpoint->late_reported_ns, &last, now,
                                                   memory_order_relaxed, memory_order_relaxed);
}

double wefti_endpoint_link_rate(wefti_endpoint_t *endpoint, uint32_t peer)
{
    wefti_link_stats_t stats;
    wefti_endpoint_link_stats(endpoint, peer, &stats);
    return stats.bytes_sent < LEAST_BYTES || stats.busy_ns < LEAST_NS
               ? 0
               : (double)stats.bytes_sent * 1e9 / (double)stats.busy_ns;
}

/* The median rate of links to others; 0: none can be measured. */
static double rate_of_others(wefti_endpoint_t *endpoint, uint32_t peer)
{
    double rates[PEERS_MAX];
    uint32_t count = 0;
    for (uint32_t r = 0; r < endpoint->world_size && count < PEERS_MAX; r++) {
        double rate = r != peer && r != endpoint->rank && !wefti_endpoint_direct(endpoint, r)
                          ? wefti_endpoint_link_rate(endpoint, r)
                          : 0;
        if (rate > 0) {
            uint32_t at = count++;
            for (; at > 0 && rates[at - 1] > rate; at--) {
                rates[at] = rates[at - 1];
            }
            rates[at] = rate;
        }
    }
    return count > 0 ? rates[count / 2] : 0;
}

void wefti_endpoint_late_facts(wefti_endpoint_t *endpoint, uint32_t rank, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    if (rank >= endpoint->world_size) {
        return;
    }
    if (endpoint->host_names != NULL && endpoint->host_count > 1) {
        used = (size_t)snprintf(text, bytes, "; rank %u is on host %s", rank,
                                endpoint->host_names[endpoint->host_of[rank]]);
    }
    double rate = wefti_endpoint_link_rate(endpoint, rank);
    double others = rate_of_others(endpoint, rank);
    if (rate > 0 && rate < others * SLOW_FRACTION && used < bytes) {
        char name[32], reason[8];
        wefti_endpoint_describe(endpoint, rank, name, sizeof name, reason, sizeof reason);
        snprintf(text + used, bytes - used,
                 "; the %s link to rank %u runs at %.3g MB/s, others at %.3g MB/s", name, rank,
                 rate * 1e-6, others * 1e-6);
    }
}
