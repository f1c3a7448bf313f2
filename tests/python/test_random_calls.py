#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs of calls drawn from a seed, the same on all ranks; every result is compared with the oracle's."""
import random

import ranks

np = ranks.need("numpy")
import weft

from oracle import DTYPES, OPS, block, gathered, numbers, reduced, same


class RandomCalls(ranks.RankCase):
    """Programs of calls drawn from a seed, over the world and a group of some of its ranks."""
    RANKS = 3

    def test_programs(self):
        draw = random.Random(int(self.random().integers(1 << 31)))
        members = sorted(draw.sample(range(self.size), 2), key=lambda _: draw.random())
        pair = weft.new_group(members)
        for step in range(400):
            self.one_call(draw, step, pair, members)

    def one_call(self, draw, step, pair, members):
        group, of = draw.choice(((None, list(range(self.size))), (pair, members)))
        name = draw.choice(("all_reduce", "all_reduce_", "all_gather", "reduce_scatter", "broadcast", "reduce",
                            "gather", "scatter", "all_to_all", "barrier", "lengths"))
        dtype, op, root = draw.choice(DTYPES), draw.choice(OPS), draw.randrange(len(of))
        shape = [draw.choice((0, 1, 2, 3, 17, 400)) for _ in range(draw.randrange(3))]
        lengths = [draw.choice((0, 1, 2, 9, 2000)) for _ in of]
        waits, blocks, rows = draw.random() < 0.7, draw.choice((0, 1, 5, 100)), draw.choice((1, 5))
        if self.rank not in of:
            return
        me, size = of.index(self.rank), len(of)
        keywords = {"group": group, "async_op": not waits}
        if name in ("reduce_scatter", "all_to_all"):
            shape = [size * blocks] + shape[1:]
        elif name in ("gather", "scatter"):
            shape = [rows] + shape[1:]
        if name == "lengths":
            parts = [numbers([n] + shape[1:], dtype, step, r) for r, n in enumerate(lengths)]
        else:
            parts = [numbers(shape, dtype, step, r) for r in range(size)]
        x = parts[me].copy()
        if name in ("all_reduce", "all_reduce_"):
            y, expected = getattr(weft, name)(x, op, **keywords), reduced(parts, op)
        elif name == "all_gather":
            y, expected = weft.all_gather(x, **keywords), gathered(parts)
        elif name == "lengths":
            y, expected = weft.all_gather(x, group), gathered(parts)
        elif name == "reduce_scatter":
            y, expected = weft.reduce_scatter(x, op, **keywords), block(reduced(parts, op), me, size)
        elif name == "broadcast":
            y, expected = weft.broadcast(x, root, **keywords), parts[root]
        elif name == "reduce":
            y, expected = weft.reduce(x, root, op, **keywords), reduced(parts, op) if me == root else None
        elif name == "gather":
            y, expected = weft.gather(x, root, **keywords), gathered(parts) if me == root else None
        elif name == "scatter":
            whole = gathered(parts) if me == root else None
            y, expected = weft.scatter(whole, root, out=np.empty_like(x), **keywords), parts[me]
        elif name == "all_to_all":
            y, expected = weft.all_to_all(x, **keywords), gathered([block(part, me, size) for part in parts])
        else:
            y, expected = weft.barrier(**keywords), None
        if not waits and name != "lengths":
            y = y.wait()
        if expected is None:
            self.assertIsNone(y, f"step {step}")
        else:
            try:
                same(y, expected)
            except AssertionError as error:
                call = f"step {step}: {name} {op} {dtype} {shape} root {root} over {of}"
                raise AssertionError(f"{call}: {error}") from None


if __name__ == "__main__":
    ranks.main()
