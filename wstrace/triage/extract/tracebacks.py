"""Tracebacks in squeezed text: the frames before a message, its caller and its phase."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from wstrace.triage.extract.facts import Frame
from wstrace.vllm.methods import CAPTURE_CALL, CAPTURES, CAPTURING, SERVED_BY, SHOWN_BY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wstrace.trace.records import Phase
    from wstrace.triage.ingest.squeeze import Squeezed

LONGEST: Final = 120
REACH: Final = 1 << 15
SOURCE: Final = 400  # characters of a frame's code that are looked at
# matches: "File'/x/vllm/v1/worker/workspace.py',line207,in_ensure_workspace_size"
_FRAME: Final = re.compile(
    r"File'(?P<path>[^'\n]{1,500}?\.pyc?|<[\w-]+>|[^'\n]{1,200}?)',line(?P<line>\d+),in"
)
# matches: '_ensure_workspace_size'
_FUNCTION: Final = re.compile(r"[\w.<>]+")
# matches: 'self.model_runner.capture_model('
_CALL: Final = re.compile(rf"\.(?P<name>{'|'.join(SHOWN_BY)})\(")
# matches: 'self.model_runner.execute_model('
_SERVED: Final = re.compile(rf"\.(?:{'|'.join(sorted(SERVED_BY))})\(")
_TRACEBACK: Final = "Traceback(mostrecentcalllast)"
# vLLM 0.13.0 to 0.33.0: the file of WorkspaceManager, whose frames are not the caller's.
_MANAGER: Final = "workspace.py"


def frames_of(squeezed: Squeezed) -> list[tuple[int, Frame]]:
    """All frames with their positions, in order."""
    text, found = squeezed.text, []
    matches = list(_FRAME.finditer(text))
    starts = [match.start() for match in matches[1:]] + [len(text)]
    for match, following in zip(matches, starts, strict=False):
        function = _function_at(squeezed, match.end())
        path = match["path"].replace("\\", "/")
        ends = match.end() + len(function)
        source = text[ends : min(following, ends + SOURCE)]
        frame = Frame(path, int(match["line"]), function, source)
        found.append((match.start(), frame))
    return found


def _function_at(squeezed: Squeezed, position: int) -> str:
    """The name that begins at `position`; it ends at the end of its line at the latest."""
    end = squeezed.end_of_line(position)
    name = _FUNCTION.match(squeezed.text, position, end)
    return name.group() if name else ""


def before(
    position: int, frames: Sequence[tuple[int, Frame]], squeezed: Squeezed
) -> tuple[Frame, ...]:
    """The frames of the traceback that ends at `position`, outermost first."""
    start = squeezed.text.rfind(_TRACEBACK, max(0, position - REACH), position)
    last = bisect_left(frames, position, key=itemgetter(0))
    first = bisect_left(frames, max(start, position - REACH), key=itemgetter(0))
    first = max(first, last - LONGEST)
    found = [frame for _, frame in frames[first:last]]
    if found and start < 0 and not first:
        began = frames[first][0]
        above = squeezed.text[max(0, began - SOURCE) : began]
        found[0] = replace(found[0], above=above)
    return tuple(found)


def caller(frames: Sequence[Frame]) -> Frame | None:
    """The frame that called the workspace manager; None where no frame entered it."""
    inner = len(frames)
    while inner and base(frames[inner - 1].path) == _MANAGER:
        inner -= 1
    return frames[inner - 1] if inner and inner < len(frames) else None


def phase(frames: Iterable[Frame]) -> Phase | None:
    """The phase that the frames' functions show, in the words of the trace format.

    The innermost decides; of a stack that was cut the source lines tell what they call. A text
    is read for what failed, so warm-up is taken for its part after the lock.
    """
    found = list(frames)
    shown = [phase for frame in found for phase in _shown(frame)]
    if not shown:
        return "serving" if any(_serves(frame) for frame in found) else None
    if "graph-estimate" in shown:  # it makes a throwaway KV cache and captures inside
        return "graph-estimate"
    return "post-lock-warmup" if shown[-1] == "warmup" else shown[-1]


def _shown(frame: Frame) -> Iterator[Phase]:
    """What a frame shows, from the outside in: the code above it, its name, its own code."""
    yield from _called(frame.above)
    if frame.function in SHOWN_BY:
        yield SHOWN_BY[frame.function]
    elif CAPTURING.match(frame.function) and CAPTURES.search(frame.path):
        yield "capture"
    yield from _called(frame.source)


def _called(source: str) -> Iterator[Phase]:
    if not source:
        return
    for found in _CALL.finditer(source):
        yield SHOWN_BY[found["name"]]
    if CAPTURE_CALL.search(source):
        yield "capture"


def _serves(frame: Frame) -> bool:
    return frame.function in SERVED_BY or bool(_SERVED.search(frame.above + frame.source))


def base(path: str) -> str:
    """The last part of a path of either kind."""
    # matches: "v1/worker.py"
    return re.split(r"[/\\]", path)[-1]


def module_path(path: str) -> str:
    """The path below the folder that holds the vllm package; the base name elsewhere."""
    # matches: "vllm/v1/worker.py"
    parts = re.split(r"[/\\]+", path)
    inside = [index for index, part in enumerate(parts[:-1]) if part == "vllm"]
    return "/".join(parts[inside[-1] :]) if inside else parts[-1]
