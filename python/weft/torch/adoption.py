# SPDX-License-Identifier: Apache-2.0
"""Memory that ranks of a host reduce in place: DDP's buckets by themselves, other tensors by adopt."""
import torch
import weft

# Smaller ones travel beside the signal, or in one copy that costs less than looking them up here.
LEAST_BYTES = 16384
# What was seen once only is forgotten after so many calls: DDP throws the buckets of its first iteration away.
ONCE = 64
# What was adopted and not seen for so many calls is given back when something else is adopted: its model is gone.
LONG = 4096


class Adoption:
    """Buckets of a process group, by address.

    Adopting is collective, so all ranks have to decide alike: by calls that were made, which are the same on all, and
    by whether memory was seen before, which is, too, since what is remembered is held, and no other memory can have
    its address.
    """

    def __init__(self, context):
        self._context = context
        self._seen = {}  # address -> [tensor, number of the latest call, whether it is adopted]
        self._calls = 0
        self._asked_for = {}  # address of a storage -> a tensor on it: by take
        self.on = True

    def see(self, tensor):
        """tensor is about to be reduced; the second time its memory is adopted. Collective; nobody uses it now."""
        if not self.on or tensor.numel() * tensor.element_size() < LEAST_BYTES:
            return
        self._calls += 1
        entry = self._seen.get(tensor.data_ptr())
        if entry is None and tensor.data_ptr() in self._asked_for:
            return
        if entry is None:
            self._forget()
            self._seen[tensor.data_ptr()] = [tensor.detach(), self._calls, False]
            return
        entry[1] = self._calls
        if not entry[2] and entry[0].numel() == tensor.numel():
            self._give_back(LONG)
            try:
                weft.register(entry[0], self._context)
                entry[2] = True
            except (weft.WeftNoMemoryError, weft.WeftUnsupportedError):  # on all ranks
                self.on = False

    def take(self, storages):
        """Adopts what tensors that span storages have, but for small ones. Collective: all ranks pass as many."""
        size, n = weft.get_world_size(self._context.world), len(storages)
        bytes_of = torch.tensor([storage.numel() for storage in storages])
        known = torch.tensor([int(storage.data_ptr() in self._asked_for) for storage in storages])
        weft.all_reduce_(bytes_of, "max", self._context.world)
        weft.all_reduce_(known, "sum", self._context.world)
        for i, storage in enumerate(storages):
            if 0 < known[i] < size:
                raise ValueError(f"adopt: storage {i} of {n} is adopted on {known[i]} of {size} ranks")
            if known[i] == 0 and bytes_of[i] >= LEAST_BYTES:
                weft.register(storage, self._context)
                self._asked_for[storage.data_ptr()] = storage

    def release(self, storages):
        """Not collective."""
        for storage in storages:
            if self._asked_for.pop(storage.data_ptr(), None) is not None:
                weft.unregister(storage, self._context)

    def _forget(self):
        for address, (_, call, adopted) in list(self._seen.items()):
            if not adopted and self._calls - call > ONCE:
                del self._seen[address]

    def _give_back(self, age):
        for address, (tensor, call, adopted) in list(self._seen.items()):
            if adopted and self._calls - call >= age:
                weft.unregister(tensor, self._context)
                del self._seen[address]

    def close(self):
        """Gives everything back, waiting for nobody. All ranks do this between the same calls, or never call again."""
        self.on = False
        if not self._context.closed:
            self._give_back(0)
            self.release(list(self._asked_for.values()))
        self._seen.clear()
