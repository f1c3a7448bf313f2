/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The passes of weft_compile, in order. A pass changes the graph of the compiler (c->graph); import
 * comes before the table, lowering after it, and neither decides anything about the graph.
 *
 * To add a pass: write fusion/passes/<name>.c with wefti_apply_<name>, whose head comment says what
 * it matches, what it produces and why; declare it in fusion/passes/passes.h; add its row in
 * pipeline.c.
 */
#ifndef WEFT_FUSION_PIPELINE_H
#define WEFT_FUSION_PIPELINE_H

#include "fusion/compile.h"

typedef uint32_t wefti_pass_when_t;
#define WEFTI_PASS_TRAINING (1u << 0)
#define WEFTI_PASS_INFERENCE (1u << 1)
#define WEFTI_PASS_COMPILED (1u << 2) /* also for a compiled graph, which other passes skip */
#define WEFTI_PASS_MODELS (1u << 3)   /* once per model: the models of all ranks, for example */

typedef struct wefti_pass {
    const char *name, *summary;
    wefti_pass_when_t when;
    bool (*enabled)(const wefti_compiler_t *compiler); /* by parameters; NULL: always */
    weft_status_t (*run)(wefti_compiler_t *compiler);
} wefti_pass_t;

/* The table; *out_count rows. */
const wefti_pass_t *wefti_passes(size_t *out_count);
/* Runs the rows that apply, up to and including params.stop_after, and reports each to
 * params.on_pass. A row of WEFTI_PASS_MODELS runs with c->model and c->graph set to each
 * model in turn, every other row with the first. */
weft_status_t wefti_pipeline_run(wefti_compiler_t *compiler, const wefti_pass_t *passes,
                                 size_t count);
/* Reports to params.on_pass, if there is one: name has run since start_ns. */
weft_status_t wefti_pipeline_report(wefti_compiler_t *compiler, const char *name,
                                    uint32_t nodes_before, uint64_t start_ns, bool with_text);

#endif
