/* SPDX-License-Identifier: Apache-2.0 */
/* Moves in flight: a link's rate is divided evenly among the flows on it, but for what flows leave
 * that another link slows more. */
#include "fusion/simulate/simulate.h"

#include "runtime/base/error.h"

#include <math.h>
#include <string.h>

#define SLACK_NS 1e-3   /* flows that end so close to each other end together */
#define SLACK 1e-9      /* rates that are equal but for rounding */
#define MOST_ROUNDS 64u /* of dividing; the flows left after them get what is free now */

/* Takes off what has passed, where rates are finite. */
static void settle(sim_flows_t *flows)
{
    for (size_t i = 0; i < flows->count && flows->passed_count > 0; i++) {
        sim_flow_t *flow = &flows->flows[flows->active[i]];
        double left = flow->left, rate = flow->rate;
        for (uint32_t t = 0; t < flows->passed_count && !isinf(rate); t++) {
            left -= rate * flows->passed_ns[t];
        }
        flow->left = left;
    }
    flows->passed_count = 0;
}

weft_status_t wefti_sim_flow_begin(sim_flows_t *flows, uint32_t flow)
{
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(NULL, &flows->active, &flows->capacity,
                                             flows->count + 1, sizeof *flows->active));
    settle(flows);
    flows->active[flows->count++] = flow;
    flows->flows[flow].left = flows->flows[flow].bytes;
    flows->changed = true;
    return WEFT_OK;
}

/* What a link has left for each of the flows on it that have no rate yet. */
static double share_of(const sim_flows_t *flows, uint32_t link)
{
    return flows->rates[link] > 0 ? fmax(flows->spare[link], 0) / flows->loads[link] : INFINITY;
}

/* Loads of links by flows without a rate, and the most that a flow gets if it is alone. */
static void load_links(sim_flows_t *flows)
{
    memset(flows->loads, 0, flows->link_count * sizeof *flows->loads);
    memcpy(flows->spare, flows->rates, flows->link_count * sizeof *flows->spare);
    for (size_t i = 0; i < flows->count; i++) {
        sim_flow_t *flow = &flows->flows[flows->active[i]];
        flow->rate = flow->most > 0 ? flow->most : INFINITY;
        for (uint32_t h = 0; h < flow->hop_count; h++) {
            /* a flow alone has all of the link, also where it counts as less than one */
            double whole = flows->rates[flow->hops[h].link];
            flow->rate = whole > 0 ? fmin(flow->rate, whole) : flow->rate;
            flows->loads[flow->hops[h].link] += flow->hops[h].weight;
        }
    }
}

static double level_of(const sim_flows_t *flows, const sim_flow_t *flow)
{
    double level = flow->rate;
    for (uint32_t h = 0; h < flow->hop_count; h++) {
        level = fmin(level, share_of(flows, flow->hops[h].link));
    }
    return level;
}

/* Gives every flow its rate that is not above the least one of this round (by rounding); what these
 * leave of their links is for the others. Returns how many are left, which active begins with. */
static size_t fix_slowest(sim_flows_t *flows, size_t count, double least)
{
    size_t left = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t id = flows->active[i];
        sim_flow_t *flow = &flows->flows[id];
        if (flow->level > least) {
            flows->active[i] = flows->active[left];
            flows->active[left++] = id;
        }
    }
    for (size_t i = left; i < count; i++) {
        sim_flow_t *flow = &flows->flows[flows->active[i]];
        flow->rate = flow->level;
        for (uint32_t h = 0; h < flow->hop_count && !isinf(flow->rate); h++) {
            flows->spare[flow->hops[h].link] -= flow->rate * flow->hops[h].weight;
            flows->loads[flow->hops[h].link] -= flow->hops[h].weight;
        }
    }
    return left;
}

/* Max-min: the flows on the fullest link share it evenly, then those on the fullest one of the
 * others share what is left of that, and so on. */
static void divide(sim_flows_t *flows, double now_ns)
{
    settle(flows);
    load_links(flows);
    size_t left = flows->count;
    for (uint32_t round = 1; left > 0; round++) {
        double least = INFINITY;
        for (size_t i = 0; i < left; i++) {
            sim_flow_t *flow = &flows->flows[flows->active[i]];
            flow->level = level_of(flows, flow);
            least = fmin(least, flow->level);
        }
        left = fix_slowest(flows, left, round < MOST_ROUNDS ? least * (1 + SLACK) : INFINITY);
    }
    flows->next_ns = INFINITY;
    for (size_t i = 0; i < flows->count; i++) {
        sim_flow_t *flow = &flows->flows[flows->active[i]];
        flow->end_ns = isinf(flow->rate) ? now_ns : now_ns + flow->left / flow->rate;
        flows->next_ns = fmin(flows->next_ns, flow->end_ns);
    }
    flows->changed = false;
}

double wefti_sim_flows_next(sim_flows_t *flows, double now_ns)
{
    if (flows->changed) {
        divide(flows, now_ns);
    }
    return flows->count > 0 ? flows->next_ns : INFINITY;
}

weft_status_t wefti_sim_flows_advance(sim_flows_t *flows, double from_ns, double to_ns,
                                      sim_ended_fn ended, void *user)
{
    size_t ended_count = 0;
    if (!flows->changed && (flows->count == 0 || flows->next_ns > to_ns + SLACK_NS)) {
        if (flows->passed_count == sizeof flows->passed_ns / sizeof *flows->passed_ns) {
            settle(flows);
        }
        flows->passed_ns[flows->passed_count] = to_ns - from_ns;
        flows->passed_count += to_ns > from_ns;
        return WEFT_OK;
    }
    settle(flows);
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
