# SPDX-License-Identifier: Apache-2.0
"""weft.Session: steps of a plan, its tensors by name, files, figures (include/weft/session.h, checkpoint.h)."""
import os
import sys
from collections.abc import Mapping
from functools import partial
from weakref import WeakValueDictionary

from weft import _core
from weft._lazy import library
from weft.errors import WeftError, WeftNotFoundError, WeftStateError, WeftUnsupportedError
from weft.plans import Plan, _bindings


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
                tables[kind] = _KINDS[kind][0](session, self._session)
            return tables[kind]

        return self._session._call(table)

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
    def table(session, holder):
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


def _bound(kind):
    return lambda session, holder: {name: (0, bound.desc) for name, bound in getattr(holder, kind).items()}


def _size_bytes(desc):
    return library.weft_tensor_elem_count(library.ctypes.byref(desc)) * library.weft_dtype_size_bytes(desc.dtype)


def _copy(function, *more):
    """What function(session, index or name, memory, bytes, *more) writes, as an array."""
    def get(session, name, index, desc):
        array, address = _core._new(library.ctypes.addressof(desc))
        session._call(getattr(library, function), name.encode() if more else index, address, _size_bytes(desc),
                    *more)
        return array
    return get


def _scalar(session, name, index, desc):
    out = library.ctypes.c_double()
    session._call(library.weft_session_get_scalar, name.encode(), library.ctypes.byref(out))
    return out.value


def _replace(function, what):
    def put(session, name, index, desc, value):
        address, dtype, shape, kept = _core._tensor(value, name)
        if dtype != desc.dtype:
            raise _wrong_type(what, name, desc.dtype, dtype)
        if shape != _shape(desc):
            raise _wrong_shape(what, name, _shape(desc), shape)
        session._call(getattr(library, function), index, address, _size_bytes(desc))
    return put


def _feed(session, name, index, desc, value):
    session.feed(**{name: value})


_PARAMS = "weft_session_param_count", "weft_session_param_info"
_KINDS = {
    "params": (_listed(*_PARAMS), _copy("weft_session_get_param"), _replace("weft_session_set_param", "parameter")),
    "gradients": (_listed(*_PARAMS, _has_gradient), _copy("weft_session_get_gradient"), None),
    "state": (_listed("weft_session_state_count", "weft_session_state_info"), _copy("weft_session_get_state"),
              _replace("weft_session_set_state", "state")),
    "inputs": (_bound("_inputs"), lambda session, name, index, desc: session._view(name), _feed),
    "outputs": (_bound("_outputs"), _copy("weft_session_get_output", None), None),
    "scalars": (_bound("_scalars"), _scalar, _feed),
}


def _tensors(kind, doc):
    return property(lambda self: Tensors(self, kind), doc=doc)


class _Bound:
    """An input, output or scalar of the plan; memory: of an input that the host reaches."""
    __slots__ = "name", "key", "role", "desc", "dtype", "shape", "size_bytes", "memory"

    def __init__(self, binding):
        self.name, self.key, self.role, self.desc = binding.name.decode(), binding.name, binding.role, binding.desc
        self.dtype, self.shape = self.desc.dtype, _shape(self.desc)
        self.size_bytes, self.memory = _size_bytes(self.desc), None


class _Views:
    """What arrays over inputs' memory keep: their session, where that is closed or left also."""
    __slots__ = "handle", "end", "process", "__weakref__"

    def __init__(self, handle):
        self.handle, self.end, self.process = handle, None, os.getpid()

    def __del__(self, getpid=os.getpid):
        if self.end is not None and self.process == getpid():  # a forked child has not inherited the memory
            self.end()


class Session:
    """A plan (a Plan, or the path of one) bound to a context (default: weft.init()'s), to be fed, stepped and read.
    Collective: all ranks come here with the same plan, agree on it, and rank 0's weights reach everybody.
    All memory of the steps is taken here. trace: keep a timeline of the last steps.

    One call of a session runs at a time; other threads' calls wait. Leaves its memory with close(), at the end of
    a `with` block, or with its last reference; arrays of inputs keep it.

    Raises WeftMismatchError naming both digests, WeftNotFoundError naming a missing kernel, WeftArgumentError when
    the plan is for another number of ranks, WeftNoMemoryError, WeftStateError before weft.init().
    """

    __slots__ = ("_plan", "_handle", "_inputs", "_outputs", "_scalars", "_loss", "_logits", "_trains", "_accumulate",
                 "_rank", "_tables", "_views", "__weakref__")

    def __init__(self, plan, context=None, *, trace=False):
        if isinstance(plan, (str, bytes)) or hasattr(plan, "__fspath__"):
            plan = Plan.load(plan)
        elif not isinstance(plan, Plan):
            raise TypeError(f"plan must be a weft.Plan or a path, not {type(plan)}")
        context = _core._context_of(context)
        bindings, info = [_Bound(binding) for binding in _bindings(plan)], plan.info
        self._plan, self._rank, self._tables, self._views = plan, context.rank, {}, WeakValueDictionary()
        self._trains = info["kind"] == "training"
        self._accumulate = max(1, info["accumulate"]) if self._trains else 1
        self._inputs, self._outputs, self._scalars = (
            {bound.name: bound for bound in bindings if bound.role in roles}
            for roles in ((_INPUT, _LABEL), (_LOSS, _LOGITS, _OUTPUT), (_SCALAR,)))
        self._logits, loss = self._output(_LOGITS), self._output(_LOSS)
        number = loss and {_F64: library.ctypes.c_double, _F32: library.ctypes.c_float}.get(loss.dtype)
        self._loss = (loss.key, number(), loss.size_bytes) if number and loss.shape in ((), (1,)) else None
        out = library.ctypes.c_void_p()

        def create(address):
            params.context = address
            library.weft_session_create(library.ctypes.byref(params), library.ctypes.byref(out))

        params = library.weft_session_params_t(plan=plan._plan, registry=plan._registry, trace=bool(trace))
        _core._with(context, create)
        self._handle = library.own(context, out.value, partial(_release, context, plan, self._views), "session",
                                   "the session was closed")
        for bound in self._inputs.values():
            self._call(_find_memory, bound)

    def __init_subclass__(cls, **words):
        raise TypeError("weft.Session has no subclasses")

    def __reduce__(self):
        raise TypeError("cannot pickle 'weft.Session' object")  # nor copy it: close() would end one of the two only

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
        return self._call(library.weft_session_micro_count)

    @property
    def plan(self):
        """The Plan."""
        return self._plan

    def step(self, /, *arrays, **inputs):
        """Runs one step, to completion. Collective.

        Inputs, by place in the order of plan.bindings or by name: contiguous arrays of host memory of exactly the
        input's shape and type, this rank's samples; integers may be of a narrower type. All of them, or none: then
        what is in the inputs' memory counts (session.inputs). Scalars go by name: step(x, y, lr=0.1).
        Where the batch is split (plan.info['split_batch']) rank 0's inputs alone count, for all ranks.

        Returns the loss of this rank's samples as a float (None where the plan has none). A plan that accumulates K
        micro-batches takes all of them in one call, arrays of K times the batch, and returns their mean loss; or the
        last one, after K - 1 calls of micro_step(), and returns its loss.
        A plan for inference returns its output, a new array like the first input (numpy, torch), or a dict of them
        where there are several.

        Raises TypeError and ValueError naming the input, what it takes and what came; the errors of collectives.
        """
        fed = *_, like = self._fed("step", arrays, inputs, most=self._accumulate)
        if self._trains:
            return self._call(self._train, fed)
        made = {bound: self._made(bound, like) for bound in self._outputs.values()}

        def infer(session):
            self._copy(session, fed)
            library.weft_session_step(session)
            for bound, (_, address, _) in made.items():
                library.weft_session_get_output(session, bound.key, address, bound.size_bytes, None)

        self._call(infer)
        found = {bound.name: array for bound, (array, *_) in made.items()}
        return found.popitem()[1] if len(found) == 1 else found

    def micro_step(self, /, *arrays, **inputs):
        """Runs forward and backward of one micro-batch that is not the last of its step, and adds up its gradients.
        Returns its loss. Collective. Raises WeftStateError when the next one is the last, or the plan has one only."""
        return self._call(self._run, library.weft_session_micro_step, self._fed("micro_step", arrays, inputs))

    def eval(self, /, *arrays, **inputs):
        """Runs the forward pass of a training plan: no communication, so not collective (unless the plan is decoupled).
        Labels may be left out, the loss then is of old ones. Returns the logits, a new array like the first input, or
        the loss where there are none; session.outputs has all outputs. Raises WeftStateError where the forward pass
        communicates, and for inference."""
        fed = *_, like = self._fed("eval", arrays, inputs, _LABEL)
        logits = self._logits
        if logits is None:
            return self._call(self._run, library.weft_session_eval, fed)
        array, address, _ = self._made(logits, like)

        def evaluate(session):
            self._copy(session, fed)
            library.weft_session_eval(session)
            library.weft_session_get_output(session, logits.key, address, logits.size_bytes, None)

        self._call(evaluate)
        return array

    def feed(self, /, *arrays, **inputs):
        """Copies any inputs into their memory, and sets scalars, for the next step() without arguments. Not
        collective."""
        self._call(self._copy, self._fed("feed", arrays, inputs, None))

    def close(self):
        """Gives the session's memory back; other calls raise WeftStateError. Not collective."""
        self._handle = None  # a call that runs, and arrays over inputs, have it to their end

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

        self._call(write)

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
        self._call(library.weft_session_save_checkpoint, library.path(path, "path"), library.ctypes.byref(info))

    def load_checkpoint(self, path, /):
        """Takes weights, optimizer state, scalars and the number of steps from path, which every rank reads.
        Collective. On an error the session is what it was. Returns a dict: seed, epoch, sample, sample_count, lr, step,
        global_batch, world, optimizer, tensors.
        Raises WeftFormatError (what is wrong, or which tensor does not fit), WeftNotFoundError, WeftMismatchError."""
        path = library.path(path, "path")
        info = library.filled(self._open(), lambda session, out: library.weft_session_load_checkpoint(session, path, out),
                              library.weft_checkpoint_info_t)
        return library.facts(info, "seed epoch sample sample_count lr step global_batch world=world_size optimizer"
                                   " tensors=tensor_count")

    def write_trace(self, path, /):
        """Writes the timeline of all ranks as Chrome trace JSON, on rank 0. Collective; needs Session(trace=True)."""
        self._call(library.weft_session_write_trace, library.path(path, "path"))

    def write_profile(self, path, /):
        """Writes measured times for compile(profile=), on rank 0. Collective; needs Session(trace=True)."""
        self._call(library.weft_session_write_profile, library.path(path, "path"))

    def stats(self):
        """What steps came to so far, a dict: steps, step_ms_p50, step_ms_mean, compute_ms_p50, comm_ms_p50,
        exposed_comm_ms_p50, overlap_fraction (NaN when communication is inline), inline_progress, arena_bytes,
        scratch_bytes, fusion_copied_bytes, kernels. Of this rank."""
        stats = library.filled(self._open(), library.weft_session_get_stats, library.weft_session_stats_t)
        return library.facts(stats, "steps step_ms_p50 step_ms_mean compute_ms_p50 comm_ms_p50 exposed_comm_ms_p50"
                                    " overlap_fraction inline_progress? arena_bytes scratch_bytes fusion_copied_bytes"
                                    " timeline_first_step timeline_last_step kernels")

    def flush(self):
        """Brings weights that other ranks have updated to this one, on a decoupled plan. Collective. Calls that read
        weights do it by themselves."""
        self._call(library.weft_session_flush)

    def param_digest(self):
        """SHA-256 over all weights in the order of their names, hex: equal where weights are. Collective only on a
        decoupled plan."""
        text = library.ctypes.create_string_buffer(65)
        self._call(library.weft_session_param_digest, text)
        return text.value.decode()

    def set_steps_done(self, steps, /):
        """Says that steps were done before, for the scalar 'step'. The same on all ranks."""
        self._call(library.weft_session_set_steps_done, library.integer(steps, "steps", library.FOREVER))

    # ---- calls ----
    def _open(self):
        handle = self._handle
        if handle is None:
            raise WeftStateError("the session was closed")
        return handle

    def _call(self, function, *args):
        """function(address, *args) while no other thread is in a call."""
        return _core._with(self._handle or self._open(), function, *args)

    def _fed(self, function, arrays, named, optional=0, most=1):
        """Arguments, by place or by name, checked: ([(input, address of all micro-batches, what keeps them)], values of
        scalars, micro-batches, the first array). optional: the role of inputs that may be left out (None: of any);
        most: micro-batches that an array may have, one after the other."""
        inputs, tensor, found, scalars, fed_batches = self._inputs, _core._tensor, [], None, 0
        if not arrays and named.keys() <= inputs.keys():
            given = named
        elif not named and len(arrays) <= len(inputs):
            given = dict(zip(inputs, arrays))
        else:
            given, scalars = self._sorted(function, arrays, named)
        for name, value in given.items():
            bound = inputs[name]
            address, dtype, shape, kept = tensor(value, name)
            batches = 1
            if dtype != bound.dtype and not _fits(dtype, bound.dtype):
                raise _wrong_type("input", name, bound.dtype, dtype)
            if shape != bound.shape:
                if most == 1 or not bound.shape or shape != (bound.shape[0] * most, *bound.shape[1:]):
                    raise _wrong_shape("input", name, bound.shape, shape, most)
                batches = most
            if dtype != bound.dtype:
                address, kept = _widened(bound, batches, address, dtype)
            if batches != fed_batches != 0:
                raise ValueError(f"input '{name}' has {batches} micro-batch{'es' * (batches != 1)}, the inputs before it "
                                 f"have {fed_batches}")
            fed_batches = batches
            found.append((bound, address, kept))
        if given and optional is not None and len(given) < len(inputs):  # a forgotten one would be what it was before
            for name, bound in inputs.items():
                if name not in given and bound.role != optional:
                    raise TypeError(f"{function}() is missing input '{name}'")
        return found, scalars, fed_batches, next(iter(given.values()), None)

    def _sorted(self, function, arrays, named):
        """Arguments as ({input: array}, {scalar: value})."""
        inputs, scalars = self._inputs, {}
        if len(arrays) > len(inputs):
            raise TypeError(f"{function}() takes {len(inputs)} input{'s' * (len(inputs) != 1)} but {len(arrays)} were given")
        given = dict(zip(inputs, arrays))
        for name, value in named.items():
            if name in given:
                raise TypeError(f"{function}() got input '{name}' twice")
            if name in inputs:
                given[name] = value
            elif name in self._scalars:
                scalars[name] = _number(name, value)
            else:
                raise TypeError(f"{function}(): unknown name {name!r}: the plan has inputs ({', '.join(inputs)}) and "
                                f"scalars ({', '.join(self._scalars)})")
        return given, scalars

    def _copy(self, session, fed, index=0):
        """Micro-batch index of what was fed into the inputs' memory."""
        arrays, scalars, _, _ = fed
        for bound, address, _ in arrays:
            memory, size_bytes = bound.memory, bound.size_bytes
            address += index * size_bytes
            if memory is None:
                library.weft_session_set_input(session, bound.key, address, size_bytes)
            elif address != memory:  # else it was written where it belongs
                library.ctypes.memmove(memory, address, size_bytes)
        if scalars and index == 0:
            for name, value in scalars.items():
                library.weft_session_set_scalar(session, name.encode(), value)

    def _run(self, session, function, fed, index=0):
        """One pass; its loss, or None."""
        self._copy(session, fed, index)
        function(session)
        if self._loss is None:
            return None
        key, value, size_bytes = self._loss
        library.weft_session_get_output(session, key, library.ctypes.byref(value), size_bytes, None)
        return value.value

    def _train(self, session, fed):
        """All micro-batches of a step, or its last one; the mean of their losses."""
        last = fed[2] - 1
        if last <= 0:
            return self._run(session, library.weft_session_step, fed)
        if library.weft_session_micro_count(session) > 0:
            raise WeftStateError("all micro-batches of a step are given, of which some have run")
        losses = [self._run(session, library.weft_session_micro_step, fed, index) for index in range(last)]
        losses.append(self._run(session, library.weft_session_step, fed, last))
        return None if self._loss is None else sum(losses) / len(losses)

    def _made(self, bound, like):
        """A new array for an output, like like's kind: (array, address, what keeps it)."""
        torch = sys.modules.get("torch")
        if not isinstance(like, getattr(torch, "Tensor", ())):
            return *_core._new(library.ctypes.addressof(bound.desc)), None
        name = _core._dtype_name(bound.dtype)
        dtype = getattr(torch, name, None)
        if dtype is None:
            raise TypeError(f"torch has no dtype for an output of type {name}")
        tensor = like.new_empty(bound.shape, dtype=dtype)
        address, *_, kept = _core._memory(tensor, "output", True)
        return tensor, address, kept

    def _view(self, name):
        """An array over an input's own memory."""
        bound, handle = self._inputs[name], self._open()
        views = _core._with(handle, lambda session: self._views.get(0) or self._views.setdefault(0, _Views(handle)))
        if bound.memory is None:
            raise WeftUnsupportedError(f"input '{name}' is in memory that the host cannot reach")
        bound.desc.data = bound.memory
        return _core._view(library.ctypes.addressof(bound.desc), views)

    def _output(self, role):
        return next((bound for bound in self._outputs.values() if bound.role == role), None)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        return f"<weft.Session of {self.plan!r}{', closed' if self._handle is None else ''}>"


_INPUT, _LABEL, _SCALAR, _LOSS, _LOGITS, _OUTPUT = range(1, 7)  # weft_binding_role_t
_F64, _F32, _I64, _U64, _BOOL = 1, 2, 5, 9, 13  # weft_dtype_t: integers by sign, then from 64 bits to 8


def _find_memory(session, bound):
    memory, size = library.ctypes.c_void_p(), library.ctypes.c_size_t()
    try:
        library.weft_session_input_memory(session, bound.key, library.ctypes.byref(memory), library.ctypes.byref(size))
    except WeftError:
        return  # of a device
    if size.value == bound.size_bytes:
        bound.memory = memory.value


def _release(context, plan, views, session):
    """Ends a session, before its plan, which has its kernels. If its context is closed, memory with arrays stays: or
    else the session, until they are gone."""
    views = views.get(0)
    try:
        stays = views is None or not _core._with(context, library.weft_context_device) and \
            not _core._with(context, library.weft_mem_keep)
    except WeftError:
        stays = False
    if stays:
        library.weft_session_destroy(session)
    else:
        views.end = partial(library.weft_session_destroy, session)


def _shape(desc):
    return tuple(desc.dims[:desc.rank])


def _number(name, value):
    try:
        return library.ctypes.c_double(value).value  # which accepts no text
    except TypeError:
        raise TypeError(f"scalar '{name}' must be a number, not {type(value)}") from None
    except OverflowError:
        raise ValueError(f"scalar '{name}': an integer is out of range of float") from None


def _wrong_type(what, name, expected, got):
    return TypeError(f"{what} '{name}': dtype mismatch: expected {_core._dtype_name(expected)}, got "
                     f"{_core._dtype_name(got)}; convert it first")


def _wrong_shape(what, name, expected, got, most=1):
    more = f" (or {most} times the first, all micro-batches)" if most > 1 else ""
    return ValueError(f"{what} '{name}': shape mismatch: expected {expected}{more}, got {got}")


def _fits(narrow, wide):
    """Whether every value of one type of integers is one of the other."""
    return (_I64 <= narrow < _BOOL and _I64 <= wide < _BOOL and (narrow - _I64) % 4 > (wide - _I64) % 4
            and (wide < _U64 or narrow >= _U64))


def _widened(bound, batches, address, dtype):
    """(address, what keeps it) of integers as the wider ones that an input takes."""
    c, integers, wide = library.ctypes, library._INTEGERS, bound.dtype
    count = batches * library.weft_tensor_elem_count(c.byref(bound.desc))
    source = library.weft_tensor_desc_t(dtype=dtype, rank=1, dims=(count,), data=address)
    target = library.weft_tensor_desc_t(dtype=wide, rank=1, dims=(count,))
    array, to = _core._new(c.addressof(target))
    if "numpy" in sys.modules and not isinstance(array, memoryview):
        array[:] = _core._view(c.addressof(source), None)
    else:
        (integers[wide] * count).from_address(to)[:] = (integers[dtype] * count).from_address(address)[:]
    return to, array
