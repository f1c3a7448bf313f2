/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/signature.h"

#include <stdio.h>
#include <string.h>

#include "ops/collective.h"

uint32_t wefti_what_control(uint64_t what)
{
    return (what & 0xff) == WEFT_COLLECTIVE_ALL_GATHER
               ? (uint32_t)((what & WEFTI_WHAT_ROOT_MASK) >> WEFTI_WHAT_ROOT_SHIFT)
               : 0;
}

const char *wefti_what_function(uint64_t what)
{
    return what == WEFTI_WHAT_REFUSED ? "a refused call"
                                      : wefti_collective_function((weft_collective_t)(what & 0xff));
}

void wefti_what_arguments(uint64_t what, uint64_t count, uint64_t hidden, char *out, size_t bytes)
{
    weft_collective_t value = (weft_collective_t)(what & 0xff);
    const wefti_collective_t *op = wefti_collective_of(value);
    const char *dtype = weft_dtype_name((weft_dtype_t)(what >> 8 & 0xff));
    char notes[80] = "";
    size_t used = 0;
    if (op->reduces && (hidden & WEFTI_WHAT_REDUCTION_MASK) == 0) {
        used = (size_t)snprintf(notes, sizeof notes, ", %s",
                                weft_reduction_name((weft_reduction_t)(what >> 16 & 0xf)));
    }
    if (op->rooted && value != WEFT_COLLECTIVE_SEND_RECV && (hidden & WEFTI_WHAT_ROOT_MASK) == 0) {
        used += (size_t)snprintf(notes + used, sizeof notes - used, ", root %u",
                                 (unsigned int)(what >> WEFTI_WHAT_ROOT_SHIFT & 0xffff));
    }
    if (!op->variable && count >> WEFTI_COUNT_SHAPE_SHIFT == WEFTI_COUNT_SHAPES) {
        used += (size_t)snprintf(notes + used, sizeof notes - used, ", shapes ahead of the data");
    }
    if (wefti_collective_has_shared_counts(value)) {
        used += (size_t)snprintf(notes + used, sizeof notes - used, ", counts %016llx",
                                 (unsigned long long)count);
    }
    if (value == WEFT_COLLECTIVE_BARRIER || what == WEFTI_WHAT_REFUSED) {
        out[0] = '\0';
        return;
    }
    if ((what & WEFTI_WHAT_FUSED) != 0 || op->variable) {
        snprintf(out, bytes, " of %s", dtype);
    } else { /* count is a block's where a rank gives one to each */
        bool blocks = op->send.extent == WEFT_EXTENT_BLOCKS;
        snprintf(out, bytes, " with %llu x %s%s", (unsigned long long)(count & WEFTI_COUNT_MASK),
                 dtype, blocks ? " per rank" : "");
    }
    size_t end = strlen(out);
    snprintf(out + end, bytes - end, "%s%s%s%s", used > 0 ? " (" : "", used > 0 ? notes + 2 : "",
             used > 0 ? ")" : "", what & WEFTI_WHAT_FUSED ? ", fused calls of a batch" : "");
}

const char *wefti_what_text(uint64_t what, uint64_t count, char *buffer)
{
    size_t used = (size_t)snprintf(buffer, 40, "%s", wefti_what_function(what));
    wefti_what_arguments(what, count, 0, buffer + used, 160 - used);
    return buffer;
}
