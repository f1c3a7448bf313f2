/* SPDX-License-Identifier: Apache-2.0 */
/* Running an inference plan on tensors from files. */
#ifndef WEFT_TOOLS_INFER_H
#define WEFT_TOOLS_INFER_H

#include <stdbool.h>

#include <weft/weft.h>

#define INFER_MAX_SCALARS 16u

typedef struct infer_scalar {
    char name[128];
    double value;
} infer_scalar_t;

typedef struct infer_options {
    weft_plan_t *plan; /* shared by all ranks: loaded before the fork */
    const weft_registry_t *registry;
    weft_context_t *world; /* the context if a launcher started this process, else NULL; borrowed */
    const char *inputs;    /* folder; NULL: the plan has no inputs */
    const char *outputs;   /* folder; NULL: outputs are only described */
    const char *trace_path, *profile_path; /* NULL: not written */
    infer_scalar_t scalars[INFER_MAX_SCALARS];
    uint32_t scalar_count;
    uint64_t repeat; /* timed steps after the first; 0: none */
    bool json;
} infer_options_t;

/* The inputs of one rank: one tensor per input of the plan, in the order of its bindings. */
typedef struct infer_feed {
    weft_tensor_desc_t *descs;
    void **data; /* from malloc */
    size_t count;
} infer_feed_t;

/*
 * Reads the inputs of ranks first to first + count - 1 into feeds[count]. An error names a file
 * that is missing or has another type or shape. If the plan splits the batch, only rank 0 has
 * inputs.
 */
weft_status_t wefti_infer_load(const infer_options_t *options, uint32_t first, uint32_t count,
                               infer_feed_t *feeds);
void wefti_infer_unload(infer_feed_t *feeds, uint32_t count);
/* Checks scalars; checks or creates the folder of outputs. */
weft_status_t wefti_infer_check(const infer_options_t *options);
/* NAME=X into the next free scalar; false if it is malformed or there are too many. */
bool wefti_infer_parse_scalar(infer_options_t *options, const char *text);

/* Runs one rank; rank, world_size and address come from the launcher (unused with options->world).
 * feeds: one per rank; only this rank's is read. */
weft_status_t wefti_infer_rank(const infer_options_t *options, const infer_feed_t *feeds,
                               int32_t rank, int32_t world_size, const char *address);

/* files.c: "f32 [4, 8]"; buffer of 256 bytes, returned. */
const char *wefti_infer_type_text(const weft_tensor_desc_t *desc, char *buffer);
/* The file of an output, in the folder of rank (-1: of all ranks); buffer of PATH_MAX. */
weft_status_t wefti_infer_output_path(const infer_options_t *options, const char *name,
                                      int32_t rank, char *buffer);

#endif
