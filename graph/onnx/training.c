/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models with a training algorithm: training_info, or a Gradient operator (domain
 * ai.onnx.preview.training). The nodes that compute gradients and updates leave the graph, because
 * the passes differentiate and optimizer add their own. What they state stays: loss, parameters,
 * the update rule.
 *
 *   graph:     x, w --> MatMul --> y
 *   algorithm: y, label --> loss    Gradient(xs = w, y = loss) --> dw
 *              Adam(R, T, w, dw, V, H) --> w', V', H'    Add(T, 1) --> T'
 *   update_binding: w = w', V = V', H = H', T = T'
 */
#include "graph/onnx/internal.h"

#include <string.h>

#include "graph/ir.h"
#include "runtime/base/error.h"

#define DOMAIN "ai.onnx.preview.training"
#define MOST_STEPS (1 << 24) /* a float counts so far */

typedef struct training {
    wefti_onnx_file_t *file;
    const Onnx__TrainingInfoProto *info; /* NULL: a Gradient operator only */
    wefti_onnx_training_t *out;
    const wefti_onnx_initials_t *initials;
    size_t main_nodes;
    const Onnx__NodeProto *gradient; /* and its attributes */
    const Onnx__AttributeProto *xs;
    const Onnx__NodeProto *rule_node; /* the first node with the update rule */
    wefti_name_index_t producers;     /* name of an output -> node */
    wefti_name_index_t bindings;      /* initializer -> index of its update_binding */
    wefti_name_index_t gradients;     /* gradient -> index in xs */
    bool *bound;                      /* by binding: a rule of the table explains it */
} training_t;

static const char *op_of(const Onnx__NodeProto *node)
{
    return node->op_type != NULL ? node->op_type : "";
}

static bool is_training(const Onnx__NodeProto *node, const char *op)
{
    return node->domain != NULL && strcmp(node->domain, DOMAIN) == 0 &&
           (op == NULL || strcmp(op_of(node), op) == 0);
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

static float attribute_float(const Onnx__NodeProto *node, const char *name, float by_default)
{
    const Onnx__AttributeProto *attribute = find_attribute(node, name);
    return attribute != NULL ? attribute->f : by_default;
}

static weft_status_t refuse(const training_t *t, const Onnx__NodeProto *node, const char *what,
                            const char *name)
{
    return wefti_error(WEFT_ERR_UNSUPPORTED,
                       "%s: training_info: node '%.100s' (%.40s): %s '%.100s'", t->file->label,
                       node->name != NULL ? node->name : "", op_of(node), what, name);
}

static weft_status_t index_name(training_t *t, wefti_name_index_t *index, const char *name,
                                size_t id)
{
    const char *unique;
    return name[0] == '\0' || wefti_name_index_find(index, name) != WEFTI_NONE
               ? WEFT_OK
               : wefti_name_index_add(index, &t->file->arena, name, (uint32_t)id, &unique);
}

static const Onnx__NodeProto *producer(const training_t *t, const char *name)
{
    uint32_t node = wefti_name_index_find(&t->producers, name);
    return node == WEFTI_NONE ? NULL : t->file->model->graph->node[node];
}

/* ---- what the file states ---- */

static weft_status_t index_names(training_t *t)
{
    const Onnx__GraphProto *graph = t->file->model->graph;
    for (size_t i = 0; i < graph->n_node; i++) {
        for (size_t k = 0; k < graph->node[i]->n_output; k++) {
            WEFT_RETURN_IF_ERROR(index_name(t, &t->producers, graph->node[i]->output[k], i));
        }
    }
    size_t count = t->info != NULL ? t->info->n_update_binding : 0;
    t->bound = wefti_arena_array(&t->file->arena, count + 1, sizeof *t->bound);
    WEFT_RETURN_IF_NO_MEMORY(t->bound);
    for (size_t i = 0; i < count; i++) {
        const Onnx__StringStringEntryProto *entry = t->info->update_binding[i];
        if (entry->key == NULL || entry->value == NULL) {
            return wefti_error(WEFT_ERR_FORMAT, "%s: training_info: update_binding[%zu]: no name",
                               t->file->label, i);
        }
        WEFT_RETURN_IF_ERROR(index_name(t, &t->bindings, entry->key, i));
    }
    return WEFT_OK;
}

/* The gradients are those at the tensors that xs and zs name, so nothing else can be an input. */
static weft_status_t read_gradient(training_t *t)
{
    const Onnx__GraphProto *graph = t->file->model->graph;
    for (size_t i = 0; i < graph->n_node; i++) {
        if (is_training(graph->node[i], "Gradient")) {
            if (t->gradient != NULL) {
                return refuse(t, graph->node[i], "a second Gradient operator, after", "Gradient");
            }
            t->gradient = graph->node[i];
        }
    }
    if (t->gradient == NULL) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: training_info has no operator Gradient",
                           t->file->label);
    }
    const Onnx__AttributeProto *y = find_attribute(t->gradient, "y");
    const Onnx__AttributeProto *zs = find_attribute(t->gradient, "zs");
    t->xs = find_attribute(t->gradient, "xs");
    size_t z_count = zs != NULL ? zs->n_strings : 0;
    if (y == NULL || t->xs == NULL || t->xs->n_strings == 0 ||
        t->gradient->n_input != t->xs->n_strings + z_count ||
        t->gradient->n_output > t->xs->n_strings) {
        return wefti_error(WEFT_ERR_FORMAT,
                           "%s: node '%.100s' (Gradient): malformed: needs "
                           "attributes xs and y, and an input per name in xs and zs",
                           t->file->label, t->gradient->name != NULL ? t->gradient->name : "");
    }
    for (size_t i = 0; i < t->gradient->n_input; i++) {
        const ProtobufCBinaryData *name =
            i < t->xs->n_strings ? &t->xs->strings[i] : &zs->strings[i - t->xs->n_strings];
        const char *input = t->gradient->input[i];
        if (strlen(input) != name->len || memcmp(input, name->data, name->len) != 0) {
            return refuse(t, t->gradient,
                          "the gradient at another tensor than xs or zs names:", input);
        }
    }
    for (size_t i = 0; i < t->gradient->n_output; i++) {
        WEFT_RETURN_IF_ERROR(index_name(t, &t->gradients, t->gradient->output[i], i));
    }
    char *loss = wefti_arena_alloc(&t->file->arena, y->s.len + 1);
    WEFT_RETURN_IF_NO_MEMORY(loss);
    memcpy(loss, y->s.data, y->s.len);
    loss[y->s.len] = '\0';
    t->out->loss = loss;
    return WEFT_OK;
}

/* The contents of an initializer as initialization leaves it; *out_found false: there is none. */
static weft_status_t read_initializer(training_t *t, const char *name, weft_tensor_desc_t *out,
                                      bool *out_found)
{
    const Onnx__GraphProto *graph = t->file->model->graph;
    const weft_tensor_desc_t *initial = wefti_onnx_initial(t->initials, name);
    *out_found = true;
    if (initial != NULL) {
        *out = *initial;
        return WEFT_OK;
    }
    for (size_t i = 0; i < graph->n_initializer; i++) {
        const Onnx__TensorProto *tensor = graph->initializer[i];
        if (tensor->name != NULL && strcmp(tensor->name, name) == 0) {
            weft_status_t status = wefti_onnx_tensor(t->file, tensor, false, &t->file->arena, out);
            return status < 0 ? wefti_error_prefix(status, "%s", t->file->label) : WEFT_OK;
        }
    }
    *out_found = false;
    return WEFT_OK;
}

/* The update_binding of an initializer leads to this value? It is then explained. */
static weft_status_t use_binding(training_t *t, const Onnx__NodeProto *node, const char *name,
                                 const char *value)
{
    uint32_t binding = wefti_name_index_find(&t->bindings, name);
    if (binding == WEFTI_NONE || strcmp(t->info->update_binding[binding]->value, value) != 0) {
        return refuse(t, node, "update_binding does not store its result for", name);
    }
    t->bound[binding] = true;
    return WEFT_OK;
}

static bool same_shape(const weft_tensor_desc_t *a, const weft_tensor_desc_t *b)
{
    return a->rank == b->rank && memcmp(a->dims, b->dims, a->rank * sizeof a->dims[0]) == 0;
}

/* States have the shape of their parameter, and start at zero. */
static weft_status_t use_state(training_t *t, const Onnx__NodeProto *node, const char *parameter,
                               const char *name, const char *value)
{
    weft_tensor_desc_t tensor, whole;
    bool found;
    WEFT_RETURN_IF_ERROR(read_initializer(t, parameter, &whole, &found));
    if (!found) {
        return refuse(t, node, "no initializer of parameter", parameter);
    }
    WEFT_RETURN_IF_ERROR(use_binding(t, node, name, value));
    WEFT_RETURN_IF_ERROR(read_initializer(t, name, &tensor, &found));
    if (!found) {
        return refuse(t, node, "no initializer of state", name);
    }
    if (!same_shape(&tensor, &whole)) {
        return refuse(t, node, "the state must have the shape of its parameter:", name);
    }
    const char *bytes = tensor.data;
    size_t size = (size_t)weft_tensor_elem_count(&tensor) * weft_dtype_size_bytes(tensor.dtype);
    for (size_t i = 0; bytes != NULL && i < size; i++) {
        if (bytes[i] != 0) {
            return refuse(t, node, "the state must start at zero:", name);
        }
    }
    return WEFT_OK;
}

/* The learning rate: a number of the file, or an input, which is open. */
static weft_status_t use_rate(training_t *t, const Onnx__NodeProto *node, const char *name,
                              double *out_lr)
{
    weft_tensor_desc_t tensor;
    bool found;
    *out_lr = 0;
    WEFT_RETURN_IF_ERROR(read_initializer(t, name, &tensor, &found));
    if (found ? !wefti_tensor_number(&tensor, out_lr) || !(*out_lr > 0)
              : name[0] == '\0' || producer(t, name) != NULL) {
        return refuse(t, node, "the learning rate must be an input or a number above 0:", name);
    }
    return WEFT_OK;
}

/* Is it T + 1? */
static bool counts_up(training_t *t, const char *value, const char *name)
{
    const Onnx__NodeProto *add = producer(t, value);
    weft_tensor_desc_t one;
    bool found = false;
    if (add == NULL || strcmp(op_of(add), "Add") != 0 || add->n_input != 2) {
        return false;
    }
    bool first = strcmp(add->input[0], name) == 0;
    const char *other = add->input[first ? 1 : 0];
    if (!first && strcmp(add->input[1], name) != 0) {
        return false;
    }
    const Onnx__NodeProto *constant = producer(t, other);
    if (constant != NULL) {
        found = strcmp(op_of(constant), "Constant") == 0 &&
                wefti_onnx_constant(t->file, constant, &t->file->arena, &one) >= 0;
    } else if (read_initializer(t, other, &one, &found) < 0) {
        return false;
    }
    int64_t step;
    return found && wefti_onnx_integer(&one, &step) && step == 1;
}

/* The count of steps: its value in the first step. needed: the rule depends on it. */
static weft_status_t use_count(training_t *t, const Onnx__NodeProto *node, const char *name,
                               bool needed, int64_t *out_first)
{
    weft_tensor_desc_t tensor;
    bool found;
    uint32_t binding = wefti_name_index_find(&t->bindings, name);
    *out_first = 0;
    WEFT_RETURN_IF_ERROR(read_initializer(t, name, &tensor, &found));
    if (binding != WEFTI_NONE && counts_up(t, t->info->update_binding[binding]->value, name)) {
        t->bound[binding] = true;
    } else if (needed && (found || producer(t, name) != NULL)) {
        return refuse(t, node, "update_binding must add 1 to the count of steps", name);
    }
    if (found) {
        wefti_onnx_integer(&tensor, out_first);
    }
    return needed && (*out_first < 0 || *out_first > MOST_STEPS)
               ? refuse(t, node, "invalid count of steps", name)
               : WEFT_OK;
}

/* ---- update rules ---- */

static weft_attr_t float_attr(const char *name, float value)
{
    return (weft_attr_t){.name = name, .type = WEFT_ATTR_TYPE_FLOAT, .f = value};
}

static weft_attr_t int_attr(const char *name, int64_t value)
{
    return (weft_attr_t){.name = name, .type = WEFT_ATTR_TYPE_INT, .i = value};
}

static weft_status_t rule_momentum(training_t *t, const Onnx__NodeProto *node,
                                   wefti_update_rule_t *rule)
{
    const Onnx__AttributeProto *mode = find_attribute(node, "mode");
    bool nesterov = mode != NULL && mode->s.len == 8 && memcmp(mode->s.data, "nesterov", 8) == 0;
    if (attribute_float(node, "beta", 1.0f) != 1.0f) {
        return refuse(t, node, "only 1 is supported for attribute", "beta");
    }
    rule->kind = WEFTI_OPTIMIZER_MOMENTUM;
    rule->attrs[rule->attr_count++] = float_attr("momentum", attribute_float(node, "alpha", 0.0f));
    rule->attrs[rule->attr_count++] = int_attr("nesterov", nesterov);
    return WEFT_OK;
}

static weft_status_t rule_adagrad(training_t *t, const Onnx__NodeProto *node,
                                  wefti_update_rule_t *rule)
{
    int64_t first;
    float decay = attribute_float(node, "decay_factor", 0.0f);
    WEFT_RETURN_IF_ERROR(use_count(t, node, node->input[1], decay != 0, &first));
    rule->kind = WEFTI_OPTIMIZER_ADAGRAD;
    rule->attrs[rule->attr_count++] = float_attr("lr_decay", decay);
    rule->attrs[rule->attr_count++] =
        float_attr("epsilon", attribute_float(node, "epsilon", 1e-6f));
    rule->attrs[rule->attr_count++] = int_attr("first", decay != 0 ? first : 0);
    return WEFT_OK;
}

static weft_status_t rule_adam(training_t *t, const Onnx__NodeProto *node,
                               wefti_update_rule_t *rule)
{
    int64_t first;
    if (attribute_float(node, "norm_coefficient_post", 0.0f) != 0) {
        return refuse(t, node, "only 0 is supported for attribute", "norm_coefficient_post");
    }
    WEFT_RETURN_IF_ERROR(use_count(t, node, node->input[1], true, &first));
    rule->kind = WEFTI_OPTIMIZER_ADAM;
    rule->attrs[rule->attr_count++] = float_attr("beta1", attribute_float(node, "alpha", 0.9f));
    rule->attrs[rule->attr_count++] = float_attr("beta2", attribute_float(node, "beta", 0.999f));
    rule->attrs[rule->attr_count++] =
        float_attr("epsilon", attribute_float(node, "epsilon", 1e-6f));
    rule->attrs[rule->attr_count++] = int_attr("scaled_epsilon", 1);
    rule->attrs[rule->attr_count++] = int_attr("first", first);
    return WEFT_OK;
}

typedef weft_status_t (*rule_fn)(training_t *t, const Onnx__NodeProto *node,
                                 wefti_update_rule_t *rule);
static const struct {
    const char *op;
    uint32_t state_count;
    rule_fn rule;
} rules[] = {{"Momentum", 1, rule_momentum}, {"Adagrad", 1, rule_adagrad}, {"Adam", 2, rule_adam}};

bool wefti_onnx_same_rule(const wefti_update_rule_t *a, const wefti_update_rule_t *b)
{
    bool same = a->kind == b->kind && a->attr_count == b->attr_count &&
                memcmp(&a->lr, &b->lr, sizeof a->lr) == 0 &&
                memcmp(&a->clip_norm, &b->clip_norm, sizeof a->clip_norm) == 0;
    for (uint32_t i = 0; same && i < a->attr_count; i++) {
        same = a->attrs[i].i == b->attrs[i].i &&
               memcmp(&a->attrs[i].f, &b->attrs[i].f, sizeof a->attrs[i].f) == 0;
    }
    return same;
}

/* All parameters have one rule. */
static weft_status_t take_rule(training_t *t, const Onnx__NodeProto *node,
                               const wefti_update_rule_t *rule)
{
    if (t->rule_node == NULL) {
        t->rule_node = node;
        t->out->rule = *rule;
        return WEFT_OK;
    }
    return wefti_onnx_same_rule(&t->out->rule, rule)
               ? WEFT_OK
               : refuse(t, node, "another update rule than that of node",
                        t->rule_node->name != NULL ? t->rule_node->name : "");
}

/* The gradient must be that of the parameter; its update the result of the rule. */
static weft_status_t take_parameter(training_t *t, const Onnx__NodeProto *node, const char *name,
                                    const char *gradient, const char *value)
{
    uint32_t x = wefti_name_index_find(&t->gradients, gradient);
    if (x == WEFTI_NONE) {
        return refuse(t, node, "not an output of Gradient:", gradient);
    }
    if (strcmp(t->gradient->input[x], name) != 0) {
        return refuse(t, node, "updated by the gradient of another parameter:", name);
    }
    WEFT_RETURN_IF_ERROR(use_binding(t, node, name, value));
    t->out->trained[t->out->trained_count++] = t->gradient->input[x];
    return WEFT_OK;
}

static weft_status_t take_optimizer(training_t *t, const Onnx__NodeProto *node)
{
    size_t r = 0;
    wefti_update_rule_t rule = {.stated = true};
    while (r < sizeof rules / sizeof *rules && strcmp(op_of(node), rules[r].op) != 0) {
        r++;
    }
    if (r == sizeof rules / sizeof *rules) {
        return refuse(t, node, "unsupported operator of domain", DOMAIN);
    }
    size_t states = rules[r].state_count, tensors = states + 2;
    size_t count = node->n_input > 2 ? (node->n_input - 2) / tensors : 0;
    if (count == 0 || node->n_input != 2 + count * tensors ||
        node->n_output != count * (states + 1)) {
        return refuse(t, node, "wrong number of inputs or outputs of", op_of(node));
    }
    WEFT_RETURN_IF_ERROR(use_rate(t, node, node->input[0], &rule.lr));
    WEFT_RETURN_IF_ERROR(rules[r].rule(t, node, &rule));
    rule.attrs[rule.attr_count++] =
        float_attr("weight_decay", attribute_float(node, "norm_coefficient", 0.0f));
    WEFT_RETURN_IF_ERROR(take_rule(t, node, &rule));
    int64_t first; /* a count that the rule does not read may be counted, too */
    WEFT_RETURN_IF_ERROR(use_count(t, node, node->input[1], false, &first));
    char *const *inputs = node->input + 2;
    for (size_t i = 0; i < count; i++) {
        WEFT_RETURN_IF_ERROR(
            take_parameter(t, node, inputs[i], inputs[count + i], node->output[i]));
        for (size_t s = 0; s < states; s++) {
            WEFT_RETURN_IF_ERROR(use_state(t, node, inputs[i], inputs[(2 + s) * count + i],
                                           node->output[(1 + s) * count + i]));
        }
    }
    return WEFT_OK;
}

/* Sub(x, Mul(R, dx)), factors in any order: gradient descent. */
static weft_status_t take_descent(training_t *t, size_t x)
{
    const char *name = t->gradient->input[x], *gradient = t->gradient->output[x];
    uint32_t binding = wefti_name_index_find(&t->bindings, name);
    if (binding == WEFTI_NONE || t->bound[binding]) {
        return WEFT_OK;
    }
    const char *value = t->info->update_binding[binding]->value;
    const Onnx__NodeProto *sub = producer(t, value);
    const Onnx__NodeProto *mul = sub == NULL || sub->n_input != 2 ||
                                         strcmp(op_of(sub), "Sub") != 0 ||
                                         strcmp(sub->input[0], name) != 0
                                     ? NULL
                                     : producer(t, sub->input[1]);
    if (mul == NULL || mul->n_input != 2 || strcmp(op_of(mul), "Mul") != 0) {
        return WEFT_OK; /* check_bindings names it */
    }
    wefti_update_rule_t rule = {.stated = true, .kind = WEFTI_OPTIMIZER_SGD};
    size_t factor = strcmp(mul->input[0], gradient) == 0 ? 1 : 0;
    WEFT_RETURN_IF_ERROR(use_rate(t, mul, mul->input[factor], &rule.lr));
    WEFT_RETURN_IF_ERROR(take_rule(t, sub, &rule));
    return take_parameter(t, sub, name, mul->input[1 - factor], value);
}

/* Running statistics of BatchNormalization are updated by the pass optimizer. */
static weft_status_t check_bindings(training_t *t)
{
    for (size_t i = 0; t->info != NULL && i < t->info->n_update_binding; i++) {
        const Onnx__StringStringEntryProto *entry = t->info->update_binding[i];
        const Onnx__NodeProto *node = producer(t, entry->value);
        bool norm = node != NULL && strcmp(op_of(node), "BatchNormalization") == 0;
        if (!t->bound[i] && !norm) {
            return wefti_error(
                WEFT_ERR_UNSUPPORTED,
                "%s: training_info: update_binding '%.100s' = '%.100s': not the result of "
                "Momentum, "
                "Adagrad, Adam or Sub(parameter, Mul(rate, gradient)), nor a count of steps",
                t->file->label, entry->key, entry->value);
        }
    }
    return WEFT_OK;
}

static weft_status_t read_updates(training_t *t)
{
    const Onnx__GraphProto *graph = t->file->model->graph;
    size_t updated = 0;
    for (size_t i = 0; i < graph->n_node; i++) {
        const Onnx__NodeProto *node = graph->node[i];
        updated += is_training(node, NULL) && node != t->gradient ? node->n_input : 0;
    }
    t->out->trained =
        wefti_arena_array(&t->file->arena, updated + t->xs->n_strings + 1, sizeof *t->out->trained);
    WEFT_RETURN_IF_NO_MEMORY(t->out->trained);
    if (t->info == NULL) { /* a Gradient operator: options have the update rule */
        for (size_t i = 0; i < t->gradient->n_output; i++) {
            t->out->trained[t->out->trained_count++] = t->gradient->input[i];
        }
        return WEFT_OK;
    }
    for (size_t i = 0; i < graph->n_node; i++) {
        const Onnx__NodeProto *node = graph->node[i];
        if (is_training(node, NULL) && node != t->gradient) {
            WEFT_RETURN_IF_ERROR(take_optimizer(t, node));
        }
    }
    for (size_t i = 0; i < t->gradient->n_output; i++) {
        WEFT_RETURN_IF_ERROR(take_descent(t, i));
    }
    WEFT_RETURN_IF_ERROR(check_bindings(t));
    if (t->out->trained_count == 0) {
        return wefti_error(WEFT_ERR_UNSUPPORTED, "%s: training_info updates no parameter",
                           t->file->label);
    }
    return WEFT_OK;
}

/* ---- what remains of the graph ---- */

/* kept: names that the remaining nodes read; dropped: those of the others. */
typedef struct names {
    wefti_name_index_t kept, dropped;
} names_t;

static bool is_in(const wefti_name_index_t *index, const char *name)
{
    return name != NULL && wefti_name_index_find(index, name) != WEFTI_NONE;
}

/* Nodes of the graph, and of the algorithm those that the loss depends on. */
static weft_status_t keep_nodes(training_t *t, names_t *names)
{
    Onnx__GraphProto *graph = t->file->model->graph;
    size_t kept = graph->n_node;
    WEFT_RETURN_IF_ERROR(index_name(t, &names->kept, t->out->loss, 0));
    for (size_t i = graph->n_node; i-- > 0;) { /* from the last one; the kept move to the end */
        Onnx__NodeProto *node = graph->node[i];
        bool needed = i < t->main_nodes;
        for (size_t k = 0; k < node->n_output; k++) {
            needed = needed || is_in(&names->kept, node->output[k]);
        }
        needed = needed && !is_training(node, NULL);
        for (size_t k = 0; k < node->n_input; k++) {
            if (needed && is_in(&t->gradients, node->input[k])) {
                return refuse(t, node, "reads a result of Gradient:", node->input[k]);
            }
            WEFT_RETURN_IF_ERROR(
                index_name(t, needed ? &names->kept : &names->dropped, node->input[k], 0));
        }
        if (needed) {
            graph->node[--kept] = node;
        }
    }
    graph->n_node -= kept;
    memmove(graph->node, graph->node + kept, graph->n_node * sizeof *graph->node);
    return WEFT_OK;
}

static bool produced(const training_t *t, const char *name, const names_t *names)
{
    return name != NULL && !is_in(&t->gradients, name) &&
           (is_in(&names->kept, name) || !is_in(&names->dropped, name));
}

/* Inputs, initializers and outputs without the tensors of the updates. */
static void keep_values(const training_t *t, const names_t *names)
{
    Onnx__GraphProto *graph = t->file->model->graph;
    size_t kept = 0;
    for (size_t i = 0; i < graph->n_initializer; i++) {
        if (produced(t, graph->initializer[i]->name, names)) {
            graph->initializer[kept++] = graph->initializer[i];
        }
    }
    graph->n_initializer = kept;
    kept = 0;
    for (size_t i = 0; i < graph->n_input; i++) {
        if (produced(t, graph->input[i]->name, names)) {
            graph->input[kept++] = graph->input[i];
        }
    }
    graph->n_input = kept;
    kept = 0;
    for (size_t i = 0; i < graph->n_output; i++) {
        if (!is_in(&t->gradients, graph->output[i]->name)) {
            graph->output[kept++] = graph->output[i];
        }
    }
    graph->n_output = kept;
}

static weft_status_t shorten(training_t *t)
{
    names_t names;
    wefti_name_index_init(&names.kept, t->file->arena.allocator);
    wefti_name_index_init(&names.dropped, t->file->arena.allocator);
    weft_status_t status = keep_nodes(t, &names);
    if (status >= 0) {
        keep_values(t, &names);
    }
    wefti_name_index_deinit(&names.kept);
    wefti_name_index_deinit(&names.dropped);
    return status;
}

static weft_status_t join(training_t *t)
{
    Onnx__ModelProto *model = t->file->model;
    if (model->n_training_info > 1) {
        return wefti_error(WEFT_ERR_UNSUPPORTED,
                           "%s: unsupported training_info: %zu algorithms, at most one",
                           t->file->label, model->n_training_info);
    }
    t->main_nodes = model->graph->n_node;
    if (model->n_training_info == 0) {
        return WEFT_OK;
    }
    t->info = model->training_info[0];
    const Onnx__GraphProto *outputs = model->graph;
    t->out->logits = outputs->n_output > 0 ? outputs->output[0]->name : NULL;
    return t->info->algorithm == NULL
               ? wefti_error(WEFT_ERR_UNSUPPORTED, "%s: training_info has no algorithm",
                             t->file->label)
               : wefti_onnx_join_algorithm(t->file, t->info->algorithm);
}

static bool has_algorithm(const Onnx__ModelProto *model)
{
    bool has = model->n_training_info > 0;
    for (size_t i = 0; i < model->graph->n_node && !has; i++) {
        has = is_training(model->graph->node[i], "Gradient");
    }
    return has;
}

weft_status_t wefti_onnx_training(wefti_onnx_file_t *file, const wefti_onnx_initials_t *initials,
                                  wefti_onnx_training_t *out)
{
    weft_status_t status;
    training_t t = {.file = file, .out = out, .initials = initials};
    wefti_name_index_t *const indexes[] = {&t.producers, &t.bindings, &t.gradients};
    *out = (wefti_onnx_training_t){0};
    if (!has_algorithm(file->model)) {
        return WEFT_OK;
    }
    for (size_t i = 0; i < sizeof indexes / sizeof *indexes; i++) {
        wefti_name_index_init(indexes[i], file->arena.allocator);
    }
    WEFT_TRY(status, join(&t), done);
    WEFT_TRY(status, index_names(&t), done);
    WEFT_TRY(status, read_gradient(&t), done);
    WEFT_TRY(status, read_updates(&t), done);
    WEFT_TRY(status, shorten(&t), done);
    file->model->n_training_info = 0;
done:
    for (size_t i = 0; i < sizeof indexes / sizeof *indexes; i++) {
        wefti_name_index_deinit(indexes[i]);
    }
    return status;
}

const weft_tensor_desc_t *wefti_onnx_initial(const wefti_onnx_initials_t *initials,
                                             const char *name)
{
    for (size_t i = 0; i < initials->count; i++) {
        if (name != NULL && strcmp(initials->names[i], name) == 0) {
            return &initials->types[i];
        }
    }
    return NULL;
}
