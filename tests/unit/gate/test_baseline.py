"""Baselines: new, grown, expired and fixed findings; a file that holds on any machine."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.gate import traces
from tests.unit.gate.conftest import Gate
from wstrace.trace.records import Failure, Slot, Step

FILE = "vllm/v1/attention/backends/tiny_attn.py"
SITE = f"{FILE}:TinyImpl._continuation_prefill"


def _entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(x) for x in path.read_text().splitlines() if not x.startswith("#")]


def _days(number: int) -> str:
    return (datetime.now(UTC).date() + timedelta(days=number)).isoformat()


def _redate(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def _escape(folder: Path, computed: int, slot: Slot = traces.SLOT, host: str = "node0") -> Path:
    """A run whose continuation escapes in `slot` after `computed` tokens."""
    arena, slots = 64 * traces.KIB, {traces.SLOT, slot}
    traces.Run(folder).worker(
        traces.phase("profile"),
        *(traces.warm(2, arena, slot=s) for s in slots),
        traces.lock(arena, sorted(slots)),
        traces.phase("serving"),
        traces.continuation(computed, arena, slot=slot),
        traces.counts(),
        host=host,
    )
    return folder


def test_writing_accepts_what_fails_now(gate: Gate, tmp_path: Path) -> None:
    trace = _escape(tmp_path / "t", 2048)
    assert gate(trace)[0] == 1
    code, text = gate(trace, "--write-baseline", "known.jsonl", "--reason", "fix in 0.33")
    assert code == 0
    assert "accepted: WS101" in text
    assert _entries(tmp_path / "known.jsonl") == [
        {
            "code": "WS101",
            "site": SITE,
            "slot": "main",
            "bytes": 2 * 4 * 2048 * 64 * 2,
            "reason": "fix in 0.33",
        }
    ]
    assert gate(trace, "--baseline", "known.jsonl")[0] == 0
    assert gate(trace)[0] == 1


def test_a_new_finding_fails(gate: Gate, tmp_path: Path) -> None:
    """The same site and bytes, with another code: what was masked now crashes."""
    (tmp_path / "known.jsonl").write_text(
        json.dumps({"code": "WS103", "site": SITE, "slot": "main", "bytes": 1 << 30}) + "\n"
    )
    assert gate(_escape(tmp_path / "t", 2048), "--baseline", "known.jsonl")[0] == 1


@pytest.mark.parametrize(
    ("computed", "tolerance", "code"),
    [
        (1600, "0", 0),
        (1601, "0", 1),  # one more block of 16 tokens
        (1760, "10%", 0),
        (1761, "10%", 1),
        (1616, "16KiB", 0),
        (1617, "16KiB", 1),
    ],
)
def test_a_grown_finding_fails_beyond_the_tolerance(
    computed: int, tolerance: str, code: int, gate: Gate, tmp_path: Path
) -> None:
    """Accepted at 1,600 computed tokens: 16 are 16 KiB, 160 are 10%."""
    first = _escape(tmp_path / "before", 1600)
    gate(first, "--write-baseline", "known.jsonl")
    trace = _escape(tmp_path / "after", computed)
    found, text = gate(trace, "--baseline", "known.jsonl", "--tolerance", tolerance)
    assert found == code, text
    assert ("WS101 grown" in text) == bool(code)


@pytest.mark.parametrize(("days", "code"), [(0, 0), (-1, 1), (30, 0)])
def test_an_entry_holds_to_the_end_of_its_last_day(
    days: int, code: int, gate: Gate, tmp_path: Path
) -> None:
    trace = _escape(tmp_path / "t", 2048)
    gate(trace, "--write-baseline", "known.jsonl", "--expires", _days(40))
    _redate(tmp_path / "known.jsonl", _days(40), _days(days))
    assert gate(trace, "--baseline", "known.jsonl")[0] == code


def test_an_expired_entry_needs_a_new_date(gate: Gate, tmp_path: Path) -> None:
    trace = _escape(tmp_path / "t", 2048)
    gate(trace, "--write-baseline", "known.jsonl", "--expires", _days(40), "--reason", "why")
    _redate(tmp_path / "known.jsonl", _days(40), _days(-3))
    assert gate(trace, "--write-baseline", "known.jsonl")[0] == 1
    assert gate(trace, "--write-baseline", "known.jsonl", "--expires", _days(9))[0] == 0
    (entry,) = _entries(tmp_path / "known.jsonl")
    assert (entry["reason"], entry["expires"]) == ("why", _days(9))


@pytest.mark.parametrize(("days", "code"), [(-1, 2), (-4000, 2), (0, 0), (1, 0)])
def test_an_end_that_is_over_is_refused_and_nothing_is_written(
    days: int, code: int, gate: Gate, tmp_path: Path
) -> None:
    trace = _escape(tmp_path / "t", 2048)
    found, text = gate(trace, "--write-baseline", "known.jsonl", "--expires", _days(days))
    assert found == code
    assert (tmp_path / "known.jsonl").exists() == (code == 0)
    assert code == 0 or "is over" in text


@pytest.mark.parametrize("option", [["--expires", _days(9)], ["--reason", "why"]])
def test_what_only_a_new_baseline_takes_is_not_ignored(
    option: list[str], gate: Gate, tmp_path: Path
) -> None:
    code, text = gate(_escape(tmp_path / "t", 2048), *option)
    assert (code, f"{option[0]} goes with --write-baseline FILE." in text) == (2, True)


def test_fixed_entries_are_reported_and_leave_the_file(gate: Gate, tmp_path: Path) -> None:
    gate(_escape(tmp_path / "t", 2048), "--write-baseline", "known.jsonl")
    mended = traces.clean(tmp_path / "mended")
    code, text = gate(mended, "--baseline", "known.jsonl")
    assert code == 0
    assert f"fixed: WS101 {SITE}" in text
    judged = json.loads(gate(mended, "--baseline", "known.jsonl", "--format", "json")[1])
    assert [e["code"] for e in judged["baseline"]["fixed"]] == ["WS101"]
    gate(mended, "--write-baseline", "known.jsonl")
    assert _entries(tmp_path / "known.jsonl") == []


def test_a_site_that_was_not_reached_is_not_fixed(gate: Gate, tmp_path: Path) -> None:
    gate(_escape(tmp_path / "t", 2048), "--write-baseline", "known.jsonl")
    size = 64 * traces.KIB
    traces.Run(tmp_path / "short").worker(
        traces.phase("profile"),
        traces.warm(2, size),
        traces.lock(size),
        traces.phase("serving"),
        traces.ask(2, size, size),
        traces.counts(counts=[]),
    )
    code, text = gate(tmp_path / "short", "--write-baseline", "known.jsonl")
    assert code == 0
    assert f"not reached: WS101 {SITE}" in text
    assert [entry["code"] for entry in _entries(tmp_path / "known.jsonl")] == ["WS101"]


def test_it_holds_on_another_machine(gate: Gate, tmp_path: Path) -> None:
    """Another host, pid, line, install path and ubatch; the same site and kind of slot."""
    gate(_escape(tmp_path / "t", 2048, Slot(1, 0)), "--write-baseline", "known.jsonl")
    text = (tmp_path / "known.jsonl").read_text()
    for private in (str(tmp_path), "node0", "4000", "812", "/opt/venv"):
        assert private not in text
    other = _escape(tmp_path / "u", 2048, Slot(2, 0), host="gpu17")
    assert gate(other, "--baseline", "known.jsonl")[0] == 0
    main = _escape(tmp_path / "v", 2048, host="gpu17")
    assert gate(main, "--baseline", "known.jsonl")[0] == 1


def test_the_file_is_sorted_and_stable(gate: Gate, tmp_path: Path) -> None:
    """Written from two runs in either order it is the same, one entry a line."""
    runs = [
        _escape(tmp_path / "a", 2048),
        _escape(tmp_path / "b", 3000, Slot(1, 0), host="h2"),
        traces.pointer(tmp_path / "c", run="another"),
    ]
    gate(*runs, "--write-baseline", "one.jsonl")
    gate(*reversed(runs), "--write-baseline", "two.jsonl")
    assert (tmp_path / "one.jsonl").read_text() == (tmp_path / "two.jsonl").read_text()
    places = [(e["code"], e["site"], e["slot"]) for e in _entries(tmp_path / "one.jsonl")]
    assert places == sorted(places)
    assert len(places) >= 3


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        '{"site":"x"}',
        '{"code":"WS101","byte":1}',
        '{"code":"WS101","bytes":"many"}',
        '{"code":"WS101"}\n{"code":"WS101"}',
        '{"code":"WS101","expires":"soon"}',
    ],
)
def test_a_broken_baseline_exits_2(line: str, gate: Gate, tmp_path: Path) -> None:
    (tmp_path / "known.jsonl").write_text(line + "\n")
    trace = _escape(tmp_path / "t", 2048)
    code, text = gate(trace, "--baseline", "known.jsonl")
    assert code == 2
    assert "known.jsonl, line" in text


def test_nothing_is_written_when_it_cannot_be(gate: Gate, tmp_path: Path) -> None:
    trace = _escape(tmp_path / "t", 2048)
    assert gate(trace, "--write-baseline", "no/such/folder/known.jsonl")[0] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t"]


def test_an_accepted_escape_that_killed_the_server_hides_what_is_behind_it(
    gate: Gate, tmp_path: Path
) -> None:
    trace = _escape(tmp_path / "t", 2048)
    gate(trace, "--write-baseline", "known.jsonl")
    assert gate(trace, "--baseline", "known.jsonl")[0] == 0
    (file,) = trace.glob("*.wst.jsonl")
    fatal = Failure(kind="arena", site=1, slot=Slot(), phase="serving", step=Step(index=39))
    with file.open("ab") as stream:
        stream.write(msgspec.json.encode(fatal) + b"\n")
    code, text = gate(trace, "--baseline", "known.jsonl")
    assert code == 3
    assert "the run died at step 39 of a refusal that the baseline accepts" in text
