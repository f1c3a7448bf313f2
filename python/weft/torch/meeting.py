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
import threading
import time

import torch.distributed as dist
import weft

_environment_lock = threading.Lock()
_given = threading.local()


# ---- the world of a process group ----
def join(store, rank, size, timeout):
    """A weft.Context of the ranks that share store (of this group alone), whoever and wherever they are. Collective.

    Rank 0 learns from all which host they are on and says where to meet: on one host at an abstract socket, else at
    a port of rank 0's, with a secret that only those who can read the store know. The store may have what an earlier
    attempt has left: of ranks that torchrun has started again, or of a group that was destroyed.
    """
    context = getattr(_given, "context", None)
    if context is not None:
        return context
    if size == 1:
        return weft.Context(0, 1)
    attempt = f"weft/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    attempt += f"/{store.add(f'{attempt}/joins/{rank}', 1)}"
    store.set(f"{attempt}/rank/{rank}", json.dumps(_card()))
    if rank == 0:
        cards = [json.loads(store.get(f"{attempt}/rank/{r}")) for r in range(size)]
        store.set(f"{attempt}/meet", json.dumps(_meeting_place(cards)))
    place = json.loads(store.get(f"{attempt}/meet"))
    with _environment(timeout, place["secret"]):
        return weft.Context(rank, size, place["address"])


@contextlib.contextmanager
def given(context):
    """The next process group of this thread has this context, and is made without torch's store: who is in it has
    been agreed on, and the rank that has the store may be dead."""
    module = dist.distributed_c10d
    barrier = module._store_based_barrier
    _given.context, module._store_based_barrier = context, lambda *_, **__: None
    try:
        yield
    finally:
        _given.context, module._store_based_barrier = None, barrier


def install_barrier(has_lost_ranks):
    """torch 1 waits for all ranks of the world where a process group was made, also for dead ones. The members have
    met without that."""
    module = dist.distributed_c10d
    barrier = module._store_based_barrier

    def among_living(rank, store, *args, **kwargs):
        if not has_lost_ranks():
            barrier(rank, _StoreOfLiving(store, has_lost_ranks), *args, **kwargs)
    module._store_based_barrier = among_living


class _StoreOfLiving:
    """A store that tells who counts ranks that all have come, once one of them is dead."""
    SECONDS = 5  # the process of the store has ended; the others learn it within this time

    def __init__(self, store, has_lost_ranks):
        self._store, self._has_lost_ranks = store, has_lost_ranks

    def __getattr__(self, name):
        return getattr(self._store, name)

    def add(self, key, amount):
        until = time.monotonic() + self.SECONDS
        try:
            count = self._store.add(key, amount)
        except RuntimeError:
            while not self._has_lost_ranks():
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
            return dist.get_world_size()
        return dist.get_world_size() if amount == 0 and self._has_lost_ranks() else count


def _card():
    """Where this process is: ranks with the same host can meet at an abstract socket."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    host = f"{boot} {os.stat('/proc/self/ns/net').st_ino} {os.geteuid()} {os.environ.get('WEFT_HOST_ID', '')}"
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
    by_environment = handlers.get("env")

    def either(url, *args, **kwargs):
        handler = by_environment if "MASTER_ADDR" in os.environ or "=" in url else _rendezvous
        return handler(url, *args, **kwargs)
    if by_environment is not None:
        handlers["env"] = either


def _rendezvous(url, timeout=datetime.timedelta(minutes=30), **_):
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
