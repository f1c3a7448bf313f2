# SPDX-License-Identifier: Apache-2.0
"""JAX's collectives on CPUs by Weft, without a change to programs or to JAX.

    import weft.jax                             # before jax
    import jax
    jax.distributed.initialize()                # rank, number of processes and address from the launcher

Start it by `weft run -n 4 -- python3 train.py`, `mpirun` or `srun`. psum, all_gather, psum_scatter, ppermute and
all_to_all under jit, shard_map and pmap then run in Weft, and so do the collectives that XLA inserts for sharded arrays.

jaxlib has a plug for MPI libraries below all of them: MPITRAMPOLINE_LIB names libweft_mpi.so, which lies in the package.

Operators on trees of arrays, as MPI has them: each process passes what it has. Under jit, vmap, grad.

    gradients = weft.jax.all_reduce(gradients, op="avg")        # one call for all arrays
    step = weft.jax.bucketed(jax.value_and_grad(loss))          # averaged in buckets, while others are computed

docs/jax.md has limits and figures.
"""
from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import weft

LIBRARY = weft.library("mpi")
_Tree = TypeVar("_Tree")  # an array, or nested lists, dicts of them
VARIABLES = {"MPITRAMPOLINE_LIB": LIBRARY, "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi"}
# What launchers that Weft knows leave in the environment of a rank; MASTER_ADDR: torchrun, and ranks started by hand.
LAUNCHED = ("WEFT_RANK", "PMIX_RANK", "PMI_FD", "PMI_RANK", "MASTER_ADDR")


def _set_variables():
    for name, value in VARIABLES.items():
        now = os.environ.get(name)
        if now not in (None, value):
            raise ImportError(f"weft.jax: {name} is set to '{now}' already; unset it, or do not import weft.jax")
    if "jaxlib" in sys.modules and os.environ.get("MPITRAMPOLINE_LIB") is None:
        raise ImportError("weft.jax: jaxlib is loaded already: import weft.jax before jax")
    os.environ.update(VARIABLES)


_set_variables()

import jax  # noqa: E402,F401 (after the variables, which jaxlib reads when it is loaded)
from jax._src import distributed  # noqa: E402
from jax._src.clusters import ClusterEnv  # noqa: E402

from weft.jax import _bucketed, _operators  # noqa: E402


@ctypes.CFUNCTYPE(ctypes.c_int)
def _process_count():
    """What jax.distributed.initialize() was told; the library compares it with Weft's world when XLA joins that."""
    state = distributed.global_state
    return state.num_processes if state.client is not None else 0


ctypes.CDLL(LIBRARY).weft_jax_expect(_process_count)


class _World:
    """The world of libweft_mpi.so, which XLA uses later: this rank joins it on construction."""

    def __init__(self):
        self.mpi = ctypes.CDLL(LIBRARY)
        self.world = self.constant("COMM_WORLD")
        self.call("Init_thread", None, None, ctypes.c_int(0), ctypes.byref(ctypes.c_int()))
        _operators.register(self)

    def constant(self, name):
        return ctypes.c_int64.in_dll(self.mpi, f"MPIABI_{name}")

    def call(self, name, *args):
        error = getattr(self.mpi, f"MPIABI_{name}")(*args)
        if error:
            text, length = ctypes.create_string_buffer(1024), ctypes.c_int()
            self.mpi.MPIABI_Error_string(error, text, ctypes.byref(length))
            raise RuntimeError(f"weft.jax: {text.value.decode(errors='replace')}")

    def number(self, name):
        value = ctypes.c_int()
        self.call(name, self.world, ctypes.byref(value))
        return value.value

    def rank(self):
        return self.number("Comm_rank")

    def size(self):
        return self.number("Comm_size")

    def from_rank_0(self, text):
        """The text that rank 0 passes, on all ranks."""
        size, byte = 256, self.constant("BYTE")
        mine = ctypes.create_string_buffer(text.encode(), size)
        everyones = ctypes.create_string_buffer(size * self.size())
        self.call("Allgather", mine, ctypes.c_int(size), byte, everyones, ctypes.c_int(size), byte, self.world)
        return everyones.raw[:size].rstrip(b"\0").decode()


def _coordinator_host():
    """An address of this host that the others reach: where Weft's ranks met, if that is an address."""
    address = os.environ.get("WEFT_ADDRESS", "")
    if address.startswith(("unix:", "file:")) or ":" not in address:
        return os.environ.get("MASTER_ADDR") or socket.gethostname()
    return address.rpartition(":")[0]


def _free_port():
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


class WeftCluster(ClusterEnv):
    """Answers jax.distributed.initialize() in processes that a launcher known to Weft has started."""
    name = "weft"
    _joined = None

    @classmethod
    def world(cls):
        cls._joined = cls._joined or _World()
        return cls._joined

    @classmethod
    def is_env_present(cls):
        return any(name in os.environ for name in LAUNCHED)

    @classmethod
    def get_coordinator_address(cls, timeout_secs, override_coordinator_port):
        world = cls.world()
        mine = f"{_coordinator_host()}:{override_coordinator_port or _free_port()}" if world.rank() == 0 else ""
        return world.from_rank_0(mine)

    @classmethod
    def get_process_count(cls):
        return cls.world().size()

    @classmethod
    def get_process_id(cls):
        return cls.world().rank()


# First in the list: `weft run` inside of an allocation of Slurm has other ranks than Slurm's.
ClusterEnv._cluster_types.remove(WeftCluster)
ClusterEnv._cluster_types.insert(0, WeftCluster)


def all_reduce(tree: _Tree, op: str = "sum") -> _Tree:
    """Every process receives the reduction (sum, avg, prod, min, max) of all processes' arrays, leaf by leaf."""
    return _operators.bind(WeftCluster.world(), "all_reduce", tree, op)


def all_gather(tree: _Tree) -> _Tree:
    """(n, ..) -> (processes * n, ..): the arrays of all processes, one after another."""
    return _operators.bind(WeftCluster.world(), "all_gather", tree)


def reduce_scatter(tree: _Tree, op: str = "sum") -> _Tree:
    """(n, ..) -> (n / processes, ..): this process's block of the reduction."""
    return _operators.bind(WeftCluster.world(), "reduce_scatter", tree, op)


def all_to_all(tree: _Tree) -> _Tree:
    """(n, ..) -> (n, ..): block i goes to process i; block i of the result comes from it."""
    return _operators.bind(WeftCluster.world(), "all_to_all", tree)


def broadcast(tree: _Tree, root: int = 0) -> _Tree:
    """Every process receives the arrays of process root."""
    return _operators.bind(WeftCluster.world(), "broadcast", tree, root=root)


def bucketed(grad_fn: Callable[..., _Tree], policy: str = "auto", costs: str | None = None,
             average: Any = True) -> Callable[..., _Tree]:
    """grad_fn, a function such as jax.grad or jax.value_and_grad return, with its results averaged over all processes.

    The same numbers as all_reduce(grad_fn(..), op="avg"), by one call per bucket of gradients, which starts when the
    last gradient of the bucket is ready. Weft's planner finds the buckets from the jaxpr of grad_fn. Call it under jit:
    outside of it, each call traces and plans again.

    policy: as of weft.compile(bucket=). costs: a file of measured costs (`weft tune`), the same on all processes;
    default: Weft's table. average: which results are averaged; True, or a tree of booleans that is a prefix of the
    result: ((True, False), True) of value_and_grad with has_aux leaves aux as this process has it.
    """
    return _bucketed.bucketed(WeftCluster.world, grad_fn, policy, costs, average)
