#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The manifest of samples/launch: a valid one, whose containers are started, killed and started again as Kubernetes does."""
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import unittest

import support
from cli_checkpoint import step_of
from support import Case, DATA, MODELS, NEED_DATA, SOURCE, WEFT

try:
    import yaml
except ImportError:
    yaml = None
try:
    import kubernetes_validate  # which brings the schemas
except ImportError:
    kubernetes_validate = None


@unittest.skipIf(yaml is None, "python3-yaml is missing")
class Kubernetes(Case):
    path = SOURCE / "samples" / "launch" / "kubernetes.yaml"

    def setUp(self):
        super().setUp()
        documents = {document["kind"]: document for document in yaml.safe_load_all(self.path.read_text())}
        self.service, self.job = documents["Service"], documents["Job"]
        self.pod = self.job["spec"]["template"]["spec"]
        self.container = self.pod["containers"][0]

    @unittest.skipIf(kubernetes_validate is None, "kubernetes_validate is missing (from PyPI)")
    def test_schema(self):
        """Every field is one of Kubernetes, in its type. A wrong one is found."""
        text = self.path.read_text()
        version = kubernetes_validate.latest_version()
        for document in yaml.safe_load_all(text):
            kubernetes_validate.validate(document, version, strict=True)
        for good, bad in (("subdomain:", "subdomains:"), ("completions: 4", "completions: four"), ("exec:", "execute:")):
            self.assertIn(good, text)
            job = list(yaml.safe_load_all(text.replace(good, bad)))[1]
            with self.assertRaises(kubernetes_validate.ValidationError, msg=bad):
                kubernetes_validate.validate(job, version, strict=True)

    def test_parts_fit_together(self):
        """What no schema knows: names, ports and volumes that refer to each other."""
        name = self.job["metadata"]["name"]
        env = {variable["name"]: variable.get("value") for variable in self.container["env"]}
        host, port = env["WEFT_ADDRESS"].split(":")
        self.assertEqual(self.service["spec"]["selector"], {"batch.kubernetes.io/job-name": name})
        self.assertEqual(self.service["spec"]["clusterIP"], "None")
        self.assertEqual(host, f"{name}-0.{self.service['metadata']['name']}")
        self.assertEqual(self.pod["subdomain"], self.service["metadata"]["name"])
        self.assertEqual([p["containerPort"] for p in self.container["ports"]], [int(port)])
        self.assertEqual([p["port"] for p in self.service["spec"]["ports"]], [int(port)])
        self.assertEqual(self.job["spec"]["completions"], self.job["spec"]["parallelism"])
        self.assertEqual(env["WEFT_WORLD_SIZE"], str(self.job["spec"]["completions"]))
        self.assertEqual({v["name"] for v in self.pod["volumes"]}, {m["name"] for m in self.container["volumeMounts"]})
        mounts = [mount["mountPath"] for mount in self.container["volumeMounts"]]
        for path in re.findall(r"'(/[^']*)'", str([self.container["command"], self.container["args"], env])):
            self.assertTrue(any(path.startswith(mount) for mount in mounts), path)
        unknown = self.weft("info", env={name: "1" for name in env if name.startswith("WEFT_")} |
                            {"WEFT_RANK": "0", "WEFT_WORLD_SIZE": "1"}).stderr
        self.assertNotIn("unknown variable", unknown)

    def local(self, text):
        """As it is on this machine."""
        places = {"/models/data": DATA, "/models/model.onnx": MODELS / "mlp.onnx", "/models": self.dir, "/run/weft": self.dir,
                  "weft-0.weft:7411": f"127.0.0.1:{self.port}"}
        return re.sub("|".join(places), lambda found: str(places[found.group()]), text)

    def start_pod(self, index):
        field = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        env = {}
        for variable in self.container["env"]:
            if "valueFrom" in variable:
                self.assertEqual(variable["valueFrom"], {"fieldRef": {"fieldPath": field}})
            env[variable["name"]] = self.local(variable["value"]) if "value" in variable else str(index)
        words = [self.local(word) for word in self.container["command"] + self.container["args"]]
        words[words.index("100")] = "1"  # steps between checkpoints
        with open(self.dir / f"pod{index}.log", "a") as log, open(self.dir / "errors", "a") as errors:
            return subprocess.Popen([*words, "--steps", "300", "--no-eval", "--json"], stdout=log, stderr=errors,
                                    env={**self.env, **env}, cwd=self.dir)

    def probe(self, name, pod):
        """In a container there is one rank; here a command finds the one of the pod."""
        command = self.dir / "bin" / "weft"
        command.parent.mkdir(exist_ok=True)
        command.write_text(f'#!/bin/sh\nexec {WEFT} "$@" {pod.pid}\n')
        command.chmod(0o755)
        return subprocess.run(self.container[name]["exec"]["command"], capture_output=True,
                              env={**self.env, "PATH": f"{command.parent}:{os.environ['PATH']}"}).returncode

    def step(self):
        file = self.dir / "state.safetensors"
        return step_of(file) if file.exists() else 0

    @NEED_DATA
    @unittest.skipIf(support.SANITIZED, "one case is enough under sanitizers")
    def test_containers_start_again(self):
        """A pod dies, twice; each container that fails is started again, until all have ended well."""
        self.port = support.free_port()
        self.env = {**os.environ, "PATH": f"{pathlib.Path(WEFT).parent}:{os.environ['PATH']}"}
        (self.dir / "secret").write_text("a secret of sixteen characters and more\n")
        count, kills, starts, done = self.job["spec"]["completions"], 0, 0, set()
        pods = [self.start_pod(index) for index in range(count)]
        self.addCleanup(lambda: [(pod.kill(), pod.wait()) for pod in pods])
        while len(done) < count:
            if kills < 2 and self.step() >= 20 * (kills + 1) and not done:
                self.assertEqual((self.probe("startupProbe", pods[1]), self.probe("livenessProbe", pods[1])), (0, 0))
                pods[1].send_signal(signal.SIGSTOP)
                self.assertEqual((self.probe("startupProbe", pods[1]), self.probe("livenessProbe", pods[1])), (0, 1))
                pods[1].send_signal(signal.SIGCONT)
                pods[2 * kills].kill()  # rank 0 as well
                kills += 1
            for index, pod in enumerate(pods):
                if index not in done and pod.poll() is not None:
                    if pod.returncode == 0:
                        done.add(index)
                    else:
                        starts += 1
                        self.assertLess(starts, self.job["spec"]["backoffLimit"], (self.dir / "errors").read_text())
                        pods[index] = self.start_pod(index)
            time.sleep(0.02)
        self.assertEqual(kills, 2)
        report = json.loads((self.dir / "pod0.log").read_text())
        self.assertGreaterEqual(report["first_step"], 40)
        whole = self.weft_json("run", MODELS / "mlp.onnx", "-n", count, "--batch", 64, "--data", DATA, "--no-eval", "--steps", 300)
        self.assertEqual(report["param_digest"], whole["param_digest"])


if __name__ == "__main__":
    support.main()
