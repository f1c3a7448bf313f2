#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft run --trace: the timeline obeys the rules of its viewers, and Perfetto reads all of it."""
import bisect
import json
import unittest

import support
import trace_processor

HALF_NS = 5e-4  # microseconds: times have three decimals


def overlaps(slices):
    """The first slice that lies neither inside the one before nor after it, or None."""
    ends = []
    for start, minus_duration, name in sorted(slices):
        end = start - minus_duration
        while ends and ends[-1] <= start + HALF_NS:
            ends.pop()
        if ends and end > ends[-1] + HALF_NS:
            return name, start
        ends.append(end)
    return None


@support.NEED_DATA
class Trace(support.Case):
    def trace(self, model, mode, steps, world=2, micro=1):
        """Trains, and returns the report, the file's bytes and the file."""
        path = self.dir / "t.json"
        more = ("--accumulate", micro) if micro > 1 else ()
        plan = self.compile(model, "p.weft", world, 16, "--bucket", "none", *more)
        report = self.train(plan, "--trace", path, world=world, steps=steps,
                            env={"WEFT_PROGRESS": mode})
        data = path.read_bytes()
        self.assertLess(len(data), 16 << 20)
        return report, data, json.loads(data)

    def check(self, report, trace, steps, world=2):
        """The rules that need no viewer. Returns the number of slices and of arrows."""
        first, last = report["timeline"]["first_step"], report["timeline"]["last_step"]
        self.assertEqual(trace["otherData"], {"first_step": first, "last_step": last})
        self.assertEqual(last, steps)
        events = trace["traceEvents"]
        rows = {e["tid"]: (e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
        self.assertEqual(sorted(rows.values()), [(rank, name) for rank in range(world)
                                                 for name in ("comm", "compute")])
        slices, arrows = {}, {"s": {}, "f": {}}
        for e in events:
            self.assertEqual(e["pid"], rows[e["tid"]][0], e)  # a thread belongs to one process
            if e["ph"] == "X":
                self.assertGreaterEqual(e["ts"], 0)
                self.assertGreaterEqual(e["dur"], 0)
                slices.setdefault(e["tid"], []).append((e["ts"], -e["dur"], e["name"]))
            elif e["ph"] in "sf":
                self.assertIs(type(e["id"]), int)
                self.assertNotIn(e["id"], arrows[e["ph"]])
                arrows[e["ph"]][e["id"]] = e
        for rank in range(world):  # whole steps, the same on all ranks
            shown = {e["args"]["step"] for e in events
                     if e["ph"] == "X" and e["pid"] == rank and "step" in e["args"]}
            self.assertEqual(shown, set(range(first, last + 1)))
        self.assertEqual(set(slices), set(rows))
        self.assertEqual(set(arrows["s"]), set(arrows["f"]))
        self.assertTrue(all(e.get("bp") == "e" for e in arrows["f"].values()))
        for number, start in arrows["s"].items():
            self.assertLessEqual(start["ts"], arrows["f"][number]["ts"])
        for tid, parts in slices.items():
            self.assertIsNone(overlaps(parts), rows[tid])  # or viewers drop it
            spans = sorted((start, start - minus_duration) for start, minus_duration, _ in parts)
            for e in [*arrows["s"].values(), *arrows["f"].values()]:
                if e["tid"] == tid:  # an arrow starts and ends in a slice
                    at = bisect.bisect_right(spans, (e["ts"] + HALF_NS, 1e18)) - 1
                    self.assertLessEqual(e["ts"], spans[at][1] + HALF_NS, e)
        return sum(map(len, slices.values())), len(arrows["s"])

    def test_rules_of_the_format(self):
        many = 20 if support.SANITIZED else 800  # more steps than the timeline remembers
        for model, mode, steps in (("lenet.onnx", "inline", many), ("mlp.onnx", "thread", 20)):
            with self.subTest(model=model):
                report, _, trace = self.trace(model, mode, steps)
                slices, arrows = self.check(report, trace, steps)
                self.assertTrue(slices and arrows)
                self.assertEqual(report["timeline"]["first_step"] > 1, steps > 20)
                self.assertTrue(any("bucket" in e["name"] for e in trace["traceEvents"]))

    def test_micro_batches_and_other_worlds(self):
        steps = 20 if support.SANITIZED else 500
        report, _, trace = self.trace("lenet.onnx", "inline", steps, micro=3)
        self.check(report, trace, steps)
        first = report["timeline"]["first_step"]
        for rank in (0, 1):  # all micro-batches of the first step
            runs = {e["args"]["run"] for e in trace["traceEvents"]
                    if e["ph"] == "X" and e["pid"] == rank and e["args"].get("step") == first}
            self.assertEqual(len(runs), 3)
        report, _, trace = self.trace("mlp.onnx", "inline", 5, world=3)
        self.check(report, trace, 5, world=3)

    def test_the_summary_names_the_steps(self):
        path = self.dir / "t.json"
        plan = self.compile()
        done = self.weft("run", plan, "-n", 2, "--data", support.DATA, "--steps", 7, "--no-eval",
                         "--trace", path)
        self.assertIn(f"timeline: {path}, steps 1 to 7 of 7 (", done.stdout)

    def test_perfetto_reads_all_of_it(self):
        if why := trace_processor.missing():
            self.skipTest(why)
        many = 20 if support.SANITIZED else 800
        for model, mode, steps, world in (("lenet.onnx", "inline", many, 2),
                                          ("mlp.onnx", "thread", 20, 3)):
            with self.subTest(model=model):
                report, data, trace = self.trace(model, mode, steps, world)
                slices, arrows = self.check(report, trace, steps, world)
                processor = trace_processor.TraceProcessor(data)
                self.assertEqual(processor.query(
                    "select name, value from stats where value > 0 and severity != 'info'"), [])
                self.assertEqual(processor.query("select count(*) from slice"), [(slices,)])
                self.assertEqual(processor.query("select count(*) from flow"), [(arrows,)])
                rows = processor.query(
                    "select process.pid, process.name, thread.name from thread_track "
                    "join thread using (utid) join process using (upid)")
                self.assertEqual(sorted(rows), [(rank, f"rank {rank}", name) for rank in range(world)
                                                for name in ("comm", "compute")])

    def test_the_processor_notices(self):
        """What Weft once wrote: thread ids that repeat in each process, and ids of arrows with dots."""
        if why := trace_processor.missing():
            self.skipTest(why)
        _, _, trace = self.trace("mlp.onnx", "inline", 5)
        for e in trace["traceEvents"]:
            e["tid"] = e["tid"] % 2
            if "id" in e:
                e["id"] = f"{e['pid']}.1.{e['id']}"
        processor = trace_processor.TraceProcessor(json.dumps(trace).encode())
        wrong = dict(processor.query("select name, value from stats where severity = 'error' and value > 0"))
        self.assertIn("flow_invalid_id", wrong)
        self.assertEqual(processor.query("select count(*) from flow"), [(0,)])


if __name__ == "__main__":
    support.main()
