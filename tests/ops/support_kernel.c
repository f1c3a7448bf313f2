/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/ops/support_kernel.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/compute/halves.h"
#include "runtime/base/sync.h"
#include "tests/support/support_fence.h"

static uint64_t random_state;

void random_seed(uint64_t seed)
{
    printf("seed %llu\n", (unsigned long long)seed);
    random_state = seed;
}

float random_float(float low, float high)
{
    return low + (high - low) *
                     ((float)((uint32_t)test_next_random(&random_state) & 0xffffff) / 16777216.0f);
}

uint32_t random_below(uint32_t limit)
{
    return (uint32_t)test_next_random(&random_state) % limit;
}

void random_fill(float *x, int64_t count, float low, float high)
{
    for (int64_t i = 0; i < count; i++) {
        x[i] = random_float(low, high);
    }
}

op_case_t case_make(const char *domain, const char *op, int32_t version)
{
    op_case_t c = {.domain = domain, .op = op, .version = version};
    return c;
}

void case_free(op_case_t *c)
{
    for (uint32_t i = 0; i < CASE_TENSORS; i++) {
        free(c->in[i]);
        free(c->out[i]);
    }
    memset(c, 0, sizeof(*c));
}

int64_t case_count(const weft_tensor_desc_t *desc)
{
    int64_t count = weft_tensor_elem_count(desc);
    assert_true(count >= 0);
    return count;
}

static void *make_tensor(weft_tensor_desc_t *desc, weft_dtype_t dtype, weft_layout_t layout,
                         const int64_t *dims)
{
    memset(desc, 0, sizeof(*desc));
    desc->dtype = dtype;
    desc->layout = layout;
    for (; dims[desc->rank] != -2; desc->rank++) {
        desc->dims[desc->rank] = dims[desc->rank];
    }
    size_t bytes = (size_t)case_count(desc) * weft_dtype_size_bytes(dtype);
    void *memory = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(memory);
    return memory;
}

void *case_input_typed(op_case_t *c, weft_dtype_t dtype, weft_layout_t layout, const int64_t *dims)
{
    uint32_t i = c->input_count++;
    assert_true(i < CASE_TENSORS);
    c->in[i] = make_tensor(&c->inputs[i], dtype, layout, dims);
    return c->in[i];
}

float *case_input(op_case_t *c, const int64_t *dims)
{
    return case_input_typed(c, WEFT_DTYPE_F32, WEFT_LAYOUT_PLAIN, dims);
}

void case_absent_input(op_case_t *c)
{
    memset(&c->inputs[c->input_count++], 0, sizeof(c->inputs[0]));
}

void case_output(op_case_t *c, weft_dtype_t dtype, weft_layout_t layout, const int64_t *dims)
{
    uint32_t i = c->output_count++;
    assert_true(i < CASE_TENSORS);
    c->out[i] = make_tensor(&c->outputs[i], dtype, layout, dims);
}

static weft_attr_t *add_attr(op_case_t *c, const char *name, weft_attr_type_t type)
{
    assert_true(c->attr_count < CASE_ATTRS);
    weft_attr_t *attr = &c->attrs[c->attr_count++];
    memset(attr, 0, sizeof(*attr));
    attr->name = name;
    attr->type = type;
    return attr;
}

void case_ints(op_case_t *c, const char *name, const int64_t *values)
{
    uint32_t row = c->attr_count;
    weft_attr_t *attr = add_attr(c, name, WEFT_ATTR_TYPE_INTS);
    for (; values[attr->count] != -2; attr->count++) {
        c->ints[row][attr->count] = values[attr->count];
    }
}

void case_int(op_case_t *c, const char *name, int64_t value)
{
    add_attr(c, name, WEFT_ATTR_TYPE_INT)->i = value;
}

void case_float(op_case_t *c, const char *name, float value)
{
    add_attr(c, name, WEFT_ATTR_TYPE_FLOAT)->f = value;
}

void case_string(op_case_t *c, const char *name, const char *value)
{
    add_attr(c, name, WEFT_ATTR_TYPE_STRING)->s = value;
}

weft_node_desc_t case_node(op_case_t *c)
{
    for (uint32_t i = 0; i < c->attr_count; i++) { /* the case may have been copied */
        if (c->attrs[i].type == WEFT_ATTR_TYPE_INTS) {
            c->attrs[i].ints = c->ints[i];
        }
    }
    return (weft_node_desc_t){.domain = c->domain,
                              .op = c->op,
                              .version = c->version,
                              .name = "node",
                              .input_count = c->input_count,
                              .inputs = c->inputs,
                              .output_count = c->output_count,
                              .outputs = c->outputs,
                              .attr_count = c->attr_count,
                              .attrs = c->attrs};
}

/* One registry for the whole test program; freed at exit so that leak checkers are content. */
static weft_registry_t *shared;

static void free_shared(void)
{
    weft_registry_destroy(shared);
    shared = NULL;
}

const weft_registry_t *case_registry(void)
{
    if (shared == NULL) {
        assert_int_equal(weft_registry_create(NULL, &shared), WEFT_OK);
        atexit(free_shared);
    }
    return shared;
}

const weft_op_def_t *case_def(const op_case_t *c)
{
    const weft_op_def_t *def = weft_registry_find_op(case_registry(), c->domain, c->op, c->version);
    assert_non_null(def);
    return def;
}

weft_status_t case_infer(op_case_t *c, uint32_t output_count, weft_layout_t layout)
{
    weft_node_desc_t node = case_node(c);
    weft_tensor_desc_t outputs[CASE_TENSORS];
    memset(outputs, 0x5a, sizeof(outputs)); /* a rule must not depend on what was there */
    node.output_count = output_count;
    node.outputs = outputs;
    weft_status_t status = case_def(c)->infer(&node);
    for (uint32_t i = 0; status == WEFT_OK && i < output_count; i++) {
        int64_t dims[WEFT_MAX_DIMS + 1];
        assert_true(outputs[i].rank <= WEFT_MAX_DIMS);
        assert_null(outputs[i].data);
        memcpy(dims, outputs[i].dims, sizeof(outputs[i].dims));
        dims[outputs[i].rank] = -2;
        case_output(c, outputs[i].dtype, outputs[i].rank == 4 ? layout : WEFT_LAYOUT_PLAIN, dims);
    }
    return status;
}

static weft_status_t run_on(op_case_t *c, weft_isa_t isa, uint32_t threads, void *const *outputs)
{
    const weft_kernel_t *kernel =
        weft_registry_find_kernel(case_registry(), c->domain, c->op, c->version);
    weft_kernel_env_t env = WEFT_KERNEL_ENV_INIT;
    env.isa = isa;
    env.thread_count = threads;
    weft_node_desc_t node = case_node(c);
    void *state = NULL;
    size_t scratch_bytes = 0;
    assert_non_null(kernel);
    weft_status_t status =
        wefti_prepare_kernel(kernel, &node, &env, &kernel, &state, &scratch_bytes);
    if (status < 0) {
        assert_null(state);
        return status;
    }
    void *scratch = NULL;
    assert_int_equal(posix_memalign(&scratch, 64, scratch_bytes > 0 ? scratch_bytes : 1), 0);
    memset(scratch, 0xcc, scratch_bytes);
    weft_kernel_call_t call = {state, (const void *const *)c->in, outputs, scratch};
    status = test_run_fenced(kernel, &node, &call);
    free(scratch);
    kernel->destroy(state);
    return status;
}

weft_status_t case_run_isa(op_case_t *c, weft_isa_t isa)
{
    return run_on(c, isa, 1, c->out);
}

void case_run_threads(op_case_t *c, uint32_t threads)
{
    assert_int_equal(run_on(c, wefti_isa_detect(), threads, c->out), WEFT_OK);
}

static size_t bytes_of(const weft_tensor_desc_t *desc)
{
    return (size_t)case_count(desc) * weft_dtype_size_bytes(desc->dtype);
}

void case_run(op_case_t *c)
{
    void *portable[CASE_TENSORS] = {0};
    for (weft_isa_t isa = 0; isa <= wefti_isa_detect(); isa++) {
        for (uint32_t i = 0; i < c->output_count; i++) {
            memset(c->out[i], 0xff, bytes_of(&c->outputs[i]));
        }
        weft_status_t status = case_run_isa(c, isa);
        if (status != WEFT_OK) {
            fail_msg("%s on instruction set %u: %s", c->op, isa, weft_last_error());
        }
        for (uint32_t i = 0; i < c->output_count; i++) {
            size_t bytes = bytes_of(&c->outputs[i]);
            if (isa == 0) {
                portable[i] = malloc(bytes > 0 ? bytes : 1);
                assert_non_null(portable[i]);
                memcpy(portable[i], c->out[i], bytes);
            } else if (memcmp(portable[i], c->out[i], bytes) != 0) {
                fail_msg("%s: output %u on instruction set %u differs from portable C", c->op, i,
                         isa);
            }
        }
    }
    for (uint32_t i = 0; i < c->output_count; i++) {
        free(portable[i]);
    }
}

void case_run_in_place(op_case_t *c)
{
    const weft_op_def_t *def = case_def(c);
    void *outputs[CASE_TENSORS], *saved[CASE_TENSORS] = {0};
    for (uint32_t i = 0; i < c->output_count; i++) {
        int from = i < 4 ? def->in_place[i] : -1;
        outputs[i] = c->out[i];
        if (from >= 0 && bytes_of(&c->inputs[from]) == bytes_of(&c->outputs[i])) {
            saved[i] = malloc(bytes_of(&c->outputs[i]) + 1);
            assert_non_null(saved[i]);
            memcpy(saved[i], c->in[from], bytes_of(&c->outputs[i]));
            outputs[i] = c->in[from];
        }
    }
    assert_int_equal(run_on(c, wefti_isa_detect(), 1, outputs), WEFT_OK);
    for (uint32_t i = 0; i < c->output_count; i++) {
        assert_memory_equal(outputs[i], c->out[i], bytes_of(&c->outputs[i]));
        if (saved[i] != NULL) {
            memcpy(outputs[i], saved[i], bytes_of(&c->outputs[i]));
            free(saved[i]);
        }
    }
}

void assert_close(double got, double want, double bound, const char *what, int64_t index)
{
    double scale = fabs(want) > 1.0 ? fabs(want) : 1.0;
    bool same = got == want || (isnan(got) && isnan(want));
    if (!same && !(fabs(got - want) <= bound * scale)) {
        fail_msg("%s[%lld] is %.9g, expected %.9g", what, (long long)index, got, want);
    }
}

int64_t offset4(const weft_tensor_desc_t *t, int64_t n, int64_t c, int64_t h, int64_t w)
{
    const int64_t *d = t->dims;
    if (t->layout == WEFT_LAYOUT_CHANNELS_LAST) {
        return ((n * d[2] + h) * d[3] + w) * d[1] + c;
    }
    return ((n * d[1] + c) * d[2] + h) * d[3] + w;
}

static double weighted(op_case_t *c, const float *weights)
{
    double sum = 0.0;
    assert_int_equal(case_run_isa(c, 0), WEFT_OK);
    for (int64_t i = 0; i < case_count(&c->outputs[0]); i++) {
        sum += (double)((float *)c->out[0])[i] * (weights == NULL ? 1.0 : (double)weights[i]);
    }
    return sum;
}

double finite_difference(op_case_t *c, uint32_t input, int64_t index, const float *weights,
                         float step)
{
    float *x = (float *)c->in[input] + index, kept = *x;
    float above = kept + step, below = kept - step;
    *x = above;
    double high = weighted(c, weights);
    *x = below;
    double low = weighted(c, weights);
    *x = kept;
    return (high - low) / ((double)above - (double)below);
}
