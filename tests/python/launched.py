# SPDX-License-Identifier: Apache-2.0
"""What launchers start in test_launchers.py: a rank of an unknown world, told nothing, or its place by arguments.

usage: launched.py [RANK SIZE ADDRESS] [--leave] [--twice]
    --leave   rank 1 ends without a word in the middle, and the others say by which exception they learn it
    --twice   a second world after the first
"""
import sys

import weft


def main():
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    options = {word for word in sys.argv[1:] if word.startswith("--")}
    for turn in range(2 if "--twice" in options else 1):
        if words:
            weft.init(rank=int(words[0]), size=int(words[1]), address=words[2])
        else:
            weft.init()
        rank, size = weft.get_rank(), weft.get_world_size()
        if "--leave" in options and rank == 1:
            import os
            os.kill(os.getpid(), 9)
        import array
        mine = array.array("f", [rank + 1, 1])
        try:
            weft.all_reduce_(mine)
        except weft.WeftPeerDiedError as error:
            print(f"rank {rank} of {size}: {error}", flush=True)
            sys.exit(5)
        assert list(mine) == [size * (size + 1) / 2, size], mine
        weft.barrier()
        print(f"turn {turn}: rank {rank} of {size}: OK", flush=True)
        weft.finalize()


if __name__ == "__main__":
    main()
