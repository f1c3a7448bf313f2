/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which operators run again: a step is executed in thought, with the memory rules of
 * schedule_state.c. Where most is alive, those activations are candidates that no operator needs
 * just then and that the backward pass reads later. One is given up after the other, the most bytes
 * per time first, until the step fits (the rematerialization of XLA works like this).
 *
 * A candidate brings along the operators before it whose results are dead by the time that it runs
 * again. It is accepted if it helps where most is alive and if no other operator gets above the
 * bound by it: so segments of the network stay apart that are only cheap together (Chen et al.,
 * Training Deep Nets with Sublinear Memory Cost, 2016).
 *
 * Views move nothing, so at first all of them run again; in the end those do whose inputs do.
 */
#include "fusion/passes/recompute.h"

#include <stdlib.h>
#include <string.h>

#include "ops/op_facts.h"
#include "runtime/base/error.h"

#define MOST_TOGETHER 256u /* operators that one candidate brings along */
#define MOST_ROUNDS 3u     /* candidates that were refused are looked at again */

/* What runs when, and what is alive. A value has two versions: that of the forward pass, and, plus
 * value_count, that of the second execution. */
typedef struct memory {
    wefti_run_t *runs;
    uint32_t run_count;
    uint64_t *live;       /* by position: most bytes alive */
    uint32_t *last_early; /* by value: the last run of the forward pass that reads or writes it */
    uint32_t *first_late; /* by value: the first run after that reads it, or WEFTI_NONE */
    uint32_t *last;       /* by value: the last run that reads it */
    uint32_t *readers;    /* by version: those of its views count as its own */
    uint32_t *root;       /* by version: that of which it is a view, or itself */
    uint32_t peak;        /* position */
    uint32_t peak_run;
} memory_t;

typedef struct candidate {
    uint32_t node;
    double bytes_per_ps;
} candidate_t;

static bool is_late(const wefti_graph_t *graph, const wefti_run_t *run)
{
    return run->again || graph->nodes[run->node].phase == WEFTI_PHASE_BACKWARD;
}

bool wefti_recompute_can(const wefti_graph_t *graph, uint32_t id)
{
    const wefti_node_t *node = &graph->nodes[id];
    return !node->dead && node->phase == WEFTI_PHASE_FORWARD &&
           node->def->effects == WEFT_EFFECT_PURE;
}

static memory_t *new_memory(const wefti_graph_t *graph, wefti_arena_t *arena)
{
    memory_t *m = wefti_arena_array(arena, 1, sizeof(*m));
    if (m == NULL) {
        return NULL;
    }
    m->runs = wefti_arena_array(arena, 2 * (size_t)graph->order_count, sizeof(*m->runs));
    m->live = wefti_arena_array(arena, graph->order_count, sizeof(*m->live));
    m->last_early = wefti_arena_array(arena, graph->value_count, sizeof(*m->last_early));
    m->first_late = wefti_arena_array(arena, graph->value_count, sizeof(*m->first_late));
    m->last = wefti_arena_array(arena, graph->value_count, sizeof(*m->last));
    m->readers = wefti_arena_array(arena, 2 * (size_t)graph->value_count, sizeof(*m->readers));
    m->root = wefti_arena_array(arena, 2 * (size_t)graph->value_count, sizeof(*m->root));
    return m;
}

weft_status_t wefti_recompute_init(const wefti_graph_t *graph,
                                   const wefti_schedule_params_t *params, wefti_arena_t *arena,
                                   wefti_recompute_t *out)
{
    *out = (wefti_recompute_t){
        .graph = graph,
        .params = params,
        .arena = arena,
        .chosen = wefti_arena_array(arena, graph->node_count, sizeof(bool)),
        .memory = new_memory(graph, arena),
        .trial = new_memory(graph, arena),
        .stack = wefti_arena_array(arena, (size_t)graph->node_count + 1, sizeof(uint32_t)),
        .marked = wefti_arena_array(arena, graph->node_count, sizeof(bool))};
    return arena->failed ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

/* A chosen producer of an input that has not run again, or WEFTI_NONE. */
static uint32_t missing_producer(const wefti_recompute_t *r, uint32_t id)
{
    const wefti_node_t *node = &r->graph->nodes[id];
    for (uint32_t k = 0; k < node->input_count; k++) {
        uint32_t producer = wefti_producer(r->graph, node->inputs[k]);
        if (producer != WEFTI_NONE && r->chosen[producer] && !r->marked[producer]) {
            return producer;
        }
    }
    return WEFTI_NONE;
}

static void list_runs(wefti_recompute_t *r, memory_t *m)
{
    const wefti_graph_t *graph = r->graph;
    m->run_count = 0;
    memset(r->marked, 0, graph->node_count * sizeof(*r->marked));
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i], count = 0;
        if (graph->nodes[id].phase == WEFTI_PHASE_BACKWARD) {
            r->stack[count++] = id;
        }
        while (count > 0) {
            uint32_t top = r->stack[count - 1], before = missing_producer(r, top);
            if (before != WEFTI_NONE) {
                r->stack[count++] = before;
                continue;
            }
            count--;
            if (top != id) {
                r->marked[top] = true;
                m->runs[m->run_count++] = (wefti_run_t){top, i, true};
            }
        }
        m->runs[m->run_count++] = (wefti_run_t){id, i, false};
    }
}

uint32_t wefti_recompute_runs(wefti_recompute_t *r, const wefti_run_t **out_runs)
{
    list_runs(r, r->memory);
    *out_runs = r->memory->runs;
    return r->memory->run_count;
}

static bool is_view(const wefti_recompute_t *r, uint32_t id)
{
    return wefti_node_is_view(r->graph, &r->graph->nodes[id]);
}

/* The version of an input that a run reads. */
static uint32_t version_read(const wefti_recompute_t *r, const wefti_run_t *run, uint32_t value)
{
    uint32_t producer = wefti_producer(r->graph, value);
    bool again = producer != WEFTI_NONE && r->chosen[producer] && is_late(r->graph, run);
    return again ? value + r->graph->value_count : value;
}

/* Has it memory of its own? A view has that of what it views, in the same execution. */
static bool counts(const wefti_recompute_t *r, uint32_t version)
{
    return version >= r->graph->value_count || !r->params->kept[version];
}

static bool stays(const wefti_recompute_t *r, uint32_t version)
{
    return version < r->graph->value_count &&
           (r->params->to_end[version] || r->graph->values[version].producer == WEFTI_NONE);
}

static uint64_t bytes_of(const wefti_recompute_t *r, uint32_t version)
{
    uint32_t count = r->graph->value_count;
    return wefti_value_bytes(&r->graph->values[version % count]);
}

/* The version whose memory a run reads. */
static uint32_t memory_read(const wefti_recompute_t *r, const memory_t *m, const wefti_run_t *run,
                            uint32_t value)
{
    return m->root[version_read(r, run, value)];
}

/* A view has the memory of its input, unless one of the two has memory of a special kind. */
static void find_roots(const wefti_recompute_t *r, memory_t *m, const wefti_run_t *run)
{
    const wefti_node_t *node = &r->graph->nodes[run->node];
    uint32_t offset = run->again ? r->graph->value_count : 0;
    for (uint32_t k = 0; k < node->output_count; k++) {
        if (node->outputs[k] != WEFTI_NONE) {
            m->root[node->outputs[k] + offset] = node->outputs[k] + offset;
        }
    }
    if (is_view(r, run->node)) {
        uint32_t from = memory_read(r, m, run, node->inputs[0]), to = node->outputs[0] + offset;
        bool own = !counts(r, from) || !counts(r, to) || stays(r, from) || stays(r, to);
        m->root[to] = own ? to : from;
    }
}

/* The version whose memory output index of a run takes over, or WEFTI_NONE. */
static uint32_t handed_on(const wefti_recompute_t *r, const memory_t *m, const wefti_run_t *run,
                          uint32_t index, uint32_t to)
{
    const wefti_node_t *node = &r->graph->nodes[run->node];
    int from = index < sizeof(node->def->in_place) ? node->def->in_place[index] : -1;
    if (from < 0 || (uint32_t)from >= node->input_count || node->inputs[from] == WEFTI_NONE) {
        return WEFTI_NONE;
    }
    uint32_t version = memory_read(r, m, run, node->inputs[from]);
    bool hands = counts(r, version) && !stays(r, version) && !stays(r, to) &&
                 m->readers[version] == 1 && bytes_of(r, version) == bytes_of(r, to);
    return hands ? version : WEFTI_NONE;
}

static void count_readers(const wefti_recompute_t *r, memory_t *m)
{
    const wefti_graph_t *graph = r->graph;
    memset(m->readers, 0, 2 * (size_t)graph->value_count * sizeof(*m->readers));
    for (uint32_t v = 0; v < graph->value_count; v++) {
        m->root[v] = v;
    }
    memset(m->last_early, 0, graph->value_count * sizeof(*m->last_early));
    memset(m->last, 0, graph->value_count * sizeof(*m->last));
    memset(m->first_late, 0xff, graph->value_count * sizeof(*m->first_late));
    for (uint32_t i = 0; i < m->run_count; i++) {
        const wefti_run_t *run = &m->runs[i];
        const wefti_node_t *node = &graph->nodes[run->node];
        bool late = is_late(graph, run);
        find_roots(r, m, run);
        for (uint32_t k = 0; k < node->input_count; k++) {
            uint32_t version =
                node->inputs[k] == WEFTI_NONE ? 0 : memory_read(r, m, run, node->inputs[k]);
            if (node->inputs[k] == WEFTI_NONE) {
                continue;
            }
            m->readers[version]++;
            if (version < graph->value_count) {
                m->last[version] = i;
                m->last_early[version] = late ? m->last_early[version] : i;
                m->first_late[version] =
                    late && i < m->first_late[version] ? i : m->first_late[version];
            }
        }
        for (uint32_t k = 0; k < node->output_count && !run->again; k++) {
            if (node->outputs[k] != WEFTI_NONE) {
                m->last_early[node->outputs[k]] = i;
            }
        }
    }
}

/* Bytes alive before a run become those after it; returns those during it. */
static uint64_t execute(const wefti_recompute_t *r, memory_t *m, const wefti_run_t *run,
                        uint64_t *live)
{
    const wefti_node_t *node = &r->graph->nodes[run->node];
    uint32_t offset = run->again ? r->graph->value_count : 0;
    for (uint32_t k = 0; k < node->output_count; k++) {
        uint32_t version = node->outputs[k] == WEFTI_NONE ? 0 : node->outputs[k] + offset;
        if (node->outputs[k] == WEFTI_NONE || !counts(r, version) || m->root[version] != version) {
            continue;
        }
        uint32_t from = handed_on(r, m, run, k, version);
        if (from != WEFTI_NONE) {
            m->readers[from] = 0;
        } else {
            *live += bytes_of(r, version);
        }
    }
    uint64_t during = *live;
    for (uint32_t k = 0; k < node->input_count; k++) {
        uint32_t version =
            node->inputs[k] == WEFTI_NONE ? 0 : memory_read(r, m, run, node->inputs[k]);
        if (node->inputs[k] != WEFTI_NONE && m->readers[version] > 0 &&
            --m->readers[version] == 0 && counts(r, version) && !stays(r, version)) {
            *live -= bytes_of(r, version);
        }
    }
    for (uint32_t k = 0; k < node->output_count; k++) {
        uint32_t version = node->outputs[k] == WEFTI_NONE ? 0 : node->outputs[k] + offset;
        if (node->outputs[k] != WEFTI_NONE && m->readers[version] == 0 && counts(r, version) &&
            m->root[version] == version && !stays(r, version)) {
            *live -= bytes_of(r, version);
        }
    }
    return during;
}

/* Executes the step with the chosen set. */
static void simulate(wefti_recompute_t *r, memory_t *m)
{
    uint64_t live = 0, most = 0;
    list_runs(r, m);
    count_readers(r, m);
    m->peak = m->peak_run = 0;
    memset(m->live, 0, r->graph->order_count * sizeof(*m->live));
    for (uint32_t i = 0; i < m->run_count; i++) {
        uint32_t position = m->runs[i].position;
        uint64_t during = execute(r, m, &m->runs[i], &live);
        m->live[position] = during > m->live[position] ? during : m->live[position];
        if (during > most) {
            most = during;
            m->peak = position;
            m->peak_run = i;
        }
    }
}

uint64_t wefti_recompute_peak(wefti_recompute_t *r)
{
    simulate(r, r->memory);
    return r->graph->order_count > 0 ? r->memory->live[r->memory->peak] : 0;
}

/* Bytes of a node's outputs that nobody needs at the peak, but the backward pass later. */
static uint64_t idle_bytes(const wefti_recompute_t *r, uint32_t id)
{
    const memory_t *m = r->memory;
    const wefti_node_t *node = &r->graph->nodes[id];
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < node->output_count; k++) {
        uint32_t value = node->outputs[k];
        if (value != WEFTI_NONE && counts(r, value) && !stays(r, value) &&
            m->root[value] == value && m->last_early[value] < m->peak_run &&
            m->first_late[value] != WEFTI_NONE && m->first_late[value] > m->peak_run) {
            bytes += bytes_of(r, value);
        }
    }
    return bytes;
}

/* When the node would run again. */
static uint32_t first_late(const wefti_recompute_t *r, uint32_t id)
{
    const wefti_node_t *node = &r->graph->nodes[id];
    uint32_t first = WEFTI_NONE;
    for (uint32_t k = 0; k < node->output_count; k++) {
        uint32_t value = node->outputs[k];
        if (value != WEFTI_NONE && r->memory->first_late[value] < first) {
            first = r->memory->first_late[value];
        }
    }
    return first;
}

/* Is the input there when a node runs again? */
static bool is_there(const wefti_recompute_t *r, uint32_t value, uint32_t when)
{
    uint32_t producer = wefti_producer(r->graph, value);
    while (producer != WEFTI_NONE && r->chosen[producer] && is_view(r, producer)) {
        value = r->graph->nodes[producer].inputs[0];
        producer = wefti_producer(r->graph, value);
    }
    return producer == WEFTI_NONE || r->chosen[producer] || r->marked[producer] ||
           r->params->kept[value] || r->params->to_end[value] || r->memory->last[value] >= when;
}

/* The node and all that must run again with it, in r->stack; 0: too many. Sets marked of these, and
 * what they are worth. */
static uint32_t gather(wefti_recompute_t *r, uint32_t id, double *out_bytes_per_ps)
{
    const wefti_graph_t *graph = r->graph;
    uint32_t count = 0, when = first_late(r, id);
    double bytes = 0, ps = 1;
    r->stack[count++] = id;
    r->marked[id] = true;
    for (uint32_t i = 0; i < count && count <= MOST_TOGETHER; i++) {
        const wefti_node_t *node = &graph->nodes[r->stack[i]];
        bytes += (double)idle_bytes(r, r->stack[i]);
        ps += (double)r->params->op_ps[r->stack[i]];
        for (uint32_t k = 0; k < node->input_count; k++) {
            uint32_t value = node->inputs[k];
            uint32_t producer = wefti_producer(graph, value);
            if (value == WEFTI_NONE || is_there(r, value, when)) {
                continue;
            }
            if (wefti_recompute_can(graph, producer)) {
                r->stack[count++] = producer;
                r->marked[producer] = true;
            } else {
                bytes -= (double)bytes_of(r, value); /* it lives until then */
            }
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        r->marked[r->stack[i]] = false;
    }
    *out_bytes_per_ps = bytes / ps;
    return count <= MOST_TOGETHER ? count : 0;
}

static int compare(const void *a, const void *b)
{
    const candidate_t *x = a, *y = b;
    if (x->bytes_per_ps != y->bytes_per_ps) {
        return x->bytes_per_ps > y->bytes_per_ps ? -1 : 1;
    }
    return (x->node > y->node) - (x->node < y->node);
}

static uint32_t find_candidates(wefti_recompute_t *r, const bool *refused, candidate_t *out)
{
    const wefti_graph_t *graph = r->graph;
    uint32_t count = 0;
    memset(r->marked, 0, graph->node_count * sizeof(*r->marked));
    for (uint32_t i = 0; i < graph->order_count; i++) {
        uint32_t id = graph->order[i];
        if (r->chosen[id] || refused[id] || !wefti_recompute_can(graph, id) ||
            idle_bytes(r, id) == 0) {
            continue;
        }
        out[count].node = id;
        if (gather(r, id, &out[count].bytes_per_ps) > 0 && out[count].bytes_per_ps > 0) {
            count++;
        }
    }
    qsort(out, count, sizeof(*out), compare);
    return count;
}

/* Less is alive at the peak, and nowhere more than the bound that was not there before. */
static bool is_better(const wefti_recompute_t *r, uint64_t most)
{
    const memory_t *now = r->memory, *then = r->trial;
    for (uint32_t i = 0; i < r->graph->order_count; i++) {
        if (then->live[i] > most && then->live[i] > now->live[i]) {
            return false;
        }
    }
    return then->live[now->peak] < now->live[now->peak];
}

/* Gives one candidate up, with what it brings along, if that is better. */
static bool give_up(wefti_recompute_t *r, uint32_t id, uint64_t most)
{
    double worth;
    memset(r->marked, 0, r->graph->node_count * sizeof(*r->marked));
    uint32_t count = gather(r, id, &worth), chosen[MOST_TOGETHER];
    memcpy(chosen, r->stack, count * sizeof(*chosen));
    for (uint32_t i = 0; i < count; i++) {
        r->chosen[chosen[i]] = true;
    }
    simulate(r, r->trial);
    bool better = is_better(r, most);
    if (better) {
        memory_t *memory = r->memory;
        r->memory = r->trial;
        r->trial = memory;
    }
    for (uint32_t i = 0; i < count && !better; i++) {
        r->chosen[chosen[i]] = false;
    }
    return better;
}

/* Candidates at the peak, the best first, until it is somewhere else; false: none helps. */
static bool lower_peak(wefti_recompute_t *r, uint64_t most, candidate_t *candidates, bool *refused)
{
    uint32_t count = find_candidates(r, refused, candidates), peak = r->memory->peak;
    bool any = false;
    for (uint32_t i = 0; i < count && r->memory->peak == peak && r->memory->live[peak] > most;
         i++) {
        uint32_t id = candidates[i].node;
        if (!r->chosen[id] && idle_bytes(r, id) > 0) {
            bool better = give_up(r, id, most);
            any = any || better;
            refused[id] = !better;
        }
    }
    return any;
}

void wefti_recompute_choose_views(wefti_recompute_t *r, bool all)
{
    for (uint32_t i = 0; i < r->graph->order_count; i++) {
        uint32_t id = r->graph->order[i];
        if (is_view(r, id) && wefti_recompute_can(r->graph, id)) {
            uint32_t producer = wefti_producer(r->graph, r->graph->nodes[id].inputs[0]);
            r->chosen[id] = all || (producer != WEFTI_NONE && r->chosen[producer]);
        }
    }
}

bool wefti_recompute_choose(wefti_recompute_t *r, uint64_t most_bytes)
{
    uint32_t nodes = r->graph->node_count;
    candidate_t *candidates = wefti_arena_array(r->arena, nodes, sizeof(*candidates));
    bool *refused = wefti_arena_array(r->arena, nodes, sizeof(*refused));
    memset(r->chosen, 0, nodes * sizeof(*r->chosen));
    wefti_recompute_choose_views(r, true);
    uint64_t peak = wefti_recompute_peak(r);
    for (uint32_t round = 0; candidates != NULL && refused != NULL && round < MOST_ROUNDS;
         round++) {
        bool any = false;
        while (peak > most_bytes && lower_peak(r, most_bytes, candidates, refused)) {
            peak = r->memory->live[r->memory->peak];
            any = true;
        }
        if (!any || peak <= most_bytes) {
            break;
        }
        memset(refused, 0, nodes * sizeof(*refused));
    }
    wefti_recompute_choose_views(r, false);
    return peak <= most_bytes;
}
