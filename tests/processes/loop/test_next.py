"""`next:` leads out of every state: what it names is typed here, until a server survives."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory

import pytest
import yaml

from tests import commands
from tests.processes.loop.test_fix import Done, fix
from tests.unit.findings.states import STATES, State, written
from wstrace.cli import checkup
from wstrace.exercise.client import Client
from wstrace.exercise.corners import corners_within
from wstrace.exercise.send import Outcome, exercise
from wstrace.findings.analysed_run import AnalysedRun, load_run
from wstrace.report.verdict import next_commands
from wstrace.testbed.engine import free_port

ROOT = Path(__file__).resolve().parents[3]
MOST = 3
STRANGER = "asked for more after the lock than before it"  # the code's page: no reserve helps
SAYS_WHY = {
    "quiet": "no layer asked for workspace in 132 steps: nothing to reserve",
    "a stranger asked for more": STRANGER,
    "locked anew without its reserve": "asked after the lock, never before it",
    "reserved and unlocked for good": "clean",
}
Serve = Callable[..., tuple[Outcome, Path]]


def typed(line: str) -> list[str]:
    """The words of a line of `next:`, without its remark."""
    return shlex.split(line.partition("   (")[0])


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """`wstrace run OPTIONS -- STAND-IN`, exercised; its outcome and its trace."""
    started: list[Popen[str]] = []

    def run(*options: str, words: str = "", cwd: Path = tmp_path) -> tuple[Outcome, Path]:
        port, trace = free_port(), tmp_path / f"served{len(started)}"
        env = {k: v for k, v in os.environ.items() if not k.startswith("WSTRACE")}
        stand_in = [sys.executable, "-m", "tests.processes.loop.stand_in", "serve", "m"]
        server = commands.forked(
            *("run", "-q", "-o", str(trace), *options, "--", *stand_in, "--port", str(port)),
            env=env | {"PYTHONPATH": str(ROOT), "STAND_IN": words},
            cwd=cwd,
        )
        started.append(server)
        client = Client(f"http://127.0.0.1:{port}")
        client.wait(600)
        model = client.model(None, 10)
        outcome = exercise(client, model, corners_within(model.max_model_len, 32)[0], 600)
        server.send_signal(signal.SIGINT)
        server.communicate()
        return outcome, trace

    yield run
    for server in started:
        server.kill()
        server.communicate()


@cache
def fixed_once(words: str, merged: str) -> Done:
    """`wstrace fix` on the stand-in, with the text of an older reserve or none: the same from
    every state that leads to it."""
    with TemporaryDirectory(prefix="wstrace-next-") as folder:
        older = Path(folder, "older.yaml")
        older.write_text(merged)
        options = ("--merge", str(older)) if merged else ()
        return fix(Path(folder), *options, words=words)


def on_disk(run: AnalysedRun, folder: Path) -> Path:
    if run.trace.path.is_dir() and any(run.trace.path.iterdir()):
        return run.trace.path
    written(run, folder)
    return folder


KNOWN: dict[tuple[object, ...], tuple[Outcome, Path]] = {}
"""What a server did, by its options, its words and the bytes of its reserve."""


def _served(serve: Serve, options: list[str], words: str, cwd: Path) -> tuple[Outcome, Path]:
    """Equal servers answer alike: each is started once a process of the tests."""
    reserved = "--reserve" in options
    slots = yaml.safe_load((cwd / "reserve.yaml").read_text())["slots"] if reserved else []
    key = (*options, words, *(slot["bytes"] for slot in slots))
    if key not in KNOWN:
        KNOWN[key] = serve(*options, words=words, cwd=cwd)
    return KNOWN[key]


def follow(run: AnalysedRun, trace: Path, serve: Serve, words: str, cwd: Path) -> list[str]:
    """Type what `next:` says until a server survives `exercise`, or a command says why not.

    Returns what was typed, and at its end `survived` or what was said.
    """
    log: list[str] = []
    left = next_commands(run, str(trace))
    while left:
        line, left = left[0], left[1:]
        command = typed(line)
        log.append(line)
        assert len(log) <= MOST, log
        assert command[0] == "wstrace"
        if command[1] == "fix":
            options = command[2 : command.index("--")]
            assert options in ([], ["--merge", "reserve.yaml"])
            merged = (cwd / "reserve.yaml").read_text() if options else ""
            fix_of = fixed_once(words, merged)
            fixed = fix_of.row("result").startswith("Fixed")
            assert (fix_of.code == 0) == fixed
            assert fixed or words, fix_of.err
            answered = fixed or "were answered" in fix_of.out
            return [*log, "survived" if answered else fix_of.out]
        if command[1] == "run":
            options = command[2 : command.index("--")]
            assert command[command.index("--") :] == ["--", "YOUR", "COMMAND"]
            outcome, trace = _served(serve, options, words, cwd)
            run = load_run(trace)
            if "--reserve" in options and outcome.exit_code == 0:
                return [*log, "survived"]
            left = next_commands(run, str(trace))
            continue
        done = commands.wstrace(*command[1:], cwd=cwd)
        if command[1] == "doctor":
            assert done.returncode == 0, done.stdout
            left = [done.stdout.rpartition("next: ")[2].strip()]
        elif command[1] != "reserve":
            return [*log, done.stdout]
        else:
            assert done.returncode == 0, done.stderr
    return log


@pytest.mark.parametrize("name", STATES)
def test_next_leads_from_every_state_to_a_server_that_survives_or_says_why(
    name: str, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "_hooks", lambda: iter(()))  # imports vLLM: many seconds
    state: State = STATES[name]
    run = state.make(tmp_path / "t")
    trace = on_disk(run, tmp_path / "w")
    words = "unlocked" if name == "never locked" else ""
    *_, last = follow(run, trace, serve, words, tmp_path)
    if name in SAYS_WHY:
        assert SAYS_WHY[name] in last.replace("\n", " ")
    else:
        assert last == "survived"


def test_what_no_reserve_covers_leads_to_the_page_that_says_what_does(
    tmp_path: Path, serve: Serve
) -> None:
    outcome, trace = serve("--on-growth", "grow", words="beyond")
    assert outcome.died
    *_, last = follow(load_run(trace), trace, serve, "beyond", tmp_path)
    assert "WS106" in last


def test_the_first_death_hides_a_site_and_next_finds_it(tmp_path: Path, serve: Serve) -> None:
    """`fix` for a server; for a script the three commands that it types."""
    outcome, trace = serve()
    assert outcome.died
    run = load_run(trace)
    log = follow(run, trace, serve, "", tmp_path)
    assert [typed(line)[1] for line in log[:-1]] == ["fix"]
    assert log[-1] == "survived"
    assert run.trace.meta is not None
    run.trace.meta.command[:] = ["python", "ask.py"]
    log = follow(run, trace, serve, "", tmp_path)
    assert [typed(line)[1] for line in log[:-1]] == ["run", "reserve", "run"]
    assert log[-1] == "survived"
