# SPDX-License-Identifier: Apache-2.0
"""Parameters in shards whose collectives are in the graphs of torch.compile, unlike those of torch's fully_shard.

    import weft.torch.inductor
    weft.torch.inductor.install()
    model = torch.compile(weft.torch.inductor.fully_shard(model))
    optimizer = torch.optim.AdamW(model.parameters())   # over shards

Each parameter becomes a DTensor with a shard of its rows, and the attribute of the module a property that gathers them.
The gradient of a gather is a reduce-scatter.
"""
from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def _whole(shard):
    from torch.distributed.tensor import Partial, Replicate
    return shard.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial("avg")])


@functools.cache
def _class_of(former, names, reshard_after_forward):
    """A class whose attributes `names` are whole parameters."""
    def attribute(name):
        def get(self):
            shard = self._parameters[name]
            if reshard_after_forward and torch.compiler.is_compiling() and torch.is_grad_enabled():
                return checkpoint(_whole, shard, use_reentrant=False)   # gathered once more by the backward pass
            return _whole(shard)
        return property(get)
    return type(f"Sharded{former.__name__}", (former,), {name: attribute(name) for name in names})


def _check(module, mesh):
    from torch.distributed.tensor import DTensor
    if mesh.ndim != 1:
        raise ValueError(f"fully_shard: parameter 'mesh': {mesh.ndim} dimensions: expected 1")
    for name, parameter in module.named_parameters():
        if isinstance(parameter, DTensor):
            raise ValueError(f"fully_shard: parameter '{name}' of the module is a DTensor already")
        if parameter.ndim == 0:
            raise ValueError(f"fully_shard: parameter '{name}' of the module has no rows: shape ()")
    for name, part in module.named_modules():
        if isinstance(part, nn.RNNBase):
            raise ValueError(f"fully_shard: module '{name}' is not supported: {type(part).__name__} keeps its parameters "
                             "in a list of its own")


def fully_shard(module: torch.nn.Module, mesh: Any = None, *, reshard_after_forward: bool = True) -> torch.nn.Module:
    """Gives each rank a shard of the rows of every parameter of module, and returns module.

    mesh: a DeviceMesh of one dimension; default: all ranks. reshard_after_forward: the compiled backward pass gathers the
    parameters again, so that no whole ones are kept in between. Ranks begin with the values of the first rank.
    parameters() and state_dict() have DTensors as with torch's fully_shard; the attributes of modules, such as
    `linear.weight`, are gathered whenever they are read, which all ranks do together. Call it once, for the whole model,
    before the optimizer is made. Raises ValueError for scalars, DTensors, and modules like LSTM.
    """
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
    mesh = mesh if mesh is not None else init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    _check(module, mesh)
    shards = {}                                     # parameters may be used by several modules
    for part in module.modules():
        own = {name: parameter for name, parameter in part._parameters.items() if parameter is not None}
        for name, parameter in own.items():
            if parameter not in shards:
                shards[parameter] = nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)]),
                                                 parameter.requires_grad)
            part._parameters[name] = shards[parameter]
        if own:
            part.__class__ = _class_of(type(part), tuple(own), reshard_after_forward)
    return module
