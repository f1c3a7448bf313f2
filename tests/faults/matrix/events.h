/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a rank, and what it reports: a line per event on standard output. */
#ifndef TESTS_FAULTS_MATRIX_EVENTS_H
#define TESTS_FAULTS_MATRIX_EVENTS_H

#include <stdint.h>

/* CLOCK_MONOTONIC */
int64_t event_now_ns(void);
/* Name, nanoseconds and details, with tabs between. */
void event_report(const char *event, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Entries of a folder of /proc, . and .. included. */
uint32_t event_count_entries(const char *path);

/* The value of "name=value" among the arguments; NULL: there is none. */
const char *event_option(char **argv, const char *name);
/* 0: there is none. */
uint64_t event_number(char **argv, const char *name);

#endif
