#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program in README.md, "From Python", does what it says."""
import os
import re

import ranks

np = ranks.need("numpy")
import weft  # noqa: E402

MODEL = ranks.SOURCE / "samples" / "models" / "mlp.onnx"


class Readme(ranks.RankCase):
    INIT = False

    def test_from_python(self):
        text = (ranks.SOURCE / "README.md").read_text()
        program = re.search(r"## From Python\n.*?```python\n(.*?)```", text, re.DOTALL).group(1)
        folder = self.dir / str(self.rank)
        folder.mkdir()
        os.chdir(folder)
        os.symlink(MODEL, "mlp.onnx")
        bindings = {binding["role"]: binding for binding in weft.compile("mlp.onnx", world=2, batch=64).bindings}
        images, labels = (np.zeros(bindings[role]["shape"], bindings[role]["dtype"]) for role in ("input", "label"))
        names = {"x": np.full(4, self.rank, "float32"), "images": images, "labels": labels}
        exec(compile(program, "README.md", "exec"), names)
        np.testing.assert_array_equal(names["y"], np.full(4, 0.5))
        np.testing.assert_array_equal(names["x"], np.full(4, 1))
        np.testing.assert_array_equal(names["work"].wait(), np.full(8, 1))
        self.assertEqual(names["big"].shape, (1 << 20,))
        self.assertIsInstance(names["loss"], float)
        self.assertEqual(os.path.exists("trained.onnx"), self.rank == 0)


if __name__ == "__main__":
    ranks.main()
