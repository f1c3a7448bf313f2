/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that disagree about one operation: in its arguments, its kind, its group, or whether it is. */
#ifndef TESTS_FAULTS_MATRIX_DISAGREE_H
#define TESTS_FAULTS_MATRIX_DISAGREE_H

#include "tests/faults/matrix/work.h"

/* What all ranks do alike before: a second group of the world, and room for more. Collective. */
weft_status_t disagree_prepare(work_t *work);
/*
 * The operation, as the ranks of one side make it. kind is one of those that --list of matrix.py
 * prints. is_odd: this rank is one of those that differ. Unknown kinds are WEFT_ERR_NOT_FOUND.
 */
weft_status_t disagree_run(work_t *work, const char *kind, bool is_odd, draw_t *d);

#endif
