"""Where an expression is evaluated; what the evaluator, its parts and a world ask each other.

The parts of the evaluator need one another (a name's value is an expression, an expression
holds names), and worlds need the evaluator. They meet here, in two protocols, so that no module
has to import one that imports it.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from wstrace.slicer.ledger import Ledger
from wstrace.slicer.syntax import Block, CodePoint, FunctionSource
from wstrace.slicer.values import BoundMethod, Obj, Stop, Tensor, Value

_serials = itertools.count()
Arguments = Mapping[str, Callable[[], Value]]
"""Parameter name -> its value at the call, made when asked for."""


@dataclass(frozen=True, eq=False)
class Scope:
    """A function being followed: a frame that runs, a caller's frame, or an inlined callee.

    `home` is where a running frame stands; `arguments` are those of an inlined callee.
    `overrides` are names of comprehensions. `state` belongs to the world.
    """

    source: FunctionSource
    state: object
    home: CodePoint | None = None
    arguments: Arguments | None = None
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

    def observed(self, scope: Scope, name: str, point: CodePoint, found: Value | Stop) -> Value:
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

    def callee(self, function: Obj) -> Obj | BoundMethod:
        """What runs when `function` is called: a module's `forward`, else itself."""

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


class Evaluation(Protocol):
    """The evaluator as its parts and the worlds see it."""

    @property
    def ledger(self) -> Ledger:
        """The leaves, statements and budget of this slice."""

    @property
    def world(self) -> World:
        """Where names outside the source come from."""

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """The value of `node` where it stands; Stop says what is not understood."""

    def member(self, owner: Value, name: str, where: str) -> Value:
        """`owner.name`."""

    def part(self, value: Value, index: int, where: str) -> Value:
        """Element `index` of a sequence, a shape or a constant container."""

    def name(self, scope: Scope, name: str, point: CodePoint, where: str) -> Value:
        """The value of a name just before `point`."""

    def decided(self, test: ast.expr, scope: Scope) -> bool | None:
        """True or False where only constants decide, else None."""

    def packed(self, nodes: Sequence[ast.expr], scope: Scope, whole: bool = False) -> Value:
        """Positional arguments or elements, stars unpacked."""

    def call(self, node: ast.Call, scope: Scope) -> Value:
        """The result of a call; Stop unless every step of it is understood."""

    def arguments(
        self,
        source: FunctionSource,
        first: Sequence[Value],
        node: ast.Call,
        scope: Scope,
    ) -> dict[str, Callable[[], Value]]:
        """What the call `node` gives to the parameters of `source`, after those in `first`: the
        object that a method is called on, and what a partial holds."""

    def returned(self, scope: Scope, block: Block, where: str) -> Value:
        """What the statements of `block` return."""
