"""What KV sizing will count of an arena that is made now.

A reservation's place decides whether KV sizing pays for it. Up to 0.26 a GPU worker measures
load_model (as weights) and profile_run; from 0.27 on all from the first memory snapshot in
init_device to the end of profile_run. The matrix holds this against vLLM's own arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from wstrace.recorder.vllm_state.kv_cache import Sizing, fixed_kv, sizing_of
from wstrace.trace.records import Hook, Phase, Window
from wstrace.versions import CHECKED_WITH, UNKNOWN, Release

FROM_SNAPSHOT: Final = "0.27.0"  # GPUWorker.init_device keeps init_snapshot from here on
# vLLM 0.13.0 to 0.33.0: the methods inside which KV sizing measures.
DECIDING: Final = (".load_model", ".profile_run", ".determine_available_memory")


@dataclass
class MemoryState:
    """What decides whether an arena is paid for.

    `fixed` names the setting that fixes the KV size, if one does. `sizing` is whose
    determine_available_memory the worker runs. `measured`: that has looked, so the KV size
    cannot change any more. `blind`: a hook that tells these phases apart stood down.
    """

    vllm: Release = UNKNOWN
    fixed: str | None = None
    sizing: Sizing = "gpu"
    measured: bool = False
    blind: bool = False

    def starts(self, worker: Any) -> None:
        """A worker starts: nothing is measured yet, and its class says how it will be."""
        self.sizing = sizing_of(type(worker))
        self.measured = False
        self.fixed = fixed_kv(worker)

    def profiling(self, worker: Any) -> None:
        """profile_run starts: a startup plan, applied before it, fixes the KV size."""
        self.fixed = fixed_kv(worker)

    def profiled(self) -> None:
        """profile_run returned: a GPU worker reads its counters now, a CPU worker later."""
        self.measured = self.measured or self.sizing == "gpu"

    def sized(self) -> None:
        """determine_available_memory returned."""
        self.measured = True

    def looked_at(self, hooks: Iterable[Hook]) -> None:
        """The hooks as they stand: without one of DECIDING the phases cannot be told apart."""
        if any(hook.name.endswith(DECIDING) for hook in hooks if not hook.set):
            self.blind = True

    def window(
        self, phase: Phase, *, snapshot: bool = True, in_estimate: bool = False
    ) -> Window:
        """Whether an arena made in `phase` is paid for in KV sizing.

        `snapshot`: init_device had taken its memory snapshot. `in_estimate`: graphs were
        being captured whose measured memory is subtracted; vLLM extrapolates it and takes
        the larger of two modes, so an arena in it may count whole, in part or not at all.
        """
        if self.fixed is not None:
            return "not counted"
        if in_estimate:
            return "unknown"
        if self.measured or phase not in ("init", "load", "profile"):
            return "not counted"
        if self.blind:
            return "unknown"
        if self.sizing != "gpu":  # a CPU worker counts the pages that were touched
            return "unknown"
        if phase != "init":
            return "counted"
        return "counted" if snapshot and self.vllm.has(FROM_SNAPSHOT) else "not counted"

    def measures(self) -> str:
        """What KV sizing looks at in this worker, in words."""
        if self.fixed is not None:
            return "nothing: the KV size is fixed"
        if self.sizing == "cpu":
            return "the pages that were touched"
        if self.sizing != "gpu":
            return "unknown"
        if not self.vllm.has(FROM_SNAPSHOT):
            return "load_model and profile_run"
        taken = f" (taken for {CHECKED_WITH})" if self.vllm.newer_than_checked else ""
        return f"from the first memory snapshot to the end of profile_run{taken}"
