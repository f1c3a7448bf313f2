#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the first inputs of corpus/<input>: what Weft's own commands write, or the smallest file of every form.

    tests/fuzz/make_corpus.py build/weft

Files whose names begin with "found-" are inputs that failed once; they stay as they are. ONNX models, graphs in text
form and hwloc files are those of tests/data, which the programs also read."""
import gzip
import io
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE.parent / "data"
WEFT = pathlib.Path(sys.argv[1]).resolve()


def write(where, contents):
    path = HERE / "corpus" / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())


def write_json(where, value):
    write(where, json.dumps(value, indent=1) + "\n")


def plans():
    mlp, given = DATA / "torch_mlp_batch4.onnx", DATA / "given_gradients.onnx"
    forms = {
        "one_rank": (given, 1),
        "two_ranks": (given, 2),
        "sharded": (given, 2, "--shard-optimizer", "--optimizer", "adam"),
        "decoupled": (given, 2, "--decouple"),
        "sharded_parameters": (given, 2, "--shard-parameters"),
        "accumulate": (given, 2, "--accumulate", "3", "--clip", "1"),
        "one_rank_tree": (mlp, 1, "--global-micro-batches", "4"),
        "inference": (mlp, 1, "--infer"),
        "algorithm_file": (given, 2, "--algo", "swap.xml"),
    }
    with tempfile.TemporaryDirectory() as folder:
        swap = pathlib.Path(folder) / "swap.xml"
        swap.write_text('<algo name="swap" nchunksperloop="1" ngpus="2" coll="allreduce" inplace="1">' + "".join(
            f'<gpu id="{r}" i_chunks="1" o_chunks="0" s_chunks="1"><tb id="0" send="{1 - r}" recv="{1 - r}" chan="0">'
            + "".join(f'<step s="{s}" type="{kind}" srcbuf="{a}" srcoff="0" dstbuf="{b}" dstoff="0" cnt="1" depid="-1" '
                      'deps="-1" hasdep="0"/>' for s, (kind, a, b) in enumerate(("sii", "rss", ("re", "s", "i"))))
            + "</tb></gpu>" for r in range(2)) + "</algo>")
        for name, (model, world, *more) in forms.items():
            path = pathlib.Path(folder) / "plan.weft"
            batch = () if model == mlp else ("--batch", "4")
            subprocess.run([WEFT, "compile", model, "-o", path, "-n", str(world), "--costs", "default", *batch, *more],
                           check=True, stdout=subprocess.DEVNULL, cwd=folder)
            write(f"plan/{name}", path.read_bytes())


def jsons():
    link = {"alpha_ns": 150, "beta_ns_per_byte": 0.0125}
    write_json("costs/all", {
        "format": 1, "name": "two", "machine": "cpu", "links": {"self": link, "host": link, "net": link}, "cores": 2,
        "kernels": [{"kind": kind, "threads": 2, "size": 1e6, "ns": 5e5} for kind in ("product", "window", "bytes")],
        "gamma_ns_per_byte": 0.002, "step_ns": 15, "call_ns": 250,
        "measured": [{"op": "all_reduce", "algorithm": "ring", "ranks": 4, "hosts": 2, "memory": "plain",
                      "from_bytes": 1024, "alpha_ns": 10, "beta_ns_per_byte": 0.1}]})
    write_json("profile/all", {
        "format": 1, "inline_progress": True, "step_ns": 9000, "kernels": [{"name": "fc1", "ns": 1200.5}],
        "collectives": [{"bytes": 4096, "ns": 900}]})
    write_json("grads/all", {"fc1.weight": "g1", "fc1.bias": "g\u00e9\n2"})
    write_json("ops/all", {"operators": [
        {"domain": "my", "name": "Foo", "inputs": [1, None], "outputs": [1, 2], "version": 1,
         "types": [{"like": 0}, {"dtype": "i64", "shape": [8, [0, 1]]}], "effects": "pure", "in_place": [0, None],
         "flops_per_element": 4, "gradient": "FooGrad", "facts": ["elementwise", "mixes_none"], "linear": [0]},
        {"domain": "my", "name": "FooGrad", "inputs": 4, "outputs": 1}]})
    regular = {"cpu": "x", "sockets": 2, "cores": 8, "threads": 2, "numa_nodes": 2, "l3_caches": 2, "l2_caches": 8,
               "threads_adjacent": True, "l1_bytes": 32768, "l2_bytes": 1048576, "l3_bytes": 33554432}
    listed = {"numas": [{"bytes": 1 << 30, "os": 0, "socket": 0}],
              "cores": [{"cpus": "0,2-3", "socket": 0, "numa": 0, "l2": 0, "l3": 0}],
              "nics": [{"name": "eth0", "kind": "Ethernet", "rdma": "mlx5_0", "bus": "0000:01:00.0", "gbit_per_s": 100,
                        "socket": 0, "numa": 0, "switch": 1, "down": False}]}
    write_json("topology/all", {
        "format": 1, "name": "uneven", "hosts": [
            {"name": "big", "ranks": 2, "binding": ["0-3", "4-7"], "rank_cards": [None, None], **regular},
            {"name": "small", "ranks": [2, 3], **listed}, {"name": "other", "like": "small", "ranks": 1}],
        "link": {"gbit_per_s": 10, "latency_us": 12},
        "links": [{"hosts": ["small", 2], "gbit_per_s": 40, "latency_us": 4, "rails": 2}]})
    write_json("topology/numbers", {"format": 1, "hosts": [4, 4]})


def tensors():
    header = {"__metadata__": {"format": "pt", "step": "7"},
              "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
              "b\u00e9": {"dtype": "I64", "shape": [], "data_offsets": [24, 32]},
              "empty": {"dtype": "BF16", "shape": [0, 4], "data_offsets": [32, 32]}}
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    write("safetensors/all", struct.pack("<Q", len(text)) + text + bytes(range(32)))
    raw, packed = struct.pack("<3f", 1, 2, 3), b"\x01\x02\x03"
    # TensorProto: 1 dims, 2 data_type, 4 float_data, 7 int64_data, 8 name, 9 raw_data
    write("tensor/raw", b"\x08\x03\x10\x01\x42\x01w\x4a\x0c" + raw)
    write("tensor/floats", b"\x0a\x01\x03\x10\x01\x22\x0c" + raw)
    write("tensor/integers", b"\x08\x03\x10\x07\x3a\x03" + packed)
    images = struct.pack(">4I", 0x803, 3, 2, 2) + bytes(range(12))
    labels = struct.pack(">2I", 0x801, 3) + b"\x00\x01\x02"
    for name, parts in {"plain": (images, labels), "gzip": (gzip.compress(images, mtime=0), labels)}.items():
        write(f"dataset/{name}", struct.pack("<H", len(parts[0])) + parts[0] + parts[1])


def npy(dtype, shape, contents):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + contents


def arrays():
    members = {"image.npy": npy("<f4", "(2, 1, 2, 2)", struct.pack("<8f", *range(8))),
               "label.npy": npy("|u1", "(2,)", b"\x00\x01")}
    for name, method in (("stored", zipfile.ZIP_STORED), ("deflated", zipfile.ZIP_DEFLATED)):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", method) as archive:
            for member, contents in members.items():
                info = zipfile.ZipInfo(member)
                info.compress_type = method
                with archive.open(info, "w", force_zip64=True) as file:
                    file.write(contents)
        write(f"arrays/{name}", b"\x00" + out.getvalue())
    write("arrays/npy", b"\x01" + npy("<f8", "(3, 4)", struct.pack("<12d", *range(12))))
    header = json.dumps({"image": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]},
                         "label": {"dtype": "I64", "shape": [2], "data_offsets": [32, 48]}}).encode()
    header += b" " * (-len(header) % 8)
    write("arrays/safetensors", b"\x02" + struct.pack("<Q", len(header)) + header + bytes(48))
    write("arrays/tokens", b"\x03" + struct.pack("<13H", *range(13)))


def frames():
    def wire(kind, body):
        return struct.pack("<IHHI", 0x74665765, kind, 0, len(body)) + body

    greeting = struct.pack("<4I", 2, 1, 1, 4) + bytes(32) + bytes(16)
    verdict = struct.pack("<iI", -2, 0) + b"broken".ljust(480, b"\0")
    address = struct.pack("<I", 1) + (b"\x04\x00" + struct.pack("<HI", 4711, 0) + bytes([10, 0, 0, 1]) + bytes(12)) * 5
    write("bootstrap/acceptor", b"\x00" + wire(1, greeting) + wire(3, bytes(32) + address))
    write("bootstrap/initiator", b"\x01" + wire(2, greeting) + wire(4, bytes(32)))
    write("bootstrap/refused", b"\x01" + wire(5, b"different secrets"))
    write("bootstrap/both", b"\x02" + bytes(24))
    flood = struct.pack("<4I", 3, 1, 7, 0) + b"news"
    death = struct.pack("<4I", 2, 1, 0x80000000, 0) + struct.pack("<I", 3) + b"killed".ljust(200, b"\0")
    parcel = struct.pack("<2IQ", 1, 0, 8) + bytes(8)
    gone = struct.pack("<Q", 0b1000)
    write("bootstrap/overlay", b"\x03" + wire(33, flood) + wire(33, death) + wire(32, parcel) + wire(34, gone) +
          wire(35, gone))
    asked = struct.pack("<5I", 3, 1, 0x80000001, 0, 2)
    reply = struct.pack("<2I", 1, 1) + b"what ranks do"
    write("bootstrap/answers", b"\x03" + wire(33, asked) + wire(37, reply) + wire(37, struct.pack("<2I", 3, 1) + b"x"))
    write("bootstrap/asked", b"\x07" + wire(36, struct.pack("<I", 5)) + wire(36, struct.pack("<I", 2998)))
    write("bootstrap/asks", b"\x08" + wire(37, b"what ranks do") + wire(37, b"\x01\x01"))

    def news(kind, origin, body):
        return struct.pack("<2BH", kind, origin, len(body)) + body

    def waits(origin, generation, late, *records):
        head = struct.pack("<4I4Q6I", generation, len(records), 0, len(late), 0, 0, 5000, 4000, *late, *[0] * (6 - len(late)))
        return news(0, origin, head + b"".join(records))

    record = struct.pack("<4I6IQI6I84s", 2, 0, 7, 2, 1, 4, 0, 0, 0, 0, 3000, 0, *[0] * 6, b"all_reduce")
    cause = struct.pack("<iI", -2, 2) + b"rank 2: broken".ljust(480, b"\0")
    write("bootstrap/waits", b"\x09" + waits(2, 2, [1], record) + waits(4, 2, [], record, record) + waits(2, 4, [1, 3]) +
          news(1, 3, cause) + news(2, 4, struct.pack("<I", 4)))
    write("bootstrap/verdict", b"\x04" + wire(10, verdict))
    write("bootstrap/notice", b"\x05" + b"weft:2:10.0.0.1:4711,[::1]:80;0123456789abcdef")
    write("bootstrap/split", b"\x06" + b"[fe80::1%eth0]:4711")

    def tcp(kind, lane, size, offset, body=b""):
        return struct.pack("<2BHIQ", kind, lane, 0, size, offset) + body

    write("tcp/all", b"\x00" + tcp(0xa1, 0, 8, 64, b"contents") + tcp(0xa3, 0, 1, 8) + tcp(0xa5, 0, 0, 1) +
          tcp(0xa6, 0, 0, 1) + tcp(0xa2, 1, 4, 128, b"part") + tcp(0xa4, 1, 2, 16, struct.pack("<2I", 1, 0)) +
          tcp(0xa7, 0, 0, 0))


for make in (plans, jsons, tensors, arrays, frames):
    make()
