/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which floating-point initializers are trained.
 *
 *   1. What the exporter marks: "weft.trained" of weft.export; with torch.export the kind of each
 *      value (PARAMETER, BUFFER) and the signature of the program, which also tells which
 *      parameters were folded into others or left out.
 *   2. Without marks, names (tensor_names.c) and places: "layer1.0.weight" is a parameter of a
 *      module, "onnx::Mul_12" a number of an expression, the second input of a MatMul a weight.
 *   3. Otherwise a guess, also for "enc.B", which is a parameter or a buffer of a module.
 *
 * Marks are fields of ONNX 1.16, read from the bytes of the file, so that they do not depend on the
 * .proto file of the build.
 */
#include "graph/onnx/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/base/half.h"

enum { MODEL_GRAPH = 7, MODEL_METADATA = 14 };
enum { GRAPH_VALUE_INFO = 13, GRAPH_METADATA = 16 };
enum { INFO_NAME = 1, INFO_METADATA = 4 };
enum { ENTRY_KEY = 1, ENTRY_VALUE = 2 };

#define TORCH_KIND "pkg.torch.export.graph_signature.InputSpec.kind"
#define TORCH_SIGNATURE "pkg.torch.export.ExportedProgram.graph_signature"
#define FOLDED_FROM "pkg.onnxscript.optimizer.folded_from"
#define TRAINED "weft.trained"

/* How a value is used, the strongest last. */
typedef enum place {
    PLACE_NONE,
    PLACE_BIAS,
    PLACE_WEIGHT,
    PLACE_STATISTIC,
    PLACE_RUNNING, /* a statistic that a step updates */
} place_t;

typedef enum mark { MARK_NONE, MARK_PARAMETER, MARK_BUFFER } mark_t;

typedef struct params {
    wefti_onnx_file_t *file;
    wefti_arena_t *arena; /* of the result */
    wefti_arena_t scratch;
    wefti_name_index_t initializers; /* name -> index */
    wefti_name_index_t places;       /* name -> place_t */
    wefti_name_index_t products;     /* outputs of matrix products and convolutions */
    wefti_name_index_t signature;    /* name -> mark_t, of torch.export */
    wefti_name_index_t trained;      /* names of weft.trained */
    wefti_name_index_t tied;         /* originals -> the first of file->ties */
    bool listed, signed_;            /* the file has weft.trained, a signature */
    bool folded;                     /* the exporter's optimizer ran */
    mark_t *marks;                   /* by initializer */
    char **sources;                  /* by initializer: what it was folded from */
    uint32_t *fixed_norms;           /* by initializer, see wefti_parameter_t */
    uint32_t *tie_counts;            /* by tie that is the first of an original: how many it has */
} params_t;

/* ---- marks in the bytes of the file ---- */

static char *copy_text(params_t *p, const wefti_onnx_field_t *field)
{
    char *text = wefti_arena_alloc(&p->scratch, field->size_bytes + 1);
    if (text != NULL) {
        memcpy(text, field->payload, field->size_bytes);
        text[field->size_bytes] = '\0';
    }
    return text;
}

/* The texts of an entry of metadata_props; an absent one is an empty field. */
static void read_entry(const wefti_onnx_field_t *entry, wefti_onnx_field_t *key,
                       wefti_onnx_field_t *value)
{
    wefti_onnx_cursor_t in = wefti_onnx_inside(entry);
    wefti_onnx_field_t field;
    *key = *value = (wefti_onnx_field_t){.payload = (const uint8_t *)""};
    while (wefti_onnx_next_message(&in, &field)) {
        if (field.id == ENTRY_KEY || field.id == ENTRY_VALUE) {
            *(field.id == ENTRY_KEY ? key : value) = field;
        }
    }
}

static bool is_text(const wefti_onnx_field_t *field, const char *text)
{
    return field->size_bytes == strlen(text) &&
           memcmp(field->payload, text, field->size_bytes) == 0;
}

static weft_status_t add_name(params_t *p, wefti_name_index_t *index, const char *name, uint32_t id)
{
    const char *unique;
    return wefti_name_index_find(index, name) != WEFTI_NONE
               ? WEFT_OK
               : wefti_name_index_add(index, &p->scratch, name, id, &unique);
}

/* Lines such as "p_fc_weight: PARAMETER target='fc.weight'". */
static weft_status_t read_signature(params_t *p, char *text)
{
    p->signed_ = true;
    for (char *line; (line = strsep(&text, "\n")) != NULL;) {
        static const char target[] = " target='";
        char *at = strstr(line, target);
        char *end = at != NULL ? strchr(at + sizeof target - 1, '\'') : NULL;
        if (end == NULL) {
            continue;
        }
        mark_t mark = strstr(line, ": PARAMETER ") != NULL ? MARK_PARAMETER : MARK_BUFFER;
        *end = '\0';
        WEFT_RETURN_IF_ERROR(add_name(p, &p->signature, at + sizeof target - 1, (uint32_t)mark));
    }
    return WEFT_OK;
}

static weft_status_t read_trained(params_t *p, char *text)
{
    p->listed = true;
    for (char *name; (name = strsep(&text, ",")) != NULL;) {
        WEFT_RETURN_IF_ERROR(add_name(p, &p->trained, name, 0));
    }
    return WEFT_OK;
}

static weft_status_t read_value_info(params_t *p, const wefti_onnx_field_t *info)
{
    wefti_onnx_cursor_t in = wefti_onnx_inside(info);
    wefti_onnx_field_t field, key, value, name = {0}, kind = {0}, source = {0};
    while (wefti_onnx_next_message(&in, &field)) {
        if (field.id == INFO_NAME) {
            name = field;
        } else if (field.id == INFO_METADATA) {
            read_entry(&field, &key, &value);
            kind = is_text(&key, TORCH_KIND) ? value : kind;
            source = is_text(&key, FOLDED_FROM) ? value : source;
        }
    }
    p->folded = p->folded || source.payload != NULL;
    if (name.payload == NULL || (kind.payload == NULL && source.payload == NULL)) {
        return WEFT_OK;
    }
    const char *text = copy_text(p, &name);
    WEFT_RETURN_IF_NO_MEMORY(text);
    uint32_t index = wefti_name_index_find(&p->initializers, text);
    if (index != WEFTI_NONE && kind.payload != NULL) {
        p->marks[index] = is_text(&kind, "PARAMETER") ? MARK_PARAMETER : MARK_BUFFER;
    }
    if (index != WEFTI_NONE && source.payload != NULL) {
        p->sources[index] = copy_text(p, &source);
        WEFT_RETURN_IF_NO_MEMORY(p->sources[index]);
    }
    return WEFT_OK;
}

/* An entry of metadata_props, if it has key. */
static weft_status_t read_property(params_t *p, const wefti_onnx_field_t *entry, const char *key,
                                   weft_status_t (*read)(params_t *p, char *text))
{
    wefti_onnx_field_t found, value;
    read_entry(entry, &found, &value);
    if (!is_text(&found, key)) {
        return WEFT_OK;
    }
    char *text = copy_text(p, &value);
    WEFT_RETURN_IF_NO_MEMORY(text);
    return read(p, text);
}

static weft_status_t read_graph(params_t *p, const wefti_onnx_field_t *graph)
{
    wefti_onnx_cursor_t in = wefti_onnx_inside(graph);
    wefti_onnx_field_t field;
    while (wefti_onnx_next_message(&in, &field)) {
        if (field.id == GRAPH_VALUE_INFO) {
            WEFT_RETURN_IF_ERROR(read_value_info(p, &field));
        } else if (field.id == GRAPH_METADATA) {
            WEFT_RETURN_IF_ERROR(read_property(p, &field, TORCH_SIGNATURE, read_signature));
        }
    }
    return WEFT_OK;
}

static weft_status_t read_marks(params_t *p)
{
    wefti_onnx_cursor_t in = {p->file->data, p->file->data + p->file->size_bytes};
    wefti_onnx_field_t field;
    while (wefti_onnx_next_message(&in, &field)) {
        if (field.id == MODEL_GRAPH) {
            WEFT_RETURN_IF_ERROR(read_graph(p, &field));
        } else if (field.id == MODEL_METADATA) {
            WEFT_RETURN_IF_ERROR(read_property(p, &field, TRAINED, read_trained));
        }
    }
    return WEFT_OK;
}

/* ---- places ---- */

typedef struct op_places {
    const char *op;
    bool product;    /* its output is one: an addend of it is a bias */
    uint8_t weights; /* bits of inputs */
    uint8_t statistics;
} op_places_t;

static const op_places_t *places_of(const Onnx__NodeProto *node)
{
    static const op_places_t table[] = {
        {"MatMul", true, 3, 0},
        {"Gemm", true, 7, 0},
        {"Conv", true, 6, 0},
        {"ConvTranspose", true, 6, 0},
        {"Gather", false, 1, 0},
        {"BatchNormalization", false, 6, 24},
        {"BatchNormInternal", false, 6, 24}, /* of com.microsoft */
        {"LayerNormalization", false, 6, 0},
        {"InstanceNormalization", false, 6, 0},
        {"GroupNormalization", false, 6, 0},
        {"RMSNormalization", false, 2, 0},
        {"PRelu", false, 2, 0},
        {"LSTM", false, 14, 0},
        {"GRU", false, 14, 0},
        {"RNN", false, 14, 0},
    };
    const char *domain = wefti_onnx_domain(node->domain);
    const bool known = domain[0] == '\0' || strcmp(domain, "com.microsoft") == 0;
    for (size_t i = 0; i < sizeof table / sizeof *table && known; i++) {
        if (node->op_type != NULL && strcmp(node->op_type, table[i].op) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

static bool is_one_of(const char *text, const char *const *words)
{
    while (*words != NULL && strcmp(*words, text) != 0) {
        words++;
    }
    return *words != NULL;
}

/* Its first input is used as its output is. */
static bool passes_on(const Onnx__NodeProto *node)
{
    static const char *const ops[] = {"Transpose", "Reshape",   "Identity", "Cast", "CastLike",
                                      "Flatten",   "Unsqueeze", "Squeeze",  NULL};
    return node->op_type != NULL && is_one_of(node->op_type, ops);
}

/* Does BatchNormalization compute statistics of the batch? Before opset 14 its outputs tell. */
static bool trains_statistics(const params_t *p, const Onnx__NodeProto *node)
{
    for (size_t i = 0; i < node->n_attribute; i++) {
        const char *name = node->attribute[i]->name;
        if (name != NULL && strcmp(name, "training_mode") == 0) {
            return node->attribute[i]->i != 0;
        }
    }
    return wefti_onnx_opset(p->file->model, "") < 14 && node->n_output > 1;
}

static weft_status_t raise_place(params_t *p, const char *name, place_t place)
{
    uint32_t has = wefti_name_index_find(&p->places, name);
    if (name[0] == '\0' || place == PLACE_NONE || (has != WEFTI_NONE && has >= (uint32_t)place)) {
        return WEFT_OK;
    }
    if (has != WEFTI_NONE) {
        wefti_name_index_remove(&p->places, name);
    }
    return add_name(p, &p->places, name, (uint32_t)place);
}

static place_t place_of(const params_t *p, const char *name)
{
    uint32_t place = wefti_name_index_find(&p->places, name);
    return place == WEFTI_NONE ? PLACE_NONE : (place_t)place;
}

/* Counts a BatchNormalization in evaluation form for its scale. */
static void count_fixed(params_t *p, const Onnx__NodeProto *node)
{
    const op_places_t *known = places_of(node);
    if (known != NULL && known->statistics != 0 && node->n_input > 1 &&
        !trains_statistics(p, node)) {
        uint32_t scale = wefti_name_index_find(&p->initializers, node->input[1]);
        if (scale != WEFTI_NONE) {
            p->fixed_norms[scale]++;
        }
    }
}

static weft_status_t visit_inputs(params_t *p, const Onnx__NodeProto *node)
{
    const op_places_t *known = places_of(node);
    bool passes = known == NULL && passes_on(node) && node->n_output > 0;
    place_t statistic = trains_statistics(p, node) ? PLACE_RUNNING : PLACE_STATISTIC;
    bool adds = node->op_type != NULL && strcmp(node->op_type, "Add") == 0 && node->n_input == 2;
    for (size_t k = 0; k < node->n_input && k < 8; k++) {
        place_t place = PLACE_NONE;
        if (known != NULL) {
            place = known->statistics >> k & 1 ? statistic
                    : known->weights >> k & 1  ? PLACE_WEIGHT
                                               : PLACE_NONE;
        } else if (adds && wefti_name_index_find(&p->products, node->input[1 - k]) != WEFTI_NONE) {
            place = PLACE_BIAS;
        } else if (passes && k == 0) {
            place = place_of(p, node->output[0]);
        }
        WEFT_RETURN_IF_ERROR(raise_place(p, node->input[k], place));
    }
    return WEFT_OK;
}

/* Nodes are in topological order: from the end, readers come before producers. */
static weft_status_t find_places(params_t *p)
{
    const Onnx__GraphProto *graph = p->file->model->graph;
    for (size_t i = 0; i < graph->n_node; i++) {
        const op_places_t *known = places_of(graph->node[i]);
        if (known != NULL && known->product && graph->node[i]->n_output > 0) {
            WEFT_RETURN_IF_ERROR(add_name(p, &p->products, graph->node[i]->output[0], 0));
        }
    }
    for (size_t i = graph->n_node; i-- > 0;) {
        WEFT_RETURN_IF_ERROR(visit_inputs(p, graph->node[i]));
        count_fixed(p, graph->node[i]);
    }
    return WEFT_OK;
}

/* ---- verdicts ---- */

static void set(wefti_parameter_t *out, bool trained, bool guess, const char *why)
{
    out->trained = trained;
    out->guess = guess;
    out->why = why;
}

static double element(const weft_tensor_desc_t *tensor, size_t at)
{
    const size_t size = weft_dtype_size_bytes(tensor->dtype);
    const uint8_t *from = (const uint8_t *)tensor->data + at * size;
    uint16_t half;
    float single;
    double value;
    switch (tensor->dtype) {
    case WEFT_DTYPE_F32:
        memcpy(&single, from, sizeof single);
        return (double)single;
    case WEFT_DTYPE_F64:
        memcpy(&value, from, sizeof value);
        return value;
    default:
        memcpy(&half, from, sizeof half);
        return (double)(tensor->dtype == WEFT_DTYPE_F16 ? wefti_f16_to_f32(half)
                                                        : wefti_bf16_to_f32(half));
    }
}

/* May a tensor of an expression hold a parameter that the exporter folded, such as the rows of a
 * table of position biases? Masks (0 and -inf, 0 and 1), ranges and one number repeated do not. */
static weft_status_t may_hold_parameter(params_t *p, const Onnx__TensorProto *tensor, bool *out)
{
    weft_tensor_desc_t type;
    *out = false;
    weft_status_t status = wefti_onnx_tensor(p->file, tensor, true, &p->scratch, &type);
    if (status < 0 || type.data == NULL) { /* the import reports it */
        return status == WEFT_ERR_NO_MEMORY ? status : WEFT_OK;
    }
    size_t count = 1;
    for (uint32_t d = 0; d < type.rank; d++) {
        count *= (size_t)type.dims[d];
    }
    bool equal = true, whole = true;
    for (size_t i = 0; i < count && (equal || whole); i++) {
        double value = element(&type, i);
        equal = equal && value == element(&type, 0);
        whole = whole && floor(value) == value;
    }
    *out = !equal && !whole;
    return WEFT_OK;
}

/* The first parameter among "['fc.weight', 'val_3']", or NULL. Takes the text apart. */
static const char *folded_parameter(const params_t *p, char *text)
{
    for (char *part; (part = strsep(&text, "'")) != NULL;) {
        if (wefti_name_index_find(&p->signature, part) == MARK_PARAMETER) {
            return part;
        }
    }
    return NULL;
}

static void judge_signed(params_t *p, wefti_parameter_t *out, uint32_t index, place_t place)
{
    const char *from = folded_parameter(p, p->sources[index]);
    uint32_t mark = p->marks[index] != MARK_NONE ? (uint32_t)p->marks[index]
                                                 : wefti_name_index_find(&p->signature, out->name);
    if (mark == MARK_PARAMETER) {
        set(out, true, false, "the exporter marks it as a parameter");
    } else if (mark == MARK_BUFFER) {
        set(out, false, false, "the exporter marks it as a buffer or constant");
    } else if (from != NULL) {
        /* One that exists beside its source would be trained apart from it. */
        bool weight = place == PLACE_WEIGHT;
        bool moved = weight && wefti_name_index_find(&p->initializers, from) == WEFTI_NONE;
        if (moved) {
            wefti_name_index_remove(&p->signature, from); /* it is not missing */
        }
        set(out, weight, !moved,
            wefti_arena_printf(p->arena, "the exporter computed it from '%.200s'", from));
    } else if (place == PLACE_WEIGHT) {
        set(out, true, true, "the exporter does not mark it, but it is in the place of a weight");
    } else {
        set(out, false, false, "the exporter does not mark it as a parameter");
    }
}

static weft_status_t judge_made_up(params_t *p, wefti_parameter_t *out, place_t place)
{
    bool weight = place == PLACE_WEIGHT && out->type.rank > 0, guess = false;
    if (!weight) {
        WEFT_RETURN_IF_ERROR(
            may_hold_parameter(p, p->file->model->graph->initializer[out->value], &guess));
    }
    set(out, weight, guess,
        weight  ? "a weight by its place, which the exporter computed"
        : guess ? "of an expression, or of a parameter that the exporter folded"
                : "of an expression");
    return WEFT_OK;
}

/* torch names tensors that the model itself holds as it names those of its modules. */
static bool is_of_module(const params_t *p, const char *name)
{
    const char *producer = p->file->model->producer_name;
    return wefti_onnx_is_module_path(name) ||
           (producer != NULL && strcmp(producer, "pytorch") == 0 && strpbrk(name, "/:") == NULL);
}

static weft_status_t judge_named(params_t *p, wefti_parameter_t *out, place_t place)
{
    const weft_tensor_desc_t *type = &out->type;
    bool one = type->rank == 0;
    for (uint32_t d = 0; d < type->rank; d++) {
        one = (d == 0 || one) && type->dims[d] == 1;
    }
    if (place == PLACE_STATISTIC || wefti_onnx_is_buffer_name(out->name)) {
        set(out, false, false, "a running statistic or buffer");
    } else if (place == PLACE_WEIGHT && strncmp(out->name, "onnx::Conv", 10) == 0) {
        out->folded = true;
        set(out, true, false, "the exporter computed it, as when it folds BatchNormalization");
    } else if (wefti_onnx_is_made_up_name(out->name)) {
        return judge_made_up(p, out, place);
    } else if (is_of_module(p, out->name)) {
        bool sure = wefti_onnx_is_parameter_name(out->name);
        set(out, true, !sure,
            sure ? "named as a tensor of a module"
                 : "a tensor of a module: a parameter, or a buffer");
    } else if (type->rank == 0) {
        set(out, false, false, "a single number");
    } else if (place != PLACE_NONE) {
        bool sure = !wefti_onnx_is_constant_name(out->name);
        set(out, true, !sure,
            place == PLACE_BIAS ? "a bias by its place" : "a weight by its place");
    } else if (one) {
        set(out, false, true, "a single number");
    } else {
        set(out, true, true, "neither name nor place state what it is");
    }
    return WEFT_OK;
}

/* Adds the tensors that are computed from it: there may be as many as initializers. */
static void explain_ties(params_t *p, wefti_parameter_t *out)
{
    uint32_t first = wefti_name_index_find(&p->tied, out->name);
    if (first == WEFTI_NONE || out->why == NULL) {
        return;
    }
    const char *name = p->file->ties[first].name;
    uint32_t others = p->tie_counts[first] - 1;
    out->why =
        others == 0
            ? wefti_arena_printf(p->arena, "%s; '%.200s' was a transposed copy of it", out->why,
                                 name)
            : wefti_arena_printf(p->arena, "%s; '%.200s' and %u more were transposed copies of it",
                                 out->why, name, others);
}

static weft_status_t judge(params_t *p, uint32_t index, wefti_parameter_t *out)
{
    const Onnx__TensorProto *tensor = p->file->model->graph->initializer[index];
    const char *name = tensor->name != NULL ? tensor->name : "";
    place_t place = place_of(p, name);
    *out = (wefti_parameter_t){.name = wefti_arena_strdup(p->arena, name),
                               .value = index,
                               .fixed_norms = p->fixed_norms[index]};
    WEFT_RETURN_IF_NO_MEMORY(out->name);
    out->type.dtype = wefti_onnx_dtype(tensor->data_type);
    out->type.rank = (uint32_t)(tensor->n_dims < WEFT_MAX_DIMS ? tensor->n_dims : WEFT_MAX_DIMS);
    for (uint32_t d = 0; d < out->type.rank; d++) { /* the import checks them, a survey does not */
        out->type.dims[d] = tensor->dims[d];
    }
    if (place == PLACE_RUNNING) {
        out->running = true;
        set(out, false, false, "a running statistic, which every step updates");
    } else if (p->listed) {
        bool trained = wefti_name_index_find(&p->trained, name) != WEFTI_NONE;
        set(out, trained, false,
            trained ? "the exporter lists it as trained"
                    : "the exporter does not list it as trained");
    } else if (p->signed_) {
        judge_signed(p, out, index, place);
    } else {
        WEFT_RETURN_IF_ERROR(judge_named(p, out, place));
    }
    explain_ties(p, out);
    return out->why != NULL ? WEFT_OK : WEFT_ERR_NO_MEMORY;
}

/* BatchNormalization that the exporter folded into Conv leaves no mark, but its statistics are
 * gone. */
static void find_folded_norms(params_t *p)
{
    for (size_t i = 0; i < p->signature.capacity && !p->folded; i++) {
        const wefti_name_entry_t *entry = &p->signature.entries[i];
        p->folded = entry->name != NULL && entry->id == MARK_BUFFER &&
                    strcmp(wefti_onnx_last_part(entry->name), "running_mean") == 0 &&
                    wefti_name_index_find(&p->initializers, entry->name) == WEFTI_NONE;
    }
}

/* A parameter of the signature that the optimizer of the exporter removed. */
static bool is_missing(const params_t *p, const wefti_name_entry_t *entry)
{
    return p->folded && !p->listed && entry->name != NULL && entry->id == MARK_PARAMETER &&
           wefti_name_index_find(&p->initializers, entry->name) == WEFTI_NONE;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const wefti_parameter_t *)a)->name, ((const wefti_parameter_t *)b)->name);
}

static weft_status_t add_missing(params_t *p, wefti_parameter_t *parameters, uint32_t *count)
{
    uint32_t first = *count;
    for (size_t i = 0; i < p->signature.capacity; i++) {
        const wefti_name_entry_t *entry = &p->signature.entries[i];
        if (is_missing(p, entry)) {
            wefti_parameter_t *out = &parameters[(*count)++];
            *out =
                (wefti_parameter_t){.name = wefti_arena_strdup(p->arena, entry->name),
                                    .value = WEFTI_NONE,
                                    .why = "missing: the exporter folded it into another tensor, "
                                           "or merged equal ones"};
            WEFT_RETURN_IF_NO_MEMORY(out->name);
        }
    }
    if (*count > first) { /* the index has no order */
        qsort(&parameters[first], *count - first, sizeof *parameters, by_name);
    }
    return WEFT_OK;
}

static weft_status_t index_initializers(params_t *p)
{
    const Onnx__GraphProto *graph = p->file->model->graph;
    p->marks = wefti_arena_array(&p->scratch, graph->n_initializer + 1, sizeof *p->marks);
    p->sources = wefti_arena_array(&p->scratch, graph->n_initializer + 1, sizeof *p->sources);
    p->fixed_norms =
        wefti_arena_array(&p->scratch, graph->n_initializer + 1, sizeof *p->fixed_norms);
    WEFT_RETURN_IF_NO_MEMORY(p->marks && p->sources && p->fixed_norms);
    for (size_t i = 0; i < graph->n_initializer; i++) {
        const char *name = graph->initializer[i]->name;
        if (name != NULL) {
            WEFT_RETURN_IF_ERROR(add_name(p, &p->initializers, name, (uint32_t)i));
        }
    }
    return WEFT_OK;
}

static weft_status_t index_ties(params_t *p)
{
    p->tie_counts = wefti_arena_array(&p->scratch, p->file->tie_count + 1, sizeof *p->tie_counts);
    WEFT_RETURN_IF_NO_MEMORY(p->tie_counts);
    for (size_t i = 0; i < p->file->tie_count; i++) {
        const char *original = p->file->ties[i].original;
        WEFT_RETURN_IF_ERROR(add_name(p, &p->tied, original, (uint32_t)i));
        p->tie_counts[wefti_name_index_find(&p->tied, original)]++;
    }
    return WEFT_OK;
}

static weft_status_t judge_all(params_t *p, wefti_parameter_t **out_parameters, uint32_t *out_count)
{
    const Onnx__GraphProto *graph = p->file->model->graph;
    size_t missing = 0;
    find_folded_norms(p);
    for (size_t i = 0; i < p->signature.capacity; i++) {
        missing += is_missing(p, &p->signature.entries[i]);
    }
    wefti_parameter_t *parameters =
        wefti_arena_array(p->arena, graph->n_initializer + missing + 1, sizeof *parameters);
    uint32_t count = 0;
    WEFT_RETURN_IF_NO_MEMORY(parameters);
    for (size_t i = 0; i < graph->n_initializer; i++) {
        if (wefti_dtype_is_floating(wefti_onnx_dtype(graph->initializer[i]->data_type))) {
            WEFT_RETURN_IF_ERROR(judge(p, (uint32_t)i, &parameters[count++]));
        }
    }
    WEFT_RETURN_IF_ERROR(add_missing(p, parameters, &count));
    *out_parameters = parameters;
    *out_count = count;
    return WEFT_OK;
}

weft_status_t wefti_onnx_parameters(wefti_onnx_file_t *file, wefti_arena_t *arena,
                                    wefti_parameter_t **out_parameters, uint32_t *out_count)
{
    weft_status_t status;
    params_t p = {.file = file, .arena = arena};
    wefti_name_index_t *const indexes[] = {&p.initializers, &p.places,  &p.products,
                                           &p.signature,    &p.trained, &p.tied};
    wefti_arena_init(&p.scratch, file->allocator, 0);
    for (size_t i = 0; i < sizeof indexes / sizeof *indexes; i++) {
        wefti_name_index_init(indexes[i], p.scratch.allocator);
    }
    WEFT_TRY(status, index_initializers(&p), done);
    WEFT_TRY(status, index_ties(&p), done);
    WEFT_TRY(status, read_marks(&p), done);
    WEFT_TRY(status, find_places(&p), done);
    WEFT_TRY(status, judge_all(&p, out_parameters, out_count), done);
done:
    for (size_t i = 0; i < sizeof indexes / sizeof *indexes; i++) {
        wefti_name_index_deinit(indexes[i]);
    }
    wefti_arena_deinit(&p.scratch);
    return status;
}
