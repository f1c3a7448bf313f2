/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that goes on without dead ones, and with new ones. */
#ifndef TESTS_FAULTS_MATRIX_ELASTIC_H
#define TESTS_FAULTS_MATRIX_ELASTIC_H

#include "tests/faults/matrix/work.h"

/*
 * Joins, then works until the file "target" in work->folder holds 0 ranks: shrinks after each
 * error, and grows when the file holds more ranks than there are. Returns the exit status.
 */
int elastic_run(work_t *work);

#endif
