/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libweft_tvm.so: the collectives of Disco, TVM's runtime for several workers, as calls of Weft.
 *
 * Disco's function runtime.disco.allreduce calls runtime.disco.CCL.allreduce, where CCL is the
 * worker's collective library: nccl, rccl, or the empty text if no library was initialised, as on
 * CPUs. This library registers its functions there. Workers of NCCL in the same process keep
 * theirs. Loading the library registers them (ffi.ModuleLoadFromFile); then each worker calls
 * runtime.disco.weft.init_ccl_per_worker.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <weft/weft.h>

#include "interop/tvm/tvm_ffi.h"
#include "interop/tvm/world.h"

/* Bytes of a message, of a list or name in it, and of an address. */
enum { ERROR_BYTES = 512, TEXT_BYTES = 128, ADDRESS_BYTES = 256 };

#define FFI_POINTER(name, result, arguments) result(*name) arguments;
static struct {
    FFI_FUNCTIONS(FFI_POINTER)
} ffi;

static int raise(const char *kind, const char *message)
{
    ffi.TVMFFIErrorSetRaisedFromCStr(kind, message);
    return -1;
}

static int result_of(weft_status_t status)
{
    if (status == WEFT_OK) {
        return 0;
    }
    bool is_argument = status == WEFT_ERR_INVALID_ARGUMENT || status == WEFT_ERR_MISMATCH;
    return raise(is_argument ? "ValueError" : "RuntimeError",
                 status < 0 ? weft_last_error() : weft_status_text(status));
}

/* ---- arguments ---- */

/* A call of one of the functions, while its arguments are read. */
typedef struct call {
    const char *function;
    const ffi_any_t *args;
    int32_t count;
    world_t *world;
    weft_group_t *group;
    char error[ERROR_BYTES]; /* the first wrong argument; empty: none */
} call_t;

/* The elements of a tensor, as Weft counts them. */
typedef struct buffer {
    const ffi_tensor_t *tensor; /* NULL: none, and the call is refused */
    char *data;
    uint64_t count;
    weft_dtype_t dtype;
    bool is_opaque; /* a type that Weft does not have, as bytes */
} buffer_t;

WEFT_PRINTF(2, 3)
static void refuse(call_t *call, const char *format, ...)
{
    va_list list;
    if (call->error[0] == '\0') {
        va_start(list, format);
        vsnprintf(call->error, sizeof call->error, format, list);
        va_end(list);
    }
}

/* The argument at an index; of a kind that no function takes if there are too few. */
static const ffi_any_t *argument(const call_t *call, int32_t index)
{
    static const ffi_any_t missing = {.type_index = -1};
    return index < call->count ? &call->args[index] : &missing;
}

static const void *contents(const ffi_any_t *any)
{
    return any->v_obj + 1;
}

static int64_t integer(call_t *call, int32_t index, const char *name)
{
    const ffi_any_t *any = argument(call, index);
    if (any->type_index == FFI_INT || any->type_index == FFI_BOOL) {
        return any->v_int64;
    }
    if (any->type_index == FFI_SHAPE) { /* Disco passes the kind of a reduction as a shape (kind) */
        const ffi_shape_t *shape = contents(any);
        if (shape->size == 1) {
            return shape->data[0];
        }
    }
    refuse(call, "argument '%s': not an integer: type index %d", name, any->type_index);
    return 0;
}

/* Starts to read a call. If the worker has no world, an error is raised. */
static bool begin(call_t *call, const char *function, const ffi_any_t *args, int32_t count,
                  int32_t expected_count)
{
    *call = (call_t){.function = function, .args = args, .count = count};
    call->world = world_of_thread();
    if (call->world == NULL) {
        char text[ERROR_BYTES];
        snprintf(text, sizeof text, "%s: no world of Weft: call weft.tvm.init(session)", function);
        raise("RuntimeError", text);
        return false;
    }
    call->group = call->world->all;
    if (count != expected_count) {
        refuse(call, "invalid number of arguments: %d, expected %d", count, expected_count);
    }
    return true;
}

/* The same for a collective, whose argument in_group selects the ranks. */
static bool begin_in_group(call_t *call, const char *function, const ffi_any_t *args, int32_t count,
                           int32_t expected_count, int32_t in_group_index)
{
    if (!begin(call, function, args, count, expected_count)) {
        return false;
    }
    if (integer(call, in_group_index, "in_group") != 0) {
        call->group = call->world->group;
    }
    return true;
}

static weft_dtype_t dtype_of(int code, int bits)
{
    static const struct {
        uint8_t code, bits;
        weft_dtype_t dtype;
    } types[] = {
        {DL_FLOAT, 16, WEFT_DTYPE_F16},   {DL_FLOAT, 32, WEFT_DTYPE_F32},
        {DL_FLOAT, 64, WEFT_DTYPE_F64},   {DL_BFLOAT, 16, WEFT_DTYPE_BF16},
        {DL_INT, 8, WEFT_DTYPE_I8},       {DL_INT, 16, WEFT_DTYPE_I16},
        {DL_INT, 32, WEFT_DTYPE_I32},     {DL_INT, 64, WEFT_DTYPE_I64},
        {DL_UINT, 8, WEFT_DTYPE_U8},      {DL_UINT, 16, WEFT_DTYPE_U16},
        {DL_UINT, 32, WEFT_DTYPE_U32},    {DL_UINT, 64, WEFT_DTYPE_U64},
        {DL_BOOL, 8, WEFT_DTYPE_BOOL},    {DL_UINT, 1, WEFT_DTYPE_BOOL},
        {DL_COMPLEX, 64, WEFT_DTYPE_F32}, {DL_COMPLEX, 128, WEFT_DTYPE_F64},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (types[i].code == code && types[i].bits == bits) {
            return types[i].dtype;
        }
    }
    return WEFT_DTYPE_NONE;
}

/* The name of a type in a message, such as "float32". */
static const char *type_text(const ffi_tensor_t *tensor, char text[TEXT_BYTES])
{
    static const char *const names[] = {"int",    "uint",    "float", "handle",
                                        "bfloat", "complex", "bool"};
    char lanes[16] = "";
    if (tensor->lanes != 1) {
        snprintf(lanes, sizeof lanes, "x%u", tensor->lanes);
    }
    if (tensor->code < sizeof names / sizeof *names) {
        snprintf(text, TEXT_BYTES, "%s%u%s", names[tensor->code], tensor->bits, lanes);
    } else {
        snprintf(text, TEXT_BYTES, "%u bits of DLPack's type code %u%s", tensor->bits, tensor->code,
                 lanes);
    }
    return text;
}

static void set_type(call_t *call, const char *name, buffer_t *buffer)
{
    const ffi_tensor_t *tensor = buffer->tensor;
    uint32_t bits = (uint32_t)tensor->bits * tensor->lanes;
    buffer->dtype = dtype_of(tensor->code, tensor->bits);
    if (buffer->dtype != WEFT_DTYPE_NONE) {
        buffer->count *= (uint64_t)tensor->lanes * (tensor->code == DL_COMPLEX ? 2 : 1);
        return;
    }
    buffer->dtype = WEFT_DTYPE_U8;
    buffer->is_opaque = true;
    buffer->count *= bits / 8;
    if (bits == 0 || bits % 8 != 0) {
        char type[TEXT_BYTES];
        refuse(call, "argument '%s': unsupported type: %s", name, type_text(tensor, type));
    }
}

static bool is_contiguous(const ffi_tensor_t *tensor)
{
    int64_t expected = 1;
    for (int32_t i = tensor->rank - 1; tensor->strides != NULL && i >= 0; i--) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != expected) {
            return false;
        }
        expected *= tensor->shape[i];
    }
    return true;
}

/* Strides in a message, such as "(1, 4)". */
static const char *list_text(const int64_t *values, int32_t count, char text[TEXT_BYTES])
{
    size_t length = 0;
    text[0] = '\0';
    for (int32_t i = 0; i < count && length < TEXT_BYTES - 24; i++) {
        length += (size_t)snprintf(text + length, TEXT_BYTES - length, "%s%" PRId64,
                                   i == 0 ? "" : ", ", values[i]);
    }
    return text;
}

/* A tensor in the memory of the host. If there is none, the call is refused. */
static buffer_t tensor(call_t *call, int32_t index, const char *name)
{
    buffer_t buffer = {.count = 1, .dtype = WEFT_DTYPE_U8};
    const ffi_any_t *any = argument(call, index);
    const ffi_tensor_t *found = any->type_index == FFI_TENSOR       ? contents(any)
                                : any->type_index == FFI_TENSOR_PTR ? any->v_ptr
                                                                    : NULL;
    if (found == NULL) {
        refuse(call, "argument '%s': not a tensor: type index %d", name, any->type_index);
        return buffer;
    }
    for (int32_t i = 0; i < found->rank; i++) {
        buffer.count *= (uint64_t)found->shape[i];
    }
    if (found->device_type != DL_CPU && found->device_type != DL_CUDA_HOST &&
        found->device_type != DL_ROCM_HOST) {
        refuse(call, "argument '%s': not in memory of the host: DLPack device type %d", name,
               found->device_type);
    }
    if (buffer.count != 0 && !is_contiguous(found)) {
        char shape[TEXT_BYTES], strides[TEXT_BYTES];
        refuse(call, "argument '%s': not contiguous: shape (%s), strides (%s)", name,
               list_text(found->shape, found->rank, shape),
               list_text(found->strides, found->rank, strides));
    }
    buffer.tensor = found;
    set_type(call, name, &buffer);
    buffer.data = found->data == NULL ? NULL : (char *)found->data + found->byte_offset;
    return buffer;
}

/* Checks types and counts: send has the elements of send_parts blocks where recv has recv_parts. */
static void compare(call_t *call, const buffer_t *send, const buffer_t *recv, uint32_t send_parts,
                    uint32_t recv_parts)
{
    const ffi_tensor_t *from = send->tensor, *to = recv->tensor;
    if (from == NULL || to == NULL) {
        return;
    }
    if (from->code != to->code || from->bits != to->bits || from->lanes != to->lanes) {
        char types[2][TEXT_BYTES];
        refuse(call, "arguments 'send' and 'recv': different types: %s and %s",
               type_text(from, types[0]), type_text(to, types[1]));
    } else if (send_parts == 1 && recv->count != send->count * recv_parts) {
        refuse(call, "argument 'recv': %" PRIu64 " elements, expected %" PRIu64, recv->count,
               send->count * recv_parts);
    } else if (send_parts != 1 && send->count != recv->count * send_parts) {
        refuse(call, "argument 'send': %" PRIu64 " elements, expected %" PRIu64, send->count,
               recv->count * send_parts);
    }
}

/* The parts of a complex number are only added one by one. */
static void check_reduction(call_t *call, const buffer_t *buffer, weft_reduction_t kind)
{
    if (buffer->tensor == NULL) {
        return;
    }
    bool is_sum = kind == WEFT_REDUCTION_SUM || kind == WEFT_REDUCTION_AVG;
    if (buffer->is_opaque || (buffer->tensor->code == DL_COMPLEX && !is_sum)) {
        char type[TEXT_BYTES];
        refuse(call, "argument 'send': unsupported reduction: %s of %s", weft_reduction_name(kind),
               type_text(buffer->tensor, type));
    }
}

static weft_reduction_t reduction(call_t *call, int32_t index)
{
    static const weft_reduction_t kinds[] = {WEFT_REDUCTION_SUM, WEFT_REDUCTION_PROD,
                                             WEFT_REDUCTION_MIN, WEFT_REDUCTION_MAX,
                                             WEFT_REDUCTION_AVG};
    int64_t kind = integer(call, index, "reduce_kind");
    if (kind < 0 || kind >= (int64_t)(sizeof kinds / sizeof *kinds)) {
        refuse(call, "argument 'reduce_kind': invalid value %" PRId64 ": expected 0 to 4", kind);
        return WEFT_REDUCTION_SUM;
    }
    return kinds[kind];
}

/* After wrong arguments of a collective: the other ranks get the message instead of waiting. */
static int raise_refused(const call_t *call)
{
    char text[ERROR_BYTES];
    snprintf(text, sizeof text, "%s: %.400s", call->function, call->error);
    weft_group_refuse(call->group, WEFT_ERR_INVALID_ARGUMENT, text, NULL);
    return raise("ValueError", text);
}

/* ---- collectives: (send, .., in_group, recv), root is worker 0 of the group ---- */

static int all_reduce(void *self, const ffi_any_t *args, int32_t count, ffi_any_t *result)
{
    call_t call;
    (void)self, (void)result;
    if (!begin_in_group(&call, "allreduce", args, count, 4, 2)) {
        return -1;
    }
    buffer_t send = tensor(&call, 0, "send"), recv = tensor(&call, 3, "recv");
    weft_reduction_t kind = reduction(&call, 1);
    compare(&call, &send, &recv, 1, 1);
    check_reduction(&call, &send, kind);
    if (call.error[0] != '\0') {
        return raise_refused(&call);
    }
    return result_of(
        weft_all_reduce(send.data, recv.data, send.count, send.dtype, kind, call.group, NULL));
}

static int all_gather(void *self, const ffi_any_t *args, int32_t count, ffi_any_t *result)
{
    call_t call;
    (void)self, (void)result;
    if (!begin_in_group(&call, "allgather", args, count, 3, 1)) {
        return -1;
    }
    buffer_t send = tensor(&call, 0, "send"), recv = tensor(&call, 2, "recv");
    compare(&call, &send, &recv, 1, weft_group_size(call.group));
    if (call.error[0] != '\0') {
        return raise_refused(&call);
    }
    return result_of(
        weft_all_gather(send.data, recv.data, send.count, send.dtype, call.group, NULL));
}

static int broadcast(void *self, const ffi_any_t *args, int32_t count, ffi_any_t *result)
{
    call_t call;
    (void)self, (void)result;
    if (!begin_in_group(&call, "broadcast_from_worker0", args, count, 3, 1)) {
        return -1;
    }
    buffer_t recv = tensor(&call, 2, "recv"), send = recv;
    if (weft_group_rank(call.group) == 0) {
        send = tensor(&call, 0, "send");
        compare(&call, &send, &recv, 1, 1);
    }
    if (call.error[0] != '\0') {
        return raise_refused(&call);
    }
    return result_of(
        weft_broadcast(send.data, recv.data, recv.count, recv.dtype, 0, call.group, NULL));
}

static int scatter(void *self, const ffi_any_t *args, int32_t count, ffi_any_t *result)
{
    call_t call;
    (void)self, (void)result;
    if (!begin_in_group(&call, "scatter_from_worker0", args, count, 3, 1)) {
        return -1;
    }
    buffer_t recv = tensor(&call, 2, "recv"), send = {.data = NULL};
    if (weft_group_rank(call.group) == 0) {
        send = tensor(&call, 0, "send");
        compare(&call, &send, &recv, weft_group_size(call.group), 1);
    }
    if (call.error[0] != '\0') {
        return raise_refused(&call);
    }
    return result_of(
        weft_scatter(send.data, recv.data, recv.count, recv.dtype, 0, call.group, NULL));
}

static int gather(void *self, const ffi_any_t *args, int32_t count, ffi_any_t *result)
{
    call_t call;
    (void)self, (void)result;
    if (!begin_in_group(&call, "gather_to_worker0", args, count, 3, 1)) {
        return -1;
    }
    buffer_t send = tensor(&call, 0, "send"), recv = {.data = NULL};
    if (weft_group_rank(call.group) == 0) {
        recv = tensor(&call, 2, "recv");
        compare(&call, &send, &recv, 1, weft_group_size(call.group));
    }
    if (call.error[0] != '\0') {
        return raise_refused(&call);
    }
    return result_of(
        weft_gather(send.data, recv.data, send.count, send.dtype, 0, call.group, NULL));
}

/* ---- messages: between two workers of the session ---- */

/* Moves the tensor of a call to or from a worker; wrong arguments concern only this worker. */
static int move(call_t *call, int64_t peer, bool is_send)
{
    buffer_t buffer = tensor(call, 0, "buffer");
    if (peer < 0 || peer >= weft_group_size(call->group)) {
        refuse(call, "invalid worker %" PRId64 " for world size %u", peer,
               weft_group_size(call->group));
    }
    if (call->error[0] != '\0') {
        char text[ERROR_BYTES];
        snprintf(text, sizeof text, "%s: %.400s", call->function, call->error);
        return raise("ValueError", text);
    }
    uint32_t rank = (uint32_t)peer;
    return result_of(
        is_send ? weft_send(buffer.data, buffer.count, buffer.dtype, rank, call->group, NULL)
                : weft_recv(buffer.data, buffer.count, buffer.dtype, rank, call->group, NULL));
}

static int send_to_worker(void *self, const ffi_any_t *args, int32_t count, ffi_any_t *result)
{
    call_t call;
    (void)self, (void)result;
    return begin(&call, "send_to_worker", args, count, 2)
               ? move(&call, integer(&call, 1, "receiver_id"), true)
               : -1;
}

static int recv_from_worker(void *self, const ffi_any_t *args, int32_t count, ffi_any_t *result)
{
    call_t call;
    (void)self, (void)result;
    return begin(&call, "recv_from_worker", args, count, 2)
               ? move(&call, integer(&call, 1, "sender_id"), false)
               : -1;
}

static int recv_from_worker0(void *self, const ffi_any_t *args, int32_t count, ffi_any_t *result)
{
    call_t call;
    (void)self, (void)result;
    return begin(&call, "recv_from_worker0", args, count, 1) ? move(&call, 0, false) : -1;
}

/* The worker at the same place of the next or previous group. */
static int64_t neighbour(const call_t *call, int direction)
{
    return (int64_t)weft_group_rank(call->group) +
           direction * (int64_t)weft_group_size(call->world->group);
}

static int send_to_next_group(void *self, const ffi_any_t *args, int32_t count, ffi_any_t *result)
{
    call_t call;
    (void)self, (void)result;
    if (!begin(&call, "send_to_next_group", args, count, 1)) {
        return -1;
    }
    if (neighbour(&call, 1) >= weft_group_size(call.group)) {
        refuse(&call, "no next group: worker %u is in the last one", weft_group_rank(call.group));
    }
    return move(&call, neighbour(&call, 1), true);
}

static int recv_from_prev_group(void *self, const ffi_any_t *args, int32_t count, ffi_any_t *result)
{
    call_t call;
    (void)self, (void)result;
    if (!begin(&call, "recv_from_prev_group", args, count, 1)) {
        return -1;
    }
    if (neighbour(&call, -1) < 0) {
        refuse(&call, "no previous group: worker %u is in the first one",
               weft_group_rank(call.group));
    }
    return move(&call, neighbour(&call, -1), false);
}

/* Calls are done when they return. */
static int sync_worker(void *self, const ffi_any_t *args, int32_t count, ffi_any_t *result)
{
    (void)self, (void)args, (void)count, (void)result;
    return 0;
}

/* ---- start ---- */

static ffi_bytes_t bytes_of(const char *text)
{
    return (ffi_bytes_t){text, strlen(text)};
}

/* Calls a global function of TVM that takes nothing and returns an integer. */
static int call_global(const char *name, int64_t *out_value)
{
    ffi_any_t result = {.type_index = FFI_NONE};
    ffi_bytes_t bytes = bytes_of(name);
    void *function = NULL;
    if (ffi.TVMFFIFunctionGetGlobal(&bytes, &function) != 0) {
        return -1;
    }
    if (function == NULL) {
        return raise("RuntimeError", "init_ccl_per_worker: TVM has no Disco: its library "
                                     "libtvm_runtime_extra.so is not loaded");
    }
    int error = ffi.TVMFFIFunctionCall(function, NULL, 0, &result);
    ffi.TVMFFIObjectDecRef(function);
    *out_value = result.v_int64;
    return error;
}

static void read_text(call_t *call, int32_t index, const char *name, char text[ADDRESS_BYTES])
{
    const ffi_any_t *any = argument(call, index);
    ffi_bytes_t bytes = {"", 0};
    if (any->type_index == FFI_RAW_STR) {
        bytes = bytes_of(any->v_c_str);
    } else if (any->type_index == FFI_SMALL_STR) {
        bytes = (ffi_bytes_t){any->v_bytes, any->small_str_len};
    } else if (any->type_index == FFI_STR) {
        bytes = *(const ffi_bytes_t *)contents(any);
    } else {
        refuse(call, "argument '%s': not a text: type index %d", name, any->type_index);
    }
    if (bytes.size >= ADDRESS_BYTES) {
        refuse(call, "argument '%s': %zu bytes, expected less than %d", name, bytes.size,
               ADDRESS_BYTES);
        bytes.size = 0;
    }
    memcpy(text, bytes.data, bytes.size);
    text[bytes.size] = '\0';
}

/*
 * (address, first): joins the world of the session. first is the result of runtime.disco.empty with
 * worker0_only and in_group: None except on the first worker of each group. Disco tells workers the
 * number of groups in no other way.
 */
static int init_per_worker(void *self, const ffi_any_t *args, int32_t count, ffi_any_t *result)
{
    char address[ADDRESS_BYTES];
    int64_t rank = 0, size = 0;
    call_t call = {.function = "init_ccl_per_worker", .args = args, .count = count};
    (void)self, (void)result;
    read_text(&call, 0, "address", address);
    if (call.error[0] != '\0') {
        return raise("ValueError", call.error);
    }
    if (call_global("runtime.disco.worker_rank", &rank) != 0 ||
        call_global("runtime.disco.world_size", &size) != 0) {
        return -1;
    }
    bool is_first = argument(&call, 1)->type_index != FFI_NONE;
    return result_of(world_join((uint32_t)rank, (uint32_t)size, address, is_first));
}

static const struct {
    const char *name;
    ffi_call_fn call;
} functions[] = {
    {"allreduce", all_reduce},
    {"allgather", all_gather},
    {"broadcast_from_worker0", broadcast},
    {"scatter_from_worker0", scatter},
    {"gather_to_worker0", gather},
    {"recv_from_worker0", recv_from_worker0},
    {"send_to_next_group", send_to_next_group},
    {"recv_from_prev_group", recv_from_prev_group},
    {"send_to_worker", send_to_worker},
    {"recv_from_worker", recv_from_worker},
    {"sync_worker", sync_worker},
    {"init_ccl_per_worker", init_per_worker},
};

/* libtvm_ffi.so as TVM has loaded it, by its own name and maybe for its own use only. */
static bool find_functions(void)
{
    void *library = dlopen("libtvm_ffi.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL) {
        return false;
    }
#define FFI_FIND(name, result, arguments)                                                          \
    *(void **)&ffi.name = dlsym(library, #name);                                                   \
    if (ffi.name == NULL) {                                                                        \
        return false;                                                                              \
    }
    FFI_FUNCTIONS(FFI_FIND)
    return true;
}

static bool register_function(const char *ccl, size_t index)
{
    char name[64];
    void *function = NULL;
    snprintf(name, sizeof name, "runtime.disco.%s.%s", ccl, functions[index].name);
    ffi_bytes_t bytes = bytes_of(name);
    if (ffi.TVMFFIFunctionCreate(NULL, functions[index].call, NULL, &function) != 0) {
        return false;
    }
    int error = ffi.TVMFFIFunctionSetGlobal(&bytes, function, 1);
    ffi.TVMFFIObjectDecRef(function);
    return error == 0;
}

/* If it fails, Disco reports that it cannot find the functions. */
__attribute__((constructor)) static void register_functions(void)
{
    bool is_good = find_functions();
    for (size_t i = 0; is_good && i < sizeof functions / sizeof *functions; i++) {
        is_good = register_function("", i) && register_function("weft", i);
    }
    if (!is_good) {
        fprintf(stderr, "libweft_tvm.so: cannot register functions: no libtvm_ffi.so is loaded, or "
                        "its version is not supported\n");
    }
}
