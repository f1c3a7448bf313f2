/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan files: reading, verifying, explaining. A damaged structure rarely has its digest, so it is
 * also read without comparing digests.
 */
#include <stdlib.h>
#include <string.h>

#include "ops/plan/container.h"
#include "ops/plan/plan_internal.h"
#include "ops/plan/prove.h"
#include "tests/support/support_fuzz.h"

static void explain(const weft_plan_t *plan)
{
    char *text = NULL;
    const weft_format_t formats[] = {WEFT_FORMAT_TEXT, WEFT_FORMAT_JSON};
    weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
    weft_binding_t binding = WEFT_BINDING_INIT;
    wefti_plan_proof_t proof;
    fuzz_check(weft_plan_get_info(plan, &info) == WEFT_OK, "no info");
    for (size_t i = 0; i < weft_plan_binding_count(plan); i++) {
        fuzz_check(weft_plan_get_binding(plan, i, &binding) == WEFT_OK, "no binding");
    }
    for (size_t i = 0; i < 2; i++) {
        fuzz_check(weft_plan_explain(plan, formats[i], &text) == WEFT_OK, "cannot be explained");
        free(text);
    }
    if (weft_plan_compare(plan, &text) == WEFT_OK) {
        free(text);
    }
    if (weft_plan_why(plan, "w1", &text) == WEFT_OK) {
        free(text);
    }
    (void)wefti_plan_prove(plan, fuzz_registry(), &proof);
}

static void read_file(const uint8_t *data, size_t size)
{
    weft_plan_t *plan = NULL;
    fuzz_check(wefti_plan_create(NULL, &plan) == WEFT_OK, "no plan");
    weft_status_t status = wefti_plan_decode(plan, data, size);
    fuzz_check(status != WEFT_ERR_INTERNAL, "an error of our own");
    weft_plan_release(plan);
}

void fuzz_one(const uint8_t *data, size_t size)
{
    wefti_section_t sections[WEFTI_SECTION_COUNT];
    wefti_digest_t structure, weights;
    weft_plan_t *plan = NULL;
    read_file(data, size);
    if (wefti_container_read(data, size, sections, &structure, &weights) != WEFT_OK) {
        return;
    }
    fuzz_check(wefti_plan_create(NULL, &plan) == WEFT_OK, "no plan");
    weft_status_t status =
        wefti_plan_decode_structure(plan, sections[0].data, sections[0].size_bytes);
    status = status == WEFT_OK ? wefti_plan_load_algorithms(plan) : status;
    if (status == WEFT_OK) {
        plan->weights = sections[1].data;
        plan->weights_bytes = sections[1].size_bytes;
        plan->eval_model = sections[2].data;
        plan->eval_model_bytes = sections[2].size_bytes;
        fuzz_check(wefti_plan_seal(plan) == WEFT_OK, "cannot be sealed");
        status = wefti_plan_verify(plan, fuzz_registry());
        fuzz_check(status != WEFT_ERR_INTERNAL, "an error of our own");
    }
    if (status == WEFT_OK) {
        explain(plan);
    }
    weft_plan_release(plan);
}
