# SPDX-License-Identifier: Apache-2.0
"""How ranks of a process group find each other: by torch's store; and torch's store by Weft where there is none."""
import contextlib
import datetime
import fcntl
import importlib
import json
import os
import secrets
import socket
import struct
import sys
import threading
import time
import urllib.parse

import torch.distributed as dist
import weft

_environment_lock = threading.Lock()
_given = threading.local()


# A store that closes ends its connections first; so long, at most, it still listens.
_CLOSING_S = 5


class _former:
    """The latest default process group of this process. Not in rank 0, where holding the store would keep it open."""
    at = None    # address of the store: (host, port)
    line = None  # a connection to it, on which nothing is said: its end tells that the store is closed
    met = None   # (store, number of rank 0's call)


# ---- the world of a process group ----
def join(store, rank, size, timeout):
    """A weft.Context of the ranks that share store (of this group alone), whoever and wherever they are. Collective.

    Rank 0 learns from all which host they are on and says where to meet: on one host at an abstract socket, else at
    a port of rank 0's, with a secret that only those who can read the store know.
    """
    context = getattr(_given, "context", None)
    if context is not None:
        return context
    if size == 1:
        return weft.Context(0, 1)
    place = _call(store, size) if rank == 0 else _answer(store, rank)
    with _environment(timeout, place["secret"]):
        return weft.Context(rank, size, place["address"])


# The store may have what an earlier attempt has left: of ranks that a launcher has started again, whose counts of
# restarts may differ, or of a group that was destroyed. So rank 0 numbers its calls, ranks answer a call by a name of
# their own, and the meeting place holds for those whom it names. A rank that answered a call of the past goes on to the
# call after it.
#
#     rank 0:     call = 2, 1/next = 2       get 2/rank/r             2/meet = place, names
#     rank r:     get call  [get 1/next]     2/rank/r = card, name    get 2/meet
def _call(store, size):
    number = store.add("weft/calls", 1)
    if number > 1:
        store.set(f"weft/{number - 1}/meet", json.dumps({"names": []}))
        store.set(f"weft/{number - 1}/next", str(number))
    store.set("weft/call", str(number))
    cards = [_card(), *(json.loads(store.get(f"weft/{number}/rank/{r}")) for r in range(1, size))]
    place = {**_meeting_place(cards), "names": [card.get("name") for card in cards]}
    store.set(f"weft/{number}/meet", json.dumps(place))
    return place


def _answer(store, rank):
    name = secrets.token_hex(16)
    card = json.dumps({**_card(), "name": name})
    number = int(store.get("weft/call"))
    while True:
        store.set(f"weft/{number}/rank/{rank}", card)
        place = json.loads(store.get(f"weft/{number}/meet"))
        if name in place["names"]:
            if not dist.is_initialized():
                _former.met = store, number
            return place
        number = int(store.get(f"weft/{number}/next"))


@contextlib.contextmanager
def given(context):
    """The next process group of this thread has this context, and is made without torch's store: who is in it has
    been agreed on, and the rank that has the store may be dead."""
    _given.context = context
    try:
        yield
    finally:
        _given.context = None


def install_barrier():
    """Some versions of torch let all ranks of the world meet in the store where a process group was made: also dead
    ones, and rank 0, which has the store, may leave before others know. Members of a group of Weft have met already."""
    module = dist.distributed_c10d
    barrier = module._store_based_barrier

    def unless_met(*args, **kwargs):
        if sys._getframe(1).f_locals.get("backend") != "weft":  # of init_process_group or new_group
            barrier(*args, **kwargs)
    module._store_based_barrier = unless_met


def _card():
    """Where this process is: ranks with the same host can meet at an abstract socket. Without shared memory every rank
    counts as a host of its own."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    host = f"{boot} {os.stat('/proc/self/ns/net').st_ino} {os.geteuid()} {os.environ.get('WEFT_HOST_ID', '')}"
    transport = os.environ.get("WEFT_TRANSPORT", "auto")
    if transport != "auto" and "shm" not in transport:
        host = secrets.token_hex(16)
    return {"host": host, "address": own_address()}


def _meeting_place(cards):
    if all(card["host"] == cards[0]["host"] for card in cards):
        return {"address": f"unix:@weft-torch-{secrets.token_hex(16)}", "secret": None}
    host = cards[0]["address"]
    return {"address": f"[{host}]:{_free_port()}" if ":" in host else f"{host}:{_free_port()}",
            "secret": secrets.token_hex(32)}


def own_address():
    """An address by which other hosts reach this one: of WEFT_IFNAME's first interface, else of the way to MASTER_ADDR
    or anywhere."""
    name = os.environ.get("WEFT_IFNAME", "").split(",")[0]
    if name:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            request = struct.pack("256s", name.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), 0x8915, request)[20:24])  # SIOCGIFADDR
    # Connecting a datagram socket sends nothing: the kernel looks up the route, and with it the own address.
    for target in (os.environ.get("MASTER_ADDR", ""), "192.0.2.1"):
        with contextlib.suppress(OSError):
            family, kind, _, _, there = socket.getaddrinfo(target or None, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:
                probe.connect(there)
                address = probe.getsockname()[0]
            if not address.startswith("127.") and address != "::1":
                return address
    return "127.0.0.1"


def _free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def _environment(timeout, secret):
    """Settings of one context; what the user has set stays."""
    wanted = {"WEFT_TIMEOUT": str(max(1, int(timeout.total_seconds())))}
    if secret is not None and "WEFT_SECRET_FILE" not in os.environ:
        wanted["WEFT_SECRET"] = secret
    with _environment_lock:
        added = [name for name in wanted if name not in os.environ]
        try:
            for name in added:
                os.environ[name] = wanted[name]
            yield
        finally:
            for name in added:
                del os.environ[name]


# ---- torch's store, where no launcher of torch's has prepared one ----
def install_rendezvous():
    """Registers weft://, and makes env:// do the same where MASTER_ADDR is not set."""
    # By name: torch.distributed.rendezvous is also a function.
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    handlers = rendezvous._rendezvous_handlers
    if "weft" in handlers:
        return
    rendezvous.register_rendezvous_handler("weft", _rendezvous)
    for scheme in ("env", "tcp"):
        if scheme in handlers:
            handlers[scheme] = _at_address(handlers[scheme])


def _at_address(handler):
    """handler, for the process group that follows another one at the same address: the store of that one may still be
    open in rank 0, which is about to close it."""
    def rendezvous(url, *args, timeout=datetime.timedelta(minutes=30), **kwargs):
        if url.startswith("env") and "MASTER_ADDR" not in os.environ and "=" not in url:
            yield from _rendezvous(url, timeout)
            return
        at = urllib.parse.urlsplit(url)
        at = (at.hostname or os.environ.get("MASTER_ADDR"), at.port or os.environ.get("MASTER_PORT"))
        again = at == _former.at and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        if again:
            _await_end(timeout)
        _former.at, _former.met, _former.line = at, None, None
        end = time.monotonic() + _CLOSING_S
        while True:
            steps = handler(url, *args, timeout=timeout, **kwargs)
            try:
                first = next(steps)
                break
            except RuntimeError:  # its connections are closed, and it still listens
                if not again or time.monotonic() > end:
                    raise
        if first[1] != 0:
            with contextlib.suppress(OSError, TypeError):
                _former.line = socket.create_connection(at, _CLOSING_S)
        yield first
        yield from steps
    return rendezvous


def _await_end(timeout):
    """Waits until the store of the former default group is closed, or rank 0 calls in it again."""
    end = time.monotonic() + timeout.total_seconds()
    if _former.line is None or _former.met is None:
        return
    with _former.line as line, contextlib.suppress(OSError, RuntimeError):  # closed
        store, number = _former.met
        line.settimeout(0.01)
        while time.monotonic() < end:
            try:
                line.recv(1)
                return
            except TimeoutError:
                if store.add("weft/calls", 0) > number:
                    return


def _rendezvous(_url, timeout=datetime.timedelta(minutes=30), **_):
    """Rank and size from what has launched the ranks (weft run, mpirun, srun, nothing); rank 0 has the store."""
    context = None if weft.is_initialized() else weft.Context()
    group = context.world if context is not None else None
    rank, size = weft.get_rank(group), weft.get_world_size(group)
    if size == 1:
        store = dist.HashStore()
    else:
        many = context.hosts > 1 if context is not None else True
        place = bytearray(512)
        server = None
        if rank == 0:
            host = own_address() if many else "127.0.0.1"
            server = dist.TCPStore(host, 0, size, True, timeout, wait_for_workers=False)
            text = json.dumps([host, server.port]).encode()
            place[:len(text)] = text
        weft.broadcast(place, 0, group)
        host, port = json.loads(bytes(place).rstrip(b"\0"))
        store = server or dist.TCPStore(host, port, size, False, timeout)
    if context is not None:
        context.barrier()
        context.close()
    yield store, rank, size
    raise RuntimeError("weft:// supports one rendezvous per process")
