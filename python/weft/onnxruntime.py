# SPDX-License-Identifier: Apache-2.0
"""Collectives as operators of ONNX Runtime on CPUs, with onnxruntime as PyPI has it.

    import onnxruntime, weft.onnxruntime
    options = onnxruntime.SessionOptions()
    weft.onnxruntime.register(options, "model.onnx")
    session = onnxruntime.InferenceSession("model.onnx", options)

Start it by `weft run -n 2 -- python3 serve.py`, `mpirun` or `srun`. Models may then have AllReduce, AllGather and AllToAll of
domain com.microsoft, which ONNX Runtime has in builds with NCCL only, and Weft's collectives, domain weft.

docs/onnxruntime.md has operators, limits and figures.
"""
from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import onnxruntime

import weft

LIBRARY = weft.library("onnxruntime")


def register(options: Any, model: str | os.PathLike[str] | bytes | None = None, domains: list[str] | None = None) -> Any:
    """Adds operators to an onnxruntime.SessionOptions, with which sessions are created afterwards. Returns it.

    model    the path of the model, or its bytes: its imports decide whether domain com.microsoft is added to domain weft
    domains  a list of weft and com.microsoft, in place of a model; without both weft

    A model that does not import com.microsoft must have a session without our domain of that name: ONNX Runtime does not find
    its own fused operators otherwise.
    """
    if options.execution_mode != onnxruntime.ExecutionMode.ORT_SEQUENTIAL:
        raise ValueError("weft.onnxruntime: execution_mode is ORT_PARALLEL, which runs collectives in an order of its own on "
                         "each rank: expected ORT_SEQUENTIAL")
    if domains is None:
        domains = ["weft", "com.microsoft"] if model is not None and "com.microsoft" in imports_of(model) else ["weft"]
    if isinstance(domains, str) or not domains or not set(domains) <= {"weft", "com.microsoft"}:
        raise ValueError(f"weft.onnxruntime: invalid value {domains!r} for domains: expected a list of weft and com.microsoft")
    options.add_session_config_entry("weft.domains", ",".join(sorted(set(domains), reverse=True)))
    options.register_custom_ops_library(LIBRARY)
    return options


def imports_of(model: str | os.PathLike[str] | bytes) -> set[str]:
    """The domains that an ONNX file imports, by a walk over the fields of the outermost message only."""
    opset_import, domain = 8, 1  # fields of ModelProto and OperatorSetIdProto
    found = set()
    if isinstance(model, (bytes, bytearray, memoryview)):
        where, file = "model", io.BytesIO(model)
    else:
        where, file = os.fspath(model), open(model, "rb")  # pylint: disable=consider-using-with
    with file:
        try:
            for field, value in fields_of(file):
                if field == opset_import:
                    found |= {name.read().decode() for number, name in fields_of(value) if number == domain}
        except (EOFError, UnicodeDecodeError):
            raise ValueError(f"weft.onnxruntime: {where}: not an ONNX model: pass domains") from None
    return found


def fields_of(file: BinaryIO) -> Iterator[tuple[int, BinaryIO]]:
    """Numbers of fields with their contents as files; contents of more than 1 KiB are passed over, and empty."""
    while (key := varint_of(file, at_end=True)) is not None:
        wire = key & 7
        if wire == 0:
            varint_of(file)
            continue
        if wire not in (1, 2, 5):
            raise EOFError
        size = {1: 8, 5: 4}.get(wire) or varint_of(file)
        if size > 1024:
            file.seek(size, os.SEEK_CUR)
            yield key >> 3, io.BytesIO()
            continue
        contents = file.read(size)
        if len(contents) < size:
            raise EOFError
        yield key >> 3, io.BytesIO(contents)


def varint_of(file: BinaryIO, at_end: bool = False) -> int | None:
    """A number of 7 bits per byte; at the end of the file None if at_end."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            if at_end and shift == 0:
                return None
            raise EOFError
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
    raise EOFError
