/* SPDX-License-Identifier: Apache-2.0 */
#include "support_emitter.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "tests/support/support.h"

static _Atomic(emitter_t *) current;

void emitter_use(emitter_t *emitter)
{
    atomic_store(&current, emitter);
}

/* ---- chance ---- */

static uint32_t below(uint64_t *state, uint32_t bound)
{
    return (uint32_t)(test_next_random(state) >> 32) % bound;
}

/* Mostly small, at times at the edge of what fits. */
static uint32_t number(uint64_t *state, uint32_t usual)
{
    static const uint32_t edges[] = {0, UINT32_MAX, UINT32_MAX - 1, 1u << 31, 65536, 1u << 24};
    return below(state, 60) == 0 ? edges[below(state, 6)] : below(state, usual);
}

static uint64_t state_of(const weft_algo_params_t *params, uint64_t salt)
{
    emitter_t *emitter = atomic_load(&current);
    uint64_t state = emitter->seed * 1000003 + salt;
    if (emitter->kind == EMITTER_IMPURE) {
        state += atomic_fetch_add(&emitter->calls, 1) * 77777;
    }
    return state + params->rank * 31ull * (salt != 0);
}

/* ---- what authors fill in ---- */

static const char *eligible(const weft_algo_params_t *params)
{
    uint64_t state = state_of(params, 0) + 5;
    return atomic_load(&current)->kind == EMITTER_RANDOM && below(&state, 40) == 0 ? "not today"
                                                                                   : NULL;
}

static void ask(const weft_algo_params_t *params, emitter_t *emitter, weft_algo_resources_t *out)
{
    uint64_t state = state_of(params, 0);
    if (emitter->kind == EMITTER_EXCESS) {
        *out = (weft_algo_resources_t){1, 3, 4, 4, 1, 0, 0};
        out->phases = emitter->seed == 0 ? 1u << 24 : 3;
        out->blocks = emitter->seed == 1 ? 1u << 24 : 4;
        out->scratch_slots = emitter->seed == 2 ? 1u << 24 : 4;
        out->lanes = emitter->seed == 0 ? 16 : 1;
        return;
    }
    if (emitter->kind != EMITTER_RANDOM) {
        *out = (weft_algo_resources_t){2, 3, 1, 4, 1, 0, 0};
        if (emitter->kind == EMITTER_IMPURE) {
            out->lanes = 1 + below(&state, 4);
            out->phases = 2 + below(&state, 9);
            out->scratch_slots = below(&state, 5);
        }
        return;
    }
    out->lanes = number(&state, 4);
    out->phases = number(&state, 6);
    out->blocks = number(&state, 5);
    out->scratch_slots = number(&state, 6);
    out->scratch_sets = number(&state, 4);
}

static void resources(const weft_algo_params_t *params, weft_algo_resources_t *out)
{
    emitter_t *emitter = atomic_load(&current);
    ask(params, emitter, out);
    out->by_placement = emitter->by_placement;
}

static weft_place_t place(const weft_algo_params_t *params, uint64_t *state)
{
    weft_place_t place = {number(state, params->group_size), number(state, 3),
                          (weft_algo_buffer_t)number(state, 3), number(state, params->group_size),
                          number(state, 2)};
    return place;
}

static void random_step(const weft_algo_params_t *params, weft_schedule_builder_t *b,
                        uint64_t *state)
{
    uint32_t n = params->group_size, lane = number(state, 3);
    weft_place_t to[3], from[3];
    for (int i = 0; i < 3; i++) {
        to[i] = place(params, state);
        from[i] = place(params, state);
    }
    weft_blocks_t blocks = {number(state, n), number(state, 2), number(state, 3)};
    switch (below(state, 4)) {
    case 0:
        weft_schedule_post(b, lane, number(state, 6));
        break;
    case 1: {
        uint32_t first = number(state, n), count = number(state, n + 1);
        weft_schedule_wait(b, lane, first, count, number(state, 3), number(state, 6),
                           number(state, 3));
        break;
    }
    case 2:
        weft_schedule_copy(b, lane, to[0], from[0], blocks);
        break;
    default:
        weft_schedule_reduce(b, lane, to, below(state, 4), from, below(state, 4), blocks,
                             below(state, 2));
        break;
    }
}

/* ---- mutants ---- */

typedef struct mutation {
    uint64_t state;
    uint32_t chance; /* one in so many arguments changes */
} mutation_t;

static uint32_t change(mutation_t *m, uint32_t good, uint32_t usual)
{
    return below(&m->state, m->chance) == 0 ? number(&m->state, usual) : good;
}

static bool skipped(mutation_t *m)
{
    return below(&m->state, m->chance) == 0;
}

static void mutant_post(mutation_t *m, weft_schedule_builder_t *b, uint32_t lane, uint32_t phase)
{
    if (!skipped(m)) {
        weft_schedule_post(b, change(m, lane, 3), change(m, phase, 5));
    }
}

static void mutant_wait(mutation_t *m, weft_schedule_builder_t *b, uint32_t lane, uint32_t peer,
                        uint32_t phase)
{
    if (!skipped(m)) {
        weft_schedule_wait(b, change(m, lane, 3), change(m, peer, EMITTER_MAX_RANKS),
                           change(m, 1, 3), change(m, 0, 2), change(m, phase, 5), change(m, 0, 3));
    }
}

static weft_place_t mutant_place(mutation_t *m, uint32_t rank, weft_algo_buffer_t buffer,
                                 uint32_t block)
{
    weft_place_t result = {change(m, rank, EMITTER_MAX_RANKS), change(m, 1, 3),
                           (weft_algo_buffer_t)change(m, buffer, 3),
                           change(m, block, EMITTER_MAX_RANKS), change(m, 0, 2)};
    return result;
}

/* Reads every peer's block; reducing operators reduce them all. */
static void build_mutant(const weft_algo_params_t *params, weft_schedule_builder_t *b,
                         mutation_t *m)
{
    uint32_t n = params->group_size, r = params->rank;
    bool reduces = params->op == WEFT_COLLECTIVE_ALL_REDUCE;
    mutant_post(m, b, 0, 1);
    weft_place_t from[EMITTER_MAX_RANKS];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t peer = reduces ? i : (r + i) % n;
        if (peer != r) {
            mutant_wait(m, b, 0, peer, 1);
        }
        from[i] = mutant_place(m, peer, WEFT_ALGO_BUFFER_SEND, reduces ? 0 : peer);
        if (!reduces && !skipped(m)) {
            weft_schedule_copy(
                b, change(m, 0, 3), mutant_place(m, r, WEFT_ALGO_BUFFER_RECV, peer), from[i],
                (weft_blocks_t){change(m, peer, n), change(m, 0, 2), change(m, 1, 3)});
        }
    }
    if (reduces && !skipped(m)) {
        weft_place_t to = mutant_place(m, r, WEFT_ALGO_BUFFER_RECV, 0);
        weft_schedule_reduce(b, change(m, 0, 3), &to, 1, from, change(m, n, n + 1),
                             (weft_blocks_t){change(m, 0, n), 0, change(m, 1, 3)}, change(m, 1, 2));
    }
    mutant_post(m, b, 0, 2);
    for (uint32_t i = 1; i < n; i++) {
        mutant_wait(m, b, 0, (r + i) % n, 2);
    }
}

/* ---- too much ---- */

static void build_excess(const weft_algo_params_t *params, weft_schedule_builder_t *b,
                         uint64_t which)
{
    weft_place_t to = {params->rank, 1, WEFT_ALGO_BUFFER_RECV, 0, 0};
    weft_place_t from = {params->rank, 1, WEFT_ALGO_BUFFER_SEND, 0, 0};
    weft_schedule_post(b, 0, 1);
    if (which == 3) { /* the same block, four milliard times */
        weft_schedule_copy(b, 0, to, from, (weft_blocks_t){0, 0, UINT32_MAX});
    }
    if (which == 4) {
        for (uint32_t i = 0; i < 1u << 26; i++) {
            weft_schedule_post(b, 0, 1);
        }
    }
    if (which == 5) {
        for (uint32_t i = 0; i < 1u << 24; i++) {
            weft_schedule_copy(b, 0, to, from, (weft_blocks_t){0, 0, 1});
        }
    }
}

static void build(const weft_algo_params_t *params, weft_schedule_builder_t *b)
{
    emitter_t *emitter = atomic_load(&current);
    uint64_t state = state_of(params, 1);
    if (emitter->kind == EMITTER_EXCESS) {
        build_excess(params, b, emitter->seed);
    } else if (emitter->kind == EMITTER_RANDOM) {
        uint32_t steps = below(&state, 14);
        for (uint32_t i = 0; i < steps; i++) {
            random_step(params, b, &state);
        }
    } else {
        mutation_t m = {state, 10 + below(&state, 300)};
        build_mutant(params, b, &m);
    }
}

/* Two hosts and racks, in any way; or one host. */
static void choose_hosts(emitter_t *emitter, weft_algo_params_t *params)
{
    uint64_t state = emitter->seed * 7 + 3;
    uint32_t on_second = 0;
    emitter->by_placement = below(&state, 4) != 0;
    for (uint32_t r = 0; r < params->group_size; r++) {
        emitter->host_of[r] = r > 0 ? below(&state, 2) : 0;
        emitter->rack_of[r] = below(&state, params->group_size);
        on_second += emitter->host_of[r];
    }
    if (on_second > 0) {
        params->host_of = emitter->host_of;
        params->host_of_count = 2;
        params->rack_of = below(&state, 2) == 0 ? emitter->rack_of : NULL;
    }
}

void emitter_init(emitter_t *emitter, emitter_kind_t kind, uint64_t seed,
                  weft_algorithm_t *out_algorithm, weft_algo_params_t *out_params)
{
    uint64_t state = seed * 5 + kind;
    *emitter = (emitter_t){.kind = kind, .seed = seed};
    weft_collective_t op = (weft_collective_t)(1 + below(&state, 13));
    if (kind != EMITTER_RANDOM) {
        op = below(&state, 2) == 0 ? WEFT_COLLECTIVE_ALL_GATHER : WEFT_COLLECTIVE_ALL_REDUCE;
    }
    *out_algorithm = (weft_algorithm_t){.abi_version = WEFT_ALGO_ABI_VERSION,
                                        .op = op,
                                        .name = "nonsense",
                                        .doc = "nonsense",
                                        .eligible = eligible,
                                        .resources = resources,
                                        .build = build};
    *out_params = (weft_algo_params_t){.struct_size = sizeof *out_params,
                                       .op = op,
                                       .group_size = 2 + below(&state, EMITTER_MAX_RANKS - 1)};
    out_params->root = below(&state, out_params->group_size);
    out_params->peer = (out_params->root + 1) % out_params->group_size;
    out_params->in_place = kind == EMITTER_RANDOM && op != WEFT_COLLECTIVE_ALL_TO_ALL_V &&
                           op != WEFT_COLLECTIVE_SEND_RECV && below(&state, 3) == 0;
    out_params->order = below(&state, 3) == 0 ? WEFT_ORDER_ANY : WEFT_ORDER_TREE;
    choose_hosts(emitter, out_params);
}
