/* SPDX-License-Identifier: Apache-2.0 */
/* A user's program: compiles a model and says what came out. usage: consumer MODEL.onnx */
#include <stdio.h>

#include <weft/weft.h>

int main(int argc, char **argv)
{
    weft_compile_params_t params = WEFT_COMPILE_PARAMS_INIT;
    weft_plan_info_t info = WEFT_PLAN_INFO_INIT;
    weft_plan_t *plan = NULL;
    params.model_path = argc > 1 ? argv[1] : "";
    params.world_size = 2;
    params.batch = 8;
    if (weft_compile(&params, &plan) < 0 || weft_plan_get_info(plan, &info) < 0) {
        fprintf(stderr, "%s\n", weft_last_error());
        return 1;
    }
    printf("%s: %u bucket(s)\n", weft_version(), info.bucket_count);
    weft_plan_release(plan);
    return 0;
}
