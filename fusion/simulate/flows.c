/* SPDX-License-Identifier: Apache-2.0 */
/* Moves in flight: a link's rate is divided evenly among the flows on it, and a flow is as fast as
 * its slowest link lets it be. */
#include "fusion/simulate/simulate.h"

#include "runtime/base/error.h"

#include <math.h>
#include <string.h>

#define SLACK_NS 1e-3 /* flows that end so close to each other end together */

weft_status_t wefti_sim_flow_begin(sim_flows_t *flows, uint32_t flow)
{
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(NULL, &flows->active, &flows->capacity,
                                             flows->count + 1, sizeof *flows->active));
    flows->active[flows->count++] = flow;
    flows->flows[flow].left = flows->flows[flow].bytes;
    flows->changed = true;
    return WEFT_OK;
}

static void divide(sim_flows_t *flows, double now_ns)
{
    memset(flows->loads, 0, flows->link_count * sizeof *flows->loads);
    for (size_t i = 0; i < flows->count; i++) {
        const sim_flow_t *flow = &flows->flows[flows->active[i]];
        for (uint32_t h = 0; h < flow->hop_count; h++) {
            flows->loads[flow->hops[h].link] += flow->hops[h].weight;
        }
    }
    for (size_t i = 0; i < flows->count; i++) {
        sim_flow_t *flow = &flows->flows[flows->active[i]];
        double rate = flow->most > 0 ? flow->most : INFINITY;
        for (uint32_t h = 0; h < flow->hop_count; h++) {
            uint32_t link = flow->hops[h].link;
            /* a flow alone has all of the link, also where it counts as less than one */
            double load = fmax(flows->loads[link], 1);
            if (flows->rates[link] > 0) {
                rate = fmin(rate, flows->rates[link] / load);
            }
        }
        flow->rate = rate;
        flow->end_ns = isinf(rate) ? now_ns : now_ns + flow->left / rate;
    }
    flows->changed = false;
}

double wefti_sim_flows_next(sim_flows_t *flows, double now_ns)
{
    double next = INFINITY;
    if (flows->changed) {
        divide(flows, now_ns);
    }
    for (size_t i = 0; i < flows->count; i++) {
        next = fmin(next, flows->flows[flows->active[i]].end_ns);
    }
    return next;
}

weft_status_t wefti_sim_flows_advance(sim_flows_t *flows, double from_ns, double to_ns,
                                      sim_ended_fn ended, void *user)
{
    size_t ended_count = 0;
    for (size_t i = 0; i < flows->count; i++) {
        uint32_t id = flows->active[i];
        sim_flow_t *flow = &flows->flows[id];
        if (flow->end_ns <= to_ns + SLACK_NS) {
            flows->active[i] = flows->active[ended_count];
            flows->active[ended_count++] = id;
        } else if (!isinf(flow->rate)) {
            flow->left -= flow->rate * (to_ns - from_ns);
        }
    }
    if (ended_count == 0) {
        return WEFT_OK;
    }
    flows->changed = true;
    /* Those that have ended leave first: what they wake begins new ones. */
    uint32_t *list = wefti_alloc(NULL, ended_count * sizeof *list);
    WEFT_RETURN_IF_NO_MEMORY(list);
    memcpy(list, flows->active, ended_count * sizeof *list);
    flows->count -= ended_count;
    memmove(flows->active, flows->active + ended_count, flows->count * sizeof *list);
    weft_status_t status = WEFT_OK;
    for (size_t i = 0; i < ended_count && status >= 0; i++) {
        status = ended(user, list[i]);
    }
    wefti_free(NULL, list);
    return status;
}
