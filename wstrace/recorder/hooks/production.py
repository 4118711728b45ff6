"""`WSTRACE_GUARD=1`: a request above its locked arena is served; nothing is recorded.

The hot path is one comparison: what every arena of the manager has is known, and they never
shrink. A request above that is looked at as the recorder does it (`novel.look`, which grows the
arena by `hooks.growth`). Each site that outgrew its arena is told once in the log, with the
line that the reserve config lacks, and counted.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from wstrace.recorder.guard import guarded
from wstrace.recorder.hooks.growth import added_bytes
from wstrace.recorder.hooks.novel import NovelRequest, asker, look, request_of, site_here
from wstrace.recorder.hooks.posing import CODE_NAME, Ensure, pose_as
from wstrace.recorder.state.guard_file import write_counters
from wstrace.recorder.state.guard_state import Outgrown
from wstrace.recorder.state.process import Live
from wstrace.recorder.vllm_state.workspace import slot_index
from wstrace.trace.records import Site, Slot
from wstrace.units import exact

if TYPE_CHECKING:
    from wstrace.reserve.schema import SiteReserve

logger = logging.getLogger("vllm.wstrace")


def wrap_guard(live: Live) -> Callable[[Ensure], Ensure]:
    """The maker of the wrapper of `_ensure_workspace_size`, where nothing is recorded."""
    from torch.compiler import is_compiling, is_dynamo_compiling

    state, getframe = live.guard, sys._getframe

    def make(original: Ensure) -> Ensure:
        def _ensure_workspace_size(self: Any, required_bytes: int) -> Any:
            # Dynamo takes the first for true where it traces, and goes no further.
            if is_dynamo_compiling() or required_bytes <= state.least:
                return original(self, required_bytes)
            if is_compiling():
                return original(self, required_bytes)
            novel = NovelRequest(required_bytes, guarded(live, "slot", index_or_none, self))
            guarded(live, "slot", look, live, self, novel)
            try:
                result = original(self, required_bytes)
            except BaseException:
                guarded(live, "guard", not_met, live, novel, getframe())
                raise
            guarded(live, "guard", _answered, live, self, novel, getframe())
            return result

        pose_as(_ensure_workspace_size, CODE_NAME)
        return _ensure_workspace_size

    return make


def index_or_none(manager: Any) -> int | None:
    """The slot, None where vLLM will say what is wrong (or where its fields are unknown)."""
    try:
        return slot_index(manager)
    except Exception:
        return None


def _answered(live: Live, manager: Any, novel: NovelRequest, frame: FrameType) -> None:
    live.arenas.changes(manager)
    live.guard.sizes(live.arenas.sizes(manager)[1])
    if novel.forced:
        met(live, manager, novel, frame)


def tell_misspelt(live: Live) -> None:
    """Say in the log which settings were given and are not used: in production nobody else
    would."""
    for wrong in live.settings.not_understood:
        logger.error("wstrace: %s. It is not used.", wrong)


def announce(live: Live) -> None:
    """Say in the log that the guard is on, or why it cannot be."""
    ensure = live.hooks.states.get("WorkspaceManager._ensure_workspace_size")
    if ensure is None or not ensure.set:
        why = ensure.why if ensure is not None else "vLLM's workspace module was not found"
        logger.error("wstrace guard: it cannot be set: %s. The server runs without it.", why)
        return
    settings = live.settings
    most = (
        "what is free" if settings.guard_max is None else f"{exact(settings.guard_max)} in all"
    )
    logger.info("wstrace guard: on; a locked arena may grow, by at most %s.", most)
    folder = os.path.dirname(settings.guard_file or "") or "."
    if settings.guard_file is not None and not os.access(folder, os.W_OK):
        logger.error(
            "wstrace guard: WSTRACE_GUARD_FILE=%s: its folder is not there or cannot be "
            "written. The counters are not written.",
            settings.guard_file,
        )


def met(live: Live, manager: Any, novel: NovelRequest, frame: FrameType) -> None:
    """The arena grew for this request: count it, and tell of its site once."""
    caller = asker(live, frame)
    site = site_here(live, caller)
    if _count(live, str(site.key), novel.slot, novel.bytes, grew=True):
        logger.warning(
            "wstrace guard: '%s' asked %s in %s, %s at %s. The arena grew and the request "
            "is served; arenas take %s more than before.",
            site.caller,
            exact(novel.bytes),
            novel.slot.text,
            "locked" if novel.locked else "held by captured graphs",
            exact(novel.arena.bytes),
            exact(added_bytes(live, manager)),
        )
        guarded(live, "guard's line", _tell_line, live, manager, novel, site, caller)


def not_met(live: Live, novel: NovelRequest, frame: FrameType) -> None:
    """vLLM refused the request; where the guard could have met it, say why it did not."""
    if novel.index is None or not live.guard.why:
        return
    site = site_here(live, asker(live, frame))
    if _count(live, str(site.key), novel.slot, novel.bytes, grew=False):
        logger.error(
            "wstrace guard: '%s' asked %s in %s, which has %s, and it could not grow: %s.",
            site.caller,
            exact(novel.bytes),
            novel.slot.text,
            exact(novel.arena.bytes),
            live.guard.why,
        )


def made_late(live: Live, site: Site, slot: Slot, what: str) -> None:
    """A persistent resource, or a layer's own scratch, was made after the lock."""
    if _count(live, f"{site.key} {what}", slot, 0, grew=True):
        logger.warning(
            "wstrace guard: '%s' made %s after the lock, which vLLM refuses. No reserve helps: "
            "send such a request before the lock, or see `wstrace explain WS105` and WS106.",
            site.caller,
            what,
        )


def _count(live: Live, site: str, slot: Slot, size: int, grew: bool) -> bool:
    new = live.guard.count(Outgrown(site, slot), size, grew)
    keep_counters(live)
    return new


def keep_counters(live: Live) -> None:
    """The counters as they are now, in the guard's file where there is one."""
    path, ranks = live.settings.guard_file, live.worker.ranks
    if path is not None:
        guarded(live, "guard file", write_counters, path, ranks, live.guard)


def _tell_line(
    live: Live, manager: Any, novel: NovelRequest, site: Site, caller: FrameType
) -> None:
    """The line of `sites:` that the reserve config lacks, with the bound of the site."""
    line = reserve_line(live, manager, novel, site, caller)
    name = live.settings.reserve
    where = name or "a reserve config, which `wstrace fix` makes"
    covers = "its worst case" if line.follows_limits else "only what was asked now"
    logger.warning("wstrace guard: under `sites:` of %s this line reserves %s:", where, covers)
    logger.warning("%s", as_line(line))


def reserve_line(
    live: Live, manager: Any, novel: NovelRequest, site: Site, caller: FrameType
) -> SiteReserve:
    """The site as a reserve config has it: bounded from this one request and its source.

    Imported here, once a site that outgrew its arena: a server that fits never pays for it.
    """
    from wstrace.bounds.bound import reserve_of
    from wstrace.bounds.ways import bound_site

    request = request_of(live, manager, novel, site, caller)
    bound = bound_site(
        [request],
        live.worker.limits,
        file=site.file,
        function=site.function,
        vllm_version=live.hooks.vllm.text,
    )
    return reserve_of(bound, str(site.key), novel.bytes)


def as_line(site: SiteReserve) -> str:
    """The site as one item of a YAML list: JSON, which YAML reads, without what is default."""
    every = msgspec.to_builtins(site)
    plain = msgspec.to_builtins(
        msgspec.convert({"site": "", "grade": site.grade, "bytes": 0}, type(site))
    )
    said = {k: v for k, v in every.items() if k in ("site", "grade", "bytes") or v != plain[k]}
    return f"- {json.dumps(said)}"
