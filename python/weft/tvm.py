# SPDX-License-Identifier: Apache-2.0
"""Collectives for Disco, TVM's runtime for several workers, on CPUs.

    import weft.tvm
    from tvm.runtime import disco
    session = disco.ProcessSession(num_workers=4)
    weft.tvm.init(session)                      # in place of session.init_ccl("nccl", ..)
    module = session.load_vm_module("model.so")

relax.op.ccl.allreduce and the rest, in compiled modules or called through the session, then run in Weft.
The TVM of PyPI has collectives for GPUs only.

docs/tvm.md has limits and figures.
"""
from __future__ import annotations

import contextlib
import importlib
import secrets
import socket
import sys
from typing import Any

import tvm

import weft

LIBRARY = weft.library("tvm")


def _load_disco():
    """tvm.runtime.disco. TVM 0.27 tries to import it before it loads the library with the types of disco."""
    if tvm.runtime.disco is None:
        sys.modules.pop("tvm.runtime.disco._ffi_api", None)  # no functions were found then
        tvm.runtime.disco = importlib.import_module("tvm.runtime.disco")
    return tvm.runtime.disco


try:
    _disco = _load_disco()
except (ImportError, ValueError) as error:
    raise ImportError(f"weft.tvm: TVM {tvm.__version__} has no Disco: {error}") from None


@contextlib.contextmanager
def _address_for(session):
    """Where the workers of a session meet: no two sessions at the same place."""
    if isinstance(session, _disco.ThreadedSession):
        yield f"threads:{secrets.token_hex(8)}"
    elif isinstance(session, _disco.SocketSession):  # worker 0 listens, on this host
        with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as holder:
            # Nobody else gets the port until worker 0 has it: a bound socket that does not listen keeps out all but
            # those that set this option, as Weft does.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("", 0))
            yield f"{socket.gethostname()}:{holder.getsockname()[1]}"
    else:
        yield f"unix:@weft-tvm-{secrets.token_hex(8)}"


def init(session: Any, address: str | None = None) -> None:
    """Joins the workers of a session (ProcessSession, ThreadedSession, SocketSession) to a world of Weft.

    address: where they meet, "host:port" of worker 0. Only a SocketSession whose hosts do not know this host by its name
    needs it. A second call replaces the world.
    """
    if not isinstance(session, _disco.Session):
        raise TypeError(f"weft.tvm.init: not a session of Disco: {type(session).__name__}")
    first = session.empty((1,), "int8", worker0_only=True, in_group=True)  # tells workers which of them begin a group
    session.get_global_func("ffi.ModuleLoadFromFile")(LIBRARY)
    with contextlib.nullcontext(address) if address else _address_for(session) as place:
        session.get_global_func("runtime.disco.weft.init_ccl_per_worker")(place, first)
        session.sync_worker_0()  # has joined when all others have


@tvm.register_global_func("runtime.disco.weft.init_ccl", override=True)
def _init_ccl(session, device_ids):
    """For runtime.disco.SessionInitCCL(session, "weft", device_ids)."""
    del device_ids
    init(session)
