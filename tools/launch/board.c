/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/launch/board.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "runtime/base/sync.h"

#define LOOK_NS 50000000ull /* how often a waiting process looks whether the board is closed */

typedef enum seat_state {
    SEAT_FREE,
    SEAT_COMING,
    SEAT_READY,
    SEAT_INVITED,
    SEAT_TAKEN,
} seat_state_t;

typedef struct seat {
    _Atomic uint32_t state;  /* seat_state_t; a futex word */
    invitation_t invitation; /* written before INVITED */
} seat_t;

struct launch_board {
    size_t bytes;
    uint32_t seat_count;
    _Atomic uint32_t ready, restarts, closed, has_world;
    seat_t seats[];
};

launch_board_t *wefti_board_create(uint32_t seat_count, uint32_t restarts)
{
    size_t bytes = sizeof(launch_board_t) + seat_count * sizeof(seat_t);
    launch_board_t *board =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) {
        return NULL;
    }
    board->bytes = bytes;
    board->seat_count = seat_count;
    board->restarts = restarts;
    return board;
}

void wefti_board_destroy(launch_board_t *board)
{
    if (board != NULL) {
        munmap(board, board->bytes);
    }
}

/* Counts the processes that are ready: every change of a state comes here. */
static void set_state(launch_board_t *board, uint32_t seat, seat_state_t state)
{
    seat_state_t before = (seat_state_t)atomic_exchange(&board->seats[seat].state, state);
    if (state == SEAT_READY && before != SEAT_READY) {
        atomic_fetch_add(&board->ready, 1);
    } else if (state != SEAT_READY && before == SEAT_READY) {
        atomic_fetch_sub(&board->ready, 1);
    }
    wefti_futex_wake_all(&board->seats[seat].state);
}

static seat_state_t state_of(const launch_board_t *board, uint32_t seat)
{
    return (seat_state_t)atomic_load(&board->seats[seat].state);
}

/* ---- the launcher ---- */

uint32_t wefti_board_restarts_left(const launch_board_t *board)
{
    return atomic_load(&board->restarts);
}

void wefti_board_restart(launch_board_t *board)
{
    atomic_fetch_sub(&board->restarts, 1);
}

void wefti_board_offer(launch_board_t *board, uint32_t seat)
{
    set_state(board, seat, SEAT_COMING);
}

void wefti_board_vacate(launch_board_t *board, uint32_t seat)
{
    set_state(board, seat, SEAT_FREE);
}

void wefti_board_close(launch_board_t *board)
{
    atomic_store(&board->closed, 1);
}

bool wefti_board_is_joining(const launch_board_t *board, uint32_t seat)
{
    seat_state_t state = state_of(board, seat);
    return state == SEAT_COMING || state == SEAT_READY || state == SEAT_INVITED;
}

bool wefti_board_is_taken(const launch_board_t *board, uint32_t seat)
{
    return state_of(board, seat) == SEAT_TAKEN;
}

bool wefti_board_has_world(const launch_board_t *board)
{
    return atomic_load(&board->has_world) != 0;
}

/* ---- a process that the launcher has started ---- */

bool wefti_board_wait(launch_board_t *board, uint32_t seat, invitation_t *out)
{
    set_state(board, seat, SEAT_READY);
    while (state_of(board, seat) == SEAT_READY) {
        if (atomic_load(&board->closed) != 0) {
            return false;
        }
        wefti_futex_wait(&board->seats[seat].state, SEAT_READY, LOOK_NS);
    }
    *out = board->seats[seat].invitation;
    return true;
}

bool wefti_board_take(launch_board_t *board, uint32_t seat)
{
    uint32_t first = SEAT_FREE, invited = SEAT_INVITED;
    _Atomic uint32_t *state = &board->seats[seat].state;
    if (!atomic_compare_exchange_strong(state, &first, SEAT_TAKEN) &&
        !atomic_compare_exchange_strong(state, &invited, SEAT_TAKEN)) {
        return false;
    }
    atomic_store(&board->has_world, 1);
    return true;
}

/* ---- rank 0 ---- */

uint32_t wefti_board_ready(const launch_board_t *board)
{
    return atomic_load_explicit(&board->ready, memory_order_relaxed); /* a hint */
}

uint32_t wefti_board_list_ready(const launch_board_t *board, uint32_t *seats, uint32_t capacity)
{
    uint32_t count = 0;
    for (uint32_t seat = 0; seat < board->seat_count && count < capacity; seat++) {
        if (state_of(board, seat) == SEAT_READY) {
            seats[count++] = seat;
        }
    }
    return count;
}

uint32_t wefti_board_expected(const launch_board_t *board)
{
    uint32_t count = atomic_load(&board->restarts); /* before seats: a restart moves to a seat */
    for (uint32_t seat = 0; seat < board->seat_count; seat++) {
        seat_state_t state = state_of(board, seat);
        count += state == SEAT_COMING || state == SEAT_READY;
    }
    return count;
}

void wefti_board_invite(launch_board_t *board, uint32_t seat, const invitation_t *invitation)
{
    board->seats[seat].invitation = *invitation;
    /* Not if the launcher has found that it has ended. */
    uint32_t expected = SEAT_READY;
    if (atomic_compare_exchange_strong(&board->seats[seat].state, &expected, SEAT_INVITED)) {
        atomic_fetch_sub(&board->ready, 1);
        wefti_futex_wake_all(&board->seats[seat].state);
    }
}

void wefti_board_cancel(launch_board_t *board)
{
    for (uint32_t seat = 0; seat < board->seat_count; seat++) {
        uint32_t expected = SEAT_INVITED;
        (void)atomic_compare_exchange_strong(&board->seats[seat].state, &expected, SEAT_COMING);
    }
}

bool wefti_board_has_left(const launch_board_t *board, uint32_t seat)
{
    seat_state_t state = state_of(board, seat);
    return state != SEAT_INVITED && state != SEAT_TAKEN;
}
