"""Every planted fault of a made fleet is found, and none is invented."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.commands import wstrace
from tools.fleet.found import SIGNS, wrong
from tools.fleet.generate import FAULTS, REGRESSED, write_fleet

SCENE = tuple[dict[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> SCENE:
    """50 runs, the largest of 32 ranks, and what `wstrace fleet` says of them."""
    folder = tmp_path_factory.mktemp("fleet")
    planted = write_fleet(folder, 50, 32, seed=3)
    told = wstrace(
        "fleet", str(folder / "traces"), "--no-cache", "--jobs", "1", "--format", "json"
    )
    assert told.returncode == 0, told.stderr
    return planted, json.loads(told.stdout)


def test_every_kind_of_fault_is_planted_and_has_a_sign(fleet: SCENE) -> None:
    assert set(fleet[0].values()) == set(FAULTS) | {"log", "quiet log", "foreign"}
    assert set(SIGNS) == set(fleet[0].values()) - {"none"}


def test_all_are_found_and_none_is_invented(fleet: SCENE) -> None:
    planted, told = fleet
    assert wrong(told["runs"], planted) == []


def test_a_missed_and_an_invented_fault_would_be_told(fleet: SCENE) -> None:
    planted, told = fleet
    sound = next(run for run, fault in planted.items() if fault == "none")
    hurt = next(run for run, fault in planted.items() if fault == "death")
    lines = wrong(told["runs"], {**planted, sound: "cut", hurt: "none"})
    assert len(lines) == 2


def test_a_run_without_a_fault_is_clean(fleet: SCENE) -> None:
    planted, told = fleet
    sound = [r for r in told["runs"] if planted[r["run"]] == "none"]
    assert {(r["verdict"], tuple(r["words"])) for r in sound} == {("clean", ())}
    assert len(sound) > 20


def test_the_later_version_got_worse_and_no_other_did(fleet: SCENE) -> None:
    model, old, new = REGRESSED
    worse = fleet[1]["regressions"]
    assert {(r["change"], r["model"], r["old"], r["new"]) for r in worse} == {
        ("escapes", model, old, new),
        ("smaller arena", model, old, new),
    }
    escapes = next(r for r in worse if r["change"] == "escapes")
    # five runs of each version; of the later one all die
    counts = [escapes[name] for name in ("before", "after", "old_runs", "new_runs")]
    assert counts == [0, 5, 5, 5]
    arena = next(r for r in worse if r["change"] == "smaller arena")
    # 4,095 tokens in whole blocks of 16 are 4 MiB: the whole MiB above it, and a quarter of it
    assert (arena["before"], arena["after"]) == (5 << 20, 1 << 20)


def test_a_rule_that_a_request_contradicts_is_named(fleet: SCENE) -> None:
    planted, told = fleet
    runs = sum(fault == "rule" for fault in planted.values())
    assert sum(row["runs"] for row in told["refuted"]) == runs
    assert {row["rule"] for row in told["refuted"]} == {"turboquant.continuation_prefill"}


def test_dead_ranks_are_counted_and_named_by_what_the_config_promises(fleet: SCENE) -> None:
    planted, told = fleet
    dead = [r for r in told["runs"] if planted[r["run"]] == "dead node"]
    assert dead
    for row in dead:  # a fourth of the ranks, or an eighth of many: one host's
        assert 0 < row["expected"] - row["ranks"] < row["expected"]
        assert f"of {row['expected']} ranks left no trace" in " ".join(row["words"])


def test_the_versions_count_every_run_once(fleet: SCENE) -> None:
    _, told = fleet
    rows = told["versions"]
    assert sum(row["runs"] for row in rows) == told["counts"]["runs"]
    assert told["counts"]["runs"] == sum(r["kind"] == "run" for r in told["runs"])
