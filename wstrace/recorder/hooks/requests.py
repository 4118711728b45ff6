"""The hot path: the wrapper of `WorkspaceManager._ensure_workspace_size`.

A request that was seen before in this phase costs one dict look-up. The key is the caller's
code object and instruction, the bytes, and the slot where the manager has several, with the
manager where several live (`ManagerState.slot_of`). Where the request's formula was read from
callers or from an object that may be of another class, the entry also has the way on which it
was made (`slicer.live.way`), and another way is novel. All else (shapes, stack, layer,
provenance, growth) happens on the novel path (`novel`). So two shapes of equal bytes at one
call, on one way, count as one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from wstrace.recorder.guard import guarded
from wstrace.recorder.hooks import nearness, production, streams
from wstrace.recorder.hooks.novel import NovelRequest, asker, describe, look, site_here
from wstrace.recorder.hooks.posing import CODE_NAME, Ensure, pose_as
from wstrace.recorder.state.arenas import Arena
from wstrace.recorder.state.attached import INDEX
from wstrace.recorder.state.counters import Entry, HotKey, Tally
from wstrace.recorder.state.process import Live
from wstrace.recorder.vllm_state.workspace import slot_at
from wstrace.trace.records import Failure, Growth, Site
from wstrace.vllm.methods import VIEWS

if TYPE_CHECKING:
    from wstrace.slicer.live.way import Way


def depth_of_caller(live: Live) -> int:
    """Frames from a wrapper of `_ensure_workspace_size` up to who asked the manager."""
    return 3 if live.hooks.is_set(VIEWS.label) else 2


def wrap_ensure(live: Live, below: int = 0) -> Callable[[Ensure], Ensure]:
    """The maker of the hot wrapper, for `Hooks.wrap`; `below`: wrappers around it."""
    from torch.compiler import is_dynamo_compiling

    getframe, hot, manager = sys._getframe, live.counters.hot, live.manager
    depth = depth_of_caller(live) + below

    def make(original: Ensure) -> Ensure:
        def _ensure_workspace_size(self: Any, required_bytes: int) -> Any:
            # Dynamo takes this for true where it traces; half the cost of is_compiling, which
            # is asked of what is not hot.
            if is_dynamo_compiling():
                return original(self, required_bytes)
            index: int | None = None  # where vLLM will say what is wrong with the slot
            try:
                index = 0 if (slot_of := manager.slot_of) is None else slot_of(self)
                frame = getframe(depth)
                # A code object's hash goes over its constants each time; its id does not.
                # The counters keep it alive, so that no other code can get the id.
                key = (id(frame.f_code), frame.f_lasti, required_bytes, index)
                entry = hot.get(key)
                if entry is not None and (code := entry.caller) is not None:
                    # Two levels of callers, spelled out: a call costs as much as both.
                    caller = frame.f_back
                    if (
                        caller is None
                        or caller.f_lasti != entry.place
                        or caller.f_code is not code
                        or (
                            entry.outer is not None
                            and (
                                (caller := caller.f_back) is None
                                or caller.f_lasti != entry.outer_place
                                or caller.f_code is not entry.outer
                            )
                        )
                    ):
                        entry = entry.taken(frame)
            except Exception:  # a thread's first function has no caller, or there is no slot
                frame, key, entry = getframe(), None, None
            if entry is not None:
                entry.calls += 1
                try:  # costs nothing where nothing is raised
                    return original(self, required_bytes)
                except BaseException as error:
                    guarded(live, "failure", refused, live, self, required_bytes, frame, error)
                    raise
            novel = guarded(live, "slot", unseen, live, self, required_bytes, index, key)
            try:
                result = original(self, required_bytes)
            except BaseException as error:
                asked = (self, novel or required_bytes, frame, error)
                guarded(live, "failure", refused, live, *asked)
                raise
            _ = novel and guarded(live, "request", answered, live, self, novel, frame, key)
            return result

        pose_as(_ensure_workspace_size, CODE_NAME)
        return _ensure_workspace_size

    return make


def unseen(
    live: Live, manager: Any, required_bytes: int, index: int | None, key: HotKey | None
) -> NovelRequest | None:
    """A request that is not hot, before vLLM answers; None: it is not to be looked at."""
    if _exporting() or guarded(live, "count", live.counters.count_beyond, key):
        return None
    novel = NovelRequest(required_bytes, None if index is None else index & INDEX)
    guarded(live, "slot", look, live, manager, novel)
    return novel


def _exporting() -> bool:
    """Whether an export runs Python with tensors that hold no bytes."""
    from torch.compiler import is_compiling

    return bool(is_compiling())


def answered(
    live: Live, manager: Any, novel: NovelRequest, frame: FrameType, key: HotKey | None
) -> None:
    """Record what is new about a request that vLLM answered."""
    with live.counters.lock:
        live.arenas.turn_to(manager)
        caller = asker(live, frame)
        hot_code = frame.f_code
        if key is None:
            hot_code = caller.f_code
            slot = live.manager.key_of(manager, novel.index)
            key = (id(caller.f_code), caller.f_lasti, novel.bytes, slot)
            known_entry = live.counters.hot.get(key)
            if known_entry is not None:
                known_entry.calls += 1
                return
        site = site_here(live, caller)
        guarded(live, "growth", _write_growths, live, manager, novel, site.id)
        if novel.forced and live.settings.guard:
            guarded(live, "guard", production.met, live, manager, novel, frame)
        if live.near is not None:
            guarded(live, "near", nearness.learn, live, manager, novel, site, caller)
        guarded(live, "capture", _note_capture, live, novel)
        guarded(live, "streams", streams.asked, live, novel.slot, site.id, caller)
        if live.counters.holds() >= live.settings.max_keys:
            live.output.truncate("keys")
            _record_beyond_cap(live, manager, novel, site, caller)
            if caller is frame and live.near is None and not live.streams.on:
                largest = _tally(live, novel, site).max_bytes
                beyond = Entry(0, site.id, novel.slot, largest)
                live.counters.remember_beyond(key, hot_code, beyond)
            return
        entry = Entry(1, site.id, novel.slot, novel.bytes)
        mark = (*key, live.phases.current, live.capture.active)
        written = live.counters.written_ways(mark)
        known = next((way for way in written if way.holds(frame)), None)
        if known is None:
            known = _seen_from(frame, caller, describe(live, manager, novel, site, caller))
            written.append(known)  # known once it is written, not before
        if live.streams.on:  # every request is judged, so none may become known
            _tally(live, novel, site).add(novel.bytes)
            return
        entry.follow(known)
        live.counters.remember(key, hot_code, entry)


def _tally(live: Live, novel: NovelRequest, site: Site) -> Tally:
    return live.counters.tally(site.id, novel.slot, live.phases.current)


def _note_capture(live: Live, novel: NovelRequest) -> None:
    live.capture.requested(novel.slot, live.arenas.generation(novel.index or 0))


def _seen_from(frame: FrameType, caller: FrameType, way: Way) -> Way:
    """The way from `frame`, on which the hot path stands, to the caller and beyond."""
    if frame is caller or way.check() is None:
        return way
    gap: list[tuple[CodeType, int]] = []
    outer: FrameType | None = frame
    while outer is not None and outer is not caller:
        outer = outer.f_back
        if outer is not None:
            gap.append((outer.f_code, outer.f_lasti))
    kinds = tuple((up + len(gap), name, kind) for up, name, kind in way.kinds)
    values = tuple((up + len(gap), name, key, held) for up, name, key, held in way.values)
    return replace(way, above=(*gap, *way.above), kinds=kinds, values=values)


def _record_beyond_cap(
    live: Live, manager: Any, novel: NovelRequest, site: Site, caller: FrameType
) -> None:
    """Past the cap only a site's new maximum in this phase is written."""
    if _tally(live, novel, site).add(novel.bytes):
        describe(live, manager, novel, site, caller)


def _write_growth(
    live: Live, manager: Any, novel: NovelRequest, site: int, change: tuple[int, Arena, Arena]
) -> None:
    index, before, after = change
    live.output.write(
        Growth(
            site=site,
            slot=slot_at(manager, index),
            before=before.bytes,
            after=after.bytes,
            phase=live.phases.current,
            step=live.steps.snapshot(),
            generation=live.arenas.generation(index),
            address=after.address,
            old_address=before.address,
            locked=novel.locked,
            capturing=live.capture.active,
            forced=novel.forced,
            kept_bytes=novel.kept_bytes,
            window=live.window(),
            manager=live.arenas.manager_id,
        )
    )


def _write_growths(live: Live, manager: Any, novel: NovelRequest, site: int) -> None:
    for change in live.arenas.changes(manager):
        _write_growth(live, manager, novel, site, change)


def refused(
    live: Live, manager: Any, asked: NovelRequest | int, frame: FrameType, error: BaseException
) -> None:
    """vLLM raised: write the request, then the failure, before the error goes on.

    `asked`: only the bytes of a request that was known to fit, and has to be looked at now. The
    failure is written whatever the rest does, without its site where none can be made.
    """
    novel = asked if isinstance(asked, NovelRequest) else NovelRequest(asked, None)
    if novel is not asked:
        if not isinstance(error, Exception) or guarded(
            live, "export", _exporting
        ):  # a signal's is no refusal
            return
        novel.index = guarded(live, "slot", live.manager.index_of, manager)
        guarded(live, "slot", look, live, manager, novel, False)
    with live.counters.lock:
        guarded(live, "arena", live.arenas.turn_to, manager)
        failure = Failure(
            kind="arena" if isinstance(error, AssertionError) else "memory",
            slot=novel.slot,
            required=novel.bytes,
            arena=novel.arena.bytes,
            phase=live.phases.current,
            text=guarded(live, "error text", _text, error, default=""),
            manager=live.arenas.manager_id,
        )
        if live.settings.guard:
            guarded(live, "guard", production.not_met, live, novel, frame)
        try:
            guarded(live, "failure", _refused_by, live, manager, novel, frame, failure)
            failure.step = guarded(live, "scheduler", live.steps.snapshot)
        finally:
            live.output.write(failure)
        guarded(live, "counts", live.flush_counts)


def _refused_by(
    live: Live, manager: Any, novel: NovelRequest, frame: FrameType, failure: Failure
) -> None:
    caller = asker(live, frame)
    site = site_here(live, caller)
    failure.site = site.id
    guarded(live, "growth", _write_growths, live, manager, novel, site.id)
    guarded(live, "request", describe, live, manager, novel, site, caller)


def _text(error: BaseException) -> str:
    return str(error)[:400]
