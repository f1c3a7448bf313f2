/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that join a run: memory that the launcher shares with the ranks of its host. Each rank
 * that the launcher starts has a seat, and so has the process that takes a dead rank's place:
 *
 *   launcher   forks the first ranks                     FREE
 *   launcher   forks a process in place of a dead rank   COMING
 *   process    is ready to join, waits                   READY
 *   ranks      agree after a step that it joins          INVITED
 *   process    is in the world                           TAKEN
 *   launcher   the process has ended                     FREE
 */
#ifndef WEFT_TOOLS_LAUNCH_BOARD_H
#define WEFT_TOOLS_LAUNCH_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BOARD_ADDRESS_BYTES 128u

typedef struct launch_board launch_board_t;

/* The place of a process in the world that it joins. */
typedef struct invitation {
    uint32_t rank, world_size;
    char address[BOARD_ADDRESS_BYTES];
} invitation_t;

/* NULL with errno. */
launch_board_t *wefti_board_create(uint32_t seat_count, uint32_t restarts);
void wefti_board_destroy(launch_board_t *board); /* NULL: nothing happens */

/* ---- the launcher ---- */

uint32_t wefti_board_restarts_left(const launch_board_t *board);
/* Counts a restart, after the seats that it fills were offered. */
void wefti_board_restart(launch_board_t *board);
void wefti_board_offer(launch_board_t *board, uint32_t seat);
void wefti_board_vacate(launch_board_t *board, uint32_t seat);
/* No rank joins any more. */
void wefti_board_close(launch_board_t *board);
/* The process is not in the world yet. */
bool wefti_board_is_joining(const launch_board_t *board, uint32_t seat);
bool wefti_board_is_taken(const launch_board_t *board, uint32_t seat);
/* Has any rank been in a world? */
bool wefti_board_has_world(const launch_board_t *board);

/* ---- a process that the launcher has started ---- */

/* Waits for ranks that let it join; false: none will. */
bool wefti_board_wait(launch_board_t *board, uint32_t seat, invitation_t *out);
/* It is in the world. False: it was invited, but the others did not grow. */
bool wefti_board_take(launch_board_t *board, uint32_t seat);

/* ---- rank 0 ---- */

/* Processes that are ready. */
uint32_t wefti_board_ready(const launch_board_t *board);
/* Their seats, of which there may be fewer by now. */
uint32_t wefti_board_list_ready(const launch_board_t *board, uint32_t *seats, uint32_t capacity);
/* Processes that may still become ready: those that come, and the restarts that are left. */
uint32_t wefti_board_expected(const launch_board_t *board);
void wefti_board_invite(launch_board_t *board, uint32_t seat, const invitation_t *invitation);
/* Those that were invited are not. */
void wefti_board_cancel(launch_board_t *board);
/* Has a process ended, or its invitation, after it was invited? */
bool wefti_board_has_left(const launch_board_t *board, uint32_t seat);

#endif
