/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The compiler under damaged models: graphs that bring gradients and collectives, and compiled
 * graphs, whose properties say what the compiler would otherwise have decided itself.
 */
#include <weft/weft.h>

#include "tests/support/support_fuzz.h"

static void silence(void *user, weft_log_level_t level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
}

static void compile(const char *path, uint32_t world_size)
{
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    weft_plan_t *plan;
    params.model_path = path;
    params.world_size = world_size;
    params.batch = world_size != 0 ? 4 : 0;
    params.log = silence;
    weft_status_t status = weft_compile(&params, &plan);
    fuzz_check((status >= 0) == (plan != NULL), "status and plan disagree");
    fuzz_check(status != WEFT_ERR_INTERNAL, "an error of our own");
    weft_plan_release(plan);
}

void fuzz_one(const uint8_t *data, size_t size)
{
    const char *path = fuzz_file(data, size);
    compile(path, 0);
    compile(path, 2);
}
