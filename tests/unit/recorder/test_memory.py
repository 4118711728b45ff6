"""Which window the recorder writes; what vLLM really subtracts: tests/matrix/test_sizing.py."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.recorder.test_phases import inside
from wstrace.recorder.settings import Settings
from wstrace.recorder.state.kv_memory import MemoryState
from wstrace.recorder.state.process import Live
from wstrace.recorder.vllm_state.kv_cache import Sizing, fixed_kv, sizing_of
from wstrace.trace.records import Phase
from wstrace.versions import release_of

AFTER: tuple[Phase, ...] = ("kv-init", "warmup", "capture", "serving", "unlocked", "sleep")
BEFORE: tuple[Phase, ...] = ("init", "load", "profile")
OLD, NEW, TOMORROW = map(release_of, ("0.26.0", "0.33.0", "9.99.0"))
BRANCH = release_of("0.1.dev12345")


@pytest.fixture
def live(tmp_path: Path) -> Live:
    """A recorder in a worker of vLLM 0.33 that took its memory snapshot."""
    live = Live(Settings(str(tmp_path), "test"))
    live.worker.current = SimpleNamespace(init_snapshot=object())
    live.memory = MemoryState(NEW)
    return live


def at(live: Live, method: str) -> str:
    """The window of an arena made while `method` runs."""
    with inside(live.phases, method):
        return live.window()


@pytest.mark.parametrize("phase", AFTER)
@pytest.mark.parametrize("vllm", [BRANCH, OLD, NEW, TOMORROW])
def test_what_comes_after_sizing_no_version_counts(vllm: Any, phase: Phase) -> None:
    assert MemoryState(vllm).window(phase) == "not counted"


@pytest.mark.parametrize("phase", BEFORE)
@pytest.mark.parametrize("vllm", [BRANCH, TOMORROW, release_of(None)], ids=str)
def test_a_version_that_was_not_checked_counts_as_the_newest(vllm: Any, phase: Phase) -> None:
    assert MemoryState(vllm).window(phase) == MemoryState(NEW).window(phase) == "counted"


@pytest.mark.parametrize("phase", BEFORE)
@pytest.mark.parametrize("sizing", ["cpu", "other"])
def test_a_worker_that_sizes_in_its_own_way_is_unknown(sizing: Sizing, phase: Phase) -> None:
    assert MemoryState(NEW, sizing=sizing).window(phase) == "unknown"
    assert MemoryState(NEW, sizing=sizing, measured=True).window(phase) == "not counted"


@pytest.mark.parametrize("phase", [*BEFORE, *AFTER])
def test_a_fixed_size_counts_nothing_in_any_version(phase: Phase) -> None:
    for vllm in (BRANCH, OLD, NEW, TOMORROW):
        assert MemoryState(vllm, "kv_cache_memory_bytes").window(phase) == "not counted"


@pytest.mark.parametrize("lost", ["Worker.load_model", "GPUModelRunner.profile_run"])
def test_a_phase_that_cannot_be_seen_is_unknown(live: Live, lost: str) -> None:
    assert live.window() == "counted"
    live.hooks.stand_down(lost, "signature is (self, other)")
    assert live.window() == "unknown"
    assert at(live, "initialize_kv_cache") == "not counted"


def test_before_the_memory_snapshot_nothing_counts(live: Live) -> None:
    live.worker.current = SimpleNamespace()
    assert live.window() == "not counted"
    assert at(live, "load_model") == "counted"


@pytest.mark.parametrize(("applied", "window"), [(True, "unknown"), (False, "not counted")])
def test_graphs_that_are_measured_make_it_unknown(
    live: Live, monkeypatch: pytest.MonkeyPatch, applied: bool, window: str
) -> None:
    envs = ModuleType("vllm.envs")
    envs.VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS = applied  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.envs", envs)
    assert at(live, "profile_cudagraph_memory") == "not counted"
    with inside(live.phases, "profile_cudagraph_memory"):
        live.steps.begin_dummy(8, "dummy")
        assert live.window() == window


def test_the_record_says_what_is_measured() -> None:
    assert MemoryState(OLD).measures() == "load_model and profile_run"
    assert MemoryState(NEW).measures().startswith("from the first memory snapshot")
    assert MemoryState(TOMORROW).measures().endswith("profile_run (taken for 0.33.0)")
    assert MemoryState(BRANCH).measures() == MemoryState(TOMORROW).measures()
    assert MemoryState(NEW, sizing="other").measures() == "unknown"
    assert "pages" in MemoryState(NEW, sizing="cpu").measures()
    assert "fixed" in MemoryState(NEW, "num_gpu_blocks_override").measures()


def cache(**fields: int) -> Any:
    return SimpleNamespace(vllm_config=SimpleNamespace(cache_config=SimpleNamespace(**fields)))


@pytest.mark.parametrize(
    ("field", "lever"),
    [
        ("kv_cache_memory_bytes", "kv_cache_memory_bytes"),
        ("num_gpu_blocks_override", "num_gpu_blocks_override"),
        ("cpu_kvcache_space_bytes", "VLLM_CPU_KVCACHE_SPACE"),
    ],
)
def test_what_fixes_the_size_is_named_as_the_user_sets_it(field: str, lever: str) -> None:
    assert fixed_kv(cache(**{field: 1 << 30})) == lever
    assert fixed_kv(cache(**{field: 0})) is None


def worker(module: str, *bases: type) -> type:
    """A worker class of this module, with a sizing method of its own."""

    def determine_available_memory(self: Any) -> int:
        return 0

    determine_available_memory.__module__ = module
    methods = {"determine_available_memory": determine_available_memory, "__module__": module}
    return type("Worker", bases, methods)


def test_the_module_of_the_method_says_how_a_worker_sizes() -> None:
    gpu, cpu = worker("vllm.v1.worker.gpu_worker"), worker("vllm.v1.worker.cpu_worker")
    heir = type("XPUWorker", (gpu,), {"__module__": "vllm.v1.worker.xpu_worker"})
    plugin = worker("vllm_ascend.worker.worker", gpu)
    assert [sizing_of(kind) for kind in (gpu, cpu, heir, plugin, object)] == [
        "gpu",
        "cpu",
        "gpu",
        "other",
        "other",
    ]


def test_a_new_worker_in_the_process_starts_unmeasured(live: Live) -> None:
    live.memory.measured = True
    made = worker("vllm.v1.worker.cpu_worker")()
    made.vllm_config = cache(kv_cache_memory_bytes=1).vllm_config
    live.memory.starts(made)
    assert live.memory == MemoryState(NEW, "kv_cache_memory_bytes", "cpu")
