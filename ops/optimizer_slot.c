/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/optimizer_slot.h"

#include <stddef.h>
#include <string.h>

static const struct {
    const char *op;
    const char *slots[2];
} built_in[] = {
    {"Momentum", {"momentum", NULL}},
    {"Adam", {"moment1", "moment2"}},
};

const char *wefti_optimizer_slot(const char *domain, const char *op, uint32_t output)
{
    static const char *const others[] = {"state1", "state2", "state3"};
    if (output < 1 || output > sizeof others / sizeof *others) {
        return NULL;
    }
    for (size_t i = 0; strcmp(domain, "weft") == 0 && i < sizeof built_in / sizeof *built_in; i++) {
        if (strcmp(op, built_in[i].op) == 0 && output <= 2 &&
            built_in[i].slots[output - 1] != NULL) {
            return built_in[i].slots[output - 1];
        }
    }
    return others[output - 1];
}
