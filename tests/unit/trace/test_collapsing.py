"""Requests that are alike kept once: nothing that is said of a trace may change by it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.trace.repeated import TIMES, repeated_trace
from tools.fuzz.mutate import KINDS, WORDS, damaged
from wstrace.errors import WstraceError
from wstrace.findings.analysed_run import AnalysedRun, load_run
from wstrace.frames import frames
from wstrace.gate.judge import Policy, judge
from wstrace.report.ci import gate_json, gate_text
from wstrace.report.export.perfetto import render_perfetto
from wstrace.report.export.prometheus import render_prometheus
from wstrace.report.export.table_export import render_csv
from wstrace.report.html import render
from wstrace.report.json import render_json
from wstrace.report.markdown import render_markdown
from wstrace.report.text import render_text
from wstrace.trace import collapsing, process_file, reader
from wstrace.trace.collapsing import RunLines
from wstrace.trace.process_file import ProcessTrace, read_file
from wstrace.trace.records import (
    Counts,
    Growth,
    Lock,
    Manager,
    Note,
    PhaseChange,
    Record,
    Request,
    Site,
    Slot,
)
from wstrace.trace.totals import Totals

SAMPLES = Path(__file__).parents[3] / "sample_traces"
NAMES = sorted(path.parent.name for path in SAMPLES.glob("*/run.json"))
TODAY = date(2026, 1, 1)
SHORT: dict[str, Callable[[AnalysedRun], str]] = {
    "text": render_text,
    "JSON": render_json,
    "gate": lambda run: gate_text.render(judge([run], Policy(), TODAY)),
    "Prometheus": render_prometheus,
    "sites": lambda run: str(frames.sites(run).to_csv()),
}
LISTING: dict[str, Callable[[AnalysedRun], str]] = {
    "Markdown": render_markdown,
    "gate as JSON": lambda run: gate_json.render(judge([run], Policy(), TODAY)),
    "Perfetto": render_perfetto,
    "CSV": render_csv,
    "steps": lambda run: str(frames.steps(run).to_csv()),
    "page": lambda run: render([run]),
}


@pytest.fixture(autouse=True)
def _small_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "COLLAPSED_FROM", 0)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_of_a_trace_is_the_same(name: str, tmp_path: Path) -> None:
    path = repeated_trace(SAMPLES / name, tmp_path / "t")
    told = load_run(path)
    whole = load_run(path, whole=True)
    assert {output: make(told) for output, make in SHORT.items()} == {
        output: make(whole) for output, make in SHORT.items()
    }


@pytest.mark.parametrize("output", LISTING)
@pytest.mark.parametrize("name", ["demo-grow", "h200x2-vllm-0.21.0-tp-grow"])
def test_what_lists_each_request_is_the_same(name: str, output: str, tmp_path: Path) -> None:
    path = repeated_trace(SAMPLES / name, tmp_path / "t")
    assert LISTING[output](load_run(path)) == LISTING[output](load_run(path, whole=True))


def test_a_third_is_kept(tmp_path: Path) -> None:
    """Else nothing here would be tried: `repeated_trace` has each request three times."""
    path = repeated_trace(SAMPLES / "h100-vllm-0.21.0-turboquant-grow", tmp_path / "t")
    (told,), (whole,) = (
        load_run(path).trace.processes,
        load_run(path, whole=True).trace.processes,
    )
    kept, every = _requests(told), _requests(whole)
    assert len(every) == TIMES * len(kept) > 0
    assert [told.repeats[id(request)].times for request in kept] == [TIMES] * len(kept)
    assert whole.repeats == {}


def test_a_trace_that_is_gone_says_so(tmp_path: Path) -> None:
    path = repeated_trace(SAMPLES / "demo-grow", tmp_path / "t")
    run = load_run(path)
    for file in path.iterdir():
        file.unlink()
    assert render_text(run)
    with pytest.raises(WstraceError, match="Cannot read"):
        render_csv(run)


def _requests(process: ProcessTrace) -> list[Request]:
    return [record for record in process.records if isinstance(record, Request)]


def _timeless(record: Record) -> bytes:
    """The record without its time and its step's number."""
    found = msgspec.to_builtins(record)
    found.pop("ns", None)
    if isinstance(record, Request) and record.step is not None:
        found["step"].pop("index")
    return msgspec.json.encode(found)


def _read(file: Path, collapse: bool, lines: RunLines | None = None) -> object:
    """All that a process is: what was kept is told as often as it stands for. `lines`: with
    what files before it had."""
    try:
        process = read_file(file, collapse=(lines or RunLines()) if collapse else None)
    except WstraceError as error:
        return error.message, error.hint
    totals = process.totals
    alike: Counter[bytes] = Counter()
    last: dict[bytes, int] = {}
    firsts: dict[bytes, Request] = {}
    for request in _requests(process):
        look, many = _timeless(request), process.repeats.get(id(request))
        alike[look] += many.times if many else 1
        step = many.last_step if many else request.step.index if request.step else -1
        last[look] = max(step, last.get(look, step))
        firsts.setdefault(look, request)
    numbers = (
        totals.records,
        totals.newest,
        totals.in_order,
        totals.furthest,
        totals.furthest_ns,
    )
    return (
        [*map(msgspec.json.encode, process.events)],
        [*map(msgspec.json.encode, firsts.values())],
        (alike, last, numbers, len(totals.served), process.cut, process.unknown),
    )


HEADER = b'{"t":"header","ns":1,"format":1,"run":"r","wstrace":"0"}\n'
ASK = (
    b'{"t":"request","ns":%d,"site":1,"slot":{},"bytes":7,"arena":9,"phase":"serving",'
    b'"step":{"index":%d,"total_tokens":4,"requests":[{"scheduled":4,"computed":0}]},'
    b'"generation":2,"layer":"a","provenance":{"formula":"n","statements":["a.py:1: n"]}}\n'
)
STEP = b'"index":5,"total_tokens":4,"requests":[{"scheduled":4,"computed":0}]'
SOURCE = b',"provenance":{"formula":"n","statements":["a.py:1: n"]}'
PLAIN = ASK % (10, 4)
LATER = ASK % (20, 5)
ODD = {
    "a later time, as a second field": LATER.replace(b'"site"', b'"ns":99,"site"'),
    "a time in escapes": LATER.replace(b'"site"', b'"\\u006es":99,"site"'),
    "a second number of its step": LATER.replace(b'"total', b'"index":99,"total'),
    "that number in escapes": LATER.replace(b'"total', b'"inde\\u0078":99,"total'),
    "a second step": LATER.replace(b'"layer"', b'"step":{"index":99},"layer"'),
    "that step in escapes": LATER.replace(b'"layer"', b'"\\u0073tep":{"index":99},"layer"'),
    "a step without its number": LATER.replace(b'"index":5', b'"index":'),
    "no number and no comma": LATER.replace(b'"index":5,', b'"index":'),
    "its source before its step": LATER.replace(SOURCE, b"").replace(
        b'"step"', SOURCE[1:] + b',"step"'
    ),
    "no step behind it": LATER.replace(b'"layer"', b'"step":null,"layer"'),
    "a step in a later version's field": LATER.replace(
        b'"step"', b'"x":{"step":{"index":3}},"step"'
    ),
    "only such a step": LATER.replace(b'"step":', b'"x":{"step":').replace(b',"gen', b'},"gen'),
    "a name that is one of them": LATER.replace(b'"layer":"a"', b'"layer":"index"'),
    "a time in a text": LATER.replace(b'"layer":"a"', b'"layer":"\\"ns\\":3"'),
    "a zero before it": LATER.replace(b'"index":5', b'"index":05'),
    "a zero before its time": LATER.replace(b'"ns":20', b'"ns":020'),
    "no time": LATER.replace(b'"ns":20,', b""),
    "a time of 0": LATER.replace(b'"ns":20', b'"ns":0'),
    "a step of 0": LATER.replace(b'"index":5', b'"index":0'),
    "a negative step": LATER.replace(b'"index":5', b'"index":-5'),
    "a large time": LATER.replace(b'"ns":20', b'"ns":' + b"9" * 19),
    "too large a time": LATER.replace(b'"ns":20', b'"ns":' + b"9" * 40),
    "a time in digits of Python's": LATER.replace(b'"ns":20', b'"ns":2_0'),
    "a time with a fraction": LATER.replace(b'"ns":20', b'"ns":20.0'),
    "a step with a fraction": LATER.replace(b'"index":5', b'"index":5e0'),
    "blanks": LATER.replace(b'"ns":20', b'"ns": 20').replace(b'"index":5', b'"index":5 '),
    "a step with nothing else": LATER.replace(STEP, b'"index":5'),
    "statements first": LATER.replace(b'"step"', b'"classes":{"statements":["x"]},"step"'),
    "no statements": LATER.replace(SOURCE, b""),
    "cut": LATER[:-30],
    "no newline": LATER[:-1],
    "blank": b"\n",
    "another kind": LATER.replace(b'"request"', b'"later"'),
    "no UTF-8": LATER.replace(b'"layer":"a"', b'"layer":"\xff"'),
    "a step of its own": LATER.replace(b'"index":5', b'"index":5,"kind":"dummy"'),
    "another phase": LATER.replace(b'"serving"', b'"warmup"'),
    "earlier": LATER.replace(b'"ns":20', b'"ns":3'),
    "another size": LATER.replace(b'"bytes":7', b'"bytes":8'),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_line_is_counted_as_it_is_read(name: str, tmp_path: Path) -> None:
    """Twice with other numbers, among plain ones; each alone at the end too."""
    odd = ODD[name]
    again = odd.replace(b"20", b"31").replace(b'"index":5', b'"index":8')
    file = tmp_path / "a.wst.jsonl"
    for lines in ((PLAIN, odd, LATER, again, ASK % (40, 9)), (PLAIN, LATER, odd), (odd, again)):
        file.write_bytes(HEADER + b"".join(lines))
        expected = _read(file, False)
        assert _read(file, True) == expected
        known = _known(tmp_path, PLAIN, odd)
        assert [_read(file, True, known), _read(file, True, known)] == [expected, expected]


def _known(folder: Path, *lines: bytes) -> RunLines:
    """What is known of a run's lines when a file that has these was read."""
    before, known = folder / "before.wst.jsonl", RunLines()
    before.write_bytes(HEADER + b"".join(lines))
    _read(before, True, known)
    return known


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The lines that are decoded from here on."""
    decoded: list[bytes] = []
    record = RunLines.record
    monkeypatch.setattr(
        RunLines, "record", lambda self, line: decoded.append(line) or record(self, line)
    )
    return decoded


def test_what_another_file_had_is_not_decoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file has records of its own, with its own times and steps, on its own arenas."""
    known = _known(tmp_path, PLAIN)
    decoded = _counted(monkeypatch)
    lock = Lock(event="lock", slots=[Slot()], sizes=[9], phase="serving", ns=25)
    other = msgspec.json.encode(lock) + b"\n"
    file = tmp_path / "a.wst.jsonl"
    file.write_bytes(HEADER + LATER + other + ASK % (30, 6) + ASK % (40, 7))
    process = read_file(file, collapse=known)
    assert decoded == [other]
    assert [
        (request.ns, request.step and request.step.index) for request in _requests(process)
    ] == [
        (20, 5),
        (30, 6),
    ]
    assert [repeats.times for repeats in process.repeats.values()] == [2]
    assert (process.totals.newest, process.totals.furthest) == (40, 7)


def test_a_run_s_lines_are_forgotten_where_they_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collapsing, "_MOST_KEPT", len(PLAIN) // 2)
    known = _known(tmp_path, PLAIN, PLAIN.replace(b'"bytes":7', b'"bytes":8'))
    decoded = _counted(monkeypatch)
    file = tmp_path / "a.wst.jsonl"
    file.write_bytes(HEADER + LATER + ASK % (30, 6))
    assert _read(file, True, known) == _read(file, False)
    assert decoded == [LATER]


@pytest.mark.parametrize("name", ["demo-grow", "h100-vllm-0.21.0-turboquant-grow"])
def test_what_is_said_of_ranks_that_ask_the_same(name: str, tmp_path: Path) -> None:
    """Three ranks whose lines are alike but for their times and steps."""
    path = repeated_trace(SAMPLES / name, tmp_path / "t")
    for source in list(path.glob("*.wst.jsonl")):
        lines = [msgspec.json.decode(line) for line in source.read_bytes().splitlines()]
        for rank in (1, 2):
            _as_rank(rank, lines)
            told = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
            (path / source.name.replace(".wst", f"{rank}.wst")).write_bytes(told)
    collapsed, whole = load_run(path), load_run(path, whole=True)
    assert {output: make(collapsed) for output, make in SHORT.items()} == {
        output: make(whole) for output, make in SHORT.items()
    }


def _as_rank(rank: int, lines: list[dict[str, Any]]) -> None:
    """As this rank's process wrote them, each a little later and a step further."""
    lines[0]["pid"] += rank
    for line in lines:
        line["ns"] = line.get("ns", 0) + 7
        if line["t"] == "worker":
            line["ranks"]["rank"] = line["ranks"]["dp"] = rank
        if line["t"] == "request" and "step" in line:
            line["step"]["index"] += 1


TURNS = {
    "lock": (Lock(event="lock", slots=[Slot()], sizes=[9], phase="capture", ns=12), 2),
    "growth": (Growth(slot=Slot(), before=9, after=12, phase="serving", ns=12), 2),
    "phase": (PhaseChange(phase="serving", ns=12), 2),
    "manager": (Manager(ns=12), 2),
    "site": (Site(id=1, file="b.py", function="g", line=1, caller="c", ns=12), 2),
    "counts": (Counts(step=4, ns=12), 1),
    "note": (Note(text="x", ns=12), 1),
}


@pytest.mark.parametrize("name", TURNS)
def test_what_changes_a_request_s_meaning_parts_those_that_are_alike(
    name: str, tmp_path: Path
) -> None:
    """After another lock, arena, phase, manager or site the same bytes are another thing."""
    between, kept = TURNS[name]
    file = tmp_path / "a.wst.jsonl"
    file.write_bytes(HEADER + PLAIN + msgspec.json.encode(between) + b"\n" + LATER)
    assert len(_requests(read_file(file, collapse=RunLines()))) == kept


def test_serving_that_no_lock_began_parts_them_too(tmp_path: Path) -> None:
    """The first request in serving opens an epoch: the one after it is no longer before it."""
    file = tmp_path / "a.wst.jsonl"
    warm = PLAIN.replace(b'"serving"', b'"warmup"')
    file.write_bytes(HEADER + warm + PLAIN + warm + LATER)
    assert len(_requests(read_file(file, collapse=RunLines()))) == 4


def test_a_field_twice_that_once_was_equal(tmp_path: Path) -> None:
    """The decoder takes the second; a look at the first line alone shows no difference."""
    file = tmp_path / "a.wst.jsonl"
    for second in (b'"ns":10,"site"', b'"\\u006es":10,"site"'):
        lines = [(ASK % (n, 4)).replace(b'"site"', second) for n in (10, 20, 30)]
        file.write_bytes(HEADER + b"".join(lines))
        process = read_file(file, collapse=RunLines())
        assert (process.totals.newest, len(_requests(process))) == (10, 3)


@pytest.mark.parametrize("name", ["demo-crash", "h100-vllm-0.21.0-turboquant-grow"])
def test_damaged_lines_are_counted_as_they_are_read(name: str, tmp_path: Path) -> None:
    chance = random.Random(name)
    (source, *_) = sorted(repeated_trace(SAMPLES / name, tmp_path / "t").glob("*.wst.jsonl"))
    header, *lines = source.read_bytes().splitlines(keepends=True)
    words = (*WORDS, b'"ns":7,', b'"index":7,', b'"step":{"index":7,', b"7", b"0", b',"ns":')
    file, whole = tmp_path / "a.wst.jsonl", 0
    for _ in range(60):
        start = chance.randrange(len(lines) - 5)
        taken = lines[start : start + 5]
        which = chance.randrange(5)
        edit = (chance.choice(KINDS), chance.randrange(420), chance.randrange(12))
        taken[which] = damaged(taken[which], [(*edit, chance.choice(words))])
        file.write_bytes(b"".join([header, *taken, *taken[which:]]))
        expected = _read(file, False)
        assert _read(file, True) == expected, taken
        whole += len(expected) == 3  # type: ignore[arg-type]
    assert whole > 10  # some still are traces


def test_more_different_requests_than_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six sizes where two are kept: of the rest the largest stays, and a doubt says so."""
    kept = collapsing.Collapsing
    monkeypatch.setattr(process_file, "Collapsing", lambda parts, odd: kept(parts, odd, most=2))
    sizes = [100, 300, 200, 900, 500, 400]
    requests = [
        (ASK % (10 + n, n)).replace(b'"bytes":7', b'"bytes":%d' % size)
        for n, size in enumerate(sizes)
    ]
    file = tmp_path / "a.wst.jsonl"
    file.write_bytes(HEADER + b"".join(requests))
    process = read_file(file, collapse=RunLines())
    assert [request.bytes for request in _requests(process)] == [100, 300, 900]
    assert process.repeats[id(process.records[-1])].times == 4
    assert process.repeats[id(process.records[-1])].last_step == 5
    assert (process.totals.records, process.beyond) == (6, 4)
    (doubt,) = [d for d in load_run(file).trace.doubts if "more different" in d]
    assert doubt == (
        "a.wst.jsonl has more different requests than are kept: of 4 only the largest of "
        "each site was looked at"
    )


def test_steps_are_counted_each_once() -> None:
    steps = Totals().served
    for number in (5, 5, 6, 7, 3000, 3001, 6, 2, 3000, 2048, 2047, 0, 1):
        steps.add(number)
    assert len(steps) == len({5, 6, 7, 3000, 3001, 2, 2048, 2047, 0, 1})
