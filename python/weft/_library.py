# SPDX-License-Identifier: Apache-2.0
"""The C library for the Python files of this package, by ctypes: calls run without the GIL, an error is an exception.

Functions and structures are declared here as in tests/abi/libweft.abi; tests/python/test_library.py compares the two.
A function that returns a status raises for an error. _core._with runs one under the lock of a group, stream, session or
handle and passes its address: an object in use by another thread waits, and one of a closed context is an error. `from
weft._lazy import library` imports this module at its first use, as ctypes costs a millisecond.
"""
import ctypes
import math
import sys
import time

from weft import _core
from weft._values import integer, integer_list, path, text  # noqa: F401

_FUNCTIONS = """
weft_status_t weft_fuser_create(weft_group_t *, const weft_fuser_params_t *, weft_fuser_t **)
weft_status_t weft_fuser_add(weft_fuser_t *, void *, uint64_t, weft_dtype_t, weft_reduction_t, const char *)
weft_status_t weft_fuser_flush(weft_fuser_t *)
weft_status_t weft_fuser_query(weft_fuser_t *)
weft_status_t weft_fuser_wait(weft_fuser_t *)
weft_status_t weft_fuser_reset(weft_fuser_t *)
weft_status_t weft_fuser_get_stats(weft_fuser_t *, weft_fuser_stats_t *)
void weft_fuser_destroy(weft_fuser_t *)
void weft_fuser_leave(weft_fuser_t *)
weft_status_t weft_capture_begin(weft_group_t *, const weft_capture_params_t *)
weft_status_t weft_capture_end(weft_group_t *, weft_capture_t **)
weft_status_t weft_capture_cancel(weft_group_t *)
weft_status_t weft_capture_launch(weft_capture_t *, weft_stream_t *)
weft_status_t weft_capture_ready(weft_capture_t *, uint32_t, weft_stream_t *)
weft_status_t weft_capture_wait(weft_capture_t *, uint32_t, weft_stream_t *)
weft_status_t weft_capture_wait_all(weft_capture_t *)
weft_status_t weft_capture_get_info(const weft_capture_t *, weft_capture_info_t *)
weft_status_t weft_capture_explain(const weft_capture_t *, weft_format_t, char **)
void weft_capture_destroy(weft_capture_t *)
void weft_capture_leave(weft_capture_t *)
weft_status_t weft_pass_ready_times(const weft_graph_view_t *, const uint64_t *, uint64_t *)
weft_status_t weft_pass_insert_collectives(const weft_graph_view_t *, const weft_allocator_t *, weft_edit_list_t **)
weft_status_t weft_pass_bucket(const weft_graph_view_t *, const weft_bucket_params_t *, weft_edit_list_t **,
    weft_bucket_forecast_t *)
weft_status_t weft_pass_algorithms(const weft_graph_view_t *, const weft_algorithms_params_t *, weft_edit_list_t **)
weft_status_t weft_pass_order(const weft_graph_view_t *, const weft_allocator_t *, weft_edit_list_t **)
weft_status_t weft_pass_start_wait(const weft_graph_view_t *, const weft_allocator_t *, weft_edit_list_t **)
weft_status_t weft_pass_schedule(const weft_graph_view_t *, const weft_schedule_params_t *, weft_edit_list_t **,
    weft_schedule_report_t *)
weft_status_t weft_edits_check(const weft_graph_view_t *, const weft_edit_list_t *)
weft_status_t weft_edit_list_create(const weft_allocator_t *, weft_edit_list_t **)
void weft_edit_list_destroy(weft_edit_list_t *)
weft_status_t weft_edit_list_add(weft_edit_list_t *, const weft_edit_t *)
size_t weft_edit_list_count(const weft_edit_list_t *)
const weft_edit_t * weft_edit_list_get(const weft_edit_list_t *, size_t)
weft_status_t weft_registry_create(const weft_allocator_t *, weft_registry_t **)
void weft_registry_destroy(weft_registry_t *)
weft_status_t weft_registry_load_ops(weft_registry_t *, const char *)
weft_status_t weft_registry_load_plugin(weft_registry_t *, const char *)
const weft_op_def_t * weft_registry_find_op(const weft_registry_t *, const char *, const char *, int32_t)
const char * weft_reduction_name(weft_reduction_t)
weft_status_t weft_group_refuse(weft_group_t *, weft_status_t, const char *, weft_stream_t *)
weft_status_t weft_context_barrier(weft_context_t *)
weft_status_t weft_context_topology(weft_context_t *, weft_format_t, uint32_t, char **)
weft_status_t weft_context_dump(weft_context_t *, const char *)
weft_status_t weft_context_peer_info(const weft_context_t *, uint32_t, weft_peer_info_t *)
weft_status_t weft_context_link_stats(const weft_context_t *, uint32_t, weft_link_stats_t *)
uint32_t weft_context_member(const weft_context_t *, uint32_t)
const char * weft_context_launcher(const weft_context_t *)
uint32_t weft_context_host_count(const weft_context_t *)
const char * weft_collective_name(weft_collective_t)
weft_context_t * weft_group_context(const weft_group_t *)
weft_status_t weft_group_create(weft_context_t *, const weft_group_params_t *, weft_group_t **)
weft_status_t weft_group_create_ranks(weft_group_t *, const uint32_t *, uint32_t, weft_group_t **)
weft_status_t weft_group_duplicate(weft_group_t *, weft_group_t **)
uint32_t weft_group_world_rank(const weft_group_t *, uint32_t)
weft_status_t weft_group_set_order(weft_group_t *, weft_order_t, const uint32_t *, uint32_t)
weft_status_t weft_group_set_algorithm(weft_group_t *, weft_collective_t, const char *)
weft_status_t weft_group_status(weft_group_t *)
const char * weft_group_last_algorithm(const weft_group_t *)
const char * weft_group_last_path(const weft_group_t *)
weft_status_t weft_compile_option_set(weft_compile_params_t *, const char *, const char *)
weft_status_t weft_compile(const weft_compile_params_t *, weft_plan_t **)
void weft_plan_release(weft_plan_t *)
weft_status_t weft_plan_load(const char *, const weft_registry_t *, weft_plan_t **)
weft_status_t weft_plan_save(const weft_plan_t *, const char *)
weft_status_t weft_plan_explain(const weft_plan_t *, weft_format_t, char **)
weft_status_t weft_plan_compare(const weft_plan_t *, char **)
weft_status_t weft_plan_why(const weft_plan_t *, const char *, char **)
weft_status_t weft_plan_get_info(const weft_plan_t *, weft_plan_info_t *)
size_t weft_plan_binding_count(const weft_plan_t *)
weft_status_t weft_plan_get_binding(const weft_plan_t *, size_t, weft_binding_t *)
weft_status_t weft_model_save(const weft_plan_t *, const weft_named_tensor_t *, size_t, const char *)
int64_t weft_tensor_elem_count(const weft_tensor_desc_t *)
size_t weft_dtype_size_bytes(weft_dtype_t)
const weft_compile_option_t * weft_compile_option(size_t)
void weft_compile_option_help(size_t, const char *, char *, size_t)
weft_device_t * weft_context_device(const weft_context_t *)
weft_status_t weft_mem_keep(weft_context_t *)
weft_status_t weft_session_create(const weft_session_params_t *, weft_session_t **)
void weft_session_destroy(weft_session_t *)
weft_status_t weft_session_input_memory(weft_session_t *, const char *, void **, size_t *)
weft_status_t weft_session_set_input(weft_session_t *, const char *, const void *, size_t)
weft_status_t weft_session_set_scalar(weft_session_t *, const char *, double)
weft_status_t weft_session_step(weft_session_t *)
weft_status_t weft_session_micro_step(weft_session_t *)
weft_status_t weft_session_eval(weft_session_t *)
weft_status_t weft_session_flush(weft_session_t *)
weft_status_t weft_session_param_digest(weft_session_t *, char *)
weft_status_t weft_session_set_steps_done(weft_session_t *, uint64_t)
uint32_t weft_session_micro_count(const weft_session_t *)
weft_status_t weft_session_get_stats(const weft_session_t *, weft_session_stats_t *)
weft_status_t weft_session_save_checkpoint(weft_session_t *, const char *, const weft_checkpoint_info_t *)
weft_status_t weft_session_load_checkpoint(weft_session_t *, const char *, weft_checkpoint_info_t *)
weft_status_t weft_session_write_trace(weft_session_t *, const char *)
weft_status_t weft_session_write_profile(weft_session_t *, const char *)
size_t weft_session_param_count(const weft_session_t *)
weft_status_t weft_session_param_info(const weft_session_t *, size_t, const char **, weft_tensor_desc_t *)
weft_status_t weft_session_get_param(weft_session_t *, size_t, void *, size_t)
weft_status_t weft_session_set_param(weft_session_t *, size_t, const void *, size_t)
weft_status_t weft_session_get_gradient(weft_session_t *, size_t, void *, size_t)
size_t weft_session_state_count(const weft_session_t *)
weft_status_t weft_session_state_info(const weft_session_t *, size_t, const char **, weft_tensor_desc_t *)
weft_status_t weft_session_get_state(weft_session_t *, size_t, void *, size_t)
weft_status_t weft_session_set_state(weft_session_t *, size_t, const void *, size_t)
weft_status_t weft_session_get_output(weft_session_t *, const char *, void *, size_t, weft_tensor_desc_t *)
weft_status_t weft_session_get_scalar(weft_session_t *, const char *, double *)
"""

_STRUCTURES = """
weft_fuser_params_t: size_t struct_size, uint64_t bytes window_ns, void *stream
weft_fuser_stats_t: size_t struct_size, uint64_t step_count tensor_count bucket_count largest_bucket_bytes call_count
    reduced_bytes copied_bytes
weft_capture_params_t: size_t struct_size, char *bucket *costs_path, int no_times, void *stream
weft_capture_info_t: size_t struct_size, uint32_t call_count bucket_count run_count, uint64_t largest_bucket_bytes
    buffer_bytes copied_bytes replays, char digest[65]
weft_op_def_t: char *domain *name, int since_version, uint8_t inputs_min inputs_max outputs_min outputs_max,
    uint32_t dtypes effects, int8_t in_place[4], void *attrs, size_t attr_count, void *infer *cost *grad *equivalent,
    char *doc, int ordering, char *start *wait, void *rules *facts
weft_view_value_t: char *name, int dtype, uint64_t bytes, uint32_t producer grad_of first_user user_count
weft_view_op_t: char *name, void *def, uint32_t effects group first_input input_count first_output output_count,
    int reduction, uint32_t present
weft_graph_view_t: size_t struct_size, uint32_t value_count, void *values, uint32_t op_count, void *ops,
    uint32_t order_count, void *order *op_inputs *op_outputs *users, uint32_t edge_count, void *edges
weft_edit_t: int kind, uint32_t value, char *op_name, int reduction, uint32_t group, void *members,
    uint32_t member_count op_a op_b, char *text, uint32_t parts
weft_bucket_cost_t: void *pieces, uint32_t piece_count, void *points, uint32_t point_count
weft_bucket_params_t: size_t struct_size, char *policy, void *ready_ns, uint32_t world_size, void *cost,
    char *costs_path, void *allocator *reduce_scatter_cost *all_gather_cost
weft_bucket_forecast_t: size_t struct_size, uint32_t bucket_count optimum_count, uint64_t ready_ps chosen_ps optimum_ps
    lower_bound_ps comm_ps
weft_algorithms_params_t: size_t struct_size, void *group_sizes, uint32_t group_count, int order, char *costs_path,
    void *registry *allocator
weft_schedule_params_t: size_t struct_size, void *op_ns *kept *to_end, uint32_t in_flight, uint64_t most_live_bytes,
    void *allocator
weft_schedule_cost_t: uint64_t finish_ps exposed_ps peak_bytes, uint32_t in_flight
weft_schedule_report_t: size_t struct_size, weft_schedule_cost_t given chosen, int changed
weft_group_params_t: size_t struct_size, void *parent, int64_t key, uint64_t staging_bytes, uint32_t color
weft_peer_info_t: size_t struct_size, uint32_t host, char host_name[64] transport[16] reason[160]
weft_link_stats_t: size_t struct_size, uint64_t bytes_sent bytes_received messages_sent messages_received, double busy_s
weft_tensor_desc_t: int dtype layout, uint32_t rank, int64_t dims[8], void *data
weft_input_shape_t: char *name, uint32_t rank, int64_t dims[8]
weft_compile_params_t: size_t struct_size, char *model_path, uint32_t world_size, int64_t batch, void *shapes,
    uint32_t shape_count, char *loss *optimizer, double lr momentum weight_decay, char *bucket,
    void *registry *allocator *log *log_user, char *costs_path *profile_path, int shard_optimizer decouple,
    uint32_t accumulate global_micro_batches, char *wire, double clip_norm, char *grads_path, uint32_t in_flight,
    uint64_t arena_limit, int infer split_batch, void *rank_models, uint32_t rank_model_count,
    char *ops_path *emit_path *topology_path, int64_t open_batch, char *print_after *stop_after, int verify_each,
    void *on_pass *on_pass_user, int shard_parameters, char *train *freeze, int training_form, char *no_decay,
    double label_smoothing, char *lr_schedule, uint32_t lr_steps warmup_steps, double min_lr lr_gamma,
    int sync_batch_norm, char *algo *order, uint32_t tensor_parallel, char *recompute *precision,
    double beta1 beta2 epsilon, uint32_t pipeline pipeline_micro_batches, char *device
weft_compile_option_t: char *field, size_t offset, int type, uint32_t flags, char *name *arg, char letter,
    double low high, void *choices, char *by_default *implies *needs *excludes *reason *help
weft_session_params_t: size_t struct_size, void *context *plan *registry, int trace
weft_plan_info_t: size_t struct_size, char *model_name, uint32_t world_size, int64_t batch, char *policy *optimizer,
    uint32_t bucket_count, uint64_t arena_bytes live_bytes fusion_copied_bytes, char structure_digest[65]
    weights_digest[65], int kind, uint32_t accumulate global_micro_batches, int shard_optimizer decouple,
    double clip_norm, int split_batch rank_weights has_eval, int64_t batch_ranks, int bits, char *device
weft_binding_t: size_t struct_size, char *name, int role, weft_tensor_desc_t desc, double default_value
weft_named_tensor_t: char *name, weft_tensor_desc_t desc
weft_session_stats_t: size_t struct_size, uint64_t steps, double step_ms_p50 step_ms_mean compute_ms_p50 comm_ms_p50
    exposed_comm_ms_p50 overlap_fraction, int inline_progress, uint64_t arena_bytes scratch_bytes fusion_copied_bytes,
    char *kernels, uint64_t timeline_first_step timeline_last_step
weft_checkpoint_info_t: size_t struct_size, uint64_t seed epoch sample sample_count, double lr, uint64_t step
    global_batch, uint32_t world_size, char optimizer[32], uint32_t tensor_count
"""

OK, IN_PROGRESS, AGAIN, ERR_ABORTED = 0, 1, 2, -10
FOREVER = 2**64 - 1
_TYPES = {"void": None, **{name: getattr(ctypes, f"c_{name}") for name in ("char", "size_t", "int", "double")},
          **{f"{name}_t": getattr(ctypes, f"c_{name}")
             for name in ("uint64", "int64", "uint32", "int32", "uint8", "int8")}}
functions = {line.split("(")[0].split()[-1]: line for line in _FUNCTIONS.strip().replace("\n    ", " ").splitlines()}
structures = dict(line.split(": ") for line in _STRUCTURES.strip().replace("\n    ", " ").splitlines())
_library = ctypes.CDLL(_core.__file__)  # which is linked with the library


def __getattr__(name):
    """Declares a function or a structure at its first use."""
    if name in functions:
        made = _function(name, functions[name])
    elif name in structures:
        made = _structure(name, structures[name])
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, made)  # of threads that come here at the same time all have the first one's


def _type(text):
    """Of a parameter or result: text is `const char *`, another pointer, a number, or an enumeration."""
    if text.endswith("*"):
        return ctypes.c_char_p if text == "const char *" else ctypes.c_void_p
    return _TYPES.get(text, ctypes.c_int)


def _function(name, line):
    result, parameters = line[:-1].split(f"{name}(")
    function = getattr(_library, name)
    function.argtypes = [_type(text) for text in parameters.split(", ") if text != "void"]
    function.restype = _type(result.strip())
    if result == "weft_status_t ":
        function.errcheck = _core._checked  # no Python runs before it, so the message is still that of the call
    return function


def _structure(name, members):
    fields = []
    for member in members.split(", "):
        kind, *names = member.split()
        for field in names:
            field, _, length = field.partition("[")
            if field[0] == "*":
                fields.append((field[1:], ctypes.c_char_p if kind == "char" else ctypes.c_void_p))
            else:
                made = _TYPES.get(kind) or getattr(sys.modules[__name__], kind)
                fields.append((field, made * int(length[:-1]) if length else made))
    sized = {"__init__": _init} if fields[0][0] == "struct_size" else {}
    return type(name, (ctypes.Structure,), {"_fields_": fields, **sized})


def _init(self, **values):
    ctypes.Structure.__init__(self, ctypes.sizeof(self), **values)


_free = ctypes.CDLL(None).free
_free.argtypes = [ctypes.c_void_p]
_free.restype = None


def own(where, address, release, what, gone=None):
    """A handle of an object of the library that must end before its context: release(address) ends it."""
    try:
        return _core._Handle(where, address, release, what, gone or
                             f"the {what} is gone: it was destroyed, or its context left (weft.finalize)")
    except BaseException:
        release(address)
        raise


def on_stream(holder, stream, function, *args):
    """function(address of holder, *args, address of stream or None), again while there is no room."""
    def with_stream(address):
        if stream is None:
            return function(address, *args, None)
        return _core._with(stream, lambda last: function(address, *args, last))

    while (status := _core._with(holder, with_stream)) == AGAIN:
        time.sleep(50e-6)
    return status


def filled(holder, function, structure):
    """A structure that function(address of holder, &structure) fills."""
    out = structure()
    _core._with(holder, function, ctypes.byref(out))
    return out


def facts(structure, names=None):
    """Members of a structure as a dict. names: "key", "key=member", with "?" after a truth; None: all of them."""
    found = {}
    for name in names.split() if names else (name for name, _ in structure._fields_ if name != "struct_size"):
        key, _, member = name.rstrip("?").partition("=")
        value = getattr(structure, member or key)
        found[key] = value.decode() if isinstance(value, bytes) else bool(value) if name[-1] == "?" else value
    return found


def report(holder, function, *args):
    """The text that function(address of holder, *args, &text) allocates."""
    out = ctypes.c_void_p()
    _core._with(holder, function, *args, ctypes.byref(out))
    text = ctypes.string_at(out.value).decode("utf-8", "replace")
    _free(out)
    return text


def explain(holder, function, json):
    """A report: text, or with json what it says as a dict."""
    text = report(holder, function, 1 if json else 0)
    if not json:
        return text
    from json import loads
    return loads(text)


def described(desc):
    """dtype and shape of a tensor."""
    return dict(dtype=_core._dtype_name(desc.dtype), shape=tuple(desc.dims[:desc.rank]))


def publish():
    """Plugins find the library's functions among global symbols, where Python's imports do not put them."""
    ctypes.CDLL(_core.__file__, ctypes.RTLD_GLOBAL)


def number(value, name):
    """value as a finite float of at least 0; None: 0."""
    try:
        number = 0.0 if value is None else ctypes.c_double(value).value  # which accepts no text
    except TypeError:
        raise TypeError(f"{name} must be a number, not {type(value)}") from None
    except OverflowError:
        raise ValueError(f"{name}: an integer is out of range of float") from None
    if not 0 <= number < math.inf:
        raise ValueError(f"{name}: invalid value {value!r}: must be a number of at least 0")
    return number


_INTEGERS = dict(enumerate((ctypes.c_int64, ctypes.c_int32, ctypes.c_int16, ctypes.c_int8, ctypes.c_uint64,
                            ctypes.c_uint32, ctypes.c_uint16, ctypes.c_uint8, ctypes.c_uint8), 5))  # by weft_dtype_t


def integers(values, name, most, least=0):
    """A list of the elements of any buffer of integers."""
    address, count, dtype, kept = _core._memory(values, name, False)
    if count == 0:
        return []
    if dtype not in _INTEGERS:
        raise TypeError(f"{name} must have integers, not {_core._dtype_name(dtype)}")
    if count >= 2**28:
        raise ValueError(f"{name} is too long: {count} elements")
    found = (_INTEGERS[dtype] * count).from_address(address)[:]
    del kept
    if min(found) < least or max(found) > most:
        i = next(i for i, value in enumerate(found) if not least <= value <= most)
        raise ValueError(f"{name}[{i}]: {found[i]} is out of range: must be between {least} and {most}")
    return found
