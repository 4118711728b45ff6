"""Phases, from the order in which vLLM calls its worker's methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from wstrace.recorder.hooks.worker import worker_makers
from wstrace.recorder.state.phases import PhaseFlags, PhaseTracker, derive
from wstrace.trace.records import Phase


@contextmanager
def inside(phases: PhaseTracker, method: str) -> Iterator[None]:
    """As the wrapper around a vLLM method does it."""
    phases.enter(method)
    try:
        yield
    except BaseException:
        phases.leave(method, "RuntimeError: no")
        raise
    phases.leave(method)


def tracker() -> tuple[PhaseTracker, list[Phase]]:
    seen: list[Phase] = []
    return PhaseTracker(on_change=lambda phase, why, error: seen.append(phase)), seen


def start_up(phases: PhaseTracker) -> None:
    """The V1 runner on a GPU, from load to serving."""
    with inside(phases, "load_model"):
        pass
    with inside(phases, "profile_run"):
        pass
    with inside(phases, "profile_cudagraph_memory"), inside(phases, "initialize_kv_cache"):
        pass
    with inside(phases, "initialize_kv_cache"):
        pass
    with inside(phases, "compile_or_warm_up_model"), inside(phases, "capture_model"):
        phases.locked()


def test_a_v1_start_goes_through_every_phase_to_serving() -> None:
    phases, seen = tracker()
    start_up(phases)
    assert seen == [
        "load", "init", "profile", "init", "graph-estimate", "init", "kv-init", "init",
        "warmup", "capture", "post-lock-warmup", "serving",
    ]  # fmt: skip


def test_the_throwaway_kv_cache_of_the_graph_estimate_is_no_kv_init() -> None:
    phases, seen = tracker()
    with inside(phases, "profile_cudagraph_memory"), inside(phases, "initialize_kv_cache"):
        assert phases.current == "graph-estimate"
    assert "kv-init" not in seen


def test_after_the_lock_the_rest_of_warm_up_is_no_warm_up() -> None:
    phases, _ = tracker()
    with inside(phases, "compile_or_warm_up_model"):
        with inside(phases, "capture_model"):
            phases.locked()
        assert phases.current == "post-lock-warmup"
    assert phases.current == "serving"


def test_a_server_that_never_locks_serves_all_the_same() -> None:
    phases, _ = tracker()
    with inside(phases, "compile_or_warm_up_model"):
        pass
    assert phases.current == "serving"
    assert not phases.flags.locked


def test_elastic_ep_unlocks_warms_up_again_and_relocks() -> None:
    phases, seen = tracker()
    start_up(phases)
    seen.clear()
    phases.unlocked()
    assert phases.current == "unlocked"
    with inside(phases, "compile_or_warm_up_model"):
        assert phases.current == "warmup"
    assert phases.current == "unlocked"
    phases.locked()
    assert seen == ["unlocked", "warmup", "unlocked", "serving"]


def test_sleep_lasts_until_wake_up() -> None:
    phases, _ = tracker()
    start_up(phases)
    phases.asleep(True)
    assert phases.current == "sleep"
    phases.asleep(False)
    assert phases.current == "serving"


def test_a_method_that_raises_leaves_the_stack_clean() -> None:
    phases, _ = tracker()
    with pytest.raises(MemoryError), inside(phases, "profile_run"):
        raise MemoryError
    assert phases.active == []
    assert phases.current == "init"


def test_a_failed_warm_up_is_not_ready() -> None:
    phases, _ = tracker()
    with pytest.raises(RuntimeError), inside(phases, "compile_or_warm_up_model"):
        raise RuntimeError
    assert phases.current == "init"


def test_shutdown_wins_over_everything() -> None:
    assert derive(["warmup", "shutdown"], PhaseFlags(asleep=True)) == "shutdown"


def told() -> tuple[PhaseTracker, list[tuple[Phase, str, str]]]:
    seen: list[tuple[Phase, str, str]] = []
    return PhaseTracker(on_change=lambda *change: seen.append(change)), seen


def test_an_error_is_told_where_the_phase_stays() -> None:
    phases, seen = told()
    phases.raised("determine_available_memory", "ValueError: no memory")
    assert seen == [("init", "determine_available_memory raised", "ValueError: no memory")]


def test_a_capture_that_raises_after_the_lock_is_told_before_its_warm_up() -> None:
    phases, seen = told()

    def start() -> None:
        with inside(phases, "compile_or_warm_up_model"), inside(phases, "capture_model"):
            phases.locked()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        start()
    assert [why for _, why, error in seen if error] == [
        "capture_model raised",
        "compile_or_warm_up_model raised",
    ]


@pytest.mark.parametrize("method", ["determine_available_memory", "initialize_from_config"])
def test_the_hooks_outside_the_phases_tell_an_error_without_its_secrets(method: str) -> None:
    phases, seen = told()
    live: Any = SimpleNamespace(phases=phases)

    def original(self: object) -> None:
        raise ValueError("no memory, {'api_key': ['s3cret']}")

    with pytest.raises(ValueError, match="no memory"):
        worker_makers(live)[method](original)(object())
    text = "ValueError: no memory, {'api_key': [redacted]}"
    assert seen == [("init", f"{method} raised", text)]
