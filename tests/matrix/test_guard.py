"""`WSTRACE_GUARD` on the real WorkspaceManager of each version: nothing is recorded."""

from __future__ import annotations

import pytest
import yaml

from tests.matrix.runs import Run

pytestmark = pytest.mark.matrix
shows = pytest.mark.shows
MIB = 1 << 20


@shows("guard: a request above its locked arena is served, nothing is recorded")
def test_a_request_above_its_locked_arena_is_served(run: Run) -> None:
    facts = run.facts("guard")
    every = run.version < (0, 20)
    assert facts["texts"] == ["", "", ""]
    assert facts["before"] == [MIB, MIB]
    assert facts["after"] == [4 * MIB, 4 * MIB if every else MIB]
    assert facts["locked"]
    assert facts["files"] == []
    assert facts["tallies"] == [[2, 0, 4 * MIB]]


@shows("guard: what a captured graph or a live view holds stays")
def test_the_captured_arena_and_a_live_view_are_left(run: Run) -> None:
    facts = run.facts("guard")
    assert facts["moved"]
    every = run.version < (0, 20)  # then slot 1's grows too, and it was there at the capture
    assert facts["kept"] == (2 * MIB if every else MIB)
    assert facts["view"] == [7, 7]


def test_within_the_smallest_arena_nothing_is_looked_at(run: Run) -> None:
    facts = run.facts("guard")
    assert facts["least"] == [MIB, 4 * MIB if run.version < (0, 20) else MIB]


def test_a_site_is_told_once_with_the_line_that_the_reserve_lacks(run: Run) -> None:
    told = run.facts("guard")["told"]
    assert told[0].startswith("wstrace guard: on; a locked arena may grow, by at most")
    (outgrown,) = [line for line in told if "locked at" in line]
    assert "other_ask' asked 2,097,152 bytes (2.00 MiB) in ubatch 0, lane 0" in outgrown
    assert "locked at 1,048,576 bytes (1.00 MiB)" in outgrown
    (site,) = yaml.safe_load(told[-1])
    assert site["site"] == "tests/matrix/harness.py:other_ask"
    assert (site["bytes"], site["observed"], site["grade"]) == (2 * MIB, 2 * MIB, "observed")
    assert "only what was asked now" in told[-2]


@shows("guard: beyond its limit, out of memory and while capturing vLLM's own error")
def test_where_it_may_not_grow_the_error_is_vllms(run: Run) -> None:
    facts = run.facts("guard_limits")
    texts, plain = facts["texts"], facts["plain"]
    assert texts["served"] == ""
    assert texts["beyond"] == plain["beyond"] != ""
    assert texts["capturing"] == plain["capturing"] != ""
    assert "requires 2.00 MB, current size is 2.00 MB" in texts["starved"]
    assert (facts["within"], facts["left"]) == (2 * MIB, 2 * MIB)
    (why,) = [line for line in facts["told"] if "could not grow" in line]
    assert why.endswith("it could not grow: WSTRACE_GUARD_MAX is 3,145,728 bytes (3.00 MiB).")


@shows("guard: an unlocked arena that graphs hold is kept, not freed")
def test_without_a_lock_the_arena_of_captured_graphs_is_kept(run: Run) -> None:
    facts = run.facts("guard_unlocked")
    assert facts["text"] == ""
    assert (facts["arena"], facts["kept"], facts["same"]) == (2 * MIB, MIB, True)


@shows("guard: grows in the manager's own allocation context", since="0.32")
def test_the_growth_is_made_in_the_managers_own_context(run: Run) -> None:
    facts = run.facts("guard_context")
    assert facts["has"]
    assert (facts["text"], facts["arena"]) == ("", 2 * MIB)
    assert facts["entered"] == ["in", "out"]


@shows("guard: a persistent resource is made after the lock", since="0.31")
def test_a_missing_resource_is_made_and_told(run: Run) -> None:
    facts = run.facts("guard_resource")
    assert (facts["text"], facts["made"]) == ("", [4])
    (line,) = [line for line in facts["told"] if "No reserve helps" in line]
    assert "made ('late', 4) after the lock" in line


def test_with_the_guard_only_what_it_needs_is_wrapped(run: Run) -> None:
    wrapped = run.facts("guard")["wrapped"]
    assert "WorkspaceManager._ensure_workspace_size" in wrapped
    assert not [name for name in wrapped if name.endswith((".execute_model", ".sample_tokens"))]


def test_a_reserve_alone_wraps_no_request_and_no_step(run: Run) -> None:
    wrapped = run.facts("reserve_alone")["wrapped"]
    hot = ("._ensure_workspace_size", ".execute_model", ".sample_tokens")
    assert "WorkspaceManager.lock" in wrapped
    assert not [name for name in wrapped if name.endswith(hot)]
