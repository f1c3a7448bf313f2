# SPDX-License-Identifier: Apache-2.0
"""Weft's planner inside torch.compile: buckets of collectives, started early and waited for late.

    import torch, torch.distributed as dist
    import weft.torch.inductor

    dist.init_process_group("weft")
    weft.torch.inductor.install()                   # before anything is compiled
    torch._dynamo.config.optimize_ddp = "python_reducer"
    model = torch.compile(torch.nn.parallel.DistributedDataParallel(model))

A pass over the graphs of Inductor, after torch's own: the graph becomes a weft.passes.View, passes.bucket decides which
collectives go together, and each bucket becomes weft::start on a list of tensors and weft::wait_. Collectives of other
backends, and all kernels, stay as they are. docs/inductor.md has limits and figures.
"""
import operator
import re

import torch
import torch.distributed as dist
import weft
import weft.torch
from weft import passes
from weft.torch import layout
from weft.torch.process_group import ProcessGroupWeft
from weft.torch.sharding import fully_shard

__all__ = ["fully_shard", "install", "installed", "report", "uninstall"]

# The oldest torch whose graphs and settings this file has been tested with.
LEAST = (2, 15)
# Estimates of compute, for the times at which gradients are ready: as weft_op_predict_ns.
FLOPS_PER_NS, BYTES_PER_NS = 100.0, 10.0
_KINDS = {"all_reduce": "weft.AllReduce", "all_gather_into_tensor": "weft.AllGather",
          "reduce_scatter_tensor": "weft.ReduceScatter"}

_state = None       # of install
_reports = []       # a dict for each graph that was planned


# ---- the operators that run ----
_pending = {}       # address of a bucket's first result -> weft.Work
_groups = {}        # name -> ProcessGroupWeft


def _group_of(name):
    """The process group of Weft called name; None: it is of another backend."""
    group = dist.distributed_c10d._resolve_process_group(name)
    if isinstance(group, ProcessGroupWeft):
        return group
    try:
        inner = group._get_backend(torch.device("cpu"))
    except RuntimeError:                            # it has none for CPUs
        return None
    return inner if isinstance(inner, ProcessGroupWeft) else None


def _weft_group(name):
    group = _groups.get(name)
    if group is None or group.weft_context.closed:
        group = _groups[name] = _group_of(name)
    return group


def _shape(kind, shape, size):
    rows = shape[0] if shape else 1
    if kind == "all_gather_into_tensor":
        return [rows * size, *shape[1:]]
    return [rows // size, *shape[1:]] if kind == "reduce_scatter_tensor" else list(shape)


def _issue(kind, data, out, reduction, group, asynchronous):
    if kind == "all_gather_into_tensor":
        return weft.all_gather(data, group, out=out, async_op=asynchronous)
    call = weft.all_reduce if kind == "all_reduce" else weft.reduce_scatter
    return call(data, reduction, group, out=out, async_op=asynchronous)


def _pieces(data, out, parts):
    """Ranges of both that start at units of 64 bytes, as weft/graph_view.h defines a split."""
    data, out = data.view(-1), out.view(-1)
    unit = 64 // data.element_size()
    units = -(-data.numel() // unit)
    for i in range(parts):
        begin, end = units * i // parts * unit, min(units * (i + 1) // parts * unit, data.numel())
        yield data[begin:end], out[begin:end]


class Room:
    """Memory that peers reach, for the results of one bucket. It is kept, and used again by the next step once nothing
    refers to results in it any more, such as gradients that the program has kept."""

    def __init__(self, count, dtype, group):
        self.flat = weft.torch.empty(count, dtype=dtype, group=group)   # collective: each rank's first step does this
        self.storage = self.flat.untyped_storage()
        self.users = self.count()

    def count(self):
        return torch._C._storage_Use_Count(self.storage._cdata)

    @classmethod
    def of(cls, group, bucket, count, dtype):
        """A flat tensor; of other memory where this rank, other than its peers maybe, has the room in use."""
        rooms = group.__dict__.setdefault("inductor_rooms", {})
        key = bucket, count, dtype
        room = rooms.get(key)
        if room is None:
            room = rooms[key] = cls(count, dtype, group)
        return room.flat.detach() if room.count() == room.users else torch.empty(count, dtype=dtype)


def _all_reduce(inputs, reduction, parts, bucket, group):
    """All tensors as one call, in a room into which they are copied: without one, Weft would copy them to and fro."""
    flat = Room.of(group, bucket, sum(tensor.numel() for tensor in inputs), inputs[0].dtype)
    outputs = torch._C._nn.unflatten_dense_tensors(flat, inputs)
    torch._foreach_copy_(outputs, inputs)
    if parts < 2:
        return list(outputs), weft.all_reduce_(flat, reduction, group.weft_group, async_op=True)
    with weft.batch(group.weft_group, async_op=True) as batch:
        for piece, place in _pieces(flat, flat, parts):
            weft.all_reduce(piece, reduction, group.weft_group, out=place)
    return list(outputs), batch.work


def _start(inputs, kind, reduction, parts, size, bucket, group_name):
    group = _weft_group(group_name)
    inputs = [tensor.detach() if tensor.is_contiguous() else tensor.detach().contiguous() for tensor in inputs]
    if kind == "all_reduce" and all(tensor.numel() > 0 for tensor in inputs):
        outputs, work = _all_reduce(inputs, reduction, parts, bucket, group)
    else:
        outputs = [tensor.new_empty(_shape(kind, tensor.shape, size)) for tensor in inputs]
        with weft.batch(group.weft_group, async_op=True) as batch:
            for data, out in zip(inputs, outputs):
                for piece, place in _pieces(data, out, parts) if kind == "all_reduce" else ((data, out),):
                    _issue(kind, piece, place, reduction, group.weft_group, False)
        work = batch.work
    _pending[outputs[0].data_ptr()] = work
    return outputs


def _start_shapes(inputs, kind, reduction, parts, size, bucket, group_name):
    return [tensor.new_empty(_shape(kind, tensor.shape, size)) for tensor in inputs]


def _wait(results, inputs):
    _pending.pop(results[0].data_ptr()).wait()


def _define():
    """torch.ops.weft.start and .wait_. wait_ mutates the results, so nothing that reads them runs before it, and has
    the inputs as arguments, so their memory is not used again before it."""
    library = torch.library.Library("weft", "DEF")
    library.define("start(Tensor[] inputs, str kind, str reduction, int parts, int size, int bucket, str group_name)"
                   " -> Tensor[]")
    library.define("wait_(Tensor(a!)[] results, Tensor[] inputs) -> ()")
    library.impl("start", _start, "CPU")
    library.impl("start", _start_shapes, "Meta")
    library.impl("wait_", _wait, "CPU")
    library.impl("wait_", lambda results, inputs: None, "Meta")
    return library


# ---- a graph of FX as a view ----
class Collective:
    """A functional collective and its waits."""

    def __init__(self, node, waits, kind, group_name):
        self.node, self.waits, self.kind, self.group_name = node, waits, kind, group_name
        self.value = waits[0].meta["val"]
        self.input = node.args[0]
        self.reduction = node.args[1] if kind != "all_gather_into_tensor" else "sum"
        self.size = _group_of(group_name).size()
        self.scale = None                           # a division that the average replaces
        if kind == "all_reduce" and self.reduction == "sum":
            self._take_division()

    def _take_division(self):
        """The sum of x / N is the average of x, with the same bits where N is a power of two."""
        node, size = self.input, self.size
        divides = node.op == "call_function" and node.target in (torch.ops.aten.div.Tensor, torch.ops.aten.div.Scalar)
        if (divides and len(node.users) == 1 and node.args[1] == size and size & (size - 1) == 0 and not node.kwargs
                and isinstance(node.args[0], torch.fx.Node) and node.meta["val"].dtype is not torch.float16
                and node.args[0].meta["val"].dtype is node.meta["val"].dtype):
            self.scale, self.input, self.reduction = node, node.args[0], "avg"

    @classmethod
    def of(cls, node):
        """The collective that starts at node, if Weft executes it; else None."""
        packet = getattr(node.target, "overloadpacket", None)
        kind = str(packet).rpartition(".")[2]
        if node.op != "call_function" or packet is None or not str(packet).startswith("_c10d_functional."):
            return None
        waits = [user for user in node.users if user.target is torch.ops._c10d_functional.wait_tensor.default]
        value = node.meta.get("val")
        # What waits for nothing is for a later graph, which waits.
        if (kind not in _KINDS or not waits or any(user.op != "output" for user in node.users if user not in waits)
                or not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.dtype not in layout.NATIVE
                or any(not isinstance(size, int) for size in value.shape) or value.numel() == 0 or node.kwargs
                or not isinstance(node.args[-1], str) or _group_of(node.args[-1]) is None
                or (kind != "all_gather_into_tensor" and node.args[1] not in ("sum", "avg", "max", "min"))
                or (kind != "all_reduce" and not node.args[0].meta["val"].shape)):
            return None
        return cls(node, waits, kind, node.args[-1])


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, (list, tuple)) else []


def _bytes(node):
    total = 0
    for tensor in _tensors(node.meta.get("val")):
        count = tensor.element_size()
        for size in tensor.shape:
            count *= size if isinstance(size, int) else 1
        total += count
    return total


def _pads(node, collectives):
    """Whether node pads a shard before it is gathered."""
    return (node.op == "call_function" and node.target is torch.ops.aten.constant_pad_nd.default
            and 0 < len(node.users) and node.users.keys() <= collectives)


def _is_view(node):
    return node.op == "call_function" and getattr(node.target, "is_view", False)


def _nanoseconds(node):
    """Of compute."""
    from torch.utils.flop_counter import flop_registry
    if node.op != "call_function" or node.target is operator.getitem or _is_view(node):
        return 0
    count = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if count is not None:
        try:
            values = torch.fx.node.map_arg(node.args, lambda argument: argument.meta["val"])
            return int(count(*values, **node.kwargs, out_val=node.meta["val"]) / FLOPS_PER_NS)
        except Exception:
            pass                                    # shapes that are not numbers
    return int((_bytes(node) + sum(_bytes(argument) for argument in node.all_input_nodes)) / BYTES_PER_NS)


def _mutated(node):
    """Arguments that node writes."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.is_mutable:
        return []
    found = []
    for argument, value in zip(schema.arguments, node.args):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += [part for part in (value if isinstance(value, (list, tuple)) else [value])
                      if isinstance(part, torch.fx.Node)]
    return found


def _base(node):
    """The node whose memory node's result lies in: itself, unless it is a view, or one of several of a split."""
    while node.op == "call_function" and node.all_input_nodes:
        source = node.all_input_nodes[0]
        target = source.target if node.target is operator.getitem else node.target
        if not getattr(target, "is_view", False):
            break
        node = source
    return node


class Description:
    """The view of a graph; ids of its operators."""

    def __init__(self, graph, collectives):
        starts = {item.node: item for item in collectives}
        waits = {wait: item for item in collectives for wait in item.waits}
        groups = list(dict.fromkeys(item.group_name for item in collectives))
        values, sizes, names, dtypes, grad_of = {}, [], [], [], []
        self.items = {}                             # op id -> Collective
        ops, inputs, outputs, effects, group_ids, reductions, self.op_ns, op_names = ([] for _ in range(8))

        def value_of(node, size, gradient_of=-1):
            values[node] = len(sizes)
            sizes.append(size)
            names.append(f"{node}" if isinstance(node, torch.fx.Node) else "parameter")
            value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
            native = isinstance(value, torch.Tensor) and value.dtype in layout.NATIVE
            dtypes.append(str(value.dtype) if native else "uint8")
            grad_of.append(gradient_of)
            return values[node]

        for node in graph.nodes:
            if node in waits or node.op == "output":
                continue
            if node.op != "call_function":
                value_of(node, _bytes(node))
                continue
            # Padding of a shard, and what cuts it off again: ranks whose shard is whole have no such nodes, and yet must
            # come to the same plan.
            if _pads(node, starts.keys()) or _is_view(node) and node.args[0] in waits:
                source = node.args[0]
                values[node] = values[waits[source].node if source in waits else source]
                sizes[values[node]] = max(sizes[values[node]], _bytes(node))
                continue
            item = starts.get(node)
            reads = [item.input] if item else node.all_input_nodes
            inputs.append([values[waits[read].node if read in waits else read] for read in reads])
            op_names.append(str(node))
            group_ids.append(groups.index(item.group_name) if item else 0)
            reductions.append(item.reduction if item else "sum")
            if item:
                self.items[len(ops)] = item
                parameter = value_of(object(), _bytes(item.node)) if item.kind == "all_reduce" else -1
                ops.append(_KINDS[item.kind])
                effects.append(passes.PURE)
                self.op_ns.append(0)
                outputs.append([value_of(node, _bytes(item.node), parameter)])
                continue
            ops.append(str(node.target))
            effects.append(passes.UNKNOWN if node.is_impure() or _mutated(node) else passes.PURE)
            self.op_ns.append(_nanoseconds(node))
            outputs.append([value_of(node, _bytes(node))])
        self.view = passes.View.from_lists(ops, inputs, outputs, sizes, op_names=op_names, value_names=names,
                                           dtypes=dtypes, grad_of=grad_of, groups=group_ids, reductions=reductions,
                                           effects=effects)


class Bucket:
    """Collectives that are one operator."""

    def __init__(self, members, parts=1):
        self.members, self.parts = members, parts
        self.gathers = members[0].kind == "all_gather_into_tensor"
        self.inputs = [item.input for item in members]
        self.started = self.waited = False

    def build(self, graph, number):
        first = self.members[0]
        self.start = graph.call_function(torch.ops.weft.start.default, (
            self.inputs, first.kind, first.reduction, self.parts, first.size, number, first.group_name))
        self.results = [graph.call_function(operator.getitem, (self.start, i)) for i in range(len(self.members))]
        self.wait = graph.call_function(torch.ops.weft.wait_.default, (self.results, self.inputs))
        fake = [item.value for item in self.members]
        self.start.meta["val"], self.wait.meta["val"] = fake, None
        for result, value, item in zip(self.results, fake, self.members):
            result.meta.update(item.waits[0].meta, val=value)


def _plan(graph, collectives, policy, costs):
    """(buckets, forecast) by Weft's planner."""
    description = Description(graph, collectives)
    edits, forecast = passes.bucket(
        description.view, policy, ready_ns=passes.ready_times(description.view, description.op_ns),
        world=max(item.size for item in collectives), costs=costs)
    passes.check(description.view, edits)
    items = description.items
    parts = {edit.op: edit.parts for edit in edits if isinstance(edit, passes.Split)}
    fused = [edit.members for edit in edits if isinstance(edit, passes.Fuse)]
    alone = sorted(set(items) - {op for members in fused for op in members})
    members = sorted([*fused, *((op,) for op in alone)], key=max)
    buckets = [Bucket([items[op] for op in ops], parts.get(ops[0], 1) if len(ops) == 1 else 1) for ops in members]
    return buckets, forecast


# ---- the order of execution ----
class Order:
    """List scheduling: nodes keep their order where values and waits allow; a bucket starts once its inputs are there,
    and is waited for before the first node that reads a result. Of all-gathers one bucket is under way ahead of need,
    as results need memory."""

    def __init__(self, graph, buckets):
        self.graph, self.buckets, self.order, self.done, self.late = graph, buckets, [], set(), []
        self.bucket_of = {result: bucket for bucket in buckets for result in bucket.results}
        self.result_of = {bucket.wait: bucket.results[0] for bucket in buckets}
        self.own = {node for bucket in buckets for node in (bucket.start, bucket.wait, *bucket.results)}
        self.before = {}                            # node -> nodes that run before it, though no value says so
        nodes = [node for node in graph.nodes if node not in self.own]
        position = {node: i for i, node in enumerate(nodes)}
        users = {}                                  # base -> nodes that read it, also through views
        for node in nodes:
            for value in node.all_input_nodes:
                users.setdefault(_base(value), []).append(node)
        for node in nodes:
            for value in _mutated(node):
                for user in users.get(_base(value), ()):
                    if user is not node:
                        first, second = (user, node) if position[user] < position[node] else (node, user)
                        self.before.setdefault(second, set()).add(first)
                for bucket in buckets:              # reads memory until it was waited for
                    if (_base(value) in map(_base, bucket.inputs)
                            and all(position.get(read, -1) < position[node] for read in bucket.inputs)):
                        self.before.setdefault(node, set()).add(bucket.wait)
        self.nodes = nodes
        # Views of results, which are no reason to wait, and padding: they run when something reads them.
        self.lazy = set()
        for node in nodes:
            views = _is_view(node) and (node.args[0] in self.bucket_of or node.args[0] in self.lazy)
            if (views and node.users or _pads(node, self.own)) and node not in self.before:
                self.lazy.add(node)

    def emit(self, node):
        self.order.append(node)
        self.done.add(node)

    def start(self, bucket):
        bucket.started = True
        for node in (bucket.start, *bucket.results):
            self.emit(node)

    def start_ready(self):
        """Starts what is ready; True if there was something."""
        before, gathers = len(self.order), [bucket for bucket in self.buckets if bucket.gathers]
        for bucket in self.buckets:
            if bucket.started or not all(self.ready(node, False) for node in bucket.inputs):
                continue
            if bucket.gathers:
                place = gathers.index(bucket)
                if place > 0 and not gathers[place - 1].waited:
                    continue
            for node in bucket.inputs:
                self.wait_for(node)
            self.start(bucket)
        return len(self.order) > before

    def ready(self, node, start=True):
        """Whether node's value is there or may be waited for."""
        bucket = self.bucket_of.get(node)
        if bucket is None:
            if node in self.lazy and node not in self.done:
                return self.ready(node.args[0], start)
            return node in self.done
        if not bucket.started and start and all(self.ready(value) for value in bucket.inputs):
            for value in bucket.inputs:
                self.wait_for(value)
            self.start(bucket)
        return bucket.started

    def wait_for(self, node):
        """Has node's value there."""
        if node in self.lazy and node not in self.done:
            self.wait_for(node.args[0])
            self.emit(node)
        bucket = self.bucket_of.get(node)
        if bucket is not None and not bucket.waited:
            bucket.waited = True
            self.emit(bucket.wait)

    def run(self, node):
        before = self.before.get(node, set())
        needs = [*node.all_input_nodes,
                 *(self.result_of.get(first, first) for first in before if first in self.result_of or first in self.lazy)]
        before = before - self.result_of.keys() - self.lazy
        if not all([self.ready(value) for value in needs]) or not before <= self.done:
            return False
        for value in needs:
            self.wait_for(value)
        self.emit(node)
        return True

    def apply(self):
        ahead = True                                # among the placeholders
        for node in self.nodes:
            if node.op == "output":
                continue
            if ahead and node.op not in ("placeholder", "get_attr"):
                ahead = False
                self.start_ready()
            if node in self.lazy:
                continue
            if not self.run(node):
                self.late.append(node)
                continue
            while not ahead and (self.start_ready() or self.run_late()):
                pass
        output = self.nodes[-1]
        if self.late or not self.run(output):
            raise RuntimeError(f"weft.torch.inductor: no order of execution: {(self.late or [output])[0]} cannot run")
        for bucket in self.buckets:                 # results that nothing reads
            if not bucket.waited:
                bucket.waited = True
                self.order.insert(-1, bucket.wait)
        last = self.order[0]
        for node in self.order[1:]:
            last.append(node)
            last = node

    def run_late(self):
        for node in self.late:
            if self.run(node):
                self.late.remove(node)
                return True
        return False


def _rewrite(graph, policy, costs):
    """The pass."""
    collectives = [item for item in map(Collective.of, graph.nodes) if item is not None]
    if not collectives:
        return
    buckets, forecast = _plan(graph, collectives, policy, costs)
    for number, bucket in enumerate(buckets):
        bucket.build(graph, number)
    for bucket in buckets:
        for item, result in zip(bucket.members, bucket.results):
            for wait in item.waits:
                wait.replace_all_uses_with(result)
                graph.erase_node(wait)
            item.node.replace_all_uses_with(result)
    for bucket in buckets:                          # inputs may be results of other buckets
        bucket.inputs = list(bucket.start.args[0])
    for item in collectives:
        for node in (item.node, item.scale):
            if node is not None and not node.users:
                graph.erase_node(node)
    Order(graph, buckets).apply()
    graph.lint()
    _reports.append({
        "collectives": len(collectives), "buckets": [len(bucket.members) for bucket in buckets],
        "bytes": [sum(_bytes(result) for result in bucket.results) for bucket in buckets],
        "kinds": [bucket.members[0].kind for bucket in buckets], "forecast": forecast})


# ---- Inductor's side ----
def _predict(costs):
    """Weft's time of a collective in milliseconds, as Inductor asks for it; None: not a collective of Weft."""
    known = {}

    def estimate(node, override_size=None):
        item = Collective.of(node) if isinstance(node, torch.fx.Node) else None
        if item is None:
            return None
        size = override_size if override_size is not None else max(_bytes(item.node), _bytes(item.input))
        if size == 0:
            return 0.0
        key = size, item.size, item.kind
        if key not in known:
            view = passes.View.from_lists(["weft.AllReduce"], [[0]], [[1]], [size, size], grad_of=[-1, 0])
            _, forecast = passes.bucket(view, "none", world=item.size, costs=costs)
            # An all-reduce is a reduce-scatter and an all-gather.
            known[key] = forecast.comm_ps * 1e-9 * (1.0 if item.kind == "all_reduce" else 0.5)
        return known[key]
    return estimate


def _passes(policy, costs):
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class WeftBuckets(CustomGraphPass):
        def __call__(self, graph):
            _rewrite(graph, policy, costs)

        def uuid(self):
            # Nothing is taken from Inductor's cache: its key has the shape of a whole DTensor and not that of the shard,
            # so a rank would get the graph of another one.
            return None

    class FuseOtherBackends(CustomGraphPass):
        """torch's own fusion of DDP's gradients, for graphs without Weft's collectives."""

        def __init__(self, former):
            self.former = former

        def __call__(self, graph):
            from torch._inductor.fx_passes.ddp_fusion import fuse_ddp_communication
            if not any(Collective.of(node) for node in graph.nodes):
                fuse_ddp_communication(graph, self.former, config._fuse_ddp_bucket_size)

        def uuid(self):
            return None
    return WeftBuckets(), FuseOtherBackends(config._fuse_ddp_communication_passes)


def _check_torch():
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < LEAST:
        raise RuntimeError(f"weft.torch.inductor: torch {torch.__version__} is too old: needs torch "
                           f"{LEAST[0]}.{LEAST[1]} or later")


def install(costs=None, policy="auto"):
    """Has Inductor plan the collectives of process groups of Weft.

    costs: a file of measured costs (`weft tune`); default: Weft's table. policy: as of weft.compile(bucket=). Call it
    with the same arguments on all ranks, before anything is compiled; once more replaces the former one. Raises
    RuntimeError where torch is too old.
    """
    global _state
    _check_torch()
    view = passes.View.from_lists(["weft.AllReduce"], [[0]], [[1]], [4, 4], grad_of=[-1, 0])
    passes.bucket(view, policy if not str(policy).startswith("index") else "auto", world=2, costs=costs)
    uninstall()
    from torch._inductor import config
    if not hasattr(torch.ops.weft, "start"):
        _define.library = _define()
    buckets, others = _passes(policy, costs)
    distributed = config.aten_distributed_optimizations
    _state = [(config, "post_grad_custom_post_pass", config.post_grad_custom_post_pass),
              (config, "_fuse_ddp_communication_passes", config._fuse_ddp_communication_passes),
              (config, "reorder_for_peak_memory", config.reorder_for_peak_memory),
              (distributed, "custom_runtime_estimation", distributed.custom_runtime_estimation)]
    former = config.post_grad_custom_post_pass
    former = list(former) if isinstance(former, (list, tuple)) else [former] if former is not None else []
    config.post_grad_custom_post_pass = [*former, buckets] if former else buckets
    config._fuse_ddp_communication_passes = [others]
    config.reorder_for_peak_memory = False          # it moves starts and waits
    if distributed.custom_runtime_estimation is None:
        distributed.custom_runtime_estimation = _predict(costs)


def installed():
    """Whether install was called."""
    return _state is not None


def uninstall():
    """Inductor's settings become what they were before install. What is compiled already stays."""
    global _state
    for where, name, value in _state or ():
        setattr(where, name, value)
    _state = None


def report():
    """A dict for each graph that was planned: collectives, buckets (members of each), bytes, kinds, forecast."""
    return list(_reports)
