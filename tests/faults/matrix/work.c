/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/faults/matrix/work.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof *(a))
#define SLOT_BYTES ((size_t)4 << 20)
#define MAX_RANKS 16u
#define CHECKED 4096u /* elements of a result, at most about twice as many */

/* ---- numbers ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

draw_t draw_begin(uint64_t seed, uint64_t number)
{
    return (draw_t){mix(seed + 0x9e3779b97f4a7c15ull * (number + 1))};
}

uint32_t draw(draw_t *self, uint32_t below)
{
    self->state += 0x9e3779b97f4a7c15ull;
    return (uint32_t)((mix(self->state) >> 32) * below >> 32);
}

/* ---- collectives ---- */

static const weft_dtype_t dtypes[] = {WEFT_DTYPE_F32, WEFT_DTYPE_F64, WEFT_DTYPE_I32,
                                      WEFT_DTYPE_I64, WEFT_DTYPE_U8};
static const weft_reduction_t reductions[] = {WEFT_REDUCTION_SUM, WEFT_REDUCTION_MIN,
                                              WEFT_REDUCTION_MAX};

static void store(uint8_t *buffer, weft_dtype_t dtype, uint64_t index, uint32_t value)
{
    size_t bytes = weft_dtype_size_bytes(dtype);
    float f32 = (float)value;
    double f64 = value;
    uint64_t whole = value;
    const void *from = dtype == WEFT_DTYPE_F32   ? (const void *)&f32
                       : dtype == WEFT_DTYPE_F64 ? (const void *)&f64
                                                 : (const void *)&whole;
    memcpy(buffer + index * bytes, from, bytes);
}

/* Element index of what rank from contributes. */
static uint32_t given(const call_t *call, uint32_t from, uint64_t index)
{
    return (uint32_t)((index * 7 + from * 3 + index / 11 + call->salt) % 5);
}

static bool is_v(const call_t *call)
{
    return call->kind == WEFT_COLLECTIVE_ALL_GATHER_V ||
           call->kind == WEFT_COLLECTIVE_REDUCE_SCATTER_V ||
           call->kind == WEFT_COLLECTIVE_ALL_TO_ALL_V;
}

/* Elements that rank from has for rank to, or that belong to one of them. */
static uint64_t block(const call_t *call, uint32_t from, uint32_t to)
{
    switch (call->kind) {
    case WEFT_COLLECTIVE_ALL_GATHER_V:
        return call->count + from % 3;
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
        return call->count + to % 3;
    case WEFT_COLLECTIVE_ALL_TO_ALL_V:
        return call->count + (from + to) % 2;
    default:
        return call->count;
    }
}

/* Where rank from has what is for rank to. */
static uint64_t sent_at(const call_t *call, uint32_t from, uint32_t to)
{
    uint64_t at = 0;
    for (uint32_t r = 0; r < to; r++) {
        at += block(call, from, r);
    }
    return at;
}

static uint32_t reduced(const call_t *call, uint64_t index)
{
    uint32_t result = given(call, 0, index);
    for (uint32_t r = 1; r < call->size; r++) {
        uint32_t value = given(call, r, index);
        if (call->reduction == WEFT_REDUCTION_SUM) {
            result += value;
        } else if ((call->reduction == WEFT_REDUCTION_MAX) == (value > result)) {
            result = value;
        }
    }
    return result;
}

/* Element index of block from of what this rank receives. */
static uint32_t wanted(const call_t *call, uint32_t from, uint64_t index)
{
    switch (call->kind) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
    case WEFT_COLLECTIVE_REDUCE:
        return reduced(call, index);
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
        return reduced(call, sent_at(call, 0, call->rank) + index);
    case WEFT_COLLECTIVE_BROADCAST:
        return given(call, call->root, index);
    case WEFT_COLLECTIVE_SCATTER:
        return given(call, call->root, call->rank * call->count + index);
    case WEFT_COLLECTIVE_ALL_TO_ALL:
    case WEFT_COLLECTIVE_ALL_TO_ALL_V:
        return given(call, from, sent_at(call, from, call->rank) + index);
    default: /* gathers; a pair */
        return given(call, from, index);
    }
}

static bool is_received(const call_t *call)
{
    bool is_rooted = call->kind == WEFT_COLLECTIVE_REDUCE || call->kind == WEFT_COLLECTIVE_GATHER;
    return call->kind != WEFT_COLLECTIVE_BARRIER && (!is_rooted || call->rank == call->root);
}

static bool has_blocks(const call_t *call)
{
    return call->kind == WEFT_COLLECTIVE_ALL_GATHER || call->kind == WEFT_COLLECTIVE_GATHER ||
           call->kind == WEFT_COLLECTIVE_ALL_TO_ALL || call->kind == WEFT_COLLECTIVE_ALL_GATHER_V ||
           call->kind == WEFT_COLLECTIVE_ALL_TO_ALL_V;
}

void work_fill(work_t *work, const call_t *call)
{
    uint64_t elems = call->count * call->size + 3 * call->size;
    for (uint64_t i = 0; i < elems; i++) {
        store(work->send[call->slot], call->dtype, i, given(call, call->rank, i));
    }
    memset(work->recv[call->slot], 0x5a, elems * weft_dtype_size_bytes(call->dtype));
}

static void check_block(work_t *work, const call_t *call, uint32_t from, uint64_t at,
                        uint64_t count)
{
    size_t bytes = weft_dtype_size_bytes(call->dtype);
    const uint8_t *got = work->recv[call->slot] + at * bytes;
    uint8_t want[8];
    for (uint64_t i = 0; i < count; i += 1 + count / CHECKED) {
        store(want, call->dtype, 0, wanted(call, from, i));
        if (memcmp(got + i * bytes, want, bytes) != 0 && work->wrong[0] == '\0') {
            snprintf(work->wrong, sizeof work->wrong,
                     "%s of %" PRIu64 " %s in a group of %u: element %" PRIu64 " of block %u",
                     weft_collective_name(call->kind), call->count, weft_dtype_name(call->dtype),
                     call->size, i, from);
        }
    }
}

void work_check(work_t *work, const call_t *call)
{
    uint64_t at = 0;
    if (!is_received(call)) {
        return;
    }
    if (call->kind == WEFT_COLLECTIVE_SEND_RECV) { /* from the rank before, around a ring */
        check_block(work, call, (call->rank + call->size - 1) % call->size, 0, call->count);
        return;
    }
    for (uint32_t r = 0; r < (has_blocks(call) ? call->size : 1); r++) {
        uint64_t count = block(call, r, call->rank);
        check_block(work, call, r, at, count);
        at += count;
    }
}

static weft_status_t issue_v(const call_t *call, const uint8_t *send, uint8_t *recv,
                             weft_group_t *group, weft_stream_t *stream)
{
    uint64_t to[MAX_RANKS], from[MAX_RANKS];
    for (uint32_t r = 0; r < call->size; r++) {
        to[r] = block(call, call->rank, r);
        from[r] = block(call, r, call->rank);
    }
    switch (call->kind) {
    case WEFT_COLLECTIVE_ALL_GATHER_V:
        return weft_all_gather_v(send, recv, from, NULL, call->dtype, group, stream);
    case WEFT_COLLECTIVE_REDUCE_SCATTER_V:
        return weft_reduce_scatter_v(send, recv, to, NULL, call->dtype, call->reduction, group,
                                     stream);
    default:
        return weft_all_to_all_v(send, to, NULL, recv, from, NULL, call->dtype, group, stream);
    }
}

weft_status_t work_issue(work_t *work, const call_t *call, weft_group_t *group,
                         weft_stream_t *stream)
{
    const uint8_t *send = work->send[call->slot];
    uint8_t *recv = work->recv[call->slot];
    if (is_v(call)) {
        return issue_v(call, send, recv, group, stream);
    }
    switch (call->kind) {
    case WEFT_COLLECTIVE_ALL_REDUCE:
        return weft_all_reduce(send, recv, call->count, call->dtype, call->reduction, group,
                               stream);
    case WEFT_COLLECTIVE_BROADCAST:
        return weft_broadcast(send, recv, call->count, call->dtype, call->root, group, stream);
    case WEFT_COLLECTIVE_REDUCE_SCATTER:
        return weft_reduce_scatter(send, recv, call->count, call->dtype, call->reduction, group,
                                   stream);
    case WEFT_COLLECTIVE_ALL_GATHER:
        return weft_all_gather(send, recv, call->count, call->dtype, group, stream);
    case WEFT_COLLECTIVE_REDUCE:
        return weft_reduce(send, recv, call->count, call->dtype, call->reduction, call->root, group,
                           stream);
    case WEFT_COLLECTIVE_GATHER:
        return weft_gather(send, recv, call->count, call->dtype, call->root, group, stream);
    case WEFT_COLLECTIVE_SCATTER:
        return weft_scatter(send, recv, call->count, call->dtype, call->root, group, stream);
    case WEFT_COLLECTIVE_ALL_TO_ALL:
        return weft_all_to_all(send, recv, call->count, call->dtype, group, stream);
    default:
        return weft_barrier(group, stream);
    }
}

/* ---- operations ---- */

static const work_group_t *pick_group(const work_t *work, draw_t *d)
{
    uint32_t made = 0, at = 0;
    if (work->over_world) {
        return &work->groups[0];
    }
    for (uint32_t i = 0; i < WORK_GROUPS; i++) {
        made += work->groups[i].is_made;
    }
    at = draw(d, made);
    for (uint32_t i = 0;; i++) {
        if (work->groups[i].is_made && at-- == 0) {
            return &work->groups[i];
        }
    }
}

call_t work_pick_call(draw_t *d, const weft_group_t *group, uint32_t slot)
{
    static const uint32_t below[] = {16, 200, 3000, 20000, 80000};
    call_t call = {.slot = slot};
    do {
        call.kind = (weft_collective_t)(1 + draw(d, WEFT_COLLECTIVE_BARRIER));
    } while (call.kind == WEFT_COLLECTIVE_SEND_RECV);
    call.dtype = dtypes[draw(d, COUNT_OF(dtypes))];
    call.reduction = reductions[draw(d, COUNT_OF(reductions))];
    call.count = 1 + draw(d, below[draw(d, COUNT_OF(below))]);
    call.salt = draw(d, 5);
    call.root = draw(d, 1 << 16);
    if (group != NULL) {
        call.size = weft_group_size(group);
        call.rank = weft_group_rank(group);
        call.root %= call.size;
    }
    return call;
}

static weft_status_t run_call(work_t *work, draw_t *d)
{
    weft_group_t *group = pick_group(work, d)->group;
    call_t call = work_pick_call(d, group, draw(d, WORK_SLOTS));
    if (group == NULL) {
        return WEFT_OK;
    }
    work_fill(work, &call);
    weft_status_t status = work_issue(work, &call, group, NULL);
    if (status == WEFT_OK) {
        work_check(work, &call);
    }
    return status;
}

static weft_status_t run_stream(work_t *work, draw_t *d)
{
    weft_stream_t *stream = work->streams[draw(d, 2)];
    call_t calls[WORK_SLOTS];
    bool is_made[WORK_SLOTS] = {false};
    weft_status_t status = WEFT_OK;
    for (uint32_t slot = 0; slot < WORK_SLOTS && status == WEFT_OK; slot++) {
        weft_group_t *group = pick_group(work, d)->group;
        calls[slot] = work_pick_call(d, group, slot);
        if (group != NULL) {
            work_fill(work, &calls[slot]);
            status = work_issue(work, &calls[slot], group, stream);
            is_made[slot] = true;
        }
    }
    if (status == WEFT_OK) {
        status = weft_stream_synchronize(stream);
    }
    for (uint32_t slot = 0; slot < WORK_SLOTS && status == WEFT_OK; slot++) {
        if (is_made[slot]) {
            work_check(work, &calls[slot]);
        }
    }
    return status;
}

static weft_status_t run_batch(work_t *work, draw_t *d)
{
    weft_group_t *group = pick_group(work, d)->group;
    call_t calls[WORK_SLOTS];
    weft_status_t status = group == NULL ? WEFT_OK : weft_batch_begin(group);
    for (uint32_t slot = 0; slot < WORK_SLOTS && status == WEFT_OK; slot++) {
        call_t *call = &calls[slot];
        *call = work_pick_call(d, group, slot);
        call->count %= 2000;
        if (group == NULL) {
            continue;
        }
        if (slot == 0 && call->size > 1) { /* around a ring */
            call->kind = WEFT_COLLECTIVE_SEND_RECV;
            work_fill(work, call);
            status = weft_send(work->send[slot], call->count, call->dtype,
                               (call->rank + 1) % call->size, group, NULL);
            if (status == WEFT_OK) {
                status = weft_recv(work->recv[slot], call->count, call->dtype,
                                   (call->rank + call->size - 1) % call->size, group, NULL);
            }
        } else {
            work_fill(work, call);
            status = work_issue(work, call, group, NULL);
        }
    }
    if (group != NULL && status == WEFT_OK) {
        status = weft_batch_end(group, NULL);
    }
    for (uint32_t slot = 0; slot < WORK_SLOTS && status == WEFT_OK && group != NULL; slot++) {
        work_check(work, &calls[slot]);
    }
    return status;
}

/* A row for a new group; NULL: all are in use. */
static work_group_t *free_row(work_t *work)
{
    for (uint32_t i = 0; i < WORK_GROUPS; i++) {
        if (!work->groups[i].is_made) {
            return &work->groups[i];
        }
    }
    return NULL;
}

static weft_status_t run_destroy(work_t *work, draw_t *d)
{
    work_group_t *row = &work->groups[1 + draw(d, WORK_GROUPS - 1)];
    weft_group_destroy(row->group);
    *row = (work_group_t){0};
    return WEFT_OK;
}

static weft_status_t run_split(work_t *work, draw_t *d)
{
    weft_group_t *parent = pick_group(work, d)->group;
    work_group_t *row = free_row(work);
    uint32_t colors = 1 + draw(d, 3), shift = draw(d, 8), turned = draw(d, 2);
    if (row == NULL) {
        return WEFT_OK;
    }
    row->is_made = true;
    if (parent == NULL) {
        return WEFT_OK;
    }
    uint32_t color = (work->rank + shift) % (colors + 1);
    int64_t key = turned ? -(int64_t)work->rank : 0;
    return weft_group_split(parent, color == colors ? WEFT_COLOR_NONE : color, key, &row->group);
}

static weft_status_t run_duplicate(work_t *work, draw_t *d)
{
    weft_group_t *parent = pick_group(work, d)->group;
    work_group_t *row = free_row(work);
    if (row == NULL) {
        return WEFT_OK;
    }
    row->is_made = true;
    return parent == NULL ? WEFT_OK : weft_group_duplicate(parent, &row->group);
}

static weft_status_t run_ranks(work_t *work, draw_t *d)
{
    weft_group_t *parent = pick_group(work, d)->group;
    work_group_t *row = free_row(work);
    uint32_t ranks[MAX_RANKS], first = draw(d, MAX_RANKS), length = draw(d, MAX_RANKS);
    if (row == NULL) {
        return WEFT_OK;
    }
    row->is_made = true;
    if (parent == NULL) {
        return WEFT_OK;
    }
    uint32_t size = weft_group_size(parent);
    length = 1 + length % size;
    for (uint32_t i = 0; i < length; i++) {
        ranks[i] = (first + i) % size;
    }
    return weft_group_create_ranks(parent, ranks, length, &row->group);
}

static weft_status_t run_world(work_t *work, draw_t *d)
{
    work_group_t *row = free_row(work);
    (void)d;
    if (row == NULL) {
        return WEFT_OK;
    }
    row->is_made = true;
    return weft_group_create_world(work->context, &row->group);
}

static weft_status_t run_memory(work_t *work, draw_t *d)
{
    void *memory = NULL;
    weft_status_t status = weft_mem_alloc(work->context, 1 + draw(d, 1 << 20), &memory);
    return status == WEFT_OK ? weft_mem_free(work->context, memory) : status;
}

static weft_status_t run_register(work_t *work, draw_t *d)
{
    size_t bytes = 4096 + draw(d, 1 << 20);
    void *memory = malloc(bytes);
    weft_status_t status = weft_mem_register(work->context, memory, bytes);
    if (status == WEFT_OK) {
        status = weft_mem_unregister(work->context, memory);
    }
    free(memory);
    return status;
}

static weft_status_t run_barrier(work_t *work, draw_t *d)
{
    (void)d;
    return weft_context_barrier(work->context);
}

static weft_status_t run_gather(work_t *work, draw_t *d)
{
    uint32_t all[MAX_RANKS], mine = draw(d, 1 << 20) + work->rank;
    weft_status_t status = weft_context_all_gather(work->context, &mine, sizeof mine, all);
    for (uint32_t r = 0; r < work->size && status == WEFT_OK; r++) {
        if (all[r] != mine - work->rank + r) {
            snprintf(work->wrong, sizeof work->wrong, "weft_context_all_gather: rank %u", r);
        }
    }
    return status;
}

static weft_status_t run_fuser(work_t *work, draw_t *d)
{
    weft_group_t *group = pick_group(work, d)->group;
    uint32_t steps = 1 + draw(d, 3);
    call_t calls[WORK_SLOTS];
    weft_fuser_t *fuser = NULL;
    weft_status_t status = WEFT_OK;
    for (uint32_t slot = 0; slot < WORK_SLOTS; slot++) {
        calls[slot] = work_pick_call(d, group, slot);
        calls[slot].kind = WEFT_COLLECTIVE_ALL_REDUCE;
    }
    if (group == NULL || (status = weft_fuser_create(group, NULL, &fuser)) != WEFT_OK) {
        return status;
    }
    for (uint32_t step = 0; step < steps && status == WEFT_OK; step++) {
        for (uint32_t slot = 0; slot < WORK_SLOTS && status == WEFT_OK; slot++) {
            call_t *call = &calls[slot];
            char name[] = {(char)('a' + slot), '\0'};
            work_fill(work, call);
            memcpy(work->recv[slot], work->send[slot],
                   call->count * weft_dtype_size_bytes(call->dtype));
            status = weft_fuser_add(fuser, work->recv[slot], call->count, call->dtype,
                                    call->reduction, name);
        }
        if (status == WEFT_OK) {
            status = weft_fuser_wait(fuser);
        }
        for (uint32_t slot = 0; slot < WORK_SLOTS && status == WEFT_OK; slot++) {
            work_check(work, &calls[slot]);
        }
    }
    weft_fuser_destroy(fuser);
    return status;
}

static weft_status_t run_capture(work_t *work, draw_t *d)
{
    weft_group_t *group = pick_group(work, d)->group;
    weft_stream_t *stream = work->streams[draw(d, 2)];
    weft_capture_params_t params = WEFT_CAPTURE_PARAMS_INIT;
    weft_capture_t *capture = NULL;
    call_t calls[WORK_SLOTS];
    weft_status_t status = WEFT_OK;
    for (uint32_t slot = 0; slot < WORK_SLOTS; slot++) {
        calls[slot] = work_pick_call(d, group, slot);
    }
    params.no_times = 1;
    if (group == NULL || (status = weft_capture_begin(group, &params)) != WEFT_OK) {
        return status;
    }
    for (uint32_t slot = 0; slot < WORK_SLOTS && status == WEFT_OK; slot++) {
        status = work_issue(work, &calls[slot], group, NULL);
    }
    if (status == WEFT_OK) {
        status = weft_capture_end(group, &capture);
    } else {
        weft_capture_cancel(group);
    }
    if (status != WEFT_OK) {
        return status;
    }
    for (uint32_t slot = 0; slot < WORK_SLOTS; slot++) {
        work_fill(work, &calls[slot]);
    }
    status = weft_capture_launch(capture, stream);
    if (status == WEFT_OK) {
        status = weft_stream_synchronize(stream);
    }
    for (uint32_t slot = 0; slot < WORK_SLOTS && status == WEFT_OK; slot++) {
        work_check(work, &calls[slot]);
    }
    weft_capture_destroy(capture);
    return status;
}

weft_status_t work_open_session(work_t *work, weft_session_t **out_session)
{
    weft_session_params_t params = WEFT_SESSION_PARAMS_INIT;
    weft_status_t status = WEFT_OK;
    if (work->plan == NULL) {
        status = weft_plan_load(work->plan_path, NULL, &work->plan);
    }
    params.context = work->context;
    params.plan = work->plan;
    return status == WEFT_OK ? weft_session_create(&params, out_session) : status;
}

static weft_status_t run_session(work_t *work, draw_t *d)
{
    weft_session_t *session = NULL;
    uint32_t steps = 1 + draw(d, 3);
    weft_status_t status = work->plan_path == NULL ? WEFT_OK : work_open_session(work, &session);
    for (uint32_t step = 0; step < steps && status == WEFT_OK && session != NULL; step++) {
        status = weft_session_step(session);
    }
    weft_session_destroy(session);
    return status;
}

static weft_status_t run_checkpoint(work_t *work, draw_t *d)
{
    weft_session_t *session = NULL;
    char path[4096];
    weft_status_t status = work->plan_path == NULL ? WEFT_OK : work_open_session(work, &session);
    (void)d;
    snprintf(path, sizeof path, "%s/checkpoint", work->folder);
    if (status == WEFT_OK && session != NULL) {
        status = weft_session_save_checkpoint(session, path, NULL);
    }
    if (status == WEFT_OK && session != NULL) {
        status = weft_session_load_checkpoint(session, path, NULL);
    }
    weft_session_destroy(session);
    return status;
}

static const struct {
    const char *name;
    weft_status_t (*run)(work_t *work, draw_t *d);
    uint32_t weight;
} operations[] = {
    {"call", run_call, 30},          {"stream", run_stream, 15},
    {"batch", run_batch, 8},         {"split", run_split, 4},
    {"duplicate", run_duplicate, 3}, {"create_ranks", run_ranks, 3},
    {"create_world", run_world, 2},  {"destroy", run_destroy, 9},
    {"mem_alloc", run_memory, 3},    {"mem_register", run_register, 2},
    {"barrier", run_barrier, 3},     {"all_gather", run_gather, 3},
    {"fuser", run_fuser, 4},         {"capture", run_capture, 4},
    {"session", run_session, 3},     {"checkpoint", run_checkpoint, 1},
};

const char *work_operation_name(uint32_t index)
{
    return index < COUNT_OF(operations) ? operations[index].name : NULL;
}

weft_status_t work_run_operation(work_t *work, uint32_t index, draw_t *d)
{
    return operations[index].run(work, d);
}

weft_status_t work_run(work_t *work, uint64_t number, const char **name)
{
    draw_t d = draw_begin(work->seed, number);
    uint32_t all = 0, at = 0;
    for (size_t i = 0; i < COUNT_OF(operations); i++) {
        all += operations[i].weight;
    }
    at = draw(&d, all);
    for (size_t i = 0;; at -= operations[i++].weight) {
        if (at < operations[i].weight) {
            *name = operations[i].name;
            return operations[i].run(work, &d);
        }
    }
}

/* ---- begin and end ---- */

weft_status_t work_begin(work_t *work)
{
    weft_stream_params_t params = WEFT_STREAM_PARAMS_INIT;
    uint8_t *peer = NULL;
    weft_status_t status = weft_group_create_world(work->context, &work->groups[0].group);
    work->groups[0].is_made = true;
    if (status == WEFT_OK) {
        status = weft_mem_alloc(work->context, WORK_SLOTS * SLOT_BYTES, &work->peer_memory);
    }
    if (status == WEFT_OK) {
        status = weft_stream_create(work->context, NULL, &work->streams[0]);
    }
    params.flags = WEFT_STREAM_THREAD;
    if (status == WEFT_OK) {
        status = weft_stream_create(work->context, &params, &work->streams[1]);
    }
    peer = work->peer_memory;
    for (uint32_t slot = 0; slot < WORK_SLOTS && status == WEFT_OK; slot++) {
        bool is_peer = slot % 2 == 1;
        work->send[slot] = is_peer ? peer + (slot / 2) * SLOT_BYTES : malloc(SLOT_BYTES);
        work->recv[slot] = is_peer ? peer + (2 + slot / 2) * SLOT_BYTES : malloc(SLOT_BYTES);
    }
    return status;
}

void work_end(work_t *work, bool leaves)
{
    for (uint32_t i = 0; i < 2; i++) {
        weft_stream_destroy(work->streams[i]);
    }
    for (uint32_t i = WORK_GROUPS; i-- > 0;) {
        (leaves ? weft_group_leave : weft_group_destroy)(work->groups[i].group);
    }
    weft_plan_release(work->plan);
    weft_context_release(work->context);
    for (uint32_t slot = 0; slot < WORK_SLOTS; slot += 2) {
        free(work->send[slot]);
        free(work->recv[slot]);
    }
}
