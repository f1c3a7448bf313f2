# SPDX-License-Identifier: Apache-2.0
"""What of weft.Session is not a step: its tensors by name, files, figures (include/weft/session.h, checkpoint.h)."""
from collections.abc import Mapping

from weft import _core
from weft._lazy import library, part_of
from weft.errors import WeftError, WeftNotFoundError
from weft.plans import _bindings


@Mapping.register
class Tensors:
    """What a session has, by name, like a dict whose names are fixed."""

    __slots__ = ("_session", "_kind")

    def __init__(self, session, kind):
        self._session, self._kind = session, kind

    def _table(self):
        """{name: (index, weft_tensor_desc_t)}, made once per session; an error if that was closed."""
        tables, kind = self._session._tables, self._kind

        def table(session):
            if kind not in tables:
                tables[kind] = _KINDS[kind][0](session, self._session.plan)
            return tables[kind]

        return _core._with(self._session, table)

    def _find(self, name):
        found = self._table().get(name) if isinstance(name, str) else None
        if found is None:
            raise KeyError(name)
        return found

    def __getitem__(self, name):
        index, desc = self._find(name)
        return _KINDS[self._kind][1](self._session, name, index, desc)

    def __setitem__(self, name, value):
        put = _KINDS[self._kind][2]
        if put is None:
            raise TypeError(f"a session's {self._kind} cannot be set")
        put(self._session, name, *self._find(name), value)

    def __delitem__(self, name):
        raise TypeError(f"a session's {self._kind} cannot be deleted")

    def __len__(self):
        return len(self._table())

    def __iter__(self):
        return iter(self.keys())

    def __contains__(self, name):
        return isinstance(name, str) and name in self._table()

    def __repr__(self):
        return f"<weft.Session {self._kind}: {self.keys()!r}>"

    def keys(self):
        """A list of all names, in the session's order."""
        return list(self._table())

    def values(self):
        """A list of all values."""
        return [self[name] for name in self.keys()]

    def items(self):
        """A list of all (name, value)."""
        return [(name, self[name]) for name in self.keys()]

    def get(self, key, default=None):
        """The value called key, or default."""
        return self[key] if key in self else default

    def update(self, mapping, /):
        """Sets all of a mapping's values. KeyError, before anything is set, for a name that there is not."""
        items = list(mapping.items())
        for name, _ in items:
            self._find(name)
        for name, value in items:
            self[name] = value


# ---- kinds of tensors: their table, a value, a new value ----
def _listed(count, info, has=lambda session, index: True):
    """The table of what info(session, index, ..) tells of each."""
    def table(session, plan):
        found, name = {}, library.ctypes.c_char_p()
        for index in range(getattr(library, count)(session)):
            desc = library.weft_tensor_desc_t()
            getattr(library, info)(session, index, library.ctypes.byref(name), library.ctypes.byref(desc))
            if has(session, index):
                found[name.value.decode()] = index, desc
        return found
    return table


def _has_gradient(session, index):
    """Running statistics and frozen parameters have none."""
    try:
        library.weft_session_get_gradient(session, index, None, 0)
    except WeftNotFoundError:
        return False
    except WeftError:
        pass  # it has one, which cannot be read now
    return True


def _bound(*roles):
    return lambda session, plan: {binding.name.decode(): (0, binding.desc) for binding in _bindings(plan)
                                  if binding.role in roles}


def _size_bytes(desc):
    return library.weft_tensor_elem_count(library.ctypes.byref(desc)) * library.weft_dtype_size_bytes(desc.dtype)


def _copy(function, *more):
    """What function(session, index or name, memory, bytes, *more) writes, as an array."""
    def get(session, name, index, desc):
        array, address = _core._new(library.ctypes.addressof(desc))
        _core._with(session, getattr(library, function), name.encode() if more else index, address, _size_bytes(desc),
                    *more)
        return array
    return get


def _scalar(session, name, index, desc):
    out = library.ctypes.c_double()
    _core._with(session, library.weft_session_get_scalar, name.encode(), library.ctypes.byref(out))
    return out.value


def _replace(function, what):
    def put(session, name, index, desc, value):
        address, kept = _core._tensor(value, what, name, library.ctypes.addressof(desc))
        _core._with(session, getattr(library, function), index, address, _size_bytes(desc))
    return put


def _feed(session, name, index, desc, value):
    session.feed(**{name: value})


_PARAMS = "weft_session_param_count", "weft_session_param_info"
_KINDS = {
    "params": (_listed(*_PARAMS), _copy("weft_session_get_param"), _replace("weft_session_set_param", "parameter")),
    "gradients": (_listed(*_PARAMS, _has_gradient), _copy("weft_session_get_gradient"), None),
    "state": (_listed("weft_session_state_count", "weft_session_state_info"), _copy("weft_session_get_state"),
              _replace("weft_session_set_state", "state")),
    "inputs": (_bound(1, 2), lambda session, name, index, desc: session._view(name), _feed),
    "outputs": (_bound(4, 5, 6), _copy("weft_session_get_output", None), None),
    "scalars": (_bound(3), _scalar, _feed),
}


def _tensors(kind, doc):
    return property(lambda self: Tensors(self, kind), doc=doc)


@part_of(_core.Session)
class Session:
    """A plan (a Plan, or the path of one) bound to a context (default: weft.init()'s), to be fed, stepped and read.
    Collective: all ranks come here with the same plan, agree on it, and rank 0's weights reach everybody.
    All memory of the steps is taken here. trace: keep a timeline of the last steps.

    One call of a session runs at a time; other threads' calls wait. Leaves its memory with close(), at the end of
    a `with` block, or with its last reference; arrays of inputs keep it.

    Raises WeftMismatchError naming both digests, WeftNotFoundError naming a missing kernel, WeftArgumentError when
    the plan is for another number of ranks, WeftNoMemoryError, WeftStateError before weft.init().
    """

    params = _tensors("params", "Trained weights by name: a copy when read, replaced when set (the same on all ranks). "
                      "Collective only on a\ndecoupled plan.")
    gradients = _tensors("gradients", "Gradients that the last step used, by parameter, reduced over ranks, before "
                         "clipping; read only.")
    state = _tensors("state", "Optimizer state by '<parameter>.<slot>' ('.momentum'; '.moment1', '.moment2'), whole "
                     "tensors. Where a plan\nshards its optimizer all ranks read it together.")
    inputs = _tensors("inputs", "Inputs' own memory by name, as arrays: what is written there between steps is what "
                      "step() without arguments\nruns on, without a copy. The arrays keep the session's memory.")
    outputs = _tensors("outputs", "Copies of what the last run put out, by name; read only.")
    scalars = _tensors("scalars", "Scalar inputs such as 'lr' by name, floats; set for the steps to come. 'rank' and "
                       "'step' are set by themselves.")

    @property
    def micro_count(self):
        """Micro-batches run since the last step: 0 to accumulate - 1. Then the next call is step()."""
        return _core._with(self, library.weft_session_micro_count)

    def save(self, path, /):
        """Writes the model for evaluation with the trained weights, as ONNX: all or nothing. Rank 0 writes; the call
        returns at once on others, which may leave it out (unless the plan is decoupled: then all call it).
        Raises WeftSystemError, WeftNotFoundError (no such directory), WeftUnsupportedError (above 2 GiB)."""
        path, params = library.path(path, "path"), self.params._table()
        tensors, kept = (library.weft_named_tensor_t * len(params))(), []

        def write(session):  # all ranks read the weights, of which each may have a shard
            for tensor, (name, (index, desc)) in zip(tensors, params.items()):
                kept.append((library.ctypes.c_char * _size_bytes(desc))())
                tensor.name, tensor.desc = name.encode(), desc
                tensor.desc.data = library.ctypes.addressof(kept[-1])
                library.weft_session_get_param(session, index, kept[-1], len(kept[-1]))
            if self._rank == 0:
                _core._with(self.plan, library.weft_model_save, tensors, len(params), path)

        _core._with(self, write)

    def save_checkpoint(self, path, *, seed=0, epoch=0, sample=0, sample_count=0, lr=0.0):
        """Writes weights, optimizer state, scalars and the number of steps, as safetensors, on rank 0: path holds the
        old checkpoint or the new one, complete. Can be loaded by runs with another number of ranks. Collective.

        seed of the order of data; epoch: passes that are complete; sample: samples of the next one that all ranks have
        consumed; sample_count of a pass; lr that a schedule started from: stored for whoever feeds the data.
        Raises on all ranks what rank 0 met: WeftSystemError, WeftNotFoundError; WeftStateError inside a step,
        WeftUnsupportedError for plans that do not train.
        """
        numbers = dict(seed=seed, epoch=epoch, sample=sample, sample_count=sample_count)
        info = library.weft_checkpoint_info_t(lr=library.number(lr, "lr"), **{
            name: library.integer(0 if value is None else value, name, library.FOREVER) for name, value in numbers.items()})
        _core._with(self, library.weft_session_save_checkpoint, library.path(path, "path"), library.ctypes.byref(info))

    def load_checkpoint(self, path, /):
        """Takes weights, optimizer state, scalars and the number of steps from path, which every rank reads.
        Collective. On an error the session is what it was. Returns a dict: seed, epoch, sample, sample_count, lr, step,
        global_batch, world, optimizer, tensors.
        Raises WeftFormatError (what is wrong, or which tensor does not fit), WeftNotFoundError, WeftMismatchError."""
        path = library.path(path, "path")
        info = library.filled(self, lambda session, out: library.weft_session_load_checkpoint(session, path, out),
                              library.weft_checkpoint_info_t)
        return library.facts(info, "seed epoch sample sample_count lr step global_batch world=world_size optimizer"
                                   " tensors=tensor_count")

    def write_trace(self, path, /):
        """Writes the timeline of all ranks as Chrome trace JSON, on rank 0. Collective; needs Session(trace=True)."""
        _core._with(self, library.weft_session_write_trace, library.path(path, "path"))

    def write_profile(self, path, /):
        """Writes measured times for compile(profile=), on rank 0. Collective; needs Session(trace=True)."""
        _core._with(self, library.weft_session_write_profile, library.path(path, "path"))

    def stats(self):
        """What steps came to so far, a dict: steps, step_ms_p50, step_ms_mean, compute_ms_p50, comm_ms_p50,
        exposed_comm_ms_p50, overlap_fraction (NaN when communication is inline), inline_progress, arena_bytes,
        scratch_bytes, fusion_copied_bytes, kernels. Of this rank."""
        stats = library.filled(self, library.weft_session_get_stats, library.weft_session_stats_t)
        return library.facts(stats, "steps step_ms_p50 step_ms_mean compute_ms_p50 comm_ms_p50 exposed_comm_ms_p50"
                                    " overlap_fraction inline_progress? arena_bytes scratch_bytes fusion_copied_bytes"
                                    " timeline_first_step timeline_last_step kernels")

    def flush(self):
        """Brings weights that other ranks have updated to this one, on a decoupled plan. Collective. Calls that read
        weights do it by themselves."""
        _core._with(self, library.weft_session_flush)

    def param_digest(self):
        """SHA-256 over all weights in the order of their names, hex: equal where weights are. Collective only on a
        decoupled plan."""
        text = library.ctypes.create_string_buffer(65)
        _core._with(self, library.weft_session_param_digest, text)
        return text.value.decode()

    def set_steps_done(self, steps, /):
        """Says that steps were done before, for the scalar 'step'. The same on all ranks."""
        _core._with(self, library.weft_session_set_steps_done, library.integer(steps, "steps", library.FOREVER))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        return f"<weft.Session of {self.plan!r}{', closed' if self._closed else ''}>"
