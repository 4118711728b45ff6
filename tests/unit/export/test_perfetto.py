"""The Chrome trace: clock, counters, slices, instants."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.unit.report_html import runs
from wstrace.errors import WstraceError
from wstrace.report.export.perfetto import QUARTER_NS, render_perfetto, torch_base

WALL = 1_780_000_000_000_000_000
START = 1_000_000_000


def _events(text: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return events


def test_base_is_the_quarter_that_torch_rounds_to() -> None:
    """Seen in a trace of torch 2.13 made in this quarter: 1790857026 s = 227 quarters."""
    assert QUARTER_NS * 227 == 1_790_857_026_000_000_000
    document = json.loads(render_perfetto(runs.grown()))
    base = document["baseTimeNanoseconds"]
    assert base % QUARTER_NS == 0
    assert 0 <= WALL - base < QUARTER_NS


def test_timestamps_are_wall_clock_microseconds_after_the_base() -> None:
    session = runs.grown()
    record = session.workers[0].growths[-1]
    base = 1_779_999_999_000_000_000
    events = _events(render_perfetto(session, base))
    growth = [e for e in events if e["ph"] == "i" and e["name"].startswith("growth")][-1]
    assert growth["ts"] == pytest.approx((WALL + record.ns - START - base) / 1000)
    assert growth["args"]["before"] == "35.19 MiB"


def test_counters_slices_and_instants() -> None:
    session = runs.crashed()
    events = _events(render_perfetto(session))
    one = [e for e in events if e["pid"] == 4001]
    arena = [e for e in one if e["ph"] == "C" and e["name"].endswith("ubatch 1, lane 0: arena")]
    assert [e["args"]["bytes"] for e in arena] == [6 * 2**20] * 2
    slices = [e["name"] for e in one if e["ph"] == "X"]
    assert slices == [change.phase for change in session.workers[1].phases]
    names = [e["name"] for e in one if e["ph"] == "i"]
    assert "refused 32.00 MiB" in names
    assert "escape 32.00 MiB" in names
    assert "lock" in names
    assert {e["pid"] for e in events} == {4000, 4001}


def test_a_process_is_called_as_its_rank_is_in_every_report() -> None:
    """Only groups of several members tell ranks apart: tensor parallel 2, then one rank."""
    for made, names in ((runs.crashed, ["tp0", "tp1"]), (runs.grown, ["rank 0"])):
        named = [e for e in _events(render_perfetto(made())) if e["name"] == "process_name"]
        told = sorted(e["args"]["name"] for e in named)
        assert told == [f"vLLM workspace {name}" for name in names]


def test_slices_follow_each_other_without_gap() -> None:
    slices = [e for e in _events(render_perfetto(runs.grown())) if e["ph"] == "X"]
    for before, after in pairwise(slices):
        assert before["ts"] + before["dur"] == pytest.approx(after["ts"])
    assert all(e["dur"] >= 0 for e in slices)


def test_base_of_a_torch_trace(tmp_path: Path) -> None:
    plain = tmp_path / "torch.json"
    plain.write_text(json.dumps({"traceEvents": [{"ph": "X"}], "baseTimeNanoseconds": 42}))
    packed = tmp_path / "torch.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert torch_base(plain) == torch_base(packed) == 42


@pytest.mark.parametrize("content", [b"", b"not json", b"[]", b"\x1f\x8bbroken"])
def test_what_is_no_torch_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(WstraceError, match="Not a torch profiler trace"):
        torch_base(path)


def test_empty_session_is_a_valid_trace() -> None:
    assert _events(render_perfetto(runs.empty())) == []
