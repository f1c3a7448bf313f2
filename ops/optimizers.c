/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/optimizers.h"

#include <stddef.h>
#include <string.h>

#define ROW(kind, name, op, states, step, lr, epsilon, first, second)                              \
    {name, op, states, step, lr, epsilon, {first, second}},
const wefti_optimizer_row_t wefti_optimizers[WEFTI_OPTIMIZER_COUNT] = {WEFTI_OPTIMIZER_MAP(ROW)};

const char *wefti_optimizer_slot(const char *domain, const char *op, uint32_t output)
{
    static const char *const others[] = {"state1", "state2", "state3"};
    if (output < 1 || output > sizeof others / sizeof *others) {
        return NULL;
    }
    for (size_t i = 0; strcmp(domain, "weft") == 0 && i < WEFTI_OPTIMIZER_COUNT; i++) {
        if (strcmp(op, wefti_optimizers[i].op) == 0 && output <= wefti_optimizers[i].state_count) {
            return wefti_optimizers[i].states[output - 1];
        }
    }
    return others[output - 1];
}

bool wefti_optimizer_averages(const char *domain, const char *op)
{
    return strcmp(domain, "weft") == 0 && strcmp(op, "MovingAverage") == 0;
}
