"""What a verdict rests on: each end as a run of its own, with its sentence and exit code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest

from tests.unit.findings.build import (
    MOE,
    ask,
    continuation,
    grown,
    locked,
    process,
    session,
)
from wstrace.findings.analysed_run import AnalysedRun, analyse, load_run
from wstrace.findings.rests_on import failed
from wstrace.gate.judge import Policy, judge
from wstrace.report.ci import gate_json, gate_markdown, gate_text, github, junit, sarif
from wstrace.report.html import render
from wstrace.report.json import render_json
from wstrace.report.markdown import render_markdown
from wstrace.report.text import render_text
from wstrace.report.verdict import sentence, verdict_lines
from wstrace.trace.reader import Trace
from wstrace.trace.records import Counts, End, Note, PhaseChange, Ranks, Record
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
    meta = RunFile("r", ["vllm", "serve"], "", "0.1.0", ended="later", exit_code=code)
    return analyse(Trace(run.trace.path, "r", run.trace.processes, meta))


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


@dataclass(frozen=True)
class State:
    """A run that is not clean, and words that every output has."""

    make: Callable[[Path], AnalysedRun]
    words: str


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
}


@pytest.mark.parametrize("state", STATES.values(), ids=list(STATES))
def test_each_end_is_inconclusive_and_said_in_every_output(
    state: State, tmp_path: Path
) -> None:
    run = state.make(tmp_path / "t")
    judgement = judge([run], Policy(), date(2026, 1, 1))
    assert (run.verdict(), judgement.exit_code) == ("inconclusive", 3)
    outputs = [
        render_text(run, width=400),
        render_json(run),
        render([run]),
        sentence(run),
        *(f.render(judgement) for f in (gate_text, gate_json, junit, sarif, github)),
    ]
    assert [text for text in outputs if state.words not in text] == []
    assert state.words in gate_markdown.render(judgement).replace("\\", "")
    assert state.words in render_markdown(run).replace("\\", "")


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


def test_a_finding_stays_a_finding_after_a_kill() -> None:
    crash = load_run(SAMPLES / "demo-crash")
    killed = with_exit(crash, 137)
    assert killed.verdict() == "findings"
    assert judge([killed], Policy(), date(2026, 1, 1)).exit_code == 1


def test_next_after_a_death_finds_the_rest_and_without_a_worker_is_doctor() -> None:
    crash = load_run(SAMPLES / "demo-crash")
    text = "\n".join(verdict_lines(crash, SAMPLES / "demo-crash"))
    assert "The run died at step 9; sites behind it were not seen." in text
    assert "next:  wstrace run --on-growth grow" in text
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
