# SPDX-License-Identifier: Apache-2.0
"""Making groups, and what they are set to (include/weft/group.h)."""
from weft import _core
from weft._lazy import library, part_of


def new_group(ranks, group=None):
    """The Group of these ranks of group (None: the world), numbered in this order; None on
    ranks that are not in it (who must not pass that on as group=, where it is the world).

    Collective over group: all its ranks pass the same list. Raises ValueError (a rank
    that there is not, or twice), WeftMismatchError when lists differ, WeftNoMemoryError
    when too many groups are alive."""
    parent = _core._group_of(group)
    ranks = library.integer_list(ranks, "ranks", parent.size - 1)
    if not ranks:
        raise ValueError("ranks: a group needs at least one rank")
    for i, rank in enumerate(ranks[:parent.size + 1]):  # more than size are not without one twice
        if rank in ranks[:i]:
            raise ValueError(f"ranks: duplicate rank {rank}")
    return _made(parent, lambda address, out: library.weft_group_create_ranks(address, _array(ranks), len(ranks), out))


def _array(numbers):
    return (library.ctypes.c_uint32 * len(numbers))(*numbers)


def _made(parent, function):
    """The Group that function(address of parent, &address of the group) makes; None without this rank."""
    out = library.ctypes.c_void_p()
    _core._with(parent, function, library.ctypes.byref(out))
    return None if out.value is None else _core._group(parent, out.value)


@part_of(_core.Group)
class Group:
    """An ordered set of ranks that collectives run over; made by new_group, split or duplicate.

    All ranks of a group issue its calls in the same order. Threads that issue calls at the same time use groups
    of their own (duplicate), else their order, and so who meets whom, is up to chance."""

    def duplicate(self):
        """A Group of the same ranks with calls of its own, for another thread. Collective over
        the group."""
        return _made(self, library.weft_group_duplicate)

    def split(self, color, key=None, staging_bytes=0):
        """One Group per color, of the ranks that gave it, ordered by key (None: the rank) and
        then by rank; color None: no group for this rank, which gets None. staging_bytes: of
        buffers for arrays that peers do not reach (0: WEFT_STAGING_BYTES). Collective over
        the group."""
        params = library.weft_group_params_t(
            color=_NO_COLOR if color is None else library.integer(color, "color", 2**31 - 1),
            key=self.rank if key is None else library.integer(key, "key", 2**63 - 1, -2**63),
            staging_bytes=library.integer(staging_bytes, "staging_bytes", 2**63 - 1))

        def create(parent, out):
            params.parent = parent
            return library.weft_group_create(library.weft_group_context(parent), library.ctypes.byref(params), out)

        return _made(self, create)

    def set_order(self, order, block_sizes=None):
        """In which order reductions combine ranks, and so their bits, from the next call on:
        'tree' (the default), 'blocks' (of block_sizes consecutive ranks, then over blocks),
        'any' (whatever is fastest; bits then depend on the algorithm). All ranks set it
        alike, between the same calls."""
        if not isinstance(order, str):
            raise TypeError(f"order must be a str, not {type(order)}")
        if order not in _ORDERS:
            raise ValueError(f"unknown order {order!r}: expected 'tree', 'blocks' or 'any'")
        sizes = [] if block_sizes is None else library.integer_list(block_sizes, "block_sizes", self.size)
        _core._with(self, library.weft_group_set_order, _ORDERS.index(order),
                    None if block_sizes is None else _array(sizes), len(sizes))

    def set_algorithm(self, op, name, /):
        """Carries out op ('all_reduce', ..) by the algorithm of that name (`weft algos` lists
        them) from the next call on; None: chosen by cost. All ranks set it alike. Raises
        WeftArgumentError when there is none such."""
        op, name = library.text(op, "op").decode(), None if name is None else library.text(name, "name")
        if not _OPS:
            for number in range(1, 14):
                words = library.weft_collective_name(number).decode()
                _OPS["".join("_" * (i > 0 and c.isupper()) + c.lower() for i, c in enumerate(words))] = number
        if op not in _OPS:
            raise ValueError(f"op: unknown collective '{op}': expected a name such as 'all_reduce'")
        _core._with(self, library.weft_group_set_algorithm, _OPS[op], name)

    def check(self):
        """Raises the error that broke the group, which every call returns from then on; returns
        None when it is well."""
        _core._with(self, library.weft_group_status)

    @property
    def ranks(self):
        """Their numbers in the world, a list."""
        return _core._with(self, lambda group: [library.weft_group_world_rank(group, rank)
                                                for rank in range(self.size)])

    @property
    def last_algorithm(self):
        """The algorithm of the last call here; 'none' before the first."""
        return _core._with(self, library.weft_group_last_algorithm).decode()

    @property
    def last_path(self):
        """How the last call's data went: 'posting', 'direct', 'attached', 'staged', 'schedule', 'none'."""
        return _core._with(self, library.weft_group_last_path).decode()

    def __repr__(self):
        return f"<weft.Group rank {self.rank} of {self.size}{', destroyed' if self._destroyed else ''}>"


_NO_COLOR = 2**32 - 1  # WEFT_COLOR_NONE
_ORDERS = "tree", "blocks", "any"  # by weft_order_t
_OPS = {}  # "all_reduce" to weft_collective_t
