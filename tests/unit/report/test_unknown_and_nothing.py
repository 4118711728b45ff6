"""What was not asked, and what no header says, is written alike in every output."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date

import pytest

from tests.unit.findings.build import CONTINUATION, ask, continuation, locked, process, session
from wstrace.findings.analysed_run import AnalysedRun
from wstrace.gate.judge import Policy, judge
from wstrace.report.ci import gate_formats
from wstrace.report.diff import phase_rows, print_rows
from wstrace.report.html import render
from wstrace.report.markdown import render_markdown
from wstrace.report.text import render_text
from wstrace.trace.records import PhaseChange

KIB = 1024
CAPSYS = pytest.CaptureFixture[str]


def unwarmed() -> AnalysedRun:
    """A site that asked nothing in warm-up and escaped; the header names no build."""
    run = session(
        process(
            *locked(64 * KIB),
            PhaseChange(phase="serving"),
            continuation(2048, 64 * KIB),
            ask(CONTINUATION, 512, "serving", 64 * KIB),
        )
    )
    for worker in run.workers:
        worker.header.vllm = worker.header.torch = None
        worker.limits.pop("model", None)
    return run


def _gate(name: str) -> Callable[[AnalysedRun], str]:
    return lambda run: gate_formats.reporter(name)(judge([run], Policy(), date(2026, 1, 1)))


OUTPUTS: dict[str, Callable[[AnalysedRun], str]] = {
    "text": render_text,
    "Markdown": render_markdown,
    "HTML": lambda run: render([run]),
    **{
        f"gate {name}": _gate(name) for name in ("text", "markdown", "github", "junit", "sarif")
    },
}


@pytest.mark.parametrize("output", OUTPUTS.values(), ids=OUTPUTS)
def test_none_is_no_version_and_no_model(output: Callable[[AnalysedRun], str]) -> None:
    told = output(unwarmed())
    shown = re.sub(r"<(script|style).*?</\1>", "", told, flags=re.DOTALL)
    assert not re.search(r"(?i)\b(vLLM|torch|model) `?None\b", shown)
    assert "(null)" not in shown


@pytest.mark.parametrize("name", ["text", "Markdown", "gate text"])
def test_what_names_a_version_says_that_there_is_none(name: str) -> None:
    assert "vLLM ?" in OUTPUTS[name](unwarmed())


@pytest.mark.parametrize("output", OUTPUTS.values(), ids=OUTPUTS)
def test_what_was_not_asked_is_no_size(output: Callable[[AnalysedRun], str]) -> None:
    run = unwarmed()
    assert run.sites[0].warmup_bytes == 0
    told = output(run).replace("arena 0 B", "")  # before the first growth
    assert not re.search(r"\b0(\.00)? ?(B|KiB|bytes)\b", told)


def test_the_diff_says_so_too(capsys: CAPSYS) -> None:
    run = unwarmed()
    print_rows(phase_rows(run), [run])
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.split()[1] == "-"
