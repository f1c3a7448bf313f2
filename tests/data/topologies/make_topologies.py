#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the machines that tests of topology run on, as hwloc exports them (version 2 of its XML).

usage: make_topologies.py [DIRECTORY]

Nobody has all of these at hand, so they are made up; numbers of buses, speeds and the order in which
the system counts processors are as such machines have them.
"""
import pathlib
import sys
from xml.sax.saxutils import quoteattr

GIB = 1 << 30


def bits(members):
    """A set as hwloc writes it: words of 32 bits, the highest first."""
    value = sum(1 << m for m in members)
    words = []
    while value or not words:
        words.append(f"0x{value & 0xffffffff:08x}")
        value >>= 32
    return ",".join(reversed(words))


class Node:
    def __init__(self, object_type, cpus=None, nodes=None, infos=(), **attributes):
        self.type, self.cpus, self.nodes = object_type, cpus, nodes
        self.infos, self.attributes, self.children = infos, attributes, []

    def add(self, child):
        self.children.append(child)
        return child

    def write(self, out, depth, counter):
        counter[0] += 1
        attributes = {"type": self.type}
        attributes.update({k: str(v) for k, v in self.attributes.items()})
        if self.cpus is not None:
            for prefix in ("", "complete_") + (("allowed_",) if self.type == "Machine" else ()):
                attributes[prefix + "cpuset"] = bits(self.cpus)
                attributes[prefix + "nodeset"] = bits(self.nodes)
        attributes["gp_index"] = str(counter[0])
        text = " ".join(f"{k}={quoteattr(v)}" for k, v in attributes.items())
        if not self.children and not self.infos:
            out.append(f"{' ' * depth}<object {text}/>")
            return
        out.append(f"{' ' * depth}<object {text}>")
        for key, value in self.infos:
            out.append(f"{' ' * depth} <info name={quoteattr(key)} value={quoteattr(value)}/>")
        for child in self.children:
            child.write(out, depth + 1, counter)
        out.append(f"{' ' * depth}</object>")


class Machine:
    def __init__(self, sockets, nodes, cores, threads=1, numbering="last", memory=64 * GIB, l3=32 << 20,
                 model="Example 9000"):
        """nodes and cores are those of a socket and of a node; numbering of processors: "last" (all
        second threads after all first ones), "adjacent", "interleaved" (sockets in turn)."""
        self.total = sockets * nodes * cores
        self.threads, self.numbering, self.sockets = threads, numbering, sockets
        self.top = Node("Machine", range(self.total * threads), range(sockets * nodes), os_index=0)
        self.packages, self.numas, self.buses = [], [], 0
        for s in range(sockets):
            of_socket = range(s * nodes * cores, (s + 1) * nodes * cores)
            package = self.top.add(Node("Package", self.cpus(of_socket), range(s * nodes, (s + 1) * nodes),
                                        [("CPUModel", model)], os_index=s))
            self.packages.append(package)
            for n in range(s * nodes, (s + 1) * nodes):
                of_node = range(n * cores, (n + 1) * cores)
                place = package
                if nodes > 1:
                    place = package.add(Node("Group", self.cpus(of_node), [n], kind=1000, subkind=0))
                place.add(Node("NUMANode", self.cpus(of_node), [n], os_index=n, local_memory=memory))
                cache = place.add(Node("L3Cache", self.cpus(of_node), [n], cache_size=l3, depth=3,
                                       cache_linesize=64, cache_associativity=16, cache_type=0))
                for c in of_node:
                    self.add_core(cache, c, n)
                self.numas.append(place)

    def number(self, core, thread):
        if self.numbering == "adjacent":
            return core * self.threads + thread
        if self.numbering == "interleaved":
            per_socket = self.total // self.sockets
            core = core % per_socket * self.sockets + core // per_socket
        return thread * self.total + core

    def cpus(self, cores):
        return [self.number(c, t) for c in cores for t in range(self.threads)]

    def add_core(self, cache, index, numa):
        mine = self.cpus([index])
        l2 = cache.add(Node("L2Cache", mine, [numa], cache_size=1 << 20, depth=2, cache_linesize=64,
                            cache_associativity=8, cache_type=0))
        core = l2.add(Node("Core", mine, [numa], os_index=index))
        for cpu in mine:
            core.add(Node("PU", [cpu], [numa], os_index=cpu))

    def host_bridge(self, place):
        self.buses += 16
        first = self.buses
        self.buses += 15
        return place.add(Node("Bridge", bridge_type="0-1", depth=0,
                              bridge_pci=f"0000:[{first:02x}-{self.buses:02x}]")), first

    @staticmethod
    def switch(bridge, bus, last):
        return bridge.add(Node("Bridge", bridge_type="1-1", depth=1, bridge_pci=f"0000:[{bus + 1:02x}-{last:02x}]",
                               pci_busid=f"0000:{bus:02x}:00.0", pci_type="0604 [1000:c010] [1000:100b] b0",
                               pci_link_speed="31.507692"))

    @staticmethod
    def device(bridge, bus, kind):
        return bridge.add(Node("PCIDev", pci_busid=f"0000:{bus:02x}:00.0", pci_type=kind,
                               pci_link_speed="15.753846"))

    def nic(self, bridge, bus, name, mbits, rdma=None):
        card = self.device(bridge, bus, "0200 [15b3:1017] [15b3:0007] 00")
        card.add(Node("OSDev", infos=[("Address", f"02:00:00:00:00:{bus:02x}"), ("Speed", str(mbits))],
                      name=name, osdev_type=2))
        if rdma:
            card.add(Node("OSDev", infos=[("NodeGUID", "0200:00ff:fe00:0000")], name=rdma, osdev_type=3))

    def card(self, bridge, bus):
        self.device(bridge, bus, "0302 [10de:20b0] [10de:144e] a1")

    def text(self):
        out = ['<?xml version="1.0" encoding="UTF-8"?>', '<!DOCTYPE topology SYSTEM "hwloc2.dtd">',
               '<topology version="2.0">']
        self.top.write(out, 1, [0])
        out.append("</topology>")
        return "\n".join(out) + "\n"


def one_socket():
    m = Machine(1, 1, 4, threads=2)
    bridge, bus = m.host_bridge(m.packages[0])
    m.nic(bridge, bus, "eth0", 10000)
    return m


def two_sockets():
    m = Machine(2, 1, 4, threads=2)
    bridge, bus = m.host_bridge(m.packages[0])
    m.nic(bridge, bus, "eno1", 1000)
    bridge, bus = m.host_bridge(m.packages[1])
    m.nic(bridge, bus, "eth0", 25000)
    return m


def four_sockets():
    m = Machine(4, 1, 4, numbering="adjacent")
    for package, name in ((0, "0"), (2, "1")):
        bridge, bus = m.host_bridge(m.packages[package])
        m.nic(bridge, bus, "ib" + name, 100000, "mlx5_" + name)
    return m


def eight_nodes():
    m = Machine(2, 4, 2, numbering="interleaved", memory=16 * GIB, l3=16 << 20)
    for node, name in ((1, "0"), (5, "1")):
        bridge, bus = m.host_bridge(m.numas[node])
        m.nic(bridge, bus, "eth" + name, 100000, "mlx5_" + name)
    return m


def eight_cards():
    m = Machine(2, 1, 8)
    number = 0
    for package in m.packages:
        bridge, bus = m.host_bridge(package)
        for _ in range(2):
            switch = m.switch(bridge, bus, bus + 3)
            m.card(switch, bus + 1)
            m.card(switch, bus + 2)
            m.nic(switch, bus + 3, f"eth{number}", 200000, f"mlx5_{number}")
            number += 1
            bus += 4
    return m


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    for make in (one_socket, two_sockets, four_sockets, eight_nodes, eight_cards):
        (folder / (make.__name__.replace("_", "-") + ".xml")).write_text(make().text())


if __name__ == "__main__":
    main()
