#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM's tensor parallelism over Weft: a device communicator whose collectives are torch.ops.weft.*.

    weft run -n 2 -- python3 vllm_communicator.py       a layer divided among ranks, by such a communicator

vLLM asks its platform for the communicator's class: an out-of-tree platform plugin returns
"vllm_communicator.WeftCommunicator" from get_device_communicator_cls. The operators are traceable, so compiled models
keep them in their graphs.
"""
import torch
import torch.distributed as dist
import weft.torch
from weft.torch import operators

try:
    from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase
except ImportError:
    class DeviceCommunicatorBase:
        """What WeftCommunicator uses of vLLM's class."""

        def __init__(self, cpu_group, device=None, device_group=None, unique_name=""):
            self.device, self.cpu_group, self.device_group = device or torch.device("cpu"), cpu_group, device_group
            self.unique_name = unique_name
            self.world_size, self.rank_in_group = dist.get_world_size(cpu_group), dist.get_rank(cpu_group)
            world = range(dist.get_world_size())
            self.ranks = list(world) if cpu_group is dist.group.WORLD else dist.get_process_group_ranks(cpu_group)


class WeftCommunicator(DeviceCommunicatorBase):
    """Collectives of one of vLLM's groups. Groups of another backend, such as Gloo, get one of Weft beside them."""

    def __init__(self, cpu_group, device=None, device_group=None, unique_name=""):
        super().__init__(cpu_group, device, device_group, unique_name)
        group = device_group if device_group is not None else cpu_group
        try:
            self.group_name = operators.group_name(group)
        except TypeError:
            self.own_group = dist.new_group(self.ranks, backend="weft", use_local_synchronization=True)
            self.group_name = operators.group_name(self.own_group)

    def all_reduce(self, input_):
        if not input_.is_contiguous():
            return torch.ops.weft.all_reduce(input_, "sum", self.group_name)
        torch.ops.weft.all_reduce_(input_, "sum", self.group_name)
        return input_

    def all_gather(self, input_, dim=-1):
        """The ranks' tensors, one behind the other in dimension dim."""
        rows = torch.ops.weft.all_gather(input_.movedim(dim, 0), self.world_size, self.group_name)
        return rows.movedim(0, dim).contiguous()

    def reduce_scatter(self, input_, dim=-1):
        """This rank's part of the sum, divided in dimension dim."""
        rows = torch.ops.weft.reduce_scatter(input_.movedim(dim, 0), "sum", self.world_size, self.group_name)
        return rows.movedim(0, dim).contiguous()

    def gather(self, input_, dst=0, dim=-1):
        """dst (a rank of the group) gets what all_gather gives."""
        everything = self.all_gather(input_, dim)
        return everything if self.rank_in_group == dst else None


def main():
    if not dist.is_initialized():
        dist.init_process_group("weft")
    group = dist.group.WORLD
    tp = WeftCommunicator(group, device_group=group, unique_name="tp:0")
    torch.manual_seed(0)
    x, up, down = torch.randn(4, 64), torch.randn(64, 32 * tp.world_size), torch.randn(32 * tp.world_size, 64)
    columns = slice(32 * tp.rank_in_group, 32 * (tp.rank_in_group + 1))

    with torch.inference_mode():
        part = torch.relu(x @ up[:, columns])
        y = tp.all_reduce(part @ down[columns])             # rows of the second matrix
        hidden = tp.all_gather(part)                        # columns of the first
        whole = torch.relu(x @ up)
        torch.testing.assert_close(hidden, whole)
        torch.testing.assert_close(y, whole @ down, rtol=1e-3, atol=1e-3)
    if tp.rank_in_group == 0:
        print(f"{tp.world_size} ranks agree with one: largest difference {(y - whole @ down).abs().max():.1e}")


if __name__ == "__main__":
    main()
