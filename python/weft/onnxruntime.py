# SPDX-License-Identifier: Apache-2.0
"""Collectives as operators of ONNX Runtime on CPUs, with onnxruntime as PyPI has it.

    import onnxruntime, weft.onnxruntime
    options = onnxruntime.SessionOptions()
    weft.onnxruntime.register(options)
    session = onnxruntime.InferenceSession("model.onnx", options)

Start it by `weft run -n 2 -- python3 serve.py`, `mpirun` or `srun`. Models may then have AllReduce, AllGather and AllToAll of
domain com.microsoft, which ONNX Runtime has in builds with NCCL only, and Weft's collectives, domain weft.

docs/onnxruntime.md has operators, limits and figures.
"""
import os
import pathlib

import onnxruntime

LIBRARY = str(pathlib.Path(__file__).parent / "libweft_onnxruntime.so")


def register(options, domains=("weft", "com.microsoft")):
    """Adds the operators of domains to an onnxruntime.SessionOptions; sessions are created with it afterwards. Returns it.

    Leave com.microsoft out for models that do not import it, or have them import it: ONNX Runtime does not find its own fused
    operators otherwise.
    """
    if not os.path.exists(LIBRARY):
        raise ImportError(f"weft.onnxruntime: {LIBRARY} does not exist: install the package (pip install ./python)")
    if options.execution_mode != onnxruntime.ExecutionMode.ORT_SEQUENTIAL:
        raise ValueError("weft.onnxruntime: execution_mode is ORT_PARALLEL, which runs collectives in an order of its own on "
                         "each rank: expected ORT_SEQUENTIAL")
    if isinstance(domains, str) or not domains or not set(domains) <= {"weft", "com.microsoft"}:
        raise ValueError(f"weft.onnxruntime: invalid value {domains!r} for domains: expected a list of weft and com.microsoft")
    options.add_session_config_entry("weft.domains", ",".join(sorted(set(domains), reverse=True)))
    options.register_custom_ops_library(LIBRARY)
    return options
