"""Decoding a file's records, with the parts that its requests have in common kept once."""

from __future__ import annotations

from functools import reduce
from operator import or_
from sys import intern
from typing import Any, Final

import msgspec

from wstrace.trace.records import AnyRecord, Leaf, Provenance, Record, Request


class _Unread(Request, tag="request", kw_only=True, gc=False):
    """A request whose two longest fields are not decoded yet: 4 KB of 5, nearly all seen."""

    stack: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]
    provenance: msgspec.Raw = msgspec.Raw(b"null")  # type: ignore[assignment]


_decode = msgspec.json.Decoder(
    reduce(or_, (_Unread if kind is Request else kind for kind in AnyRecord.__args__))
).decode
_stack = msgspec.json.Decoder(list[str]).decode
_provenance = msgspec.json.Decoder(Provenance | None).decode
_MOST_TEXTS: Final = 4096


class SharedParts:
    """Decoded parts of a file's requests, equal ones once: most of a large file is the same
    few stacks and lines of source. What is read is what a plain decoder reads."""

    def __init__(self) -> None:
        self._stacks: dict[bytes, list[str]] = {}
        self._provenances: dict[bytes, Provenance | None] = {}
        self._lists: dict[tuple[str, ...], list[str]] = {}
        self._leaves: dict[tuple[object, ...], Leaf] = {}

    def record(self, line: bytes) -> Record:
        """Raises what msgspec raises."""
        found: Any = _decode(line)
        unread: bool = type(found) is _Unread
        if unread:
            stack, provenance = bytes(found.stack), bytes(found.provenance)
            found.__class__ = Request
            found.stack, found.provenance = self._stack(stack), self._provenance(provenance)
        record: Record = found
        return record

    def _stack(self, text: bytes) -> list[str]:
        if text not in self._stacks:
            decoded = _stack(text)
            self._stacks[text] = self._lists.setdefault(tuple(decoded), decoded)
        return self._stacks[text]

    def _provenance(self, text: bytes) -> Provenance | None:
        if text in self._provenances:
            return self._provenances[text]
        made: Provenance | None = _provenance(text)
        if made is not None:
            made.statements = self._lists.setdefault(tuple(made.statements), made.statements)
            made.leaves = [self._leaf(leaf) for leaf in made.leaves]
            made.formula = made.formula and intern(made.formula)
        if len(self._provenances) >= _MOST_TEXTS:
            self._provenances.clear()
        self._provenances[text] = made
        return made

    def _leaf(self, leaf: Leaf) -> Leaf:
        key = (leaf.name, leaf.value, leaf.kind, leaf.role, leaf.source, leaf.where, leaf.why)
        return self._leaves.setdefault(key, leaf)
