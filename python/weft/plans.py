# SPDX-License-Identifier: Apache-2.0
"""weft.compile and weft.Plan (include/weft/compile.h, plan.h)."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from weft import _core
from weft._lazy import library
from weft._types import _Path
from weft.errors import WeftError

# weft_option_type_t: how a value gets into weft_compile_params_t. Types that are not here go as an integer.
_FLAG, _BYTES, _REAL, _TEXT, _PATH, _SHAPES, _OPS, _PLUGINS = 0, 3, 4, 5, 6, 7, 9, 10
_REPORTED, _LIST = 64, 128  # WEFT_OPTION_FLAG_
_INDENT, _WIDTH = 24, 76
_INTRO = """Compiles an ONNX model into a Plan: a model with a loss into one that trains it on all ranks, with infer
any model into one that runs it. Not collective: ranks may each compile, and get the same plan from the
same arguments, or one compiles and saves. Arguments are those of the command `weft compile`:

"""
_OUTRO = """
model may also be an onnx.ModelProto, and with infer a list of paths, one per rank. shape is a dict:
{'input': (64, 1, 28, 28), ..}. The default of world is the world of weft.init(), that of batch what the
file contains, or 1 with a warning. Warnings of the compiler are UserWarnings. Raises WeftNotFoundError,
WeftFormatError, WeftUnsupportedError (operator and node are named), WeftArgumentError (its field is that
of weft_compile_params_t, a note names the argument)."""


def _described(name, help):
    """An argument's lines of the docstring."""
    lines = [name.ljust(_INDENT)]
    while (end := help.rfind(" ", 0, _WIDTH + 1) if len(help) > _WIDTH else -1) > 0:
        lines += [help[:end], "\n" + " " * _INDENT]
        help = help[end + 1:]
    return "".join(lines) + help + "\n"


def _rows():
    """(name or None, field, type, flags, help) of every option."""
    help, number = library.ctypes.create_string_buffer(512), 0
    while (address := library.weft_compile_option(number)) is not None:
        option = library.weft_compile_option_t.from_address(address)
        library.weft_compile_option_help(number, b"", help, len(help))
        yield option.name and option.name.decode(), option.field.decode(), option.type, option.flags, help.value.decode()
        number += 1


# model: a path, an onnx.ModelProto, or for inference a path per rank.
# generated: compile
def compile(
    model: Any, *, verify_each: bool = False, emit_onnx: _Path | None = None, world: int | None = None,
    device: str | None = None, batch: int | None = None, shape: dict[str, Sequence[int]] | None = None,
    loss: str | None = None, optimizer: Literal["sgd", "momentum", "adam", "adamw", "lamb", "adagrad"] | None = None,
    lr: float | None = None, lr_schedule: Literal["constant", "linear", "cosine", "step"] | None = None,
    lr_steps: int | None = None, warmup_steps: int | None = None, min_lr: float | None = None,
    lr_gamma: float | None = None, momentum: float | None = None, beta1: float | None = None,
    beta2: float | None = None, epsilon: float | None = None, weight_decay: float | None = None,
    no_decay: str | Sequence[str] | None = None, bucket: str | None = None, costs: _Path | None = None,
    profile: _Path | None = None, topology: _Path | None = None, shard_optimizer: bool = False, decouple: bool = False,
    shard_parameters: bool = False, sync_batchnorm: bool = False, accumulate: int | None = None,
    global_micro_batches: int | None = None, wire: Literal["f32", "bf16"] | None = None, clip: float | None = None,
    label_smoothing: float | None = None, grads: _Path | None = None, training_form: bool = False,
    train: str | Sequence[str] | None = None, freeze: str | Sequence[str] | None = None,
    algo: str | Sequence[str] | None = None, order: str | None = None, in_flight: int | None = None,
    arena_limit: int | str | None = None, recompute: str | Sequence[str] | None = None,
    precision: Literal["f32", "bf16", "f16"] | None = None, infer: bool = False, split_batch: bool = False,
    tensor_parallel: int | None = None, pipeline: int | None = None, pipeline_micro_batches: int | None = None,
    ops: _Path | None = None, kernels: _Path | Sequence[_Path] | None = None,
) -> Plan:
    return _compile(locals())
# end: compile


def _define():
    """{argument: (field, type, flags)}, from the library's table; and the docstring of compile."""
    rows = [row for row in _rows() if row[0] and not row[3] & _REPORTED]
    options = {}
    for name, *rest, _ in rows:
        options.setdefault(name, rest)
    compile.__doc__ = _INTRO + "".join(_described(name, help) for name, *_, help in rows[:1] + [
        row for row in rows[1:] if row[0] != rows[0][0]]) + _OUTRO
    return options


def _noted():
    """A list, and the weft_log_fn that puts warnings into it."""
    notes = []

    def note(user, level, line):
        if level <= 1 and len(notes) < 16:  # WEFT_LOG_LEVEL_WARN
            notes.append(line.decode("utf-8", "replace"))

    c = library.ctypes
    return notes, c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p)(note)


class _Reader:
    """Arguments of compile() to parameters of weft_compile()."""

    def __init__(self, arguments, files):
        self.files = files  # an ExitStack
        self.keep = []  # what the parameters point into
        self.notes, self.log = _noted()
        self.params = library.weft_compile_params_t(
            open_batch=1, log=library.ctypes.c_void_p.from_buffer(self.log).value)  # a cast would make a cycle
        self.registry = [None, None]
        self.model(arguments.pop("model"))
        for name, value in arguments.items():
            if value is not None:
                self.argument(name, _OPTIONS[name][1], value)
        if self.params.world_size == 0:
            if self.params.rank_model_count > 0:
                self.params.world_size = self.params.rank_model_count
            elif self.params.topology_path is None and _core._default() is not None:
                self.params.world_size = _core.get_world_size()

    def kept(self, value):
        self.keep.append(value)
        return value

    def model(self, model):
        """A path, a path per rank, or an onnx.ModelProto, which goes through a file."""
        if isinstance(model, (list, tuple)):
            if not model:
                raise ValueError("model: the list is empty")
            paths = [library.path(path, "every model") for path in model]
            if len(paths) > 1:
                array = self.kept((library.ctypes.c_char_p * len(paths))(*paths))
                self.params.rank_models, self.params.rank_model_count = library.ctypes.addressof(array), len(paths)
            self.params.model_path = paths[0]
        elif hasattr(model, "SerializeToString"):
            from tempfile import NamedTemporaryFile
            file = self.files.enter_context(NamedTemporaryFile())
            file.write(model.SerializeToString())
            file.flush()
            self.params.model_path = library.path(file.name, "model")
        else:
            self.params.model_path = library.path(model, "model")

    def argument(self, name, kind, value):
        text = None
        if kind == _SHAPES:
            self.shapes(value)
        elif kind in (_OPS, _PLUGINS):
            self.registry[kind == _PLUGINS] = value
        elif kind != _FLAG or value:
            text = None if kind == _FLAG else self.kept(_text(name, kind, value))
            _naming(library.weft_compile_option_set, library.ctypes.byref(self.params), name.encode(), text)

    def shapes(self, shapes):
        """{"images": (64, 1, 28, 28), ..}"""
        if not isinstance(shapes, dict):
            raise TypeError(f"shape must be a dict of inputs' names to shapes, not {type(shapes)}")
        shapes = dict(shapes)  # dimensions' methods may change the one that was given
        array = self.kept((library.weft_input_shape_t * (len(shapes) + 1))())
        for row, (name, shape) in zip(array, shapes.items()):
            if not isinstance(name, str):
                raise TypeError(f"shape: {name!r} is not the name of an input")
            row.name = library.text(name, "shape")
            dims = library.integer_list(shape, f"shape of {name!r}", 2**31 - 1)
            if len(dims) > len(row.dims):
                raise ValueError(f"shape of {name!r} has too many dimensions: at most {len(row.dims)}")
            row.rank = len(dims)
            row.dims[:len(dims)] = dims
        self.params.shapes, self.params.shape_count = library.ctypes.addressof(array), len(shapes)


def _text(name, kind, value):
    """Numbers, texts and paths, as text, which the library checks."""
    if kind == _PATH:
        return library.path(value, name)
    if _OPTIONS[name][2] & _LIST and isinstance(value, (list, tuple)):
        return b",".join(library.text(part, name) for part in value)
    if kind in (_TEXT, _BYTES) and isinstance(value, str):
        return library.text(value, name)
    try:
        if kind != _REAL and kind != _TEXT:
            return b"%d" % library.integer(value, name, library.FOREVER, -2**63)
        if kind == _TEXT or isinstance(value, (str, bytes)):  # float() accepts texts
            raise TypeError
        return repr(float(value)).encode()
    except TypeError:
        expected = "a str" if kind == _TEXT else "a number" if kind == _REAL else "an integer"
        raise TypeError(f"{name} must be {expected}, not {type(value)}") from None
    except OverflowError:
        raise ValueError(f"{name}: an integer is out of range of float") from None


def _naming(function, *args):
    """function(*args), whose error has a note that names the argument that sets its field, if that has another name."""
    try:
        function(*args)
    except WeftError as error:
        for name, (field, *_) in _OPTIONS.items():
            if field == error.field != name and hasattr(error, "add_note"):  # from Python 3.11 on
                error.add_note(f"argument '{name}'")
        raise


def _compile(arguments):
    import contextlib
    import warnings
    with contextlib.ExitStack() as files:
        reader = _Reader(arguments, files)
        plan = Plan._empty(*reader.registry)
        reader.params.registry = plan._registry
        _naming(library.weft_compile, library.ctypes.byref(reader.params), library.ctypes.byref(plan._plan))
    for note in reader.notes:
        warnings.warn(note, UserWarning, 3)
    return plan


_OPTIONS = _define()


class Plan:
    """A compiled graph: what weft.compile() and Plan.load() return, what Session() runs. It never changes."""

    __slots__ = "_plan", "_registry"  # the latter with operators or kernels of its own; NULL: the built-in ones

    def __new__(cls, *args, **words):
        raise TypeError(f"cannot create instances of {cls}")

    def __init_subclass__(cls, **words):
        raise TypeError("weft.Plan has no subclasses")

    def __reduce__(self):
        raise TypeError("cannot pickle 'weft.Plan' object")  # nor copy it: each of the two would release the plan

    def __del__(self, release=library.weft_plan_release, destroy=library.weft_registry_destroy):
        if hasattr(self, "_registry"):  # else object.__new__ made it, or this was called by name
            plan, registry = self._plan, self._registry
            del self._plan, self._registry
            release(plan)
            destroy(registry)  # after the plan made with it

    @classmethod
    def _empty(cls, ops, kernels):
        """One without a plan yet, with a registry of what files declare."""
        self = object.__new__(cls)
        self._plan, self._registry = library.ctypes.c_void_p(), library.ctypes.c_void_p()
        if ops is not None or kernels is not None:
            ops = library.path(ops, "ops", True)
            library.weft_registry_create(None, library.ctypes.byref(self._registry))
            if ops is not None:
                library.weft_registry_load_ops(self._registry, ops)
            if kernels is not None:
                library.publish()
                one = isinstance(kernels, (str, bytes)) or not hasattr(kernels, "__iter__")
                for kernel in (kernels,) if one else tuple(kernels):
                    library.weft_registry_load_plugin(self._registry, library.path(kernel, "kernels"))
        return self

    @property
    def _address(self):
        return self._plan.value

    @classmethod
    def load(cls, path: _Path, *, ops: _Path | None = None, kernels: _Path | Sequence[_Path] | None = None) -> Plan:
        """Loads and checks a plan file, by save() or `weft compile`.

        ops: JSON file that declares operators of the plan which Weft does not know; kernels: plugin (.so), or
        several, that has their kernels.
        Raises WeftNotFoundError, WeftFormatError (what is wrong and where), WeftUnsupportedError (a newer format).
        """
        plan = cls._empty(ops, kernels)
        library.weft_plan_load(library.path(path, "path"), plan._registry, library.ctypes.byref(plan._plan))
        return plan

    def save(self, path: _Path, /) -> None:
        """Writes the plan to a file: all or nothing. Any rank may, and one is enough."""
        _core._with(self, library.weft_plan_save, library.path(path, "path"))

    @overload
    def explain(self, json: Literal[False] = False) -> str: ...
    @overload
    def explain(self, json: Literal[True]) -> dict[str, Any]: ...
    @overload
    def explain(self, json: bool = False) -> str | dict[str, Any]: ...

    def explain(self, json: bool = False) -> str | dict[str, Any]:
        """Says what was made of the model: buckets and their members, bytes, algorithms, streams, memory, copied bytes.
        A text for people, or with json a dict with stable keys."""
        return library.explain(self, library.weft_plan_explain, json)

    def compare(self) -> str:
        """A table for people: what each bucket policy was predicted to come to when the plan was compiled."""
        return library.report(self, library.weft_plan_compare)

    def why(self, tensor: str, /) -> str:
        """Says when the communication of a gradient (its name, or its parameter's) is predicted to run and, where it
        ends behind the backward pass, why. Raises WeftNotFoundError if the plan reduces no such gradient."""
        return library.report(self, library.weft_plan_why, library.text(tensor, "tensor"))

    @property
    def info(self) -> dict[str, Any]:
        """Facts, a new dict: model, kind ('training' or 'inference'), world, batch (samples per rank and micro-batch),
        optimizer, policy, accumulate, global_micro_batches, sharded, decoupled, clip_norm, split_batch, rank_weights,
        has_eval, device, bits ('cpu': f32 results are those of the CPU's exact kernels; 'device': those of the device),
        buckets, arena_bytes, live_bytes, fusion_copied_bytes, structure_digest, weights_digest."""
        info = library.facts(
            library.filled(self, library.weft_plan_get_info, library.weft_plan_info_t),
            "model=model_name kind world=world_size batch optimizer policy accumulate global_micro_batches"
            " sharded=shard_optimizer? decoupled=decouple? clip_norm split_batch? rank_weights? has_eval? device bits"
            " buckets=bucket_count arena_bytes live_bytes fusion_copied_bytes structure_digest weights_digest")
        info["kind"] = "inference" if info["kind"] == 2 else "training"
        info["bits"] = "device" if info["bits"] else "cpu"
        return info

    @property
    def bindings(self) -> list[dict[str, Any]]:
        """What goes in and comes out, a new list of dicts: name, role ('input', 'label', 'scalar', 'loss', 'logits',
        'output'), dtype, shape (per rank), and of scalars default. Inputs are in the order of Session.step()."""
        return [_described_binding(binding) for binding in _bindings(self)]

    @property
    def world(self) -> int:
        """Ranks that the plan is for."""
        return self.info["world"]

    @property
    def batch(self) -> int:
        """Samples of a rank per step (per micro-batch)."""
        return self.info["batch"]

    def __repr__(self):
        info = self.info
        return (f"<weft.Plan {info['model'] or ''}: {info['kind']} on {info['world']} "
                f"rank{'s' * (info['world'] != 1)}, batch {info['batch']}, digest {info['structure_digest'][:16]}>")


def _bindings(plan):
    return [library.filled(plan, lambda address, out: library.weft_plan_get_binding(address, i, out),
                           library.weft_binding_t) for i in range(_core._with(plan, library.weft_plan_binding_count))]


def _described_binding(binding):
    role = ("", "input", "label", "scalar", "loss", "logits", "output")[binding.role]
    found = dict(name=binding.name.decode(), role=role, **library.described(binding.desc))
    return {**found, "default": binding.default_value} if role == "scalar" else found
