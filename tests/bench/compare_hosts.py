#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weft over tcp beside Open MPI's tcp path, Gloo and plain sockets, in one run.

Two places: `link`, two network namespaces joined by a pair of virtual interfaces that `tc tbf` holds to a
rate in both directions (needs root), and `loopback`, two ranks of this machine that are not allowed to share
memory. All programs run one after the other, several times, so that whatever else the machine does hits all
alike; tables show medians over the repeats of each program's median. At the end: what is wanted, and what was
measured. Peers that are not installed are left out, with the reason.
"""
import argparse
import glob
import json
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
KIB, MIB = 1 << 10, 1 << 20
PARTS = ("loopback", "pair", "eight", "overlap")
INTERFACE = "weftbench"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="build directory")
    parser.add_argument("--part", choices=PARTS, action="append",
                        help="loopback: 2 ranks; over the link: pair (2 hosts of 1 rank), eight (2 of 4), overlap "
                             "(training); default: all")
    parser.add_argument("--rate", type=float, default=1e9, help="of the link, bits per second each way")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--timeout", type=int, default=300, help="seconds one program may take")
    parser.add_argument("--python", default="/usr/bin/python3", help="interpreter that has torch")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--side", action="append", help="only these of weft, openmpi, gloo, sockets")
    parser.add_argument("--realtime", action="store_true",
                        help="run everything but training under SCHED_FIFO, which keeps other programs off the cores")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--check", action="store_true", help="exit 1 when something is not as wanted")
    return parser.parse_args()


# ---- places ----

class Loopback:
    """Two ranks of this machine that may not share memory."""
    name, interface, hosts = "loopback", "lo", 2
    environment = {"WEFT_TRANSPORT": "tcp", "WEFT_IFNAME": "lo"}

    def address(self, _host):
        return "127.0.0.1"

    def wrap(self, _host, command):
        return command

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Link:
    """Two network namespaces, each a host of its own, with a link of some rate between them."""
    name, interface, hosts = "link", INTERFACE, 2
    environment = {"WEFT_IFNAME": INTERFACE}

    def __init__(self, rate):
        self.rate = rate
        self.spaces = [f"weft-bench-{os.getpid()}-{side}" for side in "ab"]

    def address(self, host):
        return f"10.213.7.{host + 1}"

    def wrap(self, host, command):
        # a hostname of its own too: launchers take equal ones for one machine
        return ["ip", "netns", "exec", self.spaces[host], "unshare", "--uts", "sh", "-c",
                f'hostname {self.spaces[host]}; exec "$@"', "sh", *command]

    def __enter__(self):
        try:
            for space in self.spaces:
                ip("netns", "add", space)
                ip("-n", space, "link", "set", "lo", "up")
            ip("link", "add", INTERFACE, "netns", self.spaces[0], "type", "veth", "peer", "name", INTERFACE,
               "netns", self.spaces[1])
            for host, space in enumerate(self.spaces):
                ip("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", INTERFACE)
                ip("-n", space, "link", "set", INTERFACE, "up")
                shape = ["tc", "-n", space, "qdisc", "add", "dev", INTERFACE, "root", "tbf", "rate",
                         f"{int(self.rate)}bit", "burst", "128kb", "latency", "50ms"]
                subprocess.run(shape, check=True, capture_output=True, text=True)
            self.wait_for_carrier()
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait_for_carrier(self):
        end = time.monotonic() + 10
        for space in self.spaces:
            while "LOWER_UP" not in ip("-n", space, "link", "show", INTERFACE) and time.monotonic() < end:
                time.sleep(0.05)

    def __exit__(self, *_):
        for space in self.spaces:  # the interfaces go with them
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


# ---- running ----

def run_ranks(arguments, commands, environments):
    """Starts all at once; rank 0's output. One that fails ends the others."""
    commands = [first(arguments, command) for command in commands]
    started = []
    with tempfile.TemporaryFile("w+") as errors:
        try:
            for rank, (command, environment) in enumerate(zip(commands, environments)):
                started.append(subprocess.Popen(command, env=dict(os.environ, **environment), text=True,
                                                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                                                stderr=errors))
            output, _ = started[0].communicate(timeout=arguments.timeout)
            codes = [process.wait(timeout=30) for process in started]
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        if any(codes):
            errors.seek(0)
            lines = [line for line in errors.read().splitlines() if line.strip()]
            raise RuntimeError(lines[0] if lines else f"exit codes {codes}")
    return output


def rows_of(text):
    """bytes -> microseconds."""
    text = text.strip()
    rows = json.loads(text)["rows"] if text.startswith('{"rows"') else [
        json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {row["bytes"]: row["p50_us"] for row in rows}


def pinned(rank, command):
    cpus = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cpus[rank % len(cpus)]), *command]


def first(arguments, command):
    """What every program of a measurement is started by."""
    return ["chrt", "-f", "10", *command] if arguments.realtime else command


def weft_world(place, per_host, directory):
    """The environment of each rank."""
    common = dict(place.environment, WEFT_WORLD_SIZE=str(place.hosts * per_host),
                  WEFT_ADDRESS=f"file://{directory}/meet-{secrets.token_hex(4)}",
                  WEFT_SECRET=secrets.token_hex(16))
    return [dict(common, WEFT_RANK=str(rank)) for rank in range(place.hosts * per_host)]


def weft(arguments, place, per_host, sizes, directory):
    low, high, factor = sizes
    command = [os.path.join(arguments.build, "weft"), "bench", "all_reduce", "--min", str(low), "--max",
               str(high), "--factor", str(factor), "--json"]
    ranks = place.hosts * per_host
    commands = [place.wrap(rank // per_host, pinned(rank, command)) for rank in range(ranks)]
    return rows_of(run_ranks(arguments, commands, weft_world(place, per_host, directory)))


def openmpi(arguments, place, per_host, sizes, directory):
    low, high, factor = sizes
    program = os.path.join(arguments.build, "tests", "bench", "peer_mpi_openmpi")
    launcher = shutil.which("mpirun.openmpi")
    if launcher is None or not os.path.exists(program):
        raise FileNotFoundError("no mpirun.openmpi, or peer_mpi_openmpi is not built")
    ranks = place.hosts * per_host
    few = ranks <= len(os.sched_getaffinity(0))
    command = [launcher, "--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include",
               place.interface, "--mca", "orte_keep_fqdn_hostnames", "1"]
    command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command += ["--bind-to", "none"]
    if place.name == "link":
        agent = os.path.join(directory, "agent")
        with open(agent, "w", encoding="utf-8") as file:
            # stands in for ssh: HOST COMMAND, into the namespace that has the address HOST
            file.write('#!/bin/sh\nhost=$1; shift\ncase $host in\n')
            for host in range(place.hosts):
                words = " ".join(f"'{word}'" for word in place.wrap(host, ["sh", "-c"]))
                file.write(f'{place.address(host)}) exec {words} "$*" ;;\n')
            file.write("esac\nexit 1\n")
        os.chmod(agent, 0o700)
        command += ["--mca", "plm_rsh_agent", agent, "--mca", "oob_tcp_if_include", place.interface, "--host",
                    ",".join(f"{place.address(host)}:{per_host}" for host in range(place.hosts))]
    # as the others: each rank on a core of its own, in turns
    cpus = sorted(os.sched_getaffinity(0))
    pin = ('exec taskset -c $(echo ' + " ".join(map(str, cpus)) + " | cut -d' ' -f $((OMPI_COMM_WORLD_RANK % "
           + str(len(cpus)) + ' + 1))) "$@"')
    command += ["--oversubscribe"] if not few else []
    command += ["-np", str(ranks), "sh", "-c", pin, "sh", program, "all_reduce", str(high), str(low),
                str(factor)]
    return rows_of(run_ranks(arguments, [place.wrap(0, command)], [{}]))


def torch_is_there(arguments):
    probe = subprocess.run([arguments.python, "-c", "import torch.distributed"], capture_output=True, check=False)
    if probe.returncode != 0:
        raise FileNotFoundError(f"{arguments.python} has no torch")


def master(place):
    """A port that is free now where rank 0 listens."""
    code = f"import socket; s = socket.socket(); s.bind(('{place.address(0)}', 0)); print(s.getsockname()[1])"
    done = subprocess.run(place.wrap(0, [sys.executable, "-c", code]), capture_output=True, text=True, check=True)
    return f"{place.address(0)}:{done.stdout.strip()}"


def torch_environment(place):
    changed = {"GLOO_SOCKET_IFNAME": place.interface, "OPENBLAS_NUM_THREADS": "1"}
    found = glob.glob("/usr/lib/*/openblas-pthread/libblas.so.3")
    if found:
        changed["LD_LIBRARY_PATH"] = os.path.dirname(found[0])
    return changed


def gloo(arguments, place, per_host, sizes, _directory):
    torch_is_there(arguments)
    low, high, factor = sizes
    ranks, at = place.hosts * per_host, master(place)
    commands = [place.wrap(rank // per_host, [
        arguments.python, os.path.join(HERE, "peer_torch_collectives.py"), "-n", str(ranks), "--rank", str(rank),
        "--master", at, "--min", str(low), "--max", str(high), "--factor", str(factor)]) for rank in range(ranks)]
    return rows_of(run_ranks(arguments, commands, [torch_environment(place)] * ranks))


def sockets(arguments, place, _per_host, sizes, _directory):
    """One exchange of as many bytes both ways at once: what two hosts cannot go below."""
    low, high, factor = sizes
    program = os.path.join(arguments.build, "tests", "bench", "floor_sockets")
    every = [low]
    while every[-1] < high:
        every.append(every[-1] * factor)
    listen = place.wrap(0, pinned(0, [program, "listen", place.address(0)]))
    with subprocess.Popen(first(arguments, listen), stdout=subprocess.PIPE, text=True) as listener:
        try:
            port = listener.stdout.readline().strip()
            connect = pinned(1, [program, "connect", place.address(0), port, *map(str, every)])
            return rows_of(run_ranks(arguments, [place.wrap(1, connect)], [{}]))
        finally:
            listener.kill()


SIDES = {"weft": weft, "openmpi": openmpi, "gloo": gloo, "sockets": sockets}


def measure(arguments, place, per_host, sizes, label):
    """side -> bytes -> median of medians."""
    seen, missing = {}, {}
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as directory:
        for _ in range(arguments.repeats):
            for side, run in SIDES.items():
                if side in missing or (arguments.side and side not in arguments.side):
                    continue
                try:
                    for size, time_us in run(arguments, place, per_host, sizes, directory).items():
                        seen.setdefault(side, {}).setdefault(size, []).append(time_us)
                except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
                    missing[side] = str(error)
                    print(f"{label}: {side} left out: {error}", file=sys.stderr)
    return {side: {size: statistics.median(times) for size, times in sizes.items()}
            for side, sizes in seen.items() if side not in missing}


# ---- what is wanted ----

class Verdicts:
    """Lines of what was wanted and what came of it."""

    def __init__(self):
        self.rows = []

    def at_least(self, what, value, wanted):
        self.rows.append({"what": what, "value": value, "wanted": wanted, "met": value >= wanted, "sign": ">="})

    def at_most(self, what, value, wanted):
        self.rows.append({"what": what, "value": value, "wanted": wanted, "met": value <= wanted, "sign": "<="})

    def show(self):
        print("\nwanted")
        for row in self.rows:
            print(f"  {row['what']:<72} {row['value']:8.3f} {row['sign']} {row['wanted']:<6} "
                  f"{'ok' if row['met'] else 'MISSED'}")


def size_text(size):
    for unit, scale in (("MiB", MIB), ("KiB", KIB)):
        if size >= scale:
            return f"{size // scale} {unit}"
    return f"{size} B"


def show_times(title, times):
    sides = [side for side in SIDES if side in times]
    print(f"\n{title}, all_reduce, microseconds; ratios are peer over Weft")
    print(f"{'bytes':>10} " + " ".join(f"{side:>12}" for side in sides) + "   "
          + " ".join(f"{'x ' + side:>10}" for side in sides if side != "weft"))
    for size in sorted(times.get("weft", {})):
        own = times["weft"][size]
        cells = " ".join(f"{times[side].get(size, float('nan')):12.1f}" for side in sides)
        ratios = " ".join(f"{times[side].get(size, float('nan')) / own:10.2f}" for side in sides if side != "weft")
        print(f"{size:>10} {cells}   {ratios}", flush=True)


def ratio(times, side, size):
    """The peer's time over Weft's; None where one of them is missing."""
    own, other = times.get("weft", {}).get(size), times.get(side, {}).get(size)
    return other / own if own and other else None


# ---- parts ----

def part_loopback(arguments, verdicts):
    with Loopback() as place:
        times = measure(arguments, place, 1, (8, 16 * MIB, 8), "loopback")
    for size in sorted(times.get("weft", {})):
        value = ratio(times, "gloo", size)
        if value is not None:
            verdicts.at_least(f"loopback, 2 ranks, {size_text(size)}: Gloo over Weft", value, 1.0)
    value = ratio(times, "openmpi", 8)
    if value is not None:
        verdicts.at_least("loopback, 2 ranks, 8 B: Open MPI (tcp) over Weft", value, 1.0)
    return "loopback, 2 ranks", times


def part_pair(arguments, verdicts):
    with Link(arguments.rate) as place:
        times = measure(arguments, place, 1, (8, 8, 8), "pair")
        large = measure(arguments, place, 1, (16 * MIB, 16 * MIB, 8), "pair")
    for side, sizes in large.items():
        times.setdefault(side, {}).update(sizes)
    for size, side, wanted in ((16 * MIB, "sockets", 0.97), (16 * MIB, "openmpi", 1.0), (16 * MIB, "gloo", 1.0),
                               (8, "openmpi", 1.0), (8, "gloo", 1.0)):
        value = ratio(times, side, size)
        if value is not None:
            verdicts.at_least(f"2 hosts x 1 rank, {size_text(size)}: {side} over Weft", value, wanted)
    return f"2 hosts x 1 rank, {arguments.rate / 1e9:g} Gbit/s", times


def part_eight(arguments, verdicts):
    with Link(arguments.rate) as place:
        times = measure(arguments, place, 4, (1 * MIB, 16 * MIB, 2), "eight")
    for size, own in sorted(times.get("weft", {}).items()):
        verdicts.at_least(f"2 hosts x 4 ranks, {size_text(size)}: bytes / link rate, over Weft",
                          size * 8e6 / arguments.rate / own, 0.9)
    return f"2 hosts x 4 ranks, {arguments.rate / 1e9:g} Gbit/s", times


# ---- training ----

def write_wide(path):
    """784 and five layers of 2,048: 74 MB of gradients."""
    sys.path.insert(0, os.path.join(ROOT, "samples", "models"))
    try:
        import make_models
        import onnx
    except ImportError as error:
        raise FileNotFoundError(f"the wide model needs python3-onnx and python3-numpy: {error}") from error
    builder = make_models.Builder(make_models.SEED)
    builder.node("Flatten", "flatten", axis=1)
    widths = [784, *[2048] * 5, 10]
    for index, (fan_in, fan_out) in enumerate(zip(widths, widths[1:])):
        last = index + 2 == len(widths)
        builder.linear(f"fc{index + 1}", fan_in, fan_out, "logits" if last else None)
        if not last:
            builder.node("Relu", f"relu{index + 1}")
    onnx.save(builder.model("wide"), path)


def compile_wide(arguments, place, directory, batch, options):
    """A plan for these hosts and this link."""
    cluster, costs = os.path.join(directory, "cluster.json"), os.path.join(directory, "costs.json")
    with open(cluster, "w", encoding="utf-8") as file:
        json.dump({"format": 1, "hosts": [1] * place.hosts}, file)
    with open(costs, "w", encoding="utf-8") as file:
        json.dump({"format": 1, "name": "link", "links": {"net": {
            "alpha_ns": 25000, "beta_ns_per_byte": 8e9 / 0.956 / arguments.rate}}}, file)
    plan = os.path.join(directory, "wide.weft")
    subprocess.run([os.path.join(arguments.build, "weft"), "compile", os.path.join(directory, "wide.onnx"), "-o", plan,
                    "--batch", str(batch), "--topology", cluster, "--costs", costs, *options],
                   check=True, capture_output=True, text=True)
    return plan


def train_weft(arguments, place, directory, batch, steps, options=(), changed=None):
    plan = compile_wide(arguments, place, directory, batch, options)
    command = [os.path.join(arguments.build, "weft"), "run", plan, "--data", arguments.data, "--steps", str(steps),
               "--no-eval", "--json"]
    commands = [place.wrap(rank, pinned(rank, command)) for rank in range(place.hosts)]
    environments = [dict(env, WEFT_THREADS="1", **(changed or {})) for env in weft_world(place, 1, directory)]
    return json.loads(run_ranks(arguments, commands, environments))


def train_ddp(arguments, place, batch, steps):
    torch_is_there(arguments)
    at = master(place)
    commands = [place.wrap(rank, pinned(rank, [
        arguments.python, os.path.join(HERE, "peer_torch_ddp.py"), "--model", "wide", "-n", str(place.hosts), "--rank",
        str(rank), "--master", at, "--batch", str(batch), "--steps", str(steps), "--warm-up", "2", "--data",
        arguments.data])) for rank in range(place.hosts)]
    return json.loads(run_ranks(arguments, commands, [torch_environment(place)] * place.hosts))["step_ms_p50"]


GRADIENT_BYTES = 4 * (785 * 2048 + 4 * 2049 * 2048 + 2049 * 10)


def balanced_batch(arguments, place, directory, comm_ms):
    """The batch whose kernels, with nothing beside them, take as long as all gradients' way by itself."""
    batch, compute_ms = 512, 0.0
    for _ in range(4):
        compute_ms = train_weft(arguments, place, directory, batch, 5,
                                changed={"WEFT_PROGRESS": "inline"})["compute_ms_p50"]
        share = compute_ms / comm_ms
        if 1.08 <= share <= 1.2:
            break
        batch = max(16, int(batch * 1.15 / share / 16 + 0.5) * 16)
    return batch, compute_ms


def part_overlap(arguments, verdicts):
    arguments.realtime = False  # threads of equal priority would not share a core
    with Link(arguments.rate) as place, tempfile.TemporaryDirectory(prefix="weft-bench-") as directory:
        write_wide(os.path.join(directory, "wide.onnx"))
        sizes = (GRADIENT_BYTES, GRADIENT_BYTES, 2)
        result = {"comm_ms": statistics.median(
            weft(arguments, place, 1, sizes, directory)[GRADIENT_BYTES] / 1e3 for _ in range(arguments.repeats))}
        result["batch"], result["compute_ms"] = balanced_batch(arguments, place, directory, result["comm_ms"])
        for name, options in (("step_ms", ()), ("decoupled_step_ms", ("--decouple",))):
            result[name] = statistics.median(
                train_weft(arguments, place, directory, result["batch"], 8, options)["step_ms_p50"]
                for _ in range(arguments.repeats))
        try:
            result["ddp_step_ms"] = statistics.median(
                train_ddp(arguments, place, result["batch"], 6) for _ in range(arguments.repeats))
        except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
            print(f"overlap: DDP left out: {error}", file=sys.stderr)
    larger = max(result["compute_ms"], result["comm_ms"])
    share = result["compute_ms"] / result["comm_ms"]
    verdicts.at_least("wide model, 2 hosts: compute over communication, each by itself", share, 0.8)
    verdicts.at_most("wide model, 2 hosts: compute over communication, each by itself", share, 1.2)
    verdicts.at_most("wide model, 2 hosts: step over the larger of the two",
                     min(result["step_ms"], result["decoupled_step_ms"]) / larger, 1.25)
    return result


def show_overlap(result):
    print(f"\nwide model (784, five layers of 2,048, 10), 2 hosts, batch {result['batch']} per rank, milliseconds")
    print(f"  kernels by themselves {result['compute_ms']:.1f}, all gradients by themselves {result['comm_ms']:.1f}")
    print(f"  step {result['step_ms']:.1f}; with weights gathered under the next forward pass (--decouple) "
          f"{result['decoupled_step_ms']:.1f}")
    if "ddp_step_ms" in result:
        best = min(result["step_ms"], result["decoupled_step_ms"])
        print(f"  DDP + Gloo: step {result['ddp_step_ms']:.1f}, {result['ddp_step_ms'] / best:.2f} times Weft's")


def main():
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # namespaces are taken away again
    parts = arguments.part or PARTS
    verdicts, results = Verdicts(), {}
    runners = {"loopback": part_loopback, "pair": part_pair, "eight": part_eight}
    started = time.monotonic()
    for part in parts:
        needs = [word for word in ("ip", "tc", "unshare") if shutil.which(word) is None]
        if part != "loopback" and (os.geteuid() != 0 or needs):
            print(f"{part} left out: " + (f"no {', '.join(needs)}" if needs else "namespaces need root"),
                  file=sys.stderr)
            continue
        try:
            if part == "overlap":
                results[part] = part_overlap(arguments, verdicts)
            else:
                title, results[part] = runners[part](arguments, verdicts)
        except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
            detail = getattr(error, "stderr", None) or error
            print(f"{part} left out: {str(detail).strip()}", file=sys.stderr)
            verdicts.at_least(f"{part}: could be run", 0, 1)
            continue
        if not arguments.json:
            if part == "overlap":
                show_overlap(results[part])
            else:
                show_times(title, results[part])
    if arguments.json:
        print(json.dumps({"results": results, "wanted": verdicts.rows}))
    else:
        verdicts.show()
        print(f"\n{sum(row['met'] for row in verdicts.rows)} of {len(verdicts.rows)} as wanted; load average "
              f"{os.getloadavg()[0]:.1f}, {time.monotonic() - started:.0f} s")
    return 1 if arguments.check and not all(row["met"] for row in verdicts.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
