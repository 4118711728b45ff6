"""What a verdict rests on: each end as a run of its own, with its sentence and exit code."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import re
from datetime import date
from html import unescape
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from tests.sources import nodes
from tests.unit.findings.build import (
    CLEAN,
    CONTINUATION,
    MOE,
    ask,
    continuation,
    grown,
    locked,
    process,
    session,
    with_exit,
)
from tests.unit.findings.ranks_apart import launched_twice, launches_in_turn, one_stops_at
from tests.unit.findings.states import (
    SAMPLES,
    STATES,
    State,
    failure,
    noted,
    one_engine_of,
    start_raised,
    without_an_end,
    without_run_json,
    written,
)
from wstrace.api import Trace as Api
from wstrace.cli.app import app, register_commands
from wstrace.errors import WstraceError
from wstrace.findings.analysed_run import AnalysedRun, analyse, load_run
from wstrace.findings.ends import failed
from wstrace.findings.rests_on import BESIDE_THE_POINT
from wstrace.gate.judge import Judgement, Policy, judge
from wstrace.gate.selection import parse_selection
from wstrace.pytest_plugin import Recorder, _failure
from wstrace.report.ci import gate_json, gate_markdown, gate_text, github, junit, sarif
from wstrace.report.diff import as_json, phase_rows
from wstrace.report.export.perfetto import render_perfetto
from wstrace.report.export.prometheus import render_prometheus
from wstrace.report.export.table_export import render_parquet
from wstrace.report.html import render
from wstrace.report.json import render_json
from wstrace.report.markdown import render_markdown
from wstrace.report.text import render_text
from wstrace.report.verdict import FIX, next_commands, sentence, verdict_lines
from wstrace.trace.reader import Trace
from wstrace.trace.records import (
    Counts,
    End,
    Failure,
    PhaseChange,
    Ranks,
    Record,
    Slot,
    Step,
)


def told_by_pytest(judgement: Judgement, folder: Path) -> str:
    return "\n".join(_failure(judgement, Recorder(folder, "run1", None)))


def told_by_watch(run: AnalysedRun, folder: Path) -> str:
    if not run.trace.path.is_dir():
        written(run, folder)
        run.trace.path = folder
    register_commands()
    return CliRunner().invoke(app, ["watch", "--once", str(run.trace.path)]).output


@pytest.mark.parametrize("state", STATES.values(), ids=list(STATES))
def test_each_state_is_told_by_every_output_with_its_exit_code(
    state: State, tmp_path: Path
) -> None:
    run = state.make(tmp_path / "t")
    judgement = judge([run], Policy(), date(2026, 1, 1))
    verdict = {1: "findings", 3: "inconclusive"}[state.code]
    assert (run.verdict(), judgement.exit_code) == (verdict, state.code)
    outputs = {
        "report text": render_text(run, width=400),
        "report JSON": render_json(run),
        "HTML": render([run]).replace("\xa0", " "),
        "report Markdown": render_markdown(run).replace("\\", ""),
        "terminal": "\n".join(verdict_lines(run, tmp_path)),
        "pytest": told_by_pytest(judgement, tmp_path),
        "watch": told_by_watch(run, tmp_path / "w"),
        "gate Markdown": gate_markdown.render(judgement).replace("\\", ""),
        **{
            f.__name__: f.render(judgement)
            for f in (gate_text, gate_json, junit, sarif, github)
        },
    }
    assert [name for name, text in outputs.items() if state.words not in text] == []
    calm = "Nothing has to be fixed"
    assert [name for name, text in outputs.items() if calm in text] == []


@pytest.mark.parametrize("host", ["", "another"])
def test_engines_of_one_command_in_turn_are_a_note(host: str) -> None:
    """One after another they are known to be on one host only: clocks of two may differ."""
    trace = launched_twice().trace
    for later in trace.processes[2:]:
        later.header.wall_ns = 9 * 10**9
        later.header.host = host
    run = analyse(trace)
    told = run.inconclusive if host else run.notes
    assert run.verdict() == ("inconclusive" if host else "clean")
    assert [word[:37] for word in told] == ["2 ranks left more than one trace: a w"]


@pytest.mark.parametrize("lost", [(0,), (1,), (2,), (3,), (1, 2), (0, 3)])
@pytest.mark.parametrize("order", [1, -1])
def test_of_two_launches_in_turn_neither_hides_a_rank_of_the_other(
    lost: tuple[int, ...], order: int
) -> None:
    """All places have a worker, and a launch lacks one; whichever, in whatever order."""
    trace = launches_in_turn(*lost).trace
    trace.processes[:] = trace.processes[::order]
    run = analyse(trace)
    assert run.verdict() == "inconclusive"
    assert [word for word in run.inconclusive if "at different times: a launch lacks" in word]
    assert launches_in_turn().verdict() == "clean"


@pytest.mark.parametrize("state", STATES.values(), ids=list(STATES))
def test_each_output_has_the_same_verdict_and_sentence(state: State, tmp_path: Path) -> None:
    run = state.make(tmp_path / "t")
    verdict, told = run.verdict(), sentence(run)
    report, perfetto = json.loads(render_json(run)), json.loads(render_perfetto(run))
    assert (report["verdict"], report["sentence"]) == (verdict, told)
    assert perfetto["otherData"].items() >= {"verdict": verdict, "sentence": told}.items()
    api = Api(run)
    assert (api.verdict, api.sentence) == (verdict, told)
    assert json.loads(as_json(phase_rows(run), [run]))["verdicts"] == [verdict]
    gated = json.loads(gate_json.render(judge([run], Policy(), date(2026, 1, 1))))
    assert (gated["verdict"], gated["exit_code"]) == (verdict, state.code)
    assert f'wstrace_verdict{{verdict="{verdict}"}} 1' in plain_metrics(run)
    assert told in render_text(run, width=2000)
    assert told in "\n".join(verdict_lines(run, tmp_path)) or len(told) > 190
    assert told in render_markdown(run).replace("\\", "")
    parquet = pytest.importorskip("pyarrow.parquet")
    metadata = parquet.read_schema(io.BytesIO(render_parquet(run))).metadata
    kept = metadata[b"wstrace.verdict"].decode(), metadata[b"wstrace.sentence"].decode()
    assert kept == (verdict, told)


def plain_metrics(run: AnalysedRun) -> str:
    """The metrics, with no label but the verdict's."""
    return re.sub(r'run="[^"]*",|,run="[^"]*"', "", render_prometheus(run)).replace("1.0", "1")


@pytest.mark.parametrize("name", [n for n, state in STATES.items() if state.code == 3])
def test_the_page_of_an_inconclusive_run_has_the_terminals_next(
    name: str, tmp_path: Path
) -> None:
    run = STATES[name].make(tmp_path / "t")
    page = unescape(render([run]).replace("<wbr>", ""))
    fix = page.partition('<section id="fix"')[2].partition("</section>")[0]
    for line in next_commands(run, run.trace.path.name):
        assert line in fix


def test_the_page_of_a_clean_run_has_nothing_to_fix() -> None:
    assert "Nothing has to be fixed" in render([with_exit(session(process(*CLEAN)), 0)])


@pytest.mark.parametrize("fail_on", ["none", "WS301"])
def test_a_fatal_refusal_that_fail_on_leaves_out_hides_what_came_behind(fail_on: str) -> None:
    crash = load_run(SAMPLES / "demo-crash")
    judgement = judge([crash], Policy(parse_selection(fail_on)), date(2026, 1, 1))
    assert judgement.exit_code == 3
    assert "that --fail-on leaves out" in gate_text.render(judgement)
    selected = judge([crash], Policy(), date(2026, 1, 1))
    assert "leaves out" not in gate_text.render(selected)


@pytest.mark.parametrize("rows", [1, 64])
def test_what_tells_most_comes_before_a_long_list_of_ranks(rows: int) -> None:
    many = [process(*CLEAN, ranks=Ranks(tp=n, rank=n)) for n in range(rows)]
    rests = with_exit(session(*many), 0).rests_on
    assert rests.shown()[0] == "the command ended with exit code 0"
    assert len(rests.shown()) == min(rows + 2, 11)


def test_a_release_that_was_not_checked_is_said_with_what_it_is_taken_for() -> None:
    assert session(process(*CLEAN, vllm="0.32.0")).rests_on.release == "vLLM 0.32.0"
    assert session(process(*CLEAN, vllm="0.99.0")).rests_on.release.startswith(
        "vLLM 0.99.0 is not among the releases that wstrace was checked against"
    )


def test_a_start_that_raised_is_said_of_its_process_and_by_ws401() -> None:
    run = start_raised()
    (told,) = [f for f in run.findings if f.code == "WS401"]
    assert told.detail == "warm-up ended with ImportError: no kernels"
    (line,) = [text for text in run.rests_on.lines() if text.startswith("rank 0")]
    assert "warm-up ended with ImportError: no kernels" in line


def test_a_site_that_escaped_on_one_rank_is_not_foretold_on_another() -> None:
    arena = 1 << 18
    begun = grown(arena, "profile"), continuation(256, 0, "profile"), *locked(arena)
    calm = ask(MOE, 1 << 10, "serving", arena)
    quiet = process(*begun, calm, ranks=Ranks(tp=0, rank=0))
    alone = {f.code for f in session(quiet).findings}
    escaped = process(*begun, continuation(1024, arena), ranks=Ranks(tp=1, rank=1))
    both = {f.code for f in session(quiet, escaped).findings}
    assert ("WS107" in alone, "WS107" in both, "WS102" in both) == (True, False, True)


@pytest.mark.parametrize("what", sorted(BESIDE_THE_POINT))
@pytest.mark.parametrize("older", [False, True])
def test_what_the_recorder_missed_beside_the_point_is_said_and_stays_clean(
    what: str, older: bool
) -> None:
    run = noted(f"recorder: {what}: ValueError: x", "" if older else what)
    assert run.verdict() == "clean"
    assert f"the recorder noted: recorder: {what}: ValueError: x" in run.rests_on.lines()


def test_which_notes_matter_follows_from_their_field_alone() -> None:
    assert noted("recorder: something new: ValueError: x").verdict() == "inconclusive"
    assert noted("recorder: views: ValueError: x", "request").verdict() == "inconclusive"
    assert noted("recorder: request: ValueError: x", "views").verdict() == "clean"
    assert noted("the clock of this host was set").verdict() == "clean"


def test_each_piece_that_may_fail_is_one_of_the_recorders() -> None:
    """A name that no call has would let nothing pass, and hide a renamed one."""
    calls = [
        node
        for path in (SAMPLES.parent / "wstrace" / "recorder").rglob("*.py")
        for node in nodes(path)
        if isinstance(node, ast.Call)
    ]
    named = {a.value for call in calls for a in call.args[:2] if isinstance(a, ast.Constant)}
    assert set(BESIDE_THE_POINT) - named == set()


@pytest.mark.parametrize(
    ("code", "told"), [(None, None), (0, None), (130, None), (143, None), (137, 137), (2, 2)]
)
def test_which_exit_codes_are_no_end_in_order(code: int | None, told: int | None) -> None:
    assert failed(with_exit(session(process(*CLEAN)), code).trace) == told


@pytest.mark.parametrize(
    ("last", "verdict"),
    [
        ((), "inconclusive"),
        ((PhaseChange(phase="shutdown"),), "clean"),
        ((End(),), "clean"),
        ((PhaseChange(phase="sleep"),), "inconclusive"),
    ],
)
def test_a_run_json_without_an_end_hides_nothing_behind_a_shutdown(
    last: tuple[Record, ...], verdict: str
) -> None:
    assert without_an_end(*last).verdict() == verdict


@pytest.mark.parametrize(
    ("last", "verdict"),
    [
        ((), "inconclusive"),
        ((PhaseChange(phase="sleep"),), "inconclusive"),
        ((PhaseChange(phase="shutdown"),), "clean"),
        ((End(),), "clean"),
    ],
)
def test_without_run_json_a_workers_own_last_word_decides(
    last: tuple[Record, ...], verdict: str
) -> None:
    assert without_run_json(*last).verdict() == verdict


def test_a_worker_that_is_known_to_run_hides_nothing() -> None:
    run = without_run_json()
    run.trace.processes[0].header.pid = 41
    run.trace.alive = frozenset([41])
    assert analyse(run.trace).verdict() == "clean"


@pytest.mark.parametrize(
    ("peer", "verdict"),
    [
        (Counts(ns=10**9, step=400, steps_real=399), "clean"),  # a counter's second
        (Counts(ns=3 * 10**9, step=40, steps_real=39), "clean"),  # the same step, later
        (ask(MOE, 1 << 19, "serving", 1 << 20, step=Step(index=40)), "clean"),
        (ask(CONTINUATION, 1 << 19, "serving", 1 << 20, step=Step(index=50)), "clean"),
        (ask(MOE, 1 << 19, "serving", 1 << 20, step=Step(index=41)), "inconclusive"),
    ],
)
def test_what_a_killed_worker_may_not_have_written_is_no_falling_behind(
    peer: Record, verdict: str
) -> None:
    """A second of counters; what only the other rank asks for; never a new size."""
    assert one_stops_at(len(CLEAN), peer).verdict() == verdict


def test_times_of_two_hosts_are_compared_by_their_wall_clocks() -> None:
    """Each host counts its monotonic time from its own boot."""
    booted, run = 10**15, one_stops_at(len(CLEAN))
    other, *rest = run.trace.processes
    other.header.host = "elsewhere"
    other.header.ns = booted
    moved = [msgspec.structs.replace(r, ns=booted) for r in other.records]
    run.trace.processes[:] = [dataclasses.replace(other, records=moved), *rest]
    assert analyse(run.trace).verdict() == "clean"


@pytest.mark.parametrize("hour", [-3600, 3600])
def test_a_wall_clock_that_was_set_between_two_workers_of_a_host_is_no_gap(hour: int) -> None:
    run = one_stops_at(len(CLEAN))
    one, other = run.trace.processes
    one.header.wall_ns = 5 * 10**9
    other.header.wall_ns = one.header.wall_ns + hour * 10**9
    assert analyse(run.trace).verdict() == "clean"
    other.header.host = "elsewhere"
    assert analyse(run.trace).verdict() == "inconclusive"


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        (("--data-parallel-size=2",), "inconclusive"),
        (("-dp=2",), "inconclusive"),
        (("-dp", "4", "-dpl", "2"), "inconclusive"),
        (("-dp", "4", "-dpl", "1"), "clean"),
        (("-dp", "4", "--data_parallel_size_local=1", "--headless"), "clean"),
        (("-dp", "4", "-dpl", "1", "-dpb", "ray"), "inconclusive"),
        (("-dp", "4", "--nnodes", "4"), "clean"),
        (("-dp", "4", "--nnodes", "2"), "inconclusive"),
        (("-dp", "4", "--data-parallel-external-lb"), "clean"),
        (("-dp", "4", "-dpe", "--no-data-parallel-external-lb"), "inconclusive"),
        (("-dp", "4"), "inconclusive"),
        (("-dp2",), "inconclusive"),
        (("--data_parallel_size", "2", "--data-parallel-rank", "0"), "clean"),
        (("--data-parallel-size", "1"), "clean"),
        (("--data-parallel-size", "many"), "clean"),
        ((), "clean"),
    ],
)
def test_the_engines_that_the_command_promises_are_counted(
    options: tuple[str, ...], verdict: str
) -> None:
    assert one_engine_of(*options).verdict() == verdict


def test_a_refusal_whose_request_was_lost_is_a_finding() -> None:
    run = session(process(*CLEAN, failure("arena")))
    assert sentence(run) == (
        "'other.py:10:_allocate_buffers' was refused 2.00 MiB in a slot locked at 1.00 MiB; "
        "the request itself is in no record (WS102)."
    )
    nameless = Failure(kind="arena", slot=Slot(), phase="serving")
    assert session(process(*CLEAN, nameless)).verdict() == "findings"
    told = ask(MOE, 1 << 21, "serving", 1 << 20)
    once = session(process(*CLEAN, told, failure("arena")))
    assert [f.code for f in once.findings if f.severity == "error"] == ["WS102"]
    assert "no record" not in sentence(once)


def test_one_rank_alone_is_named_by_its_group() -> None:
    quiet = process(*CLEAN, End(), ranks=Ranks(tp=1, rank=1))
    refused = ask(MOE, 1 << 21, "serving", 1 << 20)
    escaped = process(*CLEAN, refused, End(), ranks=Ranks(tp=0, rank=0))
    run = session(quiet, escaped)
    assert "  rank: tp0\n" in render_text(run)
    assert "rank: tp0" in render_markdown(run)
    assert "<dt>rank</dt><dd><bdi>tp0</bdi></dd>" in render([run])
    alone = session(process(*CLEAN, refused, End(), ranks=Ranks(tp=0, rank=0)))
    assert "  rank: " not in render_text(alone)


def test_a_finding_stays_a_finding_after_a_kill() -> None:
    crash = load_run(SAMPLES / "demo-crash")
    killed = with_exit(crash, 137)
    assert killed.verdict() == "findings"
    assert judge([killed], Policy(), date(2026, 1, 1)).exit_code == 1


def test_next_after_a_death_finds_the_rest_and_without_a_worker_is_doctor() -> None:
    crash = load_run(SAMPLES / "demo-crash")
    text = "\n".join(verdict_lines(crash, SAMPLES / "demo-crash"))
    assert "The run died at step 9; sites behind it were not seen." in text
    assert f"next:  {FIX}   (finds the rest" in text
    never = analyse(Trace(Path("t"), "r", [], None))
    assert "next:  wstrace doctor" in verdict_lines(never, Path("t"))
    grow = load_run(SAMPLES / "demo-grow")
    assert any("It survived" in line for line in verdict_lines(grow, SAMPLES / "demo-grow"))


def test_a_run_that_will_escape_is_not_called_clean() -> None:
    arena = 1 << 18
    run = session(
        process(
            grown(arena, "profile"),
            continuation(256, 0, "profile"),
            *locked(arena),
            PhaseChange(phase="serving"),
            ask(MOE, 1 << 10, "serving", arena),
            Counts(step=40, steps_real=39),
        )
    )
    assert sentence(run) == (
        "No escape yet, but 'some_attn.py:747:_continuation_prefill' will escape "
        "(needs 2.00 MiB, has 256.00 KiB)."
    )
    assert any(
        line.startswith("next:  wstrace reserve") for line in verdict_lines(run, Path("t"))
    )


def row_pattern(sentence: str) -> str:
    """A sentence of the documented table as a pattern: what stands in capitals is a name."""
    plain = re.escape(sentence).replace(re.escape("..."), ".*").replace("workers", "workers?")
    return re.sub(r"\b(?:CALLER|FILE|RANK|WHY|PHASE|ERROR|N|A|B)\b", ".+", plain)


def test_every_row_of_the_documented_table_is_made_here(tmp_path: Path) -> None:
    """But for the accepted refusal and the prediction, which have tests of their own."""
    page = (SAMPLES.parent / "docs" / "reading-a-report.md").read_text(encoding="utf-8")
    table = page.partition("| state | sentence | gate |")[2].partition("\n\n")[0]
    rows = [line for line in table.splitlines() if "`" in line]
    elsewhere = (
        "that the baseline accepts",
        "that --fail-on leaves out",
        "No escape yet",
        "asked A in a slot",
        "Clean:",
    )
    told = ""
    for name, state in STATES.items():
        folder = tmp_path / name
        folder.mkdir()
        run = state.make(folder / "t")
        told += "\n".join([sentence(run), *run.inconclusive, *run.rests_on.lines(), ""])
    missing = []
    for row in rows:
        (said, *_) = re.findall(r"`([^`]+)`", row)
        if not any(words in said for words in elsewhere):
            missing += [] if re.search(row_pattern(said), told) else [said]
    assert len(rows) >= 18
    assert missing == []


def test_export_asks_which_run_of_a_folder(tmp_path: Path) -> None:
    written(session(process(*CLEAN)), tmp_path)
    (first,) = tmp_path.glob("*.jsonl")
    second = first.read_text().replace('"run":"run1"', '"run":"run2"', 1)
    (tmp_path / "run2.h.0.wst.jsonl").write_text(second)
    register_commands()
    asked = ["export", str(tmp_path), "--format", "csv"]
    done = CliRunner().invoke(app, asked)
    assert isinstance(done.exception, WstraceError)
    assert "holds 2 runs" in done.exception.message
    assert "--run: run1, run2" in done.exception.hint
    assert CliRunner().invoke(app, [*asked, "--run", "run1"]).exit_code == 0
