/* SPDX-License-Identifier: Apache-2.0 */
/* What the state tensors of an optimizer are called, wherever they lie. */
#ifndef WEFT_OPS_OPTIMIZER_SLOT_H
#define WEFT_OPS_OPTIMIZER_SLOT_H

#include <stdint.h>

/* Of output 1 and on of an update operator: "momentum", "moment1"; of operators that are not built
 * in "state1" and on, NULL beyond what any has. */
const char *wefti_optimizer_slot(const char *domain, const char *op, uint32_t output);

#endif
