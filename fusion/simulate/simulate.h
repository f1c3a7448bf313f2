/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of a plan on a described cluster, on a clock. The schedules are those that run.
 *
 *   cluster ---> world.c       parts (caches, NUMA nodes, hosts, NICs, racks) and their links
 *   plan -----> step.c         kernels and collectives of all ranks, stream by stream
 *                 |
 *               collective.c   one collective: posts, waits and moves of classes of ranks
 *                 |  classes.c which ranks behave alike
 *                 |  predict.c the planner's predictions
 *               flows.c        moves in flight, which share the rates of links
 */
#ifndef WEFT_FUSION_SIMULATE_SIMULATE_H
#define WEFT_FUSION_SIMULATE_SIMULATE_H

#include "fusion/profile.h"
#include "ops/cost/cost.h"
#include "ops/plan/plan.h"
#include "runtime/machine/cluster.h"

/* What ranks share: links and cores. A part of a host is one link; NICs and racks have one per
 * direction. */
typedef enum sim_kind {
    SIM_L3 = WEFTI_TOPO_L3,
    SIM_NUMA = WEFTI_TOPO_NUMA,
    SIM_SOCKET = WEFTI_TOPO_SOCKET,
    SIM_HOST = WEFTI_TOPO_HOST,
    SIM_NIC_OUT,
    SIM_NIC_IN,
    SIM_RACK_UP,
    SIM_RACK_DOWN,
    SIM_CORE, /* its rate is 1 ns of work per ns if several ranks are bound to it */
    SIM_KINDS,
} sim_kind_t;

/* What two ranks share, from the inside out. */
typedef enum sim_distance {
    SIM_IN_L3 = WEFTI_TOPO_L3,
    SIM_IN_NUMA = WEFTI_TOPO_NUMA,
    SIM_IN_SOCKET = WEFTI_TOPO_SOCKET,
    SIM_IN_HOST = WEFTI_TOPO_HOST,
    SIM_IN_RACK = WEFTI_TOPO_RACK,
    SIM_APART, /* in different racks */
    SIM_SELF,
} sim_distance_t;

/* Schedules of the last collective, for the next: plans have many alike. */
typedef struct sim_schedules {
    const weft_algorithm_t *algorithm;
    weft_algo_params_t params; /* its pointers are not read */
    uint32_t stride, count, *rank_of;
    wefti_schedule_t *list; /* [count] */
} sim_schedules_t;

typedef struct sim_world {
    const wefti_costs_t *costs;
    const wefti_cluster_t *cluster;
    uint32_t ranks, hosts;                     /* hosts that have ranks */
    uint32_t *host_of;                         /* [rank], by their first ranks */
    uint32_t *rail_of;                         /* [rank], or NULL */
    uint32_t *seat;                            /* [rank]: its number among the ranks of its host */
    uint32_t *stand;                           /* [host]: its number among the hosts of its rack */
    uint32_t *host_first;                      /* [host]: its first rank */
    uint32_t *host_size;                       /* [host] */
    uint32_t largest_host, largest_host_cores; /* its ranks and cores; 0 cores: nobody knows */
    uint32_t *part[SIM_KINDS]; /* [rank]: which link of the kind; NIC_IN as NIC_OUT */
    uint32_t part_count[SIM_KINDS];
    double *rate[SIM_KINDS];         /* [part] bytes per ns; 0: not limited */
    double *carried[SIM_KINDS];      /* [part] bytes of the step */
    double latency_ns[SIM_SELF + 1]; /* by distance */
    bool pair_links;                 /* some pairs of hosts have links of their own */
    bool racks;
    uint32_t *on_core;       /* [part of SIM_CORE]: ranks that are bound to it */
    bool shares_cores;       /* some ranks do */
    wefti_profile_t profile; /* if known, its times of kernels are taken, not those of the costs */
    wefti_arena_t profile_arena;
    /* Steps of all ranks' schedules up to which these are compared, to find who behaves alike. */
    uint64_t most_work;
    sim_schedules_t schedules;
    struct sim_known *known; /* divisions of ranks that predictions were made for */
    uint32_t exact_ranks;    /* worlds of up to so many ranks are simulated rank by rank */
} sim_world_t;

#define SIM_EXACT_RANKS 256u /* by default */
#define SIM_MOST_WORK ((uint64_t)1 << 25)

/* cluster has its ranks placed, cores and NICs chosen. priced: the cost table was measured, and
 * knows links between hosts better than the names of interfaces. */
weft_status_t wefti_sim_world_init(sim_world_t *world, const wefti_cluster_t *cluster,
                                   const wefti_costs_t *costs, bool priced);
void wefti_sim_world_deinit(sim_world_t *world);
/* Kernels take their times from what weft run --write-profile has written. Once. */
weft_status_t wefti_sim_world_load_profile(sim_world_t *world, const char *path);
sim_distance_t wefti_sim_distance(const sim_world_t *world, uint32_t a, uint32_t b);
/* From a post of one rank to the other that waits for it. */
double wefti_sim_latency_ns(const sim_world_t *world, uint32_t a, uint32_t b);
/* "nic 0 of host a, out" */
void wefti_sim_link_name(const sim_world_t *world, sim_kind_t kind, uint32_t part, char *out,
                         size_t bytes);

/* One collective over some ranks of the world. */
typedef struct sim_call {
    const weft_algorithm_t *algorithm;
    weft_algo_params_t params; /* of a group: hosts as the group numbers them */
    wefti_counts_t counts;
    uint32_t stride; /* groups are ranks base + i * stride, one per base */
} sim_call_t;

/* How ranks were divided. */
typedef struct sim_division {
    uint32_t *class_of; /* [rank of the world] */
    uint32_t count;
    uint32_t *first, *size; /* [class]: lowest rank; members */
    bool exact;             /* each rank is a class */
    bool by_place;          /* by the place in the cluster alone: schedules were not compared */
    bool merged;            /* too many places: ranks of different places share a class */
} sim_division_t;

weft_status_t wefti_sim_divide(const sim_world_t *world, const sim_call_t *call,
                               sim_division_t *out);
void wefti_sim_division_deinit(sim_division_t *division);

static inline uint32_t wefti_sim_group_rank(const sim_call_t *call, uint32_t rank)
{
    return rank / call->stride % call->params.group_size;
}
/* Rank of the world that is number index of rank's group. */
static inline uint32_t wefti_sim_member(const sim_call_t *call, uint32_t rank, uint32_t index)
{
    return rank + (index - wefti_sim_group_rank(call, rank)) * call->stride;
}
/* Bytes of an operator's blocks, of the users' type. */
double wefti_sim_block_bytes(const sim_call_t *call, const wefti_schedule_t *schedule,
                             uint32_t first, uint32_t step, uint32_t count);
void wefti_sim_schedules_deinit(sim_schedules_t *schedules);
/* Runs it: now_ns[rank of the world] is when a rank begins, and then when it ends. */
weft_status_t wefti_sim_collective(sim_world_t *world, const sim_call_t *call,
                                   const sim_division_t *division, double *now_ns);

/* Groups of a world, as the planner sees them. */
typedef struct sim_group {
    sim_world_t *world;
    uint32_t stride; /* as in sim_call_t */
} sim_group_t;
/* predict.c: a wefti_predict_fn; user is a sim_group_t. */
weft_status_t wefti_sim_predict(void *user, const weft_algorithm_t *algorithm,
                                const weft_algo_params_t *params, const wefti_counts_t *counts,
                                double *out_ns);
/* Before the world ends. */
void wefti_sim_forget_divisions(sim_world_t *world);

/* The last wait before a step, in its lane, that covers a rank of the group; or NULL. */
const wefti_step_t *wefti_sim_wait_before(const wefti_schedule_t *schedule, size_t index,
                                          uint32_t peer);

/* ---- moves in flight ---- */

typedef struct sim_hop {
    uint32_t link;
    double weight; /* flows like this one on the link */
} sim_hop_t;

typedef struct sim_flow {
    double bytes, left, most; /* most: bytes per ns of it alone; 0: not limited */
    double rate, end_ns;
    double level; /* while rates are divided */
    uint32_t hop_count;
    sim_hop_t hops[4];
    uint32_t owner; /* of the caller */
} sim_flow_t;

typedef struct sim_flows {
    double *rates, *loads, *spare; /* [link] */
    size_t link_count;
    uint32_t *active;
    size_t count, capacity;
    sim_flow_t *flows;
    bool changed;
    double next_ns; /* when the next flow ends, unless changed */
    /* Times that passed, but are not yet taken off what is left of flows: one look at each flow is
     * for many of them, in their order, so that roundings are the same. */
    double passed_ns[64];
    uint32_t passed_count;
} sim_flows_t;

weft_status_t wefti_sim_flow_begin(sim_flows_t *flows, uint32_t flow);
/* When the next flow ends, given that nothing begins before; INFINITY: none is in flight. */
double wefti_sim_flows_next(sim_flows_t *flows, double now_ns);
/* Lets time pass, and calls ended for each flow that has ended by then. */
typedef weft_status_t (*sim_ended_fn)(void *user, uint32_t flow);
weft_status_t wefti_sim_flows_advance(sim_flows_t *flows, double from_ns, double to_ns,
                                      sim_ended_fn ended, void *user);

/* ---- a step ---- */

typedef struct sim_event {
    uint32_t stream;
    bool collective;
    uint32_t index;          /* kernel or collective */
    double begin_ns, end_ns; /* first and last of all ranks */
    double rank0_begin_ns, rank0_end_ns;
    double exposed_ns; /* of a collective: its time in which rank 0 computes nothing */
    const char *algorithm;
    bool measured; /* its time is that of the cost table */
    uint32_t classes;
    bool by_place, exact, merged;
} sim_event_t;

typedef struct sim_step {
    sim_event_t *events;
    size_t count, capacity;
    double step_ns, compute_ns, comm_ns, exposed_ns;
    bool inline_progress;
    uint32_t classes; /* the most of any collective */
    bool exact;       /* every rank of every collective was simulated */
} sim_step_t;

weft_status_t wefti_sim_step(sim_world_t *world, const weft_plan_t *plan,
                             const weft_registry_t *registry, sim_step_t *out);
void wefti_sim_step_deinit(sim_step_t *step);
/* The call of a collective of the plan; params point into scratch, which holds for the call. */
typedef struct sim_scratch {
    uint32_t *host_of, *rail_of, *rack_of, *order;
} sim_scratch_t;
weft_status_t wefti_sim_call(const sim_world_t *world, const weft_plan_t *plan,
                             const weft_registry_t *registry,
                             const wefti_plan_collective_t *collective, sim_scratch_t *scratch,
                             sim_call_t *out);
void wefti_sim_scratch_deinit(sim_scratch_t *scratch);
/* Nanoseconds of every kernel of the plan, [kernel_count], on a rank that shares no core; free with
 * wefti_free. */
weft_status_t wefti_sim_kernel_ns(const sim_world_t *world, const weft_plan_t *plan,
                                  const weft_registry_t *registry, double **out_ns,
                                  bool *out_inline);

/* What a long write reports: first how large the files will be, as far as rank 0 tells, then the
 * ranks that are done. Functions may be NULL. */
typedef struct sim_progress {
    void (*announce)(void *user, const char *path, uint64_t bytes, uint32_t files);
    void (*progress)(void *user, uint32_t done, uint32_t ranks);
    void *user;
} sim_progress_t;
static inline void wefti_sim_announce(const sim_progress_t *progress, const char *path,
                                      uint64_t bytes, uint32_t files)
{
    if (progress != NULL && progress->announce != NULL) {
        progress->announce(progress->user, path, bytes, files);
    }
}
static inline void wefti_sim_progress(const sim_progress_t *progress, uint32_t done, uint32_t ranks)
{
    if (progress != NULL && progress->progress != NULL) {
        progress->progress(progress->user, done, ranks);
    }
}

/* Files for other simulators and viewers; each is written whole or not at all. */
weft_status_t wefti_sim_write_goal(const sim_world_t *world, const weft_plan_t *plan,
                                   const weft_registry_t *registry, const char *path,
                                   const sim_progress_t *progress);
weft_status_t wefti_sim_write_chakra(const sim_world_t *world, const weft_plan_t *plan,
                                     const weft_registry_t *registry, const char *prefix,
                                     const sim_progress_t *progress);
weft_status_t wefti_sim_write_perfetto(const weft_plan_t *plan, const sim_step_t *step,
                                       const char *path);

#endif
