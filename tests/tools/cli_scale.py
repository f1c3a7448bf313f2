#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What grows with the number of ranks: not the plan, nor the memory of compiling it."""
import json
import os

from support import MODELS, SANITIZED, WEFT, Case, main

RANKS = (8, 1024) if SANITIZED else (8, 64, 1024, 65536)
# Digests, names of algorithms and constants of averages differ between worlds, by a few bytes each.
SLACK_BYTES = 2048
SLACK_KIB = 16384


class Scale(Case):
    def compile_for(self, ranks, *options):
        """The plan's bytes and the compiler's peak memory in KiB."""
        plan = self.dir / "plan.weft"
        pid = os.posix_spawn(WEFT, [WEFT, "compile", str(MODELS / "mlp.onnx"), "--batch", "64", *options, "-o", str(plan)],
                             os.environ)
        _, state, usage = os.wait4(pid, 0)
        self.assertEqual(state, 0, (ranks, options))
        return plan.stat().st_size, usage.ru_maxrss

    def expect_equal(self, results):
        sizes, peaks = zip(*results)
        self.assertLessEqual(max(sizes) - min(sizes), SLACK_BYTES, sizes)
        if not SANITIZED:
            self.assertLessEqual(max(peaks) - min(peaks), SLACK_KIB, peaks)

    def test_plans_do_not_grow_with_the_world(self):
        for options in ([], ["--shard-parameters"], ["--tensor-parallel", "8"]):
            with self.subTest(options=options):
                self.expect_equal([self.compile_for(n, "--world", str(n), *options) for n in RANKS])

    def test_plans_do_not_grow_with_the_cluster(self):
        results = []
        for ranks in RANKS:
            first = {"ranks": 8, "cores": 16, "l3_caches": 4, "nics": [{"name": "eth0", "gbit_per_s": 25}]}
            hosts = [first if i == 0 else {"like": "host0", "ranks": 8} for i in range(ranks // 8)]
            path = self.dir / "cluster.json"
            path.write_text(json.dumps({"format": 1, "hosts": hosts, "link": {"gbit_per_s": 25, "latency_us": 5}}))
            results.append(self.compile_for(ranks, "--topology", str(path)))
        self.expect_equal(results)


if __name__ == "__main__":
    main()
