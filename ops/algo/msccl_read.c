/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the XML of MSCCL: <algo>, <gpu>, <tb> and <step> with attributes, nothing else. Text,
 * entities and document types are refused, so a hostile file has nothing to expand.
 */
#include "ops/algo/msccl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"

#define MAX_GPUS 1024u
#define MAX_STEPS (1u << 18)
#define MAX_BLOCKS (1u << 14)
#define MAX_CHUNKS (1u << 16)     /* of one buffer, or of a step */
#define MAX_ALL_CHUNKS (1u << 20) /* of all buffers, and of all steps */
#define MAX_ATTRIBUTES 24u
#define MAX_CHANNELS 256u
#define MAX_ALL_LANES 4096u /* a proof has a clock of each for each */

const wefti_msccl_type_info_t wefti_msccl_types[WEFTI_MSCCL_TYPES] = {
    [WEFTI_MSCCL_NOP] = {"nop", false, false, false, false},
    [WEFTI_MSCCL_SEND] = {"s", false, true, true, false},
    [WEFTI_MSCCL_RECV] = {"r", true, false, false, true},
    [WEFTI_MSCCL_COPY] = {"cpy", false, false, true, true},
    [WEFTI_MSCCL_REDUCE] = {"re", false, false, true, true},
    [WEFTI_MSCCL_RECV_COPY_SEND] = {"rcs", true, true, false, true},
    [WEFTI_MSCCL_RECV_REDUCE_COPY] = {"rrc", true, false, true, true},
    [WEFTI_MSCCL_RECV_REDUCE_SEND] = {"rrs", true, true, true, false},
    [WEFTI_MSCCL_RECV_REDUCE_COPY_SEND] = {"rrcs", true, true, true, true},
};

typedef enum level { LEVEL_FILE, LEVEL_ALGO, LEVEL_GPU, LEVEL_TB, LEVEL_STEP } level_t;

static const char *const elements[] = {"algo", "gpu", "tb", "step"};

/* A part of the file's text. */
typedef struct word {
    const char *text;
    size_t length;
} word_t;

typedef struct reader {
    wefti_msccl_t *msccl;
    const char *at, *end;
    uint32_t line;
    level_t level;
    bool done;    /* </algo> was read */
    uint32_t gpu; /* id of the last one */
    struct {
        word_t name, value;
    } attributes[MAX_ATTRIBUTES];
    uint32_t attribute_count;
    uint64_t moved; /* chunks of all steps */
} reader_t;

static bool is_word(word_t word, const char *text)
{
    return strlen(text) == word.length && memcmp(word.text, text, word.length) == 0;
}

/* Length of a word to print. */
static int shown(word_t word)
{
    return word.length < 40 ? (int)word.length : 40;
}

static WEFT_PRINTF(2, 3) weft_status_t fail(const reader_t *reader, const char *format, ...)
{
    const wefti_msccl_t *msccl = reader->msccl;
    char what[300], where[80] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (reader->level == LEVEL_GPU) {
        snprintf(where, sizeof where, "gpu %u: ", reader->gpu);
    } else if (reader->level >= LEVEL_TB) {
        const wefti_msccl_block_t *block = &msccl->blocks[msccl->block_count - 1];
        snprintf(where, sizeof where, "gpu %u, tb %u, step %u: ", block->gpu, block->id,
                 block->count);
    }
    return wefti_error(WEFT_ERR_FORMAT, "%s:%u: %s%s", msccl->path, reader->line, where, what);
}

weft_status_t wefti_msccl_error(const wefti_msccl_t *msccl, uint32_t step, const char *format, ...)
{
    const wefti_msccl_step_t *at = &msccl->steps[step];
    const wefti_msccl_block_t *block = &msccl->blocks[at->block];
    char what[300];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return wefti_error(WEFT_ERR_FORMAT, "%s:%u: gpu %u, tb %u, step %u (%s): %s", msccl->path,
                       at->line, block->gpu, block->id, step - block->first,
                       wefti_msccl_types[at->type].name, what);
}

/* ---- words of XML ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == ':';
}

static void skip_space(reader_t *reader)
{
    for (; reader->at < reader->end && is_space(*reader->at); reader->at++) {
        reader->line += *reader->at == '\n';
    }
}

static bool skip_text(reader_t *reader, const char *text)
{
    size_t length = strlen(text);
    if ((size_t)(reader->end - reader->at) < length || memcmp(reader->at, text, length) != 0) {
        return false;
    }
    reader->at += length;
    return true;
}

/* Behind the next ending; false: there is none. */
static bool skip_past(reader_t *reader, const char *ending)
{
    for (; reader->at < reader->end; reader->at++) {
        if (skip_text(reader, ending)) {
            return true;
        }
        reader->line += *reader->at == '\n';
    }
    return false;
}

static word_t read_name(reader_t *reader)
{
    word_t word = {reader->at, 0};
    while (reader->at < reader->end && is_name(*reader->at)) {
        reader->at++;
    }
    word.length = (size_t)(reader->at - word.text);
    return word;
}

static weft_status_t read_attribute(reader_t *reader)
{
    word_t name = read_name(reader), value = {0};
    skip_space(reader);
    bool good = name.length > 0 && skip_text(reader, "=");
    skip_space(reader);
    char quote = good && reader->at < reader->end ? *reader->at : '\0';
    if (quote != '"' && quote != '\'') {
        return fail(reader, "expected an attribute such as cnt=\"1\"");
    }
    value.text = ++reader->at;
    while (reader->at < reader->end && *reader->at != quote && *reader->at != '<' &&
           *reader->at != '\n') {
        reader->at++;
    }
    value.length = (size_t)(reader->at - value.text);
    if (reader->at == reader->end || *reader->at != quote) {
        return fail(reader, "attribute %.*s: missing closing quote", shown(name), name.text);
    }
    reader->at++;
    for (uint32_t i = 0; i < reader->attribute_count; i++) {
        word_t other = reader->attributes[i].name;
        if (other.length == name.length && memcmp(other.text, name.text, name.length) == 0) {
            return fail(reader, "duplicate attribute %.*s", shown(name), name.text);
        }
    }
    if (reader->attribute_count == MAX_ATTRIBUTES) {
        return fail(reader, "too many attributes");
    }
    reader->attributes[reader->attribute_count].name = name;
    reader->attributes[reader->attribute_count++].value = value;
    return WEFT_OK;
}

static const word_t *find_attribute(const reader_t *reader, const char *name)
{
    for (uint32_t i = 0; i < reader->attribute_count; i++) {
        if (is_word(reader->attributes[i].name, name)) {
            return &reader->attributes[i].value;
        }
    }
    return NULL;
}

/* An attribute that must be there: a number from least to most. */
static weft_status_t read_int(const reader_t *reader, const char *name, int64_t least, int64_t most,
                              int32_t *out)
{
    const word_t *word = find_attribute(reader, name);
    int64_t value = 0;
    if (word == NULL) {
        return fail(reader, "attribute %s is missing", name);
    }
    bool minus = word->length > 0 && word->text[0] == '-';
    bool good = word->length > minus && word->length < 10u + minus;
    for (size_t i = minus; i < word->length && good; i++) {
        good = word->text[i] >= '0' && word->text[i] <= '9';
        value = value * 10 + (word->text[i] - '0');
    }
    value = minus ? -value : value;
    if (!good || value < least || value > most) {
        return fail(reader, "invalid value '%.*s' for %s: expected a number from %lld to %lld",
                    shown(*word), word->text, name, (long long)least, (long long)most);
    }
    *out = (int32_t)value;
    return WEFT_OK;
}

static weft_status_t read_u32(const reader_t *reader, const char *name, uint32_t least,
                              uint32_t most, uint32_t *out)
{
    int32_t value = 0;
    WEFT_RETURN_IF_ERROR(read_int(reader, name, least, most, &value));
    *out = (uint32_t)value;
    return WEFT_OK;
}

/* ---- elements ---- */

static weft_status_t read_collective(const reader_t *reader)
{
    static const struct {
        const char *name;
        weft_collective_t op;
    } names[] = {{"allreduce", WEFT_COLLECTIVE_ALL_REDUCE},
                 {"allgather", WEFT_COLLECTIVE_ALL_GATHER},
                 {"reduce_scatter", WEFT_COLLECTIVE_REDUCE_SCATTER},
                 {"alltoall", WEFT_COLLECTIVE_ALL_TO_ALL},
                 {"broadcast", WEFT_COLLECTIVE_BROADCAST},
                 {"reduce", WEFT_COLLECTIVE_REDUCE}};
    const word_t *name = find_attribute(reader, "coll");
    for (size_t i = 0; name != NULL && i < sizeof names / sizeof *names; i++) {
        if (is_word(*name, names[i].name)) {
            reader->msccl->algorithm.op = names[i].op;
            return WEFT_OK;
        }
    }
    return name == NULL ? fail(reader, "attribute coll is missing")
                        : fail(reader,
                               "invalid value '%.*s' for coll: expected allreduce, allgather, "
                               "reduce_scatter, alltoall, broadcast or reduce",
                               shown(*name), name->text);
}

/* Letters, digits and what settings leave alone. */
static weft_status_t read_algorithm_name(const reader_t *reader)
{
    wefti_msccl_t *msccl = reader->msccl;
    const word_t *word = find_attribute(reader, "name");
    size_t length = word == NULL ? 0 : word->length < 28 ? word->length : 28;
    msccl->name = wefti_alloc(msccl->allocator, 48); /* msccl.c appends a digest */
    WEFT_RETURN_IF_NO_MEMORY(msccl->name);
    for (size_t i = 0; i < length; i++) {
        bool plain = is_name(word->text[i]) && word->text[i] != ':';
        msccl->name[i] = '_';
        if (plain) {
            msccl->name[i] = word->text[i];
        }
    }
    return length > 0 ? WEFT_OK : fail(reader, "attribute name is missing");
}

static weft_status_t read_algo(reader_t *reader)
{
    wefti_msccl_t *msccl = reader->msccl;
    uint32_t in_place;
    WEFT_RETURN_IF_ERROR(read_algorithm_name(reader));
    WEFT_RETURN_IF_ERROR(read_collective(reader));
    WEFT_RETURN_IF_ERROR(read_u32(reader, "ngpus", 2, MAX_GPUS, &msccl->gpu_count));
    WEFT_RETURN_IF_ERROR(read_u32(reader, "nchunksperloop", 1, MAX_CHUNKS, &msccl->chunks));
    WEFT_RETURN_IF_ERROR(read_u32(reader, "inplace", 0, 1, &in_place));
    msccl->in_place = in_place != 0;
    msccl->parts = wefti_collective_is_vector(msccl->algorithm.op)
                       ? msccl->chunks
                       : msccl->chunks / msccl->gpu_count;
    if (!wefti_collective_is_vector(msccl->algorithm.op) && msccl->chunks % msccl->gpu_count != 0) {
        return fail(reader, "nchunksperloop %u is not a multiple of ngpus %u", msccl->chunks,
                    msccl->gpu_count);
    }
    msccl->gpus = wefti_alloc(msccl->allocator, msccl->gpu_count * sizeof *msccl->gpus);
    WEFT_RETURN_IF_NO_MEMORY(msccl->gpus);
    return WEFT_OK;
}

/* Chunks of a buffer: a file may state 0 for one that it does not use. */
static weft_status_t check_chunks(const reader_t *reader, const char *name, uint32_t expected)
{
    uint32_t stated;
    WEFT_RETURN_IF_ERROR(read_u32(reader, name, 0, MAX_CHUNKS, &stated));
    return stated == 0 || stated == expected
               ? WEFT_OK
               : fail(reader, "%s is %u, expected %u (coll and nchunksperloop)", name, stated,
                      expected);
}

static weft_status_t read_gpu(reader_t *reader)
{
    wefti_msccl_t *msccl = reader->msccl;
    WEFT_RETURN_IF_ERROR(read_u32(reader, "id", 0, msccl->gpu_count - 1, &reader->gpu));
    wefti_msccl_gpu_t *gpu = &msccl->gpus[reader->gpu];
    if (gpu->line != 0) {
        return fail(reader, "duplicate gpu %u: the first is in line %u", reader->gpu, gpu->line);
    }
    const wefti_collective_t *op = wefti_collective_of(msccl->algorithm.op);
    gpu->line = reader->line;
    gpu->inputs = op->send.extent == WEFT_EXTENT_BLOCK ? msccl->parts : msccl->chunks;
    gpu->outputs = op->recv.extent == WEFT_EXTENT_BLOCK ? msccl->parts : msccl->chunks;
    WEFT_RETURN_IF_ERROR(check_chunks(reader, "i_chunks", gpu->inputs));
    WEFT_RETURN_IF_ERROR(check_chunks(reader, "o_chunks", gpu->outputs));
    WEFT_RETURN_IF_ERROR(read_u32(reader, "s_chunks", 0, MAX_CHUNKS, &gpu->scratch));
    gpu->first_chunk = msccl->chunk_count;
    msccl->chunk_count += gpu->inputs + gpu->outputs + gpu->scratch;
    return msccl->chunk_count <= MAX_ALL_CHUNKS ? WEFT_OK : fail(reader, "too many chunks");
}

static weft_status_t read_block(reader_t *reader)
{
    wefti_msccl_t *msccl = reader->msccl;
    int32_t last = (int32_t)msccl->gpu_count - 1;
    wefti_msccl_block_t block = {
        .gpu = reader->gpu, .line = reader->line, .first = (uint32_t)msccl->step_count};
    WEFT_RETURN_IF_ERROR(read_u32(reader, "id", 0, MAX_STEPS, &block.id));
    WEFT_RETURN_IF_ERROR(read_int(reader, "send", -1, last, &block.send));
    WEFT_RETURN_IF_ERROR(read_int(reader, "recv", -1, last, &block.recv));
    WEFT_RETURN_IF_ERROR(read_u32(reader, "chan", 0, MAX_CHANNELS - 1, &block.channel));
    if (block.send == (int32_t)block.gpu || block.recv == (int32_t)block.gpu) {
        return fail(reader, "tb %u: send or recv is the gpu itself", block.id);
    }
    if (msccl->block_count == MAX_BLOCKS) {
        return fail(reader, "too many thread blocks: at most %u", MAX_BLOCKS);
    }
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(msccl->allocator, &msccl->blocks,
                                             &msccl->block_capacity, msccl->block_count + 1,
                                             sizeof *msccl->blocks));
    msccl->blocks[msccl->block_count++] = block;
    return WEFT_OK;
}

static weft_status_t read_chunks(const reader_t *reader, const char *buffer, const char *offset,
                                 uint32_t count, wefti_msccl_chunks_t *out)
{
    const wefti_msccl_gpu_t *gpu = &reader->msccl->gpus[reader->gpu];
    const word_t *word = find_attribute(reader, buffer);
    if (word == NULL || word->length != 1 || memchr("ios", word->text[0], 3) == NULL) {
        return fail(reader, "%s: expected i, o or s", buffer);
    }
    uint32_t has = word->text[0] == 'i'   ? gpu->inputs
                   : word->text[0] == 'o' ? gpu->outputs
                                          : gpu->scratch;
    out->buffer = word->text[0];
    WEFT_RETURN_IF_ERROR(read_u32(reader, offset, 0, MAX_CHUNKS, &out->offset));
    return count <= has && out->offset <= has - count
               ? WEFT_OK
               : fail(reader, "chunks %u to %u are outside of buffer %c, which has %u", out->offset,
                      out->offset + count - 1, out->buffer, has);
}

static weft_status_t read_type(const reader_t *reader, wefti_msccl_type_t *out)
{
    const word_t *word = find_attribute(reader, "type");
    for (uint32_t type = 0; word != NULL && type < WEFTI_MSCCL_TYPES; type++) {
        if (is_word(*word, wefti_msccl_types[type].name)) {
            *out = (wefti_msccl_type_t)type;
            return WEFT_OK;
        }
    }
    return word == NULL ? fail(reader, "attribute type is missing")
                        : fail(reader, "unknown type '%.*s'", shown(*word), word->text);
}

static weft_status_t check_type(const reader_t *reader, const wefti_msccl_step_t *step)
{
    const wefti_msccl_type_info_t *type = &wefti_msccl_types[step->type];
    const wefti_msccl_block_t *block = &reader->msccl->blocks[step->block];
    if ((type->sends && block->send < 0) || (type->receives && block->recv < 0)) {
        return fail(reader, "type %s, but the thread block has %s=\"-1\"", type->name,
                    type->sends && block->send < 0 ? "send" : "recv");
    }
    bool reduces = type->reads_source && (type->receives || step->type == WEFTI_MSCCL_REDUCE);
    return reduces && !wefti_collective_reduces(reader->msccl->algorithm.op)
               ? fail(reader, "type %s, but %s does not reduce", type->name,
                      weft_collective_name(reader->msccl->algorithm.op))
               : WEFT_OK;
}

static weft_status_t read_step(reader_t *reader)
{
    wefti_msccl_t *msccl = reader->msccl;
    wefti_msccl_block_t *block = &msccl->blocks[msccl->block_count - 1];
    wefti_msccl_step_t step = {.line = reader->line, .block = (uint32_t)msccl->block_count - 1};
    uint32_t number, ignored;
    if (msccl->step_count == MAX_STEPS) {
        return fail(reader, "too many steps: at most %u", MAX_STEPS);
    }
    WEFT_RETURN_IF_ERROR(read_u32(reader, "s", 0, MAX_STEPS, &number));
    if (number != block->count) {
        return fail(reader, "s is %u, expected %u", number, block->count);
    }
    WEFT_RETURN_IF_ERROR(read_type(reader, &step.type));
    WEFT_RETURN_IF_ERROR(check_type(reader, &step));
    WEFT_RETURN_IF_ERROR(read_int(reader, "depid", -1, MAX_STEPS, &step.needs_block));
    WEFT_RETURN_IF_ERROR(read_int(reader, "deps", -1, MAX_STEPS, &step.needs_step));
    WEFT_RETURN_IF_ERROR(read_u32(reader, "hasdep", 0, 1, &ignored)); /* follows from depid, deps */
    const wefti_msccl_type_info_t *type = &wefti_msccl_types[step.type];
    if (step.type != WEFTI_MSCCL_NOP) {
        WEFT_RETURN_IF_ERROR(read_u32(reader, "cnt", 1, MAX_CHUNKS, &step.count));
    }
    if (type->reads_source) {
        WEFT_RETURN_IF_ERROR(read_chunks(reader, "srcbuf", "srcoff", step.count, &step.source));
    }
    if (type->writes_target) {
        WEFT_RETURN_IF_ERROR(read_chunks(reader, "dstbuf", "dstoff", step.count, &step.target));
    }
    reader->moved += step.count;
    if (reader->moved > MAX_ALL_CHUNKS) {
        return fail(reader, "too many chunks in all steps: at most %u", MAX_ALL_CHUNKS);
    }
    WEFT_RETURN_IF_ERROR(wefti_array_reserve(msccl->allocator, &msccl->steps, &msccl->step_capacity,
                                             msccl->step_count + 1, sizeof *msccl->steps));
    msccl->steps[msccl->step_count++] = step;
    block->count++;
    return WEFT_OK;
}

static weft_status_t open_element(reader_t *reader, word_t name)
{
    static weft_status_t (*const read[])(reader_t *) = {read_algo, read_gpu, read_block, read_step};
    if (reader->level == LEVEL_STEP || reader->done || !is_word(name, elements[reader->level])) {
        return fail(reader, "unexpected element '%.*s'", shown(name), name.text);
    }
    WEFT_RETURN_IF_ERROR(read[reader->level](reader));
    reader->level++;
    return WEFT_OK;
}

static weft_status_t close_element(reader_t *reader, word_t name)
{
    if (reader->level == LEVEL_FILE || !is_word(name, elements[reader->level - 1])) {
        return fail(reader, "unexpected closing element '%.*s'", shown(name), name.text);
    }
    reader->level--;
    reader->done = reader->level == LEVEL_FILE;
    return WEFT_OK;
}

static weft_status_t read_tag(reader_t *reader)
{
    bool closes = skip_text(reader, "/");
    word_t name = read_name(reader);
    reader->attribute_count = 0;
    skip_space(reader);
    while (!closes && reader->at < reader->end && *reader->at != '/' && *reader->at != '>') {
        WEFT_RETURN_IF_ERROR(read_attribute(reader));
        skip_space(reader);
    }
    bool empty = !closes && skip_text(reader, "/");
    if (!skip_text(reader, ">")) {
        return fail(reader, "element '%.*s' has no end", shown(name), name.text);
    }
    if (!closes) {
        WEFT_RETURN_IF_ERROR(open_element(reader, name));
    }
    return closes || empty ? close_element(reader, name) : WEFT_OK;
}

static weft_status_t read_elements(reader_t *reader)
{
    for (;;) {
        skip_space(reader);
        if (reader->at == reader->end) {
            return reader->done ? WEFT_OK : fail(reader, "the file ends before </algo>");
        }
        if (skip_text(reader, "<!--")) {
            if (!skip_past(reader, "-->")) {
                return fail(reader, "comment has no end");
            }
        } else if (skip_text(reader, "<?")) {
            if (!skip_past(reader, "?>")) {
                return fail(reader, "<? has no end");
            }
        } else if (skip_text(reader, "<")) {
            WEFT_RETURN_IF_ERROR(read_tag(reader));
        } else {
            return fail(reader, "unexpected text: expected an element");
        }
    }
}

/* ---- the whole ---- */

static int by_gpu_and_id(const void *a, const void *b)
{
    const wefti_msccl_block_t *x = a, *y = b;
    return x->gpu != y->gpu ? (x->gpu > y->gpu) - (x->gpu < y->gpu)
                            : (x->id > y->id) - (x->id < y->id);
}

/* Thread blocks in the order of gpus and ids; steps know theirs. */
static weft_status_t sort_blocks(wefti_msccl_t *msccl)
{
    if (msccl->block_count > 0) {
        qsort(msccl->blocks, msccl->block_count, sizeof *msccl->blocks, by_gpu_and_id);
    }
    for (uint32_t b = 0; b < msccl->block_count; b++) {
        const wefti_msccl_block_t *block = &msccl->blocks[b];
        wefti_msccl_gpu_t *gpu = &msccl->gpus[block->gpu];
        gpu->first = gpu->count == 0 ? b : gpu->first;
        if (block->id != gpu->count) {
            return wefti_error(WEFT_ERR_FORMAT,
                               "%s:%u: gpu %u: tb %u, expected %u (ids must be 0, "
                               "1, 2 ...)",
                               msccl->path, block->line, block->gpu, block->id, gpu->count);
        }
        gpu->count++;
        msccl->lanes = gpu->count > msccl->lanes ? gpu->count : msccl->lanes;
        for (uint32_t s = 0; s < block->count; s++) {
            msccl->steps[block->first + s].block = b;
        }
    }
    for (uint32_t g = 0; g < msccl->gpu_count; g++) {
        if (msccl->gpus[g].line == 0) {
            return wefti_error(WEFT_ERR_FORMAT, "%s: gpu %u is missing: ngpus is %u", msccl->path,
                               g, msccl->gpu_count);
        }
    }
    msccl->lanes = msccl->lanes < 1 ? 1 : msccl->lanes;
    msccl->lanes = msccl->lanes > WEFTI_MAX_LANES ? WEFTI_MAX_LANES : msccl->lanes;
    return msccl->gpu_count * msccl->lanes <= MAX_ALL_LANES
               ? WEFT_OK
               : wefti_error(WEFT_ERR_FORMAT,
                             "%s: too large to prove: %u gpus of %u lanes, limit "
                             "%u lanes in all",
                             msccl->path, msccl->gpu_count, msccl->lanes, MAX_ALL_LANES);
}

static weft_status_t find_needs(wefti_msccl_t *msccl)
{
    for (uint32_t s = 0; s < msccl->step_count; s++) {
        wefti_msccl_step_t *step = &msccl->steps[s];
        const wefti_msccl_gpu_t *gpu = &msccl->gpus[msccl->blocks[step->block].gpu];
        step->needs = step->peer = step->forward = step->joined = WEFTI_MSCCL_NONE;
        if (step->needs_block < 0) {
            continue;
        }
        const wefti_msccl_block_t *block = &msccl->blocks[gpu->first + (uint32_t)step->needs_block];
        if ((uint32_t)step->needs_block >= gpu->count || step->needs_step < 0 ||
            (uint32_t)step->needs_step >= block->count) {
            return wefti_msccl_error(msccl, s, "depends on tb %d, step %d, which does not exist",
                                     step->needs_block, step->needs_step);
        }
        step->needs = block->first + (uint32_t)step->needs_step;
        msccl->steps[step->needs].needed = true;
    }
    return WEFT_OK;
}

/* The thread block of a gpu that receives from a peer on a channel, or NONE; only: of them. */
static uint32_t find_end(const wefti_msccl_t *msccl, uint32_t gpu, bool sends, int32_t peer,
                         uint32_t channel)
{
    for (uint32_t b = 0; b < msccl->gpus[gpu].count; b++) {
        const wefti_msccl_block_t *block = &msccl->blocks[msccl->gpus[gpu].first + b];
        if ((sends ? block->send : block->recv) == peer && block->channel == channel) {
            return msccl->gpus[gpu].first + b;
        }
    }
    return WEFTI_MSCCL_NONE;
}

/* The next step of the block, from step on, that sends or receives; NONE: there is none. */
static uint32_t next_of(const wefti_msccl_t *msccl, uint32_t block, uint32_t step, bool sends)
{
    const wefti_msccl_block_t *own = &msccl->blocks[block];
    for (; step < own->first + own->count; step++) {
        const wefti_msccl_type_info_t *type = &wefti_msccl_types[msccl->steps[step].type];
        if (sends ? type->sends : type->receives) {
            return step;
        }
    }
    return WEFTI_MSCCL_NONE;
}

/* The sends of block to its peer and the receives there, one by one. */
static weft_status_t match_sends(wefti_msccl_t *msccl, uint32_t block)
{
    const wefti_msccl_block_t *own = &msccl->blocks[block];
    uint32_t theirs = find_end(msccl, (uint32_t)own->send, false, (int32_t)own->gpu, own->channel);
    uint32_t send = next_of(msccl, block, own->first, true);
    uint32_t recv = theirs == WEFTI_MSCCL_NONE
                        ? WEFTI_MSCCL_NONE
                        : next_of(msccl, theirs, msccl->blocks[theirs].first, false);
    while (send != WEFTI_MSCCL_NONE && recv != WEFTI_MSCCL_NONE) {
        if (msccl->steps[send].count != msccl->steps[recv].count) {
            return wefti_msccl_error(msccl, send,
                                     "sends %u chunks, but gpu %d, tb %u, step %u receives %u",
                                     msccl->steps[send].count, own->send, msccl->blocks[theirs].id,
                                     recv - msccl->blocks[theirs].first, msccl->steps[recv].count);
        }
        msccl->steps[send].forward = recv;
        msccl->steps[recv].peer = send;
        send = next_of(msccl, block, send + 1, true);
        recv = next_of(msccl, theirs, recv + 1, false);
    }
    return send == WEFTI_MSCCL_NONE
               ? WEFT_OK
               : wefti_msccl_error(msccl, send, "gpu %d has no receive for it on channel %u",
                                   own->send, own->channel);
}

static weft_status_t match_steps(wefti_msccl_t *msccl)
{
    for (uint32_t b = 0; b < msccl->block_count; b++) {
        const wefti_msccl_block_t *block = &msccl->blocks[b];
        bool twice = (block->send >= 0 &&
                      find_end(msccl, block->gpu, true, block->send, block->channel) != b) ||
                     (block->recv >= 0 &&
                      find_end(msccl, block->gpu, false, block->recv, block->channel) != b);
        if (twice) {
            return wefti_error(WEFT_ERR_FORMAT,
                               "%s:%u: gpu %u, tb %u: another thread block has the same peer and "
                               "channel %u",
                               msccl->path, block->line, block->gpu, block->id, block->channel);
        }
        if (block->send >= 0) {
            WEFT_RETURN_IF_ERROR(match_sends(msccl, b));
        }
    }
    for (uint32_t s = 0; s < msccl->step_count; s++) {
        const wefti_msccl_step_t *step = &msccl->steps[s];
        const wefti_msccl_block_t *block = &msccl->blocks[step->block];
        if (wefti_msccl_types[step->type].receives && step->peer == WEFTI_MSCCL_NONE) {
            return wefti_msccl_error(msccl, s, "gpu %d has no send for it on channel %u",
                                     block->recv, block->channel);
        }
    }
    return WEFT_OK;
}

/* Reductions in a row into the same chunks are one, unless a step waits for one of the first. */
static void join_reductions(wefti_msccl_t *msccl)
{
    for (uint32_t s = 0; s < msccl->step_count; s++) {
        wefti_msccl_step_t *step = &msccl->steps[s];
        const wefti_msccl_block_t *block = &msccl->blocks[step->block];
        uint32_t next = s + 1;
        if (step->type != WEFTI_MSCCL_REDUCE || step->needed) {
            continue;
        }
        while (next < block->first + block->count && msccl->steps[next].type == WEFTI_MSCCL_NOP) {
            next++;
        }
        if (next == block->first + block->count) {
            continue;
        }
        wefti_msccl_step_t *other = &msccl->steps[next];
        step->joins_next = other->type == WEFTI_MSCCL_REDUCE && step->count == other->count &&
                           step->target.buffer == other->target.buffer &&
                           step->target.offset == other->target.offset;
        other->joined = step->joins_next ? s : WEFTI_MSCCL_NONE;
    }
}

/* What orders the steps: thread blocks that can go on, and those that wait for a step. */
typedef struct orderer {
    uint32_t *next;   /* [block] steps done */
    uint32_t *waiter; /* [step] first block that waits for it, + 1 */
    uint32_t *others; /* [block] the next block that waits for the same step, + 1 */
    uint32_t *ready;  /* [block] those that may go on */
    uint32_t ready_count, done;
} orderer_t;

static void run_block(wefti_msccl_t *msccl, orderer_t *o, uint32_t block)
{
    const wefti_msccl_block_t *own = &msccl->blocks[block];
    while (o->next[block] < own->count) {
        uint32_t step = own->first + o->next[block];
        const uint32_t waits[] = {msccl->steps[step].needs, msccl->steps[step].peer};
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t other = waits[i];
            if (other != WEFTI_MSCCL_NONE &&
                other - msccl->blocks[msccl->steps[other].block].first >=
                    o->next[msccl->steps[other].block]) {
                o->others[block] = o->waiter[other];
                o->waiter[other] = block + 1;
                return;
            }
        }
        msccl->order[o->done++] = step;
        o->next[block]++;
        for (uint32_t next = o->waiter[step]; next != 0; next = o->others[next - 1]) {
            o->ready[o->ready_count++] = next - 1;
        }
        o->waiter[step] = 0;
    }
}

static weft_status_t order_steps(wefti_msccl_t *msccl)
{
    size_t blocks = msccl->block_count, steps = msccl->step_count;
    msccl->order = wefti_alloc(msccl->allocator, (steps + 1) * sizeof *msccl->order);
    uint32_t *memory =
        wefti_alloc(msccl->allocator, (3 * blocks + steps + 1) * sizeof *msccl->order);
    if (msccl->order == NULL || memory == NULL) {
        wefti_free(msccl->allocator, memory);
        return WEFT_ERR_NO_MEMORY;
    }
    orderer_t o = {.next = memory,
                   .others = memory + blocks,
                   .ready = memory + 2 * blocks,
                   .waiter = memory + 3 * blocks};
    weft_status_t status = WEFT_OK;
    for (uint32_t b = (uint32_t)blocks; b > 0; b--) {
        o.ready[o.ready_count++] = b - 1;
    }
    while (o.ready_count > 0) {
        run_block(msccl, &o, o.ready[--o.ready_count]);
    }
    for (uint32_t b = 0; b < blocks && o.done < steps && status >= 0; b++) {
        if (o.next[b] < msccl->blocks[b].count) {
            status = wefti_msccl_error(msccl, msccl->blocks[b].first + o.next[b],
                                       "deadlock: it waits for a step that waits for it");
        }
    }
    wefti_free(msccl->allocator, memory);
    return status;
}

weft_status_t wefti_msccl_read(wefti_msccl_t *msccl, const char *text, size_t size_bytes)
{
    reader_t reader = {.msccl = msccl, .at = text, .end = text + size_bytes, .line = 1};
    WEFT_RETURN_IF_ERROR(read_elements(&reader));
    WEFT_RETURN_IF_ERROR(sort_blocks(msccl));
    WEFT_RETURN_IF_ERROR(find_needs(msccl));
    WEFT_RETURN_IF_ERROR(match_steps(msccl));
    join_reductions(msccl);
    return order_steps(msccl);
}
