#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package as built and installed: the limited API, a wheel in a fresh environment, other interpreters, no numpy."""
import glob
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest

import ranks

BUILD = pathlib.Path(os.environ.get("WEFT_BINARY_DIR") or pathlib.Path(ranks.WEFT).parent)
CORE = BUILD / "python" / "weft" / "_core.abi3.so"
# Beyond the stable ABI of 3.9: exported by 3.9 with the interface that 3.10 and 3.11 made stable (weft_python.h).
EXPORTED_BY_3_9 = {"PyBuffer_IsContiguous", "PyBuffer_Release", "PyModule_AddType", "PyObject_CheckBuffer",
                   "PyObject_GetBuffer", "PyType_FromModuleAndSpec", "PyType_GetModuleState"}
# Two ranks' worth of the package without numpy.
USE = f"MODEL = {str(ranks.SOURCE / 'samples' / 'models' / 'mlp.onnx')!r}" + """
import array, sys
import weft
weft.init()
size = weft.get_world_size()
x = array.array("f", [1, 2, 3])
weft.all_reduce_(x)
assert list(x) == [size, 2 * size, 3 * size], x
y = weft.all_gather(array.array("i", [weft.get_rank()]))
assert list(y) == list(range(size)), y
for made in (weft.Group, weft.Work, weft.Plan):  # by calls of the library only
    try:
        made()
    except TypeError as error:
        assert "cannot create instances of " in str(error), error
    else:
        raise AssertionError(made)
with weft.Context(0, 1) as alone, weft.Session(weft.compile(MODEL, world=1, batch=1), alone) as session:
    assert (alone.members, session.plan.world, session.scalars["lr"] > 0) == ([0], 1, True), alone
    session.params.update(dict(session.params))
    assert len(session.param_digest()) == 64 and "lr" in weft.compile.__doc__, session
assert "numpy" not in sys.modules or sys.modules["numpy"] is None or NUMPY
print("weft-works", weft.__version__, weft.__file__, type(y).__name__)
"""


def run(*command, **kwargs):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600, **kwargs)


def undefined_symbols():
    text = run("nm", "-D", "--undefined-only", CORE).stdout
    return {line.split()[-1].split("@")[0] for line in text.splitlines()}


class Binary(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("abi3info"), "abi3info, of abi3audit, is not installed (PyPI)")
    def test_limited_api(self):
        """All that is taken from the interpreter is in the stable ABI of 3.9, or exported by 3.9 and stable later."""
        from abi3info import DATAS, FUNCTIONS
        from abi3info.models import PyVersion
        added = {symbol.name: thing.added for symbol, thing in [*FUNCTIONS.items(), *DATAS.items()]}
        used = {name for name in undefined_symbols() if re.match("_?Py", name)}
        self.assertGreater(len(used), 40)
        self.assertEqual({name for name in used if added.get(name, PyVersion(9, 9)) > PyVersion(3, 9)}, EXPORTED_BY_3_9)
        self.assertEqual(EXPORTED_BY_3_9 - set(added), set())

    def test_what_it_is_linked_with(self):
        needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", CORE).stdout)
        self.assertIn("libweft.so.0", needed)
        self.assertEqual([name for name in needed if "python" in name], [])

    def test_what_it_exports(self):
        defined = run("nm", "-D", "--defined-only", CORE).stdout
        names = {line.split()[-1] for line in defined.splitlines()}
        self.assertEqual({name for name in names if not name.startswith(("__", "_init", "_fini"))}, {"PyInit__core"})

    def test_not_built(self):
        """The source folder says what it is."""
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(ranks.SOURCE / "python" / "weft", f"{folder}/weft", ignore=shutil.ignore_patterns("*.so*"))
            done = run(sys.executable, "-c", "import weft", cwd=folder, env=ranks.clean_environment(PYTHONPATH=folder))
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\nImportError: .* has no built extension: .*pip install .")
        self.assertNotIn("During handling", done.stderr)

    def test_of_the_c_library_public_functions_only(self):
        used = {name for name in undefined_symbols() if name.startswith("weft")}
        self.assertGreater(len(used), 20)
        self.assertEqual({name for name in used if not name.startswith("weft_")}, set())


class Interpreters(unittest.TestCase):
    def use(self, *command, numpy=False, **env):
        done = run(*command, "-c", USE.replace("NUMPY", str(numpy)), env=ranks.clean_environment(**env))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_without_numpy(self):
        done = run(ranks.WEFT, "run", "-n", 2, "--", sys.executable, "-c",
                   "import sys; sys.modules['numpy'] = None\n" + USE.replace("NUMPY", "False"),
                   env=ranks.clean_environment())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("weft-works"), 2)

    def test_what_is_not_imported_before_it_is_used(self):
        names = ["numpy", "torch", "weft._library", "weft.sessions"]
        done = run(sys.executable, "-c", f"import sys, weft; print([name in sys.modules for name in {names}])")
        self.assertEqual(done.stdout, f"{[False] * 4}\n", done.stderr)
        done = run(sys.executable, "-c", "from weft import *; print(Session.save, compile.__name__, Plan.load, Fuser)")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_other_interpreters(self):
        """The same binary in other versions from CPython 3.9 on, where some are installed (also by pyenv)."""
        root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
        found = {}
        paths = [shutil.which(f"python3.{minor}") for minor in range(9, 20)]
        for path in paths + glob.glob(f"{root}/versions/3.*/bin/python3"):
            if path:
                say = "import sys; print(sys.version_info >= (3, 9) and sys.version_info[1] or '')"
                said = run(path, "-c", say).stdout.strip()
                if said and int(said) != sys.version_info[1]:
                    found.setdefault(int(said), path)
        if not found:
            self.skipTest("no other CPython from 3.9 on is installed")
        for minor, path in sorted(found.items()):
            with self.subTest(minor=minor):
                self.assertIn("weft-works", self.use(path, numpy=True))


class Wheel(unittest.TestCase):
    """`pip install .` into a fresh environment, of the library that CMake has built."""

    @classmethod
    def setUpClass(cls):
        for name in ("scikit_build_core", "venv", "pip"):
            if not importlib.util.find_spec(name):
                raise unittest.SkipTest(f"{name} is not installed")
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="weft-test-"))
        cls.addClassCleanup(shutil.rmtree, cls.dir, True)
        # pip of this interpreter serves the environment: one of its own takes seconds to install.
        made = run(sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", cls.dir / "venv")
        if made.returncode != 0:
            raise unittest.SkipTest(f"no environment can be made: {made.stdout[-300:]}{made.stderr[-300:]}")
        cls.python = cls.dir / "venv" / "bin" / "python3"
        cls.env = {name: value for name, value in ranks.clean_environment().items()
                   if name not in ("PYTHONPATH", "WEFT_TOOL")}
        pip = sys.executable, "-m", "pip", "--disable-pip-version-check"
        for done in (run(*pip, "wheel", "--no-index", "--no-build-isolation", "--no-deps",
                         f"--config-settings=cmake.define.WEFT_BUILT={BUILD}",
                         f"--config-settings=build-dir={cls.dir / 'pip'}", "-w", cls.dir, ranks.SOURCE, env=cls.env),
                     run(*pip, "--python", cls.python, "install", "--no-index", "--no-deps", "--ignore-installed",
                         *cls.dir.glob("weft-*.whl"), env=cls.env)):
            if done.returncode != 0:
                raise AssertionError(done.stdout + done.stderr)
        cls.wheel, = cls.dir.glob("weft-*.whl")
        base = str(cls.dir / "venv")
        cls.package = pathlib.Path(sysconfig.get_path("platlib", "venv", {"base": base, "platbase": base})) / "weft"

    def test_tag(self):
        wheel = next(self.package.parent.glob("weft-*.dist-info/WHEEL")).read_text()
        self.assertRegex(wheel, r"(?m)^Tag: cp39-abi3-linux_\w+$")
        self.assertRegex(wheel, r"(?m)^Root-Is-Purelib: false$")

    def test_size(self):
        self.assertLess(self.wheel.stat().st_size, 8e6)  # with a command that has a copy of the library

    def test_licence(self):
        info = next(self.package.parent.glob("weft-*.dist-info"))
        self.assertEqual([path.name for path in (info / "licenses").rglob("*")], ["LICENSE"])
        self.assertRegex((info / "METADATA").read_text(), "(?m)^License-File: LICENSE$")

    def test_files(self):
        files = {path.relative_to(self.package).as_posix() for path in self.package.rglob("*") if path.is_file()}
        files = {name for name in files if "__pycache__" not in name}
        source = ranks.SOURCE / "python" / "weft"
        expected = {path.relative_to(source).as_posix() for path in source.rglob("*")
                    if path.is_file() and (path.suffix in (".py", ".pyi") or path.name == "py.typed")}
        libraries = {f"libweft_{name}.so" for name in ("mpi", "onnxruntime", "tvm")}
        if (BUILD / "libweft_opencl.so").exists():
            libraries.add("libweft_opencl.so")
        self.assertEqual(files, expected | libraries | {"_core.abi3.so", "libweft.so.0", "bin/weft"})

    def test_nothing_points_to_where_it_was_built(self):
        for path in (self.package / "_core.abi3.so", self.package / "libweft.so.0", self.package / "bin" / "weft"):
            paths = re.findall(r"(?:RUNPATH|RPATH).*\[(.*)\]", run("readelf", "-d", path).stdout)
            self.assertEqual(paths, ["$ORIGIN"] if path.name == "_core.abi3.so" else [], path)

    def test_torch_finds_the_backend(self):
        """As torch 2.5 and later do when they are imported; also where the package does not load."""
        load = ("import importlib.metadata as m, torch.distributed as d; "
                "[e.load()() for e in m.entry_points(group='torch.backends') if e.name == 'weft']; "
                "print(hasattr(d.Backend, 'WEFT'))")
        if not importlib.util.find_spec("torch"):
            self.skipTest("torch is not installed")
        done = run(self.python, "-c", load, env=self.env, cwd=self.dir)
        self.assertEqual((done.stdout, done.stderr), ("True\n", ""))
        done = run(self.python, "-c", "import sys; sys.modules['weft._core'] = None; " + load, env=self.env, cwd=self.dir)
        self.assertEqual(done.stdout, "False\n", done.stderr)
        self.assertIn("torch.distributed has no backend weft: ", done.stderr)

    def test_used_by_the_command_inside(self):
        done = run(self.dir / "venv" / "bin" / "weft", "run", "-n", 2, "--", self.python, "-c",
                   USE.replace("NUMPY", "True"), env=self.env, cwd=self.dir)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count(str(self.package)), 2, done.stdout)

    def test_compilers(self):
        """JAX, TVM and ONNX Runtime find the libraries and modules of the installed package."""
        weft_run = [self.dir / "venv" / "bin" / "weft", "run", "-n", 2, "--"]
        interop = ranks.SOURCE / "tests" / "interop"
        env = {**self.env, "PYTHONPATH": f"{self.package.parent}:{interop}", "JAX_PLATFORMS": "cpu"}
        for module, python, command in (
                ("jax", ranks.SOURCE / "build/jax/bin/python", [*weft_run, "PYTHON", interop / "jax_ranks.py", "calls"]),
                ("tvm", ranks.SOURCE / "build/tvm/bin/python", ["PYTHON", interop / "tvm_workers.py", "processes"]),
                ("onnxruntime", sys.executable, [*weft_run, "PYTHON", interop / "onnxruntime_ranks.py", "order"])):
            with self.subTest(module):
                if not pathlib.Path(python).exists() or run(python, "-c", f"import {module}").returncode:
                    self.skipTest(f"{python} has no {module}: scripts/test.sh installs it where PyPI can be reached")
                where = run(python, "-c", f"import weft; print(weft.library('{module.replace('jax', 'mpi')}'))", env=env)
                self.assertEqual(pathlib.Path(where.stdout.strip()).parent, self.package, where.stderr)
                done = run(*[python if word == "PYTHON" else word for word in command], env=env)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    ranks.main()
