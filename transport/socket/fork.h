/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers take the end of their connections for the end of this process. A forked child has copies of
 * the sockets and may live longer, so it gives them up at once: a handler of pthread_atfork puts
 * /dev/null in their place. Children of system calls (clone, vfork) run no handler; where they call
 * exec the sockets close.
 */
#ifndef WEFT_TRANSPORT_SOCKET_FORK_H
#define WEFT_TRANSPORT_SOCKET_FORK_H

/* Children that are forked from here on give fd up. Any thread. */
void wefti_socket_guard(int fd);
/* Closes a descriptor, guarded or not. The number may be another file's from here on. */
void wefti_socket_close(int fd);

#endif
