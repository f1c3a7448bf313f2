# SPDX-License-Identifier: Apache-2.0
"""Times collectives as a Python program makes them: python -m weft.bench [OP ...] -n 2

Per operator and size the median of single calls, each after a barrier, on the slowest rank; beside it the same
call made from C on the same memory, and what Python adds to it: the difference of long blocks of calls without
anything between them. Gloo's time of the same call comes from the same processes (--torch-gloo).
Bytes are those of the larger buffer, as in `weft bench`.
"""
import argparse
import array
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time

import weft

OPERATORS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all")
DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8")
SIZES = dict(zip(DTYPES, (4, 8, 2, 8, 4, 2, 1, 1)))
CODES = {"float32": "f", "float64": "d", "int64": "q", "int32": "i", "int16": "h", "int8": "b", "uint8": "B"}
# what each buffer holds: the whole vector or one rank's block of it
SEND_BLOCK = {"all_gather", "gather"}
RECV_BLOCK = {"reduce_scatter", "scatter"}
IN_PLACE = {"all_reduce", "broadcast"}
BLOCK_CALLS, BLOCKS = 200, 25
MOST_BYTES_FOR_BLOCKS = 64 << 10


def bytes_of(text):
    """"4K" -> 4096."""
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper())
    try:
        value = int(text[:-1]) * scale if scale else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 8, 4K or 16M") from None
    if value < 1:
        raise argparse.ArgumentTypeError("a size must be at least 1")
    return value


def positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(prog="python -m weft.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("op", nargs="*", metavar="OP", help=f"of {', '.join(OPERATORS)} (default: all_reduce)")
    parser.add_argument("-n", "--ranks", type=positive, metavar="N",
                        help="ranks to start on this machine (default 2); not under a launcher, whose ranks are used")
    parser.add_argument("--min", type=bytes_of, default=8, metavar="BYTES", help="smallest size (default 8)")
    parser.add_argument("--max", type=bytes_of, default=16 << 20, metavar="BYTES", help="largest size (default 16M)")
    parser.add_argument("--factor", type=positive, default=8, help="from one size to the next (default 8)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--tensor", choices=("numpy", "torch", "array"), default="numpy", help="what is passed in")
    parser.add_argument("--memory", choices=("plain", "adopted", "empty"), default="plain",
                        help="plain; adopted by weft.register; from weft.empty (default plain)")
    parser.add_argument("--new", action="store_true",
                        help="calls make their results (default: in place where there is such a call, else out=)")
    parser.add_argument("--iterations", type=positive, help="timed calls per size (default: by size)")
    parser.add_argument("--torch-gloo", action="store_true", help="the same by torch.distributed over Gloo")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(words)
    args.op = args.op or ["all_reduce"]
    unknown = [op for op in args.op if op not in OPERATORS]
    if unknown:
        parser.error(f"no operator is called {unknown[0]}; there are {', '.join(OPERATORS)}")
    if args.max < args.min:
        parser.error("--max is below --min")
    if args.factor < 2:
        parser.error("--factor is at least 2")
    if args.tensor == "array" and (args.memory == "empty" or args.new or args.dtype not in CODES):
        parser.error("array.array goes with --memory plain or adopted, without --new, and has no float16")
    if args.tensor == "torch" or args.torch_gloo:
        try:
            import torch.distributed  # noqa: F401, pylint: disable=unused-import,import-outside-toplevel
        except ImportError as error:
            parser.error(f"no torch: {error}")
    if args.memory != "empty" and args.tensor == "numpy":
        try:
            import numpy  # noqa: F401, pylint: disable=unused-import,import-outside-toplevel
        except ImportError as error:
            parser.error(f"no numpy: {error}; --tensor array needs none")
    return args


class Buffers:
    """The memory of one operator at one size: send and recv, as the calls take them."""

    def __init__(self, args, op, size):
        world = weft.get_world_size()
        elements = size // SIZES[args.dtype]
        each = elements // world
        per_rank = op not in ("all_reduce", "broadcast", "reduce")
        self.op = op
        self.fits = elements > 0 and (not per_rank or each > 0)
        self.bytes = (each * world if per_rank else elements) * SIZES[args.dtype]
        self.adopted = []
        self.send = self.recv = None
        if not self.fits:
            return
        whole = each * world if per_rank else elements
        self.send = self.make(args, each if op in SEND_BLOCK else whole)
        self.recv = self.send
        if op not in IN_PLACE:
            self.recv = self.make(args, each if op in RECV_BLOCK else whole)

    def make(self, args, elements):
        made = make_array(args, elements)
        if args.memory == "adopted":
            weft.register(made)
            self.adopted.append(made)
        return made

    def close(self):
        for memory in self.adopted:
            weft.unregister(memory)
        self.adopted.clear()


def make_array(args, elements):
    """elements zeros that were written, so that their pages are there."""
    if args.memory == "empty":
        made = weft.zeros((elements,), args.dtype)
        if args.tensor == "torch":
            import torch  # pylint: disable=import-outside-toplevel
            return torch.from_numpy(made)
        return made
    if args.tensor == "array":
        return array.array(CODES[args.dtype], bytes(elements * SIZES[args.dtype]))
    if args.tensor == "torch":
        import torch  # pylint: disable=import-outside-toplevel
        made = torch.empty(elements, dtype=getattr(torch, args.dtype))
        return made.zero_()
    import numpy  # pylint: disable=import-outside-toplevel
    made = numpy.empty(elements, args.dtype)
    made.fill(0)
    return made


# Statements over send, recv and the functions of weft; at the root, and elsewhere where they differ.
GIVEN = {"all_reduce": ("all_reduce_(send)",), "broadcast": ("broadcast(send)",),
         "reduce_scatter": ("reduce_scatter(send, out=recv)",), "all_gather": ("all_gather(send, out=recv)",),
         "reduce": ("reduce(send, out=recv)", "reduce(send)"), "gather": ("gather(send, out=recv)", "gather(send)"),
         "scatter": ("scatter(send, out=recv)", "scatter(None, out=recv)"),
         "all_to_all": ("all_to_all(send, out=recv)",)}
NEW = {**{op: (f"{op}(send)",) for op in OPERATORS}, "scatter": ("scatter(send)", "scatter(None)")}

# A loop around a statement itself, as timeit does: a call of a function around it would count.
LOOPS = """
def singles(iterations, rewrite, barrier, clock, times):
    warm = iterations // 5 + 2
    for index in range(-warm, iterations):
        rewrite()
        barrier()
        start = clock()
        {statement}
        end = clock()
        if index >= 0:
            times[index] = (end - start) / 1e3

def block(calls, barrier, clock):
    barrier()
    start = clock()
    for _ in range(calls):
        {statement}
    return (clock() - start) / 1e3 / calls
"""


class Loops:
    """Loops around one statement, whose names are arguments of this."""

    def __init__(self, statement, **names):
        exec(LOOPS.format(statement=statement), names)  # pylint: disable=exec-used
        self._singles, self._block = names["singles"], names["block"]

    def singles(self, rewrite, iterations, barrier=weft.barrier):
        """us of single calls, each after a rewrite and a barrier; the slowest rank's, sorted."""
        times = array.array("d", bytes(8 * iterations))
        self._singles(iterations, rewrite, barrier, time.perf_counter_ns, times)
        weft.all_reduce_(times, op="max")
        return sorted(times)

    def block(self, calls):
        """us per call of so many in a row, which begin together."""
        return self._block(calls, weft.barrier, time.perf_counter_ns)


def loops_of(op, buffers, new):
    """The Python call that is timed."""
    statements = (NEW if new else GIVEN)[op]
    statement = statements[0 if weft.get_rank() == 0 else -1]
    functions = {name: getattr(weft, name) for name in (*OPERATORS, "all_reduce_")}
    return Loops(statement, send=buffers.send, recv=buffers.recv, **functions)


class Gloo:
    """A torch process group over Gloo among the same ranks, measured as a program would that uses nothing else.

    Its threads, and this one while it is measured, run on any core: that is much faster than a core per rank, which
    they would have to share with the thread that waits for them.
    """

    def __init__(self, cores):
        import torch  # pylint: disable=import-outside-toplevel
        import torch.distributed as dist  # pylint: disable=import-outside-toplevel
        self.torch, self.dist, self.cores = torch, dist, cores
        self.rank, self.world = weft.get_rank(), weft.get_world_size()
        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self.folder = tempfile.mkdtemp(prefix="weft-bench-") if self.rank == 0 else ""
        name = array.array("B", self.folder.encode().ljust(256, b"\0"))
        weft.broadcast(name)
        folder = name.tobytes().rstrip(b"\0").decode()
        store = dist.FileStore(os.path.join(folder, "store"), self.world)
        pinned = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world)
        os.sched_setaffinity(0, pinned)

    def median(self, op, args, buffers):
        """us of a call, or None where Gloo has no such call."""
        pinned = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.cores)
        found = self.call_of(op, args, buffers)
        times = None
        if found:
            loops = Loops("call()", call=found[0])
            iterations = iterations_of(args, buffers.bytes, True)
            times = loops.singles(rewriter(found[1]), iterations, self.dist.barrier)
        os.sched_setaffinity(0, pinned)
        return quantile(times, 0.5) if times else None

    def close(self):
        self.dist.barrier()
        self.dist.destroy_process_group()
        weft.barrier()
        if self.folder:
            for name in os.listdir(self.folder):
                os.unlink(os.path.join(self.folder, name))
            os.rmdir(self.folder)

    def call_of(self, op, args, buffers):
        """(call, tensor that is rewritten before), or None where Gloo has no such call."""
        dist, torch = self.dist, self.torch
        dtype = getattr(torch, args.dtype)
        send, recv = torch.zeros(len(buffers.send), dtype=dtype), torch.zeros(len(buffers.recv), dtype=dtype)
        parts = list(recv.chunk(self.world))
        pieces = list(send.chunk(self.world))
        root = self.rank == 0
        calls = {
            "all_reduce": lambda: dist.all_reduce(send), "broadcast": lambda: dist.broadcast(send, 0),
            "all_gather": lambda: dist.all_gather(parts, send), "reduce": lambda: dist.reduce(send, 0),
            "gather": lambda: dist.gather(send, parts if root else None),
            "scatter": lambda: dist.scatter(recv, pieces if root else None),
            "all_to_all": lambda: dist.all_to_all_single(recv, send),
            "reduce_scatter": lambda: dist.reduce_scatter(recv, pieces),
        }
        try:
            calls[op]()
        except (RuntimeError, AttributeError, ValueError):
            return None
        return calls[op], send


def iterations_of(args, size, gloo=False):
    if args.iterations:
        return args.iterations
    if gloo:
        return 300 if size <= 4096 else 100 if size <= 1 << 18 else 30 if size <= 4 << 20 else 8
    return 2000 if size <= 4096 else 400 if size <= 1 << 18 else 60 if size <= 4 << 20 else 12


def rewriter(tensor):
    """Writes all of a tensor anew, as a kernel would before the call."""
    if hasattr(tensor, "fill_"):
        return tensor.zero_
    if hasattr(tensor, "fill"):
        return lambda: tensor.fill(0)
    view = memoryview(tensor).cast("B")
    zeros = bytes(len(view))
    return lambda: view.__setitem__(slice(None), zeros)


def quantile(times, share):
    return times[min(int(len(times) * share), len(times) - 1)]


def c_singles(buffers, iterations):
    times = array.array("d", bytes(8 * (iterations + iterations // 5 + 2)))
    weft._core._time_calls(buffers.op, buffers.send, buffers.recv, times, 1, True)
    weft.all_reduce_(times, op="max")
    return sorted(times[-iterations:])


def python_adds(loops, buffers):
    """us that a Python call costs above the C call: least of many blocks of each, which alternate."""
    block = array.array("d", [0.0])
    least = array.array("d", [float("inf"), float("inf")])
    for _ in range(BLOCKS):
        weft._core._time_calls(buffers.op, buffers.send, buffers.recv, block, BLOCK_CALLS)
        least[0] = min(least[0], block[0])
        least[1] = min(least[1], loops.block(BLOCK_CALLS))
    weft.all_reduce_(least, op="max")
    return least[1] - least[0]


def bus_factor(op, world):
    """Bytes over the busiest link, of those in the larger buffer; as in `weft bench`."""
    if op == "all_reduce":
        return 2 * (world - 1) / world
    return 1.0 if op in ("broadcast", "reduce") else (world - 1) / world


def measure(args, op, size, gloo):
    """One row, or None where the size is less than an element for each rank. Collective."""
    buffers = Buffers(args, op, size)
    if not buffers.fits:
        return None
    world = weft.get_world_size()
    iterations = iterations_of(args, size)
    loops = loops_of(op, buffers, args.new)
    singles = loops.singles(rewriter(buffers.send), iterations)
    in_c = c_singles(buffers, iterations)
    median = quantile(singles, 0.5)
    algbw = buffers.bytes / median / 1e3 if median > 0 else 0.0
    row = {"op": op, "bytes": buffers.bytes, "ranks": world, "dtype": args.dtype, "tensor": args.tensor,
           "memory": args.memory, "results": "new" if args.new else "given", "p50_us": median,
           "p99_us": quantile(singles, 0.99), "c_p50_us": quantile(in_c, 0.5), "python_us": None,
           "algbw_gbs": algbw, "busbw_gbs": algbw * bus_factor(op, world), "gloo_p50_us": None}
    if buffers.bytes <= MOST_BYTES_FOR_BLOCKS:
        row["python_us"] = python_adds(loops, buffers)
    if gloo:
        row["gloo_p50_us"] = gloo.median(op, args, buffers)
    buffers.close()
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}


def print_row(args, row, first):
    if first:
        how = "results are new" if args.new else "in place, or out="
        print(f"# {row['op']}, {row['ranks']} ranks, {args.tensor}, {args.memory} memory, {args.dtype}, {how}")
        head = f"{'bytes':>12} {'p50 us':>10} {'p99 us':>10} {'C us':>10} {'Python +us':>10} {'algbw':>8} {'busbw':>8}"
        print(head + (f" {'Gloo us':>10} {'x Gloo':>8}" if args.torch_gloo else ""))
    adds = "-" if row["python_us"] is None else f"{row['python_us']:.2f}"
    line = (f"{row['bytes']:12} {row['p50_us']:10.2f} {row['p99_us']:10.2f} {row['c_p50_us']:10.2f} {adds:>10} "
            f"{row['algbw_gbs']:8.2f} {row['busbw_gbs']:8.2f}")
    if args.torch_gloo and row["gloo_p50_us"] is None:
        line += f" {'none':>10} {'-':>8}"
    elif args.torch_gloo:
        line += f" {row['gloo_p50_us']:10.2f} {row['gloo_p50_us'] / row['p50_us']:8.1f}"
    print(line, flush=True)


def sizes_of(args):
    size = args.min
    while size < args.max:
        yield size
        size *= args.factor
    yield args.max


def run_rank(args, cores):
    """Everything, as one rank of the world that was joined; rank 0 prints."""
    rows = []
    gloo = Gloo(cores) if args.torch_gloo else None
    for op in args.op:
        first = True
        for size in sizes_of(args):
            row = measure(args, op, size, gloo)
            if row is None:
                continue
            rows.append(row)
            if weft.get_rank() == 0 and not args.json:
                print_row(args, row, first)
            first = False
    if gloo:
        gloo.close()
    if weft.get_rank() == 0 and args.json:
        print(json.dumps({"rows": rows}, indent=1), flush=True)


def start_ranks(ranks, words):
    """This program once more for every rank, each on a core of its own where there are enough; the exit status."""
    cores = sorted(os.sched_getaffinity(0))
    address = f"unix:@weft-bench-{secrets.token_hex(8)}"
    children = []
    for rank in range(ranks):
        setting = dict(os.environ, WEFT_RANK=str(rank), WEFT_WORLD_SIZE=str(ranks), WEFT_ADDRESS=address,
                       WEFT_BENCH_CORE=str(cores[rank]) if ranks <= len(cores) else "")
        children.append(subprocess.Popen([sys.executable, "-m", "weft.bench", *words], env=setting))
    status = 0
    try:
        for child in children:
            code = child.wait()
            status = status or (code if code >= 0 else 128 - code)
    except KeyboardInterrupt:
        status = 130
    finally:
        for child in children:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                child.wait()
    return status


def main():
    words = sys.argv[1:]
    args = parse_arguments(words)
    core = os.environ.pop("WEFT_BENCH_CORE", None)
    cores = os.sched_getaffinity(0)
    if core:
        os.sched_setaffinity(0, {int(core)})
    weft.init()
    world = weft.get_world_size()
    if core is None and world == 1 and args.ranks != 1:
        weft.finalize()
        return start_ranks(args.ranks or 2, words)
    if args.ranks not in (None, world):
        print(f"python -m weft.bench: --ranks {args.ranks}, but a launcher has started {world}", file=sys.stderr)
        return 2
    run_rank(args, cores)
    weft.finalize()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
