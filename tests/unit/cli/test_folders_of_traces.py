"""A folder that is no trace: what every command says of it, and of the traces right below."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import wstrace
from tests.unit.gate.traces import clean
from wstrace.cli.app import main
from wstrace.file_names import kept_run_file

COMMANDS = {
    "report": ["report", "many"],
    "gate": ["gate", "many"],
    "gate --run": ["gate", "many", "--run", "r"],
    "gate, the second": ["gate", "many/a", "many"],
    "reserve": ["reserve", "many"],
    "diff": ["diff", "many"],
    "export": ["export", "many", "--format", "csv", "-o", "out"],
    "watch": ["watch", "many", "--once"],
}
RUN_FILE = '{"run":"r","command":[],"started":"","wstrace":"0.1.0"}'


Said = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Said:
    """Run a command beside an empty folder `many`: its exit code, and stderr."""
    monkeypatch.chdir(tmp_path)
    Path("many").mkdir()

    def run(*words: str) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["wstrace", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), capsys.readouterr().err.splitlines()

    return run


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_traces_right_below_are_named(arguments: list[str], said: Said) -> None:
    clean(Path("many/a"))
    Path("many/b").mkdir()
    Path("many/b/run.json").write_text(RUN_FILE)
    Path("many/empty").mkdir()
    Path("many/a.txt").write_text("a note\n")
    assert said(*arguments) == (
        2,
        ["wstrace: many holds no trace.", "Traces lie in many/a, many/b: name them."],
    )


def test_three_of_many_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    for name in "abcde":
        clean(tmp_path / name)
    with pytest.raises(wstrace.WstraceError) as told:
        wstrace.load(tmp_path)
    first = ", ".join(str(tmp_path / name) for name in "abc")
    assert told.value.hint == f"Traces lie in {first} and 2 more: name them."


def test_a_folder_of_other_things_is_no_trace_for_the_gate(said: Said) -> None:
    Path("many/notes.txt").write_text("a note\n")
    Path("many/deep/below").mkdir(parents=True)
    clean(Path("many/deep/below/a"))
    assert said("gate", "many") == (
        2,
        ["wstrace: many holds no trace.", "Give a folder made by `wstrace run`."],
    )


@pytest.mark.parametrize(
    "names", [[], [".gitkeep"], ["run.json", "a.txt"], [kept_run_file("r")], ["x.wst.jsonl.gz"]]
)
def test_a_folder_that_may_be_a_runs_is_inconclusive_for_the_gate(
    names: list[str], said: Said
) -> None:
    for name in names:
        Path("many", name).write_text(RUN_FILE)
    assert said("gate", "many")[0] == 3


NAMED = {
    "report": ["report", "{}"],
    "gate": ["gate", "{}"],
    "reserve": ["reserve", "{}"],
    "diff": ["diff", "{}"],
    "export": ["export", "{}", "--format", "csv", "-o", "out"],
    "watch": ["watch", "{}", "--once"],
}
TRIAGE = {"triage": ["triage", "{}"]}


@pytest.mark.parametrize("arguments", (NAMED | TRIAGE).values(), ids=NAMED | TRIAGE)
@pytest.mark.parametrize("name", ["run.json", kept_run_file("r")])
def test_a_run_json_alone_is_no_trace_and_no_log(
    arguments: list[str], name: str, said: Said
) -> None:
    clean(Path("many"))
    Path("many", name).write_text(RUN_FILE)
    assert said(*(word.format(f"many/{name}") for word in arguments)) == (
        2,
        [
            f"wstrace: many/{name} says how a run ended: it is no trace and no log.",
            "Give its folder: many",
        ],
    )
    with pytest.raises(wstrace.WstraceError, match="says how a run ended"):
        wstrace.load(f"many/{name}")


@pytest.mark.parametrize("arguments", NAMED.values(), ids=NAMED)
def test_a_log_on_standard_input_is_for_triage(arguments: list[str], said: Said) -> None:
    assert said(*(word.format("-") for word in arguments)) == (
        2,
        ["wstrace: No such trace: -.", "A log on standard input is for `wstrace triage -`."],
    )
