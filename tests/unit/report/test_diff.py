"""`wstrace diff`: verdicts first, names whole."""

from __future__ import annotations

import json

import pytest

from tests.unit.report_html import runs
from wstrace.report import diff

SITE = f"{runs.ATTENTION}:{runs.CONTINUATION}"


def test_two_runs_say_their_verdicts_and_break_no_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    old, new = runs.crashed(), runs.reserved()
    diff.print_rows(diff.run_rows(old, new), [old, new])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("run A: 'turboquant_attn.py:812:_continuation_prefill' asked")
    assert lines[1].startswith("run B: Clean")
    assert sum(line.startswith(SITE) for line in lines) == 1


def test_one_run_says_its_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    run = runs.crashed()
    diff.print_rows(diff.phase_rows(run), [run])
    assert capsys.readouterr().out.startswith("'turboquant_attn.py:812:")


def test_the_json_has_the_verdicts_after_the_rows() -> None:
    old, new = runs.crashed(), runs.reserved()
    made = json.loads(diff.as_json(diff.run_rows(old, new), [old, new]))
    assert list(made) == ["version", "rows", "verdicts"]
    assert made["verdicts"] == ["findings", "clean"]


def test_no_rows_are_a_header_only(capsys: pytest.CaptureFixture[str]) -> None:
    run = runs.empty()
    diff.print_rows(diff.phase_rows(run), [run])
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == "site"
