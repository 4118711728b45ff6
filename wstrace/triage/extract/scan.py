"""Find vLLM's messages in squeezed text: refusals, debug lines, faults."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from wstrace.trace.site_key import SiteKey
from wstrace.triage.extract import tracebacks
from wstrace.triage.extract.facts import (
    SITE,
    SIZE,
    Captured,
    Fault,
    KvMemory,
    LockState,
    Origin,
    Refusal,
    Resize,
    origin_at,
    printed_size,
)
from wstrace.triage.extract.lookalikes import growths_by_hand, relatives_of
from wstrace.triage.extract.refusals import refusals_of
from wstrace.triage.extract.retold import retold_of
from wstrace.triage.extract.stages import CAPTURED, stages_of
from wstrace.triage.ingest import repair
from wstrace.triage.ingest.squeeze import join

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstrace.triage.extract.facts import Fact, Frame
    from wstrace.triage.extract.refusals import Found
    from wstrace.triage.ingest.squeeze import Squeezed

# vLLM 0.13.0 to 0.33.0, under VLLM_DEBUG_WORKSPACE; the lane: 0.28.0 on. People leave out
# the words before the caller.
# matches: "Resizedworkspacefrom'mla.py:7:forward':0.00MB->16.00MB(ubatch0,lane1)"
_RESIZE: Final = re.compile(
    r"(?:Resizedworkspacefrom[/']*(?P<caller>[^']{1,300}?)"
    r"|[/'](?P<bare>[\w.\-]{1,80}\.py:\d+:[\w.<>]{1,80}))"
    rf"[/']*:{SIZE.format('before')}"
    rf"(?:->?|>){SIZE.format('after')}"
    r"(?:\((?:(?P<every>\d+)ubatches|ubatch(?P<ubatch>\d+)(?:,lane(?P<lane>\d+))?))?"
)
# vLLM 0.13.0 to 0.33.0, under VLLM_DEBUG_WORKSPACE; unlocked: not in 0.16.0, in 0.18.1
# matches: 'Workspacelocked.Currentsizes:[1.02,0.0]'
_STATE: Final = re.compile(
    r"Workspace(?P<un>un)?locked\.Currentsizes:\[(?P<sizes>[\d.,eE+-]*)\]"
)
# vLLM 0.13.0 to 0.33.0: determine_available_memory
# matches: 'AvailableKVcachememory:38.58GiB'
_KV: Final = re.compile(r"AvailableKVcachememory:(?P<size>-?[\d.]+)GiB")
# CUDA 12 and 13: the text of cudaErrorIllegalAddress, and its name
# matches: 'illegalmemoryaccess'
_ILLEGAL: Final = re.compile(r"illegalmemoryaccess|ErrorIllegalAddress")
# PyTorch from 2.9 on (vLLM 0.13.0's): its allocator's error; CUDA's and HIP's own
# matches: 'CUDAoutofmemory'
_MEMORY: Final = re.compile(r"OutOfMemoryError|(?:CUDA|HIP)(?:error:)?outofmemory")
# the same message, and what was free then
# matches: 'Triedtoallocate26.21GiB'
_TRIED: Final = re.compile(r"Triedtoallocate(?P<size>[\d.]+[KMG]iB)")
# matches: 'ofwhich1.1GiBisfree'
_FREE: Final = re.compile(r"ofwhich(?P<size>[\d.]+[KMG]iB)isfree")


def scan(squeezed: Squeezed, stream: str) -> Iterator[Found]:
    """Every fact of one process's text, with its position there."""
    stack = tracebacks.frames_of(squeezed)
    refusals = list(refusals_of(squeezed, stream, stack))
    if not any(_is_complete(fact) for _, fact in refusals) or _swallowed(squeezed, refusals):
        refusals = _repaired(squeezed, stream) or refusals
    said = {squeezed.index(at) for at, fact in refusals if isinstance(fact, Refusal)}
    yield from refusals
    yield from retold_of(squeezed, stream, said)
    yield from _debug_lines(squeezed, stream)
    yield from _faults(squeezed, stream, stack)
    yield from stages_of(squeezed, stream)
    yield from relatives_of(squeezed, stream, stack)
    yield from growths_by_hand(squeezed, stream)


def _is_complete(fact: Fact) -> bool:
    if not isinstance(fact, Refusal):
        return False
    return fact.kind != "arena" or None not in (fact.current, fact.file, fact.function)


def _swallowed(squeezed: Squeezed, refusals: list[Found]) -> bool:
    """Whether a caller's name holds a prefix that lines share: it was wrapped there."""
    names = [
        str(SiteKey(f.file, f.function or ""))
        for _, f in refusals
        if isinstance(f, Refusal) and f.file
    ]
    if not names:
        return False
    prefixes = {"".join(prefix.split()) for prefix in repair.shared_prefixes(squeezed.lines)}
    return any(prefix in name for prefix in prefixes if len(prefix) > 2 for name in names)


def _repaired(squeezed: Squeezed, stream: str) -> list[Found]:
    """Complete refusals that appear when an unknown prefix is taken off, else nothing."""
    if not repair.worth_trying(squeezed.text):
        return []
    for lines in repair.without_shared_prefix(squeezed.lines):
        shorter = join(lines)
        if shorter.text == squeezed.text:
            return []
        found = refusals_of(shorter, stream, tracebacks.frames_of(shorter))
        whole = [
            (squeezed.starts[shorter.index(position)], fact)
            for position, fact in found
            if _is_complete(fact)
        ]
        if whole:
            return whole
    return []


def _debug_lines(squeezed: Squeezed, stream: str) -> Iterator[Found]:
    text = squeezed.text
    for pattern, make in _LINES:
        for match in pattern.finditer(text):
            yield match.start(), make(match, origin_at(squeezed, match.start(), stream))


def _resize(match: re.Match[str], origin: Origin) -> Resize:
    site = SITE.search(match["caller"] or match["bare"])
    return Resize(
        origin,
        file=site["file"] if site else None,
        line=int(site["line"]) if site and site["line"] else None,
        function=site["function"] if site else None,
        before=printed_size(match["before"]),
        after=printed_size(match["after"]),
        ubatch=_number(match["ubatch"]),
        lane=_number(match["lane"]),
        every_ubatch=_number(match["every"]),
    )


def _state(match: re.Match[str], origin: Origin) -> LockState:
    sizes = (float(size) for size in match["sizes"].split(",") if size)
    return LockState(origin, not match["un"], tuple(round(size * (1 << 20)) for size in sizes))


def _kv(match: re.Match[str], origin: Origin) -> KvMemory:
    return KvMemory(origin, f"{match['size']} GiB")


def _captured(_: re.Match[str], origin: Origin) -> Captured:
    return Captured(origin)


_LINES: Final = ((_RESIZE, _resize), (_STATE, _state), (_KV, _kv), (CAPTURED, _captured))


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _faults(squeezed: Squeezed, stream: str, stack: list[tuple[int, Frame]]) -> Iterator[Found]:
    text = squeezed.text
    for match in _ILLEGAL.finditer(text) if "llegal" in text else ():
        frames = tracebacks.before(match.start(), stack, squeezed)
        origin = origin_at(squeezed, match.start(), stream)
        yield match.start(), Fault("illegal_access", origin, frames=frames)
    for match in _MEMORY.finditer(text) if "emory" in text else ():
        tried = _TRIED.search(text, match.start(), match.start() + 300)
        free = _FREE.search(text, match.start(), match.start() + 300)
        frames = tracebacks.before(match.start(), stack, squeezed)
        origin = origin_at(squeezed, match.start(), stream)
        yield (
            match.start(),
            Fault(
                "out_of_memory", origin, tried and tried["size"], frames, free and free["size"]
            ),
        )
