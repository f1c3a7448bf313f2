#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""If, Loop and Scan whose course is known at compile: results and gradients against numpy; others are refused by name."""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import support
from cli_training_info import read_safetensors
from support import Case

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
info, make = helper.make_tensor_value_info, helper.make_node


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def constant(name, value):
    return numpy_helper.from_array(np.asarray(value), name)


def graph(nodes, name, inputs, outputs, constants=()):
    return helper.make_graph(nodes, name, inputs, outputs, list(constants))


def loop(trips, body_condition=None, condition="yes", weights=()):
    """v = tanh(v w) each time; also every v and the number of the iteration, stacked. weights: initializers of the body."""
    body = graph([make("Identity", ["cond"], ["cond_out"]) if body_condition is None else make("Less", ["i", body_condition], ["cond_out"]),
                  make("MatMul", ["v", "w"], ["m"]), make("Tanh", ["m"], ["v_out"]), make("Cast", ["i"], ["number"], to=FLOAT)],
                 "body", [info("i", INT, []), info("cond", BOOL, []), info("v", FLOAT, [2, 3])],
                 [info("cond_out", BOOL, []), info("v_out", FLOAT, [2, 3]), info("v_out", FLOAT, [2, 3]), info("number", FLOAT, [])], weights)
    return make("Loop", [trips, condition, "x"], ["last", "all", "numbers"], "loop", body=body)


class ControlFlow(Case):
    def run_model(self, proto, feeds, **more):
        folder = self.dir / "in"
        folder.mkdir(exist_ok=True)
        for name, value in feeds.items():
            (folder / f"{name}.pb").write_bytes(numpy_helper.from_array(value, name).SerializeToString())
        done = self.weft("run", self.save(proto), "-n", 1, "--infer", "--inputs", folder, "--outputs", self.dir / "out", **more)
        return done if more else {o.name: numpy_helper.to_array(onnx.load_tensor(str(self.dir / "out" / f"{o.name}.pb")))
                                  for o in proto.graph.output}

    def model(self, nodes, outputs, constants, inputs=(("x", FLOAT, [2, 3]),), opset=13):
        body = graph(nodes, "control", [info(*i) for i in inputs], [info(n, FLOAT, s) for n, s in outputs],
                     [constant(k, v) for k, v in constants.items()])
        return helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)

    def test_loop(self):
        x, w = draw(1, 2, 3), draw(2, 3, 3)
        values, v = [], x
        for _ in range(4):
            v = np.tanh(v @ w)
            values.append(v)
        for opset in (11, 13):
            proto = self.model([loop("trips")], [("last", [2, 3]), ("all", [4, 2, 3]), ("numbers", [4])],
                               {"trips": np.int64(4), "yes": np.bool_(True), "w": w}, opset=opset)
            got = self.run_model(proto, {"x": x})
            np.testing.assert_allclose(got["last"], v, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(got["all"], np.stack(values), rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(got["numbers"], np.arange(4))
        proto = self.model([loop("trips", condition="")], [("last", [2, 3])], {"trips": np.int64(4), "w": w})
        np.testing.assert_allclose(self.run_model(proto, {"x": x})["last"], v, rtol=1e-5, atol=1e-6)
        proto = self.model([loop("", "two")], [("last", [2, 3]), ("all", [3, 2, 3])],
                           {"two": np.int64(2), "yes": np.bool_(True), "w": w})
        np.testing.assert_allclose(self.run_model(proto, {"x": x})["all"], np.stack(values[:3]), rtol=1e-5, atol=1e-6)

    def test_if_on_a_shape(self):
        """As torch exports squeeze: the branch depends on a dimension; one inside of another uses names of both."""
        def inner(name, factor):
            return graph([make("Mul", ["y", factor], [f"{name}_y"])], name, [], [info(f"{name}_y", FLOAT, [2, 3])])
        then = graph([make("Mul", ["x", "w"], ["y"]),
                      make("If", ["no"], ["z"], "inner", then_branch=inner("a", "two"), else_branch=inner("b", "three"))],
                     "then", [], [info("z", FLOAT, [2, 3])], [constant("three", np.float32(3))])
        other = graph([make("NoSuchOperator", ["x"], ["z2"])], "else", [], [info("z2", FLOAT, [2, 3])])
        proto = self.model([make("Shape", ["x"], ["shape"]), make("Gather", ["shape", "one"], ["size"], axis=0),
                            make("Equal", ["size", "three_ints"], ["equal"]),
                            make("If", ["equal"], ["out"], "outer", then_branch=then, else_branch=other)], [("out", [2, 3])],
                           {"w": np.float32(2), "one": np.int64(1), "three_ints": np.int64(3), "no": np.bool_(False), "two": np.float32(2)})
        x = draw(1, 2, 3)
        np.testing.assert_allclose(self.run_model(proto, {"x": x})["out"], 6 * x, rtol=1e-6)

    def test_scan(self):
        body = graph([make("Add", ["sum", "row"], ["next"]), make("Mul", ["next", "next"], ["square"])], "body",
                     [info("sum", FLOAT, [3]), info("row", FLOAT, [3])], [info("next", FLOAT, [3]), info("square", FLOAT, [3])])
        x, start = draw(1, 4, 3), draw(2, 3)
        for back in (0, 1):
            proto = self.model([make("Scan", ["start", "x"], ["end", "squares"], "scan", body=body, num_scan_inputs=1,
                                     scan_input_directions=[back])], [("end", [3]), ("squares", [4, 3])], {"start": start},
                               inputs=(("x", FLOAT, [4, 3]),))
            sums = start + np.cumsum(x[::-1] if back else x, 0)
            got = self.run_model(proto, {"x": x})
            np.testing.assert_allclose(got["end"], sums[-1], rtol=1e-5)
            np.testing.assert_allclose(got["squares"], sums ** 2, rtol=1e-5)

    def test_gradients_flow_through_a_loop(self):
        x, w, t = draw(1, 2, 3), draw(2, 3, 3), draw(3, 2, 3)
        np.savez(self.dir / "data.npz", x=x, t=t)
        d = x.astype(np.float64)
        values = [d]
        for _ in range(3):
            values.append(np.tanh(values[-1] @ w))
        dv, dw = 2 * (values[-1] - t) / 6, 0
        for before, after in zip(values[-2::-1], values[:0:-1]):
            dm = dv * (1 - after ** 2)
            dw, dv = dw + before.T @ dm, dm @ w.T
        for inside in (False, True):  # as an initializer of the body it is one weight, too
            name, weights = ("body.1/w", [constant("w", w)]) if inside else ("w", [])
            constants = {"trips": np.int64(3), "yes": np.bool_(True), **({} if inside else {"w": w})}
            proto = self.model([loop("trips", weights=weights), make("Sub", ["last", "t"], ["e"]), make("Mul", ["e", "e"], ["ee"]),
                                make("ReduceMean", ["ee"], ["loss"], keepdims=0)], [("loss", [])], constants,
                               inputs=(("x", FLOAT, [2, 3]), ("t", FLOAT, [2, 3])))
            self.weft("run", self.save(proto), "-n", 1, "--loss", "loss", "--train", "*w", "--data", self.dir / "data.npz", "--no-eval",
                      "--steps", 1, "--optimizer", "sgd", "--lr", 1, "--checkpoint", self.dir / "end.safetensors")
            np.testing.assert_allclose(w - read_safetensors(self.dir / "end.safetensors")[name], dw, rtol=1e-4, atol=1e-5)

    def test_conditions_are_looked_up_once(self):
        """Thousands of branches on one constant; and on a value that nodes compute from it."""
        branches = [graph([make("Identity", [f"v{k}"], [f"b{k}"])], "branch", [], [info(f"b{k}", FLOAT, [2, 3])]) for k in range(10)]
        body = graph([*[make("If", ["yes" if k % 2 else "computed"], [f"v{k + 1}"], then_branch=b, else_branch=b)
                        for k, b in enumerate(branches)],
                      make("Add", ["v10", "x"], ["out"]), make("Identity", ["cond"], ["cond_out"])], "body",
                     [info("i", INT, []), info("cond", BOOL, []), info("v0", FLOAT, [2, 3])],
                     [info("cond_out", BOOL, []), info("out", FLOAT, [2, 3])])
        proto = self.model([make("Not", ["no"], ["computed"]), make("Loop", ["trips", "yes", "x"], ["last"], "loop", body=body)],
                           [("last", [2, 3])], {"trips": np.int64(800), "yes": np.bool_(True), "no": np.bool_(False)})
        x = np.ones((2, 3), np.float32)
        np.testing.assert_array_equal(self.run_model(proto, {"x": x})["last"], 801 * x)

    def test_errors_of_conditions_are_named(self):
        branch = graph([make("Neg", ["x"], ["y"])], "branch", [], [info("y", FLOAT, [2, 3])])
        proto = self.model([make("If", ["bad"], ["out"], "choice", then_branch=branch, else_branch=branch)], [("out", [2, 3])],
                           {"bad": np.bool_(True)})
        proto.graph.initializer[0].raw_data = b"123"
        error = self.run_model(proto, {}, code=2).stderr
        self.assertIn("'bad'", error)
        self.assertNotIn("not a constant", error)

    def test_what_is_not_known_is_refused(self):
        proto = self.model([loop("n")], [("last", [2, 3])], {"yes": np.bool_(True), "w": draw(1, 3, 3)},
                           inputs=(("x", FLOAT, [2, 3]), ("n", INT, [])))
        error = self.run_model(proto, {}, code=2).stderr
        self.assertIn("node 'loop' (Loop): the trip count is not a constant", error)
        branch = graph([make("Neg", ["x"], ["y"])], "branch", [], [info("y", FLOAT, [2, 3])])
        proto = self.model([make("If", ["n"], ["out"], "choice", then_branch=branch, else_branch=branch)], [("out", [2, 3])], {},
                           inputs=(("x", FLOAT, [2, 3]), ("n", BOOL, [])))
        self.assertIn("node 'choice' (If): the condition is not a constant", self.run_model(proto, {}, code=2).stderr)
        proto = self.model([loop("trips")], [("last", [2, 3])], {"trips": np.int64(10 ** 9), "yes": np.bool_(True), "w": draw(1, 3, 3)})
        self.assertIn("more than 4096 iterations", self.run_model(proto, {}, code=2).stderr)


if __name__ == "__main__":
    support.main()
