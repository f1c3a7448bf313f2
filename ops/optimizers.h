/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of optimizers. A new one is a row here, an update operator in op_defs_optimizer.c and a
 * kernel in compute/optimizer.c.
 */
#ifndef WEFT_OPS_OPTIMIZERS_H
#define WEFT_OPS_OPTIMIZERS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * X(kind, name of the user, update operator, its states, whether it reads the step, default learning
 * rate and epsilon, names of the states). An update reads the parameter, the gradient, its states,
 * scalar lr, and scalar step if it does.
 */
#define WEFTI_OPTIMIZER_MAP(X)                                                                     \
    X(SGD, "sgd", "SGD", 0, 0, 0.05, 0, NULL, NULL)                                                \
    X(MOMENTUM, "momentum", "Momentum", 1, 0, 0.05, 0, "momentum", NULL)                           \
    X(ADAM, "adam", "Adam", 2, 1, 0.001, 1e-8, "moment1", "moment2")                               \
    X(ADAMW, "adamw", "AdamW", 2, 1, 0.001, 1e-8, "moment1", "moment2")                            \
    X(LAMB, "lamb", "Lamb", 2, 1, 0.001, 1e-8, "moment1", "moment2")                               \
    X(ADAGRAD, "adagrad", "Adagrad", 1, 1, 0.01, 1e-10, "sum", NULL)

typedef enum wefti_optimizer {
#define WEFTI_OPTIMIZER_KIND(kind, ...) WEFTI_OPTIMIZER_##kind,
    WEFTI_OPTIMIZER_MAP(WEFTI_OPTIMIZER_KIND) WEFTI_OPTIMIZER_COUNT
} wefti_optimizer_t;

typedef struct wefti_optimizer_row {
    const char *name, *op;
    uint32_t state_count;
    bool reads_step;
    double lr, epsilon;
    const char *states[2];
} wefti_optimizer_row_t;

extern const wefti_optimizer_row_t wefti_optimizers[WEFTI_OPTIMIZER_COUNT];

/* What a state tensor is called, of output 1 and on of an update operator: "momentum", "moment1";
 * of operators that are not in the table "state1" and on, NULL beyond what any has. */
const char *wefti_optimizer_slot(const char *domain, const char *op, uint32_t output);
/* An update of running statistics: what it reads is no gradient. */
bool wefti_optimizer_averages(const char *domain, const char *op);

#endif
