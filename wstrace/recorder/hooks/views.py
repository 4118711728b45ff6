"""`--check-views`: views of the arena that outlive a growth, or the request after theirs.

A request's views are good until the next request of its slot, and until the arena moves. One
that is kept longer pins the old arena, or is overwritten by somebody else. Known by weak
references, looked at when the next step or phase begins, so that a caller's local variables
do not count. Whether a view that is kept is also read cannot be seen.

The cost, one weak reference a view, is paid by those who ask for it: scripts/bench views.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from wstrace.recorder.guard import guarded
from wstrace.recorder.hooks.novel import site_of
from wstrace.recorder.hooks.posing import pose_as
from wstrace.recorder.state.process import Live
from wstrace.recorder.vllm_state import frames
from wstrace.recorder.vllm_state.workspace import slot_at, slot_index
from wstrace.trace.records import Slot, View

Why = Literal["growth", "next request"]
# As in hooks.posing: vLLM 0.32.0 on skips frames of this qualified name in its message.
CODE_NAME = "WorkspaceManager.get_simultaneous"
MAX_VIEWS = 10_000


class Taken(NamedTuple):
    """A view that vLLM was given: its slot, the arena that it lies in, the request's number."""

    view: weakref.ref[Any]
    site: int
    where: int
    generation: int
    request: int


@dataclass
class Views:
    """The views of the current manager that may still be alive."""

    live: Live
    moment: tuple[int, str, int] = (0, "", 0)
    taken: list[Taken] = field(default_factory=list)
    requests: dict[int, int] = field(default_factory=dict)
    told: set[tuple[int, Slot, Why]] = field(default_factory=set)

    def settle(self) -> None:
        """At the first request of a step, phase or manager: tell of those that were kept."""
        now = (self.live.steps.index, self.live.phases.current, self.live.arenas.manager_id)
        if now == self.moment:
            return
        if now[2] != self.moment[2]:
            self.taken.clear()
            self.requests.clear()
        self.moment = now
        self._forget_dead()
        for taken in self.taken:
            self._tell(taken)

    def _forget_dead(self) -> None:
        self.taken = [taken for taken in self.taken if taken.view() is not None]

    def _room_for(self, count: int) -> bool:
        self._forget_dead()
        if len(self.taken) + count <= MAX_VIEWS:
            return True
        self.live.output.truncate("views")
        return False

    def add(self, manager: Any, views: list[Any], caller: Any) -> None:
        """Note the views of one request."""
        index, site = slot_index(manager), site_of(self.live, caller).id
        self.requests[index] = request = self.requests.get(index, 0) + 1
        generation = self.live.arenas.generation(index)
        if len(self.taken) + len(views) > MAX_VIEWS and not self._room_for(len(views)):
            return
        self.taken += [
            Taken(weakref.ref(view), site, index, generation, request) for view in views
        ]

    def _tell(self, taken: Taken) -> None:
        now = self.live.arenas.generation(taken.where)
        why: Why = "growth" if taken.generation < now else "next request"
        if why == "next request" and self.requests.get(taken.where) == taken.request:
            return
        view, slot = taken.view(), slot_at(self.live.manager.current, taken.where)
        key = (taken.site, slot, why)
        if view is None or key in self.told:
            return
        self.told.add(key)
        self.live.output.write(
            View(
                site=taken.site,
                slot=slot,
                generation=taken.generation,
                now=now,
                why=why,
                bytes=view.numel() * view.element_size(),
                phase=self.live.phases.current,
            )
        )


def wrap_views(live: Live) -> Callable[..., Any]:
    """The maker of the get_simultaneous wrapper; only set where `--check-views` asks."""
    from torch.compiler import is_compiling

    views = Views(live)
    getframe = sys._getframe

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_simultaneous(self: Any, *shapes_and_dtypes: Any) -> Any:
            if is_compiling():
                return original(self, *shapes_and_dtypes)
            guarded(live, "views", views.settle)
            result = original(self, *shapes_and_dtypes)
            guarded(live, "views", _add, views, self, result, getframe())
            return result

        pose_as(get_simultaneous, CODE_NAME)
        return get_simultaneous

    return make


def _add(views: Views, manager: Any, result: list[Any], frame: Any) -> None:
    caller = frames.calling_frame(frame)
    if caller is not None:
        views.add(manager, result, caller)
