# SPDX-License-Identifier: Apache-2.0
"""Backend "weft" for torch.distributed.

    import torch, torch.distributed as dist
    import weft.torch                                   # registers it

    dist.init_process_group("weft")                     # under torchrun, weft run, mpirun, mpiexec, or alone
    model = torch.nn.parallel.DistributedDataParallel(model)
    model.register_comm_hook(None, weft.torch.ddp_hook) # whole buckets, in place, averaged, in memory that peers reach

All collectives of torch.distributed on CPU tensors, sub-groups, asynchronous works, object collectives, batches of
sends and receives. What is particular (tags, wildcards, bitwise reductions) is in the README beside this file.
"""
from weft.torch import operators
from weft.torch.ddp import Buckets, ddp_hook
from weft.torch.meeting import install_rendezvous
from weft.torch.memory import adopt, empty, release
from weft.torch.process_group import ProcessGroupWeft, group_of, install_backend, shrink
from weft.torch.works import Work

__all__ = ["Buckets", "ProcessGroupWeft", "Work", "adopt", "ddp_hook", "empty", "group_of", "operators", "release",
           "shrink"]

install_backend()
install_rendezvous()
