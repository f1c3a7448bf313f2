/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that take the place of dead ranks. Between two steps all ranks hear from rank 0 how
 * many wait on the launcher's board. If there is a plan for as many ranks, the world grows, and all
 * restore the snapshot of the last step, which the new ranks receive:
 *
 *   step 17   step 18                               step 19 ..  on three ranks
 *   snapshot  snapshot   grow ── session ── restore 18
 *   rank 2:   ready ..   join ── session ── restore 18
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/sync.h"
#include "tools/launch/launch.h"
#include "tools/launch/world.h"
#include "tools/train/trainer.h"

#define MAX_SEATS 32u       /* that are filled at once */
#define LOOK_NS 20000000ull /* how often ranks look that wait for others */

/* What rank 0 has read on the board. */
typedef struct call {
    uint32_t count;    /* processes that are ready */
    uint32_t expected; /* those that may still come, with these */
    uint32_t seats[MAX_SEATS];
    char address[BOARD_ADDRESS_BYTES];
} call_t;

/* ---- who joins ---- */

/* Where the larger world meets: like the ranks of the first one. *out_port_fd: held until then. */
static weft_status_t choose_address(char *out, size_t bytes, int *out_port_fd)
{
    const char *first = getenv("WEFT_ADDRESS");
    uint16_t port = 0;
    if (first == NULL || strncmp(first, "unix:", 5) == 0) {
        return wefti_launch_unix_address(out, bytes) ? WEFT_OK : WEFT_ERR_SYSTEM;
    }
    *out_port_fd = wefti_port_hold(&port);
    snprintf(out, bytes, "127.0.0.1:%u", port);
    return *out_port_fd >= 0 ? WEFT_OK : WEFT_ERR_SYSTEM;
}

static void release_port(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
    }
    *fd = -1;
}

static void read_board(launch_board_t *board, call_t *out)
{
    wefti_board_cancel(board); /* by a rank 0 that has died since */
    out->count = wefti_board_list_ready(board, out->seats, MAX_SEATS);
    out->expected = wefti_board_expected(board);
}

/* All ranks get what rank 0 passes. */
static weft_status_t share_call(const trainer_t *trainer, const call_t *own, call_t *out)
{
    call_t *all = calloc(weft_context_world_size(trainer->context), sizeof *all);
    WEFT_RETURN_IF_NO_MEMORY(all);
    weft_status_t status = weft_context_all_gather(trainer->context, own, sizeof *own, all);
    *out = all[0];
    free(all);
    return status;
}

/* The worst status of all ranks. An error: they do not know each other's. */
static weft_status_t agree(const trainer_t *trainer, weft_status_t own, weft_status_t *out_worst)
{
    uint32_t size = weft_context_world_size(trainer->context);
    weft_status_t *all = calloc(size, sizeof *all);
    WEFT_RETURN_IF_NO_MEMORY(all);
    weft_status_t status = weft_context_all_gather(trainer->context, &own, sizeof own, all);
    *out_worst = own;
    for (uint32_t r = 0; r < size && status >= 0; r++) {
        *out_worst = all[r] < *out_worst ? all[r] : *out_worst;
    }
    free(all);
    return status;
}

/* Waits until there are low ranks with those that are ready, or too few are expected. */
static weft_status_t await_call(const trainer_t *trainer, uint32_t low, call_t *out, int *out_port)
{
    launch_board_t *board = trainer->options->board;
    uint32_t world_size = weft_context_world_size(trainer->context);
    bool leads = weft_context_rank(trainer->context) == 0;
    for (;;) {
        call_t own = {0};
        weft_status_t status = WEFT_OK;
        if (leads) {
            read_board(board, &own);
        }
        if (own.count > 0) {
            status = choose_address(own.address, sizeof own.address, out_port);
        }
        own.count = status < 0 ? 0 : own.count;
        WEFT_RETURN_IF_ERROR(share_call(trainer, &own, out));
        if (world_size + out->count >= low || world_size + out->expected < low) {
            return WEFT_OK;
        }
        release_port(out_port);
        if (leads) {
            wefti_sleep_ns(LOOK_NS);
        }
    }
}

/* ---- growing ---- */

typedef struct growth {
    launch_board_t *board;
    const uint32_t *seats;
    uint32_t count;
} growth_t;

/* A weft_interrupt_fn: one that joins has ended. */
static int has_left(void *user)
{
    const growth_t *growth = user;
    for (uint32_t i = 0; i < growth->count; i++) {
        if (wefti_board_has_left(growth->board, growth->seats[i])) {
            return 1;
        }
    }
    return 0;
}

static weft_status_t grow(trainer_t *trainer, const call_t *call, uint32_t size,
                          weft_context_t **out_context)
{
    launch_board_t *board = trainer->options->board;
    uint32_t before = weft_context_world_size(trainer->context);
    growth_t growth = {board, call->seats, size - before};
    weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
    params.world_size = (int32_t)size;
    params.address = call->address;
    if (weft_context_rank(trainer->context) == 0) {
        invitation_t invitation = {.world_size = size};
        snprintf(invitation.address, sizeof invitation.address, "%s", call->address);
        for (uint32_t i = 0; i < growth.count; i++) {
            invitation.rank = before + i;
            wefti_board_invite(board, call->seats[i], &invitation);
        }
        params.interrupt = has_left;
        params.interrupt_user = &growth;
    }
    weft_status_t status = weft_context_grow(trainer->context, &params, out_context);
    if (status < 0 && weft_context_rank(trainer->context) == 0) {
        wefti_board_cancel(board);
    }
    return status;
}

weft_status_t wefti_trainer_admit(trainer_t *trainer, uint32_t low, bool *out_grown)
{
    train_recovery_t *change = &trainer->change;
    call_t call = {0};
    weft_plan_t *plan = NULL;
    weft_context_t *next = NULL;
    int port_fd = -1;
    *out_grown = false;
    if (trainer->options->board == NULL) {
        return WEFT_OK;
    }
    uint32_t size = weft_context_world_size(trainer->context);
    weft_status_t status = await_call(trainer, low, &call, &port_fd);
    if (status < 0 || call.count == 0 || call.count == trainer->refused) {
        release_port(&port_fd);
        return status;
    }
    uint32_t high = size + call.count, least = low > size ? low : size + 1;
    high = high < trainer->options->max_ranks ? high : trainer->options->max_ranks;
    /* An error of either is no reason to end: the ranks continue as they are. */
    weft_status_t planned = wefti_trainer_replan(trainer, least, high, &plan, &size);
    status = agree(trainer, planned, &planned);
    if (status < 0 || planned < 0) {
        trainer->refused = status < 0 ? 0 : call.count;
        release_port(&port_fd);
        weft_plan_release(plan);
        return status;
    }
    trainer->refused = 0;
    status = grow(trainer, &call, size, &next);
    release_port(&port_fd);
    if (status < 0) {
        weft_plan_release(plan);
        return WEFT_OK;
    }
    wefti_trainer_list_members(next, size, trainer->context, change->joined, sizeof change->joined,
                               &change->joined_count);
    wefti_trainer_leave(trainer);
    weft_context_release(trainer->context);
    weft_plan_release(trainer->plan);
    trainer->context = next;
    trainer->plan = plan;
    *out_grown = true;
    return WEFT_OK;
}

weft_status_t wefti_trainer_admit_waiting(trainer_t *trainer)
{
    launch_board_t *board = trainer->options->board;
    bool grown = false;
    if (board == NULL || trainer->at.step >= trainer->steps) {
        return WEFT_OK;
    }
    uint32_t own = trainer->rank == 0 ? wefti_board_ready(board) : 0, ready = 0;
    WEFT_RETURN_IF_ERROR(
        weft_all_reduce(&own, &ready, 1, WEFT_DTYPE_U32, WEFT_REDUCTION_MAX, trainer->group, NULL));
    if (ready == 0 || ready == trainer->refused) {
        return WEFT_OK;
    }
    uint64_t started = wefti_now_ns();
    WEFT_RETURN_IF_ERROR(wefti_trainer_admit(trainer, 0, &grown));
    if (!grown) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_trainer_restore(trainer));
    return wefti_trainer_note(trainer, started);
}

/* ---- the process that joins ---- */

/* A weft_interrupt_fn, for as long as the trainer has contexts: the ranks have given up. */
static int is_cancelled(void *user)
{
    const trainer_t *trainer = user;
    return wefti_board_has_left(trainer->options->board, trainer->seat);
}

weft_status_t wefti_trainer_join(trainer_t *trainer, uint32_t seat, weft_log_fn log)
{
    launch_board_t *board = trainer->options->board;
    invitation_t invitation;
    weft_status_t status;
    trainer->seat = seat;
    do {
        if (!wefti_board_wait(board, seat, &invitation)) {
            return wefti_error(WEFT_ERR_ABORTED,
                               "elastic: the run has ended before this process joined it");
        }
        weft_context_params_t params = WEFT_CONTEXT_PARAMS_INIT;
        params.rank = (int32_t)invitation.rank;
        params.world_size = (int32_t)invitation.world_size;
        params.address = invitation.address;
        params.log = log;
        params.interrupt = is_cancelled;
        params.interrupt_user = trainer;
        status = weft_context_create(&params, &trainer->context);
        if (status >= 0 && !wefti_board_take(board, seat)) { /* the others could not grow */
            weft_context_release(trainer->context);
            trainer->context = NULL;
            status = WEFT_ERR_ABORTED;
        }
    } while (status < 0 && is_cancelled(trainer));
    WEFT_RETURN_IF_ERROR(status);
    weft_plan_t *plan = NULL;
    uint32_t size = invitation.world_size;
    WEFT_RETURN_IF_ERROR(wefti_trainer_replan(trainer, size, size, &plan, &size));
    weft_plan_release(trainer->plan);
    trainer->plan = plan;
    return WEFT_OK;
}

/* ---- what has been before ---- */

/* Of rank 0, which is the rank that has been in the run for longest. */
typedef struct history {
    uint64_t first_step, recovery_count;
    double loss_first, loss_last;
} history_t;

static weft_status_t share(const trainer_t *trainer, void *data, size_t bytes)
{
    return bytes > 0 ? weft_broadcast(data, data, bytes, WEFT_DTYPE_U8, 0, trainer->group, NULL)
                     : WEFT_OK;
}

/* Ranks that have a history of their own keep it. */
static weft_status_t share_array(const trainer_t *trainer, void *data, size_t bytes)
{
    if (trainer->rank == 0 || !trainer->started) {
        return share(trainer, data, bytes);
    }
    void *unused = calloc(1, bytes + 1);
    WEFT_RETURN_IF_NO_MEMORY(unused);
    weft_status_t status = share(trainer, unused, bytes);
    free(unused);
    return status;
}

weft_status_t wefti_trainer_share(trainer_t *trainer)
{
    train_report_t *report = &trainer->report;
    history_t history = {trainer->first_step, report->recovery_count, report->loss_first,
                         report->loss_last};
    WEFT_RETURN_IF_ERROR(share(trainer, &history, sizeof history));
    if (!trainer->started && trainer->rank != 0) {
        trainer->first_step = history.first_step;
        report->loss_first = history.loss_first;
        report->loss_last = history.loss_last;
        report->recovery_count = (uint32_t)history.recovery_count;
        free(report->recoveries);
        report->recoveries = calloc(history.recovery_count + 1, sizeof *report->recoveries);
        WEFT_RETURN_IF_NO_MEMORY(report->recoveries);
    }
    WEFT_RETURN_IF_ERROR(wefti_trainer_plan_steps(trainer));
    WEFT_RETURN_IF_ERROR(
        share_array(trainer, trainer->history,
                    (trainer->at.step - history.first_step) * sizeof *trainer->history));
    WEFT_RETURN_IF_ERROR(share_array(trainer, report->recoveries,
                                     history.recovery_count * sizeof *report->recoveries));
    trainer->started = trainer->started || trainer->at.step > trainer->first_step;
    return WEFT_OK;
}
