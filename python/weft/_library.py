# SPDX-License-Identifier: Apache-2.0
"""The C library for the Python files of this package, by ctypes: calls run without the GIL, an error is an exception.

Functions and structures are declared here as in tests/abi/libweft.abi; tests/python/test_library.py compares the two.
A function that returns a status raises for an error. _core._with runs one under the lock of a group, stream or handle
and passes its address: an object in use by another thread waits, and one of a closed context is an error. This module
is imported at first use, as ctypes costs a millisecond.
"""
import ctypes
import json as _json
import operator
import os
import re
import time

from weft import _core

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
const weft_op_def_t * weft_registry_find_op(const weft_registry_t *, const char *, const char *, int32_t)
const char * weft_reduction_name(weft_reduction_t)
weft_status_t weft_group_refuse(weft_group_t *, weft_status_t, const char *, weft_stream_t *)
"""

_STRUCTURES = """
weft_fuser_params_t: size_t struct_size, uint64_t bytes, uint64_t window_ns, void *stream
weft_fuser_stats_t: size_t struct_size, uint64_t step_count, uint64_t tensor_count, uint64_t bucket_count,
    uint64_t largest_bucket_bytes, uint64_t call_count, uint64_t reduced_bytes, uint64_t copied_bytes
weft_capture_params_t: size_t struct_size, char *bucket, char *costs_path, int no_times, void *stream
weft_capture_info_t: size_t struct_size, uint32_t call_count, uint32_t bucket_count, uint32_t run_count,
    uint64_t largest_bucket_bytes, uint64_t buffer_bytes, uint64_t copied_bytes, uint64_t replays, char digest[65]
weft_op_def_t: char *domain, char *name, int since_version, uint8_t inputs_min, uint8_t inputs_max, uint8_t outputs_min,
    uint8_t outputs_max, uint32_t dtypes, uint32_t effects, int8_t in_place[4], void *attrs, size_t attr_count,
    void *infer, void *cost, void *grad, void *equivalent, char *doc, int ordering, char *start, char *wait,
    void *rules, void *facts
weft_view_value_t: char *name, int dtype, uint64_t bytes, uint32_t producer, uint32_t grad_of, uint32_t first_user,
    uint32_t user_count
weft_view_op_t: char *name, void *def, uint32_t effects, uint32_t group, uint32_t first_input, uint32_t input_count,
    uint32_t first_output, uint32_t output_count, int reduction, uint32_t present
weft_graph_view_t: size_t struct_size, uint32_t value_count, void *values, uint32_t op_count, void *ops,
    uint32_t order_count, void *order, void *op_inputs, void *op_outputs, void *users, uint32_t edge_count, void *edges
weft_edit_t: int kind, uint32_t value, char *op_name, int reduction, uint32_t group, void *members,
    uint32_t member_count, uint32_t op_a, uint32_t op_b, char *text, uint32_t parts
weft_bucket_cost_t: void *pieces, uint32_t piece_count, void *points, uint32_t point_count
weft_bucket_params_t: size_t struct_size, char *policy, void *ready_ns, uint32_t world_size, void *cost,
    char *costs_path, void *allocator, void *reduce_scatter_cost, void *all_gather_cost
weft_bucket_forecast_t: size_t struct_size, uint32_t bucket_count, uint32_t optimum_count, uint64_t ready_ps,
    uint64_t chosen_ps, uint64_t optimum_ps, uint64_t lower_bound_ps, uint64_t comm_ps
weft_algorithms_params_t: size_t struct_size, void *group_sizes, uint32_t group_count, int order, char *costs_path,
    void *registry, void *allocator
weft_schedule_params_t: size_t struct_size, void *op_ns, void *kept, void *to_end, uint32_t in_flight,
    uint64_t most_live_bytes, void *allocator
weft_schedule_cost_t: uint64_t finish_ps, uint64_t exposed_ps, uint64_t peak_bytes, uint32_t in_flight
weft_schedule_report_t: size_t struct_size, weft_schedule_cost_t given, weft_schedule_cost_t chosen, int changed
"""

_TYPES = {"size_t": ctypes.c_size_t, "uint64_t": ctypes.c_uint64, "int64_t": ctypes.c_int64, "uint32_t": ctypes.c_uint32,
          "uint8_t": ctypes.c_uint8,
          "int8_t": ctypes.c_int8, "int32_t": ctypes.c_int32, "int": ctypes.c_int, "double": ctypes.c_double, "char": ctypes.c_char, "void": None}

OK, IN_PROGRESS, AGAIN, ERR_ABORTED = 0, 1, 2, -10
FOREVER = 2**64 - 1


def _type(text):
    """Of a parameter or result: text is `const char *`, another pointer, a number, or an enumeration."""
    if text.endswith("*"):
        return ctypes.c_char_p if text == "const char *" else ctypes.c_void_p
    return _TYPES.get(text, ctypes.c_int)


def declarations():
    """The functions, a line each."""
    return _FUNCTIONS.strip().replace("\n    ", " ").splitlines()


def _declare(library, line):
    result, name, parameters = re.fullmatch(r"(.+?)\s?(weft_\w+)\((.*)\)", line).groups()
    function = getattr(library, name)
    function.argtypes = [_type(text) for text in parameters.split(", ")]
    function.restype = _type(result)
    if result == "weft_status_t":
        function.errcheck = _core._checked  # no Python runs before it, so the message is still that of the call
    return name, function


def _structure(name, members):
    fields = []
    for member in members.split(","):
        kind, star, field, length = re.fullmatch(r"\s*(\w+) (\*?)(\w+)(?:\[(\d+)\])?", member).groups()
        kind = (ctypes.c_char_p if kind == "char" else ctypes.c_void_p) if star else _TYPES.get(kind) or structures[kind]
        fields.append((field, kind * int(length) if length else kind))
    sized = {"__init__": _init} if fields[0][0] == "struct_size" else {}
    return type(name, (ctypes.Structure,), {"_fields_": fields, **sized})


def _init(self, **values):
    ctypes.Structure.__init__(self, ctypes.sizeof(self), **values)


structures = {}
for _name, _members in re.findall(r"(\w+):([^:]*)(?=\n\w|\n$)", _STRUCTURES):
    structures[_name] = _structure(_name, _members)
_library = ctypes.CDLL(_core.__file__)  # which is linked with the library
functions = dict(_declare(_library, line) for line in declarations())
globals().update(structures)
globals().update(functions)
_free = ctypes.CDLL(None).free
_free.argtypes = [ctypes.c_void_p]
_free.restype = None


def on_stream(holder, stream, function, *args):
    """function(address of holder, *args, address of stream or None), again while there is no room."""
    def with_stream(address):
        if stream is None:
            return function(address, *args, None)
        return _core._with(stream, lambda last: function(address, *args, last))

    while (status := _core._with(holder, with_stream)) == AGAIN:
        time.sleep(50e-6)
    return status


def facts(holder, function, structure):
    """What function writes into a structure, as a dict."""
    out = structure()
    _core._with(holder, function, ctypes.byref(out))
    found = {name: getattr(out, name) for name, _ in out._fields_ if name != "struct_size"}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}


def explain(holder, function, json):
    """A report: text, or with json what it says as a dict."""
    out = ctypes.c_void_p()
    _core._with(holder, function, 1 if json else 0, ctypes.byref(out))
    text = ctypes.string_at(out.value).decode("utf-8", "replace")
    _free(out)
    return _json.loads(text) if json else text


def integer(value, name, most, least=0):
    """value as an int that the library's type has: ctypes would cut it."""
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value)}") from None
    if not least <= value <= most:
        raise ValueError(f"{name}: {value} is out of range: must be between {least} and {most}")
    return value


def text(value, name):
    """value as a C string."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be str, not {type(value)}")
    if "\0" in value:
        raise ValueError(f"{name}: {value!r} has a null character")
    return value.encode()


def path(value, name):
    """value, or None, as a file's name."""
    try:
        value = None if value is None else os.fsencode(value)
    except TypeError:
        raise TypeError(f"{name} must be a path, not {type(value)}") from None
    if value is not None and b"\0" in value:
        raise ValueError(f"{name}: {value!r} has a null character")
    return value


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
