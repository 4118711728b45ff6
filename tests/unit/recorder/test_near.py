"""`--warn-at`: which step is looked at, what is predicted, and what is told."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.recorder.test_growth import Manager, manager
from wstrace.recorder.hooks.nearness import look_at_step
from wstrace.recorder.settings import Settings, read_settings
from wstrace.recorder.state.guard_file import NEAR, lines
from wstrace.recorder.state.near import EVERY, NearState
from wstrace.recorder.state.process import Live
from wstrace.reserve.schema import SiteReserve
from wstrace.trace.records import NearLimit, Ranks

__all__ = ["manager"]
# Continued prefill: 100 bytes for each computed token, rounded up to blocks of 16.
SITE = SiteReserve(
    site="attn.py:prefill",
    grade="proved",
    bytes=100 * 2048,
    formula="100 * round_up(num_computed_tokens, block_size)",
    drivers={"num_computed_tokens": "max_model_len - 1"},
)
LIMITS = {"block_size": 16, "max_model_len": 2048}


def step(computed: int, scheduled: int = 8) -> Any:
    """A SchedulerOutput with one request that goes on after `computed` tokens."""
    return SimpleNamespace(
        total_num_scheduled_tokens=scheduled,
        num_scheduled_tokens={"a": scheduled},
        scheduled_new_reqs=[],
        scheduled_cached_reqs=SimpleNamespace(req_ids=["a"], num_computed_tokens=[computed]),
        scheduled_spec_decode_tokens={},
    )


def live_of(manager: Manager, share: float = 0.9) -> tuple[Live, list[Any]]:
    live = Live(Settings(None, "run", guard=True, warn_at=share))
    records: list[Any] = []
    live.output.write = records.append  # type: ignore[assignment, method-assign]
    live.manager.current = manager
    live.worker.limits = dict(LIMITS)
    assert live.near is not None
    live.near.add([SITE])
    live.near.tell = lambda output: look_at_step(live, output)
    return live, records


@pytest.mark.parametrize(
    ("text", "share"),
    [("0.9", 0.9), ("1", 1.0), ("90%", 0.9), ("", None), ("nine tenths", None)],
)
def test_the_setting(text: str, share: float | None) -> None:
    assert read_settings({"WSTRACE_WARN_AT": text}).warn_at == share


@pytest.mark.parametrize(("computed", "told"), [(8, False), (9, False), (16, True)])
def test_a_step_from_the_share_on_is_told_before_its_layer_asks(
    manager: Manager, computed: int, told: bool
) -> None:
    """90 % of 1777 bytes are 1599.3; a token takes 100."""
    manager._current_workspaces[1].size = manager._current_workspaces[0].size = 1777
    live, records = live_of(manager)
    live.near.sites["attn.py:prefill"] = SiteReserve(  # type: ignore[union-attr]
        site="attn.py:prefill",
        grade="proved",
        bytes=0,
        formula="100 * num_computed_tokens",
        drivers=SITE.drivers,
    )
    live.steps.begin(step(computed), in_warmup=False)
    assert bool(records) is told


def test_once_a_site_with_what_drives_it(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    live, records = live_of(manager)
    with caplog.at_level(logging.INFO, "vllm.wstrace"):
        for computed in (16, 32, 64):
            live.steps.begin(step(computed), in_warmup=False)
    (near,) = records
    assert isinstance(near, NearLimit)
    assert (near.site, near.bytes, near.arena, near.worst) == (SITE.site, 1600, 1000, 204800)
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert "(num_computed_tokens = 16)" in line.getMessage()
    assert "Its worst case, 204,800 bytes (200.00 KiB), does not fit." in line.getMessage()
    sample = f'{NEAR}{{site="attn.py:prefill",dp="0",pp="0",tp="0"}} 1600'
    assert sample in list(lines(Ranks(), live.guard))


def test_a_worst_case_that_fits_is_no_warning(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    for tensor in manager._current_workspaces:
        tensor.size = SITE.bytes
    live, _ = live_of(manager)
    with caplog.at_level(logging.INFO, "vllm.wstrace"):
        live.steps.begin(step(1800), in_warmup=False)
        assert not caplog.records
        live.steps.begin(step(1900), in_warmup=False)
    assert [(r.levelno, r.getMessage()[-5:]) for r in caplog.records] == [
        (logging.INFO, "fits.")
    ]


def test_an_arena_that_may_grow_is_no_limit(manager: Manager) -> None:
    manager._locked = False
    live, records = live_of(manager)
    live.steps.begin(step(640), in_warmup=False)
    assert records == []


def test_few_steps_are_looked_at() -> None:
    """A decode that goes on for 30,000 steps, each with one computed token more."""
    seen: list[Any] = []
    near = NearState(0.9, seen.append)
    near.add([SITE])
    for computed in range(1, 30_001):
        near.step(computed, 1, 1, computed)
    assert len(seen) < 64 + 64 * 7 + 30_000 // EVERY


def test_a_site_whose_formula_follows_no_scheduler_is_passed_over(manager: Manager) -> None:
    live, records = live_of(manager)
    assert live.near is not None
    live.near.sites.clear()
    live.near.add([SiteReserve(site="x:y", grade="observed", bytes=1)])
    odd = {"experts_hit": "num_experts"}
    live.near.add(
        [SiteReserve(site="x:z", grade="proved", bytes=1, formula="experts_hit", drivers=odd)]
    )
    live.steps.begin(step(640), in_warmup=False)
    assert records == []
