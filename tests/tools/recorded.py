# SPDX-License-Identifier: Apache-2.0
"""Four ranks of tests/tools/recorded.c, for tests of weft ps and weft analyze."""
import json
import os
import subprocess
import time

import support

WORLD = 4


class Ranks:
    """Starts them; on leaving the block all are killed."""

    def __init__(self, case, scene, hosts="", **env):
        """hosts: a letter per rank for simulated hosts."""
        self.case, self.address = case, f"file://{case.dir}/meet" if hosts else f"unix:@{case.dir.name}"
        self.processes = [
            subprocess.Popen([support.BINARY / "tests" / "recorded", scene], stderr=subprocess.PIPE, text=True,
                             env={**os.environ, "WEFT_RANK": str(rank), "WEFT_WORLD_SIZE": str(WORLD),
                                  "WEFT_ADDRESS": self.address,
                                  **({"WEFT_HOST_ID": hosts[rank]} if hosts else {}), **env})
            for rank in range(WORLD)]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for process in self.processes:
            process.kill()
            process.communicate()

    def wait(self):
        """To the end of all."""
        for process in self.processes:
            process.wait()

    def pids(self):
        return [process.pid for process in self.processes]

    def ps(self):
        """This world as weft ps --json describes it, or None."""
        worlds = self.case.weft_json("ps", *self.pids()[:1])["worlds"]
        return next((world for world in worlds if world["world"] == self.address), None)

    def await_calls(self, calls):
        """Until every rank is in the call, or (none) has made the last one, that calls names; {rank: (state, call)}."""
        while True:
            world = self.ps()
            now = {} if world is None else {
                rank["rank"]: (rank["state"], rank.get("call", rank.get("last_call"))) for rank in world["ranks"]}
            if now == calls:
                return world
            time.sleep(0.01)
