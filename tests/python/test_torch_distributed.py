#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch's own tests of its backends, distributed_test.py of the installed torch, with backend weft.

    tests/python/test_torch_distributed.py                            the quick ones, as ctest does
    tests/python/test_torch_distributed.py --all --as gloo            all of them
    tests/python/test_torch_distributed.py --all --as gloo --update   and write the outcomes down
    tests/python/test_torch_distributed.py test_all_reduce_sum ..     these, with what they print

torch's file is not changed. It takes the backend from the variable BACKEND and skips what torch's own backends of other
names cannot do. So each test runs in several roles:

    weft    BACKEND=weft; tables of torch.testing that list what each backend supports get a row for it
    gloo    BACKEND=gloo, and weft is created in its place: what Gloo is tested for
    mpi     the same with MPI, for all_to_all
    peer    Gloo itself

torch_distributed.json lists the outcome of each test in each role: "pass", "skip: REASON" or "fail: ERROR"; a text
alone holds for all roles. "why" explains failures. An outcome that differs from the list is a failure of this program.
The file belongs to one version of torch, which it names; with another version the program is skipped, or with --all
names what fails. Without a role, those of gloo and mpi run.
"""
import argparse
import contextlib
import datetime
import importlib.util
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import types
import unittest

import ranks

OUTCOMES = pathlib.Path(__file__).with_name("torch_distributed.json")
RANKS = 4
# A test that waits for a peer in vain ends after so many seconds.
LIMIT_S = 120
ROLES = ("weft", "gloo", "mpi", "peer")
# ctest runs these: the collectives and DDP, once each, none of them slow.
QUICK = {
    "gloo": re.compile(
        r"test_(all_reduce_(sum|max|product|complex_unsupported_ops|group_sum)|all_reduce_coalesced_sum|all_gather"
        r"|all_gather_coalesced_simple|barrier|broadcast|broadcast_group|broadcast_object_list|gather|gather_object"
        r"|isend|irecv|reduce_sum|reduce_group_max|scatter|scatter_object_list|send_recv|send_recv_any_source"
        r"|send_recv_with_tag|sparse_all_reduce_sum|DistributedDataParallelCPU|DistributedDataParallelCPU_grad_is_view"
        r"|backend_group|destroy_group|new_subgroups|get_future|get_rank|monitored_barrier_gloo)$"),
    "mpi": re.compile(r"test_all_to_all(_group|_single_(equal|unequal)_split)?$"),
}


class Outcomes(unittest.TestResult):
    """One word or line per test, by name."""

    def __init__(self, verbose):
        super().__init__()
        self.verbose, self.found, self.seconds, self.texts = verbose, {}, {}, {}

    def startTest(self, test):
        super().startTest(test)
        self.begin = time.monotonic()

    def note(self, test, outcome, text=""):
        name = test._testMethodName
        self.found[name], self.texts[name] = outcome, text
        self.seconds[name] = time.monotonic() - self.begin
        if self.verbose:
            print(f"{name}: {outcome} ({self.seconds[name]:.1f} s)", flush=True)

    def addSuccess(self, test):
        self.note(test, "pass")

    def addSkip(self, test, reason):
        self.note(test, f"skip: {reason}")

    def addFailure(self, test, error):
        text = self._exc_info_to_string(error, test)
        self.note(test, f"fail: {cause(text)}", text)

    addError = addFailure

    def addExpectedFailure(self, test, error):
        self.note(test, "pass")

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.addFailure(test, error)


def cause(text):
    """The line of the error in a rank, without what differs from run to run."""
    lines = [line for line in text.splitlines() if re.match(r"\w[\w.]*(Error|Exception|Failure|Skip)\b", line)]
    ours = [line for line in lines if not re.match(r"RuntimeError: Process \d+ exited", line)]
    line = (ours or lines or ["unknown"])[0]
    line = re.sub(r"0x[0-9a-f]+|/\S+/|:\d{2,}", "..", line)
    line = re.sub(r"\b[Pp]rocess \d+", "a process", line)
    line = re.sub(r"(error code|ranks?|after|Duration:?) -?\d+(\.\d+)?", r"\1 N", line)
    return line[:200]


def stand_in(name, **contents):
    """torch.testing imports a package that Debian's torch does not depend on, for tests of other things."""
    if importlib.util.find_spec(name) is None:
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(contents)


def create_weft_instead(dist):
    """init_process_group and new_group take no other backend."""
    make, make_group = dist.init_process_group, dist.new_group

    def init_process_group(backend=None, *args, **kwargs):
        return make("weft", *args, **kwargs)

    def new_group(ranks=None, timeout=datetime.timedelta(seconds=60), backend=None, **kwargs):
        return make_group(ranks, timeout, "weft", **kwargs)
    for module in (dist, dist.distributed_c10d):
        module.init_process_group, module.new_group = init_process_group, new_group


def load(role):
    """The class of torch's tests."""
    backend = "gloo" if role == "peer" else role
    stand_in("expecttest", TestCase=unittest.TestCase, ACCEPT=False)
    os.environ.update(BACKEND=backend, WORLD_SIZE=str(RANKS), INIT_METHOD="env://", OMP_NUM_THREADS="1")
    os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="weft-torch-"))
    torch = ranks.need("torch")
    try:
        from torch.testing._internal import common_distributed
    except ImportError as error:
        print(f"skipped: torch.testing is not complete ({error})")
        sys.exit(ranks.SKIPPED)
    import torch.distributed as dist
    if not dist.is_gloo_available():
        print("skipped: this torch has no Gloo")
        sys.exit(ranks.SKIPPED)
    if role != "peer":
        import weft.torch  # noqa: F401 (registers the backend)
        create_weft_instead(dist)
        for feature in ("ddp", "subgroup", "plugin"):
            common_distributed.DistTestCases.backend_feature[feature].add("weft")
    with contextlib.suppress(ImportError):
        from torch.nn.parallel import _replicated_tensor_ddp_utils
        # An experiment of torch 1.13 that Python 3.11 cannot import; the tests switch it on.
        _replicated_tensor_ddp_utils._set_ddp_with_replicated_tensor = lambda value: None
    torch.set_num_threads(1)
    sys.argv[1:] = []  # torch.testing reads them
    from torch.testing._internal.distributed import distributed_test
    if role != "peer" and int(torch.__version__.split(".")[0]) > 1:  # events of torch 1 are not asynchronous
        distributed_test.PROFILING_SUPPORTED_BACKENDS.append("weft")
        distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append("weft")
    distributed_test.DEFAULT_TIMEOUT = LIMIT_S
    getattr(distributed_test, "CUSTOMIZED_TIMEOUT", {}).clear()
    common_distributed.get_timeout = lambda test: LIMIT_S

    class Distributed(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return torch, Distributed


def run(role, names, verbose):
    torch, cls = load(role)
    every = sorted(name for name in dir(cls) if name.startswith("test_"))
    chosen = every if names is None else [name for name in every if names(name)]
    result = Outcomes(verbose)
    for name in chosen:
        os.makedirs(os.path.join(os.environ["TEMP_DIR"]), exist_ok=True)
        cls(name).run(result)
    shutil.rmtree(os.environ["TEMP_DIR"], ignore_errors=True)
    return torch.__version__, result


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--as", dest="role", choices=ROLES)
    parser.add_argument("-v", "--verbose", action="store_true")
    return parser.parse_args()


def expected(listed, name, role):
    outcome = listed.get("tests", {}).get(name, {})
    return outcome if isinstance(outcome, str) else outcome.get(role)


def update(listed, version, role, found):
    tests = {name: {each: expected(listed, name, each) for each in ROLES} for name in listed.get("tests", {})}
    for name, outcome in found.items():
        tests.setdefault(name, dict.fromkeys(ROLES))[role] = outcome
    listed.update(torch=version, ranks=RANKS, tests={})
    for name, outcomes in sorted(tests.items()):
        one = len(set(outcomes.values())) == 1
        listed["tests"][name] = outcomes[role] if one else outcomes
    OUTCOMES.write_text(json.dumps(listed, indent=1) + "\n")


def main():
    options = parse()
    torch = ranks.need("torch")
    listed = json.loads(OUTCOMES.read_text()) if OUTCOMES.exists() else {}
    if not options.update and torch.__version__ != listed.get("torch"):
        if not options.names and not options.all:
            print(f"skipped: {OUTCOMES.name} is about torch {listed.get('torch')}, and this is {torch.__version__}")
            return ranks.SKIPPED
        listed = {}
    if options.role is None:  # torch's file reads the backend once, when it is imported
        words = [sys.executable, *sys.argv]
        return max(subprocess.run([*words, "--as", role]).returncode for role in QUICK)
    names = (lambda name: name in options.names) if options.names else None
    if not options.names and not options.all:
        names = QUICK[options.role].match
    with contextlib.ExitStack() as stack:
        if not options.names:
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        version, result = run(options.role, names, options.verbose or bool(options.names) or options.update)
    if options.update:
        update(listed, version, options.role, result.found)
        return 0
    return report(options, listed, result)


def report(options, listed, result):
    wrong = 0
    for name, outcome in result.found.items():
        listed_outcome = expected(listed, name, options.role)
        if not listed:
            if outcome.startswith("fail"):
                print(f"{name}: {outcome}")
        elif outcome.partition(":")[0] != str(listed_outcome).partition(":")[0]:
            wrong += 1
            print(f"{name}: {outcome}; expected {listed_outcome}\n{result.texts[name]}")
        elif options.names:
            print(result.texts[name])
    counts = {word: sum(outcome.startswith(word) for outcome in result.found.values())
              for word in ("pass", "skip", "fail")}
    print(f"as {options.role}: {len(result.found)} of torch's tests on {RANKS} ranks: {counts['pass']} pass, "
          f"{counts['skip']} are skipped, {counts['fail']} fail; {wrong} differ from {OUTCOMES.name}", flush=True)
    return 1 if wrong or not result.found else 0


if __name__ == "__main__":
    sys.exit(main())
