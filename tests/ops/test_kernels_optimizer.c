/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers against the formulas in PyTorch's documentation, in double, over several steps. */
#include "tests/ops/support_kernel.h"

#include <math.h>
#include <string.h>

#include "ops/exact_sum.h"

typedef enum { SGD, MOMENTUM, ADAGRAD, ADAM, ADAMW, LAMB, KINDS } kind_t;
static const char *const names[] = {"SGD", "Momentum", "Adagrad", "Adam", "AdamW", "Lamb"};

/* P, G and the states. */
static uint32_t tensors_of(kind_t kind)
{
    return kind == SGD ? 2 : kind <= ADAGRAD ? 3 : 4;
}

typedef struct {
    double p, m, v;
    double direction; /* lamb */
} element_t;

/* One step of torch.optim.SGD (dampening 0, no Nesterov), Adagrad (lr_decay 0.1), Adam or AdamW. */
static void reference(kind_t kind, element_t *e, double g, double lr, double decay, int step)
{
    const double beta1 = 0.9f, beta2 = 0.999f;
    if (kind == ADAMW) {
        e->p -= lr * decay * e->p;
    } else if (kind != LAMB) {
        g += decay * e->p;
    }
    if (kind == SGD) {
        e->p -= lr * g;
    } else if (kind == MOMENTUM) {
        e->m = 0.8f * e->m + g;
        e->p -= lr * e->m;
    } else if (kind == ADAGRAD) {
        e->m += g * g;
        e->p -= lr / (1 + (step - 1) * 0.1) * g / (sqrt(e->m) + 1e-10f);
    } else {
        e->m = beta1 * e->m + (1 - beta1) * g;
        e->v = beta2 * e->v + (1 - beta2) * g * g;
        double m_hat = e->m / (1 - pow(beta1, step)), v_hat = e->v / (1 - pow(beta2, step));
        e->direction = m_hat / (sqrt(v_hat) + 1e-8f) + (kind == LAMB ? decay * e->p : 0);
        e->p -= kind == LAMB ? 0 : lr * e->direction;
    }
}

/* Lamb, after the directions of all elements are known. */
static void apply_directions(element_t *all, int64_t count, double lr, bool adapt)
{
    double p = 0, d = 0;
    for (int64_t i = 0; i < count; i++) {
        p += all[i].p * all[i].p;
        d += all[i].direction * all[i].direction;
    }
    for (int64_t i = 0; i < count; i++) {
        all[i].p -= lr * (adapt && p > 0 && d > 0 ? sqrt(p / d) : 1) * all[i].direction;
    }
}

static void check(kind_t kind, int64_t count, float decay, bool adapt)
{
    enum { STEPS = 12 };
    static element_t want[5000];
    op_case_t c = case_make("weft", names[kind], 1);
    float *tensors[4];
    uint32_t tensor_count = tensors_of(kind);
    for (uint32_t i = 0; i < tensor_count; i++) {
        tensors[i] = case_input(&c, DIMS(count));
        memset(tensors[i], 0, (size_t)count * sizeof(float));
    }
    float *lr = case_input(&c, SCALAR), *step = kind >= ADAGRAD ? case_input(&c, DIMS(1)) : NULL;
    case_float(&c, "weight_decay", decay);
    if (kind == MOMENTUM) {
        case_float(&c, "momentum", 0.8f);
    }
    if (kind == ADAGRAD) {
        case_float(&c, "lr_decay", 0.1f);
    }
    if (!adapt) {
        case_int(&c, "adapt", 0);
    }
    assert_int_equal(case_infer(&c, tensor_count - 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
    random_fill(tensors[0], count, -1.0f, 1.0f);
    for (int64_t i = 0; i < count; i++) {
        want[i] = (element_t){.p = tensors[0][i]};
    }
    for (int s = 1; s <= STEPS; s++) {
        random_fill(tensors[1], count, -1.0f, 1.0f);
        *lr = 0.05f / (float)s;
        if (step != NULL) {
            *step = (float)s;
        }
        case_run(&c);
        case_run_in_place(&c);
        for (int64_t i = 0; i < count; i++) {
            reference(kind, &want[i], tensors[1][i], *lr, decay, s);
        }
        if (kind == LAMB) {
            apply_directions(want, count, *lr, adapt);
        }
        for (int64_t i = 0; i < count; i++) {
            assert_close(((float *)c.out[0])[i], want[i].p, 3e-6, "P", i);
        }
        memcpy(tensors[0], c.out[0], (size_t)count * sizeof(float));
        for (uint32_t t = 2; t < tensor_count; t++) {
            memcpy(tensors[t], c.out[t - 1], (size_t)count * sizeof(float));
        }
    }
    for (int64_t i = 0; i < count && kind != SGD; i++) {
        assert_close(((float *)c.out[1])[i], want[i].m, 3e-6, "M", i);
        assert_close(kind >= ADAM ? ((float *)c.out[2])[i] : 0, want[i].v, 3e-6, "V", i);
    }
    case_free(&c);
}

static void test_optimizers_follow_the_formulas(void **state)
{
    static const int64_t counts[] = {0, 1, 15, 16, 17, 4099};
    (void)state;
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        for (int kind = SGD; kind < KINDS; kind++) {
            check((kind_t)kind, counts[i], 0.0f, true);
            check((kind_t)kind, counts[i], 0.01f, true);
        }
        check(LAMB, counts[i], 0.01f, false);
    }
}

static void test_a_bucket_is_its_members(void **state)
{
    /* The same elements updated in one range or in two pieces give the same bits. */
    (void)state;
    for (int kind = SGD; kind < LAMB; kind++) { /* all that are element-wise */
        op_case_t parts[3];
        const uint32_t tensors = tensors_of((kind_t)kind);
        const int64_t sizes[3] = {1000, 37, 963};
        for (int part = 0; part < 3; part++) {
            op_case_t *c = &parts[part];
            *c = case_make("weft", names[kind], 1);
            for (uint32_t t = 0; t < tensors; t++) {
                float *x = case_input(c, DIMS(sizes[part]));
                int64_t first = part == 2 ? 37 : 0;
                for (int64_t i = 0; i < sizes[part]; i++) {
                    x[i] = (float)((first + i) * (int64_t)(t + 3) % 101 + 1) / 101.0f;
                }
            }
            *case_input(c, SCALAR) = 0.01f;
            if (kind >= ADAGRAD) {
                *case_input(c, SCALAR) = 3.0f;
            }
            assert_int_equal(case_infer(c, tensors - 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
            case_run(c);
        }
        for (uint32_t t = 0; t + 1 < tensors; t++) {
            assert_memory_equal(parts[0].out[t], parts[1].out[t], 37 * 4);
            assert_memory_equal((float *)parts[0].out[t] + 37, parts[2].out[t], 963 * 4);
        }
        for (int part = 0; part < 3; part++) {
            case_free(&parts[part]);
        }
    }
}

/* Three tensors side by side, each padded to units of 16 elements, in shards whose borders lie inside
 * of tensors: with the sums of all shards every element gets the bits of its whole tensor's update.
 * Padding stays zero. */
static void test_shards_of_lamb_are_its_tensors(void **state)
{
    enum { TENSORS = 3, FLAT = 192, ROW = 2 * WEFTI_SUM_LIMBS };
    static const int64_t sizes[TENSORS] = {100, 7, 50};
    static const int64_t begins[TENSORS + 1] = {0, 112, 128, -2};
    static const int64_t shard_counts[] = {1, 2, 3, 4, 6, 12};
    float flat[4][FLAT] = {{0}}, want[3][FLAT] = {{0}};
    (void)state;
    for (int t = 0; t < TENSORS; t++) {
        op_case_t c = case_make("weft", "Lamb", 1);
        for (int k = 0; k < 4; k++) {
            float *x = case_input(&c, DIMS(sizes[t]));
            random_fill(x, sizes[t], k == 3 ? 0.0f : -1.0f, (float)(t + 1));
            memcpy(flat[k] + begins[t], x, (size_t)sizes[t] * sizeof(float));
        }
        *case_input(&c, SCALAR) = 0.01f;
        *case_input(&c, SCALAR) = 3.0f;
        case_float(&c, "weight_decay", 0.1f);
        assert_int_equal(case_infer(&c, 3, WEFT_LAYOUT_PLAIN), WEFT_OK);
        case_run(&c);
        for (int k = 0; k < 3; k++) {
            memcpy(want[k] + begins[t], c.out[k], (size_t)sizes[t] * sizeof(float));
        }
        case_free(&c);
    }
    for (size_t n = 0; n < sizeof(shard_counts) / sizeof(shard_counts[0]); n++) {
        int64_t shards = shard_counts[n], count = FLAT / shards;
        int64_t sums[(TENSORS + 1) * ROW] = {0};
        for (int64_t s = 0; s < shards; s++) { /* each adds to the sums of those before it */
            op_case_t c = case_make("weft", "LambSquares", 1);
            memcpy(case_input_typed(&c, WEFT_DTYPE_I64, WEFT_LAYOUT_PLAIN, DIMS(TENSORS + 1, ROW)),
                   sums, sizeof(sums));
            *(int64_t *)case_input_typed(&c, WEFT_DTYPE_I64, WEFT_LAYOUT_PLAIN, SCALAR) = s;
            *case_input(&c, SCALAR) = 3.0f;
            case_absent_input(&c);
            for (int k = 0; k < 4; k++) {
                memcpy(case_input(&c, DIMS(count)), flat[k] + s * count,
                       (size_t)count * sizeof(float));
            }
            case_float(&c, "weight_decay", 0.1f);
            case_ints(&c, "begins", begins);
            case_int(&c, "at", 1);
            case_int(&c, "tensors", TENSORS + 1);
            assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
            case_run(&c);
            case_run_in_place(&c);
            memcpy(sums, c.out[0], sizeof(sums));
            case_free(&c);
        }
        for (int64_t s = 0; s < shards; s++) {
            op_case_t c = case_make("weft", "Lamb", 1);
            for (int k = 0; k < 4; k++) {
                memcpy(case_input(&c, DIMS(count)), flat[k] + s * count,
                       (size_t)count * sizeof(float));
            }
            *case_input(&c, SCALAR) = 0.01f;
            *case_input(&c, SCALAR) = 3.0f;
            case_absent_input(&c);
            memcpy(case_input_typed(&c, WEFT_DTYPE_I64, WEFT_LAYOUT_PLAIN, DIMS(TENSORS + 1, ROW)),
                   sums, sizeof(sums));
            *(int64_t *)case_input_typed(&c, WEFT_DTYPE_I64, WEFT_LAYOUT_PLAIN, SCALAR) = s;
            case_float(&c, "weight_decay", 0.1f);
            case_ints(&c, "begins", begins);
            case_int(&c, "at", 1);
            assert_int_equal(case_infer(&c, 3, WEFT_LAYOUT_PLAIN), WEFT_OK);
            case_run(&c);
            case_run_in_place(&c);
            for (int k = 0; k < 3; k++) {
                assert_memory_equal(c.out[k], want[k] + s * count, (size_t)count * sizeof(float));
            }
            case_free(&c);
        }
    }
}

/* The schedules of torch.optim.lr_scheduler, after a linear warm-up; step counts from 1. */
static double reference_rate(const char *schedule, double lr, double low, int step, int warmup,
                             int steps)
{
    double past = step - 1 - warmup, p = fmin(1.0, past / (steps - warmup));
    if (step <= warmup) {
        return lr * step / warmup;
    }
    return strcmp(schedule, "linear") == 0 ? low + (lr - low) * (1 - p)
           : strcmp(schedule, "cosine") == 0
               ? low + (lr - low) * (1 + cos(3.14159265358979 * p)) / 2
           : strcmp(schedule, "step") == 0 ? fmax(low, lr * pow(0.5, floor(past / steps)))
                                           : lr;
}

static void test_learning_rates_follow_the_formulas(void **state)
{
    static const char *const schedules[] = {"constant", "linear", "cosine", "step"};
    (void)state;
    for (int form = 0; form < 4 * 3 * 2; form++) {
        const char *schedule = schedules[form & 3];
        int warmup = 5 * (form / 4 % 3), steps = 40;
        bool by_input = form >= 12 && strcmp(schedule, "constant") != 0;
        op_case_t c = case_make("weft", "LearningRate", 1);
        *case_input(&c, SCALAR) = 0.3f;
        float *step = case_input(&c, SCALAR);
        float *total = by_input ? case_input(&c, SCALAR) : NULL;
        case_string(&c, "schedule", schedule);
        case_int(&c, "warmup", warmup);
        case_int(&c, "steps", by_input ? 0 : steps);
        case_float(&c, "min_lr", 0.02f);
        case_float(&c, "gamma", 0.5f);
        assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_OK);
        for (int s = 1; s <= 100; s++) {
            *step = (float)s;
            if (by_input) {
                *total = (float)steps;
            }
            case_run(&c);
            double want = reference_rate(schedule, (double)0.3f, (double)0.02f, s, warmup, steps);
            assert_close(((float *)c.out[0])[0], want, 1e-7, schedule, s);
        }
        if (by_input) { /* nobody has set it */
            *total = 0;
            assert_int_equal(case_run_isa(&c, 0), WEFT_ERR_STATE);
        }
        case_free(&c);
    }
}

static void test_scalars_must_be_one_element(void **state)
{
    op_case_t c = case_make("weft", "SGD", 1);
    (void)state;
    case_input(&c, DIMS(4));
    case_input(&c, DIMS(4));
    case_input(&c, DIMS(2));
    assert_int_equal(case_infer(&c, 1, WEFT_LAYOUT_PLAIN), WEFT_ERR_INVALID_ARGUMENT);
    case_output(&c, WEFT_DTYPE_F32, WEFT_LAYOUT_PLAIN, DIMS(4));
    assert_int_equal(case_run_isa(&c, 0), WEFT_ERR_INVALID_ARGUMENT);
    case_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimizers_follow_the_formulas),
        cmocka_unit_test(test_a_bucket_is_its_members),
        cmocka_unit_test(test_shards_of_lamb_are_its_tensors),
        cmocka_unit_test(test_learning_rates_follow_the_formulas),
        cmocka_unit_test(test_scalars_must_be_one_element),
    };
    random_seed(3);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
