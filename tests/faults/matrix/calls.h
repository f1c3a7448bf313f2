/* SPDX-License-Identifier: Apache-2.0 */
/* A fault after so many messages of this process, at a place that does not depend on time. */
#ifndef WEFT_TESTS_FAULTS_MATRIX_CALLS_H
#define WEFT_TESTS_FAULTS_MATRIX_CALLS_H

#include <stdint.h>

/* act is called after the last one of count messages. */
void calls_arm(uint64_t count, void (*act)(void *user), void *user);
/* Returns how many were left. */
uint64_t calls_disarm(void);

#endif
