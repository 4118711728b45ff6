"""The hot path: the wrapper of `WorkspaceManager._ensure_workspace_size`.

A request that was seen before in this phase costs one dict look-up. The key is the caller's
code object and instruction, the bytes, and the slot where the manager has several. Where the
request's formula was read from callers or from an object that may be of another class, the
entry also has the way on which it was made (`slicer.live.way`), and another way is novel.
All else (shapes, stack, layer, provenance, growth) happens on the novel path. So two shapes
of equal bytes at one call, on one way, count as one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from wstrace.recorder.hooks.growth import may_grow, try_grow
from wstrace.recorder.state.arenas import Arena, arena_of
from wstrace.recorder.state.kv_memory import window_now
from wstrace.recorder.state.process import Entry, HotKey, Live
from wstrace.recorder.vllm_state import frames, identity
from wstrace.recorder.vllm_state.workspace import is_locked, slot_at, slot_index, tensor_at
from wstrace.trace.records import (
    Failure,
    Growth,
    Leaf,
    Provenance,
    Request,
    Site,
    Slot,
    Spec,
)
from wstrace.vllm.methods import VIEWS

if TYPE_CHECKING:
    from wstrace.slicer.live.way import Way

Ensure = Callable[[Any, int], Any]
CODE_NAME = "WorkspaceManager._ensure_workspace_size"


def pose_as(function: Callable[..., Any], qualname: str) -> None:
    """Give a wrapper the qualified name that vLLM's caller look-up skips (0.32 and later).

    Up to 0.30 the look-up skips frames whose `self` is a WorkspaceManager: the wrappers of
    manager methods therefore name their first parameter `self`.
    """
    function.__code__ = function.__code__.replace(co_qualname=qualname)


def wrap_ensure(live: Live) -> Callable[[Ensure], Ensure]:
    """The maker of the hot wrapper, for `Hooks.wrap`."""
    from torch.compiler import is_compiling

    getframe, hot = sys._getframe, live.hot
    depth = 3 if live.hooks.is_set(VIEWS.label) else 2

    def make(original: Ensure) -> Ensure:
        def _ensure_workspace_size(self: Any, required_bytes: int) -> Any:
            if is_compiling():
                return original(self, required_bytes)
            frame = getframe(depth)
            index = _index_or_none(self) if live.multi_slot else 0
            # A code object's hash goes over its constants each time; its id does not. `codes`
            # keeps it alive, so that no other code can get the id.
            key = (id(frame.f_code), frame.f_lasti, required_bytes, index)
            entry = hot.get(key)
            if entry is not None and (on_way := entry.on_way) is not None and not on_way(frame):
                entry = entry.taken(frame)
            if entry is not None:
                entry.calls += 1
                return original(self, required_bytes)
            novel = _before_or_none(live, self, required_bytes, index)
            if novel is None:
                return original(self, required_bytes)
            try:
                result = original(self, required_bytes)
            except BaseException as error:
                refused(live, self, novel, frame, error)
                raise
            after_novel(live, novel, key, self, frame)
            return result

        pose_as(_ensure_workspace_size, CODE_NAME)
        return _ensure_workspace_size

    return make


def _index_or_none(manager: Any) -> int | None:
    """The slot, None where vLLM will say what is wrong (or where its fields are unknown)."""
    try:
        return slot_index(manager)
    except Exception:
        return None


def _before_or_none(live: Live, manager: Any, required: int, index: int | None) -> Novel | None:
    """`before_novel`, whose errors are noted and never raised into vLLM."""
    try:
        return before_novel(live, manager, required, index)
    except Exception as error:
        live.complain("request", error)
        return None


@dataclass
class Novel:
    """A request on the novel path, before vLLM has answered it."""

    bytes: int
    index: int | None
    slot: Slot
    arena: Arena
    forced: bool = False
    kept_bytes: int = 0
    locked: bool = False


def before_novel(live: Live, manager: Any, required: int, index: int | None) -> Novel:
    """Look at the slot before vLLM does, and grow it first where the policy says so."""
    slot = Slot() if index is None else slot_at(manager, index)
    tensor = None if index is None else tensor_at(manager, index)
    novel = Novel(required, index, slot, arena_of(tensor), locked=is_locked(manager))
    if index is not None and required > novel.arena.bytes and may_grow(live, manager):
        kept = try_grow(live, manager, index, required)
        novel.forced, novel.kept_bytes = kept is not None, kept or 0
    return novel


def after_novel(live: Live, novel: Novel, key: HotKey, manager: Any, frame: FrameType) -> None:
    """Record what is new about a request that vLLM answered. Never raises."""
    try:
        with live.lock:
            _record(live, manager, novel, frame, key)
    except Exception as error:
        live.complain("request", error)


def _record(live: Live, manager: Any, novel: Novel, frame: FrameType, key: HotKey) -> None:
    caller = frames.calling_frame(frame)
    if caller is None:
        return
    site = site_of(live, caller)
    for change in live.arenas.changes(manager):
        _write_growth(live, manager, novel, site.id, change)
    live.capture.requested(novel.slot, live.arenas.generation(novel.index or 0))
    if len(live.hot) + live.other_ways >= live.settings.max_keys:
        live.truncate("keys")
        _record_beyond_cap(live, manager, novel, site, caller)
        return
    entry = Entry(1, site.id, novel.slot, novel.bytes)
    mark = (*key, live.phases.current, live.capture.active)
    written = live.ways.setdefault(mark, [])
    known = [way for way in written if way.holds(frame)]
    try:
        if not known:
            ask, way = describe(live, manager, novel, site, caller)
            known = [_seen_from(frame, caller, way)]
            written += known
            live.write(ask)
        entry.on_way = known[0].check()
    finally:
        live.codes[key[0]] = frame.f_code
        live.remember(key, entry)


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
    return replace(way, above=(*gap, *way.above), kinds=kinds)


def _record_beyond_cap(
    live: Live, manager: Any, novel: Novel, site: Site, caller: FrameType
) -> None:
    """Past the cap only a site's new maximum in this phase is written."""
    tally = live.tally(site.id, novel.slot)
    tally.calls += 1
    if novel.bytes > tally.max_bytes:
        tally.max_bytes = novel.bytes
        live.write(describe(live, manager, novel, site, caller)[0])


def site_of(live: Live, caller: FrameType) -> Site:
    """The site of a caller's frame; written when it is first seen in this process."""
    code = caller.f_code
    file = frames.file_of(caller)
    found = live.sites.get((file, code.co_qualname))
    if found is not None:
        return found
    site = Site(
        id=len(live.sites) + 1,
        file=file,
        function=code.co_qualname,
        line=caller.f_lineno,
        caller=frames.caller_text(caller),
    )
    live.sites[file, code.co_qualname] = site
    live.write(site)
    return site


def describe(
    live: Live, manager: Any, novel: Novel, site: Site, caller: FrameType
) -> tuple[Request, Way]:
    """The full record of a novel request: shapes, stack, layer, scheduler state, provenance;
    and the way that its provenance belongs to."""
    raw = _specs_above(caller)
    provenance, way = _provenance(live, caller, raw)
    arena = Arena() if novel.index is None else arena_of(tensor_at(manager, novel.index))
    context = _forward_context()
    request = Request(
        site=site.id,
        slot=novel.slot,
        bytes=novel.bytes,
        arena=novel.arena.bytes,
        phase=live.phases.current,
        step=live.steps.snapshot(),
        generation=live.arenas.generation(novel.index or 0),
        address=arena.address,
        locked=novel.locked,
        capturing=live.capture.active,
        graph=live.capture.graph if live.capture.active else None,
        stream=_stream(),
        cudagraph_mode=_graph_mode(context),
        layer=frames.layer_of(caller),
        specs=_spec_records(raw),
        stack=frames.stack_of(caller),
        provenance=provenance,
        thread=threading.get_ident(),
        manager=live.arenas.manager_id,
        classes=_classes(caller),
    )
    return request, way


def _classes(caller: FrameType) -> dict[str, list[str]]:
    try:
        return identity.classes_of(caller)
    except Exception:  # an object of a vLLM that is not known
        return {}


def _specs_above(caller: FrameType) -> tuple[Any, ...]:
    """The specs of the get_simultaneous frame that `caller` called: search from the top."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not caller:
        specs = frames.raw_specs(frame)
        if specs:
            return specs
        frame = frame.f_back
    return ()


def _spec_records(raw: tuple[Any, ...]) -> list[Spec]:
    try:
        return frames.spec_records(raw)
    except (TypeError, ValueError, AttributeError):
        return []


def provenance_of(caller: FrameType, raw: tuple[Any, ...]) -> tuple[Provenance, Way]:
    """Slice the caller's source for the request's formula; says where it stopped.

    The slicer is imported here, on the first novel request, to keep start-up cheap.
    """
    from wstrace.slicer.live.way import EVERY_WAY
    from wstrace.slicer.slicer import slice_request

    if not raw:
        return Provenance(stopped="the request's shapes were not seen"), EVERY_WAY
    sliced = slice_request(caller, raw)
    found = Provenance(
        formula=sliced.formula,
        arms=list(sliced.arms),
        leaves=[
            Leaf(
                name=leaf.name,
                kind=leaf.kind,
                value=leaf.value,
                role=leaf.role,
                source=leaf.source,
                where=leaf.where,
                why=leaf.why,
            )
            for leaf in sliced.leaves
        ],
        statements=list(sliced.statements),
        stopped=sliced.stopped,
        callers=list(sliced.way.callers),
        types=list(sliced.way.types),
    )
    return found, sliced.way


def _provenance(live: Live, caller: FrameType, raw: tuple[Any, ...]) -> tuple[Provenance, Way]:
    try:
        return provenance_of(caller, raw)
    except Exception as error:
        from wstrace.slicer.live.way import EVERY_WAY

        live.complain("slicer", error)
        return Provenance(stopped=f"the slicer failed: {type(error).__name__}"), EVERY_WAY


def _forward_context() -> Any:
    module = sys.modules.get("vllm.forward_context")
    return getattr(module, "_forward_context", None)


def _graph_mode(context: Any) -> str:
    mode = getattr(context, "cudagraph_runtime_mode", None)
    return str(getattr(mode, "name", "") or "")


def _stream() -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.current_stream().cuda_stream)


def _write_growth(
    live: Live, manager: Any, novel: Novel, site: int, change: tuple[int, Arena, Arena]
) -> None:
    index, before, after = change
    live.write(
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
            window=window_now(live),
            manager=live.arenas.manager_id,
        )
    )


def refused(
    live: Live, manager: Any, novel: Novel, frame: FrameType, error: BaseException
) -> None:
    """vLLM raised: write the request, then the failure, before the error goes on."""
    try:
        with live.lock:
            caller = frames.calling_frame(frame)
            if caller is None:
                return
            site = site_of(live, caller)
            for change in live.arenas.changes(manager):
                _write_growth(live, manager, novel, site.id, change)
            live.write(describe(live, manager, novel, site, caller)[0])
            live.write(
                Failure(
                    kind="arena" if isinstance(error, AssertionError) else "memory",
                    site=site.id,
                    slot=novel.slot,
                    required=novel.bytes,
                    arena=novel.arena.bytes,
                    phase=live.phases.current,
                    step=live.steps.snapshot(),
                    text=str(error)[:400],
                    manager=live.arenas.manager_id,
                )
            )
            live.flush_counts()
    except Exception as own:
        live.complain("failure", own)
