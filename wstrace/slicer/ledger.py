"""One slice being made: its leaves, the statements it went through, and its budget."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

from wstrace.expr import tree
from wstrace.expr.tree import Const, Variable
from wstrace.slicer.values import (
    COMPUTED,
    DECODES,
    LENGTHS,
    QUERIES,
    STARTS,
    Element,
    Index,
    Num,
    Series,
    Stop,
    Value,
)

Kind = Literal["constant", "driver", "unbound"]
MAX_STEPS: Final = 20_000
_ELEMENT_ROLES: Final = {
    LENGTHS: "seq_len",
    QUERIES: "query_len",
    COMPUTED: "num_computed_tokens",
    DECODES: "query_len",
}


@dataclass(frozen=True)
class SlicedLeaf:
    """A name of a sliced formula; see `wstrace.trace.records.Leaf` for the three kinds."""

    name: str
    kind: Kind
    value: int | None = None
    role: str | None = None
    source: str = ""
    where: str = ""
    why: str = ""


@dataclass(frozen=True)
class TokensOf:
    """Which request of which metadata object a leaf counts tokens of."""

    kind: str
    owner: Hashable
    index: Hashable


class Ledger:
    """Leaves are made once per key, so that one quantity is one name in the formula."""

    def __init__(self) -> None:
        self.leaves: dict[str, SlicedLeaf] = {}
        self.statements: dict[str, None] = {}
        self._names: dict[Hashable, str] = {}
        self._requests: dict[str, TokensOf] = {}
        self._steps = 0
        self._exact: set[tree.Node] = set()

    def step(self, where: str) -> None:
        """Count one evaluation; Stop when the slice gets out of hand."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise Stop(where, "the slice is too large")

    def leaf(
        self,
        key: Hashable,
        name: str,
        kind: Kind,
        value: int | None = None,
        role: str | None = None,
        source: str = "",
        where: str = "",
        why: str = "",
    ) -> Num:
        """The number behind `key`; made on the first ask, its value filled in when known."""
        if key not in self._names:
            unique = self._unique(name)
            self._names[key] = unique
            self.leaves[unique] = SlicedLeaf(unique, kind, value, role, source, where, why)
        unique = self._names[key]
        self._fill(unique, value)
        return Num(Variable(unique))

    def _unique(self, name: str) -> str:
        base = _spelled(name)
        number, unique = 1, base
        while unique in self.leaves or unique in tree.FUNCTIONS:
            number += 1
            unique = tree.numbered(base, number)
        return unique

    def _fill(self, name: str, value: int | None) -> None:
        leaf = self.leaves[name]
        if leaf.value is None and value is not None:
            self.leaves[name] = replace(leaf, value=value)

    def observe(self, value: Value, seen: int) -> None:
        """A name that held this value held the integer `seen`."""
        if isinstance(value, Num) and isinstance(value.node, Variable):
            self._fill(value.node.name, seen)

    def element(
        self, series: Series, index: Index, where: str, value: int | None = None
    ) -> Value:
        """Element `index` of a per-request series."""
        index = _from_end(series, index)
        if series.kind == STARTS:
            return Element(series, index)
        place = (index.base, index.offset + series.start)
        role = _ELEMENT_ROLES[series.kind]
        key = (series.kind, series.owner, place)
        num = self.leaf(key, role, "driver", value, role, source=series.where, where=where)
        assert isinstance(num.node, Variable)
        self._requests[num.node.name] = TokensOf(series.kind, series.owner, place)
        return num

    def cached_length(self, a: Num, b: Num, where: str) -> Value | None:
        """seq_len - query_len of one request is the number of its computed tokens."""
        one, two = self._request(a), self._request(b)
        if one is None or two is None or (one.owner, one.index) != (two.owner, two.index):
            return None
        pair = (one.kind, two.kind)
        if pair not in ((LENGTHS, QUERIES), (LENGTHS, COMPUTED)):
            return None
        kind = COMPUTED if pair[1] == QUERIES else QUERIES
        key = (kind, one.owner, one.index)
        role = _ELEMENT_ROLES[kind]
        num = self.leaf(
            key, role, "driver", self._minus(a, b), role, "seq_len - query_len", where
        )
        assert isinstance(num.node, Variable)
        self._requests[num.node.name] = TokensOf(kind, one.owner, one.index)
        return num

    def exactly(self, top: tree.Node, bottom: tree.Node) -> tree.Node:
        """top // bottom where the source says that nothing is left over."""
        node = tree.simplified("//", top, bottom)
        self._exact.add(node)
        return node

    def whole(self, a: Num, b: Num) -> Num | None:
        """b * (a // b) is a where the division leaves nothing over."""
        for node, other in ((a.node, b.node), (b.node, a.node)):
            if node in self._exact and isinstance(node, tree.Op) and node.args[1] == other:
                return Num(node.args[0])
        return None

    def padded_rows(self, a: Num, b: Num, where: str) -> Value | None:
        """The decodes of a batch times its longest one are its rows, padded."""
        for count, longest in ((a, b), (b, a)):
            found = self._request(longest)
            if found is None or found.index != (("max", DECODES), 0):
                continue
            rows = self._names.get((DECODES, "count", found.owner))
            if isinstance(count.node, Variable) and count.node.name == rows:
                key, role = ("rows", found.owner), "num_decode_rows"
                value = self._times(count, longest)
                return self.leaf(key, role, "driver", value, role, "decodes * longest", where)
        return None

    def _times(self, a: Num, b: Num) -> int | None:
        assert isinstance(a.node, Variable)
        assert isinstance(b.node, Variable)
        one, two = self.leaves[a.node.name].value, self.leaves[b.node.name].value
        return None if one is None or two is None else one * two

    def _request(self, num: Num) -> TokensOf | None:
        return self._requests.get(num.node.name) if isinstance(num.node, Variable) else None

    def _minus(self, a: Num, b: Num) -> int | None:
        assert isinstance(a.node, Variable)
        assert isinstance(b.node, Variable)
        one, two = self.leaves[a.node.name].value, self.leaves[b.node.name].value
        return None if one is None or two is None else one - two

    def fixed_value(self, num: Num) -> int | None:
        """The value of a number that cannot change while the config runs, else None."""
        used = [self.leaves[n] for n in tree.names(num.node)]
        if any(leaf.kind != "constant" or leaf.why or leaf.value is None for leaf in used):
            return None
        values = {leaf.name: leaf.value for leaf in used if leaf.value is not None}
        try:
            return tree.evaluate(num.node, values)
        except tree.FormulaError:
            return None

    def is_open(self, value: Value) -> bool:
        """Whether a number's origin is not known: one of its names is unbound."""
        names = tree.names(value.node) if isinstance(value, Num) else ()
        return any(self.leaves[name].kind == "unbound" for name in names)

    def literal_index(self, key: Value) -> int | None:
        """A position that cannot change, else None."""
        return self.fixed_value(key) if isinstance(key, Num) else None

    def index(self, value: Value, where: str) -> Index:
        """Any integer value as a position."""
        if isinstance(value, Index):
            return value
        if isinstance(value, Num):
            if isinstance(value.node, Const):
                return Index("literal", value.node.value, value.node.value)
            return _offset(value)
        raise Stop(where, "an index that is not understood")


@lru_cache(maxsize=4096)
def _spelled(name: str) -> str:
    """A name of the expression language: `w13.shape[0]` becomes `w13_shape_0`."""
    # matches: "w13.shape[0]"
    base = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "n"
    return f"n{base}" if base[0].isdigit() else base


def _from_end(series: Series, index: Index) -> Index:
    """Positions counted from the end: query starts are one more than requests, and the
    end of a series that was cut is not the end of another."""
    if index.base == "literal" and index.offset < 0:
        base = ("end", None if series.count is not None else object())
        return Index(base, index.offset + (series.kind == STARTS) - series.start)
    if any(isinstance(n, tree.Op) and n.op in ("-", "neg") for n in _nodes(index.base)):
        return Index(("unknown", object()), index.offset)
    return index


def _nodes(base: Hashable) -> list[tree.Node]:
    return list(tree.walk(base)) if isinstance(base, Const | Variable | tree.Op) else []


def _offset(value: Num) -> Index:
    node = value.node
    if isinstance(node, tree.Op) and node.op in ("+", "-") and isinstance(node.args[1], Const):
        step = node.args[1].value
        return Index(node.args[0], step if node.op == "+" else -step)
    return Index(node, 0)
