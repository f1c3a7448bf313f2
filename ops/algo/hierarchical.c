/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hierarchical algorithms: inside hosts, between hosts, inside hosts.
 *
 *   hosts and rails        host a: members 0 1 2 3        host b: members 0 1 2 3
 *                                  |                              |
 *                                  '---- member i exchanges what falls to it with member i ----'
 *
 * placement.h says who is member i: ranks may lie on hosts in any order, and members follow the
 * network card that they are next to. Names: "hierarchical" has the fewest steps, "rails" moves
 * the fewest bytes, cut into pieces that are under way at once.
 *
 *   hierarchical_sums.c     what a host sums, and how sums are joined in the group's order
 *   hierarchical_turns.c    who of a host deals with the blocks of other hosts' ranks
 *   hierarchical_reduce.c   all-reduce, reduce
 *   hierarchical_scatter.c  reduce-scatter
 *   hierarchical_spread.c   all-gather, broadcast
 *   hierarchical_collect.c  all-to-all, gather, scatter
 */
#include "ops/algo/hierarchical.h"

static const weft_algorithm_t table[] = {
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_REDUCE, "hierarchical",
                    "inside hosts, between hosts, inside hosts", wefti_hier_eligible_reduction,
                    wefti_hier_reduce_resources, wefti_hier_reduce),
    WEFTI_ALGORITHM(
        WEFT_COLLECTIVE_ALL_REDUCE, "rails", "the same, in pieces, the fewest bytes between hosts",
        wefti_hier_eligible_reduction, wefti_hier_rails_resources, wefti_hier_reduce_rails),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_REDUCE, "hierarchical", "inside hosts, then on the root's host",
                    wefti_hier_eligible_reduction, wefti_hier_reduce_resources, wefti_hier_reduce),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_REDUCE, "rails", "the same, in pieces, finished on all hosts",
                    wefti_hier_eligible_reduction, wefti_hier_rails_resources,
                    wefti_hier_reduce_rails),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_REDUCE_SCATTER, "hierarchical",
                    "one sum per host and block crosses", wefti_hier_eligible_reduction,
                    wefti_hier_reduce_scatter_resources, wefti_hier_reduce_scatter),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_REDUCE_SCATTER_V, "hierarchical",
                    "one sum per host and block crosses", wefti_hier_eligible_reduction,
                    wefti_hier_reduce_scatter_resources, wefti_hier_reduce_scatter),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_GATHER, "hierarchical",
                    "each block crosses to each host once", wefti_hier_eligible,
                    wefti_hier_all_gather_resources, wefti_hier_all_gather),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_GATHER_V, "hierarchical",
                    "each block crosses to each host once", wefti_hier_eligible,
                    wefti_hier_all_gather_resources, wefti_hier_all_gather),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_BROADCAST, "hierarchical", "once to each host, then inside",
                    wefti_hier_eligible, wefti_hier_broadcast_resources, wefti_hier_broadcast),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_BROADCAST, "rails", "from host to host, in pieces",
                    wefti_hier_eligible, wefti_hier_broadcast_rails_resources,
                    wefti_hier_broadcast_rails),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_ALL_TO_ALL, "hierarchical",
                    "a host's blocks for a rank cross together", wefti_hier_eligible,
                    wefti_hier_collect_resources, wefti_hier_all_to_all),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_GATHER, "hierarchical", "a host's blocks cross together",
                    wefti_hier_eligible, wefti_hier_collect_resources, wefti_hier_gather),
    WEFTI_ALGORITHM(WEFT_COLLECTIVE_SCATTER, "hierarchical", "a host's blocks cross together",
                    wefti_hier_eligible, wefti_hier_collect_resources, wefti_hier_scatter),
};
WEFTI_ALGORITHM_LIST(wefti_hierarchical_algorithms, table);
