"""Live objects as symbolic values: read without running a line of their code.

Instance dictionaries, slots and class attributes are read; properties are followed in their
source; `__getattr__` and everything else that would run is left alone, and stops the slice.
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Hashable
from typing import Final

from wstrace.expr.tree import Const, simplified
from wstrace.slicer import binding
from wstrace.slicer.attributes import changes
from wstrace.slicer.ledger import Kind, Ledger
from wstrace.slicer.values import (
    BoundMethod,
    Dtype,
    Literal,
    Num,
    Obj,
    Seq,
    Series,
    Stop,
    Tensor,
    Value,
)

MISSING: Final = object()
_DEEPEST, _LONGEST = 12, 32
_CHANGING: Final = "changing"
"""The tag of an object that is kept where another may be put."""
# PyTorch 2.13: where torch.nn.Module keeps what its __getattr__ finds.
_MODULE_DICTS: Final = ("_modules", "_parameters", "_buffers")


def is_tensor(value: object) -> bool:
    """A plain torch tensor: a subclass could run code when its shape is read."""
    kind = type(value)
    plain = (kind.__module__, kind.__name__)
    return plain in (("torch", "Tensor"), ("torch.nn.parameter", "Parameter"))


def is_dtype(value: object) -> bool:
    """A torch dtype."""
    return (type(value).__module__, type(value).__name__) == ("torch", "dtype")


def is_integer(value: object) -> bool:
    """An int and nothing that inherits from it."""
    return type(value) is int


def is_plain(value: object) -> bool:
    """Something to compare by value: None, bool, string, enum member, float."""
    return value is None or isinstance(value, bool | str | enum.Enum | float)


def stored(instance: object, name: str) -> object:
    """What `instance` holds under `name` in its dictionary or a slot, or `MISSING`."""
    raw = class_attribute(type(instance), name)
    if isinstance(raw, types.MemberDescriptorType):
        try:
            return raw.__get__(instance, type(instance))
        except AttributeError:
            return MISSING
    try:
        held = object.__getattribute__(instance, "__dict__")
    except AttributeError:
        return MISSING
    if not isinstance(held, dict):
        return MISSING
    if name in held:
        return held[name]
    for group in _MODULE_DICTS:
        inner = held.get(group)
        if isinstance(inner, dict) and name in inner:
            return inner[name]
    return MISSING


def class_attribute(cls: type, name: str) -> object:
    """The raw attribute of the class and its bases, descriptors not bound; or `MISSING`."""
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return MISSING


class Objects:
    """Turns what is read from live objects into values with leaves."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.consulted: dict[int, dict[str, object]] = {}
        self._kept_on: dict[int, dict[tuple[int, str], None]] = {}

    def wrap(
        self, value: object, key: Hashable, path: str, where: str, why: str = "", rank: int = 0
    ) -> Value:
        """`value` read at `path`; `why` says why it may change, '' when it cannot."""
        name = path.rpartition(".")[2]
        if is_integer(value):
            assert isinstance(value, int)
            kind: Kind = "unbound" if why else "constant"
            return self.ledger.leaf(key, name, kind, value, None, path, where, why)
        if is_plain(value):
            return Literal(value, not why)
        if is_dtype(value):
            return Dtype(Const(int(value.itemsize)))  # type: ignore[attr-defined]
        if is_tensor(value):
            return self.tensor(value, key, path, where, why)
        if type(value) in (tuple, list) or type(value).__name__ == "Size":
            return self.sequence(value, key, path, where, why, rank)
        return Obj(value, id(value), path, _CHANGING if why else "fixed")

    def sequence(
        self, value: object, key: Hashable, path: str, where: str, why: str, rank: int
    ) -> Value:
        """Constant specs are read, not parsed; a list that is read may not be appended to."""
        assert isinstance(value, tuple | list)
        if len(value) > 32 or rank > 3:
            raise Stop(where, f"{path} holds too much to be a shape")
        items = [
            self.wrap(item, (key, number), f"{path}_{number}", where, why, rank + 1)
            for number, item in enumerate(value)
        ]
        return Seq(tuple(items))

    def tensor(
        self, value: object, key: Hashable, path: str, where: str, why: str = ""
    ) -> Tensor:
        """A tensor whose dimensions are leaves: constant, or open with a reason."""
        kind: Kind = "unbound" if why else "constant"
        name = path.rpartition(".")[2]
        dims = [
            self.ledger.leaf(
                (key, "dim", i),
                f"{name}_{i}",
                kind,
                size,
                None,
                f"{path}.shape[{i}]",
                where,
                why,
            )
            for i, size in enumerate(shape_of(value))
        ]
        return Tensor(tuple(dims), None, Dtype(Const(itemsize_of(value))), key)

    def activation(self, value: object, key: Hashable, name: str, where: str) -> Tensor:
        """All of a step's tokens, padded; the other dimensions are assumed constant."""
        role = "num_padded_tokens"
        dims: list[Value] = []
        for i, size in enumerate(shape_of(value)):
            origin = f"{name}.shape[{i}]"
            if i == 0:
                leaf = self.ledger.leaf(
                    ("tokens", key), role, "driver", size, role, origin, where
                )
            else:
                why = f"assumed constant: dimension {i} of {name}; compare across requests"
                leaf = self.ledger.leaf(
                    (key, "dim", i), f"{name}_{i}", "constant", size, None, origin, where, why
                )
            dims.append(leaf)
        return Tensor(tuple(dims), None, Dtype(Const(itemsize_of(value))), key)

    def metadata(self, instance: object, name: str, where: str) -> Value | None:
        """A field of vLLM's metadata with a role; None for other fields and objects."""
        cls = type(instance)
        if not binding.holder(cls, name):
            return None
        value = stored(instance, name)
        if value is MISSING or value is None:
            return None
        origin, key = f"{cls.__name__}.{name}", (name, id(instance))
        if name in binding.SCALARS and is_integer(value):
            assert isinstance(value, int)
            return self.driver(key, binding.SCALARS[name], value, origin, where, cls)
        if name in binding.SERIES:
            return self.series(instance, name, value, where)
        if name in binding.TENSORS and is_tensor(value):
            return self.table(name, value, key, origin, where, cls)
        return None

    def driver(
        self,
        key: Hashable,
        role: str,
        value: int | None,
        origin: str,
        where: str,
        cls: type | None = None,
    ) -> Num:
        """A leaf that vLLM's own name binds to a scheduler quantity."""
        role = binding.scope_role(role, cls.__name__) if cls else role
        return self.ledger.leaf(key, role, "driver", value, role, origin, where)

    def consult(self, instance: int, name: str, value: object) -> None:
        """Note what was read of an object, under each path from the object of a frame."""
        for path, inner in _inside(name, value):
            self._kept_on.setdefault(id(inner), {})[instance, path] = None
        held = fingerprint(value)
        todo, seen = [(instance, name)], {(instance, name)}
        while todo:
            owner, path = todo.pop()
            self.consulted.setdefault(owner, {})[path] = held
            for above, first in self._kept_on.get(owner, ()):
                longer = (above, f"{first}.{path}")
                if longer not in seen and longer[1].count(".") < _DEEPEST:
                    seen.add(longer)
                    todo.append(longer)

    def series(self, instance: object, name: str, value: object, where: str) -> Series:
        kind = binding.SERIES[name]
        cls = type(instance)
        origin = f"{cls.__name__}.{name}"
        size = shape_of(value)[0] if is_tensor(value) and shape_of(value) else None
        if size is None and type(value) is list:
            size = len(value)
        starts = kind == "query_starts"
        count = None if size is None else size - starts
        counted, role = binding.series_count(kind, id(instance))
        num = self.driver(counted, role, count, origin, where, cls)
        if starts:
            num = Num(simplified("+", num.node, Const(1)))
        return Series(kind, id(instance), 0, origin, num)

    def table(
        self, name: str, value: object, key: Hashable, origin: str, where: str, cls: type
    ) -> Tensor:
        roles = binding.TENSORS[name]
        shape = shape_of(value)
        if len(shape) != len(roles):
            raise Stop(where, f"{origin} has {len(shape)} dimensions, not {len(roles)}")
        dims = [
            self.driver((key, i), role, size, f"{origin}.shape[{i}]", where, cls)
            for i, (role, size) in enumerate(zip(roles, shape, strict=True))
        ]
        return Tensor(tuple(dims), None, Dtype(Const(itemsize_of(value))), key)

    def instance(self, owner: Obj, name: str, where: str) -> Value:
        """A plain attribute of an instance; properties are left to the caller."""
        instance = owner.handle
        cls = type(instance)
        found = self.metadata(instance, name, where)
        if found is not None:
            return found
        value = stored(instance, name)
        if value is MISSING:
            value = class_attribute(cls, name)
        if value is MISSING:
            raise Stop(where, f"{cls.__name__} holds no {name}, and nothing is run to make one")
        if isinstance(value, types.FunctionType):
            if stored(instance, name) is not MISSING:
                self.consult(id(instance), name, value)
            return BoundMethod(owner, name, Obj(value, id(value), name))
        if isinstance(value, staticmethod):
            return Obj(value.__func__, id(value.__func__), name)
        if isinstance(value, classmethod):
            function = Obj(value.__func__, id(value.__func__), name)
            return BoundMethod(Obj(cls, id(cls), cls.__name__), name, function)
        why = _why(cls, name, value)
        if owner.tag == _CHANGING and not why:
            why = f"{owner.path} may be another object next time"
        if not why and not _of_step(cls):
            self.consult(id(instance), name, value)
        return self.wrap(value, (id(instance), name), f"{owner.path}.{name}", where, why)


def _inside(name: str, value: object) -> list[tuple[str, object]]:
    """The objects that can be read through an attribute, with their paths: itself, what a
    short container holds, what a bound method or a partial was made with."""
    found = [(name, value)]
    if isinstance(value, tuple | list):
        found += [(f"{name}.{i}", item) for i, item in enumerate(value[:_LONGEST])]
    elif type(value) is dict and len(value) <= _LONGEST:
        found += [(f"{name}.{key}", item) for key, item in value.items() if _is_name(key)]
    elif isinstance(value, types.MethodType):
        found.append((f"{name}.__self__", value.__self__))
    elif type(value) is functools.partial:
        found += _inside(f"{name}.func", value.func)
        found += _inside(f"{name}.args", value.args)[1:]
        found += _inside(f"{name}.keywords", value.keywords)[1:]
    return found


def _is_name(key: object) -> bool:
    return isinstance(key, str) and key.isidentifier()


def fingerprint(value: object) -> object:
    """What tells two values apart for a formula: a number, a word or a dtype itself, a tensor's
    shape, the elements of a short container, the code of a function and what it was bound to,
    the class of anything else."""
    if is_integer(value) or is_plain(value) or is_dtype(value):
        return value
    if is_tensor(value):
        return (*shape_of(value), value.dtype)  # type: ignore[attr-defined]
    if isinstance(value, tuple | list) and len(value) <= _LONGEST:
        return tuple(map(fingerprint, value))
    if type(value) is dict and len(value) <= _LONGEST:
        return tuple((key, fingerprint(value[key])) for key in value if is_plain(key))
    if isinstance(value, types.FunctionType):
        # Equal functions of two files are equal code objects: their globals are not.
        return (value.__code__, id(value.__globals__), fingerprint(value.__defaults__))
    if isinstance(value, types.MethodType):
        return (fingerprint(value.__func__), type(value.__self__))
    if type(value) is functools.partial:
        return tuple(map(fingerprint, (value.func, value.args, value.keywords)))
    return type(value)


def fingerprint_at(instance: object, path: str) -> object:
    """The fingerprint of what `instance` or its class holds under a dotted name, as `_inside`
    writes it."""
    for name in path.split("."):
        instance = _step(instance, name)
    return fingerprint(instance)


def _step(instance: object, name: str) -> object:
    if isinstance(instance, tuple | list):
        place = int(name) if name.isdecimal() else len(instance)
        return instance[place] if place < len(instance) else MISSING
    if type(instance) is dict:
        return instance.get(name, MISSING)
    if isinstance(instance, types.MethodType) and name == "__self__":
        return instance.__self__
    if type(instance) is functools.partial and name in ("func", "args", "keywords"):
        return getattr(instance, name)
    held = stored(instance, name)
    return class_attribute(type(instance), name) if held is MISSING else held


def _of_step(cls: type) -> bool:
    """Metadata of a step, which every step makes anew."""
    return any(binding.is_holder(b.__module__, b.__name__) for b in cls.__mro__)


def _why(cls: type, name: str, value: object) -> str:
    """Why an attribute may change; metadata without a role is open by definition."""
    if binding.is_config(cls):
        return ""
    if _of_step(cls):
        return f"{cls.__name__}.{name} has no role"
    return changes(cls, name, contents=isinstance(value, list | dict))


def shape_of(tensor: object) -> tuple[int, ...]:
    """A plain tensor's sizes."""
    return tuple(int(s) for s in tensor.shape)  # type: ignore[attr-defined]


def itemsize_of(tensor: object) -> int:
    """Bytes of one element of a plain tensor."""
    return int(tensor.dtype.itemsize)  # type: ignore[attr-defined]
