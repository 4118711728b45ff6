"""vLLM's own shape code at random engines and steps: none may ask for more than was proved."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.matrix.differential import harness
from tests.matrix.differential.engines import draw_engine
from tests.matrix.differential.harness import Tally, run
from tests.matrix.differential.known_low import KNOWN, reason_of
from tests.matrix.differential.released import Release
from tests.matrix.differential.scene import resolved
from tests.matrix.differential.scenes import scenes
from tests.matrix.differential.table import LONG, long_run
from tests.matrix.wheels import UnavailableError, python_files
from tests.unit.bounds.shapes import PLAYED
from wstrace.bounds.bound import Bound
from wstrace.bounds.limits import role_limits
from wstrace.known_sites.known import require

pytestmark = pytest.mark.matrix
SHORT = ("0.22.1", "0.28.0", "0.33.0")


def _release(version: str) -> Release:
    try:
        return Release(python_files(version), version)
    except UnavailableError as error:
        pytest.fail(f"vLLM {version} cannot be had: {error}", pytrace=False)


def _unexplained(tallies: list[Tally]) -> list[str]:
    return [low.told() for t in tallies for low in t.lows if reason_of(low) is None]


def _of_another_release(tallies: dict[tuple[str, str], Tally]) -> list[str]:
    """Scenes whose rule gives none of the requests: its formula is another release's."""
    return [
        name
        for (_, name), tally in tallies.items()
        if tally.engines > 3
        and not tally.proved
        and all("does not give" in why for why in tally.refused)
    ]


@pytest.mark.parametrize("version", SHORT)
def test_no_state_is_above_a_proved_bound(version: str) -> None:
    tallies = run([_release(version)], engines=6, states=8)
    played = [t for t in tallies.values() if t.played]
    assert sum(t.states for t in played) > 1500
    assert len(played) >= 25
    assert _unexplained(played) == []
    assert _of_another_release(tallies) == []


def test_a_bound_one_byte_short_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: with every proved bound a byte lower, exact ones are too low."""
    honest = harness._bound

    def short(*given: Any) -> Bound | str:
        found = honest(*given)
        return (
            replace(found, bytes=(found.bytes or 0) - 1) if isinstance(found, Bound) else found
        )

    monkeypatch.setattr(harness, "_bound", short)
    tallies = run([_release("0.28.0")], engines=1, states=2)
    assert any(low.asked == low.promised + 1 for t in tallies.values() for low in t.lows)


def test_full_graphs_are_those_that_vllm_makes_for_the_backend() -> None:
    """By hand: _cudagraph_support of the builders of 0.22.1. UNIFORM_BATCH in TurboQuant's and
    FlashMLA's, FlashAttention's is decided by its version; the indexer is under any backend."""
    release, drawn = _release("0.22.1"), draw_engine(Random(0))
    full = replace(drawn, words={**drawn.words, "cudagraph_mode": "FULL"})
    found = {
        s.name: resolved(release, s, full).words["cudagraph_mode"] for s in scenes(release)
    }
    wanted = {
        "turboquant decode": "FULL_AND_PIECEWISE",
        "DCP all-to-all, FlashMLA decode": "FULL_AND_PIECEWISE",
        "flash attention DCP": "FULL",
        "sparse indexer gather": "FULL",
    }
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize("version", ["0.27.1", "0.33.0"])
def test_no_block_table_is_wider_than_its_limit(version: str) -> None:
    """vLLM's own width of a row: blocks of the longest sequence, aligned, split for a kernel.
    0.33.0 splits outside of the function, by the same quotient."""
    release, random = _release(version), Random(version)
    width = release.get("vllm/v1/worker/block_table.py", "get_block_table_width")
    splits = "kernel_block_size" in width.__code__.co_varnames
    for _ in range(2000):
        kernel = random.choice((1, 16, 32, 64))
        block, length = kernel * random.randint(1, 60), random.randint(1, 70_000)
        limits = {
            "block_size": block, "kernel_block_size": kernel, "max_model_len": length,
            "decode_context_parallel_size": random.choice((1, 4)),
        }  # fmt: skip
        blocks = -(-length // block)  # a layer whose blocks context parallelism does not share
        found = width(blocks, block, *([kernel] if splits else []))
        found *= 1 if splits else block // kernel
        most = role_limits(dict(limits))["max_blocks_per_req"].maximum
        assert most is not None
        assert found <= most, limits


@pytest.mark.slow
def test_no_state_is_above_a_proved_bound_in_every_release() -> None:
    tallies = long_run()
    played = [t for t in tallies.values() if t.played]
    assert {version for version, _ in tallies} == set(LONG)
    assert sum(t.states for t in played) >= 100_000
    assert _unexplained(played) == []
    assert _of_another_release(dict(tallies)) == []
    found = {reason_of(low) for t in played for low in t.lows}
    assert {known.reason for known in KNOWN if known not in found} == set()
    proved = {
        (rule, require(rule).at(version).variant.since)
        for (version, _), tally in tallies.items()
        for rule in tally.rules
    }
    named = {(site, since) for site, several in PLAYED.items() for since in several}
    assert named - proved == set(), "tests/unit/bounds/shapes.py says that these are played"
