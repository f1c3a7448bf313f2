/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0 on symbols, for all ranks: each does the same at the same time. What rank 0 does to rank
 * d, the rank that sees rank 0 as its d does to rank 0, so the buffers of rank 0 are enough.
 *
 * A value is a node and the rank it is turned to: input (block) turned to rank d is the input of
 * rank d. A sum is a node over two nodes and the distance between what they are turned to, so that
 * images of a value differ in one number.
 *
 * Side by side is one of many interleavings. The others have the same result if accesses to a block
 * that conflict are ordered by posts and waits, which is checked: by what rank 0 knows of each
 * other rank, through others where these clocks have room, else from its own waits alone.
 */
#include "ops/algo/symmetry.h"

#include <string.h>

#include "ops/algo/expression.h"
#include "runtime/base/error.h"

#define MAX_RUNS 3u
#define MOST_CLOCKS ((uint64_t)1 << 27) /* kept of posts, in numbers of 4 bytes */
#define EXPR_TURNED 4u                  /* a: node, b: distance; in sums only */
#define UNSUPPORTED(...) wefti_error(WEFT_ERR_UNSUPPORTED, __VA_ARGS__)

typedef struct value {
    uint32_t node, turn;
} value_t;

typedef struct reader {
    uint32_t rank, at, next; /* next: + 1 */
} reader_t;

typedef struct cell {
    value_t value;
    uint32_t length;          /* symbol; scratch only */
    uint32_t writer, written; /* rank and time; NOBODY: none */
    uint32_t readers;         /* + 1 */
} cell_t;

#define NOBODY UINT32_MAX

typedef struct proof {
    const wefti_symmetry_t *s;
    const weft_allocator_t *allocator;
    weft_algo_params_t params; /* of rank 0 */
    wefti_exprs_t exprs;
    cell_t *cells;
    uint32_t first[3], count[3], base[3]; /* by buffer; scratch has a copy per set */
    reader_t *readers;
    size_t reader_count, reader_capacity;
    uint32_t free_reader; /* + 1 */
    uint32_t now, run, runs, begin[MAX_RUNS];
    uint32_t *known;  /* [rank]: events of it that are known, as seen from rank 0 */
    uint32_t *posted; /* [run * phases + phase - 1]: events before that post, or NOBODY */
    uint32_t *kept;   /* [the same][rank]: known at that post; NULL: no room */
    uint32_t phases, phase;
    value_t *sources;
    size_t source_capacity;
    uint32_t *stack; /* pairs of node and turn */
    size_t stack_capacity;
    uint8_t *seen; /* [rank] */
    value_t sum;   /* under order=any: of the run's first block, */
    uint32_t sum_block;
    uint64_t accesses;
} proof_t;

/* ---- who knows what ---- */

/* Whether rank 0 knows now that rank has done what it did at time `at`. */
static bool knows(const proof_t *p, uint32_t rank, uint32_t at)
{
    return rank == 0 || p->known[rank] > at;
}

static void learn(proof_t *p, uint32_t rank, uint32_t events)
{
    p->known[rank] = events > p->known[rank] ? events : p->known[rank];
}

static weft_status_t wait_for(proof_t *p, const wefti_step_t *step)
{
    const wefti_symmetry_t *s = p->s;
    if (step->wait.back > p->run) {
        return WEFT_OK;
    }
    /* A later post of the same run passes the counter on also. */
    uint32_t run = p->run - step->wait.back, phase = step->wait.phase, at = NOBODY;
    while (phase <= p->phases && (at = p->posted[run * p->phases + phase - 1]) == NOBODY) {
        phase++;
    }
    if (at == NOBODY) {
        return UNSUPPORTED("every rank waits for phase %u before it posts it", step->wait.phase);
    }
    const uint32_t *theirs =
        p->kept != NULL ? p->kept + ((size_t)run * p->phases + phase - 1) * s->ranks : NULL;
    for (uint32_t i = 0; i < step->wait.rank_count; i++) {
        uint32_t rank = step->wait.first_rank + i;
        learn(p, rank, at);
        for (uint32_t d = 0; theirs != NULL && step->wait.rank_count == 1 && d < s->ranks; d++) {
            learn(p, wefti_sym_rank(s, d, rank), theirs[d]);
        }
    }
    return WEFT_OK;
}

static weft_status_t post(proof_t *p, const wefti_step_t *step)
{
    size_t index = (size_t)p->run * p->phases + step->post.phase - 1;
    if (step->post.phase <= p->phase) {
        return UNSUPPORTED("phases do not rise");
    }
    p->phase = step->post.phase;
    p->posted[index] = p->now;
    if (p->kept != NULL) {
        memcpy(p->kept + index * p->s->ranks, p->known, p->s->ranks * sizeof *p->known);
        p->kept[index * p->s->ranks] = p->now;
    }
    return WEFT_OK;
}

/* ---- blocks ---- */

/* The cell of rank 0 that is to `rank` what *buffer[place] of rank is to rank 0. */
static cell_t *cell_at(proof_t *p, uint32_t buffer, uint32_t place, uint32_t rank)
{
    const wefti_symmetry_t *s = p->s;
    uint32_t alias;
    if (buffer == WEFTI_SCRATCH) {
        uint32_t sets = s->schedule->resources.scratch_sets;
        return &p->cells[p->base[buffer] + p->run % sets * p->count[buffer] + place];
    }
    place = wefti_sym_block(s, place, wefti_sym_back(s, rank));
    if (p->params.in_place && buffer == WEFTI_SEND &&
        wefti_in_place_alias(&p->params, &s->schedule->resources, 0, place, &alias)) {
        buffer = WEFTI_RECV;
        place = alias;
    }
    return &p->cells[p->base[buffer] + place - p->first[buffer]];
}

/* What actor, seen from rank 0's buffers, must know before it touches them. */
static bool is_ordered(const proof_t *p, uint32_t actor, uint32_t before, uint32_t at)
{
    /* actor knows `before` as rank 0 knows the rank that is to it what that is to actor. */
    uint32_t seen =
        before == NOBODY ? 0 : wefti_sym_rank(p->s, before, wefti_sym_back(p->s, actor));
    return before == NOBODY || knows(p, seen, at);
}

static weft_status_t touch_read(proof_t *p, cell_t *cell, uint32_t actor)
{
    p->accesses++;
    if (!is_ordered(p, actor, cell->writer, cell->written)) {
        return UNSUPPORTED("step %u of run %u: a read is not ordered after a write", p->now,
                           p->run);
    }
    uint32_t index = p->free_reader;
    if (index == 0) {
        WEFT_RETURN_IF_ERROR(wefti_array_reserve(p->allocator, &p->readers, &p->reader_capacity,
                                                 p->reader_count + 1, sizeof *p->readers));
        index = (uint32_t)++p->reader_count;
    } else {
        p->free_reader = p->readers[index - 1].next;
    }
    p->readers[index - 1] = (reader_t){actor, p->now, cell->readers};
    cell->readers = index;
    return WEFT_OK;
}

static weft_status_t touch_write(proof_t *p, cell_t *cell, uint32_t actor)
{
    p->accesses++;
    bool good = is_ordered(p, actor, cell->writer, cell->written);
    while (cell->readers != 0 && good) {
        reader_t *reader = &p->readers[cell->readers - 1];
        uint32_t next = reader->next;
        good = is_ordered(p, actor, reader->rank, reader->at);
        reader->next = p->free_reader;
        p->free_reader = cell->readers;
        cell->readers = next;
    }
    if (!good) {
        return UNSUPPORTED("step %u of run %u: a write is not ordered after earlier accesses",
                           p->now, p->run);
    }
    cell->writer = actor;
    cell->written = p->now;
    return WEFT_OK;
}

/* Lengths have names: equal names, equal lengths. */
static uint32_t length_of_move(const proof_t *p, const wefti_sym_item_t *item, uint32_t rank)
{
    const wefti_symmetry_t *s = p->s;
    uint32_t block = item->step->move.first + item->block * item->step->move.step;
    uint32_t back = wefti_sym_back(s, rank);
    if (!wefti_collective_exchanges(s->params->op)) {
        return wefti_sym_block(s, block, back);
    }
    return wefti_collective_is_variable(s->params->op)
               ? wefti_sym_rank(s, block / s->ranks, back) * s->ranks +
                     wefti_sym_rank(s, block % s->ranks, back)
               : block % s->parts;
}

/* Of a block of a user's buffer of rank 0. */
static uint32_t length_of_block(const proof_t *p, uint32_t buffer, uint32_t block)
{
    const wefti_symmetry_t *s = p->s;
    if (!wefti_collective_exchanges(s->params->op)) {
        return block;
    }
    bool variable = wefti_collective_is_variable(s->params->op);
    return !variable ? block % s->parts : buffer == WEFTI_SEND ? block : block * s->ranks;
}

/* An operand of a move: the cell, who touches it as rank 0's, whether the length fits. */
static weft_status_t find(proof_t *p, const wefti_sym_item_t *item, uint32_t o, uint32_t rank,
                          bool write, cell_t **out, uint32_t *out_actor)
{
    const wefti_operand_t *at = &item->operands[o];
    uint32_t place = at->block + item->block * at->step, back = wefti_sym_back(p->s, rank);
    cell_t *cell = cell_at(p, at->buffer, place, rank);
    uint32_t length = length_of_move(p, item, rank);
    if (at->buffer != WEFTI_SCRATCH) {
        cell->length = length_of_block(p, at->buffer, wefti_sym_block(p->s, place, back));
    } else if (write) {
        cell->length = length;
    }
    *out = cell;
    *out_actor = wefti_sym_rank(p->s, 0, back);
    return cell->length == length
               ? WEFT_OK
               : UNSUPPORTED("step %u of run %u: lengths differ", p->now, p->run);
}

/* ---- values ---- */

static uint32_t turned(proof_t *p, uint32_t node, uint32_t by)
{
    return by == 0 ? node : wefti_expr_make(&p->exprs, (wefti_expr_kind_t)EXPR_TURNED, node, by);
}

static value_t add(proof_t *p, value_t a, value_t b)
{
    uint32_t by = wefti_sym_rank(p->s, b.turn, wefti_sym_back(p->s, a.turn));
    uint32_t right = turned(p, b.node, by);
    uint32_t node = right == WEFTI_EXPR_NONE
                        ? right
                        : wefti_expr_make(&p->exprs, WEFTI_EXPR_SUM, a.node, right);
    return (value_t){node, a.turn};
}

static value_t tree(proof_t *p, const value_t *values, uint32_t count)
{
    uint32_t half = 1;
    while (half * 2 < count) {
        half *= 2;
    }
    return count == 1 ? values[0]
                      : add(p, tree(p, values, half), tree(p, values + half, count - half));
}

static value_t input(proof_t *p, uint32_t rank, uint32_t block)
{
    uint32_t own = wefti_sym_block(p->s, block, wefti_sym_back(p->s, rank));
    return (value_t){wefti_expr_make(&p->exprs, WEFTI_EXPR_INPUT, p->run, own), rank};
}

static bool same(value_t a, value_t b)
{
    return a.node == b.node && a.turn == b.turn;
}

/* Mirrored, ranks add in the order of ranks: two sums, the one from the lower rank first (what
 * symmetry_image.c compares), if the lower ranks are in that one; or all ranks. */
static bool adds_in_order(const proof_t *p, const wefti_sym_item_t *item, uint32_t count)
{
    const wefti_operand_t *at = item->operands;
    uint32_t sources = item->step->move.source_count;
    bool good = true;
    if (!p->s->mirrored || count == 1) {
        return true;
    }
    if (sources == 1) {
        for (uint32_t i = 0; i < count; i++) {
            good = good && at->rank + i == p->sources[i].turn;
        }
        return good;
    }
    uint32_t ranks = at[0].rank ^ at[1].rank;
    uint32_t turns = p->sources[0].turn ^ p->sources[1].turn;
    if (sources != 2 || count != 2 || at[0].rank >= at[1].rank || turns == 0) {
        return false;
    }
    uint32_t bit = 31u - (uint32_t)__builtin_clz(ranks);
    return bit == 31u - (uint32_t)__builtin_clz(turns) &&
           (at[0].rank >> bit & 1) == (p->sources[0].turn >> bit & 1);
}

static weft_status_t move(proof_t *p, const wefti_sym_item_t *item)
{
    const wefti_step_t *step = item->step;
    uint32_t count = 0, actor;
    cell_t *cell;
    for (uint32_t o = 0; o < step->move.source_count; o++) {
        const wefti_operand_t *at = &item->operands[o];
        for (uint32_t rank = at->rank; rank - at->rank < at->rank_count; rank++) {
            WEFT_RETURN_IF_ERROR(find(p, item, o, rank, false, &cell, &actor));
            WEFT_RETURN_IF_ERROR(touch_read(p, cell, actor));
            WEFT_RETURN_IF_ERROR(wefti_array_reserve(p->allocator, &p->sources, &p->source_capacity,
                                                     count + 1, sizeof *p->sources));
            if (cell->value.node == WEFTI_EXPR_UNDEFINED) {
                return UNSUPPORTED("step %u of run %u: reads what nobody wrote", p->now, p->run);
            }
            p->sources[count++] =
                (value_t){cell->value.node, wefti_sym_rank(p->s, cell->value.turn, rank)};
        }
    }
    if (!adds_in_order(p, item, count)) {
        return UNSUPPORTED("step %u of run %u: sums do not follow the ranks", p->now, p->run);
    }
    value_t value = tree(p, p->sources, count);
    if (value.node != WEFTI_EXPR_NONE && (step->flags & WEFTI_STEP_FINISH)) {
        value.node = wefti_expr_make(&p->exprs, WEFTI_EXPR_FINISHED, value.node, 0);
    }
    if (value.node == WEFTI_EXPR_NONE) {
        return WEFT_ERR_NO_MEMORY;
    }
    for (uint32_t o = 0; o < step->move.destination_count; o++) {
        const wefti_operand_t *at = &item->operands[step->move.source_count + o];
        for (uint32_t rank = at->rank; rank - at->rank < at->rank_count; rank++) {
            uint32_t back = wefti_sym_back(p->s, rank);
            WEFT_RETURN_IF_ERROR(
                find(p, item, step->move.source_count + o, rank, true, &cell, &actor));
            WEFT_RETURN_IF_ERROR(touch_write(p, cell, actor));
            cell->value = (value_t){value.node, wefti_sym_rank(p->s, value.turn, back)};
        }
    }
    return WEFT_OK;
}

/* ---- what comes out ---- */

/* Mirrored: value is the tree over the aligned 2^k ranks of which one is the rank it is turned to.
 * Which half comes first, adds_in_order has checked where each sum was made. */
static bool is_tree(const proof_t *p, value_t value, uint32_t size, uint32_t block)
{
    const wefti_expr_t *node = &p->exprs.nodes[value.node];
    if (size == 1) {
        return node->kind == WEFTI_EXPR_INPUT && node->a == p->run &&
               wefti_sym_block(p->s, node->b, value.turn) == block;
    }
    const wefti_expr_t *right = &p->exprs.nodes[node->b];
    if (node->kind != WEFTI_EXPR_SUM || right->kind != EXPR_TURNED || right->b < size / 2 ||
        right->b >= size) {
        return false;
    }
    value_t left = {node->a, value.turn}, other = {right->a, value.turn ^ right->b};
    return is_tree(p, left, size / 2, block) && is_tree(p, other, size / 2, block);
}

/* Whether value is a sum, in any order, of all ranks' inputs for block, each once. */
static weft_status_t check_sum(proof_t *p, value_t value, uint32_t block)
{
    uint32_t found = 0;
    size_t depth = 0;
    memset(p->seen, 0, p->s->ranks);
    for (bool more = true; more;) {
        const wefti_expr_t *node = &p->exprs.nodes[value.node];
        if (node->kind == EXPR_TURNED) {
            value = (value_t){node->a, wefti_sym_rank(p->s, value.turn, node->b)};
        } else if (node->kind == WEFTI_EXPR_SUM) {
            WEFT_RETURN_IF_ERROR(wefti_array_reserve(p->allocator, &p->stack, &p->stack_capacity,
                                                     depth + 2, sizeof *p->stack));
            p->stack[depth++] = node->b;
            p->stack[depth++] = value.turn;
            value.node = node->a;
        } else if (node->kind == WEFTI_EXPR_INPUT && node->a == p->run &&
                   wefti_sym_block(p->s, node->b, value.turn) == block && !p->seen[value.turn]) {
            p->seen[value.turn] = 1;
            found++;
            more = depth > 0;
            if (more) {
                value.turn = p->stack[--depth];
                value.node = p->stack[--depth];
            }
        } else {
            return UNSUPPORTED("block %u of run %u is not the sum of all ranks", block, p->run);
        }
    }
    return found == p->s->ranks
               ? WEFT_OK
               : UNSUPPORTED("block %u of run %u is the sum of %u ranks", block, p->run, found);
}

static weft_status_t check_reduced(proof_t *p, value_t value, uint32_t block)
{
    const wefti_expr_t *node = &p->exprs.nodes[value.node];
    if (node->kind != WEFTI_EXPR_FINISHED) {
        return UNSUPPORTED("block %u of run %u is not finished", block, p->run);
    }
    if (p->sum.node != 0 && p->s->moves_blocks && p->s->parts == 1) {
        uint32_t by = wefti_sym_rank(p->s, block, wefti_sym_back(p->s, p->sum_block));
        value_t image = {p->sum.node, wefti_sym_rank(p->s, p->sum.turn, by)};
        return same(value, image)
                   ? WEFT_OK
                   : UNSUPPORTED("blocks %u and %u are added differently", p->sum_block, block);
    }
    value_t sum = {node->a, value.turn};
    p->sum = value;
    p->sum_block = block;
    /* The tree is the same for all ranks, and other sums are if those of rank 0 are images
     * of each other, as blocks are. */
    if (p->s->mirrored && p->params.order != WEFT_ORDER_BLOCKS &&
        is_tree(p, sum, p->s->ranks, block)) {
        return WEFT_OK;
    }
    if (p->params.order != WEFT_ORDER_ANY) {
        return UNSUPPORTED("block %u of run %u does not follow the order", block, p->run);
    }
    return p->s->moves_blocks
               ? check_sum(p, sum, block)
               : UNSUPPORTED("it is not known whether all ranks receive the same sum");
}

static weft_status_t check_block(proof_t *p, value_t value, uint32_t block)
{
    const wefti_symmetry_t *s = p->s;
    if (wefti_collective_reduces(p->params.op)) {
        return check_reduced(p, value, block);
    }
    bool exchanges = wefti_collective_exchanges(p->params.op);
    uint32_t from = block / s->parts, part = block % s->parts;
    value_t expected = input(p, from, exchanges ? part : block);
    return same(value, expected)
               ? WEFT_OK
               : UNSUPPORTED("block %u of run %u is not what rank %u sent", block, p->run, from);
}

static weft_status_t fill(proof_t *p)
{
    for (uint32_t buffer = WEFTI_RECV + 1; buffer-- > 0;) {
        for (uint32_t i = 0; i < p->count[buffer]; i++) {
            cell_t *cell = cell_at(p, buffer, p->first[buffer] + i, 0);
            WEFT_RETURN_IF_ERROR(touch_write(p, cell, 0));
            cell->value = buffer == WEFTI_SEND ? input(p, 0, p->first[buffer] + i)
                                               : (value_t){WEFTI_EXPR_UNDEFINED, 0};
            if (cell->value.node == WEFTI_EXPR_NONE) {
                return WEFT_ERR_NO_MEMORY;
            }
        }
    }
    p->begin[p->run] = p->now++;
    p->phase = 0;
    p->sum.node = 0;
    return WEFT_OK;
}

static weft_status_t check(proof_t *p)
{
    for (uint32_t i = 0; i < p->count[WEFTI_RECV]; i++) {
        uint32_t block = p->first[WEFTI_RECV] + i;
        cell_t *cell = cell_at(p, WEFTI_RECV, block, 0);
        WEFT_RETURN_IF_ERROR(touch_read(p, cell, 0));
        WEFT_RETURN_IF_ERROR(check_block(p, cell->value, block));
    }
    for (uint32_t i = 0; i < p->count[WEFTI_SEND]; i++) {
        uint32_t block = p->first[WEFTI_SEND] + i, alias;
        bool shared =
            p->params.in_place &&
            wefti_in_place_alias(&p->params, &p->s->schedule->resources, 0, block, &alias);
        if (!shared && !same(cell_at(p, WEFTI_SEND, block, 0)->value, input(p, 0, block))) {
            return UNSUPPORTED("block %u of the send buffer was overwritten", block);
        }
    }
    for (uint32_t rank = 1; rank < p->s->ranks && p->params.op == WEFT_COLLECTIVE_BARRIER; rank++) {
        if (!knows(p, rank, p->begin[p->run])) {
            return UNSUPPORTED("leaves the barrier before it knows that rank %u has arrived", rank);
        }
    }
    return WEFT_OK;
}

static weft_status_t run_all(proof_t *p, uint64_t *out_steps)
{
    wefti_sym_item_t item;
    for (p->run = 0; p->run < p->runs; p->run++) {
        wefti_sym_walk_t walk = {0};
        WEFT_RETURN_IF_ERROR(fill(p));
        for (; wefti_sym_next(p->s->schedule, &walk, &item); p->now++) {
            WEFT_RETURN_IF_ERROR(item.step->op == WEFTI_DO_POST   ? post(p, item.step)
                                 : item.step->op == WEFTI_DO_WAIT ? wait_for(p, item.step)
                                                                  : move(p, &item));
            (*out_steps)++;
        }
        WEFT_RETURN_IF_ERROR(check(p));
        p->now++;
    }
    return WEFT_OK;
}

static weft_status_t proof_init(proof_t *p)
{
    const weft_algo_resources_t *resources = &p->s->schedule->resources;
    uint64_t cells = 0, ranks = p->s->ranks;
    p->runs = 1 + resources->scratch_sets;
    p->phases = resources->phases;
    for (uint32_t buffer = 0; buffer <= WEFTI_SCRATCH; buffer++) {
        uint32_t sets = buffer == WEFTI_SCRATCH ? resources->scratch_sets : 1;
        if (!wefti_buffer_blocks(&p->params, resources, 0, buffer, &p->first[buffer],
                                 &p->count[buffer])) {
            p->count[buffer] = 0;
        }
        p->base[buffer] = (uint32_t)cells;
        cells += (uint64_t)sets * p->count[buffer];
    }
    size_t posts = (size_t)p->runs * p->phases;
    p->cells = wefti_alloc(p->allocator, (cells + 1) * sizeof *p->cells);
    p->known = wefti_alloc(p->allocator, ranks * sizeof *p->known);
    p->posted = wefti_alloc(p->allocator, (posts + 1) * sizeof *p->posted);
    p->seen = wefti_alloc(p->allocator, ranks);
    WEFT_RETURN_IF_NO_MEMORY(p->cells && p->known && p->posted && p->seen);
    if (posts * ranks <= MOST_CLOCKS) {
        p->kept = wefti_alloc(p->allocator, (posts * ranks + 1) * sizeof *p->kept);
        WEFT_RETURN_IF_NO_MEMORY(p->kept);
    }
    for (uint64_t i = 0; i < cells; i++) {
        p->cells[i].writer = NOBODY;
    }
    memset(p->posted, 0xff, posts * sizeof *p->posted);
    return wefti_exprs_init(&p->exprs, p->allocator);
}

static void proof_deinit(proof_t *p)
{
    wefti_free(p->allocator, p->cells);
    wefti_free(p->allocator, p->known);
    wefti_free(p->allocator, p->posted);
    wefti_free(p->allocator, p->kept);
    wefti_free(p->allocator, p->seen);
    wefti_free(p->allocator, p->readers);
    wefti_free(p->allocator, p->sources);
    wefti_free(p->allocator, p->stack);
    wefti_exprs_deinit(&p->exprs);
}

weft_status_t wefti_symmetry_prove(const weft_algorithm_t *algorithm,
                                   const weft_algo_params_t *params,
                                   const weft_allocator_t *allocator, uint64_t most_steps,
                                   uint64_t *out_steps, uint64_t *out_accesses)
{
    wefti_symmetry_t symmetry;
    wefti_schedule_t schedule;
    proof_t p = {.s = &symmetry, .allocator = allocator, .params = *params};
    p.params.rank = 0;
    weft_status_t status = wefti_symmetry_find(algorithm, params, allocator, most_steps, &symmetry,
                                               &schedule, out_steps);
    status = status >= 0 ? proof_init(&p) : status;
    status = status >= 0 ? run_all(&p, out_steps) : status;
    *out_accesses += p.accesses;
    proof_deinit(&p);
    wefti_schedule_deinit(&schedule);
    return status;
}
