"""The way on which a request was made, as far as its formula depends on it.

A formula holds for the calls that the slicer followed and for the classes of the objects that
it read its names from. Another caller of the same function, or another class of `self`, may
pass other things: its requests are told apart, also where their bytes are equal.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FrameType, MappingProxyType
from typing import Final

from wstrace.slicer.live.objects import fingerprint_at
from wstrace.slicer.syntax import FunctionSource, asserted_class, function_source

Check = Callable[[FrameType], bool]


@dataclass(frozen=True)
class Way:
    """`above`: the calls that were followed, outward, as code and instruction.

    `kinds`: objects in these frames that may be of another class next time, as frames up from
    the request, name and class. `values`: what the formula was made from in such objects, as
    frames up, name, attribute and value: another layer may have another number there, and ask
    for equal bytes until one of them is at its cap. `callers` and `types` say all of it in
    words, for the trace; `types` also has the objects whose class cannot differ.
    """

    above: tuple[tuple[CodeType, int], ...] = ()
    kinds: tuple[tuple[int, str, type], ...] = ()
    values: tuple[tuple[int, str, str, object], ...] = ()
    callers: tuple[str, ...] = field(default=(), compare=False)
    types: tuple[str, ...] = field(default=(), compare=False)

    def check(self) -> Check | None:
        """Whether a frame makes its request on this way; None where there is no other."""
        return self.holds if self.above or self.kinds or self.values else None

    def holds(self, frame: FrameType) -> bool:
        """As `check` says."""
        outer: FrameType | None = frame
        for code, place in self.above:
            assert outer is not None
            outer = outer.f_back
            if outer is None or outer.f_code is not code or outer.f_lasti != place:
                return False
        outer, up = frame, 0
        for level, name, kind in self.kinds:
            while up < level and outer is not None:
                outer, up = outer.f_back, up + 1
            if outer is None or kind_of(outer.f_locals.get(name)) is not kind:
                return False
        return not self.values or self.has_values(frame)

    def has_values(self, frame: FrameType) -> bool:
        """Whether the objects of this request hold what the formula was made from."""
        outer: FrameType | None = frame
        up = 0
        for level, name, attribute, value in self.values:
            while up < level and outer is not None:
                outer, up = outer.f_back, up + 1
            if outer is None:
                return False
            if fingerprint_at(outer.f_locals.get(name), attribute) != value:
                return False
        return True


EVERY_WAY: Final = Way()


def kind_of(value: object) -> type:
    """The class of an object; a class (`cls` of a classmethod) itself."""
    return value if isinstance(value, type) else type(value)


def way_of(
    frame: FrameType,
    seen: set[int],
    read: dict[tuple[int, str], type],
    values: Mapping[tuple[int, str], Mapping[str, object]] = MappingProxyType({}),
) -> Way:
    """The way of a request that `frame` makes.

    `seen` are the ids of the frames that were followed, `read` the class of each object by the
    id of its frame and its name, `values` what was read from it.
    """
    consulted: list[tuple[int, str, str, object]] = []
    above: list[tuple[CodeType, int]] = []
    callers: list[str] = []
    kinds: list[tuple[int, str, type]] = []
    types: list[str] = []
    left, outer, level = seen - {id(frame)}, frame, 0
    while True:
        for (held_in, name), kind in read.items():
            if held_in == id(outer):
                types.append(f"{name}: {kind.__module__}.{kind.__qualname__}")
                if may_differ(outer, name, kind):
                    kinds.append((level, name, kind))
                held = values.get((held_in, name), {})
                consulted += [(level, name, attribute, held[attribute]) for attribute in held]
        if not left or outer.f_back is None:
            break
        outer, level = outer.f_back, level + 1
        left.discard(id(outer))
        above.append((outer.f_code, outer.f_lasti))
        callers.append(_told(outer))
    return Way(tuple(above), tuple(kinds), tuple(consulted), tuple(callers), tuple(types))


def _told(frame: FrameType) -> str:
    source = function_source(frame.f_code)
    file = source.file if source else frame.f_code.co_filename.rpartition("/")[2]
    return f"{file}:{frame.f_lineno}:{frame.f_code.co_qualname}"


def may_differ(frame: FrameType, name: str, kind: type) -> bool:
    """Whether the object that `frame` holds under `name` can be of another class than `kind`.

    Not where the source names the class and nothing inherits from it. Such a check costs the
    hot path a third of a microsecond, so it is left out where it can be.
    """
    code = frame.f_code
    if code.co_argcount and code.co_varnames[0] == name:
        owner = _owner(code, kind)
        if owner is not None:
            return bool(owner.__subclasses__())
    return _written(code, name) != {kind.__name__} or bool(kind.__subclasses__())


def _written(code: CodeType, name: str) -> set[str]:
    """The classes that the source gives a name: by annotation, assertion or cast."""
    source = function_source(code)
    return set() if source is None else _given(source, name)


@lru_cache(maxsize=4096)
def _given(source: FunctionSource, name: str) -> set[str]:
    declared = source.node.args
    every = (*declared.posonlyargs, *declared.args, *declared.kwonlyargs)
    written = next((a.annotation for a in every if a.arg == name), None)
    written = written or asserted_class(source, name)
    return set() if written is None else _named(written)


def _owner(code: CodeType, kind: type) -> type | None:
    """The class that a method stands in: `kind` or one that it inherits from."""
    qualname = code.co_qualname.rpartition(".")[0]
    return next((base for base in kind.__mro__ if base.__qualname__ == qualname), None)


def _named(annotation: ast.expr) -> set[str]:
    """Class names of an annotation: `"M | None"` gives M, `list[M]` gives both."""
    if isinstance(annotation, ast.Constant):
        if not isinstance(annotation.value, str):
            return set()
        try:
            return _named(ast.parse(annotation.value, mode="eval").body)
        except SyntaxError:
            return {annotation.value}
    if isinstance(annotation, ast.Attribute):
        return {annotation.attr}
    if isinstance(annotation, ast.Name):
        return {annotation.id} - {"Optional"}
    inner = [_named(n) for n in ast.iter_child_nodes(annotation) if isinstance(n, ast.expr)]
    return set().union(*inner)
