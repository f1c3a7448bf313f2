/* SPDX-License-Identifier: Apache-2.0 */
/* The communicators of mpi.c, for operators that do not come by MPI (operators.c). */
#ifndef WEFT_INTEROP_JAX_MPI_H
#define WEFT_INTEROP_JAX_MPI_H

#include <stdint.h>

#include <weft/group.h>

/* A communicator. */
typedef uintptr_t mpi_comm_t;

/* Locks a communicator for calls on its group. Returns NULL, with *out_error, if it has none. */
weft_group_t *weft_mpi_begin(mpi_comm_t handle, const char **out_error);
/* Unlocks it after weft_mpi_begin has returned its group. */
void weft_mpi_end(mpi_comm_t handle);
/* Hosts of the world. */
uint32_t weft_mpi_host_count(void);

#endif
