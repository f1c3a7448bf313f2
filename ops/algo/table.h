/* SPDX-License-Identifier: Apache-2.0 */
/* All algorithms by operator and name; schedules of all ranks. */
#ifndef WEFT_OPS_ALGO_TABLE_H
#define WEFT_OPS_ALGO_TABLE_H

#include "ops/algo/schedule.h"

/* The built-in algorithms one after the other: index from 0, NULL after the last. */
const weft_algorithm_t *wefti_algorithm_at(size_t index);
/* The built-in algorithm called name for op, or NULL. */
const weft_algorithm_t *wefti_algorithm_find(weft_collective_t op, const char *name);

/* registry.c: the algorithms that were added to registry (may be NULL), likewise. */
const weft_algorithm_t *wefti_registry_algorithm_at(const weft_registry_t *registry, size_t index);

/* weft_registry_load_algorithm with the text of the file; path is for messages. */
weft_status_t wefti_registry_load_algorithm(weft_registry_t *registry, const char *path,
                                            const char *text, size_t size_bytes,
                                            const weft_algorithm_t **out_algorithm);

/* The reason if algorithm cannot serve params for their order alone, else NULL. */
const char *wefti_algorithm_order_refusal(const weft_algorithm_t *algorithm,
                                          const weft_algo_params_t *params);

/* Schedules of all ranks (params->rank is not looked at): free with wefti_schedules_free. */
weft_status_t wefti_schedules_build(const weft_algorithm_t *algorithm,
                                    const weft_algo_params_t *params,
                                    const weft_allocator_t *allocator,
                                    wefti_schedule_t **out_schedules);
void wefti_schedules_free(const weft_allocator_t *allocator, wefti_schedule_t *schedules,
                          uint32_t count); /* accepts NULL */

#endif
