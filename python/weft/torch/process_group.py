# SPDX-License-Identifier: Apache-2.0
"""The process group: torch's collectives as Weft's."""
from __future__ import annotations

import functools
import sys

import torch
import torch.distributed as dist
import weft
from torch._C import _distributed_c10d as c10d
from weft import _core
from weft.torch import dynamo, layout, meeting
from weft.torch.adoption import LEAST_BYTES
from weft.torch.group import Group, single
from weft.torch.observed import WORDS, backend_class, observed, observed_or_now
from weft.torch.works import Done, Several, Work, called_by_backward

# As WORDS.
_BITWISE = {hash(getattr(dist.ReduceOp, name)): function for name, function in (
    ("BAND", torch.bitwise_and), ("BOR", torch.bitwise_or), ("BXOR", torch.bitwise_xor))}
# What a reduction of truth values is on 0 and 1: a sum says whether any is, as elsewhere in torch.
_OF_BOOLS = {"sum": "max", "prod": "min", "min": "min", "max": "max"}


def install_backend():
    """Registers backend "weft"; again is fine."""
    if not hasattr(dist.Backend, "WEFT"):
        more = {"devices": ["cpu"]} if _takes_devices() else {}
        dist.Backend.register_backend("weft", _create, **more)
        meeting.install_barrier()
        _install_monitored_barrier()
        dynamo.install()


def _install_monitored_barrier():
    """Makes dist.monitored_barrier take groups of Weft: torch 1 asks for the name of Gloo, later ones for a backend."""
    module = dist.distributed_c10d
    original = module.monitored_barrier

    def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
        own = group if group is not None or not dist.is_initialized() else module._get_default_group()
        if isinstance(own, ProcessGroupWeft):
            return own.monitored_barrier(timeout, wait_all_ranks)
        return original(group, timeout, wait_all_ranks)
    functools.update_wrapper(monitored_barrier, original)
    module.monitored_barrier = dist.monitored_barrier = monitored_barrier


def _takes_devices():
    import inspect
    return "devices" in inspect.signature(dist.Backend.register_backend).parameters


def _create(store, rank, size, timeout):
    return ProcessGroupWeft(store, rank, size, timeout)


def group_of(group: dist.ProcessGroup | None = None) -> weft.Group:
    """The weft.Group under a torch process group (None: the default one), for calling weft.all_reduce_ and others
    directly: they take a microsecond or two less than torch.distributed's."""
    return _weft_group(group).weft_group


def shrink(group: dist.ProcessGroup | None = None) -> dist.ProcessGroup:
    """A process group of the ranks of group (None: the default one) that are left, after one has died. All of them
    call it. They agree on who is left; torch's store is not needed. Each keeps its global rank; the former group
    keeps its error."""
    former = _weft_group(group)
    ranks = former.global_ranks
    if ranks is None:
        default = former is _weft_group(None)
        ranks = [rank if default else dist.distributed_c10d._get_global_rank(group, rank)
                 for rank in range(former.size())]
    context = former.weft_context.shrink()
    with meeting.given(context):
        made = dist.new_group([ranks[member] for member in context.members], backend="weft")
    _weft_group(made).global_ranks = ranks
    return made


def _weft_group(group):
    group = group if group is not None else dist.distributed_c10d._get_default_group()
    if isinstance(group, ProcessGroupWeft):
        return group
    inner = getattr(group, "_get_backend", None)
    inner = inner(torch.device("cpu")) if inner is not None else None
    if isinstance(inner, ProcessGroupWeft):
        return inner
    raise TypeError(f"{group!r} is not a process group of the backend weft")


class ProcessGroupWeft(Group):
    """What dist.init_process_group("weft") and dist.new_group make.

    Calls are queued and return a Work; nothing is waited for here. A call that cannot be queued, since it is wrong in
    itself, raises at once; where ranks disagree all of them raise when they wait.
    """

    # ---- what is common ----
    def _reduction(self, opts, tensor):
        """The word for opts' operation on tensor."""
        op = opts.reduceOp if hasattr(opts, "reduceOp") else opts
        word = WORDS.get(hash(op))
        if word is None:
            raise self._refused(RuntimeError(
                "weft: unsupported reduction: expected SUM, AVG, PRODUCT, MIN or MAX; for"
                " all_reduce and reduce also BAND, BOR or BXOR"))
        if tensor.dtype is torch.bool:
            word = _OF_BOOLS.get(word)
            if word is None:
                raise self._refused(RuntimeError("weft: unsupported average of torch.bool"))
        elif tensor.is_complex() and word not in ("sum", "avg"):
            raise self._refused(RuntimeError(f"weft: unsupported {word} of {tensor.dtype}"))
        elif tensor.is_floating_point() and tensor.element_size() == 1:
            raise self._refused(RuntimeError(f"weft: unsupported {word} of {tensor.dtype}: convert to bfloat16 before"))
        return word

    def _bitwise(self, tensor, function, outputs, here=True):
        """Weft has no bitwise reductions: everybody gets all, and combines them."""
        if tensor.is_floating_point() or tensor.is_complex():
            raise self._refused(RuntimeError(f"weft: unsupported bitwise reduction of {tensor.dtype}"))
        own = layout.dense(tensor).view(-1)
        everything = torch.empty(self._size * own.numel(), dtype=own.dtype)
        handle = weft.all_gather(own, self.weft_group, out=everything, async_op=True)

        def finish():
            if here:
                blocks = everything.view(self._size, -1)
                result = blocks[0].clone()
                for block in blocks[1:]:
                    function(result, block, out=result)
                layout.wire(tensor).copy_(result.view(tensor.shape))
        return Work(self, handle, outputs, finish)

    # ---- everybody to everybody ----
    @observed_or_now(_core._torch_allreduce)
    def allreduce(self, tensors, opts=dist.ReduceOp.SUM):
        """In place. What DDP gives are its buckets: their memory is adopted."""
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        tensor = single(tensors)
        if type(opts) is c10d.AllreduceOptions:
            opts = opts.reduceOp
        number = hash(opts)
        if (tensor.dtype in layout.NATIVE and number in WORDS and tensor.layout is torch.strided
                and tensor.is_contiguous()):
            if tensor.numel() * 8 > LEAST_BYTES and called_by_backward(sys._getframe()):
                self.adoption.see(tensor)
            return Work(self, weft.all_reduce_(tensor, WORDS[number], self.weft_group, async_op=True), tensors)
        if number in _BITWISE:
            return self._bitwise(tensor, _BITWISE[number], tensors)
        word = self._reduction(opts, tensor)
        if tensor.layout is torch.sparse_coo:
            return self._sparse(tensor, word, tensors)
        data, finish = layout.place(tensor)
        return Work(self, weft.all_reduce_(data, word, self.weft_group, async_op=True), tensors, finish)

    def _sparse(self, tensor, word, outputs):
        """The sum of sparse tensors has the entries of all. Waits: how many there are is known only then."""
        if word != "sum":
            raise self._refused(RuntimeError(f"weft: sparse tensors support sum only, not {word}"))
        own = tensor.detach().coalesce()
        # A row for each entry; their number may differ.
        indices = weft.all_gather(own.indices().t().contiguous(), self.weft_group)
        values = weft.all_gather(layout.dense(own.values()), self.weft_group).view(tensor.dtype)
        with torch.no_grad():
            values = values.view(-1, *own.values().shape[1:])
            tensor.copy_(torch.sparse_coo_tensor(indices.t(), values, tensor.shape).coalesce())
        return Work(self, Done(), outputs)

    @observed
    def allreduce_coalesced(self, tensors, opts=dist.ReduceOp.SUM):
        """Tensors of one type as one call."""
        if len({tensor.dtype for tensor in tensors}) != 1 or hash(getattr(opts, "reduceOp", opts)) in _BITWISE:
            op = getattr(opts, "reduceOp", opts)
            return self._together([ProcessGroupWeft.allreduce.__wrapped__(self, [tensor], op) for tensor in tensors],
                                  tensors)
        word = self._reduction(opts, tensors[0])
        parts = [layout.wire(tensor) for tensor in tensors]
        whole = torch.cat([part.detach().reshape(-1) for part in parts])

        def finish():
            at = 0
            for part in parts:
                part.copy_(whole[at:at + part.numel()].view(part.shape))
                at += part.numel()
        shape = [dim for tensor in tensors for dim in (0, *tensor.shape)][1:]  # 0: between two tensors
        self.weft_group._set_shape(tuple(shape))
        return self._of_several(weft.all_reduce_(whole, word, self.weft_group, async_op=True), tensors, finish)

    def _of_several(self, handle, outputs, finish):
        """A work for whose outputs torch's functional collectives wait one by one. Versions without backends in Python do
        so by the C++ half alone."""
        work = Work(self, handle, outputs, finish)
        work._waits = 1 if self.backend_class is not None else len(outputs)
        return work

    def _together(self, parts, outputs):
        """Several works as one."""
        handles, finishes = [], []
        for part in parts:
            self.works.pop(id(part), None)
            self.issued -= 1
            handles.append(part._handle)
            finishes.append(part._finish)

        def finish():
            for function in finishes:
                if function is not None:
                    function()
        return self._of_several(Several(handles), outputs, finish)

    @observed
    def allgather(self, output_lists, inputs, opts=None):
        """output_lists[0] has a tensor per rank; their sizes may differ."""
        if isinstance(inputs, torch.Tensor):
            output_lists, inputs = [output_lists], [inputs]
        outputs, tensor = single(output_lists), single(inputs)
        self._count(outputs, "output tensors")
        data = layout.dense(tensor)
        lengths = [output.numel() for output in outputs]
        if lengths[self._rank] != data.numel():
            raise self._refused(ValueError(
                f"allgather: this rank gives {data.numel()} elements, and its output tensor has"
                f" {lengths[self._rank]}"))
        longest = max(lengths)
        if min(lengths) == longest:
            whole, finish = layout.room(outputs, data)
            return Work(self, weft.all_gather(data, self.weft_group, out=whole, async_op=True), output_lists, finish)
        own = layout.padded([tensor], longest)
        whole = torch.empty(self._size * longest, dtype=data.dtype)

        def finish():
            for i, output in enumerate(outputs):
                begin = i * longest
                layout.wire(output).copy_(whole[begin:begin + lengths[i]].view(layout.wire(output).shape))
        return Work(self, weft.all_gather(own, self.weft_group, out=whole, async_op=True), output_lists, finish)

    @observed_or_now(_core._torch_allgather)
    def _allgather_base(self, output, tensor, opts=None):
        """All ranks' tensors one behind the other in output."""
        if output.numel() != tensor.numel() * self._size:
            raise self._refused(ValueError(
                f"allgather: the output has {output.numel()} elements, and {self._size} ranks give"
                f" {tensor.numel()} each"))
        data = layout.dense(tensor)
        whole, finish = layout.room([output], data)
        return Work(self, weft.all_gather(data, self.weft_group, out=whole, async_op=True), [output], finish)

    all_gather_single = _allgather_base

    @observed
    def allgather_coalesced(self, output_lists, inputs, opts=None):
        """output_lists[r][i]: where rank r's inputs[i] goes."""
        self._count(output_lists, "lists of output tensors")
        gather = ProcessGroupWeft.allgather.__wrapped__
        return self._together([gather(self, [[outputs[i] for outputs in output_lists]], [tensor])
                               for i, tensor in enumerate(inputs)], output_lists)

    @observed
    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        gather = ProcessGroupWeft._allgather_base.__wrapped__
        return self._together([gather(self, output, tensor) for output, tensor in zip(outputs, inputs)], outputs)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    @observed
    def reduce_scatter(self, outputs, input_lists, opts=dist.ReduceOp.SUM):
        """This rank gets the reduction of everybody's input_lists[0][rank]; sizes may differ between ranks."""
        if isinstance(outputs, torch.Tensor):
            outputs, input_lists = [outputs], [input_lists]
        output, inputs = single(outputs), single(input_lists)
        self._count(inputs, "input tensors")
        lengths = [tensor.numel() for tensor in inputs]
        if lengths[self._rank] != output.numel():
            raise self._refused(ValueError(
                f"reduce_scatter: the output has {output.numel()} elements, and this rank's input tensor"
                f" {lengths[self._rank]}"))
        word = self._reduction(opts, output)
        longest = max(lengths)
        if min(lengths) == longest:
            whole = layout.packed(inputs)
            block, finish = layout.room([output], whole)
        else:
            whole = layout.padded(inputs, longest)
            block = torch.empty(longest, dtype=whole.dtype)

            def finish():
                place = layout.wire(output)
                place.copy_(block[:place.numel()].view(place.shape))
        return Work(self, weft.reduce_scatter(whole, word, self.weft_group, out=block, async_op=True), outputs, finish)

    @observed_or_now(_core._torch_reduce_scatter)
    def _reduce_scatter_base(self, output, tensor, opts=dist.ReduceOp.SUM):
        """This rank gets its block of the reduction of tensor."""
        if tensor.numel() != output.numel() * self._size:
            raise self._refused(ValueError(
                f"reduce_scatter: the input has {tensor.numel()} elements, and {self._size} ranks get"
                f" {output.numel()} each"))
        word = self._reduction(opts, output)
        data = layout.dense(tensor)
        block, finish = layout.room([output], data)
        return Work(self, weft.reduce_scatter(data, word, self.weft_group, out=block, async_op=True), [output], finish)

    reduce_scatter_single = _reduce_scatter_base

    @observed
    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=dist.ReduceOp.SUM):
        scatter = ProcessGroupWeft._reduce_scatter_base.__wrapped__
        return self._together([scatter(self, output, tensor, opts) for output, tensor in zip(outputs, inputs)], outputs)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    @observed
    def alltoall_base(self, output, tensor, output_split_sizes=(), input_split_sizes=(), opts=None):
        """Blocks of the first dimension: equal ones, or of the numbers of rows given."""
        data = layout.dense(tensor)
        if not output_split_sizes and not input_split_sizes:
            for what, size in (("input", tensor.shape[:1]), ("output", output.shape[:1])):
                if sum(size) % self._size != 0:
                    raise self._refused(RuntimeError(
                        f"alltoall: the {what}'s first dimension is {sum(size)}, which {self._size}"
                        " ranks cannot share evenly"))
            if output.numel() == tensor.numel():
                whole, finish = layout.room([output], data)
                return Work(self, weft.all_to_all(data, self.weft_group, out=whole, async_op=True), [output],
                            finish)
        sends = self._splits(tensor, input_split_sizes, "input")
        receives = self._splits(output, output_split_sizes, "output")
        whole, finish = layout.room([output], data)
        return self._exchange(data.view(-1), sends, whole, receives, [output], finish)

    all_to_all_single = alltoall_base

    def _splits(self, tensor, rows, what):
        """Elements for each rank."""
        if not rows:
            return [tensor.numel() // self._size] * self._size
        if len(rows) != self._size:
            raise self._refused(RuntimeError(f"alltoall: {len(rows)} {what} splits for {self._size} ranks"))
        if sum(rows) != tensor.shape[0] or min(rows) < 0:
            raise self._refused(RuntimeError(
                f"alltoall: the {what} splits {list(rows)} are not its {tensor.shape[0]} rows"))
        row = layout.wire(tensor).numel() // max(1, tensor.shape[0])
        return [count * row for count in rows]

    def _exchange(self, data, sends, whole, receives, outputs, finish):
        handle = weft.all_to_all(data, self.weft_group, out=whole, send_counts=sends, recv_counts=receives,
                                 async_op=True)
        return Work(self, handle, outputs, finish)

    @observed
    def alltoall(self, outputs, inputs, opts=None):
        """inputs[r] goes to rank r, outputs[r] comes from it; any sizes."""
        self._count(inputs, "input tensors")
        self._count(outputs, "output tensors")
        data = layout.packed(inputs)
        whole, finish = layout.room(outputs, data)
        return self._exchange(data, [layout.wire(tensor).numel() for tensor in inputs], whole,
                              [layout.wire(tensor).numel() for tensor in outputs], outputs, finish)

    @observed
    def barrier(self, opts=None):
        return Work(self, weft.barrier(self.weft_group, async_op=True), [])

    # ---- with a root ----
    @observed_or_now(_core._torch_broadcast)
    def broadcast(self, tensors, opts=0):
        """In place, from the root."""
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        data, finish = layout.place(single(tensors))
        root = _root(opts)
        return Work(self, weft.broadcast(data, root, self.weft_group, async_op=True), tensors, finish)

    @observed
    def reduce(self, tensors, opts=0, op=None):
        """The root's tensor becomes the result; others keep theirs."""
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        tensor, root = single(tensors), _root(opts)
        op = op if op is not None else getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        here = root == self._rank
        if hash(op) in _BITWISE:
            return self._bitwise(tensor, _BITWISE[hash(op)], tensors, here)
        word = self._reduction(op, tensor)
        data, finish = layout.place(tensor)
        handle = weft.reduce(data, root, word, self.weft_group, out=data if here else None, async_op=True)
        return Work(self, handle, tensors, finish if here else None)

    @observed
    def gather(self, output_lists, inputs, opts=0):
        """The root's output_lists[0] has a tensor per rank; it is empty elsewhere."""
        if isinstance(inputs, torch.Tensor):
            output_lists, inputs = [output_lists] if output_lists else [], [inputs]
        root = _root(opts)
        data = layout.dense(single(inputs))
        whole = finish = None
        if root == self._rank:
            outputs = single(output_lists)
            self._count(outputs, "output tensors")
            for output in outputs:
                if layout.wire(output).numel() != data.numel():
                    raise self._refused(ValueError(
                        f"gather: an output tensor has {output.numel()} elements, and every rank gives"
                        f" {inputs[0].numel()}"))
            whole, finish = layout.room(outputs, data)
        elif output_lists and output_lists[0]:
            raise self._refused(ValueError("gather: only the root has output tensors"))
        return Work(self, weft.gather(data, root, self.weft_group, out=whole, async_op=True), output_lists, finish)

    @observed
    def gather_single(self, output, tensor, opts=0):
        """All ranks' tensors one behind the other in the root's output; others' is not looked at."""
        root = _root(opts)
        data = layout.dense(tensor)
        whole = finish = None
        if root == self._rank:
            if output.numel() != tensor.numel() * self._size:
                raise self._refused(ValueError(
                    f"gather: the output has {output.numel()} elements, and {self._size} ranks give"
                    f" {tensor.numel()} each"))
            whole, finish = layout.room([output], data)
        return Work(self, weft.gather(data, root, self.weft_group, out=whole, async_op=True), [output], finish)

    gather_into_tensor = gather_single

    @observed
    def scatter(self, outputs, input_lists, opts=0):
        """The root's input_lists[0] has a tensor for each rank; it is empty elsewhere."""
        if isinstance(outputs, torch.Tensor):
            outputs, input_lists = [outputs], [input_lists] if input_lists else []
        root = _root(opts)
        output = single(outputs)
        whole = None
        if root == self._rank:
            inputs = single(input_lists)
            self._count(inputs, "input tensors")
            for tensor in inputs:
                if tensor.numel() != output.numel():
                    raise self._refused(ValueError(
                        f"scatter: an input tensor has {tensor.numel()} elements, and every rank gets"
                        f" {output.numel()}"))
            whole = layout.packed(inputs)
        elif input_lists and input_lists[0]:
            raise self._refused(ValueError("scatter: only the root has input tensors"))
        block, finish = layout.room([output], layout.wire(output))
        return Work(self, weft.scatter(whole, root, self.weft_group, out=block, async_op=True), outputs, finish)


ProcessGroupWeft.backend_class = backend_class(ProcessGroupWeft)


def _root(opts):
    return opts if isinstance(opts, int) else opts.rootRank
