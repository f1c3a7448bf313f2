# SPDX-License-Identifier: Apache-2.0
"""Hosts made of network namespaces: each with an address, a name (UTS namespace, /etc/hosts) and a WEFT_HOST_ID
of its own, joined by a bridge that sits in a namespace, too, so that nothing of the machine is changed.

    weft-<pid>-sw    the bridge, and one end of each cable
    weft-<pid>-h0    eth0 10.77.0.1/24, limited by tbf in both directions
    weft-<pid>-h1    eth0 10.77.0.2/24 ...

Everything of a host ends with its namespace. What a killed run has left behind is found by its pid, which is no more.
"""
import atexit
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

RSH = """#!/bin/sh
# called as ssh is: [options] HOST COMMAND..
while :; do
  case $1 in
    -x|-T|-q|-n) shift ;;
    *) break ;;
  esac
done
host=${1##*@}
shift
exec ip netns exec "%s-$host" unshare --uts sh -c 'hostname "$1" && mount --bind "%s" /etc/hosts && WEFT_HOST_ID=$1 &&
  export WEFT_HOST_ID && exec sh -c "$2"' sh "$host" "$*"
"""


def run(*args, check=True, **kwargs):
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True, **kwargs)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, args))}: {done.stderr.strip()}")
    return done


def why_not():
    """None, or the reason why there can be no hosts here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc", "unshare", "hostname"):
        if shutil.which(tool) is None:
            return f"{tool} is missing (Debian packages iproute2, util-linux, hostname)"
    name = f"weft-{os.getpid()}-try"
    try:
        run("ip", "netns", "add", name)
    except RuntimeError as error:
        return f"no network namespaces here: {error}"
    try:
        run("ip", "-n", name, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", name, "link", "add", "va", "type", "veth", "peer", "name", "vb")
        run("tc", "-n", name, "qdisc", "add", "dev", "va", "root", "tbf", "rate", "1gbit", "burst", "128kb",
            "latency", "50ms")
        run("ip", "netns", "exec", name, "unshare", "--uts", "hostname", "weft-try")
    except RuntimeError as error:
        return f"no virtual networks here: {error}"
    finally:
        run("ip", "netns", "del", name, check=False)
    return None


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def namespaces():
    return [line.split()[0] for line in run("ip", "netns", "list").stdout.splitlines() if line.strip()]


def processes(name):
    """Who lives in a namespace."""
    return [int(pid) for pid in run("ip", "netns", "pids", name, check=False).stdout.split()]


def remove(name):
    for pid in processes(name):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    run("ip", "netns", "del", name, check=False)


def remove_leftovers():
    for name in namespaces():
        match = re.fullmatch(r"weft-(\d+)-\w+", name)
        if match and not is_alive(int(match.group(1))):
            remove(name)
    for folder in pathlib.Path(tempfile.gettempdir()).glob("weft-*-*"):
        match = re.match(r"weft-(\d+)-", folder.name)
        if match and not is_alive(int(match.group(1))):
            shutil.rmtree(folder, ignore_errors=True)


class Hosts:
    """count hosts called h0, h1 .. with cables of rate; use it with `with`."""

    def __init__(self, count, rate="1gbit"):
        self.count = count
        self.rate = rate
        self.prefix = f"weft-{os.getpid()}"
        self.switch = f"{self.prefix}-sw"
        self.names = [f"h{i}" for i in range(count)]

    def __enter__(self):
        remove_leftovers()
        atexit.register(self.close)
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix=f"{self.prefix}-"))
        self.rsh = self.dir / "rsh"
        known = self.dir / "hosts"  # what the names mean; `ip netns exec` makes mounts of its command only
        known.write_text("127.0.0.1 localhost\n" + "".join(f"{self.address(name)} {name}\n" for name in self.names))
        self.rsh.write_text(RSH % (self.prefix, known))
        self.rsh.chmod(0o755)
        try:
            self.build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception):
        self.close()

    def build(self):
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "br0", "up")
        for index, name in enumerate(self.names):
            space = self.space(name)
            run("ip", "netns", "add", space)
            run("ip", "-n", self.switch, "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "-n", self.switch, "link", "set", name, "master", "br0", "up")
            run("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "lo", "up")
            run("ip", "-n", space, "link", "set", "eth0", "up")
            self.limit(name, self.rate, "add")

    def close(self):
        atexit.unregister(self.close)
        for name in self.names:
            remove(self.space(name))
        remove(self.switch)
        shutil.rmtree(self.dir, ignore_errors=True)

    def space(self, name):
        return f"{self.prefix}-{name}"

    def address(self, name):
        return f"10.77.0.{self.names.index(name) + 1}"

    def limit(self, name, rate, verb="change"):
        """Both directions of a host's cable."""
        shape = ("root", "tbf", "rate", rate, "burst", "128kb", "latency", "50ms")
        run("tc", "-n", self.space(name), "qdisc", verb, "dev", "eth0", *shape)
        run("tc", "-n", self.switch, "qdisc", verb, "dev", name, *shape)

    def cut(self, name):
        run("ip", "-n", self.switch, "link", "set", name, "down")

    def mend(self, name):
        run("ip", "-n", self.switch, "link", "set", name, "up")

    def command(self, name, *args):
        """args as a command on that host."""
        return [str(self.rsh), name, " ".join(f"'{a}'" for a in map(str, args))]

    def processes(self):
        return [pid for name in self.names for pid in processes(self.space(name))]
