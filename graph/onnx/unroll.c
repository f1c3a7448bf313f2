/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control flow whose course is known at compile: an If becomes its branch, a Loop or Scan its body
 * once per iteration. Values inside of a body get names of their own in every iteration; names that
 * it does not define are those around it.
 *
 *   Loop(3, true, v) --> body(0, v) -> v1 --> body(1, v1) -> v2 --> body(2, v2) -> v3
 */
#include "graph/onnx/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

#define NO_CONDITION "the condition is not a constant"
#define MOST_DEPTH 32u
#define MOST_NODES 200000u
#define MOST_ITERATIONS 4096

/* A value that has a name: an initializer, or the output of a node. */
typedef struct fact {
    const Onnx__TensorProto *tensor; /* NULL: of a node */
    uint32_t node;                   /* in the list of nodes */
    uint32_t mark;                   /* the last search that reached it */
    bool known;
    weft_tensor_desc_t type; /* if known; with contents if it is a constant */
} fact_t;

typedef struct unroller {
    wefti_onnx_file_t *file;
    Onnx__NodeProto **nodes;
    size_t count, capacity;
    Onnx__TensorProto **constants; /* of bodies */
    size_t constant_count, constant_capacity;
    wefti_name_index_t index; /* name -> place in facts */
    fact_t *facts;
    size_t fact_count, fact_capacity;
    uint32_t marks;
    wefti_name_index_t hoisted; /* address of a body -> its first initializer in constants */
    uint32_t bodies;
} unroller_t;

/* Names of a body in one iteration. */
typedef struct scope {
    const struct scope *parent;
    wefti_name_index_t index; /* name in the body -> place in names */
    const char **names;
    size_t count, capacity;
    uint32_t number, depth;
} scope_t;

static const Onnx__GraphProto *body_of(const Onnx__NodeProto *node, const char *name)
{
    for (size_t i = 0; i < node->n_attribute; i++) {
        if (node->attribute[i]->name != NULL && strcmp(node->attribute[i]->name, name) == 0) {
            return node->attribute[i]->g;
        }
    }
    return NULL;
}

static const Onnx__AttributeProto *find_attribute(const Onnx__NodeProto *node, const char *name)
{
    for (size_t i = 0; i < node->n_attribute; i++) {
        if (node->attribute[i]->name != NULL && strcmp(node->attribute[i]->name, name) == 0) {
            return node->attribute[i];
        }
    }
    return NULL;
}

static bool is_op(const Onnx__NodeProto *node, const char *op)
{
    return wefti_onnx_domain(node->domain)[0] == '\0' && node->op_type != NULL &&
           strcmp(node->op_type, op) == 0;
}

static weft_status_t refuse(const unroller_t *u, const Onnx__NodeProto *node, const char *why)
{
    return wefti_error(WEFT_ERR_UNSUPPORTED,
                       "%s: node '%.100s' (%.40s): %s; control flow is supported where its course "
                       "is known at compile: export the model with constant conditions, trip "
                       "counts and shapes",
                       u->file->label, node->name != NULL ? node->name : "", node->op_type, why);
}

/* ---- names ---- */

static const char *resolve(const scope_t *scope, const char *name)
{
    for (; scope != NULL && name[0] != '\0'; scope = scope->parent) {
        uint32_t at = wefti_name_index_find(&scope->index, name);
        if (at != WEFTI_NONE) {
            return scope->names[at];
        }
    }
    return name;
}

static weft_status_t define(unroller_t *u, scope_t *scope, const char *name, const char *resolved)
{
    const char *unique;
    WEFT_RETURN_IF_NO_MEMORY(resolved);
    if (wefti_name_index_find(&scope->index, name) != WEFTI_NONE) {
        return wefti_error(WEFT_ERR_FORMAT, "%s: duplicate definition of value '%s' in a body",
                           u->file->label, name);
    }
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(u->file->allocator, &scope->names, &scope->capacity,
                                             scope->count + 1, sizeof(scope->names[0])));
    WEFT_RETURN_IF_ERROR(wefti_name_index_add(&scope->index, &u->file->arena, name,
                                              (uint32_t)scope->count, &unique));
    scope->names[scope->count++] = resolved;
    return WEFT_OK;
}

static const char *own_name(unroller_t *u, const scope_t *scope, const char *name)
{
    return wefti_arena_printf(&u->file->arena, "body.%u/%s", scope->number, name);
}

static weft_status_t open_scope(unroller_t *u, const scope_t *parent, scope_t *out)
{
    *out = (scope_t){
        .parent = parent, .number = ++u->bodies, .depth = parent != NULL ? parent->depth + 1 : 1};
    wefti_name_index_init(&out->index, u->file->allocator);
    return out->depth > MOST_DEPTH
               ? wefti_error(WEFT_ERR_UNSUPPORTED,
                             "%s: bodies of control flow are nested more than %u deep",
                             u->file->label, MOST_DEPTH)
               : WEFT_OK;
}

static void close_scope(unroller_t *u, scope_t *scope)
{
    wefti_name_index_deinit(&scope->index);
    wefti_free(u->file->allocator, scope->names);
}

/* ---- nodes ---- */

/* A second definition of a name is refused by the import. */
static weft_status_t add_fact(unroller_t *u, const char *name, fact_t fact)
{
    const char *unique;
    if (name == NULL || name[0] == '\0' || wefti_name_index_find(&u->index, name) != WEFTI_NONE) {
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(u->file->allocator, &u->facts, &u->fact_capacity,
                                             u->fact_count + 1, sizeof(u->facts[0])));
    u->facts[u->fact_count] = fact;
    return wefti_name_index_add(&u->index, &u->file->arena, name, (uint32_t)u->fact_count++,
                                &unique);
}

static weft_status_t push(unroller_t *u, Onnx__NodeProto *node)
{
    if (u->count >= MOST_NODES && u->bodies > 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: more than %u nodes after unrolling",
                           u->file->label, MOST_NODES);
    }
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(u->file->allocator, &u->nodes, &u->capacity,
                                             u->count + 1, sizeof(u->nodes[0])));
    for (size_t i = 0; i < node->n_output; i++) {
        WEFT_RETURN_IF_ERROR(add_fact(u, node->output[i], (fact_t){.node = (uint32_t)u->count}));
    }
    u->nodes[u->count++] = node;
    return WEFT_OK;
}

static weft_status_t push_constant(unroller_t *u, Onnx__TensorProto *tensor)
{
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(u->file->allocator, &u->constants,
                                             &u->constant_capacity, u->constant_count + 1,
                                             sizeof(u->constants[0])));
    u->constants[u->constant_count++] = tensor;
    return add_fact(u, tensor->name, (fact_t){.tensor = tensor});
}

static Onnx__AttributeProto *int_attribute(unroller_t *u, const char *name, int64_t value)
{
    return wefti_onnx_make_integer(&u->file->arena, name, value, false);
}

/* A new node with one output; attribute may be NULL. */
static weft_status_t emit(unroller_t *u, const char *op, const char *const *inputs, size_t count,
                          const char *output, Onnx__AttributeProto *attribute)
{
    Onnx__NodeProto *node =
        wefti_onnx_make_node(&u->file->arena, op, inputs, count, output, attribute);
    WEFT_RETURN_IF_NO_MEMORY(node);
    return push(u, node);
}

/* A new scalar without contents; NULL: no memory. */
static Onnx__TensorProto *scalar(unroller_t *u, weft_dtype_t dtype)
{
    wefti_arena_t *arena = &u->file->arena;
    Onnx__TensorProto *tensor = wefti_arena_alloc(arena, sizeof(*tensor));
    char *name = wefti_arena_printf(arena, "body.%u/number.%zu", u->bodies, u->constant_count);
    if (tensor == NULL || name == NULL) {
        return NULL;
    }
    onnx__tensor_proto__init(tensor);
    tensor->name = name;
    tensor->has_data_type = 1;
    tensor->data_type = wefti_onnx_data_type(dtype);
    return push_constant(u, tensor) < 0 ? NULL : tensor;
}

/* A scalar, or with list a list of one number. */
static const char *number(unroller_t *u, int64_t value, bool list)
{
    Onnx__TensorProto *tensor = scalar(u, WEFT_DTYPE_I64);
    int64_t *data = wefti_arena_array(&u->file->arena, 2, sizeof(*data));
    if (tensor == NULL || data == NULL) {
        return NULL;
    }
    data[0] = 1;
    data[1] = value;
    tensor->dims = data;
    tensor->n_dims = list;
    tensor->int64_data = data + 1;
    tensor->n_int64_data = 1;
    return tensor->name;
}

/* The truth value true. */
static const char *truth(unroller_t *u)
{
    Onnx__TensorProto *tensor = scalar(u, WEFT_DTYPE_BOOL);
    int32_t *data = wefti_arena_array(&u->file->arena, 1, sizeof(*data));
    if (tensor == NULL || data == NULL) {
        return NULL;
    }
    data[0] = 1;
    tensor->int32_data = data;
    tensor->n_int32_data = 1;
    return tensor->name;
}

/* ---- what is known ---- */

/* What a value depends on. */
typedef struct part {
    uint32_t *nodes; /* in the list of nodes */
    size_t node_count, node_capacity;
    Onnx__TensorProto **tensors;
    size_t tensor_count, tensor_capacity;
} part_t;

static weft_status_t reach(unroller_t *u, part_t *part, const char *name)
{
    uint32_t at = wefti_name_index_find(&u->index, name);
    if (at == WEFTI_NONE || u->facts[at].mark == u->marks) {
        return WEFT_OK;
    }
    fact_t *fact = &u->facts[at];
    fact->mark = u->marks;
    if (fact->tensor != NULL) {
        WEFT_RETURN_IF_ERROR(wefti_array_reserve(u->file->allocator, &part->tensors,
                                                 &part->tensor_capacity, part->tensor_count + 1,
                                                 sizeof(part->tensors[0])));
        part->tensors[part->tensor_count++] = (Onnx__TensorProto *)(uintptr_t)fact->tensor;
        return WEFT_OK;
    }
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(u->file->allocator, &part->nodes, &part->node_capacity,
                                             part->node_count + 1, sizeof(part->nodes[0])));
    part->nodes[part->node_count++] = fact->node;
    return WEFT_OK;
}

static int by_place(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static weft_status_t find_part(unroller_t *u, part_t *part, const char *name)
{
    size_t kept = 0;
    u->marks++;
    WEFT_RETURN_IF_ERROR(reach(u, part, name));
    for (size_t i = 0; i < part->node_count; i++) {
        const Onnx__NodeProto *node = u->nodes[part->nodes[i]];
        for (size_t k = 0; k < node->n_input; k++) {
            WEFT_RETURN_IF_ERROR(reach(u, part, node->input[k]));
        }
    }
    if (part->node_count > 0) {
        qsort(part->nodes, part->node_count, sizeof(part->nodes[0]), by_place);
    }
    for (size_t i = 0; i < part->node_count; i++) { /* two outputs, one node */
        if (i == 0 || part->nodes[i] != part->nodes[i - 1]) {
            part->nodes[kept++] = part->nodes[i];
        }
    }
    part->node_count = kept;
    return WEFT_OK;
}

/* Runs what a value depends on. All but the result is in an arena of this search. Contents are
 * found of single elements only. */
static weft_status_t evaluate(unroller_t *u, const char *name, weft_tensor_desc_t *out)
{
    wefti_onnx_file_t *file = u->file;
    Onnx__GraphProto graph = *file->model->graph;
    wefti_arena_t lasting = file->arena;
    part_t part = {.nodes = NULL};
    weft_status_t status;
    wefti_arena_init(&file->arena, file->allocator, lasting.budget_bytes);
    WEFT_TRY(status, find_part(u, &part, name), done);
    graph.node = wefti_arena_array(&file->arena, part.node_count + 1, sizeof(Onnx__NodeProto *));
    WEFT_TRY(status, graph.node != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY, done);
    for (size_t i = 0; i < part.node_count; i++) {
        graph.node[i] = u->nodes[part.nodes[i]];
    }
    graph.n_node = part.node_count;
    graph.initializer = part.tensors;
    graph.n_initializer = part.tensor_count;
    WEFT_TRY(status, file->look(file, &graph, name, out), done);
    if (weft_tensor_elem_count(out) != 1) {
        out->data = NULL;
    }
    if (out->data != NULL) {
        out->data = wefti_arena_memdup(&lasting, out->data, weft_dtype_size_bytes(out->dtype));
        status = out->data != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
    }
done:
    wefti_arena_deinit(&file->arena);
    file->arena = lasting;
    wefti_free(file->allocator, part.nodes);
    wefti_free(file->allocator, part.tensors);
    return status;
}

/* The type of a value, with contents if it is a constant of one element; dtype NONE: not known. */
static weft_status_t look(unroller_t *u, const char *name, weft_tensor_desc_t *out)
{
    wefti_onnx_file_t *file = u->file;
    uint32_t at = wefti_name_index_find(&u->index, name);
    fact_t *fact = at != WEFTI_NONE ? &u->facts[at] : NULL;
    weft_status_t status;
    if (fact != NULL && fact->known) {
        *out = fact->type;
        return WEFT_OK;
    }
    *out = (weft_tensor_desc_t){.dtype = WEFT_DTYPE_NONE};
    if (fact != NULL && fact->tensor != NULL) {
        status = wefti_onnx_tensor(file, fact->tensor, true, &file->arena, out);
    } else if (fact != NULL && is_op(u->nodes[fact->node], "Constant")) {
        status = wefti_onnx_constant(file, u->nodes[fact->node], &file->arena, out);
    } else {
        status = evaluate(u, name, out);
        if (status == WEFT_ERR_UNSUPPORTED || status == WEFT_ERR_NOT_FOUND) {
            *out = (weft_tensor_desc_t){.dtype = WEFT_DTYPE_NONE};
            return WEFT_OK;
        }
        WEFT_RETURN_IF_ERROR(status);
    }
    if (status < 0) {
        return wefti_error_prefix(status, "%s", file->label);
    }
    if (fact != NULL) {
        fact->known = true;
        fact->type = *out;
    }
    return WEFT_OK;
}

/* A constant number or truth value that node depends on; refused with why if it is not known. */
static weft_status_t find_number(unroller_t *u, const Onnx__NodeProto *node, const char *why,
                                 const char *name, int64_t *out)
{
    weft_tensor_desc_t type;
    WEFT_RETURN_IF_ERROR(look(u, name, &type));
    if (type.data == NULL || weft_tensor_elem_count(&type) != 1) {
        return refuse(u, node, why);
    }
    int32_t narrow;
    if (type.dtype == WEFT_DTYPE_I64) { /* of a file: not aligned */
        memcpy(out, type.data, sizeof(*out));
    } else if (type.dtype == WEFT_DTYPE_I32) {
        memcpy(&narrow, type.data, sizeof narrow);
        *out = narrow;
    } else if (type.dtype == WEFT_DTYPE_BOOL) {
        *out = *(const uint8_t *)type.data != 0;
    } else {
        return refuse(u, node, why);
    }
    return WEFT_OK;
}

/* ---- bodies ---- */

static weft_status_t add(unroller_t *u, const Onnx__NodeProto *node, const scope_t *scope,
                         scope_t *own);

static const char *name_of(const Onnx__TensorProto *tensor)
{
    return tensor->name != NULL ? tensor->name : "";
}

/* All iterations share the initializers of their body: a weight stays one weight. */
static weft_status_t hoist(unroller_t *u, const Onnx__GraphProto *body, scope_t *scope)
{
    char key[32];
    const char *unique;
    snprintf(key, sizeof key, "%p", (const void *)body);
    uint32_t first = wefti_name_index_find(&u->hoisted, key);
    if (first == WEFTI_NONE) {
        first = (uint32_t)u->constant_count;
        WEFT_RETURN_IF_ERROR(
            wefti_name_index_add(&u->hoisted, &u->file->arena, key, first, &unique));
        for (size_t i = 0; i < body->n_initializer; i++) {
            Onnx__TensorProto *copy =
                wefti_arena_memdup(&u->file->arena, body->initializer[i], sizeof(*copy));
            WEFT_RETURN_IF_NO_MEMORY(copy);
            copy->name = (char *)(uintptr_t)own_name(u, scope, name_of(copy));
            WEFT_RETURN_IF_NO_MEMORY(copy->name);
            WEFT_RETURN_IF_ERROR(push_constant(u, copy));
        }
    }
    for (size_t i = 0; i < body->n_initializer; i++) {
        WEFT_RETURN_IF_ERROR(
            define(u, scope, name_of(body->initializer[i]), u->constants[first + i]->name));
    }
    return WEFT_OK;
}

/* Nodes and initializers of a body, whose inputs scope defines. */
static weft_status_t add_body(unroller_t *u, const Onnx__GraphProto *body, scope_t *scope)
{
    WEFT_RETURN_IF_ERROR(hoist(u, body, scope));
    for (size_t i = 0; i < body->n_node; i++) {
        WEFT_RETURN_IF_ERROR(add(u, body->node[i], scope, scope));
    }
    return WEFT_OK;
}

static const char *output_of(const Onnx__GraphProto *body, size_t index)
{
    return index < body->n_output && body->output[index]->name != NULL ? body->output[index]->name
                                                                       : "";
}

/* Output index of a node gets a value. */
static weft_status_t give(unroller_t *u, const Onnx__NodeProto *node, scope_t *own, size_t index,
                          const char *op, const char *const *values, size_t count,
                          Onnx__AttributeProto *attribute)
{
    const char *name = index < node->n_output ? node->output[index] : "";
    if (name[0] == '\0') {
        return WEFT_OK;
    }
    if (own != NULL) {
        WEFT_RETURN_IF_ERROR(define(u, own, name, own_name(u, own, name)));
        name = own->names[own->count - 1];
    }
    return emit(u, op, values, count, name, attribute);
}

static weft_status_t add_if(unroller_t *u, const Onnx__NodeProto *node, const scope_t *scope,
                            scope_t *own)
{
    int64_t condition;
    if (node->n_input != 1) {
        return refuse(u, node, NO_CONDITION);
    }
    WEFT_RETURN_IF_ERROR(
        find_number(u, node, NO_CONDITION, resolve(scope, node->input[0]), &condition));
    const Onnx__GraphProto *body = body_of(node, condition != 0 ? "then_branch" : "else_branch");
    if (body == NULL || body->n_output < node->n_output) {
        return refuse(u, node, "the branch is missing, or has too few outputs");
    }
    scope_t inside;
    weft_status_t status;
    WEFT_TRY(status, open_scope(u, scope, &inside), done);
    WEFT_TRY(status, add_body(u, body, &inside), done);
    for (size_t i = 0; i < node->n_output; i++) {
        const char *value = resolve(&inside, output_of(body, i));
        WEFT_TRY(status, give(u, node, own, i, "Identity", &value, 1, NULL), done);
    }
done:
    close_scope(u, &inside);
    return status;
}

/* What iterations carry on and collect. */
typedef struct loop {
    const Onnx__NodeProto *node;
    const Onnx__GraphProto *body;
    size_t carried, collected;
    const char **state;   /* [carried] */
    const char **results; /* [collected][iterations], lists of one element */
    int64_t iterations, capacity;
} loop_t;

static weft_status_t start(unroller_t *u, loop_t *loop, int64_t capacity)
{
    size_t results = loop->collected * (size_t)capacity;
    loop->capacity = capacity;
    loop->state = wefti_arena_array(&u->file->arena, loop->carried + 1, sizeof(*loop->state));
    loop->results = wefti_arena_array(&u->file->arena, results + 1, sizeof(*loop->results));
    return loop->state == NULL || loop->results == NULL ? WEFT_ERR_NO_MEMORY : WEFT_OK;
}

/* value with a new dimension axis, of size 1. */
static weft_status_t lift(unroller_t *u, const scope_t *scope, const char *value, int64_t axis,
                          const char **out)
{
    const char *in[] = {value, number(u, axis, true)};
    *out = wefti_arena_printf(&u->file->arena, "body.%u/result.%zu", scope->number, u->count);
    WEFT_RETURN_IF_NO_MEMORY(in[1] && *out);
    if (wefti_onnx_opset(u->file->model, "") >= 13) {
        return emit(u, "Unsqueeze", in, 2, *out, NULL);
    }
    Onnx__AttributeProto *axes = wefti_onnx_make_integer(&u->file->arena, "axes", axis, true);
    WEFT_RETURN_IF_NO_MEMORY(axes);
    return emit(u, "Unsqueeze", in, 1, *out, axes);
}

/* After an iteration: outputs of the body, first of which are carried on. */
static weft_status_t carry(unroller_t *u, loop_t *loop, const scope_t *inside, size_t first,
                           const int64_t *axes)
{
    const char **next = wefti_arena_array(&u->file->arena, loop->carried + 1, sizeof(*next));
    WEFT_RETURN_IF_NO_MEMORY(next);
    for (size_t i = 0; i < loop->carried; i++) {
        next[i] = resolve(inside, output_of(loop->body, first + i));
    }
    for (size_t i = 0; i < loop->collected; i++) {
        WEFT_RETURN_IF_ERROR(
            lift(u, inside, resolve(inside, output_of(loop->body, first + loop->carried + i)),
                 axes != NULL ? axes[i] : 0,
                 &loop->results[i * (size_t)loop->capacity + (size_t)loop->iterations]));
    }
    loop->state = next;
    loop->iterations++;
    return WEFT_OK;
}

static weft_status_t finish(unroller_t *u, const loop_t *loop, scope_t *own, const int64_t *axes)
{
    for (size_t i = 0; i < loop->carried; i++) {
        WEFT_RETURN_IF_ERROR(give(u, loop->node, own, i, "Identity", &loop->state[i], 1, NULL));
    }
    for (size_t i = 0; i < loop->collected; i++) {
        Onnx__AttributeProto *axis = int_attribute(u, "axis", axes != NULL ? axes[i] : 0);
        WEFT_RETURN_IF_NO_MEMORY(axis);
        if (loop->iterations == 0) {
            return refuse(u, loop->node, "no iteration, so an output has no shape");
        }
        WEFT_RETURN_IF_ERROR(give(u, loop->node, own, loop->carried + i, "Concat",
                                  &loop->results[i * (size_t)loop->capacity],
                                  (size_t)loop->iterations, axis));
    }
    return WEFT_OK;
}

static weft_status_t add_loop(unroller_t *u, const Onnx__NodeProto *node, const scope_t *scope,
                              scope_t *own)
{
    loop_t loop = {.node = node, .body = body_of(node, "body")};
    int64_t count = MOST_ITERATIONS + 1, goes_on = 1;
    if (loop.body == NULL || node->n_input < 2 || loop.body->n_input != node->n_input ||
        loop.body->n_output < node->n_input - 1) {
        return refuse(u, node, "inputs and outputs do not match those of the body");
    }
    if (node->input[0][0] != '\0') {
        WEFT_RETURN_IF_ERROR(find_number(u, node, "the trip count is not a constant",
                                         resolve(scope, node->input[0]), &count));
    }
    loop.carried = node->n_input - 2;
    loop.collected = loop.body->n_output - 1 - loop.carried;
    const char *condition = resolve(scope, node->input[1]), *checked = NULL;
    if (condition[0] == '\0') {
        if (count > MOST_ITERATIONS && node->input[0][0] != '\0') {
            return refuse(u, node, "more than 4096 iterations");
        }
        condition = checked = truth(u);
        WEFT_RETURN_IF_NO_MEMORY(condition);
    }
    WEFT_RETURN_IF_ERROR(start(u, &loop,
                               count < 0                 ? 0
                               : count > MOST_ITERATIONS ? MOST_ITERATIONS
                                                         : count));
    for (size_t i = 0; i < loop.carried; i++) {
        loop.state[i] = resolve(scope, node->input[2 + i]);
    }
    while (loop.iterations < count) {
        if (condition != checked) {
            WEFT_RETURN_IF_ERROR(find_number(u, node, NO_CONDITION, condition, &goes_on));
        }
        checked = condition;
        if (goes_on == 0) {
            break;
        }
        if (loop.iterations == loop.capacity) {
            return refuse(u, node, "more than 4096 iterations");
        }
        scope_t inside;
        weft_status_t status;
        const char *i_name = number(u, loop.iterations, false);
        WEFT_TRY(status, open_scope(u, scope, &inside), close);
        for (size_t i = 0; i < node->n_input; i++) {
            const char *input = loop.body->input[i]->name != NULL ? loop.body->input[i]->name : "";
            WEFT_TRY(status,
                     define(u, &inside, input,
                            i == 0   ? i_name
                            : i == 1 ? condition
                                     : loop.state[i - 2]),
                     close);
        }
        WEFT_TRY(status, add_body(u, loop.body, &inside), close);
        /* Without a condition that of the body counts nevertheless. */
        condition = resolve(&inside, output_of(loop.body, 0));
        status = carry(u, &loop, &inside, 1, NULL);
    close:
        close_scope(u, &inside);
        if (status < 0) {
            return status;
        }
    }
    return finish(u, &loop, own, NULL);
}

/* An attribute of Scan with a number per operand. */
static int64_t of_list(const Onnx__NodeProto *node, const char *name, size_t index)
{
    const Onnx__AttributeProto *list = find_attribute(node, name);
    return list != NULL && index < list->n_ints ? list->ints[index] : 0;
}

static weft_status_t add_scan(unroller_t *u, const Onnx__NodeProto *node, const scope_t *scope,
                              scope_t *own)
{
    const Onnx__AttributeProto *scanned = find_attribute(node, "num_scan_inputs");
    loop_t loop = {.node = node, .body = body_of(node, "body")};
    const size_t scans = scanned != NULL && scanned->i > 0 ? (size_t)scanned->i : 0;
    weft_tensor_desc_t type;
    int64_t count = -1;
    if (wefti_onnx_opset(u->file->model, "") < 9) {
        return refuse(u, node, "Scan of opset 8 is not supported");
    }
    if (loop.body == NULL || scans == 0 || scans > node->n_input ||
        loop.body->n_input != node->n_input || loop.body->n_output < node->n_input - scans) {
        return refuse(u, node, "inputs and outputs do not match those of the body");
    }
    loop.carried = node->n_input - scans;
    loop.collected = loop.body->n_output - loop.carried;
    int64_t *axes = wefti_arena_array(&u->file->arena, loop.collected + 1, sizeof(*axes));
    WEFT_RETURN_IF_NO_MEMORY(axes);
    for (size_t i = 0; i < loop.collected; i++) {
        axes[i] = of_list(node, "scan_output_axes", i);
        if (of_list(node, "scan_output_directions", i) != 0) {
            return refuse(u, node, "attribute scan_output_directions is not supported");
        }
    }
    for (size_t i = 0; i < scans; i++) {
        int64_t axis = of_list(node, "scan_input_axes", i);
        const char *name = resolve(scope, node->input[loop.carried + i]);
        WEFT_RETURN_IF_ERROR(look(u, name, &type));
        if (type.dtype == WEFT_DTYPE_NONE) {
            return refuse(u, node, "the number of iterations is not known");
        }
        axis = axis < 0 ? axis + type.rank : axis;
        if (axis < 0 || axis >= type.rank || type.dims[axis] < 0 ||
            (count >= 0 && type.dims[axis] != count) || type.dims[axis] > MOST_ITERATIONS) {
            return refuse(u, node, "the number of iterations is not known, or above 4096");
        }
        count = type.dims[axis];
    }
    WEFT_RETURN_IF_ERROR(start(u, &loop, count));
    for (size_t i = 0; i < loop.carried; i++) {
        loop.state[i] = resolve(scope, node->input[i]);
    }
    while (loop.iterations < count) {
        scope_t inside;
        weft_status_t status;
        WEFT_TRY(status, open_scope(u, scope, &inside), close);
        for (size_t i = 0; i < node->n_input; i++) {
            const char *input = loop.body->input[i]->name != NULL ? loop.body->input[i]->name : "";
            const char *value = i < loop.carried ? loop.state[i] : own_name(u, &inside, input);
            WEFT_TRY(status, define(u, &inside, input, value), close);
            if (i >= loop.carried) {
                size_t k = i - loop.carried;
                bool back = of_list(node, "scan_input_directions", k) != 0;
                int64_t at = back ? count - 1 - loop.iterations : loop.iterations;
                const char *in[] = {resolve(scope, node->input[i]), number(u, at, false)};
                Onnx__AttributeProto *axis =
                    int_attribute(u, "axis", of_list(node, "scan_input_axes", k));
                status = axis == NULL ? WEFT_ERR_NO_MEMORY : emit(u, "Gather", in, 2, value, axis);
                if (status < 0) {
                    goto close;
                }
            }
        }
        WEFT_TRY(status, add_body(u, loop.body, &inside), close);
        status = carry(u, &loop, &inside, 0, axes);
    close:
        close_scope(u, &inside);
        if (status < 0) {
            return status;
        }
    }
    return finish(u, &loop, own, axes);
}

/* scope: where names of the node are looked up; own: the body that it is in, or NULL. */
static weft_status_t add(unroller_t *u, const Onnx__NodeProto *node, const scope_t *scope,
                         scope_t *own)
{
    if (is_op(node, "If")) {
        return add_if(u, node, scope, own);
    }
    if (is_op(node, "Loop")) {
        return add_loop(u, node, scope, own);
    }
    if (is_op(node, "Scan")) {
        return add_scan(u, node, scope, own);
    }
    if (own == NULL) {
        return push(u, (Onnx__NodeProto *)(uintptr_t)node);
    }
    if (is_op(node, "Identity") && node->n_input == 1 && node->n_output == 1) {
        return define(u, own, node->output[0], resolve(scope, node->input[0]));
    }
    wefti_arena_t *arena = &u->file->arena;
    Onnx__NodeProto *copy = wefti_arena_memdup(arena, node, sizeof(*node));
    char **names = wefti_arena_array(arena, node->n_input + node->n_output + 1, sizeof(*names));
    WEFT_RETURN_IF_NO_MEMORY(copy && names);
    copy->input = names;
    copy->output = names + node->n_input;
    for (size_t i = 0; i < node->n_input; i++) {
        copy->input[i] = (char *)(uintptr_t)resolve(scope, node->input[i]);
    }
    for (size_t i = 0; i < node->n_output; i++) {
        copy->output[i] = node->output[i];
        if (node->output[i][0] != '\0') {
            WEFT_RETURN_IF_ERROR(
                define(u, own, node->output[i], own_name(u, own, node->output[i])));
            copy->output[i] = (char *)(uintptr_t)own->names[own->count - 1];
        }
    }
    copy->name = (char *)(uintptr_t)own_name(
        u, own, node->name != NULL && node->name[0] != '\0' ? node->name : node->op_type);
    WEFT_RETURN_IF_NO_MEMORY(copy->name);
    return push(u, copy);
}

static bool has_bodies(const Onnx__GraphProto *graph)
{
    for (size_t i = 0; i < graph->n_node; i++) {
        const Onnx__NodeProto *node = graph->node[i];
        if (is_op(node, "If") || is_op(node, "Loop") || is_op(node, "Scan")) {
            return true;
        }
    }
    return false;
}

/* Both lists become those of the graph. */
static weft_status_t store(unroller_t *u)
{
    Onnx__GraphProto *graph = u->file->model->graph;
    wefti_arena_t *arena = &u->file->arena;
    size_t count = graph->n_initializer + u->constant_count;
    Onnx__NodeProto **nodes = wefti_arena_array(arena, u->count + 1, sizeof(*nodes));
    Onnx__TensorProto **tensors = wefti_arena_array(arena, count + 1, sizeof(*tensors));
    WEFT_RETURN_IF_NO_MEMORY(nodes && tensors);
    if (u->count > 0) {
        memcpy(nodes, u->nodes, u->count * sizeof(*nodes));
    }
    if (graph->n_initializer > 0) {
        memcpy(tensors, graph->initializer, graph->n_initializer * sizeof(*tensors));
    }
    if (u->constant_count > 0) {
        memcpy(tensors + graph->n_initializer, u->constants, u->constant_count * sizeof(*tensors));
    }
    graph->node = nodes;
    graph->n_node = u->count;
    graph->initializer = tensors;
    graph->n_initializer = count;
    return WEFT_OK;
}

weft_status_t wefti_onnx_unroll(wefti_onnx_file_t *file)
{
    unroller_t u = {.file = file};
    const Onnx__GraphProto *graph = file->model->graph;
    weft_status_t status = WEFT_OK;
    if (file->look == NULL || !has_bodies(graph)) {
        return WEFT_OK;
    }
    wefti_name_index_init(&u.index, file->allocator);
    wefti_name_index_init(&u.hoisted, file->allocator);
    for (size_t i = 0; i < graph->n_initializer && status >= 0; i++) {
        status =
            add_fact(&u, graph->initializer[i]->name, (fact_t){.tensor = graph->initializer[i]});
    }
    for (size_t i = 0; i < graph->n_node && status >= 0; i++) {
        status = add(&u, graph->node[i], NULL, NULL);
    }
    status = status < 0 ? status : store(&u);
    wefti_free(file->allocator, u.nodes);
    wefti_free(file->allocator, u.constants);
    wefti_free(file->allocator, u.facts);
    wefti_name_index_deinit(&u.index);
    wefti_name_index_deinit(&u.hoisted);
    return status;
}
