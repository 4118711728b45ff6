"""What the recorder is attached to in this process: vLLM's worker and its WorkspaceManager.

A process may have several of each, one after the other; what belongs to one goes with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from wstrace.recorder.vllm_state import workspace
from wstrace.recorder.vllm_state.config_limits import limits_now, read_limits
from wstrace.trace.records import Limit, Ranks

INDEX_BITS: Final = 16
INDEX: Final = (1 << INDEX_BITS) - 1
"""The bits of `ManagerState.slot_of` that are the slot."""


@dataclass
class WorkerState:
    """The worker that runs, None before init_device; its limits as last written, its ranks."""

    current: Any = None
    ranks: Ranks = field(default_factory=Ranks)
    limits: dict[str, Limit] = field(default_factory=dict)

    def starts(self, worker: Any) -> None:
        """init_device begins."""
        self.current = worker

    def read_limits(self) -> None:
        """Read the limits of a worker that starts."""
        self.limits = read_limits(self.current.vllm_config)

    def changed_limits(self) -> dict[str, Limit]:
        """The limits that vLLM changed since they were read; they count as read from now on."""
        now = limits_now(self.current)
        changed = {k: v for k, v in now.items() if self.limits.get(k) != v}
        if changed:
            self.limits = now
        return changed


@dataclass(slots=True)
class ManagerState:
    """The manager that answers, None where there is none, and what its class is like.

    `slot_of` reads the slot of the calling thread, None where there is only one; where several
    managers live, the manager's number stands above the bits of INDEX. `ensure` is
    vLLM's own method. `reserve_mark` says for which manager and limits the reserve
    was applied last, None where it must be again.
    """

    current: Any = None
    slot_of: Callable[[Any], int] | None = None
    ensure: Any = None
    resizes_all_ubatches: bool = False
    reserve_mark: Any = None
    _id_of: Callable[[Any], int] | None = None

    def found(self, ensure: Any) -> None:
        """vLLM's class was found, not wrapped yet."""
        self.ensure = ensure
        self.resizes_all_ubatches = workspace.resizes_all_ubatches(ensure)

    def made(self, manager: Any) -> None:
        """A manager was made, or was there when the hooks came."""
        self.current = manager
        several = workspace.num_slots(manager) > 1
        self.slot_of = workspace.slot_reader(manager) if several else None
        self._id_of = None

    def tell_apart(self, id_of: Callable[[Any], int]) -> None:
        """Several managers live: what one of them answered is not known of another."""
        self._id_of = id_of

        def slot_of(manager: Any) -> int:
            return id_of(manager) << INDEX_BITS | workspace.slot_index(manager)

        self.slot_of = slot_of

    def index_of(self, manager: Any) -> int:
        """The calling thread's slot."""
        return 0 if self.slot_of is None else self.slot_of(manager) & INDEX

    def key_of(self, manager: Any, index: int | None) -> int | None:
        """What `slot_of` says of this manager's slot `index`."""
        if self._id_of is None or index is None:
            return index
        return self._id_of(manager) << INDEX_BITS | index

    def dropped(self) -> None:
        """vLLM dropped the manager, and its arenas with it as far as nobody holds a view."""
        self.current = self.reserve_mark = None

    def unlocked(self) -> None:
        """A reserve may be applied anew."""
        self.reserve_mark = None

    def reserve_is_new(self, mark: Any) -> bool:
        """Whether no reserve was applied under this mark yet; from now on one was."""
        if mark == self.reserve_mark:
            return False
        self.reserve_mark = mark
        return True
