"""Decoding a file's records, with the parts that its requests have in common kept once."""

from __future__ import annotations

from collections.abc import Callable
from sys import intern
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from wstrace.trace.cleaning import clean_text, cleaned
from wstrace.trace.decoding import record_decoder
from wstrace.trace.records import (
    Int,
    Leaf,
    Phase,
    Provenance,
    Record,
    Request,
    ScheduledRequest,
    Slot,
    Spec,
    Step,
)

Part = TypeVar("Part")
_MOST_TEXTS: Final = 1 << 15
_MOST_ALIKE: Final = 4096
_MOST_ENDS: Final = 8
_MOST_SHARED: Final = 1 << 16
STATEMENTS: Final = b'"statements":['
_CUTS: Final = (b',"generation":', b',"address":', b',"specs":[', b',"stack":[')
"""Where a request's line is cut in two: behind the step, as its fields are written."""
_NEAR: Final = 64
"""How far a line's cut may be before that of the line before it, in bytes."""


class _UnreadStep(Step, gc=False):
    """A step whose requests are not decoded yet."""

    requests: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]


class _UnreadProvenance(Provenance, gc=False):
    """A provenance whose lists are not decoded yet: where one number is new, they are known."""

    arms: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]
    leaves: list[msgspec.Raw] = msgspec.field(default_factory=list)  # type: ignore[assignment]
    statements: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]
    callers: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]
    types: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]
    others: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]


class _Head(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What is of one request alone, as a rule; the other fields are `_Rest`'s."""

    t: Literal["request"]  # not a tag: those of a lone struct need not be there
    site: Int
    slot: Slot
    bytes: Int
    arena: Int
    phase: Phase
    ns: Int = 0
    step: _UnreadStep | None = None


class _Rest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """What many requests of a file have in common: nearly all of their 4 KB. Not decoded yet
    are its long fields, of which the parts are often known where the whole is not."""

    generation: Int = 0
    address: Int = 0
    locked: bool = False
    capturing: bool = False
    graph: Int | None = None
    stream: Int = 0
    cudagraph_mode: str = ""
    layer: str = ""
    specs: msgspec.Raw = msgspec.Raw(b"[]")
    stack: msgspec.Raw = msgspec.Raw(b"[]")
    provenance: msgspec.Raw = msgspec.Raw(b"null")
    thread: Int = 0
    manager: Int = 0
    classes: msgspec.Raw = msgspec.Raw(b"{}")


_decode = record_decoder()
_head = msgspec.json.Decoder(_Head).decode
_rest = msgspec.json.Decoder(_Rest).decode
_stack = msgspec.json.Decoder(list[str]).decode
_provenance = msgspec.json.Decoder(_UnreadProvenance | None).decode
_leaf = msgspec.json.Decoder(Leaf).decode
_LISTS: Final = ("arms", "statements", "callers", "types", "others")
_specs = msgspec.json.Decoder(list[Spec]).decode
_classes = msgspec.json.Decoder(dict[str, list[str]]).decode
_scheduled = msgspec.json.Decoder(list[ScheduledRequest]).decode
_NOWHERE: Final = Slot()
UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


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
        self._leaf = _Texts(self._one_leaf).part
        self._texts = {name: _Texts(self._shared_list).part for name in _LISTS}
        self._provenances: dict[tuple[bytes, bytes], Provenance | None] = {}
        self._tail = b""
        self._marker = _CUTS[0]
        self._near = 0
        self._ends: list[tuple[bytes, dict[bytes, Request]]] = []
        self._lists: dict[tuple[str, ...], list[str]] = {}
        self._leaves: dict[tuple[object, ...], Leaf] = {}
        self._slots: dict[Slot, Slot] = {}

    def record(self, line: bytes) -> Record:
        """Raises what msgspec raises."""
        found = self._in_halves(line)
        if found is None:
            found = _decode(line)
            cleaned(found)
            if type(found) is Request:
                found.stack = self._shared(found.stack)
                self._share(found.provenance)
        return found

    def _in_halves(self, line: bytes) -> Record | None:
        """A request by what its line has up to the step and by the rest; None where it cannot
        be read so, for whatever reason: then the whole line tells it.

        What is before the comma is an object but for its brace, and the rest is one with a
        brace in the comma's place: so the line is one object, with the fields of both, and
        no field is in both.
        """
        cut = self._cut(line)
        if cut < 0:
            return None
        try:
            head = _head(line[:cut] + b"}")
            like: Any = self._like(line, cut)
        except UNDECODABLE:
            return None
        found: Request = like.__copy__()  # copy.copy() asks more and does the same
        found.ns = head.ns
        found.site = head.site
        _bound(self._slots)
        found.slot = self._slots.setdefault(head.slot, head.slot)
        found.bytes = head.bytes
        found.arena = head.arena
        found.phase = head.phase
        step: Any = head.step
        if step is not None:
            step.__class__ = Step
            step.requests = self._scheduled(bytes(step.requests))
            found.step = step
        return found

    def _cut(self, line: bytes) -> int:
        """The place of the comma; -1 where there is none of `_CUTS`."""
        cut = line.find(self._marker, self._near)
        if cut < 0:
            for marker in _CUTS:
                cut = line.find(marker)
                if cut >= 0:
                    self._marker = marker
                    break
            else:
                return -1
        self._near = max(0, cut - _NEAR)
        return cut

    def _like(self, line: bytes, cut: int) -> Request:
        """A request with all that the line has from `cut` on, decoded once. The end, from the
        statements on, is nearly always one of the newest: no hash of kilobytes is made."""
        end, known = self._end(line, cut)
        key = line[cut : len(line) - len(end)]
        like = known.get(key)
        if like is None:
            if len(known) >= _MOST_ALIKE:
                known.clear()
            like = known[key] = self._made(_rest(b"{" + line[cut + 1 :]))
        return like

    def _end(self, line: bytes, cut: int) -> tuple[bytes, dict[bytes, Request]]:
        """An end of the line behind `cut`, and what was made of those that end so."""
        for seen in self._ends:
            if line.endswith(seen[0]) and len(line) - len(seen[0]) >= cut:
                return seen
        statements = line.find(STATEMENTS, cut)
        new: tuple[bytes, dict[bytes, Request]]
        new = line[cut if statements < 0 else statements :], {}
        self._ends.insert(0, new)
        del self._ends[_MOST_ENDS:]
        return new

    def _made(self, rest: _Rest) -> Request:
        fields = msgspec.structs.asdict(rest) | {
            "specs": self._specs(bytes(rest.specs)),
            "stack": self._stack(bytes(rest.stack)),
            "provenance": self._provenance(bytes(rest.provenance)),
            "classes": self._classes(bytes(rest.classes)),
            "layer": intern(clean_text(rest.layer)),
            "cudagraph_mode": clean_text(rest.cudagraph_mode),
        }
        return Request(site=0, slot=_NOWHERE, bytes=0, arena=0, phase="init", **fields)

    def _shared_list(self, text: bytes) -> list[str]:
        return self._shared(cleaned(_stack(text)))

    def _shared(self, texts: list[str]) -> list[str]:
        _bound(self._lists)
        return self._lists.setdefault(tuple(texts), texts)

    def _provenance(self, text: bytes) -> Provenance | None:
        """By its two halves: the second, the statements, is nearly always the one before."""
        cut = text.find(STATEMENTS)
        head, tail = (text[:cut], text[cut:]) if cut >= 0 else (text, b"")
        if tail == self._tail:
            tail = self._tail  # the same object: its hash is known
        else:
            self._tail = tail
        key = head, tail
        if key in self._provenances:
            return self._provenances[key]
        made = self._read(_provenance(text))
        if len(self._provenances) >= _MOST_TEXTS:
            self._provenances.clear()
        self._provenances[key] = made
        return made

    def _read(self, made: Any) -> Provenance | None:
        """What is not decoded yet, decoded and clean."""
        if made is not None:
            made.__class__ = Provenance
            made.leaves = [self._leaf(bytes(leaf)) for leaf in made.leaves]
            for name, part in self._texts.items():
                setattr(made, name, part(bytes(getattr(made, name))))
            made.formula = made.formula and intern(clean_text(made.formula))
            made.stopped = made.stopped and clean_text(made.stopped)
        read: Provenance | None = made
        return read

    def _share(self, made: Provenance | None) -> None:
        if made is not None:
            made.statements = self._shared(made.statements)
            made.leaves = [self._shared_leaf(leaf) for leaf in made.leaves]
            made.formula = made.formula and intern(made.formula)

    def _one_leaf(self, text: bytes) -> Leaf:
        leaf: Leaf = cleaned(_leaf(text))
        return self._shared_leaf(leaf)

    def _shared_leaf(self, leaf: Leaf) -> Leaf:
        key = (leaf.name, leaf.value, leaf.kind, leaf.role, leaf.source, leaf.where, leaf.why)
        _bound(self._leaves)
        return self._leaves.setdefault(key, leaf)


def _bound(kept: dict[Any, Any]) -> None:
    """What was given out stays as it is; the next equal one is another object."""
    if len(kept) >= _MOST_SHARED:
        kept.clear()
