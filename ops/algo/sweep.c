/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/algo/sweep.h"

#include <string.h>

#include "ops/algo/lower.h"
#include "ops/algo/placement.h"
#include "ops/algo/symmetry.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/params.h"

#define ALL_ORDERS_RANKS 17u
#define MAX_PROVED_RANKS 4096u
#define MAX_PROVED_PLACES ((uint64_t)1 << 24)

#define MOST_RANKS 4096u /* each has a clock of every other */

static const char *const order_names[] = {"tree", "blocks", "any"};

/* Blocks to simulate, roughly: what a case costs in memory. */
static uint64_t cells_of(const weft_algorithm_t *algorithm, const weft_algo_params_t *params)
{
    weft_algo_resources_t resources = {0};
    wefti_algorithm_resources(algorithm, params, &resources);
    uint64_t blocks = wefti_block_count(params, &resources);
    return params->group_size * (2 * blocks + (uint64_t)resources.scratch_slots);
}

/* Links to prove a schedule over. */
typedef enum link_mode {
    LINKS_DIRECT = 0,
    LINKS_MIXED = 1,  /* hosts of three ranks, every second rank's buffers hidden */
    LINKS_PUT = 2,    /* no rank can load or store another's memory */
    LINKS_HIDDEN = 3, /* all can, but not the users' buffers */
    LINK_MODES = 4,
    LINKS_HOSTS = 5, /* as the ranks are placed: put links between hosts */
} link_mode_t;

static const char *const link_names[] = {
    "", ", hosts of three ranks",   ", put links", ", hidden buffers",
    "", ", put links between hosts"};

/* memory_of [n] and hidden [n] for a mode. */
static wefti_links_t links_of(const weft_algo_params_t *params, link_mode_t mode,
                              uint32_t *memory_of, uint8_t *hidden)
{
    bool hides = mode == LINKS_MIXED || mode == LINKS_HIDDEN;
    for (uint32_t r = 0; r < params->group_size; r++) {
        memory_of[r] = mode == LINKS_HOSTS ? wefti_placement_host_of(params, r)
                       : mode == LINKS_PUT ? r
                                           : r / 3;
        hidden[r] = mode == LINKS_HIDDEN || r % 2 == 1;
    }
    return (wefti_links_t){mode == LINKS_HIDDEN ? NULL : memory_of, hides ? hidden : NULL};
}

static weft_status_t prove(wefti_sweep_t *sweep, const weft_algorithm_t *algorithm,
                           const weft_algo_params_t *params, link_mode_t mode)
{
    wefti_schedule_t *schedules = NULL;
    wefti_verify_stats_t stats = {0};
    uint32_t n = params->group_size;
    wefti_links_t links = {0};
    uint32_t *memory_of = wefti_alloc(sweep->allocator, n * (sizeof *memory_of + 1ul));
    if (memory_of == NULL) {
        return WEFT_ERR_NO_MEMORY;
    }
    weft_status_t status = wefti_schedules_build(algorithm, params, sweep->allocator, &schedules);
    if (status >= 0 && mode != LINKS_DIRECT) {
        links = links_of(params, mode, memory_of, (uint8_t *)(memory_of + n));
        status = wefti_schedules_lower(params, &links, sweep->allocator, schedules);
    }
    if (status >= 0) {
        status = wefti_schedules_verify(params, schedules, &links, sweep->allocator, &stats);
    }
    wefti_schedules_free(sweep->allocator, schedules, params->group_size);
    wefti_free(sweep->allocator, memory_of);
    sweep->steps += stats.steps;
    sweep->accesses += stats.accesses;
    if (status < 0) {
        return wefti_error_prefix(
            status, "%s %s, %u ranks, %sroot %u, order %s%s%s", weft_collective_name(params->op),
            algorithm->name, params->group_size, sweep->placed, params->root,
            order_names[params->order], params->in_place ? ", in place" : "", link_names[mode]);
    }
    sweep->proved++;
    return WEFT_OK;
}

/* Of groups that are too large to run all ranks: over shared memory only. */
static weft_status_t prove_by_symmetry(wefti_sweep_t *sweep, const weft_algorithm_t *algorithm,
                                       const weft_algo_params_t *params)
{
    weft_status_t status = wefti_symmetry_prove(algorithm, params, sweep->allocator,
                                                sweep->step_limit, &sweep->steps, &sweep->accesses);
    sweep->proved += status >= 0;
    sweep->by_symmetry += status >= 0;
    sweep->left_out += status == WEFT_ERR_UNSUPPORTED;
    return status == WEFT_ERR_UNSUPPORTED ? WEFT_OK : status;
}

weft_status_t wefti_sweep_case(wefti_sweep_t *sweep, const weft_algorithm_t *algorithm,
                               const weft_algo_params_t *params)
{
    int modes = params->group_size == 1              ? 1
                : params->host_of != NULL            ? 0 /* as they are placed */
                : sweep->links == WEFTI_SWEEP_DIRECT ? 1
                : sweep->links == WEFTI_SWEEP_MIXED  ? 2
                                                     : LINK_MODES;
    if (sweep->cell_limit > 0 &&
        (params->group_size > MOST_RANKS || cells_of(algorithm, params) > sweep->cell_limit)) {
        return prove_by_symmetry(sweep, algorithm, params);
    }
    for (int mode = LINKS_DIRECT; mode < modes; mode++) {
        WEFT_RETURN_IF_ERROR(prove(sweep, algorithm, params, (link_mode_t)mode));
    }
    return params->host_of != NULL ? prove(sweep, algorithm, params, LINKS_HOSTS) : WEFT_OK;
}

static weft_status_t prove_case(wefti_sweep_t *sweep, const weft_algorithm_t *algorithm,
                                weft_algo_params_t *params)
{
    bool can_overlap = wefti_collective_of(params->op)->in_place;
    for (params->in_place = 0; params->in_place <= can_overlap; params->in_place++) {
        if (wefti_algorithm_reason(algorithm, params) == NULL) {
            WEFT_RETURN_IF_ERROR(wefti_sweep_case(sweep, algorithm, params));
        }
    }
    return WEFT_OK;
}

/* Three blocks of different lengths, where there are so many ranks. */
static uint32_t uneven_blocks(uint32_t n, uint32_t *out_sizes)
{
    uint32_t count = n < 3 ? n : 3;
    uint32_t left = n;
    for (uint32_t i = 0; i < count; i++) {
        out_sizes[i] = i + 1 == count ? left : (left - (count - 1 - i)) / 2;
        out_sizes[i] = out_sizes[i] > 0 ? out_sizes[i] : 1;
        left -= out_sizes[i];
    }
    return count;
}

static weft_status_t prove_orders(wefti_sweep_t *sweep, const weft_algorithm_t *algorithm,
                                  weft_algo_params_t *params)
{
    uint32_t sizes[3];
    params->order_sizes = sizes;
    params->order_size_count = uneven_blocks(params->group_size, sizes);
    params->host_sizes = sizes; /* hosts are the order's blocks */
    params->host_count = params->order_size_count;
    weft_status_t status = WEFT_OK;
    bool reduces = wefti_collective_reduces(params->op);
    for (int order = WEFT_ORDER_TREE; order <= (reduces ? WEFT_ORDER_ANY : WEFT_ORDER_TREE);
         order++) {
        params->order = WEFT_ORDER_TREE;
        bool tree = wefti_algorithm_reason(algorithm, params) == NULL;
        params->order = (weft_order_t)order;
        /* Who can follow the tree does so under order=any: proved for small groups only. */
        if (order == WEFT_ORDER_ANY && tree && params->group_size > ALL_ORDERS_RANKS) {
            continue;
        }
        if (status >= 0) {
            status = prove_case(sweep, algorithm, params);
        }
    }
    return status;
}

/* ---- algorithms that look at hosts ---- */

#define PLACED_RANKS 12u /* every placement of groups up to this, */
#define PLACED_MORE 24u  /* and of this one */
#define PIECES_RANKS 8u  /* lanes are alike: with more ranks fewer of them are proved */

static bool looks_at_hosts(const weft_algorithm_t *algorithm, const weft_algo_params_t *params)
{
    weft_algo_params_t one = *params;
    one.host_sizes = one.host_of = NULL;
    one.host_count = one.host_of_count = 0;
    one.order = WEFT_ORDER_ANY;
    return wefti_algorithm_reason(algorithm, &one) != NULL;
}

/* Of others, those that number ranks by placement. */
static bool looks_at_placement(const weft_algorithm_t *algorithm, const weft_algo_params_t *params)
{
    weft_algo_resources_t resources = {0};
    wefti_algorithm_resources(algorithm, params, &resources);
    return resources.by_placement != 0;
}

/* Of those that look at hosts, those to which these are not enough. */
static bool looks_at_racks(const weft_algorithm_t *algorithm, const weft_algo_params_t *params)
{
    const uint32_t sizes[2] = {1, params->group_size - 1};
    weft_algo_params_t two = *params;
    two.host_sizes = sizes;
    two.host_count = 2;
    two.order = WEFT_ORDER_ANY;
    return params->group_size > 1 && looks_at_hosts(algorithm, params) &&
           wefti_algorithm_reason(algorithm, &two) != NULL;
}

#define IN_RACKS 5u /* the placement in racks that are alike */

typedef struct placed {
    const char *text;
    uint32_t hosts;
    uint32_t *host_of, *rail_of, *rack_of; /* [ranks] */
} placed_t;

/* Ranks in turns on hosts of two, or of one, and these in turns in racks of as many hosts each, if
 * the number of ranks is no prime. */
static uint32_t hosts_in_racks(uint32_t n, uint32_t *out_racks)
{
    uint32_t hosts = n % 4 == 0 || n % 6 == 0 ? n / 2 : n, racks = hosts % 3 == 0 ? 3 : 2;
    while (hosts % racks != 0) {
        racks++;
    }
    *out_racks = racks;
    return hosts;
}

/* Number `which` of the ways in which n ranks may lie on hosts; false: there are no more. */
static bool place(uint32_t which, uint32_t n, placed_t *out)
{
    static const char *const texts[] = {
        "two hosts in turns, ",         "hosts of one rank and one more, ",
        "up to eight hosts in a row, ", "hosts mixed up, ",
        "two hosts in a row, ",         "racks in turns, "};
    uint32_t state = n * 2654435761u, racks, in_racks = hosts_in_racks(n, &racks);
    if (which >= sizeof texts / sizeof *texts) {
        return false;
    }
    out->text = texts[which];
    out->hosts = which == 2          ? (n < 8 ? n : 8)
                 : which == 3        ? (n < 4 ? n : 4)
                 : which == IN_RACKS ? in_racks
                                     : 2;
    for (uint32_t r = 0; r < n; r++) {
        state = state * 1664525u + 1013904223u;
        uint32_t in_row = (uint32_t)((uint64_t)r * out->hosts / n);
        uint32_t mixed = r < out->hosts ? out->hosts - 1 - r : (state >> 24) % out->hosts;
        out->host_of[r] = which == 0          ? r % 2
                          : which == IN_RACKS ? r % out->hosts
                          : which == 1        ? r == n / 2
                          : which == 3        ? mixed
                                              : in_row;
        out->rail_of[r] = which == 3 ? state >> 20 & 1 : (n - r) / 3;
        out->rack_of[r] = which == IN_RACKS          ? out->host_of[r] % racks
                          : which == 2 || which == 3 ? (out->host_of[r] + 1) % 2
                                                     : 0;
    }
    return true;
}

/* Which ranks share a host or a rack, and who is next to which card, beyond runs of consecutive
 * ranks. numbered: no order that is promised depends on it. */
static weft_status_t prove_placements(wefti_sweep_t *sweep, const weft_algorithm_t *algorithm,
                                      weft_algo_params_t *params, bool numbered)
{
    uint32_t sizes[3], n = params->group_size;
    bool more = n > PLACED_RANKS && n != PLACED_MORE, racks = looks_at_racks(algorithm, params);
    placed_t placed;
    weft_status_t status = WEFT_OK;
    if (n < 2 || (more && !racks)) {
        return WEFT_OK;
    }
    placed.host_of = wefti_alloc(sweep->allocator, 3ul * n * sizeof *placed.host_of);
    WEFT_RETURN_IF_NO_MEMORY(placed.host_of);
    placed.rail_of = placed.host_of + n;
    placed.rack_of = placed.rail_of + n;
    params->host_sizes = NULL;
    params->host_count = 0;
    params->order_sizes = sizes;
    params->order_size_count = uneven_blocks(n, sizes);
    int orders = wefti_collective_reduces(params->op) ? WEFT_ORDER_ANY : WEFT_ORDER_TREE;
    int first = numbered ? orders : WEFT_ORDER_TREE;
    for (uint32_t which = more ? IN_RACKS : 0; status >= 0 && place(which, n, &placed); which++) {
        params->host_of = placed.host_of;
        params->host_of_count = placed.hosts;
        params->rail_of = placed.rail_of;
        params->rack_of = placed.rack_of;
        sweep->placed = placed.text;
        for (int order = first; order <= orders && status >= 0; order++) {
            params->order = (weft_order_t)order;
            status = prove_case(sweep, algorithm, params);
        }
    }
    sweep->placed = "";
    wefti_free(sweep->allocator, placed.host_of);
    return status;
}

weft_status_t wefti_sweep_size(wefti_sweep_t *sweep, uint32_t group_size)
{
    weft_status_t status = WEFT_OK;
    const weft_algorithm_t *algorithm;
    sweep->placed = "";
    for (size_t i = 0; (algorithm = wefti_algorithm_at(i)) != NULL && status >= 0; i++) {
        if ((sweep->op != 0 && algorithm->op != sweep->op) ||
            (sweep->algorithm != NULL && strcmp(algorithm->name, sweep->algorithm) != 0) ||
            (algorithm->op == WEFT_COLLECTIVE_SEND_RECV && group_size < 2)) {
            continue;
        }
        sweep->last_op = weft_collective_name(algorithm->op);
        sweep->last_algorithm = algorithm->name;
        bool rooted = wefti_collective_rooted(algorithm->op), one = rooted && sweep->root != NULL;
        const uint32_t roots[] = {one ? *sweep->root : 0, 1, group_size - 1};
        uint32_t root_count = rooted && !one ? 3 : 1;
        for (uint32_t r = 0; r < root_count && status >= 0; r++) {
            if (roots[r] >= group_size || (r == 2 && group_size <= 2)) {
                continue;
            }
            weft_algo_params_t params = {.struct_size = sizeof params,
                                         .op = algorithm->op,
                                         .group_size = group_size,
                                         .root = roots[r],
                                         .peer = (roots[r] + 1) % group_size};
            bool hosts = looks_at_hosts(algorithm, &params);
            params.pieces = !hosts || group_size <= PIECES_RANKS ? 0 : group_size <= 17 ? 2 : 1;
            status = prove_orders(sweep, algorithm, &params);
            bool numbered = !hosts && looks_at_placement(algorithm, &params);
            bool all = sweep->links != WEFTI_SWEEP_DIRECT;
            if (status >= 0 &&
                (((hosts || numbered) && all) || looks_at_racks(algorithm, &params))) {
                status = prove_placements(sweep, algorithm, &params, numbered);
            }
        }
    }
    return status;
}

/* What it asks for must be possible to write down for all ranks. */
static weft_status_t check_effort(const weft_algorithm_t *algorithm,
                                  const weft_algo_params_t *params)
{
    weft_algo_resources_t need = {0};
    if (wefti_algorithm_reason(algorithm, params) == NULL) {
        wefti_algorithm_resources(algorithm, params, &need);
    }
    uint64_t places =
        2ull * need.blocks + (uint64_t)need.scratch_slots * (need.scratch_sets + 1ull);
    uint64_t posts = (uint64_t)need.phases * (need.lanes + 1ull);
    if (params->group_size * places > MAX_PROVED_PLACES ||
        params->group_size * posts > MAX_PROVED_PLACES) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                           "%s %s: too large to verify: %u blocks, %u scratch slots, %u phases of "
                           "%u lanes on %u ranks",
                           weft_collective_name(params->op), algorithm->name, need.blocks,
                           need.scratch_slots, need.phases, need.lanes, params->group_size);
    }
    return WEFT_OK;
}

weft_status_t weft_algorithm_verify(const weft_algorithm_t *algorithm,
                                    const weft_algo_params_t *params)
{
    WEFT_CHECK_ARG(algorithm);
    WEFT_CHECK_ARG(params);
    wefti_sweep_t sweep = {.placed = ""};
    weft_algo_params_t own = WEFT_ALGO_PARAMS_INIT;
    if (algorithm->eligible == NULL || algorithm->resources == NULL || algorithm->build == NULL ||
        algorithm->name == NULL) {
        return wefti_error(WEFT_ERR_INVALID_ARGUMENT, "algorithm definition: a function is NULL");
    }
    weft_status_t status = WEFTI_PARAMS_READ(params, &own);
    if (status < 0) {
        return status;
    }
    own.op = algorithm->op;
    own.rank = 0;
    status = wefti_algo_params_check(&own);
    if (status >= 0 && own.group_size > MAX_PROVED_RANKS) {
        status = wefti_error(WEFT_ERR_INVALID_ARGUMENT,
                             "invalid group size %u: at most %u can be verified", own.group_size,
                             MAX_PROVED_RANKS);
    }
    status = status < 0 ? status : check_effort(algorithm, &own);
    if (status < 0) {
        return status;
    }
    status = prove(&sweep, algorithm, &own, LINKS_DIRECT);
    for (int mode = LINKS_MIXED; mode < LINK_MODES && own.group_size > 1 && status >= 0; mode++) {
        status = prove(&sweep, algorithm, &own, (link_mode_t)mode);
    }
    return status;
}
