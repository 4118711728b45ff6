"""What an expression of a worker's source can stand for while it is sliced.

Values are symbolic: numbers are trees over named leaves, tensors are lists of dimensions.
A `Choice` holds the values of two arms of one condition; every operation is applied to both
arms, the same condition being decided the same way throughout. What is not understood
raises `Stop`: no value here may stand for less than the source computes.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from wstrace.expr.tree import Const, Node

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

MAX_ARMS: Final = 64
COMPUTED: Final = "computed"
DECODES: Final = "decode_lens"
LENGTHS: Final = "seq_lens"
QUERIES: Final = "query_lens"
STARTS: Final = "query_starts"
"""Kinds of `Series`: cached, decoding, whole and scheduled tokens of each request; and query
starts."""


class Stop(Exception):  # noqa: N818 - the end of a slice, not a mistake
    """The slice cannot be followed: `where` is `file:line`, `why` is for people."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}" if where else why)
        self.where = where
        self.why = why


def forget_way(error: BaseException) -> None:
    """Clear the frames that an error passed, and those of the errors before it.

    A kept error keeps all their variables alive: a view of the arena among them.
    """
    before = [e for e in (error.__context__, error.__cause__) if e is not None]
    if error.__traceback__ is not None:
        traceback.clear_frames(error.__traceback__)
    error.__traceback__ = error.__context__ = error.__cause__ = None
    for earlier in before:
        forget_way(earlier)


class Raises(Stop):
    """A path that ends in a raise: no request is made on it."""


@dataclass(frozen=True)
class Num:
    """An integer."""

    node: Node


@dataclass(frozen=True)
class Ratio:
    """A true division; only rounding makes an integer of it."""

    top: Node
    bottom: Node


@dataclass(frozen=True)
class BitLength:
    """`n.bit_length()`; `1 << (n - 1).bit_length()` is the next power of two."""

    of: Node


@dataclass(frozen=True)
class Literal:
    """A string, None, bool, enum member: something to compare, never to compute with.

    `fixed` False: it is what it is in this call only, and decides nothing.
    """

    value: object
    fixed: bool = True


@dataclass(frozen=True)
class Dtype:
    """A dtype; `itemsize` in bytes where it can be told from the source."""

    itemsize: Node | None = None


@dataclass(frozen=True)
class Seq:
    """A tuple or list of known length. A `mutable` one is lost when it escapes."""

    items: tuple[Value, ...]
    mutable: bool = False


@dataclass(frozen=True)
class Tail:
    """The dimensions of a tensor of open rank from `start` on; only a view takes them."""

    tensor: Tensor
    start: int


@dataclass(frozen=True)
class Index:
    """A position that differs from `base` by `offset`; `base` is a loop or an expression."""

    base: Hashable
    offset: int = 0
    value: int | None = None


@dataclass(frozen=True)
class Series:
    """Per-request numbers of one metadata object: sequence lengths, query starts.

    `start` counts elements cut off in front, so that `starts[1:] - starts[:-1]` is known to
    be the query lengths.
    """

    kind: str
    owner: Hashable
    start: int = 0
    where: str = ""
    count: Num | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Element:
    """Element `index` of a cumulative series: a number only once two are subtracted."""

    series: Series
    index: Index


@dataclass(frozen=True)
class Range:
    """A range, numbering positions; `from_zero` when it counts along with a sequence."""

    from_zero: bool = True


@dataclass(frozen=True)
class Zipped:
    """`zip(...)` or `enumerate(...)`: parallel iteration."""

    parts: tuple[Value, ...]


@dataclass(frozen=True)
class Tensor:
    """A tensor by its dimensions; `lazy` makes those of a tensor whose rank is open."""

    dims: tuple[Value, ...] | None = None
    lazy: Callable[[int], Value] | None = field(default=None, compare=False)
    dtype: Value = field(default_factory=Dtype)
    key: Hashable = None

    def dim(self, index: int, where: str) -> Value:
        """Dimension `index`, negative ones from the end."""
        if self.dims is None:
            if self.lazy is None:
                raise Stop(where, "the tensor's shape is not known")
            return self.lazy(index)
        if not -len(self.dims) <= index < len(self.dims):
            raise Stop(where, f"dimension {index} of a tensor with {len(self.dims)}")
        return self.dims[index]


@dataclass(frozen=True)
class Obj:
    """Something a world knows how to read: an instance, class, module or function."""

    handle: object = field(compare=False)
    key: Hashable = None
    path: str = ""
    tag: str = ""


@dataclass(frozen=True)
class Parent:
    """Handle of `super()`: `owner` as seen by the classes `after` the one that asks."""

    owner: Obj
    after: tuple[object, ...]


@dataclass(frozen=True)
class ProcessGroup:
    """A process group, by its world size."""

    size: Value


@dataclass(frozen=True)
class Opaque:
    """Handle of something offline that only a running worker can read: a constant, or
    `open`, a number of this request only."""

    why: str = ""
    open: bool = False


@dataclass(frozen=True)
class BoundMethod:
    """A method together with the object it is called on."""

    owner: Value
    name: str
    function: Obj | None = None


@dataclass(frozen=True)
class Choice:
    """The values of both arms of the condition `on`."""

    on: Hashable
    yes: Value
    no: Value


Value = (
    Num
    | Ratio
    | BitLength
    | Literal
    | Dtype
    | Seq
    | Tail
    | Index
    | Series
    | Element
    | Range
    | Zipped
    | Tensor
    | Obj
    | BoundMethod
    | ProcessGroup
    | Choice
)


def constant(value: int) -> Num:
    """An integer that the source spells out."""
    return Num(Const(value))


def choose(on: Hashable, yes: Value, no: Value) -> Value:
    """Both arms, or the one value they agree on."""
    return yes if yes == no else Choice(on, yes, no)


def restrict(value: Value, on: Hashable, yes: bool) -> Value:
    """`value` once the condition `on` is decided."""
    if isinstance(value, Seq):
        return Seq(tuple(restrict(i, on, yes) for i in value.items), value.mutable)
    if not isinstance(value, Choice):
        return value
    if value.on == on:
        return restrict(value.yes if yes else value.no, on, yes)
    return choose(value.on, restrict(value.yes, on, yes), restrict(value.no, on, yes))


def present(value: Value) -> Value:
    """`value` where something is asked of it: arms that are None would raise there."""
    if not isinstance(value, Choice):
        return value
    for absent, other in ((value.yes, value.no), (value.no, value.yes)):
        if isinstance(absent, Literal) and absent.value is None:
            return present(other)
    return choose(value.on, present(value.yes), present(value.no))


def spread(apply: Callable[..., Value], *values: Value) -> Value:
    """`apply` on every combination of arms of `values`."""
    for value in values:
        if isinstance(value, Choice):
            arms = [
                spread(apply, *(restrict(v, value.on, side) for v in values))
                for side in (True, False)
            ]
            return choose(value.on, *arms)
    return apply(*values)


def items_of(packed: Value) -> list[Value]:
    """The values of packed arguments."""
    if not isinstance(packed, Seq):
        raise Stop("", "arguments whose number a condition decides")
    return list(packed.items)


def arms(value: Value) -> list[Value]:
    """Every value that the arms leave possible; Stop past `MAX_ARMS`."""
    if isinstance(value, Choice):
        sides = [restrict(value, value.on, True), restrict(value, value.on, False)]
        found = list(dict.fromkeys(a for side in sides for a in arms(side)))
    elif isinstance(value, Seq) and any(_open(i) for i in value.items):
        found = list(dict.fromkeys(_opened(value)))
    else:
        found = [value]
    if len(found) > MAX_ARMS:
        raise Stop("", f"more than {MAX_ARMS} combinations of conditions")
    return found


def arms_by_condition(value: Value) -> list[tuple[frozenset[tuple[Hashable, bool]], Value]]:
    """As `arms`, each with the sides that its conditions took; Stop past `MAX_ARMS`."""
    if not _open(value):
        return [(frozenset(), value)]
    on = _first_condition(value)
    found = [
        (taken | {(on, side)}, arm)
        for side in (True, False)
        for taken, arm in arms_by_condition(restrict(value, on, side))
    ]
    if len(found) > MAX_ARMS:
        raise Stop("", f"more than {MAX_ARMS} combinations of conditions")
    return found


def _open(value: Value) -> bool:
    if isinstance(value, Seq):
        return any(_open(i) for i in value.items)
    return isinstance(value, Choice)


def _opened(value: Seq) -> list[Value]:
    on = _first_condition(value)
    sides = [restrict(value, on, True), restrict(value, on, False)]
    return [a for side in sides for a in arms(side)]


def _first_condition(value: Value) -> Hashable:
    if isinstance(value, Choice):
        return value.on
    assert isinstance(value, Seq)
    return _first_condition(next(i for i in value.items if _open(i)))
