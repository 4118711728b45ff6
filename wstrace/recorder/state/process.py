"""The recorder's state in one process: one `Live`, the parts of it, and what ties them.

Each part owns its attributes and is written by its own methods. It owns no behaviour of
vLLM's: hooks tell the parts what they saw.
"""

from __future__ import annotations

from wstrace.recorder.settings import Settings
from wstrace.recorder.state.arenas import Arenas
from wstrace.recorder.state.attached import ManagerState, WorkerState
from wstrace.recorder.state.capture import CaptureState
from wstrace.recorder.state.counters import Counters
from wstrace.recorder.state.guard_state import GuardState
from wstrace.recorder.state.kv_memory import MemoryState
from wstrace.recorder.state.near import NearState
from wstrace.recorder.state.output import TraceOutput
from wstrace.recorder.state.phases import PhaseTracker
from wstrace.recorder.state.steps import StepTracker
from wstrace.recorder.state.stream_order import StreamWatch
from wstrace.recorder.vllm_state.kv_cache import estimate_applied, snapshot_taken
from wstrace.recorder.wrapping import Hooks
from wstrace.trace.records import Phase, PhaseChange, Window
from wstrace.versions import installed_vllm, release_of


class Live:
    """The parts of the recorder in this process; see the module docstring."""

    def __init__(self, settings: Settings) -> None:
        vllm = release_of(installed_vllm())
        self.settings = settings
        self.output = TraceOutput(settings)
        self.hooks = Hooks(report=self.output.write_for_worker, vllm=vllm)
        self.worker = WorkerState()
        self.manager = ManagerState()
        self.arenas = Arenas()
        self.phases = PhaseTracker(on_change=self._phase_changed)
        self.steps = StepTracker()
        self.counters = Counters()
        self.capture = CaptureState()
        self.streams = StreamWatch()
        self.guard = GuardState()
        share = settings.warn_at
        self.near = self.steps.near = None if share is None else NearState(share)
        self.memory = MemoryState(vllm=vllm)

    def _phase_changed(self, phase: Phase, why: str, error: str) -> None:
        self.forget_hot()
        self.flush_counts()
        if self.worker.current is not None:
            step = self.steps.index
            self.output.write(PhaseChange(phase=phase, step=step, why=why, error=error))

    def forget_hot(self) -> None:
        """Every key is novel again, in the phase that is now."""
        self.counters.forget(self.phases.current)

    def flush_counts(self) -> None:
        """Write the counters that changed; a step asks for it every COUNTS_EVERY_NS."""
        if self.worker.current is None:
            return
        counts = self.counters.flush(self.steps)
        if counts is not None:
            self.output.write(counts)

    def window(self) -> Window:
        """Whether KV sizing pays for an arena that is made at this moment."""
        state, phases = self.memory, self.phases
        state.looked_at(self.hooks.states.values())
        capturing = self.capture.active or self.steps.running or "capture" in phases.active
        return state.window(
            phases.current,
            snapshot=snapshot_taken(self.worker.current),
            in_estimate=phases.current == "graph-estimate" and capturing and estimate_applied(),
        )
