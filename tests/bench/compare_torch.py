#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch: Weft next to Gloo and to the shared-memory kernels of DeepSpeed and vLLM, two ranks with one thread each.

    OPERATOR SIZE     a call on so many bytes of bfloat16 of each rank: all_reduce, all_gather, reduce_scatter, broadcast
    token, dim D      one token of a model like Llama of 8 layers that is divided over the ranks, bfloat16
    step of DDP       a training step of a transformer of 10 million parameters, float32
    step of FSDP2     the same with parameters in shards
    OPERATOR SIZE, N ranks, idle or loaded    a call on float32 through torch.distributed: median, mean, p90 (the ninetieth
                      percentile); compute: with 1 ms of it before each. Loaded: next to a busy process for each core

    weft              torch.distributed with the backend weft      operator  torch.ops.weft
    direct            weft's own functions                         reached   the same in memory of weft.torch.empty
    hook              DDP with weft.torch.ddp_hook                 none      without communication (DDP: with a hook
                                                                that does nothing); the rest is exposed

All sides take turns in the same processes. Figures are microseconds: the tenth percentile over rounds, as other
programs only add to them, then the median over repeats. The kernels are built from checkouts that --deepspeed and
--vllm name (https://github.com/deepspeedai/DeepSpeed, https://github.com/vllm-project/vllm), for measurement only; one
that cannot be built is left out, and the reason is printed. vLLM's is built for AVX-512.

--venv FOLDER makes a virtual environment with the newest torch of PyPI there (several GB), unless there is one.
"""
import os
import pathlib
import subprocess
import sys

import sides
import torch_kernels

PARTS = ("calls", "decode", "ddp", "fsdp", "load")
SIDES = ("weft", "direct", "operator", "reached", "hook", "gloo", "deepspeed", "vllm", "none")
LEAD = 1.2  # least ratio of a kernel's time to that of a call of Weft


def parse_arguments():
    parser = sides.make_parser(__doc__, "torch/bin/python", "torch 2.10 or later")
    parser.add_argument("--venv", type=pathlib.Path, help="make a virtual environment there and use it")
    parser.add_argument("--deepspeed", type=pathlib.Path, help="checkout of DeepSpeed")
    parser.add_argument("--vllm", type=pathlib.Path, help="checkout of vLLM")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one; may be repeated")
    parser.add_argument("--ranks", type=int, action="append", help="of the part load (2, 4 and 8); may be repeated")
    return parser.parse_args()


def build_kernels(args):
    """Side -> library. By the interpreter that measures, as they are built against its torch."""
    built = {}
    for side, checkout in ("deepspeed", args.deepspeed), ("vllm", args.vllm):
        if checkout is None:
            continue
        folder = args.build.resolve() / "torch_kernels" / side
        folder.mkdir(parents=True, exist_ok=True)
        code = (f"import pathlib, sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r}); import torch_kernels;"
                f"torch_kernels.build_{side}(pathlib.Path({str(checkout.resolve())!r}), pathlib.Path({str(folder)!r}))")
        done = subprocess.run([str(args.python), "-c", code], capture_output=True, text=True, check=False,
                              env=dict(os.environ, PATH=f"{args.python.parent}:{os.environ['PATH']}"))
        if done.returncode == 0:
            built[side] = folder / f"{side}_shm.so"
        else:
            errors = [line for line in (done.stdout + done.stderr).splitlines() if "rror" in line]
            print(f"{side} is left out: it cannot be built: {' '.join(errors[:2] + errors[-1:])}", file=sys.stderr)
    return built


def run_part(args, part, libraries, ranks=2):
    """Row -> side -> microseconds."""
    port = sides.free_port()
    environment = dict(os.environ, PYTHONPATH=str(args.build / "python"), OMP_NUM_THREADS="1")
    command = [args.build / "weft", "run", "-n", str(ranks), "--", args.python,
               sides.ROOT / "tests" / "bench" / "peer_torch_kernels.py", part, str(port),
               *(f"{side}={library}" for side, library in libraries.items())]
    try:
        return sides.run_program(args, part, command, environment)
    finally:
        torch_kernels.clean(port)


def run_load(args, libraries):
    """The same with all numbers of ranks, without and with other programs."""
    rows = {}
    for ranks in args.ranks or (2, 4, 8):
        for name, count in ("idle", 0), ("loaded", len(os.sched_getaffinity(0))):
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
            try:
                found = run_part(args, "load", libraries, ranks)
            finally:
                for process in busy:
                    process.kill()
                    process.wait()
            rows.update((f"{row}, {ranks} ranks, {name}", by) for row, by in found.items())
    return rows


def main():
    args = parse_arguments()
    if args.venv is not None:
        args.python = sides.make_venv(args.venv, "torch", "numpy")
    libraries = build_kernels(args)
    seen = {}
    for number in range(args.repeats):
        for part in args.part or PARTS:
            print(f"{part}, {number + 1} of {args.repeats}", file=sys.stderr, flush=True)
            run = run_load(args, libraries) if part == "load" else run_part(args, part, libraries)
            for row, by in run.items():
                for side, us in by.items():
                    seen.setdefault(row, {}).setdefault(side, []).append(us)
    wanted = {(row, side): 1.0 if side == "gloo" or row.startswith("token") else LEAD
              for row, by in seen.items() for side in by if side in ("gloo", "deepspeed", "vllm")}
    return sides.report(args, [side for side in SIDES if any(side in by for by in seen.values())], seen, wanted)


if __name__ == "__main__":
    sys.exit(main())
