/* SPDX-License-Identifier: Apache-2.0 */
/* Interrupts of this host's network interfaces, for `weft topo` and `weft run --bind-irqs`. */
#ifndef WEFT_TOOLS_INTERRUPTS_H
#define WEFT_TOOLS_INTERRUPTS_H

#include "runtime/machine/machine.h"
#include "tools/tool.h"

/* Binds them next to their interfaces, away from the cores of rank_count local ranks where there
 * are others. Returns an exit code of tool.h; prints an error. */
int wefti_bind_interrupts(const char *command, uint32_t rank_count);

/* A line for each, at most most of every interface. */
void wefti_interrupts_print(const wefti_interrupt_t *interrupts, uint32_t count, uint32_t most,
                            wefti_text_t *out);
void wefti_interrupts_write(const wefti_interrupt_t *interrupts, uint32_t count,
                            wefti_json_t *json);

#endif
