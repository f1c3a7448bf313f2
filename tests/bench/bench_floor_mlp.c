/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floor: what a training step of the MLP 784-512-256-10 costs when it is written directly.
 *
 * Ranks are threads pinned to cores of their own. A step gathers a batch of images (u8 to f32),
 * runs forward and backward with oneDNN's dnnl_sgemm, adds the gradients of both ranks in place
 * (each rank adds its part of all buffers and stores it to all), and updates the weights with
 * momentum. Nothing is planned, checked or traced. Prints one line of JSON; times are of whole
 * steps on rank 0.
 *
 * usage: bench_floor_mlp [--steps S] [--batch B] [--data DIR]
 */
#include <dnnl.h>
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zlib.h>

enum {
    RANKS = 2,
    LAYERS = 3,
    IMAGES = 60000,
    PIXELS = 784,
    CLASSES = 10,
    WARMUP = 30,
    MAX_STEPS = 100000
};

static const int width[LAYERS + 1] = {PIXELS, 512, 256, CLASSES};

/* One line pair each: the ranks' flags must not share lines. */
typedef struct flag {
    _Alignas(128) atomic_long value;
} flag_t;

typedef struct rank_data {
    float *params, *grads, *moments; /* all layers, weights [out, in] then bias */
    float *act[LAYERS + 1];          /* act[0] is the batch */
    float *delta[LAYERS + 1];
    flag_t ready, done;
} rank_data_t;

typedef struct bench {
    int steps, batch;
    size_t param_count;
    unsigned char *pixels, *labels;
    rank_data_t ranks[RANKS];
    double *step_ms;
    double loss_first, loss_last;
} bench_t;

typedef struct rank_arg {
    bench_t *bench;
    int rank;
} rank_arg_t;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void *take(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (p == NULL) {
        fputs("bench_floor_mlp: out of memory\n", stderr);
        exit(2);
    }
    memset(p, 0, bytes);
    return p;
}

static size_t layer_offset(int layer)
{
    size_t at = 0;
    for (int l = 0; l < layer; l++) {
        at += (size_t)width[l + 1] * (size_t)(width[l] + 1);
    }
    return at;
}

static void post(flag_t *flag, long value)
{
    /* Release: everything this rank wrote before is visible to whoever sees value. */
    atomic_store_explicit(&flag->value, value, memory_order_release);
}

static void wait_all(bench_t *b, int done, long value)
{
    for (int r = 0; r < RANKS; r++) {
        flag_t *flag = done ? &b->ranks[r].done : &b->ranks[r].ready;
        while (atomic_load_explicit(&flag->value, memory_order_acquire) < value) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    }
}

/* Contents of the dataset, or numbers of no meaning: the time is the same. */
static int read_idx(const char *dir, const char *name, long header, unsigned char *out,
                    unsigned bytes)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    gzFile file = gzopen(path, "rb");
    int good = file != NULL && gzseek(file, header, SEEK_SET) == header &&
               gzread(file, out, bytes) == (int)bytes;
    if (file != NULL) {
        gzclose(file);
    }
    for (unsigned i = 0; !good && i < bytes; i++) {
        out[i] = (unsigned char)(i * 2654435761u >> 24) % CLASSES;
    }
    return good;
}

static void gather(const bench_t *b, float *x, unsigned *labels, unsigned *random)
{
    for (int i = 0; i < b->batch; i++) {
        *random = *random * 1664525u + 1013904223u;
        const unsigned image = (*random >> 8) % IMAGES;
        const unsigned char *from = b->pixels + (size_t)image * PIXELS;
        for (int p = 0; p < PIXELS; p++) {
            x[(size_t)i * PIXELS + (size_t)p] = (float)from[p] * (1.0f / 255.0f);
        }
        labels[i] = b->labels[image];
    }
}

static void forward(const bench_t *b, rank_data_t *r)
{
    for (int l = 0; l < LAYERS; l++) {
        const int in = width[l], out = width[l + 1];
        const float *w = r->params + layer_offset(l), *bias = w + (size_t)in * (size_t)out;
        float *y = r->act[l + 1];
        dnnl_sgemm('N', 'T', b->batch, out, in, 1, r->act[l], in, w, in, 0, y, out);
        for (int i = 0; i < b->batch; i++) {
            float *row = y + (size_t)i * (size_t)out;
            for (int j = 0; j < out; j++) {
                const float v = row[j] + bias[j];
                row[j] = l + 1 < LAYERS && v < 0 ? 0 : v;
            }
        }
    }
}

/* Softmax cross-entropy, mean over the batch: fills delta[LAYERS]. */
static double loss_and_delta(const bench_t *b, rank_data_t *r, const unsigned *labels)
{
    double loss = 0;
    for (int i = 0; i < b->batch; i++) {
        const float *logits = r->act[LAYERS] + (size_t)i * CLASSES;
        float *delta = r->delta[LAYERS] + (size_t)i * CLASSES;
        float top = logits[0], sum = 0;
        for (int j = 1; j < CLASSES; j++) {
            top = logits[j] > top ? logits[j] : top;
        }
        for (int j = 0; j < CLASSES; j++) {
            delta[j] = expf(logits[j] - top);
            sum += delta[j];
        }
        loss -= (double)(logits[labels[i]] - top - logf(sum));
        for (int j = 0; j < CLASSES; j++) {
            delta[j] = (delta[j] / sum - (float)(j == (int)labels[i])) / (float)b->batch;
        }
    }
    return loss / b->batch;
}

static void backward(const bench_t *b, rank_data_t *r)
{
    for (int l = LAYERS - 1; l >= 0; l--) {
        const int in = width[l], out = width[l + 1];
        const float *w = r->params + layer_offset(l), *dy = r->delta[l + 1];
        float *dw = r->grads + layer_offset(l), *db = dw + (size_t)in * (size_t)out;
        dnnl_sgemm('T', 'N', out, in, b->batch, 1, dy, out, r->act[l], in, 0, dw, in);
        memset(db, 0, (size_t)out * sizeof *db);
        for (int i = 0; i < b->batch; i++) {
            for (int j = 0; j < out; j++) {
                db[j] += dy[(size_t)i * (size_t)out + (size_t)j];
            }
        }
        if (l == 0) {
            return;
        }
        float *dx = r->delta[l];
        dnnl_sgemm('N', 'N', b->batch, in, out, 1, dy, out, w, in, 0, dx, in);
        const float *x = r->act[l];
        for (size_t i = 0; i < (size_t)b->batch * (size_t)in; i++) {
            dx[i] = x[i] > 0 ? dx[i] : 0;
        }
    }
}

/* In place: this rank averages its part of all ranks' gradients and stores it to all of them. */
static void all_reduce(bench_t *b, int rank, long step)
{
    const size_t begin = b->param_count * (size_t)rank / RANKS;
    const size_t end = b->param_count * ((size_t)rank + 1) / RANKS;
    float *g0 = b->ranks[0].grads, *g1 = b->ranks[1].grads;
    post(&b->ranks[rank].ready, step);
    wait_all(b, 0, step);
    for (size_t i = begin; i < end; i++) {
        const float sum = (g0[i] + g1[i]) * (1.0f / RANKS);
        g0[i] = sum;
        g1[i] = sum;
    }
    post(&b->ranks[rank].done, step);
    wait_all(b, 1, step);
}

static void update(const bench_t *b, rank_data_t *r, float lr)
{
    for (size_t i = 0; i < b->param_count; i++) {
        r->moments[i] = 0.9f * r->moments[i] + r->grads[i];
        r->params[i] -= lr * r->moments[i];
    }
}

static void *run_rank(void *opaque)
{
    const rank_arg_t *arg = opaque;
    bench_t *b = arg->bench;
    rank_data_t *r = &b->ranks[arg->rank];
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(arg->rank, &cores);
    pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
    omp_set_num_threads(1);
    unsigned *labels = take((size_t)b->batch * sizeof *labels);
    unsigned random = 1u + (unsigned)arg->rank;
    for (int step = 0; step < b->steps + WARMUP; step++) {
        const double begin = now_ms();
        gather(b, r->act[0], labels, &random);
        forward(b, r);
        const double loss = loss_and_delta(b, r, labels);
        backward(b, r);
        all_reduce(b, arg->rank, step + 1);
        update(b, r, 0.05f);
        if (arg->rank == 0) {
            if (step == 0) {
                b->loss_first = loss;
            }
            b->loss_last = loss;
            if (step >= WARMUP) {
                b->step_ms[step - WARMUP] = now_ms() - begin;
            }
        }
    }
    free(labels);
    return NULL;
}

static void make_rank(bench_t *b, rank_data_t *r)
{
    r->params = take(b->param_count * sizeof(float));
    r->grads = take(b->param_count * sizeof(float));
    r->moments = take(b->param_count * sizeof(float));
    unsigned random = 42; /* equal on all ranks */
    for (int l = 0; l < LAYERS; l++) {
        float *w = r->params + layer_offset(l);
        const float scale = 1.0f / sqrtf((float)width[l]);
        for (size_t i = 0; i < (size_t)width[l] * (size_t)width[l + 1]; i++) {
            random = random * 1664525u + 1013904223u;
            w[i] = ((float)(random >> 8) / 8388608.0f - 1.0f) * scale;
        }
    }
    for (int l = 0; l <= LAYERS; l++) {
        r->act[l] = take((size_t)b->batch * (size_t)width[l] * sizeof(float));
        r->delta[l] = take((size_t)b->batch * (size_t)width[l] * sizeof(float));
    }
}

static void free_rank(rank_data_t *r)
{
    free(r->params);
    free(r->grads);
    free(r->moments);
    for (int l = 0; l <= LAYERS; l++) {
        free(r->act[l]);
        free(r->delta[l]);
    }
}

static int compare(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
    static bench_t b = {.steps = 500, .batch = 64};
    const char *data = "/usr/share/datasets/fashion-mnist";
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--steps") == 0) {
            b.steps = atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--batch") == 0) {
            b.batch = atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--data") == 0) {
            data = argv[i + 1];
        }
    }
    if (argc % 2 == 0 || b.steps < 1 || b.steps > MAX_STEPS || b.batch < 1 || b.batch > 65536) {
        fputs("usage: bench_floor_mlp [--steps S] [--batch B] [--data DIR]\n", stderr);
        return 2;
    }
    b.param_count = layer_offset(LAYERS);
    b.pixels = take((size_t)IMAGES * PIXELS);
    b.labels = take(IMAGES);
    b.step_ms = take((size_t)b.steps * sizeof *b.step_ms);
    const int real = read_idx(data, "train-images-idx3-ubyte.gz", 16, b.pixels, IMAGES * PIXELS) &
                     read_idx(data, "train-labels-idx1-ubyte.gz", 8, b.labels, IMAGES);
    pthread_t threads[RANKS];
    rank_arg_t args[RANKS];
    for (int r = 0; r < RANKS; r++) {
        make_rank(&b, &b.ranks[r]);
        args[r] = (rank_arg_t){&b, r};
    }
    for (int r = 0; r < RANKS; r++) {
        if (pthread_create(&threads[r], NULL, run_rank, &args[r]) != 0) {
            fputs("bench_floor_mlp: cannot start a thread\n", stderr);
            return 2;
        }
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_join(threads[r], NULL);
    }
    qsort(b.step_ms, (size_t)b.steps, sizeof *b.step_ms, compare);
    const dnnl_version_t *v = dnnl_version();
    printf(
        "{\"name\": \"floor_mlp\", \"ranks\": %d, \"batch\": %d, \"dtype\": \"f32\", \"bytes\": "
        "%zu, "
        "\"iterations\": %d, \"step_ms_min\": %.4f, \"step_ms_p50\": %.4f, \"step_ms_p90\": %.4f, "
        "\"loss_first\": %.4f, \"loss_last\": %.4f, \"data\": \"%s\", "
        "\"blas\": \"oneDNN %d.%d.%d dnnl_sgemm\"}\n",
        RANKS, b.batch, b.param_count * sizeof(float), b.steps, b.step_ms[0],
        b.step_ms[b.steps / 2], b.step_ms[(size_t)b.steps * 9 / 10], b.loss_first, b.loss_last,
        real ? "fashion-mnist" : "synthetic", v->major, v->minor, v->patch);
    for (int r = 0; r < RANKS; r++) {
        free_rank(&b.ranks[r]);
    }
    free(b.pixels);
    free(b.labels);
    free(b.step_ms);
    return 0;
}
