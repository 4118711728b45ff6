"""What goes to the screen: one line for a written file, none of other programs' noise."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wstrace.cli import checkup, outlet
from wstrace.cli.app import main
from wstrace.cli.checkup import Check
from wstrace.cli.commands import doctor
from wstrace.report.verdict import AGAIN, FIX, _fitted


def test_a_written_file_is_named_on_stderr_and_stdout_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outlet.write("text", tmp_path / "out.txt")
    assert capsys.readouterr() == ("", f"Wrote {tmp_path / 'out.txt'}.\n")
    outlet.write("text", None)
    assert capsys.readouterr() == ("text\n", "")


def noise() -> None:
    """As Python's print, as a logger, and as C writes."""
    print("from Python")
    print("a warning", file=sys.stderr)
    os.write(1, b"from C\n")
    os.write(2, b"torch: from C\n")


def test_quiet_drops_what_python_and_c_print_and_then_speaks_again(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WSTRACE_DEBUG", "")
    with outlet.quiet():
        noise()
    assert capfd.readouterr() == ("", "")
    print("heard")
    assert capfd.readouterr().out == "heard\n"
    monkeypatch.setenv("WSTRACE_DEBUG", "1")
    with outlet.quiet():
        noise()
    assert "torch: from C" in capfd.readouterr().err


def test_quiet_ends_with_an_error_too(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WSTRACE_DEBUG", "")
    with pytest.raises(RuntimeError), outlet.quiet():
        raise RuntimeError
    print("heard")
    assert capfd.readouterr().out == "heard\n"


def test_doctor_tells_a_check_before_it_makes_the_next(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WSTRACE_DEBUG", "")
    seen: list[str] = []

    def checks(_: Path) -> Iterator[Check]:
        noise()
        yield Check("first", "ok", "is here")
        seen.append(capfd.readouterr().out)
        yield Check("second", "ok", "too")

    monkeypatch.setattr(checkup, "run_all", checks)
    doctor.command()
    assert seen == ["ok    first: is here\n"]
    last = f"next: {FIX}   (a server; a script: {AGAIN})"
    assert capfd.readouterr() == (f"ok    second: too\n{last}\n", "")


def test_a_long_line_of_the_verdict_is_cut_between_words() -> None:
    line = "bound: " + "max_model_len " * 30
    cut = _fitted(line)
    assert len(cut) <= 200
    assert cut.endswith("max_model_len ...")
    assert _fitted("x" * 200) == "x" * 200


def test_one_accepted_finding_is_one_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    crash = Path(__file__).resolve().parents[2] / "data" / "docs" / "crash"
    known = tmp_path / "known.jsonl"
    monkeypatch.setattr(sys, "argv", ["wstrace", "gate", str(crash)])
    sys.argv += ["--write-baseline", str(known)]
    with pytest.raises(SystemExit):
        main()
    assert f"wstrace: 1 finding accepted in {known}" in capsys.readouterr().err
