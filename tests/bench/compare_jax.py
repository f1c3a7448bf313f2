#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collectives of JAX over Weft, Gloo and MPICH, in one run.

    psum SIZE   a psum of SIZE bytes per rank inside of a compiled loop
    step        a data-parallel step with 64 gradients of 16 KiB, each with its own pmean
    layers      the same with 16 products of 512 x 512, whose gradients are ready one after another
    .., operator      the same with one weft.jax.all_reduce for all gradients
    .., bucketed      the same with weft.jax.bucketed

Two ranks. The sides run one after the other, several times, so that whatever else the machine does hits all alike;
figures are medians over the repeats, in microseconds.

JAX calls MPICH through MPIwrapper, which neither Debian nor PyPI has. With its sources (github.com/eschnett/MPIwrapper),
libmpich-dev and gfortran:

    cmake -S MPIwrapper -B mpiwrapper -DMPI_C_COMPILER=mpicc.mpich -DMPI_CXX_COMPILER=mpicxx.mpich \\
        -DMPI_Fortran_COMPILER=mpifort.mpich -DMPIEXEC_EXECUTABLE=/usr/bin/mpiexec.hydra && cmake --build mpiwrapper

Without --mpiwrapper MPICH is left out.
"""
import os
import sys

from sides import ROOT, compare, free_port, make_parser, run_program

# (row, side or None): most microseconds of Weft, or least ratio of the side's time to Weft's
WANTED = {("psum 4096", None): 2.0, ("psum 4096", "gloo"): 50.0, ("psum 65536", "mpich"): 2.0,
          ("psum 1048576", "mpich"): 2.0, ("psum 16777216", "mpich"): 2.0}


def run(args, side):
    launcher = ["mpiexec.hydra", "-n", "2"] if side == "mpich" else [args.build / "weft", "run", "-n", "2", "--"]
    # UCX, under MPICH, does not survive a look at the environment where jaxlib loads it.
    environment = dict(os.environ, PYTHONPATH=str(args.build / "python"), UCX_WARN_UNUSED_ENV_VARS="n")
    return run_program(args, side, [*launcher, args.python, ROOT / "tests" / "bench" / "peer_jax.py",
                                    args.mpiwrapper if side == "mpich" else side, f"localhost:{free_port()}"], environment)


def main():
    parser = make_parser(__doc__, "jax/bin/python", "jax")
    parser.add_argument("--mpiwrapper", help="libmpiwrapper.so for MPICH")
    args = parser.parse_args()
    return compare(args, ["weft", "gloo", *(["mpich"] if args.mpiwrapper else [])], run, WANTED)


if __name__ == "__main__":
    sys.exit(main())
