"""Decoding a file's records, with the parts that its requests have in common kept once."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from sys import intern
from typing import Any, Final, Generic, TypeVar

import msgspec

from wstrace.trace.cleaning import clean_text, cleaned
from wstrace.trace.records import (
    AnyRecord,
    Leaf,
    Provenance,
    Record,
    Request,
    ScheduledRequest,
    Slot,
    Spec,
    Step,
)

Part = TypeVar("Part")
_MOST_TEXTS: Final = 4096
_STATEMENTS: Final = b'"statements":['


class _UnreadStep(Step, gc=False):
    """A step whose requests are not decoded yet."""

    requests: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]


class _Unread(Request, tag="request", kw_only=True, gc=False):
    """A request whose long fields are not decoded yet: nearly all of its 4 KB was seen."""

    step: _UnreadStep | None = None
    specs: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]
    stack: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]
    provenance: msgspec.Raw = msgspec.Raw(b"null")  # type: ignore[assignment]
    classes: msgspec.Raw = msgspec.Raw(b"{}")  # type: ignore[assignment]


_decode = msgspec.json.Decoder(
    reduce(or_, (_Unread if kind is Request else kind for kind in AnyRecord.__args__))
).decode
_stack = msgspec.json.Decoder(list[str]).decode
_provenance = msgspec.json.Decoder(Provenance | None).decode
_specs = msgspec.json.Decoder(list[Spec]).decode
_classes = msgspec.json.Decoder(dict[str, list[str]]).decode
_scheduled = msgspec.json.Decoder(list[ScheduledRequest]).decode


class _Texts(Generic[Part]):
    """What texts decode to. The newest is compared first: no hash of kilobytes is made.

    At most `_MOST_TEXTS` are kept; what was given out stays as it is.
    """

    def __init__(self, decode: Callable[[bytes], Part]) -> None:
        self._made: dict[bytes, Part] = {}
        self._decode = decode
        self._newest: tuple[bytes, Part] | None = None

    def part(self, text: bytes) -> Part:
        newest = self._newest
        if newest is not None and newest[0] == text:
            return newest[1]
        if text in self._made:
            made = self._made[text]
        else:
            made = self._decode(text)
            if len(self._made) >= _MOST_TEXTS:
                self._made.clear()
            self._made[text] = made
        self._newest = text, made
        return made


class SharedParts:
    """Decoded parts of a file's requests, equal ones once: most of a large file is the same
    few stacks and lines of source. What is read is what a plain decoder reads, cleaned."""

    def __init__(self) -> None:
        self._stack = _Texts(self._shared_list).part
        self._specs = _Texts(lambda text: cleaned(_specs(text))).part
        self._classes = _Texts(lambda text: cleaned(_classes(text))).part
        self._scheduled = _Texts(_scheduled).part
        self._provenances: dict[tuple[bytes, bytes], Provenance | None] = {}
        self._tail = b""
        self._lists: dict[tuple[str, ...], list[str]] = {}
        self._leaves: dict[tuple[object, ...], Leaf] = {}
        self._slots: dict[Slot, Slot] = {}

    def record(self, line: bytes) -> Record:
        """Raises what msgspec raises."""
        found: Any = _decode(line)
        if type(found) is _Unread:
            self._finish(found)
        else:
            cleaned(found)
        record: Record = found
        return record

    def _finish(self, found: Any) -> None:
        """Makes the plain request of one whose long fields are still text."""
        found.__class__ = Request
        found.stack = self._stack(bytes(found.stack))
        found.provenance = self._provenance(bytes(found.provenance))
        found.specs = self._specs(bytes(found.specs))
        found.classes = self._classes(bytes(found.classes))
        found.layer = intern(clean_text(found.layer))
        found.cudagraph_mode = clean_text(found.cudagraph_mode)
        found.slot = self._slots.setdefault(found.slot, found.slot)
        step = found.step
        if step is not None:
            step.__class__ = Step
            step.requests = self._scheduled(bytes(step.requests))

    def _shared_list(self, text: bytes) -> list[str]:
        decoded = cleaned(_stack(text))
        return self._lists.setdefault(tuple(decoded), decoded)

    def _provenance(self, text: bytes) -> Provenance | None:
        """By its two halves: the second, the statements, is nearly always the one before."""
        cut = text.find(_STATEMENTS)
        head, tail = (text[:cut], text[cut:]) if cut >= 0 else (text, b"")
        if tail == self._tail:
            tail = self._tail  # the same object: its hash is known
        else:
            self._tail = tail
        key = head, tail
        if key in self._provenances:
            return self._provenances[key]
        made: Provenance | None = cleaned(_provenance(text))
        if made is not None:
            made.statements = self._lists.setdefault(tuple(made.statements), made.statements)
            made.leaves = [self._leaf(leaf) for leaf in made.leaves]
            made.formula = made.formula and intern(made.formula)
        if len(self._provenances) >= _MOST_TEXTS:
            self._provenances.clear()
        self._provenances[key] = made
        return made

    def _leaf(self, leaf: Leaf) -> Leaf:
        key = (leaf.name, leaf.value, leaf.kind, leaf.role, leaf.source, leaf.where, leaf.why)
        return self._leaves.setdefault(key, leaf)
