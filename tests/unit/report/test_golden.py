"""The text, markdown and json reports, compared with golden files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.findings.build import (
    CONTINUATION,
    DECODE_SIZE,
    MOE,
    ask,
    continuation,
    continuation_bytes,
    grown,
    locked,
    process,
    session,
)
from wstrace.errors import WstraceError
from wstrace.findings.analysed_run import AnalysedRun, analyse
from wstrace.report.choose import format_of, reporter
from wstrace.report.json import render_json
from wstrace.report.markdown import render_markdown
from wstrace.report.text import render_text
from wstrace.report.verdict import FIX, verdict_lines
from wstrace.trace.reader import Trace
from wstrace.trace.records import Counts, Failure, PhaseChange, Slot
from wstrace.trace.run_file import RunFile

CHANGES = "A\u202eevil</script>`|*_[x](y)"


def crash() -> AnalysedRun:
    """A continuation that the lock refused, beside a site that was warmed."""
    request = continuation(256, DECODE_SIZE)
    failure = Failure(
        kind="arena",
        site=CONTINUATION.id,
        slot=Slot(),
        required=request.bytes,
        arena=DECODE_SIZE,
        phase="serving",
    )
    run = session(
        process(
            grown(DECODE_SIZE, "capture", window="not counted"),
            ask(MOE, DECODE_SIZE, "capture", 0),
            *locked(DECODE_SIZE),
            request,
            failure,
        )
    )
    run.trace.meta = RunFile(
        run="run1",
        command=["vllm", "serve", "some/model", "--max-model-len", "2048"],
        started="2026-05-16T10:15:00+00:00",
        wstrace="0.1.0",
        exit_code=1,
    )
    return run


def clean() -> AnalysedRun:
    """All within what warm-up had made room for."""
    size = continuation_bytes(2047)
    return session(
        process(
            grown(size, "profile", window="counted"),
            ask(MOE, size, "profile", 0),
            *locked(size),
        )
    )


def unlocked() -> AnalysedRun:
    """Eager serving: nothing locks."""
    return session(
        process(
            grown(DECODE_SIZE, "profile"),
            ask(MOE, DECODE_SIZE, "profile", 0),
            PhaseChange(phase="serving"),
            Counts(step=1, steps_real=1),
            limits={"enforce_eager": True},
        )
    )


RUNS = {"crash": crash, "clean": clean, "unlocked": unlocked}
RENDERERS = {"txt": render_text, "md": render_markdown, "json": render_json}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("kind", RENDERERS)
def test_reports_are_as_they_were(
    run: str, kind: str, gold: Callable[[str, str], None]
) -> None:
    gold(f"report/{run}.{kind}", RENDERERS[kind](RUNS[run]()))


def test_the_text_fits_the_width_it_was_given() -> None:
    for width in (60, 80, 120):
        assert max(map(len, render_text(crash(), width).splitlines())) <= width


def test_markdown_stays_under_sixty_lines_with_many_sites() -> None:
    records = [ask(MOE, 256 * n, "profile", 0) for n in range(1, 200)]
    text = render_markdown(session(process(*records, *locked(51200), continuation(256, 51200))))
    assert len(text.splitlines()) < 60


def test_markdown_cannot_be_broken_out_of() -> None:
    hostile = continuation(256, DECODE_SIZE)
    hostile.layer = CHANGES
    text = render_markdown(session(process(*locked(DECODE_SIZE), hostile)))
    assert "</script>" not in text.replace("\\<", "").replace("\\>", "")
    assert not re.search(r"(?<!\\)\]\(", text)


def test_the_verdict_has_at_most_twelve_lines_and_the_next_command() -> None:
    run = crash()
    lines = verdict_lines(run, run.trace.path)
    assert len(lines) <= 12
    assert lines[1].startswith("wstrace: 'some_attn.py:747:_continuation_prefill' asked")
    assert any(line.startswith(f"next:  {FIX}") for line in lines)
    assert any("wstrace reserve trace -o reserve.yaml" in line for line in lines)


def test_an_empty_run_says_that_nothing_attached() -> None:

    text = render_text(analyse(Trace(Path("t"), "", [])))
    assert "the recorder never attached" in text.splitlines()[0]


def test_the_format_follows_the_extension_and_an_unknown_one_is_refused() -> None:

    assert format_of(Path("a.html"), None) == "html"
    assert format_of(Path("a.md"), None) == "markdown"
    assert format_of(Path("a.pdf"), "json") == "json"
    assert format_of(None, None) == "text"
    with pytest.raises(WstraceError, match=r"a\.pdf"):
        format_of(Path("a.pdf"), None)
    with pytest.raises(WstraceError, match="xml"):
        format_of(None, "xml")
    assert reporter("markdown")([clean()]).startswith("### Clean")


def test_control_and_direction_marks_reach_no_terminal_and_names_end() -> None:
    hostile = continuation(256, DECODE_SIZE)
    hostile.layer = "\x1b[31m\u202e" + "A" * 10_000
    for render in (render_text, render_markdown):
        text = render(session(process(*locked(DECODE_SIZE), hostile)))
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert len(text) < 6000


def test_a_narrow_terminal_keeps_the_site() -> None:
    assert "some_attn.py:747:" in render_text(crash(), 40).replace("\n", "")
