/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a machine and of the limits of this process, for `weft doctor`. */
#ifndef WEFT_TOOLS_DOCTOR_H
#define WEFT_TOOLS_DOCTOR_H

#include "runtime/base/settings.h"
#include "runtime/machine/cluster.h"

typedef enum doctor_level {
    DOCTOR_OK = 0,
    DOCTOR_HINT = 1,    /* works; could be faster */
    DOCTOR_WARNING = 2, /* works, but slower or not for every use */
    DOCTOR_ERROR = 3,   /* ranks cannot start here */
} doctor_level_t;
#define DOCTOR_LEVELS 4u

/* What a check found. remedy is empty where there is nothing to mend. */
typedef struct doctor_result {
    doctor_level_t level;
    char found[384];
    char remedy[256];
} doctor_result_t;

/* What checks read. */
typedef struct doctor_machine {
    const char *root; /* before /proc and /sys; "" except in tests */
    const wefti_settings_t *settings;
    const wefti_hardware_t *hardware; /* with devices */
    wefti_arena_t *arena;             /* for names that a check reads */
} doctor_machine_t;

typedef struct doctor_check {
    const char *name;
    const char *meaning; /* what depends on it, one sentence */
    void (*run)(const doctor_machine_t *machine, doctor_result_t *out);
} doctor_check_t;

/* In the order of the report; ended by a name that is NULL. */
extern const doctor_check_t wefti_doctor_checks[];
/* What the check of that name finds. */
doctor_result_t wefti_doctor_run(const char *name, const doctor_machine_t *machine);

/* "ok", "hint", "warning" or "error". */
const char *wefti_doctor_level_name(doctor_level_t level);

#endif
