#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles an ONNX model with a loss, shows the plan, trains it and writes the trained model.

    weft run -n 2 -- python3 samples/python/compile_onnx.py --save trained.onnx

The plan has the backward pass, the optimizer and the communication of all ranks in it, so a step is one call, and the
loop below is all that is left. Images and labels are gathered straight into the session's memory. Runs under any
launcher; alone it is one rank. The saved model is for evaluation, in plain ONNX.
"""
import argparse
import gzip
import os
import pathlib
import time

try:
    import numpy as np

    import weft
except ModuleNotFoundError as error:
    raise SystemExit(f"this sample needs the Python package '{error.name}': see samples/python/README.md") from None

MODELS = pathlib.Path(__file__).resolve().parents[1] / "models"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=MODELS / "mlp.onnx", type=pathlib.Path,
                        help="one image input and one label input (default: the MLP of samples/models)")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist", help="folder of the four IDX files")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="steps per epoch (default: as many as there are samples for)")
    parser.add_argument("--batch", type=int, default=64, help="samples per rank and step")
    parser.add_argument("--optimizer", default="momentum", choices=("sgd", "momentum", "adam"))
    parser.add_argument("--lr", type=float, help="learning rate, falling to 0 linearly (default: the plan's)")
    parser.add_argument("--bucket", default="auto", help="bucket policy, as in `weft compile --help`")
    parser.add_argument("--plan", type=pathlib.Path, help="write the plan here, for `weft run` or weft.Plan.load")
    parser.add_argument("--save", type=pathlib.Path, help="write the trained model here")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if not os.path.exists(f"{args.data}/train-images-idx3-ubyte.gz"):
        parser.error(f"{args.data} has no train-images-idx3-ubyte.gz: install dataset-fashion-mnist, or give --data")
    return args


def read_images(folder, part):
    """uint8 (count, rows, columns), uint8 (count,)"""
    with gzip.open(f"{folder}/{part}-images-idx3-ubyte.gz") as file:
        raw = file.read()
    rows, columns = (int.from_bytes(raw[at:at + 4], "big") for at in (8, 12))
    images = np.frombuffer(raw, np.uint8, offset=16).reshape(-1, rows, columns)
    with gzip.open(f"{folder}/{part}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    return images, labels


def compile_model(args):
    """The plan for as many ranks as there are; all ranks compile, and get the same one."""
    plan = weft.compile(args.model, batch=args.batch, optimizer=args.optimizer, lr=args.lr, bucket=args.bucket)
    if weft.get_rank() == 0:
        print(plan.explain())
        if args.plan:
            plan.save(args.plan)
    return plan


def name_of(plan, role):
    """The name of the plan's only binding with this role."""
    names = [binding["name"] for binding in plan.bindings if binding["role"] == role]
    if len(names) != 1:
        raise SystemExit(f"{plan.info['model']} has {len(names)} bindings with the role {role}, not one")
    return names[0]


def feed(session, images, labels, chosen):
    """Samples into the session's own memory: no other copy is made."""
    plan = session.plan
    x, y = session.inputs[name_of(plan, "input")], session.inputs[name_of(plan, "label")]
    np.multiply(images[chosen].reshape(x.shape), np.float32(1 / 255), out=x)
    y[:] = labels[chosen]


def train(session, images, labels, args):
    rank, size, batch = weft.get_rank(), weft.get_world_size(), args.batch
    steps = len(images) // (batch * size)
    steps = min(steps, args.steps or steps)
    lr = session.scalars["lr"]
    random = np.random.default_rng(args.seed)  # the same order on all ranks
    for epoch in range(args.epochs):
        order, losses, start = random.permutation(len(images)), 0.0, time.perf_counter()
        for step in range(steps):
            at = (step * size + rank) * batch
            feed(session, images, labels, order[at:at + batch])
            session.scalars["lr"] = lr * (1 - (epoch * steps + step) / (args.epochs * steps))
            losses += session.step()
        seconds = time.perf_counter() - start
        loss = weft.all_reduce(np.array([losses / steps]), op="avg")[0]
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}, {steps * batch * size / seconds:.0f} images/s, "
                  f"{seconds / steps * 1e3:.2f} ms per step", flush=True)


def accuracy(session, images, labels, batch):
    """Of this rank's share of the test set, added up over ranks; the last batch is filled up with its last sample."""
    own = np.array_split(np.arange(len(images)), weft.get_world_size())[weft.get_rank()]
    right = 0
    for at in range(0, len(own), batch):
        part = own[at:at + batch]
        feed(session, images, labels, np.pad(part, (0, batch - len(part)), mode="edge"))
        right += int((session.eval().argmax(1)[:len(part)] == labels[part]).sum())
    return weft.all_reduce(np.array([right]))[0] / len(images)


def main():
    args = parse_arguments()
    weft.init()
    plan = compile_model(args)
    with weft.Session(plan) as session:
        train(session, *read_images(args.data, "train"), args)
        stats = session.stats()
        result = accuracy(session, *read_images(args.data, "t10k"), args.batch)
        if args.save:
            session.save(args.save)  # rank 0 writes
        if weft.get_rank() == 0:
            waits = f"{stats['exposed_comm_ms_p50']:.3f} of a step's {stats['step_ms_p50']:.2f} ms wait for communication"
            print(f"accuracy {result:.4f}; {waits}; weights {session.param_digest()[:16]}")


if __name__ == "__main__":
    main()
