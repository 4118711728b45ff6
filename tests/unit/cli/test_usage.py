"""Wrong command lines of every command: two lines on stderr, exit code 2, nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.unit.triage.generator import Failure, log_lines
from wstrace.cli.app import COMMANDS, app, main, register_commands
from wstrace.cli.usage import STARTERS

Told = tuple[int, str, str]
Tell = Callable[..., Told]
BOX = "╭╮╰╯│─"


@pytest.fixture
def tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Tell:
    """Run a command line in this process, in an empty folder; (code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WSTRACE_DEBUG", "")

    def run(*words: str) -> Told:
        monkeypatch.setattr(sys, "argv", ["wstrace", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, captured.out, captured.err

    return run


def _commands() -> dict[str, Any]:
    register_commands()
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def _parameters(kind: str) -> Iterator[tuple[str, Any]]:
    for name, command in _commands().items():
        for parameter in command.params:
            if parameter.param_type_name == kind:
                yield name, parameter


def _values() -> list[Any]:
    """Every option that takes a value, of every command."""
    return [
        pytest.param(name, max(option.opts, key=len), id=f"{name} {max(option.opts, key=len)}")
        for name, option in _parameters("option")
        if not getattr(option, "is_flag", False)
    ]


def _two_lines(told: Told, says: str) -> None:
    code, out, err = told
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert len(lines) == 2, err
    assert lines[0].startswith("wstrace: ")
    assert says in lines[0]
    assert lines[1].strip()
    assert not set(BOX) & set(err)


def test_the_walk_sees_every_command() -> None:
    assert set(_commands()) == set(COMMANDS)
    assert len(_values()) > 30


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option(name: str, tell: Tell) -> None:
    _two_lines(tell(name, "--no-such-option"), "--no-such-option")


@pytest.mark.parametrize(("name", "option"), _values())
def test_an_option_without_its_value(name: str, option: str, tell: Tell) -> None:
    _two_lines(tell(name, option), option)


@pytest.mark.parametrize(("name", "option"), _values())
def test_an_empty_value(name: str, option: str, tell: Tell) -> None:
    rest = ["--", "true"] if name in STARTERS else []
    _two_lines(tell(name, option, "", *rest), option)
    _two_lines(tell(name, f"{option}=", *rest), option)


@pytest.mark.parametrize(
    ("name", "argument"), [(n, a) for n, a in _parameters("argument") if a.required]
)
def test_a_missing_argument(name: str, argument: Any, tell: Tell) -> None:
    _two_lines(tell(name), "Missing argument")


@pytest.mark.parametrize(
    "name", sorted({n for n, _ in _parameters("argument")} - set(STARTERS))
)
def test_an_empty_argument(name: str, tell: Tell) -> None:
    _two_lines(tell(name, ""), "Empty value for an argument")
    _two_lines(tell(name, "--", ""), "Empty value for")


@pytest.mark.parametrize(
    "name", sorted(set(COMMANDS) - {n for n, _ in _parameters("argument")})
)
def test_an_argument_too_many(name: str, tell: Tell) -> None:
    required = ["--url", "http://127.0.0.1:1"] if name == "exercise" else []
    _two_lines(tell(name, *required, "extra"), "extra")


@pytest.mark.parametrize(
    ("name", "option"),
    [
        (n, max(o.opts, key=len))
        for n, o in _parameters("option")
        if o.type_descriptor.is_choice
    ],
)
def test_a_choice_that_is_none(name: str, option: str, tell: Tell) -> None:
    rest = ["--", "true"] if name in STARTERS else []
    _two_lines(tell(name, option, "zip", *rest), "'zip' is not one of")


@pytest.mark.parametrize(
    "words",
    [
        ("exercise", "--url", "u", "--max-requests", "0"),
        ("exercise", "--url", "u", "--max-requests", "9" * 400),
        ("exercise", "--url", "u", "--wait", "soon"),
        ("exercise", "--url", "u", "--wait", "nan"),
        ("watch", ".", "--interval", "1e9"),
    ],
)
def test_a_number_out_of_range(words: tuple[str, ...], tell: Tell) -> None:
    _two_lines(tell(*words), words[-2])


def test_an_unknown_command_names_a_near_one(tell: Tell) -> None:
    _two_lines(tell("triag"), "Did you mean 'triage'?")
    _two_lines(tell("frobnicate"), "No such command 'frobnicate'")


def test_a_near_option_is_named_in_the_second_line(tell: Tell) -> None:
    assert "Did you mean --format?" in tell("report", "x", "--fromat", "json")[2]
    assert "Did you mean --on-growth?" in tell("run", "--on-growht", "grow", "--", "true")[2]


def test_a_name_with_a_line_break_keeps_two_lines(tell: Tell) -> None:
    _two_lines(tell("report", "a\nb\x1b[31m"), "a\\nb\\x1b[31m")


def test_no_argument_at_all_shows_the_help(tell: Tell) -> None:
    code, out, err = tell()
    assert code == 2
    assert "doctor" in out + err


def test_an_empty_word_after_two_dashes_is_the_programs_own(tell: Tell) -> None:
    code, _, err = tell("run", "-q", "--", sys.executable, "-c", "import sys; sys.exit(7)", "")
    assert (code, err) == (7, "")


def test_an_empty_word_of_a_program_without_dashes_is_its_own(tell: Tell) -> None:
    assert tell("run", "-q", "true", "")[0] == 0


def test_debug_shows_where_and_keeps_the_exit_code(tell: Tell) -> None:
    code, _, err = tell("--debug", "report", "nowhere")
    assert code == 2
    assert "Traceback" in err
    assert err.splitlines()[-2].startswith("wstrace: No such trace")


def test_a_bug_is_exit_2_because_1_means_findings(
    tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("slot")

    monkeypatch.setattr("wstrace.gate.runs.load_runs", broken)
    _two_lines(tell("gate", "x"), "internal error: KeyError")


def _program(*words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "wstrace.cli.app", *words],
        stderr=subprocess.PIPE,
        check=False,
        **options,
    )


def test_a_reader_that_left_is_told_as_sigpipe_would() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = _program("sites", "--format", "json", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_full_disk_is_two_lines_and_exit_2() -> None:
    with open("/dev/full", "wb") as full:
        done = _program("sites", stdout=full)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2
    assert b"No space left" in done.stderr


def test_closed_stdout_is_no_traceback() -> None:
    done = _program("sites", preexec_fn=lambda: os.close(1))
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_character_that_stdout_lacks_is_spelt(tmp_path: Path) -> None:
    log = tmp_path / "prüfung.log"
    log.write_text("\n".join(log_lines(Failure().traceback(), "EngineCore pid=1")))
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = _program("triage", str(log), env=env, stdout=subprocess.PIPE)
    assert done.returncode == 0
    assert b"pr\\xfcfung.log" in done.stdout


@pytest.mark.parametrize("command", STARTERS)
def test_every_option_of_a_starter_is_guessed(command: str, tell: Tell) -> None:
    """Behind a misspelt one stands no value: the option itself would be the program to run."""
    register_commands()
    page = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    known = [name for one in page for name in one.opts if name.startswith("--")]
    assert len(known) >= 7
    for name in known:
        assert f"Did you mean {name}?" in tell(command, f"{name[:-1]}q", "--", "true")[2]
