#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python programs of README.md and docs/getting-started.md, on two ranks (tests/docs runs them alone)."""
import os
import re

import ranks

np = ranks.need("numpy")
import weft  # noqa: E402


class Readme(ranks.RankCase):
    INIT = False

    def run_first_block(self, page):
        text = (ranks.SOURCE / page).read_text()
        program = re.search(r"```python[^\n]*\n(.*?)```", text, re.DOTALL).group(1)
        folder = self.dir / str(self.rank)
        folder.mkdir()
        os.chdir(folder)
        os.symlink(ranks.SOURCE / "samples", "samples")
        names = {}
        if weft.is_initialized():
            weft.finalize()
        os.environ["WEFT_ADDRESS"] += "-" + re.sub(r"\W", "-", page)
        exec(compile(program, page, "exec"), names)
        return names

    def test_readme(self):
        names = self.run_first_block("README.md")
        np.testing.assert_array_equal(names["y"], np.full(4, 0.5))
        self.assertIsInstance(names["loss"], float)
        self.assertEqual(os.path.exists("trained.onnx"), self.rank == 0)

    def test_getting_started(self):
        names = self.run_first_block("docs/getting-started.md")
        np.testing.assert_array_equal(names["y"], np.full(4, 2))
        np.testing.assert_array_equal(names["x"], np.full(4, 1))
        np.testing.assert_array_equal(names["work"].wait(), np.full(8, 1))
        self.assertEqual(names["big"].shape, (1 << 20,))


if __name__ == "__main__":
    ranks.main()
