/* SPDX-License-Identifier: Apache-2.0 */
/* Cost tables: what is accepted is written and read back as the same table. */
#include <string.h>

#include "ops/cost/cost.h"
#include "tests/support/support_fuzz.h"

void fuzz_one(const uint8_t *data, size_t size)
{
    wefti_costs_t costs, again;
    double ns;
    weft_status_t status = wefti_costs_decode(&costs, (const char *)data, size, NULL);
    fuzz_check(status == WEFT_OK || status == WEFT_ERR_FORMAT, "an error of another kind");
    if (status < 0) {
        return;
    }
    (void)wefti_costs_kernel_ns(&costs, WEFTI_KERNEL_PRODUCT, 2, 1e6, &ns);
    wefti_text_t text;
    wefti_text_init(&text, NULL);
    wefti_costs_encode(&costs, &text);
    fuzz_check(wefti_costs_decode(&again, text.data, text.length, NULL) == WEFT_OK,
               "what was written cannot be read");
    fuzz_check(again.measured_count == costs.measured_count &&
                   again.kernel_count == costs.kernel_count &&
                   wefti_costs_digest(&again) == wefti_costs_digest(&costs),
               "it reads back as another table");
    wefti_text_deinit(&text);
    wefti_costs_deinit(&again);
    wefti_costs_deinit(&costs);
}
