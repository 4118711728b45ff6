"""vLLM's refusals in squeezed text: all forms of the message, whole, cut or nested."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from wstrace.triage.extract import tracebacks
from wstrace.triage.extract.facts import (
    SITE,
    SIZE,
    Mention,
    PrintedSize,
    Refusal,
    origin_at,
    printed_size,
)
from wstrace.triage.extract.retold import FUNCTION_WORD, file_of, files_of
from wstrace.triage.ingest.quoted import is_quoted, is_talk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wstrace.triage.extract.facts import Fact, Frame, Origin
    from wstrace.triage.ingest.squeeze import Squeezed

REACH: Final = 900
HEADLESS_REACH: Final = 240
TAIL_REACH: Final = 40
LAYER_REACH: Final = 6000
# vLLM 0.13.0 to 0.33.0: how layers call their custom ops
# matches: "torch.ops.vllm.unified_attention(q,k,'model.layers.3.self_attn.attn'"
_LAYER: Final = re.compile(
    r"torch\.ops\.vllm\.[\w.]{1,80}\([^()'\n]{0,300}'((?:[\w]+\.)*layers\.\d+(?:\.\w+)*)'"
)
# vLLM 0.13.0 to 0.33.0: refusals of the arena; of a persistent resource from 0.31.0 on
# matches: 'Workspaceislockedbut'
_START: Final = re.compile(r"[Ww]orkspaceislocked")
# vLLM 0.13.0 to 0.33.0: the same words, as a person's lower case has them.
_LOCKED_BUT: Final = "workspaceislockedbut"
# matches: 'allocation...'
_ALLOCATION: Final = re.compile(
    r"allocation(?:(?:from|for)?(?:\.\.\.|…|<(?:\.\.\.|…)>|\[(?:\.\.\.|…)\])|from|for)?"
)
# matches: "'turboquant_attn.py:747:_continuation_prefill'"
_CALLER: Final = re.compile(
    r"[/']*(?:[^'\s]{0,250}/)?(?P<file>[\w.\-]+\.pyc?)(?::(?P<line>\d+))?"
    r"(?::(?P<function>[\w.<>]+?))?(?P<closed>[/']+|(?=requires\d))"
)
# matches: "'turboquant_attn.py:747:_contin"
_CALLER_CUT: Final = re.compile(
    r"[/']*(?:[^'\s]{0,250}/)?(?P<file>[\w.\-]+\.pyc?):(?P<line>\d+):(?P<function>[\w.<>]*)"
)
# matches: "'attention'requires16.00MB"
_NAMED: Final = re.compile(r"[/']+(?P<name>[^']{1,120})[/']+(?=requires)")
# matches: 'requires16.00MB'
_REQUIRES: Final = re.compile(rf"requires{SIZE.format('size')}")
# matches: 'requires{required}MB'
_PLACEHOLDER: Final = re.compile(r"requires[^\d]{1,40}[KMGT]i?B|requires[{<%]|requires\.\.")
# the arena as vLLM says it, `currentsizeis`, and as people do: `lockedsize3.06MB`, `(had0.88MB`
_HAD: Final = (
    r"[,.;-]?(?:and|but)?(?:(?:current|locked)size(?:is|was|of)?|\(?had(?:only)?"
    r"|(?:it)?(?:is)?locked(?:at|to|with)|(?:it)?ha[sd](?:only)?):?"
)
# matches: ',lockedsize2.06MB'
_CURRENT: Final = re.compile(rf"{_HAD}{SIZE.format('size')}")
# vLLM's own words before the size; in others it is a person's retelling
# matches: ',currentsizeis2.05MB'
_VERBATIM: Final = re.compile(r"[,.;]?(?:and)?currentsizeis")
# matches: "mla.py:7:forward'requires16.00MB,currentsizeis2.05MB"
_HEADLESS: Final = re.compile(
    rf"(?P<caller>[\w.\-]{{1,80}}\.py:\d+(?::[\w.<>]{{1,80}})?)[/']*"
    rf",?requires{SIZE.format('required')}{_HAD}{SIZE.format('current')}"
)
# matches: 'turboquant_attn'
_FILE_END: Final = re.compile(r"[\w.\-]{1,80}$")
# matches: 'requires16.00MB,currentsizeis2.05MB.Workspacegrowthisnotallowed'
_TAIL: Final = re.compile(
    rf"requires{SIZE.format('required')},?currentsizeis{SIZE.format('current')}"
    r"\.?Workspacegrowthisnotallowed"
)
# matches: 'MB,currentsizeis2'
_MIDDLE: Final = re.compile(rf"MB{_HAD}\d")
# vLLM 0.31.0 on (not in 0.30.0): get_persistent_resource.
_NOT_ALLOCATED: Final = "wasnotallocatedduring"
# matches: "('marlin',0,7)wasnotallocatedduring"
_KEY: Final = re.compile(r"(?P<key>.{1,500}?)wasnotallocatedduring")
# matches: "<class 'torch.Tensor'"
_CLASS: Final = re.compile(r"<class '([\w.]+)'(?!>)")
# matches: "locked but ('marlin', 0, 7) was not allocated"
_RAW_KEY: Final = re.compile(r"locked but (?P<key>.{1,500}?) was not allocated")
# vLLM 0.32.0 on (not in 0.31.0): MoEPermuteScratch.reserve
# matches: 'MoEpermutescratchrequires65536rows,currentcapacityis32768rows'
_SCRATCH: Final = re.compile(
    r"MoEpermutescratchrequires(?P<rows>\d+)rows(?:,currentcapacityis(?P<have>\d+)rows)?"
)
# vLLM 0.31.0 on (not in 0.30.0): get_persistent
# matches: "Persistentworkspace'locks'hasshape=(4,),dtype=int;requestedshape=(8,),dtype=int"
_SHAPE: Final = re.compile(
    r"Persistentworkspace(?P<key>.{1,300}?)hasshape=(?P<have>.{1,150}?),dtype=(?P<old>[\w.]+);"
    r"requestedshape=(?P<want>.{1,150}?),dtype=(?P<new>[\w.]*\w)"
)
# vLLM 0.28.0 on (not in 0.27.1): a lane's number against the manager's lanes
# matches: 'Workspacelane1isnotconfigured;managerhas1lane'
_LANE: Final = re.compile(r"Workspacelane(?P<lane>\d+)isnotconfigured;managerhas(?P<n>\d+)lane")

# vLLM 0.13.0 to 0.33.0: the one error that _ensure_workspace_size raises, as a stack shows it
_RAISES: Final = "_ensure_workspace_size"
# a layer's file: people leave out frames, and those of the engine ask for nothing
# matches: '/x/vllm/v1/attention/backends/turboquant_attn.py'
_LAYER_FILE: Final = re.compile(r"(?:^|/)vllm/(?!v1/(?:worker|engine|executor)/|entrypoints/)")
# matches: 'raiseAssertionError('
_RAISED: Final = re.compile(r"raiseAssertionError\((?![\w.]*Error\b)")

Found = tuple[int, "Fact"]


def refusals_of(
    squeezed: Squeezed, stream: str, stack: list[tuple[int, Frame]]
) -> Iterator[Found]:
    text = squeezed.text
    starts = [match.start() for match in _START.finditer(text)]
    for start, following in pairwise([*starts, len(text)]):
        end = min(following, start + REACH)
        if text[start : start + len(_LOCKED_BUT)].lower() == _LOCKED_BUT:
            refusal = _refusal(squeezed, start, end, stream, stack)
            yield start, refusal or Mention(origin_at(squeezed, start, stream))
        else:
            yield start, Mention(origin_at(squeezed, start, stream))
    for middle in _MIDDLE.finditer(text):
        if _inside(middle.start(), starts):
            continue
        match = _headless_at(text, middle)
        if match and not is_talk(squeezed, match.start()):
            yield match.start(), _headless(squeezed, match, stream, stack)
    yield from _unsaid(squeezed, stream, stack)
    for pattern, make in ((_SHAPE, _shape), (_LANE, _lane)):
        for match in pattern.finditer(text):
            if "{" not in match.group():
                yield match.start(), make(squeezed, match, stream, stack)


def _unsaid(squeezed: Squeezed, stream: str, stack: list[tuple[int, Frame]]) -> Iterator[Found]:
    """Stacks that end where the manager raises, with the message cut off: the site is known."""
    ends = [position for position, _ in stack[1:]] + [len(squeezed.text)]
    for number, ((position, frame), end) in enumerate(zip(stack, ends, strict=False)):
        if frame.function != _RAISES or not _RAISED.match(frame.source):
            continue
        if _START.search(squeezed.text, position, end):
            continue
        before = tracebacks.before(position, stack[:number], squeezed)
        origin = origin_at(squeezed, position, stream)
        asks = tracebacks.caller((*before, frame))
        if asks and _LAYER_FILE.search(asks.path):
            yield position, _placed(Refusal("arena", origin, frames=(*before, frame)))


def _headless_at(text: str, middle: re.Match[str]) -> re.Match[str] | None:
    """The message around its `middle` whose beginning is lost: from the last FILE.py:LINE on,
    or, where that is lost too, from `requires` to its last words."""
    suffix = text.rfind(".py:", max(0, middle.start() - HEADLESS_REACH), middle.start())
    name = _FILE_END.search(text, max(0, suffix - 80), suffix) if suffix >= 0 else None
    match = _HEADLESS.match(text, name.start()) if name else None
    if match is not None:
        return match
    requires = text.rfind("requires", max(0, middle.start() - TAIL_REACH), middle.start())
    return _TAIL.match(text, requires) if requires >= 0 else None


def _inside(position: int, starts: list[int]) -> bool:
    index = bisect_right(starts, position)
    return index > 0 and position < starts[index - 1] + REACH


def _refusal(
    squeezed: Squeezed, start: int, end: int, stream: str, stack: list[tuple[int, Frame]]
) -> Refusal | None:
    body = squeezed.text[start + len(_LOCKED_BUT) : end]
    refusal = _said(squeezed, start, body, origin_at(squeezed, start, stream))
    if refusal is None or is_talk(squeezed, start):
        return None
    frames = tracebacks.before(start, stack, squeezed)
    refusal = replace(refusal, quoted=is_quoted(squeezed, start))
    if refusal.kind == "scratch":
        return replace(refusal, frames=frames)
    layer = _layer_before(squeezed.text, start)
    return _placed(replace(refusal, frames=frames, layer=layer))


def _said(squeezed: Squeezed, start: int, body: str, origin: Origin) -> Refusal | None:
    """What the message itself says. A text may be dense with halves of it: they end here,
    before anything is looked for around them."""
    if _ALLOCATION.match(body):
        return _arena(squeezed, start, body, origin)
    scratch = _SCRATCH.match(body)
    if scratch:
        return _scratch(scratch, origin)
    key = _KEY.match(body) if _NOT_ALLOCATED in body else None
    if key is None or "{" in key["key"]:
        return None
    raw = _RAW_KEY.search(squeezed.line(start).text)
    return Refusal("persistent", origin, name=raw["key"] if raw else _spaced(key["key"]))


def _layer_before(text: str, position: int) -> str | None:
    """The layer whose custom op the traceback shows: compiled code has its name in the call."""
    found = _LAYER.findall(text, max(0, position - LAYER_REACH), position)
    return found[-1] if found else None


def _arena(squeezed: Squeezed, start: int, body: str, origin: Origin) -> Refusal | None:
    body = body[_ALLOCATION.match(body).end() :]  # type: ignore[union-attr]
    site = _CALLER.match(body)
    cut = None if site else _CALLER_CUT.match(body)
    named = None if site or cut else _NAMED.match(body)
    after = next((found.end() for found in (site, named) if found), 0)
    requires = None if cut else _REQUIRES.match(body, after)
    placed = cut or (site and site["line"])
    if requires is None and not (
        placed and _is_error(squeezed, start) and not _PLACEHOLDER.match(body, after)
    ):
        return None
    current = _CURRENT.match(body, requires.end()) if requires else None
    name = named["name"] if named and ".py:" not in named["name"] else None
    parts = _site_parts(site) if site else _site_named(name) or _site_before(squeezed, start)
    name = None if "function" in parts and parts["function"] == name else name
    if cut:
        parts = {"file": cut["file"], "line": int(cut["line"])}
    return Refusal(
        "arena",
        origin,
        required=printed_size(requires["size"]) if requires else None,
        current=printed_size(current["size"]) if current else None,
        name=None if name == "unknown" else name,
        retold=_is_retold(body, requires, current)
        or (bool(parts) and "line" not in parts)
        or bool(site and not site["line"]),
        **parts,
    )


def _is_retold(
    body: str, requires: re.Match[str] | None, current: re.Match[str] | None
) -> bool:
    """True where the sizes stand in other words than vLLM's, or without its two decimals."""
    if requires is None:
        return False
    whole = "." not in requires["size"] or not requires["size"].endswith("MB")
    return whole or bool(current and not _VERBATIM.match(body, requires.end()))


def _site_named(name: str | None) -> dict[str, Any]:
    """The site where a function stands in the caller's place: a known one."""
    files = files_of(name) if name else ()
    return {"file": files[0] if len(files) == 1 else None, "function": name} if files else {}


def _site_before(squeezed: Squeezed, start: int) -> dict[str, Any]:
    """The site that the sentence names before a message without a caller: a known one."""
    line = squeezed.line(start).text
    lead = line[: max(0, line.lower().find("workspace is locked"))]
    for name in reversed(FUNCTION_WORD.findall(lead)):
        if files_of(name):
            return {"file": file_of(name, lead), "function": name}
    return {}


def _site_parts(site: re.Match[str]) -> dict[str, Any]:
    line = int(site["line"]) if site["line"] else None
    return {"file": site["file"], "line": line, "function": site["function"]}


def _headless(
    squeezed: Squeezed, match: re.Match[str], stream: str, stack: list[tuple[int, Frame]]
) -> Refusal:
    """The message with its beginning cut off."""
    site = SITE.search(match.groupdict().get("caller") or "")
    refusal = Refusal(
        "arena",
        origin_at(squeezed, match.start(), stream),
        required=printed_size(match["required"]),
        current=printed_size(match["current"]),
        retold="currentsizeis" not in match.group(),
        frames=tracebacks.before(match.start(), stack, squeezed),
    )
    if site is None:
        return _placed(refusal)
    parts = _site_parts(site)
    return _placed(replace(refusal, **parts | {"file": _unglued(squeezed, match, site)}))


def _unglued(squeezed: Squeezed, match: re.Match[str], site: re.Match[str]) -> str:
    """The file's name without the words before it that the squeezing glued to it."""
    line = squeezed.line(match.end("caller") - 1).text
    # matches: "turboquant_attn.py:747"
    places = re.findall(r"([\w.\-]+\.pyc?):(\d+)\b", line)
    names = [name for name, number in places if number == site["line"]]
    return next((name for name in names if site["file"].endswith(name)), site["file"])


def _scratch(match: re.Match[str], origin: Origin) -> Refusal:
    return Refusal(
        "scratch",
        origin,
        file="moe_permute_unpermute.py",
        function="reserve",
        required=PrintedSize(f"{match['rows']} rows", None),
        current=PrintedSize(f"{match['have']} rows", None) if match["have"] else None,
    )


def _shape(
    squeezed: Squeezed, match: re.Match[str], stream: str, stack: list[tuple[int, Frame]]
) -> Refusal:
    detail = (
        f"has shape {_spaced(match['have'])} of {match['old']}, "
        f"requested {_spaced(match['want'])} of {match['new']}"
    )
    return _placed(
        Refusal(
            "shape",
            origin_at(squeezed, match.start(), stream),
            name=_spaced(match["key"]),
            detail=detail,
            frames=tracebacks.before(match.start(), stack, squeezed),
        )
    )


def _lane(
    squeezed: Squeezed, match: re.Match[str], stream: str, stack: list[tuple[int, Frame]]
) -> Refusal:
    refusal = Refusal(
        "lane",
        origin_at(squeezed, match.start(), stream),
        lane=int(match["lane"]),
        detail=f"lane {match['lane']} asked for, the manager has {match['n']}",
        frames=tracebacks.before(match.start(), stack, squeezed),
    )
    return _placed(refusal)


def _placed(refusal: Refusal) -> Refusal:
    """The refusal with what its traceback adds: file, line, function."""
    frame = tracebacks.caller(refusal.frames)
    if frame is None or (refusal.file and refusal.function):
        return refusal
    base = tracebacks.base(frame.path)
    if refusal.file not in (None, base) or refusal.line not in (None, frame.line):
        return refusal
    return replace(refusal, file=base, line=frame.line, function=frame.function or None)


def _is_error(squeezed: Squeezed, start: int) -> bool:
    line = squeezed.line(start)
    return line.error or squeezed.text.endswith(("Error:", "Error('", "error'"), 0, start)


def _spaced(squeezed: str) -> str:
    """Blanks back where a Python repr has them."""
    key = squeezed.replace(",", ", ").replace(", )", ",)").replace("<class'", "<class '")
    return _CLASS.sub(r"<class '\1'>", key)
