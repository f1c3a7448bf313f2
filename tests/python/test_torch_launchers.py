# SPDX-License-Identifier: Apache-2.0
"""torch.distributed on backend weft in scripts, by every launcher; the sample."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import ranks

ranks.need("torch")

SAMPLE = ranks.SOURCE / "samples" / "python" / "train_torch.py"
DATA = "/usr/share/datasets/fashion-mnist"
SCRIPT = """
import torch, torch.distributed as dist, weft.torch
torch.set_num_threads(1)
dist.init_process_group("weft")
x = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(x)
dist.barrier()
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {x.item()}.")
"""
RANK_THAT_IS_KILLED = """
if [ "$TORCHELASTIC_RESTART_COUNT$RANK" = 01 ]; then
    "$@" & pid=$!
    while [ ! -e state.safetensors ]; do sleep 0.01; done
    kill -9 $pid
    wait $pid
    exit 1
fi
exec "$@"
"""
MPIRUN = ["mpirun.openmpi", "--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "-np", "2"]


class Launchers(unittest.TestCase):
    """No variable of torch's is set but by torchrun; the group is left to the end of the program."""

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="weft-test-"))
        self.addCleanup(shutil.rmtree, self.dir, True)
        self.script = self.dir / "script.py"
        self.script.write_text(SCRIPT)

    def run_by(self, *command, size=2, env=None):
        if not shutil.which(command[0]):
            self.skipTest(f"{command[0]} is not installed")
        done = subprocess.run([*map(str, command), str(self.script)], capture_output=True, text=True, timeout=600,
                              env=ranks.clean_environment(**(env or {})), cwd=self.dir, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(sorted(re.findall(r"rank \d of \d: [\d.]+\.", done.stdout)),
                         [f"rank {rank} of {size}: {size * (size + 1) / 2}." for rank in range(size)])
        return done

    def test_weft_run(self):
        self.assertEqual(self.run_by(ranks.WEFT, "run", "-n", "2", "--", sys.executable).stderr, "")

    def test_open_mpi(self):
        self.run_by(*MPIRUN, sys.executable)

    def test_hydra(self):
        self.run_by("mpiexec.hydra", "-n", "2", sys.executable)

    def test_torchrun(self):
        # Debian's torch 1.13 under CPython 3.11 wants to be told where the output of every rank goes.
        self.run_by("torchrun", "--nproc_per_node", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0",
                    "-r", "0:1,1:1", "-t", "0:1,1:1")

    def test_alone(self):
        self.assertEqual(self.run_by(sys.executable, size=1).stderr, "")


@unittest.skipUnless(os.path.exists(os.path.join(DATA, "train-images-idx3-ubyte.gz")),
                     "dataset-fashion-mnist is not installed")
class Sample(unittest.TestCase):
    def test_train_torch(self):
        done = ranks.run_script(SAMPLE, "--model", "mlp", "--steps", "100")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = re.search(r"epoch 1: loss ([\d.]+), accuracy ([\d.]+), 2 ranks, backend weft", done.stdout)
        self.assertGreater(float(found.group(2)), 0.7)

    def test_torchrun_restarts(self):
        """A rank is killed while weft run trains: torchrun starts all again, and they continue the checkpoint."""
        if not shutil.which("torchrun"):
            self.skipTest("torchrun is not installed")
        with tempfile.TemporaryDirectory(prefix="weft-test-") as folder:
            rank = pathlib.Path(folder, "rank.sh")
            rank.write_text(RANK_THAT_IS_KILLED)
            run = [ranks.WEFT, "run", ranks.SOURCE / "samples" / "models" / "mlp.onnx", "--data", DATA, "--batch", 16, "--steps", 100,
                   "--no-eval", "--json"]
            done = subprocess.run(
                [*map(str, ("torchrun", "--nproc_per_node", 2, "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", "-r",
                            "0:1,1:1", "-t", "0:1,1:1", "--max_restarts", 1, "--no_python", "sh", rank, *run, "--checkpoint",
                            "state.safetensors", "--checkpoint-every", 1, "--resume", "auto"))], capture_output=True, text=True,
                timeout=600, env=ranks.clean_environment(), cwd=folder, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            again = subprocess.run([*map(str, run), "-n", "2"], capture_output=True, text=True, timeout=600,
                                   env=ranks.clean_environment(), cwd=folder, check=True)
        first = int(re.search(r'"first_step": *(\d+)', done.stdout).group(1))
        self.assertGreater(first, 0)
        digest = r'"param_digest": *"(\w+)"'
        self.assertEqual(re.search(digest, done.stdout).group(1), re.search(digest, again.stdout).group(1))


if __name__ == "__main__":
    ranks.main()
