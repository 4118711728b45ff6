"""What KV sizing subtracts, by vLLM's own code, for an arena made at each point of a life.

Real: `memory_profiling`, `MemorySnapshot` and `DeviceMemoryProfiler` of mem_utils.py,
`Worker.determine_available_memory`, V1's `profile_cudagraph_memory`, the manager. Simulated:
torch's memory functions and the platform (tests/matrix/device.py); a model that is numbers.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.matrix.device import GIB, Device, simulated, unsplit
from tests.matrix.harness import MIB, Engine, ask, module, recorded, workspace
from tests.matrix.kit import Facts, scenario
from wstrace.trace.reader import load_trace
from wstrace.trace.records import Growth

ARENA = 8 * MIB
FIXED = 20 * GIB
GRAPHS = {"PIECEWISE": 64 * MIB, "FULL": 16 * MIB}
POINTS = (
    "before the snapshot",
    "after the snapshot",
    "load_model",
    "before profiling",
    "profile_run",
    "graph estimate: builders",
    "graph estimate: first graph of the larger mode",
    "graph estimate: first graph of the smaller mode",
    "graph estimate: second graph",
    "after sizing",
    "initialize_kv_cache",
)


class Mode(enum.Enum):
    """In the place of CUDAGraphMode."""

    PIECEWISE = 1
    FULL = 2


@dataclass
class Sized:
    """A life whose arena is made at one point; what it leaves for the KV cache, in bytes."""

    grow_at: str | None
    device: Device = field(default_factory=Device)
    fixed: int | None = None
    plan: int | None = None

    def at(self, point: str) -> None:
        """The life has come to this point."""
        if point == self.grow_at:
            ask(ARENA)
            self.device.note()

    def available(self) -> int:
        """vLLM's answer for this life."""
        gpu_worker = module("v1.worker.gpu_worker")
        mem_utils, runner = module("utils.mem_utils"), module("v1.worker.gpu_model_runner")
        with (
            simulated(self.device, mem_utils, gpu_worker, runner),
            patch.object(gpu_worker, "maybe_apply_startup_plan", self.apply_plan, create=True),
            patch.object(gpu_worker, "reserve_mm_ipc_gpu_memory", _no_mm, create=True),
        ):
            return self.live()

    def live(self) -> int:
        """From init_device to initialize_kv_cache, as the executor calls it."""
        engine = Engine({})
        engine.wrapper.vllm_config.cache_config = SimpleNamespace(
            block_size=16,
            cache_dtype="auto",
            gpu_memory_utilization=0.9,
            kv_cache_memory_bytes=self.fixed,
        )
        worker = engine.wrapper.worker
        self.make_real(worker, engine)
        engine.wrapper.init_device()
        worker.load_model()
        self.at("before profiling")
        available = worker.determine_available_memory()
        self.at("after sizing")
        worker.initialize_from_config(SimpleNamespace(num_blocks=1, kv_cache_tensors=[]))
        return int(available)

    def make_real(self, worker: Any, engine: Engine) -> None:
        """vLLM's methods on the worker's own class; the rest calls back to `at`."""
        real, kind = module("v1.worker.gpu_worker").Worker, type(worker)
        kind.determine_available_memory = real.determine_available_memory
        kind._scoped_allocator_max_split = unsplit
        kind._reserve_mm_ipc_gpu_memory = lambda worker, size: size
        kind.randomize_dummy_inputs = False
        kind.init_device = as_method(self.init_device)
        kind.load_model = as_method(self.load_model)
        config = worker.vllm_config
        config.model_config.multimodal_config = None
        worker.cache_config, worker.model_config = config.cache_config, config.model_config
        worker.parallel_config, worker.use_v2_model_runner = config.parallel_config, False

    def init_device(self, worker: Any) -> None:
        """The snapshot, then the manager: vLLM's order, which a test reads in its source."""
        snapshot = module("utils.mem_utils").MemorySnapshot
        if self.grow_at == "before the snapshot":
            workspace().init_workspace_manager(worker.device)
            self.at("before the snapshot")
        try:
            worker.init_snapshot = snapshot(device=worker.device)
        except TypeError:  # 0.13 to 0.16: of the current device
            worker.init_snapshot = snapshot()
        worker.requested_memory = int(self.device.total * 0.9)
        if self.grow_at != "before the snapshot":
            workspace().init_workspace_manager(worker.device)
        self.at("after the snapshot")
        worker.model_runner = worker.runner()
        self.prepare(worker.model_runner)

    def prepare(self, runner: Any) -> None:
        """A runner with V1's own graph estimate, where this version has one."""
        kind = type(runner)
        real = vars(module("v1.worker.gpu_model_runner").GPUModelRunner)
        if "profile_cudagraph_memory" in real:
            kind.profile_cudagraph_memory = real["profile_cudagraph_memory"]
        kind.profile_run = as_method(self.profile_run)
        kind.initialize_kv_cache = as_method(self.initialize_kv_cache)
        kind._init_minimal_kv_cache_for_profiling = as_method(self.builders)
        kind._cleanup_profiling_kv_cache = as_method(self.drop_graphs)
        kind._warmup_and_capture = as_method(self.warm_up_and_capture)
        kind._dummy_run = as_method(self.graph)
        kind._create_encoder_cudagraph_manager = lambda runner: None
        kind._freeze_gc = unsplit
        runner.max_model_len, runner.max_num_tokens = 4096, 256
        descriptions = [
            (mode, [SimpleNamespace(num_tokens=2 - n, mode=mode, n=n) for n in (0, 1)])
            for mode in Mode
        ]
        runner.cudagraph_dispatcher = SimpleNamespace(
            get_capture_descs=lambda: descriptions, cudagraph_keys={}, keys_initialized=True
        )

    def load_model(self, worker: Any) -> None:
        """The weights, and an Impl that reserves, within vLLM's own profiler."""
        with module("utils.mem_utils").DeviceMemoryProfiler() as measured:
            self.device.hold("weights", 10 * GIB)
            self.at("load_model")
        worker.model_runner.model_memory_usage = measured.consumed_memory

    def profile_run(self, runner: Any, **options: Any) -> None:
        """The arena first, then the activations' peak."""
        self.at("profile_run")
        self.device.spike(2 * GIB)

    def initialize_kv_cache(self, runner: Any, config: Any) -> None:
        """A metadata builder that reserves, where the KV cache is made."""
        self.at("initialize_kv_cache")

    def builders(self, runner: Any) -> None:
        """The builders of the throwaway KV cache."""
        self.at("graph estimate: builders")

    def warm_up_and_capture(self, runner: Any, description: Any, **options: Any) -> None:
        """As vLLM's: dummy runs, the last of them captured."""
        runner._dummy_run(description)

    def graph(self, runner: Any, description: Any) -> None:
        """Warm-up and capture of one graph: the first of a mode is the larger one."""
        mode, first = description.mode, description.n == 0
        self.device.hold(f"{mode} {description.n}", GRAPHS[mode.name] if first else MIB)
        if not first:
            self.at("graph estimate: second graph" if mode is Mode.PIECEWISE else "")
            return
        size = "larger" if mode is Mode.PIECEWISE else "smaller"
        self.at(f"graph estimate: first graph of the {size} mode")

    def drop_graphs(self, runner: Any) -> None:
        """The throwaway graphs are gone."""
        for name in [n for n in self.device.used if n != "weights"]:
            del self.device.used[name]

    def apply_plan(self, worker: Any) -> None:
        """A startup plan (0.26 on): it fixes the KV size, as the flag does."""
        if self.plan is not None:
            worker.cache_config.kv_cache_memory_bytes = self.plan


def as_method(call: Callable[..., Any]) -> Callable[..., Any]:
    """A method that calls back, with the parameters that a hook looks for."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        return call(self, *args, **options)

    return method


def _no_mm(size: int, *of: Any) -> int:
    """In the place of what multimodal models reserve: nothing."""
    return size


def _life(folder: Path, make: Callable[[], Sized]) -> Facts:
    """Bytes for the KV cache, and what wstrace said of the growth, if there was one."""
    with recorded(folder):
        available = make().available()
    (process,) = load_trace(folder).processes
    grown = [(r.phase, r.window) for r in process.records if isinstance(r, Growth)]
    return {"available": available, "grown": grown}


def _estimates() -> bool:
    return "profile_cudagraph_memory" in vars(
        module("v1.worker.gpu_model_runner").GPUModelRunner
    )


@scenario
def sizing(folder: Path) -> Facts:
    """Every point, with the graph estimate off and on; and lives with a fixed KV size."""
    module("v1.worker.gpu_worker")
    envs = module("envs")
    found: Facts = {"estimates": _estimates(), "default": _default(envs)}
    for applied in (False, True) if _estimates() else (False,):
        name = "applied" if applied else "not applied"
        with patch.object(
            envs, "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", applied, create=True
        ):
            found[name] = {
                str(point): _life(folder / f"{name}-{n}", lambda p=point: Sized(p))  # type: ignore[misc]
                for n, point in enumerate((None, *POINTS))
            }
    found["fixed"] = _life(folder / "fixed", lambda: Sized("profile_run", fixed=FIXED))
    if hasattr(sys.modules["vllm.v1.worker.gpu_worker"], "maybe_apply_startup_plan"):
        found["plan"] = _life(folder / "plan", lambda: Sized("profile_run", plan=FIXED))
    return found


def _default(envs: Any) -> bool:
    """Whether this version applies the graph estimate where nobody said anything."""
    return bool(getattr(envs, "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", False))
