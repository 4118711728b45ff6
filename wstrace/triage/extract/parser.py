"""One input, read once from start to end: blocks, lines, streams, facts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec

from wstrace.trace.records import Ranks
from wstrace.triage.extract.collect import Collector
from wstrace.triage.extract.engine_settings import Settings, settings_of
from wstrace.triage.extract.facts import Mention
from wstrace.triage.extract.refusals import REACH
from wstrace.triage.extract.scan import scan
from wstrace.triage.extract.scheduler_dump import steps_of
from wstrace.triage.ingest import interleaved, opening
from wstrace.triage.ingest.prefilter import Prefilter
from wstrace.triage.ingest.prefixes import Line, Unwrapper
from wstrace.triage.ingest.ranks import NOWHERE, merged, named, ranks_of, ranks_of_prefix
from wstrace.triage.ingest.squeeze import join
from wstrace.triage.ingest.vllm_prefix import of_v2_runner

if TYPE_CHECKING:
    from wstrace.triage.extract.facts import Fact, Origin, Text
    from wstrace.triage.ingest.squeeze import Squeezed

STREAMS: Final = 512
CARRY: Final = 1 << 15
LONG_LINE: Final = 8 * CARRY
# vLLM 0.13.0 to 0.33.0: distributed/parallel_state.py; ETP not in 0.29.0, in 0.30.0
# matches: 'rank5inworldsize8isassignedasDPrank0,PPrank1,PCPrank0,TPrank1,EPrankN/A'
_ASSIGNED: Final = re.compile(
    r"rank\d+inworldsize\d+isassignedasDPrank(\d+),PPrank(\d+)(?:,PCPrank\d+)?,TPrank(\d+)"
    r"(?:,ETPrank(?:\d+|N/A))?(?:,EPrank(\d+|N/A))?"
)


@dataclass
class _Stream:
    """The lines of one process that were not scanned yet, and the end of those that were.

    Facts that begin in the last REACH characters may go on in the next block: they wait.
    `done` is where, in the text of `carry`, the waiting part begins. `ranks` are vLLM's own
    words, `place` what a launcher's prefix or the file's name says.
    """

    label: str
    fresh: list[Line] = field(default_factory=list)
    carry: list[Line] = field(default_factory=list)
    done: int = 0
    ranks: Ranks = NOWHERE
    place: Ranks = NOWHERE


def parse(stream: BinaryIO, path: str, ranks: Ranks = NOWHERE) -> tuple[Text, Settings]:
    """The facts of an open binary stream; `path` names it in messages, `ranks` are those of a
    text that one process wrote."""
    parser = _Parser(path, ranks)
    prefilter = Prefilter()
    for block, follows in prefilter.kept(opening.blocks(stream, path)):
        if not follows:
            parser.flush()
        parser.feed(block)
    text = parser.finish()
    if prefilter.repeated:
        text.notes.append(
            f"about {prefilter.repeated} MB repeat what was read before: counts are too low"
        )
    return text, parser.settings


class _Parser:
    """Sorts lines by process and scans each process's text, one block at a time."""

    def __init__(self, path: str, ranks: Ranks) -> None:
        self._ranks = ranks
        self.settings = Settings()
        self._facts = Collector(path)
        self._streams: dict[str, _Stream] = {}
        self._last: dict[str, str] = {}
        self._previous: str | None = None
        self._unwrapper = Unwrapper()
        self._undecodable = 0
        self._cut = interleaved.CutMessages()

    def feed(self, block: opening.Block) -> None:
        """Take in one block of the input."""
        text = block.data.decode("utf-8", "replace")
        self._undecodable += text.count("\ufffd")
        self._facts.v2_runner |= of_v2_runner(text)
        for line in self._unwrapper.lines(text, block.first_line):
            self._sort(line)
        for key, stream in self._streams.items():
            if stream.fresh:
                self._scan(key, stream)

    def flush(self) -> None:
        """Nothing follows directly: scan what waits, and let the next line continue nothing."""
        rest = self._cut.rest()
        if rest:
            self._stream(interleaved.STREAM).fresh += rest
        for key, stream in self._streams.items():
            self._scan(key, stream, last=True)
        self._last.clear()
        self._previous = None

    def finish(self) -> Text:
        """The facts, with notes on what was odd about the input."""
        self.flush()
        text = self._facts.text()
        if self._cut.mixed:
            text.notes.append(
                "lines of several processes are mixed inside a message: it is given no rank"
            )
        if self._undecodable:
            text.notes.append(
                f"{self._undecodable} characters are not UTF-8 and were read as unknown ones"
            )
        return text

    def _sort(self, line: Line) -> None:
        if line.ends_stream:
            self._last.pop(line.outer, None)
            self._previous = None
            return
        if not line.label and self._cut.several(line):
            self._take_piece(line)
            return
        key = self._previous = self._stream_of(line)
        self._stream(key).fresh.append(line)

    def _stream(self, key: str) -> _Stream:
        stream = self._streams.get(key)
        if stream is None:
            self._make_room()
            outer, _, label = ("", "", "") if key == interleaved.STREAM else key.partition("\0")
            launched = ranks_of_prefix(outer)
            stream = self._streams[key] = _Stream(label, place=merged(self._ranks, launched))
        return stream

    def _take_piece(self, line: Line) -> None:
        """A piece of one of several cut messages; a whole one is of no known process."""
        key, begins, whole = self._cut.take(line)
        owner = self._stream(key)
        owner.fresh = [other for other in owner.fresh if other is not begins]
        self._stream(interleaved.STREAM).fresh += whole

    def _stream_of(self, line: Line) -> str:
        """The key of the process that wrote the line.

        A line without label continues the last labelled one of its collector; one without
        any prefix, after a prefixed one, is what a terminal wrapped.
        """
        if line.label:
            key = f"{line.outer}\0{line.label}"
            self._last[line.outer] = key
            self._cut.labelled(key, line)
            return key
        owner = self._cut.owner(line)
        if owner is not None:
            return owner
        if not line.outer and self._previous is not None:
            return self._previous
        return self._last.get(line.outer, line.outer)

    def _make_room(self) -> None:
        if len(self._streams) < STREAMS:
            return
        for key in list(self._streams)[: STREAMS // 4]:
            self._scan(key, self._streams.pop(key), last=True)

    def _scan(self, key: str, stream: _Stream, last: bool = False) -> None:
        squeezed = join(stream.carry + stream.fresh)
        length = len(squeezed.text)
        limit = length if last else max(stream.done, length - REACH)
        stream.ranks = _assigned(squeezed) or stream.ranks
        for position, fact in (*scan(squeezed, key), *steps_of(squeezed, key)):
            if stream.done <= position < limit:
                self._facts.add(_placed(fact, stream))
        if stream.fresh:
            for setting in settings_of(squeezed):
                self.settings.add(setting)
            self._facts.v2_runner |= "UsingV2ModelRunner" in squeezed.text
        stream.carry, begins = ([], length) if last else _carried(squeezed)
        stream.done = max(0, limit - begins)
        stream.fresh = []


def _carried(squeezed: Squeezed) -> tuple[list[Line], int]:
    """The last lines, CARRY characters and more, and where they begin in the text.

    Of a line that is much longer only its end is kept, or each block would be read twice.
    """
    length = len(squeezed.text)
    first = squeezed.index(max(0, length - CARRY))
    lines = list(squeezed.lines[first:])
    if lines and len(lines[0].text) > LONG_LINE:
        lines[0] = replace(lines[0], text=lines[0].text[-LONG_LINE // 2 :])
        kept = join(lines).text
        if len(kept) >= CARRY and squeezed.text.endswith(kept):
            return lines, length - len(kept)
        lines = list(squeezed.lines[first:])
    return lines, squeezed.starts[first] if squeezed.starts else 0


def _assigned(squeezed: Squeezed) -> Ranks | None:
    """The ranks that vLLM says it assigned to this process."""
    found = _ASSIGNED.search(squeezed.text)
    if found is None:
        return None
    ep = int(found[4]) if found[4] and found[4].isdigit() else None
    return Ranks(dp=int(found[1]), pp=int(found[2]), tp=int(found[3]), ep=ep)


def _placed(fact: Fact, stream: _Stream) -> Fact:
    """The fact in its process; a mention only counts, and junk is dense with them."""
    if isinstance(fact, Mention):
        return fact
    return replace(fact, origin=_labelled(fact.origin, stream))


def _labelled(origin: Origin, stream: _Stream) -> Origin:
    """The origin with its process label and ranks: a rank in the label comes first, and where
    vLLM says none, a launcher's or the file's counts."""
    ranks = msgspec.structs.replace(stream.ranks, **named(ranks_of(stream.label)))
    ranks = stream.place if ranks == NOWHERE else merged(stream.place, ranks)
    return replace(origin, label=stream.label, ranks=ranks)
