#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What __init__.pyi says and what the module has: names, parameters, defaults, bases; and programs type-check."""
import ast
import importlib.util
import inspect
import json
import pathlib
import subprocess
import sys
import tempfile
import types
import typing
import unittest

import ranks

import weft
from weft import passes

STUB = ranks.SOURCE / "python" / "weft" / "__init__.pyi"
KINDS = {"posonlyargs": "/", "args": "", "kwonlyargs": "*"}
PARAMETER = inspect.Parameter

TYPED = '''
import array
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray
import weft
from weft import passes

x = np.zeros(4, np.float32)
assert_type(weft.init(), weft.Context)
assert_type(weft.all_reduce(x), NDArray[np.float32])
assert_type(weft.all_reduce_(x, "max"), NDArray[np.float32])
assert_type(weft.all_gather(array.array("f")), "array.array[float]")
work = weft.all_gather(x, async_op=True)
assert_type(work, weft.Work[NDArray[np.float32]])
assert_type(work.wait(timeout=1.0), NDArray[np.float32])
maybe = weft.reduce(x, root=1)
assert maybe is not None
weft.send(x, 1, stream=weft.Stream())
group = weft.new_group([0])
assert_type(group, weft.Group | None)
big = weft.empty((3, 4), "float32")
assert_type(big, NDArray[Any])
with weft.batch(async_op=True) as b:
    weft.all_reduce_(x)
with weft.Fuser(bytes=1 << 20, stream=weft.Stream()) as fuser:
    assert_type(fuser.add(x, "avg", "x"), NDArray[np.float32])
    print(fuser.query(), fuser.stats()["step_count"])
with weft.capture(bucket="one") as step:
    weft.all_reduce_(x)
step.ready(0)
step.wait()
print(step.info["digest"], step.explain().upper(), step.explain(json=True)["digest"])
plan = weft.compile("mlp.onnx", world=4, bucket="auto")
print(plan.explain().upper(), plan.explain(json=True)["buckets"])
with weft.Session(plan) as session:
    session.step(x, label=x, lr=0.1)
    session.params["fc1.weight"] = x
view = passes.View.from_lists(["weft.AllReduce"], [[0]], [[1]], np.array([4, 4]), reductions=["avg"])
edits, forecast = passes.bucket(view, "none", world=2, cost=passes.Cost(pieces=[(1, 2)]))
assert_type(edits, list[passes.Fuse | passes.Split])
passes.check(view, [*edits, passes.Order(0, 1)])
print(forecast.comm_ps + passes.schedule(view, [1])[1].chosen.finish_ps)
try:
    weft.barrier()
except weft.WeftTimeoutError as error:
    late: TimeoutError = error
    print(error.status)
'''
WRONG = {
    "weft.all_reduce(x, op='median')": "arg-type|call-overload",
    "weft.all_reduce(x, 'sum', None, None)": "call-overload",
    "weft.compile('mlp.onnx', bukcet='auto')": "call-arg",
    "weft.new_group([0]).rank": "union-attr",
    "weft.no_such_call(x)": "attr-defined",
    "passes.order(x)": "arg-type",
}


def public(namespace):
    if isinstance(namespace, types.ModuleType):  # which may import some at first use
        found = {name: getattr(namespace, name) for name in dir(namespace)}
    else:
        found = vars(namespace)
    return {name: value for name, value in found.items()
            if not name.startswith("_") and not isinstance(value, types.ModuleType)}


def stub_parameters(function, drop_self):
    """[(name, kind, default or None)] of a function in the stub."""
    arguments = function.args
    plain = [(argument, "/") for argument in arguments.posonlyargs] + [(argument, "") for argument in arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    found = [(argument.arg, kind, default) for (argument, kind), default in zip(plain, defaults)]
    if drop_self:
        found = found[1:]
    if arguments.vararg:
        found.append((arguments.vararg.arg, "*args", None))
    found += [(argument.arg, "*", default) for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    if arguments.kwarg:
        found.append((arguments.kwarg.arg, "**", None))
    return [(name, kind, None if default is None else repr(ast.literal_eval(default))) for name, kind, default in found]


def parameters(function, drop_self):
    """The same of what is there."""
    kinds = {PARAMETER.POSITIONAL_ONLY: "/", PARAMETER.POSITIONAL_OR_KEYWORD: "", PARAMETER.VAR_POSITIONAL: "*args",
             PARAMETER.KEYWORD_ONLY: "*", PARAMETER.VAR_KEYWORD: "**"}
    found = [(p.name, kinds[p.kind], None if p.default is PARAMETER.empty else repr(p.default))
             for p in inspect.signature(function).parameters.values()]
    if drop_self:
        assert found and found[0][0] == "self", f"{function} has no self in its signature"
        found = found[1:]
    return found


class Stubs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.names = {}  # to the last definition, which has all overloads' parameters
        cls.typed = []  # where they are defined
        for node in ast.parse(STUB.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module.startswith("weft."):
                cls.typed += [alias.name for alias in node.names if alias.name[0] != "_"]
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                cls.names[node.name] = node

    def test_names(self):
        self.assertEqual(sorted([*self.names, *self.typed]), sorted(public(weft)))

    def test_typed(self):
        """What has its types in Python, not here, has them all."""
        for name in self.typed:
            there = getattr(weft, name)
            functions = [there] if inspect.isfunction(there) else [
                member for name, member in vars(there).items() if name == "__init__" or name[0] != "_"]
            for function in functions:
                function = function.fget if isinstance(function, property) else getattr(
                    function, "__func__", function)
                names = {*inspect.signature(function).parameters, "return"} - {"self", "cls"}
                # 3.9 cannot evaluate `int | None`
                found = typing.get_type_hints(function) if sys.version_info >= (3, 10) else function.__annotations__
                self.assertEqual(names - set(found), set(), function)

    def test_typed_modules(self):
        """Public functions of modules that need other packages have types, or strict checkers refuse to call them."""
        for path in [*STUB.parent.glob("[eot]*.py"), STUB.parent / "jax" / "__init__.py",
                     *(STUB.parent / "torch" / f"{name}.py" for name in ("ddp", "memory", "process_group", "sharding"))]:
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.FunctionDef) and node.name[0] != "_" and "install" not in node.name:
                    places = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg]
                    bare = [place.arg for place in places if place and place.annotation is None]
                    self.assertTrue(not bare and node.returns, f"{path.name}: {node.name}: {bare}")

    def test_functions(self):
        for name, node in self.names.items():
            if isinstance(node, ast.FunctionDef):
                with self.subTest(name):
                    self.assertEqual(stub_parameters(node, False), parameters(getattr(weft, name), False))

    def test_errors(self):
        for name, node in self.names.items():
            there = getattr(weft, name, None)
            if isinstance(node, ast.ClassDef) and name.endswith("Error"):
                with self.subTest(name):
                    self.assertEqual([base.id for base in node.bases], [base.__name__ for base in there.__bases__])

    def test_classes(self):
        for name, node in self.names.items():
            there = getattr(weft, name, None)
            if not isinstance(node, ast.ClassDef) or name.endswith("Error"):
                continue
            members = {member.name: member for member in node.body if isinstance(member, ast.FunctionDef)}
            with self.subTest(name):
                self.assertEqual({member for member in members if not member.startswith("_")}, set(public(there)))
                for special in ("__enter__", "__exit__", "__class_getitem__"):
                    self.assertEqual(special in members, special in vars(there), special)
                if "__new__" in members:
                    self.assertEqual(stub_parameters(members["__new__"], True), parameters(there, False))
            for member, described in members.items():
                if member.startswith("_"):
                    continue
                with self.subTest(f"{name}.{member}"):
                    marks = {mark.id for mark in described.decorator_list if isinstance(mark, ast.Name)}
                    raw = vars(there)[member]
                    self.assertEqual("property" in marks, inspect.isdatadescriptor(raw))
                    if "property" not in marks:
                        by_class = "classmethod" in marks
                        self.assertEqual(stub_parameters(described, True),
                                         parameters(getattr(there, member) if by_class else raw, not by_class))

    def test_options_of_compile(self):
        """Keywords, their documentation and the stub come from the library's table."""
        done = subprocess.run([ranks.WEFT, "help", "--json"], capture_output=True, text=True, timeout=60)
        rows = [row for row in json.loads(done.stdout)["compile_options"] if row["name"] and not row["reported"]]
        keywords = inspect.signature(weft.compile).parameters
        self.assertEqual(list(keywords), list(dict.fromkeys(row["name"] for row in rows)))
        text = " ".join(weft.compile.__doc__.split())
        model = ranks.SOURCE / "samples" / "models" / "mlp.onnx"
        for row in rows:
            self.assertTrue(row["field"] == "rank_models" or f"{row['name']} {row['help']}" in text, row["name"])
            if row["type"] in ("u32", "i64", "f64", "bytes"):
                with self.assertRaisesRegex(weft.WeftArgumentError, rf"^{row['field']}: must be .*: -1(\.0)?$") as caught:
                    weft.compile(model, **{row["name"]: -1})
                self.assertEqual(caught.exception.field, row["field"])
                if sys.version_info >= (3, 11) and row["name"] != row["field"]:
                    self.assertIn(f"argument '{row['name']}'", caught.exception.__notes__)

    def test_everything_has_a_docstring(self):
        for name, there in public(weft).items():
            self.assertTrue(inspect.getdoc(there), name)
            if isinstance(there, type) and not issubclass(there, Exception):
                for member in public(there):  # as a user gets it, not the descriptor
                    self.assertTrue(inspect.getdoc(getattr(there, member)), f"{name}.{member}")

    def test_passes(self):
        """passes.pyi has the names and parameters of passes.py."""
        names = {node.name: node for node in ast.parse(STUB.with_name("passes.pyi").read_text()).body
                 if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        there = {name: value for name, value in public(passes).items()
                 if getattr(value, "__module__", None) == passes.__name__}
        self.assertEqual(sorted(names), sorted(there))
        for name, node in names.items():
            with self.subTest(name):
                if isinstance(node, ast.FunctionDef):
                    self.assertEqual(stub_parameters(node, False), parameters(there[name], False))
                elif name != "View":
                    fields = [field.target.id for field in node.body if isinstance(field, ast.AnnAssign)]
                    self.assertEqual(tuple(fields), there[name]._fields)

    def test_version(self):
        text = (ranks.SOURCE / "CMakeLists.txt").read_text()
        self.assertIn(f"project(weft VERSION {weft.__version__} ", text)


@unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed (PyPI)")
class Checker(unittest.TestCase):
    """A type checker's opinion."""

    def test_programs(self):
        with tempfile.TemporaryDirectory(prefix="weft-test-") as folder:
            right, wrong = pathlib.Path(folder) / "right.py", pathlib.Path(folder) / "wrong.py"
            right.write_text(TYPED)
            head = ["import numpy as np", "import weft", "from weft import passes", "x = np.zeros(4, np.float32)"]
            wrong.write_text("\n".join(head + list(WRONG)) + "\n")
            done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--follow-imports", "silent", "--no-error-summary", "--cache-dir",
                                   f"{folder}/cache", "--python-version", "3.11", str(STUB),
                                   str(STUB.with_name("passes.pyi")), str(right), str(wrong)],
                                  capture_output=True, text=True, timeout=600, cwd=folder,
                                  env=ranks.clean_environment(MYPYPATH=str(ranks.SOURCE / "python")))
            said = done.stdout.splitlines()
            if any("numpy" in line and "error" in line and "weft" not in line for line in said):
                self.skipTest(f"mypy cannot read this numpy: {said[0]}")
            self.assertEqual([line for line in said if "error" in line and "wrong.py" not in line], [], done.stderr)
            for number, (line, code) in enumerate(WRONG.items(), len(head) + 1):
                places = (f"{wrong.name}:{number}:", f"{wrong}:{number}:")
                found = [text for text in said if text.startswith(places)]
                self.assertRegex("\n".join(found), rf"\[({code})\]", line)


if __name__ == "__main__":
    ranks.main()
