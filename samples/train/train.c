/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

#define FILES "/usr/share/datasets/fashion-mnist/train-" /* Debian: dataset-fashion-mnist */
enum { SAMPLES = 60000, PIXELS = 784, BATCH = 64, STEPS = 400 };
static unsigned char pixels[SAMPLES][PIXELS], classes[SAMPLES];

static void check(weft_status_t status)
{
    if (status < 0) {
        fprintf(stderr, "train: %s\n", weft_last_error());
        exit(1);
    }
}

static void read_all(const char *command, void *out, size_t bytes)
{
    FILE *pipe = popen(command, "r");
    if (!pipe || fread(out, 1, bytes, pipe) < bytes) {
        fprintf(stderr, "train: no data in " FILES "*: install dataset-fashion-mnist\n");
        exit(77);
    }
    pclose(pipe);
}

int main(void)
{
    weft_context_params_t world = WEFT_CONTEXT_PARAMS_INIT; /* rank and world from the launcher */
    weft_compile_params_t compile = WEFT_COMPILE_PARAMS_INIT;
    weft_session_params_t bind = WEFT_SESSION_PARAMS_INIT;
    weft_session_t *session;
    read_all("gzip -dc " FILES "images-idx3-ubyte.gz | tail -c +17", pixels, sizeof pixels);
    read_all("gzip -dc " FILES "labels-idx1-ubyte.gz | tail -c +9", classes, sizeof classes);

    check(weft_context_create(&world, &bind.context));
    uint32_t rank = weft_context_rank(bind.context), ranks = weft_context_world_size(bind.context);
    compile.model_path = "samples/models/mlp.onnx";
    compile.world_size = ranks;
    compile.batch = BATCH;
    check(weft_compile(&compile, &bind.plan));   /* the same plan on every rank */
    check(weft_session_create(&bind, &session)); /* agree on it, map memory, broadcast weights */
    for (uint32_t step = 0; step < STEPS; step++) {
        static float images[BATCH][PIXELS], loss;
        static int64_t labels[BATCH];
        for (uint32_t i = 0; i < BATCH; i++) { /* this rank's part of the global batch */
            uint32_t sample = ((step * ranks + rank) * BATCH + i) % SAMPLES;
            labels[i] = classes[sample];
            for (uint32_t p = 0; p < PIXELS; p++) {
                images[i][p] = (float)pixels[sample][p] / 255;
            }
        }
        check(weft_session_set_input(session, "image", images, sizeof images));
        check(weft_session_set_input(session, "label", labels, sizeof labels));
        check(weft_session_step(session)); /* forward, backward, all-reduce, update */
        check(weft_session_get_output(session, "loss", &loss, sizeof loss, NULL));
        if (rank == 0 && (step + 1) % 100 == 0) {
            printf("step %u: loss %.4f\n", step + 1, (double)loss);
        }
    }
    weft_session_destroy(session);
    weft_plan_release(bind.plan);
    weft_context_release(bind.context);
    return 0;
}
