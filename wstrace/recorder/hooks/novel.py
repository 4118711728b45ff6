"""A request on the novel path: looked at before vLLM answers, then named and described.

What is there without vLLM's answer, for all hooks of requests: the recorder's (`requests`), the
guard's (`production`) and `--warn-at`'s (`nearness`).
"""

from __future__ import annotations

import math
import operator
import os
import threading
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from wstrace.recorder.guard import guarded
from wstrace.recorder.hooks import streams
from wstrace.recorder.hooks.growth import may_grow, try_grow
from wstrace.recorder.hooks.provenance import every_way, sliced, specs_above, specs_of
from wstrace.recorder.state.arenas import EMPTY, Arena, arena_of
from wstrace.recorder.state.process import Live
from wstrace.recorder.vllm_state import frames, identity
from wstrace.recorder.vllm_state.forward_context import graph_mode
from wstrace.recorder.vllm_state.workspace import is_locked, slot_at, tensor_at
from wstrace.trace.records import Request, Site, Slot

if TYPE_CHECKING:
    from wstrace.slicer.live.way import Way


def whole(size: Any) -> int:
    """The bytes as a plain integer that a record can hold.

    vLLM multiplies what the layer gave: that may be NumPy's integer, or a float, which PyTorch
    then refuses; 0 for one that is no number.
    """
    try:
        return operator.index(math.ceil(size))
    except (TypeError, ValueError, OverflowError):
        return 0


NO_SLOT = Slot()


@dataclass
class NovelRequest:
    """A request on the novel path, before vLLM has answered it.

    What `look` could not see stays as it is here.
    """

    bytes: int
    index: int | None
    slot: Slot = NO_SLOT
    arena: Arena = EMPTY
    forced: bool = False
    kept_bytes: int = 0
    locked: bool = False


def look(live: Live, manager: Any, novel: NovelRequest, grow: bool = True) -> None:
    """Look at the slot before vLLM does, and grow it first where the policy says so.

    `grow` False: vLLM has answered already.

    The lock comes last: a request whose arena could not be read (a field was renamed) is not
    one that a locked arena of no bytes was asked for.
    """
    if type(novel.bytes) is not int:
        novel.bytes = whole(novel.bytes)
    index = novel.index
    if index is None:
        return
    novel.slot = slot_at(manager, index)
    novel.arena = arena_of(tensor_at(manager, index))
    novel.locked = is_locked(manager)
    if grow and novel.bytes > novel.arena.bytes and may_grow(live, manager):
        kept = try_grow(live, manager, index, novel.bytes)
        novel.forced, novel.kept_bytes = kept is not None, kept or 0


def asker(live: Live, frame: FrameType) -> FrameType:
    """Who asked; the outermost frame where nobody outside vLLM's manager did."""
    found: FrameType | None = guarded(live, "caller", frames.calling_frame, frame)
    return found or guarded(live, "caller", frames.outermost, frame, default=frame)


def site_here(live: Live, caller: FrameType) -> Site:
    """`site_of`, or where that fails a site of what the code object itself says."""
    found: Site | None = guarded(live, "site", site_of, live, caller)
    if found is not None:
        return found
    code = caller.f_code
    file = os.path.basename(code.co_filename)
    return live.output.site(file, code.co_qualname, caller.f_lineno, code.co_name)


def site_of(live: Live, caller: FrameType) -> Site:
    """The site of a caller's frame; written when it is first seen in this process."""
    file = frames.file_of(caller)
    text = frames.caller_text(caller)
    return live.output.site(file, caller.f_code.co_qualname, caller.f_lineno, text)


def describe(
    live: Live, manager: Any, novel: NovelRequest, site: Site, caller: FrameType
) -> Way:
    """Write a novel request; returns the way that its formula belongs to.

    The record is written whatever its pieces do, also where a signal handler raises in them.
    """
    request = _certain(live, novel, site)
    way: Way | None = None
    try:
        way = _completed(live, manager, novel, request, caller)
    finally:
        live.output.write(request)
    return way or every_way()


def request_of(
    live: Live, manager: Any, novel: NovelRequest, site: Site, caller: FrameType
) -> Request:
    """A request as `describe` records it, not written."""
    request = _certain(live, novel, site)
    _completed(live, manager, novel, request, caller)
    return request


def _certain(live: Live, novel: NovelRequest, site: Site) -> Request:
    """What is known of a request without a look at anything."""
    return Request(
        site=site.id,
        slot=novel.slot,
        bytes=novel.bytes,
        arena=novel.arena.bytes,
        phase=live.phases.current,
        locked=novel.locked,
        capturing=live.capture.active,
        graph=live.capture.graph if live.capture.active else None,
        thread=threading.get_ident(),
        manager=live.arenas.manager_id,
    )


def _completed(
    live: Live, manager: Any, novel: NovelRequest, request: Request, caller: FrameType
) -> Way | None:
    """The pieces of a request, each guarded; the way that its formula belongs to."""
    for what, piece in _PIECES:
        guarded(live, f"request: {what}", piece, live, manager, novel, request, caller)
    way: Way | None = guarded(live, "request: shapes", _shapes, live, request, caller)
    return way


def _scheduler(
    live: Live, manager: Any, novel: NovelRequest, request: Request, caller: Any
) -> None:
    request.step = live.steps.snapshot()


def _where(
    live: Live, manager: Any, novel: NovelRequest, request: Request, caller: Any
) -> None:
    request.generation = live.arenas.generation(novel.index or 0)
    if novel.index is not None:
        request.address = arena_of(tensor_at(manager, novel.index)).address


def _device(
    live: Live, manager: Any, novel: NovelRequest, request: Request, caller: Any
) -> None:
    request.stream = streams.current_stream()
    request.cudagraph_mode = graph_mode()


def _asker(
    live: Live, manager: Any, novel: NovelRequest, request: Request, caller: Any
) -> None:
    request.stack = frames.stack_of(caller)
    request.layer = frames.layer_of(caller)


def _kinds(
    live: Live, manager: Any, novel: NovelRequest, request: Request, caller: Any
) -> None:
    request.classes = identity.classes_of(caller)


def _shapes(live: Live, request: Request, caller: FrameType) -> Way:
    raw = specs_above(caller)
    request.specs = specs_of(raw)
    request.provenance, way = sliced(live, caller, raw)
    return way


_PIECES = (
    ("scheduler", _scheduler),
    ("arena", _where),
    ("device", _device),
    ("stack", _asker),
    ("classes", _kinds),
)
