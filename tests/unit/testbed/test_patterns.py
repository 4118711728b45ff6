"""The patterns' sizes against vLLM's real WorkspaceManager, by hand-computed numbers."""

from __future__ import annotations

import os
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYER = SimpleNamespace(num_heads=8, num_kv_heads=4, head_size=64)
CONFIG = SimpleNamespace(
    cache_config=SimpleNamespace(block_size=32),
    model_config=SimpleNamespace(max_model_len=2048, get_hidden_size=lambda: 256),
    scheduler_config=SimpleNamespace(max_num_seqs=8),
)


@pytest.fixture(scope="module")
def workspace() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if os.environ.get("WSTRACE_REQUIRE_ENGINE"):
            import vllm.v1.worker.workspace as module
        else:
            module = pytest.importorskip("vllm.v1.worker.workspace")
    return module


@pytest.fixture
def manager(workspace: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import torch

    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)
    workspace.init_workspace_manager(torch.device("cpu"))
    yield workspace.current_workspace_manager()
    workspace.reset_workspace_manager()


def arena_bytes(manager: Any) -> int:
    (arena,) = manager._current_workspaces
    return 0 if arena is None else arena.numel()


def metadata(*requests: tuple[int, int]) -> Any:
    """Attention metadata of requests given as (computed, scheduled) tokens."""
    import torch

    scheduled = torch.tensor([tokens for _, tokens in requests])
    return SimpleNamespace(
        query_start_loc=torch.cat([torch.zeros(1, dtype=torch.int64), scheduled.cumsum(0)]),
        seq_lens=torch.tensor([sum(request) for request in requests]),
        num_actual_tokens=int(scheduled.sum()),
        max_query_len=int(scheduled.max()),
    )


def ask(name: str, batch: Any) -> None:
    import torch

    from wstrace.testbed import patterns

    tokens = 64 if batch is None else batch.num_actual_tokens
    getattr(patterns, name)(LAYER, CONFIG).forward(torch.zeros(tokens, 8, 64), batch)


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([(0, 200)], 0),  # a first chunk has nothing cached
        ([(500, 1)], 0),  # decode
        ([(500, 32)], 0),  # few enough tokens to go the decode way
        ([(500, 33)], 2 * 4 * 512 * 64 * 2),
        ([(100, 1), (0, 50), (512, 64), (33, 40)], 2 * 4 * 512 * 64 * 2),
    ],
)
def test_continuation(manager: Any, requests: list[tuple[int, int]], expected: int) -> None:
    ask("Continuation", metadata(*requests))
    assert arena_bytes(manager) == expected


def test_continuation_asks_nothing_in_the_profile_run(manager: Any) -> None:
    ask("Continuation", None)
    assert arena_bytes(manager) == 0


def test_clean_reserves_its_worst_case(manager: Any) -> None:
    ask("Clean", None)
    assert arena_bytes(manager) == 2 * 4 * 2048 * 64 * 2
    manager.lock()
    ask("Clean", metadata((2047 - 64, 64)))


def test_per_token_escapes_its_profile(manager: Any) -> None:
    ask("PerToken", None)
    assert arena_bytes(manager) == 8 * 256 * 2
    manager.lock()
    ask("PerToken", metadata((10, 1), (20, 1)))
    with pytest.raises(AssertionError, match=r"patterns\.py:\d+:_gather"):
        ask("PerToken", metadata((0, 9)))


def test_decode_scratch_scales_with_the_batch(manager: Any) -> None:
    ask("DecodeScratch", metadata((0, 200)))
    assert arena_bytes(manager) == 0
    ask("DecodeScratch", metadata((5, 1), (6, 1), (7, 1)))
    assert arena_bytes(manager) == 3 * 8 * 32 * 65 * 4 + 3 * 8 * 64 * 2 + 256


def test_constant_first_asks_in_a_prefill(
    manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wstrace.testbed import worker
    from wstrace.testbed.settings import Settings

    monkeypatch.setattr(worker, "_settings", Settings(patterns=(), constant_bytes=4096))
    ask("Constant", None)
    ask("Constant", metadata((7, 1)))
    assert arena_bytes(manager) == 0
    ask("Constant", metadata((0, 7)))
    assert arena_bytes(manager) == 4096


def test_persistent_is_missing_after_the_lock(manager: Any) -> None:
    ask("Persistent", metadata((7, 1)))
    manager.lock()
    with pytest.raises(AssertionError, match="wstrace_testbed_semaphores"):
        ask("Persistent", metadata((0, 7)))
