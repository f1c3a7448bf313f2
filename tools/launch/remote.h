/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher of several hosts. */
#ifndef WEFT_TOOLS_LAUNCH_REMOTE_H
#define WEFT_TOOLS_LAUNCH_REMOTE_H

#include <sys/types.h>

#include "tools/launch/address.h"
#include "tools/launch/hosts.h"
#include "tools/launch/ranks.h"

typedef enum remote_state {
    REMOTE_PREPARING, /* connecting or preparing */
    REMOTE_READY,
    REMOTE_RUNNING,
    REMOTE_DONE,
    REMOTE_FAILED, /* started no ranks; code and text report why */
    REMOTE_LOST,   /* the connection broke */
} remote_state_t;

typedef struct remote_host {
    const launch_host_t *host;
    remote_state_t state;
    pid_t pid; /* of ssh, or of the agent itself */
    bool reaped;
    int wait_status;
    int to_fd; /* the agent's standard input */
    uint32_t port;
    host_addresses_t addresses;
    int code;
    char text[4096];
    frame_reader_t reader;
} remote_host_t;

/* rsh.c: starts the process that connects to a host. Prints an error. */
int wefti_remote_start(const launch_t *launch, remote_host_t *remote);
/* "ssh", for messages; buffer of 64 bytes, returned. */
const char *wefti_remote_program(const launch_t *launch, const remote_host_t *remote, char *buffer);
/* The job of an agent: ranks, directory, WEFT_ variables with the secret. False if it cannot be
 * sent.
 */
bool wefti_remote_send_job(remote_host_t *remote, frame_t *frame, uint32_t world_size,
                           bool one_host);

#endif
