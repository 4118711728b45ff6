"""`next:` of each state: the command that helps there, as a shell reads it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

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
)
from tests.unit.findings.states import RESERVED, SAMPLES, STATES, failure, written
from wstrace.cli.app import app, register_commands
from wstrace.findings.analysed_run import AnalysedRun, load_run
from wstrace.report.verdict import AGAIN, FIX, next_commands, to_mend, verdict_lines
from wstrace.trace.records import (
    Counts,
    End,
    Failure,
    Record,
    Slot,
)

NEXT = {
    "killed": FIX + "   (this trace does not show",
    "disk full": AGAIN + "   (this trace does not show",
    "lived on": FIX + "   (this trace does not show",
    "quiet": "wstrace report TRACE",
    "no worker": FIX + "   (once what ended it with exit code 1",
    "never attached": "wstrace doctor",
    "start raised": AGAIN + "   (once what stopped the start",
    "locked anew without its reserve": "wstrace explain WS101   (the reserve made 2.00 MiB, "
    "and the slot was locked anew at 1.00 MiB)",
    "unlocked for good": "wstrace reserve TRACE",
    "reserved and unlocked for good": "wstrace gate TRACE --allow-unlocked",
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


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["vllm", "serve"], "wstrace fix --merge 'my reserve.yaml' -- YOUR COMMAND"),
        (
            ["python"],
            "wstrace run --on-growth grow --reserve 'my reserve.yaml' -- YOUR COMMAND",
        ),
    ],
)
def test_next_keeps_the_sites_of_the_reserve_that_the_run_had(
    command: list[str], named: str
) -> None:
    """A reserve only grows; and the run died of more than its arena had at either lock."""
    refused = ask(MOE, 3 << 20, "serving", 1 << 21), failure("arena")
    run = session(process(*RESERVED, *locked(1 << 21), *refused))
    assert run.trace.meta is not None
    run.trace.meta.command, run.trace.meta.reserve = command, "my reserve.yaml"
    assert next_commands(run, "TRACE")[0].partition("   (")[0] == named


def test_the_trace_that_next_names_is_typed_as_a_shell_reads_it(tmp_path: Path) -> None:
    folder = tmp_path / "a b; c"
    written(load_run(SAMPLES / "demo-grow"), folder)
    lines = [line for line in verdict_lines(load_run(folder), folder) if " reserve " in line]
    (line,) = [line for line in lines if "--reserve" not in line]
    assert str(folder) in shlex.split(line.partition("   (")[0])


def test_a_refusal_that_no_reserve_covers_leads_to_its_page() -> None:
    kept = Failure(kind="layer", site=MOE.id, slot=Slot(), phase="serving", survived=True)
    (told, *_) = next_commands(session(process(*CLEAN, kept)), "TRACE")
    assert told.startswith("wstrace explain WS106")


def test_a_server_that_was_asked_nothing_is_to_be_exercised() -> None:
    idle = process(*CLEAN[:-2], Counts(step=3, steps_real=0), End())
    (told,) = next_commands(session(idle), "TRACE")
    assert "wstrace exercise" in told


def _failed(kind: str) -> Record:
    return Failure(kind=kind, site=MOE.id, slot=Slot(), phase="serving")  # type: ignore[arg-type]


OTHER_CODES = {
    "WS103": [*CLEAN[:2], *locked(1 << 20), continuation(512, 1 << 20)],
    "WS104": [
        *CLEAN[:2],
        *locked(1 << 20, Slot(), Slot(1, 0)),
        ask(CONTINUATION, 2 << 20, "serving", 1 << 20, slot=Slot(1, 0)),
    ],
    "WS105": [*CLEAN, _failed("persistent")],
    "WS106": [*CLEAN, _failed("layer")],
    "WS303": [grown(1 << 20, "capture", capturing=True), *CLEAN[1:]],
}
"""What no state has that a person would mend: a run for each of these codes."""
SAMPLED = [path.name for path in sorted(SAMPLES.iterdir()) if (path / "run.json").exists()]


def _helps(run: AnalysedRun) -> set[tuple[str, bool]]:
    """Codes to mend, each with whether a reserve helps; the advice has to say the same."""
    found = to_mend(run)
    assert [f.reservable for f in found] == ["wstrace reserve" in f.advice for f in found]
    return {(f.code, f.reservable) for f in found}


def test_a_reserve_helps_where_the_table_of_codes_and_the_advice_say_so(
    tmp_path: Path,
) -> None:
    runs = [state.make(tmp_path / str(n)) for n, state in enumerate(STATES.values())]
    runs += [load_run(SAMPLES / name) for name in SAMPLED]
    runs += [session(process(*records)) for records in OTHER_CODES.values()]
    helped = set().union(*map(_helps, runs))
    cured = ("101", "102", "103", "104", "107", "202", "301", "303")
    # of a WS102 whose request is in no record nothing can be reserved
    beyond = ("102", "105", "106")
    assert helped == {(f"WS{code}", True) for code in cured} | {
        (f"WS{code}", False) for code in beyond
    }
