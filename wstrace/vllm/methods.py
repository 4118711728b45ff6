"""The hook table: all that the recorder wraps in vLLM and PyTorch, and what it knows of it.

A hook is set where the method is there and its parameters are the known ones; else that hook
alone stands down, the trace and `wstrace doctor` say so, and the gate is inconclusive.
Checked against the released sources that `wstrace.versions` names.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from wstrace.vllm.phases import Phase


@dataclass(frozen=True)
class Known:
    """One method that is wrapped.

    `parameters` are the names that the hook relies on, from the first on: the rest is passed
    through, except where `exact` is set. `since` is the first vLLM that has it, "" for all;
    `until` the last, "" for the newest. `phase` is the phase that a worker is in while it runs.
    `reserve`: a reserve is applied at its start, `again` only where nothing has applied one to
    this manager.
    """

    owner: str
    name: str
    why: str
    parameters: tuple[str, ...] = ("self",)
    exact: bool = False
    since: str = ""
    until: str = ""
    phase: Phase | None = None
    reserve: Literal["", "first", "again"] = ""

    def misfit(self, original: Any) -> str:
        """Why this method cannot be wrapped; empty when it can."""
        if original is None:
            return "no such method in this vLLM"
        if not callable(original):
            return f"is a {type(original).__name__}, not a method"
        if _only_declared(original):
            return "declared and not implemented: vLLM calls another one"
        try:
            found = tuple(inspect.signature(original).parameters)
        except (TypeError, ValueError):
            return "its signature cannot be read"
        count = len(found) if self.exact else len(self.parameters)
        if found[:count] != self.parameters:
            return f"signature is ({', '.join(found)}), known is ({self.signature})"
        return ""

    @property
    def signature(self) -> str:
        """The known parameters as text, `...` where more are passed through."""
        return ", ".join(self.parameters if self.exact else (*self.parameters, "..."))

    @property
    def label(self) -> str:
        """`Owner.method`, as traces name the hook."""
        return f"{self.owner}.{self.name}"


def _only_declared(original: Any) -> bool:
    """A base class's method whose one deed is `raise NotImplementedError`."""
    code = getattr(original, "__code__", None)
    return code is not None and code.co_names == ("NotImplementedError",)


def _manager(name: str, why: str, *parameters: str, **more: Any) -> Known:
    exact = ("self", *parameters)
    return Known("WorkspaceManager", name, why, exact, exact=True, **more)


def _phase(owner: str, name: str, phase: Phase, **more: Any) -> Known:
    return Known(owner, name, f"phase {phase}", phase=phase, **more)


# vLLM 0.13.0 to 0.33.0, but where `since` says later: v1/worker/workspace.py.
MANAGER: Final = (
    Known("WorkspaceManager", "__init__", "a new manager: slots, device"),
    _manager("_ensure_workspace_size", "requests, growth, escapes", "required_bytes"),
    _manager("lock", "the lock, arena sizes"),
    _manager("unlock", "unlock of elastic EP", since="0.18"),
    _manager("get_persistent_resource", "WS105", "key", "factory", since="0.31"),
)
ENSURE: Final = next(k for k in MANAGER if k.name == "_ensure_workspace_size")
"""The method that every request for scratch ends in."""
VIEWS: Final = Known(
    "WorkspaceManager",
    "get_simultaneous",
    "WS302, only with --check-views",
    ("self", "shapes_and_dtypes"),
    exact=True,
)
MODULE: Final = (
    Known("workspace", "reset_workspace_manager", "the manager is dropped", (), exact=True),
)
# vLLM 0.13.0 to 0.33.0: gpu_worker.Worker, and other platforms' workers, which may lack some.
WORKER: Final = (
    _phase("Worker", "load_model", "load"),
    Known("Worker", "determine_available_memory", "KV sizing"),
    Known(
        "Worker", "initialize_from_config", "KV blocks", parameters=("self", "kv_cache_config")
    ),
    Known(
        "Worker",
        "compile_or_warm_up_model",
        "phase warmup, serving",
        phase="warmup",
        reserve="again",
    ),
    Known("Worker", "execute_model", "steps", parameters=("self", "scheduler_output")),
    Known("Worker", "sample_tokens", "drafts and V2 sampling belong to the step"),
    Known("Worker", "execute_dummy_batch", "idle steps of data parallel"),
    _phase("Worker", "sleep", "sleep"),
    Known("Worker", "wake_up", "end of phase sleep"),
    _phase("Worker", "shutdown", "shutdown"),
)
# vLLM 0.13.0 to 0.33.0, but where `since` says later: gpu_model_runner.py (V1),
# gpu/model_runner.py (V2).
RUNNER: Final = (
    Known(
        "GPUModelRunner",
        "profile_run",
        "phase profile; a reserve is applied",
        phase="profile",
        reserve="first",
    ),
    Known(
        "GPUModelRunner",
        "profile_cudagraph_memory",
        "phase graph-estimate",
        since="0.18",
        phase="graph-estimate",
    ),
    _phase("GPUModelRunner", "initialize_kv_cache", "kv-init"),
    _phase("GPUModelRunner", "capture_model", "capture"),
    Known("GPUModelRunner", "_dummy_run", "dummy steps"),
)
# vLLM 0.13.0 to 0.32.0: v1/executor/ray_utils.py. The older Ray executor's compiled graph calls
# it, and it the model runner's execute_model and sample_tokens: the worker's are passed by.
RAY_STEP: Final = Known(
    "RayWorkerWrapper",
    "execute_model_ray",
    "steps of the older Ray executor",
    ("self", "execute_model_input"),
    until="0.32",
)
# PyTorch 2.13: methods of torch.cuda.CUDAGraph.
GRAPH: Final = (
    Known("CUDAGraph", "capture_begin", "requests while capturing"),
    Known("CUDAGraph", "capture_end", "generations that a graph holds"),
    Known("CUDAGraph", "reset", "a graph is released"),
)
# PyTorch 2.13: methods of torch.cuda.Event and Stream, and torch.cuda.synchronize.
STREAMS: Final = (
    Known("Event", "record", "order of streams, WS304", ("self", "stream")),
    Known("Event", "wait", "order of streams, WS304", ("self", "stream")),
    Known("Event", "synchronize", "order of streams, WS304"),
    Known("Stream", "synchronize", "order of streams, WS304"),
    Known("cuda", "synchronize", "order of streams, WS304", ("device",)),
)
"""Wrapped for a few steps, and only where a second stream asked in a slot."""
SCRATCH: Final = Known(
    "MoEPermuteScratch",
    "reserve",
    "WS106",
    ("self", "expanded_rows"),
    exact=True,
    since="0.32",
)
# vLLM 0.13.0 to 0.33.0: every worker is made through it, on all platforms.
DOOR: Final = Known("WorkerWrapperBase", "init_device", "the door: finds all others")
HOOKS: Final = (DOOR, *MANAGER, VIEWS, *MODULE, *WORKER, *RUNNER, RAY_STEP, *GRAPH, SCRATCH)
PHASES: Final[dict[str, Phase]] = {k.name: k.phase for k in HOOKS if k.phase is not None}
"""The phase that a worker is in while a method runs."""
SHOWN_BY: Final[dict[str, Phase]] = {
    **{name: phase for name, phase in PHASES.items() if phase not in ("sleep", "shutdown")},
    "determine_available_memory": "profile",
    "initialize_from_config": "kv-init",
    "capture_graph": "capture",
    "warmup_kernels": "warmup",
    "run_mixed_prefill_decode_warmup": "warmup",
    "kernel_warmup": "warmup",
}
"""The phase that a function on a printed stack shows: those of PHASES but two whose names other
classes have too, and what vLLM 0.11 to 0.33 calls just outside or inside of them."""
# vLLM 0.13.0 to 0.33.0: V1's capture_model and the V2 runner's managers, drafters and encoders
# call these; PyTorch 2.13 has capture_begin, capture_end.
# matches: '_warmup_and_capture'
CAPTURING: Final = re.compile(
    r"_*(?:\w+_)?capture(?:_(?:begin|end|\w*(?:graph|cudagraph|model|ubatch)(?:e?s)?(?:_thread)?))?$"
    r"|_?prepare_(?:\w+_)?inputs_to_capture$"
)
"""A function that records graphs: every function of such a name in CAPTURES."""
# vLLM 0.13.0 to 0.33.0: gpu/cudagraph_utils.py, spec_decode's cudagraph.py and speculator.py,
# encoder_cudagraph.py, encoder_runner.py, gpu_ubatch_wrapper.py, gpu_model_runner.py.
# matches: '/x/vllm/v1/worker/gpu/cudagraph_utils.py'
CAPTURES: Final = re.compile(
    r"(?:cuda_?graph|speculator|encoder_runner|ubatch|model_runner|torch/cuda/graphs)[\w/]*\.pyc?$"
)
"""The files in which such a function records graphs."""
# matches: '.cudagraph_manager.capture('
CAPTURE_CALL: Final = re.compile(
    r"\.\w*(?:graph_?\w*|manager|speculator|runner)\.capture\(|torch\.cuda\.graph\("
)
"""A line of source, without blanks, that begins to record a graph."""
# vLLM 0.13.0 to 0.33.0: methods of workers, runners and WorkerProc or EngineCore.
SERVED_BY: Final = frozenset(
    ("execute_model", "sample_tokens", "run_busy_loop", "execute_dummy_batch")
)
"""Functions that run in serving, where the stack shows no other phase."""
STEPS: Final = ("execute_model", "sample_tokens")
"""The worker's methods of a step: only wrapped where something is recorded of it."""
RESERVE_AT: Final = {k.name: k.reserve for k in HOOKS if k.reserve}
"""Where a reserve is applied: profile_run, the one place that every release counts in KV
sizing, and where that never comes (V2 with a fixed KV size) the warm-up."""
