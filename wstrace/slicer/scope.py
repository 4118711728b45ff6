"""Where an expression is evaluated, and what evaluation asks of the world around it."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from wstrace.slicer.source import FunctionSource, Point
from wstrace.slicer.values import Obj, Stop, Tensor, Value

_serials = itertools.count()


@dataclass(frozen=True, eq=False)
class Scope:
    """A function being followed: a frame that runs, a caller's frame, or an inlined callee.

    `home` is where a running frame stands; `arguments` are those of an inlined callee.
    `overrides` are names of comprehensions. `state` belongs to the world.
    """

    source: FunctionSource
    state: object
    home: Point | None = None
    arguments: Mapping[str, Callable[[], Value]] | None = None
    overrides: Mapping[str, Value] = field(default_factory=dict)
    depth: int = 0
    serial: int = field(default_factory=lambda: next(_serials))

    def with_names(self, names: Mapping[str, Value]) -> Scope:
        """The same place with names of a comprehension; a new serial, as values differ."""
        merged = {**self.overrides, **names}
        return replace(self, overrides=merged, serial=next(_serials))

    def where(self, node: ast.AST) -> str:
        """`file:line` of a node."""
        return self.source.where(node)


class World(Protocol):
    """How names and attributes outside a function's source are read: live, or from files."""

    def free(self, scope: Scope, name: str, where: str) -> Value:
        """A global, closure or builtin name."""

    def parameter(self, scope: Scope, name: str) -> Value:
        """A parameter of a function that is not inlined: lifted to its caller."""

    def attribute(self, owner: Obj, name: str, where: str) -> Value:
        """`owner.name`, without running any code of theirs."""

    def observed(self, scope: Scope, name: str, point: Point, found: Value | Stop) -> Value:
        """What is known of a local beside its source: its value in a running frame."""

    def title(self, function: Obj) -> str:
        """Dotted name of a known function such as `math.ceil`, or ''."""

    def enter(self, function: Obj, where: str) -> Scope:
        """The scope of a function to inline, without arguments."""

    def imported(self, scope: Scope, statement: ast.stmt, name: str) -> Value:
        """A name bound by an import, function or class statement inside a function."""

    def result(self, function: Obj, owner: Value | None, stop: Stop) -> Value:
        """What is known of a call's result when its body cannot be followed."""

    def constant_call(self, owner: Obj, name: str, where: str) -> Value:
        """A method of a constant that only a worker can read."""

    def is_group(self, function: Obj) -> bool:
        """Whether this is one of vLLM's `get_*_group`."""

    def group_size(self, function: Obj, where: str) -> Value:
        """The world size of the process group that vLLM's `get_*_group` returns."""

    def as_tensor(self, owner: Obj, where: str) -> Tensor:
        """What is indexed like a tensor and is not known to be one."""

    def parent(self, owner: Obj, scope: Scope, where: str) -> Value:
        """`super()` of the method that `scope` follows, for the instance `owner`."""

    def item(self, owner: Obj, key: Value, where: str) -> Value:
        """`owner[key]` of a constant container."""
