"""What a verdict rests on: each end as a run of its own, with its sentence and exit code."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from typer.testing import CliRunner

from tests.unit.findings.build import (
    MOE,
    ask,
    continuation,
    grown,
    locked,
    process,
    session,
)
from wstrace.cli.app import app, register_commands
from wstrace.errors import WstraceError
from wstrace.findings.analysed_run import AnalysedRun, analyse, load_run
from wstrace.findings.rests_on import failed
from wstrace.gate.judge import Judgement, Policy, judge
from wstrace.pytest_plugin import Recorder, _failure
from wstrace.report.ci import gate_json, gate_markdown, gate_text, github, junit, sarif
from wstrace.report.html import render
from wstrace.report.json import render_json
from wstrace.report.markdown import render_markdown
from wstrace.report.text import render_text
from wstrace.report.verdict import AGAIN, FIX, next_commands, sentence, verdict_lines
from wstrace.trace.reader import Trace
from wstrace.trace.records import (
    Counts,
    End,
    Failure,
    Lock,
    Note,
    PhaseChange,
    Ranks,
    Record,
    ReserveEvent,
    Slot,
)
from wstrace.trace.run_file import RunFile

SAMPLES = Path(__file__).resolve().parents[3] / "sample_traces"
CLEAN: tuple[Record, ...] = (
    grown(1 << 20, "profile"),
    ask(MOE, 1 << 20, "profile", 0),
    *locked(1 << 20),
    PhaseChange(phase="serving"),
    ask(MOE, 1 << 20, "serving", 1 << 20),
    Counts(step=40, steps_real=39),
)


def with_exit(run: AnalysedRun, code: int | None) -> AnalysedRun:
    """`run` under a command that ended with `code`."""
    meta = RunFile("run1", ["vllm", "serve"], "", "0.1.0", ended="later", exit_code=code)
    return analyse(Trace(run.trace.path, "run1", run.trace.processes, meta))


def noted(text: str) -> AnalysedRun:
    return session(process(*CLEAN, Note(text=text)))


def cut_before_the_refusal(folder: Path) -> AnalysedRun:
    """demo-crash, torn within the line of the request that precedes its first failure."""
    shutil.copytree(SAMPLES / "demo-crash", folder, dirs_exist_ok=True)
    (trace,) = folder.glob("*.wst.jsonl")
    lines = trace.read_bytes().splitlines(keepends=True)
    kinds = [json.loads(line)["t"] for line in lines]
    failure = kinds.index("failure")
    last = max(i for i in range(failure) if kinds[i] == "request")
    trace.write_bytes(b"".join(lines[:last]) + lines[last][:200])
    return load_run(folder)


def unlocked_and_quiet() -> AnalysedRun:
    return session(process(PhaseChange(phase="serving"), Counts(step=140, steps_real=132)))


def a_worker_vanished() -> AnalysedRun:
    one = process(*CLEAN, End(), ranks=Ranks(tp=0, rank=0))
    other = process(*CLEAN, ranks=Ranks(tp=1, rank=1))
    return session(one, other)


def lost(word: str, folder: Path) -> AnalysedRun:
    """A recorder that stood down, with `word` in the room of its header."""
    worker = process(*CLEAN)
    worker.header.lost = word.ljust(240)
    written(session(worker), folder)
    return load_run(folder)


def lived_on() -> AnalysedRun:
    worker = process(*CLEAN)
    worker.header.pid = 41
    meta = RunFile("run1", ["serve"], "", "0.1.0", ended="later", exit_code=0)
    meta.living = ["pid 41 (VLLM::Worker)", "pid 42 (sleep 9)"]
    return analyse(Trace(Path("t"), "run1", [worker], meta))


def start_raised(*before: Record) -> AnalysedRun:
    told = PhaseChange(
        phase="init", why="compile_or_warm_up_model raised", error="ImportError: no kernels"
    )
    return session(process(PhaseChange(phase="warmup"), *before, told))


def never_locked() -> AnalysedRun:
    asked = grown(1 << 20, "profile"), ask(MOE, 1 << 20, "profile", 0)
    later = ask(MOE, 1 << 20, "serving", 1 << 20, locked=False)
    serving = PhaseChange(phase="serving"), later, Counts(step=40, steps_real=39)
    return session(process(*asked, *serving))


def failure(kind: Literal["arena", "memory"]) -> Failure:
    slot, sizes = Slot(), (1 << 21, 1 << 20)
    required, arena = sizes
    return Failure(
        kind=kind, site=MOE.id, slot=slot, required=required, arena=arena, phase="serving"
    )


def unlocked_for_good() -> AnalysedRun:
    """Elastic EP let go and did not lock again, and the server went on."""
    let_go = Lock(event="unlock", slots=[Slot()], sizes=[1 << 20], phase="unlocked")
    on = PhaseChange(phase="unlocked"), PhaseChange(phase="serving"), Counts(step=50)
    return session(process(*CLEAN, let_go, *on))


def ready_and_not_asked() -> AnalysedRun:
    """Locked, and killed before the counters of a first second were written."""
    begun = grown(1 << 20, "profile"), ask(MOE, 1 << 20, "profile", 0)
    return session(process(*begun, *locked(1 << 20)[:-1]))


def without_an_end(*last: Record) -> AnalysedRun:
    meta = RunFile("run1", ["vllm", "serve"], "", "0.1.0")
    return analyse(Trace(Path("t"), "run1", [process(*CLEAN, *last)], meta))


def never_attached() -> AnalysedRun:
    return with_exit(analyse(Trace(Path("t"), "r", [], None)), 0)


def an_empty_file(folder: Path) -> AnalysedRun:
    """The disk was full when the worker opened its file."""
    written(session(process(*CLEAN)), folder)
    (folder / "run1.h.9.wst.jsonl").touch()
    return load_run(folder)


def the_newest_of_two_left_nothing(folder: Path) -> AnalysedRun:
    written(session(process(*CLEAN)), folder)
    newest = RunFile("run2", ["serve"], "2026-05-16T10:15:00+00:00", "0.1.0", ended="x")
    newest.exit_code = 0
    (folder / "run.json").write_bytes(msgspec.json.encode(newest))
    return load_run(folder)


def a_fork_was_refused() -> AnalysedRun:
    parent, child = process(*CLEAN, End()), process(*CLEAN)
    child.header.parent = "x.wst.jsonl"
    child.records.append(ask(MOE, 1 << 21, "serving", 1 << 20))
    child.records.append(Failure(kind="arena", site=MOE.id, slot=Slot(), phase="serving"))
    return session(parent, child)


def two_engines_of_a_dense_model() -> AnalysedRun:
    """Each stands alone, with a DP world of 1; one of them was lost."""
    one = process(*CLEAN, End(), ranks=Ranks(dp=0, rank=0))
    return session(one, process(*CLEAN, ranks=Ranks(dp=1, rank=0)))


def written(run: AnalysedRun, folder: Path) -> None:
    """The run as the recorder leaves it on the disk."""
    folder.mkdir(exist_ok=True)
    for number, one in enumerate(run.trace.processes):
        records = [one.header, *one.records]
        lines = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        (folder / f"run1.h.{number}.wst.jsonl").write_bytes(lines)
    if run.trace.meta is not None:
        meta = msgspec.structs.replace(run.trace.meta, run=run.trace.run)
        (folder / "run.json").write_bytes(msgspec.json.encode(meta))


@dataclass(frozen=True)
class State:
    """A run that is not clean, words that every output has, and the gate's exit code."""

    make: Callable[[Path], AnalysedRun]
    words: str
    code: int = 3


FORKED = "_allocate_buffers"
STATES = {
    "killed": State(
        lambda _: with_exit(session(process(*CLEAN)), 137), "ended with exit code 137"
    ),
    "failed": State(lambda _: with_exit(session(process(*CLEAN)), 1), "ended with exit code 1"),
    "torn": State(cut_before_the_refusal, "is cut: what came after it is lost"),
    "request lost": State(
        lambda _: noted("recorder: request: RuntimeError: x"), "a request or a lock may be lost"
    ),
    "failure lost": State(
        lambda _: noted("recorder: failure: KeyError: 1"), "a request or a lock may be lost"
    ),
    "vanished": State(lambda _: a_worker_vanished(), "wrote no end, where 1 other worker did"),
    "quiet": State(lambda _: unlocked_and_quiet(), "no layer asked for workspace in 132 steps"),
    "no worker": State(
        lambda _: with_exit(analyse(Trace(Path("t"), "r", [], None)), 1),
        "the command ended with exit code 1 before a worker started",
    ),
    "disk full": State(
        lambda folder: lost("[Errno 28] No space left on device (7 ns)", folder),
        "records were lost: [Errno 28] No space left on device",
    ),
    "size limit, then a refusal": State(
        lambda folder: lost(
            "[Errno 27] too large (7 ns); vLLM refused a request after that", folder
        ),
        "vLLM refused a request after that",
    ),
    "file deleted": State(
        lambda folder: lost("an earlier trace file of this process was deleted", folder),
        "an earlier trace file of this process was deleted",
    ),
    "lived on": State(lambda _: lived_on(), "rank 0 lived on after the command"),
    "start raised": State(
        lambda _: start_raised(), "warm-up ended with ImportError: no kernels"
    ),
    "start raised after the lock": State(
        lambda _: start_raised(
            Lock(event="lock", slots=[Slot()], sizes=[1], phase="warmup"),
            PhaseChange(phase="post-lock-warmup"),
        ),
        "warm-up ended with ImportError: no kernels",
    ),
    "never locked": State(lambda _: never_locked(), "no lock was seen"),
    "never attached": State(lambda _: never_attached(), "the recorder never attached"),
    "empty file": State(an_empty_file, "run1.h.9.wst.jsonl has no whole record"),
    "two runs": State(the_newest_of_two_left_nothing, "the recorder never attached"),
    "dp": State(
        lambda _: two_engines_of_a_dense_model(), "dp1 wrote no end, where 1 other worker did"
    ),
    "unlocked for good": State(
        lambda _: unlocked_for_good(), "the arena was unlocked and not locked again"
    ),
    "ready and not asked": State(
        lambda _: ready_and_not_asked(), "no request was served after warm-up"
    ),
    "out of memory": State(
        lambda _: session(process(*CLEAN, failure("memory"))),
        "vLLM ran out of memory for a request for workspace in serving",
    ),
    "request of a refusal lost": State(
        lambda _: session(process(*CLEAN, failure("arena"))),
        "sites behind it were not seen",
        1,
    ),
    "reserve refused": State(
        lambda _: session(process(*CLEAN, ReserveEvent(event="refused", why="other heads"))),
        "a reserve was refused: other heads",
    ),
    "start cut": State(
        lambda _: session(process(PhaseChange(phase="load"))), "ends in phase load"
    ),
    "no end": State(lambda _: without_an_end(), "run.json has no end: the command still ran"),
    "fork": State(lambda _: with_exit(a_fork_was_refused(), 0), FORKED, 1),
    "refused": State(
        lambda _: load_run(SAMPLES / "demo-crash"), "sites behind it were not seen", 1
    ),
    "survived": State(
        lambda _: load_run(SAMPLES / "demo-grow"), "t survived 3 escapes (grow)", 1
    ),
}


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
        "HTML": render([run]),
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


@pytest.mark.parametrize("what", ["slicer", "step", "counts", "views"])
def test_what_the_recorder_missed_beside_the_point_is_said_and_stays_clean(what: str) -> None:
    run = noted(f"recorder: {what}: ValueError: x")
    assert run.verdict() == "clean"
    assert f"the recorder noted: recorder: {what}: ValueError: x" in run.rests_on.lines()


def test_a_piece_of_the_recorder_that_is_not_known_counts() -> None:
    assert noted("recorder: something new: ValueError: x").verdict() == "inconclusive"


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
    elsewhere = "that the baseline accepts", "No escape yet", "asked A in a slot", "Clean:"
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


NEXT = {
    "killed": FIX + "   (this trace does not show",
    "disk full": AGAIN + "   (this trace does not show",
    "lived on": FIX + "   (this trace does not show",
    "quiet": "wstrace report TRACE",
    "no worker": FIX + "   (once what ended it with exit code 1",
    "never attached": "wstrace doctor",
    "start raised": AGAIN + "   (once what stopped the start",
    "refused": f"{FIX}   (finds the rest, tries the reserve)",
    "survived": "wstrace reserve TRACE",
}


@pytest.mark.parametrize("name", NEXT)
def test_next_is_what_helps_in_this_state(name: str, tmp_path: Path) -> None:
    run = STATES[name].make(tmp_path / "t")
    assert next_commands(run, "TRACE")[0].startswith(NEXT[name])


@pytest.mark.parametrize("sample", ["demo-crash", "demo-grow"])
def test_the_reserve_that_next_names_is_made_by_that_command(
    sample: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    register_commands()
    commands = next_commands(load_run(SAMPLES / sample), str(SAMPLES / sample))
    (reserve,) = [line.partition("   (")[0] for line in commands if " reserve /" in line]
    assert CliRunner().invoke(app, shlex.split(reserve)[1:]).exit_code == 0
    assert (tmp_path / "reserve.yaml").stat().st_size > 0


def test_a_refusal_that_no_reserve_covers_leads_to_its_page() -> None:
    kept = Failure(kind="layer", site=MOE.id, slot=Slot(), phase="serving", survived=True)
    (told, *_) = next_commands(session(process(*CLEAN, kept)), "TRACE")
    assert told.startswith("wstrace explain WS106")


def test_a_server_that_was_asked_nothing_is_to_be_exercised() -> None:
    idle = process(*CLEAN[:-2], Counts(step=3, steps_real=0))
    (told,) = next_commands(session(idle), "TRACE")
    assert "wstrace exercise" in told


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
