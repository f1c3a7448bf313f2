#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pages of the command: one file that loads nothing, shows what --json says, and treats names as texts."""
import json
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import browser
import door_models
import page_models
import support
from support import SOURCE, Case

NODE = shutil.which("nodejs") or shutil.which("node")
# Calls the planner of a page as the page does.
CALL = """const P = require(process.argv[1]), data = JSON.parse(require("fs").readFileSync(0)), p = data.plan.planner;
const r = P.whatIf(data, 1, data.explain.world, p.cap_bytes);
console.log(JSON.stringify({doneUs: r.done * 1e-6, optimumUs: r.optimum * 1e-6, buckets: r.buckets.length,
                            optimumBuckets: r.optimumCount, stepUs: r.step * 1e-6}))"""
EVIL = "</script><script>document.title='run'</script><img src=x onerror=\"document.title='run'\">&amp;\u2028"
NEEDS_BROWSER = unittest.skipUnless(browser.browser(), browser.WHY_NOT)


def data_of(page):
    """What a page draws."""
    return json.loads(re.search(r'<script id="data" type="application/json">\n(.*?)</script>', page, re.DOTALL).group(1))


def evil_model():
    """One product whose names are markup."""
    weight, out = f"w{EVIL}", f"y{EVIL}"
    nodes = [helper.make_node("Gemm", ["x", weight], [out], f"n{EVIL}"),
             helper.make_node("SoftmaxCrossEntropyLoss", [out, "label"], ["loss"], "loss")]
    graph = helper.make_graph(nodes, EVIL, [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4]),
                                            helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"])],
                              [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
                              [numpy_helper.from_array(np.ones((4, 3), np.float32), weight)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)])


class Page(Case):
    def page(self, plan, *options):
        """The page of a plan, and what it draws."""
        path = self.dir / f"{plan.stem}.html"
        self.weft("explain", plan, "--html", path, *options)
        text = path.read_text(encoding="utf-8")
        self.check_alone(text)
        return path, data_of(text)

    def check_alone(self, text):
        """Nothing in a page can load anything."""
        self.assertIn("default-src 'none'", text)
        self.assertEqual(set(re.findall(r"https?://[^\s\"'`]*", text.split('<script id="data"')[0])), set())
        tags = browser.Texts(text).tags
        self.assertFalse([tag for tag, attrs in tags if tag in ("link", "img", "iframe", "object") or "src" in attrs or "href" in attrs])

    def shown(self, path, script=""):
        """The page after its scripts, without complaints."""
        document, console = browser.dump(path, script)
        self.assertEqual(console, [])
        texts = browser.Texts(document)
        self.assertNotIn("could not be drawn", texts.text())
        return texts

    @unittest.skipIf(support.SANITIZED, "takes long; the other cases reach the same code")
    def test_the_planner_of_a_page_is_that_of_the_compiler(self):
        if not NODE and not browser.browser():
            self.skipTest(f"neither nodejs nor Chromium: {browser.WHY_NOT}")
        self.save(page_models.resnet50(), "resnet.onnx")
        for name, model, world, options in (
                ("lenet", "lenet.onnx", 2, ()), ("capped", "mlp.onnx", 4, ("--bucket", "auto:256K")), ("one", "mlp.onnx", 1, ()),
                ("sharded", "mlp.onnx", 4, ("--shard-optimizer",)), ("bf16", "mlp.onnx", 3, ("--wire", "bf16", "--bucket", "auto:100K")),
                ("points", "mlp.onnx", 2, ("--costs", self.costs())), ("resnet", self.dir / "resnet.onnx", 8, ())):
            with self.subTest(name):
                plan = self.compile(model, f"{name}.weft", world, 8, *options)
                path, data = self.page(plan)
                says = self.weft_json("explain", plan)
                found = []
                if NODE:
                    run = subprocess.run([NODE, "-e", CALL, SOURCE / "tools/page/planner.js"], input=json.dumps(data), capture_output=True,
                                         text=True, check=True)
                    found.append(json.loads(run.stdout))
                if browser.browser():
                    result = self.shown(path).find("what-if-result")
                    found.append({re.sub(r"-(.)", lambda m: m[1].upper(), key[5:]): float(value) for key, value in result.items()
                                  if key.startswith("data-")})
                    self.assertAlmostEqual(found[-1]["keptUs"], says["chosen_us"], delta=2e-3)
                for result in found:
                    self.assertAlmostEqual(result["doneUs"], says["chosen_us"], delta=2e-3)
                    self.assertAlmostEqual(result["stepUs"], says["step_us"], delta=2e-3)
                    if data["plan"]["planner"]["cap_bytes"] == 0:
                        self.assertAlmostEqual(result["optimumUs"], says["optimum_us"], delta=2e-3)
                        self.assertEqual(result["optimumBuckets"], says["optimum_buckets"])
                        self.assertEqual(result["buckets"], says["compare"][0]["buckets"])

    def costs(self):
        """A table with measured all-reduces: the planner works on points."""
        path = self.dir / "costs.json"
        key = {"op": "AllReduce", "algorithm": "mesh", "ranks": 2, "hosts": 1, "memory": "registered"}
        path.write_text(json.dumps({"format": 1, "name": "points", "measured": [
            {**key, "from_bytes": 0, "alpha_ns": 2000, "beta_ns_per_byte": 0.5},
            {**key, "from_bytes": 65536, "alpha_ns": 20000, "beta_ns_per_byte": 0.25}]}))
        return path

    def test_a_page_of_resnet_50_has_at_most_a_megabyte(self):
        self.save(page_models.resnet50(), "resnet.onnx")
        path, data = self.page(self.compile(self.dir / "resnet.onnx", "resnet.weft", 8, 2))
        self.assertEqual(sum(kernel[1] == "ConvGrad" for kernel in data["plan"]["kernels"]), 53)
        self.assertLess(path.stat().st_size, 1_000_000)

    @NEEDS_BROWSER
    def test_every_part_is_drawn_and_keys_work(self):
        path, _ = self.page(self.compile(batch=8))
        keys = """const key = (node, key) => node.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
            const out = {}, areas = [...document.querySelectorAll("[role=application]")];
            out.focusable = areas.every((node) => node.tabIndex === 0);
            setTimeout(() => {
              for (const area of areas) { key(area, "ArrowRight"); key(area, "+"); key(area, "-"); key(area, "ArrowDown"); key(area, "End"); key(area, "0"); }
              out.details = [...document.querySelectorAll(".detail")].map((node) => node.textContent);
              const slide = (id, value) => { const s = document.getElementById(id); s.value = value; s.dispatchEvent(new Event("input")); return {...document.getElementById("what-if-result").dataset}; };
              out.slow = slide("rate", 0); slide("rate", 7); out.many = slide("ranks", 11); out.capped = slide("cap", 0);
              document.title = JSON.stringify(out);
            }, 300);"""
        texts = self.shown(path, keys)
        for part in ("timeline", "what-if", "graph", "memory", "buckets", "algorithms"):
            texts.find(part)
        out = json.loads(re.search(r"\{\"focusable.*\}", texts.text())[0])
        self.assertTrue(out["focusable"])
        self.assertNotIn("Select a", "".join(out["details"]))
        start = float(self.shown(path).find("what-if-result")["data-done-us"])
        self.assertGreater(float(out["slow"]["doneUs"]), start)
        self.assertGreaterEqual(float(out["many"]["doneUs"]), start)
        self.assertGreater(int(out["capped"]["buckets"]), 8)

    @unittest.skipIf(support.SANITIZED, "takes long; the other cases reach the same code")
    @NEEDS_BROWSER
    def test_plans_of_all_kinds_are_drawn(self):
        for name, options in (("infer", ("--infer",)), ("decoupled", ("--decouple",)), ("parameters", ("--shard-parameters",)),
                              ("accumulated", ("--accumulate", "3", "--wire", "bf16")), ("stages", ("--pipeline", "2"))):
            with self.subTest(name):
                path, _ = self.page(self.compile("lenet.onnx", f"{name}.weft", 2, 8, *options))
                self.assertIn("Timeline", self.shown(path).text())

    @support.NEED_DATA
    def test_measured_times_are_below_predicted_ones(self):
        plan, trace, profile = self.compile(), self.dir / "trace.json", self.dir / "profile.json"
        self.train(plan, "--trace", trace, "--write-profile", profile, steps=5)
        names = {kernel[0] for kernel in self.page(plan)[1]["plan"]["kernels"]}
        path, data = self.page(plan, "--profile", trace)
        spans = data["plan"]["measured"]["spans"]
        self.assertGreater(len({span[2] for span in spans if span[1] == "kernel"} & names), 5)
        self.assertTrue(any(span[1] == "collective" for span in spans))
        if browser.browser():
            self.assertIn("measured compute", self.shown(path).text())
        path, data = self.page(plan, "--profile", profile)
        self.assertLessEqual({kernel[0] for kernel in data["plan"]["measured"]["kernels"]}, names)
        if browser.browser():
            self.assertIn("Step, measured", self.shown(path).text())

    @support.NEED_DATA
    def test_report_of_a_run(self):
        """2500 steps, more than a report has points: of a small model."""
        small = self.save(door_models.forward())
        for steps, points, options in ((7, 7, ()), (2500, 2048, ()), (4, 4, ("--elastic", "1:2"))):
            with self.subTest(steps):
                model = (small, "--batch", "8") if options else (self.compile(small, batch=8),)
                run = self.weft_json("run", *model, "-n", 2, "--data", support.DATA, "--no-eval", "--steps", steps, "--report", self.dir / "run", *options)
                file = json.loads((self.dir / "run" / "run.json").read_text())
                self.assertEqual(file["report"], run)
                self.assertEqual((len(file["steps"]), file["steps"][-1], len(file["ranks"])), (points, steps, 2))
                self.assertEqual(sorted(file["steps"]), file["steps"])
                for rank in file["ranks"]:
                    self.assertEqual({len(rank[key]) for key in ("loss", "ms", "ms_most")}, {points})
                    self.assertGreater(rank["compute_ms"], 0)
                    self.assertTrue(all(0 < mean <= most * 1.001 for mean, most in zip(rank["ms"], rank["ms_most"])))
                if steps == points:
                    for end, name in ((0, "loss_first"), (-1, "loss_last")):
                        self.assertAlmostEqual(sum(rank["loss"][end] for rank in file["ranks"]) / 2, run[name], delta=1e-4)
                self.assertIn("report.html", self.weft("report", self.dir / "run").stdout)
                page = self.dir / "run" / "report.html"
                self.check_alone(page.read_text(encoding="utf-8"))
                if browser.browser():
                    texts = self.shown(page)
                    for part in ("loss", "times", "ranks", "links"):
                        texts.find(part)
                    self.assertIn(f"{run['loss_last']:.4f}", texts.text())

    @unittest.skipIf(support.SANITIZED, "takes long; the other cases reach the same code")
    @support.NEED_DATA
    def test_report_of_a_run_on_hosts(self):
        rsh, run = self.dir / "rsh", self.dir / "run"
        rsh.write_text('#!/bin/sh\nWEFT_HOST_ID=$1 exec sh -c "$2"\n')
        rsh.chmod(0o755)
        self.train(self.compile(batch=8), "--hosts", "127.0.0.2:1,127.0.0.3:1", "--engine", "ssh", "--rsh", rsh, "--report", run, steps=3)
        file = json.loads((run / "run.json").read_text())
        self.assertEqual([link["hosts"] for link in file["report"]["links"]], [["127.0.0.2", "127.0.0.3"]])
        self.assertEqual([rank["host"] for rank in file["ranks"]], [0, 1])
        self.weft("report", run)
        if browser.browser():
            texts = self.shown(run / "report.html").text()
            self.assertIn("2 ranks on 2 hosts", texts)
            self.assertIn("127.0.0.2 – 127.0.0.3", texts)

    @support.NEED_DATA
    @support.NEED_DATA
    def test_report_of_a_run_that_was_killed(self):
        file, steps = self.dir / "run" / "run.json", 1 << 20
        run = subprocess.Popen([support.WEFT, *map(str, ("run", self.compile(batch=8), "-n", 2, "--data", support.DATA, "--no-eval",
                                                         "--steps", steps, "--report", file.parent))],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.dir, start_new_session=True)
        versions = set()
        while len(versions) < 2:  # another file each time: it is replaced
            self.assertIsNone(run.poll())
            if file.exists():
                content = json.loads(file.read_text())  # always whole
                versions.add(content["report"]["steps"])
            time.sleep(0.01)
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        content = json.loads(file.read_text())
        self.assertEqual((content["complete"], len(content["ranks"]), content["report"]["world"]), (False, 1, 2))
        self.assertEqual(content["steps"][-1], content["report"]["steps"])
        self.assertEqual(len(content["ranks"][0]["loss"]), len(content["steps"]))
        self.weft("report", file.parent)
        if browser.browser():
            self.assertIn("it had not ended", self.shown(file.parent / "report.html").text())

    def test_report_that_cannot_be_written(self):
        plan, file = self.compile(batch=8), self.dir / "file"
        file.write_text("")
        self.assertIn("cannot create folder", self.weft("run", plan, "--data", support.DATA, "--steps", 1, "--report", self.dir / "a" / "b", code=2).stderr)
        self.assert_one_line(self.weft("run", plan, "--data", support.DATA, "--steps", 1, "--report", file, code=2).stderr)

    def test_reports_of_odd_files(self):
        page, run = self.dir / "out.html", self.dir / "run.json"
        for text in ("", "{", "[]", "{}", '{"format": 2}', '{"format": 1, "report": 3, "steps": [], "ranks": []}', '{"format": 1}'):
            with self.subTest(text):
                run.write_text(text)
                error = self.weft("report", self.dir, "-o", page, code=2).stderr
                self.assert_one_line(error)
                self.assertIn("run.json", error)
        self.assertFalse(page.exists())
        self.assertIn("expected one RUN_DIR", self.weft("report", code=2).stderr)
        self.assertIn("run.json", self.weft("report", self.dir / "missing", code=2).stderr)
        odd = {"format": 1, "model": EVIL, "report": {"hosts": [{"name": EVIL, "ranks": [0]}, {}], "launcher": EVIL, "links": [
            {"hosts": [EVIL, "b"], "bytes": 5, "mb_per_s": 3, "slow": True}, {}], "recoveries": [{"dead": EVIL, "step": None}]},
               "steps": [1, None, "x", 3], "ranks": [None, 3, {}, {"rank": 0, "ms": [1, None, "2"], "loss": [None], "compute_ms": 1}]}
        for content in (odd, {"format": 1, "report": {}, "steps": [], "ranks": []}):
            run.write_text(json.dumps(content))
            self.weft("report", self.dir, "-o", page)
            self.assertNotIn("<script>document", page.read_text(encoding="utf-8"))
            if browser.browser():
                texts = self.shown(page)
                self.assertNotIn("run", [shown.strip() for shown in texts.shown])
                self.assertFalse([tag for tag, _ in texts.tags if tag == "img"])

    def test_names_are_texts(self):
        plan = self.compile(self.save(evil_model()), "evil.weft", 2, 8)
        path, data = self.page(plan)
        self.assertIn(EVIL, "".join(kernel[0] for kernel in data["plan"]["kernels"]))
        self.assertNotIn("<script>document", path.read_text(encoding="utf-8"))
        if browser.browser():
            texts = self.shown(path)
            self.assertNotIn("run", [shown.strip() for shown in texts.shown])
            self.assertFalse([tag for tag, _ in texts.tags if tag == "img"])

    def test_what_is_damaged_is_an_error_and_no_page(self):
        plan, out = self.compile(batch=8), self.dir / "out.html"
        damaged = self.dir / "damaged.weft"
        good = plan.read_bytes()
        for name, text in (("short", good[:1000]), ("digest", good[:40] + bytes([good[40] ^ 255]) + good[41:]), ("empty", b"")):
            with self.subTest(name):
                damaged.write_bytes(text)
                self.assert_one_line(self.weft("explain", damaged, "--html", out, code=2).stderr)
        profile = self.dir / "profile.json"
        deep = "[" * 100 + "]" * 100
        for text in ("", "{", "[]", "{}", '{"kernels": 3}', '{"traceEvents": []}', '{"traceEvents": [1, {"pid": "a"}, {"ph": "X"}]}', deep,
                     '{"traceEvents": [{"ph": "X", "cat": "kernel", "pid": 0, "ts": -1, "dur": 1e300, "args": {"step": 1}}]}'):
            with self.subTest(text[:40]):
                profile.write_text(text)
                error = self.weft("explain", plan, "--html", out, "--profile", profile, code=2).stderr
                self.assert_one_line(error)
                self.assertIn(str(profile), error)
        self.assertFalse(out.exists())
        profile.write_text('{"kernels": [1, {"name": 3, "ns": "x"}, {"name": "<b>", "ns": -1}], "step_ns": null}')
        path, _ = self.page(plan, "--profile", profile) # odd entries are left out
        if browser.browser():
            self.shown(path)

    def test_options_that_exclude_each_other(self):
        plan, out = self.compile(batch=8), self.dir / "out.html"
        for options in (("--json",), ("--compare",), ("--why", "fc1.weight")):
            self.assertIn("--html excludes", self.weft("explain", plan, "--html", out, *options, code=2).stderr)
        self.assertIn("require --html", self.weft("explain", plan, "--profile", out, code=2).stderr)
        self.assertIn("missing", self.weft("explain", plan, "--html", self.dir / "missing" / "out.html", code=2).stderr)
        self.assertFalse(out.exists())


if __name__ == "__main__":
    support.main()
