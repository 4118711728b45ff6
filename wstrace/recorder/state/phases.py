"""Which phase a worker is in, derived from the vLLM methods that are on the stack.

`derive` is a pure function of what is active; the rules are those of vLLM's worker order:
init_device, load_model, profile_run, profile_cudagraph_memory (builds a throwaway KV cache
and throwaway graphs), initialize_kv_cache, compile_or_warm_up_model { capture_model { lock } }.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from wstrace.trace.records import Phase
from wstrace.vllm.methods import PHASES


@dataclass
class PhaseFlags:
    """What outlives a method: locked now, unlocked after a lock, asleep, warmed up, shut."""

    locked: bool = False
    unlocked: bool = False
    asleep: bool = False
    ready: bool = False
    shut: bool = False


def derive(active: Sequence[Phase], flags: PhaseFlags) -> Phase:
    """The phase for the methods on the stack, outermost first."""
    if flags.shut or "shutdown" in active:
        return "shutdown"
    if flags.asleep or "sleep" in active:
        return "sleep"
    if "graph-estimate" in active:
        return "graph-estimate"
    if not active:
        if flags.unlocked:
            return "unlocked"
        return "serving" if flags.ready else "init"
    if flags.locked and active[-1] in ("warmup", "capture"):
        return "post-lock-warmup"
    return active[-1]


@dataclass
class PhaseTracker:
    """Keeps the stack and the flags; calls `on_change(phase, why, error)` at each change,
    and at each error, which may leave the phase as it is.

    `active` is one list for the tracker's life: every step looks into it.
    """

    on_change: Callable[[Phase, str, str], None]
    flags: PhaseFlags = field(default_factory=PhaseFlags)
    active: list[Phase] = field(default_factory=list)
    current: Phase = "init"

    def enter(self, method: str) -> None:
        """The vLLM method `method` starts."""
        self.active.append(PHASES[method])
        self._settle(method)

    def leave(self, method: str, error: str = "") -> None:
        """The vLLM method `method` returned, or raised `error` (its type and text)."""
        phase = PHASES[method]
        if not error:
            self.flags.ready = self.flags.ready or phase == "warmup"
            self.flags.shut = self.flags.shut or phase == "shutdown"
        if phase in self.active:
            del self.active[len(self.active) - 1 - self.active[::-1].index(phase)]
        self._settle(f"{method} {'raised' if error else 'returned'}", error)

    def raised(self, method: str, error: str) -> None:
        """A method that is no phase raised `error`: told, the phase stays."""
        self._settle(f"{method} raised", error)

    def restarted(self) -> None:
        """Another worker starts in this process: nothing of the last one is left."""
        self.flags = PhaseFlags()
        self.active.clear()
        self._settle("init_device")

    def locked(self) -> None:
        """The manager was locked."""
        self.flags.locked, self.flags.unlocked = True, False
        self._settle("lock")

    def unlocked(self) -> None:
        """The manager was unlocked (elastic EP)."""
        self.flags.unlocked = self.flags.locked or self.flags.unlocked
        self.flags.locked = False
        self._settle("unlock")

    def remade(self) -> None:
        """A new manager: it starts unlocked, which is no unlocking."""
        self.flags.locked = self.flags.unlocked = False
        self._settle("new manager")

    def asleep(self, value: bool) -> None:
        """sleep() returned or wake_up() returned."""
        self.flags.asleep = value
        self._settle("sleep" if value else "wake_up")

    def _settle(self, why: str, error: str = "") -> None:
        phase = derive(self.active, self.flags)
        if phase != self.current or error:
            self.current = phase
            self.on_change(phase, why, error)
